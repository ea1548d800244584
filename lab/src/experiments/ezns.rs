//! eZNS (ACM TOS 20, 2024): ballooning and the scheduler on one drive, beside the paper's figures.

use super::{Effort, Experiment};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Row, Table},
    load::{self, Job, Window},
    static_zones::StaticZones,
    tenants::{DeviceBelow, Tenants, Worker, WorkerRequests, WorkerResult, drive, drive_of, fill, in_all},
    work,
};
use emu::{clock::Clock, timing::Timing};
use engine::{buf::BLOCK, device::ZonedDevice, qos::Qos, runtime::Runtime, vzone::Spec};
use std::rc::Rc;

pub const EZNS: Experiment =
    Experiment { name: "ezns", title: "eZNS Fig. 26 to 29, 40: wide, lent and fair zones", run: ezns };

const METHOD: &str = "One PM1731a as it is calibrated for eZNS §3, v-zones of 16 zones, everything else as in the \
layer. It has one window of reads for all v-zones, and none for a lone v-zone, where the paper has one for each \
group: that was chosen by Fig. 29 (a) and 40. The drive allows as many active zones as the paper gives to \
namespaces, and those that the layer keeps for itself. Fig. 26: one namespace with 32 essential and 32 spare zones; \
a static zone is one whose four zones are all essential. Fig. 27, 28: four namespaces of which three stop from 30 \
to 80 s of 100. Fig. 29 (b) is measured with write admission control and without it, as in the paper; the window of \
reads cannot be switched off, so that of (a) and (c) only what it reaches is compared; for (a) the drive has eight dies, so that all zones lie on the same. Fig. \
40: one zone of 16, beside the same 16 zones without the layer.";

const ALIKE: &str =
    "a reader may have as many requests in flight as the others, as long as one of them is late";
const CACHE: &str =
    "what a writer gains from the others' rate goes with the share of the write cache that they held";
const NOT_SWITCHED: &str = "placement of dies is not forced here: zones of both lie on dies in turn";
const DRIVE: &str = "what the drive writes in all, as it is calibrated: without a scheduler the paper's is 0.94 and 0.80 of it";

/// Active zones of a drive that leave `wanted` to namespaces, besides those of the journal and the reserved ones.
pub(super) fn allowing(wanted: u32) -> u32 {
    let kept = |limit: u32| (limit / 16).clamp(1, 16);
    (wanted..).map(|limit| (limit, limit - kept(limit))).find(|(_, left)| *left >= wanted).map_or(0, |l| l.0)
        + 2
}

pub(super) fn spec(name: &str, essential: u32, max_active: u32) -> Spec {
    let (name, zones, qos) = (name.into(), max_active, Qos::default());
    Spec { name, zones, max_active, max_open: max_active, essential, weight: 1, qos }
}

/// Window of the measurement of Fig. 26, in ms.
const FROM_MS: u64 = 1000;
const TO_MS: u64 = 1600;

/// Fig. 26: `count` writers of 512 KiB, one request each, in zones of their own.
fn writers(count: u32, essential: u32, most: u32) -> anyhow::Result<(f64, f64)> {
    let tenants = Tenants::new(DeviceBelow::Drive, allowing(most), &[spec("one", essential, 16)])?;
    let workers: Vec<Worker> =
        (0..count).map(|zone| Worker::new(0, vec![zone], WorkerRequests::Write, 512, 1)).collect();
    let work = tenants.run(&workers, TO_MS)?;
    Ok(in_all(&work, FROM_MS, TO_MS))
}

/// A row with throughput only.
fn row(system: &str, zones: u32, kib: u64, depth: u32, mb_s: f64) -> Row {
    Row { system: system.into(), host: "free".into(), zones, request_kib: kib, depth, mb_s, ..Row::default() }
}

/// A row of writes of 512 KiB, with the drift within the window.
fn steady(system: &str, zones: u32, depth: u32, (mb_s, drift): (f64, f64)) -> Row {
    Row { seeds: 1, drift, ..row(system, zones, 512, depth, mb_s) }
}

