//! Changes of the volumes of a pool on a running array.

use super::{
    block::served_number,
    end, serve,
    state::{Daemon, Phase, both},
    status,
};
use crate::{
    control::{
        name::SnapshotName,
        pool::{self, ArrayPool, Confirmed, WantedVolume, carrier},
    },
    process::output::quoted,
    report::{ChangedRange, PoolVolumeReport, SnapshotReport},
};
use anyhow::{Context, Result, ensure};
use engine::volume::Volume;
use std::rc::Rc;

/// Adds a volume, and serves it as the others are served. It is removed if its block device fails.
pub(super) async fn create_volume(
    daemon: &Rc<Daemon>,
    on: Option<&str>,
    wanted: &WantedVolume,
) -> Result<PoolVolumeReport> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon, on)?;
    let volume = pool.add(wanted).await?;
    serve_new(daemon, on, &pool, &wanted.name, volume).await
}

/// Adds a clone of a snapshot, as [`create_volume`] adds a volume.
pub(super) async fn clone_snapshot(
    daemon: &Rc<Daemon>,
    on: Option<&str>,
    snapshot: &SnapshotName,
    name: &str,
) -> Result<PoolVolumeReport> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon, on)?;
    let volume = pool.add_clone(snapshot, name).await?;
    serve_new(daemon, on, &pool, name, volume).await
}

/// Serves a new volume as the others are served, and removes it if its block device fails.
async fn serve_new(
    daemon: &Rc<Daemon>,
    on: Option<&str>,
    pool: &ArrayPool,
    name: &str,
    volume: Volume,
) -> Result<PoolVolumeReport> {
    if let Err(error) = serve(daemon, on, name, volume).await {
        let what = match pool.remove(name).await {
            Ok(()) => "is not created, since its block device failed".into(),
            Err(why) => format!(
                "is created, and gets its block device at the next start, since it cannot be removed ({why:#})"
            ),
        };
        return Err(error.context(format!("'{}/{name}' {what}", pool.array)));
    }
    report(daemon, on, name)
}

/// Serves a volume or a snapshot as the others are served: to NBD clients, or by a block device; snapshots get none.
async fn serve(daemon: &Rc<Daemon>, on: Option<&str>, name: &str, volume: Volume) -> Result<()> {
    if let Some(server) = &*daemon.nbd.borrow() {
        server.add(name.into(), volume);
        return Ok(());
    }
    if volume.is_snapshot() {
        return Ok(());
    }
    serve::serve_volume(daemon, on, volume).await
}

/// Makes snapshots of volumes. NBD clients can read them at once; they get no block devices.
pub(super) async fn snapshot_volumes(
    daemon: &Rc<Daemon>,
    on: Option<&str>,
    names: &[SnapshotName],
) -> Result<Vec<SnapshotReport>> {
    let _turn = daemon.administration.take().await;
    let snapshots = pool(daemon, on)?.snapshot(names).await?;
    for (name, snapshot) in names.iter().zip(&snapshots) {
        serve(daemon, on, &name.to_string(), snapshot.clone()).await?;
    }
    Ok(snapshots.iter().map(pool::snapshot_report).collect())
}

/// The ranges that may differ between a snapshot and a later one, or its volume.
pub(super) async fn compare_snapshot(
    daemon: &Daemon,
    on: Option<&str>,
    snapshot: &SnapshotName,
    to: Option<&str>,
) -> Result<Vec<ChangedRange>> {
    pool_to_read(daemon, on)?.changed(snapshot, to).await
}

/// Counts the space of the volumes and snapshots, which the status has from then on.
pub(super) async fn count_space(daemon: &Daemon, on: Option<&str>) -> Result<()> {
    pool_to_read(daemon, on)?.count_space().await
}

/// Removes a volume, other than the last one with a block device, after its block device; or a snapshot.
pub(super) async fn remove_volume(
    daemon: &Rc<Daemon>,
    on: Option<&str>,
    name: &str,
    yes: bool,
) -> Result<()> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon, on)?;
    let volume = pool.doomed(name, yes)?;
    let array = &pool.array;
    stop_serving(daemon, on, array, name, &volume).await?;
    let Err(error) = pool.remove(name).await else { return Ok(()) };
    if pool.find(name).is_err() {
        let left = format!("'{array}/{name}' is removed, and still takes space until the next start");
        return Err(error.context(left));
    }
    let served = serve(daemon, on, name, volume).await.context("it is not served until the next start");
    both(Err(error), served).with_context(|| format!("'{array}/{name}' is not removed"))
}

