//! The metadata log of one member: two zones used in turn (docs/FORMAT.md).
//!
//! Records are appended one batch at a time. A record is durable when its completion succeeds; partial parity, after
//! the next flush. When the zone is full, a checkpoint of the complete state is written to the other zone, and the log
//! continues there. A checkpoint is valid as a whole or not at all; the zone with the newest valid one is the log.
//!
//! *A metadata zone that is worn* is moved to one of the last spare zones of the drive, as a zone of data is
//! ([`crate::adapt::spare`]). Its records carry the addresses of the worn zone. The new place is not recorded: recovery
//! searches these spare zones for logs, too, and uses the newest valid checkpoint. If no such zone is left, the log
//! continues in its zone while there is room, with a checkpoint behind its last record.
//!
//! The order of resets and finishes keeps a valid checkpoint on the member at every moment, and at most one metadata
//! zone active (two at creation and assembly, see [`MetaLog::checkpoint`]). A zone is reset as soon as the other one
//! has its checkpoint; the log waits for this reset only when it needs the zone.

use crate::{
    adapt::spare::SpareZoneDevice,
    buf::{BLOCK, Buf, BufPool},
    device::{
        Command, Completer, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice, Zones,
    },
    format::{
        Origin, Uuid,
        record::{Checkpoint, HEADER_BYTES, Header, Record, TAIL_BYTES, ZONE_BYTES},
        superblock::Superblock,
    },
    raid::{
        LogStep,
        generations::MOST_GENERATIONS,
        geometry::{Layout, META_ZONES},
        journal::logged::LiveRecords,
        policy::Policy,
        seat::Seat,
    },
    runtime::Gate,
    zone::{Lba, ZoneIndex, ZoneState, is_worn},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::{Rc, Weak},
};

/// Most blocks of a metadata zone that are used: this bounds the time that assembly takes to read the log. The policy
/// `log`, which logs much, uses the whole zone: to finish a zone early takes as long as to write the rest.
pub const LOG_BLOCKS: u64 = 16384;
/// Most attempts to append a claim to a log that another host is writing.
const CLAIM_ATTEMPTS: u32 = 64;
/// Most records that are written together.
const BATCH: usize = 32;

/// The array, as its logs use it.
pub trait LogOwner {
    /// The present drive of `member`.
    fn seat(&self, member: usize) -> Seat;

    /// Whether the log is that of the member's present drive.
    fn is_current(&self, member: usize, log: &MetaLog) -> bool;

    /// Called when a log could not be written.
    fn log_failed(&self, seat: Seat, error: DeviceError);

    /// Called when another host has claimed the array.
    fn claimed(&self);

    /// A checkpoint of the state of the array and the `live` records of a log, and the last sequence number.
    fn contents(&self, generation: u64, live: &LiveRecords) -> (Checkpoint, u64);
}

/// Values that all logs of an array share.
#[derive(Clone)]
pub struct LogContext {
    pub array: Uuid,
    pub layout: Layout,
    pub log_step: LogStep,
    pub slots: Rc<Slots>,
    pub pool: Rc<RefCell<BufPool>>,
}

/// A record to be written, or `None` for a checkpoint; its sequence number; and its completer.
type QueuedRecord = (Option<Record>, u64, Completer);

