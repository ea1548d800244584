//! The ends of a life's processes, and the recoveries after them.

use super::{
    accept,
    command_queue::Bay,
    ends, fork, members, misfortune, owner,
    recovered::{self, brief},
    repair, replacement,
    run_state::RunState,
    schedule::Moment,
    spare_drives, step,
    subject::AssembleOptions,
    world::{End, Failure, World},
};
use emu::ssd::Cut;
use engine::array::MemberState;

/// Cuts the power, kills the process, or shuts the drives down; with `strike`, members may be lost at the same
/// moment, or lose their ZRWAs in the power cut.
pub(super) fn cut(world: &mut World<'_>, run_state: &mut RunState, strike: bool) -> Result<(), Failure> {
    replacement::note_replacement_drive(world, run_state);
    owner::note_changed(world, run_state)?;
    (run_state.changing, run_state.scrub) = (None, None);
    (run_state.repair, run_state.failing, run_state.coming_back, run_state.taken) = (None, None, None, None);
    members::note_begun(world, run_state);
    repair::note_attached(world, run_state);
    repair::note_half_attached(run_state);
    run_state.spare_drives.refused.clear();
    run_state.back.clear();
    let victim = misfortune::victim(world, run_state);
    let mut zrwa_lost = Vec::new();
    let m = &world.scenario.misfortune;
    let draw = world.rng.below(100);
    let end = match (m.kill_percent, m.shutdown_percent) {
        _ if run_state.caches_next => End::PowerCut,
        (kills, _) if draw < kills => End::Kill,
        (kills, shutdowns) if draw < kills + shutdowns => End::Shutdown,
        _ => End::PowerCut,
    };
    // A ZRWA that was just opened again is lost more often.
    let lose_new = run_state.reopening && end == End::PowerCut && world.rng.chance(1, 2);
    if strike && world.scenario.parities > 0 {
        zrwa_lost.extend(misfortune::strike_at_end(world, run_state, victim, end, lose_new));
        for _ in 1..world.scenario.parities {
            let victim = misfortune::victim(world, run_state);
            if world.rng.chance(1, 2) {
                zrwa_lost.extend(misfortune::strike_at_end(world, run_state, victim, end, false));
            }
        }
    }
    match end {
        End::PowerCut => {
            let caches_next = std::mem::take(&mut run_state.caches_next);
            world.counts.cuts_after_kills += u64::from(caches_next);
            let cache_lost = world.scenario.drive.volatile_cache && (caches_next || world.rng.chance(3, 4));
            ends::cut_power(world, |bay| Cut { cache_lost, zrwa_lost: zrwa_lost.contains(&bay) })?;
        }
        End::Kill => {
            ends::kill_process(world);
            run_state.caches_next = world.scenario.drive.volatile_cache && world.rng.chance(1, 2);
            let percent = world.scenario.misfortune.power_after_kill_percent;
            if percent > 0 && world.rng.chance(percent, 100) {
                misfortune::lose_power_after_kill(world, run_state);
            }
        }
        End::Shutdown => ends::shut_down(world)?,
    }
    run_state.reopening |= end == End::Shutdown;
    // A drive that had vanished works again from now on, if it is offered.
    misfortune::pardon(world, run_state);
    Ok(())
}

/// Drives to assemble from, in random order, sometimes with stale ones among them.
///
/// # Errors
/// The creation of a drive of another array fails.
fn offered(world: &mut World<'_>, run_state: &mut RunState) -> Result<Vec<Bay>, Failure> {
    let stale_percent = world.scenario.misfortune.stale_returns_percent;
    if !run_state.suspects.is_full() && world.rng.chance(1, 4) {
        // An old copy is offered instead.
        let copied = run_state.spare_drives.copied();
        if !copied.is_empty() {
            let member = *world.rng.pick(&copied);
            misfortune::lose(world, run_state, member);
        }
    }
    for suspect in run_state.suspects.iter_mut().filter(|suspect| suspect.absent) {
        if world.rng.chance(stale_percent, 200) {
            suspect.absent = false;
            world.trace.note(|| format!("member {} is back", suspect.member));
        }
    }
    let mut bays = world.kept(&run_state.suspects.absent());
    for bay in &run_state.attic {
        if world.rng.chance(stale_percent, 400) {
            bays.push(*bay);
        }
    }
    let (members, command_queue) = (world.members.clone(), world.command_queue.clone());
    let RunState { spare_drives, damaged, half_attached, .. } = run_state;
    spare_drives::offer_spare_drives(world, spare_drives, &mut bays, |member| {
        let sound = |bay: Bay| !command_queue.is_gone(bay) && !damaged.contains(&bay);
        !half_attached.contains(&member) && members[member].is_some_and(sound)
    })?;
    world.rng.shuffle(&mut bays);
    world.trace.note(|| format!("assembly from drives {bays:?}"));
    Ok(bays)
}

