//! Calibration: the emulated drives against published figures of single drives.
//!
//! Each row is one published figure. What the model predicts is measured on one drive, with the
//! load that the figure was measured with. Figures of arrays are predictions and never among these.

use crate::load::{self, Job, Kind, Measured, Window};
use anyhow::{Context, Result};
use engine::{device::ZonedDevice, runtime::Runtime, zone::ZoneIndex};
use serde::Serialize;
use serde_json::json;
use sim::{
    clock::Clock,
    ssd::{Model, NoMedia, Ssd, TimedDrive},
    timing::Timing,
};
use std::{cell::RefCell, rc::Rc};

const OUTPUT_VERSION: u32 = 1;

/// Options of `lab calibrate`.
#[derive(clap::Args)]
pub struct Calibrate {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A published figure and what the model makes of it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub drive: &'static str,
    pub item: String,
    pub unit: &'static str,
    pub predicted: f64,
    pub published: f64,
    pub source: &'static str,
}

impl Row {
    /// How far the prediction is off, in percent of what was published.
    pub fn error_percent(&self) -> f64 {
        (self.predicted / self.published - 1.0) * 100.0
    }
}

impl Calibrate {
    /// Prints the table.
    ///
    /// # Errors
    /// When a drive fails a request, which it never should.
    pub fn run(&self) -> Result<bool> {
        let rows = rows()?;
        if self.json {
            println!("{}", json!({ "version": OUTPUT_VERSION, "rows": rows }));
            return Ok(true);
        }
        for row in &rows {
            println!(
                "{:<10} {:<44} {:>9.1} {:>9.1} {:<6} {:>+6.1} %  {}",
                row.drive,
                row.item,
                row.predicted,
                row.published,
                row.unit,
                row.error_percent(),
                row.source
            );
        }
        Ok(true)
    }
}

/// A blank drive that stores nothing, by a new clock.
///
/// # Errors
/// When there is no such model.
pub fn drive(name: &str, seed: Option<u64>) -> Result<(Rc<dyn ZonedDevice>, Clock)> {
    let model = Model::by_name(name).with_context(|| format!("there is no drive {name}"))?;
    let timing = Timing::by_name(name).with_context(|| format!("there is no timing of {name}"))?;
    let clock = Clock::new();
    let ssd = Ssd::new(model.geometry.clone(), Box::new(NoMedia::new(&model.geometry)));
    let drive = TimedDrive::new(Rc::new(RefCell::new(ssd)), &timing, &clock, seed);
    Ok((Rc::new(drive), clock))
}

/// The same job on each of the first `zones` zones.
fn measure(name: &str, kind: Kind, zones: u32, kib: u64, depth: u32, window: Window) -> Result<Measured> {
    let (drive, clock) = drive(name, Some(1))?;
    let job = |zone| Job { kind, zone: ZoneIndex(zone), blocks: kib / 4, depth, pause_ns: 0 };
    let jobs: Vec<Job> = (0..zones).map(job).collect();
    Ok(Measured::sum(&load::run(&Runtime::new(), &drive, &clock, &jobs, window)?))
}

/// Every figure that is published.
///
/// # Errors
/// When a drive fails a request, which it never should.
pub fn rows() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let window = Window::ms(50, 350);
    for (drive, zones, kib, published, source) in [
        ("zn540-4tb", 1, 4, 337.6, "ZapRAID"),
        ("zn540-4tb", 1, 8, 613.6, "ZapRAID"),
        ("zn540-4tb", 1, 16, 1050.0, "ZapRAID"),
        ("zn540-4tb", 6, 4, 777.2, "ZapRAID"),
        ("zn540", 1, 4, 333.0, "StoNet"),
        ("zn540", 2, 4, 553.0, "StoNet"),
        ("zn540", 4, 4, 704.0, "StoNet"),
        ("zn540", 8, 4, 726.0, "StoNet"),
        ("zn540", 14, 4, 712.0, "StoNet"),
    ] {
        let predicted = measure(drive, Kind::Write, zones, kib, 1, window)?.mib_s();
        let item = format!("{kib} KiB writes, {zones} zones, QD1 each");
        rows.push(Row { drive, item, unit: "MiB/s", predicted, published, source });
    }
    Ok(rows)
}
