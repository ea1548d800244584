//! The drives by themselves, beside what is published of them.

use super::{Effort, Experiment};
use crate::{
    calibrate,
    figure::{Figure, Table},
};
use sim::timing::Timing;

pub const CALIBRATE: Experiment =
    Experiment { name: "calibrate", title: "The emulated drives beside the real ones", run: calibrate };

const METHOD: &str = "Single drives, each with the load that the figure was measured with. Parameters were fitted to \
these figures and to nothing else.";

fn calibrate(this: &Experiment, _: Effort) -> anyhow::Result<Figure> {
    let header = ["", "drive", "predicted", "published", "error", "unit", "source", "known miss"];
    let mut table = Table::new("", &header);
    for row in calibrate::rows()? {
        table.rows.push(vec![
            row.item,
            row.drive.into(),
            format!("{:.1}", row.predicted),
            format!("{:.1}", row.published),
            format!("{:+.1} %", row.error_percent),
            row.unit.into(),
            row.source.into(),
            row.miss.unwrap_or_default().into(),
        ]);
    }
    let mut figure = this.figure(&format!("{METHOD} Guesses: {}.", Timing::GUESSES.join("; ")));
    figure.tables.push(table);
    Ok(figure)
}
