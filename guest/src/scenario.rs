//! The tests: scripts that run in a guest of their own and fail by their exit status.
//!
//! The first comment of a script says what it shows. A line `# guest: OPTIONS` describes its
//! machine with the options of `guest run`; `# long` keeps it out of the short run.

use crate::{
    machine::Machine,
    run::{self, End},
};
use anyhow::{Context, Result, ensure};
use clap::{Args, Parser};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

#[derive(Args)]
pub struct Test {
    /// Names of tests, as `guest list` shows them
    names: Vec<String>,
    /// Run the long tests too, and the others for longer
    #[arg(long)]
    long: bool,
    /// Decides when guests crash and which drives are lost; random by default
    #[arg(long)]
    seed: Option<u64>,
    /// Show what the tests print, not only of those that fail
    #[arg(long, short)]
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
        println!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        if let End::Died(words) | End::TooLong(words) = &end {
            println!("--- the end of the guest's console:\n{words}");
        }
        println!(
            "guest test {}: FAILED, {}, {seconds} s; all of it in {}",
            self.name,
            end.sentence(),
            out.display()
        );
        let long = if options.long { " --long" } else { "" };
        println!("again with: guest test {} --seed {seed}{long}", self.name);
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
        let mut failed = Vec::new();
        let mut passed = 0;
        for scenario in all.iter().filter(wanted) {
            match scenario.run(self, seed)? {
                true => passed += 1,
                false => failed.push(scenario.name.as_str()),
            }
        }
        if failed.is_empty() {
            println!("guest test: {passed} passed, with seed {seed}");
            return Ok(ExitCode::SUCCESS);
        }
        println!("guest test: {passed} passed, {} FAILED: {}", failed.len(), failed.join(", "));
        Ok(ExitCode::FAILURE)
    }
}
