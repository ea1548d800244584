//! Where a logical block lies on the device.
//!
//! What a logical block became is a *piece*: so many *grains* of 64 bytes, one behind the other in a group, all of a
//! block if it is not compressed. A place says where its first grain is, and how many there are. One that begins with
//! a block of the device and is as long is *whole*, and no more than the number of that block.

use crate::buf::BLOCK;

/// Bytes of a grain, and grains of a block.
pub const GRAIN: usize = 64;
pub const GRAINS: u32 = (BLOCK / GRAIN) as u32;

/// Where a piece lies; 0 for nowhere. Bits 0 to 31 are the number of the block on the device that it begins in, zone
/// for zone without what lies above capacities; bits 32 to 39 the grain of that block; bits 40 to 47 how many grains
/// it is shorter than a block.
pub type Place = u64;

/// The place of a piece of `grains` grains that begins so many grains into a block.
pub fn place(block: u32, from: u32, grains: u32) -> Place {
    block as u64 | (from as u64) << 32 | ((GRAINS - grains.min(GRAINS)) as u64) << 40
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
    (place >> 32) as u32 & 0xff
}

/// How many grains it has.
pub fn grains(place: Place) -> u32 {
    GRAINS.saturating_sub((place >> 40) as u32 & 0xff)
}

/// Whether it is a block of the device, and no part of others.
pub fn is_whole(place: Place) -> bool {
    place >> 32 == 0
}

/// Whether there can be such a place.
pub fn is_sane(place: Place) -> bool {
    from(place) < GRAINS && grains(place) > 0 && place >> 48 == 0
}

/// Blocks of the device that it lies in.
pub fn blocks(place: Place) -> u32 {
    (from(place) + grains(place)).div_ceil(GRAINS)
}

/// What a piece counts for, in grains: with its share of the header of its group if it is shorter than a block.
/// Groups of whole blocks are counted by how many there can be ([`super::space`]); of shorter pieces there may be so
/// many in few blocks that their header counts.
pub fn charge(grains: u32) -> u32 {
    if grains < GRAINS { grains + 1 } else { GRAINS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_says_what_was_put_in() {
        for (at, start, length) in [(7, 0, GRAINS), (u32::MAX, 63, 1), (9, 60, 8), (1, 63, GRAINS)] {
            let place = place(at, start, length);
            assert_eq!((block(place), from(place), grains(place)), (at, start, length));
            assert_eq!(is_whole(place), start == 0 && length == GRAINS);
            assert_eq!(blocks(place), if start + length > GRAINS { 2 } else { 1 });
            assert_eq!(shaped(block(place), shape(place)), place);
            assert!(is_sane(place));
        }
        assert_eq!(place(12, 0, GRAINS), 12);
        assert!(!is_sane(1 << 48 | 5) && !is_sane(64 << 32 | 5) && !is_sane(64 << 40 | 5));
        assert_eq!([charge(1), charge(GRAINS - 1), charge(GRAINS)], [2, GRAINS, GRAINS]);
    }
}
