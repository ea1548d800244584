//! The metadata log of one member: two zones used in turn (docs/FORMAT.md).
//!
//! Records are appended one batch at a time and are safe when their completion says so. When the
//! zone is full, everything that still matters is written as one checkpoint to the other zone,
//! which replaces this one from that moment on: a checkpoint is valid as a whole or not at all,
//! and the zone with the newest valid one counts.
//!
//! Zones are reset and finished here in an order that never leaves the member without a valid
//! checkpoint and never holds more than one active metadata zone. A zone is reset as soon as the other
//! one has its checkpoint, and nothing waits for that until its turn comes.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completer, Completion, DeviceError, Done, Geometry, Status, ZonedDevice, Zones},
    format::{
        Uuid, VERSION,
        codec::{Absurd, Unreadable, expect},
        record::{Checkpoint, Header, Origin, ParityRecord, RELOCATED, Record, TailRecord, ZONE_BYTES},
        superblock::Superblock,
    },
    raid::{LogStep, core::Core, geometry::Layout, policy::Policy, recover::is_uniform},
    runtime::Gate,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::{Rc, Weak},
};

/// Metadata zones at the start of every member.
pub const META_ZONES: u32 = 2;
/// Blocks of a metadata zone that are used: reading the log back at assembly must not take long.
/// With the policy `log`, which writes much to it, the whole zone is: to finish a zone early takes as
/// long as to write the rest.
const LOG_BLOCKS: u64 = 16384;
/// Records written together at most.
const BATCH: usize = 32;

/// Blocks that lie in the log, by zone, stripe and chunk.
#[derive(Clone, Default)]
pub struct LoggedParity(BTreeMap<(u32, u64, u64), Slot>);

#[derive(Clone)]
struct Slot {
    epoch: u64,
    /// One entry a block of the chunk; empty where nothing was logged.
    blocks: Vec<Buf>,
}

