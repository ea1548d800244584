//! Repair: gives members the blocks back that their drives cannot read, or return wrong.
//!
//! A zone cannot be overwritten. So the content of such a block, decoded from the other members, is written to the
//! metadata log of its member, as a relocated block ([`crate::raid::zone::relocated`]), and is read from there until the
//! zone is reset or the part is rebuilt. That takes no redundancy away at any moment: until the record is in the log, the
//! block is decoded from the same members as before.
//!
//! Only blocks that do not change any more are repaired ([`final_blocks`]); others become due again when their zone goes
//! on. A block that cannot be decoded stays unreadable. So does one for which the log has no room: a quarter of the room
//! that checkpoints leave is for repaired blocks. The next scrub tries it again.

use crate::{
    buf::BLOCK,
    raid::{
        durable,
        error::RebuildStop,
        events::Event,
        geometry::each,
        maintain::fill,
        parts::Raid,
        seat::Seat,
        zone::{checksum, exclusion, read, relocated, stripe},
    },
    runtime::give_way,
    zone::{ZoneIndex, ZoneState},
};
use std::rc::Rc;

/// Most blocks of a member's log that a repaired block takes, with the header of its record.
const RECORD_BLOCKS: u64 = 2;
/// Most blocks of a member's log that repaired blocks take: they are kept in memory, too.
const MOST_LOG_BLOCKS: u64 = 4096;

/// Result of an attempt to repair a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RepairOutcome {
    /// The block is repaired, or its drive can read it.
    Done,
    /// The zone is in use or has just changed, or the block may still change.
    Later,
    /// It cannot be decoded, or its member has no room for it.
    Failed,
}

/// Task: repairs blocks that are due, until the array is closed.
pub async fn keep_repaired(raid: Rc<Raid>) {
    loop {
        let work = raid.zone_records.unreadable.work.wait();
        if raid.membership.is_closed() {
            return;
        }
        repair_due(&raid).await;
        work.await;
    }
}

/// Repairs all blocks that are due and can be repaired now.
async fn repair_due(raid: &Rc<Raid>) {
    let mut later = Vec::new();
    for (zone, at, members) in raid.zone_records.unreadable.take_due() {
        for member in each(members) {
            let outcome = match exclusion::can_hold(raid, zone) {
                true => {
                    let _hold = exclusion::hold(raid, zone);
                    try_repair(raid, zone, member, at).await
                }
                false => RepairOutcome::Later,
            };
            if outcome == RepairOutcome::Later {
                later.push((zone, at));
            }
        }
        give_way().await;
    }
    raid.zone_records.unreadable.defer(later);
}

/// Repairs the blocks of a zone that are known to be unreadable, also those of which an earlier repair has failed.
pub async fn repair_zone(raid: &Rc<Raid>, zone: ZoneIndex) {
    for (at, members) in raid.zone_records.unreadable.of_zone(zone) {
        for member in each(members) {
            let Some(_hold) = exclusion::held(raid, zone).await else { return };
            try_repair(raid, zone, member, at).await;
        }
        give_way().await;
    }
}

/// Repairs a block that is known to be unreadable, in a zone that the caller holds, unless its drive can read it: of a
/// read that failed, only one block may be bad.
async fn try_repair(raid: &Rc<Raid>, zone: ZoneIndex, member: usize, at: u64) -> RepairOutcome {
    if !raid.zone_records.unreadable.has(zone, member, at) || raid.has_failed(zone) {
        return RepairOutcome::Failed;
    }
    if at >= final_blocks(raid, zone, member) {
        let goes_on = raid.zones.running(zone).is_some_and(|running| !running.flow.borrow().is_over());
        return if goes_on { RepairOutcome::Later } else { RepairOutcome::Failed };
    }
    // It may have become unreadable before the zone was finished.
    if stripe::is_behind_end(raid, zone, member, at) {
        raid.zone_records.unreadable.remove(zone.0, member, at..at + 1);
        return RepairOutcome::Done;
    }
    let (read, is_wrong) = checksum::read_block(raid, member, zone, at).await;
    stripe::note_read_of(raid, zone, member, at..at + 1, read.result);
    match read.result.is_ok() {
        true => RepairOutcome::Done,
        false => repair(raid, zone, member, at, is_wrong).await,
    }
}

/// Repairs a block of a member's part of a zone, which the caller holds. `is_wrong` if the drive returned another block.
pub async fn repair(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    member: usize,
    at: u64,
    is_wrong: bool,
) -> RepairOutcome {
    let seat = raid.members.seat(member);
    if !holds_part(raid, zone, seat) || raid.has_failed(zone) || at >= final_blocks(raid, zone, member) {
        return RepairOutcome::Failed;
    }
    let taken: u64 = relocated::log_blocks_taken(raid, member).values().sum();
    // Blocks that a crash burns have to find room, too.
    if taken + RECORD_BLOCKS > MOST_LOG_BLOCKS.min(relocated::log_room(raid, member) / 4) {
        return RepairOutcome::Failed;
    }
    let epoch = raid.zone_records.epoch(zone);
    let data = match fill::decode_block(raid, zone, member, at).await {
        Ok(Some(data)) => data,
        Ok(None) => return RepairOutcome::Failed,
        Err(RebuildStop::Again) => return RepairOutcome::Later,
        Err(RebuildStop::Error(_)) => return RepairOutcome::Failed,
    };
    // The record must not be durable before the blocks of its stripe, which a recovery could have written anew.
    durable::barrier(raid, raid.live(zone)).await;
    if !holds_part(raid, zone, seat) || raid.has_failed(zone) {
        return RepairOutcome::Failed;
    }
    let logged = relocated::relocate(raid, zone, epoch, member, at, &data).await;
    durable::flush_caches(raid, 1 << member).await;
    if logged.result.is_err() || !holds_part(raid, zone, seat) {
        return RepairOutcome::Failed;
    }
    raid.zone_records.unreadable.remove(zone.0, member, at..at + 1);
    raid.members.count_repaired(member, is_wrong);
    // Each change of the membership logs the counts, and also their doubling.
    if raid.members.errors(member).repaired.is_power_of_two() {
        raid.membership.announce();
    }
    raid.events.note(Event::Repaired { member, zone: zone.0, at });
    RepairOutcome::Done
}

/// Whether the drive of a seat holds its part of a zone.
fn holds_part(raid: &Raid, zone: ZoneIndex, seat: Seat) -> bool {
    raid.members.is_seated(seat) && raid.live(zone) & (1 << seat.member) != 0
}

/// End of the blocks of a member's part of a zone that do not change before the zone is reset, not even in a recovery:
/// all if the zone is full, otherwise those of settled stripes that the member's write pointer has passed.
pub fn final_blocks(raid: &Raid, zone: ZoneIndex, member: usize) -> u64 {
    let layout = &raid.layout;
    match raid.zones.running(zone) {
        Some(running) => {
            let flow = running.flow.borrow();
            let settled = flow.claimed() / layout.data_chunks() * layout.chunk_blocks;
            let passed = flow.positions()[member] * layout.policy.position_blocks(layout);
            if flow.is_over() { 0 } else { settled.min(passed) }
        }
        None if raid.zones.state(zone) == ZoneState::Full => read::member_bytes(raid, zone) / BLOCK as u64,
        None => 0,
    }
}
