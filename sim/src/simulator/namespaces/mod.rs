//! The simulator of namespaces: several tenants on a drive or an array, checked against the guarantees of each.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a [`world`] plays it, and the [`oracle`] judges reads
//! while the namespaces run, and all data after every recovery. The allocation is audited all the time: no physical
//! zone has two owners, and none is lost. At random moments the world is copied, the copy's power is cut, and its
//! recovery is judged, with a member lost at the same moment if there is an array below.

pub mod lifecycle;
mod load;
mod ops;
pub mod oracle;
pub mod scenario;
mod stack;
mod step;
pub mod world;

pub use super::layer::DeviceBelow;
pub use world::NamespaceCounts;

use super::{
    layer,
    runner::{failure_of, quietly},
    world::TraceMode,
};
use emu::rng::Rng;
use scenario::NamespaceScenario;
use std::ops::Range;
use world::NamespaceWorld;

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
    let failure = failure_of(|| lifecycle::run(&mut world));
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
