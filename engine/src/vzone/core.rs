//! State of running namespaces, and allocation of physical zones to their v-zones.
//!
//! All state is changed in synchronous stretches, and is examined anew after every `.await`. A task waits at a
//! [`Gate`], which is opened when the condition that it waits for may have become true.

use crate::{
    buf::{Buf, BufPool},
    device::{Command, Completer, Completion, DeviceError, Geometry, Slots, Status, ZonedDevice, Zones},
    runtime::{CombinedOperation, Exclusive, Gate, Runtime},
    table::ZoneTable,
    vzone::{
        admission::{Pace, Tokens},
        arbiter::Arbiter,
        balloon::{self, Account, History},
        congestion::{ReadControl, Window},
        error::VzoneError,
        format::{DeviceIdentity, End, JournalEntry, Spec, StripeGroups},
        options::{Clock, NamespaceOptions},
        qos_state::QosState,
        shape::GroupShape,
        throttle::Throttle,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, is_worn},
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

/// State of all running namespaces of a device.
pub(super) struct NamespaceCore {
    pub device: Rc<dyn ZonedDevice>,
    pub runtime: Runtime,
    pub clock: Clock,
    pub identity: DeviceIdentity,
    pub arbiter: RefCell<Arbiter>,
    pub journal: Journal,
    /// By number of the namespace; `None` for unused numbers.
    pub tenants: RefCell<Vec<Option<Rc<Tenant>>>>,
    pub slots: Rc<Slots>,
    pub pool: RefCell<BufPool>,
    /// Worker tasks without a job.
    pub idle: RefCell<Vec<Rc<Worker>>>,
    /// Pace of write admission control.
    pub pace: Cell<Pace>,
    /// Whether write admission control is on.
    pub admission: bool,
    /// Congestion window: blocks of each v-zone that may be read at once.
    pub window: Cell<Window>,
    /// Whether a namespace has a guarantee for which others may be throttled.
    pub promised: Cell<bool>,
    /// State of throttling.
    pub throttle: Cell<Throttle>,
    /// Queue of the throttled requests of all namespaces: one is admitted at a time.
    pub turn: Exclusive,
    /// Allocated zones that belong to no v-zone yet.
    pub in_hand: RefCell<Vec<u32>>,
    /// Of these, the target zones of the relocation in progress.
    pub copying: RefCell<Vec<u32>>,
    /// Opened when zones have become free or inactive.
    pub room: Gate,
    /// Opened when zones are to be reserved or reset.
    pub work: Gate,
    /// Lock for opening a group, taken in order of arrival.
    pub allocation: Exclusive,
    /// Lock for relocating a group, taken in order of arrival.
    pub moving: Exclusive,
    pub flushing: CombinedOperation,
    /// Lock held while a zone is reserved, and while the journal switches zones: the switch frees an active zone for a
    /// moment, which a reservation must not take.
    pub binding: Exclusive,
    /// Lock for creating, changing and removing namespaces.
    pub administration: Exclusive,
    /// The device has refused a reservation because of its limits: it is to be retried at the next tick.
    pub refused: Cell<bool>,
    /// Number of failed reservations and resets.
    pub refusals: Cell<u64>,
    /// Number of failed flushes.
    pub losses: Cell<u64>,
    /// By physical zone, whether it was worn at the last report: at the start, or after a failed flush.
    pub worn: RefCell<Vec<bool>>,
    /// The error that has stopped all changes.
    pub failed: Cell<Option<DeviceError>>,
    /// Number of completed relocations.
    pub moved_groups: Cell<u64>,
    /// Number of v-zones with a queued or running relocation.
    pub moves: Cell<u32>,
}

/// A running namespace.
pub(super) struct Tenant {
    pub id: u32,
    /// Specification; its quality of service is that of the start, and the present one is in `qos_state`.
    pub spec: Spec,
    pub qos_state: QosState,
    pub geometry: Geometry,
    pub state: RefCell<TenantState>,
    /// Number of outstanding commands, without relocations.
    pub commands: Cell<u32>,
    /// By v-zone: opened when an operation was submitted or has completed, tokens may have been added, or a read has
    /// completed.
    pub gates: Vec<Gate>,
}

/// Mutable state of a running namespace.
pub(super) struct TenantState {
    pub table: ZoneTable,
    pub vzones: Vec<Vzone>,
    /// Average number of active v-zones.
    pub history: History,
    /// Spares that its groups hold.
    pub spares: u32,
    /// Number of the next zone reservation when it last opened a group, or was started: a measure of how recently it
    /// was active.
    pub opened: u64,
    pub last_write_us: u64,
    /// It is not created yet, or is removed: it accepts no commands.
    pub removed: bool,
    /// Queue of the writes that wait for the first group of their v-zone, by their numbers in [`TenantState::begun`].
    pub beginning: VecDeque<u64>,
    /// Number of such writes so far.
    pub begun: u64,
    /// Number of flush commands so far.
    pub flushes: u64,
    /// A relocation is in progress of which source and target groups are both active.
    pub doubled: bool,
    /// Number of relocations in a row that were stopped because the tenant wanted to write.
    pub stops: u32,
}

impl TenantState {
    /// Queues a write that begins a v-zone; returns its number.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.beginning.push_back(self.begun);
        self.begun
    }

    /// Passes the number of failed v-zones that keep active zones to the zone table, which counts them as active.
    pub fn hold(&mut self) {
        let stuck = self.vzones.iter().filter(|vzone| vzone.stuck).count();
        self.table.hold(stuck as u32);
    }

    /// V-zones that count against `max_active`: those that have active zones or are opening a group, and those that
    /// have groups and are neither full nor failed. `capacity` is that of a v-zone in blocks.
    fn engaged(&self, capacity: u64) -> impl Iterator<Item = &Vzone> {
        let is_full = move |vzone: &Vzone| matches!(vzone.end, End::Finished(_)) || vzone.tail == capacity;
        let is_ended = move |vzone: &Vzone| vzone.failed.is_some() || is_full(vzone);
        let engaged = move |vzone: &&Vzone| {
            vzone.active || vzone.opening || !vzone.groups.is_empty() && !is_ended(vzone)
        };
        self.vzones.iter().filter(engaged)
    }

    /// Number of v-zones that count against `max_active`, plus one during a relocation with two active groups.
    pub fn engaged_count(&self, capacity: u64) -> usize {
        self.engaged(capacity).count() + self.doubled as usize
    }
}

