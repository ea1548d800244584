//! Encoding of commands, and decoding of identify pages and zone reports, of the NVMe Base, NVM Command Set and Zoned
//! Namespace Command Set specifications.

use engine::{
    buf::BLOCK,
    device::{DeviceError, Geometry, Status, Zrwa},
    zone::{MOST_BLOCKS, MOST_ZONES, ZoneIndex, ZoneInfo, ZoneState},
};

/// Bytes of an identify page.
pub const PAGE: usize = 4096;
/// Most bytes of metadata in a command to a drive that QEMU emulates. Of more bytes, if they are no multiple of these, up
/// to QEMU 10.0 transfers only the first ones (`dma_blk_cb` in `system/dma-helpers.c`), and reports no error.
const QEMU_METADATA_BYTES: u32 = 512;
/// Bytes of a zone descriptor, and of the header before the first one.
pub const DESCRIPTOR: usize = 64;

/// An NVMe command in the form that the kernel takes by io_uring and by ioctl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passthrough {
    pub opcode: u8,
    pub nsid: u32,
    /// Addresses and lengths of the buffers.
    pub metadata: (u64, u32),
    pub data: (u64, u32),
    /// Command double words 10 to 13.
    pub cdw: [u32; 4],
    pub timeout_ms: u32,
}

impl Passthrough {
    /// `struct nvme_uring_cmd` of 72 bytes, which begins like `struct nvme_passthru_cmd`, in the
    /// command area of a large submission entry.
    pub fn encode(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0] = self.opcode;
        bytes[4..8].copy_from_slice(&self.nsid.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.metadata.0.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.data.0.to_ne_bytes());
        bytes[32..36].copy_from_slice(&self.metadata.1.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.data.1.to_ne_bytes());
        for (place, cdw) in bytes[40..56].chunks_exact_mut(4).zip(self.cdw) {
            place.copy_from_slice(&cdw.to_ne_bytes());
        }
        bytes[64..68].copy_from_slice(&self.timeout_ms.to_ne_bytes());
        bytes
    }

    /// The command with a logical block address in double words 10 and 11.
    fn at(opcode: u8, lba: u64) -> Passthrough {
        Passthrough { opcode, cdw: [lba as u32, (lba >> 32) as u32, 0, 0], ..Passthrough::default() }
    }

    /// Flush of the volatile cache.
    pub fn flush() -> Passthrough {
        Passthrough::default()
    }

    /// A read, write or append of `count` logical blocks, at least one.
    pub fn transfer(opcode: TransferOpcode, lba: u64, count: u32, fua: bool) -> Passthrough {
        let mut command = Passthrough::at(opcode as u8, lba);
        command.cdw[2] = (count - 1) & 0xffff | (fua as u32) << 30;
        command
    }

    /// Zone Management Send for the zone that begins at `lba`, or all zones.
    pub fn manage(action: Action, lba: Option<u64>) -> Passthrough {
        let mut command = Passthrough::at(0x79, lba.unwrap_or(0));
        command.cdw[3] = action as u32 | (lba.is_none() as u32) << 8;
        command
    }

    /// Zone Management Receive: as many zones from `lba` on as `bytes` have room for.
    pub fn report(lba: u64, bytes: usize) -> Passthrough {
        let mut command = Passthrough::at(0x7a, lba);
        command.cdw[2] = (bytes / 4 - 1) as u32;
        // Partial report: the count says how many zones are in the buffer.
        command.cdw[3] = 1 << 16;
        command
    }

    /// Get Log Page of the SMART log of the controller, an admin command.
    pub fn smart() -> Passthrough {
        const SMART: u32 = 0x02;
        let words = SMART_BYTES as u32 / 4 - 1;
        Passthrough { opcode: 0x02, nsid: !0, cdw: [words << 16 | SMART, 0, 0, 0], ..Passthrough::default() }
    }

    /// Identify, an admin command.
    pub fn identify(page: Identify, nsid: u32) -> Passthrough {
        let (cns, set, nsid) = match page {
            Identify::Namespace => (0x00, 0, nsid),
            Identify::Controller => (0x01, 0, 0),
            Identify::ZonedNamespace => (0x05, ZONED, nsid),
            Identify::ZonedController => (0x06, ZONED, 0),
        };
        Passthrough { opcode: 0x06, nsid, cdw: [cns, set << 24, 0, 0], ..Passthrough::default() }
    }
}

