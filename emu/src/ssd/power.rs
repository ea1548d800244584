//! Power cuts and orderly shutdowns.
//!
//! In a cut the commands in flight take effect whole, in part or not at all; the volatile cache and the ZRWAs may be
//! lost; and when power returns open zones are closed.
//!
//! An orderly shutdown happens without commands in flight and loses no data, but zones with the write pointer at the
//! start become empty.

use super::{
    Ssd, after_power_on,
    cache::{Loss, read_block},
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

impl Ssd {
    /// Cuts the power and restores it. `in_flight` are the submitted commands that have not completed, in the order of
    /// their submission: each takes effect whole, in part or not at all, in any order, by `rng`.
    ///
    /// # Errors
    /// I/O errors of the media; the drive must not be used any more then.
    pub fn power_cut(&mut self, in_flight: &[Command], rng: &mut Rng, cut: Cut) -> io::Result<()> {
        self.power_epoch += 1;
        self.cut_short(in_flight, rng)?;
        if cut.cache_lost {
            self.cache.lose(&mut *self.media, &self.geometry, &mut self.table, None, Loss::Drawn(rng))?;
        }
        self.cache.flush();
        self.media.cut();
        for zone in 0..self.geometry.zones {
            let info = self.table.info(ZoneIndex(zone));
            if cut.zrwa_lost && info.zrwa {
                self.lose_zrwa(&info)?;
            } else if info.state.is_active() {
                self.table.load(&after_power_on(info));
            }
        }
        Ok(())
    }

    /// Makes a zone read-only, and loses the data in its ZRWA with that.
    ///
    /// # Errors
    /// Those of the media; the drive must not be used any more then.
    pub fn wear_out_with_zrwa(&mut self, zone: ZoneIndex) -> io::Result<()> {
        let info = self.table.info(zone);
        if info.zrwa {
            self.lose_zrwa(&info)?;
        }
        self.faults().after(0, super::Fault::ReadOnly(zone));
        Ok(())
    }

    /// Zones with unflushed data in the volatile cache, each with the number of ways to lose a part of it.
    pub fn unflushed(&self) -> Vec<(ZoneIndex, usize)> {
        self.cache.ways(&self.table)
    }

    /// Undoes unflushed writes of a zone ahead of a power cut: all of them, or a part, in way number `way`.
    ///
    /// # Errors
    /// I/O errors of the media; the drive must not be used any more then.
    pub fn lose_unflushed(&mut self, zone: ZoneIndex, way: Option<usize>) -> io::Result<()> {
        let loss = way.map_or(Loss::All, Loss::Way);
        self.cache.lose(&mut *self.media, &self.geometry, &mut self.table, Some(zone), loss)
    }

    /// Shuts the drive down in good order and starts it again. Open zones are closed; but one with the write pointer at
    /// its start becomes empty and loses its ZRWA, as in QEMU. The contents of that ZRWA remain readable until the zone
    /// has another one and the write pointer passes them.
    ///
    /// # Errors
    /// I/O errors of the media; the drive must not be used any more then.
    pub fn shut_down(&mut self) -> io::Result<()> {
        self.power_epoch += 1;
        self.cache.flush();
        for zone in (0..self.geometry.zones).map(ZoneIndex) {
            let info = self.table.info(zone);
            if !info.state.is_active() {
                continue;
            }
            let begun = info.wp_blocks == 0;
            if begun && info.zrwa {
                self.leave_residue(zone)?;
            }
            self.table.load(&after_power_on(ZoneInfo { zrwa: info.zrwa && !begun, ..info }));
            self.store(zone)?;
        }
        Ok(())
    }

    fn leave_residue(&mut self, zone: ZoneIndex) -> io::Result<()> {
        let size =
            self.geometry.zrwa.map_or(0, |zrwa| zrwa.size_blocks).min(self.geometry.zone_capacity_blocks);
        let start = self.geometry.start(zone).0;
        let mut residue = BTreeSet::new();
        for offset in 0..size {
            if self.media.is_written(Lba(start + offset))? {
                residue.insert(offset);
            }
        }
        self.residue.insert(zone.0, residue);
        Ok(())
    }

    fn lose_zrwa(&mut self, info: &ZoneInfo) -> io::Result<()> {
        self.drop_zrwa(info)?;
        self.table.load(&after_power_on(ZoneInfo { zrwa: false, ..*info }));
        self.store(info.zone)
    }

    fn cut_short(&mut self, in_flight: &[Command], rng: &mut Rng) -> io::Result<()> {
        let mut commands: Vec<&Command> = in_flight.iter().collect();
        if rng.chance(1, 2) {
            rng.shuffle(&mut commands);
        }
        // Zones with a torn write: no later write can land behind it.
        let mut torn = BTreeSet::new();
        for command in commands {
            let zone = match command {
                Command::Write { lba, .. } => self.geometry.locate(*lba).0,
                Command::Append { zone, .. } => *zone,
                _ => ZoneIndex(u32::MAX),
            };
            if torn.contains(&zone) {
                continue;
            }
            // A command that the rules refuse now has no effect.
            match (rng.below(3), command) {
                (0, _) => (),
                (1, Command::Write { .. }) if self.has_zrwa(zone) => self.tear_zrwa_write(command, rng)?,
                (1, Command::Write { .. } | Command::Append { .. }) if self.sectors_tear => {
                    self.tear_sequential_write(command, zone, rng)?;
                    torn.insert(zone);
                }
                (1, Command::Write { data, .. } | Command::Append { data, .. }) if data.blocks() > 1 => {
                    let prefix = 1 + rng.below(data.blocks() - 1);
                    if self.apply(part(command, 0, prefix)).result.is_ok() {
                        torn.insert(zone);
                    }
                }
                (1, Command::Finish { zones: Zones::All } | Command::Reset { zones: Zones::All }) => {
                    self.manage_some(command, rng);
                }
                (_, Command::Read { .. } | Command::Report { .. }) => (),
                (_, command) => _ = self.apply(command.clone()),
            }
        }
        Ok(())
    }

    fn has_zrwa(&self, zone: ZoneIndex) -> bool {
        zone.0 < self.geometry.zones && self.table.info(zone).zrwa
    }

    /// Writes a random subset of the blocks of a write to a zone with a ZRWA. The write pointer passes no block of the
    /// write that is unwritten.
    fn tear_zrwa_write(&mut self, command: &Command, rng: &mut Rng) -> io::Result<()> {
        let (Command::Write { lba, data, oob, .. }, Some(zrwa)) = (command, self.geometry.zrwa) else {
            return Ok(());
        };
        let (zone, offset) = self.geometry.locate(*lba);
        let before = self.table.info(zone);
        if self.table.check_write(*lba, data.blocks()).is_err() {
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
            if self.apply(part(command, block, block + 1)).result.is_err() {
                // A write fault is planned, or there is no room.
                return Ok(());
            }
        }
        let reach = (wp + zrwa.size_blocks).min(before.capacity_blocks);
        for block in (0..data.blocks()).filter(|block| !chosen[*block as usize] && offset + *block < reach) {
            if self.sectors_tear && rng.chance(1, 2) {
                let new: Vec<bool> = (0..SECTORS).map(|_| rng.chance(1, 2)).collect();
                if self.geometry.volatile_cache {
                    // It is lost with the cache, or if the write pointer goes back so far that the ZRWA ends before it.
                    let info = self.table.info(zone);
                    if let Ok(effect) = self.table.check_write(Lba(lba.0 + block), 1) {
                        self.cache.before(&mut *self.media, &self.geometry, &info, &effect, 1)?;
                    }
                }
                self.tear_block(Lba(lba.0 + block), block, data, oob, &new, rng)?;
            }
        }
        Ok(())
    }

    /// Writes the first blocks of a write to a sequential zone, and the first sectors of the next one. The latter are
    /// at the write pointer, which counts blocks and so is reported as below them.
    fn tear_sequential_write(&mut self, command: &Command, zone: ZoneIndex, rng: &mut Rng) -> io::Result<()> {
        let (Command::Write { data, oob, .. } | Command::Append { data, oob, .. }) = command else {
            return Ok(());
        };
        if zone.0 >= self.geometry.zones {
            return Ok(());
        }
        // The rules are checked for the whole write.
        let before = self.table.info(zone);
        let whole = match command {
            Command::Write { lba, .. } => self.table.check_write(*lba, data.blocks()),
            _ => self.table.check_append(zone, data.blocks()),
        };
        if whole.is_err() {
            return Ok(());
        }
        let landed = rng.below(data.blocks());
        if landed > 0 && self.apply(part(command, 0, landed)).result.is_err() {
            return Ok(());
        }
        if before.wp_blocks + landed == 0 {
            // A zone with some written sectors is not empty, which a write pointer in blocks cannot express.
            return Ok(());
        }
        let first = rng.below(SECTORS as u64) as usize;
        let new: Vec<bool> = (0..SECTORS).map(|sector| sector < first).collect();
        let lba = Lba(self.geometry.start(zone).0 + before.wp_blocks + landed);
        self.tear_block(lba, landed, data, oob, &new, rng)
    }

    /// Writes some sectors of a block of a write, and maybe its metadata; does nothing without room.
    fn tear_block(
        &mut self,
        lba: Lba,
        block: u64,
        data: &Buf,
        oob: &Buf,
        new: &[bool],
        rng: &mut Rng,
    ) -> io::Result<()> {
        if !self.media.has_room(lba, 1) {
            return Ok(());
        }
        let size = self.geometry.oob_bytes as usize;
        let mut bytes = read_block(&mut *self.media, &self.geometry, lba)?.unwrap_or(vec![0; BLOCK + size]);
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
        self.media.write(lba, &bytes[..BLOCK], &bytes[BLOCK..])
    }

    /// Executes a command for all zones on some of them.
    fn manage_some(&mut self, command: &Command, rng: &mut Rng) {
        for zone in (0..self.geometry.zones).map(ZoneIndex) {
            if rng.chance(1, 2) {
                let zones = Zones::One(zone);
                match command {
                    Command::Finish { .. } if self.table.info(zone).state.is_active() => {
                        _ = self.apply(Command::Finish { zones });
                    }
                    Command::Reset { .. } => _ = self.apply(Command::Reset { zones }),
                    _ => (),
                }
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