/// A v-zone. Each operation that changes it takes a ticket: operations are submitted in the order of their tickets, and
/// completed in that order.
#[derive(Clone, Copy)]
pub(super) struct Vzone {
    pub groups: StripeGroups,
    pub end: End,
    /// End of the completed writes, in blocks from its start.
    pub tail: u64,
    /// Tickets of changes that were given out.
    pub tickets: u64,
    /// Changes that were submitted to the device.
    pub submitted: u64,
    /// Changes that have completed.
    pub settled: u64,
    /// End of the writes without FUA to a volatile cache, in blocks.
    pub plain_end: u64,
    /// End of the blocks that a flush has made durable.
    pub flushed: u64,
    /// Number of resets of the v-zone.
    pub epoch: u32,
    /// Outstanding reads, for congestion control.
    pub reads: ReadControl,
    /// Tickets of reads that were given out. Reads are passed to the device in this order, so that large ones are not
    /// starved.
    pub read_tickets: u64,
    /// Reads that were passed to the device.
    pub reads_submitted: u64,
    /// Write tokens, for admission control.
    pub tokens: Tokens,
    /// Whether the last group holds active zones.
    pub active: bool,
    /// Number of spares among these zones.
    pub spares: u32,
    /// Whether it is opening another group, which will hold active zones even if the v-zone fails meanwhile.
    pub opening: bool,
    /// Whether its relocation is queued or running.
    pub leaving: bool,
    /// The error since which it is read-only.
    pub failed: Option<DeviceError>,
    /// It has failed and keeps its active zones until it is reset, or the namespaces are opened again.
    pub stuck: bool,
    /// Error of a flush by which completed writes may have been lost.
    pub lost: Option<DeviceError>,
    /// Number of the last flush command that reports `lost`; `None` before the first one has.
    pub reported_by: Option<u64>,
}

