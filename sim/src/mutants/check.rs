//! Checks: one random life, one scripted test, one part of the systematic search.

use super::{Build, HOST_TESTS, MUTANT, OF_HOST, REACHED, SCRIPTS, TESTS, finders::Finder, list::Mutant};
use crate::simulator::scenario::{PARITIES, level};
use anyhow::{Context, bail};
use engine::raid::policy::Policy;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    ops::Range,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Time limit of a check with a mutant: a multiple of the time without, and a constant. This is CPU time, independent
/// of other load on the computer.
const PATIENCE: u32 = 5;
const LEAST_PATIENCE: Duration = Duration::from_secs(10);
/// Factor of the limit in real time, for checks that block forever.
const SLOWEST: u32 = 20;
/// Time limit of a check without a mutant.
const LONGEST: Duration = Duration::from_secs(600);
/// Memory limit of a check, in KiB.
const MEMORY_KIB: u64 = 3 << 20;
const POLL: Duration = Duration::from_millis(2);
/// Signals that end a process at its time limit.
const ENDED: [i32; 2] = [9, 24];

/// Kinds of lives, as options of `sim run`. Each is run on every mutant that it reaches: volumes and namespaces run the
/// code of arrays, and layers on arrays all of it.
const LIVES: [&str; 6] = [
    "",
    " --volume",
    " --namespaces",
    " --stack=namespaces",
    " --stack=volume",
    " --stack=volume-on-namespace",
];

/// A test that may find a mutant.
#[derive(Clone, Debug)]
pub(super) struct Check {
    /// Its identity, by which it can be run again.
    pub finder: Finder,
    program: PathBuf,
}

/// A check that passes without a mutant.
pub(super) struct SoundCheck {
    pub check: Check,
    /// The numbers of the mutants that it reaches.
    pub reached: BTreeSet<u32>,
    pub took: Duration,
}

/// Result of a check.
struct CheckResult {
    /// `None` if it took too long.
    passed: Option<bool>,
    text: String,
    took: Duration,
}

impl Check {
    /// Whether it is one of the host's tests.
    fn is_of_host(&self) -> bool {
        self.finder.judge.strip_prefix("test ").is_some_and(|name| name.starts_with(HOST_TESTS))
    }

    /// Whether it is run on a mutant: tests of the host are for mutants of the host, and no other checks run the host.
    pub(super) fn is_about(&self, mutant: &Mutant) -> bool {
        self.is_of_host() == mutant.is_of_host()
    }

    /// Whether it may fail without a mutant, since the computer lacks a prerequisite.
    pub(super) fn may_fail(&self) -> bool {
        self.is_of_host()
    }
}

impl Build {
    /// Lives of every kind with the seeds `range`, counted from `from` on.
    pub(super) fn lives(&self, from: u64, range: Range<u64>) -> Vec<Check> {
        let life = |index: u64, kind: &str| {
            let seed = from.wrapping_add(index);
            let arguments = words(&format!("run{kind} --json --jobs=1 --seeds=1 --from={seed}"));
            let finder = Finder { judge: "run".into(), seeds: Some(index + 1), arguments };
            Check { finder, program: self.simulator.clone() }
        };
        range.flat_map(|index| LIVES.map(|kind| life(index, kind))).collect()
    }

    /// Every scripted test of the build.
    pub(super) fn scripts(&self) -> anyhow::Result<Vec<Check>> {
        let mut checks = Vec::new();
        for (judge, program) in &self.tests {
            let output = Command::new(program).args(["--list", "--format", "terse"]).output();
            let output = output.with_context(|| program.display().to_string())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_judge = |name: &&str| {
                let file = name.split_once("::").map_or("", |(file, _)| file);
                match judge.strip_prefix(HOST_TESTS) {
                    Some(SCRIPTS) => OF_HOST.contains(&file),
                    None if judge == SCRIPTS => TESTS.contains(&file),
                    _ => true,
                }
            };
            let names = text.lines().filter_map(|line| line.strip_suffix(": test")).filter(is_judge);
            checks.extend(names.map(|name| {
                let arguments = words(&format!("--test-threads=1 --exact {name}"));
                let finder = Finder { judge: format!("test {judge}"), seeds: None, arguments };
                Check { finder, program: program.clone() }
            }));
        }
        Ok(checks)
    }

