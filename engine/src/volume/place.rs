//! Where a logical block lies on the device.
//!
//! What logical blocks became is a *piece*: so many *grains* of 64 bytes, one behind the other in a group. It is of a
//! *unit* of blocks that were compressed together, all of which are at its place, or of one block. A place says where its
//! first grain is, how many there are, and of how many blocks it is. One of a single block that begins with a block of
//! the device and is as long is *whole*, and no more than the number of that block.

use crate::buf::BLOCK;

/// Bytes of a grain, and grains of a block.
pub const GRAIN: usize = 64;
pub const GRAINS: u32 = (BLOCK / GRAIN) as u32;

/// How many blocks are compressed together: 1, 2, 4, 8 or 16, as the power of two. They are numbered from a multiple of
/// that on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit(u8);

impl Unit {
    /// One block, and the most.
    pub const BLOCK: Unit = Unit(0);
    /// 64 KiB.
    pub const MOST: Unit = Unit(4);

    /// All of them, the smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Unit> {
        (0..=Unit::MOST.0).map(Unit)
    }

    /// The unit of so many bytes, if there is one.
    pub fn from_bytes(bytes: u64) -> Option<Unit> {
        Unit::all().find(|unit| unit.bytes() as u64 == bytes)
    }

    /// Its bytes.
    pub fn bytes(self) -> usize {
        BLOCK << self.0
    }

    /// Its blocks.
    pub(super) fn blocks(self) -> u32 {
        1 << self.0
    }

    /// What says on the device which one it is.
    pub(super) fn number(self) -> u8 {
        self.0
    }

    /// The one of this number, if there is one.
    pub(super) fn of_number(number: u8) -> Option<Unit> {
        (number <= Unit::MOST.0).then_some(Unit(number))
    }

    /// The largest one, no larger than this, that begins with the block at `at` and has no more blocks than `most`.
    pub(super) fn at(self, at: u64, most: u64) -> Unit {
        let fits = |unit: &Unit| at.is_multiple_of(unit.blocks().into()) && unit.blocks() as u64 <= most;
        Unit::all().rev().find(|unit| *unit <= self && fits(unit)).unwrap_or_default()
    }

    /// Its first block, of which the one at `at` is a block.
    pub(super) fn first(self, at: u64) -> u64 {
        at - at % self.blocks() as u64
    }

    /// A bit for each of its blocks.
    pub(super) fn mask(self) -> u16 {
        u16::MAX >> (16 - self.blocks())
    }

    /// Its pieces are a multiple of so many grains long.
    pub(super) fn step(self) -> u32 {
        self.blocks().div_ceil(2)
    }

    /// Most grains of a piece that is worth being compressed: it saves an eighth.
    pub(super) fn most_grains(self) -> u32 {
        GRAINS / 8 * 7 * self.blocks()
    }

    /// Whether a piece of it may have so many grains.
    pub(super) fn is_sane(self, grains: u32) -> bool {
        let most = if self == Unit::BLOCK { GRAINS } else { self.most_grains() };
        (1..=most).contains(&grains) && grains.is_multiple_of(self.step())
    }
}

/// Where a piece lies; 0 for nowhere. Bits 0 to 31 are the number of the block on the device that it begins in, zone
/// for zone without what lies above capacities; bits 32 to 37 the grain of that block; bits 38 to 40 the number of its
/// unit; bits 41 to 47 how many steps it is shorter than that.
pub type Place = u64;

/// The place of a piece of `grains` grains that begins so many grains into a block.
pub fn place(block: u32, from: u32, (unit, grains): (Unit, u32)) -> Place {
    let shorter = (GRAINS * unit.blocks()).saturating_sub(grains) / unit.step();
    block as u64 | (from as u64 | (unit.0 as u64) << 6 | (shorter as u64) << 9) << 32
}

/// A place of its block and its [`shape`].
pub fn shaped(block: u32, shape: u16) -> Place {
    block as u64 | (shape as u64) << 32
}

/// What a place says beside the block: 0 if it is whole.
pub fn shape(place: Place) -> u16 {
    (place >> 32) as u16
}

/// The block that it begins in.
pub fn block(place: Place) -> u32 {
    place as u32
}

