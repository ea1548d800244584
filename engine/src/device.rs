//! The interface between the engine and everything that stores bytes.
//!
//! A [`ZonedDevice`] takes a [`Command`] and returns a [`Completion`]. Submission is eager: the order of calls is the
//! order on the wire. A command owns its buffers, and its completion gives them back. A command whose completion is
//! dropped is executed nevertheless, and owns its buffers until then. An array of devices is itself a `ZonedDevice`.

use crate::{
    buf::{BLOCK, Buf},
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::{
    cell::RefCell,
    future::Future,
    ops::Range,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// A zoned block device: a drive, an emulated drive, or an array of them.
pub trait ZonedDevice {
    /// Shape and limits of the device. Constant while it is open.
    fn geometry(&self) -> &Geometry;

    /// Starts `command`. Never blocks, never fails: errors are in the completion.
    fn submit(&self, command: Command) -> Completion;

    /// Reconstructs the block at `lba` from redundancy, as if the block that [`Command::Read`] returns were wrong.
    /// `attempt` numbers the possible reconstructions from 0; `None` beyond the last one. The caller's checksum decides
    /// which one is right.
    fn reread(&self, _lba: Lba, _attempt: u32) -> Option<Completion> {
        None
    }

    /// Longest note, in bytes, of a write of `blocks` blocks at `lba`; 0 if it cannot have one. A *note* is kept with the
    /// end of a zone: it is durable with the write, and the next write to the zone replaces or drops it.
    fn note_room(&self, _lba: Lba, _blocks: u64) -> usize {
        0
    }

    /// Writes `data` at `lba`, durably, with a note for which there is room ([`ZonedDevice::note_room`]). No crash leaves
    /// `data` below the write pointer without the note, unless later blocks of the zone are there, too.
    fn write_with_note(&self, _lba: Lba, _data: Buf, _note: Buf) -> Completion {
        Completion::failed(Status::InvalidField)
    }

    /// The note of the last write to a zone in which no write is in flight; `None` if that had none.
    fn note(&self, _zone: ZoneIndex) -> Option<Buf> {
        None
    }

    /// Number of *cells* of a zone: places of [`CELL_BLOCKS`] blocks beside the zone that can be overwritten, as long as the
    /// zone is active and has one written block. They end with the next write to the zone, or with its reset. 0 if the device
    /// has none.
    fn cells(&self) -> u32 {
        0
    }

    /// Writes a cell of a zone, durably. A crash during the write may leave old, new or torn content, a different one in
    /// each copy.
    fn write_cell(&self, _zone: ZoneIndex, _cell: u32, _data: Buf) -> Completion {
        Completion::failed(Status::InvalidField)
    }

    /// Reads a copy of a cell of a zone; `None` beyond the last cell or copy. The content of a cell that was not written since the
    /// last reset of the zone is undefined.
    fn read_cell(&self, _zone: ZoneIndex, _cell: u32, _copy: u32) -> Option<Completion> {
        None
    }

    /// Preferred write size in blocks, from the start of a zone on; 1 if the device has no preference.
    fn optimal_write_blocks(&self) -> u64 {
        1
    }

    /// Number of blocks, counted from the start of a zone, that are on one drive, as are those between any two multiples of
    /// it: a read of these alone is not copied. `u64::MAX` if that is so for all reads.
    fn direct_read_blocks(&self) -> u64 {
        u64::MAX
    }

    /// Count of power cycles and controller resets of the device: each may have lost completed writes that were not
    /// durable, or the contents of a ZRWA. The bits of [`LASTING_EPOCH`] are the same for every process that opens the
    /// device; the others count from its opening. `None` if the device gives no such evidence. Must be cheap: it is
    /// compared with every read.
    fn power_epoch(&self) -> Option<u64> {
        None
    }

    /// The checksums of the device's blocks, where they are stored in its zones.
    fn checksums(&self) -> Option<&dyn BlockChecksums> {
        None
    }

    /// Model, serial number and size of the device, as far as it reports them.
    fn drive_id(&self) -> DriveId {
        DriveId { size_bytes: self.geometry().size_bytes(), ..DriveId::default() }
    }
}

/// Blocks of a cell ([`ZonedDevice::cells`]).
pub const CELL_BLOCKS: u64 = 2;

/// Returns the present epoch of a zone.
pub type ZoneEpochs = Rc<dyn Fn(ZoneIndex) -> u64>;

/// Checksums of blocks that a device stores in its zones ([`crate::adapt::checksum`]). After the device has been opened,
/// blocks at the end of a zone may be *unverified*: their checksums are not known.
pub trait BlockChecksums {
    /// The blocks of a zone from the first unverified one to the last. Empty for a zone that was not reported.
    fn unverified(&self, zone: ZoneIndex) -> Range<u64>;

    /// Sets the checksums of the unverified blocks of a zone among those from block `at` on.
    fn set_unverified(&self, zone: ZoneIndex, at: u64, sums: &[u32]);

    /// The first block and the checksums of the blocks of a zone whose checksums are in memory alone; `None` if there are
    /// none.
    fn last_sums(&self, zone: ZoneIndex) -> Option<(u64, Vec<u32>)>;

    /// Reads that have returned a wrong block or met a wrong checksum block.
    fn wrong_reads(&self) -> u64;

    /// Sets the source of the present epoch of each zone, of which a checksum block is a part.
    fn set_epochs(&self, epochs: ZoneEpochs);

    /// Zone `to` holds the blocks of `zone` from now on: they have no checksums there if they had none before.
    fn move_zone(&self, zone: ZoneIndex, to: ZoneIndex);
}

/// Bits of [`ZonedDevice::power_epoch`] that do not depend on the calling process.
pub const LASTING_EPOCH: u64 = (1 << 48) - 1;

/// Model, serial number and size, as on the drive's label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveId {
    /// Empty if the drive does not report it.
    pub model: String,
    /// Empty if the drive does not report it.
    pub serial: String,
    /// Capacity in bytes.
    pub size_bytes: u64,
}

/// Shape and limits of a device. All sizes in blocks of [`crate::buf::BLOCK`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of zones.
    pub zones: u32,
    /// Distance between the starts of two zones.
    pub zone_size_blocks: u64,
    /// Writable blocks of a zone, from its start; at most `zone_size_blocks`.
    pub zone_capacity_blocks: u64,
    /// Most zones open at once; 0 for no limit.
    pub max_open: u32,
    /// Most zones open or closed at once; 0 for no limit.
    pub max_active: u32,
    /// The Zone Random Write Area, if the device has one.
    pub zrwa: Option<Zrwa>,
    /// Bytes of out-of-band metadata per block; 0 for none.
    pub oob_bytes: u32,
    /// Most blocks in a read or write.
    pub max_transfer_blocks: u32,
    /// Most blocks in an append; 0 where append is not supported.
    pub max_append_blocks: u32,
    /// Whether completed writes may be lost in a power cut until a flush completes.
    pub volatile_cache: bool,
}

