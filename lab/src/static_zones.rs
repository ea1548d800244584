//! Static zones, the baseline of eZNS (§5): a fixed number of zones of a drive in groups of a fixed width, one group
//! after the other, without a scheduler. Contents of reads are not returned.

use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completer, Completion, Done, Geometry, Slots, Status, ZonedDevice, Zones},
    runtime::Runtime,
    vzone::shape::GroupShape,
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Zones of the drive per static zone.
const PARTS: u64 = 16;

/// Static zones of a tenant.
pub struct StaticZones {
    drive: Rc<dyn ZonedDevice>,
    runtime: Runtime,
    slots: Rc<Slots>,
    first: u32,
    width: u32,
    unit_blocks: u32,
    geometry: Geometry,
}

impl StaticZones {
    /// `zones` static zones behind `others` other ones: `width` of the drive's zones are written at the same time, and
    /// each gets `unit_blocks` blocks in turn.
    pub fn new(
        runtime: &Runtime,
        drive: Rc<dyn ZonedDevice>,
        (others, zones): (u32, u32),
        (width, unit_blocks): (u32, u32),
    ) -> StaticZones {
        let of = drive.geometry();
        let geometry = Geometry {
            zones,
            zone_size_blocks: of.zone_size_blocks * PARTS,
            zone_capacity_blocks: of.zone_capacity_blocks * PARTS,
            zrwa: None,
            ..of.clone()
        };
        StaticZones {
            drive,
            runtime: runtime.clone(),
            slots: Rc::default(),
            first: others * PARTS as u32,
            width,
            unit_blocks,
            geometry,
        }
    }

    /// Part `part` of a zone: a zone of the drive.
    fn part(&self, zone: ZoneIndex, part: u64) -> ZoneIndex {
        ZoneIndex(self.first + zone.0 * PARTS as u32 + part as u32)
    }

    /// The places of a range of a zone on the drive: part, offset in it, and number of blocks.
    fn pieces(&self, offset: u64, blocks: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let zone_blocks = self.drive.geometry().zone_capacity_blocks;
        let StaticZones { width, unit_blocks, .. } = *self;
        let shape = GroupShape { width, unit_blocks, zone_blocks };
        let (group_blocks, end) = (shape.blocks(), offset + blocks);
        let groups = offset / group_blocks..end.div_ceil(group_blocks);
        groups.flat_map(move |group| (0..width).map(move |part| (group, part))).filter_map(
            move |(group, part)| {
                let inside = |block: u64| block.saturating_sub(group * group_blocks).min(group_blocks);
                let piece = shape.piece(part, &(inside(offset)..inside(end)));
                let part = group * width as u64 + part as u64;
                (!piece.is_empty()).then(|| (part, piece.start, piece.end - piece.start))
            },
        )
    }

    /// Completes with `data` when all of these commands have completed.
    fn all(&self, commands: Vec<Command>, data: Buf, completer: Completer) {
        let submitted: Vec<Completion> = commands.into_iter().map(|one| self.drive.submit(one)).collect();
        self.runtime.spawn(async move {
            let mut done = Done::with_data(data);
            for one in submitted {
                let one = one.await;
                done.result = done.result.and(one.result);
            }
            completer.complete(done);
        });
    }
}

impl ZonedDevice for StaticZones {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        let on_drive =
            |zone: ZoneIndex, part, at| Lba(self.drive.geometry().start(self.part(zone, part)).0 + at);
        let mut back = Buf::default();
        let commands = match command {
            Command::Read { lba, data, .. } => {
                let (zone, offset) = self.geometry.locate(lba);
                let read = |(part, at, blocks): (u64, u64, u64)| {
                    Command::read(on_drive(zone, part, at), Buf::zeroed(blocks as usize * BLOCK))
                };
                let commands = self.pieces(offset, data.blocks()).map(read).collect();
                back = data;
                commands
            }
            Command::Write { lba, data, fua, .. } => {
                let (zone, offset) = self.geometry.locate(lba);
                let write = |(part, at, blocks): (u64, u64, u64)| {
                    Command::write(on_drive(zone, part, at), data.slice_blocks(0..blocks), fua)
                };
                self.pieces(offset, data.blocks()).map(write).collect()
            }
            Command::Reset { zones: Zones::One(zone) } => {
                let reset = |part| Command::Reset { zones: Zones::One(self.part(zone, part)) };
                (0..PARTS).map(reset).collect()
            }
            _ => return Completion::failed(Status::InvalidOpcode),
        };
        let (completer, completion) = self.slots.pair();
        self.all(commands, back, completer);
        completion
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use emu::ssd::{Model, Ssd};

    #[test]
    fn static_zones_stripe_units_over_consecutive_groups() {
        let geometry = Model::pm1731a().scaled(32, 64).geometry;
        let drive = Rc::new(std::cell::RefCell::new(Ssd::in_memory(&geometry)));
        let clock = emu::clock::Clock::new();
        let drive = emu::ssd::TimedDrive::new(drive, &emu::timing::Timing::pm1731a(), &clock, None);
        let zones = StaticZones::new(&Runtime::new(), Rc::new(drive), (0, 2), (4, 4));
        let pieces = |offset, blocks| zones.pieces(offset, blocks).collect::<Vec<_>>();
        assert_eq!(pieces(0, 2), [(0, 0, 2)]);
        assert_eq!(pieces(3, 2), [(0, 3, 1), (1, 0, 1)]);
        assert_eq!(pieces(0, 64), [(0, 0, 16), (1, 0, 16), (2, 0, 16), (3, 0, 16)]);
        assert_eq!(pieces(255, 2), [(3, 63, 1), (4, 0, 1)]);
    }
}
