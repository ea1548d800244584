//! Starts QEMU: drives, command line, and a test of KVM.

use crate::{kernel, kernel::Kernel, tools::Package};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

/// Longest time until a kernel starts its first process, if KVM works.
const PROBE: Duration = Duration::from_secs(20);

#[derive(Args, Clone)]
pub struct Machine {
    /// Emulated NVMe drives, as COUNT or COUNT:KEY=VALUE,...; repeat for drives of another shape
    ///
    /// Keys: size, zone, capacity, zrwa (0: none), granularity (of a ZRWA flush), open, active,
    /// lba, metadata (bytes per block), conventional=yes, shared=yes (as if by several controllers). Their serials
    /// are drive0, drive1, ...
    #[arg(long = "drives", value_name = "SPEC", default_values = ["5"])]
    pub drives: Vec<Drives>,
    /// Kernel: the beginning of a release, like 7.3, or a directory with an unpacked one; the newest in the cache, or
    /// that apt offers, by default
    #[arg(long, value_name = "VERSION|PATH")]
    pub kernel: Option<String>,
    /// Package whose programs the guest uses in the place of this machine's, in the newest version that apt offers and at
    /// least in this one, with its libraries; repeat it for more
    #[arg(long, value_name = "PACKAGE=VERSION")]
    pub tools: Vec<Package>,
    /// Memory of the guest, including its overlay of changed files
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    pub memory: String,
    /// Processors of the guest, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processors: u32,
    /// One more argument for QEMU; repeat it for more
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub qemu: Vec<String>,
    /// Seconds after which the guest is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub time_limit: u64,
    /// Boot systemd with udev; the command runs as a service
    #[arg(long)]
    pub systemd: bool,
    /// Boot again, and run the command again, when the guest crashes; $GUEST_BOOT counts from 1
    #[arg(long)]
    pub reboots: bool,
}

/// Some drives of one shape. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Drives {
    count: usize,
    size: u64,
    zone: u64,
    capacity: u64,
    zrwa: u64,
    granularity: u64,
    open: u64,
    active: u64,
    lba: u64,
    metadata: u64,
    conventional: bool,
    shared: bool,
}

impl FromStr for Drives {
    type Err = anyhow::Error;

    fn from_str(spec: &str) -> Result<Self> {
        let (count, keys) = spec.split_once(':').unwrap_or((spec, ""));
        let mut drives = Self {
            count: count.parse().with_context(|| format!("{count} is no number of drives"))?,
            size: 512 << 20,
            zone: 32 << 20,
            capacity: 24 << 20,
            zrwa: 1 << 20,
            granularity: 16 << 10,
            open: 14,
            active: 14,
            lba: 4096,
            metadata: 0,
            conventional: false,
            shared: false,
        };
        for pair in keys.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').with_context(|| format!("{pair} is not KEY=VALUE"))?;
            let field = match key {
                "conventional" => {
                    drives.conventional = value == "yes";
                    continue;
                }
                "shared" => {
                    drives.shared = value == "yes";
                    continue;
                }
                "size" => &mut drives.size,
                "zone" => &mut drives.zone,
                "capacity" => &mut drives.capacity,
                "zrwa" => &mut drives.zrwa,
                "granularity" => &mut drives.granularity,
                "open" => &mut drives.open,
                "active" => &mut drives.active,
                "lba" => &mut drives.lba,
                "metadata" => &mut drives.metadata,
                _ => bail!("drives have no {key}"),
            };
            *field = parse_size(value)?;
        }
        Ok(drives)
    }
}

/// Parses bytes, with K, M or G for powers of 1024.
pub fn parse_size(text: &str) -> Result<u64> {
    let shift = match text.chars().last() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => 0,
    };
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let number: u64 = digits.parse().with_context(|| format!("{text} is no size"))?;
    Ok(number << shift)
}

impl Drives {
    /// QEMU's arguments for drive `number` of the machine, with its image.
    fn arguments(&self, number: usize, image: &Path) -> Vec<String> {
        let mut namespace = format!(
            "nvme-ns,drive=image{number},bus=controller{number},nsid=1,\
             logical_block_size={lba},physical_block_size={lba},ms={metadata}",
            lba = self.lba,
            metadata = self.metadata,
        );
        if !self.conventional {
            namespace += &format!(
                ",zoned=true,zoned.zone_size={},zoned.zone_capacity={},zoned.max_open={},zoned.max_active={}",
                self.zone, self.capacity, self.open, self.active
            );
        }
        if !self.conventional && self.zrwa > 0 {
            namespace += &format!(
                ",zoned.zrwas={},zoned.zrwafg={},zoned.numzrwa={}",
                self.zrwa, self.granularity, self.open
            );
        }
        let image = image.display();
        let mut controller = format!("nvme,serial=drive{number},id=controller{number},zoned.zasl=5,mdts=7");
        let mut arguments = Vec::new();
        if self.shared {
            arguments =
                vec!["-device".to_string(), format!("nvme-subsys,id=subsystem{number},nqn=drive{number}")];
            controller += &format!(",subsys=subsystem{number}");
        }
        let drive = [
            "-drive",
            &format!(
                "file={image},id=image{number},format=raw,if=none,discard=unmap,detect-zeroes=unmap,cache=unsafe"
            ),
            "-device",
            &controller,
            "-device",
            &namespace,
        ]
        .map(String::from);
        arguments.extend(drive);
        arguments
    }
}

