//! The simulated world of namespaces: the state of drives, executor, tenants and load.

use super::{
    ops::{NamespaceOp, NamespaceOpKind, Reshape, TenantQos},
    oracle::{NamespaceEnd, NamespaceZone},
    scenario::NamespaceScenario,
};
use crate::simulator::{
    command_queue::{Bay, CommandQueue},
    world::{Failure, Pending, Trace, TraceMode},
};
use emu::{rng::Rng, ssd::Ssd};
use engine::{
    array::Drive,
    runtime::Runtime,
    vzone::{Namespace, Namespaces, VzoneError},
};
use std::{cell::Cell, future::Future, rc::Rc};

/// Most tenants of a life, and most zones of one: block stamps contain both numbers.
pub(super) const MOST_TENANTS: usize = 14;
const MOST_ZONES: u32 = 16;

/// Counters of runs, to show that they reach the relevant cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceCounts {
    pub namespaces: u64,
    /// Additions, resizes and removals of namespaces at runtime.
    pub reshapes: u64,
    pub operations: u64,
    /// Power cuts and kills, including those of copies of the world.
    pub power_cuts: u64,
    pub kills: u64,
    pub interrupted_recoveries: u64,
    pub member_losses: u64,
    /// Recoveries after which every block was checked.
    pub judgements: u64,
    pub forks: u64,
    /// Groups that were moved: reclaimed, or torn by a power cut.
    pub moved_groups: u64,
    /// Largest number of spares that a namespace held.
    pub most_spares: u64,
}

impl NamespaceCounts {
    pub fn add(&mut self, other: &NamespaceCounts) {
        self.namespaces += other.namespaces;
        self.reshapes += other.reshapes;
        self.operations += other.operations;
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        self.interrupted_recoveries += other.interrupted_recoveries;
        self.member_losses += other.member_losses;
        self.judgements += other.judgements;
        self.forks += other.forks;
        self.moved_groups += other.moved_groups;
        self.most_spares = self.most_spares.max(other.most_spares);
    }
}

/// The simulated world; see the module documentation.
pub struct NamespaceWorld {
    pub(super) scenario: NamespaceScenario,
    pub(super) rng: Rng,
    pub(super) command_queue: Rc<CommandQueue>,
    pub(super) runtime: Runtime,
    pub(super) clock: Rc<Cell<u64>>,
    pub(super) bays: Vec<Bay>,
    /// The missing member.
    pub(super) lost: Option<usize>,
    /// The running namespaces, and the handle of each tenant's namespace; `None` for a tenant without one.
    pub(super) up: Option<(Namespaces, Vec<Option<Namespace>>)>,
    /// By tenant and zone, including zones that the tenant no longer has.
    pub(super) zones: Vec<Vec<NamespaceZone>>,
    pub(super) names: Vec<String>,
    /// Number of zones of each tenant; `None` without a namespace.
    pub(super) sizes: Vec<Option<u32>>,
    pub(super) limits: Vec<TenantQos>,
    /// A change of namespaces that may have taken effect, and its result while that is outstanding.
    pub(super) reshape: Option<Reshape>,
    pub(super) reshaping: Option<Pending<Result<(), VzoneError>, String>>,
    /// The tenant of a change of limits that is in progress.
    pub(super) limiting: Option<(usize, Pending<(), String>)>,
    /// Whether each tenant submits operations now.
    pub(super) busy: Vec<bool>,
    pub(super) ops: Vec<NamespaceOp>,
    pub(super) writes: u64,
    pub(super) end: NamespaceEnd,
    pub(super) counts: NamespaceCounts,
    pub(super) trace: Trace,
    /// Commands of the drive fail occasionally.
    pub(super) failing: bool,
    /// A task may be ready to run.
    pub(super) ready: bool,
    pub(super) forks_left: u64,
}

impl Drop for NamespaceWorld {
    /// Tasks hold the executor that holds them.
    fn drop(&mut self) {
        self.runtime.clear();
    }
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

    /// Adds a tenant of this name, which may have a namespace from now on.
    pub(super) fn expect_tenant(&mut self, name: String) -> usize {
        self.names.push(name);
        self.sizes.push(None);
        self.limits.push(TenantQos::default());
        self.zones.push(Vec::new());
        self.busy.push(true);
        self.names.len() - 1
    }

    /// Sets the number of zones of a tenant's namespace, `None` if it has none.
    pub(super) fn has(&mut self, tenant: usize, zones: Option<u32>) {
        self.sizes[tenant] = zones;
        let Some((namespaces, _)) = &self.up else { return };
        let capacity = namespaces.zone_capacity_blocks();
        let known = self.zones[tenant].len() as u32;
        let mark = |zone: u32| MOST_ZONES * (tenant as u32 + 1) + zone;
        self.zones[tenant]
            .extend((known..zones.unwrap_or(0)).map(|zone| NamespaceZone::new(mark(zone), capacity)));
    }

    /// Updates the handles of the existing namespaces.
    pub(super) fn list_namespaces(&mut self) {
        let Some((namespaces, list)) = &mut self.up else { return };
        let there = namespaces.list();
        let called = |name: &String| there.iter().find(|namespace| namespace.name() == name).cloned();
        *list = self.names.iter().map(called).collect();
    }

    pub(super) fn namespace(&self, tenant: usize) -> Option<&Namespace> {
        self.up.as_ref()?.1.get(tenant)?.as_ref()
    }

    /// The present drives.
    pub(super) fn drives(&self) -> Vec<Drive> {
        let there = self.bays.iter().enumerate().filter(|(member, _)| self.lost != Some(*member));
        there
            .map(|(_, bay)| Drive {
                name: format!("drive{bay}"),
                device: Rc::new(self.command_queue.drive(*bay)),
            })
            .collect()
    }

    /// Starts work as a task.
    pub(super) fn start<T: 'static>(
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

    pub(super) fn hang(&self) -> Failure {
        let ops: Vec<NamespaceOpKind> = self.ops.iter().map(|op| op.kind).collect();
        Failure(format!("this never completes: {ops:?}"))
    }

    /// Discards the state that the process held in memory.
    pub(super) fn end_process(&mut self) {
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

    /// A copy of the world with the same drives, oracle and commands in flight; nothing runs in it.
    pub(super) fn copy(&mut self) -> Result<NamespaceWorld, Failure> {
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
}
