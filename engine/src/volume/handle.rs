//! A volume, as its users have it.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{DeviceError, Status, ZonedDevice},
    evidence::Presence,
    qos::{AdmittedRequest, Qos},
    runtime::Runtime,
    volume::{
        address::Unit,
        error::{PoolError, VolumeError},
        options::{VolumeCreateOptions, VolumeOptions},
        part::VolumeOfPool,
        piece::{Codec, CompressionWorkers},
        recover,
        request::WriteTerms,
        root::SectorSize,
        shards,
        status::{SpaceUse, VolumeStatus},
        stored::StoredBlocks,
        thin::ThinSpace,
    },
    zone::ZoneIndex,
};
use std::{cell::RefCell, ops::Range, rc::Rc};

/// A block device on a zoned device, or one of a [`super::Pool`] of these. Clones are the same volume. Its tasks belong to
/// the runtime: they run, and keep the device, until [`Runtime::clear`].
#[derive(Clone)]
pub struct Volume {
    space: ThinSpace,
    /// Which part of the blocks it is; `None` for all of them.
    of_pool: Option<VolumeOfPool>,
}

impl Volume {
    /// All blocks of a space.
    pub(super) fn whole(space: ThinSpace) -> Volume {
        Volume { space, of_pool: None }
    }

    /// A volume of a pool.
    pub(super) fn of_pool(volume: VolumeOfPool) -> Volume {
        Volume { space: volume.space().clone(), of_pool: Some(volume) }
    }

    /// Creates a volume on an empty device, or on one on which a creation was interrupted.
    ///
    /// # Errors
    /// When the device cannot carry such a volume, is not empty, or fails.
    pub async fn create(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        options: VolumeCreateOptions,
    ) -> Result<(), VolumeError> {
        shards::create(runtime, device, options).await
    }

    /// Whether there is a volume of any format version on `device`, judged by its head zones (zones 0 and 1). Nothing
    /// is written. If the answer is [`Presence::Unknown`], nothing else may be written to the device either.
    ///
    /// # Errors
    /// When the device does not report its zones, or is gone.
    pub async fn is_on(device: Rc<dyn ZonedDevice>) -> Result<Presence, DeviceError> {
        recover::is_on(device).await
    }

    /// Opens the volume on `device`, and recovers it if it was not stopped. [`super::open()`] opens pools, too.
    ///
    /// # Errors
    /// When there is no volume, or it cannot be started.
    pub async fn open(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        options: VolumeOptions,
    ) -> Result<Volume, VolumeError> {
        let space = ThinSpace::open(runtime, device, options).await?;
        match space.pool() {
            None => Ok(Volume::whole(space)),
            Some(_) => Err(VolumeError::IsPool),
        }
    }

    /// Losses of possibly promised data that the start accepted ([`VolumeOptions::give_up`]); empty if nothing was
    /// lost.
    pub fn given_up(&self) -> Vec<VolumeError> {
        self.space.given_up()
    }

    /// Its name in a pool; of a snapshot, the part behind '@'.
    pub fn name(&self) -> Option<String> {
        self.of_pool.as_ref().map(VolumeOfPool::name)
    }

    /// Its number in a pool: the same until it is removed.
    pub fn slot(&self) -> Option<u32> {
        self.of_pool.as_ref().map(VolumeOfPool::slot)
    }

    /// Whether it is a snapshot in a pool: it cannot be changed.
    pub fn is_snapshot(&self) -> bool {
        self.of_pool.as_ref().is_some_and(|volume| volume.volume.number() > 0)
    }

    /// The snapshot of which it is a clone, as `VOLUME@SNAPSHOT`.
    pub fn clone_of(&self) -> Option<String> {
        let volume = self.of_pool.as_ref()?;
        volume.pool.below(&volume.volume).map(|snapshot| volume.pool.full_name(&snapshot))
    }

    /// UUID.
    pub fn uuid(&self) -> [u8; 16] {
        match &self.of_pool {
            Some(volume) => volume.with_record(|record| record.uuid),
            None => self.space.first().identity.uuid,
        }
    }

