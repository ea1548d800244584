//! Cuts off the end of a volume of a pool, while the volume is used.
//!
//! The end must not have data: not in the volume, nor in a snapshot of it, nor in the snapshot of which it is a clone,
//! since the blocks of all of these are found through its extents, and a clone that grows again would show those below.
//! The extents behind the new end are freed first, as those of a volume that is removed, and the record gets the new size
//! then. So the owner of each extent has it inside of its size at any moment, and an interruption leaves the former size,
//! with zeros at the end, or the new one. New requests for the end wait from before the decisive look at it until the
//! record has changed; so nothing is written there in between.

use crate::{
    runtime::give_way,
    volume::{
        error::{PoolError, VolumeError},
        part::{HeldEnd, VolumeOfPool},
        pool_table::VolumeRecord,
    },
};
use std::rc::Rc;

impl VolumeOfPool {
    /// As [`super::Volume::resize`].
    pub async fn resize(&self, blocks: u64) -> Result<(), VolumeError> {
        if blocks >= self.blocks() {
            return self.grow(blocks).await;
        }
        self.pool.check_size(blocks)?;
        if self.volume.number() > 0 {
            return Err(PoolError::IsSnapshot.into());
        }
        let of_pool = self.clone();
        self.pool.runtime.run_whole(async move { of_pool.shrink(blocks).await }).await
    }

    async fn shrink(&self, blocks: u64) -> Result<(), VolumeError> {
        let VolumeOfPool { pool, volume } = self;
        let _shrinking = volume.removal.take().await;
        pool.finish_snapshot_removals(volume).await?;
        if volume.record.borrow().returns_to.is_some() {
            return Err(PoolError::Returning.into());
        }
        if blocks > self.blocks() {
            // Another change of the size came first.
            return self.grow(blocks).await;
        }
        // Mostly refused here, while no request waits.
        self.check_end(blocks).await?;
        let _held = HeldEnd::of(volume.clone(), blocks).await;
        self.check_end(blocks).await?;
        self.free_end(blocks).await?;
        let _changing = pool.changes.take().await;
        let record = VolumeRecord { blocks, ..volume.record.borrow().clone() };
        pool.change_record(volume, record).await?;
        pool.settle_guarantee(volume);
        Ok(())
    }

    /// Checks that no block from `blocks` on has data that can be read, in this volume or through its extents. Looks at the
    /// last extents first.
    async fn check_end(&self, blocks: u64) -> Result<(), VolumeError> {
        let VolumeOfPool { pool, volume } = self;
        if let Some(last) = self.last_data_from(blocks).await? {
            return Err(VolumeError::DataBehindEnd { last, to: blocks });
        }
        let others = volume.snapshots.borrow().iter().rev().cloned().collect::<Vec<_>>();
        for other in others.into_iter().chain(pool.below(volume)) {
            let of_pool = VolumeOfPool { pool: pool.clone(), volume: other.clone() };
            let Some(last) = of_pool.last_data_from(blocks).await? else { continue };
            let (name, to) = (pool.full_name(&other), blocks);
            let is_own = pool.head_of(&other).is_some_and(|head| Rc::ptr_eq(&head, volume));
            return Err(match is_own {
                true => PoolError::KeptBehindEnd { name, last, to }.into(),
                false => PoolError::BelowBehindEnd { name, last, to }.into(),
            });
        }
        Ok(())
    }

    /// The last block with data from block `from` on.
    async fn last_data_from(&self, from: u64) -> Result<Option<u64>, VolumeError> {
        let size = self.pool.layout.extent_blocks as u64;
        for index in (from / size..self.pool.layout.extents_of(self.blocks())).rev() {
            give_way().await;
            let first = from.saturating_sub(index * size);
            if let Some(last) = self.last_data(index, first).await? {
                return Ok(Some(last));
            }
        }
        Ok(None)
    }

    /// Frees the extents behind the first `blocks` blocks, which have no data there.
    async fn free_end(&self, blocks: u64) -> Result<(), VolumeError> {
        let VolumeOfPool { pool, volume } = self;
        let size = pool.layout.extent_blocks as u64;
        // The end of the last extent may have holes of a clone.
        let (index, rest) = (blocks / size, blocks % size);
        let extent = volume.extent(index);
        if rest > 0 && extent != 0 {
            pool.space.discard(pool.layout.start(extent) + rest, size - rest).await?;
        }
        // Discards whose requests were dropped, too: the blocks must not come back.
        pool.space.settle().await?;
        // Extents that are claimed for requests that were dropped: later ones are refused.
        drop(pool.changes.take().await);
        let mut extents = volume.sorted_extents();
        extents.retain(|(_, index)| *index as u64 >= blocks.div_ceil(size));
        pool.free_all(volume, &extents).await
    }
}
