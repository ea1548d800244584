//! The list of mutants, `sim/mutants.txt`, and its application to source text.
//!
//! A mutant is one change of one expression or statement. It quotes about a line of the source, in which `«` and `»`
//! enclose the changed part: so it can be read without the source, and it is still found when lines above it move.
//! White space is ignored.
//!
//! All of them go into one build: `E` becomes `(if crate::mutant::on(7) { E' } else { E })`, and a statement likewise.
//! They may be nested.

use anyhow::{Context, bail};
use engine::raid::policy::Policy;
use std::{collections::BTreeSet, ops::Range};

/// One entry of the list.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Its switch: the position in the list, from 1 on.
    pub number: u32,
    pub name: String,
    /// The policy that it concerns, if only one.
    pub policy: Option<Policy>,
    /// Path below `engine/src`, or with `host/` in front below `host/src`.
    pub file: String,
    /// The function that it is in; anywhere in the file if `None`.
    pub function: Option<String>,
    /// The quoted source, without white space, and the changed bytes of it.
    old: String,
    changed: Range<usize>,
    new: String,
    /// Its place if it was drawn at random: the line, and the bytes of the source.
    place: Option<(usize, Range<usize>)>,
    /// The rule that it breaks.
    pub rule: String,
    pub fate: Expectation,
}

/// The expected result of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    Killed,
    /// Too few seeds find it to be part of a sample.
    Rare,
    /// It behaves like the original, for this reason.
    Equivalent(String),
    /// It is not found, and should be: this would be required.
    Survives(String),
}

/// Prefix of files of the host, as opposed to those of the engine.
pub(super) const HOST: &str = "host/";

const OPEN: char = '«';
const CLOSE: char = '»';

/// Parses the list. Its format is described at its head.
pub fn parse(text: &str) -> anyhow::Result<Vec<Mutant>> {
    let mut mutants: Vec<Mutant> = Vec::new();
    let mut names = BTreeSet::new();
    let text: String = text.lines().filter(|line| !line.starts_with('#')).map(|l| format!("{l}\n")).collect();
    for entry in text.split("\n\n").map(str::trim).filter(|entry| !entry.is_empty()) {
        let number = mutants.len() as u32 + 1;
        let mutant = parse_entry(entry, number).with_context(|| format!("in the entry:\n{entry}\n"))?;
        if !names.insert(mutant.name.clone()) {
            bail!("there are two mutants named {}", mutant.name);
        }
        mutants.push(mutant);
    }
    Ok(mutants)
}

fn parse_entry(entry: &str, number: u32) -> anyhow::Result<Mutant> {
    let mut lines = entry.lines().map(str::trim);
    let mut head = lines.next().unwrap_or_default().split_whitespace();
    let name = head.next().context("it has no name")?.to_string();
    let policy = match head.next() {
        None => None,
        Some(name) => {
            let found = Policy::ALL.into_iter().find(|policy| policy.name() == name);
            Some(found.with_context(|| format!("there is no policy {name}"))?)
        }
    };
    let mut place = lines.next().unwrap_or_default().split_whitespace();
    let file = place.next().context("the file is missing")?.to_string();
    let function = place.next().map(str::to_string);
    let (mut old, mut new, mut rule) = (String::new(), String::new(), String::new());
    let mut fate = Expectation::Killed;
    for line in lines {
        if let Some(line) = line.strip_prefix('-') {
            old.extend(line.chars().filter(|c| !c.is_whitespace()));
        } else if let Some(line) = line.strip_prefix('+') {
            new += line;
        } else if line == "rare" {
            fate = Expectation::Rare;
        } else if let Some(why) = line.strip_prefix("equivalent: ") {
            fate = Expectation::Equivalent(why.to_string());
        } else if let Some(why) = line.strip_prefix("survives: ") {
            fate = Expectation::Survives(why.to_string());
        } else {
            let text = match &mut fate {
                Expectation::Equivalent(why) | Expectation::Survives(why) => why,
                Expectation::Killed | Expectation::Rare => &mut rule,
            };
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line);
        }
    }
    let (before, rest) = old.split_once(OPEN).context("nothing is marked as changed")?;
    let (changed, after) = rest.split_once(CLOSE).context("what is changed has no end")?;
    // The binding would be limited to the block of the switch, even if the mutant is off.
    if changed.starts_with("let") && changed.contains('=') && changed.ends_with(';') {
        bail!("it changes a `let` as a whole, instead of what that is set to");
    }
    if rule.is_empty() {
        bail!("it does not say what rule it breaks");
    }
    let range = before.len()..before.len() + changed.len();
    let old = [before, changed, after].concat();
    let new = new.trim().to_string();
    Ok(Mutant { number, name, policy, file, function, old, changed: range, new, place: None, rule, fate })
}

