//! Replacement: a drive takes over from a working member, which is copied and mirrored until then.
//!
//! *The copy.* The old drive stays the member. Commands for it go through a [`Mirror`], which sends commands for zones
//! that it *follows* to the new drive as well. A zone is followed from a moment when it reads the same on both drives
//! and no command for it is in flight: an empty zone at once; a full one when it has been copied; one that is
//! being written when it is quiesced and the rest of it has been copied, with the readable blocks of its ZRWA, and the
//! write pointer where it is on the old drive. From then on both get the same commands, each of which completes only
//! when it is complete on both. So a followed zone is equal on both drives for every reader, recovery included; the
//! records of the member's part (holes, burned blocks) are true of both. Log blocks and marks contain their address, so
//! zones have to be equally far apart.
//!
//! A zone is protected from resets and finishes while it is copied, as while it is rebuilt; only one rebuild or
//! replacement runs at a time. Blocks that the old drive cannot read are decoded. Where they cannot be, or are part of
//! a stripe that is not complete, the zone is left out: the new drive lacks it, and it is rebuilt later. That is
//! refused if any other member lacks the zone too: a replacement does not reduce redundancy that is reduced already.
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
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Status, ZonedDevice, Zones},
    format::superblock::{Superblock, SuperblockMember},
    raid::{
        Drive,
        bad_blocks::RebuildLoss,
        create::check_forgotten,
        durable,
        erase::{kept_drive_id, reset_each, wipe_filled, wipe_for_member},
        error::{ArrayError, BadDrive, DriveFault, NoCopy, NoPart, NoReplacement, ReplaceFailure},
        events::Event,
        failures,
        geometry::physical,
        io,
        journal::log::MetaLog,
        maintain::{
            job,
            part::{self, RebuildStop},
            target::{self, Newcomer, Target},
        },
        parts::Raid,
        power, run,
        seat::Seat,
        status::Progress,
        zone::{dispatch, exclusion, flow::Zone, read, settle},
    },
    runtime::{self, COPY, give_way},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    ops::Range,
    rc::Rc,
};

/// Blocks in a read or write of a copy, if both drives support that many.
const BATCH_BLOCKS: u64 = 256;
/// Reads ahead of the write in flight.
const READS_AHEAD: usize = 4;

/// How blocks are written to a zone of the new drive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteOrder {
    /// Without a ZRWA, at the write pointer; unwritten blocks become zeros.
    InOrder,
    /// In the ZRWA; then the write pointer is moved past them.
    Passed,
    /// In the ZRWA, without moving the write pointer.
    Ahead,
}

/// Blocks of the old drive.
struct OldBlocks {
    data: Buf,
    oob: Buf,
    /// Offsets of blocks that were never written.
    unwritten: Vec<u64>,
}

/// A copy in progress.
struct CopyJob<'a> {
    seat: Seat,
    mirror: &'a Rc<Mirror>,
    /// Called with the number of bytes that have been copied.
    report: &'a dyn Fn(u64),
}

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
    let mut result = copy_all(raid, seat, (mirror, &target), (&bytes, &in_place), &show).await;
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
            Ok(false) => copy_all(raid, seat, (mirror, &target), (&bytes, &in_place), &show).await,
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
    if raid.layout.policy.uses_marks() && old_bytes != have {
        return Err(no_copy(NoCopy::OobBytes { have, old: old_bytes }));
    }
    Mirror::new(&raid.runtime, old, new.device.clone()).ok_or_else(|| no_copy(NoCopy::ZoneSize))
}

