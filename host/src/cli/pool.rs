//! `volume` for volumes of a pool, ARRAY/NAME: of an array that this process runs for the duration of the command, or that
//! its daemon runs.
//!
//! The first volume makes an empty array a pool.

use super::{daemon::ask, interrupt, namespace, status::volumes_text};
use crate::{
    control::{
        client::Client,
        name::{ArrayName, NamespaceName},
        pool::{self, ArrayPool, WantedVolume},
        protocol::{Request, VolumeChange},
    },
    members::{self, Session, find_running},
    process::{
        output::{HEALTHY, Output, new_uuid, quoted},
        size::show,
    },
    report::{
        Compression, PoolVolumeReport, Status, VolumeReport, VolumeSet, hidden, is_there, no_start, no_volume,
    },
};
use anyhow::{Context, Result, bail, ensure};
use engine::volume::{
    self, Opened, Pool, SectorSize, Unit, Volume, VolumeCreateOptions, VolumeError, VolumeOptions,
};
use serde::Serialize;

/// The array of a volume ARRAY/NAME.
pub enum PoolArray {
    /// A daemon runs it.
    Running(Box<Client>),
    Here(Session),
}

#[derive(Serialize)]
struct PoolVolumeOutput {
    array: String,
    #[serde(flatten)]
    volume: PoolVolumeReport,
}

#[derive(Serialize)]
struct VolumeListOutput {
    array: String,
    /// Data that the pool may hold without compression, beside the reserve for overwrites.
    usable_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    volumes: Vec<PoolVolumeReport>,
}

#[derive(Serialize)]
struct VolumeRenameOutput {
    array: String,
    name: String,
    new_name: String,
}

#[derive(Serialize)]
struct VolumeRemoveOutput {
    array: String,
    name: String,
}

/// The array of the volume of a pool that `name` stands for; `None` if it is an array or a namespace.
pub fn of(output: Output, name: &ArrayName) -> Result<Option<(PoolArray, NamespaceName)>> {
    let Some(below) = NamespaceName::meant_by(name) else { return Ok(None) };
    Ok(array_of(output, &below)?.map(|array| (array, below)))
}

/// As [`of`], without the name.
fn array_of(output: Output, name: &NamespaceName) -> Result<Option<PoolArray>> {
    if let Some(mut client) = find_running(&name.array)? {
        let status: Status = ask(output, &mut client, &Request::Status)?;
        return Ok(status.namespaces.is_none().then_some(PoolArray::Running(Box::new(client))));
    }
    let session = members::assembled(&name.array)?;
    if namespace::is_divided(&session)? {
        let reactor = session.reactor.clone();
        drop(session);
        // Tasks hold the drives, which the caller opens again.
        reactor.runtime().clear();
        return Ok(None);
    }
    Ok(Some(PoolArray::Here(session)))
}

/// The array of a volume that has to be one of a pool.
fn needed(output: Output, name: &NamespaceName) -> Result<PoolArray> {
    let without = || format!("'{}' is divided into namespaces, and carries no pool of volumes", name.array);
    array_of(output, name)?.with_context(without)
}

/// Opens the pool on an array; `None` if the array carries nothing.
fn opened(session: &Session) -> Result<Option<ArrayPool>> {
    let (called, device) = (session.array.status().name, session.device.clone());
    let there = session.wait(Volume::is_on(device.clone()))??;
    if !is_there(there, "a volume", &called, &session.array.status())? {
        return Ok(None);
    }
    let opening = volume::open(session.reactor.runtime(), device, VolumeOptions::default());
    let opened = match session.wait(opening)? {
        // Its creation was interrupted.
        Err(VolumeError::NotThere) => return Ok(None),
        opened => opened.map_err(|error| no_start(&called, error))?,
    };
    match opened {
        Opened::Pool(pool) => {
            let still_takes = || format!("a volume of '{called}' that was removed still takes space");
            session.wait(pool.finish_removals())?.with_context(still_takes)?;
            Ok(Some(ArrayPool { pool, array: called }))
        }
        Opened::Volume(_) => bail!(
            "'{called}' carries one volume, which has all of it: a pool of several volumes needs an empty array"
        ),
    }
}

