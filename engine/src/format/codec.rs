//! Numbers to bytes and back, little-endian, never past the end.

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

/// There are fewer bytes than a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

/// Takes fields off a byte string.
pub struct Decoder<'a>(pub &'a [u8]);

impl<'a> Decoder<'a> {
    /// Takes so many bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], TooShort> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(TooShort)?;
        self.0 = rest;
        Ok(head)
    }

    /// Takes as many bytes as the array has.
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

/// Largest sequence number, event, generation of a log: no array lives to give out as many, so that counting
/// on never overflows.
pub const MOST_NUMBER: u64 = 1 << 62;

/// How far members of an array are never apart in their numbers, whatever has been left out, and how many there have to
/// be left for it to go on.
pub const FAR: u64 = 1 << 48;

/// A field, by its name in docs/FORMAT.md, with a number in it that it cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{field} = {value} makes no sense")]
pub struct Absurd {
    /// What it is called in docs/FORMAT.md.
    pub field: &'static str,
    /// What stands there.
    pub value: u64,
}

/// # Errors
/// The field, if what it says is not `sane`.
pub fn expect(sane: bool, field: &'static str, value: impl Into<u64>) -> Result<(), Absurd> {
    if sane { Ok(()) } else { Err(Absurd { field, value: value.into() }) }
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Something else is there.
    NoRecord,
    /// A record of another format version.
    Version(u16),
    /// A record of another array or member.
    Foreign(Origin),
    /// A record, but torn or changed.
    Damaged,
    /// A superblock with features (bits) that this code does not know: other fields may mean something else.
    Features(u64),
    /// A record as it was written, which makes no sense.
    Absurd(Absurd),
}

impl From<TooShort> for Unreadable {
    fn from(_: TooShort) -> Unreadable {
        Unreadable::Damaged
    }
}

impl From<Absurd> for Unreadable {
    fn from(absurd: Absurd) -> Unreadable {
        Unreadable::Absurd(absurd)
    }
}
