//! Balloon-ZNS (Wang et al., DAC '24), as its abstract and Braid-ZNS describe it: slot-aligned storage, with a slot
//! size that follows the compressibility of the zone; a unit is truncated to its slot, and its rest is stored apart.
//!
//! Decided here: a flash page has one to four slots, for there are out-of-band bytes for four units. The first
//! [`PROFILE`] units of a zone, or a quarter of it, decide the slot size, by a rule of [`Slots`], and are buffered
//! until then. It stays the same until the zone is reset. A logical page is found by its number. Rests are packed one
//! behind the other in pages of their own and do not cross pages, so that a rest costs one more read; their places are
//! kept in memory. With [`Slots::WholeRests`] a rest takes whole slots there, too.

use super::{GROUP, PAGE, Piece, ReadUnit, Slots, Space, Unit, ZoneLayout};
use std::{collections::BTreeMap, ops::Range, rc::Rc};

/// Number of units that decide the slot size of a zone, or a quarter of the zone if that is less.
const PROFILE: u64 = 64;

/// The number of the first page with rests: no zone has as many pages with slots.
const APART: u64 = 1 << 32;

/// A zone.
#[derive(Clone)]
pub(super) struct BalloonZone {
    rule: Slots,
    /// Number of units that decide the slot size.
    profile: usize,
    /// Units that wait for this decision.
    waiting: Vec<Rc<Unit>>,
    /// Slots per page, once decided.
    slots: Option<usize>,
    /// The truncated units, and the rests by index of their unit: ranges in bytes among all rests.
    fitting: Vec<Rc<Unit>>,
    rests: BTreeMap<u64, Range<usize>>,
    /// The pages with rests.
    apart: Vec<u8>,
}

/// The slots per page for units of these sizes; of equally good ones the fewest.
fn slots_for(sizes: &[usize], rule: Slots) -> usize {
    let counts = 1..=GROUP;
    let rest = |size: &usize, slots: usize| size.saturating_sub(PAGE / slots);
    match rule {
        Slots::LeastSpace | Slots::WholeRests => {
            let pages = |slots: &usize| {
                let rests = sizes.iter().map(|size| room(rest(size, *slots), *slots, rule));
                sizes.len().div_ceil(*slots) + rests.fold(0, behind).div_ceil(PAGE)
            };
            counts.min_by_key(pages).unwrap_or(1)
        }
        Slots::Fitting(percent) => {
            let fit = |slots: usize| sizes.iter().filter(|size| rest(size, slots) == 0).count();
            let fits = |slots: &usize| fit(*slots) * 100 >= sizes.len() * percent as usize;
            counts.rev().find(fits).unwrap_or(1)
        }
    }
}

/// Bytes that a rest takes in the pages with rests.
fn room(rest: usize, slots: usize, rule: Slots) -> usize {
    match rule {
        Slots::WholeRests => rest.div_ceil(PAGE / slots) * (PAGE / slots),
        _ => rest,
    }
}

/// End of a rest of this size that is stored at `at` or later: none crosses a page.
fn behind(at: usize, rest: usize) -> usize {
    begin(at, rest) + rest
}

/// Start of a rest of this size that is stored at `at` or later.
fn begin(at: usize, rest: usize) -> usize {
    if at % PAGE + rest > PAGE { at.next_multiple_of(PAGE) } else { at }
}

impl BalloonZone {
    /// A zone of this many logical pages.
    pub fn new(rule: Slots, pages: u64) -> BalloonZone {
        let profile = (pages / 4).clamp(1, PROFILE) as usize;
        let (waiting, fitting, apart) = (Vec::new(), Vec::new(), Vec::new());
        BalloonZone { rule, profile, waiting, slots: None, fitting, rests: BTreeMap::new(), apart }
    }

    /// Pages with slots, and pages with rests.
    fn stored_pages(&self) -> usize {
        self.slots.map_or(0, |slots| self.fitting.len().div_ceil(slots)) + self.apart.len().div_ceil(PAGE)
    }

    /// Decides the slot size if it is undecided, and stores the waiting units.
    fn store(&mut self) {
        let sizes: Vec<usize> = self.waiting.iter().map(|unit| unit.bytes.len()).collect();
        let slots = *self.slots.get_or_insert_with(|| slots_for(&sizes, self.rule));
        for unit in std::mem::take(&mut self.waiting) {
            let mut unit = Rc::unwrap_or_clone(unit);
            let rest = unit.bytes.split_off(unit.bytes.len().min(PAGE / slots));
            if !rest.is_empty() {
                let room = room(rest.len(), slots, self.rule);
                let start = begin(self.apart.len(), room);
                self.apart.resize(start, 0);
                self.rests.insert(self.fitting.len() as u64, start..start + rest.len());
                self.apart.extend(rest);
                self.apart.resize(start + room, 0);
            }
            self.fitting.push(unit.into());
        }
    }
}

