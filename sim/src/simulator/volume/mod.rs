//! The simulator of volumes: a block device on a drive or an array, checked against its guarantees.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a world plays it ([`super::layer`]), and the [`oracle`] judges reads
//! while the volume runs, and all data after every recovery. At random moments the world is copied, the copy's power is
//! cut, and its recovery is judged, with a member lost at the same moment if there is an array below.

mod guarantees;
mod helpers;
mod lifecycle;
mod load;
mod model;
pub mod oracle;
pub mod scenario;
mod snapshots;
mod stack;
mod tested;

pub use super::layer::DeviceBelow;
pub use model::{VolumeCounts, VolumeModel};
pub(super) use stack::RecordingArray;

use super::{
    hidden::HiddenLayer,
    layer::{
        lifecycle::kill,
        step,
        world::{LayerModel, Life},
    },
    world::{Failure, Pending},
};
use emu::rng::Rng;
use engine::array::Tails;
use model::{VolumeOpKind, VolumeWorld};
use scenario::draw;
use stack::bring_up;
use std::{cell::RefCell, rc::Rc};
use tested::Tested;

/// Events after which no command is outstanding any more.
const QUIET_EVENTS: u64 = 20_000;

/// Results of many seeds.
pub type VolumeSummary = super::layer::seeds::LayerSummary<VolumeCounts>;

impl LayerModel for VolumeModel {
    type Counts = VolumeCounts;
    type Up = Tested;

    const HIDDEN: HiddenLayer = HiddenLayer::Volume;
    const RECOVERY_EVENTS: u64 = 300;
    const TICKS: bool = false;

    fn draw(rng: &mut Rng, over: Option<DeviceBelow>) -> (Life, VolumeModel) {
        let (life, scenario) = draw(rng, over);
        (life, VolumeModel::new(scenario))
    }

    fn add(counts: &mut VolumeCounts, other: &VolumeCounts) {
        counts.collected_zones += other.collected_zones;
        counts.in_window += other.in_window;
        counts.checkpoints += other.checkpoints;
        counts.discarded += other.discarded;
        counts.growths += other.growths;
        counts.shrinks += other.shrinks;
        counts.replacements += other.replacements;
        counts.snapshots += other.snapshots;
        counts.removed_snapshots += other.removed_snapshots;
        counts.returns += other.returns;
        counts.clones += other.clones;
        counts.guarantees += other.guarantees;
        counts.refusals += other.refusals;
    }

    fn live(world: &mut VolumeWorld) -> Result<(), Failure> {
        lifecycle::run(world)
    }

    fn is_up(&self) -> bool {
        self.volume.is_some()
    }

    fn outstanding(&self) -> usize {
        self.ops.len()
    }

    fn describe(&self) -> String {
        let ops: Vec<VolumeOpKind> = self.ops.iter().map(|op| op.kind).collect();
        format!("{ops:?}; {:?}", self.status())
    }

    fn run_task(world: &mut VolumeWorld) -> Result<(), Failure> {
        if world.rng.chance(1, 100) {
            return lifecycle::settle(world);
        }
        world.ready = world.runtime.step();
        Ok(())
    }

    fn issue(world: &mut VolumeWorld) {
        load::issue(world);
    }

    fn collect(world: &mut VolumeWorld) -> Result<(), Failure> {
        load::collect(world)
    }

    fn check(world: &mut VolumeWorld) -> Result<(), Failure> {
        match world.model.status().filter(|status| status.unreadable_zones > 0) {
            Some(status) if !world.model.struck => {
                Err(Failure(format!("nothing has failed, and zones cannot be collected: {status:?}")))
            }
            _ => Ok(()),
        }
    }

    fn tails(&self) -> Option<Tails> {
        Some(self.tails.borrow().clone())
    }

    fn forget(world: &mut VolumeWorld) {
        if let Some(volume) = world.model.volume.take() {
            let status = volume.status();
            world.counts.own.collected_zones += status.collected_zones;
            world.counts.own.in_window += status.written.window;
            world.counts.own.checkpoints += status.checkpoints;
            world.counts.own.discarded += status.discarded;
        }
        world.model.ops.clear();
        world.model.struck = false;
        world.command_queue.clear_fault(world.bays[0]);
    }

    fn bring_up(world: &mut VolumeWorld) -> Pending<Tested, String> {
        world.model.struck_in_recovery = lifecycle::may_fail(world) && world.rng.chance(1, 8);
        if world.model.struck_in_recovery {
            lifecycle::arm(world);
        }
        let (runtime, over) = (world.runtime.clone(), world.life.over);
        let tails = (world.left.clone(), world.model.tails.clone());
        let behaviour = (world.model.scenario.behaviour, load::draw_growth(world, 8));
        let sizes = world.model.sizes.clone();
        world.start(bring_up(runtime, over, world.drives(), (behaviour, sizes), tails))
    }

    fn take_up(world: &mut VolumeWorld, up: Result<Tested, String>) -> Result<bool, Failure> {
        lifecycle::take_up(world, up)
    }

    fn judge(world: &mut VolumeWorld) -> Result<(), Failure> {
        lifecycle::judge(world)
    }

    fn end_at_rest(world: &mut VolumeWorld) -> Result<bool, Failure> {
        for _ in 0..QUIET_EVENTS {
            if !step::event(world, false)? {
                break;
            }
        }
        kill(world);
        Ok(true)
    }

    fn copy(&self) -> VolumeModel {
        VolumeModel {
            oracle: self.oracle.clone(),
            tails: Rc::new(RefCell::new(self.tails.borrow().clone())),
            worn: self.worn,
            asked: self.asked.clone(),
            sizes: self.sizes.clone(),
            in_no_volume: self.in_no_volume,
            snapshots: self.snapshots.clone(),
            next_snapshot: self.next_snapshot,
            guarantees: self.guarantees.clone(),
            ..VolumeModel::new(self.scenario.clone())
        }
    }
}
