//! Reports on volumes.

use super::rates::RatesReport;
use crate::process::size::{bytes, show};
use anyhow::anyhow;
use engine::volume::{Codec, Level, StoredBlocks, Unit, VolumeError, VolumeStatus, WrittenBlocks};
use serde::{Deserialize, Serialize};
use std::{fmt, ops::Range, str::FromStr};

/// State of a volume. Counters of written bytes start at zero when the volume is started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Size as a block device, and how much of it may hold data at once without compression.
    pub size_bytes: u64,
    pub usable_bytes: u64,
    /// Logical sector size: 512 or 4096.
    pub sector_bytes: u32,
    /// Size of the mapped blocks, before compression.
    pub used_bytes: u64,
    /// Data that can still be written if none of it compresses.
    pub free_bytes: u64,
    /// Part of the usable bytes that is not used, and free only for the volumes of a pool to which it is guaranteed.
    pub set_aside_bytes: u64,
    /// Space beside the usable bytes that is reserved for overwrites; 0 unless the volume is overcommitted.
    pub reserve_bytes: u64,
    /// Part of the reserve that new blocks may use until the next start.
    pub lent_bytes: u64,
    /// Behaviour of a write that finds no free space.
    pub when_full: WhenFull,
    /// Writes that wait for room.
    pub waiting_writes: u64,
    /// Fill level; always `enough` unless the volume is larger than its space.
    pub space: Space,
    /// Compression of new data.
    pub compression: Compression,
    /// Largest amount of data that is compressed together.
    pub unit_bytes: u64,
    /// Part of the usable bytes that the mapped blocks take, after compression.
    pub physical_bytes: u64,
    /// `used_bytes` divided by `physical_bytes`; 1 for an empty volume.
    pub compression_ratio: f64,
    /// Data that the full volume would hold at this compression ratio; at most `size_bytes`.
    pub effective_bytes: u64,
    /// Empty zones of the array.
    pub free_zones: u32,
    /// Live bytes of each zone of the array.
    pub valid_bytes: Vec<u64>,
    /// Size of the whole L2P map, the limit of its cache in memory, and the size of that now.
    pub map_bytes: u64,
    pub map_memory_bytes: u64,
    pub map_cached_bytes: u64,
    /// Pages of the map in memory, and on the drives.
    pub map_cached_pages: u64,
    pub map_written_pages: u64,
    /// Pages of the map that requests needed since the start, and those of them that did not have to be read.
    pub map_page_lookups: u64,
    pub map_page_hits: u64,
    /// The second number divided by the first; `None` if no page was needed.
    pub map_hit_rate: Option<f64>,
    pub collection: Collection,
    pub written: WrittenBytes,
    /// Bytes written to the drives for each byte that users wrote.
    pub write_amplification: f64,
    /// The error after which the volume refuses writes; `None` if there was none.
    pub failed: Option<String>,
    /// Ranges that the array has lost; `None` while they are not known.
    #[serde(default)]
    pub lost: Option<VolumeLosses>,
}

/// The data of a volume that the array has lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeLosses {
    /// In the order of their offsets.
    pub ranges: Vec<VolumeRange>,
    /// Whether there may be more: a header or a page of the map is lost.
    pub may_be_more: bool,
}

/// A range of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeRange {
    pub offset_bytes: u64,
    pub bytes: u64,
}

impl VolumeLosses {
    /// The losses of which these are the blocks.
    pub fn of(stored: &StoredBlocks) -> VolumeLosses {
        let mut ranges: Vec<VolumeRange> = Vec::new();
        for block in &stored.blocks {
            match ranges.last_mut() {
                Some(last) if last.offset_bytes + last.bytes == bytes(*block) => last.bytes += bytes(1),
                _ => ranges.push(VolumeRange { offset_bytes: bytes(*block), bytes: bytes(1) }),
            }
        }
        VolumeLosses { ranges, may_be_more: stored.may_be_more }
    }
}

/// A range of a volume that may differ between two moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangedRange {
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

impl ChangedRange {
    /// Most ranges of a comparison.
    const MOST: usize = 1 << 16;

