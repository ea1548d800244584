//! Operations of a drive that are on their way.
#![allow(unsafe_code)]

use crate::ring::{Ring, Target, TargetId};
use io_uring::{opcode, squeue::Entry128, types::Timespec};
use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
};

/// The operations of one drive, kept with what they point to until they complete, also when the
/// drive is dropped before. Places are used again, so that an operation costs no allocation.
pub struct InFlight<T> {
    ring: Ring,
    target: RefCell<Option<TargetId>>,
    operations: RefCell<Vec<Option<Flight<T>>>>,
    free: RefCell<Vec<u32>>,
    dropped: Cell<bool>,
}

/// What has ended.
pub enum Flight<T> {
    /// The operation.
    Operation(T),
    /// The time for which an operation rested, which is to be started again.
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

    /// Has completions told to `drive`, which the ring holds from now on.
    pub fn belong_to(&self, drive: Rc<dyn Target>) {
        *self.target.borrow_mut() = Some(self.ring.add(drive));
    }

    /// Starts an operation; what cannot be started comes back.
    ///
    /// # Safety
    /// Whatever `entry` points to must live in `operation` or the drive, and stay where it is when
    /// they move.
    pub unsafe fn start(&self, operation: T, entry: Entry128) -> Result<(), (T, io::Error)> {
        let target = self.target.borrow();
        let Some(target) = &*target else {
            return Err((operation, io::Error::from_raw_os_error(libc::ENODEV)));
        };
        // SAFETY: the caller vouches for it.
        unsafe { self.push(target, Flight::Operation(operation), entry) };
        Ok(())
    }

    /// Keeps an operation for some time; it comes back when that has passed.
    pub fn rest(&self, operation: T, time: &'static Timespec) -> Result<(), T> {
        let target = self.target.borrow();
        let Some(target) = &*target else { return Err(operation) };
        let entry = opcode::Timeout::new(time).build().into();
        // SAFETY: the time is always there.
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
        // SAFETY: the operation stays in its place until it has completed, and the ring holds the
        // drive as long.
        unsafe { self.ring.push(target, token, entry) };
    }

    /// What has completed.
    pub fn take(&self, token: u32) -> Option<Flight<T>> {
        let flight = self.operations.borrow_mut().get_mut(token as usize)?.take()?;
        self.free.borrow_mut().push(token);
        Some(flight)
    }

    /// The drive has been dropped.
    pub fn drop_drive(&self) {
        self.dropped.set(true);
        self.let_go();
    }

    /// Once the drive is dropped and nothing is in flight, the ring need not hold it any more. To be
    /// called after each completion.
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
