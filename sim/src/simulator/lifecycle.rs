//! The life of a world: it is created, loaded, struck by faults, ended, recovered and checked, repeatedly.
//!
//! One rule keeps the run inside the promises of the array: only its suspects are struck ([`super::fault_budget`]).

use super::{
    command_queue::{Bay, Fault},
    fault_budget::{Suspect, others, subsets},
    fork::Losses,
    oracle::Oracle,
    run_state::RunState,
    schedule::Moment,
    subject::{AssembleOptions, Subject, SubjectError, create_options},
    world::{End, Failure, Pending, World},
};
use emu::ssd::{Cut, Kind};
use engine::{
    array::MemberState,
    device::Command,
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::rc::Rc;

/// Events after which a rebuild has the drives for itself: under load that of a large array can be so slow that it
/// looks as if it never ended.
const LOADED_EVENTS: u64 = 300_000;

impl World<'_> {
    /// Runs the whole life.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn run(&mut self) -> Result<(), Failure> {
        let mut run_state = RunState::new(self.scenario.parities);
        let scenario = self.scenario.clone();
        self.trace.note(|| format!("{scenario:?}"));
        if !self.create()? {
            return Ok(());
        }
        for _ in 0..self.scenario.rounds {
            self.work(&mut run_state)?;
            self.cut(&mut run_state, true)?;
            self.recover(&mut run_state)?;
        }
        match self.is_destroyed() {
            true => self.destroy(&mut run_state),
            false => self.finale(&mut run_state),
        }
    }

    /// Creates the subject; `false` if it refuses the geometry. Sometimes the power is cut first.
    pub(super) fn create(&mut self) -> Result<bool, Failure> {
        let mut interrupt = self.rng.chance(1, 10);
        loop {
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
            let options = create_options(&self.scenario, uuid);
            let drives = self.members.iter().flatten().map(|bay| self.drive(*bay)).collect();
            let pending = self.start(self.maker.create(&self.runtime, options, drives, self.scenario.join));
            let events = std::mem::take(&mut interrupt).then(|| self.rng.below(100));
            match self.wait(&pending, events, false)? {
                Some(result) => return self.created(result),
                None => self.cut_power(|_| Cut { cache_lost: true, zrwa_lost: false })?,
            }
        }
    }

    /// Takes the new subject; `false` if it was refused.
    ///
    /// # Errors
    /// The subject promises more than its drives can keep, or less.
    pub(super) fn created(&mut self, result: Result<Rc<dyn Subject>, SubjectError>) -> Result<bool, Failure> {
        Ok(match result {
            Ok(subject) => {
                let geometry = subject.geometry().clone();
                self.trace.note(|| format!("created: {geometry:?}"));
                let volatile_cache = self.promise(&*subject, &[], false)?;
                self.oracle = Oracle::new(geometry.zones, geometry.zone_capacity_blocks, volatile_cache);
                self.limits = Some(geometry);
                self.hear_said(&*subject)?;
                self.subject = Some(subject);
                true
            }
            Err(why) => {
                self.counts.refusals += 1;
                self.trace.note(|| format!("not created: {why}"));
                self.refusal = Some(why.to_string());
                false
            }
        })
    }

    /// Runs the load for a while, with faults and repairs.
    fn work(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        let mut budget = 1 + self.rng.below(self.scenario.work_events);
        if self.rng.chance(1, 3) {
            // Cuts soon after a recovery find the most errors.
            budget = 1 + self.rng.below(budget / 8 + 1);
        }
        let copied = self.rng.chance(self.scenario.misfortune.copies_percent, 100);
        let copy_at = copied.then(|| self.rng.below(budget));
        let mut done = 0;
        while done < budget {
            if copy_at == Some(done) {
                self.copy_somebody(run_state)?;
            }
            self.misfortune(run_state);
            self.fail_silently(run_state);
            self.repair(run_state, &mut budget, done)?;
            self.replace_somebody(run_state)?;
            self.cancel_copy(run_state);
            self.change_somehow(run_state);
            self.come_back(run_state);
            let rebuilds = run_state.repair.is_some();
            self.event(!rebuilds || done < LOADED_EVENTS, rebuilds)?;
            self.note_attached(run_state);
            self.finish_repair(run_state)?;
            self.note_changed(run_state)?;
            self.note_replacement_drive(run_state);
            if self.replacement_drive.is_some_and(|replacement_drive| self.takes_over(replacement_drive))
                && self.rng.chance(1, 200)
            {
                // This state is short, so the work sometimes ends in it.
                budget = done;
            }
            self.forks.notice(Moment::Event);
            self.fork_if_due(run_state)?;
            done += 1;
        }
        if self.rng.chance(self.scenario.misfortune.drain_percent, 100) {
            self.drain()?;
        }
        Ok(())
    }

    /// Copies the drive of a random member that is in use.
    fn copy_somebody(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        self.note_begun(run_state);
        let member = self.rng.below(self.members.len() as u64) as usize;
        // While a deferred-write array makes its first change, it is unknown how much of that a copy has.
        let begun = self.subject.as_ref().is_some_and(|subject| !subject.is_deferred());
        let takes_part = begun && self.member_state(member).is_some_and(|state| state != MemberState::Out);
        match takes_part && !run_state.is_attaching(member) && !self.is_damaged(run_state, member) {
            true => self.copy_member(&mut run_state.spare_drives, member),
            false => Ok(()),
        }
    }

    /// Forks the world if a fork is due.
    fn fork_if_due(&mut self, run_state: &RunState) -> Result<(), Failure> {
        if self.forks.take() {
            let losses = self.losses(run_state);
            self.fork(losses)?;
        }
        Ok(())
    }

    /// The sets of members that may be missing if the world ends now.
    fn losses(&self, run_state: &RunState) -> Losses {
        let (count, parities) = (self.members.len(), self.scenario.parities);
        let mut suspects = run_state.suspects.members();
        let unsound = self.unsound_members().filter(|member| run_state.suspects.get(*member).is_none());
        suspects.extend(unsound.take(parities - suspects.len()));
        let zrwa_lost = run_state.suspects.iter().any(|suspect| suspect.zrwa_lost);
        let is_offered = |member: &usize| {
            let doubtful = run_state.half_attached.contains(member) || run_state.is_attaching(*member);
            !run_state.suspects.is_absent(*member) && !doubtful && !self.is_damaged(run_state, *member)
        };
        let offered: Vec<usize> = suspects.iter().copied().filter(is_offered).collect();
        if count == 1 {
            // A single drive has no redundancy to test.
            return Losses { lost: vec![Vec::new()], offered: true, suspects, zrwa_lost };
        }
        let others = subsets(&others(count, &suspects), parities - suspects.len());
        let mut lost = Vec::new();
        for kept in subsets(&offered, offered.len()) {
            let gone = suspects.iter().copied().filter(|member| !kept.contains(member));
            lost.extend(others.iter().map(|others| gone.clone().chain(others.iter().copied()).collect()));
        }
        Losses { lost, offered: offered.len() == suspects.len(), suspects, zrwa_lost }
    }

    /// A member that may be struck now: a suspect, or any member if there is room for another suspect.
    fn victim(&mut self, run_state: &RunState) -> usize {
        let suspects = run_state.suspects.members();
        let others = || others(self.members.len(), &suspects);
        match suspects[..] {
            [member] if run_state.suspects.is_full() => member,
            [] => self.rng.below(self.members.len() as u64) as usize,
            _ if run_state.suspects.is_full() => *self.rng.pick(&suspects),
            _ if self.rng.chance(1, 2) => *self.rng.pick(&suspects),
            _ => *self.rng.pick(&others()),
        }
    }

    /// Strikes a member, occasionally.
    fn misfortune(&mut self, run_state: &mut RunState) {
        let pace = &self.scenario.pace;
        if pace.slow_per_myriad > 0 && self.rng.chance(pace.slow_per_myriad, 10_000) {
            let (member, events) =
                (self.rng.below(self.members.len() as u64) as usize, 1 + self.rng.below(400));
            if let Some(bay) = self.members[member] {
                self.command_queue.slow_down(bay, events);
            }
        }
        let m = &self.scenario.misfortune;
        let power = if self.members.len() > 1 { m.power } else { 0 };
        let rates = [
            m.write_fault,
            m.read_fault,
            m.silence,
            m.vanish,
            m.dead_block,
            m.dead_zone,
            m.command,
            m.fail,
            power,
        ];
        let total: u64 = rates.iter().sum();
        if total == 0 || !self.rng.chance(total, 100_000) {
            return;
        }
        let member = self.victim(run_state);
        let Some(bay) = self.drive_of(member) else { return };
        if self.command_queue.is_gone(bay) {
            return;
        }
        let kind = self.rng.weighted(&rates);
        match kind {
            0 => self.command_queue.set_fault(bay, Fault::Write),
            1 => self.command_queue.set_fault(bay, Fault::Read),
            2 => {
                let executed = self.rng.chance(1, 2);
                self.command_queue.set_fault(bay, Fault::Silence { executed });
            }
            3 => self.command_queue.set_gone(bay, true),
            4 | 5 => self.damage(run_state, bay, kind == 5),
            6 => self.fail_command(bay),
            8 => {
                let cut = self.draw_cut();
                self.lose_power(run_state, member, cut);
            }
            _ => {
                let Some(subject) = &self.subject else { return };
                if self.member_state(member) == Some(MemberState::Active) && run_state.failing.is_none() {
                    let work = subject.fail(member);
                    run_state.failing = Some(self.start(work));
                }
            }
        }
        self.counts.faults += 1;
        const NAMES: [&str; 9] = [
            "write fault",
            "read fault",
            "silence",
            "vanishes",
            "dead block",
            "dead zone",
            "command fails",
            "failed by hand",
            "loses power",
        ];
        self.trace.note(|| format!("member {member} (drive{bay}): {}", NAMES[kind]));
        self.coverage.struck = NAMES[kind];
        run_state.suspects.of(member).struck = true;
        if let Some(repair) = run_state.repair.as_mut().filter(|repair| repair.rests_on(member)) {
            repair.struck = true;
        }
        if let Some(replacement_drive) =
            self.replacement_drive.as_mut().filter(|replacement_drive| replacement_drive.bay == bay)
        {
            replacement_drive.struck = true;
        }
    }

    /// Draws the losses of a power loss of one drive.
    fn draw_cut(&mut self) -> Cut {
        let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(3, 4);
        Cut { cache_lost, zrwa_lost: self.rng.chance(1, 2) }
    }

    /// The drive of a member loses power while the others keep it.
    fn lose_power(&mut self, run_state: &mut RunState, member: usize, cut: Cut) {
        let Some(bay) = self.drive_of(member) else { return };
        self.trace.note(|| format!("member {member} (drive{bay}) loses power: {cut:?}"));
        run_state.suspects.of(member).zrwa_lost |= cut.zrwa_lost;
        self.command_queue.power_cycle(bay, &mut self.rng, cut);
    }

    /// After the process was killed, all drives lose power, or as many as may be struck. The next process still gets
    /// the tails of the killed one.
    fn lose_power_after_kill(&mut self, run_state: &mut RunState) {
        let is_volatile = |bay: &&Bay| self.command_queue.geometry(**bay).volatile_cache;
        let volatile = self.members.iter().flatten().filter(is_volatile).count();
        // Otherwise these members would lack parts of zones without being suspects.
        let is_cut = volatile == 0 || volatile > self.scenario.parities;
        if is_cut && self.rng.chance(1, 2) {
            let cache_lost = volatile > 0;
            self.trace.note(|| format!("all drives lose power; caches lost: {cache_lost}"));
            if cache_lost {
                self.coverage.end = "kill and power loss";
                self.oracle.power_cut();
                run_state.caches_next = false;
            }
            for bay in 0..self.command_queue.count() {
                self.command_queue.power_cycle(bay, &mut self.rng, Cut { cache_lost, zrwa_lost: false });
            }
        } else if self.members.len() > 1 {
            let victim = self.victim(run_state);
            let cut = self.draw_cut();
            self.lose_power(run_state, victim, cut);
        }
    }

    /// A command of some kind fails, or takes effect after the host has given up on it.
    fn fail_command(&mut self, bay: Bay) {
        let fault = match self.rng.chance(1, 4) {
            true => Fault::Tardy { events: 1 + self.rng.below(300) },
            false => Fault::Fail { kind: *self.rng.pick(&Kind::ALL), late: self.rng.chance(1, 2) },
        };
        self.trace.note(|| format!("drive{bay}: {fault:?}"));
        self.command_queue.set_fault(bay, fault);
    }

    /// Records that the array has been assembled on its drives, at once or after having been in deferred-write mode.
    fn note_begun(&self, run_state: &mut RunState) {
        let holds_back = self.subject.as_ref().is_none_or(|subject| subject.is_deferred());
        if !holds_back && !std::mem::replace(&mut run_state.begun, true) {
            run_state.spare_drives.assemblies += 1;
            run_state.suspects.iter_mut().for_each(|suspect| suspect.zrwa_lost = false);
        }
    }

    pub(super) fn member_state(&self, member: usize) -> Option<MemberState> {
        self.subject.as_ref()?.members().get(member).map(|(state, _)| *state)
    }

    /// Records the drives that the array has taken: after a power cut during a replacement, a member may be on its old
    /// drive.
    ///
    /// # Errors
    /// The array has taken a drive that it must not take.
    fn note_drives(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        self.retire_heir(run_state);
        self.note_places(run_state)
    }

    /// As [`World::note_drives`], for drives that were being attached.
    ///
    /// # Errors
    /// As [`World::note_drives`].
    pub(super) fn note_places(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        let Some(subject) = &self.subject else { return Ok(()) };
        let replacement_drive = self.replacement_drive.map(|replacement_drive| replacement_drive.bay);
        for (member, (state, drive)) in subject.members().into_iter().enumerate() {
            let bay = drive.strip_prefix("drive").and_then(|bay| bay.parse::<Bay>().ok());
            if state == MemberState::Out || bay.is_none() || bay == replacement_drive {
                continue;
            }
            // If it belonged to another array, it has been attached since.
            self.foreign.retain(|foreign| Some(*foreign) != bay);
            if bay == self.members[member] {
                continue;
            }
            if !run_state.half_attached.contains(&member)
                || bay.is_some_and(|bay| run_state.spare_drives.has(bay))
            {
                return Err(Failure(format!("member {member} is {drive}, which is not its drive")));
            }
            self.trace.note(|| format!("member {member} is {drive} again"));
            // Faults of that drive may still come.
            run_state.suspects.iter_mut().filter(|s| s.member == member).for_each(|s| s.struck = true);
            // The same drive may have been the designated drive of another member, too.
            self.members.iter_mut().for_each(|place| _ = place.take_if(|taken| Some(*taken) == bay));
            let other = std::mem::replace(&mut self.members[member], bay);
            run_state.attic.retain(|old| Some(*old) != bay);
            // The other drive's attachment was interrupted, so it does not belong to the array.
            if other.is_some() {
                run_state.half_attached.remove(&member);
            }
        }
        Ok(())
    }

    /// Updates the suspects: members that are active and undamaged are cleared. The `filled` members have to be active.
    ///
    /// # Errors
    /// A member is not active without any cause.
    pub(super) fn note_active(
        &mut self,
        run_state: &mut RunState,
        filled: Option<&[usize]>,
    ) -> Result<(), Failure> {
        self.hear(|member| run_state.suspects.get(member).is_some())?;
        let Some(subject) = &self.subject else { return Ok(()) };
        let states = subject.members();
        let is_active = |member: usize| states.get(member).is_some_and(|s| s.0 == MemberState::Active);
        for (member, (state, _)) in states.iter().enumerate() {
            if self.scenario.cramped && *state == MemberState::Rebuilding && filled.is_none() {
                // Power cuts have displaced more blocks than its log has room for. Enough others are sound, or the
                // array would not leave this one out.
                run_state.suspects.take_in(member, is_active);
            }
            let is_filled = filled.is_some_and(|filled| filled.contains(&member));
            let excused = run_state.suspects.get(member).is_some() && !is_filled;
            if *state != MemberState::Active && !excused {
                return Err(Failure(format!("member {member} is {state:?}, without any cause")));
            }
        }
        let (mut damaged, none) = (run_state.suspects.members(), run_state.suspects.is_empty());
        damaged.retain(|member| self.is_damaged(run_state, *member));
        // A deferred-write array has restored nothing yet: its report on other members is only a plan.
        let holds_back = self.subject.as_ref().is_some_and(|subject| subject.is_deferred());
        let is_lacking =
            |s: &Suspect| holds_back || s.zrwa_lost || !is_active(s.member) || damaged.contains(&s.member);
        run_state.suspects.retain(|s| s.struck || is_lacking(s));
        if run_state.suspects.is_empty() && !none {
            self.coverage.struck = "";
        }
        Ok(())
    }

    /// Cuts the power, kills the process, or shuts the drives down; with `strike`, members may be lost at the same
    /// moment, or lose their ZRWAs in the power cut.
    pub(super) fn cut(&mut self, run_state: &mut RunState, strike: bool) -> Result<(), Failure> {
        self.note_replacement_drive(run_state);
        self.note_changed(run_state)?;
        run_state.changing = None;
        (run_state.repair, run_state.failing, run_state.coming_back, run_state.taken) =
            (None, None, None, None);
        self.note_begun(run_state);
        self.note_attached(run_state);
        self.note_half_attached(run_state);
        run_state.spare_drives.refused.clear();
        run_state.back.clear();
        let victim = self.victim(run_state);
        let mut zrwa_lost = Vec::new();
        let m = &self.scenario.misfortune;
        let draw = self.rng.below(100);
        let end = match (m.kill_percent, m.shutdown_percent) {
            _ if run_state.caches_next => End::PowerCut,
            (kills, _) if draw < kills => End::Kill,
            (kills, shutdowns) if draw < kills + shutdowns => End::Shutdown,
            _ => End::PowerCut,
        };
        // A ZRWA that was just opened again is lost more often.
        let lose_new = run_state.reopening && end == End::PowerCut && self.rng.chance(1, 2);
        if strike {
            zrwa_lost.extend(self.strike_at_end(run_state, victim, end, lose_new));
            for _ in 1..self.scenario.parities {
                let victim = self.victim(run_state);
                if self.rng.chance(1, 2) {
                    zrwa_lost.extend(self.strike_at_end(run_state, victim, end, false));
                }
            }
        }
        match end {
            End::PowerCut => {
                let caches_next = std::mem::take(&mut run_state.caches_next);
                self.counts.cuts_after_kills += u64::from(caches_next);
                let cache_lost = self.scenario.drive.volatile_cache && (caches_next || self.rng.chance(3, 4));
                self.cut_power(|bay| Cut { cache_lost, zrwa_lost: zrwa_lost.contains(&bay) })?;
            }
            End::Kill => {
                self.kill_process();
                run_state.caches_next = self.scenario.drive.volatile_cache && self.rng.chance(1, 2);
                let percent = self.scenario.misfortune.power_after_kill_percent;
                if percent > 0 && self.rng.chance(percent, 100) {
                    self.lose_power_after_kill(run_state);
                }
            }
            End::Shutdown => self.shut_down()?,
        }
        run_state.reopening |= end == End::Shutdown;
        // A drive that had vanished works again from now on, if it is offered.
        self.pardon(run_state);
        Ok(())
    }

    /// At an end, a member is lost, or its ZRWA, which is certain for a `new` one in a power cut. Returns the drive
    /// that loses its ZRWA.
    fn strike_at_end(&mut self, run_state: &mut RunState, victim: usize, end: End, new: bool) -> Option<Bay> {
        let m = &self.scenario.misfortune;
        let (lost_percent, zrwa_percent) = (m.member_lost_percent, m.zrwa_lost_percent);
        if !new && self.rng.chance(lost_percent, 100) {
            self.lose(run_state, victim);
            return None;
        }
        if end != End::PowerCut || !new && !self.rng.chance(zrwa_percent, 100) {
            return None;
        }
        run_state.suspects.of(victim).zrwa_lost = true;
        self.counts.zrwa_losses += 1;
        self.trace.note(|| format!("member {victim} loses its ZRWA"));
        self.drive_of(victim)
    }

    /// The drive of `member` is not offered to the array from now on.
    fn lose(&mut self, run_state: &mut RunState, member: usize) {
        let suspect = run_state.suspects.of(member);
        if !suspect.absent {
            suspect.absent = true;
            self.counts.member_losses += 1;
            self.trace.note(|| format!("member {member} is lost"));
        }
    }

    /// Drives to assemble from, in random order, sometimes with stale ones among them.
    ///
    /// # Errors
    /// The creation of a drive of another array fails.
    fn offered(&mut self, run_state: &mut RunState) -> Result<Vec<Bay>, Failure> {
        let stale_percent = self.scenario.misfortune.stale_returns_percent;
        if !run_state.suspects.is_full() && self.rng.chance(1, 4) {
            // An old copy is offered instead.
            let copied = run_state.spare_drives.copied();
            if !copied.is_empty() {
                let member = *self.rng.pick(&copied);
                self.lose(run_state, member);
            }
        }
        for suspect in run_state.suspects.iter_mut().filter(|suspect| suspect.absent) {
            if self.rng.chance(stale_percent, 200) {
                suspect.absent = false;
                self.trace.note(|| format!("member {} is back", suspect.member));
            }
        }
        let mut bays = self.kept(&run_state.suspects.absent());
        for bay in &run_state.attic {
            if self.rng.chance(stale_percent, 400) {
                bays.push(*bay);
            }
        }
        let (members, command_queue) = (self.members.clone(), self.command_queue.clone());
        let RunState { spare_drives, damaged, half_attached, .. } = run_state;
        self.offer_spare_drives(spare_drives, &mut bays, |member| {
            let sound = |bay: Bay| !command_queue.is_gone(bay) && !damaged.contains(&bay);
            !half_attached.contains(&member) && members[member].is_some_and(sound)
        })?;
        self.rng.shuffle(&mut bays);
        self.trace.note(|| format!("assembly from drives {bays:?}"));
        Ok(bays)
    }

    /// Assembles until it succeeds, with more ends on the way, and checks everything.
    pub(super) fn recover(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        let (mut interruptions, mut faults) = (0, 0);
        loop {
            if interruptions < 4 && self.change_at_rest(run_state)? {
                interruptions += 1;
                self.cut(run_state, true)?;
                continue;
            }
            let offered = self.offered(run_state)?;
            let changes = self.changes(&offered);
            let drives = offered.iter().map(|bay| self.drive(*bay)).collect();
            let hold_back = self.rng.chance(self.scenario.misfortune.hold_back_percent, 100);
            let how = AssembleOptions { hold_back, ..self.how() };
            let pending = self.start(self.maker.assemble(&self.runtime, drives, how));
            let percent = self.scenario.misfortune.cut_in_recovery_percent;
            let interrupt = interruptions < 4 && (run_state.caches_next || self.rng.chance(percent, 100));
            let events = interrupt.then(|| 1 + self.rng.below(400));
            run_state.caches_next &= interrupt;
            let fault_percent = self.scenario.misfortune.fault_in_recovery_percent;
            let strike = faults < 2 && self.rng.chance(fault_percent, 100);
            // The original has to be readable, or the copy would be accepted.
            let strike = strike && !run_state.spare_drives.any_fresh(&offered);
            let result = match strike {
                true => {
                    faults += 1;
                    self.wait_and_strike(run_state, &pending, events)?
                }
                false => self.wait(&pending, events, false)?,
            };
            match result {
                None => {
                    interruptions += 1;
                    self.counts.interrupted_recoveries += 1;
                    self.forks.notice(Moment::Interrupted);
                    self.fork_if_due(run_state)?;
                    let strike = run_state.reopening || self.rng.chance(1, 3);
                    self.cut(run_state, strike)?;
                    continue;
                }
                // No more members have been struck than it can do without: only drives that do not belong to the array
                // are a reason.
                Some(Err(why)) => {
                    let RunState { spare_drives, half_attached, .. } = run_state;
                    self.judge_refusal(spare_drives, half_attached, &offered, &why)?;
                    self.check_spare_drives(spare_drives, &[])?;
                    if self.changes(&offered) != changes {
                        return Err(Failure(format!("it refuses ({why}), but has changed drives")));
                    }
                    continue;
                }
                Some(Ok(subject)) => {
                    self.check_spare_drives(&run_state.spare_drives, &offered)?;
                    run_state.begun = false;
                    run_state.reopening = false;
                    let struck = run_state.suspects.iter().any(|suspect| suspect.struck);
                    self.oracle.volatile_cache = self.promise(&*subject, &offered, struck)?;
                    self.take_subject(subject)?;
                    self.note_begun(run_state);
                    run_state.caches_next = false;
                }
            }
            let report = self.report()?;
            let members = self.subject.as_ref().map(|subject| subject.members());
            let offline = self.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
            self.trace.note(|| format!("assembled; {}; {members:?} {offline:?}", brief(&report)));
            self.recovered(&report)?;
            self.note_drives(run_state)?;
            // Until the first write of the array the old drive may be the member, and the array may not have read the
            // identity of the drive of a member that it does without.
            if run_state.begun {
                let is_out = |member: usize| self.member_state(member) == Some(MemberState::Out);
                run_state
                    .half_attached
                    .retain(|member| run_state.suspects.is_absent(*member) || is_out(*member));
            }
            self.note_active(run_state, None)?;
            if interruptions < 4 && self.rng.chance(1, 6) {
                // The report has to hold from now on, even if nothing else happens.
                interruptions += 1;
                if self.rng.chance(1, 2) {
                    // Before the process could leave tails of its own.
                    self.subject = None;
                }
                self.cut(run_state, true)?;
                continue;
            }
            self.count_judgement();
            self.forks.notice(Moment::Recovered);
            return self.verify();
        }
    }

    /// As [`World::wait`] for an assembly, at some moment of which a command of one member fails, or its drive vanishes
    /// until the next end.
    fn wait_and_strike<T>(
        &mut self,
        run_state: &mut RunState,
        pending: &Pending<T>,
        events: Option<u64>,
    ) -> Result<Option<Result<T, SubjectError>>, Failure> {
        let most = 1u64 << self.rng.below(9);
        let before = self.rng.below(events.unwrap_or(most).min(most));
        if let Some(result) = self.wait(pending, Some(before), false)? {
            return Ok(Some(result));
        }
        let member = self.victim(run_state);
        let absent = run_state.suspects.is_absent(member);
        if let Some(bay) = self.drive_of(member).filter(|_| !absent) {
            let executed = self.rng.chance(1, 2);
            let kind = self.rng.below(7);
            match kind {
                0 | 1 => self.command_queue.set_fault(bay, Fault::Read),
                2 => self.command_queue.set_fault(bay, Fault::Write),
                3 => self.command_queue.set_fault(bay, Fault::Silence { executed }),
                4 => self.command_queue.set_gone(bay, true),
                _ => self.fail_command(bay),
            }
            const NAMES: [&str; 7] = [
                "read fault",
                "read fault",
                "write fault",
                "silence",
                "vanishes",
                "command fails",
                "command fails",
            ];
            self.trace.note(|| format!("member {member} (drive{bay}) in assembly: {}", NAMES[kind as usize]));
            self.coverage.struck = NAMES[kind as usize];
            self.counts.faults += 1;
            run_state.suspects.of(member).struck = true;
        }
        let result = self.wait(pending, events.map(|events| events - before), false)?;
        if let Some(bay) = self.members[member] {
            self.command_queue.clear_fault(bay);
        }
        Ok(result)
    }

    /// Whether a refusal names a member or its drive.
    pub(super) fn names(&self, member: usize, why: &SubjectError) -> bool {
        let drive = self.members[member];
        why.members().contains(&member) || drive.is_some_and(|bay| self.names_drive(bay, why))
    }

    /// Ends the faults that have struck suspects since the process began.
    fn pardon(&mut self, run_state: &mut RunState) {
        run_state.suspects.iter_mut().for_each(|suspect| suspect.struck = false);
        for bay in self.kept(&[]).iter().chain(&run_state.attic) {
            self.command_queue.set_gone(*bay, false);
        }
    }

    /// The subject's report of all zones.
    pub(super) fn report(&mut self) -> Result<Vec<ZoneInfo>, Failure> {
        let count = self.oracle.zones.len() as u32;
        let done = self.ask(vec![Command::Report { first: ZoneIndex(0), count }])?;
        let Some(done) = done.into_iter().next() else { return Err(Failure("no report".into())) };
        done.result.map_err(|error| Failure(format!("report: {error}")))?;
        Ok(done.zones)
    }

    /// Reads every zone up to its tail, and a few blocks beyond.
    pub(super) fn verify(&mut self) -> Result<(), Failure> {
        const BEYOND: u64 = 4;
        let Some(limits) = self.limits.clone() else { return Ok(()) };
        let most = limits.max_transfer_blocks as u64;
        for zone in 0..limits.zones {
            let end = self.oracle.zones[zone as usize].submitted();
            let end = (end + BEYOND).min(limits.zone_capacity_blocks);
            let (mut points, mut commands) = (Vec::new(), Vec::new());
            let mut block = 0;
            while block < end {
                let blocks = most.min(end - block);
                points.push(self.oracle.read(zone, block));
                let lba = Lba(limits.start(ZoneIndex(zone)).0 + block);
                commands.push(Command::read(lba, self.pool.take(blocks).freeze()));
                block += blocks;
            }
            for (point, done) in points.into_iter().zip(self.ask(commands)?) {
                done.result.map_err(|error| {
                    Failure(format!("reading zone {zone} from block {} on: {error}", point.block))
                })?;
                self.oracle.check_read(point, &done.data)?;
                self.pool.give(done.data);
            }
        }
        Ok(())
    }

    /// The end of the run: repairs, checks, and checks again without as many members as may be lost.
    fn finale(&mut self, run_state: &mut RunState) -> Result<(), Failure> {
        self.drain()?;
        run_state.cut_in_rebuild = false;
        let broken = self.broken(run_state);
        if !broken.is_empty() {
            self.start_repair(run_state, &broken)?;
            while run_state.repair.is_some() {
                self.event(false, true)?;
                self.note_attached(run_state);
                self.finish_repair(run_state)?;
            }
        }
        self.verify()?;
        for _ in 0..self.scenario.parities {
            let member = self.rng.below(self.members.len() as u64) as usize;
            if !run_state.suspects.is_full() && self.scenario.misfortune.member_lost_percent > 0 {
                self.lose(run_state, member);
            }
        }
        self.cut(run_state, false)?;
        self.recover(run_state)
    }
}

pub(super) fn brief(report: &[ZoneInfo]) -> String {
    let zones: Vec<String> = report.iter().map(|z| format!("{:?} {}", z.state, z.wp_blocks)).collect();
    zones.join(", ")
}