/// The running log of a member.
pub struct MetaLog {
    owner: Weak<dyn LogOwner>,
    context: LogContext,
    /// The drive itself, and the drive with moved zones in their places.
    pub drive: Rc<dyn ZonedDevice>,
    pub device: Rc<SpareZoneDevice>,
    member: usize,
    /// The metadata zone that is written, the next block in it, and (below) the generation of its checkpoint.
    zone: Cell<u32>,
    wp_blocks: Cell<u64>,
    /// End of the completed writes to that zone, where a claim of another host would lie; `u64::MAX` if not known.
    end: Cell<u64>,
    generation: Cell<u64>,
    /// Checksum of the checkpoint with which this log begins, once it is written.
    head: Cell<Option<u32>>,
    /// The reset of the other zone, if it has been submitted.
    pending_reset: Cell<Option<Completion>>,
    queue: RefCell<VecDeque<QueuedRecord>>,
    /// Buffer for encoded records.
    bytes: Cell<Vec<u8>>,
    pub live: RefCell<LiveRecords>,
    work: Gate,
    /// No more records are written.
    ended: Cell<bool>,
    /// Metadata zones (bits) of the drive that are known to be worn.
    worn: Cell<u32>,
    /// The other zone is worn and no spare zone replaces it: the log stays in its present zone.
    confined: Cell<bool>,
}

/// Whether an error may mean that the zone is worn.
fn may_be_worn(error: DeviceError) -> bool {
    use Status::*;
    let DeviceError::Status(status) = error else { return false };
    matches!(status, ZoneIsReadOnly | ZoneIsOffline | InvalidZoneStateTransition | WriteFault)
}

impl MetaLog {
    /// A log that continues after the log of `generation` that was read from `zone`; generation 0 if there was none.
    pub fn new(
        owner: Weak<dyn LogOwner>,
        context: LogContext,
        member: usize,
        (drive, device): (Rc<dyn ZonedDevice>, Rc<SpareZoneDevice>),
        (zone, generation): (u32, u64),
        live: LiveRecords,
    ) -> Rc<MetaLog> {
        Rc::new(MetaLog {
            owner,
            context,
            drive,
            device,
            member,
            zone: Cell::new(zone),
            // Nothing is appended to the log that was read: the new one starts with a checkpoint in the other zone.
            wp_blocks: Cell::new((generation > 0) as u64),
            end: Cell::new(u64::MAX),
            generation: Cell::new(generation),
            head: Cell::default(),
            pending_reset: Cell::default(),
            bytes: Cell::default(),
            queue: RefCell::default(),
            live: RefCell::new(live),
            work: Gate::default(),
            ended: Cell::default(),
            worn: Cell::default(),
            confined: Cell::default(),
        })
    }

    /// Continues after the records that were read, which end at this block of the zone; `place` is the spare zone in
    /// which the zone lies, if it has been moved.
    pub fn resume_at(&self, wp_blocks: u64, place: Option<u32>) {
        assert!(self.generation.get() > 0, "resumed a log that has no checkpoint");
        self.wp_blocks.set(wp_blocks);
        self.end.set(wp_blocks);
        if let Some(place) = place {
            self.device.place(ZoneIndex(self.zone.get()), place);
        }
    }

    /// Number of the checkpoint that the log begins with.
    pub fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Zone of the drive in which the present metadata zone lies.
    pub fn place(&self) -> u32 {
        self.device.places().get(&self.zone.get()).copied().unwrap_or(self.zone.get())
    }

    /// Determines which metadata zones of the drive are worn.
    pub async fn look_for_wear(&self) {
        let report = |zone| Command::Report { first: ZoneIndex(zone), count: 1 };
        for zone in 0..META_ZONES {
            let zones = self.device.submit(report(zone)).await.zones;
            let is_moved = self.device.places().contains_key(&zone);
            if is_moved || zones.first().is_some_and(|info| is_worn(info.state)) {
                self.worn.set(self.worn.get() | 1 << zone);
            }
        }
    }

    /// Metadata zones of the drive that are worn.
    pub fn worn(&self) -> impl Iterator<Item = u32> {
        let worn = self.worn.get();
        (0..META_ZONES).filter(move |zone| worn & (1 << zone) != 0)
    }

    /// Whether the log has to stay in its zone, since the other one is worn and no spare zone is left for it.
    pub fn is_confined(&self) -> bool {
        let places = self.device.places();
        self.confined.get()
            || self.worn().any(|zone| !places.contains_key(&zone)) && !self.device.has_reserve()
    }

