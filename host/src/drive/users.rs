//! Users of a block device: mounts, swap, holders, exports and processes.

use anyhow::{Context, Result};
use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Where the kernel's NVMe target is configured.
const NVMET: &str = "/sys/kernel/config/nvmet/subsystems";

/// The users of the block device at `path` or of one of its partitions, each in a few words; empty if it is unused. May
/// block for as long as the device does. Processes of other users are found only with the permission to inspect them.
pub fn of(path: &Path) -> Result<Vec<String>> {
    let metadata = path.metadata().with_context(|| format!("{} cannot be examined", path.display()))?;
    let whole = DeviceNumber(metadata.rdev());
    let (mountinfo, list) = (read(Path::new("/proc/self/mountinfo")), read(Path::new("/proc/swaps")));
    let mut users = Vec::new();
    for device in [vec![whole], partitions(&whole.directory())].concat() {
        users.extend(mounts(&mountinfo, device));
        users.extend(swaps(&list, device));
        users.extend(holders(&device.directory().join("holders"), &mountinfo));
        users.extend(targets(Path::new(NVMET), device));
        users.extend(openers(Path::new("/proc"), device));
    }
    if users.is_empty() && is_held(path).with_context(|| format!("{} cannot be opened", path.display()))? {
        users.push("a file system of several devices, or a mount in another mount namespace".into());
    }
    Ok(users)
}

/// The partitions of the block device with the /sys directory `directory`.
fn partitions(directory: &Path) -> Vec<DeviceNumber> {
    let parts = entries(directory).into_iter().filter(|part| part.join("partition").exists());
    parts.filter_map(|part| DeviceNumber::in_directory(&part)).collect()
}

/// The holders of a device (as of the device mapper), and where they are mounted.
fn holders(directory: &Path, mountinfo: &str) -> Vec<String> {
    let describe = |holder: &PathBuf| {
        let mounted =
            DeviceNumber::in_directory(holder).map(|device| mounts(mountinfo, device)).unwrap_or_default();
        let mounted: String = mounted.iter().map(|place| format!(", {place}")).collect();
        format!("held by {}{mounted}", name(holder))
    };
    entries(directory).iter().map(describe).collect()
}

/// A device number: a device may have several names, and a name may mean another device by now.
#[derive(Clone, Copy)]
struct DeviceNumber(u64);

impl DeviceNumber {
    fn number(self) -> String {
        format!("{}:{}", rustix::fs::major(self.0), rustix::fs::minor(self.0))
    }

    /// The device with the /sys directory `directory`.
    fn in_directory(directory: &Path) -> Option<DeviceNumber> {
        let text = fs::read_to_string(directory.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(DeviceNumber(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?)))
    }

    /// Its /sys directory.
    fn directory(self) -> PathBuf {
        Path::new("/sys/dev/block").join(self.number())
    }

    /// Whether `path` leads to this device.
    fn is_at(self, path: &Path) -> bool {
        path.metadata().is_ok_and(|metadata| !metadata.is_file() && metadata.rdev() == self.0)
    }
}

/// The contents of a file; empty if the kernel does not have it. Names in it may be no UTF-8.
pub(super) fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn mounts(mountinfo: &str, device: DeviceNumber) -> Vec<String> {
    let number = device.number();
    let of_device = |line: &&str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let source = fields.iter().position(|field| *field == "-").and_then(|dash| fields.get(dash + 2));
        let same = |source: &&str| source.starts_with("/dev/") && device.is_at(Path::new(source));
        fields.get(2) == Some(&number.as_str()) || source.is_some_and(same)
    };
    let mounted = mountinfo.lines().filter(of_device);
    let places = mounted.filter_map(|line| line.split(' ').nth(4));
    places.map(|place| format!("mounted on {}", unescape(place))).collect()
}

/// Undoes the octal escapes of spaces and the like.
fn unescape(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_string(), |text, (escape, plain)| text.replace(escape, plain))
}

fn swaps(swaps: &str, device: DeviceNumber) -> Vec<String> {
    let of_device =
        |line: &&str| line.split_whitespace().next().is_some_and(|path| device.is_at(Path::new(path)));
    swaps.lines().filter(of_device).map(|_| "swap".into()).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(OsStr::new("?")).to_string_lossy().into_owned()
}

/// Subsystems of the kernel's NVMe target that export the device.
fn targets(subsystems: &Path, device: DeviceNumber) -> Vec<String> {
    let exports = |namespace: &PathBuf| {
        let text = |file| fs::read_to_string(namespace.join(file)).unwrap_or_default();
        device.is_at(Path::new(text("device_path").trim())) && text("enable").trim() == "1"
    };
    let exporting =
        entries(subsystems).into_iter().filter(|nqn| entries(&nqn.join("namespaces")).iter().any(exports));
    exporting.map(|nqn| format!("exported as {}", name(&nqn))).collect()
}

