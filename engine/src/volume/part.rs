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
    qos::{QosControl, QosState},
    runtime::{Exclusive, Gate, Runtime, give_way},
    volume::{
        address::Unit,
        error::{NoVolume, PoolError, VolumeError},
        extent_room::TABLE_FAMILY,
        piece::Codec,
        pool_table::{ExtentOwner, ExtentTable, INDEX_BITS, PoolLayout, VolumeOrigin, VolumeRecord},
        request::{MapChange, WriteTerms},
        status::SpaceUse,
        stored::StoredBlocks,
        thin::{ThinSpace, View},
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
const OF_TABLE: WriteTerms = WriteTerms { fua: true, encoding: None, of_table: true, keep: None };

/// Most extents of a volume: a table of 64 MiB in memory. Default extents of these are more than 1 PiB.
const MOST_EXTENTS: u64 = 1 << INDEX_BITS;

/// Attempts to look at a view before snapshots pass nothing on meanwhile.
const SOON: u32 = 3;

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
    /// Held while blocks of an extent are passed on from a snapshot.
    pub passing: Exclusive,
    /// Throttling of volumes for the floors and latency classes of others.
    pub qos: QosControl,
}

/// A volume, as its pool knows it: also a snapshot, or a clone.
pub struct PoolVolume {
    pub slot: u32,
    /// That of its record.
    pub origin: VolumeOrigin,
    pub record: RefCell<VolumeRecord>,
    /// [`VolumeRecord::blocks`], for requests.
    pub blocks: Cell<u64>,
    /// Admission of requests by [`VolumeRecord::qos`], also of those to its snapshots.
    pub qos_state: QosState,
    /// Extent of the pool for each of its own, as far as they are known; 0 for none.
    extents: RefCell<Vec<u32>>,
    /// Number of these extents.
    extent_count: Cell<u32>,
    /// Births of these extents ([`ExtentOwner::birth`]), as far as they are not 0.
    births: RefCell<Vec<u32>>,
    /// Its snapshots, the earliest first, with those that are being removed.
    pub snapshots: RefCell<Vec<Rc<PoolVolume>>>,
    /// Nothing is read from it any more: a snapshot that is being removed, or a volume whose return to the contents of a
    /// snapshot has failed.
    pub hidden: Cell<bool>,
    /// Its space when that was last counted.
    pub counted_space: Cell<Option<SpaceUse>>,
    /// Requests in progress.
    requests: Cell<u64>,
    /// Opened when the last request has ended.
    idle: Gate,
    /// Number of tasks for which new requests wait.
    quiet: Cell<u32>,
    /// Opened when new requests need not wait any more.
    resumed: Gate,
    /// New requests that reach beyond this block wait: the blocks behind it are being cut off.
    end: Cell<u64>,
    /// Held while its data is discarded, its end is cut off, or one of its snapshots is removed or returned to.
    pub removal: Exclusive,
}

/// New requests to volumes wait as long as this exists, and none is in progress.
pub struct Quiet(Vec<Rc<PoolVolume>>);

impl Quiet {
    /// Lets new requests wait, and waits for those in progress. The caller must not hold [`PoolCore::changes`], for which
    /// requests may wait.
    pub async fn of(volumes: Vec<Rc<PoolVolume>>) -> Quiet {
        let quiet = Quiet(volumes);
        quiet.0.iter().for_each(|volume| volume.quiet.set(volume.quiet.get() + 1));
        for volume in &quiet.0 {
            volume.requests_ended().await;
        }
        quiet
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        for volume in &self.0 {
            volume.quiet.set(volume.quiet.get() - 1);
            volume.resumed.open();
        }
    }
}

/// New requests for the end of a volume wait as long as this exists, and none is in progress.
pub struct HeldEnd(Rc<PoolVolume>);

impl HeldEnd {
    /// Lets new requests that reach beyond block `end` wait, and waits for all that are in progress. The caller must not
    /// hold [`PoolCore::changes`], for which requests may wait.
    pub async fn of(volume: Rc<PoolVolume>, end: u64) -> HeldEnd {
        volume.end.set(end);
        let held = HeldEnd(volume.clone());
        drop(Quiet::of(vec![volume]).await);
        held
    }
}

