//! All zones of a running array: their states as the host sees them, and the running zones.

use crate::{
    device::{DeviceError, Geometry, Status},
    raid::{
        geometry::each,
        policy::zrwa::Refusal,
        seat::Seat,
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

/// A part of a zone of which an error of its drive does not show whether it can still be read.
#[derive(Clone, Copy)]
pub struct UnclearPart {
    pub zone: ZoneIndex,
    /// Epoch of the zone at the time of the error.
    pub epoch: u64,
    pub seat: Seat,
    pub error: DeviceError,
    /// The failed command, for messages.
    pub what: &'static str,
}

/// All zones of a running array.
pub struct ZoneSet {
    count: u32,
    /// Zone states as the host sees them.
    table: RefCell<ZoneTable>,
    /// Running zones, by number.
    running: RefCell<BTreeMap<u32, Rc<Zone>>>,
    /// Zones that are being reset or finished.
    busy: RefCell<BTreeSet<u32>>,
    /// Offline zones, whose tail recovery could not determine, and read-only zones, each with the reason. Only a reset
    /// changes them.
    offline: RefCell<BTreeMap<u32, Refusal>>,
    /// Zones of `offline` that take active resources of drives.
    holding: RefCell<BTreeSet<u32>>,
    /// Stuck zones, each with members (bits) that hold their part and cannot write it, and that the zone cannot spare.
    stuck: RefCell<BTreeMap<u32, u32>>,
    /// Parts that are not read until their drives have reported the state of the zone.
    unclear_parts: RefCell<Vec<UnclearPart>>,
    /// Read-only zones whose last promised blocks may have been in lost ZRWAs.
    curtailed: RefCell<BTreeSet<u32>>,
    /// Zones with needed read-only parts: with one member less the next recovery cannot determine the tail.
    frail: RefCell<BTreeSet<u32>>,
    /// By zone and member, the exclusive end in blocks of the part that survived a power loss, in zones that have lost
    /// more than parity covers.
    cut_parts: RefCell<BTreeMap<(u32, usize), u64>>,
    /// Traffic of the plans of all zones.
    traffic: Cell<Traffic>,
    /// Number of flushes that have begun.
    flushes: Cell<u64>,
    /// Opened when a zone has ended or is not busy any more, or when a rebuild has left a zone, or a flush has ended.
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
            unclear_parts: RefCell::default(),
            curtailed: RefCell::default(),
            frail: RefCell::default(),
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

    /// Whether the zone is running and its writes have returned errors.
    pub fn gave_up(&self, zone: ZoneIndex) -> bool {
        self.running.borrow().get(&zone.0).is_some_and(|zone| zone.failed.get())
    }

    /// Zones that are running or stuck, or that recovery may not decide with fewer members; some twice.
    pub fn running_or_stuck(&self) -> Vec<u32> {
        let running = self.running.borrow();
        let (stuck, frail) = (self.stuck.borrow(), self.frail.borrow());
        running.keys().chain(stuck.keys()).chain(frail.iter()).copied().collect()
    }

    pub fn all_running(&self) -> Vec<Rc<Zone>> {
        self.running.borrow().values().cloned().collect()
    }

    pub fn running_among(&self, zones: Range<u32>) -> Vec<Rc<Zone>> {
        self.running.borrow().range(zones).map(|(_, zone)| zone.clone()).collect()
    }

    /// Number of running zones that take active resources of drives.
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

    /// Whether a zone has no data, on the members or queued; the host may have opened it.
    pub fn is_unwritten(&self, zone: ZoneIndex) -> bool {
        self.state(zone) != ZoneState::Full && !self.is_running(zone)
    }

    /// Whether a zone is empty, and no write to it is queued.
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

    /// Marks zones busy for a reset or finish.
    ///
    /// # Errors
    /// Invalid Zone State Transition, if one of them is busy.
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

    /// Whether a zone is read-only: recovery has determined its tail, and too many members cannot write it.
    pub fn is_read_only(&self, zone: ZoneIndex) -> bool {
        self.is_offline(zone) && self.is_running(zone)
    }

    /// Takes a zone offline; `holds`: it takes active resources of drives.
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

    /// Number of offline zones that take active resources of drives.
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

    /// Marks a zone as stuck on a member, which cannot write its part and cannot be spared.
    pub fn stick(&self, zone: ZoneIndex, member: usize) {
        *self.stuck.borrow_mut().entry(zone.0).or_default() |= 1 << member;
    }

    /// The members (bits) that a zone is stuck on.
    pub fn stuck_members(&self, zone: ZoneIndex) -> u32 {
        self.stuck.borrow().get(&zone.0).copied().unwrap_or(0)
    }

    /// The first member that a zone is stuck on.
    pub fn stuck(&self, zone: ZoneIndex) -> Option<usize> {
        each(self.stuck_members(zone)).next()
    }

    /// Ends [`ZoneSet::stick`] and [`ZoneSet::cut_part`] for one member.
    pub fn release(&self, zone: ZoneIndex, member: usize) {
        let mut stuck = self.stuck.borrow_mut();
        if let Some(members) = stuck.get_mut(&zone.0) {
            *members &= !(1 << member);
            if *members == 0 {
                stuck.remove(&zone.0);
            }
        }
        self.cut_parts.borrow_mut().remove(&(zone.0, member));
    }

    /// Ends all of these states of `zones`, which are being reset.
    pub fn unstick(&self, zones: &Range<u32>) {
        self.stuck.borrow_mut().retain(|zone, _| !zones.contains(zone));
        self.cut_parts.borrow_mut().retain(|(zone, _), _| !zones.contains(zone));
        self.curtailed.borrow_mut().retain(|zone| !zones.contains(zone));
        self.frail.borrow_mut().retain(|zone| !zones.contains(zone));
    }

    /// Marks a part as unclear: none of it is read until its drive has reported the state of the zone.
    pub fn doubt_part(&self, part: UnclearPart) {
        assert!(part.zone.0 < self.count, "zone {} of {}", part.zone.0, self.count);
        self.stick(part.zone, part.seat.member);
        self.unclear_parts.borrow_mut().push(part);
    }

    /// The unclear parts.
    pub fn unclear_parts(&self) -> Vec<UnclearPart> {
        self.unclear_parts.borrow().clone()
    }

    /// Whether any part is unclear.
    pub fn has_unclear_parts(&self) -> bool {
        !self.unclear_parts.borrow().is_empty()
    }

    /// Whether a zone has unclear parts.
    pub fn is_unclear(&self, zone: ZoneIndex) -> bool {
        self.unclear_parts.borrow().iter().any(|part| part.zone == zone)
    }

    /// Removes the first `count` of the unclear parts.
    pub fn end_doubt(&self, count: usize) {
        let mut parts = self.unclear_parts.borrow_mut();
        assert!(count <= parts.len(), "{count} of {} unclear parts are removed", parts.len());
        parts.drain(..count);
    }

    /// Marks a read-only zone whose last promised blocks may have been in lost ZRWAs.
    pub fn curtail(&self, zone: ZoneIndex) {
        self.curtailed.borrow_mut().insert(zone.0);
    }

    /// Marks a zone with needed read-only parts: recovery cannot determine its tail if another member is lost.
    pub fn note_frail(&self, zone: ZoneIndex) {
        self.frail.borrow_mut().insert(zone.0);
    }

    /// See [`ZoneSet::note_frail`].
    pub fn is_frail(&self, zone: ZoneIndex) -> bool {
        self.frail.borrow().contains(&zone.0)
    }

    /// See [`ZoneSet::curtail`].
    pub fn is_curtailed(&self, zone: ZoneIndex) -> bool {
        self.curtailed.borrow().contains(&zone.0)
    }

    /// Limits a member's part of a zone to the blocks below `end_blocks`. Parity does not cover it: the zone is stuck.
    pub fn cut_part(&self, zone: ZoneIndex, member: usize, end_blocks: u64) {
        assert!(zone.0 < self.count, "zone {} of {}", zone.0, self.count);
        self.cut_parts.borrow_mut().insert((zone.0, member), end_blocks);
        self.stick(zone, member);
    }

    /// Whether a zone has cut or unclear parts, so that it may have lost more than parity covers.
    pub fn is_cut(&self, zone: ZoneIndex) -> bool {
        self.is_unclear(zone) || self.cut_parts.borrow().range((zone.0, 0)..(zone.0 + 1, 0)).next().is_some()
    }

    /// Whether a member keeps all blocks below `end_blocks` of its part of a zone.
    pub fn is_uncut(&self, zone: ZoneIndex, member: usize, end_blocks: u64) -> bool {
        end_blocks <= self.cut_end(zone, member)
    }

    /// Exclusive end of the blocks that a member keeps of a cut or unclear part of a zone; `u64::MAX` for other parts.
    pub fn cut_end(&self, zone: ZoneIndex, member: usize) -> u64 {
        let unclear_parts = self.unclear_parts.borrow();
        if unclear_parts.iter().any(|part| (part.zone, part.seat.member) == (zone, member)) {
            return 0;
        }
        self.cut_parts.borrow().get(&(zone.0, member)).copied().unwrap_or(u64::MAX)
    }
}
