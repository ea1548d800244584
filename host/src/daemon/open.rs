//! Opens the volume or the namespaces on the array, and creates the acknowledgement logs.
//!
//! Whether an array carries a volume or namespaces is determined from its zones, where both have their headers: the
//! array has no metadata about them, nor they about arrays.

use super::state::{Daemon, NamespacePool, holds_back, log, writing_begun};
use crate::{
    control::tenants,
    process::run,
    reactor::{ring::Ring, workers::WorkerThreads},
    report::{given_up, is_there, no_start},
    serve::ack_log::{AckLog, AckLogContents, RecordingDevice},
};
use anyhow::{Context, Result, ensure};
use engine::{
    adapt::overlay::Overlay,
    array::{Array, ArrayStatus},
    device::{Command, ZonedDevice},
    volume::{self, Opened, Pool, Volume},
    vzone::{Namespace, Namespaces},
    zone::ZoneIndex,
};
use std::{
    rc::{Rc, Weak},
    time::Duration,
};

/// Interval of scheduler ticks while namespaces are written to.
const TICK: Duration = Duration::from_millis(1);

/// Interval of scheduler ticks otherwise.
const IDLE_TICK: Duration = Duration::from_millis(20);

/// Opens the volume or the pool on the array, if there is one. Its acknowledged ends are stored in `ack_log`.
pub(super) async fn open_volume(
    daemon: &Daemon,
    status: &ArrayStatus,
    ack_log: &Rc<AckLog>,
) -> Result<Option<Opened>> {
    assert!(daemon.volume.borrow().is_none(), "the volume on '{}' is opened a second time", status.name);
    let opened = volume_on(daemon, recording(daemon, status, ack_log).await, &status.name).await?;
    *daemon.volume.borrow_mut() = opened.as_ref().map(|opened| opened.all_blocks().clone());
    if let Some(Opened::Pool(pool)) = &opened {
        *daemon.pool.borrow_mut() = Some(pool.clone());
        finish_removals_later(daemon, status, pool);
    }
    Ok(opened)
}

/// Notes a pool on a namespace, and finishes the removals of its volumes that were interrupted.
pub(super) fn note_pool(
    daemon: &Daemon,
    status: &ArrayStatus,
    namespace: &Namespace,
    pool: &Pool,
    ack_log: &Rc<AckLog>,
) {
    let on = NamespacePool { namespace: namespace.clone(), pool: pool.clone(), ack_log: ack_log.clone() };
    let other = daemon.pools.borrow_mut().insert(namespace.number(), on);
    assert!(other.is_none(), "the pool on namespace '{}' is opened a second time", namespace.name());
    finish_removals_later(daemon, status, pool);
}

/// Begins to wait for [`finish_removals`], unless the array is read-only.
fn finish_removals_later(daemon: &Daemon, status: &ArrayStatus, pool: &Pool) {
    if !status.read_only {
        daemon.reactor.runtime().spawn(finish_removals(pool.clone(), daemon.array.clone()));
    }
}

/// Discards the data of volumes whose removal was interrupted, as soon as the array is written to.
async fn finish_removals(pool: Pool, array: Array) {
    writing_begun(&array).await;
    if let Err(error) = pool.finish_removals().await {
        log(&format!("a volume of '{}' that was removed still takes space: {error}", array.status().name));
    }
}

/// Opens the volume or the pool on a device, if there is one.
pub(super) async fn volume_on(
    daemon: &Daemon,
    device: Rc<dyn ZonedDevice>,
    called: &str,
) -> Result<Option<Opened>> {
    let problem = || format!("the volume on '{called}' cannot be started");
    let volume = Volume::is_on(device.clone()).await.with_context(problem)?;
    if !is_there(volume, "a volume", called, &daemon.array.status())? {
        return Ok(None);
    }
    let opened = volume::open(daemon.reactor.runtime(), device, daemon.behaviour).await;
    let opened = opened.map_err(|error| no_start(called, error))?;
    let volume = opened.all_blocks();
    match worker_threads(daemon) {
        Ok(Some(worker_threads)) => volume.employ(worker_threads),
        Ok(None) => {}
        Err(error) => log(&format!("{called} is compressed on the engine's thread only: {error:#}")),
    }
    if let Some(loss) = given_up(called, &volume.given_up()) {
        daemon.losses.borrow_mut().push(loss);
    }
    Ok(Some(opened))
}

/// The compression workers, shared by all volumes; `None` if there are no processors for them.
fn worker_threads(daemon: &Daemon) -> Result<Option<Rc<WorkerThreads>>> {
    let there = daemon.worker_threads.borrow().upgrade();
    if there.is_some() {
        return Ok(there);
    }
    let worker_threads = WorkerThreads::start(&daemon.reactor)?;
    *daemon.worker_threads.borrow_mut() = worker_threads.as_ref().map_or_else(Weak::new, Rc::downgrade);
    Ok(worker_threads)
}

