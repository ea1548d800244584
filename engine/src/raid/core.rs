//! What the parts of a running array share: members, zones, sequence numbers, membership.

use crate::{
    adapt::mirror::Mirror,
    buf::BufPool,
    device::{Command, Completer, Completion, DeviceError, Geometry, Slots, Status, ZonedDevice},
    format::{
        Uuid,
        record::{Burned, Lacks, Record, ZoneRecord},
        superblock::Superblock,
    },
    raid::{
        Behaviour, Canary, Consistency, Drive, LogStep,
        error::ArrayError,
        geometry::Layout,
        metalog::{META_ZONES, MetaLog},
        patrol::holes::HoleMap,
        policy::zrwa::Refusal,
        zone::write::Zone,
    },
    runtime::{Gate, Runtime},
    zone::{Lba, ZoneIndex, ZoneState, ZoneTable},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// A place in the array, and the drive in it.
#[derive(Default)]
pub struct Member {
    /// How many drives have been in this place: an error of an earlier one is not the present one's.
    incarnation: Cell<u32>,
    pub log: RefCell<Option<Rc<MetaLog>>>,
    /// Distance between two zones of the drive.
    zone_size_blocks: Cell<u64>,
    /// What messages call the drive.
    pub name: RefCell<String>,
    /// Why the member is out, or what else there is to say.
    pub note: RefCell<String>,
    pub read_errors: Cell<u64>,
    pub write_errors: Cell<u64>,
    /// Zones of which the drive has lost its part at work.
    parts_lost: Cell<u32>,
    /// Zones of the drive are read-only or offline.
    pub worn: Cell<bool>,
}

/// The drive that is in a place when a command is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    pub member: usize,
    incarnation: u32,
}

pub struct Core {
    pub runtime: Runtime,
    pub slots: Rc<Slots>,
    pub array: Uuid,
    pub layout: Layout,
    /// Of the array.
    pub geometry: Geometry,
    pub consistency: Consistency,
    /// Whether writes that are queued behind each other in a zone share a plan.
    pub join: bool,
    /// Whether whoever writes has been told that a power cut may cost completed writes.
    pub may_lose: Cell<bool>,
    /// Whether a drive that is or was here may lose completed writes in a power cut.
    pub volatile: Cell<bool>,
    /// Policy `inplace`: number of this assembly, in the metadata of every block that it writes.
    pub generation: Cell<u32>,
    pub canary: Option<Canary>,
    pub log_step: LogStep,
    pub members: Vec<Member>,
    /// Members (bits) that belong to the array and have a drive.
    pub active: Cell<u32>,
    /// More members are out than parity makes up for.
    pub failed: Cell<bool>,
    pub superblock: RefCell<Superblock>,
    /// What the metadata says of every zone.
    pub zones: RefCell<Vec<ZoneRecord>>,
    /// Blocks of the members' zones that cannot be written again and hold nothing that counts.
    pub burned: RefCell<Vec<Burned>>,
    /// Blocks that a rebuild could not bring back.
    pub holes: RefCell<HoleMap>,
    /// The last sequence number that was given out.
    pub sequence: Cell<u64>,
    /// Zone states as the host sees them.
    pub table: RefCell<ZoneTable>,
    /// Zones that could not be decided, and why. Nothing touches them.
    pub offline: RefCell<BTreeMap<u32, Refusal>>,
    /// Zones that a member cannot write for now, though it holds its part, and that cannot do without it; and
    /// which member.
    pub stuck: RefCell<BTreeMap<u32, usize>>,
    /// Offline zones that hold resources of drives.
    pub holding: RefCell<BTreeSet<u32>>,
    /// Zones that have something going on, by number.
    pub running: RefCell<BTreeMap<u32, Rc<Zone>>>,
    pub pool: RefCell<BufPool>,
    /// A change of membership, or a part of a zone that was lost, is on its way to the logs: nothing that
    /// relies on it may be acknowledged before.
    pub membership_pending: Cell<bool>,
    /// Parts of zones that were lost, with their epochs, and are to be written down.
    pub lacks: RefCell<Vec<Lacks>>,
    /// Zones have begun to wait for a member, which is to be written down.
    pub waits: Cell<bool>,
    /// How often a part of a zone was lost: what was read meanwhile may be of what was written anew there.
    pub losses: Cell<u64>,
    pub membership: Gate,
    pub membership_done: Gate,
    /// Readers that wait for work.
    pub idle_readers: RefCell<Vec<Rc<crate::raid::zone::read::Reader>>>,
    /// Zones that are being reset or finished.
    pub busy: RefCell<BTreeSet<u32>>,
    /// The drive that a rebuild works on; there is one rebuild at a time.
    pub repairing: Cell<Option<Seat>>,
    pub rebuild_runs: Cell<bool>,
    /// A drive that is being replaced, and the one that gets what is written to it.
    pub mirror: RefCell<Option<(Seat, Rc<Mirror>)>>,
    /// Commands of the host that wait while one drive takes over from another; `None` if none is to wait.
    pub held: RefCell<Option<Vec<(Command, Completer)>>>,
    /// Flushes, resets and finishes that have begun.
    pub underway: Cell<u32>,
    /// Zones of which a member that lacks them gives up what it holds.
    pub clearing: RefCell<Vec<u32>>,
    /// The zone that is being rebuilt, and whether somebody wants it left alone.
    pub rebuilding: Cell<Option<u32>>,
    pub rebuild_stop: Cell<bool>,
    /// The member whose place another drive is taking.
    pub handing_over: Cell<Option<usize>>,
    /// Opened when a zone has ended, is not busy any more, or has been left alone by a rebuild.
    pub zones_changed: Gate,
}

