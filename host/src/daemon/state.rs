//! The state of a daemon.

use super::{block::Block, rebuilder::Rebuilder, scrubber::Scrubber, socket::ControlSocket};
use crate::{
    members::OpenDrive,
    process::output::in_one_line,
    reactor::{Reactor, workers::WorkerThreads},
    report::{Space, VolumeLosses},
    serve::{ack_log::AckLog, nbd, ublk::ServedNumber},
};
use anyhow::{Result, bail};
use engine::{
    array::{Array, ArrayStatus, LostBlocks, MemberState},
    runtime::{Exclusive, Gate},
    volume::{Pool, Volume, VolumeOptions},
    vzone::{Namespace, Namespaces},
    zone::ZoneIndex,
};
use sd_notify::NotifyState;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io::Write,
    ops::Range,
    path::PathBuf,
    rc::{Rc, Weak},
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

/// Waits until the array is writable and out of deferred-write mode.
pub(super) async fn writing_begun(array: &Array) {
    loop {
        let changed = array.changed();
        if !holds_back(&array.status()) {
            return;
        }
        changed.await;
    }
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

/// A pool of volumes on a namespace.
#[derive(Clone)]
pub(super) struct NamespacePool {
    pub namespace: Namespace,
    pub pool: Pool,
    /// The acknowledgement log of the block devices of its volumes.
    pub ack_log: Rc<AckLog>,
}

/// A running array.
pub struct Daemon {
    pub(super) reactor: Reactor,
    pub array: Array,
    /// The drives found at the start, and those added since.
    pub(super) drives: RefCell<Vec<OpenDrive>>,
    /// Directory of the socket and the acknowledgement logs.
    pub(super) directory: PathBuf,
    pub(super) control: ControlSocket,
    pub(super) rebuilder: Rebuilder,
    pub(super) scrubber: Scrubber,
    /// The volume on the array, if there is one; all blocks of the pool, if there is one.
    pub(super) volume: RefCell<Option<Volume>>,
    /// The pool of volumes on the array, if there is one.
    pub(super) pool: RefCell<Option<Pool>>,
    /// The pools of volumes on namespaces, by the numbers of these.
    pub(super) pools: RefCell<BTreeMap<u32, NamespacePool>>,
    /// Options of volumes, and messages about data that they have given up.
    pub(super) behaviour: VolumeOptions,
    pub(super) losses: RefCell<Vec<String>>,
    /// The compression workers, which live as long as a volume uses them.
    pub(super) worker_threads: RefCell<Weak<WorkerThreads>>,
    /// The namespaces, if the array is divided.
    pub(super) divided: RefCell<Option<Namespaces>>,
    /// The acknowledgement log: acknowledged ends, for the next process if this one dies.
    pub(super) ack_log: RefCell<Option<Rc<AckLog>>>,
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
    /// Losses of volumes, as last looked up.
    pub(super) volume_losses: RefCell<KnownLosses>,
    /// Shortage of space in each volume, by name, as last logged.
    pub(super) logged_space: RefCell<BTreeMap<String, Space>>,
    pub(super) phase: Cell<Phase>,
    /// Whether a request to end is being processed.
    pub(super) ending: Cell<bool>,
    pub(super) phase_changed: Gate,
}

/// The number of the namespace that carries a volume, and that of the volume in its pool, if there are these.
pub type VolumeNumber = (Option<u32>, Option<u32>);

/// Losses of the volumes of an array.
#[derive(Default)]
pub struct KnownLosses {
    /// The losses of the array that they are part of.
    pub lost: Vec<LostBlocks>,
    /// Losses of each volume.
    pub of_volumes: BTreeMap<VolumeNumber, VolumeLosses>,
}

impl KnownLosses {
    /// Losses of a volume, if the array has lost `lost`; `None` if they are not known.
    pub fn of(&self, lost: &[LostBlocks], number: VolumeNumber) -> Option<VolumeLosses> {
        match lost.is_empty() {
            true => Some(VolumeLosses::default()),
            false => self.of_volumes.get(&number).filter(|_| self.lost == lost).cloned(),
        }
    }
}

/// Zones with lost blocks, each with their ranges. `lost` is in the order of zones.
pub fn by_zone(lost: &[LostBlocks]) -> impl Iterator<Item = (ZoneIndex, Vec<Range<u64>>)> {
    let of_zone = lost.chunk_by(|a, b| a.zone == b.zone);
    of_zone.map(|of_zone| {
        let ranges = of_zone.iter().map(|lost| lost.from..lost.from + lost.blocks).collect();
        (ZoneIndex(of_zone[0].zone), ranges)
    })
}

/// Losses of the array that lie in a namespace, as ranges of its v-zones, in their order.
pub fn lost_in(namespace: &Namespace, lost: &[LostBlocks]) -> Vec<LostBlocks> {
    let parts = by_zone(lost).flat_map(|(zone, ranges)| namespace.stored_in(zone, &ranges));
    let in_vzone = |(zone, blocks): (ZoneIndex, Range<u64>)| LostBlocks {
        zone: zone.0,
        from: blocks.start,
        blocks: blocks.end - blocks.start,
    };
    let mut parts: Vec<LostBlocks> = parts.map(in_vzone).collect();
    parts.sort_unstable_by_key(|lost| (lost.zone, lost.from));
    let are_apart =
        parts.is_sorted_by(|a, b| a.zone < b.zone || a.zone == b.zone && a.from + a.blocks <= b.from);
    assert!(are_apart, "blocks of a namespace lie in two places: {parts:?}");
    parts
}

impl Daemon {
    /// The volumes that have all of a device: that of the array or all blocks of its pool, and the same of each namespace,
    /// with these.
    pub(super) fn volumes(&self) -> Vec<(Option<Namespace>, Volume)> {
        let own = self.volume.borrow().as_ref().map(|volume| (None, volume.clone()));
        let (blocks, pools) = (self.blocks.borrow(), self.pools.borrow());
        let on_namespaces =
            blocks.iter().filter_map(|block| Some((Some(block.namespace.clone()?), block.volume.clone()?)));
        let on_namespaces = on_namespaces.filter(|(_, volume)| volume.slot().is_none());
        let of_pools = pools.values().map(|on| (Some(on.namespace.clone()), on.pool.space().clone()));
        own.into_iter().chain(on_namespaces).chain(of_pools).collect()
    }

    /// The volumes of which losses are told, with their numbers and their namespaces: those that are served, and all of the
    /// pools.
    pub(super) fn losing_volumes(&self) -> Vec<(VolumeNumber, Option<Namespace>, Volume)> {
        let (own, on_namespaces) = (self.pool.borrow(), self.pools.borrow());
        let own = own.iter().map(|pool| (None, pool.clone()));
        let on_namespaces = on_namespaces.values().map(|on| (Some(on.namespace.clone()), on.pool.clone()));
        let pools: Vec<(Option<Namespace>, Pool)> = own.chain(on_namespaces).collect();
        let number = |namespace: &Option<Namespace>| namespace.as_ref().map(Namespace::number);
        let of_pools = pools.iter().flat_map(|(namespace, pool)| {
            let volumes = pool.volumes().into_iter();
            volumes.map(move |volume| ((number(namespace), volume.slot()), namespace.clone(), volume))
        });
        let without_pool =
            |namespace: &Option<Namespace>| pools.iter().all(|(of, _)| number(of) != number(namespace));
        let others = self.volumes().into_iter().filter(|(namespace, _)| without_pool(namespace));
        let others = others.map(|(namespace, volume)| ((number(&namespace), None), namespace, volume));
        of_pools.chain(others).collect()
    }

    /// The pool on the array, or on a namespace.
    pub(super) fn pool_on(&self, namespace: Option<&str>) -> Option<Pool> {
        match namespace {
            Some(name) => self.pool_on_namespace(name).map(|on| on.pool),
            None => self.pool.borrow().clone(),
        }
    }

    /// The pool on a namespace.
    pub(super) fn pool_on_namespace(&self, name: &str) -> Option<NamespacePool> {
        self.pools.borrow().values().find(|on| on.namespace.name() == name).cloned()
    }

    /// Runs the array until it is stopped, or a signal ends the daemon.
    pub fn run(&self) -> Result<()> {
        notify(&[NotifyState::Ready]);
        self.reactor.wait(async {
            while self.phase.get() != Phase::Ended {
                self.phase_changed.wait().await;
            }
        })?;
        let failure = self.failure.take();
        self.give_up();
        failure.map_or(Ok(()), Err)
    }

    /// Closes the control socket and releases the drives.
    pub fn give_up(&self) {
        self.control.close();
        // Tasks hold the daemon, and with it the drives.
        self.reactor.runtime().clear();
    }

    /// Whether block devices are left to the next daemon.
    pub(super) fn is_left(&self) -> bool {
        self.blocks.borrow().iter().any(|block| !block.stop.get())
    }

    /// Messages about data given up at the start.
    pub fn losses(&self) -> Vec<String> {
        self.losses.borrow().clone()
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
        self.phase_changed.open();
    }

    /// The block device of the array itself.
    pub(super) fn own_block(&self) -> Option<Rc<Block>> {
        self.blocks.borrow().iter().find(|block| block.number() == ServedNumber::ARRAY).cloned()
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