    /// These ranges of blocks, which are in ascending order. If there are more than 65,536, the closest ones are joined, with
    /// the blocks between them.
    pub fn of(ranges: &[Range<u64>]) -> Vec<ChangedRange> {
        let mut is_joined = vec![false; ranges.len()];
        if let Some(excess) = ranges.len().checked_sub(ChangedRange::MOST + 1) {
            let mut by_gap: Vec<usize> = (1..ranges.len()).collect();
            by_gap.select_nth_unstable_by_key(excess, |n| (ranges[*n].start - ranges[n - 1].end, *n));
            by_gap[..=excess].iter().for_each(|n| is_joined[*n] = true);
        }
        let mut found: Vec<ChangedRange> = Vec::new();
        for (range, is_joined) in ranges.iter().zip(is_joined) {
            match found.last_mut().filter(|_| is_joined) {
                Some(last) => last.length_bytes = bytes(range.end) - last.offset_bytes,
                None => found.push(ChangedRange {
                    offset_bytes: bytes(range.start),
                    length_bytes: bytes(range.end - range.start),
                }),
            }
        }
        found
    }
}

/// State of a snapshot of a volume of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// Without the name of its volume.
    pub name: String,
    pub uuid: String,
    pub size_bytes: u64,
    /// Size of the extents that it has got from the pool, for data that the volume does not have any more.
    pub allocated_bytes: u64,
    /// Space that only it takes, and that its removal frees, at the last `volume list` since the start; `None` before.
    pub own_bytes: Option<u64>,
    /// Space of the rest of its data, which its volume, other snapshots or clones have, too.
    pub shared_bytes: Option<u64>,
}

/// State of a volume of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolVolumeReport {
    pub name: String,
    pub uuid: String,
    pub size_bytes: u64,
    /// Size of the extents that it has got from the pool: parts of the volume of which something was written.
    pub allocated_bytes: u64,
    /// Space of the data that only it has, at the last `volume list` since the start; `None` before.
    pub own_bytes: Option<u64>,
    /// Space of the rest of its data, which snapshots have, too.
    pub shared_bytes: Option<u64>,
    /// Logical sector size: 512 or 4096.
    pub sector_bytes: u32,
    /// Compression of new data.
    pub compression: Compression,
    /// Largest amount of data that is compressed together.
    pub unit_bytes: u64,
    /// Behaviour of a write that finds no free space.
    pub when_full: WhenFull,
    /// Limits and guaranteed floors of its reads and writes, those of its snapshots included.
    pub limits: RatesReport,
    pub floors: RatesReport,
    /// Latency that 999 of 1000 reads and writes shall not exceed, in microseconds; `None` outside of the class of low latency.
    pub latency_us: Option<u32>,
    /// Throttled rate for the sake of other volumes; `None` if it is not throttled.
    pub held_to_bytes_per_second: Option<u64>,
    /// Whether its floors or its latency were found unattainable, so that others are not throttled further for now.
    pub floors_out_of_reach: bool,
    pub latency_out_of_reach: bool,
    /// Path of the kernel's block device, if there is one.
    pub block_device: Option<String>,
    /// Link to it by the names of array and volume.
    pub link: Option<String>,
    /// Ranges that the array has lost; `None` while they are not known.
    pub lost: Option<VolumeLosses>,
    /// Space that only it and its snapshots may take; 0 for none.
    pub guaranteed_bytes: u64,
    /// Its snapshots, the earliest first.
    pub snapshots: Vec<SnapshotReport>,
    /// The snapshot VOLUME@SNAPSHOT of which it is a clone.
    pub clone_of: Option<String>,
}

/// Codec for new data: `off`, `lz4` or `zstd:LEVEL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Compression(pub Option<Codec>);

/// Default level of `zstd`.
const ZSTD_LEVEL: &str = "1";

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(Codec::Lz4) => f.write_str("lz4"),
            Some(Codec::Zstd(level)) => write!(f, "zstd:{}", level.number()),
        }
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Compression, String> {
        let level = match text {
            "off" => return Ok(Compression(None)),
            "lz4" => return Ok(Compression(Some(Codec::Lz4))),
            "zstd" => Some(ZSTD_LEVEL),
            _ => text.strip_prefix("zstd:"),
        };
        let level = level.ok_or("compression is off, lz4, zstd or zstd:LEVEL")?;
        let level = level.parse().ok().and_then(Level::new).ok_or("levels of zstd are 1 to 19")?;
        Ok(Compression(Some(Codec::Zstd(level))))
    }
}

