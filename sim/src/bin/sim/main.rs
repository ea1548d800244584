//! `sim`: runs the crash simulator from the command line.

mod mutants;
mod run;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use engine::raid::{Consistency, geometry::MAX_PARITIES, policy::Policy};
use indicatif::{ProgressBar, ProgressStyle};
use mutants::Mutants;
use run::Run;
use serde_json::json;
use sim::simulator::{
    exhaustive::{self, Case},
    scenario::{PARITIES, level, parities_of},
    subject::ArrayMaker,
    table1,
};
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    sync::OnceLock,
    time::{Duration, Instant},
};

const OUTPUT_VERSION: u32 = 1;

/// Crash simulator of zoneraid: power cuts, lost drives and faults, decided by seeds
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play random lives of arrays, one for each seed, and check every promise
    Run(Run),
    /// Test small arrays systematically: every power cut, every lost member, every order up to a bound
    Exhaustive(Exhaustive),
    /// Repeat Table 1 of the ZRAID paper: data losses of three consistency policies in a power cut
    Table1(Table1),
    /// Apply single-line changes (mutants) to the engine and run the tests on each; needs the sources and cargo
    Mutants(Mutants),
}

#[derive(clap::Args)]
struct Exhaustive {
    /// Number of deviations from the default order of events [default: one with raid5, none with raid6]
    #[arg(long)]
    delays: Option<usize>,
    /// Only arrays of this policy: log, zrwa or inplace
    #[arg(long, value_name = "NAME", value_parser = parse_policy)]
    policy: Option<Policy>,
    /// Only arrays of this level: raid5 or raid6
    #[arg(long, value_name = "NAME", value_parser = parse_level)]
    level: Option<usize>,
    /// Threads [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Table1 {
    /// Runs for each policy
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// Threads [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn parse_policy(name: &str) -> Result<Policy, String> {
    let known = Policy::ALL.into_iter().find(|policy| policy.name() == name);
    known.ok_or_else(|| {
        format!("there is no policy of this name; there are {}", Policy::ALL.map(Policy::name).join(", "))
    })
}

