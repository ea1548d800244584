//! The part of a member's log that is not state of the whole array: partial parity, relocated blocks, tails.

use crate::{
    buf::{Buf, BufPool},
    format::record::{LastChecksums, ParityRecord, RELOCATED, Record, TailRecord},
    raid::geometry::Layout,
};
use std::collections::BTreeMap;

/// Blocks of partial parity, or relocated blocks, that lie in the log; by zone, stripe and chunk.
#[derive(Clone, Default)]
pub struct LoggedParity(BTreeMap<(u32, u64, u64), LiveSlot>);

#[derive(Clone)]
struct LiveSlot {
    epoch: u64,
    /// One entry per block of the chunk; empty where nothing was logged.
    blocks: Vec<Buf>,
}

impl LiveSlot {
    /// Offsets in the chunk of the blocks that were logged.
    fn logged(&self) -> impl Iterator<Item = u64> {
        (0..).zip(&self.blocks).filter(|(_, block)| !block.is_empty()).map(|(block, _)| block)
    }
}

impl LoggedParity {
    /// Adds a record, which replaces earlier records of the same blocks. The record's data is shared, not copied.
    pub fn add(&mut self, record: &ParityRecord, chunk_blocks: u64) {
        let slot = self
            .0
            .entry((record.zone, record.stripe, record.index as u64))
            .or_insert_with(|| LiveSlot { epoch: record.epoch, blocks: Vec::new() });
        if slot.epoch != record.epoch {
            *slot = LiveSlot { epoch: record.epoch, blocks: Vec::new() };
        }
        slot.blocks.resize(chunk_blocks as usize, Buf::default());
        for block in 0..record.data.blocks() {
            if let Some(place) = slot.blocks.get_mut(record.from as usize + block as usize) {
                *place = record.data.slice_blocks(block..block + 1);
            }
        }
    }

    /// The block at offset `block` of chunk `index`, if it was logged in `epoch`.
    pub fn get(&self, zone: u32, epoch: u64, stripe: u64, index: u64, block: u64) -> Option<&Buf> {
        let slot = self.0.get(&(zone, stripe, index)).filter(|slot| slot.epoch == epoch)?;
        slot.blocks.get(block as usize).filter(|buf| !buf.is_empty())
    }

    /// Drops the versions of a stripe's parity that `version` replaces (in a zone it would overwrite them).
    fn forget_versions_before(&mut self, version: &ParityRecord) {
        let earlier = (version.zone, version.stripe, 0)..(version.zone, version.stripe, version.index as u64);
        for (_, slot) in self.0.range_mut(earlier) {
            let blocks = slot.blocks.iter_mut().skip(version.from as usize);
            blocks.take(version.data.blocks() as usize).for_each(|block| *block = Buf::default());
        }
    }

    /// Drops parity that covers blocks beyond a tail of a zone.
    fn forget_beyond(&mut self, tail: &TailRecord, layout: &Layout) {
        for ((_, stripe, index), slot) in self.0.range_mut((tail.zone, 0, 0)..(tail.zone + 1, 0, 0)) {
            let covered = stripe * layout.stripe_blocks() + index * layout.chunk_blocks;
            let kept = tail.tail_blocks.saturating_sub(covered) as usize;
            slot.blocks.iter_mut().skip(kept).for_each(|block| *block = Buf::default());
        }
    }

    /// All blocks that were logged of `zone` in `epoch`: stripe, chunk, block.
    pub fn of_zone(&self, zone: u32, epoch: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let slots = self.0.range((zone, 0, 0)..(zone + 1, 0, 0)).filter(move |(_, slot)| slot.epoch == epoch);
        slots.flat_map(|((_, stripe, index), slot)| slot.logged().map(|block| (*stripe, *index, block)))
    }

