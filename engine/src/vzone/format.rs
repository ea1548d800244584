//! On-media format of the metadata: blocks of the journal, and the reservation in front of the data of each zone in
//! use.
//!
//! Numbers are little-endian. The [frame](crate::frame) of a journal block has the mark of its device, its generation
//! and its place in its zone; it is valid only if all of these and its checksum are right. Its entries are
//! *after-images*: the new state of a namespace or a v-zone.

use crate::{
    buf::BLOCK,
    format::codec::{Decoder, Encoder, TooShort},
    frame::{FRAME_BYTES, Frame, FrameError, FrameFormat},
    qos::{Qos, Rates},
};

/// Version of this format. A change of any layout raises it.
pub const VERSION: u16 = 4;

/// The oldest version that can be read.
pub const OLDEST_VERSION: u16 = 3;

/// Maximum number of physical zones of a v-zone.
pub const MOST_ZONES: usize = 16;

/// Maximum number of namespaces of a device.
pub const MOST_NAMESPACES: usize = 1024;

/// Maximum length of the name of a namespace, in bytes.
pub const MOST_NAME: usize = 32;

/// Frame of a journal block. Its magic number differs from that of version 3 in one bit: programs that support only
/// that version take such blocks for damaged ones of a journal, and do not overwrite them.
const JOURNAL: FrameFormat = FrameFormat { magic: *b"zvj3", versions: 4..=VERSION };
/// Frame of a reservation, which has no version.
const RESERVED: FrameFormat = FrameFormat { magic: *b"zvr1", versions: 0..=0 };
/// As [`JOURNAL`], of version 3. Its header is different, but magic and checksum have the same places.
const JOURNAL_3: FrameFormat = FrameFormat { magic: *b"zvj1", versions: 3..=3 };

/// Blocks of a segment, 2 MiB: F2FS loses data in zones with a capacity that is not a multiple of it.
const SEGMENT_BLOCKS: u64 = 512;

/// Bytes of a journal block before its entries: the frame, the number of the next reservation, and the number of
/// entries.
const HEADER: usize = FRAME_BYTES + 8 + 2;

/// Bytes of a journal block of version 3 before its entries.
const HEADER_3: usize = 48;

/// Kinds of journal blocks.
const RECORD: u8 = 0;
const CHECKPOINT: u8 = 1;

/// Parameters of a device with namespaces, which never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Random UUID, drawn at the creation.
    pub uuid: [u8; 16],
    /// Zones of the device.
    pub zones: u32,
    /// Writable blocks of each.
    pub zone_capacity_blocks: u64,
    /// Physical zones of a v-zone.
    pub vzone_zones: u32,
    /// Blocks of each zone before its data (the *lead*): the first one is the reservation, and the data begins at the
    /// optimal write alignment of the device.
    pub lead_blocks: u32,
    /// Features (bits) without which a program must not open the namespaces; none is defined yet.
    pub features: u64,
}

impl DeviceIdentity {
    /// 64-bit form of the UUID that journal blocks and reservations have.
    pub fn mark(&self) -> u64 {
        crate::vzone::format::mark(&self.uuid)
    }

    /// Blocks of a physical zone for data: its capacity without the lead.
    pub fn data_blocks(&self) -> u64 {
        self.zone_capacity_blocks.saturating_sub(self.lead_blocks as u64)
    }

    /// Capacity of a v-zone: the data of its zones, rounded down to whole segments.
    pub fn vzone_blocks(&self) -> u64 {
        let all = self.vzone_zones as u64 * self.data_blocks();
        // The rounding loses a sixteenth at most; with tiny zones there is none.
        let segment = if all < 64 { 1 } else { 1 << (all / 16).min(SEGMENT_BLOCKS).ilog2() };
        all - all % segment
    }
}

/// Folds a UUID to 64 bits.
pub fn mark(uuid: &[u8; 16]) -> u64 {
    let half = |at: usize| uuid[at..at + 8].iter().rev().fold(0, |sum, byte| sum << 8 | *byte as u64);
    half(0) ^ half(8)
}

/// Specification of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name; 1 to 32 bytes.
    pub name: String,
    /// V-zones.
    pub zones: u32,
    /// V-zones that may be active (open or closed) at once.
    pub max_active: u32,
    /// V-zones that may be open at once.
    pub max_open: u32,
    /// Active physical zones that each active v-zone is guaranteed; a power of two.
    pub essential: u32,
    /// Weight in the distribution of spares, and of rates by throttling.
    pub weight: u32,
    /// Limits and guarantees. They take effect if the server calls
    /// [`Namespace::admit`](crate::vzone::Namespace::admit).
    pub qos: Qos,
}

