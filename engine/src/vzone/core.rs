//! State that the parts of running namespaces share.
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

pub(super) struct NamespaceCore {
    pub device: Rc<dyn ZonedDevice>,
    pub runtime: Runtime,
    pub clock: Clock,
    pub identity: DeviceIdentity,
    pub arbiter: RefCell<Arbiter>,
    pub journal: Journal,
    /// By number.
    pub tenants: RefCell<Vec<Option<Rc<Tenant>>>>,
    pub slots: Rc<Slots>,
    pub pool: RefCell<BufPool>,
    pub idle: RefCell<Vec<Rc<Worker>>>,
    pub pace: Cell<Pace>,
    pub admission: bool,
    /// Congestion window: blocks of each v-zone that may be read at once.
    pub window: Cell<Window>,
    /// Whether a namespace has a guarantee for which others may be throttled, and the state of that throttling.
    pub promised: Cell<bool>,
    pub throttle: Cell<Throttle>,
    /// Order of the throttled requests of all namespaces.
    pub turn: Exclusive,
    /// Allocated zones that belong to no v-zone yet.
    pub in_hand: RefCell<Vec<u32>>,
    /// Of these, the targets of a relocation.
    pub copying: RefCell<Vec<u32>>,
    /// Opened when zones have become free or inactive.
    pub room: Gate,
    /// Opened when zones are to be reserved or reset.
    pub work: Gate,
    /// Locks for opening a group and for relocating one, taken in order of arrival.
    pub allocation: Exclusive,
    pub moving: Exclusive,
    pub flushing: CombinedOperation,
    /// Held while a zone is reserved, and while the journal switches to its other zone: no reservation takes the active
    /// zone that the switch frees for a moment.
    pub binding: Exclusive,
    /// Lock for creating, changing and removing namespaces.
    pub administration: Exclusive,
    /// The device has refused to make a zone active for now: the reservation is to be retried.
    pub refused: Cell<bool>,
    /// Refused reservations and resets so far.
    pub refusals: Cell<u64>,
    /// Flushes that have failed.
    pub losses: Cell<u64>,
    /// By physical zone, whether it was worn when zones were last reported: at the start, or after a failed flush.
    pub worn: RefCell<Vec<bool>>,
    pub failed: Cell<Option<DeviceError>>,
    pub moved_groups: Cell<u64>,
    /// Number of v-zones with a queued or running relocation.
    pub moves: Cell<u32>,
}

/// A namespace as it runs.
pub(super) struct Tenant {
    pub id: u32,
    /// Its specification, apart from the quality of service, which may change while it runs.
    pub spec: Spec,
    pub qos_state: QosState,
    pub geometry: Geometry,
    pub state: RefCell<TenantState>,
    /// Outstanding commands, without relocations.
    pub commands: Cell<u32>,
    /// By v-zone: opened when a ticket has been served, tokens have come, or reads have completed.
    pub gates: Vec<Gate>,
}

pub(super) struct TenantState {
    pub table: ZoneTable,
    pub vzones: Vec<Vzone>,
    pub history: History,
    /// Spares that its groups hold.
    pub spares: u32,
    /// Reservation number at which it last opened a group, or began: a namespace that has had no time to open one is
    /// not inactive.
    pub opened: u64,
    pub last_write_us: u64,
    pub removed: bool,
    /// Numbers of the writes that wait for the first group of their v-zone, in the order of submission.
    pub beginning: VecDeque<u64>,
    /// Such writes so far.
    pub begun: u64,
    /// Flushes that have begun.
    pub flushes: u64,
    /// A v-zone that is being relocated counts its source and its target group as active.
    pub doubled: bool,
    /// Relocations in a row that stopped because the tenant wanted to write.
    pub stops: u32,
}

