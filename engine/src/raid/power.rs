//! Power loss and resets of member drives while the array runs.
//!
//! A drive may return from a power cycle without completed writes: those of its volatile cache, or the contents of its
//! ZRWAs. It answers reads of these blocks all the same. So every read, barrier and round of settling compares the
//! power epoch of the members' drives ([`crate::device::ZonedDevice::power_epoch`]) with the epoch for which their
//! parts of zones are known to be present. A member with another epoch is *suspect*: the membership is pending, so no
//! write is acknowledged, and reads and the opening of zones wait, until the member's zones have been reported. A part
//! of an open zone that has lost blocks is marked as lost, decoded and rebuilt, like after any other failure of that
//! part.
//!
//! Where more parts have lost blocks than parity covers, the zone fails. These parts are not marked as lost: the blocks
//! below their write pointers are still read, those above are read errors, and the next assembly judges the zone as
//! after a power cut.

use crate::{
    device::{Command, DeviceError, LASTING_EPOCH},
    raid::{
        PowerMark, failures,
        geometry::{each, physical},
        io,
        parts::Raid,
        seat::Seat,
        zone::flow::Zone,
    },
    zone::{ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::BTreeMap;

/// The operation in messages and events.
const WHAT: &str = "power loss";

/// Zone report of a suspect member, and the power epoch of its drive before that.
struct SuspectReport {
    seat: Seat,
    power_epoch: Option<u64>,
    zones: Vec<ZoneInfo>,
}

/// Compares the power epochs of `members` (bits); true if one of them is suspect, so that data read from it is
/// valid only after [`power_checked`].
pub fn notices_power_loss(raid: &Raid, members: u32) -> bool {
    let lost = raid.members.lost_power(members & !raid.members.suspects());
    if lost != 0 {
        raid.members.suspect(lost);
        raid.membership.announce();
    }
    raid.members.suspects() & members != 0
}

/// See [`crate::array::Array::check_power`].
pub async fn look_for_lost_zrwas(raid: &Raid) {
    notices_power_loss(raid, raid.members.active());
    for member in each(raid.members.active()).filter(|_| raid.layout.policy.uses_zrwa()) {
        for zone in raid.zones.all_running().iter().map(|zone| zone.index) {
            // The zone may have been opened since the drive reported it: the check requests another report.
            if io::part(raid, zone, member).await.is_some_and(|info| lacks_zrwa(raid, zone, member, &info)) {
                raid.members.suspect(1 << member);
                raid.membership.announce();
                break;
            }
        }
    }
    raid.membership.settled().await;
}

/// Whether a member's part of an open zone has no ZRWA any more.
fn lacks_zrwa(raid: &Raid, zone: ZoneIndex, member: usize, info: &ZoneInfo) -> bool {
    let is_held = raid.live(zone) & (1 << member) != 0 && raid.zones.is_uncut(zone, member, u64::MAX);
    let running = raid.zones.running(zone).filter(|_| is_held && !raid.zone_records.record(zone).resetting);
    let is_open = |zone: &Zone| {
        let flow = zone.flow.borrow();
        !flow.is_unwritten()
            && (!flow.is_over() || raid.zones.is_read_only(zone.index))
            && flow.without_zrwa() & (1 << member) == 0
    };
    running.is_some_and(|zone| is_open(&zone)) && !info.zrwa && info.state != ZoneState::Full
}

/// Waits until no member is suspect, or the array has failed.
pub async fn power_checked(raid: &Raid) {
    while raid.members.suspects() != 0 && !raid.membership.has_failed() {
        raid.membership.changed().await;
    }
}

/// See [`crate::array::Array::power_marks`]. A new epoch shows only when the logs name the parts that were lost
/// with the old one: a process that takes over before has to detect the loss itself.
pub fn power_marks(raid: &Raid) -> Vec<PowerMark> {
    each(raid.members.active()).filter_map(|member| power_mark(raid, member)).collect()
}

/// Members (bits) with a volatile cache that have lost power since these marks were noted: writes that were answered
/// until then may be lost there. A drive that gives no evidence has kept power.
pub fn cut_off_since(raid: &Raid, marks: &[PowerMark]) -> u32 {
    let is_cut_off = |member: &usize| {
        let volatile = raid.members.device(*member).is_some_and(|device| device.geometry().volatile_cache);
        let mark = power_mark(raid, *member).filter(|_| volatile);
        let before = mark.and_then(|mark| marks.iter().find(|then| then.drive == mark.drive));
        mark.zip(before).is_some_and(|(now, then)| now.epoch != then.epoch)
    };
    each(raid.members.active()).filter(is_cut_off).fold(0, |cut_off, member| cut_off | 1 << member)
}

fn power_mark(raid: &Raid, member: usize) -> Option<PowerMark> {
    let superblock = raid.membership.superblock();
    let drive = PowerMark::drive_of(&superblock.members.get(member)?.uuid);
    Some(PowerMark { drive, epoch: raid.members.settled_epoch(member)? & LASTING_EPOCH })
}

/// The power epoch of a member's drive now.
pub fn drive_epoch(raid: &Raid, member: usize) -> Option<u64> {
    raid.members.device(member).and_then(|device| device.power_epoch())
}

/// Requests zone reports from suspect members, and marks the parts that have lost blocks. Called by the task that
/// logs changes of the membership.
pub async fn check_power(raid: &Raid) {
    let suspects = raid.members.suspects();
    // Read before the reports: if a drive loses power again meanwhile, the epochs differ, and it is checked again.
    // Only zones that hold data now can have lost some until these epochs.
    let seats: Vec<_> =
        each(suspects).map(|member| (raid.members.seat(member), drive_epoch(raid, member))).collect();
    let written = written_zones(raid);
    let mut checked = Vec::new();
    for (seat, epoch) in seats {
        let (member, count) = (seat.member, raid.geometry.zones);
        let report = Command::Report { first: physical(ZoneIndex(0)), count };
        let done = raid.members.submit(member, report).await;
        let result = match done.result {
            Ok(()) if done.zones.len() >= count as usize => Ok(done.zones),
            Ok(()) => Err(DeviceError::PowerLost),
            Err(error) => Err(error),
        };
        match result {
            Ok(zones) if raid.members.is_seated(seat) => {
                checked.push(SuspectReport { seat, power_epoch: epoch, zones });
            }
            Ok(_) => {}
            // Its parts are unknown.
            Err(error) => failures::member_failed(raid, seat, error, WHAT),
        }
    }
    // All suspects together: parity may cover the losses of one member and not those of all.
    for zone in raid.zones.all() {
        let lost = lost_parts(raid, zone, &checked, &written).await;
        let mask = lost.iter().fold(0, |mask, (member, _)| mask | 1 << member);
        if lost.is_empty() {
            continue;
        }
        let enough = raid.members.are_enough(raid.live(zone) & !mask);
        for (member, info) in lost {
            match enough {
                true => failures::part_lost(raid, zone, member, DeviceError::PowerLost, WHAT),
                false => raid.zones.cut_part(zone, member, info.wp_blocks),
            }
        }
        raid.zones.wake_one(zone);
    }
    for member in each(suspects) {
        match checked.iter().find(|report| report.seat.member == member) {
            Some(report) if raid.members.is_seated(report.seat) => {
                raid.members.end_suspicion(member, report.power_epoch);
            }
            // The member is out, or has another drive.
            _ => raid.members.end_suspicion(member, drive_epoch(raid, member)),
        }
    }
}

/// Zones with data, which may not be safe, and their epochs.
fn written_zones(raid: &Raid) -> BTreeMap<ZoneIndex, u64> {
    let is_written = |zone: &ZoneIndex| match raid.zones.running(*zone) {
        Some(running) => !running.flow.borrow().is_unwritten(),
        None => raid.zones.state(*zone) == ZoneState::Full,
    };
    let zones = raid.zones.all().filter(is_written);
    zones.map(|zone| (zone, raid.zone_records.epoch(zone))).collect()
}

/// The parts of a zone, by member, that have lost blocks according to reports; `written` are the zones with data at
/// the time of the loss. As the zone may have been opened after its report, another report has to confirm a loss.
async fn lost_parts(
    raid: &Raid,
    zone: ZoneIndex,
    reports: &[SuspectReport],
    written: &BTreeMap<ZoneIndex, u64>,
) -> Vec<(usize, ZoneInfo)> {
    loop {
        let (epoch, mut lost) = (raid.zone_records.epoch(zone), Vec::new());
        let was_written = written.get(&zone) == Some(&epoch);
        for SuspectReport { seat, zones, .. } in reports {
            let info = &zones[zone.0 as usize];
            if !lacks_part(raid, zone, seat.member, info, was_written) {
                continue;
            }
            let now = io::part(raid, zone, seat.member).await.unwrap_or(*info);
            if lacks_part(raid, zone, seat.member, &now, was_written) {
                lost.push((*seat, now));
            }
        }
        if raid.zone_records.epoch(zone) == epoch {
            lost.retain(|(seat, _)| raid.members.is_seated(*seat));
            return lost.into_iter().map(|(seat, info)| (seat.member, info)).collect();
        }
    }
}

/// Whether a member has lost blocks of its part of a zone, for which its drive reports `info` after a power loss;
/// `was_written` tells whether the zone held data then.
fn lacks_part(raid: &Raid, zone: ZoneIndex, member: usize, info: &ZoneInfo, was_written: bool) -> bool {
    if raid.live(zone) & (1 << member) == 0 || raid.zone_records.record(zone).resetting {
        return false;
    }
    let Some(running) = raid.zones.running(zone) else {
        // A full zone with its last blocks in a volatile cache.
        let begun = info.state.is_active() || info.state == ZoneState::Empty;
        return was_written
            && begun
            && raid.zones.state(zone) == ZoneState::Full
            && !raid.zones.is_busy(zone);
    };
    let flow = running.flow.borrow();
    if flow.is_unwritten() {
        return false;
    }
    if flow.is_over() && !raid.zones.is_read_only(zone) {
        // A finish in between fills the zone and hides the missing blocks.
        return was_written;
    }
    let volatile = raid.members.device(member).is_some_and(|device| device.geometry().volatile_cache);
    was_written && volatile && !flow.is_all_safe()
        || raid.layout.policy.uses_zrwa() && lacks_zrwa(raid, zone, member, info)
}
