//! Faults of a life: drives that fail commands, vanish, lose power or are lost, at random.
//!
//! One rule keeps them inside the promises of the array: only its suspects are struck ([`super::fault_budget`]).

use super::{
    command_queue::{Bay, Fault},
    fault_budget::others,
    run_state::RunState,
    step,
    subject::SubjectError,
    wear,
    world::{End, Failure, Pending, World},
};
use emu::ssd::{Cut, Kind};
use engine::array::MemberState;

/// A member that may be struck now: a suspect, or any member if there is room for another suspect.
pub(super) fn victim(world: &mut World<'_>, run_state: &RunState) -> usize {
    let suspects = run_state.suspects.members();
    let others = || others(world.members.len(), &suspects);
    match suspects[..] {
        [member] if run_state.suspects.is_full() => member,
        [] => world.rng.below(world.members.len() as u64) as usize,
        _ if run_state.suspects.is_full() => *world.rng.pick(&suspects),
        _ if world.rng.chance(1, 2) => *world.rng.pick(&suspects),
        _ => *world.rng.pick(&others()),
    }
}

/// Strikes a member, occasionally.
pub(super) fn misfortune(world: &mut World<'_>, run_state: &mut RunState) {
    let pace = &world.scenario.pace;
    if pace.slow_per_myriad > 0 && world.rng.chance(pace.slow_per_myriad, 10_000) {
        let (member, events) =
            (world.rng.below(world.members.len() as u64) as usize, 1 + world.rng.below(400));
        if let Some(bay) = world.members[member] {
            world.command_queue.slow_down(bay, events);
        }
    }
    let m = &world.scenario.misfortune;
    let power = if world.scenario.is_bare() { 0 } else { m.power };
    let rates = [
        m.write_fault,
        m.read_fault,
        m.silence,
        m.vanish,
        m.dead_block,
        m.dead_zone,
        m.command,
        m.fail,
        power,
    ];
    let total: u64 = rates.iter().sum();
    if total == 0 || !world.rng.chance(total, 100_000) {
        return;
    }
    let member = victim(world, run_state);
    let Some(bay) = world.drive_of(member) else { return };
    if world.command_queue.is_gone(bay) {
        return;
    }
    let kind = world.rng.weighted(&rates);
    match kind {
        0 => world.command_queue.set_fault(bay, Fault::Write),
        1 => world.command_queue.set_fault(bay, Fault::Read),
        2 => {
            let executed = world.rng.chance(1, 2);
            world.command_queue.set_fault(bay, Fault::Silence { executed });
        }
        3 => world.command_queue.set_gone(bay, true),
        4 | 5 => wear::damage(world, run_state, bay, kind == 5),
        6 => fail_command(world, bay),
        8 => {
            let cut = draw_cut(world);
            lose_power(world, run_state, member, cut);
        }
        _ => {
            let Some(subject) = &world.subject else { return };
            if world.member_state(member) == Some(MemberState::Active) && run_state.failing.is_none() {
                let work = subject.fail(member);
                run_state.failing = Some(world.start(work));
            }
        }
    }
    world.counts.faults += 1;
    const NAMES: [&str; 9] = [
        "write fault",
        "read fault",
        "silence",
        "vanishes",
        "dead block",
        "dead zone",
        "command fails",
        "failed by hand",
        "loses power",
    ];
    world.trace.note(|| format!("member {member} (drive{bay}): {}", NAMES[kind]));
    world.coverage.struck = NAMES[kind];
    run_state.suspects.of(member).struck = true;
    if let Some(repair) = run_state.repair.as_mut().filter(|repair| repair.rests_on(member)) {
        repair.struck = true;
    }
    if let Some(replacement_drive) =
        world.replacement_drive.as_mut().filter(|replacement_drive| replacement_drive.bay == bay)
    {
        replacement_drive.struck = true;
    }
}

/// Draws the losses of a power loss of one drive.
fn draw_cut(world: &mut World<'_>) -> Cut {
    let cache_lost = world.scenario.drive.volatile_cache && world.rng.chance(3, 4);
    Cut { cache_lost, zrwa_lost: world.rng.chance(1, 2) }
}

/// The drive of a member loses power while the others keep it.
fn lose_power(world: &mut World<'_>, run_state: &mut RunState, member: usize, cut: Cut) {
    let Some(bay) = world.drive_of(member) else { return };
    world.trace.note(|| format!("member {member} (drive{bay}) loses power: {cut:?}"));
    let suspect = run_state.suspects.of(member);
    suspect.zrwa_lost |= cut.zrwa_lost;
    suspect.cache_lost |= cut.cache_lost;
    world.command_queue.power_cycle(bay, &mut world.rng, cut);
}