impl From<Compression> for String {
    fn from(compression: Compression) -> String {
        compression.to_string()
    }
}

impl TryFrom<String> for Compression {
    type Error = String;

    fn try_from(text: String) -> Result<Compression, String> {
        text.parse()
    }
}

impl Compression {
    /// How data is stored, for a sentence.
    pub fn does(self, unit_bytes: u64) -> String {
        let with = match self.0 {
            None => return "as it is".into(),
            Some(Codec::Lz4) => "with LZ4".into(),
            Some(Codec::Zstd(level)) => format!("with Zstandard, level {}", level.number()),
        };
        match Unit::from_bytes(unit_bytes) {
            Some(Unit::BLOCK) => with,
            _ => format!("{with}, in units of {}", show(unit_bytes)),
        }
    }
}

/// Behaviour of a write that finds no free space: it waits for up to this many seconds (`queue:SECONDS`), or fails at
/// once (0, `fail`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WhenFull(pub u8);

/// Default waiting time for free space, in seconds.
const QUEUE_SECONDS: u8 = 60;

impl fmt::Display for WhenFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("fail"),
            seconds => write!(f, "queue:{seconds}"),
        }
    }
}

impl FromStr for WhenFull {
    type Err = String;

    fn from_str(text: &str) -> Result<WhenFull, String> {
        match text {
            "fail" => return Ok(WhenFull(0)),
            "queue" => return Ok(WhenFull(QUEUE_SECONDS)),
            _ => {}
        }
        let seconds = text.strip_prefix("queue:").ok_or("the value is fail, queue or queue:SECONDS")?;
        let seconds = seconds.parse().ok().filter(|seconds| *seconds > 0);
        seconds.map(WhenFull).ok_or("writes wait for 1 to 255 seconds".into())
    }
}

impl From<WhenFull> for String {
    fn from(when_full: WhenFull) -> String {
        when_full.to_string()
    }
}

impl TryFrom<String> for WhenFull {
    type Error = String;

    fn try_from(text: String) -> Result<WhenFull, String> {
        text.parse()
    }
}

/// Fill level of a volume that is larger than its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Less than 80 % is used, or the volume is not larger than its space.
    Enough,
    /// 80 % or more is used.
    Low,
    /// 90 % or more is used.
    Short,
    /// 95 % or more is used.
    Critical,
    /// Writes to unmapped blocks are refused.
    Full,
}

impl Space {
    /// Free space below which the volume counts as full: writes of common sizes do not fit.
    const LEAST_BYTES: u64 = 1 << 20;

    fn of(volume: &VolumeStatus) -> Space {
        if volume.reserve == 0 {
            return Space::Enough;
        }
        let (held, room) = (volume.held_bytes + volume.set_aside_bytes, bytes(volume.usable));
        let percent = held.saturating_mul(100) / room.max(1);
        match percent {
            _ if held + Space::LEAST_BYTES > room => Space::Full,
            0..80 => Space::Enough,
            80..90 => Space::Low,
            90..95 => Space::Short,
            _ => Space::Critical,
        }
    }

    /// Whether the array is reported as degraded because of it.
    pub fn is_alarming(self) -> bool {
        self >= Space::Short
    }
}

impl VolumeReport {
    /// Description of the shortage and the action against it; `None` if there is enough space.
    pub fn shortage(&self) -> Option<(String, String)> {
        let used = self.physical_bytes.saturating_mul(100) / self.usable_bytes.max(1);
        let what = match self.space {
            Space::Enough => return None,
            Space::Full => {
                let others = match self.when_full.0 {
                    0 => String::new(),
                    seconds => format!("; other writes wait for up to {seconds} seconds"),
                };
                format!(
                    "the volume is full: only written blocks can be overwritten, from a reserve of {}{others}",
                    show(self.reserve_bytes - self.lent_bytes.min(self.reserve_bytes))
                )
            }
            _ => format!("the volume uses {used} % of its space, and {} are free", show(self.free_bytes)),
        };
        let action = "delete files and discard the free space of the file system (fstrim)";
        Some((what, action.into()))
    }
}

/// The error for an array without a volume.
pub fn no_volume(array: &str) -> String {
    format!("'{array}' carries no volume: create one with zoneraid volume create")
}

