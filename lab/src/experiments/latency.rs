//! Latency with few requests in flight, which joining writes must not increase.

use super::{Effort, Experiment};
use crate::{
    figure::{Figure, Plot, Row, Table},
    system::System,
    test_bed::{Load, Setup, point},
    work,
};

pub const LATENCY: Experiment = Experiment {
    name: "latency",
    title: "Latency of writes, one at a time and with few on their way",
    run: latency,
};

const METHOD: &str = "Five ZN540 of 1 TB, RAID-5, chunk 64 KiB, one zone. Not in the papers. zoneraid joins writes \
that wait behind each other; with one request on its way there is nothing to join, and nothing may become slower.";

fn latency(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let loads: &[(u32, u64)] = match effort {
        Effort::Quick => &[(1, 4), (8, 4)],
        Effort::Full => {
            &[(1, 4), (1, 16), (1, 64), (1, 256), (2, 4), (4, 4), (8, 4), (16, 4), (32, 4), (4, 16), (16, 16)]
        }
    };
    let systems = [System::RaiznPlus, System::Zraid, System::Zoneraid];
    let points: Vec<_> =
        loads.iter().flat_map(|load| systems.map(|system| (system, load.0, load.1))).collect();
    let mut figure = this.figure(METHOD);
    figure.rows = work::each(this.name, &points, |(system, depth, request_kib)| {
        let load = Load { depth: *depth, ..Load::fio(1, *request_kib) };
        point(&Setup::zn540(*system), &load)
    })?;
    let mut table = Table::new("zoneraid to ZRAID, one at a time", &["KiB", "p50", "p99"]);
    for (depth, size) in loads.iter().filter(|load| load.0 == 1) {
        let of = |system: &str, value: fn(&Row) -> f64| {
            let row = figure
                .rows
                .iter()
                .find(|row| row.system == system && (row.depth, row.request_kib) == (*depth, *size));
            row.map_or(f64::NAN, value)
        };
        let ratio = |value| format!("{:.3}", of("zoneraid", value) / of("ZRAID", value));
        table.rows.push(vec![size.to_string(), ratio(|row| row.p50_us), ratio(|row| row.p99_us)]);
    }
    figure.tables.push(table);
    let small = figure.rows.iter().filter(|row| row.request_kib == 4);
    let values: Vec<_> = small.map(|row| (row.system.clone(), row.depth.into(), row.p50_us)).collect();
    figure.plots.push(Plot::through("4 KiB, one zone: median", "requests on their way", "µs", &values));
    Ok(figure)
}
