//! `sim`: runs the crash simulator from the command line.

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use engine::raid::{Consistency, policy::Policy};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use sim::{
    mutants::{
        self, Build, Judges,
        finders::Finders,
        list::Fate,
        play::{self, Options, Played, Score},
    },
    simulator::{
        coverage::Ledger,
        exhaustive::{self, Case},
        layer::Over,
        layered::{Layer, LayeredMaker},
        namespaces,
        runner::{self, Outcome, Seeds, Summary},
        scenario::{GROUP_BLOCKS, PARITIES, level, parities_of},
        silent::Came,
        subject::ArrayMaker,
        table1, volume,
        world::Tracing,
    },
};
use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

/// Lines of the trace that are shown of a seed that fails.
const TRACE_TAIL: usize = 60;
/// Failing seeds that are named on the terminal for each kind of failure.
const MOST_SHOWN: usize = 5;
/// Where the ledger is, and how many seeds are kept there.
const LEDGER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ledger.txt");
const LEARNT: usize = 48;
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
    /// Try small arrays systematically: every power cut, every lost member, every order up to a bound
    Exhaustive(Exhaustive),
    /// Repeat Table 1 of the ZRAID paper: what three consistency policies lose in a power cut
    Table1(Table1),
    /// Break the engine's rules, one at a time, and see whether the tests notice; needs the sources and cargo
    Mutants(Mutants),
}

#[derive(clap::Args)]
struct Mutants {
    /// Only so many of them, drawn from those that a few seeds show, and nothing but seeds [default: all]
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// Instead of the list, so many changes of single lines of the engine and the host, drawn at random by --from
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["sample", "only", "learn", "write_score"])]
    random: Option<usize>,
    /// With --random, of these files alone: their paths below engine/src, or below host/src behind `host/`, begin so
    #[arg(long, value_name = "PATH", requires = "random")]
    below: Option<String>,
    /// Only those of these names
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The first seed, which also decides the sample
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Seeds to begin with, before other tests are asked
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Seeds in all
    #[arg(long, default_value_t = 3000)]
    seeds_most: u64,
    /// How many to play at once [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// The workspace whose engine is changed [default: the one that this program was built of]
    #[arg(long, value_name = "DIRECTORY")]
    source: Option<PathBuf>,
    /// Write the score between the markers in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sample", "only"])]
    write_score: Option<PathBuf>,
    /// Note in sim/finders.txt who found each of them
    #[arg(long)]
    learn: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Exhaustive {
    /// How often an order may deviate from the default one [default: once with raid5, never with raid6]
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

#[derive(Clone, clap::Args)]
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
    /// Begin no seed once one has failed
    #[arg(long)]
    until_failure: bool,
    /// Leave out the seeds of the ledger, which come first unless a single seed is asked for
    #[arg(long)]
    no_ledger: bool,
    /// Write those seeds to the ledger that have shown most of what few others have; needs the sources
    #[arg(long, conflicts_with_all = ["policy", "level", "no_ledger"])]
    learn: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Only arrays of this policy: log, zrwa, inplace or append, which is drawn as half of log otherwise
    #[arg(long, value_name = "NAME", value_parser = parse_named)]
    policy: Option<Named>,
    /// Only arrays of this level: raid5 or raid6
    #[arg(long, value_name = "NAME", value_parser = parse_level)]
    level: Option<usize>,
    /// Print every event of the seed; only with one seed
    #[arg(long)]
    trace: bool,
    /// Play volumes instead: block devices over single drives, and over arrays; with --policy over arrays of that
    /// policy alone
    #[arg(long, group = "layer", conflicts_with_all = ["learn", "until_failure"])]
    volume: bool,
    /// With --volume or --namespaces, only over single drives
    #[arg(long, requires = "layer", conflicts_with_all = ["policy", "level"])]
    single: bool,
    /// Play namespaces instead: tenants of single drives, and of arrays; with --policy of arrays of that policy alone
    #[arg(long, group = "layer", conflicts_with_all = ["learn", "until_failure", "level"])]
    namespaces: bool,
    /// Play a layer on arrays instead, with every end and misfortune of arrays: namespaces, volume,
    /// volume-on-namespace, or volume-on-namespace-on-drive, which has no array;
    /// without a name, as many seeds of each
    #[arg(
        long,
        value_name = "LAYER",
        num_args = 0..=1,
        default_missing_value = "all",
        value_parser = parse_layers,
        group = "layer",
        conflicts_with_all = ["learn", "until_failure", "single"],
    )]
    stack: Option<Layers>,
    /// Have a drive of each life lose a write, misplace one or bring an old one back without an error, and count what
    /// lives come to: none of that is promised to be survived
    #[arg(long, group = "layer", conflicts_with_all = ["learn", "until_failure", "single"])]
    silent: bool,
    /// Also play cases that are known to fail now and then: two hosts at once, damage to more members than parity covers,
    /// remedies and readability beyond the promise (docs/TESTING.md)
    #[arg(long, group = "layer", conflicts_with_all = ["learn", "single"])]
    beyond: bool,
}

