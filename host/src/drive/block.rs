//! Linux zoned block devices: SMR disks, NVMe namespaces without a ZRWA, null_blk.
//!
//! Reads, writes and flushes go through the ring, with direct I/O. The kernel and the drive may reorder writes, so each
//! zone has one in flight at a time. Zone management and reports are blocking ioctls, which run on threads of their
//! own. There is neither ZRWA nor append. Conventional zones at the start, as disks have them, are skipped: the drive
//! begins behind them. After an unspecific error the kernel is asked for the cause: the zone may be worn, or the disk
//! gone.
#![allow(unsafe_code)]

use super::{
    claim::{DriveClaim, OpenPurpose},
    drive_id::drive_id,
    error::OpenError,
    flight::{Flight, InFlight},
    shortage, sysfs,
};
use crate::reactor::{
    Reactor,
    ring::{Outcome, Target},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{
        Command, Completer, Completion, DeviceError, Done, DriveId, Geometry, Slots, Status, ZonedDevice,
        Zones,
    },
    zone::{Lba, MOST_ZONES, ZoneIndex, ZoneInfo, ZoneState},
};
use io_uring::{
    opcode,
    squeue::Entry,
    types::{Fd, FsyncFlags},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    fs::File,
    io,
    os::fd::AsRawFd,
    path::Path,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

/// The unit of the kernel's addresses, in bytes.
const SECTOR: u64 = 512;
const BLOCK_SECTORS: u64 = BLOCK as u64 / SECTOR;
/// Bytes of `struct blk_zone`, and of `struct blk_zone_report` before them.
const DESCRIPTOR: usize = 64;
const REPORT_HEADER: usize = 16;
/// Most zones of one report.
const REPORT_ZONES: usize = 1024;

const REPORT: libc::Ioctl = libc::_IOWR::<[u64; 2]>(0x12, 130);
const RESET: libc::Ioctl = libc::_IOW::<[u64; 2]>(0x12, 131);
const ZONE_SECTORS: libc::Ioctl = libc::_IOR::<u32>(0x12, 132);
const ZONE_COUNT: libc::Ioctl = libc::_IOR::<u32>(0x12, 133);
const OPEN: libc::Ioctl = libc::_IOW::<[u64; 2]>(0x12, 134);
const CLOSE: libc::Ioctl = libc::_IOW::<[u64; 2]>(0x12, 135);
const FINISH: libc::Ioctl = libc::_IOW::<[u64; 2]>(0x12, 136);
const BYTES: libc::Ioctl = libc::_IOR::<usize>(0x12, 114);

/// Time limit for determining the cause of an error.
const PATIENCE: Duration = Duration::from_secs(2);

/// A zoned block device.
pub struct BlockDrive(Rc<BlockDriveInner>);

struct BlockDriveInner {
    /// Shared with the threads that manage zones.
    file: Arc<File>,
    geometry: Geometry,
    drive_id: DriveId,
    /// Number of conventional zones that are skipped.
    skipped_zones: u32,
    reactor: Reactor,
    slots: Rc<Slots>,
    in_flight: InFlight<BlockOperation>,
    /// Zones with a write in flight, and the writes queued behind it.
    writing: RefCell<BTreeMap<u32, VecDeque<BlockOperation>>>,
    _claim: DriveClaim,
}

/// A read, write or flush.
struct BlockOperation {
    completer: Completer,
    kind: BlockOperationKind,
    lba: Lba,
    data: Buf,
    oob: Buf,
    /// Retries for a shortage of the host.
    tried: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockOperationKind {
    Read,
    Write { fua: bool },
    Flush,
}

impl BlockDrive {
    /// Opens the block device at `path`, called `name` in sysfs, and claims it if it is to be used.
    pub fn open(
        reactor: &Reactor,
        path: &Path,
        name: &str,
        purpose: OpenPurpose,
    ) -> Result<BlockDrive, OpenError> {
        let failed = |problem: String| OpenError::failed(path, problem);
        let file = purpose.open(path, libc::O_DIRECT)?;
        let claim = purpose.claim(path, &file, name)?;
        let (geometry, skipped_zones) = geometry(&file, name).map_err(failed)?;
        let ring = reactor.ring().map_err(|error| failed(format!("cannot be used: {error:#}")))?;
        let device = Rc::new(BlockDriveInner {
            file: Arc::new(file),
            drive_id: drive_id(path).keep(&geometry),
            geometry,
            skipped_zones,
            reactor: reactor.clone(),
            slots: Rc::default(),
            in_flight: InFlight::new(ring),
            writing: RefCell::default(),
            _claim: claim,
        });
        device.in_flight.belong_to(device.clone());
        Ok(BlockDrive(device))
    }
}

impl Drop for BlockDrive {
    fn drop(&mut self) {
        self.0.in_flight.drop_drive();
    }
}

impl ZonedDevice for BlockDrive {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn drive_id(&self) -> DriveId {
        self.0.drive_id.clone()
    }

    fn submit(&self, command: Command) -> Completion {
        let device = &self.0;
        match command {
            Command::Read { lba, data, oob } => device.transfer(BlockOperationKind::Read, lba, data, oob),
            Command::Write { lba, data, oob, fua } => {
                device.transfer(BlockOperationKind::Write { fua }, lba, data, oob)
            }
            Command::Flush => {
                let (completer, completion) = device.slots.pair();
                let (data, oob) = (Buf::default(), Buf::default());
                device.start(BlockOperation {
                    completer,
                    kind: BlockOperationKind::Flush,
                    lba: Lba(0),
                    data,
                    oob,
                    tried: 0,
                });
                completion
            }
            Command::Append { data, oob, .. } => {
                Completion::ready(Done { data, oob, ..Done::error(Status::InvalidOpcode.into()) })
            }
            Command::Open { zrwa: true, .. } | Command::FlushZrwa { .. } => {
                Completion::failed(Status::InvalidZoneOperation)
            }
            Command::Open { zones, zrwa: false } => device.manage(OPEN, zones, |s| s == ZoneState::Closed),
            Command::Close { zones } => device.manage(CLOSE, zones, ZoneState::is_open),
            Command::Finish { zones } => device.manage(FINISH, zones, ZoneState::is_active),
            Command::Reset { zones } => device.manage(RESET, zones, ZoneState::is_begun),
            Command::Report { first, count } => device.report(first, count),
        }
    }
}

impl Target for BlockDriveInner {
    fn complete(&self, token: u32, outcome: Outcome) {
        match self.in_flight.take(token) {
            Some(Flight::Operation(operation)) => self.finish(operation, outcome.result),
            Some(Flight::Rest(operation)) => self.start(operation),
            None => {}
        }
        self.in_flight.let_go();
    }
}

impl BlockDriveInner {
    fn transfer(&self, kind: BlockOperationKind, lba: Lba, mut data: Buf, oob: Buf) -> Completion {
        let blocks = data.blocks();
        let whole = data.len().is_multiple_of(BLOCK) && oob.is_empty();
        let own = kind != BlockOperationKind::Read || data.as_mut().is_some();
        let size = self.geometry.zones as u64 * self.geometry.zone_size_blocks;
        let error = if !whole || !own || !(1..=self.geometry.max_transfer_blocks as u64).contains(&blocks) {
            Status::InvalidField
        } else if lba.0 >= size || blocks > size - lba.0 {
            Status::LbaOutOfRange
        } else {
            let (completer, completion) = self.slots.pair();
            self.queue(BlockOperation { completer, kind, lba, data, oob, tried: 0 });
            return completion;
        };
        Completion::ready(Done { data, oob, ..Done::error(error.into()) })
    }

    /// Starts an operation, or queues it behind the writes of its zone.
    fn queue(&self, operation: BlockOperation) {
        if let BlockOperationKind::Write { .. } = operation.kind {
            let zone = self.geometry.locate(operation.lba).0.0;
            let mut writing = self.writing.borrow_mut();
            if let Some(waiting) = writing.get_mut(&zone) {
                return waiting.push_back(operation);
            }
            writing.insert(zone, VecDeque::new());
        }
        self.start(operation);
    }

    fn start(&self, mut operation: BlockOperation) {
        let fd = Fd(self.file.as_raw_fd());
        let (address, length) = (operation.data.as_ptr(), operation.data.len() as u32);
        let skipped = self.skipped_zones as u64 * self.geometry.zone_size_blocks;
        let offset = (skipped + operation.lba.0) * BLOCK as u64;
        let entry: Entry = match operation.kind {
            BlockOperationKind::Read => {
                // The buffer is exclusive: others were refused before. The kernel refuses null.
                let target = operation.data.as_mut().map_or(std::ptr::null_mut(), <[u8]>::as_mut_ptr);
                opcode::Read::new(fd, target, length).offset(offset).build()
            }
            BlockOperationKind::Write { fua } => {
                let flags = if fua { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, address, length).offset(offset).rw_flags(flags).build()
            }
            BlockOperationKind::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        // SAFETY: the buffer is that of the operation. The buffer of a read is exclusive.
        if let Err((operation, error)) = unsafe { self.in_flight.start(operation, entry.into()) } {
            self.finish(operation, -error.raw_os_error().unwrap_or(libc::EIO));
        }
    }

    fn finish(&self, mut operation: BlockOperation, result: i32) {
        if let Some(pause) = shortage::pause(result, operation.tried) {
            operation.tried += 1;
            match self.in_flight.rest(operation, pause) {
                Ok(()) => return,
                Err(back) => operation = back,
            }
        }
        let BlockOperation { completer, kind, lba, data, oob, .. } = operation;
        let result = match result {
            errno if errno < 0 => Err(error_of(-errno)),
            bytes if bytes as usize == data.len() => Ok(()),
            _ => Err(DeviceError::Os(libc::EIO)),
        };
        if let BlockOperationKind::Write { .. } = kind {
            let zone = self.geometry.locate(lba).0.0;
            let next = {
                let mut writing = self.writing.borrow_mut();
                let next = writing.get_mut(&zone).and_then(VecDeque::pop_front);
                if next.is_none() {
                    writing.remove(&zone);
                }
                next
            };
            if let Some(next) = next {
                self.start(next);
            }
        }
        let Err(error @ DeviceError::Os(_)) = result else {
            return completer.complete(Done { result, data, oob, ..Done::ok() });
        };
        let zones = self.zones();
        let zone = (kind != BlockOperationKind::Flush).then(|| self.geometry.locate(lba).0);
        let reactor = self.reactor.clone();
        self.reactor.runtime().spawn(async move {
            let cause = reactor.offload(move || zones.cause(error, zone, kind == BlockOperationKind::Read));
            // If the disk does not respond, the error is reported as it is.
            let cause = reactor.within(PATIENCE, cause).await;
            let error = cause.and_then(Result::ok).flatten().unwrap_or(error);
            completer.complete(Done { data, oob, ..Done::error(error) });
        });
    }

    /// Access to the zones for a thread that calls the kernel.
    fn zones(&self) -> KernelZones {
        let size = self.geometry.zone_size_blocks * BLOCK_SECTORS;
        KernelZones { file: self.file.clone(), size, skipped_zones: self.skipped_zones }
    }

    /// Issues `call` for one zone, or for all zones in a state that satisfies `selected`.
    fn manage(&self, call: libc::Ioctl, zones: Zones, selected: fn(ZoneState) -> bool) -> Completion {
        let (count, kernel) = (self.geometry.zones, self.zones());
        self.offload(move || {
            let zones: Vec<ZoneIndex> = match zones {
                Zones::One(zone) if zone.0 >= count => return Err(Status::LbaOutOfRange.into()),
                Zones::One(zone) => vec![zone],
                Zones::All => {
                    let zones = kernel.report(ZoneIndex(0), count);
                    let zones = zones.map_err(|error| kernel.cause(error, None, false))?;
                    zones.into_iter().filter(|zone| selected(zone.state)).map(|zone| zone.zone).collect()
                }
            };
            for zone in zones {
                let mut range = [(kernel.skipped_zones + zone.0) as u64 * kernel.size, kernel.size];
                // SAFETY: the call reads a `struct blk_zone_range`, two numbers.
                let done = check(unsafe { libc::ioctl(kernel.file.as_raw_fd(), call, range.as_mut_ptr()) });
                done.map_err(|error| kernel.cause(error, Some(zone), false))?;
            }
            Ok(Vec::new())
        })
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Completion {
        let zones = self.geometry.zones;
        if first.0 >= zones {
            return Completion::failed(Status::LbaOutOfRange);
        }
        let (kernel, count) = (self.zones(), count.min(zones - first.0));
        self.offload(move || kernel.report(first, count).map_err(|error| kernel.cause(error, None, false)))
    }

    /// Runs `work` on a thread; repeats it if the host is short of a resource.
    fn offload(
        &self,
        work: impl Fn() -> Result<Vec<ZoneInfo>, DeviceError> + Clone + Send + 'static,
    ) -> Completion {
        let (completer, completion) = self.slots.pair();
        let reactor = self.reactor.clone();
        self.reactor.runtime().spawn(async move {
            let mut tried = 0;
            let result = loop {
                let result = match reactor.offload(work.clone()).await {
                    Ok(Some(result)) => result,
                    Ok(None) => Err(DeviceError::Os(libc::EIO)),
                    // No thread or socket could be created.
                    Err(_) => Err(DeviceError::Os(libc::EAGAIN)),
                };
                let Err(DeviceError::Os(errno)) = result else { break result };
                let Some(pause) = shortage::pause_of_call(errno, tried) else { break result };
                let Ok(ring) = reactor.ring() else { break result };
                ring.sleep(pause).await;
                tried += 1;
            };
            completer.complete(match result {
                Ok(zones) => Done { zones, ..Done::ok() },
                Err(error) => Done::error(error),
            });
        });
        completion
    }
}

fn check(result: libc::c_int) -> Result<(), DeviceError> {
    if result >= 0 {
        return Ok(());
    }
    Err(error_of(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)))
}

/// Translates an errno of the block layer.
fn error_of(errno: i32) -> DeviceError {
    match errno {
        libc::ENODEV | libc::ENXIO => DeviceError::Gone,
        libc::ETIMEDOUT => DeviceError::Timeout,
        libc::ENODATA => Status::UnrecoveredReadError.into(),
        libc::ETOOMANYREFS => Status::TooManyOpenZones.into(),
        libc::EOVERFLOW => Status::TooManyActiveZones.into(),
        errno => DeviceError::Os(errno),
    }
}

/// Determines the geometry of a block device, and the number of conventional zones at its start.
fn geometry(file: &File, name: &str) -> Result<(Geometry, u32), String> {
    let number = |call, what: &str| {
        let mut number: u32 = 0;
        // SAFETY: the call writes one number.
        let result = check(unsafe { libc::ioctl(file.as_raw_fd(), call, &raw mut number) });
        result.map(|()| number).map_err(|error| format!("does not report {what}: {error}"))
    };
    let zone_sectors = number(ZONE_SECTORS, "the size of its zones")? as u64;
    let mut zones = number(ZONE_COUNT, "the number of its zones")?;
    if !(1..=MOST_ZONES).contains(&zones) || zone_sectors == 0 || !zone_sectors.is_multiple_of(BLOCK_SECTORS)
    {
        return Err(format!("has {zones} zones of {zone_sectors} sectors, which is not supported"));
    }
    let attribute =
        |name_of: &str| sysfs::attribute(&sysfs::class("block", name).join("queue").join(name_of));
    let limit = |name: &str| attribute(name).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    check_blocks(limit("logical_block_size"), limit("physical_block_size"))?;
    let mut capacity = zone_sectors / BLOCK_SECTORS;
    let (mut next, mut skipped_zones) = (0, 0);
    while next < zones {
        let count = (zones - next).min(REPORT_ZONES as u32);
        let page = report_page(file, next, count as usize, zone_sectors)
            .map_err(|error| format!("gives no zone report: {error}"))?;
        for zone in page.chunks_exact(DESCRIPTOR) {
            // A smaller zone at the end is left out: it would reduce the capacity of all zones.
            if next + 1 == zones && u64_at(zone, 8) < zone_sectors {
                zones -= 1;
                break;
            }
            if zone[24] == CONVENTIONAL && skipped_zones == next {
                (skipped_zones, next) = (next + 1, next + 1);
                continue;
            }
            if zone[24] != SEQUENTIAL_ONLY {
                return Err(format!(
                    "has conventional or sequential-preferred zones (such as zone {next}) behind its first \
                     zones, which is not supported"
                ));
            }
            let worn = [ZoneState::ReadOnly, ZoneState::Offline].map(|state| state as u8);
            if !worn.contains(&zone[25]) {
                capacity = capacity.min(u64_at(zone, 32) / BLOCK_SECTORS);
            }
            next += 1;
        }
    }
    if capacity == 0 || skipped_zones == zones {
        return Err("has no usable sequential zones".into());
    }
    let geometry = Geometry {
        zones: zones - skipped_zones,
        zone_size_blocks: zone_sectors / BLOCK_SECTORS,
        zone_capacity_blocks: capacity,
        max_open: limit("max_open_zones"),
        max_active: limit("max_active_zones"),
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: (sysfs::most_bytes(name) / BLOCK as u64).clamp(1, u32::MAX as u64) as u32,
        max_append_blocks: 0,
        volatile_cache: attribute("write_cache").is_none_or(|cache| cache != "write through"),
    };
    Ok((geometry, skipped_zones))
}

/// Checks that the device writes each block of [`BLOCK`] bytes atomically, on which the engine relies: `logical` or
/// `physical`, its block sizes in bytes, must be that large. The kernel's `atomic_write_unit_max_bytes` is no
/// substitute: it is about writes that request atomicity, and are no larger.
fn check_blocks(logical: u32, physical: u32) -> Result<(), String> {
    if logical as usize > BLOCK {
        return Err(format!("has blocks larger than {BLOCK} bytes, which is not supported"));
    }
    match logical.max(physical) as usize >= BLOCK {
        true => Ok(()),
        false => Err(format!(
            "has blocks of {logical} bytes, and does not guarantee atomic writes of {BLOCK} bytes at a power \
             cut: format it with blocks of {BLOCK} bytes"
        )),
    }
}

/// Zone types: conventional, and sequential write required.
const CONVENTIONAL: u8 = 1;
const SEQUENTIAL_ONLY: u8 = 2;

/// The number at `at` of a structure of the kernel.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(number)
}

/// The descriptors of up to `count` zones from zone `first` on, at least one, of a device with zones of `size` sectors.
fn report_page(file: &File, first: u32, count: usize, size: u64) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; REPORT_HEADER + count * DESCRIPTOR];
    bytes[..8].copy_from_slice(&(first as u64 * size).to_ne_bytes());
    bytes[8..12].copy_from_slice(&(count as u32).to_ne_bytes());
    // SAFETY: the header says how many descriptors there is room for behind it.
    check(unsafe { libc::ioctl(file.as_raw_fd(), REPORT, bytes.as_mut_ptr()) })?;
    let found = u32::from_ne_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
    bytes.truncate(REPORT_HEADER + found.min(count) * DESCRIPTOR);
    bytes.drain(..REPORT_HEADER);
    if is_report(&bytes, first, size) { Ok(bytes) } else { Err(DeviceError::Os(libc::EPROTO)) }
}

