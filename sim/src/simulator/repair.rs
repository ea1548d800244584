//! Repairs of lost members: their drives are replaced, attached and rebuilt, or come back.
//!
//! A repair runs in the background beside the load; faults may strike it, and the power may be cut meanwhile.

use super::{
    command_queue::Bay,
    drives,
    fault_budget::{Suspect, named},
    members, replacement,
    run_state::{BackgroundRepair, RunState},
    schedule::Moment,
    spare_drives,
    step::TOO_MANY_EVENTS,
    subject::{SubjectError, Work},
    wear,
    world::{Failure, World},
};
use engine::{
    array::{Drive, MemberState},
    raid::error::NoPart,
};
use std::{cell::Cell, rc::Rc};

/// Starts a repair if one is due, and mostly extends the event budget so that it can finish.
pub(super) fn repair(
    world: &mut World<'_>,
    run_state: &mut RunState,
    budget: &mut u64,
    done: u64,
) -> Result<(), Failure> {
    if run_state.repair.is_some() {
        if *budget <= done + 1 && !run_state.cut_in_rebuild {
            *budget += 64;
        }
        return match done {
            TOO_MANY_EVENTS.. => Err(Failure(format!("a rebuild goes on after {done} events"))),
            _ => Ok(()),
        };
    }
    if run_state.failing.as_ref().is_some_and(|failing| failing.borrow().is_some()) {
        run_state.failing = None;
    }
    let busy = run_state.failing.is_some() || run_state.coming_back.is_some();
    if busy || run_state.suspects.is_empty() {
        return Ok(());
    }
    if !world.rng.chance(world.scenario.misfortune.repair, 100_000) {
        return Ok(());
    }
    let mut members = broken(world, run_state);
    world.rng.shuffle(&mut members);
    let Some(first) = members.first().copied() else { return Ok(()) };
    // All members at once, or one after the other.
    if members.len() > 1 && world.rng.chance(1, 2) {
        members.truncate(1);
    }
    match world.member_state(first) == Some(MemberState::Active) && world.rng.chance(1, 2) {
        true => replacement::replace(world, run_state, first)?,
        false => start_repair(world, run_state, &members)?,
    }
    run_state.cut_in_rebuild = world.rng.chance(world.scenario.misfortune.cut_in_rebuild_percent, 100);
    if run_state.cut_in_rebuild {
        *budget = done + 1 + world.rng.below(400);
    }
    Ok(())
}

/// Suspects that need a repair.
pub(super) fn broken(world: &World<'_>, run_state: &RunState) -> Vec<usize> {
    let mut members = run_state.suspects.members();
    let is_sound = |member| world.member_state(member) == Some(MemberState::Active);
    let holds_back = world.subject.as_ref().is_some_and(|subject| subject.is_deferred());
    let is_back = |member| holds_back && run_state.back.contains(&member);
    members.retain(|member| {
        !is_sound(*member) && !is_back(*member) || wear::is_damaged(world, run_state, *member)
    });
    members
}

/// Occasionally brings a missing drive back to a deferred-write array.
pub(super) fn come_back(world: &mut World<'_>, run_state: &mut RunState) {
    if run_state.coming_back.as_ref().is_some_and(|back| back.borrow().is_some()) {
        run_state.coming_back = None;
    }
    let Some(subject) = world.subject.clone().filter(|subject| subject.is_deferred()) else { return };
    for member in run_state.suspects.absent() {
        let replacement_drive = world
            .replacement_drive
            .filter(|replacement_drive| replacement_drive.member == member && replacement_drive.lost)
            .map(|replacement_drive| replacement_drive.bay);
        let Some(bay) = replacement_drive.or(world.members[member]) else { continue };
        if run_state.coming_back.is_none() && world.rng.chance(1, 64) {
            world.trace.note(|| format!("member {member} is back before anything is written"));
            run_state.suspects.of(member).absent = false;
            run_state.back.insert(member);
            let work = subject.complete(world.drive(bay));
            run_state.coming_back = Some(world.start(work));
        }
    }
}

/// Starts to rebuild members, on new drives unless they are being rebuilt already. Other members that are being
/// rebuilt are completed as well.
pub(super) fn start_repair(
    world: &mut World<'_>,
    run_state: &mut RunState,
    chosen: &[usize],
) -> Result<(), Failure> {
    let Some(subject) = world.subject.clone() else { return Ok(()) };
    let (mut members, mut struck, mut drives) = (chosen.to_vec(), false, Vec::new());
    for suspect in run_state.suspects.iter().filter(|suspect| !chosen.contains(&suspect.member)) {
        if world.member_state(suspect.member) == Some(MemberState::Rebuilding) {
            members.push(suspect.member);
            struck |= suspect.struck || wear::is_damaged(world, run_state, suspect.member);
        }
    }
    for member in chosen.iter().copied() {
        let drive = match half_filled(world, run_state, member) {
            Some(bay) => {
                world.command_queue.clear_fault(bay);
                // The error of a command in flight may still arrive.
                struck |= run_state.suspects.of(member).struck;
                None
            }
            None => Some(give_drive(world, run_state, member)?),
        };
        world.trace.note(|| {
            let how = drive.as_ref().map_or("where it stopped".into(), |d| format!("with {}", d.name));
            format!("repair of member {member} {how}")
        });
        let attaching = Rc::new(Cell::new(drive.is_some()));
        run_state.attaching.push((member, attaching.clone()));
        drives.extend(drive.map(|drive| (member, drive, attaching)));
    }
    let work: Work<u64> = Box::pin(async move {
        for (member, drive, attaching) in drives {
            let takes_part =
                || subject.members().get(member).is_some_and(|(state, _)| *state != MemberState::Out);
            // The member may go out meanwhile.
            if takes_part()
                && let Err(why) = subject.fail(member).await
                && takes_part()
            {
                return Err(why);
            }
            let attached = subject.attach(member, drive.clone()).await;
            if attached.is_err() && takes_part() {
                // The member had come back while the array was in deferred-write mode, which has committed only
                // now.
                subject.fail(member).await?;
                subject.attach(member, drive).await?;
            } else {
                attached?;
            }
            attaching.set(false);
        }
        subject.rebuild().await
    });
    let pending = world.start(work);
    run_state.repair = Some(BackgroundRepair { members, pending, struck, copies: false, cancelled: false });
    Ok(())
}

