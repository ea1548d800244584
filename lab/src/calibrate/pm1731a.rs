//! Samsung PM1731a and drives of its class.

use super::{Bench, CalibrationRow, CalibrationTable, measure};
use crate::load::{Job, Measurement, RequestKind, Window};
use anyhow::Result;
use engine::zone::ZoneIndex;

const NAME: &str = "pm1731a";
const DIES: u32 = 128;
const RESET_TAIL: &str =
    "the server for resets is exponential, which fits means; one alone has hardly any tail";
const BUFFERED: &str = "writes are acknowledged from a buffer, which resets do not fill here";
const DEPTH_UNKNOWN: &str =
    "how much is in flight is not published; reads of 128 KiB are taken as independent ones of 16 KiB";

pub(super) fn rows() -> Result<Vec<CalibrationRow>> {
    let mut table = CalibrationTable { drive: NAME, source: "eZNS Table 1", unit: "MB/s", rows: Vec::new() };
    bandwidths(&mut table)?;
    reads(&mut table)?;
    writes_at_and_below_the_rate_of_a_die(&mut table)?;
    write_cache(&mut table)?;
    overlap(&mut table)?;
    resets(&mut table)?;
    Ok(table.rows)
}

fn bandwidths(table: &mut CalibrationTable) -> Result<()> {
    let long = Window::ms(1200, 1700);
    let zone = measure(NAME, RequestKind::Write, 1, 64, 8, long)?.mb_s();
    table.row("writes to one zone", zone, 40.0);
    table.source = "eZNS §3.4";
    let reads = measure(NAME, RequestKind::Read, 1, 4, 32, Window::ms(2, 302))?.mb_s();
    table.row("4 KiB random reads of one die, QD32", reads, 80.0);
    // 2 MiB in stripes of 16 KiB over the zones, two in flight.
    let reads = measure(NAME, RequestKind::Read, 20, 16, 13, Window::ms(2, 52))?.mb_s();
    table.row("2 MiB reads over 20 zones, QD2", reads, 3200.0);
    let writes = measure(NAME, RequestKind::Write, 80, 64, 4, Window::ms(500, 700))?.mb_s();
    table.row("2 MiB writes over 80 zones", writes, 3200.0);
    table.source = "ZRAID §2, §6.5";
    table.row("writes to one zone", zone, 45.0);
    let overwrites = measure(NAME, RequestKind::Overwrite, 1, 64, 1, Window::ms(2, 102))?.mb_s();
    table.row("64 KiB overwrites in the ZRWA, 26.6 × 45 MB/s", overwrites, 26.6 * 45.0);
    Ok(())
}

fn reads(table: &mut CalibrationTable) -> Result<()> {
    table.source = "eZNS Table 2";
    for (kib, mean, tail, mb_s) in [
        (4, 64.0, 76.0, 59.0),
        (8, 71.0, 84.0, 108.0),
        (16, 88.0, 103.0, 175.0),
        (32, 163.0, 269.0, 190.0),
        (64, 314.0, 619.0, 198.0),
    ] {
        let measured = measure(NAME, RequestKind::Read, 1, kib, 1, Window::ms(2, 2002))?;
        table.unit = "µs";
        table.row(format!("{kib} KiB random read, mean"), measured.mean_us(), mean);
        let row = table.row(format!("{kib} KiB random read, p99.9"), measured.quantile_us(0.999), tail);
        if kib > 16 {
            row.missed(50.0, "reads of more than a page have a tail that is not explained");
        }
        table.unit = "MB/s";
        table.row(format!("{kib} KiB random reads, QD1"), measured.mb_s(), mb_s);
    }
    Ok(())
}

fn writes_at_and_below_the_rate_of_a_die(table: &mut CalibrationTable) -> Result<()> {
    (table.unit, table.source) = ("µs", "eZNS §3.7");
    let bench = Bench::new(NAME)?;
    let job = Job { period_ns: 16_384_000 / 20, ..Job::new(RequestKind::Write, 0, 16, 1) };
    let below = bench.run(&[job], Window::ms(100, 1100))?;
    table.row("16 KiB write at 20 MB/s to one zone, p50", below[0].quantile_us(0.5), 93.0);
    let at = measure(NAME, RequestKind::Write, 1, 16, 6, Window::ms(1200, 1700))?;
    table.row("16 KiB write as fast as the zone can, p50, QD6 taken", at.quantile_us(0.5), 2278.0);
    Ok(())
}