const _: () = assert!(size_of::<Vzone>() + size_of::<Gate>() < 1024);

impl Vzone {
    pub fn new(groups: StripeGroups, end: End, tail: u64) -> Vzone {
        Vzone {
            groups,
            end,
            tail,
            tickets: 0,
            submitted: 0,
            settled: 0,
            plain_end: 0,
            flushed: 0,
            epoch: 0,
            reads: ReadControl::default(),
            read_tickets: 0,
            reads_submitted: 0,
            tokens: Tokens::default(),
            active: false,
            spares: 0,
            opening: false,
            leaving: false,
            failed: None,
            stuck: false,
            lost: None,
            reported_by: None,
        }
    }

    /// Whether commands for it are outstanding.
    pub fn is_busy(&self) -> bool {
        self.settled != self.tickets || self.read_tickets != self.reads_submitted || self.reads.blocks() > 0
    }

    /// The next ticket for an operation that changes the v-zone.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets - 1
    }

    /// Counts a change as submitted, in ticket order.
    pub fn submit(&mut self) {
        self.submitted += 1;
        let Vzone { tickets, submitted, .. } = *self;
        assert!(
            submitted <= tickets,
            "{submitted} operations of a v-zone are submitted, of {tickets} tickets"
        );
    }

    /// Counts a change as completed, in ticket order.
    pub fn settle(&mut self) {
        self.settled += 1;
        let Vzone { submitted, settled, .. } = *self;
        assert!(
            settled <= submitted,
            "{settled} operations of a v-zone have completed, of {submitted} submitted"
        );
    }

    /// Counts a read as passed to the device, in ticket order.
    pub fn count_read(&mut self) {
        self.reads_submitted += 1;
        let Vzone { read_tickets, reads_submitted, .. } = *self;
        assert!(
            reads_submitted <= read_tickets,
            "{reads_submitted} reads of a v-zone are submitted, of {read_tickets}"
        );
    }

    /// The next ticket for a read.
    pub fn turn(&mut self) -> u64 {
        self.read_tickets += 1;
        self.read_tickets - 1
    }

    /// Width of the last group, which is being written; 1 without groups.
    pub fn width(&self) -> u32 {
        self.groups.group(self.groups.len().wrapping_sub(1)).map_or(1, |(width, ..)| width)
    }
}

/// Position of the journal, at which its next block is written.
#[derive(Default)]
pub(super) struct Journal {
    /// Lock for writing to the journal.
    pub turn: Exclusive,
    /// Zone, 0 or 1, and offset of the next block.
    pub place: Cell<(u32, u32)>,
    /// Number of the last checkpoint.
    pub generation: Cell<u64>,
}

impl Journal {
    /// The journal of a device with the newest checkpoint in `zone`. Nothing more is written to that zone: a checkpoint
    /// in the other one comes first.
    pub fn new(zone: u32, generation: u64) -> Journal {
        Journal {
            turn: Exclusive::default(),
            place: Cell::new((zone, u32::MAX)),
            generation: Cell::new(generation),
        }
    }
}

/// Job of a worker task. Zones are v-zones, offsets are in blocks.
pub(super) enum WorkerJob {
    /// Reads the blocks from `from` on into `data`, in the order of the read tickets (`turn`).
    Read {
        zone: usize,
        turn: u64,
        from: u64,
        data: Buf,
    },
    /// Writes `data` from block `from` on, in the order of tickets. `begins` is the number of a write that opens the
    /// first group of its v-zone ([`TenantState::begin`]).
    Write {
        zone: usize,
        ticket: u64,
        from: u64,
        data: Buf,
        fua: bool,
        begins: Option<u64>,
    },
    Flush,
    /// Finishes v-zones, by their numbers and tickets.
    Finish(Vec<(usize, u64)>),
    /// Resets v-zones, by their numbers and tickets.
    Reset(Vec<(usize, u64)>),
    /// Moves the last group of a v-zone to one of essential width.
    Move {
        zone: usize,
        ticket: u64,
    },
}