    /// Queues a record; it is durable when the completion succeeds, partial parity after the next flush.
    pub fn append(&self, record: Record, sequence: u64) -> Completion {
        if self.context.log_step >= LogStep::Unsequenced && matches!(record, Record::Parity(_)) {
            return self.write_beside(record);
        }
        self.enqueue(Some(record), sequence)
    }

    /// Writes partial parity at once, without waiting for other records of the log; for measurements ([`LogStep`]).
    fn write_beside(&self, record: Record) -> Completion {
        let lba = Lba(self.lba(self.zone.get()).0 + self.wp_blocks.get());
        let data = match record {
            Record::Parity(parity) if self.context.log_step == LogStep::NoHeader => parity.data,
            record => record.encode(self.origin(lba.0), 0),
        };
        self.wp_blocks.set(self.wp_blocks.get() + data.blocks());
        self.device.submit(Command::write(lba, data, false))
    }

    /// Queues a checkpoint.
    pub fn renew(&self) -> Completion {
        self.enqueue(None, 0)
    }

    /// Queues a record or, without one, a checkpoint. A log that has ended takes neither.
    fn enqueue(&self, record: Option<Record>, sequence: u64) -> Completion {
        if self.ended.get() {
            return Completion::failed(DeviceError::Gone);
        }
        if let Some(record) = &record {
            self.live.borrow_mut().apply(record, &self.context.layout);
        }
        let (completer, completion) = self.context.slots.pair();
        self.queue.borrow_mut().push_back((record, sequence, completer));
        self.work.open();
        completion
    }

    /// Ends [`MetaLog::run`] when the queue is empty.
    pub fn end(&self) {
        self.ended.set(true);
        self.work.open();
    }

    /// Task: writes queued records, until the log is ended or the array is dropped.
    pub async fn run(self: Rc<Self>) {
        let mut batch = Vec::new();
        loop {
            let work = self.work.wait();
            let Some(owner) = self.owner.upgrade() else { return };
            {
                let mut queue = self.queue.borrow_mut();
                let count = queue.len().min(BATCH);
                batch.extend(queue.drain(..count));
            }
            if batch.is_empty() && self.ended.get() {
                return;
            }
            if batch.is_empty() {
                drop(owner);
                work.await;
                continue;
            }
            let seat = owner.seat(self.member);
            let result = match owner.is_current(self.member, &self) {
                true => self.write_batch(&*owner, &batch).await,
                false => Err(DeviceError::Gone),
            };
            if let Err(error) = result
                && owner.is_current(self.member, &self)
            {
                // A sound drive refuses a record if a claim of another host lies in its place.
                if matches!(error, DeviceError::Status(_)) && self.is_claimed().await {
                    owner.claimed();
                } else {
                    owner.log_failed(seat, error);
                }
            }
            for (_, _, completer) in batch.drain(..) {
                completer.complete(Done { result, ..Done::ok() });
            }
        }
    }

    /// Appends the records of a batch, or replaces them by a checkpoint if one is queued or they do not fit.
    async fn write_batch(&self, owner: &dyn LogOwner, batch: &[QueuedRecord]) -> Result<(), DeviceError> {
        let mut bytes = self.bytes.take();
        bytes.clear();
        let (mut renew, mut durable) = (false, false);
        for (record, sequence, _) in batch {
            let lba = self.lba(self.zone.get()).0 + self.wp_blocks.get() + (bytes.len() / BLOCK) as u64;
            match record {
                Some(record) => {
                    // Parity has to be as durable as the data that it covers: by the next flush.
                    durable |= !matches!(record, Record::Parity(_));
                    record.encode_to(&mut bytes, self.origin(lba), *sequence);
                }
                None => renew = true,
            }
        }
        let limit = match self.confined.get() {
            true => self.device.geometry().zone_capacity_blocks,
            false => log_blocks(self.device.geometry(), self.context.layout.policy),
        };
        let result = if renew || self.wp_blocks.get() + (bytes.len() / BLOCK) as u64 > limit {
            // The checkpoint contains the changes of the queued records: they were made before the records were queued.
            self.checkpoint(owner, false).await
        } else {
            match self.write(&bytes, durable).await {
                // A checkpoint in the other zone replaces these records.
                Err(error) if may_be_worn(error) => self.checkpoint(owner, false).await,
                result => result,
            }
        };
        self.bytes.set(bytes);
        result
    }

