//! Volumes of the pool on an array: changes of them, by the daemon of the array or by a command.

use crate::{
    process::{output::new_uuid, output::quoted, size::bytes},
    report::{Compression, PoolVolumeReport, WhenFull},
};
use anyhow::{Context, Result, anyhow, ensure};
use engine::volume::{NewVolume, Pool, PoolError, SectorSize, Unit, Volume, VolumeError};
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
        };
        self.pool.add(new).await.map_err(|error| self.explain(error))
    }

    /// The volume called `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, name: &str) -> Result<Volume> {
        self.pool.find(name).map_err(|error| self.explain(error))
    }

    /// As [`ArrayPool::find`], for its removal: requires `yes`.
    ///
    /// # Errors
    /// There is none, or it is not to be removed.
    pub fn doomed(&self, name: &str, yes: bool) -> Result<Volume> {
        let found = self.find(name)?;
        ensure!(yes, "this destroys {}/{name} and its data: confirm with --yes", self.array);
        Ok(found)
    }

    pub async fn remove(&self, name: &str) -> Result<()> {
        self.pool.remove(name).await.map_err(|error| self.explain(error))
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

/// State of a volume of a pool; without the block device that serves it.
pub fn report(volume: &Volume) -> PoolVolumeReport {
    let status = volume.status();
    PoolVolumeReport {
        name: volume.name().unwrap_or_default(),
        uuid: crate::process::output::uuid(&volume.uuid()),
        size_bytes: bytes(status.blocks),
        allocated_bytes: bytes(volume.allocated().unwrap_or(0)),
        sector_bytes: status.sector as u32,
        compression: Compression(status.codec),
        unit_bytes: status.unit.bytes() as u64,
        when_full: WhenFull(status.queue_seconds),
        block_device: None,
        link: None,
        lost: None,
    }
}
