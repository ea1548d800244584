//! What is written on a drive, for people to find it by.

use super::sysfs::{self, Node};
use engine::device::{self, Geometry};
use sim::ssd::{ImageMedia, serial_of};
use std::path::Path;

/// What is written on a drive, as far as it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plate {
    pub model: Option<String>,
    pub serial: Option<String>,
}

impl Plate {
    /// What a superblock has kept of a drive.
    pub fn kept(kept: &device::Plate) -> Plate {
        let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Plate { model: said(&kept.model), serial: said(&kept.serial) }
    }

    /// As a superblock keeps it, of a drive of this shape.
    pub(super) fn keep(self, geometry: &Geometry) -> device::Plate {
        let (model, serial) = (self.model.unwrap_or_default(), self.serial.unwrap_or_default());
        device::Plate { model, serial, size_bytes: geometry.size_bytes() }
    }

    /// Model and serial with a comma before each; nothing if the drive does not say.
    pub fn words(&self) -> String {
        let model = self.model.as_ref().map(|model| format!(", {model}")).unwrap_or_default();
        let serial = self.serial.as_ref().map(|serial| format!(", serial {serial}")).unwrap_or_default();
        model + &serial
    }
}

/// What the drive at `path` says it is. The serial of an image is the beginning of its UUID.
pub fn plate(path: &Path) -> Plate {
    let device = match Node::at(path) {
        Ok(Node::Namespace(name)) => sysfs::class("nvme-generic", &name).join("device"),
        Ok(Node::Block(name)) => sysfs::class("block", &name).join("device"),
        Ok(Node::File) => {
            let image = ImageMedia::examine(path).ok();
            return image.map_or(Plate::default(), |(model, id)| Plate {
                model: Some(model.name),
                serial: Some(serial_of(&id)),
            });
        }
        _ => return Plate::default(),
    };
    let serial = sysfs::attribute(&device.join("serial")).or_else(|| sysfs::unit_serial(&device));
    Plate { model: sysfs::attribute(&device.join("model")), serial }
}
