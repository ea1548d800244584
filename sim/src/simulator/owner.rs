//! Changes of the identity of an array at any moment of a life: it is renamed or adopted, while it runs or at rest.
//!
//! The world records the *identities* (name, host, autostart, error limit) that the array may report: the result of the
//! last change, and as long as the outcome of an interrupted change is unknown, the identity before as well. Every
//! assembly has to report one of these, whichever members are missing, and from then on exactly that one: an interrupted
//! change does not come back after an assembly has reported the old identity.

use super::{
    command_queue::Bay,
    run_state::{PendingChange, RunState},
    spare_drives, step,
    subject::{SubjectError, SubjectIdentity},
    world::{Failure, World},
};
use engine::{array::ArrayError, owner::Change};

fn changed(said: &SubjectIdentity, change: &Change) -> SubjectIdentity {
    let mut said = said.clone();
    match change {
        Change::Name(name) => said.name.clone_from(name),
        Change::Host(host) => said.host = *host,
        Change::Autostart(autostart) => said.autostart = *autostart,
        Change::ErrorLimit(limit) => said.error_limit = *limit,
    }
    said
}

/// Draws a change, and returns the identities that are allowed after it.
fn draw_change(world: &mut World<'_>) -> (Change, Vec<SubjectIdentity>) {
    world.books.begun += 1;
    let begun = world.books.begun;
    let change = match world.rng.below(4) {
        0 => Change::Host([begun as u8; 16]),
        1 => match world.rng.chance(1, 2) {
            true => Change::Autostart(begun % 4 < 2),
            false => Change::ErrorLimit(begun as u32),
        },
        _ => Change::Name(format!("name{begun}")),
    };
    let after = world.books.may.iter().map(|said| changed(said, &change)).collect();
    (change, after)
}

/// Begins to change the identity of a running array, occasionally.
pub(super) fn change_somehow(world: &mut World<'_>, run_state: &mut RunState) {
    let Some(subject) = world.subject.clone().filter(|subject| subject.said().is_some()) else { return };
    let rate = world.scenario.misfortune.change;
    if run_state.changing.is_some() || rate == 0 || !world.rng.chance(rate, 100_000) {
        return;
    }
    let before = world.books.may.clone();
    let (change, after) = draw_change(world);
    world.trace.note(|| format!("the array is changed: {change:?}"));
    world.books.may.extend(after.iter().cloned());
    let pending = world.start(subject.change(change));
    run_state.changing = Some(PendingChange { pending, after, before });
}

/// Updates the allowed identities when a change has completed.
///
/// # Errors
/// A running array could not be changed.
pub(super) fn note_changed(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    let result = run_state.changing.as_ref().and_then(|changing| changing.pending.borrow_mut().take());
    let Some(result) = result else { return Ok(()) };
    let Some(PendingChange { after, before, .. }) = run_state.changing.take() else { return Ok(()) };
    match result {
        Ok(()) => {
            world.counts.changes += 1;
            world.trace.note(|| "changed".into());
            world.books.may = after;
            Ok(())
        }
        Err(SubjectError::Array(ArrayError::HoldsBack | ArrayError::ReadOnly)) => {
            world.books.may = before;
            Ok(())
        }
        Err(why) => Err(Failure(format!("the array could not be changed: {why}"))),
    }
}

/// Changes the identity of an array at rest, occasionally; the change may be interrupted. Returns whether it was
/// tried, after which another end is due.
///
/// # Errors
/// The change is refused without a reason.
pub(super) fn change_at_rest(world: &mut World<'_>, run_state: &mut RunState) -> Result<bool, Failure> {
    let percent = world.scenario.misfortune.change_percent;
    // The tails of a killed process would not be kept.
    let rests = world.tails.is_none() && !world.books.may.is_empty();
    if !rests || percent == 0 || !world.rng.chance(percent, 100) {
        return Ok(false);
    }
    let offered = own(world, run_state);
    let (change, after) = draw_change(world);
    world.trace.note(|| format!("{change:?} with drives {offered:?}"));
    world.books.may.extend(after.iter().cloned());
    let drives = offered.iter().map(|bay| world.drive(*bay)).collect();
    let pending = world.start(world.maker.change(&world.runtime, drives, change));
    let events = world.rng.chance(2, 3).then(|| 1 + world.rng.below(300));
    match step::wait(world, &pending, events, false)? {
        None => world.counts.interrupted_recoveries += 1,
        Some(Ok(())) => {
            world.counts.changes += 1;
            world.books.may = after;
        }
        Some(Err(why)) => {
            let told = |member: usize| run_state.suspects.get(member).is_some();
            let struck = matches!(&why, SubjectError::Array(ArrayError::NotTold(_)))
                && why.members().into_iter().all(told);
            if !struck {
                let RunState { spare_drives, half_attached, .. } = &mut *run_state;
                spare_drives::judge_refusal(world, spare_drives, half_attached, &offered, &why)?;
            }
        }
    }
    Ok(true)
}

/// The drives of present members, except those that still belong to another array.
pub(super) fn own(world: &World<'_>, run_state: &RunState) -> Vec<Bay> {
    let kept = world.kept(&run_state.suspects.absent());
    kept.into_iter().filter(|bay| !world.foreign.contains(bay)).collect()
}
