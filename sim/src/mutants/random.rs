//! Mutations of single lines, drawn at random over the engine and the host.
//!
//! The list of mutants (`list.rs`) was written with knowledge of the rules. Here none is used: an operator is swapped,
//! a bound moved by one, a condition negated, a statement left out. Lines are handled as text: as a statement, a
//! condition, or the value of a `let`. Changes that do not compile are dropped ([`super::Build::random`]).

use super::list::{Expectation, Mutant};
use anyhow::Context;
use emu::rng::Rng;
use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

/// Files without mutations: the command line, and code that only measures or displays.
const LEFT_OUT: [&str; 8] = [
    "host/cli/",
    "host/bench/",
    "host/main.rs",
    "host/report/",
    "host/process/output.rs",
    "host/reactor/traffic.rs",
    "lib.rs",
    "host/lib.rs",
];

/// Texts that are swapped.
const SWAPS: [(&str, &str); 24] = [
    (" <= ", " < "),
    (" >= ", " > "),
    (" < ", " <= "),
    (" > ", " >= "),
    (" == ", " != "),
    (" != ", " == "),
    (" && ", " || "),
    (" || ", " && "),
    (" + ", " - "),
    (" - ", " + "),
    (" + 1", ""),
    (" - 1", ""),
    (".min(", ".max("),
    (".max(", ".min("),
    ("is_some()", "is_none()"),
    ("is_none()", "is_some()"),
    ("is_ok()", "is_err()"),
    ("is_err()", "is_ok()"),
    (".any(", ".all("),
    (".all(", ".any("),
    ("true", "false"),
    ("false", "true"),
    ("!", ""),
    (" / ", " * "),
];

/// The part of a line that may be changed.
enum Part {
    /// A whole statement.
    Statement(Range<usize>),
    Expression(Range<usize>),
    Condition(Range<usize>),
}

/// The part of line `line`, which begins at byte `at` of the source, if it can be changed by itself.
fn part(line: &str, at: usize, before: &str, after: &str) -> Option<Part> {
    let code = line.trim();
    let start = at + (line.len() - line.trim_start().len());
    let whole = start..start + code.len();
    let inner = |from: usize, less: usize| start + from..start + code.len() - less;
    let begins = before.ends_with([';', '{', '}']);
    let skipped = ["//", "#", "use ", "pub ", "const ", "static ", "fn ", "impl", "type ", "mod ", "match "];
    if code.is_empty()
        || skipped.iter().any(|skipped| code.starts_with(skipped))
        || code.contains("debug_assert")
    {
        return None;
    }
    if let Some(rest) = code.strip_prefix("let ") {
        let from = 4 + rest.find(" = ")? + 3;
        return (begins && code.ends_with(';')).then(|| Part::Expression(inner(from, 1)));
    }
    for head in ["if ", "while ", "} else if "] {
        if code.starts_with(head) && code.ends_with(" {") && !code[head.len()..].starts_with("let ") {
            let plain = !code.contains(" let ") && (begins || head == "} else if ");
            return plain.then(|| Part::Condition(inner(head.len(), 2)));
        }
    }
    if code.starts_with("return ") && code.ends_with(';') {
        return begins.then(|| Part::Expression(inner(7, 1)));
    }
    if begins && code.ends_with(';') {
        return Some(Part::Statement(whole));
    }
    let is_tail = begins && after.starts_with('}') && !code.ends_with(['{', '}', ',', '(']);
    is_tail.then_some(Part::Expression(whole))
}

/// Possible replacements of `old`.
fn changes(part: &Part, old: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (from, to) in SWAPS {
        for (at, _) in old.match_indices(from) {
            // A `!` may be that of a macro, or of `!=`.
            let next = old[at + 1..].chars().next();
            if from == "!" && !next.is_some_and(|c| c.is_alphanumeric() || c == '(') {
                continue;
            }
            all.push([&old[..at], to, &old[at + from.len()..]].concat());
        }
    }
    match part {
        Part::Condition(_) => all.push(format!("!({old})")),
        Part::Statement(_) if !old.starts_with(['}', '.', ')']) => all.push(String::new()),
        _ => (),
    }
    all
}

