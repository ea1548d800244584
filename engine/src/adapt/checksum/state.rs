//! State of a drive with checksum blocks: the end of each zone, and the checksums in memory.

use super::block::{NO_SUM, SumOwner, sum_of};
use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completer, Completion, Geometry, Slots, ZoneEpochs, ZonedDevice},
    runtime::{Gate, Runtime},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
};

/// How a drive is used with checksum blocks.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumUsage {
    /// Blocks that share a checksum block.
    pub group_blocks: u64,
    /// Number of first zones that have no checksums.
    pub plain_zones: u32,
    /// UUID of the member.
    pub member: [u8; 16],
    /// Most checksum blocks that are kept in memory.
    pub cached_blocks: usize,
}

/// Layout of a zone: groups of data blocks, each followed by its checksum block. The last group may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumShape {
    /// Data blocks of a group.
    pub group_blocks: u64,
    /// Data blocks of a zone.
    pub capacity_blocks: u64,
    /// Blocks of a zone of the drive; some of its zones may have more, which are not used.
    drive_capacity_blocks: u64,
}

impl ChecksumShape {
    pub fn new(group_blocks: u64, drive_capacity_blocks: u64) -> ChecksumShape {
        let (groups, rest) =
            (drive_capacity_blocks / (group_blocks + 1), drive_capacity_blocks % (group_blocks + 1));
        let capacity_blocks = groups * group_blocks + rest.saturating_sub(1);
        ChecksumShape { group_blocks, capacity_blocks, drive_capacity_blocks }
    }

    /// Offset in the drive's zone of data block `at`.
    pub fn place(self, at: u64) -> u64 {
        at + at / self.group_blocks
    }

    /// First data block of the group of block `at`.
    pub fn first(self, at: u64) -> u64 {
        at - at % self.group_blocks
    }

    /// Data blocks of the group that begins with block `first`.
    pub fn len(self, first: u64) -> u64 {
        self.group_blocks.min(self.capacity_blocks - first)
    }

    /// Data blocks from `at` to the end of its group.
    pub fn left_in_group(self, at: u64) -> u64 {
        let first = self.first(at);
        first + self.len(first) - at
    }

    /// Offset in the drive's zone of the checksum block of the group that begins with block `first`.
    pub fn sum_place(self, first: u64) -> u64 {
        self.place(first) + self.len(first)
    }

    /// The data blocks below offset `place` of the drive's zone, and whether a group ends there of which the checksum
    /// block is not written.
    fn written(self, place: u64) -> (u64, bool) {
        let place = place.min(self.drive_capacity_blocks);
        let (groups, rest) = (place / (self.group_blocks + 1), place % (self.group_blocks + 1));
        let at = (groups * self.group_blocks + rest).min(self.capacity_blocks);
        let first = groups * self.group_blocks;
        let lacks_sums = first < self.capacity_blocks && rest > 0 && self.sum_place(first) == place;
        (at, lacks_sums)
    }
}

/// State of a zone.
pub enum ZoneSums {
    /// Nothing: the zone has not been reported.
    Unknown,
    /// Empty or active, or read-only with a known end.
    Open(OpenGroup),
    /// Full or offline, or its end is not known: every group that was begun has its checksum block.
    Ended,
}

/// The last group of a zone, which has no checksum block yet.
#[derive(Default)]
pub struct OpenGroup {
    /// Its first block.
    pub first: u64,
    /// Checksums of its blocks that are written; [`NO_SUM`] for unverified ones.
    pub sums: Vec<u32>,
    /// Whether some of them may be unverified.
    pub has_unverified: bool,
}

impl OpenGroup {
    /// End of the written blocks of the zone.
    pub fn next(&self) -> u64 {
        self.first + self.sums.len() as u64
    }

    /// The checksum of block `at`; [`NO_SUM`] if it is unverified. `None` if it is not a written block of the group.
    pub fn sum(&self, at: u64) -> Option<u32> {
        self.sums.get(at.checked_sub(self.first)? as usize).copied()
    }

    /// The blocks from the first unverified one to the last.
    pub fn unverified(&self) -> Range<u64> {
        let is_unverified = |sum: &u32| *sum == NO_SUM;
        let Some(from) = self.sums.iter().position(is_unverified).filter(|_| self.has_unverified) else {
            return 0..0;
        };
        let to = self.sums.iter().rposition(is_unverified).unwrap_or(from);
        self.first + from as u64..self.first + to as u64 + 1
    }
}

