//! NVMe zoned namespaces, driven by passthrough (`/dev/ngXnY`): the block layer does not support ZRWAs, and would
//! reorder writes.
//!
//! Commands go through the ring of the process; their buffers live in a table until they complete, also when the drive
//! is dropped before. Reads and writes do not allocate. Commands are never split: a command that is too large for the
//! drive or the kernel is refused, and the geometry tells the limit.
#![allow(unsafe_code)]

mod power;
mod wire;

use super::{
    claim::{DriveClaim, OpenPurpose},
    drive_id::drive_id,
    error::OpenError,
    flight::{Flight, InFlight},
    shortage, sysfs,
};
use crate::reactor::ring::{Outcome, Ring, Target};
use engine::{
    buf::{BLOCK, Buf},
    device::{
        Command, Completer, Completion, DeviceError, Done, DriveId, Geometry, Slots, Status, ZonedDevice,
        Zones,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use io_uring::{opcode, types::Fd};
use power::PowerCycles;
use std::{
    cell::Cell,
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    rc::Rc,
};
use wire::{Action, DESCRIPTOR, Format, Identify, PAGE, Pages, Passthrough, TransferOpcode};

/// The kernel aborts a command that takes longer.
const TIMEOUT_MS: u32 = 30_000;
/// Timeout of commands for all zones: a drive may process these one by one.
const ALL_ZONES_TIMEOUT_MS: u32 = 600_000;
/// Timeout of commands that block the process while a drive is opened, and of reads of the SMART log.
const IDENTIFY_TIMEOUT_MS: u32 = 5_000;
/// Bytes of a zone report that are requested at once.
const REPORT_BYTES: usize = 1 << 16;

/// 72 bytes, the size of the structure, which the ioctl numbers contain.
type RawCommand = [u64; 9];
const ADMIN_COMMAND: libc::Ioctl = libc::_IOWR::<RawCommand>(b'N' as u32, 0x41);
const IO_COMMAND: libc::Ioctl = libc::_IOWR::<RawCommand>(b'N' as u32, 0x43);
const NAMESPACE_ID: libc::Ioctl = libc::_IO(b'N' as u32, 0x40);
/// Error of a command for which no controller has a path at the moment, or which has a registered buffer that is not
/// accepted.
const NO_PATH: i32 = -libc::EINVAL;
const URING_IO_COMMAND: u32 = libc::_IOWR::<RawCommand>(b'N' as u32, 0x80) as u32;

/// A zoned namespace of an NVMe drive.
pub struct NvmeDrive(Rc<NvmeNamespace>);

struct NvmeNamespace {
    file: File,
    /// Directory of the controller in sysfs.
    device: PathBuf,
    format: Format,
    geometry: Geometry,
    /// Whether commands that change the drive are passed on: the kernel permits them to root on a read-only file too.
    writable: bool,
    drive_id: DriveId,
    power: PowerCycles,
    ring: Ring,
    slots: Rc<Slots>,
    in_flight: InFlight<NvmeOperation>,
    /// Whether registered buffers are used. Linux 6.6 to 6.11 refuses buffers that are further from the end of their
    /// registration than a request can have segments.
    registered: Cell<bool>,
    /// Zeros as the metadata of writes without any, and the destination of metadata that a read does not return.
    no_metadata: Buf,
    metadata_sink: Buf,
    _claim: DriveClaim,
}

/// A command in flight.
struct NvmeOperation {
    completer: Completer,
    data: Buf,
    oob: Buf,
    kind: NvmeOperationKind,
    command: Passthrough,
    /// Whether the command uses a registered buffer, and whether it must not, since the kernel has refused that.
    registered: bool,
    unregistered: bool,
    /// Retries for a shortage or a transient error, and retries for lack of a path.
    tried: usize,
    tried_for_path: usize,
}

enum NvmeOperationKind {
    Plain,
    Append,
    /// The first zone, the zones found so far, and their final number; `data` is the page.
    Report(ZoneIndex, Vec<ZoneInfo>, u32),
}

/// A refused command: the error and its buffers.
struct RefusedCommand {
    error: DeviceError,
    data: Buf,
    oob: Buf,
}

impl NvmeDrive {
    /// Opens the namespace at `path`, called `name` in sysfs (`ng0n1`), and claims it if it is to be used. To look at
    /// it, read permission suffices: reads, zone reports and Identify commands are allowed without CAP_SYS_ADMIN from
    /// Linux 6.2 on, if the drive has a log page with the effects of its commands.
    pub fn open(ring: &Ring, path: &Path, name: &str, purpose: OpenPurpose) -> Result<NvmeDrive, OpenError> {
        let failed = |problem: String| OpenError::failed(path, problem);
        let file = purpose.open(path, 0)?;
        let claim = purpose.claim(path, &file, &sysfs::twin(name))?;
        let (format, geometry) = identify(&file, name).map_err(failed)?;
        let scratch = geometry.max_transfer_blocks as usize * geometry.oob_bytes as usize;
        let namespace = Rc::new(NvmeNamespace {
            file,
            device: sysfs::class("nvme-generic", name).join("device"),
            format,
            writable: purpose == OpenPurpose::Use,
            drive_id: drive_id(path).keep(&geometry),
            power: match purpose {
                // On a file of its own: the lock is on `file`, and must end with the last command in flight.
                OpenPurpose::Use => File::open(path).map_or_else(|_| PowerCycles::unknown(), watch_power),
                _ => PowerCycles::unknown(),
            },
            geometry,
            ring: ring.clone(),
            slots: Rc::default(),
            in_flight: InFlight::new(ring),
            registered: Cell::new(true),
            no_metadata: Buf::zeroed(scratch),
            metadata_sink: Buf::zeroed(scratch),
            _claim: claim,
        });
        namespace.in_flight.belong_to(namespace.clone());
        Ok(NvmeDrive(namespace))
    }
}

/// Whether the namespace called `name` in sysfs has a ZRWA; `false` if it cannot be identified.
pub fn has_zrwa(path: &Path, name: &str) -> bool {
    OpenPurpose::Look
        .open(path, 0)
        .is_ok_and(|file| identify(&file, name).is_ok_and(|(_, geometry)| geometry.zrwa.is_some()))
}

impl Drop for NvmeDrive {
    fn drop(&mut self) {
        self.0.in_flight.drop_drive();
    }
}

impl ZonedDevice for NvmeDrive {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn drive_id(&self) -> DriveId {
        self.0.drive_id.clone()
    }

    fn power_epoch(&self) -> Option<u64> {
        self.0.power.epoch()
    }

    fn submit(&self, command: Command) -> Completion {
        self.0.submit(command)
    }
}

impl Target for NvmeNamespace {
    fn complete(&self, token: u32, outcome: Outcome) {
        match self.in_flight.take(token) {
            Some(Flight::Operation(operation)) => self.finish(operation, outcome),
            Some(Flight::Rest(operation)) => self.start(operation),
            None => {}
        }
        self.in_flight.let_go();
    }
}

impl NvmeNamespace {
    fn submit(&self, command: Command) -> Completion {
        let changes = !matches!(command, Command::Read { .. } | Command::Report { .. } | Command::Flush);
        if changes && !self.writable {
            return Completion::failed(Status::NamespaceIsWriteProtected);
        }
        let (completer, completion) = self.slots.pair();
        match self.prepare(command, completer) {
            Ok(operation) => self.start(operation),
            Err((completer, refused)) => {
                let RefusedCommand { error, data, oob } = refused;
                completer.complete(Done { data, oob, ..Done::error(error) });
            }
        }
        completion
    }

    /// Translates `command`: the buffers to keep, and the command to send.
    fn prepare(
        &self,
        command: Command,
        completer: Completer,
    ) -> Result<NvmeOperation, (Completer, RefusedCommand)> {
        let prepared = match command {
            Command::Read { lba, data, oob } => self.transfer(TransferOpcode::Read, lba, data, oob, false),
            Command::Write { lba, data, oob, fua } => {
                self.transfer(TransferOpcode::Write, lba, data, oob, fua)
            }
            Command::Append { zone, data, oob, fua } => {
                self.transfer(TransferOpcode::Append, self.geometry.start(zone), data, oob, fua)
            }
            Command::Flush => plain(Ok(Passthrough::flush())),
            Command::Open { zones: Zones::All, zrwa: true } => plain(Err(Status::InvalidField)),
            Command::Open { zones, zrwa: true } => plain(self.manage(Action::OpenWithZrwa, zones)),
            Command::Open { zones, zrwa: false } => plain(self.manage(Action::Open, zones)),
            Command::Close { zones } => plain(self.manage(Action::Close, zones)),
            Command::Finish { zones } => plain(self.manage(Action::Finish, zones)),
            Command::Reset { zones } => plain(self.manage(Action::Reset, zones)),
            // The address of the last logical block of `last`.
            Command::FlushZrwa { last } => plain(
                self.lba(Lba(last.0.saturating_add(1)))
                    .map(|end| Passthrough::manage(Action::FlushZrwa, Some(end - 1))),
            ),
            Command::Report { first, count } => self.report(first, count),
        };
        match prepared {
            Ok((data, oob, kind, command)) => {
                let (registered, unregistered, tried, tried_for_path) = (false, false, 0, 0);
                Ok(NvmeOperation {
                    completer,
                    data,
                    oob,
                    kind,
                    command,
                    registered,
                    unregistered,
                    tried,
                    tried_for_path,
                })
            }
            Err(refused) => Err((completer, refused)),
        }
    }

    fn transfer(
        &self,
        opcode: TransferOpcode,
        lba: Lba,
        mut data: Buf,
        mut oob: Buf,
        fua: bool,
    ) -> PreparedCommand {
        let blocks = data.blocks();
        let most = match opcode {
            TransferOpcode::Append => self.geometry.max_append_blocks,
            _ => self.geometry.max_transfer_blocks,
        };
        let metadata = blocks as usize * self.geometry.oob_bytes as usize;
        let whole = data.len().is_multiple_of(BLOCK) && (oob.is_empty() || oob.len() == metadata);
        // A read needs exclusive buffers.
        let own =
            !matches!(opcode, TransferOpcode::Read) || data.as_mut().is_some() && oob.as_mut().is_some();
        let error = match self.lba(lba) {
            Ok(lba) if whole && own && (1..=most as u64).contains(&blocks) => {
                let count = blocks as u32 * self.format.lbas_per_block as u32;
                let mut command = Passthrough::transfer(opcode, lba, count, fua);
                command.data = (data.as_ptr() as u64, data.len() as u32);
                if metadata > 0 {
                    // Without a buffer the drive would access metadata at address 0.
                    let buffer = match (&oob, opcode) {
                        (oob, _) if !oob.is_empty() => oob,
                        (_, TransferOpcode::Read) => &self.metadata_sink,
                        _ => &self.no_metadata,
                    };
                    command.metadata = (buffer.as_ptr() as u64, metadata as u32);
                }
                let kind = if matches!(opcode, TransferOpcode::Append) {
                    NvmeOperationKind::Append
                } else {
                    NvmeOperationKind::Plain
                };
                return Ok((data, oob, kind, command));
            }
            Ok(_) => Status::InvalidField,
            Err(status) => status,
        };
        Err(RefusedCommand { error: error.into(), data, oob })
    }

    fn manage(&self, action: Action, zones: Zones) -> Result<Passthrough, Status> {
        let start = match zones {
            Zones::One(zone) => Some(self.lba(self.geometry.start(zone))?),
            Zones::All => None,
        };
        let timeout_ms = if start.is_none() { ALL_ZONES_TIMEOUT_MS } else { TIMEOUT_MS };
        Ok(Passthrough { timeout_ms, ..Passthrough::manage(action, start) })
    }

    fn report(&self, first: ZoneIndex, count: u32) -> PreparedCommand {
        if first.0 >= self.geometry.zones {
            return plain(Err(Status::LbaOutOfRange));
        }
        let count = count.min(self.geometry.zones - first.0);
        let most = REPORT_BYTES.min(self.geometry.max_transfer_blocks as usize * BLOCK);
        let bytes = ((count as usize + 1) * DESCRIPTOR).next_multiple_of(BLOCK).min(most);
        let page = Buf::zeroed(bytes);
        let command = self.report_command(first, &page);
        Ok((
            page,
            Buf::default(),
            NvmeOperationKind::Report(first, Vec::with_capacity(count as usize), count),
            command,
        ))
    }

    fn report_command(&self, first: ZoneIndex, page: &Buf) -> Passthrough {
        let start = self.geometry.start(first).0 * self.format.lbas_per_block;
        let mut command = Passthrough::report(start, page.len());
        command.data = (page.as_ptr() as u64, page.len() as u32);
        command
    }

    /// The address in logical blocks of one of our blocks.
    fn lba(&self, lba: Lba) -> Result<u64, Status> {
        lba.0.checked_mul(self.format.lbas_per_block).ok_or(Status::LbaOutOfRange)
    }

    fn start(&self, mut operation: NvmeOperation) {
        let command = &mut operation.command;
        command.nsid = self.format.nsid;
        if command.timeout_ms == 0 {
            command.timeout_ms = TIMEOUT_MS;
        }
        let fixed = self
            .ring
            .fixed(command.data.0, command.data.1)
            .filter(|_| self.registered.get() && !operation.unregistered);
        operation.registered = fixed.is_some();
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), URING_IO_COMMAND)
            .cmd(operation.command.encode())
            .buf_index(fixed)
            .build();
        // SAFETY: the buffers are those of the operation, or the metadata scratch of the drive. The buffer of a read is
        // exclusive.
        if let Err((operation, error)) = unsafe { self.in_flight.start(operation, entry) } {
            let result = -error.raw_os_error().unwrap_or(libc::EIO);
            self.finish(operation, Outcome { result, extra: 0, more: false });
        }
    }

    fn finish(&self, mut operation: NvmeOperation, outcome: Outcome) {
        if outcome.result == NO_PATH && operation.registered {
            operation.unregistered = true;
            return self.start(operation);
        }
        let pause = match outcome.result {
            NO_PATH if self.lacks_path() => {
                operation.tried_for_path += 1;
                shortage::pause_for_path(operation.tried_for_path - 1)
            }
            // An append may have written blocks at an unknown place, so it is not repeated.
            status if wire::is_transient(status) && !matches!(operation.kind, NvmeOperationKind::Append) => {
                shortage::pause(-libc::EAGAIN, operation.tried)
            }
            result => shortage::pause(result, operation.tried),
        };
        if let Some(pause) = pause {
            operation.tried += (outcome.result != NO_PATH) as usize;
            operation.unregistered = false;
            match self.in_flight.rest(operation, pause) {
                Ok(()) => return,
                Err(back) => operation = back,
            }
        }
        if operation.unregistered && outcome.result != NO_PATH {
            self.registered.set(false);
        }
        let NvmeOperation { completer, data, oob, kind, .. } = operation;
        let result = self.judge(outcome.result);
        let mut done = Done { result, data, oob, ..Done::ok() };
        match kind {
            NvmeOperationKind::Append if result.is_ok() => {
                done.lba = Lba(outcome.extra / self.format.lbas_per_block)
            }
            NvmeOperationKind::Report(first, mut zones, count) if result.is_ok() => {
                let page = std::mem::take(&mut done.data);
                let next = ZoneIndex(first.0 + zones.len() as u32);
                let found = wire::parse_report(&page, next, &self.format, &self.geometry).unwrap_or_default();
                zones.extend(found.iter().take(count as usize - zones.len()));
                if zones.len() < count as usize && !found.is_empty() {
                    let next = ZoneIndex(first.0 + zones.len() as u32);
                    let command = self.report_command(next, &page);
                    let kind = NvmeOperationKind::Report(first, zones, count);
                    let oob = Buf::default();
                    let (data, tried) = (page, 0);
                    return self.start(NvmeOperation {
                        completer,
                        data,
                        oob,
                        kind,
                        command,
                        tried,
                        ..operation
                    });
                }
                if zones.len() < count as usize {
                    done.result = Err(DeviceError::Os(libc::EPROTO));
                }
                done.zones = zones;
            }
            _ => {}
        }
        completer.complete(done);
    }

    /// Translates the result of a command.
    fn judge(&self, result: i32) -> Result<(), DeviceError> {
        /// Command Abort Requested: a command that timed out and was aborted by the kernel.
        const ABORTED: i32 = 0x007;
        /// Host Pathing Error and Command Aborted By Host, which the kernel itself generates.
        const HOST_PATH: i32 = 0x370;
        const HOST_ABORTED: i32 = 0x371;
        Err(match result {
            0 => return Ok(()),
            status if status > 0 => match status & 0x7ff {
                ABORTED => DeviceError::Timeout,
                HOST_PATH | HOST_ABORTED => self.cancelled(),
                _ => wire::error_of_status(status),
            },
            errno => match -errno {
                libc::EINTR => self.cancelled(),
                libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN => DeviceError::Gone,
                libc::EINVAL if !self.device.exists() => DeviceError::Gone,
                errno => DeviceError::Os(errno),
            },
        })
    }

    /// Whether a command may have been refused for lack of a path. While the kernel resets the only controller of a
    /// namespace that several controllers may share, there is none. Other namespaces queue commands meanwhile.
    fn lacks_path(&self) -> bool {
        self.device.exists() && !self.device.join("state").exists()
    }

    /// The reason for which the kernel has cancelled a command: it resets the controller of a drive that does not
    /// respond, or the drive was removed.
    fn cancelled(&self) -> DeviceError {
        match std::fs::read_to_string(self.device.join("state")) {
            Ok(state) if ["live", "resetting", "connecting"].contains(&state.trim()) => DeviceError::Timeout,
            Ok(_) => DeviceError::Gone,
            // A namespace with several controllers has no such file.
            Err(_) if self.device.exists() => DeviceError::Timeout,
            Err(_) => DeviceError::Gone,
        }
    }
}

