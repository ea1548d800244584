//! The life of namespaces: they are created, loaded, ended, recovered and checked, repeatedly, and so are copies.

use super::{
    load,
    model::NamespaceWorld,
    stack::{create, show},
};
use crate::simulator::{
    layer::{
        DeviceBelow,
        lifecycle::{end_and_recover, fork_if_due, recover},
        step,
        world::LayerEnd,
    },
    world::Failure,
};
use engine::{device::ZonedDevice, vzone::VzoneError};

/// Events within which all commands complete that were submitted while commands of the drive failed.
const FAILING_EVENTS: u64 = 100_000;

/// Plays the life of the namespaces.
///
/// # Errors
/// The broken promise.
pub(super) fn run(world: &mut NamespaceWorld) -> Result<(), Failure> {
    world.trace.note(|| format!("{:?} {:?}", world.life, world.model.scenario));
    let mut uuid = [0; 16];
    world.rng.fill(&mut uuid);
    let vzone_zones = world.model.scenario.vzone_zones;
    let (runtime, life) = (world.runtime.clone(), world.life.clone());
    let made = world.start(create(runtime, life, vzone_zones, world.drives(), uuid));
    if let Err(why) = step::wait(world, &made)? {
        // Such a small drive has no room for namespaces.
        return match why == VzoneError::TooSmall.to_string() {
            true => Ok(()),
            false => Err(Failure(format!("namespaces cannot be made: {why}"))),
        };
    }
    // No command is outstanding when the process ends.
    while step::event(world, false)? {}
    world.end_process();
    recover(world, 0)?;
    add_namespaces(world)?;
    judge(world)?;
    for _ in 0..world.life.rounds {
        world.model.busy = world.model.names.iter().map(|_| world.rng.chance(2, 3)).collect();
        let events = world.rng.below(world.life.work_events);
        for event in 0..events {
            if event == events / 2 {
                world.model.busy = world.model.names.iter().map(|_| world.rng.chance(1, 2)).collect();
            }
            step::event(world, true)?;
            fork_if_due(world)?;
        }
        end_and_recover(world, world.life.cut_in_recovery_percent)?;
    }
    step::drain(world)?;
    // At the end, so that the life before it does not change.
    if world.life.over == DeviceBelow::Drive && world.rng.chance(1, 2) {
        fail_now_and_then(world)
    } else {
        Ok(())
    }
}

/// Makes single commands of the drive fail. Every operation completes, those that succeed have taken effect, and
/// all promised data is there after the next start.
fn fail_now_and_then(world: &mut NamespaceWorld) -> Result<(), Failure> {
    (world.model.scenario.limits, world.model.scenario.reshapes, world.model.failing) = (false, false, true);
    let (events, mut broken) = (world.rng.below(world.life.work_events), 0);
    for event in 0..events {
        if event % 256 == 0 {
            world.model.busy = world.model.names.iter().map(|_| world.rng.chance(1, 2)).collect();
        }
        if world.rng.chance(1, 40) {
            load::break_something(world, broken);
            broken += 1;
        }
        step::event(world, true)?;
    }
    for _ in 0..FAILING_EVENTS {
        if !world.model.ops.is_empty() {
            step::event(world, false)?;
        }
    }
    if !world.model.ops.is_empty() {
        return Err(world.hang());
    }
    end_and_recover(world, 0)
}

fn add_namespaces(world: &mut NamespaceWorld) -> Result<(), Failure> {
    let Some((namespaces, _)) = world.model.up.clone() else { return Ok(()) };
    for spec in world.model.scenario.namespaces.clone() {
        let (all, name, spec_zones) = (namespaces.clone(), spec.name.clone(), spec.zones);
        let added = world.start(async move {
            match all.add(spec).await {
                Ok(_) => Ok(true),
                Err(VzoneError::Full { .. } | VzoneError::Floors { .. }) => Ok(false),
                Err(error) => Err(error.to_string()),
            }
        });
        if step::wait(world, &added)?.map_err(Failure)? {
            let tenant = world.model.expect_tenant(name);
            world.model.has(tenant, Some(spec_zones));
            world.counts.own.namespaces += 1;
        }
    }
    world.model.list_namespaces();
    Ok(())
}

/// Checks every block of every tenant against the promises, and audits the allocation.
pub(super) fn judge(world: &mut NamespaceWorld) -> Result<(), Failure> {
    audit(world)?;
    let Some((namespaces, list)) = world.model.up.clone() else { return Ok(()) };
    world.counts.judgements += 1;
    let maybe = world.model.reshape.take();
    for (tenant, namespace) in list.iter().enumerate() {
        let found = namespace.as_ref().map(|namespace| namespace.geometry().zones);
        let changed = maybe.filter(|maybe| maybe.tenant == tenant && maybe.to == found);
        if found != world.model.sizes[tenant] && changed.is_none() {
            let (name, was) = (&world.model.names[tenant], world.model.sizes[tenant]);
            return Err(Failure(format!("{name} has {found:?} zones and had {was:?}, or {maybe:?}")));
        }
        world.model.has(tenant, found);
    }
    if namespaces.list().len() != list.iter().flatten().count() {
        return Err(Failure("there are namespaces that were never created".into()));
    }
    for (tenant, namespace) in list.into_iter().enumerate() {
        let Some(namespace) = namespace else { continue };
        let found = namespace.status().spec.qos;
        let judged = world.model.limits[tenant].recovered(found);
        judged.map_err(|why| Failure(format!("tenant {tenant} {why}")))?;
        let volatile = namespace.geometry().volatile_cache;
        let (mut active, mut written) = (0, 0);
        for index in 0..namespace.geometry().zones as usize {
            let shown = world.start(show(namespace.clone(), index as u32));
            // Mostly in order and without delays.
            let shown = match world.rng.chance(1, 3) {
                true => step::wait(world, &shown)?,
                false => step::wait_in_order(world, &shown)?,
            };
            let (info, data) = shown.map_err(Failure)?;
            active += info.state.is_active() as u32;
            let zone = &mut world.model.zones[tenant][index];
            let result = zone.recovered(world.end, volatile, &info, &data);
            result.map_err(|why| Failure(format!("zone {index} of tenant {tenant}: {why}")))?;
            written += zone.completed;
        }
        let status = namespace.status();
        if (status.active, status.written_blocks, status.read_blocks) != (active, written, 0) {
            let truth = format!("{active} zones are active, and {written} blocks written");
            return Err(Failure(format!("tenant {tenant}: {truth}: {status:?}")));
        }
    }
    world.end = LayerEnd::Kill;
    Ok(())
}

/// Checks the allocation.
pub(super) fn audit(world: &mut NamespaceWorld) -> Result<(), Failure> {
    let Some((namespaces, list)) = &world.model.up else { return Ok(()) };
    for namespace in list.iter().flatten() {
        world.counts.own.most_spares = world.counts.own.most_spares.max(namespace.status().spares as u64);
    }
    // A refusal means that a command broke the rules of the allocation, unless commands of the drive fail.
    if namespaces.refusals() > 0 && !world.model.failing {
        return Err(Failure("the device has refused to write or reset a zone of no namespace".into()));
    }
    namespaces.audit().map_err(Failure)
}
