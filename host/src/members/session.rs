//! An array that this process runs.

use crate::reactor::Reactor;
use anyhow::{Result, anyhow};
use engine::{
    array::Array,
    device::{Command, Done, ZonedDevice},
};
use std::{path::PathBuf, rc::Rc};

/// An assembled array and its reactor.
pub struct Session {
    pub reactor: Reactor,
    pub array: Array,
    /// The device for commands: the array, or a namespace on it.
    pub device: Rc<dyn ZonedDevice>,
    pub closing: ClosedAtEnd,
}

/// Closes an array when it is dropped, at the end of a command. A command that is interrupted leaves the array like a
/// crash, which is as safe, but the next assembly has more to do.
pub struct ClosedAtEnd {
    reactor: Reactor,
    array: Option<Array>,
}

impl ClosedAtEnd {
    /// Leaves the array to its user, a daemon.
    pub fn hand_over(mut self) {
        self.array = None;
    }
}

impl Drop for ClosedAtEnd {
    fn drop(&mut self) {
        // Everything that was promised is durable already.
        if let Some(array) = self.array.take().filter(|_| !std::thread::panicking())
            && self.reactor.wait(array.close()).is_err()
        {
            // Tasks that wait for each other hold the drives.
            self.reactor.runtime().clear();
        }
    }
}

/// A message if one of the files at `paths` is in a file system that is full: drives only report that a write has
/// failed.
pub fn full(paths: impl IntoIterator<Item = PathBuf>) -> Option<String> {
    let is_full = |path: &PathBuf| {
        let has_no_space = rustix::fs::statvfs(path).is_ok_and(|system| system.f_bavail == 0);
        has_no_space && path.metadata().is_ok_and(|metadata| metadata.is_file() || metadata.is_dir())
    };
    paths.into_iter().find(is_full).map(|path| format!("the file system of {} is full", path.display()))
}

/// The engine's text for an image in a full file system: ENOSPC.
const NO_ROOM: &str = "I/O error 28";

/// Replaces `error` by its cause, if it contains ENOSPC and one of the drives at `paths` is in a full file system.
pub fn explain(error: anyhow::Error, paths: impl IntoIterator<Item = PathBuf>) -> anyhow::Error {
    match full(paths).filter(|_| format!("{error:#}").contains(NO_ROOM)) {
        Some(full) => anyhow!("{full}: free space there first"),
        None => error,
    }
}

impl Session {
    pub fn new(reactor: Reactor, array: Array) -> Session {
        let closing = ClosedAtEnd { reactor: reactor.clone(), array: Some(array.clone()) };
        Session { reactor, device: Rc::new(array.clone()), array, closing }
    }

    /// Adds the likely cause to `error`.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let members = self.array.status().members;
        match full(members.into_iter().map(|member| PathBuf::from(member.drive))) {
            Some(full) => error.context(full),
            None => error,
        }
    }

    /// Runs the array until `future` is done.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.reactor.wait(future)
    }

    /// Executes one command; its failure is an error.
    pub fn run(&self, command: Command) -> Result<Done> {
        let done = self.wait(self.device.submit(command))?;
        done.result?;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_file_system_is_named_as_cause_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // A file system without any space.
        let made_up = PathBuf::from("/proc/version");
        let said = full([file.path().to_path_buf(), made_up.clone()]).unwrap();
        assert_eq!(said, "the file system of /proc/version is full");
        assert_eq!(full([file.path().to_path_buf(), PathBuf::from("/dev/null"), PathBuf::new()]), None);
        // All members report the same error, which is printed once.
        let failed = |errno| {
            let error = engine::device::DeviceError::Os(errno);
            let each = (0..5).map(|member| format!("member {member}: failed: metadata write: {error}"));
            anyhow!("too many drives have failed: {}", each.collect::<Vec<_>>().join("; "))
        };
        let said = explain(failed(libc::ENOSPC), [made_up.clone()]).to_string();
        assert!(
            said.starts_with("the file system of /proc/version is full: free space there")
                && !said.contains("member"),
            "{said}"
        );
        assert!(explain(failed(libc::EIO), [made_up]).to_string().contains("member 4: failed"));
        let elsewhere = explain(failed(libc::ENOSPC), [file.path().to_path_buf()]).to_string();
        assert!(elsewhere.contains("I/O error 28 (no space left)"), "{elsewhere}");
    }
}
