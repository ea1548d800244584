//! `volume` for volumes of a pool: ARRAY/NAME, or ARRAY/NAMESPACE/NAME of a pool on a namespace. This process runs the array
//! for the duration of the command, or its daemon runs it.
//!
//! The first volume makes an empty array or namespace a pool.

use super::{
    daemon::ask,
    interrupt, namespace,
    status::{set_aside_text, volumes_text},
};
use crate::{
    control::{
        client::Client,
        name::{ArrayName, NamespaceName, SnapshotName, SnapshotOfArray},
        pool::{self, ArrayPool, Confirmed, WantedVolume, carrier},
        protocol::{Request, VolumeChange},
        qos::NewQos,
    },
    members::{self, Session, find_running},
    process::{
        output::{HEALTHY, Output, new_uuid, quoted, table},
        size::{show, total},
    },
    report::{
        ChangedRange, Compression, PoolVolumeReport, SnapshotReport, Status, VolumeReport, VolumeSet, hidden,
        is_there, no_start, no_volume,
    },
};
use anyhow::{Context, Result, bail, ensure};
use engine::volume::{
    self, NoVolume, Opened, Pool, SectorSize, Unit, Volume, VolumeCreateOptions, VolumeError, VolumeOptions,
};
use serde::Serialize;

/// The array or namespace of a volume of a pool.
pub enum PoolArray {
    /// A daemon runs it, and the pool is on this namespace, if it is not on the array.
    Running(Box<Client>, Option<String>),
    /// It is the device of the session, and has this name.
    Here(Box<Session>, String),
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
    /// Part of the space that is not used, and free only for the volumes to which it is guaranteed.
    set_aside_bytes: u64,
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
    /// VOLUME, or VOLUME@SNAPSHOT.
    name: String,
}

#[derive(Serialize)]
struct VolumeSnapshotOutput {
    array: String,
    snapshots: Vec<SnapshotOutput>,
}

#[derive(Serialize)]
struct SnapshotOutput {
    volume: String,
    #[serde(flatten)]
    snapshot: SnapshotReport,
}

#[derive(Serialize)]
struct VolumeRollbackOutput {
    array: String,
    #[serde(flatten)]
    to: SnapshotName,
    removed_snapshots: Vec<String>,
}

#[derive(Serialize)]
struct VolumeDiffOutput {
    array: String,
    #[serde(flatten)]
    since: SnapshotName,
    /// The later snapshot; `None` for the volume itself.
    later: Option<String>,
    total_bytes: u64,
    ranges: Vec<ChangedRange>,
}

/// The array or namespace of the volume of a pool that `name` stands for; `None` if it is an array or a namespace.
pub fn of(output: Output, name: &ArrayName) -> Result<Option<(PoolArray, NamespaceName)>> {
    if let Some((on, _)) = NamespaceName::of_volume_on_namespace(name)
        && let Some(below) = NamespaceName::new(&name.to_string())
    {
        return Ok(Some((namespace_of(output, on)?, below)));
    }
    let Some(below) = NamespaceName::meant_by(name) else { return Ok(None) };
    Ok(array_of(output, &below.array)?.map(|array| (array, below)))
}

/// The array or namespace `name`, which may carry a pool; `None` if it is an array that is divided into namespaces.
fn array_of(output: Output, name: &ArrayName) -> Result<Option<PoolArray>> {
    if let Some(below) = NamespaceName::meant_by(name) {
        return namespace_of(output, below).map(Some);
    }
    if let Some(mut client) = find_running(name)? {
        let status: Status = ask(output, &mut client, &Request::Status)?;
        return Ok(status.namespaces.is_none().then_some(PoolArray::Running(Box::new(client), None)));
    }
    let session = members::assembled(name)?;
    if namespace::is_divided(&session)? {
        namespace::release(session);
        return Ok(None);
    }
    let called = session.array.status().name;
    Ok(Some(PoolArray::Here(Box::new(session), called)))
}

