//! The emulated ZNS SSD.
//!
//! [`Ssd`] executes commands one after the other, without timing: the rules are those of [`engine::table::ZoneTable`],
//! the data is in a [`Media`]. Queues and latencies are added around it: [`TimedDrive`] has those of a real drive,
//! [`EmulatedDrive`] none.
//!
//! Invariant: media hold the state in which a zone comes back when power returns, so open zones are stored as closed,
//! or as empty if they are unwritten and have no ZRWA.

mod ailments;
mod cache;
pub mod compress;
mod drive;
mod fault;
mod hardware;
mod image;
mod layout;
mod media;
mod model;
mod power;
mod timed;
mod traffic;

pub use ailments::{Ailment, AilmentFile, Ailments, LOOK_EVERY};
pub use drive::{EmulatedDrive, NullDrive, serial_of};
pub use fault::{Fault, FaultPlan, Kind};
pub use image::{ImageError, ImageMedia, cause};
pub use media::{Media, MemoryMedia, NoMedia};
pub use model::Model;
pub use power::Cut;
pub use timed::TimedDrive;
pub use traffic::{Cause, Classifier, Counters, WrittenBlock};

use cache::Cache;
use compress::{Piece, Reads, Space};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Done, Geometry, Status, Zones},
    table::{WriteEffect, ZoneTable},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

/// An emulated SSD.
pub struct Ssd {
    geometry: Geometry,
    table: ZoneTable,
    media: Box<dyn Media>,
    cache: Cache,
    faults: FaultPlan,
    /// The file with injected faults, if it is a drive in an image.
    ailing: Option<AilmentFile>,
    /// Blocks of zones that lost their ZRWA in an orderly shutdown and are still readable, by zone.
    residue: BTreeMap<u32, BTreeSet<u64>>,
    /// Reads of unwritten blocks fail, instead of giving zeros.
    unwritten_fails: bool,
    /// Finishing a zone discards the data above its write pointer in the ZRWA.
    finish_drops: bool,
    /// A power cut may leave some sectors of a block old and some new.
    sectors_tear: bool,
    /// Number of power cuts and shutdowns so far.
    power_epoch: u64,
    /// The drive does not report this number.
    hides_power: bool,
}

type Outcome = Result<(), DeviceError>;

impl Ssd {
    /// Powers on a drive of this geometry, with the state of its media.
    pub fn new(geometry: Geometry, media: Box<dyn Media>) -> Ssd {
        let mut table = ZoneTable::new(&geometry);
        for zone in 0..geometry.zones {
            table.load(&media.zone(ZoneIndex(zone)));
        }
        let (cache, faults) = (Cache::default(), FaultPlan::default());
        Ssd {
            geometry,
            table,
            media,
            cache,
            faults,
            ailing: None,
            residue: BTreeMap::new(),
            unwritten_fails: false,
            finish_drops: false,
            sectors_tear: false,
            power_epoch: 0,
            hides_power: false,
        }
    }

    /// A blank drive in memory.
    pub fn in_memory(geometry: &Geometry) -> Ssd {
        Ssd::new(geometry.clone(), Box::new(MemoryMedia::new(geometry)))
    }

    /// A copy of the drive with the same contents, including its cache and ZRWAs, and the same faults.
    ///
    /// # Errors
    /// Its media cannot be copied.
    pub fn copy(&self) -> io::Result<Ssd> {
        Ok(Ssd {
            geometry: self.geometry.clone(),
            table: self.table.clone(),
            media: self.media.copy()?,
            cache: self.cache.clone(),
            faults: self.faults.clone(),
            ailing: None,
            residue: self.residue.clone(),
            ..*self
        })
    }

    /// Number of power cuts and shutdowns since the drive was created; `None` if it does not report it.
    pub fn power_epoch(&self) -> Option<u64> {
        (!self.hides_power).then_some(self.power_epoch)
    }

    /// Makes it a drive that gives no evidence of power cuts and resets.
    pub fn hide_power_epoch(&mut self) {
        self.hides_power = true;
    }

    /// Makes it a drive that fails reads of unwritten blocks, as a namespace may be set to.
    pub fn fail_unwritten(&mut self) {
        self.unwritten_fails = true;
    }

    /// Makes it a drive that discards the ZRWA of a zone when the zone is finished. Blocks above the write pointer are
    /// not committed, and Finish is not among the commands that commit them (NVM Express Zoned Namespace Command Set
    /// 1.1, Zone Random Write Area); QEMU keeps them.
    pub fn drop_at_finish(&mut self) {
        self.finish_drops = true;
    }

