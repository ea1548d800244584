//! Sequential writes to several zones: ZRAID's Figures 7, 8 and 11.

use super::{Effort, Experiment, best};
use crate::{
    bed::{Bed, Load, Setup},
    figure::{Claim, Figure, Plot, Row},
    system::System,
    work,
};

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
    figure.rows = grid(this.name, &System::ALL, zones, sizes)?;
    for size in sizes {
        let rows: Vec<&Row> = figure.rows.iter().filter(|row| row.request_kib == *size).collect();
        let mut plot = Plot::of(format!("{size} KiB"), "zones", &rows, |row| row.zones.into());
        plot.limits.push((format!("limit in the paper: {}", limit(*size)), limit(*size)));
        figure.plots.push(plot);
    }
    let rows = &figure.rows;
    for size in sizes.iter().copied().filter(|size| *size >= 64) {
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

/// All combinations, on five ZN540.
fn grid(what: &str, systems: &[System], zones: &[u32], sizes: &[u64]) -> anyhow::Result<Vec<Row>> {
    let mut points = Vec::new();
    for system in systems {
        for request_kib in sizes {
            points.extend(zones.iter().map(|zones| (*system, *zones, *request_kib)));
        }
    }
    work::each(what, &points, |(system, zones, request_kib)| {
        Bed::new(&Setup::zn540(*system))?.write_zones(&Load::fio(*zones, *request_kib))
    })
}
