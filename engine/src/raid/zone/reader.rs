//! Tasks that put reads together, kept for the next ones.

use crate::{
    buf::Buf,
    device::{Completer, Completion},
    raid::seat::Seat,
    runtime::Gate,
    zone::ZoneIndex,
};
use std::{cell::RefCell, rc::Rc};

/// A task that carries out one read after the other.
#[derive(Default)]
pub struct Reader {
    pub job: RefCell<Option<Job>>,
    pub work: Gate,
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

/// Readers that wait for work.
#[derive(Default)]
pub struct Readers(RefCell<Vec<Rc<Reader>>>);

impl Readers {
    pub fn take(&self) -> Option<Rc<Reader>> {
        self.0.borrow_mut().pop()
    }

    pub fn give(&self, reader: Rc<Reader>) {
        self.0.borrow_mut().push(reader);
    }
}
