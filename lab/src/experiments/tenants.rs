//! Fairness between tenants, and the latency of a quiet tenant beside loud ones.

use super::{Effort, Experiment};
use crate::{
    figure::{Figure, Plot, PromiseResult, Row, Table, Tenancy},
    tenants::{DeviceBelow, Tenants, Worker, WorkerRequests, WorkerResult, in_all},
    work,
};
use engine::{
    buf::BLOCK,
    qos::{Qos, Rates},
    vzone::Spec,
};

pub const TENANTS: Experiment = Experiment {
    name: "tenants",
    title: "Equal tenants of a drive, an array and a degraded array; and a quiet one beside loud ones",
    run: tenants,
};

const METHOD: &str = "PM1731a, one or five of them as RAID-5 with chunks of 64 KiB (policy zrwa); zones of a \
namespace are 16 zones of the drive, or four of the array, each of which is eight of each drive. Equal tenants: \
each has as many active zones for certain, and writes two of its zones, 64 KiB at a time, four requests deep; \
Jain's index of their throughput, and the largest distance of one from an equal share. A quiet tenant: 4 KiB random \
reads one at a time, its p99.9 beside the others, each with four writers, over its p99.9 alone. Goals: 0.98, 5 %, \
1.5. Promises: one of four tenants has a floor of 40 % of all that they write without, and writes four zones as the \
others do, 128 or 256 KiB at a time, which is half a stripe of the array or a whole one, four requests deep; it is \
idle from 1 to 1.3 s, and is back when 10 ms have the floor. Or it is of the class of latency, with 1.5 times its \
p99.9 alone as the target, writes with 3 times too, and asks for 4 KiB at a time. By how small steps \
others get more, and that units are stripes on an array, was chosen with these figures in sight.";

/// Window of the measurement in ms: caches are full at its start.
const SETTLED_MS: u64 = 450;
const END_MS: u64 = 750;

/// Active zones of a drive.
const MAX_ACTIVE: u32 = 384;

/// A device with fewer active zones, since it aggregates eight zones of its drives, gives each tenant fewer.
fn specs(below: DeviceBelow, count: u32) -> Vec<Spec> {
    let (essential, floors) = if below == DeviceBelow::Drive { (2, 160) } else { (1, 32) };
    let zones = (floors / essential / count).min(16);
    let spec = |number| Spec {
        name: format!("tenant{number}"),
        zones,
        max_active: zones,
        max_open: zones,
        essential,
        weight: 1,
        qos: Qos::default(),
    };
    (0..count).map(spec).collect()
}

/// Jain's index, and the largest relative deviation from an equal share.
fn fairness(shares: &[f64]) -> (f64, f64) {
    let (count, sum) = (shares.len() as f64, shares.iter().sum::<f64>());
    let jain = sum * sum / (count * shares.iter().map(|share| share * share).sum::<f64>());
    let error = shares.iter().map(|share| (share * count / sum - 1.0).abs()).fold(0.0, f64::max);
    (jain, error)
}

fn total(work: &[WorkerResult]) -> f64 {
    work.iter().map(|work| work.mb_s(SETTLED_MS, END_MS)).sum()
}

/// MiB that the quiet tenant reads from, in each of two zones.
const QUIET_MIB: u64 = 256;

/// The p99.9 of the quiet tenant, and the throughput of the others in MB/s.
fn quiet(below: DeviceBelow, count: u32, loud: bool, still: bool) -> anyhow::Result<(f64, f64)> {
    let tenants = Tenants::new(below, MAX_ACTIVE, &specs(below, count))?;
    tenants.fill(0, &[0, 1], QUIET_MIB)?;
    let mut workers = vec![Worker::new(0, vec![0, 1], WorkerRequests::Read(QUIET_MIB), 4, (!still) as u32)];
    if loud {
        let writer =
            |tenant: u32, zone| Worker::new(tenant as usize, vec![zone], WorkerRequests::Write, 128, 4);
        workers.extend((1..count).flat_map(|tenant| (0..4).map(move |zone| writer(tenant, zone))));
    }
    let work = tenants.run(&workers, END_MS)?;
    Ok((work[0].quantile_us(0.999, SETTLED_MS), total(&work[1..])))
}

/// Times in ms: start of the measurement of a promise, which takes effect gradually; its end with a floor, and the idle
/// time of the tenant with the floor; its end with a latency target, for which the others are throttled, and without.
const PROMISED_MS: u64 = 600;
const FLOORED_MS: u64 = 1450;
const IDLE_MS: (u64, u64) = (1000, 1300);
const KEPT_MS: u64 = 4000;
const QUIET_MS: u64 = 1200;

