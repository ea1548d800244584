//! The table of a pool: its volumes, and the owner of each extent.
//!
//! The table is stored in the first blocks of the pool, which are written like all others: each changes whole or not at
//! all. One block, a *slot*, has the record of a volume; slots that were never written, or are discarded, are free. The
//! slots are followed by blocks with the owners of extents. Each block has a [frame](crate::frame).

use crate::{
    buf::{BLOCK, Buf, BufMut},
    format::{
        codec::{Decoder, Encoder},
        name::wrong_with_name,
    },
    frame::{FRAME_BYTES, Frame, FrameFormat, PAYLOAD_BYTES},
    qos::{Qos, Rates},
    volume::{
        address::Unit,
        format::FANOUT,
        piece::Codec,
        root::{PoolShape, SectorSize},
    },
    zone::MOST_BLOCKS,
};
use std::ops::Range;

/// Version of the table.
const VERSION: u16 = 1;

/// Frame of a block of the table.
const TABLE: FrameFormat = FrameFormat { magic: *b"zvp1", versions: VERSION..=VERSION };

/// Kind of a block with the record of a volume; its index is the slot.
const RECORD: u8 = 1;
/// Kind of a block with owners of extents; its index is its number among these.
const OWNERS: u8 = 2;

/// Bytes of an owner in a block.
const OWNER: usize = 8;
/// Owners in a block.
const OWNERS_IN_BLOCK: u32 = (PAYLOAD_BYTES / OWNER) as u32;

/// Most volumes of a pool by default.
const DEFAULT_SLOTS: u64 = 4096;
/// Most slots: a number of served devices has 16 bits.
const MOST_SLOTS: u32 = u16::MAX as u32 - 1;
/// Default extents have so many pages of the map at most, 84 MiB, unless the pool would have too many extents.
const DEFAULT_EXTENT_PAGES: u64 = 32;
/// A pool has at least so many extents by default, as long as they have a page of the map each.
const LEAST_EXTENTS: u64 = 2048;
/// A pool has at most so many extents by default: the table has 8 MiB of owners then.
const MOST_EXTENTS: u64 = 1 << 20;
/// Extents consist of whole units of compression.
const ALIGNMENT: u32 = 16;

/// Bits of a slot, from 1, in an owner.
const SLOT_BITS: u32 = 16;
/// Bits of the number of an extent in an owner.
pub const INDEX_BITS: u32 = 24;
/// Largest number of a snapshot of a volume.
pub const MOST_SNAPSHOTS: u32 = (1 << 24) - 1;

impl PoolShape {
    /// The shape of a pool of `blocks` blocks. The extents consist of whole pages of the map.
    pub fn of(blocks: u64) -> PoolShape {
        let pages = blocks / FANOUT;
        let small = (pages / LEAST_EXTENTS).clamp(1, DEFAULT_EXTENT_PAGES);
        let least = pages.div_ceil(MOST_EXTENTS).max(1);
        let extent = (1 << small.ilog2()).max(least.next_power_of_two()) * FANOUT;
        let slots = DEFAULT_SLOTS.min(blocks / 256).max(1);
        PoolShape { extent_blocks: extent.min(u32::MAX as u64) as u32, slots: slots as u32 }
    }

    /// The layout of a pool of `blocks` blocks; `None` if it has no extent for a volume.
    pub fn layout(self, blocks: u64) -> Option<PoolLayout> {
        let PoolShape { extent_blocks, slots } = self;
        let is_sane = extent_blocks >= ALIGNMENT
            && extent_blocks.is_multiple_of(ALIGNMENT)
            && (1..=MOST_SLOTS).contains(&slots);
        let extents = u32::try_from(blocks.checked_div(extent_blocks.into())?).ok().filter(|_| is_sane)?;
        let table = slots as u64 + extents.div_ceil(OWNERS_IN_BLOCK) as u64;
        let reserved = table.div_ceil(extent_blocks.into()).min(u32::MAX.into()) as u32;
        (reserved < extents).then_some(PoolLayout { extent_blocks, slots, extents, reserved })
    }
}

/// Layout of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    pub extent_blocks: u32,
    pub slots: u32,
    /// Extents, with those of the table.
    pub extents: u32,
    /// Extents of the table, the first ones.
    pub reserved: u32,
}

