//! ZRAID: the parity that a write needs, the claims of write pointers, and the tail of a zone (§4.2–4.5).
//!
//! Pure functions, and the whole argument for why recovery is exact. `n` counts the complete chunks of a zone; a
//! *position* is a member's write pointer in half chunks.
//!
//! **Claims.** A position stands for the chunks that were complete when it was set: half-way through a chunk, all up to
//! this chunk; at its end, the next one too (`claim`). Recovery takes the largest claim. For that to be right two
//! things must hold at every instant:
//!
//! 1. *Every claim is true.* A position is set only after all blocks that it claims, and their parity, are safe on the
//!    members.
//! 2. *The largest claim can be decoded, whichever member is missing.* Decoding a tail of `n` chunks needs the slot of
//!    chunk `n − 1` for every offset, and a write fills only the slots of the tails that settling will claim
//!    (`parity_of`). Such a tail is claimed by its *witnesses*: the write pointer of the member of chunk `n − 1` stops
//!    half-way, that of chunk `n − 2` goes to the end. The write pointer of any other member, when it moves, claims a
//!    tail that may have no slot. So the others move only when enough witnesses of a larger tail are in place:
//!    `settled(n)` gives the positions that are then allowed. (The paper: 'the last two data chunks are advanced
//!    first'.)
//!
//! A tail inside a chunk is known from a log record; it is decoded with the slot of its chunk below the tail's offset
//! and the slot of the chunk before it above.
//!
//! **Two parities.** Two members may be lost besides the power, so a tail takes three witnesses. But a write pointer
//! stops in two places of a chunk only, so a tail can have two. Hence with Q write pointers show complete stripes only
//! ([`shows_chunks`]), and every other tail that is promised is logged, on three members:
//!
//! 1. *Every claim is true*: a write pointer passes a row only when its whole stripe is safe on the members.
//! 2. *The largest claim can be decoded*: it is the end of a complete stripe, which has its full parities. So write
//!    pointers may move in any order.
//! 3. *A promised tail is found*: at the end of a stripe every member is a witness; elsewhere three members have the
//!    record, of which two may be lost. A record is written when the plan that ends there is safe, with all its slots.
//! 4. *It can be decoded*: the chunks below the tail and the slots of its last chunk, and of the one before it above
//!    the tail's offset, all lie on members of their own ([`Layout::slot`]); any two of them are decoded from the
//!    others.
//! 5. *None of these is overwritten too early*: row `r` gets data of stripe `r`, before that P of stripe `r − D`, and
//!    first of all Q of stripe `r − 2D` and the log of its tails. Stripe `s` may be written when all members have
//!    passed row `s − D`, and then stripe `s − D` is complete, and every member shows it. So the slots in row `s + D`,
//!    of Q of stripe `s − D`, are not needed any more, and those in row `s`, of P of that stripe, neither. A log block
//!    is the first block written in its place, so it is whole, unwritten or damaged as long as recovery may read it.
//!
//! Write pointers move once a stripe, not with every chunk, so this takes fewer flushes than one parity.

use crate::raid::{
    Consistency,
    geometry::{Layout, MAX_MEMBERS, ParityPlace, Role},
};
use std::ops::Range;

/// Complete chunks that `member`'s write pointer at `position` (half chunks) claims; `None` if the array never sets it.
pub fn claim(layout: &Layout, member: usize, position: u64) -> Option<u64> {
    let k = layout.data_chunks();
    if position == 0 {
        return Some(0);
    }
    if position > 2 * layout.rows {
        return None;
    }
    if !shows_chunks(layout) {
        return position.is_multiple_of(2).then_some(position / 2 * k);
    }
    let row = (position - 1) / 2;
    let half = position % 2 == 1;
    match (layout.role(member, row), half) {
        (Role::Data(index), true) => Some(row * k + index + 1),
        (Role::Data(index), false) if index + 1 < k => Some(row * k + index + 2),
        (Role::Data(_), false) if layout.carries() && row + 1 < layout.rows => Some(row * k + k + 1),
        (Role::Data(_) | Role::Parity(_), false) => Some(row * k + k),
        (Role::Parity(_), true) => None,
    }
}

