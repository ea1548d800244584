//! The life of a world: made, worked on, struck by misfortunes, cut, recovered, checked; again.
//!
//! One rule keeps the run inside what the array promises: at any time at most one member is
//! `suspect`, which is the only one that may be lost, lose its ZRWA or suffer faults. Another one
//! may only be struck when the array has said that all members are active again, and no fault of
//! the media is left on the suspect.

use super::{
    fork::{Losses, Moment},
    oracle::Oracle,
    scenario::Scenario,
    shelf::Shelf,
    subject::{How, Subject, Work},
    wire::{Bay, Fault},
    world::{End, Failure, Pending, World},
};
use crate::ssd::{Cut, Fault as MediaFault, Kind};
use engine::{
    array::{CreateOptions, MemberState},
    device::Command,
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::{cell::Cell, collections::BTreeSet, rc::Rc};

/// The member that misfortunes may strike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    pub member: usize,
    /// Something struck its drive since the power came on.
    pub struck: bool,
    /// Its drive is pulled out: it is not offered to the array.
    absent: bool,
    /// It has lost its ZRWA, and no recovery has ended since.
    zrwa_lost: bool,
}

impl Suspect {
    pub fn new(member: usize) -> Suspect {
        Suspect { member, struck: false, absent: false, zrwa_lost: false }
    }
}

/// A repair that goes on in the background.
pub(super) struct Repair {
    pub member: usize,
    pub pending: Pending<u64>,
    /// The member under repair was struck meanwhile: the repair may fail.
    pub struck: bool,
    /// The drive is copied to another one.
    pub copies: bool,
}

/// What a run remembers between its parts.
#[derive(Default)]
pub(super) struct Course {
    pub suspect: Option<Suspect>,
    /// Drives whose media are damaged: a member stays suspect until it has another drive.
    pub damaged: BTreeSet<Bay>,
    pub repair: Option<Repair>,
    /// Set to `true` once an heir is the member.
    pub taken: Option<Rc<Cell<bool>>>,
    /// Drives that were replaced or given up.
    pub attic: Vec<Bay>,
    /// A member is being taken out by hand.
    pub failing: Option<Pending<()>>,
    /// The array has been assembled on its drives since the last end.
    begun: bool,
    /// One comes back that was missing.
    pub coming_back: Option<Pending<()>>,
    /// A drive that is being put in place: set to `false` once the array has taken it.
    attaching: Option<(usize, Rc<Cell<bool>>)>,
    /// The drive of this member was being put in place when the power went.
    half_attached: Option<usize>,
    /// The power is going to be cut while the repair goes on.
    cut_in_rebuild: bool,
    /// A process was killed, and what it left in volatile caches will be lost with the power next.
    caches_next: bool,
    /// The drives were shut down and no recovery has ended since: it gives zones their ZRWAs again.
    reopening: bool,
    shelf: Shelf,
}

