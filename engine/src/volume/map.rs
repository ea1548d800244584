//! The L2P map: the place of each logical block.
//!
//! The map has an [`Address`] (*place*) for each logical block; 0, which would be in the head, means unmapped.
//! [`PagedMap`] keeps a limited number of pages in memory; a page is read in before it is looked up or changed. A
//! changed page in memory is never the only copy of its changes: the entries of groups have them until a checkpoint has
//! written the page.
//!
//! A lookup of a random block costs a miss of the processor's caches, or two, so pages take as little memory as
//! possible: 4 bytes per block, and 2 more where there are pieces that are not whole blocks. A page that is evicted is
//! *packed* ([`super::packed`]) if that makes it much smaller, as for data that was written in order: such a map fits into
//! memory as a whole although its budget has room for a small part of its pages.

use crate::{
    runtime::work,
    volume::{
        address::{self, Address},
        format::FANOUT,
        packed::{PAGE_BYTES, PackedPages, Renumbered},
    },
};
use std::collections::BTreeMap;

/// Number of blocks, at most `most`, from each of some blocks on that are in one page of the map.
pub fn in_one_page(starts: impl Iterator<Item = u64>, most: u64) -> u64 {
    starts.map(|start| FANOUT - start % FANOUT).fold(most, u64::min)
}

/// A slot: a page in memory, with its entries in [`PagedMap::tables`].
struct PageSlot {
    page: u32,
    /// It has, or had, places of pieces that are not whole blocks: its [`Tables::shapes`] are in use.
    shaped: bool,
    /// The last two intervals between cuts in which it was changed, the last one first; 0 for none.
    changed_in: [u64; 2],
    /// It was used since the clock hand last passed it (second chance).
    used: bool,
    /// Number of changes that need it together with other pages.
    pins: u32,
}

/// Number of pages of one [`Tables`].
const PAGES: usize = 512;

/// The entries of [`PAGES`] pages.
struct Tables {
    /// Device block of each entry.
    blocks: Box<[u32]>,
    /// Upper bits of each entry ([`address::shape`]), valid for pages with [`PageSlot::shaped`]; empty as long as there
    /// was no such page.
    shapes: Box<[u16]>,
}

/// Maximum number of nonexistent pages that are skipped by one call.
const MOST_SKIPPED: u32 = 1 << 14;
/// Skipped pages that count as one unit of work.
const SKIPPED_PER_UNIT: u32 = 16;

/// A checkpoint is due when all pages in memory but one in `SHARE` are changed. The later it is made, the more changes
/// of a busy page are combined into one write of it. The unchanged pages serve reads in the meantime.
const SHARE: usize = 16;

/// Of the budget of a map that does not fit into it, one part in so many is for packed pages alone.
const PACKED_SHARE: usize = 8;

/// In [`PagedMap::numbers`], the bit of a packed page.
const PACKED: u32 = 1 << 31;

/// The L2P map in pages, with a limited number of them in memory.
pub struct PagedMap {
    /// The places of the pages on the device.
    directory: Vec<Address>,
    /// The slot of each page, from 1; the number of a packed page, with [`PACKED`]; 0 if it is not in memory.
    numbers: Vec<u32>,
    slots: Vec<PageSlot>,
    /// The entries of the pages, slot by slot.
    tables: Vec<Tables>,
    /// Evicted pages in little memory; the entries of each are those on the device.
    packed: PackedPages,
    /// Entries at the cut of frozen pages that were changed after it.
    at_cut: BTreeMap<u32, Box<[Address]>>,
    /// Budget for slots and packed pages, in pages that are not packed.
    budget: usize,
    /// Maximum number of slots. It is exceeded only if every page in a slot is changed, frozen or pinned.
    most: usize,
    /// Number of slots up to which a page gets a new one. From there on, evicted pages that can be packed make room, and
    /// each makes the slots fewer if there are more.
    few: usize,
    /// Number of changed pages above which a checkpoint is due.
    most_changed: usize,
    /// Clock hand: the slot that is examined next for eviction.
    hand: usize,
    /// Number of the interval that began with the last cut. A page is *changed* if it was changed in this interval:
    /// then it stays in memory.
    interval: u64,
    /// The interval whose changes the checkpoint in progress writes; 0 if there is none. A page that was changed in it
    /// is *frozen*: it stays in memory until the checkpoint has ended.
    frozen: u64,
    /// Number of changed pages.
    changed: usize,
    /// Number of frozen pages that were not changed after the cut.
    only_frozen: usize,
    /// Number of pages that have a place on the device.
    written: usize,
    /// Changed pages that have no place in the next checkpoint yet.
    unlaid: Vec<u32>,
    /// The last page that was looked up, and its slot: the next lookup is mostly of the same one.
    last: (u32, u32),
}

