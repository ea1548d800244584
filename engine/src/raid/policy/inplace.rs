//! Zebra: the parity of a partial stripe is updated in place, in the ZRWA, and the out-of-band metadata of each block
//! shows its content.
//!
//! *Versions.* Version `c` of a stripe's parity, at one offset of the chunk, is the XOR of the first `c` chunks there.
//! A plan writes one version at each offset that it covers ([`crate::raid::policy::zrwa::parity_of`]: up to its last
//! chunk or, at offsets beyond its end, up to the chunk before). If a version overwrote the one before it, a power cut
//! could leave the new one without the data that it covers: with a member lost at the same time nothing could be
//! decoded. So versions alternate between two places ([`Layout::slot`]), and a version is overwritten only when the
//! next one, and all data that the next one covers, is complete ([`needs`]). Hence at every instant, at every offset,
//! there is an intact version of exactly the acknowledged chunks, or of more chunks that are all present.
//!
//! *Two parities.* Versions of P and of Q cover the same chunks, and alternate in the same way, each between two places
//! of its own member. So the argument holds for each of them, and for any two members that are lost: at every offset,
//! the versions of P and Q that cover exactly the acknowledged chunks, and these chunks, lie on members of their own,
//! and at most two of these blocks are lost.
//!
//! *The tail.* A block and its metadata ([`crate::format::oob::Mark`]) are written atomically. A block of data counts
//! if its metadata says that it was written in the present epoch of the zone, or if parities decode it; the tail is the
//! end of the longest run of such blocks ([`decide`]). Blocks that an earlier assembly left beyond the tail with which
//! the zone was recovered are of an earlier generation, and do not count.

use crate::{
    code::decode::{self, Recipe, Sum},
    format::oob::Content,
    raid::{
        geometry::{Layout, ParityPlace, Role},
        policy::zrwa::Refusal,
    },
};
use std::collections::BTreeSet;

/// End of a plan that begins at block `from` of a stripe and could go on to `to`, such that versions alternate. Two
/// kinds of plans would not alternate, and are cut: a plan that covers two chunks at some offset skips a version there,
/// so that its own would be written over the latest one; and a plan that is longer than a chunk and ends inside one
/// writes two versions at some offsets, one of them over the latest one.
pub fn plan_end(layout: &Layout, from: u64, to: u64) -> u64 {
    let chunk = layout.chunk_blocks;
    let to = if from > 0 && to > from + chunk { to - to % chunk } else { to };
    let alternates = |block: u64| {
        let first = first_at(layout, from, block);
        let at = first * chunk + block;
        first == 0 || at >= to || ((to - 1 - at) / chunk).is_multiple_of(2)
    };
    // Offsets between these give the same result as one of them.
    let offsets = [0, from % chunk, to % chunk];
    if offsets.into_iter().all(alternates) { to } else { from + chunk }
}

/// The first chunk that a plan from block `from` on covers at offset `block`.
fn first_at(layout: &Layout, from: u64, block: u64) -> u64 {
    let (index, offset) = layout.chunk_of(from);
    index + (block < offset) as u64
}

/// End of the blocks of a stripe that have to be complete before a plan over its blocks `from..to` may be submitted: of
/// all blocks that the latest versions cover, if the plan overwrites the versions before these; otherwise 0.
pub fn needs(layout: &Layout, from: u64, to: u64) -> u64 {
    let chunk = layout.chunk_blocks;
    let last = to.min(from + chunk);
    if last > 2 * chunk { last - chunk } else { 0 }
}

/// Number of chunks, at offset `block`, below a tail that covers `covered` blocks of a stripe.
pub fn chunks_at(layout: &Layout, covered: u64, block: u64) -> u64 {
    covered.saturating_sub(block).div_ceil(layout.chunk_blocks)
}

