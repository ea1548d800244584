//! Zebra's evaluation, as far as its slides describe it.

use super::{Effort, Experiment, KERNEL, gain, on};
use crate::{
    bed::{Load, Setup, point},
    figure::{Claim, Figure, Kind, Plot, Row, Table},
    host::Host,
    load::Window,
    system::System,
    work,
};
use sim::{ssd::Model, timing::Timing};

pub const ZEBRA: Experiment = Experiment {
    name: "zebra",
    title: "Parity that is updated in place beside RAIZN (Zebra's evaluation)",
    run: zebra,
};

const METHOD: &str = "Large zones: four ZN540 of 4 TB, (3 + 1). Small zones: seven PM1731a, (6 + 1), four zones as one; \
the slides emulate seven with NVMeVirt, of no stated kind. Sequential writes of 4, 8 and 16 KiB, one job a zone, 64 requests \
deep, on the host with mq-deadline. How many zones were written is not published: 1, 4, 7 and 12 here, 15 on small zones. \
On small zones 200 ms are measured after 0.45 s.\n\n\
Mixed: writes to four zones (15 small ones) beside 16 or 64 random reads of 4 KiB from another one. Reads do not pass \
RAIZN's queue. Traces and RocksDB of the slides (2.1 ×; 1.3 and 4.9 ×) were not repeated: neither traces nor settings are \
published. Recovery is an experiment of its own.";

const EMULATED: &str = "Here seven drives write 11 GB/s through a driver that costs nothing. The slides' seven are NVMeVirt in \
the memory of one computer, which nobody published what it writes: with the bandwidth of one such drive among all seven, \
or a thread that takes 1 µs for a command, the gain is smaller (table).";
const MIXED: &str = "The slides' ratios of reads, zones and RAIZN's state are not published.";
const QUEUE: &str =
    "RAIZN's queue decides it, a guess of 2 µs a sub-request: 'sensitivity' halves and doubles it.";

const SYSTEMS: [System; 4] = [System::Raizn, System::RaiznPlus, System::Zebra, System::Zoneraid];
const SIZES: [u64; 3] = [4, 8, 16];

fn large(system: System) -> Setup {
    let (model, timing) = (Model::zn540_4tb(), Timing::zn540_4tb());
    Setup { model, timing, members: 4, ..Setup::zn540(system) }
}

fn small(system: System) -> Setup {
    let model = Model::pm1731a();
    Setup { model, members: 7, partitioned: false, ..Setup::pm1731a(system) }
}

/// Few, short zones: one of them has to be full before it is read.
fn short(system: System) -> Setup {
    Setup { model: Model::zn540_4tb().scaled(64, 128 << 8), ..large(system) }
}

fn short_small(system: System) -> Setup {
    let capacity = Model::pm1731a().geometry.zone_capacity_blocks / 4;
    Setup { model: Model::pm1731a().scaled(2000, capacity), ..small(system) }
}

/// The same array with these loads, for each system and each host.
fn run(
    this: &Experiment,
    setup: fn(System) -> Setup,
    hosts: &[Host],
    systems: &[System],
    loads: &[Load],
) -> anyhow::Result<Vec<Row>> {
    let mut points = Vec::new();
    for host in hosts {
        for system in systems {
            points.extend(loads.iter().map(|load| (host, *system, *load)));
        }
    }
    work::each(this.name, &points, |(host, system, load)| point(&setup(*system).on(host), load))
}

fn zebra(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let zones: &[u32] = if effort == Effort::Quick { &[4] } else { &[1, 4, 7, 12] };
    let hosts = [Host::mq_deadline(), Host::free()];
    let loads: Vec<Load> =
        SIZES.iter().flat_map(|size| zones.iter().map(move |zones| Load::fio(*zones, *size))).collect();
    let on_large = run(this, large, &hosts, &SYSTEMS, &loads)?;
    let sizes = if effort == Effort::Quick { &SIZES[1..2] } else { &SIZES[..] };
    let loads: Vec<Load> = sizes.iter().map(|size| Load { seeds: 1, ..Load::long(15, *size) }).collect();
    // Long runs, and nothing there depends on the host.
    let on_small = run(this, small, &hosts[..1], &SYSTEMS, &loads)?;

    let mut figure = this.figure(METHOD);
    for (what, (low, high), rows) in
        [("large zones", (1.06, 1.51), &on_large), ("small zones", (3.3, 4.2), &on_small)]
    {
        for over in ["RAIZN", "RAIZN+"] {
            figure.claims.extend(range(what, over, (low, high), rows));
        }
        figure.plots.push(ratios(what, (low, high), rows));
    }
    figure.tables.push(emulated(this)?);
    let mixed = mixed(this, effort, &mut figure)?;
    figure.rows = [on_large, on_small, mixed].concat();
    Ok(figure)
}

/// The lowest and the highest gain over all settings, beside those of the slides.
fn range(what: &str, over: &str, (low, high): (f64, f64), rows: &[Row]) -> [Claim; 2] {
    let gains = |host: &str| -> Vec<f64> {
        let ours = rows.iter().filter(|row| row.system == "Zebra" && row.host == host);
        ours.map(|ours| {
            gain(
                rows,
                "Zebra",
                over,
                on(host, |row| (row.zones, row.request_kib) == (ours.zones, ours.request_kib)),
            )
        })
        .collect()
    };
    let least = |host: &str| gains(host).into_iter().fold(f64::MAX, f64::min);
    let most = |host: &str| gains(host).into_iter().fold(f64::MIN, f64::max);
    let (kind, why) = match over {
        _ if what == "small zones" => (Kind::Guess, EMULATED),
        "RAIZN" => (Kind::Guess, QUEUE),
        _ => (Kind::Prediction, ""),
    };
    let claim = |which: &str, paper: f64, of: &dyn Fn(&str) -> f64| {
        let claim =
            Claim::factor(format!("Zebra to {over}, {what}, {which}"), paper, of(KERNEL), why).is(kind);
        if rows.iter().any(|row| row.host == "free") { claim.free(of("free")) } else { claim }
    };
    [claim("the least", low, &least), claim("the most", high, &most)]
}