    /// Makes it a drive of 512-byte sectors that writes only single sectors atomically: a write in flight at a power
    /// cut may leave some sectors of a block old and some new, and the metadata either old or new. On power fail AWUPF
    /// or NAWUPF sectors are atomic (NVM Express Base Specification 2.0, Atomic Operations), which may be one. A
    /// completed write in a volatile cache is lost whole or not at all.
    pub fn tear_sectors(&mut self) {
        self.sectors_tear = true;
    }

    /// Makes it a drive on which a write with FUA makes only its own blocks durable: 'there is no implied ordering with
    /// other commands' (NVM Command Set, Write). Earlier writes to the same zone below the write pointer may then be
    /// lost; they read as unwritten or as before. No effect without a volatile cache.
    pub fn let_fua_stand_alone(&mut self) {
        self.cache.fua_stands_alone = true;
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The zone table.
    pub fn zones(&self) -> &ZoneTable {
        &self.table
    }

    /// The stored data and metadata of a block; `None` if it is unwritten.
    ///
    /// # Errors
    /// I/O errors of the media.
    pub fn stored(&mut self, lba: Lba) -> io::Result<Option<Vec<u8>>> {
        cache::read_block(&mut *self.media, &self.geometry, lba)
    }

    /// Replaces the data and metadata of a block, or makes it unwritten, bypassing all rules: the effect of a lost,
    /// misdirected or stale write.
    ///
    /// # Errors
    /// I/O errors of the media.
    pub fn forge(&mut self, lba: Lba, bytes: Option<&[u8]>) -> io::Result<()> {
        match bytes.and_then(|bytes| bytes.split_at_checked(BLOCK)) {
            Some((data, oob)) => self.media.write(lba, data, oob),
            None => self.media.forget(lba),
        }
    }

    /// Space statistics of a compressing drive, and its read statistics.
    pub fn space(&self) -> Option<(Space, Reads)> {
        self.media.space()
    }

    /// Flash pages used by a zone, if the drive compresses.
    pub fn flash_pages(&self, zone: ZoneIndex) -> Option<u64> {
        self.media.flash_pages(zone)
    }

    /// The places on flash of the logical page of a block, on a compressing drive.
    fn pieces(&self, lba: Lba) -> Vec<Piece> {
        self.media.pieces(lba)
    }

    /// The planned faults of the drive.
    pub fn faults(&mut self) -> &mut FaultPlan {
        &mut self.faults
    }

    /// Applies the faults in `file` from now on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn suffer_from(&mut self, file: AilmentFile) -> io::Result<()> {
        self.ailing = Some(file);
        self.look_what_ails()
    }

    /// Executes a command.
    pub fn execute(&mut self, command: Command) -> Done {
        if let Err(error) = self.look_what_ails() {
            return refuse(command, os_error(error));
        }
        for fault in self.faults.next_command() {
            if let Err(error) = self.strike(fault) {
                return refuse(command, os_error(error));
            }
        }
        if self.faults.is_gone() {
            return refuse(command, DeviceError::Gone);
        }
        match self.faults.take_failure(&command) {
            None => self.apply(command),
            Some((kind, false)) => refuse(command, kind.status().into()),
            Some((kind, true)) => Done { result: Err(kind.status().into()), ..self.apply(command) },
        }
    }

    fn apply(&mut self, command: Command) -> Done {
        match command {
            Command::Read { lba, mut data, mut oob } => {
                let result = self.read(lba, &mut data, &mut oob);
                Done { result, data, oob, ..Done::ok() }
            }
            Command::Write { lba, data, oob, fua } => {
                let result = self.write(Target::At(lba), &data, &oob, fua).map(|_| ());
                Done { result, data, oob, ..Done::ok() }
            }
            Command::Append { zone, data, oob, fua } => {
                let landed = self.write(Target::Append(zone), &data, &oob, fua);
                let lba = landed.unwrap_or_default();
                Done { result: landed.map(|_| ()), data, oob, lba, ..Done::ok() }
            }
            Command::Flush => {
                self.cache.flush();
                Done::ok()
            }
            Command::Report { first, count } => match self.table.report(first, count) {
                Ok(zones) => Done { zones, ..Done::ok() },
                Err(status) => Done::error(status.into()),
            },
            Command::Open { zones, zrwa } => answer(self.open(zones, zrwa)),
            Command::Close { zones } => answer(self.close(zones)),
            Command::Finish { zones } => answer(self.finish(zones)),
            Command::Reset { zones } => answer(self.reset(zones)),
            Command::FlushZrwa { last } => answer(self.flush_zrwa(last)),
        }
    }

