//! Mutants: single changes that break a rule of the engine, each of which the tests have to notice.
//!
//! The list is `sim/mutants.txt` ([`list`]). Its changes go into a copy of the engine below
//! `target/mutants`, all of them in one build; an environment variable says which one is on. The
//! product's sources know nothing of it. The simulator of that copy, its systematic search and its
//! scripted tests are the judges: a mutant is killed by the first of them that fails.

pub mod list;

use crate::rng::Rng;
use anyhow::{Context, bail};
use engine::raid::policy::Policy;
use list::{Fate, Mutant};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// What says which mutant is on.
const VARIABLE: &str = "ZONERAID_MUTANT";
/// How much longer than without a mutant something may take, and what it may take anyway.
const PATIENCE: u32 = 20;
const LEAST_PATIENCE: Duration = Duration::from_secs(60);
/// Memory that a judge may take, in KiB.
const MEMORY_KIB: u64 = 6 << 20;
const POLL: Duration = Duration::from_millis(5);

/// The library whose own tests are judges, too.
const ENGINE: &str = "engine";
/// The scripted tests that judge mutants: those that are about crashes and faults, the quickest first.
const TESTS: [&str; 15] = [
    "golden",
    "regressions_log",
    "stale",
    "sequencer",
    "aggregate",
    "revived",
    "evidence",
    "owner",
    "doubt",
    "moments",
    "zone_faults",
    "regressions",
    "steps",
    "array",
    "mirror",
];

