//! Namespaces on one zoned device, each of them a zoned device of its own for one tenant (eZNS, elastic zones).
//!
//! docs/NAMESPACES.md is the design: the layout, the order in which writes become durable, and why no physical zone
//! ever has two owners. In reading order: [`shape`], [`balloon`], [`congestion`], [`admission`],
//! [`arbiter`] and [`mod@format`] decide without waiting; [`core`](self) holds the state of running
//! namespaces; `request`, `flush`, `manage` and `recover` are their operations, which use `journal`, `allocate`,
//! `group_end` and `transfer`; `workers` starts them. [`crate::qos`] admits the requests of clients.

pub mod admission;
pub mod arbiter;
pub mod balloon;
pub mod congestion;
pub mod error;
pub mod format;
pub mod options;
pub mod shape;

mod allocate;
mod core;
mod flush;
mod group_end;
mod journal;
mod manage;
mod recover;
mod request;
mod tenants;
mod transfer;
mod workers;

pub use self::{
    error::VzoneError,
    format::{NamespaceLayout, Spec},
    options::{Clock, NamespaceOptions, PATIENCE_US},
};

use self::core::{NamespaceCore, Tenant, Vzone, WorkerJob};
use crate::{
    buf::Buf,
    device::{Command, Completion, Done, Geometry, Status, ZonedDevice, Zones},
    evidence::Presence,
    qos::{AdmittedRequest, Qos},
    runtime::Runtime,
    table::WriteEffect,
    zone::{Lba, ZoneIndex},
};
use std::{ops::Range, rc::Rc};

/// Status of a running namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceStatus {
    /// Its specification.
    pub spec: Spec,
    /// Number of active (open or closed) v-zones.
    pub active: u32,
    /// Its share of the spare active zones (*spares*), by weight.
    pub own_spares: u32,
    /// Spares that its stripe groups hold; those above its share are borrowed.
    pub spares: u32,
    /// Widths, in physical zones, of the stripe groups that are being written.
    pub widths: Vec<u32>,
    /// Blocks written to its v-zones, by completed writes.
    pub written_blocks: u64,
    /// Blocks of outstanding reads.
    pub read_blocks: u64,
    /// Congestion window: maximum blocks of outstanding reads of a v-zone with slow reads; `None` if unlimited.
    pub read_window_blocks: Option<u64>,
    /// Sum of the write tokens of the active v-zones, in blocks; negative if they owe some.
    pub tokens: i64,
    /// Rate to which it is throttled, in blocks a second; `None` if it is not.
    pub held_to: Option<u64>,
    /// Whether its floors, and its latency target, were found to be out of reach.
    pub out_of_reach: [bool; 2],
}

/// All namespaces of a device. Clones share their state. Their tasks belong to the runtime: they live, and hold the
/// device, until [`Runtime::clear`].
#[derive(Clone)]
pub struct Namespaces {
    core: Rc<NamespaceCore>,
    patience_us: u64,
}

impl Namespaces {
    /// Prepares an empty device. A v-zone will consist of `vzone_zones` physical zones, 1 to 16.
    ///
    /// # Errors
    /// When the device is not empty, or too small.
    pub async fn create(
        device: Rc<dyn ZonedDevice>,
        uuid: [u8; 16],
        vzone_zones: u32,
    ) -> Result<(), VzoneError> {
        recover::create(device, uuid, vzone_zones).await
    }

    /// Recommended number of physical zones of a v-zone on a device of this shape.
    pub fn fitting(geometry: &Geometry) -> u32 {
        recover::fitting(geometry)
    }

    /// Whether there are namespaces on `device`, by the first blocks of the journal, or of other zones where these
    /// cannot be read. After [`Presence::Unknown`] the device must not be overwritten.
    ///
    /// # Errors
    /// When the device does not report its zones, or is gone.
    pub async fn are_on(device: Rc<dyn ZonedDevice>) -> Result<Presence, VzoneError> {
        recover::are_on(device).await
    }

    /// Reads the list of namespaces on `device`, which is not changed. The namespaces must not run.
    ///
    /// # Errors
    /// When there are none, or the journal is damaged.
    pub async fn look(device: Rc<dyn ZonedDevice>) -> Result<NamespaceLayout, VzoneError> {
        recover::look(device).await
    }

