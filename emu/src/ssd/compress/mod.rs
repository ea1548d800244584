//! Compression in the drive: media that hold compressed pages on flash (docs/COMPRESSION.md).
//!
//! A *logical page* is 16 KiB of a zone, four blocks, and is compressed as one. The result is a *unit*. Four
//! neighbouring logical pages are a *group*. A *flash page* has 16 KiB too, and out-of-band bytes that list its units.
//! Blocks above the write pointer may be overwritten, so they wait uncompressed in a buffer; a group is compressed and
//! placed, by its [`Scheme`], when the write pointer has passed all of it.
//!
//! Invariants: pages are placed in order, none before those ahead of it; of each block either the buffer or the flash
//! has the newest version, and reads look nowhere else. A buffered page is charged with the most flash that it may
//! take, so that there always is room for acknowledged writes.
//!
//! Media know neither rules nor changes of the drive: when placed blocks are undone, as by the loss of a volatile cache
//! in a power cut, they are moved from flash back into the buffer, with all that lies behind them.

mod balloon_zns;
mod base;
mod braid;
mod select;

pub use super::media::{Piece, Reads, Space};
pub use select::Choice;

use super::media::{Media, MemoryMedia};
use engine::{
    buf::BLOCK,
    device::Geometry,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{io, rc::Rc};

/// Blocks of a logical page, and of a flash page.
pub const PAGE_BLOCKS: u64 = 4;
/// Bytes of both.
pub const PAGE: usize = PAGE_BLOCKS as usize * BLOCK;
/// Logical pages of a group; units that a flash page has out-of-band bytes for.
pub const GROUP: usize = 4;

/// Placement of compressed units on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In order, uncompressed.
    Base,
    /// In slots of one size for all of a zone; the rest of a larger unit is stored apart.
    Balloon(Slots),
    /// Without a unit that crosses a flash page, in the order that takes the fewest pages.
    Braid(Choice),
}

/// Rule for the slot size of a zone, from the sizes of its first units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// The least space, rests that are stored apart included.
    LeastSpace,
    /// The same, where a rest takes whole slots.
    WholeRests,
    /// The smallest slots into which this percentage of units fits.
    Fitting(u64),
}

/// A logical page, compressed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Unit {
    /// [`PAGE`] bytes if it does not compress: then they are the page itself.
    bytes: Vec<u8>,
    about: About,
}

/// Out-of-band information of a flash page on a unit, besides its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct About {
    /// A bit for each block that is written.
    written: u8,
    /// The host's metadata of the blocks.
    host: Vec<u8>,
}

/// A unit that was read.
struct ReadUnit {
    unit: Unit,
    /// Its places on flash, in reading order; empty if it is in the buffer.
    pieces: Vec<Piece>,
}

/// A zone on flash.
trait ZoneLayout {
    /// Places a group behind the others. Only the last one of the zone may have fewer than four units.
    fn push(&mut self, group: Vec<Unit>);

    /// No more groups follow.
    fn close(&mut self) {}

    /// Number of placed units.
    fn units(&self) -> u64;

    /// Flash pages in use.
    fn flash_pages(&self) -> u64;

    /// The most flash pages that all units may take after this many more have been placed.
    fn most(&self, units: u64) -> u64;

    /// A placed unit.
    fn unit(&self, index: u64) -> Option<ReadUnit>;

    /// Removes and returns all units from `index` on, the first of a group.
    fn take_from(&mut self, index: u64) -> Vec<Unit>;

    /// The power fails while the last group is being programmed, and returns.
    fn cut(&mut self) {}

    /// Space statistics.
    fn space(&self) -> Space;

    fn copy(&self) -> Box<dyn ZoneLayout>;
}

impl Space {
    /// The sums of both.
    pub fn plus(self, other: Space) -> Space {
        Space {
            pages: self.pages + other.pages,
            flash_pages: self.flash_pages + other.flash_pages,
            bytes: self.bytes + other.bytes,
            truncated: self.truncated + other.truncated,
            compacted: self.compacted + other.compacted,
            braided: self.braided + other.braided,
        }
    }

    /// Logical pages per flash page.
    pub fn efficiency(&self) -> f64 {
        self.pages as f64 / self.flash_pages.max(1) as f64
    }
}

/// Compresses a logical page: LZ4, or the page itself if that is not shorter.
pub fn compress(page: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; lz4_flex::block::get_maximum_output_size(page.len())];
    match lz4_flex::block::compress_into(page, &mut bytes) {
        Ok(length) if length < page.len() => bytes.truncate(length),
        _ => bytes = page.to_vec(),
    }
    bytes
}

