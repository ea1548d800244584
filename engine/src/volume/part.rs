//! The volumes of a pool, their extents, and requests to them.
//!
//! A volume of a pool consists of *extents* of the pool, which it gets when one of their blocks is first written. The
//! table of volumes and extents ([`super::pool_table`]) is in the first blocks of the pool, and changes with FUA. An owner
//! of an extent is recorded before the extent is written, and removed when its discarded blocks cannot come back. So free
//! extents are empty after a crash, too. A change of the table runs to its end even if the request that began it is
//! dropped: otherwise the table in memory could differ from the stored one.

use crate::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Status},
    format::name::wrong_with_name,
    runtime::{Exclusive, Gate, Runtime, give_way},
    volume::{
        error::{NoVolume, PoolError, VolumeError},
        pool_table::{ExtentOwner, ExtentTable, PoolLayout, VolumeRecord},
        request::WriteTerms,
        stored::StoredBlocks,
        thin::ThinSpace,
    },
    zone::MOST_BLOCKS,
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Range,
    rc::Rc,
};

/// Blocks of the table are durable when they change, and volumes can be removed from a full pool.
const OF_TABLE: WriteTerms = WriteTerms { fua: true, encoding: None, uses_reserve: true };

/// Most extents of a volume: a table of 64 MiB in memory. Default extents of these are more than 1 PiB.
const MOST_EXTENTS: u64 = 1 << 24;

/// A running pool.
pub struct PoolCore {
    pub runtime: Runtime,
    pub space: ThinSpace,
    pub layout: PoolLayout,
    pub mark: u64,
    pub table: RefCell<ExtentTable>,
    /// The volumes by slot, with those that are being removed.
    pub volumes: RefCell<BTreeMap<u32, Rc<PoolVolume>>>,
    /// Serializes changes of the table.
    pub changes: Exclusive,
}

/// A volume, as its pool knows it.
pub struct PoolVolume {
    pub slot: u32,
    pub record: RefCell<VolumeRecord>,
    /// [`VolumeRecord::blocks`], for requests.
    pub blocks: Cell<u64>,
    /// Extent of the pool for each of its own, as far as they are known; 0 for none.
    extents: RefCell<Vec<u32>>,
    /// Requests in progress.
    requests: Cell<u64>,
    /// Opened when the last request has ended.
    idle: Gate,
    /// Held while its data is discarded.
    removal: Exclusive,
}

/// Guard of a request to a volume.
struct Request<'v>(&'v PoolVolume);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
        if self.0.requests.get() == 0 {
            self.0.idle.open();
        }
    }
}

impl PoolVolume {
    pub fn new(slot: u32, record: VolumeRecord) -> PoolVolume {
        let blocks = Cell::new(record.blocks);
        let (record, extents) = (RefCell::new(record), RefCell::default());
        let (requests, idle, removal) = (Cell::new(0), Gate::default(), Exclusive::default());
        PoolVolume { slot, record, blocks, extents, requests, idle, removal }
    }

    pub fn is_removed(&self) -> bool {
        self.record.borrow().is_removed
    }

    /// The extent of the pool that is extent `index` of the volume; 0 if there is none.
    pub fn extent(&self, index: u64) -> u32 {
        self.extents.borrow().get(index as usize).copied().unwrap_or(0)
    }

    pub fn set_extent(&self, index: u32, extent: u32) {
        let (mut extents, index) = (self.extents.borrow_mut(), index as usize);
        if extents.len() <= index {
            extents.resize(index + 1, 0);
        }
        extents[index] = extent;
    }

    /// The extents of the pool that it has, in ascending order, with their numbers in the volume.
    fn sorted_extents(&self) -> Vec<(u32, u32)> {
        let extents = self.extents.borrow();
        let there = extents.iter().zip(0..).filter(|(extent, _)| **extent != 0);
        let mut sorted: Vec<(u32, u32)> = there.map(|(extent, index)| (*extent, index)).collect();
        sorted.sort_unstable();
        sorted
    }
}

impl PoolCore {
    /// The volume of this name.
    pub fn find(&self, name: &str) -> Result<Rc<PoolVolume>, VolumeError> {
        let volumes = self.volumes.borrow();
        let found = volumes.values().find(|volume| {
            let record = volume.record.borrow();
            !record.is_removed && record.name == name
        });
        Ok(found.cloned().ok_or_else(|| PoolError::NoVolume { name: name.into() })?)
    }

