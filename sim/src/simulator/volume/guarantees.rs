//! Space that is guaranteed to volumes of a pool: draws changes of it, and judges refused writes by it.

use super::{
    model::{VolumeOpKind, VolumeWorld, replaced_by, uses},
    tested::Tested,
};
use crate::simulator::{layer::world::LayerEnd, world::Failure};
use emu::rng::Rng;
use engine::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Status},
};

/// One of so many operations changes a guarantee.
const RARITY: u64 = 40;

/// A change of a guarantee, in one of so many calls, if no operation in progress prevents it.
pub(super) fn draw(world: &mut VolumeWorld) -> Option<VolumeOpKind> {
    let volume = world.model.volume.as_ref()?;
    // A separate generator: the other draws stay the same.
    let mut rng = Rng::new(world.rng.clone().next_u64() ^ 7);
    if !world.model.scenario.guarantees || volume.volumes_of_pool() == 0 || !rng.chance(1, RARITY) {
        return None;
    }
    let number = rng.below(volume.volumes_of_pool() as u64) as usize;
    let size = volume.sizes()[number];
    let blocks = match rng.below(4) {
        0 => 0,
        1 => size,
        2 => 1 + rng.below(size),
        _ => 1 + rng.below(3 * size),
    };
    let kind = VolumeOpKind::Guarantee { number, blocks };
    let prevents = |other| {
        matches!(other, VolumeOpKind::Guarantee { number: of, .. } if of == number)
            || uses(world, other, kind)
    };
    let is_prevented = world.model.ops.iter().any(|op| prevents(op.kind));
    (!is_prevented && volume.is_there(number)).then_some(kind)
}

/// Records that an operation has begun.
pub(super) fn begun(world: &mut VolumeWorld, kind: VolumeOpKind) {
    let (number, blocks) = match kind {
        VolumeOpKind::Guarantee { number, blocks } => (number, blocks),
        VolumeOpKind::Replace { number } | VolumeOpKind::Clone { number, .. } => (number, 0),
        _ => return,
    };
    world.model.guarantees.changes += 1;
    world.model.guarantees.of(number).push(blocks);
}

/// Records that a change of a guarantee has ended.
pub(super) fn ended(world: &mut VolumeWorld, kind: VolumeOpKind, is_set: bool) -> Result<(), Failure> {
    let VolumeOpKind::Guarantee { number, blocks } = kind else { return Ok(()) };
    world.model.guarantees.changes += 1;
    let Some(volume) = world.model.volume.clone() else { return Ok(()) };
    let found = volume.guaranteed(number);
    let permitted = world.model.guarantees.of(number);
    if is_set && found != blocks || !permitted.contains(&found) {
        return Err(Failure(format!("{found} blocks are guaranteed to volume {number}, after {kind:?}")));
    }
    if !is_set {
        // An earlier change that failed may be in the record.
        let refused = permitted.iter().rposition(|permitted| *permitted == blocks);
        refused.into_iter().for_each(|place| _ = permitted.remove(place));
        return Ok(());
    }
    *permitted = vec![found];
    world.counts.own.guarantees += 1;
    let all: u64 = (0..volume.volumes_of_pool()).map(|number| volume.guaranteed(number)).sum();
    let (usable, is_whole) = world
        .model
        .status()
        .map_or((0, false), |status| (status.usable, status.lost_zones + status.unreadable_zones == 0));
    match is_whole && !world.model.guarantees.has_lost && all > usable {
        true => Err(Failure(format!("{all} blocks are guaranteed, and {usable} fit"))),
        false => Ok(()),
    }
}

/// Records that a volume was replaced: nothing is guaranteed to the new one.
pub(super) fn replaced(world: &mut VolumeWorld, number: usize) {
    world.model.guarantees.changes += 1;
    *world.model.guarantees.of(number) = vec![0];
}

