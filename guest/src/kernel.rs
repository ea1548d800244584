//! A kernel for the guest: the distribution's own package, unpacked, not installed.

use anyhow::{Context, Result, bail, ensure};
use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Oldest kernel release: ublk has zoned block devices since 6.6.
const OLDEST: [u32; 2] = [6, 6];

/// Programs that the runner and the tests need, and their Debian packages.
const TOOLS: [(&str, &str); 27] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("modprobe", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("setpriv", "util-linux"),
    ("blkzone", "util-linux"),
    ("mount", "mount"),
    ("ip", "iproute2"),
    ("ps", "procps"),
    ("fio", "fio"),
    ("mkfs.f2fs", "f2fs-tools"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("sfdisk", "fdisk"),
    ("lvm", "lvm2"),
    ("cryptsetup", "cryptsetup-bin"),
    ("sqlite3", "sqlite3"),
    ("nbd-client", "nbd-client"),
    ("nbdinfo", "libnbd-bin"),
    ("nvme", "nvme-cli"),
    ("jq", "jq"),
    ("strace", "strace"),
    ("dpkg", "dpkg"),
    ("systemctl", "systemd"),
    ("udevadm", "udev"),
];

/// An unpacked kernel package.
pub struct Kernel {
    /// Directory where it was unpacked: `boot` and `lib/modules` are below.
    pub root: PathBuf,
    /// Its `uname -r`.
    pub release: String,
}

impl Kernel {
    /// Its image: in `/boot`, or beside its modules in packages of Debian's from 7.x on.
    pub fn image(&self) -> PathBuf {
        let beside = self.modules().join("vmlinuz");
        if beside.exists() {
            beside
        } else {
            self.root.join("boot").join(format!("vmlinuz-{}", self.release))
        }
    }

    /// The directory of its modules.
    fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }

    /// The kernel that `wanted` names: a directory with an unpacked one, or the beginning of a release. Without a name
    /// the newest kernel in the cache, or if the cache is empty, the newest one that apt offers.
    pub fn find(wanted: Option<&str>) -> Result<Self> {
        need_tools()?;
        if let Some(path) = wanted.filter(|wanted| wanted.contains('/')) {
            return unpacked_at(Path::new(path));
        }
        let (cache, prefix) = (cache()?.join("kernels"), wanted.unwrap_or_default());
        if let Some(kernel) = newest_unpacked(&cache, prefix)? {
            return Ok(kernel);
        }
        fetch(&cache, prefix)?;
        newest_unpacked(&cache, prefix)?.with_context(|| format!("no kernel in {}", cache.display()))
    }
}

/// The only kernel below a directory.
fn unpacked_at(root: &Path) -> Result<Kernel> {
    let modules = root.join("lib/modules");
    let problem = || format!("{} cannot be listed", modules.display());
    let entries = fs::read_dir(&modules).with_context(problem)?;
    let names: std::io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let mut releases = names.with_context(problem)?.into_iter();
    match (releases.next(), releases.next()) {
        (Some(release), None) => {
            let (root, release) = (root.canonicalize()?, release.to_string_lossy().into_owned());
            let kernel = Kernel { root, release };
            ensure!(kernel.image().exists(), "{} is not there", kernel.image().display());
            Ok(kernel)
        }
        (None, _) => bail!("there is no kernel in {}", modules.display()),
        (Some(_), Some(_)) => bail!("there are several kernels in {}", modules.display()),
    }
}

/// Whether a release matches the given prefix: 7.3 matches 7.3.4+deb13-amd64, and not 7.30.
fn is_meant(release: &str, prefix: &str) -> bool {
    release.strip_prefix(prefix).is_some_and(|rest| {
        prefix.is_empty() || !rest.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_alphabetic())
    })
}

/// The directory of kernels, which are large, slow to get and the same for all checkouts.
pub fn cache() -> Result<PathBuf> {
    let base = match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
        (Some(base), _) => PathBuf::from(base),
        (None, Some(home)) => Path::new(&home).join(".cache"),
        (None, None) => bail!("neither XDG_CACHE_HOME nor HOME is set: no place to keep a kernel"),
    };
    Ok(base.join("zoneraid-guest"))
}

/// Finds a program in PATH, and in directories that only root's PATH has.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The packages of missing programs.
pub fn missing_packages() -> Vec<&'static str> {
    let missing = |(tool, _): &&(&str, &str)| match find_tool(tool) {
        // A busybox that needs shared libraries cannot run in an initramfs.
        Some(file) if *tool == "busybox" => {
            fs::read(&file).is_ok_and(|elf| elf.windows(8).take(4096).any(|name| name == b"/ld-linu"))
        }
        found => found.is_none(),
    };
    let mut packages: Vec<&str> = TOOLS.iter().filter(missing).map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

