//! RAIZN's single queue: whatever an array is to write is dispatched one after the other.

use engine::{
    buf::BLOCK,
    device::{Command, Completion, Geometry, Slots, ZonedDevice},
    runtime::Runtime,
};
use sim::clock::Clock;
use std::{cell::Cell, rc::Rc};

/// An array behind a queue with one server, first come first served: each sub-request takes as long.
pub struct Fifo {
    array: Rc<dyn ZonedDevice>,
    chunk_blocks: u64,
    service_ns: u64,
    clock: Clock,
    runtime: Runtime,
    slots: Rc<Slots>,
    free_ns: Cell<u64>,
}

impl Fifo {
    /// Puts `array` behind a queue that takes `service_us` for a sub-request.
    pub fn new(
        array: Rc<dyn ZonedDevice>,
        chunk_blocks: u64,
        service_us: f64,
        clock: &Clock,
        runtime: &Runtime,
    ) -> Fifo {
        let (clock, runtime) = (clock.clone(), runtime.clone());
        let service_ns = (service_us * 1e3) as u64;
        Fifo { array, chunk_blocks, service_ns, clock, runtime, slots: Rc::default(), free_ns: Cell::new(0) }
    }

    /// Data of every chunk that a write touches, and a parity.
    fn sub_requests(&self, command: &Command) -> u64 {
        let Command::Write { lba, data, .. } = command else { return 1 };
        let end = lba.0 + (data.len() / BLOCK) as u64;
        end.div_ceil(self.chunk_blocks) - lba.0 / self.chunk_blocks + 1
    }
}

impl ZonedDevice for Fifo {
    fn geometry(&self) -> &Geometry {
        self.array.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        let begin = self.free_ns.get().max(self.clock.now_ns());
        let due = begin + self.sub_requests(&command) * self.service_ns;
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
