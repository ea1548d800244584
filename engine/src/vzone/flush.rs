//! Flushes, and the marks of v-zones that may have lost writes by a failed one.

use crate::{
    device::{Command, DeviceError},
    vzone::{
        core::{NamespaceCore, Tenant, Vzone},
        format::End,
    },
    zone::ZoneIndex,
};

/// Flushes the device. Afterwards all completed writes are durable, except those of v-zones that are marked as having
/// lost some. Flushes are not concurrent: an array reports a loss only once, so one flush could succeed while another
/// one gets the report. Callers share a flush that begins after their call.
///
/// # Errors
/// The flush failed, and no v-zone could be marked for it.
pub async fn flush_device(core: &NamespaceCore) -> Result<(), DeviceError> {
    let flush = || async {
        while let Err(error) = core.device.submit(Command::Flush).await.result {
            core.losses.set(core.losses.get() + 1);
            if !lose(core, error).await {
                return Err(error);
            }
        }
        Ok(())
    };
    core.flushing.run(flush).await
}

/// Marks the v-zones that may have lost writes by a failed flush: those with a zone that has become worn since the last
/// report, or if there are none, all with unflushed writes. A zone that was worn before proves nothing, and data of a
/// v-zone whose end is recorded was flushed. Returns whether a v-zone was marked that was not before.
async fn lose(core: &NamespaceCore, error: DeviceError) -> bool {
    let (first, count) = (ZoneIndex(0), core.device.geometry().zones);
    let report = core.device.submit(Command::Report { first, count }).await;
    let before = match report.result {
        Ok(()) => core.note_worn(&report.zones),
        // Then no zone counts as worn since.
        Err(_) => core.worn.borrow().clone(),
    };
    let is = |worn: &[bool], zone: u32| worn.get(zone as usize).is_some_and(|worn| *worn);
    let is_out = |zone: &u32| is(&core.worn.borrow(), *zone) && !is(&before, *zone);
    let is_hit = |vzone: &Vzone| vzone.end == End::Open && vzone.groups.zones().iter().any(is_out);
    let tenants = core.tenants();
    let known = |vzone: &Vzone| vzone.lost.is_none() && is_hit(vzone);
    let any_hit = tenants.iter().any(|tenant| tenant.state.borrow().vzones.iter().any(known));
    let mut found = false;
    for tenant in tenants {
        for zone in 0..tenant.geometry.zones as usize {
            let mut state = tenant.state.borrow_mut();
            let vzone = &mut state.vzones[zone];
            let hit = if any_hit { is_hit(vzone) } else { is_plain(vzone) };
            if !hit || vzone.lost.is_some() {
                continue;
            }
            vzone.lost = Some(error);
            drop(state);
            found = true;
            tenant.fail_vzone(zone, error);
            core.stick(&tenant, zone);
        }
    }
    found
}

/// As [`flush_device`], if there is anything to be flushed.
pub async fn flush_cache(core: &NamespaceCore) -> Result<(), DeviceError> {
    if core.device.geometry().volatile_cache { flush_device(core).await } else { Ok(()) }
}

/// A flush command of the tenant. Lost writes of a v-zone are reported by the next flush, and by those that had begun
/// when it completed, but not by later ones.
pub async fn flush_and_report(core: &NamespaceCore, tenant: &Tenant) -> Result<(), DeviceError> {
    let number = {
        let mut state = tenant.state.borrow_mut();
        state.flushes += 1;
        state.flushes
    };
    flush(core, tenant).await?;
    let mut result = Ok(());
    let mut state = tenant.state.borrow_mut();
    let begun = state.flushes;
    let unreported =
        |vzone: &&mut Vzone| vzone.lost.is_some() && vzone.reported_by.is_none_or(|last| number <= last);
    for vzone in state.vzones.iter_mut().filter(unreported) {
        vzone.reported_by.get_or_insert(begun);
        result = vzone.lost.map_or(result, Err);
    }
    result
}

/// Makes the completed writes of a v-zone durable; fails if some may have been lost.
pub async fn flush_zone(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    flush(core, tenant).await?;
    tenant.state.borrow().vzones[zone].lost.map_or(Ok(()), Err)
}

/// Makes all completed writes durable, except those of v-zones that are marked as having lost some.
pub async fn flush(core: &NamespaceCore, tenant: &Tenant) -> Result<(), DeviceError> {
    if core.device.geometry().volatile_cache {
        let tails: Vec<(u32, u64)> = match tenant.state.borrow().vzones.iter().any(is_plain) {
            true => tenant.state.borrow().vzones.iter().map(|vzone| (vzone.epoch, vzone.tail)).collect(),
            false => Vec::new(),
        };
        flush_device(core).await?;
        let all = &mut tenant.state.borrow_mut().vzones;
        for (vzone, (epoch, tail)) in all.iter_mut().zip(tails).filter(|(vzone, _)| vzone.lost.is_none()) {
            if vzone.epoch == epoch {
                vzone.flushed = vzone.flushed.max(tail);
            }
        }
    } else {
        flush_device(core).await?;
    }
    Ok(())
}

/// Flushes the unflushed writes of a v-zone, so that its end can be recorded in the journal.
pub async fn flush_vzone(core: &NamespaceCore, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
    let plain = is_plain(&tenant.state.borrow().vzones[zone]);
    if plain { flush_zone(core, tenant, zone).await } else { Ok(()) }
}

/// Whether a v-zone has writes in a volatile cache that were not flushed.
fn is_plain(vzone: &Vzone) -> bool {
    vzone.plain_end > vzone.flushed
}
