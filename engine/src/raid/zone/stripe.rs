//! The stripe reader: reads blocks of stripes from members, and decodes those that a member lacks.
//!
//! Degraded reads, rebuild, copy and the filling of bad blocks use it, in two ways. [`decode`] decodes one piece, and
//! reads only the blocks that it needs, also of a partial stripe, whose parities are in memory. [`decode_rows`] decodes
//! many rows of complete stripes from all other members, and block by block where some of these are unreadable.
//!
//! A piece is decoded from parity and the blocks of the other chunks that lie below the tail: above the tail a member
//! may hold blocks of writes that did not complete, which parity does not cover.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode,
    device::{Completion, DeviceError, Done, Status},
    raid::{
        bad_blocks::RebuildLoss,
        error::{NoPart, RebuildStop},
        failures,
        geometry::{ChunkRange, Layout, Role, each},
        io,
        members::is_unreadable,
        parts::Raid,
        power,
        seat::Seat,
        zone::{
            checksum::{self, Expected},
            flow::{Flow, Parities, Zone},
            relocated,
        },
    },
    runtime::{self, COPY},
    zone::{ZoneIndex, ZoneState},
};
use std::{collections::BTreeMap, ops::Range};

/// Whether `member` holds its blocks of the stripe's row at `piece`'s offsets, as far as is known without reading.
pub fn has_piece(raid: &Raid, zone: ZoneIndex, member: usize, piece: ChunkRange) -> bool {
    let at = piece.stripe * raid.layout.chunk_blocks;
    raid.live(zone) & (1 << member) != 0
        && !raid.zone_records.has_bad_block(zone, member, at + piece.from..at + piece.to)
        && (raid.members.suspects() & (1 << member) == 0 || !raid.zones.is_running(zone))
        && at + piece.to <= kept_end(raid, zone, member)
}

/// Exclusive end of the blocks that a member is known to keep of its part of a zone; `u64::MAX` if all. A part that
/// becomes read-only while the array runs may have lost the contents of its ZRWA.
pub fn kept_end(raid: &Raid, zone: ZoneIndex, member: usize) -> u64 {
    let cut = raid.zones.cut_end(zone, member);
    let may_lack_zrwa = raid.zones.stuck_members(zone) & (1 << member) != 0
        && raid.layout.policy.uses_zrwa()
        && raid.members.is_worn(member)
        && !raid.zones.is_read_only(zone);
    let Some(running) = raid.zones.running(zone).filter(|_| may_lack_zrwa) else { return cut };
    let passed = running.flow.borrow().positions()[member] * raid.layout.policy.position_blocks(&raid.layout);
    passed.min(cut)
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
pub(super) fn note_read(
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
            let is_lacking = |at: &u64| {
                !relocated::is_relocated(raid, zone, member, *at) && !is_behind_end(raid, zone, member, *at)
            };
            raid.zone_records.unreadable.add(zone.0, member, blocks.filter(is_lacking));
        }
        Err(_) => {}
    }
}

/// Whether a block of a member's part of a full zone was never written, since the zone was finished in the middle of its
/// stripe.
pub fn is_behind_end(raid: &Raid, zone: ZoneIndex, member: usize, at: u64) -> bool {
    if raid.zones.running(zone).is_some() || raid.zones.state(zone) != ZoneState::Full {
        return false;
    }
    let (layout, row) = (&raid.layout, at / raid.layout.chunk_blocks);
    let in_stripe = raid.finished_tail(zone).saturating_sub(row * layout.stripe_blocks());
    let from_here = match layout.role(member, row) {
        Role::Data(index) => in_stripe.saturating_sub(index * layout.chunk_blocks),
        Role::Parity(_) => in_stripe,
    };
    at % layout.chunk_blocks >= from_here
}

/// The first block of `piece` in a member's part of a zone: it is in the row of its stripe.
pub(super) fn first_block(raid: &Raid, piece: ChunkRange) -> u64 {
    piece.stripe * raid.layout.chunk_blocks + piece.from
}

