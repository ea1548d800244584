//! What the lab's figures say, on a few points each. Time is virtual: the same everywhere.

#![allow(clippy::unwrap_used)]

use lab::{
    bed::{Bed, Load, Setup},
    experiments::{Effort, Experiment},
    figure::Row,
    load::Window,
    report,
    system::System,
};

fn row(setup: &Setup, zones: u32, request_kib: u64, depth: u32) -> Row {
    let load = Load { depth, window: Window::ms(30, 90), ..Load::fio(zones, request_kib) };
    Bed::new(setup).unwrap().write_zones(&load).unwrap()
}

fn zn540(system: System, zones: u32, request_kib: u64) -> Row {
    row(&Setup::zn540(system), zones, request_kib, 64)
}

/// ZRAID §6.2.
#[test]
fn zraid_reaches_the_limits_of_the_paper_and_not_more() {
    for (request_kib, limit) in [(16, 3075.0), (64, 3075.0), (128, 4100.0), (256, 4920.0)] {
        let share = zn540(System::Zraid, 7, request_kib).mb_s / limit;
        assert!((0.95..1.01).contains(&share), "{request_kib} KiB: {share}");
    }
}

/// ZRAID §6.2, §6.3.
#[test]
fn zraid_is_ahead_of_raizn_with_8_kib_and_equal_with_whole_stripes() {
    let gain = |kib| zn540(System::Zraid, 12, kib).mb_s / zn540(System::RaiznPlus, 12, kib).mb_s;
    assert!(gain(8) > 1.1, "{}", gain(8));
    assert!((0.98..1.02).contains(&gain(256)), "{}", gain(256));
}

/// ZRAID §6.4: partial parity in the ZRWA never stays on flash, in log zones it does.
#[test]
fn flash_writes_have_the_causes_that_the_paper_names() {
    let zraid = zn540(System::Zraid, 4, 8);
    assert!((1.2..1.3).contains(&zraid.flash_write_amplification), "{zraid:?}");
    assert!((0.7..0.8).contains(&zraid.written.temporary_parity), "{zraid:?}");
    let raizn = zn540(System::RaiznPlus, 4, 8).written;
    assert!((0.7..0.8).contains(&raizn.logged_parity) && raizn.temporary_parity == 0.0, "{raizn:?}");
    assert!((0.3..0.45).contains(&raizn.headers), "{raizn:?}");
}

/// With whole stripes two parities cost another drive and nothing else; partial stripes write both parities, and none of
/// that stays on flash.
#[test]
fn a_second_parity_costs_a_drive_and_as_much_temporary_parity_again() {
    let levels = |depth, kib| {
        let of = |parities| Setup { members: 4 + parities, parities, ..Setup::zn540(System::Zoneraid) };
        [1, 2].map(|parities| row(&of(parities), 7, kib, depth))
    };
    let [one, two] = levels(64, 256);
    assert!((0.99..1.01).contains(&(two.mb_s / one.mb_s)), "{one:?} {two:?}");
    assert!((0.49..0.51).contains(&two.written.full_parity), "{two:?}");
    let [one, two] = levels(4, 4);
    assert!((0.75..0.85).contains(&(two.mb_s / one.mb_s)), "{one:?} {two:?}");
    let ratio = two.written.temporary_parity / one.written.temporary_parity;
    assert!((1.9..2.1).contains(&ratio), "{one:?} {two:?}");
    assert!((1.49..1.51).contains(&two.flash_write_amplification), "{two:?}");
}

/// ZRAID §6.5.
#[test]
fn a_zrwa_in_memory_makes_the_most_of_temporary_parity() {
    let at = |system| row(&Setup::pm1731a(system), 15, 8, 64).mb_s;
    let gain = at(System::Zraid) / at(System::RaiznPlus);
    assert!(gain > 2.0, "{gain}");
}

#[test]
fn a_run_gives_the_same_figures_again_and_another_seed_others() {
    let run = |seed| {
        let row = row(&Setup { seed: Some(seed), ..Setup::zn540(System::Zoneraid) }, 4, 8, 16);
        serde_json::to_string(&row).unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_report_is_one_page_with_plots_claims_and_points() {
    let experiment = Experiment::by_name("fig11").unwrap();
    let figure = (experiment.run)(experiment, Effort::Quick).unwrap();
    let page = report::html(&[figure]).unwrap();
    for part in ["<svg", "RAIZN+", "published", "fig11", "All points", "</html>"] {
        assert!(page.contains(part), "{part}");
    }
    for outside in ["<script", "<link", "src=", "href=\"http"] {
        assert!(!page.contains(outside), "{outside}");
    }
}