/// Evidence on a zone after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InplaceEvidence {
    /// First row that was read.
    pub base_row: u64,
    /// By role; `None` if the member is missing or its part of the zone cannot be relied on.
    pub members: Vec<Option<InplacePart>>,
    /// Lower bound of the tail, in blocks of the zone.
    pub told_blocks: u64,
    /// Versions in the metadata logs of the parities' members: stripe, offset, chunks covered, number of the parity.
    pub logged: BTreeSet<(u64, u64, u64, usize)>,
}

/// Evidence on a member's part of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InplacePart {
    /// Write pointer, from the start of the part.
    pub wp_blocks: u64,
    /// Content of each block that counts, from the base row on; `None` for a block that does not count.
    pub found: Vec<Option<Content>>,
    /// Blocks that the drive could not read, counted from the base row.
    pub unreadable: BTreeSet<u64>,
    /// Records of the zone may be missing in the member's metadata log.
    pub lacks_records: bool,
}

/// A version of a parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Number of the parity.
    pub which: usize,
    /// Number of chunks that it covers.
    pub covers: u64,
    /// Its place on the parity's member.
    pub place: ParityPlace,
}

/// The available symbols at one offset of a stripe.
#[derive(Default)]
pub struct InplaceColumn {
    /// Data chunks.
    pub data: Vec<u64>,
    /// Versions of the parities.
    pub versions: Vec<Version>,
    /// The sums that these data chunks, and then these versions, are.
    pub sums: Vec<Sum>,
}

impl InplaceColumn {
    fn solve(&self, wanted: Sum) -> Option<Recipe> {
        decode::solve(u128::MAX, &self.sums, wanted)
    }
}

impl InplaceEvidence {
    fn found(&self, layout: &Layout, member: usize, row: u64, block: u64) -> Option<Content> {
        let at = (row.checked_sub(self.base_row)? * layout.chunk_blocks + block) as usize;
        *self.members[member].as_ref()?.found.get(at)?
    }

    /// Whether block `block` of data chunk `index` of `stripe` counts and is on its member.
    pub fn is_present(&self, layout: &Layout, stripe: u64, index: u64, block: u64) -> bool {
        let member = layout.member(stripe, index);
        self.found(layout, member, stripe, block) == Some(Content::Data)
    }

    /// Number of chunks, at offset `block`, covered by the version of parity number `which` in the stripe's own row.
    pub fn own_version(&self, layout: &Layout, stripe: u64, which: usize, block: u64) -> Option<u64> {
        match self.found(layout, layout.parity_member(stripe, which), stripe, block)? {
            Content::Parity(covers) => Some(covers as u64),
            _ => None,
        }
    }

    /// The available versions of one of a stripe's parities at offset `block`.
    fn versions(
        &self,
        layout: &Layout,
        stripe: u64,
        which: usize,
        block: u64,
    ) -> impl Iterator<Item = Version> {
        let member = layout.parity_member(stripe, which);
        let own =
            self.own_version(layout, stripe, which, block).map(|covers| (covers, ParityPlace::Row(stripe)));
        let row = stripe + layout.distance;
        let ahead = match self.found(layout, member, row, block) {
            Some(Content::Ahead(covers)) => Some((covers as u64, ParityPlace::Row(row))),
            _ => None,
        };
        let is_there = self.members[member].is_some();
        let logged = self.logged.range((stripe, block, 0, 0)..(stripe, block + 1, 0, 0));
        let logged = logged.filter(move |(_, _, _, of)| is_there && *of == which);
        let logged = logged.map(|(_, _, covers, _)| (*covers, ParityPlace::MetaLog));
        let all = own.into_iter().chain(ahead).chain(logged);
        all.map(move |(covers, place)| Version { which, covers, place })
    }

