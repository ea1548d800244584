//! YCSB and workloads of db_bench on a model of a log-structured merge tree on zones, as RocksDB's on ZenFS, as far as
//! a drive sees it: gets that look for a block in each sorted run until the record is found, scans, puts into a log and
//! a memtable, which is flushed, and levels that are compacted, one at a time. Options are RocksDB's defaults, with all
//! sizes divided by one number, so that a window has many flushes and compactions.
//!
//! Left out: CPU time except for a fixed cost of an operation, the page cache, compression, blocks of indices (which
//! RocksDB keeps in memory), dynamic sizes of levels, and the contents of records: a run knows how many it has; the
//! place of a record follows from the number of puts since it was written, or is drawn once if it was loaded.

use super::{App, MOST_BLOCKS};
use crate::tenants::WorkerResult;
use anyhow::{Context, Result};
use emu::{clock::Clock, rng::Rng};
use engine::{
    device::ZonedDevice,
    runtime::{Exclusive, Runtime},
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    ops::Range,
    rc::Rc,
};

/// CPU time of an operation; a guess.
const OPERATION_US: f64 = 5.0;
/// Bytes of a record, and records in a block.
pub const RECORD_BYTES: u64 = 1024;
const RECORDS: u64 = 4;
/// A memtable of 64 MiB, which becomes a file of as much; others are as large. In blocks.
const FILE_BLOCKS: u64 = 16384;
/// The second level has 256 MiB, and each further one ten times as much.
const SECOND_BLOCKS: u64 = 65536;
const LARGER: u64 = 10;
/// The block cache has 8 MiB.
const CACHE_BLOCKS: u64 = 2048;
/// Files of the first level that are compacted, and those at which puts are slowed down and stopped.
const COMPACTED: u64 = 4;
const SLOWED: u64 = 20;
const STOPPED: u64 = 36;
/// Time of a put of 1 KiB at 16 MiB/s.
const SLOWED_US: f64 = 61.0;
/// Polling interval of a stopped put.
const LOOK_US: f64 = 100.0;
/// Pause between loading and the first operation, in ms: background moves of namespaces have ended by then.
const IDLE_MS: u64 = 3000;
/// Linux's readahead, 128 KiB: RocksDB leaves it to the kernel where reads are not direct.
const AHEAD_BLOCKS: u64 = 32;
/// Of YCSB: the exponent of the zipf distribution, and the most records of a scan.
const THETA: f64 = 0.99;
const SCANNED: u64 = 100;

/// The core workloads of YCSB, and some of db_bench, with uniform keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// One update in 20.
    B,
    /// Only reads.
    C,
    /// One insert in 20; reads prefer recently inserted records.
    D,
    /// One insert in 20; scans of 1 to 100 records.
    E,
    /// Half reads, half reads that are followed by an update.
    F,
    Overwrite,
    ReadRandom,
    /// One client writes, the others read.
    ReadWhileWriting,
}

impl Workload {
    /// YCSB's.
    pub const ALL: [Workload; 6] =
        [Workload::A, Workload::B, Workload::C, Workload::D, Workload::E, Workload::F];

    pub fn name(self) -> &'static str {
        match self {
            Workload::A => "A",
            Workload::B => "B",
            Workload::C => "C",
            Workload::D => "D",
            Workload::E => "E",
            Workload::F => "F",
            Workload::Overwrite => "overwrite",
            Workload::ReadRandom => "readrandom",
            Workload::ReadWhileWriting => "readwhilewriting",
        }
    }

    /// Of 100 operations of a client, the number of puts.
    fn puts(self, client: u32) -> u64 {
        match self {
            Workload::A | Workload::F => 50,
            Workload::B | Workload::D | Workload::E => 5,
            Workload::C | Workload::ReadRandom => 0,
            Workload::Overwrite => 100,
            Workload::ReadWhileWriting => 100 * (client == 0) as u64,
        }
    }

    fn is_uniform(self) -> bool {
        matches!(self, Workload::Overwrite | Workload::ReadRandom | Workload::ReadWhileWriting)
    }
}

