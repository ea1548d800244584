//! The out-of-band metadata of a block, with the policy `inplace`.
//!
//! A drive writes a block and its metadata atomically, so that the metadata describes the block. The checksum covers
//! the array, the member and the block's address too: metadata of another array, or of a block that was copied
//! elsewhere, is invalid.

use crate::format::{Origin, Uuid};

/// Bytes of a block's metadata that are used, from its start; the rest is zeros.
pub const OOB_BYTES: usize = 16;

/// Content of a block of a data zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Data of the stripe in the block's row.
    Data,
    /// Parity of this number of chunks, the first ones, of the stripe of this row.
    Parity(u8),
    /// As `Parity`, of the stripe `D` rows before this row.
    Ahead(u8),
}

/// A block's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Low bits of the zone's epoch.
    pub epoch: u32,
    /// Number of the assembly that wrote the block.
    pub generation: u32,
    /// The content of the block.
    pub content: Content,
}

impl Mark {
    /// The bytes, for the block at `origin`.
    pub fn encode(&self, origin: Origin) -> [u8; OOB_BYTES] {
        let (kind, covers) = match self.content {
            Content::Data => (1, 0),
            Content::Parity(covers) => (2, covers),
            Content::Ahead(covers) => (3, covers),
        };
        let mut bytes = [0; OOB_BYTES];
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.generation.to_le_bytes());
        (bytes[12], bytes[13]) = (kind, covers);
        let crc = checksum(&bytes, origin);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the metadata of the block at `origin`; `None` if `bytes` are not a valid mark of it.
    pub fn read(bytes: &[u8], origin: Origin) -> Option<Mark> {
        let bytes: &[u8; OOB_BYTES] = bytes.get(..OOB_BYTES)?.try_into().ok()?;
        let [a, b, c, d, epoch @ .., kind, covers, 0, 0] = bytes else { return None };
        let [e, f, g, h, i, j, k, l] = *epoch;
        let content = match (*kind, *covers) {
            (1, 0) => Content::Data,
            (2, covers) => Content::Parity(covers),
            (3, covers) => Content::Ahead(covers),
            _ => return None,
        };
        let right = u32::from_le_bytes([*a, *b, *c, *d]) == checksum(bytes, origin);
        let (epoch, generation) = (u32::from_le_bytes([e, f, g, h]), u32::from_le_bytes([i, j, k, l]));
        right.then_some(Mark { epoch, generation, content })
    }
}

/// CRC-32C of array, member, block and the bytes after the checksum.
fn checksum(bytes: &[u8; OOB_BYTES], origin: Origin) -> u32 {
    let Uuid(array) = origin.array;
    let crc = crc32c::crc32c(&array);
    let crc = crc32c::crc32c_append(crc, &origin.member.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &origin.lba.to_le_bytes());
    crc32c::crc32c_append(crc, &bytes[4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oob_mark_rejects_wrong_origin_and_flipped_bits() {
        let origin = Origin { array: Uuid([7; 16]), member: 3, lba: 42 };
        for content in [Content::Data, Content::Parity(31), Content::Ahead(1)] {
            let mark = Mark { epoch: 5, generation: 6, content };
            let mut bytes = mark.encode(origin);
            assert_eq!(Mark::read(&bytes, origin), Some(mark));
            for other in [
                Origin { lba: 43, ..origin },
                Origin { member: 4, ..origin },
                Origin { array: Uuid([8; 16]), ..origin },
            ] {
                assert_eq!(Mark::read(&bytes, other), None);
            }
            for bit in 0..OOB_BYTES * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Mark::read(&bytes, origin), None, "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert_eq!(Mark::read(&[0; OOB_BYTES], origin), None);
    }
}
