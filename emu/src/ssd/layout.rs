//! Format of the image of a drive.
//!
//! | offset | content |
//! |---|---|
//! | 0 | header, a block |
//! | 4096 | redo record, see [`super::image`] |
//! | page-aligned, one after the other | zone table, 16 bytes a zone |
//! | | written bitmap: a bit a block, page-aligned for each zone |
//! | | out-of-band metadata, page-aligned for each zone |
//! | | data: the capacity of each zone |
//!
//! Header: all numbers are little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `ZNSIMAGE` |
//! | 8..12 | version, 1 |
//! | 12..16 | zones |
//! | 16..24, 24..32 | zone size, zone capacity in blocks |
//! | 32..36, 36..40 | most open zones, most active zones |
//! | 40..48, 48..56, 56..60 | ZRWA: size, granularity in blocks, most zones; all 0 for none |
//! | 60..64 | bytes of out-of-band metadata per block |
//! | 64..68, 68..72 | most blocks in a transfer, in an append |
//! | 72 | 1 for a volatile cache |
//! | 80..96 | UUID of the drive |
//! | 96..128 | name of the model, padded with zeros |
//! | 4092..4096 | CRC-32C of all before |
//!
//! Zone table entry: all zeros for an empty zone; otherwise state, ZRWA (0 or 1), resetting (0 or 1), 0, CRC-32C of the
//! entry with this field 0, write pointer (8 bytes).

use super::model::Model;
use engine::{
    buf::BLOCK,
    device::{Geometry, Zrwa},
    zone::{MOST_BLOCKS, MOST_ZONES, ZoneIndex, ZoneInfo, ZoneState},
};

const MAGIC: [u8; 8] = *b"ZNSIMAGE";
const VERSION: u32 = 1;
const PAGE: u64 = 4096;
pub(super) const ENTRY: usize = 16;
/// Most blocks in a request: 64 MiB. A redo record has room for as many.
const MOST_TRANSFER_BLOCKS: u32 = 1 << 14;
/// Most blocks in a zone: 256 GiB, of which the written bits take 8 MiB of memory.
const MOST_ZONE_BLOCKS: u64 = 1 << 26;

/// Offsets in bytes.
#[derive(Clone, Debug)]
pub(super) struct ImageLayout {
    pub redo: u64,
    pub table: u64,
    bitmap: u64,
    bitmap_stride: u64,
    oob: u64,
    oob_stride: u64,
    data: u64,
    data_stride: u64,
    pub end: u64,
}

impl ImageLayout {
    /// `None` if the image would be larger than a file can be, or the geometry is impossible: a valid checksum does not
    /// make a header plausible.
    pub fn new(g: &Geometry) -> Option<ImageLayout> {
        let zrwa_can_be = g.zrwa.is_none_or(|zrwa| {
            (1..=MOST_ZONE_BLOCKS).contains(&zrwa.size_blocks)
                && (1..=zrwa.size_blocks).contains(&zrwa.granularity_blocks)
        });
        let can_be = (1..=MOST_ZONES).contains(&g.zones)
            && (1..=MOST_BLOCKS / g.zones as u64).contains(&g.zone_size_blocks)
            && (1..=g.zone_size_blocks.min(MOST_ZONE_BLOCKS)).contains(&g.zone_capacity_blocks)
            && (1..=MOST_TRANSFER_BLOCKS).contains(&g.max_transfer_blocks)
            && g.max_append_blocks <= MOST_TRANSFER_BLOCKS
            && g.oob_bytes as usize <= BLOCK;
        if !can_be || !zrwa_can_be {
            return None;
        }
        let most = g.max_transfer_blocks.max(g.max_append_blocks) as u64;
        let zones = g.zones as u64;
        let page = |n: u64| n.checked_next_multiple_of(PAGE);
        let bitmap_stride = page(g.zone_capacity_blocks.div_ceil(8))?;
        let oob_stride = page(g.zone_capacity_blocks.checked_mul(g.oob_bytes as u64)?)?;
        let data_stride = g.zone_capacity_blocks.checked_mul(BLOCK as u64)?;
        let redo = BLOCK as u64;
        let table = page(redo + PAGE + most * (BLOCK as u64 + g.oob_bytes as u64))?;
        let bitmap = page(table + zones * ENTRY as u64)?;
        let oob = bitmap.checked_add(zones.checked_mul(bitmap_stride)?)?;
        let data = oob.checked_add(zones.checked_mul(oob_stride)?)?;
        let end = data.checked_add(zones.checked_mul(data_stride)?)?;
        let layout =
            ImageLayout { redo, table, bitmap, bitmap_stride, oob, oob_stride, data, data_stride, end };
        (end <= i64::MAX as u64).then_some(layout)
    }

    pub fn entry(&self, zone: ZoneIndex) -> u64 {
        self.table + zone.0 as u64 * ENTRY as u64
    }

    /// Offset and length of the bitmap of a zone.
    pub fn bitmap(&self, zone: ZoneIndex) -> (u64, u64) {
        (self.bitmap + zone.0 as u64 * self.bitmap_stride, self.bitmap_stride)
    }

