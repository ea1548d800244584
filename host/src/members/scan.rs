//! Scans of directories: drives, and the arrays that their superblocks name.

use super::open::OpenDrive;
use crate::{
    drive::{self, OpenError, label::Label, same_file},
    process::output::uuid,
    reactor::Reactor,
};
use anyhow::{Context, Result, ensure};
use emu::ssd::cause;
use engine::buf::BLOCK;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

/// Environment variable that names a directory in which arrays are looked for by name.
pub const DIR_VARIABLE: &str = "ZONERAID_DIR";

/// The directory of the drives of this machine.
pub const MACHINE: &str = "/dev";

/// Most unreadable drives that an error names.
const MOST_NAMED: usize = 3;

/// The directory in which the other members of an array with the drive at `path` are looked for.
pub fn directory_of(path: &Path) -> PathBuf {
    let is_device = path.metadata().is_ok_and(|metadata| !metadata.is_file());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if is_device { PathBuf::from(MACHINE) } else { parent.unwrap_or(Path::new(".")).to_path_buf() }
}

/// Refuses drives for one array in different directories: members are looked for in one directory.
pub fn refuse_scattered<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let mut paths = paths.into_iter();
    let Some(first) = paths.next() else { return Ok(()) };
    let place = directory_of(first);
    for path in paths {
        ensure!(
            same_file(&place, &directory_of(path)),
            "{} and {} are in different directories, but members are looked for in one: put the drives, or \
             links to them, into one directory",
            first.display(),
            path.display()
        );
    }
    Ok(())
}

/// Directories in which arrays are looked for by name: that of the machine's drives, $ZONERAID_DIR and the working
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

/// Drives in a directory.
pub struct Scan {
    /// The directory.
    pub place: PathBuf,
    /// Sorted by name.
    pub drives: Vec<OpenDrive>,
    /// Drives, and files that may be drives, that cannot be used, with the reason.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Scan {
    /// Reads every image and zoned drive in `dir`; other files are skipped, and so is a drive that has been found under
    /// another name.
    pub fn of(reactor: &Reactor, dir: &Path, patience: Duration) -> Result<Scan> {
        Scan::unless_seen(reactor, dir, patience, &mut BTreeSet::new())
    }

    /// As [`Scan::of`], except for drives in `seen`.
    pub(super) fn unless_seen(
        reactor: &Reactor,
        dir: &Path,
        patience: Duration,
        seen: &mut BTreeSet<(u64, u64)>,
    ) -> Result<Scan> {
        let mut scan = Scan { place: dir.to_path_buf(), drives: Vec::new(), damaged: Vec::new() };
        let mut paths = Vec::new();
        let entries = drive::entries(dir).with_context(|| format!("{} cannot be listed", dir.display()))?;
        for (path, is_drive) in entries {
            match is_drive {
                Ok(true) => paths.push(path),
                Ok(false) => {}
                // Smaller files, and files that have disappeared, are no drives.
                Err(error) if path.metadata().is_ok_and(|file| file.len() >= BLOCK as u64) => {
                    scan.damaged.push((path, format!("cannot be examined: {}", cause(&error))));
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

    /// Scans all [`places`].
    pub fn everywhere(reactor: &Reactor, patience: Duration) -> Result<Vec<Scan>> {
        let mut seen = BTreeSet::new();
        places().iter().map(|place| Scan::unless_seen(reactor, place, patience, &mut seen)).collect()
    }

    /// The drives that could not be read, for an error about something that was not found; empty if there are none.
    pub(super) fn blind_spots(scans: &[Scan]) -> String {
        let unseen: Vec<&(PathBuf, String)> = scans.iter().flat_map(|scan| &scan.damaged).collect();
        let named = unseen.iter().take(MOST_NAMED).map(|(path, why)| format!("{} {why}", path.display()));
        let named: Vec<String> = named.collect();
        let more = if unseen.len() > MOST_NAMED { ", and others" } else { "" };
        match unseen.len() {
            0 => String::new(),
            1 => format!("; this one could not be examined: {}", named.join("")),
            count => format!("; {count} could not be examined: {}{more}", named.join(", ")),
        }
    }

    /// Whether enough members of an array are there.
    pub(super) fn may_work(&self, uuid: &[u8; 16]) -> bool {
        let labels = || self.drives.iter().filter_map(OpenDrive::label).filter(|l| l.uuid == *uuid);
        let roles: BTreeSet<u32> = labels().map(|label| label.role).collect();
        labels().next().is_some_and(|label| roles.len() as u32 + label.parities >= label.members)
    }

    /// Refuses a directory with more than one array.
    pub(super) fn refuse_several(&self) -> Result<()> {
        let arrays = self.arrays();
        let names: Vec<String> = arrays.iter().map(|a| format!("'{}' ({})", a.name, uuid(&a.uuid))).collect();
        ensure!(
            arrays.len() <= 1,
            "{} holds members of {} arrays, {}; name one of their members",
            self.place.display(),
            arrays.len(),
            names.join(", ")
        );
        Ok(())
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

/// Sort key: text and numbers in turn, so that drive10 comes after drive9, and ng10n1 after ng9n2.
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
