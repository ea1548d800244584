//! The zone state machine.
//!
//! [`ZoneTable`] is the zone state machine of the NVMe Zoned Namespace Command Set (ZNS 1.1) with
//! its Zone Random Write Area (ZRWA), as a table of zones without data and without I/O. The
//! emulated SSD keeps its zones in one, and so does the array for its logical zones.
//!
//! Invariants: the open, active and ZRWA counts always equal the states of the zones; the write pointer never passes
//! the capacity; a refused call has changed nothing; a successful call has changed everything it will. A check and its
//! effect are the same call, so nothing can happen between them; the `check_` variants are for a device that may still
//! fail in between, and to which nothing else can happen meanwhile.
//!
//! Where the specification leaves the precedence of errors open it is that of QEMU's hw/nvme:
//!
//! - write: Invalid Field (no blocks), LBA Out of Range, then by state Zone Is Full / Read Only /
//!   Offline, then Zone Invalid Write (not at the write pointer, or outside of the ZRWA and its
//!   implicit flush range), Zone Boundary Error, Too Many Active Zones, Too Many Open Zones.
//! - append: Invalid Zone Operation (the zone has a ZRWA), then as a write.
//! - open: with a ZRWA, Invalid Zone Operation if the device has no ZRWA; then Invalid Zone State Transition, Too Many
//!   Active Zones, Too Many Open Zones, ZRWA Resources Unavailable.
//! - explicit ZRWA flush: LBA Out of Range, Invalid Zone Operation (the device has no ZRWA), Invalid Field (the zone
//!   has no ZRWA), Zone Boundary Error (outside of the ZRWA), Invalid Field (not a multiple of the granularity), Too
//!   Many Open Zones.
//!
//! Where QEMU is wrong the specification holds: a ZRWA is only given to an empty zone, no victim
//! is closed before it is certain that the open succeeds, the ZRWA ends one block earlier than
//! QEMU's explicit flush believes, and counts do not leak when a zone with a ZRWA becomes full.

use crate::{
    device::{Geometry, Status, Zrwa},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};

/// Effect of a write, an append or an explicit ZRWA flush on its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteEffect {
    /// The zone.
    pub zone: ZoneIndex,
    /// The first written block, from the start of the zone; for a flush, the write pointer before it.
    pub offset_blocks: u64,
    /// The write pointer before, from the start of the zone.
    pub wp_before_blocks: u64,
    /// The write pointer after, from the start of the zone.
    pub wp_blocks: u64,
    /// Whether the zone has become full.
    pub filled: bool,
}

#[derive(Clone, Copy)]
struct TableZone {
    wp: u64,
    state: ZoneState,
    zrwa: bool,
    /// Neighbours in the list of implicitly open zones.
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// The zones of a device and the rules by which they change. Every call but the select-all
/// variants, [`ZoneTable::report`] and [`ZoneTable::new`] takes constant time and allocates nothing.
#[derive(Clone)]
pub struct ZoneTable {
    zone_size: u64,
    capacity: u64,
    max_open: u32,
    max_active: u32,
    zrwa: Option<Zrwa>,
    zones: Vec<TableZone>,
    open: u32,
    active: u32,
    /// Active zones that are not in this table and count against the limit as well.
    held: u32,
    with_zrwa: u32,
    /// The implicitly open zones, first opened first: the candidates to be closed when another
    /// zone has to be opened.
    first_implicit: u32,
    last_implicit: u32,
}

impl ZoneTable {
    /// A table of empty zones with the shape and limits of `geometry`.
    ///
    /// # Panics
    /// When the geometry contradicts itself: a capacity of 0 or beyond the zone size, or a ZRWA
    /// granularity of 0 or beyond its size.
    pub fn new(geometry: &Geometry) -> ZoneTable {
        let (size, capacity) = (geometry.zone_size_blocks, geometry.zone_capacity_blocks);
        assert!(capacity > 0 && capacity <= size, "zone capacity {capacity} of size {size}");
        if let Some(zrwa) = geometry.zrwa {
            let granularity = zrwa.granularity_blocks;
            assert!(granularity > 0 && granularity <= zrwa.size_blocks, "ZRWA granularity {granularity}");
        }
        let empty = TableZone { wp: 0, state: ZoneState::Empty, zrwa: false, previous: NONE, next: NONE };
        ZoneTable {
            zone_size: size,
            capacity,
            max_open: geometry.max_open,
            max_active: geometry.max_active,
            zrwa: geometry.zrwa,
            zones: vec![empty; geometry.zones as usize],
            open: 0,
            active: 0,
            held: 0,
            with_zrwa: 0,
            first_implicit: NONE,
            last_implicit: NONE,
        }
    }

