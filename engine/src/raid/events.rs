//! Events of an array, as values: the last ones, numbered.
//!
//! An event is recorded where it is decided, without an `.await` in between. Reads and writes that succeed are no
//! events, so that they cost nothing. A client requests the events from a number on, the first that it has not read:
//! so it gets all events that are kept, and the number of those that were dropped before it read them.
#![allow(missing_docs, reason = "the messages say what the variants and their values are")]

use crate::{
    device::DeviceError,
    raid::{
        error::{ArrayError, NoPart, NoReplacement, Note},
        policy::zrwa::Refusal,
    },
};
use std::{cell::RefCell, collections::VecDeque};
use thiserror::Error;

/// Most events that are kept: as many as a large drive has zones, all of which it may lack.
const MOST_EVENTS: usize = 1024;

/// An event of an array. Its message has no full stop.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Event {
    /// A member is out from now on, or was found to be out.
    #[error("member {member} is out: {why}")]
    Out { member: usize, why: Note },
    /// An absent member is active again.
    #[error("member {member} is back: {why}")]
    Back { member: usize, why: Note },
    /// A member continues without its part of a zone, since a command failed there.
    #[error("member {member} lacks zone {zone}: {what}: {error}")]
    PartLost { member: usize, zone: u32, what: &'static str, error: DeviceError },
    /// Recovery has found that a member does not hold its part of a zone.
    #[error("member {member} lacks zone {zone}: found at assembly")]
    PartLacking { member: usize, zone: u32 },
    /// The burned blocks of a member's part of a zone take more room than its log has.
    #[error("member {member} lacks zone {zone}: too many of its blocks were relocated after power cuts")]
    PartDisplaced { member: usize, zone: u32 },
    #[error("zone {zone} is offline: {why}")]
    ZoneOffline { zone: u32, why: Refusal },
    /// A zone that was being written lacks more parts than parity makes up for.
    #[error("zone {zone} has failed")]
    ZoneFailed { zone: u32 },
    /// More members are out than parity makes up for.
    #[error("the array has failed")]
    ArrayFailed,
    /// Another process has written to the metadata logs of members.
    #[error("another host has assembled this array: it is fenced here, and writes nothing more")]
    Fenced,
    /// The logs of all remaining members have the present membership (bits), with the superblock of this event.
    #[error("the membership is recorded on all remaining members, as event {event}")]
    Settled { event: u64, active: u32 },
    /// A drive has been attached in a vacant place, and is to be rebuilt.
    #[error("{drive} has been attached as member {member}, and will be rebuilt")]
    Attached { member: usize, drive: String },
    /// A drive has taken over from another one.
    #[error("{drive} has taken over as member {member}")]
    Replaced { member: usize, drive: String },
    #[error(transparent)]
    NotReplaced(NoReplacement),
    /// A member's part of a zone is in a spare zone of its drive from now on, and is to be rebuilt there.
    #[error("zone {zone} of member {member} is worn: spare zone {place} of its drive replaces it")]
    Moved { member: usize, zone: u32, place: u32 },
    #[error("a rebuild has begun")]
    RebuildBegun,
    /// A member's part of a zone that could not be rebuilt.
    #[error("zone {zone} of member {member} was left out: {why}")]
    LeftOut { member: usize, zone: u32, why: NoPart },
    /// Blocks that a rebuild could not decode; `from` counts from the start of the zone.
    #[error("{blocks} blocks of zone {zone} are lost, from block {from} on")]
    BlocksLost { zone: u32, from: u64, blocks: u64 },
    /// A block that the drive could not read, or returned wrong, is in the log of the member from now on; `at` counts
    /// from the start of the member's part of the zone.
    #[error("block {at} of zone {zone} of member {member} was repaired")]
    Repaired { member: usize, zone: u32, at: u64 },
    /// After a crash, blocks whose checksums were lost contradict the parity of their stripe, at as many offsets; which of
    /// them are wrong is not known.
    #[error("blocks at {offsets} offsets of zone {zone} contradict their parity, and cannot be read")]
    Contradicts { zone: u32, offsets: u64 },
    #[error("the rebuild has ended: {bytes} bytes")]
    RebuildEnded { bytes: u64 },
    #[error("the rebuild has stopped: {0}")]
    RebuildStopped(ArrayError),
}

