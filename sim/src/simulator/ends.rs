//! Ends of a process: a power cut, a kill, or an orderly shutdown of the drives.

use super::{
    command_queue::Bay,
    world::{End, Failure, World},
};
use emu::ssd::Cut;
use engine::{array::Tails, runtime::Runtime};

/// Cuts the power. The host's memory is lost; the drives keep all data that a power cut must not cost.
///
/// # Errors
/// I/O errors of the drives' media.
pub(super) fn cut_power(world: &mut World<'_>, cut: impl Fn(Bay) -> Cut) -> Result<(), Failure> {
    world.counts.power_cuts += 1;
    let queued = world.command_queue.queued();
    world.trace.note(|| format!("power cut with {queued} commands in flight"));
    let costs = |what: fn(Cut) -> bool| world.members.iter().flatten().any(|bay| what(cut(*bay)));
    world.coverage.end = match (costs(|cut| cut.cache_lost), costs(|cut| cut.zrwa_lost)) {
        (false, false) => "cut",
        (true, false) => "cut that costs caches",
        (false, true) => "cut that costs a ZRWA",
        (true, true) => "cut that costs caches and a ZRWA",
    };
    end_process(world);
    world.tails = None;
    world.oracle.power_cut();
    world.command_queue.power_cut(&mut world.rng, cut).map_err(|error| Failure(format!("power cut: {error}")))
}

/// Kills the process. The drives keep power, and the next process gets the acknowledgement log.
pub(super) fn kill_process(world: &mut World<'_>) {
    world.counts.kills += 1;
    let queued = world.command_queue.queued();
    world.coverage.end = "kill";
    world.trace.note(|| format!("the process is killed with {queued} commands in flight"));
    if let Some(subject) = world.subject.as_ref().filter(|subject| !subject.is_deferred()) {
        let blocks = subject.tails().unwrap_or(world.oracle.killed(&mut world.rng));
        let (assembly, power) = (subject.assembly(), subject.power_marks());
        world.tails = Some(Tails { assembly, blocks, power });
    }
    end_process(world);
    world.command_queue.kill(&mut world.rng);
}

/// Kills the process and shuts the drives down in good order, as a restart of the host does.
///
/// # Errors
/// I/O errors of the drives' media.
pub(super) fn shut_down(world: &mut World<'_>) -> Result<(), Failure> {
    world.counts.shutdowns += 1;
    let queued = world.command_queue.queued();
    world.coverage.end = "shutdown";
    world.trace.note(|| format!("orderly shutdown, {queued} commands were in flight"));
    end_process(world);
    world.tails = None;
    world.oracle.power_cut();
    world.command_queue.shut_down(&mut world.rng).map_err(|error| Failure(format!("shutdown: {error}")))
}

/// Discards the state that the process held in memory.
pub(super) fn end_process(world: &mut World<'_>) {
    let before = world.before.take();
    if let Some(before) = before.filter(|_| world.subject.as_ref().is_none_or(|s| s.is_deferred())) {
        world.oracle.go_back(before);
    }
    world.runtime.clear();
    world.runtime = if world.in_order { Runtime::new() } else { Runtime::seeded(world.rng.next_u64()) };
    world.subject = None;
    world.ops.clear();
    world.held.clear();
    world.oracle.process_ended();
    world.ready = false;
}

/// Ends the world in a random way; returns the name of the end.
pub(super) fn end_somehow(world: &mut World<'_>) -> Result<&'static str, Failure> {
    let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(3, 4);
    let end = *world.rng.pick(&[End::PowerCut, End::PowerCut, End::PowerCut, End::Kill, End::Shutdown]);
    end_by(world, end, cache_lost)
}

/// Ends the world as given; returns the name of the end.
pub(super) fn end_by(world: &mut World<'_>, end: End, cache_lost: bool) -> Result<&'static str, Failure> {
    match end {
        End::PowerCut => cut_power(world, |_| Cut { cache_lost, zrwa_lost: false })?,
        End::Kill => kill_process(world),
        End::Shutdown => shut_down(world)?,
    }
    for bay in world.kept(&[]) {
        world.command_queue.set_gone(bay, false);
    }
    Ok(match end {
        End::PowerCut if cache_lost => "a power cut that cost caches",
        End::PowerCut => "a power cut",
        End::Kill => "a kill",
        End::Shutdown => "a shutdown",
    })
}
