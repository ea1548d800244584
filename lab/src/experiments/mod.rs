//! One experiment for each figure.

mod flush;
mod table1;
mod throughput;

use crate::figure::{Figure, Row};

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few points, for a look while something is being changed.
    Quick,
    Full,
}

/// Something that can be run by name.
pub struct Experiment {
    pub name: &'static str,
    /// What it shows, in a line.
    pub title: &'static str,
    pub run: fn(&Experiment, Effort) -> anyhow::Result<Figure>,
}

impl Experiment {
    /// The experiment of this name.
    pub fn by_name(name: &str) -> Option<&'static Experiment> {
        EXPERIMENTS.iter().find(|experiment| experiment.name == name)
    }

    /// A figure to be filled.
    fn figure(&self, method: &str) -> Figure {
        Figure {
            figure: self.name.into(),
            title: self.title.into(),
            method: method.into(),
            ..Figure::default()
        }
    }
}

/// All of them, in the order of the report.
pub const EXPERIMENTS: &[Experiment] = &[throughput::FIG7, table1::TABLE1, flush::S67];

/// The highest throughput of a system.
fn best(rows: &[Row], of: &str, load: impl Fn(&Row) -> bool) -> f64 {
    rows.iter().filter(|row| row.system == of && load(row)).map(|row| row.mb_s).fold(0.0, f64::max)
}
