//! Restores a part of a zone: what rebuild, copy and the filling of bad blocks share.

use crate::{
    device::{Command, Status},
    format::record::Record,
    raid::{
        bad_blocks::RebuildLoss,
        durable,
        error::{NoPart, RebuildStop},
        failures,
        geometry::each,
        members::is_of_zone,
        parts::Raid,
        power,
        zone::bad_block_records,
    },
    zone::ZoneIndex,
};

/// Times that a rebuild or a copy of a zone that is being written catches up with the writes, before it pauses the zone
/// for the rest: it would never catch up with a host that writes faster.
pub const CATCH_UPS: usize = 8;

/// Blocks read from each member at a time.
const BATCH_BLOCKS: u64 = 256;

/// The rebuild of a member's part of a zone.
pub(super) struct PartRebuild<'a> {
    /// Called with the number of bytes that have been rebuilt.
    pub(super) report: &'a mut dyn FnMut(u64),
    /// Blocks that could not be decoded.
    pub(super) lost: RebuildLoss,
    /// Power epoch of the member's drive when the rebuild of its part began.
    pub(super) power_epoch: Option<u64>,
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

/// Logs that a member has its part of a zone again, and the bad blocks in it.
pub(super) async fn rebuilt(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    work: &PartRebuild<'_>,
) -> Result<(), RebuildStop> {
    durable::flush_caches(raid, 1 << member).await;
    check_stop(raid, member)?;
    bad_block_records::record_bad_blocks(raid, zone, member, &work.lost.bad_blocks).await?;
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
    // Blocks of this stripe that lacked redundancy may be decoded now.
    raid.zone_records.unreadable.retry(zone);
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