/// A tree and its clients.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub workload: Workload,
    /// Divisor of RocksDB's sizes.
    pub scale: u64,
    /// Records that are loaded.
    pub records: u64,
    /// Most blocks of a level on the device: in a larger level one place represents several.
    pub most_blocks: u64,
    /// Clients, with one operation each at a time.
    pub threads: u32,
    /// Whether a get reads only the run that has the record, as with Bloom filters without false positives.
    pub filters: bool,
}

impl Options {
    fn file_blocks(&self) -> u64 {
        FILE_BLOCKS / self.scale
    }

    /// Puts that fill a memtable.
    fn memtable(&self) -> u64 {
        self.file_blocks() * RECORDS
    }

    /// Blocks of each level in the beginning. First level: half of the files that are compacted together, or, if all
    /// clients write, the number at which it settles. Last level: the rest.
    fn levels(&self) -> Vec<u64> {
        let files = if self.workload == Workload::Overwrite { SLOWED } else { COMPACTED / 2 };
        let (mut levels, mut rest, mut next) =
            (vec![files * self.file_blocks()], self.records / RECORDS, SECOND_BLOCKS / self.scale);
        while rest > next {
            levels.push(next);
            (rest, next) = (rest - next, next * LARGER);
        }
        levels.push(rest);
        levels
    }

    /// Zones of this capacity for each level, and last for the log.
    fn zones(&self, capacity_blocks: u64) -> Vec<u32> {
        let first = (STOPPED + COMPACTED) * self.file_blocks();
        // A zone that is being written, and one with blocks that are still read.
        let zones = |blocks: u64| blocks.div_ceil(capacity_blocks) as u32 + 2;
        let levels = self.levels();
        let further = levels[1..].iter().map(|blocks| zones((*blocks).min(self.most_blocks) + first));
        [zones(first)].into_iter().chain(further).chain([2]).collect()
    }

    /// The total number of zones of this capacity that it needs.
    pub fn zones_in_all(&self, capacity_blocks: u64) -> u32 {
        self.zones(capacity_blocks).iter().sum()
    }
}

/// Zones that are written in turn: the newest blocks replace the oldest.
struct Ring {
    zones: Range<u32>,
    written: Cell<u64>,
}

/// Sorted files: in the first level each is a run, in the others all are one run.
struct Level {
    ring: Ring,
    blocks: Cell<u64>,
    /// Target size in blocks.
    target: u64,
    /// Most blocks on the device.
    most: u64,
}

impl Level {
    /// The start of its blocks on the device, in its ring.
    fn start(&self) -> u64 {
        self.ring.written.get() - self.blocks.get().min(self.most)
    }
}

/// A sorted run.
#[derive(Clone, Copy)]
struct SortedRun {
    level: usize,
    /// Start in the ring of its level, blocks there, and blocks of the run.
    start: u64,
    there: u64,
    blocks: u64,
}

/// A place of a run: level, block of the level's ring, and which of the run's blocks at that place it represents.
type Place = (usize, u64, u64);

impl SortedRun {
    /// The place of a record with this hash, whether it exists or not.
    fn place(&self, hash: u64) -> Place {
        let number = ((hash as u128 * self.blocks as u128) >> 64) as u64;
        let (there, start) = (self.there.max(1), self.start);
        // The same block of the ring as long as the run has it, however far the run has moved on.
        let ahead = (number % there + there - start % there) % there;
        (self.level, start + ahead, number / there)
    }
}

/// An LRU cache of blocks.
#[derive(Default)]
struct Cache {
    read: HashMap<Place, u64>,
    order: VecDeque<(Place, u64)>,
    reads: u64,
}

impl Cache {
    /// Whether a block is cached; it is from then on, with `most` blocks in all.
    fn has(&mut self, place: Place, most: u64) -> bool {
        self.reads += 1;
        self.order.push_back((place, self.reads));
        let found = self.read.insert(place, self.reads).is_some();
        while self.read.len() as u64 > most
            && let Some((oldest, at)) = self.order.pop_front()
        {
            if self.read.get(&oldest) == Some(&at) {
                self.read.remove(&oldest);
            }
        }
        found
    }
}

