//! Answers requests on the control socket. Each connection has its own task.

use super::{
    block::served_number,
    drives, end, namespaces, rebuild, scrub,
    socket::{ControlConnection, request},
    state::{Daemon, Phase, log},
    status, volumes,
};
use crate::{
    control::{
        pool::carrier,
        protocol::{Answer, Request, ScrubRequest, StopReport, VolumeChange},
    },
    members::repair,
    process::{machine, output::uuid},
    reactor::{give_way, ring::Ring},
    report::{ExamineReport, OwnerReport, VolumeSet, Zones, no_volume, scrub::ScrubState},
};
use anyhow::{Context, Result, ensure};
use engine::{
    array::Array,
    device::{Command, ZonedDevice},
    owner::Change,
    vzone::{Namespace, Namespaces},
    zone::ZoneIndex,
};
use serde_json::Value;
use std::{io::ErrorKind, path::Path, rc::Rc, time::Duration};

/// Most connections at a time; more have to wait.
const MAX_CONNECTIONS: u32 = 32;

/// Pause after a failure to accept connections.
const PAUSE: Duration = Duration::from_secs(1);

/// Accepts connections until the daemon ends.
pub(super) async fn take_connections(daemon: Rc<Daemon>, ring: Ring) {
    loop {
        while daemon.control.connections.get() >= MAX_CONNECTIONS {
            daemon.control.ended.wait().await;
        }
        match daemon.control.listener.accept() {
            Ok((stream, _)) => {
                daemon.control.connections.set(daemon.control.connections.get() + 1);
                let (served, ring) = (daemon.clone(), ring.clone());
                daemon.reactor.runtime().spawn(async move {
                    // If the client disconnects, only its connection ends.
                    if let Ok(connection) = ControlConnection::new(ring, stream) {
                        let _ = attend(&served, connection).await;
                    }
                    let control = &served.control;
                    let connections = control.connections.get();
                    assert!(connections > 0, "more connections of clients have ended than had begun");
                    control.connections.set(connections - 1);
                    control.ended.open();
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                ring.ready(daemon.control.listener.clone(), libc::POLLIN).await;
            }
            Err(error) => {
                log(&format!("{}: a connection cannot be accepted: {error}", daemon.control.path.display()));
                ring.sleep(PAUSE).await;
            }
        }
    }
}

/// Answers the requests of one client until it disconnects.
async fn attend(daemon: &Rc<Daemon>, mut connection: ControlConnection) -> Result<()> {
    while let Some(line) = connection.read_line().await? {
        let answer = match request(&line) {
            Ok(request) => answer(daemon, request, &connection).await,
            Err(error) => Err(error),
        };
        let answer = match answer {
            Ok(value) => Answer::Done(value),
            Err(error) => Answer::Error(format!("{error:#}")),
        };
        let sent = connection.send(answer).await;
        // Also if the client has not received the answer.
        end_if_stopped(daemon);
        sent?;
        // The client may already have sent its next request.
        give_way().await;
    }
    Ok(())
}

async fn answer(daemon: &Rc<Daemon>, request: Request, connection: &ControlConnection) -> Result<Value> {
    ensure!(daemon.phase.get() == Phase::Running, "'{}' is being stopped", daemon.array.status().name);
    Ok(match request {
        Request::About => serde_json::to_value(status::about(daemon))?,
        Request::Status => serde_json::to_value(status::status(daemon))?,
        Request::Traffic => serde_json::to_value(status::traffic_report(daemon))?,
        Request::Zones { zone } => serde_json::to_value(zones(&daemon.array, zone).await?)?,
        Request::Fail { member } => {
            let failed = match rebuild::cancel_copy_to(daemon, &member).await? {
                Some(cancelled) => cancelled,
                None => repair::fail(&daemon.array, drives::role(daemon, &member)?).await?,
            };
            serde_json::to_value(failed)?
        }
        Request::Replace { member, drive, now, yes } => {
            serde_json::to_value(rebuild::replace(daemon, &member, &drive, (now, yes), connection).await?)?
        }
        Request::CancelCopy { member } => {
            serde_json::to_value(rebuild::cancel_copy(daemon, member.as_ref()).await?)?
        }
        Request::Rebuild => serde_json::to_value(rebuild::rebuild_for(daemon, connection).await?)?,
        Request::Scrub(request) => serde_json::to_value(match request {
            ScrubRequest::Start { since_last, rate } => scrub::start(daemon, since_last, rate).await?,
            ScrubRequest::Pause => scrub::set(daemon, ScrubState::Paused)?,
            ScrubRequest::Stop => scrub::set(daemon, ScrubState::Stopped)?,
            ScrubRequest::Status => scrub::scrub_status(daemon),
        })?,
        Request::Examine { drive } => serde_json::to_value(examine(daemon, &drive).await?)?,
        Request::Adopt => {
            let host = machine::id().context(machine::NO_IDENTITY)?;
            serde_json::to_value(change(&daemon.array, &Change::Host(host)).await?)?
        }
        Request::Autostart { yes } => {
            serde_json::to_value(change(&daemon.array, &Change::Autostart(yes)).await?)?
        }
        Request::ErrorLimit { limit } => {
            serde_json::to_value(change(&daemon.array, &Change::ErrorLimit(limit)).await?)?
        }
        Request::SetVolume { on, volume, change } => {
            let _turn = daemon.administration.take().await;
            serde_json::to_value(set_volume(daemon, on.as_deref(), volume, change).await?)?
        }
        Request::CreateVolume { on, wanted } => {
            serde_json::to_value(volumes::create_volume(daemon, on.as_deref(), &wanted).await?)?
        }
        Request::RemoveVolume { on, volume, yes } => {
            serde_json::to_value(volumes::remove_volume(daemon, on.as_deref(), &volume, yes).await?)?
        }
        Request::SnapshotVolumes { on, snapshots } => {
            serde_json::to_value(volumes::snapshot_volumes(daemon, on.as_deref(), &snapshots).await?)?
        }
        Request::CloneSnapshot { on, snapshot, name } => {
            let on = on.as_deref();
            serde_json::to_value(volumes::clone_snapshot(daemon, on, &snapshot, &name).await?)?
        }
        Request::RollBackVolume { on, to, confirmed } => {
            serde_json::to_value(volumes::roll_back(daemon, on.as_deref(), &to, confirmed).await?)?
        }
        Request::CompareSnapshot { on, snapshot, to } => {
            let (on, to) = (on.as_deref(), to.as_deref());
            serde_json::to_value(volumes::compare_snapshot(daemon, on, &snapshot, to).await?)?
        }
        Request::CountSpace { on } => {
            serde_json::to_value(volumes::count_space(daemon, on.as_deref()).await?)?
        }
        Request::CreateNamespace(wanted) => {
            serde_json::to_value(namespaces::create_namespace(daemon, &wanted).await?)?
        }
        Request::ResizeNamespace { namespace, blocks } => {
            serde_json::to_value(namespaces::resize_namespace(daemon, &namespace, blocks).await?)?
        }
        Request::Qos { namespace, qos } => {
            serde_json::to_value(namespaces::set_qos(daemon, &namespace, qos.into()).await?)?
        }
        Request::RemoveNamespace { namespace, yes } => {
            serde_json::to_value(namespaces::remove_namespace(daemon, &namespace, yes).await?)?
        }
        Request::Stop => {
            let status = daemon.array.status();
            let result = end::end(daemon, false).await;
            let ended = daemon.phase.get() == Phase::Ending;
            if ended {
                daemon.set_phase(Phase::Stopped);
            }
            match result {
                // A failed array is stopped in spite of the error, which is known already.
                Err(error) if ended && status.failed => log(&format!("{error:#}")),
                result => result?,
            }
            serde_json::to_value(StopReport { array: status.name, uuid: uuid(&status.uuid) })?
        }
    })
}

async fn change(array: &Array, change: &Change) -> Result<OwnerReport> {
    array.change_running(change).await?;
    Ok(OwnerReport::of(&array.status()))
}

/// Changes the volume `name` of the pool on the array or on a namespace, or the volume that has all of it.
async fn set_volume(
    daemon: &Daemon,
    on: Option<&str>,
    name: Option<String>,
    change: VolumeChange,
) -> Result<VolumeSet> {
    let status = daemon.array.status();
    ensure!(!status.read_only, "'{}' is read-only: stop it and start it without --read-only", status.name);
    let carrier = carrier(&status.name, on);
    let namespaces = daemon.divided.borrow().as_ref().map(Namespaces::list).unwrap_or_default();
    let namespace = namespaces.into_iter().find(|namespace| Some(namespace.name()) == on);
    let (volume, called) = match name {
        Some(name) => (volumes::pool(daemon, on)?.find(&name)?, format!("{carrier}/{name}")),
        None => {
            let is_pool = daemon.pool_on(on).is_some();
            ensure!(!is_pool, "'{carrier}' carries a pool of volumes: use {carrier}/NAME");
            let number = |namespace: &Option<Namespace>| namespace.as_ref().map(Namespace::number);
            ensure!(
                on.is_none() || namespace.is_some(),
                "'{}' runs, and has no namespace '{}'",
                status.name,
                on.unwrap_or_default()
            );
            let found = daemon.volumes().into_iter().find(|(of, _)| number(of) == number(&namespace));
            (found.with_context(|| no_volume(&carrier))?.1, carrier)
        }
    };
    change.carry_out(&volume).await?;
    let mut set = VolumeSet::of(called, &volume.status());
    if change.blocks.is_some() {
        let number = served_number(namespace.as_ref(), Some(&volume));
        let block = daemon.blocks.borrow().iter().find(|block| block.number() == number).cloned();
        if let Some(block) = block {
            // The volume has its new size in any case.
            let resized = block.take_size().await.unwrap_or_else(|error| {
                log(&format!("{error:#}"));
                false
            });
            set.block_device_resized = Some(resized);
        }
    }
    Ok(set)
}

async fn zones(array: &Array, zone: Option<u32>) -> Result<Zones> {
    let geometry = array.geometry();
    let report = Command::Report { first: ZoneIndex(0), count: geometry.zones };
    let done = array.submit(report).await;
    done.result.context("the array gives no zone report")?;
    Zones::of(&array.status().name, geometry, &done.zones, zone)
}

async fn examine(daemon: &Daemon, path: &Path) -> Result<ExamineReport> {
    let drive = drives::held(daemon, path);
    let name = || format!("{} is not a drive of '{}'", path.display(), daemon.array.status().name);
    let mut drive = drive.with_context(name)?;
    drive.look_again(&daemon.reactor).await;
    ExamineReport::of(&drive).await
}

/// Ends the daemon if `stop` has been carried out; called when its answer has been sent.
fn end_if_stopped(daemon: &Daemon) {
    if daemon.phase.get() == Phase::Stopped {
        daemon.set_phase(Phase::Ended);
    }
}