fn write_cache(table: &mut CalibrationTable) -> Result<()> {
    // 15 writers on 8 zones each, beside a narrow one on 2. Each has a request of 128 KiB in flight, in stripes of 16
    // KiB; those for the same zone are one request.
    let wide: Vec<Job> = (0..120).map(|zone| Job::new(RequestKind::Write, zone, 16, 1)).collect();
    let narrow = (120..122).map(|zone| Job::new(RequestKind::Write, zone, 64, 1));
    let together: Vec<Job> = wide.iter().cloned().chain(narrow).collect();
    (table.unit, table.source) = ("MB/s", "eZNS §3.5");
    let alone = Bench::new(NAME)?.run(&wide, Window::ms(500, 800))?;
    table.row("15 writers on 120 zones", Measurement::sum(&alone).mb_s(), 3200.0);
    let beside = Bench::new(NAME)?.run(&together, Window::ms(1000, 1300))?;
    table.row("15 writers on 120 zones and one on 2", Measurement::sum(&beside).mb_s(), 2400.0);
    table.row("each of the 15", Measurement::sum(&beside[..8]).mb_s(), 155.0);
    table.row("the one on 2 zones", Measurement::sum(&beside[120..]).mb_s(), 85.0);

    (table.unit, table.source) = ("×", "eZNS §3.7");
    let unloaded = |zone| Job { period_ns: 16_384_000 / 20, ..Job::new(RequestKind::Write, zone, 16, 1) };
    let alone: Vec<Job> = (0..32).map(unloaded).collect();
    let beside: Vec<Job> = (0..31).map(unloaded).chain([Job::new(RequestKind::Write, 31, 16, 1)]).collect();
    let window = Window::ms(1000, 1700);
    let alone = Measurement::sum(&Bench::new(NAME)?.run(&alone, window)?);
    let beside = Measurement::sum(&Bench::new(NAME)?.run(&beside, window)?[..31]);
    for (share, published) in [(0.5, 5.6), (0.95, 13.7), (0.99, 8.7), (0.999, 7.6)] {
        let item = format!("16 KiB write beside a busy writer, p{}", share * 100.0);
        let row = table.row(item, beside.quantile_us(share) / alone.quantile_us(share), published);
        if share == 0.95 || share == 0.99 {
            row.missed(
                50.0,
                "published writes have a tail also when no writer is busy; the model's have none",
            );
        }
    }
    Ok(())
}

/// 16 zones on dies that share channels, or on half as many dies.
fn overlap(table: &mut CalibrationTable) -> Result<()> {
    table.source = "eZNS §3.4";
    // A zone's channel is its number modulo 16, its die modulo 128.
    let sharing_channels = |on_each: u32| (0..16).map(move |n| n / on_each + n % on_each * 16);
    let two: Vec<u32> = sharing_channels(2).collect();
    for (on_each, small, large) in [(4, 1.7, 1.7), (8, 2.9, 2.5)] {
        let zones: Vec<u32> = sharing_channels(on_each).collect();
        for (what, kib, depth, published) in [("4 KiB", 4, 64, small), ("128 KiB", 16, 16, large)] {
            let predicted = spread_reads(&two, kib, depth)? / spread_reads(&zones, kib, depth)?;
            let item = format!("{what} reads, 2 against {on_each} zones on a channel");
            let row = table.row(item, predicted, published);
            if on_each == 4 {
                row.missed(25.0, DEPTH_UNKNOWN);
            }
        }
    }
    let apart: Vec<u32> = (0..16).collect();
    let shared: Vec<u32> = (0..16).map(|n| n % 8 + n / 8 * DIES).collect();
    for (what, kib, depth, all, drop) in [("4 KiB", 4, 64, 1128.0, 47.2), ("128 KiB", 16, 16, 2051.0, 23.8)] {
        let most = spread_reads(&apart, kib, depth)?;
        let less = spread_reads(&shared, kib, depth)?;
        table.unit = "MB/s";
        table.row(format!("{what} reads of 16 zones on 16 dies"), most, all);
        let row = table.row(format!("{what} reads of 16 zones on 8 dies"), less, all * (1.0 - drop / 100.0));
        if kib > 4 {
            row.missed(15.0, DEPTH_UNKNOWN);
        }
    }
    Ok(())
}

/// MB/s of random reads from these zones.
fn spread_reads(zones: &[u32], kib: u64, depth: u32) -> Result<f64> {
    let further = zones[1..].iter().copied().map(ZoneIndex).collect();
    let job = Job { further, ..Job::new(RequestKind::Read, zones[0], kib, depth) };
    Ok(Bench::new(NAME)?.run(&[job], Window::ms(2, 102))?[0].mb_s())
}

