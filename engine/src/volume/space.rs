//! Zones and room: the use and the live count of each zone, limits for beginning another one, and how many blocks may
//! be mapped.
//!
//! A zone is free, then being written, then closed. It becomes free again only when a root is durable in which nothing
//! in the zone is live (docs/VOLUME.md, 'The checkpoint'). This module keeps the counts and resets nothing.

use crate::{
    buf::BLOCK,
    device::Geometry,
    runtime::work,
    volume::{
        address::{self, Address, GRAINS, HOLE, Unit},
        error::NoVolume,
        extent_room::ExtentRoom,
        format::{FANOUT, Kind, MOST_ENTRIES, addresses, unseal},
        map::PagedMap,
        packed::PAGE_BYTES,
        root::{RootZone, ZoneUse},
    },
};
use std::collections::{BTreeMap, VecDeque};

/// Number of head zones.
pub const HEAD_ZONES: u32 = 2;

/// Free zones, besides those set aside for the map, that only garbage collection may begin.
const FOR_COLLECTION: u32 = 2;

/// Least number of spare zones: those that the streams write, those that only garbage collection may begin, and enough
/// obsolete blocks for garbage collection to make progress.
const LEAST_SPARE: u32 = 9;

/// Spare zones are this fraction (1/n) of the data zones, or [`LEAST_SPARE`] if that is more.
const SPARE_SHARE: u32 = 10;

/// Largest value of [`Space::low_mark`]: free zones that suffice for writes while others are being freed.
const MOST_KEPT_FREE: u32 = 8;

/// Active zones besides those of data streams: two of the head, one of the map.
const OTHER_ACTIVE: u32 = 3;

/// Fewest data streams: moved blocks never share a stream with user writes, which wait for room that moves make.
const LEAST_STREAMS: u32 = 2;

/// Least transfer size of a device, in blocks: a group of a header, two blocks of data, and one that fills up a zone.
/// With less data, headers would take all the room that a volume may promise.
const LEAST_TRANSFER: u32 = 4;

/// Most blocks of a group of moved blocks: user writes wait behind it.
const MOST_MOVED: u64 = 80;

/// Zones examined per unit of work.
const ZONES_IN_UNIT: u32 = 8;

/// The reserve of a volume that is larger than its room is at most this part (1/n) of the room.
const RESERVE_SHARE: u64 = 16;
/// Most blocks of a reserve, 32 GiB: more than the journals of file systems.
const MOST_RESERVE: u64 = 8 << 20;

/// Minimum number of units of the largest size that fit into a group: it limits the size of units.
const UNITS_IN_GROUP: u64 = 4;

/// Layout of a volume on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// Logical blocks.
    pub blocks: u64,
    /// Writable blocks of a zone.
    pub capacity: u32,
    /// Zones of the device.
    pub zones: u32,
    /// Number of data streams: 2 or 3.
    pub streams: usize,
    /// Maximum blocks of data in a group of user writes.
    pub group_most: u64,
    /// The largest unit that the transfer size of the device allows.
    pub unit: Unit,
    /// Number of map zones that the whole map needs; a checkpoint empties closed ones beyond it.
    pub map_kept: u32,
    /// Zones set aside for the map: no other purpose may use up the last of them.
    pub map_share: u32,
    /// Over-provisioning in zones: they are not counted as room, so that garbage collection always finds obsolete
    /// blocks.
    pub spare: u32,
    /// Logical blocks that may be mapped at once if they are not compressed.
    pub usable: u64,
    /// Of these, blocks that only overwrites may take, if the volume has more logical blocks; otherwise 0.
    pub reserve: u64,
}

impl ShardPlan {
    /// Least number of active zones.
    pub const LEAST_ACTIVE: u32 = OTHER_ACTIVE + LEAST_STREAMS;