impl PoolLayout {
    /// First block of an extent.
    pub fn start(&self, extent: u32) -> u64 {
        extent as u64 * self.extent_blocks as u64
    }

    /// Number of extents of a volume of `blocks` blocks.
    pub fn extents_of(&self, blocks: u64) -> u64 {
        blocks.div_ceil(self.extent_blocks.into())
    }

    /// Blocks of the pool that hold owners of extents.
    pub fn owner_blocks(&self) -> Range<u64> {
        let first = self.slots as u64;
        first..first + self.extents.div_ceil(OWNERS_IN_BLOCK) as u64
    }

    /// Block of the pool with the owner of an extent.
    pub fn owner_block(&self, extent: u32) -> u64 {
        self.owner_blocks().start + (extent / OWNERS_IN_BLOCK) as u64
    }

    /// Reads the owners in a block of the pool with this mark; `None` if it is not a valid one.
    pub fn decode_owners(&self, bytes: &[u8], mark: u64, block: u64) -> Option<Vec<ExtentOwner>> {
        let index = (block - self.owner_blocks().start) as u32;
        let mut from = Decoder(unsealed(bytes, (mark, OWNERS, index))?);
        let mut owners = Vec::new();
        for extent in self.extents_in(block) {
            let owner = ExtentOwner([from.u32().ok()?, from.u32().ok()?]);
            let can_be = match owner.slot() {
                None => owner == ExtentOwner::FREE,
                Some(slot) => extent >= self.reserved && slot < self.slots,
            };
            owners.push(owner);
            can_be.then_some(())?;
        }
        Some(owners)
    }

    /// Extents whose owners are in a block of the pool.
    fn extents_in(&self, block: u64) -> Range<u32> {
        let first = (block - self.owner_blocks().start) as u32 * OWNERS_IN_BLOCK;
        first..self.extents.min(first.saturating_add(OWNERS_IN_BLOCK))
    }
}

/// What the blocks of a volume of a pool are at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeOrigin {
    /// Zeros.
    #[default]
    Empty,
    /// A snapshot: those that the volume in this slot had. Snapshots of one volume are ordered by their number, from 1.
    Snapshot { slot: u32, number: u32 },
    /// A clone: those of the snapshot in this slot.
    Clone { slot: u32 },
}

impl VolumeOrigin {
    /// The slot that it refers to.
    pub fn slot(self) -> Option<u32> {
        match self {
            VolumeOrigin::Empty => None,
            VolumeOrigin::Snapshot { slot, .. } | VolumeOrigin::Clone { slot } => Some(slot),
        }
    }
}

/// Record of a volume in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    pub name: String,
    pub uuid: [u8; 16],
    /// Logical blocks.
    pub blocks: u64,
    pub sector: SectorSize,
    /// Compression of new data.
    pub codec: Option<Codec>,
    /// Largest unit of new data.
    pub unit: Unit,
    /// Seconds for which a write waits for room; 0 if it fails at once.
    pub queue_seconds: u8,
    /// The volume is being removed: it is not used any more, and its extents are discarded.
    pub is_removed: bool,
    pub origin: VolumeOrigin,
    /// The slot of the snapshot whose contents the volume is getting back.
    pub returns_to: Option<u32>,
    /// Limits, floors and latency class of its reads and writes; none in the record of a snapshot.
    pub qos: Qos,
    /// Blocks of room that it and its snapshots may take and others may not; 0 in the record of a snapshot.
    pub guaranteed: u64,
}

impl VolumeRecord {
    /// The block of a slot of the pool with this mark.
    pub fn encode(&self, mark: u64, slot: u32) -> Buf {
        let VolumeRecord { name, uuid, blocks, sector, codec, unit, queue_seconds, is_removed, .. } = self;
        let mut out = Encoder::default();
        let [codec, level] = Codec::in_root(*codec);
        out.bytes(uuid).u64(*blocks).u32(*sector as u32);
        out.bytes(&[codec, level, unit.number(), *queue_seconds, *is_removed as u8, name.len() as u8]);
        out.bytes(name.as_bytes());
        let (kind, number) = match self.origin {
            VolumeOrigin::Empty => (0, 0),
            VolumeOrigin::Snapshot { number, .. } => (1, number),
            VolumeOrigin::Clone { .. } => (2, 0),
        };
        out.u32(kind).u32(number).u32(self.origin.slot().unwrap_or(0));
        out.u32(self.returns_to.map_or(0, |slot| slot + 1));
        let Qos { limits, floors, latency_us } = self.qos;
        out.u32(limits.requests).u32(limits.blocks).u64(self.guaranteed);
        out.u32(floors.requests).u32(floors.blocks).u32(latency_us);
        sealed(&out.0, (mark, RECORD, slot))
    }

