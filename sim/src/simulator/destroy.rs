//! Destruction of the array at the end of a life.
//!
//! After an interrupted destruction the array holds everything that was promised or is refused, with any members
//! present. The destruction can then be completed; after that all its drives are blank, and members that were absent do
//! not bring the array back.

use super::{
    accept,
    command_queue::Bay,
    owner, recover, recovered,
    run_state::RunState,
    step,
    subject::SubjectError,
    world::{Failure, World},
};
use engine::{
    array::ArrayError,
    raid::error::NoArray,
    zone::{Lba, ZoneIndex, ZoneState, is_worn},
};

/// Whether the array is destroyed at the end of this life.
pub(super) fn is_destroyed(world: &mut World<'_>) -> bool {
    let percent = world.scenario.misfortune.destroy_percent;
    !world.books.may.is_empty() && percent > 0 && world.rng.chance(percent, 100)
}

/// Destroys the array for good, maybe after some interrupted attempts.
///
/// # Errors
/// A broken promise.
pub(super) fn destroy(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    recover::cut(world, run_state, true)?;
    let (mut cuts, mut untouched) = (world.rng.below(4), true);
    loop {
        let mut bays = owner::own(world, run_state);
        bays.extend(run_state.attic.iter().filter(|_| world.rng.chance(1, 4)));
        world.rng.shuffle(&mut bays);
        world.trace.note(|| format!("destruction of drives {bays:?}"));
        let before = world.changes(&bays);
        let drives = bays.iter().map(|bay| world.drive(*bay)).collect();
        let pending = world.start(world.maker.destroy(&world.runtime, drives));
        let events = (cuts > 0).then(|| 1 + world.rng.below(400));
        match step::wait(world, &pending, events, false)? {
            None => {
                cuts -= 1;
                // Commands in flight may still be executed.
                untouched &= world.changes(&bays) == before && !world.command_queue.is_changing();
                recover::cut(world, run_state, false)?;
                judge_half_destroyed(world, run_state, untouched)?;
                recover::cut(world, run_state, false)?;
            }
            Some(Ok(())) => {
                world.counts.destructions += 1;
                return judge_destroyed(world, run_state);
            }
            Some(Err(why @ SubjectError::Array(ArrayError::Drives(NoArray::OthersGoOn { .. })))) => {
                let left =
                    owner::own(world, run_state).into_iter().filter(|bay| check_blank(world, *bay).is_err());
                // Half of the members may be enough.
                let few = world.scenario.parities.min(world.members.len() - world.scenario.parities - 1);
                let are_gone = !untouched && left.count() <= few;
                // The absent members may be enough to go on, with either drive of a replacement.
                let sure = world.members.len() - run_state.suspects.members().len();
                let in_doubt = world.replacement_drive.is_some_and(|replacement_drive| {
                    run_state.suspects.get(replacement_drive.member).is_none()
                });
                let others = sure - usize::from(in_doubt) <= world.scenario.parities;
                return match world.changes(&bays) == before {
                    // All members that were marked as destroyed are blank, and the absent ones cannot know.
                    true if are_gone => judge_left(world, run_state, bays),
                    true if others => recover::recover(world, run_state),
                    _ => Err(Failure(format!("the array could not be destroyed: {why}"))),
                };
            }
            Some(Err(why)) if is_damage(run_state, &why) => return Ok(()),
            Some(Err(why)) => return Err(Failure(format!("the array could not be destroyed: {why}"))),
        }
    }
}

/// Whether an error names a drive with damaged media.
fn is_damage(run_state: &RunState, why: &SubjectError) -> bool {
    run_state.damaged.iter().any(|bay| why.names_drive(*bay))
}