/// Zones of a drive that may go bad one by one, or an eighth of them if that is more, before the drive is
/// done without as a whole.
const MOST_PARTS_LOST: u32 = 16;

/// Whether an error is about one zone of a drive: it is worn, or not as we have left it. A zone that has
/// lost its ZRWA answers an explicit flush with Invalid Field; one of several small ones that cannot be brought
/// to where it was left, for something in it cannot be read, Unrecovered Read Error.
pub fn is_of_zone(error: DeviceError) -> bool {
    use Status::*;
    let DeviceError::Status(status) = error else { return false };
    matches!(
        status,
        ZoneIsReadOnly
            | ZoneIsOffline
            | ZoneIsFull
            | ZoneInvalidWrite
            | ZoneBoundaryError
            | InvalidZoneOperation
            | InvalidZoneStateTransition
            | InvalidField
            | WriteFault
            | UnrecoveredReadError
    )
}

/// Whether an error says that a block, and nothing more, cannot be read.
pub fn is_unreadable(error: DeviceError) -> bool {
    matches!(error, DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock))
}

impl Core {
    pub fn new(
        runtime: &Runtime,
        superblock: Superblock,
        geometry: Geometry,
        (zones, burned): (Vec<ZoneRecord>, Vec<Burned>),
        sequence: u64,
        behaviour: Behaviour,
    ) -> Rc<Core> {
        Rc::new(Core {
            runtime: runtime.clone(),
            slots: Rc::default(),
            array: superblock.array,
            layout: superblock.layout(),
            table: RefCell::new(ZoneTable::new(&geometry)),
            may_lose: Cell::new(geometry.volatile_cache),
            geometry,
            consistency: behaviour.consistency,
            join: behaviour.join,
            volatile: Cell::new(false),
            generation: Cell::new(superblock.event as u32),
            canary: behaviour.canary,
            log_step: behaviour.log_step,
            members: superblock.members.iter().map(|_| Member::default()).collect(),
            active: Cell::new(0),
            failed: Cell::new(false),
            superblock: RefCell::new(superblock),
            zones: RefCell::new(zones),
            burned: RefCell::new(burned),
            holes: RefCell::default(),
            sequence: Cell::new(sequence),
            offline: RefCell::default(),
            holding: RefCell::default(),
            stuck: RefCell::default(),
            running: RefCell::default(),
            pool: RefCell::default(),
            membership_pending: Cell::new(false),
            lacks: RefCell::default(),
            waits: Cell::new(false),
            losses: Cell::new(0),
            membership: Gate::default(),
            membership_done: Gate::default(),
            idle_readers: RefCell::default(),
            busy: RefCell::default(),
            repairing: Cell::new(None),
            rebuild_runs: Cell::new(false),
            mirror: RefCell::default(),
            held: RefCell::default(),
            underway: Cell::default(),
            clearing: RefCell::default(),
            rebuilding: Cell::new(None),
            rebuild_stop: Cell::new(false),
            handing_over: Cell::new(None),
            zones_changed: Gate::default(),
        })
    }