    /// Reads the block of a slot; `None` if it is not a valid one.
    pub fn decode(block: &[u8], mark: u64, slot: u32) -> Option<VolumeRecord> {
        let mut from = Decoder(unsealed(block, (mark, RECORD, slot))?);
        let (uuid, blocks) = (from.array().ok()?, from.u64().ok()?);
        let sector = SectorSize::from_bytes(from.u32().ok()?)?;
        let [codec, level, unit, queue_seconds, is_removed, length] = from.array().ok()?;
        let (name, rest) = from.0.split_at_checked(length as usize)?;
        let mut from = Decoder(rest);
        // Zeros in records that were written before there were snapshots, limits, guarantees, or floors.
        let (kind, number, of_slot) = (from.u32().ok()?, from.u32().ok()?, from.u32().ok()?);
        let origin = match kind {
            0 if number == 0 && of_slot == 0 => VolumeOrigin::Empty,
            1 if (1..=MOST_SNAPSHOTS).contains(&number) => VolumeOrigin::Snapshot { slot: of_slot, number },
            2 if number == 0 => VolumeOrigin::Clone { slot: of_slot },
            _ => return None,
        };
        let returns_to = from.u32().ok()?.checked_sub(1);
        let limits = Rates { requests: from.u32().ok()?, blocks: from.u32().ok()? };
        let guaranteed = from.u64().ok()?;
        let floors = Rates { requests: from.u32().ok()?, blocks: from.u32().ok()? };
        let record = VolumeRecord {
            name: String::from_utf8(name.to_vec()).ok().filter(|name| wrong_with_name(name).is_none())?,
            uuid,
            blocks,
            sector,
            codec: Codec::of_root([codec, level])?,
            unit: Unit::of_number(unit)?,
            queue_seconds,
            is_removed: is_removed == 1,
            origin,
            returns_to,
            qos: Qos { limits, floors, latency_us: from.u32().ok()? },
            guaranteed,
        };
        let can_be = (1..=MOST_BLOCKS).contains(&blocks) && record.guaranteed <= MOST_BLOCKS;
        (can_be && is_removed <= 1).then_some(record)
    }
}

/// The volume that has an extent, as it is stored: in the lower 16 bits of the first number the slot of the volume, from
/// 1, or 0 if the extent is free; in the lower 24 bits of the second one the number of the extent in the volume; and in
/// the other bits of both its birth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentOwner([u32; 2]);

impl ExtentOwner {
    pub const FREE: ExtentOwner = ExtentOwner([0, 0]);

    /// The volume in `slot`, with this extent as its extent `index`. `birth` is the number of the latest snapshot when
    /// the volume got the extent, 0 for none: it and earlier ones have zeros there.
    pub fn new(slot: u32, index: u32, birth: u32) -> ExtentOwner {
        assert!(
            slot < MOST_SLOTS && index < 1 << INDEX_BITS && birth <= MOST_SNAPSHOTS,
            "the owner of an extent: slot {slot}, extent {index}, born after snapshot {birth}"
        );
        ExtentOwner([(slot + 1) | birth << SLOT_BITS, index | (birth >> SLOT_BITS) << INDEX_BITS])
    }

    /// Slot of the volume; `None` if the extent is free.
    pub fn slot(self) -> Option<u32> {
        (self.0[0] & ((1 << SLOT_BITS) - 1)).checked_sub(1)
    }

    /// Number of the extent in the volume.
    pub fn index(self) -> u32 {
        self.0[1] & ((1 << INDEX_BITS) - 1)
    }

    /// Number of the latest snapshot when the volume got the extent; 0 for none.
    pub fn birth(self) -> u32 {
        self.0[0] >> SLOT_BITS | (self.0[1] >> INDEX_BITS) << SLOT_BITS
    }
}

