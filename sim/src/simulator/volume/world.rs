//! The simulated world of a volume: drives, executor, volume and load, and the choice of the next event.
//!
//! As in the world of arrays, everything that can happen is an event, and the seed picks among the possible events.

use super::{
    DeviceBelow, VolumeCounts,
    helpers::Helpers,
    oracle::{VolumeEnd, VolumeOracle, fill},
    scenario::VolumeScenario,
    stack::{bring_up, create},
};
use crate::simulator::{
    command_queue::{Bay, CommandQueue, Fault},
    hidden::{HiddenLayer, ask, attach, flip},
    world::{Failure, Pending, TOO_MANY_EVENTS, Trace, TraceMode},
};
use emu::{
    rng::Rng,
    ssd::{self, Cut, Ssd},
};
use engine::{
    array::{Drive, Tails},
    buf::{BLOCK, Buf},
    device::{DeviceError, Status},
    runtime::{MOST_WORK, Runtime},
    volume::{Codec, Unit, Volume, VolumeStatus},
    zone::ZoneIndex,
};
use std::{cell::RefCell, future::Future, rc::Rc};

/// Blocks of one read when all data is checked.
const JUDGED_AT_ONCE: u64 = 64;

/// Upper bound of task steps without a device event.
const TOO_MANY_STEPS: u64 = 100_000;

/// Blocks of one write that fills a volume.
const FILLED_AT_ONCE: u64 = 16;

/// Logical blocks of a page of the map.
const PAGE_BLOCKS: u64 = 672;

/// Most zones of a drive that wear out in a life: fewer than are spare.
const MOST_WORN: u64 = 2;

/// Events after which no command is outstanding any more.
const QUIET_EVENTS: u64 = 20_000;

/// Most events of a recovery that is interrupted.
const RECOVERY_EVENTS: u64 = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolumeOpKind {
    Write { at: u64, blocks: u64, fua: bool },
    Discard { at: u64, blocks: u64 },
    Read { at: u64, blocks: u64 },
    Flush,
}

/// The result of an operation, with the data of a read; `None` while it is outstanding.
type Answer = Rc<RefCell<Option<Result<Buf, DeviceError>>>>;

struct VolumeOp {
    kind: VolumeOpKind,
    begun: u64,
    answer: Answer,
    /// The largest number of blocks that may have been mapped since the operation began, as of the last count.
    mapped: u64,
}

/// The simulated world; see the module documentation.
pub struct VolumeWorld {
    scenario: VolumeScenario,
    rng: Rng,
    command_queue: Rc<CommandQueue>,
    runtime: Runtime,
    bays: Vec<Bay>,
    /// The missing member.
    lost: Option<usize>,
    volume: Option<Volume>,
    oracle: VolumeOracle,
    ops: Vec<VolumeOp>,
    /// Contents of the tails file of the running process, and those that the last killed process has left.
    tails: Rc<RefCell<Tails>>,
    left: Option<Tails>,
    /// The most severe end since the last recovery.
    end: VolumeEnd,
    counts: VolumeCounts,
    trace: Trace,
    /// A task may be ready to run.
    ready: bool,
    /// A command of the drive was made to fail: operations may fail.
    struck: bool,
    /// Number of read-only zones.
    worn: u64,
    forks_left: u64,
}

