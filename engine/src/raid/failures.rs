//! Failures of members and of their parts of zones: a member goes out, a part counts as lost, the array fails.

use crate::{
    device::{DeviceError, Status},
    format::record::{Checkpoint, Lacks},
    raid::{
        error::{ArrayError, Note},
        events::Event,
        geometry::each,
        journal::{
            log::{LogOwner, MetaLog},
            logged::LiveRecords,
        },
        members::is_of_zone,
        parts::Raid,
        seat::Seat,
        zone::set::UnclearPart,
    },
    zone::ZoneIndex,
};
use std::collections::{BTreeMap, BTreeSet};

impl LogOwner for Raid {
    fn seat(&self, member: usize) -> Seat {
        self.members.seat(member)
    }

    fn is_current(&self, member: usize, log: &MetaLog) -> bool {
        self.members.is_current(member, log)
    }

    fn log_failed(&self, seat: Seat, error: DeviceError) {
        member_failed(self, seat, error, "metadata write");
    }

    fn claimed(&self) {
        fence(self);
    }

    fn contents(&self, generation: u64, live: &LiveRecords) -> (Checkpoint, u64) {
        let records = self.zone_records.records();
        // Zones in doubt. The tail of every other zone has been decided, so that no missing record of it matters.
        let in_doubt = (0..).zip(records.iter()).filter(|(zone, record)| {
            (record.waits != 0 || self.zones.is_offline(ZoneIndex(*zone)))
                && (live.lacks_records || live.incomplete.get(zone) == Some(&record.epoch))
        });
        let incomplete: BTreeSet<u32> = in_doubt.map(|(zone, _)| zone).collect();
        let (newest, sequence) = (records.iter().map(|zone| zone.epoch).max(), self.membership.sequence());
        assert!(newest <= Some(sequence), "a checkpoint with number {sequence} and zone epoch {newest:?}");
        let mut tails: Vec<_> = self.zone_records.generations().records().collect();
        tails.extend(live.tails.values());
        let parity = live.parity.records().into_iter().chain(live.relocated.records());
        let checkpoint = Checkpoint {
            generation,
            incomplete,
            moved: BTreeMap::new(),
            superblock: self.membership.superblock().clone(),
            zones: records.clone(),
            burned: self.zone_records.burned().clone(),
            bad_blocks: self.zone_records.bad_blocks().all(),
            parity: parity.collect(),
            tails,
        };
        (checkpoint, sequence)
    }
}

/// Records why a member is out.
pub fn say_out(raid: &Raid, member: usize, why: Note) {
    raid.events.note(Event::Out { member, why: why.clone() });
    raid.members.say(member, why);
}

/// Takes a member out after an error of its drive. Nothing that relies on this is acknowledged before it has been
/// logged.
pub fn member_failed(raid: &Raid, seat: Seat, error: DeviceError, what: &'static str) {
    if !raid.members.is_seated(seat) {
        return;
    }
    raid.members.count_write_error(seat.member);
    say_out(raid, seat.member, Note::Failed { what, error });
    take_out(raid, seat.member);
}

/// Handles an error of a command for `zone`: if it concerns this zone only, the member loses its part of the zone;
/// otherwise the member goes out.
pub fn part_failed(raid: &Raid, zone: ZoneIndex, seat: Seat, error: DeviceError, what: &'static str) {
    let member = seat.member;
    if !is_of_zone(error) {
        return member_failed(raid, seat, error, what);
    }
    if raid.live(zone) & (1 << member) == 0 || raid.members.seat(member) != seat {
        return;
    }
    raid.members.note_wear(member, error);
    if raid.members.are_needed(raid.live(zone)) && keeps_data(raid, zone, member, error) {
        // Parity does not cover the loss of this part too. The part can still be read, and may be needed to rebuild
        // the others: the zone is stuck (not writable) until the member can be spared.
        if error != Status::UnrecoveredReadError.into() {
            raid.members.count_write_error(member);
            raid.members.say(member, Note::PartLost { zone: zone.0, what, error });
        }
        raid.zones.stick(zone, member);
        return raid.zones.wake_one(zone);
    }
    if raid.members.are_needed(raid.live(zone)) && may_keep_data(raid, zone, error) {
        let epoch = raid.zone_records.epoch(zone);
        raid.zones.doubt_part(UnclearPart { zone, epoch, seat, error, what });
        raid.members.note_loss();
        raid.membership.announce();
        return raid.zones.wake_one(zone);
    }
    lose_part(raid, zone, seat, error, what);
}

/// Marks a part as lost, or takes its member out if the member has lost many parts.
pub fn lose_part(raid: &Raid, zone: ZoneIndex, seat: Seat, error: DeviceError, what: &'static str) {
    let member = seat.member;
    let most = MOST_PARTS_LOST.max(raid.geometry.zones / 8);
    if raid.members.parts_lost(member) >= most && others_are_whole(raid, member) {
        return member_failed(raid, seat, error, what);
    }
    raid.members.count_write_error(member);
    raid.members.say(member, Note::PartLost { zone: zone.0, what, error });
    part_lost(raid, zone, member, error, what);
}

