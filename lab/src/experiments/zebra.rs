//! Zebra's evaluation, as far as its slides describe it.

use super::{Effort, Experiment, KERNEL, gain, on};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Row, Table},
    host::Host,
    load::Window,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};
use emu::{ssd::Model, timing::Timing};

pub const ZEBRA: Experiment = Experiment {
    name: "zebra",
    title: "Parity that is updated in place beside RAIZN (Zebra's evaluation)",
    run: zebra,
};

const METHOD: &str = "Large zones: four ZN540 of 4 TB, (3 + 1). Small zones: seven PM1731a, (6 + 1), four zones as one; \
the slides emulate seven with NVMeVirt, of no stated kind. Sequential writes of 4, 8 and 16 KiB, one job a zone, 64 requests \
deep, on the host with mq-deadline. How many zones were written is not published: 1, 4, 7 and 12 here, 15 on small zones. \
On small zones 50 ms and more are measured after 0.45 s.\n\n\
Mixed: writes to four zones (15 small ones, of 8 KiB) beside 16 or 64 random reads of 4 KiB from another one. Reads do not pass \
RAIZN's queue. Traces and RocksDB of the slides (2.1 ×; 1.3 and 4.9 ×) were not repeated: neither traces nor settings are \
published. Recovery is an experiment of its own.";

const EMULATED: &str = "Here seven drives write 11 GB/s through a driver that costs nothing. The slides' seven are NVMeVirt in \
the memory of one computer, which nobody published what it writes: with the bandwidth of one such drive among all seven, \
or a thread that takes 1 µs for a command, the gain is smaller (table).";
const MIXED: &str = "Which arrays, zones and ratios of reads the slides' one number is of is not published, nor RAIZN's state.";
const QUEUE: &str =
    "RAIZN's queue decides it, a guess of 2 µs a sub-request: 'sensitivity' halves and doubles it.";

const SYSTEMS: [System; 4] = [System::Raizn, System::RaiznPlus, System::Zebra, System::Zoneraid];
const SIZES: [u64; 3] = [4, 8, 16];