/// Whether these are the descriptors of one or more zones of `size` sectors, from zone `first` on without a gap.
fn is_report(descriptors: &[u8], first: u32, size: u64) -> bool {
    let zones = descriptors.chunks_exact(DESCRIPTOR);
    !descriptors.is_empty() && zones.zip(first as u64..).all(|(zone, index)| u64_at(zone, 0) == index * size)
}

/// The zones of a device, for threads that make blocking calls.
#[derive(Clone)]
struct KernelZones {
    file: Arc<File>,
    /// Sectors between the starts of two zones.
    size: u64,
    /// Number of conventional zones that are skipped.
    skipped_zones: u32,
}

impl KernelZones {
    /// Reports `count` zones from `first` on.
    fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneInfo>, DeviceError> {
        let mut zones: Vec<ZoneInfo> = Vec::with_capacity(count as usize);
        while zones.len() < count as usize {
            let next = self.skipped_zones + first.0 + zones.len() as u32;
            let wanted = (count as usize - zones.len()).min(REPORT_ZONES);
            for zone in report_page(&self.file, next, wanted, self.size)?.chunks_exact(DESCRIPTOR) {
                let zone = describe(zone, self.size, self.skipped_zones);
                zones.push(zone.ok_or(DeviceError::Os(libc::EPROTO))?);
            }
        }
        Ok(zones)
    }

