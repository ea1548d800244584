//! Rotates the zones of an array over its drives: zone `z` is rotated by `z` drives, transparently for the array. Each
//! of its members is another drive in each zone. The logs are not rotated.

use engine::{
    device::{Command, Completion, DriveId, Geometry, ZonedDevice, Zones},
    raid::geometry::META_ZONES,
    zone::ZoneIndex,
};
use std::rc::Rc;

/// A member with rotated zones.
pub struct RotatedMember {
    drives: Rc<[Rc<dyn ZonedDevice>]>,
    member: usize,
}

impl RotatedMember {
    /// The member `member` of an array on `drives`.
    pub fn new(drives: &Rc<[Rc<dyn ZonedDevice>]>, member: usize) -> RotatedMember {
        RotatedMember { drives: drives.clone(), member }
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

impl ZonedDevice for RotatedMember {
    fn geometry(&self) -> &Geometry {
        self.own().geometry()
    }

    fn drive_id(&self) -> DriveId {
        self.own().drive_id()
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
