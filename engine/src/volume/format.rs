//! What lies on the device: headers of groups, and sealed blocks of which maps and roots are made.
//!
//! Every number is little-endian. Whatever is read is checked (magic, volume, place, checksum) before it is
//! believed. A group's header says where it lies and in which life of its zone, so that no copy of it anywhere
//! else is taken for one.

use crate::{
    buf::BLOCK,
    evidence::is_nearly,
    format::codec::{Decoder, Encoder},
    volume::{
        pack::Codec,
        place::{GRAINS, Place, Unit},
    },
};

/// Version of everything in here. A change of any layout raises it.
pub const VERSION: u16 = 5;

/// First bytes of a group, and of a sealed block.
const GROUP: u32 = u32::from_le_bytes(*b"zvg1");
const SEALED: u32 = u32::from_le_bytes(*b"zvs1");

/// Bytes before the entries of a group, and of an entry.
const GROUP_HEADER: usize = 64;
const ENTRY: usize = 16;

/// Numbers of entries, segments and generations are below this, so that they can be counted on.
pub const MOST_NUMBER: u64 = 1 << 56;

/// What all that is in a block of a zone counts for at most, in grains. Short pieces count for more than they are.
const MOST_LIVE: u64 = 2 * GRAINS as u64;

/// Most entries of a group.
pub const MOST_ENTRIES: u64 = ((BLOCK - GROUP_HEADER) / ENTRY) as u64;

/// Bytes before the payload of a sealed block.
const SEAL: usize = 32;

/// Bytes that a sealed block holds.
pub const PAYLOAD: usize = BLOCK - SEAL;

/// Bytes of a place, and places in a page of the map, or in a block of its directory: all blocks of a unit are in one.
const ADDRESS: usize = 6;
pub const FANOUT: u64 = (PAYLOAD / ADDRESS / 16 * 16) as u64;

/// Bytes of a block in which checksums of groups and sealed blocks lie, and from which on they count.
const SUM: std::ops::Range<usize> = 4..8;

/// What an entry of a group says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The next piece of the group, of so many grains, is of the unit that begins with the logical block: those of its
    /// blocks that have a bit are there now. Others were not any more when it was moved.
    Data { unit: Unit, grains: u32, there: u16 },
    /// So many logical blocks are discarded.
    Discard(u32),
}

impl What {
    /// Grains of the piece that it speaks of.
    pub fn grains(self) -> u32 {
        if let What::Data { grains, .. } = self { grains } else { 0 }
    }

    /// The unit whose piece it speaks of.
    pub fn unit(self) -> Unit {
        if let What::Data { unit, .. } = self { unit } else { Unit::BLOCK }
    }

    /// From the first logical block on, those that it speaks of are among so many.
    pub fn blocks(self) -> u64 {
        match self {
            What::Data { there, .. } => 16 - there.leading_zeros() as u64,
            What::Discard(blocks) => blocks as u64,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the order of all entries of the volume.
    pub number: u64,
    /// The first logical block.
    pub block: u32,
    pub what: What,
}

/// Where a group lies, and what it is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    pub volume: u64,
    pub segment: u64,
    /// Blocks from the start of the zone to the header.
    pub offset: u32,
    pub stream: u8,
}

/// The header of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    pub place: GroupPlace,
    /// Blocks of the group, with the header and what fills up the zone.
    pub blocks: u32,
    pub entries: Vec<Entry>,
}

impl GroupHeader {
    /// Whether this is the group at `offset` of a zone of this volume with so many blocks: it lies inside of the
    /// zone, and leaves room for a group or for nothing.
    pub fn is_at(&self, volume: u64, offset: u32, capacity: u32) -> bool {
        let left = capacity.checked_sub(offset).and_then(|left| left.checked_sub(self.blocks));
        (self.place.volume, self.place.offset) == (volume, offset) && left.is_some_and(|left| left != 1)
    }
}

