//! The map: where each logical block is.
//!
//! A logical block is at a [`Place`]. Place 0 is in the head, so 0 means that there is nothing. [`Paged`] keeps as
//! many pages in memory as it may; a page is asked for before it is read or changed. It is never the only copy of
//! anything: what a page says is also said by entries of groups, until a checkpoint has written it.
//!
//! A block at a random place costs a miss of the processor's caches, or two, so what pages say takes as little memory
//! as it can: 4 bytes for each block, and 2 more beside where there are pieces that are no whole blocks.

use crate::{
    runtime::work,
    volume::{
        format::FANOUT,
        place::{self, Place},
    },
};
use std::collections::BTreeMap;

/// A page in memory. What it says is in [`Paged::tables`].
struct Slot {
    page: u32,
    /// It speaks of pieces that are no whole blocks, or did.
    shaped: bool,
    /// It says what the device does not know yet.
    changed: bool,
    /// It is being written as it was at the cut: the device may not have it yet.
    frozen: bool,
    /// It was used since the hand last passed.
    used: bool,
}

/// Pages of one [`Tables`].
const PAGES: usize = 512;

/// What so many pages say.
struct Tables {
    blocks: Box<[u32]>,
    /// What there is to be said beside of the pages that are shaped; empty if none ever was.
    shapes: Box<[u16]>,
}

/// Pages that are not there: how many are skipped at a time, and for a unit of work.
const MOST_SKIPPED: u32 = 1 << 14;
const SKIPPED_PER_UNIT: u32 = 16;

/// A checkpoint is due when all pages in memory are changed but one in so many: the more there are, the more often pages
/// that are used all the time are changed before they are written once. The others are for what is read meanwhile.
const SHARE: usize = 16;

/// A map in pages.
pub struct Paged {
    /// Where the pages are on the device.
    directory: Vec<Place>,
    /// The slot of each page, from 1; 0 if it is not in memory.
    slots_by_page: Vec<u32>,
    slots: Vec<Slot>,
    /// What the pages say, slot by slot.
    tables: Vec<Tables>,
    /// What frozen pages said at the cut that were changed since.
    at_cut: BTreeMap<u32, Box<[Place]>>,
    /// Most slots, unless all are changed.
    most: usize,
    /// Most changed pages.
    most_changed: usize,
    /// Where to look next for a page that can go.
    hand: usize,
    /// Pages that were changed, and frozen ones that were not.
    changed: usize,
    only_frozen: usize,
    /// The last page that was asked for, and its slot: what follows is mostly of the same one.
    last: (u32, u32),
}

/// Where what a slot says begins in its [`Tables`].
fn first_of(slot: usize) -> usize {
    slot % PAGES * FANOUT as usize
}

impl Paged {
    /// A map of `blocks` blocks, whose pages are where `directory` says, of which `most` may be in memory,
    /// and `most_changed` should be changed.
    pub fn new(blocks: u64, directory: Vec<Place>, (most, most_changed): (usize, usize)) -> Paged {
        let pages = blocks.div_ceil(FANOUT) as usize;
        debug_assert_eq!(directory.len(), pages);
        Paged {
            directory,
            slots_by_page: vec![0; pages],
            slots: Vec::new(),
            tables: Vec::new(),
            at_cut: BTreeMap::new(),
            most: most.max(2),
            most_changed,
            hand: 0,
            changed: 0,
            only_frozen: 0,
            last: (u32::MAX, 0),
        }
    }

    /// Pages of a map of `blocks` blocks.
    pub fn pages(blocks: u64) -> u64 {
        blocks.div_ceil(FANOUT)
    }

    /// Blocks of the directory of such a map.
    pub fn directory_blocks(blocks: u64) -> u64 {
        Paged::pages(blocks).div_ceil(FANOUT)
    }

    /// Where `block` is; `None` if that has to be read from the device first.
    pub fn get(&mut self, block: u64) -> Option<Place> {
        work(1);
        let (page, index) = (block / FANOUT, block % FANOUT);
        if let Some(slot) = self.slot(page as u32) {
            return Some(self.entry(slot, index as usize));
        }
        // If it is nowhere it was never written.
        (self.directory[page as usize] == 0).then_some(0)
    }

    /// Says that `block` is at `place` now; gives where it was. `None` if that has to be read from the device
    /// first: then nothing has changed.
    pub fn set(&mut self, block: u64, place: Place) -> Option<Place> {
        work(1);
        let (page, index) = (block / FANOUT, block % FANOUT);
        if !self.is_here(page as u32) {
            if self.directory[page as usize] != 0 {
                return None;
            }
            self.insert(page as u32, std::iter::repeat(0));
        }
        let slot = self.slot(page as u32)?;
        let before = self.entry(slot, index as usize);
        if before == place {
            return Some(before);
        }
        if self.slots[slot].frozen && !self.at_cut.contains_key(&(page as u32)) {
            // A checkpoint writes what it was.
            let all = (0..FANOUT as usize).map(|index| self.entry(slot, index)).collect();
            self.at_cut.insert(page as u32, all);
        }
        self.put(slot, index as usize, place);
        self.change(slot);
        Some(before)
    }

