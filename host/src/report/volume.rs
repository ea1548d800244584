//! What there is to say about volumes.

use crate::{output::quoted, size::bytes};
use anyhow::anyhow;
use engine::volume::{Codec, VolumeError, VolumeStatus, Written};
use serde::{Deserialize, Serialize};

/// How a volume is. What was written is counted since it was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// What it says of itself, and how much of that may be used at once.
    pub size_bytes: u64,
    pub usable_bytes: u64,
    /// What is written, as users see it.
    pub used_bytes: u64,
    /// How much more may be written if none of it compresses.
    pub free_bytes: u64,
    /// How new data is compressed.
    pub compression: Compression,
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
    pub collection: Collection,
    pub written: WrittenBytes,
    /// Bytes written to the drives for each byte of users.
    pub write_amplification: f64,
    /// Why nothing can be written any more.
    pub failed: Option<String>,
}

/// How a volume compresses new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// It is written as it is
    Off,
    /// LZ4, each block of 4096 bytes by itself
    Lz4,
}

impl Compression {
    pub fn of(codec: Option<Codec>) -> Compression {
        match codec {
            None => Compression::Off,
            Some(Codec::Lz4) => Compression::Lz4,
        }
    }

    pub fn codec(self) -> Option<Codec> {
        match self {
            Compression::Off => None,
            Compression::Lz4 => Some(Codec::Lz4),
        }
    }
}

/// What is said where there has to be a volume.
pub fn no_volume(array: &str) -> String {
    format!("'{array}' carries no volume: make one, zoneraid volume create {}", quoted(array))
}

/// Why a volume does not start, and what can be done about it.
pub fn no_start(called: &str, error: VolumeError) -> anyhow::Error {
    let lost = matches!(error, VolumeError::ZoneOffline { .. } | VolumeError::GroupUnreadable { .. });
    let advice = match lost {
        true => format!(
            "; start the array with all its members, or give up what is lost: zoneraid start {} --give-up",
            quoted(called.split_once('/').map_or(called, |(array, _)| array))
        ),
        false => String::new(),
    };
    anyhow!("the volume on '{called}' cannot be started: {error}{advice}")
}

/// A volume that was told something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeSet {
    pub array: String,
    pub compression: Compression,
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
    /// All that is not the volume's: parity, also where it is written anew in a ZRWA, metadata of the array,
    /// rebuilds.
    pub parity_bytes: u64,
}

impl VolumeReport {
    /// `drives_blocks` is how many blocks were written to the drives of its array.
    pub fn of(volume: &VolumeStatus, drives_blocks: u64) -> VolumeReport {
        let usable = volume.usable.min(volume.blocks);
        let written = volume.written.blocks();
        // Drives that were replaced have taken what they know with them.
        let all = drives_blocks.max(written);
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
            used_bytes: bytes(volume.mapped),
            free_bytes: room.min(bytes(volume.blocks - volume.mapped)),
            compression: Compression::of(volume.codec),
            physical_bytes: volume.held_bytes,
            compression_ratio: ratio,
            effective_bytes: bytes(volume.blocks).min((bytes(volume.usable) as f64 * ratio) as u64),
            free_zones: volume.free_zones,
            valid_bytes: volume.live_bytes.clone(),
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
            },
            write_amplification: if user_blocks == 0 { 1.0 } else { all as f64 / user_blocks as f64 },
            failed: volume.failed.map(|error| error.to_string()),
        }
    }
}
