//! What a volume shall be, and how it shall behave.

use crate::volume::{format::SectorSize, pack::Codec, place::Unit, victim::Choice};

/// What a volume shall be.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Of its own.
    pub uuid: [u8; 16],
    /// Logical blocks; as many as there is room for if there is no number.
    pub blocks: Option<u64>,
    /// What its users may write at least.
    pub sector: SectorSize,
    /// How data is compressed until [`super::Volume::compress`] says otherwise.
    pub codec: Option<Codec>,
    /// How much of it is compressed together, at most, or what is the most on this device.
    pub unit: Unit,
}

/// How a volume shall behave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    /// How zones to be collected are chosen.
    pub choice: Choice,
    /// Blocks whose last version lived short have a stream of their own: for comparison. It costs more headers than it
    /// saves moves.
    pub apart: bool,
    /// Pages of the map that are kept in memory; 128 MiB a TiB and no less than 64 MiB if there is no number.
    pub map_pages: Option<usize>,
    /// Pages of the map that may change between two checkpoints, all of which a start reads; 350,000, which takes it some
    /// three seconds, if there is no number.
    pub changed_pages: Option<usize>,
    /// A write with FUA makes nothing durable but what it writes, as with a bare drive, and not what lies before it
    /// in its zone, as with an array.
    pub fua_stands_alone: bool,
    /// Zones that are offline, what follows in a zone on a group that cannot be read, and what was written behind the
    /// last checkpoint to blocks whose page of the map cannot be read, are given up, whatever of it was promised.
    pub give_up: bool,
}
