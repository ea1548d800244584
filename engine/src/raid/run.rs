//! Tasks of a running array: logging of membership changes, checks of members, and the end of the array.

use crate::raid::zone::settle::ZonePause;
use crate::{
    device::{Command, DeviceError, Status},
    format::record::{Lacks, Record},
    raid::{
        durable,
        error::{ArrayError, BadMember, Note},
        events::Event,
        failures,
        geometry::{each, physical},
        io,
        journal::log::MetaLog,
        members::is_of_zone,
        parts::Raid,
        power,
        zone::{exclusion, manage, set::UnclearPart, settle},
    },
    zone::{ZoneIndex, ZoneState, is_worn},
};
use std::{future::poll_fn, rc::Rc, task::Poll};

/// Starts the log tasks, and the task that logs changes of the membership.
pub fn start_members(raid: &Rc<Raid>) {
    start_logs(raid);
    raid.runtime.spawn(keep_membership(raid.clone()));
}

pub fn start_logs(raid: &Rc<Raid>) {
    raid.members.logs().for_each(|log| raid.runtime.spawn(log.run()));
}

/// Makes all completed writes safe, and pauses all zones. Called when no more commands are accepted.
pub async fn come_to_rest(raid: &Rc<Raid>) -> (Result<(), DeviceError>, Vec<ZonePause>) {
    underway_ended(raid).await;
    exclusion::end_holds(raid).await;
    let flushed = manage::flush(raid.clone()).await;
    let pauses = pause_zones(raid).await;
    raid.membership.settled().await;
    (flushed, pauses)
}

/// Waits until no flush, reset or finish is in progress, or the array has failed.
pub async fn underway_ended(raid: &Raid) {
    while !raid.drain.is_quiet() && !raid.membership.has_failed() {
        raid.zones.changed.wait().await;
    }
}

/// Waits until no command of a running zone is in flight, and pauses submission until the result is dropped.
pub async fn pause_zones(raid: &Raid) -> Vec<ZonePause> {
    let mut pauses = Vec::new();
    for zone in raid.zones.all_running() {
        pauses.push(settle::pause(raid, &zone).await);
    }
    pauses
}

/// Ends all tasks when the reads in progress are complete. After this only commands in flight to drives remain of
/// the array.
pub async fn end(raid: &Raid) {
    raid.readers.quiet().await;
    for zone in raid.zones.all_running() {
        raid.zones.end(zone.index);
        zone.end();
    }
    raid.readers.end();
    raid.membership.close();
    raid.zone_records.unreadable.work.open();
    raid.members.logs().for_each(|log| log.end());
}

/// Requests the zone state of each unclear part: a read-only part keeps its data, any other is marked as lost.
/// Called by the task that logs changes of the membership.
async fn check_unclear_parts(raid: &Raid) {
    let parts = raid.zones.unclear_parts();
    for UnclearPart { zone, epoch, seat, error, what } in &parts {
        let (zone, member) = (*zone, seat.member);
        let info = io::part(raid, zone, member).await;
        let is_stuck = raid.zones.stuck_members(zone) & (1 << member) != 0;
        if !is_stuck || raid.zone_records.epoch(zone) != *epoch {
            continue;
        }
        if !raid.members.is_seated(*seat) {
            raid.zones.release(zone, member);
        } else if info.is_some_and(|info| info.state == ZoneState::ReadOnly) {
            raid.members.note_wear(member, Status::ZoneIsReadOnly.into());
            raid.members.count_write_error(member);
            raid.members.say(member, Note::PartLost { zone: zone.0, what, error: *error });
        } else {
            raid.zones.release(zone, member);
            failures::lose_part(raid, zone, *seat, *error, what);
        }
    }
    raid.zones.end_doubt(parts.len());
}