impl Drop for VolumeWorld {
    /// Tasks hold the executor that holds them.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

fn is_pending<T>(pending: &Pending<T, String>) -> bool {
    pending.borrow().is_none()
}

fn is_unanswered(ops: &[VolumeOp]) -> bool {
    ops.iter().all(|op| op.answer.borrow().is_none())
}

impl VolumeWorld {
    /// A world with new drives and without a volume.
    pub fn new(scenario: VolumeScenario, mut rng: Rng, tracing: TraceMode) -> VolumeWorld {
        let command_queue = Rc::new(CommandQueue::default());
        let mut bays = Vec::new();
        for _ in 0..scenario.members {
            let mut ssd = Ssd::in_memory(&scenario.drive);
            if scenario.unwritten_fails {
                ssd.fail_unwritten();
            }
            if scenario.fua_stands_alone {
                ssd.let_fua_stand_alone();
            }
            bays.push(command_queue.insert(ssd));
        }
        VolumeWorld {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            command_queue,
            bays,
            lost: None,
            volume: None,
            oracle: VolumeOracle::new(0),
            ops: Vec::new(),
            tails: Rc::default(),
            left: None,
            end: VolumeEnd::Kill,
            counts: VolumeCounts::default(),
            trace: Trace::new(tracing),
            ready: false,
            struck: false,
            worn: 0,
            forks_left: scenario.most_forks,
            scenario,
        }
    }

    pub fn counts(&self) -> VolumeCounts {
        self.counts
    }

    /// The kept lines of the trace.
    pub fn trace_lines(&self) -> Vec<String> {
        self.trace.lines()
    }

    /// Plays the life of the volume.
    ///
    /// # Errors
    /// The broken promise.
    pub fn run(&mut self) -> Result<(), Failure> {
        self.trace.note(|| format!("{:?}", self.scenario));
        let mut uuid = [0; 16];
        self.rng.fill(&mut uuid);
        let (runtime, scenario, drives) = (self.runtime.clone(), self.scenario.clone(), self.drives());
        let made = self.start(create(runtime, scenario, drives, uuid));
        self.wait(&made)?.map_err(|why| Failure(format!("the volume cannot be made: {why}")))?;
        self.end_process();
        self.recover(0)?;
        self.oracle = VolumeOracle::new(self.volume.as_ref().map_or(0, Volume::blocks));
        self.judge()?;
        if self.scenario.filled {
            self.fill_up()?;
        }
        for round in 0..self.scenario.rounds {
            let events = self.rng.below(self.scenario.work_events);
            for _ in 0..events {
                self.event(true)?;
                self.strike();
                if self.forks_left > 0 && self.rng.chance(1, self.scenario.fork_rarity) {
                    self.forks_left -= 1;
                    self.fork()?;
                }
            }
            if round == 0 && self.rng.chance(1, 4) {
                self.stop()?;
            }
            self.end_somehow()?;
            self.recover(self.scenario.cut_in_recovery_percent)?;
            self.judge()?;
        }
        self.drain()
    }

    /// The present drives.
    fn drives(&self) -> Vec<Drive> {
        let there = self.bays.iter().enumerate().filter(|(member, _)| self.lost != Some(*member));
        there
            .map(|(_, bay)| Drive {
                name: format!("drive{bay}"),
                device: Rc::new(self.command_queue.drive(*bay)),
            })
            .collect()
    }

    /// Starts work as a task.
    fn start<T: 'static>(
        &mut self,
        work: impl Future<Output = Result<T, String>> + 'static,
    ) -> Pending<T, String> {
        let pending: Pending<T, String> = Rc::default();
        let result = pending.clone();
        self.runtime.spawn(async move {
            let value = work.await;
            *result.borrow_mut() = Some(value);
        });
        self.ready = true;
        pending
    }

