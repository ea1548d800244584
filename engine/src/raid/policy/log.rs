//! RAIZN: partial parity in the members' metadata logs, for drives without a ZRWA.
//!
//! The members' zones are written at their write pointers only. So write pointers are exact, no flush,
//! witness or logged tail is needed, and partial parity cannot lie among the data: a slot is a record in
//! the metadata log of the slot's member. The parity of a stripe grows in its row with the stripe's last
//! chunk.
//!
//! **The tail** is the end of the longest run of blocks, from the start of the zone, each of which is on
//! its member or, if that member is missing, can be decoded ([`decide`]).
//!
//! **Burned blocks.** After a crash some members may hold blocks beyond the tail, which cannot be taken
//! back. They are burned: whatever the zone has to hold there later goes to the member's metadata log as
//! *relocated* blocks, and is read from memory, until the zone is reset. So that there are few, no
//! stripe is begun before the one [`IN_FLIGHT_STRIPES`] before it is safe; and once half of a log is taken
//! up by them, a member does without its part of a zone until that is rebuilt.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode::{self, Recipe, Sum},
    device::{Command, Completion},
    format::record::{Burned, ParityRecord, RELOCATED, Record},
    raid::{
        Canary,
        core::{Core, Seat},
        error::ArrayError,
        geometry::{Layout, MAX_MEMBERS, MAX_PARITIES, Place, Role},
        metalog::{checkpoint_blocks, log_blocks},
        policy::{
            Policy,
            zrwa::{Refusal, tail_slots},
        },
        recover::{Held, Tail, Verdict, ZoneView},
        zone::{
            read::Piece,
            write::{Flow, Round, Zone, blank_parities},
        },
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Stripes of a zone that are in flight at once, at most.
pub const IN_FLIGHT_STRIPES: u64 = 2;

/// The write pointer of `member`, in blocks, that goes with a tail at `tail_blocks`.
pub fn position(layout: &Layout, member: usize, tail_blocks: u64) -> u64 {
    let (stripe, covered) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
    let index = match layout.role(member, stripe) {
        Role::Data(index) => index,
        // Grows with the last chunk.
        Role::Parity(_) => layout.data_chunks() - 1,
    };
    let chunk = layout.chunk_blocks;
    stripe * chunk + covered.saturating_sub(index * chunk).min(chunk)
}

/// Where the data ends, in blocks, that `member` has of a zone with a tail at `tail_blocks`.
fn data_end(layout: &Layout, member: usize, tail_blocks: u64) -> u64 {
    let mut end = position(layout, member, tail_blocks);
    let is_parity = |block| matches!(layout.role(member, block / layout.chunk_blocks), Role::Parity(_));
    while end > 0 && is_parity(end - 1) {
        end = (end - 1) / layout.chunk_blocks * layout.chunk_blocks;
    }
    end
}

/// Divides `data`, for block `at` of a member whose write pointer is at `position`, in what is for
/// burned blocks and what can be written, with its place; moves the write pointer.
pub fn split(position: &mut u64, at: u64, data: Buf) -> (Option<Buf>, Option<(u64, Buf)>) {
    let (wp, end) = (*position, at + data.blocks());
    *position = wp.max(end);
    if at >= wp {
        (None, Some((at, data)))
    } else if end <= wp {
        (Some(data), None)
    } else {
        let rest = data.slice_blocks(wp - at..end - at);
        (Some(data.slice_blocks(0..wp - at)), Some((wp, rest)))
    }
}

/// What a member holds of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub wp_blocks: u64,
    /// Blocks below that are burned and not relocated.
    pub gaps: BTreeSet<u64>,
    /// Blocks below that the drive could not read.
    pub unreadable: BTreeSet<u64>,
}

impl Part {
    fn holds(&self, block: u64) -> bool {
        block < self.wp_blocks && !self.gaps.contains(&block) && !self.unreadable.contains(&block)
    }

    /// Everything below is held.
    fn whole(&self) -> u64 {
        let lacking = self.gaps.first().into_iter().chain(self.unreadable.first());
        lacking.fold(self.wp_blocks, |whole, block| whole.min(*block))
    }
}

/// What is known of a zone after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// By member; `None` if it is missing or its part of the zone cannot be relied on.
    pub parts: Vec<Option<Part>>,
    /// Logged partial parity: stripe, block in the chunk, chunk of the slot, number of the parity.
    pub slots: BTreeSet<(u64, u64, u64, usize)>,
    /// Up to where a process that died had answered, as far as that is known.
    pub told_blocks: u64,
}

impl Evidence {
    fn holds(&self, member: usize, block: u64) -> bool {
        self.parts[member].as_ref().is_some_and(|part| part.holds(block))
    }

    /// Whether `block` of chunk `index` of `stripe` is there.
    fn has(&self, layout: &Layout, stripe: u64, index: u64, block: u64) -> bool {
        self.holds(layout.member(stripe, index), stripe * layout.chunk_blocks + block)
    }

    /// What there is at `block` of the chunks of `stripe`.
    fn column(&self, layout: &Layout, stripe: u64, block: u64) -> Column {
        let k = layout.data_chunks();
        let mut column = Column::default();
        for index in (0..layout.members as u64).filter(|index| self.has(layout, stripe, *index, block)) {
            let sum = layout.symbols(k)[index as usize];
            column.push(Stored::Row(index), sum);
        }
        for (_, _, last, which) in self.slots.range((stripe, block, 0, 0)..(stripe, block + 1, 0, 0)) {
            column.push(Stored::Slot(*last, *which), Sum::parity(*which, *last as usize + 1));
        }
        column
    }
}

