//! The on-disk format: headers of groups, and the sealed blocks of maps and roots.
//!
//! Numbers are little-endian. Every block is checked (magic, volume, place, checksum) before it is used: blocks of maps
//! and roots have a [frame](crate::frame). The header of a group names its offset and the segment of its zone, so that
//! a copy of it elsewhere is rejected.

use crate::{
    buf::BLOCK,
    format::codec::Decoder,
    frame::{FRAME_BYTES, Frame, FrameError, FrameFormat, PAYLOAD_BYTES},
    volume::address::{self, Address, GRAIN, GRAINS, Unit},
};

/// Version of the format. Every change of a layout raises it.
pub const VERSION: u16 = 7;

/// The oldest version that can be read.
pub const OLDEST_VERSION: u16 = 5;

/// Version of groups, of pages and of blocks of the directory: they have been the same since then. So a program of that
/// version can read them as long as the roots are of that version, too. If their layout changes, a root of the new
/// version has to be durable before the first of them.
const SINCE: u16 = 5;

/// Magic number of a group header.
const GROUP: u32 = u32::from_le_bytes(*b"zvg1");
/// Frame of a sealed block.
const SEALED: FrameFormat = FrameFormat { magic: *b"zvs1", versions: OLDEST_VERSION..=VERSION };

/// Bytes of a group header before its entries.
const GROUP_HEADER: usize = 64;
/// Bytes of an entry.
const ENTRY: usize = 16;

/// Exclusive limit of entry, segment and generation numbers in valid metadata: incrementing them cannot overflow.
pub const MOST_NUMBER: u64 = 1 << 56;

/// Most entries of a group.
pub const MOST_ENTRIES: u64 = most_entries(GRAINS);

/// Bytes of a place in a page.
const ADDRESS: usize = 6;
/// Places in a page of the map or in a block of its directory: a multiple of the blocks of the largest unit, so that no
/// unit is in two pages.
pub const FANOUT: u64 = (PAYLOAD_BYTES / ADDRESS / 16 * 16) as u64;

/// Position of the checksum in a group header; it covers the bytes behind it.
const SUM: std::ops::Range<usize> = 4..8;

/// The change of the map that an entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The next piece of the group, of `grains` grains, holds the unit that begins with the entry's block. `there` has
    /// a bit for each block that the entry maps: all of them for a write, the blocks that were left for a move.
    Data { unit: Unit, grains: u32, there: u16 },
    /// This many logical blocks are discarded.
    Discard(u32),
    /// This many logical blocks are [holes](address::HOLE).
    Hole(u32),
    /// Unmapped blocks of a snapshot get the map entries of the blocks from `from` on, or become holes where these are
    /// unmapped; mapped ones keep theirs. The next entry changes the blocks from `from` on, and both count together.
    Keep { from: u32, blocks: u32 },
    /// The map entries of the blocks from `from` on move to these blocks where these are unmapped, and are dropped
    /// elsewhere.
    Merge { from: u32, blocks: u32 },
    /// The map entries of the blocks from `from` on move to these blocks and replace theirs; a hole becomes an unmapped
    /// block. A block whose counterpart is unmapped keeps its entry.
    Return { from: u32, blocks: u32 },
    /// Changes nothing: the next entry moves a piece that was written to this block, of which others keep the data.
    Named,
}

impl EntryKind {
    /// Grains of its piece; 0 if it has none.
    pub fn grains(self) -> u32 {
        if let EntryKind::Data { grains, .. } = self { grains } else { 0 }
    }

    /// The unit of its piece.
    pub fn unit(self) -> Unit {
        if let EntryKind::Data { unit, .. } = self { unit } else { Unit::BLOCK }
    }

    /// Number of logical blocks from the entry's block to the last one that the entry changes.
    pub fn blocks(self) -> u64 {
        match self {
            EntryKind::Data { there, .. } => 16 - there.leading_zeros() as u64,
            EntryKind::Discard(blocks) | EntryKind::Hole(blocks) => blocks as u64,
            EntryKind::Keep { blocks, .. }
            | EntryKind::Merge { blocks, .. }
            | EntryKind::Return { blocks, .. } => blocks as u64,
            EntryKind::Named => 1,
        }
    }

