//! Drives: the device or image at a path, opened and claimed for this process, or opened for inspection ([`look`]).
//!
//! Inspection takes no lock, needs read permission only and changes nothing: it neither blocks other processes nor is
//! blocked by them. They may change the drive meanwhile, which [`StableRead`] detects.

mod block;
mod claim;
mod drive_id;
mod error;
mod flight;
mod image;
pub(crate) mod independence;
pub mod label;
mod nvme;
mod shortage;
mod stable_read;
mod sysfs;
pub mod users;

use crate::reactor::Reactor;
use block::BlockDrive;
use claim::OpenPurpose;
use emu::ssd::ImageMedia;
use engine::device::ZonedDevice;
use error::cannot_open;
use image::ImageDrive;
use nvme::NvmeDrive;
use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
};
use sysfs::Node;

pub use claim::{User, user};
pub use drive_id::{ModelAndSerial, drive_id};
pub use error::OpenError;
pub use stable_read::StableRead;

/// Opens the drive at `path` and claims it: an image of an emulated drive, an NVMe zoned namespace or a zoned block
/// device.
///
/// # Errors
/// It does not exist, is in use, or is of a kind that is not supported.
pub fn open(reactor: &Reactor, path: &Path) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    open_for(reactor, path, OpenPurpose::Use)
}

/// As [`open`], read-only: also for a drive that cannot be written. Commands that would change it fail.
///
/// # Errors
/// As those of [`open`].
pub fn open_to_read(reactor: &Reactor, path: &Path) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    open_for(reactor, path, OpenPurpose::Read)
}

/// Opens the drive at `path` for inspection, also while it is in use. Commands that would change it fail.
///
/// # Errors
/// It does not exist, must not be read, or is of a kind that is not supported.
pub fn look(reactor: &Reactor, path: &Path) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    open_for(reactor, path, OpenPurpose::Look)
}

fn open_for(reactor: &Reactor, path: &Path, purpose: OpenPurpose) -> Result<Rc<dyn ZonedDevice>, OpenError> {
    let failed = |problem: &str| OpenError::failed(path, problem.into());
    match Node::at(path).map_err(|error| cannot_open(path, &error))? {
        Node::File => Ok(Rc::new(match purpose {
            OpenPurpose::Use => ImageDrive::open(reactor, path)?,
            OpenPurpose::Read => ImageDrive::open_to_read(reactor, path)?,
            OpenPurpose::Look => ImageDrive::look(reactor, path)?,
        })),
        // The block device of an ordinary disk is not claimed even for a moment: that could make a concurrent mount
        // fail. A namespace may lack its block device.
        Node::Namespace(name) if sysfs::is_unzoned(&sysfs::twin(&name)) => Err(failed("has no zones")),
        Node::Namespace(name) => {
            let ring = reactor.ring();
            let ring = ring.map_err(|error| failed(&format!("cannot be used: {error:#}")))?;
            Ok(Rc::new(NvmeDrive::open(ring, path, &name, purpose)?))
        }
        Node::Block(name) if !sysfs::is_zoned(&name) => Err(failed("has no zones")),
        Node::Block(name) => Ok(Rc::new(BlockDrive::open(reactor, path, &name, purpose)?)),
        Node::Other => Err(failed("is neither a drive nor an image of one")),
    }
}

/// The path by which the drive at `path` is used: for the block device of an NVMe namespace with a ZRWA that of the
/// namespace, because block devices know no ZRWA.
pub fn resolve(path: &Path) -> PathBuf {
    if let Ok(Node::Block(name)) = Node::at(path)
        && sysfs::is_zoned(&name)
        && let Some(namespace) = sysfs::namespace(&name)
    {
        let node = Path::new("/dev").join(&namespace);
        if nvme::has_zrwa(&node, &namespace) {
            return node;
        }
    }
    path.to_path_buf()
}

/// Whether `path` may be a drive: an image, or an NVMe namespace or block device with zones. Opens regular files only.
///
/// # Errors
/// The path cannot be examined.
pub fn is_drive(path: &Path) -> io::Result<bool> {
    Ok(match Node::at(path)? {
        Node::File => ImageMedia::is_image(path)?,
        // If the kernel cannot use the zones of a namespace, it hides its block device and reports it as not zoned.
        Node::Namespace(name) => {
            let twin = sysfs::twin(&name);
            !sysfs::is_unzoned(&twin) && sysfs::command_set(&twin).is_none_or(|set| set == "2")
        }
        // A namespace counts once, as itself, and block devices of our own arrays are no drives.
        Node::Block(name) => {
            sysfs::is_zoned(&name) && sysfs::namespace(&name).is_none() && !name.starts_with("ublkb")
        }
        Node::Other => false,
    })
}