/// Where a symbol of a column is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// In the row of the stripe, on the member of this index.
    Row(u64),
    /// In the log of the member of this slot: chunk, and number of the parity.
    Slot(u64, usize),
}

/// What there is of one block of all chunks of a stripe.
#[derive(Default)]
struct Column {
    stored: Vec<Stored>,
    sums: Vec<Sum>,
}

impl Column {
    fn push(&mut self, stored: Stored, sum: Sum) {
        // More than can be told apart are never there: slots of a stripe, at one block, and its members.
        if self.stored.len() < decode::MAX_STORED {
            self.stored.push(stored);
            self.sums.push(sum);
        }
    }

    fn solve(&self, wanted: Sum) -> Option<Recipe> {
        decode::solve(u128::MAX, &self.sums, wanted)
    }
}

/// Where the zone ended: blocks of the logical zone that are there or can be decoded with the members
/// that are. At least everything that was promised; or a refusal.
pub fn decide(layout: &Layout, evidence: &Evidence) -> Result<u64, Refusal> {
    let parts = || evidence.parts.iter().flatten();
    let (present, needed) = (parts().count(), layout.fewest_members());
    let begun = parts().any(|part| part.wp_blocks > 0);
    if present < needed {
        // Also if nothing shows that the zone was begun: the others may have all there is.
        return Err(Refusal::TooFew { present, members: layout.members, needed });
    }
    // Rows that all have are there, whatever a missing member has.
    let rows = parts().map(Part::whole).min().unwrap_or(0) / layout.chunk_blocks;
    let mut tail_blocks = rows * layout.stripe_blocks();
    while tail_blocks < layout.capacity_blocks() {
        let stripe = tail_blocks / layout.stripe_blocks();
        let (index, block) = layout.chunk_of(tail_blocks % layout.stripe_blocks());
        let found = match &evidence.parts[layout.member(stripe, index)] {
            Some(part) if !part.unreadable.contains(&(stripe * layout.chunk_blocks + block)) => {
                evidence.has(layout, stripe, index, block)
            }
            _ => evidence.column(layout, stripe, block).solve(Sum::data(index as usize)).is_some(),
        };
        if !found {
            let at = stripe * layout.chunk_blocks + block;
            let is_unknown =
                |part: &Option<Part>| part.as_ref().is_none_or(|part| part.unreadable.contains(&at));
            if evidence.parts.iter().filter(|part| is_unknown(part)).count() > layout.parities {
                // Something may be here although nothing shows it.
                return Err(Refusal::Lacking { member: layout.member(stripe, index) });
            }
            break;
        }
        tail_blocks += 1;
    }
    if begun && evidence.told_blocks > tail_blocks {
        return Err(Refusal::Short { told_blocks: evidence.told_blocks, tail_blocks });
    }
    let limit = (tail_blocks / layout.stripe_blocks() + layout.distance) * layout.chunk_blocks;
    for (member, part) in evidence.parts.iter().enumerate() {
        let wp_blocks = part.as_ref().map_or(0, |part| part.wp_blocks);
        if wp_blocks > limit {
            return Err(Refusal::Ahead { member, wp_blocks, tail_blocks });
        }
    }
    // A stripe is begun when all have passed the row `distance` before it.
    let begun = parts().map(|part| part.wp_blocks).max().unwrap_or(0).div_ceil(layout.chunk_blocks);
    for (member, part) in evidence.parts.iter().enumerate() {
        let Some(Part { wp_blocks, .. }) = *part else { continue };
        if wp_blocks / layout.chunk_blocks + layout.distance < begun {
            return Err(Refusal::Behind { member, wp_blocks, tail_blocks });
        }
    }
    Ok(tail_blocks)
}

/// See `Policy::chunks_to_claim`.
pub fn chunks_to_claim(layout: &Layout, flow: &Flow) -> u64 {
    let chunks = flow.complete / layout.chunk_blocks;
    chunks - chunks % layout.data_chunks()
}

/// See `Policy::settle`.
pub async fn settle(core: &Core, zone: &Zone, round: &Round) -> u64 {
    core.barrier(core.live(zone.index)).await;
    if round.wanted { round.complete } else { 0 }
}

/// See `Policy::window_rows`.
pub fn window_rows(layout: &Layout, flow: &Flow) -> u64 {
    (flow.claimed / layout.data_chunks() + layout.distance).min(layout.rows)
}