    /// Computes the layout of a volume of `blocks` blocks; by default as many as fit uncompressed.
    ///
    /// # Errors
    /// When the device cannot carry such a volume.
    pub fn of(geometry: &Geometry, blocks: Option<u64>) -> Result<ShardPlan, NoVolume> {
        let (zones, capacity) = (geometry.zones, geometry.zone_capacity_blocks);
        let places = zones as u64 * capacity;
        if places > u32::MAX as u64 {
            return Err(NoVolume::Size { blocks: places });
        }
        if capacity > (u32::MAX / (2 * GRAINS)) as u64 {
            return Err(NoVolume::ZonesTooLarge);
        }
        let most = blocks.unwrap_or(places);
        if most == 0 || most > u32::MAX as u64 {
            return Err(NoVolume::Size { blocks: most });
        }
        let limit = |limit: u32| if limit == 0 { u32::MAX } else { limit };
        let active = limit(geometry.max_open).min(limit(geometry.max_active));
        let least = ShardPlan::LEAST_ACTIVE;
        if active < least {
            return Err(NoVolume::FewActive { active, least });
        }
        let transfer = geometry.max_transfer_blocks;
        if transfer < LEAST_TRANSFER {
            return Err(NoVolume::ShortTransfers { blocks: transfer, least: LEAST_TRANSFER });
        }
        // A header, data, and a block that fills up a zone.
        let group_most = MOST_ENTRIES.min((transfer as u64).saturating_sub(2)).min(capacity / 4);
        let pages = PagedMap::pages(most) + PagedMap::pages(most).div_ceil(FANOUT);
        let map_kept = pages.div_ceil(capacity.max(1)) as u32;
        let map_share = map_kept.saturating_mul(3).saturating_add(3);
        let data = zones.saturating_sub(HEAD_ZONES).saturating_sub(map_share);
        let spare = LEAST_SPARE.max(data / SPARE_SHARE);
        let root_bytes = 12 * zones as u64 + 4 * pages.div_ceil(FANOUT) + BLOCK as u64;
        let root_fits = root_bytes.div_ceil(BLOCK as u64 / 2) <= capacity;
        let unit = Unit::MOST.at(0, group_most.min(MOST_MOVED) / UNITS_IN_GROUP);
        let in_zone = if group_most == 0 { 0 } else { in_full_zone(capacity, group_most, unit) };
        if data <= spare || !root_fits || in_zone == 0 {
            let least = HEAD_ZONES + map_share + LEAST_SPARE + 1;
            return Err(NoVolume::DeviceTooSmall { zones, capacity_blocks: capacity, least });
        }
        let usable = (data - spare) as u64 * in_zone;
        Ok(ShardPlan {
            blocks: blocks.unwrap_or(usable),
            capacity: capacity as u32,
            zones,
            streams: (active - OTHER_ACTIVE).min(3) as usize,
            group_most,
            unit,
            map_kept,
            map_share,
            spare,
            usable,
            reserve: blocks
                .map_or(0, |blocks| blocks.saturating_sub(usable))
                .min(usable / RESERVE_SHARE)
                .min(MOST_RESERVE),
        })
    }

    /// Default number of map pages in memory: 128 MiB per TiB, and at least 64 MiB. A smaller map is in memory as a
    /// whole.
    pub fn default_pages(&self) -> usize {
        pages_in((self.blocks * BLOCK as u64 / 8192).max(LEAST_MAP_BYTES))
    }

    /// Most zones that are active at once, without a hot window.
    pub fn active(&self) -> u32 {
        OTHER_ACTIVE + self.streams as u32
    }

    /// Maximum blocks of data in a group that is written for the purpose `purpose`.
    pub fn most_of(&self, purpose: ZonePurpose) -> u64 {
        if purpose == ZonePurpose::Collection { self.group_most.min(MOST_MOVED) } else { self.group_most }
    }

    /// Blocks of data in a zone of full groups of moved blocks.
    pub fn in_full_zone(&self) -> u64 {
        in_full_zone(self.capacity as u64, self.group_most, self.unit)
    }

    /// Index of a stream (`stream::HOT`, `COLD` or `MOVED`); if there are only two streams, `HOT` and `COLD` share the
    /// first.
    pub fn index_of(&self, stream: usize) -> usize {
        if self.streams == 3 { stream } else { stream.saturating_sub(1) }
    }
}

/// Least default memory for a map, reached by volumes of 512 GiB. With less, small writes in a small volume would write
/// as much map as data.
const LEAST_MAP_BYTES: u64 = 64 << 20;

/// Number of map pages that fit into `bytes` bytes of memory.
pub fn pages_in(bytes: u64) -> usize {
    (bytes / PAGE_BYTES).max(16) as usize
}

/// Memory for `pages` pages of the map, in bytes.
pub fn bytes_in(pages: usize) -> u64 {
    PAGE_BYTES * pages as u64
}

/// Least number of blocks of data that fit into a zone: full groups of moved blocks, which are the smallest groups,
/// with pieces of the greatest length. Each group has a header, and its last block may be partly empty. A group, and
/// the zone, is closed when the next piece does not fit, so up to a piece of room may be lost.
fn in_full_zone(capacity: u64, group_most: u64, unit: Unit) -> u64 {
    let piece = if unit == Unit::BLOCK { 1 } else { unit.most_grains().div_ceil(GRAINS) as u64 };
    let group = group_most.min(MOST_MOVED) + 2 - piece;
    capacity.saturating_sub(piece).saturating_sub(2 * capacity.div_ceil(group))
}

