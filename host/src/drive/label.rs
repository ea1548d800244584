//! The array and role that a drive's superblock names, read without writing.

use engine::{
    array::{ArrayError, Drive, examine},
    device::{Command, DeviceError, DriveId, ZonedDevice},
    format::superblock::{Stage, SuperblockMember},
    raid::error::DriveFault,
    runtime::Runtime,
    zone::{ZoneIndex, ZoneState},
};

/// The array that a drive belongs to, and its role there, according to its superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub uuid: [u8; 16],
    /// Name of the array.
    pub name: String,
    /// Role of the drive.
    pub role: u32,
    /// UUID of the drive as a member: a drive that replaces it has another one.
    pub member: [u8; 16],
    /// Number of members.
    pub members: u32,
    /// Number of parities: how many members may be lost.
    pub parities: u32,
    /// Bit mask of the members that were active when this was written.
    pub active: u32,
    pub chunk_blocks: u64,
    pub policy: &'static str,
    /// Whether each block of a zone has a checksum.
    pub checksums: bool,
    /// Number of small zones of the drive that are used as one.
    pub aggregate: u32,
    /// The assembly of the array that wrote this last.
    pub assembly: u64,
    /// Grows with every change of membership: of two labels the higher one is the newer.
    pub event: u64,
    /// The host that created or adopted the array; zeros for none.
    pub host: [u8; 16],
    /// Whether the array is started automatically on that host.
    pub autostart: bool,
    pub stage: Stage,
    /// Models, serial numbers and sizes of the members' drives, by role.
    pub drive_ids: Vec<DriveId>,
}

/// The role of a drive that is being filled with a copy of a member, in order to replace it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    pub array: [u8; 16],
    pub role: u32,
    /// A sentence without its subject.
    pub sentence: String,
}

/// Contents of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Every zone is empty.
    Blank,
    Member(Label),
    /// A part of a copy of a member: the drive is being filled to replace it.
    Filled(Filled),
    /// Other data, or a superblock that cannot be used: a sentence without its subject.
    Other(String),
}

/// Determines the contents of `drive`.
pub async fn read(runtime: &Runtime, drive: Drive) -> Content {
    match is_blank(&*drive.device).await {
        Ok(false) => {}
        Ok(true) => return Content::Blank,
        Err(error) => return Content::Other(format!("a drive that gives no zone report: {error}")),
    }
    match examine(runtime, &drive).await {
        Ok(found) => Content::Member(Label {
            uuid: found.superblock.array.0,
            checksums: found.superblock.has_checksums(),
            name: found.superblock.name,
            role: found.member as u32,
            member: found.superblock.members.get(found.member).map_or([0; 16], |member| member.uuid.0),
            members: found.superblock.members.len() as u32,
            parities: found.superblock.parities,
            active: active(&found.superblock.members),
            chunk_blocks: found.superblock.chunk_blocks as u64,
            policy: found.superblock.policy.name_with(found.superblock.group_blocks),
            aggregate: found.superblock.aggregate,
            assembly: found.superblock.assembly,
            event: found.superblock.event,
            host: found.superblock.host.0,
            autostart: found.superblock.autostart,
            stage: found.superblock.stage,
            drive_ids: found.superblock.members.into_iter().map(|member| member.drive_id).collect(),
        }),
        // The caller names the drive already.
        Err(ArrayError::Drive(bad)) => match bad.fault {
            DriveFault::Target { array, member } => Content::Filled(Filled {
                array: array.0,
                role: member as u32,
                sentence: bad.fault.to_string(),
            }),
            fault => Content::Other(fault.to_string()),
        },
        Err(error) => Content::Other(error.to_string()),
    }
}

/// Zones in one report of the search for a zone that is not empty. The first zone of a member mostly is not.
const ZONES_AT_ONCE: u32 = 1024;

/// Whether all zones of a drive are empty; reports no zones far behind the first one that is not.
async fn is_blank(device: &dyn ZonedDevice) -> Result<bool, DeviceError> {
    let zones = device.geometry().zones;
    for first in (0..zones).step_by(ZONES_AT_ONCE as usize) {
        let count = ZONES_AT_ONCE.min(zones - first);
        let report = device.submit(Command::Report { first: ZoneIndex(first), count }).await;
        report.result?;
        if report.zones.iter().any(|zone| zone.state != ZoneState::Empty) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn active(members: &[SuperblockMember]) -> u32 {
    members.iter().enumerate().fold(0, |mask, (role, member)| mask | (member.active as u32) << role)
}

#[cfg(test)]
mod tests {
    use super::*;
    use emu::ssd::{EmulatedDrive, Model};
    use engine::{
        array::{Array, CreateOptions},
        device::{Completion, Geometry},
    };
    use std::{cell::Cell, rc::Rc};

    /// A drive that counts the zones in its reports.
    struct ReportCounter {
        device: EmulatedDrive,
        reported: Cell<u32>,
    }

    impl ZonedDevice for ReportCounter {
        fn geometry(&self) -> &Geometry {
            self.device.geometry()
        }

        fn submit(&self, command: Command) -> Completion {
            if let Command::Report { count, .. } = command {
                self.reported.set(self.reported.get() + count);
            }
            self.device.submit(command)
        }
    }

    #[test]
    fn label_read_reports_few_zones_unless_blank() {
        const ZONES: u32 = 40_000;
        let geometry = Model::zn540().scaled(ZONES, 1024).geometry;
        let drives = [(); 3].map(|()| {
            Rc::new(ReportCounter { device: EmulatedDrive::in_memory(&geometry), reported: Cell::new(0) })
        });
        let runtime = Runtime::default();
        let run = |drive: &Rc<ReportCounter>| {
            drive.reported.set(0);
            let drive = Drive { name: "a".into(), device: drive.clone() };
            runtime.block_on(read(&runtime, drive), || false).unwrap()
        };
        assert_eq!(run(&drives[0]), Content::Blank);
        assert_eq!(drives[0].reported.get(), ZONES);
        let options = CreateOptions::new("tank", [1; 16]);
        let members = drives.iter().map(|drive| Drive { name: "a".into(), device: drive.clone() }).collect();
        runtime.block_on(Array::create(&runtime, options, members), || false).unwrap().unwrap();
        let Content::Member(label) = run(&drives[2]) else { panic!("no member") };
        assert_eq!((label.name.as_str(), label.role), ("tank", 2));
        let reported = drives[2].reported.get();
        assert!(reported < 2 * ZONES_AT_ONCE, "{reported} zones");
    }
}
