//! Pages of the map in little memory, as runs: entries that are equal, or of which each is the next place.
//!
//! Data that was written in order, or in large pieces, has few runs: a page of a sequential write takes a thirtieth of
//! [`PAGE_BYTES`], one of random writes of 64 KiB a tenth. A packed page is not changed in place; [`super::map`] unpacks it
//! first.

use crate::{
    runtime::work,
    volume::{address::Address, format::FANOUT},
};

/// Memory of a page of the map that is not packed, in bytes.
pub const PAGE_BYTES: u64 = 6 * FANOUT;

/// Memory of a packed page beside its runs, in bytes: the record of the page, and what the allocator adds.
const RECORD_BYTES: usize = 48;

/// Most runs of a packed page, which takes three quarters of [`PAGE_BYTES`] then.
const MOST_RUNS: usize = ((PAGE_BYTES / 4 * 3) as usize - RECORD_BYTES) / size_of::<PlaceRun>();

/// Equal or consecutive entries, in 64 bits: the place of the first in bits 0 to 47, its index in the page in bits 48 to
/// 57, and in bit 58 whether the places are consecutive.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PlaceRun(u64);

const PLACE_BITS: u32 = 48;
const INDEX_BITS: u32 = 10;
const _: () = assert!(FANOUT <= 1 << INDEX_BITS);

impl PlaceRun {
    fn new(index: usize, place: Address) -> PlaceRun {
        assert!(place >> PLACE_BITS == 0, "place {place:#x} has more than {PLACE_BITS} bits");
        PlaceRun(place | (index as u64) << PLACE_BITS)
    }

    fn first(self) -> usize {
        (self.0 >> PLACE_BITS) as usize & ((1 << INDEX_BITS) - 1)
    }

    /// How much the place of an entry exceeds that of the one before it: 0 or 1.
    fn step(self) -> u64 {
        self.0 >> (PLACE_BITS + INDEX_BITS)
    }

    /// The place of an entry of the run.
    fn place(self, index: usize) -> Address {
        (self.0 & ((1 << PLACE_BITS) - 1)) + (index - self.first()) as u64 * self.step()
    }

    /// The run with entry `index` behind it, which has `place`; `None` if that begins another run.
    fn with(self, index: usize, place: Address) -> Option<PlaceRun> {
        let is_alone = index == self.first() + 1;
        let other = PlaceRun(self.0 | 1 << (PLACE_BITS + INDEX_BITS));
        [self, other].into_iter().find(|run| (is_alone || *run == self) && run.place(index) == place)
    }
}

/// A page as its runs.
struct PackedPage {
    page: u32,
    /// It was used since the clock hand last passed it (second chance).
    used: bool,
    runs: Box<[PlaceRun]>,
}

impl PackedPage {
    fn bytes(&self) -> u64 {
        (RECORD_BYTES + size_of_val(&*self.runs)) as u64
    }

    fn place(&self, index: usize) -> Address {
        self.runs[self.runs.partition_point(|run| run.first() <= index) - 1].place(index)
    }
}

/// Pages of the map, as their runs.
#[derive(Default)]
pub struct PackedPages {
    pages: Vec<PackedPage>,
    /// Memory that they take.
    bytes: u64,
    /// Clock hand: the page that is examined next for removal.
    hand: usize,
    /// The runs of the page that is being packed.
    runs: Vec<PlaceRun>,
}

/// A page that has got another number among the packed ones.
pub struct Renumbered {
    pub page: u32,
    pub number: usize,
}

impl PackedPages {
    /// Adds a page with these entries; returns its number, or `None` if it has too many runs.
    pub fn add(&mut self, page: u32, entries: &[Address]) -> Option<usize> {
        work(FANOUT as u32 / 4);
        let runs = &mut self.runs;
        runs.clear();
        for (index, place) in entries.iter().enumerate() {
            let last = runs.last_mut();
            if let Some((longer, run)) = last.and_then(|run| Some((run.with(index, *place)?, run))) {
                *run = longer;
            } else if runs.len() < MOST_RUNS {
                runs.push(PlaceRun::new(index, *place));
            } else {
                return None;
            }
        }
        let packed = PackedPage { page, used: true, runs: runs.as_slice().into() };
        self.bytes += packed.bytes();
        self.pages.push(packed);
        Some(self.pages.len() - 1)
    }

    /// The place of entry `index` of a page.
    pub fn place(&mut self, number: usize, index: usize) -> Address {
        let packed = &mut self.pages[number];
        packed.used = true;
        packed.place(index)
    }

