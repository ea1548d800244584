//! Volatile write cache of a drive: undo records of the writes that are not durable yet.
//!
//! Media always hold the newest contents, as if the cache had been written back; for every zone that was written since
//! the last flush a record here can undo the writes. Its size is bounded by the blocks written since then, however
//! often each of them was written.
//!
//! Invariant: [`Cache::lose`] leaves only states that a drive could have ended up with. In a sequential zone a prefix
//! survives. In a zone with a ZRWA any subset of blocks survives, and the write pointer is where one of the commands
//! since left it (a flush moves it at once or not at all), with every block below it in its newest version and none
//! beyond the ZRWA.
//!
//! A write with FUA moves the durable write pointer. By default all data below it is durable then. If
//! [`Cache::fua_stands_alone`] is set, only the blocks of that write are: others that are lost leave holes below the
//! write pointer.

use super::media::{Media, after_power_on};
use crate::rng::Rng;
use engine::{
    buf::BLOCK,
    device::{Geometry, Zrwa},
    table::{WriteEffect, ZoneTable},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

/// The portion of the unflushed data that is lost.
pub(super) enum Loss<'r> {
    /// A random portion.
    Drawn(&'r mut Rng),
    All,
    /// One of the [`Cache::ways`].
    Way(usize),
}

impl Loss<'_> {
    /// Half of the time one of the ends, where mistakes are most likely.
    fn pick_between(&mut self, low: u64, high: u64) -> u64 {
        let Loss::Drawn(rng) = self else { return low };
        match rng.below(4) {
            0 => low,
            1 => high,
            _ => rng.range(low..high + 1),
        }
    }

    /// Of four blocks, how many are kept on average if any may be.
    fn of_four(&mut self) -> u64 {
        if let Loss::Drawn(rng) = self { rng.below(5) } else { 0 }
    }

    fn keeps(&mut self, of_four: u64) -> bool {
        if let Loss::Drawn(rng) = self { rng.chance(of_four, 4) } else { false }
    }
}

/// The unflushed writes of a drive.
#[derive(Clone, Default)]
pub(super) struct Cache {
    zones: BTreeMap<u32, UnflushedZone>,
    /// A write with FUA makes only its own blocks durable.
    pub fua_stands_alone: bool,
}

/// The unflushed writes of a zone. All positions are blocks from its start.
#[derive(Clone)]
struct UnflushedZone {
    /// The durable write pointer.
    durable_wp: u64,
    /// The write pointer that writes with FUA require, if they make only their own blocks durable.
    forced_wp: u64,
    /// The blocks of these writes, in a sequential zone.
    alone: BTreeSet<u64>,
    /// Positions at which commands since then left the write pointer, ascending.
    stops: Vec<u64>,
    /// Whether the zone had a ZRWA when it was written.
    zrwa: bool,
    /// The write pointer at the time of a finish since then, which is durable at once.
    finished_at: Option<u64>,
    /// In a zone with a ZRWA, the blocks written since and their former contents: none, or data and metadata. A
    /// sequential zone needs none; its blocks start at the durable write pointer and were unwritten.
    blocks: BTreeMap<u64, Option<Vec<u8>>>,
}

