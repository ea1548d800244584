//! The simulated world of namespaces: drives, executor, tenants and load, and the choice of the next event.
//!
//! As in the world of arrays, everything that can happen is an event, and the seed picks among the possible events.

mod load;

use super::{
    DeviceBelow, NamespaceCounts,
    oracle::{NamespaceEnd, NamespaceZone},
    scenario::NamespaceScenario,
    stack::{bring_up, create, show},
};
use crate::simulator::{
    command_queue::{Bay, CommandQueue},
    hidden::{HiddenLayer, ask, attach, flip},
    world::{Failure, Pending, TOO_MANY_EVENTS, Trace, TraceMode},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Ssd},
};
use engine::{
    array::Drive,
    device::ZonedDevice,
    runtime::{MOST_WORK, Runtime},
    vzone::{Namespace, NamespaceOptions, Namespaces, VzoneError},
};
use load::{NamespaceOp, NamespaceOpKind, Reshape, TenantQos};
use std::{cell::Cell, future::Future, rc::Rc};

/// Most events of a recovery that is interrupted.
const RECOVERY_EVENTS: u64 = 150;

/// Number of events between two audits of the allocation.
const AUDIT_EVERY: u64 = 8;

/// Events within which all commands complete that were submitted while commands of the drive failed.
const FAILING_EVENTS: u64 = 100_000;

/// Most tenants of a life, and most zones of one: block stamps contain both numbers.
const MOST_TENANTS: usize = 14;
const MOST_ZONES: u32 = 16;

/// The simulated world; see the module documentation.
pub struct NamespaceWorld {
    scenario: NamespaceScenario,
    rng: Rng,
    command_queue: Rc<CommandQueue>,
    runtime: Runtime,
    clock: Rc<Cell<u64>>,
    bays: Vec<Bay>,
    /// The missing member.
    lost: Option<usize>,
    /// The running namespaces, and the handle of each tenant's namespace; `None` for a tenant without one.
    up: Option<(Namespaces, Vec<Option<Namespace>>)>,
    /// By tenant and zone, including zones that the tenant no longer has.
    zones: Vec<Vec<NamespaceZone>>,
    names: Vec<String>,
    /// Number of zones of each tenant; `None` without a namespace.
    sizes: Vec<Option<u32>>,
    limits: Vec<TenantQos>,
    /// A change of namespaces that may have taken effect, and its result while that is outstanding.
    reshape: Option<Reshape>,
    reshaping: Option<Pending<Result<(), VzoneError>, String>>,
    /// The tenant of a change of limits that is in progress.
    limiting: Option<(usize, Pending<(), String>)>,
    /// Whether each tenant submits operations now.
    busy: Vec<bool>,
    ops: Vec<NamespaceOp>,
    writes: u64,
    end: NamespaceEnd,
    counts: NamespaceCounts,
    trace: Trace,
    /// Commands of the drive fail occasionally.
    failing: bool,
    /// A task may be ready to run.
    ready: bool,
    forks_left: u64,
}

impl Drop for NamespaceWorld {
    /// Tasks hold the executor that holds them.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

fn is_pending<T>(pending: &Pending<T, String>) -> bool {
    pending.borrow().is_none()
}

impl NamespaceWorld {
    /// A world with new drives and without namespaces.
    pub fn new(scenario: NamespaceScenario, mut rng: Rng, tracing: TraceMode) -> NamespaceWorld {
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
        NamespaceWorld {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            command_queue,
            clock: Rc::new(Cell::new(1_000_000)),
            bays,
            lost: None,
            up: None,
            zones: Vec::new(),
            names: Vec::new(),
            sizes: Vec::new(),
            limits: Vec::new(),
            reshape: None,
            reshaping: None,
            limiting: None,
            busy: Vec::new(),
            ops: Vec::new(),
            writes: 0,
            end: NamespaceEnd::Kill,
            counts: NamespaceCounts::default(),
            trace: Trace::new(tracing),
            failing: false,
            ready: false,
            forks_left: scenario.most_forks,
            scenario,
        }
    }

    pub fn counts(&self) -> NamespaceCounts {
        self.counts
    }

    /// The kept lines of the trace.
    pub fn trace_lines(&self) -> Vec<String> {
        self.trace.lines()
    }

