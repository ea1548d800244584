//! The membership of an array, and its changes until all members have them.
//!
//! A change (a member is out, a part of a zone is lost, zones wait for absent members) is made first and *announced*:
//! from then on the membership is pending, and nothing that relies on the change may be acknowledged before it is
//! settled. It is settled when the logs of all remaining members have it; [`super::parts::Raid`] writes the logs.

use crate::{
    format::{codec::MOST_NUMBER, record::Lacks, superblock::Superblock},
    runtime::Gate,
};
use std::{
    cell::{Cell, Ref, RefCell},
    future::Future,
    rc::Rc,
};

/// Sequence numbers that are skipped by an assembly which decides between two drives of one member: more than a member
/// can be ahead of the others by updates in flight.
pub const SKIPPED_BY_TAKEOVER: u64 = 1 << 33;
/// Sequence numbers that are skipped by a change of an array at rest: more than an absent member can be ahead, even if
/// it alone was updated by an interrupted assembly that had skipped numbers.
pub const SKIPPED_BY_CHANGE: u64 = 2 * SKIPPED_BY_TAKEOVER;

pub struct Membership {
    superblock: RefCell<Superblock>,
    /// The last sequence number that was given out.
    sequence: Cell<u64>,
    /// The last sequence number that earlier assemblies have given out.
    earlier: u64,
    /// Number of this assembly in the out-of-band metadata of the blocks that it writes: low bits of the last event
    /// before it. Earlier assemblies have smaller numbers, since each had an event of its own before it wrote to any
    /// zone, and a member without that event holds none of its blocks.
    generation: u32,
    /// More members are out than parity makes up for.
    failed: Cell<bool>,
    /// Another host has assembled the array.
    fenced: Cell<bool>,
    pending: Cell<bool>,
    /// Number of announcements.
    announced: Cell<u64>,
    /// Parts of zones that were lost, with their epochs, and are to be logged.
    lacks: RefCell<Vec<Lacks>>,
    /// Zones have begun to wait for a member, which is to be logged.
    waits: Cell<bool>,
    /// Opened when there is a change to log, or logging is to end.
    work: Gate,
    /// Opened when the membership may have been settled.
    done: Rc<Gate>,
    /// Changes are not logged any more.
    ended: Cell<bool>,
}

impl Membership {
    pub fn new(superblock: Superblock, sequence: u64) -> Membership {
        Membership {
            generation: superblock.event as u32,
            superblock: superblock.into(),
            sequence: sequence.into(),
            earlier: sequence,
            failed: Cell::default(),
            fenced: Cell::default(),
            pending: Cell::default(),
            announced: Cell::default(),
            lacks: RefCell::default(),
            waits: Cell::default(),
            work: Gate::default(),
            done: Rc::default(),
            ended: Cell::default(),
        }
    }

