//! Persistent state of every zone, as checkpoints record it.

use crate::{
    format::record::{Burned, ZoneRecord},
    raid::{holes::HoleMap, unreadable::Unreadable},
    zone::ZoneIndex,
};
use std::{
    cell::{Ref, RefCell},
    ops::Range,
};

/// The records of all zones, and the blocks of zones that hold no valid data.
#[derive(Default)]
pub struct Catalog {
    records: RefCell<Vec<ZoneRecord>>,
    /// Blocks of the members' zones that cannot be written again and hold no valid data.
    burned: RefCell<Vec<Burned>>,
    /// Blocks that a rebuild could not bring back.
    holes: RefCell<HoleMap>,
    /// Blocks that drives could not read.
    pub unreadable: Unreadable,
}

impl Catalog {
    pub fn new(records: Vec<ZoneRecord>, burned: Vec<Burned>, holes: HoleMap) -> Catalog {
        Catalog {
            records: records.into(),
            burned: burned.into(),
            holes: holes.into(),
            unreadable: Unreadable::default(),
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

    /// Members (bits) that lack their part of a zone; 0 if there is no such zone.
    pub fn lost(&self, zone: ZoneIndex) -> u32 {
        self.records.borrow().get(zone.0 as usize).map_or(0, |record| record.lost)
    }

    /// Replaces the record of a zone.
    ///
    /// # Panics
    /// If the zone would return to an earlier epoch.
    pub fn set(&self, zone: ZoneIndex, record: ZoneRecord) {
        let old = &mut self.records.borrow_mut()[zone.0 as usize];
        assert!(
            record.epoch >= old.epoch,
            "zone {} would go from epoch {} to {}",
            zone.0,
            old.epoch,
            record.epoch
        );
        *old = record;
    }

    /// Changes a record; returns the epoch of the zone.
    pub fn change(&self, zone: ZoneIndex, change: impl FnOnce(&mut ZoneRecord)) -> u64 {
        let record = &mut self.records.borrow_mut()[zone.0 as usize];
        let before = record.epoch;
        change(record);
        assert!(record.epoch >= before, "zone {} would go from epoch {before} to {}", zone.0, record.epoch);
        record.epoch
    }

    pub fn change_each(&self, zones: Range<u32>, mut change: impl FnMut(ZoneIndex, &mut ZoneRecord)) {
        let records = &mut self.records.borrow_mut()[zones.start as usize..zones.end as usize];
        zones.zip(records).for_each(|(zone, record)| {
            let before = record.epoch;
            change(ZoneIndex(zone), record);
            assert!(record.epoch >= before, "zone {zone} would go from epoch {before} to {}", record.epoch);
        });
    }

    pub fn change_all(&self, mut change: impl FnMut(ZoneIndex, &mut ZoneRecord)) {
        (0..).zip(&mut *self.records.borrow_mut()).for_each(|(zone, record)| change(ZoneIndex(zone), record));
    }

    pub fn burned(&self) -> Ref<'_, Vec<Burned>> {
        self.burned.borrow()
    }

    pub fn set_burned(&self, burned: Vec<Burned>) {
        self.burned.replace(burned);
    }

    /// Adds burned blocks, merged with earlier ones of the same part that reach them.
    pub fn burn(&self, mut new: Burned) {
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
    pub fn retain_burned(&self, keep: impl FnMut(&Burned) -> bool) {
        self.burned.borrow_mut().retain(keep);
    }

    pub fn holes(&self) -> Ref<'_, HoleMap> {
        self.holes.borrow()
    }

    pub fn change_holes(&self, change: impl FnOnce(&mut HoleMap)) {
        change(&mut self.holes.borrow_mut());
    }

    /// Whether any of `blocks` of a member's part of a zone is a hole.
    pub fn has_hole(&self, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> bool {
        !self.holes.borrow().among(zone, member, blocks).is_empty()
    }

    /// The blocks among `blocks` of a member's part of a zone that are holes.
    pub fn holes_among(&self, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> Vec<u64> {
        let holes = self.holes.borrow();
        let clipped = holes.among(zone, member, blocks.clone()).iter();
        clipped.flat_map(|hole| hole.start.max(blocks.start)..hole.end.min(blocks.end)).collect()
    }

    /// Replaces the state of a zone by that in `other`, which may not know its last epoch.
    pub fn take_over(&self, zone: ZoneIndex, other: &Catalog) {
        self.records.borrow_mut()[zone.0 as usize] = other.record(zone);
        let theirs = other.burned();
        let mut burned = self.burned.borrow_mut();
        burned.retain(|burned| burned.zone != zone.0);
        burned.extend(theirs.iter().filter(|burned| burned.zone == zone.0).cloned());
        self.holes.borrow_mut().take_over(zone.0, &other.holes());
    }
}
