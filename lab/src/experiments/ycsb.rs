//! YCSB on namespaces of one drive (eZNS Fig. 34 to 37), with a model of RocksDB.

use super::{
    Effort, Experiment,
    ezns::{allowing, spec},
};
use crate::{
    apps::ycsb::{self, ClientResult, Options, ReadStatistics, Workload},
    figure::{Claim, ClaimKind, Figure, Operations, Plot, Row, Table},
    static_zones::StaticZones,
    tenants::{Tenants, WorkerResult, in_all},
    work,
};
use emu::{
    clock::Clock,
    ssd::{Model, NoMedia, Ssd, TimedDrive},
    timing::Timing,
};
use engine::{device::ZonedDevice, runtime::Runtime, vzone::Spec};
use std::{cell::RefCell, rc::Rc};

pub const YCSB: Experiment =
    Experiment { name: "ycsb", title: "YCSB on namespaces, by a stand-in (eZNS Fig. 34 to 37)", run: ycsb };

const METHOD: &str = "A stand-in for RocksDB on ZenFS (lab/src/apps/ycsb.rs) in each of four namespaces of a \
PM1731a, with YCSB's workloads A, B, C and F, or of six, with A to F. Everything is a 32nd of what it is there: \
zones, what an erase takes, memtables of 64 MiB, levels of 256 MiB and ten times more each, a block cache of 8 MiB, \
and 500 million records of 1 KiB, of which a level has at most 256 MiB on the drive: a place stands for several. It \
begins with two files in the first level, after three seconds in which nothing is written. Then flushes and \
compactions go on as RocksDB's defaults have it: one of each at a time, no Bloom filters, so that a get looks into \
each sorted run until it finds its record; blocks of 4 KiB that begin anywhere and so are read with 8; compactions \
read 128 KiB at a time, as Linux reads ahead, and write 1 MiB. From the paper: records, namespaces, v-zones of 16 \
zones, active ones (16; 11 of six), and static zones, four zones wide, 16 KiB in turn, with no scheduler. Guesses: \
eight clients for each namespace, which for six is what the server has hardware threads; 5 µs of a processor for an \
operation; no page cache, whatever memory the server has. The window of reads is not the paper's: there is one for \
each group, which shrinks with each read that is late, here one for all, which follows averages; that was chosen \
after these figures had been seen (LAB.md has them by the paper's rule). Latencies are those of a get or scan, all \
its reads one after the other.";

const TAILS: &str = "A read waits for a die that programs, for up to 780 µs that the model never interrupts, on \
v-zones as on static ones. Windows of reads cost little: if they never shrank it would be between 1.0 and 1.4; a \
window for each group, or each v-zone, instead of one for all changes little. The paper's drive may suspend \
programs, and its static zones may have been far slower: it gives no times.";

const SPEEDS: &str = "It follows from the latency of reads, for which clients wait most of the time.";

/// The kind of zones that a namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zoning {
    /// Static zones: number of the drive's zones written at the same time, and blocks that each gets in turn.
    Static(u32, u32),
    /// V-zones of this many essential zones, and as many spare ones.
    Elastic(u32),
}

impl Zoning {
    pub const STATIC: Zoning = Zoning::Static(4, 4);
    pub const ELASTIC: Zoning = Zoning::Elastic(2);

    fn name(self) -> String {
        match self {
            Zoning::STATIC => "static zone".into(),
            Zoning::Static(width, unit) => format!("static zone, {width} of {} KiB", unit * 4),
            Zoning::Elastic(_) => "v-zone".into(),
        }
    }
}

/// Namespaces with a workload each.
#[derive(Clone, Copy, Debug)]
pub(super) struct YcsbCase {
    pub workloads: &'static [Workload],
    /// Of these only the first ones have a workload.
    pub namespaces: u32,
    pub zoning: Zoning,
    pub threads: u32,
    pub filters: bool,
    /// Warm-up of the clients, and measured time.
    pub warm_ms: u64,
    pub ms: u64,
}

