//! Model and serial number of a drive.

use super::sysfs::{self, Node};
use emu::ssd::{ImageMedia, serial_of};
use engine::device::{self, Geometry};
use std::path::Path;

/// Model and serial number as the drive reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelAndSerial {
    pub model: Option<String>,
    pub serial: Option<String>,
}

impl ModelAndSerial {
    /// Converts the identity stored in a superblock.
    pub fn kept(kept: &device::DriveId) -> ModelAndSerial {
        let reported = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        ModelAndSerial { model: reported(&kept.model), serial: reported(&kept.serial) }
    }

    /// Converts to the identity stored in a superblock, with the size of this geometry.
    pub(super) fn keep(self, geometry: &Geometry) -> device::DriveId {
        let (model, serial) = (self.model.unwrap_or_default(), self.serial.unwrap_or_default());
        device::DriveId { model, serial, size_bytes: geometry.size_bytes() }
    }

    /// Model and serial number, each after a comma; empty if the drive does not report them.
    pub fn words(&self) -> String {
        let model = self.model.as_ref().map(|model| format!(", {model}")).unwrap_or_default();
        let serial = self.serial.as_ref().map(|serial| format!(", serial {serial}")).unwrap_or_default();
        model + &serial
    }
}

/// Model and serial number of the drive at `path`. The serial number of an image is the beginning of its UUID.
pub fn drive_id(path: &Path) -> ModelAndSerial {
    let device = match Node::at(path) {
        Ok(Node::Namespace(name)) => sysfs::class("nvme-generic", &name).join("device"),
        Ok(Node::Block(name)) => sysfs::class("block", &name).join("device"),
        Ok(Node::File) => {
            let image = ImageMedia::examine(path).ok();
            return image.map_or(ModelAndSerial::default(), |(model, id)| ModelAndSerial {
                model: Some(model.name),
                serial: Some(serial_of(&id)),
            });
        }
        _ => return ModelAndSerial::default(),
    };
    let serial = sysfs::attribute(&device.join("serial")).or_else(|| sysfs::unit_serial(&device));
    ModelAndSerial { model: sysfs::attribute(&device.join("model")), serial }
}
