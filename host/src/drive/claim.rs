//! Claims: exclusive use of a drive.
//!
//! zoneraid processes exclude each other by a lock on the file of the drive. Commands in flight hold the file too, so
//! the lock of a killed process lasts until the drive has completed the last of them. Other programs are excluded by
//! exclusive use of the block device: the kernel then neither mounts nor exports it.

use super::{
    error::{OpenError, cannot_open},
    users,
};
use crate::process::output::quoted;
use emu::ssd::ImageError;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    fs::{File, Metadata, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

/// Time to wait for a lock of a live process: a process that cannot lock all its drives releases them sooner, and so
/// does udev.
pub const PATIENCE_WITH_THE_LIVING: Duration = Duration::from_millis(700);
/// Time to wait for a lock of a dead process: the drive may take this long for the last commands of the process.
pub const PATIENCE_WITH_THE_DEAD: Duration = Duration::from_secs(60);

/// Characters after which a command line is cut.
const COMMAND_CHARS: usize = 100;

/// Purpose for which a drive is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OpenPurpose {
    Use,
    /// Read-only, and exclusively.
    Read,
    Look,
}

impl OpenPurpose {
    /// Opens the device at `path` with `flags`. Opened for writing only if necessary: udev probes a block device again
    /// whenever a writable file of it is closed.
    pub fn open(self, path: &Path, flags: i32) -> Result<File, OpenError> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(self == OpenPurpose::Use).custom_flags(flags).open(path);
        opened.map_err(|error| cannot_open(path, &error))
    }

    /// Claims the drive that is open as `file`, with the block device called `block`, if it is to be used.
    pub fn claim(self, path: &Path, file: &File, block: &str) -> Result<DriveClaim, OpenError> {
        match self {
            OpenPurpose::Use | OpenPurpose::Read => DriveClaim::of(path, file, block),
            OpenPurpose::Look => Ok(DriveClaim::none()),
        }
    }
}

/// Exclusive use of the block device of a drive, if it has one.
pub struct DriveClaim {
    _block: Option<File>,
}

impl DriveClaim {
    /// No claim, for a drive that is only inspected.
    pub fn none() -> DriveClaim {
        DriveClaim { _block: None }
    }

    /// Claims the drive that is open as `file`, with the block device called `block`.
    pub fn of(path: &Path, file: &File, block: &str) -> Result<DriveClaim, OpenError> {
        lock(path, file)?;
        let node = Path::new("/dev").join(block);
        if !node.exists() {
            return Ok(DriveClaim::none());
        }
        match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&node) {
            Ok(file) => Ok(DriveClaim { _block: Some(file) }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                Err(OpenError::failed(path, in_use(&users::of(&node).unwrap_or_default())))
            }
            Err(error) => {
                Err(OpenError::failed(path, format!("its block device {block} cannot be opened: {error}")))
            }
        }
    }
}

/// The message for a drive with these users; none if the user cannot be determined, or is gone.
fn in_use(users: &[String]) -> String {
    match users {
        [] => "is in use by another program: stop that first, or try again".into(),
        users => format!("is in use: {}", users.join(", ")),
    }
}

/// Locks the file of a drive for this process.
fn lock(path: &Path, file: &File) -> Result<(), OpenError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(taken(path, file)),
        Err(error) => Err(OpenError::failed(path, format!("cannot be locked: {error}"))),
    }
}

/// The error for a locked drive at `path`: names the process that holds the lock, and how long to wait.
pub fn taken(path: &Path, file: &File) -> OpenError {
    match file.metadata().ok().and_then(|file| locker(&file)) {
        Some(User { pid, command: None }) => {
            let problem =
                format!("is still executing commands of process {pid}, which has ended: try again later");
            OpenError::in_use(path, problem, PATIENCE_WITH_THE_DEAD)
        }
        Some(user) => {
            let problem = format!("is in use by {user}: stop that first");
            OpenError::in_use(path, problem, PATIENCE_WITH_THE_LIVING)
        }
        None => {
            let problem = "is in use by another process: stop that first".to_string();
            OpenError::in_use(path, problem, PATIENCE_WITH_THE_LIVING)
        }
    }
}

