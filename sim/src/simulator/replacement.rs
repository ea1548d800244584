//! Replacements of working drives, at any moment of a life.
//!
//! During a replacement a member has two drives: the old one, which is the member at first, and its *replacement
//! drive*, the one that replaces it. At any time one of them is the member and holds everything: after a power cut both
//! are offered, and the one that the array takes is the member from then on. To lose a member is to lose either one of
//! its drives.

use super::{
    command_queue::Bay,
    fault_budget::Suspect,
    run_state::{BackgroundRepair, RunState},
    schedule::Moment,
    spare_drives,
    subject::{Subject, SubjectError, Work},
    world::{Failure, Pending, ReplacementDrive, World},
};
use engine::{
    array::MemberState,
    zone::{ZoneIndex, ZoneState, is_worn},
};
use std::{cell::Cell, rc::Rc};

/// A replacement that is running.
pub(super) struct Replacement {
    pub pending: Pending<u64>,
    /// Set to `true` once the replacement drive is the member.
    pub taken: Rc<Cell<bool>>,
}

/// Finds which of the two drives the array has taken, once it has written to its drives; returns the member and the
/// drive that no longer belongs to the array.
pub(super) fn settle_replacement_drive(world: &mut World<'_>) -> Option<(usize, Bay)> {
    let replacement_drive = world.replacement_drive?;
    let subject = world.subject.clone().filter(|subject| !subject.is_deferred())?;
    let (state, drive) = subject.members().into_iter().nth(replacement_drive.member)?;
    world.replacement_drive = None;
    let left = match state != MemberState::Out && drive == format!("drive{}", replacement_drive.bay) {
        true => world.members[replacement_drive.member].replace(replacement_drive.bay)?,
        false => replacement_drive.bay,
    };
    Some((replacement_drive.member, left))
}

/// Retires the drive that has not become the member, once that is known. The copy to a replacement drive may be
/// continued.
pub(super) fn retire_heir(world: &mut World<'_>, run_state: &mut RunState) {
    let replacement_drive = world.replacement_drive;
    let left = settle_replacement_drive(world);
    let unfinished = left
        .filter(|(_, bay)| replacement_drive.is_some_and(|replacement_drive| replacement_drive.bay == *bay));
    run_state.unfinished = unfinished.or(run_state.unfinished);
    run_state.retire(left);
}

/// Cancels the copy to a replacement drive, occasionally.
pub(super) fn cancel_copy(world: &mut World<'_>, run_state: &mut RunState) {
    let Some(repair) = run_state.repair.as_mut().filter(|repair| repair.copies && !repair.cancelled) else {
        return;
    };
    let (is_taken, subject) =
        (run_state.taken.as_ref().is_none_or(|taken| taken.get()), world.subject.clone());
    if is_taken || !world.rng.chance(1, 4000) {
        return;
    }
    repair.cancelled = subject.is_some_and(|subject| subject.cancel_replacement());
    if repair.cancelled {
        world.counts.cancelled_copies += 1;
        world.trace.note(|| "the copy is cancelled".into());
    }
}

/// Checks that a replacement drive is blank when the array says so.
///
/// # Errors
/// It is not.
pub(super) fn check_cancelled(world: &World<'_>, why: &SubjectError) -> Result<(), Failure> {
    let Some(replacement_drive) = world.replacement_drive.filter(|_| why.is_cancelled()) else {
        return Ok(());
    };
    let zones = world.command_queue.geometry(replacement_drive.bay).zones;
    let ssd = world.command_queue.ssd(replacement_drive.bay);
    let is_used = |zone: &u32| {
        let state = ssd.zones().info(ZoneIndex(*zone)).state;
        !is_worn(state) && state != ZoneState::Empty
    };
    match (0..zones).find(is_used) {
        Some(zone) => {
            Err(Failure(format!("zone {zone} of a drive is not empty after its copy was cancelled")))
        }
        None => Ok(()),
    }
}

/// Starts to replace a working drive, occasionally.
pub(super) fn replace_somebody(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    let busy = run_state.repair.is_some() || run_state.failing.is_some() || run_state.coming_back.is_some();
    if let Some((member, _)) = run_state.unfinished.filter(|_| !busy)
        && world.rng.chance(1, 64)
    {
        return replace(world, run_state, member);
    }
    if busy || !world.rng.chance(world.scenario.misfortune.replace, 100_000) {
        return Ok(());
    }
    let member = world.rng.below(world.members.len() as u64) as usize;
    replace(world, run_state, member)
}

