//! Policy `log`: settling, recovery and burned blocks, as [`crate::raid::policy::log`] decides.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode::Sum,
    device::{Command, Completion},
    format::record::{BurnedRange, ParityRecord, RELOCATED, Record},
    raid::{
        error::ArrayError,
        events::Event,
        geometry::{ChunkRange, MAX_MEMBERS, MAX_PARITIES, ParityPlace, Role},
        journal::log::{checkpoint_blocks, log_blocks},
        parts::Raid,
        policy::{
            Policy,
            log::{LogEvidence, LogPart, SymbolLocation, data_end, decide, position},
            zrwa::{Refusal, tail_slots},
        },
        recover::verdict::{RepairWrite, Tail, Verdict, ZoneView},
        zone::flow::{ParityMismatch, Round, Zone, blank_parities},
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// See `Policy::settle`.
pub async fn settle(raid: &Raid, zone: &Zone, round: &Round) -> u64 {
    raid.barrier(raid.live(zone.index)).await;
    if round.wanted { round.complete } else { 0 }
}

impl Raid {
    /// See `Policy::judge`. Records the blocks beyond the tail as burned.
    pub async fn judge_log(&self, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        for (member, info) in view.info.iter().enumerate().filter_map(|(m, info)| Some((m, info.as_ref()?))) {
            let burned = self.burned_of(view.zone, view.record.epoch, member);
            // Relocated blocks may have been in the unreadable part of the member's log.
            let may_lack = !burned.is_empty() && self.log_has_holes(view.zone, member);
            // Burned blocks had been written: a part that ends before them has been changed from outside of the array.
            if may_lack || burned.iter().any(|blocks| blocks.end > self.wp_of(info)) {
                view.record.lost |= 1 << member;
            }
        }
        self.check_ended(view)?;
        let (layout, zone, record) = (&self.layout, view.zone, *view.record);
        let trusted = |member: usize| record.lost & (1 << member) == 0;
        let present = || view.info.iter().enumerate().filter_map(|(m, info)| Some((m, info.as_ref()?)));
        let full = |info: &ZoneInfo| info.state == ZoneState::Full;
        let burned = self.zone_records.burned().iter().any(|b| b.zone == zone.0);
        let all_full = present().all(|(m, info)| !trusted(m) || full(info));
        if all_full && (!burned || record.finished.is_some()) && present().any(|(m, _)| trusted(m)) {
            return Ok(Verdict::Full);
        }
        if record.finished == Some(0) {
            return Ok(Verdict::Finish(None));
        }
        let mut evidence = LogEvidence { told_blocks: view.answered_blocks, ..LogEvidence::default() };
        for (member, info) in view.info.iter().enumerate() {
            let trusted = info.as_ref().filter(|_| trusted(member));
            let part = trusted.map(|info| self.part_of(zone, record.epoch, member, info));
            if part.is_some()
                && let Some(log) = self.members.log(member)
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
            // A block that a present member lacked ended the zone; if that member is missing now, the block may be
            // decoded. The end that was reported to the host is kept.
            None => decide(layout, &evidence)?.min(view.told_end.unwrap_or(u64::MAX)),
        };
        if record.finished.is_some() {
            // The finish has filled the members' zones beyond the tail.
            for (member, part) in evidence.parts.iter_mut().enumerate() {
                if let Some(part) = part {
                    part.wp_blocks = part.wp_blocks.min(position(layout, member, blocks));
                }
            }
            // All data was on the members when the finish was logged.
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
        let (held, (running, found)) = loop {
            match self.gather(view, &mut evidence, blocks).await {
                // A read-only zone ends before the first missing parity, which was never acknowledged.
                Ok((held, _)) if view.read_only != 0 && !held.is_empty() => {
                    // Start, in the zone, of the last data block that a missing parity block covers.
                    let last = layout.stripe_blocks() - layout.chunk_blocks;
                    let end = |held: &RepairWrite| {
                        let at = held.lba.0 - self.members.start(held.member, zone).0;
                        at / layout.chunk_blocks * layout.stripe_blocks() + last + at % layout.chunk_blocks
                    };
                    blocks = held.iter().map(end).fold(blocks, u64::min);
                }
                Ok(found) => break found,
                Err(refusal) if record.finished.is_some() => return Err(refusal),
                // More blocks were found unreadable. Blocks that cannot be decoded were not promised, unless too many
                // of them are unreadable: then `decide` refuses.
                Err(refusal) => match decide(layout, &evidence)? {
                    less if less < blocks => blocks = less,
                    _ => return Err(refusal),
                },
            }
        };
        if record.finished.is_none() {
            self.check_bad_blocks(zone, &evidence, blocks)?;
        }
        if blocks == 0 {
            let leftovers = present().any(|(m, info)| match info.state {
                ZoneState::Empty => !trusted(m),
                ZoneState::Offline | ZoneState::ReadOnly => false,
                _ => true,
            });
            return Ok(if leftovers { Verdict::Reset } else { Verdict::Empty });
        }
        if record.finished.is_none() && view.read_only == 0 {
            self.burn(zone, record.epoch, &evidence, blocks);
        }
        if all_full && blocks == layout.capacity_blocks() && held.is_empty() {
            return Ok(Verdict::Full);
        }
        let (parities, lacks_parities) = (running, false);
        let tail = Tail { blocks, positions, parities, lacks_parities, found, revived: 0, held };
        Ok(if record.finished.is_some() { Verdict::Finish(Some(tail)) } else { Verdict::Open(tail) })
    }

    /// Missing parity of complete stripes below a tail at `tail_blocks`, and the running parity of the stripe of the
    /// tail.
    async fn gather(
        &self,
        view: &ZoneView<'_>,
        evidence: &mut LogEvidence,
        tail_blocks: u64,
    ) -> Result<(Vec<RepairWrite>, ([BufMut; MAX_PARITIES], ParityMismatch)), Refusal> {
        let layout = &self.layout;
        let mut held = Vec::new();
        // A copy of the parts: blocks that are found unreadable meanwhile are not lacking.
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
                let lba = Lba(self.members.start(member, view.zone).0 + at);
                held.push(RepairWrite { member, lba, data, oob: Buf::default() });
            }
        }
        let (mut running, mut differing) = (blank_parities(layout), ParityMismatch::default());
        let (stripe, covered) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
        for block in 0..layout.chunk_blocks.min(covered) {
            let chunks = (covered - block).div_ceil(layout.chunk_blocks);
            for (which, running) in running.iter_mut().enumerate().take(layout.parities) {
                let wanted = Sum::parity(which, chunks as usize);
                let computed = self.sum_of(view, evidence, (stripe, block), wanted).await?;
                running.block_mut(block).copy_from_slice(&computed);
                let logged = self.logged(view, (stripe, chunks - 1, which), block);
                differing.compare((which, block), logged.as_deref(), &computed);
            }
        }
        Ok((held, (running, differing)))
    }

    /// Whether the log of `member` has unreadable parts that may have held records of `zone`.
    pub fn log_has_holes(&self, zone: ZoneIndex, member: usize) -> bool {
        let record = self.zone_records.record(zone);
        self.members.log(member).is_some_and(|log| {
            let live = log.live.borrow();
            live.holes || record.waits != 0 && live.incomplete.get(&zone.0) == Some(&record.epoch)
        })
    }

    /// Refuses a tail if the next block is on a missing member and may have been written: the partial parity that
    /// decodes it may have been in an unreadable part of another member's log.
    fn check_bad_blocks(
        &self,
        zone: ZoneIndex,
        evidence: &LogEvidence,
        tail_blocks: u64,
    ) -> Result<(), Refusal> {
        let layout = &self.layout;
        let (stripe, at) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
        let (index, _) = layout.chunk_of(at);
        if stripe == layout.rows || evidence.parts[layout.member(stripe, index)].is_some() {
            return Ok(());
        }
        for last in index..layout.data_chunks() - 1 {
            // If as many intact logs as missing chunks hold no slots, none were written.
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

    /// Evidence on a member's part of a zone, for which its drive reports `info`.
    fn part_of(&self, zone: ZoneIndex, epoch: u64, member: usize, info: &ZoneInfo) -> LogPart {
        let wp_blocks = self.wp_of(info);
        let mut part = LogPart { wp_blocks, ..LogPart::default() };
        let burned = self.burned_of(zone, epoch, member);
        part.gaps = burned.into_iter().flatten().filter(|at| *at < wp_blocks).collect();
        if let Some(log) = self.members.log(member) {
            for (stripe, _, block) in log.live.borrow().relocated.of_zone(zone.0, epoch) {
                part.gaps.remove(&(stripe * self.layout.chunk_blocks + block));
            }
        }
        part
    }

    /// End of the written blocks of a part for which its drive reports `info`.
    fn wp_of(&self, info: &ZoneInfo) -> u64 {
        let used_blocks = self.layout.rows * self.layout.chunk_blocks;
        match info.state {
            ZoneState::Full => used_blocks,
            ZoneState::Empty => 0,
            _ => info.wp_blocks.min(used_blocks),
        }
    }

    /// The burned blocks of a member's part of a zone.
    fn burned_of(&self, zone: ZoneIndex, epoch: u64, member: usize) -> Vec<Range<u64>> {
        let burned = self.zone_records.burned();
        let own = burned.iter().filter(|b| (b.zone, b.epoch, b.member as usize) == (zone.0, epoch, member));
        own.map(|b| b.from..b.to).collect()
    }

    /// Records the blocks that members hold beyond a tail at `tail_blocks` as burned.
    fn burn(&self, zone: ZoneIndex, epoch: u64, evidence: &LogEvidence, tail_blocks: u64) {
        for (member, part) in evidence.parts.iter().enumerate() {
            let Some(part) = part else { continue };
            let (from, to) = (position(&self.layout, member, tail_blocks), part.wp_blocks);
            if from < to {
                self.zone_records.burn(BurnedRange { zone: zone.0, member: member as u32, epoch, from, to });
            }
        }
    }

    /// Computes a sum of the data at `block` of a stripe, all of which is present or can be decoded. Blocks that cannot
    /// be read are recorded in `evidence`, and decoded.
    async fn sum_of(
        &self,
        view: &ZoneView<'_>,
        evidence: &mut LogEvidence,
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
                    SymbolLocation::Slot(index, which) => {
                        let Some(slot) = self.logged(view, (stripe, index, which), block) else {
                            evidence.slots.remove(&(stripe, block, index, which));
                            continue 'again;
                        };
                        blocks.push(slot);
                        continue;
                    }
                    SymbolLocation::Row(index) => {
                        (layout.member(stripe, index), stripe * layout.chunk_blocks + block)
                    }
                };
                let lba = Lba(self.members.start(member, view.zone).0 + at);
                let read = self.members.submit(member, Command::read(lba, Buf::zeroed(BLOCK))).await;
                let is_whole = !self.zone_records.has_bad_block(view.zone, member, at..at + 1);
                let Some(data) = read.result.ok().filter(|()| is_whole).map(|()| read.data) else {
                    if let Some(part) = &mut evidence.parts[member] {
                        part.unreadable.insert(at);
                    }
                    continue 'again;
                };
                blocks.push(self.overlay(view.zone, member, at, data));
            }
            let mut result = BufMut::zeroed(BLOCK);
            recipe.run(&mut result, &blocks);
            return Ok(result.freeze());
        }
    }

    /// Block of the slot of chunk `index` for parity number `which`; `None` if it is not in the log.
    fn logged(
        &self,
        view: &ZoneView<'_>,
        (stripe, index, which): (u64, u64, usize),
        block: u64,
    ) -> Option<Buf> {
        let (member, _) = self.layout.slot(stripe, index, which);
        let log = self.members.log(member)?;
        let live = log.live.borrow();
        live.parity.get(view.zone.0, view.record.epoch, stripe, index, block).map(|data| Buf::copy_of(data))
    }

    /// Drops the contents of the logs that no zone needs, so that they are not in the checkpoints of this assembly:
    /// partial parity of blocks beyond a tail would be wrong later. Adds the slots that decode the tails with any
    /// member missing.
    pub fn keep_of_logs(&self, verdicts: &[(ZoneIndex, Verdict)]) -> Result<(), ArrayError> {
        let layout = &self.layout;
        let (mut tails, mut offline) = (BTreeMap::new(), BTreeSet::new());
        for (zone, verdict) in verdicts {
            match verdict {
                Verdict::ReadOnly(_) | Verdict::Offline(_) => _ = offline.insert(zone.0),
                Verdict::Open(tail) | Verdict::Finish(Some(tail)) => _ = tails.insert(zone.0, Some(tail)),
                Verdict::Full => _ = tails.insert(zone.0, None),
                Verdict::Empty | Verdict::Reset | Verdict::Finish(None) => {}
            }
        }
        let is_present = |zone: u32, epoch: u64| {
            self.zone_records.records().get(zone as usize).is_some_and(|record| record.epoch == epoch)
        };
        let of_zone = |zone: u32, epoch: u64| tails.get(&zone).filter(|_| is_present(zone, epoch));
        // All records of an offline zone may be needed.
        let in_doubt = |zone: u32, epoch: u64| offline.contains(&zone) && is_present(zone, epoch);
        // A lost part is rebuilt without relocated blocks.
        let is_lost =
            |b: &BurnedRange| self.zone_records.record(ZoneIndex(b.zone)).lost & (1 << b.member) != 0;
        self.zone_records.retain_burned(|b| {
            in_doubt(b.zone, b.epoch) || of_zone(b.zone, b.epoch).is_some() && !is_lost(b)
        });
        for member in 0..self.members.count() {
            let Some(log) = self.members.log(member) else { continue };
            let mut live = log.live.borrow_mut();
            live.parity.retain(|zone, epoch, stripe, index, block| {
                if in_doubt(zone, epoch) {
                    return true;
                }
                let Some(Some(tail)) = of_zone(zone, epoch) else { return false };
                let lacking = tail.held.iter().map(|held| {
                    (held.lba.0 - self.members.start(held.member, ZoneIndex(zone)).0) / layout.chunk_blocks
                });
                let first = lacking.min().unwrap_or(u64::MAX).min(tail.blocks / layout.stripe_blocks());
                let at = stripe * layout.stripe_blocks() + index * layout.chunk_blocks + block;
                stripe >= first && at < tail.blocks
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
                let epoch = self.zone_records.record(ZoneIndex(zone)).epoch;
                let (stripe, covered) =
                    (tail.blocks / layout.stripe_blocks(), tail.blocks % layout.stripe_blocks());
                for (which, part) in tail_slots(layout, covered) {
                    if layout.slot(stripe, part.index, which) != (member, ParityPlace::MetaLog) {
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

    /// Bounds the room of relocated blocks in the logs. If those of a member could take more than half of the free room
    /// of its log, the member loses parts of zones, which are rebuilt without relocated blocks. If no part can be
    /// spared, they may take all of the room.
    ///
    /// # Errors
    /// The log is too small for them.
    fn bound_burned(&self, offline: &BTreeSet<u32>) -> Result<(), ArrayError> {
        let needed = checkpoint_blocks(&self.membership.superblock());
        for member in 0..self.members.count() {
            let Some(device) = self.members.device(member) else { continue };
            let room =
                log_blocks(device.geometry(), Policy::Log).saturating_sub(needed + self.bad_block_room());
            loop {
                let mut of_zones = BTreeMap::new();
                for b in self.zone_records.burned().iter().filter(|b| b.member as usize == member) {
                    // Each row has a record of its own, with a header.
                    let rows = b.to.div_ceil(self.layout.chunk_blocks) - b.from / self.layout.chunk_blocks;
                    *of_zones.entry(b.zone).or_insert(0) += b.to - b.from + rows;
                }
                let taken = of_zones.values().sum::<u64>();
                if taken <= room / 2 {
                    break;
                }
                // As long as they fit, a zone that already lacks a part loses no other.
                let can_spare = |parts: u32| match taken <= room {
                    true => parts.count_ones() as usize == self.members.count(),
                    false => !self.members.are_needed(parts),
                };
                of_zones.retain(|zone, _| can_spare(self.live(ZoneIndex(*zone))) && !offline.contains(zone));
                let Some((zone, _)) = of_zones.into_iter().max_by_key(|(_, blocks)| *blocks) else {
                    if taken <= room {
                        break;
                    }
                    return Err(ArrayError::LogIsFull { member });
                };
                self.zone_records.change(ZoneIndex(zone), |record| record.lost |= 1 << member);
                self.events.note(Event::PartDisplaced { member, zone });
                self.unburn(ZoneIndex(zone), member);
            }
        }
        Ok(())
    }

    /// Drops the burned blocks of zones that have been reset.
    pub fn forget_burned(&self, zones: Range<u32>) {
        if self.layout.policy == Policy::Log {
            for zone in zones {
                (0..self.members.count()).for_each(|member| self.unburn(ZoneIndex(zone), member));
            }
        }
    }

    /// Drops the burned and relocated blocks of a member's part of a zone, which is written anew.
    pub fn unburn(&self, zone: ZoneIndex, member: usize) {
        self.zone_records.retain_burned(|b| (b.zone, b.member as usize) != (zone.0, member));
        if let Some(log) = self.members.log(member) {
            log.live.borrow_mut().relocated.forget(zone.0, u64::MAX, &mut self.pool.borrow_mut());
        }
    }

    /// Logs the content of burned blocks of a member, from block `at` of its part of a zone on, within a row.
    pub fn relocate(&self, zone: ZoneIndex, epoch: u64, member: usize, at: u64, data: &[u8]) -> Completion {
        let (stripe, from) = (at / self.layout.chunk_blocks, (at % self.layout.chunk_blocks) as u32);
        let end = from as u64 + (data.len() / BLOCK) as u64;
        assert!(end <= self.layout.chunk_blocks, "relocated blocks {from}..{end} of a chunk");
        let data = self.copy(data);
        let record = ParityRecord { zone: zone.0, epoch, stripe, index: RELOCATED, from, data };
        self.append(member, Record::Parity(record))
    }

    /// Whether any block of a member's part of a zone is relocated.
    pub fn has_relocated(&self, zone: ZoneIndex, member: usize) -> bool {
        self.layout.policy == Policy::Log
            && self.members.log(member).is_some_and(|log| log.live.borrow().relocated.has(zone.0))
    }

    /// Puts relocated blocks in their places in data that was read from a member, from block `at` of its part of a zone
    /// on. If the member's drive has been replaced since, the result is wrong: callers in a running array compare
    /// [`crate::raid::members::Members::losses`].
    pub fn overlay(&self, zone: ZoneIndex, member: usize, at: u64, data: Buf) -> Buf {
        let log = self.members.log(member);
        if let Some(log) = log.filter(|_| self.has_relocated(zone, member)) {
            let mut data = data.into_mut();
            let (epoch, live) = (self.zone_records.epoch(zone), log.live.borrow());
            for (at, block) in (at..).zip(data.chunks_exact_mut(BLOCK)) {
                let (stripe, offset) = (at / self.layout.chunk_blocks, at % self.layout.chunk_blocks);
                if let Some(found) = live.relocated.get(zone.0, epoch, stripe, RELOCATED as u64, offset) {
                    block.copy_from_slice(found);
                }
            }
            return data.freeze();
        }
        data
    }

    /// Whether block `at` of a member's part of a zone is relocated.
    pub fn is_relocated(&self, zone: ZoneIndex, member: usize, at: u64) -> bool {
        let log = self.members.log(member);
        log.filter(|_| self.has_relocated(zone, member)).is_some_and(|log| {
            let (epoch, chunk) = (self.zone_records.epoch(zone), self.layout.chunk_blocks);
            let live = log.live.borrow();
            live.relocated.get(zone.0, epoch, at / chunk, RELOCATED as u64, at % chunk).is_some()
        })
    }

    /// As [`Raid::overlay`], for the blocks of `piece` in the row of its stripe.
    pub fn overlay_piece(&self, zone: ZoneIndex, member: usize, piece: ChunkRange, data: Buf) -> Buf {
        self.overlay(zone, member, piece.stripe * self.layout.chunk_blocks + piece.from, data)
    }

    /// Writes blocks to members' parts of a quiesced zone, or to their logs if they are burned, and waits for all.
    pub async fn fill(&self, zone: &Zone, pieces: &[RepairWrite]) {
        let mut pending = Vec::new();
        for RepairWrite { member, lba, data, .. } in pieces {
            if self.live(zone.index) & (1 << member) == 0 {
                continue;
            }
            let (member, start) = (*member, self.members.start(*member, zone.index).0);
            let mut flow = zone.flow.borrow_mut();
            let at = lba.0 - start;
            let (burned, rest) = flow.split(Policy::Log, member, at, data.clone());
            if let Some(burned) = burned {
                pending.push((
                    self.members.seat(member),
                    self.relocate(zone.index, flow.epoch(), member, at, &burned),
                ));
            }
            if let Some((at, rest)) = rest {
                let write = Command::write(Lba(start + at), rest, false);
                pending.push((self.members.seat(member), self.members.submit(member, write)));
            }
        }
        for (seat, completion) in pending {
            if let Err(error) = completion.await.result {
                self.part_failed(zone.index, seat, error, "write");
            }
        }
        self.barrier(self.live(zone.index)).await;
    }

    /// Writes the full parity of the partial stripe of a zone that is being finished, as if the rest of the data were
    /// zeros.
    pub async fn promote(&self, zone: &Zone) {
        let layout = &self.layout;
        let tail = zone.flow.borrow().complete();
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        let mut held = Vec::new();
        for which in 0..layout.parities {
            let member = layout.parity_member(stripe, which);
            // If the tail is in the last chunk, the full parity has been written up to `at`.
            let at = position(layout, member, tail);
            let blocks = at - stripe * layout.chunk_blocks..covered.min(layout.chunk_blocks);
            if !blocks.is_empty() {
                let data = zone.flow.borrow().parity(which, blocks.start, blocks.end);
                let lba = Lba(self.members.start(member, zone.index).0 + at);
                held.push(RepairWrite { member, lba, data, oob: Buf::default() });
            }
        }
        if !held.is_empty() {
            self.fill(zone, &held).await;
        }
    }
}
