//! The simulated world: drives, executor, subject and load, and the choice of the next event.
//!
//! Everything that can happen is an event: a drive executes a command, a completion is delivered to the engine, a task
//! runs until it waits, the load submits an operation. The seed picks among the possible events; nothing else decides
//! an order, and no clock is read, so a seed always gives the same run.
//!
//! An operation that never completes is detected as a world without a possible event.

use super::{
    command_queue::{Bay, CommandQueue},
    coverage::{Coverage, Sight},
    event_log_check::{AllowedIdentities, ReportedEvents},
    ops::{Op, WaitingChange},
    oracle::Oracle,
    scenario::{Scenario, draw_roomier},
    schedule::Forks,
    subject::{AssembleOptions, Maker, Subject, SubjectError, Work},
};
use emu::{
    rng::Rng,
    ssd::{
        Cut, Ssd,
        compress::{CompressedMedia, Scheme},
    },
};
use engine::{
    array::{Drive, MemberState, Tails},
    buf::BufPool,
    device::{Command, Completion, Done, Geometry},
    raid::events::Event,
    runtime::{MOST_WORK, Runtime},
    zone::{ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::RefCell,
    collections::{BTreeSet, VecDeque},
    rc::Rc,
};

/// A broken promise: the observed and the expected result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure(what)
    }
}

/// Counters of the operations, faults and checks of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub operations: u64,
    pub power_cuts: u64,
    /// Processes killed while the drives kept power.
    pub kills: u64,
    /// Orderly shutdowns of all drives after the process had ended at an arbitrary moment.
    pub shutdowns: u64,
    /// Power cuts, after a kill, that lost data which the killed process had left in volatile caches.
    pub cuts_after_kills: u64,
    pub zrwa_losses: u64,
    /// Assemblies that had written nothing when they were taken over, or when a layer was started on them.
    pub deferred_starts: u64,
    pub member_losses: u64,
    /// Those of the `judgements` with two or more members out.
    pub double_losses: u64,
    pub interrupted_recoveries: u64,
    pub rebuilds: u64,
    /// Drives that have replaced a working one.
    pub replacements: u64,
    /// Copies of members that were cancelled, and those that were continued after they had been interrupted.
    pub cancelled_copies: u64,
    pub continued_copies: u64,
    pub faults: u64,
    /// Changes of arrays' name, host or autostart.
    pub changes: u64,
    /// Arrays that were destroyed.
    pub destructions: u64,
    /// Drives with worn zones that hold all data again, in spare zones.
    pub healed: u64,
    /// Drive geometries that the array refuses.
    pub refusals: u64,
    /// Copies of the world that were ended and recovered.
    pub forks: u64,
    /// Recoveries, of the life and of its forks, with a check of the report and of every block.
    pub judgements: u64,
    /// Recoveries with one fault more than the guarantee covers, judged by a weaker rule.
    pub beyond: u64,
    /// Statuses with a tested number of members that may be lost.
    pub claims: u64,
    /// Those of the `claims` that were too pessimistic without a cause.
    pub pessimistic_claims: u64,
    /// Remedies that a status recommended and that were carried out.
    pub remedies: u64,
}

impl Counts {
    /// Adds the counters of `other`.
    pub fn add(&mut self, other: &Counts) {
        self.operations += other.operations;
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        self.shutdowns += other.shutdowns;
        self.cuts_after_kills += other.cuts_after_kills;
        self.zrwa_losses += other.zrwa_losses;
        self.deferred_starts += other.deferred_starts;
        self.member_losses += other.member_losses;
        self.double_losses += other.double_losses;
        self.interrupted_recoveries += other.interrupted_recoveries;
        self.rebuilds += other.rebuilds;
        self.replacements += other.replacements;
        self.cancelled_copies += other.cancelled_copies;
        self.continued_copies += other.continued_copies;
        self.faults += other.faults;
        self.changes += other.changes;
        self.destructions += other.destructions;
        self.healed += other.healed;
        self.refusals += other.refusals;
        self.forks += other.forks;
        self.judgements += other.judgements;
        self.beyond += other.beyond;
        self.claims += other.claims;
        self.pessimistic_claims += other.pessimistic_claims;
        self.remedies += other.remedies;
    }
}

/// How much of the trace is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceMode {
    #[default]
    Off,
    /// The last lines, up to this number.
    Tail(usize),
    All,
}