    /// Its part of `blocks` blocks, from the block with this index on, which begins with another block. The part of data
    /// is all of it.
    pub fn part(self, index: u32, blocks: u32) -> EntryKind {
        match self {
            EntryKind::Data { .. } | EntryKind::Named => self,
            EntryKind::Discard(_) => EntryKind::Discard(blocks),
            EntryKind::Hole(_) => EntryKind::Hole(blocks),
            EntryKind::Keep { from, .. } => EntryKind::Keep { from: from + index, blocks },
            EntryKind::Merge { from, .. } => EntryKind::Merge { from: from + index, blocks },
            EntryKind::Return { from, .. } => EntryKind::Return { from: from + index, blocks },
        }
    }

    /// The first of the other blocks that it concerns.
    pub fn from(self) -> Option<u32> {
        match self {
            EntryKind::Keep { from, .. } | EntryKind::Merge { from, .. } | EntryKind::Return { from, .. } => {
                Some(from)
            }
            _ => None,
        }
    }
}

/// Position of the kind in the fourth field of an entry.
const CODE_AT: u32 = 28;

impl EntryKind {
    /// Number of the kind on the device; 0 for data and discards.
    fn code(self) -> u32 {
        match self {
            EntryKind::Data { .. } | EntryKind::Discard(_) => 0,
            EntryKind::Hole(_) => 1,
            EntryKind::Keep { .. } => 2,
            EntryKind::Merge { .. } => 3,
            EntryKind::Return { .. } => 4,
            EntryKind::Named => 5,
        }
    }

    /// Decodes the third and fourth field of an entry of another kind than data and discards.
    fn of_code(from: u32, coded: u32) -> Option<EntryKind> {
        let blocks = coded & ((1 << CODE_AT) - 1);
        let kind = match coded >> CODE_AT {
            1 => EntryKind::Hole(blocks),
            2 => EntryKind::Keep { from, blocks },
            3 => EntryKind::Merge { from, blocks },
            4 => EntryKind::Return { from, blocks },
            5 => EntryKind::Named,
            _ => return None,
        };
        // An unused field is 0.
        let is_plain = kind.from().is_some() || from == 0;
        (is_plain && blocks > 0 && kind.blocks() == blocks as u64).then_some(kind)
    }
}

/// An entry of a group header: one change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEntry {
    /// Its number in the order of all entries of the volume.
    pub number: u64,
    /// The first logical block.
    pub block: u32,
    pub kind: EntryKind,
}

/// The location of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// [`VolumeIdentity::mark`].
    pub volume: u64,
    /// Segment of the zone: its incarnation.
    pub segment: u64,
    /// Blocks from the start of the zone to the header.
    pub offset: u32,
    pub stream: u8,
}

/// The header of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    pub place: GroupPlace,
    /// Blocks of the group, with its header and padding.
    pub blocks: u32,
    /// Grain of the first block at which the first piece begins: behind the entries, or 64, at the next block.
    pub first_grain: u32,
    /// Blocks of the group before this header, all of its pieces, if it is a *trailer*; 0 if the header is first.
    pub before: u32,
    pub entries: Vec<GroupEntry>,
}

impl GroupHeader {
    /// Whether this is the header of a group of `volume` at `offset` of a zone with `capacity` blocks, and the group lies
    /// within the zone. A remainder of one block is invalid, since no group fits into it.
    pub fn is_at(&self, volume: u64, offset: u32, capacity: u32) -> bool {
        let left =
            (capacity + self.before).checked_sub(offset).and_then(|left| left.checked_sub(self.blocks));
        (self.place.volume, self.place.offset) == (volume, offset)
            && left.is_some_and(|left| left != 1)
            && self.before <= offset
    }

