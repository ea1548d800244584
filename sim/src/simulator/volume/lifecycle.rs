//! The life of a volume: it is created, loaded, struck by faults, ended, recovered and checked, repeatedly, and so are
//! copies.

use super::{
    QUIET_EVENTS, guarantees,
    helpers::Helpers,
    load,
    model::{VolumeOp, VolumeOpKind, VolumeWorld},
    oracle::VolumeOracle,
    snapshots,
    stack::create,
    tested::Tested,
};
use crate::simulator::{
    command_queue::Fault,
    layer::{
        DeviceBelow,
        lifecycle::{end_and_recover, fork_if_due, recover},
        step,
        world::LayerEnd,
    },
    world::Failure,
};
use emu::ssd;
use engine::{
    buf::{BLOCK, Buf},
    volume::{Codec, Unit},
    zone::ZoneIndex,
};
use std::rc::Rc;

/// Blocks of one read when all data is checked.
const JUDGED_AT_ONCE: u64 = 64;

/// Blocks of one write that fills a volume.
const FILLED_AT_ONCE: u64 = 16;

/// Most zones of a drive that wear out in a life: fewer than are spare.
const MOST_WORN: u64 = 2;

/// Upper bound of task steps without a device event.
const TOO_MANY_STEPS: u64 = 100_000;

/// Plays the life of the volume.
///
/// # Errors
/// The broken promise.
pub(super) fn run(world: &mut VolumeWorld) -> Result<(), Failure> {
    world.trace.note(|| format!("{:?} {:?}", world.life, world.model.scenario));
    let mut uuid = [0; 16];
    world.rng.fill(&mut uuid);
    let (runtime, life, scenario) = (world.runtime.clone(), world.life.clone(), world.model.scenario.clone());
    let made = world.start(create(runtime, life, scenario, world.drives(), uuid));
    let sizes =
        step::wait(world, &made)?.map_err(|why| Failure(format!("the volume cannot be made: {why}")))?;
    world.model.sizes = sizes;
    world.end_process();
    recover(world, 0)?;
    world.model.oracle = VolumeOracle::new(world.model.volume.as_ref().map_or(0, Tested::blocks));
    judge(world)?;
    if world.model.scenario.filled {
        fill_up(world)?;
    }
    for round in 0..world.life.rounds {
        let events = world.rng.below(world.life.work_events);
        for _ in 0..events {
            step::event(world, true)?;
            strike(world);
            fork_if_due(world)?;
        }
        if round == 0 && world.rng.chance(1, 4) {
            stop(world)?;
        }
        end_and_recover(world, world.life.cut_in_recovery_percent)?;
    }
    step::drain(world)
}

/// Whether commands of a bare drive are made to fail; above an array the array would handle such errors.
pub(super) fn may_fail(world: &VolumeWorld) -> bool {
    world.model.scenario.fault_rarity > 0 && world.life.over == DeviceBelow::Drive
}

fn strike(world: &mut VolumeWorld) {
    if may_fail(world) && world.rng.chance(1, world.model.scenario.fault_rarity) {
        arm(world);
    }
}

/// Makes a command of the drive fail, or wears out one of its zones.
pub(super) fn arm(world: &mut VolumeWorld) {
    world.model.struck = true;
    let late = world.rng.chance(1, 2);
    let fault = match world.rng.below(5) {
        0 if world.model.worn < MOST_WORN => {
            world.model.worn += 1;
            // The head zones are excluded: no volume works without them.
            let zone = ZoneIndex(2 + world.rng.below(world.life.drive.zones as u64 - 2) as u32);
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
    if world.model.struck {
        return Ok(());
    }
    let Some(volume) = world.model.volume.clone() else { return Ok(()) };
    world.trace.note(|| "the volume is stopped".into());
    let stopped = world.start(async move {
        volume.audit().await?;
        volume.stop().await.map_err(|e| e.to_string())
    });
    step::wait(world, &stopped)?.map_err(|why| Failure(format!("the volume does not stop: {why}")))
}

/// Takes the volume of a recovery; `false` if that has failed since a command of the drive was made to fail.
pub(super) fn take_up(world: &mut VolumeWorld, up: Result<Tested, String>) -> Result<bool, Failure> {
    let up = if world.model.struck_in_recovery { after_background_work(world, up)? } else { up };
    if world.model.struck_in_recovery
        && let Err(why) = &up
    {
        world.trace.note(|| format!("the volume does not come up: {why}"));
        world.end_process();
        world.command_queue.kill(&mut world.rng);
        return Ok(false);
    }
    world.command_queue.clear_fault(world.bays[0]);
    let volume = up.map_err(|why| Failure(format!("the volume does not come up again: {why}")))?;
    if matches!(world.model.scenario.codec, Some(Codec::Zstd(_))) {
        volume.employ(Rc::new(Helpers::new(world.rng.next_u64())));
    }
    world.model.volume = Some(volume);
    load::take_size(world)?;
    guarantees::recovered(world)?;
    choose_codec(world)?;
    Ok(true)
}

/// The volume, unless work in its background, which goes on when it has come up, has failed.
fn after_background_work(
    world: &mut VolumeWorld,
    up: Result<Tested, String>,
) -> Result<Result<Tested, String>, Failure> {
    let Ok(volume) = up else { return Ok(up) };
    for _ in 0..QUIET_EVENTS {
        if !step::event(world, false)? {
            break;
        }
    }
    let failed = volume.status().failed;
    Ok(failed.map_or(Ok(volume), |error| Err(error.to_string())))
}

/// Switches compression on or off occasionally; existing data stays as it is.
fn choose_codec(world: &mut VolumeWorld) -> Result<(), Failure> {
    let Some(volume) = world.model.volume.clone().filter(|_| world.model.scenario.codec.is_some()) else {
        return Ok(());
    };
    let is_on = volume.status().codec.is_some();
    if !world.rng.chance(if is_on { 1 } else { 4 }, 5) {
        return Ok(());
    }
    let codec = world.model.scenario.codec.filter(|_| !is_on);
    let units: Vec<Unit> = Unit::all().filter(|unit| *unit <= world.model.scenario.unit).collect();
    let unit = *world.rng.clone().pick(&units);
    world.trace.note(|| format!("what is written from now on is compressed: {codec:?} {unit:?}"));
    let chosen = world.start(async move { volume.compress(codec, unit).await.map_err(|e| e.to_string()) });
    step::wait(world, &chosen)?.map_err(|why| Failure(format!("compression is not changed: {why}")))
}

/// Checks every block against the promises, and audits the zones' live counts against the map.
pub(super) fn judge(world: &mut VolumeWorld) -> Result<(), Failure> {
    let Some(volume) = world.model.volume.clone() else { return Ok(()) };
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
        Ok((all, volume.audit().await?))
    });
    let (all, in_no_volume) = step::wait_in_order(world, &all)?.map_err(Failure)?;
    world.model.in_no_volume = in_no_volume;
    world.model.oracle.recovered(world.end, &all).map_err(Failure)?;
    world.end = LayerEnd::Kill;
    if let Some(volume) = world.model.volume.clone() {
        snapshots::judge(world, &volume)?;
    }
    check_status(world)?;
    check_active(world)
}

