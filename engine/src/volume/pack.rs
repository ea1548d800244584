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
//!
//! That is pure work on bytes, and most of what a volume that compresses costs. So a [`Crew`] may do it elsewhere.

use crate::{
    buf::BLOCK,
    volume::place::{GRAIN, GRAINS},
};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::pin::Pin;
use zstd::bulk::{Compressor, Decompressor};

/// How blocks are compressed, each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd(Level),
}

/// How thorough Zstandard is: 1, the fastest, to 19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(u8);

impl Level {
    /// The level of this number, if there is one.
    pub fn new(number: u8) -> Option<Level> {
        (1..=19).contains(&number).then_some(Level(number))
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl Codec {
    /// What pieces on the device call it.
    fn in_pieces(self) -> u8 {
        match self {
            Codec::Lz4 => 1,
            Codec::Zstd(_) => 2,
        }
    }

    /// What a root calls it, with its level.
    pub(super) fn in_root(codec: Option<Codec>) -> [u8; 2] {
        match codec {
            None => [0, 0],
            Some(codec @ Codec::Lz4) => [codec.in_pieces(), 0],
            Some(codec @ Codec::Zstd(level)) => [codec.in_pieces(), level.0],
        }
    }

    /// What [`Codec::in_root`] has made; `None` of anything else.
    pub(super) fn of_root(bytes: [u8; 2]) -> Option<Option<Codec>> {
        let codec = match bytes {
            [0, _] => None,
            [1, _] => Some(Codec::Lz4),
            [_, level] => Some(Codec::Zstd(Level::new(level)?)),
        };
        (Codec::in_root(codec) == bytes).then_some(codec)
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

/// Whether the next block is tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// Blocks in a row that were tried and did not compress, up to [`PATIENCE`]; then how many were not tried.
    in_vain: u32,
    /// Blocks that are not tried from now on.
    untried: u32,
}

impl Patience {
    /// A block has come: whether it is tried.
    fn tries(&mut self) -> bool {
        if self.untried > 0 {
            self.untried -= 1;
            return false;
        }
        self.probes();
        true
    }

    /// Where blocks do not compress one of them is tried: what comes before that is known is not, and twice as many as
    /// the last time.
    pub fn probes(&mut self) {
        if self.in_vain >= PATIENCE {
            self.in_vain = MOST_UNTRIED.min(2 * self.in_vain);
            self.untried = self.in_vain;
        }
    }

    /// A block was tried.
    fn tried(&mut self, compresses: bool) {
        if compresses {
            *self = Patience::default();
        } else if self.in_vain < PATIENCE {
            self.in_vain += 1;
            self.untried = if self.in_vain == PATIENCE { PATIENCE } else { 0 };
        }
    }

    /// Whether none of the next so many blocks is tried.
    pub fn passes(&self, blocks: usize) -> bool {
        self.untried as usize >= blocks
    }

    /// Others were packed elsewhere meanwhile.
    pub fn learn(&mut self, packing: &Packing) {
        if packing.packed.bytes.is_empty() {
            (packing.before.in_vain..packing.patience.in_vain).for_each(|_| self.tried(false));
        } else {
            *self = packing.patience;
        }
    }
}

/// Pieces of blocks, one behind the other.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    bytes: Vec<u8>,
    /// Where the piece of each block ends; where it begins if the block is kept as it is.
    ends: Vec<u32>,
}

impl Packed {
    /// The piece of a block, counted from 0; `None` if the block is kept as it is.
    pub fn piece(&self, block: usize) -> Option<&[u8]> {
        let end = *self.ends.get(block)? as usize;
        let start = block.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        (start < end).then(|| &self.bytes[start..end])
    }
}

/// Blocks to be packed, and then what has become of them.
#[derive(Debug)]
pub struct Packing {
    blocks: Vec<u8>,
    codec: Codec,
    /// What was known before, and is after.
    before: Patience,
    patience: Patience,
    pub(super) packed: Packed,
}

impl Packing {
    pub(super) fn new(blocks: &[u8], codec: Codec, patience: Patience) -> Packing {
        Packing { blocks: blocks.to_vec(), codec, before: patience, patience, packed: Packed::default() }
    }

    /// Blocks that it is about.
    pub fn blocks(&self) -> usize {
        self.blocks.len() / BLOCK
    }

    /// Packs them.
    pub fn run(&mut self, packer: &mut Packer) {
        self.packed = packer.pack(&self.blocks, self.codec, &mut self.patience);
    }
}

/// Who packs blocks while the engine does something else. Whatever it takes it gives back, after [`Packing::run`] on any
/// thread, or without, and then the volume does it.
pub trait Crew {
    /// Takes something to be packed, or gives it back at once if it has enough to do.
    ///
    /// # Errors
    /// What was offered.
    fn take(&self, packing: Packing) -> Result<Taken, Packing>;
}

/// What a [`Crew`] has taken.
pub type Taken = Pin<Box<dyn Future<Output = Option<Packing>>>>;

/// Makes pieces. One for each thread.
pub struct Packer {
    table: CompressTable,
    zstd: Option<(Level, Compressor<'static>)>,
    unpacker: Unpacker,
    piece: Vec<u8>,
    again: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer {
            table: CompressTable::default(),
            zstd: None,
            unpacker: Unpacker::default(),
            piece: vec![0; PREFIX + get_maximum_output_size(BLOCK) + GRAIN],
            again: vec![0; BLOCK],
        }
    }
}

impl Packer {
    /// The pieces of `blocks`.
    pub(super) fn pack(&mut self, blocks: &[u8], codec: Codec, patience: &mut Patience) -> Packed {
        let mut packed = Packed::default();
        for block in blocks.chunks_exact(BLOCK) {
            if patience.tries() {
                let grains = self.compress(block, codec);
                patience.tried(grains.is_some());
                packed.bytes.extend_from_slice(&self.piece[..grains.unwrap_or(0) * GRAIN]);
            }
            packed.ends.push(packed.bytes.len() as u32);
        }
        packed
    }

    /// Makes the piece of a block; gives its grains. `None` if the block does not compress.
    fn compress(&mut self, block: &[u8], codec: Codec) -> Option<usize> {
        let (prefix, target) = self.piece.split_at_mut(PREFIX);
        let length = match codec {
            Codec::Lz4 => compress_into_with_table(block, target, &mut self.table).ok()?,
            Codec::Zstd(level) => {
                if self.zstd.as_ref().is_none_or(|(other, _)| *other != level) {
                    self.zstd = Some((level, Compressor::new(level.0.into()).ok()?));
                }
                let (_, zstd) = self.zstd.as_mut()?;
                zstd.compress_to_buffer(block, &mut target[..MOST * GRAIN - PREFIX]).ok()?
            }
        };
        let grains = (PREFIX + length).div_ceil(GRAIN);
        if grains > MOST {
            return None;
        }
        prefix.copy_from_slice(&(length as u16 | u16::from(codec.in_pieces()) << 12).to_le_bytes());
        self.piece[PREFIX + length..grains * GRAIN].fill(0);
        self.unpacker.unpack(&self.piece[..grains * GRAIN], &mut self.again)?;
        (self.again == block).then_some(grains)
    }
}

/// Makes blocks again.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<Decompressor<'static>>,
}

impl Unpacker {
    /// Makes the block again; `None` if the piece is none.
    pub fn unpack(&mut self, piece: &[u8], block: &mut [u8]) -> Option<()> {
        if piece.len() == BLOCK {
            block.copy_from_slice(piece);
            return Some(());
        }
        let (prefix, bytes) = piece.split_at_checked(PREFIX)?;
        let word = u16::from_le_bytes([prefix[0], prefix[1]]);
        let bytes = bytes.get(..(word & 0xfff) as usize)?;
        let made = match word >> 12 {
            1 => decompress_into(bytes, block).ok()?,
            2 => {
                if self.zstd.is_none() {
                    self.zstd = Some(Decompressor::new().ok()?);
                }
                self.zstd.as_mut()?.decompress_to_buffer(bytes, block).ok()?
            }
            _ => return None,
        };
        (made == BLOCK).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CODECS: [Codec; 3] = [Codec::Lz4, Codec::Zstd(Level(1)), Codec::Zstd(Level(19))];

    fn packed(block: &[u8], codec: Codec) -> Vec<u8> {
        let packed = Packer::default().pack(block, codec, &mut Patience::default());
        packed.piece(0).unwrap_or(block).to_vec()
    }

    /// Bytes that do not compress.
    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes as u32 / 4).flat_map(|word| crc32c::crc32c(&word.to_le_bytes()).to_le_bytes()).collect()
    }