/// Layers on arrays.
#[derive(Clone)]
struct Layers(Vec<Layer>);

fn parse_layers(name: &str) -> Result<Layers, String> {
    if name == "all" {
        return Ok(Layers(Layer::ALL.to_vec()));
    }
    let known = Layer::ALL.into_iter().find(|layer| layer.name() == name);
    known.map(|layer| Layers(vec![layer])).ok_or_else(|| {
        format!("there is no layer of this name; there are {}", Layer::ALL.map(Layer::name).join(", "))
    })
}

/// What users call a policy. Arrays of the policy `append` are those of `log` whose zones are written by appends.
#[derive(Clone, Copy)]
struct Named {
    policy: Policy,
    appends: bool,
}

impl Named {
    fn name(self) -> &'static str {
        self.policy.name_with(self.group_blocks())
    }

    /// Blocks of a group, under volumes and namespaces.
    fn group_blocks(self) -> u32 {
        if self.appends { GROUP_BLOCKS } else { 0 }
    }
}

fn parse_named(name: &str) -> Result<Named, String> {
    match name {
        "append" => Ok(Named { policy: Policy::Log, appends: true }),
        name => match parse_policy(name) {
            Ok(policy) => Ok(Named { policy, appends: false }),
            Err(known) => Err(known + ", append"),
        },
    }
}

fn parse_policy(name: &str) -> Result<Policy, String> {
    let known = Policy::ALL.into_iter().find(|policy| policy.name() == name);
    known.ok_or_else(|| {
        format!("there is no policy of this name; there are {}", Policy::ALL.map(Policy::name).join(", "))
    })
}

