//! Writing holes down ([`crate::raid::holes`]), as far as there is room for them.

use crate::{
    buf::BLOCK,
    format::record::{HOLE_BYTES, Holes, Record},
    raid::{
        error::NoPart,
        journal::log::{checkpoint_blocks, log_blocks},
        parts::Raid,
        patrol::rebuild::Stopped,
    },
    zone::ZoneIndex,
};
use std::ops::Range;

/// Most holes of an array.
const MOST_HOLES: u64 = 4096;

impl Raid {
    /// Writes down the holes of a member's part of a zone, which does not count yet.
    pub async fn keep_holes(
        &self,
        zone: ZoneIndex,
        member: usize,
        ranges: &[Range<u64>],
    ) -> Result<(), Stopped> {
        let epoch = self.catalog.epoch(zone);
        let holes = Holes { zone: zone.0, member: member as u32, epoch, ranges: ranges.to_vec() };
        let before = self.catalog.holes().among(zone, member, 0..u64::MAX).len() as u64;
        if before == 0 && ranges.is_empty() {
            return Ok(());
        }
        if self.catalog.holes().count() - before + ranges.len() as u64 > self.most_holes() {
            return Err(NoPart::TooManyHoles.into());
        }
        self.catalog.change_holes(|all| all.set(holes.clone()));
        let sequence = self.membership.next_sequence();
        self.broadcast(Record::Holes(holes), sequence).await;
        Ok(())
    }

    /// Forgets the holes of zones that have been reset, and what could not be read there.
    pub fn forget_holes(&self, zones: Range<u32>) {
        self.catalog.unreadable.remove_zones(&zones);
        self.catalog.change_holes(|all| all.retain(|zone, _| !zones.contains(&zone)));
    }

    /// Blocks of a metadata log that holes take in a checkpoint.
    pub fn hole_blocks(&self) -> u64 {
        (self.catalog.holes().count() * HOLE_BYTES as u64).div_ceil(BLOCK as u64)
    }

    /// How many holes there may be: they take a quarter at most of what checkpoints leave of a log.
    fn most_holes(&self) -> u64 {
        let superblock = self.membership.superblock();
        let devices = (0..self.members.count()).filter_map(|member| self.members.device(member));
        let logs = devices.map(|device| log_blocks(device.geometry(), superblock.policy));
        let room = logs.min().unwrap_or(0).saturating_sub(checkpoint_blocks(&superblock));
        MOST_HOLES.min(room / 4 * (BLOCK as u64 / HOLE_BYTES as u64))
    }
}
