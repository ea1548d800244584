//! Emulated drives with a command queue, which can lose power and be lost.
//!
//! A [`QueuedDrive`] holds commands back until [`QueuedDrive::step`] executes one of them, picked at random: NVMe does
//! not guarantee an order either. So there are always commands in flight that a power cut can tear.

use super::source::no_temporary_files;
use anyhow::{Context, Result};
use emu::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Fault, ImageMedia, Model},
};
use engine::{
    array::Drive,
    buf::BLOCK,
    device::{Command, Completer, Completion, Geometry, Slots, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    os::unix::fs::PermissionsExt,
    rc::Rc,
};

/// An emulated drive with a command queue.
pub struct QueuedDrive {
    drive: EmulatedDrive,
    slots: Rc<Slots>,
    /// In the order of submission.
    queue: RefCell<Vec<(Command, Completer)>>,
    /// By zone: bit map of the blocks written since the last reset.
    written: RefCell<Vec<Vec<u64>>>,
    flash_blocks: Cell<u64>,
}

impl QueuedDrive {
    fn new(drive: EmulatedDrive) -> QueuedDrive {
        QueuedDrive {
            drive,
            slots: Rc::default(),
            queue: RefCell::default(),
            written: RefCell::default(),
            flash_blocks: Cell::new(0),
        }
    }

    /// Executes one queued command; `false` if there is none.
    fn step(&self, rng: &mut Rng) -> bool {
        let (command, completer) = {
            let mut queue = self.queue.borrow_mut();
            if queue.is_empty() {
                return false;
            }
            let next = rng.below(queue.len() as u64) as usize;
            queue.remove(next)
        };
        let (mut zone_written, mut reset) = (None, None);
        match &command {
            Command::Write { lba, data, .. } => zone_written = Some((*lba, data.blocks())),
            Command::Append { data, .. } => zone_written = Some((Lba(u64::MAX), data.blocks())),
            Command::Reset { zones } => reset = Some(*zones),
            _ => {}
        }
        let done = self.drive.ssd().borrow_mut().execute(command);
        if done.result.is_ok() {
            if let Some((lba, blocks)) = zone_written {
                self.count(if lba == Lba(u64::MAX) { done.lba } else { lba }, blocks);
            }
            match reset {
                Some(Zones::One(zone)) => {
                    self.written.borrow_mut().iter_mut().skip(zone.0 as usize).take(1).for_each(Vec::clear)
                }
                Some(Zones::All) => self.written.borrow_mut().clear(),
                None => {}
            }
        }
        completer.complete(done);
        true
    }

    /// Counts the blocks from `lba` on that are written for the first time since the reset of the zone.
    fn count(&self, lba: Lba, blocks: u64) {
        let (zone, offset) = self.drive.geometry().locate(lba);
        let mut written = self.written.borrow_mut();
        if written.len() <= zone.0 as usize {
            written.resize(zone.0 as usize + 1, Vec::new());
        }
        let bits = &mut written[zone.0 as usize];
        bits.resize(bits.len().max((offset + blocks).div_ceil(64) as usize), 0);
        for block in offset..offset + blocks {
            let (word, bit) = (&mut bits[block as usize / 64], 1 << (block % 64));
            self.flash_blocks.set(self.flash_blocks.get() + u64::from(*word & bit == 0));
            *word |= bit;
        }
    }

    /// Cuts the power: queued commands are executed, executed in part, or dropped. Returns their number.
    fn cut(&self, rng: &mut Rng) -> Result<usize> {
        let waiting = std::mem::take(&mut *self.queue.borrow_mut());
        let commands: Vec<Command> = waiting.iter().map(|(command, _)| command.clone()).collect();
        let cut = Cut { cache_lost: true, zrwa_lost: false };
        let result = self.drive.ssd().borrow_mut().power_cut(&commands, rng, cut);
        result.context("the image of an emulated drive cannot be written")?;
        Ok(commands.len())
    }
}

impl ZonedDevice for QueuedDrive {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        let (completer, completion) = self.slots.pair();
        self.queue.borrow_mut().push((command, completer));
        completion
    }
}