/// Inverse of [`compress`].
fn expand(bytes: &[u8]) -> io::Result<Vec<u8>> {
    if bytes.len() == PAGE {
        return Ok(bytes.to_vec());
    }
    let mut page = vec![0; PAGE];
    match lz4_flex::block::decompress_into(bytes, &mut page) {
        Ok(PAGE) => Ok(page),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Compressing media in memory.
pub struct CompressedMedia {
    scheme: Scheme,
    zone_size: u64,
    oob_bytes: usize,
    /// Blocks that are not on flash yet, and the states of zones.
    buffer: MemoryMedia,
    flash: Vec<Flash>,
    /// Number of flash pages, if they are fewer than may be needed.
    most_pages: Option<u64>,
    /// The sum of all zones' charges.
    charged: u64,
    /// Flash pages that reads took, and logical pages that they were for.
    reads: Reads,
}

/// The flash of a zone.
struct Flash {
    layout: Box<dyn ZoneLayout>,
    /// End of the written blocks since the last reset, in blocks from the start of the zone.
    end_blocks: u64,
    /// Flash pages that are used by or reserved for it.
    charged: u64,
}

impl CompressedMedia {
    /// Blank media for a drive of this geometry, with as much flash as it can need.
    pub fn new(geometry: &Geometry, scheme: Scheme) -> CompressedMedia {
        let pages = geometry.zone_capacity_blocks.div_ceil(PAGE_BLOCKS);
        let flash = || Flash { layout: blank(scheme, pages), end_blocks: 0, charged: 0 };
        CompressedMedia {
            scheme,
            zone_size: geometry.zone_size_blocks,
            oob_bytes: geometry.oob_bytes as usize,
            buffer: MemoryMedia::new(geometry),
            flash: (0..geometry.zones).map(|_| flash()).collect(),
            most_pages: None,
            charged: 0,
            reads: Reads::default(),
        }
    }

    /// The same with `flash_pages` in all, fewer than its zones can need: the savings of compression are announced as
    /// capacity then, and a write is refused if it might not find room.
    ///
    /// # Panics
    /// With a volatile cache: writes that a power cut undoes may need more room in the buffer than placing them has
    /// saved.
    pub fn with_pages(geometry: &Geometry, scheme: Scheme, flash_pages: u64) -> CompressedMedia {
        assert!(!geometry.volatile_cache, "a drive with a volatile cache cannot announce more than it has");
        CompressedMedia { most_pages: Some(flash_pages), ..CompressedMedia::new(geometry, scheme) }
    }

    /// Space statistics of all zones.
    pub fn space(&self) -> Space {
        self.flash.iter().fold(Space::default(), |space, zone| space.plus(zone.layout.space()))
    }

    /// Read statistics.
    pub fn reads(&self) -> Reads {
        self.reads
    }

    fn locate(&self, lba: Lba) -> (usize, u64) {
        ((lba.0 / self.zone_size) as usize, lba.0 % self.zone_size)
    }

    /// The charge of the zone if it had been written up to `end_blocks`.
    fn charge(&self, zone: usize, end_blocks: u64) -> u64 {
        let layout = &self.flash[zone].layout;
        layout.most(end_blocks.div_ceil(PAGE_BLOCKS).saturating_sub(layout.units()))
    }

    fn charge_again(&mut self, zone: usize) {
        let charge = self.charge(zone, self.flash[zone].end_blocks);
        self.charged = self.charged - self.flash[zone].charged + charge;
        self.flash[zone].charged = charge;
    }

    /// Compresses and places the groups that the write pointer of the zone has passed.
    fn settle(&mut self, info: &ZoneInfo) -> io::Result<()> {
        let zone = info.zone.0 as usize;
        let full = info.state == ZoneState::Full;
        let groups = info.wp_blocks / (GROUP as u64 * PAGE_BLOCKS);
        let end = match full {
            true => self.flash[zone].end_blocks.div_ceil(PAGE_BLOCKS),
            false => groups * GROUP as u64,
        };
        let mut at = self.flash[zone].layout.units();
        if at < end && !at.is_multiple_of(GROUP as u64) {
            // The zone was full, and no longer is.
            self.take_back(zone, at * PAGE_BLOCKS)?;
            at = self.flash[zone].layout.units();
        }
        while at < end {
            let next = (at + GROUP as u64).min(end);
            let group = (at..next).map(|page| self.take_up(info, page)).collect::<io::Result<_>>()?;
            self.flash[zone].layout.push(group);
            at = next;
        }
        if full {
            self.flash[zone].layout.close();
        }
        self.charge_again(zone);
        Ok(())
    }

    /// Removes a logical page from the buffer, and compresses it.
    fn take_up(&mut self, info: &ZoneInfo, page: u64) -> io::Result<Unit> {
        let start = info.zone.0 as u64 * self.zone_size;
        let mut data = vec![0; PAGE];
        let mut about = About { written: 0, host: vec![0; PAGE_BLOCKS as usize * self.oob_bytes] };
        let size = self.oob_bytes;
        for block in 0..PAGE_BLOCKS {
            let (offset, at) = (page * PAGE_BLOCKS + block, block as usize);
            let lba = Lba(start + offset);
            if offset < info.capacity_blocks && self.buffer.is_written(lba)? {
                let host = &mut about.host[at * size..][..size];
                self.buffer.read(lba, &mut data[at * BLOCK..][..BLOCK], host)?;
                self.buffer.forget(lba)?;
                about.written |= 1 << at;
            }
        }
        Ok(Unit { bytes: compress(&data), about })
    }

    /// Moves all units from the group of this block on back from flash into the buffer.
    fn take_back(&mut self, zone: usize, offset: u64) -> io::Result<()> {
        let group = offset / PAGE_BLOCKS / GROUP as u64 * GROUP as u64;
        let start = zone as u64 * self.zone_size + group * PAGE_BLOCKS;
        let (units, size) = (self.flash[zone].layout.take_from(group), self.oob_bytes);
        for (unit, first) in units.iter().zip((start..).step_by(PAGE_BLOCKS as usize)) {
            let data = expand(&unit.bytes)?;
            for at in (0..PAGE_BLOCKS as usize).filter(|at| unit.about.written >> at & 1 == 1) {
                let host = &unit.about.host[at * size..][..size];
                self.buffer.write(Lba(first + at as u64), &data[at * BLOCK..][..BLOCK], host)?;
            }
        }
        self.charge_again(zone);
        Ok(())
    }

    fn on_flash(&self, zone: usize, offset: u64) -> Option<ReadUnit> {
        self.flash.get(zone)?.layout.unit(offset / PAGE_BLOCKS)
    }
}

/// An empty zone of this many logical pages.
fn blank(scheme: Scheme, pages: u64) -> Box<dyn ZoneLayout> {
    match scheme {
        Scheme::Base => Box::new(base::BaseZone::default()),
        Scheme::Balloon(slots) => Box::new(balloon_zns::BalloonZone::new(slots, pages)),
        Scheme::Braid(choice) => Box::new(braid::BraidZone::new(choice)),
    }
}

impl Media for CompressedMedia {
    fn read(&mut self, lba: Lba, data: &mut [u8], oob: &mut [u8]) -> io::Result<()> {
        let size = self.oob_bytes;
        // The logical page that was read last.
        let mut page: Option<(u64, Vec<u8>, About)> = None;
        for (i, block) in data.chunks_exact_mut(BLOCK).enumerate() {
            let oob = if oob.is_empty() { &mut [] } else { &mut oob[i * size..][..size] };
            let lba = Lba(lba.0 + i as u64);
            let (zone, offset) = self.locate(lba);
            let number = offset / PAGE_BLOCKS;
            if page.as_ref().is_none_or(|(other, ..)| *other != number) {
                page = None;
                if let Some(found) = self.on_flash(zone, offset) {
                    self.reads.pages += 1;
                    self.reads.flash_pages += found.pieces.len() as u64;
                    page = Some((number, expand(&found.unit.bytes)?, found.unit.about));
                }
            }
            let Some((_, bytes, about)) = &page else {
                self.buffer.read(lba, block, oob)?;
                continue;
            };
            let at = (offset % PAGE_BLOCKS) as usize;
            if about.written >> at & 1 == 1 {
                block.copy_from_slice(&bytes[at * BLOCK..][..BLOCK]);
                let stored = &about.host[at * size..];
                oob.copy_from_slice(&stored[..oob.len()]);
            } else {
                block.fill(0);
                oob.fill(0);
            }
        }
        Ok(())
    }

    fn write(&mut self, lba: Lba, data: &[u8], oob: &[u8]) -> io::Result<()> {
        let (zone, offset) = self.locate(lba);
        if offset / PAGE_BLOCKS < self.flash[zone].layout.units() {
            self.take_back(zone, offset)?;
        }
        let end = offset + (data.len() / BLOCK) as u64;
        self.flash[zone].end_blocks = self.flash[zone].end_blocks.max(end);
        self.charge_again(zone);
        self.buffer.write(lba, data, oob)
    }

    fn is_written(&mut self, lba: Lba) -> io::Result<bool> {
        let (zone, offset) = self.locate(lba);
        match self.on_flash(zone, offset) {
            Some(found) => Ok(found.unit.about.written >> (offset % PAGE_BLOCKS) & 1 == 1),
            None => self.buffer.is_written(lba),
        }
    }

    fn forget(&mut self, lba: Lba) -> io::Result<()> {
        let (zone, offset) = self.locate(lba);
        if self.on_flash(zone, offset).is_some() {
            self.take_back(zone, offset)?;
        }
        self.buffer.forget(lba)
    }

    fn zone(&self, zone: ZoneIndex) -> ZoneInfo {
        self.buffer.zone(zone)
    }

    fn set_zone(&mut self, info: &ZoneInfo) -> io::Result<()> {
        self.buffer.set_zone(info)?;
        self.settle(info)
    }

    fn reset(&mut self, zone: ZoneIndex) -> io::Result<()> {
        let pages = self.buffer.zone(zone).capacity_blocks.div_ceil(PAGE_BLOCKS);
        let flash = &mut self.flash[zone.0 as usize];
        (flash.layout, flash.end_blocks) = (blank(self.scheme, pages), 0);
        self.charge_again(zone.0 as usize);
        self.buffer.reset(zone)
    }

    fn has_room(&self, lba: Lba, blocks: u64) -> bool {
        let (zone, offset) = self.locate(lba);
        let Some(flash) = self.flash.get(zone) else { return true };
        let charge = self.charge(zone, flash.end_blocks.max(offset + blocks));
        self.most_pages.is_none_or(|most| self.charged - flash.charged + charge <= most)
    }

    fn cut(&mut self) {
        self.flash.iter_mut().for_each(|zone| zone.layout.cut());
    }

    fn copy(&self) -> io::Result<Box<dyn Media>> {
        let of = |zone: &Flash| Flash { layout: zone.layout.copy(), ..*zone };
        Ok(Box::new(CompressedMedia {
            buffer: self.buffer.clone(),
            flash: self.flash.iter().map(of).collect(),
            ..*self
        }))
    }

    fn space(&self) -> Option<(Space, Reads)> {
        Some((CompressedMedia::space(self), self.reads))
    }

    fn flash_pages(&self, zone: ZoneIndex) -> Option<u64> {
        let flash = self.flash.get(zone.0 as usize).filter(|_| self.scheme != Scheme::Base)?;
        Some(flash.layout.flash_pages())
    }

    fn pieces(&self, lba: Lba) -> Vec<Piece> {
        let (zone, offset) = self.locate(lba);
        self.on_flash(zone, offset).map(|found| found.pieces).unwrap_or_default()
    }
}

/// Units of a flash page, one behind the other, and its out-of-band bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FlashPage {
    data: Vec<u8>,
    /// The size of each unit; 0 for none.
    cpsz: [u16; GROUP],
    cpsh: u8,
    about: Vec<About>,
}

/// Pages are shared by drives that were copied.
type Pages = Vec<Rc<FlashPage>>;

impl FlashPage {
    fn units(&self) -> usize {
        self.cpsz.iter().filter(|size| **size > 0).count()
    }

    /// Whether a unit of this size and its out-of-band information fit.
    fn fits(&self, size: usize) -> bool {
        self.units() < GROUP && self.data.len() + size <= PAGE
    }

    fn push(&mut self, unit: &Unit) {
        self.cpsz[self.units()] = unit.bytes.len() as u16;
        self.data.extend_from_slice(&unit.bytes);
        self.about.push(unit.about.clone());
    }

    /// A unit, located by the out-of-band bytes.
    fn unit(&self, index: usize) -> Option<Unit> {
        let size = |index: usize| self.cpsz[index] as usize;
        let about = self.about.get(index)?.clone();
        let start: usize = (0..index).map(size).sum();
        Some(Unit { bytes: self.data.get(start..start + size(index))?.to_vec(), about })
    }
}

#[cfg(test)]
mod tests;
