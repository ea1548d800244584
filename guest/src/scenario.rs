//! The tests: scripts that each run in a guest of their own and fail by exit status.
//!
//! The first comment of a script describes the test. A line `# guest: OPTIONS` configures its machine with the options
//! of `guest run`; `# long` excludes it from the short run.

use crate::{
    kernel::Kernel,
    machine::Machine,
    run::{self, End},
};
use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, Parser};
use std::{
    cmp::Reverse,
    env, fs,
    num::NonZero,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

#[derive(Args)]
pub struct Test {
    /// Names of tests, as `guest list` shows them
    names: Vec<String>,
    /// Run the long tests too, and the others for longer
    #[arg(long)]
    long: bool,
    /// Seed of the moments of crashes and of the lost drives; random by default
    #[arg(long)]
    seed: Option<u64>,
    /// Kernel for all tests, as `guest run` takes it
    #[arg(long, value_name = "VERSION|PATH")]
    kernel: Option<String>,
    /// Guests at a time [default: three, if there are two processors for them]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Show the output of all tests, not only of failed ones; runs one test at a time
    #[arg(long, short, conflicts_with = "jobs")]
    verbose: bool,
}

/// The options in a script, parsed as those of a command line.
#[derive(Parser)]
struct Header {
    #[command(flatten)]
    machine: Machine,
}

struct Scenario {
    name: String,
    path: PathBuf,
    /// The first sentence of its first comment.
    about: String,
    machine: Machine,
    long: bool,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

impl Scenario {
    fn read(path: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(&path)?;
        let header: Vec<&str> =
            text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
        let words: Vec<&str> = header.iter().filter_map(|line| line.strip_prefix("guest:")).collect();
        let options = words.iter().flat_map(|line| line.split_whitespace());
        let parsed = Header::try_parse_from(["guest"].into_iter().chain(options));
        let machine = parsed.with_context(|| format!("{} has a wrong header", path.display()))?.machine;
        let prose = header.iter().filter(|line| **line != "long" && !line.starts_with("guest:"));
        let prose: Vec<&str> = prose.copied().collect();
        let about = prose.join(" ").split(". ").next().unwrap_or_default().trim_end_matches('.').to_string();
        let name = path.file_stem().context("a script without a name")?.to_string_lossy().into_owned();
        Ok(Self { name, about, machine, long: header.contains(&"long"), path })
    }

    fn all() -> Result<Vec<Self>> {
        let dir = directory();
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "sh") && !path.ends_with("lib.sh") {
                found.push(Self::read(path)?);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn run(&self, options: &Test, seed: u64) -> Result<bool> {
        println!("guest test {}: {}", self.name, self.about);
        let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guest").join(&self.name);
        if out.exists() {
            fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
        }
        let command = format!(
            "set -euo pipefail\nexport LONG={}\nsource '{}'\nsource '{}'\n",
            u8::from(options.long),
            directory().join("lib.sh").display(),
            self.path.display()
        );
        let mut printed = Vec::new();
        let started = Instant::now();
        let mut machine = self.machine.clone();
        machine.time_limit *= if options.long { 6 } else { 1 };
        machine.kernel = options.kernel.clone().or(machine.kernel);
        let end = if options.verbose {
            run::live(&machine, &command, seed, &out, &mut std::io::stdout())?
        } else {
            run::live(&machine, &command, seed, &out, &mut printed)?
        };
        let seconds = started.elapsed().as_secs();
        if end.status() == 0 {
            println!("guest test {}: passed, {seconds} s", self.name);
            return Ok(true);
        }
        let printed = String::from_utf8_lossy(&printed);
        let lines: Vec<&str> = printed.lines().collect();
        let mut text = lines[lines.len().saturating_sub(60)..].join("\n");
        if let End::Died(words) | End::TooLong(words) = &end {
            text += &format!("\n--- the end of the guest's console:\n{words}");
        }
        let (name, end, out) = (&self.name, end.sentence(), out.display());
        let long = if options.long { " --long" } else { "" };
        println!(
            "{text}\nguest test {name}: FAILED, {end}, {seconds} s; all of it in {out}\n\
             again with: guest test {name} --seed {seed}{long}"
        );
        Ok(false)
    }
}

pub fn list() -> Result<ExitCode> {
    for scenario in Scenario::all()? {
        let long = if scenario.long { " (long)" } else { "" };
        println!("{:14} {}{long}", scenario.name, scenario.about);
    }
    Ok(ExitCode::SUCCESS)
}

impl Test {
    pub fn run(&self) -> Result<ExitCode> {
        let beside = env::current_exe()?.with_file_name("zoneraid");
        ensure!(
            beside.is_file(),
            "{} is not there: build everything that is tested with cargo build --locked --release",
            beside.display()
        );
        let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
        let seed = self.seed.unwrap_or(clock % 1_000_000);
        let all = Scenario::all()?;
        for name in &self.names {
            ensure!(
                all.iter().any(|scenario| scenario.name == *name),
                "there is no test {name}: see guest list"
            );
        }
        let wanted = |scenario: &&Scenario| match self.names.is_empty() {
            true => self.long || !scenario.long,
            false => self.names.contains(&scenario.name),
        };
        let mut wanted: Vec<_> = all.iter().filter(wanted).collect();
        // The longest first, so that none is left for the end.
        wanted.sort_by_key(|scenario| Reverse(scenario.machine.time_limit));
        let failed = self.play(&wanted, seed)?;
        let passed = wanted.len() - failed.len();
        if failed.is_empty() {
            println!("guest test: {passed} passed, with seed {seed}");
            return Ok(ExitCode::SUCCESS);
        }
        println!("guest test: {passed} passed, {} FAILED: {}", failed.len(), failed.join(", "));
        Ok(ExitCode::FAILURE)
    }

    /// Runs tests, several at a time; gives those that failed.
    fn play<'a>(&self, scenarios: &[&'a Scenario], seed: u64) -> Result<Vec<&'a str>> {
        let jobs = match self.jobs {
            Some(jobs) => jobs.get(),
            None if self.verbose => 1,
            // A guest waits for a third of the time.
            None => (thread::available_parallelism().map_or(1, NonZero::get) * 3 / 2).min(3),
        };
        // They share the kernel, which is fetched once.
        Kernel::find(self.kernel.as_deref())?;
        let queue = Mutex::new(scenarios.iter());
        let work = || {
            let mut failed = Vec::new();
            while let Some(scenario) = queue.lock().ok().and_then(|mut queue| queue.next()) {
                if !scenario.run(self, seed)? {
                    failed.push(scenario.name.as_str());
                }
            }
            Ok(failed)
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            let ended =
                workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow!("a test panicked"))?);
            Ok(ended.collect::<Result<Vec<_>>>()?.concat())
        })
    }
}
