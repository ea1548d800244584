//! A thin space: the logical blocks of all shards on one device.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{DeviceError, Status, ZonedDevice},
    runtime::{Runtime, all, first_of},
    volume::{
        address::{GRAINS, Unit},
        audit, checkpoint, commit,
        core::VolumeCore,
        error::VolumeError,
        gc, grow,
        options::VolumeOptions,
        piece::{Codec, CompressionWorkers},
        request::{self, MapChange, WriteTerms},
        root::PoolShape,
        shards::{self, ShardMap},
        state::Distance,
        status::VolumeStatus,
        stored::{self, StoredBlocks},
        waiting, window,
    },
    zone::ZoneIndex,
};
use std::{cell::RefCell, ops::Range, rc::Rc};

/// Where a range of blocks of a volume is in its pool: the first block of each layer. A block that is unmapped in a layer is
/// read from the next layer; one that is unmapped in all layers reads as zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub layers: Vec<u64>,
    /// Number of the first layers, those of snapshots before the latest one, and of a clone: writes to the volume do not
    /// move blocks to these.
    pub fixed: usize,
}

/// The blocks of a volume, or of a pool. Clones are the same blocks.
#[derive(Clone)]
pub struct ThinSpace(Rc<ThinShards>);

struct ThinShards {
    /// At least one.
    cores: Vec<Rc<VolumeCore>>,
    map: ShardMap,
}

impl ThinSpace {
    /// Opens the blocks on `device`, and starts their tasks.
    ///
    /// # Errors
    /// When there are none, or they cannot be started.
    pub async fn open(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        options: VolumeOptions,
    ) -> Result<ThinSpace, VolumeError> {
        let (cores, map) = shards::open(runtime, device, options).await?;
        let cores = VolumeCore::of_shards(cores);
        for core in &cores {
            for index in 0..3 {
                runtime.spawn(commit::serve(core.clone(), index));
            }
            if core.device.cells() > 0 {
                window::prepare(core);
                runtime.spawn(window::land(core.clone()));
                runtime.spawn(window::keep(core.clone()));
            }
            runtime.spawn(checkpoint::keep(core.clone()));
            runtime.spawn(gc::collect(core.clone()));
        }
        Ok(ThinSpace(Rc::new(ThinShards { cores, map })))
    }

    /// The first shard, which has all properties that the shards have in common.
    pub fn first(&self) -> &VolumeCore {
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

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.0.cores.len()
    }

    /// Number of logical blocks.
    pub fn blocks(&self) -> u64 {
        match &self.0.cores[..] {
            // Only a space of one shard grows.
            [core] => core.blocks.get(),
            _ => self.0.map.blocks(),
        }
    }

    /// Division of the blocks among the volumes of a pool; `None` if they are those of one volume.
    pub fn pool(&self) -> Option<PoolShape> {
        self.first().identity.pool
    }

    /// Codec and largest unit of new data.
    pub fn encoding(&self) -> Option<(Codec, Unit)> {
        let state = self.first().state.borrow();
        state.codec.map(|codec| (codec, state.unit))
    }

    /// Largest unit of compression that the transfer size of the device allows.
    pub fn largest_unit(&self) -> Unit {
        self.first().state.borrow().space.plan().unit
    }

    /// Number of shards to which the extents of a pool go in turn, so that each is in one. 1 also for a pool of several
    /// shards that was made by an earlier program: its extents may be in two.
    pub fn extent_shards(&self) -> u32 {
        if self.first().identity.extents_in_turn { self.0.cores.len() as u32 } else { 1 }
    }

    /// Whether each extent of a pool is in one shard.
    pub fn has_whole_extents(&self) -> bool {
        self.shards() == self.extent_shards() as usize
    }

    /// The shard with the block at `at`, and the number of the block there.
    pub fn find(&self, at: u64) -> (&VolumeCore, u64) {
        let (shard, place, _) = self.0.map.find(at);
        (&self.0.cores[shard], place)
    }

    /// The shard with an extent of a pool, and the number of the extent there. The first shard if extents may be in two.
    pub fn find_extent(&self, extent: u32) -> (&VolumeCore, u32) {
        let shards = self.extent_shards();
        (&self.0.cores[(extent % shards) as usize], extent / shards)
    }

