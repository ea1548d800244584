//! Models of applications in virtual time: the commands that they send to an array, and their dependencies.
//!
//! An application is a set of tasks on the runtime of a test bed. It appends to logs, each at the head of a zone,
//! counts its operations, and is measured in a window. Zones are so large that none is full before the window ends:
//! there is no garbage collection. Each application's file lists the CPU time that it models.

pub mod f2fs;
pub mod lsm;
pub mod ycsb;

use crate::test_bed::{StreamEffects, TestBed};
use anyhow::{Result, bail};
use emu::{clock::Clock, rng::Rng};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    future::Future,
    rc::Rc,
};

/// The largest write that an application sends, in blocks.
const MOST_BLOCKS: u64 = 256;

/// State shared by all tasks of an application.
pub struct App {
    pub array: Rc<dyn ZonedDevice>,
    pub clock: Clock,
    runtime: Runtime,
    /// Buffers that writes take in turn, each of the largest size; a single one if the contents do not matter.
    data: Vec<Buf>,
    next: Cell<usize>,
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

/// Results of a run.
pub struct AppResult {
    pub operations_s: f64,
    /// Relative increase of operations from the first to the second half of the window.
    pub drift: f64,
    /// Of the window, too.
    pub left: StreamEffects,
}

impl Log {
    /// The beginning of a zone.
    pub fn new(zone: u32) -> Rc<Log> {
        Rc::new(Log { zone: ZoneIndex(zone), at: Cell::new(0) })
    }
}

impl App {
    /// An application on a device, with draws by `seed`, which writes `bytes` repeatedly, or zeros if there are none.
    pub fn new(
        array: &Rc<dyn ZonedDevice>,
        clock: &Clock,
        runtime: &Runtime,
        seed: u64,
        bytes: &[u8],
    ) -> Rc<App> {
        let size = MOST_BLOCKS as usize * BLOCK;
        let mut data: Vec<Buf> = bytes.chunks_exact(size).map(Buf::copy_of).collect();
        if data.is_empty() {
            data.push(Buf::zeroed(size));
        }
        Rc::new(App {
            array: array.clone(),
            clock: clock.clone(),
            runtime: runtime.clone(),
            data,
            next: Cell::default(),
            rng: RefCell::new(Rng::new(seed)),
            operations: Cell::default(),
            blocks: Cell::default(),
            failed: RefCell::default(),
        })
    }

    /// The first failure of a command.
    ///
    /// # Errors
    /// That failure.
    pub fn check(&self) -> Result<()> {
        self.failed.take().map_or(Ok(()), |problem| bail!("{problem}"))
    }

    /// Writes `blocks` at the head of a log, in writes of at most `piece` blocks one after the other; gives their first
    /// address. With `sync` writes carry FUA.
    pub async fn append(&self, log: &Log, blocks: u64, piece: u64, sync: bool) -> Lba {
        let (mut left, mut first) = (blocks, None);
        while left > 0 {
            let size = left.min(piece).min(MOST_BLOCKS);
            let lba = Lba(self.array.geometry().start(log.zone).0 + log.at.get());
            log.at.set(log.at.get() + size);
            first = first.or(Some(lba));
            self.write(lba, size, sync).await;
            left -= size;
        }
        first.unwrap_or(Lba(0))
    }

    /// Writes `blocks` blocks, at most 1 MiB.
    pub async fn write(&self, lba: Lba, blocks: u64, sync: bool) {
        let data = &self.data[self.next.get()];
        self.next.set((self.next.get() + 1) % self.data.len());
        self.carry_out("a write", lba.0, Command::write(lba, data.slice_blocks(0..blocks), sync)).await;
        self.blocks.set(self.blocks.get() + blocks);
    }

    /// Resets a zone.
    pub async fn reset(&self, zone: ZoneIndex) {
        self.carry_out(
            "a reset",
            self.array.geometry().start(zone).0,
            Command::Reset { zones: Zones::One(zone) },
        )
        .await;
    }

    async fn carry_out(&self, what: &str, at: u64, command: Command) {
        if let Err(error) = self.array.submit(command).await.result {
            self.failed.borrow_mut().get_or_insert(format!("{what} at block {at}: {error}"));
            // Later commands would fail, too; the run ends.
            std::future::pending().await
        }
    }

    /// Reads written blocks.
    pub async fn read(&self, lba: Lba, blocks: u64) {
        let (mut at, end) = (lba.0, lba.0 + blocks);
        while at < end {
            let size = MOST_BLOCKS.min(end - at);
            let read = Command::read(Lba(at), Buf::zeroed(size as usize * BLOCK));
            self.carry_out("a read", at, read).await;
            at += size;
        }
    }

    /// Occupies a processor for `us` µs.
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

    /// A number from 0 up to, but not including 1.
    pub fn unit(&self) -> f64 {
        self.rng.borrow_mut().unit()
    }

    /// A size in blocks around a mean, at least 1: exponential, which is gamma with shape 1 where filebench takes 1.5.
    pub fn about(&self, mean_blocks: u64) -> u64 {
        (self.rng.borrow_mut().exponential() * mean_blocks as f64).ceil().clamp(1.0, 8.0 * mean_blocks as f64)
            as u64
    }

    /// Another thread of the application.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.runtime.spawn(task);
    }
}

/// Starts an application on an array with `start`, and measures it for `ms` ms after a warm-up of `warm_ms`.
///
/// # Errors
/// A command of the application fails.
pub fn run(bed: TestBed, warm_ms: u64, ms: u64, start: impl FnOnce(&Rc<App>)) -> Result<AppResult> {
    let app = App::new(&bed.array, &bed.clock, &bed.runtime, 1, &[]);
    start(&app);
    bed.run(bed.clock.sleep(warm_ms * 1_000_000))?;
    let (written, blocks) = (bed.write_counters(), app.blocks.get());
    let before = app.operations.get();
    bed.run(bed.clock.sleep(ms * 500_000))?;
    let middle = app.operations.get();
    bed.run(bed.clock.sleep(ms * 500_000))?;
    app.check()?;
    let operations_s = (app.operations.get() - before) as f64 * 1e3 / ms as f64;
    let drift = (app.operations.get() - middle) as f64 / (middle - before).max(1) as f64 - 1.0;
    Ok(AppResult { operations_s, drift, left: bed.left_since(&written, app.blocks.get() - blocks) })
}