impl Mutant {
    /// A mutant with an explicit place.
    pub(super) fn at(
        file: &str,
        line: usize,
        range: Range<usize>,
        new: String,
        rule: String,
        fate: Expectation,
    ) -> Mutant {
        Mutant {
            number: 0,
            name: format!("{file}:{line}"),
            policy: None,
            file: file.into(),
            function: None,
            old: String::new(),
            changed: 0..0,
            new,
            place: Some((line, range)),
            rule,
            fate,
        }
    }

    /// The line of a mutant with an explicit place.
    pub(super) fn line(&self) -> usize {
        self.place.as_ref().map_or(0, |(line, _)| *line)
    }

    /// Whether it is one of the host.
    pub fn is_of_host(&self) -> bool {
        self.file.starts_with(HOST)
    }

    /// The bytes of `source` that it changes.
    fn locate(&self, source: &str) -> anyhow::Result<Range<usize>> {
        if let Some((_, range)) = &self.place {
            return Ok(range.clone());
        }
        let code = source.find("#[cfg(test)]\nmod tests").map_or(source, |end| &source[..end]);
        let (from, scope) = match &self.function {
            Some(name) => function(code, name).with_context(|| {
                format!("mutant {}: {} has no function {name}, or several", self.name, self.file)
            })?,
            None => (0, code),
        };
        let dense: String = scope.chars().filter(|c| !c.is_whitespace()).collect();
        let mut found = dense.match_indices(&self.old);
        let (Some((at, _)), None) = (found.next(), found.next()) else {
            let times = dense.matches(&self.old).count();
            bail!(
                "mutant {}: its text is {times} times in {}, instead of once: {}",
                self.name,
                self.file,
                self.old
            );
        };
        let start = from + sparse(scope, at + self.changed.start);
        // Behind the last byte, not before the next one.
        Ok(start..from + sparse(scope, at + self.changed.end - 1) + 1)
    }

    /// The replacement of `old`, with a switch.
    fn switched(&self, old: &str) -> String {
        let (number, new) = (self.number, &self.new);
        let on = format!("{}::mutant::on({number})", if self.is_of_host() { "engine" } else { "crate" });
        if !old.trim_end().ends_with([';', '}']) {
            return format!("(if {on} {{ {new} }} else {{ {old} }})");
        }
        match new.is_empty() {
            true => format!("if !{on} {{ {old} }}"),
            false => format!("if {on} {{ {new} }} else {{ {old} }}"),
        }
    }
}

/// The offset in `text` of byte number `dense` without white space.
fn sparse(text: &str, dense: usize) -> usize {
    let mut left = dense;
    for (at, c) in text.char_indices().filter(|(_, c)| !c.is_whitespace()) {
        if left < c.len_utf8() {
            return at + left;
        }
        left -= c.len_utf8();
    }
    text.len()
}

/// The function `name`, up to a closing brace at its own indentation, and its offset.
fn function<'a>(code: &'a str, name: &str) -> Option<(usize, &'a str)> {
    let begins = |open: &str| code.match_indices(&format!("fn {name}{open}")).map(|(at, _)| at).collect();
    let places: Vec<Vec<usize>> = vec![begins("("), begins("<")];
    let [at] = places.concat()[..] else { return None };
    let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
    let indent = code[line..].len() - code[line..].trim_start().len();
    let end = format!("\n{}}}\n", &code[line..line + indent]);
    let length = code[line..].find(&end)? + end.len();
    Some((line, &code[line..line + length]))
}

