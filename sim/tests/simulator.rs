//! Tests of the simulator itself: it passes sound subjects, finds flaws, and its runs are determined by their seeds.

use crate::support::{
    Flaw, SingleMaker,
    copies::{Broken, CopiesMaker},
};
use emu::rng::Rng;
use engine::raid::policy::Policy;
use sim::simulator::{
    exhaustive::{self, Case, Step},
    lifecycle,
    scenario::{Misfortune, Scenario},
    subject::ArrayMaker,
    world::{Counts, Failure, TraceMode, World},
};

/// A run with a scenario that a single drive without ZRWA can satisfy.
fn play(flaw: Flaw, seed: u64, tracing: TraceMode) -> (Result<(), Failure>, Counts, Vec<String>) {
    let maker = SingleMaker(flaw);
    let mut rng = Rng::new(seed);
    let mut scenario = Scenario::draw(&mut rng, Some(Policy::Zrwa), Some(1));
    scenario.members = 1;
    scenario.drive.zrwa = None;
    scenario.unwritten_fails = false;
    // FUA is the subject's only means to make earlier writes durable.
    scenario.fua_alone = false;
    scenario.load.sizes = [3, 1, 0];
    // Acknowledged writes need not survive the process, as a fork would require.
    scenario.forks = 0;
    scenario.misfortune = Misfortune { drain_percent: 10, ..Misfortune::default() };
    let mut world = World::new(&maker, scenario, rng, tracing);
    let result = lifecycle::run(&mut world);
    (result, world.counts(), world.trace_lines())
}

#[test]
fn simulator_passes_sound_device_deterministically() {
    let mut total = Counts::default();
    for seed in 0..150 {
        let (result, counts, trace) = play(Flaw::None, seed, TraceMode::Tail(60));
        assert!(result.is_ok(), "seed {seed}: {result:?}\n{}", trace.join("\n"));
        total.add(&counts);
        if seed % 16 == 0 {
            assert_eq!(play(Flaw::None, seed, TraceMode::Off).1, counts);
            assert_eq!(play(Flaw::None, seed, TraceMode::All).2, play(Flaw::None, seed, TraceMode::All).2);
        }
    }
    assert!(total.power_cuts > 500 && total.operations > 5_000, "{total:?}");
}

#[test]
fn simulator_finds_every_flaw() {
    for (flaw, text) in [
        (Flaw::ForgetsFua, "went back"),
        (Flaw::IgnoresFlush, "went back"),
        (Flaw::AnswersEarly, "went back"),
        (Flaw::LosesReset, ""),
        (Flaw::NeverFinishes, "never completed"),
        (Flaw::MixesBlocks, "should hold the data of write"),
    ] {
        let found = (0..400).filter_map(|seed| play(flaw, seed, TraceMode::Off).0.err());
        let first = found.into_iter().find(|failure| failure.0.contains(text));
        assert!(first.is_some(), "{flaw:?} was not found");
    }
}

/// A life of [`CopiesMaker`]'s subject, with up to `losses` members lost at once.
fn live_copies(
    maker: &CopiesMaker,
    losses: usize,
    seed: u64,
    forks: bool,
) -> (Result<(), Failure>, Counts, Vec<String>) {
    let mut rng = Rng::new(seed);
    let mut scenario = Scenario::draw(&mut rng, Some(Policy::Zrwa), Some(losses));
    scenario.drive.zones -= scenario.aggregate * std::mem::take(&mut scenario.spare_zones);
    // The same drive for all members, and no properties of drives with a ZRWA.
    (scenario.mixed, scenario.aggregate, scenario.drive.zrwa) = (false, 1, None);
    (scenario.unwritten_fails, scenario.finish_drops, scenario.fua_alone) = (false, false, false);
    // The subject does not split large commands.
    scenario.drive.max_transfer_blocks = 64;
    scenario.members = scenario.members.clamp(2 + maker.parities, 6);
    if !forks {
        scenario.forks = 0;
    }
    // The subject identifies only its own drives, and copies only written blocks.
    let m = &mut scenario.misfortune;
    (m.zrwa_lost_percent, m.hold_back_percent, m.dead_block, m.dead_zone) = (0, 0, 0, 0);
    (m.copies_percent, m.strangers_percent, m.used_spare_percent) = (0, 0, 0);
    let mut world = World::new(maker, scenario, rng, TraceMode::Tail(80));
    let result = lifecycle::run(&mut world);
    (result, world.counts(), world.trace_lines())
}

