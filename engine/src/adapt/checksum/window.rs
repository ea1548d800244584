//! Zones that are written in their ZRWAs.
//!
//! The checksum blocks of a bundle are written when an explicit flush passes its end, and before that flush: at any
//! moment, all bundles below a write pointer have theirs. Until then the checksums of the bundle are in memory, and change
//! with its blocks.
//!
//! A write pointer moves from one position that the caller has chosen to the next, also across checksum blocks: there is
//! one flush on the drive for each of the caller's.

use super::{
    block::{self, NO_SUM, sum_of},
    learn, read,
    state::{ChecksumInner, PassingFlush, ZoneSums},
    write::{WritePart, join},
};
use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Done, Status, Zones},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{collections::VecDeque, ops::Range, rc::Rc};

/// Carries out a command that changes a zone; how far the zone is written is known.
pub fn carry_out(inner: &Rc<ChecksumInner>, zone: ZoneIndex, command: Command) -> Completion {
    match command {
        Command::Write { lba, data, oob, fua } => {
            let at = inner.geometry.locate(lba).1;
            write(inner, zone, at, data, oob, fua)
        }
        Command::FlushZrwa { last } => flush(inner, zone, inner.geometry.locate(last).1 + 1),
        Command::Finish { .. } => {
            let (this, (completer, completion)) = (inner.clone(), inner.slots.pair());
            inner.runtime.spawn(async move {
                let result = finish(&this, zone).await;
                completer.complete(Done { result, ..Done::ok() });
            });
            completion
        }
        Command::Open { zrwa, .. } => {
            inner.with(zone, |sums| {
                if let ZoneSums::Open(open) = sums {
                    open.has_zrwa |= zrwa;
                }
            });
            inner.device.submit(command)
        }
        Command::Reset { .. } => {
            inner.forget(zone);
            inner.device.submit(command)
        }
        command => inner.device.submit(command),
    }
}

/// Writes blocks of a zone. A write may not go beyond the ZRWA: the write pointer is moved by explicit flushes alone.
fn write(inner: &Rc<ChecksumInner>, zone: ZoneIndex, at: u64, data: Buf, oob: Buf, fua: bool) -> Completion {
    let refused =
        |status: Status, data, oob| Completion::ready(Done { data, oob, ..Done::error(status.into()) });
    let (shape, device) = (inner.shape, &inner.device);
    let blocks = match inner.geometry.check_buffers(&data, &oob, inner.geometry.max_transfer_blocks) {
        Ok(blocks) if at + blocks <= shape.capacity_blocks => blocks,
        Ok(_) => return refused(Status::ZoneBoundaryError, data, oob),
        Err(status) => return refused(status, data, oob),
    };
    // First block of the open bundle, and the end of the ZRWA if there is one.
    let open = inner.with(zone, |sums| match sums {
        ZoneSums::Open(open) => Some((open.first, open.has_zrwa.then(|| shape.window_end(open.wp_blocks)))),
        _ => None,
    });
    let left = shape.bundle_end(shape.bundle(at)) - at;
    match open {
        // A full, read-only or offline zone: the drive refuses the write.
        None => {}
        Some((_, Some(end))) if at + blocks > end => return refused(Status::ZoneInvalidWrite, data, oob),
        Some((_, Some(_))) => {
            inner.note_written(zone, at, &data);
            if left < blocks {
                let part = |range: Range<u64>| {
                    let lba = inner.place(zone, at + range.start);
                    WritePart::Blocks(device.submit(Command::write(lba, data.slice_blocks(range), fua)))
                };
                let parts = vec![part(0..left), part(left..blocks)];
                return join(inner, zone, parts, data, oob);
            }
        }
        Some((first, None)) if first == shape.bundle(at) && blocks < left => {
            inner.note_written(zone, at, &data);
        }
        Some((_, None)) => {
            let (this, (completer, completion)) = (inner.clone(), inner.slots.pair());
            inner.runtime.spawn(async move {
                let result = write_in_order(&this, zone, at, &data, fua).await;
                completer.complete(Done { result, data, oob, ..Done::ok() });
            });
            return completion;
        }
    }
    device.submit(Command::Write { lba: inner.place(zone, at), data, oob: Buf::default(), fua })
}

