//! Options of a volume, at creation and at runtime.

use crate::volume::{
    address::Unit,
    piece::Codec,
    root::{PoolShape, SectorSize},
    victim::Choice,
};

/// Options of a new volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeCreateOptions {
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// Number of logical blocks of 4 KiB; by default as many as fit uncompressed.
    pub blocks: Option<u64>,
    /// Size of a sector: the smallest write that users may make.
    pub sector: SectorSize,
    /// Compression of data until [`super::Volume::compress`] changes it.
    pub codec: Option<Codec>,
    /// Largest number of blocks that are compressed together; the transfer size of the device may allow less.
    pub unit: Unit,
    /// Number of independent logs that share the zones; by default as few as the size of the device requires.
    pub shards: Option<u32>,
    /// Divides the blocks among the volumes of a pool ([`super::Pool`]).
    pub pool: Option<PoolShape>,
}

/// Runtime options of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeOptions {
    /// Policy for the choice of victims of garbage collection.
    pub choice: Choice,
    /// Writes blocks with a short-lived previous version to a stream of their own (hot and cold separation). For
    /// comparison only: it costs more headers than it saves moves.
    pub apart: bool,
    /// Pages of the map that are kept in memory; by default 128 MiB per TiB and at least 64 MiB.
    pub map_pages: Option<usize>,
    /// Pages of the map that may change between two checkpoints, all of which a start reads; by default 350,000, which
    /// it reads in some three seconds.
    pub changed_pages: Option<usize>,
    /// FUA of the device makes only the blocks of that write durable, as with a bare drive, and not the blocks before
    /// it in its zone, as with an array. The volume then serves FUA by a write and a flush.
    pub fua_stands_alone: bool,
    /// Gives up data that cannot be read, even if it was promised: that of offline zones, the rest of a zone after an
    /// unreadable group, and writes since the last checkpoint to blocks of an unreadable page of the map.
    pub give_up: bool,
}
