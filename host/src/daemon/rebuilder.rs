//! How far a rebuild is, and how the last one ended.

use crate::report::{Copied, Rebuild};
use engine::{
    array::{self, Progress},
    runtime::Gate,
};
use std::{
    cell::{Cell, RefCell},
    time::Instant,
};

/// The rebuild that is going on, and how the last one ended.
#[derive(Default)]
pub struct Rebuilder {
    pub(super) running: Cell<Option<(Instant, Progress)>>,
    /// What is copied, while it is.
    pub(super) copied: RefCell<Option<Copied>>,
    pub(super) last: RefCell<Option<Result<array::Rebuilt, String>>>,
    pub(super) changed: Gate,
    /// Whether there may be more to rebuild than when the rebuild began.
    pub(super) again: Cell<bool>,
    /// Bytes that rebuilds and copies have written that are done.
    pub(super) written: Cell<u64>,
    /// Whether a drive is being put in a place.
    pub(super) replacing: Cell<bool>,
}

impl Rebuilder {
    /// A rebuild or a copy has written so many bytes.
    pub(super) fn count(&self, bytes: u64) {
        self.written.set(self.written.get() + bytes);
    }

    /// What rebuilds have written to members so far. The drive that is copied to is none before the copy is done.
    pub fn written_bytes(&self) -> u64 {
        let rebuilt = self.running.get().filter(|_| self.copied.borrow().is_none());
        self.written.get() + rebuilt.map_or(0, |(_, progress)| progress.done_bytes)
    }

    /// How far the rebuild is; `None` if there is none.
    pub fn progress(&self) -> Option<Rebuild> {
        let (started, progress) = self.running.get()?;
        let seconds = started.elapsed().as_secs_f64();
        let Progress { done_bytes, total_bytes } = progress;
        let bytes_per_second = if seconds > 0.0 { (done_bytes as f64 / seconds) as u64 } else { 0 };
        let left = total_bytes.saturating_sub(done_bytes);
        Some(Rebuild {
            copied: self.copied.borrow().clone(),
            done_bytes,
            total_bytes,
            bytes_per_second,
            seconds_left: (bytes_per_second > 0).then(|| left.div_ceil(bytes_per_second)),
        })
    }
}