/// Whether write pointers show tails between two chunks of a stripe; otherwise they show complete stripes only.
pub fn shows_chunks(layout: &Layout) -> bool {
    layout.parities == 1
}

/// The witnesses of a tail of `n` chunks and their positions: the members of the chunk before the last, where that is
/// another member, and of the last one. None where write pointers show complete stripes only.
pub fn witnesses(layout: &Layout, n: u64) -> [Option<(usize, u64)>; 2] {
    let k = layout.data_chunks();
    let Some(last) = n.checked_sub(1).filter(|_| shows_chunks(layout)) else { return [None, None] };
    let (stripe, index) = (last / k, last % k);
    let ends_zone = n == layout.chunks();
    let own = (layout.member(stripe, index), 2 * stripe + 1 + ends_zone as u64);
    let before = if index > 0 {
        Some((layout.member(stripe, index - 1), 2 * stripe + 2))
    } else if stripe > 0 && layout.carries() {
        Some((layout.member(stripe - 1, k - 1), 2 * stripe))
    } else {
        None
    };
    [before, Some(own)]
}

/// The position of `member` when `n` chunks are settled: the highest that claims no more.
pub fn settled(layout: &Layout, member: usize, n: u64) -> u64 {
    assert!(n <= layout.chunks(), "{n} chunks of {}", layout.chunks());
    let k = layout.data_chunks();
    if n == layout.chunks() {
        return 2 * layout.rows;
    }
    let (stripe, complete) = (n / k, n % k);
    if !shows_chunks(layout) {
        return 2 * stripe;
    }
    if complete == 0 {
        let held_back =
            stripe > 0 && layout.carries() && layout.role(member, stripe - 1) == Role::Data(k - 1);
        return 2 * stripe - held_back as u64;
    }
    match layout.role(member, stripe) {
        Role::Data(index) if index + 1 < complete => 2 * stripe + 2,
        Role::Data(index) if index + 1 == complete => 2 * stripe + 1,
        _ => 2 * stripe,
    }
}

/// Target positions in half chunks, by member; 0 for members that do not move.
pub type Targets = [u64; MAX_MEMBERS];

/// Number of members of `live` that witness a tail of `n` chunks.
pub fn witness_count(layout: &Layout, live: u32, n: u64) -> usize {
    if !shows_chunks(layout) && n.is_multiple_of(layout.data_chunks()) {
        return live.count_ones() as usize;
    }
    witnesses(layout, n).iter().flatten().filter(|(member, _)| live & (1 << member) != 0).count()
}

/// Number of witnesses that a tail needs: one more than parity allows of the `live` members to be lost.
pub fn needed(layout: &Layout, live: u32) -> usize {
    1 + (live.count_ones() as usize).saturating_sub(layout.fewest_members())
}

/// Targets of the next round of explicit flushes, which are submitted together, until write pointers show `n` complete
/// chunks; `None` when they do. The write pointers of a round have to be durable before the next one.
pub fn next_round(layout: &Layout, live: u32, positions: &Targets, n: u64) -> Option<Targets> {
    let stripe_end = n - n % layout.data_chunks();
    // For a tail with too few witnesses of its own, no other member moves past the end of its last complete stripe.
    let shown = witness_count(layout, live, n) >= needed(layout, live);
    let goals = [stripe_end, n];
    goals[shown as usize..].iter().find_map(|goal| {
        witness_round(layout, live, positions, *goal)
            .or_else(|| laggard_round(layout, live, positions, *goal))
    })
}

/// The round that moves the witnesses of a tail of `n` chunks; `None` if they are in place.
pub fn witness_round(layout: &Layout, live: u32, positions: &Targets, n: u64) -> Option<Targets> {
    let mut targets = [0; MAX_MEMBERS];
    for (member, position) in witnesses(layout, n).into_iter().flatten() {
        if live & (1 << member) != 0 && positions[member] < position {
            targets[member] = targets[member].max(position);
        }
    }
    (targets != [0; MAX_MEMBERS]).then_some(targets)
}