    /// Number of zones.
    pub fn zones(&self) -> u32 {
        self.zones.len() as u32
    }

    /// Number of open zones.
    pub fn open_zones(&self) -> u32 {
        self.open
    }

    /// Number of open and closed zones.
    pub fn active_zones(&self) -> u32 {
        self.active
    }

    /// Number of zones that have a ZRWA.
    pub fn zrwa_zones(&self) -> u32 {
        self.with_zrwa
    }

    /// The state of `zone`.
    ///
    /// # Panics
    /// When there is no such zone.
    pub fn info(&self, zone: ZoneIndex) -> ZoneInfo {
        let z = &self.zones[zone.0 as usize];
        ZoneInfo { zone, state: z.state, wp_blocks: z.wp, capacity_blocks: self.capacity, zrwa: z.zrwa }
    }

    /// The states of up to `count` zones from `first` on.
    ///
    /// # Errors
    /// LBA Out of Range when there is no zone `first`.
    pub fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneInfo>, Status> {
        self.check_zone(first)?;
        let end = self.zones().min(first.0.saturating_add(count));
        Ok((first.0..end).map(|zone| self.info(ZoneIndex(zone))).collect())
    }

    /// Puts a zone in a state regardless of rules and limits: to load the persistent state of a device, or to undo a
    /// change. The ZRWA is kept only by an open or closed zone.
    ///
    /// # Panics
    /// When there is no such zone or the write pointer lies beyond its capacity.
    pub fn load(&mut self, info: &ZoneInfo) {
        assert!(info.wp_blocks <= self.capacity, "{info:?} of capacity {}", self.capacity);
        self.set_state(info.zone.0, info.state);
        let zone = &mut self.zones[info.zone.0 as usize];
        zone.wp = info.wp_blocks;
        let zrwa = info.zrwa && info.state.is_active();
        self.with_zrwa = self.with_zrwa - zone.zrwa as u32 + zrwa as u32;
        zone.zrwa = zrwa;
    }

    /// Checks a read. Blocks above the write pointer may be read, and so may the blocks between
    /// the capacity and the next zone.
    ///
    /// # Errors
    /// Invalid Field (no blocks), LBA Out of Range, Zone Is Offline, Zone Boundary Error.
    pub fn check_read(&self, lba: Lba, blocks: u64) -> Result<(), Status> {
        let (zone, offset) = self.locate(lba, blocks)?;
        if self.zones[zone as usize].state == ZoneState::Offline {
            Err(Status::ZoneIsOffline)
        } else if offset + blocks > self.zone_size {
            Err(Status::ZoneBoundaryError)
        } else {
            Ok(())
        }
    }

    /// Writes `blocks` blocks at `lba`, opening the zone implicitly if it is not open. In a zone
    /// with a ZRWA a write that ends beyond it moves the write pointer, by as many flush
    /// granules as it takes to have the end inside; elsewhere the write pointer moves to the end.
    ///
    /// # Errors
    /// See the head of this file.
    pub fn write(&mut self, lba: Lba, blocks: u64) -> Result<WriteEffect, Status> {
        let effect = self.check_write(lba, blocks)?;
        self.apply(&effect);
        Ok(effect)
    }

    /// The effect that [`ZoneTable::write`] would have.
    ///
    /// # Errors
    /// Those of the write.
    pub fn check_write(&self, lba: Lba, blocks: u64) -> Result<WriteEffect, Status> {
        let (zone, offset) = self.locate(lba, blocks)?;
        let (wp, end) = (self.zones[zone as usize].wp, offset + blocks);
        self.check_writable(zone)?;
        let new_wp = match self.zone_zrwa(zone) {
            Some(zrwa) if offset < wp || end > wp + 2 * zrwa.size_blocks => {
                return Err(Status::ZoneInvalidWrite);
            }
            Some(zrwa) => {
                let beyond = end.saturating_sub(wp + zrwa.size_blocks);
                wp + beyond.next_multiple_of(zrwa.granularity_blocks)
            }
            None if offset != wp => return Err(Status::ZoneInvalidWrite),
            None => end,
        };
        if end > self.capacity {
            return Err(Status::ZoneBoundaryError);
        }
        self.advance(zone, offset, new_wp)
    }

