//! Power cuts and orderly shutdowns.
//!
//! In a cut the commands in flight take effect whole, in part or not at all; the volatile cache and the ZRWAs may be
//! lost; and when power returns open zones are closed.
//!
//! An orderly shutdown happens without commands in flight and loses no data, but zones with the write pointer at the
//! start become empty.

use super::{
    cache::{Loss, read_block},
    execute,
    fault::Fault,
    media::after_power_on,
    state::SsdState,
};
use crate::rng::Rng;
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Zones},
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::{collections::BTreeSet, io};

/// Atomic write unit (sector) of a drive with torn blocks, in bytes, and sectors per block.
const SECTOR: usize = 512;
const SECTORS: usize = BLOCK / SECTOR;

/// Losses of a power cut, apart from commands in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Unflushed writes may be lost. No effect on a drive without a volatile cache.
    pub cache_lost: bool,
    /// The data above the write pointers in ZRWAs is lost, and so are the ZRWAs themselves: their zones come back
    /// closed without one, or empty.
    pub zrwa_lost: bool,
}

/// Cuts the power and restores it. `in_flight` are the submitted commands that have not completed, in the order of
/// their submission: each takes effect whole, in part or not at all, in any order, by `rng`.
///
/// # Errors
/// I/O errors of the media; the drive must not be used any more then.
pub(super) fn power_cut(
    ssd: &mut SsdState,
    in_flight: &[Command],
    rng: &mut Rng,
    cut: Cut,
) -> io::Result<()> {
    ssd.power_epoch += 1;
    cut_short(ssd, in_flight, rng)?;
    if cut.cache_lost {
        ssd.cache.lose(&mut *ssd.media, &ssd.geometry, &mut ssd.table, None, Loss::Drawn(rng))?;
    }
    ssd.cache.flush();
    ssd.media.cut();
    for zone in 0..ssd.geometry.zones {
        let info = ssd.table.info(ZoneIndex(zone));
        if cut.zrwa_lost && info.zrwa {
            lose_zrwa(ssd, &info)?;
        } else if info.state.is_active() {
            ssd.table.load(&after_power_on(info));
        }
    }
    Ok(())
}

/// Makes a zone read-only, and loses the data in its ZRWA with that.
///
/// # Errors
/// Those of the media; the drive must not be used any more then.
pub(super) fn wear_out_with_zrwa(ssd: &mut SsdState, zone: ZoneIndex) -> io::Result<()> {
    let info = ssd.table.info(zone);
    if info.zrwa {
        lose_zrwa(ssd, &info)?;
    }
    ssd.faults.after(0, Fault::ReadOnly(zone));
    Ok(())
}

/// Undoes unflushed writes of a zone ahead of a power cut: all of them, or a part, in way number `way`.
///
/// # Errors
/// I/O errors of the media; the drive must not be used any more then.
pub(super) fn lose_unflushed(ssd: &mut SsdState, zone: ZoneIndex, way: Option<usize>) -> io::Result<()> {
    let loss = way.map_or(Loss::All, Loss::Way);
    ssd.cache.lose(&mut *ssd.media, &ssd.geometry, &mut ssd.table, Some(zone), loss)
}

/// Shuts the drive down in good order and starts it again. Open zones are closed; but one with the write pointer at
/// its start becomes empty and loses its ZRWA, as in QEMU. The contents of that ZRWA remain readable until the zone
/// has another one and the write pointer passes them.
///
/// # Errors
/// I/O errors of the media; the drive must not be used any more then.
pub(super) fn shut_down(ssd: &mut SsdState) -> io::Result<()> {
    ssd.power_epoch += 1;
    ssd.cache.flush();
    for zone in (0..ssd.geometry.zones).map(ZoneIndex) {
        let info = ssd.table.info(zone);
        if !info.state.is_active() {
            continue;
        }
        let begun = info.wp_blocks == 0;
        if begun && info.zrwa {
            leave_residue(ssd, zone)?;
        }
        ssd.table.load(&after_power_on(ZoneInfo { zrwa: info.zrwa && !begun, ..info }));
        ssd.store(zone)?;
    }
    Ok(())
}

fn leave_residue(ssd: &mut SsdState, zone: ZoneIndex) -> io::Result<()> {
    let size = ssd.geometry.zrwa.map_or(0, |zrwa| zrwa.size_blocks).min(ssd.geometry.zone_capacity_blocks);
    let start = ssd.geometry.start(zone).0;
    let mut residue = BTreeSet::new();
    for offset in 0..size {
        if ssd.media.is_written(Lba(start + offset))? {
            residue.insert(offset);
        }
    }
    ssd.residue.insert(zone.0, residue);
    Ok(())
}