    /// Offset and length of the out-of-band metadata of a zone.
    pub fn oob(&self, zone: ZoneIndex) -> (u64, u64) {
        (self.oob + zone.0 as u64 * self.oob_stride, self.oob_stride)
    }

    /// Offset and length of the data of a zone.
    pub fn data(&self, zone: ZoneIndex) -> (u64, u64) {
        (self.data + zone.0 as u64 * self.data_stride, self.data_stride)
    }
}

pub(super) fn is_magic(bytes: &[u8; 8]) -> bool {
    *bytes == MAGIC
}

pub(super) fn encode_header(model: &Model, uuid: &[u8; 16]) -> [u8; BLOCK] {
    let g = &model.geometry;
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    put(8, &VERSION.to_le_bytes());
    put(12, &g.zones.to_le_bytes());
    put(16, &g.zone_size_blocks.to_le_bytes());
    put(24, &g.zone_capacity_blocks.to_le_bytes());
    put(32, &g.max_open.to_le_bytes());
    put(36, &g.max_active.to_le_bytes());
    if let Some(zrwa) = g.zrwa {
        put(40, &zrwa.size_blocks.to_le_bytes());
        put(48, &zrwa.granularity_blocks.to_le_bytes());
        put(56, &zrwa.max_zones.to_le_bytes());
    }
    put(60, &g.oob_bytes.to_le_bytes());
    put(64, &g.max_transfer_blocks.to_le_bytes());
    put(68, &g.max_append_blocks.to_le_bytes());
    put(72, &[g.volatile_cache as u8]);
    put(80, uuid);
    put(96, &model.name.as_bytes()[..model.name.len().min(32)]);
    let crc = crc32c::crc32c(&block[..BLOCK - 4]);
    block[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Returns the model and the UUID, or the error in the header.
pub(super) fn decode_header(block: &[u8; BLOCK]) -> Result<(Model, [u8; 16]), String> {
    let u32_at = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let u64_at = |at: usize| u32_at(at) as u64 | (u32_at(at + 4) as u64) << 32;
    if block[..8] != MAGIC {
        return Err("this is not the image of an emulated drive".into());
    }
    if u32_at(8) != VERSION {
        return Err(format!(
            "the image has version {}, this program knows version {VERSION}: use the program that made it",
            u32_at(8)
        ));
    }
    if crc32c::crc32c(&block[..BLOCK - 4]) != u32_at(BLOCK - 4) {
        return Err("the header of the image is damaged; make a new image".into());
    }
    let zrwa = Zrwa { size_blocks: u64_at(40), granularity_blocks: u64_at(48), max_zones: u32_at(56) };
    let geometry = Geometry {
        zones: u32_at(12),
        zone_size_blocks: u64_at(16),
        zone_capacity_blocks: u64_at(24),
        max_open: u32_at(32),
        max_active: u32_at(36),
        zrwa: (zrwa.size_blocks > 0).then_some(zrwa),
        oob_bytes: u32_at(60),
        max_transfer_blocks: u32_at(64),
        max_append_blocks: u32_at(68),
        volatile_cache: block[72] == 1,
    };
    let name: Vec<u8> = block[96..128].iter().copied().take_while(|b| *b != 0).collect();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&block[80..96]);
    Ok((Model { name: String::from_utf8_lossy(&name).into_owned(), geometry }, uuid))
}

pub(super) fn encode_entry(info: &ZoneInfo, resetting: bool) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    if info.state != ZoneState::Empty || resetting {
        (entry[0], entry[1], entry[2]) = (info.state as u8, info.zrwa as u8, resetting as u8);
        entry[8..].copy_from_slice(&info.wp_blocks.to_le_bytes());
        let crc = crc32c::crc32c(&entry);
        entry[4..8].copy_from_slice(&crc.to_le_bytes());
    }
    entry
}

/// Returns the state of a zone and whether it was being reset; `None` if the entry is damaged.
pub(super) fn decode_entry(entry: &[u8], zone: ZoneIndex, geometry: &Geometry) -> Option<(ZoneInfo, bool)> {
    let capacity_blocks = geometry.zone_capacity_blocks;
    let mut entry: [u8; ENTRY] = entry.try_into().ok()?;
    if entry == [0; ENTRY] {
        let state = ZoneState::Empty;
        return Some((ZoneInfo { zone, state, wp_blocks: 0, capacity_blocks, zrwa: false }, false));
    }
    let crc = [entry[4], entry[5], entry[6], entry[7]];
    entry[4..8].fill(0);
    let wp_blocks = u64::from_le_bytes(entry[8..].try_into().ok()?);
    let state = ZoneState::from_value(entry[0])?;
    let intact = crc32c::crc32c(&entry).to_le_bytes() == crc && wp_blocks <= capacity_blocks;
    intact
        .then_some((ZoneInfo { zone, state, wp_blocks, capacity_blocks, zrwa: entry[1] == 1 }, entry[2] == 1))
}
