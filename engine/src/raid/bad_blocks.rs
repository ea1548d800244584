//! Bad blocks: blocks that a rebuild could not recover.
//!
//! A rebuild decodes a block from the blocks at the same offset in the parts of other members. If too many of these
//! cannot be read, they and the block are lost, and nothing else is: the rebuild writes zeros in place of the block,
//! records a bad block there and continues. For a read, a bad block is a block that its member lacks: it is decoded,
//! which works again once the other blocks can be read, or the read fails. A bad block is not taken for data, and
//! nothing is decoded with it. Bad blocks do not move the tail of a zone: their blocks, and those after them, had been
//! written.
//!
//! A member's bad blocks in a zone are logged on all members before its part counts again, and stay until they are
//! filled ([`crate::raid::maintain::fill`]), or until the zone is reset. Their number is bounded by the room for
//! them in checkpoints; a zone that would need more is not rebuilt.

use crate::{
    format::record::{BadBlocks, PartBadBlocks},
    raid::geometry::Layout,
    zone::ZoneIndex,
};
use std::{collections::BTreeMap, ops::Range};

/// The bad blocks of all members, by zone and member, in order.
#[derive(Clone, Default)]
pub struct BadBlockMap(BTreeMap<(u32, u32), PartBadBlocks>);

impl BadBlockMap {
    /// Replaces the bad blocks of a member's part of a zone.
    pub fn set(&mut self, bad_blocks: PartBadBlocks) {
        let key = (bad_blocks.zone, bad_blocks.member);
        match bad_blocks.ranges.is_empty() {
            true => self.0.remove(&key),
            false => self.0.insert(key, bad_blocks),
        };
    }

    /// Replaces the bad blocks of a zone by those in `other`.
    pub fn take_over(&mut self, zone: u32, other: &BadBlockMap) {
        self.0.retain(|(of, _), _| *of != zone);
        let theirs = other.0.range((zone, 0)..=(zone, u32::MAX));
        self.0.extend(theirs.map(|(key, bad_blocks)| (*key, bad_blocks.clone())));
    }

    /// Adds a bad block, which lies behind all present ones of its part.
    pub fn add(&mut self, bad_block: BadBlocks) {
        let BadBlocks { zone, member, epoch, from, to } = bad_block;
        let part =
            self.0.entry((zone, member)).or_insert(PartBadBlocks { zone, member, epoch, ranges: Vec::new() });
        part.ranges.push(from..to);
    }

    /// Keeps only the bad blocks of zones for which `keep` (zone, epoch) returns true.
    pub fn retain(&mut self, keep: impl Fn(u32, u64) -> bool) {
        self.0.retain(|(zone, _), bad_blocks| keep(*zone, bad_blocks.epoch));
    }

    /// The bad blocks of a member's part of a zone that overlap `blocks`.
    pub fn among(&self, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> &[Range<u64>] {
        let Some(bad_blocks) = self.0.get(&(zone.0, member as u32)) else { return &[] };
        let first = bad_blocks.ranges.partition_point(|bad_block| bad_block.end <= blocks.start);
        let end = bad_blocks.ranges.partition_point(|bad_block| bad_block.start < blocks.end);
        &bad_blocks.ranges[first..end.max(first)]
    }

    /// All bad blocks, as a checkpoint records them.
    pub fn all(&self) -> Vec<BadBlocks> {
        let of = |bad_blocks: &PartBadBlocks| {
            let PartBadBlocks { zone, member, epoch, .. } = *bad_blocks;
            let each = bad_blocks.ranges.clone().into_iter();
            each.map(move |Range { start: from, end: to }| BadBlocks { zone, member, epoch, from, to })
        };
        self.0.values().flat_map(of).collect()
    }

    /// Parts (zone, member) that have bad blocks.
    pub fn parts(&self) -> Vec<(ZoneIndex, usize)> {
        self.0.keys().map(|(zone, member)| (ZoneIndex(*zone), *member as usize)).collect()
    }

    /// Number of runs of bad blocks.
    pub fn count(&self) -> u64 {
        self.0.values().map(|bad_blocks| bad_blocks.ranges.len() as u64).sum()
    }

    /// Number of bad blocks.
    pub fn blocks(&self) -> u64 {
        self.0
            .values()
            .flat_map(|bad_blocks| &bad_blocks.ranges)
            .map(|bad_block| bad_block.end.saturating_sub(bad_block.start))
            .sum()
    }
}

/// Blocks that a rebuild of a member's part of a zone could not recover.
#[derive(Default)]
pub struct RebuildLoss {
    /// The new bad blocks, in blocks of the part, in order.
    pub bad_blocks: Vec<Range<u64>>,
    /// Lost data, in blocks of the logical zone: the bad blocks, and those that other members could not read.
    pub blocks: Vec<u64>,
}

impl RebuildLoss {
    /// Adds block `at` of `member`'s part, and the same block of `others`, the members that could not read theirs.
    pub fn add(&mut self, layout: &Layout, member: usize, at: u64, others: impl IntoIterator<Item = usize>) {
        match self.bad_blocks.last_mut() {
            Some(bad_block) if bad_block.contains(&at) => {}
            Some(bad_block) if bad_block.end == at => bad_block.end += 1,
            _ => self.bad_blocks.push(at..at + 1),
        }
        let members = others.into_iter().chain([member]);
        self.blocks.extend(members.filter_map(|member| layout.data_block(member, at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::policy::Policy;

    #[test]
    fn bad_block_map_finds_and_replaces_bad_blocks_of_part() {
        let mut map = BadBlockMap::default();
        let bad_blocks =
            |ranges: &[Range<u64>]| PartBadBlocks { zone: 1, member: 2, epoch: 3, ranges: ranges.to_vec() };
        map.set(bad_blocks(&[4..6, 9..10]));
        let among = |map: &BadBlockMap, blocks| map.among(ZoneIndex(1), 2, blocks).to_vec();
        for (blocks, found) in [(0..4, 0), (0..5, 1), (5..6, 1), (6..9, 0), (5..10, 2), (10..99, 0)] {
            assert_eq!(among(&map, blocks.clone()).len(), found, "{blocks:?}");
        }
        assert!(map.among(ZoneIndex(2), 2, 0..99).is_empty() && map.among(ZoneIndex(1), 1, 0..99).is_empty());
        assert_eq!((map.count(), map.blocks()), (2, 3));
        let mut other = BadBlockMap::default();
        map.all().into_iter().for_each(|bad_block| other.add(bad_block));
        assert_eq!(other.all(), map.all());
        map.set(bad_blocks(&[7..8, 12..13]));
        assert_eq!(among(&map, 0..99), [7..8, 12..13]);
        map.set(bad_blocks(&[]));
        assert_eq!(map.count(), 0);
    }

    #[test]
    fn lost_blocks_are_of_part_and_unreadable_sources() {
        let layout =
            Layout { policy: Policy::Zrwa, members: 4, parities: 1, chunk_blocks: 4, rows: 9, distance: 2 };
        let mut lost = RebuildLoss::default();
        // Row 1: member 1 has chunk 0, member 2 chunk 1, member 0 the parity; row 2: member 1 the parity.
        lost.add(&layout, 1, 5, [2]);
        lost.add(&layout, 1, 6, [0]);
        lost.add(&layout, 1, 6, [0]);
        lost.add(&layout, 1, 9, []);
        assert_eq!(lost.bad_blocks, [5..7, 9..10]);
        lost.blocks.sort_unstable();
        lost.blocks.dedup();
        assert_eq!(lost.blocks, [13, 14, 17]);
    }
}
