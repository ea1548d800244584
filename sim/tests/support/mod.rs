//! A small sound subject, and ways to break it: for tests of the simulator itself.
//!
//! [`Single`] makes a device of one drive: it passes commands to the drive in the order of the calls, each after the
//! completion of the one before. It has no redundancy; [`copies`] has a subject with redundancy.
//!
//! [`array`], [`rig`] and [`scene`] are shared by the tests of arrays, [`volume`] by those of volumes.

pub mod array;
pub mod copies;
pub mod golden;
pub mod golden_layers;
pub mod pool;
pub mod rig;
pub mod scene;
pub mod volume;
pub mod zrwa_volume;

use engine::{
    array::{CreateOptions, Drive, MemberState},
    device::{Command, Completer, Completion, Geometry, Slots, ZonedDevice},
    raid::policy::Policy,
    runtime::{Gate, Runtime},
};
use sim::simulator::subject::{AssembleOptions, Maker, Subject, Work};
use std::{cell::RefCell, collections::VecDeque, rc::Rc};

/// A rule that a subject violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// FUA is not passed on.
    ForgetsFua,
    /// A flush completes at once.
    IgnoresFlush,
    /// A write completes when it is submitted.
    AnswersEarly,
    /// The third reset completes without being executed.
    LosesReset,
    /// A finish never completes.
    NeverFinishes,
    /// A write's last block is written with the content of its first.
    MixesBlocks,
}

/// Makes [`Single`]s.
pub struct SingleMaker(pub Flaw);

pub struct Single {
    geometry: Geometry,
    queue: RefCell<VecDeque<(Command, Completer)>>,
    gate: Gate,
    slots: Rc<Slots>,
    flaw: Flaw,
    resets: RefCell<u32>,
}

impl SingleMaker {
    fn start(&self, runtime: &Runtime, mut drives: Vec<Drive>) -> Work<Rc<dyn Subject>> {
        let Some(drive) = drives.pop() else { return Box::pin(async { Err("no drive".into()) }) };
        let single = Rc::new(Single {
            geometry: drive.device.geometry().clone(),
            queue: RefCell::default(),
            gate: Gate::default(),
            slots: Rc::default(),
            flaw: self.0,
            resets: RefCell::default(),
        });
        let worker = single.clone();
        runtime.spawn(async move { worker.work(drive.device).await });
        Box::pin(async move { Ok(single as Rc<dyn Subject>) })
    }
}

impl Maker for SingleMaker {
    fn may_lose_completed(&self, _: Policy, members: bool) -> bool {
        members
    }

    fn create(
        &self,
        runtime: &Runtime,
        _: CreateOptions,
        drives: Vec<Drive>,
        _: bool,
    ) -> Work<Rc<dyn Subject>> {
        self.start(runtime, drives)
    }

    fn assemble(&self, runtime: &Runtime, drives: Vec<Drive>, _: AssembleOptions) -> Work<Rc<dyn Subject>> {
        self.start(runtime, drives)
    }
}

impl Single {
    async fn work(&self, device: Rc<dyn ZonedDevice>) {
        loop {
            let next = self.queue.borrow_mut().pop_front();
            let Some((command, completer)) = next else {
                self.gate.wait().await;
                continue;
            };
            if matches!(command, Command::Finish { .. }) {
                // Data of a finished zone has to be durable, which a drive does not guarantee.
                device.submit(Command::Flush).await;
            }
            let done = device.submit(self.break_command(command)).await;
            completer.complete(done);
        }
    }

    fn break_command(&self, command: Command) -> Command {
        match (self.flaw, command) {
            (Flaw::ForgetsFua, Command::Write { lba, data, .. }) => Command::write(lba, data, false),
            (Flaw::MixesBlocks, Command::Write { lba, data, fua, .. }) => {
                let mut bytes = data.to_vec();
                let last = bytes.len() - 4096;
                bytes.copy_within(..4096, last);
                Command::write(lba, engine::buf::Buf::copy_of(&bytes), fua)
            }
            (Flaw::LosesReset, Command::Reset { zones }) => {
                *self.resets.borrow_mut() += 1;
                if *self.resets.borrow() == 3 { Command::Flush } else { Command::Reset { zones } }
            }
            (_, command) => command,
        }
    }
}

impl ZonedDevice for Single {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        let (completer, completion) = self.slots.pair();
        let mut queue = self.queue.borrow_mut();
        match (self.flaw, &command) {
            (Flaw::IgnoresFlush, Command::Flush) => completer.complete(engine::device::Done::ok()),
            (Flaw::NeverFinishes, Command::Finish { .. }) => std::mem::forget(completer),
            (Flaw::AnswersEarly, Command::Write { .. }) => {
                completer.complete(engine::device::Done::ok());
                queue.push_back((command, self.slots.pair().0));
            }
            _ => queue.push_back((command, completer)),
        }
        self.gate.open();
        completion
    }
}

impl Subject for Single {
    fn attach(&self, _: usize, _: Drive) -> Work<()> {
        Box::pin(async { Err("there is no redundancy".into()) })
    }

    fn rebuild(&self) -> Work<u64> {
        Box::pin(async { Ok(0) })
    }

    fn fail(&self, _: usize) -> Work<()> {
        Box::pin(async { Err("there is no redundancy".into()) })
    }

    fn members(&self) -> Vec<(MemberState, String)> {
        vec![(MemberState::Active, "drive0".into())]
    }

    fn assembly(&self) -> u64 {
        1
    }
}
