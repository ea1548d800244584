//! Single drives beside their published figures.

use super::{Effort, Experiment};
use crate::{
    calibrate,
    figure::{Figure, Plot, Table},
};
use emu::{ssd::Model, timing::Timing};

pub const CALIBRATE: Experiment =
    Experiment { name: "calibrate", title: "The emulated drives beside the real ones", run: calibrate };

const METHOD: &str = "Single drives, each with the load that the figure was measured with. Parameters were fitted to \
these figures and to nothing else.";

fn calibrate(this: &Experiment, _: Effort) -> anyhow::Result<Figure> {
    let rows = calibrate::rows()?;
    let header = ["", "drive", "predicted", "published", "error", "unit", "source", "known miss"];
    let mut table = Table::new("", &header);
    for row in &rows {
        table.rows.push(vec![
            row.item.clone(),
            row.drive.into(),
            format!("{:.1}", row.predicted),
            format!("{:.1}", row.published),
            format!("{:+.1} %", row.error_percent),
            row.unit.into(),
            row.source.into(),
            row.miss.unwrap_or_default().into(),
        ]);
    }
    let errors: Vec<(String, u64, f64)> = Model::NAMES
        .iter()
        .flat_map(|name| {
            let of_drive = rows.iter().filter(move |row| row.drive == *name);
            of_drive.enumerate().map(|(number, row)| {
                (row.drive.to_string(), number as u64 + 1, row.predicted / row.published)
            })
        })
        .collect();
    let plot = Plot::through("Predicted to published, row by row", "row of the drive", "×", &errors);
    let plot = Plot { apart: true, ..plot };
    let mut figure = this.figure(&format!("{METHOD} Guesses: {}.", Timing::GUESSES.join("; ")));
    figure.plots.push(plot.band("within 10 %", 0.9, 1.1));
    figure.tables.push(table);
    Ok(figure)
}
