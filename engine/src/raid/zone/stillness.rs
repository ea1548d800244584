//! Commands of the host that change something: which of them are on their way, and when none may be.

use crate::device::{Command, Completer, Completion, Slots};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Whether a command changes something, or asks what is safe: a flush does, since what it answers for has to be.
pub fn changes(command: &Command) -> bool {
    match command {
        Command::Write { .. } | Command::Append { .. } | Command::Flush => true,
        Command::Open { .. } | Command::Finish { .. } | Command::Reset { .. } => true,
        Command::Read { .. } | Command::Report { .. } | Command::Close { .. } => false,
        // Refused in any case.
        Command::FlushZrwa { .. } => false,
    }
}

#[derive(Default)]
pub struct Stillness {
    /// Commands that wait while one drive takes over from another; `None` if none is to wait.
    held: RefCell<Option<Vec<(Command, Completer)>>>,
    /// Flushes, resets and finishes that have begun.
    underway: Cell<u32>,
    /// The member whose place another drive is taking.
    handing_over: Cell<Option<usize>>,
}

impl Stillness {
    /// Has commands wait from now on.
    pub fn begin(&self) {
        self.held.borrow_mut().get_or_insert_default();
    }

    pub fn has_begun(&self) -> bool {
        self.held.borrow().is_some()
    }

    /// Has a command wait that would change something.
    pub fn hold(&self, command: Command, slots: &Rc<Slots>) -> Completion {
        let (completer, completion) = slots.pair();
        self.held.borrow_mut().get_or_insert_default().push((command, completer));
        completion
    }

    /// Ends, and gives the commands that have waited.
    pub fn end(&self) -> Vec<(Command, Completer)> {
        self.handing_over.set(None);
        self.held.take().unwrap_or_default()
    }

    /// A flush, reset or finish begins.
    pub fn enter(&self) {
        self.underway.set(self.underway.get() + 1);
    }

    pub fn leave(&self) {
        self.underway.set(self.underway.get() - 1);
    }

    pub fn is_quiet(&self) -> bool {
        self.underway.get() == 0
    }

    /// The member whose place another drive is taking, while nothing changes.
    pub fn handing_over(&self) -> Option<usize> {
        self.handing_over.get()
    }

    pub fn hand_over(&self, member: Option<usize>) {
        self.handing_over.set(member);
    }
}
