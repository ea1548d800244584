//! The state of an emulated SSD, and the parts of it that commands, faults and power cuts have in common.
//!
//! Invariant: media hold the state in which a zone comes back when power returns, so open zones are stored as closed,
//! or as empty if they are unwritten and have no ZRWA.

use super::{
    ailments::AilmentFile,
    cache::Cache,
    fault::FaultPlan,
    media::{Media, after_power_on},
};
use engine::{
    device::{DeviceError, Geometry, Status},
    table::ZoneTable,
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

/// The state of an emulated SSD.
pub(super) struct SsdState {
    pub(super) geometry: Geometry,
    pub(super) table: ZoneTable,
    pub(super) media: Box<dyn Media>,
    pub(super) cache: Cache,
    pub(super) faults: FaultPlan,
    /// The file with injected faults, if it is a drive in an image.
    pub(super) ailing: Option<AilmentFile>,
    /// Blocks of zones that lost their ZRWA in an orderly shutdown and are still readable, by zone.
    pub(super) residue: BTreeMap<u32, BTreeSet<u64>>,
    /// Reads of unwritten blocks fail, instead of giving zeros.
    pub(super) unwritten_fails: bool,
    /// Finishing a zone discards the data above its write pointer in the ZRWA.
    pub(super) finish_drops: bool,
    /// A power cut may leave some sectors of a block old and some new.
    pub(super) sectors_tear: bool,
    /// Number of power cuts and shutdowns so far.
    pub(super) power_epoch: u64,
    /// The drive does not report this number.
    pub(super) hides_power: bool,
}

/// The result of a part of a command.
pub(super) type Outcome = Result<(), DeviceError>;

impl SsdState {
    /// Powers on a drive of this geometry, with the state of its media.
    pub(super) fn new(geometry: Geometry, media: Box<dyn Media>) -> SsdState {
        let mut table = ZoneTable::new(&geometry);
        for zone in 0..geometry.zones {
            table.load(&media.zone(ZoneIndex(zone)));
        }
        let (cache, faults) = (Cache::default(), FaultPlan::default());
        SsdState {
            geometry,
            table,
            media,
            cache,
            faults,
            ailing: None,
            residue: BTreeMap::new(),
            unwritten_fails: false,
            finish_drops: false,
            sectors_tear: false,
            power_epoch: 0,
            hides_power: false,
        }
    }

    /// A copy of the drive with the same contents, including its cache and ZRWAs, and the same faults.
    ///
    /// # Errors
    /// Its media cannot be copied.
    pub(super) fn copy(&self) -> io::Result<SsdState> {
        Ok(SsdState {
            geometry: self.geometry.clone(),
            table: self.table.clone(),
            media: self.media.copy()?,
            cache: self.cache.clone(),
            faults: self.faults.clone(),
            ailing: None,
            residue: self.residue.clone(),
            ..*self
        })
    }

    pub(super) fn info(&self, zone: ZoneIndex) -> Result<ZoneInfo, Status> {
        if zone.0 < self.geometry.zones { Ok(self.table.info(zone)) } else { Err(Status::LbaOutOfRange) }
    }

    /// Whether the drive has this block.
    pub(super) fn has_block(&self, lba: Lba) -> bool {
        let (zone, offset) = self.geometry.locate(lba);
        zone.0 < self.geometry.zones && offset < self.geometry.zone_capacity_blocks
    }

    /// Stores a zone in the state in which it comes back when power returns.
    pub(super) fn store(&mut self, zone: ZoneIndex) -> io::Result<()> {
        self.media.set_zone(&after_power_on(self.table.info(zone)))
    }

    /// Forgets the blocks above the write pointer of a zone with a ZRWA.
    pub(super) fn drop_zrwa(&mut self, zone: &ZoneInfo) -> io::Result<()> {
        let size = self.geometry.zrwa.map_or(0, |zrwa| zrwa.size_blocks);
        let end = (zone.wp_blocks + size).min(zone.capacity_blocks);
        let start = self.geometry.start(zone.zone).0;
        self.cache.forget_from(zone.zone, zone.wp_blocks);
        (zone.wp_blocks..end).try_for_each(|offset| self.media.forget(Lba(start + offset)))
    }

    /// Ends faults of blocks that have been written or reset.
    pub(super) fn heal(&mut self, lba: Lba, blocks: u64) -> Outcome {
        let ended = self.faults.heal(lba, blocks);
        match &self.ailing {
            Some(file) if ended => file.note_well(lba, blocks).map_err(os_error),
            _ => Ok(()),
        }
    }
}

/// The error of a command whose media have failed.
pub(super) fn os_error(error: io::Error) -> DeviceError {
    const EIO: i32 = 5;
    DeviceError::Os(error.raw_os_error().unwrap_or(EIO))
}
