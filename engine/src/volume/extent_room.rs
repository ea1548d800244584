//! The room that each extent of a pool takes, and the room that is guaranteed to volumes.
//!
//! Of each extent the grains are counted that its pieces count for (docs/VOLUME.md, 'Room'): each piece is in one place of
//! the map, so in one extent. The map is counted once, page by page in the order of the blocks, while it changes: a change
//! of a block is added if the block was counted before.
//!
//! A *guarantee* is room for a *family*, a volume with its snapshots. The part of it that the family has not taken is *set
//! aside*: other families may not take it.

use crate::{
    runtime::work,
    volume::{
        address::{self, Address, GRAINS, Unit},
        format::FANOUT,
        root::PoolShape,
    },
};
use std::collections::BTreeMap;

/// The family of the table of a pool: the greatest number, which no slot has.
pub const TABLE_FAMILY: u16 = u16::MAX;

/// Blocks of the largest unit: units begin at multiples of their size, so no unit spans two of these groups.
const GROUP: usize = 16;

/// Counted grains of all extents that a shard of a pool has.
pub struct ExtentRoom {
    extent_blocks: u64,
    /// Grains of each extent.
    held: Vec<u32>,
    /// The blocks before this one are counted.
    counted: u64,
    blocks: u64,
    /// Family of each extent; 0 for none.
    families: Vec<u16>,
    guarantees: BTreeMap<u16, Guarantee>,
    /// Grains that all guarantees together set aside.
    set_aside: u64,
}

/// Room that one family may take, and others may not.
#[derive(Clone, Copy, Debug, Default)]
struct Guarantee {
    grains: u64,
    /// Grains that the family takes.
    held: u64,
}

impl Guarantee {
    /// Grains that are set aside.
    fn unused(self) -> u64 {
        self.grains.saturating_sub(self.held)
    }
}

impl ExtentRoom {
    /// The extents of a pool of `blocks` blocks, none of which is counted yet; `None` if an extent may have more grains than
    /// can be counted.
    pub fn of(shape: PoolShape, blocks: u64) -> Option<ExtentRoom> {
        let extent_blocks = shape.extent_blocks as u64;
        let extents = usize::try_from(blocks.checked_div(extent_blocks)?).ok()?;
        let can_be =
            extent_blocks.is_multiple_of(GROUP as u64) && extent_blocks <= (u32::MAX / GRAINS) as u64;
        can_be.then(|| ExtentRoom {
            extent_blocks,
            held: vec![0; extents],
            counted: 0,
            blocks,
            families: vec![0; extents],
            guarantees: BTreeMap::new(),
            set_aside: 0,
        })
    }

    /// Takes the counts of a root.
    pub fn load(&mut self, held: &[u32]) {
        assert_eq!(held.len(), self.held.len(), "counted extents of a root, and extents");
        self.held.copy_from_slice(held);
        self.counted = self.blocks;
    }

    /// The counts for a root; `None` if they are not complete.
    pub fn counts(&self) -> Option<Vec<u32>> {
        self.uncounted().is_none().then(|| self.held.clone())
    }

    /// Records the family of an extent; 0 for none.
    pub fn set_family(&mut self, extent: u32, family: u16) {
        let held = self.held(extent);
        let Some(of_extent) = self.families.get_mut(extent as usize) else { return };
        let former = std::mem::replace(of_extent, family);
        self.adjust(former, held, 0);
        self.adjust(family, 0, held);
    }

    /// The family of the extent of a block; 0 for none.
    pub fn family(&self, block: u64) -> u16 {
        self.families.get((block / self.extent_blocks) as usize).copied().unwrap_or(0)
    }

    /// Guarantees grains to a family; 0 for none. All extents have to be counted.
    pub fn guarantee(&mut self, family: u16, grains: u64) {
        assert!(
            self.uncounted().is_none() || grains == 0,
            "room is guaranteed before all extents are counted"
        );
        let former = self.guarantees.remove(&family).unwrap_or_default();
        self.set_aside -= former.unused();
        if grains > 0 {
            let guarantee = Guarantee { grains, held: self.held_by(family) };
            self.set_aside += guarantee.unused();
            self.guarantees.insert(family, guarantee);
        }
    }

    /// Grains that a family takes.
    pub fn held_by(&self, family: u16) -> u64 {
        let extents = self.families.iter().zip(&self.held).filter(|(of_extent, _)| **of_extent == family);
        extents.map(|(_, held)| *held as u64).sum()
    }

    /// Grains that are set aside for a family, and for all others.
    pub fn set_aside(&self, family: u16) -> (u64, u64) {
        let own = self.guarantees.get(&family).map_or(0, |guarantee| guarantee.unused());
        (own, self.set_aside - own)
    }

    /// Counts that a family frees and takes grains.
    fn adjust(&mut self, family: u16, freed: u64, taken: u64) {
        if let Some(guarantee) = self.guarantees.get_mut(&family) {
            self.set_aside -= guarantee.unused();
            guarantee.held = (guarantee.held + taken).saturating_sub(freed);
            self.set_aside += guarantee.unused();
        }
    }

    /// Records that a block counts for `now` grains instead of `before`.
    pub fn change(&mut self, block: u64, before: u32, now: u32) {
        if block >= self.counted {
            return;
        }
        if let Some(held) = self.held.get_mut((block / self.extent_blocks) as usize) {
            *held = (*held as u64 + now as u64).saturating_sub(before.into()) as u32;
        }
        if !self.guarantees.is_empty() {
            self.adjust(self.family(block), before.into(), now.into());
        }
    }

    /// The first block that is not counted; `None` if all are.
    pub fn uncounted(&self) -> Option<u64> {
        (self.counted < self.blocks).then_some(self.counted)
    }

