//! Room that is guaranteed to a volume of a pool with its snapshots.
//!
//! The room that such a family does not take is set aside ([`super::extent_room`]): the writes of others are refused as if it
//! were taken, so that those of the family are not. The same holds for extents: as many free ones stay as the volumes with
//! guarantees and their latest snapshots may need for their whole size. The table of the pool has a guarantee of its own as
//! soon as there is another one, since a write to a new extent changes it.
//!
//! In a pool of several shards a volume with a guarantee gets all extents of its size before its record says so, and each
//! shard sets aside its share ([`super::shares`]). Extents beyond the size in the record are those of an interrupted change:
//! nothing was written to them, and the next start frees them.
//!
//! A guarantee is in memory before it is in the record of the volume, and stays there until the record has none: so an
//! interruption never leaves one in the record whose room others have taken.

use crate::{
    buf::BLOCK,
    device::DeviceError,
    runtime::{give_way, work},
    volume::{
        address::GRAINS,
        core::VolumeCore,
        error::{PoolError, VolumeError},
        extent_room::TABLE_FAMILY,
        part::{PoolCore, PoolVolume, VolumeOfPool},
        pool_table::{ExtentOwner, VolumeRecord},
        shares::{DividedGuarantee, ShardRoom},
        usage::count_extents,
    },
};
use std::{ops::Range, rc::Rc};

/// Extents of a volume that are looked at per unit of work.
const EXTENTS_IN_UNIT: u64 = 64;

/// Records the families of the extents, and the guarantees of the volumes' records, at the start.
pub fn load_guarantees(pool: &PoolCore) {
    if !pool.space.has_whole_extents() {
        return;
    }
    let owners: Vec<(u32, u32)> = {
        let table = pool.table.borrow();
        table.owners().filter_map(|(extent, owner)| Some((extent, owner.slot()?))).collect()
    };
    let volumes = pool.volumes.borrow();
    for (extent, slot) in owners {
        volumes.get(&slot).into_iter().for_each(|volume| pool.space.set_family(extent, volume.family()));
    }
    (0..pool.layout.reserved).for_each(|extent| pool.space.set_family(extent, TABLE_FAMILY));
    if !has_guarantees(pool) {
        return;
    }
    pool.space.guarantee(TABLE_FAMILY, &table_blocks(pool));
    for volume in volumes.values().filter(|volume| !volume.is_removed() && volume.number() == 0) {
        pool.settle_guarantee(volume);
    }
}

/// Whether the roots of all shards say that room is guaranteed, without which no record does.
pub fn has_guarantees(pool: &PoolCore) -> bool {
    pool.space.cores().iter().all(|core| core.state.borrow().has_guarantees)
}

/// Gives the volumes with guarantees in a pool of several shards the extents that they lack: an interrupted change of the
/// size has freed them. What does not fit is claimed when it is written.
///
/// # Errors
/// When the device has left.
pub async fn complete_guarantees(pool: &PoolCore) -> Result<(), VolumeError> {
    if !pool.space.has_whole_extents() || pool.space.shards() == 1 || !has_guarantees(pool) {
        return Ok(());
    }
    let _changing = pool.changes.take().await;
    let volumes: Vec<Rc<PoolVolume>> = pool.volumes.borrow().values().cloned().collect();
    for volume in volumes {
        let (size, guaranteed) = (volume.blocks.get(), volume.record.borrow().guaranteed);
        if guaranteed == 0 || volume.is_removed() || extents_by_shard(pool, &volume, size).1.is_empty() {
            continue;
        }
        let completed = take_extents(pool, &volume, size, guaranteed).await;
        pool.settle_guarantee(&volume);
        match completed {
            Err(VolumeError::Pool(_) | VolumeError::Device(DeviceError::Status(_))) => {}
            completed => completed?,
        }
    }
    Ok(())
}

/// Blocks of the table of a pool in each shard.
fn table_blocks(pool: &PoolCore) -> Vec<u64> {
    let (layout, mut blocks) = (pool.layout, vec![0; pool.space.shards()]);
    for extent in 0..layout.reserved {
        let end = layout.owner_blocks().end.min(layout.start(extent + 1));
        blocks[pool.table.borrow().shard(extent)] += end - layout.start(extent);
    }
    blocks
}