/// As [`array_of`], for a namespace.
fn namespace_of(output: Output, below: NamespaceName) -> Result<PoolArray> {
    let Some(mut client) = find_running(&below.array)? else {
        let called = below.to_string();
        return Ok(PoolArray::Here(Box::new(namespace::opened(&below)?), called));
    };
    let status: Status = ask(output, &mut client, &Request::Status)?;
    let list = status.namespaces.map(|division| division.list).unwrap_or_default();
    ensure!(
        list.iter().any(|namespace| namespace.name == below.name),
        "'{}' runs, and has no namespace '{}'",
        status.name,
        below.name
    );
    Ok(PoolArray::Running(Box::new(client), Some(below.name)))
}

/// The array or namespace of a volume that has to be one of a pool.
fn needed(output: Output, name: &ArrayName) -> Result<PoolArray> {
    let without = || {
        format!(
            "'{name}' is divided into namespaces: a volume of a pool on one of these is {name}/NAMESPACE/NAME, and a volume \
             that has all of a namespace is removed with that: zoneraid namespace remove"
        )
    };
    array_of(output, name)?.with_context(without)
}

/// As [`needed`], for a change during which the array must not run: why, and what else there is.
fn stopped(output: Output, name: &ArrayName, why: &str, instead: &str) -> Result<(Box<Session>, String)> {
    match needed(output, name)? {
        PoolArray::Here(session, called) => Ok((session, called)),
        PoolArray::Running(client, _) => bail!(
            "'{0}' runs, and {why} meanwhile: stop it first with zoneraid stop {1}{instead}",
            client.about.name,
            quoted(&client.about.name)
        ),
    }
}

/// Opens the pool on the device of a session, which is `called` so; `None` if it carries nothing.
fn opened(session: &Session, called: &str) -> Result<Option<ArrayPool>> {
    let device = session.device.clone();
    let there = session.wait(Volume::is_on(device.clone()))??;
    if !is_there(there, "a volume", called, &session.array.status())? {
        return Ok(None);
    }
    let opening = volume::open(session.reactor.runtime(), device, VolumeOptions::default());
    let opened = match session.wait(opening)? {
        // Its creation was interrupted.
        Err(VolumeError::NotThere) => return Ok(None),
        opened => opened.map_err(|error| no_start(called, error))?,
    };
    match opened {
        Opened::Pool(pool) => {
            let still_takes = || format!("a volume of '{called}' that was removed still takes space");
            session.wait(pool.finish_removals())?.with_context(still_takes)?;
            Ok(Some(ArrayPool { pool, array: called.into() }))
        }
        Opened::Volume(_) => bail!(
            "'{called}' carries one volume, which has all of it: a pool of several volumes needs an empty array or \
             namespace"
        ),
    }
}

/// As [`opened`]; the pool has to be there.
fn existing(session: &Session, called: &str) -> Result<ArrayPool> {
    opened(session, called)?.with_context(|| no_volume(called))
}

