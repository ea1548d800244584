//! Load of a volume: submits operations, and checks every completion.

use super::{
    guarantees,
    model::{Answer, VolumeOp, VolumeOpKind, VolumeWorld, replaced_by, uses},
    oracle::{Content, fill},
    snapshots,
    stack::{grow, shrink},
    tested::Tested,
};
use crate::simulator::world::Failure;
use emu::rng::Rng;
use engine::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Status},
    volume::{PoolError, VolumeError},
};
use std::ops::Range;

/// One of so many operations enlarges the volume.
const GROWTH_RARITY: u64 = 500;

/// One of so many operations cuts off the end of the volume.
const SHRINK_RARITY: u64 = 100;

/// One of so many operations replaces a volume of a pool.
const REPLACEMENT_RARITY: u64 = 30;

/// Logical blocks of a page of the map.
const PAGE_BLOCKS: u64 = 672;

/// Draws the first block and the size of an operation.
fn draw_range(world: &mut VolumeWorld, most: u64) -> (u64, u64) {
    let blocks = 1 + world.rng.below(most.min(world.model.oracle.blocks()));
    if world.model.scenario.load.crosses && blocks < PAGE_BLOCKS && world.rng.chance(1, 2) {
        let pages = world.model.oracle.blocks() / PAGE_BLOCKS;
        let end = (1 + world.rng.below(pages.max(1))) * PAGE_BLOCKS + world.rng.below(blocks);
        return (end.min(world.model.oracle.blocks()) - blocks, blocks);
    }
    let hot = world.rng.chance(world.model.scenario.load.hot_percent, 100);
    let span = if hot { (world.model.oracle.blocks() / 8).max(blocks) } else { world.model.oracle.blocks() };
    (world.rng.below(span - blocks + 1), blocks)
}

/// Submits an operation.
pub(super) fn issue(world: &mut VolumeWorld) {
    let load = world.model.scenario.load.clone();
    if let Some(blocks) = draw_growth(world, GROWTH_RARITY) {
        return begin(world, VolumeOpKind::Grow { blocks });
    }
    if let Some(kind) = draw_shrink(world) {
        return begin(world, kind);
    }
    if let Some(kind) = draw_replacement(world) {
        return begin(world, kind);
    }
    if let Some(kind) = snapshots::draw(world) {
        return begin(world, kind);
    }
    if let Some(kind) = guarantees::draw(world) {
        return begin(world, kind);
    }
    let weights = [load.write, load.read, load.discard, load.flush];
    let kind = world.rng.weighted(&weights);
    let kind = match kind {
        0 => {
            let (at, blocks) = draw_range(world, load.most_blocks);
            VolumeOpKind::Write { at, blocks, fua: world.rng.chance(load.fua_percent, 100) }
        }
        1 => {
            let (at, blocks) = draw_range(world, 2 * load.most_blocks);
            VolumeOpKind::Read { at, blocks }
        }
        2 => {
            let all = world.rng.chance(1, 20);
            let (at, blocks) = draw_range(world, if all { u64::MAX } else { 3 * load.most_blocks });
            VolumeOpKind::Discard { at, blocks }
        }
        _ => VolumeOpKind::Flush,
    };
    // A volume that is being replaced has no users.
    match world.model.ops.iter().any(|op| uses(world, op.kind, kind)) {
        true => begin(world, VolumeOpKind::Flush),
        false => begin(world, kind),
    }
}

/// The replacement of a volume of a pool that nothing uses, in one of so many calls.
fn draw_replacement(world: &mut VolumeWorld) -> Option<VolumeOpKind> {
    let volumes = world.model.volume.as_ref().map_or(0, Tested::volumes_of_pool);
    if volumes == 0 || !world.rng.chance(1, REPLACEMENT_RARITY) {
        return None;
    }
    let number = world.rng.below(volumes as u64) as usize;
    let kind = VolumeOpKind::Replace { number };
    let is_used = world.model.ops.iter().any(|op| uses(world, op.kind, kind));
    (!is_used && snapshots::has_no_snapshots(world, number)).then_some(kind)
}

