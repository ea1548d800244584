//! Copies of an array that are written to independently and then have their drives mixed.
//!
//! The state at the end of a fork is duplicated. Each copy is assembled, written to and ended on its own, with some
//! members absent throughout or with an interrupted assembly; then some drives of one copy replace those of the other.
//! An assembly of the mixture has to give one of the two copies with everything that copy promised, or be refused. It
//! must not be refused if it contains enough up-to-date members of one copy.

use super::{
    accept, assembly,
    command_queue::Bay,
    copy, ends,
    fault_budget::{Losses, named},
    recovered, step,
    subject::SubjectError,
    world::{End, Failure, World},
};
use emu::rng::Rng;
use engine::array::MemberState;

/// A copy after its end.
struct Copy<'m> {
    world: World<'m>,
    /// Members that have seen every write, and the members that were absent.
    sound: Vec<usize>,
    away: Vec<usize>,
}

/// Mixes two copies of `ended` in half of the calls, if no member is suspect.
///
/// # Errors
/// The mixture was assembled as neither of the copies.
pub(super) fn mix_fork(
    world: &mut World<'_>,
    ended: &World<'_>,
    losses: &Losses,
    rng: &mut Rng,
) -> Result<(), Failure> {
    let plain = copy::can_live_on(world);
    let whole = losses.suspects.is_empty() && world.members.iter().all(Option::is_some);
    if !plain || !whole || world.scenario.cramped || !rng.chance(1, 2) {
        return Ok(());
    }
    let (one, other) = (ended.copy(rng.fork())?, ended.copy(rng.fork())?);
    let (Some(mut one), Some(mut other)) = (live_on(one, false)?, live_on(other, true)?) else {
        return Ok(());
    };
    let mut result = Ok(());
    for _ in 0..3 {
        let mixed = judge_mixture(one.world.copy(rng.fork())?, &one, &other);
        result = result.and(mixed);
    }
    for mixed in [&mut one.world, &mut other.world] {
        if result.is_err() {
            world.trace.extend(std::mem::take(&mut mixed.trace));
        }
        copy::take_from(world, mixed);
    }
    result
}

/// Assembles this copy without some members, writes to it, and ends it. `None` if too few members have seen every
/// write, so that the outcome is open.
fn live_on<'m>(mut world: World<'m>, apart: bool) -> Result<Option<Copy<'m>>, Failure> {
    let cache_lost = world.scenario.drive.volatile_cache;
    if apart {
        world.oracle.set_apart();
    }
    let mut roles: Vec<usize> = (0..world.members.len()).collect();
    world.rng.shuffle(&mut roles);
    let away = match world.rng.chance(1, 2) {
        true => 0,
        false => world.rng.below(world.scenario.parities as u64 + 1) as usize,
    };
    let lost = roles[..away].to_vec();
    let mut sound = roles[away..].to_vec();
    for life in 0..1 + world.rng.below(3) {
        world.trace.note(|| format!("copy {}: life {life} without {}", apart as u8, named(&lost)));
        assembly::assemble_without(&mut world, &lost)?;
        recovered::check_recovery(&mut world)?;
        let unsound: Vec<usize> = world.unsound_members().collect();
        sound.retain(|member| !unsound.contains(member));
        recovered::write_on(&mut world)?;
        ends::end_by(&mut world, End::PowerCut, cache_lost)?;
    }
    if world.rng.chance(1, 3) {
        world.trace.note(|| format!("copy {}: an assembly that is cut off", apart as u8));
        let drives = world.kept(&lost).into_iter().map(|bay| world.drive(bay)).collect();
        let how = world.how();
        let pending = world.start(world.maker.assemble(&world.runtime, drives, how));
        for _ in 0..world.rng.below(40) {
            if pending.borrow().is_some() {
                break;
            }
            step::advance_in_order(&mut world)?;
        }
        ends::end_by(&mut world, End::PowerCut, cache_lost)?;
    }
    Ok((sound.len() + world.scenario.parities >= world.members.len()).then_some(Copy {
        world,
        sound,
        away: lost,
    }))
}

