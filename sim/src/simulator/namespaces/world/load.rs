//! Load of the tenants: I/O operations, changes of limits, and namespaces that are added, resized and removed; and
//! checks of the results.

use super::{MOST_TENANTS, NamespaceWorld};
use crate::simulator::{
    command_queue::Fault as WireFault,
    namespaces::{
        oracle::{NamespaceChange, NamespaceZone},
        scenario::draw_spec,
    },
    world::Failure,
};
use emu::{
    rng::Rng,
    ssd::{Fault, Kind as DriveKind},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, Done, ZonedDevice, Zones},
    vzone::{Qos, Rates, VzoneError},
    zone::{Lba, ZoneIndex},
};

/// Tenant, and zone of its namespace.
type Place = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamespaceOpKind {
    Write {
        place: Place,
        from: u64,
        blocks: u64,
        fua: bool,
        append: bool,
        epoch: u64,
    },
    /// `below` is the end of the completed blocks at the start of the read, in this epoch.
    Read {
        place: Place,
        from: u64,
        below: u64,
        epoch: u64,
    },
    Flush {
        tenant: usize,
    },
    Change {
        place: Place,
    },
}

impl NamespaceOpKind {
    fn tenant(&self) -> usize {
        match *self {
            NamespaceOpKind::Write { place, .. }
            | NamespaceOpKind::Read { place, .. }
            | NamespaceOpKind::Change { place } => place.0,
            NamespaceOpKind::Flush { tenant } => tenant,
        }
    }
}

/// QoS limits and guarantees of a tenant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TenantQos {
    /// Values last confirmed, by a command or a recovery.
    by: Qos,
    /// Values of a change that has not completed, and that may be in effect.
    or_by: Option<Qos>,
}

impl TenantQos {
    /// Checks the values found by a recovery, and takes them as confirmed.
    pub(super) fn recovered(&mut self, found: Qos) -> Result<(), String> {
        if found != self.by && Some(found) != self.or_by {
            return Err(format!("is limited to {found:?}, and should be to {self:?}"));
        }
        *self = TenantQos { by: found, or_by: None };
        Ok(())
    }
}

/// An addition, resize or removal of a namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reshape {
    pub(super) tenant: usize,
    /// Number of zones afterwards; `None` for a removal.
    pub(super) to: Option<u32>,
    /// Commands of the namespace were in flight at its start.
    in_use: bool,
}

pub(super) struct NamespaceOp {
    pub(super) kind: NamespaceOpKind,
    completion: Completion,
    /// For a flush: completed blocks of each zone at its start, and the zone's epoch.
    seen: Vec<(u64, u64)>,
}

impl NamespaceWorld {
    /// Submits a random operation.
    pub(super) fn issue(&mut self) {
        let alone = self.limiting.is_none() && self.reshaping.is_none();
        if self.scenario.reshapes && alone && self.rng.chance(1, 30) {
            return self.reshape();
        }
        let changes = |tenant: usize| self.reshape.is_some_and(|reshape| reshape.tenant == tenant);
        let works = |tenant: &usize| self.busy[*tenant] && self.sizes[*tenant].is_some() && !changes(*tenant);
        let tenants: Vec<usize> = (0..self.zones.len()).filter(works).collect();
        if tenants.is_empty() {
            return;
        }
        let tenant = *self.rng.pick(&tenants);
        if self.scenario.limits && alone && self.rng.chance(1, 20) {
            return self.limit(tenant);
        }
        let zone = self.rng.below(self.sizes[tenant].unwrap_or(0) as u64) as usize;
        let kind = self.rng.weighted(&self.scenario.load);
        match kind {
            0 => self.write((tenant, zone)),
            1 => self.read((tenant, zone)),
            2 => self.flush(tenant),
            3 => self.change((tenant, zone), NamespaceChange::Finish),
            _ => self.change((tenant, zone), NamespaceChange::Reset),
        }
    }

    fn submit(&mut self, tenant: usize, kind: NamespaceOpKind, command: Command, seen: Vec<(u64, u64)>) {
        let Some(namespace) = self.namespace(tenant) else { return };
        let completion = namespace.submit(command);
        self.counts.operations += 1;
        self.trace.note(|| format!("begins: {kind:?}"));
        self.ops.push(NamespaceOp { kind, completion, seen });
        self.ready = true;
    }

