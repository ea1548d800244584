//! The command queue between the engine and the emulated drives.
//!
//! A command that the engine submits is queued. The simulator decides when a queued command is executed by its drive,
//! and when its completion is delivered to the engine: these are two events, so that a power cut can fall between them.
//! Queued commands of a drive are executed in any order, since NVMe guarantees none. Faults of the transport are
//! injected here (no completion, a late completion, a removed drive); faults of the media are injected by the drive.

use super::append_places::AppendPlaces;
use emu::{
    rng::Rng,
    ssd::{Cut, Kind, Ssd},
};
use engine::device::{
    Command, Completer, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice,
};
use std::{
    cell::{Ref, RefCell, RefMut},
    io,
    rc::Rc,
};

/// The number of an emulated drive in a world. Replaced drives keep their numbers.
pub type Bay = usize;

/// A fault that strikes the next command to which it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next write or append fails and writes nothing.
    Write,
    /// The next read fails.
    Read,
    /// The next command times out; it is executed or not.
    Silence { executed: bool },
    /// The next command times out, and is executed after this number of events.
    Tardy { events: u64 },
    /// The next command of this kind fails; if `late`, it has been executed.
    Fail { kind: Kind, late: bool },
}

/// Upper bound of queued commands, which a correct engine does not reach on small drives.
const MOST_QUEUED: usize = 20_000;

struct Slot {
    ssd: Ssd,
    geometry: Geometry,
    gone: bool,
    fault: Option<Fault>,
    /// Commands are not executed before this event.
    slow_until: u64,
    /// Number of commands that have reached the drive and change data or zone states, successful or not.
    changes: u64,
    landed: AppendPlaces,
}

struct QueuedCommand {
    bay: Bay,
    process: u64,
    command: Command,
    completer: Completer,
    /// A latency spike: not executed before this event.
    not_before: u64,
}

struct ExecutedCommand {
    bay: Bay,
    done: Done,
    completer: Completer,
}

/// All drives of a world, their queued commands and their undelivered completions.
#[derive(Default)]
pub struct CommandQueue {
    slots: RefCell<Vec<Slot>>,
    queued: RefCell<Vec<QueuedCommand>>,
    executed: RefCell<Vec<ExecutedCommand>>,
    state: RefCell<State>,
    pairs: Rc<Slots>,
}

#[derive(Default)]
struct State {
    /// Number of processes so far; commands through handles of an ended process are not completed.
    processes: u64,
    /// The process that new handles belong to; `others` are running processes of other hosts.
    process: u64,
    others: Vec<u64>,
    /// Drives that a process cannot reach, although others can.
    cut_off: Vec<(u64, Bay)>,
    now: u64,
    commands: u64,
    /// Number of commands in 1000 with a latency spike, of up to `spike_events`.
    spike_permille: u64,
    spike_events: u64,
}

/// An executed command, for the trace.
pub struct Event {
    pub bay: Bay,
    pub what: String,
}

impl CommandQueue {
    /// Connects a drive.
    pub fn insert(&self, ssd: Ssd) -> Bay {
        let geometry = ssd.geometry().clone();
        self.slots.borrow_mut().push(Slot {
            ssd,
            geometry,
            gone: false,
            fault: None,
            slow_until: 0,
            changes: 0,
            landed: AppendPlaces::default(),
        });
        self.slots.borrow().len() - 1
    }

    /// A copy of all drives and their queued commands; completions in the copy are discarded.
    ///
    /// # Errors
    /// If the media of a drive cannot be copied.
    pub fn copy(&self) -> io::Result<CommandQueue> {
        let copy = CommandQueue::default();
        for slot in &*self.slots.borrow() {
            let (ssd, geometry, landed) = (slot.ssd.copy()?, slot.geometry.clone(), slot.landed.clone());
            copy.slots.borrow_mut().push(Slot { ssd, geometry, landed, ..*slot });
        }
        for queued in &*self.queued.borrow() {
            let (completer, _) = copy.pairs.pair();
            copy.queued.borrow_mut().push(QueuedCommand {
                command: queued.command.clone(),
                completer,
                ..*queued
            });
        }
        Ok(copy)
    }