    /// Checks a name for a volume. The volumes that are being removed still have theirs.
    pub fn check_name(&self, name: &str) -> Result<(), PoolError> {
        if let Some(why) = wrong_with_name(name) {
            return Err(PoolError::WrongName { why });
        }
        let is_taken = self.volumes.borrow().values().any(|volume| volume.record.borrow().name == name);
        if is_taken { Err(PoolError::NameTaken { name: name.into() }) } else { Ok(()) }
    }

    /// Checks a size for a volume.
    pub fn check_size(&self, blocks: u64) -> Result<(), NoVolume> {
        let can_be = (1..=MOST_BLOCKS).contains(&blocks) && self.layout.extents_of(blocks) <= MOST_EXTENTS;
        if can_be { Ok(()) } else { Err(NoVolume::Size { blocks }) }
    }

    /// Writes the record of a volume. The caller holds `changes`.
    pub async fn write_record(&self, slot: u32, record: &VolumeRecord) -> Result<(), DeviceError> {
        self.space.write(slot.into(), &record.encode(self.mark, slot), OF_TABLE).await
    }

    /// Replaces the record of a volume that is not being removed. The caller holds `changes`.
    ///
    /// # Errors
    /// Gone if it is: the slot may belong to another volume.
    pub async fn change_record(&self, volume: &PoolVolume, record: VolumeRecord) -> Result<(), DeviceError> {
        if volume.is_removed() {
            return Err(DeviceError::Gone);
        }
        self.write_record(volume.slot, &record).await?;
        volume.blocks.set(record.blocks);
        *volume.record.borrow_mut() = record;
        Ok(())
    }

    /// Discards the data of a volume whose record says that it is removed, and frees its extents, and finally its slot.
    /// Other volumes are used meanwhile. Continues with other extents behind one that cannot be discarded.
    ///
    /// # Errors
    /// The first one of the device; the volume keeps the extents that could not be discarded.
    pub async fn finish_removal(&self, volume: &Rc<PoolVolume>) -> Result<(), VolumeError> {
        assert!(volume.is_removed(), "the volume in slot {} loses its data", volume.slot);
        let _removing = volume.removal.take().await;
        // Requests in progress may have to change the table.
        while volume.requests.get() > 0 {
            volume.idle.wait().await;
        }
        let is_it = |there: &Rc<PoolVolume>| Rc::ptr_eq(there, volume);
        if !self.volumes.borrow().get(&volume.slot).is_some_and(is_it) {
            return Ok(());
        }
        let mut result = Ok(());
        let extents = volume.sorted_extents();
        let owner_block = |(extent, _): &(u32, u32)| self.layout.owner_block(*extent);
        for of_block in extents.chunk_by(|a, b| owner_block(a) == owner_block(b)) {
            result = result.and(self.free_extents(volume, of_block).await);
        }
        result?;
        let _changing = self.changes.take().await;
        self.space.discard(volume.slot.into(), 1).await?;
        self.space.flush().await?;
        self.volumes.borrow_mut().remove(&volume.slot);
        Ok(())
    }

