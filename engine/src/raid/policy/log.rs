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
//! **Burned blocks.** After a crash some members may hold blocks beyond the tail, which cannot be overwritten. They are
//! burned: data that belongs there later goes to the member's metadata log as *relocated* blocks, and is read from
//! memory, until the zone is reset. To bound their number, a stripe is begun only when the stripe
//! [`IN_FLIGHT_STRIPES`] before it is safe; and if relocated blocks could fill half of a log, the member loses its part
//! of a zone, which is rebuilt without burned blocks.

use crate::{
    buf::Buf,
    code::decode::{self, Recipe, Sum},
    raid::{
        geometry::{Layout, Role},
        policy::zrwa::Refusal,
    },
};
use std::collections::BTreeSet;

/// Maximum number of stripes of a zone that are in flight at once.
pub const IN_FLIGHT_STRIPES: u64 = 2;

/// The write pointer of `member`, in blocks, that corresponds to a tail at `tail_blocks`.
pub fn position(layout: &Layout, member: usize, tail_blocks: u64) -> u64 {
    let (stripe, covered) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
    let index = match layout.role(member, stripe) {
        Role::Data(index) => index,
        // The parity grows with the last chunk.
        Role::Parity(_) => layout.data_chunks() - 1,
    };
    assert!(tail_blocks <= layout.capacity_blocks(), "a tail at {tail_blocks}, beyond the end of the zone");
    let chunk = layout.chunk_blocks;
    stripe * chunk + covered.saturating_sub(index * chunk).min(chunk)
}

/// End of the last data block, parity left out, in `member`'s part of a zone with a tail at `tail_blocks`.
pub fn data_end(layout: &Layout, member: usize, tail_blocks: u64) -> u64 {
    let mut end = position(layout, member, tail_blocks);
    let is_parity = |block| matches!(layout.role(member, block / layout.chunk_blocks), Role::Parity(_));
    while end > 0 && is_parity(end - 1) {
        end = (end - 1) / layout.chunk_blocks * layout.chunk_blocks;
    }
    end
}

/// Splits `data`, for block `at` of a part with its write pointer at `position`: the data for burned blocks, and the
/// data that can be written, with its first block. Moves the write pointer.
pub fn split(position: &mut u64, at: u64, data: Buf) -> (Option<Buf>, Option<(u64, Buf)>) {
    let (wp, end) = (*position, at + data.blocks());
    assert!(at < end, "no data for block {at}");
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

/// A member's part of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPart {
    /// Its write pointer, from the start of the part.
    pub wp_blocks: u64,
    /// Blocks below the write pointer that are burned and not relocated.
    pub gaps: BTreeSet<u64>,
    /// Blocks below the write pointer that the drive could not read.
    pub unreadable: BTreeSet<u64>,
}

impl LogPart {
    /// Whether a block is present and can be read.
    pub fn holds(&self, block: u64) -> bool {
        block < self.wp_blocks && !self.gaps.contains(&block) && !self.unreadable.contains(&block)
    }

    /// Number of blocks, from the start of the part, before the first one that is not held.
    pub fn whole(&self) -> u64 {
        let lacking = self.gaps.first().into_iter().chain(self.unreadable.first());
        lacking.fold(self.wp_blocks, |whole, block| whole.min(*block))
    }
}

/// Evidence on a zone after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEvidence {
    /// By member; `None` if it is missing or its part of the zone cannot be relied on.
    pub parts: Vec<Option<LogPart>>,
    /// Logged partial parity: stripe, block in the chunk, chunk of the slot, number of the parity.
    pub slots: BTreeSet<(u64, u64, u64, usize)>,
    /// End of the data that a process which died had acknowledged, if it is known; otherwise 0.
    pub told_blocks: u64,
}

impl LogEvidence {
    fn holds(&self, member: usize, block: u64) -> bool {
        self.parts[member].as_ref().is_some_and(|part| part.holds(block))
    }

    /// Whether `block` of chunk `index` of `stripe` is held.
    fn has(&self, layout: &Layout, stripe: u64, index: u64, block: u64) -> bool {
        self.holds(layout.member(stripe, index), stripe * layout.chunk_blocks + block)
    }

    /// The available symbols at `block` of the chunks of `stripe`.
    pub fn column(&self, layout: &Layout, stripe: u64, block: u64) -> LogColumn {
        let k = layout.data_chunks();
        let mut column = LogColumn::default();
        for index in (0..layout.members as u64).filter(|index| self.has(layout, stripe, *index, block)) {
            let sum = layout.symbols(k)[index as usize];
            column.push(SymbolLocation::Row(index), sum);
        }
        for (_, _, last, which) in self.slots.range((stripe, block, 0, 0)..(stripe, block + 1, 0, 0)) {
            column.push(SymbolLocation::Slot(*last, *which), Sum::parity(*which, *last as usize + 1));
        }
        column
    }
}

/// Where a symbol of a column is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolLocation {
    /// In the row of the stripe, on the member of this index.
    Row(u64),
    /// In the log of the member of this slot: chunk, and number of the parity.
    Slot(u64, usize),
}