impl World<'_> {
    /// Runs the whole life.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn run(&mut self) -> Result<(), Failure> {
        let mut course = Course::default();
        let scenario = self.scenario.clone();
        self.trace.note(|| format!("{scenario:?}"));
        if !self.create()? {
            return Ok(());
        }
        for _ in 0..self.scenario.rounds {
            self.work(&mut course)?;
            self.cut(&mut course, true)?;
            self.recover(&mut course)?;
        }
        self.finale(&mut course)
    }

    /// Makes the subject; `false` if it declines the geometry. Sometimes the power is cut first.
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

    /// Takes the new subject; `false` if there is none.
    ///
    /// # Errors
    /// If it promises what its drives cannot keep, or less.
    pub(super) fn created(&mut self, result: Result<Rc<dyn Subject>, String>) -> Result<bool, Failure> {
        Ok(match result {
            Ok(subject) => {
                let geometry = subject.geometry().clone();
                self.trace.note(|| format!("created: {geometry:?}"));
                let volatile_cache = self.promise(&*subject, &[], false)?;
                self.oracle = Oracle::new(geometry.zones, geometry.zone_capacity_blocks, volatile_cache);
                self.limits = Some(geometry);
                self.subject = Some(subject);
                true
            }
            Err(why) => {
                self.counts.refusals += 1;
                self.trace.note(|| format!("not created: {why}"));
                self.refusal = Some(why);
                false
            }
        })
    }

    /// Lets the load run for a while, with misfortunes and repairs.
    fn work(&mut self, course: &mut Course) -> Result<(), Failure> {
        let mut budget = 1 + self.rng.below(self.scenario.work_events);
        if self.rng.chance(1, 3) {
            // Cuts that come soon after a recovery are the worst.
            budget = 1 + self.rng.below(budget / 8 + 1);
        }
        let copied = self.rng.chance(self.scenario.misfortune.copies_percent, 100);
        let copy_at = copied.then(|| self.rng.below(budget));
        let mut done = 0;
        while done < budget {
            if copy_at == Some(done) {
                self.copy_somebody(course)?;
            }
            self.misfortune(course);
            self.repair(course, &mut budget, done)?;
            self.replace_somebody(course)?;
            self.come_back(course);
            self.event(true, course.repair.is_some())?;
            self.note_attached(course);
            self.finish_repair(course)?;
            self.note_heir(course);
            if self.heir.is_some_and(|heir| self.takes_over(heir)) && self.rng.chance(1, 200) {
                // It does not take long.
                budget = done;
            }
            self.forks.notice(Moment::Event);
            self.fork_if_due(course)?;
            done += 1;
        }
        if self.rng.chance(self.scenario.misfortune.drain_percent, 100) {
            self.drain()?;
        }
        Ok(())
    }

    /// Copies the drive of a member that takes part.
    fn copy_somebody(&mut self, course: &mut Course) -> Result<(), Failure> {
        self.note_begun(course);
        let member = self.rng.below(self.members.len() as u64) as usize;
        // While an array begins that has held back, nobody can tell what a copy has of that.
        let begun = self.subject.as_ref().is_some_and(|subject| !subject.is_provisional());
        let takes_part = begun && self.member_state(member).is_some_and(|state| state != MemberState::Out);
        let attaching =
            course.attaching.as_ref().is_some_and(|(other, attaching)| *other == member && attaching.get());
        match takes_part && !attaching && !self.is_damaged(course, member) {
            true => self.copy_member(&mut course.shelf, member),
            false => Ok(()),
        }
    }

    /// Forks the world, if that was planned for now.
    fn fork_if_due(&mut self, course: &Course) -> Result<(), Failure> {
        if self.forks.take() {
            let losses = self.losses(course);
            self.fork(losses)?;
        }
        Ok(())
    }

    /// Who may be missing if the world ends now.
    fn losses(&self, course: &Course) -> Losses {
        let absent = course.suspect.is_some_and(|suspect| suspect.absent);
        let suspect = course.suspect.map(|suspect| suspect.member).or_else(|| self.unsound());
        let lost = match suspect {
            // A single drive has no redundancy to be tested.
            _ if self.members.len() == 1 => vec![None],
            None => std::iter::once(None).chain((0..self.members.len()).map(Some)).collect(),
            Some(member) => {
                let doubtful = course.half_attached.is_some()
                    || course.attaching.as_ref().is_some_and(|(_, attaching)| attaching.get());
                let offered = !absent && !doubtful && !self.is_damaged(course, member);
                std::iter::once(Some(member)).chain(offered.then_some(None)).collect()
            }
        };
        let zrwa_lost = course.suspect.is_some_and(|suspect| suspect.zrwa_lost);
        Losses { lost, suspect, zrwa_lost }
    }

    /// The member that may be struck now: the suspect, or any if there is none.
    fn victim(&mut self, course: &Course) -> usize {
        match course.suspect {
            Some(suspect) => suspect.member,
            None => self.rng.below(self.members.len() as u64) as usize,
        }
    }

    /// Strikes one member, once in a while.
    fn misfortune(&mut self, course: &mut Course) {
        let pace = &self.scenario.pace;
        if pace.slow_per_myriad > 0 && self.rng.chance(pace.slow_per_myriad, 10_000) {
            let (member, events) =
                (self.rng.below(self.members.len() as u64) as usize, 1 + self.rng.below(400));
            if let Some(bay) = self.members[member] {
                self.wire.slow_down(bay, events);
            }
        }
        let m = &self.scenario.misfortune;
        let rates =
            [m.write_fault, m.read_fault, m.silence, m.vanish, m.dead_block, m.dead_zone, m.command, m.fail];
        let total: u64 = rates.iter().sum();
        if total == 0 || !self.rng.chance(total, 100_000) {
            return;
        }
        let member = self.victim(course);
        let Some(bay) = self.drive_of(member) else { return };
        if self.wire.is_gone(bay) {
            return;
        }
        let mut draw = self.rng.below(total);
        let mut kind = 0;
        while draw >= rates[kind] {
            draw -= rates[kind];
            kind += 1;
        }
        match kind {
            0 => self.wire.set_fault(bay, Fault::Write),
            1 => self.wire.set_fault(bay, Fault::Read),
            2 => {
                let executed = self.rng.chance(1, 2);
                self.wire.set_fault(bay, Fault::Silence { executed });
            }
            3 => self.wire.set_gone(bay, true),
            4 | 5 => {
                course.damaged.insert(bay);
                self.damage(bay, kind == 5);
            }
            6 => self.fail_command(bay),
            _ => {
                let Some(subject) = &self.subject else { return };
                if self.member_state(member) == Some(MemberState::Active) && course.failing.is_none() {
                    let work = subject.fail(member);
                    course.failing = Some(self.start(work));
                }
            }
        }
        self.counts.faults += 1;
        const NAMES: [&str; 8] = [
            "write fault",
            "read fault",
            "silence",
            "vanishes",
            "dead block",
            "dead zone",
            "command fails",
            "failed by hand",
        ];
        self.trace.note(|| format!("member {member} (drive{bay}): {}", NAMES[kind]));
        self.coverage.struck = NAMES[kind];
        let suspect = course.suspect.get_or_insert(Suspect::new(member));
        suspect.struck = true;
        if let Some(repair) = &mut course.repair {
            repair.struck = true;
        }
        if let Some(heir) = self.heir.as_mut().filter(|heir| heir.bay == bay) {
            heir.struck = true;
        }
    }

    /// A command of some kind fails, or takes effect when the host has given up on it.
    fn fail_command(&mut self, bay: Bay) {
        let fault = match self.rng.chance(1, 4) {
            true => Fault::Tardy { events: 1 + self.rng.below(300) },
            false => Fault::Fail { kind: *self.rng.pick(&Kind::ALL), late: self.rng.chance(1, 2) },
        };
        self.trace.note(|| format!("drive{bay}: {fault:?}"));
        self.wire.set_fault(bay, fault);
    }

    /// Damages the media of a drive for good: one block, or a whole zone.
    fn damage(&mut self, bay: Bay, whole_zone: bool) {
        let geometry = self.wire.geometry(bay).clone();
        let mut zone = ZoneIndex(self.rng.below(geometry.zones as u64) as u32);
        let mut block = self.rng.below(geometry.zone_capacity_blocks);
        if self.rng.chance(1, 2) {
            // What was written last matters most: near a write pointer, in the metadata log or among data.
            const BELOW: u64 = 24;
            let zones: Vec<_> =
                (0..geometry.zones).map(|z| self.wire.ssd(bay).zones().info(ZoneIndex(z))).collect();
            let begun: Vec<_> = zones.into_iter().filter(|info| info.state.is_active()).collect();
            if !begun.is_empty() {
                let info = begun[self.rng.below(begun.len() as u64) as usize];
                let above = geometry.zrwa.filter(|_| info.zrwa).map_or(0, |zrwa| zrwa.size_blocks);
                let from = info.wp_blocks.saturating_sub(BELOW);
                let to = (info.wp_blocks + above).min(geometry.zone_capacity_blocks);
                (zone, block) = (info.zone, from + self.rng.below((to - from).max(1)));
            }
        }
        let read_only = self.rng.chance(1, 2);
        let fault = match (whole_zone, read_only) {
            (false, _) => MediaFault::Unreadable(Lba(geometry.start(zone).0 + block)),
            (true, true) => MediaFault::ReadOnly(zone),
            (true, false) => MediaFault::Offline(zone),
        };
        self.wire.ssd(bay).faults().after(0, fault);
    }

    /// Starts a repair if one is due. Mostly it gets the time it takes.
    fn repair(&mut self, course: &mut Course, budget: &mut u64, done: u64) -> Result<(), Failure> {
        if course.repair.is_some() {
            if *budget <= done + 1 && !course.cut_in_rebuild {
                *budget += 64;
            }
            return Ok(());
        }
        if course.failing.as_ref().is_some_and(|failing| failing.borrow().is_some()) {
            course.failing = None;
        }
        let (Some(suspect), None, None) = (course.suspect, &course.failing, &course.coming_back) else {
            return Ok(());
        };
        if !self.rng.chance(self.scenario.misfortune.repair, 100_000) {
            return Ok(());
        }
        let member = suspect.member;
        let state = self.member_state(member);
        if state == Some(MemberState::Active) && !self.is_damaged(course, member) {
            return Ok(());
        }
        match state == Some(MemberState::Active) && self.rng.chance(1, 2) {
            true => self.replace(course, member)?,
            false => self.start_repair(course, suspect, state == Some(MemberState::Rebuilding))?,
        }
        course.cut_in_rebuild = self.rng.chance(self.scenario.misfortune.cut_in_rebuild_percent, 100);
        if course.cut_in_rebuild {
            *budget = done + 1 + self.rng.below(400);
        }
        Ok(())
    }

    /// Lets the drive that is missing come back to an array that has held back, once in a while.
    fn come_back(&mut self, course: &mut Course) {
        if course.coming_back.as_ref().is_some_and(|back| back.borrow().is_some()) {
            course.coming_back = None;
        }
        let Some(suspect) = &mut course.suspect else { return };
        let subject = self.subject.clone().filter(|subject| subject.is_provisional());
        let heir = self.heir.filter(|heir| heir.member == suspect.member && heir.lost).map(|heir| heir.bay);
        let (Some(subject), Some(bay)) = (subject, heir.or(self.members[suspect.member])) else { return };
        if suspect.absent && course.coming_back.is_none() && self.rng.chance(1, 64) {
            self.trace.note(|| format!("member {} is back before anything is written", suspect.member));
            suspect.absent = false;
            let work = subject.complete(self.drive(bay));
            course.coming_back = Some(self.start(work));
        }
    }

    /// Starts filling a member: with another drive, unless it is being rebuilt already.
    fn start_repair(
        &mut self,
        course: &mut Course,
        suspect: Suspect,
        rebuilding: bool,
    ) -> Result<(), Failure> {
        let Some(subject) = self.subject.clone() else { return Ok(()) };
        let member = suspect.member;
        let sound = self.members[member].filter(|bay| !self.wire.is_gone(*bay));
        let sound = sound.filter(|_| rebuilding && !self.is_damaged(course, member) && !suspect.absent);
        let mut struck = false;
        let drive = if let Some(bay) = sound {
            self.wire.clear_fault(bay);
            // An error may be on its way yet.
            struck = suspect.struck;
            None
        } else {
            let old = self.members[member].take();
            // A drive that the array may not have taken belongs to nothing.
            course.attic.extend(old.filter(|_| course.half_attached.take().is_none()));
            // An array that holds back has not said so of the heir.
            course.attic.extend(self.heir.take_if(|heir| heir.member == member).map(|heir| heir.bay));
            let (wire, damaged) = (self.wire.clone(), &course.damaged);
            let bay = self.spare(&mut course.attic, |bay| !damaged.contains(&bay) && !wire.is_gone(bay))?;
            self.members[member] = Some(bay);
            course.suspect = Some(Suspect::new(member));
            Some(self.drive(bay))
        };
        self.trace.note(|| {
            let how = drive.as_ref().map_or("where it stopped".into(), |d| format!("with {}", d.name));
            format!("repair of member {member} {how}")
        });
        let attaching = Rc::new(Cell::new(drive.is_some()));
        course.attaching = Some((member, attaching.clone()));
        let work: Work<u64> = Box::pin(async move {
            if let Some(drive) = drive {
                if subject.members().get(member).is_some_and(|(state, _)| *state != MemberState::Out) {
                    subject.fail(member).await?;
                }
                subject.attach(member, drive).await?;
                attaching.set(false);
            }
            subject.rebuild().await
        });
        let pending = self.start(work);
        course.repair = Some(Repair { member, pending, struck, copies: false });
        Ok(())
    }

    /// Takes the result of a repair, if it is there.
    fn finish_repair(&mut self, course: &mut Course) -> Result<(), Failure> {
        let Some(result) = course.repair.as_ref().and_then(|repair| repair.pending.borrow_mut().take())
        else {
            return Ok(());
        };
        let Some(repair) = course.repair.take() else { return Ok(()) };
        self.note_half_attached(course);
        match result {
            // Neither is the array's.
            Err(why) if repair.copies && (course.suspect.is_some() || why.contains("but not copied to")) => {
                self.trace.note(|| format!("not replaced: {why}"));
                Ok(())
            }
            Err(why) if !repair.struck => {
                Err(Failure(format!("the rebuild of member {} failed: {why}", repair.member)))
            }
            Err(_) => Ok(()),
            Ok(_) => {
                self.counts.rebuilds += 1;
                self.forks.notice(Moment::Rebuilt);
                self.trace.note(|| "rebuilt".into());
                let excused = repair.struck || repair.copies && course.suspect.is_some();
                if !excused {
                    self.all_active(course, true)?;
                }
                Ok(())
            }
        }
    }

    /// Takes note that the array has been assembled on its drives, at once or after it had held back.
    fn note_begun(&self, course: &mut Course) {
        let holds_back = self.subject.as_ref().is_none_or(|subject| subject.is_provisional());
        if !holds_back && !std::mem::replace(&mut course.begun, true) {
            course.shelf.assemblies += 1;
            if let Some(suspect) = &mut course.suspect {
                suspect.zrwa_lost = false;
            }
        }
    }

    /// Remembers a drive that the array may or may not have taken.
    fn note_half_attached(&mut self, course: &mut Course) {
        if let Some((member, attaching)) = course.attaching.take()
            && attaching.get()
        {
            course.half_attached = Some(member);
        }
    }

    /// A drive that the array has taken is of no other one any more.
    fn note_attached(&mut self, course: &Course) {
        if let Some((member, attaching)) = &course.attaching
            && !attaching.get()
            && let Some(bay) = self.members[*member]
        {
            self.foreign.remove(&bay);
        }
    }

    fn member_state(&self, member: usize) -> Option<MemberState> {
        self.subject.as_ref()?.members().get(member).map(|(state, _)| *state)
    }

    fn is_damaged(&self, course: &Course, member: usize) -> bool {
        self.drives_of(member).any(|bay| course.damaged.contains(&bay))
    }

    /// Takes note of which drives the array has taken: where the power went while a drive was
    /// replaced, it may be the old one.
    ///
    /// # Errors
    /// It has taken one that it must not.
    fn note_drives(&mut self, course: &mut Course) -> Result<(), Failure> {
        course.attic.extend(self.settle_heir());
        let Some(subject) = &self.subject else { return Ok(()) };
        let heir = self.heir.map(|heir| heir.bay);
        for (member, (state, drive)) in subject.members().into_iter().enumerate() {
            let bay = drive.strip_prefix("drive").and_then(|bay| bay.parse::<Bay>().ok());
            if state == MemberState::Out || bay.is_none() || bay == self.members[member] || bay == heir {
                continue;
            }
            if course.half_attached != Some(member) || bay.is_some_and(|bay| course.shelf.has(bay)) {
                return Err(Failure(format!("member {member} is {drive}, which is not its drive")));
            }
            self.trace.note(|| format!("member {member} is {drive} again"));
            let other = std::mem::replace(&mut self.members[member], bay);
            course.attic.retain(|old| Some(*old) != bay);
            course.attic.extend(other.filter(|_| course.half_attached.take().is_none()));
        }
        Ok(())
    }

    /// Looks whether all members are active, so that another one may be struck from now on.
    fn all_active(&mut self, course: &mut Course, demanded: bool) -> Result<(), Failure> {
        let Some(subject) = &self.subject else { return Ok(()) };
        let states = subject.members();
        for (member, (state, _)) in states.iter().enumerate() {
            if self.scenario.cramped && *state == MemberState::Rebuilding && !demanded {
                // Power cuts have displaced more than its log has room for. There is no other one that is
                // not sound, or it would not do without this one.
                course.suspect.get_or_insert(Suspect::new(member)).member = member;
            }
            let excused = course.suspect.is_some_and(|s| s.member == member) && !demanded;
            if *state != MemberState::Active && !excused {
                return Err(Failure(format!("member {member} is {state:?}, without any cause")));
            }
        }
        let sound = states.iter().all(|(state, _)| *state == MemberState::Active);
        if sound && course.suspect.is_some_and(|s| !s.struck && !self.is_damaged(course, s.member)) {
            course.suspect = None;
            self.coverage.struck = "";
        }
        Ok(())
    }

    /// Cuts the power, kills the process, or shuts the drives down; with `strike`, a member may be lost
    /// at the same moment, or lose its ZRWA with the power.
    fn cut(&mut self, course: &mut Course, strike: bool) -> Result<(), Failure> {
        self.note_heir(course);
        (course.repair, course.failing, course.coming_back, course.taken) = (None, None, None, None);
        self.note_begun(course);
        self.note_attached(course);
        self.note_half_attached(course);
        course.shelf.refused.clear();
        let victim = self.victim(course);
        let mut zrwa_lost = None;
        let m = &self.scenario.misfortune;
        let (lost_percent, zrwa_percent) = (m.member_lost_percent, m.zrwa_lost_percent);
        let draw = self.rng.below(100);
        let end = match (m.kill_percent, m.shutdown_percent) {
            _ if course.caches_next => End::PowerCut,
            (kills, _) if draw < kills => End::Kill,
            (kills, shutdowns) if draw < kills + shutdowns => End::Shutdown,
            _ => End::PowerCut,
        };
        // A ZRWA that was just given again is lost more often.
        let lose_new = course.reopening && end == End::PowerCut && self.rng.chance(1, 2);
        if strike && !lose_new && self.rng.chance(lost_percent, 100) {
            self.lose(course, victim);
        } else if end == End::PowerCut && strike && (lose_new || self.rng.chance(zrwa_percent, 100)) {
            zrwa_lost = self.drive_of(victim);
            course.suspect.get_or_insert(Suspect::new(victim)).zrwa_lost = true;
            self.trace.note(|| format!("member {victim} loses its ZRWA"));
        }
        match end {
            End::PowerCut => {
                let caches_next = std::mem::take(&mut course.caches_next);
                let cache_lost = self.scenario.drive.volatile_cache && (caches_next || self.rng.chance(3, 4));
                self.cut_power(|bay| Cut { cache_lost, zrwa_lost: zrwa_lost == Some(bay) })?;
            }
            End::Kill => {
                self.kill_process();
                course.caches_next = self.scenario.drive.volatile_cache && self.rng.chance(1, 2);
            }
            End::Shutdown => self.shut_down()?,
        }
        course.reopening |= end == End::Shutdown;
        // A drive that had vanished comes back now, if it is offered.
        self.pardon(course);
        Ok(())
    }

    /// The drive of `member` is not offered to the array from now on.
    fn lose(&mut self, course: &mut Course, member: usize) {
        let suspect = course.suspect.get_or_insert(Suspect::new(member));
        if !suspect.absent {
            suspect.absent = true;
            self.counts.member_losses += 1;
            self.trace.note(|| format!("member {member} is lost"));
        }
    }

    /// Drives to assemble from, in any order: at times with stale ones among them.
    ///
    /// # Errors
    /// Those of making one that is not the array's.
    fn offered(&mut self, course: &mut Course) -> Result<Vec<Bay>, Failure> {
        let stale_percent = self.scenario.misfortune.stale_returns_percent;
        if course.suspect.is_none() && self.rng.chance(1, 4) {
            // Somebody brings an old copy instead.
            let copied = course.shelf.copied();
            if !copied.is_empty() {
                let member = *self.rng.pick(&copied);
                self.lose(course, member);
            }
        }
        if let Some(suspect) = &mut course.suspect
            && suspect.absent
            && self.rng.chance(stale_percent, 200)
        {
            suspect.absent = false;
            self.trace.note(|| format!("member {} is back", suspect.member));
        }
        let absent = course.suspect.filter(|s| s.absent).map(|s| s.member);
        let mut bays = self.kept(absent);
        for bay in &course.attic {
            if self.rng.chance(stale_percent, 400) {
                bays.push(*bay);
            }
        }
        let (members, wire) = (self.members.clone(), self.wire.clone());
        let Course { shelf, damaged, half_attached, .. } = course;
        self.offer_shelf(shelf, &mut bays, |member| {
            let sound = |bay: Bay| !wire.is_gone(bay) && !damaged.contains(&bay);
            *half_attached != Some(member) && members[member].is_some_and(sound)
        })?;
        self.rng.shuffle(&mut bays);
        self.trace.note(|| format!("assembly from drives {bays:?}"));
        Ok(bays)
    }

    /// Assembles until it succeeds, with more power cuts on the way, and checks everything.
    fn recover(&mut self, course: &mut Course) -> Result<(), Failure> {
        let (mut interruptions, mut faults) = (0, 0);
        loop {
            let offered = self.offered(course)?;
            let changes = self.changes(&offered);
            let drives = offered.iter().map(|bay| self.drive(*bay)).collect();
            let hold_back = self.rng.chance(self.scenario.misfortune.hold_back_percent, 100);
            let how = How { hold_back, ..self.how() };
            let pending = self.start(self.maker.assemble(&self.runtime, drives, how));
            let percent = self.scenario.misfortune.cut_in_recovery_percent;
            let interrupt = interruptions < 4 && (course.caches_next || self.rng.chance(percent, 100));
            let events = interrupt.then(|| 1 + self.rng.below(400));
            course.caches_next &= interrupt;
            let fault_percent = self.scenario.misfortune.fault_in_recovery_percent;
            let strike = faults < 2 && self.rng.chance(fault_percent, 100);
            // What the original says has to be heard, or the copy is believed.
            let strike = strike && !course.shelf.any_fresh(&offered);
            let result = match strike {
                true => {
                    faults += 1;
                    self.wait_and_strike(course, &pending, events)?
                }
                false => self.wait(&pending, events, false)?,
            };
            match result {
                None => {
                    interruptions += 1;
                    self.counts.interrupted_recoveries += 1;
                    self.forks.notice(Moment::Interrupted);
                    self.fork_if_due(course)?;
                    let strike = course.reopening || self.rng.chance(1, 3);
                    self.cut(course, strike)?;
                    continue;
                }
                // One member at most has been struck, and is done without: only what is none of the array's
                // is a reason.
                Some(Err(why)) => {
                    let Course { shelf, half_attached, .. } = course;
                    self.judge_refusal(shelf, *half_attached, &offered, &why)?;
                    self.check_shelf(shelf, &[])?;
                    if self.changes(&offered) != changes {
                        return Err(Failure(format!("it refuses ({why}), but has changed drives")));
                    }
                    continue;
                }
                Some(Ok(subject)) => {
                    self.check_shelf(&course.shelf, &offered)?;
                    course.begun = false;
                    course.reopening = false;
                    self.oracle.volatile_cache = self.promise(
                        &*subject,
                        &offered,
                        course.suspect.is_some_and(|suspect| suspect.struck),
                    )?;
                    self.take_subject(subject);
                    self.note_begun(course);
                    course.caches_next = false;
                }
            }
            let report = self.report()?;
            let members = self.subject.as_ref().map(|subject| subject.members());
            let offline = self.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
            self.trace.note(|| format!("assembled; {}; {members:?} {offline:?}", brief(&report)));
            self.see(&report);
            self.oracle.recovered(&report)?;
            self.note_drives(course)?;
            // As long as nothing is written the drive before may be the member.
            if course.begun && course.suspect.is_none_or(|s| !s.absent) {
                course.half_attached = None;
            }
            self.all_active(course, false)?;
            if interruptions < 4 && self.rng.chance(1, 6) {
                // What was reported has to hold from now on, even if nothing else happens.
                interruptions += 1;
                if self.rng.chance(1, 2) {
                    // Before the process could leave tails of its own.
                    self.subject = None;
                }
                self.cut(course, true)?;
                continue;
            }
            self.counts.judgements += 1;
            self.forks.notice(Moment::Recovered);
            return self.verify();
        }
    }

    /// As [`World::wait`] for an assembly; at some moment of it a command of one member fails, or its drive
    /// vanishes until the next end.
    fn wait_and_strike<T>(
        &mut self,
        course: &mut Course,
        pending: &Pending<T>,
        events: Option<u64>,
    ) -> Result<Option<Result<T, String>>, Failure> {
        let most = 1u64 << self.rng.below(9);
        let before = self.rng.below(events.unwrap_or(most).min(most));
        if let Some(result) = self.wait(pending, Some(before), false)? {
            return Ok(Some(result));
        }
        let member = self.victim(course);
        let absent = course.suspect.is_some_and(|suspect| suspect.absent);
        if let Some(bay) = self.drive_of(member).filter(|_| !absent) {
            let executed = self.rng.chance(1, 2);
            let kind = self.rng.below(7);
            match kind {
                0 | 1 => self.wire.set_fault(bay, Fault::Read),
                2 => self.wire.set_fault(bay, Fault::Write),
                3 => self.wire.set_fault(bay, Fault::Silence { executed }),
                4 => self.wire.set_gone(bay, true),
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
            course.suspect.get_or_insert(Suspect::new(member)).struck = true;
        }
        let result = self.wait(pending, events.map(|events| events - before), false)?;
        if let Some(bay) = self.members[member] {
            self.wire.clear_fault(bay);
        }
        Ok(result)
    }

    /// Whether a refusal speaks of a member or its drive.
    pub(super) fn names(&self, member: usize, why: &str) -> bool {
        let drive = self.members[member].map(|bay| format!("drive{bay}"));
        let words = || why.split(|c: char| !c.is_ascii_alphanumeric());
        words().any(|word| Some(word) == drive.as_deref())
            || words().zip(words().skip(1)).any(|pair| pair == ("member", &member.to_string()))
    }

    /// What struck the suspect since the process began is over.
    fn pardon(&mut self, course: &mut Course) {
        if let Some(suspect) = &mut course.suspect {
            suspect.struck = false;
        }
        for bay in self.kept(None).iter().chain(&course.attic) {
            self.wire.set_gone(*bay, false);
        }
    }

    /// What the subject says of its zones.
    pub(super) fn report(&mut self) -> Result<Vec<ZoneInfo>, Failure> {
        let count = self.oracle.zones.len() as u32;
        let done = self.ask(vec![Command::Report { first: ZoneIndex(0), count }])?;
        let Some(done) = done.into_iter().next() else { return Err(Failure("no report".into())) };
        done.result.map_err(|error| Failure(format!("report: {error}")))?;
        Ok(done.zones)
    }

    /// Reads every zone up to its tail, and a little beyond.
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

    /// The end of the run: repairs what is broken, checks, and checks again without each member.
    fn finale(&mut self, course: &mut Course) -> Result<(), Failure> {
        self.drain()?;
        course.cut_in_rebuild = false;
        if let Some(suspect) = course.suspect {
            let state = self.member_state(suspect.member);
            if state != Some(MemberState::Active) || self.is_damaged(course, suspect.member) {
                self.start_repair(course, suspect, state == Some(MemberState::Rebuilding))?;
                while course.repair.is_some() {
                    self.event(false, true)?;
                    self.note_attached(course);
                    self.finish_repair(course)?;
                }
            }
        }
        self.verify()?;
        let member = self.rng.below(self.members.len() as u64) as usize;
        if course.suspect.is_none() && self.scenario.misfortune.member_lost_percent > 0 {
            self.lose(course, member);
        }
        self.cut(course, false)?;
        self.recover(course)
    }
}

/// How the subject is made.
pub(super) fn create_options(scenario: &Scenario, uuid: [u8; 16]) -> CreateOptions {
    let name = "simulated".into();
    let Scenario { chunk_blocks, zone_size_blocks, policy, .. } = *scenario;
    let (host, autostart) = ([0; 16], false);
    CreateOptions { name, uuid, chunk_blocks, zone_size_blocks, policy: Some(policy), host, autostart }
}

pub(super) fn brief(report: &[ZoneInfo]) -> String {
    let zones: Vec<String> = report.iter().map(|z| format!("{:?} {}", z.state, z.wp_blocks)).collect();
    zones.join(", ")
}