/// The Zone Random Write Area of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zrwa {
    /// ZRWASZ: blocks from the write pointer on that may be written in any order, and again.
    pub size_blocks: u64,
    /// ZRWAFG: the write pointer moves by multiples of this.
    pub granularity_blocks: u64,
    /// NUMZRWA: most zones that hold one at the same time.
    pub max_zones: u32,
}

impl Geometry {
    /// Bytes that the device can hold.
    pub fn size_bytes(&self) -> u64 {
        (self.zones as u64 * self.zone_capacity_blocks).saturating_mul(BLOCK as u64)
    }

    /// The first block of `zone`.
    pub fn start(&self, zone: ZoneIndex) -> Lba {
        Lba(zone.0 as u64 * self.zone_size_blocks)
    }

    /// Checks the buffers of a read, a write or an append of at most `most` blocks; returns the number of blocks.
    ///
    /// # Errors
    /// Invalid Field unless `data` is 1 to `most` whole blocks, and `oob` covers all of them or is empty.
    pub fn check_buffers(&self, data: &Buf, oob: &Buf, most: u32) -> Result<u64, Status> {
        let blocks = data.blocks();
        let metadata = blocks as usize * self.oob_bytes as usize;
        let whole = data.len().is_multiple_of(BLOCK) && (oob.is_empty() || oob.len() == metadata);
        if whole && (1..=most as u64).contains(&blocks) { Ok(blocks) } else { Err(Status::InvalidField) }
    }

