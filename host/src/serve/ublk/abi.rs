//! Structures of the kernel's ublk driver as bytes: `linux/ublk_cmd.h` and the zone descriptor of `linux/blkzoned.h`,
//! as of Linux 6.6; the change of a size as of 6.16. All in the byte order of the machine.

use super::number::ServedNumber;
use engine::{
    buf::BLOCK,
    device::{DeviceError, Geometry, Status},
    volume::SectorSize,
    zone::{ZoneInfo, ZoneState},
};

/// Bytes in a sector, the unit of the kernel's block layer.
pub(super) const SECTOR: u64 = 512;

/// Sectors in a block.
pub(super) const SECTORS: u64 = BLOCK as u64 / SECTOR;

/// Most blocks in one request: bounds the memory of requests in flight.
pub(super) const MAX_REQUEST_BLOCKS: u32 = 128;

/// Features that the driver must have. With them it reissues the unanswered requests of a dead process to the next one.
pub(super) const FEATURES: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE | CMD_IOCTL_ENCODE | USER_COPY;
const USER_RECOVERY: u64 = 1 << 3;
const USER_RECOVERY_REISSUE: u64 = 1 << 4;
const CMD_IOCTL_ENCODE: u64 = 1 << 6;
const USER_COPY: u64 = 1 << 7;
/// Required in addition for zoned block devices.
pub(super) const ZONED: u64 = 1 << 8;

/// Used if the driver has it, from Linux 6.16 on: block devices change their size while they are used.
pub(super) const UPDATE_SIZE: u64 = 1 << 10;

/// Commands to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UblkCommand {
    GetDevInfo,
    AddDev,
    DelDev,
    StartDev,
    StopDev,
    SetParams,
    StartUserRecovery,
    EndUserRecovery,
    GetFeatures,
    UpdateSize,
}

impl UblkCommand {
    pub(super) fn code(self) -> u32 {
        let (direction, number) = match self {
            UblkCommand::GetDevInfo => (READ, 0x02),
            UblkCommand::AddDev => (READ | WRITE, 0x04),
            UblkCommand::DelDev => (READ | WRITE, 0x05),
            UblkCommand::StartDev => (READ | WRITE, 0x06),
            UblkCommand::StopDev => (READ | WRITE, 0x07),
            UblkCommand::SetParams => (READ | WRITE, 0x08),
            UblkCommand::StartUserRecovery => (READ | WRITE, 0x10),
            UblkCommand::EndUserRecovery => (READ | WRITE, 0x11),
            UblkCommand::GetFeatures => (READ, 0x13),
            UblkCommand::UpdateSize => (READ | WRITE, 0x15),
        };
        ioctl(direction, number, 32)
    }
}

/// Commands to `/dev/ublkcN`.
pub(super) const FETCH: u32 = ioctl(READ | WRITE, 0x20, 16);
pub(super) const COMMIT_AND_FETCH: u32 = ioctl(READ | WRITE, 0x21, 16);

const WRITE: u32 = 1;
const READ: u32 = 2;

/// The number of an ioctl of type 'u', as `_IOC` composes it.
const fn ioctl(direction: u32, number: u32, argument_bytes: u32) -> u32 {
    direction << 30 | argument_bytes << 16 | (b'u' as u32) << 8 | number
}

/// `struct ublksrv_ctrl_cmd`, in the command area of a large submission entry.
pub(super) fn control_command(device: u32, buffer: u64, buffer_bytes: usize, data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    put(&mut bytes, 0, &device.to_ne_bytes());
    // No command is for a single queue.
    put(&mut bytes, 4, &u16::MAX.to_ne_bytes());
    put(&mut bytes, 6, &(buffer_bytes as u16).to_ne_bytes());
    put(&mut bytes, 8, &buffer.to_ne_bytes());
    put(&mut bytes, 16, &data.to_ne_bytes());
    bytes
}

/// `struct ublksrv_io_cmd`. `lba` is the sector of an append, and 0 otherwise.
pub(super) fn io_command((queue, tag): (u16, u16), result: i32, lba: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    put(&mut bytes, 0, &queue.to_ne_bytes());
    put(&mut bytes, 2, &tag.to_ne_bytes());
    put(&mut bytes, 4, &result.to_ne_bytes());
    put(&mut bytes, 8, &lba.to_ne_bytes());
    bytes
}

