//! A pool: the blocks of one log, divided among any number of volumes.

use crate::{
    buf::BLOCK,
    device::{DeviceError, ZonedDevice},
    qos::{Qos, QosControl},
    runtime::{Exclusive, Runtime, give_way},
    volume::{
        address::Unit,
        error::{NoVolume, PoolError, VolumeError},
        guarantee::{
            complete_guarantees, extents_set_aside, has_guarantees, load_guarantees, permit_guarantees,
        },
        handle::Volume,
        options::{VolumeCreateOptions, VolumeOptions},
        part::{PoolCore, PoolVolume, VolumeOfPool, check_new_name, note_guarantees},
        piece::Codec,
        pool_table::{ExtentOwner, ExtentTable, PoolLayout, VolumeOrigin, VolumeRecord},
        root::{PoolShape, SectorSize},
        shards::{VolumePlan, most_blocks},
        snapshot::{NewSnapshot, names},
        status::SpaceUse,
        thin::ThinSpace,
        usage,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
};

/// A pool has so many times as many blocks as fit uncompressed, if there are addresses for them: volumes use some extents
/// partly.
const THIN_FACTOR: u64 = 4;

/// A pool of volumes on a zoned device. Clones are the same pool.
#[derive(Clone)]
pub struct Pool {
    core: Rc<PoolCore>,
    space: Volume,
}

/// A new volume of a pool.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Its name: 1 to 64 bytes, not that of another volume of the pool.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Logical blocks of 4 KiB.
    pub blocks: u64,
    /// Size of a sector: the smallest write that users may make.
    pub sector: SectorSize,
    /// Compression of its data.
    pub codec: Option<Codec>,
    /// Largest number of blocks that are compressed together.
    pub unit: Unit,
    /// Limits, floors and latency class of its reads and writes.
    pub qos: Qos,
    /// Blocks of room that are guaranteed to it.
    pub guaranteed: u64,
}

impl Pool {
    /// Options of a volume that is divided among the volumes of a pool: of the default size on this device.
    ///
    /// # Errors
    /// When the device cannot carry a pool.
    pub fn options(
        device: &dyn ZonedDevice,
        options: VolumeCreateOptions,
    ) -> Result<VolumeCreateOptions, NoVolume> {
        let plain = VolumePlan::of(device.geometry(), None, options.shards)?;
        let addresses = plain.shards as u64 * u32::MAX as u64;
        let thin = options.blocks.unwrap_or_else(|| (THIN_FACTOR * plain.usable).min(addresses));
        let pool = options.pool.unwrap_or_else(|| PoolShape::of(thin));
        let thin = options.blocks.unwrap_or_else(|| thin.min(most_blocks(plain.shards, pool)));
        let blocks = thin / pool.extent_blocks.max(1) as u64 * pool.extent_blocks as u64;
        pool.layout(blocks).ok_or(NoVolume::Size { blocks })?;
        Ok(VolumeCreateOptions { blocks: Some(blocks), pool: Some(pool), ..options })
    }

    /// Creates a pool without volumes on an empty device, or on one on which a creation was interrupted.
    ///
    /// # Errors
    /// When the device cannot carry a pool, is not empty, or fails.
    pub async fn create(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        options: VolumeCreateOptions,
    ) -> Result<(), VolumeError> {
        let options = Pool::options(&*device, options)?;
        Volume::create(runtime, device, options).await
    }

    /// The pool to which these blocks belong.
    async fn of(
        runtime: &Runtime,
        space: ThinSpace,
        shape: PoolShape,
        give_up: bool,
    ) -> Result<Pool, VolumeError> {
        let layout = shape.layout(space.blocks()).ok_or(VolumeError::Absurd)?;
        let mark = space.first().identity.mark();
        let (volumes, table) = (BTreeMap::new(), ExtentTable::new(layout, space.extent_shards()));
        let core = PoolCore {
            runtime: runtime.clone(),
            space: space.clone(),
            layout,
            mark,
            table: table.into(),
            volumes: volumes.into(),
            changes: Exclusive::default(),
            passing: Exclusive::default(),
            qos: QosControl::default(),
        };
        let core = Rc::new(core);
        read_records(&core).await?;
        core.link()?;
        let StrayExtents { astray, behind_end } = read_owners(&core).await?;
        clear(&core, &behind_end).await?;
        if !astray.is_empty() {
            match give_up {
                true => clear(&core, &astray).await?,
                false => return Err(VolumeError::Absurd),
            }
        }
        core.table.borrow_mut().find_free();
        load_guarantees(&core);
        complete_guarantees(&core).await?;
        let returning: Vec<Rc<PoolVolume>> = core.volumes.borrow().values().cloned().collect();
        for volume in returning {
            match core.finish_return(&volume).await {
                // The other volumes can be used.
                Err(VolumeError::Device(DeviceError::Status(_))) => {}
                finished => finished?,
            }
        }
        Ok(Pool { core, space: Volume::whole(space) })
    }

