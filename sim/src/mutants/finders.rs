//! The checks that have found mutants before: each is run first on its mutant, so that a run over all of them takes a
//! small part of the time.
//!
//! `sim/finders.txt` has a line for each: the mutant, the judge, the number of seeds until it was found, if it is a
//! seed, and the arguments of the program. A finder that no longer finds its mutant only costs the mutant's other
//! checks.

use anyhow::Context;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const HEAD: &str = "\
# Which check found which mutant, after how many seeds: `sim mutants` asks it first, and `sim mutants --learn` writes this.
";

/// A check that found a mutant, or may.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finder {
    /// The name of its judge.
    pub judge: String,
    /// Number of seeds up to this one, if it is a seed.
    pub seeds: Option<u64>,
    /// Arguments of the program.
    pub arguments: Vec<String>,
}

/// The finders of mutants, by their names.
#[derive(Clone, Debug, Default)]
pub struct Finders(BTreeMap<String, Finder>);

impl Finders {
    pub fn load(workspace: &Path) -> anyhow::Result<Finders> {
        let path = path(workspace);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Finders::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Finders> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let finder = |line: &str| {
            let [name, judge, seeds, arguments] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
            let seeds = if seeds == "-" { None } else { Some(seeds.parse().ok()?) };
            let arguments = arguments.split(' ').map(str::to_string).collect();
            Some((name.to_string(), Finder { judge: judge.into(), seeds, arguments }))
        };
        let read = |line| finder(line).with_context(|| format!("'{line}' is no finder of a mutant"));
        Ok(Finders(lines.map(read).collect::<anyhow::Result<_>>()?))
    }

    pub(super) fn of(&self, mutant: &str) -> Option<&Finder> {
        self.0.get(mutant)
    }

    /// Records the finder of a mutant, or that there is none.
    pub fn note(&mut self, mutant: &str, by: Option<&Finder>) {
        match by {
            Some(finder) => _ = self.0.insert(mutant.into(), finder.clone()),
            None => _ = self.0.remove(mutant),
        }
    }

    pub fn write(&self, workspace: &Path) -> anyhow::Result<()> {
        let path = path(workspace);
        fs::write(&path, self.text()).with_context(|| path.display().to_string())
    }

    /// Forgets mutants that no longer exist.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_there(name));
    }

    fn text(&self) -> String {
        let line = |(name, finder): (&String, &Finder)| {
            let seeds = finder.seeds.map_or("-".into(), |seeds| seeds.to_string());
            format!("{name}\t{}\t{seeds}\t{}\n", finder.judge, finder.arguments.join(" "))
        };
        HEAD.to_string() + &self.0.iter().map(line).collect::<String>()
    }
}

fn path(workspace: &Path) -> PathBuf {
    workspace.join("sim/finders.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finders_file_round_trips_and_rejects_malformed_lines() {
        let text = format!("{HEAD}a\ttest moments\t-\t--exact b::c\nd\trun\t17\trun --from=16\n");
        let finders = Finders::parse(&text).unwrap();
        assert_eq!(finders.text(), text);
        assert_eq!(finders.of("d").unwrap().seeds, Some(17));
        assert_eq!(finders.of("a").unwrap().arguments, ["--exact", "b::c"]);
        assert!(Finders::parse("a\trun\tmany\tx\n").is_err());
        assert!(Finders::parse("a\trun\n").is_err());
    }
}