    /// The number of the block at `at` in this shard; `None` if it is in another one.
    pub fn place_in(&self, shard: usize, at: u64) -> Option<u64> {
        let (of_block, place, _) = self.0.map.find(at);
        (of_block == shard).then_some(place)
    }

    /// As [`ThinSpace::find`], of several blocks in one shard.
    fn find_all(&self, blocks: impl Iterator<Item = u64>) -> (&VolumeCore, Vec<u64>) {
        let (mut core, mut places) = (self.first(), Vec::new());
        for block in blocks {
            let (of_block, place) = self.find(block);
            assert!(
                places.is_empty() || std::ptr::eq(core, of_block),
                "block {block} is in another shard than the layers above it"
            );
            core = of_block;
            places.push(place);
        }
        (core, places)
    }

    /// The distance between two blocks of a shard, in that shard.
    pub fn distance(&self, from: u64, to: u64) -> Distance {
        let (_, places) = self.find_all([from, to].into_iter());
        Distance::between(places[0], places[1])
    }

    /// All shards.
    pub fn cores(&self) -> &[Rc<VolumeCore>] {
        &self.0.cores
    }

    /// The block of the volume or pool that is block `at` of a shard.
    pub fn block(&self, shard: usize, at: u64) -> u64 {
        self.0.map.block(shard, at)
    }

    /// Whether a write of a family to a block without a place has room in one of the shards that may have it: this one, if
    /// each extent is in one shard.
    pub fn has_room(&self, shard: usize, family: u16) -> bool {
        let has_room = |core: &Rc<VolumeCore>| core.state.borrow().space.has_room_for_new(family, GRAINS);
        match self.has_whole_extents() {
            true => has_room(&self.0.cores[shard]),
            false => self.0.cores.iter().any(has_room),
        }
    }

    /// Counts a write that is refused for lack of room in some shards, which look for some then.
    pub fn refuse(&self, shards: Range<usize>) -> DeviceError {
        self.0.cores[shards].iter().for_each(|core| _ = request::refuse(core));
        Status::CapacityExceeded.into()
    }

    /// Grains of room that a shard has left.
    pub fn room_left(&self, shard: usize) -> u64 {
        self.0.cores[shard].state.borrow().space.room_left()
    }

    /// Records the family of an extent of a pool; 0 for none.
    pub fn set_family(&self, extent: u32, family: u16) {
        let (core, extent) = self.find_extent(extent);
        if let Some(extents) = &mut core.state.borrow_mut().space.extents {
            extents.set_family(extent, family);
        }
    }

    /// Guarantees these blocks of the shards to a family; none in further shards.
    pub fn guarantee(&self, family: u16, blocks: &[u64]) {
        for (shard, core) in self.0.cores.iter().enumerate() {
            let blocks = blocks.get(shard).copied().unwrap_or(0);
            if let Some(extents) = &mut core.state.borrow_mut().space.extents {
                extents.guarantee(family, blocks * GRAINS as u64);
            }
        }
    }

    /// As [`super::Volume::read`].
    pub async fn read(&self, at: u64, data: Buf) -> Result<Buf, DeviceError> {
        if let Some((core, at)) = self.shard_of(at, data.blocks()) {
            return request::read(core, &[at], data).await;
        }
        let mut data = data.into_mut();
        for (core, place, part) in self.parts(at, data.blocks()) {
            let read =
                request::read(core, &[place], Buf::zeroed((part.end - part.start) as usize * BLOCK)).await?;
            data[part.start as usize * BLOCK..part.end as usize * BLOCK].copy_from_slice(&read);
        }
        Ok(data.freeze())
    }

    /// As [`super::Volume::read_parts`].
    pub async fn read_parts(
        &self,
        at: u64,
        blocks: u64,
        buffers: &RefCell<BufPool>,
    ) -> Result<Vec<Buf>, DeviceError> {
        if let Some((core, at)) = self.shard_of(at, blocks) {
            return request::read_parts(core, at, blocks, buffers).await;
        }
        let data = buffers.borrow_mut().take(blocks).freeze();
        self.read(at, data).await.map(|data| vec![data])
    }

