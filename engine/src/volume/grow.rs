//! Enlarges a running volume.

use crate::volume::{core::VolumeCore, error::VolumeError, map::PagedMap, space::ShardPlan};

/// As [`super::Volume::grow`], for a volume of one shard. The new blocks exist for users once a root with them is durable:
/// a recovery from an earlier root would not know them.
pub async fn grow(core: &VolumeCore, blocks: u64) -> Result<(), VolumeError> {
    let plan = ShardPlan::of(core.device.geometry(), Some(blocks))?;
    core.check()?;
    if !enlarge(core, blocks, &plan)? {
        // It frees zones in which nothing is live.
        core.request_checkpoint().await?;
        if !enlarge(core, blocks, &plan)? {
            return Err(VolumeError::TooFullToGrow);
        }
    }
    // A checkpoint that has taken its cut before has the former size.
    core.request_checkpoint().await?;
    core.blocks.set(core.blocks.get().max(blocks));
    Ok(())
}

/// Enlarges the map in memory, for the next root; `false` if there is too little room. One stretch: 12 bytes for each
/// page that is added.
fn enlarge(core: &VolumeCore, blocks: u64, plan: &ShardPlan) -> Result<bool, VolumeError> {
    let mut state = core.state.borrow_mut();
    if blocks < state.blocks {
        return Err(VolumeError::Shrinks { have: state.blocks });
    }
    if !state.space.grow(plan.clone()) {
        return Ok(false);
    }
    let most = core.options.map_pages.unwrap_or_else(|| plan.default_pages());
    state.map.grow(blocks, most);
    state.directory.resize(PagedMap::directory_blocks(blocks) as usize, 0);
    state.blocks = blocks;
    Ok(true)
}
