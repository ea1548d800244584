//! Power cuts, kills and recoveries of a simulated volume or namespaces, and of copies of the simulation.

use super::{
    step,
    world::{LayerEnd, LayerModel, LayerWorld},
};
use crate::simulator::{
    hidden::{ask, attach, flip},
    world::Failure,
};
use emu::{
    rng::Rng,
    ssd::{Cut, Ssd},
};
use engine::array::Drive;
use std::rc::Rc;

/// Most events between a recovery and the next end, in a copy of the world.
const MOST_MORE: u64 = 200;

/// Forks the world if a fork is due.
pub fn fork_if_due<M: LayerModel>(world: &mut LayerWorld<M>) -> Result<(), Failure> {
    if world.forks_left > 0 && world.rng.chance(1, world.life.fork_rarity) {
        world.forks_left -= 1;
        fork(world)?;
    }
    Ok(())
}

/// Ends the world: a power cut, or a kill of the process.
pub fn end_somehow<M: LayerModel>(world: &mut LayerWorld<M>) -> Result<(), Failure> {
    M::check(world)?;
    if world.rng.chance(world.life.kill_percent, 100) {
        world.trace.note(|| "the process is killed".into());
        world.counts.kills += 1;
        kill(world);
        return Ok(());
    }
    cut_power(world)
}

/// Ends the world, and recovers and judges the layer; in `cut_percent` of the recoveries the power is cut.
pub fn end_and_recover<M: LayerModel>(world: &mut LayerWorld<M>, cut_percent: u64) -> Result<(), Failure> {
    end_somehow(world)?;
    recover(world, cut_percent)?;
    M::judge(world)
}

/// Kills the process; the drives keep power.
pub fn kill<M: LayerModel>(world: &mut LayerWorld<M>) {
    world.end_process();
    world.left = world.model.tails();
    world.command_queue.kill(&mut world.rng);
}

pub fn cut_power<M: LayerModel>(world: &mut LayerWorld<M>) -> Result<(), Failure> {
    let queued = world.command_queue.queued();
    let cache_lost = world.life.drive.volatile_cache && world.rng.chance(3, 4);
    world.trace.note(|| format!("power cut with {queued} commands in flight; caches lost: {cache_lost}"));
    world.counts.power_cuts += 1;
    world.end = LayerEnd::PowerCut;
    world.end_process();
    world.left = None;
    let cut = Cut { cache_lost, zrwa_lost: false };
    world
        .command_queue
        .power_cut(&mut world.rng, |_| cut)
        .map_err(|error| Failure(format!("power cut: {error}")))
}

/// Opens the layer again; in `cut_percent` of the attempts the power is cut meanwhile.
pub fn recover<M: LayerModel>(world: &mut LayerWorld<M>, cut_percent: u64) -> Result<(), Failure> {
    loop {
        let up = M::bring_up(world);
        if world.rng.chance(cut_percent, 100) {
            let events = world.rng.below(M::RECOVERY_EVENTS);
            let mut passed = 0;
            while passed < events && up.borrow().is_none() && step::event(world, false)? {
                passed += 1;
            }
            if up.borrow().is_none() {
                world.counts.interrupted_recoveries += 1;
                cut_power(world)?;
                continue;
            }
        }
        let up = step::wait(world, &up)?;
        if M::take_up(world, up)? {
            return Ok(());
        }
    }
}

/// Ends a copy of the world and judges its recovery.
fn fork<M: LayerModel>(world: &mut LayerWorld<M>) -> Result<(), Failure> {
    let mut copy = world.copy()?;
    let result = end_and_judge(&mut copy);
    world.counts.forks += 1;
    world.counts.add(&copy.counts, M::add);
    result.map_err(|failure| {
        let lost = copy.lost.map(|member| format!("without member {member}: ")).unwrap_or_default();
        world.trace.extend(std::mem::take(&mut copy.trace));
        Failure(format!("forked here, {lost}{failure}"))
    })
}

fn end_and_judge<M: LayerModel>(world: &mut LayerWorld<M>) -> Result<(), Failure> {
    // Drawn from separate numbers, so that the rest of a life does not change.
    let mut rng = Rng::new(world.rng.clone().next_u64());
    let on_array = world.life.members > 1;
    if on_array && rng.chance(1, 4) {
        return end_damaged(world, &mut rng);
    }
    end_somehow(world)?;
    if on_array && rng.chance(1, 3) {
        return end_hidden(world, &mut rng);
    }
    if on_array && world.rng.chance(3, 4) {
        world.lost = Some(world.rng.below(world.life.members as u64) as usize);
        world.counts.member_losses += 1;
    }
    recover(world, world.life.cut_in_recovery_percent / 2)?;
    M::judge(world)?;
    if world.rng.chance(1, 2) {
        for _ in 0..world.rng.below(MOST_MORE) {
            step::event(world, true)?;
        }
        end_and_recover(world, 0)?;
    }
    Ok(())
}

/// Ends the process when nothing is outstanding, and flips a bit of the layer's metadata on one member, which must
/// have no effect.
fn end_damaged<M: LayerModel>(world: &mut LayerWorld<M>, rng: &mut Rng) -> Result<(), Failure> {
    end_and_recover(world, 0)?;
    for _ in 0..rng.below(MOST_MORE) {
        step::event(world, true)?;
    }
    if M::end_at_rest(world)?
        && let Some(flipped) = flip(&world.command_queue, &world.bays, rng)
    {
        world.trace.note(|| flipped.clone());
        world.counts.flips += 1;
        let judged = recover(world, 0).and_then(|()| M::judge(world));
        return judged.map_err(|failure| Failure(format!("{flipped}: {failure}")));
    }
    Ok(())
}

/// Removes members, after maybe replacing one by a new, still empty drive: the existence of the layer must not be
/// denied.
fn end_hidden<M: LayerModel>(world: &mut LayerWorld<M>, rng: &mut Rng) -> Result<(), Failure> {
    if rng.chance(2, 3) {
        let member = rng.below(world.life.members as u64) as usize;
        let bay = world.command_queue.insert(Ssd::in_memory(&world.life.drive));
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
    let asked = world.start(ask(world.runtime.clone(), drives, world.left.clone(), M::HIDDEN));
    let asked = step::wait_in_order(world, &asked)?;
    asked.map_err(|why| Failure(format!("with {names:?}: {why}")))
}
