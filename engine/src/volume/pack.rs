//! Pieces: what a block becomes before it is written, and the block again.
//!
//! A piece is a whole number of grains. One of a block's length is the block; of a shorter one the first two bytes
//! say how many bytes follow (12 bits) and by which codec they were made (4 bits). It is expanded and compared before
//! anything depends on it, so that a mistake of a codec costs room and no data. What would not save an eighth is kept
//! as it is.
//!
//! To find out that a block does not compress takes longer than all else that is done for it. Such blocks come in long
//! runs, so after some in a row only few are tried, until one does compress: what begins then is noticed after
//! [`MOST_UNTRIED`] blocks at the latest.

use crate::{
    buf::BLOCK,
    volume::place::{GRAIN, GRAINS},
};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4, block by block.
    Lz4 = 1,
}

impl Codec {
    /// The codec of this number on the device.
    pub(super) fn from_value(value: u8) -> Option<Codec> {
        (value == Codec::Lz4 as u8).then_some(Codec::Lz4)
    }
}

/// Bytes before what a codec has made.
const PREFIX: usize = 2;
/// Most grains of a piece that is worth being compressed.
const MOST: usize = GRAINS as usize / 8 * 7;

/// Blocks in a row that are tried although none of them compresses.
const PATIENCE: u32 = 8;
/// Most blocks between two that are tried: with what a try costs, a hundredth of what a write does.
const MOST_UNTRIED: u32 = 128;

/// Makes pieces.
pub struct Packer {
    table: CompressTable,
    piece: Vec<u8>,
    again: Vec<u8>,
    /// Blocks in a row that were tried and did not compress.
    in_vain: u32,
    /// Blocks that are not tried from now on.
    untried: u32,
}

impl Default for Packer {
    fn default() -> Packer {
        let piece = vec![0; PREFIX + get_maximum_output_size(BLOCK) + GRAIN];
        let (table, again) = (CompressTable::default(), vec![0; BLOCK]);
        Packer { table, piece, again, in_vain: 0, untried: 0 }
    }
}

impl Packer {
    /// The piece of a block.
    pub fn pack<'p>(&'p mut self, block: &'p [u8], codec: Codec) -> &'p [u8] {
        if self.untried > 0 {
            self.untried -= 1;
            return block;
        }
        match self.compress(block, codec) {
            Some(grains) => {
                self.in_vain = 0;
                &self.piece[..grains * GRAIN]
            }
            None => {
                self.in_vain += 1;
                if self.in_vain >= PATIENCE {
                    self.untried = self.in_vain.min(MOST_UNTRIED);
                    // Twice as many the next time.
                    self.in_vain = 2 * self.untried - 1;
                }
                block
            }
        }
    }

    /// Makes the piece of a block; gives its grains. `None` if the block does not compress.
    fn compress(&mut self, block: &[u8], codec: Codec) -> Option<usize> {
        let Codec::Lz4 = codec;
        let length = compress_into_with_table(block, &mut self.piece[PREFIX..], &mut self.table).ok()?;
        let grains = (PREFIX + length).div_ceil(GRAIN);
        if grains > MOST {
            return None;
        }
        self.piece[PREFIX + length..grains * GRAIN].fill(0);
        self.piece[..PREFIX].copy_from_slice(&(length as u16 | (codec as u16) << 12).to_le_bytes());
        unpack(&self.piece[..grains * GRAIN], &mut self.again)?;
        (self.again == block).then_some(grains)
    }
}

/// Makes the block again; `None` if the piece is none.
pub fn unpack(piece: &[u8], block: &mut [u8]) -> Option<()> {
    if piece.len() == BLOCK {
        block.copy_from_slice(piece);
        return Some(());
    }
    let (prefix, bytes) = piece.split_at_checked(PREFIX)?;
    let word = u16::from_le_bytes([prefix[0], prefix[1]]);
    Codec::from_value((word >> 12) as u8)?;
    let bytes = bytes.get(..(word & 0xfff) as usize)?;
    let made = decompress_into(bytes, block).ok()?;
    (made == BLOCK).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(block: &[u8]) -> Vec<u8> {
        Packer::default().pack(block, Codec::Lz4).to_vec()
    }

    /// Bytes that do not compress.
    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes as u32 / 4).flat_map(|word| crc32c::crc32c(&word.to_le_bytes()).to_le_bytes()).collect()
    }

    #[test]
    fn what_saves_less_than_an_eighth_is_kept_as_it_is() {
        assert_eq!(packed(&noise(BLOCK)), noise(BLOCK));
        let part = |noisy: usize| {
            let mut block = noise(noisy);
            block.resize(BLOCK, 0);
            packed(&block).len()
        };
        assert_eq!(part(BLOCK / 32 * 29), BLOCK);
        assert!((BLOCK / 4 * 3..BLOCK / 8 * 7).contains(&part(BLOCK / 4 * 3)));
        assert_eq!(part(0), GRAIN);
    }

    #[test]
    fn of_many_blocks_that_do_not_compress_few_are_tried_and_the_first_that_does_is_soon_noticed() {
        let (mut packer, noise, zeros) = (Packer::default(), noise(BLOCK), vec![0; BLOCK]);
        // One that compresses now and then has all of them tried.
        for _ in 0..10 * PATIENCE {
            for _ in 1..PATIENCE {
                assert_eq!(packer.pack(&noise, Codec::Lz4).len(), BLOCK);
            }
            assert_eq!(packer.pack(&zeros, Codec::Lz4).len(), GRAIN);
        }
        let mut tried = 0;
        for _ in 0..100 * MOST_UNTRIED {
            tried += (packer.untried == 0) as u32;
            assert_eq!(packer.pack(&noise, Codec::Lz4).len(), BLOCK);
        }
        assert!((100..100 + 2 * PATIENCE).contains(&tried), "{tried}");
        let late = (0..).take_while(|_| packer.pack(&zeros, Codec::Lz4).len() == BLOCK).count();
        assert!(late <= MOST_UNTRIED as usize);
        assert_eq!(packer.pack(&zeros, Codec::Lz4).len(), GRAIN);
    }

    proptest! {
        /// Whatever a block holds, its piece becomes the block again, also with a packer that was used before.
        #[test]
        fn pieces_become_blocks_again(words in prop::collection::vec(any::<u16>(), 1..300), zeros in 0..BLOCK) {
            let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).cycle().take(BLOCK).collect();
            block[zeros..].fill(0);
            let mut packer = Packer::default();
            packer.pack(&noise(BLOCK), Codec::Lz4);
            let piece = packer.pack(&block, Codec::Lz4).to_vec();
            prop_assert!(piece.len() % GRAIN == 0 && piece.len() <= BLOCK);
            let mut again = vec![7; BLOCK];
            prop_assert_eq!(unpack(&piece, &mut again), Some(()));
            prop_assert_eq!(again, block);
        }

        /// No bytes make it panic, or write beyond a block.
        #[test]
        fn bytes_that_are_no_piece_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut block = vec![0; BLOCK];
            let _ = unpack(&bytes, &mut block);
        }
    }
}