    /// The zone of `lba`, which may lie beyond the device, and the offset in it.
    pub fn locate(&self, lba: Lba) -> (ZoneIndex, u64) {
        let zone = lba.0 / self.zone_size_blocks;
        (ZoneIndex(zone.min(u32::MAX as u64) as u32), lba.0 % self.zone_size_blocks)
    }
}

/// One zone or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zones {
    /// This one.
    One(ZoneIndex),
    /// All that the command applies to.
    All,
}

/// A command to a device. Lengths come from the buffers, in whole blocks.
#[derive(Clone, Debug)]
pub enum Command {
    /// Fills `data`, which must have no other references. `oob` is empty or `oob_bytes` per block.
    Read {
        /// The first block.
        lba: Lba,
        /// The destination; returned, filled, in the completion.
        data: Buf,
        /// Metadata of the blocks, one after the other; empty for none.
        oob: Buf,
    },
    /// Writes `data` at `lba`. With `fua` it is durable at completion.
    Write {
        /// The first block.
        lba: Lba,
        /// Whole blocks.
        data: Buf,
        /// Metadata of the blocks, one after the other; empty for none.
        oob: Buf,
        /// Whether the write is durable when it completes.
        fua: bool,
    },
    /// Writes `data` at the write pointer of `zone`; the completion returns that address.
    Append {
        /// The zone to append to.
        zone: ZoneIndex,
        /// Whole blocks.
        data: Buf,
        /// Metadata of the blocks, one after the other; empty for none.
        oob: Buf,
        /// Whether the write is durable when it completes.
        fua: bool,
    },
    /// Makes every write that has completed so far durable.
    Flush,
    /// Opens zones explicitly. With `zrwa`, an empty zone gets a random write area.
    Open {
        /// Which zones.
        zones: Zones,
        /// Whether the zones get a ZRWA.
        zrwa: bool,
    },
    /// Closes open zones, which stay active.
    Close {
        /// Which zones.
        zones: Zones,
    },
    /// Makes zones full, at any fill level.
    Finish {
        /// Which zones.
        zones: Zones,
    },
    /// Empties zones.
    Reset {
        /// Which zones.
        zones: Zones,
    },
    /// Explicit ZRWA flush: moves the write pointer of the zone to the block after `last`.
    FlushZrwa {
        /// The last block that the write pointer is to pass.
        last: Lba,
    },
    /// Describes up to `count` zones from `first` on.
    Report {
        /// The first zone to be reported.
        first: ZoneIndex,
        /// How many zones, at most.
        count: u32,
    },
}

impl Command {
    /// The zone that the command concerns, which may lie beyond a device of this geometry; `None` for commands that concern
    /// several zones or none.
    pub fn zone(&self, geometry: &Geometry) -> Option<ZoneIndex> {
        match self {
            Command::Read { lba, .. } | Command::Write { lba, .. } | Command::FlushZrwa { last: lba } => {
                Some(geometry.locate(*lba).0)
            }
            Command::Append { zone, .. }
            | Command::Open { zones: Zones::One(zone), .. }
            | Command::Close { zones: Zones::One(zone) }
            | Command::Finish { zones: Zones::One(zone) }
            | Command::Reset { zones: Zones::One(zone) } => Some(*zone),
            _ => None,
        }
    }

    /// A read without out-of-band metadata.
    pub fn read(lba: Lba, data: Buf) -> Command {
        Command::Read { lba, data, oob: Buf::default() }
    }

    /// A write without out-of-band metadata.
    pub fn write(lba: Lba, data: Buf, fua: bool) -> Command {
        Command::Write { lba, data, oob: Buf::default(), fua }
    }

    /// An append without out-of-band metadata.
    pub fn append(zone: ZoneIndex, data: Buf, fua: bool) -> Command {
        Command::Append { zone, data, oob: Buf::default(), fua }
    }
}