/// Records in the roots of all shards that room is guaranteed, with the room of each extent: a program without guarantees
/// must not write to the pool.
///
/// # Errors
/// Guarantees are not supported in this pool; those of the device.
pub async fn permit_guarantees(pool: &PoolCore) -> Result<(), VolumeError> {
    let cores = pool.space.cores();
    let is_uncounted = |core: &Rc<VolumeCore>| core.state.borrow().space.extents.is_none();
    if !pool.space.has_whole_extents() || cores.iter().any(is_uncounted) {
        return Err(PoolError::GuaranteeInShards.into());
    }
    for core in cores {
        count_extents(core).await?;
    }
    let _changing = pool.changes.take().await;
    if has_guarantees(pool) {
        return Ok(());
    }
    let in_shard = pool.layout.extents.div_ceil(pool.space.extent_shards()) as u64;
    for core in cores {
        let (zones, directory) = (core.identity.zones as u64, core.state.borrow().directory.len() as u64);
        let root = 12 * zones + 4 * directory + 4 * in_shard + BLOCK as u64;
        if root.div_ceil(BLOCK as u64 / 2) > core.capacity() as u64 {
            let extents = pool.layout.extents;
            return Err(PoolError::GuaranteeInSmallZones { extents }.into());
        }
    }
    let of_table = table_blocks(pool);
    for (core, blocks) in cores.iter().zip(&of_table) {
        check_room_for(core, TABLE_FAMILY, *blocks)?;
    }
    pool.space.guarantee(TABLE_FAMILY, &of_table);
    let announce = |core: &Rc<VolumeCore>, has: bool| {
        std::mem::replace(&mut core.state.borrow_mut().has_guarantees, has)
    };
    let had: Vec<bool> = cores.iter().map(|core| announce(core, true)).collect();
    let announced = pool.space.checkpoint().await;
    if announced.is_err() {
        // Some of the roots may lack it: the next call writes them again.
        cores.iter().zip(had).for_each(|(core, had)| _ = announce(core, had));
    }
    Ok(announced?)
}

/// Checks that so many blocks can be guaranteed to a family in a shard.
fn check_room_for(core: &VolumeCore, family: u16, blocks: u64) -> Result<(), PoolError> {
    let most = core.state.borrow().space.guaranteeable(family) / GRAINS as u64;
    if blocks <= most { Ok(()) } else { Err(PoolError::NotGuaranteeable { blocks, most }) }
}

/// Extents that a volume of a pool of several shards is to get.
struct PlacedExtents {
    /// Free extents, with their numbers in the volume.
    claims: Vec<(u32, u32)>,
    /// Number of all extents that the volume has in each shard then.
    by_shard: Vec<u64>,
}

/// Extents that volumes with guarantees, and their latest snapshots, may still need.
struct NeededExtents {
    /// Those of snapshots in each shard of several, since their blocks lie in the shard of those that they keep.
    by_shard: Vec<u64>,
    /// Those that may be in any shard.
    anywhere: u64,
}

impl NeededExtents {
    /// None, in a pool of so many shards.
    fn none(shards: usize) -> NeededExtents {
        NeededExtents { by_shard: vec![0; shards], anywhere: 0 }
    }

    fn all(&self) -> u64 {
        self.by_shard.iter().sum::<u64>() + self.anywhere
    }

    fn add(&mut self, other: &NeededExtents) {
        self.by_shard.iter_mut().zip(&other.by_shard).for_each(|(sum, more)| *sum += more);
        self.anywhere += other.anywhere;
    }
}

/// Extents that a volume of `size` blocks with a guarantee, and its latest snapshot, may still need.
fn needed(pool: &PoolCore, volume: &PoolVolume, size: u64) -> NeededExtents {
    let all = pool.layout.extents_of(size);
    let mut needed = NeededExtents::none(pool.space.shards());
    let latest = volume.snapshots.borrow().iter().rfind(|snapshot| !snapshot.is_removed()).cloned();
    if pool.space.shards() == 1 {
        let lacks = |volume: &PoolVolume| all.saturating_sub(volume.extent_count());
        needed.anywhere = lacks(volume) + latest.map_or(0, |latest| lacks(&latest));
        return needed;
    }
    needed.anywhere = extents_by_shard(pool, volume, size).1.len() as u64;
    if let Some(latest) = latest {
        for index in 0..all {
            let extent = volume.extent(index);
            let is_kept = extent != 0 && volume.birth(index) < latest.number();
            if is_kept && latest.extent(index) == 0 {
                needed.by_shard[pool.table.borrow().shard(extent)] += 1;
            }
        }
    }
    needed
}