fn overdrive(figure: &mut Figure) -> anyhow::Result<()> {
    let counts = [4, 8, 16];
    let points: Vec<(u32, u32)> = counts.iter().flat_map(|count| [(*count, 2), (*count, 4)]).collect();
    let found = work::each("ezns, Fig. 26", &points, |(count, essential)| writers(*count, *essential, 64))?;
    for ((count, essential), found) in points.iter().zip(&found) {
        let system = if *essential == 2 { "v-zone" } else { "static zone" };
        figure.rows.push(steady(system, *count, 1, *found));
    }
    for ((count, paper), pair) in counts.iter().zip([2.0, 1.0, 1.0]).zip(found.chunks(2)) {
        let what = format!("Fig. 26: v-zone to static zone, {count} writers");
        figure.claims.push(Claim::factor(what, paper, pair[0].0 / pair[1].0, "").is(ClaimKind::Construction));
    }
    Ok(())
}

/// Seconds of Fig. 27: its end, when three of four stop, and when they resume.
const SECONDS: u64 = 100;
const STOP_S: u64 = 30;
const GO_ON_S: u64 = 80;

/// Fig. 27 and 28: throughput and spare zones of each namespace, by second.
fn lending(figure: &mut Figure) -> anyhow::Result<()> {
    let specs = ["NS1", "NS2", "NS3", "NS4"].map(|name| spec(name, 2, 16));
    let tenants = Tenants::new(DeviceBelow::Drive, allowing(256), &specs)?;
    let mut workers = Vec::new();
    for tenant in 0..4 {
        let count = if tenant == 3 { 8 } else { 2 };
        for writer in 0..count {
            let zones = vec![2 * writer % 16, (2 * writer + 1) % 16];
            let idle_ms = if tenant == 3 { (0, 0) } else { (STOP_S * 1000, GO_ON_S * 1000) };
            workers.push(Worker { idle_ms, ..Worker::new(tenant, zones, WorkerRequests::Write, 512, 1) });
        }
    }
    let spares = tenants.watch_spares(SECONDS);
    let work = tenants.run(&workers, SECONDS * 1000)?;
    let spares = spares.take();
    let of = |tenant: usize, second: u64| -> f64 {
        let own = workers.iter().zip(&work).filter(|(worker, _)| worker.tenant == tenant);
        own.map(|(_, work)| work.mb_s(second * 1000, (second + 1) * 1000)).sum()
    };
    let mut table =
        Table::new("Fig. 27, 28: MB/s and spares of each namespace", &["s", "NS1", "NS2", "NS3", "NS4"]);
    let (mut speeds, mut held) = (Vec::new(), Vec::new());
    for second in 0..SECONDS {
        let mut cells = vec![second.to_string()];
        for tenant in 0..4 {
            let used = spares.get(second as usize).map_or(0, |spares| spares[tenant]);
            let name = format!("NS{}", tenant + 1);
            cells.push(format!("{:.0} / {used}", of(tenant, second)));
            speeds.push((name.clone(), second, of(tenant, second)));
            held.push((name, second, used as f64));
        }
        table.rows.push(cells);
    }
    let alone: Vec<u64> = (STOP_S + 10..GO_ON_S).collect();
    let best = alone.iter().map(|second| of(3, *second)).fold(0.0, f64::max);
    let most = |seconds: std::ops::Range<u64>| -> f64 {
        let of = |second: u64| spares.get(second as usize).map_or(0, |spares| spares[3]);
        seconds.map(of).max().unwrap_or(0) as f64
    };
    let own = 32.0;
    let why = "the least width of its groups and powers of two decide how many of the spares there are fit";
    figure.claims.push(Claim::share(
        "Fig. 28: spares of NS4 while others are idle, over its own 32 (up to 3 more)",
        4.0,
        most(STOP_S..GO_ON_S) / own,
        why,
    ));
    let what = "Fig. 27: MB/s of NS4 while others are idle";
    let why = "what the drive writes in all, as it is calibrated";
    figure.claims.push(Claim::share(what, 2300.0, best, why).is(ClaimKind::Construction));
    let after = most(SECONDS - 2..SECONDS);
    figure.claims.push(Claim::below(
        "Fig. 28: spares of NS4 ten seconds after the others go on, over those before",
        1.0,
        after / most(STOP_S..GO_ON_S),
        "what is held is given back when groups end",
    ));
    figure.rows.push(row("NS4 among others", 8, 512, 1, of(3, STOP_S - 2)));
    figure.rows.push(Row { paper_mb_s: Some(2300.0), ..row("NS4 alone", 8, 512, 1, best) });
    figure.plots.push(Plot::through("Fig. 27: throughput of namespaces", "s", "MB/s", &speeds));
    figure.plots.push(Plot::through("Fig. 28: spares that namespaces hold", "s", "spare zones", &held));
    figure.tables.push(table);
    Ok(())
}