/// YCSB's generator of ranks (Gray et al., SIGMOD '94): 0 is the most frequent.
#[derive(Clone, Copy)]
struct Zipf {
    items: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(items: u64) -> Zipf {
        // The first terms, and the integral of the others.
        const EXACT: u64 = 1000;
        let first: f64 = (1..=items.min(EXACT)).map(|rank| (rank as f64).powf(-THETA)).sum();
        let integral = |to: u64| (to as f64 + 0.5).powf(1.0 - THETA) / (1.0 - THETA);
        let zeta = first + integral(items.max(EXACT)) - integral(EXACT);
        let two = 1.0 + 0.5_f64.powf(THETA);
        let items = items as f64;
        let eta = (1.0 - (2.0 / items).powf(1.0 - THETA)) / (1.0 - two / zeta);
        Zipf { items, zeta, eta }
    }

    /// The rank for `unit`, from 0 to 1.
    fn rank(&self, unit: f64) -> u64 {
        let at = unit * self.zeta;
        if at < 1.0 {
            0
        } else if at < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            let rank = self.items * (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
            (rank as u64).min(self.items as u64 - 1)
        }
    }
}

/// A pseudo-random number, independent of those of neighbouring keys.
fn hash(key: u64) -> u64 {
    Rng::new(key).next_u64()
}

/// A record: its hash gives the place in a run, its age the run.
#[derive(Clone, Copy)]
struct Record {
    hash: u64,
    /// Number of records that were written later.
    age: u64,
}

/// Statistics of reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadStatistics {
    pub gets: u64,
    /// Of these in a memtable.
    pub in_memory: u64,
    /// Blocks that gets and scans have read, and of these the cached ones.
    pub blocks: u64,
    pub cached: u64,
}

impl ReadStatistics {
    /// The sums of both.
    pub fn and(self, other: ReadStatistics) -> ReadStatistics {
        ReadStatistics {
            gets: self.gets + other.gets,
            in_memory: self.in_memory + other.in_memory,
            blocks: self.blocks + other.blocks,
            cached: self.cached + other.cached,
        }
    }
}

struct YcsbTree {
    app: Rc<App>,
    options: Options,
    zipf: Zipf,
    log: Ring,
    levels: Vec<Level>,
    /// Serializes puts.
    puts: Exclusive,
    put: Cell<u64>,
    /// By key: the number of the put that wrote it last.
    updated: RefCell<HashMap<u64, u64>>,
    flushes: Cell<bool>,
    compacts: Cell<bool>,
    cache: RefCell<Cache>,
    found: Cell<ReadStatistics>,
    /// Completion times and latencies of operations, and of their reads.
    operations: RefCell<WorkerResult>,
    reads: RefCell<WorkerResult>,
}

impl YcsbTree {
    fn new(app: Rc<App>, options: Options) -> YcsbTree {
        let mut first = 0;
        let capacity = app.array.geometry().zone_capacity_blocks;
        let mut rings: Vec<Ring> = Vec::new();
        for zones in options.zones(capacity) {
            rings.push(Ring { zones: first..first + zones, written: Cell::default() });
            first += zones;
        }
        let log = rings.pop().unwrap_or(Ring { zones: 0..0, written: Cell::default() });
        let level = |(number, (ring, blocks)): (usize, (Ring, u64))| match number {
            0 => Level {
                ring,
                blocks: Cell::new(blocks),
                target: COMPACTED * options.file_blocks() - 1,
                most: u64::MAX,
            },
            _ => Level { ring, blocks: Cell::new(blocks), target: blocks, most: options.most_blocks },
        };
        YcsbTree {
            zipf: Zipf::new(options.records),
            log,
            levels: rings.into_iter().zip(options.levels()).enumerate().map(level).collect(),
            puts: Exclusive::default(),
            put: Cell::default(),
            updated: RefCell::default(),
            flushes: Cell::default(),
            compacts: Cell::default(),
            cache: RefCell::default(),
            found: Cell::default(),
            operations: RefCell::default(),
            reads: RefCell::default(),
            app,
            options,
        }
    }

