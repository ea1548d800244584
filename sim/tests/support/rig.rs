//! Drives under control of a test: a rule holds commands back or fails them.

use emu::{
    rng::Rng,
    ssd::{Cut, Fault, Ssd},
};
use engine::{
    array::Drive,
    device::{Command, Completer, Completion, DeviceError, Geometry, Slots, Status, ZonedDevice},
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    mem,
    rc::Rc,
};

/// Treatment of a command.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// It is executed at once.
    Pass,
    /// It is neither executed nor completed until it is released.
    Hold,
    /// It is not executed, and completes with an internal error.
    Fail,
    /// It is not executed, and completes with an error that concerns one zone.
    Refuse,
    /// It completes with a timeout at once, and is executed when it is released.
    Late,
    /// It is not executed, and completes with an unrecovered read error.
    Unreadable,
    /// It is not executed, and completes with the error of an offline zone.
    Offline,
}

impl Act {
    pub fn hold_if(hold: bool) -> Act {
        if hold { Act::Hold } else { Act::Pass }
    }
}

type Rule = Box<dyn Fn(usize, &Command) -> Act>;

/// Drives, numbered from 0, and the rule that all of them follow; at first all commands pass.
pub struct Rig {
    rule: RefCell<Rule>,
    held: RefCell<Vec<(usize, Command, Completer)>>,
    slots: Rc<Slots>,
    ssds: RefCell<Vec<Rc<RefCell<Ssd>>>>,
}

struct RigDrive {
    rig: Rc<Rig>,
    number: usize,
    ssd: Rc<RefCell<Ssd>>,
    geometry: Geometry,
}

impl ZonedDevice for RigDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn power_epoch(&self) -> Option<u64> {
        self.ssd.borrow().power_epoch()
    }

    fn submit(&self, command: Command) -> Completion {
        let act = (self.rig.rule.borrow())(self.number, &command);
        match act {
            Act::Pass => Completion::ready(self.ssd.borrow_mut().execute(command)),
            Act::Fail => Completion::failed(Status::InternalError),
            Act::Refuse => Completion::failed(Status::WriteFault),
            Act::Unreadable => Completion::failed(Status::UnrecoveredReadError),
            Act::Offline => Completion::failed(Status::ZoneIsOffline),
            Act::Late => {
                let (completer, _) = self.rig.slots.pair();
                self.rig.held.borrow_mut().push((self.number, command, completer));
                Completion::failed(DeviceError::Timeout)
            }
            Act::Hold => {
                let (completer, completion) = self.rig.slots.pair();
                self.rig.held.borrow_mut().push((self.number, command, completer));
                completion
            }
        }
    }
}

impl Rig {
    pub fn new() -> Rc<Rig> {
        Rc::new(Rig {
            rule: RefCell::new(Box::new(|_, _| Act::Pass)),
            held: RefCell::default(),
            slots: Rc::default(),
            ssds: RefCell::default(),
        })
    }

    /// Adds a blank drive, with the next number.
    pub fn drive(self: &Rc<Rig>, geometry: &Geometry) -> Drive {
        let ssd = Rc::new(RefCell::new(Ssd::in_memory(geometry)));
        let number = self.ssds.borrow().len();
        self.ssds.borrow_mut().push(ssd.clone());
        let device = RigDrive { rig: self.clone(), number, ssd, geometry: geometry.clone() };
        Drive { name: format!("drive{number}"), device: Rc::new(device) }
    }

    /// Sets the rule for all further commands, by drive number and command.
    pub fn rule(&self, rule: impl Fn(usize, &Command) -> Act + 'static) {
        *self.rule.borrow_mut() = Box::new(rule);
    }

    /// Makes these blocks of drives unreadable, by drive number.
    pub fn hide(&self, bad: Vec<(usize, BTreeSet<u64>)>) {
        self.rule(move |drive, command| match command {
            Command::Read { lba, data, .. }
                if bad.iter().any(|(of, blocks)| {
                    *of == drive && blocks.range(lba.0..lba.0 + data.blocks()).next().is_some()
                }) =>
            {
                Act::Unreadable
            }
            _ => Act::Pass,
        });
    }

    /// Executes the next `commands` commands that change a drive, and holds all after them; the returned cell tells
    /// whether any was held.
    pub fn hold_after(&self, commands: usize) -> Rc<Cell<bool>> {
        self.hold_after_but(commands, |_, _| false)
    }