    /// Writes `blocks` blocks at the write pointer of `zone`.
    ///
    /// # Errors
    /// See the head of this file.
    pub fn append(&mut self, zone: ZoneIndex, blocks: u64) -> Result<WriteEffect, Status> {
        let effect = self.check_append(zone, blocks)?;
        self.apply(&effect);
        Ok(effect)
    }

    /// The effect that [`ZoneTable::append`] would have.
    ///
    /// # Errors
    /// Those of the append.
    pub fn check_append(&self, zone: ZoneIndex, blocks: u64) -> Result<WriteEffect, Status> {
        self.check_zone(zone)?;
        let z = &self.zones[zone.0 as usize];
        let wp = z.wp;
        if z.zrwa {
            return Err(Status::InvalidZoneOperation);
        }
        if blocks == 0 {
            return Err(Status::InvalidField);
        }
        self.check_writable(zone.0)?;
        if blocks > self.capacity - wp {
            return Err(Status::ZoneBoundaryError);
        }
        self.advance(zone.0, wp, wp + blocks)
    }

    /// Explicit ZRWA flush: moves the write pointer of the zone of `last` to the block after it.
    ///
    /// # Errors
    /// See the head of this file.
    pub fn flush_zrwa(&mut self, last: Lba) -> Result<WriteEffect, Status> {
        let effect = self.check_flush_zrwa(last)?;
        self.apply(&effect);
        Ok(effect)
    }

    /// The effect that [`ZoneTable::flush_zrwa`] would have.
    ///
    /// # Errors
    /// Those of the flush.
    pub fn check_flush_zrwa(&self, last: Lba) -> Result<WriteEffect, Status> {
        let (zone, offset) = self.locate(last, 1)?;
        self.zrwa.ok_or(Status::InvalidZoneOperation)?;
        let zrwa = self.zone_zrwa(zone).ok_or(Status::InvalidField)?;
        let (wp, end) = (self.zones[zone as usize].wp, offset + 1);
        if offset < wp || end > (wp + zrwa.size_blocks).min(self.capacity) {
            return Err(Status::ZoneBoundaryError);
        }
        if end % zrwa.granularity_blocks != 0 && end != self.capacity {
            return Err(Status::InvalidField);
        }
        self.advance(zone, wp, end)
    }

    /// Applies the effect that a check has returned: opens the zone implicitly if it is not open, and moves the write
    /// pointer.
    ///
    /// # Panics
    /// When there is no such zone.
    pub fn apply(&mut self, effect: &WriteEffect) {
        let zone = effect.zone.0;
        if !self.zones[zone as usize].state.is_open() {
            self.make_open(zone, ZoneState::ImplicitlyOpen);
        }
        self.zones[zone as usize].wp = effect.wp_blocks;
        if effect.filled {
            self.set_state(zone, ZoneState::Full);
        }
    }

    /// Opens `zone` explicitly. With `zrwa` it has to be empty, and gets a ZRWA.
    ///
    /// # Errors
    /// See the head of this file.
    pub fn open(&mut self, zone: ZoneIndex, zrwa: bool) -> Result<(), Status> {
        self.check_open(zone, zrwa)?;
        self.make_open(zone.0, ZoneState::ExplicitlyOpen);
        if zrwa {
            self.zones[zone.0 as usize].zrwa = true;
            self.with_zrwa += 1;
        }
        Ok(())
    }

    /// Whether [`ZoneTable::open`] would succeed.
    ///
    /// # Errors
    /// Those of the open.
    pub fn check_open(&self, zone: ZoneIndex, zrwa: bool) -> Result<(), Status> {
        self.check_zone(zone)?;
        let state = self.zones[zone.0 as usize].state;
        let limit = match self.zrwa {
            Some(zrwa) => zrwa.max_zones,
            None if zrwa => return Err(Status::InvalidZoneOperation),
            None => 0,
        };
        if !(state.is_active() && !zrwa || state == ZoneState::Empty) {
            return Err(Status::InvalidZoneStateTransition);
        }
        self.check_resources(state)?;
        if zrwa && self.with_zrwa >= limit {
            return Err(Status::ZrwaResourcesUnavailable);
        }
        Ok(())
    }