    /// Executes one event; `false` if no event is possible. `working` lets the load submit operations.
    fn event(&mut self, working: bool) -> Result<bool, Failure> {
        let (queued, executed) = (self.command_queue.queued(), self.command_queue.executed());
        if queued == 0 && executed == 0 && !self.ready && !self.ops.is_empty() {
            return Err(self.hang());
        }
        let wanted = working && self.volume.is_some() && self.ops.len() < self.scenario.load.queue_depth;
        let possible = [queued > 0, executed > 0, self.ready, wanted];
        let weights: Vec<u64> =
            possible.iter().zip(self.scenario.pace).map(|(possible, pace)| *possible as u64 * pace).collect();
        if weights.iter().all(|weight| *weight == 0) {
            return Ok(false);
        }
        self.command_queue.tick();
        self.trace.event += 1;
        let kind = self.rng.weighted(&weights);
        match kind {
            0 => {
                let index = if self.scenario.in_order { 0 } else { self.rng.below(queued as u64) as usize };
                if let Some(event) = self.command_queue.execute(index, self.trace.on()) {
                    self.trace.note(|| format!("drive{} does {}", event.bay, event.what));
                }
            }
            1 => {
                let index = self.rng.below(executed as u64) as usize;
                self.command_queue.deliver(index);
                self.ready = true;
            }
            2 if self.rng.chance(1, 100) => self.settle()?,
            2 => self.ready = self.runtime.step(),
            _ => self.issue(),
        }
        let most = self.runtime.most_worked();
        if most > MOST_WORK {
            return Err(Failure(format!("a task did {most} units of work before others could go on")));
        }
        self.collect()?;
        Ok(true)
    }

    /// Runs tasks until none is ready, since devices are polled only then.
    fn settle(&mut self) -> Result<(), Failure> {
        self.ready = false;
        match (0..TOO_MANY_STEPS).any(|_| !self.runtime.step()) {
            true => Ok(()),
            false => Err(Failure(format!("tasks wake each other for ever: {:?}", self.status()))),
        }
    }

    fn status(&self) -> Option<VolumeStatus> {
        self.volume.as_ref().map(Volume::status)
    }

    fn hang(&self) -> Failure {
        let ops: Vec<VolumeOpKind> = self.ops.iter().map(|op| op.kind).collect();
        let status = self.status();
        Failure(format!("nothing can happen any more, but this never completed: {ops:?}; {status:?}"))
    }

    /// Runs events until the result is available.
    fn wait<T>(&mut self, pending: &Pending<T, String>) -> Result<Result<T, String>, Failure> {
        for _ in 0..TOO_MANY_EVENTS {
            if let Some(result) = pending.borrow_mut().take() {
                return Ok(result);
            }
            if !self.event(false)? {
                return Err(self.hang());
            }
        }
        Err(Failure(format!("still not done after {TOO_MANY_EVENTS} events")))
    }

    /// Runs until all operations are complete.
    fn drain(&mut self) -> Result<(), Failure> {
        for _ in 0..TOO_MANY_EVENTS {
            if self.ops.is_empty() {
                return Ok(());
            }
            self.event(false)?;
        }
        Err(Failure(format!("operations did not complete within {TOO_MANY_EVENTS} events")))
    }

    /// Whether commands of a bare drive are made to fail; above an array the array would handle such errors.
    fn volume_fails(&self) -> bool {
        self.scenario.fault_rarity > 0 && self.scenario.over == DeviceBelow::Drive
    }

    fn strike(&mut self) {
        if self.volume_fails() && self.rng.chance(1, self.scenario.fault_rarity) {
            self.arm();
        }
    }

    /// Makes a command of the drive fail, or wears out one of its zones.
    fn arm(&mut self) {
        self.struck = true;
        let late = self.rng.chance(1, 2);
        let fault = match self.rng.below(5) {
            0 if self.worn < MOST_WORN => {
                self.worn += 1;
                // The head zones are excluded: no volume works without them.
                let zone = ZoneIndex(2 + self.rng.below(self.scenario.drive.zones as u64 - 2) as u32);
                self.trace.note(|| format!("zone {} can only be read from now on", zone.0));
                return self.command_queue.ssd(self.bays[0]).faults().after(0, ssd::Fault::ReadOnly(zone));
            }
            0 | 1 => Fault::Write,
            2 => Fault::Read,
            3 => Fault::Fail { kind: ssd::Kind::Flush, late },
            _ => Fault::Fail { kind: ssd::Kind::Reset, late },
        };
        self.trace.note(|| format!("the drive will fail: {fault:?}"));
        self.command_queue.set_fault(self.bays[0], fault);
    }

