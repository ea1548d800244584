//! Finds drives, reads their labels, and assembles the array that a name stands for.
//!
//! Superblocks are the truth: which drives belong together is read from them, never from file
//! names. A directory is searched for the members of an array, and members that are not in it
//! are missing. The drives of the machine are those in `/dev`.
//!
//! Searching is looking: no drive is locked or written, whoever uses it. Only the members of the array that was
//! found are claimed, if it is to be used, and then it is read once more what they are. A drive that somebody
//! else changes just then and that cannot be told could be the missing member, so nothing is assembled without
//! it.
//!
//! An array that is only looked at may be changed by others, so it is looked at until all that was read of it is
//! still so ([`Witness`]), or for as long as somebody is ready to wait; then it is said who changes it.
//!
//! What the user types is a path if there is one of that name, then the name or UUID of a running array, then
//! that of an array in one of the [`places`]. Anybody may put an array of any name in some directory: where
//! a word can mean two things it means neither, and that is an error.

use crate::{
    cli::output::{note, quoted, uuid},
    daemon,
    drive::{self, OpenError, User, Witness},
    label::{self, Content, Label},
    reactor::Reactor,
    repair::same_file,
    size::show,
    tails::Left,
};
use anyhow::{Context, Result, bail, ensure};
use engine::{
    array::{Array, ArrayError, Behaviour, Drive, Inspected},
    buf::BLOCK,
    device::{Command, Done, ZonedDevice},
    format::superblock::Stage,
};
use sim::ssd::cause;
use std::{
    collections::BTreeSet,
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

/// How long a drive may take to say what it is to somebody who only looks around.
pub const PATIENCE_TO_LOOK: Duration = Duration::from_secs(2);

/// How long it may take for somebody who would go on without it.
const PATIENCE_TO_USE: Duration = Duration::from_secs(60);

/// Drives that could not be looked at and are named in an error.
const MOST_NAMED: usize = 3;

/// How long an array is looked at that somebody else changes all the time.
const PATIENCE_WITH_CHANGES: Duration = Duration::from_secs(1);

/// How often a locked drive is tried, and one that makes no sense while somebody else uses it is looked at.
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

    /// Whether there is a drive, or a directory with drives, of this name.
    pub fn is_path(&self) -> bool {
        if self.0.is_dir() { drive::holds_drive(&self.0) } else { drive::is_drive(&self.0).unwrap_or(false) }
    }

    /// Whether it may be the name of an array: one word, which may be a path too.
    fn is_word(&self) -> bool {
        let text = self.0.to_string_lossy();
        !text.contains('/') && ![".", ".."].contains(&&*text)
    }

    /// Whether an array is called so.
    fn means(&self, label: &Label) -> bool {
        let wanted = self.0.to_string_lossy();
        label.name == wanted || uuid(&label.uuid) == wanted.to_lowercase()
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

/// A drive that this process holds or looks at, with what its superblock says.
#[derive(Clone)]
pub struct OpenDrive {
    pub path: PathBuf,
    pub device: Rc<dyn ZonedDevice>,
    pub content: Content,
}

/// An array that was only looked at.
pub struct Looked {
    pub inspected: Result<Inspected, ArrayError>,
    /// Who uses its drives.
    pub users: Vec<User>,
    /// Whether it was changed all the time, so that the parts of what was found are of different moments.
    pub changing: bool,
}

impl OpenDrive {
    /// Opens and claims the drive at `path` and looks what is on it.
    pub fn open(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        let used = drive::resolve(path);
        if used != path {
            let (path, used) = (path.display(), used.display());
            note(&format!("{path} is a block device, which knows no ZRWA: {used} is used instead"));
        }
        let device = open_patiently(reactor, &used, Instant::now())?;
        OpenDrive::read(reactor, &used, device, PATIENCE_TO_USE)
    }

    /// Looks what is on the drive at `path`, whoever uses it.
    pub fn look(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        OpenDrive::look_for(reactor, path, PATIENCE_TO_USE)
    }

    /// As [`OpenDrive::look`], if the drive says within `patience` what it is. What makes no sense may be just
    /// being written, so it is looked at again.
    fn look_for(reactor: &Reactor, path: &Path, patience: Duration) -> Result<OpenDrive> {
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

    /// As [`OpenDrive::look`], while other tasks go on.
    pub async fn look_beside(reactor: &Reactor, path: &Path) -> Result<OpenDrive> {
        let device = drive::look(reactor, path)?;
        let mut drive = OpenDrive { path: path.to_path_buf(), device, content: Content::Blank };
        drive.look_again(reactor).await;
        Ok(drive)
    }

    fn read(
        reactor: &Reactor,
        path: &Path,
        device: Rc<dyn ZonedDevice>,
        patience: Duration,
    ) -> Result<OpenDrive> {
        let mut drive = OpenDrive { path: path.to_path_buf(), device, content: Content::Blank };
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
        Drive { name: self.path.display().to_string(), device: self.device.clone() }
    }

    /// Refuses a drive whose array a mounted file system may be waiting for: its daemon has ended and
    /// the block device is still there.
    pub fn refuse_if_waited_for(&self) -> Result<()> {
        let Some(label) = self.label() else { return Ok(()) };
        let uuid = uuid(&label.uuid);
        let tails = daemon::tails_path(&daemon::directory(), &label.uuid);
        ensure!(
            Left::read(&tails, &label.uuid)?.is_none()
                || daemon::running()?.iter().any(|d| d.about.uuid == uuid),
            "{} is member {} of '{}', whose block device waits for its daemon; end that first: zoneraid start \
             {name} and zoneraid stop {name}",
            self.path.display(),
            label.role,
            label.name,
            name = quoted(&label.name)
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
                let unfinished = label.unfinished().map(|what| format!(" ({what})")).unwrap_or_default();
                Some(format!("member {} of array '{}'{unfinished}", label.role, label.name))
            }
            Content::Other(what) => Some(drive::signature(&self.path).unwrap_or_else(|| what.clone())),
        }
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
            note(&format!("{error}; waiting for it"));
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// Where arrays are looked for by name: among the drives of this machine, in $ZONERAID_DIR and in the current
/// directory.
pub fn places() -> Vec<PathBuf> {
    let mut places = vec![PathBuf::from(MACHINE)];
    places.extend(std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from));
    places.push(PathBuf::from("."));
    let mut different: Vec<PathBuf> = Vec::new();
    for place in places {
        if !different.iter().any(|other| same_file(other, &place)) {
            different.push(place);
        }
    }
    different
}

/// What a directory holds.
pub struct Scan {
    /// The directory.
    pub place: PathBuf,
    /// In order of their names.
    pub drives: Vec<OpenDrive>,
    /// Drives, and files that may be some, that cannot be used, and why.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Scan {
    /// Looks at every image and zoned drive in `dir`; other files are passed over, and so is a drive that has been
    /// found under another name.
    pub fn of(reactor: &Reactor, dir: &Path, patience: Duration) -> Result<Scan> {
        Scan::unless_seen(reactor, dir, patience, &mut BTreeSet::new())
    }

    /// As [`Scan::of`], but for drives that have been `seen`.
    fn unless_seen(
        reactor: &Reactor,
        dir: &Path,
        patience: Duration,
        seen: &mut BTreeSet<(u64, u64)>,
    ) -> Result<Scan> {
        let listed = || format!("{} cannot be listed", dir.display());
        let mut scan = Scan { place: dir.to_path_buf(), drives: Vec::new(), damaged: Vec::new() };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(dir).with_context(listed)? {
            let path = entry.with_context(listed)?.path();
            match drive::is_drive(&path) {
                Ok(true) => paths.push(path),
                Ok(false) => {}
                // Smaller files are none, and neither are those that are gone.
                Err(error) if path.metadata().is_ok_and(|file| file.len() >= BLOCK as u64) => {
                    scan.damaged.push((path, format!("cannot be looked at: {}", cause(&error))));
                }
                Err(_) => {}
            }
        }
        paths.sort_by_cached_key(|path| natural_order(path));
        for path in paths {
            if drive::identity(&path).is_ok_and(|identity| !seen.insert(identity)) {
                continue;
            }
            match OpenDrive::look_for(reactor, &path, patience) {
                Ok(drive) => scan.drives.push(drive),
                Err(error) => {
                    let problem = error.downcast_ref::<OpenError>().map(|error| error.problem().to_string());
                    scan.damaged.push((path, problem.unwrap_or_else(|| format!("{error:#}"))));
                }
            }
        }
        Ok(scan)
    }

    /// What there is in all [`places`].
    pub fn everywhere(reactor: &Reactor, patience: Duration) -> Result<Vec<Scan>> {
        let mut seen = BTreeSet::new();
        places().iter().map(|place| Scan::unless_seen(reactor, place, patience, &mut seen)).collect()
    }

    /// The drives that could not be looked at, for an error that says that something has not been found; nothing
    /// if there are none.
    fn blind_spots(scans: &[Scan]) -> String {
        let unseen: Vec<&(PathBuf, String)> = scans.iter().flat_map(|scan| &scan.damaged).collect();
        let named = unseen.iter().take(MOST_NAMED).map(|(path, why)| format!("{} {why}", path.display()));
        let named: Vec<String> = named.collect();
        let more = if unseen.len() > MOST_NAMED { ", and others" } else { "" };
        match unseen.len() {
            0 => String::new(),
            1 => format!("; this one could not be looked at: {}", named.join("")),
            count => format!("; {count} could not be looked at: {}{more}", named.join(", ")),
        }
    }

    /// The drives of the array with this UUID, and those that cannot be used.
    pub fn array(&self, reactor: &Reactor, label: &Label) -> Found {
        let mut damaged = self.damaged.clone();
        for drive in &self.drives {
            if let Content::Other(what) = &drive.content {
                damaged.push((drive.path.clone(), what.clone()));
            }
        }
        let mut drives = self.drives.clone();
        drives.retain(|drive| drive.label().is_some_and(|l| l.uuid == label.uuid));
        let roles: BTreeSet<u32> = drives.iter().filter_map(|drive| Some(drive.label()?.role)).collect();
        if roles.len() >= label.members as usize {
            damaged.clear();
        }
        Found { reactor: reactor.clone(), label: label.clone(), drives, damaged }
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

/// The drives of one array, found and not assembled yet.
pub struct Found {
    pub reactor: Reactor,
    /// The newest label.
    pub label: Label,
    pub drives: Vec<OpenDrive>,
    /// If members are missing, drives beside them that cannot be used: one of those may be it.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Found {
    /// Finds the array that `name` stands for, and claims its drives.
    pub fn by_name(name: &ArrayName) -> Result<Found> {
        Found::search(name, PATIENCE_TO_USE)?.claim()
    }

    /// Finds the array that `name` stands for, only to read it.
    pub fn to_read(name: &ArrayName) -> Result<Found> {
        Found::search(name, PATIENCE_TO_USE)
    }

    /// As [`Found::to_read`], only to look at it: drives that are slow are soon done without.
    pub fn to_look(name: &ArrayName) -> Result<Found> {
        Found::search(name, PATIENCE_TO_LOOK)
    }

    fn search(name: &ArrayName, patience: Duration) -> Result<Found> {
        let reactor = &Reactor::default();
        let path = &name.0;
        if path.exists() && !path.is_dir() {
            let uuid = match OpenDrive::look(reactor, &drive::resolve(path))?.content {
                Content::Member(label) => label.uuid,
                Content::Blank => bail!("{name} is blank and belongs to no array"),
                Content::Other(what) => bail!("{name}: {what}"),
            };
            let scan = Scan::of(reactor, &directory_of(path), patience)?;
            let found = Found::pick(reactor, &scan, |label| label.uuid == uuid)
                .with_context(|| format!("{name} changed while it was looked at; try again"))?;
            return found.unless_ambiguous(name);
        }
        if path.is_dir() {
            let scan = Scan::of(reactor, path, patience)?;
            let arrays = scan.arrays();
            if arrays.len() > 1 {
                let names: Vec<String> =
                    arrays.iter().map(|a| format!("'{}' ({})", a.name, uuid(&a.uuid))).collect();
                bail!(
                    "{name} holds members of {} arrays, {}; name one of their members",
                    arrays.len(),
                    names.join(", ")
                );
            }
            let unseen = Scan::blind_spots(std::slice::from_ref(&scan));
            if let Some(found) = Found::pick(reactor, &scan, |_| true) {
                return found.unless_ambiguous(name);
            }
            // Unless it may hold one, it only has the name of an array somewhere else.
            ensure!(name.is_word() && unseen.is_empty(), "{name} holds no member of an array{unseen}");
        } else if path.components().count() > 1 {
            bail!("{name} does not exist");
        }
        Found::by_array_name(reactor, name, patience)
    }

    fn by_array_name(reactor: &Reactor, name: &ArrayName, patience: Duration) -> Result<Found> {
        let (places, scans) = (places(), Scan::everywhere(reactor, patience)?);
        let mut meant: Vec<([u8; 16], usize)> = Vec::new();
        for (place, scan) in scans.iter().enumerate() {
            let arrays = scan.arrays().into_iter().filter(|label| name.means(label));
            meant.extend(arrays.map(|label| (label.uuid, place)));
        }
        if meant.len() > 1 {
            // What is left of an array whose drives were given to another one says little.
            let whole = |(uuid, place): &([u8; 16], usize)| scans[*place].may_work(uuid);
            if meant.iter().any(whole) {
                meant.retain(whole);
            }
        }
        if meant.len() > 1 {
            let arrays: Vec<String> =
                meant.iter().map(|(id, at)| format!("{} in {}", uuid(id), places[*at].display())).collect();
            bail!(
                "{name} may mean {} arrays: {}; name a UUID or a directory",
                meant.len(),
                arrays.join(", ")
            );
        }
        let names: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let unseen = Scan::blind_spots(&scans);
        let found = meant
            .first()
            .and_then(|(uuid, place)| Found::pick(reactor, &scans[*place], |label| label.uuid == *uuid));
        found.with_context(|| {
            format!(
                "no array called '{name}' among the drives in {}; name its directory or one of its members{unseen}",
                names.join(" and ")
            )
        })
    }

    /// This array, if the word that the user has typed, a path, is not the name of another one as well.
    fn unless_ambiguous(self, name: &ArrayName) -> Result<Found> {
        if !name.is_word() {
            return Ok(self);
        }
        let mut seen = self.drives.iter().filter_map(|drive| drive::identity(&drive.path).ok()).collect();
        for place in places() {
            let scan = Scan::unless_seen(&self.reactor, &place, PATIENCE_TO_LOOK, &mut seen)?;
            let other = |label: &&Label| name.means(label) && label.uuid != self.label.uuid;
            if let Some(label) = scan.arrays().into_iter().find(other) {
                bail!(
                    "{name} may mean the array at {} or the one of that name in {} ({}); use a UUID or a path \
                     with a '/'",
                    quoted(&format!("./{name}")),
                    place.display(),
                    uuid(&label.uuid)
                );
            }
        }
        Ok(self)
    }

    /// The drives of the array that `chosen` picks.
    fn pick(reactor: &Reactor, scan: &Scan, chosen: impl Fn(&Label) -> bool) -> Option<Found> {
        let label = scan.arrays().into_iter().find(|label| chosen(label))?.clone();
        Some(scan.array(reactor, &label))
    }

    /// Claims the drives, and reads again what is on them.
    pub fn claim(mut self) -> Result<Found> {
        let start = Instant::now();
        let uuid = self.label.uuid;
        for drive in &mut self.drives {
            let device = open_patiently(&self.reactor, &drive.path, start)?;
            *drive = OpenDrive::read(&self.reactor, &drive.path, device, PATIENCE_TO_USE)?;
            match drive.label() {
                Some(label) if label.uuid == uuid && label.event >= self.label.event => {
                    self.label = label.clone();
                }
                Some(label) if label.uuid == uuid => {}
                _ => bail!("{} changed while it was looked at; try again", drive.path.display()),
            }
        }
        if self.drives.len() < self.label.members as usize {
            // What the daemons of other arrays hold cannot be what is missing here.
            let running = daemon::running()?;
            let held =
                |path: &Path| running.iter().any(|c| c.about.drives.iter().any(|d| same_file(d, path)));
            let others = self.damaged.iter().filter(|(path, _)| !held(path));
            let in_use = others.filter_map(|(path, _)| Some((path, drive::user(path)?))).next();
            if let Some((path, user)) = in_use {
                bail!(
                    "{} may be a member of '{}', but is in use by {user}; stop that first",
                    path.display(),
                    self.label.name
                );
            }
        }
        Ok(self)
    }

    /// Who has claimed drives of the array.
    pub fn users(&self) -> Vec<User> {
        let mut users: Vec<User> = Vec::new();
        for user in self.drives.iter().filter_map(|drive| drive::user(&drive.path)) {
            if !users.contains(&user) {
                users.push(user);
            }
        }
        users
    }

    /// Finds out how the array is that this process holds; writes nothing.
    pub fn inspect(&self) -> Result<Inspected, ArrayError> {
        let drives = self.drives.iter().map(OpenDrive::drive).collect();
        let found = self.reactor.wait(Array::inspect(self.reactor.runtime(), drives, None));
        found.unwrap_or_else(|error| Err(ArrayError(error.to_string())))
    }

    /// Finds out how the array is, whoever uses it, if its drives answer within `patience`.
    pub fn glance(&self, patience: Duration) -> Result<Looked> {
        let begun = Instant::now();
        loop {
            let (witnesses, drives) = self.look_again(&self.reactor)?;
            let inspect = Array::inspect(self.reactor.runtime(), drives, None);
            let inspected = self.reactor.wait_for(patience, inspect)?.unwrap_or_else(|| {
                Err(ArrayError(format!("its drives do not answer within {} seconds", patience.as_secs())))
            });
            let still = self.is_still(&witnesses, patience)?;
            if still || begun.elapsed() >= PATIENCE_WITH_CHANGES.min(patience) {
                return Ok(Looked { inspected, users: self.users(), changing: !still });
            }
        }
    }

    /// The drives as they are now, and what tells whether they stay so.
    fn look_again(&self, reactor: &Reactor) -> Result<(Vec<Rc<Witness>>, Vec<Drive>)> {
        let mut witnesses = Vec::new();
        for drive in &self.drives {
            let device = drive::look(reactor, &drive.path)?;
            witnesses.push(Rc::new(Witness::of(reactor.runtime(), device)));
        }
        let named = self.drives.iter().map(|drive| drive.path.display().to_string());
        let drives = named.zip(&witnesses).map(|(name, device)| Drive { name, device: device.clone() });
        let drives = drives.collect();
        Ok((witnesses, drives))
    }

    /// Whether all that was read of the drives is still so. Those that do not answer have not changed.
    fn is_still(&self, witnesses: &[Rc<Witness>], patience: Duration) -> Result<bool> {
        for (witness, drive) in witnesses.iter().zip(&self.drives) {
            let now = drive::look(&self.reactor, &drive.path)?;
            let agrees = self.reactor.wait_for(patience, witness.agrees_with(&*now))?;
            if agrees == Some(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses to go on while a process that has died has left what it had answered.
    pub fn refuse_if_waited_for(&self) -> Result<()> {
        let tails = daemon::tails_path(&daemon::directory(), &self.label.uuid);
        // The kernel may hold a file system that relies on what the daemon knew.
        ensure!(
            Left::read(&tails, &self.label.uuid)?.is_none(),
            "the daemon of '{}' has ended while its block device was in use; go on with: zoneraid start {}",
            self.label.name,
            quoted(&self.label.name)
        );
        Ok(())
    }

    /// Assembles the array, which recovers what a power cut left behind.
    pub fn assemble(&self) -> Result<Session> {
        self.refuse_if_waited_for()?;
        self.take_over(None)
    }

    /// Has the array so that it can be read, whoever uses it. Nothing is written on its drives, whoever is
    /// missing.
    pub fn read_only(&self) -> Result<Session> {
        let tails = daemon::tails_path(&daemon::directory(), &self.label.uuid);
        let begun = Instant::now();
        loop {
            let tails = Left::read(&tails, &self.label.uuid)?.map(Left::into_tails);
            // An array that was given up lives in its reactor.
            let reactor = Reactor::default();
            let (witnesses, drives) = self.look_again(&reactor)?;
            let array =
                Array::assemble_read_only(reactor.runtime(), drives, tails.as_ref(), Behaviour::default());
            let array = reactor.wait(array)?;
            if self.is_still(&witnesses, PATIENCE_TO_USE)? {
                witnesses.iter().for_each(|witness| witness.dismiss());
                return Ok(Session { reactor, array: array? });
            }
            ensure!(
                begun.elapsed() < PATIENCE_WITH_CHANGES,
                "'{}' is being changed by {}; wait for that, or stop it",
                self.label.name,
                listed(&self.users())
            );
        }
    }

    /// Has the array for use, from where a process that has died has `left` it. If a member is missing that is
    /// not out so far, nothing is written before somebody changes something.
    pub fn start(&self, left: Option<&Left>, terms: Terms) -> Result<Session> {
        let drives: Vec<Drive> = self.drives.iter().map(OpenDrive::drive).collect();
        let tails = left.cloned().map(Left::into_tails);
        let behaviour = Behaviour { force: terms.force, ..Behaviour::default() };
        let (reactor, runtime) = (&self.reactor, self.reactor.runtime());
        let array = match terms.read_only {
            true => reactor.wait(Array::assemble_read_only(runtime, drives, tails.as_ref(), behaviour)),
            false => reactor.wait(Array::assemble_provisionally(runtime, drives, tails.as_ref(), behaviour)),
        }??;
        Ok(Session { reactor: reactor.clone(), array })
    }

    /// As [`Found::assemble`], from where a process that has died has `left` it.
    pub fn take_over(&self, left: Option<&Left>) -> Result<Session> {
        let drives = self.drives.iter().map(OpenDrive::drive).collect();
        let runtime = self.reactor.runtime();
        let array = match left {
            Some(left) => {
                let tails = left.clone().into_tails();
                self.reactor.wait(Array::take_over(runtime, drives, &tails))
            }
            None => self.reactor.wait(Array::assemble(runtime, drives)),
        }??;
        Ok(Session { reactor: self.reactor.clone(), array })
    }
}

/// On what terms an array is started.
#[derive(Clone, Copy, Default)]
pub struct Terms {
    /// Only to be read: nothing is written on its drives.
    pub read_only: bool,
    /// With members that are stale, where there are too few others.
    pub force: bool,
}

/// Users in a sentence.
pub fn listed(users: &[User]) -> String {
    let users: Vec<String> = users.iter().map(User::to_string).collect();
    if users.is_empty() { "somebody".into() } else { users.join(" and ") }
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

/// Says so if one of the files at `paths` lies in a file system that is full: drives only say that a write has
/// failed.
pub fn full(paths: impl IntoIterator<Item = PathBuf>) -> Option<String> {
    let is_full = |path: &PathBuf| {
        let lies_in = rustix::fs::statvfs(path).is_ok_and(|system| system.f_bavail == 0);
        lies_in && path.metadata().is_ok_and(|metadata| metadata.is_file() || metadata.is_dir())
    };
    paths.into_iter().find(is_full).map(|path| format!("the file system of {} is full", path.display()))
}

impl Session {
    /// `error`, with what may be behind it.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let members = self.array.status().members;
        match full(members.into_iter().map(|member| PathBuf::from(member.drive))) {
            Some(full) => error.context(full),
            None => error,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_room_is_full_and_others_are_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // The kernel makes this one up; there is no room in it.
        let made_up = PathBuf::from("/proc/version");
        let said = full([file.path().to_path_buf(), made_up.clone()]).unwrap();
        assert_eq!(said, "the file system of /proc/version is full");
        assert_eq!(full([file.path().to_path_buf(), PathBuf::from("/dev/null"), PathBuf::new()]), None);
    }
}
