//! Replacement: a drive takes over from a working member, which is copied ([`super::copy`]) and mirrored until then.
//!
//! *It can be cancelled* until the new drive takes over: the new drive is then detached, as if it had failed, and
//! emptied, its label last: if that is interrupted, the copy is still unfinished and can continue.
//!
//! *Nothing is recorded about it* before all zones are followed, except on the new drive, which lists its complete
//! zones ([`super::target`]) so that the copy can continue later. After a power loss the array is as it was, and the
//! new drive, which has no log, is not a member of any array. If the new drive fails it is detached. If the old one
//! fails, the member is out, and the new drive is attached and rebuilt: it holds the data of a member that lacks the
//! writes since.
//!
//! *The takeover* happens while nothing changes. Commands of the host that change anything are held, and those in
//! progress are drained; then both drives hold the same, logs apart, and nothing that is acknowledged until the end
//! depends on data that only one of them has. In this state, in this order:
//!
//! 1. the cache of the new drive is flushed;
//! 2. all other members get a checkpoint that names the new drive, as *taking over*;
//! 3. the new drive gets such a checkpoint, with the parity and tails of the old drive's log;
//! 4. all get a superblock by which it has taken over.
//!
//! The old drive is not updated: by its own superblock it stays the member. An assembly that finds a drive taking over
//! (by the newest superblock) uses the new drive if that has its checkpoint, and otherwise the old one, which is
//! complete as well: until step 4 is done everywhere nothing has changed. So whichever single drive is lost, and
//! whenever the power fails,
//!
//! - before the first checkpoint of step 2 the old drive is the member;
//! - up to the end of step 3 one of the two is present, or it is the one that is lost;
//! - once a superblock of step 4 is on any drive, the new drive has its checkpoint, and is the member or the one that
//!   is lost. If only members without that superblock are present, the old drive may be used in place of a new one that
//!   is lost. It still holds everything: nothing has changed before all had the superblock.
//!
//! *Only one of them ever continues.* The assembly that uses one of them records this in its checkpoints, before
//! anything else is written; if it is interrupted, some have the record and nothing has changed. The drive that is not
//! used may have newer superblocks than all that are present, from updates in flight when the power failed. So such an
//! assembly skips 2^33 sequence numbers, more than can have been in flight ([`SKIPPED_BY_TAKEOVER`]): its records are
//! newer than any on the other drive, and name another drive in its place. If both are missing, all members record that
//! neither takes part any more, as for any absent member, before anything changes.
//!
//! *If the new drive fails during the takeover*, the old one gets its place back, still while nothing changes, with a
//! newer superblock on all others, and then on itself. If the power fails before that, and after all have recorded that
//! the new one is out, an assembly uses the old one all the same: the takeover was still under way.

use crate::{
    adapt::mirror::Mirror,
    device::{Command, DeviceError},
    format::superblock::{Superblock, SuperblockMember},
    raid::{
        Drive,
        create::check_forgotten,
        durable,
        erase::{kept_drive_id, reset_each, wipe_filled, wipe_for_member},
        error::{ArrayError, BadDrive, DriveFault, NoCopy, NoPart, NoReplacement, ReplaceFailure},
        events::Event,
        failures,
        journal::log::MetaLog,
        maintain::{
            copy, job,
            target::{self, Newcomer},
        },
        parts::Raid,
        power, run,
        seat::Seat,
        status::Progress,
        zone::{dispatch, drain::HeldCommand},
    },
    zone::ZoneIndex,
};
use std::{cell::Cell, collections::BTreeMap, rc::Rc};

/// Cleans up after a replacement.
struct ReplaceGuard(Rc<Raid>);

impl Drop for ReplaceGuard {
    fn drop(&mut self) {
        let raid = &self.0;
        raid.background.end();
        raid.members.end_mirror();
        raid.drain.end();
        raid.zones.changed.open();
    }
}

/// Replaces the drive of `member` by `drive`. The caller has waited for [`job::given_up_ended`]. Returns the bytes that
/// were copied, or `None` if the member went out meanwhile.
pub async fn replace(
    raid: &Rc<Raid>,
    member: usize,
    drive: &Drive,
    progress: &dyn Fn(Progress),
) -> Result<Option<u64>, ArrayError> {
    // An attachment may be of the same drive, which is not a member yet; during the copy none begins.
    let turn = raid.attaching.take().await;
    raid.members.check(member)?;
    if !raid.members.is_active(member) {
        return Err(NoReplacement::NothingToCopy(member).into());
    }
    raid.members.check_unused(drive)?;
    if !raid.background.begin_copy() {
        return Err(NoReplacement::UnderWay.into());
    }
    drop(turn);
    let (guard, drive) = (ReplaceGuard(raid.clone()), drive.clone());
    job::run(raid, progress, |raid, report| async move {
        let _guard = guard;
        replace_with(&raid, member, &drive, &report).await
    })
    .await
}