/// Starts to replace the drive of `member`, if it works.
pub(super) fn replace(world: &mut World<'_>, run_state: &mut RunState, member: usize) -> Result<(), Failure> {
    let Some(subject) = world.subject.clone().filter(|subject| !subject.is_deferred()) else {
        return Ok(());
    };
    let works = subject.members().get(member).is_some_and(|(state, _)| *state == MemberState::Active);
    if !works || world.replacement_drive.is_some() || world.scenario.is_bare() {
        return Ok(());
    }
    let (command_queue, damaged) = (world.command_queue.clone(), &run_state.damaged);
    let usable = |bay: Bay| !damaged.contains(&bay) && !command_queue.is_gone(bay);
    let unfinished = run_state.unfinished.take_if(|(of, _)| *of == member);
    let unfinished = unfinished.filter(|(_, bay)| usable(*bay) && !command_queue.is_awaited(*bay));
    let kept = unfinished.and_then(|(_, bay)| run_state.attic.iter().position(|other| *other == bay));
    if let Some(at) = kept {
        let bay = run_state.attic.swap_remove(at);
        world.command_queue.clear_fault(bay);
        world.counts.continued_copies += 1;
        world.trace.note(|| format!("the copy of member {member} to drive{bay} continues"));
        return begin_copy(world, run_state, subject, member, bay);
    }
    let mut bay = spare_drives::spare(world, &mut run_state.attic, usable)?;
    if world.foreign.remove(&bay) {
        bay = world.new_drive();
    }
    // A drive with another zone size is refused.
    if let Some(old) = world.members[member].filter(|_| world.scenario.mixed && world.rng.chance(3, 4)) {
        bay = world.like(old);
    }
    begin_copy(world, run_state, subject, member, bay)
}

fn begin_copy(
    world: &mut World<'_>,
    run_state: &mut RunState,
    subject: Rc<dyn Subject>,
    member: usize,
    bay: Bay,
) -> Result<(), Failure> {
    let lost = world.rng.chance(1, 2);
    world.replacement_drive = Some(ReplacementDrive { member, bay, lost, struck: false });
    world.trace.note(|| format!("drive{bay} is to replace the drive of member {member}"));
    let Replacement { pending, taken } = begin_replacement(world, subject, member, bay);
    run_state.taken = Some(taken);
    let struck = !run_state.suspects.is_empty();
    run_state.repair =
        Some(BackgroundRepair { members: vec![member], pending, struck, copies: true, cancelled: false });
    Ok(())
}

fn begin_replacement(
    world: &mut World<'_>,
    subject: Rc<dyn Subject>,
    member: usize,
    bay: Bay,
) -> Replacement {
    let (drive, taken) = (world.drive(bay), Rc::new(Cell::new(false)));
    let told = taken.clone();
    let work: Work<u64> = Box::pin(async move {
        subject.replace(member, drive).await?;
        told.set(true);
        subject.rebuild().await
    });
    Replacement { pending: world.start(work), taken }
}

/// Begins to replace the drive of `member` by a blank one.
pub(super) fn replace_in_order(world: &mut World<'_>, member: usize) -> Option<Replacement> {
    let subject = world.subject.clone()?;
    let bay = world.new_drive();
    world.replacement_drive = Some(ReplacementDrive { member, bay, lost: false, struck: false });
    Some(begin_replacement(world, subject, member, bay))
}

/// Updates the member if the replacement drive has taken over; returns whether the replacement is still running.
///
/// # Errors
/// The replacement has failed.
pub(super) fn follow(world: &mut World<'_>, replacement: &Replacement) -> Result<bool, Failure> {
    if let Some(replacement_drive) = world.replacement_drive.take_if(|_| replacement.taken.get()) {
        world.members[replacement_drive.member] = Some(replacement_drive.bay);
    }
    match &*replacement.pending.borrow() {
        Some(Err(why)) => Err(Failure(format!("the replacement failed: {why}"))),
        result => Ok(result.is_none()),
    }
}

/// Sets which drive is lost if a member that is being replaced is lost: the replacement drive if `lost`.
pub(super) fn lose_replacement_drive(world: &mut World<'_>, lost: bool) {
    world.replacement_drive.iter_mut().for_each(|replacement_drive| replacement_drive.lost = lost);
}

/// Updates the state of the replacement: the replacement drive is the member, is taking over, or never will.
pub(super) fn note_replacement_drive(world: &mut World<'_>, run_state: &mut RunState) {
    let Some(replacement_drive) = world.replacement_drive else { return };
    if run_state.taken.is_none() {
        // The process that had begun the replacement has ended.
        retire_heir(world, run_state);
    } else if run_state.taken.as_ref().is_some_and(|taken| taken.get()) {
        run_state.taken = None;
        world.trace.note(|| {
            format!("member {} is drive{} from now on", replacement_drive.member, replacement_drive.bay)
        });
        world.counts.replacements += 1;
        let old = world.members[replacement_drive.member].replace(replacement_drive.bay);
        run_state.retire(old.map(|bay| (replacement_drive.member, bay)));
        world.replacement_drive = None;
        if run_state.suspects.get(replacement_drive.member).is_some() {
            let struck = replacement_drive.struck;
            *run_state.suspects.of(replacement_drive.member) =
                Suspect { struck, ..Suspect::new(replacement_drive.member) };
        }
    } else if run_state.repair.is_none() && world.subject.is_some() && run_state.taken.take().is_some() {
        run_state.retire(Some((replacement_drive.member, replacement_drive.bay)));
        world.replacement_drive = None;
    } else if takes_over(world, replacement_drive) {
        world.forks.notice(Moment::TakingOver);
    }
}

/// Whether the array has begun to use a replacement drive.
pub(super) fn takes_over(world: &World<'_>, replacement_drive: ReplacementDrive) -> bool {
    let members = world.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
    members
        .get(replacement_drive.member)
        .is_some_and(|(_, drive)| *drive == format!("drive{}", replacement_drive.bay))
}
