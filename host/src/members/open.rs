//! A drive with what its superblock says: looked at, or claimed.

use crate::{
    drive::{self, OpenError, User},
    label::{self, Content, Label},
    output::{note, quoted},
    reactor::Reactor,
    report::Life,
    run,
    size::show,
    tails::{self, Left},
    traffic::Traffic,
};
use anyhow::{Result, ensure};
use engine::{
    array::Drive,
    device::{Command, Completion, Geometry, Plate, Slots, ZonedDevice},
    format::{Uuid, superblock::Stage},
    raid::error::DriveFault,
    runtime::Runtime,
};
use std::{
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// How long a drive may take to say what it is to somebody who only looks around.
pub const PATIENCE_TO_LOOK: Duration = Duration::from_secs(2);

/// How long it may take for somebody who would go on without it.
pub(super) const PATIENCE_TO_USE: Duration = Duration::from_secs(60);

/// How often a locked drive is tried, and one that makes no sense while somebody else uses it is looked at.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// After this long it is said what is waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// A drive that this process holds or looks at, with what its superblock says.
#[derive(Clone)]
pub struct OpenDrive {
    pub path: PathBuf,
    pub device: Rc<dyn ZonedDevice>,
    pub content: Content,
    /// What an array has asked it for since it was opened.
    pub traffic: Rc<Traffic>,
    pub(super) runtime: Runtime,
}

/// A drive of which it is counted what it is asked for.
struct Metered {
    device: Rc<dyn ZonedDevice>,
    traffic: Rc<Traffic>,
    runtime: Runtime,
    slots: Rc<Slots>,
}

impl ZonedDevice for Metered {
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
        // Whoever waits for it may not be the first to look: the time ends with the command.
        let (completer, completion) = self.slots.pair();
        let (asked, traffic) = (self.device.submit(command), self.traffic.clone());
        self.runtime.spawn(async move {
            let done = asked.await;
            counter(&traffic, Some(begun.elapsed()));
            completer.complete(done);
        });
        completion
    }

    fn plate(&self) -> Plate {
        self.device.plate()
    }
}

impl OpenDrive {
    fn new(reactor: &Reactor, path: &Path, device: Rc<dyn ZonedDevice>) -> OpenDrive {
        let (path, runtime) = (path.to_path_buf(), reactor.runtime().clone());
        OpenDrive { path, device, content: Content::Blank, traffic: Rc::default(), runtime }
    }

    /// Opens and claims the drive at `path` and looks what is on it.
    pub fn open(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        let used = used(path);
        let device = open_patiently(reactor, &used, Instant::now(), false)?;
        OpenDrive::read(reactor, &used, device, PATIENCE_TO_USE)
    }

    /// Looks at the drive at `path` as if it were opened, and says who keeps it from that.
    pub fn try_out(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        let used = used(path);
        if let Some(user) = drive::user(&used) {
            note(&format!(
                "{} is in use by {user}; nothing can be made of it before that ends",
                used.display()
            ));
        }
        OpenDrive::look(reactor, &used)
    }

    /// Looks what is on the drive at `path`, whoever uses it.
    pub fn look(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        OpenDrive::look_for(reactor, path, PATIENCE_TO_USE)
    }

    /// As [`OpenDrive::look`], if the drive says within `patience` what it is. What makes no sense may be just
    /// being written, so it is looked at again.
    pub(super) fn look_for(reactor: &Reactor, path: &Path, patience: Duration) -> Result<OpenDrive> {
        let begun = Instant::now();
        let mut before: Option<Content> = None;
        loop {
            let looked = OpenDrive::read(reactor, path, drive::look(reactor, path)?, patience)?;
            let sense = !matches!(looked.content, Content::Other(_));
            if sense || before.as_ref() == Some(&looked.content) || begun.elapsed() >= patience {
                return Ok(looked);
            }
            before = Some(looked.content);
            std::thread::sleep(TRY_EVERY);
        }
    }

    /// As [`OpenDrive::open`], while other tasks go on; `read_only` if nothing will be written.
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

