//! State and statistics of a volume.

use crate::{
    device::DeviceError,
    qos::Qos,
    volume::{address::Unit, piece::Codec, root::SectorSize},
};

/// Blocks written to the device since the start, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenBlocks {
    /// Logical blocks written by users.
    pub user: u64,
    /// Of these, blocks written to the hot window, where they take no flash unless they are moved.
    pub window: u64,
    /// Logical blocks moved by garbage collection, or out of the hot window.
    pub moved: u64,
    /// Blocks of data in groups: fewer than both if data was compressed. A header in the same block as data counts as data.
    pub data: u64,
    /// Group headers in blocks of their own.
    pub headers: u64,
    /// Pages and directory blocks of the map.
    pub map: u64,
    /// Roots.
    pub roots: u64,
    /// Blocks that fill up zones.
    pub padding: u64,
}

impl WrittenBlocks {
    /// All blocks written to the device.
    pub fn blocks(&self) -> u64 {
        let WrittenBlocks { data, headers, map, roots, padding, .. } = self;
        data + headers + map + roots + padding
    }

    fn add(&mut self, other: &WrittenBlocks) {
        let WrittenBlocks { user, window, moved, data, headers, map, roots, padding } = other;
        self.user += user;
        self.window += window;
        self.moved += moved;
        self.data += data;
        self.headers += headers;
        self.map += map;
        self.roots += roots;
        self.padding += padding;
    }

    /// Write amplification: blocks written to the device per block of users; 1 if there was none.
    pub fn amplification(&self) -> f64 {
        if self.user == 0 { 1.0 } else { self.blocks() as f64 / self.user as f64 }
    }
}

/// State and statistics of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Number of logical blocks.
    pub blocks: u64,
    /// Size of a sector: the smallest write that users may make.
    pub sector: SectorSize,
    /// Logical blocks that may be mapped at once, if they are not compressed.
    pub usable: u64,
    /// Blocks of room in addition that only overwrites may take; 0 if all logical blocks fit uncompressed.
    pub reserve: u64,
    /// Blocks of the reserve that new blocks may take until the next start.
    pub lent: u64,
    /// Writes and discards refused for lack of room since the start.
    pub refused: u64,
    /// Seconds for which a write waits for room; 0 if it fails at once.
    pub queue_seconds: u8,
    /// Limits, floors and latency class of reads and writes.
    pub qos: Qos,
    /// Rate to which they are throttled for other volumes, in blocks a second.
    pub held_to: Option<u64>,
    /// Whether the floors, and the latency target, were found to be out of reach.
    pub out_of_reach: [bool; 2],
    /// Blocks of room that are guaranteed to the volume of a pool with its snapshots.
    pub guaranteed: u64,
    /// Room of a pool, in bytes, that is guaranteed and not taken: only the volumes to which it is guaranteed may take it.
    pub set_aside_bytes: u64,
    /// Number of writes that wait for room.
    pub waiting: u64,
    /// Number of mapped logical blocks.
    pub mapped: u64,
    /// Room that these take, in bytes, including headers for short pieces.
    pub held_bytes: u64,
    /// Compression of new data.
    pub codec: Option<Codec>,
    /// Largest number of blocks that are compressed together.
    pub unit: Unit,
    /// Zones of the device, evenly divided among the shards.
    pub zones: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of free zones.
    pub free_zones: u32,
    /// Zones that are being written, without those of the head.
    pub writing: Vec<u32>,
    /// Zones that could not be collected because of unreadable blocks.
    pub unreadable_zones: u32,
    /// Zones that can no longer be written and hold no data.
    pub lost_zones: u32,
    /// Live bytes of each zone.
    pub live_bytes: Vec<u64>,
    /// Whether garbage collection is running.
    pub collects: bool,
    /// Number of zones that garbage collection has emptied since the start.
    pub collected_zones: u64,
    /// Number of blocks that were discarded since the start.
    pub discarded: u64,
    /// Number of checkpoints since the start.
    pub checkpoints: u64,
    /// Memory that the whole map would take, in bytes.
    pub map_bytes: u64,
    /// Memory that the map may take, in bytes.
    pub map_memory_bytes: u64,
    /// Memory that the pages of the map in memory take, in bytes.
    pub map_cached_bytes: u64,
    /// Number of pages of the map in memory.
    pub map_cached_pages: u64,
    /// Number of pages of the map on the device; new ones are only in memory at first.
    pub map_written_pages: u64,
    /// Pages of the map that were read because they were not in memory.
    pub pages_read: u64,
    /// Pages of the map that reads, writes and discards of users needed since the start; each request counts a page once.
    pub page_lookups: u64,
    /// Those of them for which the device did not have to be read: they were in memory, or never written.
    pub page_hits: u64,
    /// Blocks written since the start.
    pub written: WrittenBlocks,
    /// The error after which nothing can be written any more.
    pub failed: Option<DeviceError>,
}

/// Space of a volume or a snapshot, in bytes, as compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Space that only it takes: of a snapshot, what its removal frees.
    pub own: u64,
    /// Space of its other data, which snapshots, its volume, or clones have, too.
    pub shared: u64,
}

impl VolumeStatus {
    /// Share of the needed pages of the map for which the device did not have to be read; `None` if none was needed.
    pub fn map_hit_rate(&self) -> Option<f64> {
        (self.page_lookups > 0).then(|| self.page_hits as f64 / self.page_lookups as f64)
    }

    /// Adds the status of the next shard; the settings are the same.
    pub fn add(&mut self, shard: VolumeStatus) {
        let VolumeStatus { written, live_bytes, writing, .. } = &shard;
        self.writing.extend(writing.iter().map(|zone| zone + self.zones));
        self.live_bytes.extend(live_bytes);
        self.written.add(written);
        for (sum, more) in [
            (&mut self.blocks, shard.blocks),
            (&mut self.usable, shard.usable),
            (&mut self.reserve, shard.reserve),
            (&mut self.lent, shard.lent),
            (&mut self.refused, shard.refused),
            (&mut self.mapped, shard.mapped),
            (&mut self.held_bytes, shard.held_bytes),
            (&mut self.set_aside_bytes, shard.set_aside_bytes),
            (&mut self.collected_zones, shard.collected_zones),
            (&mut self.discarded, shard.discarded),
            (&mut self.checkpoints, shard.checkpoints),
            (&mut self.map_bytes, shard.map_bytes),
            (&mut self.map_memory_bytes, shard.map_memory_bytes),
            (&mut self.map_cached_bytes, shard.map_cached_bytes),
            (&mut self.map_cached_pages, shard.map_cached_pages),
            (&mut self.map_written_pages, shard.map_written_pages),
            (&mut self.pages_read, shard.pages_read),
            (&mut self.page_lookups, shard.page_lookups),
            (&mut self.page_hits, shard.page_hits),
        ] {
            *sum += more;
        }
        // A write waits for room in all shards at once.
        self.waiting = self.waiting.max(shard.waiting);
        self.zones += shard.zones;
        self.shards += shard.shards;
        self.free_zones += shard.free_zones;
        self.unreadable_zones += shard.unreadable_zones;
        self.lost_zones += shard.lost_zones;
        self.collects |= shard.collects;
        self.failed = self.failed.or(shard.failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_blocks_of_all_kinds_are_amplification() {
        let written =
            WrittenBlocks { user: 4, window: 0, moved: 1, data: 5, headers: 3, map: 2, roots: 1, padding: 1 };
        assert_eq!((written.blocks(), written.amplification()), (12, 3.0));
        assert_eq!(WrittenBlocks::default().amplification(), 1.0);
    }
}
