//! Recovery of a zone that is written by appends: the end of its blocks, and the place of each.

use super::mark::{AppendMark, BlockContent};
use std::collections::{BTreeMap, BTreeSet};

/// Result of the recovery of a zone, from the start of a group on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendRecovery {
    /// End of the zone: all blocks below were written, and none from here on counts.
    pub end: u64,
    /// Places in the drive's zone of the blocks below the end.
    pub places: BTreeMap<u64, u64>,
    /// Blocks below the end that are at an uncertain place: they cannot be read.
    pub doubtful: BTreeSet<u64>,
    /// Whether the end is certain: it does not depend on the content of unreadable blocks.
    pub is_sure: bool,
}

/// Determines the end of a zone, and the places of its blocks from `first` on, from the marks `seen` (place and
/// content) in a range of the drive's zone. Block `first` begins a group; the range contains all of this group, and all
/// blocks of earlier groups have been written. A block of the group at a place where only blocks of earlier groups can
/// be was appended after the drive had lost some of these by a power cut of its own: then the end is not certain. For
/// this check the range may begin one place before the group.
///
/// From the block on with which the newest session began, only the blocks of that session count: those of earlier
/// sessions are void. Each unreadable block may be one of the newest session, so unreadable blocks count as the missing
/// blocks: the end is never too early. A block may be void if an unreadable one lies behind all blocks of its session
/// that can be read, since the unreadable ones may be all blocks of a later session; so above the first missing block
/// such a block is doubtful as well.
///
/// The end is certain if, from the start of the newest session on, every place has been read and has a block of that
/// session, and no block occurs twice. All later writes are there, and each block there is identified: so there is no
/// later session, and a missing block was not written. Each session begins only where the end was certain, and its
/// marks name that place; so unreadable blocks before it cannot change the end. Otherwise a block behind the start of
/// the session is unreadable, or cannot be the result of a crash: then the end is not too early, and no session may
/// begin at it.
pub fn judge(first: u64, seen: &[(u64, BlockContent)]) -> AppendRecovery {
    let (mut from, mut begin) = (first, 0);
    let (mut places, mut unknown) = (BTreeMap::new(), Vec::new());
    let (mut doubtful, mut begun) = (BTreeSet::new(), false);
    // Start of the session of each block, and the last place of each session by its start.
    let (mut sessions, mut lasts) = (BTreeMap::new(), BTreeMap::new());
    for (place, seen) in seen {
        match seen {
            BlockContent::Nothing => {}
            BlockContent::Unknown if *place < first => {}
            BlockContent::Mark(mark) if (mark.block as u64) < first && !begun => {
                // All places before this one belong to earlier groups.
                unknown.clear();
            }
            BlockContent::Mark(mark)
                if mark.block as u64 >= first && is_sound(mark, *place, begin, first) =>
            {
                begun = true;
                if start(mark) > begin {
                    (from, begin) = (first.max(mark.from as u64), start(mark));
                    places.split_off(&from);
                    doubtful.split_off(&from);
                }
                sessions.insert(mark.block as u64, start(mark));
                lasts.insert(start(mark), *place);
                if places.insert(mark.block as u64, *place).is_some() {
                    doubtful.insert(mark.block as u64);
                }
            }
            BlockContent::Mark(_) | BlockContent::Unknown => unknown.push(*place),
        }
    }
    let is_nothing = |(place, seen): &(u64, BlockContent)| *place >= begin && *seen == BlockContent::Nothing;
    let has_twice = doubtful.range(from..).next().is_some();
    let (older, newer): (Vec<u64>, Vec<u64>) = unknown.into_iter().partition(|place| *place < begin);
    // Blocks that the newest session found written and that are missing now are at unreadable places before the
    // session.
    let lacking: Vec<u64> = (first..from).filter(|block| !places.contains_key(block)).collect();
    // Blocks above a missing one may be void if an unreadable place lies behind their session.
    let may_be_void = |block: &u64, unknown: u64| {
        sessions.get(block).and_then(|session| lasts.get(session)).is_none_or(|last| *last < unknown)
    };
    if let (Some(gap), Some(last)) = (lacking.first(), older.last()) {
        let void = places.range(gap..&from).filter(|(block, _)| may_be_void(block, *last));
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
    let is_sure = newer.is_empty() && !has_twice && !seen.iter().any(is_nothing);
    let (mut end, mut newer) = (from, newer.into_iter().peekable());
    let last_unknown = newer.clone().last();
    loop {
        let has_gap = doubtful.range(from..).next().is_some_and(|gap| *gap < end);
        let is_doubtful = match places.get(&end) {
            Some(_) => has_gap && last_unknown.is_some_and(|last| may_be_void(&end, last)),
            None => match newer.next() {
                Some(place) => places.insert(end, place).is_none(),
                None => break,
            },
        };
        if is_doubtful {
            doubtful.insert(end);
        }
        end += 1;
    }
    places.split_off(&end);
    let (blocks, marks) = (places.len(), seen.len());
    assert!(blocks <= marks, "{blocks} blocks of a zone were found in {marks} places");
    AppendRecovery { end, places, doubtful, is_sure }
}

/// Place in the drive's zone at which the session of a mark began: the written blocks and the void ones lie before it.
fn start(mark: &AppendMark) -> u64 {
    mark.from as u64 + mark.void as u64
}

/// Whether a mark at `place` is possible, if the newest session so far began at place `begin`, and all blocks below
/// `first` had landed before.
fn is_sound(mark: &AppendMark, place: u64, begin: u64, first: u64) -> bool {
    let earliest = mark.void as u64 + first.max(mark.from as u64);
    mark.block >= mark.from && earliest <= place && start(mark) >= begin
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    fn mark(block: u32, from: u32, void: u32) -> BlockContent {
        BlockContent::Mark(AppendMark { block, from, void })
    }

    fn judged(first: u64, seen: &[BlockContent]) -> (u64, Vec<Option<u64>>) {
        let seen: Vec<(u64, BlockContent)> = (first..).zip(seen.iter().copied()).collect();
        let found = judge(first, &seen);
        let place = |block| (!found.doubtful.contains(&block)).then(|| found.places[&block]);
        (found.end, (first..found.end).map(place).collect())
    }

    #[test]
    fn append_zone_ends_before_first_missing_block() {
        let of = |blocks: &[u32]| judged(0, &blocks.iter().map(|b| mark(*b, 0, 0)).collect::<Vec<_>>());
        assert_eq!(of(&[]), (0, vec![]));
        assert_eq!(of(&[1, 0, 2]), (3, vec![Some(1), Some(0), Some(2)]));
        assert_eq!(of(&[1, 0, 3]), (2, vec![Some(1), Some(0)]));
        assert_eq!(of(&[2, 1]), (0, vec![]));
    }

    #[test]
    fn append_leftovers_of_earlier_session_fill_no_gap() {
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
    fn unreadable_blocks_count_as_written_with_unknown_content() {
        let (u, nothing) = (BlockContent::Unknown, BlockContent::Nothing);
        assert_eq!(judged(0, &[mark(0, 0, 0), u, mark(2, 0, 0)]), (3, vec![Some(0), None, Some(2)]));
        assert_eq!(judged(0, &[mark(0, 0, 0), mark(2, 0, 0), u]), (3, vec![Some(0), None, None]));
        assert_eq!(judged(0, &[mark(0, 0, 0), nothing, mark(2, 0, 0)]), (1, vec![Some(0)]));
        // An unreadable session in between may have made void the blocks that an older one left behind a hole.
        let between = [mark(0, 0, 0), mark(1, 0, 0), mark(3, 0, 0), u, u, mark(5, 5, 0)];
        assert_eq!(judged(0, &between), (6, vec![Some(0), Some(1), None, None, None, Some(5)]));
        // Before the newest session unreadable blocks add nothing; blocks that it found written stay so.
        assert_eq!(judged(0, &[mark(0, 0, 0), u, mark(1, 1, 1)]), (2, vec![Some(0), Some(2)]));
        assert_eq!(judged(0, &[mark(0, 0, 0), u, mark(2, 2, 0)]), (3, vec![Some(0), None, Some(2)]));
        assert_eq!(judged(0, &[u, nothing, mark(1, 1, 1)]), (2, vec![None, Some(2)]));
    }

    #[test]
    fn append_judge_ignores_blocks_of_earlier_groups() {
        let seen = [mark(2, 0, 0), BlockContent::Unknown, mark(3, 0, 0), mark(5, 0, 0), mark(4, 0, 0)];
        assert_eq!(judged(4, &seen), (6, vec![Some(8), Some(7)]));
    }

    /// A drive's zone, written by sessions with several blocks in flight, any of which a power cut may lose.
    struct Model {
        seen: Vec<(u64, BlockContent)>,
        /// Block and session in each place.
        holds: Vec<(u64, u32)>,
        /// For each acknowledged block, the session that wrote it.
        told: Vec<u32>,
    }

    impl Model {
        /// Lets a session write blocks in this order; those after a missing one are lost for good.
        fn write(&mut self, life: u32, order: &[u32]) {
            let (from, void) = (self.told.len() as u32, (self.seen.len() - self.told.len()) as u32);
            for block in order {
                let place = self.seen.len() as u64;
                self.seen.push((place, mark(from + block, from, void)));
                self.holds.push(((from + block) as u64, life));
            }
            let run = (0..).take_while(|at| order.contains(at)).count();
            self.told.resize(from as usize + run, life);
        }

        /// Judges the zone with these places unreadable; blocks that count and are not doubtful have to be the last
        /// written.
        fn check(&self, bad: &Range<usize>, what: &str) -> AppendRecovery {
            let mut seen = self.seen.clone();
            seen.iter_mut()
                .skip(bad.start)
                .take(bad.len())
                .for_each(|(_, seen)| *seen = BlockContent::Unknown);
            let found = judge(0, &seen);
            for (block, life) in (0..).zip(&self.told).filter(|(block, _)| !found.doubtful.contains(block)) {
                let place = found.places[&block] as usize;
                assert_eq!(self.holds[place], (block, *life), "{what}");
            }
            found
        }
    }

    /// Every loss and every order of up to three blocks in flight, three sessions in a row: completed blocks are there,
    /// in the version that was submitted last.
    #[test]
    fn append_recovery_finds_last_versions_after_three_crashes() {
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
                model.write(life as u32, order);
                let found = model.check(&(0..0), &format!("case {case}"));
                assert_eq!(found.end, model.told.len() as u64, "case {case}");
                assert!(found.is_sure && found.doubtful.is_empty(), "case {case}");
            }
        }
    }

    /// As above with up to four adjacent unreadable blocks. The last session begins only if the end is sure, and is
    /// judged with the same blocks unreadable.
    #[test]
    fn append_recovery_with_unreadable_blocks_invents_no_data() {
        let orders: [&[u32]; 8] = [&[], &[0], &[1], &[0, 1], &[1, 0], &[0, 2], &[2, 0], &[1, 2]];
        let (mut sure, mut begun) = (0, 0);
        for case in 0..8 * 8 * 8usize {
            let [first, second, third] = [case % 8, case / 8 % 8, case / 64].map(|at| orders[at]);
            let mut model = Model { seen: Vec::new(), holds: Vec::new(), told: Vec::new() };
            model.write(0, first);
            model.write(1, second);
            for (bad, blocks) in (0..model.seen.len()).flat_map(|bad| (1..5).map(move |blocks| (bad, blocks)))
            {
                let what = format!("{first:?} {second:?} {third:?} without {blocks} from {bad} on");
                let bad = bad..bad + blocks;
                let found = model.check(&bad, &what);
                assert!(found.end >= model.told.len() as u64, "{what}");
                if !found.is_sure {
                    continue;
                }
                sure += 1;
                assert_eq!(found.end, model.told.len() as u64, "{what}");
                let mut next =
                    Model { seen: model.seen.clone(), holds: model.holds.clone(), told: model.told.clone() };
                next.write(2, third);
                let found = next.check(&bad, &what);
                assert!(found.is_sure && found.end == next.told.len() as u64, "{what}");
                begun += (next.told.len() > model.told.len()) as u32;
            }
        }
        assert!(sure > 900 && begun > 500, "{sure}, {begun}");
    }

    #[test]
    fn append_end_is_sure_if_last_session_intact() {
        let is_sure =
            |seen: &[BlockContent]| judge(0, &(0..).zip(seen.iter().copied()).collect::<Vec<_>>()).is_sure;
        let (u, nothing) = (BlockContent::Unknown, BlockContent::Nothing);
        assert!(is_sure(&[]) && is_sure(&[mark(0, 0, 0), mark(2, 0, 0)]));
        assert!(!is_sure(&[mark(0, 0, 0), u]) && !is_sure(&[u, mark(1, 0, 0)]));
        // Before the beginning of the last session, and behind it.
        assert!(is_sure(&[mark(0, 0, 0), u, mark(2, 2, 0)]));
        assert!(!is_sure(&[mark(0, 0, 0), u, mark(2, 2, 0), u]));
        // An unwritten block, one of an older session, and one that occurs twice.
        assert!(!is_sure(&[mark(0, 0, 0), nothing]));
        assert!(!is_sure(&[mark(0, 0, 0), mark(1, 1, 0), mark(2, 0, 0)]));
        assert!(!is_sure(&[mark(0, 0, 0), mark(1, 0, 0), mark(1, 0, 0)]));
        let before = |seen: &[BlockContent]| judge(2, &(0..).zip(seen.iter().copied()).collect::<Vec<_>>());
        // A block of the group in the place of one of an earlier group, which the drive has lost.
        assert!(!before(&[mark(0, 0, 0), mark(2, 0, 0), mark(3, 0, 0)]).is_sure);
        assert!(!before(&[mark(2, 0, 0), mark(3, 0, 0)]).is_sure && !before(&[mark(3, 0, 0)]).is_sure);
        assert!(!before(&[mark(0, 0, 0), u, mark(2, 0, 1), mark(3, 0, 1)]).is_sure);
        // An unreadable block there proves nothing.
        let after_one_void = [mark(0, 0, 0), u, mark(1, 1, 1), mark(3, 1, 1), mark(2, 1, 1)];
        assert!(before(&after_one_void).is_sure);
        // A block of an earlier group where none can be.
        let found = before(&[mark(0, 0, 0), mark(1, 0, 0), mark(2, 0, 0), mark(1, 0, 0)]);
        assert_eq!((found.end, found.is_sure), (4, false));
        assert!(found.doubtful.contains(&3) && !found.doubtful.contains(&2));
    }
}