/// Divisor of the sizes of the paper and of RocksDB.
const SCALE: u64 = 32;

const FOUR: &[Workload] = &[Workload::A, Workload::B, Workload::C, Workload::F];
const SIX: &[Workload] = &Workload::ALL;

/// Hardware threads of the paper's server (two E5-2680v3), over six namespaces.
pub(super) const THREADS: u32 = 8;
/// 500 million records.
const RECORDS: u64 = 500_000_000 / SCALE;
/// A level has at most 256 MiB on the device.
const MOST_BLOCKS: u64 = 65_536;

impl YcsbCase {
    fn run(&self, seed: u64) -> anyhow::Result<Vec<ClientResult>> {
        let options: Vec<Options> = self.workloads.iter().map(|workload| self.options(*workload)).collect();
        let (clock, runtime) = (Clock::new(), Runtime::new());
        let capacity = Model::pm1731a().geometry.zone_capacity_blocks / SCALE;
        // A v-zone holds a little less than its 16 zones.
        let zones = options[0].zones_in_all(15 * capacity);
        let tenants = self.namespaces;
        let mut geometry = Model::pm1731a().scaled(20 * zones * tenants, capacity).geometry;
        let active = if tenants > 4 { 11 } else { 16 };
        let most = match self.zoning {
            Zoning::Elastic(essential) => allowing((2 * essential * active * tenants).min(256)),
            Zoning::Static(..) => allowing(256),
        };
        (geometry.max_open, geometry.max_active) = (most, most);
        let mut timing = Timing::pm1731a();
        timing.reset.erase_us /= SCALE as f64;
        let ssd = Rc::new(RefCell::new(Ssd::new(geometry.clone(), Box::new(NoMedia::new(&geometry)))));
        let drive: Rc<dyn ZonedDevice> = Rc::new(TimedDrive::new(ssd, &timing, &clock, Some(seed)));
        // The namespaces have to outlive the run.
        let mut elastic = None;
        let devices: Vec<Rc<dyn ZonedDevice>> = match self.zoning {
            Zoning::Static(width, unit) => {
                let zones = |tenant| {
                    StaticZones::new(&runtime, drive.clone(), (tenant * zones, zones), (width, unit))
                };
                (0..tenants).map(|tenant| Rc::new(zones(tenant)) as _).collect()
            }
            Zoning::Elastic(essential) => {
                let spec = |tenant: u32| Spec { zones, ..spec(&tenant.to_string(), essential, active) };
                let specs: Vec<Spec> = (0..tenants).map(spec).collect();
                let made = Tenants::over(drive, clock.clone(), runtime.clone(), &specs)?;
                elastic.insert(made).list.iter().map(|one| Rc::new(one.clone()) as _).collect()
            }
        };
        let trees: Vec<_> = devices.into_iter().zip(options).collect();
        ycsb::run((&clock, &runtime), &trees, (self.warm_ms, self.ms), &[])
    }

    fn options(&self, workload: Workload) -> Options {
        Options {
            workload,
            scale: SCALE,
            records: RECORDS,
            most_blocks: MOST_BLOCKS,
            threads: self.threads,
            filters: self.filters,
        }
    }

    /// Its name in rows.
    fn name(&self) -> String {
        format!(
            "{}, {} namespace{}",
            self.zoning.name(),
            self.namespaces,
            if self.namespaces == 1 { "" } else { "s" }
        )
    }
}

