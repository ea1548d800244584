//! What is said of a volume.

use crate::{
    device::DeviceError,
    volume::{format::SectorSize, pack::Codec, place::Unit},
};

/// Blocks written to the device since the start, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Logical blocks that users wrote.
    pub user: u64,
    /// Logical blocks that were moved.
    pub moved: u64,
    /// Data, as it was when groups were closed: less than both, if it was compressed.
    pub data: u64,
    /// Headers of groups.
    pub headers: u64,
    /// Pages and directory of the map.
    pub map: u64,
    /// Roots.
    pub roots: u64,
    /// What fills up zones.
    pub padding: u64,
}

impl Written {
    /// All of them.
    pub fn blocks(&self) -> u64 {
        let Written { data, headers, map, roots, padding, .. } = self;
        data + headers + map + roots + padding
    }

    /// Blocks written for each block of users; 1 if there were none.
    pub fn amplification(&self) -> f64 {
        if self.user == 0 { 1.0 } else { self.blocks() as f64 / self.user as f64 }
    }
}

/// How a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Logical blocks.
    pub blocks: u64,
    /// What its users may write at least.
    pub sector: SectorSize,
    /// How many of them may be mapped at once if they are not compressed.
    pub usable: u64,
    /// How many blocks there is room for beside these, for overwriting alone: 0 if the volume is not larger than its room.
    pub reserve: u64,
    /// How many of these new blocks may take until the next start.
    pub lent: u64,
    /// Writes and discards that were refused since the start, for want of room.
    pub refused: u64,
    /// Seconds for which a write that finds no room waits for some; 0 if it fails at once.
    pub queue_seconds: u8,
    /// Writes that wait for room.
    pub waiting: u64,
    /// How many are mapped.
    pub mapped: u64,
    /// What these count for, in bytes, with what headers of short pieces take.
    pub held_bytes: u64,
    /// How new data is compressed.
    pub codec: Option<Codec>,
    /// How much of it is compressed together, at most.
    pub unit: Unit,
    /// Zones of the device.
    pub zones: u32,
    /// Zones in which nothing is.
    pub free_zones: u32,
    /// Zones that are being written, but for those of the head.
    pub writing: Vec<u32>,
    /// Zones that could not be collected, because something in them cannot be read.
    pub unreadable_zones: u32,
    /// What is in use of each zone counts for, in bytes.
    pub live_bytes: Vec<u64>,
    /// Zones are being collected, because few are free.
    pub collects: bool,
    /// Zones whose blocks were all moved since the start.
    pub collected_zones: u64,
    /// Blocks that were discarded since the start.
    pub discarded: u64,
    /// Checkpoints since the start.
    pub checkpoints: u64,
    /// Bytes that the whole map takes in memory.
    pub map_bytes: u64,
    /// How many of these may be in memory at a time.
    pub map_memory_bytes: u64,
    /// Pages of the map that were read because they were not in memory.
    pub pages_read: u64,
    /// What was written since the start.
    pub written: Written,
    /// Why nothing can be written any more.
    pub failed: Option<DeviceError>,
}