/// `source` with all `mutants` of it in their places, switched off.
pub fn apply(source: &str, mutants: &[&Mutant]) -> anyhow::Result<String> {
    let (mut places, mut gone) = (Vec::new(), Vec::new());
    for mutant in mutants {
        match mutant.locate(source) {
            Ok(place) => places.push((place, *mutant)),
            Err(error) => gone.push(error.to_string()),
        }
    }
    if !gone.is_empty() {
        bail!("{}", gone.join("\n"));
    }
    places.sort_by_key(|(place, mutant)| (place.start, std::cmp::Reverse(place.end), mutant.number));
    render(source, 0..source.len(), &places)
}

fn render(source: &str, range: Range<usize>, places: &[(Range<usize>, &Mutant)]) -> anyhow::Result<String> {
    let (mut result, mut at, mut left) = (String::new(), range.start, places);
    while let Some(((place, mutant), rest)) = left.split_first() {
        let inside = rest.iter().take_while(|(inner, _)| inner.start < place.end).count();
        if let Some((_, other)) = rest[..inside].iter().find(|(inner, _)| inner.end > place.end) {
            bail!("mutants {} and {} overlap", mutant.name, other.name);
        }
        result += &source[at..place.start];
        result += &mutant.switched(&render(source, place.clone(), &rest[..inside])?);
        (at, left) = (place.end, &rest[inside..]);
    }
    result += &source[at..range.end];
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
# A comment.
no-barrier zrwa
    a.rs f
  - «barrier(x);»
    Nothing is safe.

one-more
    a.rs
  - let n = «a + b»;
  + a + b + 1
    Off by
    one.
    equivalent: nobody
    counts.

wrong-part
    a.rs f
  - let n = a + «b»
  + 0
    Something is lacking.
    rare
";
    const SOURCE: &str = "fn f(x: u8) {\n    barrier(\n        x);\n    let n = a +\n        b;\n}\n\nfn g() {\n    barrier(x);\n}\n";

    #[test]
    fn mutants_are_located_by_text_and_may_nest() {
        let mutants = parse(LIST).unwrap();
        let of_file: Vec<&Mutant> = mutants.iter().collect();
        let text = apply(SOURCE, &of_file).unwrap();
        let dense: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            dense,
            "fn f(x: u8) { if !crate::mutant::on(1) { barrier( x); } let n = (if crate::mutant::on(2) \
             { a + b + 1 } else { a + (if crate::mutant::on(3) { 0 } else { b }) }); } fn g() { barrier(x); }"
        );
        assert_eq!((mutants[0].policy, &mutants[0].fate), (Some(Policy::Zrwa), &Expectation::Killed));
        assert_eq!(mutants[1].rule, "Off by one.");
        assert_eq!(mutants[1].fate, Expectation::Equivalent("nobody counts.".into()));
        assert_eq!(mutants[2].fate, Expectation::Rare);
    }

    #[test]
    fn mutant_with_missing_or_ambiguous_text_is_named() {
        let text = LIST.replace("a.rs f", "a.rs");
        let mutants = parse(&text).unwrap();
        let error = apply(SOURCE, &mutants.iter().collect::<Vec<_>>()).unwrap_err().to_string();
        assert!(error.contains("no-barrier") && error.contains("2 times"), "{error}");
        let mutants = parse(&LIST.replace("a + b", "a - b")).unwrap();
        let error = apply(SOURCE, &mutants.iter().collect::<Vec<_>>()).unwrap_err().to_string();
        assert!(error.contains("one-more") && error.contains("0 times"), "{error}");
    }

    #[test]
    fn mutant_removing_whole_let_is_refused() {
        let entry = "gone\n    a.rs f\n  - «let n = a +\n  - b;»\n    It is there.";
        assert!(format!("{:#}", parse(entry).unwrap_err()).contains("a `let` as a whole"));
    }

    #[test]
    fn mutant_list_applies_to_current_sources() {
        let workspace = super::super::workspace();
        super::super::sources(&workspace, &super::super::load(&workspace).unwrap()).unwrap();
    }
}
