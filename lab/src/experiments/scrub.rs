//! A scrub beside requests, which it must not slow down.

use super::{Effort, Experiment};
use crate::{
    figure::{Figure, Row, Table},
    load::{self, Job, Measurement, RequestKind, Window},
    system::System,
    test_bed::{Setup, TestBed},
    work,
};

pub const SCRUB: Experiment =
    Experiment { name: "scrub", title: "A scrub beside reads and writes", run: scrub };

const METHOD: &str = "Five ZN540 of 1 TB, RAID-5, chunk 64 KiB. Not in the papers. Sequential writes in four zones, or \
random reads of two full zones, while two other full zones are scrubbed at the rate of the daemon beside requests, \
16 MiB/s of all drives together, or without a limit.";

/// Full zones: two that are read, and two that are scrubbed.
const FULL: u32 = 4;

/// The loads: name, kind, number of jobs, KiB of a request, requests of a job in flight.
const LOADS: [(&str, RequestKind, u32, u64, u32); 4] = [
    ("4 KiB writes", RequestKind::Write, 4, 4, 16),
    ("64 KiB writes", RequestKind::Write, 4, 64, 16),
    ("4 KiB reads", RequestKind::Read, 1, 4, 64),
    ("64 KiB reads", RequestKind::Read, 1, 64, 64),
];

/// Rates of the scrub in MiB/s of all drives together: none, that of the daemon, and no limit.
const RATES: [Option<u64>; 3] = [None, Some(16), Some(1 << 20)];

fn scrub(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let loads = if effort == Effort::Quick { &LOADS[..1] } else { &LOADS[..] };
    let points: Vec<_> = loads.iter().flat_map(|load| RATES.map(|rate| (*load, rate))).collect();
    let measured = work::each(this.name, &points, |((_, kind, count, kib, depth), rate)| {
        beside(*kind, *count, *kib, *depth, *rate)
    })?;
    let mut figure = this.figure(METHOD);
    let heads = [
        "load",
        "alone MB/s",
        "beside 16 MiB/s",
        "share",
        "beside a scrub without limit",
        "share",
        "scrub MB/s",
    ];
    let mut table = Table::new("Throughput of requests beside a scrub", &heads);
    for ((name, _, count, kib, depth), of_load) in loads.iter().zip(measured.chunks(RATES.len())) {
        let [(alone, _), (slow, _), (fast, scrubbed)] = of_load else { continue };
        let share = |of: &Measurement| format!("{:.1} %", 100.0 * of.mb_s() / alone.mb_s());
        table.rows.push(vec![
            name.to_string(),
            format!("{:.0}", alone.mb_s()),
            format!("{:.0}", slow.mb_s()),
            share(slow),
            format!("{:.0}", fast.mb_s()),
            share(fast),
            format!("{scrubbed:.0}"),
        ]);
        for (rate, (measured, _)) in
            ["no scrub", "scrub at 16 MiB/s", "scrub without limit"].iter().zip(of_load)
        {
            figure.rows.push(Row {
                system: format!("{name}, {rate}"),
                zones: *count,
                request_kib: *kib,
                depth: *depth,
                mb_s: measured.mb_s(),
                p50_us: measured.quantile_us(0.5),
                p99_us: measured.quantile_us(0.99),
                ..Row::default()
            });
        }
    }
    figure.tables.push(table);
    Ok(figure)
}

/// Runs jobs beside a scrub; returns their measurement, and MB/s of the scrub.
fn beside(
    kind: RequestKind,
    count: u32,
    kib: u64,
    depth: u32,
    rate_mib: Option<u64>,
) -> anyhow::Result<(Measurement, f64)> {
    let bed = TestBed::new(&Setup::zn540(System::Zoneraid))?;
    bed.fill(0..FULL)?;
    let scrubbed = rate_mib.map(|rate| bed.scrub(FULL / 2..FULL, rate << 20));
    let job = |number: u32| match kind {
        RequestKind::Read => {
            let further = (0..FULL / 2).map(engine::zone::ZoneIndex).collect();
            Job { further, ..Job::new(kind, 0, kib, depth) }
        }
        _ => Job::new(kind, FULL + number, kib, depth),
    };
    let jobs: Vec<Job> = (0..count).map(job).collect();
    let begin_ns = bed.clock.now_ns();
    let parts = load::run(&bed.runtime, &bed.array, &bed.clock, &jobs, Window::ms(100, 600))?;
    let seconds = (bed.clock.now_ns() - begin_ns) as f64 / 1e9;
    let scrub_mb_s = scrubbed.map_or(0.0, |bytes| bytes.get() as f64 / 1e6 / seconds);
    Ok((Measurement::sum(&parts), scrub_mb_s))
}