/// Index of a slot's first entry in its [`Tables`].
fn first_of(slot: usize) -> usize {
    slot % PAGES * FANOUT as usize
}

impl PagedMap {
    /// A map of `blocks` blocks with its pages at the places in `directory`. The pages in memory may take as much of it as
    /// `budget` pages that are not packed, and `most_changed` of them should be changed.
    pub fn new(blocks: u64, directory: Vec<Address>, (budget, most_changed): (usize, usize)) -> PagedMap {
        let pages = blocks.div_ceil(FANOUT) as usize;
        assert_eq!(directory.len(), pages, "places of pages, and pages of {blocks} blocks");
        let mut map = PagedMap {
            written: directory.iter().filter(|place| **place != 0).count(),
            directory,
            numbers: vec![0; pages],
            slots: Vec::new(),
            tables: Vec::new(),
            packed: PackedPages::default(),
            at_cut: BTreeMap::new(),
            budget,
            most: 0,
            few: 0,
            most_changed,
            hand: 0,
            interval: 1,
            frozen: 0,
            changed: 0,
            only_frozen: 0,
            unlaid: Vec::new(),
            last: (u32::MAX, 0),
        };
        map.share_budget();
        map
    }

    /// Divides the budget among slots and packed pages. If all pages fit, they are in slots.
    fn share_budget(&mut self) {
        let all_fit = self.directory.len() <= self.budget;
        let share = |part| if all_fit { self.budget } else { self.budget - self.budget.div_ceil(part) };
        (self.most, self.few) = (share(PACKED_SHARE).max(2), share(2).max(2));
    }

    /// Adds unmapped blocks, up to `blocks`; the budget is at least `budget` then.
    pub fn grow(&mut self, blocks: u64, budget: usize) {
        let pages = PagedMap::pages(blocks) as usize;
        assert!(
            pages >= self.directory.len(),
            "a map of {} pages does not shrink to {pages}",
            self.directory.len()
        );
        self.directory.resize(pages, 0);
        self.numbers.resize(pages, 0);
        self.budget = self.budget.max(budget);
        self.share_budget();
    }

    /// Pages of a map of `blocks` blocks.
    pub fn pages(blocks: u64) -> u64 {
        blocks.div_ceil(FANOUT)
    }

    /// Blocks of the directory of such a map.
    pub fn directory_blocks(blocks: u64) -> u64 {
        PagedMap::pages(blocks).div_ceil(FANOUT)
    }

    /// The place of `block`; `None` if its page has to be read from the device first.
    pub fn get(&mut self, block: u64) -> Option<Address> {
        work(1);
        let (page, index) = (block / FANOUT, block % FANOUT);
        if let Some(slot) = self.slot(page as u32) {
            return Some(self.entry(slot, index as usize));
        }
        if let Some(number) = self.number_packed(page as u32) {
            return Some(self.packed.place(number, index as usize));
        }
        // A page that is neither in memory nor on the device was never written: all its blocks are unmapped.
        (self.directory[page as usize] == 0).then_some(0)
    }