    /// Appends blocks at the head of a ring, 1 MiB at a time.
    async fn append(&self, ring: &Ring, blocks: u64) {
        let (mut left, geometry) = (blocks, self.app.array.geometry());
        while left > 0 {
            let (lba, room) = self.locate(ring, ring.written.get());
            let size = left.min(room).min(MOST_BLOCKS);
            let turns = ring.written.get() / geometry.zone_capacity_blocks / ring.zones.len() as u64;
            if room == geometry.zone_capacity_blocks && turns > 0 {
                self.app.reset(geometry.locate(lba).0).await;
            }
            self.app.write(lba, size, false).await;
            ring.written.set(ring.written.get() + size);
            left -= size;
        }
    }

    /// The device address of a block of a ring, and the number of blocks up to the end of its zone.
    fn locate(&self, ring: &Ring, at: u64) -> (Lba, u64) {
        let geometry = self.app.array.geometry();
        let (turn, offset) = (at / geometry.zone_capacity_blocks, at % geometry.zone_capacity_blocks);
        let zone = ring.zones.start + (turn % ring.zones.len() as u64) as u32;
        (Lba(geometry.start(ZoneIndex(zone)).0 + offset), geometry.zone_capacity_blocks - offset)
    }

    /// Reads blocks of a ring, up to the end of the zone.
    async fn read(&self, level: usize, at: u64, blocks: u64) {
        let (lba, room) = self.locate(&self.levels[level].ring, at);
        self.app.read(lba, blocks.min(room)).await;
    }

    /// Writes all levels, in the state after a full compaction.
    async fn load(&self) {
        for level in &self.levels {
            self.append(&level.ring, level.blocks.get().min(level.most)).await;
        }
    }

    /// Number of files in the first level.
    fn files(&self) -> u64 {
        self.levels[0].blocks.get() / self.options.file_blocks()
    }

    /// All sorted runs, the newest first.
    fn runs(&self) -> Vec<SortedRun> {
        let (written, blocks) = (self.levels[0].ring.written.get(), self.options.file_blocks());
        let file =
            |nth: u64| SortedRun { level: 0, start: written - (nth + 1) * blocks, there: blocks, blocks };
        let others = self.levels.iter().enumerate().skip(1).map(|(number, level)| {
            let (start, blocks) = (level.start(), level.blocks.get());
            SortedRun { level: number, start, there: level.ring.written.get() - start, blocks }
        });
        (0..self.files()).map(file).chain(others).collect()
    }

    /// Records in memory: those of the memtable, and of the one that is being flushed.
    fn in_memory(&self) -> u64 {
        self.put.get() % self.options.memtable()
            + if self.flushes.get() { self.options.memtable() } else { 0 }
    }

    /// Draws the record of an operation, and its key.
    fn draw(&self) -> (u64, Record) {
        let rank = match self.options.workload.is_uniform() {
            true => self.app.below(self.options.records),
            false => self.zipf.rank(self.app.unit()),
        };
        if self.options.workload == Workload::D {
            let key = self.options.records + self.put.get() - rank;
            return (key, Record { hash: hash(key), age: rank });
        }
        let age = match self.updated.borrow().get(&rank) {
            Some(put) => self.put.get() - put,
            None => {
                let blocks = |levels: &[Level]| levels.iter().map(|level| level.blocks.get()).sum::<u64>();
                let (newest, others) = self.levels.split_at(1);
                let depth = hash(!rank) % (blocks(others) * RECORDS);
                self.in_memory() + blocks(newest) * RECORDS + depth
            }
        };
        (rank, Record { hash: hash(rank), age })
    }

    fn count(&self, count: impl FnOnce(&mut ReadStatistics)) {
        let mut found = self.found.get();
        count(&mut found);
        self.found.set(found);
    }

    /// Reads the block of a run that has or would have a record. It is not aligned, and so spans two blocks of the
    /// device.
    async fn look(&self, run: &SortedRun, record: Record) {
        let place = run.place(record.hash);
        let cached = self.cache.borrow_mut().has(place, CACHE_BLOCKS / self.options.scale);
        self.count(|found| {
            found.blocks += 1;
            found.cached += cached as u64;
        });
        if !cached {
            self.read(place.0, place.1, 2).await;
        }
    }

