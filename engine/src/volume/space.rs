//! Zones and room: what each zone is used for, how much of it is live, who may begin another one, and how much may
//! be mapped at once.
//!
//! A zone is free, then written, then closed, and then, only when a root is safe in whose map nothing of it is
//! live, free again (docs/VOLUME.md, 'The checkpoint'). This file keeps the books; it does not reset anything.

use crate::{
    buf::BLOCK,
    device::Geometry,
    runtime::work,
    volume::{
        error::NoVolume,
        format::{FANOUT, MOST_ENTRIES, ZoneRecord, ZoneUse},
        map::Paged,
        place::{self, GRAINS, Place, Unit},
    },
};
use std::collections::{BTreeMap, VecDeque};

/// Zones of the head.
pub const HEAD_ZONES: u32 = 2;

/// Zones beside the map's share that are for collection alone.
const FOR_COLLECTION: u32 = 2;

/// Least number of spare zones: those that streams write, those for collection alone, and as many as keep
/// collection from going on for ever.
const LEAST_SPARE: u32 = 9;

/// Of the zones for data, one in so many is spare.
const SPARE_SHARE: u32 = 10;

/// Free zones that are enough for what is written while others are being freed.
const MOST_KEPT_FREE: u32 = 8;

/// Active zones that are not those of streams of data: two of the head, one of the map.
const OTHER_ACTIVE: u32 = 3;

/// Fewest streams of data: what is moved never shares one with what writers write, whom it makes room for.
const LEAST_STREAMS: u32 = 2;

/// Fewest blocks that a device has to take at a time: a group with a header, two blocks of data, and one that fills up
/// a zone. With less data, headers would take all the room that a volume may promise.
const LEAST_TRANSFER: u32 = 4;

/// Most blocks of a group of moved ones: what writers wait behind.
const MOST_MOVED: u64 = 80;

/// Zones that are looked at in the time of a unit of work.
const ZONES_IN_UNIT: u32 = 8;

/// Of the room of a volume that is larger, this part is for overwriting alone: one in so many.
const RESERVE_SHARE: u64 = 16;

/// So many units fit into a group, at least, of the largest that there are.
const UNITS_IN_GROUP: u64 = 4;

/// How a volume is laid out on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Logical blocks.
    pub blocks: u64,
    /// Blocks of a zone.
    pub capacity: u32,
    /// Zones of the device.
    pub zones: u32,
    /// Streams of data: 2 or 3.
    pub streams: usize,
    /// Most entries of a group.
    pub group_most: u64,
    /// The largest unit.
    pub unit: Unit,
    /// Map zones that stay as they are; those beyond are swept.
    pub map_kept: u32,
    /// Zones set aside for the map.
    pub map_share: u32,
    /// Zones whose room nobody is promised, so that there is something to collect.
    pub spare: u32,
    /// Logical blocks that may be mapped at once if they are not compressed.
    pub usable: u64,
    /// How many of them only blocks may take that are mapped already, since the volume is larger than its room: 0 if it
    /// is not.
    pub reserve: u64,
}