    /// A handle for the engine, valid until the power is cut or the process is killed.
    pub fn drive(self: &Rc<CommandQueue>, bay: Bay) -> QueuedDrive {
        self.drive_for(self.process(), bay)
    }

    /// As [`CommandQueue::drive`], for a process of another host.
    pub fn drive_for(self: &Rc<CommandQueue>, process: u64, bay: Bay) -> QueuedDrive {
        let geometry = self.slots.borrow()[bay].geometry.clone();
        QueuedDrive { command_queue: self.clone(), bay, geometry, process }
    }

    /// The process that new handles belong to.
    pub fn process(&self) -> u64 {
        self.state.borrow().process
    }

    /// Starts a process on another host.
    pub fn start_other(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.processes += 1;
        let process = state.processes;
        state.others.push(process);
        process
    }

    /// New handles belong to `process` from now on, which runs already; the previous process keeps running.
    pub fn switch_to(&self, process: u64) {
        let mut state = self.state.borrow_mut();
        let before = std::mem::replace(&mut state.process, process);
        state.others.retain(|other| *other != process);
        state.others.push(before);
    }

    /// Kills one process: as [`CommandQueue::kill`], for the commands of this process only.
    pub fn kill_one(&self, process: u64, rng: &mut Rng) {
        self.state.borrow_mut().others.retain(|other| *other != process);
        if self.process() == process {
            self.begin_process();
        }
        let all = std::mem::take(&mut *self.queued.borrow_mut());
        let (own, others) = all.into_iter().partition(|queued| queued.process == process);
        *self.queued.borrow_mut() = others;
        self.reach_some(own, rng);
    }

    /// A process cannot reach a drive from now on.
    pub fn cut_off(&self, process: u64, bay: Bay) {
        self.state.borrow_mut().cut_off.push((process, bay));
    }

    /// Whether commands of a process are queued; with `changing`, only commands that change data or zone states count.
    pub fn is_used_by(&self, process: u64, changing: bool) -> bool {
        let queued = self.queued.borrow();
        queued.iter().any(|queued| queued.process == process && (!changing || changes(&queued.command)))
    }

