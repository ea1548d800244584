//! State that the parts of running namespaces share.
//!
//! All state is changed in synchronous stretches, and is examined anew after every `.await`. A task waits at a
//! [`Gate`], which is opened when the condition that it waits for may have become true.

use crate::{
    buf::{Buf, BufPool},
    device::{Command, Completer, Completion, DeviceError, Geometry, Slots, ZonedDevice, Zones},
    qos::{QosControl, QosState},
    runtime::{CombinedOperation, Exclusive, Gate, Runtime},
    table::ZoneTable,
    vzone::{
        admission::{Pace, Tokens},
        arbiter::Arbiter,
        balloon::History,
        congestion::{ReadControl, Window},
        error::VzoneError,
        format::{DeviceIdentity, End, JournalEntry, Spec, StripeGroups},
        options::{Clock, NamespaceOptions},
        shape::GroupShape,
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
    /// Throttling of namespaces for the guarantees of others.
    pub qos: QosControl,
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
    pub fn engaged(&self, capacity: u64) -> impl Iterator<Item = &Vzone> {
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
            qos: QosControl::default(),
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

    /// Notes whether any namespace has a guarantee.
    pub fn note_guarantees(&self) {
        let tenants = self.tenants();
        self.qos.note_guarantees(tenants.iter().map(|tenant| &tenant.qos_state), Some(self.now_us()));
    }

    /// Removes zones from `in_hand`, since they belong to a v-zone now, or are released.
    pub fn handed(&self, zones: &[u32]) {
        self.in_hand.borrow_mut().retain(|zone| !zones.contains(zone));
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
        Spec { qos: self.qos_state.qos(), ..self.spec.clone() }
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

    /// Makes a v-zone read-only until the namespaces are opened again.
    pub fn fail_vzone(&self, zone: usize, error: DeviceError) {
        let mut state = self.state.borrow_mut();
        state.vzones[zone].failed.get_or_insert(error);
        state.table.set_read_only(ZoneIndex(zone as u32));
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