    /// The available symbols at offset `block` of a stripe.
    pub fn column(&self, layout: &Layout, stripe: u64, block: u64) -> InplaceColumn {
        let k = layout.data_chunks();
        let mut column = InplaceColumn::default();
        for index in (0..k).filter(|index| self.is_present(layout, stripe, *index, block)) {
            column.data.push(index);
            column.sums.push(Sum::data(index as usize));
        }
        for version in (0..layout.parities).flat_map(|which| self.versions(layout, stripe, which, block)) {
            // A version of more chunks than a stripe has is invalid.
            if (1..=k).contains(&version.covers) && column.sums.len() < decode::MAX_STORED {
                column.versions.push(version);
                column.sums.push(Sum::parity(version.which, version.covers as usize));
            }
        }
        column
    }

    /// Number of members with unknown content at offset `block` of `stripe`. If there are more than parities, there may
    /// be data that no evidence shows.
    fn unknown(&self, layout: &Layout, stripe: u64, block: u64) -> usize {
        let chunk = layout.chunk_blocks;
        let own = stripe.saturating_sub(self.base_row) * chunk + block;
        let is_unknown = |(member, part): (usize, &Option<InplacePart>)| {
            part.as_ref().is_none_or(|part| {
                let ahead = matches!(layout.role(member, stripe), Role::Parity(_))
                    && (part.unreadable.contains(&(own + layout.distance * chunk))
                        || part.lacks_records && stripe + layout.distance >= layout.rows);
                ahead || part.unreadable.contains(&own)
            })
        };
        self.members.iter().enumerate().filter(|member| is_unknown(*member)).count()
    }

    /// Whether a block of data is present or can be decoded.
    fn is_recoverable(&self, layout: &Layout, stripe: u64, index: u64, block: u64) -> bool {
        self.is_present(layout, stripe, index, block)
            || self.column(layout, stripe, block).solve(Sum::data(index as usize)).is_some()
    }

    /// Tail of a zone of which recovery may write nothing, not above the tail `tail_blocks` that was decided: it ends
    /// before the first block, or full parity of a complete stripe, that its member could read and does not hold. Such
    /// a block was not complete, so all acknowledged blocks are below.
    pub fn end_as_stored(&self, layout: &Layout, tail_blocks: u64) -> u64 {
        assert!(
            tail_blocks <= layout.capacity_blocks(),
            "a tail at {tail_blocks}, beyond the end of the zone"
        );
        let (chunk, k, stripe_blocks) = (layout.chunk_blocks, layout.data_chunks(), layout.stripe_blocks());
        let can_read = |member: usize, stripe: u64, block: u64| {
            let at = (stripe - self.base_row) * chunk + block;
            self.members[member].as_ref().is_some_and(|part| !part.unreadable.contains(&at))
        };
        let is_stored = |at: u64| {
            let (stripe, (index, block)) = (at / stripe_blocks, layout.chunk_of(at % stripe_blocks));
            self.is_present(layout, stripe, index, block)
                || !can_read(layout.member(stripe, index), stripe, block)
        };
        // Complete stripes were acknowledged with their parities.
        let has_parity = |at: u64| {
            let (stripe, (index, block)) = (at / stripe_blocks, layout.chunk_of(at % stripe_blocks));
            index + 1 < k
                || (stripe + 1) * stripe_blocks > tail_blocks
                || (0..layout.parities).all(|which| {
                    self.own_version(layout, stripe, which, block) == Some(k)
                        || !can_read(layout.parity_member(stripe, which), stripe, block)
                })
        };
        let from = (self.base_row * stripe_blocks).min(tail_blocks);
        (from..tail_blocks).find(|at| !is_stored(*at) || !has_parity(*at)).unwrap_or(tail_blocks)
    }
}