/// Free extents that volumes of other families may need for their guarantees.
fn needed_by_others(pool: &PoolCore, family: u16) -> NeededExtents {
    let volumes = pool.volumes.borrow();
    let is_other = |volume: &&Rc<PoolVolume>| {
        volume.record.borrow().guaranteed > 0 && !volume.is_removed() && volume.family() != family
    };
    let mut sum = NeededExtents::none(pool.space.shards());
    for volume in volumes.values().filter(is_other) {
        sum.add(&needed(pool, volume, volume.blocks.get()));
    }
    sum
}

/// Number of free extents that only volumes with guarantees may take.
pub fn extents_set_aside(pool: &PoolCore) -> u64 {
    needed_by_others(pool, 0).all()
}

/// Checks that enough extents are free if a volume has `size` blocks and a guarantee; returns those that it and others
/// with guarantees need.
fn check_extents(pool: &PoolCore, volume: &PoolVolume, size: u64) -> Result<NeededExtents, PoolError> {
    let mut all = needed(pool, volume, size);
    all.add(&needed_by_others(pool, volume.family()));
    check_free_extents(pool, &all)?;
    Ok(all)
}

/// Checks that so many extents are free, also in each shard that has to have some.
fn check_free_extents(pool: &PoolCore, needed: &NeededExtents) -> Result<(), PoolError> {
    let table = pool.table.borrow();
    let of_shard = needed.by_shard.iter().zip(0..).filter(|(needed, _)| **needed > 0);
    let in_shards = of_shard.map(|(needed, shard)| (*needed, table.free_in(shard).len() as u64));
    let all = (needed.all(), table.free_extents() as u64);
    match in_shards.chain([all]).find(|(needed, free)| needed > free) {
        Some((needed, free)) => Err(PoolError::FewAddresses { needed, free }),
        None => Ok(()),
    }
}

/// Checks that the extents suffice for the guarantees if these volumes get snapshots. The caller holds `changes`.
pub fn check_snapshot_addresses(pool: &PoolCore, heads: &[Rc<PoolVolume>]) -> Result<(), PoolError> {
    let is_guaranteed = |head: &&Rc<PoolVolume>| head.record.borrow().guaranteed > 0;
    let mut more = NeededExtents::none(pool.space.shards());
    for head in heads.iter().filter(is_guaranteed) {
        match pool.space.shards() {
            1 => more.anywhere += pool.layout.extents_of(head.blocks.get()),
            _ => {
                let (by_shard, _) = extents_by_shard(pool, head, head.blocks.get());
                more.add(&NeededExtents { by_shard, anywhere: 0 });
            }
        }
    }
    if more.all() == 0 {
        return Ok(());
    }
    more.add(&needed_by_others(pool, 0));
    check_free_extents(pool, &more)
}

/// Number of the extents of a volume of `size` blocks in each shard, and the numbers in the volume of those that it
/// lacks.
fn extents_by_shard(pool: &PoolCore, volume: &PoolVolume, size: u64) -> (Vec<u64>, Vec<u32>) {
    let (mut by_shard, mut missing) = (vec![0; pool.space.shards()], Vec::new());
    let (table, all) = (pool.table.borrow(), pool.layout.extents_of(size));
    work((all / EXTENTS_IN_UNIT) as u32);
    for index in 0..all {
        match volume.extent(index) {
            0 => missing.push(index as u32),
            extent => by_shard[table.shard(extent)] += 1,
        }
    }
    (by_shard, missing)
}

fn divided(pool: &PoolCore, size: u64, blocks: u64) -> DividedGuarantee {
    DividedGuarantee { blocks, size, extent_blocks: pool.layout.extent_blocks.into() }
}

/// Blocks that each shard sets aside for a volume with so many extents there.
fn shares(pool: &PoolCore, by_shard: &[u64], size: u64, guaranteed: u64) -> Vec<u64> {
    match by_shard {
        [_] => vec![guaranteed],
        _ => by_shard.iter().map(|extents| divided(pool, size, guaranteed).share(*extents)).collect(),
    }
}

