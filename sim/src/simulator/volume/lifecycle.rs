//! The life of a volume: it is created, loaded, struck by faults, ended, recovered and checked, repeatedly, and so are
//! copies.

use super::{
    helpers::Helpers,
    load,
    oracle::{VolumeEnd, VolumeOracle},
    stack::{bring_up, create},
    step,
    world::{VolumeOp, VolumeOpKind, VolumeWorld},
};
use crate::simulator::{
    command_queue::Fault,
    hidden::{HiddenLayer, ask, attach, flip},
    layer::DeviceBelow,
    world::{Failure, Pending},
};
use emu::{
    rng::Rng,
    ssd::{self, Cut, Ssd},
};
use engine::{
    array::Drive,
    buf::{BLOCK, Buf},
    volume::{Codec, Unit, Volume},
    zone::ZoneIndex,
};
use std::rc::Rc;

/// Blocks of one read when all data is checked.
const JUDGED_AT_ONCE: u64 = 64;

/// Blocks of one write that fills a volume.
const FILLED_AT_ONCE: u64 = 16;

/// Most zones of a drive that wear out in a life: fewer than are spare.
const MOST_WORN: u64 = 2;

/// Events after which no command is outstanding any more.
const QUIET_EVENTS: u64 = 20_000;

/// Most events of a recovery that is interrupted.
const RECOVERY_EVENTS: u64 = 300;

fn is_pending<T>(pending: &Pending<T, String>) -> bool {
    pending.borrow().is_none()
}

fn is_unanswered(ops: &[VolumeOp]) -> bool {
    ops.iter().all(|op| op.answer.borrow().is_none())
}

/// Plays the life of the volume.
///
/// # Errors
/// The broken promise.
pub fn run(world: &mut VolumeWorld) -> Result<(), Failure> {
    world.trace.note(|| format!("{:?}", world.scenario));
    let mut uuid = [0; 16];
    world.rng.fill(&mut uuid);
    let (runtime, scenario, drives) = (world.runtime.clone(), world.scenario.clone(), world.drives());
    let made = world.start(create(runtime, scenario, drives, uuid));
    step::wait(world, &made)?.map_err(|why| Failure(format!("the volume cannot be made: {why}")))?;
    world.end_process();
    recover(world, 0)?;
    world.oracle = VolumeOracle::new(world.volume.as_ref().map_or(0, Volume::blocks));
    judge(world)?;
    if world.scenario.filled {
        fill_up(world)?;
    }
    for round in 0..world.scenario.rounds {
        let events = world.rng.below(world.scenario.work_events);
        for _ in 0..events {
            step::event(world, true)?;
            strike(world);
            if world.forks_left > 0 && world.rng.chance(1, world.scenario.fork_rarity) {
                world.forks_left -= 1;
                fork(world)?;
            }
        }
        if round == 0 && world.rng.chance(1, 4) {
            stop(world)?;
        }
        end_somehow(world)?;
        recover(world, world.scenario.cut_in_recovery_percent)?;
        judge(world)?;
    }
    step::drain(world)
}

fn strike(world: &mut VolumeWorld) {
    if world.volume_fails() && world.rng.chance(1, world.scenario.fault_rarity) {
        arm(world);
    }
}

/// Makes a command of the drive fail, or wears out one of its zones.
fn arm(world: &mut VolumeWorld) {
    world.struck = true;
    let late = world.rng.chance(1, 2);
    let fault = match world.rng.below(5) {
        0 if world.worn < MOST_WORN => {
            world.worn += 1;
            // The head zones are excluded: no volume works without them.
            let zone = ZoneIndex(2 + world.rng.below(world.scenario.drive.zones as u64 - 2) as u32);
            world.trace.note(|| format!("zone {} can only be read from now on", zone.0));
            return world.command_queue.ssd(world.bays[0]).faults().after(0, ssd::Fault::ReadOnly(zone));
        }
        0 | 1 => Fault::Write,
        2 => Fault::Read,
        3 => Fault::Fail { kind: ssd::Kind::Flush, late },
        _ => Fault::Fail { kind: ssd::Kind::Reset, late },
    };
    world.trace.note(|| format!("the drive will fail: {fault:?}"));
    world.command_queue.set_fault(world.bays[0], fault);
}

fn stop(world: &mut VolumeWorld) -> Result<(), Failure> {
    step::drain(world)?;
    if world.struck {
        return Ok(());
    }
    let Some(volume) = world.volume.clone() else { return Ok(()) };
    world.trace.note(|| "the volume is stopped".into());
    let stopped = world.start(async move { volume.stop().await.map_err(|e| e.to_string()) });
    step::wait(world, &stopped)?.map_err(|why| Failure(format!("the volume does not stop: {why}")))
}