type PreparedCommand = Result<(Buf, Buf, NvmeOperationKind, Passthrough), RefusedCommand>;

/// A command without buffers.
fn plain(command: Result<Passthrough, Status>) -> PreparedCommand {
    let none = Buf::default;
    match command {
        Ok(command) => Ok((none(), none(), NvmeOperationKind::Plain, command)),
        Err(status) => Err(RefusedCommand { error: status.into(), data: none(), oob: none() }),
    }
}

/// Identifies a namespace.
fn identify(file: &File, name: &str) -> Result<(Format, Geometry), String> {
    let nsid = namespace_id(file).map_err(|e| format!("does not report its namespace ID: {e}"))?;
    let page = |page: Identify| -> Result<[u8; PAGE], String> {
        let mut bytes = [0; PAGE];
        run(file, ADMIN_COMMAND, Passthrough::identify(page, nsid), &mut bytes)
            .map_err(|error| format!("cannot be identified as a zoned namespace: {error}"))?;
        Ok(bytes)
    };
    let pages = Pages {
        namespace: page(Identify::Namespace)?,
        controller: page(Identify::Controller)?,
        zoned_namespace: page(Identify::ZonedNamespace)?,
        zoned_controller: page(Identify::ZonedController)?,
    };
    let (format, mut geometry) = pages.decode(nsid, sysfs::most_bytes(&sysfs::twin(name)))?;
    geometry.zone_capacity_blocks = zone_capacity(file, &format, &geometry)?;
    Ok((format, geometry))
}