#[test]
fn simulator_passes_sound_copies_with_losses() {
    for (parities, least) in [(1, 0), (2, 200)] {
        let maker = CopiesMaker { parities, broken: Broken::Nothing };
        let mut total = Counts::default();
        for seed in 0..150 {
            let (result, counts, trace) = live_copies(&maker, parities, seed, true);
            assert!(result.is_ok(), "seed {seed}, {parities}: {result:?}\n{}", trace.join("\n"));
            total.add(&counts);
        }
        assert!(total.double_losses >= least, "{total:?}");
        assert!(parities == 2 || total.double_losses == 0, "{total:?}");
        assert!(total.rebuilds > 100 && total.beyond > 100, "{total:?}");
    }
}

/// Flaws that only two losses reveal, in some cases during the rebuild of one of the two; single losses reveal nothing.
#[test]
fn simulator_finds_flaws_shown_by_two_losses() {
    for (broken, text, forks) in [
        (Broken::AnswersEarly, "went back", true),
        (Broken::TrustsUnfilled, "", true),
        (Broken::TrustsUnfilled, "", false),
        (Broken::ForgetsTheSecond, "", false),
    ] {
        let maker = CopiesMaker { parities: 2, broken };
        let found = (0..1500).filter_map(|seed| live_copies(&maker, 2, seed, forks).0.err());
        let first = found.into_iter().find(|failure| failure.0.contains(text));
        assert!(first.is_some(), "{broken:?} was not found, forks: {forks}");
        for seed in 0..60 {
            let (result, _, trace) = live_copies(&maker, 1, seed, false);
            assert!(result.is_ok(), "{broken:?}, seed {seed}: {result:?}\n{}", trace.join("\n"));
        }
    }
}

/// Result and counts of a life without those of its forks.
fn live(policy: Policy, seed: u64, forks: bool) -> (Result<(), Failure>, Counts) {
    let maker = ArrayMaker { policy: Some(policy), ..ArrayMaker::default() };
    let mut rng = Rng::new(seed);
    let mut scenario = Scenario::draw(&mut rng, Some(policy), Some(1));
    if !forks {
        scenario.forks = 0;
    }
    let mut world = World::new(&maker, scenario, rng, TraceMode::Off);
    let result = lifecycle::run(&mut world);
    (result, world.counts())
}

#[test]
fn simulator_forks_leave_life_unchanged() {
    let mut total = Counts::default();
    for seed in 0..60 {
        let policy = Policy::ALL[seed as usize % 3];
        let (result, forked) = live(policy, seed, true);
        assert!(result.is_ok(), "seed {seed}: {result:?}");
        let (_, alone) = live(policy, seed, false);
        let of_forks =
            Counts { forks: 0, beyond: 0, claims: 0, pessimistic_claims: 0, remedies: 0, ..forked };
        let without_forks = Counts { judgements: alone.judgements, ..of_forks };
        assert_eq!(alone, without_forks, "seed {seed}");
        assert!(forked.forks == 0 || forked.judgements > alone.judgements, "seed {seed}: {forked:?}");
        total.add(&forked);
    }
    assert!(total.forks > 60 && total.judgements > 4 * total.forks, "{total:?}");
    assert!(total.beyond > total.forks / 3, "{total:?}");
}

