//! The steps of a world: the next event at random or in the default order, and waits for results.
//!
//! Everything that can happen is an event: a drive executes a command, a completion is delivered to the engine, a task
//! runs until it waits, the load submits an operation. The seed picks among the possible events; nothing else decides
//! an order, and no clock is read, so a seed always gives the same run.
//!
//! An operation that never completes is detected as a world without a possible event.
//!
//! In the default order a task that is ready runs; then the oldest completion is delivered; then the host submits its
//! next operation; then the oldest command is executed.

use super::{
    load,
    subject::SubjectError,
    world::{Failure, Pending, World},
};
use engine::{
    device::{Command, Completion, Done},
    runtime::{MOST_WORK, Runtime},
};

/// Upper bound of the events of any wait; only endless work reaches it.
pub(super) const TOO_MANY_EVENTS: u64 = 3_000_000;

/// Upper bound of steps without I/O.
const TOO_MANY_STEPS: u64 = 1_000_000;

/// Blocks of commands that are in flight at the same time in [`ask`].
const MOST_ASKED_BLOCKS: u64 = 4096;

fn blocks_of(command: &Command) -> u64 {
    match command {
        Command::Read { data, .. } => data.blocks(),
        _ => 0,
    }
}

/// Executes one event. `working` lets the load submit operations; with `waiting` a caller waits for a result, so
/// that it is a failure if no event is possible. Returns `false` if no event is possible.
///
/// # Errors
/// A promise that this event has broken.
pub(super) fn event(world: &mut World<'_>, working: bool, waiting: bool) -> Result<bool, Failure> {
    let pace = &world.scenario.pace;
    let (queued, executed) = (world.command_queue.queued(), world.command_queue.executed());
    let stuck = queued == 0 && executed == 0 && !world.ready;
    if stuck && (waiting || !world.ops.is_empty()) {
        return Err(hang(world));
    }
    let wanted = working && world.subject.is_some() && world.ops.len() < world.scenario.load.queue_depth;
    let weights = [
        if queued > 0 { pace.execute } else { 0 },
        if executed > 0 { pace.deliver } else { 0 },
        if world.ready { pace.step } else { 0 },
        if wanted { pace.issue } else { 0 },
    ];
    if weights.iter().all(|weight| *weight == 0) {
        return Ok(false);
    }
    world.command_queue.tick();
    world.trace.event += 1;
    let kind = world.rng.weighted(&weights);
    match kind {
        0 => execute(world, queued),
        1 => deliver(world, executed),
        2 => {
            world.ready = world.runtime.step();
            let most = world.runtime.most_worked();
            if most > MOST_WORK {
                return Err(Failure(format!("a task did {most} units of work before others could go on")));
            }
            load::collect(world)?;
        }
        _ => {
            load::issue(world);
            world.ready = true;
            load::collect(world)?;
        }
    }
    Ok(true)
}

fn execute(world: &mut World<'_>, queued: usize) {
    let index = if world.scenario.pace.in_order { 0 } else { world.rng.below(queued as u64) as usize };
    let event = world.command_queue.execute(index, world.trace.on());
    if let Some(event) = event {
        world.trace.note(|| format!("drive{} does {}", event.bay, event.what));
    }
}

fn deliver(world: &mut World<'_>, executed: usize) {
    let index = world.rng.below(executed as u64) as usize;
    let bay = world.command_queue.deliver(index);
    world.trace.note(|| format!("drive{bay} answers"));
    world.ready = true;
}

/// The failure that no event is possible although operations are outstanding.
pub(super) fn hang(world: &World<'_>) -> Failure {
    let ops: Vec<String> = world.ops.iter().map(|op| op.to_string()).collect();
    let what = if ops.is_empty() { "background work".into() } else { ops.join("; ") };
    Failure(format!("nothing can happen any more, but this never completed: {what}"))
}

/// Runs events until the result is available; `None` if it is not after `events` events.
///
/// # Errors
/// A broken promise, or work that does not end.
pub(super) fn wait<T>(
    world: &mut World<'_>,
    pending: &Pending<T>,
    events: Option<u64>,
    working: bool,
) -> Result<Option<Result<T, SubjectError>>, Failure> {
    for _ in 0..events.unwrap_or(TOO_MANY_EVENTS) {
        if let Some(result) = pending.borrow_mut().take() {
            return Ok(Some(result));
        }
        event(world, working, true)?;
    }
    match events {
        Some(_) => Ok(None),
        None => Err(Failure(format!("still not done after {TOO_MANY_EVENTS} events"))),
    }
}