    /// Closes an open zone; it keeps its ZRWA. A closed zone stays as it is.
    ///
    /// # Errors
    /// LBA Out of Range (no such zone), Invalid Zone State Transition.
    pub fn close(&mut self, zone: ZoneIndex) -> Result<(), Status> {
        self.transition(zone, ZoneState::Closed, ZoneState::is_active)
    }

    /// Makes a zone full, at any fill level; its ZRWA is released.
    ///
    /// # Errors
    /// LBA Out of Range (no such zone), Invalid Zone State Transition (read-only or offline).
    pub fn finish(&mut self, zone: ZoneIndex) -> Result<(), Status> {
        self.transition(zone, ZoneState::Full, |state| !is_worn(state))?;
        self.zones[zone.0 as usize].wp = self.capacity;
        Ok(())
    }

    /// Makes a zone empty; its ZRWA is released.
    ///
    /// # Errors
    /// LBA Out of Range (no such zone), Invalid Zone State Transition (read-only or offline).
    pub fn reset(&mut self, zone: ZoneIndex) -> Result<(), Status> {
        self.transition(zone, ZoneState::Empty, |state| !is_worn(state))?;
        self.zones[zone.0 as usize].wp = 0;
        Ok(())
    }

    /// Opens every closed zone explicitly, or none.
    ///
    /// # Errors
    /// Too Many Open Zones; no implicitly open zone is closed to make room.
    pub fn open_all(&mut self) -> Result<(), Status> {
        if self.max_open != 0 && self.active > self.max_open {
            return Err(Status::TooManyOpenZones);
        }
        self.for_all(
            |state| state == ZoneState::Closed,
            |table, zone| {
                table.set_state(zone.0, ZoneState::ExplicitlyOpen);
            },
        );
        Ok(())
    }

    /// Closes every open zone.
    pub fn close_all(&mut self) {
        self.for_all(ZoneState::is_open, |table, zone| table.set_state(zone.0, ZoneState::Closed));
    }

    /// Finishes every open and closed zone, and calls `finished` for each.
    pub fn finish_all(&mut self, mut finished: impl FnMut(ZoneIndex)) {
        self.for_all(ZoneState::is_active, |table, zone| {
            table.set_state(zone.0, ZoneState::Full);
            table.zones[zone.0 as usize].wp = table.capacity;
            finished(zone);
        });
    }

    /// Resets every open, closed and full zone, and calls `reset` for each.
    pub fn reset_all(&mut self, mut reset: impl FnMut(ZoneIndex)) {
        self.for_all(ZoneState::is_begun, |table, zone| {
            table.set_state(zone.0, ZoneState::Empty);
            table.zones[zone.0 as usize].wp = 0;
            reset(zone);
        });
    }

    /// Sets the number of active zones that are not in this table and count against the limit as well.
    pub fn hold(&mut self, active: u32) {
        self.held = active;
    }

    /// Makes `zone` read-only: the device has reported it so.
    pub fn set_read_only(&mut self, zone: ZoneIndex) {
        self.set_state(zone.0, ZoneState::ReadOnly);
    }

    /// Makes `zone` offline: the device has lost it.
    pub fn set_offline(&mut self, zone: ZoneIndex) {
        self.set_state(zone.0, ZoneState::Offline);
    }

    fn check_zone(&self, zone: ZoneIndex) -> Result<(), Status> {
        if zone.0 < self.zones() { Ok(()) } else { Err(Status::LbaOutOfRange) }
    }

    fn locate(&self, lba: Lba, blocks: u64) -> Result<(u32, u64), Status> {
        if blocks == 0 {
            return Err(Status::InvalidField);
        }
        let size = self.zones.len() as u64 * self.zone_size;
        if lba.0 >= size || blocks > size - lba.0 {
            return Err(Status::LbaOutOfRange);
        }
        Ok(((lba.0 / self.zone_size) as u32, lba.0 % self.zone_size))
    }