impl Core {
    /// As [`Core::judge`]: looks at one zone and decides. Notes which blocks are burned.
    pub async fn judge_log(&self, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        for (member, _) in view.info.iter().enumerate().filter(|(_, info)| info.is_some()) {
            // Which of the relocated blocks were in the part of its log that is gone nobody knows.
            if self.log_has_holes(view.zone, member)
                && !self.burned_of(view.zone, view.record.epoch, member).is_empty()
            {
                view.record.lost |= 1 << member;
            }
        }
        self.check_ended(view)?;
        let (layout, zone, record) = (&self.layout, view.zone, *view.record);
        let trusted = |member: usize| record.lost & (1 << member) == 0;
        let present = || view.info.iter().enumerate().filter_map(|(m, info)| Some((m, info.as_ref()?)));
        let full = |info: &ZoneInfo| info.state == ZoneState::Full;
        let burned = self.burned.borrow().iter().any(|b| b.zone == zone.0);
        let all_full = present().all(|(m, info)| !trusted(m) || full(info));
        if all_full && (!burned || record.finished.is_some()) && present().any(|(m, _)| trusted(m)) {
            return Ok(Verdict::Full);
        }
        if record.finished == Some(0) {
            return Ok(Verdict::Finish(None));
        }
        let mut evidence = Evidence { told_blocks: view.answered_blocks, ..Evidence::default() };
        for (member, info) in view.info.iter().enumerate() {
            let trusted = info.as_ref().filter(|_| trusted(member));
            let part = trusted.map(|info| self.part_of(zone, record.epoch, member, info));
            if part.is_some()
                && let Some(log) = &*self.members[member].log.borrow()
            {
                let live = log.live.borrow();
                for (stripe, index, block) in live.parity.of_zone(zone.0, record.epoch) {
                    let which = layout.slot_of(member, stripe, index);
                    evidence.slots.extend(which.map(|which| (stripe, block, index, which)));
                }
            }
            evidence.parts.push(part);
        }
        let mut positions = [0; MAX_MEMBERS];
        for (position, part) in positions.iter_mut().zip(&evidence.parts) {
            *position = part.as_ref().map_or(0, |part| part.wp_blocks);
        }
        let mut blocks = match record.finished {
            Some(tail) => tail,
            // Without a member that was there, what it lacks may be decoded.
            None => decide(layout, &evidence)?.min(view.told_end.unwrap_or(u64::MAX)),
        };
        if record.finished.is_some() {
            // What a member that was finished reads as beyond its part is nothing.
            for (member, part) in evidence.parts.iter_mut().enumerate() {
                if let Some(part) = part {
                    part.wp_blocks = part.wp_blocks.min(position(layout, member, blocks));
                }
            }
            // All data was on the members when the finish was promised.
            for (member, part) in evidence.parts.iter_mut().enumerate() {
                let end = data_end(layout, member, blocks);
                if part.take_if(|part| part.wp_blocks < end).is_some() {
                    view.record.lost |= 1 << member;
                }
            }
            let (present, needed) = (evidence.parts.iter().flatten().count(), layout.fewest_members());
            if present < needed {
                return Err(Refusal::TooFew { present, members: layout.members, needed });
            }
        }
        let (held, running) = loop {
            match self.gather(view, &mut evidence, blocks).await {
                Ok(found) => break found,
                Err(refusal) if record.finished.is_some() => return Err(refusal),
                // What cannot be decoded was never promised, if there are enough who could say so.
                Err(refusal) => match decide(layout, &evidence)? {
                    less if less < blocks => blocks = less,
                    _ => return Err(refusal),
                },
            }
        };
        if record.finished.is_none() {
            self.check_holes(zone, &evidence, blocks)?;
        }
        if blocks == 0 {
            let leftovers = present().any(|(m, info)| match info.state {
                ZoneState::Empty => !trusted(m),
                ZoneState::Offline | ZoneState::ReadOnly => false,
                _ => true,
            });
            return Ok(if leftovers { Verdict::Reset } else { Verdict::Empty });
        }
        if record.finished.is_none() {
            self.burn(zone, record.epoch, &evidence, blocks);
        }
        if all_full && blocks == layout.capacity_blocks() && held.is_empty() {
            return Ok(Verdict::Full);
        }
        let tail = Tail { blocks, positions, parities: running, revived: 0, held };
        Ok(if record.finished.is_some() { Verdict::Finish(Some(tail)) } else { Verdict::Open(tail) })
    }

    /// What is lacking of the parity of complete stripes below a tail at `tail_blocks`, and the running
    /// parity of the stripe of the tail.
    async fn gather(
        &self,
        view: &ZoneView<'_>,
        evidence: &mut Evidence,
        tail_blocks: u64,
    ) -> Result<(Vec<Held>, [BufMut; MAX_PARITIES]), Refusal> {
        let layout = &self.layout;
        let mut held = Vec::new();
        // As it was: blocks that turn out to be unreadable on the way are not lacking.
        for (member, part) in evidence.parts.clone().into_iter().enumerate() {
            let Some(part) = part else { continue };
            let is_lacking = |at: &u64| !part.holds(*at) && !part.unreadable.contains(at);
            for at in (part.whole()..position(layout, member, tail_blocks)).filter(is_lacking) {
                let (stripe, block) = (at / layout.chunk_blocks, at % layout.chunk_blocks);
                let role = layout.role(member, stripe);
                if !matches!(role, Role::Parity(_)) {
                    continue;
                }
                let data = self.sum_of(view, evidence, (stripe, block), layout.sum(role)).await?;
                let lba = Lba(self.start(member, view.zone).0 + at);
                held.push(Held { member, lba, data, oob: Buf::default() });
            }
        }
        let mut running = blank_parities(layout);
        let (stripe, covered) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
        for block in 0..layout.chunk_blocks.min(covered) {
            let chunks = (covered - block).div_ceil(layout.chunk_blocks);
            for (which, running) in running.iter_mut().enumerate().take(layout.parities) {
                let wanted = Sum::parity(which, chunks as usize);
                let found = self.sum_of(view, evidence, (stripe, block), wanted).await?;
                running.block_mut(block).copy_from_slice(&found);
            }
        }
        Ok((held, running))
    }

    /// Whether something that the log of `member` had of `zone` could not be read.
    pub fn log_has_holes(&self, zone: ZoneIndex, member: usize) -> bool {
        let record = self.zones.borrow()[zone.0 as usize];
        self.members[member].log.borrow().as_ref().is_some_and(|log| {
            let live = log.live.borrow();
            live.holes || record.waits != 0 && live.incomplete.get(&zone.0) == Some(&record.epoch)
        })
    }