/// Bytes of `struct ublksrv_ctrl_dev_info`.
pub(super) const INFO_BYTES: usize = 64;

/// The fields of `struct ublksrv_ctrl_dev_info` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub max_request_bytes: u32,
    pub device: u32,
    pub flags: u64,
    /// Private data of the server, which the driver keeps with the device.
    pub tag: u64,
}

/// [`Info::state`] of a device without a block device: not started yet, or stopped.
pub(super) const DEAD: u16 = 0;
/// [`Info::state`] of a device that has lost its process: the kernel queues requests.
pub(super) const QUIESCED: u16 = 2;

impl Info {
    pub(super) fn to_bytes(self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 4, &self.state.to_ne_bytes());
        put(&mut bytes, 8, &self.max_request_bytes.to_ne_bytes());
        put(&mut bytes, 12, &self.device.to_ne_bytes());
        put(&mut bytes, 24, &self.flags.to_ne_bytes());
        put(&mut bytes, 32, &self.tag.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Info {
        Info {
            queues: u16::from_ne_bytes(get(bytes, 0)),
            depth: u16::from_ne_bytes(get(bytes, 2)),
            state: u16::from_ne_bytes(get(bytes, 4)),
            max_request_bytes: u32::from_ne_bytes(get(bytes, 8)),
            device: u32::from_ne_bytes(get(bytes, 12)),
            flags: u64::from_ne_bytes(get(bytes, 24)),
            tag: u64::from_ne_bytes(get(bytes, 32)),
        }
    }
}

/// Bytes of `struct ublk_params` up to the end of the zoned parameters; the rest is not set.
pub(super) const PARAMS_BYTES: usize = 108;

/// Properties of a block device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// UUID of its array, and its number there: they identify the device for a later process, see
    /// [`find`](super::find).
    pub array: [u8; 16],
    pub number: ServedNumber,
    /// Minimum I/O size in bytes: a chunk, which is a power of two.
    pub chunk_bytes: u32,
    /// Optimal I/O size in bytes: a stripe. Ignored if it is no power of two.
    pub stripe_bytes: u32,
    pub read_only: bool,
}

/// `struct ublk_params` for a device of this geometry.
pub(super) fn params(geometry: &Geometry, options: &Options) -> [u8; PARAMS_BYTES] {
    const BASIC: u32 = 1 << 0;
    const TYPE_ZONED: u32 = 1 << 3;
    const READ_ONLY: u32 = 1 << 0;
    const VOLATILE_CACHE: u32 = 1 << 2;
    const FUA: u32 = 1 << 3;
    let shift = |bytes: u32| (bytes.max(BLOCK as u32).ilog2() as u8).to_ne_bytes();
    let block = shift(BLOCK as u32);
    let sectors = |blocks: u32| (blocks.min(MAX_REQUEST_BLOCKS) * SECTORS as u32).to_ne_bytes();
    let zone_sectors = geometry.zone_size_blocks * SECTORS;
    let Options { chunk_bytes: smallest_bytes, stripe_bytes: best_bytes, .. } = *options;
    let mut attributes = if geometry.volatile_cache { VOLATILE_CACHE | FUA } else { 0 };
    attributes |= if options.read_only { READ_ONLY } else { 0 };
    let mut bytes = [0; PARAMS_BYTES];
    put(&mut bytes, 0, &(PARAMS_BYTES as u32).to_ne_bytes());
    put(&mut bytes, 4, &(BASIC | TYPE_ZONED).to_ne_bytes());
    put(&mut bytes, 8, &attributes.to_ne_bytes());
    put(&mut bytes, 12, &block);
    put(&mut bytes, 13, &block);
    put(&mut bytes, 14, &shift(if best_bytes.is_power_of_two() { best_bytes } else { smallest_bytes }));
    put(&mut bytes, 15, &shift(smallest_bytes));
    put(&mut bytes, 16, &sectors(geometry.max_transfer_blocks));
    put(&mut bytes, 20, &(zone_sectors as u32).to_ne_bytes());
    put(&mut bytes, 24, &(zone_sectors * geometry.zones as u64).to_ne_bytes());
    put(&mut bytes, 76, &geometry.max_open.min(geometry.zones).to_ne_bytes());
    put(&mut bytes, 80, &geometry.max_active.min(geometry.zones).to_ne_bytes());
    put(&mut bytes, 84, &sectors(geometry.max_append_blocks));
    bytes
}