/// The drive of a member that is being rebuilt, if the rebuild can continue on it.
fn half_filled(world: &mut World<'_>, run_state: &RunState, member: usize) -> Option<Bay> {
    let bay = world.members[member].filter(|bay| !world.command_queue.is_gone(*bay))?;
    let rebuilding = world.member_state(member) == Some(MemberState::Rebuilding);
    let heals =
        wear::can_heal(world, run_state, bay) && world.replacement_drive.is_none() && world.rng.chance(3, 4);
    let sound = !wear::is_damaged(world, run_state, member) || heals;
    (rebuilding && sound && !run_state.suspects.is_absent(member)).then_some(bay)
}

/// Provides another drive for a member.
fn give_drive(world: &mut World<'_>, run_state: &mut RunState, member: usize) -> Result<Drive, Failure> {
    let old = world.members[member].take();
    // A drive with an incomplete attachment does not belong to the array.
    let half_attached = run_state.half_attached.remove(&member);
    let old = old.filter(|bay| !half_attached && !world.foreign.contains(bay));
    run_state.retire(old.map(|bay| (member, bay)));
    // A deferred-write array has not decided yet which drive of a replacement is the member.
    run_state.retire(
        world
            .replacement_drive
            .take_if(|replacement_drive| replacement_drive.member == member)
            .map(|replacement_drive| (member, replacement_drive.bay)),
    );
    let (command_queue, damaged) = (world.command_queue.clone(), &run_state.damaged);
    let bay = spare_drives::spare(world, &mut run_state.attic, |bay| {
        !damaged.contains(&bay) && !command_queue.is_gone(bay)
    })?;
    world.members[member] = Some(bay);
    *run_state.suspects.of(member) = Suspect::new(member);
    Ok(world.drive(bay))
}

/// Handles the result of a repair once it is available.
pub(super) fn finish_repair(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    let Some(result) = run_state.repair.as_ref().and_then(|repair| repair.pending.borrow_mut().take()) else {
        return Ok(());
    };
    let Some(repair) = run_state.repair.take() else { return Ok(()) };
    note_half_attached(run_state);
    members::note_places(world, run_state)?;
    match result {
        Ok(_) if repair.cancelled => Err(Failure("a copy that was cancelled has come to its end".into())),
        Err(why) if repair.cancelled => {
            world.trace.note(|| format!("not replaced: {why}"));
            replacement::check_cancelled(world, &why)
        }
        // The array is not at fault: a drive was struck, or cannot be copied to.
        Err(why) if repair.copies && (!run_state.suspects.is_empty() || why.is_no_copy()) => {
            world.trace.note(|| format!("not replaced: {why}"));
            Ok(())
        }
        // A member that was not part of this repair lacked parts too, and was struck.
        Err(why) if !repair.struck && are_filled(world, run_state, &repair, &why) => {
            world.trace.note(|| format!("not rebuilt as a whole: {why}"));
            members::note_active(world, run_state, Some(&repair.members))
        }
        Err(SubjectError::LeftOut(out))
            if out.reason == NoPart::Offline && drives::has_zeros_in_empty_part(world, out.zone)? =>
        {
            world.counts.beyond += 1;
            world.trace.note(|| format!("zone {} is not rebuilt: its zeros cannot be confirmed", out.zone));
            Ok(())
        }
        Err(why) if !repair.struck => {
            Err(Failure(format!("the rebuild of {} failed: {why}", named(&repair.members))))
        }
        Err(_) => Ok(()),
        Ok(_) => {
            wear::note_healed(world, run_state);
            world.counts.rebuilds += 1;
            world.forks.notice(Moment::Rebuilt);
            world.trace.note(|| "rebuilt".into());
            let excused = repair.struck || repair.copies && !run_state.suspects.is_empty();
            if !excused {
                members::note_active(world, run_state, Some(&repair.members))?;
            }
            Ok(())
        }
    }
}

/// Whether a failed repair has filled all its members, and failed because another member was struck.
fn are_filled(
    world: &World<'_>,
    run_state: &RunState,
    repair: &BackgroundRepair,
    why: &SubjectError,
) -> bool {
    let is_filled = |member: &usize| world.member_state(*member) == Some(MemberState::Active);
    let is_other = |suspect: Suspect| {
        let struck = suspect.struck || wear::is_damaged(world, run_state, suspect.member);
        struck && !repair.members.contains(&suspect.member)
    };
    let others = run_state.suspects.iter().any(is_other);
    others && repair.members.iter().all(is_filled) && !matches!(why, SubjectError::Lost(..))
}

/// Records drives with an attachment that may or may not have been completed.
pub(super) fn note_half_attached(run_state: &mut RunState) {
    let attaching = run_state.attaching.drain(..).filter(|(_, attaching)| attaching.get());
    run_state.half_attached.extend(attaching.map(|(member, _)| member));
}

/// Attached drives no longer belong to another array.
pub(super) fn note_attached(world: &mut World<'_>, run_state: &RunState) {
    for (member, _) in run_state.attaching.iter().filter(|(_, attaching)| !attaching.get()) {
        if let Some(bay) = world.members[*member] {
            world.foreign.remove(&bay);
        }
    }
}
