//! The daemon of an array: holds its drives, shows it to the kernel as a zoned block device, answers
//! on the control socket, and rebuilds in the background. One thread, one reactor.
//!
//! The block device outlives the daemon. A daemon that is told to end while the block device is in
//! use lets go of it, and so does one that dies: the kernel keeps it, with whatever is mounted, and
//! holds requests back until the next daemon takes it over.

mod block;
mod client;
mod control;
mod missing;
mod protocol;
mod rebuild;

pub use client::{Client, answer, find, running};
pub use control::{Connection, request};
pub use protocol::{About, Answer, Line, PROTOCOL, Request, Stopped};

use crate::{
    cli::output::{in_one_line, uuid},
    drive::Plate,
    machine,
    members::{Found, OpenDrive, Session, Terms, directory_of},
    reactor::Reactor,
    repair::{self, MemberName, Members},
    report::{Examined, Owned, Status, Zones},
    tails::Left,
};
use anyhow::{Context, Result, ensure};
use block::Block;
use control::Control;
use engine::{
    array::{Array, MemberState},
    device::{Command, ZonedDevice},
    owner::Change,
    runtime::Gate,
    zone::ZoneIndex,
};
use rebuild::Rebuilder;
use sd_notify::NotifyState;
use serde_json::Value;
use std::{
    cell::{Cell, RefCell},
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    rc::Rc,
};

/// Environment variable with the directory of sockets and of what lasts until the next boot.
pub const RUN_VARIABLE: &str = "ZONERAID_RUN_DIR";

/// Where sockets are, and what lasts until the next boot.
pub fn directory() -> PathBuf {
    let set = std::env::var_os(RUN_VARIABLE).filter(|directory| !directory.is_empty());
    set.map_or(PathBuf::from("/run/zoneraid"), PathBuf::from)
}

/// Where the daemon of an array keeps what the next one needs if it dies.
pub fn tails_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.tails", uuid(array)))
}

/// Says something to whoever reads the daemon's standard error: the journal, usually.
fn log(line: &str) {
    eprintln!("zoneraid: {}", in_one_line(line));
}

/// Tells the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log(&format!("the service manager cannot be told: {error}"));
    }
}

/// The drive of a member for somebody with another working directory.
fn absolute(drive: &str) -> PathBuf {
    std::path::absolute(drive).unwrap_or_else(|_| PathBuf::from(drive))
}

/// How far the end of a daemon is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The block device is being taken down or let go.
    Ending,
    /// That is done; whoever has asked for it is being told.
    Stopped,
    Ended,
}

/// A running array.
pub struct Daemon {
    reactor: Reactor,
    array: Array,
    /// The drives that were found at the start, and those that were added.
    drives: RefCell<Vec<OpenDrive>>,
    /// Of sockets and tails.
    directory: PathBuf,
    control: Control,
    rebuilder: Rebuilder,
    block: RefCell<Option<Rc<Block>>>,
    /// Why the daemon cannot go on.
    failure: RefCell<Option<anyhow::Error>>,
    /// Members as they were when somebody was told last.
    told: RefCell<Vec<MemberState>>,
    phase: Cell<Phase>,
    /// Whether somebody wants the end and it is being looked whether that can be.
    ending: Cell<bool>,
    phase_changed: Gate,
}

/// The signals that tell a daemon to end, from when this was made on.
pub struct Signals(Rc<UnixStream>);

impl Signals {
    pub fn new() -> Result<Signals> {
        let problem = "signals cannot be watched";
        let (signalled, sender) = UnixStream::pair().context(problem)?;
        for signal in [libc::SIGTERM, libc::SIGINT] {
            let sender = sender.try_clone().context(problem)?;
            signal_hook::low_level::pipe::register(signal, sender).context(problem)?;
        }
        Ok(Signals(Rc::new(signalled)))
    }
}