/// Window of the measurement of Fig. 29, in ms.
const FAIR_MS: (u64, u64) = (800, 1400);

fn sum(work: &[WorkerResult]) -> f64 {
    work.iter().map(|work| work.mb_s(FAIR_MS.0, FAIR_MS.1)).sum()
}

/// Fig. 29 (a), scenario 1: narrow zones read one request at a time by four threads, a wide one 32 deep, all of them on
/// the same dies: the drive has only eight.
fn readers(figure: &mut Figure) -> anyhow::Result<()> {
    let specs = [spec("A", 2, 4), spec("B", 8, 1)];
    let (clock, runtime) = (Clock::new(), Runtime::new());
    let eight = Timing { dies: 8, ..Timing::pm1731a() };
    let inner = Rc::new(drive_of(&eight, &clock, 1, allowing(16)));
    let tenants = Tenants::over(inner, clock, runtime, &specs)?;
    tenants.fill(0, &[0, 1, 2, 3], 128)?;
    tenants.fill(1, &[0], 512)?;
    let mut workers: Vec<Worker> =
        (0..4).map(|zone| Worker::new(0, vec![zone], WorkerRequests::ReadInOrder(128), 128, 1)).collect();
    workers.push(Worker::new(1, vec![0], WorkerRequests::ReadInOrder(512), 128, 32));
    let work = tenants.run(&workers, FAIR_MS.1)?;
    let (narrow, wide) = (sum(&work[..4]) / 4.0, sum(&work[4..]));
    let fair = |row| Row { paper_mb_s: Some(290.0), ..row };
    figure.rows.push(fair(row("29a: narrow, each", 4, 128, 1, narrow)));
    figure.rows.push(fair(row("29a: wide", 1, 128, 32, wide)));
    let all_alike = |what, mb_s| Claim::share(what, 290.0, mb_s, ALIKE).is(ClaimKind::Construction);
    figure.claims.push(all_alike("Fig. 29a: MB/s of a narrow zone", narrow));
    figure.claims.push(all_alike("Fig. 29a: MB/s of a wide zone 32 deep", wide));
    Ok(())
}

/// Writes in flight of a busy writer; regular writers have a period and one write.
const BUSY: u32 = 4;

fn depth(period_us: u64) -> u32 {
    if period_us > 0 { 1 } else { BUSY }
}

/// Fig. 29 (b): regular writers, and a busy one in a narrow zone, with or without write admission control. Gives the
/// throughput of the former and of the latter, each with its drift.
fn admitted(regular: u32, period_us: u64, admission: bool) -> anyhow::Result<[(f64, f64); 2]> {
    let specs = [spec("A", 8, 16), spec("B", 2, 1)];
    let tenants = Tenants::regulated(DeviceBelow::Drive, allowing(130), &specs, admission)?;
    let depth = depth(period_us);
    let writer = |zone| Worker { period_us, ..Worker::new(0, vec![zone], WorkerRequests::Write, 512, depth) };
    let mut workers: Vec<Worker> = (0..regular).map(writer).collect();
    workers.push(Worker::new(1, vec![0], WorkerRequests::Write, 512, BUSY));
    let work = tenants.run(&workers, FAIR_MS.1)?;
    let (busy, others) = work.split_last().ok_or_else(|| anyhow::anyhow!("nothing was measured"))?;
    Ok([others, std::slice::from_ref(busy)].map(|work| in_all(work, FAIR_MS.0, FAIR_MS.1)))
}