/// The module that the copy of the engine has more than the original.
const SWITCH: &str = "\
//! Which mutant is on.
use std::sync::LazyLock;
static ON: LazyLock<u32> =
    LazyLock::new(|| std::env::var(\"ZONERAID_MUTANT\").ok().and_then(|n| n.parse().ok()).unwrap_or(0));
/// Whether it is mutant `number`.
#[inline]
pub fn on(number: u32) -> bool {
    *ON == number
}
";

/// Where the sources are that this program was built of.
pub fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// The list in `workspace`.
pub fn load(workspace: &Path) -> anyhow::Result<Vec<Mutant>> {
    let path = workspace.join("sim/mutants.txt");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    list::parse(&text).with_context(|| path.display().to_string())
}

/// The engine's sources that the list changes, by their path below `engine/src`.
pub fn sources(workspace: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mutants = load(workspace)?;
    let mut sources = BTreeMap::new();
    for mutant in &mutants {
        if sources.contains_key(&mutant.file) {
            continue;
        }
        let path = workspace.join("engine/src").join(&mutant.file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let own: Vec<&Mutant> = mutants.iter().filter(|other| other.file == mutant.file).collect();
        sources.insert(mutant.file.clone(), list::apply(&text, &own)?);
    }
    Ok(sources)
}

/// The build that has all mutants in it.
pub struct Build {
    directory: PathBuf,
    simulator: PathBuf,
    /// Test programs, with their names.
    tests: Vec<(String, PathBuf)>,
}

impl Build {
    /// Copies the sources in `workspace` to `target/mutants` there, with the list's changes, and builds them.
    pub fn make(workspace: &Path, jobs: usize) -> anyhow::Result<Build> {
        let directory = workspace.join("target/mutants");
        let changed = sources(workspace)?;
        for part in ["engine", "sim"] {
            copy(&workspace.join(part), &directory.join(part), &|path| {
                let path = path.strip_prefix(workspace.join("engine/src")).ok()?;
                let text = changed.get(path.to_str()?).cloned();
                if path == Path::new("lib.rs") {
                    let text = text.or_else(|| fs::read_to_string(workspace.join("engine/src/lib.rs")).ok());
                    return text.map(|text| text + "\npub mod mutant;\n");
                }
                text
            })?;
        }
        write(&directory.join("engine/src/mutant.rs"), SWITCH.as_bytes())?;
        for part in ["fixtures", "docs"] {
            copy(&workspace.join(part), &directory.join(part), &|_| None)?;
        }
        write(&directory.join("Cargo.lock"), &fs::read(workspace.join("Cargo.lock"))?)?;
        let manifest = fs::read_to_string(workspace.join("Cargo.toml"))?;
        let members = |line: &str| match line.starts_with("members = ") {
            true => "members = [\"engine\", \"sim\"]\n".to_string(),
            false => format!("{line}\n"),
        };
        write(&directory.join("Cargo.toml"), manifest.lines().map(members).collect::<String>().as_bytes())?;
        let mut build = Build { simulator: PathBuf::new(), tests: Vec::new(), directory };
        // One command for all, or what they depend on would be built more than once.
        let packages =
            ["test", "--no-run", "--package", "zoneraid-engine", "--package", "zoneraid-sim", "--lib"];
        let tests = TESTS.iter().flat_map(|test| ["--test", *test]);
        build.cargo(&packages.into_iter().chain(tests).collect::<Vec<_>>(), jobs)?;
        Ok(build)
    }

    /// Builds something of the copy, and notes which programs came of it.
    fn cargo(&mut self, arguments: &[&str], jobs: usize) -> anyhow::Result<()> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let output = cargo
            .args(arguments)
            .args(["--release", "--message-format", "json-render-diagnostics", "--jobs"])
            .arg(jobs.to_string())
            .current_dir(&self.directory)
            .env("CARGO_TARGET_DIR", self.directory.join("target"))
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            // Whatever a switch does to the style is no matter.
            .env("RUSTFLAGS", "--allow warnings")
            .stdin(Stdio::null())
            .output()
            .context("cargo cannot be run")?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("the copy in {} cannot be built:\n{why}", self.directory.display());
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            let Some(program) = message["executable"].as_str() else { continue };
            let name = message["target"]["name"].as_str().unwrap_or_default();
            match message["profile"]["test"] == Value::Bool(true) {
                true if name == ENGINE || TESTS.contains(&name) => {
                    self.tests.push((name.to_string(), program.into()));
                }
                false if name == "sim" => self.simulator = program.into(),
                _ => {}
            }
        }
        self.tests.sort_by_key(|(name, _)| TESTS.iter().position(|test| test == name));
        Ok(())
    }

    /// Runs a program of the build with a mutant on, or none (0), and gives what it says.
    fn run(&self, program: &Path, arguments: &[String], mutant: u32, most: Duration) -> anyhow::Result<Ran> {
        let started = Instant::now();
        let limited = format!("ulimit -v {MEMORY_KIB}; exec \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &limited, "sh"])
            .arg(program)
            .args(arguments)
            .current_dir(self.directory.join("sim"))
            .env(VARIABLE, mutant.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let mut output = child.stdout.take().context("a judge has no output")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(&mut output).unwrap_or_default());
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if started.elapsed() > most {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(POLL);
        };
        let text = reader.join().unwrap_or_default();
        Ok(Ran { passed: status.map(|status| status.success()), text, took: started.elapsed() })
    }
}

/// What came of a run.
struct Ran {
    /// `None` if it took too long.
    passed: Option<bool>,
    text: String,
    took: Duration,
}

/// Copies a directory, with what `instead` has instead of a file. Files that are the same already keep
/// their times, so that nothing is built in vain.
fn copy(from: &Path, to: &Path, instead: &dyn Fn(&Path) -> Option<String>) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let (entry, to) = (entry?, to.to_path_buf());
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&path, &target, instead)?;
        } else {
            let bytes = match instead(&path) {
                Some(text) => text.into_bytes(),
                None => fs::read(&path)?,
            };
            write(&target, &bytes)?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Who may find a mutant, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Judge {
    /// Random lives: the first seed, and how many.
    Run(u64, u64),
    /// A test program of the build.
    Test(usize),
    Exhaustive,
}

/// What became of a mutant.
#[derive(Clone, Debug)]
pub struct Played {
    pub mutant: Mutant,
    /// Who killed it; `None` if nobody did.
    pub judge: Option<String>,
    /// Seeds until it was found by a run.
    pub seeds: Option<u64>,
    /// What was found.
    pub finding: String,
}

/// How to play.
pub struct Options {
    pub from: u64,
    /// Seeds before the other judges are asked, and in all.
    pub seeds: u64,
    pub most_seeds: u64,
    pub jobs: usize,
}

impl Build {
    fn judges(&self, options: &Options) -> Vec<Judge> {
        let first = options.seeds.min(options.most_seeds);
        let mut judges = vec![Judge::Run(options.from, first)];
        judges.extend((0..self.tests.len()).map(Judge::Test));
        judges.push(Judge::Exhaustive);
        let (mut done, mut step) = (first, first);
        while done < options.most_seeds {
            step = (2 * step).min(options.most_seeds - done);
            judges.push(Judge::Run(options.from.wrapping_add(done), step));
            done += step;
        }
        judges
    }

    fn name(&self, judge: &Judge) -> String {
        match judge {
            Judge::Run(..) => "run".into(),
            Judge::Exhaustive => "exhaustive".into(),
            Judge::Test(test) => format!("test {}", self.tests[*test].0),
        }
    }

    fn ask(&self, judge: &Judge, policy: Option<Policy>, mutant: u32, most: Duration) -> anyhow::Result<Ran> {
        let policy = policy.map(|policy| format!("--policy={}", policy.name()));
        let arguments = |text: String| text.split(' ').map(str::to_string).chain(policy).collect::<Vec<_>>();
        match judge {
            Judge::Run(from, seeds) => {
                let text =
                    format!("run --no-ledger --until-failure --json --jobs=1 --seeds={seeds} --from={from}");
                self.run(&self.simulator, &arguments(text), mutant, most)
            }
            Judge::Exhaustive => {
                let text = "exhaustive --json --jobs=1 --delays=0".to_string();
                self.run(&self.simulator, &arguments(text), mutant, most)
            }
            Judge::Test(test) => {
                let arguments = ["--test-threads=1".to_string()];
                self.run(&self.tests[*test].1, &arguments, mutant, most)
            }
        }
    }

    /// Plays `mutants`. `told` hears of each as it is done.
    pub fn play(
        &self,
        mutants: &[Mutant],
        options: &Options,
        told: &(dyn Fn(&Played) + Sync),
    ) -> anyhow::Result<Vec<Played>> {
        let bounds = self.bounds(mutants, options)?;
        let results = Mutex::new(BTreeMap::new());
        for_each(mutants, options.jobs, &|mutant| {
            let played = self.play_one(mutant, options, &bounds)?;
            told(&played);
            results.lock().unwrap_or_else(PoisonError::into_inner).insert(mutant.number, played);
            Ok(())
        })?;
        Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect())
    }

    /// How long judges may take: many times as long as without a mutant, when they must find nothing. Of
    /// runs the first one is measured.
    fn bounds(&self, mutants: &[Mutant], options: &Options) -> anyhow::Result<Bounds> {
        let mut policies: Vec<Option<Policy>> = mutants.iter().map(|mutant| mutant.policy).collect();
        policies.sort();
        policies.dedup();
        let mut wanted = Vec::new();
        for judge in self.judges(options) {
            match judge {
                Judge::Test(_) => wanted.push((judge, None)),
                Judge::Run(from, _) if from != options.from => {}
                Judge::Run(..) | Judge::Exhaustive => {
                    wanted.extend(policies.iter().map(|policy| (judge.clone(), *policy)));
                }
            }
        }
        let bounds = Mutex::new(Bounds::new());
        for_each(&wanted, options.jobs, &|(judge, policy)| {
            let ran = self.ask(judge, *policy, 0, Duration::MAX)?;
            if ran.passed != Some(true) {
                bail!("{} fails without any mutant: {}", self.name(judge), ran.text);
            }
            let most = LEAST_PATIENCE + PATIENCE * ran.took;
            bounds.lock().unwrap_or_else(PoisonError::into_inner).insert((judge.clone(), *policy), most);
            Ok(())
        })?;
        Ok(bounds.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn play_one(&self, mutant: &Mutant, options: &Options, bounds: &Bounds) -> anyhow::Result<Played> {
        let mut played = Played { mutant: mutant.clone(), judge: None, seeds: None, finding: String::new() };
        let first = options.seeds.min(options.most_seeds).max(1);
        let measured = |judge, policy| bounds.get(&(judge, policy)).copied().unwrap_or(LEAST_PATIENCE);
        for judge in self.judges(options) {
            let most = match judge {
                Judge::Test(_) => measured(judge.clone(), None),
                Judge::Exhaustive => measured(judge.clone(), mutant.policy),
                Judge::Run(_, seeds) => {
                    let share = measured(Judge::Run(options.from, first), mutant.policy);
                    share * (seeds.div_ceil(first) as u32)
                }
            };
            let ran = self.ask(&judge, mutant.policy, mutant.number, most)?;
            if ran.passed == Some(true) {
                continue;
            }
            played.judge = Some(self.name(&judge));
            let said = serde_json::from_str::<Value>(&ran.text).unwrap_or_default();
            if let Judge::Run(from, seeds) = judge {
                let own = said["seeds"].as_u64().unwrap_or(seeds);
                played.seeds = Some(from.wrapping_sub(options.from).wrapping_add(own));
            }
            let found = said["first_failure"].as_str().or(said["found"][0]["failure"].as_str());
            played.finding = match (ran.passed, found) {
                (None, _) => format!("no end within {} s", most.as_secs()),
                (_, Some(found)) => found.to_string(),
                _ => first_failed_test(&ran.text).unwrap_or_else(|| "it came to nothing".into()),
            };
            break;
        }
        Ok(played)
    }
}

type Bounds = BTreeMap<(Judge, Option<Policy>), Duration>;

/// Does `work` for all `items`, `jobs` of them at once. Gives the first error.
fn for_each<T: Sync>(
    items: &[T],
    jobs: usize,
    work: &(dyn Fn(&T) -> anyhow::Result<()> + Sync),
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let one = || -> anyhow::Result<()> {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..jobs.max(1)).map(|_| scope.spawn(one)).collect();
        let own = one();
        let others = others.into_iter().map(|other| other.join().unwrap_or_else(|_| bail!("a job panicked")));
        others.fold(own, anyhow::Result::and)
    })
}

