//! Members of the array during a life: their drives, and the suspects that are active again.

use super::{
    command_queue::Bay,
    fault_budget::Suspect,
    replacement,
    run_state::RunState,
    wear,
    world::{Failure, World},
};
use engine::array::MemberState;

/// Records that the array has been assembled on its drives, at once or after having been in deferred-write mode.
pub(super) fn note_begun(world: &World<'_>, run_state: &mut RunState) {
    let holds_back = world.subject.as_ref().is_none_or(|subject| subject.is_deferred());
    if !holds_back && !std::mem::replace(&mut run_state.begun, true) {
        run_state.spare_drives.assemblies += 1;
        run_state
            .suspects
            .iter_mut()
            .for_each(|suspect| (suspect.zrwa_lost, suspect.cache_lost) = (false, false));
    }
}

/// Records the drives that the array has taken: after a power cut during a replacement, a member may be on its old
/// drive.
///
/// # Errors
/// The array has taken a drive that it must not take.
pub(super) fn note_drives(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    replacement::retire_heir(world, run_state);
    note_places(world, run_state)
}

/// As [`note_drives`], for drives that were being attached.
///
/// # Errors
/// As [`note_drives`].
pub(super) fn note_places(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    let Some(subject) = &world.subject else { return Ok(()) };
    let replacement_drive = world.replacement_drive.map(|replacement_drive| replacement_drive.bay);
    for (member, (state, drive)) in subject.members().into_iter().enumerate() {
        let bay = drive.strip_prefix("drive").and_then(|bay| bay.parse::<Bay>().ok());
        if state == MemberState::Out || bay.is_none() || bay == replacement_drive {
            continue;
        }
        // If it belonged to another array, it has been attached since.
        world.foreign.retain(|foreign| Some(*foreign) != bay);
        if bay == world.members[member] {
            continue;
        }
        if !run_state.half_attached.contains(&member)
            || bay.is_some_and(|bay| run_state.spare_drives.has(bay))
        {
            return Err(Failure(format!("member {member} is {drive}, which is not its drive")));
        }
        world.trace.note(|| format!("member {member} is {drive} again"));
        // Faults of that drive may still come.
        run_state.suspects.iter_mut().filter(|s| s.member == member).for_each(|s| s.struck = true);
        // The same drive may have been the designated drive of another member, too.
        world.members.iter_mut().for_each(|place| _ = place.take_if(|taken| Some(*taken) == bay));
        let other = std::mem::replace(&mut world.members[member], bay);
        run_state.attic.retain(|old| Some(*old) != bay);
        // The other drive's attachment was interrupted, so it does not belong to the array.
        if other.is_some() {
            run_state.half_attached.remove(&member);
        }
    }
    Ok(())
}

/// Updates the suspects: members that are active and undamaged are cleared. The `filled` members have to be active.
///
/// # Errors
/// A member is not active without any cause.
pub(super) fn note_active(
    world: &mut World<'_>,
    run_state: &mut RunState,
    filled: Option<&[usize]>,
) -> Result<(), Failure> {
    world.hear(|member| run_state.suspects.get(member).is_some())?;
    let Some(subject) = &world.subject else { return Ok(()) };
    let states = subject.members();
    let is_active = |member: usize| states.get(member).is_some_and(|s| s.0 == MemberState::Active);
    for (member, (state, _)) in states.iter().enumerate() {
        if world.scenario.cramped && *state == MemberState::Rebuilding && filled.is_none() {
            // Power cuts have displaced more blocks than its log has room for. Enough others are sound, or the
            // array would not leave this one out.
            run_state.suspects.take_in(member, is_active);
        }
        let is_filled = filled.is_some_and(|filled| filled.contains(&member));
        let excused = run_state.suspects.get(member).is_some() && !is_filled;
        if *state != MemberState::Active && !excused {
            return Err(Failure(format!("member {member} is {state:?}, without any cause")));
        }
    }
    let (mut damaged, none) = (run_state.suspects.members(), run_state.suspects.is_empty());
    damaged.retain(|member| wear::is_damaged(world, run_state, *member));
    // A deferred-write array has restored nothing yet: its report on other members is only a plan.
    let holds_back = world.subject.as_ref().is_some_and(|subject| subject.is_deferred());
    let is_lacking =
        |s: &Suspect| holds_back || s.zrwa_lost || !is_active(s.member) || damaged.contains(&s.member);
    run_state.suspects.retain(|s| s.struck || is_lacking(s));
    if run_state.suspects.is_empty() && !none {
        world.coverage.struck = "";
    }
    Ok(())
}