    fn stop(&mut self) -> Result<(), Failure> {
        self.drain()?;
        if self.struck {
            return Ok(());
        }
        let Some(volume) = self.volume.clone() else { return Ok(()) };
        self.trace.note(|| "the volume is stopped".into());
        let stopped = self.start(async move { volume.stop().await.map_err(|e| e.to_string()) });
        self.wait(&stopped)?.map_err(|why| Failure(format!("the volume does not stop: {why}")))
    }

    /// Draws the first block and the size of an operation.
    fn draw_range(&mut self, most: u64) -> (u64, u64) {
        let blocks = 1 + self.rng.below(most.min(self.oracle.blocks()));
        if self.scenario.load.crosses && blocks < PAGE_BLOCKS && self.rng.chance(1, 2) {
            let pages = self.oracle.blocks() / PAGE_BLOCKS;
            let end = (1 + self.rng.below(pages.max(1))) * PAGE_BLOCKS + self.rng.below(blocks);
            return (end.min(self.oracle.blocks()) - blocks, blocks);
        }
        let hot = self.rng.chance(self.scenario.load.hot_percent, 100);
        let span = if hot { (self.oracle.blocks() / 8).max(blocks) } else { self.oracle.blocks() };
        (self.rng.below(span - blocks + 1), blocks)
    }

    /// Submits an operation.
    fn issue(&mut self) {
        let load = self.scenario.load.clone();
        let weights = [load.write, load.read, load.discard, load.flush];
        let kind = self.rng.weighted(&weights);
        let kind = match kind {
            0 => {
                let (at, blocks) = self.draw_range(load.most_blocks);
                VolumeOpKind::Write { at, blocks, fua: self.rng.chance(load.fua_percent, 100) }
            }
            1 => {
                let (at, blocks) = self.draw_range(2 * load.most_blocks);
                VolumeOpKind::Read { at, blocks }
            }
            2 => {
                let all = self.rng.chance(1, 20);
                let (at, blocks) = self.draw_range(if all { u64::MAX } else { 3 * load.most_blocks });
                VolumeOpKind::Discard { at, blocks }
            }
            _ => VolumeOpKind::Flush,
        };
        self.begin(kind);
    }

    fn begin(&mut self, kind: VolumeOpKind) {
        let Some(volume) = self.volume.clone() else { return };
        self.counts.operations += 1;
        let answer = Answer::default();
        let told = answer.clone();
        let begun = match kind {
            VolumeOpKind::Write { at, blocks, fua } => {
                let (write, begun) = self.oracle.begin(at, blocks, false);
                let mut data = engine::buf::BufMut::zeroed(blocks as usize * BLOCK);
                (0..blocks).for_each(|block| fill(at + block, write, data.block_mut(block)));
                let data = data.freeze();
                self.runtime.spawn(async move {
                    let result = volume.write(at, &data, fua).await;
                    *told.borrow_mut() = Some(result.map(|()| Buf::default()));
                });
                begun
            }
            VolumeOpKind::Discard { at, blocks } => {
                let (_, begun) = self.oracle.begin(at, blocks, true);
                self.runtime.spawn(async move {
                    let result = volume.discard(at, blocks).await;
                    *told.borrow_mut() = Some(result.map(|()| Buf::default()));
                });
                begun
            }
            VolumeOpKind::Read { at, blocks } => {
                self.runtime.spawn(async move {
                    let result = volume.read(at, Buf::zeroed(blocks as usize * BLOCK)).await;
                    *told.borrow_mut() = Some(result);
                });
                self.oracle.tick()
            }
            VolumeOpKind::Flush => {
                self.runtime.spawn(async move {
                    let result = volume.flush().await;
                    *told.borrow_mut() = Some(result.map(|()| Buf::default()));
                });
                self.oracle.tick()
            }
        };
        self.trace.note(|| format!("begins at {begun}: {kind:?}"));
        self.ops.push(VolumeOp { kind, begun, answer, mapped: 0 });
        self.ready = true;
    }

