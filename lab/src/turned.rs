//! Rotates the zones of an array over its drives: zone `z` is rotated by `z` drives, transparently for the array. Each
//! of its members is another drive in each zone. The logs are not rotated.

use engine::{
    device::{Command, Completion, Geometry, Plate, ZonedDevice, Zones},
    raid::geometry::META_ZONES,
    zone::ZoneIndex,
};
use std::rc::Rc;

/// A member with rotated zones.
pub struct Turned {
    drives: Rc<[Rc<dyn ZonedDevice>]>,
    member: usize,
}

impl Turned {
    /// The member `member` of an array on `drives`.
    pub fn new(drives: &Rc<[Rc<dyn ZonedDevice>]>, member: usize) -> Turned {
        Turned { drives: drives.clone(), member }
    }

    fn own(&self) -> &Rc<dyn ZonedDevice> {
        &self.drives[self.member]
    }

    /// The drive that has this zone of the member.
    fn drive(&self, zone: ZoneIndex) -> &Rc<dyn ZonedDevice> {
        let turn = zone.0.saturating_sub(META_ZONES) as usize;
        &self.drives[(self.member + turn) % self.drives.len()]
    }
}

impl ZonedDevice for Turned {
    fn geometry(&self) -> &Geometry {
        self.own().geometry()
    }

    fn plate(&self) -> Plate {
        self.own().plate()
    }

    fn submit(&self, command: Command) -> Completion {
        let drive = match &command {
            Command::Read { lba, .. } | Command::Write { lba, .. } | Command::FlushZrwa { last: lba } => {
                self.drive(self.geometry().locate(*lba).0)
            }
            Command::Append { zone, .. }
            | Command::Open { zones: Zones::One(zone), .. }
            | Command::Close { zones: Zones::One(zone) }
            | Command::Finish { zones: Zones::One(zone) }
            | Command::Reset { zones: Zones::One(zone) } => self.drive(*zone),
            _ => self.own(),
        };
        drive.submit(command)
    }
}