/// A flaw that only the loss of another member than the life's own would reveal.
#[test]
fn simulator_fork_finds_flaw_missed_by_life() {
    let maker = CopiesMaker { parities: 2, broken: Broken::ForgetsTheSecond };
    let failure = |seed, forks| live_copies(&maker, 2, seed, forks).0.err();
    let seen = (0..200).filter(|seed| failure(*seed, true).is_some_and(|f| f.0.contains("forked here")));
    let missed = seen.filter(|seed| failure(*seed, false).is_none()).count();
    assert!(missed > 5, "{missed}");
}

#[test]
fn exhaustive_search_passes_sound_and_finds_flaws() {
    let fua = |blocks| Step::Write { blocks, fua: true };
    let case = Case {
        name: "one drive",
        policy: Policy::Zrwa,
        members: 1,
        parities: 1,
        chunk_blocks: 2,
        granularity_blocks: 1,
        window_chunks: 0,
        aggregate: 1,
        spare_zones: 0,
        checksum_group_blocks: 0,
        volatile_cache: true,
        from_end_blocks: Some(9),
        before: Vec::new(),
        queue_depth: 2,
        steps: vec![
            fua(2),
            Step::Write { blocks: 3, fua: false },
            Step::Flush,
            fua(1),
            Step::Finish,
            Step::Reset,
        ],
    };
    let search = |flaw, case: &Case| {
        exhaustive::search(&SingleMaker(flaw), std::slice::from_ref(case), &|_| 1, 2, &|_, _| ())
    };
    let (tried, findings) = search(Flaw::None, &case);
    assert!(findings.is_empty(), "{findings:?}");
    assert!(tried.schedules > 20 && tried.power_cuts > 500, "{tried:?}");
    for flaw in [Flaw::ForgetsFua, Flaw::AnswersEarly, Flaw::IgnoresFlush] {
        let (_, findings) = search(flaw, &case);
        assert!(findings.iter().any(|f| f.failure.contains("went back")), "{flaw:?} was not found");
    }
}

/// Each zone of each drive may lose its cache, or be the only one that keeps it.
#[test]
fn exhaustive_search_enumerates_volatile_cache_losses() {
    let cases: Vec<_> =
        Case::all(1).into_iter().filter(|case| case.volatile_cache && case.before.is_empty()).collect();
    let kept: Vec<_> = cases.iter().map(|case| Case { volatile_cache: false, ..case.clone() }).collect();
    let search = |cases: &[Case]| exhaustive::search(&ArrayMaker::default(), cases, &|_| 0, 2, &|_, _| ());
    let ((tried, findings), (fewer, _)) = (search(&cases), search(&kept));
    assert!(findings.is_empty(), "{findings:?}");
    assert!(tried.power_cuts > 3 * fewer.power_cuts, "{tried:?}, {fewer:?}");
}

/// A life on drives that tear blocks at power cuts; real hosts refuse such drives.
fn live_torn(policy: Policy, parities: usize, seed: u64) -> Result<(), Failure> {
    let maker = ArrayMaker { policy: Some(policy), parities: Some(parities), ..ArrayMaker::default() };
    let mut rng = Rng::new(seed);
    let mut scenario = Scenario::draw(&mut rng, Some(policy), Some(parities));
    scenario.sectors_tear = true;
    lifecycle::run(&mut World::new(&maker, scenario, rng, TraceMode::Off))
}

/// There is no guarantee on such drives. The policy `inplace`, which relies on a block and its metadata being written
/// atomically, shows why; with the others only records need whole blocks, and these have checksums.
#[test]
fn simulator_finds_torn_blocks_with_inplace_only() {
    for parities in [1, 2] {
        let failures = (0..24).filter_map(|seed| live_torn(Policy::InPlace, parities, seed).err());
        let found = failures.into_iter().any(|failure| failure.0.contains("should hold the data of write"));
        assert!(found, "raid{}: nothing was found", 4 + parities);
        for policy in [Policy::Zrwa, Policy::Log] {
            for seed in 0..8 {
                let result = live_torn(policy, parities, seed);
                assert!(result.is_ok(), "{policy:?}, {parities}, seed {seed}: {result:?}");
            }
        }
    }
}