/// As [`opened`]; the pool has to be there.
fn existing(session: &Session) -> Result<ArrayPool> {
    opened(session)?.with_context(|| no_volume(&session.array.status().name))
}

/// Writes a checkpoint, so that the next start has nothing to recover.
fn stop(session: &Session, pool: &ArrayPool) -> Result<()> {
    session
        .wait(pool.pool.space().stop())?
        .with_context(|| format!("the last checkpoint of '{}' failed", pool.array))
}

impl PoolArray {
    /// Adds a volume of `blocks` blocks of 4 KiB.
    pub fn create(
        self,
        output: Output,
        name: &NamespaceName,
        blocks: u64,
        (compression, unit, sector): (Compression, Unit, SectorSize),
    ) -> Result<u8> {
        let wanted = WantedVolume {
            name: name.name.clone(),
            blocks,
            sector_bytes: sector as u32,
            compression,
            unit_bytes: unit.bytes() as u64,
        };
        let (array, volume, is_running) = match self {
            PoolArray::Running(mut client) => {
                let volume = ask(output, &mut client, &Request::CreateVolume(wanted))?;
                (client.about.name.clone(), volume, true)
            }
            PoolArray::Here(session) => {
                let pool = match opened(&session)? {
                    Some(pool) => pool,
                    None => made(&session)?,
                };
                let volume = session.wait(pool.add(&wanted))??;
                stop(&session, &pool)?;
                (pool.array.clone(), pool::report(&volume), false)
            }
        };
        let created = PoolVolumeOutput { array, volume };
        output.print(&created, |PoolVolumeOutput { array, volume }| {
            let device = match (&volume.link, &volume.block_device) {
                (Some(device), _) | (None, Some(device)) => format!("; its block device is {device}"),
                _ if is_running => "; NBD clients find it by its name".into(),
                _ => format!("; as a block device: zoneraid start {}", quoted(array)),
            };
            format!("{array}/{} is created: {}{device}\n", volume.name, show(volume.size_bytes))
        })?;
        Ok(HEALTHY)
    }

    /// Changes a volume; also whether a daemon did it.
    pub fn set(
        self,
        output: Output,
        name: &NamespaceName,
        change: VolumeChange,
    ) -> Result<(VolumeSet, bool)> {
        match self {
            PoolArray::Running(mut client) => {
                let request = Request::SetVolume { volume: Some(name.name.clone()), change };
                Ok((ask(output, &mut client, &request)?, true))
            }
            PoolArray::Here(session) => {
                ensure!(
                    change.lent_blocks.is_none(),
                    "the reserve can be lent only while '{}' runs: start or serve it first",
                    name.array
                );
                let pool = existing(&session)?;
                let volume = pool.find(&name.name)?;
                session.wait(change.carry_out(&volume))??;
                stop(&session, &pool)?;
                Ok((VolumeSet::of(format!("{}/{}", pool.array, name.name), &volume.status()), false))
            }
        }
    }
}

/// Makes an empty array a pool without volumes.
fn made(session: &Session) -> Result<ArrayPool> {
    let (called, status) = (session.array.status().name, session.array.status());
    let options = VolumeCreateOptions { uuid: new_uuid()?, ..VolumeCreateOptions::default() };
    interrupt::explain({
        let called = called.clone();
        move || format!("'{called}' is empty, or a pool without volumes: run the same command again")
    });
    let created = session.wait(Pool::create(session.reactor.runtime(), session.device.clone(), options))?;
    if let Err(VolumeError::Hidden { zones }) = created {
        return Err(hidden(&zones, "a volume", &called, &status));
    }
    created.with_context(|| format!("no pool can be created on '{called}'"))?;
    existing(session)
}

