//! Power cuts and orderly shutdowns.
//!
//! A cut finds commands in flight, which take effect whole, in part or not at all; it may cost
//! the volatile cache and the ZRWAs; and when power returns open zones are closed.
//!
//! An orderly shutdown finds none in flight and costs no data, but it ends zones that have only just
//! been begun.

use super::{Ssd, after_power_on, cache::Loss};
use crate::rng::Rng;
use engine::{
    device::{Command, Zones},
    zone::{Lba, ZoneIndex, ZoneInfo},
};
use std::{collections::BTreeSet, io};

/// What a power cut costs, apart from commands in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Unflushed writes may be lost. Means nothing to a drive without a volatile cache.
    pub cache_lost: bool,
    /// What is above the write pointers in ZRWAs is lost, and so are the ZRWAs themselves: their
    /// zones come back closed without one, or empty.
    pub zrwa_lost: bool,
}

impl Ssd {
    /// Cuts the power and brings it back. `in_flight` are the commands that were submitted and
    /// have not completed, in the order of their submission: each takes effect whole, in part or
    /// not at all, in any order, as `rng` decides.
    ///
    /// # Errors
    /// Those of the media; the drive is not to be used any more then.
    pub fn power_cut(&mut self, in_flight: &[Command], rng: &mut Rng, cut: Cut) -> io::Result<()> {
        self.cut_short(in_flight, rng)?;
        if cut.cache_lost {
            self.cache.lose(&mut *self.media, &self.geometry, &mut self.table, None, Loss::Drawn(rng))?;
        }
        self.cache.flush();
        for zone in 0..self.geometry.zones {
            let info = self.table.info(ZoneIndex(zone));
            if cut.zrwa_lost && info.zrwa {
                self.lose_zrwa(&info)?;
            } else if info.state.is_open() {
                self.table.load(&after_power_on(info));
            }
        }
        Ok(())
    }

    /// Zones with anything that a power cut may cost, as far as it is in a volatile cache.
    pub fn unflushed(&self) -> Vec<ZoneIndex> {
        self.cache.zones().collect()
    }

    /// Takes back everything of a zone that is in a volatile cache alone, as a power cut does that is
    /// about to come.
    ///
    /// # Errors
    /// Those of the media; the drive is not to be used any more then.
    pub fn lose_unflushed(&mut self, zone: ZoneIndex) -> io::Result<()> {
        self.cache.lose(&mut *self.media, &self.geometry, &mut self.table, Some(zone), Loss::All)
    }

    /// Shuts the drive down as a host does that has done with it, and starts it again. Open zones are
    /// closed; but one whose write pointer is at its start becomes empty and loses its ZRWA, as in QEMU.
    /// What was in that ZRWA can still be read, until the zone has got another one and the write pointer
    /// passes.
    ///
    /// # Errors
    /// Those of the media; the drive is not to be used any more then.
    pub fn shut_down(&mut self) -> io::Result<()> {
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
        let size = self.geometry.zrwa.map_or(0, |zrwa| zrwa.size_blocks);
        let end = (info.wp_blocks + size).min(info.capacity_blocks);
        let start = self.geometry.start(info.zone).0;
        (info.wp_blocks..end).try_for_each(|offset| self.media.forget(Lba(start + offset)))?;
        self.table.load(&after_power_on(ZoneInfo { zrwa: false, ..*info }));
        self.store(info.zone)
    }

    fn cut_short(&mut self, in_flight: &[Command], rng: &mut Rng) -> io::Result<()> {
        let mut commands: Vec<&Command> = in_flight.iter().collect();
        if rng.chance(1, 2) {
            rng.shuffle(&mut commands);
        }
        // Zones in which a write was torn: nothing can land behind it.
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
            // A command that the rules refuse now simply does not happen.
            match (rng.below(3), command) {
                (0, _) => (),
                (1, Command::Write { .. }) if self.has_zrwa(zone) => self.tear_zrwa_write(command, rng),
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

    /// Any blocks of a write to a zone with a ZRWA. The write pointer does not pass a block of
    /// the write that has not been written.
    fn tear_zrwa_write(&mut self, command: &Command, rng: &mut Rng) {
        let (Command::Write { lba, data, .. }, Some(zrwa)) = (command, self.geometry.zrwa) else { return };
        let (zone, offset) = self.geometry.locate(*lba);
        let before = self.table.info(zone);
        if self.table.write(*lba, data.blocks()).is_err() {
            return;
        }
        self.table.load(&before);
        let mut chosen: Vec<bool> = (0..data.blocks()).map(|_| rng.chance(1, 2)).collect();
        let end = offset + chosen.iter().rposition(|c| *c).map_or(0, |last| last as u64 + 1);
        let beyond = end.saturating_sub(before.wp_blocks + zrwa.size_blocks);
        let wp = before.wp_blocks + beyond.next_multiple_of(zrwa.granularity_blocks);
        for (block, chosen) in chosen.iter_mut().enumerate() {
            *chosen |= offset + (block as u64) < wp;
        }
        for block in (0..data.blocks()).filter(|block| chosen[*block as usize]) {
            let done = self.apply(part(command, block, block + 1));
            debug_assert!(done.result.is_ok(), "{:?}", done.result);
        }
    }

    /// A command for all zones that came to some of them.
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
