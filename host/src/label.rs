//! What the superblock of a drive says about the array that it belongs to, read without writing.

use engine::{
    array::{ArrayError, Drive, examine},
    device::{Command, Plate},
    format::superblock::{Stage, SuperblockMember},
    runtime::Runtime,
    zone::{ZoneIndex, ZoneState},
};

/// The array and place in it that a drive claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub uuid: [u8; 16],
    /// Name of the array.
    pub name: String,
    /// The drive's place among the members.
    pub role: u32,
    /// Number of members.
    pub members: u32,
    /// How many of them may be lost.
    pub parities: u32,
    /// Members (bits) that the array did not do without when this was written.
    pub active: u32,
    pub chunk_blocks: u64,
    pub policy: &'static str,
    /// Zones of a drive that are used as one.
    pub aggregate: u32,
    /// Which assembly of the array wrote this last.
    pub assembly: u64,
    /// Grows with every change of membership: of two labels the higher one is the newer.
    pub event: u64,
    /// Who made or adopted the array; zeros for nobody.
    pub host: [u8; 16],
    /// Whether it starts by itself there.
    pub autostart: bool,
    pub stage: Stage,
    /// What was written on the members' drives, by role.
    pub plates: Vec<Plate>,
}

/// What there is on a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Every zone is empty.
    Blank,
    Member(Label),
    /// Something else, or a superblock that cannot be used: a sentence without its subject.
    Other(String),
}

/// Finds out what is on `drive`.
pub async fn read(runtime: &Runtime, drive: Drive) -> Content {
    let count = drive.device.geometry().zones;
    let report = drive.device.submit(Command::Report { first: ZoneIndex(0), count }).await;
    if let Err(error) = report.result {
        return Content::Other(format!("a drive that gives no zone report: {error}"));
    }
    if report.zones.iter().all(|zone| zone.state == ZoneState::Empty) {
        return Content::Blank;
    }
    match examine(runtime, &drive).await {
        Ok(found) => Content::Member(Label {
            uuid: found.superblock.array.0,
            name: found.superblock.name,
            role: found.member as u32,
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
            plates: found.superblock.members.into_iter().map(|member| member.plate).collect(),
        }),
        // Whoever prints it names the drive already.
        Err(ArrayError::Drive(bad)) => Content::Other(bad.fault.to_string()),
        Err(error) => Content::Other(error.to_string()),
    }
}

fn active(members: &[SuperblockMember]) -> u32 {
    members.iter().enumerate().fold(0, |mask, (role, member)| mask | (member.active as u32) << role)
}