/// The namespaces of a device, whether they run or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceLayout {
    /// V-zones that fit on the device, including those of existing namespaces.
    pub zones: u64,
    /// Writable blocks of each.
    pub zone_capacity_blocks: u64,
    /// Specifications and written blocks, in the order of their numbers.
    pub namespaces: Vec<(Spec, u64)>,
}

/// End of the data of a v-zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Given by the write pointers of its physical zones.
    #[default]
    Open,
    /// After this number of blocks; the last group has to be relocated before anything else is written.
    Sealed(u64),
    /// After this number of blocks, and the v-zone is full.
    Finished(u64),
}

/// The stripe groups of a v-zone, one behind the other, with their physical zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StripeGroups {
    zones: [u32; MOST_ZONES],
    /// Width in zones, and unit in blocks, of each group.
    shapes: [(u8, u16); MOST_ZONES],
    count: u8,
    used: u8,
}

impl StripeGroups {
    /// Number of groups.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Physical zones of all groups, in order.
    pub fn zones(&self) -> &[u32] {
        &self.zones[..self.used as usize]
    }

    /// Width in zones and unit in blocks of a group, and its zones; `None` if there is no such group.
    pub fn group(&self, index: usize) -> Option<(u32, u32, &[u32])> {
        let before: usize = self.shapes.iter().take(index).map(|shape| shape.0 as usize).sum();
        let (width, unit) = *self.shapes[..self.len()].get(index)?;
        Some((width as u32, unit as u32, self.zones.get(before..before + width as usize)?))
    }

    /// Adds a group. `false`, without a change, if there is no room for it.
    pub fn push(&mut self, zones: &[u32], unit_blocks: u32) -> bool {
        let (used, count) = (self.used as usize, self.len());
        let fits = !zones.is_empty() && used + zones.len() <= MOST_ZONES && unit_blocks <= u16::MAX as u32;
        if fits {
            self.zones[used..used + zones.len()].copy_from_slice(zones);
            self.shapes[count] = (zones.len() as u8, unit_blocks as u16);
            self.count += 1;
            self.used += zones.len() as u8;
        }
        fits
    }

    /// The first `count` groups.
    pub fn first(&self, count: usize) -> StripeGroups {
        let mut groups = StripeGroups::default();
        for index in 0..count.min(self.len()) {
            if let Some((_, unit, zones)) = self.group(index) {
                groups.push(zones, unit);
            }
        }
        groups
    }
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// Parameters of the device: the first entry of every checkpoint.
    Identity(DeviceIdentity),
    /// A namespace, by number, was added or changed.
    Namespace(u32, Spec),
    /// The namespace is removed, and its v-zones are empty.
    Removed(u32),
    /// State of a v-zone, by the numbers of namespace and v-zone.
    Vzone(u32, u32, StripeGroups, End),
}

/// Upper bound of the blocks of a checkpoint of so many namespaces, v-zones and physical zones.
pub fn most_checkpoint_blocks(namespaces: u64, vzones: u64, zones: u64) -> u64 {
    const IDENTITY: u64 = 45;
    const NAMESPACE: u64 = 46 + MOST_NAME as u64;
    const VZONE: u64 = 19;
    // In a group of its own: width, unit, and the number of the zone.
    const ZONE: u64 = 7;
    // A block may lack the bytes of an entry that did not fit.
    const BYTES: u64 = BLOCK as u64 - HEADER as u64 - (VZONE + MOST_ZONES as u64 * ZONE);
    (IDENTITY + namespaces * NAMESPACE + vzones * VZONE + zones * ZONE).div_ceil(BYTES)
}

/// Header of a journal block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// See [`DeviceIdentity::mark`].
    pub mark: u64,
    /// Number of the checkpoint that the block belongs to, or follows.
    pub generation: u64,
    /// Number of the next zone reservation.
    pub serial: u64,
    /// Blocks from the start of the zone.
    pub offset: u32,
    /// 0 for a record, 1 for a block of a checkpoint, 2 for the last block of a checkpoint.
    pub kind: u8,
}

/// Builder of the journal blocks of a checkpoint or a record.
#[derive(Default)]
pub struct BlockFiller {
    blocks: Vec<(u16, Vec<u8>)>,
}