fn busy_writer(figure: &mut Figure) -> anyhow::Result<()> {
    let loads = [(16, 5000), (16, 0), (15, 0)];
    let points: Vec<_> =
        loads.iter().flat_map(|(regular, period)| [true, false].map(|on| (*regular, *period, on))).collect();
    let play = |(regular, period, on): &(u32, u64, bool)| admitted(*regular, *period, *on);
    let found = work::each("ezns, Fig. 29b", &points, play)?;
    let names = ["29b 1: regular writers", "29b 2: all busy", "29b 3: no die twice"];
    let named = names.iter().flat_map(|name| [name.to_string(), format!("{name}, no admission control")]);
    for ((name, (regular, period_us, _)), [others, busy]) in named.zip(&points).zip(&found) {
        figure.rows.push(steady(&name, *regular, depth(*period_us), *others));
        figure.rows.push(steady(&format!("{name}, the narrow one"), 1, BUSY, *busy));
    }
    // Each result without admission control follows the one with it.
    let of = |index: usize, who: usize| found.get(index).map_or(f64::NAN, |found| found[who].0);
    let all = |index: usize| of(index, 0) + of(index, 1);
    let gains = [
        ("scenario 1: MB/s of regular writers", 1.357, of(0, 0) / of(1, 0)),
        ("scenario 2: MB/s of all", 2304.3 / 2160.9, all(2) / all(3)),
        ("scenario 3: MB/s of all", 2997.7 / 2403.3, all(4) / all(5)),
    ];
    for (what, paper, gain) in gains {
        let what = format!("Fig. 29b, {what}, with admission control to without");
        figure.claims.push(Claim::factor(what, paper, gain, CACHE));
    }
    figure.claims.push(
        Claim::share("Fig. 29b, scenario 2: MB/s of all", 2304.3, all(2), DRIVE).is(ClaimKind::Construction),
    );
    figure.claims.push(
        Claim::share("Fig. 29b, scenario 3: MB/s of all", 2997.7, all(4), DRIVE).is(ClaimKind::Construction),
    );
    // In the paper two zones alone are written with 2 · 42.6 MB/s: 32.5 is 76.3 % of one.
    let narrow = of(2, 1) / (2.0 * 42.6);
    let what = "Fig. 29b, scenario 2: the narrow writer to what its two zones write by themselves";
    figure.claims.push(Claim::share(what, 0.568, narrow, NOT_SWITCHED));
    Ok(())
}

/// Fig. 29 (c): readers, a busy writer and regular writers together, each relative to its throughput alone.
fn mixed(figure: &mut Figure) -> anyhow::Result<()> {
    let play = |who: &[usize]| -> anyhow::Result<Vec<f64>> {
        let specs = [spec("A", 2, 16), spec("B", 2, 1), spec("C", 8, 16)];
        let tenants = Tenants::new(DeviceBelow::Drive, allowing(162), &specs)?;
        let zones: Vec<u32> = (0..16).collect();
        tenants.fill(0, &zones, 64)?;
        let mut workers = Vec::new();
        for tenant in who {
            workers.extend(match tenant {
                0 => zones
                    .iter()
                    .map(|zone| Worker::new(0, vec![*zone], WorkerRequests::Read(64), 128, 32))
                    .collect(),
                1 => vec![Worker::new(1, vec![0], WorkerRequests::Write, 512, BUSY)],
                _ => {
                    let regular = |zone: &u32| Worker {
                        period_us: 5000,
                        ..Worker::new(2, vec![*zone], WorkerRequests::Write, 512, 1)
                    };
                    zones.iter().map(regular).collect::<Vec<_>>()
                }
            });
        }
        let work = tenants.run(&workers, FAIR_MS.1)?;
        let of = |tenant: usize| {
            let own = workers.iter().zip(&work).filter(|(worker, _)| worker.tenant == tenant);
            own.map(|(_, work)| work.mb_s(FAIR_MS.0, FAIR_MS.1)).sum()
        };
        Ok((0..3).map(of).collect())
    };
    let points: [&[usize]; 4] = [&[0], &[1], &[2], &[0, 1, 2]];
    let found = work::each("ezns, Fig. 29c", &points, |who| play(who))?;
    let [one, two, three, all] = &found[..] else { return Ok(()) };
    let alone = [one[0], two[1], three[2]];
    let who = [
        ("readers", 16, 128, 32, 0.716),
        ("the busy writer", 1, 512, BUSY, 0.575),
        ("the regular writers", 16, 512, 1, 0.701),
    ];
    for ((name, zones, kib, depth, paper), (alone, beside)) in who.into_iter().zip(alone.iter().zip(all)) {
        figure.rows.push(row(&format!("29c: {name}"), zones, kib, depth, *beside));
        let what = format!("Fig. 29c: {name} beside the others, over alone");
        figure.claims.push(Claim::share(what, paper, beside / alone, NOT_SWITCHED));
    }
    Ok(())
}