/// The error of a namespace with too few active zones for a volume.
pub fn few_active(namespace: &str, active: u32, least: u32) -> String {
    format!(
        "no volume can be created on '{namespace}': a volume needs {least} active zones, and the namespace has {active}; \
         remove it and create it again with --active {least}"
    )
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
        (qos, guaranteed_blocks): (NewQos, u64),
    ) -> Result<u8> {
        let wanted = WantedVolume {
            name: name.name.clone(),
            blocks,
            sector_bytes: sector as u32,
            compression,
            unit_bytes: unit.bytes() as u64,
            qos,
            guaranteed_blocks,
        };
        let (array, volume, is_running) = match self {
            PoolArray::Running(mut client, on) => {
                let array = carrier(&client.about.name, on.as_deref());
                (array, ask(output, &mut client, &Request::CreateVolume { on, wanted })?, true)
            }
            PoolArray::Here(session, called) => {
                let pool = match opened(&session, &called)? {
                    Some(pool) => pool,
                    None => made(&session, &called)?,
                };
                let volume = session.wait(pool.add(&wanted))??;
                stop(&session, &pool)?;
                (pool.array.clone(), pool::report(&pool.pool, &volume), false)
            }
        };
        print_created(output, PoolVolumeOutput { array, volume }, is_running)
    }

    /// Changes a volume; also whether a daemon did it.
    pub fn set(
        self,
        output: Output,
        name: &NamespaceName,
        change: VolumeChange,
    ) -> Result<(VolumeSet, bool)> {
        match self {
            PoolArray::Running(mut client, on) => {
                let request = Request::SetVolume { on, volume: Some(name.name.clone()), change };
                Ok((ask(output, &mut client, &request)?, true))
            }
            PoolArray::Here(session, called) => {
                ensure!(
                    change.lent_blocks.is_none(),
                    "the reserve can be lent only while '{}' runs: start or serve it first",
                    name.array
                );
                let pool = existing(&session, &called)?;
                let volume = pool.find(&name.name)?;
                session.wait(change.carry_out(&volume))??;
                stop(&session, &pool)?;
                Ok((VolumeSet::of(format!("{}/{}", pool.array, name.name), &volume.status()), false))
            }
        }
    }
}

/// Prints a new volume; also whether a daemon serves it.
fn print_created(output: Output, created: PoolVolumeOutput, is_running: bool) -> Result<u8> {
    output.print(&created, |PoolVolumeOutput { array, volume }| {
        let device = match (&volume.link, &volume.block_device) {
            (Some(device), _) | (None, Some(device)) => format!("; its block device is {device}"),
            _ if is_running => "; NBD clients find it by its name".into(),
            _ => {
                let array = array.split_once('/').map_or(&**array, |(array, _)| array);
                format!("; as a block device: zoneraid start {}", quoted(array))
            }
        };
        let origin = volume.clone_of.as_ref();
        let origin = origin.map_or(String::new(), |origin| format!(" as a clone of {array}/{origin}"));
        format!("{array}/{} is created{origin}: {}{device}\n", volume.name, show(volume.size_bytes))
    })?;
    Ok(HEALTHY)
}

/// Makes an empty array or namespace, which is `called` so, a pool without volumes.
fn made(session: &Session, called: &str) -> Result<ArrayPool> {
    let status = session.array.status();
    let options = VolumeCreateOptions { uuid: new_uuid()?, ..VolumeCreateOptions::default() };
    interrupt::explain({
        let called = called.to_string();
        move || format!("'{called}' is empty, or a pool without volumes: run the same command again")
    });
    let created = session.wait(Pool::create(session.reactor.runtime(), session.device.clone(), options))?;
    if let Err(VolumeError::Hidden { zones }) = created {
        return Err(hidden(&zones, "a volume", called, &status));
    }
    if let (Err(VolumeError::Design(NoVolume::FewActive { active, least })), true) =
        (&created, called != status.name)
    {
        bail!(few_active(called, *active, *least));
    }
    created.with_context(|| format!("no pool can be created on '{called}'"))?;
    existing(session, called)
}

/// Reports that the space of volumes could not be counted: the list is of use without it.
fn note_uncounted(output: Output, counted: Result<()>) {
    if let Err(error) = counted {
        output.note(&format!("the space of the volumes and snapshots cannot be counted: {error:#}"));
    }
}