/// Bytes of a SMART log page.
pub const SMART_BYTES: usize = 512;

/// The identifier of the Zoned Namespace Command Set.
const ZONED: u32 = 0x02;

#[derive(Clone, Copy)]
#[repr(u8)]
pub enum TransferOpcode {
    Write = 0x01,
    Read = 0x02,
    Append = 0x7d,
}

/// Zone send actions; an open that allocates a ZRWA has an option bit.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Action {
    Close = 0x01,
    Finish = 0x02,
    Open = 0x03,
    Reset = 0x04,
    FlushZrwa = 0x11,
    OpenWithZrwa = 0x203,
}

#[derive(Clone, Copy)]
pub enum Identify {
    Namespace,
    Controller,
    ZonedNamespace,
    ZonedController,
}

/// The four identify pages that describe a zoned namespace.
pub struct Pages {
    pub namespace: [u8; PAGE],
    pub controller: [u8; PAGE],
    pub zoned_namespace: [u8; PAGE],
    pub zoned_controller: [u8; PAGE],
}

/// Properties of a namespace that are not in blocks of [`BLOCK`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub nsid: u32,
    /// Logical blocks of the namespace per block of [`BLOCK`] bytes.
    pub lbas_per_block: u64,
    /// Bytes of metadata per logical block.
    pub metadata_bytes: u32,
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    (u16_at(page, at + 2) as u32) << 16 | u16_at(page, at) as u32
}

fn u64_at(page: &[u8], at: usize) -> u64 {
    (u32_at(page, at + 4) as u64) << 32 | u32_at(page, at) as u64
}

