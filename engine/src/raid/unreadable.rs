//! Blocks that drives could not read, or returned wrong: known from the error of a read until the same block is read,
//! repaired ([`crate::raid::maintain::repair`]), rebuilt, reset, or on another drive. Kept in memory only.
//!
//! The data is there as long as the other members decode it, and there is less redundancy for it: the status of the
//! array counts such a block like one that its member lacks.

use crate::{raid::geometry::each, runtime::Gate, zone::ZoneIndex};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Most blocks that are remembered: further ones do not change the state of the array.
const MOST: usize = 1 << 16;

/// Unreadable blocks of the parts of all zones.
#[derive(Default)]
pub struct UnreadableBlocks {
    /// Members (bits) by zone and block of their parts.
    blocks: RefCell<BTreeMap<(u32, u64), u32>>,
    /// Whether there are any: checked with every read.
    any: Cell<bool>,
    /// Zones and blocks of parts that are to be repaired; some may be readable meanwhile.
    due: RefCell<BTreeSet<(u32, u64)>>,
    /// Opened when a block becomes due, or the reason why it could not be repaired may have ended.
    pub work: Gate,
}

impl UnreadableBlocks {
    fn change(&self, change: impl FnOnce(&mut BTreeMap<(u32, u64), u32>)) {
        let mut blocks = self.blocks.borrow_mut();
        change(&mut blocks);
        self.any.set(!blocks.is_empty());
    }

    /// Adds blocks of a member's part of a zone.
    pub fn add(&self, zone: u32, member: usize, blocks: impl Iterator<Item = u64>) {
        self.change(|all| {
            for block in blocks {
                if all.len() < MOST || all.contains_key(&(zone, block)) {
                    let members = all.entry((zone, block)).or_default();
                    if *members & (1 << member) == 0 {
                        *members |= 1 << member;
                        self.due.borrow_mut().insert((zone, block));
                        self.work.open();
                    }
                }
            }
        });
    }

    /// The blocks that are to be repaired, with the members (bits) that cannot read them. They are not due any more.
    pub fn take_due(&self) -> Vec<(ZoneIndex, u64, u32)> {
        let blocks = self.blocks.borrow();
        let due = std::mem::take(&mut *self.due.borrow_mut());
        due.iter().filter_map(|key| Some((ZoneIndex(key.0), key.1, *blocks.get(key)?))).collect()
    }

    /// Makes blocks due again, when they may be repaired.
    pub fn defer(&self, blocks: impl IntoIterator<Item = (ZoneIndex, u64)>) {
        self.due.borrow_mut().extend(blocks.into_iter().map(|(zone, block)| (zone.0, block)));
    }

    /// Makes all blocks of a zone due: more of them may be decoded now.
    pub fn retry(&self, zone: ZoneIndex) {
        if self.any.get() {
            self.due.borrow_mut().extend(self.of_zone(zone).into_iter().map(|(at, _)| (zone.0, at)));
            self.work.open();
        }
    }

    /// Wakes the repair, if blocks of a zone are due: the zone is free, or has gone on.
    pub fn wake(&self, zone: ZoneIndex) {
        let is_due = || self.due.borrow().range((zone.0, 0)..=(zone.0, u64::MAX)).next().is_some();
        if self.any.get() && is_due() {
            self.work.open();
        }
    }

    /// The blocks of a zone, with the members (bits) that cannot read them.
    pub fn of_zone(&self, zone: ZoneIndex) -> Vec<(u64, u32)> {
        let blocks = self.blocks.borrow();
        blocks.range((zone.0, 0)..=(zone.0, u64::MAX)).map(|((_, at), members)| (*at, *members)).collect()
    }

    /// Whether a member cannot read a block.
    pub fn has(&self, zone: ZoneIndex, member: usize, block: u64) -> bool {
        self.any.get() && self.blocks.borrow().get(&(zone.0, block)).is_some_and(|m| m & (1 << member) != 0)
    }

    /// Removes blocks of a member's part of a zone: they can be read.
    pub fn remove(&self, zone: u32, member: usize, blocks: Range<u64>) {
        if !self.any.get() {
            return;
        }
        self.change(|all| {
            for block in blocks {
                if let Some(members) = all.get_mut(&(zone, block)) {
                    *members &= !(1 << member);
                    if *members == 0 {
                        all.remove(&(zone, block));
                    }
                }
            }
        });
    }

