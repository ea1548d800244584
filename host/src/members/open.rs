//! A drive with its superblock, claimed or read-only.

use crate::{
    drive::{
        self, OpenError, User,
        label::{self, Content, Label},
    },
    process::{
        output::{note, quoted},
        run,
        size::show,
    },
    reactor::{Reactor, traffic::Traffic},
    report::Life,
    serve::ack_log::{self, AckLogContents},
};
use anyhow::{Result, ensure};
use engine::{
    array::Drive,
    device::{Command, Completion, DriveId, Geometry, Slots, ZonedDevice},
    format::superblock::Stage,
    runtime::Runtime,
};
use std::{
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// How long a drive may take to be identified in an inspection.
pub const PATIENCE_TO_LOOK: Duration = Duration::from_secs(2);

/// How long it may take where the array would be used without it.
pub(super) const PATIENCE_TO_USE: Duration = Duration::from_secs(60);

/// Interval at which a locked drive is tried again, and an unidentified drive read again.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Time after which a note is printed about a locked drive that is waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// A drive that this process holds or looks at, with the contents of its superblock.
#[derive(Clone)]
pub struct OpenDrive {
    pub path: PathBuf,
    pub device: Rc<dyn ZonedDevice>,
    pub content: Content,
    /// Requests of the array since the drive was opened.
    pub traffic: Rc<Traffic>,
    pub(super) runtime: Runtime,
}

/// A drive that counts its requests.
struct MeteredDrive {
    device: Rc<dyn ZonedDevice>,
    traffic: Rc<Traffic>,
    runtime: Runtime,
    slots: Rc<Slots>,
}

impl ZonedDevice for MeteredDrive {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn power_epoch(&self) -> Option<u64> {
        self.device.power_epoch()
    }

    fn submit(&self, command: Command) -> Completion {
        let (is_read, data) = match &command {
            Command::Read { data, .. } => (true, data),
            Command::Write { data, .. } | Command::Append { data, .. } => (false, data),
            _ => return self.device.submit(command),
        };
        let bytes = data.len() as u64;
        let counter = move |traffic: &Traffic, latency| match is_read {
            true => traffic.reads.count(bytes, latency),
            false => traffic.writes.count(bytes, latency),
        };
        let Some(begun) = self.traffic.begin() else {
            counter(&self.traffic, None);
            return self.device.submit(command);
        };
        // A task measures the latency: the caller may poll the completion long after the end of the command.
        let (completer, completion) = self.slots.pair();
        let (asked, traffic) = (self.device.submit(command), self.traffic.clone());
        self.runtime.spawn(async move {
            let done = asked.await;
            counter(&traffic, Some(begun.elapsed()));
            completer.complete(done);
        });
        completion
    }

    fn drive_id(&self) -> DriveId {
        self.device.drive_id()
    }
}

impl OpenDrive {
    fn new(reactor: &Reactor, path: &Path, device: Rc<dyn ZonedDevice>) -> OpenDrive {
        let (path, runtime) = (path.to_path_buf(), reactor.runtime().clone());
        OpenDrive { path, device, content: Content::Blank, traffic: Rc::default(), runtime }
    }

    /// Opens and claims the drive at `path`, and reads its contents.
    pub fn open(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        let used = used(path);
        let device = open_patiently(reactor, &used, Instant::now(), false)?;
        OpenDrive::read(reactor, &used, device, PATIENCE_TO_USE)
    }

    /// Looks at the drive at `path` for a dry run, and prints a note if it is in use.
    pub fn try_out(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        let used = used(path);
        if let Some(user) = drive::user(&used) {
            note(&format!("{} is in use by {user}: end that before it is used for an array", used.display()));
        }
        OpenDrive::look(reactor, &used)
    }

    /// Reads the contents of the drive at `path`, also while it is in use.
    pub fn look(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        OpenDrive::look_for(reactor, path, PATIENCE_TO_USE)
    }

    /// As [`OpenDrive::look`], if the drive answers within `patience`. Unusable contents may be half
    /// written by another process, so they are read again.
    pub(super) fn look_for(reactor: &Reactor, path: &Path, patience: Duration) -> Result<OpenDrive> {
        let begun = Instant::now();
        let mut before: Option<Content> = None;
        loop {
            let looked = OpenDrive::read(reactor, path, drive::look(reactor, path)?, patience)?;
            let is_usable = !matches!(looked.content, Content::Other(_));
            if is_usable || before.as_ref() == Some(&looked.content) || begun.elapsed() >= patience {
                return Ok(looked);
            }
            before = Some(looked.content);
            std::thread::sleep(TRY_EVERY);
        }
    }

    /// As [`OpenDrive::open`], without blocking other tasks; `read_only` if nothing will be written.
    pub async fn open_beside(reactor: &Reactor, path: &Path, read_only: bool) -> Result<OpenDrive> {
        let start = Instant::now();
        let device = loop {
            let error = match open_once(reactor, path, read_only) {
                Ok(device) => break device,
                Err(error) => error,
            };
            if error.patience().is_none_or(|patience| patience <= start.elapsed()) {
                return Err(error.into());
            }
            reactor.offload(|| std::thread::sleep(TRY_EVERY)).await?;
        };
        let mut drive = OpenDrive::new(reactor, path, device);
        drive.look_again(reactor).await;
        Ok(drive)
    }

    pub(super) fn read(
        reactor: &Reactor,
        path: &Path,
        device: Rc<dyn ZonedDevice>,
        patience: Duration,
    ) -> Result<OpenDrive> {
        let mut drive = OpenDrive::new(reactor, path, device);
        let read = reactor.wait_for(patience, label::read(reactor.runtime(), drive.drive()))?;
        drive.content = read.unwrap_or_else(|| {
            Content::Other(format!("a drive that does not answer within {} seconds", patience.as_secs()))
        });
        Ok(drive)
    }

    /// Reads the superblock again.
    pub async fn look_again(&mut self, reactor: &Reactor) {
        self.content = label::read(reactor.runtime(), self.drive()).await;
    }

    /// The drive for the engine, with its requests counted.
    pub fn drive(&self) -> Drive {
        let (device, traffic, runtime) = (self.device.clone(), self.traffic.clone(), self.runtime.clone());
        let device = Rc::new(MeteredDrive { device, traffic, runtime, slots: Rc::default() });
        Drive { name: self.path.display().to_string(), device }
    }

    /// Refuses a member of an array that a mounted file system may be waiting for: its daemon has died and the block
    /// device still exists.
    pub fn refuse_if_waited_for(&self) -> Result<()> {
        let Some(label) = self.label() else { return Ok(()) };
        let left = run::left_by_owner(&self.path, &label.uuid);
        let ack_log = left.unwrap_or_else(|| run::ack_log_path(&run::directory(&label.uuid), &label.uuid));
        let path = quoted(&self.path.to_string_lossy());
        let (waits, go_on) = match ack_log::served_at(&ack_log) {
            Some(place) => ("NBD clients wait", format!("zoneraid serve {path} --nbd {}", quoted(&place))),
            None => ("a block device waits", format!("zoneraid start {path}")),
        };
        ensure!(
            run::left_by_owner(&self.path, &label.uuid).is_none()
                && (AckLogContents::of(&label.uuid)?.is_none() || runner(&label.uuid).is_some()),
            "{} is member {} of '{}', and {waits} for the daemon of that array: end that first with {go_on} \
             and zoneraid stop {path}",
            self.path.display(),
            label.role,
            label.name
        );
        Ok(())
    }

    /// The label, if the drive is a member of an array.
    pub fn label(&self) -> Option<&Label> {
        match &self.content {
            Content::Member(label) => Some(label),
            _ => None,
        }
    }

    /// Whether the drive is blank, or at most was to become a member of an array whose creation was not completed.
    pub fn holds_nothing(&self) -> bool {
        self.content == Content::Blank || self.label().is_some_and(|label| label.stage == Stage::Making)
    }

    /// The contents in words; `None` if the drive is blank.
    pub fn describe(&self) -> Option<String> {
        match &self.content {
            Content::Blank => None,
            Content::Member(label) => {
                let trouble = Life::of(label.stage).trouble();
                let trouble = trouble.map(|(what, _)| format!(" ({what})")).unwrap_or_default();
                Some(format!("member {} of array '{}'{trouble}", label.role, label.name))
            }
            Content::Filled(filled) => Some(filled.sentence.clone()),
            Content::Other(what) => Some(drive::signature(&self.path).unwrap_or_else(|| what.clone())),
        }
    }

    /// Whether it holds an unfinished copy of member `role` of an array, which `replace` would continue.
    pub fn is_filled_for(&self, array: &[u8; 16], role: usize) -> bool {
        matches!(&self.content, Content::Filled(filled) if (filled.array, filled.role as usize) == (*array, role))
    }

    /// Size of the drive in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.device.geometry().size_bytes()
    }

    /// The path of the drive with its size, model and serial number, so that it is not mistaken for another one.
    pub fn introduce(&self) -> String {
        let drive_id = drive::drive_id(&self.path).words();
        format!("{} ({}{drive_id})", self.path.display(), show(self.size_bytes()))
    }
}

