//! Repairs of lost members: their drives are replaced, attached and rebuilt, or come back.
//!
//! A repair runs in the background beside the load; faults may strike it, and the power may be cut meanwhile.

use super::{
    command_queue::Bay,
    fault_budget::{Suspect, named},
    run_state::{BackgroundRepair, RunState},
    schedule::Moment,
    subject::{SubjectError, Work},
    world::{Failure, TOO_MANY_EVENTS, World},
};
use engine::array::{Drive, MemberState};
use std::{cell::Cell, rc::Rc};

impl World<'_> {
    /// Starts a repair if one is due, and mostly extends the event budget so that it can finish.
    pub(super) fn repair(
        &mut self,
        run_state: &mut RunState,
        budget: &mut u64,
        done: u64,
    ) -> Result<(), Failure> {
        if run_state.repair.is_some() {
            if *budget <= done + 1 && !run_state.cut_in_rebuild {
                *budget += 64;
            }
            return match done {
                TOO_MANY_EVENTS.. => Err(Failure(format!("a rebuild goes on after {done} events"))),
                _ => Ok(()),
            };
        }
        if run_state.failing.as_ref().is_some_and(|failing| failing.borrow().is_some()) {
            run_state.failing = None;
        }
        let busy = run_state.failing.is_some() || run_state.coming_back.is_some();
        if busy || run_state.suspects.is_empty() {
            return Ok(());
        }
        if !self.rng.chance(self.scenario.misfortune.repair, 100_000) {
            return Ok(());
        }
        let mut members = self.broken(run_state);
        self.rng.shuffle(&mut members);
        let Some(first) = members.first().copied() else { return Ok(()) };
        // All members at once, or one after the other.
        if members.len() > 1 && self.rng.chance(1, 2) {
            members.truncate(1);
        }
        match self.member_state(first) == Some(MemberState::Active) && self.rng.chance(1, 2) {
            true => self.replace(run_state, first)?,
            false => self.start_repair(run_state, &members)?,
        }
        run_state.cut_in_rebuild = self.rng.chance(self.scenario.misfortune.cut_in_rebuild_percent, 100);
        if run_state.cut_in_rebuild {
            *budget = done + 1 + self.rng.below(400);
        }
        Ok(())
    }

    /// Suspects that need a repair.
    pub(super) fn broken(&self, run_state: &RunState) -> Vec<usize> {
        let mut members = run_state.suspects.members();
        let is_sound = |member| self.member_state(member) == Some(MemberState::Active);
        let holds_back = self.subject.as_ref().is_some_and(|subject| subject.is_deferred());
        let is_back = |member| holds_back && run_state.back.contains(&member);
        members
            .retain(|member| !is_sound(*member) && !is_back(*member) || self.is_damaged(run_state, *member));
        members
    }

    /// Occasionally brings a missing drive back to a deferred-write array.
    pub(super) fn come_back(&mut self, run_state: &mut RunState) {
        if run_state.coming_back.as_ref().is_some_and(|back| back.borrow().is_some()) {
            run_state.coming_back = None;
        }
        let Some(subject) = self.subject.clone().filter(|subject| subject.is_deferred()) else { return };
        for member in run_state.suspects.absent() {
            let replacement_drive = self
                .replacement_drive
                .filter(|replacement_drive| replacement_drive.member == member && replacement_drive.lost)
                .map(|replacement_drive| replacement_drive.bay);
            let Some(bay) = replacement_drive.or(self.members[member]) else { continue };
            if run_state.coming_back.is_none() && self.rng.chance(1, 64) {
                self.trace.note(|| format!("member {member} is back before anything is written"));
                run_state.suspects.of(member).absent = false;
                run_state.back.insert(member);
                let work = subject.complete(self.drive(bay));
                run_state.coming_back = Some(self.start(work));
            }
        }
    }

    /// Starts to rebuild members, on new drives unless they are being rebuilt already. Other members that are being
    /// rebuilt are completed as well.
    pub(super) fn start_repair(&mut self, run_state: &mut RunState, chosen: &[usize]) -> Result<(), Failure> {
        let Some(subject) = self.subject.clone() else { return Ok(()) };
        let (mut members, mut struck, mut drives) = (chosen.to_vec(), false, Vec::new());
        for suspect in run_state.suspects.iter().filter(|suspect| !chosen.contains(&suspect.member)) {
            if self.member_state(suspect.member) == Some(MemberState::Rebuilding) {
                members.push(suspect.member);
                struck |= suspect.struck || self.is_damaged(run_state, suspect.member);
            }
        }
        for member in chosen.iter().copied() {
            let drive = match self.half_filled(run_state, member) {
                Some(bay) => {
                    self.command_queue.clear_fault(bay);
                    // The error of a command in flight may still arrive.
                    struck |= run_state.suspects.of(member).struck;
                    None
                }
                None => Some(self.give_drive(run_state, member)?),
            };
            self.trace.note(|| {
                let how = drive.as_ref().map_or("where it stopped".into(), |d| format!("with {}", d.name));
                format!("repair of member {member} {how}")
            });
            let attaching = Rc::new(Cell::new(drive.is_some()));
            run_state.attaching.push((member, attaching.clone()));
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
                    // The member had come back while the array was in deferred-write mode, which has committed only
                    // now.
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
        run_state.repair =
            Some(BackgroundRepair { members, pending, struck, copies: false, cancelled: false });
        Ok(())
    }

    /// The drive of a member that is being rebuilt, if the rebuild can continue on it.
    fn half_filled(&mut self, run_state: &RunState, member: usize) -> Option<Bay> {
        let bay = self.members[member].filter(|bay| !self.command_queue.is_gone(*bay))?;
        let rebuilding = self.member_state(member) == Some(MemberState::Rebuilding);
        let heals =
            self.can_heal(run_state, bay) && self.replacement_drive.is_none() && self.rng.chance(3, 4);
        let sound = !self.is_damaged(run_state, member) || heals;
        (rebuilding && sound && !run_state.suspects.is_absent(member)).then_some(bay)
    }

    /// Provides another drive for a member.
    fn give_drive(&mut self, run_state: &mut RunState, member: usize) -> Result<Drive, Failure> {
        let old = self.members[member].take();
        // A drive with an incomplete attachment does not belong to the array.
        let half_attached = run_state.half_attached.remove(&member);
        let old = old.filter(|bay| !half_attached && !self.foreign.contains(bay));
        run_state.retire(old.map(|bay| (member, bay)));
        // A deferred-write array has not decided yet which drive of a replacement is the member.
        run_state.retire(
            self.replacement_drive
                .take_if(|replacement_drive| replacement_drive.member == member)
                .map(|replacement_drive| (member, replacement_drive.bay)),
        );
        let (command_queue, damaged) = (self.command_queue.clone(), &run_state.damaged);
        let bay =
            self.spare(&mut run_state.attic, |bay| !damaged.contains(&bay) && !command_queue.is_gone(bay))?;
        self.members[member] = Some(bay);
        *run_state.suspects.of(member) = Suspect::new(member);
        Ok(self.drive(bay))
    }

    /// Handles the result of a repair once it is available.
    pub(super) fn finish_repair(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        let Some(result) = run_state.repair.as_ref().and_then(|repair| repair.pending.borrow_mut().take())
        else {
            return Ok(());
        };
        let Some(repair) = run_state.repair.take() else { return Ok(()) };
        self.note_half_attached(run_state);
        self.note_places(run_state)?;
        match result {
            Ok(_) if repair.cancelled => Err(Failure("a copy that was cancelled has come to its end".into())),
            Err(why) if repair.cancelled => {
                self.trace.note(|| format!("not replaced: {why}"));
                self.check_cancelled(&why)
            }
            // The array is not at fault: a drive was struck, or cannot be copied to.
            Err(why) if repair.copies && (!run_state.suspects.is_empty() || why.is_no_copy()) => {
                self.trace.note(|| format!("not replaced: {why}"));
                Ok(())
            }
            // A member that was not part of this repair lacked parts too, and was struck.
            Err(why) if !repair.struck && self.are_filled(run_state, &repair, &why) => {
                self.trace.note(|| format!("not rebuilt as a whole: {why}"));
                self.note_active(run_state, Some(&repair.members))
            }
            Err(why) if !repair.struck => {
                Err(Failure(format!("the rebuild of {} failed: {why}", named(&repair.members))))
            }
            Err(_) => Ok(()),
            Ok(_) => {
                self.note_healed(run_state);
                self.counts.rebuilds += 1;
                self.forks.notice(Moment::Rebuilt);
                self.trace.note(|| "rebuilt".into());
                let excused = repair.struck || repair.copies && !run_state.suspects.is_empty();
                if !excused {
                    self.note_active(run_state, Some(&repair.members))?;
                }
                Ok(())
            }
        }
    }

    /// Whether a failed repair has filled all its members, and failed because another member was struck.
    fn are_filled(&self, run_state: &RunState, repair: &BackgroundRepair, why: &SubjectError) -> bool {
        let is_filled = |member: &usize| self.member_state(*member) == Some(MemberState::Active);
        let is_other = |suspect: Suspect| {
            let struck = suspect.struck || self.is_damaged(run_state, suspect.member);
            struck && !repair.members.contains(&suspect.member)
        };
        let others = run_state.suspects.iter().any(is_other);
        others && repair.members.iter().all(is_filled) && !matches!(why, SubjectError::Lost(..))
    }

    /// Records drives with an attachment that may or may not have been completed.
    pub(super) fn note_half_attached(&mut self, run_state: &mut RunState) {
        let attaching = run_state.attaching.drain(..).filter(|(_, attaching)| attaching.get());
        run_state.half_attached.extend(attaching.map(|(member, _)| member));
    }

    /// Attached drives no longer belong to another array.
    pub(super) fn note_attached(&mut self, run_state: &RunState) {
        for (member, _) in run_state.attaching.iter().filter(|(_, attaching)| !attaching.get()) {
            if let Some(bay) = self.members[*member] {
                self.foreign.remove(&bay);
            }
        }
    }
}