    /// All blocks of the pool, as one volume: for the status of the pool, and to stop it. They cannot be changed.
    pub fn space(&self) -> &Volume {
        &self.space
    }

    /// The volumes, by slot, without snapshots and those that are being removed.
    pub fn volumes(&self) -> Vec<Volume> {
        let volumes = self.core.volumes.borrow();
        let there = volumes.values().filter(|volume| !volume.is_removed() && volume.number() == 0);
        there.map(|volume| self.volume(volume)).collect()
    }

    /// The snapshots of a volume, the earliest first, without those that are being removed.
    ///
    /// # Errors
    /// When there is no such volume.
    pub fn snapshots(&self, volume: &str) -> Result<Vec<Volume>, VolumeError> {
        let head = self.core.find(volume)?;
        let snapshots = head.snapshots.borrow();
        let there = snapshots.iter().filter(|snapshot| !snapshot.is_removed());
        Ok(there.map(|snapshot| self.volume(snapshot)).collect())
    }

    /// The volume of this name, or the snapshot `VOLUME@SNAPSHOT`.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, name: &str) -> Result<Volume, VolumeError> {
        match (self.core.find(name), name.rsplit_once('@')) {
            (Err(_), Some((volume, snapshot))) => Ok(self.volume(&self.find_snapshot(volume, snapshot)?)),
            (found, _) => Ok(self.volume(&found?)),
        }
    }

    fn find_snapshot(&self, volume: &str, name: &str) -> Result<Rc<PoolVolume>, VolumeError> {
        self.core.find_snapshot(&*self.core.find(volume)?, name)
    }

    /// Makes snapshots of volumes, all of the same moment: the writes that have completed before are in them, and those
    /// that begin later are not. They are durable at the return. Takes no longer for large volumes.
    ///
    /// # Errors
    /// When a volume does not exist, is a clone, or is named twice, or a name is taken or invalid; when the pool has no slot
    /// or no room left, very large zones, or several shards and was made by an earlier version; those of the device. Then
    /// some of the snapshots may be there if the pool became full.
    pub async fn snapshot(&self, new: Vec<NewSnapshot>) -> Result<Vec<Volume>, VolumeError> {
        new.iter().try_for_each(|NewSnapshot { name, .. }| check_new_name(name))?;
        let core = self.core.clone();
        let made = async move { core.snapshot(new).await };
        let snapshots = self.core.runtime.run_whole(made).await?;
        Ok(snapshots.iter().map(|snapshot| self.volume(snapshot)).collect())
    }

    /// Removes a snapshot. Its space is freed without reading data.
    ///
    /// # Errors
    /// When there is no such snapshot, or a volume is a clone of it; those of the device. If the snapshot is not found any
    /// more then, [`Pool::finish_removals`] continues.
    pub async fn remove_snapshot(&self, volume: &str, name: &str) -> Result<(), VolumeError> {
        let (core, head, name) = (self.core.clone(), self.core.find(volume)?, name.to_string());
        let removed = async move { core.remove_snapshot(&head, &name).await };
        self.core.runtime.run_whole(removed).await
    }

    /// Gives a volume the contents of its latest snapshot; its requests wait meanwhile. Its size stays, unless the snapshot
    /// is larger: then it becomes that of the snapshot.
    ///
    /// # Errors
    /// When there is no such snapshot, or a later one; those of the device, after which the next start continues.
    pub async fn roll_back(&self, volume: &str, name: &str) -> Result<(), VolumeError> {
        let (core, head, name) = (self.core.clone(), self.core.find(volume)?, name.to_string());
        let returned = async move { core.roll_back(&head, &name).await };
        self.core.runtime.run_whole(returned).await
    }

    /// The blocks of a volume that may differ between a snapshot and a later one, or now.
    ///
    /// # Errors
    /// When there is no such volume or snapshot, or the second one is not later; those of the device.
    pub async fn changed(
        &self,
        volume: &str,
        from: &str,
        to: Option<&str>,
    ) -> Result<Vec<Range<u64>>, VolumeError> {
        let (head, from) = (self.core.find(volume)?, self.find_snapshot(volume, from)?);
        let _removing = head.removal.take().await;
        let to = to.map(|to| self.find_snapshot(volume, to)).transpose()?;
        if to.as_ref().is_some_and(|to| to.number() <= from.number()) {
            return Err(PoolError::NotLater.into());
        }
        self.core.changed(&head, &from, to.as_deref()).await
    }

    /// Adds a clone of a snapshot: a volume with its contents, which takes no room before it is written. Its size is that
    /// of the snapshot, and it has no limits, floors or latency class.
    ///
    /// # Errors
    /// As [`Pool::add`]; when there is no such snapshot.
    pub async fn clone_of(
        &self,
        (volume, snapshot): (&str, &str),
        name: &str,
        uuid: [u8; 16],
    ) -> Result<Volume, VolumeError> {
        let snapshot = self.find_snapshot(volume, snapshot)?;
        let (core, name) = (self.core.clone(), name.to_string());
        let added = async move {
            let _changing = core.changes.take().await;
            if snapshot.is_removed() {
                return Err(PoolError::NoSnapshot { name: core.full_name(&snapshot) }.into());
            }
            let origin = VolumeOrigin::Clone { slot: snapshot.slot };
            let record = snapshot.record.borrow().clone();
            assert_eq!(record.guaranteed, 0, "room that is guaranteed to snapshot {}", snapshot.number());
            core.add(VolumeRecord { name, uuid, origin, ..record }).await
        };
        Ok(self.volume(&self.core.runtime.run_whole(added).await?))
    }

    fn volume(&self, volume: &Rc<PoolVolume>) -> Volume {
        Volume::of_pool(VolumeOfPool { pool: self.core.clone(), volume: volume.clone() })
    }

    /// Adds a volume. It takes no room before it is written.
    ///
    /// # Errors
    /// When the name is taken or invalid, the size is impossible, or the pool has no slot or no room left; those of the
    /// device.
    pub async fn add(&self, new: NewVolume) -> Result<Volume, VolumeError> {
        let pool = self.core.clone();
        let added = async move {
            let NewVolume { name, uuid, blocks, sector, codec, unit, qos, guaranteed } = new;
            if !qos.is_possible() {
                return Err(PoolError::FloorAboveLimit.into());
            }
            if guaranteed > 0 {
                permit_guarantees(&pool).await?;
            }
            let _changing = pool.changes.take().await;
            let unit = unit.min(pool.space.largest_unit());
            let (origin, queue_seconds) = (VolumeOrigin::Empty, 0);
            let record = VolumeRecord {
                name,
                uuid,
                blocks,
                sector,
                codec,
                unit,
                queue_seconds,
                is_removed: false,
                origin,
                returns_to: None,
                qos,
                guaranteed,
            };
            pool.add(record).await
        };
        let volume = self.core.runtime.run_whole(added).await?;
        Ok(self.volume(&volume))
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// When there is no such volume, or the name is taken or invalid; those of the device.
    pub async fn rename(&self, name: &str, to: &str) -> Result<(), VolumeError> {
        let (pool, name, to) = (self.core.clone(), name.to_string(), to.to_string());
        let renamed = async move {
            let _changing = pool.changes.take().await;
            let volume = pool.find(&name)?;
            pool.check_name(&to)?;
            let record = VolumeRecord { name: to, ..volume.record.borrow().clone() };
            Ok(pool.change_record(&volume, record).await?)
        };
        self.core.runtime.run_whole(renamed).await
    }

    /// Removes a volume with its data. Its requests in progress are awaited, and later ones fail.
    ///
    /// # Errors
    /// When there is no such volume, or it has snapshots; those of the device. If the volume is not found any more then,
    /// [`Pool::finish_removals`] continues.
    pub async fn remove(&self, name: &str) -> Result<(), VolumeError> {
        let (pool, name) = (self.core.clone(), name.to_string());
        let removed = async move {
            {
                let volume = pool.find(&name)?;
                let _removing = volume.removal.take().await;
                pool.finish_snapshot_removals(&volume).await?;
            }
            let volume = {
                let _changing = pool.changes.take().await;
                let volume = pool.find(&name)?;
                let snapshots = volume.snapshots.borrow().clone();
                if !snapshots.is_empty() {
                    return Err(PoolError::HasSnapshots { names: names(&snapshots) }.into());
                }
                let record =
                    VolumeRecord { is_removed: true, guaranteed: 0, ..volume.record.borrow().clone() };
                pool.change_record(&volume, record).await?;
                pool.space.guarantee(volume.family(), &[]);
                volume
            };
            pool.finish_removal(&volume).await
        };
        self.core.runtime.run_whole(removed).await
    }

    /// Continues removals that were interrupted: their volumes are not there any more, and still take room.
    ///
    /// # Errors
    /// The first one of the device; the removals of other volumes are finished.
    pub async fn finish_removals(&self) -> Result<(), VolumeError> {
        let pool = self.core.clone();
        let finished = async move {
            let volumes: Vec<Rc<PoolVolume>> = pool.volumes.borrow().values().cloned().collect();
            let mut result = Ok(());
            for volume in volumes {
                if !volume.snapshots.borrow().is_empty() {
                    let _removing = volume.removal.take().await;
                    result = result.and(pool.finish_snapshot_removals(&volume).await);
                } else if volume.is_removed() && volume.number() == 0 {
                    result = result.and(pool.finish_removal(&volume).await);
                }
            }
            result
        };
        self.core.runtime.run_whole(finished).await
    }

    /// Number of extents, those of the table included, and of free ones, and the bytes of an extent.
    pub fn extents(&self) -> (u32, u32, u64) {
        let PoolLayout { extents, extent_blocks, .. } = self.core.layout;
        (extents, self.core.table.borrow().free_extents(), extent_blocks as u64 * BLOCK as u64)
    }

    /// Number of free extents that only volumes with guaranteed room may take.
    pub fn extents_set_aside(&self) -> u64 {
        extents_set_aside(&self.core)
    }

    /// Space of the volumes and snapshots, by slot ([`Volume::slot`]), without those that are being removed; none in a pool
    /// of several shards that was made by an earlier version. The first call since the start reads the whole map, and each call compares volumes with their
    /// snapshots in the extents that both have; no data is read. Exact unless data is written meanwhile.
    ///
    /// # Errors
    /// A page of the map cannot be read.
    pub async fn space_use(&self) -> Result<BTreeMap<u32, SpaceUse>, VolumeError> {
        usage::space_use(&self.core).await
    }

    /// Checks that no blocks are mapped in free extents and beyond the ends of volumes, and returns the number of those of
    /// the table. No request may be in flight.
    ///
    /// # Errors
    /// The first such blocks; those of the device.
    pub async fn audit(&self) -> Result<u64, String> {
        let (pool, layout) = (&self.core, self.core.layout);
        let owners: Vec<(u32, ExtentOwner)> = pool.table.borrow().owners().collect();
        for (extent, owner) in owners {
            let blocks = layout.start(extent)..layout.start(extent + 1);
            let Some(slot) = owner.slot() else {
                match count_mapped(&pool.space, blocks).await? {
                    0 => continue,
                    mapped => return Err(format!("{mapped} blocks of extent {extent}, which is free")),
                }
            };
            let volume = pool.volumes.borrow().get(&slot).cloned().ok_or("an extent without a volume")?;
            if volume.number() > 0 {
                // What the volume had beyond the end of the snapshot, when it had grown.
                continue;
            }
            let first = owner.index() as u64 * layout.extent_blocks as u64;
            let end = volume.blocks.get().saturating_sub(first).min(layout.extent_blocks.into());
            let beyond = count_mapped(&pool.space, blocks.start + end..blocks.end).await?;
            if beyond > 0 {
                return Err(format!("{beyond} blocks beyond the end of the volume in slot {slot}"));
            }
        }
        count_mapped(&pool.space, 0..layout.start(layout.reserved)).await
    }
}