    /// The cause of an unspecific error, as the kernel reports it for a worn zone or a disk that is gone.
    fn cause(&self, error: DeviceError, zone: Option<ZoneIndex>, is_read: bool) -> DeviceError {
        let DeviceError::Os(_) = error else { return error };
        let mut bytes: u64 = u64::MAX;
        // SAFETY: the call writes one number.
        if check(unsafe { libc::ioctl(self.file.as_raw_fd(), BYTES, &raw mut bytes) }).is_ok() && bytes == 0 {
            return DeviceError::Gone;
        }
        let state = zone.and_then(|zone| Some(self.report(zone, 1).ok()?.first()?.state));
        match state {
            Some(ZoneState::Offline) => Status::ZoneIsOffline.into(),
            Some(ZoneState::ReadOnly) if !is_read => Status::ZoneIsReadOnly.into(),
            _ => error,
        }
    }
}

/// Parses a `struct blk_zone` of a device with zones of `size` sectors; `None` if it is inconsistent.
fn describe(zone: &[u8], size: u64, skipped_zones: u32) -> Option<ZoneInfo> {
    let (start, wp, capacity) = (u64_at(zone, 0), u64_at(zone, 16), u64_at(zone, 32));
    let state = ZoneState::from_value(zone[25])?;
    let capacity_blocks = capacity / BLOCK_SECTORS;
    let wp_blocks = match state {
        ZoneState::Empty => 0,
        // The write pointer is undefined in these states.
        ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline => capacity_blocks,
        _ => wp.checked_sub(start)? / BLOCK_SECTORS,
    };
    if capacity > size || wp_blocks > capacity_blocks {
        return None;
    }
    let zone = ZoneIndex(u32::try_from(start / size).ok()?.checked_sub(skipped_zones)?);
    Some(ZoneInfo { zone, state, wp_blocks, capacity_blocks, zrwa: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_descriptor_is_converted_to_blocks() {
        let mut zone = [0; DESCRIPTOR];
        for (at, sectors) in [(0, 3 * 65536u64), (8, 65536), (16, 3 * 65536 + 24), (32, 49152)] {
            zone[at..at + 8].copy_from_slice(&sectors.to_ne_bytes());
        }
        (zone[24], zone[25]) = (2, 4);
        let (zone_index, state) = (ZoneIndex(3), ZoneState::Closed);
        let closed = ZoneInfo { zone: zone_index, state, wp_blocks: 3, capacity_blocks: 6144, zrwa: false };
        assert_eq!(describe(&zone, 65536, 0), Some(closed));
        assert_eq!(describe(&zone, 65536, 2), Some(ZoneInfo { zone: ZoneIndex(1), ..closed }));
        zone[25] = 0xe;
        assert_eq!(describe(&zone, 65536, 0).unwrap().wp_blocks, 6144);
        zone[25] = 0;
        assert_eq!(describe(&zone, 65536, 0), None);
    }

    #[test]
    fn zone_report_of_other_zones_is_rejected() {
        let is_one = |starts: &[u64]| {
            let mut zones = vec![0; starts.len() * DESCRIPTOR];
            for (zone, start) in zones.chunks_mut(DESCRIPTOR).zip(starts) {
                zone[..8].copy_from_slice(&(start * 8).to_ne_bytes());
            }
            is_report(&zones, 2, 8)
        };
        assert!(is_one(&[2]) && is_one(&[2, 3]));
        assert!(![&[][..], &[1], &[3], &[2, 4], &[2, 2]].into_iter().any(is_one));
    }

    #[test]
    fn block_device_with_tearable_blocks_is_refused() {
        for (logical, physical) in [(4096, 4096), (512, 4096)] {
            assert_eq!(check_blocks(logical, physical), Ok(()));
        }
        for (logical, physical) in [(512, 512), (512, 2048), (2048, 2048)] {
            assert!(
                check_blocks(logical, physical)
                    .unwrap_err()
                    .contains("does not guarantee atomic writes of 4096 bytes")
            );
        }
        assert!(check_blocks(8192, 8192).unwrap_err().contains("larger"));
    }

    #[test]
    fn zone_descriptor_with_impossible_values_is_rejected() {
        let mut zone = [0; DESCRIPTOR];
        let mut put = |at: usize, sectors: u64| {
            zone[at..at + 8].copy_from_slice(&sectors.to_ne_bytes());
            (zone[24], zone[25]) = (2, 4);
            zone
        };
        put(0, 65536);
        put(32, 49152);
        assert!(describe(&put(16, 65536 + 49152), 65536, 0).is_some());
        assert_eq!(describe(&put(16, 65536 + 49160), 65536, 0), None);
        assert_eq!(describe(&put(16, 65528), 65536, 0), None);
        put(16, 65536);
        assert_eq!(describe(&put(32, 65544), 65536, 0), None);
    }

    #[test]
    fn kernel_errnos_are_mapped_and_ioctl_numbers_match() {
        assert_eq!(error_of(libc::ENODEV), DeviceError::Gone);
        assert_eq!(error_of(libc::EOVERFLOW), Status::TooManyActiveZones.into());
        assert_eq!(error_of(libc::EIO), DeviceError::Os(libc::EIO));
        // The ioctl numbers as other programs print them.
        assert_eq!([REPORT, RESET, FINISH, BYTES], [0xc010_1282, 0x4010_1283, 0x4010_1288, 0x8008_1272]);
    }
}