    /// The entries, each with the place of its piece, if the group begins at this block of the device.
    pub fn placed(&self, start: u32) -> impl Iterator<Item = (&GroupEntry, Address)> {
        let mut from = if self.before > 0 { 0 } else { self.first_grain };
        self.entries.iter().map(move |entry| {
            let (unit, grains) = (entry.kind.unit(), entry.kind.grains());
            let place = address::place(start + from / GRAINS, from % GRAINS, (unit, grains));
            from += grains;
            (entry, place)
        })
    }

    /// The entries with pieces, as in [`GroupHeader::placed`], each with the block to which its piece was first written.
    pub fn pieces(&self, start: u32) -> impl Iterator<Item = (u32, &GroupEntry, Address)> {
        let mut name = None;
        self.placed(start).filter_map(move |(entry, place)| match entry.kind {
            EntryKind::Named => {
                name = Some(entry.block);
                None
            }
            EntryKind::Data { .. } => Some((name.take().unwrap_or(entry.block), entry, place)),
            _ => None,
        })
    }
}

/// Writes entry `index` of a group into its header block. `first` is the number of the group's first entry.
///
/// An entry has four fields of 4 bytes: its number less `first`; the logical block; the number of discarded blocks, or
/// a bit for each mapped block of the unit (16 bits) and the number of the unit; and the grains of its piece, 0 if it
/// has none. Entries of other kinds have the first of the other blocks in the third field, and in the fourth their
/// number of blocks, below 2^28, and the kind in the upper 4 bits.
pub fn put_entry(header: &mut [u8], index: usize, first: u64, entry: GroupEntry) {
    let (blocks, grains) = match entry.kind {
        EntryKind::Data { unit, grains, there } => (there as u32 | (unit.number() as u32) << 16, grains),
        EntryKind::Discard(blocks) => (blocks, 0),
        kind => (kind.from().unwrap_or(0), kind.code() << CODE_AT | kind.blocks() as u32),
    };
    let number = entry.number;
    assert!((index as u64) < MOST_ENTRIES, "entry {index} of a group, which may have {MOST_ENTRIES}");
    assert!(
        number >= first && number - first <= u32::MAX as u64,
        "entry number {number} in a group from entry number {first} on"
    );
    let delta = (number - first) as u32;
    let bytes = &mut header[GROUP_HEADER + index * ENTRY..][..ENTRY];
    for (field, value) in bytes.chunks_exact_mut(4).zip([delta, entry.block, blocks, grains]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
}

/// Grains of a header with `entries` entries.
pub fn header_grains(entries: u64) -> u32 {
    (GROUP_HEADER as u64 + entries * ENTRY as u64).div_ceil(GRAIN as u64) as u32
}

/// Most entries of a group with its first piece at this grain: the inverse of [`header_grains`].
pub const fn most_entries(first_grain: u32) -> u64 {
    ((first_grain as usize * GRAIN - GROUP_HEADER) / ENTRY) as u64
}

/// Most blocks before a trailer.
pub const MOST_BEFORE: u32 = 31;

/// Bytes of a header with `entries` entries.
pub fn header_bytes(entries: usize) -> usize {
    GROUP_HEADER + entries * ENTRY
}

/// Where the header of a group is.
#[derive(Clone, Copy, Debug)]
pub enum HeaderPlace {
    /// Blocks of the group, and the grain of the first one at which the first piece begins.
    HeaderFirst(u32, u32),
    /// Blocks before the trailer, which is the last one.
    Trailer(u32),
}

/// Completes the header of a group, after its `entries` entries were put. `first` is the number of the first
/// entry.
pub fn seal_group(
    header: &mut [u8],
    place: GroupPlace,
    header_place: HeaderPlace,
    first: u64,
    entries: usize,
) {
    let (blocks, first_grain, before) = match header_place {
        HeaderPlace::HeaderFirst(blocks, first_grain) => (blocks, first_grain, 0),
        HeaderPlace::Trailer(before) => (before + 1, GRAINS, before),
    };
    assert!(before <= MOST_BEFORE, "a trailer behind {before} blocks");
    let used = GROUP_HEADER + entries * ENTRY;
    header[used..first_grain as usize * GRAIN].fill(0);
    header[..GROUP_HEADER].fill(0);
    header[0..4].copy_from_slice(&GROUP.to_le_bytes());
    header[8..16].copy_from_slice(&place.volume.to_le_bytes());
    header[16..24].copy_from_slice(&place.segment.to_le_bytes());
    header[24..32].copy_from_slice(&first.to_le_bytes());
    header[32..36].copy_from_slice(&place.offset.to_le_bytes());
    header[36..40].copy_from_slice(&blocks.to_le_bytes());
    header[40..42].copy_from_slice(&(entries as u16).to_le_bytes());
    header[42..44].copy_from_slice(&SINCE.to_le_bytes());
    header[44] = place.stream;
    // 0 stands for 64, the only place in earlier versions.
    header[45] = (first_grain % GRAINS) as u8;
    header[46] = before as u8;
    let sum = crc32c::crc32c(&header[SUM.end..used]);
    header[SUM].copy_from_slice(&sum.to_le_bytes());
}

/// Reads the header of a group; `None` if the block is not a valid one.
pub fn read_group(block: &[u8]) -> Option<GroupHeader> {
    let mut from = Decoder(block);
    let (magic, sum) = (from.u32().ok()?, from.u32().ok()?);
    let (volume, segment, first) = (from.u64().ok()?, from.u64().ok()?, from.u64().ok()?);
    let (offset, blocks) = (from.u32().ok()?, from.u32().ok()?);
    let (count, version, stream) = (from.u16().ok()? as u64, from.u16().ok()?, from.u8().ok()?);
    let first_grain = match from.u8().ok()? as u32 {
        0 => GRAINS,
        grain => grain,
    };
    let before = from.u8().ok()? as u32;
    if magic != GROUP || !SEALED.versions.contains(&version) || count > MOST_ENTRIES {
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
        let kind = match (blocks, grains) {
            (1.., 0) => EntryKind::Discard(blocks),
            (from, coded) if coded >> CODE_AT > 0 => EntryKind::of_code(from, coded)?,
            _ => {
                let (unit, there) = (Unit::of_number(u8::try_from(blocks >> 16).ok()?)?, blocks as u16);
                let is_valid = there != 0
                    && there & unit.mask() == there
                    && unit.first(logical.into()) == logical as u64;
                let kind = EntryKind::Data { unit, grains, there };
                (is_valid && unit.is_sane(grains)).then_some(kind)?
            }
        };
        entries.push(GroupEntry { number: first.checked_add(delta as u64)?, block: logical, kind });
        if entries.last().is_some_and(|entry| entry.number + 1 >= MOST_NUMBER) {
            return None;
        }
    }
    let data: u32 = entries.iter().map(|entry| entry.kind.grains()).sum();
    let place = GroupPlace { volume, segment, offset, stream };
    // The next root has the numbers that follow: they have to be valid, too.
    let fits = (header_grains(count)..=GRAINS).contains(&first_grain);
    let holds = match before {
        0 => blocks >= (first_grain + data).div_ceil(GRAINS),
        _ => blocks == before + 1 && data == before * GRAINS && before <= MOST_BEFORE,
    };
    let sane = fits && holds && segment < MOST_NUMBER - 1;
    sane.then_some(GroupHeader { place, blocks, first_grain, before, entries })
}

/// Whether a block is the header of a group, valid or damaged (by its magic number).
pub fn looks_like_group(block: &[u8]) -> bool {
    block.starts_with(&GROUP.to_le_bytes())
}

/// The kind of a sealed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A page of the map.
    Page = 1,
    /// A block of its directory.
    Directory = 2,
    /// A block of a root; `index` is its number, and `last` is set in the last one.
    Root = 3,
    /// The first block of a cell of the hot window; `index` is the number of the cell.
    Cell = 4,
}