    /// The systematic search, by kinds of arrays.
    pub(super) fn searches(&self) -> Vec<Check> {
        let kinds = Policy::ALL.into_iter().flat_map(|policy| PARITIES.iter().map(move |p| (policy, *p)));
        let search = |(policy, parities): (Policy, usize)| {
            let (policy, level) = (policy.name(), level(parities));
            let arguments =
                words(&format!("exhaustive --json --jobs=1 --delays=0 --policy={policy} --level={level}"));
            let finder = Finder { judge: "exhaustive".into(), seeds: None, arguments };
            Check { finder, program: self.simulator.clone() }
        };
        kinds.map(search).collect()
    }

    /// The check that found a mutant before, if its program is in this build.
    pub(super) fn again(&self, finder: &Finder) -> Option<Check> {
        let test = |name: &str| self.tests.iter().find(|(test, _)| test == name).map(|(_, program)| program);
        let program = match finder.judge.strip_prefix("test ") {
            Some(name) => test(name)?,
            None => &self.simulator,
        };
        Some(Check { finder: finder.clone(), program: program.clone() })
    }

    /// Runs a check without a mutant: it has to pass.
    pub(super) fn sound(&self, check: Check) -> anyhow::Result<SoundCheck> {
        let notes = self.notes();
        let ran = self.run(&check, Command::new("sh").env(REACHED, &notes), LONGEST)?;
        if ran.passed != Some(true) {
            let Finder { judge, arguments, .. } = &check.finder;
            bail!("{judge} fails without any mutant: {arguments:?}\n{}", ran.text);
        }
        // It does not exist if no mutant was reached.
        let text = fs::read_to_string(&notes).unwrap_or_default();
        _ = fs::remove_file(&notes);
        let reached = text.lines().filter_map(|line| line.parse().ok()).collect();
        Ok(SoundCheck { check, reached, took: ran.took })
    }

    /// Runs a check with mutant `number` on. Returns its finding, if any.
    pub(super) fn ask(&self, sound: &SoundCheck, number: u32) -> anyhow::Result<Option<String>> {
        let most = LEAST_PATIENCE + PATIENCE * sound.took;
        let ran = self.run(&sound.check, Command::new("sh").env(MUTANT, number.to_string()), most)?;
        let said = serde_json::from_str::<Value>(&ran.text).unwrap_or_default();
        let found = said["first_failure"].as_str().or(said["found"][0]["failure"].as_str());
        Ok(match (ran.passed, found) {
            (Some(true), _) => None,
            (None, _) => Some(format!("no end within {} s", most.as_secs())),
            (_, Some(found)) => Some(found.to_string()),
            _ => Some(sound.check.finder.arguments.last().cloned().unwrap_or_default()),
        })
    }

    /// Runs a check in `shell`, with a limit of CPU time.
    fn run(&self, check: &Check, shell: &mut Command, most: Duration) -> anyhow::Result<CheckResult> {
        let started = Instant::now();
        let limited = format!("ulimit -v {MEMORY_KIB}; ulimit -t {}; exec \"$@\"", most.as_secs());
        let mut child = shell
            .args(["-c", &limited, "sh"])
            .arg(&check.program)
            .args(&check.finder.arguments)
            .current_dir(self.directory.join(if check.is_of_host() { "host" } else { "sim" }))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| check.program.display().to_string())?;
        let mut output = child.stdout.take().context("a check has no output")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(&mut output).unwrap_or_default());
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if started.elapsed() > SLOWEST * most {
                child.kill()?;
            }
            std::thread::sleep(POLL);
        };
        let text = reader.join().unwrap_or_default();
        let in_time = !status.signal().is_some_and(|signal| ENDED.contains(&signal));
        Ok(CheckResult { passed: in_time.then(|| status.success()), text, took: started.elapsed() })
    }

    /// A new file's name.
    fn notes(&self) -> PathBuf {
        let thread = format!("{:?}", std::thread::current().id());
        let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
        self.directory.join(format!("reached-{}-{digits}", std::process::id()))
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_string).collect()
}
