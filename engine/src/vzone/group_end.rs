//! The end of a stripe group: its physical zones become inactive, and its spares are returned.

use crate::{
    device::{Completion, DeviceError, Status},
    vzone::{
        core::{NamespaceCore, Tenant, TenantState},
        flush,
    },
};

/// Whether an error of a command for a zone shows that the zone is worn, and so not active.
pub(super) fn is_out(error: DeviceError) -> bool {
    use Status::*;
    let out = [ZoneIsReadOnly, ZoneIsOffline, InvalidZoneStateTransition];
    out.map(DeviceError::from).contains(&error)
}

/// Counts the zones of the last group of a v-zone as inactive, and returns its spares.
pub fn end_group(core: &NamespaceCore, state: &mut TenantState, zone: usize) {
    let vzone = &mut state.vzones[zone];
    if !std::mem::take(&mut vzone.active) {
        return;
    }
    let mut arbiter = core.arbiter.borrow_mut();
    if let Some((_, _, zones)) = vzone.groups.group(vzone.groups.len() - 1) {
        zones.iter().for_each(|zone| arbiter.retire(*zone));
    }
    state.spares -= std::mem::take(&mut vzone.spares);
    vzone.stuck = false;
    state.hold();
    drop(arbiter);
    core.room.open();
    core.work.open();
}

/// Ends the last group of a v-zone, which is full. Its data is flushed before its zones count as inactive: without that
/// they could be active again after a power cut.
pub async fn filled(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    let active = tenant.state.borrow().vzones[zone].active;
    if active {
        flush::flush_cache(core).await?;
        let vzone = tenant.state.borrow().vzones[zone];
        vzone.lost.map_or(Ok(()), Err)?;
        if vzone.tail < core.allocated(&vzone.groups) {
            // The capacity of the v-zone ends before its zones do.
            if finish_last(core, tenant, zone).await.is_err() {
                core.stick(tenant, zone);
            }
            return Ok(());
        }
        end_group(core, &mut tenant.state.borrow_mut(), zone);
    }
    Ok(())
}

/// Finishes the physical zones of the last group, in parallel since a drive may have to fill them, and counts them as
/// inactive. A worn zone is inactive too. A zone that cannot be finished for another reason stays active, and belongs
/// to the v-zone.
///
/// # Errors
/// That of a zone which stays active.
pub async fn finish_last(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    let vzone = tenant.state.borrow().vzones[zone];
    if vzone.active
        && let Some((_, _, zones)) = vzone.groups.group(vzone.groups.len() - 1)
    {
        let finishes: Vec<Completion> = zones.iter().map(|zone| core.finish_zone(*zone)).collect();
        let mut result = Ok(());
        for (zone, finish) in zones.iter().zip(finishes) {
            match finish.await.result {
                Err(error) if !is_out(error) => result = Err(error),
                _ => core.arbiter.borrow_mut().retire(*zone),
            }
        }
        result?;
        end_group(core, &mut tenant.state.borrow_mut(), zone);
    }
    Ok(())
}