/// Reads the records of the volumes.
async fn read_records(core: &PoolCore) -> Result<(), VolumeError> {
    let (mut names, largest) = (BTreeSet::new(), core.space.largest_unit());
    for slot in written_blocks(&core.space, 0..core.layout.slots as u64).await? {
        let decode = |block: &[u8]| VolumeRecord::decode(block, core.mark, slot as u32);
        let mut record = read_table(&core.space, slot, decode).await?;
        core.check_size(record.blocks).map_err(|_| VolumeError::Absurd)?;
        record.unit = record.unit.min(largest);
        let is_snapshot = matches!(record.origin, VolumeOrigin::Snapshot { .. });
        if !is_snapshot && !names.insert(record.name.clone()) {
            return Err(VolumeError::Absurd);
        }
        core.volumes.borrow_mut().insert(slot as u32, Rc::new(PoolVolume::new(slot as u32, record)));
    }
    note_guarantees(core);
    Ok(())
}

/// Extents whose owners are to be cleared, in ascending order.
#[derive(Default)]
struct StrayExtents {
    /// Extents whose owner is impossible.
    astray: Vec<u32>,
    /// Extents behind the ends of volumes, without data: an interrupted change of a volume with guaranteed room in a pool of
    /// several shards has left them.
    behind_end: Vec<u32>,
}

