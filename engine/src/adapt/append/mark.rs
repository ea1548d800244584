//! Marks: the out-of-band metadata of blocks in a zone that is written by appends.
//!
//! A drive writes a block and its metadata atomically, so a mark describes its block. The checksum also covers the
//! owner, which contains the number of the drive's zone, but not the place in that zone, which is not known before the
//! append has completed. A drive that has failed to answer is used again only with another owner, so that an append
//! which it carries out late is not valid.
//!
//! In an array with checksums a [`seal`] follows, the checksum of the data. It also covers the epoch of the zone, which
//! is known after the array has been assembled: an older block with its old mark is wrong.

/// Bytes of a block's metadata that a mark takes, from its start; the rest is zeros.
pub const MARK_BYTES: usize = 16;

/// Bytes of a block's metadata that a mark and the seal of the block take.
pub const SEALED_MARK_BYTES: usize = 20;

/// Bytes of metadata that each block takes.
pub fn mark_bytes(checksums: bool) -> usize {
    if checksums { SEALED_MARK_BYTES } else { MARK_BYTES }
}

/// Owner of blocks: a member and a zone of its drive. Marks of another owner are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkOwner {
    /// UUID of the member, a new one for each drive that becomes a member.
    pub member: [u8; 16],
    /// Number of the drive's zone.
    pub zone: u32,
}

/// Mark of a block: its number in its zone, and the session that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendMark {
    /// Number of the block, from the start of the zone.
    pub block: u32,
    /// Block with which the session began: the end of the zone that it found.
    pub from: u32,
    /// Number of void blocks of the drive's zone when the session began.
    pub void: u32,
}

/// Content of a block of the drive's zone, by its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockContent {
    /// A block with a valid mark.
    Mark(AppendMark),
    /// It was never written: its metadata is uniform.
    Nothing,
    /// It cannot be read, or its mark is damaged or of another owner.
    Unknown,
}

impl AppendMark {
    /// Encodes the mark of a block of `owner`.
    pub fn encode(&self, owner: &MarkOwner) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        let fields = [self.block, self.from, self.void];
        for (bytes, field) in bytes[4..].chunks_exact_mut(4).zip(fields) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        let crc = checksum(&bytes, owner);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl BlockContent {
    /// Decodes the mark of a block in the zone of `owner`.
    pub fn read(bytes: &[u8], owner: &MarkOwner) -> BlockContent {
        let Some(bytes) = bytes.first_chunk::<MARK_BYTES>() else { return BlockContent::Unknown };
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            return BlockContent::Nothing;
        }
        let field = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        match field(0) == checksum(bytes, owner) {
            true => BlockContent::Mark(AppendMark { block: field(4), from: field(8), void: field(12) }),
            false => BlockContent::Unknown,
        }
    }
}

/// Checksum of the data of block number `block` of the zone of `owner` in this epoch: CRC-32C of the owner, the epoch,
/// the number, and the CRC-32 of the data.
pub fn seal(owner: &MarkOwner, epoch: u64, block: u32, data: &[u8]) -> [u8; 4] {
    // One call for all: each call costs more than the bytes.
    let mut all = [0; 36];
    all[..16].copy_from_slice(&owner.member);
    all[16..20].copy_from_slice(&owner.zone.to_le_bytes());
    all[20..28].copy_from_slice(&epoch.to_le_bytes());
    all[28..32].copy_from_slice(&block.to_le_bytes());
    all[32..].copy_from_slice(&crc32fast::hash(data).to_le_bytes());
    crc32c::crc32c(&all).to_le_bytes()
}

/// Whether `data` matches the seal in its metadata, for block number `block` of the zone of `owner` in this epoch.
pub fn is_sealed(metadata: &[u8], owner: &MarkOwner, epoch: u64, block: u32, data: &[u8]) -> bool {
    metadata.get(MARK_BYTES..SEALED_MARK_BYTES) == Some(&seal(owner, epoch, block, data)[..])
}

/// CRC-32C of the member's UUID, the zone's number, and the bytes behind the checksum.
fn checksum(bytes: &[u8; MARK_BYTES], owner: &MarkOwner) -> u32 {
    let zone = crc32c::crc32c_append(crc32c::crc32c(&owner.member), &owner.zone.to_le_bytes());
    crc32c::crc32c_append(zone, &bytes[4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn append_mark_rejects_other_owner_and_flipped_bits() {
        let (mark, owner) =
            (AppendMark { block: 77, from: 64, void: 3 }, MarkOwner { member: [5; 16], zone: 1000 });
        let bytes = mark.encode(&owner);
        assert_eq!(BlockContent::read(&bytes, &owner), BlockContent::Mark(mark));
        assert_eq!(BlockContent::read(&bytes, &MarkOwner { zone: 1001, ..owner }), BlockContent::Unknown);
        assert_eq!(
            BlockContent::read(&bytes, &MarkOwner { member: [6; 16], ..owner }),
            BlockContent::Unknown
        );
        for bit in 0..8 * MARK_BYTES {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockContent::read(&wrong, &owner), BlockContent::Unknown);
        }
        assert_eq!(BlockContent::read(&[0; 64], &owner), BlockContent::Nothing);
        assert_eq!(BlockContent::read(&[0xff; MARK_BYTES], &owner), BlockContent::Nothing);
    }
}