/// Depths of Fig. 40, and the window of its reads, in ms.
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const READ_MS: (u64, u64) = (20, 120);

/// Fig. 40: mean latency in µs of random reads of 4 KiB in a zone, `depth` at a time.
fn read_us(
    (clock, runtime): (&Clock, &Runtime),
    device: Rc<dyn ZonedDevice>,
    depth: u32,
) -> anyhow::Result<f64> {
    let mib = device.geometry().zone_capacity_blocks * BLOCK as u64 / (1 << 20);
    fill((clock, runtime), &*device, &[0], mib)?;
    let (job, window) = (Job::new(load::RequestKind::Read, 0, 4, depth), Window::ms(READ_MS.0, READ_MS.1));
    Ok(load::run(runtime, &device, clock, &[job], window)?[0].mean_us())
}

/// The same for 16 zones of the drive, and for a v-zone of as many.
fn direct_and_through(depth: u32) -> anyhow::Result<[f64; 2]> {
    let (clock, runtime) = (Clock::new(), Runtime::new());
    let below: Rc<dyn ZonedDevice> = Rc::new(drive(&clock, 1, 256));
    let zones = StaticZones::new(&runtime, below, (0, 1), (16, 1));
    let direct = read_us((&clock, &runtime), Rc::new(zones), depth)?;
    let tenants = Tenants::new(DeviceBelow::Drive, allowing(32), &[spec("one", 16, 1)])?;
    let through = read_us((&tenants.clock, &tenants.runtime), Rc::new(tenants.list[0].clone()), depth)?;
    Ok([direct, through])
}

fn overhead(figure: &mut Figure) -> anyhow::Result<()> {
    let found = work::each("ezns, Fig. 40", &DEPTHS, |depth| direct_and_through(*depth))?;
    let mut values = Vec::new();
    let mut table = Table::new(
        "Fig. 40: µs of a random read of 4 KiB, on average",
        &["depth", "zones of the drive", "v-zone", "over"],
    );
    for (depth, [direct, through]) in DEPTHS.iter().zip(&found) {
        values.push(("zones of the drive".to_string(), *depth as u64, *direct));
        values.push(("v-zone".to_string(), *depth as u64, *through));
        let over = format!("{:.2}", through / direct);
        table.rows.push(vec![depth.to_string(), format!("{direct:.0}"), format!("{through:.0}"), over]);
    }
    let most =
        |found: &[[f64; 2]]| found.iter().map(|[direct, through]| through / direct).fold(0.0, f64::max);
    let (few, many) = found.split_at(4);
    let why = "in virtual time: what the layer makes requests wait for, not what it costs a processor";
    figure.claims.push(Claim::factor(
        "Fig. 40: reads up to 8 at a time, v-zone to zones",
        1.0,
        most(few),
        why,
    ));
    let what = "Fig. 40: reads 16 at a time and more, the most";
    figure.claims.push(Claim::below(what, 1.14, most(many), why).is(ClaimKind::Construction));
    figure.tables.push(table);
    figure.plots.push(Plot::through("Fig. 40: random reads of 4 KiB", "depth", "µs", &values));
    Ok(())
}

fn ezns(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let mut parts: Vec<fn(&mut Figure) -> anyhow::Result<()>> =
        vec![overdrive, readers, busy_writer, mixed, overhead];
    if effort == Effort::Full {
        parts.insert(1, lending);
    }
    // One of them is a single long run, so all run in parallel.
    let found = work::each(this.name, &parts, |part| {
        let mut figure = Figure::default();
        part(&mut figure)?;
        Ok(figure)
    })?;
    let mut figure = this.figure(METHOD);
    for part in found {
        figure.rows.extend(part.rows);
        figure.claims.extend(part.claims);
        figure.tables.extend(part.tables);
        figure.plots.extend(part.plots);
    }
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drive_active_zones_cover_namespaces_and_layer_reserve() {
        assert_eq!((allowing(64), allowing(256)), (70, 274));
    }
}
