//! Consistency check of the zones' live counts against the map.

use crate::{
    runtime::give_way,
    volume::{
        address::{GRAINS, is_piece, share, unit},
        core::{Need, VolumeCore},
        extent_room::ExtentRoom,
        format::FANOUT,
        root::ZoneUse,
    },
};

/// Compares the number of live grains of each zone with the places in the map and its directory. No request may be in
/// flight.
///
/// # Errors
/// The first zone of which the numbers differ.
pub async fn audit(core: &VolumeCore) -> Result<(), String> {
    loop {
        let before = moment(core);
        let result = compare(core).await;
        // Repeated if garbage collection or a checkpoint has changed something meanwhile.
        if moment(core) == before {
            return result;
        }
    }
}

/// Next entry number and generation: both are unchanged if nothing has changed.
fn moment(core: &VolumeCore) -> (u64, u64) {
    let state = core.state.borrow();
    (state.next_number, state.generation)
}

/// Counts the live grains of each zone from the map, and compares them with the recorded counts.
async fn compare(core: &VolumeCore) -> Result<(), String> {
    let zones = core.identity.zones as usize;
    let (mut live, mut mapped) = (vec![0; zones], 0);
    let mut extents = core.identity.pool.and_then(|shape| ExtentRoom::of(shape, core.blocks.get()));
    let mut block = 0;
    while block < core.blocks.get() {
        give_way().await;
        let page = (block / FANOUT) as u32;
        let end = core.blocks.get().min((block / FANOUT + 1) * FANOUT);
        core.hold(page, Need::Pressing).await.map_err(|error| format!("page {page} of the map: {error}"))?;
        let mut state = core.state.borrow_mut();
        if let Some(extents) = &mut extents {
            extents.count_page(page, &state.map.copy(page).unwrap_or_default());
        }
        for block in block..end {
            let place = state.map.get(block).unwrap_or(0);
            if is_piece(place) {
                // The charge of a unit is the sum of the shares of its blocks, counted in order.
                let bit = block - unit(place).first(block);
                let others = state.there(block, place) as u32 & ((1 << bit) - 1);
                live[state.space.locate(place).0 as usize] += share(place, others.count_ones() + 1);
                mapped += 1;
            }
        }
        block = end;
    }
    let state = core.state.borrow();
    for place in state.map.directory().iter().chain(&state.directory).filter(|place| **place != 0) {
        live[state.space.locate(*place).0 as usize] += GRAINS;
    }
    for (zone, record) in state.space.zones() {
        let counted = live[zone as usize];
        if counted != record.live || counted > 0 && record.state == ZoneUse::Free {
            return Err(format!("zone {zone} has {counted} live grains, and counts as {record:?}"));
        }
    }
    if mapped != state.space.mapped() {
        return Err(format!("{mapped} blocks are mapped, and {} count as mapped", state.space.mapped()));
    }
    match (&state.space.extents, &extents) {
        (Some(recorded), Some(counted)) => recorded.audit(counted),
        _ => Ok(()),
    }
}
