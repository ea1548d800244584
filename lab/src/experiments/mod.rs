//! One experiment for each figure.

mod apps;
mod braid;
mod braid_array;
mod braid_reads;
mod braid_ycsb;
mod db_bench;
mod drives;
mod ezns;
mod flush;
mod hosts;
mod joining;
mod latency;
mod layers;
mod limits;
mod raid6;
mod recovery;
mod scrub;
mod sections;
mod sensitivity;
mod start;
mod table1;
mod tenants;
mod throughput;
mod traffic;
mod volume;
mod wear;
mod ycsb;
mod zapraid;
mod zebra;

use crate::{
    figure::{Figure, Row},
    report,
};
use std::time::Instant;

/// Extent of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few points, for a check during development.
    Quick,
    Full,
}

/// An experiment that can be run by name.
pub struct Experiment {
    pub name: &'static str,
    /// Its subject, in a line.
    pub title: &'static str,
    pub run: fn(&Experiment, Effort) -> anyhow::Result<Figure>,
}

impl Experiment {
    /// The experiment of this name.
    pub fn by_name(name: &str) -> Option<&'static Experiment> {
        EXPERIMENTS.iter().find(|experiment| experiment.name == name)
    }

    /// Runs it, and adds tables of unsteady rows and its duration.
    ///
    /// # Errors
    /// A run fails, which none should.
    pub fn figure_of(&self, effort: Effort) -> anyhow::Result<Figure> {
        let started = Instant::now();
        let mut figure = (self.run)(self, effort)?;
        figure.tables.extend(report::unsteady(&figure.rows));
        Ok(Figure { took_s: started.elapsed().as_secs_f64(), ..figure })
    }

    /// An empty figure with title and method.
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
    throughput::FIG7,
    hosts::HOSTS,
    throughput::FIG8,
    sections::SECTIONS,
    apps::FIG9,
    apps::FIG10,
    throughput::FIG11,
    table1::TABLE1,
    flush::S67,
    traffic::WAF,
    zebra::ZEBRA,
    zapraid::ZAPRAID,
    wear::LOGS,
    braid::BRAID,
    braid_reads::BRAID_READS,
    braid_ycsb::BRAID_YCSB,
    braid_array::BRAID_ARRAY,
    layers::LAYERS,
    recovery::RECOVERY,
    start::START,
    volume::VOLUME,
    joining::JOINING,
    latency::LATENCY,
    limits::LIMITS,
    raid6::RAID6,
    scrub::SCRUB,
    ezns::EZNS,
    ycsb::YCSB,
    db_bench::DB_BENCH,
    tenants::TENANTS,
    sensitivity::SENSITIVITY,
    drives::CALIBRATE,
];

/// The calibrated host that the papers' claims are stated on.
const KERNEL: &str = "mq-deadline";

/// Selects rows of a host with this load.
fn on<'a>(host: &'a str, load: impl Fn(&Row) -> bool + 'a) -> impl Fn(&Row) -> bool + 'a {
    move |row| row.host == host && load(row)
}

/// Mean over all loads of the ratio of the throughput of `of` to that of `over`.
fn gain(rows: &[Row], of: &str, over: &str, load: impl Fn(&Row) -> bool) -> f64 {
    let ratios: Vec<f64> = rows
        .iter()
        .filter(|row| row.system == of && load(row))
        .filter_map(|row| {
            let same = |other: &&Row| {
                let load = |row: &Row| (row.zones, row.request_kib, row.depth);
                other.system == over && other.host == row.host && load(other) == load(row)
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