    /// Judges the completed operations.
    fn collect(&mut self) -> Result<(), Failure> {
        let mut at = 0;
        while at < self.ops.len() {
            let answer = self.ops[at].answer.borrow_mut().take();
            let Some(answer) = answer else {
                at += 1;
                continue;
            };
            let VolumeOp { kind, begun, mapped, .. } = self.ops.swap_remove(at);
            self.trace.note(|| format!("ended, begun at {begun}: {kind:?} {answer:?}"));
            let mapped_now = self.oracle.may_be_mapped();
            // The refusal was decided before other operations that free space completed.
            self.ops.iter_mut().for_each(|op| op.mapped = op.mapped.max(mapped_now));
            self.answered(kind, begun, mapped.max(mapped_now), answer)?;
        }
        Ok(())
    }

    fn answered(
        &mut self,
        kind: VolumeOpKind,
        begun: u64,
        mapped: u64,
        answer: Result<Buf, DeviceError>,
    ) -> Result<(), Failure> {
        let data = match (answer, kind) {
            (Ok(data), _) => data,
            (Err(DeviceError::Status(Status::CapacityExceeded)), VolumeOpKind::Write { at, blocks, .. }) => {
                self.counts.refusals += 1;
                // Blocks that compress less than the ones that they overwrite, and worn zones, may use up the free
                // space.
                let may_be_refused = self.scenario.codec.is_some() || self.scenario.fault_rarity != 0;
                if !may_be_refused && self.oracle.are_mapped(at, blocks) {
                    return Err(Failure(format!("{kind:?} is refused, and only overwrites")));
                }
                self.oracle.refuse(at, blocks, begun);
                let usable = self.status().map_or(0, |status| status.usable);
                return match mapped >= usable {
                    true => Ok(()),
                    false => Err(Failure(format!("{kind:?} meets no room: {mapped} of {usable} are mapped"))),
                };
            }
            (Err(_), _) if self.struck => return Ok(()),
            (Err(error), _) => return Err(Failure(format!("{kind:?} fails: {error}"))),
        };
        match kind {
            VolumeOpKind::Write { at, blocks, fua } => self.oracle.end(at, blocks, begun, fua),
            VolumeOpKind::Discard { at, blocks } => self.oracle.end(at, blocks, begun, false),
            VolumeOpKind::Read { at, .. } => self.oracle.check_read(at, begun, &data).map_err(Failure)?,
            VolumeOpKind::Flush => {
                let reads = self.ops.iter().any(|op| matches!(op.kind, VolumeOpKind::Read { .. }));
                self.oracle.flushed(begun, reads);
            }
        }
        Ok(())
    }

    /// Discards the state that the process held in memory.
    fn end_process(&mut self) {
        if let Some(volume) = self.volume.take() {
            let status = volume.status();
            self.counts.collected_zones += status.collected_zones;
            self.counts.checkpoints += status.checkpoints;
            self.counts.discarded += status.discarded;
        }
        self.runtime.clear();
        self.runtime = Runtime::seeded(self.rng.next_u64());
        self.ops.clear();
        self.ready = false;
        self.struck = false;
        self.command_queue.clear_fault(self.bays[0]);
    }

    /// Ends the world: a power cut, or a kill of the process.
    fn end_somehow(&mut self) -> Result<(), Failure> {
        if let Some(status) = self.status()
            && status.unreadable_zones > 0
            && !self.struck
        {
            return Err(Failure(format!("nothing has failed, and zones cannot be collected: {status:?}")));
        }
        if self.rng.chance(self.scenario.kill_percent, 100) {
            self.trace.note(|| "the process is killed".into());
            self.counts.kills += 1;
            self.end_process();
            self.left = Some(self.tails.borrow().clone());
            self.command_queue.kill(&mut self.rng);
            return Ok(());
        }
        self.cut_power()
    }

