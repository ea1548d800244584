//! `sim mutants`: applies changes of single lines to the engine and the host, and checks that the tests detect them.

use super::{OUTPUT_VERSION, default_jobs, print_lines};
use anyhow::bail;
use engine::raid::policy::Policy;
use serde_json::json;
use sim::mutants::{
    self, Build, Judges,
    finders::Finders,
    list::Expectation,
    play::{self, MutantResult, Options, Score},
};
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

#[derive(clap::Args)]
pub struct Mutants {
    /// Only this many mutants, drawn from those that few seeds detect, and only random lives as tests [default: all]
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// Instead of the list, this many random changes of single lines of the engine and the host; --from is the seed
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["sample", "only", "learn", "write_score"])]
    random: Option<usize>,
    /// With --random, only files with this prefix of their path below engine/src, or of `host/` and their path below
    /// host/src
    #[arg(long, value_name = "PATH", requires = "random")]
    below: Option<String>,
    /// Only the mutants with these names
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The first seed, which also determines the sample
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Seeds to play before the other tests
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Seeds in total
    #[arg(long, default_value_t = 3000)]
    seeds_most: u64,
    /// Seconds of tests for each mutant, after which it counts as not detected [default: no limit]
    #[arg(long, value_name = "SECONDS")]
    effort: Option<u64>,
    /// Mutants to play in parallel [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// The workspace with the engine to change [default: the workspace of this build]
    #[arg(long, value_name = "DIRECTORY")]
    source: Option<PathBuf>,
    /// Write the score between the markers in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sample", "only"])]
    write_score: Option<PathBuf>,
    /// Record the test that detected each mutant in sim/finders.txt
    #[arg(long)]
    learn: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Mutants {
    pub fn run(&self) -> anyhow::Result<bool> {
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
        let options = self.options(jobs);
        let started = Instant::now();
        let judges = if self.sample.is_some() { Judges::Lives } else { Judges::All };
        let mut made = mutants::load(&workspace)?;
        if !chosen.iter().any(|mutant| mutant.is_of_host()) {
            // The host need not be built then.
            made.retain(|mutant| !mutant.is_of_host());
        }
        let build = Build::make(&workspace, &made, judges, jobs)?;
        let build_seconds = started.elapsed().as_secs_f64();
        let learned = Mutex::new(finders.clone());
        let told = |played: &MutantResult| {
            if !self.json {
                _ = print_lines(&[line_of(played)]);
            }
            if self.learn {
                // Written at once, so that an interrupted run can be continued.
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
            score.write(path, mutants::load(&workspace)?.len(), self.effort)?;
        }
        Ok(score.unexpected.is_empty())
    }
}

impl Mutants {
    fn options(&self, jobs: usize) -> Options {
        Options {
            from: self.from,
            seeds: self.seeds,
            most_seeds: self.seeds_most.max(self.seeds),
            jobs,
            effort: self.effort.map_or(Duration::MAX, Duration::from_secs),
        }
    }

    /// Plays random changes of single lines, and lists those that no test detects.
    fn run_random(&self, workspace: &Path, count: usize) -> anyhow::Result<bool> {
        let jobs = self.jobs.unwrap_or_else(default_jobs);
        let below = self.below.as_deref().unwrap_or_default();
        // Twice the number, since some do not compile.
        let drawn = mutants::random::draw(workspace, below, 2 * count, self.from)?;
        let (build, mut chosen) = Build::random(workspace, drawn, jobs)?;
        chosen.truncate(count);
        let options = self.options(jobs);
        let told = |played: &MutantResult| {
            if !self.json {
                _ = print_lines(&[format!("{}  {}", line_of(played), played.mutant.rule)]);
            }
        };
        let result = build.play(&chosen, &Finders::default(), &options, &told)?;
        let score = Score::of(&result);
        let survived = |played: &&MutantResult| played.by.is_none();
        let line = |played: &MutantResult| {
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

fn line_of(played: &MutantResult) -> String {
    let (name, judge) = (&played.mutant.name, played.judge());
    let seeds = played.seeds().map(|seeds| seeds.to_string()).unwrap_or_default();
    let first = played.finding.lines().next().unwrap_or_default();
    let finding: String = match judge {
        Some(_) => first.chars().take(60).collect(),
        None => format!("{} checks come to it", played.reached),
    };
    let judge = judge.unwrap_or(match played.mutant.fate {
        Expectation::Equivalent(_) => "equivalent",
        _ => "SURVIVED",
    });
    format!("{name:<52} {judge:<24} {seeds:>6}  {finding}")
}

fn json_of(played: &MutantResult) -> serde_json::Value {
    let mutant = &played.mutant;
    let (fate, why) = match &mutant.fate {
        Expectation::Killed => ("killed", None),
        Expectation::Rare => ("rare", None),
        Expectation::Equivalent(why) => ("equivalent", Some(why)),
        Expectation::Survives(why) => ("survives", Some(why)),
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
