//! Storage of an emulated SSD for its blocks and zone states.
//!
//! Media enforce no rules: [`super::Ssd`] calls them with ranges within the capacity of one zone. A block that was
//! never written, or was forgotten, reads as zeros.

use engine::{
    buf::BLOCK,
    device::Geometry,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{io, ops::Range, rc::Rc};

/// The storage of a drive. The results of a call are there when the drive is powered on again.
pub trait Media {
    /// Fills `data`, whole blocks from `lba` on, and `oob` unless it is empty.
    fn read(&mut self, lba: Lba, data: &mut [u8], oob: &mut [u8]) -> io::Result<()>;

    /// Stores whole blocks, each together with its out-of-band metadata: zeros if `oob` is empty.
    fn write(&mut self, lba: Lba, data: &[u8], oob: &[u8]) -> io::Result<()>;

    /// Whether the block has been written since its zone was last reset.
    fn is_written(&mut self, lba: Lba) -> io::Result<bool>;

    /// Makes a block unwritten again.
    fn forget(&mut self, lba: Lba) -> io::Result<()>;

    /// The state of a zone: empty at first, then as last stored.
    fn zone(&self, zone: ZoneIndex) -> ZoneInfo;

    /// Stores the state of a zone.
    fn set_zone(&mut self, info: &ZoneInfo) -> io::Result<()>;

    /// Makes a zone empty and all its blocks unwritten, at once.
    fn reset(&mut self, zone: ZoneIndex) -> io::Result<()>;

    /// Whether there certainly is room for `blocks` blocks from `lba` on, in one zone. Always true, except for media
    /// that announce more than they hold.
    fn has_room(&self, _lba: Lba, _blocks: u64) -> bool {
        true
    }

    /// The power fails and returns, interrupting background work of the media.
    fn cut(&mut self) {}

    /// Space statistics of compressing media, and their read statistics.
    fn space(&self) -> Option<(Space, Reads)> {
        None
    }

    /// Flash pages used by a zone, in compressing media.
    fn flash_pages(&self, _zone: ZoneIndex) -> Option<u64> {
        None
    }

    /// The places on flash of the logical page of a block, in compressing media; empty if it is not on flash.
    fn pieces(&self, _lba: Lba) -> Vec<Piece> {
        Vec::new()
    }

    /// A separate copy with the same contents; only media in memory support it.
    fn copy(&self) -> io::Result<Box<dyn Media>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Space statistics of a drive, or of one of its zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Placed logical pages.
    pub pages: u64,
    /// Flash pages that they take.
    pub flash_pages: u64,
    /// Bytes of all units.
    pub bytes: u64,
    /// Units with a rest that is stored apart.
    pub truncated: u64,
    /// Groups that kept their order, and groups for which a better order was sought.
    pub compacted: u64,
    pub braided: u64,
}

/// Read statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Logical pages that were on flash.
    pub pages: u64,
    /// Flash pages that were read for them.
    pub flash_pages: u64,
}

/// A unit, or a part of one, on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The flash page, by a number that is unique in the zone.
    pub page: u64,
    pub bytes: u64,
}

/// The state in which a zone comes back when power returns.
pub(super) fn after_power_on(info: ZoneInfo) -> ZoneInfo {
    let state = match info.state {
        state if !state.is_active() => state,
        _ if info.wp_blocks == 0 && !info.zrwa => ZoneState::Empty,
        _ => ZoneState::Closed,
    };
    ZoneInfo { state, ..info }
}

/// Blocks of an [`Extent`].
const EXTENT: u64 = 16;

/// Neighbouring blocks of a zone, allocated when the first of them is written.
#[derive(Clone)]
struct Extent {
    /// Blocks that are not all zeros, in the order in which they were first written.
    data: Vec<u8>,
    oob: Vec<u8>,
    /// The position of each block in `data`, from 1; 0 if it is all zeros.
    stored: [u8; EXTENT as usize],
    /// A bit for each block that has been written.
    written: u16,
}

impl Extent {
    /// The bytes of `data` that belong to the block, if any.
    fn range(&self, block: usize) -> Option<Range<usize>> {
        let before = self.stored[block].checked_sub(1)? as usize;
        Some(before * BLOCK..(before + 1) * BLOCK)
    }
}

const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Media in memory. Only written blocks take space, and a copy only for extents that differ.
#[derive(Clone)]
pub struct MemoryMedia {
    zone_size: u64,
    oob_bytes: usize,
    zones: Vec<ZoneInfo>,
    extents: Vec<Vec<Option<Rc<Extent>>>>,
    /// Extents of zones that were reset, for reuse.
    free: Vec<Rc<Extent>>,
}

impl MemoryMedia {
    const MOST_FREE: usize = 64;

    /// Blank media for a drive of this geometry.
    pub fn new(geometry: &Geometry) -> MemoryMedia {
        MemoryMedia {
            zone_size: geometry.zone_size_blocks,
            oob_bytes: geometry.oob_bytes as usize,
            zones: blank_zones(geometry),
            extents: vec![Vec::new(); geometry.zones as usize],
            free: Vec::new(),
        }
    }

    fn extent(&self, lba: Lba) -> Option<(&Extent, usize)> {
        let offset = lba.0 % self.zone_size;
        let zone = self.extents.get((lba.0 / self.zone_size) as usize)?;
        let extent = zone.get((offset / EXTENT) as usize)?.as_deref()?;
        let index = (offset % EXTENT) as usize;
        (extent.written >> index & 1 == 1).then_some((extent, index))
    }