    /// Numbers of the spare zones of the drive that hold moved parts, by zone of the array.
    pub fn moved(&self) -> BTreeMap<u32, u32> {
        let data = self.device.places().into_iter().filter(|(zone, _)| *zone >= META_ZONES);
        data.map(|(zone, place)| (zone - META_ZONES, place)).collect()
    }

    /// Starts the other zone with a checkpoint of the complete state of the array and this log. `spare`: no zone is
    /// being repaired, so the log may use the active zone that is reserved for repairs. If there is no other zone, the
    /// checkpoint is appended to the present one.
    pub async fn checkpoint(&self, owner: &dyn LogOwner, spare: bool) -> Result<(), DeviceError> {
        loop {
            let before = (self.zone.get(), self.wp_blocks.get(), self.end.get());
            let error = match self.switch_zone(owner, spare).await {
                Err(error) if may_be_worn(error) => error,
                result => return result,
            };
            // A write that failed may have been carried out: the next checkpoint has a higher generation, and nothing
            // may be appended to the zone before it.
            let is_begun = self.zone.get() != before.0;
            self.zone.set(before.0);
            self.wp_blocks.set(before.1);
            self.end.set(before.2);
            // Only the zone that is to be written next is moved, whichever command has failed.
            match self.move_to_spare(1 - before.0).await {
                true => {}
                false if is_begun => return Err(error),
                false => return self.append_checkpoint(owner, error).await,
            }
        }
    }

    /// Moves a metadata zone to a spare zone; `false` if it is not worn, or no spare zone is left.
    async fn move_to_spare(&self, zone: u32) -> bool {
        let report = self.device.submit(Command::Report { first: ZoneIndex(zone), count: 1 }).await;
        if !report.zones.first().is_some_and(|info| is_worn(info.state)) {
            return false;
        }
        self.worn.set(self.worn.get() | 1 << zone);
        let Some(spare) = self.device.find_reserve().await else { return false };
        self.device.place(ZoneIndex(zone), spare.zone);
        true
    }

    /// Appends a checkpoint to the present zone; returns `error` if that has no room for it, or no checkpoint yet.
    async fn append_checkpoint(&self, owner: &dyn LogOwner, error: DeviceError) -> Result<(), DeviceError> {
        let (mut checkpoint, sequence) = owner.contents(self.generation.get(), &self.live.borrow());
        let places = self.device.places();
        checkpoint.moved = self.moved();
        let lba = self.lba(self.zone.get()).0 + self.wp_blocks.get();
        let bytes = Record::Checkpoint(Box::new(checkpoint)).encode(self.origin(lba), sequence);
        let end = self.wp_blocks.get() + bytes.blocks();
        if self.generation.get() == 0 || end > self.device.geometry().zone_capacity_blocks {
            return Err(error);
        }
        self.confined.set(true);
        self.write(&bytes, true).await?;
        self.device.keep(places);
        Ok(())
    }

