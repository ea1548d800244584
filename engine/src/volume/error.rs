//! Errors of volumes, as values. Their messages are for people: no code parses them.
#![allow(missing_docs, reason = "the sentences say what the variants and their values are")]

use crate::{
    buf::BLOCK,
    device::DeviceError,
    volume::{
        format::{FANOUT, OLDEST_VERSION, VERSION},
        pool_table::MOST_SNAPSHOTS,
    },
};
use thiserror::Error;

/// Zones and losses that a message names.
const MOST_NAMED: usize = 8;

/// Why a volume cannot be created or opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VolumeError {
    #[error("the device of the volume: {0}")]
    Device(#[from] DeviceError),
    #[error("there is no volume on the device")]
    NotThere,
    #[error("the device has a volume already")]
    IsThere,
    #[error("zone {zone} holds data: a volume needs an empty device")]
    NotEmpty { zone: u32 },
    /// The device cannot carry such a volume.
    #[error(transparent)]
    Design(#[from] NoVolume),
    #[error(
        "the volume has format version {0}, this zoneraid supports versions {OLDEST_VERSION} to {VERSION}: {advice}",
        advice = if *.0 > VERSION { "use a newer one" } else { "use an older one" }
    )]
    Version(u16),
    #[error("the volume uses features ({0:#x}) that this zoneraid does not support: use a newer one")]
    Features(u64),
    #[error(
        "the volume was created on a device of another geometry: {zones} zones of {capacity_blocks} blocks"
    )]
    OfAnotherDevice { zones: u32, capacity_blocks: u64 },
    #[error("zone {zone} of the device, which may hold a checkpoint of the volume, cannot be read: {error}")]
    RootUnreadable { zone: u32, error: DeviceError },
    #[error(
        "block {block} of zone {zone} of the device, which may hold the newest checkpoint of the volume, is damaged"
    )]
    RootDamaged { zone: u32, block: u32 },
    /// The zones that would decide whether there is a volume cannot be read.
    #[error(
        "there may be a volume on the device: {zones} cannot be read",
        zones = list(.zones)
    )]
    Hidden { zones: Vec<u32> },
    #[error("the checkpoint record of the volume is invalid")]
    Absurd,
    #[error("the checkpoint record of the volume has no end for zone {zone}")]
    NoEnd { zone: u32 },
    #[error("the device has lost blocks of zone {zone}: it holds {there} of {written}")]
    LostBlocks { zone: u32, there: u32, written: u32 },
    #[error(
        "the map of the volume is damaged in block {block} of zone {zone} of the device: the addresses of \
         blocks {from} and following are lost",
        from = *.directory_block as u64 * FANOUT * FANOUT
    )]
    MapDamaged { directory_block: usize, zone: u32, block: u32 },
    #[error("block {block} is written in the log but lies beyond the end of the volume")]
    NoSuchBlock { block: u64 },
    #[error("zone {zone} of the device is offline, and may hold acknowledged data of the volume")]
    ZoneOffline { zone: u32 },
    #[error(
        "block {block} of zone {zone} of the device is damaged or cannot be read, and the zone may hold \
         acknowledged data of the volume"
    )]
    GroupUnreadable { zone: u32, block: u32 },
    #[error(
        "the map page for blocks {from} and following cannot be read ({error}), and acknowledged writes to \
         them since the last checkpoint may be lost",
        from = *.page as u64 * FANOUT
    )]
    PageUnreadable { page: u32, error: DeviceError },
    /// Several losses of possibly acknowledged data.
    #[error("{}", sentences(.0))]
    Losses(Vec<VolumeError>),
    /// A volume of `have` blocks is not enlarged to fewer.
    #[error("the volume has {have} blocks of 4 KiB, and cannot be enlarged to fewer")]
    Shrinks { have: u64 },
    /// Block `last` is the last one with data, and would be cut off from a volume of `to` blocks.
    #[error(
        "the last block with data, of 4 KiB each, is {last}, and blocks {to} and following would be cut off: shrink the \
         file system first, and discard the end (blkdiscard -o {offset} DEVICE)",
        offset = to.saturating_mul(BLOCK as u64)
    )]
    DataBehindEnd { last: u64, to: u64 },
    #[error(
        "too few zones are free for the larger map, or too much is written for the reserve of a volume that is larger \
         than its space: choose a smaller size, or discard data first (fstrim)"
    )]
    TooFullToGrow,
    #[error("a volume of several parts, as on devices of more than 16 TiB, cannot change its size yet")]
    ManyShards,
    #[error("the device carries a pool of volumes, not one volume")]
    IsPool,
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("part {shard} of the volume, with zones {first_zone} and following of the device: {error}")]
    InShard { shard: usize, first_zone: u32, error: Box<VolumeError> },
}

impl VolumeError {
    /// The error of a start that would lose data; `None` if there is no loss.
    pub fn of_losses(losses: &[VolumeError]) -> Option<VolumeError> {
        match losses {
            [] => None,
            [loss] => Some(loss.clone()),
            _ => Some(VolumeError::Losses(losses.to_vec())),
        }
    }

    /// The error itself, without the part of the volume that it concerns.
    pub fn itself(&self) -> &VolumeError {
        match self {
            VolumeError::InShard { error, .. } => error,
            error => error,
        }
    }
}