    /// Empties a device after its last namespace was removed: the device is as before [`Namespaces::create`]. The
    /// namespaces must not run.
    ///
    /// # Errors
    /// [`VzoneError::InUse`] if there are namespaces; or the device fails.
    pub async fn dissolve(device: Rc<dyn ZonedDevice>) -> Result<(), VzoneError> {
        recover::dissolve(device).await
    }

    /// Finds the namespaces on `device`, and recovers them if they have not been stopped.
    ///
    /// # Errors
    /// When there are none, or the journal is damaged.
    pub async fn open(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        options: NamespaceOptions,
    ) -> Result<Namespaces, VzoneError> {
        let patience_us = options.patience_us;
        let core = recover::open(runtime, device, options).await?;
        core.note_guarantees();
        // Relocations of sealed v-zones take their tickets before any command can.
        for tenant in core.tenants() {
            for zone in 0..tenant.geometry.zones as usize {
                let end = tenant.state.borrow().vzones[zone].end;
                if matches!(end, format::End::Sealed(_)) {
                    workers::move_later(&core, &tenant, zone);
                }
            }
        }
        runtime.spawn(manage::supply(core.clone()));
        runtime.spawn(manage::clean(core.clone()));
        Ok(Namespaces { core, patience_us })
    }

    /// Adds a namespace.
    ///
    /// # Errors
    /// When the specification is invalid, the name is taken, or too few v-zones or active zones are left.
    pub async fn add(&self, spec: Spec) -> Result<Namespace, VzoneError> {
        let core = self.core.clone();
        let whole = async move { tenants::add(&core, spec).await.map(|tenant| Namespace { core, tenant }) };
        self.core.runtime.run_whole(whole).await
    }

    /// Resizes a namespace to `zones` v-zones. Earlier handles of it answer Namespace Not Ready from then on.
    ///
    /// # Errors
    /// When there is no namespace of this name, commands for it are outstanding, fewer v-zones are left on the device,
    /// or a v-zone that it would lose holds data.
    pub async fn resize(&self, name: &str, zones: u32) -> Result<Namespace, VzoneError> {
        let name = name.to_string();
        let core = self.core.clone();
        let whole = async move {
            tenants::resize(&core, &name, zones).await.map(|tenant| Namespace { core, tenant })
        };
        self.core.runtime.run_whole(whole).await
    }

    /// Changes the limits, floors and latency class of a namespace, which may run. Durable on return.
    ///
    /// # Errors
    /// When there is none of this name, or a floor is above its limit.
    pub async fn set_qos(&self, name: &str, qos: Qos) -> Result<Namespace, VzoneError> {
        let name = name.to_string();
        let core = self.core.clone();
        let whole =
            async move { tenants::set_qos(&core, &name, qos).await.map(|tenant| Namespace { core, tenant }) };
        self.core.runtime.run_whole(whole).await
    }

    /// Removes a namespace and its data.
    ///
    /// # Errors
    /// When there is none of this name, or commands for it are outstanding.
    pub async fn remove(&self, name: &str) -> Result<(), VzoneError> {
        let name = name.to_string();
        let core = self.core.clone();
        self.core.runtime.run_whole(async move { tenants::remove(&core, &name).await }).await
    }

    /// The existing namespaces, in the order of their numbers.
    pub fn list(&self) -> Vec<Namespace> {
        let core = &self.core;
        core.tenants().into_iter().map(|tenant| Namespace { core: core.clone(), tenant }).collect()
    }

