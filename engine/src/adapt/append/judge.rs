//! What a crash has left of the blocks of a zone: which of them count, and where the zone ended.

use super::mark::{Mark, Seen};
use std::collections::{BTreeMap, BTreeSet};

/// What was found in a zone, from the start of a group on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Everything below this block of the zone was written, and nothing from it on counts.
    pub end: u64,
    /// Where blocks below the end are in the drive's zone.
    pub places: BTreeMap<u64, u64>,
    /// Blocks below the end of which it is not known whether that is where they are: they cannot be read.
    pub doubtful: BTreeSet<u64>,
}

/// Decides from what is `seen` in a stretch of the drive's zone in which all of the group lies that begins with
/// block `first` of the zone; all blocks of earlier groups are there.
///
/// The newest session alone counts where it wrote: what an earlier one has left behind the block with which the
/// newer one began is void. Of the newest session as many blocks may be there as cannot be read; so that the end
/// is not too early they count as written where blocks are lacking. What has landed before one of them may be
/// void, left by a session of which nothing else can be read; so behind the first that is lacking such a block
/// is doubtful as well.
pub fn judge(first: u64, seen: &[(u64, Seen)]) -> Found {
    let (mut from, mut begin) = (first, 0);
    let (mut places, mut unknown) = (BTreeMap::new(), Vec::new());
    for (place, seen) in seen {
        match seen {
            Seen::Nothing => {}
            Seen::Mark(mark) if (mark.block as u64) < first => {
                // All before it belongs to earlier groups.
                (places, unknown) = (BTreeMap::new(), Vec::new());
            }
            Seen::Mark(mark) if is_sound(mark, *place, begin) => {
                if start(mark) > begin {
                    (from, begin) = (first.max(mark.from as u64), start(mark));
                    places.split_off(&from);
                }
                places.entry(mark.block as u64).or_insert(*place);
            }
            Seen::Mark(_) | Seen::Unknown => unknown.push(*place),
        }
    }
    let mut doubtful = BTreeSet::new();
    let (older, newer): (Vec<u64>, Vec<u64>) = unknown.into_iter().partition(|place| *place < begin);
    // What the newest session has found written, and is not found any more, is somewhere before it.
    let lacking: Vec<u64> = (first..from).filter(|block| !places.contains_key(block)).collect();
    // What has landed before one that cannot be read may be void, as below.
    if let (Some(gap), Some(last)) = (lacking.first(), older.last()) {
        let void = places.range(gap..&from).filter(|(_, place)| *place < last);
        doubtful.extend(void.map(|(block, _)| *block));
    }
    let taken: BTreeSet<u64> = places.values().copied().collect();
    let others = seen.iter().map(|(place, _)| *place).filter(|place| *place < begin);
    let others = others.filter(|place| !taken.contains(place) && !older.contains(place));
    let spare = older.iter().copied().chain(others.collect::<Vec<_>>().into_iter().rev());
    for (block, place) in lacking.iter().zip(spare) {
        places.insert(*block, place);
    }
    doubtful.extend(lacking);
    let (mut end, mut newer) = (from, newer.into_iter().peekable());
    let last_unknown = newer.clone().last();
    loop {
        let has_gap = doubtful.range(from..).next().is_some_and(|gap| *gap < end);
        if let Some(place) = places.get(&end) {
            if has_gap && last_unknown.is_some_and(|last| *place < last) {
                doubtful.insert(end);
            }
        } else if let Some(place) = newer.next() {
            places.insert(end, place);
            doubtful.insert(end);
        } else {
            break;
        }
        end += 1;
    }
    places.split_off(&end);
    Found { end, places, doubtful }
}

/// Where in the drive's zone the session of a mark began.
fn start(mark: &Mark) -> u64 {
    mark.from as u64 + mark.void as u64
}

