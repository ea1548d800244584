//! The one seam between the engine and everything that stores bytes.
//!
//! A [`ZonedDevice`] takes a [`Command`] and returns a [`Completion`]. Submission is eager: the
//! order of calls is the order on the wire. A command owns its buffers and its completion gives
//! them back; dropping a completion orphans it, and frees nothing early. An array of devices is
//! itself a `ZonedDevice`.

use crate::{
    buf::{BLOCK, Buf},
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// Something that stores bytes in zones: a drive, an emulated drive, or an array of them.
pub trait ZonedDevice {
    /// What the device is. Constant while it is open.
    fn geometry(&self) -> &Geometry;

    /// Starts `command`. Never blocks, never fails: errors are in the completion.
    fn submit(&self, command: Command) -> Completion;

    /// Reconstructs the block at `lba` from redundancy, as if the block that [`Command::Read`] returns were wrong.
    /// `attempt` numbers the possible reconstructions from 0; `None` beyond the last one. The caller's checksum decides
    /// which one is right.
    fn reread(&self, _lba: Lba, _attempt: u32) -> Option<Completion> {
        None
    }

    /// Writes of so many blocks, that far apart from the start of a zone on, cost least; 1 where it is all the same.
    fn optimal_write_blocks(&self) -> u64 {
        1
    }

    /// Count of power cycles and controller resets of the device: each may have cost completed writes that were not
    /// safe, or the contents of a ZRWA. The bits of [`LASTING_EPOCH`] are the same for every process that opens the
    /// device; the others count from its opening. `None` if the device gives no such evidence. Must be cheap: it is
    /// compared with every read.
    fn power_epoch(&self) -> Option<u64> {
        None
    }

    /// What is written on the device, as far as it says so.
    fn plate(&self) -> Plate {
        Plate { size_bytes: self.geometry().size_bytes(), ..Plate::default() }
    }
}

/// Bits of [`ZonedDevice::power_epoch`] that do not depend on the process that asks.
pub const LASTING_EPOCH: u64 = (1 << 48) - 1;

/// What tells a drive from others to somebody who stands before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plate {
    /// Empty if the drive does not say, like `serial`.
    pub model: String,
    /// As the drive has it; empty if it says none.
    pub serial: String,
    /// What the drive can hold.
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
    /// ZRWASZ: blocks behind the write pointer that may be written in any order, and again.
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

    /// Checks the buffers of a read, a write or an append of `most` blocks at most; gives the blocks.
    ///
    /// # Errors
    /// Invalid Field, unless they are whole blocks, not too many, and metadata for all of them or none.
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

/// What a device can be asked to do. Lengths come from the buffers, in whole blocks.
#[derive(Clone, Debug)]
pub enum Command {
    /// Fills `data`, which nobody else may hold. `oob` is empty or `oob_bytes` per block.
    Read {
        /// The first block.
        lba: Lba,
        /// Taken for the bytes that are read, and given back with them.
        data: Buf,
        /// Metadata of the blocks, one after the other; empty for none.
        oob: Buf,
    },
    /// Writes `data` at `lba`. With `fua` it is safe from power cuts at completion.
    Write {
        /// The first block.
        lba: Lba,
        /// Whole blocks.
        data: Buf,
        /// Metadata of the blocks, one after the other; empty for none.
        oob: Buf,
        /// Whether it is to be safe when it completes.
        fua: bool,
    },
    /// Writes `data` at the write pointer of `zone`; the completion says where that was.
    Append {
        /// The zone to append to.
        zone: ZoneIndex,
        /// Whole blocks.
        data: Buf,
        /// Metadata of the blocks, one after the other; empty for none.
        oob: Buf,
        /// Whether it is to be safe when it completes.
        fua: bool,
    },
    /// Makes every write that has completed so far safe from power cuts.
    Flush,
    /// Opens zones explicitly. With `zrwa`, an empty zone gets a random write area.
    Open {
        /// Which zones.
        zones: Zones,
        /// Whether the zones get a ZRWA.
        zrwa: bool,
    },
    /// Lets open zones go, which stay active.
    Close {
        /// Which zones.
        zones: Zones,
    },
    /// Has zones be full, whatever is in them.
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

/// What came of a command.
#[derive(Debug)]
pub struct Done {
    /// What has come of it.
    pub result: Result<(), DeviceError>,
    /// The command's data buffer: filled by a successful read.
    pub data: Buf,
    /// The command's out-of-band buffer: filled by a successful read.
    pub oob: Buf,
    /// Where an append landed.
    pub lba: Lba,
    /// After a write or append to an array: everything below this block of its zone is complete.
    pub tail: u64,
    /// What a report found.
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

/// Why a device did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum DeviceError {
    /// The device refused the command or failed in it.
    #[error("{0}")]
    Status(Status),
    /// As before, with a status that has no name here.
    #[error("status {0:03X}h")]
    UnknownStatus(u16),
    /// The device did not answer in time; the command may or may not have been carried out.
    #[error("no answer within the time limit")]
    Timeout,
    /// The device is not there any more.
    #[error("the drive is gone")]
    Gone,
    /// The device has lost power or was reset, and completed writes with that.
    #[error("the drive has lost power or was reset")]
    PowerLost,
    /// The operating system failed the request; the number is its errno.
    #[error("I/O error {0}{meaning}", meaning = meaning(*.0))]
    Os(i32),
}

/// What Linux means by an errno, of those that say what may help.
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
            /// Every status this crate knows.
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
#[must_use = "a dropped completion is orphaned: nobody learns of its errors"]
pub struct Completion(State);

enum State {
    Ready(Done),
    Pending(SlotRef),
    Taken,
}

/// The other end of a [`Completion`]. Dropped without an answer, it answers [`DeviceError::Gone`].
pub struct Completer(SlotRef);

/// Where the answer waits for its future.
#[derive(Default)]
struct Slot {
    done: RefCell<Option<Done>>,
    waker: RefCell<Option<Waker>>,
}

/// One of the two references to a slot; the last one to go gives the slot back.
struct SlotRef {
    slot: Option<Rc<Slot>>,
    slots: Rc<Slots>,
}

/// Slots to use again, so that a command costs no allocation once warm.
#[derive(Default)]
pub struct Slots(RefCell<Vec<Rc<Slot>>>);

impl Slots {
    /// A connected pair.
    pub fn pair(self: &Rc<Slots>) -> (Completer, Completion) {
        let slot = self.0.borrow_mut().pop().unwrap_or_default();
        let other = SlotRef { slot: Some(slot.clone()), slots: self.clone() };
        let this = SlotRef { slot: Some(slot), slots: self.clone() };
        (Completer(this), Completion(State::Pending(other)))
    }
}

impl SlotRef {
    fn get(&self) -> Option<&Slot> {
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
    /// Answers, and wakes whoever waits.
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
        // `complete` leaves its answer behind, or it has been taken and nobody else looks.
        let waiting =
            self.0.slot.as_ref().is_some_and(|s| Rc::strong_count(s) > 1 && s.done.borrow().is_none());
        if waiting {
            self.answer(Done::error(DeviceError::Gone));
        }
    }
}

impl Completion {
    /// A completion that is there already.
    pub fn ready(done: Done) -> Completion {
        Completion(State::Ready(done))
    }

    /// A completion that has failed already.
    pub fn failed(error: impl Into<DeviceError>) -> Completion {
        Completion::ready(Done::error(error.into()))
    }

    /// The answer, if it is there and was not taken before.
    pub fn take(&mut self) -> Option<Done> {
        let done = match &self.0 {
            State::Pending(slot) => slot.get()?.done.borrow_mut().take()?,
            _ => match std::mem::replace(&mut self.0, State::Taken) {
                State::Ready(done) => return Some(done),
                _ => return None,
            },
        };
        self.0 = State::Taken;
        Some(done)
    }
}

impl Future for Completion {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done> {
        if let Some(done) = self.take() {
            return Poll::Ready(done);
        }
        if let State::Pending(slot) = &self.0
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
