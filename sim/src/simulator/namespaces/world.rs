//! The world of namespaces: drives, executor, tenants and load, and the next thing that happens.
//!
//! As in the world of arrays, everything that can happen is an event, and the seed picks among those that are possible.

use super::{
    Counts, Over,
    oracle::{Change, End, Zone},
    scenario::{Scenario, draw_spec},
};
use crate::{
    rng::Rng,
    simulator::{
        wire::{Bay, Wire},
        world::{Failure, Pending, TOO_MANY_EVENTS, Trace, Tracing},
    },
    ssd::{Cut, Ssd},
};
use engine::{
    adapt::sequence::Sequencer,
    array::{Array, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Done, ZonedDevice, Zones},
    runtime::Runtime,
    vzone::{Behaviour, Namespace, Namespaces, Qos, Rates, VzoneError},
    zone::{Lba, ZoneIndex},
};
use std::{cell::Cell, future::Future, rc::Rc};

/// Events of a recovery that is cut off, at most.
const RECOVERY_EVENTS: u64 = 150;

/// The books are compared once in so many events.
const AUDIT_EVERY: u64 = 8;

/// Most tenants of a life, and zones of one: blocks are marked with both.
const MOST_TENANTS: usize = 14;
const MOST_ZONES: u32 = 16;

/// An operation is for this zone of this tenant.
type Place = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write {
        place: Place,
        from: u64,
        blocks: u64,
        fua: bool,
        append: bool,
        epoch: u64,
    },
    /// `below` is what had completed when it began, in this epoch.
    Read {
        place: Place,
        from: u64,
        below: u64,
        epoch: u64,
    },
    Flush {
        tenant: usize,
    },
    Change {
        place: Place,
    },
}

impl Kind {
    fn tenant(&self) -> usize {
        match *self {
            Kind::Write { place, .. } | Kind::Read { place, .. } | Kind::Change { place } => place.0,
            Kind::Flush { tenant } => tenant,
        }
    }
}

/// What a tenant may ask for at most, and gets for certain.
#[derive(Clone, Copy, Debug, Default)]
struct Limited {
    /// As it was last promised, or found.
    by: Qos,
    /// As it may be, too: that has not been answered.
    or_by: Option<Qos>,
}

impl Limited {
    /// Says that these limits were found after a recovery.
    fn recovered(&mut self, found: Qos) -> Result<(), String> {
        if found != self.by && Some(found) != self.or_by {
            return Err(format!("is limited to {found:?}, and should be to {self:?}"));
        }
        *self = Limited { by: found, or_by: None };
        Ok(())
    }
}

/// A namespace is being added, resized or removed.
#[derive(Clone, Copy, Debug)]
struct Reshape {
    tenant: usize,
    /// Zones that it will have; nothing if it will not be there.
    to: Option<u32>,
    /// Commands for it were on their way when it began.
    in_use: bool,
}

struct Op {
    kind: Kind,
    completion: Completion,
    /// A flush: what had completed in each zone when it began, and its epoch.
    seen: Vec<(u64, u64)>,
}

/// See the head of this file.
pub struct World {
    scenario: Scenario,
    rng: Rng,
    wire: Rc<Wire>,
    runtime: Runtime,
    clock: Rc<Cell<u64>>,
    bays: Vec<Bay>,
    /// The member that is missing.
    lost: Option<usize>,
    /// By tenant, those that are there.
    up: Option<(Namespaces, Vec<Option<Namespace>>)>,
    /// By tenant and zone, those that it had once with them.
    zones: Vec<Vec<Zone>>,
    names: Vec<String>,
    /// Zones that a tenant has; nothing if it is not there.
    sizes: Vec<Option<u32>>,
    limits: Vec<Limited>,
    /// What may have changed in that, and the answer if one is waited for.
    reshape: Option<Reshape>,
    reshaping: Option<Pending<Result<(), VzoneError>, String>>,
    /// Whose limits are being changed.
    limiting: Option<(usize, Pending<(), String>)>,
    /// Who works now.
    busy: Vec<bool>,
    ops: Vec<Op>,
    writes: u64,
    end: End,
    counts: Counts,
    trace: Trace,
    /// A task may be ready to run.
    ready: bool,
    forks_left: u64,
}