/// Maximum blocks of one discard or write of zeros: bounds the time of its lookup in the map.
const MAX_DISCARD_BLOCKS: u32 = 1 << 18;

/// `struct ublk_params` for a volume of `blocks` blocks.
pub(super) fn plain_params(blocks: u64, sector: SectorSize, options: &Options) -> [u8; PARAMS_BYTES] {
    const BASIC: u32 = 1 << 0;
    const TYPE_DISCARD: u32 = 1 << 1;
    const READ_ONLY: u32 = 1 << 0;
    const VOLATILE_CACHE: u32 = 1 << 2;
    const FUA: u32 = 1 << 3;
    let (sector, block) = ((sector as u32).ilog2() as u8, BLOCK.ilog2() as u8);
    let discard_sectors = MAX_DISCARD_BLOCKS * SECTORS as u32;
    let attributes = VOLATILE_CACHE | FUA | if options.read_only { READ_ONLY } else { 0 };
    let mut bytes = [0; PARAMS_BYTES];
    put(&mut bytes, 0, &(PARAMS_BYTES as u32).to_ne_bytes());
    put(&mut bytes, 4, &(BASIC | TYPE_DISCARD).to_ne_bytes());
    put(&mut bytes, 8, &attributes.to_ne_bytes());
    // Logical and physical block size, optimal and minimum I/O size.
    put(&mut bytes, 12, &[sector, block, block, block]);
    put(&mut bytes, 16, &(MAX_REQUEST_BLOCKS * SECTORS as u32).to_ne_bytes());
    put(&mut bytes, 24, &(blocks * SECTORS).to_ne_bytes());
    put(&mut bytes, 44, &(BLOCK as u32).to_ne_bytes());
    put(&mut bytes, 48, &discard_sectors.to_ne_bytes());
    put(&mut bytes, 52, &discard_sectors.to_ne_bytes());
    put(&mut bytes, 56, &1_u16.to_ne_bytes());
    bytes
}

/// Words of 64 bits in a `struct ublksrv_io_desc`.
pub(super) const REQUEST_WORDS: usize = 3;

