//! Forks: copies of a running life that are ended at once and recovered without each member in turn.
//!
//! A life has one end at a time, and at most the lost members of that end: it never verifies the parity of the other
//! members. So at chosen moments the world is copied, with drives, their caches and ZRWAs and the commands in flight,
//! and the copy is ended. The result is recovered without each member that may be lost, and with all members; a
//! recovery with all members loses power again at once and is recovered without each member. With two parities half of
//! these recoveries lack two members. Each recovery is judged like those of the life: the report and every block.
//!
//! A fork uses a random generator of its own, so that the life is the same with and without forks.

use super::{
    assembly, common, copies, copy, drives, ends,
    fault_budget::{Losses, named, others, subsets, without},
    health,
    health::REMEDIES,
    recovered,
    run_state::RunState,
    step, two_faults, two_hosts, wear,
    world::{Failure, World},
};
use emu::rng::Rng;

/// Most recoveries of a fork, each without another set of members.
const MOST_LOST: usize = 6;
/// Most recoveries where one member has been missing before.
const MOST_LOST_BESIDE: usize = 2;
/// One in this many forks tests the number of members that may be lost according to the status.
const CLAIMS: u64 = 3;

/// Up to `most` of `sets` of lost members, in random order: half with two or more members, as far as there are enough.
fn draw_losses(rng: &mut Rng, sets: Vec<Vec<usize>>, most: usize) -> Vec<Vec<usize>> {
    let (mut several, mut few): (Vec<_>, Vec<_>) = sets.into_iter().partition(|set| set.len() > 1);
    rng.shuffle(&mut few);
    rng.shuffle(&mut several);
    several.truncate((most / 2).max(most.saturating_sub(few.len())));
    few.truncate(most - several.len());
    few.append(&mut several);
    few
}

/// Ends a copy of the world and judges its recoveries.
///
/// # Errors
/// A broken promise, with the end and the missing members.
fn fork(world: &mut World<'_>, mut losses: Losses) -> Result<(), Failure> {
    world.counts.forks += 1;
    let mut rng = world.forks.generator();
    let claim = health::claim(world, health::never_offered(&losses), &losses.suspects)?;
    let lost = draw_losses(&mut rng, std::mem::take(&mut losses.lost), MOST_LOST);
    let mut ended = world.copy(rng.fork())?;
    let end = ends::end_somehow(&mut ended)?;
    for lost in &lost {
        copy::on_copy(world, ended.copy(rng.fork())?, |copy| judge_fork(copy, lost, &losses.suspects))
            .map_err(|failure| Failure(format!("forked here, after {end}, {}{failure}", without(lost))))?;
    }
    if let Some(claim) = claim.filter(|_| rng.chance(1, CLAIMS)) {
        health::judge_claim(world, &ended, &claim, &losses.suspects, &mut rng)
            .map_err(|failure| Failure(format!("forked here, after {end}, {failure}")))?;
    }
    if losses.suspects.is_empty() && losses.offered && world.replacement_drive.is_none() && rng.chance(1, 4) {
        copy::on_copy(world, ended.copy(rng.fork())?, two_faults::judge_common_loss)
            .map_err(|failure| Failure(format!("forked here, after {end}, all ZRWAs lost: {failure}")))?;
    }
    strike_fork(world, &ended, &losses, &mut rng)
        .and_then(|()| copies::mix_fork(world, &ended, &losses, &mut rng))
        .and_then(|()| match world.scenario.misfortune.beyond {
            true => two_hosts::fence_fork(world, &ended, &losses, &mut rng)
                .and_then(|()| common::damage_fork(world, &ended, &losses, &mut rng)),
            false => Ok(()),
        })
        .map_err(|failure| Failure(format!("forked here, after {end}, {failure}")))?;
    if losses.suspects.is_empty() && losses.offered && world.replacement_drive.is_none() && rng.chance(1, 4) {
        copy::on_copy(world, ended.copy(rng.fork())?, wear::judge_common_wear)
            .map_err(|failure| Failure(format!("forked here, after {end}, {failure}")))?;
    }
    Ok(())
}

/// Strikes copies of the ended world with more faults: within the guarantee, and with one more than it covers.
fn strike_fork(
    world: &mut World<'_>,
    ended: &World<'_>,
    losses: &Losses,
    rng: &mut Rng,
) -> Result<(), Failure> {
    // A blow strikes one drive of a plain member, and leaves others.
    if world.members.len() == 1 || world.replacement_drive.is_some() || world.maker.is_layered() {
        return Ok(());
    }
    for beyond in [false, true] {
        if !rng.chance(1, 2) || !beyond && !losses.offered {
            continue;
        }
        copy::on_copy(world, ended.copy(rng.fork())?, |copy| match beyond {
            true => two_faults::judge_beyond(copy, losses),
            false => two_faults::judge_blow(copy, &losses.suspects),
        })?;
    }
    Ok(())
}

