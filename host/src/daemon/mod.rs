//! The daemon of an array: holds its drives, serves the array, its namespaces or its volume as block devices, or the
//! volume to NBD clients, answers on the control socket, and rebuilds in the background. One thread, one reactor.
//!
//! Block devices outlive the daemon. On a signal to end while one is in use, the daemon leaves them behind, like a
//! daemon that is killed: the kernel keeps them, with mounted file systems, and queues requests until the next daemon
//! takes over.
//!
//! `state.rs` is the state, and each of the other files has functions for one of its operations: `open.rs`, `serve.rs`
//! and `end.rs` from the first block device to the last flush, `watch.rs`, `rebuild.rs` and `scrub.rs` in the background,
//! `answer.rs` for clients.

mod answer;
mod await_members;
mod block;
mod drives;
mod end;
mod namespaces;
mod open;
mod rebuild;
mod rebuilder;
mod scrub;
mod scrubber;
mod serve;
mod socket;
mod state;
mod status;
mod volumes;
mod watch;

pub use serve::{serve_block_devices, serve_nbd};
pub use socket::request;
pub use state::Daemon;
pub use status::{about, status};

use crate::{
    members::{FoundArray, OpenDrive, Session, StartTerms, directory_of},
    process::{proc_status::ignores, run},
    serve::ack_log::AckLogContents,
};
use anyhow::{Context, Result};
use await_members::Others;
use engine::{
    array::MemberState,
    runtime::{Exclusive, Gate},
    volume::{VolumeOptions, pages_in},
};
use rebuilder::Rebuilder;
use scrubber::Scrubber;
use sd_notify::NotifyState;
use socket::ControlSocket;
use state::{Phase, notify};
use std::{
    cell::{Cell, RefCell},
    os::unix::net::UnixStream,
    path::Path,
    rc::Rc,
};

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

/// Assembles the array and listens on a socket in `directory`. `left` is the acknowledgement log of a dead daemon; the
/// array continues at the acknowledged ends in it.
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
    let Session { reactor, array, closing, .. } = found.start(left, terms)?;
    closing.hand_over();
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
        scrubber: Scrubber::of(&status.uuid),
        volume: RefCell::default(),
        pool: RefCell::default(),
        pools: RefCell::default(),
        worker_threads: RefCell::default(),
        behaviour: VolumeOptions {
            give_up: terms.give_up,
            map_pages: terms.map_memory.map(pages_in),
            ..VolumeOptions::default()
        },
        losses: RefCell::default(),
        divided: RefCell::default(),
        ack_log: RefCell::default(),
        administration: Exclusive::default(),
        blocks: RefCell::default(),
        nbd: RefCell::default(),
        failure: RefCell::default(),
        logged_states: RefCell::default(),
        volume_losses: RefCell::default(),
        logged_space: RefCell::default(),
        phase: Cell::new(Phase::Running),
        ending: Cell::new(false),
        phase_changed: Gate::default(),
    });
    let runtime = daemon.reactor.runtime().clone();
    runtime.spawn(answer::take_connections(daemon.clone(), ring.clone()));
    runtime.spawn(watch::watch_fence(daemon.clone(), ring));
    runtime.spawn(watch::watch(daemon.clone()));
    runtime.spawn(watch::probe(daemon.clone()));
    runtime.spawn(watch::watch_space(daemon.clone()));
    runtime.spawn(watch::watch_losses(daemon.clone()));
    runtime.spawn(watch::watch_power(daemon.clone()));
    if status.provisional {
        runtime.spawn(await_members::await_missing(daemon.clone(), place, others));
    }
    if !status.read_only && !filled.is_empty() {
        runtime.spawn(rebuild::continue_copies(daemon.clone(), filled));
    }
    if !status.read_only {
        scrub::resume(&daemon);
        runtime.spawn(scrub::look_again(daemon.clone()));
    }
    Ok(daemon)
}

/// Ends the daemon on a signal, also on one that has arrived already.
pub fn end_on(daemon: &Rc<Daemon>, signals: Signals) -> Result<()> {
    let ready = daemon.reactor.ring()?.ready(signals.0, libc::POLLIN);
    let (runtime, daemon) = (daemon.reactor.runtime().clone(), daemon.clone());
    runtime.spawn(async move {
        ready.await;
        // A client may have requested the end, and that may still be refused.
        while daemon.ending.get() {
            daemon.phase_changed.wait().await;
        }
        if daemon.phase.get() != Phase::Running {
            return;
        }
        notify(&[NotifyState::Stopping]);
        rebuild::log_copy_given_up(&daemon);
        if let Err(error) = end::end(&daemon, true).await {
            daemon.failure.borrow_mut().get_or_insert(error);
        }
        daemon.set_phase(Phase::Ended);
    });
    Ok(())
}

#[cfg(test)]
mod tests;