/// Lists the volumes of a pool.
pub fn list(output: Output, array: &ArrayName) -> Result<u8> {
    let (name, report, volumes): (String, VolumeReport, Vec<PoolVolumeReport>) = match needed(output, array)?
    {
        PoolArray::Running(mut client, on) => {
            let status: Status = ask(output, &mut client, &Request::Status)?;
            if on.is_some() || status.volumes.is_some() {
                note_uncounted(output, ask(output, &mut client, &Request::CountSpace { on: on.clone() }));
            }
            let Status { name, volume, volumes, namespaces, .. } =
                ask(output, &mut client, &Request::Status)?;
            let called = carrier(&name, on.as_deref());
            let mut list = namespaces.map(|division| division.list).unwrap_or_default().into_iter();
            let (volume, volumes) = match &on {
                Some(on) => list
                    .find(|namespace| namespace.name == *on)
                    .map_or((None, None), |namespace| (namespace.volume, namespace.volumes)),
                None => (volume, volumes),
            };
            let none = || format!("'{called}' does not carry a pool of volumes");
            let volumes = volumes.with_context(none)?;
            (called.clone(), volume.with_context(|| no_volume(&called))?, volumes)
        }
        PoolArray::Here(session, called) => {
            let pool = existing(&session, &called)?;
            note_uncounted(output, session.wait(pool.count_space())?);
            let report = VolumeReport::of(&pool.pool.space().status(), 0, 0);
            let volumes = pool.pool.volumes();
            let volumes = volumes.iter().map(|volume| pool::report(&pool.pool, volume)).collect();
            (pool.array.clone(), report, volumes)
        }
    };
    let VolumeReport { usable_bytes, used_bytes, free_bytes, set_aside_bytes, .. } = report;
    let array = name;
    let listed = VolumeListOutput { array, usable_bytes, used_bytes, free_bytes, set_aside_bytes, volumes };
    output.print(&listed, |listed| {
        let VolumeListOutput { usable_bytes, used_bytes, free_bytes, volumes, .. } = listed;
        let [usable, used, free] = [usable_bytes, used_bytes, free_bytes].map(|bytes| show(*bytes));
        let set_aside = set_aside_text(listed.set_aside_bytes);
        format!("{}pool: {used} of {usable} used, {free} free{set_aside}\n", volumes_text(volumes))
    })?;
    Ok(HEALTHY)
}

/// Gives a volume another name.
pub fn rename(output: Output, name: &NamespaceName, to: &str) -> Result<u8> {
    let (session, called) = stopped(output, &name.array, "its volumes keep their names", "")?;
    let pool = existing(&session, &called)?;
    session.wait(pool.rename(&name.name, to))??;
    stop(&session, &pool)?;
    let renamed = VolumeRenameOutput { array: pool.array, name: name.name.clone(), new_name: to.into() };
    output.print(&renamed, |renamed| format!("{name} is {}/{} now\n", renamed.array, renamed.new_name))?;
    Ok(HEALTHY)
}

/// Makes snapshots of volumes of one array.
pub fn snapshot(output: Output, snapshots: &[SnapshotOfArray]) -> Result<u8> {
    let first = &snapshots.first().context("no snapshot is given")?.array;
    let is_of_first = |snapshot: &SnapshotOfArray| snapshot.array.path() == first.path();
    ensure!(
        snapshots.iter().all(is_of_first),
        "the snapshots of one command are of the same moment, and all of one array: run it once for each array"
    );
    let names: Vec<SnapshotName> = snapshots.iter().map(|snapshot| snapshot.name.clone()).collect();
    let (array, reports): (String, Vec<SnapshotReport>) = match needed(output, first)? {
        PoolArray::Running(mut client, on) => {
            let called = carrier(&client.about.name, on.as_deref());
            let request = Request::SnapshotVolumes { on, snapshots: names.clone() };
            (called, ask(output, &mut client, &request)?)
        }
        PoolArray::Here(session, called) => {
            let pool = existing(&session, &called)?;
            let made = session.wait(pool.snapshot(&names))??;
            stop(&session, &pool)?;
            (pool.array.clone(), made.iter().map(pool::snapshot_report).collect())
        }
    };
    let with_volume =
        |(name, snapshot): (SnapshotName, SnapshotReport)| SnapshotOutput { volume: name.volume, snapshot };
    let made =
        VolumeSnapshotOutput { array, snapshots: names.into_iter().zip(reports).map(with_volume).collect() };
    output.print(&made, |VolumeSnapshotOutput { array, snapshots }| {
        let line = |SnapshotOutput { volume, snapshot }: &SnapshotOutput| {
            format!("{array}/{volume}@{} is made: {}\n", snapshot.name, show(snapshot.size_bytes))
        };
        snapshots.iter().map(line).collect()
    })?;
    Ok(HEALTHY)
}

