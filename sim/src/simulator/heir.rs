//! Replacements of working drives, at any moment of a life.
//!
//! During a replacement a member has two drives: the old one, which is the member at first, and its *heir*, the drive
//! that replaces it. At any time one of them is the member and holds everything: after a power cut both are offered,
//! and the one that the array takes is the member from then on. To lose a member is to lose either one of its drives.

use super::{
    course::{Course, Repair},
    schedule::Moment,
    subject::{Subject, Why, Work},
    suspects::Suspect,
    wire::Bay,
    world::{Failure, Heir, Pending, World},
};
use engine::{
    array::MemberState,
    zone::{ZoneIndex, ZoneState, is_worn},
};
use std::{cell::Cell, rc::Rc};

/// A replacement that is running.
pub(super) struct Replacement {
    pub pending: Pending<u64>,
    /// Set to `true` once the heir is the member.
    pub taken: Rc<Cell<bool>>,
}

impl World<'_> {
    /// The drives of a member: its own, and its heir.
    pub(super) fn drives_of(&self, member: usize) -> impl Iterator<Item = Bay> {
        let heir = self.heir.filter(|heir| heir.member == member).map(|heir| heir.bay);
        self.members[member].into_iter().chain(heir)
    }

    /// The drives that are left without those of the `lost` members.
    pub(super) fn kept(&self, lost: &[usize]) -> Vec<Bay> {
        let mut bays = Vec::new();
        for member in 0..self.members.len() {
            let is_lost = lost.contains(&member);
            match self.heir.filter(|heir| heir.member == member) {
                None if is_lost => {}
                Some(heir) if is_lost && !heir.lost => bays.push(heir.bay),
                Some(_) if is_lost => bays.extend(self.members[member]),
                _ => bays.extend(self.drives_of(member)),
            }
        }
        bays
    }

    /// One of the drives of a member, at random.
    pub(super) fn drive_of(&mut self, member: usize) -> Option<Bay> {
        let bays: Vec<Bay> = self.drives_of(member).collect();
        if bays.is_empty() { None } else { Some(*self.rng.pick(&bays)) }
    }

    /// Finds which of the two drives the array has taken, once it has written to its drives; returns the member and the
    /// drive that no longer belongs to the array.
    pub(super) fn settle_heir(&mut self) -> Option<(usize, Bay)> {
        let heir = self.heir?;
        let subject = self.subject.clone().filter(|subject| !subject.is_provisional())?;
        let (state, drive) = subject.members().into_iter().nth(heir.member)?;
        self.heir = None;
        let left = match state != MemberState::Out && drive == format!("drive{}", heir.bay) {
            true => self.members[heir.member].replace(heir.bay)?,
            false => heir.bay,
        };
        Some((heir.member, left))
    }

    /// Retires the drive that has not become the member, once that is known. The copy to an heir may be continued.
    pub(super) fn retire_heir(&mut self, course: &mut Course) {
        let heir = self.heir;
        let left = self.settle_heir();
        let unfinished = left.filter(|(_, bay)| heir.is_some_and(|heir| heir.bay == *bay));
        course.unfinished = unfinished.or(course.unfinished);
        course.retire(left);
    }

    /// Cancels the copy to an heir, occasionally.
    pub(super) fn cancel_copy(&mut self, course: &mut Course) {
        let Some(repair) = course.repair.as_mut().filter(|repair| repair.copies && !repair.cancelled) else {
            return;
        };
        let (is_taken, subject) =
            (course.taken.as_ref().is_none_or(|taken| taken.get()), self.subject.clone());
        if is_taken || !self.rng.chance(1, 4000) {
            return;
        }
        repair.cancelled = subject.is_some_and(|subject| subject.cancel_replacement());
        if repair.cancelled {
            self.counts.cancelled_copies += 1;
            self.trace.note(|| "the copy is cancelled".into());
        }
    }

    /// Checks that an heir is blank when the array says so.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn check_cancelled(&self, why: &Why) -> Result<(), Failure> {
        let Some(heir) = self.heir.filter(|_| why.is_cancelled()) else { return Ok(()) };
        let zones = self.wire.geometry(heir.bay).zones;
        let ssd = self.wire.ssd(heir.bay);
        let is_used = |zone: &u32| {
            let state = ssd.zones().info(ZoneIndex(*zone)).state;
            !is_worn(state) && state != ZoneState::Empty
        };
        match (0..zones).find(is_used) {
            Some(zone) => {
                Err(Failure(format!("zone {zone} of a drive is not empty after its copy was cancelled")))
            }
            None => Ok(()),
        }
    }

    /// Starts to replace a working drive, occasionally.
    pub(super) fn replace_somebody(&mut self, course: &mut Course) -> Result<(), Failure> {
        let busy = course.repair.is_some() || course.failing.is_some() || course.coming_back.is_some();
        if let Some((member, _)) = course.unfinished.filter(|_| !busy)
            && self.rng.chance(1, 64)
        {
            return self.replace(course, member);
        }
        if busy || !self.rng.chance(self.scenario.misfortune.replace, 100_000) {
            return Ok(());
        }
        let member = self.rng.below(self.members.len() as u64) as usize;
        self.replace(course, member)
    }

    /// Starts to replace the drive of `member`, if it works.
    pub(super) fn replace(&mut self, course: &mut Course, member: usize) -> Result<(), Failure> {
        let Some(subject) = self.subject.clone().filter(|subject| !subject.is_provisional()) else {
            return Ok(());
        };
        let works = subject.members().get(member).is_some_and(|(state, _)| *state == MemberState::Active);
        if !works || self.heir.is_some() || self.members.len() == 1 {
            return Ok(());
        }
        let (wire, damaged) = (self.wire.clone(), &course.damaged);
        let usable = |bay: Bay| !damaged.contains(&bay) && !wire.is_gone(bay);
        let unfinished = course.unfinished.take_if(|(of, _)| *of == member);
        let unfinished = unfinished.filter(|(_, bay)| usable(*bay) && !wire.is_awaited(*bay));
        let kept = unfinished.and_then(|(_, bay)| course.attic.iter().position(|other| *other == bay));
        if let Some(at) = kept {
            let bay = course.attic.swap_remove(at);
            self.wire.clear_fault(bay);
            self.counts.continued_copies += 1;
            self.trace.note(|| format!("the copy of member {member} to drive{bay} continues"));
            return self.begin_copy(course, subject, member, bay);
        }
        let mut bay = self.spare(&mut course.attic, usable)?;
        if self.foreign.remove(&bay) {
            bay = self.new_drive();
        }
        // A drive with another zone size is refused.
        if let Some(old) = self.members[member].filter(|_| self.scenario.mixed && self.rng.chance(3, 4)) {
            bay = self.like(old);
        }
        self.begin_copy(course, subject, member, bay)
    }

    fn begin_copy(
        &mut self,
        course: &mut Course,
        subject: Rc<dyn Subject>,
        member: usize,
        bay: Bay,
    ) -> Result<(), Failure> {
        let lost = self.rng.chance(1, 2);
        self.heir = Some(Heir { member, bay, lost, struck: false });
        self.trace.note(|| format!("drive{bay} is to replace the drive of member {member}"));
        let Replacement { pending, taken } = self.begin_replacement(subject, member, bay);
        course.taken = Some(taken);
        let struck = !course.suspects.is_empty();
        course.repair =
            Some(Repair { members: vec![member], pending, struck, copies: true, cancelled: false });
        Ok(())
    }

    fn begin_replacement(&mut self, subject: Rc<dyn Subject>, member: usize, bay: Bay) -> Replacement {
        let (drive, taken) = (self.drive(bay), Rc::new(Cell::new(false)));
        let told = taken.clone();
        let work: Work<u64> = Box::pin(async move {
            subject.replace(member, drive).await?;
            told.set(true);
            subject.rebuild().await
        });
        Replacement { pending: self.start(work), taken }
    }

    /// Begins to replace the drive of `member` by a blank one.
    pub(super) fn replace_in_order(&mut self, member: usize) -> Option<Replacement> {
        let subject = self.subject.clone()?;
        let bay = self.new_drive();
        self.heir = Some(Heir { member, bay, lost: false, struck: false });
        Some(self.begin_replacement(subject, member, bay))
    }

    /// Updates the member if the heir has taken over; returns whether the replacement is still running.
    ///
    /// # Errors
    /// The replacement has failed.
    pub(super) fn follow(&mut self, replacement: &Replacement) -> Result<bool, Failure> {
        if let Some(heir) = self.heir.take_if(|_| replacement.taken.get()) {
            self.members[heir.member] = Some(heir.bay);
        }
        match &*replacement.pending.borrow() {
            Some(Err(why)) => Err(Failure(format!("the replacement failed: {why}"))),
            result => Ok(result.is_none()),
        }
    }

    /// Sets which drive is lost if a member that is being replaced is lost: the heir if `lost`.
    pub(super) fn lose_heir(&mut self, lost: bool) {
        self.heir.iter_mut().for_each(|heir| heir.lost = lost);
    }

    /// Updates the state of the replacement: the heir is the member, is taking over, or never will.
    pub(super) fn note_heir(&mut self, course: &mut Course) {
        let Some(heir) = self.heir else { return };
        if course.taken.is_none() {
            // The process that had begun the replacement has ended.
            self.retire_heir(course);
        } else if course.taken.as_ref().is_some_and(|taken| taken.get()) {
            course.taken = None;
            self.trace.note(|| format!("member {} is drive{} from now on", heir.member, heir.bay));
            self.counts.replacements += 1;
            let old = self.members[heir.member].replace(heir.bay);
            course.retire(old.map(|bay| (heir.member, bay)));
            self.heir = None;
            if course.suspects.get(heir.member).is_some() {
                let struck = heir.struck;
                *course.suspects.of(heir.member) = Suspect { struck, ..Suspect::new(heir.member) };
            }
        } else if course.repair.is_none() && self.subject.is_some() && course.taken.take().is_some() {
            course.retire(Some((heir.member, heir.bay)));
            self.heir = None;
        } else if self.takes_over(heir) {
            self.forks.notice(Moment::TakingOver);
        }
    }

    /// Whether the array has begun to use an heir.
    pub(super) fn takes_over(&self, heir: Heir) -> bool {
        let members = self.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
        members.get(heir.member).is_some_and(|(_, drive)| *drive == format!("drive{}", heir.bay))
    }
}
