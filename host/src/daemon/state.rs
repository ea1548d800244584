//! The state of a daemon, and its status report.

use super::{block::Block, rebuilder::Rebuilder, socket::ControlSocket};
use crate::{
    control::protocol::{About, TrafficDevice, TrafficDrive, TrafficReport},
    drive::ModelAndSerial,
    members::OpenDrive,
    process::output::{in_one_line, quoted, uuid},
    reactor::{Reactor, workers::WorkerThreads},
    report::{EventReport, Space, Status, VolumeReport, ZoneContents, level},
    serve::{ack_log::AckLog, nbd},
};
use anyhow::{Result, bail};
use engine::{
    array::{Array, ArrayStatus, MemberState},
    buf::BLOCK,
    device::ZonedDevice,
    runtime::{Exclusive, Gate},
    volume::{Volume, VolumeOptions},
    vzone::Namespaces,
};
use sd_notify::NotifyState;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io::Write,
    path::PathBuf,
    rc::{Rc, Weak},
    time::Duration,
};

/// Writes a line to standard error, which usually goes to the journal.
pub(super) fn log(line: &str) {
    // If standard error is closed there is nowhere to report that, and the array continues to run.
    let _ = writeln!(std::io::stderr().lock(), "zoneraid: {}", in_one_line(line));
}

/// Notifies the service manager, if there is one.
pub(super) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log(&format!("the service manager cannot be notified: {error}"));
    }
}

/// The absolute path of a member's drive, for clients with another working directory.
pub(super) fn absolute(drive: &str) -> PathBuf {
    std::path::absolute(drive).unwrap_or_else(|_| PathBuf::from(drive))
}

/// The results of two steps, the second of which follows a failure of the first one too: no error is lost.
pub(super) fn both(first: Result<()>, second: Result<()>) -> Result<()> {
    match (first, second) {
        (Err(first), Err(second)) => bail!("{first:#}; {second:#}"),
        (first, second) => first.and(second),
    }
}

/// Whether the array is read-only, or in deferred-write mode: nothing has been written to its drives.
pub(super) fn holds_back(array: &ArrayStatus) -> bool {
    array.provisional || array.read_only
}

/// Phase of the daemon's shutdown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// Block devices are being taken down or left.
    Ending,
    /// The array is stopped, and the answer to the client not sent yet.
    Stopped,
    Ended,
}

/// A running array.
pub struct Daemon {
    pub(super) reactor: Reactor,
    pub array: Array,
    /// The drives found at the start, and those added since.
    pub(super) drives: RefCell<Vec<OpenDrive>>,
    /// Directory of socket and tails.
    pub(super) directory: PathBuf,
    pub(super) control: ControlSocket,
    pub(super) rebuilder: Rebuilder,
    /// The volume on the array, if there is one.
    pub(super) volume: RefCell<Option<Volume>>,
    /// Options of volumes, and messages about data that they have given up.
    pub(super) behaviour: VolumeOptions,
    pub(super) losses: RefCell<Vec<String>>,
    /// The compression workers, which live as long as a volume uses them.
    pub(super) worker_threads: RefCell<Weak<WorkerThreads>>,
    /// The namespaces, if the array is divided.
    pub(super) divided: RefCell<Option<Namespaces>>,
    /// The tails file: acknowledged ends, for the next process if this one dies.
    pub(super) tails: RefCell<Option<Rc<AckLog>>>,
    /// Serializes changes of namespaces and the end of the daemon.
    pub(super) administration: Exclusive,
    /// The block device of the array, or those of its namespaces, sorted by number.
    pub(super) blocks: RefCell<Vec<Rc<Block>>>,
    /// The server of NBD clients, if the volume is served to these.
    pub(super) nbd: RefCell<Option<Rc<nbd::Server>>>,
    /// Error with which the daemon ends.
    pub(super) failure: RefCell<Option<anyhow::Error>>,
    /// States of the members at the last call of `publish_status`.
    pub(super) logged_states: RefCell<Vec<MemberState>>,
    /// Shortage of space in each volume, by name, as last logged.
    pub(super) logged_space: RefCell<BTreeMap<String, Space>>,
    pub(super) phase: Cell<Phase>,
    /// Whether a request to end is being processed.
    pub(super) ending: Cell<bool>,
    pub(super) phase_changed: Gate,
}

