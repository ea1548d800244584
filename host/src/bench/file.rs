//! Drives in files, by way of the ring that real drives go through: what a command costs the daemon without what a
//! drive takes for it. Files keep data only where it fits; a command is carried out whatever zone it is for.
#![allow(unsafe_code)]

use crate::ring::{Outcome, Ring, Target, TargetId};
use anyhow::{Context, Result};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completer, Completion, Done, Geometry, Slots, Status, ZonedDevice},
    zone::Lba,
};
use io_uring::{opcode, squeue::Entry128, types::Fd};
use std::{
    cell::{Cell, RefCell},
    fs::File,
    os::fd::AsRawFd,
    path::Path,
    rc::Rc,
};

/// Of each file; what lies beyond wraps around.
const FILE_BLOCKS: u64 = 4096;

/// A drive in a file without a name.
pub struct FileDrive(Rc<Inner>);

struct Inner {
    file: File,
    geometry: Geometry,
    ring: Ring,
    target: RefCell<Option<TargetId>>,
    slots: Rc<Slots>,
    /// What is on its way, with the buffers that the kernel uses.
    flights: RefCell<Vec<Option<(Completer, Buf, Buf)>>>,
    free: RefCell<Vec<u32>>,
    commands: Rc<Cell<u64>>,
}

impl FileDrive {
    /// A drive of this shape in a new file in `directory`; `commands` counts what it is asked to read, write or flush.
    ///
    /// # Errors
    /// When there can be no such file.
    pub fn new(
        ring: &Ring,
        directory: &Path,
        geometry: Geometry,
        commands: &Rc<Cell<u64>>,
    ) -> Result<FileDrive> {
        let failed = || format!("there can be no file in {}", directory.display());
        let file = tempfile::tempfile_in(directory).with_context(failed)?;
        // One extent more, for what begins before the end and ends behind it.
        file.set_len((FILE_BLOCKS + geometry.max_transfer_blocks as u64) * BLOCK as u64)
            .with_context(failed)?;
        let inner = Rc::new(Inner {
            file,
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
        Ok(FileDrive(inner))
    }
}

impl Drop for FileDrive {
    fn drop(&mut self) {
        if let Some(target) = self.0.target.take() {
            self.0.ring.remove(target);
        }
    }
}

impl ZonedDevice for FileDrive {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        let fd = Fd(self.0.file.as_raw_fd());
        let at = |lba: Lba| lba.0 % FILE_BLOCKS * BLOCK as u64;
        match command {
            Command::Write { lba, data, oob, .. } => {
                let entry =
                    opcode::Write::new(fd, data.as_slice().as_ptr(), data.len() as u32).offset(at(lba));
                self.0.start(entry.build().into(), data, oob)
            }
            Command::Read { lba, mut data, oob } => {
                let length = data.len() as u32;
                let Some(memory) = data.as_mut() else {
                    return Completion::failed(Status::InvalidField);
                };
                let entry = opcode::Read::new(fd, memory.as_mut_ptr(), length).offset(at(lba));
                self.0.start(entry.build().into(), data, oob)
            }
            Command::FlushZrwa { .. } => {
                self.0.start(opcode::Nop::new().build().into(), Buf::default(), Buf::default())
            }
            Command::Append { .. } => Completion::failed(Status::InvalidOpcode),
            _ => Completion::ready(Done::ok()),
        }
    }
}

impl Inner {
    fn start(&self, entry: Entry128, data: Buf, oob: Buf) -> Completion {
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
        // SAFETY: the buffers stay in their place among the flights until the completion, and the ring holds this
        // drive as long; memory of a buffer does not move with it.
        unsafe { self.ring.push(target, token, entry) };
        completion
    }
}

impl Target for Inner {
    fn complete(&self, token: u32, outcome: Outcome) {
        let flight = self.flights.borrow_mut().get_mut(token as usize).and_then(Option::take);
        let Some((completer, data, oob)) = flight else { return };
        self.free.borrow_mut().push(token);
        let done = match outcome.result {
            0.. => Done { data, oob, ..Done::ok() },
            _ => Done { data, oob, ..Done::error(Status::InternalError.into()) },
        };
        completer.complete(done);
    }
}

/// What this thread has computed so far, in seconds of processor time; that of others does not count.
pub fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is that of a value on the stack.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