/// The header of a sealed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// [`VolumeIdentity::mark`].
    pub volume: u64,
    /// Number of the checkpoint that wrote the block; of a cell, the segment of the zone.
    pub generation: u64,
    pub kind: Kind,
    pub last: bool,
    /// Number of the page, of the directory block, or of the block within the root.
    pub index: u32,
}

/// Puts the header before the payload of a block.
pub fn seal(block: &mut [u8], Seal { volume, generation, kind, last, index }: Seal) {
    let version = if kind == Kind::Root { VERSION } else { SINCE };
    let frame = Frame { mark: volume, generation, version, kind: kind as u8, last, index };
    SEALED.seal(block, frame);
}

/// Reads the header of a sealed block; returns it with the payload, and the version of its format.
///
/// # Errors
/// When the block is not a valid one.
pub fn unseal(block: &[u8]) -> Result<(Seal, &[u8], u16), FrameError> {
    let (frame, payload) = SEALED.unseal(block)?;
    let kinds = [Kind::Page, Kind::Directory, Kind::Root, Kind::Cell];
    let kind = kinds.into_iter().find(|kind| *kind as u8 == frame.kind);
    let Frame { mark: volume, generation, version, last, index, .. } = frame;
    Ok((Seal { volume, generation, kind: kind.ok_or(FrameError::Other)?, last, index }, payload, version))
}