/// Whether a member's part of a zone still holds its data after a command has failed with `error`. False for write
/// errors while the zone is not running, since an assembly has then not carried out its verdict yet.
fn keeps_data(raid: &Raid, zone: ZoneIndex, member: usize, error: DeviceError) -> bool {
    let keeps = [Status::ZoneIsReadOnly, Status::WriteFault].map(DeviceError::from).contains(&error);
    // Later errors on a part that is stuck already follow from the first one.
    let is_stuck = raid.zones.stuck_members(zone) & (1 << member) != 0;
    let follows = is_stuck && error != Status::ZoneIsOffline.into();
    error == Status::UnrecoveredReadError.into() || (keeps || follows) && raid.zones.is_running(zone)
}

/// Whether a part may still hold its data after a command has failed with this ambiguous `error`: an explicit
/// flush, for example, returns Invalid Field both for a read-only zone and for one that has lost its ZRWA.
fn may_keep_data(raid: &Raid, zone: ZoneIndex, error: DeviceError) -> bool {
    let is_clear = [Status::ZoneIsReadOnly, Status::WriteFault, Status::ZoneIsOffline];
    !is_clear.map(DeviceError::from).contains(&error) && raid.zones.is_running(zone)
}

/// Waits until it is known which parts of a zone can be read, or the array has failed.
pub async fn parts_checked(raid: &Raid, zone: ZoneIndex) {
    while raid.zones.is_unclear(zone) && !raid.membership.has_failed() {
        raid.membership.changed().await;
    }
}

/// Marks a member's part of a zone as lost after an error, and has that logged.
pub fn part_lost(raid: &Raid, zone: ZoneIndex, member: usize, error: DeviceError, what: &'static str) {
    raid.events.note(Event::PartLost { member, zone: zone.0, what, error });
    raid.members.count_part_lost(member);
    let epoch = raid.zone_records.change(zone, |record| record.lost |= 1 << member);
    raid.members.note_loss();
    raid.membership.announce_lack(Lacks { zone: zone.0, epoch, members: 1 << member });
    raid.zones.wake_one(zone);
}

/// Counts parts of zones that a member has regained.
pub fn parts_back(raid: &Raid, member: usize, parts: u32) {
    raid.members.count_parts_back(member, parts);
    if !raid.zone_records.records().iter().any(|zone| zone.lost & (1 << member) != 0) {
        raid.members.say(member, Note::Nothing);
    }
}

/// Whether the array can do without a member: enough other members are active, and every zone has enough other
/// parts.
pub fn can_spare(raid: &Raid, member: usize) -> bool {
    let others = raid.members.active() & !(1 << member);
    raid.members.are_enough(others)
        && raid.zone_records.records().iter().all(|zone| raid.members.are_enough(others & !zone.lost))
}

/// Whether all other members are active, lack no part of any zone, and are enough.
fn others_are_whole(raid: &Raid, member: usize) -> bool {
    let others = raid.members.active() & !(1 << member);
    let lacking = raid.zone_records.records().iter().any(|zone| zone.lost & others != 0);
    others.count_ones() as usize + 1 == raid.members.count() && raid.members.are_enough(others) && !lacking
}

/// Takes a member out, and has that logged.
pub fn take_out(raid: &Raid, member: usize) {
    raid.members.take_out(member);
    raid.zone_records.unreadable.remove_parts(member, None);
    wait_for(raid, member);
    // While a drive is taking over, its predecessor can become the member again.
    if raid.drain.handing_over() != Some(member) {
        fail_without_enough(raid);
    }
    raid.membership.announce();
    raid.zones.changed.open();
    raid.zones.wake();
}

/// Marks the array as failed if more members are out than parity covers.
pub fn fail_without_enough(raid: &Raid) {
    if !raid.members.are_enough(raid.members.active()) {
        if !raid.membership.has_failed() {
            raid.events.note(Event::ArrayFailed);
        }
        raid.membership.fail();
    }
}

/// The error of an array that has failed: fenced, or too many members out.
pub fn too_many_failed(raid: &Raid) -> ArrayError {
    match raid.membership.is_fenced() {
        true => ArrayError::Fenced,
        false => ArrayError::Failed(raid.members.notes(u32::MAX)),
    }
}

/// Takes all members out, since another host has assembled the array. Outstanding commands fail.
pub fn fence(raid: &Raid) {
    if raid.membership.fence() {
        raid.events.note(Event::Fenced);
        for member in each(raid.members.active()) {
            say_out(raid, member, Note::Fenced);
            raid.members.take_out(member);
        }
        raid.membership.announce();
        raid.zones.changed.open();
        raid.zones.wake();
    }
}

/// Marks the zones that lack too many parts without `member`, which has just gone out, as waiting for it: they are
/// not written any more, so its parts are still valid when it returns.
fn wait_for(raid: &Raid, member: usize) {
    let (bit, others, floor) = (1 << member, raid.members.active(), raid.membership.superblock().floor);
    if !raid.members.are_enough(others) {
        return;
    }
    raid.zone_records.change_all(|zone, record| {
        let enough = raid.members.are_enough(others & !record.lost);
        if enough || record.lost & bit != 0 || record.resetting || raid.zones.is_empty(zone) {
            return;
        }
        record.wait_for(bit, floor);
        raid.membership.note_waits();
    });
}

/// Parts of zones that a drive may lose one by one before the drive as a whole is taken out: this number, or an eighth
/// of its zones if that is more.
const MOST_PARTS_LOST: u32 = 16;

/// Fails if the array has failed: too many members are out, or another host has claimed it.
pub fn check_members(raid: &Raid) -> Result<(), ArrayError> {
    if !raid.membership.has_failed() {
        return Ok(());
    }
    Err(too_many_failed(raid))
}
