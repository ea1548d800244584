//! Compression in the drive: media whose flash holds compressed pages (docs/COMPRESSION.md).
//!
//! A *logical page* is 16 KiB of a zone, four blocks, and what the drive compresses at once. What comes of it is a
//! *unit*. Four neighbouring logical pages are a *group*. A *flash page* has 16 KiB too, and out-of-band bytes that say
//! which units are in it. What the write pointer has not passed may be written again, so it waits uncompressed in a
//! buffer; a group is compressed and placed, in the way of its [`Scheme`], when the write pointer has passed all of it.
//!
//! Invariants: pages are placed in order, none before those ahead of it; of each block either the buffer or the flash
//! has the newest version, and reads look nowhere else. What the drive charges for a page that is in the buffer is what
//! it may take on flash at most, so that there always is room for what was acknowledged.
//!
//! Media know no rules, and none of the drive's changes: whatever is taken back of what was placed, as a volatile
//! cache does in a power cut, is taken from flash into the buffer again, with all that lies behind it.

mod balloon;
mod base;
mod braid;
mod select;

pub use select::Choice;

use super::{Media, MemoryMedia};
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

/// How a drive places what it has compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// As it comes, not compressed.
    Base,
    /// In slots that are alike in all of a zone; what does not fit lies apart.
    Balloon(Slots),
    /// So that no unit crosses a flash page, in the order that takes the fewest.
    Braid(Choice),
}

/// What decides the slots of a zone, from the sizes of its first units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// The least space, rests that lie apart included.
    LeastSpace,
    /// The same, where a rest takes whole slots.
    WholeRests,
    /// The smallest that so many of a hundred units fit in.
    Fitting(u64),
}

/// A logical page, compressed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Unit {
    /// [`PAGE`] bytes if it does not compress: then they are the page itself.
    bytes: Vec<u8>,
    about: About,
}

/// What the out-of-band bytes of a flash page say of a unit besides its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct About {
    /// A bit for each block that is written.
    written: u8,
    /// The host's metadata of the blocks.
    host: Vec<u8>,
}

/// A unit that was read.
struct Found {
    unit: Unit,
    /// Where it lies on flash, in the order in which it has to be read; nowhere if it is in the buffer.
    pieces: Vec<Piece>,
}

/// A unit, or a part of one, on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The flash page, by a number that no other page of the zone has.
    pub page: u64,
    pub bytes: u64,
}

/// A zone on flash.
trait Layout {
    /// Places a group behind what is there. It is smaller than four units only at the end of the zone.
    fn push(&mut self, group: Vec<Unit>);

    /// There is nothing to come.
    fn close(&mut self) {}

    /// Units that have been placed.
    fn units(&self) -> u64;

    /// Flash pages that are taken.
    fn flash_pages(&self) -> u64;

    /// The most flash pages that all units may take when so many more have been placed.
    fn most(&self, units: u64) -> u64;

    /// A unit that has been placed.
    fn unit(&self, index: u64) -> Option<Found>;

    /// Takes back all units from `index` on, the first of a group.
    fn take_from(&mut self, index: u64) -> Vec<Unit>;

    /// The power fails while the last group is being programmed, and returns.
    fn cut(&mut self) {}

    /// How it was done.
    fn space(&self) -> Space;

    fn copy(&self) -> Box<dyn Layout>;
}

/// What is on the flash of a drive, or of one of its zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Logical pages that have been placed.
    pub pages: u64,
    /// Flash pages that they take.
    pub flash_pages: u64,
    /// Bytes of all units.
    pub bytes: u64,
    /// Units of which a rest lies apart.
    pub truncated: u64,
    /// Groups that kept their order, and groups that were put in another one or might have been.
    pub compacted: u64,
    pub braided: u64,
}

impl Space {
    /// Both together.
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

    /// Logical pages for each flash page.
    pub fn efficiency(&self) -> f64 {
        self.pages as f64 / self.flash_pages.max(1) as f64
    }
}

/// What a logical page becomes: LZ4, or the page itself where that is no shorter.
pub fn compress(page: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; lz4_flex::block::get_maximum_output_size(page.len())];
    match lz4_flex::block::compress_into(page, &mut bytes) {
        Ok(length) if length < page.len() => bytes.truncate(length),
        _ => bytes = page.to_vec(),
    }
    bytes
}