/// The drives of the demo, and the random generator for their faults.
pub struct DemoRig {
    model: Model,
    rng: RefCell<Rng>,
    /// By role; `None` for a lost drive.
    drives: RefCell<Vec<Option<Rc<QueuedDrive>>>>,
}

impl DemoRig {
    /// Creates `count` blank drives.
    pub fn new(model: Model, count: usize, seed: u64) -> Result<DemoRig> {
        let rng = RefCell::new(Rng::new(seed));
        let rig = DemoRig { model, rng, drives: RefCell::default() };
        for _ in 0..count {
            let drive = rig.make()?;
            rig.drives.borrow_mut().push(Some(drive));
        }
        Ok(rig)
    }

    /// A blank drive in an unlinked file, which no other process can open and which disappears with this one, however
    /// that ends.
    fn make(&self) -> Result<Rc<QueuedDrive>> {
        let private = std::fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(private).tempdir().with_context(no_temporary_files)?;
        let path = dir.path().join("drive.img");
        let image = ImageMedia::create(&path, &self.model, crate::process::output::new_uuid()?)?;
        dir.close().context("a temporary directory cannot be removed")?;
        Ok(Rc::new(QueuedDrive::new(EmulatedDrive::from_image(image))))
    }

    /// Draws a number below `n` from the seed.
    pub fn draw(&self, n: u64) -> u64 {
        self.rng.borrow_mut().below(n)
    }

    /// The drives that are not lost, as members for the engine.
    pub fn members(&self) -> Vec<Drive> {
        let drives = self.drives.borrow();
        let there = drives.iter().enumerate().filter_map(|(role, drive)| drive.clone().map(|d| (role, d)));
        there.map(|(role, device)| Drive { name: format!("drive {role}"), device }).collect()
    }

    /// Executes a queued command on one of the drives; `false` if all queues are empty.
    pub fn step(&self) -> bool {
        let drives = self.drives.borrow();
        let mut rng = self.rng.borrow_mut();
        let first = rng.below(drives.len() as u64) as usize;
        let order = (first..drives.len()).chain(0..first);
        order.into_iter().any(|role| drives[role].as_ref().is_some_and(|drive| drive.step(&mut rng)))
    }

    /// Cuts the power of all drives at once; gives the number of commands in flight.
    pub fn cut(&self) -> Result<usize> {
        let mut rng = self.rng.borrow_mut();
        self.drives.borrow().iter().flatten().map(|drive| drive.cut(&mut rng)).sum()
    }

    /// Loses the drive in `role`.
    pub fn lose(&self, role: usize) {
        if let Some(place) = self.drives.borrow_mut().get_mut(role) {
            *place = None;
        }
    }

    /// Puts a blank drive in the place of a lost one.
    pub fn replace(&self, role: usize) -> Result<Drive> {
        let device = self.make()?;
        let mut drives = self.drives.borrow_mut();
        *drives.get_mut(role).context("there is no such drive")? = Some(device.clone());
        Ok(Drive { name: format!("drive {role} (new)"), device })
    }

    /// Flips a bit, drawn from the seed, of block `at` of a zone of the array on the drive in `role`.
    pub fn flip(&self, role: usize, zone: u64, at: u64) {
        let bit = self.draw(BLOCK as u64 * 8) as u32;
        if let Some(Some(drive)) = self.drives.borrow().get(role) {
            // The first two zones hold metadata.
            let lba = Lba(drive.geometry().start(ZoneIndex(zone as u32 + 2)).0 + at);
            drive.drive.ssd().borrow_mut().faults().after(0, Fault::Corrupt { lba, bit });
        }
    }

    /// Bytes written to flash on the drives that are not lost. A block that is overwritten inside a ZRWA counts once;
    /// blocks that a drive moves internally do not count.
    pub fn flash_bytes(&self) -> u64 {
        self.drives.borrow().iter().flatten().map(|drive| drive.flash_blocks.get() * BLOCK as u64).sum()
    }

    /// Runs `future` on `runtime` while the drives execute commands.
    pub fn wait<T>(&self, runtime: &Runtime, future: impl Future<Output = T>) -> Result<T> {
        runtime.block_on(future, || self.step()).context("the array does not answer any more")
    }
}