impl TenantState {
    /// Queues a write that begins a v-zone; returns its number.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.beginning.push_back(self.begun);
        self.begun
    }

    /// Makes the zone table count the v-zones that have failed and keep their active zones.
    pub fn hold(&mut self) {
        let stuck = self.vzones.iter().filter(|vzone| vzone.stuck).count();
        self.table.hold(stuck as u32);
    }

    /// V-zones that have groups and are neither full nor failed, and those that hold active zones, or are about to.
    fn engaged(&self, capacity: u64) -> impl Iterator<Item = &Vzone> {
        let is_full = move |vzone: &Vzone| matches!(vzone.end, End::Finished(_)) || vzone.tail == capacity;
        let is_ended = move |vzone: &Vzone| vzone.failed.is_some() || is_full(vzone);
        let engaged = move |vzone: &&Vzone| {
            vzone.active || vzone.opening || !vzone.groups.is_empty() && !is_ended(vzone)
        };
        self.vzones.iter().filter(engaged)
    }

    /// Number of these v-zones, plus one during a relocation with two active groups.
    pub fn engaged_count(&self, capacity: u64) -> usize {
        self.engaged(capacity).count() + self.doubled as usize
    }
}

/// A v-zone. Each operation that changes it takes a ticket and waits for its turn: writes are submitted in the order of
/// their tickets, and completed in that order.
#[derive(Clone, Copy)]
pub(super) struct Vzone {
    pub groups: StripeGroups,
    pub end: End,
    /// Blocks from the start with completed writes.
    pub tail: u64,
    pub tickets: u64,
    pub submitted: u64,
    pub settled: u64,
    /// End of the writes without FUA to a volatile cache, and of the flushed ones.
    pub plain_end: u64,
    pub flushed: u64,
    /// Counts resets.
    pub epoch: u32,
    pub reads: ReadControl,
    /// Reads submitted so far, and those passed to the device, in order: so large ones are not starved.
    pub reads_asked: u64,
    pub reads_gone: u64,
    pub tokens: Tokens,
    /// Whether the last group holds active zones, and how many of these are spare.
    pub active: bool,
    pub spares: u32,
    /// Whether it is getting another group, which will hold active zones even if the v-zone fails meanwhile.
    pub opening: bool,
    /// Whether its relocation is queued or running.
    pub leaving: bool,
    pub failed: Option<DeviceError>,
    /// Its active zones cannot be given back before it is reset, or the namespaces are opened again.
    pub stuck: bool,
    /// Error by which completed writes may have been lost, and number of the last flush that reports it.
    pub lost: Option<DeviceError>,
    pub told: Option<u64>,
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
            reads_asked: 0,
            reads_gone: 0,
            tokens: Tokens::default(),
            active: false,
            spares: 0,
            opening: false,
            leaving: false,
            failed: None,
            stuck: false,
            lost: None,
            told: None,
        }
    }

    /// Whether commands for it are outstanding.
    pub fn is_busy(&self) -> bool {
        self.settled != self.tickets || self.reads_asked != self.reads_gone || self.reads.blocks() > 0
    }

    /// The next ticket for an operation that changes the v-zone.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets - 1
    }

    /// Counts an operation as submitted, in its turn.
    pub fn submit(&mut self) {
        self.submitted += 1;
        let Vzone { tickets, submitted, .. } = *self;
        assert!(
            submitted <= tickets,
            "{submitted} operations of a v-zone are submitted, of {tickets} tickets"
        );
    }

    /// Counts an operation as completed, in its turn.
    pub fn settle(&mut self) {
        self.settled += 1;
        let Vzone { submitted, settled, .. } = *self;
        assert!(
            settled <= submitted,
            "{settled} operations of a v-zone have completed, of {submitted} submitted"
        );
    }

    /// Counts a read as submitted, in its turn.
    pub fn pass_read(&mut self) {
        self.reads_gone += 1;
        let Vzone { reads_asked, reads_gone, .. } = *self;
        assert!(reads_gone <= reads_asked, "{reads_gone} reads of a v-zone are submitted, of {reads_asked}");
    }

    /// The next ticket for a read.
    pub fn turn(&mut self) -> u64 {
        self.reads_asked += 1;
        self.reads_asked - 1
    }

    /// The width of the group that is being written.
    pub fn width(&self) -> u32 {
        self.groups.group(self.groups.len().wrapping_sub(1)).map_or(1, |(width, ..)| width)
    }
}

/// Position of the journal: where its next block is written.
#[derive(Default)]
pub(super) struct Journal {
    pub turn: Exclusive,
    /// Zone 0 or 1, and the offset of the next block.
    pub place: Cell<(u32, u32)>,
    /// Counts checkpoints.
    pub generation: Cell<u64>,
}