/// Opens the namespaces of the array, if it is divided. The array's acknowledged ends are stored in `ack_log`.
pub(super) async fn open_namespaces(
    daemon: &Daemon,
    status: &ArrayStatus,
    ack_log: &Rc<AckLog>,
) -> Result<Option<Vec<Namespace>>> {
    let problem = || format!("the namespaces of '{}' cannot be opened", status.name);
    let divided = Namespaces::are_on(Rc::new(daemon.array.clone())).await.with_context(problem)?;
    if !is_there(divided, "namespaces", &status.name, status)? {
        return Ok(None);
    }
    assert!(
        daemon.divided.borrow().is_none(),
        "the namespaces of '{}' are opened a second time",
        status.name
    );
    let runtime = daemon.reactor.runtime();
    let device = recording(daemon, status, ack_log).await;
    let namespaces = Namespaces::open(runtime, device, tenants::behaviour()).await.with_context(problem)?;
    let list = namespaces.list();
    ensure!(
        !list.is_empty(),
        "'{}' has no namespaces: create one with zoneraid namespace create",
        status.name
    );
    runtime.spawn(tick_scheduler(namespaces.clone(), daemon.reactor.ring()?.clone()));
    *daemon.divided.borrow_mut() = Some(namespaces);
    Ok(Some(list))
}

/// The array as the device of a volume or of namespaces: acknowledged ends are stored in `ack_log`; for a read-only
/// array, their crash recovery writes to memory.
pub(super) async fn recording(
    daemon: &Daemon,
    status: &ArrayStatus,
    ack_log: &Rc<AckLog>,
) -> Rc<dyn ZonedDevice> {
    let (runtime, array) = (daemon.reactor.runtime(), Rc::new(daemon.array.clone()));
    match status.read_only {
        true => Rc::new(Overlay::over(runtime, array).await),
        false => Rc::new(RecordingDevice::of(runtime, array, ack_log.clone())),
    }
}

/// Creates the acknowledgement log of this assembly. `left` is that of a dead process; its appends are kept if its
/// block device is taken over (`goes_on`).
pub(super) async fn create_ack_log(
    daemon: &Daemon,
    status: &ArrayStatus,
    left: Option<&AckLogContents>,
    goes_on: bool,
) -> Result<Rc<AckLog>> {
    let assembly = daemon.array.assembly();
    let report = Command::Report { first: ZoneIndex(0), count: daemon.array.geometry().zones };
    let done = daemon.array.submit(report).await;
    done.result?;
    let (shown, zones) = (done.zones.len(), daemon.array.geometry().zones);
    assert_eq!(shown, zones as usize, "zones in a report of the array, and zones of the array");
    let complete: Vec<u64> = match holds_back(status) {
        // An array that is written to continues where the assembly has found the ends.
        false => done.zones.iter().map(|zone| zone.wp_blocks).collect(),
        // As long as nothing is written, the inherited ends count, for the next process as well.
        true => match left.filter(|left| left.assembly == assembly) {
            Some(left) => left.complete.clone(),
            None => vec![0; done.zones.len()],
        },
    };
    let path = run::ack_log_path(&daemon.directory, &status.uuid);
    let appends = left.filter(|_| goes_on).map_or(&[][..], |left| &left.appends);
    let inherited = left.filter(|_| holds_back(status));
    let power = inherited.map_or_else(|| daemon.array.power_marks(), |left| left.power.clone());
    let ack_log = Rc::new(AckLog::create(&path, &status.uuid, assembly, &complete, appends, &power)?);
    if inherited.is_some() {
        ack_log.inherit();
    }
    let (begun, noted) = (daemon.array.clone(), ack_log.clone());
    daemon.array.on_begin(Box::new(move || {
        noted.note_power(&begun.power_marks());
        noted.begin(begun.assembly());
    }));
    *daemon.ack_log.borrow_mut() = Some(ack_log.clone());
    Ok(ack_log)
}

/// Creates the acknowledgement log of a namespace. Returns the contents of the previous one if the block device of a
/// dead process `waits` for its daemon.
pub(super) async fn create_namespace_ack_log(
    daemon: &Daemon,
    namespace: &Namespace,
    waits: bool,
) -> Result<(Rc<AckLog>, Option<AckLogContents>)> {
    let array = daemon.array.status();
    let path = run::namespace_ack_log_path(&daemon.directory, &array.uuid, namespace.number());
    let left = if waits { AckLogContents::read(&path, &array.uuid)? } else { None };
    ensure!(
        !waits || left.is_some(),
        "the block device of '{}/{}' exists, but its acknowledgement log {} is missing: reboot",
        array.name,
        namespace.name(),
        path.display()
    );
    let report = Command::Report { first: ZoneIndex(0), count: namespace.geometry().zones };
    let done = namespace.submit(report).await;
    done.result?;
    let (shown, zones) = (done.zones.len(), namespace.geometry().zones);
    assert_eq!(shown, zones as usize, "zones in a report of a namespace, and zones of the namespace");
    let complete: Vec<u64> = done.zones.iter().map(|zone| zone.wp_blocks).collect();
    let appends = left.as_ref().map_or(&[][..], |left| &left.appends);
    let ack_log = AckLog::create(&path, &array.uuid, daemon.array.assembly(), &complete, appends, &[])?;
    Ok((Rc::new(ack_log), left))
}

/// Ticks the scheduler of the namespaces, until the daemon ends.
async fn tick_scheduler(namespaces: Namespaces, ring: Ring) {
    loop {
        let pause = if namespaces.tick() { TICK } else { IDLE_TICK };
        ring.sleep(pause).await;
    }
}
