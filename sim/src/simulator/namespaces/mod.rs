//! The simulator of namespaces: several tenants on a drive or an array, checked against the guarantees of each.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a [`world`] plays it, and the [`oracle`] judges reads
//! while the namespaces run, and all data after every recovery. The allocation is audited all the time: no physical
//! zone has two owners, and none is lost. At random moments the world is copied, the copy's power is cut, and its
//! recovery is judged, with a member lost at the same moment if there is an array below.

pub mod oracle;
pub mod scenario;
mod stack;
pub mod world;

pub use super::layer::DeviceBelow;

use super::{
    layer,
    runner::{failure_of, quietly},
    world::TraceMode,
};
use emu::rng::Rng;
use scenario::NamespaceScenario;
use std::ops::Range;
use world::NamespaceWorld;

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

/// Result of one seed.
pub type NamespaceOutcome = layer::LayerOutcome<NamespaceCounts>;

/// Result of many seeds.
pub type NamespaceSummary = layer::LayerSummary<NamespaceCounts>;

/// Plays one seed.
pub fn run_seed(over: Option<DeviceBelow>, seed: u64, tracing: TraceMode) -> NamespaceOutcome {
    let mut rng = Rng::new(seed);
    let scenario = NamespaceScenario::draw(&mut rng, over);
    let over = scenario.over;
    let mut world = NamespaceWorld::new(scenario, rng, tracing);
    let failure = failure_of(|| world.run());
    NamespaceOutcome { seed, over, counts: world.counts(), failure, trace: world.trace_lines() }
}

/// Plays a seed again to get its trace.
pub fn replay(over: Option<DeviceBelow>, seed: u64, tracing: TraceMode) -> NamespaceOutcome {
    quietly(|| run_seed(over, seed, tracing))
}

/// Plays all `seeds` on `jobs` threads. `finished` is called after each.
pub fn run_seeds(
    over: Option<DeviceBelow>,
    seeds: Range<u64>,
    jobs: usize,
    finished: &(dyn Fn() + Sync),
) -> NamespaceSummary {
    let play = |seed| run_seed(over, seed, TraceMode::Off);
    layer::run_seeds(&play, NamespaceCounts::add, seeds, jobs, finished)
}