impl BlockFiller {
    /// Adds an entry, in a new block if the last one has no room.
    pub fn add(&mut self, entry: &JournalEntry) {
        let mut bytes = Encoder::default();
        encode(entry, &mut bytes);
        assert!(bytes.0.len() <= BLOCK - HEADER, "a journal entry of {} bytes", bytes.0.len());
        let room = self.blocks.last().is_some_and(|(_, b)| b.len() + bytes.0.len() <= BLOCK - HEADER);
        if !room {
            self.blocks.push((0, Vec::new()));
        }
        if let Some((count, block)) = self.blocks.last_mut() {
            *count += 1;
            block.extend_from_slice(&bytes.0);
        }
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Writes block `index` with its header.
    pub fn seal(&self, index: usize, head: JournalHeader, block: &mut [u8]) {
        assert!(index < self.len(), "block {index} of a record or a checkpoint of {} blocks", self.len());
        let (count, entries) = &self.blocks[index];
        let JournalHeader { mark, generation, serial, offset, kind } = head;
        let mut bytes = Encoder::default();
        bytes.u64(serial).u16(*count).bytes(entries);
        block.fill(0);
        block[FRAME_BYTES..][..bytes.0.len()].copy_from_slice(&bytes.0);
        let (last, kind) = (kind == 2, kind.min(CHECKPOINT));
        JOURNAL.seal(block, Frame { mark, generation, version: VERSION, kind, last, index: offset });
    }
}

/// Decodes a journal block.
///
/// # Errors
/// When it is none, is torn or damaged, or of a version that is not supported.
pub fn read(block: &[u8]) -> Result<(JournalHeader, Vec<JournalEntry>), FrameError> {
    match JOURNAL.unseal(block) {
        Ok((frame, payload)) => read_payload(frame, payload).ok_or(FrameError::Other),
        Err(_) if JOURNAL_3.verified(block).is_some() => read_3(block),
        // Of version 3, with the flipped bit in its magic.
        Err(FrameError::Version(_)) if read_3(block).is_ok() => Err(FrameError::Other),
        Err(error) => Err(error),
    }
}

fn read_payload(frame: Frame, payload: &[u8]) -> Option<(JournalHeader, Vec<JournalEntry>)> {
    let Frame { mark, generation, kind, last, index: offset, version } = frame;
    let kind = match (kind, last) {
        (RECORD, false) => 0,
        (CHECKPOINT, last) => 1 + last as u8,
        _ => return None,
    };
    let mut from = Decoder(payload);
    let (serial, count) = (from.u64().ok()?, from.u16().ok()?);
    Some((JournalHeader { mark, generation, serial, offset, kind }, decode_all(&mut from, count, version)?))
}

/// Decodes a journal block with the header of version 3, whose magic and checksum are not looked at.
fn read_3(block: &[u8]) -> Result<(JournalHeader, Vec<JournalEntry>), FrameError> {
    let fields = || -> Result<_, TooShort> {
        let mut from = Decoder(block.get(8..).unwrap_or_default());
        let (mark, generation, serial) = (from.u64()?, from.u64()?, from.u64()?);
        let (offset, version, count, kind) = (from.u32()?, from.u16()?, from.u16()?, from.u8()?);
        Ok((JournalHeader { mark, generation, serial, offset, kind }, version, count))
    };
    let (header, version, count) = fields().map_err(|_| FrameError::Other)?;
    if version != OLDEST_VERSION {
        return Err(FrameError::Version(version));
    }
    let mut from = Decoder(block.get(HEADER_3..).unwrap_or_default());
    Ok((header, decode_all(&mut from, count, version).ok_or(FrameError::Other)?))
}

/// Whether a block is a journal block of any version, also a damaged one.
pub fn looks_like_journal(block: &[u8]) -> bool {
    JOURNAL.resembles(block) || JOURNAL_3.resembles(block)
}

fn encode(entry: &JournalEntry, to: &mut Encoder) {
    match entry {
        JournalEntry::Identity(identity) => {
            to.u8(1).bytes(&identity.uuid).u32(identity.zones).u64(identity.zone_capacity_blocks);
            to.u32(identity.vzone_zones).u32(identity.lead_blocks).u64(identity.features);
        }
        JournalEntry::Namespace(id, spec) => {
            to.u8(2).u32(*id).u32(spec.zones).u32(spec.max_active).u32(spec.max_open);
            let Qos { limits, floors, latency_us } = spec.qos;
            to.u32(spec.essential).u32(spec.weight).u32(limits.requests).u32(limits.blocks);
            to.u32(floors.requests).u32(floors.blocks).u32(latency_us);
            to.u8(spec.name.len() as u8).bytes(spec.name.as_bytes());
        }
        JournalEntry::Removed(id) => {
            to.u8(3).u32(*id);
        }
        JournalEntry::Vzone(id, zone, groups, end) => {
            let (kind, blocks) = match end {
                End::Open => (0, 0),
                End::Sealed(blocks) => (1, *blocks),
                End::Finished(blocks) => (2, *blocks),
            };
            to.u8(4).u32(*id).u32(*zone).u8(kind).u64(blocks).u8(groups.count);
            for index in 0..groups.len() {
                if let Some((width, unit, zones)) = groups.group(index) {
                    to.u8(width as u8).u16(unit as u16);
                    zones.iter().for_each(|zone| _ = to.u32(*zone));
                }
            }
        }
    }
}

/// Decodes `count` entries; `None` if one is invalid.
fn decode_all(from: &mut Decoder<'_>, count: u16, version: u16) -> Option<Vec<JournalEntry>> {
    (0..count).map(|_| decode(from, version).ok().flatten()).collect()
}

/// Decodes an entry; `None` if it is invalid.
fn decode(from: &mut Decoder<'_>, version: u16) -> Result<Option<JournalEntry>, TooShort> {
    Ok(Some(match from.u8()? {
        1 => JournalEntry::Identity(DeviceIdentity {
            uuid: from.array()?,
            zones: from.u32()?,
            zone_capacity_blocks: from.u64()?,
            vzone_zones: from.u32()?,
            lead_blocks: from.u32()?,
            features: if version > OLDEST_VERSION { from.u64()? } else { 0 },
        }),
        2 => {
            let (id, zones, max_active, max_open) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
            let (essential, weight) = (from.u32()?, from.u32()?);
            let mut rates = || Ok(Rates { requests: from.u32()?, blocks: from.u32()? });
            let (limits, floors) = (rates()?, rates()?);
            let qos = Qos { limits, floors, latency_us: from.u32()? };
            let len = from.u8()?;
            let Ok(name) = String::from_utf8(from.bytes(len as usize)?.to_vec()) else { return Ok(None) };
            JournalEntry::Namespace(id, Spec { name, zones, max_active, max_open, essential, weight, qos })
        }
        3 => JournalEntry::Removed(from.u32()?),
        4 => {
            let (id, zone, kind, blocks) = (from.u32()?, from.u32()?, from.u8()?, from.u64()?);
            let mut groups = StripeGroups::default();
            for _ in 0..from.u8()? {
                let (width, unit) = (from.u8()?, from.u16()?);
                let zones = (0..width).map(|_| from.u32()).collect::<Result<Vec<u32>, TooShort>>()?;
                if unit == 0 || !groups.push(&zones, unit as u32) {
                    return Ok(None);
                }
            }
            let end = match kind {
                0 => End::Open,
                1 => End::Sealed(blocks),
                2 => End::Finished(blocks),
                _ => return Ok(None),
            };
            JournalEntry::Vzone(id, zone, groups, end)
        }
        _ => return Ok(None),
    }))
}

/// Fills the lead of a physical zone: the reservation, and zeros. The first write to a zone makes the drive choose its
/// place on the dies.
pub fn reservation(mark: u64, serial: u64, blocks: &mut [u8]) {
    blocks.fill(0);
    let frame = Frame { mark, generation: serial, version: 0, kind: 0, last: false, index: 0 };
    RESERVED.seal(&mut blocks[..BLOCK], frame);
}

/// Whether a block is a reservation, of any device with namespaces.
pub fn is_reservation(block: &[u8]) -> bool {
    RESERVED.unseal(block).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<JournalEntry> {
        let mut groups = StripeGroups::default();
        assert!(groups.push(&[3, 4], 8));
        assert!(groups.push(&[9, 10, 11, 12], 1024));
        let (limits, floors) = (Rates { requests: 700, blocks: 0 }, Rates { requests: 6, blocks: 99 });
        let qos = Qos { limits, floors, latency_us: 1500 };
        let name = "db".into();
        let identity = DeviceIdentity {
            uuid: [7; 16],
            zones: 40,
            zone_capacity_blocks: 99,
            vzone_zones: 16,
            lead_blocks: 5,
            features: 1 << 50,
        };
        let spec = Spec { name, zones: 9, max_active: 3, max_open: 2, essential: 2, weight: 5, qos };
        vec![
            JournalEntry::Identity(identity),
            JournalEntry::Namespace(3, spec),
            JournalEntry::Removed(8),
            JournalEntry::Vzone(3, 5, groups, End::Finished(77)),
            JournalEntry::Vzone(3, 6, StripeGroups::default(), End::Sealed(0)),
        ]
    }

    #[test]
    fn vzone_capacity_is_whole_segments_with_small_loss() {
        let of = |vzone_zones, zone_capacity_blocks| {
            let uuid = [0; 16];
            DeviceIdentity { uuid, zones: 99, zone_capacity_blocks, vzone_zones, lead_blocks: 1, features: 0 }
                .vzone_blocks()
        };
        assert_eq!((of(2, 6144), of(16, 275_712)), (23 * 512, 8615 * 512));
        assert_eq!((of(1, 4), of(3, 16), of(3, 24), of(16, 17)), (3, 45, 68, 256));
    }

    #[test]
    fn checkpoint_is_no_larger_than_its_bound() {
        let identity = entries().remove(0);
        let name = "n".repeat(MOST_NAME);
        let qos = Qos::default();
        let spec = Spec { name, zones: 9, max_active: 3, max_open: 2, essential: 2, weight: 5, qos };
        for namespaces in [0, 1, 17, MOST_NAMESPACES as u32] {
            for (vzones, zones) in [(0, 0), (1, 1), (1, 16), (40, 1), (7, 16)] {
                let mut filler = BlockFiller::default();
                filler.add(&identity);
                let mut groups = StripeGroups::default();
                (0..zones).for_each(|zone| assert!(groups.push(&[zone], 1)));
                for id in 0..namespaces {
                    filler.add(&JournalEntry::Namespace(id, spec.clone()));
                    let add =
                        |zone| filler.add(&JournalEntry::Vzone(id, zone, groups, End::Finished(u64::MAX)));
                    (0..vzones).for_each(add);
                }
                let n = namespaces as u64;
                let most = most_checkpoint_blocks(n, n * vzones as u64, n * (vzones * zones) as u64);
                let used = filler.len() as u64;
                assert!(used <= most && most <= used + used / 16 + 1, "{used} blocks, at most {most}");
            }
        }
    }

    #[test]
    fn vzone_metadata_reads_back_and_rejects_changed_bytes() {
        let mut filler = BlockFiller::default();
        entries().iter().for_each(|entry| filler.add(entry));
        let head = JournalHeader { mark: 5, generation: 9, serial: 1000, offset: 3, kind: 2 };
        let mut block = vec![0; BLOCK];
        filler.seal(0, head, &mut block);
        assert_eq!(read(&block), Ok((head, entries())));
        for at in 0..BLOCK {
            block[at] ^= 0x10;
            assert_eq!(read(&block), Err(FrameError::Other), "byte {at}");
            block[at] ^= 0x10;
        }
        assert_eq!(read(&vec![0; BLOCK]), Err(FrameError::Other));
    }

    #[test]
    fn vzone_metadata_entries_continue_in_next_block() {
        let mut filler = BlockFiller::default();
        let mut all = Vec::new();
        for _ in 0..100 {
            entries().iter().for_each(|entry| filler.add(entry));
            all.extend(entries());
        }
        assert!(filler.len() > 2);
        let mut found = Vec::new();
        for index in 0..filler.len() {
            let mut block = vec![0; BLOCK];
            let head = JournalHeader { mark: 0, generation: 0, serial: 0, offset: index as u32, kind: 1 };
            filler.seal(index, head, &mut block);
            found.extend(read(&block).unwrap().1);
        }
        assert_eq!(found, all);
    }

    #[test]
    fn stripe_groups_keep_order_and_refuse_excess_zones() {
        let mut groups = StripeGroups::default();
        assert!(groups.push(&[1, 2], 8) && groups.push(&[5], 8));
        assert_eq!(groups.group(1), Some((1, 8, &[5][..])));
        assert_eq!(groups.group(2), None);
        assert!(!groups.push(&[0; 14], 8));
        assert_eq!(groups.zones(), [1, 2, 5]);
        assert_eq!(groups.first(1).zones(), [1, 2]);
        assert!(groups.first(0).is_empty());
    }
}