/// The path by which the drive at `path` is used; prints a note if it is another one.
fn used(path: &Path) -> PathBuf {
    let used = drive::resolve(path);
    if used != path {
        let (path, used) = (path.display(), used.display());
        note(&format!("{path} is a block device, which has no ZRWA support: {used} is used instead"));
    }
    used
}

fn open_once(reactor: &Reactor, path: &Path, read_only: bool) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    if read_only { drive::open_to_read(reactor, path) } else { drive::open(reactor, path) }
}

/// Opens a drive; a locked one is retried until the patience of the error, counted from `start`, is exhausted.
pub(super) fn open_patiently(
    reactor: &Reactor,
    path: &Path,
    start: Instant,
    read_only: bool,
) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    let mut said = false;
    loop {
        let error = match open_once(reactor, path, read_only) {
            Ok(device) => return Ok(device),
            Err(error) => error,
        };
        let waited = start.elapsed();
        if error.patience().is_none_or(|patience| patience <= waited) {
            return Err(error);
        }
        if waited >= SILENCE && !said {
            said = true;
            note(&format!("{error}; waiting for it"));
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// The process that runs an array, or a copy of it, whether it responds or not.
pub fn runner(array: &[u8; 16]) -> Option<User> {
    drive::user(&run::lock_path(&run::directory(array), array))
}