pub(super) fn begin(world: &mut VolumeWorld, kind: VolumeOpKind) {
    let Some(volume) = world.model.volume.clone() else { return };
    world.counts.operations += 1;
    let answer = Answer::default();
    let told = answer.clone();
    let begun = match kind {
        VolumeOpKind::Write { at, blocks, fua } => {
            let (write, begun) = world.model.oracle.begin(at, blocks, false);
            let mut data = engine::buf::BufMut::zeroed(blocks as usize * BLOCK);
            (0..blocks).for_each(|block| fill(at + block, write, data.block_mut(block)));
            let data = data.freeze();
            tell(world, told, async move { done(volume.write(at, &data, fua).await) });
            begun
        }
        VolumeOpKind::Discard { at, blocks } => {
            let (_, begun) = world.model.oracle.begin(at, blocks, true);
            tell(world, told, async move { done(volume.discard(at, blocks).await) });
            begun
        }
        VolumeOpKind::Read { at, blocks } => {
            let data = Buf::zeroed(blocks as usize * BLOCK);
            tell(world, told, async move { Ok(volume.read(at, data).await?) });
            world.model.oracle.tick()
        }
        VolumeOpKind::Flush => {
            tell(world, told, async move { done(volume.flush().await) });
            world.model.oracle.tick()
        }
        VolumeOpKind::Replace { number } => {
            let Range { start, end } = volume.range(number);
            let (_, begun) = world.model.oracle.begin(start, end - start, true);
            let (mut volume, replaced) = (volume, world.model.replaced.clone());
            tell(world, told, async move {
                let result = volume.replace(number).await;
                *replaced.borrow_mut() = Some(volume);
                done(result)
            });
            begun
        }
        VolumeOpKind::Snapshot { number, id } => {
            tell(world, told, async move { done(volume.snapshot(number, id).await) });
            world.model.oracle.tick()
        }
        VolumeOpKind::RemoveSnapshot { id } => {
            let number = world.model.head_of(id);
            tell(world, told, async move { done(volume.remove_snapshot(number, id).await) });
            world.model.oracle.tick()
        }
        VolumeOpKind::ReadSnapshot { id, at, blocks } => {
            let (number, data) = (world.model.head_of(id), Buf::zeroed(blocks as usize * BLOCK));
            tell(world, told, async move { volume.read_snapshot((number, id), at, data).await });
            world.model.oracle.tick()
        }
        VolumeOpKind::RollBack { number, id } => {
            let (start, contents) = copied(world, number, id);
            tell(world, told, async move { done(volume.roll_back(number, id).await) });
            world.model.oracle.begin_copy(start, &contents)
        }
        VolumeOpKind::Clone { number, id } => {
            let (start, contents) = copied(world, number, id);
            let (of, blocks) = (world.model.head_of(id), contents.len() as u64);
            // In between the volume is empty.
            let (_, removed) = world.model.oracle.begin(start, blocks, true);
            world.model.oracle.refuse(start, blocks, removed);
            let (mut volume, replaced) = (volume, world.model.replaced.clone());
            tell(world, told, async move {
                let result = volume.make_clone(number, (of, id)).await;
                *replaced.borrow_mut() = Some(volume);
                done(result)
            });
            world.model.oracle.begin_copy(start, &contents)
        }
        VolumeOpKind::Guarantee { number, blocks } => {
            // With data if the guarantee was possible.
            tell(world, told, async move {
                let is_set = volume.guarantee(number, blocks).await?;
                Ok(Buf::zeroed(if is_set { BLOCK } else { 0 }))
            });
            world.model.oracle.tick()
        }
        VolumeOpKind::Grow { blocks } => {
            tell(world, told, async move {
                let grown = grow(&volume, blocks).await;
                let shrinks = matches!(grown, Err(VolumeError::Shrinks { .. }));
                assert!(!shrinks, "no other growth is in progress");
                match grown {
                    Err(error @ VolumeError::Device(_)) => Err(error),
                    _ => Ok(Buf::default()),
                }
            });
            world.model.oracle.tick()
        }
        VolumeOpKind::Shrink { from, to } => {
            let (_, begun) = world.model.oracle.begin(to, from - to, true);
            tell(world, told, async move {
                volume.discard(to, from - to).await?;
                shrink(&volume, to).await.map(|()| Buf::default())
            });
            begun
        }
    };
    world.trace.note(|| format!("begins at {begun}: {kind:?}"));
    snapshots::begun(world, kind, begun);
    guarantees::begun(world, kind);
    let changes = world.model.guarantees.changes;
    world.model.ops.push(VolumeOp { kind, begun, answer, mapped: 0, changes });
    world.model.widen();
    world.ready = true;
}