    /// Starts the other zone with a checkpoint.
    async fn switch_zone(&self, owner: &dyn LogOwner, spare: bool) -> Result<(), DeviceError> {
        let (old, new) = (ZoneIndex(self.zone.get()), ZoneIndex(1 - self.zone.get()));
        let submit = |command| self.device.submit(command);
        let pending_reset = self.pending_reset.take();
        pending_reset.unwrap_or_else(|| submit(Command::Reset { zones: Zones::One(new) })).await.result?;
        // The array's limits leave room for one active metadata zone. If another active zone is to spare, the old zone
        // need not be finished, which takes as long as filling it.
        let open = Command::Open { zones: Zones::One(new), zrwa: false };
        let both = spare && self.wp_blocks.get() > 0 && submit(open).await.result.is_ok();
        if self.wp_blocks.get() > 0 && !both {
            let finished = submit(Command::Finish { zones: Zones::One(old) }).await.result;
            // A worn zone holds no active resources.
            finished.or_else(|error| if may_be_worn(error) { Ok(()) } else { Err(error) })?;
        }
        if !owner.is_current(self.member, self) {
            return Err(DeviceError::Gone);
        }
        let generation = self.generation.get() + 1;
        let (mut checkpoint, sequence) = owner.contents(generation, &self.live.borrow());
        let places = self.device.places();
        checkpoint.moved = self.moved();
        let lba = self.lba(new.0);
        let record = Record::Checkpoint(Box::new(checkpoint));
        let bytes = record.encode(self.origin(lba.0), sequence);
        if bytes.blocks() > log_blocks(self.device.geometry(), self.context.layout.policy) {
            return Err(Status::CapacityExceeded.into());
        }
        assert!(new.0 < META_ZONES && new != old, "metadata zone {} would follow zone {}", new.0, old.0);
        self.zone.set(new.0);
        self.wp_blocks.set(0);
        self.end.set(0);
        self.generation.set(generation);
        self.head.set(Header::read(&bytes).map(|header| header.crc));
        self.write(&bytes, true).await?;
        self.device.keep(places);
        self.confined.set(false);
        let mut reset = submit(Command::Reset { zones: Zones::One(old) });
        if both {
            reset = Completion::ready(reset.await);
        }
        self.pending_reset.set(Some(reset));
        Ok(())
    }

