//! Sequential writes to several zones: ZRAID's Figures 7, 8 and 11.

use super::{Effort, Experiment, KERNEL, best, gain, on};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Row},
    host::Host,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};
use emu::timing::Timing;

const SYSTEMS: [System; 4] = [System::Raizn, System::RaiznPlus, System::Zraid, System::Zoneraid];
const ZONES: [u32; 5] = [1, 4, 7, 10, 12];

pub const FIG7: Experiment = Experiment {
    name: "fig7",
    title: "Throughput of sequential writes over zones and request sizes (ZRAID Fig. 7)",
    run: fig7,
};

const FIG7_METHOD: &str = "Five ZN540 of 1 TB, RAID-5, chunk 64 KiB. One job a zone, 64 requests deep, as fio's in the \
paper; jobs begin within 5 ms of each other; 25 ms are measured after 15 ms, and up to 105 while their halves differ \
by more than 1 %; figures are the mean of two seeds. \
Claims are those of a host as the paper's: the kernel with mq-deadline for zones that are written in order and no \
scheduler for others, calibrated on single drives. The driver itself runs on many processors there and costs nothing \
here. zoneraid is shown on the same host, and on the one thread of its daemon as measured; on a host that costs \
nothing its figures below 16 KiB are worth little.\n\n\
The paper prints no numbers for single points; its limits follow from 1,230 MB/s a drive: 3,075 MB/s with a partial \
parity chunk for every data chunk, 4,100 with one a stripe, 4,920 with none. 8 KiB are in its Fig. 8.";

const SMALL: &str = "With 4 KiB RAIZN+ is ahead on a free host: writes that wait for a zone are merged, while two \
commands for every write keep the drives' firmware busy with ZRAID. The lock of mq-deadline takes some of that back; \
what the driver of RAIZN+ costs is not published.";
const HOST: &str = "RAIZN+ loses here what headers take of the drives' bandwidth, and little more. A section of its \
driver that all zones share would explain the rest ('sections').";
const RAISES: &str = "One zone keeps the emulated drives as busy as seven, since the driver costs nothing.";
const QUEUE: &str = "RAIZN's queue is a guess (2 µs a sub-request), and does not get slower with more zones.";

/// The paper's limit for requests of this size, in MB/s.
fn limit(request_kib: u64) -> f64 {
    match request_kib {
        0..=64 => 3075.0,
        65..=128 => 4100.0,
        _ => 4920.0,
    }
}

fn fig7(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (zones, sizes): (&[u32], &[u64]) = match effort {
        Effort::Quick => (&[1, 7, 12], &[4, 16, 64]),
        Effort::Full => (&ZONES, &[4, 8, 16, 32, 64, 128, 256]),
    };
    let mut figure = this.figure(FIG7_METHOD);
    for host in [Host::mq_deadline(), Host::free()] {
        figure.rows.extend(grid(this.name, |system| Setup::zn540(system).on(&host), &SYSTEMS, zones, sizes)?);
    }
    let daemon = Host::daemon()?;
    let ours = |system| Setup::zn540(system).on(&daemon);
    figure.rows.extend(grid(this.name, ours, &[System::Zoneraid], zones, sizes)?);
    figure.rows.iter_mut().for_each(state);
    for size in sizes {
        let shown = |row: &&Row| row.request_kib == *size && (row.host != "free" || row.system == "zoneraid");
        let rows: Vec<&Row> = figure.rows.iter().filter(shown).collect();
        let plot = Plot::of(format!("Requests of {size} KiB"), "zones", &rows, |row| row.zones.into())
            .limit(format!("limit in the paper: {}", limit(*size)), limit(*size));
        let starts = if *size == 16 { Some(("paper: ZRAID saturates", 7, 3075.0)) } else { None };
        figure.plots.push(match starts {
            Some((name, place, value)) => plot.published(name, place, value),
            None => plot,
        });
    }
    figure.claims = fig7_claims(&figure.rows);
    Ok(figure)
}