impl Daemon {
    /// Messages about data given up at the start.
    pub fn losses(&self) -> Vec<String> {
        self.losses.borrow().clone()
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
        self.phase_changed.open();
    }

    /// Logs the members that have gone out since the last call, and sends the array's status to the service manager.
    pub(super) fn publish_status(&self) {
        let array = self.array.status();
        let members = array.members.iter();
        let before = self.logged_states.replace(members.map(|member| member.state).collect());
        let (was, is) = (before.len(), array.members.len());
        assert!(was == 0 || was == is, "an array of {was} members has {is}");
        for (role, member) in array.members.iter().enumerate() {
            if member.state == MemberState::Out && before.get(role) != Some(&MemberState::Out) {
                let drive = if member.drive.is_empty() { "" } else { &format!(" ({})", member.drive) };
                let why = if member.note.is_empty() { "" } else { &format!(": {}", member.note) };
                let does = if member.awaited { "waits for" } else { "runs without" };
                let drive_id = ModelAndSerial::kept(&member.drive_id).words();
                log(&format!("'{}' {does} member {role}{drive}{drive_id}{why}", array.name));
            }
        }
        let status = self.status();
        notify(&[NotifyState::Status(&format!("{}: {}", status.state, status.status))]);
    }

    /// Logs when space in a volume, of the array or on a namespace, becomes scarcer; never returns.
    pub(super) async fn watch_space(self: Rc<Self>) {
        while let Ok(ring) = self.reactor.ring().cloned() {
            ring.sleep(Duration::from_secs(1)).await;
            let name = self.array.status().name;
            let own = self.volume.borrow().as_ref().map(|volume| (name.clone(), volume.clone()));
            let on_namespace = |block: &Rc<Block>| {
                let called = format!("{name}/{}", block.namespace.as_ref()?.name());
                Some((called, block.volume.clone()?))
            };
            let blocks = self.blocks.borrow().clone();
            let volumes = own.into_iter().chain(blocks.iter().filter_map(on_namespace));
            let reports: BTreeMap<String, VolumeReport> =
                volumes.map(|(called, volume)| (called, VolumeReport::of(&volume.status(), 0, 0))).collect();
            let spaces = reports.iter().map(|(called, report)| (called.clone(), report.space)).collect();
            let before = self.logged_space.replace(spaces);
            for (called, report) in reports {
                if before.get(&called).is_none_or(|before| report.space > *before)
                    && let Some((what, action)) = report.shortage()
                {
                    log(&format!("'{called}': {what}; {action}"));
                }
            }
        }
    }

