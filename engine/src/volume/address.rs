//! Addresses (*places*) of logical blocks on the device.
//!
//! Logical blocks are stored in *pieces* of one or more *grains* of 64 bytes, which lie one behind the other in a
//! group. A piece holds one *unit*: a single block, or 2 to 16 blocks that were compressed together. All blocks of a
//! unit have the same place in the map: that of the piece, which consists of its first grain, its number of grains, and
//! its unit. A *whole* piece is a single uncompressed block that fills exactly one block of the device; its place is
//! the number of that block.

use crate::buf::BLOCK;

/// Bytes of a grain, the granularity of pieces.
pub const GRAIN: usize = 64;
/// Grains of a block: 64.
pub const GRAINS: u32 = (BLOCK / GRAIN) as u32;

/// Number of logical blocks that are compressed together: 1, 2, 4, 8 or 16, stored as the exponent of two. A unit
/// begins at a multiple of its number of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit(u8);

impl Unit {
    /// One block, the smallest unit.
    pub const BLOCK: Unit = Unit(0);
    /// 64 KiB, the largest unit.
    pub const MOST: Unit = Unit(4);

    /// All units, the smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Unit> {
        (0..=Unit::MOST.0).map(Unit)
    }

    /// The unit with this number of bytes, if there is one.
    pub fn from_bytes(bytes: u64) -> Option<Unit> {
        Unit::all().find(|unit| unit.bytes() as u64 == bytes)
    }

    /// Bytes of the unit.
    pub fn bytes(self) -> usize {
        BLOCK << self.0
    }

    /// Blocks of the unit.
    pub(super) fn blocks(self) -> u32 {
        1 << self.0
    }

    /// Its encoding on the device: the exponent of two, 0 to 4.
    pub(super) fn number(self) -> u8 {
        self.0
    }

    /// Decodes [`Unit::number`]; `None` above 4.
    pub(super) fn of_number(number: u8) -> Option<Unit> {
        (number <= Unit::MOST.0).then_some(Unit(number))
    }

    /// The largest unit, at most `self`, that may begin at logical block `at` and has at most `most` blocks.
    pub(super) fn at(self, at: u64, most: u64) -> Unit {
        let fits = |unit: &Unit| at.is_multiple_of(unit.blocks().into()) && unit.blocks() as u64 <= most;
        Unit::all().rev().find(|unit| *unit <= self && fits(unit)).unwrap_or_default()
    }

    /// First logical block of the unit that contains the block at `at`.
    pub(super) fn first(self, at: u64) -> u64 {
        at - at % self.blocks() as u64
    }

    /// Bit mask with a bit set for each block of the unit.
    pub(super) fn mask(self) -> u16 {
        u16::MAX >> (16 - self.blocks())
    }

    /// Granularity of the lengths of its pieces, in grains: 1 to 8.
    pub(super) fn step(self) -> u32 {
        self.blocks().div_ceil(2)
    }

    /// Maximum length of a compressed piece in grains: seven eighths of the unit.
    pub(super) fn most_grains(self) -> u32 {
        GRAINS / 8 * 7 * self.blocks()
    }

    /// Whether a piece of `grains` grains is a *squeezed* block: one that was compressed only to make room for the header
    /// of its group in the same block of the device.
    pub(super) fn is_squeezed(self, grains: u32) -> bool {
        self == Unit::BLOCK && (self.most_grains() + 1..GRAINS).contains(&grains)
    }

    /// Whether a piece of the unit may have `grains` grains.
    pub(super) fn is_sane(self, grains: u32) -> bool {
        let most = if self == Unit::BLOCK { GRAINS } else { self.most_grains() };
        (1..=most).contains(&grains) && grains.is_multiple_of(self.step())
    }
}

/// Place of a piece, in 48 bits; 0 for none (block 0 is in the head). Bits 0 to 31 are the number of the block on the
/// device that it begins in, counted zone by zone without the blocks above capacities; bits 32 to 37 the grain of that
/// block; bits 38 to 40 the number of its unit; bits 41 to 47 how much shorter than the unit it is, in units of
/// [`Unit::step`].
pub type Address = u64;

/// The entry of a block that reads as zeros, where an unmapped one would have the contents of another block: one of a
/// snapshot, or of a clone. No piece has this place, since its block is in the head.
pub const HOLE: Address = 1;

/// Whether this is the place of a piece.
pub fn is_piece(place: Address) -> bool {
    place != 0 && place != HOLE
}

