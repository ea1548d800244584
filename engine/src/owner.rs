//! Operations on an array as a whole: rename it, change its owner, destroy it.
//!
//! *Name and owner* do not concern the data, so they can be changed without assembling the array: each present member
//! gets, twice, the checkpoint with which an assembly would begin, and nothing else is written. An assembly that is
//! interrupted at this point has excluded no member (see the head of `raid/recover/mod.rs`), so no member becomes
//! stale. The superblock of an absent member is older, but not below the floor: it is still a member when it returns,
//! and the newer superblock of the others has the array's name. At most `p` members, the number of parities, may be
//! missing from an assembly, so it finds at least one that was updated. After a power cut during the update either name
//! may be found. (With two parities, each half of four members is enough: the halves may have different names until
//! they meet.)
//!
//! *Destruction* takes two steps. First every drive is marked as belonging to an array that is being destroyed. Only
//! when all are marked, their zones are reset: data, then the metadata zone that is not current, then the current one,
//! which has the mark. So an interruption leaves only marked or blank drives, and the array cannot be assembled without
//! them: a marked drive is no longer a member, regardless of the superblocks of other drives; more than `p` drives are
//! marked, and no more than `p` members may be missing from an assembly. So a drive that was absent and returns later
//! cannot be assembled to an array. (Unless it is found together with the former drive of a member that was replaced
//! while it was absent: the superblock of the absent drive still names that one as the member.)

use crate::{
    array::Array,
    device::{Command, DeviceError},
    format::{
        record::ZoneRecord,
        superblock::{AGGREGATES, Order, Stage, Superblock},
    },
    raid::{
        ArrayOptions, Drive,
        bad_blocks::BadBlockMap,
        create::array_geometry,
        erase::{reset_each, wipe, wipe_filled},
        error::{ArrayError, BadDrive, DriveFault, NoArray},
        failures,
        generations::Generations,
        geometry::META_ZONES,
        journal::{label::read_label, logged::LiveRecords, read::NoLog},
        parts::Raid,
        recover::{
            assemble::{KnownEnds, look},
            membership::effective,
            scan::{Candidate, find_log, prepare},
        },
        zone_records::ZoneRecords,
    },
    runtime::Runtime,
    zone::{ZoneIndex, ZoneState},
};

pub use crate::raid::change::Change;

impl Array {
    /// Changes a property of the array that `drives` are members of, which must not be running. No member becomes
    /// stale. No process may have left [`Tails`](crate::array::Tails) of the array: the data that these promise would
    /// not be kept.
    ///
    /// # Errors
    /// The array could not be assembled; or a member could not be written, and then some may have been updated.
    pub async fn change(runtime: &Runtime, drives: Vec<Drive>, change: &Change) -> Result<(), ArrayError> {
        look(runtime, drives, KnownEnds::default(), ArrayOptions::default()).await?.relabel(change).await
    }

    /// Changes a property of this array, while it runs.
    ///
    /// # Errors
    /// The array is in deferred-write mode or read-only: a write would make a missing member stale. Or it has failed.
    pub async fn change_running(&self, change: &Change) -> Result<(), ArrayError> {
        if self.is_deferred() {
            return Err(ArrayError::HoldsBack);
        }
        if self.is_read_only() {
            return Err(ArrayError::ReadOnly);
        }
        let raid = self.0.raid();
        raid.membership.change(|superblock| change.apply(superblock))?;
        raid.membership.settle().await;
        failures::check_members(&raid)
    }

    /// Destroys the array that all of `drives` belong to by their superblocks, members or not, and makes them blank.
    /// The array need not be one that could be assembled: its creation or its destruction may have been interrupted.
    ///
    /// # Errors
    /// A drive belongs to another array or none, or the members among the drives are so few that the others can run
    /// without them: nothing has been written. Or a drive cannot be written: the array is half destroyed.
    pub async fn destroy(runtime: &Runtime, drives: Vec<Drive>) -> Result<(), ArrayError> {
        let mut found = Vec::new();
        for drive in drives {
            let Ok((device, log)) = find_log(runtime, &drive).await else {
                return Err(BadDrive::new(&drive.name, DriveFault::OfNoArray).into());
            };
            found.push(Candidate { drive, device, log });
        }
        let Some(first) = found.first() else { return Err(NoArray::NoDrives.into()) };
        if let Some(other) = found.iter().find(|c| c.log.origin.array != first.log.origin.array) {
            return Err(BadDrive::new(&other.drive.name, DriveFault::OfAnotherArray).into());
        }
        if let Some(superblock) = effective(&found).filter(|superblock| superblock.stage == Stage::Whole) {
            let members: Vec<_> = found.iter().filter(|c| c.is_member_by(superblock)).collect();
            if members.len() <= superblock.parities as usize {
                let members = if members.is_empty() { vec![first] } else { members };
                let drives = members.iter().map(|member| member.drive.name.clone()).collect();
                return Err(NoArray::OthersGoOn { array: superblock.name.clone(), drives }.into());
            }
        }
        let event = found.iter().map(|c| c.log.sequence).max().unwrap_or(0) + 1;
        for candidate in &mut found {
            let marked = mark(runtime, candidate, event).await;
            marked.map_err(|error| BadDrive::new(&candidate.drive.name, DriveFault::Unwritable(error)))?;
        }
        for candidate in &found {
            let emptied = empty(candidate).await;
            emptied.map_err(|error| BadDrive::new(&candidate.drive.name, DriveFault::Reset(error)))?;
        }
        Ok(())
    }
}

