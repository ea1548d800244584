//! The life of namespaces: they are created, loaded, ended, recovered and checked, repeatedly, and so are copies.

use super::{
    load,
    oracle::NamespaceEnd,
    stack::{bring_up, create, show},
    step,
    world::NamespaceWorld,
};
use crate::simulator::{
    hidden::{HiddenLayer, ask, attach, flip},
    layer::DeviceBelow,
    world::{Failure, Pending},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Ssd},
};
use engine::{
    array::Drive,
    device::ZonedDevice,
    vzone::{NamespaceOptions, VzoneError},
};
use std::rc::Rc;

/// Most events of a recovery that is interrupted.
const RECOVERY_EVENTS: u64 = 150;

/// Events within which all commands complete that were submitted while commands of the drive failed.
const FAILING_EVENTS: u64 = 100_000;

fn is_pending<T>(pending: &Pending<T, String>) -> bool {
    pending.borrow().is_none()
}

/// Plays the life of the namespaces.
///
/// # Errors
/// The broken promise.
pub fn run(world: &mut NamespaceWorld) -> Result<(), Failure> {
    world.trace.note(|| format!("{:?}", world.scenario));
    let mut uuid = [0; 16];
    world.rng.fill(&mut uuid);
    let made = world.start(create(world.runtime.clone(), world.scenario.clone(), world.drives(), uuid));
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
    for _ in 0..world.scenario.rounds {
        world.busy = world.names.iter().map(|_| world.rng.chance(2, 3)).collect();
        let events = world.rng.below(world.scenario.work_events);
        for event in 0..events {
            if event == events / 2 {
                world.busy = world.names.iter().map(|_| world.rng.chance(1, 2)).collect();
            }
            step::event(world, true)?;
            if world.forks_left > 0 && world.rng.chance(1, world.scenario.fork_rarity) {
                world.forks_left -= 1;
                fork(world)?;
            }
        }
        end_somehow(world)?;
        recover(world, world.scenario.cut_in_recovery_percent)?;
        judge(world)?;
    }
    step::drain(world)?;
    // At the end, so that the life before it does not change.
    if world.scenario.over == DeviceBelow::Drive && world.rng.chance(1, 2) {
        fail_now_and_then(world)
    } else {
        Ok(())
    }
}

/// Makes single commands of the drive fail. Every operation completes, those that succeed have taken effect, and
/// all promised data is there after the next start.
fn fail_now_and_then(world: &mut NamespaceWorld) -> Result<(), Failure> {
    (world.scenario.limits, world.scenario.reshapes, world.failing) = (false, false, true);
    let (events, mut broken) = (world.rng.below(world.scenario.work_events), 0);
    for event in 0..events {
        if event % 256 == 0 {
            world.busy = world.names.iter().map(|_| world.rng.chance(1, 2)).collect();
        }
        if world.rng.chance(1, 40) {
            load::break_something(world, broken);
            broken += 1;
        }
        step::event(world, true)?;
    }
    for _ in 0..FAILING_EVENTS {
        if !world.ops.is_empty() {
            step::event(world, false)?;
        }
    }
    if !world.ops.is_empty() {
        return Err(world.hang());
    }
    end_somehow(world)?;
    recover(world, 0)?;
    judge(world)
}

fn add_namespaces(world: &mut NamespaceWorld) -> Result<(), Failure> {
    let Some((namespaces, _)) = world.up.clone() else { return Ok(()) };
    for spec in world.scenario.namespaces.clone() {
        let (all, name, spec_zones) = (namespaces.clone(), spec.name.clone(), spec.zones);
        let added = world.start(async move {
            match all.add(spec).await {
                Ok(_) => Ok(true),
                Err(VzoneError::Full { .. } | VzoneError::Floors { .. }) => Ok(false),
                Err(error) => Err(error.to_string()),
            }
        });
        if step::wait(world, &added)?.map_err(Failure)? {
            let tenant = world.expect_tenant(name);
            world.has(tenant, Some(spec_zones));
            world.counts.namespaces += 1;
        }
    }
    world.list_namespaces();
    Ok(())
}

/// Ends the world: a power cut, or a kill of the process.
fn end_somehow(world: &mut NamespaceWorld) -> Result<(), Failure> {
    if world.rng.chance(world.scenario.kill_percent, 100) {
        world.trace.note(|| "the process is killed".into());
        world.counts.kills += 1;
        world.end_process();
        world.command_queue.kill(&mut world.rng);
        return Ok(());
    }
    cut_power(world)
}

fn cut_power(world: &mut NamespaceWorld) -> Result<(), Failure> {
    let queued = world.command_queue.queued();
    let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(3, 4);
    world.trace.note(|| format!("power cut with {queued} commands in flight; caches lost: {cache_lost}"));
    world.counts.power_cuts += 1;
    world.end = NamespaceEnd::PowerCut;
    world.end_process();
    let cut = Cut { cache_lost, zrwa_lost: false };
    world
        .command_queue
        .power_cut(&mut world.rng, |_| cut)
        .map_err(|error| Failure(format!("power cut: {error}")))
}