impl Journal {
    /// Journal of a device whose newest checkpoint is in `zone`, with this generation. Its next block has to be a
    /// checkpoint.
    pub fn new(zone: u32, generation: u64) -> Journal {
        Journal {
            turn: Exclusive::default(),
            place: Cell::new((zone, u32::MAX)),
            generation: Cell::new(generation),
        }
    }
}

/// Job of a worker task.
pub(super) enum WorkerJob {
    /// Blocks of a v-zone, from an offset on.
    Read {
        zone: usize,
        turn: u64,
        from: u64,
        data: Buf,
    },
    /// As [`WorkerJob::Read`], in its turn. `begins` is the number of a write that opens the first group of its v-zone.
    Write {
        zone: usize,
        ticket: u64,
        from: u64,
        data: Buf,
        fua: bool,
        begins: Option<u64>,
    },
    Flush,
    /// V-zones and their tickets.
    Finish(Vec<(usize, u64)>),
    Reset(Vec<(usize, u64)>),
    /// Moves the last group of a v-zone to one of essential width.
    Move {
        zone: usize,
        ticket: u64,
    },
}

impl WorkerJob {
    /// Whether it is a command of the tenant.
    pub fn is_command(&self) -> bool {
        !matches!(self, WorkerJob::Move { .. })
    }
}

/// A task that waits for a job, or carries one out.
#[derive(Default)]
pub(super) struct Worker {
    pub job: RefCell<Option<(Rc<Tenant>, WorkerJob, Completer)>>,
    pub begun: Gate,
}

/// Purpose of an allocation.
#[derive(Clone, Copy)]
pub(super) enum AllocationPurpose {
    /// A new group of at most `most` zones, which makes its namespace count as active.
    Group { most: u32 },
    /// Target of a relocation: at least `least` zones, and more as long as spares are free.
    Moved { least: u32, most: u32 },
}

/// Zones allocated for a group.
pub(super) struct GroupAllocation {
    pub zones: Vec<u32>,
    pub unit_blocks: u32,
    pub spares: u32,
}

impl NamespaceCore {
    /// State for a device that has not been read yet.
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

    pub fn shape(&self, width: u32, unit_blocks: u32) -> GroupShape {
        GroupShape { width, unit_blocks, zone_blocks: self.identity.data_blocks() }
    }

    /// Address of block `offset` of the data of a physical zone.
    pub fn lba(&self, zone: u32, offset: u64) -> Lba {
        Lba(self.device.geometry().start(ZoneIndex(zone)).0 + self.identity.lead_blocks as u64 + offset)
    }

    /// Blocks of all groups that a v-zone may hold.
    pub fn usable(&self, groups: &StripeGroups) -> u64 {
        self.allocated(groups).min(self.identity.vzone_blocks())
    }

    /// Blocks of all groups.
    pub fn allocated(&self, groups: &StripeGroups) -> u64 {
        groups.zones().len() as u64 * self.identity.data_blocks()
    }

    /// Stops all changes for good, after a journal error or at the end: wakes the tasks that wait.
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

    /// Flushes the device. Completed writes are durable afterwards, or the v-zones that may have lost some are marked.
    /// One flush at a time, since an array reports a loss once: no flush succeeds while another one gets that report.
    /// Callers that came before a flush began share it.
    ///
    /// # Errors
    /// The flush failed, and no v-zone without a mark could have lost anything.
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

