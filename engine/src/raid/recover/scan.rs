//! Reads the metadata of drives.

use crate::{
    adapt::{
        aggregate::AggregateDevice,
        append::{AppendDevice, GROUPS_BYTES, Usage},
        checksum::{CACHED_BLOCKS, ChecksumDevice, ChecksumUsage},
        sequence::Sequencer,
    },
    device::{Command, ZonedDevice},
    format::{
        Uuid,
        codec::{Absurd, FAR},
        record::Record,
        superblock::{AGGREGATES, Order, Superblock},
    },
    raid::{
        Drive,
        error::{ArrayError, BadDrive, DriveFault, NoArray},
        geometry::META_ZONES,
        journal::{
            label::read_label,
            read::{NoLog, ReadLog, read_log, salvage_log},
        },
        status::DriveExamination,
    },
    runtime::Runtime,
    zone::{ZoneIndex, ZoneState},
};
use std::rc::Rc;

/// A drive with the log of a member.
pub struct Candidate {
    pub drive: Drive,
    /// The drive as the array uses it.
    pub device: Rc<dyn ZonedDevice>,
    pub log: ReadLog,
}

impl Candidate {
    /// The drive's own newest superblock.
    pub fn superblock(&self) -> &Superblock {
        let newest = self.log.records.iter().filter_map(|(record, _)| superblock_of(record));
        // A log that was read has a checkpoint or a superblock.
        newest.max_by_key(|s| s.event).unwrap_or_else(|| unreachable!("a log begins with a checkpoint"))
    }

    /// Whether this is the drive of its role according to `superblock`.
    pub fn is_member_by(&self, superblock: &Superblock) -> bool {
        let role = self.log.origin.member as usize;
        let (own, there) = (self.superblock().members.get(role), superblock.members.get(role));
        own.zip(there).is_some_and(|(own, there)| own.uuid == there.uuid && there.active)
    }
}

fn superblock_of(record: &Record) -> Option<&Superblock> {
    match record {
        Record::Checkpoint(checkpoint) => Some(&checkpoint.superblock),
        Record::Superblock(superblock) => Some(superblock),
        _ => None,
    }
}

/// A drive as a member of an array uses it: `aggregate` zones as one, and each zone written in `order`. `None` if its
/// zones cannot be aggregated or written that way.
pub fn prepare(
    runtime: &Runtime,
    mut device: Rc<dyn ZonedDevice>,
    order: Order,
    aggregate: u32,
) -> Option<Rc<dyn ZonedDevice>> {
    if aggregate > 1 {
        device = Rc::new(AggregateDevice::new(runtime, device, aggregate)?);
    }
    Some(match order {
        Order::Any => device,
        Order::One => Rc::new(Sequencer::new(runtime, device)),
        Order::Checksums { in_zrwa, group_blocks, member } => {
            if !in_zrwa {
                device = Rc::new(Sequencer::new(runtime, device));
            }
            let (plain_zones, cached_blocks) = (META_ZONES, CACHED_BLOCKS);
            let usage = ChecksumUsage { group_blocks, in_zrwa, plain_zones, member: member.0, cached_blocks };
            Rc::new(ChecksumDevice::new(runtime, device, usage)?)
        }
        Order::Groups { blocks: group_blocks, checksums, member } => {
            let (plain_zones, groups_bytes) = (META_ZONES, GROUPS_BYTES);
            let usage = Usage { group_blocks, checksums, plain_zones, member: member.0, groups_bytes };
            Rc::new(AppendDevice::new(runtime, device, usage)?)
        }
    })
}

/// Reads the log of a drive. The log records how many zones are aggregated, but may be readable only with that number,
/// so each possible number is tried.
pub async fn find_log(runtime: &Runtime, drive: &Drive) -> Result<(Rc<dyn ZonedDevice>, ReadLog), NoLog> {
    let mut reason = NoLog::Blank;
    for aggregate in AGGREGATES {
        let Some(device) = prepare(runtime, drive.device.clone(), Order::Any, aggregate) else { continue };
        // A member has a data zone beside the metadata zones.
        if aggregate > 1 && device.geometry().zones <= META_ZONES {
            break;
        }
        match read_log(&device, aggregate).await {
            Ok(log) => {
                let head = device.geometry().start(ZoneIndex(log.place.unwrap_or(log.zone)));
                return prepared(runtime, drive, log, aggregate).ok_or(NoLog::Damaged(head));
            }
            Err(error) => reason = reason.max(error),
        }
        if let Some(label) = read_label(&device).await.filter(|label| label.superblock.aggregate == aggregate)
        {
            return Err(NoLog::Target(label.superblock.array, label.member as u32));
        }
    }
    if reason == NoLog::Blank && !has_empty_data_zones(&*drive.device).await {
        reason = NoLog::Foreign;
    }
    Err(reason)
}

/// The drive of a log as the array uses it, with the log.
fn prepared(
    runtime: &Runtime,
    drive: &Drive,
    log: ReadLog,
    aggregate: u32,
) -> Option<(Rc<dyn ZonedDevice>, ReadLog)> {
    let superblock = log.records.iter().find_map(|(record, _)| superblock_of(record));
    let order = superblock.map_or(Order::Any, |superblock| {
        let member = superblock.members.get(log.origin.member as usize);
        superblock.order(member.map_or(Uuid::default(), |member| member.uuid))
    });
    prepare(runtime, drive.device.clone(), order, aggregate).map(|device| (device, log))
}