/// Compares the status after a recovery with the blocks that were read.
fn check_status(world: &VolumeWorld) -> Result<(), Failure> {
    let Some(status) = world.model.status() else { return Ok(()) };
    let mapped = world.model.oracle.may_be_mapped();
    // A volume of a full pool may not have been added again.
    let may_be_refused = world.model.volume.as_ref().is_some_and(|volume| volume.table().1);
    let is_at_rest = (status.waiting, status.failed) == (0, None) && (status.refused == 0 || may_be_refused);
    let is_readable = status.unreadable_zones == 0 || world.model.struck;
    // Snapshots have mapped blocks, and clones may have none.
    let is_counted = world.model.scenario.snapshots || status.mapped == mapped + world.model.in_no_volume;
    if !is_counted || !is_at_rest || !is_readable {
        return Err(Failure(format!("{mapped} blocks hold data, and all can be read: {status:?}")));
    }
    Ok(())
}

/// Checks that the volume's zones are the only active ones of a bare drive, which may limit active zones.
fn check_active(world: &VolumeWorld) -> Result<(), Failure> {
    let Some(status) = world.model.status().filter(|status| !status.collects) else { return Ok(()) };
    let ssd = world.command_queue.ssd(world.bays[0]);
    let is_active = |zone: &u32| ssd.zones().info(ZoneIndex(*zone)).state.is_active();
    let is_stray = |zone: &u32| is_active(zone) && !status.writing.contains(zone);
    let size = status.zones / status.shards;
    // The first two zones of each shard are its head; zones behind the last shard are not used.
    let is_head = |zone: &u32| *zone < status.zones && zone % size < 2;
    let stray: Vec<u32> =
        (0..world.life.drive.zones).filter(|zone| !is_head(zone) && is_stray(zone)).collect();
    if world.life.over != DeviceBelow::Drive || stray.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("zones {stray:?} are active, and the volume does not write them: {status:?}")))
}

/// Writes as many blocks as fit.
fn fill_up(world: &mut VolumeWorld) -> Result<(), Failure> {
    let Some(status) = world.model.status() else { return Ok(()) };
    let blocks = status.blocks.min(status.usable);
    for at in (0..blocks).step_by(FILLED_AT_ONCE as usize) {
        load::begin(world, VolumeOpKind::Write { at, blocks: FILLED_AT_ONCE.min(blocks - at), fua: false });
        while !world.model.ops.is_empty() {
            settle(world)?;
            if world.command_queue.queued() == 0
                && world.command_queue.executed() == 0
                && is_unanswered(&world.model.ops)
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

fn is_unanswered(ops: &[VolumeOp]) -> bool {
    ops.iter().all(|op| op.answer.borrow().is_none())
}

/// Runs tasks until none is ready, since devices are polled only then.
pub(super) fn settle(world: &mut VolumeWorld) -> Result<(), Failure> {
    world.ready = false;
    match (0..TOO_MANY_STEPS).any(|_| !world.runtime.step()) {
        true => Ok(()),
        false => Err(Failure(format!("tasks wake each other for ever: {:?}", world.model.status()))),
    }
}
