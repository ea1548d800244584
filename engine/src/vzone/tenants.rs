//! Adds, resizes and removes namespaces, and changes their limits.
//!
//! These run as tasks ([`crate::runtime::Runtime::run_whole`]): a namespace that is recorded in the journal and not in
//! memory, or the reverse, would stay so until the next start.

use crate::{
    qos::Qos,
    vzone::{
        core::{NamespaceCore, Tenant, Vzone},
        error::VzoneError,
        format::{End, JournalEntry, MOST_NAMESPACES, Spec, StripeGroups},
        journal, manage, recover,
    },
};
use std::rc::Rc;

/// As [`super::Namespaces::add`].
pub async fn add(core: &Rc<NamespaceCore>, spec: Spec) -> Result<Rc<Tenant>, VzoneError> {
    let _turn = core.administration.take().await;
    recover::check_spec(core, &spec, None)?;
    let id = {
        let tenants = core.tenants.borrow();
        tenants.iter().position(Option::is_none).unwrap_or(tenants.len())
    };
    if id >= MOST_NAMESPACES {
        return Err(VzoneError::TooMany);
    }
    let geometry = recover::geometry_of(core.device.geometry(), &core.identity, &spec);
    let vzone = Vzone::new(StripeGroups::default(), End::Open, 0);
    let vzones = vec![vzone; spec.zones as usize];
    let serial = core.arbiter.borrow().serial();
    let tenant = Rc::new(Tenant::new(id as u32, spec.clone(), geometry, vzones, serial));
    // Its active zones are guaranteed from now on. It accepts commands once its record is durable.
    tenant.state.borrow_mut().removed = true;
    {
        let mut tenants = core.tenants.borrow_mut();
        let count = tenants.len().max(id + 1);
        tenants.resize(count, None);
        tenants[id] = Some(tenant.clone());
    }
    let apply = || tenant.state.borrow_mut().removed = false;
    journal::record(core, JournalEntry::Namespace(id as u32, spec), apply).await?;
    core.note_guarantees();
    Ok(tenant)
}

/// As [`super::Namespaces::resize`].
pub async fn resize(core: &Rc<NamespaceCore>, name: &str, zones: u32) -> Result<Rc<Tenant>, VzoneError> {
    let _turn = core.administration.take().await;
    let old = idle(core, name).await?;
    let max_active = old.spec.max_active.min(zones);
    let spec = Spec { zones, max_active, max_open: old.spec.max_open.min(max_active), ..old.spec() };
    recover::check_spec(core, &spec, Some(old.id))?;
    old.check_size(zones)?;
    old.state.borrow_mut().removed = true;
    let geometry = recover::geometry_of(core.device.geometry(), &core.identity, &spec);
    let entry = JournalEntry::Namespace(old.id, spec.clone());
    let mut resized = None;
    let apply = || {
        // The state is copied only now: a flush for another namespace may have marked losses in it meanwhile.
        let new = Rc::new(old.resized(spec, geometry));
        core.tenants.borrow_mut()[new.id as usize] = Some(new.clone());
        core.note_guarantees();
        resized = Some(new);
    };
    journal::record(core, entry, apply).await?;
    let tenant = resized.ok_or(VzoneError::Unknown)?;
    Ok(tenant)
}

/// As [`super::Namespaces::set_qos`].
pub async fn set_qos(core: &Rc<NamespaceCore>, name: &str, qos: Qos) -> Result<Rc<Tenant>, VzoneError> {
    let _turn = core.administration.take().await;
    let tenant = called(core, name)?;
    if !qos.is_possible() {
        return Err(VzoneError::FloorAboveLimit);
    }
    let entry = Spec { qos, ..tenant.spec() };
    let apply = || {
        tenant.qos_state.set(qos);
        core.note_guarantees();
    };
    journal::record(core, JournalEntry::Namespace(tenant.id, entry), apply).await?;
    Ok(tenant)
}

/// As [`super::Namespaces::remove`].
pub async fn remove(core: &Rc<NamespaceCore>, name: &str) -> Result<(), VzoneError> {
    let _turn = core.administration.take().await;
    let tenant = idle(core, name).await?;
    tenant.state.borrow_mut().removed = true;
    let apply = || {
        (0..tenant.geometry.zones as usize).for_each(|zone| manage::empty(core, &tenant, zone));
        core.tenants.borrow_mut()[tenant.id as usize] = None;
        core.note_guarantees();
    };
    Ok(journal::record(core, JournalEntry::Removed(tenant.id), apply).await?)
}

/// The namespace of this name.
fn called(core: &NamespaceCore, name: &str) -> Result<Rc<Tenant>, VzoneError> {
    let tenant = core.tenants().into_iter().find(|tenant| tenant.spec.name == name);
    tenant.ok_or(VzoneError::Unknown)
}

/// The namespace of this name, after its relocations have ended; fails if commands for it are outstanding.
async fn idle(core: &NamespaceCore, name: &str) -> Result<Rc<Tenant>, VzoneError> {
    let tenant = called(core, name)?;
    let leaving = || tenant.state.borrow().vzones.iter().position(|vzone| vzone.leaving);
    while let Some(zone) = leaving() {
        tenant.wait(zone, |vzone| !vzone.leaving).await;
    }
    // Outstanding flushes count too: they would look for lost writes in the state before the change, in which no
    // more are marked.
    let busy = tenant.commands.get() > 0;
    if busy { Err(VzoneError::InUse) } else { Ok(tenant) }
}