    /// Starts the tasks that every array has.
    pub fn start_members(self: &Rc<Self>) {
        self.start_logs();
        self.runtime.spawn(self.clone().keep_membership());
    }

    pub fn start_logs(self: &Rc<Self>) {
        for member in &self.members {
            if let Some(log) = &*member.log.borrow() {
                self.runtime.spawn(log.clone().run());
            }
        }
    }

    /// What there is to say of the members in `mask`, in a sentence without its full stop.
    pub fn notes(&self, mask: u32) -> String {
        let noted = Core::each(mask).filter_map(|role| Some((role, self.members.get(role)?)));
        let noted = noted.filter(|(_, member)| !member.note.borrow().is_empty());
        let notes: Vec<_> =
            noted.map(|(role, member)| format!("member {role}: {}", member.note.borrow())).collect();
        notes.join("; ")
    }

    pub fn check_role(&self, member: usize) -> Result<&Member, ArrayError> {
        let all = self.members.len();
        let place = self.members.get(member);
        place.ok_or_else(|| ArrayError(format!("there is no member {member}: the array has {all}")))
    }

    /// The member whose drive it is.
    pub fn member_of(&self, drive: &Drive) -> Option<usize> {
        let is_of = |member: &usize| {
            let log = self.members[*member].log.borrow();
            log.as_ref().is_some_and(|log| Rc::ptr_eq(&log.drive, &drive.device))
        };
        Core::each(self.active.get()).find(is_of)
    }

    pub fn check_unused(&self, drive: &Drive) -> Result<(), ArrayError> {
        match self.member_of(drive) {
            Some(_) => Err(ArrayError(format!("{} is a member of this array already", drive.name))),
            None => Ok(()),
        }
    }

    /// Members (bits) whose part of `zone` holds what it should.
    pub fn live(&self, zone: ZoneIndex) -> u32 {
        let lost = self.zones.borrow().get(zone.0 as usize).map_or(0, |z| z.lost);
        self.active.get() & !lost
    }

    /// Whether `zone` lacks more parts than parity makes up for: nothing can be written there any more,
    /// though the other zones work. So it is with all zones if the array has failed.
    pub fn has_failed(&self, zone: ZoneIndex) -> bool {
        let gave_up = || self.running.borrow().get(&zone.0).is_some_and(|running| running.failed.get());
        self.failed.get()
            || !self.are_enough(self.live(zone))
            || gave_up()
            || self.stuck.borrow().contains_key(&zone.0)
    }

    /// Whether everything can be read with just these members (bits).
    pub fn are_enough(&self, members: u32) -> bool {
        members.count_ones() as usize >= self.layout.fewest_members()
    }

    /// Members that are the fewest: one less, and there are not enough.
    pub fn are_needed(&self, members: u32) -> bool {
        members.count_ones() as usize <= self.layout.fewest_members()
    }

    pub fn device(&self, member: usize) -> Option<Rc<dyn ZonedDevice>> {
        if self.active.get() & (1 << member) == 0 {
            return None;
        }
        self.members[member].log.borrow().as_ref().map(|log| log.device.clone())
    }

    /// Starts a command on a member; one that is out answers at once that it is gone.
    pub fn submit(&self, member: usize, command: Command) -> Completion {
        if self.active.get() & (1 << member) != 0
            && let Some(log) = &*self.members[member].log.borrow()
        {
            return match &*self.mirror.borrow() {
                Some((seat, mirror)) if *seat == self.seat(member) => mirror.submit(command),
                _ => log.device.submit(command),
            };
        }
        Completion::failed(DeviceError::Gone)
    }