/// Opens the namespaces again; in `cut_percent` of the attempts the power is cut meanwhile.
fn recover(world: &mut NamespaceWorld, cut_percent: u64) -> Result<(), Failure> {
    loop {
        let clock = world.clock.clone();
        let behaviour = NamespaceOptions {
            clock: Rc::new(move || clock.get()),
            patience_us: world.scenario.patience_us,
            admission: true,
        };
        let (runtime, over) = (world.runtime.clone(), world.scenario.over);
        let up = world.start(bring_up(runtime, over, world.drives(), behaviour));
        if world.rng.chance(cut_percent, 100) {
            let events = world.rng.below(RECOVERY_EVENTS);
            let mut passed = 0;
            while passed < events && is_pending(&up) && step::event(world, false)? {
                passed += 1;
            }
            if is_pending(&up) {
                world.counts.interrupted_recoveries += 1;
                cut_power(world)?;
                continue;
            }
        }
        let namespaces = step::wait(world, &up)?;
        let namespaces =
            namespaces.map_err(|why| Failure(format!("namespaces do not come up again: {why}")))?;
        world.up = Some((namespaces, Vec::new()));
        world.list_namespaces();
        return Ok(());
    }
}

/// Checks every block of every tenant against the promises, and audits the allocation.
fn judge(world: &mut NamespaceWorld) -> Result<(), Failure> {
    step::audit(world)?;
    let Some((namespaces, list)) = world.up.clone() else { return Ok(()) };
    world.counts.judgements += 1;
    let maybe = world.reshape.take();
    for (tenant, namespace) in list.iter().enumerate() {
        let found = namespace.as_ref().map(|namespace| namespace.geometry().zones);
        let changed = maybe.filter(|maybe| maybe.tenant == tenant && maybe.to == found);
        if found != world.sizes[tenant] && changed.is_none() {
            let (name, was) = (&world.names[tenant], world.sizes[tenant]);
            return Err(Failure(format!("{name} has {found:?} zones and had {was:?}, or {maybe:?}")));
        }
        world.has(tenant, found);
    }
    if namespaces.list().len() != list.iter().flatten().count() {
        return Err(Failure("there are namespaces that were never created".into()));
    }
    for (tenant, namespace) in list.into_iter().enumerate() {
        let Some(namespace) = namespace else { continue };
        let found = namespace.status().spec.qos;
        let judged = world.limits[tenant].recovered(found);
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
            let zone = &mut world.zones[tenant][index];
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
    world.end = NamespaceEnd::Kill;
    Ok(())
}

/// Ends a copy of the world and judges its recovery.
fn fork(world: &mut NamespaceWorld) -> Result<(), Failure> {
    let mut copy = world.copy()?;
    let result = end_and_judge(&mut copy);
    world.counts.forks += 1;
    world.counts.add(&copy.counts);
    result.map_err(|failure| {
        let lost = copy.lost.map(|member| format!("without member {member}: ")).unwrap_or_default();
        world.trace.extend(std::mem::take(&mut copy.trace));
        Failure(format!("forked here, {lost}{}", failure.0))
    })
}

/// Cuts the power when no operation is outstanding, and flips a bit of the journal on one member, which must have
/// no effect.
fn end_damaged(world: &mut NamespaceWorld, rng: &mut Rng) -> Result<(), Failure> {
    end_somehow(world)?;
    recover(world, 0)?;
    judge(world)?;
    for _ in 0..rng.below(200) {
        step::event(world, true)?;
    }
    step::drain(world)?;
    cut_power(world)?;
    if let Some(flipped) = flip(&world.command_queue, &world.bays, rng) {
        world.trace.note(|| flipped.clone());
        let judged = recover(world, 0).and_then(|()| judge(world));
        return judged.map_err(|failure| Failure(format!("{flipped}: {}", failure.0)));
    }
    Ok(())
}

/// Removes members, after maybe replacing one by a new, still empty drive: the existence of namespaces must not be
/// denied.
fn end_hidden(world: &mut NamespaceWorld, rng: &mut Rng) -> Result<(), Failure> {
    let members = world.scenario.members;
    if rng.chance(2, 3) {
        let member = rng.below(members as u64) as usize;
        let bay = world.command_queue.insert(Ssd::in_memory(&world.scenario.drive));
        let new = Drive { name: format!("drive{bay}"), device: Rc::new(world.command_queue.drive(bay)) };
        world.lost = Some(member);
        let attached = world.start(attach(world.runtime.clone(), (world.drives(), None), member, new));
        world.lost = None;
        step::wait_in_order(world, &attached)?.map_err(Failure)?;
        world.bays[member] = bay;
        world.end_process();
        world.command_queue.kill(&mut world.rng);
    }
    let mut drives = world.drives();
    for _ in 0..1 + rng.below(2) {
        drives.remove(rng.below(drives.len() as u64) as usize);
    }
    world.counts.member_losses += 1;
    let names: Vec<String> = drives.iter().map(|drive| drive.name.clone()).collect();
    let asked = world.start(ask(world.runtime.clone(), drives, None, HiddenLayer::Namespaces));
    let asked = step::wait_in_order(world, &asked)?;
    asked.map_err(|why| Failure(format!("with {names:?}: {why}")))
}

fn end_and_judge(world: &mut NamespaceWorld) -> Result<(), Failure> {
    // Drawn from separate numbers, so that the rest of a life does not change.
    let mut rng = Rng::new(world.rng.clone().next_u64());
    if world.scenario.members > 1 && rng.chance(1, 4) {
        return end_damaged(world, &mut rng);
    }
    end_somehow(world)?;
    if world.scenario.members > 1 && rng.chance(1, 3) {
        return end_hidden(world, &mut rng);
    }
    if world.scenario.members > 1 && world.rng.chance(3, 4) {
        world.lost = Some(world.rng.below(world.scenario.members as u64) as usize);
        world.counts.member_losses += 1;
    }
    recover(world, world.scenario.cut_in_recovery_percent / 2)?;
    judge(world)?;
    if world.rng.chance(1, 2) {
        for _ in 0..world.rng.below(200) {
            step::event(world, true)?;
        }
        end_somehow(world)?;
        recover(world, 0)?;
        judge(world)?;
    }
    Ok(())
}