/// Copies until every zone is followed or left out; returns those that are left out, and why. `show` gets the bytes
/// in place on the new drive (`in_place`) and in total; `done_bytes` counts the copied ones.
async fn copy_all(
    raid: &Rc<Raid>,
    seat: Seat,
    (mirror, target): (&Rc<Mirror>, &Target),
    (done_bytes, in_place): (&Cell<u64>, &Cell<u64>),
    show: &dyn Fn(u64, u64),
) -> Result<BTreeMap<u32, NoPart>, ReplaceFailure> {
    let mut left_out = BTreeMap::new();
    loop {
        let changed = raid.zones.changed.wait();
        let (to_copy, left_bytes) = to_copy(raid, seat.member, mirror, &left_out, target).await;
        check_copying(raid, seat, mirror)?;
        let total_bytes = in_place.get() + left_bytes;
        show(in_place.get(), total_bytes);
        if to_copy.is_empty() {
            return Ok(left_out);
        }
        let mut all_are_busy = true;
        for zone in to_copy {
            runtime::work(1);
            give_way().await;
            check_copying(raid, seat, mirror)?;
            if !exclusion::is_free(raid, zone) {
                continue;
            }
            all_are_busy = false;
            if !is_to_copy(raid, zone, seat.member, mirror, &left_out) {
                continue;
            }
            let (before, copied) = (in_place.get(), Cell::new(0));
            let report = |bytes: u64| {
                copied.set(copied.get() + bytes);
                // Some blocks of a ZRWA are copied twice.
                show(before + copied.get().min(read::member_bytes(raid, zone)), total_bytes);
            };
            match copy_part(raid, zone, target, &CopyJob { seat, mirror, report: &report }).await {
                Ok(()) => {
                    done_bytes.set(done_bytes.get() + copied.get());
                    let is_new = copied.get() > 0;
                    in_place.set(before + if is_new { read::member_bytes(raid, zone) } else { 0 });
                }
                Err(RebuildStop::Again) => {}
                Err(RebuildStop::Error(reason)) => _ = left_out.insert(zone.0, reason),
            }
        }
        if all_are_busy {
            changed.await;
        }
    }
}

/// Checks that both drives are still in use.
fn check_copying(raid: &Raid, seat: Seat, mirror: &Mirror) -> Result<(), ReplaceFailure> {
    match mirror.error() {
        Some(error) => Err(ReplaceFailure::NewFailed(error)),
        None if !raid.members.is_seated(seat) || raid.membership.has_failed() => Err(ReplaceFailure::OldGone),
        None => Ok(()),
    }
}

/// Whether a zone is neither followed nor left out, and the member has its part.
fn is_to_copy(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    mirror: &Mirror,
    left_out: &BTreeMap<u32, NoPart>,
) -> bool {
    is_unfollowed(raid, zone, member, mirror) && !left_out.contains_key(&zone.0)
}

/// Whether the member has its part of a zone, and the new drive does not follow it yet.
fn is_unfollowed(raid: &Raid, zone: ZoneIndex, member: usize, mirror: &Mirror) -> bool {
    raid.live(zone) & (1 << member) != 0 && !mirror.follows(physical(zone))
}

/// Zones that are to be copied, and how many bytes of them the new drive lacks. Zones that are unwritten on both
/// drives are followed instead.
async fn to_copy(
    raid: &Raid,
    member: usize,
    mirror: &Mirror,
    left_out: &BTreeMap<u32, NoPart>,
    target: &Target,
) -> (Vec<ZoneIndex>, u64) {
    let (mut to_copy, mut left_bytes) = (Vec::new(), 0);
    for zone in (0..raid.geometry.zones).map(ZoneIndex) {
        let is_unfollowed = is_unfollowed(raid, zone, member, mirror);
        let is_empty =
            exclusion::is_free(raid, zone) && raid.zones.is_unwritten(zone) && !target.has_kept(zone);
        if is_unfollowed && is_empty {
            mirror.follow(physical(zone));
        } else if is_unfollowed && !left_out.contains_key(&zone.0) {
            to_copy.push(zone);
            left_bytes +=
                if target::is_copied(raid, zone, target) { 0 } else { read::member_bytes(raid, zone) };
        }
        runtime::work(1);
        give_way().await;
    }
    (to_copy, left_bytes)
}

/// Submits a command to the new drive, which is detached if it fails.
async fn on_new(mirror: &Mirror, command: Command) -> Result<Buf, RebuildStop> {
    if mirror.error().is_some() {
        return Err(RebuildStop::Again);
    }
    let done = mirror.second().submit(command).await;
    done.result.map(|()| done.data).map_err(|error| {
        mirror.let_go(error);
        RebuildStop::Again
    })
}

/// As [`copy_zone`], while no other operation works on the zone. After an error the zone of the new drive is
/// empty.
async fn copy_part(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    target: &Target,
    copy: &CopyJob<'_>,
) -> Result<(), RebuildStop> {
    raid.background.enter(zone);
    let result = copy_zone(raid, zone, target, copy).await;
    if result.is_err() && copy.mirror.error().is_none() {
        // A partly written zone would hold active resources of the drive.
        on_new(copy.mirror, Command::Reset { zones: Zones::One(physical(zone)) }).await.ok();
    }
    raid.background.leave();
    raid.zones.changed.open();
    result
}

