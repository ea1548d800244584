//! The emulated SSD as others use it: its properties, commands, power cuts and faults.

use super::{
    ailments::AilmentFile,
    cache, execute,
    fault::FaultPlan,
    media::{Media, MemoryMedia, Piece, Reads, Space},
    power::{self, Cut},
    state::SsdState,
    strike,
};
use crate::rng::Rng;
use engine::{
    buf::BLOCK,
    device::{Command, Done, Geometry},
    table::ZoneTable,
    zone::{Lba, ZoneIndex},
};
use std::io;

/// An emulated SSD.
pub struct Ssd {
    pub(super) state: SsdState,
}

impl Ssd {
    /// Powers on a drive of this geometry, with the state of its media.
    pub fn new(geometry: Geometry, media: Box<dyn Media>) -> Ssd {
        Ssd { state: SsdState::new(geometry, media) }
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
        Ok(Ssd { state: self.state.copy()? })
    }

    /// Number of power cuts and shutdowns since the drive was created; `None` if it does not report it.
    pub fn power_epoch(&self) -> Option<u64> {
        (!self.state.hides_power).then_some(self.state.power_epoch)
    }

    /// Makes it a drive that gives no evidence of power cuts and resets.
    pub fn hide_power_epoch(&mut self) {
        self.state.hides_power = true;
    }

    /// Makes it a drive that fails reads of unwritten blocks, as a namespace may be set to.
    pub fn fail_unwritten(&mut self) {
        self.state.unwritten_fails = true;
    }

    /// Makes it a drive that discards the ZRWA of a zone when the zone is finished. Blocks above the write pointer are
    /// not committed, and Finish is not among the commands that commit them (NVM Express Zoned Namespace Command Set
    /// 1.1, Zone Random Write Area); QEMU keeps them.
    pub fn drop_at_finish(&mut self) {
        self.state.finish_drops = true;
    }

    /// Makes it a drive of 512-byte sectors that writes only single sectors atomically: a write in flight at a power
    /// cut may leave some sectors of a block old and some new, and the metadata either old or new. On power fail AWUPF
    /// or NAWUPF sectors are atomic (NVM Express Base Specification 2.0, Atomic Operations), which may be one. A
    /// completed write in a volatile cache is lost whole or not at all.
    pub fn tear_sectors(&mut self) {
        self.state.sectors_tear = true;
    }

    /// Makes it a drive on which a write with FUA makes only its own blocks durable: 'there is no implied ordering with
    /// other commands' (NVM Command Set, Write). Earlier writes to the same zone below the write pointer may then be
    /// lost; they read as unwritten or as before. No effect without a volatile cache.
    pub fn let_fua_stand_alone(&mut self) {
        self.state.cache.fua_stands_alone = true;
    }

    pub fn geometry(&self) -> &Geometry {
        &self.state.geometry
    }

    /// The zone table.
    pub fn zones(&self) -> &ZoneTable {
        &self.state.table
    }

    /// The stored data and metadata of a block; `None` if it is unwritten.
    ///
    /// # Errors
    /// I/O errors of the media.
    pub fn stored(&mut self, lba: Lba) -> io::Result<Option<Vec<u8>>> {
        cache::read_block(&mut *self.state.media, &self.state.geometry, lba)
    }

    /// Replaces the data and metadata of a block, or makes it unwritten, bypassing all rules: the effect of a lost,
    /// misdirected or stale write.
    ///
    /// # Errors
    /// I/O errors of the media.
    pub fn forge(&mut self, lba: Lba, bytes: Option<&[u8]>) -> io::Result<()> {
        match bytes.and_then(|bytes| bytes.split_at_checked(BLOCK)) {
            Some((data, oob)) => self.state.media.write(lba, data, oob),
            None => self.state.media.forget(lba),
        }
    }

    /// Space statistics of a compressing drive, and its read statistics.
    pub fn space(&self) -> Option<(Space, Reads)> {
        self.state.media.space()
    }

    /// Flash pages used by a zone, if the drive compresses.
    pub fn flash_pages(&self, zone: ZoneIndex) -> Option<u64> {
        self.state.media.flash_pages(zone)
    }

    /// The places on flash of the logical page of a block, on a compressing drive.
    pub(super) fn pieces(&self, lba: Lba) -> Vec<Piece> {
        self.state.media.pieces(lba)
    }

    /// The planned faults of the drive.
    pub fn faults(&mut self) -> &mut FaultPlan {
        &mut self.state.faults
    }

    /// Applies the faults in `file` from now on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn suffer_from(&mut self, file: AilmentFile) -> io::Result<()> {
        self.state.ailing = Some(file);
        strike::look_what_ails(&mut self.state)
    }

    /// Executes a command.
    pub fn execute(&mut self, command: Command) -> Done {
        execute::execute(&mut self.state, command)
    }

    /// Cuts the power and restores it. `in_flight` are the submitted commands that have not completed, in the order of
    /// their submission: each takes effect whole, in part or not at all, in any order, by `rng`.
    ///
    /// # Errors
    /// I/O errors of the media; the drive must not be used any more then.
    pub fn power_cut(&mut self, in_flight: &[Command], rng: &mut Rng, cut: Cut) -> io::Result<()> {
        power::power_cut(&mut self.state, in_flight, rng, cut)
    }

    /// Makes a zone read-only, and loses the data in its ZRWA with that.
    ///
    /// # Errors
    /// Those of the media; the drive must not be used any more then.
    pub fn wear_out_with_zrwa(&mut self, zone: ZoneIndex) -> io::Result<()> {
        power::wear_out_with_zrwa(&mut self.state, zone)
    }

    /// Zones with unflushed data in the volatile cache, each with the number of ways to lose a part of it.
    pub fn unflushed(&self) -> Vec<(ZoneIndex, usize)> {
        self.state.cache.ways(&self.state.table)
    }

    /// Undoes unflushed writes of a zone ahead of a power cut: all of them, or a part, in way number `way`.
    ///
    /// # Errors
    /// I/O errors of the media; the drive must not be used any more then.
    pub fn lose_unflushed(&mut self, zone: ZoneIndex, way: Option<usize>) -> io::Result<()> {
        power::lose_unflushed(&mut self.state, zone, way)
    }

    /// Shuts the drive down in good order and starts it again. Open zones are closed; but one with the write pointer at
    /// its start becomes empty and loses its ZRWA, as in QEMU. The contents of that ZRWA remain readable until the zone
    /// has another one and the write pointer passes them.
    ///
    /// # Errors
    /// I/O errors of the media; the drive must not be used any more then.
    pub fn shut_down(&mut self) -> io::Result<()> {
        power::shut_down(&mut self.state)
    }
}