/// The place of a piece of `grains` grains that begins at grain `from` of a block.
pub fn place(block: u32, from: u32, (unit, grains): (Unit, u32)) -> Address {
    let most = GRAINS * unit.blocks();
    assert!(
        from < GRAINS && grains <= most,
        "a place from grain {from} of {grains} grains, of a unit of {most}"
    );
    let shorter = (most - grains) / unit.step();
    block as u64 | (from as u64 | (unit.0 as u64) << 6 | (shorter as u64) << 9) << 32
}

/// The place with this block and this shape: the inverse of [`block`] and [`shape`].
pub fn shaped(block: u32, shape: u16) -> Address {
    block as u64 | (shape as u64) << 32
}

/// The upper 16 bits of a place (first grain, unit and length): 0 for a whole piece.
pub fn shape(place: Address) -> u16 {
    (place >> 32) as u16
}

/// Number of the device block in which the piece begins.
pub fn block(place: Address) -> u32 {
    place as u32
}

/// First grain of the piece within that block, 0 to 63.
pub fn from(place: Address) -> u32 {
    (place >> 32) as u32 & 0x3f
}

/// The unit of the piece.
pub fn unit(place: Address) -> Unit {
    Unit((place >> 38) as u8 & 7).min(Unit::MOST)
}

/// Length of the piece in grains.
pub fn grains(place: Address) -> u32 {
    let unit = unit(place);
    (GRAINS * unit.blocks()).saturating_sub(((place >> 41) as u32 & 0x7f) * unit.step())
}

/// Whether the piece is exactly one block of the device.
pub fn is_whole(place: Address) -> bool {
    place >> 32 == 0
}

/// Whether a place is valid.
pub fn is_sane(place: Address) -> bool {
    let (unit, grains) = (unit(place), grains(place));
    unit.is_sane(grains) && place == self::place(block(place), from(place), (unit, grains))
}

/// Number of device blocks that the piece touches.
pub fn blocks(place: Address) -> u32 {
    (from(place) + grains(place)).div_ceil(GRAINS)
}

/// Grains of room that a piece of a unit of `grains` grains counts for if `live` of its blocks are still mapped: its
/// length and one grain more, but at most 64 for each of these blocks. The additional grain is for the header: short
/// pieces fill up a group with entries before its data does, so that there are more headers for the same data. The
/// headers of groups of whole blocks are part of the layout ([`super::space::Plan`]). A squeezed block counts for a whole
/// one, so that a whole one can always replace it.
pub fn charge((unit, grains): (Unit, u32), live: u32) -> u32 {
    let most = GRAINS * live;
    if unit.is_squeezed(grains) { most } else { (grains + 1).min(most) }
}

/// Difference in grains between the charges of the piece at `place` with `live` and with `live - 1` mapped blocks.
pub fn share(place: Address, live: u32) -> u32 {
    let piece = (unit(place), grains(place));
    charge(piece, live) - charge(piece, live.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_address_round_trips_all_fields() {
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
        // No other shape is valid.
        let all = (0..=u16::MAX).filter(|shape| is_sane(shaped(5, *shape)));
        assert_eq!(all.count(), shapes.len() / 3 * 64);
        assert!(!is_sane(1 << 48 | 5));
    }

    #[test]
    fn piece_is_charged_its_size_or_remaining_blocks() {
        let block = |grains| charge((Unit::BLOCK, grains), 1);
        assert_eq!([1, 56, 57, GRAINS - 1, GRAINS].map(block), [2, 57, GRAINS, GRAINS, GRAINS]);
        let unit = |live| charge((Unit::MOST, 500), live);
        assert_eq!([0, 1, 7, 8, 16].map(unit), [0, GRAINS, 7 * GRAINS, 501, 501]);
    }

    #[test]
    fn unit_is_aligned_and_fits_remaining_blocks() {
        let at = |at, most| Unit::MOST.at(at, most).blocks();
        assert_eq!([at(0, 16), at(16, 15), at(4, 99), at(6, 99), at(5, 99), at(8, 1)], [16, 8, 4, 2, 1, 1]);
        assert_eq!(Unit(2).at(32, 99).blocks(), 4);
        assert_eq!(Unit::from_bytes(65536), Some(Unit::MOST));
        assert!([0, 512, 4097, 12288, 131072].iter().all(|bytes| Unit::from_bytes(*bytes).is_none()));
        assert_eq!(Unit::all().map(Unit::mask).collect::<Vec<u16>>(), [1, 3, 15, 255, u16::MAX]);
        assert_eq!((Unit(3).first(31), Unit::BLOCK.first(31)), (24, 31));
    }
}
