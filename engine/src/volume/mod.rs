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
mod grow;
mod map;
mod options;
mod piece;
mod recover;
mod request;
mod scan;
mod shards;
mod space;
mod status;
mod stored;
mod stream;
mod victim;
mod waiting;

pub use self::{
    address::Unit,
    error::{NoVolume, VolumeError},
    format::SectorSize,
    options::{VolumeCreateOptions, VolumeOptions},
    piece::{Codec, CompressionJob, CompressionWorkers, Level, PendingJob, PieceEncoder},
    shards::VolumePlan,
    space::pages_in,
    status::{VolumeStatus, WrittenBlocks},
    stored::StoredBlocks,
    victim::Choice,
};

use self::{core::VolumeCore, shards::ShardMap};
use crate::{
    buf::{BLOCK, Buf},
    device::{DeviceError, ZonedDevice},
    evidence::Presence,
    runtime::{Runtime, all, first_of},
    zone::ZoneIndex,
};
use std::{ops::Range, rc::Rc};

/// A block device on a zoned device. Clones are the same volume. Its tasks belong to the runtime: they run, and keep
/// the device, until [`Runtime::clear`].
#[derive(Clone)]
pub struct Volume(Rc<VolumeShards>);

struct VolumeShards {
    /// At least one.
    cores: Vec<Rc<VolumeCore>>,
    map: ShardMap,
}

impl Volume {
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

    /// Opens the volume on `device`, and recovers it if it was not stopped.
    ///
    /// # Errors
    /// When there is no volume, or it cannot be started.
    pub async fn open(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        options: VolumeOptions,
    ) -> Result<Volume, VolumeError> {
        let (cores, map) = shards::open(runtime, device, options).await?;
        let cores: Vec<_> = cores.into_iter().map(Rc::new).collect();
        for core in &cores {
            for index in 0..3 {
                runtime.spawn(commit::serve(core.clone(), index));
            }
            runtime.spawn(checkpoint::keep(core.clone()));
            runtime.spawn(gc::collect(core.clone()));
        }
        Ok(Volume(Rc::new(VolumeShards { cores, map })))
    }

    /// The first shard, which has all properties that the shards have in common.
    fn first(&self) -> &VolumeCore {
        &self.0.cores[0]
    }

    /// The shard with the block at `at`, if it has all `blocks` blocks from there on, and the number of the block there.
    /// The first shard for blocks that the volume does not have.
    fn shard_of(&self, at: u64, blocks: u64) -> Option<(&VolumeCore, u64)> {
        if self.0.cores.len() == 1 || at.saturating_add(blocks) > self.blocks() || blocks == 0 {
            return Some((self.first(), at));
        }
        let (shard, place, left) = self.0.map.find(at);
        (blocks <= left).then(|| (&*self.0.cores[shard], place))
    }

