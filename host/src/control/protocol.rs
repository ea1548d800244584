//! Protocol between commands and the daemon of an array: one JSON object a line, over a socket named by the array's
//! UUID. The command sends a request; notes and progress may precede the answer.

use super::{
    name::{MemberName, SnapshotName},
    pool::{Confirmed, WantedVolume},
    qos::{NewQos, QosChange},
    tenants::NewNamespace,
};
use crate::{
    drive::same_file,
    process::size::{bytes, show},
    reactor::traffic::{Counts, TrafficCounts},
    report::{Compression, Rebuild, WhenFull},
};
use anyhow::{Context, Result, bail, ensure};
use engine::volume::{PoolError, Unit, Volume, VolumeError};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the protocol, incremented with every change of the messages. A daemon and a command of different versions
/// refuse each other.
pub const PROTOCOL: u32 = 22;

/// Most bytes of a request.
pub const MAX_REQUEST: usize = 64 << 10;

/// Most bytes of an answer; a report of a hundred thousand zones takes a tenth of it.
const MAX_ANSWER: u64 = 128 << 20;

/// Most bytes of the answer to `About`: fewer, since the peer may not be a daemon of zoneraid.
const MAX_ABOUT: u64 = 1 << 20;

/// A line in either direction.
#[derive(Serialize, Deserialize)]
pub struct Line<T> {
    pub protocol: u32,
    #[serde(flatten)]
    pub content: T,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Request {
    /// [`About`] the daemon and its array.
    About,
    /// A [`crate::report::Status`].
    Status,
    /// Counters of block devices and drives: [`TrafficReport`].
    Traffic,
    /// [`crate::report::Zones`] for all zones, or one.
    Zones { zone: Option<u32> },
    /// Takes a member out: [`crate::report::FailReport`].
    Fail { member: MemberName },
    /// Replaces a member. It is copied, or rebuilt if it is out or if `now` is set: [`crate::report::RebuildReport`].
    Replace { member: MemberName, drive: PathBuf, now: bool, yes: bool },
    /// Cancels the running copy, that of the member or to the drive if one is named: [`crate::report::FailReport`], or
    /// nothing if there is no such copy.
    CancelCopy { member: Option<MemberName> },
    /// Continues an interrupted rebuild, or follows the running one: [`crate::report::RebuildReport`].
    Rebuild,
    /// Starts, pauses or ends a scrub: [`crate::report::scrub::ScrubStatus`].
    Scrub(ScrubRequest),
    /// Describes the drive of a member: [`crate::report::ExamineReport`].
    Examine { drive: PathBuf },
    /// Makes this host the owner of the array: [`crate::report::OwnerReport`].
    Adopt,
    /// Sets whether the array starts automatically on its host: [`crate::report::OwnerReport`].
    Autostart { yes: bool },
    /// Sets the error limit: [`crate::report::OwnerReport`].
    ErrorLimit { limit: u32 },
    /// Changes the volume of the array, or that `on` a namespace, or one of its pool: [`crate::report::VolumeSet`].
    SetVolume { on: Option<String>, volume: Option<String>, change: VolumeChange },
    /// Adds a volume to the pool of the array, or to that `on` a namespace, and serves it:
    /// [`crate::report::PoolVolumeReport`].
    CreateVolume { on: Option<String>, wanted: WantedVolume },
    /// Removes a volume of a pool with its data, or the snapshot VOLUME@SNAPSHOT.
    RemoveVolume { on: Option<String>, volume: String, yes: bool },
    /// Makes snapshots of volumes of a pool, all of the same moment: a [`crate::report::SnapshotReport`] for each.
    SnapshotVolumes { on: Option<String>, snapshots: Vec<SnapshotName> },
    /// Adds a clone of a snapshot to its pool, and serves it: [`crate::report::PoolVolumeReport`].
    CloneSnapshot { on: Option<String>, snapshot: SnapshotName, name: String },
    /// Gives a volume of a pool the contents of a snapshot, without its block device meanwhile: the removed
    /// [`SnapshotName`]s.
    RollBackVolume { on: Option<String>, to: SnapshotName, confirmed: Confirmed },
    /// Compares a snapshot with a later one of its volume, or with the volume: [`crate::report::ChangedRange`]s.
    CompareSnapshot { on: Option<String>, snapshot: SnapshotName, to: Option<String> },
    /// Counts the space of the volumes of a pool and of their snapshots, for the status.
    CountSpace { on: Option<String> },
    /// Adds a namespace with its block device: [`crate::report::Division`].
    CreateNamespace(NewNamespace),
    /// Changes the size of a namespace to at least this many blocks: [`crate::report::Division`].
    ResizeNamespace { namespace: String, blocks: u64 },
    /// Sets limits, floors and latency of a namespace: [`crate::report::Division`].
    Qos { namespace: String, qos: NewQos },
    /// Removes a namespace with its data: [`crate::report::Division`].
    RemoveNamespace { namespace: String, yes: bool },
    /// Takes the block devices down and ends the daemon: [`StopReport`].
    Stop,
}

/// What to do with the scrub of an array.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum ScrubRequest {
    /// Starts it, or continues a paused one, with a limit in bytes a second.
    Start {
        since_last: bool,
        rate: Option<u64>,
    },
    Pause,
    Stop,
    /// Only reports.
    Status,
}