/// Lists the volumes of a pool.
pub fn list(output: Output, array: &ArrayName) -> Result<u8> {
    let (name, report, volumes): (String, VolumeReport, Vec<PoolVolumeReport>) = match find_running(array)? {
        Some(mut client) => {
            let status: Status = ask(output, &mut client, &Request::Status)?;
            let none = || format!("'{}' does not carry a pool of volumes", status.name);
            let volumes = status.volumes.with_context(none)?;
            (status.name.clone(), status.volume.with_context(|| no_volume(&status.name))?, volumes)
        }
        None => {
            let session = members::assembled(array)?;
            let pool = existing(&session)?;
            let report = VolumeReport::of(&pool.pool.space().status(), 0, 0);
            (pool.array.clone(), report, pool.pool.volumes().iter().map(pool::report).collect())
        }
    };
    let VolumeReport { usable_bytes, used_bytes, free_bytes, .. } = report;
    let listed = VolumeListOutput { array: name, usable_bytes, used_bytes, free_bytes, volumes };
    output.print(&listed, |listed| {
        let VolumeListOutput { usable_bytes, used_bytes, free_bytes, volumes, .. } = listed;
        let [usable, used, free] = [usable_bytes, used_bytes, free_bytes].map(|bytes| show(*bytes));
        format!("{}pool: {used} of {usable} used, {free} free\n", volumes_text(volumes))
    })?;
    Ok(HEALTHY)
}

/// Gives a volume another name.
pub fn rename(output: Output, name: &NamespaceName, to: &str) -> Result<u8> {
    let session = match needed(output, name)? {
        PoolArray::Here(session) => session,
        PoolArray::Running(client) => bail!(
            "'{0}' runs, and its volumes keep their names meanwhile: stop it first with zoneraid stop {1}",
            client.about.name,
            quoted(&client.about.name)
        ),
    };
    let pool = existing(&session)?;
    session.wait(pool.rename(&name.name, to))??;
    stop(&session, &pool)?;
    let renamed = VolumeRenameOutput { array: pool.array, name: name.name.clone(), new_name: to.into() };
    output.print(&renamed, |renamed| format!("{name} is {}/{} now\n", renamed.array, renamed.new_name))?;
    Ok(HEALTHY)
}

/// Removes a volume with its data.
pub fn remove(output: Output, name: &NamespaceName, yes: bool) -> Result<u8> {
    let array = match needed(output, name)? {
        PoolArray::Running(mut client) => {
            let request = Request::RemoveVolume { volume: name.name.clone(), yes };
            ask::<()>(output, &mut client, &request)?;
            client.about.name.clone()
        }
        PoolArray::Here(session) => {
            let pool = existing(&session)?;
            pool.doomed(&name.name, yes)?;
            session.wait(pool.remove(&name.name))??;
            stop(&session, &pool)?;
            pool.array
        }
    };
    let removed = VolumeRemoveOutput { array, name: name.name.clone() };
    output.print(&removed, |_| format!("{name} has been removed\n"))?;
    Ok(HEALTHY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{process::output::undescribed, report::WhenFull};

    #[test]
    fn json_output_matches_schema() {
        let volume = PoolVolumeReport {
            name: "mail".into(),
            uuid: String::new(),
            size_bytes: 4096,
            allocated_bytes: 0,
            sector_bytes: 4096,
            compression: Compression(None),
            unit_bytes: 4096,
            when_full: WhenFull(0),
            block_device: None,
            link: None,
            lost: None,
        };
        let (array, name) = ("tank".to_string(), "mail".to_string());
        let listed = VolumeListOutput {
            array: array.clone(),
            usable_bytes: 0,
            used_bytes: 0,
            free_bytes: 0,
            volumes: vec![volume],
        };
        assert_eq!(undescribed(&listed, "volume-list.json"), [""; 0]);
        let volume = listed.volumes[0].clone();
        let created = PoolVolumeOutput { array: array.clone(), volume };
        assert_eq!(undescribed(&created, "volume-create-in-pool.json"), [""; 0]);
        let renamed =
            VolumeRenameOutput { array: array.clone(), name: name.clone(), new_name: "post".into() };
        assert_eq!(undescribed(&renamed, "volume-rename.json"), [""; 0]);
        assert_eq!(undescribed(&VolumeRemoveOutput { array, name }, "volume-remove.json"), [""; 0]);
    }
}
