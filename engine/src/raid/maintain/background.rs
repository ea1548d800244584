//! State of the background job: a rebuild or a replacement, of which only one runs at a time.

use crate::{raid::seat::Seat, zone::ZoneIndex};
use std::{
    cell::{Cell, RefCell},
    ops::Range,
};

#[derive(Default)]
pub struct BackgroundJob {
    runs: Cell<bool>,
    /// The job is a replacement, which can be cancelled while it copies.
    copies: Cell<bool>,
    /// The job has been cancelled.
    cancelled: Cell<bool>,
    /// The future that waits for the job was dropped: the job is to end.
    given_up: Cell<bool>,
    /// The member whose parts are rebuilt, or which is copied.
    seat: Cell<Option<Seat>>,
    /// The zone that the job works on, and whether another operation needs that zone.
    zone: Cell<Option<ZoneIndex>>,
    stop: Cell<bool>,
    /// Zones that are being cleared on members that lack their part.
    clearing: RefCell<Vec<ZoneIndex>>,
    /// Zones of which blocks are being repaired.
    held: RefCell<Vec<ZoneIndex>>,
    takes_no_holds: Cell<bool>,
}

impl BackgroundJob {
    /// Begins a job; `false` if one is running already.
    pub fn begin(&self) -> bool {
        let begins = !self.runs.replace(true);
        if begins {
            self.cancelled.set(false);
        }
        begins
    }

    /// As [`BackgroundJob::begin`], for a replacement.
    pub fn begin_copy(&self) -> bool {
        let begins = self.begin();
        self.copies.set(self.copies.get() || begins);
        begins
    }

    /// Whether the job is a replacement.
    pub fn is_copying(&self) -> bool {
        self.copies.get()
    }

    /// Cancels the running replacement; `false` if there is none, or if it was given up.
    pub fn cancel_copy(&self) -> bool {
        let copies = self.is_copying() && !self.given_up.get();
        self.cancelled.set(self.cancelled.get() || copies);
        copies
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// Tells the running job to end, since the future that waits for it was dropped.
    pub fn give_up(&self) {
        assert!(self.runs.get(), "a background job is given up, and none is running");
        self.given_up.set(true);
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.get()
    }

    pub fn is_under_way(&self) -> bool {
        self.runs.get()
    }

    pub fn end(&self) {
        self.runs.set(false);
        self.copies.set(false);
        self.given_up.set(false);
        self.seat.set(None);
        self.zone.set(None);
    }

    pub fn work_on(&self, seat: Seat) {
        assert!(self.runs.get(), "member {} is worked on, and no background job runs", seat.member);
        self.seat.set(Some(seat));
    }

    /// The member whose parts are rebuilt, or which is copied.
    pub fn seat(&self) -> Option<Seat> {
        self.seat.get()
    }

    pub fn enter(&self, zone: ZoneIndex) {
        assert!(self.runs.get() && self.zone.get().is_none(), "no idle job enters zone {}", zone.0);
        self.zone.set(Some(zone));
        self.stop.set(false);
    }

    pub fn leave(&self) {
        self.zone.set(None);
    }

    pub fn is_in(&self, zone: ZoneIndex) -> bool {
        self.zone.get() == Some(zone)
    }

    /// Makes the job leave `zones`; `false` if neither the job nor a clearing or repair is in any of them.
    pub fn stop(&self, zones: &Range<u32>) -> bool {
        let is_among = self.zone.get().is_some_and(|zone| zones.contains(&zone.0));
        if is_among {
            self.stop.set(true);
        }
        let is_used =
            |used: &RefCell<Vec<ZoneIndex>>| used.borrow().iter().any(|zone| zones.contains(&zone.0));
        is_among || is_used(&self.clearing) || is_used(&self.held)
    }

    /// Whether the job has to leave its zone.
    pub fn is_stopped(&self) -> bool {
        self.stop.get() || self.given_up.get()
    }

    pub fn hold(&self, zone: ZoneIndex) {
        self.held.borrow_mut().push(zone);
    }

    pub fn release(&self, zone: ZoneIndex) {
        remove(&self.held, zone);
    }

    /// No zone is held from now on.
    pub fn take_no_holds(&self) {
        self.takes_no_holds.set(true);
    }

    pub fn takes_no_holds(&self) -> bool {
        self.takes_no_holds.get()
    }

    pub fn is_any_held(&self) -> bool {
        !self.held.borrow().is_empty()
    }

    pub fn is_held(&self, zone: ZoneIndex) -> bool {
        self.held.borrow().contains(&zone)
    }

    pub fn is_clearing(&self, zone: ZoneIndex) -> bool {
        self.clearing.borrow().contains(&zone)
    }

    pub fn begin_clearing(&self, zone: ZoneIndex) {
        let mut clearing = self.clearing.borrow_mut();
        assert!(!clearing.contains(&zone), "zone {} is being cleared already", zone.0);
        clearing.push(zone);
    }

    pub fn end_clearing(&self, zone: ZoneIndex) {
        remove(&self.clearing, zone);
    }
}

/// Removes one entry for `zone`, if there is one.
fn remove(zones: &RefCell<Vec<ZoneIndex>>, zone: ZoneIndex) {
    let mut zones = zones.borrow_mut();
    if let Some(index) = zones.iter().position(|other| *other == zone) {
        zones.swap_remove(index);
    }
}