/// The purpose for which a zone is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZonePurpose {
    /// A write or a discard of a user.
    Writer,
    /// Blocks that garbage collection moves.
    Collection,
    /// A discard of a user when there is no room for writes.
    Discard,
    /// Pages of the map.
    Map,
}

/// A zone: its record in a root, and its state at runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeZone {
    pub record: RootZone,
    /// It was written by the first stream: that of hot blocks, or with two streams that of all user writes.
    pub hot: bool,
    /// Number of reads in flight; the zone is not reset before they have completed.
    pub readers: u32,
    /// End of the written blocks, if the zone is read-only.
    pub ends_at: Option<u32>,
}

/// Use of all zones, and the room of the volume.
pub struct Space {
    plan: ShardPlan,
    zones: Vec<VolumeZone>,
    /// Free zones; the one that has been free for longest is first.
    free: VecDeque<u32>,
    /// Number of zones of the map, closed or being written.
    map_zones: u32,
    /// Number of lost zones.
    lost: u32,
    /// Zones that garbage collection could not empty, with the number of refused writes at the last attempt.
    unreadable: BTreeMap<u32, u64>,
    /// Number of mapped logical blocks.
    mapped: u64,
    /// Grains that the mapped blocks count for.
    held: u64,
    /// Blocks of the reserve that new blocks may take until the next start.
    lent: u64,
    /// The room of each extent of a pool.
    pub extents: Option<ExtentRoom>,
    pub next_segment: u64,
}

impl Space {
    /// The space with the zone records of a root, those of the head included, and `mapped` mapped logical blocks.
    pub fn new(plan: ShardPlan, records: &[RootZone], mapped: u64, next_segment: u64) -> Space {
        assert_eq!(records.len(), plan.zones as usize, "zone records of a root, and zones of the device");
        let mut space = Space {
            plan,
            zones: records
                .iter()
                .map(|record| VolumeZone { record: *record, ..VolumeZone::default() })
                .collect(),
            free: VecDeque::new(),
            map_zones: 0,
            lost: 0,
            unreadable: BTreeMap::new(),
            mapped,
            held: 0,
            lent: 0,
            extents: None,
            next_segment,
        };
        for (zone, record) in (0..).zip(records).skip(HEAD_ZONES as usize) {
            match record.state {
                ZoneUse::Free => space.free.push_back(zone),
                ZoneUse::Map | ZoneUse::ClosedMap => space.map_zones += 1,
                ZoneUse::Data | ZoneUse::ClosedData => space.held += record.live as u64,
                ZoneUse::Lost => space.lost += 1,
            }
        }
        space
    }

    /// Takes the layout of a larger volume on the same device; `false` if garbage collection could not work then.
    pub fn grow(&mut self, plan: ShardPlan) -> bool {
        let former = std::mem::replace(&mut self.plan, plan);
        let can_be = self.can_be_collected();
        match can_be {
            true => self.lent = self.lent.min(self.plan.reserve),
            false => self.plan = former,
        }
        can_be
    }

    pub fn plan(&self) -> &ShardPlan {
        &self.plan
    }

    pub fn zone(&self, zone: u32) -> &VolumeZone {
        &self.zones[zone as usize]
    }

    pub fn zone_mut(&mut self, zone: u32) -> &mut VolumeZone {
        &mut self.zones[zone as usize]
    }

    /// Records of all zones except the head zones.
    pub fn zones(&self) -> impl Iterator<Item = (u32, &RootZone)> {
        (0..).zip(self.zones.iter().map(|zone| &zone.record)).skip(HEAD_ZONES as usize)
    }

    /// Records of all zones, the head zones included.
    pub fn records(&self) -> impl Iterator<Item = RootZone> {
        self.zones.iter().map(|zone| zone.record)
    }

    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    pub fn free_zones(&self) -> u32 {
        self.free.len() as u32
    }

    pub fn lost_zones(&self) -> u32 {
        self.lost
    }

    /// Grains that the mapped blocks count for.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether overwrites of a family that take `more` additional grains have room; always true for 0.
    pub fn has_room(&self, family: u16, more: u32) -> bool {
        self.fits(family, more, self.usable())
    }

