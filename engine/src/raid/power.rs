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
        PowerMark, Tails,
        geometry::{each, physical},
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

impl Raid {
    /// Compares the power epochs of `members` (bits); true if one of them is suspect, so that data read from it is
    /// valid only after [`Raid::power_checked`].
    pub fn notices_power_loss(&self, members: u32) -> bool {
        let lost = self.members.lost_power(members & !self.members.suspects());
        if lost != 0 {
            self.members.suspect(lost);
            self.membership.announce();
        }
        self.members.suspects() & members != 0
    }

    /// See [`crate::array::Array::check_power`].
    pub async fn look_for_lost_zrwas(&self) {
        self.notices_power_loss(self.members.active());
        for member in each(self.members.active()).filter(|_| self.layout.policy.uses_zrwa()) {
            for zone in self.zones.all_running().iter().map(|zone| zone.index) {
                // The zone may have been opened since the drive reported it: the check requests another report.
                if self.part(zone, member).await.is_some_and(|info| self.lacks_zrwa(zone, member, &info)) {
                    self.members.suspect(1 << member);
                    self.membership.announce();
                    break;
                }
            }
        }
        self.membership.settled().await;
    }

    /// Whether a member's part of an open zone has no ZRWA any more.
    fn lacks_zrwa(&self, zone: ZoneIndex, member: usize, info: &ZoneInfo) -> bool {
        let is_held = self.live(zone) & (1 << member) != 0 && self.zones.is_uncut(zone, member, u64::MAX);
        let running =
            self.zones.running(zone).filter(|_| is_held && !self.zone_records.record(zone).resetting);
        let is_open = |zone: &Zone| {
            let flow = zone.flow.borrow();
            !flow.is_unwritten()
                && (!flow.is_over() || self.zones.is_read_only(zone.index))
                && flow.without_zrwa() & (1 << member) == 0
        };
        running.is_some_and(|zone| is_open(&zone)) && !info.zrwa && info.state != ZoneState::Full
    }

    /// Waits until no member is suspect, or the array has failed.
    pub async fn power_checked(&self) {
        while self.members.suspects() != 0 && !self.membership.has_failed() {
            self.membership.changed().await;
        }
    }

    /// See [`crate::array::Array::power_marks`]. A new epoch shows only when the logs name the parts that were lost
    /// with the old one: a process that takes over before has to detect the loss itself.
    pub fn power_marks(&self) -> Vec<PowerMark> {
        each(self.members.active()).filter_map(|member| self.power_mark(member)).collect()
    }

    /// Members (bits) with a volatile cache that have lost power since a process left `tails`: writes that this process
    /// had acknowledged may be lost there. A drive that gives no evidence has kept power.
    pub fn cut_off_since(&self, tails: &Tails) -> u32 {
        let is_cut_off = |member: &usize| {
            let volatile =
                self.members.device(*member).is_some_and(|device| device.geometry().volatile_cache);
            let mark = self.power_mark(*member).filter(|_| volatile);
            let before = mark.and_then(|mark| tails.power.iter().find(|then| then.drive == mark.drive));
            mark.zip(before).is_some_and(|(now, then)| now.epoch != then.epoch)
        };
        each(self.members.active()).filter(is_cut_off).fold(0, |cut_off, member| cut_off | 1 << member)
    }

    fn power_mark(&self, member: usize) -> Option<PowerMark> {
        let superblock = self.membership.superblock();
        let drive = PowerMark::drive_of(&superblock.members.get(member)?.uuid);
        Some(PowerMark { drive, epoch: self.members.settled_epoch(member)? & LASTING_EPOCH })
    }

    /// The power epoch of a member's drive now.
    pub fn drive_epoch(&self, member: usize) -> Option<u64> {
        self.members.device(member).and_then(|device| device.power_epoch())
    }