    /// Number of map entries that were moved between layers of views since the start. A look at a view during which it
    /// changes may be wrong.
    pub fn passed_on(&self) -> u64 {
        self.0.cores.iter().map(|core| core.state.borrow().passed_on).sum()
    }

    /// As [`request::settle`].
    pub async fn settle(&self) -> Result<(), DeviceError> {
        all(self.0.cores.iter().map(|core| request::settle(core))).await.into_iter().collect()
    }

    /// Reads blocks of a view.
    pub async fn read_view(&self, view: &View, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (blocks, mut at) = ((bytes.len() / BLOCK) as u64, 0);
        while at < blocks {
            let (layers, count) = self.layers_at(view, at, blocks - at).await?;
            let into = &mut bytes[at as usize * BLOCK..][..count as usize * BLOCK];
            let data = Buf::zeroed(into.len());
            let read = match *layers {
                [start] => self.read(start + at, data).await?,
                _ => {
                    let (core, starts) = self.find_all(layers.iter().map(|start| start + at));
                    request::read(core, &starts, data).await?
                }
            };
            into.copy_from_slice(&read);
            at += count;
        }
        Ok(())
    }

    /// The layers of a view that decide about blocks from block `at` of it on, and their number, at most `most`: one that
    /// does not change, or all that may.
    async fn layers_at<'v>(
        &self,
        view: &'v View,
        at: u64,
        mut most: u64,
    ) -> Result<(&'v [u64], u64), DeviceError> {
        let (fixed, others) = view.layers.split_at(view.fixed);
        for (index, layer) in fixed.iter().enumerate() {
            match self.extent(layer + at, most).await? {
                (true, count) => return Ok((&fixed[index..=index], count)),
                (false, count) => most = count,
            }
        }
        Ok((others, most))
    }

    /// As [`request::change`], of blocks in one extent, which is in one shard.
    pub async fn change(&self, at: u64, blocks: u64, how: MapChange) -> Result<(), DeviceError> {
        assert!(
            self.has_whole_extents(),
            "a change of block {at} for snapshots, whose extent may be in two shards"
        );
        let (core, at) = self.find(at);
        request::change(core, at, blocks, how).await
    }

    /// Writes blocks from `at` on.
    pub async fn write(&self, at: u64, data: &Buf, terms: WriteTerms) -> Result<(), DeviceError> {
        if let Some((core, at)) = self.shard_of(at, data.blocks()) {
            return request::write(core, at, data, terms).await;
        }
        for (core, place, part) in self.parts(at, data.blocks()) {
            request::write(core, place, &data.slice_blocks(part), terms).await?;
        }
        Ok(())
    }

    /// Reads block `at` as [`request::read_verified`] does.
    pub async fn read_verified<T>(
        &self,
        at: u64,
        verify: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, DeviceError> {
        let (core, at) = self.find(at);
        request::read_verified(core, at, verify).await
    }

    /// As [`super::Volume::flush`].
    pub async fn flush(&self) -> Result<(), DeviceError> {
        if let [core] = &self.0.cores[..] {
            return request::flush(core).await;
        }
        all(self.0.cores.iter().map(|core| request::flush(core))).await.into_iter().collect()
    }

    /// As [`super::Volume::discard`].
    pub async fn discard(&self, at: u64, blocks: u64) -> Result<(), DeviceError> {
        if let Some((core, at)) = self.shard_of(at, blocks) {
            return request::change(core, at, blocks, MapChange::Discard(None)).await;
        }
        for (core, place, part) in self.parts(at, blocks) {
            request::change(core, place, part.end - part.start, MapChange::Discard(None)).await?;
        }
        Ok(())
    }

    /// As [`super::Volume::extent`].
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

    /// The ranges of these blocks that are mapped; holes count as mapped.
    pub async fn mapped(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>, DeviceError> {
        let (mut at, mut mapped) = (blocks.start, Vec::new());
        while at < blocks.end {
            let (is_mapped, alike) = self.extent(at, blocks.end - at).await?;
            if is_mapped {
                mapped.push(at..at + alike);
            }
            at += alike;
        }
        Ok(mapped)
    }

    /// As [`ThinSpace::extent`], of a view; the blocks may be fewer than are alike.
    pub async fn extent_of_view(&self, view: &View, most: u64) -> Result<(bool, u64), DeviceError> {
        let (layers, mut count) = self.layers_at(view, 0, most).await?;
        match *layers {
            [] => return Ok((false, count)),
            [at] if view.layers.len() == 1 => {
                let (is_mapped, alike) = self.extent(at, count).await?;
                // They may be holes: those of a clone stay when its snapshot has no blocks any more.
                if !is_mapped || self.first().kin.get().is_none() {
                    return Ok((is_mapped, alike));
                }
                count = alike;
            }
            _ => {}
        }
        let (core, starts) = self.find_all(layers.iter().copied());
        request::extent_of_view(core, &starts, count).await
    }

    /// The last of `blocks` blocks of a view that has data; holes have none.
    pub async fn last_data(&self, view: &View, blocks: u64) -> Result<Option<u64>, DeviceError> {
        let (mut at, mut last) = (0, None);
        while at < blocks {
            let layers = view.layers.iter().map(|start| start + at).collect();
            let rest = View { layers, fixed: view.fixed };
            let (has_data, alike) = self.extent_of_view(&rest, blocks - at).await?;
            at += alike;
            last = if has_data { Some(at - 1) } else { last };
        }
        Ok(last)
    }

    /// As [`super::Volume::compress`].
    pub async fn compress(&self, codec: Option<Codec>, unit: Unit) -> Result<(), DeviceError> {
        for core in &self.0.cores {
            let mut state = core.state.borrow_mut();
            (state.codec, state.unit) = (codec, unit.min(state.space.plan().unit));
        }
        self.checkpoint().await
    }

    /// As [`super::Volume::grow`].
    pub async fn grow(&self, blocks: u64) -> Result<(), VolumeError> {
        match &self.0.cores[..] {
            [core] => grow::grow(core, blocks).await,
            _ => Err(VolumeError::ManyShards),
        }
    }

    /// As [`super::Volume::queue_writes`].
    pub async fn queue_writes(&self, seconds: u8) -> Result<(), DeviceError> {
        self.0.cores.iter().for_each(|core| core.state.borrow_mut().queue_seconds = seconds);
        self.retry_refused();
        self.checkpoint().await
    }

    /// As [`super::Volume::lend`].
    pub fn lend(&self, blocks: u64) {
        let share = blocks.div_ceil(self.0.cores.len() as u64);
        self.0.cores.iter().for_each(|core| core.state.borrow_mut().space.lend(share));
        self.retry_refused();
    }

    /// As [`super::Volume::room_made`].
    pub async fn room_made(&self) {
        first_of(self.0.cores.iter().map(|core| waiting::room_made(core))).await;
    }

    /// As [`super::Volume::retry_refused`].
    pub fn retry_refused(&self) {
        self.0.cores.iter().for_each(|core| core.freed.open());
    }

    /// As [`super::Volume::employ`].
    pub fn employ(&self, workers: Rc<dyn CompressionWorkers>) {
        self.0.cores.iter().for_each(|core| *core.workers.borrow_mut() = Some(workers.clone()));
    }

    /// Writes a checkpoint of each shard.
    pub async fn checkpoint(&self) -> Result<(), DeviceError> {
        all(self.0.cores.iter().map(|core| core.request_checkpoint())).await.into_iter().collect()
    }

    /// As [`super::Volume::audit`].
    pub async fn audit(&self) -> Result<(), String> {
        for core in &self.0.cores {
            audit::audit(core).await?;
        }
        Ok(())
    }

    /// As [`super::Volume::stored_in`].
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

    /// As [`super::Volume::is_over_committed`].
    pub fn is_over_committed(&self) -> bool {
        self.0.cores.iter().any(|core| core.state.borrow().space.plan().reserve > 0)
    }

    /// State and statistics.
    pub fn status(&self) -> VolumeStatus {
        let mut all = self.first().status();
        self.0.cores[1..].iter().for_each(|core| all.add(core.status()));
        all
    }
}