impl Drop for World {
    /// Tasks hold the executor that holds them.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

/// A bare drive, written in order.
fn sequenced(runtime: &Runtime, drives: &[Drive]) -> Result<Rc<dyn ZonedDevice>, String> {
    let drive = drives.first().ok_or("there is no drive")?;
    Ok(Rc::new(Sequencer::new(runtime, drive.device.clone())))
}

/// Prepares new drives.
async fn create(
    runtime: Runtime,
    scenario: Scenario,
    drives: Vec<Drive>,
    uuid: [u8; 16],
) -> Result<(), String> {
    let device: Rc<dyn ZonedDevice> = match scenario.over {
        Over::Drive => sequenced(&runtime, &drives)?,
        Over::Array { policy, parities, group_blocks } => {
            let options = CreateOptions {
                group_blocks,
                spare_zones: None,
                name: "simulated".into(),
                uuid,
                chunk_blocks: scenario.chunk_blocks,
                zone_size_blocks: Some(scenario.zone_size_blocks),
                parities,
                policy: Some(policy),
                host: [0; 16],
                autostart: false,
            };
            Rc::new(Array::create(&runtime, options, drives).await.map_err(|e| e.to_string())?)
        }
    };
    Namespaces::create(device, uuid, scenario.vzone_zones).await.map_err(|e| e.to_string())
}

/// Brings up the namespaces that lie on these drives.
async fn bring_up(
    runtime: Runtime,
    over: Over,
    drives: Vec<Drive>,
    behaviour: Behaviour,
) -> Result<Namespaces, String> {
    let device: Rc<dyn ZonedDevice> = match over {
        Over::Drive => sequenced(&runtime, &drives)?,
        Over::Array { .. } => Rc::new(Array::assemble(&runtime, drives).await.map_err(|e| e.to_string())?),
    };
    Namespaces::open(&runtime, device, behaviour).await.map_err(|e| e.to_string())
}

fn is_pending<T>(pending: &Pending<T, String>) -> bool {
    pending.borrow().is_none()
}

impl World {
    /// A world with new drives and nothing made of them yet.
    pub fn new(scenario: Scenario, mut rng: Rng, tracing: Tracing) -> World {
        let wire = Rc::new(Wire::default());
        let mut bays = Vec::new();
        for _ in 0..scenario.members {
            let mut ssd = Ssd::in_memory(&scenario.drive);
            if scenario.unwritten_fails {
                ssd.fail_unwritten();
            }
            if scenario.fua_stands_alone {
                ssd.let_fua_stand_alone();
            }
            bays.push(wire.insert(ssd));
        }
        World {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            wire,
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
            end: End::Kill,
            counts: Counts::default(),
            trace: Trace::new(tracing),
            ready: false,
            forks_left: scenario.most_forks,
            scenario,
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The lines of the trace that were kept.
    pub fn trace_lines(&self) -> Vec<String> {
        self.trace.lines()
    }

    /// Plays the life of the namespaces.
    ///
    /// # Errors
    /// The promise that is broken.
    pub fn run(&mut self) -> Result<(), Failure> {
        self.trace.note(|| format!("{:?}", self.scenario));
        let mut uuid = [0; 16];
        self.rng.fill(&mut uuid);
        let made = self.start(create(self.runtime.clone(), self.scenario.clone(), self.drives(), uuid));
        if let Err(why) = self.wait(&made)? {
            // A drive this small holds none.
            return match why == VzoneError::TooSmall.to_string() {
                true => Ok(()),
                false => Err(Failure(format!("namespaces cannot be made: {why}"))),
            };
        }
        // Nothing is on its way when the process ends.
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
        self.drain()
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

    /// There may be a tenant of this name from now on.
    fn expect_tenant(&mut self, name: String) -> usize {
        self.names.push(name);
        self.sizes.push(None);
        self.limits.push(Limited::default());
        self.zones.push(Vec::new());
        self.busy.push(true);
        self.names.len() - 1
    }

    /// A tenant has so many zones from now on, or is not there.
    fn has(&mut self, tenant: usize, zones: Option<u32>) {
        self.sizes[tenant] = zones;
        let Some((namespaces, _)) = &self.up else { return };
        let capacity = namespaces.zone_capacity_blocks();
        let known = self.zones[tenant].len() as u32;
        let mark = |zone: u32| MOST_ZONES * (tenant as u32 + 1) + zone;
        self.zones[tenant].extend((known..zones.unwrap_or(0)).map(|zone| Zone::new(mark(zone), capacity)));
    }

    /// Looks which namespaces there are.
    fn list_namespaces(&mut self) {
        let Some((namespaces, list)) = &mut self.up else { return };
        let there = namespaces.list();
        let called = |name: &String| there.iter().find(|namespace| namespace.name() == name).cloned();
        *list = self.names.iter().map(called).collect();
    }

    fn namespace(&self, tenant: usize) -> Option<&Namespace> {
        self.up.as_ref()?.1.get(tenant)?.as_ref()
    }

    /// The drives that are there.
    fn drives(&self) -> Vec<Drive> {
        let there = self.bays.iter().enumerate().filter(|(member, _)| self.lost != Some(*member));
        there
            .map(|(_, bay)| Drive { name: format!("drive{bay}"), device: Rc::new(self.wire.drive(*bay)) })
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

    /// One event; `false` if nothing can happen. `working` lets the load hand in operations.
    fn event(&mut self, working: bool) -> Result<bool, Failure> {
        let (queued, executed) = (self.wire.queued(), self.wire.executed());
        let wanted = working && self.up.is_some() && self.ops.len() < self.scenario.queue_depth;
        let possible = [queued > 0, executed > 0, self.ready, wanted, self.up.is_some()];
        let weights: Vec<u64> =
            possible.iter().zip(self.scenario.pace).map(|(possible, pace)| *possible as u64 * pace).collect();
        if weights.iter().all(|weight| *weight == 0) {
            return Ok(false);
        }
        self.wire.tick();
        self.clock.set(self.clock.get() + self.rng.below(40));
        self.trace.event += 1;
        let kind = self.rng.weighted(&weights);
        match kind {
            0 => {
                let index = if self.scenario.in_order { 0 } else { self.rng.below(queued as u64) as usize };
                if let Some(event) = self.wire.execute(index, self.trace.on()) {
                    self.trace.note(|| format!("drive{} does {}", event.bay, event.what));
                }
            }
            1 => {
                let index = self.rng.below(executed as u64) as usize;
                self.wire.deliver(index);
                self.ready = true;
            }
            2 => self.ready = self.runtime.step(),
            3 => self.issue(),
            _ => self.tick(),
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
        // No faults are injected: whatever the device refuses was asked for against its rules.
        if namespaces.refusals() > 0 {
            return Err(Failure("the device has refused to write or reset a zone that nobody has".into()));
        }
        namespaces.audit().map_err(Failure)
    }

    fn hang(&self) -> Failure {
        let ops: Vec<Kind> = self.ops.iter().map(|op| op.kind).collect();
        Failure(format!("this never completes: {ops:?}"))
    }

    /// Runs events until work is done.
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

    /// As [`World::wait`], without any disorder.
    fn wait_in_order<T>(&mut self, pending: &Pending<T, String>) -> Result<Result<T, String>, Failure> {
        for _ in 0..TOO_MANY_EVENTS {
            self.runtime.run();
            if let Some(result) = pending.borrow_mut().take() {
                self.ready = true;
                return Ok(result);
            }
            if self.wire.queued() == 0 && self.wire.executed() == 0 {
                return Err(self.hang());
            }
            self.wire.run_all();
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

    /// Hands in an operation.
    fn issue(&mut self) {
        let alone = self.limiting.is_none() && self.reshaping.is_none();
        if self.scenario.reshapes && alone && self.rng.chance(1, 30) {
            return self.reshape();
        }
        let changes = |tenant: usize| self.reshape.is_some_and(|reshape| reshape.tenant == tenant);
        let works = |tenant: &usize| self.busy[*tenant] && self.sizes[*tenant].is_some() && !changes(*tenant);
        let tenants: Vec<usize> = (0..self.zones.len()).filter(works).collect();
        if tenants.is_empty() {
            return;
        }
        let tenant = *self.rng.pick(&tenants);
        if self.scenario.limits && alone && self.rng.chance(1, 20) {
            return self.limit(tenant);
        }
        let zone = self.rng.below(self.sizes[tenant].unwrap_or(0) as u64) as usize;
        let kind = self.rng.weighted(&self.scenario.load);
        match kind {
            0 => self.write((tenant, zone)),
            1 => self.read((tenant, zone)),
            2 => self.flush(tenant),
            3 => self.change((tenant, zone), Change::Finish),
            _ => self.change((tenant, zone), Change::Reset),
        }
    }

    fn submit(&mut self, tenant: usize, kind: Kind, command: Command, seen: Vec<(u64, u64)>) {
        let Some(namespace) = self.namespace(tenant) else { return };
        let completion = namespace.submit(command);
        self.counts.operations += 1;
        self.trace.note(|| format!("begins: {kind:?}"));
        self.ops.push(Op { kind, completion, seen });
        self.ready = true;
    }

    /// A zone that is not active yet is begun only if as many may be.
    fn may_begin(&self, (tenant, zone): Place) -> bool {
        let Some(namespace) = self.namespace(tenant) else { return false };
        let most = namespace.geometry().max_active as usize;
        let active = |zone: &Zone| zone.submitted() > 0 && zone.takes_writes();
        let held = self.zones[tenant].iter().filter(|zone| active(zone)).count();
        self.zones[tenant][zone].submitted() > 0 || held < most
    }

    fn write(&mut self, place @ (tenant, index): Place) {
        let may = self.zones[tenant][index].takes_writes() && self.may_begin(place);
        let Some(namespace) = self.namespace(tenant).filter(|_| may) else { return };
        let geometry = namespace.geometry().clone();
        let zone = &mut self.zones[tenant][index];
        let most = self.scenario.most_blocks.min(geometry.max_transfer_blocks as u64);
        let blocks = 1 + self.rng.below(most.min(geometry.zone_capacity_blocks - zone.submitted()));
        let (from, fua) = (zone.submitted(), self.rng.chance(self.scenario.fua_percent, 100));
        let (append, epoch) = (self.rng.chance(1, 4), zone.epoch);
        self.writes += 1;
        let data = Buf::copy_of(&zone.write(self.writes, blocks));
        let number = ZoneIndex(index as u32);
        let command = match append {
            true => Command::append(number, data, fua),
            false => Command::write(Lba(geometry.start(number).0 + from), data, fua),
        };
        self.submit(tenant, Kind::Write { place, from, blocks, fua, append, epoch }, command, Vec::new());
    }

    fn read(&mut self, place @ (tenant, index): Place) {
        let Some(namespace) = self.namespace(tenant) else { return };
        let geometry = namespace.geometry().clone();
        let zone = &self.zones[tenant][index];
        let from = self.rng.below(geometry.zone_capacity_blocks);
        let most = (geometry.zone_capacity_blocks - from).min(geometry.max_transfer_blocks as u64);
        let blocks = 1 + self.rng.below(most);
        let below = zone.promised();
        let kind = Kind::Read { place, from, below, epoch: zone.epoch };
        let lba = Lba(geometry.start(ZoneIndex(index as u32)).0 + from);
        self.submit(tenant, kind, Command::read(lba, Buf::zeroed(blocks as usize * BLOCK)), Vec::new());
    }

    fn flush(&mut self, tenant: usize) {
        let seen = self.zones[tenant].iter().map(|zone| (zone.promised(), zone.epoch)).collect();
        self.submit(tenant, Kind::Flush { tenant }, Command::Flush, seen);
    }

    fn change(&mut self, place @ (tenant, index): Place, change: Change) {
        let zone = &mut self.zones[tenant][index];
        // Writes that fill a zone may have to complete before it is known to be full.
        let sensible = zone.change.is_none() && (change == Change::Reset || zone.takes_writes());
        if !sensible {
            return;
        }
        zone.change = Some(change);
        zone.epoch += (change == Change::Reset) as u64;
        let zones = Zones::One(ZoneIndex(index as u32));
        let command = match change {
            Change::Finish => Command::Finish { zones },
            Change::Reset => Command::Reset { zones },
        };
        self.submit(tenant, Kind::Change { place }, command, Vec::new());
    }

    /// Gives a tenant other limits, while everybody works.
    fn limit(&mut self, tenant: usize) {
        let Some((namespaces, _)) = self.up.clone() else { return };
        // By itself, so that all else of a life stays what it is.
        let mut extra = self.rng.clone();
        let limits = Rates { requests: self.rng.below(3) as u32, blocks: self.rng.below(3) as u32 };
        let few = |extra: &mut Rng| extra.below(3) as u32;
        let floors = Rates { requests: few(&mut extra), blocks: few(&mut extra) };
        let latency_us = few(&mut extra);
        let (wanted, limited) =
            (Qos { limits, floors, latency_us }, Qos { limits, latency_us, ..Qos::default() });
        let qos = if wanted.is_possible() { wanted } else { limited };
        self.trace.note(|| format!("begins: tenant {tenant} is limited to {qos:?}"));
        self.limits[tenant].or_by = Some(qos);
        let name = self.names[tenant].clone();
        let limited =
            async move { namespaces.set_qos(&name, qos).await.map(|_| ()).map_err(|e| e.to_string()) };
        self.limiting = Some((tenant, self.start(limited)));
    }

    /// Judges a change of limits that has been answered.
    fn limited(&mut self) -> Result<(), Failure> {
        let Some((tenant, limiting)) = self.limiting.take() else { return Ok(()) };
        let Some(result) = limiting.borrow_mut().take() else {
            self.limiting = Some((tenant, limiting));
            return Ok(());
        };
        self.trace.note(|| format!("ended: the limits of tenant {tenant}: {result:?}"));
        let fails = |why: String| Failure(format!("limits of tenant {tenant}: {why}"));
        result.map_err(fails)?;
        let by = self.limits[tenant].or_by.unwrap_or_default();
        self.limits[tenant] = Limited { by, or_by: None };
        let Some(namespace) = self.namespace(tenant) else { return Ok(()) };
        let found = namespace.status().spec.qos;
        self.limits[tenant].recovered(found).map_err(fails)
    }

    /// Adds a namespace, or resizes or removes one, while everybody works.
    fn reshape(&mut self) {
        let Some((namespaces, _)) = self.up.clone() else { return };
        let there: Vec<usize> = (0..self.names.len()).filter(|t| self.sizes[*t].is_some()).collect();
        let kind = if there.is_empty() { 0 } else { self.rng.below(4) };
        let (reshape, pending) = match kind {
            0 if self.names.len() < MOST_TENANTS => {
                // At the start some are refused, of which only the names are used.
                let index = (MOST_TENANTS + self.names.len()) as u64;
                let spec = draw_spec(&mut self.rng, index, self.scenario.vzone_zones);
                let tenant = self.expect_tenant(spec.name.clone());
                let reshape = Reshape { tenant, to: Some(spec.zones), in_use: false };
                (reshape, self.start(async move { Ok(namespaces.add(spec).await.map(|_| ())) }))
            }
            0 => return,
            _ => {
                let tenant = *self.rng.pick(&there);
                let in_use = self.ops.iter().any(|op| op.kind.tenant() == tenant);
                // Who works all the time would never be idle.
                if in_use && !self.rng.chance(1, 8) {
                    self.busy[tenant] = false;
                    return;
                }
                let to = (kind > 1).then(|| 1 + self.rng.below(6) as u32);
                let name = self.names[tenant].clone();
                let reshaped = async move {
                    Ok(match to {
                        Some(zones) => namespaces.resize(&name, zones).await.map(|_| ()),
                        None => namespaces.remove(&name).await,
                    })
                };
                (Reshape { tenant, to, in_use }, self.start(reshaped))
            }
        };
        self.trace.note(|| format!("begins: {reshape:?}"));
        self.counts.reshapes += 1;
        (self.reshape, self.reshaping) = (Some(reshape), Some(pending));
    }

    /// Judges what has been answered to that.
    fn reshaped(&mut self) -> Result<(), Failure> {
        let answer = self.reshaping.as_ref().and_then(|pending| pending.borrow_mut().take());
        let Some((answer, reshape)) = answer.zip(self.reshape) else { return Ok(()) };
        self.trace.note(|| format!("ended: {reshape:?}: {answer:?}"));
        (self.reshape, self.reshaping) = (None, None);
        let Reshape { tenant, to, in_use } = reshape;
        let grows = to > self.sizes[tenant];
        let (kept, zones) = (to.unwrap_or(0) as usize, &self.zones[tenant]);
        let lost = zones.iter().skip(kept).position(|zone| !zone.is_empty()).map(|zone| kept + zone);
        match answer.map_err(Failure)? {
            Ok(()) if to.is_none() || lost.is_none() => {
                self.has(tenant, to);
                self.list_namespaces();
                self.busy[tenant] = true;
                Ok(())
            }
            Err(VzoneError::Full { .. } | VzoneError::Floors { .. }) if grows => Ok(()),
            Err(VzoneError::InUse) if in_use => Ok(()),
            Err(VzoneError::Holds { .. }) if lost.is_some() => Ok(()),
            other => Err(Failure(format!("{reshape:?} is answered with {other:?}; it would lose {lost:?}"))),
        }
    }

    /// Judges what has been answered.
    fn collect(&mut self) -> Result<(), Failure> {
        self.limited()?;
        self.reshaped()?;
        let mut at = 0;
        while at < self.ops.len() {
            let Some(done) = self.ops[at].completion.take() else {
                at += 1;
                continue;
            };
            let Op { kind, seen, .. } = self.ops.remove(at);
            self.trace.note(|| format!("ended: {kind:?} {:?}", done.result));
            self.answered(kind, &seen, done).map_err(|why| Failure(format!("{kind:?}: {why}")))?;
        }
        Ok(())
    }

    fn answered(&mut self, kind: Kind, seen: &[(u64, u64)], done: Done) -> Result<(), String> {
        done.result.map_err(|error| format!("fails: {error}"))?;
        match kind {
            Kind::Write { place: (tenant, index), from, blocks, fua, append, epoch } => {
                let start = self
                    .namespace(tenant)
                    .map_or(0, |namespace| namespace.geometry().start(ZoneIndex(index as u32)).0);
                if append && done.lba.0 != start + from {
                    return Err(format!("landed at {:?}", done.lba));
                }
                let zone = &mut self.zones[tenant][index];
                if zone.epoch == epoch {
                    zone.wrote(from + blocks, fua);
                }
                Ok(())
            }
            Kind::Read { place: (tenant, index), from, below, epoch } => {
                let zone = &self.zones[tenant][index];
                zone.check_own(from, &done.data)?;
                if zone.epoch != epoch {
                    return Ok(());
                }
                zone.check(from, below, false, &done.data)
            }
            Kind::Flush { tenant } => {
                for (zone, (completed, epoch)) in self.zones[tenant].iter_mut().zip(seen) {
                    if zone.epoch == *epoch {
                        zone.safe = zone.safe.max(*completed);
                    }
                }
                Ok(())
            }
            Kind::Change { place: (tenant, index) } => {
                self.zones[tenant][index].changed();
                Ok(())
            }
        }
    }

    /// What the process had in memory is gone.
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

    /// Ends the world: a power cut, or the end of the process alone.
    fn end_somehow(&mut self) -> Result<(), Failure> {
        if self.rng.chance(self.scenario.kill_percent, 100) {
            self.trace.note(|| "the process is killed".into());
            self.counts.kills += 1;
            self.end_process();
            self.wire.kill(&mut self.rng);
            return Ok(());
        }
        self.cut_power()
    }

    fn cut_power(&mut self) -> Result<(), Failure> {
        let queued = self.wire.queued();
        let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(3, 4);
        self.trace.note(|| format!("power cut with {queued} commands in flight; caches lost: {cache_lost}"));
        self.counts.power_cuts += 1;
        self.end = End::PowerCut;
        self.end_process();
        let cut = Cut { cache_lost, zrwa_lost: false };
        self.wire.power_cut(&mut self.rng, |_| cut).map_err(|error| Failure(format!("power cut: {error}")))
    }

    /// Brings the namespaces up again; `cut_percent` of the times the power goes meanwhile, again and again.
    fn recover(&mut self, cut_percent: u64) -> Result<(), Failure> {
        loop {
            let clock = self.clock.clone();
            let behaviour =
                Behaviour { clock: Rc::new(move || clock.get()), patience_us: self.scenario.patience_us };
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

    /// Compares every block of every tenant with what was promised, and the books with each other.
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
            return Err(Failure("there are namespaces that nobody has asked for".into()));
        }
        for (tenant, namespace) in list.into_iter().enumerate() {
            let Some(namespace) = namespace else { continue };
            let found = namespace.status().spec.qos;
            let judged = self.limits[tenant].recovered(found);
            judged.map_err(|why| Failure(format!("tenant {tenant} {why}")))?;
            let volatile = namespace.geometry().volatile_cache;
            for index in 0..namespace.geometry().zones as usize {
                let shown = self.start(show(namespace.clone(), index as u32));
                // As fast as it goes, more often than not.
                let shown = match self.rng.chance(1, 3) {
                    true => self.wait(&shown)?,
                    false => self.wait_in_order(&shown)?,
                };
                let (info, data) = shown.map_err(Failure)?;
                let result = self.zones[tenant][index].recovered(self.end, volatile, &info, &data);
                result.map_err(|why| Failure(format!("zone {index} of tenant {tenant}: {why}")))?;
            }
        }
        self.end = End::Kill;
        Ok(())
    }

    /// Another world with the same drives, promises and commands in flight. Nothing runs in it.
    fn copy(&mut self) -> Result<World, Failure> {
        let wire = self.wire.copy().map_err(|error| Failure(format!("copying the drives: {error}")))?;
        let mut rng = self.rng.fork();
        Ok(World {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            scenario: self.scenario.clone(),
            wire: Rc::new(wire),
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
            counts: Counts::default(),
            trace: self.trace.copy(),
            ready: false,
            forks_left: 0,
        })
    }

    /// Ends a copy of the world and judges what can be recovered from it.
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

    fn end_and_judge(&mut self) -> Result<(), Failure> {
        self.end_somehow()?;
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

/// What a zone is, and all of its blocks.
async fn show(namespace: Namespace, zone: u32) -> Result<(engine::zone::ZoneInfo, Vec<u8>), String> {
    let first = ZoneIndex(zone);
    let done = namespace.submit(Command::Report { first, count: 1 }).await;
    done.result.map_err(|error| error.to_string())?;
    let info = *done.zones.first().ok_or("there is no such zone")?;
    let geometry = namespace.geometry().clone();
    let (mut all, mut at) = (Vec::new(), 0);
    while at < geometry.zone_capacity_blocks {
        let blocks = (geometry.max_transfer_blocks as u64).min(geometry.zone_capacity_blocks - at);
        let lba = Lba(geometry.start(first).0 + at);
        let done = namespace.submit(Command::read(lba, Buf::zeroed(blocks as usize * BLOCK))).await;
        done.result.map_err(|error| format!("a read of block {at} of zone {zone} fails: {error}"))?;
        all.extend_from_slice(&done.data);
        at += blocks;
    }
    Ok((info, all))
}