/// Owners of all extents.
pub struct ExtentTable {
    layout: PoolLayout,
    owners: Vec<ExtentOwner>,
    /// Free extents by shard, if the extents go to these in turn; the last one of a shard is taken first.
    free: Vec<Vec<u32>>,
}

impl ExtentTable {
    /// A table in which all extents behind the reserved ones are free; they go to so many shards in turn.
    pub fn new(layout: PoolLayout, shards: u32) -> ExtentTable {
        let owners = vec![ExtentOwner::FREE; layout.extents as usize];
        let mut table = ExtentTable { layout, owners, free: vec![Vec::new(); shards as usize] };
        for extent in (layout.reserved..layout.extents).rev() {
            table.free_in_its_shard(extent).push(extent);
        }
        table
    }

    /// The shard of an extent.
    pub fn shard(&self, extent: u32) -> usize {
        extent as usize % self.free.len()
    }

    fn free_in_its_shard(&mut self, extent: u32) -> &mut Vec<u32> {
        let shard = self.shard(extent);
        &mut self.free[shard]
    }

    /// Takes the owners that [`PoolLayout::decode_owners`] has found in a block of the pool.
    pub fn load(&mut self, block: u64, owners: Vec<ExtentOwner>) {
        let extents = self.layout.extents_in(block);
        self.owners[extents.start as usize..extents.end as usize].copy_from_slice(&owners);
    }

    /// Completes the table after [`ExtentTable::load`] and [`ExtentTable::assign`].
    pub fn find_free(&mut self) {
        let owners = &self.owners;
        for free in &mut self.free {
            free.retain(|extent| owners[*extent as usize] == ExtentOwner::FREE);
        }
    }

    /// The block of the pool with the owners of some extents, as if the owners of those for which `change` returns one
    /// were changed.
    pub fn encode(&self, mark: u64, block: u64, change: impl Fn(u32) -> Option<ExtentOwner>) -> Buf {
        let mut out = Encoder::default();
        for extent in self.layout.extents_in(block) {
            let ExtentOwner([slot, index]) = change(extent).unwrap_or(self.owners[extent as usize]);
            out.u32(slot).u32(index);
        }
        sealed(&out.0, (mark, OWNERS, (block - self.layout.owner_blocks().start) as u32))
    }

    /// The free extent that is taken next, in the one of these shards with most `room`; `None` if there is none.
    pub fn next_free(
        &self,
        shards: impl IntoIterator<Item = usize>,
        room: impl Fn(usize) -> u64,
    ) -> Option<u32> {
        let with_extents = shards.into_iter().filter(|shard| !self.free[*shard].is_empty());
        let most = with_extents.max_by_key(|shard| (room(*shard), self.free[*shard].len()));
        most.and_then(|shard| self.free[shard].last().copied())
    }

    /// Records the owner of the extent that [`ExtentTable::next_free`] has returned.
    pub fn take(&mut self, extent: u32, owner: ExtentOwner) {
        assert_eq!(self.free_in_its_shard(extent).pop(), Some(extent), "the free extent that is taken next");
        assert_eq!(
            self.owners[extent as usize],
            ExtentOwner::FREE,
            "owner of extent {extent}, which is free"
        );
        self.owners[extent as usize] = owner;
    }

    /// Records the owner of an extent, which may be free, before [`ExtentTable::find_free`].
    pub fn assign(&mut self, extent: u32, owner: ExtentOwner) {
        assert!(owner.slot().is_some(), "extent {extent} is assigned to {owner:?}");
        self.owners[extent as usize] = owner;
    }

    /// Records that an extent has another owner.
    pub fn give(&mut self, extent: u32, owner: ExtentOwner) {
        let of_extent = &mut self.owners[extent as usize];
        assert!(
            of_extent.slot().is_some() && owner.slot().is_some(),
            "extent {extent} is given to {owner:?}"
        );
        *of_extent = owner;
    }

    /// Records that an extent is free.
    pub fn release(&mut self, extent: u32) {
        assert_ne!(
            self.owners[extent as usize],
            ExtentOwner::FREE,
            "owner of extent {extent}, which is not free"
        );
        self.owners[extent as usize] = ExtentOwner::FREE;
        self.free_in_its_shard(extent).push(extent);
    }