impl Pages {
    /// Format and geometry of the namespace; `most_bytes` is the kernel's limit for a request. The capacity of its
    /// zones is not in these pages: [`Geometry::zone_capacity_blocks`] is set to their size.
    ///
    /// # Errors
    /// The property that zoneraid does not support.
    pub fn decode(&self, nsid: u32, most_bytes: u64) -> Result<(Format, Geometry), String> {
        let Pages { namespace, controller, zoned_namespace, zoned_controller } = self;
        let flbas = namespace[26];
        let index = (flbas & 0xf | (flbas >> 5 & 3) << 4) as usize;
        let lbaf = 128 + 4 * index;
        let (metadata, shift) = (u16_at(namespace, lbaf) as u32, namespace[lbaf + 2]);
        let lba_bytes = 1usize << shift.min(31);
        if !(512..=BLOCK).contains(&lba_bytes) {
            return Err(format!("it has blocks of {lba_bytes} bytes; 512 to {BLOCK} bytes are supported"));
        }
        if metadata > 0 && flbas & 0x10 != 0 {
            return Err(format!(
                "its blocks are formatted with {metadata} bytes of metadata inside the data; format it with \
                 separate metadata, or none"
            ));
        }
        if namespace[29] & 7 != 0 {
            return Err("it is formatted with protection information, which is not supported".into());
        }
        // ZOC, which the kernel requires to be zero as well.
        match u16_at(zoned_namespace, 0) {
            0 => {}
            zoc if zoc & 1 != 0 => {
                return Err(
                    "the capacity of its zones changes with resets (ZOC: variable zone capacity), which is not \
                     supported"
                        .into(),
                );
            }
            zoc if zoc & 2 != 0 => {
                return Err(
                    "the controller may finish zones by itself (ZOC: zone active excursions), which is not supported"
                        .into(),
                );
            }
            zoc => {
                return Err(format!("its zone operation characteristics (ZOC {zoc:#x}) are not supported"));
            }
        }
        let lbas_per_block = (BLOCK / lba_bytes) as u64;
        let Some(most_untorn) = self.most_untorn(lbas_per_block) else {
            let advice = match self.format_of_whole_blocks(metadata) {
                Some(index) => format!("nvme format --lbaf={index}"),
                None => "nvme format".into(),
            };
            return Err(format!(
                "it has blocks of {lba_bytes} bytes, and does not guarantee atomic writes of {BLOCK} bytes at \
                 a power cut: format it with blocks of {BLOCK} bytes ({advice})"
            ));
        };
        let blocks = |lbas: u64, what: &str| {
            if lbas.is_multiple_of(lbas_per_block) {
                Ok(lbas / lbas_per_block)
            } else {
                Err(format!(
                    "{what} of {} bytes are no multiple of {BLOCK} bytes",
                    lbas as u128 * lba_bytes as u128
                ))
            }
        };
        let zone_size = blocks(u64_at(zoned_namespace, 2816 + 16 * index), "its zones")?;
        if zone_size == 0 {
            return Err("it reports a zone size of 0".into());
        }
        // If the granule divides a block, flushes of whole blocks are flushes of whole granules.
        let granule = u16_at(zoned_namespace, 48).max(1) as u64;
        let granule = if lbas_per_block.is_multiple_of(granule) { lbas_per_block } else { granule };
        let capabilities = (u16_at(zoned_namespace, 2) & 2 != 0, zoned_namespace[52] & 1 != 0);
        let zrwa = match capabilities {
            (false, _) => None,
            (true, false) => return Err("its ZRWA does not support explicit flushes".into()),
            (true, true) => Some(Zrwa {
                size_blocks: blocks(u16_at(zoned_namespace, 50) as u64, "its ZRWAs")?,
                granularity_blocks: blocks(granule, "its ZRWA flush granules")?,
                max_zones: u32_at(zoned_namespace, 44).saturating_add(1),
            }),
        };
        if zrwa.is_some_and(|zrwa| zrwa.size_blocks < zrwa.granularity_blocks) {
            return Err("it reports a ZRWA smaller than its flush granularity".into());
        }
        let oob_bytes = metadata * lbas_per_block as u32;
        if oob_bytes as usize > BLOCK {
            return Err(format!(
                "it has {oob_bytes} bytes of metadata for {BLOCK} bytes of data, which is too much"
            ));
        }
        // 0 means no limit. The unit is the minimum page size of the controller.
        let limit = |exponent: u8| if exponent == 0 { u64::MAX } else { 4096 << exponent.min(32) };
        let most = limit(controller[77]).min(most_bytes).min(lba_bytes as u64 * 65536) / BLOCK as u64;
        let most = match oob_bytes {
            1.. if self.is_of_qemu() => most.min((QEMU_METADATA_BYTES / oob_bytes).max(1) as u64),
            _ => most,
        };
        let most = most.min(most_untorn);
        let most_appended = most.min(limit(zoned_controller[0]) / BLOCK as u64);
        let none_is_all_ones = |zeroes_based: u32| zeroes_based.wrapping_add(1);
        let size = u64_at(namespace, 0) / lbas_per_block;
        let zones = size / zone_size;
        if size > MOST_BLOCKS || zones > MOST_ZONES as u64 {
            return Err(format!(
                "it reports {zones} zones of {zone_size} blocks, which is more than supported"
            ));
        }
        let geometry = Geometry {
            zones: zones as u32,
            zone_size_blocks: zone_size,
            zone_capacity_blocks: zone_size,
            max_open: none_is_all_ones(u32_at(zoned_namespace, 8)),
            max_active: none_is_all_ones(u32_at(zoned_namespace, 4)),
            zrwa,
            oob_bytes,
            max_transfer_blocks: most as u32,
            max_append_blocks: most_appended as u32,
            volatile_cache: controller[525] & 1 != 0,
        };
        if geometry.zones == 0 || most == 0 {
            return Err("it reports no usable zones".into());
        }
        Ok((Format { nsid, lbas_per_block, metadata_bytes: metadata }, geometry))
    }

    /// Whether the controller is the one that QEMU emulates.
    fn is_of_qemu(&self) -> bool {
        self.controller[24..64].starts_with(b"QEMU NVMe Ctrl")
    }

    /// Maximum blocks, of `lbas` logical blocks each, of a write of which a power cut tears no block; `None` if it may
    /// tear even a single one. A logical block with its metadata is always atomic. For more, the namespace or else the
    /// controller states the limit, for writes that are no larger and cross no atomic boundary: larger ones have no
    /// guarantee, not even for parts of them (NVM Command Set Specification 1.0, Atomic Operation).
    fn most_untorn(&self, lbas: u64) -> Option<u64> {
        let Pages { namespace, controller, .. } = self;
        // NSFEAT: the namespace has limits of its own.
        let own = namespace[24] & 2 != 0;
        let (boundary, offset) = if own { (u16_at(namespace, 44), u16_at(namespace, 42)) } else { (0, 0) };
        let atomic = match u16_at(namespace, 36) {
            atomic if own && atomic > 0 => atomic,
            _ => u16_at(controller, 528),
        };
        // No block may cross an atomic boundary.
        let aligned = boundary == 0
            || (boundary as u64 + 1).is_multiple_of(lbas) && (offset as u64).is_multiple_of(lbas);
        match (atomic as u64 + 1) / lbas {
            _ if lbas == 1 => Some(u64::MAX),
            whole if whole == 0 || !aligned => None,
            _ if boundary > 0 => Some(1),
            whole => Some(whole),
        }
    }

