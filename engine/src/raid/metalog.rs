//! The metadata log of one member: two zones used in turn (docs/FORMAT.md).
//!
//! Records are appended one batch at a time and are safe when their completion says so. When the
//! zone is full, everything that still matters is written as one checkpoint to the other zone,
//! which replaces this one from that moment on: a checkpoint is valid as a whole or not at all,
//! and the zone with the newest valid one counts.
//!
//! Zones are reset and finished here in an order that never leaves the member without a valid
//! checkpoint and never holds more than one active metadata zone.

use super::{core::Core, geometry::Layout};
use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completer, Completion, DeviceError, Done, Geometry, Status, ZonedDevice, Zones},
    format::{
        Uuid,
        record::{Checkpoint, Header, Origin, ParityRecord, Record, TailRecord, Unreadable},
    },
    runtime::Gate,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::{Rc, Weak},
};

/// Metadata zones at the start of every member.
pub const META_ZONES: u32 = 2;
/// Blocks of a metadata zone that are used: reading the log back at assembly must not take long.
const LOG_BLOCKS: u64 = 16384;
/// Records written together at most.
const BATCH: usize = 32;

/// Partial parity that lies in the log, by zone, stripe and chunk.
#[derive(Clone, Default)]
pub struct LoggedParity(BTreeMap<(u32, u64, u64), Slot>);

#[derive(Clone)]
struct Slot {
    epoch: u64,
    /// One entry a block of the chunk.
    blocks: Vec<Buf>,
}

impl LoggedParity {
    /// Adds a record; a later one replaces what an earlier one said of the same blocks.
    pub fn add(&mut self, record: &ParityRecord, chunk_blocks: u64) {
        let slot = self
            .0
            .entry((record.zone, record.stripe, record.index as u64))
            .or_insert_with(|| Slot { epoch: record.epoch, blocks: Vec::new() });
        if slot.epoch != record.epoch {
            *slot = Slot { epoch: record.epoch, blocks: Vec::new() };
        }
        slot.blocks.resize(chunk_blocks as usize, Buf::default());
        for block in 0..record.data.blocks() {
            if let Some(place) = slot.blocks.get_mut(record.from as usize + block as usize) {
                *place = Buf::copy_of(&record.data[block as usize * BLOCK..][..BLOCK]);
            }
        }
    }

    /// The parity for `block` of the slot of chunk `index`, if it was logged in `epoch`.
    pub fn get(&self, zone: u32, epoch: u64, stripe: u64, index: u64, block: u64) -> Option<&Buf> {
        let slot = self.0.get(&(zone, stripe, index)).filter(|slot| slot.epoch == epoch)?;
        slot.blocks.get(block as usize).filter(|buf| !buf.is_empty())
    }

    /// Forgets what covers anything beyond a tail of a zone.
    fn forget_beyond(&mut self, tail: &TailRecord, layout: &Layout) {
        for ((_, stripe, index), slot) in self.0.range_mut((tail.zone, 0, 0)..(tail.zone + 1, 0, 0)) {
            let covered = stripe * layout.stripe_blocks() + index * layout.chunk_blocks;
            let kept = tail.tail_blocks.saturating_sub(covered) as usize;
            slot.blocks.iter_mut().skip(kept).for_each(|block| *block = Buf::default());
        }
    }

    /// The offsets of which the parity of chunks `0..=index` of a stripe was logged in `epoch`: stripe,
    /// index, offset.
    pub fn offsets(&self, zone: u32, epoch: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let slots = self.0.range((zone, 0, 0)..(zone + 1, 0, 0)).filter(move |(_, slot)| slot.epoch == epoch);
        slots.flat_map(|((_, stripe, index), slot)| {
            let logged = (0..).zip(&slot.blocks).filter(|(_, block)| !block.is_empty());
            logged.map(|(offset, _)| (*stripe, *index, offset))
        })
    }

    /// Forgets the stripes of `zone` below `stripe`.
    pub fn forget(&mut self, zone: u32, stripe: u64) {
        self.0.retain(|key, _| key.0 != zone || key.1 >= stripe);
    }

    /// Keeps only stripes of which `keep` (zone, epoch, stripe) says so.
    pub fn retain(&mut self, keep: impl Fn(u32, u64, u64) -> bool) {
        self.0.retain(|(zone, stripe, _), slot| keep(*zone, slot.epoch, *stripe));
    }

