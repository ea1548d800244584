//! The frame of a metadata block of a layer above the array: a header before the payload of one block.
//!
//! The journal of namespaces, their reservations, and the roots and map pages of volumes have it. (A record of an array
//! spans several blocks and names its member and address: it has a header of its own, [`crate::format::record`]. So
//! does a group of a volume, whose checksum covers its used bytes only.) Numbers are little-endian:
//!
//! | byte | field |
//! |---|---|
//! | 0 | magic number |
//! | 4 | CRC-32C of all bytes from 8 on |
//! | 8 | mark of the owner |
//! | 16 | generation |
//! | 24 | format version (2 bytes) |
//! | 26 | kind, of the owner's choice (1 byte) |
//! | 27 | 1 in the last block of a sequence (1 byte) |
//! | 28 | index in a sequence (4 bytes) |
//! | 32 | payload |

use crate::{buf::BLOCK, format::codec::Decoder};
use std::ops::RangeInclusive;

/// Bytes before the payload.
pub const FRAME_BYTES: usize = 32;

/// Bytes of the payload.
pub const PAYLOAD_BYTES: usize = BLOCK - FRAME_BYTES;

/// Position of the checksum, which covers the bytes behind it.
const SUM: std::ops::Range<usize> = 4..8;

/// Fields of a frame except its magic number and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Hash of the UUID of the volume or the namespaces.
    pub mark: u64,
    /// Number of the checkpoint that the block belongs to, or follows.
    pub generation: u64,
    /// Format version of the payload.
    pub version: u16,
    /// Kind of the payload.
    pub kind: u8,
    /// Whether this is the last block of its sequence.
    pub last: bool,
    /// Number of the block in its sequence.
    pub index: u32,
}

/// Why a block has no valid frame of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Its content is something else, or it is torn or damaged.
    Other,
    /// It is intact, and of a version that is not supported.
    Version(u16),
}

/// A format whose blocks have a frame.
pub struct FrameFormat {
    /// Magic number, the first bytes of each block.
    pub magic: [u8; 4],
    /// Versions that can be read.
    pub versions: RangeInclusive<u16>,
}

impl FrameFormat {
    /// Completes a block that has its payload.
    pub fn seal(&self, block: &mut [u8], frame: Frame) {
        block[..4].copy_from_slice(&self.magic);
        block[8..16].copy_from_slice(&frame.mark.to_le_bytes());
        block[16..24].copy_from_slice(&frame.generation.to_le_bytes());
        block[24..26].copy_from_slice(&frame.version.to_le_bytes());
        (block[26], block[27]) = (frame.kind, frame.last as u8);
        block[28..FRAME_BYTES].copy_from_slice(&frame.index.to_le_bytes());
        let sum = crc32c::crc32c(&block[SUM.end..]);
        block[SUM].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the frame of a block; returns it with the payload.
    ///
    /// # Errors
    /// When the block is not a valid one of a supported version.
    pub fn unseal<'b>(&self, block: &'b [u8]) -> Result<(Frame, &'b [u8]), FrameError> {
        let frame = self.read(block).ok_or(FrameError::Other)?;
        match self.versions.contains(&frame.version) {
            true => Ok((frame, &block[FRAME_BYTES..])),
            false => Err(FrameError::Version(frame.version)),
        }
    }

    /// The bytes behind the checksum of an intact block of this format.
    pub fn verified<'b>(&self, block: &'b [u8]) -> Option<&'b [u8]> {
        let mut from = Decoder(block);
        let (magic, sum): ([u8; 4], u32) = (from.array().ok()?, from.u32().ok()?);
        (block.len() == BLOCK && magic == self.magic && sum == crc32c::crc32c(from.0)).then_some(from.0)
    }

    fn read(&self, block: &[u8]) -> Option<Frame> {
        let mut from = Decoder(self.verified(block)?);
        let (mark, generation) = (from.u64().ok()?, from.u64().ok()?);
        let (version, kind, last) = (from.u16().ok()?, from.u8().ok()?, from.u8().ok()? == 1);
        Some(Frame { mark, generation, version, kind, last, index: from.u32().ok()? })
    }

    /// Whether a block is one of this format in any version, also with a damaged payload, or with one flipped bit in
    /// its magic number, which the checksum does not cover.
    pub fn resembles(&self, block: &[u8]) -> bool {
        let Some((head, rest)) = block.split_first_chunk::<8>() else { return false };
        let [magic, sum] =
            [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let differing = (magic ^ u32::from_le_bytes(self.magic)).count_ones();
        differing == 0 || differing == 1 && sum == crc32c::crc32c(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: FrameFormat = FrameFormat { magic: *b"test", versions: 3..=4 };

    #[test]
    fn frame_reads_back_and_rejects_changed_bits() {
        let frame = Frame { mark: 1 << 63, generation: 8, version: 4, kind: 2, last: true, index: 6 };
        let mut block = vec![0x55; BLOCK];
        FORMAT.seal(&mut block, frame);
        assert_eq!(FORMAT.unseal(&block), Ok((frame, &[0x55; PAYLOAD_BYTES][..])));
        for at in 0..BLOCK {
            block[at] ^= 1;
            assert_eq!(FORMAT.unseal(&block), Err(FrameError::Other), "byte {at}");
            let known = !(4..8).contains(&at);
            assert_eq!(FORMAT.resembles(&block), known || block.starts_with(b"test"), "byte {at}");
            block[at] ^= 1;
        }
        assert_eq!(FORMAT.unseal(&block[..BLOCK - 1]), Err(FrameError::Other));
        assert!(!FORMAT.resembles(&[0; BLOCK]) && !FORMAT.resembles(b"test"));
    }

    #[test]
    fn frame_of_unsupported_version_is_named() {
        let mut block = vec![0; BLOCK];
        for (version, supported) in [(2, false), (3, true), (4, true), (5, false)] {
            let frame = Frame { mark: 0, generation: 0, version, kind: 0, last: false, index: 0 };
            FORMAT.seal(&mut block, frame);
            assert_eq!(FORMAT.unseal(&block).is_ok(), supported, "version {version}");
            assert!(supported || FORMAT.unseal(&block) == Err(FrameError::Version(version)));
            assert!(FORMAT.resembles(&block));
        }
    }
}
