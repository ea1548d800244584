//! Repairs of lost members: their drives are replaced, attached and rebuilt, or come back.
//!
//! A repair runs in the background beside the load; faults may strike it, and the power may be cut meanwhile.

use super::{
    course::{Course, Repair},
    schedule::Moment,
    subject::{Why, Work},
    suspects::{Suspect, named},
    wire::Bay,
    world::{Failure, TOO_MANY_EVENTS, World},
};
use engine::array::{Drive, MemberState};
use std::{cell::Cell, rc::Rc};

impl World<'_> {
    /// Starts a repair if one is due, and mostly extends the event budget so that it can finish.
    pub(super) fn repair(&mut self, course: &mut Course, budget: &mut u64, done: u64) -> Result<(), Failure> {
        if course.repair.is_some() {
            if *budget <= done + 1 && !course.cut_in_rebuild {
                *budget += 64;
            }
            return match done {
                TOO_MANY_EVENTS.. => Err(Failure(format!("a rebuild goes on after {done} events"))),
                _ => Ok(()),
            };
        }
        if course.failing.as_ref().is_some_and(|failing| failing.borrow().is_some()) {
            course.failing = None;
        }
        let busy = course.failing.is_some() || course.coming_back.is_some();
        if busy || course.suspects.is_empty() {
            return Ok(());
        }
        if !self.rng.chance(self.scenario.misfortune.repair, 100_000) {
            return Ok(());
        }
        let mut members = self.broken(course);
        self.rng.shuffle(&mut members);
        let Some(first) = members.first().copied() else { return Ok(()) };
        // All members at once, or one after the other.
        if members.len() > 1 && self.rng.chance(1, 2) {
            members.truncate(1);
        }
        match self.member_state(first) == Some(MemberState::Active) && self.rng.chance(1, 2) {
            true => self.replace(course, first)?,
            false => self.start_repair(course, &members)?,
        }
        course.cut_in_rebuild = self.rng.chance(self.scenario.misfortune.cut_in_rebuild_percent, 100);
        if course.cut_in_rebuild {
            *budget = done + 1 + self.rng.below(400);
        }
        Ok(())
    }

    /// Suspects that need a repair.
    pub(super) fn broken(&self, course: &Course) -> Vec<usize> {
        let mut members = course.suspects.members();
        let is_sound = |member| self.member_state(member) == Some(MemberState::Active);
        let holds_back = self.subject.as_ref().is_some_and(|subject| subject.is_provisional());
        let is_back = |member| holds_back && course.back.contains(&member);
        members.retain(|member| !is_sound(*member) && !is_back(*member) || self.is_damaged(course, *member));
        members
    }

    /// Occasionally brings a missing drive back to a provisional array.
    pub(super) fn come_back(&mut self, course: &mut Course) {
        if course.coming_back.as_ref().is_some_and(|back| back.borrow().is_some()) {
            course.coming_back = None;
        }
        let Some(subject) = self.subject.clone().filter(|subject| subject.is_provisional()) else { return };
        for member in course.suspects.absent() {
            let heir = self.heir.filter(|heir| heir.member == member && heir.lost).map(|heir| heir.bay);
            let Some(bay) = heir.or(self.members[member]) else { continue };
            if course.coming_back.is_none() && self.rng.chance(1, 64) {
                self.trace.note(|| format!("member {member} is back before anything is written"));
                course.suspects.of(member).absent = false;
                course.back.insert(member);
                let work = subject.complete(self.drive(bay));
                course.coming_back = Some(self.start(work));
            }
        }
    }

    /// Starts to rebuild members, on new drives unless they are being rebuilt already. Other members that are being
    /// rebuilt are completed as well.
    pub(super) fn start_repair(&mut self, course: &mut Course, chosen: &[usize]) -> Result<(), Failure> {
        let Some(subject) = self.subject.clone() else { return Ok(()) };
        let (mut members, mut struck, mut drives) = (chosen.to_vec(), false, Vec::new());
        for suspect in course.suspects.iter().filter(|suspect| !chosen.contains(&suspect.member)) {
            if self.member_state(suspect.member) == Some(MemberState::Rebuilding) {
                members.push(suspect.member);
                struck |= suspect.struck || self.is_damaged(course, suspect.member);
            }
        }
        for member in chosen.iter().copied() {
            let drive = match self.half_filled(course, member) {
                Some(bay) => {
                    self.wire.clear_fault(bay);
                    // The error of a command in flight may still arrive.
                    struck |= course.suspects.of(member).struck;
                    None
                }
                None => Some(self.give_drive(course, member)?),
            };
            self.trace.note(|| {
                let how = drive.as_ref().map_or("where it stopped".into(), |d| format!("with {}", d.name));
                format!("repair of member {member} {how}")
            });
            let attaching = Rc::new(Cell::new(drive.is_some()));
            course.attaching.push((member, attaching.clone()));
            drives.extend(drive.map(|drive| (member, drive, attaching)));
        }
        let work: Work<u64> = Box::pin(async move {
            for (member, drive, attaching) in drives {
                let takes_part =
                    || subject.members().get(member).is_some_and(|(state, _)| *state != MemberState::Out);
                // The member may go out meanwhile.
                if takes_part()
                    && let Err(why) = subject.fail(member).await
                    && takes_part()
                {
                    return Err(why);
                }
                let attached = subject.attach(member, drive.clone()).await;
                if attached.is_err() && takes_part() {
                    // The member had come back while the array was provisional, which has committed only now.
                    subject.fail(member).await?;
                    subject.attach(member, drive).await?;
                } else {
                    attached?;
                }
                attaching.set(false);
            }
            subject.rebuild().await
        });
        let pending = self.start(work);
        course.repair = Some(Repair { members, pending, struck, copies: false, cancelled: false });
        Ok(())
    }

    /// The drive of a member that is being rebuilt, if the rebuild can continue on it.
    fn half_filled(&mut self, course: &Course, member: usize) -> Option<Bay> {
        let bay = self.members[member].filter(|bay| !self.wire.is_gone(*bay))?;
        let rebuilding = self.member_state(member) == Some(MemberState::Rebuilding);
        let heals = self.can_heal(course, bay) && self.heir.is_none() && self.rng.chance(3, 4);
        let sound = !self.is_damaged(course, member) || heals;
        (rebuilding && sound && !course.suspects.is_absent(member)).then_some(bay)
    }

    /// Provides another drive for a member.
    fn give_drive(&mut self, course: &mut Course, member: usize) -> Result<Drive, Failure> {
        let old = self.members[member].take();
        // A drive with an incomplete attachment does not belong to the array.
        let half_attached = course.half_attached.remove(&member);
        let old = old.filter(|bay| !half_attached && !self.foreign.contains(bay));
        course.retire(old.map(|bay| (member, bay)));
        // A provisional array has not decided yet which drive of a replacement is the member.
        course.retire(self.heir.take_if(|heir| heir.member == member).map(|heir| (member, heir.bay)));
        let (wire, damaged) = (self.wire.clone(), &course.damaged);
        let bay = self.spare(&mut course.attic, |bay| !damaged.contains(&bay) && !wire.is_gone(bay))?;
        self.members[member] = Some(bay);
        *course.suspects.of(member) = Suspect::new(member);
        Ok(self.drive(bay))
    }

    /// Handles the result of a repair once it is available.
    pub(super) fn finish_repair(&mut self, course: &mut Course) -> Result<(), Failure> {
        let Some(result) = course.repair.as_ref().and_then(|repair| repair.pending.borrow_mut().take())
        else {
            return Ok(());
        };
        let Some(repair) = course.repair.take() else { return Ok(()) };
        self.note_half_attached(course);
        self.note_places(course)?;
        match result {
            Ok(_) if repair.cancelled => Err(Failure("a copy that was cancelled has come to its end".into())),
            Err(why) if repair.cancelled => {
                self.trace.note(|| format!("not replaced: {why}"));
                self.check_cancelled(&why)
            }
            // The array is not at fault: a drive was struck, or cannot be copied to.
            Err(why) if repair.copies && (!course.suspects.is_empty() || why.is_no_copy()) => {
                self.trace.note(|| format!("not replaced: {why}"));
                Ok(())
            }
            // A member that was not part of this repair lacked parts too, and was struck.
            Err(why) if !repair.struck && self.are_filled(course, &repair, &why) => {
                self.trace.note(|| format!("not rebuilt as a whole: {why}"));
                self.note_active(course, Some(&repair.members))
            }
            Err(why) if !repair.struck => {
                Err(Failure(format!("the rebuild of {} failed: {why}", named(&repair.members))))
            }
            Err(_) => Ok(()),
            Ok(_) => {
                self.note_healed(course);
                self.counts.rebuilds += 1;
                self.forks.notice(Moment::Rebuilt);
                self.trace.note(|| "rebuilt".into());
                let excused = repair.struck || repair.copies && !course.suspects.is_empty();
                if !excused {
                    self.note_active(course, Some(&repair.members))?;
                }
                Ok(())
            }
        }
    }

    /// Whether a failed repair has filled all its members, and failed because another member was struck.
    fn are_filled(&self, course: &Course, repair: &Repair, why: &Why) -> bool {
        let is_filled = |member: &usize| self.member_state(*member) == Some(MemberState::Active);
        let is_other = |suspect: Suspect| {
            let struck = suspect.struck || self.is_damaged(course, suspect.member);
            struck && !repair.members.contains(&suspect.member)
        };
        let others = course.suspects.iter().any(is_other);
        others && repair.members.iter().all(is_filled) && !matches!(why, Why::Lost(..))
    }

    /// Records drives with an attachment that may or may not have been completed.
    pub(super) fn note_half_attached(&mut self, course: &mut Course) {
        let attaching = course.attaching.drain(..).filter(|(_, attaching)| attaching.get());
        course.half_attached.extend(attaching.map(|(member, _)| member));
    }

    /// Attached drives no longer belong to another array.
    pub(super) fn note_attached(&mut self, course: &Course) {
        for (member, _) in course.attaching.iter().filter(|(_, attaching)| !attaching.get()) {
            if let Some(bay) = self.members[*member] {
                self.foreign.remove(&bay);
            }
        }
    }
}