/// The first test that failed, as the test program says it.
fn first_failed_test(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.ends_with("... FAILED"))?;
    Some(line.trim_start_matches("test ").trim_end_matches(" ... FAILED").to_string())
}

/// `count` of those mutants that a few seeds show, drawn by `seed`.
pub fn sample(mutants: Vec<Mutant>, count: usize, seed: u64) -> Vec<Mutant> {
    let mut left: Vec<Mutant> = mutants.into_iter().filter(|m| m.fate == Fate::Killed).collect();
    let mut rng = Rng::new(seed);
    let mut drawn = Vec::new();
    while drawn.len() < count && !left.is_empty() {
        drawn.push(left.swap_remove(rng.below(left.len() as u64) as usize));
    }
    drawn
}

/// What playing mutants comes to.
pub struct Score {
    pub mutants: usize,
    pub killed: usize,
    pub equivalent: usize,
    /// Names of those that are not equivalent and were not found.
    pub survived: Vec<String>,
    pub by_judge: BTreeMap<String, usize>,
    /// Seeds that it took where a run found them.
    pub median_seeds: u64,
    /// What is worse than the list says.
    pub unexpected: Vec<String>,
    /// What is better.
    pub news: Vec<String>,
}

const BEGIN: &str = "<!-- mutants: written by `sim mutants --write-score` -->\n";
const END: &str = "<!-- mutants: end -->\n";

