//! Braid-ZNS (§III): no unit ever crosses a flash page.
//!
//! Groups are placed one behind the other, each in the order that [`super::select`] chooses. A flash page is programmed
//! when it is closed, which is when the next unit does not fit: by bytes, or because the page has four units already,
//! the most for which there are out-of-band bytes. The open page, and the last group until its pages are programmed,
//! are kept in the buffer, so that they survive a power cut that spoils their pages on flash.
//!
//! Nine out-of-band bytes of a page, besides those of each block: four CPSZ of two bytes, and a CPSH. At most one group
//! begins in a page, for it has only four units.
//!
//! | bits of a CPSH | |
//! |---|---|
//! | 0–4 | the order of the group that begins here: 0 to 23 if it was braided, 31 if it was compacted |
//! | 5–6 | units in the page that come before it |
//! | 7 | 1 if a group begins here |
//!
//! The starts of groups are kept in memory, and can be recovered from the CPSH of all pages alone.

use super::{
    Choice, FlashPage, GROUP, Pages, Piece, ReadUnit, Space, Unit, ZoneLayout,
    select::{Fill, best_order, orders},
};
use std::rc::Rc;

const BEGINS: u8 = 0x80;
const COMPACTED: u8 = 31;

/// The start of a group: a page, and a unit in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    page: usize,
    unit: usize,
}

/// A zone.
#[derive(Clone)]
pub(super) struct BraidZone {
    choice: Choice,
    /// Programmed pages.
    pages: Pages,
    /// The open page behind them, in the buffer; without units if there is none.
    open: FlashPage,
    /// The starts of groups.
    places: Vec<Place>,
    units: u64,
    last: Option<Last>,
    /// For [`ZoneLayout::space`].
    space: Space,
}

/// The buffered copy of the group that was placed last.
#[derive(Clone)]
struct Last {
    group: Rc<Vec<Unit>>,
    /// The state before it: number of programmed pages, and the open page.
    pages: usize,
    open: FlashPage,
    space: Space,
}

impl BraidZone {
    pub fn new(choice: Choice) -> BraidZone {
        let (pages, places) = (Vec::new(), Vec::new());
        let (open, space) = (FlashPage::default(), Space::default());
        BraidZone { choice, pages, open, places, units: 0, last: None, space }
    }

    fn page(&self, index: usize) -> Option<&FlashPage> {
        match self.pages.get(index) {
            Some(page) => Some(page),
            None => (index == self.pages.len()).then_some(&self.open),
        }
    }

    /// Places a unit; returns its place.
    fn place(&mut self, unit: &Unit) -> Place {
        if !self.open.fits(unit.bytes.len()) {
            self.pages.push(std::mem::take(&mut self.open).into());
        }
        let place = Place { page: self.pages.len(), unit: self.open.units() };
        self.open.push(unit);
        place
    }

    /// The starts of groups, by out-of-band bytes alone.
    fn scan<'p>(pages: impl Iterator<Item = &'p FlashPage>) -> Vec<Place> {
        let begins = pages.enumerate().filter(|(_, page)| page.cpsh & BEGINS > 0);
        begins.map(|(number, page)| Place { page: number, unit: (page.cpsh >> 5 & 3) as usize }).collect()
    }

    /// Removes the last group and restores the state before it.
    fn undo(&mut self) -> Option<Rc<Vec<Unit>>> {
        let last = self.last.take()?;
        self.pages.truncate(last.pages);
        self.open = last.open;
        self.places = BraidZone::scan(self.pages.iter().map(|page| &**page).chain([&self.open]));
        self.units -= last.group.len() as u64;
        self.space = last.space;
        Some(last.group)
    }
}

/// The order of a group with this CPSH.
fn order_of(cpsh: u8) -> [usize; GROUP] {
    orders().nth((cpsh & 31) as usize).unwrap_or([0, 1, 2, 3])
}

impl ZoneLayout for BraidZone {
    fn push(&mut self, group: Vec<Unit>) {
        let sizes: Vec<usize> = group.iter().map(|unit| unit.bytes.len()).collect();
        let fill = Fill { pages: 0, bytes: self.open.data.len(), units: self.open.units() };
        let braids = self.choice.braids(&sizes);
        let code = if braids { best_order(&sizes, fill) as u8 } else { COMPACTED };
        let (pages, open, space) = (self.pages.len(), self.open.clone(), self.space);
        for (nth, unit) in order_of(code).into_iter().filter(|unit| *unit < group.len()).enumerate() {
            let place = self.place(&group[unit]);
            if nth == 0 {
                self.open.cpsh = BEGINS | (place.unit as u8) << 5 | code;
                self.places.push(place);
            }
        }
        *(if braids { &mut self.space.braided } else { &mut self.space.compacted }) += 1;
        self.space.bytes += sizes.iter().sum::<usize>() as u64;
        self.units += group.len() as u64;
        self.last = Some(Last { group: group.into(), pages, open, space });
    }

    fn units(&self) -> u64 {
        self.units
    }

    /// Includes the open page.
    fn flash_pages(&self) -> u64 {
        (self.pages.len() + (self.open.units() > 0) as usize) as u64
    }

    /// In the worst case each begins a page.
    fn most(&self, units: u64) -> u64 {
        self.flash_pages() + units
    }

    fn unit(&self, index: u64) -> Option<ReadUnit> {
        if index >= self.units {
            return None;
        }
        let Place { mut page, mut unit } = *self.places.get(index as usize / GROUP)?;
        let order = order_of(self.page(page)?.cpsh);
        let nth = order.iter().position(|unit| *unit == index as usize % GROUP)?;
        for _ in 0..nth {
            unit += 1;
            if unit == self.page(page)?.units() {
                (page, unit) = (page + 1, 0);
            }
        }
        let (programmed, unit) = (page < self.pages.len(), self.page(page)?.unit(unit)?);
        let piece = Piece { page: page as u64, bytes: unit.bytes.len() as u64 };
        Some(ReadUnit { unit, pieces: programmed.then_some(piece).into_iter().collect() })
    }

    fn take_from(&mut self, index: u64) -> Vec<Unit> {
        let units: Vec<Unit> = (index..self.units).filter_map(|index| Some(self.unit(index)?.unit)).collect();
        // The units before are placed again: taking back follows placing closely, or is due to a fault.
        let before: Vec<Unit> = (0..index).filter_map(|index| Some(self.unit(index)?.unit)).collect();
        *self = BraidZone::new(self.choice);
        before.chunks(GROUP).for_each(|group| self.push(group.to_vec()));
        units
    }

    /// Some pages of the last group may have been programmed, and one is spoilt: none of them is trusted. The group is
    /// placed again, from the buffer, behind the state before it.
    fn cut(&mut self) {
        if let Some(group) = self.undo() {
            self.push(Rc::unwrap_or_clone(group));
        }
    }

    fn space(&self) -> Space {
        Space { pages: self.units, flash_pages: self.flash_pages(), ..self.space }
    }

    fn copy(&self) -> Box<dyn ZoneLayout> {
        Box::new(self.clone())
    }
}