    /// Records that an extent has no owner, before [`ExtentTable::find_free`].
    pub fn clear(&mut self, extent: u32) {
        self.owners[extent as usize] = ExtentOwner::FREE;
    }

    /// The owner of the extent in which a block of the pool lies, and the first block of the extent.
    pub fn owner_of(&self, block: u64) -> (ExtentOwner, u64) {
        let extent = block / self.layout.extent_blocks as u64;
        let owner = self.owners.get(extent as usize).copied().unwrap_or_default();
        (owner, extent * self.layout.extent_blocks as u64)
    }

    /// All extents behind the reserved ones, with their owners.
    pub fn owners(&self) -> impl Iterator<Item = (u32, ExtentOwner)> {
        (0..).zip(self.owners.iter().copied()).skip(self.layout.reserved as usize)
    }

    /// The free extents of a shard; the last one is taken first.
    pub fn free_in(&self, shard: usize) -> &[u32] {
        &self.free[shard]
    }

    /// Number of free extents.
    pub fn free_extents(&self) -> u32 {
        self.free.iter().map(|free| free.len() as u32).sum()
    }
}

/// A block of the table with this payload.
fn sealed(payload: &[u8], (mark, kind, index): (u64, u8, u32)) -> Buf {
    let mut block = BufMut::zeroed(BLOCK);
    block[FRAME_BYTES..][..payload.len()].copy_from_slice(payload);
    let frame = Frame { mark, generation: 0, version: VERSION, kind, last: false, index };
    TABLE.seal(&mut block, frame);
    block.freeze()
}

