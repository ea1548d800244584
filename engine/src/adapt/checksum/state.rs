//! State of a drive with checksum blocks: the end of each zone, and the checksums in memory.

use super::block::{GROUP_BLOCKS, NO_SUM, SumOwner, sum_of};
use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completer, Completion, Geometry, Slots, ZoneEpochs, ZonedDevice, Zrwa},
    runtime::{Gate, Runtime},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    rc::Rc,
};

/// How a drive is used with checksum blocks.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumUsage {
    /// Blocks that share a checksum block.
    pub group_blocks: u64,
    /// Whether zones are written in their ZRWAs.
    pub in_zrwa: bool,
    /// Number of first zones that have no checksums.
    pub plain_zones: u32,
    /// UUID of the member.
    pub member: [u8; 16],
    /// Most checksum blocks that are kept in memory.
    pub cached_blocks: usize,
}

/// Layout of a zone: bundles of groups of data blocks, each bundle followed by the checksum blocks of its groups. The last
/// bundle may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumShape {
    /// Data blocks of a group.
    pub group_blocks: u64,
    /// Groups of a bundle, and blocks behind its data.
    pub bundle_groups: u64,
    /// Data blocks of a zone.
    pub capacity_blocks: u64,
    /// Blocks of a zone of the drive; some of its zones may have more, which are not used.
    drive_capacity_blocks: u64,
    /// Blocks of a presented ZRWA; 0 without one.
    window_blocks: u64,
}

impl ChecksumShape {
    /// The layout of the zones of a drive. `None` if it is impossible ([`super::ChecksumDevice::geometry_of`]).
    pub fn new(drive: &Geometry, group_blocks: u64, in_zrwa: bool) -> Option<ChecksumShape> {
        let (bundle_groups, window_blocks) = match (in_zrwa, drive.zrwa) {
            (false, _) => (1, 0),
            // Write pointers stop at multiples of the granularity only, and a ZRWA at the end of a bundle has its
            // checksum blocks, too.
            (true, Some(zrwa)) => {
                (zrwa.granularity_blocks, zrwa.size_blocks.checked_sub(zrwa.granularity_blocks)?)
            }
            (true, None) => return None,
        };
        let data = group_blocks * bundle_groups;
        let is_possible = GROUP_BLOCKS.contains(&group_blocks)
            && bundle_groups > 0
            && bundle_groups <= drive.max_transfer_blocks as u64
            && window_blocks.is_multiple_of(bundle_groups)
            && (!in_zrwa || (bundle_groups..=data).contains(&window_blocks));
        if !is_possible {
            return None;
        }
        let bundle = data + bundle_groups;
        let (bundles, rest) = (drive.zone_capacity_blocks / bundle, drive.zone_capacity_blocks % bundle);
        let rest = rest.saturating_sub(bundle_groups) / bundle_groups * bundle_groups;
        // A ZRWA ends in the next bundle.
        let last = if rest < window_blocks { 0 } else { rest };
        let shape = ChecksumShape {
            group_blocks,
            bundle_groups,
            capacity_blocks: bundles * data + last,
            drive_capacity_blocks: drive.zone_capacity_blocks,
            window_blocks,
        };
        (shape.capacity_blocks > 0).then_some(shape)
    }

    /// Geometry of a drive whose zones have this layout.
    pub fn geometry(self, drive: &Geometry) -> Geometry {
        let smaller = |zrwa: Zrwa| Zrwa { size_blocks: self.window_blocks, ..zrwa };
        Geometry {
            zone_capacity_blocks: self.capacity_blocks,
            zrwa: drive.zrwa.filter(|_| self.window_blocks > 0).map(smaller),
            max_append_blocks: 0,
            ..drive.clone()
        }
    }

    fn bundle_blocks(self) -> u64 {
        self.group_blocks * self.bundle_groups
    }

    /// Offset in the drive's zone of data block `at`.
    pub fn place(self, at: u64) -> u64 {
        at + at / self.bundle_blocks() * self.bundle_groups
    }

    /// First data block of the bundle of block `at`.
    pub fn bundle(self, at: u64) -> u64 {
        at - at % self.bundle_blocks()
    }

