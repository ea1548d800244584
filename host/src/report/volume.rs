//! What there is to say about volumes.

use crate::size::{bytes, show};
use anyhow::anyhow;
use engine::volume::{Codec, Level, Unit, VolumeError, VolumeStatus, Written};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How a volume is. What was written is counted since it was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// What it says of itself, and how much of that may be used at once.
    pub size_bytes: u64,
    pub usable_bytes: u64,
    /// What its users may write at least.
    pub sector_bytes: u32,
    /// What is written, as users see it.
    pub used_bytes: u64,
    /// How much more may be written if none of it compresses.
    pub free_bytes: u64,
    /// What is kept for overwriting beside the usable bytes, of a volume that is larger than its room.
    pub reserve_bytes: u64,
    /// What of the reserve is lent to blocks that are not written yet, until the next start.
    pub lent_bytes: u64,
    /// What becomes of a write that finds no room.
    pub when_full: WhenFull,
    /// Writes that wait for room.
    pub waiting_writes: u64,
    /// How scarce room is: always `enough` where there is room for all of the volume.
    pub space: Space,
    /// How new data is compressed.
    pub compression: Compression,
    /// How much of it is compressed together, at most.
    pub unit_bytes: u64,
    /// What of the usable bytes is taken by what is written.
    pub physical_bytes: u64,
    /// Used bytes for each of these; 1 if nothing is written.
    pub compression_ratio: f64,
    /// How much would be there when the volume is full, if all of it compressed as well.
    pub effective_bytes: u64,
    /// Zones of the array in which nothing is.
    pub free_zones: u32,
    /// What is in use of each zone of the array.
    pub valid_bytes: Vec<u64>,
    /// The map of where blocks are, and how much of it may be in memory.
    pub map_bytes: u64,
    pub map_memory_bytes: u64,
    pub collection: Collection,
    pub written: WrittenBytes,
    /// Bytes written to the drives for each byte of users.
    pub write_amplification: f64,
    /// Why nothing can be written any more.
    pub failed: Option<String>,
}

/// How a volume compresses new data: `off`, `lz4` or `zstd:LEVEL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Compression(pub Option<Codec>);

/// The level of `zstd`, if nobody says another one.
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
        let level = level.ok_or("it is off, lz4, zstd or zstd:LEVEL")?;
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
    /// What is done to data, in a sentence.
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

/// What becomes of a write that finds no room: it waits for so many seconds for some (`queue:SECONDS`), or fails at once
/// (`fail`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WhenFull(pub u8);

/// How long a write waits for room, if nobody says anything else.
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
        let seconds = text.strip_prefix("queue:").ok_or("it is fail, queue or queue:SECONDS")?;
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

/// How scarce room is in a volume that is larger than its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Less than 80 % is used, or all of the volume has room.
    Enough,
    /// 80 % or more is used.
    Low,
    /// 90 % or more is used.
    Short,
    /// 95 % or more is used.
    Critical,
    /// Blocks that are not mapped are refused.
    Full,
}

impl Space {
    /// Less room than this takes no more writes of a common size.
    const LEAST_BYTES: u64 = 1 << 20;

    fn of(volume: &VolumeStatus) -> Space {
        if volume.reserve == 0 {
            return Space::Enough;
        }
        let (held, room) = (volume.held_bytes, bytes(volume.usable));
        let percent = held.saturating_mul(100) / room.max(1);
        match percent {
            _ if held + Space::LEAST_BYTES > room => Space::Full,
            0..80 => Space::Enough,
            80..90 => Space::Low,
            90..95 => Space::Short,
            _ => Space::Critical,
        }
    }

    /// Whether the array is not to be called healthy.
    pub fn is_alarming(self) -> bool {
        self >= Space::Short
    }
}

impl VolumeReport {
    /// What there is to say of scarce room, and what helps; nothing if there is enough.
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
                    "the volume is full: only what is written already can be overwritten, with {} kept for that{others}",
                    show(self.reserve_bytes - self.lent_bytes.min(self.reserve_bytes))
                )
            }
            _ => format!("the volume uses {used} % of its room, and {} are free", show(self.free_bytes)),
        };
        let action = "delete what is not needed and have the file system discard it (fstrim)";
        Some((what, action.into()))
    }
}

