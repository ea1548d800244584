//! A drive cut into several, as `dm-linear` does it.

use engine::{
    device::{Command, Completion, Done, Geometry, ZonedDevice, Zones},
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Consecutive zones of a blank drive that others use as well.
pub struct Partition {
    device: Rc<dyn ZonedDevice>,
    first_zone: u32,
    geometry: Geometry,
}

impl Partition {
    /// Partition `number` of `count` equal ones, each with its share of the drive's limits.
    pub fn new(device: Rc<dyn ZonedDevice>, number: u32, zones: u32, count: u32) -> Partition {
        let mut geometry = device.geometry().clone();
        geometry.zones = zones;
        geometry.max_open /= count;
        geometry.max_active /= count;
        if let Some(zrwa) = &mut geometry.zrwa {
            zrwa.max_zones /= count;
        }
        Partition { device, first_zone: number * zones, geometry }
    }

    fn zone(&self, zone: ZoneIndex) -> ZoneIndex {
        ZoneIndex(zone.0 + self.first_zone)
    }

    fn lba(&self, lba: Lba) -> Lba {
        Lba(lba.0 + self.first_zone as u64 * self.geometry.zone_size_blocks)
    }
}

impl ZonedDevice for Partition {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, mut command: Command) -> Completion {
        match &mut command {
            Command::Read { lba, .. } | Command::Write { lba, .. } | Command::FlushZrwa { last: lba } => {
                *lba = self.lba(*lba);
            }
            Command::Append { zone, .. } | Command::Report { first: zone, .. } => *zone = self.zone(*zone),
            Command::Open { zones, .. }
            | Command::Close { zones }
            | Command::Finish { zones }
            | Command::Reset { zones } => match zones {
                Zones::One(zone) => *zone = self.zone(*zone),
                // Others have zones here too, and blank ones need nothing.
                Zones::All => return Completion::ready(Done::ok()),
            },
            Command::Flush => {}
        }
        self.device.submit(command)
    }
}