    /// The zone of the members that holds logical zone `zone`.
    pub fn physical(zone: ZoneIndex) -> ZoneIndex {
        ZoneIndex(zone.0 + META_ZONES)
    }

    /// First block of `zone` on `member`.
    pub fn start(&self, member: usize, zone: ZoneIndex) -> Lba {
        Lba(Self::physical(zone).0 as u64 * self.members[member].zone_size_blocks.get())
    }

    pub fn next_sequence(&self) -> u64 {
        self.sequence.set(self.sequence.get() + 1);
        self.sequence.get()
    }

    /// The members in `mask`, in order.
    pub fn each(mask: u32) -> impl Iterator<Item = usize> {
        (0..32).filter(move |m| mask & (1 << m) != 0)
    }

    /// The sets (bits) of so many of the members in `mask`.
    pub fn subsets(mask: u32, count: u32) -> Vec<u32> {
        let mut sets = vec![0u32];
        for _ in 0..count {
            let larger = |set: &u32| {
                let (set, after) = (*set, u32::BITS - set.leading_zeros());
                Core::each(mask).filter(move |m| *m as u32 >= after).map(move |m| set | 1 << m)
            };
            sets = sets.iter().flat_map(larger).collect();
        }
        sets
    }

    /// Carries out `command`, which is about `zone`, on every member of `mask` and waits; those that fail
    /// in it are done without.
    pub async fn on_parts(&self, zone: ZoneIndex, mask: u32, what: &str, command: impl Fn(usize) -> Command) {
        let pending: Vec<_> = Self::each(mask).map(|m| (self.seat(m), self.submit(m, command(m)))).collect();
        for (seat, completion) in pending {
            if let Err(error) = completion.await.result {
                self.part_failed(zone, seat, error, what);
            }
        }
    }

    /// Makes completed writes of the members in `mask` safe, where they have a volatile cache.
    pub async fn flush_caches(&self, mask: u32) {
        let volatile = Self::each(mask)
            .filter(|m| self.device(*m).is_some_and(|d| d.geometry().volatile_cache))
            .fold(0, |mask, m| mask | 1 << m);
        let pending: Vec<_> =
            Self::each(volatile).map(|m| (self.seat(m), self.submit(m, Command::Flush))).collect();
        for (seat, completion) in pending {
            if let Err(error) = completion.await.result {
                self.member_failed(seat, error, "flush");
            }
        }
    }

    /// Makes what has completed on the members in `mask` safe, and who they are: a member that failed
    /// on the way may hold things in its cache only, so the others must know first that it is out.
    pub async fn barrier(&self, mask: u32) {
        self.flush_caches(mask).await;
        self.membership_settled().await;
    }

    /// Appends a record to the logs of the members in `mask` and waits for all of them.
    pub async fn append_to(&self, mask: u32, record: Record, sequence: u64) {
        let pending: Vec<_> = Self::each(mask)
            .filter_map(|m| {
                Some(self.members[m].log.borrow().clone()?.append(self, record.clone(), sequence))
            })
            .collect();
        for completion in pending {
            // A member that fails here has been taken out by its log.
            completion.await;
        }
    }

    /// Has the members in `mask` write checkpoints, and waits for all of them.
    pub async fn renew_logs(&self, mask: u32) {
        let pending: Vec<_> = Self::each(mask)
            .filter_map(|m| Some(self.members[m].log.borrow().as_ref()?.renew(self)))
            .collect();
        for completion in pending {
            // A member that fails here has been taken out by its log.
            completion.await;
        }
    }

    /// Logs a record on every member and waits until it is safe on all that are left.
    pub async fn broadcast(&self, record: Record, sequence: u64) {
        self.append_to(self.active.get(), record, sequence).await;
        self.membership_settled().await;
    }

    /// The drive that is in the place of `member` now.
    pub fn seat(&self, member: usize) -> Seat {
        Seat { member, incarnation: self.members[member].incarnation.get() }
    }

