//! Several namespaces as one zoned device: their zones are concatenated.

use crate::simulator::subject::SubjectError;
use engine::{
    device::{Command, Completion, Done, Geometry, Slots, ZonedDevice, Zones},
    qos::Qos,
    runtime::Runtime,
    vzone::{Namespace, Namespaces, Spec, VzoneError},
    zone::{Lba, ZoneIndex},
};
use std::{cell::Cell, rc::Rc};

/// Virtual time per command in microseconds, chosen so that spares of idle namespaces are reclaimed within a life.
const STEP_US: u64 = 20_000;

/// Number of zones of a namespace, and how many of them may be active.
const ZONES: u32 = 3;
const ACTIVE: u32 = 2;

/// Active zones that the large namespace cannot use: the journal's, one in reserve, and the other namespace's.
const OTHER_ACTIVE: u32 = 4;

/// Active zones of a large namespace on a device without limits.
const MOST_ACTIVE: u32 = 10;

/// Adds up to `count` namespaces to a device, limited by its number of active zones and its room; with `one_large` the
/// first namespace gets all zones but two.
pub(super) async fn fill(
    namespaces: &Namespaces,
    (count, one_large): (u32, bool),
    max_active: u32,
) -> Result<(), SubjectError> {
    let limit = if max_active == 0 { u32::MAX } else { max_active };
    for index in 0..count {
        let large = one_large && index == 0;
        let zones = if large { (namespaces.zones() as u32).saturating_sub(2).max(1) } else { ZONES };
        let zones = if one_large && !large { 1 } else { zones };
        let active = if large { limit.saturating_sub(OTHER_ACTIVE).clamp(1, MOST_ACTIVE) } else { ACTIVE };
        let active = active.min(zones);
        let spec = Spec {
            name: format!("tenant{index}"),
            zones,
            max_active: active,
            max_open: active,
            essential: 1,
            weight: 1,
            qos: Qos::default(),
        };
        match namespaces.add(spec).await {
            Err(VzoneError::Full { .. } | VzoneError::Floors { .. }) if index > 0 => return Ok(()),
            added => _ = added.map_err(SubjectError::other)?,
        }
    }
    Ok(())
}

/// The concatenated namespaces.
pub(super) struct NamespaceConcat {
    runtime: Runtime,
    slots: Rc<Slots>,
    namespaces: Namespaces,
    clock: Rc<Cell<u64>>,
    list: Vec<Namespace>,
    geometry: Geometry,
}

impl NamespaceConcat {
    /// `None` if there is no namespace.
    pub(super) fn new(
        runtime: &Runtime,
        namespaces: Namespaces,
        clock: Rc<Cell<u64>>,
    ) -> Option<NamespaceConcat> {
        let list = namespaces.list();
        let least = |limit: fn(&Geometry) -> u32| list.iter().map(|one| limit(one.geometry())).min();
        let mut geometry = list.first()?.geometry().clone();
        geometry.zones = list.iter().map(|one| one.geometry().zones).sum();
        // The limits of the whole device are those of its strictest namespace.
        geometry.max_open = least(|geometry| geometry.max_open).unwrap_or(0);
        geometry.max_active = least(|geometry| geometry.max_active).unwrap_or(0);
        geometry.max_append_blocks = 0;
        Some(NamespaceConcat {
            runtime: runtime.clone(),
            slots: Rc::default(),
            namespaces,
            clock,
            list,
            geometry,
        })
    }

    /// The namespace of a zone and the zone's number in it; for a number beyond the end, the last namespace.
    fn place(&self, zone: u32) -> Option<(&Namespace, u32)> {
        let mut first = 0;
        for (index, namespace) in self.list.iter().enumerate() {
            let zones = namespace.geometry().zones;
            if zone < first + zones || index + 1 == self.list.len() {
                return Some((namespace, zone - first));
            }
            first += zones;
        }
        None
    }

    /// The namespace of a block and the block's address in it.
    fn own_lba(&self, lba: Lba) -> Option<(&Namespace, Lba)> {
        let size = self.geometry.zone_size_blocks;
        let (namespace, zone) = self.place((lba.0 / size) as u32)?;
        Some((namespace, Lba(zone as u64 * size + lba.0 % size)))
    }

    fn own_zones(&self, zones: Zones) -> Option<(&Namespace, Zones)> {
        let Zones::One(zone) = zones else { return None };
        let (namespace, zone) = self.place(zone.0)?;
        Some((namespace, Zones::One(ZoneIndex(zone))))
    }

    /// The namespace that a command is for, and the command with the namespace's addresses; the command itself as `Err`
    /// if it is for all namespaces.
    fn route(&self, command: Command) -> Result<(&Namespace, Command), Command> {
        let routed = match &command {
            Command::Read { lba, .. } | Command::Write { lba, .. } => {
                let Some((namespace, own)) = self.own_lba(*lba) else { return Err(command) };
                let mut command = command;
                if let Command::Read { lba, .. } | Command::Write { lba, .. } = &mut command {
                    *lba = own;
                }
                return Ok((namespace, command));
            }
            Command::Open { zones, zrwa } => {
                self.own_zones(*zones).map(|(one, zones)| (one, Command::Open { zones, zrwa: *zrwa }))
            }
            Command::Close { zones } => {
                self.own_zones(*zones).map(|(one, zones)| (one, Command::Close { zones }))
            }
            Command::Finish { zones } => {
                self.own_zones(*zones).map(|(one, zones)| (one, Command::Finish { zones }))
            }
            Command::Reset { zones } => {
                self.own_zones(*zones).map(|(one, zones)| (one, Command::Reset { zones }))
            }
            _ => None,
        };
        routed.ok_or(command)
    }

    /// The zone reports of all namespaces.
    fn report(&self, first: ZoneIndex, count: u32) -> Done {
        let mut zones = Vec::new();
        for namespace in &self.list {
            let own = namespace.geometry().zones;
            let mut done = namespace.submit(Command::Report { first: ZoneIndex(0), count: own });
            let Some(done) = done.take() else { continue };
            let base = zones.len() as u32;
            zones.extend(done.zones.into_iter().zip(base..).map(|(mut info, zone)| {
                info.zone = ZoneIndex(zone);
                info
            }));
        }
        let zones = zones.into_iter().skip(first.0 as usize).take(count as usize).collect();
        Done { zones, ..Done::ok() }
    }
}

impl ZonedDevice for NamespaceConcat {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        self.clock.set(self.clock.get() + STEP_US);
        self.namespaces.tick();
        let command = match self.route(command) {
            Ok((namespace, command)) => return namespace.submit(command),
            Err(Command::Report { first, count }) => return Completion::ready(self.report(first, count)),
            Err(command) => command,
        };
        let all: Vec<Completion> = self.list.iter().map(|one| one.submit(command.clone())).collect();
        let (completer, completion) = self.slots.pair();
        self.runtime.spawn(async move {
            let mut result = Ok(());
            for one in all {
                result = result.and(one.await.result);
            }
            completer.complete(Done { result, ..Done::ok() });
        });
        completion
    }
}