/// First block of a volume, and the contents that it gets from a snapshot: zeros behind those.
fn copied(world: &mut VolumeWorld, number: usize, id: u64) -> (u64, Vec<Content>) {
    let range = world.model.volume.as_ref().map_or(0..0, |volume| volume.range(number));
    let certain = world.model.snapshot_mut(id).and_then(|snapshot| snapshot.certain()).unwrap_or_default();
    let zeros = std::iter::repeat((0, 0));
    (range.start, certain.into_iter().chain(zeros).take((range.end - range.start) as usize).collect())
}

/// Runs an operation, and records its result.
fn tell(
    world: &VolumeWorld,
    told: Answer,
    operation: impl Future<Output = Result<Buf, VolumeError>> + 'static,
) {
    world.runtime.spawn(async move {
        let result = operation.await.map_err(|error| match error {
            VolumeError::Device(error) => error,
            VolumeError::Pool(PoolError::FewAddresses { .. } | PoolError::NotGuaranteeable { .. }) => {
                Status::CapacityExceeded.into()
            }
            // No fault of the device: the life fails.
            _ => Status::InvalidField.into(),
        });
        *told.borrow_mut() = Some(result);
    });
}

/// The result of an operation without data.
fn done(result: Result<(), impl Into<VolumeError>>) -> Result<Buf, VolumeError> {
    result.map(|()| Buf::default()).map_err(Into::into)
}

/// Takes the volumes after a replacement of one of them; returns the blocks of that one, and whether it is there.
fn take_replaced(world: &mut VolumeWorld, number: usize) -> Result<(Range<u64>, bool), Failure> {
    let volume = world.model.replaced.borrow_mut().take();
    let volume = volume.ok_or_else(|| Failure("a replacement without a volume".into()))?;
    let found = (volume.range(number), volume.is_there(number));
    world.model.volume = Some(volume);
    Ok(found)
}

/// Judges the completed operations.
pub(super) fn collect(world: &mut VolumeWorld) -> Result<(), Failure> {
    let mut at = 0;
    while at < world.model.ops.len() {
        let answer = world.model.ops[at].answer.borrow_mut().take();
        let Some(answer) = answer else {
            at += 1;
            continue;
        };
        let VolumeOp { kind, begun, mapped, changes, .. } = world.model.ops.swap_remove(at);
        world.trace.note(|| format!("ended, begun at {begun}: {kind:?} {answer:?}"));
        guarantees::judge(world, kind, changes, &answer)?;
        let mapped_now = world.model.oracle.may_be_mapped() + guarantees::set_aside_blocks(world, changes);
        // The refusal was decided before other operations that free space completed.
        world.model.ops.iter_mut().for_each(|op| op.mapped = op.mapped.max(mapped_now));
        answered(world, kind, begun, mapped.max(mapped_now), answer)?;
    }
    Ok(())
}