/// Writes entry `index` of a group into its header block. `first` is the number of the group's first entry.
///
/// An entry is 4 bytes each of: the number less `first`; the logical block; how many are discarded, or a bit for each
/// block of the unit that is there (16 bits) and the number of the unit; the grains of its piece, 0 if it has none.
pub fn put_entry(header: &mut [u8], index: usize, first: u64, entry: Entry) {
    let (blocks, grains) = match entry.what {
        What::Data { unit, grains, there } => (there as u32 | (unit.number() as u32) << 16, grains),
        What::Discard(blocks) => (blocks, 0),
    };
    let delta = (entry.number - first) as u32;
    let bytes = &mut header[GROUP_HEADER + index * ENTRY..][..ENTRY];
    for (field, value) in bytes.chunks_exact_mut(4).zip([delta, entry.block, blocks, grains]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
}

/// Completes the header block of a group whose `entries` entries have been put.
pub fn seal_group(header: &mut [u8], place: GroupPlace, blocks: u32, first: u64, entries: usize) {
    let used = GROUP_HEADER + entries * ENTRY;
    header[used..].fill(0);
    header[..GROUP_HEADER].fill(0);
    header[0..4].copy_from_slice(&GROUP.to_le_bytes());
    header[8..16].copy_from_slice(&place.volume.to_le_bytes());
    header[16..24].copy_from_slice(&place.segment.to_le_bytes());
    header[24..32].copy_from_slice(&first.to_le_bytes());
    header[32..36].copy_from_slice(&place.offset.to_le_bytes());
    header[36..40].copy_from_slice(&blocks.to_le_bytes());
    header[40..42].copy_from_slice(&(entries as u16).to_le_bytes());
    header[42..44].copy_from_slice(&VERSION.to_le_bytes());
    header[44] = place.stream;
    let sum = crc32c::crc32c(&header[SUM.end..used]);
    header[SUM].copy_from_slice(&sum.to_le_bytes());
}

/// Reads the header of a group; `None` if it is none.
pub fn read_group(block: &[u8]) -> Option<GroupHeader> {
    let mut from = Decoder(block);
    let (magic, sum) = (from.u32().ok()?, from.u32().ok()?);
    let (volume, segment, first) = (from.u64().ok()?, from.u64().ok()?, from.u64().ok()?);
    let (offset, blocks) = (from.u32().ok()?, from.u32().ok()?);
    let (count, version, stream) = (from.u16().ok()? as u64, from.u16().ok()?, from.u8().ok()?);
    if magic != GROUP || version != VERSION || count > MOST_ENTRIES {
        return None;
    }
    let used = GROUP_HEADER + count as usize * ENTRY;
    if crc32c::crc32c(block.get(SUM.end..used)?) != sum {
        return None;
    }
    let mut from = Decoder(&block[GROUP_HEADER..used]);
    let mut entries = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (delta, logical) = (from.u32().ok()?, from.u32().ok()?);
        let (blocks, grains) = (from.u32().ok()?, from.u32().ok()?);
        let what = match (blocks, grains) {
            (1.., 0) => What::Discard(blocks),
            _ => {
                let (unit, there) = (Unit::of_number(u8::try_from(blocks >> 16).ok()?)?, blocks as u16);
                let speaks = there != 0
                    && there & unit.mask() == there
                    && unit.first(logical.into()) == logical as u64;
                let what = What::Data { unit, grains, there };
                (speaks && unit.is_sane(grains)).then_some(what)?
            }
        };
        entries.push(Entry { number: first.checked_add(delta as u64)?, block: logical, what });
        if entries.last().is_some_and(|entry| entry.number + 1 >= MOST_NUMBER) {
            return None;
        }
    }
    let data: u32 = entries.iter().map(|entry| entry.what.grains()).sum();
    let place = GroupPlace { volume, segment, offset, stream };
    // The next root has the numbers that follow.
    let sane = blocks > data.div_ceil(GRAINS) && segment < MOST_NUMBER - 1;
    sane.then_some(GroupHeader { place, blocks, entries })
}