impl From<ImageError> for OpenError {
    fn from(error: ImageError) -> OpenError {
        if !error.in_use() {
            return OpenError { path: error.path, problem: error.problem, patience: None };
        }
        match File::open(&error.path) {
            Ok(file) => taken(Path::new(&error.path), &file),
            Err(_) => {
                let patience = Some(PATIENCE_WITH_THE_LIVING);
                OpenError { path: error.path, problem: error.problem, patience }
            }
        }
    }
}

/// A process that has claimed a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub pid: u32,
    /// Its command line; `None` if the process is gone and the drive still executes its last commands.
    pub command: Option<String>,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.command {
            Some(command) => write!(f, "`{command}` (process {})", self.pid),
            None => write!(f, "the last commands of process {}, which has ended", self.pid),
        }
    }
}

/// The process that has claimed the drive at `path`, if the kernel reports it. Takes no lock to find out.
pub fn user(path: &Path) -> Option<User> {
    locker(&path.metadata().ok()?)
}

/// The process that holds a lock on a file.
fn locker(file: &Metadata) -> Option<User> {
    let device = file.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let wanted = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = find_locker(&locks, &wanted)?;
    let program = program(&users::read(Path::new(&format!("/proc/{pid}/stat"))));
    Some(User { pid, command: program.map(|program| command(pid).unwrap_or(program)) })
}

/// The command line of a process, cut after `COMMAND_CHARS` characters.
fn command(process: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut words = text.split_terminator('\0');
    let program = Path::new(words.next()?).file_name()?.to_string_lossy().into_owned();
    let line = words.fold(program, |line, word| line + " " + &quoted(word));
    Some(match line.char_indices().nth(COMMAND_CHARS) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    })
}

/// The process with an exclusive flock on a file, in the text of /proc/locks.
fn find_locker(locks: &str, wanted: &str) -> Option<u32> {
    let fields = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Shared locks, as udev takes them for a moment, are no claims.
    let claims = |f: &Vec<&str>| f.get(1) == Some(&"FLOCK") && f.get(3) == Some(&"WRITE");
    let held = fields.filter(|f| claims(f) && f.get(5) == Some(&wanted));
    held.filter_map(|f| f.get(4)?.parse().ok()).next()
}

/// The program name in the text of /proc/PID/stat, unless the process has ended.
fn program(stat: &str) -> Option<String> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let state = rest.trim_start().chars().next()?;
    (!"ZX".contains(state)).then(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drive_lock_error_names_holding_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = File::open(file.path()).unwrap();
        lock(file.path(), file.as_file()).unwrap();
        let error = lock(file.path(), &other).unwrap_err();
        assert!(error.patience().is_some());
        let me = format!("(process {})", std::process::id());
        assert!(error.to_string().contains(&me), "{error}");
        let own = std::env::args().next().unwrap();
        let name = Path::new(&own).file_name().unwrap().to_str().unwrap().to_string();
        assert!(error.to_string().contains(&format!("`{name}")), "{error}");
    }

    #[test]
    fn drive_in_use_by_unknown_user_names_action() {
        assert_eq!(in_use(&["swap".into(), "held by dm-3".into()]), "is in use: swap, held by dm-3");
        assert!(in_use(&[]).contains("try again"));
    }

    #[test]
    fn drive_lock_holder_is_found_in_proc() {
        let locks =
            "1: POSIX  ADVISORY  WRITE 7 00:05:9 0 EOF\n2: FLOCK  ADVISORY  WRITE 812 00:05:9 0 EOF\n";
        assert_eq!(find_locker(locks, "00:05:9"), Some(812));
        assert_eq!(find_locker(locks, "00:05:8"), None);
        assert_eq!(program("812 (a (b) c) S 1 2").as_deref(), Some("a (b) c"));
        assert_eq!(program("812 (zoneraid) Z 1 2"), None);
        assert_eq!(program(""), None);
    }
}
