//! Snapshots and clones of the volumes of a pool: draws operations on them, and judges their contents.

use super::{
    model::{VolumeOpKind, VolumeWorld, uses},
    oracle::{Presence, SnapshotOracle},
    tested::Tested,
};
use crate::simulator::{layer::step, world::Failure};
use engine::buf::{BLOCK, Buf};

/// One of so many operations is one on snapshots.
const RARITY: u64 = 4;

/// Most snapshots of all volumes.
const MOST: usize = 5;

/// An operation on snapshots, in one of so many calls, if those in progress allow it.
pub(super) fn draw(world: &mut VolumeWorld) -> Option<VolumeOpKind> {
    let volume = world.model.volume.clone()?;
    if !world.model.scenario.snapshots || volume.volumes_of_pool() == 0 || !world.rng.chance(1, RARITY) {
        return None;
    }
    let number = world.rng.below(volume.volumes_of_pool() as u64) as usize;
    let kind = world.rng.below(10);
    if kind < 3 {
        let id = world.model.next_snapshot;
        let can_be =
            !volume.is_clone(number) && world.model.snapshots.len() < MOST && volume.is_there(number);
        let kind = VolumeOpKind::Snapshot { number, id };
        return (can_be && is_allowed(world, kind)).then_some(kind);
    }
    let there = world.model.snapshots.iter().filter(|snapshot| snapshot.presence == Presence::There);
    let there: Vec<&SnapshotOracle> = there.collect();
    let snapshot = *there.get(world.rng.clone().below(there.len().max(1) as u64) as usize)?;
    let (id, of, blocks) = (snapshot.id, snapshot.number, snapshot.blocks.len() as u64);
    let is_latest = !world.model.snapshots.iter().any(|other| other.number == of && other.id > id);
    let certain = snapshot.certain().is_some();
    let kind = match kind {
        3 if !volume.has_clone(of, id) => VolumeOpKind::RemoveSnapshot { id },
        // A larger snapshot enlarges the volume.
        4 if is_latest && certain && blocks <= volume.sizes()[of] => {
            VolumeOpKind::RollBack { number: of, id }
        }
        5 | 6 if certain && has_no_snapshots(world, number) && volume.sizes()[number] == blocks => {
            VolumeOpKind::Clone { number, id }
        }
        // Its contents are certain afterwards.
        4..7 if !certain => VolumeOpKind::ReadSnapshot { id, at: 0, blocks },
        _ => {
            let at = world.rng.below(blocks);
            VolumeOpKind::ReadSnapshot { id, at, blocks: 1 + world.rng.below((blocks - at).min(40)) }
        }
    };
    is_allowed(world, kind).then_some(kind)
}

/// Whether a volume can be removed.
pub(super) fn has_no_snapshots(world: &VolumeWorld, number: usize) -> bool {
    !world.model.snapshots.iter().any(|snapshot| snapshot.number == number)
}

/// Whether no operation in progress prevents one on snapshots.
fn is_allowed(world: &VolumeWorld, kind: VolumeOpKind) -> bool {
    let ids = |kind: VolumeOpKind| match kind {
        VolumeOpKind::Snapshot { id, .. }
        | VolumeOpKind::RemoveSnapshot { id }
        | VolumeOpKind::RollBack { id, .. }
        | VolumeOpKind::Clone { id, .. } => Some(id),
        _ => None,
    };
    let read = |kind: VolumeOpKind| match kind {
        VolumeOpKind::ReadSnapshot { id, .. } => Some(id),
        _ => None,
    };
    !world.model.ops.iter().any(|op| {
        let same = ids(op.kind).is_some() && ids(kind).is_some();
        let is_read_and_changed = |a, b| read(a).is_some() && read(a) == ids(b);
        same || is_read_and_changed(op.kind, kind)
            || is_read_and_changed(kind, op.kind)
            || uses(world, op.kind, kind)
    })
}

/// Records that an operation on snapshots has begun.
pub(super) fn begun(world: &mut VolumeWorld, kind: VolumeOpKind, begun: u64) {
    match kind {
        VolumeOpKind::Snapshot { number, id } => {
            world.model.next_snapshot = id + 1;
            let blocks = world.model.volume.as_ref().map_or(0, |volume| volume.sizes()[number]);
            let at = world.model.volume.as_ref().map_or(0, |volume| volume.range(number).start);
            let blocks = world.model.oracle.contents(at, blocks, begun);
            let presence = Presence::Uncertain;
            world.model.snapshots.push(SnapshotOracle { id, number, presence, blocks });
        }
        VolumeOpKind::RemoveSnapshot { id } => {
            if let Some(snapshot) = world.model.snapshot_mut(id) {
                snapshot.presence = Presence::Uncertain;
            }
        }
        _ => {}
    }
}

/// Records that an operation on snapshots has ended.
pub(super) fn ended(world: &mut VolumeWorld, kind: VolumeOpKind, data: &Buf) -> Result<(), Failure> {
    match kind {
        VolumeOpKind::Snapshot { id, .. } => {
            world.counts.own.snapshots += 1;
            if let Some(snapshot) = world.model.snapshot_mut(id) {
                snapshot.presence = Presence::There;
            }
        }
        VolumeOpKind::RemoveSnapshot { id } => {
            world.counts.own.removed_snapshots += 1;
            world.model.snapshots.retain(|snapshot| snapshot.id != id);
        }
        VolumeOpKind::ReadSnapshot { id, at, .. } => {
            if let Some(snapshot) = world.model.snapshot_mut(id) {
                snapshot.check(at, data, "in a read").map_err(Failure)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Compares the snapshots after a recovery with the expected ones, and judges all their blocks.
pub(super) fn judge(world: &mut VolumeWorld, volume: &Tested) -> Result<(), Failure> {
    let there = volume.snapshots();
    for (number, id) in &there {
        if !world.model.snapshots.iter().any(|snapshot| (snapshot.number, snapshot.id) == (*number, *id)) {
            return Err(Failure(format!("there is a snapshot {id} of volume {number}, which was removed")));
        }
    }
    for snapshot in std::mem::take(&mut world.model.snapshots) {
        let is_there = there.contains(&(snapshot.number, snapshot.id));
        match (is_there, snapshot.presence) {
            (true, _) => world.model.snapshots.push(SnapshotOracle { presence: Presence::There, ..snapshot }),
            (false, Presence::Uncertain) => {}
            (false, Presence::There) => {
                return Err(Failure(format!(
                    "snapshot {} of volume {} is lost",
                    snapshot.id, snapshot.number
                )));
            }
        }
    }
    for at in 0..world.model.snapshots.len() {
        let SnapshotOracle { id, number, ref blocks, .. } = world.model.snapshots[at];
        let (volume, blocks) = (volume.clone(), blocks.len());
        let read = world.start(async move {
            let data = Buf::zeroed(blocks * BLOCK);
            volume.read_snapshot((number, id), 0, data).await.map_err(|error| error.to_string())
        });
        let data = step::wait_in_order(world, &read)?
            .map_err(|why| Failure(format!("snapshot {id} of volume {number} is not read: {why}")))?;
        world.model.snapshots[at].check(0, &data, "after recovery").map_err(Failure)?;
    }
    Ok(())
}
