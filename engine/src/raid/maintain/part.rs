//! Restores a part of a zone: what rebuild, copy and the filling of holes share.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode,
    device::{Command, DeviceError, Status},
    format::record::Record,
    raid::{
        bad_blocks::RebuildLoss,
        durable,
        error::NoPart,
        failures,
        geometry::{ChunkRange, Layout, each},
        io,
        members::{is_of_zone, is_unreadable},
        parts::Raid,
        power,
        seat::Seat,
        zone::{holes, read, relocated},
    },
    runtime::{self, COPY},
    zone::ZoneIndex,
};
use std::{collections::BTreeMap, ops::Range};

/// Times that a rebuild or a copy of a zone that is being written catches up with the writes, before it pauses the zone
/// for the rest: it would never catch up with a host that writes faster.
pub const CATCH_UPS: usize = 8;

/// Blocks read from each member at a time.
const BATCH_BLOCKS: u64 = 256;

/// Why a zone was not rebuilt.
pub enum RebuildStop {
    /// A reset or finish of the zone is requested, or its state has changed: try again.
    Again,
    /// The zone cannot be rebuilt now.
    Error(NoPart),
}

impl From<NoPart> for RebuildStop {
    fn from(error: NoPart) -> RebuildStop {
        RebuildStop::Error(error)
    }
}

impl From<DeviceError> for RebuildStop {
    fn from(error: DeviceError) -> RebuildStop {
        RebuildStop::Error(error.into())
    }
}

/// The rebuild of a member's part of a zone.
pub(super) struct PartRebuild<'a> {
    /// Called with the number of bytes that have been rebuilt.
    pub(super) report: &'a mut dyn FnMut(u64),
    /// Blocks that could not be decoded.
    pub(super) lost: RebuildLoss,
    /// Power epoch of the member's drive when the rebuild of its part began.
    pub(super) power_epoch: Option<u64>,
}

/// Blocks of complete stripes as read from the members, from block `from` of their parts on.
struct RebuildRows {
    from: u64,
    /// By member.
    parts: Vec<Buf>,
}

impl RebuildRows {
    /// Decodes blocks of `member`, all in one row, from those of `others` (bits); `false` if these do not suffice.
    fn decode(
        &self,
        layout: &Layout,
        member: usize,
        blocks: Range<u64>,
        others: u32,
        result: &mut BufMut,
    ) -> bool {
        let row = blocks.start / layout.chunk_blocks;
        assert!(
            self.from <= blocks.start && blocks.end <= (row + 1) * layout.chunk_blocks,
            "{blocks:?} of row {row}"
        );
        assert!(others & (1 << member) == 0, "member {member} is decoded from itself");
        let bytes = (blocks.start - self.from) as usize * BLOCK..(blocks.end - self.from) as usize * BLOCK;
        let symbols = layout.symbols(layout.data_chunks());
        let present = each(others).fold(0, |all, other| all | 1 << layout.index(other, row));
        let own = symbols[layout.index(member, row) as usize];
        let Some(recipe) = decode::solve(present, &symbols[..layout.members], own) else { return false };
        let members = recipe.sources().iter().map(|source| layout.member(row, source.stored as u64));
        let sources: Vec<&[u8]> = members.map(|member| &self.parts[member][bytes.clone()]).collect();
        recipe.run(&mut result[bytes], &sources);
        true
    }
}

/// Checks that the member is active with the same drive, no other operation needs the zone, and the array has not
/// failed.
pub fn check_stop(raid: &Raid, member: usize) -> Result<(), RebuildStop> {
    check_active(raid, member)?;
    if raid.background.is_stopped() || raid.membership.has_failed() {
        Err(RebuildStop::Again)
    } else {
        Ok(())
    }
}

/// Checks that the member is active with the drive on which the job began.
pub fn check_active(raid: &Raid, member: usize) -> Result<(), RebuildStop> {
    if !raid.members.is_active(member) || raid.background.seat() != Some(raid.members.seat(member)) {
        return Err(NoPart::Gone.into());
    }
    Ok(())
}

/// Refuses a zone that waits for a member: it is not written before that member returns.
pub(super) fn check_waits(raid: &Raid, zone: ZoneIndex) -> Result<(), RebuildStop> {
    match raid.zone_records.record(zone).waits {
        0 => Ok(()),
        _ => Err(NoPart::Waits.into()),
    }
}