/// Reads as much as possible of the log of a drive with a damaged checkpoint.
async fn salvage(runtime: &Runtime, drive: &Drive) -> Option<Candidate> {
    for aggregate in AGGREGATES {
        let Some(device) = prepare(runtime, drive.device.clone(), Order::Any, aggregate) else { continue };
        if let Some(log) = salvage_log(&device, aggregate).await {
            let (device, log) = prepared(runtime, drive, log, aggregate)?;
            return Some(Candidate { drive: drive.clone(), device, log });
        }
    }
    None
}

/// Whether no zone of a drive but its metadata zones has readable data. A drive that does not report its zones may have
/// some.
async fn has_empty_data_zones(device: &dyn ZonedDevice) -> bool {
    let count = device.geometry().zones.saturating_sub(META_ZONES);
    if count == 0 {
        return true;
    }
    let report = device.submit(Command::Report { first: ZoneIndex(META_ZONES), count }).await;
    report.result.is_ok()
        && report.zones.iter().all(|zone| matches!(zone.state, ZoneState::Empty | ZoneState::Offline))
}

/// The logs of drives.
pub struct LogScan {
    pub candidates: Vec<Candidate>,
    /// Drives that have no readable log, and why.
    pub damaged: Vec<BadDrive>,
    /// Partial logs of drives in `damaged`.
    pub salvaged: Vec<Candidate>,
}

/// Reads the logs of `drives`; refuses those of another version.
pub async fn scan(runtime: &Runtime, drives: Vec<Drive>) -> Result<LogScan, ArrayError> {
    let (mut candidates, mut damaged, mut salvaged) = (Vec::new(), Vec::new(), Vec::new());
    for drive in drives {
        let name = &drive.name;
        match find_log(runtime, &drive).await {
            Ok((device, log)) => candidates.push(Candidate { drive, device, log }),
            Err(reason) => {
                let bad = BadDrive::new(name, fault_of(reason));
                if matches!(reason, NoLog::Version(_) | NoLog::Features(_)) {
                    return Err(bad.into());
                }
                if matches!(reason, NoLog::Damaged(_) | NoLog::Foreign) {
                    salvaged.extend(salvage(runtime, &drive).await);
                }
                damaged.push(bad);
            }
        }
    }
    outvote(&mut candidates, &mut damaged)?;
    Ok(LogScan { candidates, damaged, salvaged })
}

/// The fault of a drive that has no readable log.
fn fault_of(reason: NoLog) -> DriveFault {
    match reason {
        // A spare drive, or one on which writing the first superblock was interrupted.
        NoLog::Blank => DriveFault::Blank,
        NoLog::Foreign => DriveFault::Foreign,
        NoLog::Damaged(lba) => DriveFault::Damaged(lba.0),
        NoLog::Target(array, member) => DriveFault::Target { array, member: member as usize },
        NoLog::Absurd(absurd) => DriveFault::Absurd(absurd),
        NoLog::Version(version) => DriveFault::Version(version),
        NoLog::Features(unknown) => DriveFault::Features(unknown),
        NoLog::Unreadable(error) => DriveFault::Unreadable(error),
    }
}

/// Moves candidates to `damaged` that differ from the majority of their array in a constant property of the array, or
/// have sequence numbers far beyond those of the majority.
fn outvote(candidates: &mut Vec<Candidate>, damaged: &mut Vec<BadDrive>) -> Result<(), NoArray> {
    let same = |a: &Candidate, b: &Candidate| a.log.origin.array == b.log.origin.array;
    let dissent = |a: &Candidate, b: &Candidate| a.superblock().agree(b.superblock()).err();
    let is_most = |of: &Candidate| {
        let mut votes = candidates.iter().filter(|other| same(of, other)).map(|c| dissent(c, of).is_none());
        let (all, most) = (votes.clone().count(), votes.by_ref().filter(|agrees| *agrees).count());
        2 * most > all
    };
    // From such a number the array would continue to numbers that are refused.
    let runs_ahead = |of: &Candidate| {
        let numbers = candidates.iter().filter(|other| same(of, other)).map(|other| other.log.sequence);
        let behind = numbers.clone().filter(|number| number + FAR < of.log.sequence).count();
        2 * behind > numbers.count()
    };
    let mut verdicts = Vec::new();
    for candidate in candidates.iter() {
        let Some(most) = candidates.iter().find(|other| same(candidate, other) && is_most(other)) else {
            return Err(NoArray::NoMajority(candidate.log.origin.array));
        };
        let value = candidate.log.sequence;
        let ahead = runs_ahead(candidate).then_some(Absurd { field: "sequence", value });
        verdicts.push(dissent(candidate, most).or(ahead));
    }
    let mut verdicts = verdicts.into_iter();
    candidates.retain(|candidate| {
        let dissent = verdicts.next().flatten();
        let name = &candidate.drive.name;
        damaged.extend(dissent.map(|absurd| BadDrive::new(name, DriveFault::Dissents(absurd))));
        dissent.is_none()
    });
    Ok(())
}

/// Reads the metadata of zoneraid on a drive; writes nothing.
pub async fn examine(runtime: &Runtime, drive: &Drive) -> Result<DriveExamination, ArrayError> {
    let LogScan { candidates, damaged, .. } = scan(runtime, vec![drive.clone()]).await?;
    let Some(candidate) = candidates.first() else {
        return Err(damaged.into_iter().next().map_or(NoArray::NoDrives.into(), ArrayError::Drive));
    };
    Ok(DriveExamination {
        superblock: candidate.superblock().clone(),
        member: candidate.log.origin.member as usize,
        generation: candidate.log.generation,
        records: candidate.log.records.len() + candidate.log.parities,
        damaged: candidate.log.damaged,
    })
}
