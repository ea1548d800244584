//! Reads, normal and degraded.
//!
//! A read that lies on one member is submitted to it directly. All other reads, and direct reads that fail, are carried
//! out by a reader: a task that is kept for later reads. What a member lacks is decoded ([`stripe`]).

use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{Completion, DeviceError, Done, Status},
    raid::{
        failures,
        geometry::{ChunkRange, Role},
        io,
        parts::Raid,
        power,
        zone::{
            checksum::{self, Expected},
            flow::Parities,
            reader::{ReadJob, ReadWorker},
            relocated, stripe,
        },
    },
    zone::ZoneIndex,
};
use std::rc::Rc;

/// Reads `data.blocks()` blocks from block `at` of a zone.
pub fn read(raid: &Rc<Raid>, zone: ZoneIndex, at: u64, data: Buf) -> Completion {
    let (blocks, losses) = (data.blocks(), raid.members.losses());
    let direct = direct(raid, zone, at, &data);
    let (data, direct) = match direct {
        Some((member, piece)) => {
            let at = stripe::first_block(raid, piece);
            let mut completion = io::read(raid, member, zone, at, data);
            if raid.checksums
                && let Some(done) = completion.take()
            {
                completion =
                    Completion::ready(checksum::checked(raid, member, zone, at, Expected::Row, done));
            }
            if completion.result() == Some(Ok(())) && !power::notices_power_loss(raid, 1 << member) {
                stripe::note_read(raid, zone, member, piece, Ok(()));
                return completion;
            }
            (Buf::default(), Some((raid.members.seat(member), completion)))
        }
        None => (data, None),
    };
    let (completer, completion) = raid.slots.pair();
    let reader = raid.readers.take().unwrap_or_else(|| {
        let reader = Rc::new(ReadWorker::default());
        raid.runtime.spawn(serve_reads(raid.clone(), reader.clone()));
        reader
    });
    *reader.job.borrow_mut() = Some(ReadJob { zone, at, blocks, data, completer, losses, direct });
    reader.work.open();
    completion
}

/// The member that can serve the whole read, and the piece to read; `None` if there is no such member.
fn direct(raid: &Raid, zone: ZoneIndex, at: u64, data: &Buf) -> Option<(usize, ChunkRange)> {
    let (blocks, (_, offset)) = (data.blocks(), raid.layout.chunk_of(at));
    if offset + blocks > raid.layout.chunk_blocks || at + blocks > raid.tail(zone) {
        return None;
    }
    let piece = piece(raid, at, blocks);
    assert!(piece.to <= raid.layout.chunk_blocks, "a direct read of {piece:?}");
    let member = raid.layout.member(piece.stripe, piece.index);
    let first = stripe::first_block(raid, piece);
    let is_direct = stripe::has_piece(raid, zone, member, piece)
        && !relocated::is_any_relocated(raid, zone, member, first..first + blocks);
    is_direct.then_some((member, piece))
}

/// Task of a reader: carries out its reads, one after the other.
async fn serve_reads(raid: Rc<Raid>, reader: Rc<ReadWorker>) {
    loop {
        let work = reader.work.wait();
        let job = reader.job.borrow_mut().take();
        if let Some(job) = job {
            carry_out(&raid, job).await;
            raid.readers.give(reader.clone());
            continue;
        }
        if reader.ended.get() {
            return;
        }
        work.await;
    }
}

async fn carry_out(raid: &Rc<Raid>, job: ReadJob) {
    let ReadJob { zone, at, blocks, mut data, completer, losses, direct } = job;
    if let Some((seat, completion)) = direct {
        let piece = piece(raid, at, blocks);
        let mut done = completion.await;
        if !done.oob.is_empty() {
            done = checksum::checked(
                raid,
                seat.member,
                zone,
                stripe::first_block(raid, piece),
                Expected::Row,
                done,
            );
        }
        stripe::note_read(raid, zone, seat.member, piece, done.result);
        power::notices_power_loss(raid, 1 << seat.member);
        match done.result {
            Ok(()) if raid.members.losses() == losses => return completer.complete(done),
            Ok(()) => {}
            Err(error) => stripe::read_failed(raid, zone, seat, error),
        }
        data = done.data;
    }
    if data.blocks() != blocks {
        // The failed read has not returned the buffer.
        data = Buf::zeroed(blocks as usize * BLOCK);
    }
    let result = loop {
        power::power_checked(raid).await;
        failures::parts_checked(raid, zone).await;
        let losses = raid.members.losses();
        let result = read_pieces(raid, zone, at, &mut data).await;
        if raid.members.losses() == losses {
            break result;
        }
    };
    completer.complete(Done { result, data, ..Done::ok() });
}

