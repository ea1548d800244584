//! What a drive with a volatile cache has not made durable yet.
//!
//! Media always hold the newest content, as if the cache had been written back; for every zone
//! that was written since the last flush a record here knows how to take it back. A record is
//! bounded by the blocks written since then, however often each of them was written.
//!
//! Invariant: whatever [`Cache::lose`] leaves behind is something a drive could have ended up
//! with. In a sequential zone a prefix survives. In a zone with a ZRWA any subset of blocks
//! survives, and the write pointer is where one of the commands since left it (a flush moves it at
//! once or not at all), with every block below it in its newest version and none beyond the ZRWA.

use super::{Media, after_power_on};
use crate::rng::Rng;
use engine::{
    buf::BLOCK,
    device::{Geometry, Zrwa},
    zone::{Lba, WriteEffect, ZoneIndex, ZoneInfo, ZoneState, ZoneTable},
};
use std::{collections::BTreeMap, io};

/// The unflushed writes of a drive.
#[derive(Clone, Default)]
pub(super) struct Cache(BTreeMap<u32, Unflushed>);

/// The unflushed writes of a zone. All positions are blocks from its start.
#[derive(Clone)]
struct Unflushed {
    /// The write pointer that is durable.
    durable_wp: u64,
    /// Where commands left the write pointer since, in rising order.
    stops: Vec<u64>,
    /// Whether the zone had a ZRWA when it was written.
    zrwa: bool,
    /// The write pointer when the zone was finished since, which is durable at once.
    finished_at: Option<u64>,
    /// In a zone with a ZRWA, the blocks written since and what they held before: nothing, or
    /// data and metadata. A sequential zone needs none; its blocks start at the durable
    /// write pointer and had nothing in them.
    blocks: BTreeMap<u64, Option<Vec<u8>>>,
}

impl Cache {
    /// Remembers how to take back a write of `blocks` blocks, or an explicit ZRWA flush (which
    /// writes none). Called before the media change.
    pub fn before(
        &mut self,
        media: &mut dyn Media,
        geometry: &Geometry,
        zone: &ZoneInfo,
        effect: &WriteEffect,
        blocks: u64,
    ) -> io::Result<()> {
        let record = self.0.entry(zone.zone.0).or_insert_with(|| Unflushed {
            durable_wp: zone.wp_blocks,
            stops: Vec::new(),
            zrwa: zone.zrwa,
            finished_at: None,
            blocks: BTreeMap::new(),
        });
        if record.zrwa {
            if effect.wp_blocks > effect.wp_before_blocks {
                record.stops.push(effect.wp_blocks);
            }
            for offset in effect.offset_blocks..effect.offset_blocks + blocks {
                if let std::collections::btree_map::Entry::Vacant(entry) = record.blocks.entry(offset) {
                    let lba = Lba(geometry.start(zone.zone).0 + offset);
                    entry.insert(read_block(media, geometry, lba)?);
                }
            }
        }
        Ok(())
    }

    /// A write of `blocks` blocks with FUA has completed: it is durable, and so is whatever it
    /// cannot be there without.
    pub fn write_through(&mut self, effect: &WriteEffect, blocks: u64, zrwa: Option<Zrwa>) {
        let Some(record) = self.0.get_mut(&effect.zone.0) else { return };
        let end = effect.offset_blocks + blocks;
        if let Some(zrwa) = zrwa.filter(|_| record.zrwa) {
            let needed = end.saturating_sub(zrwa.size_blocks).next_multiple_of(zrwa.granularity_blocks);
            let moved = effect.wp_blocks != effect.wp_before_blocks;
            let moved_to = if moved { effect.wp_blocks } else { 0 };
            record.durable_wp = record.durable_wp.max(needed).max(moved_to);
            let written = effect.offset_blocks..end;
            record.blocks.retain(|offset, _| *offset >= record.durable_wp && !written.contains(offset));
        } else {
            record.durable_wp = effect.wp_blocks;
        }
        if record.durable_wp == effect.wp_blocks && record.blocks.is_empty() {
            self.0.remove(&effect.zone.0);
        }
    }

    /// Everything is durable now.
    pub fn flush(&mut self) {
        self.0.clear();
    }

    /// Whatever was in the zone is gone or cannot be taken back any more.
    pub fn forget(&mut self, zone: ZoneIndex) {
        self.0.remove(&zone.0);
    }

    /// A zone is being finished, whose write pointer was at `wp`: it stays full, but its data is
    /// no more durable than before.
    pub fn finish(&mut self, zone: ZoneIndex, wp: u64) {
        if let Some(record) = self.0.get_mut(&zone.0) {
            record.finished_at.get_or_insert(wp);
        }
    }