    fn records(&self) -> Vec<ParityRecord> {
        let mut records = Vec::new();
        for ((zone, stripe, index), slot) in &self.0 {
            let mut run: Option<(usize, Vec<u8>)> = None;
            let mut end = |run: &mut Option<(usize, Vec<u8>)>| {
                if let Some((from, bytes)) = run.take() {
                    let data = Buf::copy_of(&bytes);
                    let (zone, stripe, index) = (*zone, *stripe, *index as u32);
                    records.push(ParityRecord {
                        zone,
                        epoch: slot.epoch,
                        stripe,
                        index,
                        from: from as u32,
                        data,
                    });
                }
            };
            for (block, buf) in slot.blocks.iter().enumerate() {
                match (&mut run, buf.is_empty()) {
                    (_, true) => end(&mut run),
                    (Some((_, bytes)), false) => bytes.extend_from_slice(buf),
                    (None, false) => run = Some((block, buf.to_vec())),
                }
            }
            end(&mut run);
        }
        records
    }
}

/// What the log holds of this member alone: live partial parity and tails.
#[derive(Clone, Default)]
pub struct Live {
    pub parity: LoggedParity,
    pub tails: BTreeMap<u32, TailRecord>,
}

impl Live {
    pub fn apply(&mut self, record: &Record, layout: &Layout) {
        let chunk_blocks = layout.chunk_blocks;
        match record {
            Record::Parity(parity) => self.parity.add(parity, chunk_blocks),
            Record::Tail(tail) => {
                if tail.generation > 0 {
                    self.parity.forget_beyond(tail, layout);
                }
                self.add_tail(*tail);
            }
            Record::Checkpoint(checkpoint) => {
                *self = Live::default();
                checkpoint.parity.iter().for_each(|parity| self.parity.add(parity, chunk_blocks));
                checkpoint.tails.iter().for_each(|tail| self.add_tail(*tail));
            }
            _ => {}
        }
    }

    fn add_tail(&mut self, tail: TailRecord) {
        let known = self.tails.entry(tail.zone).or_insert(tail);
        if (known.epoch, known.generation, known.tail_blocks)
            < (tail.epoch, tail.generation, tail.tail_blocks)
        {
            *known = tail;
        }
    }
}

/// A record to be written, or a checkpoint to be made first.
type Queued = (Option<Record>, u64, Completer);

/// The running log of a member.
pub struct MetaLog {
    core: Weak<Core>,
    pub device: Rc<dyn ZonedDevice>,
    array: Uuid,
    member: usize,
    /// Which of the two zones is written, the next block in it, and its generation.
    zone: Cell<u32>,
    wp_blocks: Cell<u64>,
    generation: Cell<u64>,
    queue: RefCell<VecDeque<Queued>>,
    pub live: RefCell<Live>,
    work: Gate,
}

impl MetaLog {
    /// A log that continues after what was read from `zone` in `generation`.
    pub fn new(
        core: &Rc<Core>,
        member: usize,
        device: Rc<dyn ZonedDevice>,
        zone: u32,
        generation: u64,
        live: Live,
    ) -> Rc<MetaLog> {
        Rc::new(MetaLog {
            core: Rc::downgrade(core),
            device,
            array: core.array,
            member,
            zone: Cell::new(zone),
            // Nothing is appended to what was read: the log starts with a checkpoint elsewhere.
            wp_blocks: Cell::new((generation > 0) as u64),
            generation: Cell::new(generation),
            queue: RefCell::default(),
            live: RefCell::new(live),
            work: Gate::default(),
        })
    }

    /// Queues a record; it is safe when the completion says so.
    pub fn append(self: &Rc<Self>, core: &Core, record: Record, sequence: u64) -> Completion {
        let (completer, completion) = core.slots.pair();
        self.live.borrow_mut().apply(&record, &core.layout);
        self.queue.borrow_mut().push_back((Some(record), sequence, completer));
        self.work.open();
        completion
    }

    /// Queues a checkpoint.
    pub fn renew(&self, core: &Core) -> Completion {
        let (completer, completion) = core.slots.pair();
        self.queue.borrow_mut().push_back((None, 0, completer));
        self.work.open();
        completion
    }