    /// Refuses a tail that ends where a missing member may have had more, and the partial parity that
    /// would show it may have been in a hole of another member's log.
    fn check_holes(&self, zone: ZoneIndex, evidence: &Evidence, tail_blocks: u64) -> Result<(), Refusal> {
        let layout = &self.layout;
        let (stripe, at) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
        let (index, _) = layout.chunk_of(at);
        if stripe == layout.rows || evidence.parts[layout.member(stripe, index)].is_some() {
            return Ok(());
        }
        for last in index..layout.data_chunks() - 1 {
            // As many logs that are whole as there are chunks lacking would have the slots, if there were any.
            let lacks = |chunk: &u64| evidence.parts[layout.member(stripe, *chunk)].is_none();
            let lacking = (0..=last).filter(lacks).count();
            let holders = (0..layout.parities).map(|which| layout.slot(stripe, last, which).0);
            let holders = holders.filter(|member| evidence.parts[*member].is_some());
            let (holed, whole): (Vec<_>, Vec<_>) =
                holders.partition(|member| self.log_has_holes(zone, *member));
            if let Some(member) = holed.first().copied().filter(|_| whole.len() < lacking) {
                return Err(Refusal::Log { member });
            }
        }
        Ok(())
    }

    /// What `member` holds of a zone that looks like `info`.
    fn part_of(&self, zone: ZoneIndex, epoch: u64, member: usize, info: &ZoneInfo) -> Part {
        let used_blocks = self.layout.rows * self.layout.chunk_blocks;
        let wp_blocks = match info.state {
            ZoneState::Full => used_blocks,
            ZoneState::Empty => 0,
            _ => info.wp_blocks.min(used_blocks),
        };
        let mut part = Part { wp_blocks, ..Part::default() };
        if self.canary != Some(Canary::BurnedBelieved) {
            let burned = self.burned_of(zone, epoch, member);
            part.gaps = burned.into_iter().flatten().filter(|at| *at < wp_blocks).collect();
        }
        if let Some(log) = &*self.members[member].log.borrow() {
            for (stripe, _, block) in log.live.borrow().relocated.of_zone(zone.0, epoch) {
                part.gaps.remove(&(stripe * self.layout.chunk_blocks + block));
            }
        }
        part
    }

    /// The burned blocks of a member's part of a zone.
    fn burned_of(&self, zone: ZoneIndex, epoch: u64, member: usize) -> Vec<Range<u64>> {
        let burned = self.burned.borrow();
        let own = burned.iter().filter(|b| (b.zone, b.epoch, b.member as usize) == (zone.0, epoch, member));
        own.map(|b| b.from..b.to).collect()
    }

    /// Notes as burned what members hold beyond a tail at `tail_blocks`.
    fn burn(&self, zone: ZoneIndex, epoch: u64, evidence: &Evidence, tail_blocks: u64) {
        let mut burned = self.burned.borrow_mut();
        for (member, part) in evidence.parts.iter().enumerate() {
            let Some(part) = part else { continue };
            let (mut from, to) = (position(&self.layout, member, tail_blocks), part.wp_blocks);
            if from >= to {
                continue;
            }
            burned.retain(|b| {
                let joins = (b.zone, b.member as usize) == (zone.0, member) && b.to >= from;
                if joins {
                    from = from.min(b.from);
                }
                !joins
            });
            burned.push(Burned { zone: zone.0, member: member as u32, epoch, from, to });
        }
    }

