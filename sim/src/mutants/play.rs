//! Plays mutants: runs checks on them, and computes the score.

use super::{
    Build,
    check::{Check, SoundCheck},
    finders::{Finder, Finders},
    list::{Expectation, Mutant},
};
use anyhow::{Context, bail};
use emu::rng::Rng;
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Result of a mutant.
#[derive(Clone, Debug)]
pub struct MutantResult {
    pub mutant: Mutant,
    /// The check that killed it, if any. Its number of seeds includes those that do not reach the mutant.
    pub by: Option<Finder>,
    /// Number of checks that reached it.
    pub reached: usize,
    /// Text of the failure.
    pub finding: String,
    /// Real time that checks took with it.
    spent: Duration,
}

/// Options of a run.
pub struct Options {
    pub from: u64,
    /// Seeds before the other judges, and in all.
    pub seeds: u64,
    pub most_seeds: u64,
    pub jobs: usize,
    /// Real time after which no further check is run with a mutant; it is not detected then.
    pub effort: Duration,
}

impl Build {
    /// Plays `mutants`, stage by stage: their last finders, a few lives, the scripted tests, the systematic search,
    /// more lives. `told` is called for each when it is done.
    pub fn play(
        &self,
        mutants: &[Mutant],
        finders: &Finders,
        options: &Options,
        told: &(dyn Fn(&MutantResult) + Sync),
    ) -> anyhow::Result<Vec<MutantResult>> {
        let all = mutants.iter().map(MutantResult::new).collect();
        let (mut done, mut left) = self.once_more(finders, all, options, told)?;
        let kin = FindingCounts::default();
        done.iter().for_each(|played| kin.note(played));
        let mut seeds = options.seeds.min(options.most_seeds);
        let mut stages = vec![self.lives(options.from, 0..seeds), self.scripts()?];
        if !self.tests.is_empty() {
            stages.push(self.searches());
        }
        while seeds < options.most_seeds {
            let next = (2 * seeds).clamp(1, options.most_seeds);
            stages.push(self.lives(options.from, seeds..next));
            seeds = next;
        }
        for stage in stages {
            if left.is_empty() {
                break;
            }
            let found: Vec<MutantResult>;
            (found, left) = self.stage(stage, left, options, &kin, told)?;
            done.extend(found);
        }
        left.iter().for_each(told);
        done.append(&mut left);
        done.sort_by_key(|played| played.mutant.number);
        Ok(done)
    }

    /// Runs each mutant's last finder, and returns the found ones and the others.
    fn once_more(
        &self,
        finders: &Finders,
        mutants: Vec<MutantResult>,
        options: &Options,
        told: &(dyn Fn(&MutantResult) + Sync),
    ) -> anyhow::Result<(Vec<MutantResult>, Vec<MutantResult>)> {
        let check =
            |played: &MutantResult| finders.of(&played.mutant.name).and_then(|finder| self.again(finder));
        let mut checks: Vec<Check> = mutants.iter().filter_map(check).collect();
        checks.sort_by(|a, b| a.finder.cmp(&b.finder));
        checks.dedup_by(|a, b| a.finder == b.finder);
        let sound = for_each(&checks, options.jobs, &|check| self.sound(check.clone()))?;
        let sound: BTreeMap<Finder, SoundCheck> =
            sound.into_iter().map(|sound| (sound.check.finder.clone(), sound)).collect();
        let played = for_each(&mutants, options.jobs, &|before| {
            let mut played = before.clone();
            if let Some(sound) = finders.of(&before.mutant.name).and_then(|finder| sound.get(finder)) {
                self.play_one(&mut played, &[sound], options.effort)?;
            }
            // Checks are counted in the stage that runs all of them.
            played.reached = 0;
            if played.by.is_some() {
                told(&played);
            }
            Ok(played)
        })?;
        Ok(played.into_iter().partition(|played| played.by.is_some()))
    }

