//! State of a device whose zones are filled by appends: sessions, lanes, and the groups in memory.

use super::{
    mark::MarkOwner,
    ranks::{AppendGroup, BlockPosition},
};
use crate::{
    adapt::sequence::Sequencer,
    buf::{Buf, BufPool},
    device::{Command, Completer, Completion, DeviceError, Geometry, Slots, ZoneEpochs, ZonedDevice},
    runtime::{Gate, Runtime},
    zone::ZoneIndex,
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    ops::RangeInclusive,
    rc::Rc,
};

/// A drive whose zones are filled by appends: the drive, its zones, and the commands in flight.
pub struct AppendInner {
    pub device: Rc<dyn ZonedDevice>,
    /// Device for the zones that are passed through.
    pub plain: Sequencer,
    pub plain_zones: u32,
    pub runtime: Runtime,
    pub slots: Rc<Slots>,
    pub geometry: Geometry,
    pub group_blocks: u64,
    pub member: [u8; 16],
    /// Whether marks are followed by seals.
    pub checksums: bool,
    /// Source of the present epoch of each zone.
    pub epochs: RefCell<Option<ZoneEpochs>>,
    /// Reads that have returned a wrong block.
    pub wrong_reads: Cell<u64>,
    pub zones: RefCell<Vec<AppendZoneState>>,
    pub groups: RefCell<GroupCache>,
    /// Groups that are being loaded, by zone and first block.
    pub loading: RefCell<BTreeMap<(u32, u64), Rc<Gate>>>,
    /// Lanes: one for each zone with commands in flight. They are reused.
    pub lanes: RefCell<Vec<Rc<AppendLane>>>,
    pub pool: RefCell<BufPool>,
}

/// State of a zone.
#[derive(Default)]
pub struct AppendZoneState {
    /// Incremented when the zone is reset or finished, which invalidates earlier reads of its marks.
    pub life: u64,
    /// `None` if the zone is full, or its end is not known yet.
    pub session: Option<Session>,
}

/// The writes of this process to a zone. Blocks are counted from the start of the zone.
#[derive(Default)]
pub struct Session {
    /// First block of the session.
    pub from: u64,
    /// Number of void blocks of the drive's zone when the session began.
    pub void: u64,
    /// End of the submitted blocks.
    pub next: u64,
    /// End of the blocks that have landed, in order.
    pub landed: u64,
    /// A write has failed: the zone takes no more.
    pub failed: bool,
    /// The end of the zone is not certain: it takes no writes.
    pub in_doubt: bool,
    /// The group that is being written.
    pub group: Option<AppendGroup>,
}

/// Cache of groups that are not being written; the least recently used ones are dropped first.
#[derive(Default)]
pub struct GroupCache {
    /// Counts uses.
    clock: u64,
    /// Size of the groups in memory.
    bytes: usize,
    /// Limit of `bytes`, exceeded by one group only.
    most_bytes: usize,
    /// By zone and first block, with the time of the last use.
    held: BTreeMap<(u32, u64), (u64, AppendGroup)>,
    /// The same groups by the time of the last use.
    used: BTreeMap<u64, (u32, u64)>,
}

/// Queue of the commands of one zone, with those in flight.
#[derive(Default)]
pub struct AppendLane {
    /// The zone; `None` if the lane is idle.
    pub zone: Cell<Option<ZoneIndex>>,
    pub flights: RefCell<VecDeque<AppendFlight>>,
    pub waiting: RefCell<VecDeque<(Command, Completer)>>,
    /// Number of commands in flight.
    pub count: Cell<usize>,
    /// Blocks of these commands.
    pub blocks: Cell<u64>,
    /// Blocks of the oldest of them.
    pub oldest_blocks: Cell<u64>,
    /// A command for the zone (not a write) is in flight, which excludes all others.
    pub alone: Cell<bool>,
    /// The end of the zone has to be found before anything is submitted.
    pub looking: Cell<bool>,
    /// Error of a part of the oldest write, of which other parts are in flight.
    pub failed: Cell<Option<DeviceError>>,
    pub begun: Gate,
}

/// A command in flight.
pub struct AppendFlight {
    pub completion: Completion,
    pub what: AppendFlightKind,
}