fn answered(
    world: &mut VolumeWorld,
    kind: VolumeOpKind,
    begun: u64,
    mapped: u64,
    answer: Result<Buf, DeviceError>,
) -> Result<(), Failure> {
    let data = match (answer, kind) {
        (Ok(data), _) => data,
        (Err(DeviceError::Status(Status::CapacityExceeded)), VolumeOpKind::RollBack { number, .. }) => {
            // A larger snapshot needs more extents than those that are free.
            let range = world.model.volume.as_ref().map_or(0..0, |volume| volume.range(number));
            world.model.oracle.refuse(range.start, range.end - range.start, begun);
            return Ok(());
        }
        // A full pool has no room for a record, for an extent of a snapshot, or for the entries of a removal.
        // A cut of the end discards blocks, which snapshots then keep, and finishes removals of snapshots.
        (Err(DeviceError::Status(Status::CapacityExceeded)), VolumeOpKind::Shrink { from, to })
            if world.model.scenario.snapshots =>
        {
            world.model.oracle.refuse(to, from - to, begun);
            return take_size(world);
        }
        (
            Err(DeviceError::Status(Status::CapacityExceeded)),
            VolumeOpKind::Snapshot { .. } | VolumeOpKind::RemoveSnapshot { .. },
        ) => return Ok(()),
        (Err(DeviceError::Status(Status::CapacityExceeded)), VolumeOpKind::Discard { at, blocks })
            if world.model.scenario.snapshots =>
        {
            world.model.oracle.refuse(at, blocks, begun);
            return Ok(());
        }
        (Err(DeviceError::Status(Status::CapacityExceeded)), VolumeOpKind::Write { at, blocks, .. })
            if world.model.scenario.snapshots =>
        {
            // What snapshots keep takes room.
            world.counts.own.refusals += 1;
            world.model.oracle.refuse(at, blocks, begun);
            return Ok(());
        }
        (Err(DeviceError::Status(Status::CapacityExceeded)), VolumeOpKind::Write { at, blocks, .. }) => {
            world.counts.own.refusals += 1;
            // Blocks that compress less than the ones that they overwrite, and worn zones, may use up the free
            // space.
            let may_be_refused =
                world.model.scenario.codec.is_some() || world.model.scenario.fault_rarity != 0;
            if !may_be_refused && world.model.oracle.are_mapped(at, blocks) {
                return Err(Failure(format!("{kind:?} is refused, and only overwrites")));
            }
            world.model.oracle.refuse(at, blocks, begun);
            let status = world.model.status();
            let usable = status.as_ref().map_or(0, |status| status.usable);
            // The shards of a volume are not equally full if one of them has more blocks than room, or lost zones.
            let is_over_committed =
                world.model.volume.as_ref().is_some_and(|volume| volume.is_over_committed());
            let may_be_uneven = status.is_some_and(|status| {
                status.shards > 1 && (is_over_committed || status.lost_zones + status.unreadable_zones > 0)
            });
            let (table, is_without_extents) = world.model.volume.as_ref().map_or((0, false), Tested::table);
            let mapped = mapped + world.model.in_no_volume + table;
            return match mapped >= usable || may_be_uneven || is_without_extents {
                true => Ok(()),
                false => Err(Failure(format!("{kind:?} meets no room: {mapped} of {usable} are mapped"))),
            };
        }
        (Err(_), _) if world.model.struck => return Ok(()),
        (Err(error), _) => return Err(Failure(format!("{kind:?} fails: {error}"))),
    };
    match kind {
        VolumeOpKind::Write { at, blocks, fua } => world.model.oracle.end(at, blocks, begun, fua),
        VolumeOpKind::Discard { at, blocks } => world.model.oracle.end(at, blocks, begun, false),
        VolumeOpKind::Read { at, .. } => world.model.oracle.check_read(at, begun, &data).map_err(Failure)?,
        VolumeOpKind::Flush => {
            let is_read =
                |op: &VolumeOp| matches!(op.kind, VolumeOpKind::Read { .. } | VolumeOpKind::Snapshot { .. });
            let reads = world.model.ops.iter().any(is_read);
            world.model.oracle.flushed(begun, reads);
        }
        VolumeOpKind::Guarantee { .. } => guarantees::ended(world, kind, !data.is_empty())?,
        VolumeOpKind::Grow { .. } => take_size(world)?,
        VolumeOpKind::Shrink { from, to } => {
            world.model.oracle.end(to, from - to, begun, false);
            take_size(world)?;
        }
        VolumeOpKind::Snapshot { .. }
        | VolumeOpKind::RemoveSnapshot { .. }
        | VolumeOpKind::ReadSnapshot { .. } => snapshots::ended(world, kind, &data)?,
        VolumeOpKind::RollBack { number, .. } => {
            world.counts.own.returns += 1;
            let range = world.model.volume.as_ref().map_or(0..0, |volume| volume.range(number));
            world.model.oracle.end(range.start, range.end - range.start, begun, true);
        }
        VolumeOpKind::Clone { number, .. } => {
            world.counts.own.clones += 1;
            let (range, is_there) = take_replaced(world, number)?;
            guarantees::replaced(world, number);
            match is_there {
                true => world.model.oracle.end(range.start, range.end - range.start, begun, true),
                // A full pool has no room for the record: the volume is empty.
                false => {
                    world.model.oracle.refuse(range.start, range.end - range.start, begun);
                    let (_, begun) = world.model.oracle.begin(range.start, range.end - range.start, true);
                    world.model.oracle.end(range.start, range.end - range.start, begun, true);
                }
            }
        }
        VolumeOpKind::Replace { number } => {
            world.counts.own.replacements += 1;
            let (range, _) = take_replaced(world, number)?;
            guarantees::replaced(world, number);
            world.model.oracle.end(range.start, range.end - range.start, begun, true);
        }
    }
    Ok(())
}