/// The available symbols of one block of all chunks of a stripe.
#[derive(Default)]
pub struct LogColumn {
    /// Their places, in the order of their sums.
    pub stored: Vec<SymbolLocation>,
    sums: Vec<Sum>,
}

impl LogColumn {
    fn push(&mut self, stored: SymbolLocation, sum: Sum) {
        // One for each member and each slot of the stripe: fewer than the limit.
        if self.stored.len() < decode::MAX_STORED {
            self.stored.push(stored);
            self.sums.push(sum);
        }
    }

    /// How to decode `wanted` from these symbols; `None` if they do not suffice.
    pub fn solve(&self, wanted: Sum) -> Option<Recipe> {
        decode::solve(u128::MAX, &self.sums, wanted)
    }
}

/// Tail of the zone in blocks, all of which are present or can be decoded: at least the promised ones; or a refusal.
pub fn decide(layout: &Layout, evidence: &LogEvidence) -> Result<u64, Refusal> {
    let parts = || evidence.parts.iter().flatten();
    let (present, needed) = (parts().count(), layout.fewest_members());
    // If the member of the first block is missing, a logged slot may be the only evidence of that block.
    let begun = parts().any(|part| part.wp_blocks > 0) || !evidence.slots.is_empty();
    if present < needed {
        // Also if nothing shows that the zone was begun: the missing members may hold all of its data.
        return Err(Refusal::TooFew { present, members: layout.members, needed });
    }
    // Rows that all present members hold are complete, whatever a missing member holds.
    let rows = parts().map(LogPart::whole).min().unwrap_or(0) / layout.chunk_blocks;
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
                |part: &Option<LogPart>| part.as_ref().is_none_or(|part| part.unreadable.contains(&at));
            if evidence.parts.iter().filter(|part| is_unknown(part)).count() > layout.parities {
                // The unknown blocks may be data that parity does not show.
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
    // A stripe is begun only when all members have passed the row `distance` before it.
    let begun = parts().map(|part| part.wp_blocks).max().unwrap_or(0).div_ceil(layout.chunk_blocks);
    for (member, part) in evidence.parts.iter().enumerate() {
        let Some(LogPart { wp_blocks, .. }) = *part else { continue };
        if wp_blocks / layout.chunk_blocks + layout.distance < begun {
            return Err(Refusal::Behind { member, wp_blocks, tail_blocks });
        }
    }
    Ok(tail_blocks)
}

/// See [`crate::raid::policy::Policy::chunks_to_claim`].
pub fn chunks_to_claim(layout: &Layout, complete: u64) -> u64 {
    let chunks = complete / layout.chunk_blocks;
    chunks - chunks % layout.data_chunks()
}

/// See [`crate::raid::policy::Policy::window_rows`].
pub fn window_rows(layout: &Layout, claimed: u64) -> u64 {
    (claimed / layout.data_chunks() + layout.distance).min(layout.rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        buf::BLOCK,
        raid::{
            geometry::{ParityPlace, tests::losses},
            policy::{
                Policy,
                zrwa::{SlotPart, parity_of, tail_slots},
            },
        },
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
    fn log_positions_sum_to_tail_and_full_parity() {
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
    fn log_split_separates_burned_from_writable_blocks() {
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
    fn recovery_refuses_impossible_and_undecodable_states() {
        let layout = layout(4);
        let part = |wp_blocks| LogPart { wp_blocks, ..LogPart::default() };
        let of =
            |parts: [LogPart; 4]| LogEvidence { parts: parts.map(Some).to_vec(), ..LogEvidence::default() };
        // Two stripes are in flight at most.
        assert_eq!(decide(&layout, &of([0, 4, 0, 0].map(part))), Ok(0));
        let ahead = Refusal::Ahead { member: 1, wp_blocks: 5, tail_blocks: 0 };
        assert_eq!(decide(&layout, &of([0, 5, 0, 0].map(part))), Err(ahead));
        // A stripe of which one member cannot read a block, and one of which two cannot.
        let bad = |at| LogPart { unreadable: BTreeSet::from([at]), ..part(2) };
        assert_eq!(decide(&layout, &of([part(2), bad(0), part(2), part(2)])), Ok(6));
        let lacking = Refusal::Lacking { member: 1 };
        assert_eq!(decide(&layout, &of([part(2), bad(0), bad(0), part(2)])), Err(lacking));
    }

    /// State of a zone on all members, by member.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct State {
        wps: Vec<u64>,
        burned: Vec<BTreeSet<u64>>,
        relocated: Vec<BTreeSet<u64>>,
        slots: Vec<BTreeSet<(u64, u64, u64, usize)>>,
    }

    /// A step of a member, in order: a block of its zone, or a record of its log.
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

        fn evidence(&self, missing: u32) -> LogEvidence {
            let part = |m: usize| LogPart {
                wp_blocks: self.wps[m],
                gaps: self.burned[m].difference(&self.relocated[m]).copied().collect(),
                ..LogPart::default()
            };
            let present = |m: &usize| missing & (1 << m) == 0;
            LogEvidence {
                parts: (0..self.wps.len()).map(|m| present(&m).then(|| part(m))).collect(),
                slots: (0..self.wps.len()).filter(present).flat_map(|m| self.slots[m].clone()).collect(),
                told_blocks: 0,
            }
        }

        fn apply(&mut self, member: usize, step: &Step) {
            match step {
                Step::Block => self.wps[member] += 1,
                Step::Relocated(at) => _ = self.relocated[member].insert(*at),
                Step::Slot(blocks) => self.slots[member].extend(blocks.iter().copied()),
            }
        }

        /// The state after an assembly with all members, which continues at `tail`.
        fn recovered(&self, layout: &Layout, tail: u64) -> State {
            let mut next = self.clone();
            let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
            for member in 0..layout.members {
                let end = position(layout, member, tail);
                next.burned[member].extend(end..self.wps[member].max(end));
                // Recovery relocates parity that burned blocks below the tail lack.
                next.relocated[member] = next.burned[member].range(..end).copied().collect();
                next.wps[member] = self.wps[member].max(end);
                next.slots[member].clear();
            }
            for (which, part) in tail_slots(layout, covered) {
                if let (member, ParityPlace::MetaLog) = layout.slot(stripe, part.index, which) {
                    let blocks = (part.from..part.to).map(|block| (stripe, block, part.index, which));
                    next.slots[member].extend(blocks);
                }
            }
            next
        }
    }

    type Parity = fn(&Layout, u64, u64) -> [Option<SlotPart>; 2];

    /// The steps of each member for a write of blocks `from..to`: in its zone, and in its log.
    fn steps(
        layout: &Layout,
        parity_of: Parity,
        state: &State,
        positions: &mut [u64],
        (from, to): (u64, u64),
    ) -> Vec<[Vec<Step>; 2]> {
        let mut steps = vec![[Vec::new(), Vec::new()]; layout.members];
        let mut row = |member: usize, at: u64| {
            if at < positions[member] {
                assert!(state.burned[member].contains(&at), "block {at} of member {member} written twice");
                steps[member][1].push(Step::Relocated(at));
            } else {
                assert_eq!(at, positions[member], "a gap on member {member}");
                positions[member] += 1;
                steps[member][0].push(Step::Block);
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
                    (member, ParityPlace::Row(_)) => (part.from..part.to)
                        .for_each(|block| row(member, stripe * layout.chunk_blocks + block)),
                    (member, ParityPlace::MetaLog) => {
                        let blocks = (part.from..part.to).map(|block| (stripe, block, part.index, which));
                        slots.push((member, Step::Slot(blocks.collect())));
                    }
                }
            }
            begin = end;
        }
        slots.into_iter().for_each(|(member, slot)| steps[member][1].push(slot));
        steps
    }

    /// Writes twice from `tail` on, in `state`, and checks the tail that recovery finds after every possible crash,
    /// with every member missing in turn. Returns the tails and states after recovery with all members.
    fn crashes(
        layout: &Layout,
        parity_of: Parity,
        state: &State,
        tail: u64,
        writes: [u64; 2],
    ) -> BTreeSet<(u64, State)> {
        let mut positions = state.wps.clone();
        let ends = [tail + writes[0], tail + writes[0] + writes[1]];
        let of_writes = [(tail, ends[0]), (ends[0], ends[1])]
            .map(|range| steps(layout, parity_of, state, &mut positions, range));
        let mut next = BTreeSet::new();
        for complete in 0..=2 {
            let done = [tail, ends[0], ends[1]][complete];
            let limit = (done / layout.stripe_blocks() + layout.distance) * layout.stripe_blocks();
            let begun = (0..2).take_while(|w| ends[*w] <= limit.min(layout.capacity_blocks())).count();
            if begun < complete {
                continue;
            }
            // Each member's zone and each member's log carry out a prefix of their steps, in order.
            let mut states = vec![state.clone()];
            for (member, lane) in (0..layout.members).flat_map(|m| [(m, 0), (m, 1)]) {
                let steps_of = |w: usize| of_writes[w][member][lane].iter();
                let sure: Vec<_> = (0..complete).flat_map(steps_of).collect();
                let maybe: Vec<_> = (complete..begun).flat_map(steps_of).collect();
                states.iter_mut().for_each(|state| sure.iter().for_each(|step| state.apply(member, step)));
                let mut further = states.clone();
                for step in maybe {
                    further.iter_mut().for_each(|state| state.apply(member, step));
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
    fn recovery_tail_is_valid_after_repeated_crashes() {
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

    /// The check above detects partial parity of a write's last chunk alone.
    #[test]
    #[should_panic(expected = "instead of")]
    fn log_check_detects_parity_missing_for_previous_chunk() {
        let last_only: Parity = |layout, from, to| [None, parity_of(layout, from, to)[1]];
        crashes(&layout(4), last_only, &State::new(4), 0, [1, 2]);
    }
}
