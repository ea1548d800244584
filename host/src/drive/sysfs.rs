//! Properties of devices in /sys.

use engine::buf::BLOCK;
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Kind of the file at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// The character device of an NVMe namespace, by the kernel's name (`ng0n1`).
    Namespace(String),
    /// A block device, by the kernel's name (`nvme0n1`, `sda`).
    Block(String),
    File,
    Other,
}

impl Node {
    /// The kind of the file at `path`, after following symbolic links.
    pub fn at(path: &Path) -> std::io::Result<Node> {
        let metadata = fs::metadata(path)?;
        let kind = metadata.file_type();
        let name = |class: &str| {
            let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
            let link = fs::read_link(format!("/sys/dev/{class}/{major}:{minor}")).ok()?;
            Some(link.file_name()?.to_string_lossy().into_owned())
        };
        Ok(if kind.is_file() {
            Node::File
        } else if kind.is_block_device() {
            name("block").map_or(Node::Other, Node::Block)
        } else if kind.is_char_device() {
            let name = name("char").filter(|name| class("nvme-generic", name).exists());
            name.map_or(Node::Other, Node::Namespace)
        } else {
            Node::Other
        })
    }
}

/// The directory of the device `name` of a class.
pub fn class(class: &str, name: &str) -> PathBuf {
    Path::new("/sys/class").join(class).join(name)
}

/// The block device of a namespace: `nvme0n1` of `ng0n1`.
pub fn twin(namespace: &str) -> String {
    namespace.replacen("ng", "nvme", 1)
}

/// The block device that contains a partition, and the number of the partition; `None` if `block` is no partition.
pub fn whole_of(block: &str) -> Option<(String, u32)> {
    let part = class("block", block).canonicalize().ok()?;
    let number = attribute(&part.join("partition"))?.parse().ok()?;
    Some((part.parent()?.file_name()?.to_string_lossy().into_owned(), number))
}

/// The namespace of a block device, if it is one: `ng0n1` of `nvme0n1`.
pub fn namespace(block: &str) -> Option<String> {
    let name = format!("ng{}", block.strip_prefix("nvme")?);
    class("nvme-generic", &name).exists().then_some(name)
}

/// The first line of a file.
pub fn attribute(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().to_string())
}

/// The serial number of the SCSI device in the directory `device`: VPD page 80h behind its header of four bytes.
pub fn unit_serial(device: &Path) -> Option<String> {
    let page = fs::read(device.join("vpd_pg80")).ok()?;
    let serial = String::from_utf8_lossy(page.get(4..)?).trim_matches(['\0', ' ']).to_string();
    (!serial.is_empty()).then_some(serial)
}

/// Whether a block device is host-managed: has zones that must be written sequentially.
pub fn is_zoned(block: &str) -> bool {
    attribute(&class("block", block).join("queue/zoned")).is_some_and(|zoned| zoned == "host-managed")
}

/// Whether the block device exists, can be used, and is not host-managed. The kernel hides that of a namespace with
/// zones that it cannot use.
pub fn is_unzoned(block: &str) -> bool {
    Path::new("/dev").join(block).exists() && !is_zoned(block)
}

/// The command set of a namespace, by its block device: 2 is zoned. Linux reports it from 6.8 on.
pub fn command_set(block: &str) -> Option<String> {
    attribute(&class("block", block).join("csi"))
}

/// Most bytes of a request to a block device, however scattered its pages are.
pub fn most_bytes(block: &str) -> u64 {
    let queue = class("block", block).join("queue");
    let limit = |name: &str| attribute(&queue.join(name))?.parse::<u64>().ok();
    // For a namespace without a block device: the least limits of the kernel's NVMe driver.
    let segments = limit("max_segments").unwrap_or(127).max(1);
    let kib = limit("max_hw_sectors_kb").unwrap_or(512);
    (segments * BLOCK as u64).min(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_names_block_twin_and_classifies_nodes() {
        assert_eq!(twin("ng3n12"), "nvme3n12");
        assert_eq!(namespace("sda"), None);
        // /dev/null stands for an ordinary disk: a device in /dev without zones.
        assert!(is_unzoned("null") && !is_unzoned("no such disk"));
        assert_eq!(Node::at(Path::new("/dev/null")).unwrap(), Node::Other);
        assert_eq!(Node::at(Path::new("/proc/self/exe")).unwrap(), Node::File);
        assert!(Node::at(Path::new("/dev/no such thing")).is_err());
    }
}