fn lose_zrwa(ssd: &mut SsdState, info: &ZoneInfo) -> io::Result<()> {
    ssd.drop_zrwa(info)?;
    ssd.table.load(&after_power_on(ZoneInfo { zrwa: false, ..*info }));
    ssd.store(info.zone)
}

fn cut_short(ssd: &mut SsdState, in_flight: &[Command], rng: &mut Rng) -> io::Result<()> {
    let mut commands: Vec<&Command> = in_flight.iter().collect();
    if rng.chance(1, 2) {
        rng.shuffle(&mut commands);
    }
    // Zones with a torn write: no later write can land behind it.
    let mut torn = BTreeSet::new();
    for command in commands {
        let zone = match command {
            Command::Write { lba, .. } => ssd.geometry.locate(*lba).0,
            Command::Append { zone, .. } => *zone,
            _ => ZoneIndex(u32::MAX),
        };
        if torn.contains(&zone) {
            continue;
        }
        // A command that the rules refuse now has no effect.
        match (rng.below(3), command) {
            (0, _) => (),
            (1, Command::Write { .. }) if has_zrwa(ssd, zone) => tear_zrwa_write(ssd, command, rng)?,
            (1, Command::Write { .. } | Command::Append { .. }) if ssd.sectors_tear => {
                tear_sequential_write(ssd, command, zone, rng)?;
                torn.insert(zone);
            }
            (1, Command::Write { data, .. } | Command::Append { data, .. }) if data.blocks() > 1 => {
                let prefix = 1 + rng.below(data.blocks() - 1);
                if execute::apply(ssd, part(command, 0, prefix)).result.is_ok() {
                    torn.insert(zone);
                }
            }
            (1, Command::Finish { zones: Zones::All } | Command::Reset { zones: Zones::All }) => {
                manage_some(ssd, command, rng);
            }
            (_, Command::Read { .. } | Command::Report { .. }) => (),
            (_, command) => _ = execute::apply(ssd, command.clone()),
        }
    }
    Ok(())
}

fn has_zrwa(ssd: &SsdState, zone: ZoneIndex) -> bool {
    zone.0 < ssd.geometry.zones && ssd.table.info(zone).zrwa
}

/// Writes a random subset of the blocks of a write to a zone with a ZRWA. The write pointer passes no block of the
/// write that is unwritten.
fn tear_zrwa_write(ssd: &mut SsdState, command: &Command, rng: &mut Rng) -> io::Result<()> {
    let (Command::Write { lba, data, oob, .. }, Some(zrwa)) = (command, ssd.geometry.zrwa) else {
        return Ok(());
    };
    let (zone, offset) = ssd.geometry.locate(*lba);
    let before = ssd.table.info(zone);
    if ssd.table.check_write(*lba, data.blocks()).is_err() {
        return Ok(());
    }
    let mut chosen: Vec<bool> = (0..data.blocks()).map(|_| rng.chance(1, 2)).collect();
    let end = offset + chosen.iter().rposition(|c| *c).map_or(0, |last| last as u64 + 1);
    let beyond = end.saturating_sub(before.wp_blocks + zrwa.size_blocks);
    let wp = before.wp_blocks + beyond.next_multiple_of(zrwa.granularity_blocks);
    for (block, chosen) in chosen.iter_mut().enumerate() {
        *chosen |= offset + (block as u64) < wp;
    }
    for block in (0..data.blocks()).filter(|block| chosen[*block as usize]) {
        if execute::apply(ssd, part(command, block, block + 1)).result.is_err() {
            // A write fault is planned, or there is no room.
            return Ok(());
        }
    }
    let reach = (wp + zrwa.size_blocks).min(before.capacity_blocks);
    for block in (0..data.blocks()).filter(|block| !chosen[*block as usize] && offset + *block < reach) {
        if ssd.sectors_tear && rng.chance(1, 2) {
            let new: Vec<bool> = (0..SECTORS).map(|_| rng.chance(1, 2)).collect();
            if ssd.geometry.volatile_cache {
                // It is lost with the cache, or if the write pointer goes back so far that the ZRWA ends before it.
                let info = ssd.table.info(zone);
                if let Ok(effect) = ssd.table.check_write(Lba(lba.0 + block), 1) {
                    ssd.cache.before(&mut *ssd.media, &ssd.geometry, &info, &effect, 1)?;
                }
            }
            tear_block(ssd, Lba(lba.0 + block), block, data, oob, &new, rng)?;
        }
    }
    Ok(())
}

