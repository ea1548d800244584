//! What the parts of running namespaces share.
//!
//! All state is changed in synchronous stretches; after every wait it is looked at again. Whoever waits does so at a
//! [`Gate`] that is opened when what it waits for may have come.

use crate::{
    buf::{Buf, BufPool},
    device::{Command, Completer, Completion, DeviceError, Geometry, Slots, Status, ZonedDevice, Zones},
    runtime::{Combined, Exclusive, Gate, Runtime},
    table::ZoneTable,
    vzone::{
        admission::{Pace, Tokens},
        arbiter::Arbiter,
        asked::Asked,
        balloon::{self, Account, History},
        behaviour::{Behaviour, Clock},
        congestion::{Reads, Window},
        error::VzoneError,
        format::{End, Entry, Groups, Identity, Spec},
        restraint::Restraint,
        shape::Shape,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, is_worn},
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

pub(super) struct Core {
    pub device: Rc<dyn ZonedDevice>,
    pub runtime: Runtime,
    pub clock: Clock,
    pub identity: Identity,
    pub arbiter: RefCell<Arbiter>,
    pub journal: Journal,
    /// By number.
    pub tenants: RefCell<Vec<Option<Rc<Tenant>>>>,
    pub slots: Rc<Slots>,
    pub pool: RefCell<BufPool>,
    pub idle: RefCell<Vec<Rc<Worker>>>,
    pub pace: Cell<Pace>,
    pub admission: bool,
    /// How much of each v-zone may be read at once.
    pub window: Cell<Window>,
    /// Whether anything is promised that others may be held back for, and how that is.
    pub promised: Cell<bool>,
    pub restraint: Cell<Restraint>,
    /// Whose request goes next of all that are held back.
    pub turn: Exclusive,
    /// Zones that were taken, and belong to no v-zone yet.
    pub in_hand: RefCell<Vec<u32>>,
    /// Of these, what a group is being moved to.
    pub copying: RefCell<Vec<u32>>,
    /// Zones have become free or inactive.
    pub room: Gate,
    /// Zones are to be reserved or reset.
    pub work: Gate,
    /// Who opens a group, and who moves one: one at a time, in the order in which they came.
    pub allocation: Exclusive,
    pub moving: Exclusive,
    pub flushing: Combined,
    /// Who binds a zone, or has the journal go on in its other zone: what this one frees for a moment is not taken.
    pub binding: Exclusive,
    /// Who makes, resizes or removes a namespace.
    pub administration: Exclusive,
    /// The device has refused a zone for now: it is to be asked again.
    pub refused: Cell<bool>,
    /// How often it has refused one.
    pub refusals: Cell<u64>,
    /// Flushes that have failed.
    pub losses: Cell<u64>,
    /// By physical zone, whether it was worn before the next flush that fails, as far as is known.
    pub worn: RefCell<Vec<bool>>,
    pub failed: Cell<Option<DeviceError>>,
    pub moved_groups: Cell<u64>,
    /// V-zones that are about to be moved.
    pub moves: Cell<u32>,
}

/// A namespace as it runs.
pub(super) struct Tenant {
    pub id: u32,
    /// What was asked for, but for the quality of service, which may change at work.
    pub spec: Spec,
    pub asked: Asked,
    pub geometry: Geometry,
    pub state: RefCell<TenantState>,
    /// Commands that are on their way, moves left out.
    pub commands: Cell<u32>,
    /// By v-zone: a ticket has been served, tokens have come, or reads have come back.
    pub gates: Vec<Gate>,
}

pub(super) struct TenantState {
    pub table: ZoneTable,
    pub vzones: Vec<Vzone>,
    pub history: History,
    /// Spares that its groups hold.
    pub spares: u32,
    /// Number of the last zone that had been reserved when it opened a group, or began: who has had no time to open one
    /// is not inactive.
    pub opened: u64,
    pub last_write_us: u64,
    pub removed: bool,
    /// Writes that wait for the first group of their v-zone, by number, in the order in which they were submitted.
    pub beginning: VecDeque<u64>,
    /// Such writes so far.
    pub begun: u64,
    /// Flushes that have begun.
    pub flushes: u64,
    /// A v-zone that is moved has active zones twice.
    pub doubled: bool,
    /// How often in a row a move has stopped since somebody wanted to write.
    pub stops: u32,
}

impl TenantState {
    /// The number of a write that begins a v-zone, which is submitted now.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.beginning.push_back(self.begun);
        self.begun
    }

    /// Has those v-zones count that have failed, and keep their active zones.
    pub fn hold(&mut self) {
        let stuck = self.vzones.iter().filter(|vzone| vzone.stuck).count();
        self.table.hold(stuck as u32);
    }

    /// V-zones that hold something and can hold more, and those that still hold active zones.
    fn engaged(&self, capacity: u64) -> impl Iterator<Item = &Vzone> {
        let is_full = move |vzone: &Vzone| matches!(vzone.end, End::Finished(_)) || vzone.tail == capacity;
        let is_ended = move |vzone: &Vzone| vzone.failed.is_some() || is_full(vzone);
        let engaged = move |vzone: &&Vzone| vzone.active || !vzone.groups.is_empty() && !is_ended(vzone);
        self.vzones.iter().filter(engaged)
    }

    /// How many that are, and another one while one has active zones twice.
    pub fn engaged_count(&self, capacity: u64) -> usize {
        self.engaged(capacity).count() + self.doubled as usize
    }
}

