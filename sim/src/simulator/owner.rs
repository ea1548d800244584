//! Administrative operations on an array as a whole, at any moment of a life: it is renamed or adopted, while it runs
//! or at rest, and at the end of some lives it is destroyed.
//!
//! The world records the *identities* (name, host, autostart) that the array may report: the result of the last change,
//! and as long as the outcome of an interrupted change is unknown, the identity before as well. Every assembly has to
//! report one of these, whichever members are missing, and from then on exactly that one: an interrupted change does
//! not come back after an assembly has reported the old identity.
//!
//! After an interrupted destruction the array holds everything that was promised or is refused, with any members
//! present. The destruction can then be completed; after that all its drives are blank, and members that were absent do
//! not bring the array back.

use super::{
    command_queue::Bay,
    run_state::{PendingChange, RunState},
    subject::{Subject, SubjectError, SubjectIdentity},
    world::{Failure, World},
};
use engine::{
    array::ArrayError,
    owner::Change,
    raid::error::NoArray,
    zone::{Lba, ZoneIndex, ZoneState, is_worn},
};

fn changed(said: &SubjectIdentity, change: &Change) -> SubjectIdentity {
    let mut said = said.clone();
    match change {
        Change::Name(name) => said.name.clone_from(name),
        Change::Host(host) => said.host = *host,
        Change::Autostart(autostart) => said.autostart = *autostart,
    }
    said
}