/// The free extents that a volume of a pool of several shards lacks for a guarantee.
///
/// # Errors
/// The room, or the extents, do not suffice in some shard.
fn place(
    pool: &PoolCore,
    volume: &PoolVolume,
    size: u64,
    guaranteed: u64,
) -> Result<PlacedExtents, PoolError> {
    let (mut by_shard, missing) = extents_by_shard(pool, volume, size);
    let needed = check_extents(pool, volume, size)?;
    let table = pool.table.borrow();
    let of_shard = |(shard, core): (usize, &Rc<VolumeCore>)| ShardRoom {
        extents: by_shard[shard],
        free: (table.free_in(shard).len() as u64).saturating_sub(needed.by_shard[shard]),
        room: core.state.borrow().space.guaranteeable(volume.family()) / GRAINS as u64,
    };
    let shards: Vec<ShardRoom> = pool.space.cores().iter().enumerate().map(of_shard).collect();
    let divided = divided(pool, size, guaranteed);
    if !divided.fits(&shards) {
        let most = divided.most(&shards);
        return Err(PoolError::NotGuaranteeable { blocks: guaranteed, most });
    }
    let mut free: Vec<_> = (0..shards.len()).map(|shard| table.free_in(shard).iter().rev()).collect();
    let mut claims = Vec::new();
    for (shard, index) in divided.distribute(&shards).into_iter().zip(missing) {
        by_shard[shard] += 1;
        claims.extend(free[shard].next().map(|extent| (*extent, index)));
    }
    Ok(PlacedExtents { claims, by_shard })
}

/// Gives a volume in a pool of several shards all extents of this size, and sets aside its shares of this guarantee, or the
/// former ones where these are larger. The caller holds `changes`.
///
/// # Errors
/// The room, or the extents, do not suffice, and nothing was changed; those of the device.
async fn take_extents(
    pool: &PoolCore,
    volume: &PoolVolume,
    size: u64,
    guaranteed: u64,
) -> Result<(), VolumeError> {
    let PlacedExtents { mut claims, by_shard } = place(pool, volume, size, guaranteed)?;
    let (former_size, former) = (volume.blocks.get(), volume.record.borrow().guaranteed);
    let before = shares(pool, &extents_by_shard(pool, volume, former_size).0, former_size, former);
    let shares = shares(pool, &by_shard, size, guaranteed).into_iter().zip(before);
    let shares: Vec<u64> = shares.map(|(now, before)| now.max(before)).collect();
    pool.space.guarantee(volume.family(), &shares);
    claims.extend(left_over(pool, volume, size));
    Ok(claim_all(pool, volume, claims).await?)
}

/// Extents of a volume behind its end, which an interrupted change has left, with their numbers in the volume, as far as
/// a volume of `size` blocks has them.
fn left_over(pool: &PoolCore, volume: &PoolVolume, size: u64) -> Vec<(u32, u32)> {
    let behind = pool.layout.extents_of(volume.blocks.get())..pool.layout.extents_of(size);
    let there = behind.map(|index| (volume.extent(index), index as u32));
    there.filter(|(extent, _)| *extent != 0).collect()
}

/// Gives a volume extents, free ones or those that it has behind its end, with their numbers in it. Each block of the
/// table is written once. The caller holds `changes`.
async fn claim_all(
    pool: &PoolCore,
    volume: &PoolVolume,
    mut claims: Vec<(u32, u32)>,
) -> Result<(), DeviceError> {
    claims.sort_unstable();
    let claimed = write_claims(pool, volume, &claims).await;
    if !claims.is_empty() {
        pool.table.borrow_mut().find_free();
    }
    claimed
}

async fn write_claims(
    pool: &PoolCore,
    volume: &PoolVolume,
    claims: &[(u32, u32)],
) -> Result<(), DeviceError> {
    let birth = volume.snapshots.borrow().last().map_or(0, |latest| latest.number());
    let owner_block = |(extent, _): &(u32, u32)| pool.layout.owner_block(*extent);
    for of_block in claims.chunk_by(|a, b| owner_block(a) == owner_block(b)) {
        for (extent, _) in of_block {
            give_way().await;
            pool.empty(*extent).await?;
        }
        let owner = |(_, index): &(u32, u32)| ExtentOwner::new(volume.slot, *index, birth);
        pool.write_owners(owner_block(&of_block[0]), |of| {
            let found = of_block.binary_search_by_key(&of, |(extent, _)| *extent);
            found.ok().map(|place| owner(&of_block[place]))
        })
        .await?;
        for claim @ (extent, index) in of_block {
            pool.table.borrow_mut().assign(*extent, owner(claim));
            pool.space.set_family(*extent, volume.family());
            volume.set_extent(*index, *extent, birth);
        }
    }
    Ok(())
}