    async fn get(&self, record: Record, begun: u64) {
        let in_memory = record.age < self.in_memory();
        self.count(|found| {
            found.gets += 1;
            found.in_memory += in_memory as u64;
        });
        if !in_memory {
            let mut left = record.age - self.in_memory();
            let runs = self.runs();
            for (number, run) in runs.iter().enumerate() {
                let is_there = left < run.blocks * RECORDS || number + 1 == runs.len();
                if is_there || !self.options.filters {
                    self.look(run, record).await;
                }
                if is_there {
                    break;
                }
                left -= run.blocks * RECORDS;
            }
        }
        self.note(&self.reads, begun);
    }

    /// Reads a block of each run, and then from each its share of the records, with RocksDB's readahead: one block, and
    /// twice as much each time, up to 256 KiB.
    async fn scan(&self, record: Record, records: u64, begun: u64) {
        let runs = self.runs();
        for run in &runs {
            self.look(run, record).await;
        }
        let all: u64 = runs.iter().map(|run| run.blocks).sum();
        for run in &runs {
            let (level, mut at, _) = run.place(record.hash);
            let (mut left, mut ahead) = (records * run.blocks / all / RECORDS, 1);
            while left > 0 {
                let size = left.min(ahead);
                self.read(level, at + 1, size + 1).await;
                (left, at, ahead) = (left - size, at + size, (2 * ahead).min(64));
            }
        }
        self.note(&self.reads, begun);
    }

    fn note(&self, work: &RefCell<WorkerResult>, begun: u64) {
        let now = self.app.clock.now_ns();
        work.borrow_mut().completed.push((now, now - begun));
    }

    /// Puts a record. The log is buffered, and written 1 MiB at a time: YCSB needs no synchronous writes.
    async fn put(self: &Rc<Self>, key: Option<u64>) {
        let _turn = self.puts.take().await;
        while self.files() >= STOPPED {
            self.app.compute(LOOK_US).await;
        }
        if self.files() >= SLOWED {
            self.app.compute(SLOWED_US).await;
        }
        let put = self.put.get() + 1;
        if put.is_multiple_of(MOST_BLOCKS * RECORDS) {
            self.append(&self.log, MOST_BLOCKS).await;
        }
        if put.is_multiple_of(self.options.memtable()) {
            while self.flushes.get() {
                self.app.compute(LOOK_US).await;
            }
            self.flushes.set(true);
            let tree = self.clone();
            self.app.spawn(async move {
                let (newest, blocks) = (&tree.levels[0], tree.options.file_blocks());
                tree.append(&newest.ring, blocks).await;
                newest.blocks.set(newest.blocks.get() + blocks);
                tree.flushes.set(false);
                tree.compact();
            });
        }
        self.put.set(put);
        if let Some(key) = key {
            self.updated.borrow_mut().insert(key, put);
        }
    }

    /// Compacts the level that exceeds its target by the largest factor, if one does and no compaction is running.
    fn compact(self: &Rc<Self>) {
        let (_, above) = self.levels.split_last().unwrap_or((&self.levels[0], &[]));
        let score = |level: &Level| level.blocks.get() as f64 / level.target as f64;
        let scores = above.iter().map(score).enumerate();
        let Some((at, most)) = scores.max_by(|a, b| a.1.total_cmp(&b.1)) else { return };
        if most <= 1.0 || self.compacts.replace(true) {
            return;
        }
        let tree = self.clone();
        self.app.spawn(async move {
            tree.merge(at).await;
            tree.compacts.set(false);
            tree.compact();
        });
    }

