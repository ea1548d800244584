//! Drives without latency: the emulated SSD, and a null drive.

use super::{
    ailments::{AilmentFile, hex},
    emulated::Ssd,
    image::{ImageError, ImageMedia},
    model::Model,
};
use engine::device::{Command, Completion, Done, DriveId, Geometry, Status, ZonedDevice};
use std::{cell::RefCell, path::Path, rc::Rc};

/// An emulated SSD that executes every command when it is submitted. Clones are the same drive.
#[derive(Clone)]
pub struct EmulatedDrive {
    geometry: Geometry,
    ssd: Rc<RefCell<Ssd>>,
    drive_id: DriveId,
}

impl EmulatedDrive {
    /// A drive around `ssd`, which may be shared, for example to cut its power.
    pub fn new(ssd: Rc<RefCell<Ssd>>) -> EmulatedDrive {
        let geometry = ssd.borrow().geometry().clone();
        let drive_id = DriveId { size_bytes: geometry.size_bytes(), ..DriveId::default() };
        EmulatedDrive { geometry, ssd, drive_id }
    }

    /// A blank drive in memory.
    pub fn in_memory(geometry: &Geometry) -> EmulatedDrive {
        EmulatedDrive::new(Rc::new(RefCell::new(Ssd::in_memory(geometry))))
    }

    /// A blank drive of this model in a new image file.
    ///
    /// # Errors
    /// A file of this name exists, or it cannot be created.
    pub fn create_image(path: &Path, model: &Model, uuid: [u8; 16]) -> Result<EmulatedDrive, ImageError> {
        EmulatedDrive::in_file(path, ImageMedia::create(path, model, uuid)?)
    }

    /// The drive in an image file, as after a power cycle.
    ///
    /// # Errors
    /// The image does not exist, is damaged, of another version, or in use.
    pub fn open_image(path: &Path) -> Result<EmulatedDrive, ImageError> {
        EmulatedDrive::in_file(path, ImageMedia::open(path)?)
    }

    /// As [`EmulatedDrive::open_image`], read-only. Commands that would change the image fail.
    ///
    /// # Errors
    /// The image does not exist, is damaged, of another version, or in use.
    pub fn open_image_to_read(path: &Path) -> Result<EmulatedDrive, ImageError> {
        EmulatedDrive::in_file(path, ImageMedia::open_to_read(path)?)
    }

    /// As [`EmulatedDrive::open_image`], read-only and without a lock: another process may be running the drive.
    /// Commands that would change the image fail.
    ///
    /// # Errors
    /// The image does not exist, is damaged, or of another version.
    pub fn look_at_image(path: &Path) -> Result<EmulatedDrive, ImageError> {
        EmulatedDrive::in_file(path, ImageMedia::look(path)?)
    }

    fn in_file(path: &Path, image: ImageMedia) -> Result<EmulatedDrive, ImageError> {
        let (uuid, file) = (*image.uuid(), image.file());
        let drive = EmulatedDrive::from_image(image);
        let ailing = AilmentFile::beside(path, &uuid).and_then(|ailments| ailments.watch(file?));
        ailing.and_then(|file| drive.ssd.borrow_mut().suffer_from(file)).map_err(|e| ImageError {
            path: path.display().to_string(),
            problem: format!("its file of faults cannot be read: {e}"),
        })?;
        Ok(drive)
    }

    /// The drive in an image that is open already, without injected faults.
    pub fn from_image(image: ImageMedia) -> EmulatedDrive {
        let geometry = image.model().geometry.clone();
        let (model, serial) = (image.model().name.clone(), serial_of(image.uuid()));
        let mut drive = EmulatedDrive::new(Rc::new(RefCell::new(Ssd::new(geometry, Box::new(image)))));
        drive.drive_id = DriveId { model, serial, ..drive.drive_id };
        drive
    }

    /// The SSD itself.
    pub fn ssd(&self) -> &Rc<RefCell<Ssd>> {
        &self.ssd
    }
}

/// The serial number of a drive in an image with this UUID: its first four bytes.
pub fn serial_of(uuid: &[u8; 16]) -> String {
    hex(&uuid[..4])
}

impl ZonedDevice for EmulatedDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn power_epoch(&self) -> Option<u64> {
        self.ssd.borrow().power_epoch()
    }

    fn drive_id(&self) -> DriveId {
        self.drive_id.clone()
    }

    fn submit(&self, command: Command) -> Completion {
        Completion::ready(self.ssd.borrow_mut().execute(command))
    }
}

/// A drive that accepts every command and stores nothing: reads leave the buffer unchanged, and there are no zones to
/// report. It serves to measure the cost of the layers above it.
pub struct NullDrive {
    geometry: Geometry,
}

impl NullDrive {
    /// A drive that reports this geometry.
    pub fn new(geometry: Geometry) -> NullDrive {
        NullDrive { geometry }
    }
}

impl ZonedDevice for NullDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        Completion::ready(match command {
            Command::Read { data, oob, .. } | Command::Write { data, oob, .. } => {
                Done { data, oob, ..Done::ok() }
            }
            Command::Append { .. } => Done::error(Status::InvalidOpcode.into()),
            _ => Done::ok(),
        })
    }
}
