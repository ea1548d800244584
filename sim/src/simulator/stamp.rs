//! Block contents of the simulator: each block identifies the write it comes from.
//!
//! Every block is filled from one 64-bit stamp, which is a scrambled (zone, block, write number). Write numbers never
//! repeat in a run, so a block of another place, of an earlier incarnation of the zone or of a lost write differs from
//! the right one, and so does the sum of any blocks. Scrambling can be undone: a message about a wrong block says where
//! its contents belong.

use engine::buf::BLOCK;

/// Identifies the content of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub zone: u32,
    pub block: u64,
    /// Number of the write in the run, from 1.
    pub write: u64,
}

/// Distance between the words of a block: they all differ, and still fill at memory speed.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

impl Stamp {
    fn word(self) -> u64 {
        let id =
            (self.zone as u64 & 0xff) << 56 | (self.block & 0xffff) << 40 | (self.write & 0xff_ffff_ffff);
        scramble(id)
    }

    /// Fills one block.
    pub fn fill(self, bytes: &mut [u8]) {
        let mut word = self.word();
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(STRIDE);
        }
    }

    /// Whether a block holds exactly the data that [`Stamp::fill`] writes.
    pub fn matches(self, bytes: &[u8]) -> bool {
        let mut word = self.word();
        let mut wrong = 0;
        for chunk in bytes.chunks_exact(8) {
            wrong |= le_word(chunk) ^ word;
            word = word.wrapping_add(STRIDE);
        }
        wrong == 0 && bytes.len() == BLOCK
    }
}

/// Whether a block holds zeros only.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks_exact(8).fold(0, |sum, chunk| sum | le_word(chunk)) == 0
}

/// The stamp that a block was filled with, if any.
pub fn stamp_of(bytes: &[u8]) -> Option<Stamp> {
    let id = unscramble(le_word(bytes));
    let stamp = Stamp { zone: (id >> 56) as u32, block: id >> 40 & 0xffff, write: id & 0xff_ffff_ffff };
    stamp.matches(bytes).then_some(stamp)
}

/// The contents of a block, for messages.
pub fn describe(bytes: &[u8]) -> String {
    if is_zero(bytes) {
        return "zeros".into();
    }
    match stamp_of(bytes) {
        Some(stamp) => format!("zone {} block {} of write {}", stamp.zone, stamp.block, stamp.write),
        None => "bytes of no known write".into(),
    }
}

fn le_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

const MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;
/// MULTIPLIER * INVERSE = 1 modulo 2^64.
const INVERSE: u64 = inverse(MULTIPLIER);

/// Newton's iteration: every round doubles the number of right bits, from three.
const fn inverse(odd: u64) -> u64 {
    let (mut x, mut round) = (odd, 0);
    while round < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

fn scramble(id: u64) -> u64 {
    let z = id.wrapping_mul(MULTIPLIER);
    (z ^ (z >> 32)).wrapping_mul(MULTIPLIER)
}

fn unscramble(word: u64) -> u64 {
    let z = word.wrapping_mul(INVERSE);
    (z ^ (z >> 32)).wrapping_mul(INVERSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_identifies_write_and_detects_any_change() {
        let stamp = Stamp { zone: 3, block: 77, write: 12_345 };
        let mut block = vec![0; BLOCK];
        assert!(is_zero(&block) && !stamp.matches(&block));
        stamp.fill(&mut block);
        assert!(stamp.matches(&block));
        assert_eq!(describe(&block), "zone 3 block 77 of write 12345");
        assert!(!Stamp { write: 12_346, ..stamp }.matches(&block));
        for at in [0, 9, BLOCK - 1] {
            block[at] ^= 1;
            assert!(!stamp.matches(&block));
            assert_eq!(describe(&block), "bytes of no known write");
            block[at] ^= 1;
        }
    }

    #[test]
    fn stamp_scrambling_is_reversible() {
        for id in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(unscramble(scramble(id)), id);
        }
    }
}