/// Writes blocks at the write pointer of a zone without a ZRWA, and the checksum blocks of the bundles that they complete.
async fn write_in_order(
    inner: &ChecksumInner,
    zone: ZoneIndex,
    at: u64,
    data: &Buf,
    fua: bool,
) -> Result<(), DeviceError> {
    let (shape, blocks) = (inner.shape, data.blocks());
    end_in_order(inner, zone, at, false).await?;
    let mut sent = 0;
    while sent < blocks {
        let at = at + sent;
        let count = (shape.bundle_end(shape.bundle(at)) - at).min(blocks - sent);
        let piece = data.slice_blocks(sent..sent + count);
        inner.note_written(zone, at, &piece);
        inner.device.submit(Command::write(inner.place(zone, at), piece, fua)).await.result?;
        end_in_order(inner, zone, at + count, false).await?;
        sent += count;
    }
    Ok(())
}

/// Writes the checksum blocks of the last bundle of a zone without a ZRWA, if the bundle ends at block `at`.
async fn end_in_order(
    inner: &ChecksumInner,
    zone: ZoneIndex,
    at: u64,
    is_last: bool,
) -> Result<(), DeviceError> {
    let Some(first) = inner.open_bundle(zone).filter(|first| inner.shape.bundle_end(*first) == at) else {
        return Ok(());
    };
    if first < at {
        let sealed = seal(inner, zone, first, is_last).await?;
        inner.end_bundle(zone, first, at, sealed);
    }
    Ok(())
}

/// Moves the write pointer of a zone with a ZRWA to block `to`.
fn flush(inner: &Rc<ChecksumInner>, zone: ZoneIndex, to: u64) -> Completion {
    let passes = inner.open_bundle(zone).is_some_and(|first| to >= inner.shape.bundle_end(first));
    if !passes && !inner.passing.borrow().contains_key(&zone.0) {
        return flush_inside(inner, zone, to);
    }
    pass(inner, zone, to, false)
}

/// Moves the write pointer inside the last bundle.
fn flush_inside(inner: &ChecksumInner, zone: ZoneIndex, to: u64) -> Completion {
    inner.with(zone, |sums| {
        if let ZoneSums::Open(open) = sums {
            open.wp_blocks = open.wp_blocks.max(to);
        }
    });
    inner.device.submit(Command::FlushZrwa { last: inner.place(zone, to - 1) })
}

/// Moves the write pointer to block `to`, which may be at or behind the end of a bundle, after the flushes before it.
/// `is_last` if the zone ends with that bundle.
fn pass(inner: &Rc<ChecksumInner>, zone: ZoneIndex, to: u64, is_last: bool) -> Completion {
    let (completer, completion) = inner.slots.pair();
    let mut passing = inner.passing.borrow_mut();
    let is_served = passing.contains_key(&zone.0);
    passing.entry(zone.0).or_default().push_back(PassingFlush { to, is_last, completer });
    if !is_served {
        let this = inner.clone();
        inner.runtime.spawn(async move {
            loop {
                let next = this.passing.borrow_mut().get_mut(&zone.0).and_then(VecDeque::pop_front);
                let Some(PassingFlush { to, is_last, completer }) = next else { break };
                let result = pass_alone(&this, zone, to, is_last).await;
                completer.complete(Done { result, ..Done::ok() });
            }
            this.passing.borrow_mut().remove(&zone.0);
        });
    }
    completion
}

async fn pass_alone(
    inner: &ChecksumInner,
    zone: ZoneIndex,
    to: u64,
    is_last: bool,
) -> Result<(), DeviceError> {
    let shape = inner.shape;
    let bundle = inner.open_bundle(zone).map(|first| (first, shape.bundle_end(first)));
    let Some((first, end)) = bundle.filter(|(first, end)| (*first..=to).contains(end) && first < end) else {
        return flush_inside(inner, zone, to).await.result;
    };
    if to > shape.capacity_blocks || to > end && to >= shape.bundle_end(end) {
        return Err(Status::InvalidField.into());
    }
    let sealed = seal(inner, zone, first, is_last).await?;
    let last = match to == end {
        true => Lba(inner.sum_place(zone, first).0 + shape.bundle_groups - 1),
        false => inner.place(zone, to - 1),
    };
    inner.device.submit(Command::FlushZrwa { last }).await.result?;
    inner.end_bundle(zone, first, to, sealed);
    Ok(())
}

