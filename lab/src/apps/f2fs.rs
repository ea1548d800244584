//! Model of F2FS on zones, as far as an array sees it, and three filebench workloads on it: data of all files goes to
//! the head of one zone and nodes to that of another (ZRAID §6.4), and updates are written out of place. Its metadata
//! is on another drive, as in the paper, and costs nothing.
//!
//! Left out: the page cache except for the writes of fsync, cleaning, checkpoints, CPU time, and fragmented files:
//! reads are of recently written files.

use super::{App, Log};
use engine::zone::Lba;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Number of recent files that reads choose from.
const RECENT: usize = 256;

/// A mounted file system.
pub struct Fs {
    app: Rc<App>,
    data: Rc<Log>,
    nodes: Rc<Log>,
    recent: RefCell<Vec<(Lba, u64)>>,
    next: Cell<usize>,
}

impl Fs {
    fn new(app: &Rc<App>) -> Rc<Fs> {
        let (data, nodes) = (Log::new(0), Log::new(1));
        Rc::new(Fs { app: app.clone(), data, nodes, recent: RefCell::default(), next: Cell::new(0) })
    }

    /// Writes to a file, bypassing the cache.
    async fn write(&self, blocks: u64, piece: u64, sync: bool) {
        let lba = self.app.append(&self.data, blocks, piece, sync).await;
        let mut recent = self.recent.borrow_mut();
        if recent.len() < RECENT {
            recent.push((lba, blocks));
        } else {
            recent[self.next.replace((self.next.get() + 1) % RECENT)] = (lba, blocks);
        }
    }

    /// Writes the node of a changed file; it is waited for only if `sync`.
    async fn node(self: &Rc<Self>, sync: bool) {
        if sync {
            self.app.append(&self.nodes, 1, 1, true).await;
            return;
        }
        let fs = self.clone();
        self.app.spawn(async move {
            fs.app.append(&fs.nodes, 1, 1, false).await;
        });
    }

    /// Reads a recently written file, or its first `most` blocks.
    async fn read(&self, most: u64) {
        let chosen = {
            let recent = self.recent.borrow();
            if recent.is_empty() { None } else { Some(recent[self.app.below(recent.len() as u64) as usize]) }
        };
        if let Some((lba, blocks)) = chosen {
            self.app.read(lba, blocks.min(most)).await;
        }
    }
}

/// filebench's fileserver: 50 threads that create a file of 128 KiB on average, append 16 KiB, read a file.
pub fn fileserver(app: &Rc<App>, io_kib: u64) {
    let fs = Fs::new(app);
    for _ in 0..50 {
        let fs = fs.clone();
        app.spawn(async move {
            loop {
                fs.write(fs.app.about(32), io_kib / 4, false).await;
                fs.node(false).await;
                fs.write(fs.app.about(4), io_kib / 4, false).await;
                fs.node(false).await;
                fs.read(u64::MAX).await;
                fs.app.count(3);
            }
        });
    }
}

/// filebench's oltp: 200 readers and 10 writers of 4 KiB, ten reads for each write, and 256 KiB of log for each 3,200
/// reads; whichever side is ahead waits.
pub fn oltp(app: &Rc<App>) {
    const AHEAD: u64 = 2000;
    let fs = Fs::new(app);
    let (reads, writes) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(0_u64)));
    for _ in 0..10 {
        let (fs, reads, writes) = (fs.clone(), reads.clone(), writes.clone());
        app.spawn(async move {
            loop {
                while writes.get() * 10 > reads.get() + AHEAD {
                    fs.app.compute(50.0).await;
                }
                writes.set(writes.get() + 1);
                fs.write(1, 1, true).await;
                fs.node(true).await;
                fs.app.count(1);
            }
        });
    }
    for _ in 0..200 {
        let (fs, reads, writes) = (fs.clone(), reads.clone(), writes.clone());
        app.spawn(async move {
            loop {
                while reads.get() > writes.get() * 10 + AHEAD {
                    fs.app.compute(50.0).await;
                }
                reads.set(reads.get() + 1);
                if reads.get().is_multiple_of(3200) {
                    fs.write(64, 64, true).await;
                }
                fs.read(1).await;
                // Nothing has been written yet, or it takes no time.
                fs.app.compute(1.0).await;
                fs.app.count(1);
            }
        });
    }
}

/// filebench's varmail: 16 threads that write and sync a mail of 16 KiB on average, read one, append and sync, read
/// one.
pub fn varmail(app: &Rc<App>) {
    let fs = Fs::new(app);
    for _ in 0..16 {
        let fs = fs.clone();
        app.spawn(async move {
            loop {
                for _ in 0..2 {
                    fs.write(fs.app.about(4), 256, true).await;
                    fs.node(true).await;
                    fs.read(u64::MAX).await;
                    fs.app.compute(1.0).await;
                    fs.app.count(2);
                }
            }
        });
    }
}
