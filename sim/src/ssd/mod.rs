//! The emulated ZNS SSD.
//!
//! [`Ssd`] carries out commands one after the other, without any notion of time: the rules are
//! those of [`engine::zone::ZoneTable`], the bytes are in a [`Media`]. Queues and latencies are
//! put around it by whoever needs them; [`EmulatedDrive`] needs none.
//!
//! Invariant: media hold the state in which a zone comes back when power returns, so open zones
//! are stored as closed, or as empty if nothing was written and they have no ZRWA.

mod drive;
mod media;
mod model;

pub use drive::{EmulatedDrive, NullDrive};
pub use media::{Media, MemoryMedia};
pub use model::Model;

use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Done, Geometry, Status, Zones},
    zone::{Lba, WriteEffect, ZoneIndex, ZoneInfo, ZoneState, ZoneTable},
};
use std::io;

/// An emulated SSD.
pub struct Ssd {
    geometry: Geometry,
    table: ZoneTable,
    media: Box<dyn Media>,
}

type Outcome = Result<(), DeviceError>;

impl Ssd {
    /// Powers a drive of this shape on, with what its media remember.
    pub fn new(geometry: Geometry, media: Box<dyn Media>) -> Ssd {
        let mut table = ZoneTable::new(&geometry);
        for zone in 0..geometry.zones {
            table.load(&media.zone(ZoneIndex(zone)));
        }
        Ssd { geometry, table, media }
    }

    /// A blank drive in memory.
    pub fn in_memory(geometry: &Geometry) -> Ssd {
        Ssd::new(geometry.clone(), Box::new(MemoryMedia::new(geometry)))
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The zones as they are now.
    pub fn zones(&self) -> &ZoneTable {
        &self.table
    }

    /// Carries out a command.
    pub fn execute(&mut self, command: Command) -> Done {
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
            Command::Flush => Done::ok(),
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
        let blocks = self.check_buffers(data, oob, self.geometry.max_transfer_blocks)?;
        self.table.check_read(lba, blocks)?;
        let (Some(data), Some(oob)) = (data.as_mut(), oob.as_mut()) else {
            return Err(Status::InvalidField.into());
        };
        // There is nothing between the capacity of a zone and the next zone.
        let (_, offset) = self.geometry.locate(lba);
        let stored = self.geometry.zone_capacity_blocks.saturating_sub(offset).min(blocks) as usize;
        let (data, nothing) = data.split_at_mut(stored * BLOCK);
        nothing.fill(0);
        let oob_stored = oob.len() / blocks as usize * stored;
        let (oob, nothing) = oob.split_at_mut(oob_stored);
        nothing.fill(0);
        self.media.read(lba, data, oob).map_err(os_error)
    }

    fn write(&mut self, target: Target, data: &Buf, oob: &Buf, _fua: bool) -> Result<Lba, DeviceError> {
        let most = match target {
            Target::At(_) => self.geometry.max_transfer_blocks,
            Target::Append(_) => self.geometry.max_append_blocks,
        };
        let blocks = self.check_buffers(data, oob, most)?;
        let zone = match target {
            Target::At(lba) => self.geometry.locate(lba).0,
            Target::Append(zone) => zone,
        };
        let before = (zone.0 < self.geometry.zones).then(|| self.table.info(zone));
        let effect = match target {
            Target::At(lba) => self.table.write(lba, blocks),
            Target::Append(zone) => self.table.append(zone, blocks),
        }?;
        let lba = Lba(self.geometry.start(zone).0 + effect.offset_blocks);
        let stored = self.media.write(lba, data, oob).and_then(|()| self.store_effect(&effect));
        self.keep_or_take_back(stored, before)?;
        Ok(lba)
    }

    fn flush_zrwa(&mut self, last: Lba) -> Outcome {
        let (zone, _) = self.geometry.locate(last);
        let before = (zone.0 < self.geometry.zones).then(|| self.table.info(zone));
        let effect = self.table.flush_zrwa(last)?;
        let stored = self.store_effect(&effect);
        self.keep_or_take_back(stored, before)
    }

    fn open(&mut self, zones: Zones, zrwa: bool) -> Outcome {
        match zones {
            Zones::One(zone) => {
                self.table.open(zone, zrwa)?;
                self.store(zone).map_err(os_error)
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
        let mut finished = Vec::new();
        match zones {
            Zones::One(zone) => {
                self.table.finish(zone)?;
                finished.push(zone);
            }
            Zones::All => self.table.finish_all(|zone| finished.push(zone)),
        }
        for zone in finished {
            self.store(zone).map_err(os_error)?;
        }
        Ok(())
    }

    fn reset(&mut self, zones: Zones) -> Outcome {
        let mut reset = Vec::new();
        match zones {
            Zones::One(zone) => {
                self.table.reset(zone)?;
                reset.push(zone);
            }
            Zones::All => self.table.reset_all(|zone| reset.push(zone)),
        }
        for zone in reset {
            self.media.reset(zone).map_err(os_error)?;
        }
        Ok(())
    }

    /// Whole blocks, not too many, and metadata for all of them or none. Gives the blocks.
    fn check_buffers(&self, data: &Buf, oob: &Buf, most: u32) -> Result<u64, Status> {
        let blocks = data.blocks();
        let metadata = blocks as usize * self.geometry.oob_bytes as usize;
        let whole = data.len() % BLOCK == 0 && (oob.is_empty() || oob.len() == metadata);
        if whole && (1..=most as u64).contains(&blocks) { Ok(blocks) } else { Err(Status::InvalidField) }
    }

    fn store_effect(&mut self, effect: &WriteEffect) -> io::Result<()> {
        if effect.wp_blocks == effect.wp_before_blocks { Ok(()) } else { self.store(effect.zone) }
    }

    /// Stores a zone in the state in which it comes back when power returns.
    fn store(&mut self, zone: ZoneIndex) -> io::Result<()> {
        self.media.set_zone(&after_power_on(self.table.info(zone)))
    }

    fn keep_or_take_back(&mut self, stored: io::Result<()>, before: Option<ZoneInfo>) -> Outcome {
        stored.map_err(|error| {
            if let Some(before) = before {
                self.table.load(&before);
            }
            os_error(error)
        })
    }
}

/// Where a write goes.
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

fn os_error(error: io::Error) -> DeviceError {
    const EIO: i32 = 5;
    DeviceError::Os(error.raw_os_error().unwrap_or(EIO))
}

#[cfg(test)]
mod tests;
