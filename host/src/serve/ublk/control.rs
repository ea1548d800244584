//! Control commands, which create and remove block devices.
#![allow(unsafe_code)]

use super::abi::{self, Info, UblkCommand};
use crate::reactor::{Reactor, ring::Ring};
use anyhow::{Context, Result, bail, ensure};
use io_uring::{opcode, types::Fd};
use std::{
    cell::Cell,
    ffi::OsString,
    fs::File,
    io::{self, ErrorKind},
    os::fd::AsRawFd,
    path::Path,
    process::{Command, Stdio},
    rc::Rc,
    time::Duration,
};

const PATH: &str = "/dev/ublk-control";

/// Directory in which the driver lists its devices.
const CLASS: &str = "/sys/class/ublk-char";

/// How long a killed process may take to release its device.
const RELEASE_PATIENCE: Duration = Duration::from_secs(30);

/// The control device of the ublk driver.
pub(super) struct Controls {
    ring: Ring,
    file: Rc<File>,
    /// Features of the driver; 0 if nothing depends on them.
    features: u64,
}

/// Memory that a command reads or writes.
type Buffer = Rc<[Cell<u8>]>;

fn buffer(bytes: &[u8]) -> Buffer {
    bytes.iter().copied().map(Cell::new).collect()
}

fn content(buffer: &Buffer) -> Vec<u8> {
    buffer.iter().map(Cell::get).collect()
}

impl Controls {
    /// Opens the control device, loading the driver if necessary, and checks that it has the features `needed`.
    pub(super) async fn open(reactor: &Reactor, needed: u64) -> Result<Controls> {
        let file = match open_file() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let modprobe = Command::new("modprobe").arg("ublk_drv").stderr(Stdio::null()).status();
                if modprobe.is_ok_and(|status| status.success()) { open_file() } else { Err(error) }
            }
            result => result,
        };
        let mut controls = Controls::over(reactor, file)?;
        controls.features = controls.features().await?;
        ensure!(
            controls.features & needed == needed,
            "the ublk driver of this kernel lacks features that this block device needs: use Linux 6.6 or newer"
        );
        Ok(controls)
    }

    fn over(reactor: &Reactor, file: io::Result<File>) -> Result<Controls> {
        let file = Rc::new(file.map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!(
                "this kernel has no ublk driver, which block devices need: `modprobe ublk_drv` (Linux 6.6 or newer)"
            ),
            ErrorKind::PermissionDenied => anyhow::anyhow!("block devices need root: {PATH} cannot be opened"),
            _ => anyhow::anyhow!("{PATH} cannot be opened: {error}"),
        })?);
        Ok(Controls { ring: reactor.ring()?.clone(), file, features: 0 })
    }

    async fn features(&self) -> Result<u64> {
        let features = buffer(&[0; 8]);
        match self.run(UblkCommand::GetFeatures, u32::MAX, &features, 0).await {
            // An old driver without this command.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV)) => Ok(0),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => bail!("block devices need root"),
            Err(error) => Err(error).context("the features of the ublk driver cannot be read"),
            Ok(()) => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&content(&features));
                Ok(u64::from_ne_bytes(bytes))
            }
        }
    }

    /// Creates `/dev/ublkcN`; returns the properties that the driver has chosen, among them N.
    pub(super) async fn add(&self, queues: u16, depth: u16, tag: u64, flags: u64) -> Result<Info> {
        let info = Info {
            queues,
            depth,
            state: 0,
            max_request_bytes: abi::MAX_REQUEST_BLOCKS * engine::buf::BLOCK as u32,
            device: u32::MAX,
            flags,
            tag,
        };
        let info = buffer(&info.to_bytes());
        let added = self.run(UblkCommand::AddDev, u32::MAX, &info, 0).await;
        added.context("the ublk driver cannot create a block device")?;
        Ok(Info::from_bytes(&content(&info)))
    }

    pub(super) async fn set_params(&self, id: u32, params: &[u8]) -> Result<()> {
        let params = buffer(params);
        let set = self.run(UblkCommand::SetParams, id, &params, 0).await;
        set.context("the ublk driver refuses the parameters of the block device")
    }

    /// Creates `/dev/ublkbN`. The kernel reads its zones and first blocks meanwhile, so all queues have to be served.
    pub(super) async fn start(&self, id: u32) -> Result<()> {
        let started = self.run(UblkCommand::StartDev, id, &buffer(&[]), std::process::id() as u64).await;
        started.with_context(|| format!("/dev/ublkb{id} cannot be started"))
    }

    /// Gives the running `/dev/ublkbN` a size of so many blocks; `false` if the driver does not support that.
    pub(super) async fn update_size(&self, id: u32, blocks: u64) -> Result<bool> {
        if self.features & abi::UPDATE_SIZE == 0 {
            return Ok(false);
        }
        let sectors = blocks.saturating_mul(abi::SECTORS);
        let updated = self.run(UblkCommand::UpdateSize, id, &buffer(&[]), sectors).await;
        updated.map(|()| true).with_context(|| format!("the size of /dev/ublkb{id} cannot be changed"))
    }

    /// Removes `/dev/ublkbN`.
    pub(super) async fn stop(&self, id: u32) -> Result<()> {
        let stopped = self.run(UblkCommand::StopDev, id, &buffer(&[]), 0).await;
        stopped.with_context(|| format!("/dev/ublkb{id} cannot be stopped"))
    }

    /// Removes `/dev/ublkcN`, which must not be open any more.
    pub(super) async fn delete(&self, id: u32) -> Result<()> {
        let deleted = self.run(UblkCommand::DelDev, id, &buffer(&[]), 0).await;
        deleted.with_context(|| format!("/dev/ublkc{id} cannot be removed"))
    }

    /// Begins the recovery of a device that has lost its process.
    pub(super) async fn start_recovery(&self, id: u32) -> Result<()> {
        let step = Duration::from_millis(10);
        let mut patience = RELEASE_PATIENCE;
        loop {
            match self.run(UblkCommand::StartUserRecovery, id, &buffer(&[]), 0).await {
                // The process has not exited yet, or the driver has not finished its cleanup.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && !patience.is_zero() => {
                    self.sleep(step).await;
                    patience = patience.saturating_sub(step);
                }
                // Another process has begun the recovery, and died before it fetched any requests.
                Err(error)
                    if error.raw_os_error() == Some(libc::EINVAL)
                        && self.info(id).await.is_ok_and(|info| info.state == abi::QUIESCED) =>
                {
                    return Ok(());
                }
                result => {
                    return result.with_context(|| format!("/dev/ublkb{id} cannot be taken over"));
                }
            }
        }
    }

    /// Ends the recovery: the kernel reissues requests that the dead process has not answered.
    pub(super) async fn end_recovery(&self, id: u32) -> Result<()> {
        let ended = self.run(UblkCommand::EndUserRecovery, id, &buffer(&[]), std::process::id() as u64).await;
        ended.with_context(|| format!("/dev/ublkb{id} cannot be taken over"))
    }

    pub(super) async fn info(&self, id: u32) -> io::Result<Info> {
        let info = buffer(&[0; abi::INFO_BYTES]);
        self.run(UblkCommand::GetDevInfo, id, &info, 0).await?;
        Ok(Info::from_bytes(&content(&info)))
    }

    async fn run(&self, control: UblkCommand, device: u32, buffer: &Buffer, data: u64) -> io::Result<()> {
        let address = if buffer.is_empty() { 0 } else { buffer.as_ptr() as u64 };
        let command = abi::control_command(device, address, buffer.len(), data);
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), control.code()).cmd(command).build();
        // SAFETY: the command points to the cells of `buffer` only, which stay where they are until both references are
        // gone, and which may change at any time.
        let outcome = unsafe { self.ring.run(entry, (buffer.clone(), self.file.clone())) }.await;
        match outcome.result {
            result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            _ => Ok(()),
        }
    }

    async fn sleep(&self, time: Duration) {
        let time = io_uring::types::Timespec::from(time);
        let time: Rc<io_uring::types::Timespec> = Rc::new(time);
        let entry = opcode::Timeout::new(&*time).build();
        // SAFETY: the entry points to `time`, which is kept.
        unsafe { self.ring.run(entry.into(), time) }.await;
    }
}