    /// Periodic work: refills write tokens, takes back spares of idle namespaces, and updates throttling. To be called
    /// about every millisecond while it returns `true`, and occasionally otherwise.
    pub fn tick(&self) -> bool {
        let core = &self.core;
        let now_us = core.now_us();
        if core.refused.take() {
            core.work.open();
        }
        let tenants = core.tenants();
        request::update_read_window(core, now_us, &tenants);
        // A synchronous writer is seldom active at the moment of a tick, but needs its tokens in time.
        let mut busy = request::update_write_pace(core, now_us, &tenants);
        if core.qos.has_guarantees() {
            core.qos.look(now_us, tenants.iter().map(|tenant| (&tenant.qos_state, tenant.spec.weight)));
            busy |= tenants.iter().any(|tenant| tenant.qos_state.is_asking());
        }
        for tenant in tenants {
            let frozen = {
                let state = tenant.state.borrow();
                let at_work = state.vzones.iter().zip(&tenant.gates).filter(|(v, _)| v.settled != v.tickets);
                for (_, gate) in at_work {
                    busy = true;
                    gate.open();
                }
                let patience_us = self.patience_us << state.stops;
                !state.removed && balloon::is_frozen(state.spares, state.last_write_us, now_us, patience_us)
            };
            // One at a time: a namespace that writes again does not wait for relocations of others.
            if frozen && core.moves.get() == 0 {
                let is_well = |vzone: &Vzone| vzone.failed.is_none() && !vzone.stuck;
                let is_wide = |vzone: &Vzone| vzone.active && vzone.spares > 0 && is_well(vzone);
                let wide = tenant.state.borrow().vzones.iter().position(is_wide);
                wide.into_iter().for_each(|zone| workers::move_later(core, &tenant, zone));
            }
        }
        busy
    }

    /// V-zones that fit on the device, including those of existing namespaces.
    pub fn zones(&self) -> u64 {
        recover::room(&self.core.identity, self.core.device.geometry())
    }

    /// Writable blocks of a v-zone.
    pub fn zone_capacity_blocks(&self) -> u64 {
        self.core.identity.vzone_blocks()
    }

    /// Geometry that a namespace with this specification would have.
    pub fn geometry_of(&self, spec: &Spec) -> Geometry {
        recover::geometry_of(self.core.device.geometry(), &self.core.identity, spec)
    }

    /// Physical zones of a v-zone.
    pub fn vzone_zones(&self) -> u32 {
        self.core.identity.vzone_zones
    }

    /// Stops all changes to the device, and waits for outstanding reservations and resets of zones.
    pub async fn close(&self) {
        let core = &self.core;
        core.fail(Status::NamespaceNotReady.into());
        core.work.open();
        // A change in progress may still write to the journal.
        drop(core.journal.turn.take().await);
        while core.arbiter.borrow().is_at_work() {
            core.room.wait().await;
        }
    }

    /// Groups that were relocated since the namespaces were opened.
    pub fn moved_groups(&self) -> u64 {
        self.core.moved_groups.get()
    }

    /// Number of reservations and resets of zones that have failed since the namespaces were opened.
    pub fn refusals(&self) -> u64 {
        self.core.refusals.get()
    }

    /// Checks the consistency of allocation, spares and tokens.
    ///
    /// # Errors
    /// A physical zone with two owners or none, or allocated without an owner; spares that are in use and not counted,
    /// or more than there are; tokens for more time than has passed.
    pub fn audit(&self) -> Result<(), String> {
        let core = &self.core;
        let (mut spares, mut busy) = (0, false);
        for tenant in core.tenants() {
            let state = tenant.state.borrow();
            busy |= state.vzones.iter().any(Vzone::is_busy);
            let held: u32 = state.vzones.iter().map(|vzone| vzone.spares).sum();
            if core.in_hand.borrow().is_empty() && held != state.spares {
                return Err(format!(
                    "{} spares of {} are counted as {}",
                    held, tenant.spec.name, state.spares
                ));
            }
            let (active, most) = (allocate::active_of(core, &state), tenant.essential() + state.spares);
            if state.doubled && active > most {
                return Err(format!("{} has {active} active zones, and may have {most}", tenant.spec.name));
            }
            spares += held;
            if let Some(zone) = state.vzones.iter().position(|vzone| !vzone.tokens.is_fair(core.now_us())) {
                return Err(format!(
                    "zone {zone} of {} was given tokens for more time than there was",
                    tenant.spec.name
                ));
            }
        }
        if !busy && !core.in_hand.borrow().is_empty() {
            return Err(format!("zones {:?} are reserved without a user", core.in_hand.borrow()));
        }
        if spares > allocate::spares(core) {
            return Err(format!("{spares} spares are in use, of {}", allocate::spares(core)));
        }
        core.arbiter.borrow().audit(core.claims().into_iter())
    }
}