    /// Removes all blocks of zones that were reset.
    pub fn remove_zones(&self, zones: &Range<u32>) {
        self.change(|all| all.retain(|(zone, _), _| !zones.contains(zone)));
    }

    /// Removes all blocks of a member: of one zone, or of all of them.
    pub fn remove_parts(&self, member: usize, of: Option<u32>) {
        self.change(|all| {
            all.retain(|(zone, _), members| {
                if of.is_none_or(|of| of == *zone) {
                    *members &= !(1 << member);
                }
                *members != 0
            });
        });
    }

    /// All unreadable blocks, as gaps of one block each.
    pub fn gaps(&self) -> Vec<Gap> {
        let blocks = self.blocks.borrow();
        let gaps = blocks.iter().flat_map(|((zone, block), members)| {
            each(*members).map(move |member| Gap { zone: *zone, member, from: *block, to: block + 1 })
        });
        gaps.collect()
    }

    /// Number of unreadable blocks of each member.
    pub fn count(&self, members: usize) -> Vec<u64> {
        let mut counts = vec![0; members];
        for bits in self.blocks.borrow().values() {
            each(*bits).filter(|member| *member < members).for_each(|member| counts[member] += 1);
        }
        counts
    }
}

/// Blocks `from..to` of a member's part of a zone that cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// Zone of the array.
    pub zone: u32,
    /// Role of the member.
    pub member: usize,
    /// From the start of the member's part.
    pub from: u64,
    /// Exclusive end.
    pub to: u64,
}

/// Most members that a block with gaps lacks: those with a gap there, and those that its zone lacks anyway, which
/// `missing` returns (bits); 0 if there are no gaps.
pub fn most_missing(gaps: &[Gap], missing: impl Fn(u32) -> u32) -> usize {
    // Ends come before starts, so that neighbours do not overlap.
    let starts = gaps.iter().map(|gap| (gap.zone, gap.from, true, gap.member));
    let ends = gaps.iter().map(|gap| (gap.zone, gap.to, false, gap.member));
    let mut events: Vec<_> = starts.chain(ends).collect();
    events.sort_unstable();
    let (mut open, mut most) = ([0u32; u32::BITS as usize], 0);
    for (zone, _, starts, member) in events {
        let count = &mut open[member % open.len()];
        if !starts {
            *count = count.saturating_sub(1);
            continue;
        }
        *count += 1;
        let gaps = open.iter().enumerate().fold(0, |all, (m, count)| all | ((*count > 0) as u32) << m);
        most = most.max((gaps | missing(zone)).count_ones() as usize);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_blocks_stay_until_read_rebuilt_or_reset() {
        let unreadable = UnreadableBlocks::default();
        unreadable.add(1, 2, 4..6);
        unreadable.add(1, 0, 5..6);
        unreadable.add(3, 2, 0..1);
        let all =
            || -> Vec<_> { unreadable.gaps().iter().map(|gap| (gap.zone, gap.from, gap.member)).collect() };
        assert_eq!(all(), [(1, 4, 2), (1, 5, 0), (1, 5, 2), (3, 0, 2)]);
        assert_eq!(unreadable.count(3), [1, 0, 3]);
        unreadable.remove(1, 2, 5..6);
        assert_eq!(all(), [(1, 4, 2), (1, 5, 0), (3, 0, 2)]);
        unreadable.remove_parts(2, Some(1));
        assert_eq!(all(), [(1, 5, 0), (3, 0, 2)]);
        unreadable.remove_zones(&(1..2));
        assert_eq!(all(), [(3, 0, 2)]);
        unreadable.remove_parts(2, None);
        assert_eq!((all().len(), unreadable.count(3)), (0, vec![0; 3]));
    }

    #[test]
    fn unreadable_gaps_count_missing_members_where_overlapping() {
        let gap = |zone, member, from, to| Gap { zone, member, from, to };
        let gaps = [gap(0, 0, 0, 4), gap(0, 1, 4, 6), gap(1, 0, 0, 4), gap(1, 2, 3, 4)];
        assert_eq!(most_missing(&[], |_| 0b111), 0);
        assert_eq!(most_missing(&gaps[..2], |_| 0), 1);
        assert_eq!(most_missing(&gaps, |_| 0), 2);
        // A member that is missing anyway counts once.
        assert_eq!(most_missing(&gaps, |zone| 0b1 << (2 * zone)), 2);
        assert_eq!(most_missing(&gaps, |_| 0b1000), 3);
    }
}