/// The blocks of a read of `blocks` blocks from block `at` of a zone that are in the chunk of `at`.
pub(super) fn piece(raid: &Raid, at: u64, blocks: u64) -> ChunkRange {
    let layout = &raid.layout;
    let ((chunk, from), k) = (layout.chunk_of(at), layout.data_chunks());
    let stripe = chunk / k;
    ChunkRange { stripe, index: chunk - stripe * k, from, to: layout.chunk_blocks.min(from + blocks) }
}

/// Reads blocks of a zone from block `at` on into `data`, piece by piece; pieces that cannot be read are decoded.
async fn read_pieces(raid: &Rc<Raid>, zone: ZoneIndex, at: u64, data: &mut Buf) -> Result<(), DeviceError> {
    let blocks = data.blocks();
    let tail = raid.tail(zone);
    let mut pending = Vec::new();
    let mut done_blocks = 0;
    while done_blocks < blocks && at + done_blocks < tail {
        let left = (blocks - done_blocks).min(tail - at - done_blocks);
        let piece = piece(raid, at + done_blocks, left);
        let member = raid.layout.member(piece.stripe, piece.index);
        let read = stripe::has_piece(raid, zone, member, piece)
            .then(|| stripe::submit_read(raid, zone, member, piece));
        pending.push((done_blocks, piece, read));
        done_blocks += piece.to - piece.from;
    }
    for (block, piece, read) in pending {
        let mut found = None;
        if let Some((seat, completion)) = read {
            found = stripe::take_read(raid, zone, seat, piece, completion.await).await.ok();
        }
        let bytes = match found {
            Some(bytes) => bytes,
            None => match reconstruct(raid, zone, piece).await {
                Ok(bytes) => bytes,
                Err(error) => read_singly(raid, zone, piece).await.ok_or(error)?,
            },
        };
        let target = data.as_mut().ok_or(DeviceError::Status(Status::InvalidField))?;
        target[block as usize * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
        raid.pool.borrow_mut().give(bytes);
    }
    if done_blocks < blocks && raid.zones.is_offline(zone) {
        // A read-only zone may have held more blocks, above the end that recovery found.
        return Err(Status::UnrecoveredReadError.into());
    }
    if done_blocks < blocks {
        let target = data.as_mut().ok_or(DeviceError::Status(Status::InvalidField))?;
        target[done_blocks as usize * BLOCK..].fill(0);
    }
    Ok(())
}

/// Reads `piece` block by block, since several members may have unreadable blocks in it. Each block is read from
/// its own member, which may have been rebuilt meanwhile, or decoded from the others. `None` if a block is lost.
async fn read_singly(raid: &Rc<Raid>, zone: ZoneIndex, piece: ChunkRange) -> Option<Buf> {
    let mut whole = BufMut::zeroed((piece.to - piece.from) as usize * BLOCK);
    for from in piece.from..piece.to {
        let single = ChunkRange { from, to: from + 1, ..piece };
        let member = raid.layout.member(piece.stripe, piece.index);
        let found = match stripe::read_member(raid, zone, member, single).await {
            Ok(found) => found,
            Err(_) => reconstruct(raid, zone, single).await.ok()?,
        };
        whole.block_mut(from - piece.from).copy_from_slice(&found);
    }
    Some(whole.freeze())
}

/// Decodes `piece` from the other members.
async fn reconstruct(raid: &Raid, zone: ZoneIndex, piece: ChunkRange) -> Result<Buf, DeviceError> {
    reconstruct_without(raid, zone, piece, 0).await.map_err(|_| Status::UnrecoveredReadError.into())
}

/// Decodes `piece` from the other members, without reading from the members `avoided` (bits).
pub(super) async fn reconstruct_without(
    raid: &Raid,
    zone: ZoneIndex,
    piece: ChunkRange,
    avoided: u32,
) -> Result<Buf, DeviceError> {
    let partial = match raid.zones.running(zone) {
        Some(running) => stripe::partial_stripe(raid, &running, piece).await?,
        None => None,
    };
    let (tail, known) = partial.unwrap_or_else(|| (raid.tail(zone), Parities::default()));
    stripe::decode_without(raid, zone, piece, Role::Data(piece.index), (tail, &known), avoided).await
}

/// Bytes of a member's part of a zone.
pub fn member_bytes(raid: &Raid, zone: ZoneIndex) -> u64 {
    raid.tail(zone).div_ceil(raid.layout.stripe_blocks()) * raid.layout.chunk_blocks * BLOCK as u64
}