    /// End of the data blocks of the bundle that begins with block `bundle`.
    pub fn bundle_end(self, bundle: u64) -> u64 {
        (bundle + self.bundle_blocks()).min(self.capacity_blocks)
    }

    /// First data block of the group of block `at`.
    pub fn first(self, at: u64) -> u64 {
        at - at % self.bundle_blocks() % self.group_blocks
    }

    /// Data blocks of the group that begins with block `first`.
    pub fn len(self, first: u64) -> u64 {
        self.group_blocks.min(self.bundle_end(self.bundle(first)) - first)
    }

    /// Data blocks from `at` to the end of its group.
    pub fn left_in_group(self, at: u64) -> u64 {
        let first = self.first(at);
        first + self.len(first) - at
    }

    /// First blocks of the groups of the bundle that begins with block `bundle`.
    pub fn groups(self, bundle: u64) -> impl Iterator<Item = u64> {
        (bundle..self.bundle_end(bundle)).step_by(self.group_blocks as usize)
    }

    /// Offset in the drive's zone of the checksum block of the group that begins with block `first`.
    pub fn sum_place(self, first: u64) -> u64 {
        let bundle = self.bundle(first);
        self.place(bundle) + self.bundle_end(bundle) - bundle + (first - bundle) / self.group_blocks
    }

    /// End of the blocks of a zone that may be written with its write pointer at block `wp_blocks`: in a ZRWA that of the
    /// ZRWA, otherwise none.
    pub fn window_end(self, wp_blocks: u64) -> u64 {
        (wp_blocks + self.window_blocks).min(self.capacity_blocks)
    }

    /// The data blocks below offset `place` of the drive's zone, and whether a bundle ends there of which the checksum
    /// blocks are not all written.
    fn written(self, place: u64) -> (u64, bool) {
        let (place, bundle) = (place.min(self.drive_capacity_blocks), self.bundle_blocks());
        let (bundles, rest) = (place / (bundle + self.bundle_groups), place % (bundle + self.bundle_groups));
        let first = bundles * bundle;
        let at = (first + rest.min(bundle)).min(self.capacity_blocks);
        let sums = |first| self.sum_place(first)..self.sum_place(first) + self.bundle_groups;
        let lacks_sums = first < self.capacity_blocks && rest > 0 && sums(first).contains(&place);
        (at, lacks_sums)
    }
}

/// State of a zone.
pub enum ZoneSums {
    /// Nothing: the zone has not been reported.
    Unknown,
    /// Empty or active, or read-only with a known end.
    Open(OpenBundle),
    /// Full or offline, or its end is not known: every bundle that was begun has its checksum blocks.
    Ended,
}

/// The last bundle of a zone, which has no checksum blocks yet, and the blocks that are written behind it in a ZRWA.
#[derive(Default)]
pub struct OpenBundle {
    /// Its first block.
    pub first: u64,
    /// Checksums of its blocks that are written; [`NO_SUM`] for unverified ones, and unwritten ones in a ZRWA.
    pub sums: Vec<u32>,
    /// Blocks before this one may be unverified, later ones may not.
    pub unverified_to: u64,
    /// Whether the zone has a ZRWA.
    pub has_zrwa: bool,
    /// Data blocks before the write pointer, if the zone has a ZRWA.
    pub wp_blocks: u64,
}

impl OpenBundle {
    /// End of the written blocks of the zone, if it has no ZRWA.
    pub fn next(&self) -> u64 {
        self.first + self.sums.len() as u64
    }

    /// The checksum of block `at`; [`NO_SUM`] if it is unverified. `None` if it is not a written block of the bundle.
    pub fn sum(&self, at: u64) -> Option<u32> {
        self.sums.get(at.checked_sub(self.first)? as usize).copied()
    }

    /// Sets the checksums of blocks from block `at` on; blocks before the bundle have theirs.
    pub fn set(&mut self, at: u64, sums: impl Iterator<Item = u32>) {
        for (at, sum) in (at..).zip(sums) {
            let Some(index) = at.checked_sub(self.first) else { continue };
            if self.sums.len() as u64 <= index {
                self.sums.resize(index as usize + 1, NO_SUM);
            }
            self.sums[index as usize] = sum;
        }
    }

    /// Whether block `at` is unverified.
    pub fn is_unverified(&self, at: u64) -> bool {
        (self.first..self.unverified_to).contains(&at) && self.sum(at).unwrap_or(NO_SUM) == NO_SUM
    }

