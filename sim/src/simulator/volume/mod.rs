//! The simulator of volumes: a block device on a drive or an array, checked against its guarantees.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a [`world`] plays it, and the [`oracle`] judges reads
//! while the volume runs, and all data after every recovery. At random moments the world is copied, the copy's power is
//! cut, and its recovery is judged, with a member lost at the same moment if there is an array below.

mod helpers;
pub mod lifecycle;
mod load;
pub mod oracle;
pub mod scenario;
mod stack;
mod step;
pub mod world;

pub use super::layer::DeviceBelow;
pub(super) use stack::RecordingArray;
pub use world::VolumeCounts;

use super::{
    layer,
    runner::{failure_of, quietly},
    world::TraceMode,
};
use emu::rng::Rng;
use scenario::VolumeScenario;
use std::ops::Range;
use world::VolumeWorld;

/// Result of one seed.
pub type VolumeOutcome = layer::LayerOutcome<VolumeCounts>;

/// Result of many seeds.
pub type VolumeSummary = layer::LayerSummary<VolumeCounts>;

/// Plays one seed.
pub fn run_seed(over: Option<DeviceBelow>, seed: u64, tracing: TraceMode) -> VolumeOutcome {
    let mut rng = Rng::new(seed);
    let scenario = VolumeScenario::draw(&mut rng, over);
    let over = scenario.over;
    let mut world = VolumeWorld::new(scenario, rng, tracing);
    let failure = failure_of(|| lifecycle::run(&mut world));
    VolumeOutcome { seed, over, counts: world.counts(), failure, trace: world.trace_lines() }
}

/// Plays a seed again to get its trace.
pub fn replay(over: Option<DeviceBelow>, seed: u64, tracing: TraceMode) -> VolumeOutcome {
    quietly(|| run_seed(over, seed, tracing))
}

/// Plays all `seeds` on `jobs` threads. `finished` is called after each.
pub fn run_seeds(
    over: Option<DeviceBelow>,
    seeds: Range<u64>,
    jobs: usize,
    finished: &(dyn Fn() + Sync),
) -> VolumeSummary {
    let play = |seed| run_seed(over, seed, TraceMode::Off);
    layer::run_seeds(&play, VolumeCounts::add, seeds, jobs, finished)
}
