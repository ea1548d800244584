//! Rules that are broken on purpose: the simulator finds each of them, and finds nothing in the
//! same seeds when none is broken. A simulator that finds nothing proves nothing otherwise.

use engine::raid::{Canary, policy::Policy};
use sim::simulator::{
    runner::{Summary, run_seeds},
    subject::{ArrayMaker, CANARIES},
};

const BATCH: u64 = 50;
const MOST_SEEDS: u64 = 1000;

fn play(policy: Policy, parities: usize, canary: Option<Canary>, from: u64, to: u64) -> Summary {
    let maker =
        ArrayMaker { canary, policy: Some(policy), parities: Some(parities), ..ArrayMaker::default() };
    run_seeds(&maker, from..to, 2, &|| ())
}

#[test]
fn every_broken_rule_is_found_and_nothing_else() {
    for (policy, parities) in Policy::ALL.into_iter().flat_map(|policy| [(policy, 1), (policy, 2)]) {
        let mut most = 0;
        for (name, canary, ..) in CANARIES.iter().filter(|canary| (canary.2, canary.3) == (policy, parities))
        {
            let mut batches = (0..MOST_SEEDS / BATCH).map(|batch| batch * BATCH);
            let found = batches
                .find(|from| !play(policy, parities, Some(*canary), *from, from + BATCH).failures.is_empty());
            let Some(from) = found else { panic!("{name} was not found in {MOST_SEEDS} seeds") };
            most = most.max(from + BATCH);
        }
        let sound = play(policy, parities, None, 0, most);
        let failures: Vec<_> = sound.failures.iter().map(|f| (f.seed, f.failure.clone())).collect();
        assert!(failures.is_empty(), "{failures:?}");
        assert!(sound.counts.power_cuts > most, "{:?}", sound.counts);
    }
}