/// Changes to a volume; `None` leaves a property unchanged.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct VolumeChange {
    /// Compression of new data, and its unit.
    pub compression: Option<Compression>,
    pub unit_bytes: Option<u64>,
    /// Blocks of the reserve that new blocks may use until the next start.
    pub lent_blocks: Option<u64>,
    pub when_full: Option<WhenFull>,
    /// Changes of limits, floors and latency target.
    pub qos: QosChange,
    /// Blocks of space that are guaranteed to a volume of a pool with its snapshots; 0 for none.
    pub guaranteed_blocks: Option<u64>,
    /// Number of blocks.
    pub blocks: Option<u64>,
}

impl VolumeChange {
    /// Applies the changes.
    ///
    /// # Errors
    /// It is a snapshot; a unit, a loan, a guarantee or a size is impossible; it has no limits, floors or guarantee, as it is none
    /// of a pool; or the volume has failed.
    pub async fn carry_out(self, volume: &Volume) -> Result<()> {
        ensure!(!volume.is_snapshot(), PoolError::IsSnapshot);
        let VolumeChange { compression, unit_bytes, lent_blocks, when_full, qos, .. } = self;
        let status = volume.status();
        if !qos.is_none() {
            volume.set_qos(move |present| qos.apply(present)).await?;
        }
        if compression.is_some() || unit_bytes.is_some() {
            let unit = unit_bytes.map_or(Some(status.unit), Unit::from_bytes);
            let codec = compression.map_or(status.codec, |compression| compression.0);
            volume.compress(codec, unit.context("invalid compression unit")?).await?;
        }
        if let Some(WhenFull(seconds)) = when_full {
            volume.queue_writes(seconds).await?;
        }
        if let Some(blocks) = self.guaranteed_blocks {
            volume.guarantee(blocks).await?;
        }
        if let Some(blocks) = lent_blocks {
            ensure!(status.reserve > 0, "the volume has no reserve, since it is not larger than its space");
            volume.lend(blocks);
        }
        if let Some(blocks) = self.blocks {
            match volume.resize(blocks).await {
                Err(VolumeError::Shrinks { have }) => {
                    bail!(
                        "the volume has {}, and only a volume of a pool can become smaller",
                        show(bytes(have))
                    )
                }
                Err(VolumeError::DataBehindEnd { last, to }) => bail!(
                    "the volume has data up to byte {} ({}), and its size is unchanged: shrink its file system to the new \
                     size first, and discard the end, blkdiscard -o {} DEVICE",
                    bytes(last + 1),
                    show(bytes(last + 1)),
                    bytes(to)
                ),
                Err(error @ VolumeError::Device(_)) => {
                    return Err(error).context("the volume may have its former size or the new one");
                }
                resized => resized.context("the size of the volume is unchanged")?,
            }
        }
        Ok(())
    }
}

impl Request {
    /// Most bytes of a line of the answer.
    pub fn most_answered(&self) -> u64 {
        if matches!(self, Request::About) { MAX_ABOUT } else { MAX_ANSWER }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Note(String),
    Progress(Rebuild),
    /// The requested object. Last line.
    Done(serde_json::Value),
    /// Why the request failed. Last line.
    Error(String),
}

/// The array of a daemon, and its devices.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct About {
    pub name: String,
    pub uuid: String,
    pub pid: u32,
    pub block_device: Option<PathBuf>,
    /// Link to the block device by the name of the array.
    pub link: Option<PathBuf>,
    /// Block devices of its namespaces, or of the volumes of its pool.
    pub namespaces: Vec<NamespaceDevice>,
    pub level: String,
    /// Number of members, missing ones included.
    pub members: u32,
    pub policy: String,
    /// Number of zones of a drive that are used as one.
    pub aggregate: u32,
    /// Absolute paths.
    pub drives: Vec<PathBuf>,
}

/// Counters of block devices and drives since the start of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrafficReport {
    pub devices: Vec<TrafficDevice>,
    pub drives: Vec<TrafficDrive>,
    /// Turns of the daemon's event loop, with their durations.
    pub turns: Counts,
}

/// Counters of a block device or an NBD client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrafficDevice {
    /// Name of the namespace, or of the volume of a pool; `None` for the array itself.
    pub namespace: Option<String>,
    /// Number of an NBD client; its requests are also counted for the volume.
    pub client: Option<u64>,
    pub counted: TrafficCounts,
}

/// Counters of a drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrafficDrive {
    /// Absolute path.
    pub drive: PathBuf,
    /// Role as a member; `None` while the drive is no member.
    pub role: Option<u32>,
    pub counted: TrafficCounts,
}

/// A namespace, or a volume of a pool, with a block device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamespaceDevice {
    pub name: String,
    /// UUID of its exports to other hosts.
    pub uuid: String,
    pub block_device: PathBuf,
    /// Link to the block device by the names of array and namespace.
    pub link: Option<PathBuf>,
}

impl About {
    /// All block devices, with the links to them.
    pub fn devices(&self) -> impl Iterator<Item = (&PathBuf, Option<&PathBuf>)> {
        let own = self.block_device.iter().map(|device| (device, self.link.as_ref()));
        let namespaces = self.namespaces.iter();
        own.chain(namespaces.map(|namespace| (&namespace.block_device, namespace.link.as_ref())))
    }

    /// The block device at `path`, and the link to it.
    pub fn device(&self, path: &Path) -> Option<(&PathBuf, Option<&PathBuf>)> {
        self.devices().find(|(device, _)| same_file(device, path))
    }
}

/// Result of `stop`.
#[derive(Clone, Serialize, Deserialize)]
pub struct StopReport {
    pub array: String,
    pub uuid: String,
}
