//! `lab`: runs experiments from the command line.

use anyhow::Context;
use clap::{Parser, Subcommand};
use lab::{
    experiments::{EXPERIMENTS, Effort, Experiment},
    host::Host,
    load::Window,
    report,
    system::System,
    test_bed::{Load, Setup, TestBed, point},
    trace::Trace,
    work,
};
use std::{fs, path::PathBuf, process::ExitCode, time::Instant};

/// Experiments with zoneraid on emulated drives, in virtual time
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare the emulated drives with published figures of single drives
    Calibrate(lab::calibrate::Calibrate),
    /// Fit the parameters of a drive to what fio measured on it
    Fit(lab::fit::Fit),
    /// List the experiments
    List,
    /// Run one experiment
    Run(RunArguments),
    /// Run all experiments and write a page with their figures
    Report(Report),
    /// Measure a single point of sequential writes on ZN540
    Point(PointArguments),
}

#[derive(clap::Args)]
struct RunArguments {
    /// Name of the experiment, see `lab list`
    #[arg(value_parser = experiment)]
    figure: &'static Experiment,
    /// Run only a few points
    #[arg(long)]
    quick: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Report {
    /// File of the HTML page
    out: PathBuf,
    /// Only a few points of each experiment
    #[arg(long)]
    quick: bool,
}

#[derive(clap::Args)]
struct PointArguments {
    /// RAIZN, RAIZN+, ZRAID, zoneraid
    #[arg(long, value_parser = system)]
    system: System,
    /// Number of zones written at the same time
    #[arg(long)]
    zones: u32,
    #[arg(long)]
    request_kib: u64,
    /// Queue depth per zone
    #[arg(long, default_value_t = 64)]
    depth: u32,
    /// Host model: free, spdk, io_uring, mq-deadline, daemon, µs on one thread, or a file written by 'zoneraid
    /// bench host --json'
    #[arg(long, default_value = "free", value_parser = host)]
    host: Host,
    /// Members of the array
    #[arg(long, default_value_t = 5)]
    drives: usize,
    /// Service time of a sub-request in RAIZN's queue, in µs: an unpublished parameter, guessed
    #[arg(long, default_value_t = lab::test_bed::RAIZN_QUEUE_US)]
    queue_us: f64,
    /// Mean of random pauses after each request, in µs
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
    /// Write a trace of the last 2 ms of a short run to this file, for chrome://tracing or Perfetto
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn host(name: &str) -> Result<Host, String> {
    Host::by_name(name).map_err(|error| format!("{error:#}"))
}

fn experiment(name: &str) -> Result<&'static Experiment, String> {
    Experiment::by_name(name).ok_or_else(|| format!("there is no such experiment; there are {}", names()))
}

fn names() -> String {
    EXPERIMENTS.iter().map(|experiment| experiment.name).collect::<Vec<_>>().join(", ")
}

fn system(name: &str) -> Result<System, String> {
    let names = || System::ALL.map(System::name).join(", ");
    System::by_name(name).ok_or_else(|| format!("there is no such system; there are {}", names()))
}

impl RunArguments {
    fn run(&self) -> anyhow::Result<bool> {
        let figure = self.figure.figure_of(effort(self.quick))?;
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&figure)?),
            false => println!("{}", report::text(&figure)),
        }
        Ok(true)
    }
}

impl Report {
    fn run(&self) -> anyhow::Result<bool> {
        let started = Instant::now();
        let effort = effort(self.quick);
        // Several at a time: the last points of one run beside the first ones of another.
        let figures = work::each("report", EXPERIMENTS, |experiment| {
            let figure = experiment.figure_of(effort)?;
            work::line(&format!("{:<12}{:>6.1} s", experiment.name, figure.took_s));
            anyhow::Ok(figure)
        });
        let failed = || format!("{} cannot be written", self.out.display());
        if let Some(directory) = self.out.parent() {
            fs::create_dir_all(directory).with_context(failed)?;
        }
        fs::write(&self.out, report::html(&figures?)?).with_context(failed)?;
        println!("{}: written in {:.0} s", self.out.display(), started.elapsed().as_secs_f64());
        Ok(true)
    }
}

impl PointArguments {
    fn run(&self) -> anyhow::Result<bool> {
        let load =
            Load { depth: self.depth, pause_us: self.pause_us, ..Load::fio(self.zones, self.request_kib) };
        let mut setup = Setup::zn540(self.system).on(&self.host);
        setup.members = self.drives;
        if self.system == System::Raizn {
            setup.section.sub_request_us = self.queue_us;
        }
        if let Some(path) = &self.trace {
            let trace = Trace::default();
            let short = Load { window: Window::ms(6, 8), ..load };
            TestBed::traced(&Setup { request_kib: self.request_kib, ..setup.clone() }, Some(trace.clone()))?
                .write_zones(&short)?;
            let written = fs::write(path, serde_json::to_vec(&trace.json(TRACED_NS))?);
            written.with_context(|| format!("{} cannot be written", path.display()))?;
        }
        let row = point(&setup, &load)?;
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&row)?),
            false => println!("{}", report::table(&report::points(&[row]))),
        }
        Ok(true)
    }
}

/// Length of the end of a run that a trace holds.
const TRACED_NS: u64 = 2_000_000;

fn effort(quick: bool) -> Effort {
    if quick { Effort::Quick } else { Effort::Full }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Calibrate(calibrate) => calibrate.run(),
        Command::Fit(fit) => fit.run(),
        Command::List => {
            EXPERIMENTS.iter().for_each(|experiment| println!("{:<12}{}", experiment.name, experiment.title));
            Ok(true)
        }
        Command::Run(run) => run.run(),
        Command::Report(report) => report.run(),
        Command::Point(point) => point.run(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::from(2)
        }
    }
}