/// Adds the paper's statement on a point.
fn state(row: &mut Row) {
    // Both reach the limit with one or two chunks, and ZRAID does with 16 KiB from seven zones on.
    let saturated = match (row.system.as_str(), row.request_kib) {
        ("ZRAID", 16) => row.zones >= 7,
        ("ZRAID" | "RAIZN+", 64 | 128) => row.zones == 12,
        _ => false,
    };
    if saturated {
        row.paper_mb_s = Some(limit(row.request_kib));
    }
}

fn fig7_claims(rows: &[Row]) -> Vec<Claim> {
    let zraid = |what: &str, paper: f64, load: fn(&Row) -> bool, why: &str| {
        let of = |host: &str| gain(rows, "ZRAID", "RAIZN+", on(host, load));
        Claim::factor(format!("ZRAID to RAIZN+, {what}"), paper, of(KERNEL), why).free(of("free"))
    };
    let mut claims = vec![
        zraid(
            "4 to 64 KiB without 8, mean",
            1.181,
            |row| row.request_kib <= 64 && row.request_kib != 8,
            SMALL,
        ),
        zraid("8 KiB, mean", 1.347, |row| row.request_kib == 8, HOST),
        zraid("8 KiB, 12 zones", 1.48, |row| row.request_kib == 8 && row.zones == 12, HOST),
        zraid("64 KiB, mean", 1.0, |row| row.request_kib == 64, "").is(ClaimKind::Construction),
        zraid("128 KiB, mean", 1.0, |row| row.request_kib == 128, "").is(ClaimKind::Construction),
        zraid("256 KiB, mean", 0.9914, |row| row.request_kib == 256, "").is(ClaimKind::Construction),
    ];
    for size in [64, 128, 256] {
        let of = |host| best(rows, "ZRAID", |row| row.host == host && row.request_kib == size) / limit(size);
        let claim = Claim::factor(format!("ZRAID at its best to the limit, {size} KiB"), 1.0, of(KERNEL), "");
        claims.push(claim.free(of("free")).is(ClaimKind::Construction));
    }
    let of = |host| first_saturated(rows, "ZRAID", host);
    claims.push(
        Claim::share("zones from which ZRAID saturates, 16 KiB", 7.0, of(KERNEL), RAISES).free(of("free")),
    );
    // 'Fails to fully utilize the array's performance potential, even with a 32KB request size'.
    let half = 5.0 * Timing::zn540().drain_mb_s.unwrap_or(f64::NAN) / 2.0;
    let of = |host| best(rows, "RAIZN+", |row| row.host == host && row.request_kib == 32) / half;
    let what =
        "RAIZN+ at its best with 32 KiB, to what the drives write with a block of parity for each of data";
    claims.push(Claim::below(what, 1.0, of(KERNEL), "").free(of("free")));
    // 'Consistently outperforms'.
    let of = |host| {
        let sizes = [4, 8, 16, 32, 64];
        let points = sizes.into_iter().flat_map(|size| ZONES.map(|zones| (size, zones)));
        let gains = points.map(|(size, zones)| {
            let this = move |row: &Row| (row.request_kib, row.zones) == (size, zones);
            gain(rows, "ZRAID", "RAIZN+", on(host, this))
        });
        gains.fold(f64::MAX, f64::min)
    };
    let what = "ZRAID to RAIZN+, 4 to 64 KiB, the least over all numbers of zones";
    claims.push(Claim::at_least(what, 1.0, of(KERNEL), SMALL).free(of("free")));
    claims.extend(raizn_claims(rows));
    claims
}

