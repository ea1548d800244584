//! Checksum blocks: the blocks of a zone that hold the checksums of the others.

use crate::buf::BLOCK;
use std::ops::RangeInclusive;

/// Data blocks whose checksums a checksum block can hold.
pub const GROUP_BLOCKS: RangeInclusive<u64> = 1..=1008;

/// Bytes before the checksums.
const HEADER_BYTES: usize = 64;

/// First field behind the checksum of a checksum block.
const MAGIC: u32 = 0x4d55_535a;

/// Flag of the last checksum block of a zone that was finished: nothing was written behind it.
const LAST: u32 = 1;

/// Stands for the checksum of a block of which none is known.
pub const NO_SUM: u32 = 0;

/// Stands for the checksum of a block that is known to be wrong: no block has it.
pub const WRONG_SUM: u32 = u32::MAX;

/// Checksum of a block: CRC-32, with other numbers instead of [`NO_SUM`] and [`WRONG_SUM`].
pub fn sum_of(block: &[u8]) -> u32 {
    crc32fast::hash(block).clamp(NO_SUM + 1, WRONG_SUM - 1)
}

/// The place and the life that a checksum block belongs to: it is invalid in any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumOwner {
    /// UUID of the member, a new one for each drive that becomes a member.
    pub member: [u8; 16],
    /// Address of the checksum block on the drive.
    pub lba: u64,
    /// Epoch of the zone.
    pub epoch: u64,
}

/// Writes the checksum block of `owner` with `sums` into `block`; `last` if the zone ends with it.
pub fn encode(block: &mut [u8], owner: &SumOwner, sums: &[u32], last: bool) {
    assert!(GROUP_BLOCKS.contains(&(sums.len() as u64)), "a checksum block of {} blocks", sums.len());
    block.fill(0);
    block[4..8].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..12].copy_from_slice(&(sums.len() as u32).to_le_bytes());
    block[12..16].copy_from_slice(&(if last { LAST } else { 0 }).to_le_bytes());
    for (bytes, sum) in block[HEADER_BYTES..].chunks_exact_mut(4).zip(sums) {
        bytes.copy_from_slice(&sum.to_le_bytes());
    }
    let own = seal(block, owner);
    block[..4].copy_from_slice(&own.to_le_bytes());
}

/// Whether `block` is a valid checksum block of `owner` for `count` blocks.
pub fn is_valid(block: &[u8], owner: &SumOwner, count: u64) -> bool {
    block.len() == BLOCK
        && number(block, 0) == seal(block, owner)
        && number(block, 4) == MAGIC
        && number(block, 8) as u64 == count
}

/// Whether a valid checksum block is the last one of a zone that was finished.
pub fn is_last(block: &[u8]) -> bool {
    number(block, 12) & LAST != 0
}

/// The checksum of data block `at` of the group of a valid checksum block.
pub fn sum_in(block: &[u8], at: u64) -> u32 {
    number(block, HEADER_BYTES + at as usize * 4)
}

fn number(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// CRC-32C of the owner, and of the block behind its first field.
fn seal(block: &[u8], owner: &SumOwner) -> u32 {
    let crc = crc32c::crc32c(&owner.member);
    let crc = crc32c::crc32c_append(crc, &owner.lba.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &owner.epoch.to_le_bytes());
    crc32c::crc32c_append(crc, &block[4..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::BufMut;

    #[test]
    fn checksum_block_is_valid_for_its_owner_alone() {
        let owner = SumOwner { member: [7; 16], lba: 42, epoch: 5 };
        let sums: Vec<u32> = (1..=9).collect();
        let mut block = BufMut::zeroed(BLOCK);
        encode(&mut block, &owner, &sums, true);
        assert!(is_valid(&block, &owner, 9) && is_last(&block));
        assert_eq!((0..9).map(|at| sum_in(&block, at)).collect::<Vec<_>>(), sums);
        for other in [
            SumOwner { member: [8; 16], ..owner },
            SumOwner { lba: 43, ..owner },
            SumOwner { epoch: 4, ..owner },
        ] {
            assert!(!is_valid(&block, &other, 9), "{other:?}");
        }
        assert!(!is_valid(&block, &owner, 8));
        for bit in 0..BLOCK * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_valid(&block, &owner, 9), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(!is_valid(&[0; BLOCK], &owner, 9));
    }

    #[test]
    fn no_block_has_a_checksum_with_another_meaning() {
        let with_sum_zero = [0x9d, 0x0a, 0xd9, 0x6d];
        assert_eq!(crc32fast::hash(&with_sum_zero), NO_SUM);
        assert_ne!(sum_of(&with_sum_zero), NO_SUM);
        assert_eq!(crc32fast::hash(&[0xff; 4]), WRONG_SUM);
        assert_ne!(sum_of(&[0xff; 4]), WRONG_SUM);
    }
}