impl Drop for HeldEnd {
    fn drop(&mut self) {
        self.0.end.set(u64::MAX);
        self.0.resumed.open();
    }
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

/// Checks a name for a volume or a snapshot.
pub fn check_new_name(name: &str) -> Result<(), PoolError> {
    let is_apart = name.contains('@').then_some("'@' is between the names of a volume and of its snapshot");
    match wrong_with_name(name).or(is_apart) {
        Some(why) => Err(PoolError::WrongName { why }),
        None => Ok(()),
    }
}

/// The family of the volume in a slot.
fn family_of_slot(slot: u32) -> u16 {
    let family = (slot + 1) as u16;
    assert!(family as u32 == slot + 1 && family < TABLE_FAMILY, "slot {slot} is that of a volume");
    family
}

impl PoolVolume {
    pub fn new(slot: u32, record: VolumeRecord) -> PoolVolume {
        PoolVolume {
            slot,
            origin: record.origin,
            blocks: Cell::new(record.blocks),
            qos_state: QosState::new(record.qos),
            record: RefCell::new(record),
            extents: RefCell::default(),
            extent_count: Cell::new(0),
            births: RefCell::default(),
            snapshots: RefCell::default(),
            hidden: Cell::new(false),
            counted_space: Cell::default(),
            requests: Cell::new(0),
            idle: Gate::default(),
            quiet: Cell::new(0),
            resumed: Gate::default(),
            end: Cell::new(u64::MAX),
            removal: Exclusive::default(),
        }
    }

    /// Waits until no request is in progress.
    async fn requests_ended(&self) {
        while self.requests.get() > 0 {
            self.idle.wait().await;
        }
    }

    /// Its family ([`super::extent_room`]): that of its head, for a snapshot.
    pub fn family(&self) -> u16 {
        family_of_slot(match self.origin {
            VolumeOrigin::Snapshot { slot, .. } => slot,
            _ => self.slot,
        })
    }

    /// Number of a snapshot; 0 of another volume.
    pub fn number(&self) -> u32 {
        if let VolumeOrigin::Snapshot { number, .. } = self.origin { number } else { 0 }
    }

    pub fn is_removed(&self) -> bool {
        self.record.borrow().is_removed
    }

    /// The extent of the pool that is extent `index` of the volume; 0 if there is none.
    pub fn extent(&self, index: u64) -> u32 {
        self.extents.borrow().get(index as usize).copied().unwrap_or(0)
    }

    /// Number of the latest snapshot when the volume got its extent `index`.
    pub fn birth(&self, index: u64) -> u32 {
        self.births.borrow().get(index as usize).copied().unwrap_or(0)
    }

    /// Records an extent that the volume has, and its birth; 0 and 0 for one that it has not any more.
    pub fn set_extent(&self, index: u32, extent: u32, birth: u32) {
        let set = |numbers: &mut Vec<u32>, number: u32| {
            if number > 0 && numbers.len() <= index as usize {
                numbers.resize(index as usize + 1, 0);
            }
            numbers.get_mut(index as usize).into_iter().for_each(|place| *place = number);
        };
        let had = self.extent(index.into()) != 0;
        self.extent_count.set(self.extent_count.get() + (extent != 0) as u32 - had as u32);
        set(&mut self.extents.borrow_mut(), extent);
        set(&mut self.births.borrow_mut(), birth);
    }

    /// Number of the extents that it has.
    pub fn extent_count(&self) -> u64 {
        self.extent_count.get().into()
    }

    /// Largest birth of its extents.
    pub fn latest_birth(&self) -> u32 {
        self.births.borrow().iter().copied().max().unwrap_or(0)
    }

    /// The extents of the pool that it has, in ascending order, with their numbers in the volume.
    pub fn sorted_extents(&self) -> Vec<(u32, u32)> {
        let extents = self.extents.borrow();
        let there = extents.iter().zip(0..).filter(|(extent, _)| **extent != 0);
        let mut sorted: Vec<(u32, u32)> = there.map(|(extent, index)| (*extent, index)).collect();
        sorted.sort_unstable();
        sorted
    }
}

/// Notes whether any volume of a pool has a floor or a latency class.
pub fn note_guarantees(pool: &PoolCore) {
    let volumes = pool.volumes.borrow();
    let there = volumes.values().filter(|volume| !volume.is_removed());
    pool.qos.note_guarantees(there.map(|volume| &volume.qos_state), None);
}

impl PoolCore {
    /// The volume of this name, which is no snapshot.
    pub fn find(&self, name: &str) -> Result<Rc<PoolVolume>, VolumeError> {
        let volumes = self.volumes.borrow();
        let found = volumes.values().find(|volume| {
            let record = volume.record.borrow();
            !record.is_removed && volume.number() == 0 && record.name == name
        });
        Ok(found.cloned().ok_or_else(|| PoolError::NoVolume { name: name.into() })?)
    }