/// Four tenants: the first has a promise, the others write as much as they can.
const FOUR: u32 = 4;

fn hungry(tenant: u32, kib: u64, idle_ms: (u64, u64)) -> impl Iterator<Item = Worker> {
    let writer = move |zone| Worker::new(tenant as usize, vec![zone], WorkerRequests::Write, kib, 4);
    (0..4).map(move |zone| Worker { idle_ms, ..writer(zone) })
}

fn promised_to_first(below: DeviceBelow, qos: Qos) -> anyhow::Result<Tenants> {
    let mut specs = specs(below, FOUR);
    specs[0].qos = qos;
    Tenants::new(below, MAX_ACTIVE, &specs)
}

/// Effects of a floor of `mb_s` MB/s, 0 for none, of one of four otherwise equal tenants: its throughput, and that of
/// the others; that of the others while it is idle; the ms until it has its floor again.
fn floor(below: DeviceBelow, kib: u64, mb_s: f64) -> anyhow::Result<[f64; 4]> {
    let floors = Rates { requests: 0, blocks: (mb_s * 1e6 / BLOCK as f64) as u32 };
    let tenants = promised_to_first(below, Qos { floors, ..Qos::default() })?;
    let all = |tenant| hungry(tenant, kib, if tenant == 0 { IDLE_MS } else { (0, 0) });
    let workers: Vec<Worker> = (0..FOUR).flat_map(all).collect();
    let work = tenants.run(&workers, FLOORED_MS)?;
    let (own, others) = work.split_at(4);
    let sum = |work: &[WorkerResult], from, to| work.iter().map(|work| work.mb_s(from, to)).sum::<f64>();
    let (idle, back) = IDLE_MS;
    let returned = (back..FLOORED_MS).step_by(10).position(|ms| sum(own, ms, ms + 10) >= mb_s);
    let returned = returned.map_or(f64::NAN, |looks| 10.0 * (looks + 1) as f64);
    Ok([sum(own, PROMISED_MS, idle), sum(others, PROMISED_MS, idle), sum(others, idle + 100, back), returned])
}

/// The p99.9 of a tenant of the latency class with requests of 4 KiB, and the throughput of three others that write
/// `beside` KiB at a time, if they do.
fn latency(
    below: DeviceBelow,
    does: WorkerRequests,
    latency_us: u32,
    beside: Option<u64>,
) -> anyhow::Result<[f64; 2]> {
    let tenants = promised_to_first(below, Qos { latency_us, ..Qos::default() })?;
    if does != WorkerRequests::Write {
        tenants.fill(0, &[0, 1], QUIET_MIB)?;
    }
    let mut workers = vec![Worker::new(0, vec![0, 1], does, 4, 1)];
    let others = |kib| (1..FOUR).flat_map(move |tenant| hungry(tenant, kib, (0, 0)));
    workers.extend(beside.into_iter().flat_map(others));
    // Throttling adjusts gradually, in both directions: that takes its time.
    let end_ms = if latency_us > 0 { KEPT_MS } else { QUIET_MS };
    let work = tenants.run(&workers, end_ms)?;
    let others = work[1..].iter().map(|work| work.mb_s(PROMISED_MS, end_ms)).sum();
    Ok([work[0].quantile_us(0.999, PROMISED_MS), others])
}

/// A floor, or latency targets of a tenant with this load, beside others that write requests of this many KiB. Each
/// target has the name of its row, and the share of the total throughput, or the factor to the p99.9 alone.
type Promise = (Option<WorkerRequests>, u64, &'static [(&'static str, f64)]);

const PROMISES: [Promise; 5] = [
    (None, 128, &[("floor", 0.4)]),
    (None, 256, &[("floor", 0.4)]),
    (Some(WorkerRequests::Write), 128, &[("writes, 1.5", 1.5), ("writes, 3", 3.0)]),
    (Some(WorkerRequests::Write), 256, &[("writes, 1.5", 1.5)]),
    // The throttle gives up on reads, for any target.
    (Some(WorkerRequests::Read(QUIET_MIB)), 128, &[("reads, 1.5", 1.5)]),
];

