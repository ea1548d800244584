//! A served block device: its users, and its link in `/dev/zoneraid`.

use crate::{
    drive::users,
    reactor::traffic::Traffic,
    serve::{
        ack_log::AckLog,
        ublk::{Resizer, ServedNumber},
    },
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

    /// Number of the served device among those of the array.
    pub(super) fn number(&self) -> ServedNumber {
        served_number(self.namespace.as_ref(), self.volume.as_ref())
    }

    /// Name of the served device below that of the array: NAMESPACE, VOLUME or NAMESPACE/VOLUME; `None` for the array itself.
    pub(super) fn name(&self) -> Option<String> {
        let volume = self.volume.as_ref().and_then(Volume::name);
        match (&self.namespace, volume) {
            (Some(namespace), Some(volume)) => Some(format!("{}/{volume}", namespace.name())),
            (Some(namespace), None) => Some(namespace.name().into()),
            (None, volume) => volume,
        }
    }

    /// Whether the acknowledgement log is that of this block device alone, and not of the array or of a pool.
    pub(super) fn has_own_log(&self) -> bool {
        self.namespace.is_some() && self.number().namespace == 0
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
        // The directories of the namespace and of the array. If other namespaces or volumes have links there, the removal
        // fails.
        let ServedNumber { namespace, number } = self.number();
        let depth = usize::from(number > 0) + usize::from(namespace > 0);
        for directory in link.ancestors().skip(1).take(depth) {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Number of the array, of a namespace, or of a volume on either, among the devices of the array. A volume that has all of
/// an array or namespace has the number of that; an array does not have both namespaces and volumes of a pool.
pub(super) fn served_number(namespace: Option<&Namespace>, volume: Option<&Volume>) -> ServedNumber {
    let from_one = |number: u32| {
        let problem = "the number of a namespace or volume exceeds those of served devices";
        assert!(number < u16::MAX as u32, "{problem}: {number}");
        number as u16 + 1
    };
    let namespace = namespace.map_or(0, |namespace| from_one(namespace.number()));
    match volume.and_then(Volume::slot) {
        Some(slot) => ServedNumber { namespace, number: from_one(slot) },
        None => ServedNumber { namespace: 0, number: namespace },
    }
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

/// Links the block device at `path` by the name of its array, and those of the namespace, of the volume, or of both `below` it
/// (with their numbers), in the directory `links`.
pub(super) fn link(
    links: &Path,
    (name, below): (&str, &[(&str, u32)]),
    id: &str,
    path: &Path,
) -> Result<PathBuf> {
    // Names come from drives and are not trusted: links are created by root.
    let plain = |name: &str, other: String| if wrong_with_name(name).is_some() { other } else { name.into() };
    let array = plain(name, id.into());
    let below: Vec<String> = below.iter().map(|(name, number)| plain(name, number.to_string())).collect();
    let problem = || format!("no link to the block device can be created in {}", links.display());
    let file = path.file_name().with_context(problem)?;
    // A relative link, as udev creates them.
    let target: PathBuf = std::iter::repeat_n("..", below.len() + 1).collect();
    let target = target.join(file);
    // Another array of the same name may have its link already.
    let numbered = format!("{array}-{}", &id[..8]);
    for array in [&array, &numbered] {
        let link = below.iter().fold(links.join(array), |link, name| link.join(name));
        if is_made(&link, &target).with_context(problem)? {
            return Ok(link);
        }
    }
    bail!("{array} and {numbered} in {} are links to other devices", links.display())
}

/// Creates a link, in the place of a dangling one; `false` if another file is there.
fn is_made(link: &Path, target: &Path) -> std::io::Result<bool> {
    let Some(directory) = link.parent() else { return Ok(false) };
    for directory in directory.parent().into_iter().chain([directory]) {
        if fs::read_link(directory).is_ok() && !directory.exists() {
            // A dangling link that was the block device of an array or namespace of this name, without volumes of a pool.
            fs::remove_file(directory)?;
        }
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
        let linked = |name: &str| link(&links, (name, &[]), id, &device).unwrap();
        assert_eq!(linked("tank"), links.join("tank"));
        assert!(links.join("tank").exists());
        for forged in ["../planted", "/etc/planted", "a/b", "..", ""] {
            assert_eq!(linked(forged), links.join(id), "{forged}");
        }
        // The links of namespaces are in a directory with the name of their array.
        let below = |array, name: &str| link(&links, (array, &[(name, 7)]), id, &device).unwrap();
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
        // A volume of a pool in a namespace.
        let volume = link(&links, ("lake", &[("logs", 1), ("..", 2)]), id, &device).unwrap();
        assert_eq!(volume, links.join("lake/logs/2"));
        assert!(volume.exists());
        // The name is the link of another device.
        symlink("..", links.join("pond")).unwrap();
        assert_eq!(linked("pond"), links.join("pond-01234567"));
        let mut made: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        made.sort();
        assert_eq!(made, ["ublkb0", "zoneraid"]);
    }
}