    /// The parts of `blocks` blocks from `at` on that are each in one shard: the shard, the number of the first block
    /// there, and the blocks of the request.
    fn parts(&self, at: u64, blocks: u64) -> impl Iterator<Item = (&VolumeCore, u64, Range<u64>)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            if next == blocks {
                return None;
            }
            let (shard, place, left) = self.0.map.find(at + next);
            let part = next..blocks.min(next + left);
            next = part.end;
            Some((&*self.0.cores[shard], place, part))
        })
    }

    /// Losses of possibly promised data that the start accepted ([`VolumeOptions::give_up`]); empty if nothing was
    /// lost.
    pub fn given_up(&self) -> Vec<VolumeError> {
        self.0.cores.iter().flat_map(|core| core.given_up.iter().cloned()).collect()
    }

    /// Number of logical blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        match &self.0.cores[..] {
            // Only a volume of one shard grows.
            [core] => core.blocks.get(),
            _ => self.0.map.blocks(),
        }
    }

    /// Size of a sector: the smallest write that users may make.
    pub fn sector(&self) -> SectorSize {
        self.first().identity.sector
    }

    /// Reads blocks from `at` on into `data`, which must have no other references. Blocks that were never written, or
    /// were discarded, read as zeros.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn read(&self, at: u64, data: Buf) -> Result<Buf, DeviceError> {
        if let Some((core, at)) = self.shard_of(at, data.blocks()) {
            return request::read(core, at, data).await;
        }
        let mut data = data.into_mut();
        for (core, place, part) in self.parts(at, data.blocks()) {
            let read =
                request::read(core, place, Buf::zeroed((part.end - part.start) as usize * BLOCK)).await?;
            data[part.start as usize * BLOCK..part.end as usize * BLOCK].copy_from_slice(&read);
        }
        Ok(data.freeze())
    }

    /// Writes blocks from `at` on. With `fua` they are durable at the return. The write of each block is atomic; their
    /// order is not guaranteed.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more; LBA Out of Range; Capacity Exceeded if there
    /// is not enough room, which never happens to overwrites unless blocks are compressed. A volume that is larger than
    /// its room reserves a sixteenth of the room for overwrites.
    pub async fn write(&self, at: u64, data: &Buf, fua: bool) -> Result<(), DeviceError> {
        if let Some((core, at)) = self.shard_of(at, data.blocks()) {
            return request::write(core, at, data, fua).await;
        }
        for (core, place, part) in self.parts(at, data.blocks()) {
            request::write(core, place, &data.slice_blocks(part), fua).await?;
        }
        Ok(())
    }

    /// Makes all writes durable that have completed before the call.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn flush(&self) -> Result<(), DeviceError> {
        if let [core] = &self.0.cores[..] {
            return request::flush(core).await;
        }
        all(self.0.cores.iter().map(|core| request::flush(core))).await.into_iter().collect()
    }

    /// Discards blocks from `at` on: they read as zeros and take no room. Only entries are written. Write Zeroes
    /// commands may be served in the same way.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn discard(&self, at: u64, blocks: u64) -> Result<(), DeviceError> {
        if let Some((core, at)) = self.shard_of(at, blocks) {
            return request::discard(core, at, blocks).await;
        }
        for (core, place, part) in self.parts(at, blocks) {
            request::discard(core, place, part.end - part.start).await?;
        }
        Ok(())
    }

    /// Whether the block at `at` is mapped, and the length of the extent from there in which all blocks are mapped, or
    /// all are not: 1 to `most` blocks.
    ///
    /// # Errors
    /// Those of the device; LBA Out of Range.
    pub async fn extent(&self, at: u64, most: u64) -> Result<(bool, u64), DeviceError> {
        if let Some((core, at)) = self.shard_of(at, most) {
            return request::extent(core, at, most).await;
        }
        let (mut mapped, mut blocks) = (false, 0);
        for (core, place, part) in self.parts(at, most) {
            let (is_mapped, there) = request::extent(core, place, part.end - part.start).await?;
            if blocks > 0 && is_mapped != mapped {
                break;
            }
            (mapped, blocks) = (is_mapped, blocks + there);
            if there < part.end - part.start {
                break;
            }
        }
        Ok((mapped, blocks))
    }

    /// Sets the codec and the largest unit for new data, `None` for no compression; existing data stays as it is. A
    /// write is cut into the largest units within it, up to `unit` and to the limit of the device, each of which is
    /// compressed by itself. A block that compresses less well than the one it overwrites takes more room, and may be
    /// refused: see [`Volume::write`]. The setting is durable at the return.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn compress(&self, codec: Option<Codec>, unit: Unit) -> Result<(), DeviceError> {
        for core in &self.0.cores {
            let mut state = core.state.borrow_mut();
            (state.codec, state.unit) = (codec, unit.min(state.space.plan().unit));
        }
        self.checkpoint().await
    }

    /// Enlarges the volume to `blocks` blocks, while it is used. If this is interrupted, a start finds the former or the
    /// new size.
    ///
    /// # Errors
    /// When the volume is larger, has several shards, or has no room for the larger map; those of the device.
    pub async fn grow(&self, blocks: u64) -> Result<(), VolumeError> {
        match &self.0.cores[..] {
            [core] => grow::grow(core, blocks).await,
            _ => Err(VolumeError::ManyShards),
        }
    }

    /// Sets for how many seconds a write waits for room; with 0 it fails at once. The server of the volume waits, since
    /// the engine has no clock. The setting is durable at the return.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be written any more.
    pub async fn queue_writes(&self, seconds: u8) -> Result<(), DeviceError> {
        self.0.cores.iter().for_each(|core| core.state.borrow_mut().queue_seconds = seconds);
        self.retry_refused();
        self.checkpoint().await
    }

    /// Allows writes to unmapped blocks to use `blocks` blocks of the reserve, at most all of it, until the next start.
    /// Replaces an earlier allowance; blocks that were written under that one stay.
    pub fn lend(&self, blocks: u64) {
        let share = blocks.div_ceil(self.0.cores.len() as u64);
        self.0.cores.iter().for_each(|core| core.state.borrow_mut().space.lend(share));
        self.retry_refused();
    }

    /// Waits until refused writes may have room: blocks were discarded, more of the reserve was lent, or
    /// [`Volume::retry_refused`] was called.
    pub async fn room_made(&self) {
        first_of(self.0.cores.iter().map(|core| waiting::room_made(core))).await;
    }

    /// Wakes all tasks that wait for room, to try again.
    pub fn retry_refused(&self) {
        self.0.cores.iter().for_each(|core| core.freed.open());
    }

    /// Sets the compression workers, to which data is offered from now on.
    pub fn employ(&self, workers: Rc<dyn CompressionWorkers>) {
        self.0.cores.iter().for_each(|core| *core.workers.borrow_mut() = Some(workers.clone()));
    }

    /// Writes a checkpoint, so that a start has nothing to recover. No request may be in flight.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn stop(&self) -> Result<(), DeviceError> {
        self.checkpoint().await
    }

    /// Writes a checkpoint of each shard.
    async fn checkpoint(&self) -> Result<(), DeviceError> {
        all(self.0.cores.iter().map(|core| core.request_checkpoint())).await.into_iter().collect()
    }

    /// Checks the live counts of the zones against the map, all of which is read. No request may be in flight.
    ///
    /// # Errors
    /// The first zone with a wrong count, or a page of the map that cannot be read.
    pub async fn audit(&self) -> Result<(), String> {
        for core in &self.0.cores {
            audit::audit(core).await?;
        }
        Ok(())
    }

    /// The logical blocks that are stored in blocks `ranges` of a zone of the device, and would be lost with them.
    pub async fn stored_in(&self, zone: ZoneIndex, ranges: &[Range<u64>]) -> StoredBlocks {
        let zones = self.first().identity.zones;
        let (shard, in_shard) = ((zone.0 / zones) as usize, zone.0 % zones);
        let Some(core) = self.0.cores.get(shard) else { return StoredBlocks::default() };
        let most = core.capacity() as u64;
        let short = |range: &Range<u64>| range.start.min(most) as u32..range.end.min(most) as u32;
        let ranges: Vec<Range<u32>> = ranges.iter().map(short).collect();
        let StoredBlocks { blocks, may_be_more } = stored::stored_in(core, in_shard, &ranges).await;
        let blocks = blocks.into_iter().map(|block| self.0.map.block(shard, block)).collect();
        StoredBlocks { blocks, may_be_more }
    }

    /// Whether the volume has more logical blocks than fit uncompressed.
    pub fn is_over_committed(&self) -> bool {
        self.0.cores.iter().any(|core| core.state.borrow().space.plan().reserve > 0)
    }

    /// State and statistics of the volume.
    pub fn status(&self) -> VolumeStatus {
        let mut all = self.first().status();
        self.0.cores[1..].iter().for_each(|core| all.add(core.status()));
        all
    }
}
