//! Reads, normal and degraded.
//!
//! A read that lies on one member is submitted to it directly. All other reads, and direct reads that fail, are carried
//! out by a reader: a task that is kept for later reads.
//!
//! A chunk that cannot be read is decoded from parity and the blocks of the other chunks that lie below the tail: above
//! the tail a member may hold blocks of writes that did not complete, which parity does not cover. The parities of a
//! partial stripe are taken from memory.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode,
    device::{Completion, DeviceError, Done, Status},
    raid::{
        failures,
        geometry::{ChunkRange, Role},
        io,
        members::is_unreadable,
        parts::Raid,
        power,
        seat::Seat,
        zone::{
            flow::{Flow, Parities, Zone},
            reader::{ReadJob, ReadWorker},
            relocated,
        },
    },
    zone::{ZoneIndex, ZoneState},
};
use std::{ops::Range, rc::Rc};

/// Reads `data.blocks()` blocks from block `at` of a zone.
pub fn read(raid: &Rc<Raid>, zone: ZoneIndex, at: u64, data: Buf) -> Completion {
    let (blocks, losses) = (data.blocks(), raid.members.losses());
    let direct = direct(raid, zone, at, &data);
    let (data, direct) = match direct {
        Some((member, piece)) => {
            let mut completion = io::read(raid, member, zone, first_block(raid, piece), data);
            match completion.take() {
                Some(done) if done.result.is_ok() && !power::notices_power_loss(raid, 1 << member) => {
                    note_read(raid, zone, member, piece, Ok(()));
                    return Completion::ready(done);
                }
                Some(done) => (Buf::default(), Some((raid.members.seat(member), Completion::ready(done)))),
                None => (Buf::default(), Some((raid.members.seat(member), completion))),
            }
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
    if offset + blocks > raid.layout.chunk_blocks || at + blocks > tail(raid, zone) {
        return None;
    }
    let piece = piece(raid, at, blocks);
    assert!(piece.to <= raid.layout.chunk_blocks, "a direct read of {piece:?}");
    let member = raid.layout.member(piece.stripe, piece.index);
    let is_direct = has_piece(raid, zone, member, piece) && !relocated::has_relocated(raid, zone, member);
    is_direct.then_some((member, piece))
}

/// Whether `member` holds its blocks of the stripe's row at `piece`'s offsets, as far as is known without reading.
pub(super) fn has_piece(raid: &Raid, zone: ZoneIndex, member: usize, piece: ChunkRange) -> bool {
    let at = piece.stripe * raid.layout.chunk_blocks;
    raid.live(zone) & (1 << member) != 0
        && !raid.zone_records.has_bad_block(zone, member, at + piece.from..at + piece.to)
        && (raid.members.suspects() & (1 << member) == 0 || !raid.zones.is_running(zone))
        && at + piece.to <= kept_end(raid, zone, member)
}

/// Exclusive end of the blocks that a member is known to keep of its part of a zone; `u64::MAX` if all. A part that
/// becomes read-only while the array runs may have lost the contents of its ZRWA.
pub(super) fn kept_end(raid: &Raid, zone: ZoneIndex, member: usize) -> u64 {
    let cut = raid.zones.cut_end(zone, member);
    let may_lack_zrwa = raid.zones.stuck_members(zone) & (1 << member) != 0
        && raid.layout.policy.uses_zrwa()
        && raid.members.is_worn(member)
        && !raid.zones.is_read_only(zone);
    let Some(running) = raid.zones.running(zone).filter(|_| may_lack_zrwa) else { return cut };
    let passed = running.flow.borrow().positions()[member] * raid.layout.policy.position_blocks(&raid.layout);
    passed.min(cut)
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
        let done = completion.await;
        note_read(raid, zone, seat.member, piece(raid, at, blocks), done.result);
        power::notices_power_loss(raid, 1 << seat.member);
        match done.result {
            Ok(()) if raid.members.losses() == losses => return completer.complete(done),
            Ok(()) => {}
            Err(error) => read_failed(raid, zone, seat, error),
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

/// Counts a read error. The member of a drive that is gone is taken out; a part in an offline zone is lost.
pub fn read_failed(raid: &Raid, zone: ZoneIndex, seat: Seat, error: DeviceError) {
    raid.members.count_read_error(seat.member);
    if matches!(error, DeviceError::Gone | DeviceError::Timeout) {
        failures::member_failed(raid, seat, error, "read");
    } else if error == Status::ZoneIsOffline.into() {
        failures::part_failed(raid, zone, seat, error, "read");
    }
}

/// Records after a read whether the member's drive can read `piece`.
fn note_read(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    piece: ChunkRange,
    result: Result<(), DeviceError>,
) {
    let at = piece.stripe * raid.layout.chunk_blocks;
    note_read_of(raid, zone, member, at + piece.from..at + piece.to, result);
}

/// As [`note_read`], for `blocks` counted from the start of the part.
pub fn note_read_of(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    blocks: Range<u64>,
    result: Result<(), DeviceError>,
) {
    match result {
        Ok(()) => raid.zone_records.unreadable.remove(zone.0, member, blocks),
        Err(error) if is_unreadable(error) && raid.members.is_active(member) => {
            raid.zone_records.unreadable.add(zone.0, member, blocks);
        }
        Err(_) => {}
    }
}

/// End of the blocks of a zone that hold data; blocks above are read as zeros.
pub fn tail(raid: &Raid, zone: ZoneIndex) -> u64 {
    match raid.zones.complete(zone) {
        Some(complete) => complete,
        None if raid.zones.state(zone) == ZoneState::Full => finished_tail(raid, zone),
        None => 0,
    }
}

/// The tail of a full zone.
pub fn finished_tail(raid: &Raid, zone: ZoneIndex) -> u64 {
    raid.zone_records.record(zone).finished.unwrap_or(raid.layout.capacity_blocks())
}

/// The blocks of a read of `blocks` blocks from block `at` of a zone that are in the chunk of `at`.
pub(super) fn piece(raid: &Raid, at: u64, blocks: u64) -> ChunkRange {
    let layout = &raid.layout;
    let ((chunk, from), k) = (layout.chunk_of(at), layout.data_chunks());
    let stripe = chunk / k;
    ChunkRange { stripe, index: chunk - stripe * k, from, to: layout.chunk_blocks.min(from + blocks) }
}

/// The first block of `piece` in a member's part of a zone: it is in the row of its stripe.
fn first_block(raid: &Raid, piece: ChunkRange) -> u64 {
    piece.stripe * raid.layout.chunk_blocks + piece.from
}

/// Reads blocks of a zone from block `at` on into `data`, piece by piece; pieces that cannot be read are decoded.
async fn read_pieces(raid: &Rc<Raid>, zone: ZoneIndex, at: u64, data: &mut Buf) -> Result<(), DeviceError> {
    let blocks = data.blocks();
    let tail = tail(raid, zone);
    let mut pending = Vec::new();
    let mut done_blocks = 0;
    while done_blocks < blocks && at + done_blocks < tail {
        let left = (blocks - done_blocks).min(tail - at - done_blocks);
        let piece = piece(raid, at + done_blocks, left);
        let member = raid.layout.member(piece.stripe, piece.index);
        let completion = has_piece(raid, zone, member, piece).then(|| {
            let buf = raid.pool.borrow_mut().take(piece.to - piece.from).freeze();
            io::read(raid, member, zone, first_block(raid, piece), buf)
        });
        pending.push((done_blocks, piece, raid.members.seat(member), completion));
        done_blocks += piece.to - piece.from;
    }
    for (block, piece, seat, completion) in pending {
        let mut found = None;
        if let Some(completion) = completion {
            found = take_read(raid, zone, seat, piece, completion.await).await.ok();
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

/// Reads `piece` from its own member; `None` if the member lacks it or the read fails.
async fn read_own(raid: &Raid, zone: ZoneIndex, piece: ChunkRange) -> Option<Buf> {
    let member = raid.layout.member(piece.stripe, piece.index);
    if !has_piece(raid, zone, member, piece) {
        return None;
    }
    let buf = raid.pool.borrow_mut().take(piece.to - piece.from).freeze();
    let seat = raid.members.seat(member);
    let done = io::read(raid, member, zone, first_block(raid, piece), buf).await;
    match done.result {
        Ok(()) => take_read(raid, zone, seat, piece, done).await.ok(),
        Err(_) => None,
    }
}

/// Reads `piece` block by block, since several members may have unreadable blocks in it. Each block is read from
/// its own member, which may have been rebuilt meanwhile, or decoded from the others. `None` if a block is lost.
async fn read_singly(raid: &Rc<Raid>, zone: ZoneIndex, piece: ChunkRange) -> Option<Buf> {
    let mut whole = BufMut::zeroed((piece.to - piece.from) as usize * BLOCK);
    for from in piece.from..piece.to {
        let single = ChunkRange { from, to: from + 1, ..piece };
        let found = match read_own(raid, zone, single).await {
            Some(found) => found,
            None => reconstruct(raid, zone, single).await.ok()?,
        };
        whole.block_mut(from - piece.from).copy_from_slice(&found);
    }
    Some(whole.freeze())
}

/// Decodes `piece` from the other members.
pub async fn reconstruct(raid: &Rc<Raid>, zone: ZoneIndex, piece: ChunkRange) -> Result<Buf, DeviceError> {
    let partial = match raid.zones.running(zone) {
        Some(running) => partial_stripe(raid, &running, piece).await?,
        None => None,
    };
    let (tail, known) = partial.unwrap_or_else(|| (tail(raid, zone), Parities::default()));
    let decoded = decode(raid, zone, piece, Role::Data(piece.index), tail, &known).await;
    decoded.map_err(|_| Status::UnrecoveredReadError.into())
}

/// Tail and running parities of the stripe that is being written, at `piece`'s offsets; `None` if the parities of
/// the stripe are on the members. Waits until all blocks below this tail are complete: they do not change any more,
/// so writes may continue meanwhile.
///
/// # Errors
/// Unrecovered Read Error, if the zone fails before that: the parities cover blocks that are not on the members.
pub(super) async fn partial_stripe(
    raid: &Raid,
    zone: &Zone,
    piece: ChunkRange,
) -> Result<Option<(u64, Parities)>, DeviceError> {
    let (tail, known) = {
        let flow = zone.flow.borrow();
        let end = (piece.stripe + 1) * raid.layout.stripe_blocks();
        let Some((tail, is_in_memory)) = flow.partial_stripe(end) else { return Ok(None) };
        (tail, is_in_memory.then(|| running_parities(raid, &flow, piece)))
    };
    match zone.wait_until_complete(tail).await {
        true => Ok(known.map(|known| (tail, known))),
        false => Err(Status::UnrecoveredReadError.into()),
    }
}

/// Copies the running parities at `piece`'s offsets.
pub fn running_parities(raid: &Raid, flow: &Flow, piece: ChunkRange) -> Parities {
    let bytes = piece.from as usize * BLOCK..piece.to as usize * BLOCK;
    let copy = |which: usize| raid.copy(&flow.parities[which][bytes.clone()]);
    std::array::from_fn(|which| (which < raid.layout.parities).then(|| copy(which)))
}

/// Decodes the content of `role` at `piece`'s offsets from the other members. All blocks of the stripe below `tail`
/// are complete. Parities in `known` are not read.
///
/// # Errors
/// Unrecovered Read Error, if needed blocks are lost; another error, if they may still exist.
pub async fn decode(
    raid: &Raid,
    zone: ZoneIndex,
    piece: ChunkRange,
    role: Role,
    tail: u64,
    known: &Parities,
) -> Result<Buf, DeviceError> {
    decode_without(raid, zone, piece, role, (tail, known), 0).await
}

/// As [`decode`], without reading from the members `avoided` (bits).
pub(super) async fn decode_without(
    raid: &Raid,
    zone: ZoneIndex,
    piece: ChunkRange,
    role: Role,
    (tail, known): (u64, &Parities),
    avoided: u32,
) -> Result<Buf, DeviceError> {
    let layout = &raid.layout;
    let k = layout.data_chunks();
    let covered = tail.saturating_sub(piece.stripe * layout.stripe_blocks()).min(layout.stripe_blocks());
    let chunks = covered.saturating_sub(piece.from).div_ceil(layout.chunk_blocks);
    assert!(chunks <= k && piece.to <= layout.chunk_blocks, "{piece:?} of {chunks} chunks is decoded");
    let symbols = &layout.symbols(chunks)[..layout.members];
    let own = match role {
        Role::Data(index) => index,
        Role::Parity(which) => k + which as u64,
    };
    let in_memory = |index: u64| index.checked_sub(k).and_then(|which| known[which as usize].as_ref());
    // Blocks above the tail are not read: a member may hold blocks of incomplete writes there.
    let part = |index: u64| match index < k {
        true => ChunkRange {
            index,
            to: piece.to.min(covered.saturating_sub(index * layout.chunk_blocks)),
            ..piece
        },
        false => piece,
    };
    let is_there = |index: &u64| {
        let member = layout.member(piece.stripe, *index);
        let has = || avoided >> member & 1 == 0 && has_piece(raid, zone, member, part(*index));
        *index != own && (*index < chunks || *index >= k) && (in_memory(*index).is_some() || has())
    };
    let mut error = Status::UnrecoveredReadError.into();
    let mut present = (0..layout.members as u64).filter(is_there).fold(0, |all, index| all | 1 << index);
    loop {
        let recipe = decode::solve(present, symbols, symbols[own as usize]);
        let recipe = recipe.ok_or(error)?;
        let mut pending = Vec::new();
        for index in recipe.sources().iter().map(|source| source.stored as u64) {
            let (member, part) = (layout.member(piece.stripe, index), part(index));
            let read = match in_memory(index) {
                Some(parity) => Ok(parity.clone()),
                None => {
                    let buf = raid.pool.borrow_mut().take(part.to - part.from).freeze();
                    Err(io::read(raid, member, zone, first_block(raid, part), buf))
                }
            };
            pending.push((index, raid.members.seat(member), part, read));
        }
        let mut blocks = Vec::new();
        for (index, seat, part, read) in pending {
            let found = match read {
                Ok(parity) => Ok(parity),
                Err(completion) => take_read(raid, zone, seat, part, completion.await).await,
            };
            match found {
                Ok(data) => blocks.push(padded(data, piece.to - piece.from)),
                Err(failed) => {
                    present &= !(1 << index);
                    error = if is_unreadable(failed) { error } else { failed };
                }
            }
        }
        if blocks.len() == recipe.sources().len() {
            let mut result = raid.pool.borrow_mut().take(piece.to - piece.from);
            recipe.run(&mut result, &blocks);
            blocks.into_iter().for_each(|block| raid.pool.borrow_mut().give(block));
            return Ok(result.freeze());
        }
    }
}

/// Evaluates the completion of a read of `piece` from a member: records errors, and puts relocated blocks in place.
async fn take_read(
    raid: &Raid,
    zone: ZoneIndex,
    seat: Seat,
    piece: ChunkRange,
    done: Done,
) -> Result<Buf, DeviceError> {
    note_read(raid, zone, seat.member, piece, done.result);
    if power::notices_power_loss(raid, 1 << seat.member) {
        power::power_checked(raid).await;
    }
    match done.result {
        // The part may have been lost during the read.
        Ok(()) if !has_piece(raid, zone, seat.member, piece) => Err(Status::UnrecoveredReadError.into()),
        Ok(()) => Ok(relocated::overlay_piece(raid, zone, seat.member, piece, done.data)),
        Err(error) => {
            read_failed(raid, zone, seat, error);
            Err(error)
        }
    }
}

/// Reads `piece`'s offsets of the stripe's row from `member`, whether it holds data or parity there.
pub async fn read_member(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    piece: ChunkRange,
) -> Result<Buf, DeviceError> {
    if !has_piece(raid, zone, member, piece) {
        return Err(Status::UnrecoveredReadError.into());
    }
    let (buf, seat) =
        (raid.pool.borrow_mut().take(piece.to - piece.from).freeze(), raid.members.seat(member));
    let done = io::read(raid, member, zone, first_block(raid, piece), buf).await;
    take_read(raid, zone, seat, piece, done).await
}

/// Pads `data` with zeros to this number of blocks.
fn padded(data: Buf, blocks: u64) -> Buf {
    assert!(data.blocks() <= blocks, "{} blocks of {blocks} were read", data.blocks());
    if data.blocks() == blocks {
        return data;
    }
    let mut whole = BufMut::zeroed(blocks as usize * BLOCK);
    whole[..data.len()].copy_from_slice(&data);
    whole.freeze()
}

/// Bytes of a member's part of a zone.
pub fn member_bytes(raid: &Raid, zone: ZoneIndex) -> u64 {
    tail(raid, zone).div_ceil(raid.layout.stripe_blocks()) * raid.layout.chunk_blocks * BLOCK as u64
}
