//! Where the blocks of a stripe group lie.
//!
//! A group is `width` physical zones in which units are dealt out in turn. Where the zones are not a whole number
//! of units long, the last row has shorter ones. So the part of any range of a group that lies in one zone is one
//! range there: a request becomes one command a zone, however small the units are (§4.5, last paragraph).

use std::ops::Range;

/// A stripe group, as far as addresses go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Physical zones.
    pub width: u32,
    /// Blocks that follow each other in one zone.
    pub unit_blocks: u32,
    /// Blocks of a physical zone that hold data.
    pub zone_blocks: u64,
}

/// Blocks of a range of a group that follow each other in it and in one of its zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Which zone of the group.
    pub part: u32,
    /// From the first block of data in that zone.
    pub offset: u64,
    /// From the start of the range.
    pub at: u64,
    /// How many.
    pub blocks: u64,
}

impl Shape {
    /// Blocks of all zones.
    pub fn blocks(self) -> u64 {
        self.width as u64 * self.zone_blocks
    }

    /// Blocks of whole units in a zone.
    fn whole(self) -> u64 {
        self.zone_blocks - self.zone_blocks % self.unit_blocks as u64
    }

    /// How many of the first `blocks` blocks of the group lie in zone `part`.
    pub fn share(self, part: u32, blocks: u64) -> u64 {
        let whole = self.whole() * self.width as u64;
        let (unit, before, rest) = if blocks < whole {
            let (unit, row) = (self.unit_blocks as u64, self.width as u64 * self.unit_blocks as u64);
            (unit, blocks / row * unit, blocks % row)
        } else {
            (self.zone_blocks - self.whole(), self.whole(), blocks - whole)
        };
        before + rest.saturating_sub(part as u64 * unit).min(unit)
    }

    /// Where block `offset` of zone `part` is in the group; the end of the group for the end of the zone.
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

    /// How many blocks of the group are there from its start on without a gap, if each zone has so many.
    pub fn prefix(self, have: &[u64]) -> u64 {
        let ends = (0..).zip(have).map(|(part, have)| self.position(part, *have));
        ends.min().unwrap_or(0)
    }

    /// Whether some zone has more than what belongs to the prefix: nothing can be written at its end then.
    pub fn is_torn(self, have: &[u64]) -> bool {
        let prefix = self.prefix(have);
        (0..).zip(have).any(|(part, have)| *have > self.share(part, prefix))
    }

    /// The part of a range of the group that lies in zone `part`.
    pub fn piece(self, part: u32, range: &Range<u64>) -> Range<u64> {
        self.share(part, range.start)..self.share(part, range.end)
    }

    /// The units of a range of the group, in their order.
    pub fn units(self, range: Range<u64>) -> impl Iterator<Item = Unit> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let whole = self.whole() * self.width as u64;
            let (unit, from) = match at < whole {
                true => (self.unit_blocks as u64, 0),
                false => (self.zone_blocks - self.whole(), whole),
            };
            if at >= range.end {
                return None;
            }
            let (index, within) = ((at - from) / unit, (at - from) % unit);
            let part = (index % self.width as u64) as u32;
            let blocks = (unit - within).min(range.end - at);
            let found = Unit { part, offset: self.share(part, at), at: at - range.start, blocks };
            at += blocks;
            Some(found)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = Shape> {
        [1, 2, 4, 8].into_iter().flat_map(|width| {
            [1, 2, 3, 8].into_iter().flat_map(move |unit_blocks| {
                [8, 9, 15].into_iter().map(move |zone_blocks| Shape { width, unit_blocks, zone_blocks })
            })
        })
    }

    #[test]
    fn every_block_has_one_place_and_shares_count_them() {
        for shape in shapes() {
            let mut have = vec![0; shape.width as usize];
            for unit in shape.units(0..shape.blocks()) {
                for block in 0..unit.blocks {
                    let position = unit.at + block;
                    assert_eq!(shape.position(unit.part, unit.offset + block), position, "{shape:?}");
                    assert_eq!(have[unit.part as usize], unit.offset + block, "{shape:?} {unit:?}");
                    assert_eq!((shape.prefix(&have), shape.is_torn(&have)), (position, false));
                    have[unit.part as usize] += 1;
                    let shares: Vec<u64> = (0..shape.width).map(|p| shape.share(p, position + 1)).collect();
                    assert_eq!(shares, have, "{shape:?}");
                }
            }
            assert_eq!(shape.prefix(&have), shape.blocks());
        }
    }

    #[test]
    fn a_range_is_one_range_in_each_zone() {
        for shape in shapes() {
            for from in 0..shape.blocks() {
                for to in from + 1..shape.blocks().min(from + 20) {
                    let mut ends: Vec<u64> =
                        (0..shape.width).map(|p| shape.piece(p, &(from..to)).start).collect();
                    for unit in shape.units(from..to) {
                        assert_eq!(unit.offset, ends[unit.part as usize]);
                        ends[unit.part as usize] += unit.blocks;
                    }
                    let pieces: Vec<u64> =
                        (0..shape.width).map(|p| shape.piece(p, &(from..to)).end).collect();
                    assert_eq!(ends, pieces);
                }
            }
        }
    }

    #[test]
    fn a_zone_that_is_ahead_tears_the_group() {
        let shape = Shape { width: 4, unit_blocks: 2, zone_blocks: 8 };
        assert_eq!((shape.prefix(&[2, 2, 1, 0]), shape.is_torn(&[2, 2, 1, 0])), (5, false));
        assert_eq!((shape.prefix(&[4, 2, 1, 2]), shape.is_torn(&[4, 2, 1, 2])), (5, true));
    }
}
