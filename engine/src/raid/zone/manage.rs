//! Zone management and flush: atomic with respect to crashes, by intent records in the metadata logs.
//!
//! A reset is logged on every member before the first member's zone is reset, and again when the last one has been;
//! recovery completes a reset that was logged. A finish logs the tail first, since the write pointers of finished zones
//! do not show it. Then the parity of the partial stripe is written in the place of its full parity, as if the rest of
//! the data were zeros, because the slots are lost with the ZRWA.

use crate::{
    device::{Command, Completion, DeviceError, Done, Status, Zones},
    format::record::Record,
    raid::{
        durable, failures,
        geometry::{each, physical},
        io,
        members::is_of_zone,
        parts::Raid,
        power,
        zone::{bad_block_records, exclusion, flow::Zone, load, relocated, settle, spare},
    },
    zone::{ZoneIndex, ZoneState, is_worn},
};
use std::{ops::Range, rc::Rc};

/// Runs `future`, a flush, reset or finish, as a task, and completes the command with its result.
pub fn run_async(
    raid: &Rc<Raid>,
    future: impl Future<Output = Result<(), DeviceError>> + 'static,
) -> Completion {
    let (completer, completion) = raid.slots.pair();
    raid.drain.enter();
    let array = raid.clone();
    raid.runtime.spawn(async move {
        let result = future.await;
        array.drain.leave();
        array.zones.changed.open();
        completer.complete(Done { result, ..Done::ok() });
    });
    completion
}

fn check_failed(raid: &Raid) -> Result<(), DeviceError> {
    if raid.membership.has_failed() { Err(Status::InternalError.into()) } else { Ok(()) }
}

fn check_zone(raid: &Raid, zone: ZoneIndex) -> Result<(), DeviceError> {
    if raid.has_failed(zone) { Err(Status::InternalError.into()) } else { Ok(()) }
}

/// Makes all blocks safe that are complete now.
///
/// # Errors
/// Internal Error, if the array has failed, or a zone with complete blocks that are not safe. For a failed zone, all
/// flushes return it that have begun before the first of them ends; later ones cover the other zones only.
pub fn flush(raid: Rc<Raid>) -> impl Future<Output = Result<(), DeviceError>> {
    let number = raid.zones.begin_flush();
    flush_as(raid, number)
}

async fn flush_as(raid: Rc<Raid>, number: u64) -> Result<(), DeviceError> {
    let zones = raid.zones.all_running();
    let tails: Vec<_> = zones.iter().map(|zone| zone.flow.borrow().complete()).collect();
    for (zone, tail) in zones.iter().zip(&tails) {
        // Mark all zones before waiting for the first.
        zone.flow.borrow_mut().want(*tail);
    }
    let (mut result, mut lost) = (Ok(()), Vec::new());
    for (zone, tail) in zones.iter().zip(tails) {
        let made = settle::make_safe(&raid, zone, tail).await;
        if made.is_err() && zone.flow.borrow().loss_reported.is_none_or(|last| number <= last) {
            lost.push(zone);
            result = made;
        }
    }
    for zone in lost {
        zone.flow.borrow_mut().loss_reported.get_or_insert(raid.zones.flushes());
    }
    // Data is safe only when the logs show which members are out, and a failed array does not log that.
    check_failed(&raid).and(result)
}

/// Resets `zones`, which are marked busy.
pub async fn reset(raid: Rc<Raid>, zones: Range<u32>) -> Result<(), DeviceError> {
    let result = reset_busy(&raid, zones.clone()).await;
    raid.zones.end_busy(&zones);
    raid.zone_records.unreadable.work.open();
    give_up_frozen(&raid, zones);
    result
}

