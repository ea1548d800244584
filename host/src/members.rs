//! Finds drives, reads their labels, and assembles the array that a name stands for.
//!
//! Superblocks are the truth: which drives belong together is read from them, never from file
//! names. A directory is searched for the members of an array, and members that are not in it
//! are missing, with one exception: as long as a drive in it is locked by another process, it
//! could be the missing member, so nothing is assembled without it. The drives of the machine are
//! those in `/dev`.

use crate::{
    daemon,
    drive::{self, OpenError},
    label::{self, Content, Label},
    reactor::Reactor,
    repair::same_file,
    size::show,
    tails::Left,
};
use anyhow::{Context, Result, bail, ensure};
use engine::{
    array::{Array, ArrayError, Drive, Inspected, Tails},
    buf::BLOCK,
    device::{Command, Done, ZonedDevice},
};
use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// Environment variable with a directory in which arrays are looked for by name.
pub const DIR_VARIABLE: &str = "ZONERAID_DIR";

/// The directory of the drives of this machine.
pub const MACHINE: &str = "/dev";

/// How often a locked drive is tried.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// After this long it is said what is waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// What the user called an array: its name, one of its members, or the directory of them.
#[derive(Clone, Debug)]
pub struct ArrayName(PathBuf);

impl From<OsString> for ArrayName {
    fn from(name: OsString) -> ArrayName {
        ArrayName(name.into())
    }
}

impl From<PathBuf> for ArrayName {
    fn from(name: PathBuf) -> ArrayName {
        ArrayName(name)
    }
}

impl ArrayName {
    /// The name as a path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The same, if it is a path, for a process with another working directory.
    pub fn absolute(&self) -> Result<ArrayName> {
        match self.0.exists() {
            true => Ok(ArrayName(std::path::absolute(&self.0).context("the working directory is gone")?)),
            false => Ok(self.clone()),
        }
    }
}

impl fmt::Display for ArrayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// A drive that this process holds, with what its superblock says.
#[derive(Clone)]
pub struct OpenDrive {
    pub path: PathBuf,
    pub device: Rc<dyn ZonedDevice>,
    pub content: Content,
}

impl OpenDrive {
    /// Opens and claims the drive at `path` and looks what is on it.
    pub fn open(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        let used = drive::resolve(path);
        if used != path {
            let (path, used) = (path.display(), used.display());
            eprintln!("zoneraid: {path} is a block device, which knows no ZRWA: {used} is used instead");
        }
        let device = open_patiently(reactor, &used, Instant::now())?;
        OpenDrive::look(reactor, &used, device)
    }

    /// Looks what is on the drive at `path` without keeping it from anybody.
    pub fn peek(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        OpenDrive::look(reactor, path, drive::peek(reactor, path)?)
    }

    /// As [`OpenDrive::open`], while other tasks go on.
    pub async fn open_beside(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        let start = Instant::now();
        let device = loop {
            let error = match drive::open(reactor, path) {
                Ok(device) => break device,
                Err(error) => error,
            };
            if error.patience().is_none_or(|patience| patience <= start.elapsed()) {
                return Err(error.into());
            }
            reactor.offload(|| std::thread::sleep(TRY_EVERY)).await?;
        };
        let mut drive = OpenDrive { path: path.to_path_buf(), device, content: Content::Blank };
        drive.look_again(reactor).await;
        Ok(drive)
    }

    fn look(reactor: &Reactor, path: &Path, device: Rc<dyn ZonedDevice>) -> Result<OpenDrive> {
        let mut drive = OpenDrive { path: path.to_path_buf(), device, content: Content::Blank };
        drive.content = reactor.wait(label::read(reactor.runtime(), drive.drive()))?;
        Ok(drive)
    }

    /// Reads the superblock again.
    pub async fn look_again(&mut self, reactor: &Reactor) {
        self.content = label::read(reactor.runtime(), self.drive()).await;
    }

    /// The drive as the engine wants it.
    pub fn drive(&self) -> Drive {
        Drive { name: self.path.display().to_string(), device: self.device.clone() }
    }