/// Compares the guarantees after a recovery with the permitted ones.
pub(super) fn recovered(world: &mut VolumeWorld) -> Result<(), Failure> {
    world.model.guarantees.has_lost |= world.end == LayerEnd::PowerCut;
    let Some(volume) = world.model.volume.clone() else { return Ok(()) };
    for number in 0..volume.volumes_of_pool() {
        let (found, permitted) = (volume.guaranteed(number), world.model.guarantees.of(number));
        if !permitted.contains(&found) {
            return Err(Failure(format!(
                "{found} blocks are guaranteed to volume {number} after a recovery, not one of {permitted:?}"
            )));
        }
        *permitted = vec![found];
    }
    Ok(())
}

/// Blocks for which no write of another volume may take the room; more than there are if guarantees have changed since an
/// operation began.
pub(super) fn set_aside_blocks(world: &VolumeWorld, changes: u64) -> u64 {
    let status = world.model.status().filter(|_| world.model.scenario.guarantees);
    match world.model.guarantees.changes == changes {
        true => status.map_or(0, |status| status.set_aside_bytes.div_ceil(BLOCK as u64)),
        false => u32::MAX.into(),
    }
}

/// Judges a write that was refused: each volume that it concerns must have more blocks than its guarantee, unless the pool has
/// less room than its guarantees.
pub(super) fn judge(
    world: &mut VolumeWorld,
    kind: VolumeOpKind,
    changes: u64,
    answer: &Result<Buf, DeviceError>,
) -> Result<(), Failure> {
    let (VolumeOpKind::Write { at, blocks, .. }, Err(DeviceError::Status(Status::CapacityExceeded))) =
        (kind, answer)
    else {
        return Ok(());
    };
    let (Some(volume), Some(status)) = (world.model.volume.clone(), world.model.status()) else {
        return Ok(());
    };
    let is_sound = status.lost_zones + status.unreadable_zones == 0 && !world.model.struck;
    let has_room = status.held_bytes + (blocks + 1) * BLOCK as u64 <= status.usable * BLOCK as u64;
    let is_steady = world.model.guarantees.changes == changes;
    if !is_sound || !is_steady || world.model.guarantees.has_lost && !has_room {
        return Ok(());
    }
    let of_write = |number: &usize| {
        let range = volume.range(*number);
        range.start < at + blocks && at < range.end
    };
    let concerned: Vec<usize> = (0..volume.volumes_of_pool()).filter(of_write).collect();
    let is_replaced = |number: &usize| {
        world.model.ops.iter().any(|op| replaced_by(op.kind) == Some(*number)) || !volume.is_there(*number)
    };
    if concerned.is_empty() || concerned.iter().any(is_replaced) {
        return Ok(());
    }
    for number in concerned {
        let (taken, guaranteed) =
            (most_taken(world, &volume, number, status.shards), volume.guaranteed(number));
        if taken.is_none_or(|taken| taken > guaranteed) {
            return Ok(());
        }
    }
    Err(Failure(format!("{kind:?} is refused, and is within what is guaranteed: {status:?}")))
}

/// Most blocks that a volume and its snapshots have; `None` if parts of units may count for more. In a pool of several
/// shards the blocks of snapshots may all be in one of them: all blocks of the volume count, and once more for each
/// snapshot.
fn most_taken(world: &VolumeWorld, volume: &Tested, number: usize, shards: u32) -> Option<u64> {
    let range = volume.range(number);
    let snapshots = world.model.snapshots.iter().filter(|snapshot| snapshot.number == number).count() as u64;
    if shards > 1 && snapshots > 0 && world.model.scenario.codec.is_none() {
        return Some((1 + snapshots) * (range.end - range.start));
    }
    let mut taken = world.model.oracle.may_be_mapped_in(range.start, range.end - range.start);
    for snapshot in world.model.snapshots.iter().filter(|snapshot| snapshot.number == number) {
        if world.model.scenario.codec.is_some() {
            return None;
        }
        let with_data =
            snapshot.blocks.iter().filter(|contents| contents.iter().any(|(_, write)| *write > 0));
        // What the volume had behind the end of the snapshot, in the last extent.
        taken += with_data.count() as u64 + world.model.scenario.extent_blocks as u64;
    }
    Some(taken)
}
