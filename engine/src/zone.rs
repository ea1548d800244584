//! Zones: names, states and limits.

/// A logical block address: blocks of [`crate::buf::BLOCK`] bytes from the start of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lba(pub u64);

/// The number of a zone on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZoneIndex(pub u32);

/// Zone states with the values of a zone report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ZoneState {
    Empty = 0x1,
    ImplicitlyOpen = 0x2,
    ExplicitlyOpen = 0x3,
    Closed = 0x4,
    ReadOnly = 0xd,
    Full = 0xe,
    Offline = 0xf,
}

/// What a zone report says of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    pub zone: ZoneIndex,
    pub state: ZoneState,
    /// Blocks from the start of the zone to its write pointer. Means nothing when the zone is
    /// full, read-only or offline.
    pub wp_blocks: u64,
    pub capacity_blocks: u64,
    /// Whether a Zone Random Write Area belongs to the zone.
    pub zrwa: bool,
}
