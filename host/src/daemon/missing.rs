//! Waiting for members that are missing, as long as nothing has been written without them.

use super::state::{Daemon, Phase, log};
use crate::{drive, members::OpenDrive};
use anyhow::Result;
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

/// How often it is looked for new drives.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The same drive under whatever name, as [`drive::identity`] has it.
pub(super) type Identity = (u64, u64);

impl Daemon {
    /// Looks for the missing members among drives that appear in `place` beside those that were `there`, until
    /// all have come or the array has begun to write without the others.
    pub(super) async fn await_missing(self: Rc<Self>, place: PathBuf, mut there: BTreeSet<Identity>) {
        let Ok(ring) = self.reactor.ring().cloned() else { return };
        while self.array.is_provisional() && self.phase.get() == Phase::Running {
            let listed = place.clone();
            // A directory that cannot be listed now can be later.
            if let Ok(Some(drives)) =
                self.reactor.offload(move || drives_in(&listed).ok()).await.map(Option::flatten)
            {
                for (_, path) in drives.iter().filter(|(identity, _)| !there.contains(identity)) {
                    if let Err(error) = self.welcome(path).await {
                        log(&format!("{}: {error:#}", path.display()));
                    }
                }
                there = drives.into_iter().map(|(identity, _)| identity).collect();
            }
            ring.sleep(LOOK_EVERY).await;
        }
    }

    /// Takes the drive at `path` if it is a member that is missing.
    async fn welcome(&self, path: &Path) -> Result<()> {
        let status = self.array.status();
        let is_member = |drive: &OpenDrive| drive.label().is_some_and(|label| label.uuid == status.uuid);
        // What is somebody else's is not claimed, not even for a moment.
        if !is_member(&OpenDrive::look_beside(&self.reactor, path).await?) {
            return Ok(());
        }
        let drive = OpenDrive::open_beside(&self.reactor, path).await?;
        if is_member(&drive) {
            self.array.complete(drive.drive()).await?;
            log(&format!("'{}': {} is there, and has missed nothing", status.name, path.display()));
            self.drives.borrow_mut().push(drive);
            self.tell();
        }
        Ok(())
    }
}

/// The drives in a directory.
pub(super) fn drives_in(place: &Path) -> io::Result<Vec<(Identity, PathBuf)>> {
    let drives = drive::entries(place)?.into_iter().filter(|(_, is_drive)| matches!(is_drive, Ok(true)));
    Ok(drives.filter_map(|(path, _)| Some((drive::identity(&path).ok()?, path))).collect())
}