/// Whether a block is the header of a group, or was before a bit of it was changed.
pub fn looks_like_group(block: &[u8]) -> bool {
    read_group(block).is_some() || block.starts_with(&GROUP.to_le_bytes())
}

/// What a sealed block is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A page of the map.
    Page = 1,
    /// A block of its directory.
    Directory = 2,
    /// A block of a root; `index` counts them, and the last one has `last` set.
    Root = 3,
}

/// What the header of a sealed block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    pub volume: u64,
    /// Of the checkpoint that has written it.
    pub generation: u64,
    pub kind: Kind,
    pub last: bool,
    pub index: u32,
}

/// Puts the header before the payload of a block.
pub fn seal(block: &mut [u8], seal: Seal) {
    block[0..4].copy_from_slice(&SEALED.to_le_bytes());
    block[8..16].copy_from_slice(&seal.volume.to_le_bytes());
    block[16..24].copy_from_slice(&seal.generation.to_le_bytes());
    block[24..26].copy_from_slice(&VERSION.to_le_bytes());
    block[26] = seal.kind as u8;
    block[27] = seal.last as u8;
    block[28..32].copy_from_slice(&seal.index.to_le_bytes());
    let sum = crc32c::crc32c(&block[SUM.end..]);
    block[SUM].copy_from_slice(&sum.to_le_bytes());
}

/// Why a block is no sealed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsealed {
    /// Something else is there, or it is torn or changed.
    Other,
    /// It is of another format version.
    Version(u16),
}

/// Reads the header of a sealed block; the payload is what follows.
///
/// # Errors
/// If it is none.
pub fn unseal(block: &[u8]) -> Result<(Seal, &[u8]), Unsealed> {
    let number = |at: usize| block[at..].iter().take(8).rev().fold(0, |sum, byte| sum << 8 | *byte as u64);
    let word = |at: usize| number(at) as u32;
    if block.len() != BLOCK || word(0) != SEALED || word(SUM.start) != crc32c::crc32c(&block[SUM.end..]) {
        return Err(Unsealed::Other);
    }
    let version = word(24) as u16;
    if version != VERSION {
        return Err(Unsealed::Version(version));
    }
    let kind = [Kind::Page, Kind::Directory, Kind::Root].into_iter().find(|kind| *kind as u8 == block[26]);
    let kind = kind.ok_or(Unsealed::Other)?;
    let seal =
        Seal { volume: number(8), generation: number(16), kind, last: block[27] == 1, index: word(28) };
    Ok((seal, &block[SEAL..]))
}

/// Whether a block is a sealed one, of whatever version, or was before a bit of it was changed.
pub fn looks_sealed(block: &[u8]) -> bool {
    let Some((head, rest)) = block.split_first_chunk::<8>() else { return false };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    word(0) == SEALED || is_nearly(word(0), SEALED) && word(SUM.start) == crc32c::crc32c(rest)
}

/// The addresses of a page, or of a block of the directory.
pub fn addresses(block: &[u8]) -> impl Iterator<Item = Place> {
    let places = block[SEAL..].as_chunks::<ADDRESS>().0.iter();
    places
        .take(FANOUT as usize)
        .map(|[a, b, c, d, e, f]| Place::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0]))
}

/// Puts as many addresses into a page, or a block of the directory, as fit; zeros where there are none.
pub fn put_addresses(block: &mut [u8], addresses: impl Iterator<Item = Place>) {
    let all = addresses.take(FANOUT as usize).chain(std::iter::repeat(0));
    for (bytes, address) in block[SEAL..].as_chunks_mut::<ADDRESS>().0.iter_mut().zip(all) {
        bytes.copy_from_slice(&address.to_le_bytes()[..ADDRESS]);
    }
}

