//! Why there are no namespaces, or not this one.

use crate::{device::DeviceError, vzone::format::MOST_NAMESPACES};

/// Why there are no namespaces, or not this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VzoneError {
    /// The device is too small, or has too few active zones.
    #[error("the device has too few zones, or too few of them may be active, for namespaces")]
    TooSmall,
    /// Something is on the device.
    #[error("the device is not empty")]
    NotEmpty,
    /// There is no journal.
    #[error("there are no namespaces on the device")]
    None,
    /// A block of the journal is not as it was written.
    #[error("block {block} of zone {zone} is damaged: it should be a part of the journal of the namespaces")]
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
        /// Why not.
        error: DeviceError,
    },
    /// The journal is as it was written, and cannot be true.
    #[error("the journal of the namespaces does not fit the device, or contradicts itself")]
    Absurd,
    /// A name that cannot be.
    #[error("a name has 1 to 32 letters, digits, '-', '_' or '.', and begins with a letter or digit")]
    Name,
    /// A name that is there already.
    #[error("there is a namespace of this name already")]
    Taken,
    /// Numbers that cannot be.
    #[error(
        "a namespace needs zones, a weight of 1 to 1000, no more active zones than zones, no more open than active \
         ones, and a power of two of essential zones, at most as many as a zone has"
    )]
    Shape,
    /// More zones than are left.
    #[error("there is room for {left} more zones")]
    Full {
        /// V-zones.
        left: u64,
    },
    /// More essential zones than are left.
    #[error("active zones are promised to others, or in use: {left} are left")]
    Floors {
        /// Physical zones.
        left: u32,
    },
    /// More for certain than at most.
    #[error("a floor is above the limit of the same namespace; raise the limit, or lower the floor")]
    FloorAboveLimit,
    /// A v-zone that a smaller namespace would lose.
    #[error("zone {zone} of the namespace is written, and would be lost")]
    Holds {
        /// Of the namespace.
        zone: u32,
    },
    /// Too many namespaces.
    #[error("there are {MOST_NAMESPACES} namespaces")]
    TooMany,
    /// No namespace of this name.
    #[error("there is no namespace of this name")]
    Unknown,
    /// A namespace that works.
    #[error("the namespace is in use")]
    InUse,
    /// The device does not do what it is asked.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