    /// Sets the place of `block`; returns the one before. `None` if its page has to be read from the device first: then
    /// nothing has changed.
    pub fn set(&mut self, block: u64, place: Address) -> Option<Address> {
        work(1);
        let (page, index) = (block / FANOUT, block % FANOUT);
        if !self.is_here(page as u32) && !self.unpack(page as u32) {
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
        if self.is_frozen(slot) && !self.at_cut.contains_key(&(page as u32)) {
            // The checkpoint in progress still has to write the entries at the cut.
            let all = self.entries(slot).into();
            self.at_cut.insert(page as u32, all);
        }
        self.put(slot, index as usize, place);
        self.change(slot);
        Some(before)
    }

    /// The slot of a page that has one; counts as a use of it.
    fn slot(&mut self, page: u32) -> Option<usize> {
        if self.last.0 != page {
            self.last = (page, self.slot_of(page)? as u32);
        }
        let slot = self.last.1 as usize;
        self.slots[slot].used = true;
        Some(slot)
    }

    /// The slot of a page that has one.
    fn slot_of(&self, page: u32) -> Option<usize> {
        let number = self.numbers[page as usize];
        (number != 0 && number & PACKED == 0).then(|| number as usize - 1)
    }

    /// The number of a packed page.
    fn number_packed(&self, page: u32) -> Option<usize> {
        let number = self.numbers[page as usize];
        (number & PACKED != 0).then_some((number & !PACKED) as usize)
    }

    fn entry(&self, slot: usize, index: usize) -> Address {
        let (tables, at) = (&self.tables[slot / PAGES], first_of(slot) + index);
        let shape = if self.slots[slot].shaped { tables.shapes[at] } else { 0 };
        address::shaped(tables.blocks[at], shape)
    }

    fn entries(&self, slot: usize) -> Vec<Address> {
        (0..FANOUT as usize).map(|index| self.entry(slot, index)).collect()
    }

    fn put(&mut self, slot: usize, index: usize, place: Address) {
        let (tables, at) = (&mut self.tables[slot / PAGES], first_of(slot) + index);
        tables.blocks[at] = address::block(place);
        let shaped = &mut self.slots[slot].shaped;
        if !*shaped && !address::is_whole(place) {
            if tables.shapes.is_empty() {
                tables.shapes = vec![0; PAGES * FANOUT as usize].into();
            }
            tables.shapes[first_of(slot)..][..FANOUT as usize].fill(0);
            *shaped = true;
        }
        if *shaped {
            tables.shapes[at] = address::shape(place);
        }
    }

    fn is_changed(&self, slot: usize) -> bool {
        self.slots[slot].changed_in[0] == self.interval
    }

    fn is_frozen(&self, slot: usize) -> bool {
        self.frozen > 0 && self.slots[slot].changed_in.contains(&self.frozen)
    }

    /// Marks a slot as changed, and keeps the counts.
    fn change(&mut self, slot: usize) {
        if !self.is_changed(slot) {
            self.changed += 1;
            self.only_frozen -= self.is_frozen(slot) as usize;
            let PageSlot { page, changed_in, .. } = &mut self.slots[slot];
            *changed_in = [self.interval, changed_in[0]];
            self.unlaid.push(*page);
        }
    }

    /// Whether the page is in memory, and not packed.
    pub fn is_here(&self, page: u32) -> bool {
        self.slot_of(page).is_some()
    }

    /// Whether the page can be looked up and changed without reading the device.
    pub fn is_known(&self, page: u32) -> bool {
        self.numbers[page as usize] > 0 || self.directory[page as usize] == 0
    }

    /// The place of the page on the device; 0 if it was never written.
    pub fn place(&self, page: u32) -> Address {
        self.directory[page as usize]
    }

    /// The first page from `page` on, before `end`, that was ever written; `end` if there is none. After
    /// [`MOST_SKIPPED`] nonexistent pages it returns the next page unchecked.
    pub fn next_page(&self, page: u32, end: u32) -> u32 {
        let end = end.min(page.saturating_add(MOST_SKIPPED));
        let there = |page: &u32| self.numbers[*page as usize] > 0 || self.directory[*page as usize] != 0;
        let next = (page..end).find(there).unwrap_or(end);
        work((next - page) / SKIPPED_PER_UNIT);
        next
    }

    /// The entries of a page, if it can be looked up without reading the device. Does not count as a use of the page.
    pub fn copy(&self, page: u32) -> Option<Vec<Address>> {
        if let Some(number) = self.number_packed(page) {
            return Some(self.packed.entries(number));
        }
        match self.slot_of(page) {
            Some(slot) => Some(self.entries(slot)),
            None => (self.directory[page as usize] == 0).then(|| vec![0; FANOUT as usize]),
        }
    }

    /// Number of pages on the device.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Number of pages in memory.
    pub fn in_memory(&self) -> usize {
        self.slots.len() + self.packed.count()
    }

    /// Memory that the pages in memory take, in bytes.
    pub fn bytes(&self) -> u64 {
        self.slots.len() as u64 * PAGE_BYTES + self.packed.bytes()
    }

    /// Memory that the pages in memory may take, in bytes.
    pub fn most_bytes(&self) -> u64 {
        self.budget.min(self.directory.len()) as u64 * PAGE_BYTES
    }

    /// The places of the pages.
    pub fn directory(&self) -> &[Address] {
        &self.directory
    }

    /// Whether so many pages are changed that a checkpoint is due: there would soon be no room for others, or a start
    /// would have to read too many of them.
    pub fn is_strained(&self) -> bool {
        let all_fit = self.directory.len() <= self.budget;
        self.changed > self.most_changed || !all_fit && self.changed * SHARE >= self.most * (SHARE - 1)
    }

    /// Whether the budget has room for `pages` more pages; pages that can be evicted count as room.
    pub fn has_room_for(&self, pages: usize) -> bool {
        self.changed + self.only_frozen + pages <= self.most.max(self.slots.len())
    }

    /// Puts a page with the entries `table` into memory, in place of one that can be evicted; beyond the budget if
    /// there is none.
    pub fn insert(&mut self, page: u32, table: impl Iterator<Item = Address>) {
        let number = self.numbers[page as usize];
        assert!(number == 0, "page {page} of the map is read while it is in memory, as number {number:#x}");
        work(FANOUT as u32 / 4);
        let slot = PageSlot { page, shaped: false, changed_in: [0; 2], used: true, pins: 0 };
        self.last = (u32::MAX, 0);
        let at = match self.evict() {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                let here = self.slots.len();
                assert!(
                    here < self.most || (0..here).all(|slot| self.must_stay(slot)),
                    "{here} pages of the map are in memory, not all of which must be, and there may be {}",
                    self.most
                );
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
        self.numbers[page as usize] = at as u32 + 1;
        let rest = (self.budget.saturating_sub(self.slots.len()) as u64).saturating_mul(PAGE_BYTES);
        while let Some((page, number)) = self.packed.victim(rest) {
            self.remove_packed(page, number);
        }
    }

    /// A slot from which the page was evicted; `None` if a new slot is to be used.
    fn evict(&mut self) -> Option<usize> {
        if self.slots.len() < self.few {
            return None;
        }
        let at = self.victim()?;
        if !self.pack(at) {
            if self.slots.len() < self.most {
                return None;
            }
            self.numbers[self.slots[at].page as usize] = 0;
        } else if self.slots.len() > self.few {
            self.slots[at].pins = 1;
            return Some(
                self.victim().filter(|more| self.pack(*more)).map_or(at, |more| self.remove_slot(more, at)),
            );
        }
        Some(at)
    }

    /// The slot to evict: the first from the hand on that is not changed and was not used since the hand last passed.
    fn victim(&mut self) -> Option<usize> {
        (0..2 * self.slots.len()).find_map(|_| {
            self.hand = if self.hand + 1 < self.slots.len() { self.hand + 1 } else { 0 };
            let at = self.hand;
            (!self.must_stay(at) && !std::mem::take(&mut self.slots[at].used)).then_some(at)
        })
    }

    /// Packs the page in a slot, which is free then, if that makes it much smaller; whether it does.
    fn pack(&mut self, slot: usize) -> bool {
        let page = self.slots[slot].page;
        let entries = self.entries(slot);
        let number = self.packed.add(page, &entries);
        number.into_iter().for_each(|number| self.numbers[page as usize] = number as u32 | PACKED);
        number.is_some()
    }

    /// Removes a free slot, which the last one replaces. Returns the number of `other` then, another free slot.
    fn remove_slot(&mut self, slot: usize, other: usize) -> usize {
        let last = self.slots.len() - 1;
        let entries = self.entries(last);
        self.slots.swap_remove(slot);
        if self.tables.len() > self.slots.len().div_ceil(PAGES) + 1 {
            self.tables.pop();
        }
        if slot == last {
            return other;
        }
        // Its new tables may have no shapes yet.
        self.slots[slot].shaped = false;
        entries.into_iter().enumerate().for_each(|(index, place)| self.put(slot, index, place));
        if other == last {
            return slot;
        }
        self.numbers[self.slots[slot].page as usize] = slot as u32 + 1;
        other
    }

    /// Gives a packed page a slot, so that it can be changed, as [`PagedMap::insert`]; whether it was packed.
    pub fn unpack(&mut self, page: u32) -> bool {
        let Some(number) = self.number_packed(page) else { return false };
        let entries = self.packed.entries(number);
        self.remove_packed(page, number);
        self.insert(page, entries.into_iter());
        true
    }

    fn remove_packed(&mut self, page: u32, number: usize) {
        self.numbers[page as usize] = 0;
        if let Some(Renumbered { page, number }) = self.packed.remove(number) {
            self.numbers[page as usize] = number as u32 | PACKED;
        }
    }

    /// Whether the page in a slot cannot be evicted.
    fn must_stay(&self, slot: usize) -> bool {
        self.is_changed(slot) || self.is_frozen(slot) || self.slots[slot].pins > 0
    }

    /// Keeps a page in memory until [`PagedMap::unpin`], if it is there; whether it is.
    pub fn pin(&mut self, page: u32) -> bool {
        let slot = self.slot(page);
        slot.into_iter().for_each(|slot| self.slots[slot].pins += 1);
        slot.is_some()
    }

    /// Ends a [`PagedMap::pin`].
    pub fn unpin(&mut self, page: u32) {
        let slot = self.slot_of(page).filter(|slot| self.slots[*slot].pins > 0);
        assert!(slot.is_some(), "page {page} of the map was not kept in memory");
        slot.into_iter().for_each(|slot| self.slots[slot].pins -= 1);
    }

    /// Marks a page in memory as changed, so that the next checkpoint writes it to a new place.
    pub fn touch(&mut self, page: u32) {
        if let Some(slot) = self.slot(page) {
            self.change(slot);
        }
    }

    /// Takes the changed pages that have no place in the next checkpoint yet; the caller has to assign the places.
    pub fn take_unlaid(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.unlaid)
    }

    /// Freezes the changed pages at the cut of a checkpoint; returns those that have no place in it yet. Until
    /// [`PagedMap::thaw`] frozen pages stay in memory, and their present entries are preserved if they are changed.
    /// They count as unchanged from now on.
    pub fn freeze(&mut self) -> Vec<u32> {
        let copies = self.at_cut.len();
        assert!(
            self.frozen == 0 && copies == 0,
            "a cut while pages and {copies} copies of interval {} are being written",
            self.frozen
        );
        self.frozen = self.interval;
        self.interval += 1;
        self.only_frozen = std::mem::take(&mut self.changed);
        self.take_unlaid()
    }

    /// Entries of a frozen page, as they were at the cut.
    pub fn frozen(&self, page: u32) -> impl Iterator<Item = Address> {
        let (at_cut, slot) = (self.at_cut.get(&page), self.slot_of(page));
        let is_frozen = slot.is_some_and(|slot| self.is_frozen(slot));
        assert!(
            is_frozen,
            "page {page} of the map, in slot {slot:?}, is written as of a cut that it is not in"
        );
        let slot = slot.unwrap_or(0);
        (0..FANOUT as usize).map(move |index| match at_cut {
            Some(table) => table[index],
            None => self.entry(slot, index),
        })
    }

    /// Sets the place of a page in the directory; returns the previous one.
    pub fn lay(&mut self, page: u32, place: Address) -> Address {
        work(1);
        let before = std::mem::replace(&mut self.directory[page as usize], place);
        self.written = self.written + (place != 0) as usize - (before != 0) as usize;
        before
    }

    /// Ends the freeze: everything that was frozen is on the device. Returns the entries at the cut of pages that were
    /// changed after it, which take time to drop.
    pub fn thaw(&mut self) -> BTreeMap<u32, Box<[Address]>> {
        (self.frozen, self.only_frozen) = (0, 0);
        std::mem::take(&mut self.at_cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::mem::replace;

    const BLOCKS: u64 = 9 * FANOUT + 5;

    /// Pages on the device, as the last checkpoint has left them, and pages that have places in the next one.
    #[derive(Default)]
    struct Device(BTreeMap<Address, Vec<Address>>, Vec<u32>);

    impl Device {
        /// The pages of a checkpoint get their places; their entries are written by [`Device::write`].
        fn cut(&mut self, map: &mut PagedMap) -> Vec<u32> {
            let pages = map.freeze();
            self.lay(map, pages);
            std::mem::take(&mut self.1)
        }

        fn lay(&mut self, map: &mut PagedMap, pages: Vec<u32>) {
            for page in &pages {
                let place = self.0.len() as Address + 1;
                self.0.insert(place, Vec::new());
                map.lay(*page, place);
            }
            self.1.extend(pages);
        }

        fn write(&mut self, map: &mut PagedMap, pages: &[u32]) {
            for page in pages {
                self.0.insert(map.place(*page), map.frozen(*page).collect());
            }
            map.thaw();
        }

        fn hold(&mut self, map: &mut PagedMap, block: u64) {
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
    fn places() -> impl Strategy<Value = Address> {
        let shapes = prop_oneof![3 => Just(0), 1 => any::<u16>()];
        (0..1u32 << 20, shapes).prop_map(|(block, shape)| address::shaped(block, shape))
    }

    proptest! {
        /// Whichever pages are evicted, packed and read again, a map in pages equals a flat one; and a checkpoint writes
        /// the entries of the cut.
        #[test]
        fn paged_map_equals_flat_map_with_evictions(
            budget in 2..7usize, steps in prop::collection::vec((0..BLOCKS, places(), 0..14u8), 1..300)
        ) {
            let mut flat = vec![0; BLOCKS as usize];
            let mut paged = PagedMap::new(BLOCKS, vec![0; 10], (budget, 3));
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
                    1 => {
                        // Before the cut; later changes may add others.
                        let pages = paged.take_unlaid();
                        device.lay(&mut paged, pages);
                    }
                    // A page that cannot be packed.
                    12 => {
                        device.hold(&mut paged, block);
                        for block in (block - block % FANOUT..BLOCKS).take(FANOUT as usize).step_by(2) {
                            prop_assert_eq!(paged.set(block, place), Some(replace(&mut flat[block as usize], place)));
                        }
                    }
                    2..6 => {
                        device.hold(&mut paged, block);
                        prop_assert_eq!(paged.get(block), Some(flat[block as usize]));
                    }
                    _ => {
                        device.hold(&mut paged, block);
                        prop_assert_eq!(paged.set(block, place), Some(replace(&mut flat[block as usize], place)));
                    }
                }
                let pinned = (0..paged.slots.len()).filter(|at| paged.is_changed(*at) || paged.is_frozen(*at)).count();
                prop_assert_eq!(paged.changed + paged.only_frozen, pinned);
                prop_assert!(paged.slots.len() <= paged.most.max(pinned) && paged.most < budget.max(3));
                prop_assert!(paged.bytes() <= budget.max(pinned) as u64 * PAGE_BYTES);
                for page in 0..10 {
                    let number = paged.slot_of(page);
                    prop_assert!(number.is_none_or(|slot| paged.slots[slot].page == page));
                    let entries = flat[page as usize * FANOUT as usize..].iter().take(FANOUT as usize);
                    let equals = |copy: Vec<Address>| copy.iter().zip(entries).all(|(copy, entry)| copy == entry);
                    prop_assert_eq!(paged.copy(page).map(equals), paged.is_known(page).then_some(true));
                    prop_assert!(number.is_some() || paged.number_packed(page).is_none_or(|number| paged.packed.is(number, page)));
                }
                let here = paged.numbers.iter().filter(|number| **number > 0).count();
                prop_assert_eq!(here, paged.in_memory());
            }
        }
    }
}