/// As [`replace`], as the only job.
async fn replace_with(
    raid: &Rc<Raid>,
    member: usize,
    drive: &Drive,
    progress: &dyn Fn(Progress),
) -> Result<Option<u64>, ArrayError> {
    let label = target::label_of(raid, drive).await.filter(|label| label.member == member);
    let new = target::newcomer(raid, member, drive, label)?;
    let seat = raid.members.seat(member);
    let mirror = mirror_with(raid, member, &new)?;
    let filled = copy_and_hand_over(raid, seat, &mirror, &new, progress).await?;
    if let Ok(Some(bytes)) = filled {
        raid.events.note(Event::Replaced { member, drive: new.name });
        return Ok(Some(bytes));
    }
    raid.members.end_mirror();
    mirror.end().await;
    let failed = |why| NoReplacement::Failed { drive: new.name.clone(), member, why };
    if raid.background.is_cancelled() {
        // No command for it is in flight any more.
        let why = match wipe_filled(&*new.drive, &*new.device).await {
            Ok(()) => ReplaceFailure::Cancelled,
            Err(error) => ReplaceFailure::CancelledNotBlank(error),
        };
        raid.events.note(Event::NotReplaced(failed(why.clone())));
        return Err(failed(why).into());
    }
    if raid.background.is_given_up() {
        raid.events.note(Event::NotReplaced(failed(ReplaceFailure::GivenUp)));
        return Err(failed(ReplaceFailure::GivenUp).into());
    }
    if !raid.members.is_active(member) && !raid.membership.has_failed() {
        return Ok(None);
    }
    filled.map_err(|why| {
        raid.events.note(Event::NotReplaced(failed(why.clone())));
        failed(why).into()
    })
}

/// Copies `seat` to the new drive and makes that the member; gives the bytes that were copied, or `None` if the
/// member went out or the copy was cancelled before it had begun.
async fn copy_and_hand_over(
    raid: &Rc<Raid>,
    seat: Seat,
    mirror: &Rc<Mirror>,
    new: &Newcomer,
    progress: &dyn Fn(Progress),
) -> Result<Result<Option<u64>, ReplaceFailure>, ArrayError> {
    // The drive may have been a member before, with reads in flight.
    raid.members.note_loss();
    let target = target::find_target(raid, seat.member, new).await;
    let wiped = match target.is_blank() {
        true => wipe_for_member(&*new.drive, &*new.device).await,
        false => reset_each(&*new.device, target.others()).await,
    };
    wiped.map_err(|error| BadDrive::new(&new.name, DriveFault::Reset(error)))?;
    check_forgotten(&raid.runtime, &Drive { name: new.name.clone(), device: new.drive.clone() }).await?;
    let is_stopped = || raid.background.is_cancelled() || raid.background.is_given_up();
    let has_ended = || !raid.members.is_seated(seat) || is_stopped();
    if has_ended() {
        return Ok(Ok(None));
    }
    if let Err(error) = target::begin_label(raid, &target).await {
        mirror.let_go(error);
    }
    if has_ended() {
        return Ok(Ok(None));
    }
    raid.members.mirror(seat, mirror.clone());
    raid.background.work_on(seat);
    let kept_bytes = target::copy_progress(raid, seat.member, &target).done_bytes;
    let show = |done_bytes: u64, total_bytes: u64| {
        progress(Progress { done_bytes: done_bytes.min(total_bytes), total_bytes, kept_bytes });
    };
    let (bytes, in_place) = (Cell::new(0), Cell::new(kept_bytes));
    let mut result = copy::copy_all(raid, seat, (mirror, &target), (&bytes, &in_place), &show).await;
    loop {
        let left_out = match result {
            Ok(left_out) if raid.members.is_seated(seat) => left_out,
            Ok(_) => return Ok(Ok(None)),
            Err(why) => return Ok(Err(why)),
        };
        target.close().await;
        let handed_over = hand_over(raid, seat, mirror, new, &left_out);
        result = match while_drained(raid, seat.member, handed_over).await {
            Ok(true) => return Ok(Ok(Some(bytes.get()))),
            Ok(false) if raid.background.is_given_up() => Err(ReplaceFailure::GivenUp),
            // There are zones again that are neither followed nor left out.
            Ok(false) => copy::copy_all(raid, seat, (mirror, &target), (&bytes, &in_place), &show).await,
            Err(error) => Err(error),
        }
    }
}

