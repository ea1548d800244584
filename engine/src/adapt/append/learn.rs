//! Learning the order of blocks: the end of a zone and the places of its blocks, from the marks on the drive.

use super::{
    judge::{AppendRecovery, judge},
    mark::{AppendMark, BlockContent, is_sealed},
    ranks::AppendGroup,
    state::{AppendInner, Session},
};
use crate::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Status},
    zone::{Lba, UNKNOWN_WP, ZoneIndex, ZoneInfo, ZoneState},
};
use std::ops::Range;

/// Checks that a zone can be written, and finds its end.
///
/// # Errors
/// When it cannot be written, or its end cannot be found.
pub async fn check_writable(inner: &AppendInner, zone: ZoneIndex) -> Result<(), DeviceError> {
    let life = inner.life(zone);
    let done = inner.device.submit(Command::Report { first: zone, count: 1 }).await;
    done.result?;
    let Some(info) = done.zones.first().copied() else { return Err(Status::InternalError.into()) };
    match info.state {
        ZoneState::Full => Err(Status::ZoneIsFull.into()),
        ZoneState::ReadOnly => Err(Status::ZoneIsReadOnly.into()),
        ZoneState::Offline => Err(Status::ZoneIsOffline.into()),
        _ => learn_end(inner, info, life).await,
    }
}

/// Reports zones, with the write pointers that their users see.
pub async fn report(inner: &AppendInner, first: ZoneIndex, count: u32) -> Result<Vec<ZoneInfo>, DeviceError> {
    let lives: Vec<u64> = inner.zones.borrow().iter().map(|known| known.life).collect();
    let done = inner.device.submit(Command::Report { first, count }).await;
    done.result?;
    let mut zones = done.zones;
    for info in &mut zones {
        let found = *info;
        info.capacity_blocks = inner.geometry.zone_capacity_blocks;
        info.zrwa = false;
        let zone = info.zone;
        info.wp_blocks = info.wp_blocks.min(inner.geometry.zone_capacity_blocks);
        if zone.0 < inner.plain_zones || zone.0 >= inner.geometry.zones {
            continue;
        }
        if info.state == ZoneState::Empty || info.state.is_active() {
            match learn_end(inner, found, lives[zone.0 as usize]).await {
                Ok(()) => {}
                // The error concerns this zone alone.
                Err(DeviceError::Status(_)) => info.wp_blocks = UNKNOWN_WP,
                Err(error) => return Err(error),
            }
        }
        if let Some(session) = &inner.zones.borrow()[zone.0 as usize].session {
            info.wp_blocks = if session.in_doubt { UNKNOWN_WP } else { session.landed };
        }
    }
    Ok(zones)
}

/// Finds the end of a zone, unless it is known. `info` is its report by the drive, and `life` its counter at that time.
pub async fn learn_end(inner: &AppendInner, info: ZoneInfo, life: u64) -> Result<(), DeviceError> {
    let (zone, wp) = (info.zone, info.wp_blocks);
    let is_known = || {
        let known = &inner.zones.borrow()[zone.0 as usize];
        known.life != life || known.session.is_some()
    };
    if is_known() {
        return Ok(());
    }
    let session = match inner.group_blocks {
        1 => Session { from: wp, next: wp, landed: wp, ..Session::default() },
        _ if wp == 0 => Session::default(),
        size => {
            let first = last_group(inner, zone, wp).await?;
            // The range begins one place before the group, for a check of `judge`.
            let found = look(inner, zone, first, first.min(wp).saturating_sub(1)..wp).await?;
            let (end, whole) = (found.end, found.end - found.end % size);
            let group = (end > whole).then(|| AppendGroup::of(whole, size, &found, wp));
            let void = wp.saturating_sub(end);
            let in_doubt = !found.is_sure;
            Session { from: end, void, next: end, landed: end, failed: false, in_doubt, group }
        }
    };
    if !is_known() {
        inner.zones.borrow_mut()[zone.0 as usize].session = Some(session);
    }
    Ok(())
}