    /// The lowest free slots. The caller holds `changes`.
    pub fn free_slots(&self, number: usize) -> Result<Vec<u32>, PoolError> {
        let volumes = self.volumes.borrow();
        let free = (0..self.layout.slots).filter(|slot| !volumes.contains_key(slot));
        let free: Vec<u32> = free.take(number).collect();
        if free.len() == number { Ok(free) } else { Err(PoolError::NoSlot { most: self.layout.slots }) }
    }

    /// Adds a volume with this record. The caller holds `changes`.
    pub async fn add(&self, record: VolumeRecord) -> Result<Rc<PoolVolume>, VolumeError> {
        self.check_name(&record.name)?;
        self.check_size(record.blocks)?;
        let slot = self.free_slots(1)?[0];
        let without = VolumeRecord { is_removed: true, guaranteed: 0, ..record.clone() };
        let volume = Rc::new(PoolVolume::new(slot, without.clone()));
        let _adding = volume.removal.take().await;
        if record.guaranteed > 0 && self.space.shards() > 1 {
            // The owners of its extents are recorded before it is there: until then its removal frees them.
            self.check_guarantee(&volume, record.blocks, record.guaranteed)?;
            self.write_record(slot, &without).await?;
            self.volumes.borrow_mut().insert(slot, volume.clone());
        }
        let added = match self.prepare_guarantee(&volume, &record).await {
            Ok(()) => self.write_record(slot, &record).await.map_err(VolumeError::from),
            refused => refused,
        };
        if added.is_ok() {
            *volume.record.borrow_mut() = record;
            self.volumes.borrow_mut().insert(slot, volume.clone());
        }
        self.settle_guarantee(&volume);
        note_guarantees(self);
        added.map(|()| volume.clone())
    }

    /// Checks a name for a volume. The volumes that are being removed still have theirs.
    pub fn check_name(&self, name: &str) -> Result<(), PoolError> {
        check_new_name(name)?;
        let has = |volume: &Rc<PoolVolume>| volume.number() == 0 && volume.record.borrow().name == name;
        let is_taken = self.volumes.borrow().values().any(has);
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
        volume.qos_state.set(record.qos);
        *volume.record.borrow_mut() = record;
        note_guarantees(self);
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
        volume.requests_ended().await;
        // Its addition may have been completed meanwhile.
        if !self.is_there(volume) || !volume.is_removed() {
            return Ok(());
        }
        self.free_volume(volume).await
    }

    /// Whether a volume still has its slot.
    pub fn is_there(&self, volume: &Rc<PoolVolume>) -> bool {
        self.volumes.borrow().get(&volume.slot).is_some_and(|there| Rc::ptr_eq(there, volume))
    }

    /// Discards the data of a volume that is not used any more, frees its extents, and its slot.
    ///
    /// # Errors
    /// The first one of the device; the volume keeps the extents that could not be discarded.
    pub async fn free_volume(&self, volume: &PoolVolume) -> Result<(), VolumeError> {
        self.free_all(volume, &volume.sorted_extents()).await?;
        let _changing = self.changes.take().await;
        self.space.discard(volume.slot.into(), 1).await?;
        self.space.flush().await?;
        self.volumes.borrow_mut().remove(&volume.slot);
        note_guarantees(self);
        Ok(())
    }