impl Cache {
    /// Records how to undo a write of `blocks` blocks, or an explicit ZRWA flush (which writes none). Called before the
    /// media change.
    pub fn before(
        &mut self,
        media: &mut dyn Media,
        geometry: &Geometry,
        zone: &ZoneInfo,
        effect: &WriteEffect,
        blocks: u64,
    ) -> io::Result<()> {
        let record = self.zones.entry(zone.zone.0).or_insert_with(|| UnflushedZone {
            durable_wp: zone.wp_blocks,
            forced_wp: 0,
            alone: BTreeSet::new(),
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

    /// A write of `blocks` blocks with FUA has completed: it is durable, and so is all data that it depends on.
    pub fn write_through(&mut self, effect: &WriteEffect, blocks: u64, zrwa: Option<Zrwa>) {
        let Some(record) = self.zones.get_mut(&effect.zone.0) else { return };
        let end = effect.offset_blocks + blocks;
        let needed = zrwa
            .filter(|_| record.zrwa)
            .map(|zrwa| end.saturating_sub(zrwa.size_blocks).next_multiple_of(zrwa.granularity_blocks));
        if self.fua_stands_alone {
            record.forced_wp = record.forced_wp.max(needed.unwrap_or(effect.wp_blocks));
            (effect.offset_blocks..end).for_each(|offset| {
                record.blocks.remove(&offset);
                record.alone.insert(offset);
            });
            return;
        }
        if let Some(needed) = needed {
            let moved = effect.wp_blocks != effect.wp_before_blocks;
            let moved_to = if moved { effect.wp_blocks } else { 0 };
            record.durable_wp = record.durable_wp.max(needed).max(moved_to);
            let written = effect.offset_blocks..end;
            record.blocks.retain(|offset, _| *offset >= record.durable_wp && !written.contains(offset));
        } else {
            record.durable_wp = effect.wp_blocks;
        }
        if record.durable_wp == effect.wp_blocks && record.blocks.is_empty() {
            self.zones.remove(&effect.zone.0);
        }
    }

    /// Everything is durable now.
    pub fn flush(&mut self) {
        self.zones.clear();
    }

    /// The contents of the zone are gone, or can no longer be undone.
    pub fn forget(&mut self, zone: ZoneIndex) {
        self.zones.remove(&zone.0);
    }

    /// The contents of the zone from `wp` on are gone and cannot come back.
    pub fn forget_from(&mut self, zone: ZoneIndex, wp: u64) {
        if let Some(record) = self.zones.get_mut(&zone.0) {
            record.blocks.retain(|offset, _| *offset < wp);
        }
    }

    /// A zone is being finished, with its write pointer at `wp`: it stays full, but its data is no more durable than
    /// before.
    pub fn finish(&mut self, zone: ZoneIndex, wp: u64) {
        if let Some(record) = self.zones.get_mut(&zone.0) {
            record.finished_at.get_or_insert(wp);
        }
    }

    /// Zones with unflushed data, each with the number of ways to lose a part of it: in a sequential zone each prefix
    /// may be kept; in one with a ZRWA each prefix of its blocks, with the durable write pointer, or each position of
    /// the write pointer and no block above.
    pub fn ways(&self, table: &ZoneTable) -> Vec<(ZoneIndex, usize)> {
        let ways = |(zone, record): (&u32, &UnflushedZone)| {
            let zone = ZoneIndex(*zone);
            let newest_wp = record.finished_at.unwrap_or(table.info(zone).wp_blocks);
            let ways = match record.zrwa {
                true => record.prefixes() + record.stops().len(),
                false => (newest_wp.saturating_sub(record.durable_wp) as usize).saturating_sub(1),
            };
            (zone, ways)
        };
        self.zones.iter().map(ways).collect()
    }

    /// Loses the cache, or only that of zone `only`: undoes writes that are not durable.
    pub fn lose(
        &mut self,
        media: &mut dyn Media,
        geometry: &Geometry,
        table: &mut ZoneTable,
        only: Option<ZoneIndex>,
        mut loss: Loss<'_>,
    ) -> io::Result<()> {
        let lost = |zone: &u32| only.is_none_or(|only| only.0 == *zone);
        let all = std::mem::take(&mut self.zones).into_iter();
        let (mut records, kept): (Vec<_>, Vec<_>) = all.partition(|(zone, _)| lost(zone));
        self.zones = kept.into_iter().collect();
        // Zones that have become full come last, when the number of active zones is known.
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
                Some(zrwa) => record.lose_zrwa(media, geometry, info.zone, zrwa, &mut loss)?,
                None => record.lose_sequential(media, geometry, info.zone, newest_wp, &mut loss)?,
            };
            if record.finished_at.is_none() && wp != info.wp_blocks {
                let closed = ZoneInfo { state: ZoneState::Closed, wp_blocks: wp, zrwa: record.zrwa, ..info };
                table.load(&after_power_on(closed));
            }
            // Also if the write pointer has not moved: compressing media place the restored blocks again.
            media.set_zone(&after_power_on(table.info(info.zone)))?;
        }
        Ok(())
    }
}

impl UnflushedZone {
    /// Possible positions of the write pointer above the durable one.
    fn stops(&self) -> Vec<u64> {
        self.stops.iter().copied().filter(|stop| *stop > self.durable_wp).collect()
    }

    /// Number of prefixes of the blocks of a zone with a ZRWA that are neither empty nor complete.
    fn prefixes(&self) -> usize {
        self.blocks.len().saturating_sub(1)
    }

    /// Returns the write pointer up to which data survives.
    fn lose_sequential(
        &self,
        media: &mut dyn Media,
        geometry: &Geometry,
        zone: ZoneIndex,
        newest_wp: u64,
        loss: &mut Loss<'_>,
    ) -> io::Result<u64> {
        let whole = match loss {
            Loss::Way(way) => (self.durable_wp + 1 + *way as u64).min(newest_wp),
            _ => loss.pick_between(self.durable_wp, newest_wp),
        };
        let wp = whole.max(self.forced_wp);
        let start = geometry.start(zone).0;
        for offset in whole..newest_wp {
            let kept = offset < wp && (self.alone.contains(&offset) || loss.keeps(2));
            if !kept {
                media.forget(Lba(start + offset))?;
            }
        }
        if wp < newest_wp && newest_wp < geometry.zone_capacity_blocks {
            // A torn block at the write pointer cannot survive without those before it.
            media.forget(Lba(start + newest_wp))?;
        }
        Ok(wp)
    }

    /// Returns the write pointer that survives.
    fn lose_zrwa(
        &self,
        media: &mut dyn Media,
        geometry: &Geometry,
        zone: ZoneIndex,
        zrwa: Zrwa,
        loss: &mut Loss<'_>,
    ) -> io::Result<u64> {
        let stops = self.stops();
        let (kept, first) = match loss {
            Loss::Way(way) if *way < self.prefixes() => (0, *way + 1),
            Loss::Way(way) => ((*way - self.prefixes() + 1).min(stops.len()), 0),
            _ => (loss.pick_between(0, stops.len() as u64) as usize, 0),
        };
        let whole = kept.checked_sub(1).map_or(self.durable_wp, |last| stops[last]);
        let wp = whole.max(self.forced_wp);
        let finished = self.finished_at.is_some();
        let of_four = loss.of_four();
        for (at, (&offset, before)) in self.blocks.iter().enumerate() {
            let below = offset < whole && !finished;
            let reachable = finished || offset < wp + zrwa.size_blocks;
            if below || reachable && (at < first || loss.keeps(of_four)) {
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

/// Whether one more zone can be active, and have a ZRWA if it needs one.
fn has_room(geometry: &Geometry, table: &ZoneTable, zrwa: bool) -> bool {
    let most_zrwa = geometry.zrwa.map_or(0, |zrwa| zrwa.max_zones);
    (geometry.max_active == 0 || table.active_zones() < geometry.max_active)
        && (!zrwa || table.zrwa_zones() < most_zrwa)
}

/// Data followed by metadata of a block; `None` if it is unwritten.
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
