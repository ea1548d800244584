//! A served block device: its users, and its link in `/dev/zoneraid`.

use crate::{
    drive::users,
    reactor::traffic::Traffic,
    serve::{ack_log::AckLog, ublk::Resizer},
};
use anyhow::{Context, Result, bail};
use engine::{format::name::wrong_with_name, runtime::Gate, volume::Volume, vzone::Namespace};
use std::{
    cell::{Cell, RefCell},
    fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// Directory of links to block devices by the names of their arrays.
pub(super) const LINKS: &str = "/dev/zoneraid";

/// How long to wait for users to release a block device that is to be taken down.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval at which the users are listed again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A served block device.
pub struct Block {
    /// `/dev/ublkbN`
    pub path: PathBuf,
    /// Its link by the name of the array, if there is one.
    pub link: Option<PathBuf>,
    /// The namespace that it serves; `None` for the array.
    pub(super) namespace: Option<Namespace>,
    /// The volume on that, if that is served.
    pub(super) volume: Option<Volume>,
    /// Acknowledged ends, for the next process.
    pub(super) ack_log: Rc<AckLog>,
    /// Request counters.
    pub(super) traffic: Rc<Traffic>,
    /// Changes its size, if it is a device of the kernel.
    pub(super) resizer: Option<Resizer>,
    /// Whether the device is to be taken down.
    pub(super) stop: Cell<bool>,
    /// Result of taking it down, until the task that waits for it takes the value.
    pub(super) stopped: RefCell<Option<Result<()>>>,
    pub(super) changed: Gate,
}

impl Block {
    pub(super) fn new(
        (path, link): (PathBuf, Option<PathBuf>),
        (namespace, volume): (Option<Namespace>, Option<Volume>),
        (ack_log, traffic): (Rc<AckLog>, Rc<Traffic>),
    ) -> Block {
        let (stop, stopped, changed) = (Cell::new(false), RefCell::new(None), Gate::default());
        let resizer = None;
        Block { path, link, namespace, volume, ack_log, traffic, resizer, stop, stopped, changed }
    }

    /// Gives it the size of its volume. `false` if the kernel does not support that.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) async fn take_size(&self) -> Result<bool> {
        match (&self.resizer, &self.volume) {
            (Some(resizer), Some(volume)) if !self.stop.get() => resizer.resize(volume.blocks()).await,
            _ => Ok(false),
        }
    }

    /// Number of the served device among those of the array; 0 for the array itself.
    pub(super) fn number(&self) -> u16 {
        front_number(self.namespace.as_ref(), self.volume.as_ref())
    }

    /// Whether the acknowledgement log is that of this block device alone, and not of the array.
    pub(super) fn has_own_log(&self) -> bool {
        self.namespace.is_some()
    }

    /// Waits until the device is to be taken down.
    pub(super) async fn wait_for_stop(&self) {
        while !self.stop.get() {
            self.changed.wait().await;
        }
    }

    pub(super) fn unlink(&self) {
        let Some(link) = &self.link else { return };
        if fs::read_link(link).is_ok_and(|target| target.file_name() == self.path.file_name()) {
            // A link that stays behind is harmless.
            let _ = fs::remove_file(link);
        }
        // The array's directory. If other namespaces or volumes have links there, the removal fails.
        if let Some(directory) = link.parent().filter(|_| self.number() > 0) {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Number of a namespace, or of a volume of a pool, among the devices of the array; 0 for the array itself, and the volume
/// on it. An array does not have both.
pub(super) fn front_number(namespace: Option<&Namespace>, volume: Option<&Volume>) -> u16 {
    let number = namespace.map(Namespace::number).or_else(|| volume.and_then(Volume::slot));
    let Some(number) = number else { return 0 };
    assert!(
        number < u16::MAX as u32,
        "number {number} of a namespace or volume exceeds those of served devices"
    );
    number as u16 + 1
}

/// The users of the block device at `path`, except those that release it soon, as udev does after probing it.
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

/// Links the block device at `path` by the name of its array, or of a namespace or volume `below` it (with its number), in the
/// directory `links`.
pub(super) fn link(
    links: &Path,
    (name, below): (&str, Option<(&str, u32)>),
    id: &str,
    path: &Path,
) -> Result<PathBuf> {
    // Names come from drives and are not trusted: links are created by root.
    let plain = |name: &str, other: String| if wrong_with_name(name).is_some() { other } else { name.into() };
    let array = plain(name, id.into());
    let below = below.map(|(name, number)| plain(name, number.to_string()));
    let below = below.as_deref();
    let problem = || format!("no link to the block device can be created in {}", links.display());
    let file = path.file_name().with_context(problem)?;
    // A relative link, as udev creates them.
    let up = if below.is_some() { "../.." } else { ".." };
    let target = Path::new(up).join(file);
    // Another array of the same name may have its link already.
    let numbered = format!("{array}-{}", &id[..8]);
    for array in [&array, &numbered] {
        let link = below.map_or(links.join(array), |below| links.join(array).join(below));
        if is_made(&link, &target).with_context(problem)? {
            return Ok(link);
        }
    }
    bail!("{array} and {numbered} in {} are links to other devices", links.display())
}

/// Creates a link, in the place of a dangling one; `false` if another file is there.
fn is_made(link: &Path, target: &Path) -> std::io::Result<bool> {
    let Some(directory) = link.parent() else { return Ok(false) };
    if fs::read_link(directory).is_ok() && !directory.exists() {
        // A dangling link that was the block device of an array of this name, without namespaces.
        fs::remove_file(directory)?;
    }
    // If it is the link of another array, the directory cannot be created.
    match fs::create_dir_all(directory) {
        Err(error) if [ErrorKind::AlreadyExists, ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Ok(false);
        }
        made => made?,
    }
    match fs::read_link(link) {
        Ok(old) if old == target => return Ok(true),
        Ok(_) if link.exists() => return Ok(false),
        Ok(_) => fs::remove_file(link)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // An empty directory, without links of namespaces, is replaced.
        Err(_) if fs::remove_dir(link).is_ok() => {}
        Err(_) => return Ok(false),
    }
    symlink(target, link)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_device_links_stay_inside_link_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (links, device) = (dir.path().join("zoneraid"), dir.path().join("ublkb0"));
        fs::write(&device, "").unwrap();
        let id = "01234567-89ab-4def-8123-456789abcdef";
        let linked = |name: &str| link(&links, (name, None), id, &device).unwrap();
        assert_eq!(linked("tank"), links.join("tank"));
        assert!(links.join("tank").exists());
        for forged in ["../planted", "/etc/planted", "a/b", "..", ""] {
            assert_eq!(linked(forged), links.join(id), "{forged}");
        }
        // The links of namespaces are in a directory with the name of their array.
        let below = |array, name: &str| link(&links, (array, Some((name, 7))), id, &device).unwrap();
        assert_eq!(below("lake", "mail"), links.join("lake/mail"));
        assert!(links.join("lake/mail").exists());
        assert_eq!(below("lake", ".."), links.join("lake/7"));
        // An array of this name without namespaces, one with namespaces, and one that is gone.
        assert_eq!(below("tank", "mail"), links.join("tank-01234567/mail"));
        assert_eq!(linked("lake"), links.join("lake-01234567"));
        fs::create_dir(links.join("river")).unwrap();
        assert_eq!(linked("river"), links.join("river"));
        symlink("nothing", links.join("brook")).unwrap();
        assert_eq!(below("brook", "mail"), links.join("brook/mail"));
        // The name is the link of another device.
        symlink("..", links.join("pond")).unwrap();
        assert_eq!(linked("pond"), links.join("pond-01234567"));
        let mut made: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        made.sort();
        assert_eq!(made, ["ublkb0", "zoneraid"]);
    }
}