fn need_tools() -> Result<()> {
    let packages = missing_packages();
    ensure!(
        packages.is_empty(),
        "programs that the guest needs are not installed here: \
         apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    Ok(())
}

/// Runs a program to its end and returns its output.
pub fn output(program: &str, args: &[&OsStr], dir: &Path) -> Result<String> {
    let mut command = Command::new(find_tool(program).unwrap_or_else(|| program.into()));
    let output = command
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let line: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    ensure!(output.status.success(), "{program} {} failed: {}", line.join(" "), stderr.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The numbers in a kernel's release, for comparison: 6.12.117+deb12 is newer than 6.12.43.
fn numbers(release: &str) -> Vec<u32> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// `linux-image-RELEASE` of a general kernel: Debian's amd64, Ubuntu's generic.
fn release_of(package: &str) -> Option<&str> {
    let release = package.strip_prefix("linux-image-")?;
    let general = release.strip_suffix("-amd64").or_else(|| release.strip_suffix("-generic"))?;
    let special = ["cloud", "rt", "unsigned"].iter().any(|kind| general.split('-').any(|part| part == *kind));
    let full = numbers(general).len() >= 3;
    (general.starts_with(|c: char| c.is_ascii_digit()) && full && !special).then_some(release)
}

/// Prefixes of the packages of a kernel. Ubuntu has separate packages for modules; so has Debian from 7.x on, where the
/// image is in linux-binary, lists of modules are in linux-base, and linux-image is empty.
const PACKAGES: [&str; 5] =
    ["linux-image", "linux-binary", "linux-base", "linux-modules", "linux-modules-extra"];

fn fetch(cache: &Path, prefix: &str) -> Result<()> {
    let listed = output("apt-cache", &["pkgnames".as_ref(), "linux-image-".as_ref()], Path::new("/"))?;
    let new_enough = |release: &&str| numbers(release).as_slice() >= OLDEST.as_slice();
    let meant = |release: &&str| is_meant(release, prefix);
    let offered = listed.lines().filter_map(release_of).filter(new_enough).filter(meant);
    let release = offered.max_by_key(|release| numbers(release)).with_context(|| {
        let wanted = if prefix.is_empty() { "from 6.6 on" } else { prefix };
        format!(
            "apt offers no kernel {wanted}: run apt-get update, or add the distribution's newer kernels (backports, or \
             hardware enablement) to its sources; $APT_CONFIG may name a configuration with others"
        )
    })?;
    let room = cache.join(format!("{release}.new"));
    if room.exists() {
        fs::remove_dir_all(&room).with_context(|| format!("cannot remove {}", room.display()))?;
    }
    fs::create_dir_all(&room).with_context(|| format!("cannot create {}", room.display()))?;
    eprintln!("guest: fetching the kernel {release} into {} (once)", cache.display());
    let known = output("apt-cache", &["pkgnames".as_ref(), "linux-".as_ref()], Path::new("/"))?;
    let packages = PACKAGES.map(|package| format!("{package}-{release}"));
    for package in packages.iter().filter(|package| known.lines().any(|line| line == **package)) {
        output("apt-get", &["download".as_ref(), package.as_ref()], &room)?;
    }
    for entry in fs::read_dir(&room)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            output("dpkg", &["-x".as_ref(), file.as_ref(), room.as_ref()], &room)?;
            fs::remove_file(file)?;
        }
    }
    if !room.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", room.join("lib"))?;
    }
    output("depmod", &["-b".as_ref(), room.as_ref(), release.as_ref()], &room)?;
    fs::rename(&room, cache.join(release))?;
    Ok(())
}

fn newest_unpacked(cache: &Path, prefix: &str) -> Result<Option<Kernel>> {
    let Ok(entries) = fs::read_dir(cache) else { return Ok(None) };
    let mut releases = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".new") && is_meant(&name, prefix) {
            releases.push(name);
        }
    }
    let newest = releases.into_iter().max_by_key(|release| numbers(release));
    Ok(newest.map(|release| Kernel { root: cache.join(&release), release }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_package_release_excludes_special_builds() {
        assert_eq!(release_of("linux-image-6.12.117+deb12-amd64"), Some("6.12.117+deb12-amd64"));
        assert_eq!(release_of("linux-image-6.8.0-31-generic"), Some("6.8.0-31-generic"));
        for package in [
            "linux-image-6.12-amd64",
            "linux-image-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-rt-amd64",
            "linux-image-6.12.117+deb12-amd64-dbg",
            "linux-image-6.12.117+deb12-amd64-unsigned",
            "linux-image-unsigned-6.8.0-31-generic",
        ] {
            assert_eq!(release_of(package), None, "{package}");
        }
    }

    #[test]
    fn kernel_is_selected_by_release_prefix() {
        for prefix in ["", "7", "7.3", "7.3.4", "7.3.4+deb13", "7.3.4+deb13-amd64"] {
            assert!(is_meant("7.3.4+deb13-amd64", prefix), "{prefix}");
        }
        assert!(!is_meant("7.30.1+deb13-amd64", "7.3") && !is_meant("6.12.1-amd64", "7"));
    }

    #[test]
    fn kernel_image_is_found_in_boot_or_modules() {
        let dir = tempfile::tempdir().unwrap();
        let modules = dir.path().join("lib/modules/7.3.4-amd64");
        assert!(unpacked_at(dir.path()).is_err());
        fs::create_dir_all(&modules).unwrap();
        assert!(unpacked_at(dir.path()).is_err());
        fs::create_dir(dir.path().join("boot")).unwrap();
        fs::write(dir.path().join("boot/vmlinuz-7.3.4-amd64"), "").unwrap();
        assert!(unpacked_at(dir.path()).unwrap().image().ends_with("boot/vmlinuz-7.3.4-amd64"));
        fs::write(modules.join("vmlinuz"), "").unwrap();
        let kernel = unpacked_at(dir.path()).unwrap();
        assert!(
            kernel.image().ends_with("lib/modules/7.3.4-amd64/vmlinuz") && kernel.release == "7.3.4-amd64"
        );
        fs::create_dir(dir.path().join("lib/modules/7.2-amd64")).unwrap();
        assert!(unpacked_at(dir.path()).is_err());
    }

    #[test]
    fn kernel_releases_compare_as_numbers() {
        assert!(numbers("6.12.117+deb12-amd64") > numbers("6.12.43+deb12-amd64"));
        assert!(numbers("6.8.0-31-generic").as_slice() >= OLDEST.as_slice());
        assert!(numbers("6.1.0-47-amd64").as_slice() < OLDEST.as_slice());
    }
}
