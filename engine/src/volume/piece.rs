//! Pieces: the stored form of the blocks of a unit, and its expansion to blocks.
//!
//! A piece is a whole number of grains. A piece of a block's length is the block itself, if it is of one block; other
//! pieces begin with the number of bytes that follow (2 bytes) and their codec (1 byte). A piece is expanded and
//! compared before anything depends on it, so that an error in a codec costs room and no data. Units that would not
//! save an eighth are stored uncompressed, block by block.
//!
//! A *squeezed* block ([`PieceEncoder::squeeze`]) has to be shorter by little more than a header. So only one quarter of
//! it is compressed, the first one that saves enough.
//!
//! An attempt to compress incompressible blocks takes longer than all other work for them. Such blocks come in long
//! runs, so after some incompressible units in a row attempts become rare ([`Patience`]), until one succeeds:
//! compressible data is noticed after [`MOST_UNTRIED`] blocks at the latest. Such an attempt tries the first block of a
//! unit alone before the whole unit.
//!
//! Compression depends on nothing but the bytes, and is most of the cost of a compressed volume. So other threads may
//! do it ([`CompressionWorkers`]).

use crate::{
    buf::BLOCK,
    volume::address::{GRAIN, Unit},
};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::pin::Pin;
use zstd::bulk::{Compressor, Decompressor};

/// Compression algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd(Level),
}

/// Level of Zstandard: 1, the fastest, to 19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(u8);

impl Level {
    /// The level with this number; `None` unless it is 1 to 19.
    pub fn new(number: u8) -> Option<Level> {
        (1..=19).contains(&number).then_some(Level(number))
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl Codec {
    /// The codec's number in pieces on the device.
    fn in_pieces(self) -> u8 {
        match self {
            Codec::Lz4 => 1,
            Codec::Zstd(_) => 2,
        }
    }

    /// The codec's number in a root, and its level.
    pub(super) fn in_root(codec: Option<Codec>) -> [u8; 2] {
        match codec {
            None => [0, 0],
            Some(codec @ Codec::Lz4) => [codec.in_pieces(), 0],
            Some(codec @ Codec::Zstd(level)) => [codec.in_pieces(), level.0],
        }
    }

    /// Decodes [`Codec::in_root`]; `None` for invalid bytes.
    pub(super) fn of_root(bytes: [u8; 2]) -> Option<Option<Codec>> {
        let codec = match bytes {
            [0, _] => None,
            [1, _] => Some(Codec::Lz4),
            [_, level] => Some(Codec::Zstd(Level::new(level)?)),
        };
        (Codec::in_root(codec) == bytes).then_some(codec)
    }
}

/// Codec, and the largest unit.
pub(super) type Encoding = (Codec, Unit);

/// Bytes of a compressed piece before the compressed data: its length (2) and codec (1).
const PREFIX: usize = 3;

/// Codec of a squeezed block: the index of a quarter follows, then this quarter, compressed with LZ4, and then the others.
const SQUEEZED: u8 = 3;
/// Bytes of a quarter of a block.
const QUARTER: usize = BLOCK / 4;

/// Number of incompressible units in a row after which not every unit is tried.
const PATIENCE: u32 = 8;
/// Number of further failed tries after which the interval between two tries is doubled.
const STEP: u32 = 4;
/// Maximum number of untried blocks between two tries: a try costs as much as the writes of a few blocks, so spread
/// over these it costs a hundredth of a write.
const MOST_UNTRIED: u32 = 1024;

/// Backoff for incompressible data: decides for which units compression is tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// Number of tries in a row that failed.
    in_vain: u32,
    /// Number of following blocks that are stored without a try.
    untried: u32,
}

impl Patience {
    /// Whether the next unit, of `blocks` blocks, is tried; counts its blocks.
    fn tries(&mut self, blocks: u32) -> bool {
        let tries = self.untried == 0;
        self.untried = self.untried.saturating_sub(blocks);
        tries
    }

    /// Whether at least [`PATIENCE`] tries in a row have failed: only few units are tried.
    pub fn is_out(&self) -> bool {
        self.in_vain >= PATIENCE
    }

