//! All zones of a running array: their states as the host sees them, and the running zones.

use crate::{
    device::{DeviceError, Geometry, Status},
    raid::{
        policy::zrwa::Refusal,
        zone::flow::{Traffic, Zone},
    },
    runtime::Gate,
    table::ZoneTable,
    zone::{ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::{Cell, Ref, RefCell, RefMut},
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
};

pub struct ZoneSet {
    count: u32,
    /// Zone states as the host sees them.
    table: RefCell<ZoneTable>,
    /// Running zones, by number.
    running: RefCell<BTreeMap<u32, Rc<Zone>>>,
    /// Zones that are being reset or finished.
    busy: RefCell<BTreeSet<u32>>,
    /// Offline zones, and why recovery could not judge them. They are not accessed.
    offline: RefCell<BTreeMap<u32, Refusal>>,
    /// Offline zones that hold active resources of drives.
    holding: RefCell<BTreeSet<u32>>,
    /// Stuck zones: a member holds its part but cannot write it for now, and parity does not cover the loss of the
    /// part. With the number of that member.
    stuck: RefCell<BTreeMap<u32, usize>>,
    /// By zone and member, the exclusive end in blocks of the part that survived a power loss, in zones that have lost
    /// more than parity covers.
    cut_parts: RefCell<BTreeMap<(u32, usize), u64>>,
    /// Traffic of the plans of all zones.
    traffic: Cell<Traffic>,
    /// Number of flushes that have begun.
    flushes: Cell<u64>,
    /// Opened when a zone has ended, is not busy any more, or has been left by a rebuild.
    pub changed: Gate,
}

impl ZoneSet {
    pub fn new(geometry: &Geometry) -> ZoneSet {
        ZoneSet {
            count: geometry.zones,
            table: ZoneTable::new(geometry).into(),
            running: RefCell::default(),
            busy: RefCell::default(),
            offline: RefCell::default(),
            holding: RefCell::default(),
            stuck: RefCell::default(),
            cut_parts: RefCell::default(),
            traffic: Cell::default(),
            flushes: Cell::default(),
            changed: Gate::default(),
        }
    }

    /// Counts a flush that begins, and returns its number.
    pub fn begin_flush(&self) -> u64 {
        self.flushes.set(self.flushes.get() + 1);
        self.flushes.get()
    }

    /// Number of the last flush that has begun.
    pub fn flushes(&self) -> u64 {
        self.flushes.get()
    }

    pub fn all(&self) -> impl Iterator<Item = ZoneIndex> + use<> {
        (0..self.count).map(ZoneIndex)
    }

    pub fn table(&self) -> Ref<'_, ZoneTable> {
        self.table.borrow()
    }

    pub fn table_mut(&self) -> RefMut<'_, ZoneTable> {
        self.table.borrow_mut()
    }

    pub fn state(&self, zone: ZoneIndex) -> ZoneState {
        self.table.borrow().info(zone).state
    }

    /// Traffic of the plans of all zones.
    pub(super) fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    /// Adds the traffic of a submitted plan.
    pub(super) fn add_traffic(&self, more: Traffic) {
        let Traffic { commands, blocks } = self.traffic.get();
        self.traffic.set(Traffic { commands: commands + more.commands, blocks: blocks + more.blocks });
    }

    /// Subtracts the traffic of a complete plan.
    pub(super) fn take_traffic(&self, less: Traffic) {
        let Traffic { commands, blocks } = self.traffic.get();
        assert!(
            less.commands <= commands && less.blocks <= blocks,
            "{less:?} complete, {commands} commands with {blocks} blocks were in flight"
        );
        self.traffic.set(Traffic { commands: commands - less.commands, blocks: blocks - less.blocks });
    }

    pub fn running(&self, zone: ZoneIndex) -> Option<Rc<Zone>> {
        self.running.borrow().get(&zone.0).cloned()
    }

    pub fn is_running(&self, zone: ZoneIndex) -> bool {
        self.running.borrow().contains_key(&zone.0)
    }

    /// End of the complete blocks of a zone; `None` if it is not running.
    pub fn complete(&self, zone: ZoneIndex) -> Option<u64> {
        self.running.borrow().get(&zone.0).map(|zone| zone.flow.borrow().complete())
    }

    /// Whether a running zone has failed.
    pub fn gave_up(&self, zone: ZoneIndex) -> bool {
        self.running.borrow().get(&zone.0).is_some_and(|zone| zone.failed.get())
    }

    /// Zones that are running, or that a member cannot write for now.
    pub fn running_or_stuck(&self) -> Vec<u32> {
        let running = self.running.borrow();
        running.keys().chain(self.stuck.borrow().keys()).copied().collect()
    }

    pub fn all_running(&self) -> Vec<Rc<Zone>> {
        self.running.borrow().values().cloned().collect()
    }

    pub fn running_among(&self, zones: Range<u32>) -> Vec<Rc<Zone>> {
        self.running.borrow().range(zones).map(|(_, zone)| zone.clone()).collect()
    }

    /// Number of running zones that hold active resources of drives.
    pub fn open_count(&self) -> usize {
        self.running.borrow().values().filter(|zone| zone.flow.borrow().is_open()).count()
    }

    pub fn start(&self, zone: Rc<Zone>) {
        let index = zone.index.0;
        assert!(index < self.count, "zone {index} of {}", self.count);
        let running = self.running.borrow_mut().insert(index, zone);
        assert!(running.is_none(), "zone {index} runs already");
    }

    /// Removes a zone from the running ones.
    pub fn end(&self, zone: ZoneIndex) {
        self.running.borrow_mut().remove(&zone.0);
    }

    /// Whether no data of a zone is on the members, though the host may have opened it.
    pub fn is_unwritten(&self, zone: ZoneIndex) -> bool {
        self.state(zone) != ZoneState::Full && !self.is_running(zone)
    }

    /// Whether a zone is empty, and no write to it has begun.
    pub fn is_empty(&self, zone: ZoneIndex) -> bool {
        self.state(zone) == ZoneState::Empty && !self.is_running(zone)
    }

    /// Wakes all tasks of all running zones.
    pub fn wake(&self) {
        self.running.borrow().values().for_each(|zone| zone.wake());
    }

    /// Wakes all tasks that wait for a change of `zone`.
    pub fn wake_one(&self, zone: ZoneIndex) {
        self.changed.open();
        if let Some(zone) = self.running.borrow().get(&zone.0) {
            zone.wake();
        }
    }

    /// Marks zones busy for a reset or finish; refused while another one is in progress in any of them.
    pub fn mark_busy(&self, zones: &[Range<u32>]) -> Result<(), DeviceError> {
        if zones.iter().any(|range| range.end > self.count) {
            return Err(Status::LbaOutOfRange.into());
        }
        let mut busy = self.busy.borrow_mut();
        if zones.iter().any(|range| busy.range(range.clone()).next().is_some()) {
            return Err(Status::InvalidZoneStateTransition.into());
        }
        busy.extend(zones.iter().cloned().flatten());
        Ok(())
    }

    /// Marks zones as not busy: their reset or finish has ended.
    pub fn end_busy(&self, zones: &Range<u32>) {
        self.busy.borrow_mut().retain(|zone| !zones.contains(zone));
        self.changed.open();
    }

    pub fn is_busy(&self, zone: ZoneIndex) -> bool {
        self.busy.borrow().contains(&zone.0)
    }

    pub fn offline(&self) -> Ref<'_, BTreeMap<u32, Refusal>> {
        self.offline.borrow()
    }

    pub fn is_offline(&self, zone: ZoneIndex) -> bool {
        self.offline.borrow().contains_key(&zone.0)
    }

    /// Takes a zone offline; `holds` says that it holds active resources of drives.
    pub fn put_offline(&self, zone: ZoneIndex, refusal: Refusal, holds: bool) {
        self.offline.borrow_mut().insert(zone.0, refusal);
        if holds {
            self.holding.borrow_mut().insert(zone.0);
        }
    }

    /// Ends the offline state of a zone; `false` if it was not offline.
    pub fn end_offline(&self, zone: ZoneIndex) -> bool {
        let was_offline = self.offline.borrow_mut().remove(&zone.0).is_some();
        if was_offline {
            self.holding.borrow_mut().remove(&zone.0);
        }
        was_offline
    }

    /// Number of offline zones that hold active resources of drives.
    pub fn holding(&self) -> usize {
        let (holding, offline) = (self.holding.borrow().len(), self.offline.borrow().len());
        assert!(holding <= offline, "{holding} of {offline} offline zones hold resources");
        holding
    }

    /// Loads the state of a zone into the zone table.
    pub fn load(&self, info: &ZoneInfo) {
        let mut table = self.table.borrow_mut();
        table.hold(self.holding() as u32);
        table.load(info);
    }

    /// Marks a zone as stuck on a member, which cannot write it for now.
    pub fn stick(&self, zone: ZoneIndex, member: usize) {
        self.stuck.borrow_mut().insert(zone.0, member);
    }

    /// The member that a zone is stuck on.
    pub fn stuck(&self, zone: ZoneIndex) -> Option<usize> {
        self.stuck.borrow().get(&zone.0).copied()
    }

    pub fn unstick(&self, zones: &Range<u32>) {
        self.stuck.borrow_mut().retain(|zone, _| !zones.contains(zone));
        self.cut_parts.borrow_mut().retain(|(zone, _), _| !zones.contains(zone));
    }

    /// Limits a member's part of a zone to the blocks below `end_blocks`; the zone fails, as parity does not cover it.
    pub fn cut_part(&self, zone: ZoneIndex, member: usize, end_blocks: u64) {
        assert!(zone.0 < self.count, "zone {} of {}", zone.0, self.count);
        self.cut_parts.borrow_mut().insert((zone.0, member), end_blocks);
        self.stick(zone, member);
    }

    /// Whether a power loss has cost a zone more than parity covers.
    pub fn is_cut(&self, zone: ZoneIndex) -> bool {
        self.cut_parts.borrow().range((zone.0, 0)..(zone.0 + 1, 0)).next().is_some()
    }

    /// Whether [`ZoneSet::cut_part`] leaves a member all blocks below `end_blocks` of its part of a zone.
    pub fn is_uncut(&self, zone: ZoneIndex, member: usize, end_blocks: u64) -> bool {
        let cut_parts = self.cut_parts.borrow();
        cut_parts.is_empty() || cut_parts.get(&(zone.0, member)).is_none_or(|cut| end_blocks <= *cut)
    }
}
