//! Mutants: single changes that break a rule of the engine, each of which the tests have to detect.
//!
//! The list is `sim/mutants.txt` ([`list`]). Its changes go into a copy of the engine below `target/mutants`, all of
//! them in one build; an environment variable switches one on. The product's sources contain none of it. The simulator
//! of that copy, its systematic search and its scripted tests are the judges: a mutant is killed by the first of their
//! checks that fails (`check.rs`).
//!
//! Each check is first run without a mutant. It has to pass, and the switches record the mutants that it reaches.
//! Checks are deterministic, by seeds and scripts, and a mutant changes nothing before its place is reached: so a check
//! that does not reach a mutant cannot find it, and is skipped ([`play`]). The check that found a mutant the last time
//! is run first ([`finders`]).

mod check;
pub mod finders;
pub mod list;
pub mod play;
pub mod random;

use anyhow::{Context, bail};
use list::Mutant;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Environment variables: the number of the active mutant, and the file that records reached mutants.
const MUTANT: &str = "ZONERAID_MUTANT";
const REACHED: &str = "ZONERAID_REACHED";

/// Two of the judges: the unit tests of the engine, and the program of scripted tests.
const ENGINE: &str = "engine";
const SCRIPTS: &str = "all";
/// The scripts that judge mutants: those on crashes and faults.
const TESTS: [&str; 33] = [
    "appended",
    "golden",
    "crafted",
    "join",
    "raid6",
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
    "spare_zones",
    "regressions",
    "steps",
    "array",
    "mirror",
    "volume",
    "namespaces",
    "diverged",
    "power_loss",
    "closing",
    "damage",
    "events",
    "faults",
    "full_volume",
    "probe",
    "read_only_zones",
    "volume_moments",
    "worn_logs",
];

/// Prefix of the names of the host's test programs, and the modules of its test program that are judges.
const HOST_TESTS: &str = "host-";
const OF_HOST: [&str; 5] = ["daemon", "trouble", "volume", "namespaces", "owner"];

