//! The life of a world: it is created, loaded, struck by faults, ended, recovered and checked, repeatedly.

use super::{
    create, destroy, fork, members, misfortune, owner, recover, recovered, repair, replacement,
    run_state::RunState,
    schedule::Moment,
    scrub, silent, spare_drives, step, wear,
    world::{Failure, World},
};
use engine::array::MemberState;

/// Events after which a rebuild has the drives for itself: under load that of a large array can be so slow that it
/// looks as if it never ended.
const LOADED_EVENTS: u64 = 300_000;

/// Runs the whole life.
///
/// # Errors
/// The first broken promise.
pub fn run(world: &mut World<'_>) -> Result<(), Failure> {
    let mut run_state = RunState::new(world.scenario.parities, world.scenario.misfortune.scrub_seed);
    let scenario = world.scenario.clone();
    world.trace.note(|| format!("{scenario:?}"));
    if !create::create(world)? {
        return Ok(());
    }
    for _ in 0..world.scenario.rounds {
        work(world, &mut run_state)?;
        recover::cut(world, &mut run_state, true)?;
        recover::recover(world, &mut run_state)?;
    }
    match destroy::is_destroyed(world) {
        true => destroy::destroy(world, &mut run_state),
        false => finale(world, &mut run_state),
    }
}

/// Runs the load for a while, with faults and repairs.
fn work(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    let mut budget = 1 + world.rng.below(world.scenario.work_events);
    if world.rng.chance(1, 3) {
        // Cuts soon after a recovery find the most errors.
        budget = 1 + world.rng.below(budget / 8 + 1);
    }
    let copied = world.rng.chance(world.scenario.misfortune.copies_percent, 100);
    let copy_at = copied.then(|| world.rng.below(budget));
    let mut done = 0;
    while done < budget {
        if copy_at == Some(done) {
            copy_somebody(world, run_state)?;
        }
        misfortune::misfortune(world, run_state);
        silent::fail_silently(world, run_state);
        repair::repair(world, run_state, &mut budget, done)?;
        replacement::replace_somebody(world, run_state)?;
        replacement::cancel_copy(world, run_state);
        owner::change_somehow(world, run_state);
        scrub::scrub_somewhere(world, run_state);
        repair::come_back(world, run_state);
        let rebuilds = run_state.repair.is_some();
        step::event(world, !rebuilds || done < LOADED_EVENTS, rebuilds)?;
        repair::note_attached(world, run_state);
        repair::finish_repair(world, run_state)?;
        owner::note_changed(world, run_state)?;
        scrub::note_scrubbed(world, run_state)?;
        replacement::note_replacement_drive(world, run_state);
        if world
            .replacement_drive
            .is_some_and(|replacement_drive| replacement::takes_over(world, replacement_drive))
            && world.rng.chance(1, 200)
        {
            // This state is short, so the work sometimes ends in it.
            budget = done;
        }
        world.forks.notice(Moment::Event);
        fork::fork_if_due(world, run_state)?;
        done += 1;
    }
    if world.rng.chance(world.scenario.misfortune.drain_percent, 100) {
        step::drain(world)?;
    }
    Ok(())
}

/// Copies the drive of a random member that is in use.
fn copy_somebody(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    members::note_begun(world, run_state);
    let member = world.rng.below(world.members.len() as u64) as usize;
    // While a deferred-write array makes its first change, it is unknown how much of that a copy has.
    let begun = world.subject.as_ref().is_some_and(|subject| !subject.is_deferred());
    let takes_part = begun && world.member_state(member).is_some_and(|state| state != MemberState::Out);
    match takes_part && !run_state.is_attaching(member) && !wear::is_damaged(world, run_state, member) {
        true => spare_drives::copy_member(world, &mut run_state.spare_drives, member),
        false => Ok(()),
    }
}

/// The end of the run: repairs, checks, and checks again without as many members as may be lost.
fn finale(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    step::drain(world)?;
    run_state.cut_in_rebuild = false;
    let broken = repair::broken(world, run_state);
    if !broken.is_empty() {
        repair::start_repair(world, run_state, &broken)?;
        while run_state.repair.is_some() {
            step::event(world, false, true)?;
            repair::note_attached(world, run_state);
            repair::finish_repair(world, run_state)?;
        }
    }
    recovered::verify(world)?;
    for _ in 0..world.scenario.parities {
        let member = world.rng.below(world.members.len() as u64) as usize;
        if !run_state.suspects.is_full() && world.scenario.misfortune.member_lost_percent > 0 {
            misfortune::lose(world, run_state, member);
        }
    }
    recover::cut(world, run_state, false)?;
    recover::recover(world, run_state)
}
