//! Run directories: sockets of daemons, locks, and acknowledgement logs, which last until the next boot.

use super::output::uuid;
use anyhow::{Context, Result};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::geteuid,
};
use std::{
    fs::{DirBuilder, File, remove_file},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long a process may take to exit after it has released the drives of its array.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval at which the lock is tried again.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Environment variable that names the run directory.
pub const RUN_VARIABLE: &str = "ZONERAID_RUN_DIR";

/// Environment variable that names the directory of lasting state.
pub const STATE_VARIABLE: &str = "ZONERAID_STATE_DIR";

/// The file with the state and the history of an array's scrubs: in the directory of the environment variable, or else in
/// that of the machine or, for users other than root, in one of their own.
pub fn state_path(array: &[u8; 16]) -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = || {
        let own = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
        own.map(|own| own.join("zoneraid")).filter(|_| !geteuid().is_root())
    };
    let directory = set(STATE_VARIABLE).or_else(of_user);
    let directory = directory.unwrap_or_else(|| PathBuf::from("/var/lib/zoneraid"));
    directory.join(format!("{}.scrub", uuid(array)))
}

/// Candidate run directories: that of the environment variable, or else that of the machine, preceded for users other
/// than root by one of their own, if they are logged in.
pub fn directories() -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(directory) = set(RUN_VARIABLE) {
        return vec![directory];
    }
    let user = geteuid();
    let own = set("XDG_RUNTIME_DIR").unwrap_or_else(|| of_user(user.as_raw()));
    let own = Some(own.join("zoneraid")).filter(|_| !user.is_root() && own.is_dir());
    let mut all: Vec<PathBuf> = own.into_iter().chain([PathBuf::from("/run/zoneraid")]).collect();
    all.dedup();
    all
}

/// The runtime directory of a user, which lasts until the last logout.
fn of_user(id: u32) -> PathBuf {
    Path::new("/run/user").join(id.to_string())
}

/// For root: the acknowledgement log of an array in the run directory of the user that owns `image`, which
/// [`directories`] does not contain; `None` if there is none.
pub fn left_by_owner(image: &Path, array: &[u8; 16]) -> Option<PathBuf> {
    let owner = image.metadata().ok()?.uid();
    let ack_log = ack_log_path(&of_user(owner).join("zoneraid"), array);
    (geteuid().is_root() && owner != 0 && ack_log.exists()).then_some(ack_log)
}

/// The run directory of an array: the one that has an acknowledgement log of it, or else the first of [`directories`].
pub fn directory(array: &[u8; 16]) -> PathBuf {
    let all = directories();
    let left = all.iter().find(|directory| ack_log_path(directory, array).exists());
    left.or(all.first()).cloned().unwrap_or_default()
}

/// The acknowledgement log of an array, which the next daemon needs if this one dies.
pub fn ack_log_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.tails", uuid(array)))
}

/// The acknowledgement log of a namespace.
pub fn namespace_ack_log_path(directory: &Path, array: &[u8; 16], number: u32) -> PathBuf {
    directory.join(format!("{}-{number}.tails", uuid(array)))
}

/// The socket of an array's daemon.
pub fn socket_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.sock", uuid(array)))
}

/// The lock file of an array's daemon.
pub fn lock_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.lock", uuid(array)))
}

/// Creates the run directory, if it does not exist.
pub fn make(directory: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
    made.with_context(|| {
        format!("{} cannot be created: name another directory in ${RUN_VARIABLE}", directory.display())
    })
}

/// Exclusive right to run an array, by its UUID. Claims of its drives do not suffice: a copy of the array has other
/// drives, but the same UUID, by which the files in the run directory are named.
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Locks an array, by its UUID, until this is dropped; `None` if another process holds the lock.
    pub fn take(directory: &Path, array: &[u8; 16]) -> Result<Option<Lock>> {
        make(directory)?;
        let path = lock_path(directory, array);
        let begun = Instant::now();
        loop {
            let problem =
                || format!("{} cannot be locked: name another directory in ${RUN_VARIABLE}", path.display());
            if let Some(file) = lock(&path).with_context(problem)? {
                return Ok(Some(Lock { path, _file: file }));
            }
            if begun.elapsed() >= PATIENCE {
                return Ok(None);
            }
            std::thread::sleep(TRY_EVERY);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed before it is unlocked. A file that stays behind is harmless.
        let _ = remove_file(&self.path);
    }
}

/// Locks the file at `path`; `None` if another process holds the lock, or has removed the file meanwhile.
fn lock(path: &Path) -> std::io::Result<Option<File>> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    let locked = file.metadata()?;
    let is_there = path.metadata().is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino()));
    Ok(is_there.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_lock_is_exclusive_and_reusable_after_release() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, path) = (dir.path().join("run"), lock_path(&dir.path().join("run"), &[1; 16]));
        let first = Lock::take(&directory, &[1; 16]).unwrap().unwrap();
        assert!(Lock::take(&directory, &[2; 16]).unwrap().is_some());
        assert!(lock(&path).unwrap().is_none());
        assert!(Lock::take(&directory, &[1; 16]).unwrap().is_none());
        // A lock that is released while another process waits.
        let waiting = std::thread::spawn({
            let directory = directory.clone();
            move || Lock::take(&directory, &[1; 16]).unwrap().is_some()
        });
        drop(first);
        assert!(waiting.join().unwrap() && !path.exists());
        // The lock file of a killed process.
        std::fs::write(&path, "").unwrap();
        assert!(Lock::take(&directory, &[1; 16]).unwrap().is_some());
    }
}
