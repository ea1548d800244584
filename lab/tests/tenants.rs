//! Namespaces on timed drives. Time is virtual: the same everywhere.

#![allow(clippy::unwrap_used)]

use lab::{
    experiments::{Effort, Experiment},
    figure::Verdict,
};

/// eZNS Fig. 26: twice as much with four writers, as much with eight and sixteen.
#[test]
fn ezns_four_writers_double_throughput() {
    let figure = Experiment::by_name("ezns").unwrap().figure_of(Effort::Quick).unwrap();
    let claims: Vec<_> = figure.claims.iter().filter(|claim| claim.what.starts_with("Fig. 26")).collect();
    assert_eq!(claims.len(), 3);
    assert!(claims.iter().all(|claim| claim.verdict == Verdict::Matched), "{claims:?}");
}

/// eZNS Fig. 29 (b): a busy writer in a narrow zone does not fill the write cache at the cost of regular writers, and
/// admission control costs no bandwidth if all are busy.
#[test]
fn admission_control_protects_regular_writers_without_bandwidth_loss() {
    let figure = Experiment::by_name("ezns").unwrap().figure_of(Effort::Quick).unwrap();
    let mb_s = |name: &str| figure.rows.iter().find(|row| row.system == format!("29b {name}")).unwrap().mb_s;
    let [with, without] = ["", ", no admission control"].map(|how| mb_s(&format!("1: regular writers{how}")));
    assert!(with > 1.1 * without, "{with} MB/s with admission control, {without} without");
    for load in ["2: all busy", "3: no die twice"] {
        let [with, without] = ["", ", no admission control"]
            .map(|how| mb_s(&format!("{load}{how}")) + mb_s(&format!("{load}{how}, the narrow one")));
        assert!(with > 0.98 * without, "{load}: {with} MB/s with admission control, {without} without");
    }
}