    /// The entries of a page. Does not count as a use of it.
    pub fn entries(&self, number: usize) -> Vec<Address> {
        (0..FANOUT as usize).map(|index| self.pages[number].place(index)).collect()
    }

    /// Removes a page. The last one gets its number.
    pub fn remove(&mut self, number: usize) -> Option<Renumbered> {
        let removed = self.pages.swap_remove(number);
        self.bytes -= removed.bytes();
        self.pages.get(number).map(|moved| Renumbered { page: moved.page, number })
    }

    /// The page to remove so that the pages take at most `bytes`, and its number: the first from the hand on that was not
    /// used since the hand last passed. `None` if they take no more.
    pub fn victim(&mut self, bytes: u64) -> Option<(u32, usize)> {
        if self.bytes <= bytes {
            return None;
        }
        loop {
            work(1);
            self.hand = if self.hand + 1 < self.pages.len() { self.hand + 1 } else { 0 };
            let packed = &mut self.pages[self.hand];
            if !std::mem::take(&mut packed.used) {
                return Some((packed.page, self.hand));
            }
        }
    }

    /// Memory that the pages take, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the page with this number is `page`.
    #[cfg(test)]
    pub fn is(&self, number: usize, page: u32) -> bool {
        self.pages.get(number).is_some_and(|packed| packed.page == page)
    }

    /// Number of pages.
    pub fn count(&self) -> usize {
        self.pages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::address::HOLE;
    use proptest::prelude::*;

    fn bytes_of(page: &[Address]) -> Option<u64> {
        let mut packed = PackedPages::default();
        packed.add(0, page)?;
        assert!(packed.entries(0) == page);
        Some(packed.bytes())
    }

    #[test]
    fn packed_page_takes_little_memory_for_large_writes() {
        // Groups of so many blocks, a header behind each, at places far from each other.
        let page = |group: u64, distance: u64| -> Vec<Address> {
            (0..FANOUT).map(|index| 1000 + index / group * distance + index % group).collect()
        };
        assert_eq!(bytes_of(&page(64, 65)), Some(136));
        assert_eq!(bytes_of(&page(16, 1000)), Some(384));
        assert_eq!(bytes_of(&page(4, 1000)), Some(48 + 8 * 168));
        assert_eq!(bytes_of(&page(2, 1000)), Some(48 + 8 * 336));
        assert_eq!(bytes_of(&page(1, 1000)), None, "672 runs");
        assert_eq!(bytes_of(&vec![0; FANOUT as usize]), Some(56));
        assert_eq!(bytes_of(&vec![HOLE; FANOUT as usize]), Some(56));
        assert_eq!(bytes_of(&page(FANOUT, 0)), Some(56));
        // Neither continues the run of the two before it: the places of a step of 1, and of 0.
        let mut other = vec![5; FANOUT as usize];
        (other[2], other[3], other[4], other[5]) = (7, 8, 8, 8);
        assert_eq!(bytes_of(&other), Some(48 + 4 * 8));
    }

    #[test]
    fn packed_pages_make_room_for_pages_in_use() {
        let mut packed = PackedPages::default();
        for page in 0..10 {
            assert_eq!(packed.add(page, &[7; FANOUT as usize]), Some(page as usize));
        }
        assert!(packed.victim(560).is_none());
        let mut removed = Vec::new();
        // All have been used once; page 5 is in use.
        while let Some((page, number)) = packed.victim(2 * 56) {
            let moved = packed.remove(number);
            assert!(moved.is_none_or(|moved| packed.is(moved.number, moved.page)));
            let at = (0..packed.count()).find(|number| packed.is(*number, 5));
            packed.place(at.unwrap_or_else(|| panic!("page 5 was removed behind {removed:?}")), 0);
            removed.push(page);
        }
        assert_eq!(removed.len(), 8);
        assert_eq!(packed.bytes(), 2 * 56);
    }

    proptest! {
        /// Entries of any kind: equal ones, consecutive ones, and others.
        #[test]
        fn packed_page_equals_its_entries(
            pieces in prop::collection::vec((0..1u64 << 48, 0..2u64, 1..40usize), 1..100)
        ) {
            let mut page: Vec<Address> = Vec::new();
            for (place, step, count) in pieces {
                page.extend((0..count as u64).map(|index| (place + index * step) & ((1 << 48) - 1)));
            }
            page.resize(FANOUT as usize, 0);
            prop_assert!(bytes_of(&page).is_none_or(|bytes| bytes <= PAGE_BYTES / 4 * 3));
        }
    }
}
