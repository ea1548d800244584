//! Results of the lab's figures, on a few points each. Time is virtual: the same everywhere.

#![allow(clippy::unwrap_used)]

use lab::{
    experiments::{Effort, Experiment},
    figure::Row,
    host::Host,
    load::Window,
    report,
    system::System,
    test_bed::{Load, Setup, TestBed, point},
    trace::Trace,
};

fn row(setup: &Setup, zones: u32, request_kib: u64, depth: u32) -> Row {
    let load = Load { depth, window: Window::ms(30, 90), seeds: 1, ..Load::fio(zones, request_kib) };
    point(setup, &load).unwrap()
}

fn zn540(system: System, zones: u32, request_kib: u64) -> Row {
    row(&Setup::zn540(system), zones, request_kib, 64)
}

fn zn540_on(system: System, host: &Host, zones: u32, request_kib: u64) -> Row {
    row(&Setup::zn540(system).on(host), zones, request_kib, 64)
}

/// ZRAID §6.2.
#[test]
fn zraid_throughput_reaches_but_never_exceeds_paper_limits() {
    for (request_kib, limit) in [(16, 3075.0), (64, 3075.0), (128, 4100.0), (256, 4920.0)] {
        let share = zn540(System::Zraid, 7, request_kib).mb_s / limit;
        assert!((0.95..1.01).contains(&share), "{request_kib} KiB: {share}");
    }
}

/// ZRAID §6.2, §6.3.
#[test]
fn zraid_beats_raizn_at_8kib_not_full_stripes() {
    let gain = |kib| zn540(System::Zraid, 12, kib).mb_s / zn540(System::RaiznPlus, 12, kib).mb_s;
    assert!(gain(8) > 1.1, "{}", gain(8));
    assert!((0.98..1.02).contains(&gain(256)), "{}", gain(256));
}

/// ZRAID §6.4: partial parity in the ZRWA never stays on flash, in log zones it does.
#[test]
fn flash_write_causes_match_paper() {
    let zraid = zn540(System::Zraid, 4, 8);
    assert!((1.2..1.3).contains(&zraid.flash_write_amplification), "{zraid:?}");
    assert!((0.7..0.8).contains(&zraid.written.temporary_parity), "{zraid:?}");
    let raizn = zn540(System::RaiznPlus, 4, 8).written;
    assert!((0.7..0.8).contains(&raizn.logged_parity) && raizn.temporary_parity == 0.0, "{raizn:?}");
    assert!((0.3..0.45).contains(&raizn.headers), "{raizn:?}");
}

/// With whole stripes two parities only cost another drive; partial stripes write both parities, and none of that stays
/// on flash.
#[test]
fn second_parity_costs_drive_and_doubles_partial_parity() {
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
fn zraid_on_memory_zrwa_doubles_raizn_throughput() {
    let load = Load { seeds: 1, ..Load::long(15, 8) };
    let at = |system| point(&Setup::pm1731a(system), &load).unwrap().mb_s;
    let gain = at(System::Zraid) / at(System::RaiznPlus);
    assert!(gain > 2.0, "{gain}");
}

#[test]
fn lab_run_is_deterministic_per_seed() {
    let run = |seed| {
        let row = row(&Setup { seed: Some(seed), ..Setup::zn540(System::Zoneraid) }, 4, 8, 16);
        serde_json::to_string(&row).unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// A lead on a free host may vanish on a real one: costs have to show, and least of all with whole stripes.
#[test]
fn host_cost_reduces_small_but_not_large_writes() {
    let of = |system, us, kib| zn540_on(system, &Host::one_thread(us), 12, kib).mb_s;
    let (free, one, four) =
        (of(System::Zoneraid, 0.0, 4), of(System::Zoneraid, 1.0, 4), of(System::Zoneraid, 4.0, 4));
    assert!(free > 4700.0 && one < 0.9 * free && four < 0.35 * one, "{free} {one} {four}");
    assert!(of(System::Zoneraid, 2.0, 4) > 2.0 * of(System::Zraid, 2.0, 4), "on the same host");
    assert!(of(System::Zoneraid, 4.0, 256) > 0.99 * of(System::Zoneraid, 0.0, 256));
}

/// The lock of a zone slows down systems that write zones in order, and no others.
#[test]
fn zone_lock_slows_only_systems_writing_in_order() {
    let ratio = |system, kib| {
        let of = |host: &Host| zn540_on(system, host, 1, kib).mb_s;
        of(&Host::mq_deadline()) / of(&Host::io_uring())
    };
    assert!(ratio(System::RaiznPlus, 4) < 0.95, "{}", ratio(System::RaiznPlus, 4));
    assert_eq!(ratio(System::Zraid, 4), 1.0);
}

#[test]
fn trace_has_track_for_each_component() {
    let trace = Trace::default();
    let setup = Setup::zn540(System::Zraid).on(&Host::one_thread(1.0));
    let load = Load { window: Window::ms(6, 7), ..Load::fio(2, 64) };
    TestBed::traced(&setup, Some(trace.clone())).unwrap().write_zones(&load).unwrap();
    let trace = serde_json::to_string(&trace.json(1_000_000)).unwrap();
    for part in
        ["\"host\"", "thread 0", "jobs", "member 4", "zone 2", "dies of member 0", "program", "write 64 KiB"]
    {
        assert!(trace.contains(part), "{part}");
    }
}

/// Experiments with more than writes in a loop: power cuts, recovery, applications.
#[test]
fn experiments_yield_finite_claims_and_plots() {
    for name in ["table1", "recovery", "fig9", "fig10", "waf", "ycsb"] {
        let figure = Experiment::by_name(name).unwrap().figure_of(Effort::Quick).unwrap();
        assert!(!figure.claims.is_empty() && !figure.plots.is_empty(), "{name}");
        for claim in &figure.claims {
            assert!(claim.ours.is_finite() && claim.error.is_finite(), "{name}: {claim:?}");
        }
    }
}

/// ZRAID Table 1: the last policy keeps its promise at every cut, and the others lose data.
#[test]
fn only_write_pointer_log_survives_every_power_cut() {
    let figure = Experiment::by_name("table1").unwrap().figure_of(Effort::Quick).unwrap();
    let of = |what: &str| figure.claims.iter().find(|claim| claim.what.contains(what)).unwrap().ours;
    assert_eq!(of("survive"), 1.0);
    assert!(of("failures, stripe") > 20.0 && of("failures, chunk") > 20.0);
}

/// A PM1731a assigns dies to zones in turn, so that log zones of several members do not share one by their numbers.
#[test]
fn small_zones_of_members_share_no_die() {
    let load = Load { seeds: 1, ..Load::long(15, 16) };
    let row = point(&Setup::pm1731a(System::Zraid), &load).unwrap();
    assert!(row.drift.abs() < 0.03, "{row:?}");
}

#[test]
fn report_is_one_page_with_all_sections() {
    let experiment = Experiment::by_name("fig11").unwrap();
    let figure = experiment.figure_of(Effort::Quick).unwrap();
    let page = report::html(&[figure]).unwrap();
    for part in
        ["Every claim", "<svg", "paper: up to 3.3", "RAIZN+", "published", "fig11", "All points", "</html>"]
    {
        assert!(page.contains(part), "{part}");
    }
    for outside in ["<script", "<link", "src=", "href=\"http"] {
        assert!(!page.contains(outside), "{outside}");
    }
}