/// Copies a zone that does not change meanwhile, and follows it.
async fn copy_zone(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    target: &Target,
    copy: &CopyJob<'_>,
) -> Result<(), RebuildStop> {
    let member = copy.seat.member;
    if target::is_copied(raid, zone, target) {
        check_part(raid, zone, copy)?;
        copy.mirror.follow(physical(zone));
        return Ok(());
    }
    let zones = Zones::One(physical(zone));
    on_new(copy.mirror, Command::Reset { zones }).await?;
    part::check_stop(raid, member)?;
    let running = raid.zones.running(zone);
    match running {
        // A zone that waits to be opened will be opened on both.
        Some(running) if running.flow.borrow().is_open() => copy_running(raid, &running, copy).await?,
        None if !raid.zones.is_unwritten(zone) => copy_full(raid, zone, copy).await?,
        _ => {}
    }
    check_part(raid, zone, copy)?;
    copy.mirror.follow(physical(zone));
    if let Err(error) = target::label_copied(raid, zone, target).await {
        copy.mirror.let_go(error);
    }
    Ok(())
}

/// Checks that the member still has its part of a zone, and that no other operation waits for the zone.
fn check_part(raid: &Raid, zone: ZoneIndex, copy: &CopyJob<'_>) -> Result<(), RebuildStop> {
    part::check_stop(raid, copy.seat.member)?;
    match raid.live(zone) & (1 << copy.seat.member) != 0 && !raid.has_failed(zone) {
        true => Ok(()),
        false => Err(NoPart::OldLacks.into()),
    }
}

/// Copies a full zone, and finishes it on the new drive.
async fn copy_full(raid: &Raid, zone: ZoneIndex, copy: &CopyJob<'_>) -> Result<(), RebuildStop> {
    let rows = read::finished_tail(raid, zone).div_ceil(raid.layout.stripe_blocks());
    copy_blocks(raid, zone, 0..rows * raid.layout.chunk_blocks, WriteOrder::InOrder, copy).await?;
    let zones = Zones::One(physical(zone));
    on_new(copy.mirror, Command::Finish { zones }).await.map(|_| ())
}

/// Copies a zone that is being written: most of it meanwhile, the rest while it is quiesced.
async fn copy_running(raid: &Rc<Raid>, zone: &Rc<Zone>, copy: &CopyJob<'_>) -> Result<(), RebuildStop> {
    let zrwa = raid.layout.policy.uses_zrwa();
    let order = if zrwa { WriteOrder::Passed } else { WriteOrder::InOrder };
    let zones = Zones::One(physical(zone.index));
    on_new(copy.mirror, Command::Open { zones, zrwa }).await?;
    let mut at = 0;
    for _ in 0..8 {
        let end = unchanging(raid, zone, copy.seat.member);
        if end < at + raid.layout.distance * raid.layout.chunk_blocks {
            break;
        }
        copy_blocks(raid, zone.index, at..end, order, copy).await?;
        at = end;
    }
    let _pause = settle::pause(raid, zone).await;
    copy_rest(raid, zone, at, order, copy).await?;
    copy.mirror.follow(physical(zone.index));
    Ok(())
}

/// Blocks of a member's part of a zone that will not change: those of complete stripes that its write
/// pointer has passed.
fn unchanging(raid: &Raid, zone: &Zone, member: usize) -> u64 {
    let layout = &raid.layout;
    let flow = zone.flow.borrow();
    let complete = flow.complete() / layout.stripe_blocks() * layout.chunk_blocks;
    complete.min(flow.positions()[member] * layout.policy.position_blocks(layout))
}

/// Copies the rest of a quiesced zone, from block `at` of the member's part on.
async fn copy_rest(
    raid: &Raid,
    zone: &Zone,
    at: u64,
    order: WriteOrder,
    copy: &CopyJob<'_>,
) -> Result<(), RebuildStop> {
    let layout = &raid.layout;
    let (index, member) = (zone.index, copy.seat.member);
    // Otherwise another task could have to make more blocks safe during the copy.
    let tail = zone.flow.borrow().complete();
    settle::make_safe(raid, zone, tail).await?;
    settle::quiet(raid, zone).await;
    check_part(raid, index, copy)?;
    if zone.flow.borrow().is_over() {
        return Err(RebuildStop::Again);
    }
    let report = Command::Report { first: physical(index), count: 1 };
    let done = raid.members.submit(member, report).await;
    if let Err(error) = done.result {
        read::read_failed(raid, index, copy.seat, error);
    }
    let used_blocks = layout.rows * layout.chunk_blocks;
    // In the last row, the write pointer of this member may be at the end before those of others.
    let passed_all =
        zone.flow.borrow().positions()[member] * layout.policy.position_blocks(layout) >= used_blocks;
    let at_end = |info: &ZoneInfo| info.state == ZoneState::Full || info.wp_blocks >= used_blocks;
    let as_left = |info: &ZoneInfo| order == WriteOrder::InOrder || info.zrwa || passed_all && at_end(info);
    let Some(info) = done.zones.first().copied().filter(as_left) else {
        return Err(NoPart::OldChanged.into());
    };
    let wp_blocks = if passed_all { used_blocks } else { info.wp_blocks.min(used_blocks) };
    copy_blocks(raid, index, at..wp_blocks, order, copy).await?;
    if order == WriteOrder::Passed {
        let window = layout.window_blocks();
        let ahead = wp_blocks..(wp_blocks + window).min(used_blocks);
        copy_blocks(raid, index, ahead, WriteOrder::Ahead, copy).await?;
    }
    check_part(raid, index, copy)
}

