//! Repair: gives members the blocks back that their drives cannot read, or return wrong.
//!
//! A zone cannot be overwritten. So the content of such a block, decoded from the other members, is written to the
//! metadata log of its member, as a relocated block ([`crate::raid::zone::relocated`]), and is read from there until the
//! zone is reset or the part is rebuilt. That takes no redundancy away at any moment: until the record is in the log, the
//! block is decoded from the same members as before.
//!
//! Only blocks that do not change any more are repaired ([`final_blocks`]); others become due again when their zone goes on.
//! A block that cannot be decoded stays unreadable. So does one for which the log has no room: half of the room that
//! checkpoints leave is for relocated blocks.

use crate::{
    buf::{BLOCK, Buf},
    raid::{
        durable,
        events::Event,
        geometry::each,
        maintain::fill,
        parts::Raid,
        seat::Seat,
        zone::{
            checksum::{self, Expected},
            exclusion, read, relocated, stripe,
        },
    },
    runtime::give_way,
    zone::{ZoneIndex, ZoneState},
};
use std::rc::Rc;

/// Most blocks of a member's log that a repaired block takes, with the header of its record.
const RECORD_BLOCKS: u64 = 2;

/// Task: repairs blocks that are due, until the array is closed.
pub async fn keep_repaired(raid: Rc<Raid>) {
    loop {
        let unreadable = &raid.zone_records.unreadable;
        let work = unreadable.work.wait();
        if raid.membership.is_closed() {
            return;
        }
        repair_due(&raid).await;
        unreadable.repaired.open();
        work.await;
    }
}

/// Waits until the blocks that are due now have been repaired, or could not be.
pub async fn ended(raid: &Raid) {
    let unreadable = &raid.zone_records.unreadable;
    if unreadable.is_any_due() && !raid.membership.is_closed() {
        let repaired = unreadable.repaired.wait();
        unreadable.work.open();
        repaired.await;
    }
}

/// Repairs all blocks that are due and can be repaired now.
async fn repair_due(raid: &Rc<Raid>) {
    let mut later = Vec::new();
    for (zone, at, members) in raid.zone_records.unreadable.take_due() {
        for member in each(members) {
            if !raid.zone_records.unreadable.has(zone, member, at) {
                continue;
            }
            let is_free = exclusion::is_free(raid, zone) && !raid.background.is_in(zone);
            if !raid.may_clear.get() || !is_free || raid.membership.is_closed() {
                later.push((zone, at));
                continue;
            }
            let hold = exclusion::hold(raid, zone);
            // Only one block of a read that failed may be bad.
            let data = Buf::zeroed(BLOCK);
            let read = checksum::read(raid, member, zone, at, Expected::Row, data).await;
            stripe::note_read_of(raid, zone, member, at..at + 1, read.result);
            if read.result.is_err() && !repair(raid, zone, member, at).await && !is_over(raid, zone, at) {
                later.push((zone, at));
            }
            drop(hold);
        }
        give_way().await;
    }
    raid.zone_records.unreadable.defer(later);
}

/// Repairs a block of a member's part of a zone, which the caller holds. Returns whether it did.
pub async fn repair(raid: &Rc<Raid>, zone: ZoneIndex, member: usize, at: u64) -> bool {
    let seat = raid.members.seat(member);
    if !holds_part(raid, zone, seat) || raid.has_failed(zone) || at >= final_blocks(raid, zone, member) {
        return false;
    }
    let taken: u64 = relocated::log_blocks_taken(raid, member).values().sum();
    if taken + RECORD_BLOCKS > relocated::log_room(raid, member) / 2 {
        return false;
    }
    let epoch = raid.zone_records.epoch(zone);
    let Ok(Some(data)) = fill::decode_block(raid, zone, member, at).await else { return false };
    // The record must not be durable before the blocks of its stripe, which a recovery could have written anew.
    durable::barrier(raid, raid.live(zone)).await;
    if !holds_part(raid, zone, seat) || raid.has_failed(zone) {
        return false;
    }
    let logged = relocated::relocate(raid, zone, epoch, member, at, &data).await;
    durable::flush_caches(raid, 1 << member).await;
    if logged.result.is_err() || !holds_part(raid, zone, seat) {
        return false;
    }
    raid.zone_records.unreadable.remove(zone.0, member, at..at + 1);
    raid.members.count_repaired(member);
    raid.events.note(Event::Repaired { member, zone: zone.0, at });
    true
}

/// Whether the drive of a seat holds its part of a zone.
fn holds_part(raid: &Raid, zone: ZoneIndex, seat: Seat) -> bool {
    raid.members.is_seated(seat) && raid.live(zone) & (1 << seat.member) != 0
}

/// Whether it is useless to try the repair of a block again before something changes: the zone does not go on to the
/// block, or is full.
fn is_over(raid: &Raid, zone: ZoneIndex, at: u64) -> bool {
    let goes_on = raid.zones.running(zone).is_some_and(|running| !running.flow.borrow().is_over());
    !goes_on || each(raid.live(zone)).all(|member| at < final_blocks(raid, zone, member))
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
