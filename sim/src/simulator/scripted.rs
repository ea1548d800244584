//! Worlds that are played by a script instead of at random.
//!
//! The default order: a task that is ready runs; then the oldest completion is delivered; then the host submits its
//! next operation; then the oldest command is executed. Choice 0 at an event is the default, the others follow in this
//! order.

use super::{
    command_queue::Bay,
    drives::META_ZONES,
    exhaustive::{CacheFate, InFlightFate, Step, ZONE},
    oracle::Change,
    subject::{AssembleOptions, SubjectError, create_options},
    world::{Failure, Pending, World},
};
use emu::ssd::Fault as MediaFault;
use engine::{device::Command, runtime::Runtime, zone::ZoneIndex};

/// The kind of event that a choice was.
pub(super) struct ChoiceKind {
    /// A drive has executed a command.
    pub executes: bool,
    /// The host submits its next operation, which is left to the caller.
    pub issues: bool,
}

impl World<'_> {
    /// From now on tasks run first in, first out.
    pub(super) fn set_in_order(&mut self) {
        self.in_order = true;
        self.runtime = Runtime::new();
    }

    /// Creates the subject in the default order; `false` if it refuses.
    pub(super) fn create_in_order(&mut self) -> Result<bool, Failure> {
        let options = create_options(&self.scenario, [7; 16]);
        let drives = self.members.iter().flatten().map(|bay| self.drive(*bay)).collect();
        let pending = self.start(self.maker.create(&self.runtime, options, drives, self.scenario.join));
        let result = self.wait_in_order(&pending)?;
        self.created(result)
    }

    /// Writes `zone` up to `from_end` blocks below its capacity.
    pub(super) fn fill_to(&mut self, zone: u32, from_end: u64) -> Result<(), Failure> {
        let Some(limits) = self.limits.clone() else { return Ok(()) };
        let end = limits.zone_capacity_blocks.saturating_sub(from_end);
        while self.oracle.zones[zone as usize].submitted() < end {
            let left = end - self.oracle.zones[zone as usize].submitted();
            self.write(zone, left.min(limits.max_transfer_blocks as u64), true, false);
            self.drain_in_order()?;
        }
        Ok(())
    }

    /// Completes all operations in the default order.
    pub(super) fn drain_in_order(&mut self) -> Result<(), Failure> {
        while !self.ops.is_empty() {
            self.advance_in_order()?;
        }
        Ok(())
    }

    pub(super) fn wait_in_order<T>(
        &mut self,
        pending: &Pending<T>,
    ) -> Result<Result<T, SubjectError>, Failure> {
        loop {
            if let Some(result) = pending.borrow_mut().take() {
                return Ok(result);
            }
            self.advance_waiting(|| pending.borrow().is_none())?;
        }
    }

    /// Runs all that can happen now, in the default order.
    pub(super) fn advance_in_order(&mut self) -> Result<(), Failure> {
        self.advance_waiting(|| false)
    }

    /// As [`World::advance_in_order`]; an error if nothing can happen although `waits` is true or operations are
    /// pending.
    fn advance_waiting(&mut self, waits: impl Fn() -> bool) -> Result<(), Failure> {
        self.run_tasks()?;
        self.ready = false;
        self.collect()?;
        let nothing_left = self.command_queue.queued() == 0 && self.command_queue.executed() == 0;
        if nothing_left && (waits() || !self.ops.is_empty()) {
            return Err(self.hang());
        }
        self.command_queue.run_all();
        self.ready = true;
        Ok(())
    }

    /// Number of choices now, with up to `most` commands of each kind; `issue` says whether the host could submit one.
    pub(super) fn choices(&self, issue: bool, most: usize) -> usize {
        let queued = self.command_queue.queued().min(most);
        usize::from(self.ready) + self.command_queue.executed().min(most) + usize::from(issue) + queued
    }

    /// Takes one choice.
    pub(super) fn take_choice(
        &mut self,
        choice: usize,
        issue: bool,
        most: usize,
    ) -> Result<ChoiceKind, Failure> {
        let mut choice = choice;
        let nothing = ChoiceKind { executes: false, issues: false };
        if self.ready {
            if choice == 0 {
                self.ready = self.runtime.step();
                self.collect()?;
                return Ok(nothing);
            }
            choice -= 1;
        }
        let executed = self.command_queue.executed().min(most);
        if choice < executed {
            self.command_queue.deliver(choice);
            self.ready = true;
            return Ok(nothing);
        }
        choice -= executed;
        if issue {
            if choice == 0 {
                return Ok(ChoiceKind { issues: true, ..nothing });
            }
            choice -= 1;
        }
        self.command_queue.execute_now(choice, false);
        Ok(ChoiceKind { executes: true, issues: false })
    }

    /// Whether the host would submit this operation now.
    pub(super) fn can_take(&self, step: Step) -> bool {
        let zone = &self.oracle.zones[ZONE.0 as usize];
        match step {
            Step::Write { .. } | Step::Flush => {
                self.ops.len() < self.scenario.load.queue_depth && zone.change.is_none()
            }
            Step::Finish | Step::Reset => zone.in_flight == 0,
            Step::Replace => true,
            // So that the next write runs into it.
            Step::Wear => self.ops.is_empty(),
            Step::Rebuild => self.unsound_members().next().is_some(),
        }
    }

    /// Submits an operation of a script.
    pub(super) fn issue_step(&mut self, step: Step) -> Result<(), Failure> {
        match step {
            Step::Write { blocks, fua } => {
                let left = self.oracle.capacity - self.oracle.zones[ZONE.0 as usize].submitted();
                self.write(ZONE.0, blocks.min(left), fua, false);
            }
            Step::Flush => self.issue_flush(),
            Step::Finish => self.issue_one_change(ZONE.0, Change::Finish),
            Step::Reset => self.issue_one_change(ZONE.0, Change::Reset),
            // The caller starts these and waits for them.
            Step::Replace | Step::Wear | Step::Rebuild => {}
        }
        self.ready = true;
        self.collect()
    }

    /// Makes the part of the zone on the drive of `member` read-only.
    pub(super) fn wear_in_order(&mut self, member: usize) {
        let parts = self.scenario.aggregate;
        for part in 0..parts {
            let zone = ZoneIndex((ZONE.0 + META_ZONES) * parts + part);
            for bay in self.members[member].iter() {
                let mut ssd = self.command_queue.ssd(*bay);
                ssd.faults().after(0, MediaFault::ReadOnly(zone));
                // Faults take effect with the next command.
                ssd.execute(Command::Report { first: zone, count: 1 });
            }
        }
    }

    /// Starts to rebuild the parts that are lacking.
    pub(super) fn rebuild_in_order(&mut self) -> Option<Pending<u64>> {
        let subject = self.subject.clone()?;
        Some(self.start(subject.rebuild()))
    }

    /// Whether operations are outstanding.
    pub(super) fn is_waiting(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Number of operations that have completed.
    pub(super) fn told(&self) -> u64 {
        self.counts.operations - self.ops.len() as u64
    }

    /// Decides the fate of the commands in flight before a power cut.
    pub(super) fn settle_fate(&mut self, fate: InFlightFate) {
        match fate {
            InFlightFate::None => self.command_queue.drop_queued(),
            InFlightFate::All => self.command_queue.execute_all(),
            InFlightFate::Torn => {}
        }
    }

    /// Decides the loss of unflushed data in a power cut, unless it is to be random. Returns the number of ways to lose
    /// a portion of it, for each zone of a drive that has any.
    ///
    /// # Errors
    /// I/O errors of the drives' media.
    pub(super) fn settle_cache(&mut self, fate: CacheFate) -> Result<Vec<usize>, Failure> {
        let mut parts = Vec::new();
        for bay in self.members.iter().flatten() {
            parts.extend(
                self.command_queue.ssd(*bay).unflushed().into_iter().map(|(zone, ways)| (*bay, zone, ways)),
            );
        }
        for (index, (bay, zone, _)) in parts.iter().enumerate() {
            let lost = match fate {
                CacheFate::Drawn | CacheFate::Kept => false,
                CacheFate::Lost => true,
                CacheFate::OnlyLost(part) => part == index,
                CacheFate::OnlyKept(part) => part != index,
                CacheFate::Partly { part, .. } => part == index,
            };
            if lost {
                let way = if let CacheFate::Partly { way, .. } = fate { Some(way) } else { None };
                let result = self.command_queue.ssd(*bay).lose_unflushed(*zone, way);
                result.map_err(|error| Failure(format!("losing a cache: {error}")))?;
            }
        }
        Ok(parts.into_iter().map(|(_, _, ways)| ways).collect())
    }

    /// Assembles without some members, in the default order.
    pub(super) fn assemble_without(&mut self, lost: &[usize]) -> Result<(), Failure> {
        self.assemble_somehow(lost, false)
    }

    /// As [`World::assemble_without`]; with `hold_back` the array is in deferred-write mode if it can be: it writes
    /// nothing.
    pub(super) fn assemble_somehow(&mut self, lost: &[usize], hold_back: bool) -> Result<(), Failure> {
        // A drive that has not been emptied yet belongs to another array, and would be refused as such.
        let own: Vec<Bay> = self.kept(lost).into_iter().filter(|bay| !self.foreign.contains(bay)).collect();
        let drives = own.iter().map(|bay| self.drive(*bay)).collect();
        let how = AssembleOptions { hold_back, ..self.how() };
        let pending = self.start(self.maker.assemble(&self.runtime, drives, how));
        let result = self.wait_in_order(&pending)?;
        let subject = result.map_err(|why| Failure(format!("the array does not assemble: {why}")))?;
        // A drive with damaged media may have failed since the array reported its drives.
        self.oracle.volatile_cache = self.promise(&*subject, &own, false)?;
        self.take_subject(subject)?;
        self.settle_replacement_drive();
        Ok(())
    }

    /// Compares the report and the data of the array with its promises.
    pub(super) fn check_recovery(&mut self) -> Result<(), Failure> {
        let report = self.report()?;
        self.recovered(&report)?;
        self.count_judgement();
        self.verify()
    }
}