    /// Blocks of the extents that it has in a pool.
    pub fn allocated(&self) -> Option<u64> {
        self.of_pool.as_ref().map(VolumeOfPool::allocated)
    }

    /// Its space in a pool when [`super::Pool::space_use`] was last called.
    pub fn counted_space(&self) -> Option<SpaceUse> {
        self.of_pool.as_ref().and_then(|volume| volume.volume.counted_space.get())
    }

    /// Number of logical blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        self.of_pool.as_ref().map_or_else(|| self.space.blocks(), VolumeOfPool::blocks)
    }

    /// Size of a sector: the smallest write that users may make.
    pub fn sector(&self) -> SectorSize {
        match &self.of_pool {
            Some(volume) => volume.with_record(|record| record.sector),
            None => self.space.first().identity.sector,
        }
    }

    /// Reads blocks from `at` on into `data`, which must have no other references. Blocks that were never written, or
    /// were discarded, read as zeros.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn read(&self, at: u64, data: Buf) -> Result<Buf, DeviceError> {
        let Some(volume) = &self.of_pool else { return self.space.read(at, data).await };
        match volume.begin_plain(at, data.len(), false) {
            Some(request) => self.space.read(request.place, data).await,
            None => Box::pin(volume.read(at, data)).await,
        }
    }

    /// Reads blocks from `at` on, as [`Volume::read`] does, into buffers from `buffers`, one behind the other. Blocks that
    /// are on one drive in one piece, uncompressed, are not copied.
    ///
    /// # Errors
    /// As for [`Volume::read`].
    pub async fn read_parts(
        &self,
        at: u64,
        blocks: u64,
        buffers: &RefCell<BufPool>,
    ) -> Result<Vec<Buf>, DeviceError> {
        let Some(volume) = &self.of_pool else { return self.space.read_parts(at, blocks, buffers).await };
        match volume.begin_plain(at, blocks as usize * BLOCK, false) {
            Some(request) => self.space.read_parts(request.place, blocks, buffers).await,
            None => {
                let data = buffers.borrow_mut().take(blocks).freeze();
                Box::pin(volume.read(at, data)).await.map(|data| vec![data])
            }
        }
    }

    /// Writes blocks from `at` on. With `fua` they are durable at the return. The write of each block is atomic; their
    /// order is not guaranteed.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more; LBA Out of Range; Capacity Exceeded if there
    /// is not enough room, which never happens to overwrites unless blocks are compressed. A volume that is larger than
    /// its room reserves a sixteenth of the room for overwrites.
    pub async fn write(&self, at: u64, data: &Buf, fua: bool) -> Result<(), DeviceError> {
        let terms = |encoding| WriteTerms { fua, encoding, of_table: false, keep: None };
        let Some(volume) = &self.of_pool else {
            self.check_is_volume()?;
            return self.space.write(at, data, terms(self.space.encoding())).await;
        };
        match volume.begin_plain(at, data.len(), true) {
            Some(request) => self.space.write(request.place, data, terms(request.encoding)).await,
            None => Box::pin(volume.write(at, data, fua)).await,
        }
    }

    /// Makes all writes durable that have completed before the call.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn flush(&self) -> Result<(), DeviceError> {
        self.space.flush().await
    }

    /// Discards blocks from `at` on: they read as zeros and take no room. Only entries are written. Write Zeroes
    /// commands may be served in the same way.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn discard(&self, at: u64, blocks: u64) -> Result<(), DeviceError> {
        match &self.of_pool {
            Some(volume) => volume.discard(at, blocks).await,
            None => {
                self.check_is_volume()?;
                self.space.discard(at, blocks).await
            }
        }
    }

    /// Checks that these are not all blocks of a pool, which its volumes alone change.
    fn check_is_volume(&self) -> Result<(), DeviceError> {
        match self.space.pool() {
            Some(_) if self.of_pool.is_none() => Err(Status::InvalidField.into()),
            _ => Ok(()),
        }
    }

    /// Whether the block at `at` is mapped, and the length of the extent from there in which all blocks are mapped, or
    /// all are not: 1 to `most` blocks.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn extent(&self, at: u64, most: u64) -> Result<(bool, u64), DeviceError> {
        match &self.of_pool {
            Some(volume) => volume.extent(at, most).await,
            None => self.space.extent(at, most).await,
        }
    }

    /// Sets the codec and the largest unit for new data, `None` for no compression; existing data stays as it is. A
    /// write is cut into the largest units within it, up to `unit` and to the limit of the device, each of which is
    /// compressed by itself. A block that compresses less well than the one it overwrites takes more room, and may be
    /// refused: see [`Volume::write`]. The setting is durable at the return.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn compress(&self, codec: Option<Codec>, unit: Unit) -> Result<(), DeviceError> {
        if let Some(volume) = &self.of_pool {
            let unit = unit.min(self.space.largest_unit());
            return volume.set(move |record| (record.codec, record.unit) = (codec, unit)).await;
        }
        self.check_is_volume()?;
        self.space.compress(codec, unit).await
    }

    /// Enlarges the volume to `blocks` blocks, while it is used. If this is interrupted, a start finds the former or the
    /// new size.
    ///
    /// # Errors
    /// When the volume is larger, has several shards, or has no room for the larger map; those of the device.
    pub async fn grow(&self, blocks: u64) -> Result<(), VolumeError> {
        if let Some(volume) = &self.of_pool {
            return volume.grow(blocks).await;
        }
        self.check_is_volume().map_err(|_| VolumeError::IsPool)?;
        self.space.grow(blocks).await
    }

    /// Changes the size to `blocks` blocks, while the volume is used. A smaller size cuts off the end, which must not have
    /// data; requests for it wait meanwhile, and fail then. If this is interrupted, a start finds the former or the new
    /// size. Blocks that are added later read as zeros.
    ///
    /// # Errors
    /// As [`Volume::grow`]; when the end that would be cut off has data, in the volume, in one of its snapshots, or in the
    /// snapshot of which it is a clone; when it is no volume of a pool.
    pub async fn resize(&self, blocks: u64) -> Result<(), VolumeError> {
        match &self.of_pool {
            Some(volume) => volume.resize(blocks).await,
            None => self.grow(blocks).await,
        }
    }

    /// Sets for how many seconds a write waits for room; with 0 it fails at once. The server of the volume waits, since
    /// the engine has no clock. The setting is durable at the return.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn queue_writes(&self, seconds: u8) -> Result<(), DeviceError> {
        if let Some(volume) = &self.of_pool {
            volume.set(move |record| record.queue_seconds = seconds).await?;
            self.retry_refused();
            return Ok(());
        }
        self.check_is_volume()?;
        self.space.queue_writes(seconds).await
    }

    /// Changes limits, floors and latency class of the reads and writes of a volume of a pool. They hold at once, also for
    /// waiting requests, and are durable at the return.
    ///
    /// # Errors
    /// When it is no volume of a pool, or a floor is above its limit; those of the device, after which nothing can be
    /// written any more.
    pub async fn set_qos(&self, change: impl FnOnce(&mut Qos) + 'static) -> Result<(), VolumeError> {
        self.of_pool.as_ref().ok_or(PoolError::NotInPool)?.set_qos(change).await
    }

    /// Guarantees `blocks` blocks of room to a volume of a pool, with its snapshots: other volumes cannot take it, so writes
    /// are not refused for lack of room as long as the volume and its snapshots have no more blocks than that. 0 for none.
    /// Durable at the return.
    ///
    /// # Errors
    /// When it is no volume of a pool, or so much cannot be guaranteed; those of the device.
    pub async fn guarantee(&self, blocks: u64) -> Result<(), VolumeError> {
        let volume = self.of_pool.as_ref().ok_or(PoolError::NoGuarantee)?;
        volume.guarantee(blocks).await
    }

    /// Blocks of room that are guaranteed to it and its snapshots.
    pub fn guaranteed(&self) -> u64 {
        self.of_pool.as_ref().map_or(0, |volume| volume.with_record(|record| record.guaranteed))
    }

    /// Limits, floors and latency class of reads and writes; of a snapshot, those of its volume. Only volumes of a pool have
    /// any.
    pub fn qos(&self) -> Qos {
        self.of_pool.as_ref().map_or_else(Qos::default, VolumeOfPool::qos)
    }

    /// Whether users' reads and writes have to be admitted ([`Volume::admit`]): the volume has limits, or a volume of its
    /// pool has a floor or a latency class.
    pub fn needs_admission(&self) -> bool {
        self.of_pool.as_ref().is_some_and(VolumeOfPool::needs_admission)
    }

    /// Waits until a user's read or write of `blocks` blocks is within the limits, and as throttling requires. The server of
    /// the volume calls it before the request holds anything that other requests may need; [`Volume::answered`] has to
    /// follow. Without limits, floors and latency classes it neither waits nor reads the clock. `now_us` is the time in
    /// microseconds from an arbitrary origin, and `sleep` waits for a number of microseconds.
    pub async fn admit<F: Future<Output = ()>>(
        &self,
        blocks: u64,
        now_us: impl Fn() -> u64,
        sleep: impl Fn(u64) -> F,
    ) -> AdmittedRequest {
        match &self.of_pool {
            Some(volume) => volume.admit(blocks, now_us, sleep).await,
            None => AdmittedRequest::UNCOUNTED,
        }
    }

    /// Counts the completion of an admitted request of `blocks` blocks.
    pub fn answered(&self, admitted: AdmittedRequest, blocks: u64, now_us: impl Fn() -> u64) {
        if let Some(volume) = &self.of_pool {
            volume.answered(admitted, blocks, now_us);
        }
    }

    /// Allows writes to unmapped blocks to use `blocks` blocks of the reserve, at most all of it, until the next start.
    /// Replaces an earlier allowance; blocks that were written under that one stay.
    pub fn lend(&self, blocks: u64) {
        self.space.lend(blocks);
    }

    /// Waits until refused writes may have room: blocks were discarded, more of the reserve was lent, or
    /// [`Volume::retry_refused`] was called.
    pub async fn room_made(&self) {
        self.space.room_made().await;
    }

    /// Wakes all tasks that wait for room, to try again.
    pub fn retry_refused(&self) {
        self.space.retry_refused();
    }

    /// Sets the compression workers, to which data is offered from now on.
    pub fn employ(&self, workers: Rc<dyn CompressionWorkers>) {
        self.space.employ(workers);
    }

    /// Writes a checkpoint, so that a start has nothing to recover. No request may be in flight.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn stop(&self) -> Result<(), DeviceError> {
        self.space.checkpoint().await
    }

    /// Checks the live counts of the zones against the map, all of which is read. No request may be in flight.
    ///
    /// # Errors
    /// The first zone with a wrong count, or a page of the map that cannot be read.
    pub async fn audit(&self) -> Result<(), String> {
        self.space.audit().await
    }

    /// The logical blocks that are stored in blocks `ranges` of a zone of the device, and would be lost with them.
    pub async fn stored_in(&self, zone: ZoneIndex, ranges: &[Range<u64>]) -> StoredBlocks {
        let stored = self.space.stored_in(zone, ranges).await;
        match &self.of_pool {
            Some(volume) => volume.own(stored),
            None => stored,
        }
    }

    /// Whether the volume has more logical blocks than fit uncompressed.
    pub fn is_over_committed(&self) -> bool {
        self.space.is_over_committed()
    }

    /// State and statistics of the volume; of one in a pool, those of the pool with its own size and settings.
    pub fn status(&self) -> VolumeStatus {
        let mut all = self.space.status();
        if let Some(volume) = &self.of_pool {
            all.blocks = volume.blocks();
            volume.with_record(|record| {
                (all.sector, all.codec, all.unit) = (record.sector, record.codec, record.unit);
                (all.queue_seconds, all.guaranteed) = (record.queue_seconds, record.guaranteed);
            });
            all.qos = volume.qos();
            (all.held_to, all.out_of_reach) = volume.throttling();
        }
        all
    }
}
