//! Model of a log-structured merge tree on zones, as RocksDB on ZenFS, as far as an array sees it: a write-ahead log
//! with group commit, memtables that are flushed, and levels that are compacted, each kind of file in zones of its own.
//!
//! Left out: reads of users, caches, cleaning of zones, levels below the second, and CPU time except for a fixed cost
//! of a put.

use super::{App, Log};
use engine::{runtime::Gate, zone::Lba};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// CPU time of a put; a guess.
const PUT_US: f64 = 5.0;
/// A key and a value of 8,000 bytes, in a log that is written in blocks.
const RECORD_BLOCKS: u64 = 2;
/// 64 MiB.
const MEMTABLE_BLOCKS: u64 = 16384;
/// Files of the first level that are compacted together, and number of files at which puts are stopped.
const COMPACTED: usize = 4;
const STOPPED: usize = 20;
/// Background jobs of each kind.
const JOBS: usize = 16;
/// Zones of flushed files, and of compacted ones.
const FLUSHED: std::ops::Range<u32> = 1..5;
const MERGED: std::ops::Range<u32> = 5..11;

/// The order of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Puts {
    /// Sequential keys: files do not overlap, so that compaction moves them without a write.
    InOrder,
    /// Random keys: each file of the first level is merged with `overlap` times as much of the second.
    Random { overlap: u64 },
}

struct LsmTree {
    app: Rc<App>,
    puts: Puts,
    /// Whether writes of groups carry FUA; puts wait for these writes either way.
    fua: bool,
    log: Rc<Log>,
    /// Numbers of records that have been put, and that have been committed.
    put: Cell<u64>,
    safe: Cell<u64>,
    /// Whether a group is being written, and the gate of the puts that wait for it.
    leads: Cell<bool>,
    group: Gate,
    memtable: Cell<u64>,
    first_level: RefCell<Vec<Lba>>,
    flushes: Cell<usize>,
    compactions: Cell<usize>,
    files: Cell<u32>,
    zones: Vec<Rc<Log>>,
}

/// Four threads that put records as fast as they can.
pub fn fill(app: &Rc<App>, puts: Puts, fua: bool) {
    let tree = Rc::new(LsmTree {
        app: app.clone(),
        puts,
        fua,
        log: Log::new(0),
        put: Cell::default(),
        safe: Cell::default(),
        leads: Cell::default(),
        group: Gate::default(),
        memtable: Cell::default(),
        first_level: RefCell::default(),
        flushes: Cell::default(),
        compactions: Cell::default(),
        files: Cell::default(),
        zones: (0..MERGED.end).map(Log::new).collect(),
    });
    for _ in 0..4 {
        let tree = tree.clone();
        app.spawn(async move {
            loop {
                tree.app.compute(PUT_US).await;
                tree.put().await;
                tree.app.count(1);
            }
        });
    }
}

impl LsmTree {
    /// Joins the next group; a put that finds no write in flight leads it.
    async fn put(self: &Rc<Self>) {
        while self.is_stopped() {
            self.app.compute(20.0).await;
        }
        let mine = self.put.get() + 1;
        self.put.set(mine);
        while self.safe.get() < mine {
            let led = self.group.wait();
            if self.leads.replace(true) {
                led.await;
                continue;
            }
            let (from, to) = (self.safe.get(), self.put.get());
            self.app.append(&self.log, (to - from) * RECORD_BLOCKS, 256, self.fua).await;
            self.safe.set(to);
            self.leads.set(false);
            self.group.open();
            self.remember(to - from);
        }
    }

    /// Too many files wait for compaction, or memtables to be flushed.
    fn is_stopped(&self) -> bool {
        self.first_level.borrow().len() >= STOPPED || self.flushes.get() >= JOBS
    }

    /// Adds records to the memtable; a full one is flushed.
    fn remember(self: &Rc<Self>, records: u64) {
        self.memtable.set(self.memtable.get() + records * RECORD_BLOCKS);
        if self.memtable.get() < MEMTABLE_BLOCKS {
            return;
        }
        self.memtable.set(0);
        self.flushes.set(self.flushes.get() + 1);
        let tree = self.clone();
        self.app.spawn(async move {
            let lba = tree.write(FLUSHED, MEMTABLE_BLOCKS).await;
            tree.flushes.set(tree.flushes.get() - 1);
            if tree.puts != Puts::InOrder {
                tree.first_level.borrow_mut().push(lba);
                tree.compact();
            }
        });
    }

    /// Writes a file to the next of these zones, in writes of 1 MiB.
    async fn write(&self, zones: std::ops::Range<u32>, blocks: u64) -> Lba {
        let zone = zones.start + self.files.replace(self.files.get() + 1) % (zones.end - zones.start);
        self.app.append(&self.zones[zone as usize], blocks, 256, false).await
    }

    /// Merges files of the first level with the overlapping part of the second, if there are enough.
    fn compact(self: &Rc<Self>) {
        let Puts::Random { overlap } = self.puts else { return };
        let mut files = self.first_level.borrow_mut();
        if files.len() < COMPACTED || self.compactions.get() >= JOBS {
            return;
        }
        let inputs: Vec<Lba> = files.drain(..COMPACTED).collect();
        self.compactions.set(self.compactions.get() + 1);
        let tree = self.clone();
        self.app.spawn(async move {
            for input in inputs {
                // Besides the file, `overlap` times its size of the second level is read and written; all reads are of
                // the same blocks.
                for _ in 0..=overlap {
                    tree.app.read(input, MEMTABLE_BLOCKS).await;
                    tree.write(MERGED, MEMTABLE_BLOCKS).await;
                }
            }
            tree.compactions.set(tree.compactions.get() - 1);
            tree.compact();
        });
    }
}
