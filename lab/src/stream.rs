//! Streams of writes, one after the other, as applications send them.

use emu::rng::Rng;
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice},
    zone::{Lba, ZoneIndex},
};
use std::{ops::Range, rc::Rc};

/// Writes of one file or log.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    pub zone: u32,
    /// A write is a whole number of these, drawn from `units`.
    pub unit_kib: u64,
    pub units: Range<u64>,
    /// Whether writes carry FUA.
    pub sync: bool,
    /// Size of the first write, if it is another.
    pub first_kib: u64,
    /// Amount to write.
    pub mib: u64,
}

impl Stream {
    /// Writes all of it and gives the number of blocks; sizes are drawn from `rng`.
    ///
    /// # Errors
    /// A write fails.
    pub async fn write(self, array: Rc<dyn ZonedDevice>, mut rng: Rng) -> anyhow::Result<u64> {
        let blocks = |kib: u64| kib * 1024 / BLOCK as u64;
        let data = Buf::zeroed((self.unit_kib * self.units.end * 1024) as usize);
        let start = array.geometry().start(ZoneIndex(self.zone)).0;
        let mut at = 0;
        while at < blocks(self.mib * 1024) {
            let size = match at {
                0 if self.first_kib > 0 => blocks(self.first_kib),
                _ => blocks(self.unit_kib) * rng.range(self.units.clone()),
            };
            let write = Command::write(Lba(start + at), data.slice_blocks(0..size), self.sync);
            let result = array.submit(write).await.result;
            result.map_err(|error| anyhow::anyhow!("a write to zone {} failed: {error}", self.zone))?;
            at += size;
        }
        Ok(at)
    }
}