/// Ends the world: a power cut, or a kill of the process.
fn end_somehow(world: &mut VolumeWorld) -> Result<(), Failure> {
    if let Some(status) = world.status()
        && status.unreadable_zones > 0
        && !world.struck
    {
        return Err(Failure(format!("nothing has failed, and zones cannot be collected: {status:?}")));
    }
    if world.rng.chance(world.scenario.kill_percent, 100) {
        world.trace.note(|| "the process is killed".into());
        world.counts.kills += 1;
        world.end_process();
        world.left = Some(world.tails.borrow().clone());
        world.command_queue.kill(&mut world.rng);
        return Ok(());
    }
    cut_power(world)
}

fn cut_power(world: &mut VolumeWorld) -> Result<(), Failure> {
    let queued = world.command_queue.queued();
    let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(3, 4);
    world.trace.note(|| format!("power cut with {queued} commands in flight; caches lost: {cache_lost}"));
    world.counts.power_cuts += 1;
    world.end = VolumeEnd::PowerCut;
    world.end_process();
    world.left = None;
    let cut = Cut { cache_lost, zrwa_lost: false };
    world
        .command_queue
        .power_cut(&mut world.rng, |_| cut)
        .map_err(|error| Failure(format!("power cut: {error}")))
}

/// Opens the volume again; in `cut_percent` of the attempts the power is cut meanwhile.
fn recover(world: &mut VolumeWorld, cut_percent: u64) -> Result<(), Failure> {
    loop {
        let strikes = world.volume_fails() && world.rng.chance(1, 8);
        if strikes {
            arm(world);
        }
        let (runtime, over) = (world.runtime.clone(), world.scenario.over);
        let tails = (world.left.clone(), world.tails.clone());
        let up = world.start(bring_up(runtime, over, world.drives(), world.scenario.behaviour, tails));
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
        let volume = step::wait(world, &up)?;
        if strikes && let Err(why) = &volume {
            world.trace.note(|| format!("the volume does not come up: {why}"));
            world.end_process();
            world.command_queue.kill(&mut world.rng);
            continue;
        }
        world.command_queue.clear_fault(world.bays[0]);
        world.volume =
            Some(volume.map_err(|why| Failure(format!("the volume does not come up again: {why}")))?);
        if matches!(world.scenario.codec, Some(Codec::Zstd(_))) {
            let helpers = Rc::new(Helpers::new(world.rng.next_u64()));
            world.volume.iter().for_each(|volume| volume.employ(helpers.clone()));
        }
        return choose_codec(world);
    }
}

/// Switches compression on or off occasionally; existing data stays as it is.
fn choose_codec(world: &mut VolumeWorld) -> Result<(), Failure> {
    let Some(volume) = world.volume.clone().filter(|_| world.scenario.codec.is_some()) else {
        return Ok(());
    };
    let is_on = volume.status().codec.is_some();
    if !world.rng.chance(if is_on { 1 } else { 4 }, 5) {
        return Ok(());
    }
    let codec = world.scenario.codec.filter(|_| !is_on);
    let units: Vec<Unit> = Unit::all().filter(|unit| *unit <= world.scenario.unit).collect();
    let unit = *world.rng.clone().pick(&units);
    world.trace.note(|| format!("what is written from now on is compressed: {codec:?} {unit:?}"));
    let chosen = world.start(async move { volume.compress(codec, unit).await.map_err(|e| e.to_string()) });
    step::wait(world, &chosen)?.map_err(|why| Failure(format!("compression is not changed: {why}")))
}

/// Checks every block against the promises, and audits the zones' live counts against the map.
fn judge(world: &mut VolumeWorld) -> Result<(), Failure> {
    let Some(volume) = world.volume.clone() else { return Ok(()) };
    world.counts.judgements += 1;
    let blocks = volume.blocks();
    let all = world.start(async move {
        let mut all = Vec::with_capacity(blocks as usize * BLOCK);
        let mut at = 0;
        while at < blocks {
            let count = JUDGED_AT_ONCE.min(blocks - at);
            let data = volume.read(at, Buf::zeroed(count as usize * BLOCK)).await;
            all.extend_from_slice(&data.map_err(|error| format!("a read of block {at} fails: {error}"))?);
            at += count;
        }
        volume.audit().await?;
        Ok(all)
    });
    let all = step::wait_in_order(world, &all)?.map_err(Failure)?;
    world.oracle.recovered(world.end, &all).map_err(Failure)?;
    world.end = VolumeEnd::Kill;
    check_status(world)?;
    check_active(world)
}

