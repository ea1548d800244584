//! Little-endian encoding of numbers, and decoding that never reads past the end.

use crate::format::Origin;

/// Bytes of a record before its payload.
pub const HEADER_BYTES: usize = 64;

/// Appends fields to a byte string.
#[derive(Default)]
pub struct Encoder(pub Vec<u8>);

impl Encoder {
    /// Appends a byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Fewer bytes are left than the field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

/// Reads fields from the start of a byte string.
pub struct Decoder<'a>(pub &'a [u8]);

impl<'a> Decoder<'a> {
    /// Takes `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], TooShort> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(TooShort)?;
        self.0 = rest;
        Ok(head)
    }

    /// Takes `LEN` bytes.
    pub fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], TooShort> {
        self.bytes(LEN)?.try_into().map_err(|_| TooShort)
    }

    /// Takes a byte.
    pub fn u8(&mut self) -> Result<u8, TooShort> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> Result<u16, TooShort> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> Result<u32, TooShort> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> Result<u64, TooShort> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}

/// Largest sequence number, event and generation of a log: no array lasts until it, so that increments never overflow.
pub const MOST_NUMBER: u64 = 1 << 62;

/// Bound of the difference between the numbers of two members of an array, skipped numbers included. An array with
/// fewer unused numbers is not assembled.
pub const FAR: u64 = 1 << 48;

/// A field, by its name in docs/FORMAT.md, with an impossible value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{field} = {value} is invalid")]
pub struct Absurd {
    /// Name of the field in docs/FORMAT.md.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
}

/// Checks a field that has been read.
///
/// # Errors
/// The field with its value, unless `sane`.
pub fn expect(sane: bool, field: &'static str, value: impl Into<u64>) -> Result<(), Absurd> {
    if sane { Ok(()) } else { Err(Absurd { field, value: value.into() }) }
}

/// Why bytes cannot be decoded as a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The bytes are something else.
    NoRecord,
    /// A record of another format version.
    Version(u16),
    /// A record of another array or member.
    Foreign(Origin),
    /// A record that is torn or has been changed.
    Damaged,
    /// A superblock with features (bits) that this code does not know: other fields may have other meanings.
    Features(u64),
    /// An intact record with an impossible value.
    Absurd(Absurd),
}

impl From<TooShort> for RecordError {
    fn from(_: TooShort) -> RecordError {
        RecordError::Damaged
    }
}

impl From<Absurd> for RecordError {
    fn from(absurd: Absurd) -> RecordError {
        RecordError::Absurd(absurd)
    }
}