/// The number of parities of a RAID level.
fn parse_level(name: &str) -> Result<usize, String> {
    parities_of(name).ok_or_else(|| {
        let names: Vec<String> = (0..=MAX_PARITIES).map(level).collect();
        format!("there is no level of this name; there are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(run) => run.run(),
        Command::Exhaustive(exhaustive) => exhaustive.run(),
        Command::Table1(table) => table.run(),
        Command::Mutants(mutants) => mutants.run(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// A progress bar on the terminal for tasks longer than two seconds; otherwise nothing.
struct Progress {
    bar: OnceLock<ProgressBar>,
    done: std::sync::atomic::AtomicU64,
    total: u64,
    started: Instant,
}

impl Progress {
    fn new(total: u64) -> Progress {
        Progress { bar: OnceLock::new(), done: 0.into(), total, started: Instant::now() }
    }

    fn advance(&self) {
        let done = self.done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        self.show(done, self.total);
    }

    fn show(&self, done: u64, total: u64) {
        if self.started.elapsed() < Duration::from_secs(2) || !std::io::stderr().is_terminal() {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = ProgressBar::new(total).with_elapsed(self.started.elapsed());
            let template = "{bar:40} {pos}/{len} ({percent} %), {eta} left";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
    }

    fn finish(&self) -> f64 {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
        self.started.elapsed().as_secs_f64()
    }
}

fn default_jobs() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

impl Exhaustive {
    fn run(&self) -> anyhow::Result<bool> {
        let levels = PARITIES.iter().filter(|parities| self.level.is_none_or(|level| level == **parities));
        let mut cases: Vec<Case> = levels.flat_map(|parities| Case::all(*parities)).collect();
        cases.retain(|case| self.policy.is_none_or(|policy| policy == case.policy));
        if cases.is_empty() {
            bail!("there are no cases of this level");
        }
        let progress = Progress::new(cases.len() as u64);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let show = |done: usize, known: usize| progress.show(done as u64, known as u64);
        // With two parities each order has many more sets of lost members, so only the default order is tried.
        let delays = |case: &Case| self.delays.unwrap_or(usize::from(case.parities == 1));
        let (tried, findings) = exhaustive::search(&ArrayMaker::default(), &cases, &delays, jobs, &show);
        let seconds = progress.finish();
        let mut lines = Vec::new();
        if self.json {
            let failures: Vec<_> = findings
                .iter()
                .map(|f| {
                    let point = format!("{:?}", f.point);
                    json!({"case": f.case, "level": level(f.parities), "point": point, "failure": f.failure})
                })
                .collect();
            let value = json!({
                "output_version": OUTPUT_VERSION,
                "cases": cases.len(),
                "schedules": tried.schedules,
                "power_cuts": tried.power_cuts,
                "kills": tried.kills,
                "shutdowns": tried.shutdowns,
                "failures": findings.len(),
                "found": failures,
                "seconds": seconds,
            });
            lines.push(serde_json::to_string_pretty(&value)?);
        } else {
            for (name, count) in [
                ("cases", cases.len() as u64),
                ("schedules", tried.schedules),
                ("power cuts", tried.power_cuts),
                ("processes killed", tried.kills),
                ("orderly shutdowns", tried.shutdowns),
                ("failures", findings.len() as u64),
            ] {
                lines.push(format!("{name:<24}{count:>12}"));
            }
            lines.push(format!("{seconds:.1} s"));
            for finding in &findings {
                let (case, level) = (finding.case, level(finding.parities));
                lines.push(format!("\n{case}, {level}: {}\n  {:?}", finding.failure, finding.point));
            }
        }
        print_lines(&lines)?;
        Ok(findings.is_empty())
    }
}

/// The paper's Table 1: failure rate and data loss.
const PAPER: [(&str, Consistency, &str, &str); 3] = [
    ("stripe", Consistency::Stripe, "76 %", "134.2 KB"),
    ("chunk", Consistency::Chunk, "53 %", "32.5 KB"),
    ("wp-log", Consistency::WpLog, "0 %", "0 KB"),
];

impl Table1 {
    fn run(&self) -> anyhow::Result<bool> {
        let progress = Progress::new(self.runs * PAPER.len() as u64);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let (mut policies, mut lines) = (Vec::new(), Vec::new());
        lines.push(format!(
            "{:<10}{:>8}{:>14}{:>10}{:>16}{:>12}",
            "policy", "runs", "failure rate", "paper", "average loss", "paper"
        ));
        for (policy, consistency, paper_rate, paper_loss) in PAPER {
            let maker = ArrayMaker { consistency, ..ArrayMaker::default() };
            let row = table1::experiment(&maker, self.runs, jobs, &|| progress.advance())
                .with_context(|| format!("policy {policy}"))?;
            policies.push(json!({
                "policy": policy,
                "runs": row.runs,
                "failures": row.failures,
                "failure_rate": row.failure_rate(),
                "average_loss_bytes": row.average_loss_bytes(),
            }));
            let (rate, loss) = (100.0 * row.failure_rate(), row.average_loss_bytes() / 1024.0);
            lines.push(format!(
                "{policy:<10}{:>8}{rate:>12.1} %{paper_rate:>10}{loss:>13.1} KB{paper_loss:>12}",
                row.runs
            ));
        }
        let seconds = progress.finish();
        if self.json {
            let value = json!({"output_version": OUTPUT_VERSION, "policies": policies, "seconds": seconds});
            lines = vec![serde_json::to_string_pretty(&value)?];
        }
        print_lines(&lines)?;
        Ok(true)
    }
}

/// Prints to standard output; a closed pipe is not an error.
fn print_lines(lines: &[String]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in lines {
        match writeln!(out, "{line}") {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
    }
    Ok(())
}