    /// Whether the zone is active, or another one may be.
    fn may_begin(&self, (tenant, zone): Place) -> bool {
        let Some(namespace) = self.namespace(tenant) else { return false };
        let most = namespace.geometry().max_active as usize;
        let active = |zone: &NamespaceZone| zone.submitted() > 0 && zone.takes_writes();
        let held = self.zones[tenant].iter().filter(|zone| active(zone)).count();
        self.zones[tenant][zone].submitted() > 0 || held < most
    }

    fn write(&mut self, place @ (tenant, index): Place) {
        let may = self.zones[tenant][index].takes_writes() && self.may_begin(place);
        let Some(namespace) = self.namespace(tenant).filter(|_| may) else { return };
        let geometry = namespace.geometry().clone();
        let zone = &mut self.zones[tenant][index];
        let most = self.scenario.most_blocks.min(geometry.max_transfer_blocks as u64);
        let blocks = 1 + self.rng.below(most.min(geometry.zone_capacity_blocks - zone.submitted()));
        let (from, fua) = (zone.submitted(), self.rng.chance(self.scenario.fua_percent, 100));
        let (append, epoch) = (self.rng.chance(1, 4), zone.epoch);
        self.writes += 1;
        let data = Buf::copy_of(&zone.write(self.writes, blocks));
        let number = ZoneIndex(index as u32);
        let command = match append {
            true => Command::append(number, data, fua),
            false => Command::write(Lba(geometry.start(number).0 + from), data, fua),
        };
        self.submit(
            tenant,
            NamespaceOpKind::Write { place, from, blocks, fua, append, epoch },
            command,
            Vec::new(),
        );
    }

    fn read(&mut self, place @ (tenant, index): Place) {
        let Some(namespace) = self.namespace(tenant) else { return };
        let geometry = namespace.geometry().clone();
        let zone = &self.zones[tenant][index];
        let from = self.rng.below(geometry.zone_capacity_blocks);
        let most = (geometry.zone_capacity_blocks - from).min(geometry.max_transfer_blocks as u64);
        let blocks = 1 + self.rng.below(most);
        let below = zone.promised();
        let kind = NamespaceOpKind::Read { place, from, below, epoch: zone.epoch };
        let lba = Lba(geometry.start(ZoneIndex(index as u32)).0 + from);
        self.submit(tenant, kind, Command::read(lba, Buf::zeroed(blocks as usize * BLOCK)), Vec::new());
    }

    fn flush(&mut self, tenant: usize) {
        let seen = self.zones[tenant].iter().map(|zone| (zone.promised(), zone.epoch)).collect();
        self.submit(tenant, NamespaceOpKind::Flush { tenant }, Command::Flush, seen);
    }

    fn change(&mut self, place @ (tenant, index): Place, change: NamespaceChange) {
        let zone = &mut self.zones[tenant][index];
        // Writes that fill a zone may have to complete before the zone counts as full.
        let sensible = zone.change.is_none()
            && !zone.failed
            && (change == NamespaceChange::Reset || zone.takes_writes());
        if !sensible {
            return;
        }
        zone.change = Some(change);
        zone.epoch += (change == NamespaceChange::Reset) as u64;
        let zones = Zones::One(ZoneIndex(index as u32));
        let command = match change {
            NamespaceChange::Finish => Command::Finish { zones },
            NamespaceChange::Reset => Command::Reset { zones },
        };
        self.submit(tenant, NamespaceOpKind::Change { place }, command, Vec::new());
    }