/// A row of a workload's runs with several seeds, in windows of `ms` ms: latencies are over all runs.
pub(super) fn row(workload: Workload, runs: &[&ClientResult], ms: u64) -> Row {
    let single = |ran: &&ClientResult| {
        let (mb_s, drift) = in_all(std::slice::from_ref(&ran.operations), 0, ms);
        Row { host: "free".into(), mb_s, drift, load: Some(workload.name()), ..Row::default() }
    };
    let mean = Row::mean(runs.iter().map(single).collect()).unwrap_or_default();
    let mut reads = WorkerResult::default();
    let mut found = ReadStatistics::default();
    for ran in runs {
        reads.completed.extend(&ran.reads.completed);
        found = found.and(ran.found);
    }
    let [p50_us, p95_us, p99_us, p99_9_us, p99_99_us] =
        [0.5, 0.95, 0.99, 0.999, 0.9999].map(|share| match reads.completed.is_empty() {
            // The workload has no reads.
            true => 0.0,
            false => reads.quantile_us(share, 0),
        });
    let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
    let operations = Operations {
        operations_s: mean.mb_s * 1e6 / ycsb::RECORD_BYTES as f64,
        p99_9_us,
        p99_99_us,
        in_memory: share(found.in_memory, found.gets),
        cached: share(found.cached, found.blocks),
    };
    Row { p50_us, p95_us, p99_us, operations: Some(operations), ..mean }
}

/// Rows of applications as a table.
pub(super) fn operations(title: &str, rows: &[Row]) -> Table {
    let header = [
        "system",
        "workload",
        "clients",
        "operations/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "p99.99 µs",
        "in memory %",
        "cached %",
    ];
    let mut table = Table::new(title, &header);
    let us = |us: f64| if us == 0.0 { String::new() } else { format!("{us:.0}") };
    for row in rows {
        let Some(found) = &row.operations else { continue };
        let set = row.dataset.as_ref().map(|set| format!(", {set}")).unwrap_or_default();
        table.rows.push(vec![
            format!("{}{set}", row.system),
            row.load.unwrap_or_default().into(),
            row.depth.to_string(),
            format!("{:.0}", found.operations_s),
            us(row.p50_us),
            us(row.p99_us),
            us(found.p99_9_us),
            us(found.p99_99_us),
            format!("{:.0}", 100.0 * found.in_memory),
            format!("{:.0}", 100.0 * found.cached),
        ]);
    }
    table
}

/// Runs each case with `seeds` seeds and gives a row for each of its workloads.
pub(super) fn rows(what: &str, cases: &[YcsbCase], seeds: u64) -> anyhow::Result<Vec<Vec<Row>>> {
    let points: Vec<(&YcsbCase, u64)> =
        cases.iter().flat_map(|case| (1..=seeds).map(move |seed| (case, seed))).collect();
    let found = work::each(what, &points, |(case, seed)| case.run(*seed))?;
    let rows = |(case, runs): (&YcsbCase, &[Vec<ClientResult>])| {
        let of = |(number, workload): (usize, &Workload)| {
            let runs: Vec<&ClientResult> = runs.iter().map(|run| &run[number]).collect();
            let row = row(*workload, &runs, case.ms);
            Row { system: case.name(), request_kib: 8, depth: case.threads, ..row }
        };
        case.workloads.iter().enumerate().map(of).collect()
    };
    Ok(cases.iter().zip(found.chunks(seeds as usize)).map(rows).collect())
}

/// Ratios of v-zones to static zones, by workload.
fn ratios(pair: &[Vec<Row>], of: fn(&Operations) -> f64) -> Vec<(&'static str, f64)> {
    let value = |row: &Row| row.operations.as_ref().map_or(f64::NAN, of);
    let ratio =
        |(fixed, elastic): (&Row, &Row)| (fixed.load.unwrap_or_default(), value(elastic) / value(fixed));
    pair[0].iter().zip(&pair[1]).map(ratio).collect()
}

fn plots(pair: &[Vec<Row>]) -> [Plot; 2] {
    let places: Vec<&str> = pair[0].iter().filter_map(|row| row.load).collect();
    let plot = |title: &str, unit: &str, of: fn(&Operations) -> f64| {
        let line = |rows: &Vec<Row>| {
            let values = rows.iter().filter_map(|row| row.operations.as_ref()).map(of).collect();
            (rows[0].system.clone(), values)
        };
        Plot::named(title, unit, &places, pair.iter().map(line).collect())
    };
    [
        plot("Reads, 99.9th percentile", "µs", |found| found.p99_9_us),
        plot("Throughput", "operations/s", |found| found.operations_s),
    ]
}