impl ZoneLayout for BalloonZone {
    fn push(&mut self, group: Vec<Unit>) {
        self.waiting.extend(group.into_iter().map(Rc::new));
        if self.slots.is_some() || self.waiting.len() >= self.profile {
            self.store();
        }
    }

    fn close(&mut self) {
        self.store();
    }

    fn flash_pages(&self) -> u64 {
        (self.stored_pages() + self.waiting.len()) as u64
    }

    fn units(&self) -> u64 {
        (self.fitting.len() + self.waiting.len()) as u64
    }

    /// A slot, and a page for the rest.
    fn most(&self, units: u64) -> u64 {
        let waiting = self.waiting.len() as u64 + units;
        self.stored_pages() as u64 + if self.slots == Some(1) { waiting } else { 2 * waiting }
    }

    fn unit(&self, index: u64) -> Option<ReadUnit> {
        if let Some(waiting) = (index as usize).checked_sub(self.fitting.len()) {
            return Some(ReadUnit { unit: self.waiting.get(waiting)?.as_ref().clone(), pieces: Vec::new() });
        }
        let mut unit = self.fitting.get(index as usize)?.as_ref().clone();
        let slots = self.slots.unwrap_or(1) as u64;
        let mut pieces = vec![Piece { page: index / slots, bytes: unit.bytes.len() as u64 }];
        if let Some(rest) = self.rests.get(&index) {
            unit.bytes.extend_from_slice(self.apart.get(rest.clone())?);
            pieces.push(Piece { page: APART + (rest.start / PAGE) as u64, bytes: rest.len() as u64 });
        }
        Some(ReadUnit { unit, pieces })
    }

    fn take_from(&mut self, index: u64) -> Vec<Unit> {
        let all: Vec<Unit> = (0..self.units()).filter_map(|index| Some(self.unit(index)?.unit)).collect();
        let slots = self.slots.filter(|_| index > 0);
        *self = BalloonZone { slots, profile: self.profile, ..BalloonZone::new(self.rule, 0) };
        let (before, taken) = all.split_at((index as usize).min(all.len()));
        self.waiting = before.iter().cloned().map(Rc::new).collect();
        if self.slots.is_some() {
            self.store();
        }
        taken.to_vec()
    }

    fn space(&self) -> Space {
        let of = |unit: &Unit| unit.bytes.len() as u64;
        let waiting: u64 = self.waiting.iter().map(|unit| of(unit)).sum();
        let fitting: u64 = self.fitting.iter().map(|unit| of(unit)).sum();
        let rests: usize = self.rests.values().map(Range::len).sum();
        Space {
            pages: self.units(),
            flash_pages: self.flash_pages(),
            bytes: waiting + fitting + rests as u64,
            truncated: self.rests.len() as u64,
            ..Space::default()
        }
    }

    fn copy(&self) -> Box<dyn ZoneLayout> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balloon_slot_count_follows_size_profile() {
        const K: usize = 1024;
        let least = |sizes: &[usize]| slots_for(sizes, Slots::LeastSpace);
        assert_eq!(least(&[4 * K; 64]), 4);
        assert_eq!(least(&[PAGE; 64]), 1, "nothing is truncated for nothing");
        assert_eq!(least(&[8 * K; 64]), 2);
        assert_eq!(least(&[13 * K; 64]), 2, "three rests of 5 KiB share a page");
        assert_eq!(least(&[15 * K; 64]), 1, "two of 7 KiB do, which saves nothing");
        let sizes: Vec<usize> = (0..64).map(|unit| if unit % 8 == 0 { 9 * K } else { 4 * K }).collect();
        assert_eq!(least(&sizes), 4);
        let fitting = |percent| slots_for(&sizes, Slots::Fitting(percent));
        assert_eq!([fitting(50), fitting(87), fitting(88), fitting(100)], [4, 4, 1, 1]);
    }

    #[test]
    fn balloon_whole_slot_rests_choose_more_slots() {
        let whole = |sizes: &[usize]| slots_for(sizes, Slots::WholeRests);
        // In halves a rest of 100 bytes would take another half; in thirds, one of 2.8 KiB takes another third.
        let size = PAGE / 2 + 100;
        assert_eq!((whole(&[size; 64]), slots_for(&[size; 64], Slots::LeastSpace)), (3, 2));
        assert_eq!(whole(&[PAGE / 3; 64]), 3);
        assert_eq!([room(0, 3, Slots::WholeRests), room(1, 3, Slots::WholeRests)], [0, PAGE / 3]);
        assert!(
            (1..=PAGE).all(|rest| (1..=GROUP)
                .all(|slots| { rest > PAGE - PAGE / slots || room(rest, slots, Slots::WholeRests) <= PAGE }))
        );
    }

    #[test]
    fn balloon_rest_crosses_no_page() {
        assert_eq!(
            [begin(0, PAGE), begin(1, PAGE), begin(PAGE - 7, 7), begin(PAGE - 7, 8)],
            [0, PAGE, PAGE - 7, PAGE]
        );
    }
}
