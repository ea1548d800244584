//! Filling bad blocks ([`crate::raid::bad_blocks`]) that can be decoded again.
//!
//! A bad block can be filled once it can be decoded: the drive that could not read the same block can read it
//! now. A zone cannot be overwritten, so the part is written anew:
//!
//! - Of a full zone, in a spare zone of the drive, from the blocks that the part holds and from decoded ones. The old
//!   place is used until the copy is complete and the member has logged the new place. Then the bad blocks are removed.
//!   So a crash leaves the part as it was, or the new part with bad blocks that are filled already.
//! - Otherwise the part is marked as lost, and rebuilt. That is done only if all other members have their parts, and
//!   all of the part, bad blocks included, has just been decoded from these: otherwise data might be lost.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{Command, DeviceError, Status, Zones},
    raid::{
        bad_blocks::RebuildLoss,
        durable,
        error::{NoPart, RebuildStop},
        events::Event,
        failures,
        geometry::{ChunkRange, Role, physical},
        io,
        journal::log::MetaLog,
        maintain::part::{self, PartRebuild},
        parts::Raid,
        power,
        zone::{
            checksum::{self, Expected},
            exclusion,
            flow::Parities,
            relocated, stripe,
        },
    },
    zone::{ZoneIndex, ZoneState},
};
use std::{ops::Range, rc::Rc};

/// Fills bad blocks that can be decoded now, or marks their parts as lost, which are then to be rebuilt. Returns the
/// bytes written.
pub(super) async fn fill_bad_blocks(raid: &Rc<Raid>) -> u64 {
    let parts = raid.zone_records.bad_blocks().parts();
    let mut bytes = 0;
    for (zone, member) in parts {
        let is_live = raid.live(zone) & (1 << member) != 0;
        if raid.background.is_given_up() {
            break;
        }
        if !is_live || !exclusion::is_free(raid, zone) || raid.zones.is_offline(zone) || raid.has_failed(zone)
        {
            continue;
        }
        raid.background.enter(zone);
        raid.background.work_on(raid.members.seat(member));
        // Bad blocks that cannot be filled now stay.
        bytes += fill_part(raid, zone, member).await.unwrap_or_default();
        raid.background.leave();
        raid.zones.changed.open();
        raid.zone_records.unreadable.wake(zone);
    }
    bytes
}

/// Fills the bad blocks of one part, or marks it as lost. Returns the bytes written.
async fn fill_part(raid: &Rc<Raid>, zone: ZoneIndex, member: usize) -> Result<u64, RebuildStop> {
    part::check_waits(raid, zone)?;
    let bad_blocks =
        raid.zone_records.bad_blocks_among(zone, member, 0..raid.layout.rows * raid.layout.chunk_blocks);
    let mut decoded = 0;
    for at in &bad_blocks {
        decoded += decode_block(raid, zone, member, *at).await?.is_some() as usize;
        part::check_stop(raid, member)?;
    }
    if decoded == 0 {
        return Ok(0);
    }
    let is_full = raid.zones.state(zone) == ZoneState::Full && !raid.zones.is_running(zone);
    let log = raid.members.log(member).filter(|_| is_full);
    let spare = match &log {
        Some(log) => log.device.find_free().await,
        None => None,
    };
    if let Some((log, spare)) = log.zip(spare) {
        let copied = copy_to_spare(raid, zone, member, (&log, spare.zone)).await;
        if copied.is_err() && log.device.places().get(&physical(zone).0) != Some(&spare.zone) {
            // A partly written zone would hold active resources of the drive.
            let zones = Zones::One(physical(zone));
            log.device.submit_to(spare.zone, Command::Reset { zones }).await;
        }
        return copied;
    }
    let can_spare = raid.live(zone).count_ones() as usize == raid.members.count();
    if can_spare && decoded == bad_blocks.len() && decodes_all(raid, zone, member).await? {
        failures::part_lost(
            raid,
            zone,
            member,
            Status::UnrecoveredReadError.into(),
            "rebuild of unreadable blocks",
        );
        raid.membership.settled().await;
    }
    Ok(0)
}

/// Writes a member's part of a full zone anew in a spare zone, and makes this its place.
async fn copy_to_spare(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    member: usize,
    (log, place): (&Rc<MetaLog>, u32),
) -> Result<u64, RebuildStop> {
    let seat = raid.members.seat(member);
    let zones = Zones::One(physical(zone));
    let submit = async |command| {
        part::check_stop(raid, member)?;
        log.device.submit_to(place, command).await.result.map_err(RebuildStop::from)
    };
    submit(Command::Reset { zones }).await?;
    let (layout, tail) = (raid.layout, raid.finished_tail(zone));
    let end = tail.div_ceil(layout.stripe_blocks()) * layout.chunk_blocks;
    let most = part::batch_blocks(raid);
    let mut report = |_| ();
    let (lost, power_epoch) = (RebuildLoss::default(), power::drive_epoch(raid, member));
    let mut work = PartRebuild { report: &mut report, lost, power_epoch };
    let mut at = 0;
    while at < end {
        let to = (at + most).min((at / layout.chunk_blocks + 1) * layout.chunk_blocks);
        let data = own_or_decoded(raid, zone, member, at..to, &mut work.lost).await?;
        let content = io::content_of(raid, member, at / layout.chunk_blocks);
        submit(io::write_command(raid, member, zone, at, data, content)).await?;
        at = to;
    }
    submit(Command::Finish { zones }).await?;
    durable::flush_caches(raid, 1 << member).await;
    part::check_stop(raid, member)?;
    if !raid.members.is_seated(seat) {
        return Err(NoPart::Gone.into());
    }
    part::check_kept_power(raid, member, &work)?;
    // Instead of a block that is no bad block yet, there would be zeros until the bad block is logged.
    let bad_blocks = raid.zone_records.bad_blocks_among(zone, member, 0..end);
    if work.lost.bad_blocks.iter().cloned().flatten().any(|at| bad_blocks.binary_search(&at).is_err()) {
        return Err(DeviceError::from(Status::UnrecoveredReadError).into());
    }
    // Reads in flight may be of the old place, which may be reset when another zone is moved there.
    log.device.place(physical(zone), place);
    raid.members.note_loss();
    raid.events.note(Event::Moved { member, zone: zone.0, place });
    log.renew().await.result?;
    part::rebuilt(raid, zone, member, &work).await?;
    relocated::unburn(raid, zone, member);
    Ok(end * BLOCK as u64)
}