/// The payload of a sealed block, to write.
pub fn payload_mut(block: &mut [u8]) -> &mut [u8] {
    &mut block[SEAL..]
}

/// What a zone is, in a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneRecord {
    /// What in it is in use counts for, in grains.
    pub live: u32,
    pub state: ZoneUse,
    /// The life of the zone; 0 if it is free or holds pages.
    pub segment: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZoneUse {
    #[default]
    Free = 0,
    /// It is being written.
    Data = 1,
    Map = 2,
    /// It is closed: nothing is written to it any more.
    ClosedData = 3,
    ClosedMap = 4,
    /// It can be written no more, and is not reset: the device says so.
    Lost = 5,
}

impl ZoneUse {
    fn from_value(value: u8) -> Option<ZoneUse> {
        use ZoneUse::*;
        [Free, Data, Map, ClosedData, ClosedMap, Lost].into_iter().find(|used| *used as u8 == value)
    }
}

/// Where a stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutRecord {
    pub stream: u8,
    pub zone: u32,
    /// Everything below this offset is before the cut.
    pub offset: u32,
    /// The write pointer is not below this; between the two is what a power cut has torn.
    pub written: u32,
}

/// What its users may write at least: what they call a sector, for as long as the volume lives. The volume itself
/// knows blocks alone: parts of one are for whoever shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SectorSize {
    /// Eighths of a block, for what can do nothing else.
    B512 = 512,
    /// A block.
    #[default]
    B4096 = 4096,
}

impl SectorSize {
    /// The size of so many bytes, if it is one.
    pub fn from_bytes(bytes: u32) -> Option<SectorSize> {
        [SectorSize::B512, SectorSize::B4096].into_iter().find(|size| *size as u32 == bytes)
    }
}

/// What a volume is: never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uuid: [u8; 16],
    /// Logical blocks.
    pub blocks: u64,
    /// Of the device, in blocks, and how many.
    pub zone_capacity_blocks: u64,
    pub zones: u32,
    pub sector: SectorSize,
}

impl Identity {
    /// What groups and sealed blocks are marked with.
    pub fn mark(&self) -> u64 {
        let mark = crc32c::crc32c(&self.uuid);
        self.uuid.iter().fold(mark as u64, |sum, byte| sum.rotate_left(8) ^ *byte as u64)
    }
}

/// The state of a volume at a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub identity: Identity,
    pub generation: u64,
    pub next_number: u64,
    pub next_segment: u64,
    /// The age at which a version counts as hot, in segments.
    pub lifespan: u64,
    /// Logical blocks that are mapped.
    pub mapped: u64,
    /// How new data is compressed, and how much of it together.
    pub codec: Option<Codec>,
    pub unit: Unit,
    /// Seconds for which a write waits for room; 0 if it fails at once.
    pub queue_seconds: u8,
    pub cuts: Vec<CutRecord>,
    /// Where the blocks of the directory are.
    pub directory: Vec<Place>,
    /// Of every zone.
    pub zones: Vec<ZoneRecord>,
}