/// Monitors the power cycles of the drive behind `file`.
fn watch_power(file: File) -> PowerCycles {
    PowerCycles::watch(move || {
        let mut page = [0; wire::SMART_BYTES];
        run(&file, ADMIN_COMMAND, Passthrough::smart(), &mut page).ok()?;
        power::parse(&page)
    })
}

/// The capacity of the smallest zone.
fn zone_capacity(file: &File, format: &Format, geometry: &Geometry) -> Result<u64, String> {
    let mut page = vec![0; REPORT_BYTES.min(geometry.max_transfer_blocks as usize * BLOCK)];
    let (mut next, mut least) = (ZoneIndex(0), geometry.zone_size_blocks);
    while next.0 < geometry.zones {
        let start = geometry.start(next).0 * format.lbas_per_block;
        let command = Passthrough { nsid: format.nsid, ..Passthrough::report(start, page.len()) };
        run(file, IO_COMMAND, command, &mut page).map_err(|e| format!("gives no zone report: {e}"))?;
        let zones = wire::parse_report(&page, next, format, geometry).unwrap_or_default();
        if zones.is_empty() {
            return Err("returns an invalid zone report".into());
        }
        next.0 += zones.len() as u32;
        // Worn zones may have no capacity left.
        let worn = [ZoneState::ReadOnly, ZoneState::Offline];
        let capacities = zones.iter().filter(|zone| !worn.contains(&zone.state));
        least = capacities.map(|zone| zone.capacity_blocks).fold(least, u64::min);
    }
    if least == 0 { Err("has zones without capacity".into()) } else { Ok(least) }
}

