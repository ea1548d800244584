//! A second parity: as many data members, one more drive.

use super::{Effort, Experiment};
use crate::{
    figure::{Figure, Plot, Row, Table},
    report,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};

pub const RAID6: Experiment = Experiment {
    name: "raid6",
    title: "RAID-6 on six drives beside RAID-5 on five: sequential writes",
    run: raid6,
};

const METHOD: &str = "ZN540 of 1 TB, chunk 64 KiB, four data members each: five drives with RAID-5, six with RAID-6; one \
job a zone. Not in the papers. Four drives' bandwidth, 4,920 MB/s with the published 1,230 MB/s a drive, is the limit of \
both, which write 5/4 and 6/4 blocks for each of the host's at least. Of the 16 chunks of a ZRWA the window takes half \
with RAID-5, 8 stripes, and a third with RAID-6, 5 stripes.";

/// The levels, as the rows name them.
const LEVELS: [(&str, usize); 2] = [("RAID-5", 1), ("RAID-6", 2)];

/// Requests in flight in each zone.
const DEPTHS: [u32; 4] = [1, 4, 16, 64];

fn setup(parities: usize) -> Setup {
    Setup { members: 4 + parities, parities, ..Setup::zn540(System::Zoneraid) }
}

fn raid6(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (zones, sizes): (&[u32], &[u64]) = match effort {
        Effort::Quick => (&[7], &[4]),
        Effort::Full => (&[1, 7], &[4, 16, 64, 256]),
    };
    let of_zones = |zones: u32| sizes.iter().flat_map(move |size| DEPTHS.map(|depth| (zones, *size, depth)));
    let loads: Vec<_> = zones.iter().flat_map(|zones| of_zones(*zones)).collect();
    let points: Vec<_> = loads.iter().flat_map(|load| LEVELS.map(|level| (level, *load))).collect();
    let mut figure = this.figure(METHOD);
    figure.rows = work::each(this.name, &points, |((name, parities), (zones, request_kib, depth))| {
        let load = Load { depth: *depth, ..Load::fio(*zones, *request_kib) };
        let row = point(&setup(*parities), &load)?;
        Ok(Row { system: name.to_string(), ..row })
    })?;
    let heads =
        ["zones", "KiB", "depth", "RAID-5 MB/s", "RAID-6 MB/s", "ratio", "RAID-5 p50 µs", "RAID-6 p50 µs"];
    let mut table = Table::new("Throughput, and the latency of a write", &heads);
    for (rows, (zones, size, depth)) in figure.rows.chunks(LEVELS.len()).zip(&loads) {
        let [one, two] = rows else { continue };
        table.rows.push(vec![
            zones.to_string(),
            size.to_string(),
            depth.to_string(),
            format!("{:.0}", one.mb_s),
            format!("{:.0}", two.mb_s),
            format!("{:.2}", two.mb_s / one.mb_s),
            format!("{:.0}", one.p50_us),
            format!("{:.0}", two.p50_us),
        ]);
    }
    for (zones, size) in zones.iter().flat_map(|zones| sizes.iter().map(move |size| (*zones, *size))) {
        let is = |row: &&Row| (row.zones, row.request_kib) == (zones, size);
        let rows: Vec<&Row> = figure.rows.iter().filter(is).collect();
        let title = format!("{size} KiB in {zones} zones at a time");
        let mut plot = Plot::of(title, "requests on their way", &rows, |row| row.depth.into());
        plot.limits.push(("four drives' bandwidth".into(), 4920.0));
        figure.plots.push(plot);
    }
    figure.tables = vec![table, report::written(&figure.rows)];
    Ok(figure)
}
