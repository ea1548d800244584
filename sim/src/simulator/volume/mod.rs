//! The simulator of volumes: a block device on a drive or an array, checked against its guarantees.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a [`world`] plays it, and the [`oracle`] judges reads
//! while the volume runs, and all data after every recovery. At random moments the world is copied, the copy's power is
//! cut, and its recovery is judged, with a member lost at the same moment if there is an array below.

mod helpers;
pub mod oracle;
pub mod scenario;
mod stack;
pub mod world;

pub use super::layer::DeviceBelow;
pub(super) use stack::RecordingArray;

use super::{
    layer,
    runner::{failure_of, quietly},
    world::TraceMode,
};
use emu::rng::Rng;
use scenario::VolumeScenario;
use std::ops::Range;
use world::VolumeWorld;

/// Counters of runs, to show that they reach the relevant cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    pub operations: u64,
    /// Power cuts and kills, including those of copies of the world.
    pub power_cuts: u64,
    pub kills: u64,
    pub interrupted_recoveries: u64,
    pub member_losses: u64,
    /// Recoveries after which every block was checked.
    pub judgements: u64,
    pub forks: u64,
    /// Bits of metadata flipped on single members.
    pub flips: u64,
    /// Zones collected by the volumes.
    pub collected_zones: u64,
    pub checkpoints: u64,
    pub discarded: u64,
    /// Writes refused because the volume was full.
    pub refusals: u64,
}

impl VolumeCounts {
    pub fn add(&mut self, other: &VolumeCounts) {
        self.operations += other.operations;
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        self.interrupted_recoveries += other.interrupted_recoveries;
        self.member_losses += other.member_losses;
        self.judgements += other.judgements;
        self.forks += other.forks;
        self.flips += other.flips;
        self.collected_zones += other.collected_zones;
        self.checkpoints += other.checkpoints;
        self.discarded += other.discarded;
        self.refusals += other.refusals;
    }
}

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
    let failure = failure_of(|| world.run());
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
