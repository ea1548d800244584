//! The on-media format of metadata zones and log blocks.
//!
//! docs/FORMAT.md has the byte tables; a test compares them with this code. Every number is little-endian. Everything
//! that is read is verified (magic, version, array, place, checksum) before it is used.

pub mod codec;
pub mod lineage;
pub mod name;
pub mod oob;
pub mod record;
pub mod superblock;

#[cfg(test)]
pub(crate) mod tests;

/// Version of the format. A change of any layout raises it.
pub const VERSION: u16 = 10;

/// The oldest version that can be read.
pub const OLDEST_VERSION: u16 = 8;

/// 128 random bits that identify an array or a member.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// A number that identifies the UUID, within the bounds of numbers on drives.
    pub fn number(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|at| self.0[at])) & (codec::MOST_NUMBER - 1)
    }
}

/// The writer of a record or a mark, and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The array.
    pub array: Uuid,
    /// Role of the member.
    pub member: u32,
    /// Block of the member where the header is.
    pub lba: u64,
}

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
