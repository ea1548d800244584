//! The daemon of an array: holds its drives, serves the array, its namespaces or its volume as block devices, or the
//! volume to NBD clients, answers on the control socket, and rebuilds in the background. One thread, one reactor.
//!
//! Block devices outlive the daemon. On a signal to end while one is in use, the daemon leaves them behind, like a
//! daemon that is killed: the kernel keeps them, with mounted file systems, and queues requests until the next daemon
//! takes over.

mod answer;
mod await_members;
mod block;
mod drives;
mod namespaces;
mod rebuild;
mod rebuilder;
mod serve;
mod socket;
mod state;

pub use socket::request;
pub use state::Daemon;

use crate::{
    members::{FoundArray, OpenDrive, Session, StartTerms, directory_of},
    process::{proc_status::ignores, run},
    reactor::{FENCE_CHECK, ring::Ring},
    serve::ack_log::AckLogContents,
};
use anyhow::{Context, Result};
use await_members::Others;
use engine::{
    array::{MemberState, MemberStatus},
    runtime::{Exclusive, Gate},
    volume::{VolumeOptions, pages_in},
};
use rebuilder::Rebuilder;
use sd_notify::NotifyState;
use socket::ControlSocket;
use state::{Phase, holds_back, log, notify};
use std::{
    cell::{Cell, RefCell},
    os::unix::net::UnixStream,
    path::Path,
    rc::Rc,
    time::Duration,
};

/// Interval at which all members are probed.
const PROBE_EVERY: Duration = Duration::from_secs(3);
/// Interval at which the drives are checked for power losses and resets.
const CHECK_POWER_EVERY: Duration = Duration::from_secs(10);

/// Receives the signals that end a daemon, from its creation on.
pub struct Signals(Rc<UnixStream>);

impl Signals {
    pub fn new() -> Result<Signals> {
        let problem = "signals cannot be watched";
        let (signalled, sender) = UnixStream::pair().context(problem)?;
        let hangup = (!ignores(libc::SIGHUP)).then_some(libc::SIGHUP);
        for signal in [libc::SIGTERM, libc::SIGINT].into_iter().chain(hangup) {
            let sender = sender.try_clone().context(problem)?;
            signal_hook::low_level::pipe::register(signal, sender).context(problem)?;
        }
        Ok(Signals(Rc::new(signalled)))
    }
}

