//! Tests of the status against the true state of the array, in forks.
//!
//! *May be lost.* A random set of as many members as the status says may be lost is pulled from a copy of the world,
//! and all promised data has to be there. Members with faults that the array cannot have detected yet (a block that was
//! not read since) are pulled first. If the status says that fewer members may be lost than there are parities although
//! no member is suspect, it is too pessimistic, which is counted.
//!
//! *Readable.* Each zone in which a read fails is listed in the status as a zone with unreadable data, or the status
//! reports unreadable blocks.
//!
//! *Remedies.* The remedies that the status recommends are carried out until it recommends none. Each remedy has to
//! succeed, unless a damaged drive takes part, and has to help: after it no fewer members may be lost than before, and
//! it is not recommended again. At the end the array is healthy, and as many members as it has parities may be lost.

use super::{
    assembly, copy, ends,
    fault_budget::{Losses, named, subsets},
    oracle::Change,
    recovered, step,
    subject::SubjectError,
    world::{Failure, World},
};
use emu::{rng::Rng, ssd::Cut};
use engine::{
    array::{ArrayStatus, Condition, Health, MemberState, Remedy},
    device::{Command, Zones},
    raid::error::NoPart,
    zone::ZoneIndex,
};
use std::collections::BTreeSet;

/// Number of successive remedies after which an array has to be healthy.
const MOST_REMEDIES: usize = 12;

/// The health that the status reported when a world was ended.
pub(super) struct Claim {
    health: Health,
    /// Members that are not offered from then on.
    absent: Vec<usize>,
    /// Members that may have faults that the array has not detected.
    hidden: Vec<usize>,
}

/// One in this many recoveries carries out the remedies that the status recommends.
pub(super) const REMEDIES: u64 = 10;

/// The status of the subject, if it is an array.
fn array_status(world: &World<'_>) -> Option<ArrayStatus> {
    world.subject.as_ref()?.array_status()
}

fn health(world: &World<'_>) -> Option<Health> {
    array_status(world).map(|status| Health::of(&status))
}

/// The number of members that may be lost according to the status. `absent` members are not offered from now on.
///
/// # Errors
/// The status contradicts itself.
pub(super) fn claim(
    world: &World<'_>,
    absent: Vec<usize>,
    suspects: &[usize],
) -> Result<Option<Claim>, Failure> {
    let Some(status) = array_status(world).filter(|_| !world.scenario.is_bare()) else { return Ok(None) };
    let accused = status.members.iter().position(|member| member.errors.wrong > 0);
    if let Some(member) = accused.filter(|_| world.scenario.misfortune.silent == 0) {
        return Err(Failure(format!("member {member} has returned wrong blocks according to the status")));
    }
    let health = Health::of(&status);
    let whole = health.may_be_lost == world.scenario.parities && health.unreadable_zones.is_empty();
    if health.condition == Condition::Healthy && !whole {
        return Err(Failure(format!("the status says that the array is healthy: {health:?}")));
    }
    // A member that is being filled counts as one more lost member if it is not offered any more.
    let is_out = |member: &usize| health.out.contains(member) || health.missing.contains(member);
    let known =
        |member: &usize| is_out(member) || health.lacking.contains(member) && !absent.contains(member);
    let hidden = suspects.iter().copied().filter(|member| !known(member)).collect();
    Ok(Some(Claim { health, absent, hidden }))
}

/// Pulls as many members as may be lost according to `claim` from a copy of `ended`, and judges the recovery.
///
/// # Errors
/// A broken promise.
pub(super) fn judge_claim(
    world: &mut World<'_>,
    ended: &World<'_>,
    claim: &Claim,
    suspects: &[usize],
    rng: &mut Rng,
) -> Result<(), Failure> {
    let Claim { health, absent, hidden } = claim;
    let (most, parities) = (health.may_be_lost, world.scenario.parities);
    world.counts.claims += 1;
    world.counts.pessimistic_claims += u64::from(most < parities && suspects.is_empty() && absent.is_empty());
    let Some(free) = most.checked_sub(hidden.len()) else { return Ok(()) };
    let gone = [&health.out, &health.missing, absent, hidden];
    let is_gone = |member: &usize| gone.iter().any(|members| members.contains(member));
    let others: Vec<usize> = (0..world.members.len()).filter(|member| !is_gone(member)).collect();
    let mut sets = subsets(&others, free);
    sets.retain(|set| set.len() == free);
    if sets.is_empty() {
        return Ok(());
    }
    let set = rng.pick(&sets).clone();
    let pulled: BTreeSet<usize> = [absent.clone(), hidden.clone(), set].concat().into_iter().collect();
    let pulled: Vec<usize> = pulled.into_iter().collect();
    // Includes members that are being filled and not offered any more.
    let out = health.out.iter().chain(&health.missing);
    if out.chain(&pulled).collect::<BTreeSet<_>>().len() > parities {
        return Ok(());
    }
    copy::on_copy(world, ended.copy(rng.fork())?, |copy| recovered::judge(copy, &pulled, suspects)).map_err(
        |failure| {
            let what = format!("the status said that {most} more members may be lost ({health:?})");
            Failure(format!("{what}; without {}: {failure}", named(&pulled)))
        },
    )
}

