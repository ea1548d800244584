//! What a rebuild or a replacement works on; there is one of either at a time.

use crate::{raid::seat::Seat, zone::ZoneIndex};
use std::{
    cell::{Cell, RefCell},
    ops::Range,
};

#[derive(Default)]
pub struct Duty {
    runs: Cell<bool>,
    /// It has been called off.
    cancelled: Cell<bool>,
    /// The drive that it works on.
    seat: Cell<Option<Seat>>,
    /// The zone that it is in, and whether somebody wants that left alone.
    zone: Cell<Option<ZoneIndex>>,
    stop: Cell<bool>,
    /// Zones of which a member that lacks them gives up what it holds.
    clearing: RefCell<Vec<ZoneIndex>>,
}

impl Duty {
    /// Begins; `false` if there is one under way already.
    pub fn begin(&self) -> bool {
        let begins = !self.runs.replace(true);
        if begins {
            self.cancelled.set(false);
        }
        begins
    }

    /// Calls off what is under way.
    pub fn cancel(&self) {
        self.cancelled.set(true);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub fn is_under_way(&self) -> bool {
        self.runs.get()
    }

    pub fn end(&self) {
        self.runs.set(false);
        self.seat.set(None);
        self.zone.set(None);
    }

    pub fn work_on(&self, seat: Seat) {
        self.seat.set(Some(seat));
    }

    /// The drive that is filled.
    pub fn seat(&self) -> Option<Seat> {
        self.seat.get()
    }

    pub fn enter(&self, zone: ZoneIndex) {
        self.zone.set(Some(zone));
        self.stop.set(false);
    }

    pub fn leave(&self) {
        self.zone.set(None);
    }

    pub fn is_in(&self, zone: ZoneIndex) -> bool {
        self.zone.get() == Some(zone)
    }

    /// Asks for zones to be left alone; `false` if nothing is done in any of them.
    pub fn stop(&self, zones: &Range<u32>) -> bool {
        let is_among = self.zone.get().is_some_and(|zone| zones.contains(&zone.0));
        if is_among {
            self.stop.set(true);
        }
        is_among || self.clearing.borrow().iter().any(|zone| zones.contains(&zone.0))
    }

    /// Whether the zone is to be left alone.
    pub fn is_stopped(&self) -> bool {
        self.stop.get()
    }

    pub fn is_clearing(&self, zone: ZoneIndex) -> bool {
        self.clearing.borrow().contains(&zone)
    }

    pub fn begin_clearing(&self, zone: ZoneIndex) {
        self.clearing.borrow_mut().push(zone);
    }

    pub fn end_clearing(&self, zone: ZoneIndex) {
        let mut clearing = self.clearing.borrow_mut();
        if let Some(index) = clearing.iter().position(|other| *other == zone) {
            clearing.swap_remove(index);
        }
    }
}