/// The round that moves the members which have not passed the last complete stripe below `n` chunks; `None` if there
/// are none. Called when the live witnesses of `n` chunks are in place.
pub fn laggard_round(layout: &Layout, live: u32, positions: &Targets, n: u64) -> Option<Targets> {
    let stripe_end = n - n % layout.data_chunks();
    let row = 2 * (stripe_end / layout.data_chunks());
    let shown = witness_count(layout, live, n) >= needed(layout, live);
    let safe = if shown { n } else { stripe_end };
    let mut targets = [0; MAX_MEMBERS];
    for member in (0..layout.members).filter(|m| live & (1 << m) != 0 && positions[*m] < row) {
        let position = settled(layout, member, safe);
        if position > positions[member] {
            targets[member] = position;
        }
    }
    (targets != [0; MAX_MEMBERS]).then_some(targets)
}

/// End of the window, in stripes, with the members of `live` at `positions`: a stripe may be written when all have
/// passed the row with the slots that it overwrites.
pub fn window_rows(layout: &Layout, live: u32, positions: &Targets) -> u64 {
    let passed = (0..layout.members).filter(|m| live & (1 << m) != 0).map(|m| positions[m]).min();
    (passed.unwrap_or(0) / 2 + layout.distance).min(layout.rows)
}

/// Part of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPart {
    /// Chunk of the stripe that the slot belongs to.
    pub index: u64,
    /// First block to fill, from the start of the chunk.
    pub from: u64,
    /// Exclusive end.
    pub to: u64,
}

/// The parity to write with blocks `from..to` of a stripe's data, so that every tail that recovery can find is decoded:
/// the slot of the last chunk and, if the write ends inside that chunk, the missing blocks of the slot of the previous.
pub fn parity_of(layout: &Layout, from: u64, to: u64) -> [Option<SlotPart>; 2] {
    assert!(from < to && to <= layout.stripe_blocks(), "blocks {from}..{to} of a stripe");
    let chunk = layout.chunk_blocks;
    let ((first, offset), (last, _)) = (layout.chunk_of(from), layout.chunk_of(to - 1));
    let begin = |index: u64| if index == first { offset } else { 0 };
    let end = to - last * chunk;
    let before =
        (end < chunk && first < last).then(|| SlotPart { index: last - 1, from: begin(last - 1), to: chunk });
    [before, Some(SlotPart { index: last, from: begin(last), to: end })]
}

/// Blocks of `member`'s part of a zone that a tail at `tail_blocks` needs: data and full parity of complete stripes,
/// and of a partial stripe the data and the slots. Not sorted.
pub fn needed_of(layout: &Layout, member: usize, tail_blocks: u64) -> Vec<Range<u64>> {
    let chunk = layout.chunk_blocks;
    let (stripe, covered) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
    let rows = 0..stripe * chunk;
    let data = match layout.role(member, stripe) {
        Role::Data(index) => rows.end..rows.end + covered.saturating_sub(index * chunk).min(chunk),
        Role::Parity(_) => 0..0,
    };
    let slots = tail_slots(layout, covered).filter_map(|(which, part)| {
        match layout.slot(stripe, part.index, which) {
            (at, ParityPlace::Row(row)) if at == member => {
                Some(row * chunk + part.from..row * chunk + part.to)
            }
            _ => None,
        }
    });
    [rows, data].into_iter().chain(slots).filter(|blocks| !blocks.is_empty()).collect()
}

/// The slots that decode a tail which covers `covered` blocks of a stripe's data, each with the number of its parity.
pub fn tail_slots(layout: &Layout, covered: u64) -> impl Iterator<Item = (usize, SlotPart)> + use<> {
    assert!(covered <= layout.stripe_blocks(), "a tail covers {covered} blocks of a stripe");
    let chunk = layout.chunk_blocks;
    let parts = covered.checked_sub(1).map(|block| block / chunk).map(|last| {
        let end = covered - last * chunk;
        let before = (last > 0 && end < chunk).then(|| SlotPart { index: last - 1, from: end, to: chunk });
        [Some(SlotPart { index: last, from: 0, to: end }), before]
    });
    let parts = parts.unwrap_or_default();
    (0..layout.parities).flat_map(move |which| parts.into_iter().flatten().map(move |part| (which, part)))
}

