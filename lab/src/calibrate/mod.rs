//! Calibration: the emulated drives, and hosts in front of them, against published figures of single drives.
//!
//! Each row is one published figure. The prediction of the model is measured on one drive, with the load of the
//! published measurement. Figures of arrays are predictions and never among these.

mod hosts;
mod pm1731a;
mod real_time;
mod zn540;

use crate::load::{self, Job, Measurement, RequestKind, Window};
use anyhow::{Context, Result};
use emu::{
    clock::Clock,
    ssd::{Model, NoMedia, Ssd, TimedDrive},
    timing::Timing,
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Done, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use serde::Serialize;
use serde_json::json;
use std::{cell::RefCell, rc::Rc};

const OUTPUT_VERSION: u32 = 1;
/// Largest error of a row without a stated reason, in percent.
pub const TOLERANCE_PERCENT: f64 = 10.0;

/// Options of `lab calibrate`.
#[derive(clap::Args)]
pub struct Calibrate {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Run some drives in real time instead, and compare with virtual time
    #[arg(long)]
    real_time: bool,
}

/// A published figure and the model's prediction.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationRow {
    /// Name of the model.
    pub drive: &'static str,
    pub item: String,
    pub unit: &'static str,
    pub predicted: f64,
    pub published: f64,
    /// Error of the prediction, in percent of the published figure.
    pub error_percent: f64,
    pub source: &'static str,
    /// Largest allowed error.
    pub bound_percent: f64,
    /// The reason for an error above [`TOLERANCE_PERCENT`].
    pub miss: Option<&'static str>,
}

impl CalibrationRow {
    /// Whether the error is within the bound.
    pub fn holds(&self) -> bool {
        self.error_percent.abs() <= self.bound_percent
    }

    /// Allows this row an error of up to `percent`, for the reason `why`.
    fn missed(&mut self, percent: f64, why: &'static str) {
        self.bound_percent = percent;
        self.miss = Some(why);
    }
}

/// All rows of a drive, and the common fields of the next ones.
struct CalibrationTable {
    drive: &'static str,
    source: &'static str,
    unit: &'static str,
    rows: Vec<CalibrationRow>,
}

impl CalibrationTable {
    fn row(&mut self, item: impl Into<String>, predicted: f64, published: f64) -> &mut CalibrationRow {
        self.rows.push(CalibrationRow {
            drive: self.drive,
            item: item.into(),
            unit: self.unit,
            predicted,
            published,
            error_percent: (predicted / published - 1.0) * 100.0,
            source: self.source,
            bound_percent: TOLERANCE_PERCENT,
            miss: None,
        });
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }
}

impl Calibrate {
    /// Prints the table; gives whether all rows hold.
    ///
    /// # Errors
    /// A drive fails a request, which it never should.
    pub fn run(&self) -> Result<bool> {
        if self.real_time {
            return real_time::run(self.json).map(|()| true);
        }
        let rows = rows()?;
        let hold = rows.iter().all(CalibrationRow::holds);
        if self.json {
            println!("{}", json!({ "version": OUTPUT_VERSION, "guesses": Timing::GUESSES, "rows": rows }));
            return Ok(hold);
        }
        println!("{:<10} {:<54} {:>19} {:>9}  {:>8}  source", "drive", "", "predicted", "published", "error");
        for row in &rows {
            let CalibrationRow { drive, item, unit, predicted, published, error_percent, source, .. } = row;
            println!(
                "{drive:<10} {item:<54} {predicted:>12.1} {unit:<6} {published:>9.1}  {error_percent:>+6.1} %  {source}{}",
                if row.holds() { "" } else { "  OUT OF BOUNDS" }
            );
            if let Some(why) = row.miss {
                println!("{:<10}   known miss: {why}", "");
            }
        }
        println!("\nPredictions are simulated. Parameters that are guesses: {}.", Timing::GUESSES.join("; "));
        Ok(hold)
    }
}

/// All published figures.
///
/// # Errors
/// A drive fails a request, which it never should.
pub fn rows() -> Result<Vec<CalibrationRow>> {
    let mut rows = zn540::rows()?;
    rows.extend(pm1731a::rows()?);
    rows.extend(hosts::rows()?);
    Ok(rows)
}

/// A drive that stores nothing, and its clock.
struct Bench {
    drive: TimedDrive,
    clock: Clock,
    runtime: Runtime,
}

impl Bench {
    /// A blank drive of this name.
    fn new(name: &str) -> Result<Bench> {
        let model = Model::by_name(name).with_context(|| format!("there is no drive {name}"))?;
        let ssd = Ssd::new(model.geometry.clone(), Box::new(NoMedia::new(&model.geometry)));
        Bench::around(name, Rc::new(RefCell::new(ssd)))
    }

    /// A drive with the timing of `name` around `ssd`.
    fn around(name: &str, ssd: Rc<RefCell<Ssd>>) -> Result<Bench> {
        let timing = Timing::by_name(name).with_context(|| format!("there is no timing of {name}"))?;
        let clock = Clock::new();
        let drive = TimedDrive::new(ssd, &timing, &clock, Some(1));
        Ok(Bench { drive, clock, runtime: Runtime::new() })
    }

    fn run(&self, jobs: &[Job], window: Window) -> Result<Vec<Measurement>> {
        load::run(&self.runtime, &self.device(), &self.clock, jobs, window)
    }

    fn device(&self) -> Rc<dyn ZonedDevice> {
        Rc::new(self.drive.clone())
    }

    /// Writes a zone from its start in no virtual time.
    fn prefill(&self, zone: ZoneIndex, blocks: u64) -> Result<()> {
        let geometry = self.drive.geometry();
        let start = geometry.start(zone).0;
        let most = geometry.max_transfer_blocks as u64;
        let whole = Buf::zeroed(most as usize * BLOCK);
        for at in (0..blocks).step_by(most as usize) {
            let data = whole.slice_blocks(0..most.min(blocks - at));
            let done = self.drive.ssd().borrow_mut().execute(Command::write(Lba(start + at), data, false));
            done.result.with_context(|| format!("zone {}", zone.0))?;
        }
        Ok(())
    }

    /// Makes a zone full in no virtual time.
    fn fill_at_once(&self, zone: ZoneIndex) -> Result<()> {
        let finish = Command::Finish { zones: Zones::One(zone) };
        self.drive.ssd().borrow_mut().execute(finish).result.with_context(|| format!("zone {}", zone.0))
    }

    /// Executes one command and gives its time in µs.
    fn time(&self, command: Command) -> Result<f64> {
        let begin = self.clock.now_ns();
        let done: Option<Done> = self.runtime.block_on(self.drive.submit(command), || self.clock.advance());
        done.context("the drive does not answer")?.result?;
        Ok((self.clock.now_ns() - begin) as f64 / 1e3)
    }
}

/// The mean of `count` measurements.
fn mean(count: u32, mut measure: impl FnMut(u32) -> Result<f64>) -> Result<f64> {
    (0..count).try_fold(0.0, |sum, number| Ok(sum + measure(number)? / count as f64))
}

/// The same job on each of the first `zones` zones of a new drive.
pub(crate) fn measure(
    name: &str,
    kind: RequestKind,
    zones: u32,
    kib: u64,
    depth: u32,
    window: Window,
) -> Result<Measurement> {
    let bench = Bench::new(name)?;
    let jobs: Vec<Job> = (0..zones).map(|zone| Job::new(kind, zone, kib, depth)).collect();
    Ok(Measurement::sum(&bench.run(&jobs, window)?))
}
