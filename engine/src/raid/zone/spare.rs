//! Moves parts of worn zones to spare zones of their drive.

use crate::{
    adapt::spare::ReservedSpare,
    device::{Command, DeviceError, ZonedDevice, Zones},
    raid::{events::Event, geometry::physical, io, journal::log::MetaLog, parts::Raid},
    zone::{ZoneIndex, is_worn},
};
use std::rc::Rc;

/// A spare zone for a member's part of a zone, if its own zone is worn and a spare one is left.
pub async fn find_spare(raid: &Raid, zone: ZoneIndex, member: usize) -> Option<(Rc<MetaLog>, ReservedSpare)> {
    let log = raid.members.log(member)?;
    let worn = io::part(raid, zone, member).await.is_some_and(|info| is_worn(info.state));
    let spare = if worn { log.device.find_free().await } else { None };
    spare.map(|spare| (log, spare))
}

/// Moves a member's part of a zone, which is lost and not in use, to a spare zone if its own zone is worn. The
/// member logs the new place before anything is written there: the content of a place that is not in the log would
/// be lost silently.
pub async fn move_part(raid: &Raid, zone: ZoneIndex, member: usize) -> Result<(), DeviceError> {
    let seat = raid.members.seat(member);
    if let Some((log, spare)) = find_spare(raid, zone, member).await {
        // Some of the small zones that are used as one may not be worn: they would hold active resources.
        log.device.submit(Command::Reset { zones: Zones::One(physical(zone)) }).await;
        log.device.place(physical(zone), spare.zone);
        raid.events.note(Event::Moved { member, zone: zone.0, place: spare.zone });
    }
    // A rebuild whose future was dropped may have left a place that is not logged.
    if let Some(log) = raid.members.log(member).filter(|log| !log.device.is_kept()) {
        log.renew().await.result?;
        let report = Command::Report { first: physical(ZoneIndex(0)), count: raid.geometry.zones };
        let zones = log.device.submit(report).await.zones;
        if raid.members.is_seated(seat) {
            raid.members.set_worn(member, zones.iter().any(|info| is_worn(info.state)));
        }
    }
    Ok(())
}
