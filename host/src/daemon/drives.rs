//! The drives that a daemon holds, and drives that are to become members.

use super::state::{Daemon, absolute};
use crate::{
    control::name::MemberName,
    drive::independence::is_independent_of,
    members::{
        OpenDrive,
        repair::{self, Members},
    },
};
use anyhow::{Context, Result, ensure};
use engine::array::MemberState;
use std::path::{Path, PathBuf};

/// The role of the named member.
pub(super) fn role(daemon: &Daemon, member: &MemberName) -> Result<usize> {
    let status = daemon.array.status();
    let members = || status.members.iter().enumerate();
    let drives = members().filter(|(_, member)| !member.drive.is_empty());
    let missing = members().filter(|(_, member)| member.state == MemberState::Out);
    let members = Members {
        array: &status.name,
        count: status.members.len() as u32,
        drives: drives.map(|(role, member)| (role as u32, real(Path::new(&member.drive)))).collect(),
        missing: missing.map(|(role, _)| role as u32).collect(),
    };
    members.role(member)
}

/// The drive at `path`, if this daemon holds it.
pub(super) fn held(daemon: &Daemon, path: &Path) -> Option<OpenDrive> {
    daemon.drives.borrow().iter().find(|drive| real(&drive.path) == path).cloned()
}

/// Opens a drive that is to become a member, or reuses one that was a member before. It must not wait for the
/// array's block device, which this thread serves: that would deadlock.
pub(super) async fn take_new(daemon: &Daemon, path: &Path) -> Result<OpenDrive> {
    let status = daemon.array.status();
    let in_use = status
        .members
        .iter()
        .any(|member| member.state != MemberState::Out && real(Path::new(&member.drive)) == path);
    ensure!(!in_use, repair::in_use(path, &status.name));
    let file = path.to_path_buf();
    let members: Vec<PathBuf> = daemon.drives.borrow().iter().map(|drive| drive.path.clone()).collect();
    let independent = daemon.reactor.offload(move || is_independent_of(&file, &members)).await?;
    let independent = independent.context("the thread that examined the drive failed")?;
    ensure!(
        independent.with_context(|| format!("{} cannot be opened", path.display()))?,
        "{} may lie on the array itself, which would deadlock: use a local drive, or an image in memory, on local \
         disks, or in a file system that holds another member; or stop the array first",
        path.display()
    );
    let held = held(daemon, path);
    // The path may lead to another drive by now. If it does not, opening fails: the drive is still held here.
    match (OpenDrive::open_beside(&daemon.reactor, path, false).await, held) {
        (Err(_), Some(held)) => Ok(held),
        (opened, _) => opened,
    }
}

/// The path of a member's drive without symbolic links. A member does not lie on its array, so this cannot deadlock.
fn real(drive: &Path) -> PathBuf {
    drive.canonicalize().unwrap_or_else(|_| absolute(&drive.to_string_lossy()))
}
