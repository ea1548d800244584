//! Volumes of the pool on an array: changes of them, by the daemon of the array or by a command.

use super::{name::SnapshotName, qos::NewQos};
use crate::{
    process::{
        output::{new_uuid, quoted, uuid},
        size::{bytes, show, total},
    },
    report::{ChangedRange, Compression, PoolVolumeReport, RatesReport, SnapshotReport, WhenFull},
};
use anyhow::{Context, Result, anyhow, ensure};
use engine::volume::{NewSnapshot, NewVolume, Pool, PoolError, SectorSize, Unit, Volume, VolumeError};
use serde::{Deserialize, Serialize};

/// A volume to be added to a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WantedVolume {
    pub name: String,
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Logical sector size.
    pub sector_bytes: u32,
    /// Compression of its data, and its unit.
    pub compression: Compression,
    pub unit_bytes: u64,
    /// Limits, floors and latency target of its reads and writes.
    pub qos: NewQos,
    /// Blocks of space that are guaranteed to it; 0 for none.
    pub guaranteed_blocks: u64,
}

/// What the user has confirmed about the return of a volume to a snapshot: that later data is lost, and that later snapshots
/// are removed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Confirmed {
    pub yes: bool,
    pub remove_later: bool,
}

/// Name of what carries a volume or a pool: an array, or the namespace `on` it.
pub fn carrier(array: &str, on: Option<&str>) -> String {
    on.map_or_else(|| array.into(), |on| format!("{array}/{on}"))
}

/// The pool on an array.
pub struct ArrayPool {
    pub pool: Pool,
    /// The array as the user called it.
    pub array: String,
}

impl ArrayPool {
    /// Adds a volume.
    ///
    /// # Errors
    /// The name is taken, or the size is impossible.
    pub async fn add(&self, wanted: &WantedVolume) -> Result<Volume> {
        let new = NewVolume {
            name: wanted.name.clone(),
            uuid: new_uuid()?,
            blocks: wanted.blocks,
            sector: SectorSize::from_bytes(wanted.sector_bytes).context("invalid sector size")?,
            codec: wanted.compression.0,
            unit: Unit::from_bytes(wanted.unit_bytes).context("invalid compression unit")?,
            qos: wanted.qos.into(),
            guaranteed: wanted.guaranteed_blocks,
        };
        self.pool.add(new).await.map_err(|error| self.explain(error))
    }

    /// Makes snapshots of different volumes, all of the same moment.
    ///
    /// # Errors
    /// A volume does not exist, is given twice or is a clone, a name is taken, or there is no room.
    pub async fn snapshot(&self, names: &[SnapshotName]) -> Result<Vec<Volume>> {
        let mut new = Vec::new();
        for SnapshotName { volume, snapshot } in names {
            new.push(NewSnapshot { volume: volume.clone(), name: snapshot.clone(), uuid: new_uuid()? });
        }
        self.pool.snapshot(new).await.map_err(|error| self.explain(error))
    }

    /// Adds a clone of a snapshot.
    ///
    /// # Errors
    /// There is no such snapshot, or the name is taken.
    pub async fn add_clone(&self, of: &SnapshotName, name: &str) -> Result<Volume> {
        let added = self.pool.clone_of((&of.volume, &of.snapshot), name, new_uuid()?).await;
        added.map_err(|error| self.explain(error))
    }

    /// The ranges of a volume that may differ between a snapshot and a later one, or now.
    ///
    /// # Errors
    /// There is no such snapshot, or the second one is not later.
    pub async fn changed(&self, since: &SnapshotName, to: Option<&str>) -> Result<Vec<ChangedRange>> {
        let changed = self.pool.changed(&since.volume, &since.snapshot, to).await;
        changed.map(|ranges| ChangedRange::of(&ranges)).map_err(|error| self.explain(error))
    }

    /// The snapshots of a volume that are later than one to which it is to return, the latest first, if these are to be
    /// removed and later data is to be lost.
    ///
    /// # Errors
    /// There is no such snapshot, or a clone of a later one; or not everything that would be lost is to be lost.
    pub async fn lost_by_return(
        &self,
        to: &SnapshotName,
        Confirmed { yes, remove_later }: Confirmed,
    ) -> Result<Vec<SnapshotName>> {
        let changed = self.changed(to, None).await?;
        let snapshots = self.pool.snapshots(&to.volume).map_err(|error| self.explain(error))?;
        let names = snapshots.iter().filter_map(Volume::name).rev();
        let later: Vec<String> = names.take_while(|name| *name != to.snapshot).collect();
        ensure!(
            later.is_empty() || remove_later,
            "'{}/{}' has later snapshots: {}; remove them first, or all of them with --remove-later",
            self.array,
            to.volume,
            later.join(", ")
        );
        let snapshots = match &later[..] {
            [] => String::new(),
            later => format!(", and the snapshots {}", later.join(", ")),
        };
        ensure!(
            yes,
            "this destroys everything that was written to {}/{} since the snapshot '{}', up to {}{snapshots}: confirm with --yes",
            self.array,
            to.volume,
            to.snapshot,
            show(total(changed.iter().map(|range| range.length_bytes)))
        );
        let of_volume = |snapshot| SnapshotName { volume: to.volume.clone(), snapshot };
        let later: Vec<SnapshotName> = later.into_iter().map(of_volume).collect();
        for snapshot in &later {
            self.doomed(&snapshot.to_string(), yes)?;
        }
        Ok(later)
    }