    /// Changes the QoS of a tenant while all tenants work.
    fn limit(&mut self, tenant: usize) {
        let Some((namespaces, _)) = self.up.clone() else { return };
        // Drawn from a copy of the generator, so that the rest of a life does not change.
        let mut extra = self.rng.clone();
        let limits = Rates { requests: self.rng.below(3) as u32, blocks: self.rng.below(3) as u32 };
        let few = |extra: &mut Rng| extra.below(3) as u32;
        let floors = Rates { requests: few(&mut extra), blocks: few(&mut extra) };
        let latency_us = few(&mut extra);
        let (wanted, limited) =
            (Qos { limits, floors, latency_us }, Qos { limits, latency_us, ..Qos::default() });
        let qos = if wanted.is_possible() { wanted } else { limited };
        self.trace.note(|| format!("begins: tenant {tenant} is limited to {qos:?}"));
        self.limits[tenant].or_by = Some(qos);
        let name = self.names[tenant].clone();
        let limited =
            async move { namespaces.set_qos(&name, qos).await.map(|_| ()).map_err(|e| e.to_string()) };
        self.limiting = Some((tenant, self.start(limited)));
    }

    /// Checks a completed change of QoS.
    fn limited(&mut self) -> Result<(), Failure> {
        let Some((tenant, limiting)) = self.limiting.take() else { return Ok(()) };
        let Some(result) = limiting.borrow_mut().take() else {
            self.limiting = Some((tenant, limiting));
            return Ok(());
        };
        self.trace.note(|| format!("ended: the limits of tenant {tenant}: {result:?}"));
        let fails = |why: String| Failure(format!("limits of tenant {tenant}: {why}"));
        result.map_err(fails)?;
        let by = self.limits[tenant].or_by.unwrap_or_default();
        self.limits[tenant] = TenantQos { by, or_by: None };
        let Some(namespace) = self.namespace(tenant) else { return Ok(()) };
        let found = namespace.status().spec.qos;
        self.limits[tenant].recovered(found).map_err(fails)
    }

    /// Adds, resizes or removes a namespace while all tenants work.
    fn reshape(&mut self) {
        let Some((namespaces, _)) = self.up.clone() else { return };
        let there: Vec<usize> = (0..self.names.len()).filter(|t| self.sizes[*t].is_some()).collect();
        let kind = if there.is_empty() { 0 } else { self.rng.below(4) };
        let (reshape, pending) = match kind {
            0 if self.names.len() < MOST_TENANTS => {
                // Some namespaces are refused at the start, and only their names are used up.
                let index = (MOST_TENANTS + self.names.len()) as u64;
                let spec = draw_spec(&mut self.rng, index, self.scenario.vzone_zones);
                let tenant = self.expect_tenant(spec.name.clone());
                let reshape = Reshape { tenant, to: Some(spec.zones), in_use: false };
                (reshape, self.start(async move { Ok(namespaces.add(spec).await.map(|_| ())) }))
            }
            0 => return,
            _ => {
                let tenant = *self.rng.pick(&there);
                let in_use = self.ops.iter().any(|op| op.kind.tenant() == tenant);
                // A tenant that always works would never be idle.
                if in_use && !self.rng.chance(1, 8) {
                    self.busy[tenant] = false;
                    return;
                }
                let to = (kind > 1).then(|| 1 + self.rng.below(6) as u32);
                let name = self.names[tenant].clone();
                let reshaped = async move {
                    Ok(match to {
                        Some(zones) => namespaces.resize(&name, zones).await.map(|_| ()),
                        None => namespaces.remove(&name).await,
                    })
                };
                (Reshape { tenant, to, in_use }, self.start(reshaped))
            }
        };
        self.trace.note(|| format!("begins: {reshape:?}"));
        self.counts.reshapes += 1;
        (self.reshape, self.reshaping) = (Some(reshape), Some(pending));
    }

    /// Checks a completed addition, resize or removal.
    fn reshaped(&mut self) -> Result<(), Failure> {
        let answer = self.reshaping.as_ref().and_then(|pending| pending.borrow_mut().take());
        let Some((answer, reshape)) = answer.zip(self.reshape) else { return Ok(()) };
        self.trace.note(|| format!("ended: {reshape:?}: {answer:?}"));
        (self.reshape, self.reshaping) = (None, None);
        let Reshape { tenant, to, in_use } = reshape;
        let grows = to > self.sizes[tenant];
        let (kept, zones) = (to.unwrap_or(0) as usize, &self.zones[tenant]);
        let lost = zones.iter().skip(kept).position(|zone| !zone.is_empty()).map(|zone| kept + zone);
        match answer.map_err(Failure)? {
            Ok(()) if to.is_none() || lost.is_none() => {
                self.has(tenant, to);
                self.list_namespaces();
                self.busy[tenant] = true;
                Ok(())
            }
            Err(VzoneError::Full { .. } | VzoneError::Floors { .. }) if grows => Ok(()),
            Err(VzoneError::InUse) if in_use => Ok(()),
            Err(VzoneError::Holds { .. }) if lost.is_some() => Ok(()),
            other => Err(Failure(format!("{reshape:?} is answered with {other:?}; it would lose {lost:?}"))),
        }
    }