/// The payload of a block of the table; `None` if it is another block.
fn unsealed(block: &[u8], expected: (u64, u8, u32)) -> Option<&[u8]> {
    let (frame, payload) = TABLE.unseal(block).ok()?;
    ((frame.mark, frame.kind, frame.index) == expected).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> VolumeRecord {
        VolumeRecord {
            name: name.into(),
            uuid: *b"sixteen bytes...",
            blocks: 1 << 30,
            sector: SectorSize::B512,
            codec: Some(Codec::Lz4),
            unit: Unit::MOST,
            queue_seconds: 60,
            is_removed: false,
            origin: VolumeOrigin::Empty,
            returns_to: None,
            qos: Qos {
                limits: Rates { requests: u32::MAX, blocks: 7 },
                floors: Rates { requests: 5, blocks: 6 },
                latency_us: 9,
            },
            guaranteed: u32::MAX.into(),
        }
    }

    #[test]
    fn owner_of_extent_has_slot_index_and_birth() {
        for (slot, index, birth) in
            [(0, 0, 0), (MOST_SLOTS - 1, (1 << 24) - 1, MOST_SNAPSHOTS), (7, 9, 65_536), (3, 1 << 23, 1)]
        {
            let owner = ExtentOwner::new(slot, index, birth);
            assert_eq!((owner.slot(), owner.index(), owner.birth()), (Some(slot), index, birth));
        }
        assert_eq!(ExtentOwner::FREE.slot(), None);
    }

    #[test]
    fn volume_record_reads_back_and_rejects_other_places() {
        let snapshot = VolumeOrigin::Snapshot { slot: 0, number: MOST_SNAPSHOTS };
        for record in [
            record("mail"),
            VolumeRecord { is_removed: true, codec: None, ..record(&"x".repeat(64)) },
            VolumeRecord { origin: snapshot, ..record("monday") },
            VolumeRecord { origin: VolumeOrigin::Clone { slot: 5 }, returns_to: Some(0), ..record("copy") },
        ] {
            let block = record.encode(7, 3);
            assert_eq!(VolumeRecord::decode(&block, 7, 3), Some(record));
            for (mark, slot) in [(8, 3), (7, 2)] {
                assert_eq!(VolumeRecord::decode(&block, mark, slot), None);
            }
        }
        let first = VolumeOrigin::Snapshot { slot: 0, number: 0 };
        for wrong in [
            record("a/b"),
            record(""),
            VolumeRecord { blocks: 0, ..record("mail") },
            VolumeRecord { guaranteed: MOST_BLOCKS + 1, ..record("mail") },
            VolumeRecord { origin: first, ..record("mail") },
        ] {
            assert_eq!(VolumeRecord::decode(&wrong.encode(7, 3), 7, 3), None, "{wrong:?}");
        }
        let mut block = record("mail").encode(7, 3).to_vec();
        block[FRAME_BYTES + 28] ^= 64;
        assert_eq!(VolumeRecord::decode(&block, 7, 3), None);
    }

    #[test]
    fn volume_record_without_later_fields_has_defaults_for_them() {
        let (all, block) = (record("mail"), record("mail").encode(7, 3));
        // The UUID, the size, the sector, six settings and the name; behind them origin and return, the limits, the
        // guarantee, and floors with the latency target.
        let named = 16 + 8 + 4 + 6 + 4;
        let (none, limited) = (Qos::default(), Qos { limits: all.qos.limits, ..Qos::default() });
        for (end, qos, guaranteed) in [
            (named, none, 0),
            (named + 16, none, 0),
            (named + 24, limited, 0),
            (named + 32, limited, all.guaranteed),
        ] {
            let earlier = sealed(&block[FRAME_BYTES..][..end], (7, RECORD, 3));
            let without = VolumeRecord { qos, guaranteed, ..all.clone() };
            assert_eq!(VolumeRecord::decode(&earlier, 7, 3), Some(without), "{end} bytes");
        }
    }

    #[test]
    fn pool_shape_fits_pools_of_any_size() {
        for (gib, extent_pages, extents) in
            [(1, 1, 390), (16, 2, 3120), (192, 32, 2340), (14 << 10, 32, 174_762), (4 << 20, 2048, 798_915)]
        {
            let blocks = (gib << 30) / BLOCK as u64;
            let shape = PoolShape::of(blocks);
            let layout = shape.layout(blocks).unwrap();
            assert_eq!(
                (shape.extent_blocks as u64 / FANOUT, layout.extents),
                (extent_pages, extents),
                "{gib} GiB"
            );
            assert!(layout.owner_blocks().end <= layout.start(layout.reserved) && layout.slots >= 1024);
        }
    }

    #[test]
    fn pool_shape_from_outside_is_checked() {
        let shape = |extent_blocks, slots| PoolShape { extent_blocks, slots };
        assert!(shape(16, 3).layout(64).is_some());
        for (extent_blocks, slots, blocks) in [
            (0, 1, 64),
            (8, 1, 64),
            (24, 1, 64),
            (16, 0, 64),
            (16, 1 << 16, 1 << 30),
            (16, 3, 31),
            (16, 60, 64),
        ] {
            assert_eq!(shape(extent_blocks, slots).layout(blocks), None, "{extent_blocks} {slots} {blocks}");
        }
    }

    #[test]
    fn extent_table_reads_back_what_is_written() {
        let layout = PoolShape { extent_blocks: 16, slots: 3 }.layout(16 * 2000).unwrap();
        assert_eq!((layout.reserved, layout.owner_blocks()), (1, 3..7));
        let mut table = ExtentTable::new(layout, 1);
        let owner = ExtentOwner::new(2, 9, 4);
        let first = table.next_free([0], |_| 0).unwrap();
        let block = table.encode(7, layout.owner_block(first), |extent| (extent == first).then_some(owner));
        table.take(first, owner);
        assert_eq!(*block, *table.encode(7, layout.owner_block(first), |_| None));
        let mut read = ExtentTable::new(layout, 1);
        assert_eq!((layout.decode_owners(&block, 7, 4), layout.decode_owners(&block, 8, 3)), (None, None));
        read.load(3, layout.decode_owners(&block, 7, 3).unwrap());
        read.find_free();
        assert_eq!(read.owner_of(first as u64 * 16 + 15), (owner, first as u64 * 16));
        assert!(read.owners().eq(table.owners()) && read.free_extents() == layout.extents - 2);
        assert_ne!(read.next_free([0], |_| 0), Some(first));
        read.release(first);
        assert_eq!(read.next_free([0], |_| 0), Some(first));
        // The table itself, and a volume without a slot.
        for (extent, slot) in [(0, 0), (1, 3)] {
            let wrong = table.encode(7, 3, |of| (of == extent).then_some(ExtentOwner::new(slot, 0, 0)));
            assert_eq!(layout.decode_owners(&wrong, 7, 3), None, "extent {extent}, slot {slot}");
        }
    }
}