/// Writes the first blocks of a write to a sequential zone, and the first sectors of the next one. The latter are
/// at the write pointer, which counts blocks and so is reported as below them.
fn tear_sequential_write(
    ssd: &mut SsdState,
    command: &Command,
    zone: ZoneIndex,
    rng: &mut Rng,
) -> io::Result<()> {
    let (Command::Write { data, oob, .. } | Command::Append { data, oob, .. }) = command else {
        return Ok(());
    };
    if zone.0 >= ssd.geometry.zones {
        return Ok(());
    }
    // The rules are checked for the whole write.
    let before = ssd.table.info(zone);
    let whole = match command {
        Command::Write { lba, .. } => ssd.table.check_write(*lba, data.blocks()),
        _ => ssd.table.check_append(zone, data.blocks()),
    };
    if whole.is_err() {
        return Ok(());
    }
    let landed = rng.below(data.blocks());
    if landed > 0 && execute::apply(ssd, part(command, 0, landed)).result.is_err() {
        return Ok(());
    }
    if before.wp_blocks + landed == 0 {
        // A zone with some written sectors is not empty, which a write pointer in blocks cannot express.
        return Ok(());
    }
    let first = rng.below(SECTORS as u64) as usize;
    let new: Vec<bool> = (0..SECTORS).map(|sector| sector < first).collect();
    let lba = Lba(ssd.geometry.start(zone).0 + before.wp_blocks + landed);
    tear_block(ssd, lba, landed, data, oob, &new, rng)
}

/// Writes some sectors of a block of a write, and maybe its metadata; does nothing without room.
fn tear_block(
    ssd: &mut SsdState,
    lba: Lba,
    block: u64,
    data: &Buf,
    oob: &Buf,
    new: &[bool],
    rng: &mut Rng,
) -> io::Result<()> {
    if !ssd.media.has_room(lba, 1) {
        return Ok(());
    }
    let size = ssd.geometry.oob_bytes as usize;
    let mut bytes = read_block(&mut *ssd.media, &ssd.geometry, lba)?.unwrap_or(vec![0; BLOCK + size]);
    let data = &data[block as usize * BLOCK..][..BLOCK];
    for sector in (0..SECTORS).filter(|sector| new[*sector]) {
        let at = sector * SECTOR..(sector + 1) * SECTOR;
        bytes[at.clone()].copy_from_slice(&data[at]);
    }
    if rng.chance(1, 2) {
        match oob.get(block as usize * size..(block as usize + 1) * size) {
            Some(oob) => bytes[BLOCK..].copy_from_slice(oob),
            None => bytes[BLOCK..].fill(0),
        }
    }
    ssd.media.write(lba, &bytes[..BLOCK], &bytes[BLOCK..])
}

/// Executes a command for all zones on some of them.
fn manage_some(ssd: &mut SsdState, command: &Command, rng: &mut Rng) {
    for zone in (0..ssd.geometry.zones).map(ZoneIndex) {
        if rng.chance(1, 2) {
            let zones = Zones::One(zone);
            match command {
                Command::Finish { .. } if ssd.table.info(zone).state.is_active() => {
                    _ = execute::apply(ssd, Command::Finish { zones });
                }
                Command::Reset { .. } => _ = execute::apply(ssd, Command::Reset { zones }),
                _ => (),
            }
        }
    }
}

/// The blocks `from` to `to` of a write or an append.
fn part(command: &Command, from: u64, to: u64) -> Command {
    let mut command = command.clone();
    match &mut command {
        Command::Write { lba, data, oob, fua } => {
            let size = oob.len() / data.blocks().max(1) as usize;
            *lba = Lba(lba.0 + from);
            *oob = oob.slice(from as usize * size..to as usize * size);
            *data = data.slice_blocks(from..to);
            *fua = false;
        }
        Command::Append { data, oob, fua, .. } => {
            let size = oob.len() / data.blocks().max(1) as usize;
            *oob = oob.slice(from as usize * size..to as usize * size);
            *data = data.slice_blocks(from..to);
            *fua = false;
        }
        _ => (),
    }
    command
}