/// The number of parities of a level.
fn parse_level(name: &str) -> Result<usize, String> {
    parities_of(name).ok_or_else(|| {
        let names: Vec<String> = PARITIES.iter().map(|parities| level(*parities)).collect();
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

impl Run {
    fn run(&self) -> anyhow::Result<bool> {
        if self.namespaces {
            return self.run_namespaces();
        }
        if self.volume {
            return self.run_volumes();
        }
        let policy = self.policy.map(|named| named.policy);
        let appends = self.policy.is_some_and(|named| named.appends);
        let maker = ArrayMaker {
            policy,
            parities: self.level,
            appends,
            beyond: self.beyond,
            ..ArrayMaker::default()
        };
        if self.silent {
            return self.run_silent(ArrayMaker { silent: true, ..maker });
        }
        if let Some(Layers(layers)) = &self.stack {
            return self.run_stacks(&maker, layers);
        }
        if self.trace {
            if self.seeds != 1 {
                bail!("--trace prints one seed: add --seeds 1 --from SEED");
            }
            let outcome = runner::replay(&maker, self.from, Tracing::All);
            print_lines(&outcome.trace)?;
            return match outcome.failure {
                Some(failure) => {
                    print_lines(&[format!("seed {}: {failure}", self.from)])?;
                    Ok(false)
                }
                None => Ok(true),
            };
        }
        let end = self.from.checked_add(self.seeds).context("there are no seeds above 2^64 - 1")?;
        let ledger = match self.no_ledger || self.seeds == 1 || appends {
            true => Vec::new(),
            false => Ledger::built_in().map_err(anyhow::Error::msg)?.seeds(policy, self.level),
        };
        let progress = Progress::new(self.seeds + ledger.len() as u64);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let Run { until_failure, learn, .. } = *self;
        let seeds = Seeds { first: ledger, range: self.from..end, until_failure, learn };
        let summary = runner::play(&maker, &seeds, jobs, &|| progress.advance());
        let seconds = progress.finish();
        if learn && summary.failures.is_empty() {
            std::fs::write(LEDGER, Ledger::learn(&summary.sights_by_seed, LEARNT)).context(LEDGER)?;
        }
        if self.json {
            print_lines(&[serde_json::to_string_pretty(&self.json_of(&summary, seconds))?])?
        } else {
            self.print_text(&summary, seconds)?
        }
        if self.seeds == 1 && !summary.failures.is_empty() {
            let outcome = runner::replay(&maker, self.from, Tracing::Tail(TRACE_TAIL));
            for line in outcome.trace {
                eprintln!("{line}");
            }
        }
        Ok(summary.failures.is_empty())
    }

    /// Plays arrays with silent faults, and counts what becomes of them by policy and level.
    fn run_silent(&self, arrays: ArrayMaker) -> anyhow::Result<bool> {
        let policies = arrays.policy.map_or(Policy::ALL.to_vec(), |policy| vec![policy]);
        let levels = arrays.parities.map_or(PARITIES.to_vec(), |parities| vec![parities]);
        let kinds: Vec<(Policy, usize)> =
            policies.iter().flat_map(|policy| levels.iter().map(|level| (*policy, *level))).collect();
        let (mut value, mut panics) = (serde_json::Map::new(), Vec::new());
        for (policy, parities) in &kinds {
            let maker = ArrayMaker { policy: Some(*policy), parities: Some(*parities), ..arrays.clone() };
            let range = self.from..self.from + (self.seeds / kinds.len() as u64).max(1);
            let jobs = self.jobs.unwrap_or_else(default_jobs);
            let summary = runner::play(&maker, &Seeds { range, ..Seeds::default() }, jobs, &|| ());
            let mut counts = BTreeMap::from([(Came::Intact, summary.seeds - summary.failures.len() as u64)]);
            for failure in &summary.failures {
                let came = Came::of(failure.failure.as_deref());
                *counts.entry(came).or_insert(0) += 1;
                if came == Came::Panic {
                    let (why, policy) = (failure.failure.as_deref().unwrap_or_default(), policy.name());
                    let options = format!("--policy {policy} --level {}", level(*parities));
                    panics.push(format!("seed {} with {options}: {why}", failure.seed));
                }
            }
            let line = Came::ALL.map(|came| (came.name(), counts.get(&came).copied().unwrap_or(0)));
            let name = format!("{} {}", level(*parities), policy.name());
            if !self.json {
                let cells: String =
                    line.iter().map(|(name, count)| format!("{name:>15}{count:>6}")).collect();
                print_lines(&[format!("{name:<16}{cells}")])?;
            }
            value.insert(name, line.into_iter().map(|(name, count)| (name, json!(count))).collect());
        }
        if self.json {
            let value = json!({"output_version": OUTPUT_VERSION, "kinds": value, "panics": panics});
            print_lines(&[serde_json::to_string_pretty(&value)?])?;
        } else {
            print_lines(&panics)?;
        }
        Ok(panics.is_empty())
    }

    /// Plays layers on arrays, as many seeds of each.
    fn run_stacks(&self, arrays: &ArrayMaker, layers: &[Layer]) -> anyhow::Result<bool> {
        let (mut sound, mut values) = (true, serde_json::Map::new());
        for (index, layer) in layers.iter().enumerate() {
            let maker = LayeredMaker { layer: *layer, arrays: arrays.clone() };
            if self.trace {
                let outcome = runner::replay(&maker, self.from, Tracing::All);
                print_lines(&outcome.trace)?;
                let failure = outcome.failure.map(|failure| format!("seed {}: {failure}", self.from));
                print_lines(failure.as_slice())?;
                sound &= failure.is_none();
                continue;
            }
            let count = (self.seeds + index as u64) / layers.len() as u64;
            let end = self.from.checked_add(count).context("there are no seeds above 2^64 - 1")?;
            let progress = Progress::new(count);
            let jobs = self.jobs.unwrap_or_else(default_jobs);
            let seeds = Seeds { range: self.from..end, ..Seeds::default() };
            let summary = runner::play(&maker, &seeds, jobs, &|| progress.advance());
            let seconds = progress.finish();
            sound &= summary.failures.is_empty();
            let one = Run { stack: Some(Layers(vec![*layer])), ..self.clone() };
            match self.json {
                true => _ = values.insert(layer.name().into(), one.json_of(&summary, seconds)),
                false => {
                    print_lines(&[String::new(), layer.name().into()])?;
                    one.print_text(&summary, seconds)?;
                }
            }
        }
        if self.json && !self.trace {
            let failures = |value: &serde_json::Value| value["failures"].as_u64().unwrap_or(0);
            let first = values.values().find_map(|value| value["first_failure"].as_str());
            let value = json!({
                "output_version": OUTPUT_VERSION,
                "failures": values.values().map(failures).sum::<u64>(),
                "first_failure": first,
                "stacks": values,
            });
            print_lines(&[serde_json::to_string_pretty(&value)?])?;
        }
        Ok(sound)
    }

    /// What all layers lie on, if that was said.
    fn over(&self) -> Option<Over> {
        if self.single {
            return Some(Over::Drive);
        }
        let array = |named: Named| {
            let (policy, group_blocks) = (named.policy, named.group_blocks());
            Over::Array { policy, parities: self.level.unwrap_or(1), group_blocks }
        };
        self.policy.map(array)
    }

    /// Plays namespaces.
    fn run_namespaces(&self) -> anyhow::Result<bool> {
        let over = self.over();
        if self.trace {
            if self.seeds != 1 {
                bail!("--trace prints one seed: add --seeds 1 --from SEED");
            }
            let outcome = namespaces::replay(over, self.from, Tracing::All);
            print_lines(&outcome.trace)?;
            let failure = outcome.failure.map(|failure| format!("seed {}: {failure}", self.from));
            print_lines(failure.as_slice())?;
            return Ok(failure.is_none());
        }
        let end = self.from.checked_add(self.seeds).context("there are no seeds above 2^64 - 1")?;
        let progress = Progress::new(self.seeds);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let summary = namespaces::run_seeds(over, self.from..end, jobs, &|| progress.advance());
        let seconds = progress.finish();
        let mut options = String::from("--namespaces");
        if self.single {
            options.push_str(" --single");
        }
        if let Some(policy) = self.policy {
            options = format!("{options} --policy {}", policy.name());
        }
        let replay = |seed: u64| format!("sim run {options} --seeds 1 --from {seed}");
        let counts = [
            ("seeds", summary.seeds),
            ("namespaces", summary.counts.namespaces),
            ("reshapes", summary.counts.reshapes),
            ("operations", summary.counts.operations),
            ("power_cuts", summary.counts.power_cuts),
            ("kills", summary.counts.kills),
            ("member_losses", summary.counts.member_losses),
            ("interrupted_recoveries", summary.counts.interrupted_recoveries),
            ("forks", summary.counts.forks),
            ("judgements", summary.counts.judgements),
            ("moved_groups", summary.counts.moved_groups),
            ("most_spares", summary.counts.most_spares),
            ("failures", summary.failures.len() as u64),
        ];
        if self.json {
            let mut value = json!({
                "output_version": OUTPUT_VERSION,
                "first_failure": summary.failures.first().and_then(|f| f.failure.as_deref()),
                "replay": summary.failures.iter().map(|f| replay(f.seed)).collect::<Vec<_>>(),
                "seconds": seconds,
            });
            counts.iter().for_each(|(name, count)| value[*name] = json!(count));
            print_lines(&[serde_json::to_string_pretty(&value)?])?;
        } else {
            let line = |(name, count): &(&str, u64)| format!("{:<24}{count:>12}", name.replace('_', " "));
            let mut lines: Vec<String> = counts.iter().map(line).collect();
            for failure in summary.failures.iter().take(MOST_SHOWN) {
                let why = failure.failure.as_deref().unwrap_or_default();
                lines.push(format!("\nseed {}: {why}\n  {}", failure.seed, replay(failure.seed)));
            }
            print_lines(&lines)?;
        }
        Ok(summary.failures.is_empty())
    }

    /// Plays volumes.
    fn run_volumes(&self) -> anyhow::Result<bool> {
        let over = self.over();
        if self.trace {
            let outcome = volume::replay(over, self.from, Tracing::All);
            print_lines(&outcome.trace)?;
            print_lines(
                &outcome.failure.iter().map(|f| format!("seed {}: {f}", self.from)).collect::<Vec<_>>(),
            )?;
            return Ok(outcome.failure.is_none());
        }
        let end = self.from.checked_add(self.seeds).context("there are no seeds above 2^64 - 1")?;
        let progress = Progress::new(self.seeds);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let summary = volume::run_seeds(over, self.from..end, jobs, &|| progress.advance());
        let seconds = progress.finish();
        let mut command = String::from("sim run --volume");
        match over {
            Some(Over::Drive) => command += " --single",
            Some(Over::Array { policy, parities, group_blocks }) => {
                let policy = policy.name_with(group_blocks);
                command += &format!(" --policy {policy} --level {}", level(parities));
            }
            None => (),
        }
        let replay = |seed: u64| format!("{command} --seeds 1 --from {seed}");
        let counts = &summary.counts;
        let figures = [
            ("seeds", summary.seeds),
            ("operations", counts.operations),
            ("power_cuts", counts.power_cuts),
            ("kills", counts.kills),
            ("interrupted_recoveries", counts.interrupted_recoveries),
            ("member_losses", counts.member_losses),
            ("forks", counts.forks),
            ("judgements", counts.judgements),
            ("collected_zones", counts.collected_zones),
            ("checkpoints", counts.checkpoints),
            ("discarded_blocks", counts.discarded),
            ("refused_writes", counts.refusals),
            ("failures", summary.failures.len() as u64),
        ];
        if self.json {
            let mut value = serde_json::Map::new();
            value.insert("output_version".into(), json!(OUTPUT_VERSION));
            value.extend(figures.map(|(name, figure)| (name.to_string(), json!(figure))));
            let first = summary.failures.first().and_then(|f| f.failure.as_deref());
            value.insert("first_failure".into(), json!(first));
            let each: Vec<String> = summary.failures.iter().map(|f| replay(f.seed)).collect();
            value.insert("replay".into(), json!(each));
            value.insert("seconds".into(), json!(seconds));
            print_lines(&[serde_json::to_string_pretty(&value)?])?;
        } else {
            let mut lines: Vec<String> = figures
                .iter()
                .map(|(name, figure)| format!("{:<24}{figure:>12}", name.replace('_', " ")))
                .collect();
            lines.push(format!("{seconds:.1} s"));
            for failure in summary.failures.iter().take(MOST_SHOWN) {
                let text = failure.failure.as_deref().unwrap_or_default();
                lines.push(format!("\n{}, over {}: {text}", replay(failure.seed), failure.over.name()));
            }
            print_lines(&lines)?;
        }
        if self.seeds == 1 && !summary.failures.is_empty() {
            for line in volume::replay(over, self.from, Tracing::Tail(TRACE_TAIL)).trace {
                eprintln!("{line}");
            }
        }
        Ok(summary.failures.is_empty())
    }

    fn replay_command(&self, seed: u64) -> String {
        let policy = self.policy.map(|named| format!(" --policy {}", named.name())).unwrap_or_default();
        let level = self.level.map(|parities| format!(" --level {}", level(parities))).unwrap_or_default();
        let stack = self.stack.as_ref().and_then(|Layers(layers)| layers.first());
        let stack = stack.map(|layer| format!(" --stack {}", layer.name())).unwrap_or_default();
        format!("sim run{stack} --seeds 1 --from {seed}{policy}{level}")
    }

    fn json_of(&self, summary: &Summary, seconds: f64) -> serde_json::Value {
        let counts = &summary.counts;
        let replay: Vec<String> = summary.failures.iter().map(|f| self.replay_command(f.seed)).collect();
        let kind = |policy: Policy, parities| format!("{} {}", level(parities), policy.name());
        let of_kinds = summary.seconds.iter();
        let seconds_by_kind: BTreeMap<String, f64> =
            of_kinds.map(|((policy, parities), seconds)| (kind(*policy, *parities), *seconds)).collect();
        json!({
            "output_version": OUTPUT_VERSION,
            "seeds": summary.seeds,
            "operations": counts.operations,
            "power_cuts": counts.power_cuts,
            "kills": counts.kills,
            "shutdowns": counts.shutdowns,
            "cuts_after_kills": counts.cuts_after_kills,
            "zrwa_losses": counts.zrwa_losses,
            "deferred_starts": counts.deferred_starts,
            "member_losses": counts.member_losses,
            "double_losses": counts.double_losses,
            "interrupted_recoveries": counts.interrupted_recoveries,
            "rebuilds": counts.rebuilds,
            "replacements": counts.replacements,
            "faults": counts.faults,
            "changes": counts.changes,
            "destructions": counts.destructions,
            "healed": counts.healed,
            "refusals": counts.refusals,
            "forks": counts.forks,
            "judgements": counts.judgements,
            "beyond": counts.beyond,
            "claims": counts.claims,
            "pessimistic_claims": counts.pessimistic_claims,
            "remedies": counts.remedies,
            "coverage": summary.sights.len(),
            "failures": summary.failures.len(),
            "first_failure": summary.failures.first().and_then(|f| f.failure.as_deref()),
            "replay": replay,
            "seconds": seconds,
            "judgements_per_second": counts.judgements as f64 / seconds.max(1e-9),
            "seconds_by_kind": seconds_by_kind,
        })
    }

    fn print_text(&self, summary: &Summary, seconds: f64) -> anyhow::Result<()> {
        let counts = &summary.counts;
        let mut lines: Vec<String> = [
            ("seeds", summary.seeds),
            ("operations", counts.operations),
            ("power cuts", counts.power_cuts),
            ("processes killed", counts.kills),
            ("orderly shutdowns", counts.shutdowns),
            ("power cuts after kills", counts.cuts_after_kills),
            ("lost ZRWAs", counts.zrwa_losses),
            ("deferred starts", counts.deferred_starts),
            ("member losses", counts.member_losses),
            ("double losses", counts.double_losses),
            ("interrupted recoveries", counts.interrupted_recoveries),
            ("rebuilds", counts.rebuilds),
            ("replacements", counts.replacements),
            ("faults", counts.faults),
            ("changes of arrays", counts.changes),
            ("destroyed arrays", counts.destructions),
            ("healed drives", counts.healed),
            ("refusals", counts.refusals),
            ("forks", counts.forks),
            ("judgements", counts.judgements),
            ("beyond the promise", counts.beyond),
            ("claims of the status", counts.claims),
            ("too pessimistic", counts.pessimistic_claims),
            ("remedies", counts.remedies),
            ("coverage", summary.sights.len() as u64),
            ("failures", summary.failures.len() as u64),
        ]
        .map(|(name, count)| format!("{name:<24}{count:>12}"))
        .to_vec();
        let rate = counts.judgements as f64 / seconds.max(1e-9);
        lines.push(format!("{seconds:.1} s, {rate:.0} judgements a second"));
        for (why, count) in &summary.refusals {
            lines.push(format!("refused {count} times: {why}"));
        }
        let mut kinds: BTreeMap<String, Vec<&Outcome>> = BTreeMap::new();
        for failure in &summary.failures {
            kinds
                .entry(runner::kind(failure.failure.as_deref().unwrap_or_default()))
                .or_default()
                .push(failure);
        }
        for failures in kinds.values() {
            let text = failures.first().and_then(|f| f.failure.as_deref()).unwrap_or_default();
            lines.push(format!("\n{} times, as: {text}", failures.len()));
            lines.extend(
                failures.iter().take(MOST_SHOWN).map(|f| format!("  {}", self.replay_command(f.seed))),
            );
            if failures.len() > MOST_SHOWN {
                lines.push(format!("  and {} more (--json names them all)", failures.len() - MOST_SHOWN));
            }
        }
        print_lines(&lines)
    }
}

impl Exhaustive {
    fn run(&self) -> anyhow::Result<bool> {
        let levels = PARITIES.iter().filter(|parities| self.level.is_none_or(|level| level == **parities));
        let mut cases: Vec<Case> = levels.flat_map(|parities| Case::all(*parities)).collect();
        cases.retain(|case| self.policy.is_none_or(|policy| policy == case.policy));
        let progress = Progress::new(cases.len() as u64);
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let show = |done: usize, known: usize| progress.show(done as u64, known as u64);
        // With two parities there is so much more to lose in each order that the default one has to do.
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

impl Mutants {
    fn run(&self) -> anyhow::Result<bool> {
        let workspace = self.source.clone().unwrap_or_else(mutants::workspace);
        if let Some(count) = self.random {
            return self.run_random(&workspace, count);
        }
        let mut chosen = mutants::load(&workspace)?;
        let mut finders = Finders::load(&workspace)?;
        finders.retain(|name| chosen.iter().any(|mutant| mutant.name == name));
        if let Some(name) = self.only.iter().find(|name| chosen.iter().all(|m| m.name != **name)) {
            bail!("there is no mutant {name}");
        }
        if !self.only.is_empty() {
            chosen.retain(|mutant| self.only.contains(&mutant.name));
        }
        if let Some(count) = self.sample {
            chosen = play::sample(chosen, &finders, count, self.from);
        }
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let options =
            Options { from: self.from, seeds: self.seeds, most_seeds: self.seeds_most.max(self.seeds), jobs };
        let started = Instant::now();
        let judges = if self.sample.is_some() { Judges::Lives } else { Judges::All };
        let mut made = mutants::load(&workspace)?;
        if !chosen.iter().any(|mutant| mutant.is_of_host()) {
            // Then the host need not be built.
            made.retain(|mutant| !mutant.is_of_host());
        }
        let build = Build::make(&workspace, &made, judges, jobs)?;
        let build_seconds = started.elapsed().as_secs_f64();
        let learned = Mutex::new(finders.clone());
        let told = |played: &Played| {
            if !self.json {
                _ = print_lines(&[line_of(played)]);
            }
            if self.learn {
                // At once, so that a run that is ended goes on where it was.
                let mut learned = learned.lock().unwrap_or_else(PoisonError::into_inner);
                learned.note(&played.mutant.name, played.by.as_ref());
                _ = learned.write(&workspace);
            }
        };
        let result = build.play(&chosen, &finders, &options, &told)?;
        let seconds = started.elapsed().as_secs_f64() - build_seconds;
        let score = Score::of(&result);
        if self.json {
            let each: Vec<_> = result.iter().map(json_of).collect();
            let value = json!({
                "output_version": OUTPUT_VERSION,
                "mutants": score.mutants,
                "killed": score.killed,
                "equivalent": score.equivalent,
                "survived": score.survived.len(),
                "by_judge": score.by_judge,
                "median_seeds": score.median_seeds,
                "each": each,
                "unexpected": score.unexpected,
                "news": score.news,
                "build_seconds": build_seconds,
                "seconds": seconds,
            });
            print_lines(&[serde_json::to_string_pretty(&value)?])?;
        } else {
            print_lines(&[String::new(), score.text()])?;
            print_lines(&[format!("built in {build_seconds:.0} s, played in {seconds:.0} s")])?;
            print_lines(&score.news)?;
            print_lines(&score.unexpected)?;
        }
        if self.learn {
            learned.into_inner().unwrap_or_else(PoisonError::into_inner).write(&workspace)?;
        }
        if let Some(path) = &self.write_score {
            score.write(path, mutants::load(&workspace)?.len())?;
        }
        Ok(score.unexpected.is_empty())
    }
}

impl Mutants {
    /// Changes single lines at random, and says which changes nothing finds.
    fn run_random(&self, workspace: &Path, count: usize) -> anyhow::Result<bool> {
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let below = self.below.as_deref().unwrap_or_default();
        // As many again, for those that do not compile.
        let drawn = mutants::random::draw(workspace, below, 2 * count, self.from)?;
        let (build, mut chosen) = Build::random(workspace, drawn, jobs)?;
        chosen.truncate(count);
        let options =
            Options { from: self.from, seeds: self.seeds, most_seeds: self.seeds_most.max(self.seeds), jobs };
        let told = |played: &Played| {
            if !self.json {
                _ = print_lines(&[format!("{}  {}", line_of(played), played.mutant.rule)]);
            }
        };
        let result = build.play(&chosen, &Finders::default(), &options, &told)?;
        let score = Score::of(&result);
        let survived = |played: &&Played| played.by.is_none();
        let line = |played: &Played| {
            format!("{}: {} ({} checks come to it)", played.mutant.name, played.mutant.rule, played.reached)
        };
        let survivors: Vec<String> = result.iter().filter(survived).map(line).collect();
        let lines = match self.json {
            true => vec![serde_json::to_string_pretty(&json!({
                "output_version": OUTPUT_VERSION,
                "mutants": score.mutants,
                "killed": score.killed,
                "survivors": survivors,
                "by_judge": score.by_judge,
            }))?],
            false => [vec![String::new(), score.text()], survivors].concat(),
        };
        print_lines(&lines)?;
        Ok(true)
    }
}

fn line_of(played: &Played) -> String {
    let (name, judge) = (&played.mutant.name, played.judge());
    let seeds = played.seeds().map(|seeds| seeds.to_string()).unwrap_or_default();
    let first = played.finding.lines().next().unwrap_or_default();
    let finding: String = match judge {
        Some(_) => first.chars().take(60).collect(),
        None => format!("{} checks come to it", played.reached),
    };
    let judge = judge.unwrap_or(match played.mutant.fate {
        Fate::Equivalent(_) => "equivalent",
        _ => "SURVIVED",
    });
    format!("{name:<52} {judge:<24} {seeds:>6}  {finding}")
}

fn json_of(played: &Played) -> serde_json::Value {
    let mutant = &played.mutant;
    let (fate, why) = match &mutant.fate {
        Fate::Killed => ("killed", None),
        Fate::Rare => ("rare", None),
        Fate::Equivalent(why) => ("equivalent", Some(why)),
        Fate::Survives(why) => ("survives", Some(why)),
    };
    json!({
        "name": mutant.name,
        "file": mutant.file,
        "rule": mutant.rule,
        "policy": mutant.policy.map(Policy::name),
        "expected": fate,
        "why": why,
        "judge": played.judge(),
        "arguments": played.by.as_ref().map(|finder| &finder.arguments),
        "reached": played.reached,
        "seeds": played.seeds(),
        "finding": played.finding,
    })
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