/// Compares the status after a recovery with the blocks that were read.
fn check_status(world: &VolumeWorld) -> Result<(), Failure> {
    let Some(status) = world.status() else { return Ok(()) };
    let mapped = world.oracle.may_be_mapped();
    let is_at_rest = (status.waiting, status.refused, status.failed) == (0, 0, None);
    let is_readable = status.unreadable_zones == 0 || world.struck;
    if status.mapped != mapped || !is_at_rest || !is_readable {
        return Err(Failure(format!("{mapped} blocks hold data, and all can be read: {status:?}")));
    }
    Ok(())
}

/// Checks that the volume's zones are the only active ones of a bare drive, which may limit active zones.
fn check_active(world: &VolumeWorld) -> Result<(), Failure> {
    let Some(status) = world.status().filter(|status| !status.collects) else { return Ok(()) };
    let ssd = world.command_queue.ssd(world.bays[0]);
    let is_active = |zone: &u32| ssd.zones().info(ZoneIndex(*zone)).state.is_active();
    let is_stray = |zone: &u32| is_active(zone) && !status.writing.contains(zone);
    let stray = (2..world.scenario.drive.zones).filter(is_stray).collect::<Vec<u32>>();
    if world.scenario.over != DeviceBelow::Drive || stray.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("zones {stray:?} are active, and the volume does not write them: {status:?}")))
}

/// Writes as many blocks as fit.
fn fill_up(world: &mut VolumeWorld) -> Result<(), Failure> {
    let Some(status) = world.status() else { return Ok(()) };
    let blocks = status.blocks.min(status.usable);
    for at in (0..blocks).step_by(FILLED_AT_ONCE as usize) {
        load::begin(world, VolumeOpKind::Write { at, blocks: FILLED_AT_ONCE.min(blocks - at), fua: false });
        while !world.ops.is_empty() {
            step::settle(world)?;
            if world.command_queue.queued() == 0
                && world.command_queue.executed() == 0
                && is_unanswered(&world.ops)
            {
                return Err(world.hang());
            }
            world.command_queue.run_all();
            load::collect(world)?;
        }
    }
    world.ready = true;
    Ok(())
}

/// Ends a copy of the world and judges its recovery.
fn fork(world: &mut VolumeWorld) -> Result<(), Failure> {
    let mut copy = world.copy()?;
    let result = end_and_judge(&mut copy);
    world.counts.forks += 1;
    world.counts.add(&copy.counts);
    result.map_err(|failure| {
        world.trace.extend(std::mem::take(&mut copy.trace));
        Failure(format!("forked here, {}{failure}", copy.without()))
    })
}

/// Ends the process when no operation is outstanding, and flips a bit of the volume's metadata on one member, which
/// must have no effect.
fn end_damaged(world: &mut VolumeWorld, rng: &mut Rng) -> Result<(), Failure> {
    end_somehow(world)?;
    recover(world, 0)?;
    judge(world)?;
    for _ in 0..rng.below(200) {
        step::event(world, true)?;
    }
    for _ in 0..QUIET_EVENTS {
        if !step::event(world, false)? {
            break;
        }
    }
    world.end_process();
    world.left = Some(world.tails.borrow().clone());
    world.command_queue.kill(&mut world.rng);
    if let Some(flipped) = flip(&world.command_queue, &world.bays, rng) {
        world.trace.note(|| flipped.clone());
        world.counts.flips += 1;
        let judged = recover(world, 0).and_then(|()| judge(world));
        return judged.map_err(|failure| Failure(format!("{flipped}: {}", failure.0)));
    }
    Ok(())
}

/// Removes members, after maybe replacing one by a new, still empty drive: the existence of the volume must not be
/// denied.
fn end_hidden(world: &mut VolumeWorld, rng: &mut Rng) -> Result<(), Failure> {
    let members = world.scenario.members;
    if rng.chance(2, 3) {
        let member = rng.below(members as u64) as usize;
        let bay = world.command_queue.insert(Ssd::in_memory(&world.scenario.drive));
        let new = Drive { name: format!("drive{bay}"), device: Rc::new(world.command_queue.drive(bay)) };
        world.lost = Some(member);
        let found = (world.drives(), world.left.take());
        let attached = world.start(attach(world.runtime.clone(), found, member, new));
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
    let asked = ask(world.runtime.clone(), drives, world.left.clone(), HiddenLayer::Volume);
    let asked = world.start(asked);
    let asked = step::wait_in_order(world, &asked)?;
    asked.map_err(|why| Failure(format!("with {names:?}: {why}")))
}

fn end_and_judge(world: &mut VolumeWorld) -> Result<(), Failure> {
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