    /// Removes the `later` snapshots of a volume, and gives it the contents of one that is its latest then.
    ///
    /// # Errors
    /// There is a clone of a later one; those of the device.
    pub async fn roll_back(&self, to: &SnapshotName, later: &[SnapshotName]) -> Result<()> {
        for snapshot in later {
            self.remove(&snapshot.to_string()).await?;
        }
        self.pool.roll_back(&to.volume, &to.snapshot).await.map_err(|error| self.explain(error))
    }

    /// Counts the space of the volumes and snapshots, for later reports.
    ///
    /// # Errors
    /// A page of the map cannot be read.
    pub async fn count_space(&self) -> Result<()> {
        self.pool.space_use().await.map(drop).map_err(|error| self.explain(error))
    }

    /// The volume called `name`, or the snapshot VOLUME@SNAPSHOT.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, name: &str) -> Result<Volume> {
        self.pool.find(name).map_err(|error| self.explain(error))
    }

    /// As [`ArrayPool::find`], for its removal: requires `yes`.
    ///
    /// # Errors
    /// There is none, it is not to be removed, or it has snapshots or clones.
    pub fn doomed(&self, name: &str, yes: bool) -> Result<Volume> {
        let found = self.find(name)?;
        let names =
            |volumes: &[Volume]| volumes.iter().filter_map(Volume::name).collect::<Vec<_>>().join(", ");
        if found.is_snapshot() {
            let mut clones = self.pool.volumes();
            clones.retain(|volume| volume.clone_of().as_deref() == Some(name));
            ensure!(clones.is_empty(), self.explain(PoolError::HasClones { names: names(&clones) }.into()));
            ensure!(yes, "this destroys the snapshot {}/{name}: confirm with --yes", self.array);
        } else {
            let snapshots = self.pool.snapshots(name)?;
            let has = PoolError::HasSnapshots { names: names(&snapshots) };
            ensure!(snapshots.is_empty(), self.explain(has.into()));
            ensure!(yes, "this destroys {}/{name} and its data: confirm with --yes", self.array);
        }
        Ok(found)
    }

    /// Removes a volume with its data, or a snapshot.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let is_snapshot = self.find(name)?.is_snapshot();
        let removed = match SnapshotName::new(name).filter(|_| is_snapshot) {
            Some(of) => self.pool.remove_snapshot(&of.volume, &of.snapshot).await,
            None => self.pool.remove(name).await,
        };
        removed.map_err(|error| self.explain(error))
    }

    pub async fn rename(&self, name: &str, to: &str) -> Result<()> {
        self.pool.rename(name, to).await.map_err(|error| self.explain(error))
    }

    /// Translates an error into the terms of the command line.
    fn explain(&self, error: VolumeError) -> anyhow::Error {
        let array = &self.array;
        match error {
            VolumeError::Pool(PoolError::NoVolume { name }) => {
                let volumes = self.pool.volumes();
                let names: Vec<String> =
                    volumes.iter().filter_map(Volume::name).map(|name| quoted(&name)).collect();
                let there = if names.is_empty() { "none".into() } else { names.join(", ") };
                anyhow!("'{array}' has no volume '{name}'; there are {there}")
            }
            error => anyhow!("'{array}': {error}"),
        }
    }
}

/// The volumes of a pool by name, each with its snapshots behind it.
pub fn volumes_with_snapshots(pool: &Pool) -> Vec<(String, Volume)> {
    let mut all = Vec::new();
    for (name, volume) in pool.volumes().into_iter().filter_map(|volume| Some((volume.name()?, volume))) {
        all.push((name.clone(), volume));
        let snapshots = pool.snapshots(&name).into_iter().flatten();
        all.extend(snapshots.filter_map(|snapshot| Some((format!("{name}@{}", snapshot.name()?), snapshot))));
    }
    all
}

/// State of a snapshot of a volume of a pool.
pub fn snapshot_report(snapshot: &Volume) -> SnapshotReport {
    SnapshotReport {
        name: snapshot.name().unwrap_or_default(),
        uuid: uuid(&snapshot.uuid()),
        size_bytes: bytes(snapshot.blocks()),
        allocated_bytes: bytes(snapshot.allocated().unwrap_or(0)),
        own_bytes: snapshot.counted_space().map(|space| space.own),
        shared_bytes: snapshot.counted_space().map(|space| space.shared),
    }
}

/// State of a volume of a pool; without the block device that serves it.
pub fn report(pool: &Pool, volume: &Volume) -> PoolVolumeReport {
    let (status, name) = (volume.status(), volume.name().unwrap_or_default());
    let snapshots = pool.snapshots(&name).unwrap_or_default();
    PoolVolumeReport {
        name,
        uuid: uuid(&volume.uuid()),
        size_bytes: bytes(status.blocks),
        allocated_bytes: bytes(volume.allocated().unwrap_or(0)),
        own_bytes: volume.counted_space().map(|space| space.own),
        shared_bytes: volume.counted_space().map(|space| space.shared),
        sector_bytes: status.sector as u32,
        compression: Compression(status.codec),
        unit_bytes: status.unit.bytes() as u64,
        when_full: WhenFull(status.queue_seconds),
        limits: RatesReport::of(status.qos.limits),
        floors: RatesReport::of(status.qos.floors),
        latency_us: Some(status.qos.latency_us).filter(|us| *us > 0),
        held_to_bytes_per_second: status.held_to.map(bytes),
        floors_out_of_reach: status.out_of_reach[0],
        latency_out_of_reach: status.out_of_reach[1],
        guaranteed_bytes: bytes(status.guaranteed),
        block_device: None,
        link: None,
        lost: None,
        snapshots: snapshots.iter().map(snapshot_report).collect(),
        clone_of: volume.clone_of(),
    }
}
