//! The wire between the engine and the emulated drives, where commands wait.
//!
//! A command that the engine submits is queued. Whoever runs the world says when a queued command
//! is executed by its drive, and when the engine learns of it: these are two events, so that a
//! power cut can fall between them. Queued commands of a drive are executed in any order, since
//! NVMe promises none. Faults of the path are made here (no answer, an answer that comes very late,
//! a drive that is gone); faults of the media are made by the drive.

use super::landed::Landed;
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

/// The number of an emulated drive in a world. Drives that were replaced keep theirs.
pub type Bay = usize;

/// A fault that hits the next command it can hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next write or append fails and writes nothing.
    Write,
    /// The next read fails.
    Read,
    /// The next command is executed or not, and never answered: the host gives up on it.
    Silence { executed: bool },
    /// The host gives up on the next command as well, and it is executed so many events later.
    Tardy { events: u64 },
    /// The next command of this kind is answered with an error; if it is late, it has been executed.
    Fail { kind: Kind, late: bool },
}

/// Commands in flight that no sound engine reaches on small drives.
const MOST_QUEUED: usize = 20_000;

struct Slot {
    ssd: Ssd,
    geometry: Geometry,
    gone: bool,
    fault: Option<Fault>,
    /// Commands are passed over until then.
    slow_until: u64,
    /// Commands that have reached it and are to change something.
    changes: u64,
    landed: Landed,
}

struct Queued {
    bay: Bay,
    process: u64,
    command: Command,
    completer: Completer,
    /// A latency spike: passed over until then.
    not_before: u64,
}

struct Executed {
    bay: Bay,
    done: Done,
    completer: Completer,
}

/// All drives of a world and the commands on their way to and from them.
#[derive(Default)]
pub struct Wire {
    slots: RefCell<Vec<Slot>>,
    queued: RefCell<Vec<Queued>>,
    executed: RefCell<Vec<Executed>>,
    state: RefCell<State>,
    pairs: Rc<Slots>,
}

#[derive(Default)]
struct State {
    /// Counts processes; handles of one that has ended answer nothing any more.
    processes: u64,
    /// The process that handles are for, and those of other hosts that run beside it.
    process: u64,
    others: Vec<u64>,
    /// Drives that a process cannot reach, although others do.
    cut_off: Vec<(u64, Bay)>,
    now: u64,
    commands: u64,
    /// Out of 1000 commands, so many suffer a latency spike of up to `spike_events`.
    spike_permille: u64,
    spike_events: u64,
}

/// What happened to a command, for the trace.
pub struct Event {
    pub bay: Bay,
    pub what: String,
}

