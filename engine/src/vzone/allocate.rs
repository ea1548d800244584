//! Allocation of physical zones to stripe groups, and the balance of spares between namespaces.

use crate::{
    device::{DeviceError, Status},
    vzone::{
        balloon::{self, Account},
        core::{NamespaceCore, Tenant, TenantState, Vzone},
    },
};
use std::rc::Rc;

/// Purpose of an allocation of zones.
#[derive(Clone, Copy)]
pub(super) enum AllocationPurpose {
    /// A new group of at most `most` zones, which makes its namespace count as active.
    Group { most: u32 },
    /// Target of a relocation: `least` zones, and up to `most` if spares are free.
    Moved { least: u32, most: u32 },
}

/// Zones allocated for a group.
pub(super) struct GroupAllocation {
    pub zones: Vec<u32>,
    pub unit_blocks: u32,
    /// Number of spares among the zones.
    pub spares: u32,
}

/// Number of spares: active zones beyond the essential ones of all namespaces.
pub fn spares(core: &NamespaceCore) -> u32 {
    let essential: u32 = core.tenants.borrow().iter().flatten().map(|tenant| tenant.essential()).sum();
    core.arbiter.borrow().group_limit().saturating_sub(essential)
}

/// Number of active zones of the namespace that has the relocation in progress: those of its groups, and the targets.
pub fn active_of(core: &NamespaceCore, state: &TenantState) -> u32 {
    let arbiter = core.arbiter.borrow();
    let last = |vzone: &Vzone| vzone.groups.len().checked_sub(1).filter(|_| vzone.active);
    let in_groups = state.vzones.iter().filter_map(|vzone| Some(vzone.groups.group(last(vzone)?)?.2));
    let copying = core.copying.borrow();
    in_groups.flatten().chain(&*copying).filter(|zone| arbiter.is_active(**zone)).count() as u32
}

/// Width of the next group of a namespace: a power of two, at most `most`.
fn decide(core: &NamespaceCore, tenant: &Tenant, most: u32) -> u32 {
    let spares = spares(core);
    let serial = core.arbiter.borrow().serial();
    let tenants = core.tenants.borrow();
    let window: u32 = tenants.iter().flatten().map(|tenant| tenant.essential()).sum();
    let account = |other: &Rc<Tenant>| {
        let state = other.state.borrow();
        let lately = serial - state.opened <= window as u64;
        Account { weight: other.spec.weight, used: state.spares, active: lately || other.id == tenant.id }
    };
    let accounts: Vec<Account> = tenants.iter().flatten().map(account).collect();
    let mut shares = Vec::with_capacity(accounts.len());
    balloon::shares(spares, &accounts, &mut shares);
    let place = tenants.iter().flatten().position(|other| other.id == tenant.id);
    let share = place.and_then(|place| shares.get(place)).copied().unwrap_or(0);
    let used: u32 = accounts.iter().map(|account| account.used).sum();
    let state = tenant.state.borrow();
    let free = spares.saturating_sub(used);
    balloon::width(tenant.spec.essential, (share, state.spares, free), state.history, most)
}

/// Waits until write `number` may open the first group of its v-zone: all such writes before it have done so, and fewer
/// than `max_active` v-zones count as active. The zone table counts a v-zone as full while its last writes are
/// outstanding, and so may admit another one, which waits for them here.
///
/// # Errors
/// Too Many Active Zones if the wait would never end.
pub async fn wait_to_begin(core: &NamespaceCore, tenant: &Tenant, number: u64) -> Result<(), DeviceError> {
    loop {
        core.check()?;
        {
            let state = tenant.state.borrow();
            let first = state.beginning.front() == Some(&number);
            let capacity = tenant.geometry.zone_capacity_blocks;
            let most = tenant.spec.max_active as usize;
            if first && state.engaged_count(capacity) < most {
                return Ok(());
            }
            // V-zones without outstanding changes stay active, so it makes no sense to wait for them.
            if state.engaged(capacity).filter(|vzone| vzone.settled == vzone.tickets).count() >= most {
                return Err(Status::TooManyActiveZones.into());
            }
        }
        core.room.wait().await;
    }
}

/// Allocates zones for a group; waits until they are reserved.
///
/// # Errors
/// Capacity Exceeded if too many zones are worn.
pub async fn allocate(
    core: &NamespaceCore,
    tenant: &Tenant,
    want: AllocationPurpose,
) -> Result<GroupAllocation, DeviceError> {
    let _turn = core.allocation.take().await;
    if let AllocationPurpose::Group { .. } = want {
        let mut state = tenant.state.borrow_mut();
        state.history = state.history.with(state.table.active_zones());
    }
    loop {
        core.check()?;
        if let Some(taken) = take_now(core, tenant, want)? {
            return Ok(taken);
        }
        core.room.wait().await;
    }
}

/// Allocates zones for a group; `None` if it has to wait for them.
fn take_now(
    core: &NamespaceCore,
    tenant: &Tenant,
    want: AllocationPurpose,
) -> Result<Option<GroupAllocation>, DeviceError> {
    let (mut width, least) = match want {
        AllocationPurpose::Group { most } => (decide(core, tenant, most), tenant.spec.essential.min(most)),
        AllocationPurpose::Moved { least, most } => {
            let all = least.saturating_add(free_spares(core));
            (balloon::floor_power(all.min(most)).max(least), least)
        }
    };
    let mut arbiter = core.arbiter.borrow_mut();
    core.work.open();
    while !arbiter.want(width) {
        if !arbiter.is_exhausted(width) {
            return Ok(None);
        }
        // Too many zones are worn for this width: a narrower group is tried.
        width /= 2;
        if width < least.max(1) {
            return Err(Status::CapacityExceeded.into());
        }
    }
    assert!(width.is_power_of_two(), "a group of {width} zones, which the next start would refuse");
    let spares = width.saturating_sub(least);
    let zones = arbiter.take(width);
    let mut state = tenant.state.borrow_mut();
    if let AllocationPurpose::Group { .. } = want {
        state.opened = arbiter.serial();
    }
    state.spares += spares;
    core.in_hand.borrow_mut().extend(&zones);
    let unit_blocks = match core.identity.lead_blocks {
        1 => balloon::unit_blocks(tenant.spec.essential, width),
        // A unit is a whole stripe of the array, so that it lies on all drives.
        stripe_blocks => stripe_blocks,
    };
    Ok(Some(GroupAllocation { zones, unit_blocks, spares }))
}

/// Number of spares that no group holds.
fn free_spares(core: &NamespaceCore) -> u32 {
    let tenants = core.tenants.borrow();
    let used: u32 = tenants.iter().flatten().map(|tenant| tenant.state.borrow().spares).sum();
    spares(core).saturating_sub(used)
}