fn claims(pair: &[Vec<Row>], tails: &[(&str, f64)], speeds: &[(&str, f64)], fig: [u32; 2]) -> Vec<Claim> {
    let (late, fast) = (ratios(pair, |found| found.p99_9_us), ratios(pair, |found| found.operations_s));
    let claim = |of: &[(&str, f64)], (workload, paper): &(&str, f64), what: String, why: &str| {
        let ours = of.iter().find(|(name, _)| name == workload).map_or(f64::NAN, |found| found.1);
        Claim::factor(format!("{what} of YCSB {workload}, v-zones to static zones"), *paper, ours, why)
            .is(ClaimKind::Guess)
    };
    let tail = |one| claim(&late, one, format!("Fig. {}: p99.9 of reads", fig[0]), TAILS);
    let speed = |one| claim(&fast, one, format!("Fig. {}: throughput", fig[1]), SPEEDS);
    tails.iter().map(tail).chain(speeds.iter().map(speed)).collect()
}

fn ycsb(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (ms, seeds) = if effort == Effort::Quick { (100, 1) } else { (1500, 2) };
    let case = YcsbCase {
        workloads: FOUR,
        namespaces: 4,
        zoning: Zoning::STATIC,
        threads: THREADS,
        filters: false,
        warm_ms: 1000,
        ms,
    };
    let both = |case: YcsbCase| [Zoning::STATIC, Zoning::ELASTIC].map(|zoning| YcsbCase { zoning, ..case });
    let pairs = rows(
        this.name,
        &[both(case), both(YcsbCase { workloads: SIX, namespaces: 6, ..case })].concat(),
        seeds,
    )?;
    let (four, six) = pairs.split_at(2);
    let mut figure = this.figure(METHOD);
    figure.claims = claims(four, &[("B", 0.209), ("C", 0.197), ("F", 0.232)], &[("A", 1.109)], [34, 35]);
    let speeds = [("A", 1.086), ("D", 1.048), ("E", 0.99)];
    figure.claims.extend(claims(six, &[("D", 0.231), ("E", 0.557)], &speeds, [36, 37]));
    let of = |found: &[(&str, f64)], names: &[&str]| {
        let own = found.iter().filter(|(name, _)| names.contains(name));
        own.map(|(_, ratio)| *ratio).fold(f64::INFINITY, f64::min)
    };
    let best = of(&ratios(six, |found| found.p99_9_us), &["B", "C", "F"]);
    let what = "Fig. 36: p99.9 of reads of YCSB B, C, F, v-zones to static zones, at best";
    figure.claims.push(Claim::factor(what, 0.224, best, TAILS).is(ClaimKind::Guess));
    let latest = of(&ratios(six, |found| found.p99_99_us), &["E"]);
    let what = "Fig. 36: p99.99 of reads of YCSB E, v-zones to static zones";
    figure.claims.push(Claim::at_least(what, 1.0, latest, "").is(ClaimKind::Guess));
    figure.plots.extend(plots(four).into_iter().chain(plots(six)));
    figure.rows = pairs.concat();
    figure.tables.push(operations("Operations, and latencies of reads", &figure.rows));
    if effort == Effort::Full {
        let others = [(2, false), (32, false), (THREADS, true)];
        let cases =
            others.map(|(threads, filters)| both(YcsbCase { threads, filters, ms: ms / 2, ..case })).concat();
        let others = rows(this.name, &cases, 1)?;
        figure
            .tables
            .push(operations("Other guesses, with one seed; last with Bloom filters", &others.concat()));
    }
    Ok(figure)
}