/// The entry of a cell: the block in it is this version of that logical block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellHeader {
    /// As [`GroupEntry::number`].
    pub number: u64,
    pub block: u32,
}

impl CellHeader {
    /// The entry as one of a group.
    pub fn entry(self) -> GroupEntry {
        let kind = EntryKind::Data { unit: Unit::BLOCK, grains: GRAINS, there: 1 };
        GroupEntry { number: self.number, block: self.block, kind }
    }
}

/// Puts the header of a cell before its block: `of` is the volume's mark, the segment of the zone, and the number of the
/// cell. The payload is the number of the entry (8 bytes), the logical block (4), and the CRC-32C of its data.
pub fn seal_cell(bytes: &mut [u8], (volume, segment, cell): (u64, u64, u32), header: CellHeader) {
    let (block, data) = bytes.split_at_mut(BLOCK);
    block.fill(0);
    let payload = payload_mut(block);
    payload[..8].copy_from_slice(&header.number.to_le_bytes());
    payload[8..12].copy_from_slice(&header.block.to_le_bytes());
    payload[12..16].copy_from_slice(&crc32c::crc32c(data).to_le_bytes());
    seal(block, Seal { volume, generation: segment, kind: Kind::Cell, last: false, index: cell });
}

/// Reads the header of a cell; `None` if it is another one, was written to an earlier incarnation of the zone, or is torn.
pub fn read_cell(bytes: &[u8], (volume, segment, cell): (u64, u64, u32)) -> Option<CellHeader> {
    let (block, data) = bytes.split_at_checked(BLOCK)?;
    let (seal, payload, _) = unseal(block).ok()?;
    let mut from = Decoder(payload);
    let (number, logical, sum) = (from.u64().ok()?, from.u32().ok()?, from.u32().ok()?);
    let is_here =
        (seal.volume, seal.generation, seal.kind, seal.index) == (volume, segment, Kind::Cell, cell);
    (is_here && number + 1 < MOST_NUMBER && crc32c::crc32c(data) == sum)
        .then_some(CellHeader { number, block: logical })
}

/// Whether a block is a sealed block of any format version, also a damaged one.
pub fn looks_sealed(block: &[u8]) -> bool {
    SEALED.resembles(block)
}

/// The addresses in a page or a block of the directory.
pub fn addresses(block: &[u8]) -> impl Iterator<Item = Address> {
    let places = block[FRAME_BYTES..].as_chunks::<ADDRESS>().0.iter();
    places
        .take(FANOUT as usize)
        .map(|[a, b, c, d, e, f]| Address::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0]))
}

/// Writes addresses into a page or a block of the directory, as many as fit, and zeros after them.
pub fn put_addresses(block: &mut [u8], addresses: impl Iterator<Item = Address>) {
    let all = addresses.take(FANOUT as usize).chain(std::iter::repeat(0));
    for (bytes, address) in block[FRAME_BYTES..].as_chunks_mut::<ADDRESS>().0.iter_mut().zip(all) {
        bytes.copy_from_slice(&address.to_le_bytes()[..ADDRESS]);
    }
}

