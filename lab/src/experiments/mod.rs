//! One experiment for each figure.

mod drives;
mod flush;
mod latency;
mod limits;
mod raid6;
mod sensitivity;
mod table1;
mod throughput;
mod traffic;
mod zebra;

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
pub const EXPERIMENTS: &[Experiment] = &[
    drives::CALIBRATE,
    throughput::FIG7,
    throughput::FIG8,
    throughput::FIG11,
    table1::TABLE1,
    flush::S67,
    zebra::ZEBRA,
    traffic::WAF,
    latency::LATENCY,
    limits::LIMITS,
    raid6::RAID6,
    sensitivity::SENSITIVITY,
];

/// Mean over all loads of what `of` writes to what `over` writes, in throughput.
fn gain(rows: &[Row], of: &str, over: &str, load: impl Fn(&Row) -> bool) -> f64 {
    let ratios: Vec<f64> = rows
        .iter()
        .filter(|row| row.system == of && load(row))
        .filter_map(|row| {
            let same = |other: &&Row| {
                other.system == over && (other.zones, other.request_kib) == (row.zones, row.request_kib)
            };
            Some(row.mb_s / rows.iter().find(same)?.mb_s)
        })
        .collect();
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

/// The highest throughput of a system.
fn best(rows: &[Row], of: &str, load: impl Fn(&Row) -> bool) -> f64 {
    rows.iter().filter(|row| row.system == of && load(row)).map(|row| row.mb_s).fold(0.0, f64::max)
}