/// Processes that have the device open.
fn openers(processes: &Path, device: DeviceNumber) -> Vec<String> {
    let own = std::process::id().to_string();
    let is_other = |path: &&PathBuf| {
        let name = name(path);
        name.bytes().all(|byte| byte.is_ascii_digit()) && name != own
    };
    // Other files are not examined: that may take as long as the file system they are on.
    let of_device =
        |fd: &PathBuf| fs::read_link(fd).is_ok_and(|to| to.starts_with("/dev")) && device.is_at(fd);
    let has_open = |path: &&PathBuf| entries(&path.join("fd")).iter().any(of_device);
    let processes = entries(processes);
    let found = processes.iter().filter(is_other).filter(has_open);
    found
        .map(|path| {
            let command = read(&path.join("comm"));
            format!("open in {} (process {})", command.trim(), name(path))
        })
        .collect()
}

/// Whether the kernel holds the device exclusively.
fn is_held(device: &Path) -> io::Result<bool> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(device);
    match opened.map_err(|error| (error.raw_os_error(), error)) {
        // The device may have been removed meanwhile.
        Ok(_) | Err((Some(libc::ENOENT | libc::ENODEV | libc::ENXIO), _)) => Ok(false),
        Err((Some(libc::EBUSY), _)) => Ok(true),
        Err((_, error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(path: &str) -> DeviceNumber {
        DeviceNumber(Path::new(path).metadata().unwrap().rdev())
    }

    #[test]
    fn device_users_include_mounts_by_number_and_source() {
        let info = "36 35 1:5 / /mnt/a\\040b rw,noatime shared:1 - f2fs /dev/other rw\n\
                    37 35 0:33 / /mnt/c rw - btrfs /dev/null rw\n\
                    38 35 0:34 / /proc rw - proc proc rw\n";
        assert_eq!(mounts(info, device("/dev/zero")), ["mounted on /mnt/a b"]);
        assert_eq!(mounts(info, device("/dev/null")), ["mounted on /mnt/c"]);
        assert!(mounts(info, device("/dev/full")).is_empty());
    }

    #[test]
    fn device_users_are_found_beside_undecodable_names() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let info = b"35 35 0:34 / /mnt/\xff rw - proc proc rw\n36 35 1:5 / /mnt/a rw - f2fs /dev/other rw\n";
        fs::write(file.path(), info).unwrap();
        let info = read(file.path());
        assert_eq!(mounts(&info, device("/dev/zero")), ["mounted on /mnt/a"]);
    }

    #[test]
    fn device_with_unknown_holder_is_an_error() {
        assert!(!is_held(Path::new("/dev/null")).unwrap());
        assert!(!is_held(Path::new("/dev/no such device")).unwrap());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(is_held(&file.path().join("device")).is_err());
    }

    #[test]
    fn device_users_include_partitions_and_mounted_holders() {
        let dir = tempfile::tempdir().unwrap();
        for (part, dev) in [("ublkb0p1", "1:5"), ("ublkb0p2", "1:7"), ("queue", "")] {
            fs::create_dir_all(dir.path().join(part).join("holders/dm-3")).unwrap();
            fs::write(dir.path().join(part).join("dev"), dev).unwrap();
        }
        for part in ["ublkb0p1", "ublkb0p2"] {
            fs::write(dir.path().join(part).join("partition"), "1").unwrap();
        }
        let found: Vec<u64> = partitions(dir.path()).iter().map(|device| device.0).collect();
        assert_eq!(found, [device("/dev/zero").0, device("/dev/full").0]);
        let directory = dir.path().join("ublkb0p2/holders");
        fs::write(directory.join("dm-3/dev"), "1:5\n").unwrap();
        let info = "36 35 1:5 / /mnt/a rw,noatime shared:1 - ext4 /dev/other rw\n";
        assert_eq!(holders(&directory, info), ["held by dm-3, mounted on /mnt/a"]);
        assert_eq!(holders(&directory, ""), ["held by dm-3"]);
    }

    #[test]
    fn device_users_include_exports_and_open_files() {
        let dir = tempfile::tempdir().unwrap();
        let namespace = dir.path().join("nqn.x/namespaces/1");
        fs::create_dir_all(&namespace).unwrap();
        fs::write(namespace.join("device_path"), "/dev/null\n").unwrap();
        fs::write(namespace.join("enable"), "1\n").unwrap();
        assert_eq!(targets(dir.path(), device("/dev/null")), ["exported as nqn.x"]);
        assert!(targets(dir.path(), device("/dev/zero")).is_empty());
        fs::write(namespace.join("enable"), "0\n").unwrap();
        assert!(targets(dir.path(), device("/dev/null")).is_empty());

        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("1000").stdin(fs::File::open("/dev/full").unwrap()).spawn().unwrap();
        let found = openers(Path::new("/proc"), device("/dev/full"));
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = format!("open in sleep (process {})", child.id());
        assert!(found.contains(&expected), "{found:?}");
    }
}