impl PoolCore {
    /// Of some shards, those of which a family may take a free extent.
    pub fn claimable(&self, family: u16, shards: Range<usize>) -> impl Iterator<Item = usize> {
        let (needed, table) = (needed_by_others(self, family), self.table.borrow());
        let has_spare = table.free_extents() as u64 > needed.all();
        shards.filter(move |shard| has_spare && table.free_in(*shard).len() as u64 > needed.by_shard[*shard])
    }

    /// Checks that a volume in a pool of several shards can have this size and guarantee. The caller holds `changes`.
    ///
    /// # Errors
    /// The room, or the extents, do not suffice.
    pub fn check_guarantee(&self, volume: &PoolVolume, size: u64, guaranteed: u64) -> Result<(), PoolError> {
        place(self, volume, size, guaranteed).map(drop)
    }

    /// Sets aside what the record of a volume says. The caller holds `changes`.
    pub fn settle_guarantee(&self, volume: &PoolVolume) {
        let (size, guaranteed) = (volume.blocks.get(), volume.record.borrow().guaranteed);
        let by_shard = match guaranteed {
            0 => Vec::new(),
            _ => shares(self, &extents_by_shard(self, volume, size).0, size, guaranteed),
        };
        self.space.guarantee(volume.family(), &by_shard);
    }

    /// Sets aside the room that a volume needs for this record, before the record is written. In a pool of several shards the
    /// volume also gets its extents, and former shares that are larger stay: [`PoolCore::settle_guarantee`] has to follow. The
    /// caller holds `changes`.
    ///
    /// # Errors
    /// The room, or the extents, do not suffice, and nothing was changed; those of the device.
    pub async fn prepare_guarantee(
        &self,
        volume: &PoolVolume,
        record: &VolumeRecord,
    ) -> Result<(), VolumeError> {
        let (size, guaranteed) = (record.blocks, record.guaranteed);
        let is_raised = guaranteed > volume.record.borrow().guaranteed;
        let is_larger = size > volume.blocks.get();
        match (self.space.shards(), is_raised || is_larger && guaranteed > 0) {
            (1, true) => {
                if is_raised {
                    check_room_for(self.space.first(), volume.family(), guaranteed)?;
                }
                check_extents(self, volume, size)?;
                self.space.guarantee(volume.family(), &[guaranteed]);
                Ok(())
            }
            (1, false) => Ok(()),
            (_, true) => take_extents(self, volume, size, guaranteed).await,
            (_, false) => Ok(claim_all(self, volume, left_over(self, volume, size)).await?),
        }
    }

    /// Changes the record of a volume, with its size or its guarantee. The caller holds `changes`.
    ///
    /// # Errors
    /// The room, or the extents, do not suffice; Gone if the volume is being removed; those of the device.
    pub async fn change_guaranteed(
        &self,
        volume: &PoolVolume,
        record: VolumeRecord,
    ) -> Result<(), VolumeError> {
        if volume.is_removed() {
            return Err(DeviceError::Gone.into());
        }
        let changed = match self.prepare_guarantee(volume, &record).await {
            Ok(()) => self.change_record(volume, record).await.map_err(VolumeError::from),
            refused => refused,
        };
        self.settle_guarantee(volume);
        changed
    }
}

impl VolumeOfPool {
    /// As [`super::Volume::guarantee`].
    pub async fn guarantee(&self, blocks: u64) -> Result<(), VolumeError> {
        if self.volume.number() > 0 {
            return Err(PoolError::IsSnapshot.into());
        }
        let VolumeOfPool { pool, volume } = self.clone();
        let guaranteed = async move {
            if blocks > 0 {
                permit_guarantees(&pool).await?;
            }
            let _changing = pool.changes.take().await;
            let record = VolumeRecord { guaranteed: blocks, ..volume.record.borrow().clone() };
            pool.change_guaranteed(&volume, record).await
        };
        self.pool.runtime.run_whole(guaranteed).await
    }
}