/// Tail and running parities of the stripe that is being written, at `piece`'s offsets; `None` if the parities of
/// the stripe are on the members. Waits until all blocks below this tail are complete: they do not change any more,
/// so writes may continue meanwhile.
///
/// # Errors
/// Unrecovered Read Error, if the zone fails before that: the parities cover blocks that are not on the members.
pub async fn partial_stripe(
    raid: &Raid,
    zone: &Zone,
    piece: ChunkRange,
) -> Result<Option<(u64, Parities)>, DeviceError> {
    let (tail, known) = {
        let flow = zone.flow.borrow();
        let end = (piece.stripe + 1) * raid.layout.stripe_blocks();
        let Some((tail, is_in_memory)) = flow.partial_stripe(end) else { return Ok(None) };
        (tail, is_in_memory.then(|| running_parities(raid, &flow, piece)).transpose()?)
    };
    match zone.wait_until_complete(tail).await {
        true => Ok(known.map(|known| (tail, known))),
        false => Err(Status::UnrecoveredReadError.into()),
    }
}

/// Copies the running parities at `piece`'s offsets; none at an offset at which they may be wrong.
///
/// # Errors
/// Unrecovered Read Error, if they may be wrong at one of several offsets: the blocks are to be decoded one by one. With
/// the policy `zrwa` also if they may be wrong at a single one: there is no parity in the row of the stripe yet.
pub fn running_parities(raid: &Raid, flow: &Flow, piece: ChunkRange) -> Result<Parities, DeviceError> {
    if flow.contradicts(&raid.layout, piece) {
        return match piece.to - piece.from {
            1 if !raid.layout.policy.uses_zrwa() => Ok(Parities::default()),
            _ => Err(Status::UnrecoveredReadError.into()),
        };
    }
    let bytes = piece.from as usize * BLOCK..piece.to as usize * BLOCK;
    let copy = |which: usize| raid.copy(&flow.parities[which][bytes.clone()]);
    Ok(std::array::from_fn(|which| (which < raid.layout.parities).then(|| copy(which))))
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
pub async fn decode_without(
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
                None => Err(submit_read(raid, zone, member, part)),
            };
            pending.push((index, part, read));
        }
        let mut blocks = Vec::new();
        for (index, part, read) in pending {
            let found = match read {
                Ok(parity) => Ok(parity),
                Err((seat, completion)) => take_read(raid, zone, seat, part, completion.await).await,
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

/// Starts to read `piece`'s offsets of the stripe's row from a member, whether it holds data or parity there. The
/// completion is evaluated by [`take_read`], which reads blocks between relocated ones itself.
pub(super) fn submit_read(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    piece: ChunkRange,
) -> (Seat, Completion) {
    let (first, blocks) = (first_block(raid, piece), piece.to - piece.from);
    let completion = match relocated::is_any_relocated(raid, zone, member, first..first + blocks) {
        true => Completion::ready(Done::ok()),
        false => {
            let buf = raid.pool.borrow_mut().take(blocks).freeze();
            io::read(raid, member, zone, first, buf)
        }
    };
    (raid.members.seat(member), completion)
}

/// Reads blocks of a member's part of a zone: relocated ones from memory, the others from the drive.
pub async fn read_around(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    blocks: Range<u64>,
    expected: Expected,
) -> Result<Buf, DeviceError> {
    let mut whole = BufMut::zeroed((blocks.end - blocks.start) as usize * BLOCK);
    let is_relocated = |at: &u64| relocated::is_relocated(raid, zone, member, *at);
    let mut at = blocks.start;
    while at < blocks.end {
        let bytes = (at - blocks.start) as usize * BLOCK;
        if let Some(found) = relocated::get(raid, zone, member, at) {
            whole[bytes..][..BLOCK].copy_from_slice(&found);
            at += 1;
            continue;
        }
        let to = (at..blocks.end).find(is_relocated).unwrap_or(blocks.end);
        let buf = Buf::zeroed((to - at) as usize * BLOCK);
        let done = checksum::read(raid, member, zone, at, expected, buf).await;
        note_read_of(raid, zone, member, at..to, done.result);
        done.result?;
        whole[bytes..][..done.data.len()].copy_from_slice(&done.data);
        at = to;
    }
    Ok(whole.freeze())
}

/// Evaluates the completion of a read of `piece` from a member: records errors, and puts relocated blocks in place.
pub(super) async fn take_read(
    raid: &Raid,
    zone: ZoneIndex,
    seat: Seat,
    piece: ChunkRange,
    done: Done,
) -> Result<Buf, DeviceError> {
    let (member, first) = (seat.member, first_block(raid, piece));
    let blocks = first..first + (piece.to - piece.from);
    let is_read = !done.data.is_empty() || done.result.is_err();
    let done = match !is_read || relocated::is_any_relocated(raid, zone, member, blocks.clone()) {
        true => read_around(raid, zone, member, blocks, Expected::Row)
            .await
            .map_or_else(Done::error, Done::with_data),
        false => {
            let done = checksum::checked(raid, member, zone, first, Expected::Row, done);
            note_read(raid, zone, member, piece, done.result);
            done
        }
    };
    if power::notices_power_loss(raid, 1 << seat.member) {
        power::power_checked(raid).await;
    }
    match done.result {
        // The part may have been lost during the read.
        Ok(()) if !has_piece(raid, zone, seat.member, piece) => Err(Status::UnrecoveredReadError.into()),
        Ok(()) => Ok(done.data),
        Err(error) => {
            read_failed(raid, zone, seat, error);
            Err(error)
        }
    }
}

/// Reads `piece`'s offsets of the stripe's row from a member.
pub async fn read_member(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    piece: ChunkRange,
) -> Result<Buf, DeviceError> {
    if !has_piece(raid, zone, member, piece) {
        return Err(Status::UnrecoveredReadError.into());
    }
    let (seat, completion) = submit_read(raid, zone, member, piece);
    take_read(raid, zone, seat, piece, completion.await).await
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

/// Blocks of complete stripes as read from the members, from block `from` of their parts on.
struct StripeRows {
    from: u64,
    /// By member.
    parts: Vec<Buf>,
}

impl StripeRows {
    /// Decodes blocks of `member`, all in one row, from those of `others` (bits); `false` if these do not suffice.
    fn decode(
        &self,
        layout: &Layout,
        member: usize,
        blocks: Range<u64>,
        others: u32,
        result: &mut BufMut,
    ) -> bool {
        let row = blocks.start / layout.chunk_blocks;
        assert!(
            self.from <= blocks.start && blocks.end <= (row + 1) * layout.chunk_blocks,
            "{blocks:?} of row {row}"
        );
        assert!(others & (1 << member) == 0, "member {member} is decoded from itself");
        let bytes = (blocks.start - self.from) as usize * BLOCK..(blocks.end - self.from) as usize * BLOCK;
        let symbols = layout.symbols(layout.data_chunks());
        let present = each(others).fold(0, |all, other| all | 1 << layout.index(other, row));
        let own = symbols[layout.index(member, row) as usize];
        let Some(recipe) = decode::solve(present, &symbols[..layout.members], own) else { return false };
        let members = recipe.sources().iter().map(|source| layout.member(row, source.stored as u64));
        let sources: Vec<&[u8]> = members.map(|member| &self.parts[member][bytes.clone()]).collect();
        recipe.run(&mut result[bytes], &sources);
        true
    }
}

/// Decodes blocks `from..to` of a member's part, in rows of complete stripes, from all other members. Blocks that
/// cannot be decoded are zeros and are added to `lost`.
pub async fn decode_rows(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    Range { start: from, end: to }: Range<u64>,
    lost: &mut RebuildLoss,
) -> Result<Buf, RebuildStop> {
    power::power_checked(raid).await;
    let (others, losses) = (check_others(raid, zone, member)?, raid.members.losses());
    let pending: Vec<_> = each(others)
        .map(|other| {
            let read = match relocated::is_any_relocated(raid, zone, other, from..to) {
                // Read singly below.
                true => Completion::failed(Status::UnrecoveredReadError),
                false => {
                    let buf = raid.pool.borrow_mut().take(to - from).freeze();
                    io::read(raid, other, zone, from, buf)
                }
            };
            (raid.members.seat(other), read)
        })
        .collect();
    let mut found = StripeRows { from, parts: vec![Buf::default(); raid.members.count()] };
    let mut unreadable: BTreeMap<u64, u32> = BTreeMap::new();
    // An error other than that of an unreadable block: the data may still exist.
    let mut other_error = None;
    for (seat, completion) in pending {
        let mut done = checksum::checked(raid, seat.member, zone, from, Expected::Row, completion.await);
        if relocated::is_any_relocated(raid, zone, seat.member, from..to) {
            done.result = Err(Status::UnrecoveredReadError.into());
        }
        power::notices_power_loss(raid, 1 << seat.member);
        let (data, mut blocks) = match done.result {
            Ok(()) => (done.data, Vec::new()),
            Err(error) => {
                if !relocated::is_any_relocated(raid, zone, seat.member, from..to) {
                    read_failed(raid, zone, seat, error);
                }
                read_singly_from(raid, zone, seat, from..to, &mut other_error).await?
            }
        };
        found.parts[seat.member] = data;
        blocks.extend(raid.zone_records.bad_blocks_among(zone, seat.member, from..to));
        for at in blocks.into_iter().filter(|at| !relocated::is_relocated(raid, zone, seat.member, *at)) {
            *unreadable.entry(at).or_default() |= 1 << seat.member;
        }
    }
    if raid.members.losses() != losses {
        // A part was lost meanwhile: blocks of it may have been read after they were written again.
        return Err(RebuildStop::Again);
    }
    let (layout, mut result) = (&raid.layout, raid.pool.borrow_mut().take(to - from));
    runtime::work((to - from) as u32 * COPY);
    let mut at = from;
    while at < to {
        let end = to.min((at / layout.chunk_blocks + 1) * layout.chunk_blocks);
        found.decode(layout, member, at..end, others, &mut result);
        at = end;
    }
    for (at, unreadable) in unreadable {
        if !found.decode(layout, member, at..at + 1, others & !unreadable, &mut result) {
            if let Some(error) = other_error {
                return Err(error.into());
            }
            result.block_mut(at - from).fill(0);
            lost.add(layout, member, at, each(unreadable));
        }
    }
    found.parts.into_iter().for_each(|part| raid.pool.borrow_mut().give(part));
    Ok(result.freeze())
}

/// The members (bits) that a part of `zone` is rebuilt from: all others that hold their parts, if these are enough.
fn check_others(raid: &Raid, zone: ZoneIndex, member: usize) -> Result<u32, RebuildStop> {
    let others = raid.live(zone) & !(1 << member);
    match raid.members.are_enough(others) && !raid.zones.is_cut(zone) {
        true => Ok(others),
        false => Err(NoPart::TooFewOthers.into()),
    }
}

/// Reads blocks of a member's part one by one, after a read of all has failed. Returns them, and those that are
/// unreadable; `other_error` is set to any other error.
async fn read_singly_from(
    raid: &Raid,
    zone: ZoneIndex,
    seat: Seat,
    blocks: Range<u64>,
    other_error: &mut Option<DeviceError>,
) -> Result<(Buf, Vec<u64>), RebuildStop> {
    let mut data = BufMut::zeroed((blocks.end - blocks.start) as usize * BLOCK);
    let mut unreadable = Vec::new();
    for (place, at) in (0..).zip(blocks) {
        if raid.live(zone) & (1 << seat.member) == 0 {
            // The other members may be enough.
            return Err(RebuildStop::Again);
        }
        if let Some(found) = relocated::get(raid, zone, seat.member, at) {
            data.block_mut(place).copy_from_slice(&found);
            continue;
        }
        let block = Buf::zeroed(BLOCK);
        let done = checksum::read(raid, seat.member, zone, at, Expected::Row, block).await;
        note_read_of(raid, zone, seat.member, at..at + 1, done.result);
        match done.result {
            Ok(()) => data.block_mut(place).copy_from_slice(&done.data),
            Err(error) => {
                read_failed(raid, zone, seat, error);
                unreadable.push(at);
                if !is_unreadable(error) {
                    *other_error = Some(error);
                }
            }
        }
    }
    Ok((data.freeze(), unreadable))
}

/// Decodes a piece of the partial stripe with `decode`: as a whole or, if that fails, block by block. Blocks that
/// cannot be decoded are zeros and are added to `lost`.
pub async fn decode_singly(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    piece: ChunkRange,
    lost: &mut RebuildLoss,
    decode: impl AsyncFn(ChunkRange) -> Result<Buf, DeviceError>,
) -> Result<Buf, RebuildStop> {
    let losses = raid.members.losses();
    // A part was lost meanwhile: blocks of it may have been read after they were written again.
    let as_found = |found| if raid.members.losses() == losses { Ok(found) } else { Err(RebuildStop::Again) };
    if let Ok(found) = decode(piece).await {
        return as_found(found);
    }
    let layout = &raid.layout;
    let mut whole = BufMut::zeroed((piece.to - piece.from) as usize * BLOCK);
    for from in piece.from..piece.to {
        let single = ChunkRange { from, to: from + 1, ..piece };
        match decode(single).await {
            Ok(found) => whole.block_mut(from - piece.from).copy_from_slice(&found),
            Err(error) => {
                let mut others = Vec::new();
                for other in each(check_others(raid, zone, member)?) {
                    let read = read_member(raid, zone, other, single).await;
                    others.extend(read.is_err().then_some(other));
                }
                if !is_unreadable(error) || check_others(raid, zone, member).is_err() {
                    return Err(error.into());
                }
                lost.add(layout, member, piece.stripe * layout.chunk_blocks + from, others);
            }
        }
    }
    as_found(whole.freeze())
}