impl Daemon {
    /// Assembles the array and listens on a socket in `directory`. `left` is the tails file of a dead daemon; the array
    /// continues at the acknowledged ends in it.
    pub fn start(
        found: FoundArray,
        directory: &Path,
        left: Option<&AckLogContents>,
        terms: StartTerms,
    ) -> Result<Rc<Daemon>> {
        run::make(directory)?;
        let place = found.drives.first().map(|drive| directory_of(&drive.path)).unwrap_or_default();
        let paths = found.drives.iter().map(|drive| drive.path.as_path());
        let others = Others::new(paths, found.damaged.iter().map(|(path, _)| path.as_path()));
        let filled = found.filled.clone();
        let Session { reactor, array, .. } = found.start(left, terms)?;
        array.feed(reactor.buffers());
        let status = array.status();
        // The drives of members that are out are released.
        let used = |drive: &OpenDrive| {
            let name = drive.path.display().to_string();
            status.members.iter().any(|member| member.state != MemberState::Out && member.drive == name)
        };
        let drives = found.drives.into_iter().filter(used).collect();
        let ring = reactor.ring()?.clone();
        let daemon = Rc::new(Daemon {
            reactor,
            array,
            drives: RefCell::new(drives),
            directory: directory.to_path_buf(),
            control: ControlSocket::listen(&run::socket_path(directory, &status.uuid))?,
            rebuilder: Rebuilder::default(),
            volume: RefCell::default(),
            worker_threads: RefCell::default(),
            behaviour: VolumeOptions {
                give_up: terms.give_up,
                map_pages: terms.map_memory.map(pages_in),
                ..VolumeOptions::default()
            },
            losses: RefCell::default(),
            divided: RefCell::default(),
            tails: RefCell::default(),
            administration: Exclusive::default(),
            blocks: RefCell::default(),
            nbd: RefCell::default(),
            failure: RefCell::default(),
            logged_states: RefCell::default(),
            logged_space: RefCell::default(),
            phase: Cell::new(Phase::Running),
            ending: Cell::new(false),
            phase_changed: Gate::default(),
        });
        let runtime = daemon.reactor.runtime().clone();
        runtime.spawn(daemon.clone().take_connections(ring.clone()));
        runtime.spawn(daemon.clone().watch_fence(ring));
        runtime.spawn(daemon.clone().watch());
        runtime.spawn(daemon.clone().probe());
        runtime.spawn(daemon.clone().watch_space());
        runtime.spawn(daemon.clone().watch_power());
        if status.provisional {
            runtime.spawn(daemon.clone().await_missing(place, others));
        }
        if !status.read_only && !filled.is_empty() {
            runtime.spawn(daemon.clone().continue_copies(filled));
        }
        Ok(daemon)
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

    /// Ends the daemon on a signal, also on one that has arrived already.
    pub fn end_on(self: &Rc<Self>, signals: Signals) -> Result<()> {
        let ready = self.reactor.ring()?.ready(signals.0, libc::POLLIN);
        let daemon = self.clone();
        self.reactor.runtime().spawn(async move {
            ready.await;
            // A client may have requested the end, and that may still be refused.
            while daemon.ending.get() {
                daemon.phase_changed.wait().await;
            }
            if daemon.phase.get() != Phase::Running {
                return;
            }
            notify(&[NotifyState::Stopping]);
            daemon.log_copy_given_up();
            if let Err(error) = daemon.end(true).await {
                daemon.failure.borrow_mut().get_or_insert(error);
            }
            daemon.set_phase(Phase::Ended);
        });
        Ok(())
    }

    /// Requests a zone report from all members at intervals, so that a lost drive is noticed without reads and writes.
    /// An array in deferred-write mode does that itself.
    async fn probe(self: Rc<Self>) {
        let Ok(ring) = self.reactor.ring().cloned() else { return };
        while self.phase.get() == Phase::Running {
            ring.sleep(PROBE_EVERY).await;
            if !self.array.is_deferred() {
                self.array.probe().await;
            }
        }
    }

    /// Compares the drives' power cycles and zones with the state of the array: while it is idle nothing else notices a
    /// change.
    async fn watch_power(self: Rc<Self>) {
        while let Ok(ring) = self.reactor.ring() {
            ring.sleep(CHECK_POWER_EVERY).await;
            self.array.check_power().await;
        }
    }

    /// Checks every second whether another host has assembled the array, in which case it is fenced here.
    async fn watch_fence(self: Rc<Self>, ring: Ring) {
        while self.array.check_fence().await.is_ok() {
            ring.sleep(FENCE_CHECK).await;
        }
        log("another host has started the array, so that it is fenced here: stop this daemon");
    }

    /// Logs changes of members, and starts a rebuild when the array begins to write, and later when zones wear out, as
    /// long as there are spare zones.
    async fn watch(self: Rc<Self>) {
        let mut writes = false;
        loop {
            let changed = self.array.changed();
            self.publish_status();
            let status = self.array.status();
            if let Some(tails) = self.tails.borrow().as_ref().filter(|_| !holds_back(&status)) {
                tails.note_power(&self.array.power_marks());
            }
            let heals = |member: &MemberStatus| {
                member.state == MemberState::Rebuilding && member.worn && !member.is_worn_out()
            };
            if !holds_back(&status) && (!writes || status.members.iter().any(heals)) {
                writes = true;
                self.start_rebuild();
            }
            changed.await;
        }
    }
}