/// The size to which the volume is to be enlarged, in one of `rarity` calls; from then on it may have this size.
pub(super) fn draw_growth(world: &mut VolumeWorld, rarity: u64) -> Option<u64> {
    // A separate generator: the other draws stay the same.
    let mut rng = Rng::new(world.rng.clone().next_u64() ^ 5);
    let blocks = world.model.oracle.blocks();
    let size = blocks + rng.below(blocks / 4 + 2);
    let changes_size = |kind| {
        replaced_by(kind).is_some()
            || matches!(
                kind,
                VolumeOpKind::Grow { .. } | VolumeOpKind::Shrink { .. } | VolumeOpKind::Snapshot { .. }
            )
    };
    let is_changing = world.model.ops.iter().any(|op| changes_size(op.kind));
    (blocks > 0 && !is_changing && rng.chance(1, rarity)).then(|| {
        world.trace.note(|| format!("the volume is to be enlarged from {blocks} to {size} blocks"));
        world.model.asked.push(size);
        size
    })
}

/// The operation that cuts off the end of the volume, in one of so many calls, if nothing uses that.
fn draw_shrink(world: &mut VolumeWorld) -> Option<VolumeOpKind> {
    // A separate generator: the other draws stay the same.
    let mut rng = Rng::new(world.rng.clone().next_u64() ^ 6);
    let volume = world.model.volume.as_ref()?;
    let last = volume.volumes_of_pool().checked_sub(1)?;
    let (from, range) = (world.model.oracle.blocks(), volume.range(last));
    let size = range.end - range.start;
    if size < 2 || !volume.is_there(last) || !rng.chance(1, SHRINK_RARITY) {
        return None;
    }
    let most = if rng.chance(1, 4) { size - 1 } else { (size / 4).max(1) };
    let kind = VolumeOpKind::Shrink { from, to: from - 1 - rng.below(most) };
    if world.model.ops.iter().any(|op| uses(world, op.kind, kind)) {
        return None;
    }
    let VolumeOpKind::Shrink { to, .. } = kind else { return None };
    world.model.asked.push(to);
    Some(kind)
}

/// Adds blocks to the oracle if the volume has been enlarged, and removes those that were cut off: no change of the size
/// is in progress any more.
pub(super) fn take_size(world: &mut VolumeWorld) -> Result<(), Failure> {
    let (has, had) = (world.model.volume.as_ref().map_or(0, Tested::blocks), world.model.oracle.blocks());
    let asked = std::mem::take(&mut world.model.asked);
    if had > 0 && has != had && !asked.contains(&has) {
        return Err(Failure(format!(
            "the volume has {has} blocks, and had {had}, or was to have one of {asked:?}"
        )));
    }
    if had > 0 && has > had {
        world.counts.own.growths += 1;
        world.model.oracle.grow(has);
    }
    if had > 0 && has < had {
        world.counts.own.shrinks += 1;
        world.model.oracle.shrink(has);
    }
    if let Some(volume) = world.model.volume.as_ref().filter(|volume| volume.volumes_of_pool() > 0) {
        world.model.sizes = volume.sizes();
    }
    Ok(())
}