/// 'RAIZN consistently shows lower performance', and throughput that decreases with zones.
fn raizn_claims(rows: &[Row]) -> Vec<Claim> {
    let most = |host: &str| {
        let of = |size: u64| gain(rows, "RAIZN", "RAIZN+", on(host, move |row| row.request_kib == size));
        [4, 16, 32, 64, 128, 256].map(of).into_iter().fold(0.0, f64::max)
    };
    let falls = |host: &str| {
        let of = |zones: u32| {
            best(rows, "RAIZN", |row| row.host == host && row.zones == zones && row.request_kib == 256)
        };
        of(12) / of(1)
    };
    let lower = Claim::below("RAIZN to RAIZN+, the size at which it is closest", 1.0, most(KERNEL), QUEUE);
    let fewer = Claim::below("RAIZN with 12 zones to one, 256 KiB", 1.0, falls(KERNEL), QUEUE);
    vec![lower.free(most("free")).is(ClaimKind::Guess), fewer.free(falls("free")).is(ClaimKind::Guess)]
}

/// The fewest zones with which a system reaches 97 % of its highest throughput with 16 KiB.
fn first_saturated(rows: &[Row], system: &str, host: &str) -> f64 {
    let most = best(rows, system, |row| row.host == host && row.request_kib == 16);
    let enough = |row: &&Row| {
        row.system == system && row.host == host && row.request_kib == 16 && row.mb_s >= 0.97 * most
    };
    rows.iter().filter(enough).map(|row| row.zones).min().map_or(f64::NAN, f64::from)
}

/// All combinations.
fn grid(
    what: &str,
    setup: impl Fn(System) -> Setup + Sync,
    systems: &[System],
    zones: &[u32],
    sizes: &[u64],
) -> anyhow::Result<Vec<Row>> {
    let mut points = Vec::new();
    for system in systems {
        for request_kib in sizes {
            points.extend(zones.iter().map(|zones| (*system, *zones, *request_kib)));
        }
    }
    work::each(what, &points, |(system, zones, request_kib)| {
        point(&setup(*system), &Load::fio(*zones, *request_kib))
    })
}

pub const FIG8: Experiment =
    Experiment { name: "fig8", title: "From RAIZN+ to ZRAID step by step, 8 KiB (ZRAID Fig. 8)", run: fig8 };

const FIG8_METHOD: &str = "As Fig. 7, with 8 KiB, on the same hosts. Z: RAIZN+ on zones with a ZRWA. + S: without the \
scheduler's lock on a zone, many writes are on their way in it, and nothing is merged. + M: without the 4 KiB header of \
each partial parity. The last step, + P, is ZRAID.";

const LOCK: &str =
    "Merging makes up for the lock: commands are fewer and larger, and several zones keep a drive busy.";
const HEADER: &str =
    "Nothing limits here but the drives' bandwidth, so that all of what headers take of it counts.";
const PLACE: &str = "A ZN540 gives all its bandwidth to one zone if need be, and its ZRWA is flash: to the drive it is \
the same where partial parity goes, so that the log zone is no bottleneck. In the paper it is one, which must come from \
the host: all zones append to it through one driver and one lock ('sections').";

