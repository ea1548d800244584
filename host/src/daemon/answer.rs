//! Answers requests on the control socket. Each connection has its own task.

use super::{
    socket::{ControlConnection, request},
    state::{Daemon, Phase, log},
};
use crate::{
    control::protocol::{Answer, Request, StopReport, VolumeChange},
    members::repair,
    process::{machine, output::uuid},
    reactor::{give_way, ring::Ring},
    report::{ExamineReport, OwnerReport, VolumeSet, Zones, no_volume},
};
use anyhow::{Context, Result, ensure};
use engine::{
    device::{Command, ZonedDevice},
    owner::Change,
    zone::ZoneIndex,
};
use serde_json::Value;
use std::{io::ErrorKind, path::Path, rc::Rc, time::Duration};

/// Most connections at a time; more have to wait.
const MAX_CONNECTIONS: u32 = 32;

/// Pause after a failure to accept connections.
const PAUSE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Accepts connections until the daemon ends.
    pub(super) async fn take_connections(self: Rc<Self>, ring: Ring) {
        loop {
            while self.control.connections.get() >= MAX_CONNECTIONS {
                self.control.ended.wait().await;
            }
            match self.control.listener.accept() {
                Ok((stream, _)) => {
                    self.control.connections.set(self.control.connections.get() + 1);
                    let (served, ring) = (self.clone(), ring.clone());
                    self.reactor.runtime().spawn(async move {
                        // If the client disconnects, only its connection ends.
                        if let Ok(connection) = ControlConnection::new(ring, stream) {
                            let _ = served.attend(connection).await;
                        }
                        let control = &served.control;
                        let connections = control.connections.get();
                        assert!(connections > 0, "more connections of clients have ended than had begun");
                        control.connections.set(connections - 1);
                        control.ended.open();
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ring.ready(self.control.listener.clone(), libc::POLLIN).await;
                }
                Err(error) => {
                    log(&format!(
                        "{}: a connection cannot be accepted: {error}",
                        self.control.path.display()
                    ));
                    ring.sleep(PAUSE).await;
                }
            }
        }
    }

    /// Answers the requests of one client until it disconnects.
    async fn attend(self: &Rc<Self>, mut connection: ControlConnection) -> Result<()> {
        while let Some(line) = connection.read_line().await? {
            let answer = match request(&line) {
                Ok(request) => self.clone().answer(request, &connection).await,
                Err(error) => Err(error),
            };
            let answer = match answer {
                Ok(value) => Answer::Done(value),
                Err(error) => Answer::Error(format!("{error:#}")),
            };
            let sent = connection.send(answer).await;
            // Also if the client has not received the answer.
            self.end_if_stopped();
            sent?;
            // The client may already have sent its next request.
            give_way().await;
        }
        Ok(())
    }

    async fn answer(self: Rc<Self>, request: Request, connection: &ControlConnection) -> Result<Value> {
        ensure!(self.phase.get() == Phase::Running, "'{}' is being stopped", self.array.status().name);
        Ok(match request {
            Request::About => serde_json::to_value(self.about())?,
            Request::Status => serde_json::to_value(self.status())?,
            Request::Traffic => serde_json::to_value(self.traffic_report())?,
            Request::Zones { zone } => serde_json::to_value(self.zones(zone).await?)?,
            Request::Fail { member } => {
                let failed = match self.cancel_copy_to(&member).await? {
                    Some(cancelled) => cancelled,
                    None => repair::fail(&self.array, self.role(&member)?).await?,
                };
                serde_json::to_value(failed)?
            }
            Request::Replace { member, drive, now, yes } => {
                serde_json::to_value(self.replace(&member, &drive, (now, yes), connection).await?)?
            }
            Request::CancelCopy { member } => serde_json::to_value(self.cancel_copy(member.as_ref()).await?)?,
            Request::Rebuild => serde_json::to_value(self.rebuild_for(connection).await?)?,
            Request::Examine { drive } => serde_json::to_value(self.examine(&drive).await?)?,
            Request::Adopt => {
                let host = machine::id().context(machine::NO_IDENTITY)?;
                serde_json::to_value(self.change(&Change::Host(host)).await?)?
            }
            Request::Autostart { yes } => serde_json::to_value(self.change(&Change::Autostart(yes)).await?)?,
            Request::SetVolume(change) => serde_json::to_value(self.set_volume(change).await?)?,
            Request::CreateNamespace(wanted) => serde_json::to_value(self.create_namespace(&wanted).await?)?,
            Request::ResizeNamespace { namespace, blocks } => {
                serde_json::to_value(self.resize_namespace(&namespace, blocks).await?)?
            }
            Request::Qos { namespace, qos } => {
                serde_json::to_value(self.set_qos(&namespace, qos.into()).await?)?
            }
            Request::RemoveNamespace { namespace, yes } => {
                serde_json::to_value(self.remove_namespace(&namespace, yes).await?)?
            }
            Request::Stop => {
                let status = self.array.status();
                let result = self.end(false).await;
                let ended = self.phase.get() == Phase::Ending;
                if ended {
                    self.set_phase(Phase::Stopped);
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

    async fn change(&self, change: &Change) -> Result<OwnerReport> {
        self.array.change_running(change).await?;
        Ok(OwnerReport::of(&self.array.status()))
    }

    async fn set_volume(&self, change: VolumeChange) -> Result<VolumeSet> {
        let status = self.array.status();
        let volume = self.volume.borrow().clone().with_context(|| no_volume(&status.name))?;
        ensure!(
            !status.read_only,
            "'{}' is read-only: stop it and start it without --read-only",
            status.name
        );
        change.carry_out(&volume).await?;
        Ok(VolumeSet::of(status.name, &volume.status()))
    }

    async fn zones(&self, zone: Option<u32>) -> Result<Zones> {
        let geometry = self.array.geometry();
        let report = Command::Report { first: ZoneIndex(0), count: geometry.zones };
        let done = self.array.submit(report).await;
        done.result.context("the array gives no zone report")?;
        Zones::of(&self.array.status().name, geometry, &done.zones, zone)
    }

    async fn examine(&self, path: &Path) -> Result<ExamineReport> {
        let drive = self.held(path);
        let name = || format!("{} is not a drive of '{}'", path.display(), self.array.status().name);
        let mut drive = drive.with_context(name)?;
        drive.look_again(&self.reactor).await;
        ExamineReport::of(&drive).await
    }

    /// Ends the daemon if `stop` has been carried out; called when its answer has been sent.
    fn end_if_stopped(&self) {
        if self.phase.get() == Phase::Stopped {
            self.set_phase(Phase::Ended);
        }
    }
}