    /// Whether a family may take `more` grains. All families together may have `blocks` blocks, grains that are set aside
    /// included; a family may take the grains that are set aside for it up to the usable blocks.
    fn fits(&self, family: u16, more: u32, blocks: u64) -> bool {
        let (own, others) = self.set_aside(family);
        let (more, most) = (more as u64, self.usable() * GRAINS as u64);
        let is_set_aside = || more <= own && self.held + more <= most;
        let left = own.saturating_sub(more);
        more == 0 || self.held + more + others + left <= blocks * GRAINS as u64 || is_set_aside()
    }

    /// Grains that are set aside for a family of a pool, and for all others.
    pub fn set_aside(&self, family: u16) -> (u64, u64) {
        self.extents.as_ref().map_or((0, 0), |extents| extents.set_aside(family))
    }

    /// The family to which a block of a pool belongs; 0 for none.
    pub fn family(&self, block: u64) -> u16 {
        self.extents.as_ref().map_or(0, |extents| extents.family(block))
    }

    /// Whether writes of a family to unmapped blocks that take `more` additional grains have room: of the reserve they may
    /// take the lent part only. Always true for 0.
    pub fn has_room_for_new(&self, family: u16, more: u32) -> bool {
        self.fits(family, more, self.usable_for_new())
    }

    /// Grains that may be guaranteed to a family: those that it has, and those that are neither taken nor set aside for
    /// others.
    pub fn guaranteeable(&self, family: u16) -> u64 {
        let held = self.extents.as_ref().map_or(0, |extents| extents.held_by(family));
        let (_, others) = self.set_aside(family);
        (self.usable_for_new() * GRAINS as u64 + held).saturating_sub(self.held + others)
    }

    /// Grains of room that unmapped blocks may take.
    pub fn room_left(&self) -> u64 {
        (self.usable_for_new() * GRAINS as u64).saturating_sub(self.held)
    }

    /// Uncompressed logical blocks that may be mapped before writes to unmapped blocks are refused.
    pub fn usable_for_new(&self) -> u64 {
        self.usable().saturating_sub(self.plan.reserve.saturating_sub(self.lent))
    }

    /// Lends `blocks` blocks of the reserve, at most all of it, to unmapped blocks until the next start.
    pub fn lend(&mut self, blocks: u64) {
        self.lent = blocks.min(self.plan.reserve);
    }

    /// Blocks of the reserve that are lent to new blocks.
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// At the start, lends half of the reserve to unmapped blocks if there is little room: a file system may have to
    /// replay its journal before it can discard anything.
    pub fn lend_reserve(&mut self) {
        let used = self.held.div_ceil(GRAINS as u64);
        if used + self.plan.reserve >= self.usable_for_new() {
            self.lent = self.plan.reserve / 2;
        }
    }

    /// Uncompressed logical blocks that may be mapped at once. Lost zones count for none, and zones that cannot be
    /// emptied for no more than is live in them.
    pub fn usable(&self) -> u64 {
        let in_zone = self.plan.in_full_zone();
        let live = |zone: u32| (self.zone(zone).record.live / GRAINS) as u64;
        let wasted: u64 = self.unreadable().map(|(zone, _)| in_zone.saturating_sub(live(zone))).sum();
        self.plan.usable.saturating_sub(self.lost as u64 * in_zone + wasted)
    }

    /// Records that garbage collection could not empty a zone, when `refused` writes had been refused.
    pub fn could_not_empty(&mut self, zone: u32, refused: u64) {
        self.unreadable.insert(zone, refused);
    }

    /// Zones that garbage collection could not empty and that still have live data, with the number of refused writes
    /// at the last attempt.
    pub fn unreadable(&self) -> impl Iterator<Item = (u32, u64)> {
        let tried = self.unreadable.iter().map(|(zone, refused)| (*zone, *refused));
        tried.filter(|(zone, _)| self.zone(*zone).record.live > 0)
    }

    /// Whether the last attempt of garbage collection to empty the zone has failed.
    pub fn is_unreadable(&self, zone: u32) -> bool {
        self.unreadable.contains_key(&zone)
    }

    /// Whether a place that was read from the device can be valid: 0, a hole, or a piece within a zone that has live data.
    pub fn may_be_live(&self, place: Address) -> bool {
        if !address::is_piece(place) {
            return true;
        }
        let (zone, offset) = self.locate(place);
        let record = self.zones.get(zone as usize).map(|zone| zone.record);
        let fits = address::is_sane(place) && offset + address::blocks(place) <= self.plan.capacity;
        zone >= HEAD_ZONES && fits && record.is_some_and(|record| record.live > 0)
    }