/// Stops serving a volume, other than the last one with a block device, or a snapshot.
///
/// # Errors
/// It is in use.
async fn stop_serving(
    daemon: &Daemon,
    on: Option<&str>,
    array: &str,
    name: &str,
    volume: &Volume,
) -> Result<()> {
    if let Some(server) = &*daemon.nbd.borrow() {
        ensure!(server.remove(name), "'{array}/{name}' has NBD clients: disconnect them first");
        return Ok(());
    }
    if volume.is_snapshot() {
        return Ok(());
    }
    let namespace = daemon
        .pools
        .borrow()
        .values()
        .map(|pool| pool.namespace.clone())
        .find(|namespace| Some(namespace.name()) == on);
    let number = served_number(namespace.as_ref(), Some(volume));
    ensure!(
        daemon.blocks.borrow().iter().any(|block| block.number() != number),
        "'{name}' is the only volume of '{array}' with a block device, and the array cannot run without one: stop it first \
         with zoneraid stop {}",
        quoted(&daemon.array.status().name)
    );
    end::take_down_volume(daemon, number).await
}

/// Gives a volume the contents of a snapshot, and returns the removed later snapshots. It has no block device meanwhile, as
/// the kernel may have cached its former contents.
pub(super) async fn roll_back(
    daemon: &Rc<Daemon>,
    on: Option<&str>,
    to: &SnapshotName,
    confirmed: Confirmed,
) -> Result<Vec<SnapshotName>> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon, on)?;
    let later = pool.lost_by_return(to, confirmed).await?;
    assert!(
        later.iter().all(|name| name.volume == to.volume),
        "snapshots of other volumes are removed: {later:?}"
    );
    let (array, mut stopped) = (&pool.array, Vec::new());
    let returned = async {
        for name in later.iter().map(SnapshotName::to_string).chain([to.volume.clone()]) {
            let volume = pool.find(&name)?;
            stop_serving(daemon, on, array, &name, &volume).await?;
            stopped.push((name, volume));
        }
        let left = || {
            let volume = &to.volume;
            format!("'{array}/{volume}' is unchanged, or gets the contents of the snapshot at the next start")
        };
        pool.roll_back(to, &later).await.with_context(left)
    };
    let mut result = returned.await;
    for (name, volume) in stopped {
        if pool.find(&name).is_ok() {
            let served = serve(daemon, on, &name, volume).await;
            let left = || format!("'{array}/{name}' is not served until the next start");
            result = both(result, served.with_context(left));
        }
    }
    result.map(|()| later)
}

/// The pool of the array or of a namespace, for a change.
pub(super) fn pool(daemon: &Daemon, on: Option<&str>) -> Result<ArrayPool> {
    let array = daemon.array.status();
    ensure!(!array.read_only, "'{}' is read-only: stop it and start it without --read-only", array.name);
    pool_to_read(daemon, on)
}

/// The pool of the array or of a namespace.
fn pool_to_read(daemon: &Daemon, on: Option<&str>) -> Result<ArrayPool> {
    let array = daemon.array.status();
    ensure!(daemon.phase.get() == Phase::Running, "'{}' is being stopped", array.name);
    let called = carrier(&array.name, on);
    let without = || {
        format!(
            "'{called}' does not carry a pool of volumes, which can be created only while '{}' does not run: zoneraid \
             stop {}",
            array.name,
            quoted(&array.name)
        )
    };
    Ok(ArrayPool { pool: daemon.pool_on(on).with_context(without)?, array: called.clone() })
}

fn report(daemon: &Daemon, on: Option<&str>, name: &str) -> Result<PoolVolumeReport> {
    let lost = daemon.array.status().lost;
    let of_pool = match on {
        None => status::pool_volumes(daemon, None, &lost),
        Some(on) => daemon
            .pool_on_namespace(on)
            .and_then(|found| status::pool_volumes(daemon, Some(&found.namespace), &lost)),
    };
    let found = of_pool.into_iter().flatten();
    let mut found = found.filter(|volume| volume.name == name);
    found.next().with_context(|| format!("there is no volume '{name}' any more"))
}