impl Plan {
    /// How a volume of `blocks` blocks, or of as many as there is room for, is laid out.
    ///
    /// # Errors
    /// Why there can be no such volume on a device like this.
    pub fn of(geometry: &Geometry, blocks: Option<u64>) -> Result<Plan, NoVolume> {
        let (zones, capacity) = (geometry.zones, geometry.zone_capacity_blocks);
        let places = zones as u64 * capacity;
        if places > u32::MAX as u64 {
            return Err(NoVolume::DeviceTooLarge);
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
        let least = OTHER_ACTIVE + LEAST_STREAMS;
        if active < least {
            return Err(NoVolume::FewActive { active, least });
        }
        let transfer = geometry.max_transfer_blocks;
        if transfer < LEAST_TRANSFER {
            return Err(NoVolume::ShortTransfers { blocks: transfer, least: LEAST_TRANSFER });
        }
        // A header, data, and a block that fills up a zone.
        let group_most = MOST_ENTRIES.min((transfer as u64).saturating_sub(2)).min(capacity / 4);
        let pages = Paged::pages(most) + Paged::pages(most).div_ceil(FANOUT);
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
        Ok(Plan {
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
            reserve: blocks.map_or(0, |blocks| blocks.saturating_sub(usable)).min(usable / RESERVE_SHARE),
        })
    }

    /// Pages of the map in memory, unless another number is given: 128 MiB a TiB, and no less than 64 MiB or the whole
    /// map, whichever is smaller.
    pub fn default_pages(&self) -> usize {
        pages_in((self.blocks * BLOCK as u64 / 8192).max(LEAST_MAP_BYTES))
    }

    /// Most blocks of a group that `who` writes.
    pub fn most_of(&self, who: Who) -> u64 {
        if who == Who::Collection { self.group_most.min(MOST_MOVED) } else { self.group_most }
    }

    /// Blocks of data in a zone of full groups of moved blocks.
    pub fn in_full_zone(&self) -> u64 {
        in_full_zone(self.capacity as u64, self.group_most, self.unit)
    }

    /// The stream of `stream::HOT` and so on, where there may be fewer.
    pub fn index_of(&self, stream: usize) -> usize {
        if self.streams == 3 { stream } else { stream.saturating_sub(1) }
    }
}

/// Least memory for a map that has as much: a volume of 512 GiB would have it without a floor. With less, small writes
/// in a small volume write as much map as data.
const LEAST_MAP_BYTES: u64 = 64 << 20;

/// Pages of the map that so many bytes of memory hold.
pub fn pages_in(bytes: u64) -> usize {
    (bytes / (6 * FANOUT)).max(16) as usize
}

/// Bytes of memory that so many pages of the map take.
pub fn bytes_in(pages: usize) -> u64 {
    6 * FANOUT * pages as u64
}

/// Blocks of data in a zone of full groups of moved blocks, the smallest there are, if all pieces are as long as there are
/// any: each group has a header, and may lack a part of a block at its end; it is closed where the next piece has no room
/// in it, and so is the zone.
fn in_full_zone(capacity: u64, group_most: u64, unit: Unit) -> u64 {
    let piece = if unit == Unit::BLOCK { 1 } else { unit.most_grains().div_ceil(GRAINS) as u64 };
    let group = group_most.min(MOST_MOVED) + 2 - piece;
    capacity.saturating_sub(piece).saturating_sub(2 * capacity.div_ceil(group))
}

/// Who wants another zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Writer,
    Collection,
    /// Somebody who discards where there is no room for anything else.
    Discard,
    Map,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Zone {
    pub record: ZoneRecord,
    /// What was written to it counted as short-lived.
    pub hot: bool,
    /// Reads on their way.
    pub readers: u32,
    /// The zone can only be read, and below this offset.
    pub ends_at: Option<u32>,
}

pub struct Space {
    plan: Plan,
    zones: Vec<Zone>,
    free: VecDeque<u32>,
    /// Zones of the map.
    map_zones: u32,
    /// Zones that are lost.
    lost: u32,
    /// Zones that collection could not empty, and how many writes had been refused when it tried.
    unreadable: BTreeMap<u32, u64>,
    /// Logical blocks that are mapped, and what they count for, in grains.
    mapped: u64,
    held: u64,
    /// What new blocks may take of the reserve until the next start.
    lent: u64,
    pub next_segment: u64,
}

impl Space {
    /// What `zones` say, those of the head with them, when so many logical blocks are mapped.
    pub fn new(plan: Plan, records: &[ZoneRecord], mapped: u64, next_segment: u64) -> Space {
        let mut space = Space {
            plan,
            zones: records.iter().map(|record| Zone { record: *record, ..Zone::default() }).collect(),
            free: VecDeque::new(),
            map_zones: 0,
            lost: 0,
            unreadable: BTreeMap::new(),
            mapped,
            held: 0,
            lent: 0,
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

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn zone(&self, zone: u32) -> &Zone {
        &self.zones[zone as usize]
    }

    pub fn zone_mut(&mut self, zone: u32) -> &mut Zone {
        &mut self.zones[zone as usize]
    }

    /// All zones but those of the head.
    pub fn zones(&self) -> impl Iterator<Item = (u32, &ZoneRecord)> {
        (0..).zip(self.zones.iter().map(|zone| &zone.record)).skip(HEAD_ZONES as usize)
    }

    pub fn records(&self) -> impl Iterator<Item = ZoneRecord> {
        self.zones.iter().map(|zone| zone.record)
    }

    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    pub fn free_zones(&self) -> u32 {
        self.free.len() as u32
    }

    /// What is mapped counts for, in grains.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether there is room for what counts for so many grains.
    pub fn has_room(&self, more: u32) -> bool {
        more == 0 || self.held + more as u64 <= self.usable() * GRAINS as u64
    }

    /// Whether there is room for what counts for so many grains, beside the reserve, for blocks that are not mapped yet.
    pub fn has_room_for_new(&self, more: u32) -> bool {
        more == 0 || self.held + more as u64 <= self.usable_for_new() * GRAINS as u64
    }

    /// Logical blocks that may be mapped at once, if they are not compressed, before blocks that are not mapped are
    /// refused.
    pub fn usable_for_new(&self) -> u64 {
        self.usable().saturating_sub(self.plan.reserve.saturating_sub(self.lent))
    }

    /// Lends new blocks so much of the reserve, or as much as there is, until the next start.
    pub fn lend(&mut self, blocks: u64) {
        self.lent = blocks.min(self.plan.reserve);
    }

    /// How much of the reserve is lent to new blocks.
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// Lends new blocks half of the reserve until the next start, if there is little room without: what uses the volume
    /// may have to replay a journal before it can discard anything.
    pub fn lend_reserve(&mut self) {
        let used = self.held.div_ceil(GRAINS as u64);
        if used + self.plan.reserve >= self.usable_for_new() {
            self.lent = self.plan.reserve / 2;
        }
    }

    /// Logical blocks that may be mapped at once if they are not compressed: zones that are lost hold none, and those
    /// that cannot be emptied no more than they do.
    pub fn usable(&self) -> u64 {
        let in_zone = self.plan.in_full_zone();
        let live = |zone: u32| (self.zone(zone).record.live / GRAINS) as u64;
        let wasted: u64 = self.unreadable().map(|(zone, _)| in_zone.saturating_sub(live(zone))).sum();
        self.plan.usable.saturating_sub(self.lost as u64 * in_zone + wasted)
    }

    /// Collection could not empty a zone when so many writes had been refused.
    pub fn could_not_empty(&mut self, zone: u32, refused: u64) {
        self.unreadable.insert(zone, refused);
    }

    /// Zones that collection could not empty and that nobody else has emptied since, and how many writes had been refused
    /// when it last tried.
    pub fn unreadable(&self) -> impl Iterator<Item = (u32, u64)> {
        let tried = self.unreadable.iter().map(|(zone, refused)| (*zone, *refused));
        tried.filter(|(zone, _)| self.zone(*zone).record.live > 0)
    }

    /// Whether it is one of these.
    pub fn is_unreadable(&self, zone: u32) -> bool {
        self.unreadable.contains_key(&zone)
    }

    /// Whether what is on the device may say of a block that it lies there.
    pub fn may_be_live(&self, place: Place) -> bool {
        if place == 0 {
            return true;
        }
        let (zone, offset) = self.locate(place);
        let record = self.zones.get(zone as usize).map(|zone| zone.record);
        let fits = place::is_sane(place) && offset + place::blocks(place) <= self.plan.capacity;
        zone >= HEAD_ZONES && fits && record.is_some_and(|record| record.live > 0)
    }

    /// The zone of a place, and the offset in it of the block that it begins in.
    pub fn locate(&self, place: Place) -> (u32, u32) {
        let block = place::block(place);
        (block / self.plan.capacity, block % self.plan.capacity)
    }

    /// The place of a whole block.
    pub fn place(&self, zone: u32, offset: u32) -> Place {
        (zone * self.plan.capacity + offset) as Place
    }

    /// The place of a piece that begins so many grains behind the block at `offset` of a zone.
    pub fn piece(&self, zone: u32, offset: u32, from: u32, piece: (Unit, u32)) -> Place {
        let block = zone * self.plan.capacity + offset + from / GRAINS;
        place::place(block, from % GRAINS, piece)
    }

    /// Free zones that writers may begin.
    pub fn available(&self) -> u32 {
        self.beside_map().saturating_sub(FOR_COLLECTION)
    }

    fn beside_map(&self) -> u32 {
        self.free_zones().saturating_sub(self.plan.map_share.saturating_sub(self.map_zones))
    }

    pub fn may_begin(&self, who: Who) -> bool {
        match who {
            Who::Writer => self.available() > 0,
            Who::Collection => self.beside_map() > 0,
            // The share of the map has one more than it needs.
            Who::Discard => {
                self.free_zones() + self.map_zones >= self.plan.map_share && !self.free.is_empty()
            }
            Who::Map => !self.free.is_empty(),
        }
    }

    /// Zones that are being written.
    pub fn writing(&self) -> impl Iterator<Item = u32> {
        let is_written = |record: &ZoneRecord| matches!(record.state, ZoneUse::Data | ZoneUse::Map);
        self.zones().filter(move |(_, record)| is_written(record)).map(|(zone, _)| zone)
    }

    /// Takes a free zone to be written; the one that has been free for longest.
    pub fn begin(&mut self, who: Who) -> Option<u32> {
        if !self.may_begin(who) {
            return None;
        }
        let zone = self.free.pop_front()?;
        let Zone { record, hot, ends_at, .. } = &mut self.zones[zone as usize];
        (*hot, *ends_at) = (false, None);
        *record = match who {
            Who::Map => {
                self.map_zones += 1;
                ZoneRecord { state: ZoneUse::Map, ..ZoneRecord::default() }
            }
            _ => {
                self.next_segment += 1;
                ZoneRecord { live: 0, state: ZoneUse::Data, segment: self.next_segment - 1 }
            }
        };
        Some(zone)
    }

    /// Nothing is written to the zone any more.
    pub fn close(&mut self, zone: u32) {
        let state = &mut self.zones[zone as usize].record.state;
        *state = match *state {
            ZoneUse::Data => ZoneUse::ClosedData,
            ZoneUse::Map => ZoneUse::ClosedMap,
            other => other,
        };
    }

    /// A zone that was closed is written again.
    pub fn reopen(&mut self, zone: u32) {
        let state = &mut self.zones[zone as usize].record.state;
        if *state == ZoneUse::ClosedData {
            *state = ZoneUse::Data;
        }
    }

    /// The zone has been reset.
    pub fn release(&mut self, zone: u32) {
        let record = &mut self.zones[zone as usize].record;
        debug_assert_eq!(record.live, 0);
        self.map_zones -= (record.state == ZoneUse::ClosedMap) as u32;
        *record = ZoneRecord::default();
        self.unreadable.remove(&zone);
        self.free.push_back(zone);
    }

    /// The zone cannot be reset, and there is nothing in it.
    pub fn lose(&mut self, zone: u32) {
        self.free.retain(|free| *free != zone);
        let record = &mut self.zones[zone as usize].record;
        self.map_zones -= (record.state == ZoneUse::ClosedMap) as u32;
        *record = ZoneRecord { state: ZoneUse::Lost, ..ZoneRecord::default() };
        self.unreadable.remove(&zone);
        self.lost += 1;
    }

    /// A logical block was at `before` and is at `now`; 0 for nowhere. So many blocks of its unit were there then, and
    /// are there now.
    pub fn moved(&mut self, (before, were): (Place, u32), (now, are): (Place, u32)) {
        if before != 0 {
            let counted = self.left(before, were);
            self.mapped = self.mapped.saturating_sub(1);
            self.held = self.held.saturating_sub(counted as u64);
        }
        if now != 0 {
            self.held += self.taken(now, are) as u64;
            self.mapped += 1;
        }
    }

    /// A block of the map was at `before` and is at `now`.
    pub fn map_moved(&mut self, before: Place, now: Place) {
        if before != 0 {
            self.left(before, 1);
        }
        self.taken(now, 1);
    }

    fn left(&mut self, place: Place, were: u32) -> u32 {
        let (zone, _) = self.locate(place);
        let charge = place::share(place, were);
        // A root that says less than its map does would be damage; the audit tells.
        let live = &mut self.zones[zone as usize].record.live;
        *live = live.saturating_sub(charge);
        charge
    }

    fn taken(&mut self, place: Place, are: u32) -> u32 {
        let (zone, _) = self.locate(place);
        let charge = place::share(place, are);
        self.zones[zone as usize].record.live += charge;
        charge
    }

    /// Counts the work of a look at all zones: some nanoseconds each.
    pub fn count_scan(&self) {
        work(self.zones.len() as u32 / ZONES_IN_UNIT);
    }

    /// Closed zones in which nothing is live.
    pub fn dead(&self) -> u32 {
        let dead = |zone: &ZoneRecord| {
            matches!(zone.state, ZoneUse::ClosedData | ZoneUse::ClosedMap) && zone.live == 0
        };
        self.zones().filter(|(_, record)| dead(record)).count() as u32
    }

    /// Free zones at which collection begins: each of them is a spare one of which collection makes nothing.
    pub fn low_mark(&self) -> u32 {
        (self.plan.spare / 4).clamp(2, MOST_KEPT_FREE)
    }

    /// Map zones to be swept, so that few stay: those with the fewest live blocks.
    pub fn to_sweep(&self) -> Vec<u32> {
        let closed = |record: &ZoneRecord| record.state == ZoneUse::ClosedMap && record.live > 0;
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
    fn a_plan_says_what_there_is_room_for_and_why_there_is_none() {
        let plan = Plan::of(&geometry(), None).unwrap();
        // 30 less 2, less 6 of the map, less 9 spare; groups of 13 at least with a header and what is lacking at their
        // ends, and what is left of a zone where two blocks have no room.
        assert_eq!((plan.map_share, plan.spare, plan.usable), (6, 9, 13 * (100 - 2 * 8 - 2)));
        assert_eq!((plan.streams, plan.group_most, plan.unit.blocks()), (3, 14, 2));
        let large = Geometry { max_transfer_blocks: 4096, zone_capacity_blocks: 1000, ..geometry() };
        let plan = Plan::of(&large, None).unwrap();
        assert_eq!((plan.unit, plan.in_full_zone()), (Unit::MOST, 1000 - 2 * 15 - 14));
        assert_eq!(Plan::of(&geometry(), Some(5)).unwrap().blocks, 5);
        for (why, geometry) in [
            ("16 TiB", Geometry { zones: 1 << 26, ..geometry() }),
            ("active zones", Geometry { max_active: 3, ..geometry() }),
            ("too small", Geometry { zones: 15, ..geometry() }),
            ("transfers of 4 blocks", Geometry { max_transfer_blocks: 3, ..geometry() }),
        ] {
            let said = Plan::of(&geometry, None).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        assert!(Plan::of(&Geometry { max_transfer_blocks: 4, ..geometry() }, None).is_ok());
        assert!(Plan::of(&geometry(), Some(0)).is_err());
        assert!(Plan::of(&geometry(), Some(1 << 32)).is_err());
    }

    #[test]
    fn writers_leave_zones_to_collection_and_both_to_the_map() {
        let plan = Plan::of(&geometry(), None).unwrap();
        let mut space = Space::new(plan, &[ZoneRecord::default(); 30], 0, 1);
        let mut taken = [Who::Writer, Who::Collection, Who::Map].map(|who| {
            let zones: Vec<u32> = std::iter::from_fn(|| space.begin(who)).collect();
            zones
        });
        assert_eq!(taken.each_ref().map(Vec::len), [20, 2, 6]);
        // Each zone once, and none of the head.
        let mut all = taken.concat();
        all.sort_unstable();
        assert_eq!(all, (2..30).collect::<Vec<u32>>());
        let zone = taken[2].remove(0);
        space.close(zone);
        assert_eq!((space.dead(), space.free_zones()), (1, 0));
        space.release(zone);
        assert!(!space.may_begin(Who::Collection) && space.may_begin(Who::Map));
    }

    #[test]
    fn room_is_counted_in_grains_and_what_takes_none_is_never_refused() {
        let mut space = Space::new(Plan::of(&geometry(), None).unwrap(), &[ZoneRecord::default(); 30], 0, 1);
        let zone = space.begin(Who::Writer).unwrap();
        let short = space.piece(zone, 1, 0, (Unit::BLOCK, 9));
        space.moved((0, 0), (short, 1));
        assert_eq!(space.held, 10);
        space.held = space.usable() * GRAINS as u64 - 10;
        assert!(space.has_room(10) && !space.has_room(11));
        space.held = u64::MAX / 2;
        assert!(space.has_room(0) && !space.has_room(1));
    }

    #[test]
    fn a_unit_counts_for_its_piece_as_long_as_its_blocks_would_not_take_less() {
        let mut space = Space::new(Plan::of(&geometry(), None).unwrap(), &[ZoneRecord::default(); 30], 0, 1);
        let zone = space.begin(Who::Writer).unwrap();
        let piece = space.piece(zone, 1, 0, (Unit::MOST, 160));
        let mut held = Vec::new();
        (1..=4).for_each(|are| {
            space.moved((0, 0), (piece, are));
            held.push(space.held());
        });
        (1..=4).rev().for_each(|were| {
            space.moved((piece, were), (0, 0));
            held.push(space.held());
        });
        assert_eq!(held, [64, 128, 161, 161, 161, 128, 64, 0]);
        assert_eq!((space.mapped(), space.zone(zone).record.live), (0, 0));
    }

    #[test]
    fn every_block_is_counted_where_it_is() {
        let plan = Plan::of(&geometry(), None).unwrap();
        let mut space = Space::new(plan, &[ZoneRecord::default(); 30], 0, 1);
        let [a, b] = [space.begin(Who::Writer).unwrap(), space.begin(Who::Writer).unwrap()];
        let (first, second) = (space.place(a, 1), space.place(b, 99));
        assert_eq!(space.locate(second), (b, 99));
        space.moved((0, 0), (first, 1));
        space.moved((first, 1), (second, 1));
        assert_eq!((space.zone(a).record.live, space.zone(b).record.live, space.mapped()), (0, GRAINS, 1));
        space.moved((second, 1), (0, 0));
        // Three pieces where there is room for one block, and each counts.
        let pieces = [0, 20, 40].map(|from| space.piece(a, 99, from, (Unit::BLOCK, 20)));
        pieces.iter().for_each(|piece| space.moved((0, 0), (*piece, 1)));
        assert_eq!((space.zone(a).record.live, space.mapped(), space.held()), (3 * 21, 3, 3 * 21));
        assert!(pieces.iter().all(|piece| space.locate(*piece) == (a, 99) && space.may_be_live(*piece)));
        assert!(!space.may_be_live(space.piece(a, 99, 60, (Unit::BLOCK, 20))), "it would leave the zone");
        pieces.iter().for_each(|piece| space.moved((*piece, 1), (0, 0)));
        assert_eq!((space.zone(b).record.live, space.mapped()), (0, 0));
        assert!(space.zone(a).record.segment < space.zone(b).record.segment);
    }
}
