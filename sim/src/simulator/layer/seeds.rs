//! Runs many seeds of a volume or namespaces, in several threads; adds up their counters and lists the failures.

use super::{
    DeviceBelow,
    world::{LayerCounts, LayerModel, LayerWorld},
};
use crate::simulator::{
    runner::{each_seed, failure_of, quietly},
    world::TraceMode,
};
use emu::rng::Rng;
use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct LayerOutcome<C> {
    pub seed: u64,
    pub over: DeviceBelow,
    pub counts: LayerCounts<C>,
    /// The broken promise, or the panic.
    pub failure: Option<String>,
    pub trace: Vec<String>,
}

/// Results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct LayerSummary<C> {
    pub seeds: u64,
    pub counts: LayerCounts<C>,
    /// In order of their seeds.
    pub failures: Vec<LayerOutcome<C>>,
}

/// Plays one seed.
fn run_seed<M: LayerModel>(
    over: Option<DeviceBelow>,
    seed: u64,
    tracing: TraceMode,
) -> LayerOutcome<M::Counts> {
    let mut rng = Rng::new(seed);
    let (life, model) = M::draw(&mut rng, over);
    let over = life.over;
    let mut world = LayerWorld::new(life, model, rng, tracing);
    let failure = failure_of(|| M::live(&mut world));
    LayerOutcome { seed, over, counts: world.counts, failure, trace: world.trace.lines() }
}

/// Plays a seed again to get its trace.
pub fn replay<M: LayerModel>(
    over: Option<DeviceBelow>,
    seed: u64,
    tracing: TraceMode,
) -> LayerOutcome<M::Counts> {
    quietly(|| run_seed::<M>(over, seed, tracing))
}

/// Plays all `seeds` on `jobs` threads, and sums up the counters. `finished` is called after each seed.
pub fn run_seeds<M: LayerModel>(
    over: Option<DeviceBelow>,
    seeds: Range<u64>,
    jobs: usize,
    finished: &(dyn Fn() + Sync),
) -> LayerSummary<M::Counts> {
    let total = Mutex::new(LayerSummary::default());
    each_seed(seeds, jobs, &|seed| {
        let outcome = run_seed::<M>(over, seed, TraceMode::Off);
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.seeds += 1;
        total.counts.add(&outcome.counts, M::add);
        if outcome.failure.is_some() {
            total.failures.push(outcome);
        }
        drop(total);
        finished();
    });
    let mut summary = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}
