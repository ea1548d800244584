//! The array that a name refers to: found, inspected, claimed, assembled.

use super::{
    open::{OpenDrive, PATIENCE_TO_LOOK, PATIENCE_TO_USE, open_patiently, runner},
    scan::{Scan, directory_of, places},
    session::{Session, explain},
};
use crate::{
    control::{
        client::{self, Client},
        name::ArrayName,
    },
    drive::{
        self, StableRead, User,
        label::{Content, Label},
        same_file,
    },
    process::{
        output::{quoted, uuid},
        run,
    },
    reactor::Reactor,
    report::ZoneContents,
    serve::ack_log::{self, AckLogContents},
};
use anyhow::{Context, Result, bail, ensure};
use engine::{
    array::{Array, ArrayError, ArrayInspection, ArrayOptions, Drive, Tails},
    device::ZonedDevice,
    evidence::Presence,
    volume::Volume,
    vzone::Namespaces,
};
use std::{
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// How long to retry the inspection of an array that keeps changing.
const PATIENCE_WITH_CHANGES: Duration = Duration::from_secs(1);

/// Result of the inspection of an array that other processes may use.
pub struct LookResult {
    /// The state of the array, or the reason why there is none, as a sentence.
    pub inspected: Result<ArrayInspection, String>,
    /// Processes that use its drives.
    pub users: Vec<User>,
    /// Whether it kept changing, so that the results are of different moments.
    pub changing: bool,
}

/// The drives of one array, found and not assembled yet.
pub struct FoundArray {
    pub reactor: Reactor,
    /// The newest label.
    pub label: Label,
    /// Its name in messages and advice: as the user typed it, or one that finds it.
    pub called: String,
    pub drives: Vec<OpenDrive>,
    /// If members are missing, unusable drives in the same directory: one of them may be a missing member.
    pub damaged: Vec<(PathBuf, String)>,
    /// Drives in the same directory that hold an unfinished copy of a member, with its role.
    pub filled: Vec<(usize, PathBuf)>,
    /// The directory where they were found.
    place: PathBuf,
}

impl FoundArray {
    /// The drives of the array with this label among those of a directory, and those that cannot be used.
    pub fn among(reactor: &Reactor, scan: &Scan, label: &Label) -> FoundArray {
        let mut damaged = scan.damaged.clone();
        for drive in &scan.drives {
            if let Content::Other(what) = &drive.content {
                damaged.push((drive.path.clone(), what.clone()));
            }
        }
        let role_of = |drive: &OpenDrive| {
            (0..label.members as usize).find(|role| drive.is_filled_for(&label.uuid, *role))
        };
        let filled = scan.drives.iter().filter_map(|drive| Some((role_of(drive)?, drive.path.clone())));
        let mut drives = scan.drives.clone();
        drives.retain(|drive| drive.label().is_some_and(|l| l.uuid == label.uuid));
        let (called, place) = (label.name.clone(), scan.place.clone());
        let (reactor, label, filled) = (reactor.clone(), label.clone(), filled.collect());
        let mut found = FoundArray { reactor, label, called, drives, damaged, filled, place };
        if found.has_all() {
            found.damaged.clear();
        }
        found
    }

    /// Whether there is a drive for each role: with the newest superblock, unless the member is out by that. Another
    /// drive may be a former member.
    fn has_all(&self) -> bool {
        let Label { members, active, event, .. } = self.label;
        let fits = |label: &Label, role: u32| {
            label.role == role && (label.event >= event || active & (1 << role) == 0)
        };
        (0..members).all(|role| self.drives.iter().any(|drive| drive.label().is_some_and(|l| fits(l, role))))
    }

    /// Finds the array that `name` refers to, and claims its drives.
    pub fn by_name(name: &ArrayName) -> Result<FoundArray> {
        FoundArray::search(name, PATIENCE_TO_USE)?.claim()
    }

    /// Finds the array that `name` refers to, to read it without claiming its drives.
    pub fn to_read(name: &ArrayName) -> Result<FoundArray> {
        FoundArray::search(name, PATIENCE_TO_USE)
    }

    /// As [`FoundArray::to_read`], for an inspection: slow drives are soon left out.
    pub fn to_look(name: &ArrayName) -> Result<FoundArray> {
        FoundArray::search(name, PATIENCE_TO_LOOK)
    }

    fn search(name: &ArrayName, patience: Duration) -> Result<FoundArray> {
        Ok(FoundArray { called: name.to_string(), ..FoundArray::meant_by(name, patience)? })
    }

    fn meant_by(name: &ArrayName, patience: Duration) -> Result<FoundArray> {
        let reactor = &Reactor::default();
        let path = name.path();
        if path.exists() && !path.is_dir() {
            let uuid = match OpenDrive::look(reactor, &drive::resolve(path))?.content {
                Content::Member(label) => label.uuid,
                Content::Blank => bail!("{name} is blank and belongs to no array"),
                Content::Filled(filled) => bail!("{name} {}", filled.sentence),
                Content::Other(what) => bail!("{name}: {what}"),
            };
            let scan = Scan::of(reactor, &directory_of(path), patience)?;
            let found = FoundArray::pick(reactor, &scan, |label| label.uuid == uuid)
                .with_context(|| format!("{name} changed during the search: try again"))?;
            return found.unless_ambiguous(name);
        }
        if path.is_dir() {
            let scan = Scan::of(reactor, path, patience)?;
            scan.refuse_several()?;
            let unseen = Scan::blind_spots(std::slice::from_ref(&scan));
            if let Some(found) = FoundArray::pick(reactor, &scan, |_| true) {
                return found.unless_ambiguous(name);
            }
            // A directory without members may still have the name of an array elsewhere, unless a drive in it could not
            // be read.
            ensure!(name.is_word() && unseen.is_empty(), "{name} holds no member of an array{unseen}");
        } else if path.components().count() > 1 {
            bail!("{name} does not exist");
        }
        FoundArray::by_array_name(reactor, name, patience)
    }

    fn by_array_name(reactor: &Reactor, name: &ArrayName, patience: Duration) -> Result<FoundArray> {
        let (places, scans) = (places(), Scan::everywhere(reactor, patience)?);
        let mut meant: Vec<([u8; 16], usize)> = Vec::new();
        for (place, scan) in scans.iter().enumerate() {
            let arrays = scan.arrays().into_iter().filter(|label| name.means(label));
            meant.extend(arrays.map(|label| (label.uuid, place)));
        }
        if meant.len() > 1 {
            // Arrays with too few members left, as after a reuse of their drives, do not count then.
            let whole = |(uuid, place): &([u8; 16], usize)| scans[*place].may_work(uuid);
            if meant.iter().any(whole) {
                meant.retain(whole);
            }
        }
        if meant.len() > 1 {
            let arrays: Vec<String> =
                meant.iter().map(|(id, at)| format!("{} in {}", uuid(id), places[*at].display())).collect();
            // The same UUID several times is an array and its copies.
            let differ =
                meant.iter().all(|(id, _)| meant.iter().filter(|(other, _)| other == id).count() == 1);
            bail!(
                "{name} may mean {} arrays: {}; name a {}directory",
                meant.len(),
                arrays.join(", "),
                if differ { "UUID or a " } else { "" }
            );
        }
        let names: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let unseen = Scan::blind_spots(&scans);
        let below = if meant.is_empty() { one_directory_down(reactor, name) } else { None };
        let advice = match &below {
            Some(dir) => {
                format!("there is one in {0}: name that directory, or set $ZONERAID_DIR to it", dir.display())
            }
            None => "name its directory or one of its members".into(),
        };
        let found = meant
            .first()
            .and_then(|(uuid, place)| FoundArray::pick(reactor, &scans[*place], |label| label.uuid == *uuid));
        found.with_context(|| {
            format!("no array called '{name}' among the drives in {}; {advice}{unseen}", names.join(" and "))
        })
    }

    /// Refuses a name that is both a path to this array and the name of another one.
    fn unless_ambiguous(self, name: &ArrayName) -> Result<FoundArray> {
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

    /// The drives of the array with a label that satisfies `chosen`.
    fn pick(reactor: &Reactor, scan: &Scan, chosen: impl Fn(&Label) -> bool) -> Option<FoundArray> {
        let label = scan.arrays().into_iter().find(|label| chosen(label))?.clone();
        Some(FoundArray::among(reactor, scan, &label))
    }

    /// Makes all paths absolute, for a process with another working directory.
    pub fn absolute(mut self) -> Result<FoundArray> {
        let drives = self.drives.iter_mut().map(|drive| &mut drive.path);
        let damaged = self.damaged.iter_mut().map(|(path, _)| path);
        let filled = self.filled.iter_mut().map(|(_, path)| path);
        for path in drives.chain(damaged).chain(filled).chain([&mut self.place]) {
            *path = std::path::absolute(&path).context("the working directory is gone")?;
        }
        Ok(self)
    }

    /// Claims the drives, and reads their superblocks again.
    pub fn claim(self) -> Result<FoundArray> {
        self.claim_for(false)
    }

    /// As [`FoundArray::claim`], read-only: then the drives need not be writable.
    pub fn claim_to_read(self) -> Result<FoundArray> {
        self.claim_for(true)
    }

    fn claim_for(mut self, read_only: bool) -> Result<FoundArray> {
        let mut late = std::mem::take(&mut self.drives);
        while !late.is_empty() {
            let start = Instant::now();
            for drive in late {
                self.take(drive, start, read_only)?;
            }
            late = self.latecomers()?;
        }
        if let Some((path, user)) = self.unclear()?.into_iter().next() {
            bail!(
                "{} may be a member of '{}', but is in use by {user}; stop that first",
                path.display(),
                self.label.name
            );
        }
        Ok(self)
    }

    /// Claims one of the drives that were found.
    fn take(&mut self, found: OpenDrive, start: Instant, read_only: bool) -> Result<()> {
        let device = open_patiently(&self.reactor, &found.path, start, read_only)?;
        let drive = OpenDrive::read(&self.reactor, &found.path, device, PATIENCE_TO_USE)?;
        match drive.label() {
            Some(label) if label.uuid == self.label.uuid => {
                if label.event >= self.label.event {
                    self.label = label.clone();
                }
            }
            _ => bail!("{} changed during the search: try again", drive.path.display()),
        }
        self.drives.push(drive);
        Ok(())
    }

    /// Drives that have become members since the search: another process has replaced a member while its drives were
    /// waited for. Now that these are claimed, this cannot happen again.
    fn latecomers(&mut self) -> Result<Vec<OpenDrive>> {
        let newest = |role: u32| {
            let of_role = |label: &&Label| label.role == role && label.event == self.label.event;
            self.drives.iter().filter_map(OpenDrive::label).any(|label| of_role(&label))
        };
        if (0..self.label.members).all(newest) {
            return Ok(Vec::new());
        }
        let scan = Scan::of(&self.reactor, &self.place, PATIENCE_TO_USE)?;
        let now = FoundArray::among(&self.reactor, &scan, &self.label);
        self.damaged = now.damaged;
        let held = |drive: &OpenDrive| self.drives.iter().any(|held| same_file(&held.path, &drive.path));
        Ok(now.drives.into_iter().filter(|drive| !held(drive)).collect())
    }

    /// Drives in use that cannot be identified: one of them may be the missing member.
    fn unclear(&self) -> Result<Vec<(&Path, User)>> {
        if self.damaged.is_empty() || self.has_all() {
            return Ok(Vec::new());
        }
        // Drives held by daemons of other arrays cannot be the missing member.
        let running = client::running()?;
        let held = |path: &Path| running.iter().any(|c| c.about.drives.iter().any(|d| same_file(d, path)));
        let others = self.damaged.iter().map(|(path, _)| path.as_path()).filter(|path| !held(path));
        Ok(others.filter_map(|path| Some((path, drive::user(path)?))).collect())
    }

    /// Whether a drive that is in use was a member when it was found, and is none in `array`.
    fn has_left(&self, array: &ArrayInspection) -> bool {
        let is_vacant = |label: &Label| {
            array.status.members.get(label.role as usize).is_some_and(|member| member.drive.is_empty())
        };
        let left = self.drives.iter().filter(|drive| drive.label().is_some_and(is_vacant));
        left.filter_map(|drive| drive::user(&drive.path)).next().is_some()
    }

    /// Whether the array lacks a member, independently of concurrent changes: a member is out, or its drive is not
    /// there.
    pub fn is_short(&self) -> bool {
        let Label { members, active, .. } = &self.label;
        let there = |role: u32| self.drives.iter().any(|drive| drive.label().is_some_and(|l| l.role == role));
        (0..*members).any(|role| active & (1 << role) == 0 || self.damaged.is_empty() && !there(role))
    }

    /// Processes that have claimed drives of the array.
    pub fn users(&self) -> Vec<User> {
        let mut users: Vec<User> = Vec::new();
        for user in self.drives.iter().filter_map(|drive| drive::user(&drive.path)) {
            if !users.contains(&user) {
                users.push(user);
            }
        }
        users
    }

    /// Determines the state of an array on drives that this process holds; writes nothing.
    pub fn inspect(&self) -> Result<ArrayInspection> {
        let drives = self.drives.iter().map(OpenDrive::drive).collect();
        let tails = self.tails_of_dead();
        let found = self.reactor.wait(Array::inspect(self.reactor.runtime(), drives, tails.as_ref()));
        Ok(found??)
    }

    /// Determines the state of an array that other processes may use, if its drives answer within `patience`.
    pub fn glance(&self, patience: Duration) -> Result<LookResult> {
        let begun = Instant::now();
        // The first attempt takes the drives as they were found: each drive that is opened reads its zone table.
        let mut opened =
            self.recorded(&self.reactor, self.drives.iter().map(|drive| Ok(drive.device.clone())))?;
        loop {
            let (stable_reads, drives) = opened;
            let tails = self.tails_of_dead();
            let filled = self.look_at_filled();
            let inspect = Array::inspect_with(self.reactor.runtime(), drives, &filled, tails.as_ref());
            let inspected = match self.reactor.wait_for(patience, inspect)? {
                Some(inspected) => inspected.map_err(|error| error.to_string()),
                None => Err(format!("its drives did not respond within {} seconds", patience.as_secs())),
            };
            let still = self.is_still(&stable_reads, patience)?;
            if still || begun.elapsed() >= PATIENCE_WITH_CHANGES.min(patience) {
                let (mut users, unclear) = (self.users(), self.unclear()?);
                let left = inspected.as_ref().is_ok_and(|array| self.has_left(array));
                let changing = !still || left || !unclear.is_empty();
                users.extend(unclear.into_iter().map(|(_, user)| user));
                users.sort_by_key(|user| user.pid);
                users.dedup();
                return Ok(LookResult { inspected, users, changing });
            }
            opened = self.look_again(&self.reactor)?;
        }
    }

    /// Acknowledged ends of a dead process that ran the array, at which a start would continue. Errors are left to the
    /// start.
    fn tails_of_dead(&self) -> Option<Tails> {
        let left = runner(&self.label.uuid).is_none().then(|| AckLogContents::of(&self.label.uuid).ok());
        left.flatten().flatten().map(AckLogContents::into_tails)
    }

    /// Opens the drives anew, each with a stable read that detects changes.
    fn look_again(&self, reactor: &Reactor) -> Result<(Vec<Rc<StableRead>>, Vec<Drive>)> {
        let look = |drive: &OpenDrive| Ok(drive::look(reactor, &drive.path)?);
        self.recorded(reactor, self.drives.iter().map(look))
    }

    /// `devices`, the drives by their order, each with a stable read that detects changes.
    fn recorded(
        &self,
        reactor: &Reactor,
        devices: impl Iterator<Item = Result<Rc<dyn ZonedDevice>>>,
    ) -> Result<(Vec<Rc<StableRead>>, Vec<Drive>)> {
        let mut stable_reads = Vec::new();
        for device in devices {
            stable_reads.push(Rc::new(StableRead::of(reactor.runtime(), device?)));
        }
        let named = self.drives.iter().map(|drive| drive.path.display().to_string());
        let drives = named.zip(&stable_reads).map(|(name, device)| Drive { name, device: device.clone() });
        let drives = drives.collect();
        Ok((stable_reads, drives))
    }

    /// The drives that are being filled with copies of members, except for those that do not respond.
    fn look_at_filled(&self) -> Vec<Drive> {
        let look = |path: &PathBuf| {
            let device = drive::look(&self.reactor, path).ok()?;
            Some(Drive { name: path.display().to_string(), device })
        };
        self.filled.iter().filter_map(|(_, path)| look(path)).collect()
    }

    /// Whether everything that was read of the drives is unchanged. Drives that do not answer count as unchanged.
    fn is_still(&self, stable_reads: &[Rc<StableRead>], patience: Duration) -> Result<bool> {
        for (stable_read, drive) in stable_reads.iter().zip(&self.drives) {
            let now = drive::look(&self.reactor, &drive.path)?;
            let agrees = self.reactor.wait_for(patience, stable_read.agrees_with(&*now))?;
            if agrees == Some(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether acknowledged ends of a process exist: a file system on the block device may rely on them.
    fn is_relied_on(&self) -> Result<bool> {
        Ok(self.left_by_owner().is_some() || AckLogContents::of(&self.label.uuid)?.is_some())
    }

    /// The acknowledgement log of the daemon of another user.
    pub fn left_by_owner(&self) -> Option<PathBuf> {
        self.drives.iter().find_map(|drive| run::left_by_owner(&drive.path, &self.label.uuid))
    }

    /// The address at which NBD clients wait for the next server, in the form of `serve --nbd`; `None` for a block
    /// device.
    pub fn served_at(&self) -> Option<String> {
        let uuid = &self.label.uuid;
        let own = || run::ack_log_path(&run::directory(uuid), uuid);
        ack_log::served_at(&self.left_by_owner().unwrap_or_else(own))
    }

    /// Whether a process that ran the array has died and left acknowledged ends.
    pub fn is_waited_for(&self) -> Result<bool> {
        Ok(self.is_relied_on()? && runner(&self.label.uuid).is_none())
    }

    /// Refuses if a block device or NBD clients wait for the next daemon, or a daemon runs.
    pub fn refuse_if_waited_for(&self) -> Result<()> {
        if !self.is_relied_on()? {
            return Ok(());
        }
        if let Some(user) = runner(&self.label.uuid) {
            let why =
                client::silence_of(&uuid(&self.label.uuid)).map(|(_, silence)| format!("; {}", silence.why));
            bail!("'{}', or a copy of it, is run by {user}{}", self.label.name, why.unwrap_or_default());
        }
        if let Some(place) = self.served_at() {
            bail!(
                "the NBD server of '{}' was killed, and its clients wait for the next one: zoneraid serve {} --nbd {}",
                self.label.name,
                quoted(&self.called),
                quoted(&place)
            );
        }
        bail!(
            "the daemon of '{0}' has ended while the array was in use: start it again with zoneraid start {1}, \
             or, if it served NBD clients, with zoneraid serve {1} --nbd SOCKET",
            self.label.name,
            quoted(&self.called)
        );
    }

    /// Replaces an error of the whole array by its likely cause.
    pub fn explain(&self, error: ArrayError) -> anyhow::Error {
        explain(error.into(), self.drives.iter().map(|drive| drive.path.clone()))
    }

    /// Assembles the array, which recovers it after a power cut. If members are missing that are not out yet, nothing
    /// is written before the first change: a refused command makes no member stale.
    pub fn assemble(&self) -> Result<Session> {
        self.refuse_if_waited_for()?;
        self.start(None, StartTerms::default())
    }

    /// Assembles the array read-only, also while other processes use it. Nothing is written to its drives, even if
    /// members are missing.
    pub fn read_only(&self) -> Result<Session> {
        let begun = Instant::now();
        loop {
            let tails = AckLogContents::of(&self.label.uuid)?.map(AckLogContents::into_tails);
            // A new reactor for each attempt: tasks of an abandoned array stay in its reactor.
            let reactor = Reactor::default();
            let (stable_reads, drives) = self.look_again(&reactor)?;
            let array =
                Array::assemble_read_only(reactor.runtime(), drives, tails.as_ref(), ArrayOptions::default());
            let array = reactor.wait(array)?;
            if self.is_still(&stable_reads, PATIENCE_TO_USE)? {
                stable_reads.iter().for_each(|stable_read| stable_read.dismiss());
                return Ok(Session::new(reactor, array?));
            }
            ensure!(
                begun.elapsed() < PATIENCE_WITH_CHANGES,
                "'{}' is being changed by {}; wait for that process to end, or stop it",
                self.label.name,
                listed(&self.users())
            );
        }
    }

    /// The contents of its zones: namespaces or a volume; `None` if the zones are used directly.
    pub fn carries(&self) -> Option<ZoneContents> {
        let Ok(session) = self.read_only() else { return Some(ZoneContents::Unknown) };
        let device = session.device.clone();
        let carried = async {
            match (Namespaces::are_on(device.clone()).await, Volume::is_on(device).await) {
                (Ok(Presence::Yes), _) => Some(ZoneContents::Namespaces),
                (_, Ok(Presence::Yes)) => Some(ZoneContents::Volume),
                (Ok(Presence::No), Ok(Presence::No)) => None,
                _ => Some(ZoneContents::Unknown),
            }
        };
        session.wait(carried).unwrap_or(Some(ZoneContents::Unknown))
    }

    /// Assembles the array for use, with the acknowledged ends that a dead process has `left`. If members are missing
    /// that are not out yet, nothing is written before the first change.
    pub fn start(&self, left: Option<&AckLogContents>, terms: StartTerms) -> Result<Session> {
        let drives: Vec<Drive> = self.drives.iter().map(OpenDrive::drive).collect();
        let tails = left.cloned().map(AckLogContents::into_tails);
        let behaviour = ArrayOptions { force: terms.force, ..ArrayOptions::default() };
        let (reactor, runtime) = (&self.reactor, self.reactor.runtime());
        let array = match terms.read_only {
            true => reactor.wait(Array::assemble_read_only(runtime, drives, tails.as_ref(), behaviour)),
            false => reactor.wait(Array::assemble_deferred(runtime, drives, tails.as_ref(), behaviour)),
        }?;
        let array = array.map_err(|error| self.explain(error))?;
        Ok(Session::new(reactor.clone(), array))
    }
}

/// Most subdirectories of the working directory in which an array that was not found is looked for.
const MOST_DIRECTORIES: usize = 64;

/// A subdirectory of the working directory that holds the array called `name`, for advice.
fn one_directory_down(reactor: &Reactor, name: &ArrayName) -> Option<PathBuf> {
    let entries =
        std::fs::read_dir(".").ok()?.filter_map(|entry| Some(PathBuf::from(entry.ok()?.file_name())));
    let mut dirs: Vec<PathBuf> = entries.filter(|path| path.is_dir()).take(MOST_DIRECTORIES).collect();
    dirs.sort();
    dirs.into_iter().filter(|dir| drive::holds_drive(dir)).find(|dir| {
        let scan = Scan::of(reactor, dir, PATIENCE_TO_LOOK);
        scan.is_ok_and(|scan| scan.arrays().into_iter().any(|label| name.means(label)))
    })
}

/// The daemon of the array that `name` refers to; `None` if none runs it. A directory with members of two arrays is
/// refused, even if only one of them runs.
pub fn find_running(name: &ArrayName) -> Result<Option<Client>> {
    let client = client::find(name)?;
    if client.as_ref().is_some_and(|client| name.path().is_dir() && client.uses(name.path())) {
        Scan::of(&Reactor::default(), name.path(), PATIENCE_TO_LOOK)?.refuse_several()?;
    }
    Ok(client)
}

/// Finds and assembles the array that `name` refers to.
pub fn assembled(name: &ArrayName) -> Result<Session> {
    if let Some(client) = find_running(name)? {
        let about = &client.about;
        match (&about.block_device, about.namespaces.first()) {
            (Some(device), _) => bail!("'{}' runs; use its block device {}", about.name, device.display()),
            (None, Some(_)) => bail!(
                "'{}' runs with its namespaces: use their block devices, or stop it first with zoneraid stop {}",
                about.name,
                quoted(&about.name)
            ),
            (None, None) => bail!("'{}' runs, in process {}", about.name, about.pid),
        }
    }
    FoundArray::by_name(name)?.assemble()
}

/// Options of a start.
#[derive(Clone, Copy, Default)]
pub struct StartTerms {
    /// Read-only: nothing is written to its drives.
    pub read_only: bool,
    /// Accept stale members, if there are too few others.
    pub force: bool,
    /// Open volumes without the data that they have lost.
    pub give_up: bool,
    /// Bytes of memory for the map of each volume; `None` for the default.
    pub map_memory: Option<u64>,
}

/// Users as a part of a sentence.
pub fn listed(users: &[User]) -> String {
    let users: Vec<String> = users.iter().map(User::to_string).collect();
    if users.is_empty() { "an unknown process".into() } else { users.join(" and ") }
}
