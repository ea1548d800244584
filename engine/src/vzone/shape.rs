//! Address arithmetic of a stripe group.
//!
//! A group is `width` physical zones over which units are distributed in turn. Where the capacity of a zone is not a
//! whole number of units, the last row has shorter ones. So any range of a group lies in one contiguous range of each
//! zone: a request becomes one command a zone, however small the units are (§4.5, last paragraph).

use std::ops::Range;

/// The layout of a stripe group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    /// Number of physical zones.
    pub width: u32,
    /// Blocks of a stripe unit.
    pub unit_blocks: u32,
    /// Blocks of a physical zone that hold data.
    pub zone_blocks: u64,
}

impl GroupShape {
    /// Blocks of the group.
    pub fn blocks(self) -> u64 {
        self.width as u64 * self.zone_blocks
    }

    /// Blocks of a zone that are in whole units.
    fn whole(self) -> u64 {
        self.zone_blocks - self.zone_blocks % self.unit_blocks as u64
    }

    /// The row of units that contains block `position` of the group.
    fn row(self, position: u64) -> Row {
        let whole = self.whole() * self.width as u64;
        if position < whole {
            let (unit, blocks) = (self.unit_blocks as u64, self.width as u64 * self.unit_blocks as u64);
            Row { unit, before: position / blocks * unit, rest: position % blocks }
        } else {
            Row { unit: self.zone_blocks - self.whole(), before: self.whole(), rest: position - whole }
        }
    }

    /// Number of blocks in zone `part` among the first `blocks` blocks of the group.
    pub fn share(self, part: u32, blocks: u64) -> u64 {
        self.row(blocks).share(part)
    }

    /// Position in the group of block `offset` of zone `part`; the end of the group for the end of the zone.
    pub fn position(self, part: u32, offset: u64) -> u64 {
        let (unit, width) = (self.unit_blocks as u64, self.width as u64);
        if offset >= self.zone_blocks {
            self.blocks()
        } else if offset < self.whole() {
            (offset / unit * width + part as u64) * unit + offset % unit
        } else {
            let last = self.zone_blocks - self.whole();
            self.whole() * width + part as u64 * last + offset - self.whole()
        }
    }

    /// Number of blocks from the start of the group without a gap, if zone `i` has `have[i]` blocks.
    pub fn prefix(self, have: &[u64]) -> u64 {
        let ends = (0..).zip(have).map(|(part, have)| self.position(part, *have));
        ends.min().unwrap_or(0)
    }

    /// Whether a zone has blocks beyond the prefix: the group cannot be written at its end then.
    pub fn is_torn(self, have: &[u64]) -> bool {
        let prefix = self.prefix(have);
        (0..).zip(have).any(|(part, have)| *have > self.share(part, prefix))
    }

    /// The range of blocks of zone `part` that a range of the group covers.
    pub fn piece(self, part: u32, range: &Range<u64>) -> Range<u64> {
        self.share(part, range.start)..self.share(part, range.end)
    }