    pub fn superblock(&self) -> Ref<'_, Superblock> {
        self.superblock.borrow()
    }

    /// Changes the superblock in memory, without announcing the change.
    pub fn change<T>(&self, change: impl FnOnce(&mut Superblock) -> T) -> T {
        let superblock = &mut *self.superblock.borrow_mut();
        let (event, members) = (superblock.event, superblock.members.len());
        let result = change(superblock);
        assert!(superblock.event >= event, "event {} follows event {event}", superblock.event);
        assert!(
            superblock.members.len() == members,
            "an array of {members} members has {}",
            superblock.members.len()
        );
        result
    }

    pub fn sequence(&self) -> u64 {
        self.sequence.get()
    }

    pub fn next_sequence(&self) -> u64 {
        let next = self.sequence.get() + 1;
        assert!(next < MOST_NUMBER, "sequence number {next}");
        self.sequence.set(next);
        next
    }

    /// Whether an earlier assembly has given out a sequence number.
    pub fn is_of_earlier_assembly(&self, sequence: u64) -> bool {
        sequence <= self.earlier
    }

    /// Makes all further sequence numbers larger than `sequence`.
    pub fn continue_after(&self, sequence: u64) {
        self.sequence.set(self.sequence.get().max(sequence));
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Skips [`SKIPPED_BY_CHANGE`] sequence numbers.
    pub fn skip_ahead(&self) {
        self.sequence.set(self.sequence.get() + SKIPPED_BY_CHANGE);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Marks the array as failed.
    pub fn fail(&self) {
        self.failed.set(true);
    }

    /// Marks the array as failed, since another host has assembled it; returns whether that is new.
    pub fn fence(&self) -> bool {
        self.fail();
        !self.fenced.replace(true)
    }

    /// Whether another host has assembled the array.
    pub fn is_fenced(&self) -> bool {
        self.fenced.get()
    }

    /// Whether an announcement is not settled yet, and will be.
    pub fn is_pending(&self) -> bool {
        self.pending.get() && !self.failed.get()
    }

    /// Announces a change: it is to be logged.
    pub fn announce(&self) {
        self.pending.set(true);
        self.announced.set(self.announced.get() + 1);
        self.work.open();
    }

    /// As [`Membership::announce`], of zones that wait for absent members.
    pub fn announce_waits(&self) {
        self.note_waits();
        self.announce();
    }

    /// Has the next change logged as checkpoints, since only these record the members that zones wait for.
    pub fn note_waits(&self) {
        self.waits.set(true);
    }

    /// As [`Membership::announce`], of a part of a zone that was lost.
    pub fn announce_lack(&self, lacks: Lacks) {
        self.lacks.borrow_mut().push(lacks);
        self.announce();
    }

    /// Waits until the logs have the members and the parts that they lack.
    pub async fn settled(&self) {
        while self.is_pending() {
            self.done.wait().await;
        }
    }

    /// Announces changes that have been made, and waits until they are settled.
    pub async fn settle(&self) {
        self.announce();
        self.settled().await;
    }

    /// Waits for the next change of the membership, from this call on.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        let done = self.done.clone();
        async move { done.wait().await }
    }

    /// Wakes the tasks that wait for a change.
    pub fn tell(&self) {
        self.done.open();
    }

    /// Ends the logging of changes.
    pub fn close(&self) {
        self.ended.set(true);
        self.work.open();
    }

    pub fn is_closed(&self) -> bool {
        self.ended.get()
    }

    /// Waits for the next announcement, from this call on.
    pub fn announced(&self) -> impl Future<Output = ()> + '_ {
        self.work.wait()
    }

    /// Number of announcements so far: a log record contains these if its writing begins now.
    pub fn begin(&self) -> u64 {
        self.announced.get()
    }

    pub fn take_lacks(&self) -> Vec<Lacks> {
        self.lacks.take()
    }

    pub fn take_waits(&self) -> bool {
        self.waits.take()
    }

    /// Records that the announcements up to `begun` are in the logs of all members, with `event`. Returns whether the
    /// membership is settled: no announcement of any kind, also of a new name, has been made since.
    pub fn end(&self, event: u64, begun: u64) -> bool {
        assert!(
            begun <= self.announced.get(),
            "change {begun} is logged, {} were made",
            self.announced.get()
        );
        if self.announced.get() != begun {
            return false;
        }
        let mut superblock = self.superblock.borrow_mut();
        assert!(superblock.floor <= event, "the floor {} is above event {event}", superblock.floor);
        // While a drive is taking over, its predecessor may still have to be used.
        if !superblock.members.iter().any(|member| member.taking_over.is_some()) {
            superblock.floor = event;
        }
        self.pending.set(false);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::sane;

    #[test]
    fn membership_change_during_superblock_write_stays_pending() {
        let membership = Membership::new(sane(4), 6);
        membership.announce();
        let begun = membership.begin();
        membership.change(|superblock| superblock.name = "new".into());
        membership.announce();
        assert!(!membership.end(7, begun));
        assert!(membership.is_pending());
        let begun = membership.begin();
        assert!(membership.end(8, begun));
        assert!(!membership.is_pending());
        assert_eq!(membership.superblock().floor, 8);
    }
}
