//! Load of the tenants: I/O operations, changes of limits, and namespaces that are added, resized and removed; and
//! checks of the results.

use super::{
    model::{MOST_TENANTS, NamespaceWorld},
    ops::{NamespaceOp, NamespaceOpKind, Place, Reshape, TenantQos},
    oracle::{NamespaceChange, NamespaceZone},
    scenario::draw_spec,
};
use crate::simulator::{command_queue::Fault as WireFault, world::Failure};
use emu::{
    rng::Rng,
    ssd::{Fault, Kind as DriveKind},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Done, ZonedDevice, Zones},
    qos::{Qos, Rates},
    vzone::VzoneError,
    zone::{Lba, ZoneIndex},
};

/// Submits a random operation.
pub(super) fn issue(world: &mut NamespaceWorld) {
    let alone = world.model.limiting.is_none() && world.model.reshaping.is_none();
    if world.model.scenario.reshapes && alone && world.rng.chance(1, 30) {
        return reshape(world);
    }
    let changes = |tenant: usize| world.model.reshape.is_some_and(|reshape| reshape.tenant == tenant);
    let works = |tenant: &usize| {
        world.model.busy[*tenant] && world.model.sizes[*tenant].is_some() && !changes(*tenant)
    };
    let tenants: Vec<usize> = (0..world.model.zones.len()).filter(works).collect();
    if tenants.is_empty() {
        return;
    }
    let tenant = *world.rng.pick(&tenants);
    if world.model.scenario.limits && alone && world.rng.chance(1, 20) {
        return limit(world, tenant);
    }
    let zone = world.rng.below(world.model.sizes[tenant].unwrap_or(0) as u64) as usize;
    let kind = world.rng.weighted(&world.model.scenario.load);
    match kind {
        0 => write(world, (tenant, zone)),
        1 => read(world, (tenant, zone)),
        2 => flush(world, tenant),
        3 => change(world, (tenant, zone), NamespaceChange::Finish),
        _ => change(world, (tenant, zone), NamespaceChange::Reset),
    }
}

fn submit(
    world: &mut NamespaceWorld,
    tenant: usize,
    kind: NamespaceOpKind,
    command: Command,
    seen: Vec<(u64, u64)>,
) {
    let Some(namespace) = world.model.namespace(tenant) else { return };
    let completion = namespace.submit(command);
    world.counts.operations += 1;
    world.trace.note(|| format!("begins: {kind:?}"));
    world.model.ops.push(NamespaceOp { kind, completion, seen });
    world.ready = true;
}

/// Whether the zone is active, or another one may be.
fn may_begin(world: &NamespaceWorld, (tenant, zone): Place) -> bool {
    let Some(namespace) = world.model.namespace(tenant) else { return false };
    let most = namespace.geometry().max_active as usize;
    let active = |zone: &NamespaceZone| zone.submitted() > 0 && zone.takes_writes();
    let held = world.model.zones[tenant].iter().filter(|zone| active(zone)).count();
    world.model.zones[tenant][zone].submitted() > 0 || held < most
}

fn write(world: &mut NamespaceWorld, place @ (tenant, index): Place) {
    let may = world.model.zones[tenant][index].takes_writes() && may_begin(world, place);
    let Some(namespace) = world.model.namespace(tenant).filter(|_| may) else { return };
    let geometry = namespace.geometry().clone();
    let zone = &mut world.model.zones[tenant][index];
    let most = world.model.scenario.most_blocks.min(geometry.max_transfer_blocks as u64);
    let blocks = 1 + world.rng.below(most.min(geometry.zone_capacity_blocks - zone.submitted()));
    let (from, fua) = (zone.submitted(), world.rng.chance(world.model.scenario.fua_percent, 100));
    let (append, epoch) = (world.rng.chance(1, 4), zone.epoch);
    world.model.writes += 1;
    let data = Buf::copy_of(&zone.write(world.model.writes, blocks));
    let number = ZoneIndex(index as u32);
    let command = match append {
        true => Command::append(number, data, fua),
        false => Command::write(Lba(geometry.start(number).0 + from), data, fua),
    };
    submit(
        world,
        tenant,
        NamespaceOpKind::Write { place, from, blocks, fua, append, epoch },
        command,
        Vec::new(),
    );
}

fn read(world: &mut NamespaceWorld, place @ (tenant, index): Place) {
    let Some(namespace) = world.model.namespace(tenant) else { return };
    let geometry = namespace.geometry().clone();
    let zone = &world.model.zones[tenant][index];
    let from = world.rng.below(geometry.zone_capacity_blocks);
    let most = (geometry.zone_capacity_blocks - from).min(geometry.max_transfer_blocks as u64);
    let blocks = 1 + world.rng.below(most);
    let below = zone.promised();
    let kind = NamespaceOpKind::Read { place, from, below, epoch: zone.epoch };
    let lba = Lba(geometry.start(ZoneIndex(index as u32)).0 + from);
    submit(world, tenant, kind, Command::read(lba, Buf::zeroed(blocks as usize * BLOCK)), Vec::new());
}

