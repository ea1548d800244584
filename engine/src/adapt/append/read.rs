//! Reads: blocks of a zone from their places, and groups of which the places are not in memory.

use super::{
    judge::judge,
    learn,
    mark::{BlockContent, is_sealed},
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
        let marks = learn::marks(inner, zone, at..to.max(at), inner.checksums).await?;
        // The zone was finished: it is unwritten from here to its end.
        let is_unwritten = marks.iter().all(|(_, seen)| *seen == BlockContent::Nothing);
        seen.extend(marks);
        at = to;
        // The drive has lost each block without metadata that lies before a written one, or below a write pointer.
        let written = match info.state.is_active() {
            true => seen.len(),
            false => seen.iter().rposition(|(_, seen)| *seen != BlockContent::Nothing).unwrap_or(0),
        };
        for (_, seen) in seen[..written].iter_mut().filter(|(_, seen)| *seen == BlockContent::Nothing) {
            *seen = BlockContent::Unknown;
        }
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
    if inner.group_blocks == 1 {
        return read_places(inner, zone, at, data);
    }
    let run = match inner.position(zone, at) {
        Some(BlockPosition::At(place)) if follow(inner, zone, at, place, blocks) == blocks => Some(place),
        _ => None,
    };
    if let Some(place) = run
        && !inner.checksums
    {
        return read_places(inner, zone, place, data);
    }
    let (completer, completion) = inner.slots.pair();
    let this = inner.clone();
    inner.runtime.spawn(async move {
        let done = match run {
            Some(place) => compared(&this, zone, at, read_places(&this, zone, place, data).await),
            None => {
                let mut data = data.into_mut();
                let result = gather(&this, zone, at, &mut data).await;
                Done { result, data: data.freeze(), ..Done::ok() }
            }
        };
        completer.complete(done);
    });
    completion
}

/// Number of the `blocks` blocks from `at` on that lie one behind the other, the first of them at `place`.
fn follow(inner: &AppendInner, zone: ZoneIndex, at: u64, place: u64, blocks: u64) -> u64 {
    let follows = |next: &u64| inner.position(zone, at + next) == Some(BlockPosition::At(place + next));
    1 + (1..blocks).take_while(follows).count() as u64
}

/// Reads the blocks of the drive's zone from `place` on, with their metadata if it has seals.
fn read_places(inner: &AppendInner, zone: ZoneIndex, place: u64, data: Buf) -> Completion {
    let lba = Lba(inner.geometry.start(zone).0 + place);
    if !inner.checksums {
        return inner.device.submit(Command::read(lba, data));
    }
    let len = data.blocks() as usize * inner.device.geometry().oob_bytes as usize;
    let oob = inner.pool.borrow_mut().take(len.div_ceil(BLOCK) as u64).freeze().slice(0..len);
    inner.device.submit(Command::Read { lba, data, oob })
}

/// The completion of [`read_places`], which has read the blocks of `zone` from `at` on; an Unrecovered Read Error if one
/// of them does not match its seal.
fn compared(inner: &AppendInner, zone: ZoneIndex, at: u64, mut done: Done) -> Done {
    if !inner.checksums {
        return done;
    }
    let (owner, epoch) = (inner.owner(zone), inner.epoch(zone));
    let metadata = done.oob.chunks_exact(inner.device.geometry().oob_bytes as usize);
    let mut blocks = (at as u32..).zip(done.data.chunks_exact(BLOCK).zip(metadata));
    let is_right = |(block, (data, oob))| is_sealed(oob, &owner, epoch, block, data);
    if done.result.is_ok() && !blocks.all(is_right) {
        inner.wrong_reads.set(inner.wrong_reads.get() + 1);
        done.result = Err(Status::UnrecoveredReadError.into());
    }
    inner.pool.borrow_mut().give(std::mem::take(&mut done.oob));
    done
}

/// Reads blocks of a zone from their places.
async fn gather(inner: &AppendInner, zone: ZoneIndex, at: u64, data: &mut BufMut) -> Result<(), DeviceError> {
    let blocks = data.blocks();
    let mut parts: Vec<(u64, u64, Completion)> = Vec::new();
    let (mut done, mut retried) = (0, None);
    while done < blocks {
        let block = at + done;
        let place = match inner.position(zone, block) {
            Some(BlockPosition::At(place)) => place,
            Some(BlockPosition::Nothing) if !inner.checksums => {
                data.block_mut(done).fill(0);
                done += 1;
                continue;
            }
            Some(BlockPosition::Nothing) => return Err(Status::DeallocatedBlock.into()),
            Some(BlockPosition::Doubtful) => {
                // The drive may be able to read the marks now.
                let first = block - block % inner.group_blocks;
                match retried == Some(first) || !inner.groups.borrow_mut().forget(zone, first..=first) {
                    true => return Err(Status::UnrecoveredReadError.into()),
                    false => retried = Some(first),
                }
                continue;
            }
            None => {
                // Repeated if the group has been written, or the zone finished or reset, meanwhile.
                fetch(inner, zone, block - block % inner.group_blocks).await?;
                continue;
            }
        };
        let count = follow(inner, zone, block, place, blocks - done);
        let part = read_places(inner, zone, place, Buf::zeroed(count as usize * BLOCK));
        parts.push((done, count, part));
        done += count;
    }
    let mut result = Ok(());
    for (from, count, part) in parts {
        let done = compared(inner, zone, at + from, part.await);
        result = result.and(done.result);
        if done.result.is_ok() {
            data[from as usize * BLOCK..(from + count) as usize * BLOCK].copy_from_slice(&done.data);
        }
    }
    result
}