/// Handle of a namespace, which is a zoned device of its own.
#[derive(Clone)]
pub struct Namespace {
    core: Rc<NamespaceCore>,
    tenant: Rc<Tenant>,
}

impl Namespace {
    /// Name of the namespace.
    pub fn name(&self) -> &str {
        &self.tenant.spec.name
    }

    /// Number of the namespace, which it keeps until it is removed.
    pub fn number(&self) -> u32 {
        self.tenant.id
    }

    /// Status of the namespace.
    pub fn status(&self) -> NamespaceStatus {
        let (spares, weight) = (allocate::spares(&self.core) as u64, self.tenant.spec.weight as u64);
        let weights: u64 = self.core.tenants().iter().map(|tenant| tenant.spec.weight as u64).sum();
        let state = self.tenant.state.borrow();
        let open = || state.vzones.iter().filter(|vzone| vzone.active);
        NamespaceStatus {
            spec: self.tenant.spec(),
            active: state.table.active_zones(),
            own_spares: (spares * weight / weights.max(1)) as u32,
            spares: state.spares,
            widths: open().map(Vzone::width).collect(),
            written_blocks: state.vzones.iter().map(|vzone| vzone.tail).sum(),
            read_blocks: state.vzones.iter().map(|vzone| vzone.reads.blocks()).sum(),
            read_window_blocks: self.core.window.get().blocks().filter(|blocks| *blocks < u64::MAX),
            tokens: open().map(|vzone| vzone.tokens.blocks()).sum(),
            held_to: self.tenant.qos_state.held_to(),
            out_of_reach: self.tenant.qos_state.out_of_reach(),
        }
    }

    /// Written blocks of the namespace in these ranges of a zone of the device: v-zones, each with a range of its blocks.
    pub fn stored_in(&self, zone: ZoneIndex, ranges: &[Range<u64>]) -> Vec<(ZoneIndex, Range<u64>)> {
        let (lead, data_blocks) = (self.core.identity.lead_blocks as u64, self.core.identity.data_blocks());
        let in_data = |block: u64| block.saturating_sub(lead).min(data_blocks);
        let ranges = || ranges.iter().map(|range| in_data(range.start)..in_data(range.end));
        let mut found = Vec::new();
        for (number, vzone) in (0..).zip(&self.tenant.state.borrow().vzones) {
            let mut start = 0;
            for (width, unit_blocks, zones) in (0..).map_while(|index| vzone.groups.group(index)) {
                let shape = self.core.shape(width, unit_blocks);
                if let Some(part) = zones.iter().position(|own| *own == zone.0) {
                    let runs = ranges().flat_map(|range| shape.runs(part as u32, range));
                    let written = runs.map(|(at, count)| start + at..(start + at + count).min(vzone.tail));
                    found.extend(
                        written.filter(|range| !range.is_empty()).map(|range| (ZoneIndex(number), range)),
                    );
                }
                start += shape.blocks();
            }
        }
        found
    }

    /// Waits until a client's read or write of `blocks` blocks is admitted, in order of arrival. `sleep` waits for a
    /// number of microseconds, sometimes a little longer. [`Namespace::answered`] has to follow.
    pub async fn admit<F: Future<Output = ()>>(
        &self,
        blocks: u64,
        sleep: impl Fn(u64) -> F,
    ) -> AdmittedRequest {
        let Namespace { core, tenant } = self;
        core.qos.admit(&tenant.qos_state, blocks, || core.now_us(), sleep).await
    }

    /// Counts the completion of an admitted request of `blocks` blocks.
    pub fn answered(&self, admitted: AdmittedRequest, blocks: u64) {
        let Namespace { core, tenant } = self;
        core.qos.answered(&tenant.qos_state, admitted, blocks, || core.now_us());
    }

