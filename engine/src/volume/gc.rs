//! Garbage collection: moves the live blocks out of zones in which most blocks are obsolete.
//!
//! A victim is read from its start to its end, several parts ahead. A block of an entry is moved if the map still has
//! this place for it, *at the moment in which the move gets its entry*: a block that was overwritten meanwhile is not
//! moved. A unit is moved as a whole, or block by block if the blocks that are left take less. At the end nothing in
//! the victim is live; the next checkpoint frees it.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Status},
    evidence::reread_verified,
    runtime::give_way,
    volume::{
        address::{self, Address, GRAINS, Unit},
        core::{Need, VolumeCore},
        format::{EntryKind, FANOUT, GroupEntry, GroupHeader, MOST_BEFORE},
        piece::Patience,
        root::ZoneUse,
        space::{HEAD_ZONES, ZonePurpose},
        state::{Distance, Piece, VolumeState},
        stream::{MOVED, Ticket, piece_of},
        victim,
    },
    zone::{Lba, ZoneIndex},
};
use std::{collections::VecDeque, rc::Rc};

/// Number of dead zones for which a checkpoint is made.
const WORTH: u32 = 4;

/// Maximum number of blocks of a victim in one read: writes queue behind it in the drives.
const PART: u32 = 64;

/// Reads of a victim in flight: busy drives have long latencies.
const AHEAD: usize = 8;

/// Maximum number of groups of moved blocks in flight when the next group of the victim is read.
const MOST_MOVES: u64 = 2;

/// Fraction (1/n) of the yield of a victim that is credited to writers before the victim is read.
const IN_ADVANCE: u32 = 4;

/// Task of garbage collection: collects zones whenever few are free, until writing fails.
pub async fn collect(core: Rc<VolumeCore>) {
    loop {
        let step = next_step(&core);
        let rests = matches!(step, Step::Rest);
        let worked = std::mem::replace(&mut core.state.borrow_mut().collects, !rests);
        if worked && rests {
            let_writers_go_on(&core);
        }
        let result = match step {
            Step::Rest => {
                core.few.wait().await;
                core.check()
            }
            Step::Free => {
                // The checkpoint will free the dead zones: writers are not throttled meanwhile.
                let_writers_go_on(&core);
                core.request_checkpoint().await
            }
            Step::Empty(zone) => empty(&core, zone).await,
        };
        // A victim that cannot be read is skipped; reads of its blocks report the error.
        if result.is_err() && core.check().is_err() {
            return;
        }
    }
}

/// The next step of garbage collection.
enum Step {
    /// Waits until there may be work.
    Rest,
    /// Requests a checkpoint, which frees dead zones.
    Free,
    /// Empties this zone.
    Empty(u32),
}

/// Chooses the next step by the numbers of free and dead zones.
fn next_step(core: &VolumeCore) -> Step {
    // Nothing is written before the first write of a user: the volume may be opened for reading only, or be on an array
    // in deferred-write mode.
    if !core.is_used.get() {
        return Step::Rest;
    }
    let state = core.state.borrow();
    state.space.count_scan();
    // After a refused write one unreadable zone is tried again: it may be readable by now.
    if state.tried < state.refused
        && let Some((zone, _)) = state.space.unreadable().min_by_key(|(_, refused)| *refused)
    {
        return Step::Empty(zone);
    }
    let (available, dead, low) = (state.space.available(), state.space.dead(), state.space.low_mark());
    if available > low || dead == 0 && state.stalled_at == Some(state.next_number) {
        return Step::Rest;
    }
    if dead >= WORTH || dead > 0 && available + dead > low {
        return Step::Free;
    }
    let plan = state.space.plan();
    // A zone with more live data saves nothing, since moved blocks need headers too.
    let most = (plan.in_full_zone() as u32).saturating_sub(1);
    let (choice, shape) = (core.options.choice, (plan.capacity * GRAINS, most * GRAINS));
    let others = state.space.zones().filter(|(zone, _)| !state.space.is_unreadable(*zone));
    match victim::choose(others, choice, shape, state.space.next_segment) {
        Some(zone) => Step::Empty(zone),
        None if dead > 0 => Step::Free,
        None => Step::Rest,
    }
}