    /// The drive itself, for inspection or fault injection.
    pub fn ssd(&self, bay: Bay) -> RefMut<'_, Ssd> {
        RefMut::map(self.slots.borrow_mut(), |slots| &mut slots[bay].ssd)
    }

    pub fn geometry(&self, bay: Bay) -> Ref<'_, Geometry> {
        Ref::map(self.slots.borrow(), |slots| &slots[bay].geometry)
    }

    /// Sets the rate and the longest delay of latency spikes.
    pub fn set_spikes(&self, permille: u64, events: u64) {
        let mut state = self.state.borrow_mut();
        (state.spike_permille, state.spike_events) = (permille, events);
    }

    /// Commands submitted so far.
    pub fn commands(&self) -> u64 {
        self.state.borrow().commands
    }

    /// Number of commands that wait for execution.
    pub fn queued(&self) -> usize {
        self.queued.borrow().len()
    }

    /// Whether commands of a drive are queued.
    pub fn is_awaited(&self, bay: Bay) -> bool {
        self.queued.borrow().iter().any(|queued| queued.bay == bay)
    }

    /// Number of completions that wait for delivery.
    pub fn executed(&self) -> usize {
        self.executed.borrow().len()
    }

    /// Arms a fault.
    pub fn set_fault(&self, bay: Bay, fault: Fault) {
        self.slots.borrow_mut()[bay].fault = Some(fault);
    }

    /// Disarms the fault, if one is armed.
    pub fn clear_fault(&self, bay: Bay) {
        self.slots.borrow_mut()[bay].fault = None;
    }

    /// Number of bays.
    pub fn count(&self) -> usize {
        self.slots.borrow().len()
    }

    /// One drive loses power and comes back. Its queued commands are executed afterwards.
    pub fn power_cycle(&self, bay: Bay, rng: &mut Rng, cut: Cut) {
        // Drives in memory have no media errors.
        _ = self.slots.borrow_mut()[bay].ssd.power_cut(&[], rng, cut);
    }

    /// Delays all commands of the drive by this number of events.
    pub fn slow_down(&self, bay: Bay, events: u64) {
        let now = self.state.borrow().now;
        self.slots.borrow_mut()[bay].slow_until = now + events;
    }

    /// Removes the drive, or puts it back.
    pub fn set_gone(&self, bay: Bay, gone: bool) {
        self.slots.borrow_mut()[bay].gone = gone;
    }

    pub fn is_gone(&self, bay: Bay) -> bool {
        self.slots.borrow()[bay].gone
    }

    /// The addresses of the blocks that were appended to a drive.
    pub fn landed(&self, bay: Bay) -> Ref<'_, AppendPlaces> {
        Ref::map(self.slots.borrow(), |slots| &slots[bay].landed)
    }

    /// Number of commands that have reached the drive and change data or zone states, successful or not.
    pub fn changes(&self, bay: Bay) -> u64 {
        self.slots.borrow()[bay].changes
    }

    /// Whether a command that changes data or zone states is queued.
    pub fn is_changing(&self) -> bool {
        self.queued.borrow().iter().any(|queued| changes(&queued.command))
    }

    /// Advances time by one event.
    pub fn tick(&self) {
        self.state.borrow_mut().now += 1;
    }

    /// Executes the queued command at `index`; `None` if it is delayed.
    pub fn execute(&self, index: usize, traced: bool) -> Option<Event> {
        {
            let (queued, state) = (self.queued.borrow(), self.state.borrow());
            let command = queued.get(index)?;
            let slow_until = self.slots.borrow()[command.bay].slow_until;
            if state.now < command.not_before.max(slow_until) {
                return None;
            }
        }
        Some(self.execute_now(index, traced))
    }

    /// Executes the queued command at `index`; the others keep their order.
    pub fn execute_now(&self, index: usize, traced: bool) -> Event {
        let QueuedCommand { bay, command, completer, process, .. } = self.queued.borrow_mut().remove(index);
        let mut what = if traced { describe(&command) } else { String::new() };
        if traced && process != self.process() {
            what = format!("for process {process}: {what}");
        }
        self.put_off(process, bay, &command);
        let done = match self.reaches(process, bay) {
            true => self.slots.borrow_mut()[bay].execute(command),
            false => Done::error(DeviceError::Gone),
        };
        if traced && let Err(error) = &done.result {
            what = format!("{what}: {error}");
        }
        self.executed.borrow_mut().push(ExecutedCommand { bay, done, completer });
        Event { bay, what }
    }

    /// If the command is struck by a [`Fault::Tardy`], queues a copy of it for later and lets the original time out.
    fn put_off(&self, process: u64, bay: Bay, command: &Command) {
        let slot = &mut self.slots.borrow_mut()[bay];
        if let (Some(Fault::Tardy { events }), false) = (slot.fault, slot.gone) {
            slot.fault = Some(Fault::Silence { executed: false });
            let (completer, _) = self.pairs.pair();
            let not_before = self.state.borrow().now + events;
            let command = command.clone();
            self.queued.borrow_mut().push(QueuedCommand { bay, process, command, completer, not_before });
        }
    }

    fn reaches(&self, process: u64, bay: Bay) -> bool {
        !self.state.borrow().cut_off.contains(&(process, bay))
    }

    /// Delivers the executed command at `index` to the engine.
    pub fn deliver(&self, index: usize) -> Bay {
        let ExecutedCommand { bay, done, completer } = self.executed.borrow_mut().remove(index);
        completer.complete(done);
        bay
    }

    /// Executes or delivers one command, drawn from all; `false` if there is none.
    pub fn run_one(&self, rng: &mut Rng) -> bool {
        let (queued, executed) = (self.queued() as u64, self.executed() as u64);
        if queued + executed == 0 {
            return false;
        }
        match rng.below(queued + executed) {
            draw if draw < queued => _ = self.execute_now(draw as usize, false),
            draw => _ = self.deliver((draw - queued) as usize),
        }
        true
    }

    /// Executes all commands and delivers all completions, first in, first out, without delays.
    pub fn run_all(&self) {
        let executed = std::mem::take(&mut *self.executed.borrow_mut());
        let queued = std::mem::take(&mut *self.queued.borrow_mut());
        for ExecutedCommand { done, completer, .. } in executed {
            completer.complete(done);
        }
        for QueuedCommand { bay, process, command, completer, .. } in queued {
            let done = match self.reaches(process, bay) {
                true => self.slots.borrow_mut()[bay].execute(command),
                false => Done::error(DeviceError::Gone),
            };
            completer.complete(done);
        }
    }

    /// Discards all queued commands.
    pub fn drop_queued(&self) {
        self.queued.borrow_mut().clear();
    }

    /// Executes all queued commands, first in, first out, and delivers no completion.
    pub fn execute_all(&self) {
        while self.queued() > 0 {
            self.execute_now(0, false);
        }
    }

    /// Cuts the power of all drives. Queued commands are executed wholly, partly or not, in any order; undelivered
    /// completions are discarded, although their commands were executed. Handles become invalid.
    ///
    /// # Errors
    /// I/O errors of the drives' media.
    pub fn power_cut(&self, rng: &mut Rng, cut: impl Fn(Bay) -> Cut) -> io::Result<()> {
        let queued = self.forget_process();
        let mut in_flight: Vec<Command> = Vec::new();
        for (bay, slot) in self.slots.borrow_mut().iter_mut().enumerate() {
            in_flight.clear();
            if !slot.gone {
                in_flight.extend(queued.iter().filter(|q| q.bay == bay).map(|q| q.command.clone()));
            }
            slot.changes += in_flight.iter().filter(|command| changes(command)).count() as u64;
            in_flight.iter().for_each(|command| slot.landed.forget(command));
            slot.ssd.power_cut(&in_flight, rng, cut(bay))?;
            (slot.fault, slot.slow_until) = (None, 0);
        }
        Ok(())
    }

    /// Kills the process that uses the drives, which keep power. Queued commands are executed wholly or not, in any
    /// order; all completions are discarded. Handles become invalid.
    pub fn kill(&self, rng: &mut Rng) {
        let queued = self.forget_process();
        self.reach_some(queued, rng);
        for slot in self.slots.borrow_mut().iter_mut() {
            (slot.fault, slot.slow_until) = (None, 0);
        }
    }

    /// Commands of a killed process are executed, in any order, or never reach their drives.
    fn reach_some(&self, mut queued: Vec<QueuedCommand>, rng: &mut Rng) {
        rng.shuffle(&mut queued);
        let reached_of_four = rng.below(5);
        let mut slots = self.slots.borrow_mut();
        for QueuedCommand { bay, command, process, .. } in queued {
            if rng.chance(reached_of_four, 4) && self.reaches(process, bay) {
                slots[bay].execute(command);
            }
        }
    }

    /// As [`CommandQueue::kill`]; then every drive is shut down in good order and started again.
    ///
    /// # Errors
    /// I/O errors of the drives' media.
    pub fn shut_down(&self, rng: &mut Rng) -> io::Result<()> {
        self.kill(rng);
        self.slots.borrow_mut().iter_mut().try_for_each(|slot| slot.ssd.shut_down())
    }

    /// Invalidates the handles of all processes; returns their queued commands.
    fn forget_process(&self) -> Vec<QueuedCommand> {
        self.state.borrow_mut().others.clear();
        self.begin_process();
        self.executed.borrow_mut().clear();
        std::mem::take(&mut *self.queued.borrow_mut())
    }

    fn begin_process(&self) {
        let mut state = self.state.borrow_mut();
        state.processes += 1;
        state.process = state.processes;
    }
}