    /// Plays the life of the namespaces.
    ///
    /// # Errors
    /// The broken promise.
    pub fn run(&mut self) -> Result<(), Failure> {
        self.trace.note(|| format!("{:?}", self.scenario));
        let mut uuid = [0; 16];
        self.rng.fill(&mut uuid);
        let made = self.start(create(self.runtime.clone(), self.scenario.clone(), self.drives(), uuid));
        if let Err(why) = self.wait(&made)? {
            // Such a small drive has no room for namespaces.
            return match why == VzoneError::TooSmall.to_string() {
                true => Ok(()),
                false => Err(Failure(format!("namespaces cannot be made: {why}"))),
            };
        }
        // No command is outstanding when the process ends.
        while self.event(false)? {}
        self.end_process();
        self.recover(0)?;
        self.add_namespaces()?;
        self.judge()?;
        for _ in 0..self.scenario.rounds {
            self.busy = self.names.iter().map(|_| self.rng.chance(2, 3)).collect();
            let events = self.rng.below(self.scenario.work_events);
            for event in 0..events {
                if event == events / 2 {
                    self.busy = self.names.iter().map(|_| self.rng.chance(1, 2)).collect();
                }
                self.event(true)?;
                if self.forks_left > 0 && self.rng.chance(1, self.scenario.fork_rarity) {
                    self.forks_left -= 1;
                    self.fork()?;
                }
            }
            self.end_somehow()?;
            self.recover(self.scenario.cut_in_recovery_percent)?;
            self.judge()?;
        }
        self.drain()?;
        // At the end, so that the life before it does not change.
        if self.scenario.over == DeviceBelow::Drive && self.rng.chance(1, 2) {
            self.fail_now_and_then()
        } else {
            Ok(())
        }
    }

    /// Makes single commands of the drive fail. Every operation completes, those that succeed have taken effect, and
    /// all promised data is there after the next start.
    fn fail_now_and_then(&mut self) -> Result<(), Failure> {
        (self.scenario.limits, self.scenario.reshapes, self.failing) = (false, false, true);
        let (events, mut broken) = (self.rng.below(self.scenario.work_events), 0);
        for event in 0..events {
            if event % 256 == 0 {
                self.busy = self.names.iter().map(|_| self.rng.chance(1, 2)).collect();
            }
            if self.rng.chance(1, 40) {
                self.break_something(broken);
                broken += 1;
            }
            self.event(true)?;
        }
        for _ in 0..FAILING_EVENTS {
            if !self.ops.is_empty() {
                self.event(false)?;
            }
        }
        if !self.ops.is_empty() {
            return Err(self.hang());
        }
        self.end_somehow()?;
        self.recover(0)?;
        self.judge()
    }

    fn add_namespaces(&mut self) -> Result<(), Failure> {
        let Some((namespaces, _)) = self.up.clone() else { return Ok(()) };
        for spec in self.scenario.namespaces.clone() {
            let (all, name, spec_zones) = (namespaces.clone(), spec.name.clone(), spec.zones);
            let added = self.start(async move {
                match all.add(spec).await {
                    Ok(_) => Ok(true),
                    Err(VzoneError::Full { .. } | VzoneError::Floors { .. }) => Ok(false),
                    Err(error) => Err(error.to_string()),
                }
            });
            if self.wait(&added)?.map_err(Failure)? {
                let tenant = self.expect_tenant(name);
                self.has(tenant, Some(spec_zones));
                self.counts.namespaces += 1;
            }
        }
        self.list_namespaces();
        Ok(())
    }

    /// Adds a tenant of this name, which may have a namespace from now on.
    fn expect_tenant(&mut self, name: String) -> usize {
        self.names.push(name);
        self.sizes.push(None);
        self.limits.push(TenantQos::default());
        self.zones.push(Vec::new());
        self.busy.push(true);
        self.names.len() - 1
    }

    /// Sets the number of zones of a tenant's namespace, `None` if it has none.
    fn has(&mut self, tenant: usize, zones: Option<u32>) {
        self.sizes[tenant] = zones;
        let Some((namespaces, _)) = &self.up else { return };
        let capacity = namespaces.zone_capacity_blocks();
        let known = self.zones[tenant].len() as u32;
        let mark = |zone: u32| MOST_ZONES * (tenant as u32 + 1) + zone;
        self.zones[tenant]
            .extend((known..zones.unwrap_or(0)).map(|zone| NamespaceZone::new(mark(zone), capacity)));
    }

    /// Updates the handles of the existing namespaces.
    fn list_namespaces(&mut self) {
        let Some((namespaces, list)) = &mut self.up else { return };
        let there = namespaces.list();
        let called = |name: &String| there.iter().find(|namespace| namespace.name() == name).cloned();
        *list = self.names.iter().map(called).collect();
    }

