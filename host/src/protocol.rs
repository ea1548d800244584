//! What commands and the daemon of an array say to each other: one JSON object a line, over a socket
//! that has the array's UUID for a name. A command asks; notes and progress may precede the answer.

use crate::{
    drive::same_file,
    name::MemberName,
    report::{Compression, Rebuild, WhenFull},
    tenants::{Wanted, WantedQos},
    traffic::{Counted, Counts},
};
use anyhow::{Context, Result, ensure};
use engine::volume::{Unit, Volume};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the protocol: another one whenever anything is said that was not said before. A daemon and a command of
/// different versions refuse each other.
pub const PROTOCOL: u32 = 13;

/// Most bytes of a request.
pub const MAX_REQUEST: usize = 64 << 10;

/// Most bytes of an answer: a report of a hundred thousand zones has a tenth of it.
const MAX_ANSWER: u64 = 128 << 20;

/// Most bytes of the answer to whoever asks who is there, of whom little is known.
const MAX_ABOUT: u64 = 1 << 20;

/// A line of either direction.
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
    /// What block devices and drives were asked for: [`Asked`].
    Traffic,
    /// [`crate::report::Zones`]: all, or one.
    Zones { zone: Option<u32> },
    /// Takes a member out: [`crate::report::Failed`].
    Fail { member: MemberName },
    /// Puts a drive in the place of a member, which is copied or, if it shall be `now` or is out, rebuilt:
    /// [`crate::report::Rebuilt`].
    Replace { member: MemberName, drive: PathBuf, now: bool, yes: bool },
    /// Cancels the copy that is under way, of the member or to the drive if one is given: [`crate::report::Failed`], or
    /// nothing if there is no such copy.
    CancelCopy { member: Option<MemberName> },
    /// Goes on with a rebuild, or watches the one that is going on: [`crate::report::Rebuilt`].
    Rebuild,
    /// What is on a member: [`crate::report::Examined`].
    Examine { drive: PathBuf },
    /// Makes this host the owner of the array: [`crate::report::Owned`].
    Adopt,
    /// Has the array start by itself where it belongs, or not: [`crate::report::Owned`].
    Autostart { yes: bool },
    /// Changes the volume: [`crate::report::VolumeSet`].
    SetVolume(VolumeChange),
    /// Adds a namespace, and shows it: [`crate::report::Division`].
    CreateNamespace(Wanted),
    /// Has a namespace hold so many blocks, at least: [`crate::report::Division`].
    ResizeNamespace { namespace: String, blocks: u64 },
    /// What a namespace may be asked for and gets for certain: [`crate::report::Division`].
    Qos { namespace: String, qos: WantedQos },
    /// Removes a namespace, and what is in it: [`crate::report::Division`].
    RemoveNamespace { namespace: String, yes: bool },
    /// Takes the block device down and ends the daemon: [`Stopped`].
    Stop,
}

/// What is to be changed of a volume; all else stays.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct VolumeChange {
    /// How what is written from now on is compressed, and how much of it together.
    pub compression: Option<Compression>,
    pub unit_bytes: Option<u64>,
    /// How many blocks of the reserve new blocks may take until the next start.
    pub lent_blocks: Option<u64>,
    pub when_full: Option<WhenFull>,
}

impl VolumeChange {
    /// Has the volume do so.
    pub async fn carry_out(self, volume: &Volume) -> Result<()> {
        let VolumeChange { compression, unit_bytes, lent_blocks, when_full } = self;
        let status = volume.status();
        if compression.is_some() || unit_bytes.is_some() {
            let unit = unit_bytes.map_or(Some(status.unit), Unit::from_bytes);
            let codec = compression.map_or(status.codec, |compression| compression.0);
            volume.compress(codec, unit.context("there is no unit of so many bytes")?).await?;
        }
        if let Some(WhenFull(seconds)) = when_full {
            volume.queue_writes(seconds).await?;
        }
        if let Some(blocks) = lent_blocks {
            ensure!(status.reserve > 0, "the volume has no reserve, since there is room for all of it");
            volume.lend(blocks);
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
    /// The object that the request asks for. The last line.
    Done(serde_json::Value),
    /// Why there is none. The last line.
    Error(String),
}

/// Which array a daemon runs, and how.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct About {
    pub name: String,
    pub uuid: String,
    pub pid: u32,
    pub block_device: Option<PathBuf>,
    /// The block device by the name of its array.
    pub link: Option<PathBuf>,
    /// The block devices of the namespaces into which it is divided.
    pub namespaces: Vec<NamespaceDevice>,
    pub level: String,
    /// How many members there are when none is missing.
    pub members: u32,
    pub policy: String,
    /// Zones of a drive that are used as one.
    pub aggregate: u32,
    /// Absolute paths of the members' drives.
    pub drives: Vec<PathBuf>,
}

/// What block devices and drives were asked for since the daemon was started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Asked {
    pub devices: Vec<AskedDevice>,
    pub drives: Vec<AskedDrive>,
    /// Turns of the daemon's event loop, and how long each took.
    pub turns: Counts,
}

/// A block device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AskedDevice {
    /// Of a namespace; nothing of the array.
    pub namespace: Option<String>,
    /// The number of an NBD client, of whose requests this is a part of those of the volume.
    pub client: Option<u64>,
    pub counted: Counted,
}

/// A drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AskedDrive {
    /// Its absolute path.
    pub drive: PathBuf,
    /// Which member it is; nothing if it is none yet or not any more.
    pub role: Option<u32>,
    pub counted: Counted,
}

/// A namespace that the kernel has as a block device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamespaceDevice {
    pub name: String,
    /// By which other machines know it.
    pub uuid: String,
    pub block_device: PathBuf,
    /// The block device by the names of its array and its own.
    pub link: Option<PathBuf>,
}

impl About {
    /// All block devices, with their names.
    pub fn devices(&self) -> impl Iterator<Item = (&PathBuf, Option<&PathBuf>)> {
        let own = self.block_device.iter().map(|device| (device, self.link.as_ref()));
        let namespaces = self.namespaces.iter();
        own.chain(namespaces.map(|namespace| (&namespace.block_device, namespace.link.as_ref())))
    }

    /// The block device at `path`, and its name.
    pub fn device(&self, path: &Path) -> Option<(&PathBuf, Option<&PathBuf>)> {
        self.devices().find(|(device, _)| same_file(device, path))
    }
}

/// An array that has been stopped.
#[derive(Clone, Serialize, Deserialize)]
pub struct Stopped {
    pub array: String,
    pub uuid: String,
}