    fn extent_to_write(&mut self, lba: Lba) -> (&mut Extent, usize) {
        let offset = lba.0 % self.zone_size;
        let zone = &mut self.extents[(lba.0 / self.zone_size) as usize];
        let index = (offset / EXTENT) as usize;
        if zone.len() <= index {
            zone.resize_with(index + 1, || None);
        }
        let extent = zone[index].get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                Rc::new(Extent {
                    data: Vec::new(),
                    oob: vec![0; EXTENT as usize * self.oob_bytes],
                    stored: [0; EXTENT as usize],
                    written: 0,
                })
            })
        });
        (Rc::make_mut(extent), (offset % EXTENT) as usize)
    }
}

impl Media for MemoryMedia {
    fn read(&mut self, lba: Lba, data: &mut [u8], oob: &mut [u8]) -> io::Result<()> {
        let size = self.oob_bytes;
        for (i, block) in data.chunks_exact_mut(BLOCK).enumerate() {
            let oob = if oob.is_empty() { &mut [] } else { &mut oob[i * size..][..size] };
            match self.extent(Lba(lba.0 + i as u64)) {
                Some((extent, at)) => {
                    match extent.range(at) {
                        Some(range) => block.copy_from_slice(&extent.data[range]),
                        None => block.fill(0),
                    }
                    let stored = &extent.oob[at * size..];
                    oob.copy_from_slice(&stored[..oob.len()]);
                }
                None => {
                    block.fill(0);
                    oob.fill(0);
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, lba: Lba, data: &[u8], oob: &[u8]) -> io::Result<()> {
        let size = self.oob_bytes;
        for (i, block) in data.chunks_exact(BLOCK).enumerate() {
            let (extent, at) = self.extent_to_write(Lba(lba.0 + i as u64));
            if let Some(range) = extent.range(at) {
                extent.data[range].copy_from_slice(block);
            } else if *block != ZEROS {
                extent.data.extend_from_slice(block);
                extent.stored[at] = (extent.data.len() / BLOCK) as u8;
            }
            let stored = &mut extent.oob[at * size..][..size];
            match oob.get(i * size..(i + 1) * size) {
                Some(oob) => stored.copy_from_slice(oob),
                None => stored.fill(0),
            }
            extent.written |= 1 << at;
        }
        Ok(())
    }

    fn is_written(&mut self, lba: Lba) -> io::Result<bool> {
        Ok(self.extent(lba).is_some())
    }

    fn forget(&mut self, lba: Lba) -> io::Result<()> {
        if self.extent(lba).is_some() {
            let (extent, at) = self.extent_to_write(lba);
            extent.written &= !(1 << at);
        }
        Ok(())
    }

    fn zone(&self, zone: ZoneIndex) -> ZoneInfo {
        self.zones[zone.0 as usize]
    }

    fn set_zone(&mut self, info: &ZoneInfo) -> io::Result<()> {
        self.zones[info.zone.0 as usize] = *info;
        Ok(())
    }

    fn reset(&mut self, zone: ZoneIndex) -> io::Result<()> {
        let info = &mut self.zones[zone.0 as usize];
        *info = ZoneInfo { state: ZoneState::Empty, wp_blocks: 0, zrwa: false, ..*info };
        for mut extent in self.extents[zone.0 as usize].drain(..).flatten() {
            if let Some(own) = Rc::get_mut(&mut extent)
                && self.free.len() < Self::MOST_FREE
            {
                own.written = 0;
                own.stored = [0; EXTENT as usize];
                own.data.clear();
                self.free.push(extent);
            }
        }
        Ok(())
    }

    fn copy(&self) -> io::Result<Box<dyn Media>> {
        Ok(Box::new(MemoryMedia { free: Vec::new(), ..self.clone() }))
    }
}

/// Media that keep the states of zones and no data: every block reads as zeros.
pub struct NoMedia(Vec<ZoneInfo>);

impl NoMedia {
    /// Blank media for a drive of this geometry.
    pub fn new(geometry: &Geometry) -> NoMedia {
        NoMedia(blank_zones(geometry))
    }
}

impl Media for NoMedia {
    fn read(&mut self, _: Lba, data: &mut [u8], oob: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        oob.fill(0);
        Ok(())
    }

    fn write(&mut self, _: Lba, _: &[u8], _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn is_written(&mut self, _: Lba) -> io::Result<bool> {
        Ok(false)
    }

    fn forget(&mut self, _: Lba) -> io::Result<()> {
        Ok(())
    }

    fn zone(&self, zone: ZoneIndex) -> ZoneInfo {
        self.0[zone.0 as usize]
    }

    fn set_zone(&mut self, info: &ZoneInfo) -> io::Result<()> {
        self.0[info.zone.0 as usize] = *info;
        Ok(())
    }

    fn reset(&mut self, zone: ZoneIndex) -> io::Result<()> {
        let info = &mut self.0[zone.0 as usize];
        *info = ZoneInfo { state: ZoneState::Empty, wp_blocks: 0, zrwa: false, ..*info };
        Ok(())
    }
}

fn blank_zones(geometry: &Geometry) -> Vec<ZoneInfo> {
    let empty = |zone| ZoneInfo {
        zone: ZoneIndex(zone),
        state: ZoneState::Empty,
        wp_blocks: 0,
        capacity_blocks: geometry.zone_capacity_blocks,
        zrwa: false,
    };
    (0..geometry.zones).map(empty).collect()
}
