//! Changes of the volumes of a pool on a running array.

use super::{
    block::front_number,
    end, serve,
    state::{Daemon, Phase, both},
    status,
};
use crate::{
    control::{
        name::SnapshotName,
        pool::{self, ArrayPool, WantedVolume},
    },
    process::output::quoted,
    report::{ChangedRange, PoolVolumeReport, SnapshotReport},
};
use anyhow::{Context, Result, ensure};
use engine::volume::Volume;
use std::rc::Rc;

/// Adds a volume, and serves it as the others are served. It is removed if its block device fails.
pub(super) async fn create_volume(daemon: &Rc<Daemon>, wanted: &WantedVolume) -> Result<PoolVolumeReport> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon)?;
    let volume = pool.add(wanted).await?;
    serve_new(daemon, &pool, &wanted.name, volume).await
}

/// Adds a clone of a snapshot, as [`create_volume`] adds a volume.
pub(super) async fn clone_snapshot(
    daemon: &Rc<Daemon>,
    snapshot: &SnapshotName,
    name: &str,
) -> Result<PoolVolumeReport> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon)?;
    let volume = pool.add_clone(snapshot, name).await?;
    serve_new(daemon, &pool, name, volume).await
}

/// Serves a new volume as the others are served, and removes it if its block device fails.
async fn serve_new(
    daemon: &Rc<Daemon>,
    pool: &ArrayPool,
    name: &str,
    volume: Volume,
) -> Result<PoolVolumeReport> {
    if let Err(error) = serve(daemon, name, volume).await {
        let what = match pool.remove(name).await {
            Ok(()) => "is not created, since its block device failed".into(),
            Err(why) => format!(
                "is created, and gets its block device at the next start, since it cannot be removed ({why:#})"
            ),
        };
        return Err(error.context(format!("'{}/{name}' {what}", pool.array)));
    }
    report(daemon, name)
}

/// Serves a volume as the others are served: to NBD clients, or by a block device.
async fn serve(daemon: &Rc<Daemon>, name: &str, volume: Volume) -> Result<()> {
    if let Some(server) = &*daemon.nbd.borrow() {
        server.add(name.into(), volume);
        return Ok(());
    }
    serve::serve_volume(daemon, volume).await
}

/// Makes snapshots of volumes. NBD clients can read them at once; they get no block devices.
pub(super) async fn snapshot_volumes(daemon: &Daemon, names: &[SnapshotName]) -> Result<Vec<SnapshotReport>> {
    let _turn = daemon.administration.take().await;
    let snapshots = pool(daemon)?.snapshot(names).await?;
    if let Some(server) = &*daemon.nbd.borrow() {
        for (name, snapshot) in names.iter().zip(&snapshots) {
            server.add(name.to_string(), snapshot.clone());
        }
    }
    Ok(snapshots.iter().map(pool::snapshot_report).collect())
}

/// The ranges that may differ between a snapshot and a later one, or its volume.
pub(super) async fn compare_snapshot(
    daemon: &Daemon,
    snapshot: &SnapshotName,
    to: Option<&str>,
) -> Result<Vec<ChangedRange>> {
    pool_to_read(daemon)?.changed(snapshot, to).await
}

/// Removes a volume, other than the last one with a block device, after its block device; or a snapshot.
pub(super) async fn remove_volume(daemon: &Rc<Daemon>, name: &str, yes: bool) -> Result<()> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon)?;
    let volume = pool.doomed(name, yes)?;
    let (array, is_snapshot) = (&pool.array, volume.is_snapshot());
    if let Some(server) = &*daemon.nbd.borrow() {
        ensure!(server.remove(name), "'{array}/{name}' has NBD clients: disconnect them first");
    } else if !is_snapshot {
        ensure!(
            daemon.blocks.borrow().iter().any(|block| block.number() != front_number(None, Some(&volume))),
            "'{name}' is the last volume of '{array}', which cannot run without one: stop the array first with \
             zoneraid stop {}",
            quoted(array)
        );
        end::take_down_volume(daemon, &volume).await?;
    }
    let Err(error) = pool.remove(name).await else { return Ok(()) };
    if pool.find(name).is_err() {
        let left = format!("'{array}/{name}' is removed, and still takes space until the next start");
        return Err(error.context(left));
    }
    let served = match daemon.nbd.borrow().is_none() && is_snapshot {
        true => Ok(()),
        false => serve(daemon, name, volume).await,
    };
    let served = served.context("it is not served until the next start");
    both(Err(error), served).with_context(|| format!("'{array}/{name}' is not removed"))
}

/// The pool, for a change.
pub(super) fn pool(daemon: &Daemon) -> Result<ArrayPool> {
    let array = daemon.array.status();
    ensure!(!array.read_only, "'{}' is read-only: stop it and start it without --read-only", array.name);
    pool_to_read(daemon)
}

/// The pool.
fn pool_to_read(daemon: &Daemon) -> Result<ArrayPool> {
    let array = daemon.array.status();
    ensure!(daemon.phase.get() == Phase::Running, "'{}' is being stopped", array.name);
    let pool = daemon.pool.borrow().clone();
    let without = || {
        format!(
            "'{0}' does not carry a pool of volumes, which can be created only while it does not run: zoneraid stop {1}",
            array.name,
            quoted(&array.name)
        )
    };
    Ok(ArrayPool { pool: pool.with_context(without)?, array: array.name.clone() })
}

fn report(daemon: &Daemon, name: &str) -> Result<PoolVolumeReport> {
    let found = status::pool_volumes(daemon, &daemon.array.status().lost).into_iter().flatten();
    let mut found = found.filter(|volume| volume.name == name);
    found.next().with_context(|| format!("there is no volume '{name}' any more"))
}