/// Assembles until it succeeds, with more ends on the way, and checks everything.
pub(super) fn recover(world: &mut World<'_>, run_state: &mut RunState) -> Result<(), Failure> {
    let (mut interruptions, mut faults) = (0, 0);
    loop {
        if interruptions < 4 && owner::change_at_rest(world, run_state)? {
            interruptions += 1;
            cut(world, run_state, true)?;
            continue;
        }
        let offered = offered(world, run_state)?;
        let changes = world.changes(&offered);
        let drives = offered.iter().map(|bay| world.drive(*bay)).collect();
        let hold_back = world.rng.chance(world.scenario.misfortune.hold_back_percent, 100);
        let how = AssembleOptions { hold_back, ..world.how() };
        let pending = world.start(world.maker.assemble(&world.runtime, drives, how));
        let percent = world.scenario.misfortune.cut_in_recovery_percent;
        let interrupt = interruptions < 4 && (run_state.caches_next || world.rng.chance(percent, 100));
        let events = interrupt.then(|| 1 + world.rng.below(400));
        run_state.caches_next &= interrupt;
        let fault_percent = world.scenario.misfortune.fault_in_recovery_percent;
        let strike = faults < 2 && world.rng.chance(fault_percent, 100);
        // The original has to be readable, or the copy would be accepted.
        let strike = strike && !run_state.spare_drives.any_fresh(&offered);
        let result = match strike {
            true => {
                faults += 1;
                misfortune::wait_and_strike(world, run_state, &pending, events)?
            }
            false => step::wait(world, &pending, events, false)?,
        };
        match result {
            None => {
                interruptions += 1;
                world.counts.interrupted_recoveries += 1;
                world.forks.notice(Moment::Interrupted);
                fork::fork_if_due(world, run_state)?;
                let strike = run_state.reopening || world.rng.chance(1, 3);
                cut(world, run_state, strike)?;
                continue;
            }
            // No more members have been struck than it can do without: only drives that do not belong to the array
            // are a reason.
            Some(Err(why)) => {
                let RunState { spare_drives, half_attached, .. } = run_state;
                spare_drives::judge_refusal(world, spare_drives, half_attached, &offered, &why)?;
                spare_drives::check_spare_drives(world, spare_drives, &[])?;
                if world.changes(&offered) != changes {
                    return Err(Failure(format!("it refuses ({why}), but has changed drives")));
                }
                continue;
            }
            Some(Ok(subject)) => {
                spare_drives::check_spare_drives(world, &run_state.spare_drives, &offered)?;
                run_state.begun = false;
                run_state.reopening = false;
                let struck = run_state.suspects.iter().any(|suspect| suspect.struck);
                world.oracle.volatile_cache = accept::promise(world, &*subject, &offered, struck)?;
                accept::take_subject(world, subject)?;
                members::note_begun(world, run_state);
                run_state.caches_next = false;
            }
        }
        let report = recovered::report(world)?;
        let members = world.subject.as_ref().map(|subject| subject.members());
        let offline = world.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
        world.trace.note(|| format!("assembled; {}; {members:?} {offline:?}", brief(&report)));
        recovered::recovered(world, &report)?;
        members::note_drives(world, run_state)?;
        // Until the first write of the array the old drive may be the member, and the array may not have read the
        // identity of the drive of a member that it does without.
        if run_state.begun {
            let is_out = |member: usize| world.member_state(member) == Some(MemberState::Out);
            run_state.half_attached.retain(|member| run_state.suspects.is_absent(*member) || is_out(*member));
        }
        members::note_active(world, run_state, None)?;
        if interruptions < 4 && world.rng.chance(1, 6) {
            // The report has to hold from now on, even if nothing else happens.
            interruptions += 1;
            if world.rng.chance(1, 2) {
                // Before the process could leave tails of its own.
                world.subject = None;
            }
            cut(world, run_state, true)?;
            continue;
        }
        recovered::count_judgement(world);
        world.forks.notice(Moment::Recovered);
        return recovered::verify(world);
    }
}