/// Ratios over request sizes, for each number of zones.
fn ratios(what: &str, (low, high): (f64, f64), rows: &[Row]) -> Plot {
    let mut values = Vec::new();
    for ours in rows.iter().filter(|row| row.system == "Zebra" && row.host == KERNEL) {
        for over in ["RAIZN", "RAIZN+"] {
            let same = |row: &Row| (row.zones, row.request_kib) == (ours.zones, ours.request_kib);
            let ratio = gain(rows, "Zebra", over, on(KERNEL, same));
            values.push((format!("to {over}, {} zones", ours.zones), ours.request_kib, ratio));
        }
    }
    let band = format!("slides: {low} to {high}");
    Plot::through(format!("Zebra's gain, {what}"), "KiB a request", "×", &values).band(band, low, high)
}

/// What the gain on small zones would be on a computer that emulates all seven drives, and has to carry what they write.
fn emulated(this: &Experiment) -> anyhow::Result<Table> {
    let among = |system| Setup { partitioned: true, ..small(system) };
    let limits = [("as it is", false, 0.0), ("the bandwidth of one drive for all", true, 0.0)]
        .into_iter()
        .chain([0.5, 1.0, 2.0].map(|us| ("one thread", false, us)));
    let limits: Vec<(&str, bool, f64)> = limits.collect();
    // The longest first, so that none is left for the end.
    let systems = [System::Zebra, System::RaiznPlus];
    let points: Vec<_> =
        systems.iter().flat_map(|system| limits.iter().map(move |at| (*system, *at))).collect();
    let found = work::each(this.name, &points, |(system, (_, shared, us))| {
        let host = if *us > 0.0 { Host::one_thread(*us) } else { Host::mq_deadline() };
        let setup = if *shared { among(*system) } else { small(*system) };
        Ok(point(&setup.on(&host), &Load { seeds: 1, ..Load::long(15, 8) })?.mb_s)
    })?;
    let (zebra, raizn) = found.split_at(limits.len());
    let title = "Small zones on a computer that emulates the drives, 8 KiB; the slides have 3.3 to 4.2";
    let mut table = Table::new(title, &["", "Zebra, MB/s", "RAIZN+, MB/s", "gain"]);
    for ((name, _, us), (zebra, raizn)) in limits.iter().zip(zebra.iter().zip(raizn)) {
        let what = match *us > 0.0 {
            true => format!("{name}, {us} µs a request and a command"),
            false => name.to_string(),
        };
        let gain = format!("{:.2}", zebra / raizn);
        table.rows.push(vec![what, format!("{zebra:.0}"), format!("{raizn:.0}"), gain]);
    }
    Ok(table)
}

/// Writes beside reads, on both kinds of drives.
fn mixed(this: &Experiment, effort: Effort, figure: &mut Figure) -> anyhow::Result<Vec<Row>> {
    let (readers, sizes): (&[u32], &[u64]) = match effort {
        Effort::Quick => (&[64], &[8]),
        Effort::Full => (&[16, 64], &SIZES),
    };
    let kernel = [Host::mq_deadline()];
    let systems = [System::Raizn, System::RaiznPlus, System::Zebra];
    let header =
        ["drives", "readers", "KiB", "to RAIZN", "to RAIZN+", "reads beside Zebra, MB/s", "beside RAIZN"];
    let mut table = Table::new("Zebra's writes beside reads", &header);
    let (mut all, mut gains) = (Vec::new(), Vec::new());
    for (what, setup) in [("large zones", short as fn(System) -> Setup), ("small zones", short_small)] {
        let long = what == "small zones";
        for readers in readers {
            let load = |size: &u64| {
                let load = if long { Load::long(15, *size) } else { Load::fio(4, *size) };
                let window = if long { Window::ms(600, 700) } else { load.window };
                Load { readers: *readers, seeds: 1, window, ..load }
            };
            let sizes = if long { &sizes[..1] } else { sizes };
            let rows = run(this, setup, &kernel, &systems, &sizes.iter().map(load).collect::<Vec<_>>())?;
            for size in sizes {
                let over = |over: &str| gain(&rows, "Zebra", over, |row| row.request_kib == *size);
                let reads = |system: &str| {
                    let row = rows.iter().find(|row| row.system == system && row.request_kib == *size);
                    row.map_or(f64::NAN, |row| row.read_mb_s)
                };
                gains.push(over("RAIZN"));
                table.rows.push(vec![
                    what.into(),
                    readers.to_string(),
                    size.to_string(),
                    format!("{:.2}", over("RAIZN")),
                    format!("{:.2}", over("RAIZN+")),
                    format!("{:.0}", reads("Zebra")),
                    format!("{:.0}", reads("RAIZN")),
                ]);
            }
            all.extend(rows);
        }
    }
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    let claim = Claim::factor("Zebra to RAIZN, writes beside reads, mean", 2.2, mean, MIXED);
    figure.claims.push(claim.is(Kind::Guess));
    figure.tables.push(table);
    Ok(all)
}