/// Evidence on a zone after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZrwaEvidence {
    /// Write pointer of each member in blocks; `None` if the member is missing or its part of the
    /// zone cannot be relied on.
    pub wp_blocks: Vec<Option<u64>>,
    /// Lower bound of the tail in blocks, if there is any: the largest tail in a valid log record, or the end of the
    /// data that a process which died had acknowledged.
    pub told_blocks: Option<u64>,
}

/// Why the tail of a zone cannot be determined.
#[expect(missing_docs, reason = "the messages describe the variants")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{present} of {members} members have a usable part of the zone, {needed} are needed")]
    TooFew { present: usize, members: usize, needed: usize },
    #[error(
        "the write pointer of member {member} is at block {wp_blocks}, a position that zoneraid never sets"
    )]
    Position { member: usize, wp_blocks: u64 },
    #[error(
        "the write pointer of member {member} is at block {wp_blocks}, too far behind a tail of {tail_blocks} blocks"
    )]
    Behind { member: usize, wp_blocks: u64, tail_blocks: u64 },
    #[error("data and parity of its first rows contradict each other")]
    Contradiction,
    #[error(
        "member {member} has lost or cannot read data of the zone, and the other members cannot restore it"
    )]
    Lacking { member: usize },
    #[error(
        "log blocks of member {member} that may hold the tail are unreadable or damaged, and no other present \
         member has a copy"
    )]
    Log { member: usize },
    #[error(
        "log blocks of member {member} that may hold a later reset of the zone are unreadable or damaged, and no other \
         present member has a copy"
    )]
    Record { member: usize },
    #[error(
        "the write pointer of member {member} is at block {wp_blocks}, too far ahead of a tail of {tail_blocks} blocks"
    )]
    Ahead { member: usize, wp_blocks: u64, tail_blocks: u64 },
    #[error(
        "writes up to block {told_blocks} had been acknowledged, but the data ends at block {tail_blocks}"
    )]
    Short { told_blocks: u64, tail_blocks: u64 },
    #[error("the recorded tail is block {0}, beyond the end of the zone")]
    Beyond(u64),
    #[error("the zone holds data, but there is no record of its first write")]
    Unrecorded,
    #[error(
        "it has lost data: durable writes up to block {promised_blocks} are missing, since the drives have \
         lost their ZRWAs; reset the zone to use it again"
    )]
    PromiseLost { promised_blocks: u64 },
    #[error("it holds no data, and too many members cannot write their part of it any more")]
    ReadOnly,
}

impl Refusal {
    /// Whether no crash leaves such a state: a member may have been changed from outside of the array.
    pub fn accuses(&self) -> bool {
        match self {
            Refusal::Position { .. }
            | Refusal::Behind { .. }
            | Refusal::Ahead { .. }
            | Refusal::Beyond(_)
            | Refusal::Short { .. }
            | Refusal::Unrecorded => true,
            Refusal::TooFew { .. }
            | Refusal::Contradiction
            | Refusal::Lacking { .. }
            | Refusal::Log { .. }
            | Refusal::Record { .. }
            | Refusal::PromiseLost { .. }
            | Refusal::ReadOnly => false,
        }
    }
}

/// Tail of the zone in blocks, which were complete and can be decoded: at least the promised ones; or a refusal.
pub fn decide(layout: &Layout, evidence: &ZrwaEvidence) -> Result<u64, Refusal> {
    let half = layout.chunk_blocks / 2;
    let present = evidence.wp_blocks.iter().flatten().count();
    let needed = layout.fewest_members();
    if present < needed {
        return Err(Refusal::TooFew { present, members: layout.members, needed });
    }
    let members = || evidence.wp_blocks.iter().enumerate().filter_map(|(m, wp)| Some((m, (*wp)?)));
    let mut chunks = 0;
    for (member, wp_blocks) in members() {
        let claimed = if wp_blocks % half == 0 { claim(layout, member, wp_blocks / half) } else { None };
        chunks = chunks.max(claimed.ok_or(Refusal::Position { member, wp_blocks })?);
    }
    let tail_blocks = (chunks * layout.chunk_blocks).max(evidence.told_blocks.unwrap_or(0));
    // A stripe is begun only when every member has passed the row `distance` before it.
    let last_stripe = tail_blocks.saturating_sub(1) / layout.stripe_blocks();
    if tail_blocks > layout.capacity_blocks() {
        return Err(Refusal::Beyond(tail_blocks));
    }
    for (member, wp_blocks) in members() {
        if wp_blocks / layout.chunk_blocks + layout.distance < last_stripe + 1 {
            return Err(Refusal::Behind { member, wp_blocks, tail_blocks });
        }
    }
    Ok(tail_blocks)
}

