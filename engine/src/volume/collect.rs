//! Collection: zones that are mostly out of date are emptied.
//!
//! A victim is read from its start, in large pieces. Each block that an entry of it speaks of is moved if the
//! map still says that it is there, *at the moment in which the move gets its entry*: whatever was written
//! meanwhile is newer, and stays. What is left when the reading ends is nothing; the next checkpoint frees
//! the zone.

use crate::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Status},
    volume::{
        core::{Core, Need, State, read_some},
        format::{FANOUT, GroupHeader, read_group},
        place::{self, GRAINS, Place},
        space::{Who, in_full_zone},
        stream::{MOVED, piece_of},
        victim,
    },
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Dead zones that are worth a checkpoint.
const WORTH: u32 = 4;

/// Collects zones whenever few are free, for ever.
pub async fn collect(core: Rc<Core>) {
    loop {
        let result = match core.next_step() {
            Step::Rest => {
                core.few.wait().await;
                core.check()
            }
            Step::Free => core.request_checkpoint().await,
            Step::Empty(zone) => core.empty(zone).await,
        };
        // A victim that cannot be read is left alone; what is wrong with it is what readers of it are told.
        if result.is_err() && core.check().is_err() {
            return;
        }
    }
}

enum Step {
    Rest,
    /// Dead zones are to be freed.
    Free,
    /// This zone is to be emptied.
    Empty(u32),
}

impl Core {
    fn next_step(&self) -> Step {
        let state = self.state.borrow();
        let (available, dead, low) = (state.space.available(), state.space.dead(), state.space.low_mark());
        if available > low || dead == 0 && state.stalled_at == Some(state.next_number) {
            drop(state);
            self.let_writers_go_on();
            return Step::Rest;
        }
        if dead >= WORTH || dead > 0 && available + dead > low {
            return Step::Free;
        }
        let plan = state.space.plan();
        // Headers of what is moved take room as well.
        let most = (in_full_zone(plan.capacity as u64, plan.group_most) as u32).saturating_sub(1);
        let (choice, shape) = (self.behaviour.choice, (plan.capacity * GRAINS, most * GRAINS));
        let unread = state.space.zones().filter(|(zone, _)| !state.unreadable.contains(zone));
        match victim::choose(unread, choice, shape, state.space.next_segment) {
            Some(zone) => Step::Empty(zone),
            None if dead > 0 => Step::Free,
            None => {
                drop(state);
                self.let_writers_go_on();
                Step::Rest
            }
        }
    }

    /// Writers need no credit. They are told only if they did: those that have no zone would ask again, and so on.
    fn let_writers_go_on(&self) {
        if self.state.borrow_mut().credit.take().is_some() {
            self.room.open();
        }
    }

    /// Moves what is live out of a zone.
    async fn empty(&self, zone: u32) -> Result<(), DeviceError> {
        let (segment, yields) = {
            let mut state = self.state.borrow_mut();
            let record = state.space.zone(zone).record;
            let age = state.space.next_segment.saturating_sub(record.segment);
            if state.space.zone(zone).hot {
                state.lifespan.learn(age);
            }
            state.credit.get_or_insert(0);
            (record.segment, self.capacity().saturating_sub(record.live.div_ceil(GRAINS)))
        };
        let result = self.move_groups(zone, segment, yields).await;
        self.launch(self.moved_stream(), true);
        let mut state = self.state.borrow_mut();
        match result {
            // Somebody else has emptied it, or will.
            _ if state.live_in(zone, segment) == 0 => state.collected_zones += 1,
            Err(error) if error == no_zone() => state.stalled_at = Some(state.next_number),
            _ => _ = state.unreadable.insert(zone),
        }
        result
    }

    pub fn moved_stream(&self) -> usize {
        self.state.borrow().space.plan().index_of(MOVED)
    }