/// A v-zone. Whatever changes it takes a ticket and waits for its turn: writes are submitted in the order of their
/// tickets, and completed in that order.
#[derive(Clone, Copy)]
pub(super) struct Vzone {
    pub groups: Groups,
    pub end: End,
    /// Blocks that are complete, from the start on.
    pub tail: u64,
    pub tickets: u64,
    pub submitted: u64,
    pub settled: u64,
    /// Where plain writes to a volatile cache end, and up to where they were flushed.
    pub plain_end: u64,
    pub flushed: u64,
    /// Counts resets.
    pub epoch: u32,
    pub reads: Reads,
    /// Reads so far, and those of them that went: large ones do not wait for ever.
    pub reads_asked: u64,
    pub reads_gone: u64,
    pub tokens: Tokens,
    /// Whether the last group holds active zones, and how many of these are spare.
    pub active: bool,
    pub spares: u32,
    /// Whether it is about to be moved.
    pub leaving: bool,
    pub failed: Option<DeviceError>,
    /// Its active zones cannot be given back before it is reset, or the namespaces are opened again.
    pub stuck: bool,
    /// Why something that had completed may be lost, and up to which number flushes have said so, or will.
    pub lost: Option<DeviceError>,
    pub told: Option<u64>,
}

const _: () = assert!(size_of::<Vzone>() + size_of::<Gate>() < 1024);

impl Vzone {
    pub fn new(groups: Groups, end: End, tail: u64) -> Vzone {
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
            reads: Reads::default(),
            reads_asked: 0,
            reads_gone: 0,
            tokens: Tokens::default(),
            active: false,
            spares: 0,
            leaving: false,
            failed: None,
            stuck: false,
            lost: None,
            told: None,
        }
    }

    /// Whether commands for it are on their way.
    pub fn is_busy(&self) -> bool {
        self.settled != self.tickets || self.reads_asked != self.reads_gone || self.reads.blocks() > 0
    }

    /// The next place in the order of what changes the v-zone.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets - 1
    }

    /// The next place in the order of reads.
    pub fn turn(&mut self) -> u64 {
        self.reads_asked += 1;
        self.reads_asked - 1
    }

    /// The width of the group that is being written.
    pub fn width(&self) -> u32 {
        self.groups.group(self.groups.len().wrapping_sub(1)).map_or(1, |(width, ..)| width)
    }
}