    /// Checks a command against the zone table, and starts it.
    ///
    /// # Errors
    /// The status of a command that is refused.
    fn carry_out(&self, command: Command) -> Result<Completion, Status> {
        let geometry = &self.tenant.geometry;
        let mut state = self.tenant.state.borrow_mut();
        if state.removed {
            return Err(Status::NamespaceNotReady);
        }
        match command {
            Command::Read { lba, data, oob } => {
                let blocks = geometry.check_buffers(&data, &oob, geometry.max_transfer_blocks)?;
                state.table.check_read(lba, blocks)?;
                if !data.is_unique() {
                    return Err(Status::InvalidField);
                }
                let (zone, from) = geometry.locate(lba);
                let zone = zone.0 as usize;
                let turn = state.vzones[zone].turn();
                drop(state);
                Ok(self.employ(WorkerJob::Read { zone, turn, from, data }))
            }
            Command::Write { lba, data, oob, fua } => {
                let blocks = geometry.check_buffers(&data, &oob, geometry.max_transfer_blocks)?;
                let effect = state.table.write(lba, blocks)?;
                drop(state);
                Ok(self.write(effect, data, fua))
            }
            Command::Append { zone, data, oob, fua } => {
                let blocks = geometry.check_buffers(&data, &oob, geometry.max_append_blocks)?;
                let effect = state.table.append(zone, blocks)?;
                drop(state);
                Ok(self.write(effect, data, fua))
            }
            Command::Flush => {
                drop(state);
                Ok(self.employ(WorkerJob::Flush))
            }
            Command::Open { zones: Zones::All, zrwa: true } => Err(Status::InvalidField),
            Command::Open { zones: Zones::All, .. } => state.table.open_all().map(|()| done()),
            Command::Open { zones: Zones::One(zone), zrwa } => state.table.open(zone, zrwa).map(|()| done()),
            Command::Close { zones: Zones::One(zone) } => state.table.close(zone).map(|()| done()),
            Command::Close { zones: Zones::All } => {
                state.table.close_all();
                Ok(done())
            }
            Command::Finish { zones } | Command::Reset { zones } => {
                let finish = matches!(command, Command::Finish { .. });
                let mut chosen = Vec::new();
                match (zones, finish) {
                    (Zones::One(zone), true) => state.table.finish(zone).map(|()| chosen.push(zone))?,
                    (Zones::One(zone), false) => state.table.reset(zone).map(|()| chosen.push(zone))?,
                    (Zones::All, true) => state.table.finish_all(|zone| chosen.push(zone)),
                    (Zones::All, false) => state.table.reset_all(|zone| chosen.push(zone)),
                }
                let mut ticket = |zone: ZoneIndex| (zone.0 as usize, state.vzones[zone.0 as usize].ticket());
                let turns = chosen.into_iter().map(&mut ticket).collect();
                drop(state);
                Ok(self.employ(if finish { WorkerJob::Finish(turns) } else { WorkerJob::Reset(turns) }))
            }
            Command::FlushZrwa { last } => state.table.flush_zrwa(last).map(|_| done()),
            Command::Report { first, count } => {
                let zones = state.table.report(first, count)?;
                Ok(Completion::ready(Done { zones, ..Done::ok() }))
            }
        }
    }

    /// Passes a job to a worker task.
    fn employ(&self, job: WorkerJob) -> Completion {
        workers::employ(&self.core, &self.tenant, job)
    }

    /// Queues a write that the zone table has admitted.
    fn write(&self, effect: WriteEffect, data: Buf, fua: bool) -> Completion {
        let (zone, from) = (effect.zone.0 as usize, effect.offset_blocks);
        let (ticket, begins) = {
            let mut state = self.tenant.state.borrow_mut();
            let begins = (from == 0).then(|| state.begin());
            (state.vzones[zone].ticket(), begins)
        };
        self.employ(WorkerJob::Write { zone, ticket, from, data, fua, begins })
    }
}

fn done() -> Completion {
    Completion::ready(Done::ok())
}

impl ZonedDevice for Namespace {
    fn geometry(&self) -> &Geometry {
        &self.tenant.geometry
    }

    fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        let (zone, from) = self.tenant.geometry.locate(lba);
        request::reread(&self.core, &self.tenant, zone, from, attempt)
    }

    fn submit(&self, command: Command) -> Completion {
        match self.core.check() {
            Err(error) if !matches!(command, Command::Read { .. } | Command::Report { .. }) => {
                Completion::failed(error)
            }
            _ => self.carry_out(command).unwrap_or_else(Completion::failed),
        }
    }
}