/// Refuses a zone that is being written and is stuck, unless its submitted blocks are known to be complete on the
/// other members. The next assembly finds the tail of a refused zone.
pub fn check_stuck(raid: &Raid, zone: ZoneIndex) -> Result<(), RebuildStop> {
    let Some((member, running)) = raid.zones.stuck(zone).zip(raid.zones.running(zone)) else {
        return Ok(());
    };
    match raid.layout.policy.uses_zrwa() || running.flow.borrow().is_ahead() {
        true => Err(NoPart::Stuck(member).into()),
        false => Ok(()),
    }
}

/// Marks the part of the member that a zone is stuck on as lost, if enough other members hold the zone now.
fn release_stuck(raid: &Raid, zone: ZoneIndex) {
    for member in each(raid.zones.stuck_members(zone)) {
        if raid.members.are_needed(raid.live(zone)) {
            return;
        }
        raid.zones.release(zone, member);
        failures::part_lost(raid, zone, member, Status::ZoneIsReadOnly.into(), "write");
    }
}

/// Logs that a member has its part of a zone again, and the holes in it.
pub(super) async fn rebuilt(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    work: &PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    durable::flush_caches(raid, 1 << member).await;
    check_stop(raid, member)?;
    holes::record_bad_blocks(raid, zone, member, &work.lost.bad_blocks).await?;
    // The loss of the part has to be logged before its rebuild.
    raid.membership.settled().await;
    check_stop(raid, member)?;
    // Another member may have gone out since the copy.
    check_waits(raid, zone)?;
    // Last, without a pause before the change: until then no power loss of the drive marks the part as lost.
    check_kept_power(raid, member, work)?;
    // A checkpoint from now on may replace the record, so it has to contain the change. Records that rely on the
    // member follow this record in every log.
    let sequence = raid.membership.next_sequence();
    let epoch = raid.zone_records.change(zone, |record| record.lost &= !(1 << member));
    durable::broadcast(raid, Record::Rebuilt { zone: zone.0, epoch, members: 1 << member }, sequence).await;
    check_active(raid, member)?;
    raid.zone_records.unreadable.remove_parts(member, Some(zone.0));
    failures::parts_back(raid, member, 1);
    release_stuck(raid, zone);
    Ok(())
}

/// Stops if a drive has lost power since the rebuild of its part began: blocks that were written may be gone.
pub(super) fn check_kept_power(
    raid: &Raid,
    member: usize,
    work: &PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    if power::drive_epoch(raid, member) == work.power_epoch { Ok(()) } else { Err(RebuildStop::Again) }
}

/// Submits a command to the member that is being rebuilt. An error of the zone makes the rebuild leave it out; any
/// other takes the member out.
pub async fn on_member(raid: &Raid, member: usize, command: Command) -> Result<(), RebuildStop> {
    check_active(raid, member)?;
    let seat = raid.members.seat(member);
    let result = raid.members.submit(member, command).await.result;
    result.map_err(|error| match is_of_zone(error) {
        true => {
            raid.members.note_wear(member, error);
            NoPart::Worn(error).into()
        }
        false => {
            failures::member_failed(raid, seat, error, "rebuild");
            NoPart::Failed(error).into()
        }
    })
}

/// Most blocks that are read from each member at a time.
pub(super) fn batch_blocks(raid: &Raid) -> u64 {
    let limits = (0..raid.members.count()).filter_map(|m| raid.members.device(m));
    let limits = limits.map(|d| d.geometry().max_transfer_blocks as u64);
    limits.fold(BATCH_BLOCKS, u64::min)
}