impl Score {
    pub fn of(played: &[Played]) -> Score {
        let mut score = Score {
            mutants: played.len(),
            killed: 0,
            equivalent: 0,
            survived: Vec::new(),
            by_judge: BTreeMap::new(),
            median_seeds: 0,
            unexpected: Vec::new(),
            news: Vec::new(),
        };
        let mut seeds: Vec<u64> = played.iter().filter_map(|played| played.seeds).collect();
        seeds.sort_unstable();
        score.median_seeds = seeds.get(seeds.len() / 2).copied().unwrap_or(0);
        for Played { mutant, judge, .. } in played {
            let name = &mutant.name;
            let unexpected = match (judge, &mutant.fate) {
                (Some(_), Fate::Equivalent(_)) => "was found, so it is not equivalent",
                (None, Fate::Killed | Fate::Rare) => "was not found",
                _ => "",
            };
            if !unexpected.is_empty() {
                score.unexpected.push(format!("{name} {unexpected}"));
            }
            if judge.is_some() && matches!(mutant.fate, Fate::Survives(_)) {
                score.news.push(format!("{name} is found now: the list may say so"));
            }
            match (judge, &mutant.fate) {
                (Some(judge), _) => {
                    score.killed += 1;
                    let judge = judge.split(' ').next().unwrap_or(judge);
                    *score.by_judge.entry(judge.to_string()).or_default() += 1;
                }
                (None, Fate::Equivalent(_)) => score.equivalent += 1,
                (None, _) => score.survived.push(name.clone()),
            }
        }
        score
    }

    pub fn text(&self) -> String {
        let judges: Vec<String> =
            self.by_judge.iter().map(|(judge, count)| format!("{count} by {judge}")).collect();
        format!(
            "{} mutants: {} killed ({}; median {} seeds), {} equivalent, {} survived",
            self.mutants,
            self.killed,
            judges.join(", "),
            self.median_seeds,
            self.equivalent,
            self.survived.len(),
        )
    }

    /// Writes the score between the markers in the file at `path`.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let place = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = place.with_context(|| format!("{} has no place for it", path.display()))?;
        let killed_percent = 100 * self.killed / (self.mutants - self.equivalent).max(1);
        let mut score =
            format!("{}, that is {killed_percent} % of those that are not equivalent.\n", self.text());
        if !self.survived.is_empty() {
            score += "Not found yet, each a hole in the tests:\n";
            score.extend(self.survived.iter().map(|name| format!("`{name}`\n")));
        }
        fs::write(path, [before, BEGIN, &score, END, after].concat())?;
        Ok(())
    }
}