    fn read(&mut self, lba: Lba, data: &mut Buf, oob: &mut Buf) -> Outcome {
        let blocks = self.geometry.check_buffers(data, oob, self.geometry.max_transfer_blocks)?;
        self.table.check_read(lba, blocks)?;
        let (Some(data), Some(oob)) = (data.as_mut(), oob.as_mut()) else {
            return Err(Status::InvalidField.into());
        };
        if self.faults.is_unreadable(lba, blocks) {
            return Err(Status::UnrecoveredReadError.into());
        }
        // There are no blocks between the capacity of a zone and the next zone.
        let (_, offset) = self.geometry.locate(lba);
        let stored = self.geometry.zone_capacity_blocks.saturating_sub(offset).min(blocks) as usize;
        for block in (0..stored as u64).filter(|_| self.unwritten_fails) {
            if !self.media.is_written(Lba(lba.0 + block)).map_err(os_error)? {
                return Err(Status::DeallocatedBlock.into());
            }
        }
        let (data, nothing) = data.split_at_mut(stored * BLOCK);
        nothing.fill(0);
        let oob_stored = oob.len() / blocks as usize * stored;
        let (oob, nothing) = oob.split_at_mut(oob_stored);
        nothing.fill(0);
        self.media.read(lba, data, oob).map_err(os_error)?;
        for flipped in self.faults.flipped(lba, stored as u64) {
            if self.media.is_written(flipped).map_err(os_error)? {
                data[(flipped.0 - lba.0) as usize * BLOCK] ^= 1;
            }
        }
        Ok(())
    }

    fn write(&mut self, target: Target, data: &Buf, oob: &Buf, fua: bool) -> Result<Lba, DeviceError> {
        let (zone, most) = match target {
            Target::At(lba) => (self.geometry.locate(lba).0, self.geometry.max_transfer_blocks),
            Target::Append(zone) => (zone, self.geometry.max_append_blocks),
        };
        let blocks = self.geometry.check_buffers(data, oob, most)?;
        let effect = match target {
            Target::At(lba) => self.table.check_write(lba, blocks),
            Target::Append(zone) => self.table.check_append(zone, blocks),
        }?;
        if self.faults.take_write_fault(zone) {
            return Err(Status::WriteFault.into());
        }
        let lba = Lba(self.geometry.start(zone).0 + effect.offset_blocks);
        self.carry_out(&effect, lba, data, oob)?;
        self.heal(lba, blocks)?;
        if fua {
            self.cache.write_through(&effect, blocks, self.geometry.zrwa);
        }
        Ok(lba)
    }

    fn flush_zrwa(&mut self, last: Lba) -> Outcome {
        let effect = self.table.check_flush_zrwa(last)?;
        self.carry_out(&effect, last, &Buf::default(), &Buf::default())
    }

    /// Executes a write or an explicit ZRWA flush. A drive refuses a write that it might not be able to hold.
    fn carry_out(&mut self, effect: &WriteEffect, lba: Lba, data: &Buf, oob: &Buf) -> Outcome {
        if !self.media.has_room(lba, data.blocks().max(1)) {
            return Err(Status::CapacityExceeded.into());
        }
        self.store_write(effect, lba, data, oob).map_err(os_error)?;
        self.table.apply(effect);
        Ok(())
    }

    /// Stores data before state, and both before the zone table changes: if that fails all zones are unchanged.
    fn store_write(&mut self, effect: &WriteEffect, lba: Lba, data: &Buf, oob: &Buf) -> io::Result<()> {
        let before = self.table.info(effect.zone);
        if self.geometry.volatile_cache {
            self.cache.before(&mut *self.media, &self.geometry, &before, effect, data.blocks())?;
        }
        if !data.is_empty() {
            self.media.write(lba, data, oob)?;
        }
        self.pass_residue(effect, data.blocks())?;
        if effect.wp_blocks == effect.wp_before_blocks {
            return Ok(());
        }
        let (state, zrwa) = match effect.filled {
            true => (ZoneState::Full, false),
            false => (ZoneState::Closed, before.zrwa),
        };
        self.media.set_zone(&ZoneInfo { state, wp_blocks: effect.wp_blocks, zrwa, ..before })
    }