    /// Refuses a drive whose array a mounted file system may be waiting for: its daemon has ended and
    /// the block device is still there.
    pub fn refuse_if_waited_for(&self) -> Result<()> {
        let Some(label) = self.label() else { return Ok(()) };
        let uuid = super::cli::output::uuid(&label.uuid);
        let tails = daemon::tails_path(&daemon::directory(), &label.uuid);
        ensure!(
            Left::read(&tails, &label.uuid)?.is_none()
                || daemon::running()?.iter().any(|d| d.about.uuid == uuid),
            "{} is member {} of '{}', whose block device waits for its daemon; end that first: zoneraid start \
             and zoneraid stop",
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

    /// What is on the drive, in words; `None` if it is blank.
    pub fn describe(&self) -> Option<String> {
        match &self.content {
            Content::Blank => None,
            Content::Member(label) => Some(format!("member {} of array '{}'", label.role, label.name)),
            Content::Other(what) => Some(drive::signature(&self.path).unwrap_or_else(|| what.clone())),
        }
    }

    /// Bytes that the drive can hold.
    pub fn size_bytes(&self) -> u64 {
        let geometry = self.device.geometry();
        geometry.zones as u64 * geometry.zone_capacity_blocks * BLOCK as u64
    }

    /// The path of the drive with its size and model, so that nobody takes it for another one.
    pub fn introduce(&self) -> String {
        let model = drive::model(&self.path).map(|model| format!(", {model}")).unwrap_or_default();
        format!("{} ({}{model})", self.path.display(), show(self.size_bytes()))
    }
}

/// Opens a drive; one that is locked is tried again, for as long since `start` as may help.
fn open_patiently(reactor: &Reactor, path: &Path, start: Instant) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    let mut said = false;
    loop {
        let error = match drive::open(reactor, path) {
            Ok(device) => return Ok(device),
            Err(error) => error,
        };
        let waited = start.elapsed();
        if error.patience().is_none_or(|patience| patience <= waited) {
            return Err(error);
        }
        if waited >= SILENCE && !said {
            said = true;
            eprintln!("zoneraid: {error}; waiting for it");
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// What one or several directories hold.
#[derive(Default)]
pub struct Scan {
    /// In order of their names.
    pub drives: Vec<OpenDrive>,
    /// Drives that another process has locked.
    pub locked: Vec<PathBuf>,
    /// Drives that cannot be used, and why.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Scan {
    /// Opens every image and zoned drive in `dir`; other files are passed over.
    pub fn of(reactor: &Reactor, dir: &Path) -> Result<Scan> {
        let mut scan = Scan::default();
        scan.add(reactor, dir)?;
        Ok(scan)
    }

    /// Opens those in another directory too.
    pub fn add(&mut self, reactor: &Reactor, dir: &Path) -> Result<()> {
        let entries =
            std::fs::read_dir(dir).with_context(|| format!("{} cannot be listed", dir.display()))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.with_context(|| format!("{} cannot be listed", dir.display()))?.path();
            if drive::is_drive(&path) {
                paths.push(path);
            }
        }
        paths.sort_by_cached_key(|path| natural_order(path));
        let start = Instant::now();
        for path in paths {
            match open_patiently(reactor, &path, start) {
                Ok(device) => self.drives.push(OpenDrive::look(reactor, &path, device)?),
                Err(error) if error.patience().is_some() => self.locked.push(path),
                Err(error) => self.damaged.push((path, error.problem().to_string())),
            }
        }
        Ok(())
    }

    /// Whether enough members of an array are there.
    fn may_work(&self, uuid: &[u8; 16]) -> bool {
        let labels: Vec<&Label> =
            self.drives.iter().filter_map(OpenDrive::label).filter(|l| l.uuid == *uuid).collect();
        labels.first().is_some_and(|label| labels.len() + 1 >= label.members as usize)
    }

    /// The newest label of each array in the directory.
    pub fn arrays(&self) -> Vec<&Label> {
        let mut arrays: Vec<&Label> = Vec::new();
        for label in self.drives.iter().filter_map(OpenDrive::label) {
            match arrays.iter_mut().find(|array| array.uuid == label.uuid) {
                Some(array) if array.event < label.event => *array = label,
                Some(_) => {}
                None => arrays.push(label),
            }
        }
        arrays
    }
}

/// So that drive10 comes after drive9, and ng10n1 after ng9n2: text and numbers in turn.
fn natural_order(path: &Path) -> Vec<(String, u64)> {
    let name = path.to_string_lossy().into_owned();
    let mut parts = Vec::new();
    let mut rest = name.as_str();
    while !rest.is_empty() {
        let (text, tail) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let (number, tail) = tail.split_at(tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len()));
        parts.push((text.to_string(), number.parse().unwrap_or(0)));
        rest = tail;
    }
    parts
}

/// The drives of one array, found and locked, and not assembled yet.
pub struct Found {
    pub reactor: Reactor,
    /// The newest label.
    pub label: Label,
    pub drives: Vec<OpenDrive>,
    /// If members are missing, drives beside them that cannot be used: one of those may be it.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Found {
    /// Finds the array that `name` stands for.
    pub fn by_name(name: &ArrayName) -> Result<Found> {
        let reactor = &Reactor::default();
        let path = &name.0;
        if path.exists() && !path.is_dir() {
            // Let go of the drive before the scan opens it again.
            let uuid = match OpenDrive::open(reactor, path)?.content {
                Content::Member(label) => label.uuid,
                Content::Blank => bail!("{name} is blank and belongs to no array"),
                Content::Other(what) => bail!("{name}: {what}"),
            };
            let scan = Scan::of(reactor, &directory_of(path))?;
            return Found::pick(reactor, scan, |label| label.uuid == uuid)?
                .with_context(|| format!("{name} changed while it was looked at; try again"));
        }
        if path.is_dir() {
            let scan = Scan::of(reactor, path)?;
            let arrays = scan.arrays();
            if arrays.len() > 1 {
                let names: Vec<String> = arrays
                    .iter()
                    .map(|a| format!("'{}' ({})", a.name, super::cli::output::uuid(&a.uuid)))
                    .collect();
                bail!(
                    "{name} holds members of {} arrays, {}; name one of their members",
                    arrays.len(),
                    names.join(", ")
                );
            }
            if let Some(found) = Found::pick(reactor, scan, |_| true)? {
                return Ok(found);
            }
            ensure!(
                name.0.components().count() == 1 && path != Path::new("."),
                "{name} holds no member of an array"
            );
        } else if path.components().count() > 1 {
            bail!("{name} does not exist");
        }
        Found::by_array_name(reactor, name)
    }

    fn by_array_name(reactor: &Reactor, name: &ArrayName) -> Result<Found> {
        let mut places = vec![PathBuf::from(".")];
        places.extend(std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from));
        places.push(PathBuf::from(MACHINE));
        let wanted = name.0.to_string_lossy();
        let is_wanted = |array: &&&Label| {
            array.name == wanted || super::cli::output::uuid(&array.uuid) == wanted.to_lowercase()
        };
        for place in &places {
            let scan = Scan::of(reactor, place)?;
            let mut uuids: Vec<[u8; 16]> =
                scan.arrays().iter().filter(is_wanted).map(|array| array.uuid).collect();
            if uuids.len() > 1 {
                // What is left of an array whose drives were given to another one says little.
                uuids.retain(|uuid| scan.may_work(uuid));
            }
            ensure!(
                uuids.len() <= 1,
                "{} holds members of {} arrays called '{name}'; name one by its UUID (see zoneraid list)",
                place.display(),
                uuids.len()
            );
            if let Some(&uuid) = uuids.first()
                && let Some(found) = Found::pick(reactor, scan, |label| label.uuid == uuid)?
            {
                return Ok(found);
            }
        }
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        bail!(
            "no array called '{name}' among the drives in {}; name its directory or one of its members",
            places.join(" and ")
        )
    }

    /// Keeps the drives of the array that `chosen` picks and lets the others go.
    fn pick(reactor: &Reactor, scan: Scan, chosen: impl Fn(&Label) -> bool) -> Result<Option<Found>> {
        let Some(label) = scan.arrays().into_iter().find(|label| chosen(label)).cloned() else {
            ensure!(
                scan.locked.is_empty(),
                "{} is in use by another process",
                scan.locked.first().map(|p| p.display().to_string()).unwrap_or_default()
            );
            return Ok(None);
        };
        let (mut drives, mut locked) = (scan.drives, scan.locked);
        // What the daemons of other arrays hold cannot be what is missing here.
        for client in daemon::running()? {
            locked.retain(|path| !client.about.drives.iter().any(|drive| same_file(drive, path)));
        }
        let mut damaged = scan.damaged;
        for drive in &drives {
            if let Content::Other(what) = &drive.content {
                damaged.push((drive.path.clone(), what.clone()));
            }
        }
        drives.retain(|drive| drive.label().is_some_and(|l| l.uuid == label.uuid));
        if drives.len() >= label.members as usize {
            damaged.clear();
        } else if let Some(path) = locked.first() {
            bail!("{} is in use by another process and may be a member of '{}'", path.display(), label.name);
        }
        Ok(Some(Found { reactor: reactor.clone(), label, drives, damaged }))
    }

    /// Finds out how the array is; writes nothing.
    pub fn inspect(&self) -> Result<Inspected, ArrayError> {
        let drives = self.drives.iter().map(OpenDrive::drive).collect();
        let found = self.reactor.wait(Array::inspect(self.reactor.runtime(), drives, None));
        found.unwrap_or_else(|error| Err(ArrayError(error.to_string())))
    }

    /// Assembles the array, which recovers what a power cut left behind.
    pub fn assemble(&self) -> Result<Session> {
        let tails = daemon::tails_path(&daemon::directory(), &self.label.uuid);
        // The kernel may hold a file system that relies on what the daemon knew.
        ensure!(
            Left::read(&tails, &self.label.uuid)?.is_none(),
            "the daemon of '{0}' has ended while its block device was in use; go on with: zoneraid start {0}",
            self.label.name
        );
        self.take_over(None)
    }

    /// As [`Found::assemble`], from where a process that has died has `left` it.
    pub fn take_over(&self, left: Option<&Left>) -> Result<Session> {
        let drives = self.drives.iter().map(OpenDrive::drive).collect();
        let runtime = self.reactor.runtime();
        let array = match left {
            Some(left) => {
                let tails = Tails { assembly: left.assembly, blocks: left.complete.clone() };
                self.reactor.wait(Array::take_over(runtime, drives, &tails))
            }
            None => self.reactor.wait(Array::assemble(runtime, drives)),
        }??;
        Ok(Session { reactor: self.reactor.clone(), array })
    }
}

/// The directory in which the drives beside that at `path` lie.
pub fn directory_of(path: &Path) -> PathBuf {
    let is_device = path.metadata().is_ok_and(|metadata| !metadata.is_file());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if is_device { PathBuf::from(MACHINE) } else { parent.unwrap_or(Path::new(".")).to_path_buf() }
}

/// An assembled array and what makes it run.
pub struct Session {
    pub reactor: Reactor,
    pub array: Array,
}

impl Session {
    /// Finds and assembles the array that `name` stands for.
    pub fn open(name: &ArrayName) -> Result<Session> {
        if let Some(client) = daemon::find(name)? {
            let about = &client.about;
            match &about.block_device {
                Some(device) => bail!("'{}' runs; use its block device {}", about.name, device.display()),
                None => bail!("'{}' runs, in process {}", about.name, about.pid),
            }
        }
        Found::by_name(name)?.assemble()
    }

    /// Runs the array until `future` is done.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.reactor.wait(future)
    }

    /// Carries one command out; its failure is an error.
    pub fn run(&self, command: Command) -> Result<Done> {
        let done = self.wait(self.array.submit(command))?;
        done.result?;
        Ok(done)
    }
}