pub(super) fn large(system: System) -> Setup {
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

/// An array and its load.
type ZebraPoint = (Setup, Load);

/// The same array with these loads, for each host and each system.
fn points(setup: fn(System) -> Setup, hosts: &[Host], systems: &[System], loads: &[Load]) -> Vec<ZebraPoint> {
    let arrays = hosts.iter().flat_map(|host| systems.iter().map(|system| setup(*system).on(host)));
    arrays.flat_map(|array| loads.iter().map(move |load| (array.clone(), *load))).collect()
}

fn zebra(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let zones: &[u32] = if effort == Effort::Quick { &[4] } else { &[1, 4, 7, 12] };
    let hosts = [Host::mq_deadline(), Host::free()];
    let loads: Vec<Load> =
        SIZES.iter().flat_map(|size| zones.iter().map(move |zones| Load::fio(*zones, *size))).collect();
    let on_large = points(large, &hosts, &SYSTEMS, &loads);
    let sizes = if effort == Effort::Quick { &SIZES[1..2] } else { &SIZES[..] };
    let loads: Vec<Load> = sizes.iter().map(|size| Load { seeds: 1, ..Load::long(15, *size) }).collect();
    // These runs are long, and do not depend on the host.
    let on_small = points(small, &hosts[..1], &SYSTEMS, &loads);
    let (limits, mixes) = (limits(), mixes(effort));
    let emulated: Vec<ZebraPoint> = limits.iter().flat_map(|(_, points)| points.clone()).collect();
    let mixed: Vec<ZebraPoint> = mixes.iter().flat_map(|mix| mix.points.clone()).collect();

    // The longest first, so that none is left for the end.
    let parts = [on_small, emulated, mixed, on_large];
    let mut rows = work::each(this.name, &parts.concat(), |(setup, load)| point(setup, load))?.into_iter();
    let [on_small, emulated, mixed, on_large] =
        parts.map(|part| rows.by_ref().take(part.len()).collect::<Vec<Row>>());

    let mut figure = this.figure(METHOD);
    for (what, (low, high), rows) in
        [("large zones", (1.06, 1.51), &on_large), ("small zones", (3.3, 4.2), &on_small)]
    {
        for over in ["RAIZN", "RAIZN+"] {
            figure.claims.extend(range(what, over, (low, high), rows));
        }
        figure.plots.push(ratios(what, (low, high), rows));
    }
    figure.tables.push(show_limits(&limits, &emulated));
    show_mixes(&mixes, &mixed, &mut figure);
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
        _ if what == "small zones" => (ClaimKind::Guess, EMULATED),
        "RAIZN" => (ClaimKind::Guess, QUEUE),
        _ => (ClaimKind::Prediction, ""),
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

/// Zebra and RAIZN+ on small zones if one computer emulates all seven drives, with its limits.
fn limits() -> Vec<(String, [ZebraPoint; 2])> {
    let among = |system| Setup { partitioned: true, ..small(system) };
    let load = Load { seeds: 1, ..Load::long(15, 8) };
    let pair = |setup: &dyn Fn(System) -> Setup, host: &Host| {
        [System::Zebra, System::RaiznPlus].map(|system| (setup(system).on(host), load))
    };
    let kernel = Host::mq_deadline();
    let mut limits = vec![
        ("as it is".to_string(), pair(&small, &kernel)),
        ("the bandwidth of one drive for all".to_string(), pair(&among, &kernel)),
    ];
    limits.extend([0.5, 1.0, 2.0].map(|us| {
        (format!("one thread, {us} µs a request and a command"), pair(&small, &Host::one_thread(us)))
    }));
    limits
}

fn show_limits(limits: &[(String, [ZebraPoint; 2])], rows: &[Row]) -> Table {
    let title = "Small zones on a computer that emulates the drives, 8 KiB; the slides have 3.3 to 4.2";
    let mut table = Table::new(title, &["", "Zebra, MB/s", "RAIZN+, MB/s", "gain"]);
    for ((name, _), pair) in limits.iter().zip(rows.chunks(2)) {
        let [zebra, raizn] = [pair[0].mb_s, pair[1].mb_s];
        let cells =
            [name.clone(), format!("{zebra:.0}"), format!("{raizn:.0}"), format!("{:.2}", zebra / raizn)];
        table.rows.push(cells.into());
    }
    table
}

/// Writes beside `readers` reads, of all systems and then sizes.
struct Mix {
    drives: &'static str,
    readers: u32,
    points: Vec<ZebraPoint>,
}

fn mixes(effort: Effort) -> Vec<Mix> {
    let (readers, sizes): (&[u32], &[u64]) = match effort {
        Effort::Quick => (&[64], &[8]),
        Effort::Full => (&[16, 64], &SIZES),
    };
    let kernel = [Host::mq_deadline()];
    let systems = [System::Raizn, System::RaiznPlus, System::Zebra];
    let on_small = readers.iter().map(|readers| {
        let window = Window::steady(600, 640, 680);
        let load = Load { readers: *readers, seeds: 1, window, ..Load::long(15, 8) };
        Mix {
            drives: "small zones",
            readers: *readers,
            points: points(short_small, &kernel, &systems, &[load]),
        }
    });
    let on_large = readers.iter().map(|readers| {
        let load = |size: &u64| Load { readers: *readers, seeds: 1, ..Load::fio(4, *size) };
        let loads: Vec<Load> = sizes.iter().map(load).collect();
        Mix { drives: "large zones", readers: *readers, points: points(short, &kernel, &systems, &loads) }
    });
    on_large.chain(on_small).collect()
}

fn show_mixes(mixes: &[Mix], mut rows: &[Row], figure: &mut Figure) {
    let header =
        ["drives", "readers", "KiB", "to RAIZN", "to RAIZN+", "reads beside Zebra, MB/s", "beside RAIZN"];
    let mut table = Table::new("Zebra's writes beside reads", &header);
    let mut gains: Vec<(&str, f64)> = Vec::new();
    for mix in mixes {
        let (of_mix, rest) = rows.split_at(mix.points.len());
        rows = rest;
        for zebra in of_mix.iter().filter(|row| row.system == "Zebra") {
            let over = |over: &str| gain(of_mix, "Zebra", over, |row| row.request_kib == zebra.request_kib);
            let raizn =
                of_mix.iter().find(|row| row.system == "RAIZN" && row.request_kib == zebra.request_kib);
            gains.push((mix.drives, over("RAIZN")));
            table.rows.push(vec![
                mix.drives.into(),
                mix.readers.to_string(),
                zebra.request_kib.to_string(),
                format!("{:.2}", over("RAIZN")),
                format!("{:.2}", over("RAIZN+")),
                format!("{:.0}", zebra.read_mb_s),
                format!("{:.0}", raizn.map_or(f64::NAN, |row| row.read_mb_s)),
            ]);
        }
    }
    for drives in ["large zones", "small zones"] {
        let own = || gains.iter().filter(|(of, _)| *of == drives).map(|(_, gain)| *gain);
        let mean = own().sum::<f64>() / own().count() as f64;
        let what = format!("Zebra to RAIZN, writes beside reads, {drives}, mean");
        figure.claims.push(Claim::factor(what, 2.2, mean, MIXED).is(ClaimKind::Guess));
    }
    figure.tables.push(table);
}