fn flush(world: &mut NamespaceWorld, tenant: usize) {
    let seen = world.model.zones[tenant].iter().map(|zone| (zone.promised(), zone.epoch)).collect();
    submit(world, tenant, NamespaceOpKind::Flush { tenant }, Command::Flush, seen);
}

fn change(world: &mut NamespaceWorld, place @ (tenant, index): Place, change: NamespaceChange) {
    let zone = &mut world.model.zones[tenant][index];
    // Writes that fill a zone may have to complete before the zone counts as full.
    let sensible =
        zone.change.is_none() && !zone.failed && (change == NamespaceChange::Reset || zone.takes_writes());
    if !sensible {
        return;
    }
    zone.change = Some(change);
    zone.epoch += (change == NamespaceChange::Reset) as u64;
    let zones = Zones::One(ZoneIndex(index as u32));
    let command = match change {
        NamespaceChange::Finish => Command::Finish { zones },
        NamespaceChange::Reset => Command::Reset { zones },
    };
    submit(world, tenant, NamespaceOpKind::Change { place }, command, Vec::new());
}

/// Changes the QoS of a tenant while all tenants work.
fn limit(world: &mut NamespaceWorld, tenant: usize) {
    let Some((namespaces, _)) = world.model.up.clone() else { return };
    // Drawn from a copy of the generator, so that the rest of a life does not change.
    let mut extra = world.rng.clone();
    let limits = Rates { requests: world.rng.below(3) as u32, blocks: world.rng.below(3) as u32 };
    let few = |extra: &mut Rng| extra.below(3) as u32;
    let floors = Rates { requests: few(&mut extra), blocks: few(&mut extra) };
    let latency_us = few(&mut extra);
    let (wanted, limited) =
        (Qos { limits, floors, latency_us }, Qos { limits, latency_us, ..Qos::default() });
    let qos = if wanted.is_possible() { wanted } else { limited };
    world.trace.note(|| format!("begins: tenant {tenant} is limited to {qos:?}"));
    world.model.limits[tenant].or_by = Some(qos);
    let name = world.model.names[tenant].clone();
    let limited = async move { namespaces.set_qos(&name, qos).await.map(|_| ()).map_err(|e| e.to_string()) };
    world.model.limiting = Some((tenant, world.start(limited)));
}

/// Checks a completed change of QoS.
fn limited(world: &mut NamespaceWorld) -> Result<(), Failure> {
    let Some((tenant, limiting)) = world.model.limiting.take() else { return Ok(()) };
    let Some(result) = limiting.borrow_mut().take() else {
        world.model.limiting = Some((tenant, limiting));
        return Ok(());
    };
    world.trace.note(|| format!("ended: the limits of tenant {tenant}: {result:?}"));
    let fails = |why: String| Failure(format!("limits of tenant {tenant}: {why}"));
    result.map_err(fails)?;
    let by = world.model.limits[tenant].or_by.unwrap_or_default();
    world.model.limits[tenant] = TenantQos { by, or_by: None };
    let Some(namespace) = world.model.namespace(tenant) else { return Ok(()) };
    let found = namespace.status().spec.qos;
    world.model.limits[tenant].recovered(found).map_err(fails)
}

/// Adds, resizes or removes a namespace while all tenants work.
fn reshape(world: &mut NamespaceWorld) {
    let Some((namespaces, _)) = world.model.up.clone() else { return };
    let there: Vec<usize> =
        (0..world.model.names.len()).filter(|t| world.model.sizes[*t].is_some()).collect();
    let kind = if there.is_empty() { 0 } else { world.rng.below(4) };
    let (reshape, pending) = match kind {
        0 if world.model.names.len() < MOST_TENANTS => {
            // Some namespaces are refused at the start, and only their names are used up.
            let index = (MOST_TENANTS + world.model.names.len()) as u64;
            let spec = draw_spec(&mut world.rng, index, world.model.scenario.vzone_zones);
            let tenant = world.model.expect_tenant(spec.name.clone());
            let reshape = Reshape { tenant, to: Some(spec.zones), in_use: false };
            (reshape, world.start(async move { Ok(namespaces.add(spec).await.map(|_| ())) }))
        }
        0 => return,
        _ => {
            let tenant = *world.rng.pick(&there);
            let in_use = world.model.ops.iter().any(|op| op.kind.tenant() == tenant);
            // A tenant that always works would never be idle.
            if in_use && !world.rng.chance(1, 8) {
                world.model.busy[tenant] = false;
                return;
            }
            let to = (kind > 1).then(|| 1 + world.rng.below(6) as u32);
            let name = world.model.names[tenant].clone();
            let reshaped = async move {
                Ok(match to {
                    Some(zones) => namespaces.resize(&name, zones).await.map(|_| ()),
                    None => namespaces.remove(&name).await,
                })
            };
            (Reshape { tenant, to, in_use }, world.start(reshaped))
        }
    };
    world.trace.note(|| format!("begins: {reshape:?}"));
    world.counts.own.reshapes += 1;
    (world.model.reshape, world.model.reshaping) = (Some(reshape), Some(pending));
}