    fn namespace(&self, tenant: usize) -> Option<&Namespace> {
        self.up.as_ref()?.1.get(tenant)?.as_ref()
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
        let wanted = working && self.up.is_some() && self.ops.len() < self.scenario.queue_depth;
        let possible = [queued > 0, executed > 0, self.ready, wanted, self.up.is_some()];
        let weights: Vec<u64> =
            possible.iter().zip(self.scenario.pace).map(|(possible, pace)| *possible as u64 * pace).collect();
        if weights.iter().all(|weight| *weight == 0) {
            return Ok(false);
        }
        self.command_queue.tick();
        self.clock.set(self.clock.get() + self.rng.below(40));
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
            2 => self.ready = self.runtime.step(),
            3 => self.issue(),
            _ => self.tick(),
        }
        let most = self.runtime.most_worked();
        if most > MOST_WORK {
            return Err(Failure(format!("a task did {most} units of work before others could go on")));
        }
        self.collect()?;
        if self.trace.event.is_multiple_of(AUDIT_EVERY) {
            self.audit()?;
        }
        Ok(true)
    }

    fn tick(&mut self) {
        if let Some((namespaces, _)) = &self.up {
            namespaces.tick();
            self.ready = true;
        }
    }

    fn audit(&mut self) -> Result<(), Failure> {
        let Some((namespaces, list)) = &self.up else { return Ok(()) };
        for namespace in list.iter().flatten() {
            self.counts.most_spares = self.counts.most_spares.max(namespace.status().spares as u64);
        }
        // A refusal means that a command broke the rules of the allocation, unless commands of the drive fail.
        if namespaces.refusals() > 0 && !self.failing {
            return Err(Failure("the device has refused to write or reset a zone of no namespace".into()));
        }
        namespaces.audit().map_err(Failure)
    }

    fn hang(&self) -> Failure {
        let ops: Vec<NamespaceOpKind> = self.ops.iter().map(|op| op.kind).collect();
        Failure(format!("this never completes: {ops:?}"))
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

    /// As [`NamespaceWorld::wait`], in order and without delays.
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
        Err(self.hang())
    }

    /// Runs until all operations are complete.
    fn drain(&mut self) -> Result<(), Failure> {
        for _ in 0..TOO_MANY_EVENTS {
            if self.ops.is_empty() && self.limiting.is_none() && self.reshaping.is_none() {
                return self.audit();
            }
            self.event(false)?;
        }
        Err(self.hang())
    }

    /// Discards the state that the process held in memory.
    fn end_process(&mut self) {
        if let Some((namespaces, _)) = self.up.take() {
            self.counts.moved_groups += namespaces.moved_groups();
        }
        self.runtime.clear();
        self.runtime = Runtime::seeded(self.rng.next_u64());
        self.ops.clear();
        self.limiting = None;
        self.reshaping = None;
        self.ready = false;
    }

