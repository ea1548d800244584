//! Zone management: open, close, finish and reset.

use super::{
    media::after_power_on,
    state::{Outcome, SsdState, os_error},
};
use engine::{
    device::{Status, Zones},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::io;

pub(super) fn open(ssd: &mut SsdState, zones: Zones, zrwa: bool) -> Outcome {
    match zones {
        Zones::One(zone) => {
            ssd.table.check_open(zone, zrwa)?;
            let before = ssd.table.info(zone);
            let opened = ZoneInfo { state: ZoneState::ExplicitlyOpen, zrwa: zrwa || before.zrwa, ..before };
            ssd.media.set_zone(&after_power_on(opened)).map_err(os_error)?;
            Ok(ssd.table.open(zone, zrwa)?)
        }
        Zones::All if zrwa => Err(Status::InvalidField.into()),
        Zones::All => Ok(ssd.table.open_all()?),
    }
}

pub(super) fn close(ssd: &mut SsdState, zones: Zones) -> Outcome {
    match zones {
        Zones::One(zone) => ssd.table.close(zone)?,
        Zones::All => ssd.table.close_all(),
    }
    Ok(())
}

pub(super) fn finish(ssd: &mut SsdState, zones: Zones) -> Outcome {
    match zones {
        Zones::One(zone) => finish_zone(ssd, zone),
        Zones::All => (0..ssd.geometry.zones).map(ZoneIndex).try_for_each(|zone| {
            if ssd.table.info(zone).state.is_active() { finish_zone(ssd, zone) } else { Ok(()) }
        }),
    }
}

/// The media come first: if they fail the zone is unchanged.
fn finish_zone(ssd: &mut SsdState, zone: ZoneIndex) -> Outcome {
    let before = ssd.info(zone)?;
    if !is_worn(before.state) {
        store_finished(ssd, &before).map_err(os_error)?;
    }
    ssd.table.finish(zone)?;
    ssd.cache.finish(zone, before.wp_blocks);
    ssd.residue.remove(&zone.0);
    Ok(())
}

fn store_finished(ssd: &mut SsdState, before: &ZoneInfo) -> io::Result<()> {
    if ssd.finish_drops && before.zrwa {
        ssd.drop_zrwa(before)?;
    }
    for offset in ssd.residue.get(&before.zone.0).into_iter().flatten() {
        ssd.media.forget(Lba(ssd.geometry.start(before.zone).0 + offset))?;
    }
    let wp_blocks = before.capacity_blocks;
    ssd.media.set_zone(&ZoneInfo { state: ZoneState::Full, wp_blocks, zrwa: false, ..*before })
}

pub(super) fn reset(ssd: &mut SsdState, zones: Zones) -> Outcome {
    match zones {
        Zones::One(zone) => reset_zone(ssd, zone),
        Zones::All => (0..ssd.geometry.zones).map(ZoneIndex).try_for_each(|zone| {
            if ssd.table.info(zone).state.is_begun() { reset_zone(ssd, zone) } else { Ok(()) }
        }),
    }
}

/// As in a finish the media come first.
fn reset_zone(ssd: &mut SsdState, zone: ZoneIndex) -> Outcome {
    if !is_worn(ssd.info(zone)?.state) {
        ssd.media.reset(zone).map_err(os_error)?;
    }
    ssd.table.reset(zone)?;
    ssd.cache.forget(zone);
    ssd.residue.remove(&zone.0);
    ssd.heal(ssd.geometry.start(zone), ssd.geometry.zone_size_blocks)
}