/// Whether garbage collection is at work, or has work to do.
pub fn makes_room(core: &VolumeCore) -> bool {
    core.state.borrow().collects || !matches!(next_step(core), Step::Rest)
}

/// Ends the throttling of writers, and wakes them.
fn let_writers_go_on(core: &VolumeCore) {
    core.state.borrow_mut().credit = None;
    core.room.open();
}

/// Moves the live blocks of a victim to other zones, and records the result.
async fn empty(core: &VolumeCore, zone: u32) -> Result<(), DeviceError> {
    let (segment, yields) = {
        let mut state = core.state.borrow_mut();
        let record = state.space.zone(zone).record;
        assert!(
            zone >= HEAD_ZONES && record.state == ZoneUse::ClosedData,
            "zone {zone} is collected while {record:?}"
        );
        let is_open = state.streams.iter().any(|stream| stream.writes(zone));
        assert!(!is_open, "zone {zone} is collected while a stream writes it");
        let age = state.space.next_segment.saturating_sub(record.segment);
        if state.space.zone(zone).hot {
            state.lifespan.learn(age);
        }
        state.credit.get_or_insert(0);
        state.tried = state.refused;
        (record.segment, core.capacity().saturating_sub(record.live.div_ceil(GRAINS)))
    };
    if core.kin.get().is_some() {
        // Otherwise a recovery could find the move of a block without the group that wrote it, and so without the Keep entry
        // in that group.
        core.flush_device().await?;
    }
    let (mut result, mut credited) = (Ok(()), yields);
    loop {
        let before = live_in(&core.state.borrow(), zone, segment);
        let mut victim = Victim::new(core, zone);
        result = result.and(move_groups(core, &mut victim, segment, credited).await);
        victim.end().await;
        // A snapshot may have got a block between the search for it and its move.
        let left = live_in(&core.state.borrow(), zone, segment);
        if core.kin.get().is_none() || result.is_err() || left == 0 || left == before {
            break;
        }
        credited = 0;
    }
    core.launch(moved_stream(core), true);
    let mut state = core.state.borrow_mut();
    match result {
        // Nothing is live in it any more: all blocks were moved or overwritten.
        _ if live_in(&state, zone, segment) == 0 => state.collected_zones += 1,
        Err(error) if error == no_zone() => state.stalled_at = Some(state.next_number),
        _ => {
            let refused = state.tried;
            state.space.could_not_empty(zone, refused);
        }
    }
    result
}

/// Index of the stream of moved blocks.
pub fn moved_stream(core: &VolumeCore) -> usize {
    core.state.borrow().space.plan().index_of(MOVED)
}

/// Moves the live blocks of a victim, group by group, and credits its `yields` blocks to writers as it proceeds.
/// Continues behind unreadable blocks.
///
/// # Errors
/// The last unreadable block or page; a header that cannot be read; no zone for the moved blocks.
async fn move_groups(
    core: &VolumeCore,
    victim: &mut Victim<'_>,
    segment: u64,
    yields: u32,
) -> Result<(), DeviceError> {
    let Victim { zone, end, .. } = *victim;
    let capacity = core.capacity();
    let (mut at, mut unreadable, mut holders) = (0, Ok(()), Vec::new());
    let mut earned = yields / IN_ADVANCE;
    earn(core, earned);
    while at < end && live_in(&core.state.borrow(), zone, segment) > 0 {
        let (header, reread) = read_header(core, victim, (segment, at)).await?;
        let there = header.entries.iter().filter(|entry| entry.kind.grains() > 0 && has(core, entry.block));
        core.fetch(there.map(|entry| entry.block / FANOUT as u32), Need::Write).await;
        for (name, entry, place) in header.pieces(zone * capacity + at) {
            give_way().await;
            let offset = address::block(place) - zone * capacity;
            let offset_end = offset + address::blocks(place);
            if offset_end > end || !has(core, entry.block) {
                continue;
            }
            let name = if has(core, name) { name } else { entry.block };
            find_holders(core, (name, entry), place, &mut holders).await;
            if !holders.is_empty() {
                // Of a damaged header's block the part behind the entries is damaged, too.
                let is_reread = offset == at + header.before && !reread.is_empty();
                let skipped = is_reread as u32;
                let read = match victim.read(offset + skipped, offset_end - offset - skipped).await {
                    Ok(rest) if is_reread => &[&reread[..], rest].concat(),
                    Ok(read) => read,
                    // An unreadable block stays in the victim.
                    Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                    Err(error) => {
                        unreadable = Err(error);
                        continue;
                    }
                };
                let bytes = piece_of(read, 0, place).ok_or(Status::UnrecoveredReadError)?;
                for &block in &holders {
                    let moved = move_piece(core, (block, name.into()), (place, segment), bytes).await;
                    // If a page of the map cannot be read, only the blocks of that page stay in the victim.
                    match moved {
                        Err(error) if error != no_zone() && core.check().is_ok() => unreadable = Err(error),
                        moved => moved?,
                    }
                }
            }
        }
        at += header.blocks;
        wait_for_moves(core).await?;
        let earns = (yields as u64 * at.min(capacity) as u64 / capacity as u64) as u32;
        earn(core, earns.saturating_sub(earned));
        earned = earned.max(earns);
    }
    earn(core, yields - earned);
    unreadable
}