    /// Runs checks on the mutants that they reach, and returns the found ones and the others.
    fn stage(
        &self,
        checks: Vec<Check>,
        mutants: Vec<MutantResult>,
        options: &Options,
        kin: &FindingCounts,
        told: &(dyn Fn(&MutantResult) + Sync),
    ) -> anyhow::Result<(Vec<MutantResult>, Vec<MutantResult>)> {
        let is_asked = |check: &&Check| mutants.iter().any(|played| check.is_about(&played.mutant));
        let checks: Vec<&Check> = checks.iter().filter(is_asked).collect();
        let sound = for_each(&checks, options.jobs, &|check| match self.sound((*check).clone()) {
            Err(_) if check.may_fail() => Ok(None),
            sound => sound.map(Some),
        })?;
        let mut sound: Vec<SoundCheck> = sound.into_iter().flatten().collect();
        // Lives stay in their order, so that the number of seeds is meaningful.
        sound.sort_by_key(|sound| match sound.check.finder.seeds {
            Some(seeds) => (seeds, sound.took),
            None => (0, sound.took),
        });
        let played = for_each(&mutants, options.jobs, &|before| {
            let mut played = before.clone();
            let mut sound: Vec<&SoundCheck> = sound.iter().collect();
            sound.sort_by_cached_key(|sound| match sound.check.finder.seeds {
                Some(_) => Reverse(0),
                None => Reverse(kin.count(&played.mutant.file, &sound.check.finder)),
            });
            self.play_one(&mut played, &sound, options.effort)?;
            if played.by.is_some() {
                kin.note(&played);
                told(&played);
            }
            Ok(played)
        })?;
        Ok(played.into_iter().partition(|played| played.by.is_some()))
    }

    fn play_one(
        &self,
        played: &mut MutantResult,
        checks: &[&SoundCheck],
        effort: Duration,
    ) -> anyhow::Result<()> {
        let (number, mutant) = (played.mutant.number, played.mutant.clone());
        let is_asked =
            |sound: &&&SoundCheck| sound.reached.contains(&number) && sound.check.is_about(&mutant);
        for sound in checks.iter().filter(is_asked) {
            if played.spent >= effort {
                break;
            }
            played.reached += 1;
            let started = Instant::now();
            let finding = self.ask(sound, number)?;
            played.spent += started.elapsed();
            if let Some(finding) = finding {
                played.by = Some(sound.check.finder.clone());
                played.finding = finding;
                break;
            }
        }
        Ok(())
    }
}

/// Number of mutants found, by file and check: checks with many are run first on other mutants of the file.
#[derive(Default)]
struct FindingCounts(Mutex<BTreeMap<(String, Finder), usize>>);

impl FindingCounts {
    fn note(&self, MutantResult { mutant, by, .. }: &MutantResult) {
        let mut kin = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(finder) = by {
            *kin.entry((mutant.file.clone(), finder.clone())).or_default() += 1;
        }
    }

    fn count(&self, file: &str, finder: &Finder) -> usize {
        let kin = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kin.get(&(file.to_string(), finder.clone())).copied().unwrap_or(0)
    }
}

impl MutantResult {
    fn new(mutant: &Mutant) -> MutantResult {
        let mutant = mutant.clone();
        MutantResult { mutant, by: None, reached: 0, finding: String::new(), spent: Duration::ZERO }
    }

    /// The judge that found it.
    pub fn judge(&self) -> Option<&str> {
        self.by.as_ref().map(|finder| finder.judge.as_str())
    }

    /// Seeds until it was found by a life.
    pub fn seeds(&self) -> Option<u64> {
        self.by.as_ref().and_then(|finder| finder.seeds)
    }
}

/// Runs `work` for all `items`, `jobs` of them at once, and returns the results, or the first error.
fn for_each<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: &(dyn Fn(&T) -> anyhow::Result<R> + Sync),
) -> anyhow::Result<Vec<R>> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let one = || -> anyhow::Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return Ok(()) };
            let result = work(item)?;
            results.lock().unwrap_or_else(PoisonError::into_inner).insert(index, result);
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..jobs.max(1)).map(|_| scope.spawn(one)).collect();
        let own = one();
        let others = others.into_iter().map(|other| other.join().unwrap_or_else(|_| bail!("a job panicked")));
        others.fold(own, anyhow::Result::and)
    })?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect())
}

/// `count` of the mutants that a random life has found before, drawn by `seed`. Adding or removing a mutant of the list
/// changes at most one of the sample.
pub fn sample(mutants: Vec<Mutant>, finders: &Finders, count: usize, seed: u64) -> Vec<Mutant> {
    let place =
        |mutant: &Mutant| Rng::new(seed ^ u64::from(crc32c::crc32c(mutant.name.as_bytes()))).next_u64();
    let by_life = |mutant: &Mutant| {
        mutant.fate == Expectation::Killed
            && finders.of(&mutant.name).is_some_and(|finder| finder.seeds.is_some())
    };
    let mut drawn: Vec<Mutant> = mutants.into_iter().filter(by_life).collect();
    drawn.sort_by_key(place);
    drawn.truncate(count);
    drawn
}

