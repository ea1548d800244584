//! Drives under control of a script: a rule holds commands back or fails them.

use engine::{
    array::Drive,
    device::{Command, Completer, Completion, DeviceError, Geometry, Slots, Status, ZonedDevice},
    zone::ZoneIndex,
};
use sim::{
    rng::Rng,
    ssd::{Cut, Fault, Ssd},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    mem,
    rc::Rc,
};

/// What becomes of a command.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// It is carried out at once.
    Pass,
    /// It is neither carried out nor answered until it is released.
    Hold,
    /// It is not carried out, and its answer is an error.
    Fail,
    /// It is not carried out, and its answer is an error that is about one zone.
    Refuse,
    /// The host gives up on it, and it is carried out when it is released.
    Late,
    /// It is not carried out, and the answer is that a block cannot be read.
    Unreadable,
    /// It is not carried out, and the answer is that the zone is lost.
    Offline,
}

impl Act {
    pub fn hold_if(hold: bool) -> Act {
        if hold { Act::Hold } else { Act::Pass }
    }
}

type Rule = Box<dyn Fn(usize, &Command) -> Act>;

/// Some drives, numbered from 0, and the rule that all of them follow; at first, everything passes.
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

    /// One more blank drive; it gets the next number.
    pub fn drive(self: &Rc<Rig>, geometry: &Geometry) -> Drive {
        let ssd = Rc::new(RefCell::new(Ssd::in_memory(geometry)));
        let number = self.ssds.borrow().len();
        self.ssds.borrow_mut().push(ssd.clone());
        let device = RigDrive { rig: self.clone(), number, ssd, geometry: geometry.clone() };
        Drive { name: format!("drive{number}"), device: Rc::new(device) }
    }

    /// Sets the rule for commands from now on, by drive and command.
    pub fn rule(&self, rule: impl Fn(usize, &Command) -> Act + 'static) {
        *self.rule.borrow_mut() = Box::new(rule);
    }

    /// From now on these blocks of drives cannot be read.
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

    /// Carries out so many commands that change a drive and none after that; says whether any was held back.
    pub fn hold_after(&self, commands: usize) -> Rc<Cell<bool>> {
        self.hold_after_but(commands, |_, _| false)
    }

    /// As [`Rig::hold_after`], but for commands that drives refuse, which do not count.
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

    /// How many commands are held back.
    pub fn held(&self) -> usize {
        self.held.borrow().len()
    }

    /// Carries out the held commands that are `chosen`, by position and command; gives
    /// their number.
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

    /// Carries out the first `blocks` blocks of the held writes and nothing else of what is held back, which is never
    /// answered.
    pub fn tear(&self, blocks: u64) {
        for (number, command, _) in mem::take(&mut *self.held.borrow_mut()) {
            if let Command::Write { lba, data, fua, .. } = command {
                let torn = Command::write(lba, data.slice_blocks(0..blocks), fua);
                assert_eq!(self.ssds.borrow()[number].borrow_mut().execute(torn).result, Ok(()));
            }
        }
    }

    /// Another drive, the next one, with all that a drive holds now.
    pub fn copy(self: &Rc<Rig>, drive: usize) -> Drive {
        let ssd = self.ssds.borrow()[drive].borrow().copy().unwrap();
        let (number, geometry) = (self.ssds.borrow().len(), ssd.geometry().clone());
        let ssd = Rc::new(RefCell::new(ssd));
        self.ssds.borrow_mut().push(ssd.clone());
        let device = RigDrive { rig: self.clone(), number, ssd, geometry };
        Drive { name: format!("drive{number}"), device: Rc::new(device) }
    }

    /// Never carries out what is held back: its drives are gone, as far as its senders can tell.
    pub fn drop_held(&self) {
        self.held.borrow_mut().clear();
    }

    /// Blocks from the start of a drive's zone to its write pointer.
    pub fn written(&self, drive: usize, zone: ZoneIndex) -> u64 {
        self.ssds.borrow()[drive].borrow().zones().info(zone).wp_blocks
    }

    /// Makes all drives drop what is in a ZRWA when its zone is finished.
    pub fn drop_at_finish(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().drop_at_finish());
    }

    /// Makes all drives fail reads of unwritten blocks.
    pub fn fail_unwritten(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().fail_unwritten());
    }

    /// Lets writes with FUA make durable what they write and nothing else, on all drives.
    pub fn let_fua_stand_alone(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().let_fua_stand_alone());
    }

    /// Damages a drive, by its number.
    pub fn damage(&self, drive: usize, fault: Fault) {
        self.ssds.borrow()[drive].borrow_mut().faults().after(0, fault);
    }

    /// Shuts all drives down in good order and starts them again.
    pub fn shut_down(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().shut_down().unwrap());
    }

    /// Makes all drives give no evidence of power cuts and resets.
    pub fn hide_power_epochs(&self) {
        self.ssds.borrow().iter().for_each(|ssd| ssd.borrow_mut().hide_power_epoch());
    }

    /// Cuts the power of one drive and brings it back, while the host and the other drives go on.
    pub fn cut_power_of(&self, drive: usize, cut: Cut) {
        self.ssds.borrow()[drive].borrow_mut().power_cut(&[], &mut Rng::new(1), cut).unwrap();
    }

    /// Cuts the power of all drives and brings it back, each with the `cut` for its number. What was
    /// held back is lost, and the rule with it.
    pub fn cut_power(&self, rng: &mut Rng, cut: impl Fn(usize) -> Cut) {
        self.held.borrow_mut().clear();
        self.rule(|_, _| Act::Pass);
        for (number, ssd) in self.ssds.borrow().iter().enumerate() {
            ssd.borrow_mut().power_cut(&[], rng, cut(number)).unwrap();
        }
    }
}
