//! What namespaces do on timed drives. Time is virtual: the same everywhere.

#![allow(clippy::unwrap_used)]

use lab::{
    experiments::{Effort, Experiment},
    figure::Verdict,
};

/// eZNS Fig. 26: twice as much with four writers, as much with eight and sixteen.
#[test]
fn few_writers_get_wide_zones() {
    let figure = Experiment::by_name("ezns").unwrap().figure_of(Effort::Quick).unwrap();
    let claims: Vec<_> = figure.claims.iter().filter(|claim| claim.what.starts_with("Fig. 26")).collect();
    assert_eq!(claims.len(), 3);
    assert!(claims.iter().all(|claim| claim.verdict == Verdict::Matched), "{claims:?}");
}