/// Descriptors for which the mapping has room in each queue, independent of the depth: the distance between queues.
pub(super) const MAX_DEPTH: usize = 4096;

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UblkRequest {
    /// `None` for an operation that is not supported.
    pub operation: Option<UblkOperation>,
    pub fua: bool,
    /// For a write of zeros: the sectors must not be deallocated.
    pub keeps_room: bool,
    /// Sectors to transfer, or zones to report.
    pub count: u32,
    pub sector: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UblkOperation {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    Open,
    Close,
    Finish,
    Append,
    ResetAll,
    Reset,
    Report,
}

impl UblkRequest {
    pub(super) fn bytes(&self) -> u64 {
        self.count as u64 * SECTOR
    }

    pub(super) fn blocks(&self) -> u64 {
        self.count as u64 / SECTORS
    }

    /// Decodes the first two words of a descriptor.
    pub(super) fn from_words(first: u64, second: u64) -> UblkRequest {
        let bytes = first.to_ne_bytes();
        let flags = u32::from_ne_bytes(get(&bytes, 0));
        let operation = match flags & 0xff {
            0 => Some(UblkOperation::Read),
            1 => Some(UblkOperation::Write),
            2 => Some(UblkOperation::Flush),
            3 => Some(UblkOperation::Discard),
            5 => Some(UblkOperation::WriteZeroes),
            10 => Some(UblkOperation::Open),
            11 => Some(UblkOperation::Close),
            12 => Some(UblkOperation::Finish),
            13 => Some(UblkOperation::Append),
            14 => Some(UblkOperation::ResetAll),
            15 => Some(UblkOperation::Reset),
            18 => Some(UblkOperation::Report),
            _ => None,
        };
        let count = u32::from_ne_bytes(get(&bytes, 4));
        let (fua, keeps_room) = (flags & 1 << 13 != 0, flags & 1 << 15 != 0);
        UblkRequest { operation, fua, keeps_room, count, sector: second }
    }
}

/// Position of a request's data in `/dev/ublkcN`.
pub(super) fn data_position(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + ((queue as u64) << 41) + ((tag as u64) << 25)
}

/// Bytes of a `struct blk_zone`.
pub(super) const ZONE_BYTES: usize = 64;

/// `struct blk_zone`.
pub(super) fn zone_descriptor(geometry: &Geometry, zone: &ZoneInfo) -> [u8; ZONE_BYTES] {
    const SEQUENTIAL: u8 = 2;
    let start = geometry.start(zone.zone).0;
    let wp = match zone.state {
        ZoneState::Full => geometry.zone_size_blocks,
        _ => zone.wp_blocks,
    };
    let mut bytes = [0; ZONE_BYTES];
    put(&mut bytes, 0, &(start * SECTORS).to_ne_bytes());
    put(&mut bytes, 8, &(geometry.zone_size_blocks * SECTORS).to_ne_bytes());
    put(&mut bytes, 16, &((start + wp) * SECTORS).to_ne_bytes());
    // The states have the same numbers as in NVMe.
    put(&mut bytes, 24, &[SEQUENTIAL, zone.state as u8]);
    put(&mut bytes, 32, &(zone.capacity_blocks * SECTORS).to_ne_bytes());
    bytes
}

/// The errno for which the block layer reports the same error as for an NVMe drive.
pub(super) fn errno(error: DeviceError) -> i32 {
    match error {
        DeviceError::Status(Status::TooManyOpenZones) => libc::ETOOMANYREFS,
        DeviceError::Status(Status::TooManyActiveZones) => libc::EOVERFLOW,
        DeviceError::Status(Status::UnrecoveredReadError | Status::WriteFault) => libc::ENODATA,
        DeviceError::Status(Status::CapacityExceeded) => libc::ENOSPC,
        DeviceError::Status(Status::InvalidOpcode) => libc::EOPNOTSUPP,
        DeviceError::Timeout => libc::ETIMEDOUT,
        _ => libc::EIO,
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::zone::ZoneIndex;

    fn options(chunk_bytes: u32, stripe_bytes: u32) -> Options {
        Options { array: [0; 16], number: ServedNumber::ARRAY, chunk_bytes, stripe_bytes, read_only: false }
    }

    fn geometry() -> Geometry {
        Geometry {
            zones: 20,
            zone_size_blocks: 0x8000,
            zone_capacity_blocks: 0x6000,
            max_open: 12,
            max_active: 32,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 4096,
            max_append_blocks: 64,
            volatile_cache: true,
        }
    }

    #[track_caller]
    fn assert_fields(bytes: &[u8], fields: &[(usize, usize, u64)]) {
        for &(at, length, expected) in fields {
            let mut word = [0; 8];
            word[..length].copy_from_slice(&bytes[at..at + length]);
            assert_eq!(u64::from_le_bytes(word), expected, "field at {at}");
        }
    }

    /// Values that a C compiler computes from the kernel's header.
    #[test]
    fn ublk_commands_match_kernel_header() {
        assert_eq!(UblkCommand::AddDev.code(), 0xc020_7504);
        assert_eq!(UblkCommand::GetFeatures.code(), 0x8020_7513);
        assert_eq!(UblkCommand::GetDevInfo.code(), 0x8020_7502);
        assert_eq!(UblkCommand::EndUserRecovery.code(), 0xc020_7511);
        assert_eq!((UblkCommand::UpdateSize.code(), UPDATE_SIZE), (0xc020_7515, 0x400));
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
        let bytes = control_command(7, 0x1234_5678_9abc, 64, 99);
        assert_fields(
            &bytes,
            &[(0, 4, 7), (4, 2, 0xffff), (6, 2, 64), (8, 8, 0x1234_5678_9abc), (16, 8, 99)],
        );
        let bytes = io_command((3, 5), -5, 0x77);
        assert_fields(&bytes, &[(0, 2, 3), (2, 2, 5), (4, 4, 0xffff_fffb), (8, 8, 0x77)]);
        assert_eq!(data_position(3, 5), 0x600_8a00_0000);
    }

    #[test]
    fn ublk_device_info_round_trips() {
        let info = Info {
            queues: 4,
            depth: 128,
            state: 2,
            max_request_bytes: 1 << 19,
            device: 6,
            flags: FEATURES,
            tag: 0x0123_4567_89ab_cdef,
        };
        let bytes = info.to_bytes();
        assert_fields(&bytes, &[(12, 4, 6), (24, 8, 0xd8), (32, 8, 0x0123_4567_89ab_cdef)]);
        assert_eq!(Info::from_bytes(&bytes), info);
    }

    #[test]
    fn ublk_zoned_parameters_follow_geometry() {
        let bytes = params(&geometry(), &options(65536, 262_144));
        let zone_sectors = 0x8000 * 8;
        assert_fields(
            &bytes,
            &[
                (0, 4, 108),
                (4, 4, 0b1001),
                (8, 4, 0b1100),
                (12, 4, 0x1012_0c0c),
                (16, 4, 1024),
                (20, 4, zone_sectors),
                (24, 8, 20 * zone_sectors),
                (32, 8, 0),
                (76, 4, 12),
                // At most the number of zones, or the driver refuses.
                (80, 4, 20),
                (84, 4, 512),
            ],
        );
        let durable = Geometry { volatile_cache: false, max_transfer_blocks: 16, ..geometry() };
        let bytes = params(&durable, &options(65536, 3 * 65536));
        assert_fields(&bytes, &[(8, 4, 0), (12, 4, 0x1010_0c0c), (16, 4, 128)]);
        let bytes = params(&durable, &Options { read_only: true, ..options(65536, 65536) });
        assert_fields(&bytes, &[(8, 4, 1)]);
    }

    #[test]
    fn ublk_volume_parameters_allow_discard_without_zones() {
        let options = Options { read_only: true, ..options(65536, 65536) };
        assert_fields(
            &plain_params(1000, SectorSize::B512, &options),
            &[(12, 4, 0x0c0c_0c09), (24, 8, 8000)],
        );
        let bytes = plain_params(1000, SectorSize::B4096, &options);
        assert_fields(
            &bytes,
            &[
                (0, 4, 108),
                (4, 4, 0b11),
                (8, 4, 0b1101),
                (12, 4, 0x0c0c_0c0c),
                (16, 4, 1024),
                (24, 8, 8000),
                (44, 4, 4096),
                (48, 4, 1 << 21),
                (52, 4, 1 << 21),
                (56, 2, 1),
                (76, 8, 0),
            ],
        );
    }

    #[test]
    fn ublk_request_is_parsed_from_descriptor() {
        let request =
            |flags: u32, count: u32| UblkRequest::from_words(flags as u64 | (count as u64) << 32, 4096);
        let expected = UblkRequest {
            operation: Some(UblkOperation::Write),
            fua: true,
            keeps_room: false,
            count: 24,
            sector: 4096,
        };
        assert_eq!(request(1 | 1 << 13 | 1 << 11, 24), expected);
        assert_eq!((expected.bytes(), expected.blocks()), (24 * 512, 3));
        assert_eq!(request(18, 7).operation, Some(UblkOperation::Report));
        let zeroes = [request(3, 8).operation, request(5 | 1 << 15, 8).operation];
        assert_eq!(zeroes, [Some(UblkOperation::Discard), Some(UblkOperation::WriteZeroes)]);
        assert!(request(5 | 1 << 15, 8).keeps_room && !request(5, 8).keeps_room);
        // Secure erase.
        assert_eq!(request(4, 8).operation, None);
    }

    #[test]
    fn ublk_full_zone_reports_write_pointer_at_end() {
        let zone = |state| ZoneInfo {
            zone: ZoneIndex(2),
            state,
            wp_blocks: 5,
            capacity_blocks: 0x6000,
            zrwa: false,
        };
        let start = 2 * 0x8000 * 8;
        let closed = zone_descriptor(&geometry(), &zone(ZoneState::Closed));
        let fields = [(0, 8, start), (8, 8, 0x40000), (24, 4, 0x0402), (32, 8, 0x30000)];
        assert_fields(&closed, &fields);
        assert_fields(&closed, &[(16, 8, start + 40)]);
        let full = zone_descriptor(&geometry(), &zone(ZoneState::Full));
        assert_fields(&full, &[(16, 8, start + 0x40000), (24, 4, 0x0e02)]);
    }

    #[test]
    fn ublk_errno_keeps_limits_and_media_errors() {
        assert_eq!(errno(Status::TooManyOpenZones.into()), libc::ETOOMANYREFS);
        assert_eq!(errno(Status::TooManyActiveZones.into()), libc::EOVERFLOW);
        assert_eq!(errno(Status::UnrecoveredReadError.into()), libc::ENODATA);
        assert_eq!(errno(Status::ZoneInvalidWrite.into()), libc::EIO);
        // On EAGAIN the block layer would retry, or wait.
        assert_eq!(errno(DeviceError::Os(libc::EAGAIN)), libc::EIO);
    }
}
