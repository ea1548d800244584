//! Room that is guaranteed to a volume of a pool with its snapshots.
//!
//! The room that such a family does not take is set aside ([`super::extent_room`]): the writes of others are refused as if it
//! were taken, so that those of the family are not. The same holds for extents: as many free ones stay as the volumes with
//! guarantees and their latest snapshots may need for their whole size. The table of the pool has a guarantee of its own as
//! soon as there is another one, since a write to a new extent changes it.
//!
//! A guarantee is in memory before it is in the record of the volume, and stays there until the record has none: so an
//! interruption never leaves one in the record whose room others have taken.

use crate::{
    buf::BLOCK,
    device::DeviceError,
    volume::{
        address::GRAINS,
        error::{PoolError, VolumeError},
        extent_room::TABLE_FAMILY,
        part::{PoolCore, PoolVolume, VolumeOfPool},
        pool_table::VolumeRecord,
        usage::count_extents,
    },
};
use std::rc::Rc;

/// Records the families of the extents, and the guarantees of the volumes' records, at the start.
pub fn load_guarantees(pool: &PoolCore) {
    if pool.space.shards() > 1 {
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
    if !pool.space.first().state.borrow().has_guarantees {
        return;
    }
    pool.space.guarantee(TABLE_FAMILY, table_blocks(pool));
    for volume in volumes.values().filter(|volume| !volume.is_removed() && volume.number() == 0) {
        pool.space.guarantee(volume.family(), volume.record.borrow().guaranteed);
    }
}

/// Blocks of the table of a pool.
fn table_blocks(pool: &PoolCore) -> u64 {
    pool.layout.owner_blocks().end
}

/// Records in a root that room is guaranteed, with the room of each extent: a program without guarantees must not write to
/// the pool.
///
/// # Errors
/// Guarantees are not supported in this pool; those of the device.
pub async fn permit_guarantees(pool: &PoolCore) -> Result<(), VolumeError> {
    let core = pool.space.first();
    if pool.space.shards() > 1 || core.state.borrow().space.extents.is_none() {
        return Err(PoolError::GuaranteeInShards.into());
    }
    count_extents(core).await?;
    let _changing = pool.changes.take().await;
    if core.state.borrow().has_guarantees {
        return Ok(());
    }
    let (extents, zones) = (pool.layout.extents, core.identity.zones as u64);
    let directory = core.state.borrow().directory.len() as u64;
    let root = 12 * zones + 4 * directory + 4 * extents as u64 + BLOCK as u64;
    if root.div_ceil(BLOCK as u64 / 2) > core.capacity() as u64 {
        return Err(PoolError::GuaranteeInSmallZones { extents }.into());
    }
    check_room_for(pool, TABLE_FAMILY, table_blocks(pool))?;
    pool.space.guarantee(TABLE_FAMILY, table_blocks(pool));
    core.state.borrow_mut().has_guarantees = true;
    Ok(pool.space.checkpoint().await?)
}

/// Checks that so many blocks can be guaranteed to a family.
fn check_room_for(pool: &PoolCore, family: u16, blocks: u64) -> Result<(), PoolError> {
    let most = pool.space.first().state.borrow().space.guaranteeable(family) / GRAINS as u64;
    if blocks <= most { Ok(()) } else { Err(PoolError::NotGuaranteeable { blocks, most }) }
}

/// Extents that a volume of `size` blocks with this guarantee, and its latest snapshot, may still need.
fn needed(pool: &PoolCore, volume: Option<&PoolVolume>, size: u64, guaranteed: u64) -> u64 {
    if guaranteed == 0 {
        return 0;
    }
    let all = pool.layout.extents_of(size);
    let lacks = |volume: &PoolVolume| all.saturating_sub(volume.extent_count());
    let latest = volume.and_then(|volume| {
        volume.snapshots.borrow().iter().rfind(|snapshot| !snapshot.is_removed()).cloned()
    });
    volume.map_or(all, lacks) + latest.map_or(0, |latest| lacks(&latest))
}

/// Free extents that volumes of other families may need for their guarantees.
pub fn needed_by_others(pool: &PoolCore, family: u16) -> u64 {
    let volumes = pool.volumes.borrow();
    let guaranteed = volumes.values().filter_map(|volume| {
        let guaranteed = volume.record.borrow().guaranteed;
        let is_other = guaranteed > 0 && !volume.is_removed() && volume.family() != family;
        is_other.then_some((volume, guaranteed))
    });
    guaranteed.map(|(volume, blocks)| needed(pool, Some(volume), volume.blocks.get(), blocks)).sum()
}

fn check_free_extents(pool: &PoolCore, needed: u64) -> Result<(), PoolError> {
    let free = pool.table.borrow().free_extents() as u64;
    if needed <= free { Ok(()) } else { Err(PoolError::FewAddresses { needed, free }) }
}

/// Checks that the extents suffice for the guarantees if these volumes get snapshots. The caller holds `changes`.
pub fn check_snapshot_addresses(pool: &PoolCore, heads: &[Rc<PoolVolume>]) -> Result<(), PoolError> {
    let is_guaranteed = |head: &&Rc<PoolVolume>| head.record.borrow().guaranteed > 0;
    let guaranteed = heads.iter().filter(is_guaranteed);
    let more: u64 = guaranteed.map(|head| pool.layout.extents_of(head.blocks.get())).sum();
    if more == 0 { Ok(()) } else { check_free_extents(pool, more + needed_by_others(pool, 0)) }
}

impl PoolCore {
    /// Sets blocks aside for a family, whose volume is to have `size` blocks. The caller holds `changes`.
    ///
    /// # Errors
    /// The room, or the extents, do not suffice.
    pub fn set_aside(
        &self,
        (family, volume): (u16, Option<&PoolVolume>),
        size: u64,
        blocks: u64,
    ) -> Result<(), PoolError> {
        check_room_for(self, family, blocks)?;
        check_free_extents(self, needed(self, volume, size, blocks) + needed_by_others(self, family))?;
        self.space.guarantee(family, blocks);
        Ok(())
    }

    /// Whether a family may take a free extent.
    pub fn may_claim(&self, family: u16) -> bool {
        self.table.borrow().free_extents() as u64 > needed_by_others(self, family)
    }

    /// Checks that the extents suffice if a volume has `size` blocks and this guarantee. The caller holds `changes`.
    pub fn check_addresses(&self, volume: &PoolVolume, size: u64, guaranteed: u64) -> Result<(), PoolError> {
        if guaranteed == 0 {
            return Ok(());
        }
        let others = needed_by_others(self, volume.family());
        check_free_extents(self, needed(self, Some(volume), size, guaranteed) + others)
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
            if volume.is_removed() {
                return Err(DeviceError::Gone.into());
            }
            let former = volume.record.borrow().guaranteed;
            if blocks > former {
                pool.set_aside((volume.family(), Some(&volume)), volume.blocks.get(), blocks)?;
            }
            let record = VolumeRecord { guaranteed: blocks, ..volume.record.borrow().clone() };
            let changed = pool.change_record(&volume, record).await;
            pool.space.guarantee(volume.family(), if changed.is_ok() { blocks } else { former });
            Ok(changed?)
        };
        self.pool.runtime.run_whole(guaranteed).await
    }
}