    /// Index of the first LBA format with logical blocks of [`BLOCK`] bytes and as much metadata as the present one.
    fn format_of_whole_blocks(&self, metadata: u32) -> Option<usize> {
        let formats = 0..=(self.namespace[25] as usize).min(63);
        formats.into_iter().find(|index| {
            let lbaf = 128 + 4 * index;
            1usize.checked_shl(self.namespace[lbaf + 2] as u32) == Some(BLOCK)
                && u16_at(&self.namespace, lbaf) as u32 == metadata
        })
    }
}

/// Parses the page of a report of `first` and the zones behind it; `None` if it is inconsistent or of other zones.
pub fn parse_report(
    page: &[u8],
    first: ZoneIndex,
    format: &Format,
    geometry: &Geometry,
) -> Option<Vec<ZoneInfo>> {
    let count = u64_at(page.get(..DESCRIPTOR)?, 0);
    let descriptors = page[DESCRIPTOR..].chunks_exact(DESCRIPTOR).take(count.min(u32::MAX as u64) as usize);
    descriptors
        .zip(first.0..geometry.zones)
        .map(|(zone, expected)| {
            let (capacity, start, wp) = (u64_at(zone, 8), u64_at(zone, 16), u64_at(zone, 24));
            let state = ZoneState::from_value(zone[1] >> 4)?;
            let capacity_blocks = capacity / format.lbas_per_block;
            let wp_blocks = match state {
                ZoneState::Empty => 0,
                // The write pointer is undefined in these states.
                ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline => capacity_blocks,
                _ => wp.checked_sub(start)? / format.lbas_per_block,
            };
            let expected = ZoneIndex(expected);
            let is_next = start == geometry.start(expected).0 * format.lbas_per_block;
            // Values outside of the drive's own geometry are refused.
            if !is_next || capacity_blocks > geometry.zone_size_blocks || wp_blocks > capacity_blocks {
                return None;
            }
            let zrwa = zone[2] & 1 << 3 != 0;
            Some(ZoneInfo { zone: expected, state, wp_blocks, capacity_blocks, zrwa })
        })
        .collect()
}

/// Whether a command has failed with a transient error, by its positive result: Command Interrupted, Transient
/// Transport Error or Namespace Not Ready, without Do Not Retry. The kernel retries its own commands then, but not
/// passthrough.
pub fn is_transient(result: i32) -> bool {
    result > 0 && matches!(result & 0x47ff, 0x021 | 0x022 | 0x082)
}

