//! The events of a world of a volume, and waits for results.
//!
//! As in the world of arrays, everything that can happen is an event, and the seed picks among the possible events.

use super::{load, world::VolumeWorld};
use crate::simulator::{
    step::TOO_MANY_EVENTS,
    world::{Failure, Pending},
};
use engine::runtime::MOST_WORK;

/// Upper bound of task steps without a device event.
const TOO_MANY_STEPS: u64 = 100_000;

/// Executes one event; `false` if no event is possible. `working` lets the load submit operations.
pub(super) fn event(world: &mut VolumeWorld, working: bool) -> Result<bool, Failure> {
    let (queued, executed) = (world.command_queue.queued(), world.command_queue.executed());
    if queued == 0 && executed == 0 && !world.ready && !world.ops.is_empty() {
        return Err(world.hang());
    }
    let wanted = working && world.volume.is_some() && world.ops.len() < world.scenario.load.queue_depth;
    let possible = [queued > 0, executed > 0, world.ready, wanted];
    let weights: Vec<u64> =
        possible.iter().zip(world.scenario.pace).map(|(possible, pace)| *possible as u64 * pace).collect();
    if weights.iter().all(|weight| *weight == 0) {
        return Ok(false);
    }
    world.command_queue.tick();
    world.trace.event += 1;
    let kind = world.rng.weighted(&weights);
    match kind {
        0 => {
            let index = if world.scenario.in_order { 0 } else { world.rng.below(queued as u64) as usize };
            if let Some(event) = world.command_queue.execute(index, world.trace.on()) {
                world.trace.note(|| format!("drive{} does {}", event.bay, event.what));
            }
        }
        1 => {
            let index = world.rng.below(executed as u64) as usize;
            world.command_queue.deliver(index);
            world.ready = true;
        }
        2 if world.rng.chance(1, 100) => settle(world)?,
        2 => world.ready = world.runtime.step(),
        _ => load::issue(world),
    }
    let most = world.runtime.most_worked();
    if most > MOST_WORK {
        return Err(Failure(format!("a task did {most} units of work before others could go on")));
    }
    load::collect(world)?;
    Ok(true)
}

/// Runs tasks until none is ready, since devices are polled only then.
pub(super) fn settle(world: &mut VolumeWorld) -> Result<(), Failure> {
    world.ready = false;
    match (0..TOO_MANY_STEPS).any(|_| !world.runtime.step()) {
        true => Ok(()),
        false => Err(Failure(format!("tasks wake each other for ever: {:?}", world.status()))),
    }
}

/// Runs events until the result is available.
pub(super) fn wait<T>(
    world: &mut VolumeWorld,
    pending: &Pending<T, String>,
) -> Result<Result<T, String>, Failure> {
    for _ in 0..TOO_MANY_EVENTS {
        if let Some(result) = pending.borrow_mut().take() {
            return Ok(result);
        }
        if !event(world, false)? {
            return Err(world.hang());
        }
    }
    Err(Failure(format!("still not done after {TOO_MANY_EVENTS} events")))
}

/// Waits for the result, in order and without delays.
pub(super) fn wait_in_order<T>(
    world: &mut VolumeWorld,
    pending: &Pending<T, String>,
) -> Result<Result<T, String>, Failure> {
    for _ in 0..TOO_MANY_EVENTS {
        world.runtime.run();
        if let Some(result) = pending.borrow_mut().take() {
            world.ready = true;
            return Ok(result);
        }
        if world.command_queue.queued() == 0 && world.command_queue.executed() == 0 {
            return Err(world.hang());
        }
        world.command_queue.run_all();
    }
    Err(Failure(format!("still not done after {TOO_MANY_EVENTS} rounds")))
}

/// Runs until all operations are complete.
pub(super) fn drain(world: &mut VolumeWorld) -> Result<(), Failure> {
    for _ in 0..TOO_MANY_EVENTS {
        if world.ops.is_empty() {
            return Ok(());
        }
        event(world, false)?;
    }
    Err(Failure(format!("operations did not complete within {TOO_MANY_EVENTS} events")))
}
