//! Changes of the volumes of a pool on a running array.

use super::{
    block::front_number,
    end, serve,
    state::{Daemon, Phase},
    status,
};
use crate::{
    control::pool::{ArrayPool, WantedVolume},
    process::output::quoted,
    report::PoolVolumeReport,
};
use anyhow::{Context, Result, ensure};
use std::rc::Rc;

/// Adds a volume, and serves it as the others are served. It is removed if its block device fails.
pub(super) async fn create_volume(daemon: &Rc<Daemon>, wanted: &WantedVolume) -> Result<PoolVolumeReport> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon)?;
    let volume = pool.add(wanted).await?;
    if let Some(server) = &*daemon.nbd.borrow() {
        server.add(wanted.name.clone(), volume);
    } else if let Err(error) = serve::serve_volume(daemon, volume).await {
        let called = format!("{}/{}", pool.array, wanted.name);
        let what = match pool.remove(&wanted.name).await {
            Ok(()) => "is not created, since its block device failed".into(),
            Err(why) => format!(
                "is created, and gets its block device at the next start, since it cannot be removed ({why:#})"
            ),
        };
        return Err(error.context(format!("'{called}' {what}")));
    }
    report(daemon, &wanted.name)
}

/// Removes a volume, other than the last one with a block device, after its block device.
pub(super) async fn remove_volume(daemon: &Rc<Daemon>, name: &str, yes: bool) -> Result<()> {
    let _turn = daemon.administration.take().await;
    let pool = pool(daemon)?;
    let volume = pool.doomed(name, yes)?;
    let array = &pool.array;
    if let Some(server) = &*daemon.nbd.borrow() {
        ensure!(server.remove(name), "'{array}/{name}' has NBD clients: disconnect them first");
    } else {
        ensure!(
            daemon.blocks.borrow().iter().any(|block| block.number() != front_number(None, Some(&volume))),
            "'{name}' is the last volume of '{array}', which cannot run without one: stop the array first with \
             zoneraid stop {}",
            quoted(array)
        );
        end::take_down_volume(daemon, &volume).await?;
    }
    let left = || match pool.find(name) {
        Ok(_) => format!("'{array}/{name}' is not removed, and is served again from the next start"),
        Err(_) => format!("'{array}/{name}' is removed, and still takes space until the next start"),
    };
    pool.remove(name).await.with_context(left)
}

/// The pool, for a change.
pub(super) fn pool(daemon: &Daemon) -> Result<ArrayPool> {
    let array = daemon.array.status();
    ensure!(!array.read_only, "'{}' is read-only: stop it and start it without --read-only", array.name);
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
