//! The out-of-band metadata of a block, with the policy `inplace` or with checksums.
//!
//! A drive writes a block and its metadata atomically, so that the metadata describes the block. The mark's own checksum
//! covers the array, the member and the block's address too: metadata of another array, or of a block that was copied
//! elsewhere, is invalid. In an array with checksums each mark also has the checksum of the block's data: a block whose
//! data or metadata has changed, that was written to another address, or that a later write should have replaced by
//! another kind of content does not match its mark.

use crate::format::Origin;

/// Bytes of a block's metadata that a mark without a checksum takes, from its start; the rest is zeros.
pub const OOB_BYTES: usize = 16;

/// Bytes of a block's metadata that a mark with a checksum takes.
pub const SUMMED_OOB_BYTES: usize = 20;

/// Bit of a mark that has a checksum of the data.
const SUMMED: u8 = 1;

/// Content of a block of a data zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Data of the stripe in the block's row.
    Data,
    /// Parity of this number of chunks, the first ones, of the stripe of this row.
    Parity(u8),
    /// As `Parity`, of the stripe `D` rows before this row.
    Ahead(u8),
    /// A log block: a record of the policy `zrwa`.
    Log,
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
    /// Checksum of the block's data ([`data_sum`]); `None` in an array without checksums.
    pub sum: Option<u32>,
}

/// Checksum of a block's data: CRC-32.
pub fn data_sum(block: &[u8]) -> u32 {
    crc32fast::hash(block)
}

impl Mark {
    /// The bytes, for the block at `origin`; the last ones are zeros without a checksum.
    pub fn encode(&self, origin: Origin) -> [u8; SUMMED_OOB_BYTES] {
        let (kind, covers) = match self.content {
            Content::Data => (1, 0),
            Content::Parity(covers) => (2, covers),
            Content::Ahead(covers) => (3, covers),
            Content::Log => (4, 0),
        };
        let mut bytes = [0; SUMMED_OOB_BYTES];
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.generation.to_le_bytes());
        (bytes[12], bytes[13]) = (kind, covers);
        if let Some(sum) = self.sum {
            bytes[14] = SUMMED;
            bytes[16..].copy_from_slice(&sum.to_le_bytes());
        }
        let crc = checksum(&bytes[4..self.bytes()], origin);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the metadata of the block at `origin`; `None` if `bytes` are not a valid mark of it.
    pub fn read(bytes: &[u8], origin: Origin) -> Option<Mark> {
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let sum = match bytes.get(14..16)? {
            [0, 0] => None,
            [SUMMED, 0] => Some(number(16)?),
            _ => return None,
        };
        let content = match (bytes[12], bytes[13]) {
            (1, 0) => Content::Data,
            (2, covers) => Content::Parity(covers),
            (3, covers) => Content::Ahead(covers),
            (4, 0) => Content::Log,
            _ => return None,
        };
        let mark = Mark { epoch: number(4)?, generation: number(8)?, content, sum };
        (number(0)? == checksum(&bytes[4..mark.bytes()], origin)).then_some(mark)
    }

    /// Bytes that the mark takes.
    fn bytes(&self) -> usize {
        if self.sum.is_some() { SUMMED_OOB_BYTES } else { OOB_BYTES }
    }
}

/// CRC-32C of array, member, block and the bytes after the checksum.
fn checksum(bytes: &[u8], origin: Origin) -> u32 {
    // One call for all: each call costs more than the bytes.
    let mut all = [0; 28 + SUMMED_OOB_BYTES];
    all[..16].copy_from_slice(&origin.array.0);
    all[16..20].copy_from_slice(&origin.member.to_le_bytes());
    all[20..28].copy_from_slice(&origin.lba.to_le_bytes());
    all[28..28 + bytes.len()].copy_from_slice(bytes);
    crc32c::crc32c(&all[..28 + bytes.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Uuid;

    #[test]
    fn oob_mark_rejects_wrong_origin_and_flipped_bits() {
        let origin = Origin { array: Uuid([7; 16]), member: 3, lba: 42 };
        let contents = [Content::Data, Content::Parity(31), Content::Ahead(1), Content::Log];
        for (content, sum) in contents.into_iter().flat_map(|content| [(content, None), (content, Some(7))]) {
            let mark = Mark { epoch: 5, generation: 6, content, sum };
            let mut bytes = mark.encode(origin);
            assert_eq!(Mark::read(&bytes, origin), Some(mark));
            for other in [
                Origin { lba: 43, ..origin },
                Origin { member: 4, ..origin },
                Origin { array: Uuid([8; 16]), ..origin },
            ] {
                assert_eq!(Mark::read(&bytes, other), None);
            }
            for bit in 0..mark.bytes() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Mark::read(&bytes, origin), None, "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert_eq!(Mark::read(&[0; OOB_BYTES], origin), None);
    }
}