    /// Loses the cache: takes back any part of what is not durable.
    pub fn lose(
        &mut self,
        media: &mut dyn Media,
        geometry: &Geometry,
        table: &mut ZoneTable,
        rng: &mut Rng,
    ) -> io::Result<()> {
        let mut records: Vec<_> = std::mem::take(&mut self.0).into_iter().collect();
        // Zones that have become full come last, when it is known how many zones are active.
        records.sort_by_key(|(zone, _)| !table.info(ZoneIndex(*zone)).state.is_active());
        for (zone, record) in records {
            let info = table.info(ZoneIndex(zone));
            let worn = matches!(info.state, ZoneState::ReadOnly | ZoneState::Offline);
            let reopened = info.state == ZoneState::Full && record.finished_at.is_none();
            if worn || reopened && !has_room(geometry, table, record.zrwa) {
                continue;
            }
            let newest_wp = record.finished_at.unwrap_or(info.wp_blocks);
            let wp = match geometry.zrwa.filter(|_| record.zrwa) {
                Some(zrwa) => record.lose_zrwa(media, geometry, info.zone, zrwa, rng)?,
                None => record.lose_sequential(media, geometry, info.zone, newest_wp, rng)?,
            };
            if record.finished_at.is_none() && wp != info.wp_blocks {
                let closed = ZoneInfo { state: ZoneState::Closed, wp_blocks: wp, zrwa: record.zrwa, ..info };
                table.load(&after_power_on(closed));
                media.set_zone(&table.info(info.zone))?;
            }
        }
        Ok(())
    }
}

impl Unflushed {
    /// Gives the write pointer up to which the data survives.
    fn lose_sequential(
        &self,
        media: &mut dyn Media,
        geometry: &Geometry,
        zone: ZoneIndex,
        newest_wp: u64,
        rng: &mut Rng,
    ) -> io::Result<u64> {
        let wp = pick_between(rng, self.durable_wp, newest_wp);
        let start = geometry.start(zone).0;
        (wp..newest_wp).try_for_each(|offset| media.forget(Lba(start + offset)))?;
        Ok(wp)
    }

    /// Gives the write pointer that survives.
    fn lose_zrwa(
        &self,
        media: &mut dyn Media,
        geometry: &Geometry,
        zone: ZoneIndex,
        zrwa: Zrwa,
        rng: &mut Rng,
    ) -> io::Result<u64> {
        let stops: Vec<_> = self.stops.iter().filter(|stop| **stop > self.durable_wp).collect();
        let kept = pick_between(rng, 0, stops.len() as u64) as usize;
        let wp = kept.checked_sub(1).map_or(self.durable_wp, |last| *stops[last]);
        let finished = self.finished_at.is_some();
        let of_four = rng.below(5);
        for (&offset, before) in &self.blocks {
            let below = offset < wp && !finished;
            let reachable = finished || offset < wp + zrwa.size_blocks;
            if below || reachable && rng.chance(of_four, 4) {
                continue;
            }
            let lba = Lba(geometry.start(zone).0 + offset);
            match before {
                Some(bytes) => media.write(lba, &bytes[..BLOCK], &bytes[BLOCK..])?,
                None => media.forget(lba)?,
            }
        }
        Ok(wp)
    }
}

/// Often one of the ends, for they are where mistakes are.
fn pick_between(rng: &mut Rng, low: u64, high: u64) -> u64 {
    match rng.below(4) {
        0 => low,
        1 => high,
        _ => rng.range(low..high + 1),
    }
}

/// Whether one more zone can be active, and have a ZRWA if need be.
fn has_room(geometry: &Geometry, table: &ZoneTable, zrwa: bool) -> bool {
    let most_zrwa = geometry.zrwa.map_or(0, |zrwa| zrwa.max_zones);
    (geometry.max_active == 0 || table.active_zones() < geometry.max_active)
        && (!zrwa || table.zrwa_zones() < most_zrwa)
}

/// Data and metadata of a block, one behind the other; `None` if it is unwritten.
pub(super) fn read_block(
    media: &mut dyn Media,
    geometry: &Geometry,
    lba: Lba,
) -> io::Result<Option<Vec<u8>>> {
    if !media.is_written(lba)? {
        return Ok(None);
    }
    let mut bytes = vec![0; BLOCK + geometry.oob_bytes as usize];
    let (data, oob) = bytes.split_at_mut(BLOCK);
    media.read(lba, data, oob)?;
    Ok(Some(bytes))
}