    /// As [`Rig::hold_after`], but commands that `refuses` selects are refused and do not count.
    pub fn hold_after_but(
        &self,
        commands: usize,
        refuses: impl Fn(usize, &Command) -> bool + 'static,
    ) -> Rc<Cell<bool>> {
        let (left, held) = (Cell::new(commands), Rc::new(Cell::new(false)));
        let told = held.clone();
        self.rule(move |drive, command| match command {
            _ if refuses(drive, command) => Act::Refuse,
            Command::Read { .. } | Command::Report { .. } => Act::Pass,
            _ if left.get() == 0 => {
                told.set(true);
                Act::Hold
            }
            _ => {
                left.set(left.get() - 1);
                Act::Pass
            }
        });
        held
    }

    /// Number of held commands.
    pub fn held(&self) -> usize {
        self.held.borrow().len()
    }

    /// Executes the held commands that are `chosen`, by position and command; returns their number.
    pub fn release(&self, chosen: impl Fn(usize, &Command) -> bool) -> usize {
        let held = mem::take(&mut *self.held.borrow_mut());
        let mut released = 0;
        for (position, (number, command, completer)) in held.into_iter().enumerate() {
            if chosen(position, &command) {
                let ssd = self.ssds.borrow()[number].clone();
                let done = ssd.borrow_mut().execute(command);
                completer.complete(done);
                released += 1;
            } else {
                self.held.borrow_mut().push((number, command, completer));
            }
        }
        released
    }

    /// Executes the first `blocks` blocks of each held write; all held commands are dropped without completion.
    pub fn tear(&self, blocks: u64) {
        for (number, command, _) in mem::take(&mut *self.held.borrow_mut()) {
            if let Command::Write { lba, data, fua, .. } = command {
                let torn = Command::write(lba, data.slice_blocks(0..blocks), fua);
                assert_eq!(self.ssds.borrow()[number].borrow_mut().execute(torn).result, Ok(()));
            }
        }
    }

    /// Adds a copy of a drive with its present contents, with the next number.
    pub fn copy(self: &Rc<Rig>, drive: usize) -> Drive {
        let ssd = self.ssds.borrow()[drive].borrow().copy().unwrap();
        let (number, geometry) = (self.ssds.borrow().len(), ssd.geometry().clone());
        let ssd = Rc::new(RefCell::new(ssd));
        self.ssds.borrow_mut().push(ssd.clone());
        let device = RigDrive { rig: self.clone(), number, ssd, geometry };
        Drive { name: format!("drive{number}"), device: Rc::new(device) }
    }

    /// Drops all held commands: they are never executed, and complete as those of a vanished drive.
    pub fn drop_held(&self) {
        self.held.borrow_mut().clear();
    }

    /// Blocks from the start of a drive's zone to its write pointer.
    pub fn written(&self, drive: usize, zone: ZoneIndex) -> u64 {
        self.ssds.borrow()[drive].borrow().zones().info(zone).wp_blocks
    }

    /// Makes all drives drop the contents of a ZRWA when its zone is finished.
    pub fn drop_at_finish(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().drop_at_finish());
    }

    /// Makes all drives fail reads of unwritten blocks.
    pub fn fail_unwritten(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().fail_unwritten());
    }

    /// On all drives, makes FUA cover only the blocks of the write itself.
    pub fn let_fua_stand_alone(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().let_fua_stand_alone());
    }

    /// Injects a fault into a drive, by number.
    pub fn damage(&self, drive: usize, fault: Fault) {
        self.ssds.borrow()[drive].borrow_mut().faults().after(0, fault);
    }

    /// The stored data and metadata of a block of a drive; `None` if it is unwritten.
    pub fn stored(&self, drive: usize, lba: Lba) -> Option<Vec<u8>> {
        self.ssds.borrow()[drive].borrow_mut().stored(lba).unwrap()
    }

    /// Replaces the data and metadata of a block of a drive, or makes it unwritten, without an error.
    pub fn forge(&self, drive: usize, lba: Lba, bytes: Option<&[u8]>) {
        self.ssds.borrow()[drive].borrow_mut().forge(lba, bytes).unwrap();
    }

    /// Shuts all drives down in an orderly way and starts them again.
    pub fn shut_down(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().shut_down().unwrap());
    }

    /// Makes all drives report no power epochs.
    pub fn hide_power_epochs(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().hide_power_epoch());
    }

    /// Power-cycles one drive, while the host and the other drives keep running.
    pub fn cut_power_of(&self, drive: usize, cut: Cut) {
        self.ssds.borrow()[drive].borrow_mut().power_cut(&[], &mut Rng::new(1), cut).unwrap();
    }

    /// Power-cycles all drives, with the `cut` for each number. Held commands are lost, and the rule is cleared.
    pub fn cut_power(&self, rng: &mut Rng, cut: impl Fn(usize) -> Cut) {
        self.held.borrow_mut().clear();
        self.rule(|_, _| Act::Pass);
        for (number, ssd) in self.ssds.borrow().iter().enumerate() {
            ssd.borrow_mut().power_cut(&[], rng, cut(number)).unwrap();
        }
    }
}
