//! Worker threads that compress blocks for volumes, beside the engine's thread.
//!
//! They process bytes only. When they are busy the volume compresses on the engine's thread, so that all processors are
//! used. Data is copied to and from the workers, which costs a fiftieth of the compression.

use crate::reactor::Reactor;
use anyhow::{Context, Result};
use engine::{
    runtime::Gate,
    volume::{CompressionJob, CompressionWorkers, PendingJob, PieceEncoder},
};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    os::fd::OwnedFd,
    rc::Rc,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, Builder},
};

/// Most worker threads: one engine thread does not keep more of them busy.
const MOST_THREADS: usize = 8;

/// Maximum blocks that are queued or being compressed, per worker.
const BLOCKS_EACH: usize = 32;

/// Stack of a worker. All memory of a daemon is locked, so the stack is small: the codecs' tables are elsewhere.
const STACK_BYTES: usize = 256 << 10;

/// The worker threads; see the head of this file.
pub struct WorkerThreads {
    reactor: Reactor,
    shared: Arc<SharedJobs>,
    table: Rc<JobTable>,
    threads: usize,
}

/// State of the engine's thread.
#[derive(Default)]
struct JobTable {
    /// Jobs that are queued or being compressed, by number.
    away: RefCell<HashMap<u64, Rc<PendingResult>>>,
    /// Number of jobs accepted so far.
    taken: Cell<u64>,
    /// Blocks of these jobs.
    blocks: Cell<usize>,
    /// Whether a task waits for the eventfd.
    listening: Cell<bool>,
}

/// A job that was handed to the workers, and the place for its result.
#[derive(Default)]
struct PendingResult {
    compression: RefCell<Option<CompressionJob>>,
    back: Gate,
}

/// State shared by all threads.
struct SharedJobs {
    jobs: Mutex<Jobs>,
    /// Signalled when a job is queued, and at the end.
    queued: Condvar,
    /// Finished jobs; the worker that adds the first one signals the eventfd.
    done: Mutex<Vec<(u64, CompressionJob)>>,
    bell: OwnedFd,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(u64, CompressionJob)>,
    /// No more jobs will come: the workers end.
    over: bool,
}

impl WorkerThreads {
    /// Starts as many workers as there are processors besides the engine's; `None` if there are none.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(reactor: &Reactor) -> Result<Option<Rc<WorkerThreads>>> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        WorkerThreads::with_threads(reactor, MOST_THREADS.min(processors - 1))
    }

    /// Number of workers.
    pub fn threads(&self) -> usize {
        self.threads
    }

    fn with_threads(reactor: &Reactor, threads: usize) -> Result<Option<Rc<WorkerThreads>>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("an eventfd cannot be created")?;
        let shared = Arc::new(SharedJobs {
            jobs: Mutex::default(),
            queued: Condvar::new(),
            done: Mutex::default(),
            bell,
        });
        // If this is dropped half-way, the workers that run end.
        let worker_threads =
            WorkerThreads { reactor: reactor.clone(), shared, table: Rc::default(), threads };
        for _ in 0..threads {
            let shared = worker_threads.shared.clone();
            let started = Builder::new()
                .name("zoneraid-pack".into())
                .stack_size(STACK_BYTES)
                .spawn(move || shared.work());
            started.context("no thread can be started")?;
        }
        Ok((threads > 0).then(|| Rc::new(worker_threads)))
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        lock(&self.shared.jobs).over = true;
        self.shared.queued.notify_all();
    }
}

impl CompressionWorkers for WorkerThreads {
    fn take(&self, compression: CompressionJob) -> Result<PendingJob, CompressionJob> {
        let (table, blocks) = (&self.table, compression.blocks());
        let Ok(ring) = self.reactor.ring() else { return Err(compression) };
        self.shared.give_back(table);
        if table.blocks.get() + blocks > self.threads * BLOCKS_EACH {
            return Err(compression);
        }
        let (number, away) = (table.taken.get(), Rc::new(PendingResult::default()));
        table.taken.set(number + 1);
        table.blocks.set(table.blocks.get() + blocks);
        table.away.borrow_mut().insert(number, away.clone());
        if !table.listening.replace(true) {
            let (shared, table, ring) = (self.shared.clone(), table.clone(), ring.clone());
            self.reactor.runtime().spawn(async move { shared.fetch(&table, &ring).await });
        }
        lock(&self.shared.jobs).waiting.push_back((number, compression));
        self.shared.queued.notify_one();
        Ok(Box::pin(async move {
            loop {
                if let Some(compression) = away.compression.take() {
                    return Some(compression);
                }
                away.back.wait().await;
            }
        }))
    }
}

impl SharedJobs {
    /// The loop of a worker.
    fn work(&self) {
        let _guard = AbortOnPanic;
        // The thread that waits for this one may be serving writeback, so allocations here must not wait for writeback:
        // see `ublk::serve`.
        let _ = rustix::process::configure_io_flusher_behavior(true);
        let mut encoder = PieceEncoder::default();
        while let Some((number, mut compression)) = self.next() {
            compression.run(&mut encoder);
            let mut done = lock(&self.done);
            done.push((number, compression));
            if done.len() == 1 {
                // Cannot block: the counter of an eventfd holds more than there can be jobs.
                let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
            }
        }
    }

