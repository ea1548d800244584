//! Whether joining writes ever loses to a partial parity for each: depths, numbers of drives, pauses.

use super::{Effort, Experiment};
use crate::{
    bed::{Load, Setup, point},
    figure::{Figure, Plot, Row, Table},
    host::Host,
    system::System,
    work,
};

pub const JOINING: Experiment = Experiment {
    name: "joining",
    title: "zoneraid beside ZRAID over depths, drives and think time",
    run: joining,
};

const METHOD: &str = "ZN540 of 1 TB, RAID-5, chunk 64 KiB, 4 KiB writes; drives, zones, and requests on their way in each, most \
of them no multiples of a stripe; without pauses, or with random ones of 10 µs on average after each request. Not in the \
papers. The host costs nothing, so that nothing hides what joining loses: waiting is a bet on what follows, and with \
pauses what follows may come too late.";

/// Pauses after each request, in µs.
const PAUSES: [u64; 2] = [0, 10];

fn joining(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (drives, zones, depths): (&[usize], &[u32], &[u32]) = match effort {
        Effort::Quick => (&[5], &[1], &[1, 24]),
        Effort::Full => (&[3, 5, 8, 32], &[1, 7], &[1, 2, 3, 6, 12, 16, 24, 32, 48, 64, 100, 128]),
    };
    let mut loads = Vec::new();
    for drives in drives {
        for zones in zones {
            for pause_us in PAUSES {
                loads.extend(depths.iter().map(|depth| (*drives, *zones, pause_us, *depth)));
            }
        }
    }
    let ratios = work::each(this.name, &loads, |(drives, zones, pause_us, depth)| {
        let load = Load { depth: *depth, pause_us: *pause_us, seeds: 1, ..Load::fio(*zones, 4) };
        let of = |system| point(&Setup { members: *drives, ..Setup::zn540(system).on(&Host::free()) }, &load);
        let (zraid, ours): (Row, Row) = (of(System::Zraid)?, of(System::Zoneraid)?);
        Ok(ours.mb_s / zraid.mb_s)
    })?;
    let mut header = vec!["drives, zones, pause µs".to_string(), "least".into()];
    header.extend(depths.iter().map(|depth| format!("QD{depth}")));
    let mut table = Table { title: "zoneraid to ZRAID, throughput".into(), header, rows: Vec::new() };
    for (loads, ratios) in loads.chunks(depths.len()).zip(ratios.chunks(depths.len())) {
        let (drives, zones, pause_us, _) = loads[0];
        let least = ratios.iter().copied().fold(f64::MAX, f64::min);
        let mut cells = vec![format!("{drives}, {zones}, {pause_us}"), format!("{least:.2}")];
        cells.extend(ratios.iter().map(|ratio| format!("{ratio:.2}")));
        table.rows.push(cells);
    }
    let mut figure = this.figure(METHOD);
    for zones in zones {
        let values: Vec<(String, u64, f64)> = loads
            .iter()
            .zip(&ratios)
            .filter(|(load, _)| load.1 == *zones)
            .map(|(load, ratio)| {
                let pause = if load.2 > 0 { ", pauses" } else { "" };
                (format!("{} drives{pause}", load.0), load.3.into(), *ratio)
            })
            .collect();
        let title = format!("zoneraid to ZRAID, {zones} zones, 4 KiB");
        let plot = Plot::through(title, "requests on their way in each zone", "×", &values);
        figure.plots.push(plot.limit("as fast as ZRAID", 1.0));
    }
    figure.tables.push(table);
    Ok(figure)
}
