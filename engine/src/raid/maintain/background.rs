//! The present work of a rebuild or a replacement; one of either runs at a time.

use crate::{raid::seat::Seat, zone::ZoneIndex};
use std::{
    cell::{Cell, RefCell},
    ops::Range,
};

#[derive(Default)]
pub struct BackgroundJob {
    runs: Cell<bool>,
    /// The work is a copy of a member, which can be cancelled.
    copies: Cell<bool>,
    /// The work has been cancelled.
    cancelled: Cell<bool>,
    /// The drive that is filled.
    seat: Cell<Option<Seat>>,
    /// The zone that the work is in, and whether another operation needs that zone.
    zone: Cell<Option<ZoneIndex>>,
    stop: Cell<bool>,
    /// Zones that are being cleared on members that lack their part.
    clearing: RefCell<Vec<ZoneIndex>>,
}

impl BackgroundJob {
    /// Begins; `false` if there is one under way already.
    pub fn begin(&self) -> bool {
        let begins = !self.runs.replace(true);
        if begins {
            self.cancelled.set(false);
        }
        begins
    }

    /// As [`BackgroundJob::begin`], for a copy of a member.
    pub fn begin_copy(&self) -> bool {
        let begins = self.begin();
        self.copies.set(self.copies.get() || begins);
        begins
    }

    /// Cancels the copy that is under way; `false` if there is none.
    pub fn cancel_copy(&self) -> bool {
        self.cancelled.set(self.cancelled.get() || self.copies.get());
        self.copies.get()
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub fn is_under_way(&self) -> bool {
        self.runs.get()
    }

    pub fn end(&self) {
        self.runs.set(false);
        self.copies.set(false);
        self.seat.set(None);
        self.zone.set(None);
    }

    pub fn work_on(&self, seat: Seat) {
        assert!(self.runs.get(), "member {} is filled, and no work runs", seat.member);
        self.seat.set(Some(seat));
    }

    /// The drive that is filled.
    pub fn seat(&self) -> Option<Seat> {
        self.seat.get()
    }

    pub fn enter(&self, zone: ZoneIndex) {
        assert!(self.runs.get() && self.zone.get().is_none(), "work on zone {} begins", zone.0);
        self.zone.set(Some(zone));
        self.stop.set(false);
    }

    pub fn leave(&self) {
        self.zone.set(None);
    }

    pub fn is_in(&self, zone: ZoneIndex) -> bool {
        self.zone.get() == Some(zone)
    }

    /// Asks the work to leave zones; `false` if there is no work in any of them.
    pub fn stop(&self, zones: &Range<u32>) -> bool {
        let is_among = self.zone.get().is_some_and(|zone| zones.contains(&zone.0));
        if is_among {
            self.stop.set(true);
        }
        is_among || self.clearing.borrow().iter().any(|zone| zones.contains(&zone.0))
    }

    /// Whether the work has to leave its zone.
    pub fn is_stopped(&self) -> bool {
        self.stop.get()
    }

    pub fn is_clearing(&self, zone: ZoneIndex) -> bool {
        self.clearing.borrow().contains(&zone)
    }

    pub fn begin_clearing(&self, zone: ZoneIndex) {
        let mut clearing = self.clearing.borrow_mut();
        assert!(!clearing.contains(&zone), "zone {} is cleared twice", zone.0);
        clearing.push(zone);
    }

    pub fn end_clearing(&self, zone: ZoneIndex) {
        let mut clearing = self.clearing.borrow_mut();
        if let Some(index) = clearing.iter().position(|other| *other == zone) {
            clearing.swap_remove(index);
        }
    }
}