/// Checks a completed addition, resize or removal.
fn reshaped(world: &mut NamespaceWorld) -> Result<(), Failure> {
    let answer = world.model.reshaping.as_ref().and_then(|pending| pending.borrow_mut().take());
    let Some((answer, reshape)) = answer.zip(world.model.reshape) else { return Ok(()) };
    world.trace.note(|| format!("ended: {reshape:?}: {answer:?}"));
    (world.model.reshape, world.model.reshaping) = (None, None);
    let Reshape { tenant, to, in_use } = reshape;
    let grows = to > world.model.sizes[tenant];
    let (kept, zones) = (to.unwrap_or(0) as usize, &world.model.zones[tenant]);
    let lost = zones.iter().skip(kept).position(|zone| !zone.is_empty()).map(|zone| kept + zone);
    match answer.map_err(Failure)? {
        Ok(()) if to.is_none() || lost.is_none() => {
            world.model.has(tenant, to);
            world.model.list_namespaces();
            world.model.busy[tenant] = true;
            Ok(())
        }
        Err(VzoneError::Full { .. } | VzoneError::Floors { .. }) if grows => Ok(()),
        Err(VzoneError::InUse) if in_use => Ok(()),
        Err(VzoneError::Holds { .. }) if lost.is_some() => Ok(()),
        other => Err(Failure(format!("{reshape:?} is answered with {other:?}; it would lose {lost:?}"))),
    }
}

/// Checks all completed operations.
pub(super) fn collect(world: &mut NamespaceWorld) -> Result<(), Failure> {
    limited(world)?;
    reshaped(world)?;
    let mut at = 0;
    while at < world.model.ops.len() {
        let Some(done) = world.model.ops[at].completion.take() else {
            at += 1;
            continue;
        };
        let NamespaceOp { kind, seen, .. } = world.model.ops.remove(at);
        world.trace.note(|| format!("ended: {kind:?} {:?}", done.result));
        answered(world, kind, &seen, done).map_err(|why| Failure(format!("{kind:?}: {why}")))?;
    }
    Ok(())
}

fn answered(
    world: &mut NamespaceWorld,
    kind: NamespaceOpKind,
    seen: &[(u64, u64)],
    done: Done,
) -> Result<(), String> {
    if world.model.failing && done.result.is_err() && may_fail(world, kind) {
        return Ok(());
    }
    done.result.map_err(|error| format!("fails: {error}"))?;
    match kind {
        NamespaceOpKind::Write { place: (tenant, index), from, blocks, fua, append, epoch } => {
            let start = world
                .model
                .namespace(tenant)
                .map_or(0, |namespace| namespace.geometry().start(ZoneIndex(index as u32)).0);
            if append && done.lba.0 != start + from {
                return Err(format!("landed at {:?}", done.lba));
            }
            let zone = &mut world.model.zones[tenant][index];
            if zone.epoch == epoch {
                zone.wrote(from + blocks, fua);
            }
            Ok(())
        }
        NamespaceOpKind::Read { place: (tenant, index), from, below, epoch } => {
            let zone = &world.model.zones[tenant][index];
            zone.check_own(from, &done.data)?;
            if zone.epoch != epoch {
                return Ok(());
            }
            zone.check(from, below, false, &done.data)
        }
        NamespaceOpKind::Flush { tenant } => {
            for (zone, (completed, epoch)) in world.model.zones[tenant].iter_mut().zip(seen) {
                if zone.epoch == *epoch {
                    zone.safe = zone.safe.max(*completed);
                }
            }
            Ok(())
        }
        NamespaceOpKind::Change { place: (tenant, index) } => {
            world.model.zones[tenant][index].changed();
            Ok(())
        }
    }
}

/// Whether an operation may fail after an injected fault. A failed finish or reset may have been carried out.
fn may_fail(world: &mut NamespaceWorld, kind: NamespaceOpKind) -> bool {
    if let NamespaceOpKind::Write { place: (tenant, index), .. } = kind {
        world.model.zones[tenant][index].failed = true;
    }
    !matches!(kind, NamespaceOpKind::Read { .. })
}

/// Makes a command of the drive fail soon: the next finish or flush, or the next write to a random zone, except
/// those of the journal, without which nothing can continue. A move is tried three times, so only two writes fail,
/// perhaps after the next start.
pub(super) fn break_something(world: &mut NamespaceWorld, number: u64) {
    let bay = world.bays[0];
    if number < 2 && world.rng.chance(1, 2) {
        let zone = ZoneIndex(2 + world.rng.below(world.life.drive.zones as u64 - 2) as u32);
        world.command_queue.ssd(bay).faults().after(0, Fault::WriteFault(zone));
        return world.trace.note(|| format!("a write to {zone:?} is to fail"));
    }
    let kind = if world.rng.chance(1, 8) { DriveKind::Flush } else { DriveKind::Finish };
    let late = world.rng.chance(1, 2);
    world.command_queue.set_fault(bay, WireFault::Fail { kind, late });
    world.trace.note(|| format!("a {kind:?} is to fail"));
}