impl World<'_> {
    /// Compares the identity that a subject reports with the allowed ones; from now on only this one is allowed, unless
    /// the array is in deferred-write mode.
    ///
    /// # Errors
    /// The subject reports another identity.
    pub(super) fn hear_said(&mut self, subject: &dyn Subject) -> Result<(), Failure> {
        let Some(said) = subject.said() else { return Ok(()) };
        if !self.books.may.is_empty() && !self.books.may.contains(&said) {
            let may = &self.books.may;
            return Err(Failure(format!("the array says of itself {said:?}, which should be among {may:?}")));
        }
        if !subject.is_deferred() {
            self.books.may = vec![said];
        }
        Ok(())
    }

    /// Draws a change, and returns the identities that are allowed after it.
    fn draw_change(&mut self) -> (Change, Vec<SubjectIdentity>) {
        self.books.begun += 1;
        let begun = self.books.begun;
        let change = match self.rng.below(4) {
            0 => Change::Host([begun as u8; 16]),
            1 => Change::Autostart(self.rng.chance(1, 2)),
            _ => Change::Name(format!("name{begun}")),
        };
        let after = self.books.may.iter().map(|said| changed(said, &change)).collect();
        (change, after)
    }

    /// Begins to change the identity of a running array, occasionally.
    pub(super) fn change_somehow(&mut self, run_state: &mut RunState) {
        let Some(subject) = self.subject.clone().filter(|subject| subject.said().is_some()) else { return };
        let rate = self.scenario.misfortune.change;
        if run_state.changing.is_some() || rate == 0 || !self.rng.chance(rate, 100_000) {
            return;
        }
        let before = self.books.may.clone();
        let (change, after) = self.draw_change();
        self.trace.note(|| format!("the array is changed: {change:?}"));
        self.books.may.extend(after.iter().cloned());
        let pending = self.start(subject.change(change));
        run_state.changing = Some(PendingChange { pending, after, before });
    }

    /// Updates the allowed identities when a change has completed.
    ///
    /// # Errors
    /// A running array could not be changed.
    pub(super) fn note_changed(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        let result = run_state.changing.as_ref().and_then(|changing| changing.pending.borrow_mut().take());
        let Some(result) = result else { return Ok(()) };
        let Some(PendingChange { after, before, .. }) = run_state.changing.take() else { return Ok(()) };
        match result {
            Ok(()) => {
                self.counts.changes += 1;
                self.trace.note(|| "changed".into());
                self.books.may = after;
                Ok(())
            }
            Err(SubjectError::Array(ArrayError::HoldsBack | ArrayError::ReadOnly)) => {
                self.books.may = before;
                Ok(())
            }
            Err(why) => Err(Failure(format!("the array could not be changed: {why}"))),
        }
    }

    /// Changes the identity of an array at rest, occasionally; the change may be interrupted. Returns whether it was
    /// tried, after which another end is due.
    ///
    /// # Errors
    /// The change is refused without a reason.
    pub(super) fn change_at_rest(&mut self, run_state: &mut RunState) -> Result<bool, Failure> {
        let percent = self.scenario.misfortune.change_percent;
        // The tails of a killed process would not be kept.
        let rests = self.tails.is_none() && !self.books.may.is_empty();
        if !rests || percent == 0 || !self.rng.chance(percent, 100) {
            return Ok(false);
        }
        let offered = self.own(run_state);
        let (change, after) = self.draw_change();
        self.trace.note(|| format!("{change:?} with drives {offered:?}"));
        self.books.may.extend(after.iter().cloned());
        let drives = offered.iter().map(|bay| self.drive(*bay)).collect();
        let pending = self.start(self.maker.change(&self.runtime, drives, change));
        let events = self.rng.chance(2, 3).then(|| 1 + self.rng.below(300));
        match self.wait(&pending, events, false)? {
            None => self.counts.interrupted_recoveries += 1,
            Some(Ok(())) => {
                self.counts.changes += 1;
                self.books.may = after;
            }
            Some(Err(why)) => {
                let told = |member: usize| run_state.suspects.get(member).is_some();
                let struck = matches!(&why, SubjectError::Array(ArrayError::NotTold(_)))
                    && why.members().into_iter().all(told);
                if !struck {
                    let RunState { spare_drives, half_attached, .. } = &mut *run_state;
                    self.judge_refusal(spare_drives, half_attached, &offered, &why)?;
                }
            }
        }
        Ok(true)
    }

    /// The drives of present members, except those that still belong to another array.
    fn own(&self, run_state: &RunState) -> Vec<Bay> {
        let kept = self.kept(&run_state.suspects.absent());
        kept.into_iter().filter(|bay| !self.foreign.contains(bay)).collect()
    }

    /// Whether the array is destroyed at the end of this life.
    pub(super) fn is_destroyed(&mut self) -> bool {
        let percent = self.scenario.misfortune.destroy_percent;
        !self.books.may.is_empty() && percent > 0 && self.rng.chance(percent, 100)
    }

    /// Destroys the array for good, maybe after some interrupted attempts.
    ///
    /// # Errors
    /// A broken promise.
    pub(super) fn destroy(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        self.cut(run_state, true)?;
        let (mut cuts, mut untouched) = (self.rng.below(4), true);
        loop {
            let mut bays = self.own(run_state);
            bays.extend(run_state.attic.iter().filter(|_| self.rng.chance(1, 4)));
            self.rng.shuffle(&mut bays);
            self.trace.note(|| format!("destruction of drives {bays:?}"));
            let before = self.changes(&bays);
            let drives = bays.iter().map(|bay| self.drive(*bay)).collect();
            let pending = self.start(self.maker.destroy(&self.runtime, drives));
            let events = (cuts > 0).then(|| 1 + self.rng.below(400));
            match self.wait(&pending, events, false)? {
                None => {
                    cuts -= 1;
                    // Commands in flight may still be executed.
                    untouched &= self.changes(&bays) == before && !self.command_queue.is_changing();
                    self.cut(run_state, false)?;
                    self.judge_half_destroyed(run_state, untouched)?;
                    self.cut(run_state, false)?;
                }
                Some(Ok(())) => {
                    self.counts.destructions += 1;
                    return self.judge_destroyed(run_state);
                }
                Some(Err(why @ SubjectError::Array(ArrayError::Drives(NoArray::OthersGoOn { .. })))) => {
                    let left = self.own(run_state).into_iter().filter(|bay| self.check_blank(*bay).is_err());
                    // Half of the members may be enough.
                    let few = self.scenario.parities.min(self.members.len() - self.scenario.parities - 1);
                    let are_gone = !untouched && left.count() <= few;
                    // The absent members may be enough to go on, with either drive of a replacement.
                    let sure = self.members.len() - run_state.suspects.members().len();
                    let in_doubt = self.replacement_drive.is_some_and(|replacement_drive| {
                        run_state.suspects.get(replacement_drive.member).is_none()
                    });
                    let others = sure - usize::from(in_doubt) <= self.scenario.parities;
                    return match self.changes(&bays) == before {
                        // All members that were marked as destroyed are blank, and the absent ones cannot know.
                        true if are_gone => self.judge_left(run_state, bays),
                        true if others => self.recover(run_state),
                        _ => Err(Failure(format!("the array could not be destroyed: {why}"))),
                    };
                }
                Some(Err(why)) if self.is_damage(run_state, &why) => return Ok(()),
                Some(Err(why)) => return Err(Failure(format!("the array could not be destroyed: {why}"))),
            }
        }
    }

    /// Whether an error names a drive with damaged media.
    fn is_damage(&self, run_state: &RunState, why: &SubjectError) -> bool {
        run_state.damaged.iter().any(|bay| self.names_drive(*bay, why))
    }

    /// Judges an array after an interrupted destruction: it holds everything, or is refused; it has to assemble if
    /// nothing was changed.
    fn judge_half_destroyed(&mut self, run_state: &mut RunState, untouched: bool) -> Result<(), Failure> {
        for suspect in run_state.suspects.iter_mut() {
            suspect.absent &= self.rng.chance(1, 2);
        }
        let offered = self.own(run_state);
        self.trace.note(|| format!("half destroyed, assembly from drives {offered:?}"));
        let before = self.changes(&offered);
        let drives = offered.iter().map(|bay| self.drive(*bay)).collect();
        let pending = self.start(self.maker.assemble(&self.runtime, drives, self.how()));
        match self.wait(&pending, None, false)? {
            Some(Ok(subject)) => {
                self.oracle.volatile_cache = self.promise(&*subject, &offered, true)?;
                self.take_subject(subject)?;
                let lacking =
                    self.unsound_members().filter(|member| run_state.suspects.get(*member).is_none()).count();
                // A member that was marked as destroyed counts as lost.
                match lacking + run_state.suspects.members().len() <= self.scenario.parities {
                    true => {
                        self.check_recovery().map_err(|failure| Failure(format!("half destroyed, {failure}")))
                    }
                    false => Ok(()),
                }
            }
            Some(Err(why)) if untouched => Err(Failure(format!("nothing was destroyed, but: {why}"))),
            Some(Err(why)) => {
                self.trace.note(|| format!("refused: {why}"));
                self.check_unchanged(&offered, before)
            }
            None => Ok(()),
        }
    }

    /// Checks that all drives that were present are blank, and that the absent ones do not assemble.
    fn judge_destroyed(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        let sure = |bay: &Bay| !run_state.damaged.contains(bay);
        for member in (0..self.members.len()).filter(|member| !run_state.suspects.is_absent(*member)) {
            let is_member = !run_state.half_attached.contains(&member);
            if let Some(bay) = self.members[member].filter(sure).filter(|_| is_member) {
                self.check_blank(bay)?;
            }
        }
        let mut away: Vec<usize> = run_state.suspects.absent();
        // Half of the members may be enough, even the old drives of replacements.
        let are_halves = self.members.len() <= 2 * self.scenario.parities;
        if are_halves {
            away.retain(|member| {
                self.replacement_drive.is_none_or(|replacement_drive| replacement_drive.member != *member)
            });
        }
        let mut offered: Vec<Bay> = away.iter().flat_map(|member| self.drives_of(*member)).collect();
        if !are_halves {
            offered.extend(run_state.attic.iter().filter(|bay| !run_state.missed.contains(bay)));
        }
        offered.retain(|bay| !self.foreign.contains(bay));
        self.judge_left(run_state, offered)
    }

    /// Checks that drives that were absent when their array was destroyed do not assemble.
    fn judge_left(&mut self, run_state: &mut RunState, offered: Vec<Bay>) -> Result<(), Failure> {
        if offered.is_empty() {
            return Ok(());
        }
        self.cut(run_state, false)?;
        self.trace.note(|| format!("destroyed, assembly from drives {offered:?}"));
        let before = self.changes(&offered);
        let drives = offered.iter().map(|bay| self.drive(*bay)).collect();
        let pending = self.start(self.maker.assemble(&self.runtime, drives, self.how()));
        match self.wait(&pending, None, false)? {
            Some(Err(why)) => {
                self.trace.note(|| format!("refused: {why}"));
                self.check_unchanged(&offered, before)
            }
            _ => Err(Failure("an array that was destroyed is there again".into())),
        }
    }

    fn check_unchanged(&self, bays: &[Bay], before: u64) -> Result<(), Failure> {
        match self.changes(bays) == before {
            true => Ok(()),
            false => Err(Failure("it refuses, but has changed drives".into())),
        }
    }

    fn check_blank(&self, bay: Bay) -> Result<(), Failure> {
        let geometry = self.command_queue.geometry(bay).clone();
        for zone in (0..geometry.zones).map(ZoneIndex) {
            let state = self.command_queue.ssd(bay).zones().info(zone).state;
            if is_worn(state) {
                continue;
            }
            let stored = self.command_queue.ssd(bay).stored(Lba(geometry.start(zone).0));
            let stored = stored.map_err(|error| Failure(format!("reading a drive: {error}")))?;
            let is_blank = stored.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0));
            if state != ZoneState::Empty || !is_blank {
                return Err(Failure(format!("drive{bay} was destroyed, but zone {} is {state:?}", zone.0)));
            }
        }
        Ok(())
    }
}