/// Checks the status against failed reads, which occurred in the `failed` zones only.
///
/// # Errors
/// The status reports readable data where reads failed.
pub(super) fn judge_readable(world: &World<'_>, failed: &BTreeSet<u32>) -> Result<(), Failure> {
    let Some(status) = array_status(world) else { return Ok(()) };
    let health = Health::of(&status);
    let is_said = |zone: &u32| {
        let zone = ZoneIndex(*zone);
        let whole = health.unreadable_zones.contains(&zone);
        status.failed || whole || health.blocks_unreadable && !status.failed_zones.contains(&zone)
    };
    match failed.iter().find(|zone| !is_said(zone)) {
        None if failed.is_empty() || health.condition != Condition::Healthy => Ok(()),
        zone => Err(Failure(format!("reads fail in zone {zone:?}, and the status says {health:?}"))),
    }
}

/// Pulls as many members as may be lost according to the status of an array that was recovered without `lost`; then
/// carries out the recommended remedies.
///
/// # Errors
/// The status promises too much, or a remedy does not help.
pub(super) fn judge_status(world: &mut World<'_>, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
    if let Some(claim) = claim(world, lost.to_vec(), suspects)? {
        let mut rng = world.rng.fork();
        let mut ended = world.copy(rng.fork())?;
        let end = ends::end_somehow(&mut ended)?;
        judge_claim(world, &ended, &claim, suspects, &mut rng)
            .map_err(|failure| Failure(format!("recovered; then, after {end}, {failure}")))?;
    }
    // A damaged drive may fail during a remedy, and then the remedy may fail too.
    let damaged: Vec<usize> = suspects.iter().copied().filter(|member| !lost.contains(member)).collect();
    follow_remedies(world, &damaged, damaged.is_empty())
}

/// Carries out the recommended remedies until none is recommended. `damaged` members may have undetected faults;
/// with `works` every remedy has to succeed.
fn follow_remedies(world: &mut World<'_>, damaged: &[usize], works: bool) -> Result<(), Failure> {
    let mut done = Vec::new();
    for _ in 0..MOST_REMEDIES {
        let Some(before) = health(world) else { return Ok(()) };
        let (Some(cause), Some(remedy)) = (before.cause, before.remedy.clone()) else {
            return match done.is_empty() {
                true => Ok(()),
                false => judge_cured(world, &done, damaged),
            };
        };
        world.trace.note(|| format!("fork: {cause:?}, so {remedy:?}"));
        world.counts.remedies += 1;
        let tried = apply(world, &remedy)?;
        world.trace.note(|| format!("fork: {tried:?}"));
        let Some(after) = health(world) else { return Ok(()) };
        let of = |what: String| Failure(format!("recommended since {cause:?}: {remedy:?}; {what}"));
        if let Err(why) = tried
            && works
        {
            return Err(of(format!("it fails: {why}; before: {before:?}")));
        }
        if after.may_be_lost < before.may_be_lost && damaged.is_empty() {
            return Err(of(format!("worse afterwards: {after:?}; before: {before:?}")));
        }
        let again = (after.cause, &after.remedy) == (before.cause, &before.remedy);
        if again && world.lenient && remedy == Remedy::Rebuild {
            // Not judged yet: a rebuild that has lost blocks may leave a part out (see docs/TESTING.md).
            return Ok(());
        }
        if again {
            return Err(of(format!("it is recommended again; {:?}", array_status(world))));
        }
        done.push(remedy);
    }
    Err(Failure(format!("the array is not healthy after {done:?}")))
}

/// Carries out the recommended remedies of an array with more faults than the guarantee covers, once the drives
/// fail no more commands: missing members come back when the status recommends that.
///
/// # Errors
/// A remedy does not help.
pub(super) fn judge_remedies_beyond(world: &mut World<'_>, struck: usize) -> Result<(), Failure> {
    for bay in world.kept(&[]) {
        world.command_queue.ssd(bay).faults().calm();
    }
    follow_remedies(world, &[struck], true)
}