    /// The addresses in the page or directory block of this kind, number and volume that was read from `place`; `None` if
    /// it is another block, or is older than its zone, or an address cannot be valid.
    pub fn read_map_block(
        &self,
        expected: (Kind, u32, u64),
        place: Address,
        block: &[u8],
    ) -> Option<Vec<Address>> {
        let (seal, ..) = unseal(block).ok()?;
        let begun_after = self.zone(self.locate(place).0).record.segment;
        let is_right = (seal.kind, seal.index, seal.volume) == expected && seal.generation > begun_after;
        let may_be = |place| self.may_be_live(place) && (expected.0 == Kind::Page || place != HOLE);
        let are_valid = || addresses(block).all(may_be);
        (is_right && are_valid()).then(|| addresses(block).collect())
    }

    /// The zone of a place, and the offset in it of the block in which the piece begins.
    pub fn locate(&self, place: Address) -> (u32, u32) {
        let block = address::block(place);
        (block / self.plan.capacity, block % self.plan.capacity)
    }

    /// The place of a whole block.
    pub fn place(&self, zone: u32, offset: u32) -> Address {
        let (zones, capacity) = (self.plan.zones, self.plan.capacity);
        assert!(
            (HEAD_ZONES..zones).contains(&zone) && offset < capacity,
            "block {offset} of zone {zone}, of {zones} zones of {capacity} blocks"
        );
        (zone * self.plan.capacity + offset) as Address
    }

    /// The place of a piece that begins `from` grains after the start of the block at `offset` of a zone.
    pub fn piece(&self, zone: u32, offset: u32, from: u32, piece: (Unit, u32)) -> Address {
        let block = zone * self.plan.capacity + offset + from / GRAINS;
        address::place(block, from % GRAINS, piece)
    }

    /// Free zones that writers may begin.
    pub fn available(&self) -> u32 {
        self.beside_map().saturating_sub(FOR_COLLECTION)
    }

    /// Free zones besides those that are set aside for the map.
    fn beside_map(&self) -> u32 {
        self.free_zones().saturating_sub(self.plan.map_share.saturating_sub(self.map_zones))
    }

    /// Whether garbage collection can work, as it has zones to begin besides those that are set aside for the map, and
    /// new blocks have room.
    pub fn can_be_collected(&self) -> bool {
        self.beside_map() >= FOR_COLLECTION && self.held <= self.usable_for_new() * GRAINS as u64
    }

    /// Whether a free zone may be taken for this purpose.
    pub fn may_begin(&self, purpose: ZonePurpose) -> bool {
        match purpose {
            ZonePurpose::Writer => self.available() > 0,
            ZonePurpose::Collection => self.beside_map() > 0,
            // The map needs one zone less than its share.
            ZonePurpose::Discard => {
                self.free_zones() + self.map_zones >= self.plan.map_share && !self.free.is_empty()
            }
            ZonePurpose::Map => !self.free.is_empty(),
        }
    }

    /// Zones that are being written.
    pub fn writing(&self) -> impl Iterator<Item = u32> {
        let is_written = |record: &RootZone| matches!(record.state, ZoneUse::Data | ZoneUse::Map);
        self.zones().filter(move |(_, record)| is_written(record)).map(|(zone, _)| zone)
    }

    /// Takes the zone that has been free for longest, to be written; `None` if none may be taken for this purpose.
    pub fn begin(&mut self, purpose: ZonePurpose) -> Option<u32> {
        if !self.may_begin(purpose) {
            return None;
        }
        let zone = self.free.pop_front()?;
        let VolumeZone { record, hot, ends_at, .. } = &mut self.zones[zone as usize];
        assert!(record.state == ZoneUse::Free && record.live == 0, "zone {zone} is begun while {record:?}");
        (*hot, *ends_at) = (false, None);
        *record = match purpose {
            ZonePurpose::Map => {
                self.map_zones += 1;
                RootZone { state: ZoneUse::Map, ..RootZone::default() }
            }
            _ => {
                self.next_segment += 1;
                RootZone { live: 0, state: ZoneUse::Data, segment: self.next_segment - 1 }
            }
        };
        Some(zone)
    }

    /// Closes a zone: nothing more is written to it.
    pub fn close(&mut self, zone: u32) {
        let state = &mut self.zones[zone as usize].record.state;
        *state = match *state {
            ZoneUse::Data => ZoneUse::ClosedData,
            ZoneUse::Map => ZoneUse::ClosedMap,
            other => other,
        };
    }

