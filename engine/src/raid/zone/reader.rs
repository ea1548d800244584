//! Readers: tasks that carry out reads of several members, kept for reuse.

use crate::{
    buf::Buf,
    device::{Completer, Completion},
    raid::seat::Seat,
    runtime::Gate,
    zone::ZoneIndex,
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// State of a reader, which carries out one read after the other.
#[derive(Default)]
pub struct ReadWorker {
    pub job: RefCell<Option<ReadJob>>,
    /// Opened when `job` or `ended` is set.
    pub work: Gate,
    /// The task is to end.
    pub ended: Cell<bool>,
}

/// A read of `blocks` blocks from block `at` of a zone.
pub struct ReadJob {
    pub zone: ZoneIndex,
    pub at: u64,
    pub blocks: u64,
    /// The buffer; empty while the direct read has it.
    pub data: Buf,
    pub completer: Completer,
    /// [`crate::raid::members::Members::losses`] when the read began.
    pub losses: u64,
    /// The direct read, which is in flight already.
    pub direct: Option<(Seat, Completion)>,
}

/// All readers of an array, and those that are idle.
#[derive(Default)]
pub struct Readers {
    idle: RefCell<Vec<Rc<ReadWorker>>>,
    /// Number of readers at work.
    busy: Cell<u32>,
    /// Opened when no reader is at work.
    quiet: Gate,
    ended: Cell<bool>,
}

impl Readers {
    /// Takes an idle reader and counts it as busy; if there is none, the caller has to start one.
    pub fn take(&self) -> Option<Rc<ReadWorker>> {
        self.busy.set(self.busy.get() + 1);
        self.idle.borrow_mut().pop()
    }

    /// Returns a reader that has carried out its job.
    pub fn give(&self, reader: Rc<ReadWorker>) {
        assert!(self.busy.get() > 0 && reader.job.borrow().is_none(), "a reader is idle while it has a job");
        self.busy.set(self.busy.get() - 1);
        if self.busy.get() == 0 {
            self.quiet.open();
        }
        reader.ended.set(self.ended.get());
        if !self.ended.get() {
            self.idle.borrow_mut().push(reader);
        }
    }

    /// Waits until no read is in progress.
    pub async fn quiet(&self) {
        while self.busy.get() > 0 {
            self.quiet.wait().await;
        }
    }

    /// Ends all readers; those at work end after their read.
    pub fn end(&self) {
        self.ended.set(true);
        for reader in self.idle.take() {
            reader.ended.set(true);
            reader.work.open();
        }
    }
}
