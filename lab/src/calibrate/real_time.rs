//! The same drives in real time: one model on two kinds of clock.

use super::{Bench, OUTPUT_VERSION};
use crate::load::{self, Job, Measurement, RequestKind, Window};
use anyhow::{Context, Result};
use emu::ssd::{EmulatedDrive, Model};
use serde::Serialize;
use serde_json::json;
use std::{path::Path, time::Instant};

/// A load in virtual and in real time.
#[derive(Serialize)]
struct RealTimeRow {
    drive: &'static str,
    item: &'static str,
    virtual_mb_s: f64,
    virtual_p50_us: f64,
    real_mb_s: f64,
    real_p50_us: f64,
}

/// Runs some loads both ways and prints the results.
pub(super) fn run(json: bool) -> Result<()> {
    let folder = tempfile::tempdir().context("there is no place for a drive image")?;
    let image = folder.path().join("drive");
    let rows = [
        row("zn540", "4 KiB writes to one zone", Job::new(RequestKind::Write, 0, 4, 1), None)?,
        row("zn540", "64 KiB writes to one zone", Job::new(RequestKind::Write, 0, 64, 1), None)?,
        row("zn540", "4 KiB reads", Job::new(RequestKind::Read, 0, 4, 1), None)?,
        row("zn540", "4 KiB reads, 32 in flight", Job::new(RequestKind::Read, 0, 4, 32), None)?,
        row("pm1731a", "16 KiB writes to one zone", Job::new(RequestKind::Write, 0, 16, 1), None)?,
        row(
            "pm1731a",
            "16 KiB writes to a zone of an image",
            Job::new(RequestKind::Write, 0, 16, 1),
            Some(&image),
        )?,
        row("pm1731a", "64 KiB reads", Job::new(RequestKind::Read, 0, 64, 1), None)?,
    ];
    if json {
        println!("{}", json!({ "version": OUTPUT_VERSION, "real_time": rows }));
        return Ok(());
    }
    println!("{:<10} {:<36} {:>21} {:>23}", "drive", "", "in virtual time, p50", "in real time, p50");
    for row in rows {
        println!(
            "{:<10} {:<36} {:>7.1} MB/s {:>6.1} µs {:>7.1} MB/s {:>6.1} µs",
            row.drive, row.item, row.virtual_mb_s, row.virtual_p50_us, row.real_mb_s, row.real_p50_us
        );
    }
    println!("\nIn real time a processor has to be free for the drive all the time.");
    Ok(())
}

fn row(drive: &'static str, item: &'static str, job: Job, image: Option<&Path>) -> Result<RealTimeRow> {
    let window = Window::ms(20, 220);
    let in_virtual = Bench::new(drive)?.run(std::slice::from_ref(&job), window)?;
    let bench = match image {
        Some(path) => {
            let model = Model::by_name(drive).context("there is no such drive")?;
            let model = model.scaled(16, 24 << 10);
            let image = EmulatedDrive::create_image(path, &model, [1; 16])?;
            Bench::around(drive, image.ssd().clone())?
        }
        None => Bench::new(drive)?,
    };
    let since = Instant::now();
    let pass = || bench.clock.keep_pace(since);
    let in_real = load::run_at_pace(&bench.runtime, &bench.device(), &bench.clock, &[job], window, &pass)?;
    let (in_virtual, in_real) = (Measurement::sum(&in_virtual), Measurement::sum(&in_real));
    Ok(RealTimeRow {
        drive,
        item,
        virtual_mb_s: in_virtual.mb_s(),
        virtual_p50_us: in_virtual.quantile_us(0.5),
        real_mb_s: in_real.mb_s(),
        real_p50_us: in_real.quantile_us(0.5),
    })
}
