//! The cost of an explicit ZRWA flush (ZRAID §6.7).

use super::{Effort, Experiment};
use crate::figure::{Claim, ClaimKind, Figure, Plot, Table};
use anyhow::Context;
use emu::{
    clock::Clock,
    ssd::{Model, Ssd, TimedDrive},
    timing::Timing,
};
use engine::{
    device::{Command, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::{cell::RefCell, rc::Rc};

pub const S67: Experiment =
    Experiment { name: "s67", title: "Cost of an explicit ZRWA flush (ZRAID §6.7)", run: s67 };

const METHOD: &str = "One ZN540, one zone with a ZRWA: explicit flushes, one after the other, each 32 KiB further, \
to the end of the zone. The published mean is a parameter of the emulated drive, so this only shows that the model \
keeps it.";

const STEP_BLOCKS: u64 = 8;
/// Parts of the zone that have a mean of their own.
const PARTS: usize = 8;

fn s67(this: &Experiment, _: Effort) -> anyhow::Result<Figure> {
    let (clock, runtime, model) = (Clock::new(), Runtime::new(), Model::zn540());
    let ssd = Rc::new(RefCell::new(Ssd::in_memory(&model.geometry)));
    let drive = TimedDrive::new(ssd, &Timing::zn540(), &clock, Some(1));
    let capacity = model.geometry.zone_capacity_blocks;
    let measured = runtime.block_on(
        async {
            let zones = Zones::One(ZoneIndex(0));
            drive.submit(Command::Open { zones, zrwa: true }).await.result?;
            let steps: Vec<u64> = (STEP_BLOCKS..=capacity).step_by(STEP_BLOCKS as usize).collect();
            let mut means_us = Vec::new();
            for part in steps.chunks(steps.len().div_ceil(PARTS)) {
                let from = clock.now_ns();
                for end in part {
                    drive.submit(Command::FlushZrwa { last: Lba(end - 1) }).await.result?;
                }
                means_us.push((clock.now_ns() - from) as f64 / part.len() as f64 / 1e3);
            }
            Ok::<_, engine::device::DeviceError>(means_us)
        },
        || clock.advance(),
    );
    let means_us = measured.context("the flushes never end")??;
    let mean_us = means_us.iter().sum::<f64>() / means_us.len() as f64;
    let mut figure = this.figure(METHOD);
    let mut table = Table::new("", &["", "paper", "here"]);
    table.rows.push(vec!["mean latency, µs".into(), "6.8".into(), format!("{mean_us:.2}")]);
    figure.tables.push(table);
    figure.claims.push(
        Claim::factor("mean latency to the published 6.8 µs", 1.0, mean_us / 6.8, "")
            .is(ClaimKind::Construction),
    );
    let values: Vec<_> =
        (1..).zip(means_us).map(|(at, us)| ("mean latency here".to_string(), at, us)).collect();
    let plot = Plot::through("Explicit flushes along a zone", "eighth of the zone", "µs", &values);
    figure.plots.push(plot.limit("paper: 6.8", 6.8));
    Ok(figure)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::figure::Verdict;

    #[test]
    fn zrwa_flush_over_gaps_matches_published_time() {
        assert_eq!(s67(&S67, Effort::Quick).unwrap().claims[0].verdict, Verdict::Matched);
    }
}