    /// Counts the blocks up to `end`, which are unmapped.
    pub fn count_unmapped(&mut self, end: u64) {
        self.counted = self.counted.max(end.min(self.blocks));
    }

    /// Counts a page of the map with these entries.
    pub fn count_page(&mut self, page: u32, entries: &[Address]) {
        let first = page as u64 * FANOUT;
        assert_eq!(self.counted, first, "first block that is not counted, and that of page {page}");
        self.counted = self.blocks.min(first + FANOUT);
        for (index, group) in entries.chunks(GROUP).enumerate() {
            let block = first + (index * GROUP) as u64;
            self.change(block, 0, grains_of(group) as u32);
        }
    }

    /// Grains of an extent.
    pub fn held(&self, extent: u32) -> u64 {
        self.held.get(extent as usize).copied().unwrap_or(0).into()
    }

    /// Compares the counts with those of another count of the whole map.
    ///
    /// # Errors
    /// The first extent of which they differ.
    pub fn audit(&self, counted: &ExtentRoom) -> Result<(), String> {
        let differs = self.held.iter().zip(&counted.held).position(|(held, there)| held != there);
        let is_complete = self.uncounted().is_none();
        let (mut unused, mut wrong) = (0, None);
        for (family, guarantee) in &self.guarantees {
            unused += guarantee.unused();
            wrong = wrong.or((self.held_by(*family) != guarantee.held).then_some((*family, *guarantee)));
        }
        if let Some((family, guarantee)) = wrong.filter(|_| is_complete) {
            return Err(format!(
                "family {family} takes {} grains, and has {guarantee:?}",
                self.held_by(family)
            ));
        }
        if unused != self.set_aside {
            return Err(format!("{} grains count as set aside, and {unused} are", self.set_aside));
        }
        match differs.filter(|_| is_complete) {
            Some(extent) => Err(format!(
                "extent {extent} has {} grains, and counts as {}",
                counted.held[extent], self.held[extent]
            )),
            None => Ok(()),
        }
    }
}

/// Grains that entries of consecutive blocks, from a multiple of 16 on, count for.
pub fn grains_of(entries: &[Address]) -> u64 {
    work(entries.len() as u32 / 4);
    let share = |(at, place): (usize, &Address)| {
        if !address::is_piece(*place) {
            return 0;
        }
        let is_alone = address::unit(*place) == Unit::BLOCK;
        let earlier = if is_alone { &[] } else { &entries[at - at % GROUP..at] };
        let before = earlier.iter().filter(|other| *other == place).count() as u32;
        address::share(*place, before + 1) as u64
    };
    entries.iter().enumerate().map(share).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PoolShape = PoolShape { extent_blocks: 32, slots: 1 };

    #[test]
    fn extent_room_counts_pages_while_they_change() {
        let mut room = ExtentRoom::of(SHAPE, 2 * FANOUT).unwrap();
        let whole = address::place(7, 0, (Unit::BLOCK, GRAINS));
        // Not counted yet, so not added.
        room.change(0, 0, GRAINS);
        let mut entries = vec![0; FANOUT as usize];
        (entries[0], entries[31], entries[32]) = (whole, whole, whole);
        room.count_page(0, &entries);
        assert_eq!((room.held(0), room.held(1), room.uncounted()), (128, 64, Some(FANOUT)));
        room.change(1, 0, 10);
        room.change(FANOUT, 0, GRAINS);
        room.count_unmapped(5 * FANOUT);
        assert_eq!((room.held(0), room.held(21), room.uncounted()), (138, 0, None));
        room.change(31, GRAINS, 0);
        assert_eq!(room.held(0), 74);
    }

    #[test]
    fn extent_room_charges_units_as_zones_do() {
        let unit = address::place(9, 0, (Unit::MOST, 160));
        let whole = address::place(7, 0, (Unit::BLOCK, GRAINS));
        let mut entries = vec![unit; 16];
        assert_eq!(grains_of(&entries), 161);
        entries[2..].fill(address::HOLE);
        assert_eq!(grains_of(&entries), 128);
        entries[2] = whole;
        assert_eq!(grains_of(&entries), 192);
        assert!(ExtentRoom::of(PoolShape { extent_blocks: u32::MAX, slots: 1 }, 1 << 40).is_none());
    }

    #[test]
    fn extent_room_sets_aside_what_families_do_not_take() {
        let mut room = ExtentRoom::of(SHAPE, 10 * 32).unwrap();
        room.count_unmapped(u64::MAX);
        room.set_family(1, 7);
        room.set_family(2, 7);
        room.set_family(3, 8);
        room.change(32, 0, 40);
        room.guarantee(7, 100);
        room.guarantee(TABLE_FAMILY, 10);
        assert_eq!((room.set_aside(7), room.set_aside(8), room.held_by(7)), ((60, 10), (0, 70), 40));
        room.change(64, 0, 50);
        room.change(96, 0, 64);
        assert_eq!(room.set_aside(7), (10, 10));
        // More than is guaranteed.
        room.change(33, 0, 64);
        assert_eq!(room.set_aside(7), (0, 10));
        room.change(33, 64, 0);
        room.set_family(2, 0);
        assert_eq!(room.set_aside(7), (60, 10));
        room.guarantee(7, 0);
        assert_eq!(room.set_aside(7), (0, 10));
        let mut stored = ExtentRoom::of(SHAPE, 10 * 32).unwrap();
        stored.load(&room.counts().unwrap());
        assert_eq!((stored.held(3), stored.uncounted(), room.audit(&stored)), (64, None, Ok(())));
        stored.change(96, 0, 1);
        assert!(room.audit(&stored).unwrap_err().contains("extent 3"));
    }
}
