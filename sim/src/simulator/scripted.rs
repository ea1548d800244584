//! Worlds that are played by a script instead of by chance.
//!
//! The default order: a task that is ready runs; then the oldest answer is delivered; then the host
//! hands in its next operation; then the oldest command is executed. Choice 0 at an event is the
//! default, the others follow in this order.

use super::{
    drives::META_ZONES,
    exhaustive::{CacheFate, Fate, Step, ZONE},
    oracle::Change,
    subject::{How, Why, create_options},
    wire::Bay,
    world::{Failure, Pending, World},
};
use crate::ssd::Fault as MediaFault;
use engine::{device::Command, runtime::Runtime, zone::ZoneIndex};

/// What an event was.
pub(super) struct Taken {
    /// A drive has executed a command.
    pub executes: bool,
    /// The host hands in its next operation, which is left to the caller.
    pub issues: bool,
}

impl World<'_> {
    /// From now on tasks run first in, first out.
    pub(super) fn set_in_order(&mut self) {
        self.in_order = true;
        self.runtime = Runtime::new();
    }

    /// Makes the subject by the default order; `false` if it declines.
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

    /// Completes all operations by the default order.
    pub(super) fn drain_in_order(&mut self) -> Result<(), Failure> {
        while !self.ops.is_empty() {
            self.advance_in_order()?;
        }
        Ok(())
    }

    pub(super) fn wait_in_order<T>(&mut self, pending: &Pending<T>) -> Result<Result<T, Why>, Failure> {
        loop {
            if let Some(result) = pending.borrow_mut().take() {
                return Ok(result);
            }
            self.advance_waiting(|| pending.borrow().is_none())?;
        }
    }

    /// Everything that can happen now, without disorder.
    pub(super) fn advance_in_order(&mut self) -> Result<(), Failure> {
        self.advance_waiting(|| false)
    }

    /// As [`World::advance_in_order`]; it is a failure if nothing can happen and somebody `waits`.
    fn advance_waiting(&mut self, waits: impl Fn() -> bool) -> Result<(), Failure> {
        self.run_tasks()?;
        self.ready = false;
        self.collect()?;
        let nothing_left = self.wire.queued() == 0 && self.wire.executed() == 0;
        if nothing_left && (waits() || !self.ops.is_empty()) {
            return Err(self.hang());
        }
        self.wire.run_all();
        self.ready = true;
        Ok(())
    }

    /// Number of choices there are now; `issue` says whether the host could hand something in.
    pub(super) fn choices(&self, issue: bool, most: usize) -> usize {
        let queued = self.wire.queued().min(most);
        usize::from(self.ready) + self.wire.executed().min(most) + usize::from(issue) + queued
    }

    /// Lets one choice happen.
    pub(super) fn take_choice(&mut self, choice: usize, issue: bool, most: usize) -> Result<Taken, Failure> {
        let mut choice = choice;
        let nothing = Taken { executes: false, issues: false };
        if self.ready {
            if choice == 0 {
                self.ready = self.runtime.step();
                self.collect()?;
                return Ok(nothing);
            }
            choice -= 1;
        }
        let executed = self.wire.executed().min(most);
        if choice < executed {
            self.wire.deliver(choice);
            self.ready = true;
            return Ok(nothing);
        }
        choice -= executed;
        if issue {
            if choice == 0 {
                return Ok(Taken { issues: true, ..nothing });
            }
            choice -= 1;
        }
        self.wire.execute_now(choice, false);
        Ok(Taken { executes: true, issues: false })
    }

    /// Whether the host would hand in this operation now.
    pub(super) fn can_take(&self, step: Step) -> bool {
        let zone = &self.oracle.zones[ZONE.0 as usize];
        match step {
            Step::Write { .. } | Step::Flush => {
                self.ops.len() < self.scenario.load.queue_depth && zone.change.is_none()
            }
            Step::Finish | Step::Reset => zone.in_flight == 0,
            Step::Replace => true,
            // So that it is the next write that finds it.
            Step::Wear => self.ops.is_empty(),
            Step::Rebuild => self.unsound_members().next().is_some(),
        }
    }

    /// Hands in an operation of a script.
    pub(super) fn issue_step(&mut self, step: Step) -> Result<(), Failure> {
        match step {
            Step::Write { blocks, fua } => {
                let left = self.oracle.capacity - self.oracle.zones[ZONE.0 as usize].submitted();
                self.write(ZONE.0, blocks.min(left), fua, false);
            }
            Step::Flush => self.issue_flush(),
            Step::Finish => self.issue_one_change(ZONE.0, Change::Finish),
            Step::Reset => self.issue_one_change(ZONE.0, Change::Reset),
            // Something to be waited for by itself.
            Step::Replace | Step::Wear | Step::Rebuild => {}
        }
        self.ready = true;
        self.collect()
    }

    /// Has the drive of `member` have its part of the zone read-only from now on.
    pub(super) fn wear_in_order(&mut self, member: usize) {
        let parts = self.scenario.aggregate;
        for part in 0..parts {
            let zone = ZoneIndex((ZONE.0 + META_ZONES) * parts + part);
            for bay in self.members[member].iter() {
                let mut ssd = self.wire.ssd(*bay);
                ssd.faults().after(0, MediaFault::ReadOnly(zone));
                // Faults strike with the next command.
                ssd.execute(Command::Report { first: zone, count: 1 });
            }
        }
    }

    /// Begins to rebuild what is lacking.
    pub(super) fn rebuild_in_order(&mut self) -> Option<Pending<u64>> {
        let subject = self.subject.clone()?;
        Some(self.start(subject.rebuild()))
    }

    /// Whether anything is on its way.
    pub(super) fn is_waiting(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Grows with every answer the host gets.
    pub(super) fn told(&self) -> u64 {
        self.counts.operations - self.ops.len() as u64
    }

    /// Decides what becomes of the commands in flight, before the power goes.
    pub(super) fn settle_fate(&mut self, fate: Fate) {
        match fate {
            Fate::None => self.wire.drop_queued(),
            Fate::All => self.wire.execute_all(),
            Fate::Torn => {}
        }
    }

    /// Decides what the power will cost of what is in volatile caches alone, unless chance shall. Gives
    /// for each zone of a drive that has anything there in how many ways some of it can be lost.
    ///
    /// # Errors
    /// Those of the drives' memory.
    pub(super) fn settle_cache(&mut self, fate: CacheFate) -> Result<Vec<usize>, Failure> {
        let mut parts = Vec::new();
        for bay in self.members.iter().flatten() {
            parts.extend(self.wire.ssd(*bay).unflushed().into_iter().map(|(zone, ways)| (*bay, zone, ways)));
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
                let result = self.wire.ssd(*bay).lose_unflushed(*zone, way);
                result.map_err(|error| Failure(format!("losing a cache: {error}")))?;
            }
        }
        Ok(parts.into_iter().map(|(_, _, ways)| ways).collect())
    }

    /// Assembles without some members, by the default order.
    pub(super) fn assemble_without(&mut self, lost: &[usize]) -> Result<(), Failure> {
        self.assemble_somehow(lost, false)
    }

    /// As [`World::assemble_without`]; an array that is to `hold_back` writes nothing if it can do without.
    pub(super) fn assemble_somehow(&mut self, lost: &[usize], hold_back: bool) -> Result<(), Failure> {
        // One that has not been emptied yet is another array's, and refused as such.
        let own: Vec<Bay> = self.kept(lost).into_iter().filter(|bay| !self.foreign.contains(bay)).collect();
        let drives = own.iter().map(|bay| self.drive(*bay)).collect();
        let how = How { hold_back, ..self.how() };
        let pending = self.start(self.maker.assemble(&self.runtime, drives, how));
        let result = self.wait_in_order(&pending)?;
        let subject = result.map_err(|why| Failure(format!("the array does not assemble: {why}")))?;
        // One whose media are damaged may have failed since the array said what it has.
        self.oracle.volatile_cache = self.promise(&*subject, &own, false)?;
        self.take_subject(subject)?;
        self.settle_heir();
        Ok(())
    }

    /// Compares what the array reports and holds with what it promised.
    pub(super) fn check_recovery(&mut self) -> Result<(), Failure> {
        let report = self.report()?;
        self.recovered(&report)?;
        self.count_judgement();
        self.verify()
    }
}
