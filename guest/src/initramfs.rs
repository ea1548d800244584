//! The guest's initramfs: busybox, the modules that mount the root, and a script.

use crate::kernel::{Kernel, find_tool};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Modules that mount the root, and those that every guest uses; others are loaded from the root.
const MODULES: [&str; 6] = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "configfs", "nvme"];

/// Writes the initramfs for `kernel` to `file`.
pub fn write(kernel: &Kernel, file: &Path) -> Result<()> {
    let mut archive = Cpio(Vec::new());
    for dir in ["bin", "modules", "proc", "sys", "dev", "host", "memory", "root"] {
        archive.add(dir, 0o40755, &[]);
    }
    let busybox = find_tool("busybox").context("busybox is not installed")?;
    archive.add("bin/busybox", 0o100755, &fs::read(busybox)?);
    archive.add("init", 0o100755, include_bytes!("initramfs.sh"));
    archive.add("command.sh", 0o100644, include_bytes!("command.sh"));
    archive.add("guest.service", 0o100644, include_bytes!("guest.service"));
    for (number, module) in modules(kernel)?.iter().enumerate() {
        archive.add(&format!("modules/{number:02}.ko"), 0o100644, &unpacked(Path::new(module))?);
    }
    archive.add("TRAILER!!!", 0, &[]);
    fs::write(file, archive.0).with_context(|| format!("cannot write {}", file.display()))
}

/// The files of [`MODULES`] and of their dependencies, in loading order.
fn modules(kernel: &Kernel) -> Result<Vec<String>> {
    let mut files: Vec<String> = Vec::new();
    for module in MODULES {
        let output = Command::new(find_tool("modprobe").context("modprobe is not installed")?)
            .args(["--dirname".as_ref(), kernel.root.as_os_str()])
            .args(["--set-version", &kernel.release, "--show-depends", module])
            .output()?;
        ensure!(output.status.success(), "the kernel {} has no module {module}", kernel.release);
        let depends = String::from_utf8_lossy(&output.stdout);
        for file in depends.lines().filter_map(|line| line.strip_prefix("insmod ")) {
            if !files.iter().any(|known| known == file.trim()) {
                files.push(file.trim().to_string());
            }
        }
    }
    Ok(files)
}

/// A module's contents; distributions compress the files.
fn unpacked(module: &Path) -> Result<Vec<u8>> {
    let tool = match module.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(module).with_context(|| format!("cannot read {}", module.display())),
    };
    let output = Command::new(tool).arg("-dc").arg(module).stderr(Stdio::null()).output()?;
    ensure!(output.status.success(), "{tool} cannot unpack {}", module.display());
    Ok(output.stdout)
}

/// An archive in the kernel's initramfs format (`newc` in cpio(5)).
struct Cpio(Vec<u8>);

impl Cpio {
    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) {
        // inode, mode, uid, gid, links, mtime, size, device, special device, length of name, sum
        let inode = self.0.len();
        let fields = [inode, mode as usize, 0, 0, 1, 0, contents.len(), 0, 0, 0, 0, name.len() + 1, 0]
            .map(|f| f as u32);
        self.0.extend_from_slice(b"070701");
        for field in fields {
            // Writing to memory cannot fail.
            let _ = write!(self.0, "{field:08x}");
        }
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        self.pad();
        self.0.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initramfs_archive_has_cpio_newc_layout() {
        let mut archive = Cpio(Vec::new());
        archive.add("a", 0o100644, b"hello");
        archive.add("TRAILER!!!", 0, &[]);
        assert_eq!(archive.0.len() % 4, 0);
        assert_eq!(&archive.0[..6], b"070701");
        // Fields of eight digits: the seventh is the size, the twelfth the length of the name.
        assert_eq!(&archive.0[6 + 8 * 6..][..8], b"00000005");
        assert_eq!(&archive.0[6 + 8 * 11..][..8], b"00000002");
        assert_eq!(&archive.0[110..112], b"a\0");
        assert_eq!(&archive.0[112..117], b"hello");
        assert_eq!(&archive.0[120..126], b"070701");
    }
}