    /// Gives `member` its drive.
    pub fn put(&self, member: usize, name: String, log: Rc<MetaLog>) {
        let place = &self.members[member];
        place.incarnation.set(place.incarnation.get() + 1);
        // What is being read of the drive before says nothing of this one.
        self.losses.set(self.losses.get() + 1);
        place.parts_lost.set(0);
        place.worn.set(false);
        place.zone_size_blocks.set(log.device.geometry().zone_size_blocks);
        self.volatile.set(self.volatile.get() || log.device.geometry().volatile_cache);
        *place.log.borrow_mut() = Some(log);
        *place.name.borrow_mut() = name;
        self.active.set(self.active.get() | 1 << member);
    }

    /// Does without a drive while it is found out who the members are: nothing has been written yet.
    pub fn leave_out(&self, member: usize, note: String) {
        self.active.set(self.active.get() & !(1 << member));
        *self.members[member].note.borrow_mut() = note;
    }

    /// Takes a drive out after an error. What relies on it waits for the superblocks.
    pub fn member_failed(&self, seat: Seat, error: DeviceError, what: &str) {
        let member = seat.member;
        if self.active.get() & (1 << member) == 0 || self.seat(member).incarnation != seat.incarnation {
            return;
        }
        let state = &self.members[member];
        state.write_errors.set(state.write_errors.get() + 1);
        *state.note.borrow_mut() = format!("failed: {what}: {error}");
        self.take_out(member);
    }

    /// Takes note of an error of a command for `zone`: the drive goes on without its part of the zone if
    /// the error is about that alone, and goes out otherwise.
    pub fn part_failed(&self, zone: ZoneIndex, seat: Seat, error: DeviceError, what: &str) {
        let member = seat.member;
        if !is_of_zone(error) {
            return self.member_failed(seat, error, what);
        }
        if self.live(zone) & (1 << member) == 0 || self.seat(member) != seat {
            return;
        }
        if error == Status::UnrecoveredReadError.into() && self.are_needed(self.live(zone)) {
            // Nothing is lost yet: it may be read again, or another member come back.
            self.stuck.borrow_mut().insert(zone.0, member);
            return self.wake(zone);
        }
        let state = &self.members[member];
        self.note_wear(member, error);
        let most = MOST_PARTS_LOST.max(self.geometry.zones / 8);
        if state.parts_lost.get() >= most && self.others_are_whole(member) {
            return self.member_failed(seat, error, what);
        }
        state.parts_lost.set(state.parts_lost.get() + 1);
        state.write_errors.set(state.write_errors.get() + 1);
        *state.note.borrow_mut() = format!("zone {}: {what}: {error}", zone.0);
        self.part_lost(zone, member);
    }

    /// Takes note of an error that says that a zone of a drive cannot be written any more.
    pub fn note_wear(&self, member: usize, error: DeviceError) {
        if [Status::ZoneIsReadOnly.into(), Status::ZoneIsOffline.into()].contains(&error) {
            self.members[member].worn.set(true);
        }
    }

    /// Does without a member's part of a zone from now on, and has that written down.
    pub fn part_lost(&self, zone: ZoneIndex, member: usize) {
        let epoch = {
            let record = &mut self.zones.borrow_mut()[zone.0 as usize];
            record.lost |= 1 << member;
            record.epoch
        };
        self.losses.set(self.losses.get() + 1);
        self.lacks.borrow_mut().push(Lacks { zone: zone.0, epoch, members: 1 << member });
        self.membership_pending.set(true);
        self.membership.open();
        self.wake(zone);
    }

    /// Has everybody look again who waits for something in `zone`.
    fn wake(&self, zone: ZoneIndex) {
        self.zones_changed.open();
        if let Some(zone) = self.running.borrow().get(&zone.0) {
            zone.wake();
        }
    }

    /// Whether there are enough other members, and of every zone enough other parts.
    pub fn can_spare(&self, member: usize) -> bool {
        let others = self.active.get() & !(1 << member);
        self.are_enough(others) && self.zones.borrow().iter().all(|zone| self.are_enough(others & !zone.lost))
    }