/// As [`crate::array::Array::cancel_replacement`].
pub fn cancel_replacement(raid: &Raid) -> Result<(), ArrayError> {
    if raid.drain.has_begun() {
        return Err(NoReplacement::TakesOver.into());
    }
    if !raid.background.cancel_copy() {
        return Err(NoReplacement::NoneUnderWay.into());
    }
    // There is no mirror yet while the new drive is being emptied.
    raid.members.let_mirror_go();
    raid.zones.changed.open();
    raid.zones.wake();
    Ok(())
}

/// A mirror of the drive of `member` and `new`; the error says why there cannot be one.
pub fn mirror_with(raid: &Raid, member: usize, new: &Newcomer) -> Result<Rc<Mirror>, ArrayError> {
    if let Some(zone) = raid.zones.offline().keys().next() {
        return Err(NoReplacement::Offline(*zone).into());
    }
    let Some(old) = raid.members.device(member) else { return Err(NoReplacement::OldGone.into()) };
    let (old_bytes, have) = (old.geometry().oob_bytes, new.device.geometry().oob_bytes);
    let no_copy = |why: NoCopy| ArrayError::from(BadDrive::new(&new.name, why));
    if raid.uses_marks() && old_bytes != have {
        return Err(no_copy(NoCopy::OobBytes { have, old: old_bytes }));
    }
    Mirror::new(&raid.runtime, old, new.device.clone()).ok_or_else(|| no_copy(NoCopy::ZoneSize))
}

/// Does `work`, which may give `member` another drive, while commands that change anything are held.
async fn while_drained<T>(raid: &Rc<Raid>, member: usize, work: impl Future<Output = T>) -> T {
    raid.drain.begin();
    run::underway_ended(raid).await;
    let pauses = run::pause_zones(raid).await;
    raid.drain.hand_over(Some(member));
    let result = work.await;
    raid.drain.hand_over(None);
    failures::fail_without_enough(raid);
    drop(pauses);
    for HeldCommand { command, note, completer } in raid.drain.end() {
        let completion = match command {
            Command::Write { lba, data, .. } if !note.is_empty() => {
                dispatch::write_with_note(raid, lba, data, note)
            }
            command => dispatch::submit_command(raid, command),
        };
        raid.runtime.spawn(async move { completer.complete(completion.await) });
    }
    result
}

/// Makes the new drive take over, while nothing changes; `false` if there are zones again that are to be copied.
async fn hand_over(
    raid: &Rc<Raid>,
    seat: Seat,
    mirror: &Rc<Mirror>,
    new: &Newcomer,
    left_out: &BTreeMap<u32, NoPart>,
) -> Result<bool, ReplaceFailure> {
    if new.device.geometry().volatile_cache
        && let Err(error) = new.device.submit(Command::Flush).await.result
    {
        mirror.let_go(error);
    }
    // Blocks that the old drive has lost in a power cut were copied as it reads them: their parts are lost.
    power::notices_power_loss(raid, 1 << seat.member);
    if new.device.power_epoch() != new.power_epoch {
        mirror.let_go(DeviceError::PowerLost);
    }
    raid.membership.settled().await;
    copy::check_copying(raid, seat, mirror)?;
    let is_to_copy = |zone: u32| copy::is_to_copy(raid, ZoneIndex(zone), seat.member, mirror, left_out);
    if (0..raid.geometry.zones).any(is_to_copy) {
        return Ok(false);
    }
    check_left_out(raid, seat.member, left_out)?;
    let Some(old_log) = raid.members.log(seat.member) else {
        return Err(ReplaceFailure::OldGone);
    };
    let (before, name) = (raid.membership.superblock().clone(), raid.members.name(seat.member));
    let lost = lost_by_new(raid, seat.member, mirror);
    let power_epoch = raid.members.power_epoch(seat.member);
    let log = seat_new(raid, seat.member, new, &old_log, &lost);
    let event = raid.membership.superblock().event;
    let own = log.renew();
    durable::renew_logs(raid, raid.members.active() & !(1 << seat.member)).await;
    raid.runtime.spawn(log.run());
    own.await;
    raid.membership.settled().await;
    let taken = raid.members.seat(seat.member);
    if raid.members.is_seated(taken) && !raid.membership.has_failed() {
        raid.membership.change(|superblock| {
            superblock.floor = superblock.floor.max(event);
            superblock.members[seat.member].taking_over = None;
        });
        raid.membership.settle().await;
    }
    if raid.membership.has_failed() {
        return Err(ReplaceFailure::ArrayFailed);
    }
    if raid.members.is_seated(taken) {
        old_log.end();
        return Ok(true);
    }
    let note = raid.members.about(seat.member).note;
    seat_old(raid, seat.member, name, (old_log, power_epoch), before, &lost).await;
    Err(ReplaceFailure::Out(note))
}