    /// Blocks that the write pointer passes and that were not written since the zone got its ZRWA are lost.
    fn pass_residue(&mut self, effect: &WriteEffect, blocks: u64) -> io::Result<()> {
        let Some(residue) = self.residue.get_mut(&effect.zone.0) else { return Ok(()) };
        let written = effect.offset_blocks..effect.offset_blocks + blocks;
        residue.retain(|offset| !written.contains(offset));
        let start = self.geometry.start(effect.zone).0;
        while let Some(offset) = residue.first().copied().filter(|offset| *offset < effect.wp_blocks) {
            residue.pop_first();
            self.media.forget(Lba(start + offset))?;
        }
        Ok(())
    }

    fn open(&mut self, zones: Zones, zrwa: bool) -> Outcome {
        match zones {
            Zones::One(zone) => {
                self.table.check_open(zone, zrwa)?;
                let before = self.table.info(zone);
                let opened =
                    ZoneInfo { state: ZoneState::ExplicitlyOpen, zrwa: zrwa || before.zrwa, ..before };
                self.media.set_zone(&after_power_on(opened)).map_err(os_error)?;
                Ok(self.table.open(zone, zrwa)?)
            }
            Zones::All if zrwa => Err(Status::InvalidField.into()),
            Zones::All => Ok(self.table.open_all()?),
        }
    }

    fn close(&mut self, zones: Zones) -> Outcome {
        match zones {
            Zones::One(zone) => self.table.close(zone)?,
            Zones::All => self.table.close_all(),
        }
        Ok(())
    }

    fn finish(&mut self, zones: Zones) -> Outcome {
        match zones {
            Zones::One(zone) => self.finish_zone(zone),
            Zones::All => (0..self.geometry.zones).map(ZoneIndex).try_for_each(|zone| {
                if self.table.info(zone).state.is_active() { self.finish_zone(zone) } else { Ok(()) }
            }),
        }
    }

    /// The media come first: if they fail the zone is unchanged.
    fn finish_zone(&mut self, zone: ZoneIndex) -> Outcome {
        let before = self.info(zone)?;
        if !is_worn(before.state) {
            self.store_finished(&before).map_err(os_error)?;
        }
        self.table.finish(zone)?;
        self.cache.finish(zone, before.wp_blocks);
        self.residue.remove(&zone.0);
        Ok(())
    }

    fn store_finished(&mut self, before: &ZoneInfo) -> io::Result<()> {
        if self.finish_drops && before.zrwa {
            self.drop_zrwa(before)?;
        }
        for offset in self.residue.get(&before.zone.0).into_iter().flatten() {
            self.media.forget(Lba(self.geometry.start(before.zone).0 + offset))?;
        }
        let wp_blocks = before.capacity_blocks;
        self.media.set_zone(&ZoneInfo { state: ZoneState::Full, wp_blocks, zrwa: false, ..*before })
    }

    /// Forgets the blocks above the write pointer of a zone with a ZRWA.
    fn drop_zrwa(&mut self, zone: &ZoneInfo) -> io::Result<()> {
        let size = self.geometry.zrwa.map_or(0, |zrwa| zrwa.size_blocks);
        let end = (zone.wp_blocks + size).min(zone.capacity_blocks);
        let start = self.geometry.start(zone.zone).0;
        self.cache.forget_from(zone.zone, zone.wp_blocks);
        (zone.wp_blocks..end).try_for_each(|offset| self.media.forget(Lba(start + offset)))
    }

    fn reset(&mut self, zones: Zones) -> Outcome {
        match zones {
            Zones::One(zone) => self.reset_zone(zone),
            Zones::All => (0..self.geometry.zones).map(ZoneIndex).try_for_each(|zone| {
                if self.table.info(zone).state.is_begun() { self.reset_zone(zone) } else { Ok(()) }
            }),
        }
    }

    /// As in a finish the media come first.
    fn reset_zone(&mut self, zone: ZoneIndex) -> Outcome {
        if !is_worn(self.info(zone)?.state) {
            self.media.reset(zone).map_err(os_error)?;
        }
        self.table.reset(zone)?;
        self.cache.forget(zone);
        self.residue.remove(&zone.0);
        self.heal(self.geometry.start(zone), self.geometry.zone_size_blocks)
    }

