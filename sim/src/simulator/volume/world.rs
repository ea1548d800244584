//! The simulated world of a volume: the state of drives, executor, volume and load.

use super::{
    oracle::{VolumeEnd, VolumeOracle},
    scenario::VolumeScenario,
};
use crate::simulator::{
    command_queue::{Bay, CommandQueue},
    layer::DeviceBelow,
    world::{Failure, Pending, Trace, TraceMode},
};
use emu::{rng::Rng, ssd::Ssd};
use engine::{
    array::{Drive, Tails},
    buf::Buf,
    device::DeviceError,
    runtime::Runtime,
    volume::{Volume, VolumeStatus},
};
use std::{cell::RefCell, future::Future, rc::Rc};

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

/// Counters of runs, to show that they reach the relevant cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    pub operations: u64,
    /// Power cuts and kills, including those of copies of the world.
    pub power_cuts: u64,
    pub kills: u64,
    pub interrupted_recoveries: u64,
    pub member_losses: u64,
    /// Recoveries after which every block was checked.
    pub judgements: u64,
    pub forks: u64,
    /// Bits of metadata flipped on single members.
    pub flips: u64,
    /// Zones collected by the volumes.
    pub collected_zones: u64,
    pub checkpoints: u64,
    pub discarded: u64,
    /// Writes refused because the volume was full.
    pub refusals: u64,
}

impl VolumeCounts {
    pub fn add(&mut self, other: &VolumeCounts) {
        self.operations += other.operations;
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        self.interrupted_recoveries += other.interrupted_recoveries;
        self.member_losses += other.member_losses;
        self.judgements += other.judgements;
        self.forks += other.forks;
        self.flips += other.flips;
        self.collected_zones += other.collected_zones;
        self.checkpoints += other.checkpoints;
        self.discarded += other.discarded;
        self.refusals += other.refusals;
    }
}

/// The simulated world; see the module documentation.
pub struct VolumeWorld {
    pub(super) scenario: VolumeScenario,
    pub(super) rng: Rng,
    pub(super) command_queue: Rc<CommandQueue>,
    pub(super) runtime: Runtime,
    pub(super) bays: Vec<Bay>,
    /// The missing member.
    pub(super) lost: Option<usize>,
    pub(super) volume: Option<Volume>,
    pub(super) oracle: VolumeOracle,
    pub(super) ops: Vec<VolumeOp>,
    /// Contents of the tails file of the running process, and those that the last killed process has left.
    pub(super) tails: Rc<RefCell<Tails>>,
    pub(super) left: Option<Tails>,
    /// The most severe end since the last recovery.
    pub(super) end: VolumeEnd,
    pub(super) counts: VolumeCounts,
    pub(super) trace: Trace,
    /// A task may be ready to run.
    pub(super) ready: bool,
    /// A command of the drive was made to fail: operations may fail.
    pub(super) struck: bool,
    /// Number of read-only zones.
    pub(super) worn: u64,
    pub(super) forks_left: u64,
}

impl Drop for VolumeWorld {
    /// Tasks hold the executor that holds them.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl VolumeWorld {
    /// A world with new drives and without a volume.
    pub fn new(scenario: VolumeScenario, mut rng: Rng, tracing: TraceMode) -> VolumeWorld {
        let command_queue = Rc::new(CommandQueue::default());
        let mut bays = Vec::new();
        for _ in 0..scenario.members {
            let mut ssd = Ssd::in_memory(&scenario.drive);
            if scenario.unwritten_fails {
                ssd.fail_unwritten();
            }
            if scenario.fua_stands_alone {
                ssd.let_fua_stand_alone();
            }
            bays.push(command_queue.insert(ssd));
        }
        VolumeWorld {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            command_queue,
            bays,
            lost: None,
            volume: None,
            oracle: VolumeOracle::new(0),
            ops: Vec::new(),
            tails: Rc::default(),
            left: None,
            end: VolumeEnd::Kill,
            counts: VolumeCounts::default(),
            trace: Trace::new(tracing),
            ready: false,
            struck: false,
            worn: 0,
            forks_left: scenario.most_forks,
            scenario,
        }
    }

    pub fn counts(&self) -> VolumeCounts {
        self.counts
    }

    /// The kept lines of the trace.
    pub fn trace_lines(&self) -> Vec<String> {
        self.trace.lines()
    }

    /// The present drives.
    pub(super) fn drives(&self) -> Vec<Drive> {
        let there = self.bays.iter().enumerate().filter(|(member, _)| self.lost != Some(*member));
        there
            .map(|(_, bay)| Drive {
                name: format!("drive{bay}"),
                device: Rc::new(self.command_queue.drive(*bay)),
            })
            .collect()
    }

    /// Starts work as a task.
    pub(super) fn start<T: 'static>(
        &mut self,
        work: impl Future<Output = Result<T, String>> + 'static,
    ) -> Pending<T, String> {
        let pending: Pending<T, String> = Rc::default();
        let result = pending.clone();
        self.runtime.spawn(async move {
            let value = work.await;
            *result.borrow_mut() = Some(value);
        });
        self.ready = true;
        pending
    }

    pub(super) fn status(&self) -> Option<VolumeStatus> {
        self.volume.as_ref().map(Volume::status)
    }

    pub(super) fn hang(&self) -> Failure {
        let ops: Vec<VolumeOpKind> = self.ops.iter().map(|op| op.kind).collect();
        let status = self.status();
        Failure(format!("nothing can happen any more, but this never completed: {ops:?}; {status:?}"))
    }

    /// Whether commands of a bare drive are made to fail; above an array the array would handle such errors.
    pub(super) fn volume_fails(&self) -> bool {
        self.scenario.fault_rarity > 0 && self.scenario.over == DeviceBelow::Drive
    }

    /// Discards the state that the process held in memory.
    pub(super) fn end_process(&mut self) {
        if let Some(volume) = self.volume.take() {
            let status = volume.status();
            self.counts.collected_zones += status.collected_zones;
            self.counts.checkpoints += status.checkpoints;
            self.counts.discarded += status.discarded;
        }
        self.runtime.clear();
        self.runtime = Runtime::seeded(self.rng.next_u64());
        self.ops.clear();
        self.ready = false;
        self.struck = false;
        self.command_queue.clear_fault(self.bays[0]);
    }

    /// A copy of the world with the same drives, oracle and commands in flight; nothing runs in it.
    pub(super) fn copy(&mut self) -> Result<VolumeWorld, Failure> {
        let command_queue =
            self.command_queue.copy().map_err(|error| Failure(format!("copying the drives: {error}")))?;
        let mut rng = self.rng.fork();
        Ok(VolumeWorld {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            scenario: self.scenario.clone(),
            command_queue: Rc::new(command_queue),
            bays: self.bays.clone(),
            lost: self.lost,
            volume: None,
            oracle: self.oracle.clone(),
            ops: Vec::new(),
            tails: Rc::new(RefCell::new(self.tails.borrow().clone())),
            left: self.left.clone(),
            end: self.end,
            counts: VolumeCounts::default(),
            trace: self.trace.copy(),
            ready: false,
            struck: false,
            worn: self.worn,
            forks_left: 0,
        })
    }

    pub(super) fn without(&self) -> String {
        self.lost.map(|member| format!("without member {member}: ")).unwrap_or_default()
    }
}
