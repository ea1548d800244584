//! The simulator itself: it passes what is sound, finds what is not, and a seed is a seed.

mod support;

use sim::{
    rng::Rng,
    simulator::{
        scenario::{Misfortune, Scenario},
        world::{Counts, Failure, Tracing, World},
    },
};
use support::{Flaw, SingleMaker};

/// A scenario that a single drive without ZRWA can be held to.
fn play(flaw: Flaw, seed: u64, tracing: Tracing) -> (Result<(), Failure>, Counts, Vec<String>) {
    let maker = SingleMaker(flaw);
    let mut rng = Rng::new(seed);
    let mut scenario = Scenario::draw(&mut rng);
    scenario.members = 1;
    scenario.drive.zrwa = None;
    scenario.load.sizes = [3, 1, 0];
    scenario.misfortune = Misfortune { drain_percent: 10, ..Misfortune::default() };
    let mut world = World::new(&maker, scenario, rng, tracing);
    let result = world.run();
    (result, world.counts(), world.trace_lines())
}

#[test]
fn a_sound_device_passes_and_a_seed_gives_the_same_run() {
    let mut total = Counts::default();
    for seed in 0..150 {
        let (result, counts, trace) = play(Flaw::None, seed, Tracing::Tail(60));
        assert!(result.is_ok(), "seed {seed}: {result:?}\n{}", trace.join("\n"));
        total.add(&counts);
        if seed % 16 == 0 {
            assert_eq!(play(Flaw::None, seed, Tracing::Off).1, counts);
            assert_eq!(play(Flaw::None, seed, Tracing::All).2, play(Flaw::None, seed, Tracing::All).2);
        }
    }
    assert!(total.power_cuts > 500 && total.operations > 5_000, "{total:?}");
}

#[test]
fn every_flaw_is_found() {
    for (flaw, text) in [
        (Flaw::ForgetsFua, "went back"),
        (Flaw::IgnoresFlush, "went back"),
        (Flaw::AnswersEarly, "went back"),
        (Flaw::LosesReset, ""),
        (Flaw::NeverFinishes, "never completed"),
        (Flaw::MixesBlocks, "should hold the data of write"),
    ] {
        let found = (0..400).filter_map(|seed| play(flaw, seed, Tracing::Off).0.err());
        let first = found.into_iter().find(|failure| failure.0.contains(text));
        assert!(first.is_some(), "{flaw:?} was not found");
    }
}