/// Carries out a remedy with the same operations as `host`.
fn apply(world: &mut World<'_>, remedy: &Remedy) -> Result<Result<(), SubjectError>, Failure> {
    let Some(subject) = world.subject.clone() else { return Ok(Ok(())) };
    match remedy {
        Remedy::Rebuild => {
            let pending = world.start(subject.rebuild());
            let rebuilt = step::wait_in_order(world, &pending)?;
            match rebuilt {
                // The status reports this loss afterwards.
                Err(SubjectError::Lost(_, None)) if world.lenient => Ok(Ok(())),
                // Only the error of the rebuild reports this, and names the zone, which has to be reset.
                Err(SubjectError::LeftOut(out) | SubjectError::Lost(_, Some(out)))
                    if world.lenient && out.reason == NoPart::TooManyBadBlocks =>
                {
                    reset_zones(world, &[out.zone])
                }
                Err(SubjectError::Lost(_, Some(out))) => Ok(Err(SubjectError::LeftOut(out))),
                rebuilt => Ok(rebuilt.map(|_| ())),
            }
        }
        Remedy::Replace(members) => exchange(world, members),
        Remedy::BringBack(members) => {
            for member in members {
                let Some(bay) = world.members[*member] else { return exchange(world, members) };
                let pending = world.start(subject.complete(world.drive(bay)));
                if let Err(why) = step::wait_in_order(world, &pending)? {
                    world.trace.note(|| format!("member {member} does not come back: {why}"));
                    return exchange(world, members);
                }
            }
            Ok(Ok(()))
        }
        Remedy::AssembleWith(members) if members.is_empty() => reset_unusable(world),
        Remedy::ResetZones => reset_unusable(world),
        Remedy::AssembleAgain(members) | Remedy::AssembleWith(members) => {
            drop(subject);
            ends::cut_power(world, |_| Cut { cache_lost: false, zrwa_lost: false })?;
            if let Err(why) = assembly::assemble_from(world, |_| true)? {
                return Ok(Err(why));
            }
            recovered::take_report(world, |_| true)?;
            let is_out = |member: &usize| world.member_state(*member) == Some(MemberState::Out);
            match members.iter().any(is_out) {
                // The member cannot be brought back.
                true => reset_unusable(world),
                false => Ok(Ok(())),
            }
        }
    }
}

/// Replaces members by new drives, one after the other.
fn exchange(world: &mut World<'_>, members: &[usize]) -> Result<Result<(), SubjectError>, Failure> {
    for member in members.iter().copied() {
        let Some(subject) = world.subject.clone() else { return Ok(Ok(())) };
        let old = world.members[member];
        let bay = match old {
            Some(old) if world.scenario.mixed => world.like(old),
            _ => world.new_drive(),
        };
        let is_out = world.member_state(member) == Some(MemberState::Out);
        let drive = world.drive(bay);
        let mut result = match is_out {
            true => Ok(()),
            false => {
                let pending = world.start(subject.replace(member, drive.clone()));
                step::wait_in_order(world, &pending)?
            }
        };
        // As `replace --now` does.
        let no_copy = result.as_ref().is_err_and(|why| why.is_no_copy());
        if no_copy {
            let pending = world.start(subject.fail(member));
            result = step::wait_in_order(world, &pending)?;
        }
        if result.is_ok() && (is_out || no_copy) {
            let pending = world.start(subject.attach(member, drive));
            result = step::wait_in_order(world, &pending)?;
        }
        if result.is_err() {
            return Ok(result);
        }
        world.members[member] = Some(bay);
    }
    Ok(Ok(()))
}

/// Resets the failed and the offline zones, or all zones if there are none.
fn reset_unusable(world: &mut World<'_>) -> Result<Result<(), SubjectError>, Failure> {
    let Some(status) = array_status(world) else { return Ok(Ok(())) };
    let mut zones: Vec<u32> = status.failed_zones.iter().map(|zone| zone.0).collect();
    zones.extend(status.offline.iter().map(|offline| offline.zone.0));
    if zones.is_empty() {
        zones = (0..world.oracle.zones.len() as u32).collect();
    }
    reset_zones(world, &zones)
}

fn reset_zones(world: &mut World<'_>, zones: &[u32]) -> Result<Result<(), SubjectError>, Failure> {
    for zone in zones.iter().copied() {
        // The change that was pending in an offline zone is irrelevant now.
        world.oracle.zones[zone as usize].change = None;
        world.oracle.change(zone, Change::Reset);
        let reset = Command::Reset { zones: Zones::One(ZoneIndex(zone)) };
        let done = step::ask(world, vec![reset])?.pop();
        if let Some(Err(error)) = done.map(|done| done.result) {
            return Ok(Err(SubjectError::Other(format!("reset of zone {zone}: {error}"))));
        }
        world.oracle.changed(zone);
    }
    Ok(Ok(()))
}

/// After the remedies all promised data is there, also without as many members as may be lost now.
fn judge_cured(world: &mut World<'_>, done: &[Remedy], damaged: &[usize]) -> Result<(), Failure> {
    let cured = |failure: Failure| Failure(format!("healthy after {done:?}; {failure}"));
    let report = recovered::take_report(world, |_| false).map_err(cured)?;
    recovered::verify_where(world, &report, |_| false).map_err(cured)?;
    let mut sets = subsets(&(0..world.members.len()).collect::<Vec<_>>(), world.scenario.parities);
    let parities = world.scenario.parities;
    sets.retain(|set| set.len() == parities && damaged.iter().all(|member| set.contains(member)));
    if sets.is_empty() {
        return Ok(());
    }
    let lost = world.rng.pick(&sets).clone();
    let end = ends::end_somehow(world)?;
    recovered::judge(world, &lost, &[])
        .map_err(|failure| cured(Failure(format!("after {end}, without {}: {failure}", named(&lost)))))
}

/// Members of `losses` that are offered in no recovery.
pub(super) fn never_offered(losses: &Losses) -> Vec<usize> {
    let always = |member: &usize| losses.lost.iter().all(|lost| lost.contains(member));
    losses.suspects.iter().copied().filter(always).collect()
}