impl WorkerJob {
    /// Whether the job is a command of the tenant, not internal work.
    pub fn is_command(&self) -> bool {
        !matches!(self, WorkerJob::Move { .. })
    }
}

/// Mailbox of a worker task.
#[derive(Default)]
pub(super) struct Worker {
    pub job: RefCell<Option<(Rc<Tenant>, WorkerJob, Completer)>>,
    pub begun: Gate,
}

/// Purpose of an allocation of zones.
#[derive(Clone, Copy)]
pub(super) enum AllocationPurpose {
    /// A new group of at most `most` zones, which makes its namespace count as active.
    Group { most: u32 },
    /// Target of a relocation: `least` zones, and up to `most` if spares are free.
    Moved { least: u32, most: u32 },
}

/// Zones allocated for a group.
pub(super) struct GroupAllocation {
    pub zones: Vec<u32>,
    pub unit_blocks: u32,
    /// Number of spares among the zones.
    pub spares: u32,
}

impl NamespaceCore {
    /// Initial state, without namespaces and zones.
    pub fn new(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        options: NamespaceOptions,
        identity: DeviceIdentity,
    ) -> NamespaceCore {
        NamespaceCore {
            device,
            runtime: runtime.clone(),
            clock: options.clock,
            identity,
            arbiter: RefCell::new(Arbiter::new(0, 0, 0, 0)),
            journal: Journal::default(),
            tenants: RefCell::default(),
            slots: Rc::default(),
            pool: RefCell::default(),
            idle: RefCell::default(),
            pace: Cell::default(),
            admission: options.admission,
            window: Cell::default(),
            promised: Cell::default(),
            throttle: Cell::default(),
            turn: Exclusive::default(),
            in_hand: RefCell::default(),
            copying: RefCell::default(),
            room: Gate::default(),
            work: Gate::default(),
            allocation: Exclusive::default(),
            moving: Exclusive::default(),
            flushing: CombinedOperation::default(),
            binding: Exclusive::default(),
            administration: Exclusive::default(),
            refused: Cell::default(),
            refusals: Cell::default(),
            losses: Cell::default(),
            worn: RefCell::default(),
            failed: Cell::default(),
            moved_groups: Cell::default(),
            moves: Cell::default(),
        }
    }

    /// Layout of a group of `width` zones.
    pub fn shape(&self, width: u32, unit_blocks: u32) -> GroupShape {
        GroupShape { width, unit_blocks, zone_blocks: self.identity.data_blocks() }
    }

    /// Address of block `offset` of the data of a physical zone.
    pub fn lba(&self, zone: u32, offset: u64) -> Lba {
        Lba(self.device.geometry().start(ZoneIndex(zone)).0 + self.identity.lead_blocks as u64 + offset)
    }

    /// Blocks of all groups that the v-zone may use: at most its capacity.
    pub fn usable(&self, groups: &StripeGroups) -> u64 {
        self.allocated(groups).min(self.identity.vzone_blocks())
    }

    /// Blocks of all groups.
    pub fn allocated(&self, groups: &StripeGroups) -> u64 {
        groups.zones().len() as u64 * self.identity.data_blocks()
    }

    /// Stops all changes for good, after a journal error or on close, and wakes the waiting tasks.
    pub fn fail(&self, error: DeviceError) {
        self.failed.set(self.failed.get().or(Some(error)));
        [&self.room, &self.work].into_iter().for_each(Gate::open);
    }