/// Reads the header of the group that begins at offset `at`: the first block, or a trailer. Also returns its block if the
/// device had to reconstruct it; otherwise that is empty.
///
/// # Errors
/// When it cannot be read.
async fn read_header(
    core: &VolumeCore,
    victim: &mut Victim<'_>,
    (segment, at): (u64, u32),
) -> Result<(GroupHeader, Vec<u8>), DeviceError> {
    let most = MOST_BEFORE.min(victim.end - 1 - at);
    for before in 0..=most {
        let read = victim.read(at + before, 1).await;
        match read.map(|block| core.group_at(block, segment, (at, before))) {
            Ok(Some(header)) => return Ok((header, Vec::new())),
            Err(DeviceError::Gone) => return Err(DeviceError::Gone),
            Ok(None) | Err(_) => {}
        }
    }
    for before in 0..=most {
        let verify = |block: &[u8]| Some((core.group_at(block, segment, (at, before))?, block.to_vec()));
        if let Some(found) = reread_verified(&*core.device, victim.lba(at + before), verify).await {
            core.reread.set(core.reread.get() + 1);
            return Ok(found);
        }
    }
    let header = core.trailer_in_note(victim.zone, segment, (at, victim.end));
    Ok((header.ok_or(Status::UnrecoveredReadError)?, Vec::new()))
}

/// Whether the volume has this logical block.
fn has(core: &VolumeCore, block: u32) -> bool {
    (block as u64) < core.blocks.get()
}

/// Finds the first blocks of the units that may be at `place`, where a unit was written to the block `name`, and last
/// moved for the block of `entry`: the map says so, or the page is not in memory.
pub async fn find_holders(
    core: &VolumeCore,
    (name, entry): (u32, &GroupEntry),
    place: Address,
    holders: &mut Vec<u64>,
) {
    core.holders(name.into(), entry.block.into(), holders);
    if holders.len() > 1 {
        core.fetch(holders.iter().map(|block| (block / FANOUT) as u32), Need::Write).await;
    }
    let mut state = core.state.borrow_mut();
    holders.retain(|first| {
        let mut blocks = *first..first + entry.kind.blocks();
        blocks.any(|block| state.map.get(block).is_none_or(|known| known == place))
    });
}

