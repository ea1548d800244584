//! A volume as the layer of a world: its load, and what is promised about its blocks.

use super::{
    lifecycle, load,
    oracle::VolumeOracle,
    scenario::{VolumeScenario, draw},
    stack::bring_up,
};
use crate::simulator::{
    hidden::HiddenLayer,
    layer::{
        DeviceBelow,
        lifecycle::kill,
        step,
        world::{LayerModel, LayerWorld, Life},
    },
    world::{Failure, Pending},
};
use emu::rng::Rng;
use engine::{
    array::Tails,
    buf::Buf,
    device::DeviceError,
    volume::{Volume, VolumeStatus},
};
use std::{cell::RefCell, rc::Rc};

pub(super) type World = LayerWorld<VolumeModel>;

/// Events after which no command is outstanding any more.
const QUIET_EVENTS: u64 = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeOpKind {
    Write { at: u64, blocks: u64, fua: bool },
    Discard { at: u64, blocks: u64 },
    Read { at: u64, blocks: u64 },
    Flush,
}

/// The result of an operation, with the data of a read; `None` while it is outstanding.
pub(super) type Answer = Rc<RefCell<Option<Result<Buf, DeviceError>>>>;

pub(super) struct VolumeOp {
    pub(super) kind: VolumeOpKind,
    pub(super) begun: u64,
    pub(super) answer: Answer,
    /// The largest number of blocks that may have been mapped since the operation began, as of the last count.
    pub(super) mapped: u64,
}

/// Counters of the volume, to show that runs reach the relevant cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    /// Zones collected by the volumes.
    pub collected_zones: u64,
    pub checkpoints: u64,
    pub discarded: u64,
    /// Writes refused because the volume was full.
    pub refusals: u64,
}

/// The volume and its load.
pub struct VolumeModel {
    pub(super) scenario: VolumeScenario,
    pub(super) volume: Option<Volume>,
    pub(super) oracle: VolumeOracle,
    pub(super) ops: Vec<VolumeOp>,
    /// Contents of the tails file of the running process.
    pub(super) tails: Rc<RefCell<Tails>>,
    /// A command of the drive was made to fail: operations may fail.
    pub(super) struck: bool,
    /// A command of the drive was made to fail during this recovery.
    pub(super) struck_in_recovery: bool,
    /// Number of read-only zones.
    pub(super) worn: u64,
}

impl VolumeModel {
    fn new(scenario: VolumeScenario) -> VolumeModel {
        VolumeModel {
            scenario,
            volume: None,
            oracle: VolumeOracle::new(0),
            ops: Vec::new(),
            tails: Rc::default(),
            struck: false,
            struck_in_recovery: false,
            worn: 0,
        }
    }

    pub(super) fn status(&self) -> Option<VolumeStatus> {
        self.volume.as_ref().map(Volume::status)
    }
}

impl LayerModel for VolumeModel {
    type Counts = VolumeCounts;
    type Up = Volume;

    const HIDDEN: HiddenLayer = HiddenLayer::Volume;
    const RECOVERY_EVENTS: u64 = 300;
    const TICKS: bool = false;

    fn draw(rng: &mut Rng, over: Option<DeviceBelow>) -> (Life, VolumeModel) {
        let (life, scenario) = draw(rng, over);
        (life, VolumeModel::new(scenario))
    }

    fn add(counts: &mut VolumeCounts, other: &VolumeCounts) {
        counts.collected_zones += other.collected_zones;
        counts.checkpoints += other.checkpoints;
        counts.discarded += other.discarded;
        counts.refusals += other.refusals;
    }

    fn live(world: &mut World) -> Result<(), Failure> {
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

    fn run_task(world: &mut World) -> Result<(), Failure> {
        if world.rng.chance(1, 100) {
            return lifecycle::settle(world);
        }
        world.ready = world.runtime.step();
        Ok(())
    }

    fn issue(world: &mut World) {
        load::issue(world);
    }

    fn collect(world: &mut World) -> Result<(), Failure> {
        load::collect(world)
    }

    fn check(world: &mut World) -> Result<(), Failure> {
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

    fn forget(world: &mut World) {
        if let Some(volume) = world.model.volume.take() {
            let status = volume.status();
            world.counts.own.collected_zones += status.collected_zones;
            world.counts.own.checkpoints += status.checkpoints;
            world.counts.own.discarded += status.discarded;
        }
        world.model.ops.clear();
        world.model.struck = false;
        world.command_queue.clear_fault(world.bays[0]);
    }

    fn bring_up(world: &mut World) -> Pending<Volume, String> {
        world.model.struck_in_recovery = lifecycle::may_fail(world) && world.rng.chance(1, 8);
        if world.model.struck_in_recovery {
            lifecycle::arm(world);
        }
        let (runtime, over) = (world.runtime.clone(), world.life.over);
        let tails = (world.left.clone(), world.model.tails.clone());
        world.start(bring_up(runtime, over, world.drives(), world.model.scenario.behaviour, tails))
    }

    fn take_up(world: &mut World, up: Result<Volume, String>) -> Result<bool, Failure> {
        lifecycle::take_up(world, up)
    }

    fn judge(world: &mut World) -> Result<(), Failure> {
        lifecycle::judge(world)
    }

    fn end_at_rest(world: &mut World) -> Result<(), Failure> {
        for _ in 0..QUIET_EVENTS {
            if !step::event(world, false)? {
                break;
            }
        }
        kill(world);
        Ok(())
    }

    fn copy(&self) -> VolumeModel {
        VolumeModel {
            oracle: self.oracle.clone(),
            tails: Rc::new(RefCell::new(self.tails.borrow().clone())),
            worn: self.worn,
            ..VolumeModel::new(self.scenario.clone())
        }
    }
}