    /// Claims the array for this host: appends a record to the log that another host may be writing. A zone takes one
    /// write at its write pointer: if that is the claim, the next record of the other host fails, and if it is a record
    /// of that host, the claim fails. So no record of the other host is lost. Returns the block of the claim.
    ///
    /// # Errors
    /// The log has no room for the claim, or records of the other host have taken its place at every attempt.
    pub async fn claim(&self, host: Uuid, id: Uuid) -> Result<Lba, DeviceError> {
        let zone = ZoneIndex(self.zone.get());
        let mut result = Err(Status::ZoneIsFull.into());
        for _ in 0..CLAIM_ATTEMPTS {
            let report = self.device.submit(Command::Report { first: zone, count: 1 }).await;
            let Some(info) = report.zones.first() else { return Err(Status::InternalError.into()) };
            if info.state == ZoneState::Full || info.wp_blocks >= self.device.geometry().zone_capacity_blocks
            {
                return Err(Status::ZoneIsFull.into());
            }
            if !info.state.is_active() || info.wp_blocks == 0 {
                // The other host has moved its log to the other zone.
                return Err(Status::ZoneInvalidWrite.into());
            }
            let lba = Lba(self.lba(zone.0).0 + info.wp_blocks);
            let bytes = Record::Claim { host, id }.encode(self.origin(lba.0), 0);
            self.wp_blocks.set(info.wp_blocks);
            result = self.write(&bytes, true).await.map(|()| lba);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// The id of the claim in this block; `None` if there is none, or the block cannot be read.
    async fn claim_at(&self, lba: Lba) -> Option<Uuid> {
        let done = self.device.submit(Command::read(lba, Buf::zeroed(BLOCK))).await;
        done.result.ok()?;
        match Record::read(&done.data, self.origin(lba.0)) {
            Ok((Record::Claim { id, .. }, _, _)) => Some(id),
            _ => None,
        }
    }

    /// Whether the claim with this id is still in this block.
    pub async fn holds_claim(&self, lba: Lba, id: Uuid) -> bool {
        self.claim_at(lba).await == Some(id)
    }

    /// Whether there is a claim in the block behind the last record.
    async fn is_claimed(&self) -> bool {
        let end = self.end.get();
        end < self.device.geometry().zone_capacity_blocks
            && self.claim_at(Lba(self.lba(self.zone.get()).0 + end)).await.is_some()
    }

    /// Whether the metadata zones have a valid checkpoint that this log has not written, or a claim after its records:
    /// another process has assembled the array, or is about to. Unreadable blocks are no evidence.
    pub async fn is_foreign(&self) -> bool {
        if self.is_claimed().await {
            return true;
        }
        for zone in 0..META_ZONES {
            let lba = self.lba(zone);
            let done = self.device.submit(Command::read(lba, Buf::zeroed(BLOCK))).await;
            let header = done.result.ok().and_then(|()| Header::read(&done.data));
            let Some(header) = header.filter(|header| header.origin == self.origin(lba.0)) else { continue };
            let generation = done.data.get(HEADER_BYTES..).and_then(|bytes| bytes.first_chunk());
            let generation = generation.map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let (own, head) = (self.generation.get(), self.head.get());
            if generation > own || generation == own && head.is_some_and(|head| head != header.crc) {
                return true;
            }
        }
        false
    }

    /// Appends whole blocks; they are durable on return if `durable`.
    async fn write(&self, bytes: &[u8], durable: bool) -> Result<(), DeviceError> {
        let geometry = self.device.geometry();
        assert!(bytes.len().is_multiple_of(BLOCK), "{} bytes are not whole blocks", bytes.len());
        // Where a flush follows, FUA is not needed. FUA does not cover earlier writes: a power cut could leave a record
        // after a gap.
        let fua = durable && !geometry.volatile_cache;
        for piece in bytes.chunks(geometry.max_transfer_blocks as usize * BLOCK) {
            let (from, blocks) = (self.wp_blocks.get(), (piece.len() / BLOCK) as u64);
            let capacity = geometry.zone_capacity_blocks;
            assert!(
                from + blocks <= capacity,
                "the log would write blocks {from}..{} of {capacity}",
                from + blocks
            );
            let lba = Lba(self.lba(self.zone.get()).0 + from);
            self.wp_blocks.set(from + blocks);
            let mut data = self.context.pool.borrow_mut().take((piece.len() / BLOCK) as u64);
            data.copy_from_slice(piece);
            let done = self.device.submit(Command::write(lba, data.freeze(), fua)).await;
            self.context.pool.borrow_mut().give(done.data);
            done.result?;
            self.end.set(from + blocks);
        }
        // Intact records may precede a torn record, but none may follow it.
        if durable && geometry.volatile_cache {
            self.device.submit(Command::Flush).await.result?;
        }
        Ok(())
    }

    fn lba(&self, zone: u32) -> Lba {
        self.device.geometry().start(ZoneIndex(zone))
    }

    fn origin(&self, lba: u64) -> Origin {
        Origin { array: self.context.array, member: self.member as u32, lba }
    }
}

/// Blocks of a metadata zone that may be used.
pub fn log_blocks(geometry: &Geometry, policy: Policy) -> u64 {
    match policy.writes_much_to_logs() {
        true => geometry.zone_capacity_blocks,
        false => geometry.zone_capacity_blocks.min(LOG_BLOCKS),
    }
}

/// Blocks that a checkpoint without relocated blocks may take, with the partial parity of every zone that can be
/// active, and room for further records.
pub fn checkpoint_blocks(superblock: &Superblock) -> u64 {
    let layout = superblock.layout();
    let table = (superblock.zones as u64 * ZONE_BYTES as u64).div_ceil(BLOCK as u64);
    let slots = layout.policy.logged_blocks(&layout);
    let generations = if superblock.logs_generations() { MOST_GENERATIONS * TAIL_BYTES } else { 0 };
    let generations = generations.div_ceil(BLOCK) as u64;
    2 + table + generations + superblock.max_active as u64 * slots + layout.chunk_blocks + 8
}