/// Reads the owners of the extents.
async fn read_owners(core: &PoolCore) -> Result<StrayExtents, VolumeError> {
    let layout = core.layout;
    for block in written_blocks(&core.space, layout.owner_blocks()).await? {
        let owners =
            read_table(&core.space, block, |bytes| layout.decode_owners(bytes, core.mark, block)).await?;
        core.table.borrow_mut().load(block, owners);
        give_way().await;
    }
    let (volumes, mut stray) = (core.volumes.borrow(), StrayExtents::default());
    let may_be_behind = core.space.shards() > 1 && has_guarantees(core);
    for (extent, owner) in core.table.borrow().owners() {
        let Some(slot) = owner.slot() else { continue };
        let is_inside =
            |volume: &Rc<PoolVolume>| (owner.index() as u64) < layout.extents_of(volume.blocks.get());
        match volumes.get(&slot) {
            Some(volume) if !is_inside(volume) && may_be_behind && volume.number() == 0 => {
                stray.behind_end.push(extent)
            }
            Some(volume) if is_inside(volume) && volume.extent(owner.index() as u64) == 0 => {
                volume.set_extent(owner.index(), extent, owner.birth());
            }
            _ => stray.astray.push(extent),
        }
    }
    Ok(stray)
}

/// Discards extents, and clears their owners. In ascending order.
async fn clear(core: &PoolCore, extents: &[u32]) -> Result<(), DeviceError> {
    for extent in extents {
        core.empty(*extent).await?;
    }
    let owner_block = |extent: &u32| core.layout.owner_block(*extent);
    for of_block in extents.chunk_by(|a, b| owner_block(a) == owner_block(b)) {
        let is_cleared = |extent: u32| of_block.binary_search(&extent).is_ok();
        core.write_owners(owner_block(&of_block[0]), |extent| {
            is_cleared(extent).then_some(ExtentOwner::FREE)
        })
        .await?;
        of_block.iter().for_each(|extent| core.table.borrow_mut().clear(*extent));
    }
    Ok(())
}

