//! The tar stream on the array: written zone after zone with many writes in flight, and read back as a [`Read`] that
//! compares everything it passes on with the stream.

use super::{rig::DemoRig, source::DemoSource};
use anyhow::{Context, Result};
use engine::{
    array::Array,
    buf::{BLOCK, Buf},
    device::{Command, Completion, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use indicatif::ProgressBar;
use std::{
    collections::VecDeque,
    io::Read,
    ops::Range,
    time::{Duration, Instant},
};

/// Writes in flight.
const QUEUE_DEPTH: usize = 16;
/// Largest write; the seed draws each size. Writes of a short stream are smaller, at least [`LEAST_WRITES`] of them, so
/// that some are in flight when the power fails.
const MOST_BLOCKS: u64 = (512 << 10) / BLOCK as u64;
const LEAST_WRITES: u64 = 128;
/// Bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// Least duration of a phase if a progress bar is shown.
const MOMENT: Duration = Duration::from_secs(2);

/// A progress bar that is slowed down enough to be watched.
pub struct Pace {
    bar: ProgressBar,
    started: Instant,
    total: u64,
}

impl Pace {
    pub fn new(bar: ProgressBar, total: u64) -> Pace {
        bar.set_length(total);
        Pace { bar, started: Instant::now(), total }
    }

    fn set_position(&self, bytes: u64) {
        self.bar.set_position(bytes);
        if !self.bar.is_hidden() {
            let due = self.started + MOMENT.mul_f64(bytes as f64 / self.total.max(1) as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    /// Removes the bar from the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// An array with its runtime, drives and stream.
#[derive(Clone, Copy)]
pub struct DemoArray<'a> {
    pub array: &'a Array,
    pub runtime: &'a Runtime,
    pub rig: &'a DemoRig,
    pub source: &'a DemoSource,
}

impl DemoArray<'_> {
    fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.rig.wait(self.runtime, future)
    }

    fn zone_bytes(&self) -> u64 {
        self.array.geometry().zone_capacity_blocks * BLOCK as u64
    }

    /// The address of byte `offset` of the stream, and the bytes from there to the end of the zone.
    fn locate(&self, offset: u64) -> (Lba, u64) {
        let (zone, inside) = (offset / self.zone_bytes(), offset % self.zone_bytes());
        let start = self.array.geometry().start(ZoneIndex(zone as u32));
        (Lba(start.0 + inside / BLOCK as u64), self.zone_bytes() - inside)
    }

    /// Resets the zones behind the one that holds byte `end` of the stream, or begins with it.
    pub fn reset_behind(&self, end: u64) -> Result<()> {
        for zone in (end / self.zone_bytes()) as u32 + 1..self.array.geometry().zones {
            let zones = Zones::One(ZoneIndex(zone));
            self.wait(self.array.submit(Command::Reset { zones }))?.result?;
        }
        Ok(())
    }

    /// Bytes of the stream below the write pointers.
    pub fn end(&self) -> Result<u64> {
        let count = self.array.geometry().zones;
        let done = self.wait(self.array.submit(Command::Report { first: ZoneIndex(0), count }))?;
        done.result?;
        let mut blocks = 0;
        for zone in &done.zones {
            match zone.state {
                ZoneState::Full => blocks += zone.capacity_blocks,
                _ => return Ok((blocks + zone.wp_blocks) * BLOCK as u64),
            }
        }
        Ok(blocks * BLOCK as u64)
    }
}

/// Writes the stream. Positions are bytes from its start; `acknowledged` ≤ `submitted`.
pub struct StreamWriter<'a> {
    demo: DemoArray<'a>,
    pace: Pace,
    queue: VecDeque<(u64, Completion)>,
    total: u64,
    pub submitted: u64,
    pub acknowledged: u64,
}

impl<'a> StreamWriter<'a> {
    /// Continues at byte `from`, up to byte `total` at most: the padded end of the stream.
    pub fn new(demo: DemoArray<'a>, bar: ProgressBar, from: u64, total: u64) -> StreamWriter<'a> {
        let pace = Pace::new(bar, total);
        StreamWriter { demo, pace, queue: VecDeque::new(), total, submitted: from, acknowledged: from }
    }

    /// Writes until `until` bytes are acknowledged, plus a random number of commands, and leaves the others in flight.
    pub fn write_until(&mut self, until: u64) -> Result<()> {
        while self.acknowledged < until.min(self.total) {
            self.fill_queue()?;
            self.acknowledge()?;
        }
        for _ in 0..self.demo.rig.draw(64) {
            self.fill_queue()?;
            if self.submitted >= self.total {
                // The remaining writes have to be in flight when the power fails.
                break;
            }
            self.demo.runtime.run();
            self.demo.rig.step();
            self.demo.runtime.run();
            self.take_acknowledged()?;
        }
        self.fill_queue()?;
        self.demo.runtime.run();
        self.take_acknowledged()
    }

    /// Counts completed writes as acknowledged.
    fn take_acknowledged(&mut self) -> Result<()> {
        while let Some((end, completion)) = self.queue.front_mut() {
            let Some(done) = completion.take() else { break };
            done.result.with_context(|| format!("the write that ends at byte {end} failed"))?;
            self.acknowledged = *end;
            self.queue.pop_front();
        }
        Ok(())
    }

    /// Writes the rest of the stream and waits for it.
    pub fn write_to_the_end(&mut self) -> Result<()> {
        while self.acknowledged < self.total {
            self.fill_queue()?;
            self.acknowledge()?;
        }
        self.pace.finish();
        Ok(())
    }

    fn fill_queue(&mut self) -> Result<()> {
        while self.queue.len() < QUEUE_DEPTH && self.submitted < self.total {
            let (lba, room) = self.demo.locate(self.submitted);
            let most = (self.total / LEAST_WRITES / BLOCK as u64).clamp(2, MOST_BLOCKS);
            let wanted = (1 + self.demo.rig.draw(most)) * BLOCK as u64;
            let mut data = Buf::zeroed(wanted.min(room).min(self.total - self.submitted) as usize);
            let target = data.as_mut().context("a new buffer is in use")?;
            self.demo.source.read_at(self.submitted, target)?;
            self.submitted += data.len() as u64;
            let completion = self.demo.array.submit(Command::write(lba, data, true));
            self.queue.push_back((self.submitted, completion));
        }
        Ok(())
    }

    /// Waits for the oldest write.
    fn acknowledge(&mut self) -> Result<()> {
        let Some((end, completion)) = self.queue.pop_front() else { return Ok(()) };
        let done = self.demo.wait(completion)?;
        done.result.with_context(|| format!("the write that ends at byte {end} failed"))?;
        self.acknowledged = end;
        self.pace.set_position(end);
        Ok(())
    }
}

/// Reads the stream back up to `end`, and counts the bytes that differ.
pub struct Checker<'a> {
    demo: DemoArray<'a>,
    pace: Pace,
    end: u64,
    /// Bytes that have been read and compared.
    checked: u64,
    /// The piece that was read last; `passed` bytes of it have been passed on.
    waiting: Vec<u8>,
    passed: usize,
    /// Bytes in blocks that differ or cannot be read.
    pub lost: u64,
}

impl<'a> Checker<'a> {
    pub fn new(demo: DemoArray<'a>, bar: ProgressBar, end: u64) -> Checker<'a> {
        let pace = Pace::new(bar, end);
        Checker { demo, pace, end, checked: 0, waiting: Vec::new(), passed: 0, lost: 0 }
    }

    /// Compares the rest of the stream, and returns the bytes that differ.
    pub fn finish(mut self) -> Result<u64> {
        while self.checked < self.end {
            self.next_piece()?;
        }
        self.pace.finish();
        Ok(self.lost)
    }

    fn next_piece(&mut self) -> Result<()> {
        let (lba, room) = self.demo.locate(self.checked);
        let most = READ_BYTES.min(self.demo.array.geometry().max_transfer_blocks as u64 * BLOCK as u64);
        let len = room.min(most).min(self.end - self.checked);
        let mut sent = vec![0; len as usize];
        self.demo.source.read_at(self.checked, &mut sent)?;
        // Blocks that cannot be read count as different in every byte.
        self.waiting = sent.iter().map(|byte| !byte).collect();
        if !self.fetch(lba, 0..len as usize)? {
            for block in 0..len as usize / BLOCK {
                self.fetch(Lba(lba.0 + block as u64), block * BLOCK..(block + 1) * BLOCK)?;
            }
        }
        let differing = self.waiting.chunks(BLOCK).zip(sent.chunks(BLOCK)).filter(|(a, b)| a != b).count();
        self.lost += (differing * BLOCK) as u64;
        self.passed = 0;
        self.checked += len;
        self.pace.set_position(self.checked);
        Ok(())
    }

    /// Reads from `lba` on into `range` of the waiting bytes; `false` if that fails.
    fn fetch(&mut self, lba: Lba, range: Range<usize>) -> Result<bool> {
        let command = Command::read(lba, Buf::zeroed(range.len()));
        let done = self.demo.wait(self.demo.array.submit(command))?;
        if done.result.is_ok() {
            self.waiting[range].copy_from_slice(&done.data);
        }
        Ok(done.result.is_ok())
    }
}

impl Read for Checker<'_> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        if self.passed == self.waiting.len() {
            if self.checked >= self.end {
                return Ok(0);
            }
            self.next_piece().map_err(|error| std::io::Error::other(format!("{error:#}")))?;
        }
        let count = target.len().min(self.waiting.len() - self.passed);
        target[..count].copy_from_slice(&self.waiting[self.passed..][..count]);
        self.passed += count;
        Ok(count)
    }
}