    /// Ends the world: a power cut, or a kill of the process.
    fn end_somehow(&mut self) -> Result<(), Failure> {
        if self.rng.chance(self.scenario.kill_percent, 100) {
            self.trace.note(|| "the process is killed".into());
            self.counts.kills += 1;
            self.end_process();
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
        self.end = NamespaceEnd::PowerCut;
        self.end_process();
        let cut = Cut { cache_lost, zrwa_lost: false };
        self.command_queue
            .power_cut(&mut self.rng, |_| cut)
            .map_err(|error| Failure(format!("power cut: {error}")))
    }

    /// Opens the namespaces again; in `cut_percent` of the attempts the power is cut meanwhile.
    fn recover(&mut self, cut_percent: u64) -> Result<(), Failure> {
        loop {
            let clock = self.clock.clone();
            let behaviour = NamespaceOptions {
                clock: Rc::new(move || clock.get()),
                patience_us: self.scenario.patience_us,
                admission: true,
            };
            let (runtime, over) = (self.runtime.clone(), self.scenario.over);
            let up = self.start(bring_up(runtime, over, self.drives(), behaviour));
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
            let namespaces = self.wait(&up)?;
            let namespaces =
                namespaces.map_err(|why| Failure(format!("namespaces do not come up again: {why}")))?;
            self.up = Some((namespaces, Vec::new()));
            self.list_namespaces();
            return Ok(());
        }
    }

    /// Checks every block of every tenant against the promises, and audits the allocation.
    fn judge(&mut self) -> Result<(), Failure> {
        self.audit()?;
        let Some((namespaces, list)) = self.up.clone() else { return Ok(()) };
        self.counts.judgements += 1;
        let maybe = self.reshape.take();
        for (tenant, namespace) in list.iter().enumerate() {
            let found = namespace.as_ref().map(|namespace| namespace.geometry().zones);
            let changed = maybe.filter(|maybe| maybe.tenant == tenant && maybe.to == found);
            if found != self.sizes[tenant] && changed.is_none() {
                let (name, was) = (&self.names[tenant], self.sizes[tenant]);
                return Err(Failure(format!("{name} has {found:?} zones and had {was:?}, or {maybe:?}")));
            }
            self.has(tenant, found);
        }
        if namespaces.list().len() != list.iter().flatten().count() {
            return Err(Failure("there are namespaces that were never created".into()));
        }
        for (tenant, namespace) in list.into_iter().enumerate() {
            let Some(namespace) = namespace else { continue };
            let found = namespace.status().spec.qos;
            let judged = self.limits[tenant].recovered(found);
            judged.map_err(|why| Failure(format!("tenant {tenant} {why}")))?;
            let volatile = namespace.geometry().volatile_cache;
            let (mut active, mut written) = (0, 0);
            for index in 0..namespace.geometry().zones as usize {
                let shown = self.start(show(namespace.clone(), index as u32));
                // Mostly in order and without delays.
                let shown = match self.rng.chance(1, 3) {
                    true => self.wait(&shown)?,
                    false => self.wait_in_order(&shown)?,
                };
                let (info, data) = shown.map_err(Failure)?;
                active += info.state.is_active() as u32;
                let zone = &mut self.zones[tenant][index];
                let result = zone.recovered(self.end, volatile, &info, &data);
                result.map_err(|why| Failure(format!("zone {index} of tenant {tenant}: {why}")))?;
                written += zone.completed;
            }
            let status = namespace.status();
            if (status.active, status.written_blocks, status.read_blocks) != (active, written, 0) {
                let truth = format!("{active} zones are active, and {written} blocks written");
                return Err(Failure(format!("tenant {tenant}: {truth}: {status:?}")));
            }
        }
        self.end = NamespaceEnd::Kill;
        Ok(())
    }

    /// A copy of the world with the same drives, oracle and commands in flight; nothing runs in it.
    fn copy(&mut self) -> Result<NamespaceWorld, Failure> {
        let command_queue =
            self.command_queue.copy().map_err(|error| Failure(format!("copying the drives: {error}")))?;
        let mut rng = self.rng.fork();
        Ok(NamespaceWorld {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            scenario: self.scenario.clone(),
            command_queue: Rc::new(command_queue),
            clock: Rc::new(Cell::new(self.clock.get())),
            bays: self.bays.clone(),
            lost: self.lost,
            up: None,
            zones: self.zones.clone(),
            names: self.names.clone(),
            sizes: self.sizes.clone(),
            limits: self.limits.clone(),
            reshape: self.reshape,
            reshaping: None,
            limiting: None,
            busy: self.busy.clone(),
            ops: Vec::new(),
            writes: self.writes,
            end: self.end,
            counts: NamespaceCounts::default(),
            trace: self.trace.copy(),
            failing: false,
            ready: false,
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
            let lost = copy.lost.map(|member| format!("without member {member}: ")).unwrap_or_default();
            self.trace.extend(std::mem::take(&mut copy.trace));
            Failure(format!("forked here, {lost}{}", failure.0))
        })
    }

    /// Cuts the power when no operation is outstanding, and flips a bit of the journal on one member, which must have
    /// no effect.
    fn end_damaged(&mut self, rng: &mut Rng) -> Result<(), Failure> {
        self.end_somehow()?;
        self.recover(0)?;
        self.judge()?;
        for _ in 0..rng.below(200) {
            self.event(true)?;
        }
        self.drain()?;
        self.cut_power()?;
        if let Some(flipped) = flip(&self.command_queue, &self.bays, rng) {
            self.trace.note(|| flipped.clone());
            let judged = self.recover(0).and_then(|()| self.judge());
            return judged.map_err(|failure| Failure(format!("{flipped}: {}", failure.0)));
        }
        Ok(())
    }

    /// Removes members, after maybe replacing one by a new, still empty drive: the existence of namespaces must not be
    /// denied.
    fn end_hidden(&mut self, rng: &mut Rng) -> Result<(), Failure> {
        let members = self.scenario.members;
        if rng.chance(2, 3) {
            let member = rng.below(members as u64) as usize;
            let bay = self.command_queue.insert(Ssd::in_memory(&self.scenario.drive));
            let new = Drive { name: format!("drive{bay}"), device: Rc::new(self.command_queue.drive(bay)) };
            self.lost = Some(member);
            let attached = self.start(attach(self.runtime.clone(), (self.drives(), None), member, new));
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
        let asked = self.start(ask(self.runtime.clone(), drives, None, HiddenLayer::Namespaces));
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