/// Kind of a command in flight, with the completer of its submitter.
pub enum AppendFlightKind {
    /// `count` blocks of a write from block `from` on; with the completer and the buffer of the write if they are its
    /// last ones.
    Blocks { from: u64, count: u64, owner: Option<(Completer, Buf)> },
    /// A command for the zone, other than a write or a reset.
    Zone(Completer),
    /// A reset of the zone.
    Reset(Completer),
}

impl GroupCache {
    /// An empty cache of at most `most_bytes` bytes.
    pub fn new(most_bytes: usize) -> GroupCache {
        GroupCache { most_bytes, ..GroupCache::default() }
    }

    /// Keeps a group in memory, and drops the least recently used ones if there are too many.
    pub fn hold(&mut self, zone: ZoneIndex, group: AppendGroup) {
        let key = (zone.0, group.first);
        self.clock += 1;
        self.bytes += group.bytes();
        self.used.insert(self.clock, key);
        if let Some((used, before)) = self.held.insert(key, (self.clock, group)) {
            self.bytes -= before.bytes();
            self.used.remove(&used);
        }
        let (held, used) = (self.held.len(), self.used.len());
        assert_eq!(held, used, "groups in the cache, and times of their last use");
        while self.bytes > self.most_bytes && self.held.len() > 1 {
            let Some((_, key)) = self.used.pop_first() else { return };
            self.bytes -= self.held.remove(&key).map_or(0, |(_, group)| group.bytes());
        }
    }

    /// Place of a block of the group that begins with `first`; `None` if the group is not in memory.
    pub fn position(&mut self, zone: ZoneIndex, first: u64, block: u64) -> Option<BlockPosition> {
        let (used, group) = self.held.get_mut(&(zone.0, first))?;
        self.clock += 1;
        self.used.remove(used);
        self.used.insert(self.clock, (zone.0, first));
        *used = self.clock;
        Some(group.position(block))
    }

    /// Drops the groups of a zone that begin with one of the blocks `firsts`; returns whether there were any.
    pub fn forget(&mut self, zone: ZoneIndex, firsts: RangeInclusive<u64>) -> bool {
        let keys = (zone.0, *firsts.start())..=(zone.0, *firsts.end());
        let keys: Vec<_> = self.held.range(keys).map(|(key, _)| *key).collect();
        for key in &keys {
            if let Some((used, group)) = self.held.remove(key) {
                self.bytes -= group.bytes();
                self.used.remove(&used);
            }
        }
        !keys.is_empty()
    }
}

impl AppendInner {
    /// Drops the known state of a zone, which a reset or finish changes.
    pub fn end_life(&self, zone: ZoneIndex) {
        let known = &mut self.zones.borrow_mut()[zone.0 as usize];
        *known = AppendZoneState { life: known.life + 1, session: None };
        self.groups.borrow_mut().forget(zone, 0..=u64::MAX);
    }

    /// Owner of the blocks of a zone.
    pub fn owner(&self, zone: ZoneIndex) -> MarkOwner {
        MarkOwner { member: self.member, zone: zone.0 }
    }

    /// Present epoch of a zone; 0 before epochs are known.
    pub fn epoch(&self, zone: ZoneIndex) -> u64 {
        self.epochs.borrow().as_ref().map_or(0, |epochs| epochs(zone))
    }

    /// Life of a zone ([`AppendZoneState::life`]).
    pub fn life(&self, zone: ZoneIndex) -> u64 {
        self.zones.borrow()[zone.0 as usize].life
    }

    /// Place of a block; `None` if its group is not in memory.
    pub fn position(&self, zone: ZoneIndex, block: u64) -> Option<BlockPosition> {
        let first = block - block % self.group_blocks;
        let zones = self.zones.borrow();
        if let Some(session) = &zones[zone.0 as usize].session {
            if block >= session.landed {
                return Some(BlockPosition::Nothing);
            }
            if let Some(group) = session.group.as_ref().filter(|group| group.first == first) {
                return Some(group.position(block));
            }
        }
        self.groups.borrow_mut().position(zone, first, block)
    }

    /// End of the blocks of a group that are known to have landed.
    pub fn landed_of(&self, zone: ZoneIndex, first: u64) -> u64 {
        let zones = self.zones.borrow();
        let landed = zones[zone.0 as usize].session.as_ref().map_or(0, |session| session.landed);
        landed.min(first + self.group_blocks)
    }
}