    /// Writes what is queued, until the member or the array is gone.
    pub async fn run(self: Rc<Self>) {
        loop {
            let work = self.work.wait();
            let Some(core) = self.core.upgrade() else { return };
            let batch: Vec<_> = {
                let mut queue = self.queue.borrow_mut();
                let count = queue.len().min(BATCH);
                queue.drain(..count).collect()
            };
            if batch.is_empty() {
                drop(core);
                work.await;
                continue;
            }
            let seat = core.seat(self.member);
            let result = match self.is_current(&core) {
                true => self.write_batch(&core, &batch).await,
                false => Err(DeviceError::Gone),
            };
            if let Err(error) = result
                && self.is_current(&core)
            {
                core.member_failed(seat, error, "metadata write");
            }
            for (_, _, completer) in batch {
                completer.complete(Done { result, ..Done::ok() });
            }
        }
    }

    /// Whether the drive is still the member's. Once it is out or replaced it must not learn any
    /// more: the newest superblock would make it pass for its successor.
    fn is_current(&self, core: &Core) -> bool {
        let log = core.members[self.member].log.borrow();
        core.active.get() & (1 << self.member) != 0
            && log.as_deref().is_some_and(|log| std::ptr::eq(log, self))
    }

    async fn write_batch(&self, core: &Rc<Core>, batch: &[Queued]) -> Result<(), DeviceError> {
        let mut bytes = Vec::new();
        for (record, sequence) in
            batch.iter().filter_map(|(record, sequence, _)| Some((record.as_ref()?, sequence)))
        {
            let lba = self.lba(self.zone.get()).0 + self.wp_blocks.get() + (bytes.len() / BLOCK) as u64;
            bytes.extend_from_slice(&record.encode(self.origin(lba), *sequence));
        }
        let limit = log_blocks(self.device.geometry());
        let renew = batch.iter().any(|(record, _, _)| record.is_none());
        if renew || self.wp_blocks.get() + (bytes.len() / BLOCK) as u64 > limit {
            // It says everything that the records say: what they change was changed when they were
            // queued.
            return self.checkpoint(core).await;
        }
        self.write(&bytes).await
    }

    /// Starts the other zone with a checkpoint of everything the array and this log know.
    pub async fn checkpoint(&self, core: &Rc<Core>) -> Result<(), DeviceError> {
        let (old, new) = (ZoneIndex(self.zone.get()), ZoneIndex(1 - self.zone.get()));
        let submit = |command| self.device.submit(command);
        submit(Command::Reset { zones: Zones::One(new) }).await.result?;
        // One active metadata zone at a time is what the array's limits leave room for.
        if self.wp_blocks.get() > 0 {
            submit(Command::Finish { zones: Zones::One(old) }).await.result?;
        }
        if !self.is_current(core) {
            return Err(DeviceError::Gone);
        }
        let generation = self.generation.get() + 1;
        let (parity, tails) = {
            let live = self.live.borrow();
            (live.parity.records(), live.tails.values().copied().collect())
        };
        let checkpoint = Checkpoint {
            generation,
            superblock: core.superblock.borrow().clone(),
            zones: core.zones.borrow().clone(),
            parity,
            tails,
        };
        let lba = self.lba(new.0);
        let record = Record::Checkpoint(Box::new(checkpoint));
        let bytes = record.encode(self.origin(lba.0), core.sequence.get());
        if bytes.blocks() > log_blocks(self.device.geometry()) {
            return Err(Status::CapacityExceeded.into());
        }
        self.zone.set(new.0);
        self.wp_blocks.set(0);
        self.generation.set(generation);
        self.write(&bytes).await
    }

    /// Appends whole blocks, durably.
    async fn write(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        let geometry = self.device.geometry();
        for piece in bytes.chunks(geometry.max_transfer_blocks as usize * BLOCK) {
            let lba = Lba(self.lba(self.zone.get()).0 + self.wp_blocks.get());
            self.wp_blocks.set(self.wp_blocks.get() + (piece.len() / BLOCK) as u64);
            self.device.submit(Command::write(lba, Buf::copy_of(piece), true)).await.result?;
        }
        // A record may end below the write that was torn in it, but never above one.
        if geometry.volatile_cache {
            self.device.submit(Command::Flush).await.result?;
        }
        Ok(())
    }

    fn lba(&self, zone: u32) -> Lba {
        self.device.geometry().start(ZoneIndex(zone))
    }

    fn origin(&self, lba: u64) -> Origin {
        Origin { array: self.array, member: self.member as u32, lba }
    }
}

/// Blocks of a metadata zone that may be used.
pub fn log_blocks(geometry: &Geometry) -> u64 {
    geometry.zone_capacity_blocks.min(LOG_BLOCKS)
}

