//! Checksums of the blocks of members' parts, in an array that has them.
//!
//! The completion of every read passes through [`checked`] before its data is returned, decoded from, copied, or used by
//! recovery. A block that does not match its mark counts as one that the drive cannot read, and one that has neither
//! data nor mark as unwritten: the array decodes such a block from the others.

use crate::{
    buf::{BLOCK, Buf, is_zero},
    device::{DeviceError, Done, Status},
    format::oob::{Content, Mark, SUMMED_OOB_BYTES, data_sum},
    raid::{
        generations::{self, Begun},
        geometry::{Layout, Role},
        io,
        parts::Raid,
    },
    zone::ZoneIndex,
};

/// Reads into `data` from block `at` of a member's part of `zone` ([`io::read`]), and verifies the blocks.
pub async fn read(
    raid: &Raid,
    member: usize,
    zone: ZoneIndex,
    at: u64,
    expected: Expected,
    data: Buf,
) -> Done {
    let done = io::read(raid, member, zone, at, data).await;
    checked(raid, member, zone, at, expected, done)
}

/// Reads one block below the tail, and verifies it; also whether the drive has returned another block, if that fails.
pub async fn read_block(raid: &Raid, member: usize, zone: ZoneIndex, at: u64) -> (Done, bool) {
    let wrong_reads = || raid.members.log(member).map(|log| log.device.wrong_reads());
    let before = wrong_reads();
    let done = io::read(raid, member, zone, at, Buf::zeroed(BLOCK)).await;
    let is_wrong = done.result.is_ok() || wrong_reads() != before;
    (checked(raid, member, zone, at, Expected::Row, done), is_wrong)
}

/// The completion of a [`io::read`] from block `at` of a member's part of `zone`, with the error of [`check`] if it
/// succeeded and the blocks do not match their checksums; without the out-of-band metadata.
pub fn checked(
    raid: &Raid,
    member: usize,
    zone: ZoneIndex,
    at: u64,
    expected: Expected,
    mut done: Done,
) -> Done {
    if raid.checksums {
        done.result =
            done.result.and_then(|()| check(raid, member, zone, at, expected, (&done.data, &done.oob)));
        raid.pool.borrow_mut().give(std::mem::take(&mut done.oob));
    }
    done
}

/// The content that blocks have to hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// That of their row, below the tail: data, or the parity of its stripe.
    Row,
    /// Any: recovery reads slots and log blocks, which lie in rows of later stripes.
    Any,
}

/// Compares blocks, from block `at` of a member's part of `zone` on, with the checksums in their marks.
///
/// # Errors
/// Deallocated Or Unwritten Logical Block, if a block and its metadata are zeros, or it is left from an interrupted write
/// ([`is_left`]), and all blocks before it match; otherwise Unrecovered Read Error.
pub fn check(
    raid: &Raid,
    member: usize,
    zone: ZoneIndex,
    at: u64,
    expected: Expected,
    (data, oob): (&[u8], &[u8]),
) -> Result<(), DeviceError> {
    if !raid.checksums {
        return Ok(());
    }
    let (start, zone_epoch) = (io::address(raid, member, zone, 0).0, raid.zone_records.epoch(zone));
    let (epoch, generations) = (zone_epoch as u32, raid.zone_records.generations());
    let begun = generations.of(zone.0, zone_epoch);
    let size = io::oob_bytes(raid, member).max(SUMMED_OOB_BYTES);
    assert!(oob.len() / size >= data.len() / BLOCK, "{} bytes of metadata for {}", oob.len(), data.len());
    for ((at, block), oob) in (at..).zip(data.chunks(BLOCK)).zip(oob.chunks(size)) {
        let mark = Mark::read(oob, io::origin(raid, member, start + at));
        let is_right = mark.is_some_and(|mark| {
            let row = at / raid.layout.chunk_blocks;
            let of_row = || match raid.layout.role(member, row) {
                Role::Data(_) => mark.content == Content::Data,
                Role::Parity(_) => is_parity_of(raid, zone, row, mark.content),
            };
            mark.epoch == epoch
                && mark.sum == Some(data_sum(block))
                && (expected == Expected::Any || of_row())
        });
        let is_left = !begun.is_empty()
            && mark.is_some_and(|mark| is_right && is_left(&raid.layout, begun, (member, at), &mark));
        if !is_right || is_left {
            let unwritten = is_left || is_zero(oob) && is_zero(block);
            let error = if unwritten { Status::DeallocatedBlock } else { Status::UnrecoveredReadError };
            return Err(error.into());
        }
    }
    Ok(())
}

/// Whether block `at` of a member's part of a zone with these generations is left from a write that recovery has not kept,
/// by its mark: a later write of the block was lost ([`crate::raid::generations`]).
pub fn is_left(layout: &Layout, begun: &[Begun], (member, at): (usize, u64), mark: &Mark) -> bool {
    let (row, block) = layout.chunk_of(at);
    // The last block of the zone that a parity of the first `covers` chunks of a stripe covers.
    let last_covered = |stripe: u64, covers: u8| {
        let index = (covers as u64).checked_sub(1)?;
        Some(stripe * layout.stripe_blocks() + index * layout.chunk_blocks + block)
    };
    let last = match mark.content {
        Content::Data => layout.data_block(member, at),
        Content::Parity(covers) => last_covered(row, covers),
        Content::Ahead(covers) => {
            let stripe = layout.stripe_of_slot(member, row, covers);
            stripe.and_then(|stripe| last_covered(stripe, covers))
        }
        Content::Log => None,
    };
    last.is_some_and(|last| !generations::may_be_of(begun, last, mark.generation))
}

/// Whether this is the content of a parity block of stripe `stripe`, below the tail: the parity of all chunks, or of some
/// in the partial stripe at the end of a finished zone.
fn is_parity_of(raid: &Raid, zone: ZoneIndex, stripe: u64, content: Content) -> bool {
    let Content::Parity(covers) = content else { return false };
    let is_partial = || stripe >= raid.complete_rows(zone);
    covers as u64 == raid.layout.data_chunks() || is_partial()
}
