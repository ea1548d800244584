//! Zones: numbers, addresses and states.

/// Most zones of a device. A drive or a superblock that claims more is rejected: memory is allocated for every zone.
pub const MOST_ZONES: u32 = 1 << 20;

/// Most blocks of a device: its size in bytes has to fit the operating system's 63-bit offsets.
pub const MOST_BLOCKS: u64 = (1 << 63) / crate::buf::BLOCK as u64;

/// The write pointer of an active zone if its position cannot be determined. Drives never report it; a layer that
/// presents zones of several drives as one may have to.
pub const UNKNOWN_WP: u64 = u64::MAX;

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
    /// Nothing is written.
    Empty = 0x1,
    /// Opened by a write.
    ImplicitlyOpen = 0x2,
    /// Opened by a command.
    ExplicitlyOpen = 0x3,
    /// Active, and not open.
    Closed = 0x4,
    /// Worn: can be read.
    ReadOnly = 0xd,
    /// Written to its end, or finished.
    Full = 0xe,
    /// Worn: cannot be read.
    Offline = 0xf,
}

impl ZoneState {
    /// Whether the zone counts against the limit of open zones.
    pub fn is_open(self) -> bool {
        matches!(self, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
    }

    /// Whether the zone counts against the limit of active zones.
    pub fn is_active(self) -> bool {
        self.is_open() || self == ZoneState::Closed
    }

    /// Whether a reset of all zones resets the zone.
    pub fn is_begun(self) -> bool {
        self.is_active() || self == ZoneState::Full
    }

    /// The state with this value in a zone report.
    pub fn from_value(value: u8) -> Option<ZoneState> {
        use ZoneState::*;
        [Empty, ImplicitlyOpen, ExplicitlyOpen, Closed, ReadOnly, Full, Offline]
            .into_iter()
            .find(|state| *state as u8 == value)
    }
}

/// A zone as a zone report describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// Number of the zone.
    pub zone: ZoneIndex,
    /// Current state.
    pub state: ZoneState,
    /// Blocks from the start of the zone to its write pointer. Undefined if the zone is full, read-only or offline.
    /// [`UNKNOWN_WP`] if the position cannot be determined.
    pub wp_blocks: u64,
    /// Writable blocks.
    pub capacity_blocks: u64,
    /// Whether the zone has a Zone Random Write Area.
    pub zrwa: bool,
}

/// Whether a zone is read-only or offline, and so cannot be written, reset or finished any more.
pub fn is_worn(state: ZoneState) -> bool {
    matches!(state, ZoneState::ReadOnly | ZoneState::Offline)
}