/// The result of a command.
#[derive(Debug)]
pub struct Done {
    /// Success, or the error.
    pub result: Result<(), DeviceError>,
    /// The command's data buffer: filled by a successful read.
    pub data: Buf,
    /// The command's out-of-band buffer: filled by a successful read.
    pub oob: Buf,
    /// The address that an append was written at.
    pub lba: Lba,
    /// After a write or append to an array: everything below this block of its zone is complete.
    pub tail: u64,
    /// The zones that a report describes.
    pub zones: Vec<ZoneInfo>,
}

impl Done {
    /// Success without anything to give back.
    pub fn ok() -> Done {
        Done {
            result: Ok(()),
            data: Buf::default(),
            oob: Buf::default(),
            lba: Lba(0),
            tail: 0,
            zones: Vec::new(),
        }
    }

    /// Success, with the data buffer of the command.
    pub fn with_data(data: Buf) -> Done {
        Done { data, ..Done::ok() }
    }

    /// Failure.
    pub fn error(error: DeviceError) -> Done {
        Done { result: Err(error), ..Done::ok() }
    }
}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum DeviceError {
    /// The device refused the command or failed in it.
    #[error("{0}")]
    Status(Status),
    /// As [`DeviceError::Status`], with a status that has no name in this crate.
    #[error("status {0:03X}h")]
    UnknownStatus(u16),
    /// The device did not answer in time; the command may or may not have been executed.
    #[error("no answer within the time limit")]
    Timeout,
    /// The device is not there any more.
    #[error("the drive is gone")]
    Gone,
    /// The device has lost power or was reset, and may have lost completed writes.
    #[error("the drive has lost power or was reset")]
    PowerLost,
    /// The operating system failed the request; the number is its errno.
    #[error("I/O error {0}{meaning}", meaning = meaning(*.0))]
    Os(i32),
}

/// The meaning of an errno on Linux, for those that suggest a remedy; empty for others.
fn meaning(errno: i32) -> &'static str {
    match errno {
        12 => " (out of memory)",
        27 => " (the file is too large)",
        28 => " (no space left)",
        30 => " (the file system is read-only)",
        122 => " (the quota is used up)",
        _ => "",
    }
}

impl From<Status> for DeviceError {
    fn from(status: Status) -> DeviceError {
        DeviceError::Status(status)
    }
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// NVMe status by the names and values of the NVMe Base and Zoned Namespace
        /// specifications: status code type in bits 8–10, status code in bits 0–7.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Status { $(#[doc = $text] $(#[$doc])* $name = $value,)* }

        impl Status {
            /// Every status with a name in this crate.
            pub const ALL: &[Status] = &[$(Status::$name),*];

            /// The status with this value.
            pub fn from_value(value: u16) -> Option<Status> {
                match value { $($value => Some(Status::$name),)* _ => None }
            }

            /// The name in the specification.
            pub fn name(self) -> &'static str {
                match self { $(Status::$name => $text,)* }
            }
        }
    };
}

statuses! {
    InvalidOpcode = 0x001, "Invalid Command Opcode";
    InvalidField = 0x002, "Invalid Field in Command";
    DataTransferError = 0x004, "Data Transfer Error";
    InternalError = 0x006, "Internal Error";
    NamespaceIsWriteProtected = 0x020, "Namespace is Write Protected";
    LbaOutOfRange = 0x080, "LBA Out of Range";
    CapacityExceeded = 0x081, "Capacity Exceeded";
    NamespaceNotReady = 0x082, "Namespace Not Ready";
    InvalidZoneOperation = 0x1b6, "Invalid Zone Operation";
    ZrwaResourcesUnavailable = 0x1b7, "Zone Random Write Area Resources Unavailable";
    ZoneBoundaryError = 0x1b8, "Zone Boundary Error";
    ZoneIsFull = 0x1b9, "Zone Is Full";
    ZoneIsReadOnly = 0x1ba, "Zone Is Read Only";
    ZoneIsOffline = 0x1bb, "Zone Is Offline";
    ZoneInvalidWrite = 0x1bc, "Zone Invalid Write";
    TooManyActiveZones = 0x1bd, "Too Many Active Zones";
    TooManyOpenZones = 0x1be, "Too Many Open Zones";
    InvalidZoneStateTransition = 0x1bf, "Invalid Zone State Transition";
    WriteFault = 0x280, "Write Fault";
    UnrecoveredReadError = 0x281, "Unrecovered Read Error";
    AccessDenied = 0x286, "Access Denied";
    DeallocatedBlock = 0x287, "Deallocated or Unwritten Logical Block";
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:03X}h)", self.name(), *self as u16)
    }
}