fn fig8(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let zones: &[u32] = if effort == Effort::Quick { &[4, 12] } else { &ZONES };
    let systems = [System::RaiznPlus, System::Z, System::ZS, System::ZSM, System::Zraid];
    let mut figure = this.figure(FIG8_METHOD);
    for host in [Host::mq_deadline(), Host::free()] {
        figure.rows.extend(grid(this.name, |system| Setup::zn540(system).on(&host), &systems, zones, &[8])?);
        let rows: Vec<&Row> = figure.rows.iter().filter(|row| row.host == host.name).collect();
        let title = format!("Requests of 8 KiB, host: {}", host.name);
        figure
            .plots
            .push(Plot::of(title, "zones", &rows, |row| row.zones.into()).limit("limit: 3075", 3075.0));
    }
    let rows = &figure.rows;
    let ratio = |(of, over): (&str, &str), paper: f64, at_12: bool, why: &str| {
        let load = move |row: &Row| !at_12 || row.zones == 12;
        let ours = |host: &str| gain(rows, of, over, on(host, load));
        let what = format!("{of} to {over}, 8 KiB, {}", if at_12 { "12 zones" } else { "mean" });
        Claim::factor(what, paper, ours(KERNEL), why).free(ours("free"))
    };
    let lowest = |host: &str| {
        let of = |zones: &u32| gain(rows, "Z", "RAIZN+", on(host, |row| row.zones == *zones));
        zones.iter().map(of).fold(f64::MAX, f64::min)
    };
    let headers = rows
        .iter()
        .find(|row| row.system == "Z+S")
        .map_or(f64::NAN, |row| 1.0 + row.written.headers / (row.written.all() - row.written.headers));
    let synchronization = "The manager that moves write pointers costs nothing here.";
    figure.claims = vec![
        Claim::below("Z to RAIZN+ where it is lowest", 1.0, lowest(KERNEL), synchronization)
            .free(lowest("free")),
        ratio(("Z+S", "Z"), 1.10, false, LOCK),
        Claim::factor("blocks written with headers to without", 1.19, headers, "")
            .is(ClaimKind::Construction),
        ratio(("Z+S+M", "Z+S"), 1.103, false, HEADER),
        ratio(("ZRAID", "Z+S+M"), 1.177, false, PLACE),
        ratio(("ZRAID", "Z+S+M"), 1.30, true, PLACE),
        ratio(("ZRAID", "RAIZN+"), 1.347, false, HOST),
        ratio(("ZRAID", "RAIZN+"), 1.48, true, HOST),
    ];
    Ok(figure)
}

pub const FIG11: Experiment = Experiment {
    name: "fig11",
    title: "Throughput with a ZRWA in memory and small zones (ZRAID Fig. 11)",
    run: fig11,
};

const FIG11_METHOD: &str = "One PM1731a cut into five members of 8,000 zones, as in the paper, which had only one; \
four of its zones are one, interleaved by 64 KiB; RAID-5, chunk 64 KiB. 15 zones, one job each, 64 requests deep. A zone \
gets the next die in turn when it is first written. 50 ms are measured after 0.45 s, \
when the drive's buffer is full, and more while their halves differ by more than 1 %. The paper shows throughput relative \
to RAIZN+ and says 'up to 3.3 times'.";

fn fig11(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let sizes: &[u64] = if effort == Effort::Quick { &[8, 64] } else { &[4, 8, 16, 32, 64] };
    let mut figure = this.figure(FIG11_METHOD);
    let systems = [System::RaiznPlus, System::Zraid, System::Zoneraid];
    let hosts = [Host::mq_deadline(), Host::free()];
    let mut points = Vec::new();
    for host in &hosts {
        for system in systems {
            points.extend(sizes.iter().map(|size| (host, system, *size)));
        }
    }
    figure.rows = work::each(this.name, &points, |(host, system, size)| {
        point(&Setup::pm1731a(*system).on(host), &Load::long(15, *size))
    })?;
    let rows: Vec<&Row> = figure.rows.iter().filter(|row| row.host == KERNEL).collect();
    figure.plots.push(Plot::of("Throughput, 15 zones".into(), "KiB a request", &rows, |row| row.request_kib));
    let ratios: Vec<(String, u64, f64)> = sizes
        .iter()
        .map(|size| {
            let ratio = gain(&figure.rows, "ZRAID", "RAIZN+", on(KERNEL, |row| row.request_kib == *size));
            ("ZRAID to RAIZN+".to_string(), *size, ratio)
        })
        .collect();
    let plot = Plot::through("ZRAID to RAIZN+", "KiB a request", "×", &ratios);
    figure.plots.push(plot.limit("paper: up to 3.3", 3.3));
    let most = |host: &str| {
        let gain_at =
            |size: &u64| gain(&figure.rows, "ZRAID", "RAIZN+", on(host, |row| row.request_kib == *size));
        sizes.iter().map(gain_at).fold(0.0, f64::max)
    };
    let claim = Claim::factor("ZRAID to RAIZN+ on a PM1731a, the most", 3.3, most(KERNEL), DIES);
    figure.claims = vec![claim.free(most("free"))];
    Ok(figure)
}

const DIES: &str = "RAIZN+ waits for the dies on which the log zones of the members lie.";
