//! The events of a world of namespaces, and waits for results.
//!
//! As in the world of arrays, everything that can happen is an event, and the seed picks among the possible events.

use super::{load, world::NamespaceWorld};
use crate::simulator::{
    step::TOO_MANY_EVENTS,
    world::{Failure, Pending},
};
use engine::runtime::MOST_WORK;

/// Number of events between two audits of the allocation.
const AUDIT_EVERY: u64 = 8;

/// Executes one event; `false` if no event is possible. `working` lets the load submit operations.
pub(super) fn event(world: &mut NamespaceWorld, working: bool) -> Result<bool, Failure> {
    let (queued, executed) = (world.command_queue.queued(), world.command_queue.executed());
    let wanted = working && world.up.is_some() && world.ops.len() < world.scenario.queue_depth;
    let possible = [queued > 0, executed > 0, world.ready, wanted, world.up.is_some()];
    let weights: Vec<u64> =
        possible.iter().zip(world.scenario.pace).map(|(possible, pace)| *possible as u64 * pace).collect();
    if weights.iter().all(|weight| *weight == 0) {
        return Ok(false);
    }
    world.command_queue.tick();
    world.clock.set(world.clock.get() + world.rng.below(40));
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
        2 => world.ready = world.runtime.step(),
        3 => load::issue(world),
        _ => tick(world),
    }
    let most = world.runtime.most_worked();
    if most > MOST_WORK {
        return Err(Failure(format!("a task did {most} units of work before others could go on")));
    }
    load::collect(world)?;
    if world.trace.event.is_multiple_of(AUDIT_EVERY) {
        audit(world)?;
    }
    Ok(true)
}

fn tick(world: &mut NamespaceWorld) {
    if let Some((namespaces, _)) = &world.up {
        namespaces.tick();
        world.ready = true;
    }
}

pub(super) fn audit(world: &mut NamespaceWorld) -> Result<(), Failure> {
    let Some((namespaces, list)) = &world.up else { return Ok(()) };
    for namespace in list.iter().flatten() {
        world.counts.most_spares = world.counts.most_spares.max(namespace.status().spares as u64);
    }
    // A refusal means that a command broke the rules of the allocation, unless commands of the drive fail.
    if namespaces.refusals() > 0 && !world.failing {
        return Err(Failure("the device has refused to write or reset a zone of no namespace".into()));
    }
    namespaces.audit().map_err(Failure)
}

/// Runs events until the result is available.
pub(super) fn wait<T>(
    world: &mut NamespaceWorld,
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
pub(super) fn wait_in_order<T>(
    world: &mut NamespaceWorld,
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
    Err(world.hang())
}

/// Runs until all operations are complete.
pub(super) fn drain(world: &mut NamespaceWorld) -> Result<(), Failure> {
    for _ in 0..TOO_MANY_EVENTS {
        if world.ops.is_empty() && world.limiting.is_none() && world.reshaping.is_none() {
            return audit(world);
        }
        event(world, false)?;
    }
    Err(world.hang())
}