/// Translates a positive result of a command: its status without 'more' and 'do not retry'.
pub fn error_of_status(result: i32) -> DeviceError {
    let value = result as u16 & 0x7ff;
    Status::from_value(value).map_or(DeviceError::UnknownStatus(value), DeviceError::Status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use emu::rng::Rng;

    fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
        page[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A drive of 4096-byte blocks with 32 zones of 8192 blocks.
    fn pages() -> Pages {
        let zero = [0; PAGE];
        let mut pages =
            Pages { namespace: zero, controller: zero, zoned_namespace: zero, zoned_controller: zero };
        put(&mut pages.namespace, 0, &(32u64 * 8192).to_le_bytes());
        put(&mut pages.namespace, 128 + 2, &[12]);
        put(&mut pages.zoned_namespace, 2, &[2]);
        put(&mut pages.zoned_namespace, 4, &[13, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        put(&mut pages.zoned_namespace, 44, &[13, 0, 0, 0, 4, 0, 0, 1, 1]);
        put(&mut pages.zoned_namespace, 2816, &8192u64.to_le_bytes());
        pages.controller[77] = 7;
        pages.zoned_controller[0] = 5;
        pages
    }

    #[test]
    fn nvme_identify_pages_decode_to_geometry() {
        let mut pages = pages();
        let (format, geometry) = pages.decode(3, 1 << 20).unwrap();
        assert_eq!(format, Format { nsid: 3, lbas_per_block: 1, metadata_bytes: 0 });
        let expected = Geometry {
            zones: 32,
            zone_size_blocks: 8192,
            zone_capacity_blocks: 8192,
            max_open: 0,
            max_active: 14,
            zrwa: Some(Zrwa { size_blocks: 256, granularity_blocks: 4, max_zones: 14 }),
            oob_bytes: 0,
            max_transfer_blocks: 128,
            max_append_blocks: 32,
            volatile_cache: false,
        };
        assert_eq!(geometry, expected);

        // The kernel's limit is below the drive's; then no limits at all; a cache; metadata.
        assert_eq!(pages.decode(3, 65536).unwrap().1.max_transfer_blocks, 16);
        (pages.controller[77], pages.zoned_controller[0], pages.controller[525]) = (0, 0, 1);
        pages.namespace[128] = 64;
        let (format, geometry) = pages.decode(3, 1 << 20).unwrap();
        assert_eq!((geometry.max_transfer_blocks, geometry.max_append_blocks), (256, 256));
        assert_eq!((geometry.oob_bytes, format.metadata_bytes), (64, 64));
        assert!(geometry.volatile_cache);

        put(&mut pages.controller, 24, b"QEMU NVMe Ctrl                          ");
        for (metadata, blocks) in [(0, 256), (16, 32), (64, 8), (255, 2)] {
            pages.namespace[128] = metadata;
            let (_, geometry) = pages.decode(3, 1 << 20).unwrap();
            assert_eq!((geometry.max_transfer_blocks, geometry.max_append_blocks), (blocks, blocks));
        }
    }

    #[test]
    fn nvme_512_byte_lbas_are_grouped_into_blocks() {
        let mut pages = pages();
        put(&mut pages.namespace, 128, &[8, 0, 9]);
        pages.controller[528] = 7;
        let (format, geometry) = pages.decode(1, 1 << 20).unwrap();
        assert_eq!((format.lbas_per_block, geometry.oob_bytes), (8, 64));
        // A larger write would not be atomic.
        assert_eq!((geometry.max_transfer_blocks, geometry.max_append_blocks), (1, 1));
        assert_eq!((geometry.zones, geometry.zone_size_blocks), (32, 1024));
        assert_eq!(geometry.zrwa.unwrap().size_blocks, 32);
        // A granule of four such blocks is half a block of ours, one of twelve is no multiple.
        assert_eq!(geometry.zrwa.unwrap().granularity_blocks, 1);
        let most = |pages: &Pages| pages.decode(1, 1 << 20).unwrap().1.max_transfer_blocks;
        pages.controller[528] = 63;
        assert_eq!(most(&pages), 8);
        // A write that crosses an atomic boundary is not atomic.
        (pages.namespace[24], pages.namespace[36], pages.namespace[44]) = (2, 63, 63);
        assert_eq!(most(&pages), 1);
        pages.zoned_namespace[48] = 12;
        assert!(pages.decode(1, 1 << 20).unwrap_err().contains("multiple"));
    }

    #[test]
    fn nvme_refuses_tearable_blocks_and_suggests_format() {
        let decode = |change: fn(&mut Pages)| {
            let mut pages = pages();
            // Format 0 has 512 bytes, format 2 has 4096; both without metadata.
            pages.namespace[25] = 2;
            put(&mut pages.namespace, 128, &[0, 0, 9, 0, 8, 0, 12, 0, 0, 0, 12]);
            change(&mut pages);
            pages.decode(1, 1 << 20).map(|(format, _)| format.lbas_per_block)
        };
        let refused = decode(|_| ()).unwrap_err();
        assert!(
            refused.contains("blocks of 512 bytes")
                && refused.contains("does not guarantee atomic writes of 4096 bytes"),
            "{refused}"
        );
        assert!(refused.contains("nvme format --lbaf=2"), "{refused}");
        // The controller's limit counts only if the namespace has none of its own.
        assert_eq!(decode(|p| p.controller[528] = 7), Ok(8));
        assert!(decode(|p| p.controller[528] = 6).is_err());
        assert_eq!(
            decode(|p| (p.controller[528], p.namespace[24]) = (7, 2)),
            Ok(8),
            "0 is as the controller says"
        );
        assert!(decode(|p| (p.controller[528], p.namespace[24], p.namespace[36]) = (7, 2, 6)).is_err());
        assert_eq!(decode(|p| (p.namespace[24], p.namespace[36]) = (2, 7)), Ok(8));
        assert!(decode(|p| (p.namespace[24], p.namespace[36]) = (0, 7)).is_err());
        assert!(decode(|p| (p.namespace[24], p.namespace[36], p.namespace[44]) = (2, 63, 11)).is_err());
        assert_eq!(decode(|p| (p.namespace[24], p.namespace[36], p.namespace[44]) = (2, 63, 63)), Ok(8));
        assert_eq!(decode(|p| (p.namespace[26], p.zoned_namespace[2816 + 33]) = (2, 32)), Ok(1));
        assert!(decode(|p| p.namespace[130] = 11).unwrap_err().contains("blocks of 2048 bytes"));
        assert_eq!(decode(|p| (p.namespace[130], p.controller[528]) = (11, 1)), Ok(2));
    }

    #[test]
    fn nvme_refuses_self_changing_zones_by_name() {
        for (zoc, name) in
            [(1, "variable zone capacity"), (2, "zone active excursions"), (3, "variable"), (4, "ZOC 0x4")]
        {
            let mut pages = pages();
            put(&mut pages.zoned_namespace, 0, &[zoc, 0]);
            let refused = pages.decode(1, 1 << 20).unwrap_err();
            assert!(refused.contains(name), "{zoc}: {refused}");
        }
    }

    #[test]
    fn nvme_refuses_impossible_sizes() {
        let refused = |change: fn(&mut Pages)| {
            let mut pages = pages();
            change(&mut pages);
            pages.decode(1, 1 << 20).unwrap_err()
        };
        assert!(refused(|p| p.namespace[..8].fill(0xff)).contains("more than supported"));
        assert!(
            refused(|p| put(&mut p.namespace, 0, &(1u64 << 34).to_le_bytes()))
                .contains("more than supported")
        );
        let small = refused(|p| {
            (p.namespace[130], p.controller[528]) = (9, 7);
            p.zoned_namespace[2816..2824].fill(0xff);
        });
        assert!(small.contains("no multiple"), "{small}");
    }

    #[test]
    fn nvme_decode_of_random_pages_bounds_geometry() {
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let fields = [0, 24, 26, 28, 36, 42, 44, 128, 130];
        let zoned = [2, 4, 8, 44, 48, 50, 52, 2816, 2820];
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut pages = pages();
            for _ in 0..rng.range(1..4) {
                let values = [0, 1, 0xff, u64::MAX, 1 << rng.below(64), rng.next_u64()];
                let value = values[rng.below(6) as usize].to_le_bytes();
                let size = [1, 2, 4, 8][rng.below(4) as usize];
                let pick = |from: &[usize; 9], rng: &mut Rng| from[rng.below(9) as usize];
                match rng.below(4) {
                    0 => put(&mut pages.zoned_namespace, pick(&zoned, &mut rng), &value[..size]),
                    1 => pages.controller[[77, 525, 528][rng.below(3) as usize]] = value[0],
                    2 => pages.zoned_controller[0] = value[0],
                    _ => put(&mut pages.namespace, pick(&fields, &mut rng), &value[..size]),
                }
            }
            let Ok((format, geometry)) = pages.decode(1, 8 << 20) else { continue };
            taken += 1;
            assert!((1..=MOST_ZONES).contains(&geometry.zones), "{geometry:?}");
            assert!(geometry.zones as u64 * geometry.zone_size_blocks <= MOST_BLOCKS, "{geometry:?}");
            assert!((1..=2048).contains(&geometry.max_transfer_blocks), "{geometry:?}");
            assert!(geometry.max_append_blocks <= geometry.max_transfer_blocks, "{geometry:?}");
            // Metadata buffers are that much per block.
            assert!(geometry.oob_bytes as usize <= BLOCK, "{geometry:?}");
            if let Some(zrwa) = geometry.zrwa {
                assert!((1..=zrwa.size_blocks).contains(&zrwa.granularity_blocks), "{geometry:?}");
            }
            let mut report = vec![0; 8 * DESCRIPTOR];
            report.fill_with(|| if rng.chance(3, 4) { 0 } else { rng.next_u64() as u8 });
            for zone in parse_report(&report, ZoneIndex(0), &format, &geometry).unwrap_or_default() {
                assert!(zone.zone.0 < geometry.zones && zone.wp_blocks <= zone.capacity_blocks, "{zone:?}");
                assert!(zone.capacity_blocks <= geometry.zone_size_blocks, "{zone:?}");
            }
        }
        assert!(taken > 1000, "{taken}");
    }

    #[test]
    fn nvme_refuses_unsupported_formats() {
        let refused = |change: fn(&mut Pages)| {
            let mut pages = pages();
            change(&mut pages);
            pages.decode(1, 1 << 20).unwrap_err()
        };
        assert!(refused(|p| p.namespace[130] = 14).contains("blocks of 16384 bytes"));
        assert!(refused(|p| (p.namespace[128], p.namespace[26]) = (8, 0x10)).contains("inside the data"));
        assert!(refused(|p| p.namespace[29] = 1).contains("protection information"));
        assert!(refused(|p| p.zoned_namespace[52] = 0).contains("explicit flush"));
        assert!(refused(|p| p.namespace[..8].fill(0)).contains("no usable zones"));
    }

    #[test]
    fn nvme_zone_report_is_parsed_or_rejected() {
        let (format, geometry) = pages().decode(1, 1 << 20).unwrap();
        let mut page = [0; 4 * DESCRIPTOR];
        page[0] = 2;
        let mut describe = |place: usize, state: u8, attributes: u8, wp: u64| {
            let at = (place + 1) * DESCRIPTOR;
            put(&mut page, at, &[2, state << 4, attributes]);
            put(&mut page, at + 8, &6144u64.to_le_bytes());
            put(&mut page, at + 16, &((place as u64 + 5) * 8192).to_le_bytes());
            put(&mut page, at + 24, &wp.to_le_bytes());
        };
        describe(0, 3, 8, 5 * 8192 + 12);
        describe(1, 0xe, 0, u64::MAX);
        let zones = parse_report(&page, ZoneIndex(5), &format, &geometry).unwrap();
        let (zone, capacity_blocks) = (ZoneIndex, 6144);
        let open = ZoneInfo {
            zone: zone(5),
            state: ZoneState::ExplicitlyOpen,
            wp_blocks: 12,
            capacity_blocks,
            zrwa: true,
        };
        let full =
            ZoneInfo { zone: zone(6), state: ZoneState::Full, wp_blocks: 6144, capacity_blocks, zrwa: false };
        assert_eq!(zones, [open, full]);
        page[DESCRIPTOR + 1] = 0x90;
        assert_eq!(parse_report(&page, ZoneIndex(5), &format, &geometry), None);
        page[DESCRIPTOR + 1] = 0x30;
        page[DESCRIPTOR + 24..DESCRIPTOR + 32].fill(0);
        assert_eq!(parse_report(&page, ZoneIndex(5), &format, &geometry), None);
    }

    #[test]
    fn nvme_passthrough_command_has_kernel_layout() {
        let mut command = Passthrough::transfer(TransferOpcode::Write, 0x1_0000_0002, 8, true);
        (command.nsid, command.timeout_ms) = (7, 30_000);
        command.data = (0x1122_3344_5566_7788, 4096);
        command.metadata = (0x99, 64);
        let bytes = command.encode();
        assert_eq!((bytes[0], u32_at(&bytes, 4)), (1, 7));
        assert_eq!((u64_at(&bytes, 16), u64_at(&bytes, 24)), (0x99, 0x1122_3344_5566_7788));
        assert_eq!((u32_at(&bytes, 32), u32_at(&bytes, 36)), (64, 4096));
        assert_eq!([40, 44, 48, 52].map(|at| u32_at(&bytes, at)), [2, 1, 7 | 1 << 30, 0]);
        assert_eq!(u32_at(&bytes, 64), 30_000);
        assert_eq!(Passthrough::manage(Action::OpenWithZrwa, Some(9)).cdw, [9, 0, 0, 0x203]);
        assert_eq!(Passthrough::manage(Action::Reset, None).cdw, [0, 0, 0, 0x104]);
        assert_eq!(Passthrough::report(9, 4096).cdw, [9, 0, 1023, 1 << 16]);
        assert_eq!(Passthrough::identify(Identify::ZonedNamespace, 4).cdw, [5, 2 << 24, 0, 0]);
    }

    #[test]
    fn nvme_status_maps_to_name_or_number() {
        // 'More' and 'do not retry' are not part of the status.
        let invalid_write = error_of_status(0x61bc);
        assert_eq!(invalid_write, DeviceError::Status(Status::ZoneInvalidWrite));
        assert_eq!(error_of_status(0x4123), DeviceError::UnknownStatus(0x123));
        assert_eq!(error_of_status(0x4123).to_string(), "status 123h");
    }
}