    fn info(&self, zone: ZoneIndex) -> Result<ZoneInfo, Status> {
        if zone.0 < self.geometry.zones { Ok(self.table.info(zone)) } else { Err(Status::LbaOutOfRange) }
    }

    /// Stores a zone in the state in which it comes back when power returns.
    fn store(&mut self, zone: ZoneIndex) -> io::Result<()> {
        self.media.set_zone(&after_power_on(self.table.info(zone)))
    }

    /// Ends faults of blocks that have been written or reset.
    fn heal(&mut self, lba: Lba, blocks: u64) -> Outcome {
        let ended = self.faults.heal(lba, blocks);
        match &self.ailing {
            Some(file) if ended => file.note_well(lba, blocks).map_err(os_error),
            _ => Ok(()),
        }
    }

    /// Starts injected faults that are new, and ends those that were undone. Media do not know them, so they have the
    /// state in which a zone comes back.
    fn look_what_ails(&mut self) -> io::Result<()> {
        let Some(now) = self.ailing.as_mut().map_or(Ok(None), AilmentFile::look)? else { return Ok(()) };
        let before = std::mem::replace(&mut self.faults.ailments, now);
        for zone in before.worn.into_keys().map(ZoneIndex).filter(|zone| zone.0 < self.geometry.zones) {
            self.table.load(&after_power_on(self.media.zone(zone)));
        }
        for (zone, state) in &self.faults.ailments.worn {
            let zone = ZoneIndex(*zone);
            match state {
                _ if zone.0 >= self.geometry.zones => (),
                ZoneState::Offline => self.table.set_offline(zone),
                _ => self.table.set_read_only(zone),
            }
            self.cache.forget(zone);
        }
        Ok(())
    }

    fn strike(&mut self, fault: Fault) -> io::Result<()> {
        match fault {
            // An offline zone stays so for good.
            Fault::ReadOnly(zone) | Fault::Offline(zone)
                if self.info(zone).is_ok_and(|info| info.state != ZoneState::Offline) =>
            {
                match fault {
                    Fault::ReadOnly(_) => self.table.set_read_only(zone),
                    _ => self.table.set_offline(zone),
                }
                self.cache.forget(zone);
                self.store(zone)
            }
            Fault::Corrupt { lba, bit } => self.corrupt(lba, bit as usize),
            // A zone that cannot be reset or finished is unchanged.
            Fault::Reset(zone) => unless_refused(self.reset(Zones::One(zone))),
            Fault::Finish(zone) => unless_refused(self.finish(Zones::One(zone))),
            _ => {
                self.faults.note(fault);
                Ok(())
            }
        }
    }

    /// Flips a stored bit, if the block is written.
    fn corrupt(&mut self, lba: Lba, bit: usize) -> io::Result<()> {
        let (zone, offset) = self.geometry.locate(lba);
        if self.info(zone).is_err() || offset >= self.geometry.zone_capacity_blocks {
            return Ok(());
        }
        let Some(mut bytes) = cache::read_block(&mut *self.media, &self.geometry, lba)? else {
            return Ok(());
        };
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        self.media.write(lba, &bytes[..BLOCK], &bytes[BLOCK..])?;
        // Compressing media place blocks again that were moved to the buffer for that.
        let info = self.media.zone(zone);
        self.media.set_zone(&info)
    }
}

/// Destination of a write.
#[derive(Clone, Copy)]
enum Target {
    At(Lba),
    Append(ZoneIndex),
}

/// The state in which a zone comes back when power returns.
fn after_power_on(info: ZoneInfo) -> ZoneInfo {
    let state = match info.state {
        state if !state.is_active() => state,
        _ if info.wp_blocks == 0 && !info.zrwa => ZoneState::Empty,
        _ => ZoneState::Closed,
    };
    ZoneInfo { state, ..info }
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

/// The media error of a command, if any; refusals are ignored.
fn unless_refused(result: Outcome) -> io::Result<()> {
    match result {
        Err(DeviceError::Os(errno)) => Err(io::Error::from_raw_os_error(errno)),
        _ => Ok(()),
    }
}

fn os_error(error: io::Error) -> DeviceError {
    const EIO: i32 = 5;
    DeviceError::Os(error.raw_os_error().unwrap_or(EIO))
}

#[cfg(test)]
mod tests;