/// What is said where there has to be a volume.
pub fn no_volume(array: &str) -> String {
    format!("'{array}' carries no volume; zoneraid volume create makes one")
}

/// Why a volume does not start, and what can be done about it.
pub fn no_start(called: &str, error: VolumeError) -> anyhow::Error {
    let advice = match error {
        VolumeError::ZoneOffline { .. }
        | VolumeError::GroupUnreadable { .. }
        | VolumeError::PageUnreadable { .. } => {
            "; start or serve the array with all its members, or with --give-up, to give up what is lost"
        }
        // There is a part of one.
        VolumeError::NotThere => "; if its creation was cut off, do it again with zoneraid volume create",
        _ => "",
    };
    anyhow!("the volume on '{called}' cannot be started: {error}{advice}")
}

/// What is said of what was given up at a start, if anything was.
pub fn given_up(called: &str, why: &[VolumeError]) -> Option<String> {
    let (first, others) = why.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        others => format!(", and so in {others} more cases"),
    };
    Some(format!("the volume on '{called}' goes on without what it lost: {first}{others}"))
}

/// A volume that was told something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeSet {
    pub array: String,
    pub compression: Compression,
    pub unit_bytes: u64,
    /// What new blocks may take of the reserve until the next start.
    pub lent_bytes: u64,
    pub when_full: WhenFull,
}

impl VolumeSet {
    /// How the volume on an array is now.
    pub fn of(array: String, volume: &VolumeStatus) -> VolumeSet {
        let unit_bytes = volume.unit.bytes() as u64;
        VolumeSet {
            array,
            compression: Compression(volume.codec),
            unit_bytes,
            lent_bytes: bytes(volume.lent),
            when_full: WhenFull(volume.queue_seconds),
        }
    }
}

/// What garbage collection does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    /// Zones are being collected, because few are free.
    pub active: bool,
    /// Zones that were emptied.
    pub collected_zones: u64,
    /// Zones that cannot be, because something in them cannot be read.
    pub unreadable_zones: u32,
}

/// What was written to the drives, by what for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrittenBytes {
    pub user_bytes: u64,
    /// Moved by garbage collection.
    pub gc_bytes: u64,
    /// What compression made these two shorter by.
    pub saved_bytes: u64,
    /// Headers of groups.
    pub header_bytes: u64,
    /// Pages and directory of the map, and roots.
    pub map_bytes: u64,
    pub padding_bytes: u64,
    /// All that is not the volume's: parity, also where it is written anew in a ZRWA, and metadata of the array.
    pub parity_bytes: u64,
    /// Written by rebuilds, and by copies to drives that are members now.
    pub rebuild_bytes: u64,
}

impl VolumeReport {
    /// `drives_blocks` is how many blocks were written to the drives of its array, `rebuilt_blocks` how many of them by
    /// rebuilds.
    pub fn of(volume: &VolumeStatus, drives_blocks: u64, rebuilt_blocks: u64) -> VolumeReport {
        let usable = volume.usable.min(volume.blocks);
        let written = volume.written.blocks();
        // Drives that were replaced have taken what they know with them.
        let all = drives_blocks.saturating_sub(rebuilt_blocks).max(written);
        let user_blocks = volume.written.user;
        let Written { user, moved, data, headers, map, roots, padding } = volume.written;
        let room = bytes(volume.usable).saturating_sub(volume.held_bytes);
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
            collection: Collection {
                active: volume.collects,
                collected_zones: volume.collected_zones,
                unreadable_zones: volume.unreadable_zones,
            },
            written: WrittenBytes {
                user_bytes: bytes(user),
                gc_bytes: bytes(moved),
                saved_bytes: bytes((user + moved).saturating_sub(data)),
                header_bytes: bytes(headers),
                map_bytes: bytes(map + roots),
                padding_bytes: bytes(padding),
                parity_bytes: bytes(all - written),
                rebuild_bytes: bytes(rebuilt_blocks.min(drives_blocks)),
            },
            write_amplification: if user_blocks == 0 { 1.0 } else { all as f64 / user_blocks as f64 },
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