    #[test]
    fn what_saves_less_than_an_eighth_is_kept_as_it_is() {
        for codec in CODECS {
            assert_eq!(packed(&noise(BLOCK), codec), noise(BLOCK));
            let part = |noisy: usize| {
                let mut block = noise(noisy);
                block.resize(BLOCK, 0);
                packed(&block, codec).len()
            };
            assert_eq!(part(BLOCK / 32 * 29), BLOCK);
            assert!((BLOCK / 4 * 3..BLOCK / 8 * 7).contains(&part(BLOCK / 4 * 3)));
            assert_eq!(part(0), GRAIN);
        }
    }

    #[test]
    fn pieces_of_many_blocks_lie_one_behind_the_other() {
        let mut blocks = noise(BLOCK);
        blocks.resize(3 * BLOCK, 0);
        blocks.extend(noise(BLOCK));
        let packed = Packer::default().pack(&blocks, Codec::Lz4, &mut Patience::default());
        let lengths = [0, 1, 2, 3, 4].map(|block| packed.piece(block).map(<[u8]>::len));
        assert_eq!(lengths, [None, Some(GRAIN), Some(GRAIN), None, None]);
        assert_eq!(packed.bytes.len(), 2 * GRAIN);
    }

    #[test]
    fn of_many_blocks_that_do_not_compress_few_are_tried_and_the_first_that_does_is_soon_noticed() {
        let (mut packer, mut patience) = (Packer::default(), Patience::default());
        let (noise, zeros) = (noise(BLOCK), vec![0; BLOCK]);
        let mut compresses = |block: &[u8], patience: &mut Patience| {
            packer.pack(block, Codec::Lz4, patience).piece(0).is_some()
        };
        // One that compresses now and then has all of them tried.
        for _ in 0..10 * PATIENCE {
            for _ in 1..PATIENCE {
                assert!(!compresses(&noise, &mut patience));
            }
            assert!(compresses(&zeros, &mut patience));
        }
        let mut tried = 0;
        for _ in 0..100 * MOST_UNTRIED {
            tried += (patience.untried == 0) as u32;
            assert!(!compresses(&noise, &mut patience));
        }
        assert!((100..100 + 2 * PATIENCE).contains(&tried), "{tried}");
        let late = (0..).take_while(|_| !compresses(&zeros, &mut patience)).count();
        assert!(late <= MOST_UNTRIED as usize);
        assert!(compresses(&zeros, &mut patience));
        assert!(patience.passes(0) && !patience.passes(1));
    }

