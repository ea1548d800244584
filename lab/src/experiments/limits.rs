//! Breakdown of the distance to the limit: causes are switched off in the model, one by one.

use super::{Effort, Experiment};
use crate::{
    figure::{Figure, Plot, Row, Table},
    report,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};

pub const LIMITS: Experiment = Experiment {
    name: "limits",
    title: "What lies between zoneraid and the limit of 4,920 MB/s",
    run: limits,
};

const METHOD: &str = "Five ZN540 of 1 TB, RAID-5, chunk 64 KiB, 7 zones, 64 requests deep. Four fifths of what five \
drives write is the limit of any RAID-5: 4,920 MB/s with the published 1,230 MB/s a drive, 4,812 with the 1,203 of the \
model. Each column has one thing less to spend time on. 'By bytes' is what the drives could write if they did nothing \
else, given how much the array writes for a block of the host's: on these drives temporary parity costs bandwidth too. \
Causes overlap: they do not add up. 'Zones turned' is no cause but a way out: each zone of the array begins on another \
drive than the one before it, so that zones in step could not hit the same drive.";

/// A change of the model, and its name.
type Change = (&'static str, fn(&mut Setup, &mut Load));

const CHANGES: [Change; 6] = [
    ("as it is", |_, _| ()),
    ("no jitter", |setup, _| setup.seed = None),
    ("flushes free", |setup, _| {
        setup.timing.zrwa_flush_firmware_us = 0.0;
        setup.timing.zrwa_flush_acknowledge_us = 0.0;
    }),
    ("commands free", |setup, _| setup.timing.write_firmware_us = 0.0),
    ("depth 256", |_, load| load.depth = 256),
    ("zones turned", |setup, _| setup.turned = true),
];

fn limits(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let sizes: &[u64] = if effort == Effort::Quick { &[4] } else { &[4, 16, 64, 256] };
    let systems = [System::Zraid, System::Zoneraid];
    let mut points = Vec::new();
    for system in systems {
        for size in sizes {
            points.extend(CHANGES.map(|change| (system, *size, change)));
        }
    }
    let rows = work::each(this.name, &points, |(system, size, (_, change))| {
        let (mut setup, mut load) = (Setup::zn540(*system), Load::fio(7, *size));
        change(&mut setup, &mut load);
        point(&setup, &load)
    })?;
    let mut header = vec!["MB/s", "KiB", "by bytes"];
    header.extend(CHANGES.map(|change| change.0));
    let mut causes = Table::new("", &header);
    let drives = Setup::zn540(System::Zraid);
    let bandwidth = drives.members as f64 * drives.timing.drain_mb_s.unwrap_or(f64::NAN);
    let mut plain: Vec<Row> = Vec::new();
    for changed in rows.chunks(CHANGES.len()) {
        let Some(first) = changed.first() else { continue };
        let mut cells = vec![first.system.clone(), first.request_kib.to_string()];
        cells.push(format!("{:.0}", bandwidth / first.written.all()));
        cells.extend(changed.iter().map(|row| format!("{:.0}", row.mb_s)));
        causes.rows.push(cells);
        plain.push(first.clone());
    }
    let mut figure = this.figure(METHOD);
    for system in systems.map(System::name) {
        let of_system = rows.chunks(CHANGES.len()).filter(|rows| rows[0].system == system);
        let values: Vec<(String, u64, f64)> = of_system
            .flat_map(|rows| {
                rows.iter().zip(CHANGES).map(|(row, (change, _))| (change.into(), row.request_kib, row.mb_s))
            })
            .collect();
        let plot = Plot::through(format!("{system}, 7 zones"), "KiB a request", "MB/s", &values);
        figure.plots.push(plot.limit("four drives: 4920", 4920.0));
    }
    figure.tables = vec![causes, report::written(&plain)];
    figure.rows = plain;
    Ok(figure)
}
