//! Commands for the array: checked against the zone table, in the order of the calls, and handed on.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Done, Status, Zones},
    raid::{
        parts::Raid,
        zone::{drain::changes, manage, note, read, write},
    },
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{ops::Range, rc::Rc};

/// Executes a command of the host, or holds it while the array drains.
// Inlined into its callers, so that the command is moved once less: that is a fifth of the cost of a read.
#[inline]
pub fn submit_command(raid: &Rc<Raid>, command: Command) -> Completion {
    if raid.membership.has_failed() {
        return Completion::failed(Status::InternalError);
    }
    if raid.drain.has_begun() && changes(&command) {
        return raid.drain.hold(command, Buf::default(), &raid.slots);
    }
    dispatch(raid, command).unwrap_or_else(Completion::failed)
}

/// See [`crate::device::ZonedDevice::write_with_note`].
pub fn write_with_note(raid: &Rc<Raid>, lba: Lba, data: Buf, note: Buf) -> Completion {
    if raid.membership.has_failed() {
        return Completion::failed(Status::InternalError);
    }
    if note.is_empty() || note.len() > note::room(raid, lba, data.blocks()) {
        return Completion::failed(Status::InvalidField);
    }
    if raid.drain.has_begun() {
        return raid.drain.hold(Command::write(lba, data, true), note, &raid.slots);
    }
    write_at(raid, lba, data, (true, note)).unwrap_or_else(Completion::failed)
}

fn write_at(raid: &Rc<Raid>, lba: Lba, data: Buf, how: (bool, Buf)) -> Result<Completion, DeviceError> {
    let (zone, _) = raid.geometry.locate(lba);
    check_written(raid, zone)?;
    let effect = raid.zones.table_mut().write(lba, whole_blocks(&data)?)?;
    Ok(write::write(raid, effect.zone, effect.offset_blocks, data, how))
}

/// Checks that a zone can be written.
fn check_written(raid: &Raid, zone: ZoneIndex) -> Result<(), DeviceError> {
    match zone.0 < raid.geometry.zones && raid.has_failed(zone) {
        true => Err(Status::ZoneIsReadOnly.into()),
        false => check_busy(raid, zone),
    }
}

/// Checks that a zone is not being reset or finished.
fn check_busy(raid: &Raid, zone: ZoneIndex) -> Result<(), DeviceError> {
    if raid.zones.is_busy(zone) { Err(Status::InvalidZoneStateTransition.into()) } else { Ok(()) }
}

/// Number of blocks of a buffer.
fn whole_blocks(data: &Buf) -> Result<u64, DeviceError> {
    if data.len().is_multiple_of(BLOCK) { Ok(data.blocks()) } else { Err(Status::InvalidField.into()) }
}

fn dispatch(raid: &Rc<Raid>, command: Command) -> Result<Completion, DeviceError> {
    Ok(match command {
        Command::Read { lba, data, .. } => {
            raid.zones.table().check_read(lba, whole_blocks(&data)?)?;
            let (zone, at) = raid.geometry.locate(lba);
            read::read(raid, zone, at, data)
        }
        Command::Write { lba, data, fua, .. } => write_at(raid, lba, data, (fua, Buf::default()))?,
        Command::Append { zone, data, fua, .. } => {
            check_written(raid, zone)?;
            let effect = raid.zones.table_mut().append(zone, whole_blocks(&data)?)?;
            write::write(raid, effect.zone, effect.offset_blocks, data, (fua, Buf::default()))
        }
        Command::Flush => manage::run_async(raid, manage::flush(raid.clone())),
        Command::Open { zrwa: true, .. } | Command::FlushZrwa { .. } => {
            return Err(Status::InvalidField.into());
        }
        Command::Open { zones, zrwa: false } => {
            let mut table = raid.zones.table_mut();
            match zones {
                Zones::One(zone) => check_busy(raid, zone).and_then(|()| Ok(table.open(zone, false)?))?,
                Zones::All => table.open_all()?,
            }
            Completion::ready(Done::ok())
        }
        Command::Close { zones } => {
            let mut table = raid.zones.table_mut();
            match zones {
                Zones::One(zone) => check_busy(raid, zone).and_then(|()| Ok(table.close(zone)?))?,
                Zones::All => table.close_all(),
            }
            Completion::ready(Done::ok())
        }
        Command::Finish { zones } => start_finish(raid, zones)?,
        Command::Reset { zones } => start_reset(raid, zones)?,
        Command::Report { first, count } => {
            let mut zones = raid.zones.table().report(first, count)?;
            for info in zones.iter_mut().filter(|info| raid.has_failed(info.zone)) {
                // The zone table keeps the real state (the zone still takes active resources of the drives).
                if info.state != ZoneState::Offline {
                    info.state = ZoneState::ReadOnly;
                }
            }
            Completion::ready(Done { zones, ..Done::ok() })
        }
    })
}

fn start_reset(raid: &Rc<Raid>, zones: Zones) -> Result<Completion, DeviceError> {
    let ranges = match zones {
        // Only the reset of a single zone discards an offline one.
        Zones::One(zone) => std::iter::once(zone.0..zone.0.saturating_add(1)).collect(),
        Zones::All => ranges_online(raid),
    };
    raid.zones.mark_busy(&ranges)?;
    let array = raid.clone();
    Ok(manage::run_async(raid, async move {
        let mut result = Ok(());
        for range in ranges {
            result = result.and(manage::reset(array.clone(), range).await);
        }
        result
    }))
}

/// The ranges of all zones that are not offline.
fn ranges_online(raid: &Raid) -> Vec<Range<u32>> {
    let (mut ranges, mut from) = (Vec::new(), 0);
    for zone in raid.zones.offline().keys().copied().chain([raid.geometry.zones]) {
        if from < zone {
            ranges.push(from..zone);
        }
        from = zone + 1;
    }
    ranges
}

fn start_finish(raid: &Rc<Raid>, zones: Zones) -> Result<Completion, DeviceError> {
    if let Zones::One(zone) = zones
        && raid.zones.is_offline(zone)
    {
        return Err(Status::InvalidZoneStateTransition.into());
    }
    let chosen: Vec<u32> = match zones {
        Zones::One(zone) if zone.0 >= raid.geometry.zones => return Err(Status::LbaOutOfRange.into()),
        // A full zone needs no finish, unless its last writes are in flight.
        Zones::One(zone) if raid.zones.state(zone) == ZoneState::Full && !raid.zones.is_running(zone) => {
            Vec::new()
        }
        Zones::One(zone) => vec![zone.0],
        Zones::All => {
            let is_active = |zone: &ZoneIndex| raid.zones.state(*zone).is_active();
            let chosen = raid.zones.all().filter(|zone| is_active(zone) && !raid.has_failed(*zone));
            chosen.map(|zone| zone.0).collect()
        }
    };
    raid.zones.mark_busy(&chosen.iter().map(|zone| *zone..zone + 1).collect::<Vec<_>>())?;
    let array = raid.clone();
    Ok(manage::run_async(raid, async move {
        let mut result = Ok(());
        for zone in chosen {
            result = result.and(manage::finish(array.clone(), ZoneIndex(zone)).await);
        }
        result
    }))
}