    /// Records the result of a try.
    fn tried(&mut self, compresses: bool) {
        if compresses {
            *self = Patience::default();
            return;
        }
        self.in_vain = self.in_vain.saturating_add(1);
        let steps = self.in_vain.checked_sub(PATIENCE).map(|in_vain| in_vain / STEP);
        self.untried = steps.map_or(0, |steps| 1 << steps.min(MOST_UNTRIED.ilog2()));
    }

    /// Whether none of the next `blocks` blocks is to be tried; if so, counts them as untried.
    pub fn passes(&mut self, blocks: u64) -> bool {
        let passes = self.untried as u64 >= blocks;
        if passes {
            self.untried -= blocks as u32;
        }
        passes
    }

    /// Adds the results of a job that ran on another thread. If a unit of it has compressed, the state of the job
    /// replaces this one; otherwise its failures are added.
    pub fn learn(&mut self, compression: &CompressionJob) {
        if compression.packed.bytes.is_empty() {
            (compression.before.in_vain..compression.patience.in_vain).for_each(|_| self.tried(false));
        } else {
            *self = compression.patience;
        }
    }
}

/// Pieces of consecutive logical blocks, one behind the other.
#[derive(Clone, Debug, Default)]
pub struct PackedPieces {
    bytes: Vec<u8>,
    /// For each block the end of the piece of its unit in `bytes`, and the unit. The piece begins at the end that the
    /// block before has: so it is empty for a block that is stored uncompressed, and for all but the first block of a
    /// unit.
    ends: Vec<(u32, Unit)>,
}

impl PackedPieces {
    /// The piece of the unit that begins with block `block`, counted from 0, and the unit; `None` if the block is
    /// stored uncompressed.
    pub fn piece(&self, block: usize) -> Option<(&[u8], Unit)> {
        let (end, unit) = *self.ends.get(block)?;
        let start = block.checked_sub(1).map_or(0, |before| self.ends[before].0);
        (start < end).then(|| (&self.bytes[start as usize..end as usize], unit))
    }
}

/// Consecutive blocks to be packed, and the result.
#[derive(Debug)]
pub struct CompressionJob {
    blocks: Vec<u8>,
    /// Number of the first logical block.
    at: u64,
    encoding: Encoding,
    /// State of the backoff before the job.
    before: Patience,
    /// State of the backoff after the job.
    patience: Patience,
    pub(super) packed: PackedPieces,
}

impl CompressionJob {
    pub(super) fn new((at, blocks): (u64, &[u8]), encoding: Encoding, patience: Patience) -> CompressionJob {
        CompressionJob {
            blocks: blocks.to_vec(),
            at,
            encoding,
            before: patience,
            patience,
            packed: PackedPieces::default(),
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len() / BLOCK
    }

    /// Packs the blocks.
    pub fn run(&mut self, encoder: &mut PieceEncoder) {
        self.packed = encoder.pack((self.at, &self.blocks), self.encoding, &mut self.patience);
    }
}

/// Threads that compress blocks in parallel to the engine, by [`CompressionJob::run`]. They may give up on a job that
/// they have taken; then the volume packs the blocks itself.
pub trait CompressionWorkers {
    /// Takes a job, or returns it at once if the workers are busy.
    ///
    /// # Errors
    /// The job.
    fn take(&self, compression: CompressionJob) -> Result<PendingJob, CompressionJob>;
}

/// A job that a [`CompressionWorkers`] has taken: resolves to it after [`CompressionJob::run`], or to `None` if the
/// workers have given up on it.
pub type PendingJob = Pin<Box<dyn Future<Output = Option<CompressionJob>>>>;

/// Compresses blocks to pieces, with buffers that are reused: one encoder for each thread.
pub struct PieceEncoder {
    /// Hash table of LZ4.
    table: CompressTable,
    /// Compressor of the level that was last used.
    zstd: Option<(Level, Compressor<'static>)>,
    decoder: PieceDecoder,
    /// The piece that was last made.
    piece: Vec<u8>,
    /// Blocks expanded from it, for comparison.
    again: Vec<u8>,
}

impl Default for PieceEncoder {
    fn default() -> PieceEncoder {
        PieceEncoder {
            table: CompressTable::default(),
            zstd: None,
            decoder: PieceDecoder::default(),
            piece: vec![0; PREFIX + get_maximum_output_size(Unit::MOST.bytes())],
            again: vec![0; Unit::MOST.bytes()],
        }
    }
}

impl PieceEncoder {
    /// Packs blocks, the first of which is the logical block `at`.
    pub(super) fn pack(
        &mut self,
        (at, blocks): (u64, &[u8]),
        (codec, most): Encoding,
        patience: &mut Patience,
    ) -> PackedPieces {
        let (mut packed, mut rest) = (PackedPieces::default(), blocks);
        while !rest.is_empty() {
            let unit = most.at(at + packed.ends.len() as u64, (rest.len() / BLOCK) as u64);
            let (blocks, others) = rest.split_at(unit.bytes().min(rest.len()));
            if patience.tries(unit.blocks()) {
                let hopeless =
                    patience.is_out() && self.compress(&blocks[..BLOCK], codec, Unit::BLOCK).is_none();
                let bytes = if hopeless { None } else { self.compress(blocks, codec, unit) };
                patience.tried(bytes.is_some());
                packed.bytes.extend_from_slice(&self.piece[..bytes.unwrap_or(0)]);
            }
            let end = (packed.bytes.len() as u32, unit);
            packed.ends.extend(std::iter::repeat_n(end, unit.blocks() as usize));
            rest = others;
        }
        assert_eq!(packed.ends.len() * BLOCK, blocks.len(), "bytes of packed blocks, and bytes to be packed");
        packed
    }

