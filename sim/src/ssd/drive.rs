//! Drives that answer at once: the emulated SSD, and one that does nothing.

use super::{ImageError, ImageMedia, Model, Ssd};
use engine::{
    device::{Command, Completion, Done, Geometry, Status, ZonedDevice, Zones},
    zone::{Lba, ZoneTable},
};
use std::{cell::RefCell, path::Path, rc::Rc};

/// An emulated SSD that carries every command out when it is submitted. Clones are the same drive.
#[derive(Clone)]
pub struct EmulatedDrive {
    geometry: Geometry,
    ssd: Rc<RefCell<Ssd>>,
}

impl EmulatedDrive {
    /// A drive around `ssd`, which others may hold too, to cut its power for example.
    pub fn new(ssd: Rc<RefCell<Ssd>>) -> EmulatedDrive {
        let geometry = ssd.borrow().geometry().clone();
        EmulatedDrive { geometry, ssd }
    }

    /// A blank drive in memory.
    pub fn in_memory(geometry: &Geometry) -> EmulatedDrive {
        EmulatedDrive::new(Rc::new(RefCell::new(Ssd::in_memory(geometry))))
    }

    /// A blank drive of this model in a new image file.
    ///
    /// # Errors
    /// When there is a file of this name, or it cannot be made.
    pub fn create_image(path: &Path, model: &Model, uuid: [u8; 16]) -> Result<EmulatedDrive, ImageError> {
        Ok(EmulatedDrive::from_image(ImageMedia::create(path, model, uuid)?))
    }

    /// The drive in an image file, as if its power had returned.
    ///
    /// # Errors
    /// When there is none, it is damaged, of another version, or in use.
    pub fn open_image(path: &Path) -> Result<EmulatedDrive, ImageError> {
        Ok(EmulatedDrive::from_image(ImageMedia::open(path)?))
    }

    /// The drive in an image that is open already.
    pub fn from_image(image: ImageMedia) -> EmulatedDrive {
        let geometry = image.model().geometry.clone();
        EmulatedDrive::new(Rc::new(RefCell::new(Ssd::new(geometry, Box::new(image)))))
    }

    /// The SSD itself.
    pub fn ssd(&self) -> &Rc<RefCell<Ssd>> {
        &self.ssd
    }
}

impl ZonedDevice for EmulatedDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        Completion::ready(self.ssd.borrow_mut().execute(command))
    }
}

/// A drive that keeps every rule at no cost and stores nothing: reads leave the buffer as it was.
/// It is there to find out what the layers above it cost.
pub struct NullDrive {
    geometry: Geometry,
    table: RefCell<ZoneTable>,
}

impl NullDrive {
    /// A drive of this shape, with all zones empty.
    pub fn new(geometry: Geometry) -> NullDrive {
        let table = RefCell::new(ZoneTable::new(&geometry));
        NullDrive { geometry, table }
    }
}

impl ZonedDevice for NullDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        let mut table = self.table.borrow_mut();
        let mut done = Done::ok();
        let result = match command {
            Command::Read { lba, data, oob } => {
                let result = table.check_read(lba, data.blocks());
                (done.data, done.oob) = (data, oob);
                result
            }
            Command::Write { lba, data, oob, .. } => {
                let result = table.write(lba, data.blocks()).map(|_| ());
                (done.data, done.oob) = (data, oob);
                result
            }
            Command::Append { zone, data, oob, .. } => {
                let result = table.append(zone, data.blocks());
                (done.data, done.oob) = (data, oob);
                result.map(|effect| done.lba = Lba(self.geometry.start(zone).0 + effect.offset_blocks))
            }
            Command::Flush => Ok(()),
            Command::Report { first, count } => table.report(first, count).map(|zones| done.zones = zones),
            Command::FlushZrwa { last } => table.flush_zrwa(last).map(|_| ()),
            Command::Open { zones: Zones::One(zone), zrwa } => table.open(zone, zrwa),
            Command::Open { zones: Zones::All, zrwa: true } => Err(Status::InvalidField),
            Command::Open { zones: Zones::All, zrwa: false } => table.open_all(),
            Command::Close { zones: Zones::One(zone) } => table.close(zone),
            Command::Close { zones: Zones::All } => {
                table.close_all();
                Ok(())
            }
            Command::Finish { zones: Zones::One(zone) } => table.finish(zone),
            Command::Finish { zones: Zones::All } => {
                table.finish_all(|_| ());
                Ok(())
            }
            Command::Reset { zones: Zones::One(zone) } => table.reset(zone),
            Command::Reset { zones: Zones::All } => {
                table.reset_all(|_| ());
                Ok(())
            }
        };
        done.result = result.map_err(Into::into);
        Completion::ready(done)
    }
}