/// Puts drives of the other copy in the places of some members, and judges the assembly of the mixture.
fn judge_mixture(mut world: World<'_>, one: &Copy<'_>, other: &Copy<'_>) -> Result<(), Failure> {
    let count = world.members.len();
    let exchanged = 1 + world.rng.below(count as u64 - 1) as usize;
    let mut roles: Vec<usize> = (0..count).collect();
    world.rng.shuffle(&mut roles);
    let exchanged = roles[..exchanged].to_vec();
    let away = |role: &usize| if exchanged.contains(role) { &other.away } else { &one.away };
    if roles.iter().all(|role| away(role).contains(role)) {
        // No drive has been used since the copies were made: they are the array before both.
        return Ok(());
    }
    for role in &exchanged {
        let Some(bay) = other.world.members[*role] else { return Ok(()) };
        let ssd = other.world.command_queue.ssd(bay).copy();
        let bay =
            world.command_queue.insert(ssd.map_err(|error| Failure(format!("copying a drive: {error}")))?);
        world.members[*role] = Some(bay);
    }
    let places = world.members.clone();
    let is_of_other = |bay: Bay| exchanged.iter().any(|role| places[*role] == Some(bay));
    let judged = assemble_mixture(&mut world, one, other, &exchanged, is_of_other);
    judged.map_err(|failure| {
        let mut lines = world.trace.lines();
        lines.drain(..lines.len().saturating_sub(20));
        Failure(format!("with {} of another copy: {failure}\n{}", named(&exchanged), lines.join("\n")))
    })
}

fn assemble_mixture(
    world: &mut World<'_>,
    one: &Copy<'_>,
    other: &Copy<'_>,
    exchanged: &[usize],
    is_of_other: impl Fn(Bay) -> bool,
) -> Result<(), Failure> {
    let mut chosen = None;
    for again in [false, true] {
        let mut drives: Vec<_> = world.kept(&[]).into_iter().map(|bay| world.drive(bay)).collect();
        world.rng.shuffle(&mut drives);
        let how = world.how();
        let pending = world.start(world.maker.assemble(&world.runtime, drives, how));
        let subject = match step::wait_in_order(world, &pending)? {
            Ok(subject) => subject,
            Err(why) if !again => return may_refuse(world, &why, one, other, exchanged),
            Err(why) => return Err(Failure(format!("a mixture does not assemble again: {why}"))),
        };
        let used: Vec<Bay> = subject
            .members()
            .into_iter()
            .filter(|(state, _)| *state != MemberState::Out)
            .filter_map(|(_, name)| name.strip_prefix("drive")?.parse().ok())
            .collect();
        let of_other = used.iter().filter(|bay| is_of_other(**bay)).count();
        world.trace.note(|| format!("fork: a mixture uses {used:?}, {of_other} of the other copy"));
        if of_other != 0 && of_other != used.len() {
            return Err(Failure(format!("drives of both copies are used: {used:?}")));
        }
        let of_other = of_other > 0;
        if *chosen.get_or_insert(of_other) != of_other {
            return Err(Failure("the other copy is used when it is assembled again".into()));
        }
        if !again {
            let taken = if of_other { &other.world } else { &one.world };
            world.oracle = taken.oracle.clone();
            world.books = taken.books.clone();
        }
        accept::take_subject(world, subject)?;
        recovered::check_recovery(world)?;
        recovered::write_on(world)?;
        ends::end_by(world, End::PowerCut, world.scenario.drive.volatile_cache)?;
    }
    Ok(())
}

/// A mixture may be refused unless it contains enough up-to-date members of one copy, at least one of which the
/// drives of the other copy do not record as out: if they record all of them as out, these may as well be half of
/// an array that has gone on without them.
fn may_refuse(
    world: &mut World<'_>,
    why: &SubjectError,
    one: &Copy<'_>,
    other: &Copy<'_>,
    exchanged: &[usize],
) -> Result<(), Failure> {
    let enough = world.members.len() - world.scenario.parities;
    let is_whole = |copy: &Copy, beside: &Copy, is_there: &dyn Fn(&usize) -> bool| {
        let there = || copy.sound.iter().filter(|member| is_there(member));
        there().count() >= enough && !there().all(|member| beside.away.contains(member))
    };
    let has_one = is_whole(one, other, &|member| !exchanged.contains(member));
    let has_other = is_whole(other, one, &|member| exchanged.contains(member));
    world.trace.note(|| format!("fork: a mixture is refused: {why}"));
    match has_one || has_other {
        true => Err(Failure(format!("a mixture with a whole copy in it does not assemble: {why}"))),
        false => Ok(()),
    }
}