    /// Discards extents of a volume, in ascending order, and frees them.
    ///
    /// # Errors
    /// The first one of the device; the volume keeps the extents that could not be discarded.
    pub async fn free_all(&self, volume: &PoolVolume, extents: &[(u32, u32)]) -> Result<(), VolumeError> {
        let (mut result, owner_block) = (Ok(()), |(extent, _): &(u32, u32)| self.layout.owner_block(*extent));
        for of_block in extents.chunk_by(|a, b| owner_block(a) == owner_block(b)) {
            result = result.and(self.free_extents(volume, of_block).await);
        }
        result
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
            self.space.set_family(*extent, 0);
            volume.set_extent(*index, 0, 0);
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
    pub async fn claim(&self, volume: &PoolVolume, index: u64) -> Result<u32, DeviceError> {
        let _changing = self.changes.take().await;
        if volume.is_removed() {
            return Err(DeviceError::Gone);
        }
        // The request may have been dropped since it began, and the extent may be cut off meanwhile.
        if index >= self.layout.extents_of(volume.blocks.get().min(volume.end.get())) {
            return Err(Status::LbaOutOfRange.into());
        }
        // Another write to it may have come first.
        let there = volume.extent(index);
        if there != 0 {
            return Ok(there);
        }
        let family = volume.family();
        let shards = match self.head_of(volume) {
            // The blocks of a snapshot are in the shard of those that it keeps.
            Some(head) => {
                let shard = self.table.borrow().shard(head.extent(index));
                shard..shard + 1
            }
            None => 0..self.space.extent_shards() as usize,
        };
        // A refused write takes no extent.
        let has_room = |shard: &usize| self.space.has_room(*shard, family);
        if !shards.clone().any(|shard| has_room(&shard)) {
            return Err(self.space.refuse(shards));
        }
        let claimable = self.claimable(family, shards).filter(has_room);
        let next = self.table.borrow().next_free(claimable, |shard| self.space.room_left(shard));
        let Some(extent) = next else {
            return Err(Status::CapacityExceeded.into());
        };
        self.empty(extent).await?;
        let birth = volume.snapshots.borrow().last().map_or(0, |latest| latest.number());
        let owner = ExtentOwner::new(volume.slot, index as u32, birth);
        self.write_owners(self.layout.owner_block(extent), |of| (of == extent).then_some(owner)).await?;
        self.table.borrow_mut().take(extent, owner);
        self.space.set_family(extent, family);
        volume.set_extent(owner.index(), extent, birth);
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
#[derive(Clone)]
struct ExtentPart {
    blocks: Range<u64>,
    index: u64,
    at: u64,
}

/// A request that concerns one extent of the pool alone.
pub struct PlainRequest<'v> {
    _request: Request<'v>,
    /// Its first block in the pool.
    pub place: u64,
    /// Compression of the volume.
    pub encoding: Option<(Codec, Unit)>,
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
        self.volume.extent_count() * self.pool.layout.extent_blocks as u64
    }

    /// Runs `act` with the record of the volume.
    pub fn with_record<T>(&self, act: impl FnOnce(&VolumeRecord) -> T) -> T {
        act(&self.volume.record.borrow())
    }

    /// Changes settings in the record; durable at the return.
    pub async fn set(&self, change: impl FnOnce(&mut VolumeRecord) + 'static) -> Result<(), DeviceError> {
        let always = move |record: &mut VolumeRecord| {
            change(record);
            Ok(())
        };
        self.set_if(always).await
    }

    /// As [`VolumeOfPool::set`], unless `change` fails.
    pub async fn set_if<E: From<DeviceError> + 'static>(
        &self,
        change: impl FnOnce(&mut VolumeRecord) -> Result<(), E> + 'static,
    ) -> Result<(), E> {
        self.check_writable()?;
        let of_pool = self.clone();
        let changed = async move {
            let VolumeOfPool { pool, volume } = of_pool;
            let _changing = pool.changes.take().await;
            let mut record = volume.record.borrow().clone();
            change(&mut record)?;
            Ok(pool.change_record(&volume, record).await?)
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
        if self.volume.number() > 0 {
            return Err(PoolError::IsSnapshot.into());
        }
        let of_pool = self.clone();
        let grown = async move {
            let VolumeOfPool { pool, volume } = of_pool;
            let _changing = pool.changes.take().await;
            let mut record = volume.record.borrow().clone();
            record.blocks = record.blocks.max(blocks);
            pool.change_guaranteed(&volume, record).await
        };
        self.pool.runtime.run_whole(grown).await
    }

    /// Begins a read, or a write (`writes`), that concerns one extent of the pool alone, without waiting. `None` for other
    /// requests, also for those that fail.
    pub fn begin_plain(&self, at: u64, bytes: usize, writes: bool) -> Option<PlainRequest<'_>> {
        let VolumeOfPool { pool, volume } = self;
        let (size, blocks) = (pool.layout.extent_blocks as u64, (bytes / BLOCK) as u64);
        let index = at / size;
        let from = at - index * size;
        let fits = bytes.is_multiple_of(BLOCK) && blocks > 0 && from + blocks <= size;
        let keeps = || writes && !volume.snapshots.borrow().is_empty();
        let is_plain = volume.origin == VolumeOrigin::Empty && !keeps();
        let most = volume.blocks.get().min(volume.end.get());
        let is_inside = || at.checked_add(blocks).is_some_and(|end| end <= most);
        if !fits || !is_plain || !is_inside() || volume.quiet.get() > 0 {
            return None;
        }
        let extent = volume.extent(index);
        let record = volume.record.borrow();
        if extent == 0 || record.is_removed || volume.hidden.get() {
            return None;
        }
        let encoding = record.codec.map(|codec| (codec, record.unit));
        volume.requests.set(volume.requests.get() + 1);
        Some(PlainRequest { _request: Request(volume), place: pool.layout.start(extent) + from, encoding })
    }