    /// The zones that a range of the group touches, each with the range of its blocks.
    pub fn pieces(self, range: &Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> + use<> {
        let (from, to) = (self.row(range.start), self.row(range.end));
        let first = from.rest.checked_div(from.unit).unwrap_or(0) as u32;
        // The range may begin and end within units.
        let units = (range.end - range.start).div_ceil(from.unit.min(to.unit).max(1)) + 1;
        (0..self.width.min(units.min(self.width as u64) as u32)).filter_map(move |next| {
            let part = (first + next) % self.width;
            let piece = from.share(part)..to.share(part);
            (!piece.is_empty()).then_some((part, piece))
        })
    }

    /// Divides a range of blocks of zone `part` into runs with consecutive positions in the group: the first position
    /// and the number of blocks of each.
    pub fn runs(self, part: u32, blocks: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let (unit, whole) = (self.unit_blocks as u64, self.whole());
        let mut offset = blocks.start;
        std::iter::from_fn(move || {
            if offset >= blocks.end {
                return None;
            }
            let alone = self.width == 1 || offset >= whole;
            let end = if alone { self.zone_blocks } else { (offset / unit + 1) * unit };
            let run = (self.position(part, offset), end.min(blocks.end) - offset);
            offset += run.1;
            Some(run)
        })
    }
}

/// A row of units, one in each zone, and a position in the row.
#[derive(Clone, Copy)]
struct Row {
    /// Blocks of each unit.
    unit: u64,
    /// Blocks of each zone before the row.
    before: u64,
    /// Blocks of the row before the position.
    rest: u64,
}

impl Row {
    /// Blocks of zone `part` before the position.
    fn share(self, part: u32) -> u64 {
        self.before + self.rest.saturating_sub(part as u64 * self.unit).min(self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn shapes() -> impl Iterator<Item = GroupShape> {
        [1, 2, 4, 8].into_iter().flat_map(|width| {
            [1, 2, 3, 8].into_iter().flat_map(move |unit_blocks| {
                [8, 9, 15].into_iter().map(move |zone_blocks| GroupShape { width, unit_blocks, zone_blocks })
            })
        })
    }

    #[test]
    fn positions_are_unique_and_match_shares() {
        for shape in shapes() {
            let mut have = vec![0; shape.width as usize];
            let places: BTreeMap<u64, u32> = (0..shape.width)
                .flat_map(|part| {
                    (0..shape.zone_blocks).map(move |offset| (shape.position(part, offset), part))
                })
                .collect();
            assert!(places.keys().copied().eq(0..shape.blocks()), "{shape:?}");
            for (position, part) in places {
                assert_eq!(shape.position(part, have[part as usize]), position, "{shape:?}");
                assert_eq!((shape.prefix(&have), shape.is_torn(&have)), (position, false));
                have[part as usize] += 1;
                let shares: Vec<u64> = (0..shape.width).map(|p| shape.share(p, position + 1)).collect();
                assert_eq!(shares, have, "{shape:?}");
            }
        }
    }

    #[test]
    fn vzone_runs_of_range_cover_each_block_once() {
        for shape in shapes() {
            for from in 0..shape.blocks() {
                for to in from + 1..=shape.blocks().min(from + 20) {
                    let mut blocks = BTreeSet::new();
                    let all = (0..shape.width).map(|part| (part, shape.piece(part, &(from..to))));
                    let mut found: Vec<_> = shape.pieces(&(from..to)).collect();
                    found.sort_unstable_by_key(|(part, _)| *part);
                    assert!(all.filter(|(_, piece)| !piece.is_empty()).eq(found), "{shape:?} {from}..{to}");
                    for part in 0..shape.width {
                        let mut offset = shape.share(part, from);
                        let mut before = None;
                        for (at, len) in shape.runs(part, shape.piece(part, &(from..to))) {
                            assert!(
                                len > 0 && before != Some(at),
                                "{shape:?}: runs that follow each other are one"
                            );
                            for block in at..at + len {
                                assert_eq!(shape.position(part, offset), block);
                                assert!(blocks.insert(block));
                                offset += 1;
                            }
                            before = Some(at + len);
                        }
                        assert_eq!(offset, shape.share(part, to), "{shape:?}");
                    }
                    assert!(blocks.into_iter().eq(from..to), "{shape:?} {from}..{to}");
                }
            }
        }
    }

    #[test]
    fn stripe_group_is_torn_by_zone_ahead() {
        let shape = GroupShape { width: 4, unit_blocks: 2, zone_blocks: 8 };
        assert_eq!((shape.prefix(&[2, 2, 1, 0]), shape.is_torn(&[2, 2, 1, 0])), (5, false));
        assert_eq!((shape.prefix(&[4, 2, 1, 2]), shape.is_torn(&[4, 2, 1, 2])), (5, true));
    }
}
