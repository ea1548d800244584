//! Tasks that put reads together, kept for the next ones.

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

/// A task that carries out one read after the other.
#[derive(Default)]
pub struct Reader {
    pub job: RefCell<Option<Job>>,
    pub work: Gate,
    /// There will be no more.
    pub ended: Cell<bool>,
}

pub struct Job {
    pub zone: ZoneIndex,
    pub at: u64,
    pub blocks: u64,
    /// Empty while the direct read has it.
    pub data: Buf,
    pub completer: Completer,
    /// What [`crate::raid::members::Members::losses`] said when the read began.
    pub losses: u64,
    /// The read of a single member that is on its way already.
    pub direct: Option<(Seat, Completion)>,
}

/// All readers of an array, those that wait for work at hand.
#[derive(Default)]
pub struct Readers {
    idle: RefCell<Vec<Rc<Reader>>>,
    /// How many are at work.
    busy: Cell<u32>,
    /// Opened when none is.
    quiet: Gate,
    ended: Cell<bool>,
}

impl Readers {
    /// Gives a reader that has nothing to do; if there is none, one is to be started.
    pub fn take(&self) -> Option<Rc<Reader>> {
        self.busy.set(self.busy.get() + 1);
        self.idle.borrow_mut().pop()
    }

    /// Takes a reader back.
    pub fn give(&self, reader: Rc<Reader>) {
        self.busy.set(self.busy.get() - 1);
        if self.busy.get() == 0 {
            self.quiet.open();
        }
        reader.ended.set(self.ended.get());
        if !self.ended.get() {
            self.idle.borrow_mut().push(reader);
        }
    }

    /// Waits until nothing is being read.
    pub async fn quiet(&self) {
        while self.busy.get() > 0 {
            self.quiet.wait().await;
        }
    }

    /// Has all readers end, those at work when they have done it.
    pub fn end(&self) {
        self.ended.set(true);
        for reader in self.idle.take() {
            reader.ended.set(true);
            reader.work.open();
        }
    }
}