    /// Begins a request for blocks of the volume.
    ///
    /// # Errors
    /// Invalid Field without blocks, LBA Out of Range beyond the end; Gone if the volume is removed.
    async fn begin(&self, at: u64, blocks: u64) -> Result<Request<'_>, DeviceError> {
        while self.volume.quiet.get() > 0 || at.saturating_add(blocks) > self.volume.end.get() {
            self.volume.resumed.wait().await;
        }
        if blocks == 0 {
            return Err(Status::InvalidField.into());
        }
        if at.checked_add(blocks).is_none_or(|end| end > self.blocks()) {
            return Err(Status::LbaOutOfRange.into());
        }
        if self.volume.is_removed() || self.volume.hidden.get() {
            return Err(DeviceError::Gone);
        }
        self.volume.requests.set(self.volume.requests.get() + 1);
        Ok(Request(&self.volume))
    }

    /// As [`VolumeOfPool::begin`], for the blocks of a buffer; also their number.
    async fn begin_with(&self, at: u64, data: &Buf) -> Result<(Request<'_>, u64), DeviceError> {
        match data.len().is_multiple_of(BLOCK) {
            true => Ok((self.begin(at, data.blocks()).await?, data.blocks())),
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

    /// The blocks of the pool from which a part is read; none if it reads as zeros.
    fn view(&self, part: &ExtentPart) -> View {
        let mut view = View::default();
        self.pool.view(&self.volume, part.index, part.at, &mut view);
        view
    }

    /// As [`super::Volume::read`].
    pub async fn read(&self, at: u64, data: Buf) -> Result<Buf, DeviceError> {
        let (_request, blocks) = self.begin_with(at, &data).await?;
        let mut data = data.into_mut();
        for part in self.parts(at, blocks) {
            let count = (part.blocks.end - part.blocks.start) as usize;
            let bytes = &mut data[part.blocks.start as usize * BLOCK..][..count * BLOCK];
            self.steady(&part, async |view| match view.layers.is_empty() {
                true => {
                    bytes.fill(0);
                    Ok(())
                }
                false => self.space().read_view(view, bytes).await,
            })
            .await?;
        }
        Ok(data.freeze())
    }

    /// Looks at the view of a part until that, and what its layers have, does not change meanwhile: a snapshot may get the
    /// extent, and blocks with it, or pass blocks on.
    ///
    /// # Errors
    /// Those of `look`; Gone if the volume is removed.
    async fn steady<T>(
        &self,
        part: &ExtentPart,
        mut look: impl AsyncFnMut(&View) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let mut view = self.view(part);
        for attempt in 0.. {
            // Nothing is passed on during later attempts, unless by writes, each of which does so once.
            let _still = match attempt {
                0..SOON => None,
                _ => Some(self.pool.passing.take().await),
            };
            let passed_on = self.space().passed_on();
            let found = look(&view).await?;
            let now = self.view(part);
            if now == view && self.space().passed_on() == passed_on {
                return if self.volume.is_removed() { Err(DeviceError::Gone) } else { Ok(found) };
            }
            view = now;
        }
        Err(Status::InternalError.into())
    }

    /// Refuses to change a snapshot.
    fn check_writable(&self) -> Result<(), DeviceError> {
        match self.volume.number() {
            0 => Ok(()),
            _ => Err(Status::NamespaceIsWriteProtected.into()),
        }
    }

    /// First block in the pool of a part of a volume that gets the extent if it has not got it yet.
    async fn claimed_place(&self, part: &ExtentPart) -> Result<u64, DeviceError> {
        if let Some(place) = self.place(part) {
            return Ok(place);
        }
        let (VolumeOfPool { pool, volume }, index) = (self.clone(), part.index);
        let claimed = async move { pool.claim(&volume, index).await };
        let extent = self.pool.runtime.run_whole(claimed).await?;
        Ok(self.pool.layout.start(extent) + part.at)
    }

    /// As [`super::Volume::write`].
    pub async fn write(&self, at: u64, data: &Buf, fua: bool) -> Result<(), DeviceError> {
        self.check_writable()?;
        let (_request, blocks) = self.begin_with(at, data).await?;
        let encoding = self.with_record(|record| record.codec.map(|codec| (codec, record.unit)));
        for part in self.parts(at, blocks) {
            let place = self.claimed_place(&part).await?;
            let keep = self.pool.keep(&self.volume, part.index).await?;
            let terms = WriteTerms { fua, encoding, of_table: false, keep };
            self.space().write(place, &data.slice_blocks(part.blocks), terms).await?;
        }
        Ok(())
    }

    /// As [`super::Volume::discard`].
    pub async fn discard(&self, at: u64, blocks: u64) -> Result<(), DeviceError> {
        self.check_writable()?;
        let _request = self.begin(at, blocks).await?;
        for part in self.parts(at, blocks) {
            let (count, mut below) = (part.blocks.end - part.blocks.start, View::default());
            self.pool.view_below(&self.volume, part.index, part.at, &mut below);
            if !below.layers.is_empty() {
                let place = self.claimed_place(&part).await?;
                self.space().change(place, count, MapChange::Hole).await?;
            } else if let Some(place) = self.place(&part) {
                match self.pool.keep(&self.volume, part.index).await? {
                    None => self.space().discard(place, count).await?,
                    keep => self.space().change(place, count, MapChange::Discard(keep)).await?,
                }
            }
            give_way().await;
        }
        Ok(())
    }

    /// As [`super::Volume::extent`].
    pub async fn extent(&self, at: u64, most: u64) -> Result<(bool, u64), DeviceError> {
        let _request = self.begin(at, most).await?;
        let mut first = None;
        for part in self.parts(at, most) {
            let (count, mut done) = (part.blocks.end - part.blocks.start, 0);
            while done < count {
                let rest = ExtentPart { at: part.at + done, ..part.clone() };
                let asked = self.steady(&rest, async |view| match view.layers.is_empty() {
                    true => Ok((false, count - done)),
                    false => self.space().extent_of_view(view, count - done).await,
                });
                let (is_mapped, alike) = asked.await?;
                if *first.get_or_insert(is_mapped) != is_mapped {
                    return Ok((!is_mapped, part.blocks.start + done));
                }
                done += alike;
            }
            give_way().await;
        }
        Ok((first == Some(true), most))
    }

    /// The last block with data among those of extent `index` from block `from` of it on; holes have none.
    pub async fn last_data(&self, index: u64, from: u64) -> Result<Option<u64>, DeviceError> {
        let size = self.pool.layout.extent_blocks as u64;
        let part = ExtentPart { blocks: 0..size - from, index, at: from };
        let last = self.steady(&part, async |view| self.space().last_data(view, size - from).await).await?;
        Ok(last.map(|last| index * size + from + last))
    }

    /// Of blocks of the pool, those of this volume. If one is of the table, there may be more.
    pub fn own(&self, stored: StoredBlocks) -> StoredBlocks {
        let (table, layout) = (self.pool.table.borrow(), self.pool.layout);
        let of_table = stored.blocks.range(..layout.start(layout.reserved)).next().is_some();
        let own = stored.blocks.iter().filter_map(|block| {
            let (owner, start) = table.owner_of(*block);
            let own = owner.index() as u64 * layout.extent_blocks as u64 + (block - start);
            (owner.slot() == Some(self.volume.slot)).then_some(own)
        });
        let blocks = own.filter(|block| *block < self.blocks()).collect();
        StoredBlocks { blocks, may_be_more: stored.may_be_more || of_table }
    }
}