/// After the process was killed, all drives lose power, or as many as may be struck. The next process still gets
/// the tails of the killed one.
pub(super) fn lose_power_after_kill(world: &mut World<'_>, run_state: &mut RunState) {
    let is_volatile = |bay: &&Bay| world.command_queue.geometry(**bay).volatile_cache;
    let volatile = world.members.iter().flatten().filter(is_volatile).count();
    // Otherwise these members would lack parts of zones without being suspects.
    let is_cut = volatile == 0 || volatile > world.scenario.parities;
    if is_cut && world.rng.chance(1, 2) {
        let cache_lost = volatile > 0;
        world.trace.note(|| format!("all drives lose power; caches lost: {cache_lost}"));
        if cache_lost {
            world.coverage.end = "kill and power loss";
            world.oracle.power_cut();
            run_state.caches_next = false;
        }
        for bay in 0..world.command_queue.count() {
            world.command_queue.power_cycle(bay, &mut world.rng, Cut { cache_lost, zrwa_lost: false });
        }
    } else if world.scenario.parities > 0 && !world.scenario.is_bare() {
        let victim = victim(world, run_state);
        let cut = draw_cut(world);
        lose_power(world, run_state, victim, cut);
    }
}

/// A command of some kind fails, or takes effect after the host has given up on it.
fn fail_command(world: &mut World<'_>, bay: Bay) {
    let fault = match world.rng.chance(1, 4) {
        true => Fault::Tardy { events: 1 + world.rng.below(300) },
        false => Fault::Fail { kind: *world.rng.pick(&Kind::ALL), late: world.rng.chance(1, 2) },
    };
    world.trace.note(|| format!("drive{bay}: {fault:?}"));
    world.command_queue.set_fault(bay, fault);
}

/// As [`step::wait`] for an assembly, at some moment of which a command of one member fails, or its drive vanishes
/// until the next end.
pub(super) fn wait_and_strike<T>(
    world: &mut World<'_>,
    run_state: &mut RunState,
    pending: &Pending<T>,
    events: Option<u64>,
) -> Result<Option<Result<T, SubjectError>>, Failure> {
    let most = 1u64 << world.rng.below(9);
    let before = world.rng.below(events.unwrap_or(most).min(most));
    if let Some(result) = step::wait(world, pending, Some(before), false)? {
        return Ok(Some(result));
    }
    let member = victim(world, run_state);
    let absent = run_state.suspects.is_absent(member);
    if let Some(bay) = world.drive_of(member).filter(|_| !absent) {
        let executed = world.rng.chance(1, 2);
        let kind = world.rng.below(7);
        match kind {
            0 | 1 => world.command_queue.set_fault(bay, Fault::Read),
            2 => world.command_queue.set_fault(bay, Fault::Write),
            3 => world.command_queue.set_fault(bay, Fault::Silence { executed }),
            4 => world.command_queue.set_gone(bay, true),
            _ => fail_command(world, bay),
        }
        const NAMES: [&str; 7] = [
            "read fault",
            "read fault",
            "write fault",
            "silence",
            "vanishes",
            "command fails",
            "command fails",
        ];
        world.trace.note(|| format!("member {member} (drive{bay}) in assembly: {}", NAMES[kind as usize]));
        world.coverage.struck = NAMES[kind as usize];
        world.counts.faults += 1;
        run_state.suspects.of(member).struck = true;
    }
    let result = step::wait(world, pending, events.map(|events| events - before), false)?;
    if let Some(bay) = world.members[member] {
        world.command_queue.clear_fault(bay);
    }
    Ok(result)
}

/// At an end, a member is lost, or its ZRWA, which is certain for a `new` one in a power cut. Returns the drive
/// that loses its ZRWA.
pub(super) fn strike_at_end(
    world: &mut World<'_>,
    run_state: &mut RunState,
    victim: usize,
    end: End,
    new: bool,
) -> Option<Bay> {
    let m = &world.scenario.misfortune;
    let (lost_percent, zrwa_percent) = (m.member_lost_percent, m.zrwa_lost_percent);
    if !new && world.rng.chance(lost_percent, 100) {
        lose(world, run_state, victim);
        return None;
    }
    if end != End::PowerCut || !new && !world.rng.chance(zrwa_percent, 100) {
        return None;
    }
    run_state.suspects.of(victim).zrwa_lost = true;
    world.counts.zrwa_losses += 1;
    world.trace.note(|| format!("member {victim} loses its ZRWA"));
    world.drive_of(victim)
}

/// The drive of `member` is not offered to the array from now on.
pub(super) fn lose(world: &mut World<'_>, run_state: &mut RunState, member: usize) {
    let suspect = run_state.suspects.of(member);
    if !suspect.absent {
        suspect.absent = true;
        world.counts.member_losses += 1;
        world.trace.note(|| format!("member {member} is lost"));
    }
}

/// Ends the faults that have struck suspects since the process began.
pub(super) fn pardon(world: &mut World<'_>, run_state: &mut RunState) {
    run_state.suspects.iter_mut().for_each(|suspect| suspect.struck = false);
    for bay in world.kept(&[]).iter().chain(&run_state.attic) {
        world.command_queue.set_gone(*bay, false);
    }
}
