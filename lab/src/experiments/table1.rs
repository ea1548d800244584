//! Table 1 of the ZRAID paper, by the crash simulator.

use super::{Effort, Experiment};
use crate::figure::{Claim, Figure, Table};
use anyhow::Context;
use engine::raid::Consistency;
use sim::simulator::{subject::ArrayMaker, table1::experiment};

pub const TABLE1: Experiment = Experiment {
    name: "table1",
    title: "What three consistency policies lose in a power cut (ZRAID Table 1)",
    run: table1,
};

const METHOD: &str = "FUA writes of 4 to 512 KiB to five members; the power is cut at any moment and a member is \
lost; a run fails if the write pointer found is below the last acknowledged end. No time passes here: the cut comes \
after any event, where the paper cuts after any second of a real machine. How often a policy fails depends on that \
moment. That the last policy never fails does not.";

/// Failure rate in % and loss in KB.
const PAPER: [(&str, Consistency, f64, f64); 3] = [
    ("stripe", Consistency::Stripe, 76.0, 134.2),
    ("chunk", Consistency::Chunk, 53.0, 32.5),
    ("write-pointer log", Consistency::WpLog, 0.0, 0.0),
];

fn table1(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let runs = if effort == Effort::Quick { 100 } else { 1000 };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let header = ["policy", "failures, paper", "here", "loss in each, paper", "here"];
    let (mut figure, mut table) = (this.figure(METHOD), Table::new("", &header));
    let mut losses = Vec::new();
    for (name, consistency, rate, loss) in PAPER {
        let maker = ArrayMaker { consistency, ..ArrayMaker::default() };
        let found = experiment(&maker, runs, threads, &|| ()).with_context(|| format!("policy {name}"))?;
        let (ours, lost) = (100.0 * found.failure_rate(), found.average_loss_bytes() / 1024.0);
        table.rows.push(vec![
            name.into(),
            format!("{rate} %"),
            format!("{ours:.1} %"),
            format!("{loss} KB"),
            format!("{lost:.1} KB"),
        ]);
        losses.push((ours, lost));
    }
    figure.tables.push(table);
    if let [stripe, chunk, log] = losses[..] {
        figure.claims = vec![
            Claim::factor("loss in a failure, stripe to chunk", 134.2 / 32.5, stripe.1 / chunk.1, ""),
            Claim::factor("failures, stripe to chunk", 76.0 / 53.0, stripe.0 / chunk.0, ""),
            Claim::factor("runs that survive with the write-pointer log", 1.0, 1.0 - log.0 / 100.0, ""),
        ];
    }
    Ok(figure)
}