    fn cut_power(&mut self) -> Result<(), Failure> {
        let queued = self.command_queue.queued();
        let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(3, 4);
        self.trace.note(|| format!("power cut with {queued} commands in flight; caches lost: {cache_lost}"));
        self.counts.power_cuts += 1;
        self.end = VolumeEnd::PowerCut;
        self.end_process();
        self.left = None;
        let cut = Cut { cache_lost, zrwa_lost: false };
        self.command_queue
            .power_cut(&mut self.rng, |_| cut)
            .map_err(|error| Failure(format!("power cut: {error}")))
    }

    /// Opens the volume again; in `cut_percent` of the attempts the power is cut meanwhile.
    fn recover(&mut self, cut_percent: u64) -> Result<(), Failure> {
        loop {
            let strikes = self.volume_fails() && self.rng.chance(1, 8);
            if strikes {
                self.arm();
            }
            let (runtime, over) = (self.runtime.clone(), self.scenario.over);
            let tails = (self.left.clone(), self.tails.clone());
            let up = self.start(bring_up(runtime, over, self.drives(), self.scenario.behaviour, tails));
            if self.rng.chance(cut_percent, 100) {
                let events = self.rng.below(RECOVERY_EVENTS);
                let mut passed = 0;
                while passed < events && is_pending(&up) && self.event(false)? {
                    passed += 1;
                }
                if is_pending(&up) {
                    self.counts.interrupted_recoveries += 1;
                    self.cut_power()?;
                    continue;
                }
            }
            let volume = self.wait(&up)?;
            if strikes && let Err(why) = &volume {
                self.trace.note(|| format!("the volume does not come up: {why}"));
                self.end_process();
                self.command_queue.kill(&mut self.rng);
                continue;
            }
            self.command_queue.clear_fault(self.bays[0]);
            self.volume =
                Some(volume.map_err(|why| Failure(format!("the volume does not come up again: {why}")))?);
            if matches!(self.scenario.codec, Some(Codec::Zstd(_))) {
                let helpers = Rc::new(Helpers::new(self.rng.next_u64()));
                self.volume.iter().for_each(|volume| volume.employ(helpers.clone()));
            }
            return self.choose_codec();
        }
    }

    /// Switches compression on or off occasionally; existing data stays as it is.
    fn choose_codec(&mut self) -> Result<(), Failure> {
        let Some(volume) = self.volume.clone().filter(|_| self.scenario.codec.is_some()) else {
            return Ok(());
        };
        let is_on = volume.status().codec.is_some();
        if !self.rng.chance(if is_on { 1 } else { 4 }, 5) {
            return Ok(());
        }
        let codec = self.scenario.codec.filter(|_| !is_on);
        let units: Vec<Unit> = Unit::all().filter(|unit| *unit <= self.scenario.unit).collect();
        let unit = *self.rng.clone().pick(&units);
        self.trace.note(|| format!("what is written from now on is compressed: {codec:?} {unit:?}"));
        let chosen = self.start(async move { volume.compress(codec, unit).await.map_err(|e| e.to_string()) });
        self.wait(&chosen)?.map_err(|why| Failure(format!("compression is not changed: {why}")))
    }

    /// Checks every block against the promises, and audits the zones' live counts against the map.
    fn judge(&mut self) -> Result<(), Failure> {
        let Some(volume) = self.volume.clone() else { return Ok(()) };
        self.counts.judgements += 1;
        let blocks = volume.blocks();
        let all = self.start(async move {
            let mut all = Vec::with_capacity(blocks as usize * BLOCK);
            let mut at = 0;
            while at < blocks {
                let count = JUDGED_AT_ONCE.min(blocks - at);
                let data = volume.read(at, Buf::zeroed(count as usize * BLOCK)).await;
                all.extend_from_slice(&data.map_err(|error| format!("a read of block {at} fails: {error}"))?);
                at += count;
            }
            volume.audit().await?;
            Ok(all)
        });
        let all = self.wait_in_order(&all)?.map_err(Failure)?;
        self.oracle.recovered(self.end, &all).map_err(Failure)?;
        self.end = VolumeEnd::Kill;
        self.check_status()?;
        self.check_active()
    }