/// Where the journal goes on.
#[derive(Default)]
pub(super) struct Journal {
    pub turn: Exclusive,
    /// Zone 0 or 1, and the offset of the next block.
    pub place: Cell<(u32, u32)>,
    /// Counts checkpoints.
    pub generation: Cell<u64>,
}

impl Journal {
    /// Of a device whose newest checkpoint is in `zone`, and has this generation. It goes on with a checkpoint.
    pub fn new(zone: u32, generation: u64) -> Journal {
        Journal {
            turn: Exclusive::default(),
            place: Cell::new((zone, u32::MAX)),
            generation: Cell::new(generation),
        }
    }
}

/// What a task is to do.
pub(super) enum Job {
    /// Blocks of a v-zone, from an offset on.
    Read {
        zone: usize,
        turn: u64,
        from: u64,
        data: Buf,
    },
    /// As [`Job::Read`], in its turn.
    /// `begins` is the number of a write that opens the first group of its v-zone.
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

impl Job {
    /// Whether its tenant has asked for it.
    pub fn is_command(&self) -> bool {
        !matches!(self, Job::Move { .. })
    }
}

/// A task that waits for a command, or carries one out.
#[derive(Default)]
pub(super) struct Worker {
    pub job: RefCell<Option<(Rc<Tenant>, Job, Completer)>>,
    pub begun: Gate,
}

/// What zones are wanted for.
#[derive(Clone, Copy)]
pub(super) enum Want {
    /// A group of at most so many, which says that its namespace is active.
    Group { most: u32 },
    /// A group that is moved: so many for certain, and spares as long as nobody holds them.
    Moved { least: u32, most: u32 },
}

/// Zones that were taken for a group.
pub(super) struct Taken {
    pub zones: Vec<u32>,
    pub unit_blocks: u32,
    pub spares: u32,
}

impl Core {
    /// Of a device of which nothing is known yet.
    pub fn new(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        behaviour: Behaviour,
        identity: Identity,
    ) -> Core {
        Core {
            device,
            runtime: runtime.clone(),
            clock: behaviour.clock,
            identity,
            arbiter: RefCell::new(Arbiter::new(0, 0, 0, 0)),
            journal: Journal::default(),
            tenants: RefCell::default(),
            slots: Rc::default(),
            pool: RefCell::default(),
            idle: RefCell::default(),
            pace: Cell::default(),
            admission: behaviour.admission,
            window: Cell::default(),
            promised: Cell::default(),
            restraint: Cell::default(),
            turn: Exclusive::default(),
            in_hand: RefCell::default(),
            copying: RefCell::default(),
            room: Gate::default(),
            work: Gate::default(),
            allocation: Exclusive::default(),
            moving: Exclusive::default(),
            flushing: Combined::default(),
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

    pub fn shape(&self, width: u32, unit_blocks: u32) -> Shape {
        Shape { width, unit_blocks, zone_blocks: self.identity.data_blocks() }
    }

    /// Where block `offset` of the data of a physical zone is.
    pub fn lba(&self, zone: u32, offset: u64) -> Lba {
        Lba(self.device.geometry().start(ZoneIndex(zone)).0 + self.identity.lead_blocks as u64 + offset)
    }

    /// Blocks of all groups that a v-zone may hold.
    pub fn usable(&self, groups: &Groups) -> u64 {
        self.allocated(groups).min(self.identity.vzone_blocks())
    }

    /// Blocks of all groups.
    pub fn allocated(&self, groups: &Groups) -> u64 {
        groups.zones().len() as u64 * self.identity.data_blocks()
    }

    /// Nothing is changed any more: the journal does not say what is.
    pub fn fail(&self, error: DeviceError) {
        self.failed.set(self.failed.get().or(Some(error)));
        [&self.room, &self.work].into_iter().for_each(Gate::open);
    }

    /// # Errors
    /// Why nothing can be changed any more.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.failed.get().map_or(Ok(()), Err)
    }

    /// Makes safe what has completed, but for what is lost: that is known of its v-zones afterwards. One flush at a
    /// time, since an array tells a loss once: nobody's ends well while another one learns of it. Who asked before it
    /// began shares it.
    ///
    /// # Errors
    /// The device does not flush, and there is nobody whom that would cost anything.
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

    /// A flush has failed: of which v-zones something is lost the zones say that have become worn; if none have, it may
    /// be any that were not flushed. A zone that was worn before says nothing, and what a v-zone holds whose end is
    /// recorded was flushed. `false` if there are none of which this was not known.
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

    /// Keeps which of these zones are worn; gives what was known before.
    pub fn note_worn(&self, zones: &[ZoneInfo]) -> Vec<bool> {
        self.worn.replace(zones.iter().map(|info| is_worn(info.state)).collect())
    }

    /// A v-zone keeps its active zones: they count for its namespace.
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

    /// The namespaces there are.
    pub fn tenants(&self) -> Vec<Rc<Tenant>> {
        self.tenants.borrow().iter().flatten().cloned().collect()
    }

    /// Active zones that nobody has for certain.
    pub fn spares(&self) -> u32 {
        let essential: u32 = self.tenants.borrow().iter().flatten().map(|tenant| tenant.essential()).sum();
        self.arbiter.borrow().group_limit().saturating_sub(essential)
    }

    /// Active zones that the groups of a namespace hold one of which is moved, and those that it is moved to.
    pub fn active_of(&self, state: &TenantState) -> u32 {
        let arbiter = self.arbiter.borrow();
        let last = |vzone: &Vzone| vzone.groups.len().checked_sub(1).filter(|_| vzone.active);
        let in_groups = state.vzones.iter().filter_map(|vzone| Some(vzone.groups.group(last(vzone)?)?.2));
        let copying = self.copying.borrow();
        in_groups.flatten().chain(&*copying).filter(|zone| arbiter.is_active(**zone)).count() as u32
    }

    /// How wide the next group of a namespace is.
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

    /// Waits until a v-zone may have its first group: those submitted before have theirs, and fewer v-zones than may be
    /// active hold something. A zone may count as full for its tenant while its writes are on their way; so the next
    /// one may be begun, and has to wait for them.
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
                // Those for which nothing is on its way end by themselves no more: they would be waited for in vain.
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
    /// Capacity Exceeded where so many zones cannot be had: too many are worn.
    pub async fn allocate(&self, tenant: &Tenant, want: Want) -> Result<Taken, DeviceError> {
        let _turn = self.allocation.take().await;
        if let Want::Group { .. } = want {
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

    /// As [`Core::allocate`], if the zones are there.
    fn take_now(&self, tenant: &Tenant, want: Want) -> Result<Option<Taken>, DeviceError> {
        let (mut width, least) = match want {
            Want::Group { most } => (self.decide(tenant, most), tenant.spec.essential.min(most)),
            Want::Moved { least, most } => {
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
        let spares = width.saturating_sub(least);
        let zones = arbiter.take(width);
        let mut state = tenant.state.borrow_mut();
        if let Want::Group { .. } = want {
            state.opened = arbiter.serial();
        }
        state.spares += spares;
        self.in_hand.borrow_mut().extend(&zones);
        let unit_blocks = match self.identity.lead_blocks {
            1 => balloon::unit_blocks(tenant.spec.essential, width),
            // Each of these is on all drives.
            stripe_blocks => stripe_blocks,
        };
        Ok(Some(Taken { zones, unit_blocks, spares }))
    }

    /// Spares that nobody holds.
    fn free_spares(&self) -> u32 {
        let tenants = self.tenants.borrow();
        let used: u32 = tenants.iter().flatten().map(|tenant| tenant.state.borrow().spares).sum();
        self.spares().saturating_sub(used)
    }

    /// Zones that were taken are a v-zone's from now on.
    pub fn handed(&self, zones: &[u32]) {
        self.in_hand.borrow_mut().retain(|zone| !zones.contains(zone));
    }

    /// The last group of a v-zone holds no active zones any more.
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

    /// The last group of a v-zone is full. Its zones count as active until what they hold is safe: a power cut may make
    /// them so again.
    pub async fn filled(&self, tenant: &Tenant, zone: usize) -> Result<(), DeviceError> {
        let active = tenant.state.borrow().vzones[zone].active;
        if active {
            self.flush_cache().await?;
            let vzone = tenant.state.borrow().vzones[zone];
            vzone.lost.map_or(Ok(()), Err)?;
            if vzone.tail < self.allocated(&vzone.groups) {
                // A v-zone ends before its zones do.
                if self.finish_last(tenant, zone).await.is_err() {
                    self.stick(tenant, zone);
                }
                return Ok(());
            }
            self.end_group(&mut tenant.state.borrow_mut(), zone);
        }
        Ok(())
    }

    /// As [`Core::flush_device`], if there is anything to be flushed.
    pub async fn flush_cache(&self) -> Result<(), DeviceError> {
        if self.device.geometry().volatile_cache { self.flush_device().await } else { Ok(()) }
    }

    /// Nobody needs these zones any more.
    pub fn give_up(&self, zones: &[u32]) {
        let mut arbiter = self.arbiter.borrow_mut();
        zones.iter().for_each(|zone| arbiter.give_up(*zone));
        drop(arbiter);
        self.work.open();
    }

    /// All that a checkpoint says.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = vec![Entry::Identity(self.identity)];
        for tenant in self.tenants.borrow().iter().flatten() {
            entries.push(Entry::Namespace(tenant.id, tenant.spec()));
            for (zone, vzone) in (0..).zip(&tenant.state.borrow().vzones) {
                if !vzone.groups.is_empty() || vzone.end != End::Open {
                    entries.push(Entry::Vzone(tenant.id, zone, vzone.groups, vzone.end));
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
        let asked = Asked::new(spec.qos);
        Tenant { id, spec, asked, geometry, state: RefCell::new(state), commands: Cell::default(), gates }
    }

    /// What it is now.
    pub fn spec(&self) -> Spec {
        Spec { qos: self.asked.qos.get(), ..self.spec.clone() }
    }

    /// Checks that a namespace loses nothing with so many v-zones.
    ///
    /// # Errors
    /// A v-zone that it would lose holds something.
    pub fn check_size(&self, zones: u32) -> Result<(), VzoneError> {
        let used = |vzone: &Vzone| !vzone.groups.is_empty() || vzone.end != End::Open;
        let last = self.state.borrow().vzones.iter().rposition(used).map(|zone| zone as u32);
        last.filter(|zone| *zone >= zones).map_or(Ok(()), |zone| Err(VzoneError::Holds { zone }))
    }

    /// The same namespace with more v-zones, or fewer. No commands are on their way.
    pub fn resized(&self, spec: Spec, geometry: Geometry) -> Tenant {
        let state = self.state.borrow();
        let mut vzones = state.vzones.clone();
        vzones.resize(spec.zones as usize, Vzone::new(Groups::default(), End::Open, 0));
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

    /// Active zones that are its own for certain.
    pub fn essential(&self) -> u32 {
        self.spec.essential * self.spec.max_active
    }

    /// Waits until the v-zone is as `condition` says.
    pub async fn wait(&self, zone: usize, condition: impl Fn(&Vzone) -> bool) {
        while !condition(&self.state.borrow().vzones[zone]) {
            self.gates[zone].wait().await;
        }
    }

    /// Waits until everything before `ticket` has completed; nothing behind it begins before [`Tenant::leave`].
    pub async fn enter(&self, zone: usize, ticket: u64) {
        self.wait(zone, |vzone| vzone.submitted == ticket && vzone.settled == ticket).await;
    }

    pub fn leave(&self, zone: usize) {
        {
            let mut state = self.state.borrow_mut();
            let vzone = &mut state.vzones[zone];
            vzone.submitted += 1;
            vzone.settled += 1;
        }
        self.gates[zone].open();
    }
}