/// Writes the checksum blocks of the bundle that begins with block `first`; returns them. Unverified blocks are believed;
/// blocks that were never written have no checksum.
async fn seal(
    inner: &ChecksumInner,
    zone: ZoneIndex,
    first: u64,
    is_last: bool,
) -> Result<Vec<(u64, Buf)>, DeviceError> {
    let shape = inner.shape;
    let sum_at = |at: u64| {
        inner.with(zone, |sums| match sums {
            ZoneSums::Open(open) => open.sum(at).unwrap_or(NO_SUM),
            _ => NO_SUM,
        })
    };
    learn::believe_blocks(inner, zone, shape.bundle_end(first)).await?;
    let mut blocks = inner.pool.borrow_mut().take(shape.bundle_groups);
    blocks.fill(0);
    for (group, block) in shape.groups(first).zip(blocks.chunks_mut(BLOCK)) {
        let sums: Vec<u32> = (group..group + shape.len(group)).map(sum_at).collect();
        block::encode(block, &inner.owner(zone, group), &sums, is_last);
    }
    let blocks = blocks.freeze();
    let write = Command::write(inner.sum_place(zone, first), blocks.clone(), inner.geometry.volatile_cache);
    inner.device.submit(write).await.result?;
    Ok(shape.groups(first).zip(0..).map(|(group, at)| (group, blocks.slice_blocks(at..at + 1))).collect())
}

/// Finishes a zone. The write pointer is moved to the end of the last bundle first, or to that of the next one if the last
/// one is complete: its checksum blocks show that the zone ends there. Nothing is written in a ZRWA: slots of the tail stay
/// as they are until the write pointer has passed them. Without a ZRWA the bundle is filled with zeros.
async fn finish(inner: &Rc<ChecksumInner>, zone: ZoneIndex) -> Result<(), DeviceError> {
    let (shape, zones) = (inner.shape, Zones::One(zone));
    let done = inner.device.submit(Command::Report { first: zone, count: 1 }).await;
    done.result?;
    let Some(info) = done.zones.first().copied() else { return Err(Status::InternalError.into()) };
    let is_empty = info.state == ZoneState::Empty;
    if is_empty {
        carry_out(inner, zone, Command::Open { zones, zrwa: true }).await.result?;
    }
    let open = inner.open_bundle(zone).filter(|first| *first < shape.capacity_blocks);
    // A checksum block with the flag is there if an earlier finish was interrupted. Of small zones that are used as one,
    // some may be full then.
    if let Some(first) = open
        && !read::ends_before(inner, zone, first).await.unwrap_or(false)
    {
        let (mut at, end) = (inner.presented(&info).wp_blocks, shape.bundle_end(first));
        if info.zrwa || is_empty {
            while at < end {
                at = shape.window_end(at).min(end);
                pass(inner, zone, at, true).await.result?;
            }
        } else {
            fill(inner, zone, at, end).await?;
            end_in_order(inner, zone, end, true).await?;
        }
    }
    inner.device.submit(Command::Finish { zones }).await.result?;
    inner.with(zone, |sums| *sums = ZoneSums::Ended);
    Ok(())
}

/// Writes zeros from block `at` up to block `to` of a bundle.
async fn fill(inner: &ChecksumInner, zone: ZoneIndex, at: u64, to: u64) -> Result<(), DeviceError> {
    let most = inner.geometry.max_transfer_blocks as u64;
    let zeros = Buf::zeroed((to - at).min(most) as usize * BLOCK);
    let mut at = at;
    while at < to {
        let piece = zeros.slice_blocks(0..(to - at).min(most));
        let count = piece.blocks();
        inner.note_written(zone, at, &piece);
        inner.device.submit(Command::write(inner.place(zone, at), piece, false)).await.result?;
        at += count;
    }
    Ok(())
}

impl ChecksumInner {
    /// The first block of the last bundle of a zone that can be written.
    fn open_bundle(&self, zone: ZoneIndex) -> Option<u64> {
        self.with(zone, |sums| match sums {
            ZoneSums::Open(open) => Some(open.first),
            _ => None,
        })
    }

    /// Takes note of the checksums of blocks that are being written.
    fn note_written(&self, zone: ZoneIndex, at: u64, data: &[u8]) {
        self.with(zone, |sums| {
            if let ZoneSums::Open(open) = sums {
                open.set(at, data.chunks(BLOCK).map(sum_of));
            }
        });
    }

    /// The bundle that begins with block `first` has its checksum blocks, and the write pointer is at block `wp_blocks`.
    fn end_bundle(&self, zone: ZoneIndex, first: u64, wp_blocks: u64, sealed: Vec<(u64, Buf)>) {
        let end = self.shape.bundle_end(first);
        self.with(zone, |sums| {
            if let ZoneSums::Open(open) = sums
                && open.first == first
            {
                open.sums.drain(..((end - first) as usize).min(open.sums.len()));
                (open.first, open.wp_blocks) = (end, wp_blocks.max(open.wp_blocks));
            }
        });
        for (group, block) in sealed {
            self.cache.borrow_mut().put((zone.0, group), block);
        }
    }
}
