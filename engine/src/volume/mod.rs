//! A block device on one zoned device: blocks of 4 KiB, written in any order.
//!
//! docs/VOLUME.md is the design: the on-disk layout, why recovery is exact, and the requirements on the device. In
//! reading order: `format`, `map`, `space` and `victim` make decisions and never wait; `stream` and `core` hold the
//! state of a running volume; `request`, `checkpoint`, `gc` and `recover` are its operations.

mod address;
mod audit;
mod checkpoint;
mod commit;
mod compress;
mod core;
mod error;
mod format;
mod gc;
mod map;
mod options;
mod piece;
mod recover;
mod request;
mod scan;
mod space;
mod status;
mod stream;
mod victim;
mod waiting;

pub use self::{
    address::Unit,
    error::{NoVolume, VolumeError},
    format::SectorSize,
    options::{VolumeCreateOptions, VolumeOptions},
    piece::{Codec, CompressionJob, CompressionWorkers, Level, PendingJob, PieceEncoder},
    space::{Plan, pages_in},
    status::{VolumeStatus, WrittenBlocks},
    victim::Choice,
};

use self::core::VolumeCore;
use crate::{
    buf::Buf,
    device::{DeviceError, ZonedDevice},
    evidence::Presence,
    runtime::Runtime,
};
use std::rc::Rc;

/// A block device on a zoned device. Clones are the same volume. Its tasks belong to the runtime: they run, and keep
/// the device, until [`Runtime::clear`].
#[derive(Clone)]
pub struct Volume(Rc<VolumeCore>);

impl Volume {
    /// Creates a volume on an empty device, or on one on which a creation was interrupted.
    ///
    /// # Errors
    /// When the device cannot carry such a volume, is not empty, or fails.
    pub async fn create(
        device: Rc<dyn ZonedDevice>,
        options: VolumeCreateOptions,
    ) -> Result<(), VolumeError> {
        recover::create(device, options).await
    }

    /// Whether there is a volume of any format version on `device`, judged by its head zones (zones 0 and 1). Nothing
    /// is written. If the answer is [`Presence::Unknown`], nothing else may be written to the device either.
    ///
    /// # Errors
    /// When the device does not report its zones, or is gone.
    pub async fn is_on(device: Rc<dyn ZonedDevice>) -> Result<Presence, DeviceError> {
        recover::is_on(device).await
    }

    /// Opens the volume on `device`, and recovers it if it was not stopped.
    ///
    /// # Errors
    /// When there is no volume, or it cannot be started.
    pub async fn open(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        options: VolumeOptions,
    ) -> Result<Volume, VolumeError> {
        let core = Rc::new(recover::open(device, options).await?);
        for index in 0..3 {
            runtime.spawn(commit::serve(core.clone(), index));
        }
        runtime.spawn(checkpoint::keep(core.clone()));
        runtime.spawn(gc::collect(core.clone()));
        Ok(Volume(core))
    }

    /// Losses of possibly promised data that the start accepted ([`VolumeOptions::give_up`]); empty if nothing was
    /// lost.
    pub fn given_up(&self) -> &[VolumeError] {
        &self.0.given_up
    }

    /// Number of logical blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        self.0.identity.blocks
    }

    /// Size of a sector: the smallest write that users may make.
    pub fn sector(&self) -> SectorSize {
        self.0.identity.sector
    }

    /// Reads blocks from `at` on into `data`, which must have no other references. Blocks that were never written, or
    /// were discarded, read as zeros.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn read(&self, at: u64, data: Buf) -> Result<Buf, DeviceError> {
        request::read(&self.0, at, data).await
    }

    /// Writes blocks from `at` on. With `fua` they are durable at the return. The write of each block is atomic; their
    /// order is not guaranteed.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more; LBA Out of Range; Capacity Exceeded if there
    /// is not enough room, which never happens to overwrites unless blocks are compressed. A volume that is larger than
    /// its room reserves a sixteenth of the room for overwrites.
    pub async fn write(&self, at: u64, data: &Buf, fua: bool) -> Result<(), DeviceError> {
        request::write(&self.0, at, data, fua).await
    }

    /// Makes all writes durable that have completed before the call.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn flush(&self) -> Result<(), DeviceError> {
        request::flush(&self.0).await
    }

    /// Discards blocks from `at` on: they read as zeros and take no room. Only entries are written. Write Zeroes
    /// commands may be served in the same way.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn discard(&self, at: u64, blocks: u64) -> Result<(), DeviceError> {
        request::discard(&self.0, at, blocks).await
    }

    /// Whether the block at `at` is mapped, and the length of the extent from there in which all blocks are mapped, or
    /// all are not: 1 to `most` blocks.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn extent(&self, at: u64, most: u64) -> Result<(bool, u64), DeviceError> {
        request::extent(&self.0, at, most).await
    }

    /// Sets the codec and the largest unit for new data, `None` for no compression; existing data stays as it is. A
    /// write is cut into the largest units within it, up to `unit` and to the limit of the device, each of which is
    /// compressed by itself. A block that compresses less well than the one it overwrites takes more room, and may be
    /// refused: see [`Volume::write`]. The setting is durable at the return.
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

    /// Sets for how many seconds a write waits for room; with 0 it fails at once. The server of the volume waits, since
    /// the engine has no clock. The setting is durable at the return.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn queue_writes(&self, seconds: u8) -> Result<(), DeviceError> {
        self.0.state.borrow_mut().queue_seconds = seconds;
        self.retry_refused();
        self.0.request_checkpoint().await
    }

    /// Allows writes to unmapped blocks to use `blocks` blocks of the reserve, at most all of it, until the next start.
    /// Replaces an earlier allowance; blocks that were written under that one stay.
    pub fn lend(&self, blocks: u64) {
        self.0.state.borrow_mut().space.lend(blocks);
        self.retry_refused();
    }

    /// Waits until refused writes may have room: blocks were discarded, more of the reserve was lent, or
    /// [`Volume::retry_refused`] was called.
    pub async fn room_made(&self) {
        waiting::room_made(&self.0).await;
    }

    /// Wakes all tasks that wait for room, to try again.
    pub fn retry_refused(&self) {
        self.0.freed.open();
    }

    /// Sets the compression workers, to which data is offered from now on.
    pub fn employ(&self, workers: Rc<dyn CompressionWorkers>) {
        *self.0.workers.borrow_mut() = Some(workers);
    }

    /// Writes a checkpoint, so that a start has nothing to recover. No request may be in flight.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn stop(&self) -> Result<(), DeviceError> {
        self.0.request_checkpoint().await
    }

    /// Checks the live counts of the zones against the map, all of which is read. No request may be in flight.
    ///
    /// # Errors
    /// The first zone with a wrong count, or a page of the map that cannot be read.
    pub async fn audit(&self) -> Result<(), String> {
        audit::audit(&self.0).await
    }

    /// Whether the volume has more logical blocks than fit uncompressed.
    pub fn is_over_committed(&self) -> bool {
        self.0.state.borrow().space.plan().reserve > 0
    }

    /// State and statistics of the volume.
    pub fn status(&self) -> VolumeStatus {
        self.0.status()
    }
}
