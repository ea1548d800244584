//! A drive that completes at once, and a load with constant queue depth: measures the cost of a layer's own code.

use super::{Cost, Started};
use anyhow::{Result, ensure};
use emu::ssd::{EmulatedDrive, Model};
use engine::{
    device::{Command, Completion, DeviceError, Done, Geometry, ZonedDevice, Zrwa},
    runtime::Runtime,
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Requests of a round, also of the warm-up.
pub const REQUESTS: u64 = 200_000;

/// A drive shaped like a ZN540 that stops storing data after [`Idle::idle`].
pub struct Idle {
    drive: EmulatedDrive,
    idles: Cell<bool>,
}

impl Idle {
    pub fn new(zones: u32) -> Idle {
        let model = Model::zn540().scaled(zones, Idle::zone_blocks());
        Idle::of(model.geometry)
    }

    /// As [`Idle::new`], with this limit for active and open zones.
    pub fn with_active(zones: u32, active: u32) -> Idle {
        let geometry = Model::zn540().scaled(zones, Idle::zone_blocks()).geometry;
        let zrwa = geometry.zrwa.map(|zrwa| Zrwa { max_zones: active, ..zrwa });
        Idle::of(Geometry { max_active: active, max_open: active, zrwa, ..geometry })
    }

    fn of(geometry: Geometry) -> Idle {
        Idle { drive: EmulatedDrive::in_memory(&geometry), idles: Cell::new(false) }
    }

    pub fn zone_blocks() -> u64 {
        Model::zn540().geometry.zone_capacity_blocks
    }

    /// From now on nothing is stored or read.
    pub fn idle(&self) {
        self.idles.set(true);
    }
}

impl ZonedDevice for Idle {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        match command {
            Command::Read { data, oob, .. } | Command::Write { data, oob, .. } if self.idles.get() => {
                Completion::ready(Done { data, oob, ..Done::ok() })
            }
            _ if self.idles.get() => Completion::ready(Done::ok()),
            command => self.drive.submit(command),
        }
    }
}

/// Counter that hands out the requests of a round to its tasks: their number, and the next one.
#[derive(Clone)]
pub struct RoundCounter(u64, Rc<Cell<u64>>);

impl RoundCounter {
    /// The number of the next request; `None` when the round is done.
    pub fn take(&self) -> Option<u64> {
        let turn = self.1.get();
        (turn < self.0).then(|| self.1.replace(turn + 1))
    }
}

/// Runs a round of `requests` requests by `depth` tasks, each with one request at a time, so that no task is spawned
/// per request. `idle` waits for other threads, if there are any. Returns the cost per request.
pub fn play<F>(
    runtime: &Runtime,
    (requests, depth): (u64, u64),
    idle: impl Fn() -> bool,
    task: impl Fn(RoundCounter) -> F,
) -> Result<Cost>
where
    F: Future<Output = Result<(), DeviceError>> + 'static,
{
    let (turns, failed) = (RoundCounter(requests, Rc::default()), Rc::new(RefCell::new(None)));
    let left = Rc::new(Cell::new(depth));
    for _ in 0..depth {
        let (task, failed, left) = (task(turns.clone()), failed.clone(), left.clone());
        runtime.spawn(async move {
            if let Err(error) = task.await {
                *failed.borrow_mut() = Some(error);
            }
            left.set(left.get() - 1);
        });
    }
    let started = Started::now();
    runtime.run();
    while left.get() > 0 && idle() {
        runtime.run();
    }
    let cost = started.cost(requests);
    if let Some(error) = failed.borrow_mut().take() {
        return Err(error.into());
    }
    ensure!(left.get() == 0, "requests are not answered");
    Ok(cost)
}