/// Decodes blocks `from..to` of a member's part, in rows of complete stripes, from all other members. Blocks that
/// cannot be decoded are zeros and are added to `lost`.
pub async fn other_rows(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    Range { start: from, end: to }: Range<u64>,
    lost: &mut RebuildLoss,
) -> Result<Buf, RebuildStop> {
    power::power_checked(raid).await;
    let (others, losses) = (check_others(raid, zone, member)?, raid.members.losses());
    let pending: Vec<_> = each(others)
        .map(|other| {
            let buf = raid.pool.borrow_mut().take(to - from).freeze();
            (raid.members.seat(other), io::read(raid, other, zone, from, buf))
        })
        .collect();
    let mut found = RebuildRows { from, parts: vec![Buf::default(); raid.members.count()] };
    let mut unreadable: BTreeMap<u64, u32> = BTreeMap::new();
    // An error other than that of an unreadable block: the data may still exist.
    let mut other_error = None;
    for (seat, completion) in pending {
        let done = completion.await;
        power::notices_power_loss(raid, 1 << seat.member);
        let (data, mut blocks) = match done.result {
            Ok(()) => (done.data, Vec::new()),
            Err(error) => {
                read::read_failed(raid, zone, seat, error);
                read_singly_from(raid, zone, seat, from..to, &mut other_error).await?
            }
        };
        found.parts[seat.member] = relocated::overlay(raid, zone, seat.member, from, data);
        blocks.extend(raid.zone_records.bad_blocks_among(zone, seat.member, from..to));
        for at in blocks.into_iter().filter(|at| !relocated::is_relocated(raid, zone, seat.member, *at)) {
            *unreadable.entry(at).or_default() |= 1 << seat.member;
        }
    }
    if raid.members.losses() != losses {
        // A part was lost meanwhile: blocks of it may have been read after they were written again.
        return Err(RebuildStop::Again);
    }
    let (layout, mut result) = (&raid.layout, raid.pool.borrow_mut().take(to - from));
    runtime::work((to - from) as u32 * COPY);
    let mut at = from;
    while at < to {
        let end = to.min((at / layout.chunk_blocks + 1) * layout.chunk_blocks);
        found.decode(layout, member, at..end, others, &mut result);
        at = end;
    }
    for (at, unreadable) in unreadable {
        if !found.decode(layout, member, at..at + 1, others & !unreadable, &mut result) {
            if let Some(error) = other_error {
                return Err(error.into());
            }
            result.block_mut(at - from).fill(0);
            lost.add(layout, member, at, each(unreadable));
        }
    }
    found.parts.into_iter().for_each(|part| raid.pool.borrow_mut().give(part));
    Ok(result.freeze())
}

/// The members (bits) that a part of `zone` is rebuilt from: all others that hold their parts, if these are enough.
fn check_others(raid: &Raid, zone: ZoneIndex, member: usize) -> Result<u32, RebuildStop> {
    let others = raid.live(zone) & !(1 << member);
    match raid.members.are_enough(others) && !raid.zones.is_cut(zone) {
        true => Ok(others),
        false => Err(NoPart::TooFewOthers.into()),
    }
}

/// Reads blocks of a member's part one by one, after a read of all has failed. Returns them, and those that are
/// unreadable; `other_error` is set to any other error.
async fn read_singly_from(
    raid: &Raid,
    zone: ZoneIndex,
    seat: Seat,
    blocks: Range<u64>,
    other_error: &mut Option<DeviceError>,
) -> Result<(Buf, Vec<u64>), RebuildStop> {
    let mut data = BufMut::zeroed((blocks.end - blocks.start) as usize * BLOCK);
    let mut unreadable = Vec::new();
    for (place, at) in (0..).zip(blocks) {
        if raid.live(zone) & (1 << seat.member) == 0 {
            // The other members may be enough.
            return Err(RebuildStop::Again);
        }
        let done = io::read(raid, seat.member, zone, at, Buf::zeroed(BLOCK)).await;
        read::note_read_of(raid, zone, seat.member, at..at + 1, done.result);
        match done.result {
            Ok(()) => data.block_mut(place).copy_from_slice(&done.data),
            Err(error) => {
                read::read_failed(raid, zone, seat, error);
                unreadable.push(at);
                if !is_unreadable(error) {
                    *other_error = Some(error);
                }
            }
        }
    }
    Ok((data.freeze(), unreadable))
}

/// Decodes a piece of the partial stripe with `decode`: as a whole or, if that fails, block by block. Blocks that
/// cannot be decoded are zeros and are added to `lost`.
pub async fn decode_singly(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    piece: ChunkRange,
    lost: &mut RebuildLoss,
    decode: impl AsyncFn(ChunkRange) -> Result<Buf, DeviceError>,
) -> Result<Buf, RebuildStop> {
    let losses = raid.members.losses();
    // A part was lost meanwhile: blocks of it may have been read after they were written again.
    let as_found = |found| if raid.members.losses() == losses { Ok(found) } else { Err(RebuildStop::Again) };
    if let Ok(found) = decode(piece).await {
        return as_found(found);
    }
    let layout = &raid.layout;
    let mut whole = BufMut::zeroed((piece.to - piece.from) as usize * BLOCK);
    for from in piece.from..piece.to {
        let single = ChunkRange { from, to: from + 1, ..piece };
        match decode(single).await {
            Ok(found) => whole.block_mut(from - piece.from).copy_from_slice(&found),
            Err(error) => {
                let mut others = Vec::new();
                for other in each(check_others(raid, zone, member)?) {
                    let read = read::read_member(raid, zone, other, single).await;
                    others.extend(read.is_err().then_some(other));
                }
                if !is_unreadable(error) || check_others(raid, zone, member).is_err() {
                    return Err(error.into());
                }
                lost.add(layout, member, piece.stripe * layout.chunk_blocks + from, others);
            }
        }
    }
    as_found(whole.freeze())
}