    /// Whether all other members are there and hold all that they should.
    fn others_are_whole(&self, member: usize) -> bool {
        let others = self.active.get() & !(1 << member);
        let lacking = self.zones.borrow().iter().any(|zone| zone.lost & others != 0);
        others.count_ones() as usize + 1 == self.members.len() && !lacking
    }

    /// As [`crate::array::Array::fail`].
    pub async fn fail(&self, member: usize) -> Result<(), ArrayError> {
        let active = self.active.get();
        self.check_role(member)?;
        if active & (1 << member) == 0 {
            return Err(ArrayError(format!("member {member} is out already")));
        }
        if !self.can_spare(member) {
            return Err(ArrayError(format!(
                "member {member} is needed: too many others are out or not rebuilt yet"
            )));
        }
        *self.members[member].note.borrow_mut() = "taken out by the operator".into();
        self.take_out(member);
        self.membership_settled().await;
        Ok(())
    }

    /// Removes a member from the set that is used, and has that written down.
    pub fn take_out(&self, member: usize) {
        self.active.set(self.active.get() & !(1 << member));
        self.wait_for(member);
        // While a drive takes over, the one before it can have its place again.
        if self.handing_over.get() != Some(member) {
            self.fail_without_enough();
        }
        self.membership_pending.set(true);
        self.membership.open();
        self.zones_changed.open();
        for zone in self.running.borrow().values() {
            zone.wake();
        }
    }

    /// The array has failed if more members are out than parity makes up for.
    pub fn fail_without_enough(&self) {
        if !self.are_enough(self.active.get()) {
            self.failed.set(true);
        }
    }

    /// Has zones of which there are not enough parts without it wait for a member that has just gone out:
    /// nothing is written there from now on, so that its part is right when it comes back.
    fn wait_for(&self, member: usize) {
        let (bit, others, floor) = (1 << member, self.active.get(), self.superblock.borrow().floor);
        if !self.are_enough(others) {
            return;
        }
        let (table, running) = (self.table.borrow(), self.running.borrow());
        for (zone, record) in (0..).zip(self.zones.borrow_mut().iter_mut()) {
            let empty = table.info(ZoneIndex(zone)).state == ZoneState::Empty && !running.contains_key(&zone);
            let enough = self.are_enough(others & !record.lost);
            if enough || record.lost & bit != 0 || record.resetting || empty {
                continue;
            }
            record.wait_for(bit, floor);
            self.waits.set(true);
        }
    }

    /// Waits until the logs say who the members are, and what they lack.
    pub async fn membership_settled(&self) {
        while self.membership_pending.get() && !self.failed.get() {
            self.membership_done.wait().await;
        }
    }

    /// Writes down what members lack, and changes of membership, one after the other.
    pub async fn keep_membership(self: Rc<Self>) {
        loop {
            let changed = self.membership.wait();
            while self.membership_pending.get() && !self.failed.get() {
                let active = self.active.get();
                let lacks = std::mem::take(&mut *self.lacks.borrow_mut());
                for lacks in lacks {
                    let sequence = self.next_sequence();
                    self.append_to(active, Record::Lacks(lacks), sequence).await;
                }
                let event = self.next_sequence();
                let superblock = {
                    let mut superblock = self.superblock.borrow_mut();
                    superblock.event = event;
                    for (m, member) in superblock.members.iter_mut().enumerate() {
                        member.active = active & (1 << m) != 0;
                    }
                    superblock.clone()
                };
                match self.waits.take() {
                    // Whom zones wait for is in checkpoints only.
                    true => self.renew_logs(active).await,
                    false => self.append_to(active, Record::Superblock(Box::new(superblock)), event).await,
                }
                if self.active.get() == active && self.lacks.borrow().is_empty() {
                    let mut superblock = self.superblock.borrow_mut();
                    // The drive before one that takes over may have to be taken all the same.
                    if !superblock.members.iter().any(|member| member.taking_over.is_some()) {
                        superblock.floor = event;
                    }
                    self.membership_pending.set(false);
                }
            }
            self.membership_done.open();
            for zone in self.running.borrow().values() {
                zone.wake();
            }
            changed.await;
        }
    }
}