/// All Rust files below `directory`, by their paths below it.
fn files(directory: &Path, below: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, below, found)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.extend(path.strip_prefix(below).map(Path::to_path_buf));
        }
    }
    Ok(())
}

/// `count` mutations of sources in `workspace` with paths that begin with `start`, of different lines, drawn by `seed`.
pub fn draw(workspace: &Path, start: &str, count: usize, seed: u64) -> anyhow::Result<Vec<Mutant>> {
    let mut drawn = Vec::new();
    for (directory, prefix) in [("engine/src", ""), ("host/src", "host/")] {
        let (below, mut found) = (workspace.join(directory), Vec::new());
        files(&below, &below, &mut found)?;
        found.sort();
        for path in found {
            let file = format!("{prefix}{}", path.display());
            if !file.starts_with(start)
                || LEFT_OUT.iter().any(|left| file.starts_with(left))
                || file.ends_with("tests.rs")
                || file.contains("/tests/")
            {
                continue;
            }
            let source = fs::read_to_string(below.join(&path)).with_context(|| file.clone())?;
            drawn.extend(of_file(&file, &source));
        }
    }
    let mut rng = Rng::new(seed);
    rng.shuffle(&mut drawn);
    let mut lines = std::collections::BTreeSet::new();
    drawn.retain(|mutant: &Mutant| lines.insert((mutant.file.clone(), mutant.line())));
    drawn.truncate(count);
    drawn.iter_mut().zip(1..).for_each(|(mutant, number)| mutant.number = number);
    Ok(drawn)
}

fn of_file(file: &str, source: &str) -> Vec<Mutant> {
    let code = source.find("#[cfg(test)]").map_or(source, |end| &source[..end]);
    let lines: Vec<&str> = code.split_inclusive('\n').collect();
    let (mut all, mut at) = (Vec::new(), 0);
    let text = |index: usize| lines.get(index).map_or("", |line| line.trim());
    for (index, line) in lines.iter().enumerate() {
        let before = (0..index).rev().map(text).find(|line| !line.is_empty() && !line.starts_with("//"));
        if let Some(part) = part(line, at, before.unwrap_or("}"), text(index + 1)) {
            let (Part::Statement(range) | Part::Expression(range) | Part::Condition(range)) = &part;
            for new in changes(&part, &source[range.clone()]) {
                let what = if new.is_empty() { "nothing" } else { &new };
                let rule = format!("{} -> {what}", &source[range.clone()]);
                all.push(Mutant::at(file, index + 1, range.clone(), new, rule, Expectation::Killed));
            }
        }
        at += line.len();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
fn f(a: u64) -> u64 {
    if a < 3 {
        g(a);
    }
    let b = a + 1;
    b.min(7)
}

#[cfg(test)]
mod tests {
    fn t() {
        g(1);
    }
}
";

    #[test]
    fn random_mutants_change_statements_conditions_and_values() {
        let all = of_file("a.rs", SOURCE);
        let rules: Vec<(usize, &str)> = all.iter().map(|m| (m.line(), m.rule.as_str())).collect();
        assert_eq!(
            rules,
            [
                (2, "a < 3 -> a <= 3"),
                (2, "a < 3 -> !(a < 3)"),
                (3, "g(a); -> nothing"),
                (5, "a + 1 -> a - 1"),
                (5, "a + 1 -> a"),
                (6, "b.min(7) -> b.max(7)"),
            ]
        );
    }

    #[test]
    fn random_mutant_draw_is_deterministic_per_seed() {
        let workspace = super::super::workspace();
        let drawn = draw(&workspace, "", 400, 3).unwrap();
        let again = draw(&workspace, "", 400, 3).unwrap();
        let names = |all: &[Mutant]| all.iter().map(|mutant| mutant.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&drawn), names(&again));
        assert_eq!(drawn.len(), 400);
        assert!(drawn.iter().any(|mutant| mutant.file.starts_with("host/")));
    }
}