    /// The slot of a page that is in memory.
    fn slot(&mut self, page: u32) -> Option<usize> {
        if self.last.0 != page {
            let slot = self.slots_by_page[page as usize].checked_sub(1)?;
            self.last = (page, slot);
        }
        let slot = self.last.1 as usize;
        self.slots[slot].used = true;
        Some(slot)
    }

    fn entry(&self, slot: usize, index: usize) -> Place {
        let (tables, at) = (&self.tables[slot / PAGES], first_of(slot) + index);
        let shape = if self.slots[slot].shaped { tables.shapes[at] } else { 0 };
        place::shaped(tables.blocks[at], shape)
    }

    fn put(&mut self, slot: usize, index: usize, place: Place) {
        let (tables, at) = (&mut self.tables[slot / PAGES], first_of(slot) + index);
        tables.blocks[at] = place::block(place);
        let shaped = &mut self.slots[slot].shaped;
        if !*shaped && !place::is_whole(place) {
            if tables.shapes.is_empty() {
                tables.shapes = vec![0; PAGES * FANOUT as usize].into();
            }
            tables.shapes[first_of(slot)..][..FANOUT as usize].fill(0);
            *shaped = true;
        }
        if *shaped {
            tables.shapes[at] = place::shape(place);
        }
    }

    /// Counts a slot as changed.
    fn change(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        if !std::mem::replace(&mut slot.changed, true) {
            self.changed += 1;
            self.only_frozen -= slot.frozen as usize;
        }
    }

    /// Whether the page is in memory.
    pub fn is_here(&self, page: u32) -> bool {
        self.slots_by_page[page as usize] > 0
    }

    /// Whether the page can be read and changed without asking the device.
    pub fn is_known(&self, page: u32) -> bool {
        self.is_here(page) || self.directory[page as usize] == 0
    }

    /// Where the page is on the device; 0 if it was never written.
    pub fn place(&self, page: u32) -> Place {
        self.directory[page as usize]
    }

    /// The first page from `page` on, before `end`, that there is; `end` if there is none, or a page before it: it is not
    /// looked for among more than some thousands.
    pub fn next_page(&self, page: u32, end: u32) -> u32 {
        let end = end.min(page.saturating_add(MOST_SKIPPED));
        let there = |page: &u32| self.is_here(*page) || self.directory[*page as usize] != 0;
        let next = (page..end).find(there).unwrap_or(end);
        work((next - page) / SKIPPED_PER_UNIT);
        next
    }

    /// Most pages that may be in memory.
    pub fn most_in_memory(&self) -> usize {
        self.most.min(self.directory.len())
    }

    /// Where the pages are.
    pub fn directory(&self) -> &[Place] {
        &self.directory
    }

    /// Whether so many pages are changed that a checkpoint is due: there would soon be no room for others, or a start
    /// would have too many of them to read.
    pub fn is_strained(&self) -> bool {
        let all_fit = self.directory.len() <= self.most;
        self.changed > self.most_changed || !all_fit && self.changed * SHARE >= self.most * (SHARE - 1)
    }

    /// Whether there is room for so many pages more, with those that can go.
    pub fn has_room_for(&self, pages: usize) -> bool {
        self.changed + self.only_frozen + pages <= self.most.max(self.slots.len())
    }

    /// Puts a page into memory that says on the device what `table` says, in the place of one that is not needed;
    /// beyond the budget if there is none.
    pub fn insert(&mut self, page: u32, table: impl Iterator<Item = Place>) {
        debug_assert!(!self.is_here(page));
        work(FANOUT as u32 / 4);
        let slot = Slot { page, shaped: false, changed: false, frozen: false, used: true };
        self.last = (u32::MAX, 0);
        let at = match self.victim() {
            Some(at) => {
                self.slots_by_page[self.slots[at].page as usize] = 0;
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                if self.slots.len() > self.tables.len() * PAGES {
                    let blocks = vec![0; PAGES * FANOUT as usize].into();
                    self.tables.push(Tables { blocks, shapes: Box::default() });
                }
                self.slots.len() - 1
            }
        };
        for (index, place) in table.take(FANOUT as usize).enumerate() {
            self.put(at, index, place);
        }
        self.slots_by_page[page as usize] = at as u32 + 1;
    }