/// Results of each of these promises.
fn promise(below: DeviceBelow, (does, kib, parts): Promise) -> anyhow::Result<Vec<PromiseResult>> {
    let Some(does) = does else {
        let [without, others_without, idle, _] = floor(below, kib, 0.0)?;
        let beside = |(_, part): &(&str, f64)| {
            let promised = part * (without + others_without);
            let [got, others, idle_beside, back_ms] = floor(below, kib, promised)?;
            let (others_idle, back_ms) = (Some(idle_beside / idle), Some(back_ms));
            Ok(PromiseResult { promised, without, got, others_without, others, others_idle, back_ms })
        };
        return parts.iter().map(beside).collect();
    };
    let [alone, _] = latency(below, does, 0, None)?;
    let [without, others_without] = latency(below, does, 0, Some(kib))?;
    let beside = |(_, times): &(&str, f64)| {
        let promised = (alone * times).ceil();
        let [got, others] = latency(below, does, promised as u32, Some(kib))?;
        Ok(PromiseResult { promised, without, got, others_without, others, others_idle: None, back_ms: None })
    };
    parts.iter().map(beside).collect()
}

/// Rows and a table of the promises to one tenant beside three that write as much as they can.
fn promises(this: &Experiment, systems: &[DeviceBelow]) -> anyhow::Result<(Vec<Row>, Table)> {
    let points = systems.iter().flat_map(|below| PROMISES.map(|promise| (*below, promise)));
    // A missing drive does not change the cost of a latency target.
    let points: Vec<_> =
        points.filter(|(below, (does, ..))| *below != DeviceBelow::Degraded || does.is_none()).collect();
    // The longest first, so that none is left for the end.
    let longest: Vec<_> = points.iter().rev().collect();
    let found = work::each(this.name, &longest, |(below, made)| promise(*below, *made))?;
    let found = found.into_iter().rev();
    let heads = [
        "system",
        "promised",
        "KiB",
        "MB/s or µs",
        "without",
        "with",
        "others' MB/s without",
        "with",
        "all with over without",
        "others while it is idle, over without a floor",
        "back after ms",
    ];
    let mut table = Table::new("A floor, and the class of latency, beside three hungry ones", &heads);
    let mut rows = Vec::new();
    let found = points.iter().zip(found).flat_map(|((below, (does, kib, parts)), found)| {
        parts.iter().zip(found).map(move |((load, _), found)| (below, load, does, *kib, found))
    });
    for (below, load, does, request_kib, found) in found {
        let own = |mb_s: f64| if does.is_none() { mb_s } else { 0.0 };
        let all = (own(found.got) + found.others) / (own(found.without) + found.others_without);
        table.rows.push(vec![
            below.name().into(),
            load.to_string(),
            request_kib.to_string(),
            format!("{:.0}", found.promised),
            format!("{:.0}", found.without),
            format!("{:.0}", found.got),
            format!("{:.0}", found.others_without),
            format!("{:.0}", found.others),
            format!("{all:.2}"),
            found.others_idle.map_or(String::new(), |part| format!("{part:.2}")),
            found.back_ms.map_or(String::new(), |ms| format!("{ms:.0}")),
        ]);
        let mb_s = own(found.got) + found.others;
        let (system, host) = (below.name().into(), "free".into());
        let row = Row { seeds: 1, system, host, request_kib, depth: 4, mb_s, ..Row::default() };
        rows.push(Row { load: Some(load), promise: Some(found), ..row });
    }
    Ok((rows, table))
}

/// The runs of a row.
#[derive(Clone, Copy, Debug)]
enum Play {
    /// All tenants write as much as they can.
    Equals,
    /// The quiet tenant alone, beside loud ones, and the loud ones without it.
    Alone,
    Beside,
    Without,
}

impl Play {
    /// The longest first, so that none is left for the end.
    const ALL: [Play; 4] = [Play::Beside, Play::Without, Play::Equals, Play::Alone];

    /// The throughput of each tenant and then the drift of all, or the p99.9 of the quiet one and the others'
    /// throughput.
    fn run(self, below: DeviceBelow, count: u32) -> anyhow::Result<Vec<f64>> {
        let pair = |(us, mb_s)| vec![us, mb_s];
        match self {
            Play::Equals => equals(below, count),
            Play::Alone => quiet(below, count, false, false).map(pair),
            Play::Beside => quiet(below, count, true, false).map(pair),
            Play::Without => quiet(below, count, true, true).map(pair),
        }
    }
}