/// Runs until all operations are complete, without submitting new ones.
///
/// # Errors
/// A broken promise.
pub(super) fn drain(world: &mut World<'_>) -> Result<(), Failure> {
    for _ in 0..TOO_MANY_EVENTS {
        if world.ops.is_empty() && world.held.is_empty() {
            return Ok(());
        }
        if world.ops.is_empty() {
            load::issue(world);
            world.ready = true;
        }
        event(world, false, false)?;
    }
    Err(Failure(format!("operations did not complete within {TOO_MANY_EVENTS} events")))
}

/// Runs all tasks until they wait.
///
/// # Errors
/// Tasks that wake each other endlessly.
pub(super) fn run_tasks(world: &mut World<'_>) -> Result<(), Failure> {
    for _ in 0..TOO_MANY_STEPS {
        if !world.runtime.step() {
            return Ok(());
        }
    }
    Err(Failure(format!("tasks still wake each other after {TOO_MANY_STEPS} steps")))
}

/// Executes commands of the subject in order and without delays, and waits for their completions. Reads of many
/// blocks are divided: with a missing member each block may take reads from all others.
///
/// # Errors
/// A hang.
pub(super) fn ask(world: &mut World<'_>, commands: Vec<Command>) -> Result<Vec<Done>, Failure> {
    let mut commands = commands.into_iter().peekable();
    let mut all = Vec::with_capacity(commands.len());
    while let Some(first) = commands.next() {
        let (mut blocks, mut batch) = (blocks_of(&first), vec![first]);
        while let Some(next) = commands.next_if(|next| blocks + blocks_of(next) <= MOST_ASKED_BLOCKS) {
            blocks += blocks_of(&next);
            batch.push(next);
        }
        all.extend(ask_at_once(world, batch)?);
    }
    Ok(all)
}

fn ask_at_once(world: &mut World<'_>, commands: Vec<Command>) -> Result<Vec<Done>, Failure> {
    let Some(subject) = world.subject.clone() else { return Ok(Vec::new()) };
    let mut waiting: Vec<(Completion, Option<Done>)> =
        commands.into_iter().map(|command| (subject.submit(command), None)).collect();
    let mut open = waiting.len();
    while open > 0 {
        run_tasks(world)?;
        for (completion, done) in &mut waiting {
            if done.is_none()
                && let Some(answer) = completion.take()
            {
                *done = Some(answer);
                open -= 1;
            }
        }
        if open > 0 && world.command_queue.queued() == 0 && world.command_queue.executed() == 0 {
            return Err(Failure("nothing can happen any more, but reads never completed".into()));
        }
        world.command_queue.run_all();
    }
    world.ready = true;
    Ok(waiting.into_iter().filter_map(|(_, done)| done).collect())
}

/// From now on tasks run first in, first out.
pub(super) fn set_in_order(world: &mut World<'_>) {
    world.in_order = true;
    world.runtime = Runtime::new();
}

/// Completes all operations in the default order.
pub(super) fn drain_in_order(world: &mut World<'_>) -> Result<(), Failure> {
    while !world.ops.is_empty() {
        advance_in_order(world)?;
    }
    Ok(())
}

pub(super) fn wait_in_order<T>(
    world: &mut World<'_>,
    pending: &Pending<T>,
) -> Result<Result<T, SubjectError>, Failure> {
    loop {
        if let Some(result) = pending.borrow_mut().take() {
            return Ok(result);
        }
        advance_waiting(world, || pending.borrow().is_none())?;
    }
}

/// Runs all that can happen now, in the default order.
pub(super) fn advance_in_order(world: &mut World<'_>) -> Result<(), Failure> {
    advance_waiting(world, || false)
}

/// As [`advance_in_order`]; an error if nothing can happen although `waits` is true or operations are
/// pending.
fn advance_waiting(world: &mut World<'_>, waits: impl Fn() -> bool) -> Result<(), Failure> {
    run_tasks(world)?;
    world.ready = false;
    load::collect(world)?;
    let nothing_left = world.command_queue.queued() == 0 && world.command_queue.executed() == 0;
    if nothing_left && (waits() || !world.ops.is_empty()) {
        return Err(hang(world));
    }
    world.command_queue.run_all();
    world.ready = true;
    Ok(())
}

/// Writes `zone` up to `from_end` blocks below its capacity.
pub(super) fn fill_to(world: &mut World<'_>, zone: u32, from_end: u64) -> Result<(), Failure> {
    let Some(limits) = world.limits.clone() else { return Ok(()) };
    let end = limits.zone_capacity_blocks.saturating_sub(from_end);
    while world.oracle.zones[zone as usize].submitted() < end {
        let left = end - world.oracle.zones[zone as usize].submitted();
        load::write(world, zone, left.min(limits.max_transfer_blocks as u64), true, false);
        drain_in_order(world)?;
    }
    Ok(())
}
