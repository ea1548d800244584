//! The simulator of namespaces: several tenants on a drive or an array, checked against the guarantees of each.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a world plays it ([`super::layer`]), and the [`oracle`] judges reads
//! while the namespaces run, and all data after every recovery. The allocation is audited all the time: no physical
//! zone has two owners, and none is lost. At random moments the world is copied, the copy's power is cut, and its
//! recovery is judged, with a member lost at the same moment if there is an array below.

mod lifecycle;
mod load;
mod model;
mod ops;
pub mod oracle;
pub mod scenario;
mod stack;

pub use super::layer::DeviceBelow;
pub use model::{NamespaceCounts, NamespaceModel};

use super::{
    hidden::HiddenLayer,
    layer::{
        lifecycle::cut_power,
        step,
        world::{LayerModel, Life},
    },
    world::{Failure, Pending},
};
use emu::rng::Rng;
use engine::vzone::{NamespaceOptions, Namespaces};
use model::NamespaceWorld;
use ops::NamespaceOpKind;
use scenario::draw;
use stack::bring_up;
use std::{cell::Cell, rc::Rc};

/// Number of events between two audits of the allocation.
const AUDIT_EVERY: u64 = 8;

/// Results of many seeds.
pub type NamespaceSummary = super::layer::seeds::LayerSummary<NamespaceCounts>;

impl LayerModel for NamespaceModel {
    type Counts = NamespaceCounts;
    type Up = Namespaces;

    const HIDDEN: HiddenLayer = HiddenLayer::Namespaces;
    const RECOVERY_EVENTS: u64 = 150;
    const TICKS: bool = true;

    fn draw(rng: &mut Rng, over: Option<DeviceBelow>) -> (Life, NamespaceModel) {
        let (life, scenario) = draw(rng, over);
        (life, NamespaceModel::new(scenario))
    }

    fn add(counts: &mut NamespaceCounts, other: &NamespaceCounts) {
        counts.namespaces += other.namespaces;
        counts.reshapes += other.reshapes;
        counts.moved_groups += other.moved_groups;
        counts.most_spares = counts.most_spares.max(other.most_spares);
    }

    fn live(world: &mut NamespaceWorld) -> Result<(), Failure> {
        lifecycle::run(world)
    }

    fn is_up(&self) -> bool {
        self.up.is_some()
    }

    fn outstanding(&self) -> usize {
        self.ops.len()
    }

    fn describe(&self) -> String {
        let ops: Vec<NamespaceOpKind> = self.ops.iter().map(|op| op.kind).collect();
        format!("{ops:?}")
    }

    fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.limiting.is_none() && self.reshaping.is_none()
    }

    fn pass_time(&mut self, rng: &mut Rng) {
        self.clock.set(self.clock.get() + rng.below(40));
    }

    fn tick(&mut self) {
        if let Some((namespaces, _)) = &self.up {
            namespaces.tick();
        }
    }

    fn issue(world: &mut NamespaceWorld) {
        load::issue(world);
    }

    fn collect(world: &mut NamespaceWorld) -> Result<(), Failure> {
        load::collect(world)?;
        match world.trace.event.is_multiple_of(AUDIT_EVERY) {
            true => lifecycle::audit(world),
            false => Ok(()),
        }
    }

    fn check(world: &mut NamespaceWorld) -> Result<(), Failure> {
        lifecycle::audit(world)
    }

    fn forget(world: &mut NamespaceWorld) {
        if let Some((namespaces, _)) = world.model.up.take() {
            world.counts.own.moved_groups += namespaces.moved_groups();
        }
        world.model.ops.clear();
        world.model.limiting = None;
        world.model.reshaping = None;
    }

    fn bring_up(world: &mut NamespaceWorld) -> Pending<Namespaces, String> {
        let clock = world.model.clock.clone();
        let behaviour = NamespaceOptions {
            clock: Rc::new(move || clock.get()),
            patience_us: world.model.scenario.patience_us,
            admission: true,
        };
        world.start(bring_up(world.runtime.clone(), world.life.over, world.drives(), behaviour))
    }

    fn take_up(world: &mut NamespaceWorld, up: Result<Namespaces, String>) -> Result<bool, Failure> {
        let namespaces = up.map_err(|why| Failure(format!("namespaces do not come up again: {why}")))?;
        world.model.up = Some((namespaces, Vec::new()));
        world.model.list_namespaces();
        Ok(true)
    }

    fn judge(world: &mut NamespaceWorld) -> Result<(), Failure> {
        lifecycle::judge(world)
    }

    fn end_at_rest(world: &mut NamespaceWorld) -> Result<bool, Failure> {
        step::drain(world)?;
        cut_power(world)?;
        // Behind a volatile cache, blocks that no flush has made durable need no parity.
        Ok(!world.life.drive.volatile_cache)
    }

    fn copy(&self) -> NamespaceModel {
        NamespaceModel {
            clock: Rc::new(Cell::new(self.clock.get())),
            zones: self.zones.clone(),
            names: self.names.clone(),
            sizes: self.sizes.clone(),
            limits: self.limits.clone(),
            reshape: self.reshape,
            busy: self.busy.clone(),
            writes: self.writes,
            ..NamespaceModel::new(self.scenario.clone())
        }
    }
}