/// The events of a run, one line each.
#[derive(Default)]
pub struct Trace {
    tracing: TraceMode,
    lines: VecDeque<String>,
    pub(super) event: u64,
}

impl Trace {
    pub(super) fn new(tracing: TraceMode) -> Trace {
        Trace { tracing, lines: VecDeque::new(), event: 0 }
    }

    /// Whether lines are kept.
    pub fn on(&self) -> bool {
        self.tracing != TraceMode::Off
    }

    /// Adds a line, which is formatted only if it is kept.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if !self.on() {
            return;
        }
        if let TraceMode::Tail(most) = self.tracing
            && self.lines.len() == most
        {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{:>7}  {}", self.event, line()));
    }

    /// An empty trace that continues the event count in a copy of the world.
    pub(super) fn copy(&self) -> Trace {
        Trace { event: self.event, ..Trace::new(self.tracing) }
    }

    /// Appends the lines of a copy of the world.
    pub(super) fn extend(&mut self, copy: Trace) {
        self.lines.extend(copy.lines);
    }

    /// All lines that were kept.
    pub fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}

/// The result of a started task; `None` until it has ended.
pub type Pending<T, E = SubjectError> = Rc<RefCell<Option<Result<T, E>>>>;

/// How a run of the array ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    #[default]
    PowerCut,
    /// The drives keep power.
    Kill,
    /// The process ends first, then the drives are shut down in good order.
    Shutdown,
}

/// A drive that is to replace a working one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplacementDrive {
    pub member: usize,
    pub bay: Bay,
    /// If the member is lost, this drive is lost and not the old one.
    pub lost: bool,
    /// A fault has struck it.
    pub struck: bool,
}

/// Upper bound of the events of any wait; only endless work reaches it.
pub(super) const TOO_MANY_EVENTS: u64 = 3_000_000;

/// Upper bound of steps without I/O.
const TOO_MANY_STEPS: u64 = 1_000_000;

/// Blocks of commands that are in flight at the same time in [`World::ask`].
const MOST_ASKED_BLOCKS: u64 = 4096;

fn blocks_of(command: &Command) -> u64 {
    match command {
        Command::Read { data, .. } => data.blocks(),
        _ => 0,
    }
}

/// The simulated world; see the module documentation.
pub struct World<'m> {
    pub(super) maker: &'m dyn Maker,
    pub(super) scenario: Scenario,
    pub(super) rng: Rng,
    pub(super) command_queue: Rc<CommandQueue>,
    pub(super) runtime: Runtime,
    pub(super) subject: Option<Rc<dyn Subject>>,
    /// Events of the subject that were checked.
    pub(super) heard: ReportedEvents,
    /// The name, host and autostart that the subject may report.
    pub(super) books: AllowedIdentities,
    /// Shape and limits of the subject.
    pub(super) limits: Option<Geometry>,
    pub(super) oracle: Oracle,
    /// The oracle before a deferred-write assembly: valid again if the assembly ends before it has written anything.
    pub(super) before: Option<Oracle>,
    /// The subject was assembled in deferred-write mode and its commit has not been observed yet.
    pub(super) begins: bool,
    pub(super) ops: Vec<Op>,
    pub(super) held: Vec<WaitingChange>,
    pub(super) pool: BufPool,
    /// The drive that is offered for each role, if any.
    pub(super) members: Vec<Option<Bay>>,
    /// The replacement drive of a member, during a replacement.
    pub(super) replacement_drive: Option<ReplacementDrive>,
    pub(super) counts: Counts,
    pub(super) trace: Trace,
    /// The tails file that the last killed process left; lost with the power.
    pub(super) tails: Option<Tails>,
    /// A task may be ready to run.
    pub(super) ready: bool,
    /// Tasks run first in, first out, instead of in random order.
    pub(super) in_order: bool,
    /// Why the array refused the drives.
    pub(super) refusal: Option<String>,
    pub(super) forks: Forks,
    /// More faults were injected than the guarantee covers: operations may fail.
    pub(super) lenient: bool,
    /// Number of operations that failed in lenient mode.
    pub(super) excused: u64,
    /// Spares that were members of another array and were not erased yet.
    pub(super) foreign: BTreeSet<Bay>,
    pub(super) coverage: Coverage,
}