/// Recovers without `lost` and judges that; then, after another end, again without further members.
fn judge_fork(world: &mut World<'_>, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
    if let Some(replacement_drive) = &mut world.replacement_drive {
        replacement_drive.lost = world.rng.chance(1, 2);
    }
    let plain = !world.scenario.is_bare() && world.replacement_drive.is_none();
    if !lost.is_empty() && plain && world.rng.chance(1, 4) {
        return judge_held_back(world, lost, suspects);
    }
    recovered::judge(world, lost, suspects)?;
    drives::judge_drives(world)?;
    if plain && world.rng.chance(1, REMEDIES) {
        return health::judge_status(world, lost, suspects);
    }
    let unsound = world.unsound_members().filter(|member| !lost.contains(member));
    let most = world.scenario.parities;
    let gone: Vec<usize> = lost.iter().copied().chain(unsound).take(most).collect();
    if !lost.is_empty() && world.rng.chance(1, 2) {
        return Ok(());
    }
    if world.rng.chance(1, 2) {
        recovered::write_on(world)?;
    }
    let end = ends::end_somehow(world)?;
    let count = world.members.len();
    let more = subsets(&others(count, &gone), most - gone.len()).into_iter();
    let sets = more.map(|more| gone.iter().copied().chain(more).collect::<Vec<usize>>());
    let sets = sets.filter(|set| !set.is_empty()).collect();
    let most = if gone.is_empty() { MOST_LOST } else { MOST_LOST_BESIDE };
    for missing in draw_losses(&mut world.rng, sets, most) {
        let rng = world.rng.fork();
        let missing_there = if count > 1 { &missing[..] } else { &[] };
        copy::on_copy(world, world.copy(rng)?, |copy| recovered::judge(copy, missing_there, suspects))
            .map_err(|failure| {
                Failure(format!("recovered; then, after {end}, {}{failure}", without(&missing)))
            })?;
    }
    Ok(())
}

/// Assembles in deferred-write mode without `lost`, which must write nothing; then the process ends, the members
/// come back, or the array commits without them.
fn judge_held_back(world: &mut World<'_>, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
    world.trace.note(|| format!("fork: provisional assembly without {}", named(lost)));
    let changes = |world: &World<'_>| {
        world.members.iter().flatten().map(|bay| world.command_queue.changes(*bay)).sum::<u64>()
    };
    let before = changes(world);
    assembly::assemble_somehow(world, lost, true)?;
    recovered::check_recovery(world).map_err(|failure| Failure(format!("provisionally, {failure}")))?;
    if !world.subject.as_ref().is_some_and(|subject| subject.is_deferred()) {
        // The members were out already.
        return Ok(());
    }
    if changes(world) != before {
        return Err(Failure("something is written although the array holds back".into()));
    }
    match world.rng.below(3) {
        0 => {
            ends::kill_process(world);
            let other = world.rng.chance(1, 2).then(|| two_faults::other_than(world, lost));
            let other: Vec<usize> = other.into_iter().collect();
            recovered::judge(world, if suspects.is_empty() { &other } else { lost }, suspects)
                .map_err(|failure| Failure(format!("after a provisional assembly, {failure}")))
        }
        1 if suspects.is_empty() => {
            let Some(subject) = world.subject.clone() else { return Ok(()) };
            for member in lost {
                let Some(bay) = world.members[*member] else { return Ok(()) };
                world.trace.note(|| format!("fork: member {member} is back"));
                let pending = world.start(subject.complete(world.drive(bay)));
                let back = |why| Failure(format!("member {member} does not come back: {why}"));
                step::wait_in_order(world, &pending)?.map_err(back)?;
            }
            recovered::check_recovery(world).map_err(|failure| Failure(format!("back again, {failure}")))?;
            go_on_and_judge(world, &[], lost)
        }
        _ => go_on_and_judge(world, lost, suspects),
    }
}

/// Writes more, ends the world, and judges a recovery without `lost`.
fn go_on_and_judge(world: &mut World<'_>, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
    recovered::write_on(world)?;
    ends::end_somehow(world)?;
    recovered::judge(world, lost, suspects)
        .map_err(|failure| Failure(format!("held back and gone on, {failure}")))
}

/// Forks the world if a fork is due.
pub(super) fn fork_if_due(world: &mut World<'_>, run_state: &RunState) -> Result<(), Failure> {
    if world.forks.take() {
        let losses = losses(world, run_state);
        fork(world, losses)?;
    }
    Ok(())
}

/// The sets of members that may be missing if the world ends now.
fn losses(world: &World<'_>, run_state: &RunState) -> Losses {
    let (count, parities) = (world.members.len(), world.scenario.parities);
    let mut suspects = run_state.suspects.members();
    let unsound = world.unsound_members().filter(|member| run_state.suspects.get(*member).is_none());
    suspects.extend(unsound.take(parities - suspects.len()));
    let zrwa_lost = run_state.suspects.iter().any(|suspect| suspect.zrwa_lost);
    let cache_lost = run_state.suspects.iter().any(|suspect| suspect.cache_lost);
    let is_offered = |member: &usize| {
        let doubtful = run_state.half_attached.contains(member) || run_state.is_attaching(*member);
        !run_state.suspects.is_absent(*member) && !doubtful && !wear::is_damaged(world, run_state, *member)
    };
    let offered: Vec<usize> = suspects.iter().copied().filter(is_offered).collect();
    if world.scenario.is_bare() {
        // A drive has no redundancy to test.
        return Losses { lost: vec![Vec::new()], offered: true, suspects, zrwa_lost, cache_lost };
    }
    let others = subsets(&others(count, &suspects), parities - suspects.len());
    let mut lost = Vec::new();
    for kept in subsets(&offered, offered.len()) {
        let gone = suspects.iter().copied().filter(|member| !kept.contains(member));
        lost.extend(others.iter().map(|others| gone.clone().chain(others.iter().copied()).collect()));
    }
    Losses { lost, offered: offered.len() == suspects.len(), suspects, zrwa_lost, cache_lost }
}