/// As [`crate::array::Array::check_fence`].
pub async fn check_fence(raid: &Raid) -> Result<(), ArrayError> {
    if raid.membership.is_fenced() {
        return Err(ArrayError::Fenced);
    }
    // Members that are out are checked only if the array has failed: their drives may never answer.
    let (failed, active) = (raid.membership.has_failed(), raid.members.active());
    let asked = (0..raid.members.count()).filter(|member| failed || active & (1 << member) != 0);
    let logs: Vec<_> = asked.filter_map(|member| raid.members.log(member)).collect();
    let check = |log: Rc<MetaLog>| async move {
        // A log that has been replaced meanwhile is no evidence.
        if log.is_foreign().await && raid.members.logs().any(|other| Rc::ptr_eq(&other, &log)) {
            failures::fence(raid);
        }
    };
    // Concurrently, and only until one shows a claim: a drive that does not answer does not delay the others.
    let mut checks: Vec<_> = logs.into_iter().map(|log| Box::pin(check(log))).collect();
    poll_fn(|context| {
        checks.retain_mut(|check| check.as_mut().poll(context).is_pending());
        match checks.is_empty() || raid.membership.is_fenced() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    if raid.membership.is_fenced() { Err(ArrayError::Fenced) } else { Ok(()) }
}

/// As [`crate::array::Array::probe`]. A single error may be transient: a member goes out if two reports fail.
pub async fn probe(raid: &Raid) {
    let report = || Command::Report { first: physical(ZoneIndex(0)), count: 1 };
    let ask = |member| (raid.members.seat(member), raid.members.submit(member, report()));
    let asked: Vec<_> = each(raid.members.active()).map(ask).collect();
    for (seat, first) in asked {
        let first = first.await.result;
        if first.is_ok() || !raid.members.is_seated(seat) {
            continue;
        }
        let again = raid.members.submit(seat.member, report()).await.result;
        if let Err(error) = again
            && !is_of_zone(error)
            && failures::can_spare(raid, seat.member)
        {
            failures::member_failed(raid, seat, error, "zone report");
        }
    }
}

/// As [`crate::array::Array::fail`].
pub async fn fail(raid: &Raid, member: usize) -> Result<(), ArrayError> {
    check_fail(raid, member)?;
    failures::say_out(raid, member, Note::ByOperator);
    failures::take_out(raid, member);
    raid.membership.settled().await;
    Ok(())
}

/// Checks that a member is active and can be spared.
pub fn check_fail(raid: &Raid, member: usize) -> Result<(), ArrayError> {
    raid.members.check(member)?;
    if !raid.members.is_active(member) {
        return Err(BadMember::IsOut(member).into());
    }
    if !failures::can_spare(raid, member) {
        return Err(BadMember::IsNeeded(member).into());
    }
    Ok(())
}

/// Marks members as worn that have lost parts in read-only or offline zones: the error of a command does not always
/// show it.
async fn look_for_wear(raid: &Raid, lost: &[Lacks]) {
    for (zone, member) in lost.iter().flat_map(|lacks| each(lacks.members).map(|m| (lacks.zone, m))) {
        let seat = raid.members.seat(member);
        let part = io::part(raid, ZoneIndex(zone), member).await;
        if raid.members.is_seated(seat) && part.is_some_and(|info| is_worn(info.state)) {
            raid.members.set_worn(member, true);
        }
    }
}

/// Task: logs lost parts and changes of the membership, one batch after the other.
pub async fn keep_membership(raid: Rc<Raid>) {
    loop {
        let announced = raid.membership.announced();
        let mut lost = Vec::new();
        while raid.membership.is_pending() {
            // The failure may be due to another host that has assembled the array.
            if check_fence(&raid).await.is_err() {
                break;
            }
            // A member that becomes suspect, or a part that becomes unclear, during a check is checked before its
            // announcement counts as logged.
            while raid.members.suspects() != 0 || raid.zones.has_unclear_parts() {
                power::check_power(&raid).await;
                check_unclear_parts(&raid).await;
            }
            // An array that has failed meanwhile does not record that too many members are out: they may all come back.
            if raid.membership.has_failed() {
                break;
            }
            let (begun, active) = (raid.membership.begin(), raid.members.active());
            assert!(
                raid.members.are_enough(active) || raid.drain.handing_over().is_some(),
                "members {active:#b} are too few to be recorded as the only ones"
            );
            for lacks in raid.membership.take_lacks() {
                lost.push(lacks);
                let sequence = raid.membership.next_sequence();
                durable::append_to(&raid, active, Record::Lacks(lacks), sequence).await;
            }
            let event = raid.membership.next_sequence();
            let superblock = raid.membership.change(|superblock| {
                superblock.event = event;
                for (m, member) in superblock.members.iter_mut().enumerate() {
                    member.active = active & (1 << m) != 0;
                    member.errors = raid.members.errors(m);
                }
                superblock.clone()
            });
            match raid.membership.take_waits() {
                // Only checkpoints record the members that zones wait for.
                true => durable::renew_logs(&raid, active).await,
                false => {
                    durable::append_to(&raid, active, Record::Superblock(Box::new(superblock)), event).await
                }
            }
            if raid.membership.end(event, begun) {
                raid.members.settle_epochs();
                raid.events.note(Event::Settled { event, active });
            }
        }
        raid.membership.tell();
        raid.zones.wake();
        if raid.membership.is_closed() {
            return;
        }
        if !lost.is_empty() {
            look_for_wear(&raid, &lost).await;
            raid.membership.tell();
        }
        announced.await;
    }
}