/// The module that is added to the copy of the engine.
const SWITCH: &str = "\
//! Which mutant is on, and which ones are reached.
use std::{
    fs::{File, OpenOptions},
    io::Write,
    sync::{LazyLock, atomic::{AtomicBool, Ordering}},
};
static ON: LazyLock<u32> =
    LazyLock::new(|| std::env::var(\"ZONERAID_MUTANT\").ok().and_then(|n| n.parse().ok()).unwrap_or(0));
static NOTES: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = std::env::var_os(\"ZONERAID_REACHED\")?;
    OpenOptions::new().append(true).create(true).open(path).ok()
});
static NOTED: [AtomicBool; 4096] = [const { AtomicBool::new(false) }; 4096];
/// Whether it is mutant `number`.
#[inline]
pub fn on(number: u32) -> bool {
    let on = *ON;
    if on == 0 {
        note(number);
    }
    on == number
}
#[inline]
fn note(number: u32) {
    if let (Some(mut file), Some(noted)) = (NOTES.as_ref(), NOTED.get(number as usize))
        && !noted.swap(true, Ordering::Relaxed)
    {
        _ = file.write_all(format!(\"{number}\\n\").as_bytes());
    }
}
";

/// The workspace that this program was built from.
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

/// The directory of a crate's sources, and a file's path below it.
fn place_of(file: &str) -> (&'static str, &str) {
    file.strip_prefix(list::HOST).map_or(("engine/src", file), |file| ("host/src", file))
}

/// The sources that `mutants` change, by crate and path below its sources.
pub fn sources(workspace: &Path, mutants: &[Mutant]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    for mutant in mutants {
        if sources.contains_key(&mutant.file) {
            continue;
        }
        let (directory, file) = place_of(&mutant.file);
        let path = workspace.join(directory).join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let own: Vec<&Mutant> = mutants.iter().filter(|other| other.file == mutant.file).collect();
        sources.insert(mutant.file.clone(), list::apply(&text, &own)?);
    }
    Ok(sources)
}

/// The judges of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judges {
    All,
    /// Random lives only.
    Lives,
}

/// The build with all mutants.
pub struct Build {
    directory: PathBuf,
    simulator: PathBuf,
    /// Test programs, with their names; those of the host have a prefix.
    tests: Vec<(String, PathBuf)>,
    has_host: bool,
}

impl Build {
    /// Copies the sources in `workspace` to `target/mutants` there, with the changes of `mutants`, and builds them: all
    /// judges, or the simulator alone, which takes a small part of the time. The host is built if one of `mutants` is
    /// in it.
    pub fn make(workspace: &Path, mutants: &[Mutant], judges: Judges, jobs: usize) -> anyhow::Result<Build> {
        let has_host = judges == Judges::All && mutants.iter().any(Mutant::is_of_host);
        let mut build = Build {
            simulator: PathBuf::new(),
            tests: Vec::new(),
            directory: workspace.join("target/mutants"),
            has_host,
        };
        build.copy_sources(workspace, mutants)?;
        if judges == Judges::Lives {
            build.cargo(&["build", "--package", "zoneraid-sim", "--bin", "sim"], jobs)?;
            return Ok(build);
        }
        // One command for all, or their dependencies would be built more than once.
        let packages = ["--package", "zoneraid-engine", "--package", "zoneraid-sim"];
        let host: &[&str] = if has_host { &["--package", "zoneraid"] } else { &[] };
        let tests = ["test", "--no-run", "--lib", "--test", SCRIPTS];
        build.cargo(&[tests.as_slice(), &packages, host].concat(), jobs)?;
        if build.simulator.as_os_str().is_empty() {
            build.cargo(&["build", "--package", "zoneraid-sim", "--bin", "sim"], jobs)?;
        }
        Ok(build)
    }

    /// As [`Build::make`], for those of `drawn` that compile; returns these, too.
    pub fn random(
        workspace: &Path,
        mut drawn: Vec<Mutant>,
        jobs: usize,
    ) -> anyhow::Result<(Build, Vec<Mutant>)> {
        let checked = Build {
            simulator: PathBuf::new(),
            tests: Vec::new(),
            directory: workspace.join("target/mutants"),
            has_host: drawn.iter().any(Mutant::is_of_host),
        };
        loop {
            checked.copy_sources(workspace, &drawn)?;
            let bad = checked.errors(jobs)?;
            if bad.is_empty() {
                break;
            }
            // An error may be reported on another line of the changed statement: the nearest change causes it.
            let mut causes = BTreeSet::new();
            for (file, lines) in &bad {
                let of_file = |mutant: &&Mutant| {
                    let (directory, own) = place_of(&mutant.file);
                    *file == format!("{directory}/{own}")
                };
                for line in lines {
                    let nearest = drawn.iter().filter(of_file).min_by_key(|m| m.line().abs_diff(*line));
                    causes.extend(nearest.map(|mutant| (mutant.file.clone(), mutant.line())));
                }
            }
            if causes.is_empty() {
                bail!("what does not compile is no mutation: {bad:?}");
            }
            drawn.retain(|mutant| !causes.contains(&(mutant.file.clone(), mutant.line())));
        }
        Ok((Build::make(workspace, &drawn, Judges::All, jobs)?, drawn))
    }

    fn copy_sources(&self, workspace: &Path, mutants: &[Mutant]) -> anyhow::Result<()> {
        let (directory, changed) = (&self.directory, sources(workspace, mutants)?);
        let parts: &[&str] = if self.has_host {
            &["gfni", "engine", "emu", "sim", "host"]
        } else {
            &["gfni", "engine", "emu", "sim"]
        };
        for part in parts {
            copy(&workspace.join(part), &directory.join(part), &|path| {
                if let Ok(path) = path.strip_prefix(workspace.join("host/src")) {
                    return changed.get(&format!("{}{}", list::HOST, path.to_str()?)).cloned();
                }
                let path = path.strip_prefix(workspace.join("engine/src")).ok()?;
                let text = changed.get(path.to_str()?).cloned();
                if path == Path::new("lib.rs") {
                    let text = text.or_else(|| fs::read_to_string(workspace.join("engine/src/lib.rs")).ok());
                    return text.map(|text| format!("{text}\npub mod mutant {{\n{SWITCH}}}\n"));
                }
                text
            })?;
        }
        for part in ["fixtures", "docs", "dist", "schemas"] {
            copy(&workspace.join(part), &directory.join(part), &|_| None)?;
        }
        for file in ["Cargo.lock", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"] {
            write(&directory.join(file), &fs::read(workspace.join(file))?)?;
        }
        let manifest = fs::read_to_string(workspace.join("Cargo.toml"))?;
        let list: Vec<String> = parts.iter().map(|part| format!("\"{part}\"")).collect();
        let members = |line: &str| match line.starts_with("members = ") {
            true => format!("members = [{}]\n", list.join(", ")),
            false => format!("{line}\n"),
        };
        write(&directory.join("Cargo.toml"), manifest.lines().map(members).collect::<String>().as_bytes())
    }

    /// Runs cargo in the copy.
    fn run_cargo(&self, arguments: &[&str], jobs: usize) -> anyhow::Result<Output> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let cargo = cargo
            .args(arguments)
            .args(["--release", "--message-format", "json-render-diagnostics", "--jobs"])
            .arg(jobs.to_string())
            .current_dir(&self.directory)
            .env("CARGO_TARGET_DIR", self.directory.join("target"))
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            // The style of switched code does not matter.
            .env("RUSTFLAGS", "--cap-lints allow")
            .stdin(Stdio::null());
        cargo.output().context("cargo cannot be run")
    }

    /// Files of the copy that do not compile, each with the lines of its errors.
    fn errors(&self, jobs: usize) -> anyhow::Result<Vec<(String, Vec<usize>)>> {
        let host: &[&str] = if self.has_host { &["--package", "zoneraid"] } else { &[] };
        let engine: &[&str] = &["check", "--keep-going", "--lib", "--tests", "--package", "zoneraid-engine"];
        let arguments = [engine, host].concat();
        let output = self.run_cargo(&arguments, jobs)?;
        if output.status.success() {
            return Ok(Vec::new());
        }
        // Errors are rendered: the line after an arrow is the place of each.
        let text = String::from_utf8_lossy(&output.stderr);
        let place = |line: &str| {
            let mut parts = line.trim().strip_prefix("--> ")?.split(':');
            let (file, line) = (parts.next()?, parts.next()?.parse().ok()?);
            Some((file.trim_start_matches("./").to_string(), vec![line]))
        };
        let places: Vec<_> = text.lines().filter_map(place).collect();
        match places.is_empty() {
            true => bail!("the copy in {} cannot be checked:\n{text}", self.directory.display()),
            false => Ok(places),
        }
    }

    /// Runs a build in the copy, and records the resulting programs.
    fn cargo(&mut self, arguments: &[&str], jobs: usize) -> anyhow::Result<()> {
        let output = self.run_cargo(arguments, jobs)?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("the copy in {} cannot be built:\n{why}", self.directory.display());
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            let Some(program) = message["executable"].as_str() else { continue };
            let name = message["target"]["name"].as_str().unwrap_or_default();
            let manifest = message["manifest_path"].as_str().unwrap_or_default();
            match message["profile"]["test"] == Value::Bool(true) {
                true if manifest.ends_with("host/Cargo.toml") => {
                    self.tests.push((format!("{HOST_TESTS}{name}"), program.into()));
                }
                true if [ENGINE, SCRIPTS].contains(&name) => {
                    self.tests.push((name.to_string(), program.into()));
                }
                false if name == "sim" => self.simulator = program.into(),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Copies a directory, with replacements of files by `instead`, and removes files that only the copy has. Unchanged
/// files keep their times, so that they are not built again.
fn copy(from: &Path, to: &Path, instead: &dyn Fn(&Path) -> Option<String>) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        let is_stale = !from.join(entry.file_name()).exists();
        match entry.file_type()?.is_dir() {
            true if is_stale => fs::remove_dir_all(entry.path())?,
            false if is_stale => fs::remove_file(entry.path())?,
            _ => {}
        }
    }
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
