//! Exclusion of zones: a rebuild, a repair, a reset and the clearing of a lost part do not overlap.

use crate::{
    device::{Command, Zones},
    raid::{failures, geometry::physical, members::is_of_zone, parts::Raid},
    zone::ZoneIndex,
};
use std::ops::Range;

/// Stops a rebuild in `zones`, and waits until it has left them.
pub async fn stop_rebuild(raid: &Raid, zones: Range<u32>) {
    loop {
        if !raid.background.stop(&zones) {
            return;
        }
        raid.zones.changed.wait().await;
    }
}

/// Whether no other operation works on a zone: no reset or finish, clearing of a lost part, or repair.
pub fn is_free(raid: &Raid, zone: ZoneIndex) -> bool {
    !raid.zones.is_busy(zone) && !raid.background.is_clearing(zone) && !raid.background.is_held(zone)
}

/// Whether a zone can be held now: it is free, no rebuild or copy is in it, and the array is not being closed.
pub fn can_hold(raid: &Raid, zone: ZoneIndex) -> bool {
    raid.may_clear.get()
        && !raid.background.takes_no_holds()
        && is_free(raid, zone)
        && !raid.background.is_in(zone)
}

/// Holds a zone as soon as that is possible; `None` if the array is closed or fails before.
pub async fn held(raid: &Raid, zone: ZoneIndex) -> Option<ZoneHold<'_>> {
    loop {
        let changed = raid.zones.changed.wait();
        if raid.background.takes_no_holds() || raid.membership.has_failed() {
            return None;
        }
        if can_hold(raid, zone) {
            return Some(hold(raid, zone));
        }
        changed.await;
    }
}

/// Waits until no zone is held, and none will be: the array is being closed.
pub async fn end_holds(raid: &Raid) {
    raid.background.take_no_holds();
    raid.zones.changed.open();
    while raid.background.is_any_held() {
        raid.zones.changed.wait().await;
    }
}

/// A zone that no rebuild enters, and that is neither reset nor finished, until this is dropped.
pub struct ZoneHold<'r>(&'r Raid, ZoneIndex);

impl Drop for ZoneHold<'_> {
    fn drop(&mut self) {
        self.0.background.release(self.1);
        self.0.zones.changed.open();
    }
}

/// Holds a zone that is free.
pub fn hold(raid: &Raid, zone: ZoneIndex) -> ZoneHold<'_> {
    assert!(can_hold(raid, zone), "zone {} is held while it is in use", zone.0);
    raid.background.hold(zone);
    ZoneHold(raid, zone)
}

/// Resets the remains of a zone on a member that lacks its part, if they may be reset now. No rebuild begins in the zone
/// until that ends: the drive may carry out the reset late.
pub async fn clear(raid: &Raid, zone: ZoneIndex, member: usize) {
    if !raid.may_clear.get() {
        return;
    }
    raid.background.begin_clearing(zone);
    let seat = raid.members.seat(member);
    let done = raid.members.submit(member, Command::Reset { zones: Zones::One(physical(zone)) }).await;
    // A drive that refuses the reset cannot write the zone any more, and the zone holds no resources. If a drive
    // does not answer, it may carry out the reset when the zone is written again.
    if let Err(error) = done.result
        && !is_of_zone(error)
    {
        failures::member_failed(raid, seat, error, "reset");
    }
    raid.background.end_clearing(zone);
    raid.zones.changed.open();
}