impl ZoneSums {
    fn of(shape: ChecksumShape, info: &ZoneInfo) -> ZoneSums {
        match info.state {
            ZoneState::Empty => ZoneSums::Open(OpenGroup::default()),
            ZoneState::Full | ZoneState::Offline => ZoneSums::Ended,
            _ if info.wp_blocks <= info.capacity_blocks => {
                let (next, lacks_sums) = shape.written(info.wp_blocks);
                let first = shape.first(if lacks_sums { next - 1 } else { next });
                let sums = vec![NO_SUM; (next - first) as usize];
                ZoneSums::Open(OpenGroup { first, has_unverified: !sums.is_empty(), sums })
            }
            _ => ZoneSums::Ended,
        }
    }

    /// Sets the checksum of an unverified block; others keep theirs.
    pub fn set_unverified(&mut self, at: u64, sum: u32) {
        if let ZoneSums::Open(open) = self
            && let Some(place) = at.checked_sub(open.first).and_then(|at| open.sums.get_mut(at as usize))
            && *place == NO_SUM
        {
            *place = sum;
        }
    }
}

/// Checksum blocks in memory. Each has one place, so that a block is found without a search.
pub struct SumCache {
    group_blocks: u64,
    groups: u64,
    places: Vec<Option<((u32, u64), Buf)>>,
}

impl SumCache {
    fn new(shape: ChecksumShape, zones: u32, most: usize) -> SumCache {
        let groups = shape.capacity_blocks.div_ceil(shape.group_blocks);
        let size = (zones as u64 * groups).min(most as u64).max(1) as usize;
        SumCache { group_blocks: shape.group_blocks, groups, places: vec![None; size] }
    }

    fn index(&self, (zone, first): (u32, u64)) -> usize {
        ((zone as u64 * self.groups + first / self.group_blocks) % self.places.len() as u64) as usize
    }

    /// The checksum block of the group of a zone that begins with block `first`.
    pub fn get(&self, key: (u32, u64)) -> Option<&Buf> {
        self.places[self.index(key)].as_ref().filter(|(held, _)| *held == key).map(|(_, block)| block)
    }

    pub fn put(&mut self, key: (u32, u64), block: Buf) {
        let index = self.index(key);
        self.places[index] = Some((key, block));
    }

    fn forget(&mut self, zone: u32) {
        for group in 0..self.groups {
            let index = self.index((zone, group * self.group_blocks));
            if self.places[index].as_ref().is_some_and(|((of, _), _)| *of == zone) {
                self.places[index] = None;
            }
        }
    }
}

/// A read in flight.
pub struct SumJob {
    pub zone: ZoneIndex,
    /// First block in the zone.
    pub at: u64,
    pub parts: SumJobParts,
}

pub enum SumJobParts {
    /// All blocks are in one group: the read of the blocks, and that of their checksum block if it is needed.
    One(Completion, Option<Completion>),
    /// They are in several groups: nothing is read yet. With the buffers.
    Several(Buf),
}

/// A task that waits for reads; reused.
#[derive(Default)]
pub struct SumReader {
    pub job: RefCell<Option<(SumJob, Completer)>>,
    pub begun: Gate,
}

pub struct ChecksumInner {
    pub device: Rc<dyn ZonedDevice>,
    pub runtime: Runtime,
    pub slots: Rc<Slots>,
    pub pool: RefCell<BufPool>,
    pub geometry: Geometry,
    pub shape: ChecksumShape,
    usage: ChecksumUsage,
    /// Other zones without checksums.
    pub plain: RefCell<BTreeSet<u32>>,
    /// Epoch of each zone; 0 before it is set.
    pub epochs: RefCell<Option<ZoneEpochs>>,
    zones: RefCell<Vec<ZoneSums>>,
    /// Commands that wait until the checksums of their zone are known.
    pub waiting: RefCell<BTreeMap<u32, Vec<(Command, Completer)>>>,
    /// Checksum blocks whose write has not succeeded yet, by zone and first block of their group.
    pub sealing: RefCell<BTreeMap<(u32, u64), Buf>>,
    /// Checksum blocks that are being read.
    pub loading: RefCell<BTreeMap<(u32, u64), Rc<Gate>>>,
    pub cache: RefCell<SumCache>,
    /// Reads that have returned a wrong block or met a wrong checksum block.
    pub wrong_reads: Cell<u64>,
    pub idle: RefCell<Vec<Rc<SumReader>>>,
}

