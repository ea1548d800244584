//! Operations of a drive that are in flight.
#![allow(unsafe_code)]

use crate::reactor::ring::{Ring, Target, TargetId};
use io_uring::{opcode, squeue::Entry128, types::Timespec};
use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
};

/// The operations of one drive, kept with their buffers until they complete, also when the drive is dropped before.
/// Slots are reused, so that an operation does not allocate.
pub struct InFlight<T> {
    ring: Ring,
    target: RefCell<Option<TargetId>>,
    operations: RefCell<Vec<Option<Flight<T>>>>,
    free: RefCell<Vec<u32>>,
    dropped: Cell<bool>,
}

/// A completed entry of the table.
pub enum Flight<T> {
    /// An operation.
    Operation(T),
    /// A delay that has ended, with the operation to start again.
    Rest(T),
}

impl<T> InFlight<T> {
    pub fn new(ring: &Ring) -> InFlight<T> {
        InFlight {
            ring: ring.clone(),
            target: RefCell::default(),
            operations: RefCell::default(),
            free: RefCell::default(),
            dropped: Cell::new(false),
        }
    }

    /// Sets the drive as the target of completions; the ring holds it until [`InFlight::let_go`].
    pub fn belong_to(&self, drive: Rc<dyn Target>) {
        *self.target.borrow_mut() = Some(self.ring.add(drive));
    }

    /// Starts an operation, or returns it with the error.
    ///
    /// # Safety
    /// Memory that `entry` points to must be owned by `operation` or the drive, and not move with them.
    pub unsafe fn start(&self, operation: T, entry: Entry128) -> Result<(), (T, io::Error)> {
        let target = self.target.borrow();
        let Some(target) = &*target else {
            return Err((operation, io::Error::from_raw_os_error(libc::ENODEV)));
        };
        // SAFETY: the caller guarantees it.
        unsafe { self.push(target, Flight::Operation(operation), entry) };
        Ok(())
    }

    /// Holds an operation for `time`, after which it comes back as [`Flight::Rest`].
    pub fn rest(&self, operation: T, time: &'static Timespec) -> Result<(), T> {
        let target = self.target.borrow();
        let Some(target) = &*target else { return Err(operation) };
        let entry = opcode::Timeout::new(time).build().into();
        // SAFETY: `time` is static.
        unsafe { self.push(target, Flight::Rest(operation), entry) };
        Ok(())
    }

    /// # Safety
    /// As that of [`InFlight::start`].
    unsafe fn push(&self, target: &TargetId, flight: Flight<T>, entry: Entry128) {
        let token = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut operations = self.operations.borrow_mut();
            operations.push(None);
            operations.len() as u32 - 1
        });
        self.operations.borrow_mut()[token as usize] = Some(flight);
        // SAFETY: the operation stays in its slot until it has completed, and the ring holds the drive as long.
        unsafe { self.ring.push(target, token, entry) };
    }

    /// Takes the completed entry with this token out of the table.
    pub fn take(&self, token: u32) -> Option<Flight<T>> {
        let flight = self.operations.borrow_mut().get_mut(token as usize)?.take()?;
        self.free.borrow_mut().push(token);
        Some(flight)
    }

    /// Marks the drive as dropped.
    pub fn drop_drive(&self) {
        self.dropped.set(true);
        self.let_go();
    }

    /// Removes the target from the ring once the drive is dropped and nothing is in flight. To be called after each
    /// completion.
    pub fn let_go(&self) {
        let idle = self.free.borrow().len() == self.operations.borrow().len();
        if self.dropped.get()
            && idle
            && let Some(target) = self.target.take()
        {
            self.ring.remove(target);
        }
    }
}