    /// Waits for the next job; `None` when all jobs are done and no more will come.
    fn next(&self) -> Option<(u64, CompressionJob)> {
        let mut jobs = lock(&self.jobs);
        loop {
            match jobs.waiting.pop_front() {
                None if !jobs.over => {}
                job => return job,
            }
            jobs = self.queued.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Passes on finished jobs until none is queued or being compressed.
    async fn fetch(self: Arc<Self>, table: &JobTable, ring: &crate::reactor::ring::Ring) {
        let bell = Rc::new(Bell(self.clone()));
        while !table.away.borrow().is_empty() {
            ring.ready(bell.clone(), libc::POLLIN).await;
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            self.give_back(table);
        }
        table.listening.set(false);
    }

    /// Gives finished jobs to the tasks that wait for them.
    fn give_back(&self, table: &JobTable) {
        for (number, compression) in std::mem::take(&mut *lock(&self.done)) {
            table.blocks.set(table.blocks.get() - compression.blocks());
            if let Some(away) = table.away.borrow_mut().remove(&number) {
                away.compression.replace(Some(compression));
                away.back.open();
            }
        }
    }
}

/// Keeps the eventfd open while a task waits for it.
struct Bell(Arc<SharedJobs>);

impl std::os::fd::AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Aborts the process if a worker panics, as a panic of the engine's thread would: a task waits for the worker's job.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use emu::{
        rng::Rng,
        ssd::{EmulatedDrive, Model},
    };
    use engine::{
        buf::{BLOCK, Buf},
        volume::{Codec, Level, Volume, VolumeCreateOptions, VolumeOptions},
    };

    const BLOCKS: u64 = 3000;

    fn volume(reactor: &Reactor, codec: Option<Codec>) -> Volume {
        let drive = Rc::new(EmulatedDrive::in_memory(&Model::zn540().scaled(24, 1024).geometry));
        let options = VolumeCreateOptions {
            uuid: [1; 16],
            blocks: Some(BLOCKS),
            codec,
            ..VolumeCreateOptions::default()
        };
        reactor.wait(Volume::create(reactor.runtime(), drive.clone(), options)).unwrap().unwrap();
        reactor.wait(Volume::open(reactor.runtime(), drive, VolumeOptions::default())).unwrap().unwrap()
    }

    /// Blocks of which a random part compresses.
    fn data(rng: &mut Rng, blocks: u64) -> Buf {
        let mut bytes = vec![0; blocks as usize * BLOCK];
        for block in bytes.chunks_exact_mut(BLOCK) {
            let noisy = rng.below(2 * BLOCK as u64).min(BLOCK as u64) as usize;
            rng.fill(&mut block[..noisy]);
        }
        Buf::copy_of(&bytes)
    }

    #[test]
    fn blocks_compressed_by_threads_read_back_unchanged() {
        let reactor = Reactor::default();
        if reactor.ring().is_err() {
            return;
        }
        let (volume, mut rng) = (volume(&reactor, Level::new(1).map(Codec::Zstd)), Rng::new(3));
        let worker_threads = WorkerThreads::with_threads(&reactor, 2).unwrap().unwrap();
        volume.employ(worker_threads.clone());
        let mut at = 0;
        let left = Rc::new(Cell::new(0));
        let mut written = Vec::new();
        while at < BLOCKS {
            let blocks = (1 + rng.below(100)).min(BLOCKS - at);
            let data = data(&mut rng, blocks);
            written.push((at, data.clone()));
            let (volume, left) = (volume.clone(), left.clone());
            left.set(left.get() + 1);
            reactor.runtime().spawn(async move {
                volume.write(at, &data, false).await.unwrap();
                left.set(left.get() - 1);
            });
            at += blocks;
        }
        while left.get() > 0 {
            reactor.runtime().run();
            assert!(left.get() == 0 || reactor.ring().unwrap().wait().unwrap());
        }
        assert!(worker_threads.table.taken.get() > 10, "{} were taken", worker_threads.table.taken.get());
        assert_eq!(worker_threads.table.blocks.get(), 0);
        while worker_threads.table.listening.get() {
            reactor.runtime().run();
            assert!(!worker_threads.table.listening.get() || reactor.ring().unwrap().wait().unwrap());
        }
        for (at, data) in written {
            let read = reactor.wait(volume.read(at, Buf::zeroed(data.len()))).unwrap().unwrap();
            assert!(read.as_slice() == data.as_slice(), "from block {at}");
        }
        reactor.runtime().clear();
    }

    #[test]
    fn compression_threads_skip_small_writes_end_on_drop() {
        let reactor = Reactor::default();
        if reactor.ring().is_err() {
            return;
        }
        assert!(WorkerThreads::with_threads(&reactor, 0).unwrap().is_none());
        let worker_threads = WorkerThreads::with_threads(&reactor, 1).unwrap().unwrap();
        let volume = volume(&reactor, Some(Codec::Lz4));
        volume.employ(worker_threads.clone());
        // One small write by itself is not handed to a worker.
        let few = data(&mut Rng::new(4), 3);
        reactor.wait(volume.write(0, &few, false)).unwrap().unwrap();
        assert_eq!(worker_threads.table.taken.get(), 0);
        let shared = Arc::downgrade(&worker_threads.shared);
        reactor.runtime().clear();
        drop((worker_threads, volume));
        for _ in 0..1000 {
            if shared.strong_count() == 0 {
                return;
            }
            thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("threads do not end");
    }
}
