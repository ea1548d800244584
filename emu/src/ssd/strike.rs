//! Faults that take effect: planned ones, and those that a user has injected.

use super::{
    ailments::AilmentFile,
    cache,
    fault::Fault,
    manage,
    media::after_power_on,
    state::{Outcome, SsdState},
};
use engine::{
    buf::BLOCK,
    device::{DeviceError, Zones},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::io;

/// Starts injected faults that are new, and ends those that were undone. Media do not know them, so they have the
/// state in which a zone comes back.
pub(super) fn look_what_ails(ssd: &mut SsdState) -> io::Result<()> {
    let Some(now) = ssd.ailing.as_mut().map_or(Ok(None), AilmentFile::look)? else { return Ok(()) };
    let before = std::mem::replace(&mut ssd.faults.ailments, now);
    for zone in before.worn.into_keys().map(ZoneIndex).filter(|zone| zone.0 < ssd.geometry.zones) {
        ssd.table.load(&after_power_on(ssd.media.zone(zone)));
    }
    for (zone, state) in &ssd.faults.ailments.worn {
        let zone = ZoneIndex(*zone);
        match state {
            _ if zone.0 >= ssd.geometry.zones => (),
            ZoneState::Offline => ssd.table.set_offline(zone),
            _ => ssd.table.set_read_only(zone),
        }
        ssd.cache.forget(zone);
    }
    Ok(())
}

pub(super) fn strike(ssd: &mut SsdState, fault: Fault) -> io::Result<()> {
    match fault {
        // An offline zone stays so for good.
        Fault::ReadOnly(zone) | Fault::Offline(zone)
            if ssd.info(zone).is_ok_and(|info| info.state != ZoneState::Offline) =>
        {
            match fault {
                Fault::ReadOnly(_) => ssd.table.set_read_only(zone),
                _ => ssd.table.set_offline(zone),
            }
            ssd.cache.forget(zone);
            ssd.store(zone)
        }
        Fault::Corrupt { lba, bit } => corrupt(ssd, lba, bit as usize),
        // A zone that cannot be reset or finished is unchanged.
        Fault::Reset(zone) => unless_refused(manage::reset(ssd, Zones::One(zone))),
        Fault::Finish(zone) => unless_refused(manage::finish(ssd, Zones::One(zone))),
        _ => {
            ssd.faults.note(fault);
            Ok(())
        }
    }
}

/// Flips a stored bit, if the block is written.
fn corrupt(ssd: &mut SsdState, lba: Lba, bit: usize) -> io::Result<()> {
    if !ssd.has_block(lba) {
        return Ok(());
    }
    let (zone, _) = ssd.geometry.locate(lba);
    let Some(mut bytes) = cache::read_block(&mut *ssd.media, &ssd.geometry, lba)? else {
        return Ok(());
    };
    if let Some(byte) = bytes.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
    ssd.media.write(lba, &bytes[..BLOCK], &bytes[BLOCK..])?;
    // Compressing media place blocks again that were moved to the buffer for that.
    let info = ssd.media.zone(zone);
    ssd.media.set_zone(&info)
}

/// The media error of a command, if any; refusals are ignored.
fn unless_refused(result: Outcome) -> io::Result<()> {
    match result {
        Err(DeviceError::Os(errno)) => Err(io::Error::from_raw_os_error(errno)),
        _ => Ok(()),
    }
}
