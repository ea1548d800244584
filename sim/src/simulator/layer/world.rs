//! [`LayerWorld`]: drives, tasks and random numbers of a simulated volume or namespaces. [`LayerModel`]: what differs
//! between the two.

use super::{DeviceBelow, sequenced};
use crate::simulator::{
    command_queue::{Bay, CommandQueue},
    hidden::HiddenLayer,
    world::{Failure, Pending, Trace, TraceMode},
};
use emu::{rng::Rng, ssd::Ssd};
use engine::{
    array::{Array, CreateOptions, Drive, Tails},
    device::{Geometry, ZonedDevice},
    runtime::Runtime,
};
use std::{fmt::Debug, future::Future, rc::Rc};

/// Parameters of a life that do not depend on the layer.
#[derive(Clone, Debug)]
pub struct Life {
    pub over: DeviceBelow,
    pub members: usize,
    pub drive: Geometry,
    pub chunk_blocks: u64,
    /// Zone size of the array.
    pub zone_size_blocks: u64,
    pub unwritten_fails: bool,
    /// FUA covers only the write's own blocks.
    pub fua_stands_alone: bool,
    pub queue_depth: usize,
    /// Relative rates of the events: execution by a drive, completion, run of a task, submission of an operation, tick.
    pub pace: [u64; 5],
    pub in_order: bool,
    pub rounds: u64,
    pub work_events: u64,
    /// One of `fork_rarity` events is a fork.
    pub fork_rarity: u64,
    pub most_forks: u64,
    pub cut_in_recovery_percent: u64,
    pub kill_percent: u64,
}

impl Life {
    /// Creates the device below the layer from new drives.
    pub async fn create(
        self,
        runtime: &Runtime,
        drives: Vec<Drive>,
        uuid: [u8; 16],
    ) -> Result<Rc<dyn ZonedDevice>, String> {
        let DeviceBelow::Array { policy, parities, group_blocks } = self.over else {
            return sequenced(runtime, &drives);
        };
        let options = CreateOptions {
            group_blocks,
            chunk_blocks: self.chunk_blocks,
            zone_size_blocks: Some(self.zone_size_blocks),
            parities,
            policy: Some(policy),
            ..CreateOptions::new("simulated", uuid)
        };
        Ok(Rc::new(Array::create(runtime, options, drives).await.map_err(|e| e.to_string())?))
    }
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerEnd {
    PowerCut,
    Kill,
}

/// Counters of runs, to show that they reach the relevant cases, with the layer's `own` ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts<C> {
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
    pub own: C,
}

impl<C> LayerCounts<C> {
    /// Adds those of another run; `add` adds the layer's own ones.
    pub fn add(&mut self, other: &LayerCounts<C>, add: fn(&mut C, &C)) {
        self.operations += other.operations;
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        self.interrupted_recoveries += other.interrupted_recoveries;
        self.member_losses += other.member_losses;
        self.judgements += other.judgements;
        self.forks += other.forks;
        self.flips += other.flips;
        add(&mut self.own, &other.own);
    }
}

/// A layer, its load and its promises.
pub trait LayerModel: Sized + 'static {
    type Counts: Copy + Debug + Default + Send;
    /// The layer in operation.
    type Up: 'static;

    const HIDDEN: HiddenLayer;
    /// Most events of a recovery that is interrupted.
    const RECOVERY_EVENTS: u64;
    /// The layer does some work at ticks of a clock: a world without any other possible event does not hang.
    const TICKS: bool;

    /// Draws the parameters of a life.
    fn draw(rng: &mut Rng, over: Option<DeviceBelow>) -> (Life, Self);

    fn add(counts: &mut Self::Counts, other: &Self::Counts);

    /// Plays a life.
    ///
    /// # Errors
    /// The broken promise.
    fn live(world: &mut LayerWorld<Self>) -> Result<(), Failure>;

    fn is_up(&self) -> bool;

    /// Number of outstanding operations.
    fn outstanding(&self) -> usize;

    /// The outstanding operations, and the state of the layer, for a message.
    fn describe(&self) -> String;

    /// Whether nothing is outstanding, changes of the layer included.
    fn is_idle(&self) -> bool {
        self.outstanding() == 0
    }

    /// Called before every event.
    fn pass_time(&mut self, _rng: &mut Rng) {}

    /// Runs a task.
    ///
    /// # Errors
    /// Tasks wake each other for ever.
    fn run_task(world: &mut LayerWorld<Self>) -> Result<(), Failure> {
        world.ready = world.runtime.step();
        Ok(())
    }

    fn tick(&mut self) {}

    /// Submits an operation.
    fn issue(world: &mut LayerWorld<Self>);

    /// Judges the completed operations.
    ///
    /// # Errors
    /// The broken promise.
    fn collect(world: &mut LayerWorld<Self>) -> Result<(), Failure>;

    /// Checked after every drain, and before every end.
    ///
    /// # Errors
    /// The broken promise.
    fn check(_world: &mut LayerWorld<Self>) -> Result<(), Failure> {
        Ok(())
    }

    /// Tails of the running process that the next one takes over after a kill.
    fn tails(&self) -> Option<Tails> {
        None
    }

    /// Discards the state that the process held in memory.
    fn forget(world: &mut LayerWorld<Self>);

    /// Starts a recovery.
    fn bring_up(world: &mut LayerWorld<Self>) -> Pending<Self::Up, String>;

    /// Takes the result of a recovery; `false` if it is to be repeated.
    ///
    /// # Errors
    /// The recovery should have succeeded.
    fn take_up(world: &mut LayerWorld<Self>, up: Result<Self::Up, String>) -> Result<bool, Failure>;

    /// Checks all data against the promises, after a recovery.
    ///
    /// # Errors
    /// The broken promise.
    fn judge(world: &mut LayerWorld<Self>) -> Result<(), Failure>;

    /// Ends a process that has nothing outstanding; `false` if some of it may not be durable.
    ///
    /// # Errors
    /// The broken promise.
    fn end_at_rest(world: &mut LayerWorld<Self>) -> Result<bool, Failure>;

    /// The model for a copy of the world, in which nothing runs.
    fn copy(&self) -> Self;
}