impl Slot {
    fn execute(&mut self, command: Command) -> Done {
        if self.gone {
            return Done::error(DeviceError::Gone);
        }
        let writes = matches!(command, Command::Write { .. } | Command::Append { .. });
        self.changes += changes(&command) as u64;
        match self.fault {
            Some(Fault::Write) if writes => {
                self.fault = None;
                Done::error(Status::WriteFault.into())
            }
            Some(Fault::Read) if matches!(command, Command::Read { .. }) => {
                self.fault = None;
                Done::error(Status::UnrecoveredReadError.into())
            }
            Some(Fault::Silence { executed }) => {
                self.fault = None;
                if executed {
                    self.carry_out(command);
                }
                Done::error(DeviceError::Timeout)
            }
            Some(Fault::Fail { kind, late }) if kind == Kind::of(&command) => {
                self.fault = None;
                if late {
                    self.carry_out(command);
                }
                Done::error(kind.status().into())
            }
            _ => self.carry_out(command),
        }
    }

    fn carry_out(&mut self, command: Command) -> Done {
        let appended = AppendPlaces::blocks(&command);
        self.landed.forget(&command);
        let done = self.ssd.execute(command);
        if done.result.is_ok() {
            let (zone, place) = self.geometry.locate(done.lba);
            (place..).zip(appended).for_each(|(place, block)| self.landed.note(zone, block, place));
        }
        done
    }
}