    /// Checks all completed operations.
    pub(super) fn collect(&mut self) -> Result<(), Failure> {
        self.limited()?;
        self.reshaped()?;
        let mut at = 0;
        while at < self.ops.len() {
            let Some(done) = self.ops[at].completion.take() else {
                at += 1;
                continue;
            };
            let NamespaceOp { kind, seen, .. } = self.ops.remove(at);
            self.trace.note(|| format!("ended: {kind:?} {:?}", done.result));
            self.answered(kind, &seen, done).map_err(|why| Failure(format!("{kind:?}: {why}")))?;
        }
        Ok(())
    }

    fn answered(&mut self, kind: NamespaceOpKind, seen: &[(u64, u64)], done: Done) -> Result<(), String> {
        if self.failing && done.result.is_err() && self.may_fail(kind) {
            return Ok(());
        }
        done.result.map_err(|error| format!("fails: {error}"))?;
        match kind {
            NamespaceOpKind::Write { place: (tenant, index), from, blocks, fua, append, epoch } => {
                let start = self
                    .namespace(tenant)
                    .map_or(0, |namespace| namespace.geometry().start(ZoneIndex(index as u32)).0);
                if append && done.lba.0 != start + from {
                    return Err(format!("landed at {:?}", done.lba));
                }
                let zone = &mut self.zones[tenant][index];
                if zone.epoch == epoch {
                    zone.wrote(from + blocks, fua);
                }
                Ok(())
            }
            NamespaceOpKind::Read { place: (tenant, index), from, below, epoch } => {
                let zone = &self.zones[tenant][index];
                zone.check_own(from, &done.data)?;
                if zone.epoch != epoch {
                    return Ok(());
                }
                zone.check(from, below, false, &done.data)
            }
            NamespaceOpKind::Flush { tenant } => {
                for (zone, (completed, epoch)) in self.zones[tenant].iter_mut().zip(seen) {
                    if zone.epoch == *epoch {
                        zone.safe = zone.safe.max(*completed);
                    }
                }
                Ok(())
            }
            NamespaceOpKind::Change { place: (tenant, index) } => {
                self.zones[tenant][index].changed();
                Ok(())
            }
        }
    }

    /// Whether an operation may fail after an injected fault. A failed finish or reset may have been carried out.
    fn may_fail(&mut self, kind: NamespaceOpKind) -> bool {
        if let NamespaceOpKind::Write { place: (tenant, index), .. } = kind {
            self.zones[tenant][index].failed = true;
        }
        !matches!(kind, NamespaceOpKind::Read { .. })
    }

    /// Makes a command of the drive fail soon: the next finish or flush, or the next write to a random zone, except
    /// those of the journal, without which nothing can continue. A move is tried three times, so only two writes fail,
    /// perhaps after the next start.
    pub(super) fn break_something(&mut self, number: u64) {
        let bay = self.bays[0];
        if number < 2 && self.rng.chance(1, 2) {
            let zone = ZoneIndex(2 + self.rng.below(self.scenario.drive.zones as u64 - 2) as u32);
            self.command_queue.ssd(bay).faults().after(0, Fault::WriteFault(zone));
            return self.trace.note(|| format!("a write to {zone:?} is to fail"));
        }
        let kind = if self.rng.chance(1, 8) { DriveKind::Flush } else { DriveKind::Finish };
        let late = self.rng.chance(1, 2);
        self.command_queue.set_fault(bay, WireFault::Fail { kind, late });
        self.trace.note(|| format!("a {kind:?} is to fail"));
    }
}
