//! State of the namespaces under test: tenants, outstanding operations, expected contents of their zones.

use super::{
    ops::{NamespaceOp, Reshape, TenantQos},
    oracle::NamespaceZone,
    scenario::NamespaceScenario,
};
use crate::simulator::{layer::world::LayerWorld, world::Pending};
use engine::vzone::{Namespace, Namespaces, VzoneError};
use std::{cell::Cell, rc::Rc};

pub(super) type NamespaceWorld = LayerWorld<NamespaceModel>;

/// Most tenants of a life, and most zones of one: block stamps contain both numbers.
pub(super) const MOST_TENANTS: usize = 14;
const MOST_ZONES: u32 = 16;

/// Counters of the namespaces, to show that runs reach the relevant cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceCounts {
    pub namespaces: u64,
    /// Additions, resizes and removals of namespaces at runtime.
    pub reshapes: u64,
    /// Groups that were moved: reclaimed, or torn by a power cut.
    pub moved_groups: u64,
    /// Largest number of spares that a namespace held.
    pub most_spares: u64,
}

/// The namespaces and their tenants.
pub struct NamespaceModel {
    pub(super) scenario: NamespaceScenario,
    pub(super) clock: Rc<Cell<u64>>,
    /// The running namespaces, and the handle of each tenant's namespace; `None` for a tenant without one.
    pub(super) up: Option<(Namespaces, Vec<Option<Namespace>>)>,
    /// By tenant and zone, including zones that the tenant no longer has.
    pub(super) zones: Vec<Vec<NamespaceZone>>,
    pub(super) names: Vec<String>,
    /// Number of zones of each tenant; `None` without a namespace.
    pub(super) sizes: Vec<Option<u32>>,
    pub(super) limits: Vec<TenantQos>,
    /// A change of namespaces that may have taken effect, and its result while that is outstanding.
    pub(super) reshape: Option<Reshape>,
    pub(super) reshaping: Option<Pending<Result<(), VzoneError>, String>>,
    /// The tenant of a change of limits that is in progress.
    pub(super) limiting: Option<(usize, Pending<(), String>)>,
    /// Whether each tenant submits operations now.
    pub(super) busy: Vec<bool>,
    pub(super) ops: Vec<NamespaceOp>,
    pub(super) writes: u64,
    /// Commands of the drive fail occasionally.
    pub(super) failing: bool,
}

impl NamespaceModel {
    pub(super) fn new(scenario: NamespaceScenario) -> NamespaceModel {
        NamespaceModel {
            scenario,
            clock: Rc::new(Cell::new(1_000_000)),
            up: None,
            zones: Vec::new(),
            names: Vec::new(),
            sizes: Vec::new(),
            limits: Vec::new(),
            reshape: None,
            reshaping: None,
            limiting: None,
            busy: Vec::new(),
            ops: Vec::new(),
            writes: 0,
            failing: false,
        }
    }

    /// Adds a tenant of this name, which may have a namespace from now on.
    pub(super) fn expect_tenant(&mut self, name: String) -> usize {
        self.names.push(name);
        self.sizes.push(None);
        self.limits.push(TenantQos::default());
        self.zones.push(Vec::new());
        self.busy.push(true);
        self.names.len() - 1
    }

    /// Sets the number of zones of a tenant's namespace, `None` if it has none.
    pub(super) fn has(&mut self, tenant: usize, zones: Option<u32>) {
        self.sizes[tenant] = zones;
        let Some((namespaces, _)) = &self.up else { return };
        let capacity = namespaces.zone_capacity_blocks();
        let known = self.zones[tenant].len() as u32;
        let mark = |zone: u32| MOST_ZONES * (tenant as u32 + 1) + zone;
        self.zones[tenant]
            .extend((known..zones.unwrap_or(0)).map(|zone| NamespaceZone::new(mark(zone), capacity)));
    }

    /// Updates the handles of the existing namespaces.
    pub(super) fn list_namespaces(&mut self) {
        let Some((namespaces, list)) = &mut self.up else { return };
        let there = namespaces.list();
        let called = |name: &String| there.iter().find(|namespace| namespace.name() == name).cloned();
        *list = self.names.iter().map(called).collect();
    }

    pub(super) fn namespace(&self, tenant: usize) -> Option<&Namespace> {
        self.up.as_ref()?.1.get(tenant)?.as_ref()
    }
}
