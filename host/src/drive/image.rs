//! The emulated drive in an image file.
//!
//! It has no timing of its own: a command takes as long as the read or write of the file, and completes at once. A
//! drive slowed down by `zoneraid emulate fault` completes later: each command takes a multiple of its real time, one
//! after the other. Other drives are not held up.

use crate::reactor::Reactor;
use emu::ssd::{EmulatedDrive, ImageError};
use engine::device::{Command, Completion, DriveId, Geometry, Slots, ZonedDevice};
use std::{
    cell::Cell,
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

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

    /// The delay of a command that took `took` on a drive slowed down by `factor`.
    fn delay(&self, took: Duration, factor: u32) -> Duration {
        let now = Instant::now();
        let begun = self.free.get().map_or(now, |free| free.max(now));
        let free = begun + took.saturating_mul(factor - 1);
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
        let begun = self.slow().map(|_| Instant::now());
        let completion = self.drive.submit(command);
        let (Some(begun), Some(factor)) = (begun, self.slow()) else { return completion };
        let delay = self.delay(begun.elapsed(), factor);
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
