//! Runs many seeds on several threads and reports those that fail.
//!
//! Each seed has a world of its own, so threads share nothing but the number of the next seed. A panic inside a seed is
//! a failure of that seed. Failing seeds are played again with a trace.

use super::{
    coverage::Sight,
    lifecycle,
    scenario::{Scenario, draw_appends},
    subject::Maker,
    world::{Counts, Failure, TraceMode, World},
};
use emu::rng::Rng;
use engine::raid::policy::Policy;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub policy: Policy,
    pub parities: usize,
    /// Whether the blocks of the array have checksums.
    pub checksums: bool,
    /// Real time that it took; the run itself does not see this clock.
    pub seconds: f64,
    pub counts: Counts,
    pub sights: BTreeSet<Sight>,
    /// The broken promise, or the panic.
    pub failure: Option<String>,
    /// Why the array could not be created on these drives.
    pub refusal: Option<String>,
    pub trace: Vec<String>,
}

/// Results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub seeds: u64,
    pub counts: Counts,
    pub sights: BTreeSet<Sight>,
    /// Sights by seed, if requested.
    pub sights_by_seed: BTreeMap<u64, BTreeSet<Sight>>,
    /// In order of their seeds.
    pub failures: Vec<Outcome>,
    /// Number of arrays that could not be created, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// Seconds of all threads together, by policy and number of parities.
    pub seconds: BTreeMap<(Policy, usize), f64>,
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `run` and turns a panic into an error with the text that [`quietly`] has recorded.
pub(super) fn catch_panics<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|_| LAST_PANIC.with(|text| format!("panic: {}", text.borrow().trim())))
}

/// The broken promise that `run` reports, or its panic.
pub(super) fn failure_of(run: impl FnOnce() -> Result<(), Failure>) -> Option<String> {
    match catch_panics(run) {
        Ok(result) => result.err().map(|failure| failure.0),
        Err(panic) => Some(panic),
    }
}

/// Runs `work` on `jobs` threads, including this one.
fn on_threads(jobs: usize, work: &(dyn Fn() + Sync)) {
    quietly(|| {
        std::thread::scope(|scope| {
            for _ in 1..jobs.max(1) {
                scope.spawn(work);
            }
            work();
        });
    });
}

/// Plays each of `seeds` with `play`, on `jobs` threads.
pub(super) fn each_seed(seeds: Range<u64>, jobs: usize, play: &(dyn Fn(u64) + Sync)) {
    let next = AtomicU64::new(seeds.start);
    on_threads(jobs, &|| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            play(seed);
        }
    });
}

/// Runs `body` with panics recorded instead of printed.
pub(super) fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let hook = take_hook();
    set_hook(Box::new(|info| LAST_PANIC.with(|text| *text.borrow_mut() = info.to_string())));
    let result = body();
    set_hook(hook);
    result
}

/// A message without digits: the part that different seeds have in common.
pub fn kind(message: &str) -> String {
    message.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Plays one seed.
pub fn run_seed(maker: &dyn Maker, seed: u64, tracing: TraceMode) -> Outcome {
    let started = Instant::now();
    let mut rng = Rng::new(seed);
    let scenario = loop {
        let mut scenario = Scenario::draw(&mut rng, maker.policy(), maker.parities());
        if scenario.policy == Policy::Log && maker.appends(draw_appends(&rng)) {
            scenario.append(&mut rng);
        } else if scenario.policy != Policy::InPlace {
            scenario.store_checksums();
        }
        if maker.arrange(&mut scenario) {
            break scenario;
        }
    };
    let (policy, parities, checksums) = (scenario.policy, scenario.parities, scenario.has_checksums());
    let mut world = World::new(maker, scenario, rng, tracing);
    let failure = failure_of(|| lifecycle::run(&mut world));
    Outcome {
        seed,
        policy,
        parities,
        checksums,
        seconds: started.elapsed().as_secs_f64(),
        counts: world.counts(),
        sights: world.take_sights(),
        failure,
        refusal: world.refusal().map(str::to_string),
        trace: world.trace_lines(),
    }
}

/// Plays all `seeds` on `jobs` threads. `finished` is called after each seed.
pub fn run_seeds(
    maker: &(dyn Maker + Sync),
    seeds: Range<u64>,
    jobs: usize,
    finished: &(dyn Fn() + Sync),
) -> Summary {
    play(maker, &Seeds { range: seeds, ..Seeds::default() }, jobs, finished)
}

/// Which seeds are played, and how.
#[derive(Clone, Debug, Default)]
pub struct Seeds {
    /// Seeds that are played before all others.
    pub first: Vec<u64>,
    pub range: Range<u64>,
    /// No seed is begun after a failure. With one job the summary's `seeds` is the number of seeds until then.
    pub until_failure: bool,
    /// Keep the sights of each seed.
    pub learn: bool,
}

/// Plays `seeds` on `jobs` threads. `finished` is called after each seed.
pub fn play(maker: &(dyn Maker + Sync), seeds: &Seeds, jobs: usize, finished: &(dyn Fn() + Sync)) -> Summary {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let total = Mutex::new(Summary::default());
    let work = || {
        let mut part = Summary::default();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let seed = match seeds.first.get(index as usize) {
                Some(seed) => *seed,
                None => seeds.range.start.saturating_add(index - seeds.first.len() as u64),
            };
            if index >= seeds.first.len() as u64 && seed >= seeds.range.end {
                break;
            }
            part.count(run_seed(maker, seed, TraceMode::Off), seeds.learn);
            if seeds.until_failure && !part.failures.is_empty() {
                stop.store(true, Ordering::Relaxed);
            }
            finished();
        }
        total.lock().unwrap_or_else(PoisonError::into_inner).merge(part);
    };
    on_threads(jobs, &work);
    let mut summary = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}

/// Plays a seed again, for its trace.
pub fn replay(maker: &dyn Maker, seed: u64, tracing: TraceMode) -> Outcome {
    quietly(|| run_seed(maker, seed, tracing))
}

impl Summary {
    fn count(&mut self, mut outcome: Outcome, learn: bool) {
        self.seeds += 1;
        if learn {
            self.sights_by_seed.insert(outcome.seed, outcome.sights.clone());
        }
        self.sights.append(&mut outcome.sights);
        *self.seconds.entry((outcome.policy, outcome.parities)).or_default() += outcome.seconds;
        self.counts.add(&outcome.counts);
        if let Some(why) = &outcome.refusal {
            *self.refusals.entry(kind(why)).or_default() += 1;
        }
        if outcome.failure.is_some() {
            self.failures.push(outcome);
        }
    }

    fn merge(&mut self, part: Summary) {
        self.seeds += part.seeds;
        self.counts.add(&part.counts);
        self.failures.extend(part.failures);
        self.sights.extend(part.sights);
        self.sights_by_seed.extend(part.sights_by_seed);
        for (kind, seconds) in part.seconds {
            *self.seconds.entry(kind).or_default() += seconds;
        }
        for (why, count) in part.refusals {
            *self.refusals.entry(why).or_default() += count;
        }
    }
}
