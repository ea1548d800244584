//! Writes, and the other commands that change a zone.

use super::{
    block,
    state::{ChecksumInner, ZoneSums},
};
use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Done, Status},
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Carries out a command that changes a zone; the checksums of its last group are known if they are needed.
pub fn carry_out(inner: &Rc<ChecksumInner>, zone: ZoneIndex, command: Command) -> Completion {
    match command {
        Command::Write { lba, data, oob, fua } => {
            let at = inner.geometry.locate(lba).1;
            write(inner, zone, at, data, oob, fua)
        }
        Command::Finish { zones } => {
            let mut parts = complete_group(inner, zone);
            parts.push(WritePart::Finish(inner.device.submit(Command::Finish { zones })));
            join(inner, zone, parts, Buf::default(), Buf::default())
        }
        Command::Reset { .. } => {
            inner.forget(zone);
            inner.device.submit(command)
        }
        command => inner.device.submit(command),
    }
}

/// Writes blocks at the end of a zone, and the checksum blocks of the groups that they complete.
fn write(inner: &Rc<ChecksumInner>, zone: ZoneIndex, at: u64, data: Buf, oob: Buf, fua: bool) -> Completion {
    let refused = |error: DeviceError, data, oob| Completion::ready(Done { data, oob, ..Done::error(error) });
    let blocks = match inner.geometry.check_buffers(&data, &oob, inner.geometry.max_transfer_blocks) {
        Ok(blocks) => blocks,
        Err(status) => return refused(status.into(), data, oob),
    };
    let next = inner.with(zone, |sums| match sums {
        ZoneSums::Open(open) => Some(open.next()),
        _ => None,
    });
    match next {
        Some(next) if next != at => return refused(Status::ZoneInvalidWrite.into(), data, oob),
        Some(_) if at + blocks > inner.geometry.zone_capacity_blocks => {
            return refused(Status::ZoneBoundaryError.into(), data, oob);
        }
        // A full, read-only or offline zone: the drive refuses the write.
        None => {
            let lba = inner.place(zone, at);
            return inner.device.submit(Command::Write { lba, data, oob: Buf::default(), fua });
        }
        Some(_) => {}
    }
    let mut parts = Vec::new();
    if inner.has_whole_group(zone) {
        parts.push(seal_group(inner, zone, fua, false));
    }
    let mut sent = 0;
    loop {
        let count = inner.shape.left_in_group(at + sent).min(blocks - sent);
        let lba = inner.place(zone, at + sent);
        inner.add(zone, &data[sent as usize * BLOCK..(sent + count) as usize * BLOCK]);
        let is_whole = inner.has_whole_group(zone);
        if parts.is_empty() && count == blocks && !is_whole {
            return inner.device.submit(Command::Write { lba, data, oob: Buf::default(), fua });
        }
        let piece = data.slice_blocks(sent..sent + count);
        parts.push(WritePart::Blocks(inner.device.submit(Command::write(lba, piece, fua))));
        if is_whole {
            parts.push(seal_group(inner, zone, fua, false));
        }
        sent += count;
        if sent == blocks {
            return join(inner, zone, parts, data, oob);
        }
    }
}

/// Fills the last group of a zone with zeros, and writes its checksum block. If that group is empty a whole one is filled:
/// its checksum block shows that the zone ends there. Nothing is written to a zone without room.
fn complete_group(inner: &Rc<ChecksumInner>, zone: ZoneIndex) -> Vec<WritePart> {
    let mut parts = Vec::new();
    let Some((next, is_empty)) = inner.with(zone, |sums| match sums {
        ZoneSums::Open(open) => Some((open.next(), open.sums.is_empty())),
        _ => None,
    }) else {
        return parts;
    };
    if is_empty && next == inner.shape.capacity_blocks {
        return parts;
    }
    if !inner.has_whole_group(zone) {
        let (mut at, end) = (next, next + inner.shape.left_in_group(next));
        let most = inner.device.geometry().max_transfer_blocks as u64;
        let zeros = Buf::zeroed((end - at).min(most) as usize * BLOCK);
        while at < end {
            let piece = zeros.slice_blocks(0..(end - at).min(most));
            inner.add(zone, &piece);
            let (lba, count) = (inner.place(zone, at), piece.blocks());
            parts.push(WritePart::Blocks(inner.device.submit(Command::write(lba, piece, false))));
            at += count;
        }
    }
    assert!(inner.has_whole_group(zone), "the last group of zone {} is filled, and not complete", zone.0);
    // A finished zone stays full, whatever a power cut costs.
    parts.push(seal_group(inner, zone, inner.geometry.volatile_cache, true));
    parts
}

/// Writes the checksum block of the last group of a zone, which is complete; the next one begins. `last` if the zone is
/// finished.
fn seal_group(inner: &ChecksumInner, zone: ZoneIndex, fua: bool, last: bool) -> WritePart {
    let (first, sums) = inner.end_group(zone);
    let place: Lba = inner.sum_place(zone, first);
    let mut sealed = inner.pool.borrow_mut().take(1);
    block::encode(&mut sealed, &inner.owner(zone, first), &sums, last);
    let sealed = sealed.freeze();
    inner.sealing.borrow_mut().insert((zone.0, first), sealed.clone());
    WritePart::Seal(first, inner.device.submit(Command::write(place, sealed, fua)))
}

/// A command of which a write or a finish consists.
pub enum WritePart {
    Blocks(Completion),
    /// The checksum block of the group that begins with this block.
    Seal(u64, Completion),
    Finish(Completion),
}

/// Completes when all `parts` have, with the first error and the buffers of the command. A checksum block whose write
/// fails stays in memory.
pub fn join(
    inner: &Rc<ChecksumInner>,
    zone: ZoneIndex,
    parts: Vec<WritePart>,
    data: Buf,
    oob: Buf,
) -> Completion {
    let (this, (completer, completion)) = (inner.clone(), inner.slots.pair());
    inner.runtime.spawn(async move {
        let mut result = Ok(());
        for part in parts {
            let done = match part {
                WritePart::Blocks(written) => written.await.result,
                WritePart::Seal(first, written) => {
                    let done = written.await;
                    if done.result.is_ok()
                        && let Some(sealed) = this.sealing.borrow_mut().remove(&(zone.0, first))
                    {
                        this.cache.borrow_mut().put((zone.0, first), sealed);
                    }
                    done.result
                }
                WritePart::Finish(finished) => {
                    let done = finished.await;
                    if done.result.is_ok() {
                        this.with(zone, |sums| *sums = ZoneSums::Ended);
                    }
                    done.result
                }
            };
            result = result.and(done);
        }
        completer.complete(Done { result, data, oob, ..Done::ok() });
    });
    completion
}
