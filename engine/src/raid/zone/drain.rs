//! Drain of host commands that change something: counts those in progress, and holds new ones.

use crate::device::{Command, Completer, Completion, Slots};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// True for commands that change the array, and for flush, which has to make the changes before it safe.
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
pub struct Drain {
    /// Commands that are held while a drive takes over from another; `None` if commands are not held.
    held: RefCell<Option<Vec<(Command, Completer)>>>,
    /// Flushes, resets and finishes in progress.
    underway: Cell<u32>,
    /// The member that another drive is replacing.
    handing_over: Cell<Option<usize>>,
}

impl Drain {
    /// Holds commands from now on.
    pub fn begin(&self) {
        self.held.borrow_mut().get_or_insert_default();
    }

    pub fn has_begun(&self) -> bool {
        self.held.borrow().is_some()
    }

    /// Holds a command that would change the array.
    pub fn hold(&self, command: Command, slots: &Rc<Slots>) -> Completion {
        let (completer, completion) = slots.pair();
        self.held.borrow_mut().get_or_insert_default().push((command, completer));
        completion
    }

    /// Stops holding commands, and returns those that were held.
    pub fn end(&self) -> Vec<(Command, Completer)> {
        self.handing_over.set(None);
        self.held.take().unwrap_or_default()
    }

    /// Counts a flush, reset or finish that begins.
    pub fn enter(&self) {
        self.underway.set(self.underway.get() + 1);
    }

    pub fn leave(&self) {
        assert!(self.underway.get() > 0, "more commands have ended than begun");
        self.underway.set(self.underway.get() - 1);
    }

    pub fn is_quiet(&self) -> bool {
        self.underway.get() == 0
    }

    /// The member that another drive is replacing, while commands are held.
    pub fn handing_over(&self) -> Option<usize> {
        self.handing_over.get()
    }

    pub fn hand_over(&self, member: Option<usize>) {
        self.handing_over.set(member);
    }
}