    /// Makes a piece of exactly this many grains of a block; `None` if that takes more.
    pub(super) fn squeeze(&mut self, block: &[u8], grains: u32, patience: &mut Patience) -> Option<&[u8]> {
        if !patience.tries(1) {
            return None;
        }
        assert!(Unit::BLOCK.is_squeezed(grains), "a block is squeezed to {grains} grains");
        let length = grains as usize * GRAIN;
        let quarter = (0..BLOCK / QUARTER).find(|quarter| self.squeeze_quarter(block, *quarter, length));
        patience.tried(quarter.is_some());
        quarter.map(|_| &self.piece[..length])
    }

    /// Compresses a quarter of a block, and makes a piece of `length` bytes in `self.piece`; `false` if that is too short.
    fn squeeze_quarter(&mut self, block: &[u8], quarter: usize, length: usize) -> bool {
        let (prefix, target) = self.piece.split_at_mut(PREFIX + 1);
        let (before, rest) = block.split_at(quarter * QUARTER);
        let (bytes, after) = rest.split_at(QUARTER);
        let Ok(made) = compress_into_with_table(bytes, target, &mut self.table) else { return false };
        let most = length.saturating_sub(PREFIX + 1 + BLOCK - QUARTER);
        if made > most {
            return false;
        }
        let [low, high] = (made as u16).to_le_bytes();
        prefix.copy_from_slice(&[low, high, SQUEEZED, quarter as u8]);
        let others = &mut target[made..];
        others[..before.len()].copy_from_slice(before);
        others[before.len()..BLOCK - QUARTER].copy_from_slice(after);
        others[BLOCK - QUARTER..][..most - made].fill(0);
        let again = &mut self.again[..BLOCK];
        self.decoder.unpack(&self.piece[..length], again).is_some() && again == block
    }