impl Daemon {
    /// Assembles what was found and begins to answer, on a socket in `directory`. Where a daemon has
    /// died, it goes on from there: `left` is what that one has left.
    pub fn start(found: Found, directory: &Path, left: Option<&Left>, terms: Terms) -> Result<Rc<Daemon>> {
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o755).create(directory);
        made.with_context(|| format!("{} cannot be made", directory.display()))?;
        let place = found.drives.first().map(|drive| directory_of(&drive.path)).unwrap_or_default();
        let there = missing::drives_in(&place).unwrap_or_default();
        let Session { reactor, array } = found.start(left, terms)?;
        array.feed(reactor.buffers());
        let status = array.status();
        // Drives that the array does without may be put to other uses.
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
            control: Control::listen(&directory.join(format!("{}.sock", uuid(&status.uuid))))?,
            rebuilder: Rebuilder::default(),
            block: RefCell::default(),
            failure: RefCell::default(),
            told: RefCell::default(),
            phase: Cell::new(Phase::Running),
            ending: Cell::new(false),
            phase_changed: Gate::default(),
        });
        let runtime = daemon.reactor.runtime().clone();
        let served = daemon.clone();
        runtime.spawn(async move { served.control.serve(served.clone(), ring).await });
        runtime.spawn(daemon.clone().watch());
        if status.provisional {
            let there = there.into_iter().map(|(identity, _)| identity).collect();
            runtime.spawn(daemon.clone().await_missing(place, there));
        }
        Ok(daemon)
    }

    /// Runs the array until it has been stopped, or a signal has told the daemon to end.
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

    /// Stops answering and lets go of the drives.
    pub fn give_up(&self) {
        self.control.close();
        // Tasks hold the daemon, and with it the drives.
        self.reactor.runtime().clear();
    }

    /// Ends the daemon when a signal says so, or has said so.
    pub fn end_on(self: &Rc<Self>, signals: Signals) -> Result<()> {
        let ready = self.reactor.ring()?.ready(signals.0, libc::POLLIN);
        let daemon = self.clone();
        self.reactor.runtime().spawn(async move {
            ready.await;
            // Somebody may have asked for the end already, and may yet be refused.
            while daemon.ending.get() {
                daemon.phase_changed.wait().await;
            }
            if daemon.phase.get() != Phase::Running {
                return;
            }
            notify(&[NotifyState::Stopping]);
            if let Err(error) = daemon.end(true).await {
                log(&format!("{error:#}"));
            }
            daemon.set_phase(Phase::Ended);
        });
        Ok(())
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
        self.phase_changed.open();
    }

    /// Gives the block device up and makes everything durable.
    async fn end(&self, leave: bool) -> Result<()> {
        ensure!(!self.ending.replace(true), "'{}' is being stopped already", self.array.status().name);
        let result = self.end_alone(leave).await;
        self.ending.set(false);
        self.phase_changed.open();
        result
    }

    async fn end_alone(&self, leave: bool) -> Result<()> {
        self.hide(leave).await?;
        self.set_phase(Phase::Ending);
        if self.array.is_provisional() || self.array.is_read_only() {
            // Nothing has been written, and nothing shall be.
            return Ok(());
        }
        self.array.submit(Command::Flush).await.result.context("the last flush failed")
    }

    /// An answer has been sent: after the one to `stop` there is nothing left to do.
    fn answered(&self) {
        if self.phase.get() == Phase::Stopped {
            self.set_phase(Phase::Ended);
        }
    }

    /// Says when members come and go, and has what is lacking rebuilt once the array writes.
    async fn watch(self: Rc<Self>) {
        let mut writes = false;
        loop {
            let changed = self.array.changed();
            self.tell();
            if !writes && !self.array.is_provisional() && !self.array.is_read_only() {
                writes = true;
                self.start_rebuild();
            }
            changed.await;
        }
    }

    /// Tells the journal which members are newly out, and the service manager how the array is.
    fn tell(&self) {
        let array = self.array.status();
        let members = array.members.iter();
        let before = self.told.replace(members.map(|member| member.state).collect());
        for (role, member) in array.members.iter().enumerate() {
            if member.state == MemberState::Out && before.get(role) != Some(&MemberState::Out) {
                let drive = if member.drive.is_empty() { "" } else { &format!(" ({})", member.drive) };
                let why = if member.note.is_empty() { "" } else { &format!(": {}", member.note) };
                let does = if array.provisional || array.read_only { "waits for" } else { "does without" };
                let plate = Plate::kept(&member.plate).words();
                log(&format!("'{}' {does} member {role}{drive}{plate}{why}", array.name));
            }
        }
        let status = self.status();
        notify(&[NotifyState::Status(&format!("{}: {}", status.state, status.status))]);
    }

    /// How the array is.
    pub fn status(&self) -> Status {
        let array = self.array.status();
        let mut status = Status::of(&array.name, &array, self.array.geometry());
        for member in status.members.iter_mut().filter(|member| !member.drive.is_empty()) {
            member.drive = absolute(&member.drive).display().to_string();
        }
        status.pid = Some(std::process::id());
        if let Some(block) = &*self.block.borrow() {
            status.block_device = Some(block.path.display().to_string());
            status.link = block.link.as_ref().map(|link| link.display().to_string());
        }
        status.rebuild = self.rebuilder.progress();
        if status.rebuild.is_some() && array.members.iter().all(|m| m.state != MemberState::Out) {
            status.action = None;
        }
        status.identify(&self.drives.borrow())
    }

    /// Which array this is, and where.
    pub fn about(&self) -> About {
        let status = self.array.status();
        let drives = status.members.iter().filter(|member| !member.drive.is_empty());
        let block = self.block.borrow();
        About {
            name: status.name.clone(),
            uuid: uuid(&status.uuid),
            pid: std::process::id(),
            block_device: block.as_ref().map(|block| block.path.clone()),
            link: block.as_ref().and_then(|block| block.link.clone()),
            members: status.members.len() as u32,
            policy: status.policy.name().into(),
            aggregate: status.aggregate,
            drives: drives.map(|member| absolute(&member.drive)).collect(),
        }
    }

    async fn answer(self: Rc<Self>, request: Request, connection: &Connection) -> Result<Value> {
        ensure!(self.phase.get() == Phase::Running, "'{}' is being stopped", self.array.status().name);
        Ok(match request {
            Request::About => serde_json::to_value(self.about())?,
            Request::Status => serde_json::to_value(self.status())?,
            Request::Zones { zone } => serde_json::to_value(self.zones(zone).await?)?,
            Request::Fail { member } => {
                serde_json::to_value(repair::fail(&self.array, self.role(&member)?).await?)?
            }
            Request::Replace { member, drive, now, yes } => {
                serde_json::to_value(self.replace(&member, &drive, (now, yes), connection).await?)?
            }
            Request::Rebuild => serde_json::to_value(self.go_on(connection).await?)?,
            Request::Examine { drive } => serde_json::to_value(self.examine(&drive).await?)?,
            Request::Adopt => {
                let host = machine::id().context(machine::NO_IDENTITY)?;
                serde_json::to_value(self.change(&Change::Host(host)).await?)?
            }
            Request::Autostart { yes } => serde_json::to_value(self.change(&Change::Autostart(yes)).await?)?,
            Request::Stop => {
                let status = self.array.status();
                let result = self.end(false).await;
                if self.phase.get() == Phase::Ending {
                    self.set_phase(Phase::Stopped);
                }
                result?;
                serde_json::to_value(Stopped { array: status.name, uuid: uuid(&status.uuid) })?
            }
        })
    }

    async fn change(&self, change: &Change) -> Result<Owned> {
        self.array.change_running(change).await?;
        Ok(Owned::of(&self.array.status()))
    }

    async fn zones(&self, zone: Option<u32>) -> Result<Zones> {
        let geometry = self.array.geometry();
        let report = Command::Report { first: ZoneIndex(0), count: geometry.zones };
        let done = self.array.submit(report).await;
        done.result.context("the array gives no zone report")?;
        Zones::of(&self.array.status().name, geometry, &done.zones, zone)
    }

    async fn examine(&self, path: &Path) -> Result<Examined> {
        let drive = self.held(path);
        let name = || format!("{} is not a drive of '{}'", path.display(), self.array.status().name);
        let mut drive = drive.with_context(name)?;
        drive.look_again(&self.reactor).await;
        Examined::of(&drive).await
    }

    /// The role of the member that the user means.
    fn role(&self, member: &MemberName) -> Result<usize> {
        let status = self.array.status();
        let members = || status.members.iter().enumerate();
        let drives = members().filter(|(_, member)| !member.drive.is_empty());
        let missing = members().filter(|(_, member)| member.state == MemberState::Out);
        let members = Members {
            array: &status.name,
            count: status.members.len() as u32,
            drives: drives.map(|(role, member)| (role as u32, real(Path::new(&member.drive)))).collect(),
            missing: missing.map(|(role, _)| role as u32).collect(),
        };
        members.role(member)
    }

    /// The drive at `path`, if it is held here.
    fn held(&self, path: &Path) -> Option<OpenDrive> {
        self.drives.borrow().iter().find(|drive| real(&drive.path) == path).cloned()
    }

    /// Opens the drive that is to become a member, or takes one that was a member before. Nothing
    /// here may wait for the block device of the array: it would for ever.
    async fn take_new(&self, path: &Path) -> Result<OpenDrive> {
        let status = self.array.status();
        let in_use = status
            .members
            .iter()
            .any(|member| member.state != MemberState::Out && real(Path::new(&member.drive)) == path);
        ensure!(!in_use, repair::in_use(path, &status.name));
        let file = path.to_path_buf();
        let members: Vec<PathBuf> = self.drives.borrow().iter().map(|drive| drive.path.clone()).collect();
        let beside = self.reactor.offload(move || lies_beside(&file, &members)).await?;
        ensure!(
            beside.unwrap_or(Ok(true)).with_context(|| format!("{} cannot be opened", path.display()))?,
            "{} might lie on the array itself; an image has to lie in a file system that holds another one",
            path.display()
        );
        let held = self.held(path);
        // The same name may mean another drive by now. If it does not, the drive is still held here.
        match (OpenDrive::open_beside(&self.reactor, path).await, held) {
            (Err(_), Some(held)) => Ok(held),
            (opened, _) => opened,
        }
    }
}

/// The path of a member's drive without links; it is never on the array itself.
fn real(drive: &Path) -> PathBuf {
    drive.canonicalize().unwrap_or_else(|_| absolute(&drive.to_string_lossy()))
}

/// Whether the drive at `path` cannot depend on an array with these members: a device that is none of
/// ours, or an image in the file system of another one.
fn lies_beside(path: &Path, members: &[PathBuf]) -> std::io::Result<bool> {
    let metadata = path.metadata()?;
    if metadata.file_type().is_block_device() {
        return Ok(!path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ublkb")));
    }
    let same = |member: &PathBuf| {
        member.metadata().is_ok_and(|other| other.is_file() && other.dev() == metadata.dev())
    };
    Ok(!metadata.is_file() || members.iter().any(same))
}