    /// The drive as the engine wants it.
    pub fn drive(&self) -> Drive {
        let (device, traffic, runtime) = (self.device.clone(), self.traffic.clone(), self.runtime.clone());
        let device = Rc::new(Metered { device, traffic, runtime, slots: Rc::default() });
        Drive { name: self.path.display().to_string(), device }
    }

    /// Refuses a drive whose array a mounted file system may be waiting for: its daemon has ended and
    /// the block device is still there.
    pub fn refuse_if_waited_for(&self) -> Result<()> {
        let Some(label) = self.label() else { return Ok(()) };
        let left = run::left_by_owner(&self.path, &label.uuid);
        let tails = left.unwrap_or_else(|| run::tails_path(&run::directory(&label.uuid), &label.uuid));
        let path = quoted(&self.path.to_string_lossy());
        let (waits, go_on) = match tails::served_at(&tails) {
            Some(place) => ("NBD clients wait", format!("zoneraid serve {path} --nbd {}", quoted(&place))),
            None => ("block device waits", format!("zoneraid start {path}")),
        };
        ensure!(
            run::left_by_owner(&self.path, &label.uuid).is_none()
                && (Left::of(&label.uuid)?.is_none() || runner(&label.uuid).is_some()),
            "{} is member {} of '{}', whose {waits} for its daemon; end that first: {go_on} and zoneraid stop {path}",
            self.path.display(),
            label.role,
            label.name
        );
        Ok(())
    }

    /// The label of a member of an array.
    pub fn label(&self) -> Option<&Label> {
        match &self.content {
            Content::Member(label) => Some(label),
            _ => None,
        }
    }

    /// Whether there is nothing on the drive that anybody could miss: it was to become a member of an array that
    /// never was one, at most.
    pub fn holds_nothing(&self) -> bool {
        self.content == Content::Blank || self.label().is_some_and(|label| label.stage == Stage::Making)
    }

    /// What is on the drive, in words; `None` if it is blank.
    pub fn describe(&self) -> Option<String> {
        match &self.content {
            Content::Blank => None,
            Content::Member(label) => {
                let trouble = Life::of(label.stage).trouble();
                let trouble = trouble.map(|(what, _)| format!(" ({what})")).unwrap_or_default();
                Some(format!("member {} of array '{}'{trouble}", label.role, label.name))
            }
            Content::Other(what) => Some(drive::signature(&self.path).unwrap_or_else(|| what.clone())),
        }
    }

    /// Whether it holds a part of a copy of member `role` of an array, so that `replace` goes on with it.
    pub fn is_filled_for(&self, array: &[u8; 16], role: usize) -> bool {
        let filled = DriveFault::Target { array: Uuid(*array), member: role };
        matches!(&self.content, Content::Other(what) if *what == filled.to_string())
    }

    /// Bytes that the drive can hold.
    pub fn size_bytes(&self) -> u64 {
        self.device.geometry().size_bytes()
    }

    /// The path of the drive with its size, model and serial, so that nobody takes it for another one.
    pub fn introduce(&self) -> String {
        let plate = drive::plate(&self.path).words();
        format!("{} ({}{plate})", self.path.display(), show(self.size_bytes()))
    }
}

/// The path by which the drive at `path` is used; if it is another one, that is said.
fn used(path: &Path) -> PathBuf {
    let used = drive::resolve(path);
    if used != path {
        let (path, used) = (path.display(), used.display());
        note(&format!("{path} is a block device, which knows no ZRWA: {used} is used instead"));
    }
    used
}

fn open_once(reactor: &Reactor, path: &Path, read_only: bool) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    if read_only { drive::open_to_read(reactor, path) } else { drive::open(reactor, path) }
}

/// Opens a drive; one that is locked is tried again, for as long since `start` as may help.
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

/// Who runs an array, or a copy of it, whether they answer or not.
pub fn runner(array: &[u8; 16]) -> Option<User> {
    drive::user(&run::lock_path(&run::directory(array), array))
}