/// Moves the live blocks of the unit that begins with `block`, was written to the block `name`, and is stored at `place`.
/// `segment` is the segment that the zone had when it was read: during a wait the zone may have been freed and written
/// anew, with the same block at the same place.
pub async fn move_piece(
    core: &VolumeCore,
    (block, name): (u64, u64),
    (place, segment): (Address, u64),
    piece: &[u8],
) -> Result<(), DeviceError> {
    let name = Distance::between(block, name);
    loop {
        core.hold((block / FANOUT) as u32, Need::Write).await?;
        {
            let mut state = core.state.borrow_mut();
            let (zone, _) = state.space.locate(place);
            if live_in(&state, zone, segment) == 0 {
                return Ok(());
            }
            let there = state.there(block, place);
            if there == 0 {
                return Ok(());
            }
            let piece = Piece { bytes: piece, unit: address::unit(place), there };
            let is_shorter = piece.unit == Unit::BLOCK || piece.grains() < GRAINS * there.count_ones();
            // A squeezed block would lie across two blocks of the device.
            let fits = is_shorter && piece.unit <= state.space.plan().unit && !piece.is_squeezed();
            let moved = match fits {
                true => move_to(core, &mut state, block, piece, name),
                false => move_blocks(core, &mut state, (block, name), piece)?,
            };
            if let Some((index, _)) = moved {
                let target = state.streams[index].open().map(|open| open.zone);
                assert_ne!(target, Some(zone), "the zone that blocks of zone {zone} are moved to");
            }
            drop(state);
            if let Some((index, _)) = moved {
                core.wake_stream(index);
                return Ok(());
            }
        }
        // No zone is left, and a checkpoint may free dead ones.
        core.request_checkpoint().await?;
        let state = core.state.borrow();
        if !state.space.may_begin(ZonePurpose::Collection) && state.space.dead() == 0 {
            return Err(no_zone());
        }
    }
}

/// Moves a unit that was written to the block at a distance from `block`. `None` if there is no room at present.
fn move_to(
    core: &VolumeCore,
    state: &mut VolumeState,
    block: u64,
    piece: Piece<'_>,
    name: Distance,
) -> Option<Ticket> {
    let named = Some((name.of(block), EntryKind::Named)).filter(|(named, _)| *named != block);
    state.place(core.log(), block, piece, (MOVED, false, 0), named.into_iter())
}

/// Moves the live blocks of a unit as units of one block each. `None` if there is not room for all of them at present.
fn move_blocks(
    core: &VolumeCore,
    state: &mut VolumeState,
    (first, name): (u64, Distance),
    piece: Piece<'_>,
) -> Result<Option<Ticket>, DeviceError> {
    let mut blocks = vec![0; piece.unit.bytes()];
    let made = core.decoder.borrow_mut().unpack(piece.bytes, &mut blocks);
    if made.is_none() && piece.is_squeezed() {
        // It is damaged, as a whole block might be, which would be moved too; otherwise its zone could not be emptied.
        return Ok(move_to(core, state, first, piece, name));
    }
    made.ok_or(Status::UnrecoveredReadError)?;
    let mut moved = None;
    for (block, bytes) in (first..).zip(blocks.chunks_exact(BLOCK)) {
        if piece.there >> (block - first) & 1 == 0 {
            continue;
        }
        // As a shorter piece a squeezed block, which counts for a whole one, could not be overwritten in a full volume.
        let codec = state.codec.filter(|_| !piece.is_squeezed());
        let packed = codec.map(|codec| {
            let mut encoder = core.encoder.borrow_mut();
            encoder.get_or_insert_default().pack(
                (block, bytes),
                (codec, Unit::BLOCK),
                &mut Patience::default(),
            )
        });
        let shorter = packed.as_ref().and_then(|packed| packed.piece(0));
        let block_piece = Piece::all(shorter.unwrap_or((bytes, Unit::BLOCK)));
        moved = move_to(core, state, block, block_piece, name);
        if moved.is_none() {
            break;
        }
    }
    Ok(moved)
}

/// Waits until at most [`MOST_MOVES`] groups of moved blocks are in flight: user writes queue behind them, and they
/// take memory.
async fn wait_for_moves(core: &VolumeCore) -> Result<(), DeviceError> {
    let index = moved_stream(core);
    let closed = core.state.borrow().streams[index].closed();
    core.wait_landed((index, closed.saturating_sub(MOST_MOVES))).await
}

/// Adds `blocks` blocks to the credit of writers.
fn earn(core: &VolumeCore, blocks: u32) {
    let mut state = core.state.borrow_mut();
    if let Some(credit) = &mut state.credit {
        *credit += blocks as u64;
    }
    drop(state);
    if blocks > 0 {
        core.room.open();
    }
}

/// The error of a move for which no zone is left.
fn no_zone() -> DeviceError {
    Status::CapacityExceeded.into()
}

/// Live grains of a zone if it is still of this segment; otherwise 0. A zone of the map has no segment of groups.
pub fn live_in(state: &VolumeState, zone: u32, segment: u64) -> u32 {
    let record = state.space.zone(zone).record;
    if record.segment == segment && !record.state.is_of_map() { record.live } else { 0 }
}

