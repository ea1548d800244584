//! The emulated drive in an image file.
//!
//! It has no timing of its own: a command takes as long as the read or write of the file, and completes at once. A
//! drive slowed down by `zoneraid emulate fault` completes later, one command after the other: each takes a multiple of
//! a nominal time, which does not depend on the load of the machine. Other drives are not held up.

use crate::reactor::Reactor;
use emu::ssd::{EmulatedDrive, ImageError};
use engine::{
    buf::BLOCK,
    device::{Command, Completion, DriveId, Geometry, Slots, ZonedDevice},
};
use std::{
    cell::Cell,
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

/// Nominal time of a command without its data.
const COMMAND: Duration = Duration::from_micros(10);

/// Nominal time of each block of data.
const BLOCK_OF_DATA: Duration = Duration::from_micros(1);

/// An emulated drive.
pub struct ImageDrive {
    drive: EmulatedDrive,
    reactor: Reactor,
    slots: Rc<Slots>,
    /// Time at which a slowed-down drive will have completed all commands submitted so far.
    free: Cell<Option<Instant>>,
}

impl ImageDrive {
    /// Opens and locks the image at `path`.
    pub fn open(reactor: &Reactor, path: &Path) -> Result<ImageDrive, ImageError> {
        Ok(ImageDrive::of(reactor, EmulatedDrive::open_image(path)?))
    }

    /// Opens and locks the image at `path` read-only.
    pub fn open_to_read(reactor: &Reactor, path: &Path) -> Result<ImageDrive, ImageError> {
        Ok(ImageDrive::of(reactor, EmulatedDrive::open_image_to_read(path)?))
    }

    /// Opens the image at `path` read-only, also while it is in use.
    pub fn look(reactor: &Reactor, path: &Path) -> Result<ImageDrive, ImageError> {
        Ok(ImageDrive::of(reactor, EmulatedDrive::look_at_image(path)?))
    }

    fn of(reactor: &Reactor, drive: EmulatedDrive) -> ImageDrive {
        ImageDrive { drive, reactor: reactor.clone(), slots: Rc::default(), free: Cell::new(None) }
    }

    /// The factor by which commands are slowed down, if they are.
    fn slow(&self) -> Option<u32> {
        self.drive.ssd().borrow_mut().faults().slow()
    }

    /// The delay of a command that nominally takes `nominal` on a drive slowed down by `factor`.
    fn delay(&self, nominal: Duration, factor: u32) -> Duration {
        let now = Instant::now();
        let begun = self.free.get().map_or(now, |free| free.max(now));
        let free = begun + nominal.saturating_mul(factor - 1);
        self.free.set(Some(free));
        free - now
    }
}

impl ZonedDevice for ImageDrive {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn power_epoch(&self) -> Option<u64> {
        self.drive.power_epoch()
    }

    fn drive_id(&self) -> DriveId {
        self.drive.drive_id()
    }

    fn submit(&self, command: Command) -> Completion {
        let nominal = nominal(&command);
        let completion = self.drive.submit(command);
        let Some(factor) = self.slow() else { return completion };
        let delay = self.delay(nominal, factor);
        let Ok(ring) = self.reactor.ring() else {
            // Without a ring there is no timer: the thread sleeps.
            std::thread::sleep(delay);
            return completion;
        };
        let (completer, later) = self.slots.pair();
        let sleep = ring.sleep(delay);
        self.reactor.runtime().spawn(async move {
            sleep.await;
            completer.complete(completion.await);
        });
        later
    }
}

/// Nominal time of a command.
fn nominal(command: &Command) -> Duration {
    let blocks = match command {
        Command::Read { data, .. } | Command::Write { data, .. } | Command::Append { data, .. } => {
            data.len() / BLOCK
        }
        _ => 0,
    };
    COMMAND + BLOCK_OF_DATA * blocks as u32
}
