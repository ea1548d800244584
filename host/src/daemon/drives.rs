//! The drives that a daemon holds, and those that are to become members.

use super::state::{Daemon, absolute};
use crate::{
    members::OpenDrive,
    name::MemberName,
    repair::{self, Members},
};
use anyhow::{Context, Result, ensure};
use engine::array::MemberState;
use std::{
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

impl Daemon {
    /// The role of the member that the user means.
    pub(super) fn role(&self, member: &MemberName) -> Result<usize> {
        let status = self.array.status();
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

    /// The drive at `path`, if it is held here.
    pub(super) fn held(&self, path: &Path) -> Option<OpenDrive> {
        self.drives.borrow().iter().find(|drive| real(&drive.path) == path).cloned()
    }

    /// Opens the drive that is to become a member, or takes one that was a member before. Nothing
    /// here may wait for the block device of the array: it would for ever.
    pub(super) async fn take_new(&self, path: &Path) -> Result<OpenDrive> {
        let status = self.array.status();
        let in_use = status
            .members
            .iter()
            .any(|member| member.state != MemberState::Out && real(Path::new(&member.drive)) == path);
        ensure!(!in_use, repair::in_use(path, &status.name));
        let file = path.to_path_buf();
        let members: Vec<PathBuf> = self.drives.borrow().iter().map(|drive| drive.path.clone()).collect();
        let beside = self.reactor.offload(move || lies_beside(&file, &members)).await?;
        ensure!(
            beside.unwrap_or(Ok(true)).with_context(|| format!("{} cannot be opened", path.display()))?,
            "{} might lie on the array itself; an image has to lie in a file system that holds another one",
            path.display()
        );
        let held = self.held(path);
        // The same name may mean another drive by now. If it does not, the drive is still held here.
        match (OpenDrive::open_beside(&self.reactor, path).await, held) {
            (Err(_), Some(held)) => Ok(held),
            (opened, _) => opened,
        }
    }
}

/// The path of a member's drive without links; it is never on the array itself.
fn real(drive: &Path) -> PathBuf {
    drive.canonicalize().unwrap_or_else(|_| absolute(&drive.to_string_lossy()))
}

/// Whether the drive at `path` cannot depend on an array with these members: a device that is none of
/// ours, or an image in the file system of another one.
fn lies_beside(path: &Path, members: &[PathBuf]) -> std::io::Result<bool> {
    let metadata = path.metadata()?;
    if metadata.file_type().is_block_device() {
        return Ok(!path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ublkb")));
    }
    let same = |member: &PathBuf| {
        member.metadata().is_ok_and(|other| other.is_file() && other.dev() == metadata.dev())
    };
    Ok(!metadata.is_file() || members.iter().any(same))
}
