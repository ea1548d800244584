//! An array that this process runs.

use crate::reactor::Reactor;
use anyhow::Result;
use engine::{
    array::Array,
    device::{Command, Done, ZonedDevice},
};
use std::path::PathBuf;

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