/// What a drive's metadata zones hold.
pub struct ReadLog {
    /// Array and role of the drive, from the checkpoint.
    pub origin: Origin,
    /// The zone that counts.
    pub zone: u32,
    pub generation: u64,
    /// The checkpoint and what follows it, with sequence numbers.
    pub records: Vec<(Record, u64)>,
    /// Records of the log that were damaged: torn by a power cut, or worse.
    pub damaged: u32,
}

/// Why a drive has no readable log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLog {
    /// The metadata zones are empty: a blank drive.
    Blank,
    /// Something else is on the drive.
    Foreign,
    /// The log is of a format this code does not know.
    Version(u16),
    /// There was a log, but it is damaged.
    Damaged,
    /// The drive cannot be read.
    Unreadable(DeviceError),
}

/// Reads the metadata log of a drive.
pub async fn read_log(device: &Rc<dyn ZonedDevice>) -> Result<ReadLog, NoLog> {
    let mut best: Option<ReadLog> = None;
    let mut reason = NoLog::Blank;
    for zone in 0..META_ZONES {
        match read_zone(device, zone).await {
            Ok(log) => {
                if best.as_ref().is_none_or(|b| b.generation < log.generation) {
                    best = Some(log);
                }
            }
            Err(NoLog::Blank) => {}
            Err(error) => reason = error,
        }
    }
    best.ok_or(reason)
}

async fn read_zone(device: &Rc<dyn ZonedDevice>, zone: u32) -> Result<ReadLog, NoLog> {
    let report = device.submit(Command::Report { first: ZoneIndex(zone), count: 1 }).await;
    report.result.map_err(NoLog::Unreadable)?;
    let info = report.zones.first().copied().ok_or(NoLog::Foreign)?;
    let geometry = device.geometry();
    let written = match info.state {
        ZoneState::Empty => return Err(NoLog::Blank),
        ZoneState::Full | ZoneState::ReadOnly => log_blocks(geometry),
        _ => info.wp_blocks.min(log_blocks(geometry)),
    };
    let start = geometry.start(ZoneIndex(zone));
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < written {
        let blocks = (written - at).min(geometry.max_transfer_blocks as u64);
        let data = Buf::zeroed(blocks as usize * BLOCK);
        let done = device.submit(Command::read(Lba(start.0 + at), data)).await;
        match done.result {
            Ok(()) => bytes.extend_from_slice(&done.data),
            // An unreadable block loses the record it is in; the others have a copy. In a zone that was
            // finished there may be blocks that were never written.
            Err(DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock)) => {
                for block in 0..blocks {
                    let lba = Lba(start.0 + at + block);
                    let done = device.submit(Command::read(lba, Buf::zeroed(BLOCK))).await;
                    bytes.extend_from_slice(if done.result.is_ok() { &done.data } else { &[0; BLOCK] });
                }
            }
            Err(error) => return Err(NoLog::Unreadable(error)),
        }
        at += blocks;
    }
    parse_zone(&bytes, zone, start.0)
}

fn parse_zone(bytes: &[u8], zone: u32, start: u64) -> Result<ReadLog, NoLog> {
    // A zone that was finished before anything was written in it reads as zeros.
    let blank = bytes.iter().take(BLOCK).all(|byte| *byte == 0);
    let header = Header::read(bytes).ok_or(if blank { NoLog::Blank } else { NoLog::Foreign })?;
    let origin = Origin { lba: start, ..header.origin };
    let (first, sequence, blocks) = Record::read(bytes, origin).map_err(|error| match error {
        Unreadable::Version(version) => NoLog::Version(version),
        _ => NoLog::Damaged,
    })?;
    let Record::Checkpoint(checkpoint) = &first else { return Err(NoLog::Damaged) };
    let generation = checkpoint.generation;
    let mut log = ReadLog { origin, zone, generation, records: vec![(first, sequence)], damaged: 0 };
    let mut at = blocks;
    while let Some(rest) = bytes.get(at as usize * BLOCK..).filter(|rest| !rest.is_empty()) {
        match Record::read(rest, Origin { lba: start + at, ..origin }) {
            Ok((record, sequence, blocks)) => {
                log.records.push((record, sequence));
                at += blocks;
            }
            Err(error) => {
                log.damaged += (error != Unreadable::NoRecord) as u32;
                at += 1;
            }
        }
    }
    Ok(log)
}
