//! A second host that assembles the array while the first one runs it.
//!
//! In some forks one host assembles the array, and at any moment of the load another host assembles it as well: with
//! its own executor and host id, on the same drives. The first host checks for a foreign assembly now and then; the
//! second one waits, as [`engine::array::Array::check_fence`] requires, until the first one has checked and its last
//! commands have reached the drives. Either host may be killed, a drive may fail or be unreachable for one of them, and
//! the power may be cut. The promises of the first host until the second assembly has ended, and those of the second
//! one after that, have to be kept. A fenced host promises nothing and writes nothing.

use super::{
    command_queue::Bay,
    fault_budget::named,
    fork::Losses,
    subject::{AssembleOptions, Subject, SubjectError},
    world::{End, Failure, Pending, World},
};
use emu::rng::Rng;
use engine::{
    array::{ArrayError, Drive},
    buf::Buf,
    device::{Command, Completion},
    runtime::{Gate, Host, Pause, Runtime},
    zone::{Lba, ZoneIndex},
};
use std::{cell::Cell, rc::Rc};

/// Most events between two actions.
const MOST_EVENTS: u64 = 300;
/// Upper bound of the events of an assembly while another host runs.
const TOO_MANY_EVENTS: u64 = 1_000_000;

/// An assembly by another host.
struct RivalAssembly {
    process: u64,
    runtime: Runtime,
    pending: Pending<Rc<dyn Subject>>,
    /// It has claimed the array and is in its pause.
    waits: Rc<Cell<bool>>,
    go: Rc<Gate>,
    /// Its executor has become the world's.
    took: Cell<bool>,
}

/// Result of the assembly by another host.
enum RivalOutcome {
    /// It runs the array.
    Took(Rc<dyn Subject>),
    Refused(SubjectError),
    Killed,
    PowerCut,
}

/// The previous host, from which another one has taken the array.
struct FormerHost {
    process: u64,
    runtime: Runtime,
    subject: Rc<dyn Subject>,
    commands: Vec<(&'static str, Completion)>,
}

impl Drop for RivalAssembly {
    fn drop(&mut self) {
        if !self.took.get() {
            // Tasks hold the executor that holds them.
            self.runtime.clear();
        }
    }
}

impl Drop for FormerHost {
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

fn start_on<T: 'static>(runtime: &Runtime, work: super::subject::Work<T>) -> Pending<T> {
    let pending: Pending<T> = Rc::default();
    let result = pending.clone();
    runtime.spawn(async move {
        let value = work.await;
        *result.borrow_mut() = Some(value);
    });
    pending
}

impl World<'_> {
    /// Assembles a copy of the ended world by two or three hosts in turn, in a quarter of the forks.
    ///
    /// # Errors
    /// A broken promise.
    pub(super) fn fence_fork(&mut self, ended: &Self, losses: &Losses, rng: &mut Rng) -> Result<(), Failure> {
        let plain = self.members.len() > 1
            && self.replacement_drive.is_none()
            && self.foreign.is_empty()
            && !self.maker.is_layered()
            && self.maker.notices_others();
        if !plain
            || !losses.suspects.is_empty()
            || !losses.offered
            || self.scenario.cramped
            || !rng.chance(1, 4)
        {
            return Ok(());
        }
        self.on_copy(ended.copy(rng.fork())?, Self::judge_two_hosts)
            .map_err(|failure| Failure(format!("with two hosts: {failure}")))
    }

