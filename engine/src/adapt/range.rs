//! Some consecutive zones of a device as a device of its own.

use crate::{
    buf::Buf,
    device::{Command, Completion, DriveId, Geometry, Slots, Status, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::{ops::Range, rc::Rc};

/// A range of zones of a device. Commands for all zones are not supported.
pub struct ZoneRange {
    device: Rc<dyn ZonedDevice>,
    runtime: Runtime,
    slots: Rc<Slots>,
    /// Number on the device of the first zone.
    first: u32,
    geometry: Geometry,
}

impl ZoneRange {
    /// Presents `zones` of `device`, as one of `shares` users with as many active zones each.
    ///
    /// # Panics
    /// If the device does not have these zones, or not an active zone for each user.
    pub fn new(runtime: &Runtime, device: Rc<dyn ZonedDevice>, zones: Range<u32>, shares: u32) -> ZoneRange {
        let whole = device.geometry();
        assert!(zones.start < zones.end && zones.end <= whole.zones, "zones {zones:?} of {}", whole.zones);
        let geometry = ZoneRange::geometry_of(whole, zones.end - zones.start, shares);
        ZoneRange { runtime: runtime.clone(), slots: Rc::default(), first: zones.start, geometry, device }
    }

    /// Geometry of a range of `zones` zones of a device, for one of `shares` users.
    ///
    /// # Panics
    /// If there is not an active zone for each user.
    pub fn geometry_of(whole: &Geometry, zones: u32, shares: u32) -> Geometry {
        let share = |limit: u32| {
            assert!(limit == 0 || limit >= shares, "{limit} active zones for {shares} users");
            limit / shares
        };
        Geometry {
            zones,
            max_open: share(whole.max_open),
            max_active: share(whole.max_active),
            ..whole.clone()
        }
    }

    /// The zone of the device.
    fn zone(&self, zone: ZoneIndex) -> ZoneIndex {
        ZoneIndex(zone.0 + self.first)
    }

    /// The address on the device.
    fn lba(&self, lba: Lba) -> Lba {
        Lba(lba.0 + self.first as u64 * self.geometry.zone_size_blocks)
    }

    /// The command for the device; `None` if it is not supported, or concerns zones that are not in the range.
    fn below(&self, command: Command) -> Option<Command> {
        let is_within = match &command {
            Command::Flush => true,
            Command::Report { first, count } => first.0.saturating_add(*count) <= self.geometry.zones,
            command => command.zone(&self.geometry).is_some_and(|zone| zone.0 < self.geometry.zones),
        };
        let one = |zones| match zones {
            Zones::One(zone) => Zones::One(self.zone(zone)),
            Zones::All => Zones::All,
        };
        is_within.then(|| match command {
            Command::Read { lba, data, oob } => Command::Read { lba: self.lba(lba), data, oob },
            Command::Write { lba, data, oob, fua } => Command::Write { lba: self.lba(lba), data, oob, fua },
            Command::Append { zone, data, oob, fua } => {
                Command::Append { zone: self.zone(zone), data, oob, fua }
            }
            Command::FlushZrwa { last } => Command::FlushZrwa { last: self.lba(last) },
            Command::Open { zones, zrwa } => Command::Open { zones: one(zones), zrwa },
            Command::Close { zones } => Command::Close { zones: one(zones) },
            Command::Finish { zones } => Command::Finish { zones: one(zones) },
            Command::Reset { zones } => Command::Reset { zones: one(zones) },
            Command::Report { first, count } => Command::Report { first: self.zone(first), count },
            Command::Flush => Command::Flush,
        })
    }
}

impl ZonedDevice for ZoneRange {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn optimal_write_blocks(&self) -> u64 {
        self.device.optimal_write_blocks()
    }

    fn direct_read_blocks(&self) -> u64 {
        self.device.direct_read_blocks()
    }

    fn power_epoch(&self) -> Option<u64> {
        self.device.power_epoch()
    }

    fn drive_id(&self) -> DriveId {
        self.device.drive_id()
    }

    fn cells(&self) -> u32 {
        self.device.cells()
    }

    fn write_cell(&self, zone: ZoneIndex, cell: u32, data: Buf) -> Completion {
        self.device.write_cell(self.zone(zone), cell, data)
    }

    fn read_cell(&self, zone: ZoneIndex, cell: u32, copy: u32) -> Option<Completion> {
        self.device.read_cell(self.zone(zone), cell, copy)
    }

    fn note_room(&self, lba: Lba, blocks: u64) -> usize {
        self.device.note_room(self.lba(lba), blocks)
    }

    fn write_with_note(&self, lba: Lba, data: Buf, note: Buf) -> Completion {
        match self.geometry.locate(lba).0.0 < self.geometry.zones {
            true => self.device.write_with_note(self.lba(lba), data, note),
            false => Completion::failed(Status::InvalidField),
        }
    }

    fn note(&self, zone: ZoneIndex) -> Option<Buf> {
        self.device.note(self.zone(zone))
    }

    fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        self.device.reread(self.lba(lba), attempt)
    }

    fn submit(&self, command: Command) -> Completion {
        let has_places = matches!(command, Command::Report { .. } | Command::Append { .. });
        let Some(command) = self.below(command) else { return Completion::failed(Status::InvalidField) };
        let below = self.device.submit(command);
        if !has_places {
            return below;
        }
        let (completer, completion) = self.slots.pair();
        let (first, start) = (self.first, self.lba(Lba(0)).0);
        self.runtime.spawn(async move {
            let mut done = below.await;
            done.lba = Lba(done.lba.0.saturating_sub(start));
            for info in &mut done.zones {
                info.zone = ZoneIndex(info.zone.0 - first);
            }
            completer.complete(done);
        });
        completion
    }
}