/// Blocks of a member's part of a full zone, all in one row: as read, or decoded where the member cannot read them
/// or has bad blocks.
async fn own_or_decoded(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    member: usize,
    blocks: Range<u64>,
    lost: &mut RebuildLoss,
) -> Result<Buf, RebuildStop> {
    let first = blocks.start;
    let read = |blocks: Range<u64>| {
        let buf = Buf::zeroed((blocks.end - blocks.start) as usize * BLOCK);
        checksum::read(raid, member, zone, blocks.start, Expected::Row, buf)
    };
    let mut bad_blocks = raid.zone_records.bad_blocks_among(zone, member, blocks.clone());
    bad_blocks.retain(|at| !relocated::is_relocated(raid, zone, member, *at));
    if bad_blocks.is_empty() && !relocated::is_any_relocated(raid, zone, member, blocks.clone()) {
        let done = read(blocks.clone()).await;
        if done.result.is_ok() {
            return Ok(done.data);
        }
    }
    let mut whole = BufMut::zeroed((blocks.end - first) as usize * BLOCK);
    for at in blocks {
        if let Some(found) = relocated::get(raid, zone, member, at) {
            whole.block_mut(at - first).copy_from_slice(&found);
            continue;
        }
        let own = read(at..at + 1).await;
        let found = match own.result {
            Ok(()) if !bad_blocks.contains(&at) => Some(own.data),
            // The rest of the last row was never written. Any other block without data was lost.
            Err(_) if stripe::is_behind_end(raid, zone, member, at) => continue,
            _ => decode_block(raid, zone, member, at).await?,
        };
        part::check_stop(raid, member)?;
        match found {
            Some(found) => whole.block_mut(at - first).copy_from_slice(&found),
            None => lost.add(&raid.layout, member, at, []),
        }
    }
    Ok(whole.freeze())
}

/// Decodes a block of a member's part of a zone from the other members; `None` if that is impossible now.
pub(super) async fn decode_block(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    member: usize,
    at: u64,
) -> Result<Option<Buf>, RebuildStop> {
    let layout = raid.layout;
    let (row, from) = (at / layout.chunk_blocks, at % layout.chunk_blocks);
    if row < raid.complete_rows(zone) {
        let mut lost = RebuildLoss::default();
        let data = stripe::decode_rows(raid, zone, member, at..at + 1, &mut lost).await?;
        return Ok(lost.bad_blocks.is_empty().then_some(data));
    }
    let role = layout.role(member, row);
    let index = if let Role::Data(index) = role { index } else { 0 };
    Ok(decode_tail(raid, zone, ChunkRange { stripe: row, index, from, to: from + 1 }, role).await.ok())
}

/// Decodes the content of `role` at `piece`'s offsets in the stripe that a zone ends in, from the other members.
async fn decode_tail(
    raid: &Raid,
    zone: ZoneIndex,
    piece: ChunkRange,
    role: Role,
) -> Result<Buf, DeviceError> {
    let known = match raid.zones.running(zone) {
        Some(running) => stripe::running_parities(raid, &running.flow.borrow(), piece)?,
        None => Parities::default(),
    };
    stripe::decode(raid, zone, piece, role, raid.tail(zone), &known).await
}

/// Whether all blocks of a member's part of a zone, readable or not, can be decoded from the other members.
async fn decodes_all(raid: &Rc<Raid>, zone: ZoneIndex, member: usize) -> Result<bool, RebuildStop> {
    let (layout, tail) = (raid.layout, raid.tail(zone));
    let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    let mut lost = RebuildLoss::default();
    let end = stripe * layout.chunk_blocks;
    let most = part::batch_blocks(raid);
    for at in (0..end).step_by(most as usize) {
        stripe::decode_rows(raid, zone, member, at..end.min(at + most), &mut lost).await?;
        part::check_stop(raid, member)?;
    }
    if !lost.bad_blocks.is_empty() {
        return Ok(false);
    }
    let Role::Data(index) = layout.role(member, stripe) else { return Ok(true) };
    let to = covered.saturating_sub(index * layout.chunk_blocks).min(layout.chunk_blocks);
    let piece = ChunkRange { stripe, index, from: 0, to };
    Ok(to == 0 || decode_tail(raid, zone, piece, Role::Data(index)).await.is_ok())
}
