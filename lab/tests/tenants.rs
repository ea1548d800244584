//! What namespaces do on timed drives. Time is virtual: the same everywhere.

#![allow(clippy::unwrap_used)]

use engine::vzone::Spec;
use lab::{
    experiments::{Effort, Experiment},
    figure::Verdict,
    tenants::{Below, Does, Tenants, Worker},
};

fn spec(name: &str, zones: u32) -> Spec {
    Spec { name: name.into(), zones, max_active: zones, max_open: zones, essential: 2, weight: 1 }
}

/// eZNS Fig. 26: twice as much with four writers, as much with eight and sixteen.
#[test]
fn few_writers_get_wide_zones() {
    let figure = Experiment::by_name("ezns").unwrap().figure_of(Effort::Quick).unwrap();
    let claims: Vec<_> = figure.claims.iter().filter(|claim| claim.what.starts_with("Fig. 26")).collect();
    assert_eq!(claims.len(), 3);
    assert!(claims.iter().all(|claim| claim.verdict == Verdict::Matched), "{claims:?}");
}

/// Two tenants that do the same get the same, and one that comes back after it was forgotten is not kept waiting for
/// longer than its zone is moved.
#[test]
fn equals_get_equal_shares_and_who_comes_back_is_not_shut_out() {
    let tenants = Tenants::new(Below::Drive, 70, &[spec("one", 8), spec("two", 8)]).unwrap();
    let writer = |tenant, zone| Worker::new(tenant, vec![zone], Does::Write, 512, 1);
    let mut workers = vec![writer(0, 0), writer(0, 1), writer(1, 0), writer(1, 1)];
    for worker in &mut workers[2..] {
        worker.idle_ms = (1000, 6000);
    }
    let spares = tenants.watch_spares(10);
    let work = tenants.run(&workers, 10_000).unwrap();
    let of = |tenant: usize, from: u64, to: u64| -> f64 {
        work[2 * tenant..2 * tenant + 2].iter().map(|work| work.mb_s(from, to)).sum()
    };
    let ratio = of(0, 200, 1000) / of(1, 200, 1000);
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
    let spares = spares.borrow();
    assert!(spares[0][1] > 0 && spares[5][1] == 0, "{spares:?}");
    assert!(of(1, 6000, 7000) > 0.0 && of(1, 9000, 10_000) > 50.0, "{}", of(1, 6000, 10_000));
}