    /// Compares the status after a recovery with the blocks that were read.
    fn check_status(&self) -> Result<(), Failure> {
        let Some(status) = self.status() else { return Ok(()) };
        let mapped = self.oracle.may_be_mapped();
        let is_at_rest = (status.waiting, status.refused, status.failed) == (0, 0, None);
        let is_readable = status.unreadable_zones == 0 || self.struck;
        if status.mapped != mapped || !is_at_rest || !is_readable {
            return Err(Failure(format!("{mapped} blocks hold data, and all can be read: {status:?}")));
        }
        Ok(())
    }

    /// Checks that the volume's zones are the only active ones of a bare drive, which may limit active zones.
    fn check_active(&self) -> Result<(), Failure> {
        let Some(status) = self.status().filter(|status| !status.collects) else { return Ok(()) };
        let ssd = self.command_queue.ssd(self.bays[0]);
        let is_active = |zone: &u32| ssd.zones().info(ZoneIndex(*zone)).state.is_active();
        let is_stray = |zone: &u32| is_active(zone) && !status.writing.contains(zone);
        let stray = (2..self.scenario.drive.zones).filter(is_stray).collect::<Vec<u32>>();
        if self.scenario.over != DeviceBelow::Drive || stray.is_empty() {
            return Ok(());
        }
        Err(Failure(format!("zones {stray:?} are active, and the volume does not write them: {status:?}")))
    }

    /// Writes as many blocks as fit.
    fn fill_up(&mut self) -> Result<(), Failure> {
        let Some(status) = self.status() else { return Ok(()) };
        let blocks = status.blocks.min(status.usable);
        for at in (0..blocks).step_by(FILLED_AT_ONCE as usize) {
            self.begin(VolumeOpKind::Write { at, blocks: FILLED_AT_ONCE.min(blocks - at), fua: false });
            while !self.ops.is_empty() {
                self.settle()?;
                if self.command_queue.queued() == 0
                    && self.command_queue.executed() == 0
                    && is_unanswered(&self.ops)
                {
                    return Err(self.hang());
                }
                self.command_queue.run_all();
                self.collect()?;
            }
        }
        self.ready = true;
        Ok(())
    }

    /// Waits for the result, in order and without delays.
    fn wait_in_order<T>(&mut self, pending: &Pending<T, String>) -> Result<Result<T, String>, Failure> {
        for _ in 0..TOO_MANY_EVENTS {
            self.runtime.run();
            if let Some(result) = pending.borrow_mut().take() {
                self.ready = true;
                return Ok(result);
            }
            if self.command_queue.queued() == 0 && self.command_queue.executed() == 0 {
                return Err(self.hang());
            }
            self.command_queue.run_all();
        }
        Err(Failure(format!("still not done after {TOO_MANY_EVENTS} rounds")))
    }

    /// A copy of the world with the same drives, oracle and commands in flight; nothing runs in it.
    fn copy(&mut self) -> Result<VolumeWorld, Failure> {
        let command_queue =
            self.command_queue.copy().map_err(|error| Failure(format!("copying the drives: {error}")))?;
        let mut rng = self.rng.fork();
        Ok(VolumeWorld {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            scenario: self.scenario.clone(),
            command_queue: Rc::new(command_queue),
            bays: self.bays.clone(),
            lost: self.lost,
            volume: None,
            oracle: self.oracle.clone(),
            ops: Vec::new(),
            tails: Rc::new(RefCell::new(self.tails.borrow().clone())),
            left: self.left.clone(),
            end: self.end,
            counts: VolumeCounts::default(),
            trace: self.trace.copy(),
            ready: false,
            struck: false,
            worn: self.worn,
            forks_left: 0,
        })
    }