impl Root {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        let Identity { uuid, blocks, zone_capacity_blocks, zones, sector } = &self.identity;
        out.bytes(uuid).u64(*blocks).u64(*zone_capacity_blocks).u32(*zones).u32(*sector as u32);
        out.u64(self.generation).u64(self.next_number).u64(self.next_segment).u64(self.lifespan);
        let [codec, level] = Codec::in_root(self.codec);
        out.u64(self.mapped).u32(u32::from_le_bytes([codec, level, self.unit.number(), self.queue_seconds]));
        out.u32(self.cuts.len() as u32).u32(self.directory.len() as u32);
        for cut in &self.cuts {
            out.u32(cut.stream as u32).u32(cut.zone).u32(cut.offset).u32(cut.written);
        }
        for at in &self.directory {
            out.u32(*at as u32);
        }
        for zone in &self.zones {
            out.u32(zone.live).u64(zone.segment << 8 | zone.state as u64);
        }
        out.0
    }

    /// Reads a root; `None` if it makes no sense.
    pub fn decode(bytes: &[u8]) -> Option<Root> {
        let mut from = Decoder(bytes);
        let identity = Identity {
            uuid: from.array().ok()?,
            blocks: from.u64().ok()?,
            zone_capacity_blocks: from.u64().ok()?,
            zones: from.u32().ok()?,
            sector: SectorSize::from_bytes(from.u32().ok()?)?,
        };
        let (generation, next_number) = (from.u64().ok()?, from.u64().ok()?);
        let (next_segment, lifespan) = (from.u64().ok()?, from.u64().ok()?);
        let (mapped, [codec, level, unit, queue_seconds]) =
            (from.u64().ok()?, from.u32().ok()?.to_le_bytes());
        let (codec, unit) = (Codec::of_root([codec, level])?, Unit::of_number(unit)?);
        let (cuts, directory) = (from.u32().ok()?, from.u32().ok()?);
        let whole = bytes.len() as u64;
        let numbers = [generation, next_number, next_segment, lifespan, mapped];
        if numbers.iter().any(|number| *number >= MOST_NUMBER) {
            return None;
        }
        if cuts as u64 > whole || directory as u64 > whole || identity.zones as u64 > whole {
            return None;
        }
        let mut root = Root {
            identity,
            generation,
            next_number,
            next_segment,
            lifespan,
            mapped,
            codec,
            unit,
            queue_seconds,
            cuts: Vec::new(),
            directory: Vec::new(),
            zones: Vec::new(),
        };
        for _ in 0..cuts {
            let (stream, zone) = (from.u32().ok()?, from.u32().ok()?);
            let (offset, written) = (from.u32().ok()?, from.u32().ok()?);
            let sane = zone < root.identity.zones && offset as u64 <= root.identity.zone_capacity_blocks;
            let stream = u8::try_from(stream).ok().filter(|_| sane && written <= offset)?;
            root.cuts.push(CutRecord { stream, zone, offset, written });
        }
        for _ in 0..directory {
            root.directory.push(from.u32().ok()? as Place);
        }
        for _ in 0..root.identity.zones {
            let (live, packed) = (from.u32().ok()?, from.u64().ok()?);
            let state = ZoneUse::from_value(packed as u8)?;
            let segment = packed >> 8;
            if segment >= next_segment.max(1)
                || live as u64 > root.identity.zone_capacity_blocks.saturating_mul(MOST_LIVE)
            {
                return None;
            }
            root.zones.push(ZoneRecord { live, state, segment });
        }
        Some(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> GroupPlace {
        GroupPlace { volume: 7, segment: 9, offset: 33, stream: 2 }
    }

    fn data(number: u64, block: u32, (unit, grains, there): (Unit, u32, u16)) -> Entry {
        Entry { number, block, what: What::Data { unit, grains, there } }
    }

    #[test]
    fn a_group_is_read_as_it_was_written_and_any_changed_bit_is_seen() {
        let entries = [
            data(100, 5, (Unit::BLOCK, GRAINS, 1)),
            Entry { number: 103, block: 77, what: What::Discard(1000) },
            data(104, u32::MAX, (Unit::BLOCK, 1, 1)),
            data(105, 48, (Unit::MOST, 64, 0x8001)),
        ];
        let mut block = vec![0xaa; BLOCK];
        for (index, entry) in entries.into_iter().enumerate() {
            put_entry(&mut block, index, 100, entry);
        }
        seal_group(&mut block, place(), 4, 100, 4);
        let header = read_group(&block).unwrap();
        assert_eq!(header, GroupHeader { place: place(), blocks: 4, entries: entries.to_vec() });
        for at in 0..GROUP_HEADER + 4 * ENTRY {
            block[at] ^= 4;
            assert_eq!(read_group(&block), None, "byte {at}");
            block[at] ^= 4;
        }
        // Blocks for its data, and no more entries than there is room for.
        seal_group(&mut block, place(), 3, 100, 4);
        assert_eq!(read_group(&block), None);
    }

    #[test]
    fn an_entry_speaks_of_blocks_of_its_unit_and_a_piece_is_as_long_as_there_can_be() {
        let is_read = |entry: Entry| {
            let mut block = vec![0; BLOCK];
            put_entry(&mut block, 0, entry.number, entry);
            seal_group(&mut block, place(), 20, entry.number, 1);
            read_group(&block).is_some()
        };
        let unit = |blocks: u32| Unit::from_bytes(blocks as u64 * BLOCK as u64).unwrap();
        for (block, piece) in
            [(16, (unit(16), 8, 1 << 15)), (6, (unit(2), 112, 3)), (7, (Unit::BLOCK, GRAINS, 1))]
        {
            assert!(is_read(data(9, block, piece)), "{block} {piece:?}");
        }
        for (block, piece) in [
            (16, (unit(16), 9, 1)),
            (16, (unit(16), 904, 1)),
            (24, (unit(16), 8, 1)),
            (16, (unit(16), 8, 0)),
            (16, (unit(8), 8, 1 << 8)),
            (7, (Unit::BLOCK, GRAINS + 1, 1)),
            (7, (Unit::BLOCK, GRAINS, 2)),
        ] {
            assert!(!is_read(data(9, block, piece)), "{block} {piece:?}");
        }
        let mut block = vec![0; BLOCK];
        put_entry(&mut block, 0, 9, data(9, 32, (Unit::MOST, 8, 1)));
        // A unit of 32.
        block[GROUP_HEADER + 10] = 5;
        seal_group(&mut block, place(), 20, 9, 1);
        assert_eq!(read_group(&block), None);
    }

    #[test]
    fn a_sealed_block_is_read_as_it_was_written_and_any_changed_bit_is_seen() {
        let mut block = vec![0x55; BLOCK];
        put_addresses(&mut block, [7, (1 << 48) - 12345].into_iter());
        let header = Seal { volume: 1 << 63, generation: 8, kind: Kind::Directory, last: true, index: 6 };
        seal(&mut block, header);
        assert_eq!(unseal(&block).unwrap().0, header);
        let addresses: Vec<Place> = addresses(&block).collect();
        assert_eq!((addresses.len() as u64, &addresses[..3]), (FANOUT, &[7, (1 << 48) - 12345, 0][..]));
        for at in (0..BLOCK).step_by(7) {
            block[at] ^= 1;
            assert_eq!(unseal(&block), Err(Unsealed::Other), "byte {at}");
            block[at] ^= 1;
        }
    }

    #[test]
    fn a_root_is_read_as_it_was_written_and_none_that_is_too_short() {
        let identity = Identity {
            uuid: *b"sixteen bytes...",
            blocks: 1 << 32,
            zone_capacity_blocks: 50,
            zones: 2,
            sector: SectorSize::B512,
        };
        let root = Root {
            identity,
            generation: 3,
            next_number: 4,
            next_segment: (1 << 40) + 1,
            lifespan: 6,
            mapped: 5,
            codec: Some(Codec::Lz4),
            unit: Unit::MOST,
            queue_seconds: 60,
            cuts: vec![CutRecord { stream: 1, zone: 1, offset: 50, written: 49 }],
            directory: vec![0, 9, 8],
            zones: vec![
                ZoneRecord { live: 4, state: ZoneUse::ClosedData, segment: 1 << 40 },
                ZoneRecord::default(),
            ],
        };
        let bytes = root.encode();
        assert_eq!(Root::decode(&bytes).as_ref(), Some(&root));
        for len in 0..bytes.len() {
            assert_eq!(Root::decode(&bytes[..len]), None, "{len} bytes");
        }
    }
}
