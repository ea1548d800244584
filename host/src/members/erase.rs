//! Progress of drives that are being emptied: the number of zones that have been reset.

use super::OpenDrive;
use crate::process::output::Output;
use engine::{
    array::Drive,
    device::{Command, Completion, DriveId, Geometry, Slots, ZonedDevice, Zones},
    runtime::Runtime,
};
use indicatif::ProgressBar;
use std::{cell::Cell, rc::Rc};

/// A progress bar for drives that are being emptied; removed from the screen when dropped.
pub struct EraseBar(ProgressBar);

impl EraseBar {
    /// Starts the progress of `drives`, none of which is emptied yet.
    pub fn new(output: Output, drives: &[OpenDrive]) -> EraseBar {
        let zones = drives.iter().map(|drive| u64::from(drive.device.geometry().zones)).sum();
        EraseBar(output.steps("emptying", zones))
    }

    /// The drive for the engine; its resets advance the bar.
    pub fn drive(&self, drive: &OpenDrive) -> Drive {
        self.watched(drive.drive(), &drive.runtime)
    }

    fn watched(&self, Drive { name, device }: Drive, runtime: &Runtime) -> Drive {
        let (shown, runtime) =
            (Rc::new(EraseProgress { bar: self.0.clone(), zones: Cell::new(0) }), runtime.clone());
        Drive { name, device: Rc::new(ErasedDrive { device, shown, runtime, slots: Rc::default() }) }
    }
}

impl Drop for EraseBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Zones of a drive that the bar has counted as reset.
struct EraseProgress {
    bar: ProgressBar,
    zones: Cell<u64>,
}

/// A drive whose resets advance a progress bar.
struct ErasedDrive {
    device: Rc<dyn ZonedDevice>,
    shown: Rc<EraseProgress>,
    runtime: Runtime,
    slots: Rc<Slots>,
}

impl ZonedDevice for ErasedDrive {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn power_epoch(&self) -> Option<u64> {
        self.device.power_epoch()
    }

    fn submit(&self, command: Command) -> Completion {
        let Command::Reset { zones } = command else { return self.device.submit(command) };
        let all = u64::from(self.geometry().zones);
        let (completer, completion) = self.slots.pair();
        let (asked, shown) = (self.device.submit(command), self.shown.clone());
        self.runtime.spawn(async move {
            let done = asked.await;
            let before = shown.zones.get();
            let after = if zones == Zones::All { all } else { all.min(before + 1) };
            shown.zones.set(after);
            shown.bar.inc(after - before);
            completer.complete(done);
        });
        completion
    }

    fn drive_id(&self) -> DriveId {
        self.device.drive_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::Reactor;
    use emu::ssd::{EmulatedDrive, Model};
    use engine::owner::make_blank;

    #[test]
    fn erase_progress_ends_at_last_zone_of_drives() {
        let (reactor, erasing) = (Reactor::default(), EraseBar(ProgressBar::hidden()));
        let with = Model::zn540().scaled(24, 1024).geometry;
        let without = Geometry { zrwa: None, ..with.clone() };
        for (drives, geometry) in [(1, &with), (2, &without), (3, &with)] {
            let device = Rc::new(EmulatedDrive::in_memory(geometry));
            let drive = Drive { name: "drive".into(), device: device.clone() };
            reactor.wait(make_blank(&erasing.watched(drive, reactor.runtime()))).unwrap().unwrap();
            assert_eq!(erasing.0.position(), drives * 24);
        }
    }
}