/// Whether a mark in `place` can be what it says, when the session before it began in block `begin`.
fn is_sound(mark: &Mark, place: u64, begin: u64) -> bool {
    mark.block >= mark.from && start(mark) <= place && start(mark) >= begin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(block: u32, from: u32, void: u32) -> Seen {
        Seen::Mark(Mark { block, from, void })
    }

    fn judged(first: u64, seen: &[Seen]) -> (u64, Vec<Option<u64>>) {
        let seen: Vec<(u64, Seen)> = (first..).zip(seen.iter().copied()).collect();
        let found = judge(first, &seen);
        let place = |block| (!found.doubtful.contains(&block)).then(|| found.places[&block]);
        (found.end, (first..found.end).map(place).collect())
    }

    #[test]
    fn a_zone_ends_with_the_first_block_that_is_lacking() {
        let of = |blocks: &[u32]| judged(0, &blocks.iter().map(|b| mark(*b, 0, 0)).collect::<Vec<_>>());
        assert_eq!(of(&[]), (0, vec![]));
        assert_eq!(of(&[1, 0, 2]), (3, vec![Some(1), Some(0), Some(2)]));
        assert_eq!(of(&[1, 0, 3]), (2, vec![Some(1), Some(0)]));
        assert_eq!(of(&[2, 1]), (0, vec![]));
    }

    #[test]
    fn what_an_earlier_session_left_behind_never_fills_a_hole() {
        let old = [mark(0, 0, 0), mark(1, 0, 0), mark(3, 0, 0)];
        assert_eq!(judged(0, &old).0, 2);
        let next = [old.as_slice(), &[mark(2, 2, 1)]].concat();
        assert_eq!(judged(0, &next), (3, vec![Some(0), Some(1), Some(3)]));
        let next = [next.as_slice(), &[mark(4, 2, 1), mark(3, 2, 1)]].concat();
        assert_eq!(judged(0, &next), (5, vec![Some(0), Some(1), Some(3), Some(5), Some(4)]));
        // Of the second session only a later block has landed.
        assert_eq!(judged(0, &[old.as_slice(), &[mark(3, 2, 1)]].concat()).0, 2);
    }

    #[test]
    fn blocks_that_cannot_be_read_count_as_written_and_as_nothing_else() {
        let (u, nothing) = (Seen::Unknown, Seen::Nothing);
        assert_eq!(judged(0, &[mark(0, 0, 0), u, mark(2, 0, 0)]), (3, vec![Some(0), None, Some(2)]));
        assert_eq!(judged(0, &[mark(0, 0, 0), mark(2, 0, 0), u]), (3, vec![Some(0), None, None]));
        assert_eq!(judged(0, &[mark(0, 0, 0), nothing, mark(2, 0, 0)]), (1, vec![Some(0)]));
        // A session between of which nothing can be read may have made void what an older one left behind a hole.
        let between = [mark(0, 0, 0), mark(1, 0, 0), mark(3, 0, 0), u, u, mark(5, 5, 0)];
        assert_eq!(judged(0, &between), (6, vec![Some(0), Some(1), None, None, None, Some(5)]));
        // Before the newest session none of them adds anything; what it found written stays so.
        assert_eq!(judged(0, &[mark(0, 0, 0), u, mark(1, 1, 1)]), (2, vec![Some(0), Some(2)]));
        assert_eq!(judged(0, &[mark(0, 0, 0), u, mark(2, 2, 0)]), (3, vec![Some(0), None, Some(2)]));
        assert_eq!(judged(0, &[u, nothing, mark(1, 1, 1)]), (2, vec![None, Some(2)]));
    }

    #[test]
    fn earlier_groups_are_left_alone() {
        let seen = [mark(2, 0, 0), Seen::Unknown, mark(3, 0, 0), mark(5, 0, 0), mark(4, 0, 0)];
        assert_eq!(judged(4, &seen), (6, vec![Some(8), Some(7)]));
    }

    /// A drive's zone, written by a session that has so many blocks in flight, any of which a cut may lose.
    struct Model {
        seen: Vec<(u64, Seen)>,
        /// What each place holds.
        holds: Vec<(u64, u32)>,
        /// What each block is, as far as somebody was told that it is written.
        told: Vec<u32>,
    }

    /// Every loss and every order of up to three blocks in flight, three sessions in a row: what was complete is
    /// there, and nothing else is than what was submitted last.
    #[test]
    fn after_any_three_crashes_each_block_is_what_was_written_last() {
        let orders: [&[u32]; 16] = [
            &[],
            &[0],
            &[1],
            &[2],
            &[0, 1],
            &[1, 0],
            &[0, 2],
            &[2, 0],
            &[1, 2],
            &[2, 1],
            &[0, 1, 2],
            &[0, 2, 1],
            &[1, 0, 2],
            &[1, 2, 0],
            &[2, 0, 1],
            &[2, 1, 0],
        ];
        for case in 0..16 * 16 * 16usize {
            let mut model = Model { seen: Vec::new(), holds: Vec::new(), told: Vec::new() };
            for (life, order) in
                [case % 16, case / 16 % 16, case / 256].map(|at| orders[at]).iter().enumerate()
            {
                let (from, void) = (model.told.len(), model.seen.len() - model.told.len());
                for block in order.iter() {
                    let place = model.seen.len() as u64;
                    let block = from as u32 + block;
                    model.seen.push((place, mark(block, from as u32, void as u32)));
                    model.holds.push((block as u64, life as u32));
                }
                let found = judge(0, &model.seen);
                let run = (0..).take_while(|at| order.contains(at)).count();
                assert_eq!(found.end, (from + run) as u64, "case {case}");
                model.told.resize(from + run, life as u32);
                for (block, life) in (0..).zip(&model.told) {
                    let place = found.places[&block] as usize;
                    assert_eq!(model.holds[place], (block, *life), "case {case}");
                }
                assert!(found.doubtful.is_empty());
            }
        }
    }

    /// As above with two sessions, and one block that cannot be read: nothing that was told is missing, and what
    /// can be read is right.
    #[test]
    fn a_block_that_cannot_be_read_makes_nothing_up() {
        let orders: [&[u32]; 7] = [&[0], &[1], &[0, 1], &[1, 0], &[0, 2], &[2, 0], &[1, 2]];
        for (first, second) in orders.iter().flat_map(|a| orders.iter().map(move |b| (a, b))) {
            let mut seen: Vec<(u64, Seen)> = Vec::new();
            let mut holds: Vec<(u64, u32)> = Vec::new();
            let mut told: Vec<u32> = Vec::new();
            for (life, order) in [first, second].into_iter().enumerate() {
                let (from, void) = (told.len() as u32, (seen.len() - told.len()) as u32);
                for block in order.iter() {
                    seen.push((seen.len() as u64, mark(from + block, from, void)));
                    holds.push(((from + block) as u64, life as u32));
                }
                told.resize(judge(0, &seen).end as usize, life as u32);
            }
            for bad in 0..seen.len() {
                let mut seen = seen.clone();
                seen[bad].1 = Seen::Unknown;
                let found = judge(0, &seen);
                assert!(found.end >= told.len() as u64, "{first:?} {second:?} {bad}");
                for block in (0..found.end).filter(|block| !found.doubtful.contains(block)) {
                    let place = found.places[&block] as usize;
                    let life = told.get(block as usize).copied();
                    // Beyond what was told there may be what was submitted in the last session.
                    assert_eq!(holds[place], (block, life.unwrap_or(1)), "{first:?} {second:?} {bad}");
                }
            }
        }
    }
}