impl Wire {
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
            landed: Landed::default(),
        });
        self.slots.borrow().len() - 1
    }

    /// A copy of all drives and of what is queued for them; nobody waits for an answer there.
    ///
    /// # Errors
    /// If the media of a drive cannot be copied.
    pub fn copy(&self) -> io::Result<Wire> {
        let copy = Wire::default();
        for slot in &*self.slots.borrow() {
            let (ssd, geometry, landed) = (slot.ssd.copy()?, slot.geometry.clone(), slot.landed.clone());
            copy.slots.borrow_mut().push(Slot { ssd, geometry, landed, ..*slot });
        }
        for queued in &*self.queued.borrow() {
            let (completer, _) = copy.pairs.pair();
            copy.queued.borrow_mut().push(Queued { command: queued.command.clone(), completer, ..*queued });
        }
        Ok(copy)
    }

    /// A handle for the engine, good until the power is cut or the process is killed.
    pub fn drive(self: &Rc<Wire>, bay: Bay) -> QueuedDrive {
        self.drive_for(self.process(), bay)
    }

    /// As [`Wire::drive`], for a process of another host.
    pub fn drive_for(self: &Rc<Wire>, process: u64, bay: Bay) -> QueuedDrive {
        let geometry = self.slots.borrow()[bay].geometry.clone();
        QueuedDrive { wire: self.clone(), bay, geometry, process }
    }

    /// The process that handles are for.
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

    /// Handles are for `process` from now on, which runs already; the one before it goes on to run.
    pub fn switch_to(&self, process: u64) {
        let mut state = self.state.borrow_mut();
        let before = std::mem::replace(&mut state.process, process);
        state.others.retain(|other| *other != process);
        state.others.push(before);
    }

    /// Kills one process: as [`Wire::kill`], of its commands alone.
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

    /// A process cannot reach a drive any more.
    pub fn cut_off(&self, process: u64, bay: Bay) {
        self.state.borrow_mut().cut_off.push((process, bay));
    }

    /// Whether commands of a process are on their way to drives; of those that change something alone, if so wanted.
    pub fn is_used_by(&self, process: u64, changing: bool) -> bool {
        let queued = self.queued.borrow();
        queued.iter().any(|queued| queued.process == process && (!changing || changes(&queued.command)))
    }

    /// The drive itself, to look at it or to damage it.
    pub fn ssd(&self, bay: Bay) -> RefMut<'_, Ssd> {
        RefMut::map(self.slots.borrow_mut(), |slots| &mut slots[bay].ssd)
    }

    pub fn geometry(&self, bay: Bay) -> Ref<'_, Geometry> {
        Ref::map(self.slots.borrow(), |slots| &slots[bay].geometry)
    }

    /// How often and for how many events single commands are delayed.
    pub fn set_spikes(&self, permille: u64, events: u64) {
        let mut state = self.state.borrow_mut();
        (state.spike_permille, state.spike_events) = (permille, events);
    }

    /// Commands submitted so far.
    pub fn commands(&self) -> u64 {
        self.state.borrow().commands
    }

    /// Commands that wait to be executed.
    pub fn queued(&self) -> usize {
        self.queued.borrow().len()
    }

    /// Whether commands are on their way to a drive.
    pub fn is_awaited(&self, bay: Bay) -> bool {
        self.queued.borrow().iter().any(|queued| queued.bay == bay)
    }

    /// Commands whose answer waits to be delivered.
    pub fn executed(&self) -> usize {
        self.executed.borrow().len()
    }

    /// Arms a fault.
    pub fn set_fault(&self, bay: Bay, fault: Fault) {
        self.slots.borrow_mut()[bay].fault = Some(fault);
    }

    /// Disarms whatever fault is armed.
    pub fn clear_fault(&self, bay: Bay) {
        self.slots.borrow_mut()[bay].fault = None;
    }

    /// Number of bays.
    pub fn count(&self) -> usize {
        self.slots.borrow().len()
    }

    /// The drive alone loses power and comes back. Commands that are queued for it reach it afterwards.
    pub fn power_cycle(&self, bay: Bay, rng: &mut Rng, cut: Cut) {
        // Drives in memory have no media errors.
        _ = self.slots.borrow_mut()[bay].ssd.power_cut(&[], rng, cut);
    }

    /// All commands of the drive are delayed for so many events.
    pub fn slow_down(&self, bay: Bay, events: u64) {
        let now = self.state.borrow().now;
        self.slots.borrow_mut()[bay].slow_until = now + events;
    }

    /// The drive is pulled out, or put back.
    pub fn set_gone(&self, bay: Bay, gone: bool) {
        self.slots.borrow_mut()[bay].gone = gone;
    }

    pub fn is_gone(&self, bay: Bay) -> bool {
        self.slots.borrow()[bay].gone
    }

    /// Where what was appended to a drive has landed.
    pub fn landed(&self, bay: Bay) -> Ref<'_, Landed> {
        Ref::map(self.slots.borrow(), |slots| &slots[bay].landed)
    }

    /// How many commands were executed that are to change something on the drive.
    pub fn changes(&self, bay: Bay) -> u64 {
        self.slots.borrow()[bay].changes
    }

    /// Whether a command is on its way that is to change something on a drive.
    pub fn is_changing(&self) -> bool {
        self.queued.borrow().iter().any(|queued| changes(&queued.command))
    }

    /// Lets time pass by one event.
    pub fn tick(&self) {
        self.state.borrow_mut().now += 1;
    }

    /// Executes the queued command at `index`, unless it is being passed over; `None` if so.
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
        let Queued { bay, command, completer, process, .. } = self.queued.borrow_mut().remove(index);
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
        self.executed.borrow_mut().push(Executed { bay, done, completer });
        Event { bay, what }
    }

    /// Queues a command once more, for later, if its drive is about to be given up on with it.
    fn put_off(&self, process: u64, bay: Bay, command: &Command) {
        let slot = &mut self.slots.borrow_mut()[bay];
        if let (Some(Fault::Tardy { events }), false) = (slot.fault, slot.gone) {
            slot.fault = Some(Fault::Silence { executed: false });
            let (completer, _) = self.pairs.pair();
            let not_before = self.state.borrow().now + events;
            let command = command.clone();
            self.queued.borrow_mut().push(Queued { bay, process, command, completer, not_before });
        }
    }

    fn reaches(&self, process: u64, bay: Bay) -> bool {
        !self.state.borrow().cut_off.contains(&(process, bay))
    }

    /// Delivers the executed command at `index` to the engine.
    pub fn deliver(&self, index: usize) -> Bay {
        let Executed { bay, done, completer } = self.executed.borrow_mut().remove(index);
        completer.complete(done);
        bay
    }

    /// Executes and delivers everything, first in, first out, without delays.
    pub fn run_all(&self) {
        let executed = std::mem::take(&mut *self.executed.borrow_mut());
        let queued = std::mem::take(&mut *self.queued.borrow_mut());
        for Executed { done, completer, .. } in executed {
            completer.complete(done);
        }
        for Queued { bay, process, command, completer, .. } in queued {
            let done = match self.reaches(process, bay) {
                true => self.slots.borrow_mut()[bay].execute(command),
                false => Done::error(DeviceError::Gone),
            };
            completer.complete(done);
        }
    }

    /// Forgets everything that waits to be executed.
    pub fn drop_queued(&self) {
        self.queued.borrow_mut().clear();
    }

    /// Executes everything, first in, first out, and delivers nothing.
    pub fn execute_all(&self) {
        while self.queued() > 0 {
            self.execute_now(0, false);
        }
    }

    /// Cuts the power of all drives: what was queued happens partly, in any order, or not; what
    /// waits for delivery has happened, but nobody learns of it. Old handles are dead from now on.
    ///
    /// # Errors
    /// Those of the drives' media.
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

    /// Kills the process that uses the drives, which keep power: what was queued happens whole, in any
    /// order, or never reached its drive, and nobody learns of it. Old handles are dead from now on.
    pub fn kill(&self, rng: &mut Rng) {
        let queued = self.forget_process();
        self.reach_some(queued, rng);
        for slot in self.slots.borrow_mut().iter_mut() {
            (slot.fault, slot.slow_until) = (None, 0);
        }
    }

    /// Commands of a process that was killed reach their drives, in any order, or never do.
    fn reach_some(&self, mut queued: Vec<Queued>, rng: &mut Rng) {
        rng.shuffle(&mut queued);
        let reached_of_four = rng.below(5);
        let mut slots = self.slots.borrow_mut();
        for Queued { bay, command, process, .. } in queued {
            if rng.chance(reached_of_four, 4) && self.reaches(process, bay) {
                slots[bay].execute(command);
            }
        }
    }

    /// As [`Wire::kill`], and then every drive is shut down in good order and started again.
    ///
    /// # Errors
    /// Those of the drives' media.
    pub fn shut_down(&self, rng: &mut Rng) -> io::Result<()> {
        self.kill(rng);
        self.slots.borrow_mut().iter_mut().try_for_each(|slot| slot.ssd.shut_down())
    }

    /// Cuts all processes off; gives what they had queued.
    fn forget_process(&self) -> Vec<Queued> {
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
        let appended = Landed::blocks(&command);
        self.landed.forget(&command);
        let done = self.ssd.execute(command);
        if done.result.is_ok() {
            let (zone, place) = self.geometry.locate(done.lba);
            (place..).zip(appended).for_each(|(place, block)| self.landed.note(zone, block, place));
        }
        done
    }
}

/// Whether a command is to change something on the drive.
fn changes(command: &Command) -> bool {
    !matches!(command, Command::Read { .. } | Command::Report { .. } | Command::Flush)
}

/// A drive whose commands wait until the world picks them.
pub struct QueuedDrive {
    wire: Rc<Wire>,
    bay: Bay,
    geometry: Geometry,
    process: u64,
}

impl ZonedDevice for QueuedDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn power_epoch(&self) -> Option<u64> {
        self.wire.slots.borrow()[self.bay].ssd.power_epoch()
    }

    fn submit(&self, command: Command) -> Completion {
        let wire = &self.wire;
        let mut state = wire.state.borrow_mut();
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
        let (completer, completion) = wire.pairs.pair();
        let mut queued = wire.queued.borrow_mut();
        assert!(
            queued.len() < MOST_QUEUED,
            "{MOST_QUEUED} commands are in flight at once; this is one more of process {}: drive{} {}",
            self.process,
            self.bay,
            describe(&command)
        );
        queued.push(Queued { bay: self.bay, process: self.process, command, completer, not_before });
        completion
    }
}

/// A command in a line of the trace.
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