/// Most blocks that are copied at once: in a ZRWA, no more than the write pointer may move by.
fn copy_batch_blocks(raid: &Raid, copy: &CopyJob<'_>) -> u64 {
    let devices = [copy.mirror.geometry(), copy.mirror.second().geometry()];
    let most = devices.iter().fold(BATCH_BLOCKS, |most, d| most.min(d.max_transfer_blocks as u64));
    let window = raid.layout.window_blocks();
    match raid.layout.policy.uses_zrwa() {
        false => most,
        true => {
            let chunk = raid.layout.chunk_blocks;
            most.min(window).max(chunk) / chunk * chunk
        }
    }
}

/// Copies blocks of the member's part of a zone that do not change, in their order.
async fn copy_blocks(
    raid: &Raid,
    zone: ZoneIndex,
    blocks: Range<u64>,
    order: WriteOrder,
    copy: &CopyJob<'_>,
) -> Result<(), RebuildStop> {
    let part_blocks = raid.layout.rows * raid.layout.chunk_blocks;
    assert!(blocks.end <= part_blocks, "blocks {blocks:?} of a part of {part_blocks} are copied");
    let start = raid.members.start(copy.seat.member, zone).0;
    let most = copy_batch_blocks(raid, copy);
    assert!(most > 0, "a copy of no blocks at a time");
    let (mut next, mut reads) = (blocks.start, VecDeque::new());
    loop {
        while reads.len() < READS_AHEAD && next < blocks.end {
            let to = (next + most).min(blocks.end);
            reads.push_back((next..to, read_old(raid, zone, next..to, copy)));
            next = to;
        }
        let Some((part, read)) = reads.pop_front() else { return Ok(()) };
        let done = read.await;
        let found = match done.result {
            Ok(()) => OldBlocks { data: done.data, oob: done.oob, unwritten: Vec::new() },
            Err(_) => read_old_singly(raid, zone, part.clone(), copy).await?,
        };
        part::check_stop(raid, copy.seat.member)?;
        (copy.report)(found.data.len() as u64);
        runtime::work(found.data.blocks() as u32 * COPY);
        give_way().await;
        part::check_stop(raid, copy.seat.member)?;
        write_new(raid, Lba(start + part.start), found, order, copy).await?;
        if order == WriteOrder::Passed {
            on_new(copy.mirror, Command::FlushZrwa { last: Lba(start + part.end - 1) }).await?;
        }
        part::check_stop(raid, copy.seat.member)?;
    }
}

/// Starts to read blocks of the member's part from the old drive.
fn read_old(raid: &Raid, zone: ZoneIndex, blocks: Range<u64>, copy: &CopyJob<'_>) -> Completion {
    let count = blocks.end - blocks.start;
    let data = raid.pool.borrow_mut().take(count).freeze();
    io::read_marked(raid, copy.seat.member, zone, blocks.start, data, zeroed_oob(raid, count, copy))
}

/// A zeroed buffer for the out-of-band metadata of blocks; empty if the policy uses none.
fn zeroed_oob(raid: &Raid, blocks: u64, copy: &CopyJob<'_>) -> Buf {
    match raid.layout.policy.uses_marks() {
        true => Buf::zeroed((blocks * copy.mirror.geometry().oob_bytes as u64) as usize),
        false => Buf::default(),
    }
}