/// The logical page that became these bytes.
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

/// Media in memory that compress.
pub struct CompressedMedia {
    scheme: Scheme,
    zone_size: u64,
    oob_bytes: usize,
    /// What is not on flash yet, and the states of zones.
    buffer: MemoryMedia,
    flash: Vec<Flash>,
    /// Flash pages that there are, if they are fewer than may be needed.
    most_pages: Option<u64>,
    /// What all zones are charged for.
    charged: u64,
    /// Flash pages that reads took, and logical pages that they were for.
    reads: Reads,
}

/// What reads of the host came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Logical pages that were on flash.
    pub pages: u64,
    /// Flash pages that were read for them.
    pub flash_pages: u64,
}

/// The flash of a zone.
struct Flash {
    layout: Box<dyn Layout>,
    /// The end of what was written since the zone was reset, in blocks from its start.
    end_blocks: u64,
    /// Flash pages that are taken or kept free for it.
    charged: u64,
}

impl CompressedMedia {
    /// Blank media for a drive of this shape, with as much flash as it can need.
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

    /// The same with so many flash pages in all, fewer than its zones can need: what data saves is announced as
    /// capacity then, and a write is refused that might not find room.
    ///
    /// # Panics
    /// With a volatile cache: what a power cut takes back of it may take more than what was placed has saved.
    pub fn with_pages(geometry: &Geometry, scheme: Scheme, flash_pages: u64) -> CompressedMedia {
        assert!(!geometry.volatile_cache, "a drive with a volatile cache cannot announce more than it has");
        CompressedMedia { most_pages: Some(flash_pages), ..CompressedMedia::new(geometry, scheme) }
    }

    /// What is on flash.
    pub fn space(&self) -> Space {
        self.flash.iter().fold(Space::default(), |space, zone| space.plus(zone.layout.space()))
    }

    /// What reads came to.
    pub fn reads(&self) -> Reads {
        self.reads
    }

    fn locate(&self, lba: Lba) -> (usize, u64) {
        ((lba.0 / self.zone_size) as usize, lba.0 % self.zone_size)
    }

    /// What the zone would be charged for if it had been written up to `end_blocks`.
    fn charge(&self, zone: usize, end_blocks: u64) -> u64 {
        let layout = &self.flash[zone].layout;
        layout.most(end_blocks.div_ceil(PAGE_BLOCKS).saturating_sub(layout.units()))
    }

    fn charge_again(&mut self, zone: usize) {
        let charge = self.charge(zone, self.flash[zone].end_blocks);
        self.charged = self.charged - self.flash[zone].charged + charge;
        self.flash[zone].charged = charge;
    }

    /// Compresses and places what the write pointer of the zone has passed.
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
            // A zone that was full, and is not any more.
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

    /// Takes a logical page out of the buffer.
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

    /// Takes what is on flash from the group of this block on into the buffer again.
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

    fn on_flash(&self, zone: usize, offset: u64) -> Option<Found> {
        self.flash.get(zone)?.layout.unit(offset / PAGE_BLOCKS)
    }
}

/// A zone of so many logical pages with nothing in it.
fn blank(scheme: Scheme, pages: u64) -> Box<dyn Layout> {
    match scheme {
        Scheme::Base => Box::new(base::Zone::default()),
        Scheme::Balloon(slots) => Box::new(balloon::Zone::new(slots, pages)),
        Scheme::Braid(choice) => Box::new(braid::Zone::new(choice)),
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

    /// Whether a unit of this size, and all that is said of it, has room.
    fn fits(&self, size: usize) -> bool {
        self.units() < GROUP && self.data.len() + size <= PAGE
    }

    fn push(&mut self, unit: &Unit) {
        self.cpsz[self.units()] = unit.bytes.len() as u16;
        self.data.extend_from_slice(&unit.bytes);
        self.about.push(unit.about.clone());
    }

    /// A unit, by the out-of-band bytes.
    fn unit(&self, index: usize) -> Option<Unit> {
        let size = |index: usize| self.cpsz[index] as usize;
        let about = self.about.get(index)?.clone();
        let start: usize = (0..index).map(size).sum();
        Some(Unit { bytes: self.data.get(start..start + size(index))?.to_vec(), about })
    }
}

#[cfg(test)]
mod tests;