/// The block device that contains the partition at `path`, and the number of the partition; `None` if it is no
/// partition.
pub fn whole_of(path: &Path) -> Option<(PathBuf, u32)> {
    let Ok(Node::Block(name)) = Node::at(path) else { return None };
    let (whole, number) = sysfs::whole_of(&name)?;
    Some((Path::new("/dev").join(whole), number))
}

/// A key that identifies the drive at `path`, independent of the path: device and inode number, or the number of the
/// device.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = path.metadata()?;
    Ok(if metadata.is_file() { (metadata.dev(), metadata.ino()) } else { (u64::MAX, metadata.rdev()) })
}

/// Whether two paths name the same file; if one does not exist any more the paths themselves are compared.
pub fn same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// The entries of a directory, each with the result of [`is_drive`].
pub fn entries(dir: &Path) -> io::Result<Vec<(PathBuf, io::Result<bool>)>> {
    let examined = |path: PathBuf| (path.clone(), is_drive(&path));
    std::fs::read_dir(dir)?.map(|entry| Ok(examined(entry?.path()))).collect()
}

/// Whether a directory holds a drive; entries that cannot be examined do not count.
pub fn holds_drive(dir: &Path) -> bool {
    let paths = std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    paths.into_iter().any(|path| is_drive(&path).unwrap_or(false))
}

/// The file system or other signature on the drive at `path`, as `blkid` reports it; `None` without one.
pub fn signature(path: &Path) -> Option<String> {
    let block = match Node::at(path).ok()? {
        Node::Namespace(name) => sysfs::twin(&name),
        Node::Block(name) => name,
        Node::File | Node::Other => return None,
    };
    let blkid =
        Command::new("blkid").args(["-p", "-o", "export"]).arg(Path::new("/dev").join(block)).output();
    describe_signature(&String::from_utf8_lossy(&blkid.ok()?.stdout))
}

/// The output of `blkid` in words.
fn describe_signature(export: &str) -> Option<String> {
    let value = |key: &str| {
        export.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.replace('\\', "")))
    };
    let label = value("LABEL").map(|label| format!(" '{label}'")).unwrap_or_default();
    match (value("TYPE"), value("USAGE"), value("PTTYPE")) {
        (Some(kind), Some(usage), _) if usage == "filesystem" => Some(format!("{kind} file system{label}")),
        (Some(kind), _, _) => Some(format!("{kind}{label}")),
        (None, _, Some(table)) => Some(format!("partition table ({table})")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drive_signature_is_described_in_words() {
        let words = |text: &str| describe_signature(text).unwrap_or_default();
        let f2fs = "DEVNAME=/dev/nvme0n1\nLABEL=my\\ data\nUUID=1\nTYPE=f2fs\nUSAGE=filesystem\n";
        assert_eq!(words(f2fs), "f2fs file system 'my data'");
        assert_eq!(words("TYPE=linux_raid_member\nUSAGE=raid\n"), "linux_raid_member");
        assert_eq!(words("PTTYPE=gpt\n"), "partition table (gpt)");
        assert_eq!(describe_signature(""), None);
    }

    #[test]
    fn drive_open_refuses_other_files_by_name() {
        let reactor = Reactor::default();
        let refusal = |path: &str| open(&reactor, Path::new(path)).map(|_| ()).unwrap_err().to_string();
        assert_eq!(refusal("/dev/null"), "/dev/null: is neither a drive nor an image of one");
        assert!(refusal("/dev/no such drive").starts_with("/dev/no such drive: cannot be opened: No such"));
        assert_eq!(resolve(Path::new("/dev/null")), Path::new("/dev/null"));
        assert!(
            !is_drive(Path::new("/dev/null")).unwrap() && !is_drive(Path::new("/proc/self/exe")).unwrap()
        );
        assert!(is_drive(Path::new("/dev/no such drive")).is_err());
    }
}