fn namespace_id(file: &File) -> io::Result<u32> {
    // SAFETY: the call takes no argument.
    match unsafe { libc::ioctl(file.as_raw_fd(), NAMESPACE_ID) } {
        id if id > 0 => Ok(id as u32),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Executes one command that fills `bytes`, and waits for it.
fn run(file: &File, call: libc::Ioctl, mut command: Passthrough, bytes: &mut [u8]) -> Result<(), String> {
    command.data = (bytes.as_mut_ptr() as u64, bytes.len() as u32);
    command.timeout_ms = IDENTIFY_TIMEOUT_MS;
    let mut raw = command.encode();
    // SAFETY: `raw` has the 72 bytes of the kernel's structure. Its only address is that of `bytes`; both outlive the
    // call.
    match unsafe { libc::ioctl(file.as_raw_fd(), call, raw.as_mut_ptr()) } {
        0 => Ok(()),
        status if status > 0 => Err(wire::error_of_status(status).to_string()),
        _ => Err(io::Error::last_os_error().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{device::Zrwa, runtime::Runtime};
    use tempfile::TempDir;

    /// The sysfs directory of a drive with one controller.
    fn sysfs_of_one() -> TempDir {
        let device = tempfile::tempdir().unwrap();
        std::fs::write(device.path().join("state"), "live\n").unwrap();
        device
    }

    /// A namespace with commands that go to an ordinary file, which refuses them.
    fn namespace(ring: &Ring, sysfs: &TempDir) -> Rc<NvmeNamespace> {
        namespace_for(ring, sysfs, OpenPurpose::Use)
    }

    fn namespace_for(ring: &Ring, sysfs: &TempDir, purpose: OpenPurpose) -> Rc<NvmeNamespace> {
        let geometry = Geometry {
            zones: 4,
            zone_size_blocks: 64,
            zone_capacity_blocks: 64,
            max_open: 0,
            max_active: 0,
            zrwa: Some(Zrwa { size_blocks: 16, granularity_blocks: 4, max_zones: 4 }),
            oob_bytes: 0,
            max_transfer_blocks: 16,
            max_append_blocks: 16,
            volatile_cache: false,
        };
        let file = tempfile::tempfile().unwrap();
        let namespace = Rc::new(NvmeNamespace {
            file,
            device: sysfs.path().to_path_buf(),
            format: Format { nsid: 1, lbas_per_block: 1, metadata_bytes: 0 },
            writable: purpose == OpenPurpose::Use,
            drive_id: DriveId::default(),
            power: PowerCycles::unknown(),
            geometry,
            ring: ring.clone(),
            slots: Rc::default(),
            in_flight: InFlight::new(ring),
            registered: Cell::new(true),
            no_metadata: Buf::default(),
            metadata_sink: Buf::default(),
            _claim: DriveClaim::none(),
        });
        namespace.in_flight.belong_to(namespace.clone());
        namespace
    }

    #[test]
    fn nvme_retries_without_registered_buffer_after_einval() {
        let Ok(ring) = Ring::new() else { return };
        let Some(arena) = ring.arena() else { return };
        let sysfs = sysfs_of_one();
        let namespace = namespace(&ring, &sysfs);
        let read = || {
            let data = arena.lend(BLOCK).unwrap();
            Command::Read { lba: Lba(0), data, oob: Buf::default() }
        };
        let (first, second) = (namespace.submit(read()), namespace.submit(read()));
        // The kernel refuses both before they reach the drive; the first is started again.
        let refusal = Outcome { result: -libc::EINVAL, extra: 0, more: false };
        namespace.complete(0, refusal);
        namespace.complete(1, refusal);
        assert!(namespace.registered.get(), "the cause of the failure is not known yet");
        let runtime = Runtime::new();
        for completion in [first, second] {
            let done = runtime.block_on(completion, || ring.wait().unwrap()).unwrap();
            assert!(done.result.is_err_and(|error| error != DeviceError::Os(libc::EINVAL)));
            assert_eq!(done.data.len(), BLOCK);
        }
        assert!(!namespace.registered.get());
        while ring.wait().unwrap() {}

        // A command that was refused without a registered buffer is not repeated.
        let third = namespace.submit(read());
        namespace.complete(0, refusal);
        namespace.complete(1, refusal);
        let done = runtime.block_on(third, || false).unwrap();
        assert_eq!(done.result, Err(DeviceError::Os(libc::EINVAL)));
        while ring.wait().unwrap() {}
    }

    /// The results are made up; the ring is not used.
    #[test]
    fn nvme_retries_shortages_and_transient_errors_boundedly() {
        let Ok(ring) = Ring::new() else { return };
        let sysfs = sysfs_of_one();
        let namespace = namespace(&ring, &sysfs);
        let runtime = Runtime::new();
        let shortage = |errno: i32| namespace.complete(0, Outcome { result: -errno, extra: 0, more: false });
        let read = || namespace.submit(Command::read(Lba(0), Buf::zeroed(BLOCK)));
        for errno in [libc::ENOMEM, libc::EAGAIN, libc::EBUSY] {
            let mut completion = read();
            for _ in 0..5 {
                shortage(errno);
                // The operation waits for its retry.
                assert!(runtime.block_on(&mut completion, || false).is_none());
                shortage(libc::ETIME);
                assert!(runtime.block_on(&mut completion, || false).is_none());
            }
            shortage(0);
            let done = runtime.block_on(completion, || false).unwrap();
            assert_eq!((done.result, done.data.len()), (Ok(()), BLOCK));

            let mut completion = read();
            let tries = (1..100).find(|_| {
                shortage(errno);
                if runtime.block_on(&mut completion, || false).is_some() {
                    return true;
                }
                shortage(libc::ETIME);
                false
            });
            assert_eq!(tries, Some(13), "the first try and one after each pause");
        }
        // Transient errors of the drive are retried too, but not for appends, which may have written at an unknown
        // place.
        let result = |result: i32| namespace.complete(0, Outcome { result, extra: 0, more: false });
        const TRANSIENT: [i32; 3] = [0x021, 0x1822, 0x082];
        for status in TRANSIENT {
            let mut completion = read();
            result(status);
            assert!(runtime.block_on(&mut completion, || false).is_none());
            result(-libc::ETIME);
            result(status | 0x4000);
            assert!(runtime.block_on(completion, || false).unwrap().result.is_err());
            let (zone, data, oob) = (ZoneIndex(0), Buf::zeroed(BLOCK), Buf::default());
            let append = namespace.submit(Command::Append { zone, data, oob, fua: false });
            result(status);
            assert!(runtime.block_on(append, || false).unwrap().result.is_err());
        }
        // A cancelled command may have been executed, so it is not repeated.
        let completion = read();
        shortage(libc::EINTR);
        assert!(runtime.block_on(completion, || false).unwrap().result.is_err());
        while ring.wait().unwrap() {}
    }

    /// The results are made up; the ring is not used.
    #[test]
    fn nvme_waits_for_path_until_drive_is_gone() {
        let Ok(ring) = Ring::new() else { return };
        let sysfs = tempfile::tempdir().unwrap();
        let namespace = namespace(&ring, &sysfs);
        let runtime = Runtime::new();
        let result = |errno: i32| namespace.complete(0, Outcome { result: -errno, extra: 0, more: false });
        let refused = |completion: &mut Completion| {
            result(libc::EINVAL);
            let done = runtime.block_on(&mut *completion, || false);
            if done.is_none() {
                result(libc::ETIME);
            }
            done
        };
        let read = || namespace.submit(Command::read(Lba(0), Buf::zeroed(BLOCK)));
        // The path comes back after a while; if it does not, the command fails with EINVAL in the end.
        let mut completion = read();
        assert!((0..20).all(|_| refused(&mut completion).is_none()));
        // A shortage meanwhile has a retry count of its own.
        result(libc::EAGAIN);
        assert!(runtime.block_on(&mut completion, || false).is_none());
        result(libc::ETIME);
        result(0);
        assert_eq!(runtime.block_on(completion, || false).unwrap().result, Ok(()));
        let mut completion = read();
        let done = (0..100).find_map(|_| refused(&mut completion)).unwrap();
        assert_eq!(done.result, Err(DeviceError::Os(libc::EINVAL)));
        // The drive is removed.
        let mut completion = read();
        assert!(refused(&mut completion).is_none());
        sysfs.close().unwrap();
        assert_eq!(refused(&mut completion).unwrap().result, Err(DeviceError::Gone));
        while ring.wait().unwrap() {}
    }

    /// The results are made up; the ring is not used.
    #[test]
    fn nvme_report_of_other_zones_is_an_error() {
        let Ok(ring) = Ring::new() else { return };
        let sysfs = sysfs_of_one();
        let namespace = namespace(&ring, &sysfs);
        let runtime = Runtime::new();
        let report = |starts: [u64; 2]| {
            let (completer, completion) = namespace.slots.pair();
            let (data, oob, kind, command) = namespace.report(ZoneIndex(1), 2).map_err(|r| r.error).unwrap();
            let mut page = vec![0; data.len()];
            page[0] = 2;
            for (zone, start) in page[DESCRIPTOR..].chunks_mut(DESCRIPTOR).zip(starts) {
                (zone[1], zone[8]) = (1 << 4, 64);
                zone[16..24].copy_from_slice(&(start * 64).to_le_bytes());
            }
            let operation = NvmeOperation {
                completer,
                data: Buf::copy_of(&page),
                oob,
                kind,
                command,
                registered: false,
                unregistered: false,
                tried: 0,
                tried_for_path: 0,
            };
            namespace.finish(operation, Outcome { result: 0, extra: 0, more: false });
            let done = runtime.block_on(completion, || false).unwrap();
            done.result.map(|()| done.zones.iter().map(|info| info.zone.0).collect::<Vec<_>>())
        };
        assert_eq!(report([1, 2]), Ok(vec![1, 2]));
        for wrong in [[2, 3], [1, 3], [2, 1], [1, 1], [0, 1]] {
            assert_eq!(report(wrong), Err(DeviceError::Os(libc::EPROTO)), "{wrong:?}");
        }
    }

    #[test]
    fn nvme_opened_to_read_refuses_changes() {
        let Ok(ring) = Ring::new() else { return };
        let sysfs = sysfs_of_one();
        let namespace = namespace_for(&ring, &sysfs, OpenPurpose::Look);
        let (one, data) = (Zones::One(ZoneIndex(0)), Buf::zeroed(BLOCK));
        for command in [
            Command::write(Lba(0), data.clone(), false),
            Command::append(ZoneIndex(0), data, false),
            Command::Open { zones: one, zrwa: true },
            Command::Close { zones: Zones::All },
            Command::Finish { zones: one },
            Command::Reset { zones: Zones::All },
            Command::FlushZrwa { last: Lba(3) },
        ] {
            let refused = namespace.submit(command).take().map(|done| done.result);
            assert_eq!(refused, Some(Err(Status::NamespaceIsWriteProtected.into())));
        }
    }

    #[test]
    fn nvme_reset_of_all_zones_has_longer_timeout() {
        let Ok(ring) = Ring::new() else { return };
        let sysfs = sysfs_of_one();
        let namespace = namespace(&ring, &sysfs);
        let timeout = |zones| namespace.manage(Action::Reset, zones).unwrap().timeout_ms;
        assert!(timeout(Zones::All) > timeout(Zones::One(ZoneIndex(1))));
    }
}
