//! Where sockets of daemons are, and what lasts until the next boot.

use crate::output::uuid;
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

/// How long a process that lets go of an array may take to end, after its drives are free.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often it is looked whether it has.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Environment variable with the directory of sockets and of what lasts until the next boot.
pub const RUN_VARIABLE: &str = "ZONERAID_RUN_DIR";

/// Where sockets may be, and what lasts until the next boot: in the directory of the environment, or else in that of
/// the machine, before which those who are not root have one of their own, if they are logged in.
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

/// Where a user has what lasts until the last logout.
fn of_user(id: u32) -> PathBuf {
    Path::new("/run/user").join(id.to_string())
}

/// What a daemon has left of an array on an image of a user's, where root would not look for it.
pub fn left_by_owner(image: &Path, array: &[u8; 16]) -> Option<PathBuf> {
    let owner = image.metadata().ok()?.uid();
    let tails = tails_path(&of_user(owner).join("zoneraid"), array);
    (geteuid().is_root() && owner != 0 && tails.exists()).then_some(tails)
}

/// Where the daemon of an array has them: where one has left something, or else in the first of [`directories`].
pub fn directory(array: &[u8; 16]) -> PathBuf {
    let all = directories();
    let left = all.iter().find(|directory| tails_path(directory, array).exists());
    left.or(all.first()).cloned().unwrap_or_default()
}

/// Where the daemon of an array keeps what the next one needs if it dies.
pub fn tails_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.tails", uuid(array)))
}

/// Where it keeps that of a namespace.
pub fn namespace_tails_path(directory: &Path, array: &[u8; 16], number: u32) -> PathBuf {
    directory.join(format!("{}-{number}.tails", uuid(array)))
}

/// Where the daemon of an array answers.
pub fn socket_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.sock", uuid(array)))
}

/// Where it has a lock as long as it runs.
pub fn lock_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.lock", uuid(array)))
}

/// Makes the directory of sockets, if it is not there.
pub fn make(directory: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
    made.with_context(|| {
        format!("{} cannot be made; ${RUN_VARIABLE} may name another directory", directory.display())
    })
}

/// The right to run an array. Claims of its drives are not enough: a copy of the array has others, and what lies here
/// is named by the UUID alone, which both have.
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Locks an array, by its UUID, as long as this lives; `None` if another process has it.
    pub fn take(directory: &Path, array: &[u8; 16]) -> Result<Option<Lock>> {
        make(directory)?;
        let path = lock_path(directory, array);
        let begun = Instant::now();
        loop {
            let problem =
                || format!("{} cannot be locked; ${RUN_VARIABLE} may name another directory", path.display());
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
        // Before it is unlocked. Left behind, it does no harm.
        let _ = remove_file(&self.path);
    }
}

/// Locks the file at `path`; `None` if somebody else has, or had it and has taken its name away.
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
    fn an_array_is_locked_once_and_again_when_nobody_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, path) = (dir.path().join("run"), lock_path(&dir.path().join("run"), &[1; 16]));
        let first = Lock::take(&directory, &[1; 16]).unwrap().unwrap();
        assert!(Lock::take(&directory, &[2; 16]).unwrap().is_some());
        assert!(lock(&path).unwrap().is_none());
        assert!(Lock::take(&directory, &[1; 16]).unwrap().is_none());
        // One that is let go while others wait.
        let waiting = std::thread::spawn({
            let directory = directory.clone();
            move || Lock::take(&directory, &[1; 16]).unwrap().is_some()
        });
        drop(first);
        assert!(waiting.join().unwrap() && !path.exists());
        // That of a process that was killed.
        std::fs::write(&path, "").unwrap();
        assert!(Lock::take(&directory, &[1; 16]).unwrap().is_some());
    }
}
