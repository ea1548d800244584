//! Progress of the running rebuild or copy, and the result of the last rebuild.

use crate::report::{CopyReport, Rebuild};
use engine::{
    array::{self, Progress},
    runtime::Gate,
};
use std::{
    cell::{Cell, RefCell},
    path::PathBuf,
    time::Instant,
};

/// The running rebuild or copy, and the results of the last ones.
#[derive(Default)]
pub struct Rebuilder {
    /// Start and progress of the running rebuild or copy.
    pub(super) running: Cell<Option<(Instant, Progress)>>,
    /// The copy that is in progress, if any.
    pub(super) copied: RefCell<Option<CopyReport>>,
    /// Error with which the last copy ended, unless it was cancelled.
    pub(super) copy_error: RefCell<Option<String>>,
    /// Result of the last rebuild; `None` as long as a client waits for the next one.
    pub(super) last: RefCell<Option<Result<array::RebuildOutcome, String>>>,
    pub(super) changed: Gate,
    /// Whether to rebuild once more after the running rebuild.
    pub(super) again: Cell<bool>,
    /// Bytes written by completed rebuilds and copies.
    pub(super) written: Cell<u64>,
    /// Whether a replacement is in progress.
    pub(super) replacing: Cell<bool>,
}

impl Rebuilder {
    /// Records the progress of the rebuild or the copy that has begun at `started`.
    pub(super) fn advance(&self, started: Instant, progress: Progress) {
        let Progress { done_bytes, total_bytes, .. } = progress;
        assert!(done_bytes <= total_bytes, "a rebuild or copy reports {done_bytes} of {total_bytes} bytes");
        self.running.set(Some((started, progress)));
        self.changed.open();
    }

    /// Adds the bytes of a completed rebuild or copy.
    pub(super) fn count(&self, bytes: u64) {
        self.written.set(self.written.get() + bytes);
    }

    /// The drive that a member is being copied to.
    pub fn copied_to(&self) -> Option<PathBuf> {
        self.copied.borrow().as_ref().map(|copied| PathBuf::from(&copied.drive))
    }

    /// Bytes that rebuilds have written to members so far. A running copy does not count: its target is not a member
    /// yet.
    pub fn written_bytes(&self) -> u64 {
        let rebuilt = self.running.get().filter(|_| self.copied.borrow().is_none());
        self.written.get()
            + rebuilt.map_or(0, |(_, progress)| progress.done_bytes.saturating_sub(progress.kept_bytes))
    }

    /// Progress of the running rebuild or copy; `None` if there is none.
    pub fn progress(&self) -> Option<Rebuild> {
        let (started, progress) = self.running.get()?;
        let seconds = started.elapsed().as_secs_f64();
        let Progress { done_bytes, total_bytes, kept_bytes } = progress;
        let new_bytes = done_bytes.saturating_sub(kept_bytes);
        let bytes_per_second = if seconds > 0.0 { (new_bytes as f64 / seconds) as u64 } else { 0 };
        let left = total_bytes.saturating_sub(done_bytes);
        Some(Rebuild {
            copied: self.copied.borrow().clone(),
            done_bytes,
            total_bytes,
            bytes_per_second,
            seconds_left: (bytes_per_second > 0).then(|| left.div_ceil(bytes_per_second)),
            running: true,
        })
    }
}