/// Tail of the zone in blocks, all of which are present or can be decoded: at least the acknowledged ones; or a
/// refusal. `finished` is the tail of a zone that was finished.
pub fn decide(layout: &Layout, evidence: &InplaceEvidence, finished: Option<u64>) -> Result<u64, Refusal> {
    let chunk = layout.chunk_blocks;
    let stripe_blocks = layout.stripe_blocks();
    let mut floor = finished.unwrap_or(evidence.told_blocks);
    if floor > layout.capacity_blocks() {
        return Err(Refusal::Beyond(floor));
    }
    for (member, part) in evidence.members.iter().enumerate() {
        let Some(InplacePart { wp_blocks, .. }) = *part else { continue };
        if finished.is_some() {
            // A finish moves write pointers beyond the tail.
            continue;
        }
        if !wp_blocks.is_multiple_of(chunk) {
            return Err(Refusal::Position { member, wp_blocks });
        }
        // Write pointers pass complete stripes only.
        floor = floor.max(wp_blocks / chunk * stripe_blocks);
    }
    let end = finished.unwrap_or(layout.capacity_blocks());
    let mut tail = (evidence.base_row * stripe_blocks).min(end);
    while tail < end {
        let (stripe, (index, block)) = (tail / stripe_blocks, layout.chunk_of(tail % stripe_blocks));
        if !evidence.is_recoverable(layout, stripe, index, block) {
            if evidence.unknown(layout, stripe, block) > layout.parities {
                return Err(Refusal::Lacking { member: layout.member(stripe, index) });
            }
            break;
        }
        tail += 1;
    }
    // A stripe is begun only when every member has passed the row `distance` before it.
    let begun = tail.div_ceil(stripe_blocks);
    for (member, part) in evidence.members.iter().enumerate().filter(|_| finished.is_none()) {
        let Some(InplacePart { wp_blocks, .. }) = *part else { continue };
        if wp_blocks / chunk + layout.distance < begun.max(floor.div_ceil(stripe_blocks)) {
            return Err(Refusal::Behind { member, wp_blocks, tail_blocks: tail.max(floor) });
        }
    }
    if tail < floor {
        let present = evidence.members.iter().flatten().count();
        let (members, needed) = (layout.members, layout.fewest_members());
        let (stripe, (index, _)) = (tail / stripe_blocks, layout.chunk_of(tail % stripe_blocks));
        return Err(match present < needed {
            true => Refusal::TooFew { present, members, needed },
            false => Refusal::Lacking { member: layout.member(stripe, index) },
        });
    }
    Ok(tail)
}

/// Content, for the metadata, of a block in row `row` with parity of chunks `0..=index` of `stripe`.
pub fn version_of(stripe: u64, row: u64, index: u64) -> Content {
    let covers = index as u8 + 1;
    assert!(row >= stripe, "a parity of stripe {stripe} in row {row}");
    if row == stripe { Content::Parity(covers) } else { Content::Ahead(covers) }
}

/// See [`crate::raid::policy::Policy::plan_end`].
pub fn end_of_plan(layout: &Layout, safe: u64, next: u64, end: u64) -> Result<u64, u64> {
    let from = next % layout.stripe_blocks();
    let base = next - from;
    let to = plan_end(layout, from, end - base);
    assert!(from < to && to <= layout.stripe_blocks(), "a plan of blocks {from}..{to} of a stripe");
    let needed = base + needs(layout, from, to);
    if needed > base.max(safe) { Err(needed) } else { Ok(base + to) }
}