fn open_file() -> io::Result<File> {
    File::options().read(true).write(true).open(PATH)
}

/// The numbers of the driver's devices in `class`, sorted.
fn device_ids(class: &Path) -> io::Result<Vec<u32>> {
    let entries = match std::fs::read_dir(class) {
        // No driver, no devices.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    let id = |name: &OsString| name.to_str()?.strip_prefix("ublkc")?.parse().ok();
    let mut ids: Vec<u32> = names.iter().filter_map(id).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Block devices with these tags, whether a process serves them or not.
///
/// # Errors
/// It is not known of each device whether it is one of these.
pub(super) async fn find(reactor: &Reactor, is_wanted: impl Fn(u64) -> bool) -> Result<Vec<Info>> {
    let ids = device_ids(Path::new(CLASS)).with_context(|| format!("{CLASS} cannot be read"))?;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let controls = Controls::over(reactor, open_file())?;
    let mut found = Vec::new();
    for id in ids {
        match controls.info(id).await {
            Ok(info) if is_wanted(info.tag) && info.flags & abi::FEATURES == abi::FEATURES => {
                found.push(info)
            }
            // A device of another program or array.
            Ok(_) => {}
            // A device that was removed meanwhile, or an unprivileged one, which is of another program.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("the state of /dev/ublkc{id} cannot be read"));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_class_directory_is_no_absence_of_devices() {
        let dir = tempfile::tempdir().unwrap();
        assert!(device_ids(&dir.path().join("none")).unwrap().is_empty());
        for name in ["ublkc10", "ublkc9", "ublk-control"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(device_ids(dir.path()).unwrap(), [9, 10]);
        assert!(device_ids(&dir.path().join("ublkc9")).is_err());
    }
}