    /// Ends a copy of the world and judges its recovery.
    fn fork(&mut self) -> Result<(), Failure> {
        let mut copy = self.copy()?;
        let result = copy.end_and_judge();
        self.counts.forks += 1;
        self.counts.add(&copy.counts);
        result.map_err(|failure| {
            self.trace.extend(std::mem::take(&mut copy.trace));
            Failure(format!("forked here, {}{failure}", copy.without()))
        })
    }

    fn without(&self) -> String {
        self.lost.map(|member| format!("without member {member}: ")).unwrap_or_default()
    }

    /// Ends the process when no operation is outstanding, and flips a bit of the volume's metadata on one member, which
    /// must have no effect.
    fn end_damaged(&mut self, rng: &mut Rng) -> Result<(), Failure> {
        self.end_somehow()?;
        self.recover(0)?;
        self.judge()?;
        for _ in 0..rng.below(200) {
            self.event(true)?;
        }
        for _ in 0..QUIET_EVENTS {
            if !self.event(false)? {
                break;
            }
        }
        self.end_process();
        self.left = Some(self.tails.borrow().clone());
        self.command_queue.kill(&mut self.rng);
        if let Some(flipped) = flip(&self.command_queue, &self.bays, rng) {
            self.trace.note(|| flipped.clone());
            self.counts.flips += 1;
            let judged = self.recover(0).and_then(|()| self.judge());
            return judged.map_err(|failure| Failure(format!("{flipped}: {}", failure.0)));
        }
        Ok(())
    }

    /// Removes members, after maybe replacing one by a new, still empty drive: the existence of the volume must not be
    /// denied.
    fn end_hidden(&mut self, rng: &mut Rng) -> Result<(), Failure> {
        let members = self.scenario.members;
        if rng.chance(2, 3) {
            let member = rng.below(members as u64) as usize;
            let bay = self.command_queue.insert(Ssd::in_memory(&self.scenario.drive));
            let new = Drive { name: format!("drive{bay}"), device: Rc::new(self.command_queue.drive(bay)) };
            self.lost = Some(member);
            let found = (self.drives(), self.left.take());
            let attached = self.start(attach(self.runtime.clone(), found, member, new));
            self.lost = None;
            self.wait_in_order(&attached)?.map_err(Failure)?;
            self.bays[member] = bay;
            self.end_process();
            self.command_queue.kill(&mut self.rng);
        }
        let mut drives = self.drives();
        for _ in 0..1 + rng.below(2) {
            drives.remove(rng.below(drives.len() as u64) as usize);
        }
        self.counts.member_losses += 1;
        let names: Vec<String> = drives.iter().map(|drive| drive.name.clone()).collect();
        let asked = ask(self.runtime.clone(), drives, self.left.clone(), HiddenLayer::Volume);
        let asked = self.start(asked);
        let asked = self.wait_in_order(&asked)?;
        asked.map_err(|why| Failure(format!("with {names:?}: {why}")))
    }

    fn end_and_judge(&mut self) -> Result<(), Failure> {
        // Drawn from separate numbers, so that the rest of a life does not change.
        let mut rng = Rng::new(self.rng.clone().next_u64());
        if self.scenario.members > 1 && rng.chance(1, 4) {
            return self.end_damaged(&mut rng);
        }
        self.end_somehow()?;
        if self.scenario.members > 1 && rng.chance(1, 3) {
            return self.end_hidden(&mut rng);
        }
        if self.scenario.members > 1 && self.rng.chance(3, 4) {
            self.lost = Some(self.rng.below(self.scenario.members as u64) as usize);
            self.counts.member_losses += 1;
        }
        self.recover(self.scenario.cut_in_recovery_percent / 2)?;
        self.judge()?;
        if self.rng.chance(1, 2) {
            for _ in 0..self.rng.below(200) {
                self.event(true)?;
            }
            self.end_somehow()?;
            self.recover(0)?;
            self.judge()?;
        }
        Ok(())
    }
}
