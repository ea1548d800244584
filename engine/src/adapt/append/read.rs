//! Reads: blocks of a zone from their places, and groups of which the places are not in memory.

use super::{
    judge::judge,
    learn,
    mark::BlockContent,
    ranks::{AppendGroup, BlockPosition},
    state::AppendInner,
};
use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{Command, Completion, DeviceError, Done, Status},
    runtime::Gate,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::rc::Rc;

/// Loads a group into the cache, or waits for a task that does. If the group has changed meanwhile, it is not kept, and
/// the caller has to try again.
async fn fetch(inner: &AppendInner, zone: ZoneIndex, first: u64) -> Result<(), DeviceError> {
    let key = (zone.0, first);
    let others = inner.loading.borrow().get(&key).cloned();
    if let Some(gate) = others {
        gate.wait().await;
    }
    if inner.position(zone, first).is_some() {
        return Ok(());
    }
    let gate = Rc::new(Gate::default());
    inner.loading.borrow_mut().insert(key, gate.clone());
    let loaded = load(inner, zone, first).await;
    inner.loading.borrow_mut().remove(&key);
    gate.open();
    loaded
}

/// Reads a group from the drive, and keeps it in memory unless it or the zone has changed meanwhile.
async fn load(inner: &AppendInner, zone: ZoneIndex, first: u64) -> Result<(), DeviceError> {
    let (life, landed) = (inner.life(zone), inner.landed_of(zone, first));
    let done = inner.device.submit(Command::Report { first: zone, count: 1 }).await;
    done.result?;
    let Some(info) = done.zones.first().copied() else { return Err(Status::InternalError.into()) };
    if info.state.is_active() {
        learn::learn_end(inner, info, life).await?;
    }
    let end = match info.state {
        ZoneState::Empty => 0,
        ZoneState::Full | ZoneState::ReadOnly => inner.device.geometry().zone_capacity_blocks,
        _ => info.wp_blocks,
    };
    let size = inner.group_blocks;
    let (mut seen, mut at) = (Vec::new(), first);
    let mut group = loop {
        let to = end.min(at + size);
        let marks = learn::marks(inner, zone, at..to.max(at)).await?;
        // The zone was finished: it is unwritten from here to its end.
        let is_unwritten = marks.iter().all(|(_, seen)| *seen == BlockContent::Nothing);
        seen.extend(marks);
        at = to;
        let group = AppendGroup::of(first, size, &judge(first, &seen), at);
        let is_behind = |seen: &(u64, BlockContent)| match seen.1 {
            BlockContent::Mark(mark) => mark.block as u64 >= first + size,
            _ => false,
        };
        if group.is_whole() || at >= end || is_unwritten || seen.iter().any(is_behind) {
            break group;
        }
    };
    group.lose(landed);
    // The marks that were read may not include blocks written meanwhile: then the group is not kept.
    if inner.life(zone) == life && group.end >= inner.landed_of(zone, first) {
        inner.groups.borrow_mut().hold(zone, group);
    }
    Ok(())
}

/// Reads blocks of a zone: by one command if their places are known and consecutive.
pub fn read(inner: &Rc<AppendInner>, zone: ZoneIndex, at: u64, data: Buf, oob: Buf) -> Completion {
    let checked = inner.geometry.check_buffers(&data, &oob, inner.geometry.max_transfer_blocks);
    let blocks = match checked {
        Ok(blocks) if at + blocks <= inner.geometry.zone_size_blocks => blocks,
        Ok(_) => {
            return Completion::ready(Done { data, oob, ..Done::error(Status::ZoneBoundaryError.into()) });
        }
        Err(status) => return Completion::ready(Done { data, oob, ..Done::error(status.into()) }),
    };
    let start = inner.geometry.start(zone).0;
    if inner.group_blocks == 1 {
        return inner.device.submit(Command::read(Lba(start + at), data));
    }
    if let Some(BlockPosition::At(place)) = inner.position(zone, at)
        && (1..blocks).all(|next| inner.position(zone, at + next) == Some(BlockPosition::At(place + next)))
    {
        return inner.device.submit(Command::read(Lba(start + place), data));
    }
    let (completer, completion) = inner.slots.pair();
    let this = inner.clone();
    inner.runtime.spawn(async move {
        let mut data = data.into_mut();
        let result = gather(&this, zone, at, &mut data).await;
        completer.complete(Done { result, data: data.freeze(), ..Done::ok() });
    });
    completion
}

/// Reads blocks of a zone from their places.
async fn gather(inner: &AppendInner, zone: ZoneIndex, at: u64, data: &mut BufMut) -> Result<(), DeviceError> {
    let blocks = data.blocks();
    let mut parts: Vec<(u64, u64, Completion)> = Vec::new();
    let mut done = 0;
    while done < blocks {
        let block = at + done;
        let place = match inner.position(zone, block) {
            Some(BlockPosition::At(place)) => place,
            Some(BlockPosition::Nothing) => {
                data.block_mut(done).fill(0);
                done += 1;
                continue;
            }
            Some(BlockPosition::Doubtful) => return Err(Status::UnrecoveredReadError.into()),
            None => {
                // Repeated if the group has been written, or the zone finished or reset, meanwhile.
                fetch(inner, zone, block - block % inner.group_blocks).await?;
                continue;
            }
        };
        let follows =
            |next: &u64| inner.position(zone, at + done + next) == Some(BlockPosition::At(place + next));
        let count = 1 + (1..blocks - done).take_while(follows).count() as u64;
        let lba = Lba(inner.geometry.start(zone).0 + place);
        let read = Command::read(lba, Buf::zeroed(count as usize * BLOCK));
        parts.push((done, count, inner.device.submit(read)));
        done += count;
    }
    let mut result = Ok(());
    for (from, count, part) in parts {
        let done = part.await;
        result = result.and(done.result);
        if done.result.is_ok() {
            data[from as usize * BLOCK..(from + count) as usize * BLOCK].copy_from_slice(&done.data);
        }
    }
    result
}