    /// The blocks from the first unverified one to the last.
    pub fn unverified(&self) -> Range<u64> {
        let mut blocks = self.first..self.unverified_to;
        let Some(from) = blocks.find(|at| self.is_unverified(*at)) else { return 0..0 };
        let to = blocks.rev().find(|at| self.is_unverified(*at)).unwrap_or(from);
        from..to + 1
    }
}

impl ZoneSums {
    fn of(shape: ChecksumShape, info: &ZoneInfo) -> ZoneSums {
        match info.state {
            // An empty zone may have blocks: its ZRWA ended before its write pointer moved.
            ZoneState::Empty => {
                ZoneSums::Open(OpenBundle { unverified_to: shape.window_end(0), ..OpenBundle::default() })
            }
            ZoneState::Full | ZoneState::Offline => ZoneSums::Ended,
            _ if info.wp_blocks <= info.capacity_blocks => {
                let (wp_blocks, lacks_sums) = shape.written(info.wp_blocks);
                let first = shape.bundle(if lacks_sums { wp_blocks - 1 } else { wp_blocks });
                let sums = vec![NO_SUM; (wp_blocks - first) as usize];
                ZoneSums::Open(OpenBundle {
                    first,
                    unverified_to: shape.window_end(wp_blocks),
                    sums,
                    has_zrwa: info.zrwa,
                    wp_blocks,
                })
            }
            _ => ZoneSums::Ended,
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

/// An explicit flush that waits.
pub struct PassingFlush {
    /// Block to which it moves the write pointer.
    pub to: u64,
    /// Whether the zone ends with the bundle that it passes.
    pub is_last: bool,
    pub completer: Completer,
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
    /// Explicit flushes that pass the end of a bundle, or wait for one, by zone.
    pub passing: RefCell<BTreeMap<u32, VecDeque<PassingFlush>>>,
}

impl ChecksumInner {
    pub fn new(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        shape: ChecksumShape,
        usage: ChecksumUsage,
    ) -> ChecksumInner {
        let geometry = shape.geometry(device.geometry());
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
            passing: RefCell::default(),
            geometry,
        }
    }

    pub fn with<T>(&self, zone: ZoneIndex, f: impl FnOnce(&mut ZoneSums) -> T) -> T {
        f(&mut self.zones.borrow_mut()[zone.0 as usize])
    }

    pub fn is_plain(&self, zone: ZoneIndex) -> bool {
        zone.0 < self.usage.plain_zones || self.plain.borrow().contains(&zone.0)
    }

    /// Whether zones are written in ZRWAs.
    pub fn in_zrwa(&self) -> bool {
        self.usage.in_zrwa
    }

    /// As [`crate::device::BlockChecksums::unverified`].
    pub fn unverified(&self, zone: ZoneIndex) -> Range<u64> {
        self.with(zone, |sums| match sums {
            ZoneSums::Open(open) => open.unverified(),
            _ => 0..0,
        })
    }

    /// Sets the checksum of an unverified block; others keep theirs.
    pub fn set_unverified(&self, zone: ZoneIndex, at: u64, sum: u32) {
        self.with(zone, |sums| {
            if let ZoneSums::Open(open) = sums
                && open.is_unverified(at)
            {
                open.set(at, [sum].into_iter());
            }
        });
    }

    /// Whether a zone can be written: in a ZRWA its end is known, otherwise the checksums of all blocks of its last group.
    pub fn is_ready(&self, zone: ZoneIndex) -> bool {
        self.with(zone, |sums| match sums {
            ZoneSums::Unknown => false,
            ZoneSums::Open(open) => self.usage.in_zrwa || open.unverified_to == 0,
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
                assert!(open.unverified_to == 0, "a group of zone {} ends with unverified blocks", zone.0);
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
        self.with(zone, |sums| *sums = ZoneSums::Open(OpenBundle::default()));
        self.sealing.borrow_mut().retain(|(of, _), _| *of != zone.0);
        self.cache.borrow_mut().forget(zone.0);
    }

    pub fn forget_all(&self) {
        (0..self.geometry.zones).for_each(|zone| self.forget(ZoneIndex(zone)));
    }
}