    /// Opens a closed zone to be written again.
    pub fn reopen(&mut self, zone: u32) {
        let state = &mut self.zones[zone as usize].record.state;
        assert_eq!(*state, ZoneUse::ClosedData, "a stream goes on in zone {zone}");
        *state = ZoneUse::Data;
    }

    /// Asserts that a zone has no live data and no readers, before it is reset.
    pub fn check_dead(&self, zone: u32) {
        let VolumeZone { record, readers, .. } = self.zone(zone);
        assert!(
            zone >= HEAD_ZONES && record.is_closed() && record.live == 0 && *readers == 0,
            "zone {zone} is reset while {record:?}, with {readers} reads in flight"
        );
    }

    /// Asserts that the free list and the counts agree with the states of the zones.
    pub fn check_counts(&self) {
        let count =
            |state: fn(ZoneUse) -> bool| self.zones().filter(|(_, record)| state(record.state)).count();
        let free = count(|state| state == ZoneUse::Free);
        assert_eq!(self.free.len(), free, "listed free zones, and zones that are free");
        let map = count(ZoneUse::is_of_map);
        assert_eq!(self.map_zones as usize, map, "counted map zones, and zones that hold map");
        let lost = count(|state| state == ZoneUse::Lost);
        assert_eq!(self.lost as usize, lost, "counted lost zones, and zones that are lost");
    }

    /// Frees a zone that was reset.
    pub fn release(&mut self, zone: u32) {
        let record = &mut self.zones[zone as usize].record;
        assert!(record.is_closed() && record.live == 0, "zone {zone} becomes free while {record:?}");
        self.map_zones -= (record.state == ZoneUse::ClosedMap) as u32;
        *record = RootZone::default();
        self.unreadable.remove(&zone);
        self.free.push_back(zone);
    }

    /// Records that a zone without live data cannot be reset.
    pub fn lose(&mut self, zone: u32) {
        self.free.retain(|free| *free != zone);
        let record = &mut self.zones[zone as usize].record;
        assert_eq!(record.live, 0, "live grains of zone {zone}, which is given up as {:?}", record.state);
        self.map_zones -= (record.state == ZoneUse::ClosedMap) as u32;
        *record = RootZone { state: ZoneUse::Lost, ..RootZone::default() };
        self.unreadable.remove(&zone);
        self.lost += 1;
    }

    /// Adjusts the counts when logical block `block` is mapped to `now` instead of `before` (0: unmapped). `were` is the
    /// number of blocks of its unit that were at `before` before the change, and `are` the number that are at `now`
    /// after it.
    pub fn moved(&mut self, block: u64, (before, were): (Address, u32), (now, are): (Address, u32)) {
        let (mut freed, mut taken) = (0, 0);
        if address::is_piece(before) {
            freed = self.subtract_share(before, were);
            self.mapped = self.mapped.saturating_sub(1);
            self.held = self.held.saturating_sub(freed as u64);
        }
        if address::is_piece(now) {
            taken = self.add_share(now, are);
            self.held += taken as u64;
            self.mapped += 1;
        }
        if let Some(extents) = &mut self.extents {
            extents.change(block, freed, taken);
        }
    }

    /// Adjusts the live counts when a block of the map or its directory moves from `before` to `now`.
    pub fn map_moved(&mut self, before: Address, now: Address) {
        if before != 0 {
            self.subtract_share(before, 1);
        }
        self.add_share(now, 1);
    }

    /// Subtracts the share of one block of a piece from the live count of its zone, where `were` of its blocks were
    /// mapped before; returns the share in grains.
    fn subtract_share(&mut self, place: Address, were: u32) -> u32 {
        let (zone, _) = self.locate(place);
        let charge = address::share(place, were);
        // A live count below that of the map is damage, which the audit reports.
        let live = &mut self.zones[zone as usize].record.live;
        *live = live.saturating_sub(charge);
        charge
    }

    /// Adds the share of one block of a piece to the live count of its zone, where `are` of its blocks are mapped now;
    /// returns the share in grains.
    fn add_share(&mut self, place: Address, are: u32) -> u32 {
        let (zone, _) = self.locate(place);
        let charge = address::share(place, are);
        self.zones[zone as usize].record.live += charge;
        charge
    }

    /// Accounts for the work of one iteration over all zones.
    pub fn count_scan(&self) {
        work(self.zones.len() as u32 / ZONES_IN_UNIT);
    }

