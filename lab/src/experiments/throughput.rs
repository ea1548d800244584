//! Sequential writes to several zones: ZRAID's Figures 7, 8 and 11.

use super::{Effort, Experiment, best, gain};
use crate::{
    bed::{Bed, Load, Setup},
    figure::{Claim, Figure, Plot, Row},
    system::System,
    work,
};

const SYSTEMS: [System; 4] = [System::Raizn, System::RaiznPlus, System::Zraid, System::Zoneraid];
const ZONES: [u32; 5] = [1, 4, 7, 10, 12];

pub const FIG7: Experiment = Experiment {
    name: "fig7",
    title: "Throughput of sequential writes over zones and request sizes (ZRAID Fig. 7)",
    run: fig7,
};

const FIG7_METHOD: &str = "Five ZN540 of 1 TB, RAID-5, chunk 64 KiB. One job a zone, 64 requests deep, as \
fio's in the paper; 60 ms are measured after 20 ms. The paper prints no numbers for single points; its \
limits follow from 1,230 MB/s a drive: 3,075 MB/s with a partial parity chunk for every data chunk, 4,100 with \
one a stripe, 4,920 with none.";

const SMALL: &str = "With 4 KiB RAIZN+ is ahead here: writes that wait for a zone are merged, while two commands for \
every write keep the drives' firmware busy with ZRAID. In the paper what happens on the host costs more than commands.";
const HOST: &str = "RAIZN+ loses here what headers take of the drives' bandwidth, and no more. Its driver and the \
kernel's locks, which cost nothing here, must be the rest.";

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
    figure.rows = grid(this.name, Setup::zn540, &SYSTEMS, zones, sizes)?;
    for size in sizes {
        let rows: Vec<&Row> = figure.rows.iter().filter(|row| row.request_kib == *size).collect();
        let mut plot = Plot::of(format!("{size} KiB"), "zones", &rows, |row| row.zones.into());
        plot.limits.push((format!("limit in the paper: {}", limit(*size)), limit(*size)));
        figure.plots.push(plot);
    }
    let rows = &figure.rows;
    let zraid = |load: fn(&Row) -> bool| gain(rows, "ZRAID", "RAIZN+", load);
    figure.claims = vec![
        Claim::factor(
            "ZRAID to RAIZN+, up to 64 KiB, mean",
            1.181,
            zraid(|row| row.request_kib <= 64),
            SMALL,
        ),
        Claim::factor("ZRAID to RAIZN+, 8 KiB, mean", 1.347, zraid(|row| row.request_kib == 8), HOST),
        Claim::factor(
            "ZRAID to RAIZN+, 8 KiB, 12 zones",
            1.48,
            zraid(|row| row.request_kib == 8 && row.zones == 12),
            HOST,
        ),
        Claim::factor("ZRAID to RAIZN+, 128 KiB, mean", 1.0, zraid(|row| row.request_kib == 128), ""),
        Claim::factor("ZRAID to RAIZN+, 256 KiB, mean", 0.9914, zraid(|row| row.request_kib == 256), ""),
    ];
    for size in [64, 128, 256] {
        let ours = best(rows, "ZRAID", |row| row.request_kib == size) / limit(size);
        figure.claims.push(Claim::factor(
            format!("ZRAID at its best to the limit, {size} KiB"),
            1.0,
            ours,
            "",
        ));
    }
    Ok(figure)
}

/// All combinations.
fn grid(
    what: &str,
    setup: fn(System) -> Setup,
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
        Bed::new(&setup(*system))?.write_zones(&Load::fio(*zones, *request_kib))
    })
}

pub const FIG8: Experiment =
    Experiment { name: "fig8", title: "From RAIZN+ to ZRAID step by step, 8 KiB (ZRAID Fig. 8)", run: fig8 };

const FIG8_METHOD: &str = "As Fig. 7, with 8 KiB. Z: RAIZN+ on zones with a ZRWA. + S: without the scheduler's lock on a \
zone, many writes are on their way in it, and nothing is merged. + M: without the 4 KiB header of each partial parity. \
The last step, + P, is ZRAID.";

const LOCK: &str =
    "Merging makes up for the lock: commands are fewer and larger, and several zones keep a drive busy.";
