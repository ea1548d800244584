//! Errors of the management of namespaces.

use crate::{
    device::DeviceError,
    vzone::format::{MOST_NAMESPACES, OLDEST_VERSION, VERSION},
};

/// Errors of the management of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VzoneError {
    /// The device is too small, or has too few active zones.
    #[error("the device has too few zones, or too few of them may be active, for namespaces")]
    TooSmall,
    /// The device is not empty.
    #[error("the device is not empty")]
    NotEmpty,
    /// There is no journal.
    #[error("there are no namespaces on the device")]
    None,
    /// The journal is of another format version.
    #[error(
        "the namespaces have format version {0}, this zoneraid supports versions {OLDEST_VERSION} to {VERSION}: \
         {advice}",
        advice = if *.0 > VERSION { "use a newer one" } else { "use an older one" }
    )]
    Version(u16),
    /// The namespaces use features (bits) that are not supported.
    #[error("the namespaces use features ({0:#x}) that this zoneraid does not support: use a newer one")]
    Features(u64),
    /// A block of the journal is damaged.
    #[error("the journal of the namespaces is damaged in block {block} of zone {zone}")]
    Damaged {
        /// Zone 0 or 1.
        zone: u32,
        /// From its start.
        block: u64,
    },
    /// A block of the journal cannot be read.
    #[error("block {block} of zone {zone}, a part of the journal of the namespaces, cannot be read: {error}")]
    Unreadable {
        /// Zone 0 or 1.
        zone: u32,
        /// From its start.
        block: u64,
        /// Error of the read.
        error: DeviceError,
    },
    /// The journal is intact, but does not fit the device or contradicts itself.
    #[error("the journal of the namespaces is inconsistent, or belongs to a device of another geometry")]
    Absurd,
    /// Invalid name.
    #[error("a name has 1 to 32 letters, digits, '-', '_' or '.', and begins with a letter or digit")]
    Name,
    /// The name is in use.
    #[error("the name is used by another namespace")]
    Taken,
    /// Invalid numbers in the specification.
    #[error(
        "a namespace needs zones, a weight of 1 to 1000, no more active zones than zones, no more open than active \
         ones, and a power of two of essential zones, at most as many as a zone has"
    )]
    Shape,
    /// More v-zones than are left.
    #[error("too few zones are free: {left}")]
    Full {
        /// Number of v-zones that are left.
        left: u64,
    },
    /// More essential zones than are left.
    #[error("too few active zones: {left} are neither guaranteed to other namespaces nor in use")]
    Floors {
        /// Number of active zones that are left.
        left: u32,
    },
    /// A floor above the limit.
    #[error("a floor is above the limit of the same namespace; raise the limit, or lower the floor")]
    FloorAboveLimit,
    /// A v-zone with data that a smaller namespace would lose.
    #[error("zone {zone} of the namespace holds data, which would be lost")]
    Holds {
        /// Number of the v-zone in the namespace.
        zone: u32,
    },
    /// Too many namespaces.
    #[error("there are {MOST_NAMESPACES} namespaces, which is the limit")]
    TooMany,
    /// A checkpoint with the namespace might not fit into a zone of the journal.
    #[error(
        "the journal of the namespaces has room for no further entries: a zone of it has {blocks} blocks"
    )]
    JournalFull {
        /// Capacity of a zone.
        blocks: u64,
    },
    /// No namespace of this name.
    #[error("there is no namespace of this name")]
    Unknown,
    /// The namespace, or the device, is in use.
    #[error("the namespace is in use")]
    InUse,
    /// Error of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
