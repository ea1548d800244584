//! State of the scrub of an array, and the history of earlier ones, with the file in which they are kept.
//!
//! If the file is lost, the history is lost, and the next scrub reads everything.

use crate::{
    process::{output::note, run},
    report::scrub::{ScrubReport, ScrubState},
};
use anyhow::{Context, Result};
use engine::runtime::Gate;
use serde::{Deserialize, Serialize};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

/// Scrubs of which the reports are kept.
const MOST_HISTORY: usize = 24;

/// Zones that a complete scrub has read, and that were full.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct VerifiedZones {
    /// The highest epoch of a zone when the scrub began: zones that were reset since have a higher one.
    epoch: u64,
    /// Ranges of zones, with exclusive ends.
    zones: Vec<(u32, u32)>,
}

impl VerifiedZones {
    /// None yet, by a scrub that begins when this is the highest epoch of a zone.
    pub(super) fn new(epoch: u64) -> VerifiedZones {
        VerifiedZones { epoch, zones: Vec::new() }
    }

    pub(super) fn add(&mut self, zone: u32, epoch: u64) {
        if epoch > self.epoch {
            // It was reset since the scrub began.
            return;
        }
        match self.zones.last_mut() {
            Some((_, end)) if *end == zone => *end += 1,
            _ => self.zones.push((zone, zone + 1)),
        }
    }

    pub(super) fn has(&self, zone: u32, epoch: u64) -> bool {
        let at = self.zones.partition_point(|(_, end)| *end <= zone);
        epoch <= self.epoch && self.zones.get(at).is_some_and(|(first, _)| *first <= zone)
    }
}

/// Contents of the state file of an array's scrubs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ScrubBook {
    /// The scrub that has not ended, with the next zone and its limit in bytes a second.
    pub(super) present: Option<ScrubReport>,
    pub(super) next_zone: u32,
    pub(super) rate: Option<u64>,
    /// Zones that the present scrub has read, and those that the last complete one has.
    pub(super) reading: VerifiedZones,
    pub(super) verified: VerifiedZones,
    /// Zones with blocks that could not be repaired.
    #[serde(default)]
    pub(super) suspects: BTreeSet<u32>,
    /// Scrubs that have ended, the last one first.
    pub(super) history: Vec<ScrubReport>,
}

impl ScrubBook {
    /// The stored state; nothing if there is none. A damaged file is ignored.
    fn read(path: &Path) -> ScrubBook {
        std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    fn store(&self, path: &Path) -> Result<()> {
        let problem = || format!("{} cannot be written", path.display());
        let directory = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory).with_context(|| {
            format!(
                "{} cannot be created: name another directory in ${}",
                directory.display(),
                run::STATE_VARIABLE
            )
        })?;
        let mut file = tempfile::NamedTempFile::new_in(directory).with_context(problem)?;
        serde_json::to_writer(&mut file, self).with_context(problem)?;
        file.persist(path).map_err(|error| error.error).with_context(problem)?;
        Ok(())
    }

    /// Ends the present scrub.
    pub(super) fn end(&mut self, state: ScrubState) {
        assert!(!state.is_under_way(), "a scrub ends, and is {state}");
        if let Some(present) = self.present.take() {
            let mut ended = ScrubReport { state, ended_at: Some(now()), ..present };
            if state == ScrubState::Complete {
                ended.total_bytes = ended.scanned_bytes;
            }
            ended.estimate();
            self.history.insert(0, ended);
            self.history.truncate(MOST_HISTORY);
        }
        let read = std::mem::take(&mut self.reading);
        if state == ScrubState::Complete {
            self.verified = read;
        }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The scrub of an array, and its history.
pub struct Scrubber {
    path: PathBuf,
    pub(super) book: RefCell<ScrubBook>,
    /// Whether the task of a scrub runs.
    pub(super) runs: Cell<bool>,
    /// Opened when the state of the scrub changes.
    pub(super) changed: Gate,
    /// Number of the scrub, since the start of the process.
    pub(super) number: Cell<u64>,
    /// Number of requests to the array at the last look, and when that grew.
    pub(super) requests: Cell<u64>,
    pub(super) used: Cell<Option<Instant>>,
}

impl Scrubber {
    pub fn of(array: &[u8; 16]) -> Scrubber {
        let path = run::state_path(array);
        Scrubber {
            book: RefCell::new(ScrubBook::read(&path)),
            path,
            runs: Cell::default(),
            changed: Gate::default(),
            number: Cell::default(),
            requests: Cell::default(),
            used: Cell::default(),
        }
    }

    pub(super) fn state(&self) -> ScrubState {
        self.book.borrow().present.as_ref().map_or(ScrubState::Never, |present| present.state)
    }

    /// Stores the state; an error is logged.
    pub(super) fn store(&self) {
        if let Err(error) = self.book.borrow().store(&self.path) {
            // Standard error usually goes to the journal.
            note(&format!("the state of the scrub is not stored: {error:#}"));
        }
    }

    /// The present scrub, or else the last one; `None` if there was none.
    pub fn report(&self) -> Option<ScrubReport> {
        let book = self.book.borrow();
        book.present.clone().or_else(|| book.history.first().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verified_zones_exclude_those_reset_since() {
        let mut verified = VerifiedZones::new(7);
        [(0, 3), (1, 7), (2, 8), (4, 0)].into_iter().for_each(|(zone, epoch)| verified.add(zone, epoch));
        let known: Vec<bool> = (0..6).map(|zone| verified.has(zone, 5)).collect();
        assert_eq!(known, [true, true, false, false, true, false]);
        // It was reset later.
        assert!(!verified.has(1, 9) && verified.has(1, 7));
    }

    #[test]
    fn scrub_book_survives_damage_and_keeps_last_reports() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/one.scrub");
        let mut book = ScrubBook::read(&path);
        for number in 0..30 {
            book.present = Some(ScrubReport { started_at: number, ..ScrubReport::default() });
            book.reading.add(1, 0);
            book.end(if number < 29 { ScrubState::Complete } else { ScrubState::Stopped });
        }
        // A scrub that was stopped verifies nothing, and takes nothing back.
        assert!(book.verified.has(1, 0) && !book.reading.has(1, 0));
        book.store(&path).unwrap();
        let read = ScrubBook::read(&path);
        let begun: Vec<u64> = read.history.iter().map(|report| report.started_at).collect();
        assert_eq!(begun, (6..30).rev().collect::<Vec<_>>());
        std::fs::write(&path, "{").unwrap();
        assert!(ScrubBook::read(&path).history.is_empty());
    }
}
