//! The simulated world: the state of drives, executor, subject and load.
//!
//! Its events are in `step.rs`, the load in `load.rs`, the ends of its processes in `ends.rs`, and the checks in
//! `accept.rs` and `recovered.rs`; `lifecycle.rs` plays a whole life.

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
        Ssd,
        compress::{CompressedMedia, Scheme},
    },
};
use engine::{
    array::{Drive, MemberState, Tails},
    buf::BufPool,
    device::Geometry,
    raid::events::Event,
    runtime::Runtime,
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
    /// Silent faults by kind.
    pub bit_flips: u64,
    pub lost_writes: u64,
    pub misdirected: u64,
    pub stale: u64,
    /// Silent faults of blocks whose checksums were in memory alone ([`engine::adapt::checksum`]).
    pub in_last_groups: u64,
    /// Zones that were scrubbed, and blocks that scrubs have found wrong and that were repaired.
    pub scrubs: u64,
    pub repaired: u64,
    /// Changes of arrays' name, host, autostart or error limit.
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
        self.bit_flips += other.bit_flips;
        self.lost_writes += other.lost_writes;
        self.misdirected += other.misdirected;
        self.in_last_groups += other.in_last_groups;
        self.stale += other.stale;
        self.scrubs += other.scrubs;
        self.repaired += other.repaired;
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
    /// The acknowledgement log that the last killed process left; lost with the power.
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

    pub(super) fn member_state(&self, member: usize) -> Option<MemberState> {
        self.subject.as_ref()?.members().get(member).map(|(state, _)| *state)
    }

    /// Whether a refusal names a member or its drive.
    pub(super) fn names(&self, member: usize, why: &SubjectError) -> bool {
        let drive = self.members[member];
        why.members().contains(&member) || drive.is_some_and(|bay| why.names_drive(bay))
    }

    /// A copy of the world with the same drives, oracle and commands in flight; nothing runs in it.
    pub(super) fn copy(&self, rng: Rng) -> Result<Self, Failure> {
        let command_queue =
            self.command_queue.copy().map_err(|error| Failure(format!("copying the drives: {error}")))?;
        Ok(World {
            maker: self.maker,
            scenario: self.scenario.clone(),
            rng,
            command_queue: Rc::new(command_queue),
            runtime: Runtime::new(),
            subject: self.subject.clone(),
            heard: self.heard.clone(),
            books: self.books.clone(),
            limits: self.limits.clone(),
            oracle: self.oracle.clone(),
            before: self.before.clone(),
            begins: self.begins,
            ops: Vec::new(),
            held: Vec::new(),
            pool: Default::default(),
            members: self.members.clone(),
            replacement_drive: self.replacement_drive,
            counts: Default::default(),
            trace: self.trace.copy(),
            tails: self.tails.clone(),
            ready: false,
            in_order: true,
            refusal: None,
            forks: Forks::new(0, Rng::new(0)),
            lenient: self.lenient,
            excused: 0,
            foreign: self.foreign.clone(),
            coverage: Coverage { seen: BTreeSet::new(), ..self.coverage },
        })
    }

    /// Members that are not active.
    pub(super) fn unsound_members(&self) -> impl Iterator<Item = usize> {
        let states = self.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
        let unsound = states.into_iter().enumerate().filter(|(_, (state, _))| *state != MemberState::Active);
        unsound.map(|(member, _)| member)
    }

    /// The drives of a member: its own, and its replacement drive.
    pub(super) fn drives_of(&self, member: usize) -> impl Iterator<Item = Bay> {
        let replacement_drive = self
            .replacement_drive
            .filter(|replacement_drive| replacement_drive.member == member)
            .map(|replacement_drive| replacement_drive.bay);
        self.members[member].into_iter().chain(replacement_drive)
    }

    /// The drives that are left without those of the `lost` members.
    pub(super) fn kept(&self, lost: &[usize]) -> Vec<Bay> {
        let mut bays = Vec::new();
        for member in 0..self.members.len() {
            let is_lost = lost.contains(&member);
            match self.replacement_drive.filter(|replacement_drive| replacement_drive.member == member) {
                None if is_lost => {}
                Some(replacement_drive) if is_lost && !replacement_drive.lost => {
                    bays.push(replacement_drive.bay)
                }
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

    /// The number of commands that have changed drives, summed over `bays`.
    pub(super) fn changes(&self, bays: &[Bay]) -> u64 {
        bays.iter().map(|bay| self.command_queue.changes(*bay)).sum()
    }
}

/// A new drive of this geometry, with the given compression.
fn blank(geometry: &Geometry, compression: Option<Scheme>) -> Ssd {
    match compression {
        Some(scheme) => Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(geometry, scheme))),
        None => Ssd::in_memory(geometry),
    }
}