    fn zone_zrwa(&self, zone: u32) -> Option<Zrwa> {
        self.zrwa.filter(|_| self.zones[zone as usize].zrwa)
    }

    fn check_writable(&self, zone: u32) -> Result<(), Status> {
        match self.zones[zone as usize].state {
            ZoneState::Full => Err(Status::ZoneIsFull),
            ZoneState::ReadOnly => Err(Status::ZoneIsReadOnly),
            ZoneState::Offline => Err(Status::ZoneIsOffline),
            _ => Ok(()),
        }
    }

    /// Whether a zone in `state` can be opened, if need be by closing an implicitly open one.
    fn check_resources(&self, state: ZoneState) -> Result<(), Status> {
        if state == ZoneState::Empty && self.max_active != 0 && self.active + self.held >= self.max_active {
            return Err(Status::TooManyActiveZones);
        }
        if !state.is_open() && self.at_open_limit() && self.first_implicit == NONE {
            return Err(Status::TooManyOpenZones);
        }
        Ok(())
    }

    fn at_open_limit(&self) -> bool {
        self.max_open != 0 && self.open >= self.max_open
    }

    /// Opens a zone after [`ZoneTable::check_resources`] found that it can be.
    fn make_open(&mut self, zone: u32, state: ZoneState) {
        let opens = !self.zones[zone as usize].state.is_open();
        if opens && self.at_open_limit() && self.first_implicit != NONE {
            self.set_state(self.first_implicit, ZoneState::Closed);
        }
        self.set_state(zone, state);
    }

    /// The effect of moving a write pointer, if the zone is open or can be opened.
    fn advance(&self, zone: u32, offset_blocks: u64, wp_blocks: u64) -> Result<WriteEffect, Status> {
        let TableZone { wp: wp_before_blocks, state, .. } = self.zones[zone as usize];
        self.check_resources(state)?;
        let filled = wp_blocks == self.capacity;
        Ok(WriteEffect { zone: ZoneIndex(zone), offset_blocks, wp_before_blocks, wp_blocks, filled })
    }

    fn transition(
        &mut self,
        zone: ZoneIndex,
        to: ZoneState,
        allowed: impl Fn(ZoneState) -> bool,
    ) -> Result<(), Status> {
        self.check_zone(zone)?;
        if !allowed(self.zones[zone.0 as usize].state) {
            return Err(Status::InvalidZoneStateTransition);
        }
        self.set_state(zone.0, to);
        Ok(())
    }

    fn for_all(&mut self, selected: impl Fn(ZoneState) -> bool, mut apply: impl FnMut(&mut Self, ZoneIndex)) {
        for zone in 0..self.zones() {
            if selected(self.zones[zone as usize].state) {
                apply(self, ZoneIndex(zone));
            }
        }
    }

    /// The only place where a zone changes its state, so that counts cannot leak: a zone that is
    /// not active any more has lost its ZRWA too.
    fn set_state(&mut self, zone: u32, to: ZoneState) {
        let from = self.zones[zone as usize].state;
        if from == ZoneState::ImplicitlyOpen {
            self.unlink(zone);
        }
        if to == ZoneState::ImplicitlyOpen {
            self.link(zone);
        }
        self.open = self.open - from.is_open() as u32 + to.is_open() as u32;
        self.active = self.active - from.is_active() as u32 + to.is_active() as u32;
        let z = &mut self.zones[zone as usize];
        z.state = to;
        if !to.is_active() && std::mem::take(&mut z.zrwa) {
            self.with_zrwa -= 1;
        }
    }

    fn link(&mut self, zone: u32) {
        let last = std::mem::replace(&mut self.last_implicit, zone);
        match self.zones.get_mut(last as usize) {
            Some(z) => z.next = zone,
            None => self.first_implicit = zone,
        }
        let z = &mut self.zones[zone as usize];
        (z.previous, z.next) = (last, NONE);
    }

    fn unlink(&mut self, zone: u32) {
        let TableZone { previous, next, .. } = self.zones[zone as usize];
        match self.zones.get_mut(previous as usize) {
            Some(z) => z.next = next,
            None => self.first_implicit = next,
        }
        match self.zones.get_mut(next as usize) {
            Some(z) => z.previous = previous,
            None => self.last_implicit = previous,
        }
    }
}