/// Summary of played mutants.
pub struct Score {
    pub mutants: usize,
    pub killed: usize,
    pub equivalent: usize,
    /// Names of those that are not equivalent and were not found.
    pub survived: Vec<String>,
    pub by_judge: BTreeMap<String, usize>,
    /// Median of the seeds until a life found a mutant.
    pub median_seeds: u64,
    /// Results that are worse than the list expects.
    pub unexpected: Vec<String>,
    /// Results that are better.
    pub news: Vec<String>,
}

const BEGIN: &str = "<!-- mutants: written by `sim mutants --write-score` -->\n";
const END: &str = "<!-- mutants: end -->\n";

/// Text before the length of the list in a written score.
const LISTED: &str = "The list (`sim/mutants.txt`) has ";

impl Score {
    pub fn of(played: &[MutantResult]) -> Score {
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
        let mut seeds: Vec<u64> = played.iter().filter_map(MutantResult::seeds).collect();
        seeds.sort_unstable();
        score.median_seeds = seeds.get(seeds.len() / 2).copied().unwrap_or(0);
        for played in played {
            let (mutant, judge) = (&played.mutant, played.judge());
            let name = &mutant.name;
            let unexpected = match (judge, &mutant.fate) {
                (Some(_), Expectation::Equivalent(_)) => "was found, so it is not equivalent",
                (None, Expectation::Killed | Expectation::Rare) => "was not found",
                _ => "",
            };
            if !unexpected.is_empty() {
                score.unexpected.push(format!("{name} {unexpected}"));
            }
            if judge.is_some() && matches!(mutant.fate, Expectation::Survives(_)) {
                score.news.push(format!("{name} is found now: the list may say so"));
            }
            match (judge, &mutant.fate) {
                (Some(judge), _) => {
                    score.killed += 1;
                    let judge = judge.split(' ').next().unwrap_or(judge);
                    *score.by_judge.entry(judge.to_string()).or_default() += 1;
                }
                (None, Expectation::Equivalent(_)) => score.equivalent += 1,
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

    /// Writes the score between the markers in the file at `path`. `listed` is the number of mutants in the list, `effort`
    /// the limit in seconds for each, if there was one.
    pub fn write(&self, path: &Path, listed: usize, effort: Option<u64>) -> anyhow::Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let place = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = place.with_context(|| format!("{} has no place for it", path.display()))?;
        let killed_percent = 100 * self.killed / (self.mutants - self.equivalent).max(1);
        let mut score = format!(
            "{}, that is {killed_percent} % of those that are not equivalent. {LISTED}{listed} mutants.\n",
            self.text()
        );
        if let Some(seconds) = effort {
            score +=
                &format!("After the last test that detected it, each was tested for at most {seconds} s.\n");
        }
        if !self.survived.is_empty() {
            score += "Not detected yet:\n";
            score.extend(self.survived.iter().map(|name| format!("`{name}`\n")));
        }
        fs::write(path, [before, BEGIN, &score, END, after].concat())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::{load, workspace};

    /// The numbers of played and of listed mutants in a document; `None` for a score without the length of the list, as
    /// it was written formerly.
    fn counts(text: &str) -> Option<(usize, usize)> {
        let score = text.split_once(BEGIN)?.1.split_once(END)?.0;
        let listed = score.split_once(LISTED)?.1.split_once(' ')?.0;
        Some((score.split_once(' ')?.0.parse().ok()?, listed.parse().ok()?))
    }

    #[test]
    fn mutant_score_in_documents_covers_whole_list() {
        let workspace = workspace();
        let text = fs::read_to_string(workspace.join("docs/GUARANTEES.md")).unwrap();
        let Some((played, listed)) = counts(&text) else {
            assert!(!text.contains(LISTED), "the score in docs/GUARANTEES.md cannot be read");
            return;
        };
        let now = load(&workspace).unwrap().len();
        assert_eq!((played, listed), (now, now), "renew it: sim mutants --write-score docs/GUARANTEES.md");
    }

    #[test]
    fn mutant_score_records_length_of_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("doc.md");
        fs::write(&path, format!("before\n{BEGIN}7 mutants: 7 killed\n{END}after\n")).unwrap();
        assert_eq!(counts(&fs::read_to_string(&path).unwrap()), None);
        Score::of(&[]).write(&path, 9, None).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(counts(&text), Some((0, 9)), "{text}");
        assert!(text.starts_with("before\n") && text.ends_with("after\n"), "{text}");
    }
}