impl Event {
    /// The member that the event is about, if it is about one.
    pub fn member(&self) -> Option<usize> {
        match self {
            Event::Out { member, .. }
            | Event::Back { member, .. }
            | Event::PartLost { member, .. }
            | Event::PartLacking { member, .. }
            | Event::PartDisplaced { member, .. }
            | Event::Attached { member, .. }
            | Event::Replaced { member, .. }
            | Event::Moved { member, .. }
            | Event::LeftOut { member, .. }
            | Event::Repaired { member, .. }
            | Event::NotReplaced(NoReplacement::Failed { member, .. }) => Some(*member),
            _ => None,
        }
    }

    /// The zone that the event is about, if it is about one.
    pub fn zone(&self) -> Option<u32> {
        match self {
            Event::PartLost { zone, .. }
            | Event::PartLacking { zone, .. }
            | Event::PartDisplaced { zone, .. }
            | Event::ZoneOffline { zone, .. }
            | Event::ZoneFailed { zone }
            | Event::Moved { zone, .. }
            | Event::LeftOut { zone, .. }
            | Event::Contradicts { zone, .. }
            | Event::Repaired { zone, .. }
            | Event::BlocksLost { zone, .. } => Some(*zone),
            _ => None,
        }
    }

    /// The member that has lost data according to the event: it is out, or lacks a part of a zone.
    pub fn accused(&self) -> Option<usize> {
        match self {
            Event::Out { member, .. }
            | Event::PartLost { member, .. }
            | Event::PartLacking { member, .. } => Some(*member),
            _ => None,
        }
    }
}

/// Events from some number on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventList {
    /// How many of the requested events have been dropped.
    pub dropped: u64,
    /// Number of the first one of `events`.
    pub first: u64,
    pub events: Vec<Event>,
}

impl EventList {
    /// The number of the next event.
    pub fn next(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}

/// The last events, numbered from 0.
#[derive(Default)]
pub struct Events(RefCell<Ring>);

#[derive(Default)]
struct Ring {
    /// Number of events that were dropped, and so the number of the oldest one that is kept.
    first: u64,
    kept: VecDeque<Event>,
}

impl Ring {
    fn note(&mut self, event: Event) {
        if self.kept.len() == MOST_EVENTS {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(event);
        assert!(self.kept.len() <= MOST_EVENTS, "{} events are kept", self.kept.len());
    }
}

impl Events {
    pub fn note(&self, event: Event) {
        self.0.borrow_mut().note(event);
    }

    /// Events from number `since` on.
    pub fn since(&self, since: u64) -> EventList {
        let ring = self.0.borrow();
        let skipped = since.saturating_sub(ring.first).min(ring.kept.len() as u64);
        EventList {
            dropped: ring.first.saturating_sub(since),
            first: ring.first + skipped,
            events: ring.kept.iter().skip(skipped as usize).cloned().collect(),
        }
    }

    /// Puts the events of `before` in front of the present ones, which are renumbered.
    pub fn follow(&self, before: &Events) {
        let mut own = self.0.borrow_mut();
        let before = before.0.borrow();
        let mut all = Ring { first: before.first, kept: before.kept.clone() };
        own.kept.drain(..).for_each(|event| all.note(event));
        *own = all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(noted: &EventList) -> Vec<u32> {
        let zone = |event: &Event| match event {
            Event::ZoneFailed { zone } => *zone,
            other => unreachable!("{other}"),
        };
        noted.events.iter().map(zone).collect()
    }

    #[test]
    fn events_since_reports_all_and_counts_dropped() {
        let events = Events::default();
        assert_eq!(events.since(0), EventList { dropped: 0, first: 0, events: Vec::new() });
        (0..3).for_each(|zone| events.note(Event::ZoneFailed { zone }));
        let noted = events.since(1);
        assert_eq!((noted.dropped, noted.first, noted.next(), zones(&noted)), (0, 1, 3, vec![1, 2]));
        assert_eq!(events.since(3).events, []);
        let most = MOST_EVENTS as u32;
        (3..most + 5).for_each(|zone| events.note(Event::ZoneFailed { zone }));
        let noted = events.since(3);
        assert_eq!((noted.dropped, noted.first, noted.next()), (2, 5, most as u64 + 5));
        assert_eq!(zones(&noted), (5..most + 5).collect::<Vec<_>>());
    }

    #[test]
    fn events_continue_numbering_after_deferred_array_commits() {
        let (before, events) = (Events::default(), Events::default());
        (0..4).for_each(|zone| before.note(Event::ZoneFailed { zone }));
        (4..6).for_each(|zone| events.note(Event::ZoneFailed { zone }));
        events.follow(&before);
        let noted = events.since(3);
        assert_eq!((noted.first, noted.next(), zones(&noted)), (3, 6, vec![3, 4, 5]));
    }
}