    #[test]
    fn what_was_packed_elsewhere_is_learnt_from_and_one_is_tried_at_a_time() {
        let (mut packer, mut patience) = (Packer::default(), Patience::default());
        let mut packing = |bytes: &[u8], before: Patience| {
            let mut packing = Packing::new(bytes, Codec::Lz4, before);
            packing.run(&mut packer);
            packing
        };
        let noise = noise(BLOCK);
        // Many at once, of which none knows of the others.
        for _ in 0..10 * PATIENCE {
            patience.learn(&packing(&noise, Patience::default()));
        }
        assert_eq!((patience.in_vain, patience.untried), (PATIENCE, PATIENCE));
        patience.untried = 0;
        let before = patience;
        patience.probes();
        assert!(patience.passes(2 * PATIENCE as usize) && !patience.passes(2 * PATIENCE as usize + 1));
        let tried = packing(&noise, before);
        patience.learn(&tried);
        assert!(patience.passes(2 * PATIENCE as usize));
        patience.learn(&packing(&[0; BLOCK], before));
        assert!(!patience.passes(1) && patience.in_vain == 0);
    }

    #[test]
    fn a_root_calls_each_codec_something_else_and_nothing_else_is_one() {
        let all = [None, Some(Codec::Lz4)].into_iter().chain((1..=19).map(|n| Some(Codec::Zstd(Level(n)))));
        let mut known = Vec::new();
        for codec in all {
            known.push(Codec::in_root(codec));
            assert_eq!(Codec::of_root(Codec::in_root(codec)), Some(codec));
        }
        let words = (0..=u16::MAX).map(u16::to_le_bytes);
        assert_eq!(words.filter(|bytes| Codec::of_root(*bytes).is_some()).count(), known.len());
    }

    proptest! {
        /// Whatever a block holds, its piece becomes the block again, also with a packer that was used before.
        #[test]
        fn pieces_become_blocks_again(words in prop::collection::vec(any::<u16>(), 1..300), zeros in 0..BLOCK) {
            let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).cycle().take(BLOCK).collect();
            block[zeros..].fill(0);
            let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
            for codec in CODECS {
                packer.pack(&noise(BLOCK), codec, &mut Patience::default());
                let packed = packer.pack(&block, codec, &mut Patience::default());
                let piece = packed.piece(0).unwrap_or(&block);
                prop_assert!(piece.len() % GRAIN == 0 && piece.len() <= BLOCK);
                let mut again = vec![7; BLOCK];
                prop_assert_eq!(unpacker.unpack(piece, &mut again), Some(()));
                prop_assert_eq!(&again, &block);
            }
        }

        /// No bytes make it panic, or write beyond a block, whichever codec they say.
        #[test]
        fn bytes_that_are_no_piece_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 2..400), codec in 0..4u16) {
            let length = bytes.len() as u16 - 2;
            bytes[..2].copy_from_slice(&(length | codec << 12).to_le_bytes());
            let (mut unpacker, mut block) = (Unpacker::default(), vec![0; BLOCK]);
            let _ = unpacker.unpack(&bytes, &mut block);
            // A damaged piece is one, or is none.
            let mut piece = packed(&vec![7; BLOCK], CODECS[codec as usize % 3]);
            piece.iter_mut().skip(2).zip(&bytes).for_each(|(byte, change)| *byte ^= *change & 1);
            let _ = unpacker.unpack(&piece, &mut block);
        }
    }
}