/// The throughput of each of equal tenants, and the drift of their sum within the window.
fn equals(below: DeviceBelow, count: u32) -> anyhow::Result<Vec<f64>> {
    let tenants = Tenants::new(below, MAX_ACTIVE, &specs(below, count))?;
    let writer = |tenant: u32, zone| Worker::new(tenant as usize, vec![zone], WorkerRequests::Write, 64, 4);
    let workers: Vec<Worker> =
        (0..count).flat_map(|tenant| (0..2).map(move |zone| writer(tenant, zone))).collect();
    let work = tenants.run(&workers, END_MS)?;
    let drift = in_all(&work, SETTLED_MS, END_MS).1;
    Ok(work.chunks(2).map(total).chain([drift]).collect())
}

/// A row from the results of its runs, in the order of [`Play::ALL`].
fn row((below, count): (DeviceBelow, u32), found: &[Vec<f64>]) -> Option<Row> {
    let [beside, without, shares, alone] = found else { return None };
    let (drift, shares) = shares.split_last()?;
    let (jain, share_error) = fairness(shares);
    Some(Row {
        seeds: 1,
        drift: *drift,
        system: below.name().into(),
        host: "free".into(),
        zones: 2 * count,
        request_kib: 64,
        depth: 4,
        mb_s: shares.iter().sum(),
        tenancy: Some(Tenancy {
            tenants: count,
            jain,
            share_error,
            p99_9_alone_us: alone[0],
            p99_9_beside_us: beside[0],
            p99_9_ratio: beside[0] / alone[0],
            loud_share: beside[1] / without[1],
        }),
        ..Row::default()
    })
}

fn tenants(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let counts: &[u32] = if effort == Effort::Quick { &[4] } else { &[2, 4, 8] };
    let systems = [DeviceBelow::Drive, DeviceBelow::Array, DeviceBelow::Degraded];
    let points = systems.iter().flat_map(|below| counts.iter().map(|count| (*below, *count)));
    // Degraded arrays behave the same.
    let points: Vec<(DeviceBelow, u32)> =
        points.filter(|(below, count)| *below != DeviceBelow::Degraded || *count == 4).collect();
    let mut figure = this.figure(METHOD);
    let plays: Vec<_> = points.iter().rev().flat_map(|point| Play::ALL.map(|play| (*point, play))).collect();
    let found = work::each(this.name, &plays, |((below, count), play)| play.run(*below, *count))?;
    let found = found.chunks(Play::ALL.len()).rev();
    figure.rows = points.iter().zip(found).filter_map(|(point, found)| row(*point, found)).collect();
    let heads = [
        "system",
        "tenants",
        "MB/s",
        "Jain",
        "share error",
        "p99.9 alone µs",
        "beside µs",
        "ratio",
        "throughput of the loud, with the quiet one over without",
    ];
    let mut table = Table::new("Fairness, and the quiet one", &heads);
    for row in &figure.rows {
        let Some(found) = &row.tenancy else { continue };
        table.rows.push(vec![
            row.system.clone(),
            found.tenants.to_string(),
            format!("{:.0}", row.mb_s),
            format!("{:.4}", found.jain),
            format!("{:.3}", found.share_error),
            format!("{:.0}", found.p99_9_alone_us),
            format!("{:.0}", found.p99_9_beside_us),
            format!("{:.2}", found.p99_9_ratio),
            format!("{:.2}", found.loud_share),
        ]);
    }
    let plot = |title: &str, unit: &str, of: fn(&Tenancy) -> f64, goal: f64| {
        let value = |row: &Row| {
            let found = row.tenancy.as_ref()?;
            Some((row.system.clone(), found.tenants.into(), of(found)))
        };
        let values: Vec<(String, u64, f64)> = figure.rows.iter().filter_map(value).collect();
        Plot::through(title, "tenants", unit, &values).limit(format!("goal: {goal}"), goal)
    };
    figure.plots = vec![
        plot("Distance from an equal share", "%", |found| 100.0 * found.share_error, 5.0),
        plot("p99.9 of the quiet one, beside loud ones to alone", "×", |found| found.p99_9_ratio, 1.5),
    ];
    let (rows, promised) = promises(this, if effort == Effort::Quick { &systems[..1] } else { &systems })?;
    figure.rows.extend(rows);
    figure.tables = vec![table, promised];
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_fairness_is_one_only_for_equal_shares() {
        assert_eq!(fairness(&[3.0, 3.0, 3.0]), (1.0, 0.0));
        let (jain, error) = fairness(&[1.0, 3.0]);
        assert!((jain - 0.8).abs() < 1e-9 && (error - 0.5).abs() < 1e-9);
    }
}