    /// A sum of the data at `block` of a stripe, all of which is there or can be decoded. What cannot be read is
    /// taken for missing.
    async fn sum_of(
        &self,
        view: &ZoneView<'_>,
        evidence: &mut Evidence,
        (stripe, block): (u64, u64),
        wanted: Sum,
    ) -> Result<Buf, Refusal> {
        let layout = &self.layout;
        'again: loop {
            let column = evidence.column(layout, stripe, block);
            let Some(recipe) = column.solve(wanted) else {
                let present = evidence.parts.iter().flatten().count();
                return Err(Refusal::TooFew { present, members: layout.members, needed: layout.members });
            };
            let mut blocks = Vec::new();
            for source in recipe.sources() {
                let (member, at) = match column.stored[source.stored as usize] {
                    Stored::Slot(index, which) => {
                        let Some(slot) = self.logged(view, (stripe, index, which), block) else {
                            evidence.slots.remove(&(stripe, block, index, which));
                            continue 'again;
                        };
                        blocks.push(slot);
                        continue;
                    }
                    Stored::Row(index) => {
                        (layout.member(stripe, index), stripe * layout.chunk_blocks + block)
                    }
                };
                let lba = Lba(self.start(member, view.zone).0 + at);
                let seat = self.seat(member);
                let read = self.submit(member, Command::read(lba, Buf::zeroed(BLOCK))).await;
                let read = read.result.is_ok().then_some(read.data);
                let read = read.filter(|_| !self.has_hole(view.zone, member, at..at + 1));
                let Some(data) = read.and_then(|data| self.overlay(view.zone, seat, at, data)) else {
                    if let Some(part) = &mut evidence.parts[member] {
                        part.unreadable.insert(at);
                    }
                    continue 'again;
                };
                blocks.push(data);
            }
            let mut result = BufMut::zeroed(BLOCK);
            recipe.run(&mut result, &blocks);
            return Ok(result.freeze());
        }
    }

    /// Logged partial parity: of a slot of chunk `index`.
    fn logged(
        &self,
        view: &ZoneView<'_>,
        (stripe, index, which): (u64, u64, usize),
        block: u64,
    ) -> Option<Buf> {
        let (member, _) = self.layout.slot(stripe, index, which);
        let log = self.members[member].log.borrow().clone()?;
        let live = log.live.borrow();
        live.parity.get(view.zone.0, view.record.epoch, stripe, index, block).map(|data| Buf::copy_of(data))
    }

    /// What of the logs matters to zones as they go on: the checkpoints of this assembly have nothing
    /// else. Partial parity of what was rolled back would be wrong later; what decodes the tails, whoever
    /// will be missing, has to be there.
    pub fn keep_of_logs(&self, verdicts: &[(ZoneIndex, Verdict)]) -> Result<(), ArrayError> {
        let layout = &self.layout;
        let (mut tails, mut offline) = (BTreeMap::new(), BTreeSet::new());
        for (zone, verdict) in verdicts {
            match verdict {
                Verdict::Offline(_) => _ = offline.insert(zone.0),
                Verdict::Open(tail) | Verdict::Finish(Some(tail)) => _ = tails.insert(zone.0, Some(tail)),
                Verdict::Full => _ = tails.insert(zone.0, None),
                Verdict::Empty | Verdict::Reset | Verdict::Finish(None) => {}
            }
        }
        let is_present = |zone: u32, epoch: u64| {
            self.zones.borrow().get(zone as usize).is_some_and(|record| record.epoch == epoch)
        };
        let of_zone = |zone: u32, epoch: u64| tails.get(&zone).filter(|_| is_present(zone, epoch));
        // All that there is of zones in doubt may be needed.
        let in_doubt = |zone: u32, epoch: u64| offline.contains(&zone) && is_present(zone, epoch);
        // A part that is to be written anew has no blocks in other places.
        let is_lost = |b: &Burned| self.zones.borrow()[b.zone as usize].lost & (1 << b.member) != 0;
        self.burned
            .borrow_mut()
            .retain(|b| in_doubt(b.zone, b.epoch) || of_zone(b.zone, b.epoch).is_some() && !is_lost(b));
        for (member, place) in self.members.iter().enumerate() {
            let Some(log) = &*place.log.borrow() else { continue };
            let mut live = log.live.borrow_mut();
            live.parity.retain(|zone, epoch, stripe, index, block| {
                if in_doubt(zone, epoch) {
                    return true;
                }
                let Some(Some(tail)) = of_zone(zone, epoch) else { return false };
                let lacking = tail.held.iter().map(|held| {
                    (held.lba.0 - self.start(held.member, ZoneIndex(zone)).0) / layout.chunk_blocks
                });
                let first = lacking.min().unwrap_or(u64::MAX).min(tail.blocks / layout.stripe_blocks());
                let at = stripe * layout.stripe_blocks() + index * layout.chunk_blocks + block;
                stripe >= first && (at < tail.blocks || self.canary == Some(Canary::StaleParity))
            });
            live.relocated.retain(|zone, epoch, stripe, _, block| {
                let at = stripe * layout.chunk_blocks + block;
                let below = match of_zone(zone, epoch) {
                    Some(Some(tail)) => at < position(layout, member, tail.blocks),
                    Some(None) => true,
                    None => false,
                };
                let burned = || self.burned_of(ZoneIndex(zone), epoch, member);
                in_doubt(zone, epoch) || below && burned().iter().any(|b| b.contains(&at))
            });
            for (zone, tail) in tails.iter().filter_map(|(zone, tail)| Some((*zone, (*tail)?))) {
                let epoch = self.zones.borrow()[zone as usize].epoch;
                let (stripe, covered) =
                    (tail.blocks / layout.stripe_blocks(), tail.blocks % layout.stripe_blocks());
                for (which, part) in tail_slots(layout, covered) {
                    if layout.slot(stripe, part.index, which) != (member, Place::MetaLog) {
                        continue;
                    }
                    let bytes = part.from as usize * BLOCK..part.to as usize * BLOCK;
                    let data = Buf::copy_of(&tail.parities[which][bytes]);
                    let (index, from) = (part.index as u32, part.from as u32);
                    let record = ParityRecord { zone, epoch, stripe, index, from, data };
                    live.parity.add(&record, layout.chunk_blocks);
                }
            }
        }
        self.bound_burned(&offline)
    }

    /// Sees to it that relocated blocks fit in the logs. If they would take more than half of what is left
    /// of one, the member is done without in a zone until that is rebuilt, and in its place again. If no
    /// member can be done without, they may take all that is left.
    fn bound_burned(&self, offline: &BTreeSet<u32>) -> Result<(), ArrayError> {
        let needed = checkpoint_blocks(&self.superblock.borrow());
        for member in 0..self.members.len() {
            let Some(device) = self.device(member) else { continue };
            let room = log_blocks(device.geometry(), Policy::Log).saturating_sub(needed + self.hole_blocks());
            loop {
                let mut of_zones = BTreeMap::new();
                for b in self.burned.borrow().iter().filter(|b| b.member as usize == member) {
                    *of_zones.entry(b.zone).or_insert(0) += b.to - b.from + 1;
                }
                let taken = of_zones.values().sum::<u64>();
                if taken <= room / 2 {
                    break;
                }
                // No more redundancy is given up than has to be.
                let can_spare = |parts: u32| match taken <= room {
                    true => parts.count_ones() as usize == self.members.len(),
                    false => !self.are_needed(parts),
                };
                of_zones.retain(|zone, _| can_spare(self.live(ZoneIndex(*zone))) && !offline.contains(zone));
                let Some((zone, _)) = of_zones.into_iter().max_by_key(|(_, blocks)| *blocks) else {
                    if taken <= room {
                        break;
                    }
                    return Err(ArrayError(format!(
                        "the metadata log of member {member} has no room for what power cuts have displaced: \
                         assemble with all members, or rebuild first"
                    )));
                };
                self.zones.borrow_mut()[zone as usize].lost |= 1 << member;
                self.unburn(ZoneIndex(zone), member);
            }
        }
        Ok(())
    }

    /// Forgets the burned blocks of zones that have been reset.
    pub fn forget_burned(&self, zones: Range<u32>) {
        if self.layout.policy == Policy::Log {
            for zone in zones {
                (0..self.members.len()).for_each(|member| self.unburn(ZoneIndex(zone), member));
            }
        }
    }

    /// Forgets the burned blocks of a member's part of a zone, which is written anew.
    pub fn unburn(&self, zone: ZoneIndex, member: usize) {
        self.burned.borrow_mut().retain(|b| (b.zone, b.member as usize) != (zone.0, member));
        if let Some(log) = &*self.members[member].log.borrow() {
            log.live.borrow_mut().relocated.forget(zone.0, u64::MAX, &mut self.pool.borrow_mut());
        }
    }

    /// Logs what belongs in burned blocks of a member, from block `at` of its part of a zone on: not
    /// beyond a row.
    pub fn relocate(&self, zone: ZoneIndex, epoch: u64, member: usize, at: u64, data: &[u8]) -> Completion {
        let (stripe, from) = (at / self.layout.chunk_blocks, (at % self.layout.chunk_blocks) as u32);
        let data = self.copy(data);
        let record = ParityRecord { zone: zone.0, epoch, stripe, index: RELOCATED, from, data };
        self.append(member, Record::Parity(record))
    }

    /// Whether some of what `member` holds of a zone is relocated.
    pub fn has_relocated(&self, zone: ZoneIndex, member: usize) -> bool {
        self.layout.policy == Policy::Log
            && self.members[member]
                .log
                .borrow()
                .as_ref()
                .is_some_and(|log| log.live.borrow().relocated.has(zone.0))
    }

    /// What was read from a member, from block `at` of its part of a zone on, with relocated blocks in
    /// their places. `None` if another drive has the member's place since: what the one that was read
    /// had relocated nobody knows any more.
    pub fn overlay(&self, zone: ZoneIndex, seat: Seat, at: u64, data: Buf) -> Option<Buf> {
        let member = seat.member;
        if self.seat(member) != seat {
            return None;
        }
        let log = self.members[member].log.borrow();
        if let Some(log) = log.as_ref().filter(|_| self.has_relocated(zone, member)) {
            let mut data = data.into_mut();
            let (epoch, live) = (self.zones.borrow()[zone.0 as usize].epoch, log.live.borrow());
            for (at, block) in (at..).zip(data.chunks_exact_mut(BLOCK)) {
                let (stripe, offset) = (at / self.layout.chunk_blocks, at % self.layout.chunk_blocks);
                if let Some(found) = live.relocated.get(zone.0, epoch, stripe, RELOCATED as u64, offset) {
                    block.copy_from_slice(found);
                }
            }
            return Some(data.freeze());
        }
        Some(data)
    }

    /// Whether block `at` of a member's part of a zone is relocated.
    pub fn is_relocated(&self, zone: ZoneIndex, member: usize, at: u64) -> bool {
        let log = self.members[member].log.borrow();
        log.as_ref().filter(|_| self.has_relocated(zone, member)).is_some_and(|log| {
            let (epoch, chunk) = (self.zones.borrow()[zone.0 as usize].epoch, self.layout.chunk_blocks);
            let live = log.live.borrow();
            live.relocated.get(zone.0, epoch, at / chunk, RELOCATED as u64, at % chunk).is_some()
        })
    }

    /// As [`Core::overlay`], for a piece of the stripe's row.
    pub fn overlay_piece(&self, zone: ZoneIndex, seat: Seat, piece: Piece, data: Buf) -> Option<Buf> {
        self.overlay(zone, seat, piece.stripe * self.layout.chunk_blocks + piece.from, data)
    }

    /// Writes blocks of members' parts of a quiet zone, and waits for them.
    pub async fn fill(&self, zone: &Zone, pieces: &[Held]) {
        let mut pending = Vec::new();
        for Held { member, lba, data, .. } in pieces {
            if self.live(zone.index) & (1 << member) == 0 {
                continue;
            }
            let (member, start) = (*member, self.start(*member, zone.index).0);
            let mut flow = zone.flow.borrow_mut();
            let at = lba.0 - start;
            let (burned, rest) = split(&mut flow.positions[member], at, data.clone());
            if let Some(burned) = burned {
                pending.push((self.seat(member), self.relocate(zone.index, flow.epoch, member, at, &burned)));
            }
            if let Some((at, rest)) = rest {
                let write = Command::write(Lba(start + at), rest, false);
                pending.push((self.seat(member), self.submit(member, write)));
            }
        }
        for (seat, completion) in pending {
            if let Err(error) = completion.await.result {
                self.part_failed(zone.index, seat, error, "write");
            }
        }
        self.barrier(self.live(zone.index)).await;
    }

    /// Makes the parity of the partial stripe of a zone that is being finished its full parity, as if the
    /// rest were zeros.
    pub async fn promote(&self, zone: &Zone) {
        let layout = &self.layout;
        let tail = zone.flow.borrow().complete;
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        let mut held = Vec::new();
        for which in 0..layout.parities {
            let member = layout.parity_member(stripe, which);
            // The beginning is there already if the tail is in the last chunk.
            let at = position(layout, member, tail);
            let blocks = at - stripe * layout.chunk_blocks..covered.min(layout.chunk_blocks);
            if !blocks.is_empty() {
                let data = zone.flow.borrow().parity(which, blocks.start, blocks.end);
                let lba = Lba(self.start(member, zone.index).0 + at);
                held.push(Held { member, lba, data, oob: Buf::default() });
            }
        }
        if !held.is_empty() {
            self.fill(zone, &held).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::{
        geometry::tests::losses,
        policy::zrwa::{SlotPart, parity_of},
    };

    fn layout(members: usize) -> Layout {
        Layout {
            policy: Policy::Log,
            members,
            parities: 1,
            chunk_blocks: 2,
            rows: 6,
            distance: IN_FLIGHT_STRIPES,
        }
    }

    #[test]
    fn positions_add_up_to_the_tail_and_its_full_parity() {
        let double = (4..=6).map(layout).map(|layout| Layout { parities: 2, ..layout });
        for layout in (3..=6).map(layout).chain(double) {
            for tail in 0..=layout.capacity_blocks() {
                let sum: u64 = (0..layout.members).map(|member| position(&layout, member, tail)).sum();
                let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
                let last = (layout.data_chunks() - 1) * layout.chunk_blocks;
                let parity = stripe * layout.chunk_blocks + covered.saturating_sub(last);
                assert_eq!(sum, tail + layout.parities as u64 * parity);
            }
        }
    }

    #[test]
    fn burned_blocks_are_divided_from_those_that_can_be_written() {
        let data = || Buf::zeroed(3 * BLOCK);
        let blocks = |wp: u64, at: u64| {
            let mut position = wp;
            let (burned, rest) = split(&mut position, at, data());
            (burned.map(|b| b.blocks()), rest.map(|(at, rest)| (at, rest.blocks())), position)
        };
        assert_eq!(blocks(5, 5), (None, Some((5, 3)), 8));
        assert_eq!(blocks(7, 5), (Some(2), Some((7, 1)), 8));
        assert_eq!(blocks(9, 5), (Some(3), None, 9));
    }

    #[test]
    fn what_no_crash_leaves_is_a_refusal_and_what_cannot_be_read_decodes_nothing() {
        let layout = layout(4);
        let part = |wp_blocks| Part { wp_blocks, ..Part::default() };
        let of = |parts: [Part; 4]| Evidence { parts: parts.map(Some).to_vec(), ..Evidence::default() };
        // Two stripes are in flight at most.
        assert_eq!(decide(&layout, &of([0, 4, 0, 0].map(part))), Ok(0));
        let ahead = Refusal::Ahead { member: 1, wp_blocks: 5, tail_blocks: 0 };
        assert_eq!(decide(&layout, &of([0, 5, 0, 0].map(part))), Err(ahead));
        // A stripe of which one member cannot read a block, and one of which two cannot.
        let bad = |at| Part { unreadable: BTreeSet::from([at]), ..part(2) };
        assert_eq!(decide(&layout, &of([part(2), bad(0), part(2), part(2)])), Ok(6));
        let lacking = Refusal::Lacking { member: 1 };
        assert_eq!(decide(&layout, &of([part(2), bad(0), bad(0), part(2)])), Err(lacking));
    }

    /// What the members hold, and where they would write next.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct State {
        wps: Vec<u64>,
        burned: Vec<BTreeSet<u64>>,
        relocated: Vec<BTreeSet<u64>>,
        slots: Vec<BTreeSet<(u64, u64, u64, usize)>>,
    }

    /// Something that a member does in order: blocks of its zone, or records of its log.
    #[derive(Clone)]
    enum Step {
        Block,
        Relocated(u64),
        Slot(Vec<(u64, u64, u64, usize)>),
    }

    impl State {
        fn new(members: usize) -> State {
            State {
                wps: vec![0; members],
                burned: vec![BTreeSet::new(); members],
                relocated: vec![BTreeSet::new(); members],
                slots: vec![BTreeSet::new(); members],
            }
        }

        fn evidence(&self, missing: u32) -> Evidence {
            let part = |m: usize| Part {
                wp_blocks: self.wps[m],
                gaps: self.burned[m].difference(&self.relocated[m]).copied().collect(),
                ..Part::default()
            };
            let present = |m: &usize| missing & (1 << m) == 0;
            Evidence {
                parts: (0..self.wps.len()).map(|m| present(&m).then(|| part(m))).collect(),
                slots: (0..self.wps.len()).filter(present).flat_map(|m| self.slots[m].clone()).collect(),
                told_blocks: 0,
            }
        }

        fn take(&mut self, member: usize, step: &Step) {
            match step {
                Step::Block => self.wps[member] += 1,
                Step::Relocated(at) => _ = self.relocated[member].insert(*at),
                Step::Slot(blocks) => self.slots[member].extend(blocks.iter().copied()),
            }
        }

        /// What an assembly that finds all members makes of it, which goes on at `tail`.
        fn recovered(&self, layout: &Layout, tail: u64) -> State {
            let mut next = self.clone();
            let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
            for member in 0..layout.members {
                let end = position(layout, member, tail);
                next.burned[member].extend(end..self.wps[member].max(end));
                // Parity that was lacking.
                next.relocated[member] = next.burned[member].range(..end).copied().collect();
                next.wps[member] = self.wps[member].max(end);
                next.slots[member].clear();
            }
            for (which, part) in tail_slots(layout, covered) {
                if let (member, Place::MetaLog) = layout.slot(stripe, part.index, which) {
                    let blocks = (part.from..part.to).map(|block| (stripe, block, part.index, which));
                    next.slots[member].extend(blocks);
                }
            }
            next
        }
    }

    type Parity = fn(&Layout, u64, u64) -> [Option<SlotPart>; 2];

    /// What each member is told for a write of blocks `from..to`: steps in its zone, and in its log.
    fn steps(
        layout: &Layout,
        parity_of: Parity,
        state: &State,
        positions: &mut [u64],
        (from, to): (u64, u64),
    ) -> Vec<[Vec<Step>; 2]> {
        let mut told = vec![[Vec::new(), Vec::new()]; layout.members];
        let mut row = |member: usize, at: u64| {
            if at < positions[member] {
                assert!(state.burned[member].contains(&at), "block {at} of member {member} written twice");
                told[member][1].push(Step::Relocated(at));
            } else {
                assert_eq!(at, positions[member], "a gap on member {member}");
                positions[member] += 1;
                told[member][0].push(Step::Block);
            }
        };
        let mut slots = Vec::new();
        let mut begin = from;
        while begin < to {
            let stripe = begin / layout.stripe_blocks();
            let base = stripe * layout.stripe_blocks();
            let end = to.min(base + layout.stripe_blocks());
            for block in begin - base..end - base {
                let (index, offset) = layout.chunk_of(block);
                row(layout.member(stripe, index), stripe * layout.chunk_blocks + offset);
            }
            let whole = end - begin == layout.stripe_blocks();
            let full = SlotPart { index: layout.data_chunks() - 1, from: 0, to: layout.chunk_blocks };
            let parts = if whole { [None, Some(full)] } else { parity_of(layout, begin - base, end - base) };
            let each =
                parts.into_iter().flatten().flat_map(|part| (0..layout.parities).map(move |of| (of, part)));
            for (which, part) in each {
                match layout.slot(stripe, part.index, which) {
                    (member, Place::Row(_)) => (part.from..part.to)
                        .for_each(|block| row(member, stripe * layout.chunk_blocks + block)),
                    (member, Place::MetaLog) => {
                        let blocks = (part.from..part.to).map(|block| (stripe, block, part.index, which));
                        slots.push((member, Step::Slot(blocks.collect())));
                    }
                }
            }
            begin = end;
        }
        slots.into_iter().for_each(|(member, slot)| told[member][1].push(slot));
        told
    }

    /// Crashes `state`, which goes on at `tail`, in every way while two writes are under way, with every
    /// member missing in turn; gives how it may go on, if all are there.
    fn crashes(
        layout: &Layout,
        parity_of: Parity,
        state: &State,
        tail: u64,
        writes: [u64; 2],
    ) -> BTreeSet<(u64, State)> {
        let mut positions = state.wps.clone();
        let ends = [tail + writes[0], tail + writes[0] + writes[1]];
        let told = [(tail, ends[0]), (ends[0], ends[1])]
            .map(|range| steps(layout, parity_of, state, &mut positions, range));
        let mut next = BTreeSet::new();
        for complete in 0..=2 {
            let done = [tail, ends[0], ends[1]][complete];
            let limit = (done / layout.stripe_blocks() + layout.distance) * layout.stripe_blocks();
            let begun = (0..2).take_while(|w| ends[*w] <= limit.min(layout.capacity_blocks())).count();
            if begun < complete {
                continue;
            }
            // Lanes: each member's zone and each member's log happen in order, up to anywhere.
            let mut states = vec![state.clone()];
            for (member, lane) in (0..layout.members).flat_map(|m| [(m, 0), (m, 1)]) {
                let steps_of = |w: usize| told[w][member][lane].iter();
                let sure: Vec<_> = (0..complete).flat_map(steps_of).collect();
                let maybe: Vec<_> = (complete..begun).flat_map(steps_of).collect();
                states.iter_mut().for_each(|state| sure.iter().for_each(|step| state.take(member, step)));
                let mut further = states.clone();
                for step in maybe {
                    further.iter_mut().for_each(|state| state.take(member, step));
                    states.extend(further.iter().cloned());
                }
            }
            for crashed in states {
                let submitted = if begun > 0 { ends[begun - 1] } else { tail };
                for missing in losses(layout) {
                    let evidence = crashed.evidence(missing);
                    let found = decide(layout, &evidence)
                        .unwrap_or_else(|refusal| panic!("{refusal}: {evidence:?} {tail} {writes:?}"));
                    assert!(
                        (done..=submitted).contains(&found),
                        "{found} instead of {done} to {submitted} without {missing:b}: {evidence:?}"
                    );
                }
                let found = decide(layout, &crashed.evidence(0)).unwrap();
                let recovered = crashed.recovered(layout, found);
                for missing in losses(layout) {
                    assert_eq!(decide(layout, &recovered.evidence(missing)), Ok(found));
                }
                next.insert((found, recovered));
            }
        }
        next
    }

    #[test]
    fn recovery_lands_where_it_may_from_every_crash_and_every_crash_after_that() {
        const SIZES: [u64; 4] = [1, 2, 3, 5];
        for layout in [layout(3), layout(4), Layout { parities: 2, ..layout(4) }] {
            let mut states = BTreeSet::from([(0, State::new(layout.members))]);
            for writes in SIZES.into_iter().flat_map(|a| SIZES.map(|b| [a, b])) {
                let found = crashes(&layout, parity_of, &State::new(layout.members), 0, writes);
                states.extend(found.into_iter().filter(|(tail, _)| *tail > 0));
            }
            assert!(states.iter().any(|(_, state)| state.burned.iter().any(|burned| burned.len() > 2)));
            let sample = states.len().div_ceil(100);
            for (tail, state) in states.iter().step_by(sample) {
                for writes in [[1, 2], [3, 1], [2, 5], [6, 4]] {
                    crashes(&layout, parity_of, state, *tail, writes);
                }
            }
        }
    }

    /// The check above is worth something: it notices partial parity of a write's last chunk alone.
    #[test]
    #[should_panic(expected = "instead of")]
    fn a_hole_in_the_slot_of_the_chunk_before_is_noticed() {
        let last_only: Parity = |layout, from, to| [None, parity_of(layout, from, to)[1]];
        crashes(&layout(4), last_only, &State::new(4), 0, [1, 2]);
    }
}
