//! A serial section of a driver, which all writes to an array pass one after the other, for all zones. RAIZN as
//! published dispatches all sub-requests from one queue, with an unpublished service time.

use emu::clock::Clock;
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, Geometry, Slots, ZonedDevice},
    runtime::Runtime,
    zone::Lba,
};
use std::{cell::Cell, rc::Rc};

/// Time of a write in the section, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Section {
    pub write_us: f64,
    /// Additional time per sub-request: one for each chunk of the write, and one for a parity.
    pub sub_request_us: f64,
}

/// An array behind a section with one FIFO server. Reads bypass it.
pub struct Serial {
    array: Rc<dyn ZonedDevice>,
    chunk_blocks: u64,
    section: Section,
    clock: Clock,
    runtime: Runtime,
    slots: Rc<Slots>,
    free_ns: Cell<u64>,
}

impl Serial {
    /// Puts `array` behind `section`.
    pub fn new(
        array: Rc<dyn ZonedDevice>,
        chunk_blocks: u64,
        section: Section,
        clock: &Clock,
        runtime: &Runtime,
    ) -> Serial {
        let (clock, runtime) = (clock.clone(), runtime.clone());
        Serial { array, chunk_blocks, section, clock, runtime, slots: Rc::default(), free_ns: Cell::new(0) }
    }

    /// Service time of a write in the section, in ns.
    fn service_ns(&self, lba: Lba, data: &Buf) -> u64 {
        let end = lba.0 + (data.len() / BLOCK) as u64;
        let sub_requests = end.div_ceil(self.chunk_blocks) - lba.0 / self.chunk_blocks + 1;
        ((self.section.write_us + self.section.sub_request_us * sub_requests as f64) * 1e3) as u64
    }
}

impl ZonedDevice for Serial {
    fn geometry(&self) -> &Geometry {
        self.array.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        let Command::Write { lba, data, .. } = &command else { return self.array.submit(command) };
        let due = self.free_ns.get().max(self.clock.now_ns()) + self.service_ns(*lba, data);
        self.free_ns.set(due);
        let (completer, completion) = self.slots.pair();
        let (array, runtime) = (self.array.clone(), self.runtime.clone());
        self.clock.at(due, move || {
            let submitted = array.submit(command);
            runtime.spawn(async move { completer.complete(submitted.await) });
        });
        completion
    }
}