/// Adds a clone of a snapshot.
pub fn add_clone(output: Output, snapshot: &SnapshotOfArray, name: &str) -> Result<u8> {
    let (array, volume, is_running) = match needed(output, &snapshot.array)? {
        PoolArray::Running(mut client, on) => {
            let called = carrier(&client.about.name, on.as_deref());
            let request = Request::CloneSnapshot { on, snapshot: snapshot.name.clone(), name: name.into() };
            (called, ask(output, &mut client, &request)?, true)
        }
        PoolArray::Here(session, called) => {
            let pool = existing(&session, &called)?;
            let volume = session.wait(pool.add_clone(&snapshot.name, name))??;
            stop(&session, &pool)?;
            (pool.array.clone(), pool::report(&pool.pool, &volume), false)
        }
    };
    print_created(output, PoolVolumeOutput { array, volume }, is_running)
}

/// Gives a volume the contents of its latest snapshot.
pub fn roll_back(output: Output, snapshot: &SnapshotOfArray, confirmed: Confirmed) -> Result<u8> {
    let SnapshotOfArray { array, name: to } = snapshot;
    let volume = format!("{array}/{}", to.volume);
    let interrupted = move || {
        format!("{volume} is unchanged, or gets the contents of the snapshot when the array is used next")
    };
    let (array, removed): (String, Vec<SnapshotName>) = match needed(output, array)? {
        PoolArray::Running(mut client, on) => {
            let called = carrier(&client.about.name, on.as_deref());
            (called, ask(output, &mut client, &Request::RollBackVolume { on, to: to.clone(), confirmed })?)
        }
        PoolArray::Here(session, called) => {
            let pool = existing(&session, &called)?;
            let later = session.wait(pool.lost_by_return(to, confirmed))??;
            interrupt::explain(interrupted);
            session.wait(pool.roll_back(to, &later))??;
            stop(&session, &pool)?;
            (pool.array, later)
        }
    };
    let removed_snapshots = removed.into_iter().map(|name| name.snapshot).collect();
    let returned = VolumeRollbackOutput { array, to: to.clone(), removed_snapshots };
    output.print(&returned, |VolumeRollbackOutput { array, to, .. }| {
        format!("{array}/{} has the contents of the snapshot '{}' again\n", to.volume, to.snapshot)
    })?;
    Ok(HEALTHY)
}

/// Lists the ranges of a volume that may differ between a snapshot and a later one, or now.
pub fn diff(output: Output, snapshot: SnapshotOfArray, later: Option<String>) -> Result<u8> {
    let SnapshotOfArray { array, name: since } = snapshot;
    let (array, ranges): (String, Vec<ChangedRange>) = match needed(output, &array)? {
        PoolArray::Running(mut client, on) => {
            let called = carrier(&client.about.name, on.as_deref());
            let request = Request::CompareSnapshot { on, snapshot: since.clone(), to: later.clone() };
            (called, ask(output, &mut client, &request)?)
        }
        PoolArray::Here(session, called) => {
            let pool = existing(&session, &called)?;
            let changed = session.wait(pool.changed(&since, later.as_deref()))??;
            (pool.array.clone(), changed)
        }
    };
    let total_bytes = total(ranges.iter().map(|range| range.length_bytes));
    let changed = VolumeDiffOutput { array, since, later, total_bytes, ranges };
    output.print(&changed, |changed| {
        let mut rows = vec![["OFFSET", "LENGTH"].map(String::from).to_vec()];
        rows.extend(
            changed.ranges.iter().map(|range| [range.offset_bytes, range.length_bytes].map(show).to_vec()),
        );
        format!("{}total: {}\n", table(&rows), show(changed.total_bytes))
    })?;
    Ok(HEALTHY)
}

