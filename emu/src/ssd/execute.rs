//! Execution of commands, one after the other, by the rules of [`engine::table::ZoneTable`].

use super::{
    fault::Replacement,
    manage,
    state::{Outcome, SsdState, os_error},
    strike,
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Done, Status},
    table::WriteEffect,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::io;

/// Executes a command.
pub(super) fn execute(ssd: &mut SsdState, command: Command) -> Done {
    if let Err(error) = strike::look_what_ails(ssd) {
        return refuse(command, os_error(error));
    }
    for fault in ssd.faults.next_command() {
        if let Err(error) = strike::strike(ssd, fault) {
            return refuse(command, os_error(error));
        }
    }
    if ssd.faults.is_gone() {
        return refuse(command, DeviceError::Gone);
    }
    match ssd.faults.take_failure(&command) {
        None => apply(ssd, command),
        Some((kind, false)) => refuse(command, kind.status().into()),
        Some((kind, true)) => Done { result: Err(kind.status().into()), ..apply(ssd, command) },
    }
}

pub(super) fn apply(ssd: &mut SsdState, command: Command) -> Done {
    match command {
        Command::Read { lba, mut data, mut oob } => {
            let result = read(ssd, lba, &mut data, &mut oob);
            Done { result, data, oob, ..Done::ok() }
        }
        Command::Write { lba, data, oob, fua } => {
            let result = write(ssd, Target::At(lba), &data, &oob, fua).map(|_| ());
            Done { result, data, oob, ..Done::ok() }
        }
        Command::Append { zone, data, oob, fua } => {
            let landed = write(ssd, Target::Append(zone), &data, &oob, fua);
            let lba = landed.unwrap_or_default();
            Done { result: landed.map(|_| ()), data, oob, lba, ..Done::ok() }
        }
        Command::Flush => {
            ssd.cache.flush();
            Done::ok()
        }
        Command::Report { first, count } => match ssd.table.report(first, count) {
            Ok(zones) => Done { zones, ..Done::ok() },
            Err(status) => Done::error(status.into()),
        },
        Command::Open { zones, zrwa } => answer(manage::open(ssd, zones, zrwa)),
        Command::Close { zones } => answer(manage::close(ssd, zones)),
        Command::Finish { zones } => answer(manage::finish(ssd, zones)),
        Command::Reset { zones } => answer(manage::reset(ssd, zones)),
        Command::FlushZrwa { last } => answer(flush_zrwa(ssd, last)),
    }
}

fn read(ssd: &mut SsdState, lba: Lba, data: &mut Buf, oob: &mut Buf) -> Outcome {
    let blocks = ssd.geometry.check_buffers(data, oob, ssd.geometry.max_transfer_blocks)?;
    ssd.table.check_read(lba, blocks)?;
    let (Some(data), Some(oob)) = (data.as_mut(), oob.as_mut()) else {
        return Err(Status::InvalidField.into());
    };
    if ssd.faults.is_unreadable(lba, blocks) {
        return Err(Status::UnrecoveredReadError.into());
    }
    // There are no blocks between the capacity of a zone and the next zone.
    let (_, offset) = ssd.geometry.locate(lba);
    let stored = ssd.geometry.zone_capacity_blocks.saturating_sub(offset).min(blocks) as usize;
    for block in (0..stored as u64).filter(|_| ssd.unwritten_fails) {
        if !ssd.media.is_written(Lba(lba.0 + block)).map_err(os_error)? {
            return Err(Status::DeallocatedBlock.into());
        }
    }
    let (data, nothing) = data.split_at_mut(stored * BLOCK);
    nothing.fill(0);
    let oob_stored = oob.len() / blocks as usize * stored;
    let (oob, nothing) = oob.split_at_mut(oob_stored);
    nothing.fill(0);
    ssd.media.read(lba, data, oob).map_err(os_error)?;
    for (at, replacement) in ssd.faults.replaced(lba, stored as u64) {
        let (place, bytes) = ((at.0 - lba.0) as usize, oob.len() / stored.max(1));
        let (data, oob) = (&mut data[place * BLOCK..][..BLOCK], &mut oob[place * bytes..][..bytes]);
        match replacement {
            Replacement::Unwritten => {
                data.fill(0);
                oob.fill(0);
            }
            // The file of faults may name a block that the drive does not have.
            Replacement::Block(from) if !ssd.has_block(from) => (),
            Replacement::Block(from) => ssd.media.read(from, data, oob).map_err(os_error)?,
            Replacement::Stale(bytes) if ssd.media.is_written(at).map_err(os_error)? => {
                data.iter_mut().chain(oob).zip(bytes).for_each(|(byte, old)| *byte = *old);
            }
            Replacement::Stale(_) => (),
        }
    }
    for flipped in ssd.faults.flipped(lba, stored as u64) {
        if ssd.media.is_written(flipped).map_err(os_error)? {
            data[(flipped.0 - lba.0) as usize * BLOCK] ^= 1;
        }
    }
    Ok(())
}