async fn count_mapped(space: &ThinSpace, blocks: Range<u64>) -> Result<u64, String> {
    let counted = written_blocks(space, blocks).await;
    counted.map(|blocks| blocks.len() as u64).map_err(|error| error.to_string())
}

/// Reads a block of the table.
async fn read_table<T>(
    space: &ThinSpace,
    block: u64,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, VolumeError> {
    match space.read_verified(block, decode).await {
        Err(DeviceError::Gone) => Err(DeviceError::Gone.into()),
        Err(_) => Err(PoolError::TableDamaged { block }.into()),
        Ok(found) => Ok(found),
    }
}

/// The blocks among these that are mapped.
async fn written_blocks(space: &ThinSpace, blocks: Range<u64>) -> Result<Vec<u64>, DeviceError> {
    Ok(space.mapped(blocks).await?.into_iter().flatten().collect())
}

/// What a device carries.
pub enum Opened {
    /// One volume.
    Volume(Volume),
    /// Any number of volumes with names.
    Pool(Pool),
}

impl Opened {
    /// All blocks, those of the volume or of the pool: for their status, and to stop them.
    pub fn all_blocks(&self) -> &Volume {
        match self {
            Opened::Volume(volume) => volume,
            Opened::Pool(pool) => pool.space(),
        }
    }
}

/// Opens the volume, or the pool, on a device.
///
/// # Errors
/// As [`Volume::open`]; when the table of the pool cannot be read, or is damaged.
pub async fn open(
    runtime: &Runtime,
    device: Rc<dyn ZonedDevice>,
    options: VolumeOptions,
) -> Result<Opened, VolumeError> {
    let space = ThinSpace::open(runtime, device, options).await?;
    Ok(match space.pool() {
        Some(shape) => Opened::Pool(Pool::of(runtime, space, shape, options.give_up).await?),
        None => Opened::Volume(Volume::whole(space)),
    })
}