    /// All blocks that were logged: zone, stripe, block.
    pub fn blocks(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        self.0.iter().flat_map(|((zone, stripe, _), slot)| slot.logged().map(|block| (*zone, *stripe, block)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether anything was logged of `zone`.
    pub fn has(&self, zone: u32) -> bool {
        self.0.range((zone, 0, 0)..(zone + 1, 0, 0)).next().is_some()
    }

    /// Drops the stripes of `zone` below `stripe`; their buffers go to `pool`.
    pub fn forget(&mut self, zone: u32, stripe: u64, pool: &mut BufPool) {
        while let Some((key, _)) = self.0.range((zone, 0, 0)..(zone, stripe, 0)).next() {
            let key = *key;
            for buf in self.0.remove(&key).into_iter().flat_map(|slot| slot.blocks) {
                pool.give(buf);
            }
        }
    }

    /// Keeps only the blocks for which `keep` (zone, epoch, stripe, chunk, block) returns true.
    pub fn retain(&mut self, keep: impl Fn(u32, u64, u64, u64, u64) -> bool) {
        self.0.retain(|(zone, stripe, index), slot| {
            for (block, buf) in slot.blocks.iter_mut().enumerate() {
                if !keep(*zone, slot.epoch, *stripe, *index, block as u64) {
                    *buf = Buf::default();
                }
            }
            slot.blocks.iter().any(|buf| !buf.is_empty())
        });
    }

    /// All blocks, in as few records as possible.
    pub fn records(&self) -> Vec<ParityRecord> {
        let mut records = Vec::new();
        for ((zone, stripe, index), slot) in &self.0 {
            let mut run: Option<(usize, Vec<u8>)> = None;
            let mut end = |run: &mut Option<(usize, Vec<u8>)>| {
                if let Some((from, bytes)) = run.take() {
                    let data = Buf::copy_of(&bytes);
                    let (zone, stripe, index) = (*zone, *stripe, *index as u32);
                    records.push(ParityRecord {
                        zone,
                        epoch: slot.epoch,
                        stripe,
                        index,
                        from: from as u32,
                        data,
                    });
                }
            };
            for (block, buf) in slot.blocks.iter().enumerate() {
                match (&mut run, buf.is_empty()) {
                    (_, true) => end(&mut run),
                    (Some((_, bytes)), false) => bytes.extend_from_slice(buf),
                    (None, false) => run = Some((block, buf.to_vec())),
                }
            }
            end(&mut run);
        }
        records
    }
}

/// Records of a member's log that are still needed, and its gaps.
#[derive(Clone, Default)]
pub struct LiveRecords {
    /// Partial parity.
    pub parity: LoggedParity,
    /// Blocks that replace burned or unreadable ones; their chunk is [`RELOCATED`].
    pub relocated: LoggedParity,
    pub tails: BTreeMap<u32, TailRecord>,
    /// Notes of tails, by zone; not in checkpoints.
    pub notes: BTreeMap<u32, (TailRecord, Buf)>,
    /// Checksums of the ends of zones when the array was closed; not in checkpoints.
    pub checksums: BTreeMap<(u32, u64), LastChecksums>,
    /// A part of the log was unreadable or damaged when it was read: records may be missing.
    pub lacks_records: bool,
    /// Zones, with their epochs, that were in doubt when the log's checkpoint was written, if records were missing in
    /// an earlier log of the member.
    pub incomplete: BTreeMap<u32, u64>,
}

impl LiveRecords {
    /// Applies the next record of the log.
    pub fn apply(&mut self, record: &Record, layout: &Layout) {
        let chunk_blocks = layout.chunk_blocks;
        let is_tail = |tail: &TailRecord| tail.generation == 0 || layout.policy.has_generations();
        match record {
            Record::Parity(parity) => {
                if layout.policy.replaces_versions() && parity.index != RELOCATED {
                    self.parity.forget_versions_before(parity);
                }
                self.add(parity, chunk_blocks);
            }
            Record::Tail(tail) if is_tail(tail) => {
                // A promise only raises the tail of its generation: parity of writes in flight beyond it stays.
                let is_raised = self.tails.get(&tail.zone).is_some_and(|known| {
                    (known.epoch, known.generation) == (tail.epoch, tail.generation)
                        && known.tail_blocks < tail.tail_blocks
                });
                if tail.generation > 0 && !is_raised {
                    self.parity.forget_beyond(tail, layout);
                }
                self.add_tail(*tail);
            }
            Record::Note(tail, note) => {
                self.add_tail(*tail);
                self.notes.insert(tail.zone, (*tail, note.clone()));
            }
            Record::Checkpoint(checkpoint) => {
                let epoch = |zone: u32| checkpoint.zones.get(zone as usize).map_or(0, |zone| zone.epoch);
                let incomplete = checkpoint.incomplete.iter().map(|zone| (*zone, epoch(*zone))).collect();
                *self = LiveRecords { incomplete, ..LiveRecords::default() };
                checkpoint.parity.iter().for_each(|parity| self.add(parity, chunk_blocks));
                checkpoint.tails.iter().filter(|tail| is_tail(tail)).for_each(|tail| self.add_tail(*tail));
            }
            Record::Checksums(checksums) => {
                self.checksums.insert((checksums.zone, checksums.from), checksums.clone());
            }
            _ => {}
        }
    }

    /// Keeps only the contents of zones for which `keep` (zone, epoch) returns true.
    pub fn retain_zones(&mut self, keep: impl Fn(u32, u64) -> bool) {
        self.parity.retain(|zone, epoch, _, _, _| keep(zone, epoch));
        self.relocated.retain(|zone, epoch, _, _, _| keep(zone, epoch));
        self.tails.retain(|zone, tail| keep(*zone, tail.epoch));
        self.notes.retain(|zone, (tail, _)| keep(*zone, tail.epoch));
    }

    fn add(&mut self, record: &ParityRecord, chunk_blocks: u64) {
        match record.index {
            RELOCATED => self.relocated.add(record, chunk_blocks),
            _ => self.parity.add(record, chunk_blocks),
        }
    }

    fn add_tail(&mut self, tail: TailRecord) {
        let known = self.tails.entry(tail.zone).or_insert(tail);
        if (known.epoch, known.generation, known.tail_blocks)
            < (tail.epoch, tail.generation, tail.tail_blocks)
        {
            *known = tail;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        buf::BLOCK,
        format::{superblock::Superblock, tests::sane},
        raid::policy::{Policy, zrwa::SlotPart},
    };

    pub fn superblock(policy: Policy) -> Superblock {
        Superblock { policy, chunk_blocks: 4, aggregate: 1, ..sane(4) }
    }

    /// Parity of blocks of a slot of a stripe of zone 0.
    pub fn parity(epoch: u64, stripe: u64, SlotPart { index, from, to }: SlotPart) -> ParityRecord {
        let data = Buf::zeroed((to - from) as usize * BLOCK);
        ParityRecord { zone: 0, epoch, stripe, index: index as u32, from: from as u32, data }
    }

    pub fn tail(epoch: u64, generation: u32, tail_blocks: u64) -> TailRecord {
        TailRecord { zone: 0, generation, epoch, tail_blocks }
    }

    #[test]
    fn logged_parity_belongs_to_one_zone_epoch() {
        let mut logged = LoggedParity::default();
        logged.add(&parity(3, 1, SlotPart { index: 0, from: 1, to: 3 }), 4);
        let known =
            |epoch| (0..4).map(|block| logged.get(0, epoch, 1, 0, block).is_some()).collect::<Vec<_>>();
        assert_eq!(known(3), [false, true, true, false]);
        assert_eq!((known(2), known(4)), (vec![false; 4], vec![false; 4]));
    }

    #[test]
    fn live_tail_prefers_newest_epoch_generation_then_largest() {
        let layout = superblock(Policy::InPlace).layout();
        let mut live = LiveRecords::default();
        let records = [
            (tail(3, 1, 9), 9),
            (tail(3, 1, 5), 9),
            (tail(3, 2, 4), 4),
            (tail(3, 1, 9), 4),
            (tail(4, 1, 2), 2),
        ];
        for (tail, counts) in records {
            live.apply(&Record::Tail(tail), &layout);
            assert_eq!(live.tails[&0].tail_blocks, counts, "{tail:?}");
        }
    }

    #[test]
    fn start_of_generation_is_no_tail_with_zrwa() {
        let layout = superblock(Policy::Zrwa).layout();
        let mut live = LiveRecords::default();
        live.apply(&Record::Tail(tail(3, 8, 5)), &layout);
        assert!(live.tails.is_empty());
        live.apply(&Record::Tail(tail(3, 0, 6)), &layout);
        live.apply(&Record::Tail(tail(3, 9, 6)), &layout);
        assert_eq!(live.tails[&0], tail(3, 0, 6));
    }

    /// Logged parity becomes void where parity in a zone would be overwritten.
    #[test]
    fn logged_parity_yields_to_newer_version_or_generation() {
        for policy in [Policy::Zrwa, Policy::InPlace] {
            let layout = superblock(policy).layout();
            let mut live = LiveRecords::default();
            let logged = |live: &LiveRecords| {
                live.parity.of_zone(0, 3).map(|(_, index, at)| (index, at)).collect::<Vec<_>>()
            };
            let record = |index, from, to| Record::Parity(parity(3, 0, SlotPart { index, from, to }));
            live.apply(&record(0, 0, 4), &layout);
            live.apply(&record(1, 0, 3), &layout);
            let before: &[(u64, u64)] = if policy == Policy::Zrwa { &[(0, 0), (0, 1), (0, 2)] } else { &[] };
            let kept = [before, &[(0, 3), (1, 0), (1, 1), (1, 2)]].concat();
            assert_eq!(logged(&live), kept, "{policy:?}");
            live.apply(&Record::Tail(tail(3, 0, 5)), &layout);
            assert_eq!(logged(&live), kept, "{policy:?}");
            if policy == Policy::Zrwa {
                continue;
            }
            live.apply(&Record::Tail(tail(3, 1, 5)), &layout);
            assert_eq!(logged(&live), [(0, 3), (1, 0)]);
            // A promise raises the tail while parity beyond it is logged; the same record again is that of a rebuild.
            live.apply(&record(1, 0, 4), &layout);
            let kept = logged(&live);
            live.apply(&Record::Tail(tail(3, 1, 6)), &layout);
            assert_eq!(logged(&live), kept);
            live.apply(&Record::Tail(tail(3, 1, 6)), &layout);
            assert_ne!(logged(&live), kept);
        }
    }
}