impl Machine {
    /// Starts QEMU. `share` is the guest's /mnt/guest; the drives' images, the initramfs and the monitor's socket are
    /// in `room`. QEMU dies with this process.
    pub fn start(&self, kernel: &Kernel, initramfs: &Path, share: &Path, room: &Path) -> Result<Child> {
        let mut command = qemu(accelerator(kernel, initramfs)?, kernel, initramfs, &room.join("serial"))?;
        command.args(["-m", &self.memory, "-smp", &self.processors.to_string()]).args(&self.qemu);
        if !self.reboots {
            command.arg("-no-reboot");
        }
        command.args(["-append", &format!("{KERNEL_OPTIONS} panic=-1")]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", room.join("qmp").display()));
        command.args([
            "-fsdev",
            "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device",
            "virtio-9p-pci,fsdev=host,mount_tag=host",
            "-fsdev",
            &format!("local,id=out,path={},security_model=none", share.display()),
            "-device",
            "virtio-9p-pci,fsdev=out,mount_tag=out",
        ]);
        let shapes = self.drives.iter().flat_map(|drives| std::iter::repeat_n(drives, drives.count));
        for (number, drive) in shapes.enumerate() {
            let image = room.join(format!("drive{number}.img"));
            fs::File::create(&image)?.set_len(drive.size)?;
            command.args(drive.arguments(number, &image));
        }
        let errors = fs::File::create(room.join("qemu"))?;
        command.stdout(errors.try_clone()?).stderr(errors);
        command.spawn().context("cannot start QEMU")
    }
}

const KERNEL_OPTIONS: &str =
    "console=ttyS0 quiet loglevel=4 mitigations=off nokaslr no_timer_check tsc=unstable";

/// The part of the command line that all guests have in common.
fn qemu(accelerator: &str, kernel: &Kernel, initramfs: &Path, serial: &Path) -> Result<Command> {
    // QEMU must not outlive the runner, however that ends.
    let mut command = Command::new(kernel::find_tool("setpriv").context("setpriv is not installed")?);
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-machine", "pc", "-accel"]);
    match accelerator {
        "kvm" => command.args(["kvm", "-cpu", "host"]),
        // Newer vector instructions cost more to emulate than they save. So does a thread for each processor while
        // several guests run: half of the time one waits for a lock with a preempted holder. It also happens that one
        // executes code that the kernel has just patched, which kills the guest. A reset discards all translations,
        // which takes minutes for a GiB of them.
        _ => command.args(["tcg,thread=single,tb-size=192", "-cpu", "Nehalem"]),
    };
    command.args(["-nodefaults", "-display", "none", "-serial", &format!("file:{}", serial.display())]);
    command.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(initramfs).stdin(Stdio::null());
    Ok(command)
}

/// "kvm" or "tcg". Guests may fail to run although /dev/kvm can be opened: one boot is tried.
fn accelerator(kernel: &Kernel, initramfs: &Path) -> Result<&'static str> {
    let usable = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    if !usable {
        return Ok("tcg");
    }
    // A home directory may be used on several machines, so the result is kept by boot id.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let cache = kernel::cache()?.join(format!("kvm-{}", boot.trim()));
    let works = match fs::read_to_string(&cache) {
        Ok(answer) => answer == "works",
        Err(_) => {
            let works = probe_kvm(kernel, initramfs)?;
            fs::write(&cache, if works { "works" } else { "does not work" })?;
            works
        }
    };
    Ok(if works { "kvm" } else { "tcg" })
}

fn probe_kvm(kernel: &Kernel, initramfs: &Path) -> Result<bool> {
    let room = tempfile::tempdir()?;
    let serial = room.path().join("serial");
    let mut command = qemu("kvm", kernel, initramfs, &serial)?;
    command.args(["-no-reboot", "-m", "512M", "-append", &format!("{KERNEL_OPTIONS} panic=-1 guest.probe")]);
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start QEMU")?;
    let started = Instant::now();
    while child.try_wait()?.is_none() && started.elapsed() < PROBE {
        thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    child.wait()?;
    Ok(fs::read_to_string(serial).is_ok_and(|serial| serial.contains("guest: alive")))
}

/// A directory with a short path: the path of a socket has to fit into 108 bytes.
pub fn room() -> Result<tempfile::TempDir> {
    let room =
        tempfile::Builder::new().prefix("guest").tempdir().context("no room for the drives' images")?;
    ensure!(room.path().as_os_str().len() < 90, "$TMPDIR is too long a path for a socket in it");
    Ok(room)
}

/// Information on the end of a guest that died: the last lines of its console and of QEMU.
pub fn last_words(room: &Path) -> String {
    let tail = |file: PathBuf| {
        let text =
            fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    };
    format!("{}\n{}", tail(room.join("serial")), tail(room.join("qemu"))).trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_drive_options_parse_and_reject_unknown_keys() {
        let drives: Drives = "2:zrwa=64K,lba=512,size=1G,conventional=yes".parse().unwrap();
        assert_eq!((drives.count, drives.zrwa, drives.lba, drives.size), (2, 64 << 10, 512, 1 << 30));
        assert!(drives.conventional);
        for wrong in ["", "x", "1:zrwa", "1:zrwa=", "1:wheels=4"] {
            assert!(wrong.parse::<Drives>().is_err(), "{wrong}");
        }
    }
}