/// The future result of a command. Resolves to [`Done`].
#[must_use = "a dropped completion is orphaned: its errors are lost"]
pub struct Completion(CompletionState);

enum CompletionState {
    Ready(Done),
    Pending(SlotRef),
    Taken,
}

/// The sending end of a [`Completion`]. Dropped without a result, it sends [`DeviceError::Gone`].
pub struct Completer(SlotRef);

/// Holds the result of a command until its future takes it.
#[derive(Default)]
struct CompletionSlot {
    done: RefCell<Option<Done>>,
    waker: RefCell<Option<Waker>>,
}

/// One of the two references to a slot; dropping the last one returns the slot to the pool.
struct SlotRef {
    slot: Option<Rc<CompletionSlot>>,
    slots: Rc<Slots>,
}

/// Pool of reusable slots, so that a command does not allocate once warm.
#[derive(Default)]
pub struct Slots(RefCell<Vec<Rc<CompletionSlot>>>);

impl Slots {
    /// A connected sender and future.
    pub fn pair(self: &Rc<Slots>) -> (Completer, Completion) {
        let slot = self.0.borrow_mut().pop().unwrap_or_default();
        let other = SlotRef { slot: Some(slot.clone()), slots: self.clone() };
        let this = SlotRef { slot: Some(slot), slots: self.clone() };
        (Completer(this), Completion(CompletionState::Pending(other)))
    }
}

impl SlotRef {
    fn get(&self) -> Option<&CompletionSlot> {
        self.slot.as_deref()
    }
}

impl Drop for SlotRef {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take()
            && Rc::strong_count(&slot) == 1
        {
            slot.done.borrow_mut().take();
            slot.waker.borrow_mut().take();
            self.slots.0.borrow_mut().push(slot);
        }
    }
}

impl Completer {
    /// Delivers the result, and wakes the waiting task.
    pub fn complete(self, done: Done) {
        self.answer(done);
    }

    fn answer(&self, done: Done) {
        if let Some(slot) = self.0.get() {
            *slot.done.borrow_mut() = Some(done);
            let waker = slot.waker.borrow_mut().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        // After `complete` the slot holds the result, or the completion has taken it and dropped its reference.
        let waiting =
            self.0.slot.as_ref().is_some_and(|s| Rc::strong_count(s) > 1 && s.done.borrow().is_none());
        if waiting {
            self.answer(Done::error(DeviceError::Gone));
        }
    }
}

impl Completion {
    /// A completion that has its result already.
    pub fn ready(done: Done) -> Completion {
        Completion(CompletionState::Ready(done))
    }

    /// A completion that has failed already.
    pub fn failed(error: impl Into<DeviceError>) -> Completion {
        Completion::ready(Done::error(error.into()))
    }

    /// Whether the command has succeeded, if its result is there and was not taken before.
    pub fn result(&self) -> Option<Result<(), DeviceError>> {
        match &self.0 {
            CompletionState::Pending(slot) => slot.get()?.done.borrow().as_ref().map(|done| done.result),
            CompletionState::Ready(done) => Some(done.result),
            CompletionState::Taken => None,
        }
    }

    /// Takes the result, if it is there and was not taken before.
    pub fn take(&mut self) -> Option<Done> {
        let done = match &self.0 {
            CompletionState::Pending(slot) => slot.get()?.done.borrow_mut().take()?,
            _ => match std::mem::replace(&mut self.0, CompletionState::Taken) {
                CompletionState::Ready(done) => return Some(done),
                _ => return None,
            },
        };
        self.0 = CompletionState::Taken;
        Some(done)
    }
}

impl Future for Completion {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done> {
        if let Some(done) = self.take() {
            return Poll::Ready(done);
        }
        if let CompletionState::Pending(slot) = &self.0
            && let Some(slot) = slot.get()
        {
            let mut waker = slot.waker.borrow_mut();
            match &mut *waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
        }
        Poll::Pending
    }
}