impl Drop for World<'_> {
    /// Tasks hold the executor that holds them.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl<'m> World<'m> {
    /// A world with new drives and without an array.
    pub fn new(maker: &'m dyn Maker, scenario: Scenario, mut rng: Rng, tracing: TraceMode) -> World<'m> {
        let command_queue = Rc::new(CommandQueue::default());
        command_queue.set_spikes(scenario.pace.spike_permille, scenario.pace.spike_events);
        // The forks' generator takes no numbers from that of the life.
        let forks = Forks::new(scenario.forks, rng.clone().fork());
        let runtime = Runtime::seeded(rng.next_u64());
        let mut world = World {
            maker,
            rng,
            command_queue,
            runtime,
            subject: None,
            heard: ReportedEvents::default(),
            books: AllowedIdentities::default(),
            limits: None,
            oracle: Oracle::new(0, 0, false),
            before: None,
            begins: false,
            ops: Vec::new(),
            held: Vec::new(),
            pool: BufPool::default(),
            members: Vec::new(),
            replacement_drive: None,
            counts: Counts::default(),
            trace: Trace::new(tracing),
            tails: None,
            ready: false,
            in_order: false,
            refusal: None,
            forks,
            lenient: false,
            excused: 0,
            foreign: BTreeSet::new(),
            coverage: Coverage::default(),
            scenario,
        };
        for _ in 0..world.scenario.members {
            let bay = world.new_drive();
            world.members.push(Some(bay));
        }
        world
    }

    /// Why the array refused these drives, if it did.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Checks the report of a recovery against the promises.
    ///
    /// # Errors
    /// The broken promise, and the reasons of offline zones.
    pub(super) fn recovered(&mut self, report: &[ZoneInfo]) -> Result<(), Failure> {
        self.see(report);
        let offline = self.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
        self.oracle.recovered(report).map_err(|what| match offline[..] {
            [] => Failure(what),
            _ => Failure(format!("{what}; offline: {offline:?}")),
        })
    }

    /// Records the result of a recovery for coverage, before the oracle takes it over.
    pub(super) fn see(&mut self, report: &[ZoneInfo]) {
        let states = self.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
        self.coverage.see(&self.scenario, &states, &self.oracle, report);
    }

    /// Counts a judged recovery, with the present states of the members.
    pub(super) fn count_judgement(&mut self) {
        let members = self.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
        let out = members.iter().filter(|(state, _)| *state == MemberState::Out).count();
        self.counts.judgements += 1;
        self.counts.double_losses += u64::from(out > 1);
    }

    /// Takes the coverage of this world.
    pub fn take_sights(&mut self) -> BTreeSet<Sight> {
        std::mem::take(&mut self.coverage.seen)
    }

    /// The kept lines of the trace.
    pub fn trace_lines(&self) -> Vec<String> {
        self.trace.lines()
    }

    /// Connects a new, blank drive.
    pub(super) fn new_drive(&mut self) -> Bay {
        let (least, compression) = (&self.scenario.drive, self.scenario.compression);
        // The first drive determines the array's geometry, so that every other drive can replace it.
        let ssd = match self.scenario.mixed && !self.members.is_empty() {
            true => blank(&draw_roomier(&mut self.rng, least), compression),
            false => blank(least, compression),
        };
        self.plug_in(ssd)
    }

    /// Connects a blank drive with the zone size of another one.
    pub(super) fn like(&mut self, bay: Bay) -> Bay {
        let zone_size_blocks = self.command_queue.geometry(bay).zone_size_blocks;
        let mut geometry = draw_roomier(&mut self.rng, &self.scenario.drive);
        if geometry.zone_capacity_blocks > zone_size_blocks {
            geometry = self.scenario.drive.clone();
        }
        self.plug_in(blank(&Geometry { zone_size_blocks, ..geometry }, self.scenario.compression))
    }

    fn plug_in(&mut self, mut ssd: Ssd) -> Bay {
        if self.scenario.unwritten_fails {
            ssd.fail_unwritten();
        }
        if self.scenario.misfortune.power_hidden {
            ssd.hide_power_epoch();
        }
        if self.scenario.finish_drops {
            ssd.drop_at_finish();
        }
        if self.scenario.fua_alone {
            ssd.let_fua_stand_alone();
        }
        if self.scenario.sectors_tear {
            ssd.tear_sectors();
        }
        self.command_queue.insert(ssd)
    }

    /// The handle of the drive in `bay` that is given to the subject.
    pub(super) fn drive(&self, bay: Bay) -> Drive {
        Drive { name: format!("drive{bay}"), device: Rc::new(self.command_queue.drive(bay)) }
    }

    /// Default options of an assembly.
    pub(super) fn how(&self) -> AssembleOptions {
        AssembleOptions { tails: self.tails.clone(), join: self.scenario.join, ..AssembleOptions::default() }
    }

    /// Continues with an array that has been assembled.
    ///
    /// # Errors
    /// The array reports an unexpected name, host or autostart.
    pub(super) fn take_subject(&mut self, subject: Rc<dyn Subject>) -> Result<(), Failure> {
        self.hear_said(&*subject)?;
        self.before = subject.is_deferred().then(|| self.oracle.clone());
        self.begins = subject.is_deferred();
        self.counts.deferred_starts += u64::from(subject.began_deferred());
        self.subject = Some(subject);
        self.heard = ReportedEvents::default();
        Ok(())
    }

    /// Checks the zones' ends once a deferred-write array has committed. If further members were struck meanwhile,
    /// within the guarantee of two parities, the reported end may be lost where it was never promised.
    ///
    /// # Errors
    /// Promised data is lost.
    pub(super) fn note_gone_back(&mut self) -> Result<(), Failure> {
        let begun = self.subject.clone().filter(|subject| self.begins && !subject.is_deferred());
        let (Some(subject), Some(before), true) = (begun, &self.before, self.scenario.parities > 1) else {
            return Ok(());
        };
        self.begins = false;
        let count = self.oracle.zones.len() as u32;
        let report = subject.submit(Command::Report { first: ZoneIndex(0), count }).take();
        for (info, before) in report.iter().flat_map(|done| &done.zones).zip(&before.zones) {
            if info.state == ZoneState::Empty || info.state.is_active() {
                self.oracle.gone_back(info, before).map_err(Failure)?;
            }
        }
        Ok(())
    }

    /// Whether the subject says that completed writes may be lost until a flush. Checked against the drives that it
    /// consists of now; if one of `offered` has failed since, or may have (`excused`), all `offered` drives may count
    /// instead.
    ///
    /// # Errors
    /// The subject contradicts the drives.
    pub(super) fn promise(
        &self,
        subject: &dyn Subject,
        offered: &[Bay],
        excused: bool,
    ) -> Result<bool, Failure> {
        let volatile = |bay: Bay| self.command_queue.geometry(bay).volatile_cache;
        let bay_of = |name: String| name.strip_prefix("drive").and_then(|bay| bay.parse::<Bay>().ok());
        let (out, members): (Vec<_>, Vec<_>) =
            subject.members().into_iter().partition(|(state, _)| *state == MemberState::Out);
        let promised = |members| self.maker.may_lose_completed(self.scenario.policy, members);
        let by_members = promised(members.into_iter().filter_map(|(_, name)| bay_of(name)).any(volatile));
        let told = subject.geometry().volatile_cache;
        let by_offered = promised(offered.iter().copied().any(volatile));
        let has_failed =
            out.into_iter().filter_map(|(_, name)| bay_of(name)).any(|bay| offered.contains(&bay));
        if told == by_members || (excused || has_failed) && told == by_offered {
            return Ok(told);
        }
        Err(Failure(format!("the array says that it has {} volatile cache", if told { "a" } else { "no" })))
    }

    /// As [`ReportedEvents::listen`].
    pub(super) fn hear(&mut self, is_suspect: impl Fn(usize) -> bool) -> Result<(), Failure> {
        let Some(subject) = self.subject.clone() else { return Ok(()) };
        let note = |event: &Event| self.trace.note(|| format!("event: {event}"));
        Ok(self.heard.listen(&*subject, is_suspect, note)?)
    }

    /// Starts work as a task.
    pub(super) fn start<T: 'static>(&mut self, work: Work<T>) -> Pending<T> {
        let pending: Pending<T> = Rc::default();
        let result = pending.clone();
        self.runtime.spawn(async move {
            let value = work.await;
            *result.borrow_mut() = Some(value);
        });
        self.ready = true;
        pending
    }

    /// Executes one event. `working` lets the load submit operations; with `waiting` a caller waits for a result, so
    /// that it is a failure if no event is possible. Returns `false` if no event is possible.
    ///
    /// # Errors
    /// A promise that this event has broken.
    pub(super) fn event(&mut self, working: bool, waiting: bool) -> Result<bool, Failure> {
        let pace = &self.scenario.pace;
        let (queued, executed) = (self.command_queue.queued(), self.command_queue.executed());
        let stuck = queued == 0 && executed == 0 && !self.ready;
        if stuck && (waiting || !self.ops.is_empty()) {
            return Err(self.hang());
        }
        let wanted = working && self.subject.is_some() && self.ops.len() < self.scenario.load.queue_depth;
        let weights = [
            if queued > 0 { pace.execute } else { 0 },
            if executed > 0 { pace.deliver } else { 0 },
            if self.ready { pace.step } else { 0 },
            if wanted { pace.issue } else { 0 },
        ];
        if weights.iter().all(|weight| *weight == 0) {
            return Ok(false);
        }
        self.command_queue.tick();
        self.trace.event += 1;
        let kind = self.rng.weighted(&weights);
        match kind {
            0 => self.execute(queued),
            1 => self.deliver(executed),
            2 => {
                self.ready = self.runtime.step();
                let most = self.runtime.most_worked();
                if most > MOST_WORK {
                    return Err(Failure(format!(
                        "a task did {most} units of work before others could go on"
                    )));
                }
                self.collect()?;
            }
            _ => {
                self.issue();
                self.ready = true;
                self.collect()?;
            }
        }
        Ok(true)
    }

    fn execute(&mut self, queued: usize) {
        let index = if self.scenario.pace.in_order { 0 } else { self.rng.below(queued as u64) as usize };
        let event = self.command_queue.execute(index, self.trace.on());
        if let Some(event) = event {
            self.trace.note(|| format!("drive{} does {}", event.bay, event.what));
        }
    }

    fn deliver(&mut self, executed: usize) {
        let index = self.rng.below(executed as u64) as usize;
        let bay = self.command_queue.deliver(index);
        self.trace.note(|| format!("drive{bay} answers"));
        self.ready = true;
    }

    /// The failure that no event is possible although operations are outstanding.
    pub(super) fn hang(&self) -> Failure {
        let ops: Vec<String> = self.ops.iter().map(|op| op.to_string()).collect();
        let what = if ops.is_empty() { "background work".into() } else { ops.join("; ") };
        Failure(format!("nothing can happen any more, but this never completed: {what}"))
    }

    /// Runs events until the result is available; `None` if it is not after `events` events.
    ///
    /// # Errors
    /// A broken promise, or work that does not end.
    pub(super) fn wait<T>(
        &mut self,
        pending: &Pending<T>,
        events: Option<u64>,
        working: bool,
    ) -> Result<Option<Result<T, SubjectError>>, Failure> {
        for _ in 0..events.unwrap_or(TOO_MANY_EVENTS) {
            if let Some(result) = pending.borrow_mut().take() {
                return Ok(Some(result));
            }
            self.event(working, true)?;
        }
        match events {
            Some(_) => Ok(None),
            None => Err(Failure(format!("still not done after {TOO_MANY_EVENTS} events"))),
        }
    }

    /// Runs until all operations are complete, without submitting new ones.
    ///
    /// # Errors
    /// A broken promise.
    pub(super) fn drain(&mut self) -> Result<(), Failure> {
        for _ in 0..TOO_MANY_EVENTS {
            if self.ops.is_empty() && self.held.is_empty() {
                return Ok(());
            }
            if self.ops.is_empty() {
                self.issue();
                self.ready = true;
            }
            self.event(false, false)?;
        }
        Err(Failure(format!("operations did not complete within {TOO_MANY_EVENTS} events")))
    }

    /// Runs all tasks until they wait.
    ///
    /// # Errors
    /// Tasks that wake each other endlessly.
    pub(super) fn run_tasks(&mut self) -> Result<(), Failure> {
        for _ in 0..TOO_MANY_STEPS {
            if !self.runtime.step() {
                return Ok(());
            }
        }
        Err(Failure(format!("tasks still wake each other after {TOO_MANY_STEPS} steps")))
    }

    /// Executes commands of the subject in order and without delays, and waits for their completions. Reads of many
    /// blocks are divided: with a missing member each block may take reads from all others.
    ///
    /// # Errors
    /// A hang.
    pub(super) fn ask(&mut self, commands: Vec<Command>) -> Result<Vec<Done>, Failure> {
        let mut commands = commands.into_iter().peekable();
        let mut all = Vec::with_capacity(commands.len());
        while let Some(first) = commands.next() {
            let (mut blocks, mut batch) = (blocks_of(&first), vec![first]);
            while let Some(next) = commands.next_if(|next| blocks + blocks_of(next) <= MOST_ASKED_BLOCKS) {
                blocks += blocks_of(&next);
                batch.push(next);
            }
            all.extend(self.ask_at_once(batch)?);
        }
        Ok(all)
    }

    fn ask_at_once(&mut self, commands: Vec<Command>) -> Result<Vec<Done>, Failure> {
        let Some(subject) = self.subject.clone() else { return Ok(Vec::new()) };
        let mut waiting: Vec<(Completion, Option<Done>)> =
            commands.into_iter().map(|command| (subject.submit(command), None)).collect();
        let mut open = waiting.len();
        while open > 0 {
            self.run_tasks()?;
            for (completion, done) in &mut waiting {
                if done.is_none()
                    && let Some(answer) = completion.take()
                {
                    *done = Some(answer);
                    open -= 1;
                }
            }
            if open > 0 && self.command_queue.queued() == 0 && self.command_queue.executed() == 0 {
                return Err(Failure("nothing can happen any more, but reads never completed".into()));
            }
            self.command_queue.run_all();
        }
        self.ready = true;
        Ok(waiting.into_iter().filter_map(|(_, done)| done).collect())
    }

    /// Cuts the power. The host's memory is lost; the drives keep all data that a power cut must not cost.
    ///
    /// # Errors
    /// I/O errors of the drives' media.
    pub(super) fn cut_power(&mut self, cut: impl Fn(Bay) -> Cut) -> Result<(), Failure> {
        self.counts.power_cuts += 1;
        let queued = self.command_queue.queued();
        self.trace.note(|| format!("power cut with {queued} commands in flight"));
        let costs = |what: fn(Cut) -> bool| self.members.iter().flatten().any(|bay| what(cut(*bay)));
        self.coverage.end = match (costs(|cut| cut.cache_lost), costs(|cut| cut.zrwa_lost)) {
            (false, false) => "cut",
            (true, false) => "cut that costs caches",
            (false, true) => "cut that costs a ZRWA",
            (true, true) => "cut that costs caches and a ZRWA",
        };
        self.end_process();
        self.tails = None;
        self.oracle.power_cut();
        self.command_queue
            .power_cut(&mut self.rng, cut)
            .map_err(|error| Failure(format!("power cut: {error}")))
    }

    /// Kills the process. The drives keep power, and the next process gets the tails file.
    pub(super) fn kill_process(&mut self) {
        self.counts.kills += 1;
        let queued = self.command_queue.queued();
        self.coverage.end = "kill";
        self.trace.note(|| format!("the process is killed with {queued} commands in flight"));
        if let Some(subject) = self.subject.as_ref().filter(|subject| !subject.is_deferred()) {
            let blocks = subject.tails().unwrap_or(self.oracle.killed(&mut self.rng));
            let (assembly, power) = (subject.assembly(), subject.power_marks());
            self.tails = Some(Tails { assembly, blocks, power });
        }
        self.end_process();
        self.command_queue.kill(&mut self.rng);
    }

    /// Kills the process and shuts the drives down in good order, as a restart of the host does.
    ///
    /// # Errors
    /// I/O errors of the drives' media.
    pub(super) fn shut_down(&mut self) -> Result<(), Failure> {
        self.counts.shutdowns += 1;
        let queued = self.command_queue.queued();
        self.coverage.end = "shutdown";
        self.trace.note(|| format!("orderly shutdown, {queued} commands were in flight"));
        self.end_process();
        self.tails = None;
        self.oracle.power_cut();
        self.command_queue.shut_down(&mut self.rng).map_err(|error| Failure(format!("shutdown: {error}")))
    }

    /// Discards the state that the process held in memory.
    pub(super) fn end_process(&mut self) {
        let before = self.before.take();
        if let Some(before) = before.filter(|_| self.subject.as_ref().is_none_or(|s| s.is_deferred())) {
            self.oracle.go_back(before);
        }
        self.runtime.clear();
        self.runtime = if self.in_order { Runtime::new() } else { Runtime::seeded(self.rng.next_u64()) };
        self.subject = None;
        self.ops.clear();
        self.held.clear();
        self.oracle.process_ended();
        self.ready = false;
    }
}

/// A new drive of this geometry, with the given compression.
fn blank(geometry: &Geometry, compression: Option<Scheme>) -> Ssd {
    match compression {
        Some(scheme) => Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(geometry, scheme))),
        None => Ssd::in_memory(geometry),
    }
}