    fn judge_two_hosts(&mut self) -> Result<(), Failure> {
        self.in_order = false;
        // A fenced host fails commands with any error, and reports no zones.
        (self.scenario.load.wrong, self.scenario.load.report) = (0, 0);
        let mut lost: Vec<usize> = (0..self.members.len()).collect();
        self.rng.shuffle(&mut lost);
        let most = self.scenario.parities as u64 + 1;
        lost.truncate(if self.rng.chance(1, 2) { 0 } else { self.rng.below(most) as usize });
        self.set_host(1, None);
        self.trace.note(|| format!("fork: host 1 assembles without {}", named(&lost)));
        self.assemble_without(&lost)?;
        self.check_recovery()?;
        for host in 2..3 + self.rng.below(2) as u8 {
            let events = self.rng.below(MOST_EVENTS);
            self.work_for(events)?;
            match self.meet(host, &mut lost)? {
                RivalOutcome::Took(subject) => self.take_over_from_other(host, subject, &lost)?,
                RivalOutcome::PowerCut => return self.judge_rest(&lost),
                RivalOutcome::Refused(why) => {
                    self.trace.note(|| format!("fork: host {host} does not assemble: {why}"));
                    if !self.goes_on()? {
                        self.end_all()?;
                        return self.judge_rest(&lost);
                    }
                }
                RivalOutcome::Killed => {
                    self.trace.note(|| format!("fork: host {host} is killed"));
                    if !self.goes_on()? {
                        self.end_all()?;
                        return self.judge_rest(&lost);
                    }
                }
            }
        }
        self.end_all()?;
        self.judge_rest(&lost)
    }

    /// Judges a recovery when no host runs any more.
    fn judge_rest(&mut self, lost: &[usize]) -> Result<(), Failure> {
        self.in_order = true;
        self.runtime.clear();
        self.runtime = Runtime::new();
        self.lenient = false;
        let missing = match self.rng.chance(1, 2) {
            true => lost.to_vec(),
            false => Vec::new(),
        };
        self.trace.note(|| format!("fork: no host runs; assembly without {}", named(&missing)));
        self.assemble_without(&missing)?;
        self.check_recovery()?;
        match self.unsound_members().find(|member| !lost.contains(member)) {
            Some(member) => Err(Failure(format!("member {member} is not active, without any cause"))),
            None => Ok(()),
        }
    }

    fn set_host(&mut self, id: u8, pause: Option<Pause>) {
        self.runtime.clear();
        self.runtime = Runtime::seeded(self.rng.next_u64());
        self.runtime.set_host(Host { id: [id; 16], pause });
    }

    /// Ends all hosts. A killed host may have been about to be fenced: its tails file is not used.
    fn end_all(&mut self) -> Result<(), Failure> {
        let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(3, 4);
        let end = *self.rng.pick(&[End::PowerCut, End::Kill, End::Shutdown]);
        let end = self.end_by(end, cache_lost)?;
        self.trace.note(|| format!("fork: all hosts end: {end}"));
        self.tails = None;
        self.oracle.power_cut();
        Ok(())
    }

    /// Starts the assembly by another host while this one runs.
    fn meet(&mut self, host: u8, lost: &mut Vec<usize>) -> Result<RivalOutcome, Failure> {
        let mut offered: Vec<Bay> = self.kept(lost);
        self.rng.shuffle(&mut offered);
        let process = self.command_queue.start_other();
        let (waits, go): (Rc<Cell<bool>>, Rc<Gate>) = Default::default();
        let pause: Pause = {
            let (waits, go) = (waits.clone(), go.clone());
            Rc::new(move || {
                waits.set(true);
                let go = go.clone();
                Box::pin(async move { go.wait().await })
            })
        };
        let runtime = Runtime::seeded(self.rng.next_u64());
        runtime.set_host(Host { id: [host; 16], pause: Some(pause) });
        let drive = |bay: &Bay| Drive {
            name: format!("drive{bay}"),
            device: Rc::new(self.command_queue.drive_for(process, *bay)),
        };
        let drives = offered.iter().map(drive).collect();
        self.trace.note(|| format!("fork: host {host} (process {process}) assembles from {offered:?}"));
        let how = AssembleOptions { join: self.scenario.join, ..AssembleOptions::default() };
        let pending = start_on(&runtime, self.maker.assemble(&runtime, drives, how));
        let rival = RivalAssembly { process, runtime, pending, waits, go, took: Cell::new(false) };
        (self.lenient, self.excused) = (true, 0);
        self.run_with(rival, lost)
    }

