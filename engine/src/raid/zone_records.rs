//! Persistent state of every zone, as checkpoints record it.

use crate::{
    device::ZoneEpochs,
    format::record::{BurnedRange, TailRecord, ZoneRecord},
    raid::{
        bad_blocks::BadBlockMap, generations::Generations, geometry::META_ZONES, unreadable::UnreadableBlocks,
    },
    zone::ZoneIndex,
};
use std::{
    cell::{Ref, RefCell},
    ops::Range,
    rc::Rc,
};

/// The records of all zones, and their burned, bad and unreadable blocks.
#[derive(Default)]
pub struct ZoneRecords {
    records: Rc<RefCell<Vec<ZoneRecord>>>,
    /// Blocks of the members' zones that cannot be written again and hold no valid data.
    burned: RefCell<Vec<BurnedRange>>,
    /// Blocks that a rebuild could not decode.
    bad_blocks: RefCell<BadBlockMap>,
    /// Generations of the zones, in their present epochs; none if no records begin them.
    generations: RefCell<Generations>,
    /// Blocks that drives could not read.
    pub unreadable: UnreadableBlocks,
}

impl ZoneRecords {
    pub fn new(
        records: Vec<ZoneRecord>,
        burned: Vec<BurnedRange>,
        bad_blocks: BadBlockMap,
        generations: Generations,
    ) -> ZoneRecords {
        ZoneRecords {
            records: Rc::new(records.into()),
            burned: burned.into(),
            bad_blocks: bad_blocks.into(),
            generations: generations.into(),
            unreadable: UnreadableBlocks::default(),
        }
    }

    /// The records of all zones, in the order of the zones.
    pub fn records(&self) -> Ref<'_, Vec<ZoneRecord>> {
        self.records.borrow()
    }

    pub fn record(&self, zone: ZoneIndex) -> ZoneRecord {
        self.records.borrow()[zone.0 as usize]
    }

    /// The current epoch of a zone.
    pub fn epoch(&self, zone: ZoneIndex) -> u64 {
        self.record(zone).epoch
    }

    /// The current epoch of each zone, by the number of the zone on a member; 0 for zones that are none of the array.
    pub fn epochs(&self) -> ZoneEpochs {
        let records = self.records.clone();
        Rc::new(move |zone| {
            let zone = zone.0.checked_sub(META_ZONES);
            zone.and_then(|zone| records.borrow().get(zone as usize).map(|record| record.epoch)).unwrap_or(0)
        })
    }

    /// Members (bits) that lack their part of a zone; 0 if there is no such zone.
    pub fn lost(&self, zone: ZoneIndex) -> u32 {
        self.records.borrow().get(zone.0 as usize).map_or(0, |record| record.lost)
    }

    /// Replaces the record of a zone.
    ///
    /// # Panics
    /// If the zone would return to an earlier epoch.
    pub fn set(&self, zone: ZoneIndex, record: ZoneRecord) {
        self.change(zone, |old| *old = record);
    }

    /// Changes a record; returns the epoch of the zone.
    ///
    /// # Panics
    /// If the zone would return to an earlier epoch.
    pub fn change(&self, zone: ZoneIndex, change: impl FnOnce(&mut ZoneRecord)) -> u64 {
        let record = &mut self.records.borrow_mut()[zone.0 as usize];
        let before = record.epoch;
        change(record);
        assert!(record.epoch >= before, "zone {} would go from epoch {before} to {}", zone.0, record.epoch);
        if record.epoch > before {
            self.generations.borrow_mut().forget(zone.0);
        }
        record.epoch
    }

    /// As [`ZoneRecords::change`], of each of some zones.
    pub fn change_each(&self, zones: Range<u32>, mut change: impl FnMut(ZoneIndex, &mut ZoneRecord)) {
        for zone in zones.map(ZoneIndex) {
            self.change(zone, |record| change(zone, record));
        }
    }

    pub fn change_all(&self, mut change: impl FnMut(ZoneIndex, &mut ZoneRecord)) {
        (0..).zip(&mut *self.records.borrow_mut()).for_each(|(zone, record)| change(ZoneIndex(zone), record));
    }

    pub fn burned(&self) -> Ref<'_, Vec<BurnedRange>> {
        self.burned.borrow()
    }

    pub fn set_burned(&self, burned: Vec<BurnedRange>) {
        self.burned.replace(burned);
    }

    /// Adds burned blocks, merged with earlier ones of the same part that reach them.
    pub fn burn(&self, mut new: BurnedRange) {
        assert!(new.from <= new.to, "burned blocks {}..{} of zone {}", new.from, new.to, new.zone);
        let mut burned = self.burned.borrow_mut();
        burned.retain(|old| {
            let joins = (old.zone, old.member) == (new.zone, new.member) && old.to >= new.from;
            if joins {
                new.from = new.from.min(old.from);
            }
            !joins
        });
        burned.push(new);
    }

    /// Keeps only the burned blocks for which `keep` returns true.
    pub fn retain_burned(&self, keep: impl FnMut(&BurnedRange) -> bool) {
        self.burned.borrow_mut().retain(keep);
    }

    pub fn generations(&self) -> Ref<'_, Generations> {
        self.generations.borrow()
    }

    /// Adds the generation that a record begins, and drops the earliest beyond the limit.
    pub fn begin_generation(&self, record: &TailRecord) {
        let epoch = self.epoch(ZoneIndex(record.zone));
        assert!(record.epoch == epoch, "a generation of epoch {} of a zone of epoch {epoch}", record.epoch);
        let mut generations = self.generations.borrow_mut();
        generations.begin(record);
        generations.limit();
    }

    pub fn bad_blocks(&self) -> Ref<'_, BadBlockMap> {
        self.bad_blocks.borrow()
    }

    pub fn change_bad_blocks(&self, change: impl FnOnce(&mut BadBlockMap)) {
        change(&mut self.bad_blocks.borrow_mut());
    }

    /// Whether block `at` of a member's part of a zone is a burned block.
    pub fn is_burned(&self, zone: ZoneIndex, member: usize, at: u64) -> bool {
        let is_of = |b: &BurnedRange| (b.zone, b.member as usize) == (zone.0, member);
        self.burned.borrow().iter().any(|b| is_of(b) && (b.from..b.to).contains(&at))
    }

    /// Whether any of `blocks` of a member's part of a zone is a bad block.
    pub fn has_bad_block(&self, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> bool {
        !self.bad_blocks.borrow().among(zone, member, blocks).is_empty()
    }

    /// The blocks among `blocks` of a member's part of a zone that are bad blocks.
    pub fn bad_blocks_among(&self, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> Vec<u64> {
        let bad_blocks = self.bad_blocks.borrow();
        let clipped = bad_blocks.among(zone, member, blocks.clone()).iter();
        clipped
            .flat_map(|bad_block| bad_block.start.max(blocks.start)..bad_block.end.min(blocks.end))
            .collect()
    }

    /// Replaces the state of a zone by that in `other`, which may have an earlier epoch.
    pub fn take_over(&self, zone: ZoneIndex, other: &ZoneRecords) {
        self.records.borrow_mut()[zone.0 as usize] = other.record(zone);
        let theirs = other.burned();
        let mut burned = self.burned.borrow_mut();
        burned.retain(|burned| burned.zone != zone.0);
        burned.extend(theirs.iter().filter(|burned| burned.zone == zone.0).cloned());
        self.bad_blocks.borrow_mut().take_over(zone.0, &other.bad_blocks());
    }
}