impl LoggedParity {
    /// Adds a record; a later one replaces what an earlier one said of the same blocks. The record's
    /// data is shared, not copied.
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
                *place = record.data.slice_blocks(block..block + 1);
            }
        }
    }

    /// `block` of chunk `index`, if it was logged in `epoch`.
    pub fn get(&self, zone: u32, epoch: u64, stripe: u64, index: u64, block: u64) -> Option<&Buf> {
        let slot = self.0.get(&(zone, stripe, index)).filter(|slot| slot.epoch == epoch)?;
        slot.blocks.get(block as usize).filter(|buf| !buf.is_empty())
    }

    /// Forgets the versions of a stripe's parity that one replaces: it would overwrite them in a zone.
    fn forget_versions_before(&mut self, version: &ParityRecord) {
        let earlier = (version.zone, version.stripe, 0)..(version.zone, version.stripe, version.index as u64);
        for (_, slot) in self.0.range_mut(earlier) {
            let blocks = slot.blocks.iter_mut().skip(version.from as usize);
            blocks.take(version.data.blocks() as usize).for_each(|block| *block = Buf::default());
        }
    }

    /// Forgets what covers anything beyond a tail of a zone.
    fn forget_beyond(&mut self, tail: &TailRecord, layout: &Layout) {
        for ((_, stripe, index), slot) in self.0.range_mut((tail.zone, 0, 0)..(tail.zone + 1, 0, 0)) {
            let covered = stripe * layout.stripe_blocks() + index * layout.chunk_blocks;
            let kept = tail.tail_blocks.saturating_sub(covered) as usize;
            slot.blocks.iter_mut().skip(kept).for_each(|block| *block = Buf::default());
        }
    }

    /// Everything that was logged of `zone` in `epoch`: stripe, chunk, block.
    pub fn of_zone(&self, zone: u32, epoch: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let slots = self.0.range((zone, 0, 0)..(zone + 1, 0, 0)).filter(move |(_, slot)| slot.epoch == epoch);
        slots.flat_map(|((_, stripe, index), slot)| {
            let logged = (0..).zip(&slot.blocks).filter(|(_, block)| !block.is_empty());
            logged.map(|(block, _)| (*stripe, *index, block))
        })
    }

    /// Whether anything was logged of `zone`.
    pub fn has(&self, zone: u32) -> bool {
        self.0.range((zone, 0, 0)..(zone + 1, 0, 0)).next().is_some()
    }

    /// Forgets the stripes of `zone` below `stripe`; their buffers go to `pool`.
    pub fn forget(&mut self, zone: u32, stripe: u64, pool: &mut BufPool) {
        while let Some((key, _)) = self.0.range((zone, 0, 0)..(zone, stripe, 0)).next() {
            let key = *key;
            for buf in self.0.remove(&key).into_iter().flat_map(|slot| slot.blocks) {
                pool.give(buf);
            }
        }
    }

    /// Keeps only blocks of which `keep` (zone, epoch, stripe, chunk, block) says so.
    pub fn retain(&mut self, keep: impl Fn(u32, u64, u64, u64, u64) -> bool) {
        self.0.retain(|(zone, stripe, index), slot| {
            for (block, buf) in slot.blocks.iter_mut().enumerate() {
                if !keep(*zone, slot.epoch, *stripe, *index, block as u64) {
                    *buf = Buf::default();
                }
            }
            slot.blocks.iter().any(|buf| !buf.is_empty())
        });
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

/// What the log holds of this member alone.
#[derive(Clone, Default)]
pub struct Live {
    /// Partial parity.
    pub parity: LoggedParity,
    /// What belongs where its own blocks are burned; the chunk is [`RELOCATED`].
    pub relocated: LoggedParity,
    pub tails: BTreeMap<u32, TailRecord>,
    /// Something that was in the log when it was read could not be read, or was damaged.
    pub holes: bool,
    /// Zones, with their epochs, that have been in doubt since before the log's checkpoint, when that was so.
    pub incomplete: BTreeMap<u32, u64>,
}

impl Live {
    pub fn apply(&mut self, record: &Record, layout: &Layout) {
        let chunk_blocks = layout.chunk_blocks;
        match record {
            Record::Parity(parity) => {
                if layout.policy.replaces_versions() {
                    self.parity.forget_versions_before(parity);
                }
                self.add(parity, chunk_blocks);
            }
            Record::Tail(tail) => {
                if tail.generation > 0 {
                    self.parity.forget_beyond(tail, layout);
                }
                self.add_tail(*tail);
            }
            Record::Checkpoint(checkpoint) => {
                let epoch = |zone: u32| checkpoint.zones.get(zone as usize).map_or(0, |zone| zone.epoch);
                let incomplete = checkpoint.incomplete.iter().map(|zone| (*zone, epoch(*zone))).collect();
                *self = Live { incomplete, ..Live::default() };
                checkpoint.parity.iter().for_each(|parity| self.add(parity, chunk_blocks));
                checkpoint.tails.iter().for_each(|tail| self.add_tail(*tail));
            }
            _ => {}
        }
    }

    /// Keeps only what is of zones of which `keep` (zone, epoch) says so.
    pub fn retain_zones(&mut self, keep: impl Fn(u32, u64) -> bool) {
        self.parity.retain(|zone, epoch, _, _, _| keep(zone, epoch));
        self.relocated.retain(|zone, epoch, _, _, _| keep(zone, epoch));
        self.tails.retain(|zone, tail| keep(*zone, tail.epoch));
    }

    fn add(&mut self, record: &ParityRecord, chunk_blocks: u64) {
        match record.index {
            RELOCATED => self.relocated.add(record, chunk_blocks),
            _ => self.parity.add(record, chunk_blocks),
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
    /// The drive itself, and as the array uses it.
    pub drive: Rc<dyn ZonedDevice>,
    pub device: Rc<dyn ZonedDevice>,
    array: Uuid,
    member: usize,
    /// Which of the two zones is written, the next block in it, and its generation.
    zone: Cell<u32>,
    wp_blocks: Cell<u64>,
    generation: Cell<u64>,
    /// The reset of the zone that is not written, if it has been asked for.
    cleared: Cell<Option<Completion>>,
    queue: RefCell<VecDeque<Queued>>,
    /// Where records are put together.
    bytes: Cell<Vec<u8>>,
    pub live: RefCell<Live>,
    work: Gate,
    /// Nothing will be written to it any more.
    ended: Cell<bool>,
}

impl MetaLog {
    /// A log that continues after what was read from `zone` in `generation`.
    pub fn new(
        core: &Rc<Core>,
        member: usize,
        drive: Rc<dyn ZonedDevice>,
        device: Rc<dyn ZonedDevice>,
        zone: u32,
        generation: u64,
        live: Live,
    ) -> Rc<MetaLog> {
        Rc::new(MetaLog {
            core: Rc::downgrade(core),
            drive,
            device,
            array: core.array,
            member,
            zone: Cell::new(zone),
            // Nothing is appended to what was read: the log starts with a checkpoint elsewhere.
            wp_blocks: Cell::new((generation > 0) as u64),
            generation: Cell::new(generation),
            cleared: Cell::default(),
            bytes: Cell::default(),
            queue: RefCell::default(),
            live: RefCell::new(live),
            work: Gate::default(),
            ended: Cell::default(),
        })
    }

    /// Queues a record; it is safe when the completion says so.
    pub fn append(self: &Rc<Self>, core: &Core, record: Record, sequence: u64) -> Completion {
        if core.log_step >= LogStep::Unsequenced && matches!(record, Record::Parity(_)) {
            return self.write_beside(core, record);
        }
        let (completer, completion) = core.slots.pair();
        self.live.borrow_mut().apply(&record, &core.layout);
        self.queue.borrow_mut().push_back((Some(record), sequence, completer));
        self.work.open();
        completion
    }

    /// Writes partial parity at once, whatever is on its way in the log.
    fn write_beside(&self, core: &Core, record: Record) -> Completion {
        let lba = Lba(self.lba(self.zone.get()).0 + self.wp_blocks.get());
        let data = match record {
            Record::Parity(parity) if core.log_step == LogStep::NoHeader => parity.data,
            record => record.encode(self.origin(lba.0), 0),
        };
        self.wp_blocks.set(self.wp_blocks.get() + data.blocks());
        self.device.submit(Command::write(lba, data, false))
    }

    /// Queues a checkpoint.
    pub fn renew(&self, core: &Core) -> Completion {
        let (completer, completion) = core.slots.pair();
        self.queue.borrow_mut().push_back((None, 0, completer));
        self.work.open();
        completion
    }

    /// Has [`MetaLog::run`] end: the drive has been replaced, and is let go with it.
    pub fn end(&self) {
        self.ended.set(true);
        self.work.open();
    }

    /// Writes what is queued, until the member or the array is gone.
    pub async fn run(self: Rc<Self>) {
        let mut batch = Vec::new();
        loop {
            let work = self.work.wait();
            let Some(core) = self.core.upgrade() else { return };
            {
                let mut queue = self.queue.borrow_mut();
                let count = queue.len().min(BATCH);
                batch.extend(queue.drain(..count));
            }
            if batch.is_empty() && self.ended.get() {
                return;
            }
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
            for (_, _, completer) in batch.drain(..) {
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
        let mut bytes = self.bytes.take();
        bytes.clear();
        let (mut renew, mut durable) = (false, false);
        for (record, sequence, _) in batch {
            let lba = self.lba(self.zone.get()).0 + self.wp_blocks.get() + (bytes.len() / BLOCK) as u64;
            match record {
                Some(record) => {
                    // Parity is as safe as the data that it goes with: by the next flush.
                    durable |= !matches!(record, Record::Parity(_));
                    record.encode_to(&mut bytes, self.origin(lba), *sequence);
                }
                None => renew = true,
            }
        }
        let limit = log_blocks(self.device.geometry(), core.layout.policy);
        let result = if renew || self.wp_blocks.get() + (bytes.len() / BLOCK) as u64 > limit {
            // It says everything that the records say: what they change was changed when they were
            // queued.
            self.checkpoint(core, false).await
        } else {
            self.write(core, &bytes, durable).await
        };
        self.bytes.set(bytes);
        result
    }

    /// Starts the other zone with a checkpoint of everything the array and this log know. `spare` says that
    /// no zone is under repair, so that what is kept for that may be used.
    pub async fn checkpoint(&self, core: &Rc<Core>, spare: bool) -> Result<(), DeviceError> {
        let (old, new) = (ZoneIndex(self.zone.get()), ZoneIndex(1 - self.zone.get()));
        let submit = |command| self.device.submit(command);
        let cleared = self.cleared.take();
        cleared.unwrap_or_else(|| submit(Command::Reset { zones: Zones::One(new) })).await.result?;
        // One active metadata zone at a time is what the array's limits leave room for. With something to
        // spare the old one need not be finished, which takes as long as filling it.
        let open = Command::Open { zones: Zones::One(new), zrwa: false };
        let both = spare && self.wp_blocks.get() > 0 && submit(open).await.result.is_ok();
        if self.wp_blocks.get() > 0 && !both {
            submit(Command::Finish { zones: Zones::One(old) }).await.result?;
        }
        if !self.is_current(core) {
            return Err(DeviceError::Gone);
        }
        let generation = self.generation.get() + 1;
        let (parity, tails, incomplete) = {
            let live = self.live.borrow();
            // All other zones have been decided with what there is, and that is known.
            let zones = core.zones.borrow();
            let in_doubt = (0..).zip(zones.iter()).filter(|(zone, record)| {
                (record.waits != 0 || core.offline.borrow().contains_key(zone))
                    && (live.holes || live.incomplete.get(zone) == Some(&record.epoch))
            });
            let incomplete: BTreeSet<u32> = in_doubt.map(|(zone, _)| zone).collect();
            let parity = live.parity.records().into_iter().chain(live.relocated.records());
            (parity.collect(), live.tails.values().copied().collect(), incomplete)
        };
        let checkpoint = Checkpoint {
            generation,
            incomplete,
            superblock: core.superblock.borrow().clone(),
            zones: core.zones.borrow().clone(),
            burned: core.burned.borrow().clone(),
            holes: core.holes.borrow().all(),
            parity,
            tails,
        };
        let lba = self.lba(new.0);
        let record = Record::Checkpoint(Box::new(checkpoint));
        let bytes = record.encode(self.origin(lba.0), core.sequence.get());
        if bytes.blocks() > log_blocks(self.device.geometry(), core.layout.policy) {
            return Err(Status::CapacityExceeded.into());
        }
        self.zone.set(new.0);
        self.wp_blocks.set(0);
        self.generation.set(generation);
        self.write(core, &bytes, true).await?;
        let mut cleared = submit(Command::Reset { zones: Zones::One(old) });
        if both {
            cleared = Completion::ready(cleared.await);
        }
        self.cleared.set(Some(cleared));
        Ok(())
    }

    /// Appends whole blocks, if need be durably.
    async fn write(&self, core: &Core, bytes: &[u8], durable: bool) -> Result<(), DeviceError> {
        let geometry = self.device.geometry();
        // Where a flush follows it does all. FUA says nothing of what was written before: a cut could leave
        // a record behind a gap.
        let fua = durable && !geometry.volatile_cache;
        for piece in bytes.chunks(geometry.max_transfer_blocks as usize * BLOCK) {
            let lba = Lba(self.lba(self.zone.get()).0 + self.wp_blocks.get());
            self.wp_blocks.set(self.wp_blocks.get() + (piece.len() / BLOCK) as u64);
            let mut data = core.pool.borrow_mut().take((piece.len() / BLOCK) as u64);
            data.copy_from_slice(piece);
            let done = self.device.submit(Command::write(lba, data.freeze(), fua)).await;
            core.pool.borrow_mut().give(done.data);
            done.result?;
        }
        // A record may end below the write that was torn in it, but never above one.
        if durable && geometry.volatile_cache {
            self.device.submit(Command::Flush).await.result?;
        }
        Ok(())
    }

    /// The zone that is written.
    pub fn zone(&self) -> u32 {
        self.zone.get()
    }

    fn lba(&self, zone: u32) -> Lba {
        self.device.geometry().start(ZoneIndex(zone))
    }

    fn origin(&self, lba: u64) -> Origin {
        Origin { array: self.array, member: self.member as u32, lba }
    }
}

/// Blocks of a metadata zone that may be used.
pub fn log_blocks(geometry: &Geometry, policy: Policy) -> u64 {
    match policy.writes_much_to_logs() {
        true => geometry.zone_capacity_blocks,
        false => geometry.zone_capacity_blocks.min(LOG_BLOCKS),
    }
}

/// Blocks that a checkpoint may take without relocated blocks, with the partial parity of every zone
/// that can be active, and room to go on.
pub fn checkpoint_blocks(superblock: &Superblock) -> u64 {
    let layout = superblock.layout();
    let table = (superblock.zones as u64 * ZONE_BYTES as u64).div_ceil(BLOCK as u64);
    let slots = layout.policy.logged_blocks(&layout);
    2 + table + superblock.max_active as u64 * slots + layout.chunk_blocks + 8
}

/// What a drive's metadata zones hold.
pub struct ReadLog {
    /// Array and role of the drive, from the checkpoint.
    pub origin: Origin,
    /// The zone that counts.
    pub zone: u32,
    pub generation: u64,
    /// The checkpoint and what follows it but parity, with sequence numbers.
    pub records: Vec<(Record, u64)>,
    /// Records of parity, of which only what matters is kept.
    pub parities: usize,
    pub live: Live,
    /// The highest sequence number in the log.
    pub sequence: u64,
    /// Records of the log that were damaged: torn by a power cut, or worse.
    pub damaged: u32,
}

/// Why a drive has no readable log; what says most last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoLog {
    /// The metadata zones are empty: a blank drive.
    Blank,
    /// Something else is on the drive.
    Foreign,
    /// There was a log, but it is damaged.
    Damaged,
    /// There is a log as it was written, which makes no sense.
    Absurd(Absurd),
    /// The log is of a format this code does not know.
    Version(u16),
    /// The array uses features (bits) that this code does not know.
    Features(u64),
    /// The drive cannot be read.
    Unreadable(DeviceError),
}

impl NoLog {
    /// Whether somebody has written this as it is, and no power cut has made it. Then what was there before,
    /// in the other zone, does not count any more; unless it is itself what was there before.
    fn is_meant(self) -> bool {
        match self {
            NoLog::Version(version) => version > VERSION,
            NoLog::Features(_) | NoLog::Absurd(_) => true,
            _ => false,
        }
    }
}

impl From<Unreadable> for NoLog {
    /// Why there is no log, if this is what its checkpoint is.
    fn from(error: Unreadable) -> NoLog {
        match error {
            Unreadable::Version(version) => NoLog::Version(version),
            Unreadable::Features(unknown) => NoLog::Features(unknown),
            Unreadable::Absurd(absurd) => NoLog::Absurd(absurd),
            Unreadable::NoRecord | Unreadable::Foreign(_) | Unreadable::Damaged => NoLog::Damaged,
        }
    }
}

/// Reads the metadata log of a drive of which `aggregate` zones are used as one.
pub async fn read_log(device: &Rc<dyn ZonedDevice>, aggregate: u32) -> Result<ReadLog, NoLog> {
    let mut best: Option<(ReadLog, Reader<'_>)> = None;
    let mut reason = NoLog::Blank;
    for zone in 0..META_ZONES.min(device.geometry().zones) {
        match read_head(device, zone, aggregate).await {
            Ok((log, rest)) => {
                if best.as_ref().is_none_or(|(b, _)| b.generation < log.generation) {
                    best = Some((log, rest));
                }
            }
            Err(error) if error.is_meant() => return Err(error),
            Err(error) => reason = reason.max(error),
        }
    }
    let (mut log, mut rest) = best.ok_or(reason)?;
    log.read_on(&mut rest).await?;
    Ok(log)
}

/// Goes through the blocks of a metadata zone.
struct Reader<'a> {
    device: &'a Rc<dyn ZonedDevice>,
    /// First block of the zone, and how many of it there are to be read.
    start: u64,
    written: u64,
    /// Blocks from `at` on that have been read, behind `passed` that are done with.
    at: u64,
    bytes: Vec<u8>,
    passed: u64,
    /// Blocks that the drive could not read.
    unreadable: u32,
}

impl Reader<'_> {
    /// What lies ahead: `blocks` blocks, or what there is.
    async fn ahead(&mut self, blocks: u64) -> Result<&[u8], NoLog> {
        let geometry = self.device.geometry();
        let end = (self.at + blocks).min(self.written);
        let mut next = self.at - self.passed + (self.bytes.len() / BLOCK) as u64;
        if next < end {
            self.bytes.drain(..self.passed as usize * BLOCK);
            self.passed = 0;
        }
        while next < end {
            let blocks = (self.written - next).min(geometry.max_transfer_blocks as u64);
            let data = Buf::zeroed(blocks as usize * BLOCK);
            let done = self.device.submit(Command::read(Lba(self.start + next), data)).await;
            match done.result {
                Ok(()) => self.bytes.extend_from_slice(&done.data),
                // An unreadable block loses the record it is in. In a zone that was
                // finished there may be blocks that were never written.
                Err(DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock)) => {
                    for block in 0..blocks {
                        let lba = Lba(self.start + next + block);
                        let done = self.device.submit(Command::read(lba, Buf::zeroed(BLOCK))).await;
                        let bytes = if done.result.is_ok() { &done.data[..] } else { &[0; BLOCK] };
                        let unwritten = done.result == Err(Status::DeallocatedBlock.into());
                        self.unreadable += (done.result.is_err() && !unwritten) as u32;
                        self.bytes.extend_from_slice(bytes);
                    }
                }
                Err(error) => return Err(NoLog::Unreadable(error)),
            }
            next += blocks;
        }
        Ok(&self.bytes[self.passed as usize * BLOCK..])
    }

    /// The record that lies ahead.
    async fn record(&mut self, origin: Origin) -> Result<(Record, u64, u64), ReadError> {
        let header = Header::read(self.ahead(1).await?);
        let blocks = header.filter(|h| h.origin.lba == origin.lba).map_or(1, |header| header.blocks());
        Ok(Record::read(self.ahead(blocks).await?, origin)?)
    }

    /// What is wrong with what lies ahead, which is no record as it was written: whether a power cut can have
    /// left it, which it does of the last record only; and how many blocks it takes.
    ///
    /// A block is written whole or not at all. So the beginning of a torn record is as it was, and what
    /// is lacking was never written.
    async fn judge_damage(&mut self, origin: Origin) -> Result<(bool, u64), NoLog> {
        let header = Header::read(self.ahead(1).await?).filter(|header| header.origin.lba == origin.lba);
        let blocks = header.map_or(1, |header| header.blocks());
        let there = self.ahead(blocks).await?.chunks(BLOCK).take(blocks as usize);
        let written = there.filter(|block| !is_uniform(block)).count() as u64;
        Ok((written < blocks, blocks))
    }

    /// Goes on to the first block that is not all zeros; gives its header, if it has one. `None` if there is
    /// no such block.
    async fn skip_zeros(&mut self) -> Result<Option<Option<Header>>, NoLog> {
        while self.at < self.written {
            let block = self.ahead(1).await?;
            if block.iter().take(BLOCK).any(|byte| *byte != 0) {
                return Ok(Some(Header::read(block)));
            }
            self.pass(1);
        }
        Ok(None)
    }

    fn pass(&mut self, blocks: u64) {
        self.at += blocks;
        self.passed += blocks;
    }
}

/// Why there is no record in some place.
enum ReadError {
    Record(Unreadable),
    Drive(NoLog),
}

impl From<Unreadable> for ReadError {
    fn from(error: Unreadable) -> ReadError {
        ReadError::Record(error)
    }
}

impl From<NoLog> for ReadError {
    fn from(error: NoLog) -> ReadError {
        ReadError::Drive(error)
    }
}

/// Checks that a drive can hold its part of an array, as far as that does not change while the drive lives:
/// a superblock that was written to it does not ask for more.
fn fits(superblock: &Superblock, geometry: &Geometry) -> Result<(), Absurd> {
    let layout = superblock.layout();
    expect(superblock.zones <= geometry.zones.saturating_sub(META_ZONES), "zones", superblock.zones)?;
    let used_blocks = layout.rows * layout.chunk_blocks;
    expect(used_blocks <= geometry.zone_capacity_blocks, "rows", layout.rows)?;
    // A drive that is reached by another way may hide its ZRWA.
    if let (true, Some(zrwa)) = (layout.policy.uses_zrwa(), geometry.zrwa) {
        let needed = layout.window_blocks();
        expect(needed <= zrwa.size_blocks, "distance", layout.distance)?;
    }
    let room = log_blocks(geometry, superblock.policy);
    expect(superblock.log_blocks as u64 <= room, "log blocks", superblock.log_blocks)
}

/// The checkpoint of a metadata zone, and what lies behind it.
async fn read_head(
    device: &Rc<dyn ZonedDevice>,
    zone: u32,
    aggregate: u32,
) -> Result<(ReadLog, Reader<'_>), NoLog> {
    let report = device.submit(Command::Report { first: ZoneIndex(zone), count: 1 }).await;
    report.result.map_err(NoLog::Unreadable)?;
    let info = report.zones.first().copied().ok_or(NoLog::Foreign)?;
    let geometry = device.geometry();
    let written = match info.state {
        ZoneState::Empty => return Err(NoLog::Blank),
        ZoneState::Full | ZoneState::ReadOnly => geometry.zone_capacity_blocks,
        _ => info.wp_blocks.min(geometry.zone_capacity_blocks),
    };
    let start = geometry.start(ZoneIndex(zone)).0;
    let mut reader = Reader { device, start, written, at: 0, bytes: Vec::new(), passed: 0, unreadable: 0 };
    // A zone that was finished before anything was written in it reads as zeros.
    let header = match reader.skip_zeros().await? {
        None if reader.unreadable > 0 => return Err(NoLog::Damaged),
        None => return Err(NoLog::Blank),
        Some(None) => return Err(NoLog::Foreign),
        Some(Some(_)) if reader.at > 0 => return Err(NoLog::Damaged),
        Some(Some(header)) => header,
    };
    let origin = Origin { lba: start, ..header.origin };
    let (first, sequence, blocks) = reader.record(origin).await.map_err(|error| match error {
        ReadError::Record(error) => NoLog::from(error),
        ReadError::Drive(error) => error,
    })?;
    let Record::Checkpoint(checkpoint) = &first else { return Err(NoLog::Damaged) };
    let superblock = &checkpoint.superblock;
    // Read by another number of zones that are one than it was written by, it says nothing of the drive.
    if superblock.aggregate != aggregate {
        return Err(NoLog::Damaged);
    }
    let (role, array) = (origin.member, superblock.array);
    expect(array == origin.array, "array", array.0[0])
        .and_then(|()| expect((role as usize) < superblock.members.len(), "member", role))
        .and_then(|()| fits(superblock, geometry))
        .and_then(|()| first.check(sequence, superblock))
        .map_err(NoLog::Absurd)?;
    let mut live = Live::default();
    live.apply(&first, &checkpoint.superblock.layout());
    let (generation, policy) = (checkpoint.generation, checkpoint.superblock.policy);
    reader.written = reader.written.min(log_blocks(geometry, policy));
    reader.pass(blocks);
    let records = vec![(first, sequence)];
    Ok((ReadLog { origin, zone, generation, records, parities: 0, live, sequence, damaged: 0 }, reader))
}

impl ReadLog {
    /// Reads what follows the checkpoint.
    async fn read_on(&mut self, reader: &mut Reader<'_>) -> Result<(), NoLog> {
        let Some((Record::Checkpoint(checkpoint), _)) = self.records.first() else { return Ok(()) };
        let superblock = checkpoint.superblock.clone();
        let layout = superblock.layout();
        // Nothing is given back here.
        let mut pool = BufPool::default();
        // Nothing is appended behind a record that a power cut has torn, which takes the blocks below `torn`.
        let (mut gap, mut holes, mut torn) = (false, false, 0);
        while reader.at < reader.written {
            let origin = Origin { lba: reader.start + reader.at, ..self.origin };
            match reader.record(origin).await {
                Ok((record, sequence, blocks)) => {
                    record.check(sequence, &superblock).map_err(NoLog::Absurd)?;
                    self.live.apply(&record, &layout);
                    self.sequence = self.sequence.max(sequence);
                    holes |= gap;
                    match record {
                        Record::Parity(parity) => {
                            // A stripe is begun when the one `distance` before is safe.
                            let safe = parity.stripe.saturating_sub(layout.distance);
                            self.live.parity.forget(parity.zone, safe, &mut pool);
                            self.parities += 1;
                        }
                        _ => self.records.push((record, sequence)),
                    }
                    reader.pass(blocks);
                }
                Err(ReadError::Record(error @ (Unreadable::Absurd(_) | Unreadable::Features(_)))) => {
                    return Err(error.into());
                }
                Err(ReadError::Record(error)) => {
                    self.damaged += (error != Unreadable::NoRecord) as u32;
                    if !gap || error == Unreadable::Damaged {
                        let (may_be_torn, blocks) = reader.judge_damage(origin).await?;
                        holes |= !may_be_torn && reader.at >= torn;
                        torn = torn.max(reader.at + blocks);
                    }
                    gap = true;
                    reader.pass(1);
                }
                Err(ReadError::Drive(error)) => return Err(error),
            }
        }
        self.live.holes = holes || reader.unreadable > 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{format::tests::sane, raid::policy::zrwa::SlotPart, runtime::Runtime, zone::ZoneInfo};

    fn superblock(policy: Policy) -> Superblock {
        Superblock { policy, chunk_blocks: 4, aggregate: 1, ..sane(4) }
    }

    /// Parity of blocks of a slot of a stripe of zone 0.
    fn parity(epoch: u64, stripe: u64, SlotPart { index, from, to }: SlotPart) -> ParityRecord {
        let data = Buf::zeroed((to - from) as usize * BLOCK);
        ParityRecord { zone: 0, epoch, stripe, index: index as u32, from: from as u32, data }
    }

    fn tail(epoch: u64, generation: u32, tail_blocks: u64) -> TailRecord {
        TailRecord { zone: 0, generation, epoch, tail_blocks }
    }

    #[test]
    fn logged_parity_is_of_one_life_of_a_zone() {
        let mut logged = LoggedParity::default();
        logged.add(&parity(3, 1, SlotPart { index: 0, from: 1, to: 3 }), 4);
        let known =
            |epoch| (0..4).map(|block| logged.get(0, epoch, 1, 0, block).is_some()).collect::<Vec<_>>();
        assert_eq!(known(3), [false, true, true, false]);
        assert_eq!((known(2), known(4)), (vec![false; 4], vec![false; 4]));
    }

    #[test]
    fn the_newest_tail_counts_and_of_one_generation_the_largest() {
        let layout = superblock(Policy::InPlace).layout();
        let mut live = Live::default();
        let told = [
            (tail(3, 1, 9), 9),
            (tail(3, 1, 5), 9),
            (tail(3, 2, 4), 4),
            (tail(3, 1, 9), 4),
            (tail(4, 1, 2), 2),
        ];
        for (tail, counts) in told {
            live.apply(&Record::Tail(tail), &layout);
            assert_eq!(live.tails[&0].tail_blocks, counts, "{tail:?}");
        }
    }

    /// As in a zone, where it would be overwritten.
    #[test]
    fn a_version_in_the_log_replaces_those_before_it_and_a_generation_those_beyond_its_tail() {
        for policy in [Policy::Zrwa, Policy::InPlace] {
            let layout = superblock(policy).layout();
            let mut live = Live::default();
            let logged =
                |live: &Live| live.parity.of_zone(0, 3).map(|(_, index, at)| (index, at)).collect::<Vec<_>>();
            let record = |index, from, to| Record::Parity(parity(3, 0, SlotPart { index, from, to }));
            live.apply(&record(0, 0, 4), &layout);
            live.apply(&record(1, 0, 3), &layout);
            let before: &[(u64, u64)] = if policy == Policy::Zrwa { &[(0, 0), (0, 1), (0, 2)] } else { &[] };
            let kept = [before, &[(0, 3), (1, 0), (1, 1), (1, 2)]].concat();
            assert_eq!(logged(&live), kept, "{policy:?}");
            live.apply(&Record::Tail(tail(3, 0, 5)), &layout);
            assert_eq!(logged(&live), kept, "{policy:?}");
            live.apply(&Record::Tail(tail(3, 1, 5)), &layout);
            assert_eq!(logged(&live), [before, &[(0, 3), (1, 0)]].concat(), "{policy:?}");
        }
    }

    /// A drive with a metadata log in its first zone, some blocks of which cannot be read.
    struct Logged {
        geometry: Geometry,
        bytes: Vec<u8>,
        unreadable: BTreeSet<u64>,
    }

    impl ZonedDevice for Logged {
        fn geometry(&self) -> &Geometry {
            &self.geometry
        }

        fn submit(&self, command: Command) -> Completion {
            let wp_blocks = (self.bytes.len() / BLOCK) as u64;
            Completion::ready(match command {
                Command::Report { first, .. } => {
                    let (state, capacity_blocks) = match first.0 {
                        0 => (ZoneState::Closed, self.geometry.zone_capacity_blocks),
                        _ => (ZoneState::Empty, self.geometry.zone_capacity_blocks),
                    };
                    let info = ZoneInfo { zone: first, state, wp_blocks, capacity_blocks, zrwa: false };
                    Done { zones: vec![info], ..Done::ok() }
                }
                Command::Read { lba, data, .. } => {
                    if (lba.0..lba.0 + data.blocks()).any(|block| self.unreadable.contains(&block)) {
                        return Completion::failed(Status::UnrecoveredReadError);
                    }
                    Done::with_data(Buf::copy_of(&self.bytes[lba.0 as usize * BLOCK..][..data.len()]))
                }
                _ => Done::error(Status::InvalidOpcode.into()),
            })
        }
    }

    /// A log of a checkpoint and `records`; gives the block at which each begins, too.
    fn log_of(policy: Policy, records: &[Record]) -> (Logged, Vec<u64>) {
        let superblock = superblock(policy);
        let geometry = Geometry {
            zones: superblock.zones + META_ZONES,
            zone_size_blocks: 1 << 14,
            zone_capacity_blocks: 1 << 14,
            max_open: 9,
            max_active: 9,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 7,
            max_append_blocks: 0,
            volatile_cache: false,
        };
        let checkpoint = Checkpoint {
            generation: 1,
            incomplete: Default::default(),
            zones: vec![Default::default(); superblock.zones as usize],
            burned: Vec::new(),
            holes: Vec::new(),
            parity: Vec::new(),
            tails: Vec::new(),
            superblock,
        };
        let array = checkpoint.superblock.array;
        let (mut bytes, mut begins) = (Vec::new(), Vec::new());
        for (record, sequence) in [Record::Checkpoint(Box::new(checkpoint))].iter().chain(records).zip(20..) {
            begins.push((bytes.len() / BLOCK) as u64);
            let origin = Origin { array, member: 1, lba: (bytes.len() / BLOCK) as u64 };
            record.encode_to(&mut bytes, origin, sequence);
        }
        (Logged { geometry, bytes, unreadable: BTreeSet::new() }, begins[1..].to_vec())
    }

    fn read(log: Logged) -> ReadLog {
        let device: Rc<dyn ZonedDevice> = Rc::new(log);
        Runtime::new().block_on(read_log(&device, 1), || false).unwrap().unwrap_or_else(|_| panic!("no log"))
    }

    #[test]
    fn parity_of_all_stripes_in_the_window_is_kept_when_a_log_is_read() {
        let whole = |stripe| Record::Parity(parity(0, stripe, SlotPart { index: 0, from: 0, to: 4 }));
        let log = read(log_of(Policy::Zrwa, &[5, 6, 7, 8].map(whole)).0);
        let stripes: BTreeSet<u64> = log.live.parity.of_zone(0, 0).map(|(stripe, _, _)| stripe).collect();
        assert_eq!(stripes, BTreeSet::from([6, 7, 8]), "two stripes are in flight behind the last");
        assert!(!log.live.holes);
    }

    /// What a power cut leaves is a log that ends with a torn record, and no hole: anything else may have
    /// had something in it that counts.
    #[test]
    fn a_log_has_holes_where_no_power_cut_has_torn_it() {
        let single = Record::Tail(tail(0, 0, 3));
        let long = Record::Parity(parity(0, 0, SlotPart { index: 0, from: 0, to: 4 }));
        let damaged = |records: &[Record], which: usize| {
            let (mut log, begins) = log_of(Policy::Zrwa, records);
            // Behind the header of the record.
            log.bytes[begins[which] as usize * BLOCK + 70] ^= 1;
            read(log).live.holes
        };
        assert!(!damaged(&[single.clone(), long.clone()], 1));
        assert!(damaged(&[long.clone(), single.clone()], 0), "a record follows");
        assert!(damaged(&[long.clone(), single.clone()], 1), "nothing tears a single block");
        let unreadable = |records: &[Record], which: usize| {
            let (mut log, begins) = log_of(Policy::Zrwa, records);
            log.unreadable.insert(begins[which]);
            read(log).live.holes
        };
        assert!(unreadable(&[single, long], 1));
    }
}