    /// Number of closed zones without live data.
    pub fn dead(&self) -> u32 {
        self.zones().filter(|(_, record)| record.is_closed() && record.live == 0).count() as u32
    }

    /// Number of free zones at which garbage collection begins, 2 to 8. It is small, since a spare zone that is kept
    /// free holds no obsolete blocks, which make collection cheap.
    pub fn low_mark(&self) -> u32 {
        (self.plan.spare / 4).clamp(2, MOST_KEPT_FREE)
    }

    /// Closed map zones that the next checkpoint empties, those with the fewest live blocks, so that no more than
    /// [`ShardPlan::map_kept`] stay.
    pub fn to_sweep(&self) -> Vec<u32> {
        let closed = |record: &RootZone| record.state == ZoneUse::ClosedMap && record.live > 0;
        let mut zones: Vec<(u32, u32)> =
            self.zones().filter(|(_, r)| closed(r)).map(|(zone, r)| (r.live, zone)).collect();
        zones.sort_unstable();
        let surplus = zones.len().saturating_sub(self.plan.map_kept as usize);
        zones.into_iter().take(surplus).map(|(_, zone)| zone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::root::PoolShape;

    fn geometry() -> Geometry {
        Geometry {
            zones: 30,
            zone_size_blocks: 128,
            zone_capacity_blocks: 100,
            max_open: 0,
            max_active: 8,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 16,
            max_append_blocks: 0,
            volatile_cache: false,
        }
    }

    #[test]
    fn volume_plan_reports_capacity_or_cause_of_refusal() {
        let plan = ShardPlan::of(&geometry(), None).unwrap();
        // 30 zones less 2 of the head, 6 of the map and 9 spare. Groups have at least 13 blocks of data, with a header
        // and a partly empty block; the last two blocks of a zone may have no room for a piece.
        assert_eq!((plan.map_share, plan.spare, plan.usable), (6, 9, 13 * (100 - 2 * 8 - 2)));
        assert_eq!((plan.streams, plan.group_most, plan.unit.blocks()), (3, 14, 2));
        let large = Geometry { max_transfer_blocks: 4096, zone_capacity_blocks: 1000, ..geometry() };
        let plan = ShardPlan::of(&large, None).unwrap();
        assert_eq!((plan.unit, plan.in_full_zone()), (Unit::MOST, 1000 - 2 * 15 - 14));
        assert_eq!(ShardPlan::of(&geometry(), Some(5)).unwrap().blocks, 5);
        for (why, geometry) in [
            ("active zones", Geometry { max_active: 3, ..geometry() }),
            ("too small", Geometry { zones: 15, ..geometry() }),
            ("transfers of 4 blocks", Geometry { max_transfer_blocks: 3, ..geometry() }),
        ] {
            let said = ShardPlan::of(&geometry, None).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        assert!(ShardPlan::of(&Geometry { max_transfer_blocks: 4, ..geometry() }, None).is_ok());
        assert!(ShardPlan::of(&geometry(), Some(0)).is_err());
        assert!(ShardPlan::of(&geometry(), Some(1 << 32)).is_err());
    }

    #[test]
    fn space_reserves_zones_for_collection_and_map() {
        let plan = ShardPlan::of(&geometry(), None).unwrap();
        let mut space = Space::new(plan, &[RootZone::default(); 30], 0, 1);
        let mut taken = [ZonePurpose::Writer, ZonePurpose::Collection, ZonePurpose::Map].map(|purpose| {
            let zones: Vec<u32> = std::iter::from_fn(|| space.begin(purpose)).collect();
            zones
        });
        assert_eq!(taken.each_ref().map(Vec::len), [20, 2, 6]);
        // Each zone once, and no head zone.
        let mut all = taken.concat();
        all.sort_unstable();
        assert_eq!(all, (2..30).collect::<Vec<u32>>());
        let zone = taken[2].remove(0);
        space.close(zone);
        assert_eq!((space.dead(), space.free_zones()), (1, 0));
        space.release(zone);
        assert!(!space.may_begin(ZonePurpose::Collection) && space.may_begin(ZonePurpose::Map));
    }

    #[test]
    #[should_panic(expected = "live: 64, state: ClosedData")]
    fn space_ends_process_before_reset_of_live_zone() {
        let mut space =
            Space::new(ShardPlan::of(&geometry(), None).unwrap(), &[RootZone::default(); 30], 0, 1);
        let zone = space.begin(ZonePurpose::Writer).unwrap();
        space.moved(0, (0, 0), (space.place(zone, 1), 1));
        space.close(zone);
        space.check_counts();
        space.check_dead(zone);
    }

    #[test]
    fn space_counts_room_in_grains_zero_always_fits() {
        let mut space =
            Space::new(ShardPlan::of(&geometry(), None).unwrap(), &[RootZone::default(); 30], 0, 1);
        let zone = space.begin(ZonePurpose::Writer).unwrap();
        let short = space.piece(zone, 1, 0, (Unit::BLOCK, 9));
        space.moved(0, (0, 0), (short, 1));
        assert_eq!(space.held, 10);
        space.held = space.usable() * GRAINS as u64 - 10;
        assert!(space.has_room(0, 10) && !space.has_room(0, 11));
        space.held = u64::MAX / 2;
        assert!(space.has_room(0, 0) && !space.has_room(0, 1));
    }

    #[test]
    fn space_keeps_room_that_is_set_aside_for_its_family() {
        let plan = ShardPlan::of(&geometry(), None).unwrap();
        let mut space = Space::new(plan, &[RootZone::default(); 30], 0, 1);
        let mut extents = ExtentRoom::of(PoolShape { extent_blocks: 16, slots: 1 }, 160).unwrap();
        extents.count_unmapped(u64::MAX);
        extents.set_family(1, 5);
        extents.guarantee(5, 100);
        space.extents = Some(extents);
        let all = space.usable() * GRAINS as u64;
        space.held = all - 110;
        assert_eq!(
            (space.family(17), space.family(0), space.guaranteeable(5), space.guaranteeable(6)),
            (5, 0, 110, 10)
        );
        assert!(space.has_room(0, 10) && !space.has_room(0, 11), "100 are set aside for another family");
        assert!(space.has_room_for_new(5, 100) && space.has_room(5, 110) && !space.has_room(5, 111));
        // As after the loss of zones: fewer grains are free than are set aside.
        space.held = all - 60;
        assert!(!space.has_room(0, 1) && space.has_room(5, 60) && !space.has_room(5, 61));
    }

    #[test]
    fn space_charges_unit_lesser_of_piece_and_blocks() {
        let mut space =
            Space::new(ShardPlan::of(&geometry(), None).unwrap(), &[RootZone::default(); 30], 0, 1);
        let zone = space.begin(ZonePurpose::Writer).unwrap();
        let piece = space.piece(zone, 1, 0, (Unit::MOST, 160));
        let mut held = Vec::new();
        (1..=4).for_each(|are| {
            space.moved(0, (0, 0), (piece, are));
            held.push(space.held());
        });
        (1..=4).rev().for_each(|were| {
            space.moved(0, (piece, were), (0, 0));
            held.push(space.held());
        });
        assert_eq!(held, [64, 128, 161, 161, 161, 128, 64, 0]);
        assert_eq!((space.mapped(), space.zone(zone).record.live), (0, 0));
    }

    #[test]
    fn space_counts_live_blocks_in_their_zones() {
        let plan = ShardPlan::of(&geometry(), None).unwrap();
        let mut space = Space::new(plan, &[RootZone::default(); 30], 0, 1);
        let [a, b] = [space.begin(ZonePurpose::Writer).unwrap(), space.begin(ZonePurpose::Writer).unwrap()];
        let (first, second) = (space.place(a, 1), space.place(b, 99));
        assert_eq!(space.locate(second), (b, 99));
        space.moved(0, (0, 0), (first, 1));
        space.moved(0, (first, 1), (second, 1));
        assert_eq!((space.zone(a).record.live, space.zone(b).record.live, space.mapped()), (0, GRAINS, 1));
        space.moved(0, (second, 1), (0, 0));
        // Three pieces in one block, each of which counts.
        let pieces = [0, 20, 40].map(|from| space.piece(a, 99, from, (Unit::BLOCK, 20)));
        pieces.iter().for_each(|piece| space.moved(0, (0, 0), (*piece, 1)));
        assert_eq!((space.zone(a).record.live, space.mapped(), space.held()), (3 * 21, 3, 3 * 21));
        assert!(pieces.iter().all(|piece| space.locate(*piece) == (a, 99) && space.may_be_live(*piece)));
        assert!(!space.may_be_live(space.piece(a, 99, 60, (Unit::BLOCK, 20))), "it would leave the zone");
        pieces.iter().for_each(|piece| space.moved(0, (*piece, 1), (0, 0)));
        assert_eq!((space.zone(b).record.live, space.mapped()), (0, 0));
        assert!(space.zone(a).record.segment < space.zone(b).record.segment);
    }
}