/// Whether a command changes data or zone states.
fn changes(command: &Command) -> bool {
    !matches!(command, Command::Read { .. } | Command::Report { .. } | Command::Flush)
}

/// A drive that queues its commands until the world executes them.
pub struct QueuedDrive {
    command_queue: Rc<CommandQueue>,
    bay: Bay,
    geometry: Geometry,
    process: u64,
}

impl ZonedDevice for QueuedDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn power_epoch(&self) -> Option<u64> {
        self.command_queue.slots.borrow()[self.bay].ssd.power_epoch()
    }

    fn submit(&self, command: Command) -> Completion {
        let command_queue = &self.command_queue;
        let mut state = command_queue.state.borrow_mut();
        if state.process != self.process && !state.others.contains(&self.process) {
            return Completion::failed(DeviceError::Gone);
        }
        state.commands += 1;
        let mut not_before = 0;
        if state.spike_permille > 0 {
            // Any function of the command's number will do: it is as random as the schedule.
            let draw = state.commands.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            if draw % 1000 < state.spike_permille {
                not_before = state.now + draw % state.spike_events.max(1);
            }
        }
        let (completer, completion) = command_queue.pairs.pair();
        let mut queued = command_queue.queued.borrow_mut();
        assert!(
            queued.len() < MOST_QUEUED,
            "{MOST_QUEUED} commands are in flight at once; this is one more of process {}: drive{} {}",
            self.process,
            self.bay,
            describe(&command)
        );
        queued.push(QueuedCommand { bay: self.bay, process: self.process, command, completer, not_before });
        completion
    }
}

/// Describes a command for the trace.
pub fn describe(command: &Command) -> String {
    match command {
        Command::Read { lba, data, .. } => format!("read {}+{}", lba.0, data.blocks()),
        Command::Write { lba, data, fua, .. } => {
            format!("write {}+{}{}", lba.0, data.blocks(), if *fua { " FUA" } else { "" })
        }
        Command::Append { zone, data, fua, .. } => {
            format!("append to zone {} +{}{}", zone.0, data.blocks(), if *fua { " FUA" } else { "" })
        }
        Command::Flush => "flush".into(),
        Command::Open { zones, zrwa } => format!("open {zones:?}{}", if *zrwa { " with ZRWA" } else { "" }),
        Command::Close { zones } => format!("close {zones:?}"),
        Command::Finish { zones } => format!("finish {zones:?}"),
        Command::Reset { zones } => format!("reset {zones:?}"),
        Command::FlushZrwa { last } => format!("flush ZRWA to {}", last.0),
        Command::Report { first, count } => format!("report zones {}+{count}", first.0),
    }
}