/// Judges an array after an interrupted destruction: it holds everything, or is refused; it has to assemble if
/// nothing was changed.
fn judge_half_destroyed(
    world: &mut World<'_>,
    run_state: &mut RunState,
    untouched: bool,
) -> Result<(), Failure> {
    for suspect in run_state.suspects.iter_mut() {
        suspect.absent &= world.rng.chance(1, 2);
    }
    let offered = owner::own(world, run_state);
    world.trace.note(|| format!("half destroyed, assembly from drives {offered:?}"));
    let before = world.changes(&offered);
    let drives = offered.iter().map(|bay| world.drive(*bay)).collect();
    let pending = world.start(world.maker.assemble(&world.runtime, drives, world.how()));
    match step::wait(world, &pending, None, false)? {
        Some(Ok(subject)) => {
            world.oracle.volatile_cache = accept::promise(world, &*subject, &offered, true)?;
            accept::take_subject(world, subject)?;
            let lacking =
                world.unsound_members().filter(|member| run_state.suspects.get(*member).is_none()).count();
            // A member that was marked as destroyed counts as lost.
            match lacking + run_state.suspects.members().len() <= world.scenario.parities {
                true => recovered::check_recovery(world)
                    .map_err(|failure| Failure(format!("half destroyed, {failure}"))),
                false => Ok(()),
            }
        }
        Some(Err(why)) if untouched => Err(Failure(format!("nothing was destroyed, but: {why}"))),
        Some(Err(why)) => {
            world.trace.note(|| format!("refused: {why}"));
            check_unchanged(world, &offered, before)
        }
        None => Ok(()),
    }
}

/// Checks that all drives that were present are blank, and that the absent ones do not assemble.
fn judge_destroyed(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    let sure = |bay: &Bay| !run_state.damaged.contains(bay);
    for member in (0..world.members.len()).filter(|member| !run_state.suspects.is_absent(*member)) {
        let is_member = !run_state.half_attached.contains(&member);
        if let Some(bay) = world.members[member].filter(sure).filter(|_| is_member) {
            check_blank(world, bay)?;
        }
    }
    let mut away: Vec<usize> = run_state.suspects.absent();
    // Half of the members may be enough, even the old drives of replacements; of a single drive each one is.
    let are_halves = world.members.len() <= 2 * world.scenario.parities.max(1);
    if are_halves {
        away.retain(|member| {
            world.replacement_drive.is_none_or(|replacement_drive| replacement_drive.member != *member)
        });
    }
    let mut offered: Vec<Bay> = away.iter().flat_map(|member| world.drives_of(*member)).collect();
    if !are_halves {
        offered.extend(run_state.attic.iter().filter(|bay| !run_state.missed.contains(bay)));
    }
    offered.retain(|bay| !world.foreign.contains(bay));
    judge_left(world, run_state, offered)
}

/// Checks that drives that were absent when their array was destroyed do not assemble.
fn judge_left(world: &mut World<'_>, run_state: &mut RunState, offered: Vec<Bay>) -> Result<(), Failure> {
    if offered.is_empty() {
        return Ok(());
    }
    recover::cut(world, run_state, false)?;
    world.trace.note(|| format!("destroyed, assembly from drives {offered:?}"));
    let before = world.changes(&offered);
    let drives = offered.iter().map(|bay| world.drive(*bay)).collect();
    let pending = world.start(world.maker.assemble(&world.runtime, drives, world.how()));
    match step::wait(world, &pending, None, false)? {
        Some(Err(why)) => {
            world.trace.note(|| format!("refused: {why}"));
            check_unchanged(world, &offered, before)
        }
        _ => Err(Failure("an array that was destroyed is there again".into())),
    }
}

fn check_unchanged(world: &World<'_>, bays: &[Bay], before: u64) -> Result<(), Failure> {
    match world.changes(bays) == before {
        true => Ok(()),
        false => Err(Failure("it refuses, but has changed drives".into())),
    }
}

fn check_blank(world: &World<'_>, bay: Bay) -> Result<(), Failure> {
    let geometry = world.command_queue.geometry(bay).clone();
    for zone in (0..geometry.zones).map(ZoneIndex) {
        let state = world.command_queue.ssd(bay).zones().info(zone).state;
        if is_worn(state) {
            continue;
        }
        let stored = world.command_queue.ssd(bay).stored(Lba(geometry.start(zone).0));
        let stored = stored.map_err(|error| Failure(format!("reading a drive: {error}")))?;
        let is_blank = stored.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0));
        if state != ZoneState::Empty || !is_blank {
            return Err(Failure(format!("drive{bay} was destroyed, but zone {} is {state:?}", zone.0)));
        }
    }
    Ok(())
}