const HEADER: &str =
    "Nothing limits here but the drives' bandwidth, so that all of what headers take of it counts.";
const PLACE: &str = "A ZN540 gives all its bandwidth to one zone if need be, and its ZRWA is flash: to the drive it is \
the same where partial parity goes, so that the log zone is no bottleneck. In the paper it is one, which must come from \
the host: all zones append to it through one driver and one lock.";

fn fig8(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let zones: &[u32] = if effort == Effort::Quick { &[4, 12] } else { &ZONES };
    let systems = [System::RaiznPlus, System::Z, System::ZS, System::ZSM, System::Zraid];
    let mut figure = this.figure(FIG8_METHOD);
    figure.rows = grid(this.name, Setup::zn540, &systems, zones, &[8])?;
    let rows: Vec<&Row> = figure.rows.iter().collect();
    figure.plots.push(Plot::of("8 KiB".into(), "zones", &rows, |row| row.zones.into()));
    let mean = |of, over| gain(&figure.rows, of, over, |_| true);
    let at_12 = |of, over| gain(&figure.rows, of, over, |row| row.zones == 12);
    figure.claims = vec![
        Claim::factor("Z+S to Z, mean", 1.10, mean("Z+S", "Z"), LOCK),
        Claim::factor("Z+S+M to Z+S, mean", 1.103, mean("Z+S+M", "Z+S"), HEADER),
        Claim::factor("ZRAID to Z+S+M, mean", 1.177, mean("ZRAID", "Z+S+M"), PLACE),
        Claim::factor("ZRAID to Z+S+M, 12 zones", 1.30, at_12("ZRAID", "Z+S+M"), PLACE),
        Claim::factor("ZRAID to RAIZN+, mean", 1.347, mean("ZRAID", "RAIZN+"), HOST),
        Claim::factor("ZRAID to RAIZN+, 12 zones", 1.48, at_12("ZRAID", "RAIZN+"), HOST),
    ];
    Ok(figure)
}

pub const FIG11: Experiment = Experiment {
    name: "fig11",
    title: "Throughput with a ZRWA in memory and small zones (ZRAID Fig. 11)",
    run: fig11,
};

const FIG11_METHOD: &str = "One PM1731a cut into five members of 8,000 zones, as in the paper, which had only one; \
four of its zones are one, interleaved by 64 KiB; RAID-5, chunk 64 KiB. 15 zones, one job each, 64 requests deep. The \
paper shows throughput relative to RAIZN+ and says 'up to 3.3 times'. On which dies the zones of a drive lie is not \
published; here it is their number modulo 128.";

fn fig11(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let sizes: &[u64] = if effort == Effort::Quick { &[8, 64] } else { &[4, 8, 16, 32, 64] };
    let mut figure = this.figure(FIG11_METHOD);
    let systems = [System::RaiznPlus, System::Zraid, System::Zoneraid];
    figure.rows = grid(this.name, Setup::pm1731a, &systems, &[15], sizes)?;
    let apart = grid(this.name, log_zones_apart, &systems[..2], &[15], sizes)?;
    let rows: Vec<&Row> = figure.rows.iter().collect();
    figure.plots.push(Plot::of("15 zones".into(), "KiB a request", &rows, |row| row.request_kib));
    let most = |rows: &[Row]| {
        let gain_at = |size: &u64| gain(rows, "ZRAID", "RAIZN+", |row| row.request_kib == *size);
        sizes.iter().map(gain_at).fold(0.0, f64::max)
    };
    figure.claims = vec![
        Claim::factor("ZRAID to RAIZN+, the most", 3.3, most(&figure.rows), DIES),
        Claim::factor("the same, log zones on dies of their own", 3.3, most(&apart), ""),
    ];
    Ok(figure)
}

/// Members begin 8,024 zones apart, so that no two log zones lie on the same dies.
fn log_zones_apart(system: System) -> Setup {
    let mut setup = Setup::pm1731a(system);
    setup.model.geometry.zones += 24;
    setup
}

const DIES: &str = "8,000 zones apart the log zones of three members fall on the same four dies, of the other two on four \
others, if zones go to dies in turn; that is what RAIZN+ waits for. How a PM1731a places zones is not published.";