/// First block of the last group that has a readable block in the drive's zone; 0 if there is none.
async fn last_group(inner: &AppendInner, zone: ZoneIndex, wp: u64) -> Result<u64, DeviceError> {
    let step = (inner.device.geometry().max_transfer_blocks as u64).clamp(1, 16);
    let mut end = wp;
    while end > 0 {
        let from = end.saturating_sub(step);
        for (_, seen) in marks(inner, zone, from..end, false).await?.into_iter().rev() {
            if let BlockContent::Mark(mark) = seen {
                let block = mark.block as u64;
                return Ok(block - block % inner.group_blocks);
            }
        }
        end = from;
    }
    Ok(0)
}

/// Recovers the zone from the group on that begins with `first`, by a range of the drive's zone.
async fn look(
    inner: &AppendInner,
    zone: ZoneIndex,
    first: u64,
    places: Range<u64>,
) -> Result<AppendRecovery, DeviceError> {
    Ok(judge(first, &marks(inner, zone, places, false).await?))
}

/// Reads the marks of a range of the drive's zone; block by block where a read fails. With `sealed`, the mark of a block
/// that does not match its seal is unknown: it may be that of an older block. The end of a zone is found without
/// seals, since a zone that is to be reset may have a later epoch than its blocks.
pub async fn marks(
    inner: &AppendInner,
    zone: ZoneIndex,
    places: Range<u64>,
    sealed: bool,
) -> Result<Vec<(u64, BlockContent)>, DeviceError> {
    let most = inner.device.geometry().max_transfer_blocks as u64;
    let mut marks = Vec::new();
    let mut at = places.start;
    while at < places.end {
        let count = most.min(places.end - at);
        match marks_of(inner, zone, at..at + count, sealed).await {
            Ok(found) => marks.extend(found),
            Err(_) => {
                for at in at..at + count {
                    marks.push(mark_of(inner, zone, at, sealed).await?);
                }
            }
        }
        at += count;
    }
    Ok(marks)
}

/// Reads the mark of one block of the drive's zone.
async fn mark_of(
    inner: &AppendInner,
    zone: ZoneIndex,
    at: u64,
    sealed: bool,
) -> Result<(u64, BlockContent), DeviceError> {
    match marks_of(inner, zone, at..at + 1, sealed).await {
        Ok(found) => Ok(found.first().copied().unwrap_or((at, BlockContent::Unknown))),
        Err(DeviceError::Status(Status::DeallocatedBlock)) => Ok((at, BlockContent::Nothing)),
        Err(DeviceError::Status(Status::UnrecoveredReadError)) => Ok((at, BlockContent::Unknown)),
        Err(error) => Err(error),
    }
}

/// As [`marks`], by one command.
async fn marks_of(
    inner: &AppendInner,
    zone: ZoneIndex,
    places: Range<u64>,
    sealed: bool,
) -> Result<Vec<(u64, BlockContent)>, DeviceError> {
    let (count, bytes) = (places.end - places.start, inner.device.geometry().oob_bytes as usize);
    let data = inner.pool.borrow_mut().take(count).freeze();
    let oob = Buf::zeroed(count as usize * bytes);
    let lba = Lba(inner.geometry.start(zone).0 + places.start);
    let done = inner.device.submit(Command::Read { lba, data, oob }).await;
    if let Err(error) = done.result {
        inner.pool.borrow_mut().give(done.data);
        return Err(error);
    }
    let (owner, epoch) = (inner.owner(zone), inner.epoch(zone));
    let is_right = |mark: &AppendMark, data, oob| is_sealed(oob, &owner, epoch, mark.block, data);
    let blocks = done.data.chunks_exact(BLOCK).zip(done.oob.chunks_exact(bytes));
    let marks = blocks.map(|(data, oob)| match BlockContent::read(oob, &owner) {
        BlockContent::Mark(mark) if sealed && !is_right(&mark, data, oob) => BlockContent::Unknown,
        content => content,
    });
    let marks = places.zip(marks).collect();
    inner.pool.borrow_mut().give(done.data);
    Ok(marks)
}