/// Sequential reader of a victim, with read-ahead in parts of `blocks` blocks.
struct Victim<'c> {
    core: &'c VolumeCore,
    zone: u32,
    /// End of the written blocks.
    end: u32,
    /// Blocks of a part; the last part may be shorter.
    blocks: u32,
    /// Reads of parts in flight, in order.
    ahead: VecDeque<Completion>,
    /// Number of the next part to submit, from 0.
    next: u32,
    /// Number of the current part, from 1; 0 before the first one.
    current: u32,
    /// Data of the current part; empty if it cannot be read as a whole.
    part: Buf,
    /// Buffer of [`Victim::read`] for blocks that lie in two parts, or were read individually because their part cannot
    /// be read.
    alone: Vec<u8>,
}

impl<'c> Victim<'c> {
    fn new(core: &'c VolumeCore, zone: u32) -> Victim<'c> {
        let most = core.device.geometry().max_transfer_blocks.min(core.capacity()).min(PART);
        let end = core.state.borrow().space.zone(zone).ends_at.unwrap_or(core.capacity());
        let (part, alone) = Default::default();
        Victim { core, zone, end, blocks: most, ahead: VecDeque::new(), next: 0, current: 0, part, alone }
    }

    /// Reads blocks from `offset` on, which is mostly not below the last block of the previous call.
    ///
    /// # Errors
    /// When these blocks cannot be read; other unreadable blocks of the part do not matter.
    async fn read(&mut self, offset: u32, blocks: u32) -> Result<&[u8], DeviceError> {
        self.alone.clear();
        let (mut at, end) = (offset, offset + blocks);
        while at < end {
            let part = at / self.blocks + 1;
            // A trailer, or blocks in which none was found, may lie in the part behind that of the pieces.
            let is_behind = part < self.current;
            if !is_behind {
                self.turn_to(part).await?;
            }
            let here = at % self.blocks;
            let count = (end - at).min(self.blocks - here);
            let (from, length) = (here as usize * BLOCK, count as usize * BLOCK);
            if is_behind || self.part.len() < from + length {
                let done = self.core.device.submit(self.command(offset, blocks)).await;
                done.result?;
                self.alone.clear();
                self.alone.extend_from_slice(&done.data);
                return Ok(&self.alone);
            }
            if count == blocks {
                return Ok(&self.part[from..from + length]);
            }
            self.alone.extend_from_slice(&self.part[from..from + length]);
            at += count;
        }
        Ok(&self.alone)
    }

    /// Makes the part with this number, from 1, the current one, and reads ahead.
    async fn turn_to(&mut self, wanted: u32) -> Result<(), DeviceError> {
        while self.current < wanted {
            self.read_ahead();
            let Some(part) = self.ahead.pop_front() else { return Err(Status::InternalError.into()) };
            let done = part.await;
            self.current += 1;
            self.core.state.borrow_mut().pool.give(std::mem::take(&mut self.part));
            match done.result {
                Ok(()) => self.part = done.data,
                Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                Err(_) => {}
            }
        }
        self.read_ahead();
        Ok(())
    }

    /// Waits for the reads in flight, so that the zone may be reset.
    async fn end(self) {
        let Victim { core, part, ahead, .. } = self;
        core.state.borrow_mut().pool.give(part);
        for part in ahead {
            let read = part.await.data;
            core.state.borrow_mut().pool.give(read);
        }
    }

    /// Submits reads until [`AHEAD`] parts are in flight.
    fn read_ahead(&mut self) {
        while self.ahead.len() < AHEAD && self.next * self.blocks < self.end {
            let from = self.next * self.blocks;
            let command = self.command(from, self.blocks.min(self.end - from));
            self.ahead.push_back(self.core.device.submit(command));
            self.next += 1;
        }
    }

    fn lba(&self, offset: u32) -> Lba {
        Lba(self.core.device.geometry().start(ZoneIndex(self.zone)).0 + offset as u64)
    }

    fn command(&self, offset: u32, blocks: u32) -> Command {
        Command::read(self.lba(offset), self.core.state.borrow_mut().pool.take(blocks as u64).freeze())
    }
}
