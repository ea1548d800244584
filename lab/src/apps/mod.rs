//! Stand-ins for applications, in virtual time: what they send to an array, and what they wait for.
//!
//! An application is tasks on the runtime of a test bed. It appends to logs, each at the head of a zone, counts its
//! operations, and is measured in a window. Zones are so large that none is full before the window ends: nothing is
//! ever collected. Its processors cost what its file says and no more.

pub mod f2fs;
pub mod lsm;

use crate::bed::{Bed, Left};
use anyhow::{Result, bail};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use sim::{clock::Clock, rng::Rng};
use std::{
    cell::{Cell, RefCell},
    future::Future,
    rc::Rc,
};

/// The largest write that an application sends, in blocks.
const MOST_BLOCKS: u64 = 256;

/// What all tasks of an application share.
pub struct App {
    pub array: Rc<dyn ZonedDevice>,
    pub clock: Clock,
    runtime: Runtime,
    /// Nobody looks at what is written, so that writes may share it.
    data: Buf,
    rng: RefCell<Rng>,
    operations: Cell<u64>,
    blocks: Cell<u64>,
    failed: RefCell<Option<String>>,
}

/// The head of a zone.
pub struct Log {
    zone: ZoneIndex,
    at: Cell<u64>,
}

/// What came of a run.
pub struct Ran {
    pub operations_s: f64,
    /// How many more in the second half of the window than in the first, as a share.
    pub drift: f64,
    /// Of all of it, from the beginning.
    pub left: Left,
}

impl Log {
    /// The beginning of a zone.
    pub fn new(zone: u32) -> Rc<Log> {
        Rc::new(Log { zone: ZoneIndex(zone), at: Cell::new(0) })
    }
}

impl App {
    /// So many blocks at the head of a log, in writes of at most `piece` blocks one after the other; gives where they
    /// begin. `sync`: each waits until it is safe.
    pub async fn append(&self, log: &Log, blocks: u64, piece: u64, sync: bool) -> Lba {
        let (mut left, mut first) = (blocks, None);
        while left > 0 {
            let size = left.min(piece).min(MOST_BLOCKS);
            let lba = Lba(self.array.geometry().start(log.zone).0 + log.at.get());
            log.at.set(log.at.get() + size);
            first = first.or(Some(lba));
            let done = self.array.submit(Command::write(lba, self.data.slice_blocks(0..size), sync)).await;
            if let Err(error) = done.result {
                self.fail(&format!("a write to zone {}: {error}", log.zone.0));
                // Nothing that follows would succeed; the run ends.
                return std::future::pending().await;
            }
            self.blocks.set(self.blocks.get() + size);
            left -= size;
        }
        first.unwrap_or(Lba(0))
    }

    /// Reads what has been written.
    pub async fn read(&self, lba: Lba, blocks: u64) {
        let (mut at, end) = (lba.0, lba.0 + blocks);
        while at < end {
            let size = MOST_BLOCKS.min(end - at);
            let read = Command::read(Lba(at), Buf::zeroed(size as usize * BLOCK));
            if let Err(error) = self.array.submit(read).await.result {
                self.fail(&format!("a read at block {at}: {error}"));
                return std::future::pending().await;
            }
            at += size;
        }
    }

    /// A processor is busy for so long.
    pub async fn compute(&self, us: f64) {
        self.clock.sleep((us * 1e3) as u64).await;
    }

    /// Counts operations.
    pub fn count(&self, operations: u64) {
        self.operations.set(self.operations.get() + operations);
    }

    /// A number below `n`.
    pub fn below(&self, n: u64) -> u64 {
        self.rng.borrow_mut().below(n)
    }

    /// A size in blocks around a mean, from 1 on: exponential, which is gamma with shape 1 where filebench takes 1.5.
    pub fn about(&self, mean_blocks: u64) -> u64 {
        (self.rng.borrow_mut().exponential() * mean_blocks as f64).ceil().clamp(1.0, 8.0 * mean_blocks as f64)
            as u64
    }

    /// Another thread of the application.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.runtime.spawn(task);
    }

    fn fail(&self, problem: &str) {
        self.failed.borrow_mut().get_or_insert(problem.into());
    }
}

/// Runs an application that `start` starts on an array, and measures it for so many ms after so many others.
///
/// # Errors
/// When something fails that it asks of the array.
pub fn run(bed: Bed, warm_ms: u64, ms: u64, start: impl FnOnce(&Rc<App>)) -> Result<Ran> {
    let app = Rc::new(App {
        array: bed.array.clone(),
        clock: bed.clock.clone(),
        runtime: bed.runtime.clone(),
        data: Buf::zeroed(MOST_BLOCKS as usize * BLOCK),
        rng: RefCell::new(Rng::new(1)),
        operations: Cell::default(),
        blocks: Cell::default(),
        failed: RefCell::default(),
    });
    let written = bed.write_counters();
    start(&app);
    bed.run(bed.clock.sleep(warm_ms * 1_000_000))?;
    let before = app.operations.get();
    bed.run(bed.clock.sleep(ms * 500_000))?;
    let middle = app.operations.get();
    bed.run(bed.clock.sleep(ms * 500_000))?;
    if let Some(problem) = app.failed.take() {
        bail!("{problem}");
    }
    let operations_s = (app.operations.get() - before) as f64 * 1e3 / ms as f64;
    let drift = (app.operations.get() - middle) as f64 / (middle - before).max(1) as f64 - 1.0;
    Ok(Ran { operations_s, drift, left: bed.left_since(&written, app.blocks.get()) })
}