    /// Compresses the blocks of a unit into `self.piece`; returns its length in bytes. `None` if that would not save an
    /// eighth.
    fn compress(&mut self, blocks: &[u8], codec: Codec, unit: Unit) -> Option<usize> {
        let (step, most) = (unit.step() as usize * GRAIN, unit.most_grains() as usize * GRAIN);
        let (prefix, target) = self.piece.split_at_mut(PREFIX);
        let length = match codec {
            Codec::Lz4 => compress_into_with_table(blocks, target, &mut self.table).ok()?,
            Codec::Zstd(level) => {
                if self.zstd.as_ref().is_none_or(|(other, _)| *other != level) {
                    self.zstd = Some((level, Compressor::new(level.0.into()).ok()?));
                }
                let (_, zstd) = self.zstd.as_mut()?;
                zstd.compress_to_buffer(blocks, &mut target[..most - PREFIX]).ok()?
            }
        };
        let bytes = (PREFIX + length).next_multiple_of(step);
        if bytes > most {
            return None;
        }
        let [low, high] = (length as u16).to_le_bytes();
        prefix.copy_from_slice(&[low, high, codec.in_pieces()]);
        self.piece[PREFIX + length..bytes].fill(0);
        let again = &mut self.again[..blocks.len()];
        self.decoder.unpack(&self.piece[..bytes], again)?;
        (again == blocks).then_some(bytes)
    }
}

/// Expands pieces to blocks.
#[derive(Default)]
pub struct PieceDecoder {
    zstd: Option<Decompressor<'static>>,
    /// Buffer for all blocks of a unit of which only some are wanted.
    all: Vec<u8>,
}

impl PieceDecoder {
    /// Expands a piece to `blocks`; `None` if the piece is damaged, or expands to another length.
    pub fn unpack(&mut self, piece: &[u8], blocks: &mut [u8]) -> Option<()> {
        if piece.len() == blocks.len() {
            blocks.copy_from_slice(piece);
            return Some(());
        }
        let ([low, high, codec], bytes) = piece.split_first_chunk::<PREFIX>()?;
        if *codec == SQUEEZED {
            return unpack_squeezed(bytes, u16::from_le_bytes([*low, *high]) as usize, blocks);
        }
        let bytes = bytes.get(..u16::from_le_bytes([*low, *high]) as usize)?;
        let made = match codec {
            1 => decompress_into(bytes, blocks).ok()?,
            2 => {
                if self.zstd.is_none() {
                    self.zstd = Some(Decompressor::new().ok()?);
                }
                self.zstd.as_mut()?.decompress_to_buffer(bytes, blocks).ok()?
            }
            _ => return None,
        };
        (made == blocks.len()).then_some(())
    }

    /// Expands the blocks of a unit from `index` on into `some`, as many as that has room for; `None` if the piece is
    /// damaged.
    pub fn unpack_some(&mut self, piece: &[u8], (unit, index): (Unit, usize), some: &mut [u8]) -> Option<()> {
        if some.len() == unit.bytes() {
            return self.unpack(piece, some);
        }
        let mut all = std::mem::take(&mut self.all);
        all.resize(unit.bytes(), 0);
        let made = self.unpack(piece, &mut all);
        let wanted = all.get(index * BLOCK..).and_then(|all| all.get(..some.len()));
        let given = made.and(wanted).map(|wanted| some.copy_from_slice(wanted));
        self.all = all;
        given
    }
}

/// Expands a squeezed block, whose compressed quarter has `length` bytes; `None` if the piece is damaged.
fn unpack_squeezed(bytes: &[u8], length: usize, block: &mut [u8]) -> Option<()> {
    let (quarter, bytes) = bytes.split_first()?;
    let (compressed, others) = bytes.split_at_checked(length)?;
    let at = *quarter as usize * QUARTER;
    let is_whole = block.len() == BLOCK && at < BLOCK && others.len() >= BLOCK - QUARTER;
    if !is_whole {
        return None;
    }
    block[..at].copy_from_slice(&others[..at]);
    block[at + QUARTER..].copy_from_slice(&others[at..BLOCK - QUARTER]);
    let made = decompress_into(compressed, &mut block[at..at + QUARTER]).ok()?;
    (made == QUARTER).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CODECS: [Codec; 3] = [Codec::Lz4, Codec::Zstd(Level(1)), Codec::Zstd(Level(19))];

    fn packed(block: &[u8], codec: Codec) -> Vec<u8> {
        let packed = PieceEncoder::default().pack((0, block), (codec, Unit::BLOCK), &mut Patience::default());
        packed.piece(0).map_or(block, |(piece, _)| piece).to_vec()
    }

    /// Bytes that do not compress.
    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes as u32 / 4).flat_map(|word| crc32c::crc32c(&word.to_le_bytes()).to_le_bytes()).collect()
    }