async fn reset_busy(raid: &Rc<Raid>, zones: Range<u32>) -> Result<(), DeviceError> {
    let running = raid.zones.running_among(zones.clone());
    for zone in &running {
        settle::freeze(raid, zone).await;
    }
    exclusion::stop_rebuild(raid, zones.clone()).await;
    check_failed(raid)?;
    let only = zones.clone().nth(1).is_none().then_some(ZoneIndex(zones.start));
    let doubtful = only.filter(|zone| raid.zones.is_offline(*zone));
    if let Some(zone) = doubtful
        && !is_usable(raid, zone).await
    {
        return Err(Status::InvalidZoneStateTransition.into());
    }
    let is_written = |zone: &u32| {
        let record = raid.zone_records.record(ZoneIndex(*zone));
        raid.zones.state(ZoneIndex(*zone)) != ZoneState::Empty
            || record.lost != 0
            || record.resetting
            || running.iter().any(|running| running.index.0 == *zone)
    };
    let written: Vec<u32> = zones.clone().filter(is_written).collect();
    let epoch = raid.membership.next_sequence();
    raid.zone_records.change_each(zones.clone(), |_, record| {
        assert!(record.epoch < epoch, "epoch {epoch} follows epoch {} of a zone", record.epoch);
        (record.epoch, record.resetting, record.finished, record.waits) = (epoch, true, None, 0);
    });
    let (first, count) = (zones.start, zones.end - zones.start);
    durable::broadcast(raid, Record::Reset { first, count }, epoch).await;
    check_failed(raid)?;
    let mut dead = Vec::new();
    for batch in written.chunks(64) {
        dead.extend(reset_members(raid, batch).await);
    }
    finish_reset(raid, zones, epoch, &dead).await?;
    for zone in &running {
        settle::refuse_queued(zone, Status::ZoneInvalidWrite);
        settle::end_zone(raid, zone);
    }
    for zone in written {
        let zone = ZoneIndex(zone);
        match raid.zones.end_offline(zone) {
            true => forget_doubt(raid, zone),
            false => raid.zones.table_mut().reset(zone)?,
        }
    }
    // The zone lacks too many parts now: it was reset, and cannot be written any more.
    match only.is_some_and(|zone| raid.has_failed(zone)) {
        true => Err(Status::InvalidZoneStateTransition.into()),
        false => Ok(()),
    }
}

/// Whether enough members can write an offline zone after a reset. Moves worn parts to spare zones.
async fn is_usable(raid: &Raid, zone: ZoneIndex) -> bool {
    let mut candidates = 0u32;
    for member in each(raid.members.active()) {
        let is_sound = io::part(raid, zone, member).await.is_some_and(|info| !is_worn(info.state));
        candidates |= ((is_sound || spare::find_spare(raid, zone, member).await.is_some()) as u32) << member;
    }
    if !raid.members.are_enough(candidates) {
        return false;
    }
    // A worn part is logged as lost first: otherwise the spare zone in its place would count as the member's data.
    for member in each(raid.live(zone)) {
        if io::part(raid, zone, member).await.is_some_and(|info| is_worn(info.state)) {
            failures::part_lost(raid, zone, member, Status::ZoneIsOffline.into(), "reset zone");
        }
    }
    raid.membership.settled().await;
    let mut usable = 0u32;
    for member in each(raid.members.active()) {
        // If the move fails, the member is out.
        _ = spare::move_part(raid, zone, member).await;
        let is_usable = io::part(raid, zone, member).await.is_some_and(|info| !is_worn(info.state));
        usable |= (is_usable as u32) << member;
    }
    raid.members.are_enough(usable)
}

/// Marks a zone that was offline, and has been reset, as empty.
fn forget_doubt(raid: &Raid, zone: ZoneIndex) {
    settle::forget_logged(raid, zone, u64::MAX);
    load::load_as(raid, zone, ZoneState::Empty, 0);
}

/// Carries out a logged reset on the members. Returns the parts that could not be reset: zone, member and error.
pub async fn reset_members(raid: &Raid, zones: &[u32]) -> Vec<(u32, usize, DeviceError)> {
    let mut pending = Vec::new();
    for member in each(raid.members.active()) {
        for zone in zones {
            let zones = Zones::One(physical(ZoneIndex(*zone)));
            pending.push((
                *zone,
                raid.members.seat(member),
                raid.members.submit(member, Command::Reset { zones }),
            ));
        }
    }
    let mut dead = Vec::new();
    for (zone, seat, completion) in pending {
        match completion.await.result {
            Ok(()) => {}
            Err(error) if is_of_zone(error) => dead.push((zone, seat.member, error)),
            Err(error) => failures::member_failed(raid, seat, error, "reset zone"),
        }
    }
    dead
}

