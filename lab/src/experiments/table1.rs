//! Table 1 of the ZRAID paper: power cuts in virtual time, on drives with timing.

use super::{Effort, Experiment};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Table},
    system::System,
    test_bed::{Setup, TestBed},
    work,
};
use anyhow::Context;
use emu::{rng::Rng, ssd::Model};
use engine::{
    buf::{BLOCK, Buf},
    device::Command,
    raid::Consistency,
    zone::{Lba, ZoneIndex},
};
use std::{cell::Cell, rc::Rc};

pub const TABLE1: Experiment = Experiment {
    name: "table1",
    title: "What three consistency policies lose in a power cut (ZRAID Table 1)",
    run: table1,
};

const METHOD: &str = "Five ZN540, ZRAID. FUA writes of 4 to 512 KiB, one after the other; after 2 to 12 ms of virtual time, \
where the paper waits 0.5 to 20 s, the power is cut, a member is lost, and the rest is assembled. A run fails if the write \
pointer found is below the last acknowledged end. The first column of ours is without a pause between writes; then with \
one of 200 µs, as long as a guest may take to tell its host which write it has finished, which the paper's does after each. \
How often a policy fails depends on what a cut finds on its way, so on that pause; that the last policy never fails does not.";

/// Name, policy, the paper's failure rate in % and loss in KB.
type Policy = (&'static str, Consistency, f64, f64);
const PAPER: [Policy; 3] = [
    ("stripe", Consistency::Stripe, 76.0, 134.2),
    ("chunk", Consistency::Chunk, 53.0, 32.5),
    ("write-pointer log", Consistency::WpLog, 0.0, 0.0),
];
const PAUSES_US: [u64; 2] = [0, 200];
const MOST_WRITE_BLOCKS: u64 = 128;

const PAUSE: &str = "Where between two writes the cut falls decides it: with a pause of 200 µs more runs fail than in the \
paper, without one fewer.";

/// Failure rate from 0 to 1, and the mean loss per failure, in KB.
#[derive(Clone, Copy, Default)]
struct LossResult {
    rate: f64,
    lost_kb: f64,
}

fn table1(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let runs: u64 = if effort == Effort::Quick { 20 } else { 200 };
    let mut points = Vec::new();
    for (_, consistency, ..) in PAPER {
        for pause_us in PAUSES_US {
            points.extend((0..runs).map(|run| (consistency, pause_us, run)));
        }
    }
    let lost = work::each(this.name, &points, |(consistency, pause_us, run)| {
        one_run(*consistency, *pause_us, *run)
    })?;
    let found: Vec<LossResult> = lost.chunks(runs as usize).map(summary).collect();
    let header =
        ["policy", "failures, paper", "no pause", "200 µs", "loss in each, paper", "no pause", "200 µs"];
    let mut table = Table::new(format!("{runs} runs each"), &header);
    for ((name, _, rate, loss), found) in PAPER.iter().zip(found.chunks(PAUSES_US.len())) {
        let mut cells = vec![name.to_string(), format!("{rate} %")];
        cells.extend(found.iter().map(|found| format!("{:.1} %", found.rate * 100.0)));
        cells.push(format!("{loss} KB"));
        cells.extend(found.iter().map(|found| format!("{:.1} KB", found.lost_kb)));
        table.rows.push(cells);
    }
    let mut figure = this.figure(METHOD);
    figure.tables.push(table);
    type TableColumn = (&'static str, &'static str, fn(&LossResult) -> f64, fn(&Policy) -> f64);
    let shown: [TableColumn; 2] = [
        ("Failures, without a pause", "% of runs", |found| found.rate * 100.0, |paper| paper.2),
        ("Loss in each failure, without a pause", "KB", |found| found.lost_kb, |paper| paper.3),
    ];
    for (title, unit, ours, paper) in shown {
        let line = found.chunks(PAUSES_US.len()).map(|found| ours(&found[0])).collect();
        let mut plot = Plot::named(title, unit, &PAPER.map(|(name, ..)| name), vec![("here".into(), line)]);
        plot.points =
            PAPER.iter().enumerate().map(|(at, policy)| ("paper".into(), at, paper(policy))).collect();
        figure.plots.push(plot);
    }
    if let [stripe, _, chunk, _, log, log_paused] = found[..] {
        let survives = 1.0 - log.rate.max(log_paused.rate);
        figure.claims = vec![
            Claim::share("failures, stripe-based, %", 76.0, stripe.rate * 100.0, PAUSE).is(ClaimKind::Guess),
            Claim::share("failures, chunk-based, %", 53.0, chunk.rate * 100.0, PAUSE).is(ClaimKind::Guess),
            Claim::share("loss in a failure, stripe-based, KB", 134.2, stripe.lost_kb, ""),
            Claim::share("loss in a failure, chunk-based, KB", 32.5, chunk.lost_kb, ""),
            Claim::factor(
                "loss in a failure, stripe to chunk",
                134.2 / 32.5,
                stripe.lost_kb / chunk.lost_kb,
                "",
            ),
            Claim::factor("runs that survive with the write-pointer log", 1.0, survives, "")
                .is(ClaimKind::Construction),
        ];
    }
    Ok(figure)
}

fn summary(lost_blocks: &[u64]) -> LossResult {
    let failed: Vec<u64> = lost_blocks.iter().copied().filter(|lost| *lost > 0).collect();
    let lost_kb = failed.iter().sum::<u64>() as f64 * 4.0 / failed.len().max(1) as f64;
    LossResult { rate: failed.len() as f64 / lost_blocks.len() as f64, lost_kb }
}

/// One run; gives the number of acknowledged blocks that were lost.
fn one_run(consistency: Consistency, pause_us: u64, run: u64) -> anyhow::Result<u64> {
    let mut rng = Rng::new(run);
    let model = Model::zn540().scaled(8, 16 << 8);
    let setup = Setup { model, consistency, stores: true, seed: Some(run), ..Setup::zn540(System::Zraid) };
    let bed = TestBed::new(&setup)?;
    let acknowledged = Rc::new(Cell::new(0));
    let (array, clock, done, mut sizes) =
        (bed.array.clone(), bed.clock.clone(), acknowledged.clone(), rng.fork());
    bed.runtime.spawn(async move {
        let data = Buf::zeroed(MOST_WRITE_BLOCKS as usize * BLOCK);
        let capacity = array.geometry().zone_capacity_blocks;
        loop {
            let (at, size) = (done.get(), 1 + sizes.below(MOST_WRITE_BLOCKS));
            if at + size > capacity {
                return;
            }
            let write = Command::write(Lba(at), data.slice_blocks(0..size), true);
            if array.submit(write).await.result.is_err() {
                return;
            }
            done.set(at + size);
            clock.sleep(pause_us * 1000).await;
        }
    });
    let cut = bed.clock.sleep(2_000_000 + rng.below(10_000_000));
    bed.run(cut)?;
    let lost = rng.below(setup.members as u64) as usize;
    let again = bed.cut_power(Some(lost))?;
    let report = again.array.submit(Command::Report { first: ZoneIndex(0), count: 1 });
    let done =
        again.runtime.block_on(report, || again.clock.advance()).context("the array does not answer")?;
    done.result?;
    let wp = done.zones.first().map_or(0, |zone| zone.wp_blocks);
    Ok(acknowledged.get().saturating_sub(wp))
}
