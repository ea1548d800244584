//! Assemblies in the default order, without some of the members.

use super::{
    accept,
    command_queue::Bay,
    event_log_check::ReportedEvents,
    replacement, step,
    subject::{AssembleOptions, SubjectError},
    world::{Failure, World},
};
use engine::array::Drive;

/// Assembles without some members, in the default order.
pub(super) fn assemble_without(world: &mut World<'_>, lost: &[usize]) -> Result<(), Failure> {
    assemble_somehow(world, lost, false)
}

/// As [`assemble_without`]; with `hold_back` the array is in deferred-write mode if it can be: it writes
/// nothing.
pub(super) fn assemble_somehow(
    world: &mut World<'_>,
    lost: &[usize],
    hold_back: bool,
) -> Result<(), Failure> {
    // A drive that has not been emptied yet belongs to another array, and would be refused as such.
    let own: Vec<Bay> = world.kept(lost).into_iter().filter(|bay| !world.foreign.contains(bay)).collect();
    let drives = own.iter().map(|bay| world.drive(*bay)).collect();
    let how = AssembleOptions { hold_back, ..world.how() };
    let pending = world.start(world.maker.assemble(&world.runtime, drives, how));
    let result = step::wait_in_order(world, &pending)?;
    let subject = result.map_err(|why| Failure(format!("the array does not assemble: {why}")))?;
    // A drive with damaged media may have failed since the array reported its drives.
    world.oracle.volatile_cache = accept::promise(world, &*subject, &own, false)?;
    accept::take_subject(world, subject)?;
    replacement::settle_replacement_drive(world);
    Ok(())
}

/// Assembles from the drives of the members that `takes` selects; returns the array's reason if it refuses.
pub(super) fn assemble_from(
    world: &mut World<'_>,
    takes: impl Fn(usize) -> bool,
) -> Result<Result<(), SubjectError>, Failure> {
    assemble_as(world, takes, world.how())
}

pub(super) fn assemble_as(
    world: &mut World<'_>,
    takes: impl Fn(usize) -> bool,
    how: AssembleOptions,
) -> Result<Result<(), SubjectError>, Failure> {
    let taken = world.members.iter().enumerate().filter(|(member, _)| takes(*member));
    // A spare that has not been erased yet is a member of another array.
    let own = taken.filter_map(|(_, bay)| *bay).filter(|bay| !world.foreign.contains(bay));
    let mut drives: Vec<Drive> = own.map(|bay| world.drive(bay)).collect();
    world.rng.shuffle(&mut drives);
    let pending = world.start(world.maker.assemble(&world.runtime, drives, how));
    Ok(step::wait_in_order(world, &pending)?.map(|subject| {
        world.oracle.volatile_cache = subject.geometry().volatile_cache;
        world.subject = Some(subject);
        world.heard = ReportedEvents::default();
    }))
}