    #[test]
    fn pack_saving_under_one_eighth_stays_uncompressed() {
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
    fn squeezed_block_is_of_given_length_and_expands_if_one_quarter_compresses() {
        let mut encoder = PieceEncoder::default();
        let mut squeezed = |block: &[u8], grains| {
            encoder.squeeze(block, grains, &mut Patience::default()).map(<[u8]>::to_vec)
        };
        assert_eq!(squeezed(&noise(BLOCK), 62), None);
        for quarter in 0..4 {
            for (same, grains) in [(150, 62), (210, 61), (1024, 58)] {
                let mut block = noise(BLOCK);
                block[quarter * QUARTER..][..same].fill(7);
                let piece = squeezed(&block, grains).unwrap();
                assert_eq!(piece.len(), grains as usize * GRAIN);
                let mut again = vec![0; BLOCK];
                assert_eq!(PieceDecoder::default().unpack(&piece, &mut again), Some(()));
                assert!(again == block, "quarter {quarter}");
                assert_eq!(PieceDecoder::default().unpack(&piece[..BLOCK - QUARTER], &mut again), None);
            }
            let mut block = noise(BLOCK);
            block[quarter * QUARTER..][..120].fill(7);
            assert_eq!(squeezed(&block, 62), None);
        }
    }

    #[test]
    fn packer_places_pieces_contiguously_in_aligned_units() {
        let mut blocks = noise(BLOCK);
        blocks.resize(3 * BLOCK, 0);
        blocks.extend(noise(BLOCK));
        let pack = |at, unit| {
            let packed =
                PieceEncoder::default().pack((at, &blocks), (Codec::Lz4, unit), &mut Patience::default());
            let of = |block| packed.piece(block).map(|(piece, unit)| (piece.len(), unit.blocks()));
            ([0, 1, 2, 3, 4].map(of), packed.bytes.len())
        };
        let one = Some((GRAIN, 1));
        assert_eq!(pack(0, Unit::BLOCK), ([None, one, one, None, None], 2 * GRAIN));
        // Naturally aligned: both blocks of zeros are of one unit, or each is of one with one of noise.
        let pair = Unit::from_bytes(2 * BLOCK as u64).unwrap();
        assert_eq!(pack(7, pair), ([None, Some((GRAIN, 2)), None, None, None], GRAIN));
        let (found, bytes) = pack(8, pair);
        assert!(found[0] == found[2] && found[0].is_some_and(|(_, blocks)| blocks == 2) && bytes > 2 * BLOCK);
        let (found, bytes) = pack(16, Unit::MOST);
        assert_eq!((found[1..].iter().flatten().count(), found[0]), (0, Some((bytes, 4))));
    }

    #[test]
    fn patience_samples_incompressible_data_and_recovers_quickly() {
        let (mut encoder, mut patience) = (PieceEncoder::default(), Patience::default());
        let (noise, zeros) = (noise(BLOCK), vec![0; BLOCK]);
        let mut compresses = |block: &[u8], patience: &mut Patience| {
            encoder.pack((1, block), (Codec::Lz4, Unit::MOST), patience).piece(0).is_some()
        };
        // A unit now and then that compresses keeps all of them tried.
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
        assert!((100..100 + PATIENCE + STEP * MOST_UNTRIED.ilog2()).contains(&tried), "{tried}");
        let late = (0..).take_while(|_| !compresses(&zeros, &mut patience)).count();
        assert!(late <= MOST_UNTRIED as usize);
        assert!(compresses(&zeros, &mut patience));
        // After a short run of noise compressible data is not missed for longer than that.
        for noisy in [PATIENCE, 10 * PATIENCE, 100 * PATIENCE] {
            assert!(compresses(&zeros, &mut patience));
            assert!((0..noisy).all(|_| !compresses(&noise, &mut patience)));
            let late = (0..).take_while(|_| !compresses(&zeros, &mut patience)).count();
            assert!(late <= noisy as usize / STEP as usize, "{late} after {noisy}");
        }
        // Most compressible data is found if three units in ten compress, in no order.
        let mut rng = (0_u32..).map(|word| crc32c::crc32c(&word.to_le_bytes()) % 10 < 3);
        let (mut all, mut found) = (0, 0);
        for _ in 0..10_000 {
            let compressible = rng.next().unwrap();
            all += compressible as u32;
            found += compresses(if compressible { &zeros } else { &noise }, &mut patience) as u32;
        }
        assert!(found * 10 > all * 8, "{found} of {all}");
        assert!(patience.passes(0) && !patience.passes(1));
    }

    #[test]
    fn patience_learns_from_packing_on_other_threads() {
        let (mut encoder, mut patience) = (PieceEncoder::default(), Patience::default());
        let mut compression = |bytes: &[u8], before: Patience| {
            let mut compression = CompressionJob::new((0, bytes), (Codec::Lz4, Unit::BLOCK), before);
            compression.run(&mut encoder);
            compression
        };
        let noise = noise(BLOCK);
        // Many at once, each without the results of the others.
        for _ in 0..10 * PATIENCE {
            patience.learn(&compression(&noise, Patience::default()));
        }
        assert!(patience.in_vain == 10 * PATIENCE && patience.is_out());
        assert!(patience.passes(MOST_UNTRIED as u64) && !patience.passes(1));
        patience.learn(&compression(&[0; BLOCK], Patience::default()));
        assert!(!patience.passes(1) && !patience.is_out());
    }

    #[test]
    fn codec_code_in_root_is_unique_and_reversible() {
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
        /// The pieces of any blocks expand to the blocks, also with an encoder that was used before.
        #[test]
        fn pack_then_unpack_restores_blocks(
            words in prop::collection::vec(any::<u16>(), 1..3000), zeros in 0..16 * BLOCK,
            number in 0..=4u8, from in 0..16usize
        ) {
            let unit = Unit::of_number(number).unwrap();
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).cycle();
            let mut blocks: Vec<u8> = bytes.take(unit.bytes()).collect();
            blocks[zeros % unit.bytes()..].fill(0);
            let (mut encoder, mut decoder) = (PieceEncoder::default(), PieceDecoder::default());
            for codec in CODECS {
                encoder.pack((0, &noise(BLOCK)), (codec, unit), &mut Patience::default());
                let packed = encoder.pack((32, &blocks), (codec, unit), &mut Patience::default());
                let Some((piece, of)) = packed.piece(0) else { continue };
                prop_assert!(of == unit && piece.len() % GRAIN == 0 && unit.is_sane((piece.len() / GRAIN) as u32));
                let mut again = vec![7; unit.bytes()];
                prop_assert_eq!(decoder.unpack(piece, &mut again), Some(()));
                prop_assert_eq!(&again, &blocks);
                let from = from % unit.blocks() as usize;
                let some = &mut again[from * BLOCK..];
                some.fill(7);
                prop_assert_eq!(decoder.unpack_some(piece, (unit, from), some), Some(()));
                prop_assert_eq!(&again, &blocks);
            }
        }

        /// No bytes cause a panic, or a write beyond a block, whichever codec they name.
        #[test]
        fn unpack_of_arbitrary_bytes_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 3..400), codec in 0..4u8) {
            let [low, high] = (bytes.len() as u16 - 3).to_le_bytes();
            bytes[..PREFIX].copy_from_slice(&[low, high, codec]);
            let (mut decoder, mut block) = (PieceDecoder::default(), vec![0; BLOCK]);
            let _ = decoder.unpack(&bytes, &mut block);
            let _ = decoder.unpack_some(&bytes, (Unit::MOST, 9), &mut block);
            // A damaged piece is expanded or refused.
            let mut piece = packed(&vec![7; BLOCK], CODECS[codec as usize % 3]);
            piece.iter_mut().skip(PREFIX).zip(&bytes).for_each(|(byte, change)| *byte ^= *change & 1);
            let _ = decoder.unpack(&piece, &mut block);
        }
    }
}
