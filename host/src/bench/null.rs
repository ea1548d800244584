//! Null drives behind the ring that real drives use: the cost of a command for the daemon, without the time of a drive.
//! Commands go to `/dev/null`, which completes them like a drive's passthrough, at once and on the submitting thread.
//! Files are no substitute: the kernel writes to them on threads of its own.
#![allow(unsafe_code)]

use crate::reactor::ring::{Outcome, Ring, Target, TargetId};
use anyhow::{Context, Result};
use engine::{
    buf::Buf,
    device::{Command, Completer, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice},
};
use io_uring::{opcode, types::Fd};
use std::{
    cell::{Cell, RefCell},
    fs::File,
    os::fd::AsRawFd,
    rc::Rc,
};

/// A drive that stores nothing and completes every command successfully.
pub struct NullDrive(Rc<NullDriveInner>);

struct NullDriveInner {
    file: File,
    geometry: Geometry,
    ring: Ring,
    target: RefCell<Option<TargetId>>,
    slots: Rc<Slots>,
    /// Commands in flight, with their buffers.
    flights: RefCell<Vec<Option<(Completer, Buf, Buf)>>>,
    free: RefCell<Vec<u32>>,
    commands: Rc<Cell<u64>>,
}

impl NullDrive {
    /// A drive with this geometry; `commands` counts its reads, writes and flushes.
    ///
    /// # Errors
    /// There is no `/dev/null`.
    pub fn new(ring: &Ring, geometry: Geometry, commands: &Rc<Cell<u64>>) -> Result<NullDrive> {
        let file = File::options().read(true).write(true).open("/dev/null");
        let inner = Rc::new(NullDriveInner {
            file: file.context("/dev/null cannot be opened")?,
            geometry,
            ring: ring.clone(),
            target: RefCell::default(),
            slots: Rc::default(),
            flights: RefCell::default(),
            free: RefCell::default(),
            commands: commands.clone(),
        });
        let target = ring.add(inner.clone());
        inner.target.replace(Some(target));
        Ok(NullDrive(inner))
    }
}

impl Drop for NullDrive {
    fn drop(&mut self) {
        if let Some(target) = self.0.target.take() {
            self.0.ring.remove(target);
        }
    }
}

impl ZonedDevice for NullDrive {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        match command {
            Command::Write { data, oob, .. } | Command::Read { data, oob, .. } => self.0.start(data, oob),
            Command::FlushZrwa { .. } => self.0.start(Buf::default(), Buf::default()),
            Command::Append { .. } => Completion::failed(Status::InvalidOpcode),
            _ => Completion::ready(Done::ok()),
        }
    }
}

impl NullDriveInner {
    fn start(&self, data: Buf, oob: Buf) -> Completion {
        let (completer, completion) = self.slots.pair();
        let held = self.target.borrow();
        let Some(target) = &*held else { return Completion::failed(Status::InternalError) };
        self.commands.set(self.commands.get() + 1);
        let token = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut flights = self.flights.borrow_mut();
            flights.push(None);
            flights.len() as u32 - 1
        });
        self.flights.borrow_mut()[token as usize] = Some((completer, data, oob));
        let command = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), 0).build();
        // SAFETY: the command contains no pointers.
        unsafe { self.ring.push(target, token, command) };
        completion
    }
}

impl Target for NullDriveInner {
    fn complete(&self, token: u32, outcome: Outcome) {
        let flight = self.flights.borrow_mut().get_mut(token as usize).and_then(Option::take);
        let Some((completer, data, oob)) = flight else { return };
        self.free.borrow_mut().push(token);
        let done = match outcome.result {
            0.. => Done { data, oob, ..Done::ok() },
            errno => Done { data, oob, ..Done::error(DeviceError::Os(-errno)) },
        };
        completer.complete(done);
    }
}

/// Processor time of this thread so far, in seconds.
pub fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer refers to a value on the stack.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