    /// Discards extents of a volume whose owners are in one block of the table, and frees them.
    async fn free_extents(&self, volume: &PoolVolume, extents: &[(u32, u32)]) -> Result<(), VolumeError> {
        let (mut discarded, mut result) = (Vec::new(), Ok(()));
        for (extent, index) in extents {
            match self.space.discard(self.layout.start(*extent), self.layout.extent_blocks.into()).await {
                Ok(()) => discarded.push((*extent, *index)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        // An extent that is free after a crash has to be empty.
        self.space.flush().await?;
        let _changing = self.changes.take().await;
        let is_freed = |extent: u32| discarded.binary_search_by_key(&extent, |(extent, _)| *extent).is_ok();
        if let Some((first, _)) = discarded.first() {
            self.write_owners(self.layout.owner_block(*first), |extent| {
                is_freed(extent).then_some(ExtentOwner::FREE)
            })
            .await?;
        }
        for (extent, index) in &discarded {
            self.table.borrow_mut().release(*extent);
            volume.set_extent(*index, 0);
        }
        Ok(result?)
    }

    /// Writes a block with owners of extents, as if those for which `change` returns one were changed. The caller holds
    /// `changes`.
    pub async fn write_owners(
        &self,
        block: u64,
        change: impl Fn(u32) -> Option<ExtentOwner>,
    ) -> Result<(), DeviceError> {
        let owners = self.table.borrow().encode(self.mark, block, change);
        self.space.write(block, &owners, OF_TABLE).await
    }

    /// Gives a volume an extent of the pool for its extent `index`, and returns that.
    async fn claim(&self, volume: &PoolVolume, index: u64) -> Result<u32, DeviceError> {
        let _changing = self.changes.take().await;
        if volume.is_removed() {
            return Err(DeviceError::Gone);
        }
        // Another write to it may have come first.
        let there = volume.extent(index);
        if there != 0 {
            return Ok(there);
        }
        // A refused write takes no extent.
        self.space.check_room()?;
        let Some(extent) = self.table.borrow().next_free() else {
            return Err(Status::CapacityExceeded.into());
        };
        self.empty(extent).await?;
        let owner = ExtentOwner::new(volume.slot, index as u32);
        self.write_owners(self.layout.owner_block(extent), |of| (of == extent).then_some(owner)).await?;
        self.table.borrow_mut().take(extent, owner);
        volume.set_extent(owner.index, extent);
        Ok(extent)
    }

    /// Discards what is in an extent that has no owner: entries of the log may have been given up
    /// ([`super::VolumeOptions::give_up`]) that gave it one, or discarded its blocks.
    pub async fn empty(&self, extent: u32) -> Result<(), DeviceError> {
        let (start, blocks) = (self.layout.start(extent), self.layout.extent_blocks as u64);
        if self.space.extent(start, blocks).await? != (false, blocks) {
            self.space.discard(start, blocks).await?;
            // The blocks must not come back in the volume that gets the extent.
            self.space.flush().await?;
        }
        Ok(())
    }
}

/// A part of a request, in one extent: the blocks of the request, the number of the extent in the volume, and the first
/// block in it.
struct ExtentPart {
    blocks: Range<u64>,
    index: u64,
    at: u64,
}

/// A volume and its pool.
#[derive(Clone)]
pub struct VolumeOfPool {
    pub pool: Rc<PoolCore>,
    pub volume: Rc<PoolVolume>,
}

impl VolumeOfPool {
    pub fn space(&self) -> &ThinSpace {
        &self.pool.space
    }

    pub fn name(&self) -> String {
        self.volume.record.borrow().name.clone()
    }

    pub fn slot(&self) -> u32 {
        self.volume.slot
    }

    pub fn blocks(&self) -> u64 {
        self.volume.blocks.get()
    }

    /// Blocks of its extents.
    pub fn allocated(&self) -> u64 {
        let extents = self.volume.extents.borrow().iter().filter(|extent| **extent != 0).count() as u64;
        extents * self.pool.layout.extent_blocks as u64
    }

    /// Runs `act` with the record of the volume.
    pub fn with_record<T>(&self, act: impl FnOnce(&VolumeRecord) -> T) -> T {
        act(&self.volume.record.borrow())
    }

    /// Changes settings in the record; durable at the return.
    pub async fn set(&self, change: impl FnOnce(&mut VolumeRecord) + 'static) -> Result<(), DeviceError> {
        let of_pool = self.clone();
        let changed = async move {
            let VolumeOfPool { pool, volume } = of_pool;
            let _changing = pool.changes.take().await;
            let mut record = volume.record.borrow().clone();
            change(&mut record);
            pool.change_record(&volume, record).await
        };
        self.pool.runtime.run_whole(changed).await
    }

    /// As [`super::Volume::grow`].
    pub async fn grow(&self, blocks: u64) -> Result<(), VolumeError> {
        let have = self.blocks();
        if blocks < have {
            return Err(VolumeError::Shrinks { have });
        }
        self.pool.check_size(blocks)?;
        Ok(self.set(move |record| record.blocks = record.blocks.max(blocks)).await?)
    }

    /// Begins a request for blocks of the volume.
    ///
    /// # Errors
    /// Invalid Field without blocks, LBA Out of Range beyond the end; Gone if the volume is removed.
    fn begin(&self, at: u64, blocks: u64) -> Result<Request<'_>, DeviceError> {
        if blocks == 0 {
            return Err(Status::InvalidField.into());
        }
        if at.checked_add(blocks).is_none_or(|end| end > self.blocks()) {
            return Err(Status::LbaOutOfRange.into());
        }
        if self.volume.is_removed() {
            return Err(DeviceError::Gone);
        }
        self.volume.requests.set(self.volume.requests.get() + 1);
        Ok(Request(&self.volume))
    }

    /// As [`VolumeOfPool::begin`], for the blocks of a buffer; also their number.
    fn begin_with(&self, at: u64, data: &Buf) -> Result<(Request<'_>, u64), DeviceError> {
        match data.len().is_multiple_of(BLOCK) {
            true => Ok((self.begin(at, data.blocks())?, data.blocks())),
            false => Err(Status::InvalidField.into()),
        }
    }

    /// The parts of a request, each in one extent.
    fn parts(&self, at: u64, blocks: u64) -> impl Iterator<Item = ExtentPart> + use<> {
        let size = self.pool.layout.extent_blocks as u64;
        let mut next = 0;
        std::iter::from_fn(move || {
            let from = at + next;
            let part = ExtentPart {
                blocks: next..blocks.min(next + size - from % size),
                index: from / size,
                at: from % size,
            };
            (next < blocks).then(|| {
                next = part.blocks.end;
                part
            })
        })
    }

    /// First block in the pool of a part, if the volume has the extent.
    fn place(&self, part: &ExtentPart) -> Option<u64> {
        let extent = self.volume.extent(part.index);
        (extent != 0).then(|| self.pool.layout.start(extent) + part.at)
    }

    /// As [`super::Volume::read`].
    pub async fn read(&self, at: u64, data: Buf) -> Result<Buf, DeviceError> {
        let (_request, blocks) = self.begin_with(at, &data)?;
        if let Some(part) = self.parts(at, blocks).next().filter(|part| part.blocks.end == blocks)
            && let Some(place) = self.place(&part)
        {
            return self.space().read(place, data).await;
        }
        let mut data = data.into_mut();
        for part in self.parts(at, blocks) {
            let count = (part.blocks.end - part.blocks.start) as usize;
            let bytes = &mut data[part.blocks.start as usize * BLOCK..][..count * BLOCK];
            match self.place(&part) {
                None => bytes.fill(0),
                Some(place) => {
                    bytes.copy_from_slice(&self.space().read(place, Buf::zeroed(count * BLOCK)).await?);
                }
            }
        }
        Ok(data.freeze())
    }

    /// As [`super::Volume::write`].
    pub async fn write(&self, at: u64, data: &Buf, fua: bool) -> Result<(), DeviceError> {
        let (_request, blocks) = self.begin_with(at, data)?;
        let encoding = self.with_record(|record| record.codec.map(|codec| (codec, record.unit)));
        let terms = WriteTerms { fua, encoding, uses_reserve: false };
        for part in self.parts(at, blocks) {
            let place = match self.place(&part) {
                Some(place) => place,
                None => {
                    let VolumeOfPool { pool, volume } = self.clone();
                    let claimed = async move { pool.claim(&volume, part.index).await };
                    let extent = self.pool.runtime.run_whole(claimed).await?;
                    self.pool.layout.start(extent) + part.at
                }
            };
            if part.blocks == (0..blocks) {
                return self.space().write(place, data, terms).await;
            }
            self.space().write(place, &data.slice_blocks(part.blocks), terms).await?;
        }
        Ok(())
    }

    /// As [`super::Volume::discard`].
    pub async fn discard(&self, at: u64, blocks: u64) -> Result<(), DeviceError> {
        let _request = self.begin(at, blocks)?;
        for part in self.parts(at, blocks) {
            if let Some(place) = self.place(&part) {
                self.space().discard(place, part.blocks.end - part.blocks.start).await?;
            }
            give_way().await;
        }
        Ok(())
    }

    /// As [`super::Volume::extent`].
    pub async fn extent(&self, at: u64, most: u64) -> Result<(bool, u64), DeviceError> {
        let _request = self.begin(at, most)?;
        let mut first = None;
        for part in self.parts(at, most) {
            let count = part.blocks.end - part.blocks.start;
            let (is_mapped, alike) = match self.place(&part) {
                None => (false, count),
                Some(place) => self.space().extent(place, count).await?,
            };
            if *first.get_or_insert(is_mapped) != is_mapped {
                return Ok((!is_mapped, part.blocks.start));
            }
            if alike < count {
                return Ok((is_mapped, part.blocks.start + alike));
            }
            give_way().await;
        }
        Ok((first == Some(true), most))
    }

    /// Of blocks of the pool, those of this volume. If one is of the table, there may be more.
    pub fn own(&self, stored: StoredBlocks) -> StoredBlocks {
        let (table, layout) = (self.pool.table.borrow(), self.pool.layout);
        let of_table = stored.blocks.range(..layout.start(layout.reserved)).next().is_some();
        let own = stored.blocks.iter().filter_map(|block| {
            let (owner, start) = table.owner_of(*block);
            let own = owner.index as u64 * layout.extent_blocks as u64 + (block - start);
            (owner.slot() == Some(self.volume.slot)).then_some(own)
        });
        let blocks = own.filter(|block| *block < self.blocks()).collect();
        StoredBlocks { blocks, may_be_more: stored.may_be_more || of_table }
    }
}
