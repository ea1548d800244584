//! Whether a drive lies on an array of this machine, which would deadlock if the array used it.

use std::{
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Whether the drive at `path` cannot lie on the array with these members: true for a device that consists of local
/// disks, or of remote ones ([`is_not_own`]), and for an image in a file system that holds a member's image or
/// `lies_outside` of all arrays.
pub fn is_independent_of(path: &Path, members: &[PathBuf]) -> std::io::Result<bool> {
    let metadata = path.metadata()?;
    let kind = metadata.file_type();
    if kind.is_block_device() {
        return Ok(is_on_disks("block", metadata.rdev()));
    }
    if kind.is_char_device() {
        return Ok(is_on_disks("char", metadata.rdev()));
    }
    let same = |member: &PathBuf| {
        member.metadata().is_ok_and(|other| other.is_file() && other.dev() == metadata.dev())
    };
    Ok(!metadata.is_file() || members.iter().any(same) || lies_outside(path, metadata.dev()))
}

/// Whether the file system of the file at `path`, with this device number, is in memory or on local disks, which no
/// array of this machine provides.
fn lies_outside(path: &Path, device: u64) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    let is_in_memory = rustix::fs::statfs(path).is_ok_and(|system| system.f_type as u64 == TMPFS);
    is_in_memory || is_on_disks("block", device)
}

/// Whether the device with this number, of the class "block" or "char", consists of local disks only.
fn is_on_disks(class: &str, device: u64) -> bool {
    let node = format!("/sys/dev/{class}/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Path::new(&node).canonicalize().is_ok_and(|node| rests_on_disks(&node, exports()))
}

/// Whether this machine may export drives over NVMe/TCP or another fabric.
fn exports() -> bool {
    match std::fs::read_dir("/sys/kernel/config/nvmet/subsystems") {
        Ok(mut subsystems) => subsystems.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Whether the device at `node` of /sys, a block device or an NVMe namespace, consists of local disks only. Block
/// devices that a process serves are not local disks: this array may provide them.
fn rests_on_disks(node: &Path, exports: bool) -> bool {
    const SERVED: [&str; 4] = ["ublkb", "nbd", "loop", "zram"];
    // The directory of a partition is inside that of its disk.
    let disk = if node.join("partition").exists() { node.parent().unwrap_or(node) } else { node };
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let below: Vec<PathBuf> = match std::fs::read_dir(node.join("slaves")) {
        Ok(slaves) => slaves.filter_map(|slave| slave.ok()?.path().canonicalize().ok()).collect(),
        Err(_) => Vec::new(),
    };
    let is_nvme = ["nvme", "ng"].iter().any(|nvme| name.starts_with(nvme));
    let is_local = !is_nvme || is_not_own(&disk.join("device"), exports);
    !SERVED.iter().any(|served| name.starts_with(served))
        && is_local
        && below.iter().all(|node| rests_on_disks(node, exports))
}

/// Whether an NVMe namespace cannot be one that this machine exports: all its controllers are local, or remote while
/// this machine exports nothing. `device` is its controller or, with multipath, its subsystem, which lists them.
fn is_not_own(device: &Path, exports: bool) -> bool {
    let transport = |controller: &Path| std::fs::read_to_string(controller.join("transport")).ok();
    let below = || std::fs::read_dir(device).into_iter().flatten().flatten();
    let mut all: Vec<String> = below().filter_map(|entry| transport(&entry.path())).collect();
    all.extend(transport(device));
    let is_apart = |transport: &String| match transport.trim() {
        "pcie" => true,
        "loop" => false,
        _ => !exports,
    };
    !all.is_empty() && all.iter().all(is_apart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn image_rests_on_disks_unless_on_served_device() {
        let dir = tempfile::tempdir().unwrap();
        let device = |name: &str, slaves: &[&str]| {
            let node = dir.path().join(name);
            fs::create_dir_all(node.join("slaves")).unwrap();
            for slave in slaves {
                std::os::unix::fs::symlink(dir.path().join(slave), node.join("slaves").join(slave)).unwrap();
            }
            node
        };
        let rests = |node: &Path| rests_on_disks(node, true);
        let (disk, served) = (device("sda", &[]), device("ublkb0", &[]));
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::create_dir_all(served.join("ublkb0p1")).unwrap();
        for partition in ["sda/sda1", "ublkb0/ublkb0p1"] {
            fs::write(dir.path().join(partition).join("partition"), "1").unwrap();
        }
        assert!(rests(&disk) && rests(&disk.join("sda1")));
        assert!(!rests(&served) && !rests(&served.join("ublkb0p1")));
        assert!(rests(&device("dm-0", &["sda"])));
        assert!(!rests(&device("dm-1", &["sda", "ublkb0"])));
        assert!(!rests(&device("dm-2", &["dm-1"])) && !rests(&device("nbd3", &[])));
        let fabric = device("nvme3n1", &[]);
        fs::create_dir(fabric.join("device")).unwrap();
        for (transport, apart) in [("tcp", false), ("loop", false), ("pcie", true)] {
            fs::write(fabric.join("device/transport"), transport).unwrap();
            assert_eq!(rests(&fabric), apart, "{transport}");
            assert_eq!(rests_on_disks(&fabric, false), transport != "loop", "{transport}");
        }
        // The character device of a namespace with two controllers.
        let several = device("ng4n1", &[]);
        for (controller, transport, apart) in [("nvme4", "pcie", true), ("nvme5", "loop", false)] {
            fs::create_dir_all(several.join("device").join(controller)).unwrap();
            fs::write(several.join("device").join(controller).join("transport"), transport).unwrap();
            assert_eq!(rests(&several), apart, "{transport}");
        }
        assert!(!rests(&device("nvme6n1", &[])));
    }
}
