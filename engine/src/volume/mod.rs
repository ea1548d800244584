//! A block device on one zoned device: blocks of 4 KiB, written in any order.
//!
//! docs/VOLUME.md is the design: what lies where, why recovery is exact, and what is asked of the device. In
//! reading order: `format`, `map`, `space` and `victim` decide without waiting for anything; `stream` and `core`
//! hold what a running volume knows; `request`, `checkpoint`, `collect` and `recover` are what it does.

mod audit;
mod behaviour;
mod checkpoint;
mod collect;
mod core;
mod error;
mod format;
mod landing;
mod look;
mod map;
mod pack;
mod packing;
mod place;
mod recover;
mod request;
mod space;
mod status;
mod stream;
mod victim;
mod waiting;

pub use self::{
    behaviour::{Behaviour, CreateOptions},
    error::{NoVolume, VolumeError},
    format::SectorSize,
    pack::{Codec, Crew, Level, Packer, Packing, Taken},
    place::Unit,
    space::{Plan, pages_in},
    status::{VolumeStatus, Written},
    victim::Choice,
};

use self::core::Core;
use crate::{
    buf::Buf,
    device::{DeviceError, ZonedDevice},
    evidence::Presence,
    runtime::Runtime,
};
use std::rc::Rc;

/// A block device on a zoned device. Clones are the same volume. Its tasks belong to the runtime: it lives, and
/// holds its device, until [`Runtime::clear`].
#[derive(Clone)]
pub struct Volume(Rc<Core>);

impl Volume {
    /// Makes a volume on an empty device.
    ///
    /// # Errors
    /// When there can be none, or the device is not empty.
    pub async fn create(device: Rc<dyn ZonedDevice>, options: CreateOptions) -> Result<(), VolumeError> {
        recover::create(device, options).await
    }

    /// Whether there is a volume on `device`, of whatever version: its head says so, and nobody else has to know.
    /// Nothing is written. Where the answer is [`Presence::Unknown`], nothing may be written by others either.
    ///
    /// # Errors
    /// When the device does not say how its zones are, or is gone.
    pub async fn is_on(device: Rc<dyn ZonedDevice>) -> Result<Presence, DeviceError> {
        recover::is_on(device).await
    }

    /// Finds the volume on `device`, and recovers it if it has not been stopped.
    ///
    /// # Errors
    /// When there is none, or it cannot be started.
    pub async fn open(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        behaviour: Behaviour,
    ) -> Result<Volume, VolumeError> {
        let core = Rc::new(recover::open(device, behaviour).await?);
        for index in 0..3 {
            runtime.spawn(landing::serve(core.clone(), index));
        }
        runtime.spawn(checkpoint::keep(core.clone()));
        runtime.spawn(collect::collect(core.clone()));
        Ok(Volume(core))
    }

    /// Why something may be lost that the volume had promised: given up at its start, since that was asked for
    /// ([`Behaviour::give_up`]).
    pub fn given_up(&self) -> &[VolumeError] {
        &self.0.given_up
    }

    /// Logical blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        self.0.identity.blocks
    }

    /// What its users may write at least.
    pub fn sector(&self) -> SectorSize {
        self.0.identity.sector
    }

    /// Reads blocks from `at` on into `data`, which nobody else may hold; what was never written, or
    /// discarded, gives zeros.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn read(&self, at: u64, data: Buf) -> Result<Buf, DeviceError> {
        self.0.read(at, data).await
    }

    /// Writes blocks from `at` on. With `fua` they are safe from power cuts at the return. Each block becomes
    /// what it is to be at once or not at all; their order is not promised.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more; LBA Out of Range; Capacity Exceeded
    /// where that would take more room than there is, which overwriting never does unless blocks are compressed. Of a
    /// volume that is larger than its room a sixteenth of that is kept for overwriting.
    pub async fn write(&self, at: u64, data: &Buf, fua: bool) -> Result<(), DeviceError> {
        self.0.write(at, data, fua).await
    }

    /// Everything that has completed before is safe from power cuts at the return.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush().await
    }

    /// Blocks from `at` on read as zeros and take no room. Nothing is written but that; it is also how zeros
    /// are written.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn discard(&self, at: u64, blocks: u64) -> Result<(), DeviceError> {
        self.0.discard(at, blocks).await
    }

    /// Whether the block at `at` takes room, and how many from there on are alike, `most` at most.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn extent(&self, at: u64, most: u64) -> Result<(bool, u64), DeviceError> {
        self.0.extent(at, most).await
    }

    /// New data is compressed so from now on, or not at all; what has been written stays as it is. A write is cut into
    /// the largest units that lie in it, up to `unit` and to what this device allows, each of which is compressed by
    /// itself. A block that compresses less than what it overwrites takes room, and may be refused: see [`Volume::write`]. Safe
    /// from power cuts at the return.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn compress(&self, codec: Option<Codec>, unit: Unit) -> Result<(), DeviceError> {
        {
            let mut state = self.0.state.borrow_mut();
            (state.codec, state.unit) = (codec, unit.min(state.space.plan().unit));
        }
        self.0.request_checkpoint().await
    }

    /// Has a write that finds no room wait so many seconds for some, or fail at once. Who serves the volume waits, since
    /// there is no clock here. Safe from power cuts at the return.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn queue_writes(&self, seconds: u8) -> Result<(), DeviceError> {
        self.0.state.borrow_mut().queue_seconds = seconds;
        self.retry_refused();
        self.0.request_checkpoint().await
    }

    /// Lends blocks that are not mapped so many blocks of the reserve, or all of it, until the next start. What was lent
    /// before is not lent any more, and what has been taken of it stays.
    pub fn lend(&self, blocks: u64) {
        self.0.state.borrow_mut().space.lend(blocks);
        self.retry_refused();
    }

    /// Waits until there may be room for what was refused: something was discarded, or more of the reserve was lent.
    pub async fn room_made(&self) {
        self.0.room_made().await;
    }

    /// Has all who wait for room look again.
    pub fn retry_refused(&self) {
        self.0.freed.open();
    }

    /// Has blocks that are to be compressed be offered to `crew` from now on.
    pub fn employ(&self, crew: Rc<dyn Crew>) {
        *self.0.crew.borrow_mut() = Some(crew);
    }

    /// Writes a checkpoint, so that a start has nothing to recover. No request may be on its way.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn stop(&self) -> Result<(), DeviceError> {
        self.0.request_checkpoint().await
    }

    /// Compares the books with the map, all of which is read. No request may be on its way.
    ///
    /// # Errors
    /// Where they differ.
    pub async fn audit(&self) -> Result<(), String> {
        self.0.audit().await
    }

    /// Whether it is larger than its room, so that what is mapped may be more than what there is room for.
    pub fn is_over_committed(&self) -> bool {
        self.0.state.borrow().space.plan().reserve > 0
    }

    /// How it is.
    pub fn status(&self) -> VolumeStatus {
        self.0.status()
    }
}