/// Why a volume of a pool cannot be used or changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    #[error("there is no volume '{name}'")]
    NoVolume { name: String },
    #[error("there is a volume '{name}' already, or it is being removed")]
    NameTaken { name: String },
    #[error("this cannot be the name of a volume or a snapshot: {why}")]
    WrongName { why: &'static str },
    #[error("there are at most {most} volumes and snapshots, and not enough of these are left")]
    NoSlot { most: u32 },
    #[error("block {block} of the table of volumes is damaged")]
    TableDamaged { block: u64 },
    #[error("there is no snapshot '{name}'")]
    NoSnapshot { name: String },
    #[error("there is a snapshot '{name}' already, or it is being removed")]
    SnapshotTaken { name: String },
    #[error("a snapshot cannot be changed: make a clone of it (volume clone)")]
    IsSnapshot,
    #[error(
        "limits, floors and latency targets are for the volumes of a pool (ARRAY/NAME) and for namespaces, and this volume \
         is none of a pool: for one on a namespace, set those of the namespace"
    )]
    NotInPool,
    #[error("a floor is above the limit of the same volume; raise the limit, or lower the floor")]
    FloorAboveLimit,
    #[error(
        "guaranteed space is for the volumes of a pool (ARRAY/NAME), and this volume is none of a pool: it shares its space \
         with no other"
    )]
    NoGuarantee,
    #[error(
        "this pool of several parts, on a device of more than 16 TiB, was made by an earlier version, and has no guaranteed \
         space: copy its volumes to a new one"
    )]
    GuaranteeInShards,
    #[error("guaranteed space in a pool of {extents} extents on zones as small as these is not supported")]
    GuaranteeInSmallZones { extents: u32 },
    /// So many blocks cannot be guaranteed.
    #[error(
        "{} MiB cannot be guaranteed, since the rest is written or guaranteed to other volumes, and {} MiB can: choose a \
         smaller size, or discard data (fstrim), remove snapshots, or lower other guarantees first",
        mib(*.blocks),
        mib(*.most)
    )]
    NotGuaranteeable { blocks: u64, most: u64 },
    /// Extents that are free, and those that volumes with guaranteed space may need.
    #[error(
        "the addresses of the pool do not suffice for the sizes of the volumes with guaranteed space and the latest \
         snapshots of these ({needed} extents, and {free} are free): choose a smaller size, or remove volumes or snapshots \
         first"
    )]
    FewAddresses { needed: u64, free: u64 },
    #[error("snapshots of a clone are not supported yet")]
    OfClone,
    #[error("the volume has snapshots ({names}): remove these first")]
    HasSnapshots { names: String },
    #[error("volumes are clones of the snapshot ({names}): remove these first")]
    HasClones { names: String },
    #[error("the volume has later snapshots ({names}), which would be lost: remove these first")]
    HasLater { names: String },
    /// Block `last` is the last one with data in a snapshot of a volume that is to have `to` blocks.
    #[error(
        "the snapshot '{name}' has data up to block {last}, and blocks {to} and following would be cut off: remove the \
         snapshot first"
    )]
    KeptBehindEnd { name: String, last: u64, to: u64 },
    /// Block `last` is the last one with data in the snapshot of which the volume is a clone.
    #[error(
        "the volume is a clone, and its snapshot '{name}' has data up to block {last}, which a clone of {to} blocks \
         cannot hide: copy the data to a new volume instead"
    )]
    BelowBehindEnd { name: String, last: u64, to: u64 },
    #[error("the volume '{name}' is named twice")]
    Twice { name: String },
    #[error("the second snapshot is not later than the first one")]
    NotLater,
    #[error("snapshots on an array with zones of more than {most_gib} GiB are not supported")]
    ZonesTooLarge { most_gib: u64 },
    #[error(
        "the volume is getting back the contents of a snapshot: if that has failed, restart the array to complete it"
    )]
    Returning,
    #[error("the volume has had {MOST_SNAPSHOTS} snapshots, and no more are possible")]
    ManySnapshots,
    #[error(
        "this pool of several parts, on a device of more than 16 TiB, was made by an earlier version, and has no snapshots: copy \
         its volumes to a new one"
    )]
    ManyShards,
}

/// Why a device cannot carry a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoVolume {
    #[error("zones of more than 127 GiB are not supported for volumes")]
    ZonesTooLarge,
    #[error("a volume on this device cannot have {blocks} blocks of 4 KiB")]
    Size { blocks: u64 },
    #[error("a volume needs {least} active zones, and the device has {active}")]
    FewActive { active: u32, least: u32 },
    #[error("a volume needs transfers of {least} blocks, and the device supports {blocks}")]
    ShortTransfers { blocks: u32, least: u32 },
    #[error(
        "the device is too small for a volume of this size: it has {zones} zones of {capacity_blocks} blocks, \
         and {least} are needed"
    )]
    DeviceTooSmall { zones: u32, capacity_blocks: u64, least: u32 },
}

/// Whole MiB of blocks of 4 KiB.
fn mib(blocks: u64) -> u64 {
    blocks >> 8
}

/// The first eight losses of a message, and the number of the others.
fn sentences(losses: &[VolumeError]) -> String {
    let first: Vec<String> = losses.iter().take(MOST_NAMED).map(VolumeError::to_string).collect();
    let more = match losses.len() - first.len() {
        0 => String::new(),
        more => format!("; and {more} more losses"),
    };
    format!("{}{more}", first.join("; "))
}

/// Formats the numbers of the first eight zones for a message, with 'and others' if there are more.
fn list(zones: &[u32]) -> String {
    let first: Vec<String> = zones.iter().take(MOST_NAMED).map(u32::to_string).collect();
    let what = if zones.len() == 1 { "zone" } else { "zones" };
    let more = if zones.len() > MOST_NAMED { " and others" } else { "" };
    format!("{what} {}{more}", first.join(", "))
}