/// The payload of a sealed block, to be written.
pub fn payload_mut(block: &mut [u8]) -> &mut [u8] {
    &mut block[FRAME_BYTES..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> GroupPlace {
        GroupPlace { volume: 7, segment: 9, offset: 33, stream: 2 }
    }

    fn data(number: u64, block: u32, (unit, grains, there): (Unit, u32, u16)) -> GroupEntry {
        GroupEntry { number, block, kind: EntryKind::Data { unit, grains, there } }
    }

    #[test]
    fn group_header_reads_back_and_rejects_changed_bits() {
        let entries = [
            data(100, 5, (Unit::BLOCK, GRAINS, 1)),
            GroupEntry { number: 103, block: 77, kind: EntryKind::Discard(1000) },
            data(104, u32::MAX, (Unit::BLOCK, 1, 1)),
            data(105, 48, (Unit::MOST, 64, 0x8001)),
            GroupEntry { number: 106, block: 9, kind: EntryKind::Hole(7) },
            GroupEntry { number: 107, block: 9, kind: EntryKind::Keep { from: u32::MAX, blocks: 1 } },
            GroupEntry { number: 108, block: 9, kind: EntryKind::Merge { from: 0, blocks: 672 } },
            GroupEntry { number: 109, block: 9, kind: EntryKind::Return { from: 4, blocks: 3 } },
            GroupEntry { number: 110, block: 9, kind: EntryKind::Named },
        ];
        let mut block = vec![0xaa; BLOCK];
        for (index, entry) in entries.into_iter().enumerate() {
            put_entry(&mut block, index, 100, entry);
        }
        seal_group(&mut block, place(), HeaderPlace::HeaderFirst(4, GRAINS), 100, entries.len());
        let header = read_group(&block).unwrap();
        assert_eq!(
            header,
            GroupHeader {
                place: place(),
                blocks: 4,
                first_grain: GRAINS,
                before: 0,
                entries: entries.to_vec()
            }
        );
        for at in 0..GROUP_HEADER + entries.len() * ENTRY {
            block[at] ^= 4;
            assert_eq!(read_group(&block), None, "byte {at}");
            block[at] ^= 4;
        }
        // Blocks for its data, and no more entries than there is room for.
        seal_group(&mut block, place(), HeaderPlace::HeaderFirst(3, GRAINS), 100, entries.len());
        assert_eq!(read_group(&block), None);
        // A kind that does not exist, no blocks, and another block where there is none.
        for (third, fourth) in
            [(0, 6 << CODE_AT | 1), (3, 2 << CODE_AT), (3, 1 << CODE_AT | 1), (0, 5 << CODE_AT | 2)]
        {
            let fields: [u32; 4] = [0, 5, third, fourth];
            for (bytes, field) in block[GROUP_HEADER..][..ENTRY].chunks_exact_mut(4).zip(fields) {
                bytes.copy_from_slice(&field.to_le_bytes());
            }
            seal_group(&mut block, place(), HeaderPlace::HeaderFirst(4, GRAINS), 100, 1);
            assert_eq!(read_group(&block), None, "{fields:?}");
        }
    }

    #[test]
    fn group_with_piece_beside_entries_places_it_behind_them() {
        let entries = [data(7, 5, (Unit::BLOCK, 61, 1)), data(8, 6, (Unit::BLOCK, GRAINS, 1))];
        let header = |first_grain: u32, blocks: u32| {
            let mut block = vec![0xaa; BLOCK];
            entries.iter().enumerate().for_each(|(index, entry)| put_entry(&mut block, index, 7, *entry));
            let fitting = first_grain.max(2);
            seal_group(&mut block, place(), HeaderPlace::HeaderFirst(blocks, fitting), 7, entries.len());
            assert!(block[fitting as usize * GRAIN..].iter().all(|byte| *byte == 0xaa));
            block[45] = first_grain as u8;
            let sum = crc32c::crc32c(&block[SUM.end..GROUP_HEADER + 2 * ENTRY]);
            block[SUM].copy_from_slice(&sum.to_le_bytes());
            read_group(&block)
        };
        let places = |header: GroupHeader| header.placed(100).map(|(_, place)| place).collect::<Vec<_>>();
        let blocks = |from, second| vec![address::place(100, from, (Unit::BLOCK, 61)), second];
        assert_eq!(places(header(3, 2).unwrap()), blocks(3, 101));
        assert_eq!(places(header(2, 2).unwrap()), blocks(2, address::place(100, 63, (Unit::BLOCK, GRAINS))));
        // Room for the entries, and blocks for the pieces.
        assert_eq!((header(1, 9), header(3, 1), header(4, 2)), (None, None, None));
        assert_eq!([1, 4, 5, 252].map(header_grains), [2, 2, 3, GRAINS]);
        assert_eq!([2, 3, GRAINS].map(most_entries), [4, 8, MOST_ENTRIES]);
    }

    #[test]
    fn group_with_trailer_places_pieces_before_it() {
        let entries = [data(7, 5, (Unit::BLOCK, GRAINS, 1)), data(8, 32, (Unit::MOST, 2 * GRAINS, 0x8001))];
        let mut block = vec![0xaa; BLOCK];
        let mut header = |before: u32| {
            entries.iter().enumerate().for_each(|(index, entry)| put_entry(&mut block, index, 7, *entry));
            seal_group(&mut block, place(), HeaderPlace::Trailer(before), 7, entries.len());
            read_group(&block)
        };
        let trailer = header(3).unwrap();
        assert_eq!((trailer.before, trailer.blocks), (3, 4));
        let places = trailer.placed(100).map(|(_, place)| place).collect::<Vec<_>>();
        assert_eq!(
            places,
            [address::place(100, 0, (Unit::BLOCK, GRAINS)), address::place(101, 0, (Unit::MOST, 2 * GRAINS))]
        );
        // Exactly as many blocks as its pieces take.
        assert_eq!((header(2), header(4)), (None, None));
        // The header at block 33 is the last one: one more block is no room for another group.
        assert!(trailer.is_at(7, 33, 34) && trailer.is_at(7, 33, 36) && !trailer.is_at(7, 33, 35));
        assert!(!trailer.is_at(7, 33, 33) && !trailer.is_at(7, 32, 36) && !trailer.is_at(8, 33, 36));
        let early = GroupHeader { place: GroupPlace { offset: 2, ..place() }, ..trailer };
        assert!(!early.is_at(7, 2, 36), "it would begin before the zone");
    }

    #[test]
    fn group_entry_rejects_misaligned_block_and_overlong_piece() {
        let is_read = |entry: GroupEntry| {
            let mut block = vec![0; BLOCK];
            put_entry(&mut block, 0, entry.number, entry);
            seal_group(&mut block, place(), HeaderPlace::HeaderFirst(20, GRAINS), entry.number, 1);
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
        seal_group(&mut block, place(), HeaderPlace::HeaderFirst(20, GRAINS), 9, 1);
        assert_eq!(read_group(&block), None);
    }

    #[test]
    fn sealed_block_has_addresses_and_known_kind() {
        let mut block = vec![0x55; BLOCK];
        put_addresses(&mut block, [7, (1 << 48) - 12345].into_iter());
        let header = Seal { volume: 1 << 63, generation: 8, kind: Kind::Directory, last: true, index: 6 };
        seal(&mut block, header);
        assert_eq!(unseal(&block), Ok((header, &block[FRAME_BYTES..], SINCE)));
        let addresses: Vec<Address> = addresses(&block).collect();
        assert_eq!((addresses.len() as u64, &addresses[..3]), (FANOUT, &[7, (1 << 48) - 12345, 0][..]));
        for kind in [0, 5] {
            let frame = Frame { mark: 0, generation: 0, version: VERSION, kind, last: false, index: 0 };
            SEALED.seal(&mut block, frame);
            assert_eq!(unseal(&block), Err(FrameError::Other), "kind {kind}");
        }
    }
}
