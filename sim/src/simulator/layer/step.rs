//! Events of a simulated volume or namespaces, and waits for results.
//!
//! As in the world of arrays, everything that can happen is an event, and the seed picks among the possible events.

use super::world::{LayerModel, LayerWorld};
use crate::simulator::{
    step::TOO_MANY_EVENTS,
    world::{Failure, Pending},
};
use engine::runtime::MOST_WORK;

/// Executes one event; `false` if no event is possible. `working` lets the load submit operations.
pub fn event<M: LayerModel>(world: &mut LayerWorld<M>, working: bool) -> Result<bool, Failure> {
    let (queued, executed) = (world.command_queue.queued(), world.command_queue.executed());
    if !M::TICKS && queued == 0 && executed == 0 && !world.ready && world.model.outstanding() > 0 {
        return Err(world.hang());
    }
    let is_up = world.model.is_up();
    let wanted = working && is_up && world.model.outstanding() < world.life.queue_depth;
    let possible = [queued > 0, executed > 0, world.ready, wanted, M::TICKS && is_up];
    let weights: Vec<u64> =
        possible.iter().zip(world.life.pace).map(|(possible, pace)| *possible as u64 * pace).collect();
    if weights.iter().all(|weight| *weight == 0) {
        return Ok(false);
    }
    world.command_queue.tick();
    world.model.pass_time(&mut world.rng);
    world.trace.event += 1;
    match world.rng.weighted(&weights) {
        0 => {
            let index = if world.life.in_order { 0 } else { world.rng.below(queued as u64) as usize };
            if let Some(event) = world.command_queue.execute(index, world.trace.on()) {
                world.trace.note(|| format!("drive{} does {}", event.bay, event.what));
            }
        }
        1 => {
            let index = world.rng.below(executed as u64) as usize;
            world.command_queue.deliver(index);
            world.ready = true;
        }
        2 => M::run_task(world)?,
        3 => M::issue(world),
        _ => {
            world.model.tick();
            world.ready = true;
        }
    }
    let most = world.runtime.most_worked();
    if most > MOST_WORK {
        return Err(Failure(format!("a task did {most} units of work before others could go on")));
    }
    M::collect(world)?;
    Ok(true)
}

/// Runs events until the result is available.
pub fn wait<M: LayerModel, T>(
    world: &mut LayerWorld<M>,
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

/// As [`wait`], in order and without delays.
pub fn wait_in_order<M: LayerModel, T>(
    world: &mut LayerWorld<M>,
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

/// Runs until nothing is outstanding.
pub fn drain<M: LayerModel>(world: &mut LayerWorld<M>) -> Result<(), Failure> {
    for _ in 0..TOO_MANY_EVENTS {
        if world.model.is_idle() {
            return M::check(world);
        }
        event(world, false)?;
    }
    Err(world.hang())
}
