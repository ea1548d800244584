//! Whether joining writes ever loses to a partial parity for each: depths, numbers of drives, pauses.

use super::{Effort, Experiment};
use crate::{
    bed::{Load, Setup, point},
    figure::{Figure, Plot, Row, Table},
    system::System,
    work,
};

pub const JOINING: Experiment = Experiment {
    name: "joining",
    title: "zoneraid beside ZRAID over depths, drives and think time",
    run: joining,
};

const METHOD: &str = "ZN540 of 1 TB, RAID-5, chunk 64 KiB, 4 KiB writes, and 16 and 64 KiB in one zone of five drives; drives, zones, and requests on their way in each, \
most of them no multiples of a stripe; without pauses, or with random ones of 10 µs on average after each request. Not in the \
papers. The host costs nothing, so that nothing hides what joining loses: waiting is a bet on what follows, and with \
pauses what follows may come too late.";

/// What is the same at all depths.
#[derive(Clone, Copy)]
struct Group {
    drives: usize,
    zones: u32,
    kib: u64,
    pause_us: u64,
}

/// Pauses after each request, in µs.
const PAUSES: [u64; 2] = [0, 10];

fn joining(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (drives, zones, depths): (&[usize], &[u32], &[u32]) = match effort {
        Effort::Quick => (&[5], &[1], &[1, 24]),
        Effort::Full => (&[3, 5, 8, 32], &[1, 7], &[1, 2, 3, 6, 12, 16, 24, 32, 48, 64, 100, 128]),
    };
    let mut groups = Vec::new();
    for pause_us in PAUSES {
        for drives in drives {
            groups.extend(zones.iter().map(|zones| Group {
                drives: *drives,
                zones: *zones,
                kib: 4,
                pause_us,
            }));
        }
        groups.extend([16, 64].map(|kib| Group { drives: 5, zones: 1, kib, pause_us }));
    }
    let loads: Vec<(Group, u32)> =
        groups.iter().flat_map(|group| depths.iter().map(move |depth| (*group, *depth))).collect();
    let ratios = work::each(this.name, &loads, |(group, depth)| {
        let load =
            Load { depth: *depth, pause_us: group.pause_us, seeds: 1, ..Load::fio(group.zones, group.kib) };
        let of = |system| point(&Setup { members: group.drives, ..Setup::zn540(system) }, &load);
        let (zraid, ours): (Row, Row) = (of(System::Zraid)?, of(System::Zoneraid)?);
        Ok(ours.mb_s / zraid.mb_s)
    })?;
    let mut header = vec!["drives, zones, KiB, pause µs".to_string(), "least".into()];
    header.extend(depths.iter().map(|depth| format!("QD{depth}")));
    let mut table = Table { title: "zoneraid to ZRAID, throughput".into(), header, rows: Vec::new() };
    for (Group { drives, zones, kib, pause_us }, ratios) in groups.iter().zip(ratios.chunks(depths.len())) {
        let least = ratios.iter().copied().fold(f64::MAX, f64::min);
        let mut cells = vec![format!("{drives}, {zones}, {kib}, {pause_us}"), format!("{least:.2}")];
        cells.extend(ratios.iter().map(|ratio| format!("{ratio:.2}")));
        table.rows.push(cells);
    }
    let mut figure = this.figure(METHOD);
    for pause_us in PAUSES {
        let values: Vec<(String, u64, f64)> = loads
            .iter()
            .zip(&ratios)
            .filter(|((group, _), _)| group.pause_us == pause_us && group.zones == 1)
            .map(|((group, depth), ratio)| {
                (format!("{} drives, {} KiB", group.drives, group.kib), (*depth).into(), *ratio)
            })
            .collect();
        let title = format!("zoneraid to ZRAID, one zone, pauses of {pause_us} µs");
        let plot = Plot::through(title, "requests on their way", "×", &values);
        figure.plots.push(plot.limit("as fast as ZRAID", 1.0));
    }
    figure.tables.push(table);
    Ok(figure)
}
