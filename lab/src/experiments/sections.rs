//! Effect of a serial section of the driver on the designs that log partial parity.

use super::{Effort, Experiment, gain};
use crate::{
    figure::{Figure, Plot, Row, Table},
    host::Host,
    serial_section::Section,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};

pub const SECTIONS: Experiment = Experiment {
    name: "sections",
    title: "Serial sections of the host, swept: what would explain ZRAID's Fig. 8",
    run: sections,
};

const METHOD: &str = "As Fig. 8 (8 KiB), on the host with mq-deadline. First a section that all writes to an array pass that \
logs partial parity (RAIZN+, Z, Z+S, Z+S+M), and none to ZRAID, so many µs a write: one driver, one log zone, one lock. \
Then what each job's own thread takes for a request, for all systems. Last the queue from which RAIZN dispatches all \
sub-requests, for 8 and 256 KiB: 2 µs elsewhere on this page. Nothing of this is published, none of it is used \
anywhere else; it shows how large such costs would have to be, and is no calibration.";

/// The steps of Fig. 8: the paper's mean, and its value with 12 zones if it gives one.
const STEPS: [(&str, &str, f64, Option<f64>); 4] = [
    ("Z+S", "Z", 1.10, None),
    ("Z+S+M", "Z+S", 1.103, None),
    ("ZRAID", "Z+S+M", 1.177, Some(1.30)),
    ("ZRAID", "RAIZN+", 1.347, Some(1.48)),
];

/// Service time of a section shared by all zones, and CPU time of a job's thread, in µs.
type Costs = (f64, f64);

fn sections(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (zones, shared, own): (&[u32], &[f64], &[f64]) = match effort {
        Effort::Quick => (&[12], &[0.0, 4.0], &[]),
        Effort::Full => (&[1, 4, 7, 10, 12], &[0.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0], &[4.0, 8.0, 16.0]),
    };
    let systems = [System::RaiznPlus, System::Z, System::ZS, System::ZSM, System::Zraid];
    let costs: Vec<Costs> =
        shared.iter().map(|us| (*us, 0.0)).chain(own.iter().map(|us| (0.0, *us))).collect();
    let mut points = Vec::new();
    for costs in &costs {
        for system in systems {
            points.extend(zones.iter().map(|zones| (*costs, system, *zones)));
        }
    }
    let rows = work::each(this.name, &points, |((shared, own), system, zones)| {
        let kernel = Host::mq_deadline();
        let host = Host { submit_us: kernel.submit_us + own, ..kernel };
        let write_us = if *system == System::Zraid { 0.0 } else { *shared };
        let section = Section { write_us, ..Section::default() };
        point(
            &Setup { section, ..Setup::zn540(*system).on(&host) },
            &Load { seeds: 1, ..Load::fio(*zones, 8) },
        )
    })?;
    let mut header = vec!["mean over zones; 12 zones".to_string(), "paper".into()];
    header.extend(costs.iter().map(|(shared, own)| match *own > 0.0 {
        true => format!("{own} µs a job"),
        false => format!("{shared} µs shared"),
    }));
    let mut table = Table { header, ..Table::default() };
    let mut values = Vec::new();
    for (of, over, mean, at_12) in STEPS {
        let mut cells = vec![format!("{of} to {over}")];
        cells.push(at_12.map_or(format!("{mean:.3}"), |at_12| format!("{mean:.3}; {at_12:.2}")));
        for ((shared, own), rows) in costs.iter().zip(rows.chunks(systems.len() * zones.len())) {
            let mean = gain(rows, of, over, |_| true);
            cells.push(format!("{mean:.3}; {:.3}", gain(rows, of, over, |row| row.zones == 12)));
            if *own == 0.0 {
                values.push((format!("{of} to {over}"), (shared * 1000.0) as u64, mean));
            }
        }
        table.rows.push(cells);
    }
    let mut figure = this.figure(METHOD);
    let plot = Plot::through("Mean gains over a shared section", "ns a write in the section", "×", &values);
    let paper = STEPS.iter().filter(|step| step.0 == "ZRAID");
    figure.plots.push(
        paper.fold(plot, |plot, (of, over, mean, _)| plot.limit(format!("paper: {of} to {over}"), *mean)),
    );
    figure.tables.push(table);
    figure.rows = rows;
    queue(this, effort, &mut figure)?;
    Ok(figure)
}

/// RAIZN by the service time of its queue: relative to no queue, and for several numbers of zones.
fn queue(this: &Experiment, effort: Effort, figure: &mut Figure) -> anyhow::Result<()> {
    let (costs, zones): (&[f64], &[u32]) = match effort {
        Effort::Quick => (&[2.0], &[12]),
        Effort::Full => (&[0.0, 0.5, 1.0, 2.0, 4.0, 8.0], &[1, 4, 12]),
    };
    let mut points = Vec::new();
    for us in costs {
        for kib in [8, 256] {
            points.extend(zones.iter().map(|zones| (*us, *zones, kib)));
        }
    }
    let kernel = Host::mq_deadline();
    let rows: Vec<Row> = work::each(this.name, &points, |(us, zones, kib)| {
        let section = Section { sub_request_us: *us, ..Section::default() };
        let row =
            point(&Setup { section, ..Setup::zn540(System::Raizn).on(&kernel) }, &Load::fio(*zones, *kib))?;
        Ok(Row { system: format!("RAIZN, {us} µs"), ..row })
    })?;
    let header = ["µs a sub-request", "KiB", "zones", "MB/s", "± %", "to no queue"];
    let mut table = Table::new("RAIZN over what a sub-request takes in its queue", &header);
    let mut values = Vec::new();
    for ((us, zones, kib), row) in points.iter().zip(&rows) {
        let free = rows.iter().find(|row| (row.zones, row.request_kib) == (*zones, *kib));
        let ratio = row.mb_s / free.map_or(f64::NAN, |free| free.mb_s);
        values.push((format!("{kib} KiB, {zones} zones"), (us * 1000.0) as u64, ratio));
        table.rows.push(vec![
            us.to_string(),
            kib.to_string(),
            zones.to_string(),
            format!("{:.0}", row.mb_s),
            format!("{:.1}", row.spread * 50.0),
            format!("{ratio:.2}"),
        ]);
    }
    let plot = Plot::through("RAIZN over its queue", "ns a sub-request", "× without queue", &values);
    figure.plots.push(plot);
    figure.tables.push(table);
    figure.rows.extend(rows);
    Ok(())
}