/// Logs that a reset is complete, and marks the parts `dead` as lost: see [`reset_members`].
pub async fn finish_reset(
    raid: &Raid,
    zones: Range<u32>,
    epoch: u64,
    dead: &[(u32, usize, DeviceError)],
) -> Result<(), DeviceError> {
    let (first, count) = (zones.start, zones.end - zones.start);
    // A member that failed the reset still holds the old data: it has to be logged as out before any record, even a
    // checkpoint, shows that the reset is complete.
    raid.membership.settled().await;
    check_failed(raid)?;
    let sequence = raid.membership.next_sequence();
    let is_back = |zone: u32, member: usize| {
        let lacked = raid.zone_records.record(ZoneIndex(zone)).lost & (1 << member) != 0;
        lacked && !dead.iter().any(|(of, dead, _)| (*of, *dead) == (zone, member))
    };
    let parts_of = |member: usize| zones.clone().filter(|zone| is_back(*zone, member)).count() as u32;
    let back: Vec<_> = each(raid.members.active()).map(|member| (member, parts_of(member))).collect();
    raid.zone_records.change_each(zones.clone(), |zone, record| {
        assert!(record.epoch == epoch && record.resetting, "zone {} was changed during its reset", zone.0);
        record.resetting = false;
        record.lost = 0;
    });
    raid.zones.unstick(&zones);
    relocated::forget_burned(raid, zones.clone());
    bad_block_records::forget_bad_blocks(raid, zones);
    // Lost parts are logged before the end of the reset, with higher sequence numbers: such a member holds data of
    // the epoch before.
    for (zone, member, error) in dead {
        failures::part_lost(raid, ZoneIndex(*zone), *member, *error, "reset zone");
    }
    for (member, parts) in back.into_iter().filter(|(_, parts)| *parts > 0) {
        failures::parts_back(raid, member, parts);
    }
    raid.membership.settled().await;
    durable::broadcast(raid, Record::ResetDone { first, count, epoch }, sequence).await;
    check_failed(raid)
}

/// Finishes one zone, which is marked busy.
pub async fn finish(raid: Rc<Raid>, zone: ZoneIndex) -> Result<(), DeviceError> {
    let result = finish_busy(&raid, zone).await;
    let zones = zone.0..zone.0 + 1;
    raid.zones.end_busy(&zones);
    raid.zone_records.unreadable.work.open();
    give_up_frozen(&raid, zones);
    result
}

/// Returns errors for the writes of zones that are frozen although their reset or finish has failed. A zone that
/// was not open yet has no task that would do so.
fn give_up_frozen(raid: &Raid, zones: Range<u32>) {
    for zone in raid.zones.running_among(zones) {
        if zone.flow.borrow().frozen {
            settle::give_up(raid, &zone);
        }
    }
}

async fn finish_busy(raid: &Rc<Raid>, index: ZoneIndex) -> Result<(), DeviceError> {
    check_zone(raid, index)?;
    let running = raid.zones.running(index);
    if let Some(zone) = &running {
        settle::freeze(raid, zone).await;
    }
    exclusion::stop_rebuild(raid, index.0..index.0 + 1).await;
    check_zone(raid, index)?;
    // The zone may have become full in the meantime: then it is finished.
    let ended = match &running {
        Some(zone) => zone.flow.borrow().has_ended(),
        None => raid.zones.state(index) == ZoneState::Full,
    };
    if ended {
        return Ok(());
    }
    let tail_blocks = running.as_ref().map_or(0, |zone| zone.flow.borrow().complete());
    if let Some(zone) = running.as_ref().filter(|_| tail_blocks > 0) {
        settle::prove_data(raid, zone).await;
    }
    durable::barrier(raid, raid.live(index)).await;
    check_zone(raid, index)?;
    let epoch = raid.zone_records.change(index, |record| record.finished = Some(tail_blocks));
    let sequence = raid.membership.next_sequence();
    durable::broadcast(raid, Record::Finish { zone: index.0, epoch, tail_blocks }, sequence).await;
    let finished = match check_zone(raid, index) {
        Ok(()) => finish_members(raid, index, running.as_deref()).await,
        failed => failed,
    };
    if let Some(zone) = &running {
        finished?;
        settle::refuse_queued(zone, Status::ZoneIsFull);
        settle::end_zone(raid, zone);
    }
    // A zone without data is full even if its members could not be finished: the logged finish makes it so.
    raid.zones.table_mut().finish(index)?;
    finished
}

/// Carries out a logged finish on the members; `zone`, if it is running, is quiesced.
pub async fn finish_members(
    raid: &Rc<Raid>,
    index: ZoneIndex,
    zone: Option<&Zone>,
) -> Result<(), DeviceError> {
    if let Some(zone) = zone {
        raid.layout.policy.promote(raid, zone).await;
    }
    check_zone(raid, index)?;
    let zones = Zones::One(physical(index));
    let has_checksum_blocks = raid.membership.superblock().has_checksum_blocks();
    let turn = match zone {
        None if has_checksum_blocks => Some(raid.finishing_empty.take().await),
        _ => None,
    };
    io::on_parts(raid, index, raid.live(index), "finish zone", |_| Command::Finish { zones }).await;
    drop(turn);
    settle::clear_lost(raid, index).await;
    power::notices_power_loss(raid, raid.live(index));
    raid.membership.settled().await;
    check_zone(raid, index)
}
