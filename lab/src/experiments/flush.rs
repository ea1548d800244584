//! The cost of an explicit ZRWA flush (ZRAID §6.7).

use super::{Effort, Experiment};
use crate::figure::{Claim, Figure, Kind, Plot, Table};
use anyhow::Context;
use engine::{
    device::{Command, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use sim::{
    clock::Clock,
    ssd::{Model, Ssd, TimedDrive},
    timing::Timing,
};
use std::{cell::RefCell, rc::Rc};

pub const S67: Experiment =
    Experiment { name: "s67", title: "Cost of an explicit ZRWA flush (ZRAID §6.7)", run: s67 };

const METHOD: &str = "One ZN540, one zone with a ZRWA: explicit flushes, one after the other, each 32 KiB further, \
to the end of the zone. The published mean is a parameter of the emulated drive, so this only shows that the model \
keeps it.";

const STEP_BLOCKS: u64 = 8;

fn s67(this: &Experiment, _: Effort) -> anyhow::Result<Figure> {
    let (clock, runtime, model) = (Clock::new(), Runtime::new(), Model::zn540());
    let ssd = Rc::new(RefCell::new(Ssd::in_memory(&model.geometry)));
    let drive = TimedDrive::new(ssd, &Timing::zn540(), &clock, Some(1));
    let capacity = model.geometry.zone_capacity_blocks;
    let measured = runtime.block_on(
        async {
            let zones = Zones::One(ZoneIndex(0));
            drive.submit(Command::Open { zones, zrwa: true }).await.result?;
            let from = clock.now_ns();
            for end in (STEP_BLOCKS..=capacity).step_by(STEP_BLOCKS as usize) {
                drive.submit(Command::FlushZrwa { last: Lba(end - 1) }).await.result?;
            }
            Ok::<_, engine::device::DeviceError>((clock.now_ns() - from) / (capacity / STEP_BLOCKS))
        },
        || clock.advance(),
    );
    let mean_us = measured.context("the flushes never end")?? as f64 / 1e3;
    let mut figure = this.figure(METHOD);
    let mut table = Table::new("", &["", "paper", "here"]);
    table.rows.push(vec!["mean latency, µs".into(), "6.8".into(), format!("{mean_us:.2}")]);
    figure.tables.push(table);
    figure.claims.push(
        Claim::factor("mean latency to the published 6.8 µs", 1.0, mean_us / 6.8, "").is(Kind::Construction),
    );
    let line = vec![("mean latency here".to_string(), vec![mean_us, mean_us])];
    let plot = Plot::named("Explicit flush, each 32 KiB further", "µs", &["start of the zone", "end"], line);
    figure.plots.push(plot.limit("paper: 6.8", 6.8));
    Ok(figure)
}
