//! Checksums of the blocks of members' parts, in an array that has them.
//!
//! The completion of every read passes through [`checked`] before its data is returned, decoded from, copied, or used by
//! recovery. A block that does not match its mark counts as one that the drive cannot read, and one that has neither
//! data nor mark as unwritten: the array decodes such a block from the others.

use crate::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Done, Status},
    format::oob::{Content, Mark, SUMMED_OOB_BYTES, data_sum},
    raid::{geometry::Role, io, parts::Raid},
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
/// Deallocated Or Unwritten Logical Block, if a block and its metadata are zeros and all blocks before it match;
/// otherwise Unrecovered Read Error.
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
    let (start, epoch) = (io::address(raid, member, zone, 0).0, raid.zone_records.epoch(zone) as u32);
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
        if !is_right {
            let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            let unwritten = is_blank(oob) && is_blank(block);
            let error = if unwritten { Status::DeallocatedBlock } else { Status::UnrecoveredReadError };
            return Err(error.into());
        }
    }
    Ok(())
}

/// Whether this is the content of a parity block of stripe `stripe`, below the tail: the parity of all chunks, or of some
/// in the partial stripe at the end of a finished zone.
fn is_parity_of(raid: &Raid, zone: ZoneIndex, stripe: u64, content: Content) -> bool {
    let Content::Parity(covers) = content else { return false };
    let is_partial = || stripe >= raid.tail(zone) / raid.layout.stripe_blocks();
    covers as u64 == raid.layout.data_chunks() || is_partial()
}