    async fn move_groups(&self, zone: u32, segment: u64, yields: u32) -> Result<(), DeviceError> {
        let capacity = self.capacity();
        let end = self.state.borrow().space.zone(zone).ends_at.unwrap_or(capacity);
        let most = self.device.geometry().max_transfer_blocks.min(capacity);
        let (mut piece, mut piece_at) = (Buf::default(), 0);
        let (mut at, mut earned, mut unreadable) = (0, 0, Ok(()));
        while at < end && self.state.borrow().live_in(zone, segment) > 0 {
            let inside = |offset: u32| (piece_at..piece_at + piece.blocks() as u32).contains(&offset);
            if !inside(at) {
                (piece, piece_at) = (self.read_piece(zone, at, (1, most.min(end - at))).await?, at);
            }
            let header = read_group(block_of(&piece, at - piece_at))
                .filter(|header| header.place.segment == segment && header.is_at(self.mark, at, capacity));
            let Some(header) = header else { return Err(Status::UnrecoveredReadError.into()) };
            let GroupHeader { blocks, entries, .. } = header;
            let there = entries.iter().map(|entry| entry.block).filter(|block| self.has(*block));
            self.fetch(there.map(|block| block / FANOUT as u32), Need::Write).await;
            let mut from = 0;
            for entry in entries {
                let grains = entry.what.grains();
                let place = self.state.borrow().space.piece(zone, at + 1, (from, grains));
                let offset = at + 1 + from / GRAINS;
                let offset_end = offset + place::blocks(place);
                from += grains;
                if grains == 0 || offset_end > end || !self.has(entry.block) {
                    continue;
                }
                if self.may_be_at(entry.block, place) {
                    if offset < piece_at || offset_end > piece_at + piece.blocks() as u32 {
                        let (least, rest) = (offset_end - offset, most.min(end - offset));
                        match self.read_piece(zone, offset, (least, rest)).await {
                            Ok(read) => (piece, piece_at) = (read, offset),
                            // It stays where it is.
                            Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                            Err(error) => {
                                unreadable = Err(error);
                                continue;
                            }
                        }
                    }
                    let bytes =
                        piece_of(&piece, offset - piece_at, place).ok_or(Status::UnrecoveredReadError)?;
                    let moved = self.move_block(entry.block, (place, segment), bytes).await;
                    // A page of the map that cannot be read keeps its own blocks here and no others.
                    match moved {
                        Err(error) if error != no_zone() && self.check().is_ok() => unreadable = Err(error),
                        moved => moved?,
                    }
                }
            }
            at += blocks;
            let earns = (yields as u64 * at.min(capacity) as u64 / capacity as u64) as u32;
            self.earn(earns - earned);
            earned = earns;
        }
        self.earn(yields - earned);
        unreadable
    }

    fn has(&self, block: u32) -> bool {
        (block as u64) < self.identity.blocks
    }

    /// Reads `most` blocks, or the `least` that it takes where others cannot be read.
    async fn read_piece(
        &self,
        zone: u32,
        offset: u32,
        (least, most): (u32, u32),
    ) -> Result<Buf, DeviceError> {
        let lba = Lba(self.device.geometry().start(ZoneIndex(zone)).0 + offset as u64);
        let data = self.state.borrow_mut().pool.take(most as u64).freeze();
        read_some(&*self.device, lba, data, least as u64).await
    }

    /// Whether a block may be there, as far as is known without asking the device.
    fn may_be_at(&self, block: u32, place: Place) -> bool {
        let known = self.state.borrow_mut().map.get(block as u64);
        known.is_none_or(|known| known == place)
    }

    /// Moves a block, if it is still there. A place is one of a life of its zone: it may have been freed and
    /// written anew while somebody waited, with the same block in the same place.
    async fn move_block(
        &self,
        block: u32,
        (place, segment): (Place, u64),
        piece: &[u8],
    ) -> Result<(), DeviceError> {
        loop {
            self.hold((block as u64 / FANOUT) as u32, Need::Write).await?;
            {
                let mut state = self.state.borrow_mut();
                let (zone, _) = state.space.locate(place);
                if state.live_in(zone, segment) == 0 {
                    return Ok(());
                }
                if state.map.get(block as u64) != Some(place) {
                    return Ok(());
                }
                let ticket = state.place(self, block as u64, piece, (MOVED, false));
                drop(state);
                if let Some((index, _)) = ticket {
                    self.tell(index);
                    return Ok(());
                }
            }
            // Zones are lacking: those that are dead have to be freed first.
            self.request_checkpoint().await?;
            let state = self.state.borrow();
            if !state.space.may_begin(Who::Collection) && state.space.dead() == 0 {
                return Err(no_zone());
            }
        }
    }

    /// Writers may write so much more.
    fn earn(&self, blocks: u32) {
        let mut state = self.state.borrow_mut();
        if let Some(credit) = &mut state.credit {
            *credit += blocks as u64;
        }
        drop(state);
        if blocks > 0 {
            self.room.open();
        }
    }
}

/// What becomes of a move that no zone is left for.
fn no_zone() -> DeviceError {
    Status::CapacityExceeded.into()
}

impl State {
    /// What is live of this life of a zone counts for, in grains.
    fn live_in(&self, zone: u32, segment: u64) -> u32 {
        let record = self.space.zone(zone).record;
        if record.segment == segment { record.live } else { 0 }
    }
}

fn block_of(piece: &Buf, index: u32) -> &[u8] {
    &piece[index as usize * BLOCK..][..BLOCK]
}
