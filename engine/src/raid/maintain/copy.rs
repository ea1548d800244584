//! The copy of a member to the drive that is to replace it.
//!
//! The old drive stays the member. Commands for it go through a [`Mirror`], which sends commands for zones that it
//! *follows* to the new drive as well. A zone is followed from a moment when it reads the same on both drives and no
//! command for it is in flight: an empty zone at once; a full one when it has been copied; one that is being written
//! when it is quiesced and the rest of it has been copied, with the readable blocks of its ZRWA, and the write pointer
//! where it is on the old drive. From then on both get the same commands, each of which completes only when it is
//! complete on both. So a followed zone is equal on both drives for every reader, recovery included; the records of the
//! member's part (bad blocks, burned blocks) are true of both. Log blocks and marks contain their address, so zones
//! have to be equally far apart.
//!
//! A zone is protected from resets and finishes while it is copied, as while it is rebuilt; only one rebuild or
//! replacement runs at a time. Blocks that the old drive cannot read are decoded. Where they cannot be, or are part of
//! a stripe that is not complete, the zone is left out: the new drive lacks it, and it is rebuilt later. That is
//! refused if any other member lacks the zone too: a replacement does not reduce redundancy that is reduced already.

use crate::{
    adapt::mirror::Mirror,
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Done, Status, ZonedDevice, Zones},
    raid::{
        bad_blocks::RebuildLoss,
        error::{NoPart, RebuildStop, ReplaceFailure},
        geometry::physical,
        io,
        maintain::{
            part,
            target::{self, Target},
        },
        parts::Raid,
        seat::Seat,
        zone::{
            checksum::{self, Expected},
            exclusion,
            flow::Zone,
            read, relocated, settle, stripe,
        },
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

/// Copies until every zone is followed or left out; returns those that are left out, and why. `show` gets the bytes
/// in place on the new drive (`in_place`) and in total; `done_bytes` counts the copied ones.
pub(super) async fn copy_all(
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
pub(super) fn check_copying(raid: &Raid, seat: Seat, mirror: &Mirror) -> Result<(), ReplaceFailure> {
    match mirror.error() {
        Some(error) => Err(ReplaceFailure::NewFailed(error)),
        None if !raid.members.is_seated(seat) || raid.membership.has_failed() => Err(ReplaceFailure::OldGone),
        None => Ok(()),
    }
}

/// Whether a zone is neither followed nor left out, and the member has its part.
pub(super) fn is_to_copy(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    mirror: &Mirror,
    left_out: &BTreeMap<u32, NoPart>,
) -> bool {
    is_unfollowed(raid, zone, member, mirror) && !left_out.contains_key(&zone.0)
}

/// Whether the member has its part of a zone, and the new drive does not follow it yet.
pub(super) fn is_unfollowed(raid: &Raid, zone: ZoneIndex, member: usize, mirror: &Mirror) -> bool {
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
    raid.zone_records.unreadable.wake(zone);
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
    let rows = raid.finished_tail(zone).div_ceil(raid.layout.stripe_blocks());
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
    for _ in 0..part::CATCH_UPS {
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
        stripe::read_failed(raid, index, copy.seat, error);
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
        let has_relocated = relocated::is_any_relocated(raid, zone, copy.seat.member, part.clone());
        let found = match check_old(raid, zone, part.start, &done, copy) {
            Ok(()) if !has_relocated => OldBlocks { data: done.data, oob: done.oob, unwritten: Vec::new() },
            _ => read_old_singly(raid, zone, part.clone(), copy).await?,
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

/// The result of a read from the old drive, of which the blocks are compared with their checksums.
fn check_old(
    raid: &Raid,
    zone: ZoneIndex,
    at: u64,
    done: &Done,
    copy: &CopyJob<'_>,
) -> Result<(), DeviceError> {
    done.result?;
    checksum::check(raid, copy.seat.member, zone, at, Expected::Any, (&done.data, &done.oob))
}

/// A zeroed buffer for the out-of-band metadata of blocks; empty if the policy uses none.
fn zeroed_oob(raid: &Raid, blocks: u64, copy: &CopyJob<'_>) -> Buf {
    match raid.uses_marks() {
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
        if let Some(found) = relocated::get(raid, zone, copy.seat.member, at) {
            let (block, marks) = marked(raid, zone, at, found, copy);
            data.extend_from_slice(&block);
            oob.extend_from_slice(&marks);
            continue;
        }
        let done = read_old(raid, zone, at..at + 1, copy).await;
        let (block, marks) = match check_old(raid, zone, at, &done, copy) {
            Ok(()) => (done.data, done.oob),
            // In a complete stripe, it was lost.
            Err(DeviceError::Status(Status::DeallocatedBlock))
                if at / raid.layout.chunk_blocks >= raid.complete_rows(zone) =>
            {
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

/// A block of a complete stripe, with the out-of-band metadata that the policy requires.
fn marked(raid: &Raid, zone: ZoneIndex, at: u64, data: Buf, copy: &CopyJob<'_>) -> (Buf, Buf) {
    let member = copy.seat.member;
    let content = io::content_of(raid, member, at / raid.layout.chunk_blocks);
    match io::write_command(raid, member, zone, at, data, content) {
        Command::Write { data, oob, .. } => (data, oob),
        other => unreachable!("{other:?} writes a block"),
    }
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
    stripe::read_failed(raid, zone, copy.seat, error);
    stripe::note_read_of(raid, zone, member, at..at + 1, Err(error));
    check_part(raid, zone, copy)?;
    let row = at / layout.chunk_blocks;
    let mut lost = RebuildLoss::default();
    if row < raid.complete_rows(zone) {
        let data = stripe::decode_rows(raid, zone, member, at..at + 1, &mut lost).await?;
        if lost.bad_blocks.is_empty() {
            return Ok(marked(raid, zone, at, data, copy));
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
