//! Acceptance of an assembled array: its identity, its promise about caches, and its zones after a deferred start.

use super::{
    command_queue::Bay,
    event_log_check::ReportedEvents,
    subject::Subject,
    world::{Failure, World},
};
use engine::{
    array::MemberState,
    device::Command,
    zone::{ZoneIndex, ZoneState},
};
use std::rc::Rc;

/// Continues with an array that has been assembled.
///
/// # Errors
/// The array reports an unexpected name, host or autostart.
pub(super) fn take_subject(world: &mut World<'_>, subject: Rc<dyn Subject>) -> Result<(), Failure> {
    hear_said(world, &*subject)?;
    world.before = subject.is_deferred().then(|| world.oracle.clone());
    world.begins = subject.is_deferred();
    world.counts.deferred_starts += u64::from(subject.began_deferred());
    world.subject = Some(subject);
    world.heard = ReportedEvents::default();
    Ok(())
}

/// Checks the zones' ends once a deferred-write array has committed. If further members were struck meanwhile,
/// within the guarantee of two parities, the reported end may be lost where it was never promised.
///
/// # Errors
/// Promised data is lost.
pub(super) fn note_gone_back(world: &mut World<'_>) -> Result<(), Failure> {
    let begun = world.subject.clone().filter(|subject| world.begins && !subject.is_deferred());
    let (Some(subject), Some(before), true) = (begun, &world.before, world.scenario.parities > 1) else {
        return Ok(());
    };
    world.begins = false;
    let count = world.oracle.zones.len() as u32;
    let report = subject.submit(Command::Report { first: ZoneIndex(0), count }).take();
    for (info, before) in report.iter().flat_map(|done| &done.zones).zip(&before.zones) {
        if info.state == ZoneState::Empty || info.state.is_active() {
            world.oracle.gone_back(info, before).map_err(Failure)?;
        }
    }
    Ok(())
}

/// Whether the subject says that completed writes may be lost until a flush. Checked against the drives that it
/// consists of now; if one of `offered` has failed since, or may have (`excused`), all `offered` drives may count
/// instead.
///
/// # Errors
/// The subject contradicts the drives.
pub(super) fn promise(
    world: &World<'_>,
    subject: &dyn Subject,
    offered: &[Bay],
    excused: bool,
) -> Result<bool, Failure> {
    let volatile = |bay: Bay| world.command_queue.geometry(bay).volatile_cache;
    let bay_of = |name: String| name.strip_prefix("drive").and_then(|bay| bay.parse::<Bay>().ok());
    let (out, members): (Vec<_>, Vec<_>) =
        subject.members().into_iter().partition(|(state, _)| *state == MemberState::Out);
    let promised = |members| world.maker.may_lose_completed(world.scenario.policy, members);
    let by_members = promised(members.into_iter().filter_map(|(_, name)| bay_of(name)).any(volatile));
    let told = subject.geometry().volatile_cache;
    let by_offered = promised(offered.iter().copied().any(volatile));
    let has_failed = out.into_iter().filter_map(|(_, name)| bay_of(name)).any(|bay| offered.contains(&bay));
    if told == by_members || (excused || has_failed) && told == by_offered {
        return Ok(told);
    }
    Err(Failure(format!("the array says that it has {} volatile cache", if told { "a" } else { "no" })))
}

/// Compares the identity that a subject reports with the allowed ones; from now on only this one is allowed, unless
/// the array is in deferred-write mode.
///
/// # Errors
/// The subject reports another identity.
pub(super) fn hear_said(world: &mut World<'_>, subject: &dyn Subject) -> Result<(), Failure> {
    let Some(said) = subject.said() else { return Ok(()) };
    if !world.books.may.is_empty() && !world.books.may.contains(&said) {
        let may = &world.books.may;
        return Err(Failure(format!("the array says of itself {said:?}, which should be among {may:?}")));
    }
    if !subject.is_deferred() {
        world.books.may = vec![said];
    }
    Ok(())
}