fn write(ssd: &mut SsdState, target: Target, data: &Buf, oob: &Buf, fua: bool) -> Result<Lba, DeviceError> {
    let (zone, most) = match target {
        Target::At(lba) => (ssd.geometry.locate(lba).0, ssd.geometry.max_transfer_blocks),
        Target::Append(zone) => (zone, ssd.geometry.max_append_blocks),
    };
    let blocks = ssd.geometry.check_buffers(data, oob, most)?;
    let effect = match target {
        Target::At(lba) => ssd.table.check_write(lba, blocks),
        Target::Append(zone) => ssd.table.check_append(zone, blocks),
    }?;
    if ssd.faults.take_write_fault(zone) {
        return Err(Status::WriteFault.into());
    }
    let lba = Lba(ssd.geometry.start(zone).0 + effect.offset_blocks);
    carry_out(ssd, &effect, lba, data, oob)?;
    ssd.heal(lba, blocks)?;
    if fua {
        ssd.cache.write_through(&effect, blocks, ssd.geometry.zrwa);
    }
    Ok(lba)
}

fn flush_zrwa(ssd: &mut SsdState, last: Lba) -> Outcome {
    let effect = ssd.table.check_flush_zrwa(last)?;
    carry_out(ssd, &effect, last, &Buf::default(), &Buf::default())
}

/// Executes a write or an explicit ZRWA flush. A drive refuses a write that it might not be able to hold.
fn carry_out(ssd: &mut SsdState, effect: &WriteEffect, lba: Lba, data: &Buf, oob: &Buf) -> Outcome {
    if !ssd.media.has_room(lba, data.blocks().max(1)) {
        return Err(Status::CapacityExceeded.into());
    }
    store_write(ssd, effect, lba, data, oob).map_err(os_error)?;
    ssd.table.apply(effect);
    Ok(())
}

/// Stores data before state, and both before the zone table changes: if that fails all zones are unchanged.
fn store_write(ssd: &mut SsdState, effect: &WriteEffect, lba: Lba, data: &Buf, oob: &Buf) -> io::Result<()> {
    let before = ssd.table.info(effect.zone);
    if ssd.geometry.volatile_cache {
        ssd.cache.before(&mut *ssd.media, &ssd.geometry, &before, effect, data.blocks())?;
    }
    if !data.is_empty() {
        ssd.media.write(lba, data, oob)?;
    }
    pass_residue(ssd, effect, data.blocks())?;
    if effect.wp_blocks == effect.wp_before_blocks {
        return Ok(());
    }
    let (state, zrwa) = match effect.filled {
        true => (ZoneState::Full, false),
        false => (ZoneState::Closed, before.zrwa),
    };
    ssd.media.set_zone(&ZoneInfo { state, wp_blocks: effect.wp_blocks, zrwa, ..before })
}

/// Blocks that the write pointer passes and that were not written since the zone got its ZRWA are lost.
fn pass_residue(ssd: &mut SsdState, effect: &WriteEffect, blocks: u64) -> io::Result<()> {
    let Some(residue) = ssd.residue.get_mut(&effect.zone.0) else { return Ok(()) };
    let written = effect.offset_blocks..effect.offset_blocks + blocks;
    residue.retain(|offset| !written.contains(offset));
    let start = ssd.geometry.start(effect.zone).0;
    while let Some(offset) = residue.first().copied().filter(|offset| *offset < effect.wp_blocks) {
        residue.pop_first();
        ssd.media.forget(Lba(start + offset))?;
    }
    Ok(())
}

/// Destination of a write.
#[derive(Clone, Copy)]
enum Target {
    At(Lba),
    Append(ZoneIndex),
}

fn answer(result: Outcome) -> Done {
    Done { result, ..Done::ok() }
}

/// A failure that returns the buffers.
fn refuse(command: Command, error: DeviceError) -> Done {
    let (data, oob) = match command {
        Command::Read { data, oob, .. }
        | Command::Write { data, oob, .. }
        | Command::Append { data, oob, .. } => (data, oob),
        _ => Default::default(),
    };
    Done { data, oob, ..Done::error(error) }
}