impl ChecksumInner {
    pub fn new(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        geometry: Geometry,
        usage: ChecksumUsage,
    ) -> ChecksumInner {
        let shape = ChecksumShape::new(usage.group_blocks, device.geometry().zone_capacity_blocks);
        ChecksumInner {
            device,
            runtime: runtime.clone(),
            slots: Rc::default(),
            pool: RefCell::default(),
            shape,
            usage,
            plain: RefCell::default(),
            epochs: RefCell::default(),
            zones: RefCell::new((0..geometry.zones).map(|_| ZoneSums::Unknown).collect()),
            waiting: RefCell::default(),
            sealing: RefCell::default(),
            loading: RefCell::default(),
            cache: RefCell::new(SumCache::new(shape, geometry.zones, usage.cached_blocks)),
            wrong_reads: Cell::default(),
            idle: RefCell::default(),
            geometry,
        }
    }

    pub fn with<T>(&self, zone: ZoneIndex, f: impl FnOnce(&mut ZoneSums) -> T) -> T {
        f(&mut self.zones.borrow_mut()[zone.0 as usize])
    }

    pub fn is_plain(&self, zone: ZoneIndex) -> bool {
        zone.0 < self.usage.plain_zones || self.plain.borrow().contains(&zone.0)
    }

    /// Whether the checksums of all blocks of the last group are known.
    pub fn is_ready(&self, zone: ZoneIndex) -> bool {
        self.with(zone, |sums| match sums {
            ZoneSums::Unknown => false,
            ZoneSums::Open(open) => !open.has_unverified,
            ZoneSums::Ended => true,
        })
    }

    /// Takes note of a zone as its drive reports it, if nothing is known yet.
    pub fn learn(&self, info: &ZoneInfo) {
        self.with(info.zone, |sums| {
            if matches!(sums, ZoneSums::Unknown) {
                *sums = ZoneSums::of(self.shape, info);
            }
        });
    }

    /// A zone as its users see it.
    pub fn presented(&self, info: &ZoneInfo) -> ZoneInfo {
        let wp_blocks = match info.wp_blocks <= info.capacity_blocks {
            true => self.shape.written(info.wp_blocks).0,
            false => info.wp_blocks,
        };
        ZoneInfo { wp_blocks, capacity_blocks: self.shape.capacity_blocks, ..*info }
    }

    /// Address on the drive of data block `at` of a zone.
    pub fn place(&self, zone: ZoneIndex, at: u64) -> Lba {
        Lba(self.geometry.start(zone).0 + self.shape.place(at))
    }

    /// Address on the drive of the checksum block of the group that begins with block `first`.
    pub fn sum_place(&self, zone: ZoneIndex, first: u64) -> Lba {
        Lba(self.geometry.start(zone).0 + self.shape.sum_place(first))
    }

    pub fn owner(&self, zone: ZoneIndex, first: u64) -> SumOwner {
        let epoch = self.epochs.borrow().as_ref().map_or(0, |epochs| epochs(zone));
        SumOwner { member: self.usage.member, lba: self.sum_place(zone, first).0, epoch }
    }

    /// Appends the checksums of `data` to the last group of a zone.
    pub fn add(&self, zone: ZoneIndex, data: &[u8]) {
        self.with(zone, |sums| {
            if let ZoneSums::Open(open) = sums {
                open.sums.extend(data.chunks(BLOCK).map(sum_of));
                let (have, most) = (open.sums.len() as u64, self.shape.len(open.first));
                assert!(have <= most, "a group of {most} blocks has {have} checksums");
            }
        });
    }

    /// Whether the last group of a zone is complete, but not its checksum block.
    pub fn has_whole_group(&self, zone: ZoneIndex) -> bool {
        self.with(zone, |sums| match sums {
            ZoneSums::Open(open) => {
                !open.sums.is_empty() && open.sums.len() as u64 == self.shape.len(open.first)
            }
            _ => false,
        })
    }

    /// Begins the next group of a zone; returns the first block and the checksums of the last one.
    pub fn end_group(&self, zone: ZoneIndex) -> (u64, Vec<u32>) {
        self.with(zone, |sums| match sums {
            ZoneSums::Open(open) => {
                assert!(!open.has_unverified, "a group of zone {} ends with unverified blocks", zone.0);
                let (first, next) = (open.first, open.next());
                open.first = next;
                (
                    first,
                    std::mem::replace(&mut open.sums, Vec::with_capacity(self.shape.group_blocks as usize)),
                )
            }
            _ => unreachable!("a zone that is not written has no group that ends"),
        })
    }

    /// The zone is being reset.
    pub fn forget(&self, zone: ZoneIndex) {
        self.with(zone, |sums| *sums = ZoneSums::Open(OpenGroup::default()));
        self.sealing.borrow_mut().retain(|(of, _), _| *of != zone.0);
        self.cache.borrow_mut().forget(zone.0);
    }

    pub fn forget_all(&self) {
        (0..self.geometry.zones).for_each(|zone| self.forget(ZoneIndex(zone)));
    }
}