/// The error of a failed start, with advice.
pub fn no_start(called: &str, error: VolumeError) -> anyhow::Error {
    let advice = match error.itself() {
        VolumeError::ZoneOffline { .. }
        | VolumeError::GroupUnreadable { .. }
        | VolumeError::PageUnreadable { .. }
        | VolumeError::Losses(_) => {
            "; start or serve the array with all its members, or give up the lost data with --give-up"
        }
        // The volume is incomplete.
        VolumeError::NotThere => "; if its creation was interrupted, run zoneraid volume create again",
        _ => "",
    };
    anyhow!("the volume on '{called}' cannot be started: {error}{advice}")
}

/// Message about data that was given up at a start; `None` if there was none.
pub fn given_up(called: &str, why: &[VolumeError]) -> Option<String> {
    let losses = VolumeError::of_losses(why)?;
    Some(format!("the volume on '{called}' was started without its lost data: {losses}"))
}

/// Result of `volume set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeSet {
    pub array: String,
    pub compression: Compression,
    pub unit_bytes: u64,
    /// Part of the reserve that new blocks may use until the next start.
    pub lent_bytes: u64,
    pub when_full: WhenFull,
    /// Limits, floors and latency target of reads and writes; only a volume of a pool has any.
    pub limits: RatesReport,
    pub floors: RatesReport,
    pub latency_us: Option<u32>,
    /// Space that is guaranteed to a volume of a pool with its snapshots.
    pub guaranteed_bytes: u64,
    pub size_bytes: u64,
    /// Capacity without compression.
    pub usable_bytes: u64,
    /// After a change of the size, whether the block device has it; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_device_resized: Option<bool>,
}

impl VolumeSet {
    /// Current settings of the volume on `array`.
    pub fn of(array: String, volume: &VolumeStatus) -> VolumeSet {
        let unit_bytes = volume.unit.bytes() as u64;
        VolumeSet {
            array,
            compression: Compression(volume.codec),
            unit_bytes,
            lent_bytes: bytes(volume.lent),
            when_full: WhenFull(volume.queue_seconds),
            limits: RatesReport::of(volume.qos.limits),
            floors: RatesReport::of(volume.qos.floors),
            latency_us: Some(volume.qos.latency_us).filter(|us| *us > 0),
            guaranteed_bytes: bytes(volume.guaranteed),
            size_bytes: bytes(volume.blocks),
            usable_bytes: bytes((volume.usable + volume.reserve - volume.lent).min(volume.blocks)),
            block_device_resized: None,
        }
    }
}

/// State of garbage collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    /// Garbage collection is running, because few zones are free.
    pub active: bool,
    /// Victims emptied so far.
    pub collected_zones: u64,
    /// Zones that cannot be emptied, because blocks in them are unreadable.
    pub unreadable_zones: u32,
}

/// Bytes written to the drives, by purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrittenBytes {
    pub user_bytes: u64,
    /// Of these, bytes written to the hot window, where they take no flash unless they are moved.
    #[serde(default)]
    pub window_bytes: u64,
    /// Moved by garbage collection, or out of the hot window.
    pub gc_bytes: u64,
    /// Bytes that compression saved, of users outside of the hot window and of moves.
    pub saved_bytes: u64,
    /// Group headers.
    pub header_bytes: u64,
    /// Pages and directory of the L2P map, and checkpoint records (roots).
    pub map_bytes: u64,
    pub padding_bytes: u64,
    /// Writes that the array added: parity, partial parity and cells in ZRWAs, and metadata of the array.
    pub parity_bytes: u64,
    /// Written by rebuilds and replacements.
    pub rebuild_bytes: u64,
}