    /// The first slot from the hand on that was not used since the hand was there, and is as on the device.
    fn victim(&mut self) -> Option<usize> {
        if self.slots.len() < self.most {
            return None;
        }
        for _ in 0..2 * self.slots.len() {
            let at = self.hand;
            self.hand = (at + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            if !slot.changed && !slot.frozen && !std::mem::take(&mut slot.used) {
                return Some(at);
            }
        }
        None
    }

    /// Counts a page as changed, so that the next checkpoint writes it elsewhere. It has to be in memory.
    pub fn touch(&mut self, page: u32) {
        if let Some(slot) = self.slot(page) {
            self.change(slot);
        }
    }

    /// The pages that were changed. What they say at this moment is kept until [`Paged::thaw`], as they themselves
    /// are; from now on they count as if the device knew.
    pub fn freeze(&mut self) -> Vec<u32> {
        let mut frozen = Vec::with_capacity(self.changed);
        for slot in self.slots.iter_mut().filter(|slot| slot.changed) {
            (slot.changed, slot.frozen) = (false, true);
            frozen.push(slot.page);
        }
        (self.changed, self.only_frozen) = (0, frozen.len());
        frozen
    }

    /// What a frozen page said when it was frozen.
    pub fn frozen(&self, page: u32) -> impl Iterator<Item = Place> {
        let (at_cut, slot) = (self.at_cut.get(&page), self.slots_by_page[page as usize] as usize - 1);
        (0..FANOUT as usize).map(move |index| match at_cut {
            Some(table) => table[index],
            None => self.entry(slot, index),
        })
    }

    /// A page lies there from now on; gives where it lay.
    pub fn lay(&mut self, page: u32, place: Place) -> Place {
        work(1);
        std::mem::replace(&mut self.directory[page as usize], place)
    }

    /// Whatever was frozen is on the device.
    pub fn thaw(&mut self) {
        for slot in &mut self.slots {
            slot.frozen = false;
        }
        self.only_frozen = 0;
        self.at_cut.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::mem::replace;

    const BLOCKS: u64 = 9 * FANOUT + 5;

    /// Where pages are read from: as the last checkpoint has left them.
    #[derive(Default)]
    struct Device(BTreeMap<Place, Vec<Place>>);

    impl Device {
        /// Where the checkpoint puts pages; what they say is written by [`Device::write`].
        fn cut(&mut self, map: &mut Paged) -> Vec<u32> {
            let pages = map.freeze();
            for page in &pages {
                let place = self.0.len() as Place + 1;
                self.0.insert(place, Vec::new());
                map.lay(*page, place);
            }
            pages
        }

        fn write(&mut self, map: &mut Paged, pages: &[u32]) {
            for page in pages {
                self.0.insert(map.place(*page), map.frozen(*page).collect());
            }
            map.thaw();
        }

        fn hold(&mut self, map: &mut Paged, block: u64) {
            let page = (block / FANOUT) as u32;
            if !map.is_here(page) && !map.has_room_for(1) {
                let pages = self.cut(map);
                self.write(map, &pages);
            }
            if !map.is_known(page) {
                map.insert(page, self.0[&map.place(page)].iter().copied());
            }
        }
    }

    /// Places of whole blocks, and of others.
    fn places() -> impl Strategy<Value = Place> {
        let shapes = prop_oneof![3 => Just(0), 1 => any::<u16>()];
        (0..1u32 << 20, shapes).prop_map(|(block, shape)| place::shaped(block, shape))
    }

    proptest! {
        /// Whatever is pushed out of memory and read again, a map in pages says what a flat one says; and a
        /// checkpoint writes what it said at the cut.
        #[test]
        fn pages_say_what_a_flat_map_says(
            steps in prop::collection::vec((0..BLOCKS, places(), 0..12u8), 1..300)
        ) {
            let mut flat = vec![0; BLOCKS as usize];
            let mut paged = Paged::new(BLOCKS, vec![0; 10], (3, 3));
            let mut device = Device::default();
            for (block, place, kind) in steps {
                match kind {
                    0 => {
                        device.hold(&mut paged, block);
                        let pages = device.cut(&mut paged);
                        let cut = flat.clone();
                        prop_assert_eq!(paged.set(block, place), Some(replace(&mut flat[block as usize], place)));
                        device.write(&mut paged, &pages);
                        for (page, at) in paged.directory().iter().enumerate().filter(|(_, at)| **at > 0) {
                            let from = page * FANOUT as usize;
                            for (index, place) in cut[from..].iter().take(FANOUT as usize).enumerate() {
                                prop_assert_eq!(device.0[at][index], *place);
                            }
                        }
                    }
                    1..6 => {
                        device.hold(&mut paged, block);
                        prop_assert_eq!(paged.get(block), Some(flat[block as usize]));
                    }
                    _ => {
                        device.hold(&mut paged, block);
                        prop_assert_eq!(paged.set(block, place), Some(replace(&mut flat[block as usize], place)));
                    }
                }
                prop_assert!(paged.slots.len() <= 4);
                let pinned = paged.slots.iter().filter(|slot| slot.changed || slot.frozen).count();
                prop_assert_eq!(paged.changed + paged.only_frozen, pinned);
            }
        }
    }
}