    /// Merges the whole first level, or a file of another one, with the overlapping part of the next one. Records that
    /// reach the last level replace older ones there.
    async fn merge(&self, at: usize) {
        let (from, to) = (&self.levels[at], &self.levels[at + 1]);
        let taken = if at == 0 { from.blocks.get() } else { self.options.file_blocks() };
        let overlap = to.blocks.get() * taken / from.blocks.get();
        let grows = if at + 2 == self.levels.len() { 0 } else { taken };
        let mut out = overlap + grows;
        for (level, blocks) in [(at, taken), (at + 1, overlap)] {
            let (first, mut read) = (self.levels[level].start(), 0);
            while read < blocks {
                let (from, size) = (read, MOST_BLOCKS.min(blocks - read));
                while read < from + size {
                    let ahead = AHEAD_BLOCKS.min(from + size - read);
                    self.read(level, first + read, ahead).await;
                    read += ahead;
                }
                let written = size.min(out);
                self.append(&to.ring, written).await;
                out -= written;
            }
        }
        from.blocks.set(from.blocks.get() - taken);
        to.blocks.set(to.blocks.get() + grows);
    }

    /// One client, in an endless loop.
    async fn client(self: Rc<Self>, number: u32) {
        loop {
            let begun = self.app.clock.now_ns();
            self.app.compute(OPERATION_US).await;
            let puts = self.app.below(100) < self.options.workload.puts(number);
            let (key, record) = self.draw();
            match self.options.workload {
                Workload::D | Workload::E if puts => self.put(None).await,
                Workload::E => self.scan(record, 1 + self.app.below(SCANNED), begun).await,
                Workload::F if puts => {
                    self.get(record, begun).await;
                    self.put(Some(key)).await;
                }
                _ if puts => self.put(Some(key)).await,
                _ => self.get(record, begun).await,
            }
            self.note(&self.operations, begun);
        }
    }
}

/// Results of a tree's clients in a window, by ns from its beginning.
#[derive(Default)]
pub struct ClientResult {
    pub operations: WorkerResult,
    /// Gets and scans, including those of operations that then put a record.
    pub reads: WorkerResult,
    pub found: ReadStatistics,
}

