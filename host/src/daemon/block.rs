//! A block device that is served, its users and its name in `/dev/zoneraid`.

use crate::users;
use anyhow::{Context, Result, bail};
use engine::{format::superblock::wrong_with_name, runtime::Gate};
use std::{
    cell::{Cell, RefCell},
    fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Where block devices have the names of their arrays.
pub(super) const LINKS: &str = "/dev/zoneraid";

/// How long users may take to let go of a block device that is to be taken down.
const PATIENCE: Duration = Duration::from_secs(2);

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A block device that is being served.
pub struct Block {
    /// `/dev/ublkbN`
    pub path: PathBuf,
    /// What it is called by its array's name, if it can be.
    pub link: Option<PathBuf>,
    pub(super) stop: Cell<bool>,
    pub(super) stopped: RefCell<Option<Result<()>>>,
    pub(super) changed: Gate,
}

impl Block {
    pub(super) async fn ordered(&self) {
        while !self.stop.get() {
            self.changed.wait().await;
        }
    }

    pub(super) fn unlink(&self) {
        let Some(link) = &self.link else { return };
        if fs::read_link(link).is_ok_and(|target| target.file_name() == self.path.file_name()) {
            // A link to nothing does no harm.
            let _ = fs::remove_file(link);
        }
    }
}

/// Who uses the block device at `path` and is not about to let go of it, as udev is that has a look.
pub(super) fn lasting_users(path: &Path) -> Result<Vec<String>> {
    let start = Instant::now();
    loop {
        let users = users::of(path)?;
        if users.is_empty() || start.elapsed() >= PATIENCE {
            return Ok(users);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Gives the block device at `path` the name of its array, in the directory `links`.
pub(super) fn link(links: &Path, name: &str, id: &str, path: &Path) -> Result<PathBuf> {
    let problem = || format!("no name can be made in {}", links.display());
    fs::create_dir_all(links).with_context(problem)?;
    let file = path.file_name().with_context(problem)?;
    // As udev makes its links.
    let target = Path::new("..").join(file);
    // No superblock is believed that has another name; links of root are worth a second look all the same.
    let plain = if wrong_with_name(name).is_some() { id } else { name };
    // Another array of the same name may have been first.
    let numbered = format!("{plain}-{}", &id[..8]);
    for name in [plain, &numbered] {
        let link = links.join(name);
        match fs::read_link(&link) {
            Ok(old) if old == target => return Ok(link),
            Ok(_) if link.exists() => continue,
            Ok(_) => fs::remove_file(&link).with_context(problem)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => continue,
        }
        symlink(&target, &link).with_context(problem)?;
        return Ok(link);
    }
    bail!("{plain} and {numbered} in {} are names of other devices", links.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_in_their_directory_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (links, device) = (dir.path().join("zoneraid"), dir.path().join("ublkb0"));
        fs::write(&device, "").unwrap();
        let id = "01234567-89ab-4def-8123-456789abcdef";
        let linked = |name: &str| link(&links, name, id, &device).unwrap();
        assert_eq!(linked("tank"), links.join("tank"));
        assert!(links.join("tank").exists());
        for forged in ["../planted", "/etc/planted", "a/b", "..", ""] {
            assert_eq!(linked(forged), links.join(id), "{forged}");
        }
        // A name that is taken by another device.
        symlink("..", links.join("pond")).unwrap();
        assert_eq!(linked("pond"), links.join("pond-01234567"));
        let mut made: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        made.sort();
        assert_eq!(made, ["ublkb0", "zoneraid"]);
    }
}