/// Reads blocks one by one that could not be read at once.
async fn read_old_singly(
    raid: &Raid,
    zone: ZoneIndex,
    blocks: Range<u64>,
    copy: &CopyJob<'_>,
) -> Result<OldBlocks, RebuildStop> {
    let count = blocks.end - blocks.start;
    let (mut data, mut oob) = (Vec::new(), Vec::new());
    let mut unwritten = Vec::new();
    for at in blocks.clone() {
        let done = read_old(raid, zone, at..at + 1, copy).await;
        let (block, marks) = match done.result {
            Ok(()) => (done.data, done.oob),
            Err(DeviceError::Status(Status::DeallocatedBlock)) => {
                unwritten.push(at - blocks.start);
                (Buf::zeroed(BLOCK), zeroed_oob(raid, 1, copy))
            }
            Err(error) => decode_old(raid, zone, at, error, copy).await?,
        };
        part::check_stop(raid, copy.seat.member)?;
        data.extend_from_slice(&block);
        oob.extend_from_slice(&marks);
    }
    assert!(data.len() as u64 == count * BLOCK as u64, "{} bytes of {count} blocks were read", data.len());
    Ok(OldBlocks { data: Buf::copy_of(&data), oob: Buf::copy_of(&oob), unwritten })
}

/// Decodes a block of a complete stripe, which the old drive cannot read, from the others.
async fn decode_old(
    raid: &Raid,
    zone: ZoneIndex,
    at: u64,
    error: DeviceError,
    copy: &CopyJob<'_>,
) -> Result<(Buf, Buf), RebuildStop> {
    let (layout, member) = (&raid.layout, copy.seat.member);
    read::read_failed(raid, zone, copy.seat, error);
    read::note_read_of(raid, zone, member, at..at + 1, Err(error));
    check_part(raid, zone, copy)?;
    let row = at / layout.chunk_blocks;
    let mut lost = RebuildLoss::default();
    if row < read::tail(raid, zone) / layout.stripe_blocks() {
        let data = part::other_rows(raid, zone, member, at..at + 1, &mut lost).await?;
        let content = io::content_of(raid, member, row);
        if lost.bad_blocks.is_empty()
            && let Command::Write { data, oob, .. } = io::write_command(raid, member, zone, at, data, content)
        {
            return Ok((data, oob));
        }
    }
    Err(NoPart::OldUnreadable { block: at, error }.into())
}

/// Writes blocks to the new drive, from `lba` on.
async fn write_new(
    raid: &Raid,
    lba: Lba,
    found: OldBlocks,
    order: WriteOrder,
    copy: &CopyJob<'_>,
) -> Result<(), RebuildStop> {
    let OldBlocks { data, oob, unwritten } = found;
    if order == WriteOrder::InOrder || unwritten.is_empty() {
        let data = on_new(copy.mirror, io::copied_command(lba, data, oob)).await?;
        raid.pool.borrow_mut().give(data);
        return Ok(());
    }
    assert!(data.blocks() > 0, "nothing is copied to block {}", lba.0);
    let marks = oob.len() / data.blocks() as usize;
    for at in (0..data.blocks()).filter(|at| !unwritten.contains(at)) {
        let oob = oob.slice(at as usize * marks..(at as usize + 1) * marks);
        let data = data.slice_blocks(at..at + 1);
        on_new(copy.mirror, io::copied_command(Lba(lba.0 + at), data, oob)).await?;
    }
    Ok(())
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
    for (command, completer) in raid.drain.end() {
        let completion = dispatch::submit_command(raid, command);
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
    check_copying(raid, seat, mirror)?;
    let is_to_copy = |zone: u32| is_to_copy(raid, ZoneIndex(zone), seat.member, mirror, left_out);
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

/// Refuses to leave out a zone that another member lacks as well.
fn check_left_out(
    raid: &Raid,
    member: usize,
    left_out: &BTreeMap<u32, NoPart>,
) -> Result<(), ReplaceFailure> {
    let lacking = |zone: u32| {
        let parts = raid.live(ZoneIndex(zone));
        parts & (1 << member) != 0 && parts.count_ones() as usize != raid.members.count()
    };
    match left_out.iter().find(|(zone, _)| lacking(**zone)) {
        Some((zone, why)) => Err(ReplaceFailure::LeftOut { zone: *zone, why: *why }),
        None => Ok(()),
    }
}

/// Zones of which the old drive has its part and the new one lacks it.
fn lost_by_new(raid: &Raid, member: usize, mirror: &Mirror) -> Vec<ZoneIndex> {
    let zones = (0..raid.geometry.zones).map(ZoneIndex);
    zones.filter(|zone| is_unfollowed(raid, *zone, member, mirror)).collect()
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