/// Loads a tree on each of these devices, runs all clients at the same time, and gives their results in a window of
/// `ms` after a warm-up of `warm_ms`. The contents are `bytes`, repeatedly, or zeros.
///
/// # Errors
/// A command to a device fails.
pub fn run(
    (clock, runtime): (&Clock, &Runtime),
    trees: &[(Rc<dyn ZonedDevice>, Options)],
    (warm_ms, ms): (u64, u64),
    bytes: &[u8],
) -> Result<Vec<ClientResult>> {
    let tree = |(number, (device, options)): (usize, &(Rc<dyn ZonedDevice>, Options))| {
        Rc::new(YcsbTree::new(App::new(device, clock, runtime, number as u64, bytes), *options))
    };
    let trees: Vec<Rc<YcsbTree>> = trees.iter().enumerate().map(tree).collect();
    let pass_ms = |ms: u64| {
        let passed = runtime.block_on(clock.sleep(ms * 1_000_000), || clock.advance());
        passed.context("nothing happens any more")?;
        trees.iter().try_for_each(|tree| tree.app.check())
    };
    let loaded = Rc::new(Cell::new(0));
    for tree in &trees {
        let (tree, loaded) = (tree.clone(), loaded.clone());
        runtime.spawn(async move {
            tree.load().await;
            loaded.set(loaded.get() + 1);
        });
    }
    while loaded.get() < trees.len() {
        pass_ms(1)?;
    }
    pass_ms(IDLE_MS)?;
    for tree in &trees {
        for number in 0..tree.options.threads {
            runtime.spawn(tree.clone().client(number));
        }
    }
    pass_ms(warm_ms)?;
    let from = clock.now_ns();
    for tree in &trees {
        tree.operations.take();
        tree.reads.take();
        tree.found.take();
    }
    pass_ms(ms)?;
    let since = |work: &RefCell<WorkerResult>| {
        let mut work = work.take();
        work.bytes_each = RECORD_BYTES;
        work.completed.iter_mut().for_each(|(at, _)| *at -= from);
        work
    };
    let ran = |tree: &Rc<YcsbTree>| ClientResult {
        operations: since(&tree.operations),
        reads: since(&tree.reads),
        found: tree.found.get(),
    };
    let ran = trees.iter().map(ran).collect();
    // Tasks hold the trees, and these the runtime.
    runtime.clear();
    clock.clear();
    Ok(ran)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use emu::{
        ssd::{Model, NoMedia, Ssd, TimedDrive},
        timing::Timing,
    };

    #[test]
    fn zipf_ranks_have_theoretical_frequency() {
        let (zipf, mut rng) = (Zipf::new(10_000), Rng::new(1));
        let exact: f64 = (1..=10_000).map(|rank| (rank as f64).powf(-THETA)).sum();
        assert!((zipf.zeta / exact - 1.0).abs() < 1e-3, "{} {exact}", zipf.zeta);
        let mut counts = vec![0.0; 10_000];
        for _ in 0..100_000 {
            counts[zipf.rank(rng.unit()) as usize] += 1e-5;
        }
        let head: f64 = (1..=100).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>() / exact;
        assert!((counts[0] * exact - 1.0).abs() < 0.03, "{}", counts[0]);
        assert!((counts[..100].iter().sum::<f64>() / head - 1.0).abs() < 0.05);
    }

    #[test]
    fn cache_keeps_most_recently_read_blocks() {
        let mut cache = Cache::default();
        let found = [1, 2, 1, 3, 1, 2].map(|block| cache.has((0, block, 0), 2));
        assert_eq!(found, [false, false, true, false, true, false]);
    }

    /// A place stays the same while its run moves on, and represents several blocks in a larger level.
    #[test]
    fn record_position_is_stable_while_run_is_compacted() {
        let run = |start, blocks| SortedRun { level: 1, start, there: 100, blocks };
        let middle = u64::MAX / 2;
        assert_eq!(run(0, 100).place(middle), (1, 49, 0));
        assert_eq!(run(30, 100).place(middle), (1, 49, 0));
        assert_eq!(run(60, 100).place(middle), (1, 149, 0));
        assert_eq!(run(0, 1000).place(middle), (1, 99, 4));
    }

    #[test]
    fn levels_grow_tenfold_and_last_takes_rest() {
        assert_eq!(options(Workload::C).levels(), [512, 1024, 10240, 51236]);
    }

    fn options(workload: Workload) -> Options {
        Options { workload, scale: 64, records: 250_000, most_blocks: 8192, threads: 8, filters: false }
    }

    fn on_a_drive(workload: Workload) -> (ClientResult, u64) {
        let (clock, runtime) = (Clock::new(), Runtime::new());
        let geometry = Model::zn540().scaled(80, 4096).geometry;
        let ssd = Rc::new(RefCell::new(Ssd::new(geometry.clone(), Box::new(NoMedia::new(&geometry)))));
        let drive = TimedDrive::new(ssd, &Timing::zn540(), &clock, Some(1));
        let trees: [(Rc<dyn ZonedDevice>, Options); 1] = [(Rc::new(drive.clone()), options(workload))];
        let ran = run((&clock, &runtime), &trees, (100, 200), &[]).unwrap().remove(0);
        (ran, drive.counters().flash_blocks())
    }

    #[test]
    fn ycsb_puts_are_compacted_and_new_records_cached() {
        let loaded = 512 + 1024 + 2 * 8192;
        let (reads, written) = on_a_drive(Workload::C);
        assert!(written <= loaded, "{written}");
        assert!(reads.found.in_memory == 0 && reads.found.blocks > 2 * reads.found.gets, "{:?}", reads.found);
        let (updates, written) = on_a_drive(Workload::A);
        let put = (updates.operations.completed.len() - updates.reads.completed.len()) as u64 / RECORDS;
        assert!(written - loaded > 4 * put, "{written} {put}");
        let share = |found: ReadStatistics| found.in_memory as f64 / found.gets as f64;
        let latest = on_a_drive(Workload::D).0.found;
        assert!(share(latest) > 0.3 && share(updates.found) > 0.1, "{latest:?} {:?}", updates.found);
        let again = on_a_drive(Workload::A).0;
        assert_eq!(again.operations.completed, updates.operations.completed);
    }
}
