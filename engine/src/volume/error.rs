//! Errors of volumes, as values. Their messages are for people: no code parses them.
#![allow(missing_docs, reason = "the sentences say what the variants and their values are")]

use crate::{
    device::DeviceError,
    volume::format::{FANOUT, VERSION},
};
use thiserror::Error;

/// Why a volume cannot be created or opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VolumeError {
    #[error("the device of the volume: {0}")]
    Device(#[from] DeviceError),
    #[error("there is no volume on the device")]
    NotThere,
    #[error("there is a volume already")]
    IsThere,
    #[error("there is something in zone {zone}: a volume needs an empty device")]
    NotEmpty { zone: u32 },
    /// The device cannot carry such a volume.
    #[error(transparent)]
    Design(#[from] NoVolume),
    #[error(
        "the volume has format {0}, this zoneraid knows only {VERSION}: {advice}",
        advice = if *.0 > VERSION { "use a newer one" } else { "use an older one" }
    )]
    Version(u16),
    #[error("the volume is of a device with {zones} zones of {capacity_blocks} blocks, which this is not")]
    OfAnotherDevice { zones: u32, capacity_blocks: u64 },
    #[error("zone {zone} of the device, where a root of the volume may be, cannot be read: {error}")]
    RootUnreadable { zone: u32, error: DeviceError },
    #[error(
        "block {block} of zone {zone} of the device, where the newest root of the volume may be, is damaged"
    )]
    RootDamaged { zone: u32, block: u32 },
    /// The zones that would decide whether there is a volume cannot be read.
    #[error(
        "there may be a volume on the device: {zones} cannot be read",
        zones = list(.zones)
    )]
    Hidden { zones: Vec<u32> },
    #[error("the root of the volume makes no sense")]
    Absurd,
    #[error("the root of the volume does not say where zone {zone} ends")]
    NoEnd { zone: u32 },
    #[error("the device has lost blocks of zone {zone}: {there} of {written} are there")]
    LostBlocks { zone: u32, there: u32, written: u32 },
    #[error(
        "the map of the volume is damaged in block {block} of zone {zone} of the device: where blocks {from} and following \
         are is not known",
        from = *.directory_block as u64 * FANOUT * FANOUT
    )]
    MapDamaged { directory_block: usize, zone: u32, block: u32 },
    #[error("there is no block {block} in the volume, and it was written")]
    NoSuchBlock { block: u64 },
    #[error(
        "zone {zone} of the device is offline, and there may be something in it that the volume has promised"
    )]
    ZoneOffline { zone: u32 },
    #[error(
        "block {block} of zone {zone} of the device is damaged or cannot be read, and there may be something in that zone \
         that the volume has promised"
    )]
    GroupUnreadable { zone: u32, block: u32 },
    #[error(
        "the page of the map for blocks {from} and following cannot be read ({error}), and the volume may have \
         promised what was written to some of them since",
        from = *.page as u64 * FANOUT
    )]
    PageUnreadable { page: u32, error: DeviceError },
}

/// Why a device cannot carry a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoVolume {
    #[error("a volume cannot be on a device of more than 16 TiB yet")]
    DeviceTooLarge,
    #[error("a volume cannot be on zones of more than 127 GiB yet")]
    ZonesTooLarge,
    #[error("a volume cannot have {blocks} blocks of 4 KiB: 1 to {most}", most = u32::MAX)]
    Size { blocks: u64 },
    #[error("a volume needs {least} active zones, and the device has {active}")]
    FewActive { active: u32, least: u32 },
    #[error("a volume needs transfers of {least} blocks, and the device takes {blocks} at a time")]
    ShortTransfers { blocks: u32, least: u32 },
    #[error(
        "the device is too small for a volume: it has {zones} zones of {capacity_blocks} blocks, and {least} is \
         the least for so many logical blocks"
    )]
    DeviceTooSmall { zones: u32, capacity_blocks: u64, least: u32 },
}

/// The first eight zones, by number.
fn list(zones: &[u32]) -> String {
    let first: Vec<String> = zones.iter().take(8).map(u32::to_string).collect();
    let (what, more) =
        (if zones.len() == 1 { "zone" } else { "zones" }, if zones.len() > 8 { " and others" } else { "" });
    format!("{what} {}{more}", first.join(", "))
}