/// See [`crate::raid::policy::Policy::chunks_to_claim`]. Write pointers move when half of the window is used up, since
/// each move takes a command.
pub fn chunks_to_claim(layout: &Layout, complete: u64, claimed: u64) -> u64 {
    let (stripes, passed) = (complete / layout.stripe_blocks(), claimed / layout.data_chunks());
    let due = stripes >= passed + (layout.distance / 2).max(1) || complete == layout.capacity_blocks();
    let chunks = if due { stripes * layout.data_chunks() } else { claimed };
    assert!(chunks >= claimed, "{chunks} chunks would be claimed after {claimed}");
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::{
        geometry::{each, tests::losses},
        policy::{Policy, zrwa},
    };

    fn layout(members: usize, distance: u64) -> Layout {
        Layout { policy: Policy::InPlace, members, parities: 1, chunk_blocks: 2, rows: 3, distance }
    }

    #[test]
    fn inplace_plan_never_overwrites_previous_parity_version() {
        let mut cut = 0;
        for (members, chunk_blocks) in (3..=9).flat_map(|members| [(members, 2), (members, 4)]) {
            let layout = Layout { chunk_blocks, ..layout(members, 2) };
            let stripe = layout.stripe_blocks();
            for (from, to) in (1..stripe).flat_map(|from| (from + 1..=stripe).map(move |to| (from, to))) {
                let end = plan_end(&layout, from, to);
                assert!(from < end && end <= to);
                cut += (end < to) as u32;
                for part in zrwa::parity_of(&layout, from, end).into_iter().flatten() {
                    for block in part.from..part.to {
                        let before = chunks_at(&layout, from, block);
                        let turns = part.index + 1 - before;
                        assert!(before == 0 || turns % 2 == 1, "{layout:?} {from}..{end} at {block}");
                    }
                }
            }
        }
        assert!(cut > 0);
    }

    /// A block that a plan writes: member, place, block of the chunk, content.
    type BlockWrite = (usize, ParityPlace, u64, Content);

    /// The block writes of a plan over blocks `from..to` of a zone, in one stripe.
    fn block_writes(layout: &Layout, from: u64, to: u64) -> Vec<BlockWrite> {
        let (stripe, chunk) = (from / layout.stripe_blocks(), layout.chunk_blocks);
        let base = stripe * layout.stripe_blocks();
        let mut all = Vec::new();
        for at in from - base..to - base {
            let (index, block) = layout.chunk_of(at);
            all.push((layout.member(stripe, index), ParityPlace::Row(stripe), block, Content::Data));
        }
        let parts = zrwa::parity_of(layout, from - base, to - base).into_iter().flatten();
        for (which, part) in parts.flat_map(|part| (0..layout.parities).map(move |which| (which, part))) {
            let (member, place) = layout.slot(stripe, part.index, which);
            let covers = part.index as u8 + 1;
            let content = match place {
                ParityPlace::Row(row) if row == stripe => Content::Parity(covers),
                _ => Content::Ahead(covers),
            };
            all.extend((part.from..part.to).map(|block| (member, place, block, content)));
        }
        assert!(all.iter().all(|(_, _, block, _)| *block < chunk));
        all
    }

    fn apply(layout: &Layout, evidence: &mut InplaceEvidence, stripe: u64, write: BlockWrite) {
        let (member, place, block, content) = write;
        match (place, content) {
            (ParityPlace::Row(row), _) => {
                let Some(part) = &mut evidence.members[member] else { return };
                part.found[(row * layout.chunk_blocks + block) as usize] = Some(content);
            }
            (ParityPlace::MetaLog, Content::Ahead(covers)) => {
                let which = layout.slot_of(member, stripe, covers as u64 - 1).unwrap();
                evidence.logged.insert((stripe, block, covers as u64, which));
            }
            _ => unreachable!(),
        }
    }

    /// Rules for plans; each is broken in one test.
    struct Rules {
        /// Versions alternate ([`plan_end`]).
        alternate: bool,
        /// Plans wait for the data that the latest versions cover ([`needs`]).
        wait: bool,
    }

    /// Evidence on a zone without data.
    fn unwritten(layout: &Layout) -> InplaceEvidence {
        let found = vec![None; (layout.rows * layout.chunk_blocks) as usize];
        let blank = InplacePart { found, ..InplacePart::default() };
        InplaceEvidence {
            base_row: 0,
            members: vec![Some(blank); layout.members],
            told_blocks: 0,
            logged: BTreeSet::new(),
        }
    }

    /// Evidence on a zone without data, with `change` applied to each member.
    fn evidence_with(layout: &Layout, change: impl Fn(usize, &mut InplacePart)) -> InplaceEvidence {
        let mut evidence = unwritten(layout);
        let members = evidence.members.iter_mut().flatten().enumerate();
        members.for_each(|(member, part)| change(member, part));
        evidence
    }

    #[test]
    fn recovery_refuses_states_no_crash_leaves() {
        let layout = layout(4, 1);
        let decide = |evidence: &InplaceEvidence, finished| decide(&layout, evidence, finished);
        let wps = |wps: [u64; 4]| evidence_with(&layout, |member, part| part.wp_blocks = wps[member]);
        let odd = Refusal::Position { member: 2, wp_blocks: 1 };
        assert_eq!(decide(&wps([0, 0, 1, 0]), None), Err(odd));
        // Data is missing below a write pointer that has passed a row, below the tail of a finish, and below the lower
        // bound of the tail.
        let lacking = Refusal::Lacking { member: 0 };
        assert_eq!(decide(&wps([2, 0, 2, 0]), None), Err(lacking.clone()));
        assert_eq!(decide(&wps([0; 4]), Some(5)), Err(lacking.clone()));
        assert_eq!(decide(&InplaceEvidence { told_blocks: 1, ..wps([0; 4]) }, None), Err(lacking.clone()));
        // A stripe is begun when all members have passed the row of the one before.
        let behind = Refusal::Behind { member: 0, wp_blocks: 0, tail_blocks: 12 };
        assert_eq!(decide(&wps([0, 4, 4, 4]), None), Err(behind));
        // Data on one member with unknown content would be decoded; on two it could not be.
        let unreadable = |most: usize| {
            evidence_with(&layout, |member, part| part.unreadable.extend((member < most).then_some(0)))
        };
        assert_eq!(decide(&unreadable(1), None), Ok(0));
        assert_eq!(decide(&unreadable(2), None), Err(lacking));
    }

    #[test]
    fn inplace_ignores_parity_logged_by_lost_member() {
        let layout = layout(4, 1);
        let mut evidence = evidence_with(&layout, |_, part| part.wp_blocks = 4);
        (evidence.base_row, evidence.told_blocks) = (2, 12);
        evidence.logged.extend([(2, 0, 1, 0), (2, 1, 1, 0)]);
        assert_eq!(decide(&layout, &evidence, None), Ok(14));
        evidence.members[layout.parity_member(2, 0)] = None;
        assert_eq!(decide(&layout, &evidence, None), Ok(12));
    }

    /// Explores the possible states of the drives while plans of every size are in flight, several at a time, and
    /// checks the tail that recovery finds after each crash, with every member missing in turn. Returns the number of
    /// crashes.
    fn explore(layout: &Layout, rules: &Rules) -> usize {
        let mut todo = vec![(unwritten(layout), 0)];
        let mut seen = BTreeSet::new();
        let mut crashes = 0;
        while let Some((evidence, complete)) = todo.pop() {
            if !seen.insert(format!("{complete} {evidence:?}")) {
                continue;
            }
            for plans in flights(layout, rules, complete, complete) {
                // The window: write pointers have passed as many complete rows as the plans need.
                let begun = plans[plans.len() - 1].div_ceil(layout.stripe_blocks());
                let passed = begun.saturating_sub(layout.distance);
                if passed > complete / layout.stripe_blocks() {
                    continue;
                }
                let mut evidence = evidence.clone();
                for part in evidence.members.iter_mut().flatten() {
                    part.wp_blocks = part.wp_blocks.max(passed * layout.chunk_blocks);
                }
                let all: Vec<_> = plans.windows(2).flat_map(|p| block_writes(layout, p[0], p[1])).collect();
                let stripe_of = |at: usize| {
                    let mut count = 0;
                    let plan = plans.windows(2).find(|p| {
                        count += block_writes(layout, p[0], p[1]).len();
                        at < count
                    });
                    plan.map_or(0, |p| p[0] / layout.stripe_blocks())
                };
                for done in 0..1u32 << all.len() {
                    let mut crashed = evidence.clone();
                    for (at, write) in all.iter().enumerate().filter(|(at, _)| done & (1 << at) != 0) {
                        apply(layout, &mut crashed, stripe_of(at), *write);
                    }
                    for missing in losses(layout) {
                        let mut left = crashed.clone();
                        each(missing).for_each(|member| left.members[member] = None);
                        let tail = decide(layout, &left, None);
                        let most = plans[plans.len() - 1];
                        assert!(
                            tail.as_ref().is_ok_and(|tail| (complete..=most).contains(tail)),
                            "recovered {tail:?} instead of {complete}: {plans:?} {missing:b} {left:?}"
                        );
                        crashes += 1;
                    }
                }
                let mut next = evidence.clone();
                for write in block_writes(layout, plans[0], plans[1]) {
                    apply(layout, &mut next, plans[0] / layout.stripe_blocks(), write);
                }
                todo.push((next, plans[1]));
            }
        }
        crashes
    }

    /// Sequences of plans from block `from` on that may be in flight with all blocks below `complete` complete, each as
    /// the borders of its plans.
    fn flights(layout: &Layout, rules: &Rules, complete: u64, from: u64) -> Vec<Vec<u64>> {
        const MOST_IN_FLIGHT: u64 = 5;
        let stripe_blocks = layout.stripe_blocks();
        let base = from / stripe_blocks * stripe_blocks;
        let window = (complete / stripe_blocks + layout.distance) * stripe_blocks;
        let most = (complete + MOST_IN_FLIGHT).min(base + stripe_blocks).min(2 * stripe_blocks).min(window);
        let mut all = Vec::new();
        for to in from + 1..=most {
            let alternates = plan_end(layout, from - base, to - base) == to - base;
            let waits = needs(layout, from - base, to - base);
            if rules.alternate && !alternates || rules.wait && waits > 0 && base + waits > complete {
                continue;
            }
            all.push(vec![from, to]);
            all.extend(
                flights(layout, rules, complete, to).into_iter().map(|rest| [&[from], &rest[..]].concat()),
            );
        }
        all
    }

    #[test]
    fn recovery_tail_is_valid_from_reachable_states() {
        let rules = Rules { alternate: true, wait: true };
        let mut crashes = 0;
        // With the other place of versions in the zone, and in the metadata log.
        for (members, distance) in [(3, 1), (3, 3), (4, 1), (4, 3), (5, 1)] {
            crashes += explore(&layout(members, distance), &rules);
        }
        for (members, distance) in [(4, 1), (4, 3), (5, 1)] {
            crashes += explore(&Layout { parities: 2, ..layout(members, distance) }, &rules);
        }
        assert!(crashes > 100_000, "{crashes}");
    }

    #[test]
    #[should_panic(expected = "recovered ")]
    fn inplace_explorer_detects_versions_not_alternating() {
        explore(&layout(5, 1), &Rules { alternate: false, wait: true });
    }

    #[test]
    #[should_panic(expected = "recovered ")]
    fn inplace_explorer_detects_versions_not_waiting() {
        explore(&layout(4, 1), &Rules { alternate: true, wait: false });
    }

    #[test]
    fn inplace_plan_is_cut_only_where_required() {
        let layout = Layout { chunk_blocks: 4, ..layout(5, 1) };
        // A plan may have any size from the start of a stripe; elsewhere up to a chunk, or three chunks.
        for to in 1..=16 {
            assert_eq!(plan_end(&layout, 0, to), to);
        }
        for from in 1..16 {
            for to in from + 1..=16.min(from + 4) {
                assert_eq!(plan_end(&layout, from, to), to, "{from}");
            }
        }
        assert_eq!(
            (plan_end(&layout, 4, 16), plan_end(&layout, 8, 16), plan_end(&layout, 5, 16)),
            (16, 12, 9)
        );
        assert_eq!((needs(&layout, 0, 16), needs(&layout, 4, 16), needs(&layout, 8, 9)), (0, 0, 5));
    }
}