    /// Runs both hosts until the assembly by the other one has ended in some way.
    fn run_with(&mut self, rival: RivalAssembly, lost: &mut Vec<usize>) -> Result<RivalOutcome, Failure> {
        let own = self.command_queue.process();
        let every = 1 + self.rng.below(200);
        // At least half of the assemblies end without a fault.
        let ends = self.rng.chance(1, 2).then(|| self.rng.below(2 * MOST_EVENTS));
        let (mut check, mut noticed, mut gone) = (None::<(bool, Pending<()>)>, false, false);
        for event in 0..TOO_MANY_EVENTS {
            if let Some(result) = rival.pending.borrow_mut().take() {
                return Ok(match result {
                    Ok(subject) => {
                        // From here on the world runs the executor of the other host.
                        self.former(own, &rival)?;
                        RivalOutcome::Took(subject)
                    }
                    Err(why) => {
                        self.command_queue.kill_one(rival.process, &mut self.rng);
                        RivalOutcome::Refused(why)
                    }
                });
            }
            let subject = self.subject.clone();
            let done =
                check.as_ref().filter(|(_, pending)| pending.borrow().is_some()).map(|(after, _)| *after);
            if let Some(after) = done {
                noticed |= after;
                check = None;
            }
            if let Some(subject) = subject.as_ref().filter(|_| check.is_none() && self.rng.chance(1, every)) {
                check = Some((rival.waits.get(), self.start(subject.check_fence())));
            }
            // The first host has checked, and its commands that were in flight when it was fenced have reached the
            // drives.
            let let_go =
                |subject: &Rc<dyn Subject>| subject.is_fenced() && self.command_queue.is_used_by(own, false);
            let settled = subject.is_none() || noticed && !subject.as_ref().is_some_and(let_go);
            if rival.waits.get() && settled && !gone {
                gone = true;
                rival.go.open();
            }
            if ends == Some(event) {
                match self.strike_one(&rival, own, lost)? {
                    Some(met) => return Ok(met),
                    None => check = check.filter(|_| self.subject.is_some()),
                }
            }
            let moved = match self.rng.below(3) {
                0 => rival.runtime.step(),
                _ => self.event(true, false)?,
            };
            if !moved && self.command_queue.queued() + self.command_queue.executed() == 0 {
                let stuck = !rival.runtime.step() && !self.runtime.step();
                if stuck && self.subject.is_none() && rival.pending.borrow().is_none() && gone {
                    return Err(Failure("the assembly of another host never ends".into()));
                }
            }
        }
        Err(Failure(format!("an assembly beside another host has not ended after {TOO_MANY_EVENTS} events")))
    }

    /// Injects a fault while two hosts are running.
    fn strike_one(
        &mut self,
        rival: &RivalAssembly,
        own: u64,
        lost: &mut Vec<usize>,
    ) -> Result<Option<RivalOutcome>, Failure> {
        match self.rng.below(6) {
            0 => {
                self.command_queue.kill_one(rival.process, &mut self.rng);
                return Ok(Some(RivalOutcome::Killed));
            }
            1 | 2 => {
                self.trace.note(|| "fork: the host that runs is killed".into());
                self.command_queue.kill_one(own, &mut self.rng);
                self.end_process();
                self.oracle.power_cut();
            }
            3 => {
                self.trace.note(|| "fork: the power is cut".into());
                self.end_all()?;
                return Ok(Some(RivalOutcome::PowerCut));
            }
            kind => {
                let member = match lost.first() {
                    None => self.rng.below(self.members.len() as u64) as usize,
                    Some(_) => return Ok(None),
                };
                let Some(bay) = self.members[member] else { return Ok(None) };
                lost.push(member);
                match kind {
                    4 => self.command_queue.set_gone(bay, true),
                    _ => self.command_queue.cut_off(*self.rng.pick(&[own, rival.process]), bay),
                }
                self.trace.note(|| format!("fork: member {member} is out of reach, for all: {}", kind == 4));
            }
        }
        Ok(None)
    }