    /// Fails if all changes have been stopped.
    ///
    /// # Errors
    /// The error that has stopped them.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.failed.get().map_or(Ok(()), Err)
    }

    /// Flushes the device. Afterwards all completed writes are durable, except those of v-zones that are marked as
    /// having lost some. Flushes are not concurrent: an array reports a loss only once, so one flush could succeed
    /// while another one gets the report. Callers share a flush that begins after their call.
    ///
    /// # Errors
    /// The flush failed, and no v-zone could be marked for it.
    pub async fn flush_device(&self) -> Result<(), DeviceError> {
        let flush = || async {
            while let Err(error) = self.device.submit(Command::Flush).await.result {
                self.losses.set(self.losses.get() + 1);
                if !self.lose(error).await {
                    return Err(error);
                }
            }
            Ok(())
        };
        self.flushing.run(flush).await
    }

    /// Marks the v-zones that may have lost writes by a failed flush: those with a zone that has become worn since the
    /// last report, or if there are none, all with unflushed writes. A zone that was worn before proves nothing, and
    /// data of a v-zone whose end is recorded was flushed. Returns whether a v-zone was marked that was not before.
    async fn lose(&self, error: DeviceError) -> bool {
        let (first, count) = (ZoneIndex(0), self.device.geometry().zones);
        let report = self.device.submit(Command::Report { first, count }).await;
        let before = match report.result {
            Ok(()) => self.note_worn(&report.zones),
            // Then no zone counts as worn since.
            Err(_) => self.worn.borrow().clone(),
        };
        let is = |worn: &[bool], zone: u32| worn.get(zone as usize).is_some_and(|worn| *worn);
        let is_out = |zone: &u32| is(&self.worn.borrow(), *zone) && !is(&before, *zone);
        let is_hit = |vzone: &Vzone| vzone.end == End::Open && vzone.groups.zones().iter().any(is_out);
        let tenants = self.tenants();
        let known = |vzone: &Vzone| vzone.lost.is_none() && is_hit(vzone);
        let any_hit = tenants.iter().any(|tenant| tenant.state.borrow().vzones.iter().any(known));
        let mut found = false;
        for tenant in tenants {
            for zone in 0..tenant.geometry.zones as usize {
                let mut state = tenant.state.borrow_mut();
                let vzone = &mut state.vzones[zone];
                let hit = if any_hit { is_hit(vzone) } else { vzone.plain_end > vzone.flushed };
                if !hit || vzone.lost.is_some() {
                    continue;
                }
                vzone.lost = Some(error);
                drop(state);
                found = true;
                self.fail_vzone(&tenant, zone, error);
                self.stick(&tenant, zone);
            }
        }
        found
    }

    /// Records which zones are worn; returns the previous record.
    pub fn note_worn(&self, zones: &[ZoneInfo]) -> Vec<bool> {
        self.worn.replace(zones.iter().map(|info| is_worn(info.state)).collect())
    }

    /// Marks a failed v-zone as keeping its active zones, which count against the limits of its namespace.
    pub fn stick(&self, tenant: &Tenant, zone: usize) {
        {
            let mut state = tenant.state.borrow_mut();
            state.vzones[zone].stuck = state.vzones[zone].active;
            state.hold();
        }
        self.room.open();
    }

    /// Finishes a physical zone, so that it is not active any more.
    pub fn finish_zone(&self, zone: u32) -> Completion {
        self.device.submit(Command::Finish { zones: Zones::One(ZoneIndex(zone)) })
    }

    /// The existing namespaces.
    pub fn tenants(&self) -> Vec<Rc<Tenant>> {
        self.tenants.borrow().iter().flatten().cloned().collect()
    }

    /// Number of spares: active zones beyond the essential ones of all namespaces.
    pub fn spares(&self) -> u32 {
        let essential: u32 = self.tenants.borrow().iter().flatten().map(|tenant| tenant.essential()).sum();
        self.arbiter.borrow().group_limit().saturating_sub(essential)
    }

    /// Number of active zones of the namespace that has the relocation in progress: those of its groups, and the
    /// targets.
    pub fn active_of(&self, state: &TenantState) -> u32 {
        let arbiter = self.arbiter.borrow();
        let last = |vzone: &Vzone| vzone.groups.len().checked_sub(1).filter(|_| vzone.active);
        let in_groups = state.vzones.iter().filter_map(|vzone| Some(vzone.groups.group(last(vzone)?)?.2));
        let copying = self.copying.borrow();
        in_groups.flatten().chain(&*copying).filter(|zone| arbiter.is_active(**zone)).count() as u32
    }

    /// Width of the next group of a namespace: a power of two, at most `most`.
    fn decide(&self, tenant: &Tenant, most: u32) -> u32 {
        let spares = self.spares();
        let serial = self.arbiter.borrow().serial();
        let tenants = self.tenants.borrow();
        let window: u32 = tenants.iter().flatten().map(|tenant| tenant.essential()).sum();
        let account = |other: &Rc<Tenant>| {
            let state = other.state.borrow();
            let lately = serial - state.opened <= window as u64;
            Account { weight: other.spec.weight, used: state.spares, active: lately || other.id == tenant.id }
        };
        let accounts: Vec<Account> = tenants.iter().flatten().map(account).collect();
        let mut shares = Vec::with_capacity(accounts.len());
        balloon::shares(spares, &accounts, &mut shares);
        let place = tenants.iter().flatten().position(|other| other.id == tenant.id);
        let share = place.and_then(|place| shares.get(place)).copied().unwrap_or(0);
        let used: u32 = accounts.iter().map(|account| account.used).sum();
        let state = tenant.state.borrow();
        let free = spares.saturating_sub(used);
        balloon::width(tenant.spec.essential, (share, state.spares, free), state.history, most)
    }

    /// Waits until write `number` may open the first group of its v-zone: all such writes before it have done so, and
    /// fewer than `max_active` v-zones count as active. The zone table counts a v-zone as full while its last writes
    /// are outstanding, and so may admit another one, which waits for them here.
    ///
    /// # Errors
    /// Too Many Active Zones if the wait would never end.
    pub async fn wait_to_begin(&self, tenant: &Tenant, number: u64) -> Result<(), DeviceError> {
        loop {
            self.check()?;
            {
                let state = tenant.state.borrow();
                let first = state.beginning.front() == Some(&number);
                let capacity = tenant.geometry.zone_capacity_blocks;
                let most = tenant.spec.max_active as usize;
                if first && state.engaged_count(capacity) < most {
                    return Ok(());
                }
                // V-zones without outstanding changes stay active, so it makes no sense to wait for them.
                if state.engaged(capacity).filter(|vzone| vzone.settled == vzone.tickets).count() >= most {
                    return Err(Status::TooManyActiveZones.into());
                }
            }
            self.room.wait().await;
        }
    }

    /// Allocates zones for a group; waits until they are reserved.
    ///
    /// # Errors
    /// Capacity Exceeded if too many zones are worn.
    pub async fn allocate(
        &self,
        tenant: &Tenant,
        want: AllocationPurpose,
    ) -> Result<GroupAllocation, DeviceError> {
        let _turn = self.allocation.take().await;
        if let AllocationPurpose::Group { .. } = want {
            let mut state = tenant.state.borrow_mut();
            state.history = state.history.with(state.table.active_zones());
        }
        loop {
            self.check()?;
            if let Some(taken) = self.take_now(tenant, want)? {
                return Ok(taken);
            }
            self.room.wait().await;
        }
    }

    /// Allocates zones for a group; `None` if it has to wait for them.
    fn take_now(
        &self,
        tenant: &Tenant,
        want: AllocationPurpose,
    ) -> Result<Option<GroupAllocation>, DeviceError> {
        let (mut width, least) = match want {
            AllocationPurpose::Group { most } => (self.decide(tenant, most), tenant.spec.essential.min(most)),
            AllocationPurpose::Moved { least, most } => {
                let all = least.saturating_add(self.free_spares());
                (balloon::floor_power(all.min(most)).max(least), least)
            }
        };
        let mut arbiter = self.arbiter.borrow_mut();
        self.work.open();
        while !arbiter.want(width) {
            if !arbiter.is_exhausted(width) {
                return Ok(None);
            }
            // Too many zones are worn for this width: a narrower group is tried.
            width /= 2;
            if width < least.max(1) {
                return Err(Status::CapacityExceeded.into());
            }
        }
        assert!(width.is_power_of_two(), "a group of {width} zones, which the next start would refuse");
        let spares = width.saturating_sub(least);
        let zones = arbiter.take(width);
        let mut state = tenant.state.borrow_mut();
        if let AllocationPurpose::Group { .. } = want {
            state.opened = arbiter.serial();
        }
        state.spares += spares;
        self.in_hand.borrow_mut().extend(&zones);
        let unit_blocks = match self.identity.lead_blocks {
            1 => balloon::unit_blocks(tenant.spec.essential, width),
            // A unit is a whole stripe of the array, so that it lies on all drives.
            stripe_blocks => stripe_blocks,
        };
        Ok(Some(GroupAllocation { zones, unit_blocks, spares }))
    }

    /// Number of spares that no group holds.
    fn free_spares(&self) -> u32 {
        let tenants = self.tenants.borrow();
        let used: u32 = tenants.iter().flatten().map(|tenant| tenant.state.borrow().spares).sum();
        self.spares().saturating_sub(used)
    }

    /// Removes zones from `in_hand`, since they belong to a v-zone now, or are released.
    pub fn handed(&self, zones: &[u32]) {
        self.in_hand.borrow_mut().retain(|zone| !zones.contains(zone));
    }

    /// Counts the zones of the last group of a v-zone as inactive, and returns its spares.
    pub fn end_group(&self, state: &mut TenantState, zone: usize) {
        let vzone = &mut state.vzones[zone];
        if !std::mem::take(&mut vzone.active) {
            return;
        }
        let mut arbiter = self.arbiter.borrow_mut();
        if let Some((_, _, zones)) = vzone.groups.group(vzone.groups.len() - 1) {
            zones.iter().for_each(|zone| arbiter.retire(*zone));
        }
        state.spares -= std::mem::take(&mut vzone.spares);
        vzone.stuck = false;
        state.hold();
        drop(arbiter);
        self.room.open();
        self.work.open();
    }

    /// Ends the last group of a v-zone, which is full. Its data is flushed before its zones count as inactive: without
    /// that they could be active again after a power cut.
    pub async fn filled(&self, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
        let active = tenant.state.borrow().vzones[zone].active;
        if active {
            self.flush_cache().await?;
            let vzone = tenant.state.borrow().vzones[zone];
            vzone.lost.map_or(Ok(()), Err)?;
            if vzone.tail < self.allocated(&vzone.groups) {
                // The capacity of the v-zone ends before its zones do.
                if self.finish_last(tenant, zone).await.is_err() {
                    self.stick(tenant, zone);
                }
                return Ok(());
            }
            self.end_group(&mut tenant.state.borrow_mut(), zone);
        }
        Ok(())
    }

    /// As [`NamespaceCore::flush_device`], if there is anything to be flushed.
    pub async fn flush_cache(&self) -> Result<(), DeviceError> {
        if self.device.geometry().volatile_cache { self.flush_device().await } else { Ok(()) }
    }

    /// Releases zones of a v-zone; they are reset in the background.
    pub fn give_up(&self, zones: &[u32]) {
        let mut arbiter = self.arbiter.borrow_mut();
        zones.iter().for_each(|zone| arbiter.give_up(*zone));
        drop(arbiter);
        self.work.open();
    }

    /// The physical zones of all v-zones, and the allocated ones that belong to none yet.
    pub fn claims(&self) -> Vec<u32> {
        let mut claims = self.in_hand.borrow().clone();
        for tenant in self.tenants() {
            let state = tenant.state.borrow();
            claims.extend(state.vzones.iter().flat_map(|vzone| vzone.groups.zones().to_vec()));
        }
        claims
    }

    /// The entries of a checkpoint of the journal: the complete state.
    pub fn entries(&self) -> Vec<JournalEntry> {
        let mut entries = vec![JournalEntry::Identity(self.identity)];
        for tenant in self.tenants.borrow().iter().flatten() {
            entries.push(JournalEntry::Namespace(tenant.id, tenant.spec()));
            for (zone, vzone) in (0..).zip(&tenant.state.borrow().vzones) {
                if !vzone.groups.is_empty() || vzone.end != End::Open {
                    entries.push(JournalEntry::Vzone(tenant.id, zone, vzone.groups, vzone.end));
                }
            }
        }
        entries
    }

    /// A buffer of the pool.
    pub fn take_buffer(&self, blocks: u64) -> crate::buf::BufMut {
        self.pool.borrow_mut().take(blocks)
    }

    /// Returns a buffer to the pool.
    pub fn give_buffer(&self, buf: Buf) {
        self.pool.borrow_mut().give(buf);
    }

    /// Time of the clock, in microseconds.
    pub fn now_us(&self) -> u64 {
        (self.clock)()
    }
}