fn resets(table: &mut CalibrationTable) -> Result<()> {
    (table.unit, table.source) = ("µs", "eZNS Table 3");
    for (at_once, published, tail) in [
        (1, 204.0, 233.0),
        (2, 220.0, 338.0),
        (3, 239.0, 449.0),
        (4, 275.0, 445.0),
        (5, 313.0, 889.0),
        (6, 381.0, 2343.0),
    ] {
        let jobs: Vec<Job> = (0..at_once).map(|zone| Job::new(RequestKind::Reset, zone, 4, 1)).collect();
        let measured = Bench::new(NAME)?.run(&jobs, Window::ms(2, 1002))?;
        let measured = Measurement::sum(&measured);
        table.row(format!("reset, {at_once} at once"), measured.mean_us(), published);
        let item = format!("reset, {at_once} at once, p99.9");
        table.row(item, measured.quantile_us(0.999), tail).missed(250.0, RESET_TAIL);
    }
    // 7 resets at once, of full zones on all dies, while others are read.
    let (jobs, zones) = (7, 1000);
    let bench = Bench::new(NAME)?;
    let reset = |job: u32| {
        let further = (1..zones).map(|n| ZoneIndex(DIES + job + n * jobs)).collect();
        Job { further, ..Job::new(RequestKind::Reset, DIES + job, 4, 1) }
    };
    for zone in 0..jobs * zones {
        bench.fill_at_once(ZoneIndex(DIES + zone))?;
    }
    let further = (1..DIES).map(ZoneIndex).collect();
    let reads = Job { further, ..Job::new(RequestKind::Read, 0, 4, 32) };
    let window = Window::ms(20, 320);
    let alone = bench.run(std::slice::from_ref(&reads), window)?.swap_remove(0);
    let mut all: Vec<Job> = (0..jobs).map(reset).collect();
    all.insert(0, reads);
    let beside = bench.run(&all, window)?.swap_remove(0);
    (table.unit, table.source) = ("MB/s", "eZNS §3.6");
    table.row("4 KiB random reads, QD32", alone.mb_s(), 1492.0);
    table
        .row("4 KiB random reads, QD32, beside 7 resets", beside.mb_s(), 202.0)
        .missed(25.0, "an erase that has begun is not suspended for reads");
    table.unit = "×";
    table.row("4 KiB read beside 7 resets, mean", beside.mean_us() / alone.mean_us(), 5.0).missed(
        120.0,
        "the published mean contradicts the published bandwidth, which falls to a seventh with as much in flight",
    );
    table
        .row("4 KiB read beside 7 resets, p99.9", beside.quantile_us(0.999) / alone.quantile_us(0.999), 9.4)
        .missed(80.0, "an erase that has begun is not suspended for reads");
    writes_beside_resets(table)
}

/// 128 KiB writes, one at a time in stripes of 16 KiB over 8 zones, beside 7 resets of full zones on all dies.
fn writes_beside_resets(table: &mut CalibrationTable) -> Result<()> {
    let (jobs, zones) = (7, 1000);
    let bench = Bench::new(NAME)?;
    for zone in 0..jobs * zones {
        bench.fill_at_once(ZoneIndex(DIES + zone))?;
    }
    let writes: Vec<Job> = (0..8).map(|zone| Job::new(RequestKind::Write, zone, 16, 1)).collect();
    let window = Window::ms(20, 320);
    let alone = Measurement::sum(&bench.run(&writes, window)?);
    let bench = Bench::new(NAME)?;
    for zone in 0..jobs * zones {
        bench.fill_at_once(ZoneIndex(DIES + zone))?;
    }
    let reset = |job: u32| {
        let further = (1..zones).map(|n| ZoneIndex(DIES + job + n * jobs)).collect();
        Job { further, ..Job::new(RequestKind::Reset, DIES + job, 4, 1) }
    };
    let all: Vec<Job> = writes.into_iter().chain((0..jobs).map(reset)).collect();
    let beside = Measurement::sum(&bench.run(&all, window)?[..8]);
    let mean = beside.mean_us() / alone.mean_us();
    table.row("128 KiB write beside 7 resets, mean", mean, 2.9).missed(80.0, BUFFERED);
    let tail = beside.quantile_us(0.999) / alone.quantile_us(0.999);
    table.row("128 KiB write beside 7 resets, p99.9", tail, 15.8).missed(98.0, BUFFERED);
    table
        .row("128 KiB writes alone to those beside 7 resets", alone.mb_s() / beside.mb_s(), 2.8)
        .missed(80.0, BUFFERED);
    Ok(())
}