    /// Requests zone reports from suspect members, and marks the parts that have lost blocks. Called by the task that
    /// logs changes of the membership.
    pub async fn check_power(&self) {
        let suspects = self.members.suspects();
        // Read before the reports: if a drive loses power again meanwhile, the epochs differ, and it is checked again.
        // Only zones that hold data now can have lost some until these epochs.
        let seats: Vec<_> =
            each(suspects).map(|member| (self.members.seat(member), self.drive_epoch(member))).collect();
        let written = self.written_zones();
        let mut checked = Vec::new();
        for (seat, epoch) in seats {
            let (member, count) = (seat.member, self.geometry.zones);
            let report = Command::Report { first: physical(ZoneIndex(0)), count };
            let done = self.members.submit(member, report).await;
            let result = match done.result {
                Ok(()) if done.zones.len() >= count as usize => Ok(done.zones),
                Ok(()) => Err(DeviceError::PowerLost),
                Err(error) => Err(error),
            };
            match result {
                Ok(zones) if self.members.is_seated(seat) => {
                    checked.push(SuspectReport { seat, power_epoch: epoch, zones });
                }
                Ok(_) => {}
                // Its parts are unknown.
                Err(error) => self.member_failed(seat, error, WHAT),
            }
        }
        // All suspects together: parity may cover the losses of one member and not those of all.
        for zone in self.zones.all() {
            let lost = self.lost_parts(zone, &checked, &written).await;
            let mask = lost.iter().fold(0, |mask, (member, _)| mask | 1 << member);
            if lost.is_empty() {
                continue;
            }
            let enough = self.members.are_enough(self.live(zone) & !mask);
            for (member, info) in lost {
                match enough {
                    true => self.part_lost(zone, member, DeviceError::PowerLost, WHAT),
                    false => self.zones.cut_part(zone, member, info.wp_blocks),
                }
            }
            self.zones.wake_one(zone);
        }
        for member in each(suspects) {
            match checked.iter().find(|report| report.seat.member == member) {
                Some(report) if self.members.is_seated(report.seat) => {
                    self.members.end_suspicion(member, report.power_epoch);
                }
                // The member is out, or has another drive.
                _ => self.members.end_suspicion(member, self.drive_epoch(member)),
            }
        }
    }

    /// Zones with data, which may not be safe, and their epochs.
    fn written_zones(&self) -> BTreeMap<ZoneIndex, u64> {
        let is_written = |zone: &ZoneIndex| match self.zones.running(*zone) {
            Some(running) => !running.flow.borrow().is_unwritten(),
            None => self.zones.state(*zone) == ZoneState::Full,
        };
        let zones = self.zones.all().filter(is_written);
        zones.map(|zone| (zone, self.zone_records.epoch(zone))).collect()
    }

    /// The parts of a zone, by member, that have lost blocks according to reports; `written` are the zones with data at
    /// the time of the loss. As the zone may have been opened after its report, another report has to confirm a loss.
    async fn lost_parts(
        &self,
        zone: ZoneIndex,
        reports: &[SuspectReport],
        written: &BTreeMap<ZoneIndex, u64>,
    ) -> Vec<(usize, ZoneInfo)> {
        loop {
            let (epoch, mut lost) = (self.zone_records.epoch(zone), Vec::new());
            let was_written = written.get(&zone) == Some(&epoch);
            for SuspectReport { seat, zones, .. } in reports {
                let info = &zones[zone.0 as usize];
                if !self.lacks_part(zone, seat.member, info, was_written) {
                    continue;
                }
                let now = self.part(zone, seat.member).await.unwrap_or(*info);
                if self.lacks_part(zone, seat.member, &now, was_written) {
                    lost.push((*seat, now));
                }
            }
            if self.zone_records.epoch(zone) == epoch {
                lost.retain(|(seat, _)| self.members.is_seated(*seat));
                return lost.into_iter().map(|(seat, info)| (seat.member, info)).collect();
            }
        }
    }

    /// Whether a member has lost blocks of its part of a zone, for which its drive reports `info` after a power loss;
    /// `was_written` tells whether the zone held data then.
    fn lacks_part(&self, zone: ZoneIndex, member: usize, info: &ZoneInfo, was_written: bool) -> bool {
        if self.live(zone) & (1 << member) == 0 || self.zone_records.record(zone).resetting {
            return false;
        }
        let Some(running) = self.zones.running(zone) else {
            // A full zone with its last blocks in a volatile cache.
            let begun = info.state.is_active() || info.state == ZoneState::Empty;
            return was_written
                && begun
                && self.zones.state(zone) == ZoneState::Full
                && !self.zones.is_busy(zone);
        };
        let flow = running.flow.borrow();
        if flow.is_unwritten() {
            return false;
        }
        if flow.is_over() && !self.zones.is_read_only(zone) {
            // A finish in between fills the zone and hides the missing blocks.
            return was_written;
        }
        let volatile = self.members.device(member).is_some_and(|device| device.geometry().volatile_cache);
        was_written && volatile && !flow.is_all_safe()
            || self.layout.policy.uses_zrwa() && self.lacks_zrwa(zone, member, info)
    }
}
