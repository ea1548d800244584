//! Drain of host commands that change the array: counts those in progress, and holds new ones.

use crate::{
    buf::Buf,
    device::{Command, Completer, Completion, Slots},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Whether a command waits for the end of a drain: all that change the array, and flush, which makes changes safe.
pub fn changes(command: &Command) -> bool {
    match command {
        Command::Write { .. } | Command::Append { .. } | Command::Flush => true,
        Command::Open { .. } | Command::Finish { .. } | Command::Reset { .. } => true,
        Command::Read { .. } | Command::Report { .. } | Command::Close { .. } => false,
        // The array has no ZRWA.
        Command::FlushZrwa { .. } => false,
    }
}

/// A command that is held, with the note of a write; that is empty for none.
pub struct HeldCommand {
    pub command: Command,
    pub note: Buf,
    pub completer: Completer,
}

/// Held commands, and commands in progress.
#[derive(Default)]
pub struct Drain {
    /// Commands that are held while a drive takes over from another one; `None` if no drain is in progress.
    held: RefCell<Option<Vec<HeldCommand>>>,
    /// Flushes, resets, finishes and attachments of drives in progress.
    underway: Cell<u32>,
    /// The member whose drive is being replaced now: see [`Drain::handing_over`].
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
    pub fn hold(&self, command: Command, note: Buf, slots: &Rc<Slots>) -> Completion {
        let (completer, completion) = slots.pair();
        self.held.borrow_mut().get_or_insert_default().push(HeldCommand { command, note, completer });
        completion
    }

    /// Ends the drain, and returns the held commands.
    pub fn end(&self) -> Vec<HeldCommand> {
        self.handing_over.set(None);
        self.held.take().unwrap_or_default()
    }

    /// Counts a flush, a reset, a finish or the attachment of a drive that begins.
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

    /// The member whose place another drive is taking, during the drain. Until it ends the old drive can return.
    pub fn handing_over(&self) -> Option<usize> {
        self.handing_over.get()
    }

    pub fn hand_over(&self, member: Option<usize>) {
        self.handing_over.set(member);
    }
}