impl VolumeReport {
    /// `drives_blocks` is the number of blocks written to the drives of the array, `rebuilt_blocks` the part of them
    /// written by rebuilds.
    pub fn of(volume: &VolumeStatus, drives_blocks: u64, rebuilt_blocks: u64) -> VolumeReport {
        let usable = volume.usable.min(volume.blocks);
        let written = volume.written.blocks();
        // The counters of replaced drives are lost, so that the sum can be below the volume's own count.
        let all = drives_blocks.saturating_sub(rebuilt_blocks).max(written);
        let user_blocks = volume.written.user;
        let WrittenBlocks { user, window, moved, data, headers, map, roots, padding } = volume.written;
        let room = bytes(volume.usable).saturating_sub(volume.held_bytes + volume.set_aside_bytes);
        let ratio = match volume.held_bytes {
            0 => 1.0,
            held => bytes(volume.mapped) as f64 / held as f64,
        };
        VolumeReport {
            size_bytes: bytes(volume.blocks),
            usable_bytes: bytes(usable),
            sector_bytes: volume.sector as u32,
            used_bytes: bytes(volume.mapped),
            free_bytes: room.min(bytes(volume.blocks - volume.mapped)),
            set_aside_bytes: volume.set_aside_bytes,
            reserve_bytes: bytes(volume.reserve),
            lent_bytes: bytes(volume.lent),
            when_full: WhenFull(volume.queue_seconds),
            waiting_writes: volume.waiting,
            space: Space::of(volume),
            compression: Compression(volume.codec),
            unit_bytes: volume.unit.bytes() as u64,
            physical_bytes: volume.held_bytes,
            compression_ratio: ratio,
            effective_bytes: bytes(volume.blocks).min((bytes(volume.usable) as f64 * ratio) as u64),
            free_zones: volume.free_zones,
            valid_bytes: volume.live_bytes.clone(),
            map_bytes: volume.map_bytes,
            map_memory_bytes: volume.map_memory_bytes,
            map_cached_bytes: volume.map_cached_bytes,
            map_cached_pages: volume.map_cached_pages,
            map_written_pages: volume.map_written_pages,
            map_page_lookups: volume.page_lookups,
            map_page_hits: volume.page_hits,
            map_hit_rate: volume.map_hit_rate(),
            collection: Collection {
                active: volume.collects,
                collected_zones: volume.collected_zones,
                unreadable_zones: volume.unreadable_zones,
            },
            written: WrittenBytes {
                user_bytes: bytes(user),
                window_bytes: bytes(window),
                gc_bytes: bytes(moved),
                saved_bytes: bytes((user + moved).saturating_sub(window + data)),
                header_bytes: bytes(headers),
                map_bytes: bytes(map + roots),
                padding_bytes: bytes(padding),
                parity_bytes: bytes(all - written),
                rebuild_bytes: bytes(rebuilt_blocks.min(drives_blocks)),
            },
            write_amplification: if user_blocks == 0 { 1.0 } else { all as f64 / user_blocks as f64 },
            lost: None,
            failed: volume.failed.map(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_full_option_prints_as_typed() {
        for (typed, said) in [("fail", "fail"), ("queue", "queue:60"), ("queue:255", "queue:255")] {
            assert_eq!(typed.parse::<WhenFull>().unwrap().to_string(), said);
        }
        for wrong in ["", "wait", "queue:", "queue:0", "queue:256", "queue:-1"] {
            assert!(wrong.parse::<WhenFull>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn too_many_changed_ranges_are_joined() {
        let found = |ranges: &[Range<u64>]| {
            let blocks = |range: &ChangedRange| {
                let start = range.offset_bytes / 4096;
                start..start + range.length_bytes / 4096
            };
            ChangedRange::of(ranges).iter().map(blocks).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[0..2, 3..4, 9..10]), [0..2, 3..4, 9..10]);
        // One more than possible; the last two are the closest.
        let most = ChangedRange::MOST as u64;
        let mut many: Vec<Range<u64>> = (0..most).map(|n| 4 * n..4 * n + 1).collect();
        many.push(4 * most - 2..4 * most + 6);
        let joined = found(&many);
        assert!(joined.len() == many.len() - 1 && joined[..joined.len() - 1] == many[..joined.len() - 1]);
        assert_eq!(joined.last(), Some(&(4 * most - 4..4 * most + 6)));
    }

    #[test]
    fn compression_option_prints_as_typed() {
        for (typed, said) in [("off", "off"), ("lz4", "lz4"), ("zstd", "zstd:1"), ("zstd:19", "zstd:19")] {
            assert_eq!(typed.parse::<Compression>().unwrap().to_string(), said);
            let json = serde_json::to_string(&typed.parse::<Compression>().unwrap()).unwrap();
            assert_eq!(serde_json::from_str::<Compression>(&json).unwrap().to_string(), said);
        }
        for wrong in ["", "on", "LZ4", "zstd:", "zstd:0", "zstd:20", "zstd:256", "zstd:-1", "zstd:1:1"] {
            assert!(wrong.parse::<Compression>().is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<Compression>("\"zstd:99\"").is_err());
    }
}