    /// Marks the v-zones from which a failed flush may have lost writes: those with a zone that has become worn since,
    /// or if there are none, all with unflushed writes. A zone that was worn before proves nothing, and data of a
    /// v-zone whose end is recorded was flushed. Returns `false` if no v-zone was marked that was not before.
    async fn lose(&self, error: DeviceError) -> bool {
        let (first, count) = (ZoneIndex(0), self.device.geometry().zones);
        let zones = self.device.submit(Command::Report { first, count }).await.zones;
        let before = self.note_worn(&zones);
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

    /// Remembers which of these zones are worn; returns the state before.
    pub fn note_worn(&self, zones: &[ZoneInfo]) -> Vec<bool> {
        self.worn.replace(zones.iter().map(|info| is_worn(info.state)).collect())
    }

    /// Makes a v-zone keep its active zones, which count for its namespace.
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

    /// Active zones that are no namespace's essential ones.
    pub fn spares(&self) -> u32 {
        let essential: u32 = self.tenants.borrow().iter().flatten().map(|tenant| tenant.essential()).sum();
        self.arbiter.borrow().group_limit().saturating_sub(essential)
    }

    /// Active zones of a namespace with a relocation: those of its groups, and the targets.
    pub fn active_of(&self, state: &TenantState) -> u32 {
        let arbiter = self.arbiter.borrow();
        let last = |vzone: &Vzone| vzone.groups.len().checked_sub(1).filter(|_| vzone.active);
        let in_groups = state.vzones.iter().filter_map(|vzone| Some(vzone.groups.group(last(vzone)?)?.2));
        let copying = self.copying.borrow();
        in_groups.flatten().chain(&*copying).filter(|zone| arbiter.is_active(**zone)).count() as u32
    }

    /// Width of the next group of a namespace.
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

    /// Waits until a v-zone may open its first group: all writes that were queued before have opened theirs, and fewer
    /// than `max_active` v-zones are engaged. The zone table may count a v-zone as full while its last writes are
    /// outstanding, and so admit another one, which waits for them here.
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
                // V-zones without outstanding commands stay active: waiting for them would never end.
                if state.engaged(capacity).filter(|vzone| vzone.settled == vzone.tickets).count() >= most {
                    return Err(Status::TooManyActiveZones.into());
                }
            }
            self.room.wait().await;
        }
    }

    /// Takes zones for a group.
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

    /// As [`NamespaceCore::allocate`], but `None` if it has to wait.
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
            // Many are worn: a narrower group has to do.
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
            // A unit is a whole stripe of the array, on all drives.
            stripe_blocks => stripe_blocks,
        };
        Ok(Some(GroupAllocation { zones, unit_blocks, spares }))
    }

    /// Spares that no group holds.
    fn free_spares(&self) -> u32 {
        let tenants = self.tenants.borrow();
        let used: u32 = tenants.iter().flatten().map(|tenant| tenant.state.borrow().spares).sum();
        self.spares().saturating_sub(used)
    }

    /// Removes zones from `in_hand`: they belong to a v-zone, or are released.
    pub fn handed(&self, zones: &[u32]) {
        self.in_hand.borrow_mut().retain(|zone| !zones.contains(zone));
    }

    /// Counts the last group of a v-zone as inactive.
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

    /// Ends the last group of a v-zone, which is full. Its zones count as active until their data is durable: after a
    /// power cut they may be active again.
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

    /// Releases zones, which are reset later.
    pub fn give_up(&self, zones: &[u32]) {
        let mut arbiter = self.arbiter.borrow_mut();
        zones.iter().for_each(|zone| arbiter.give_up(*zone));
        drop(arbiter);
        self.work.open();
    }

    /// The physical zones of all v-zones, and those that are to be given to one.
    pub fn claims(&self) -> Vec<u32> {
        let mut claims = self.in_hand.borrow().clone();
        for tenant in self.tenants() {
            let state = tenant.state.borrow();
            claims.extend(state.vzones.iter().flat_map(|vzone| vzone.groups.zones().to_vec()));
        }
        claims
    }

    /// The entries of a checkpoint.
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

    pub fn give_buffer(&self, buf: Buf) {
        self.pool.borrow_mut().give(buf);
    }

    pub fn now_us(&self) -> u64 {
        (self.clock)()
    }
}

impl Tenant {
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

    /// The same namespace with more v-zones, or fewer. No commands may be outstanding.
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

    /// Active zones that are guaranteed to it.
    pub fn essential(&self) -> u32 {
        self.spec.essential * self.spec.max_active
    }

    /// Waits until `condition` holds for the v-zone.
    pub async fn wait(&self, zone: usize, condition: impl Fn(&Vzone) -> bool) {
        while !condition(&self.state.borrow().vzones[zone]) {
            self.gates[zone].wait().await;
        }
    }

    /// Waits until all operations before `ticket` have completed; none behind it begins before [`Tenant::leave`].
    pub async fn enter(&self, zone: usize, ticket: u64) {
        self.wait(zone, |vzone| vzone.submitted == ticket && vzone.settled == ticket).await;
    }

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