/// Refuses to leave out a zone that another member lacks as well, or any zone if there is no other member.
fn check_left_out(
    raid: &Raid,
    member: usize,
    left_out: &BTreeMap<u32, NoPart>,
) -> Result<(), ReplaceFailure> {
    let lacking = |zone: u32| {
        let parts = raid.live(ZoneIndex(zone));
        parts & (1 << member) != 0 && parts.count_ones() as usize != raid.members.count()
    };
    if let Some((zone, why)) = left_out.first_key_value().filter(|_| raid.layout.parities == 0) {
        return Err(ReplaceFailure::Alone { zone: *zone, why: *why });
    }
    match left_out.iter().find(|(zone, _)| lacking(**zone)) {
        Some((zone, why)) => Err(ReplaceFailure::LeftOut { zone: *zone, why: *why }),
        None => Ok(()),
    }
}

/// Zones of which the old drive has its part and the new one lacks it.
fn lost_by_new(raid: &Raid, member: usize, mirror: &Mirror) -> Vec<ZoneIndex> {
    let zones = (0..raid.geometry.zones).map(ZoneIndex);
    zones.filter(|zone| copy::is_unfollowed(raid, *zone, member, mirror)).collect()
}

/// Makes the new drive the member in memory; the change is to be logged.
fn seat_new(
    raid: &Rc<Raid>,
    member: usize,
    new: &Newcomer,
    old_log: &MetaLog,
    lost: &[ZoneIndex],
) -> Rc<MetaLog> {
    let event = raid.membership.next_sequence();
    raid.membership.change(|superblock| {
        superblock.event = event;
        let taking_over = Some(superblock.members[member].since);
        superblock.members[member] = SuperblockMember {
            taking_over,
            ..SuperblockMember::new(new.uuid, event, kept_drive_id(&*new.drive))
        };
    });
    for zone in lost {
        raid.zone_records.change(*zone, |record| record.lost |= 1 << member);
    }
    let live = old_log.live.borrow().clone();
    let device = (new.device.clone(), BTreeMap::new());
    let log = raid.new_log(member, new.drive.clone(), device, (1, 0), live);
    raid.members.end_mirror();
    raid.members.forget(member);
    raid.zone_records.unreadable.remove_parts(member, None);
    raid.members.put(member, new.name.clone(), log.clone(), new.power_epoch);
    log
}

/// Makes the old drive the member again, after the new one has failed during the takeover; nothing has changed.
async fn seat_old(
    raid: &Rc<Raid>,
    member: usize,
    name: String,
    (log, power_epoch): (Rc<MetaLog>, Option<u64>),
    before: Superblock,
    lost: &[ZoneIndex],
) {
    let event = raid.membership.next_sequence();
    raid.membership.change(|superblock| {
        superblock.event = event;
        superblock.floor = before.floor;
        // Superblocks that name the new drive are older than this event.
        superblock.members[member] = SuperblockMember { since: event, ..before.members[member].clone() };
    });
    for zone in lost {
        raid.zone_records.change(*zone, |record| record.lost &= !(1 << member));
    }
    raid.zone_records.change_all(|_, record| record.waits &= !(1 << member));
    raid.members.put(member, name, log, power_epoch);
    // The old drive is updated last, like one that is attached: the others may continue without it.
    durable::renew_logs(raid, raid.members.active() & !(1 << member)).await;
    durable::renew_logs(raid, raid.members.active() & (1 << member)).await;
    raid.membership.settled().await;
}
