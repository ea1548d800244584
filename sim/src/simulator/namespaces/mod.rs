//! The simulator of namespaces: several tenants on a drive or an array, and what each was promised.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a [`world`] plays it, and the [`oracle`] judges what is
//! read, while the namespaces run and after every recovery. All the while the books are compared: no physical zone
//! has two owners, and none is lost. At random moments the world is copied, the copy's power cut, and what can be
//! recovered from it judged, with a member lost in the same moment if there is an array below.

pub mod oracle;
pub mod scenario;
pub mod world;

use super::{
    runner::{each_seed, failure_of, quietly},
    world::Tracing,
};
use crate::rng::Rng;
use engine::raid::policy::Policy;
use scenario::Scenario;
use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};
use world::World;

/// What namespaces lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Drive,
    /// Zones of members are written by appends in groups of so many blocks, if that is not 0.
    Array {
        policy: Policy,
        group_blocks: u32,
    },
}

/// What runs have done, to show that they did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub namespaces: u64,
    pub operations: u64,
    /// Power cuts and ends of processes, those of copies of the world with them.
    pub power_cuts: u64,
    pub kills: u64,
    pub interrupted_recoveries: u64,
    pub member_losses: u64,
    /// Recoveries of which every block was checked.
    pub judgements: u64,
    pub forks: u64,
    /// Groups that were moved: reclaimed, or torn by a power cut.
    pub moved_groups: u64,
    /// Most spares that a namespace held.
    pub most_spares: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.namespaces += other.namespaces;
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

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub counts: Counts,
    /// The broken promise, or the panic.
    pub failure: Option<String>,
    pub trace: Vec<String>,
}

/// What came of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub seeds: u64,
    pub counts: Counts,
    /// In order of their seeds.
    pub failures: Vec<Outcome>,
}

/// Plays one seed.
pub fn run_seed(over: Option<Over>, seed: u64, tracing: Tracing) -> Outcome {
    let mut rng = Rng::new(seed);
    let scenario = Scenario::draw(&mut rng, over);
    let mut world = World::new(scenario, rng, tracing);
    let failure = failure_of(|| world.run());
    Outcome { seed, counts: world.counts(), failure, trace: world.trace_lines() }
}

/// Plays a seed again, for its trace.
pub fn replay(over: Option<Over>, seed: u64, tracing: Tracing) -> Outcome {
    quietly(|| run_seed(over, seed, tracing))
}

/// Plays all `seeds` on `jobs` threads. `finished` is told whenever one is done.
pub fn run_seeds(
    over: Option<Over>,
    seeds: Range<u64>,
    jobs: usize,
    finished: &(dyn Fn() + Sync),
) -> Summary {
    let total = Mutex::new(Summary::default());
    each_seed(seeds, jobs, &|seed| {
        let outcome = run_seed(over, seed, Tracing::Off);
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.seeds += 1;
        total.counts.add(&outcome.counts);
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