impl Tenant {
    /// A namespace with these v-zones; `opened` is the number of the next zone reservation.
    pub fn new(id: u32, spec: Spec, geometry: Geometry, vzones: Vec<Vzone>, opened: u64) -> Tenant {
        let table = ZoneTable::new(&geometry);
        let gates = (0..geometry.zones).map(|_| Gate::default()).collect();
        let state = TenantState {
            table,
            vzones,
            history: History::default(),
            spares: 0,
            opened,
            last_write_us: 0,
            removed: false,
            beginning: VecDeque::new(),
            begun: 0,
            flushes: 0,
            doubled: false,
            stops: 0,
        };
        let qos_state = QosState::new(spec.qos);
        Tenant { id, spec, qos_state, geometry, state: RefCell::new(state), commands: Cell::default(), gates }
    }

    /// Its present specification.
    pub fn spec(&self) -> Spec {
        Spec { qos: self.qos_state.qos.get(), ..self.spec.clone() }
    }

    /// Checks that no v-zone beyond the first `zones` holds data.
    ///
    /// # Errors
    /// [`VzoneError::Holds`] names the last v-zone that does.
    pub fn check_size(&self, zones: u32) -> Result<(), VzoneError> {
        let used = |vzone: &Vzone| !vzone.groups.is_empty() || vzone.end != End::Open;
        let last = self.state.borrow().vzones.iter().rposition(used).map(|zone| zone as u32);
        last.filter(|zone| *zone >= zones).map_or(Ok(()), |zone| Err(VzoneError::Holds { zone }))
    }

