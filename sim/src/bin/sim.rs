//! `sim`: runs the crash simulator from the command line.

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use sim::simulator::{
    runner::{self, Summary},
    subject::ArrayMaker,
    world::Tracing,
};
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Lines of the trace that are shown of a seed that fails.
const TRACE_TAIL: usize = 60;
/// Failing seeds that are named on the terminal.
const MOST_SHOWN: usize = 20;
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
}

#[derive(clap::Args)]
struct Run {
    /// How many seeds to play
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Threads to play them on [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print every event of the seed; only with one seed
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(run) => run.run(),
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

/// A progress bar on the terminal for whatever takes more than two seconds; otherwise nothing.
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
        if self.started.elapsed() < Duration::from_secs(2) || !std::io::stderr().is_terminal() {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = ProgressBar::new(self.total).with_elapsed(self.started.elapsed());
            let template = "{bar:40} {pos}/{len} ({percent} %), {eta} left";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
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

impl Run {
    fn run(&self) -> anyhow::Result<bool> {
        let maker = ArrayMaker;
        if self.trace {
            if self.seeds != 1 {
                bail!("--trace prints one seed: add --seeds 1 --from SEED");
            }
            let outcome = runner::replay(&maker, self.from, Tracing::All);
            print_lines(&outcome.trace)?;
            return match outcome.failure {
                Some(failure) => {
                    println!("seed {}: {failure}", self.from);
                    Ok(false)
                }
                None => Ok(true),
            };
        }
        let end = self.from.checked_add(self.seeds).context("there are no seeds above 2^64 - 1")?;
        let progress = Progress::new(self.seeds);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let summary = runner::run_seeds(&maker, self.from..end, jobs, &|| progress.advance());
        let seconds = progress.finish();
        if self.json { self.print_json(&summary, seconds)? } else { self.print_text(&summary, seconds)? }
        if self.seeds == 1 && !summary.failures.is_empty() {
            let outcome = runner::replay(&maker, self.from, Tracing::Tail(TRACE_TAIL));
            for line in outcome.trace {
                eprintln!("{line}");
            }
        }
        Ok(summary.failures.is_empty())
    }

    fn replay_command(&self, seed: u64) -> String {
        format!("sim run --seeds 1 --from {seed}")
    }

    fn print_json(&self, summary: &Summary, seconds: f64) -> anyhow::Result<()> {
        let counts = &summary.counts;
        let replay: Vec<String> = summary.failures.iter().map(|f| self.replay_command(f.seed)).collect();
        let value = json!({
            "output_version": OUTPUT_VERSION,
            "seeds": summary.seeds,
            "operations": counts.operations,
            "power_cuts": counts.power_cuts,
            "member_losses": counts.member_losses,
            "interrupted_recoveries": counts.interrupted_recoveries,
            "rebuilds": counts.rebuilds,
            "faults": counts.faults,
            "refusals": counts.refusals,
            "failures": summary.failures.len(),
            "replay": replay,
            "seconds": seconds,
        });
        print_lines(&[serde_json::to_string_pretty(&value)?])
    }

    fn print_text(&self, summary: &Summary, seconds: f64) -> anyhow::Result<()> {
        let counts = &summary.counts;
        let mut lines: Vec<String> = [
            ("seeds", summary.seeds),
            ("operations", counts.operations),
            ("power cuts", counts.power_cuts),
            ("member losses", counts.member_losses),
            ("interrupted recoveries", counts.interrupted_recoveries),
            ("rebuilds", counts.rebuilds),
            ("faults", counts.faults),
            ("refusals", counts.refusals),
            ("failures", summary.failures.len() as u64),
        ]
        .map(|(name, count)| format!("{name:<24}{count:>12}"))
        .to_vec();
        let rate = counts.power_cuts as f64 / seconds.max(1e-9);
        lines.push(format!("{seconds:.1} s, {rate:.0} power cuts a second"));
        for (why, count) in &summary.refusals {
            lines.push(format!("refused {count} times: {why}"));
        }
        for failure in summary.failures.iter().take(MOST_SHOWN) {
            lines.push(String::new());
            lines.push(format!("seed {}: {}", failure.seed, failure.failure.as_deref().unwrap_or_default()));
            lines.push(format!("  {}", self.replay_command(failure.seed)));
        }
        if summary.failures.len() > MOST_SHOWN {
            lines.push(format!("\nand {} more failures", summary.failures.len() - MOST_SHOWN));
        }
        print_lines(&lines)
    }
}

/// Prints to standard output; a reader who has seen enough is not an error.
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
