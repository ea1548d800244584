//! Namespaces and volumes on arrays, with all ends and faults of the simulated arrays.

use engine::raid::{Consistency, policy::Policy};
use sim::simulator::{
    layered::{Layer, LayeredMaker},
    runner::{self, Seeds},
    subject::ArrayMaker,
};

fn play(layer: Layer, arrays: &ArrayMaker, range: std::ops::Range<u64>) -> runner::Summary {
    let maker = LayeredMaker { layer, arrays: arrays.clone() };
    runner::play(&maker, &Seeds { range, ..Seeds::default() }, 2, &|| ())
}

#[test]
fn layers_on_arrays_keep_promises_through_every_end() {
    let mut all = sim::simulator::world::Counts::default();
    for layer in Layer::ALL {
        let summary = play(layer, &ArrayMaker::default(), 0..40);
        let failures: Vec<_> = summary.failures.iter().map(|f| (f.seed, f.failure.as_deref())).collect();
        assert!(failures.is_empty(), "{}: {failures:?}", layer.name());
        let counts = summary.counts;
        assert!(counts.refusals < 8 && counts.judgements > 200, "{}: {counts:?}", layer.name());
        all.add(&counts);
    }
    let seen = [
        ("power cuts", all.power_cuts),
        ("kills", all.kills),
        ("shutdowns", all.shutdowns),
        ("power cuts after kills", all.cuts_after_kills),
        ("lost ZRWAs", all.zrwa_losses),
        ("deferred starts", all.deferred_starts),
        ("lost members", all.member_losses),
        ("two lost members", all.double_losses),
        ("interrupted recoveries", all.interrupted_recoveries),
        ("rebuilds", all.rebuilds),
        ("replacements", all.replacements),
        ("faults", all.faults),
    ];
    let unseen: Vec<_> = seen.into_iter().filter(|(_, count)| *count == 0).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}

/// An array that proves tails by write pointers alone loses the end of chunks: the checks of every layer detect it.
#[test]
fn layers_detect_array_without_logged_write_pointers() {
    let consistency = Consistency::Stripe;
    let arrays = ArrayMaker { consistency, policy: Some(Policy::Zrwa), ..ArrayMaker::default() };
    for layer in Layer::ALL.into_iter().filter(|layer| !layer.is_on_drive()) {
        let found = (0..10).any(|part| !play(layer, &arrays, 20 * part..20 * (part + 1)).failures.is_empty());
        assert!(found, "{}", layer.name());
    }
}