    /// The status report.
    pub fn status(&self) -> Status {
        let array = self.array.status();
        let mut status = Status::of(&array.name, &array, self.array.geometry());
        for member in status.members.iter_mut().filter(|member| !member.drive.is_empty()) {
            member.drive = absolute(&member.drive).display().to_string();
        }
        status.pid = Some(std::process::id());
        status.longest_turn_us = Some(self.reactor.turns().longest_us());
        if let Some(block) = self.own_block() {
            status.block_device = Some(block.path.display().to_string());
            status.link = block.link.as_ref().map(|link| link.display().to_string());
        }
        status.nbd = self.nbd.borrow().as_ref().map(|server| server.place().to_string());
        status.volume = self.volume.borrow().as_ref().map(|volume| {
            let drives = self.drives.borrow();
            let drives_bytes: u64 = drives.iter().map(|drive| drive.traffic.writes.bytes()).sum();
            let rebuilt_bytes = self.rebuilder.written_bytes();
            VolumeReport::of(&volume.status(), drives_bytes / BLOCK as u64, rebuilt_bytes / BLOCK as u64)
        });
        status.namespaces = self.division();
        match (&status.volume, &status.namespaces) {
            (Some(_), _) => status.respect(ZoneContents::Volume),
            (None, Some(_)) => status.respect(ZoneContents::Namespaces),
            (None, None) => {}
        }
        if let Some(volume) = status.volume.as_ref().filter(|_| !status.failed_zones.is_empty()) {
            // Users do not reset the zones of a volume: the advice to do so is replaced.
            status.action = Some(match volume.failed {
                Some(_) => format!(
                    "stop it and start it again, so that the volume uses other zones: zoneraid stop {}",
                    quoted(&status.name)
                ),
                None => "none needed; the volume moves its data to other zones".into(),
            });
        }
        status.add_shortages();
        status.events = EventReport::lately(self.array.events(0));
        status.rebuild = self.rebuilder.progress();
        if status.rebuild.is_some() && array.members.iter().all(|m| m.state != MemberState::Out) {
            status.action = None;
        }
        status.identify(&self.drives.borrow())
    }

    /// Request counters of block devices and drives.
    pub(super) fn traffic_report(&self) -> TrafficReport {
        let (blocks, drives, status) = (self.blocks.borrow(), self.drives.borrow(), self.array.status());
        let devices = blocks.iter().map(|block| TrafficDevice {
            namespace: block.namespace.as_ref().map(|namespace| namespace.name().into()),
            client: None,
            counted: block.traffic.counted(),
        });
        let of_nbd = self.nbd.borrow().as_ref().map(|server| server.counted());
        let of_nbd = of_nbd.into_iter().flat_map(|(all, clients)| {
            let clients = clients.into_iter().map(|(number, counted)| (Some(number), counted));
            let lines = [(None, all)].into_iter().chain(clients);
            lines.map(|(client, counted)| TrafficDevice { namespace: None, client, counted })
        });
        let drives = drives.iter().map(|drive| {
            let name = drive.path.display().to_string();
            let role = status.members.iter().position(|member| member.drive == name);
            TrafficDrive {
                drive: absolute(&name),
                role: role.map(|role| role as u32),
                counted: drive.traffic.counted(),
            }
        });
        TrafficReport {
            devices: devices.chain(of_nbd).collect(),
            drives: drives.collect(),
            turns: self.reactor.turns().counts(),
        }
    }

    /// The block device of the array itself.
    fn own_block(&self) -> Option<Rc<Block>> {
        self.blocks.borrow().iter().find(|block| block.namespace.is_none()).cloned()
    }

    /// Identity of the array, its daemon and its devices.
    pub fn about(&self) -> About {
        let status = self.array.status();
        let drives = status.members.iter().filter(|member| !member.drive.is_empty());
        let block = self.own_block();
        About {
            name: status.name.clone(),
            uuid: uuid(&status.uuid),
            pid: std::process::id(),
            block_device: block.as_ref().map(|block| block.path.clone()),
            link: block.as_ref().and_then(|block| block.link.clone()),
            namespaces: self.namespace_devices(),
            level: level(status.parities),
            members: status.members.len() as u32,
            policy: status.policy.name_with(status.group_blocks).into(),
            aggregate: status.aggregate,
            drives: drives.map(|member| absolute(&member.drive)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn both_keeps_errors_of_both_steps() {
        let failed = |why: &'static str| Err(anyhow!(why).context("outer"));
        assert!(both(Ok(()), Ok(())).is_ok());
        let said = |first, second| format!("{:#}", both(first, second).unwrap_err());
        assert_eq!(said(failed("one"), failed("two")), "outer: one; outer: two");
        assert_eq!(said(failed("one"), Ok(())), "outer: one");
        assert_eq!(said(Ok(()), failed("two")), "outer: two");
    }
}