/// Removes a volume with its data, or a snapshot.
pub fn remove(output: Output, name: &NamespaceName, yes: bool) -> Result<u8> {
    let array = match needed(output, &name.array)? {
        PoolArray::Running(mut client, on) => {
            let called = carrier(&client.about.name, on.as_deref());
            let request = Request::RemoveVolume { on, volume: name.name.clone(), yes };
            ask::<()>(output, &mut client, &request)?;
            called
        }
        PoolArray::Here(session, called) => {
            let pool = existing(&session, &called)?;
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
    use crate::{
        process::output::undescribed,
        report::{RatesReport, WhenFull},
    };
    use engine::qos::Rates;

    #[test]
    fn json_output_matches_schema() {
        let name = SnapshotName { volume: "mail".into(), snapshot: "monday".into() };
        let snapshot = SnapshotReport {
            name: name.snapshot.clone(),
            uuid: String::new(),
            size_bytes: 4096,
            allocated_bytes: 0,
            own_bytes: Some(0),
            shared_bytes: None,
        };
        let volume = PoolVolumeReport {
            name: name.volume.clone(),
            uuid: String::new(),
            size_bytes: 4096,
            allocated_bytes: 0,
            own_bytes: Some(0),
            shared_bytes: None,
            sector_bytes: 4096,
            compression: Compression(None),
            unit_bytes: 4096,
            when_full: WhenFull(0),
            limits: RatesReport::of(Rates { requests: 0, blocks: 9 }),
            floors: RatesReport::of(Rates { requests: 8, blocks: 0 }),
            latency_us: Some(500),
            held_to_bytes_per_second: Some(4096),
            floors_out_of_reach: false,
            latency_out_of_reach: true,
            guaranteed_bytes: 4096,
            block_device: None,
            link: None,
            lost: None,
            snapshots: vec![snapshot.clone()],
            clone_of: Some(name.to_string()),
        };
        let array = "tank".to_string();
        let listed = VolumeListOutput {
            array: array.clone(),
            usable_bytes: 0,
            used_bytes: 0,
            free_bytes: 0,
            set_aside_bytes: 0,
            volumes: vec![volume.clone()],
        };
        assert_eq!(undescribed(&listed, "volume-list.json"), [""; 0]);
        let created = PoolVolumeOutput { array: array.clone(), volume };
        assert_eq!(undescribed(&created, "volume-create-in-pool.json"), [""; 0]);
        let renamed =
            VolumeRenameOutput { array: array.clone(), name: name.volume.clone(), new_name: "post".into() };
        assert_eq!(undescribed(&renamed, "volume-rename.json"), [""; 0]);
        let removed = VolumeRemoveOutput { array: array.clone(), name: name.to_string() };
        assert_eq!(undescribed(&removed, "volume-remove.json"), [""; 0]);
        let snapshots = vec![SnapshotOutput { volume: name.volume.clone(), snapshot }];
        let made = VolumeSnapshotOutput { array: array.clone(), snapshots };
        assert_eq!(undescribed(&made, "volume-snapshot.json"), [""; 0]);
        let returned = VolumeRollbackOutput {
            array: array.clone(),
            to: name.clone(),
            removed_snapshots: vec![String::new()],
        };
        assert_eq!(undescribed(&returned, "volume-rollback.json"), [""; 0]);
        let changed =
            VolumeDiffOutput { array, since: name, later: None, total_bytes: 0, ranges: Vec::new() };
        assert_eq!(undescribed(&changed, "volume-diff.json"), [""; 0]);
    }
}