    /// Checks that the previous host, if it still runs, is fenced and does nothing from now on.
    fn former(&mut self, own: u64, rival: &RivalAssembly) -> Result<(), Failure> {
        rival.took.set(true);
        let runtime = std::mem::replace(&mut self.runtime, rival.runtime.clone());
        let subject = self.subject.take();
        self.command_queue.switch_to(rival.process);
        if let Some(subject) = subject {
            if !subject.is_fenced() {
                runtime.clear();
                return Err(Failure("a host goes on with an array that another one has assembled".into()));
            }
            self.ops.clear();
            self.held.clear();
            let mut former = FormerHost { process: own, runtime, subject, commands: Vec::new() };
            self.try_former(&mut former)?;
        } else {
            runtime.clear();
        }
        Ok(())
    }

    /// Commands to a fenced host fail, and none of its own commands reaches a drive.
    fn try_former(&mut self, former: &mut FormerHost) -> Result<(), Failure> {
        let Some(limits) = self.limits.clone() else { return Ok(()) };
        for zone in 0..limits.zones.min(3) {
            let end = self.oracle.zones[zone as usize].submitted().min(limits.zone_capacity_blocks - 1);
            let lba = Lba(limits.start(ZoneIndex(zone)).0 + end);
            for (what, command) in [
                ("write", Command::write(lba, Buf::zeroed(4096), true)),
                ("flush", Command::Flush),
                ("read", Command::read(lba, Buf::zeroed(4096))),
            ] {
                former.commands.push((what, former.subject.submit(command)));
            }
        }
        for _ in 0..1000 {
            if !former.runtime.step() {
                break;
            }
        }
        if self.command_queue.is_used_by(former.process, true) {
            return Err(Failure("a host writes that has let go of the array".into()));
        }
        for (what, completion) in &mut former.commands {
            match completion.take() {
                Some(done) if done.result.is_ok() => {
                    return Err(Failure(format!("a host that has let go of the array answers a {what}")));
                }
                Some(_) => (),
                None => return Err(Failure(format!("a host that has let go never answers a {what}"))),
            }
        }
        Ok(())
    }

    /// Continues with the array of the other host and judges it.
    fn take_over_from_other(
        &mut self,
        host: u8,
        subject: Rc<dyn Subject>,
        lost: &[usize],
    ) -> Result<(), Failure> {
        self.trace.note(|| format!("fork: host {host} has the array, without {}", named(lost)));
        self.lenient = false;
        self.tails = None;
        self.oracle.power_cut();
        self.oracle.process_ended();
        self.ready = true;
        let offered = self.kept(&[]);
        self.oracle.volatile_cache = self.promise(&*subject, &offered, true)?;
        self.take_subject(subject)?;
        self.check_recovery()?;
        match self.unsound_members().find(|member| !lost.contains(member)) {
            Some(member) => Err(Failure(format!("member {member} is not active, without any cause"))),
            None => Ok(()),
        }
    }

    /// Whether the host still runs the array, because no other host has assembled it.
    fn goes_on(&mut self) -> Result<bool, Failure> {
        let Some(subject) = self.subject.clone() else { return Ok(false) };
        let check = self.start(subject.check_fence());
        loop {
            if let Some(result) = check.borrow_mut().take() {
                self.lenient = false;
                return match result {
                    Ok(()) if self.excused > 0 => {
                        Err(Failure("operations have failed on a host that goes on".into()))
                    }
                    Ok(()) => Ok(true),
                    Err(SubjectError::Array(ArrayError::Fenced)) => Ok(false),
                    Err(why) => Err(Failure(format!("a check for other hosts: {why}"))),
                };
            }
            self.event(false, true)?;
        }
    }

    /// Runs the load for this number of events.
    fn work_for(&mut self, events: u64) -> Result<(), Failure> {
        (0..events).try_for_each(|_| self.event(true, false).map(|_| ()))
    }
}