/// The simulated world; see the module documentation.
pub struct LayerWorld<M: LayerModel> {
    pub life: Life,
    pub rng: Rng,
    pub command_queue: Rc<CommandQueue>,
    pub runtime: Runtime,
    pub bays: Vec<Bay>,
    /// The missing member.
    pub lost: Option<usize>,
    /// Tails that the last killed process has left.
    pub left: Option<Tails>,
    /// The most severe end since the last recovery.
    pub end: LayerEnd,
    pub counts: LayerCounts<M::Counts>,
    pub trace: Trace,
    /// A task may be ready to run.
    pub ready: bool,
    pub forks_left: u64,
    pub model: M,
}

impl<M: LayerModel> Drop for LayerWorld<M> {
    /// Tasks hold the executor that holds them.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl<M: LayerModel> LayerWorld<M> {
    /// A world with new drives and without the layer.
    pub fn new(life: Life, model: M, mut rng: Rng, tracing: TraceMode) -> LayerWorld<M> {
        let command_queue = Rc::new(CommandQueue::default());
        let mut bays = Vec::new();
        for _ in 0..life.members {
            let mut ssd = Ssd::in_memory(&life.drive);
            if life.unwritten_fails {
                ssd.fail_unwritten();
            }
            if life.fua_stands_alone {
                ssd.let_fua_stand_alone();
            }
            bays.push(command_queue.insert(ssd));
        }
        LayerWorld {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            command_queue,
            bays,
            lost: None,
            left: None,
            end: LayerEnd::Kill,
            counts: LayerCounts::default(),
            trace: Trace::new(tracing),
            ready: false,
            forks_left: life.most_forks,
            life,
            model,
        }
    }

    /// The present drives.
    pub fn drives(&self) -> Vec<Drive> {
        let there = self.bays.iter().enumerate().filter(|(member, _)| self.lost != Some(*member));
        there
            .map(|(_, bay)| Drive {
                name: format!("drive{bay}"),
                device: Rc::new(self.command_queue.drive(*bay)),
            })
            .collect()
    }

    /// Starts work as a task.
    pub fn start<T: 'static>(
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

    pub fn hang(&self) -> Failure {
        Failure(format!("nothing can happen any more, but this never completed: {}", self.model.describe()))
    }

    /// Ends the process, with everything that it held in memory.
    pub fn end_process(&mut self) {
        M::forget(self);
        self.runtime.clear();
        self.runtime = Runtime::seeded(self.rng.next_u64());
        self.ready = false;
    }

    /// A copy of the world with the same drives, oracle and commands in flight; nothing runs in it.
    pub fn copy(&mut self) -> Result<LayerWorld<M>, Failure> {
        let command_queue =
            self.command_queue.copy().map_err(|error| Failure(format!("copying the drives: {error}")))?;
        let mut rng = self.rng.fork();
        Ok(LayerWorld {
            runtime: Runtime::seeded(rng.next_u64()),
            rng,
            life: self.life.clone(),
            command_queue: Rc::new(command_queue),
            bays: self.bays.clone(),
            lost: self.lost,
            left: self.left.clone(),
            end: self.end,
            counts: LayerCounts::default(),
            trace: self.trace.copy(),
            ready: false,
            forks_left: 0,
            model: self.model.copy(),
        })
    }
}