    /// Copies the state of the namespace for another number of v-zones. No commands may be outstanding.
    pub fn resized(&self, spec: Spec, geometry: Geometry) -> Tenant {
        let state = self.state.borrow();
        let mut vzones = state.vzones.clone();
        vzones.resize(spec.zones as usize, Vzone::new(StripeGroups::default(), End::Open, 0));
        let tenant = Tenant::new(self.id, spec, geometry, vzones, state.opened);
        {
            let mut new = tenant.state.borrow_mut();
            let count = self.geometry.zones.min(tenant.geometry.zones);
            (0..count).for_each(|zone| new.table.load(&state.table.info(ZoneIndex(zone))));
            (new.history, new.spares) = (state.history, state.spares);
            (new.last_write_us, new.flushes) = (state.last_write_us, state.flushes);
            new.hold();
        }
        tenant
    }

    /// Number of active zones that are guaranteed to the namespace.
    pub fn essential(&self) -> u32 {
        self.spec.essential * self.spec.max_active
    }

    /// Waits until `condition` holds for the v-zone.
    pub async fn wait(&self, zone: usize, condition: impl Fn(&Vzone) -> bool) {
        while !condition(&self.state.borrow().vzones[zone]) {
            self.gates[zone].wait().await;
        }
    }

    /// Waits until all changes with earlier tickets have completed; later ones wait for [`Tenant::leave`].
    pub async fn enter(&self, zone: usize, ticket: u64) {
        self.wait(zone, |vzone| vzone.submitted == ticket && vzone.settled == ticket).await;
    }

    /// Completes the change that [`Tenant::enter`] has begun.
    pub fn leave(&self, zone: usize) {
        {
            let mut state = self.state.borrow_mut();
            let vzone = &mut state.vzones[zone];
            vzone.submit();
            vzone.settle();
        }
        self.gates[zone].open();
    }
}