/// Makes a drive blank, regardless of its contents.
///
/// # Errors
/// The drive cannot be written. It may be no longer a member of any array, and not blank.
pub async fn make_blank(drive: &Drive) -> Result<(), ArrayError> {
    let wiped = wipe(&*drive.device).await;
    wiped.map_err(|error| BadDrive::new(&drive.name, DriveFault::Reset(error)).into())
}

/// Cancels a copy to `drive` for an array that does not run: makes a drive blank that is being filled with a copy of a
/// member. If this is interrupted, the copy is still unfinished and can continue. `false` if the drive is not being
/// filled; then it is unchanged.
///
/// # Errors
/// The drive cannot be written.
pub async fn cancel_copy(runtime: &Runtime, drive: &Drive) -> Result<bool, ArrayError> {
    let Err(NoLog::Target(..)) = find_log(runtime, drive).await else { return Ok(false) };
    for aggregate in AGGREGATES {
        let Some(device) = prepare(runtime, drive.device.clone(), Order::Any, aggregate) else { continue };
        if read_label(&device).await.is_some_and(|label| label.superblock.aggregate == aggregate) {
            let wiped = wipe_filled(&*drive.device, &*device).await;
            wiped.map_err(|error| BadDrive::new(&drive.name, DriveFault::Reset(error)))?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Marks a drive as belonging to an array that is being destroyed.
async fn mark(runtime: &Runtime, candidate: &mut Candidate, event: u64) -> Result<(), DeviceError> {
    let Candidate { drive, device, log } = &*candidate;
    // The other fields stay the drive's own: the mark of a stale drive does not prove that other drives are marked.
    let superblock = Superblock { stage: Stage::Ending, event, ..candidate.superblock().clone() };
    let (role, zones) = (log.origin.member as usize, vec![ZoneRecord::default(); superblock.zones as usize]);
    let geometry = array_geometry(&superblock, device.geometry().volatile_cache);
    let zone_records = ZoneRecords::new(zones, Vec::new(), BadBlockMap::default(), Generations::default());
    let raid = Raid::new(runtime, superblock, geometry, zone_records, event, ArrayOptions::default());
    let (drive, device) = (drive.device.clone(), device.clone());
    let log = raid.new_log(
        role,
        drive,
        (device, log.moved.clone()),
        (log.zone, log.generation),
        LiveRecords::default(),
    );
    log.resume_at(candidate.log.wp_blocks, candidate.log.place);
    let power_epoch = candidate.device.power_epoch();
    raid.members.put(role, candidate.drive.name.clone(), log.clone(), power_epoch);
    log.checkpoint(&*raid, true).await?;
    candidate.log.place = Some(log.place());
    Ok(())
}

/// Resets all zones of a drive; the current metadata zone, which has the mark, goes last.
async fn empty(candidate: &Candidate) -> Result<(), DeviceError> {
    let device = &*candidate.drive.device;
    let (aggregate, zones) = (candidate.superblock().aggregate, device.geometry().zones);
    let has_zrwa = device.geometry().zrwa.is_some();
    let logs = META_ZONES * aggregate;
    let report = device.submit(Command::Report { first: ZoneIndex(0), count: zones }).await;
    report.result?;
    // An empty zone may still return data of its former ZRWA.
    let used = report.zones.iter().filter(|info| info.state != ZoneState::Empty || has_zrwa);
    let last = candidate.log.place.unwrap_or(candidate.log.zone) * aggregate;
    let is_last = |zone: &u32| (last..last + aggregate).contains(zone);
    let data = used.map(|info| info.zone.0).filter(|zone| *zone >= logs && !is_last(zone));
    reset_each(device, data).await?;
    reset_each(device, (0..logs).filter(|zone| !is_last(zone))).await?;
    for zone in (last..last + aggregate).rev() {
        reset_each(device, [zone].into_iter()).await?;
    }
    Ok(())
}
