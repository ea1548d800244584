//! The running array: its components, and queries that take several of them.
//!
//! Each component owns its state: `members` the drives and the access to them, `membership` the superblock and its
//! pending changes, `zone_records` the persistent state of the zones, `zones` the running zones. Operations are
//! functions of a [`Raid`], in the modules beside this file: reads and writes in `zone`, rebuild and replacement in
//! `maintain`, crash recovery in `recover`, the parts of these that depend on the policy in `policy::run`, and what
//! these share in `io`, `durable`, `failures` and `run`.

use crate::{
    adapt::spare::SpareZoneDevice,
    buf::{Buf, BufPool},
    device::{Completion, DeviceError, Geometry, Slots, ZonedDevice},
    format::{Uuid, record::Record, superblock::Superblock},
    raid::{
        ArrayOptions,
        events::Events,
        geometry::{Layout, physical},
        journal::{
            log::{LogContext, MetaLog},
            logged::LiveRecords,
        },
        maintain::background::BackgroundJob,
        members::Members,
        membership::Membership,
        zone::{drain::Drain, reader::Readers, set::ZoneSet},
        zone_records::ZoneRecords,
    },
    runtime::{Exclusive, Runtime},
    zone::{ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::{Rc, Weak},
};

/// A running array.
pub struct Raid {
    pub runtime: Runtime,
    pub slots: Rc<Slots>,
    pub pool: Rc<RefCell<BufPool>>,
    pub array: Uuid,
    pub layout: Layout,
    /// Whether each block of a zone has a checksum in its out-of-band metadata.
    pub checksums: bool,
    /// Whether a record begins each generation of a zone ([`crate::raid::generations`]).
    pub logs_generations: bool,
    /// Whether log blocks may have notes.
    pub keeps_notes: bool,
    /// Whether the ZRWAs of a zone may have cells.
    pub has_cells: bool,
    /// Geometry of the array.
    pub geometry: Geometry,
    pub behaviour: ArrayOptions,
    /// Whether the array advertises a volatile write cache: a power cut may then lose completed writes.
    may_lose: Cell<bool>,
    pub members: Members,
    pub membership: Membership,
    pub zone_records: ZoneRecords,
    pub zones: ZoneSet,
    /// Whether any block of a member has been relocated: checked with every read.
    pub relocates: Cell<bool>,
    pub readers: Readers,
    pub drain: Drain,
    pub background: BackgroundJob,
    /// Whether the remains of lost parts may be reset. Not before the assembly has ended: until then an array in
    /// deferred-write mode ([`crate::deferred`]) serves reads from the same drives, and may take these parts for valid.
    pub may_clear: Cell<bool>,
    /// The right to attach a drive.
    pub attaching: Exclusive,
    /// The right to finish an empty zone, of which a member writes checksum blocks: it takes an active zone for a moment.
    pub finishing_empty: Exclusive,
    pub events: Events,
}

impl Raid {
    pub fn new(
        runtime: &Runtime,
        superblock: Superblock,
        geometry: Geometry,
        zone_records: ZoneRecords,
        sequence: u64,
        behaviour: ArrayOptions,
    ) -> Rc<Raid> {
        let layout = superblock.layout();
        let zones = zone_records.records().len();
        assert!(zones == geometry.zones as usize, "records of {zones} zones, an array of {}", geometry.zones);
        let members = Members::new(layout.members, layout.fewest_members());
        for (member, of_superblock) in superblock.members.iter().enumerate() {
            members.set_errors(member, of_superblock.errors);
        }
        Rc::new(Raid {
            runtime: runtime.clone(),
            slots: Rc::default(),
            pool: Rc::default(),
            array: superblock.array,
            layout,
            checksums: superblock.has_checksums_in_metadata(),
            logs_generations: superblock.logs_generations(),
            keeps_notes: superblock.has_notes(),
            has_cells: superblock.has_cells(),
            may_lose: Cell::new(geometry.volatile_cache),
            behaviour,
            members,
            membership: Membership::new(superblock, sequence),
            zone_records,
            zones: ZoneSet::new(&geometry),
            relocates: Cell::default(),
            readers: Readers::default(),
            drain: Drain::default(),
            background: BackgroundJob::default(),
            may_clear: Cell::new(false),
            attaching: Exclusive::default(),
            finishing_empty: Exclusive::default(),
            events: Events::default(),
            geometry,
        })
    }

    /// Whether blocks are written with out-of-band metadata.
    pub fn uses_marks(&self) -> bool {
        self.checksums || self.layout.policy.uses_marks()
    }

    /// Whether the array advertises a volatile write cache.
    pub fn may_lose(&self) -> bool {
        self.may_lose.get()
    }

    /// Sets whether the array advertises a volatile write cache: if it does not, every write is acknowledged only when
    /// it is safe.
    pub fn tell_may_lose(&self, may_lose: bool) {
        self.may_lose.set(may_lose);
    }

    /// Creates the log of a drive that is accessed through `device` and holds some parts in spare zones (`moved`, by
    /// zone of the array). `read` is the metadata zone that was read and its generation, 0 if there was none; the new
    /// log continues after it.
    pub fn new_log(
        self: &Rc<Self>,
        member: usize,
        drive: Rc<dyn ZonedDevice>,
        (device, moved): (Rc<dyn ZonedDevice>, BTreeMap<u32, u32>),
        read: (u32, u64),
        live: LiveRecords,
    ) -> Rc<MetaLog> {
        let places = moved.into_iter().map(|(zone, place)| (physical(ZoneIndex(zone)).0, place)).collect();
        let shown = physical(ZoneIndex(self.geometry.zones)).0;
        let device = Rc::new(SpareZoneDevice::new(&self.runtime, device, shown, places));
        device.set_epochs(self.zone_records.epochs());
        assert!(member < self.layout.members, "a log of member {member} of {}", self.layout.members);
        let (array, layout, log_step) = (self.array, self.layout, self.behaviour.log_step);
        let kit = LogContext { array, layout, log_step, slots: self.slots.clone(), pool: self.pool.clone() };
        let this: Weak<Raid> = Rc::downgrade(self);
        self.relocates.set(self.relocates.get() || !live.relocated.is_empty());
        MetaLog::new(this, kit, member, (drive, device), read, live)
    }

    /// End of the blocks of a zone that hold data; blocks above are read as zeros.
    pub fn tail(&self, zone: ZoneIndex) -> u64 {
        match self.zones.complete(zone) {
            Some(complete) => complete,
            None if self.zones.state(zone) == ZoneState::Full => self.finished_tail(zone),
            None => 0,
        }
    }

    /// Rows of a zone below this one hold complete stripes.
    pub fn complete_rows(&self, zone: ZoneIndex) -> u64 {
        self.tail(zone) / self.layout.stripe_blocks()
    }

    /// The tail of a full zone.
    pub fn finished_tail(&self, zone: ZoneIndex) -> u64 {
        self.zone_records.record(zone).finished.unwrap_or(self.layout.capacity_blocks())
    }

    /// Members (bits) that hold their part of `zone`.
    pub fn live(&self, zone: ZoneIndex) -> u32 {
        self.members.active() & !self.zone_records.lost(zone)
    }

    /// Whether `zone` cannot be written any more, since it lacks more parts than parity covers or a member that cannot
    /// be spared cannot write it. Other zones still work, unless the array has failed.
    pub fn has_failed(&self, zone: ZoneIndex) -> bool {
        self.membership.has_failed()
            || !self.members.are_enough(self.live(zone))
            || self.zones.gave_up(zone)
            || self.zones.stuck(zone).is_some()
    }

    /// Copies `data` to a buffer from the pool.
    pub fn copy(&self, data: &[u8]) -> Buf {
        let mut copy = self.pool.borrow_mut().take((data.len() / crate::buf::BLOCK) as u64);
        copy.copy_from_slice(data);
        copy.freeze()
    }

    /// Logs a record on one member.
    pub fn append(&self, member: usize, record: Record) -> Completion {
        match self.members.log(member) {
            Some(log) if self.members.is_active(member) => {
                log.append(record, self.membership.next_sequence())
            }
            _ => Completion::failed(DeviceError::Gone),
        }
    }
}