/// The grain of that block that it begins with.
pub fn from(place: Place) -> u32 {
    (place >> 32) as u32 & 0x3f
}

/// The unit whose piece lies there.
pub fn unit(place: Place) -> Unit {
    Unit((place >> 38) as u8 & 7).min(Unit::MOST)
}

/// How many grains it has.
pub fn grains(place: Place) -> u32 {
    let unit = unit(place);
    (GRAINS * unit.blocks()).saturating_sub(((place >> 41) as u32 & 0x7f) * unit.step())
}

/// Whether it is a block of the device, and no part of others.
pub fn is_whole(place: Place) -> bool {
    place >> 32 == 0
}

/// Whether there can be such a place.
pub fn is_sane(place: Place) -> bool {
    let (unit, grains) = (unit(place), grains(place));
    unit.is_sane(grains) && place == self::place(block(place), from(place), (unit, grains))
}

/// Blocks of the device that it lies in.
pub fn blocks(place: Place) -> u32 {
    (from(place) + grains(place)).div_ceil(GRAINS)
}

/// What a piece of so many grains counts for, in grains, if so many of its blocks are still there: with its share of the
/// header of its group, or as much as these blocks take by themselves. Groups of whole blocks are counted by how many
/// there can be ([`super::space`]); of shorter pieces there may be so many in few blocks that their header counts.
pub fn charge(grains: u32, live: u32) -> u32 {
    (grains + 1).min(GRAINS * live)
}

/// What the piece at a place counts for more if so many of its blocks are there than with one of them less.
pub fn share(place: Place, live: u32) -> u32 {
    let grains = grains(place);
    charge(grains, live) - charge(grains, live.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_says_what_was_put_in() {
        let mut shapes = std::collections::BTreeSet::new();
        for unit in Unit::all() {
            for length in (0..=GRAINS * unit.blocks()).filter(|grains| unit.is_sane(*grains)) {
                for (at, start) in [(7, 0), (u32::MAX, 63), (9, 60), (1, 63)] {
                    let place = place(at, start, (unit, length));
                    assert_eq!((block(place), from(place), grains(place)), (at, start, length));
                    assert_eq!((self::unit(place), place >> 48), (unit, 0));
                    assert_eq!(is_whole(place), start == 0 && length == GRAINS && unit == Unit::BLOCK);
                    assert_eq!(blocks(place), (start + length).div_ceil(GRAINS));
                    assert_eq!(shaped(block(place), shape(place)), place);
                    assert!(is_sane(place));
                    shapes.insert(shape(place));
                }
            }
        }
        assert_eq!(place(12, 0, (Unit::BLOCK, GRAINS)), 12);
        // No other shape is one.
        let all = (0..=u16::MAX).filter(|shape| is_sane(shaped(5, *shape)));
        assert_eq!(all.count(), shapes.len() / 3 * 64);
        assert!(!is_sane(1 << 48 | 5));
    }

    #[test]
    fn a_piece_counts_for_what_it_is_or_for_what_is_left_of_it() {
        assert_eq!([charge(1, 1), charge(GRAINS - 1, 1), charge(GRAINS, 1)], [2, GRAINS, GRAINS]);
        let unit = |live| charge(500, live);
        assert_eq!([0, 1, 7, 8, 16].map(unit), [0, GRAINS, 7 * GRAINS, 501, 501]);
    }

    #[test]
    fn units_begin_with_multiples_of_themselves_and_lie_in_what_there_is() {
        let at = |at, most| Unit::MOST.at(at, most).blocks();
        assert_eq!([at(0, 16), at(16, 15), at(4, 99), at(6, 99), at(5, 99), at(8, 1)], [16, 8, 4, 2, 1, 1]);
        assert_eq!(Unit(2).at(32, 99).blocks(), 4);
        assert_eq!(Unit::from_bytes(65536), Some(Unit::MOST));
        assert!([0, 512, 4097, 12288, 131072].iter().all(|bytes| Unit::from_bytes(*bytes).is_none()));
        assert_eq!(Unit::all().map(Unit::mask).collect::<Vec<u16>>(), [1, 3, 15, 255, u16::MAX]);
        assert_eq!((Unit(3).first(31), Unit::BLOCK.first(31)), (24, 31));
    }
}