/// See [`crate::raid::policy::Policy::chunks_to_claim`].
pub fn chunks_to_claim(layout: &Layout, consistency: Consistency, complete: u64) -> u64 {
    let chunks = complete / layout.chunk_blocks;
    match consistency {
        Consistency::Chunk | Consistency::WpLog if shows_chunks(layout) => chunks,
        _ => chunks - chunks % layout.data_chunks(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::{geometry::tests::losses, policy::Policy};
    use std::collections::BTreeSet;

    fn layout(members: usize, rows: u64, distance: u64) -> Layout {
        Layout { policy: Policy::Zrwa, members, parities: 1, chunk_blocks: 4, rows, distance }
    }

    fn layouts() -> impl Iterator<Item = Layout> {
        let of = |members| (1..=3).map(move |distance| layout(members, 3 * distance + 3, distance));
        let double = (4..=6).flat_map(of).map(|layout| Layout { parities: 2, ..layout });
        (3..=6).flat_map(of).chain(double)
    }

    #[test]
    fn zrwa_witnesses_claim_tail_and_others_no_more() {
        for layout in layouts().filter(shows_chunks) {
            for n in 0..=layout.chunks() {
                for member in 0..layout.members {
                    let position = settled(&layout, member, n);
                    assert!(claim(&layout, member, position).unwrap() <= n, "{layout:?} {n} {member}");
                    // Half a chunk further it would claim more.
                    if position < 2 * layout.rows {
                        let next = claim(&layout, member, position + 1);
                        let skip = claim(&layout, member, position + 2).unwrap_or(u64::MAX);
                        assert!(next.unwrap_or(skip) > n, "{layout:?} {n} {member} {position}");
                    }
                }
                for (member, position) in witnesses(&layout, n).into_iter().flatten() {
                    assert_eq!(claim(&layout, member, position), Some(n));
                    assert!(settled(&layout, member, n) >= position);
                }
                let on: BTreeSet<_> = witnesses(&layout, n).iter().flatten().map(|w| w.0).collect();
                let expected = if n == 0 {
                    0
                } else if n % layout.data_chunks() == 1 {
                    1 + (n > 1 && layout.carries()) as usize
                } else {
                    2
                };
                assert_eq!(on.len(), expected, "{layout:?} {n}");
            }
        }
    }

    type Round = fn(&Layout, u32, &Targets, u64) -> Option<Targets>;

    /// Explores every state that rounds of settling can reach, crashes it between any two explicit flushes with every
    /// member missing in turn, and checks the tail that recovery finds. It has slots, is not below the safe data and
    /// not above the complete data, and is exactly the end that a process which died had acknowledged, at any block
    /// inside the window. Returns the number of crashes.
    fn explore(layout: &Layout, live: u32, next_round: Round) -> usize {
        let mut seen = BTreeSet::new();
        let mut todo = vec![([0; MAX_MEMBERS], 0)];
        let mut crashes = 0;
        while let Some((positions, n)) = todo.pop() {
            if !seen.insert((positions, n)) {
                continue;
            }
            let limit = window_rows(layout, live, &positions) * layout.data_chunks();
            assert!(limit > n || n == layout.chunks(), "stuck: {layout:?} {live:b} {n} {positions:?}");
            for next in n + 1..=limit {
                let mut at = positions;
                while let Some(targets) = next_round(layout, live, &at, next) {
                    let moving: Vec<_> = (0..layout.members).filter(|m| targets[*m] > 0).collect();
                    for done in 0..1u32 << moving.len() {
                        let mut crashed = at;
                        for (bit, member) in moving.iter().enumerate() {
                            if done & (1 << bit) != 0 {
                                crashed[*member] = targets[*member];
                            }
                        }
                        crashes += crash(layout, live, &crashed, n, next, limit);
                    }
                    for member in moving {
                        assert!(targets[member] > at[member]);
                        at[member] = targets[member];
                    }
                }
                crashes += crash(
                    layout,
                    live,
                    &at,
                    if witness_count(layout, live, next) >= needed(layout, live) { next } else { n },
                    next,
                    limit,
                );
                todo.push((at, next));
            }
        }
        crashes
    }

    /// Checks a crash with write pointers at `positions`. `before` chunks are safe if their tail has the witnesses that
    /// it needs; one write since has made `after` chunks complete, and `limit` chunks may be written.
    fn crash(layout: &Layout, live: u32, positions: &Targets, before: u64, after: u64, limit: u64) -> usize {
        let k = layout.data_chunks();
        let half = layout.chunk_blocks / 2;
        let present = |m: usize, missing: u32| live & !missing & (1 << m) != 0;
        let enough = |missing: &u32| (live & !missing).count_ones() as usize >= layout.fewest_members();
        let missing = losses(layout).filter(|missing| missing & !live == 0).filter(enough);
        let safe = if witness_count(layout, live, before) >= needed(layout, live) {
            before
        } else {
            before - before % k
        };
        let mut checked = 0;
        for missing in missing {
            let wps =
                (0..layout.members).map(|m| present(m, missing).then_some(positions[m] * half)).collect();
            let within = (before < after).then_some(before * layout.chunk_blocks + 1);
            for logged in [None, Some(after * layout.chunk_blocks), within] {
                let evidence = ZrwaEvidence { wp_blocks: Vec::clone(&wps), told_blocks: logged };
                let tail = decide(layout, &evidence)
                    .unwrap_or_else(|r| panic!("{r}: {layout:?} {evidence:?} {before} {after}"));
                let chunks = tail / layout.chunk_blocks;
                let has_slots = Some(tail) == logged
                    || chunks == before
                    || chunks == after
                    || (chunks.is_multiple_of(k) && chunks > before && chunks < after)
                    || (chunks < before && chunks >= safe);
                assert!(has_slots, "tail {tail} lacks slots: {layout:?} {evidence:?} {before} {after}");
                assert!(chunks >= safe && tail <= (after * layout.chunk_blocks).max(logged.unwrap_or(0)));
                checked += 1;
            }
            let decide =
                |told| decide(layout, &ZrwaEvidence { wp_blocks: Vec::clone(&wps), told_blocks: told });
            for told in after * layout.chunk_blocks..=limit * layout.chunk_blocks {
                assert_eq!(decide(Some(told)), Ok(told), "{layout:?} {positions:?} {before} {after}");
            }
            // Slots that the window releases belong to stripes that the write pointers show.
            let overwritten = (limit / k).saturating_sub(layout.distance);
            assert!(decide(None).is_ok_and(|tail| tail >= overwritten * layout.stripe_blocks()));
        }
        checked
    }

    #[test]
    fn recovery_tail_is_valid_from_reachable_states() {
        let mut crashes = 0;
        for layout in layouts() {
            let all = (1 << layout.members) - 1;
            for missing in losses(&layout) {
                crashes += explore(&layout, all & !missing, next_round);
            }
        }
        assert!(crashes > 100_000, "{crashes}");
    }

    /// The check above detects the mistake that the paper warns of.
    #[test]
    #[should_panic(expected = "lacks slots")]
    fn zrwa_explorer_detects_laggards_moving_first() {
        let layout = layout(5, 7, 2);
        explore(&layout, 0b11111, |layout, live, positions, n| {
            laggard_round(layout, live, positions, n).or_else(|| witness_round(layout, live, positions, n))
        });
    }

    #[test]
    fn zrwa_needed_blocks_are_data_parity_and_slots() {
        for layout in layouts() {
            let chunk = layout.chunk_blocks;
            for tail in 0..=layout.capacity_blocks() {
                let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
                let mut data = vec![0; layout.rows as usize];
                let (mut parity, mut slots) = (0, 0);
                for member in 0..layout.members {
                    for block in needed_of(&layout, member, tail).into_iter().flatten() {
                        let row = block / chunk;
                        match layout.role(member, row) {
                            _ if row > stripe => slots += 1,
                            Role::Data(_) => data[row as usize] += 1,
                            Role::Parity(_) if row == stripe => slots += 1,
                            Role::Parity(_) => parity += 1,
                        }
                    }
                }
                let filled = (0..layout.rows).map(|row| match row.cmp(&stripe) {
                    std::cmp::Ordering::Less => layout.stripe_blocks(),
                    std::cmp::Ordering::Equal => covered,
                    std::cmp::Ordering::Greater => 0,
                });
                assert_eq!(data, filled.collect::<Vec<_>>(), "{layout:?} {tail}");
                assert_eq!(parity, stripe * chunk * layout.parities as u64);
                // For each offset below the tail there is one slot block of each parity.
                let logged = layout.logs_parity_of(stripe);
                let expected = covered.min(chunk) * layout.parities as u64;
                assert!(slots == expected || logged && slots < expected, "{layout:?} {tail}: {slots}");
            }
        }
    }

    #[test]
    fn recovery_refuses_states_no_crash_leaves() {
        let layout = layout(4, 8, 2);
        let decide = |wp_blocks: [Option<u64>; 4], told_blocks| {
            decide(&layout, &ZrwaEvidence { wp_blocks: wp_blocks.to_vec(), told_blocks })
        };
        // Inside half a chunk, half-way through parity, and beyond the last row.
        for (member, wp_blocks) in [(0, 1), (3, 2), (0, 34)] {
            let mut wps = [Some(0); 4];
            wps[member] = Some(wp_blocks);
            assert_eq!(decide(wps, None), Err(Refusal::Position { member, wp_blocks }));
        }
        let too_few = Refusal::TooFew { present: 2, members: 4, needed: 3 };
        assert_eq!(decide([Some(0), None, Some(0), None], None), Err(too_few));
        assert_eq!(decide([Some(0), None, Some(0), Some(0)], None), Ok(0));
        // The third stripe is begun when all members have passed the first row.
        assert_eq!(decide([Some(0); 4], Some(24)), Ok(24));
        let behind = Refusal::Behind { member: 0, wp_blocks: 0, tail_blocks: 25 };
        assert_eq!(decide([Some(0); 4], Some(25)), Err(behind));
        assert_eq!(decide([Some(0); 4], Some(97)), Err(Refusal::Beyond(97)));
    }

    /// Fills the slots of three writes as `parity_of` requires, and checks that the tail of each write, and that of the
    /// last complete chunk, can be decoded. No write fills a block twice, so earlier tails can still be decoded later.
    #[test]
    fn zrwa_slots_decode_every_possible_recovery_tail() {
        let layout = layout(5, 8, 2);
        let (k, chunk) = (layout.data_chunks(), layout.chunk_blocks);
        let stripe = layout.stripe_blocks();
        for first in 1..=stripe {
            for second in first..=stripe {
                for third in second..=stripe {
                    let mut filled = vec![vec![false; chunk as usize]; k as usize];
                    let mut from = 0;
                    for to in [first, second, third] {
                        if to == from {
                            continue;
                        }
                        for part in parity_of(&layout, from, to).into_iter().flatten() {
                            let slot = &mut filled[part.index as usize][part.from as usize..part.to as usize];
                            assert!(slot.iter().all(|f| !f), "filled twice by {first} {second} {third}");
                            slot.fill(true);
                        }
                        from = to;
                        if let Some(complete) = (to / chunk).checked_sub(1) {
                            let slot = &filled[complete as usize];
                            assert!(
                                slot.iter().all(|f| *f),
                                "chunk {complete} after {first} {second} {third}"
                            );
                        }
                        let (last, end) = (((to - 1) / chunk) as usize, (to - 1) % chunk + 1);
                        assert!(filled[last][..end as usize].iter().all(|f| *f));
                        assert!(
                            last == 0 || end == chunk || filled[last - 1][end as usize..].iter().all(|f| *f)
                        );
                    }
                }
            }
        }
    }
}
