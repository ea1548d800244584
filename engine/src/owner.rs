//! What becomes of an array as a whole: it gets another name or another owner, and it ends.
//!
//! *What is said of an array* has nothing to do with what it holds, so it can be changed without being
//! assembled: all members that are there write the checkpoint with which an assembly would begin, twice, and that is
//! all. An assembly that is cut off at this point has done nothing without anybody (see the head of
//! `raid/recover/mod.rs`), so nobody is stale afterwards. A member that is away has an older superblock, which is
//! not below the floor: it is a member as before once it is there again, and the newer superblock of the others
//! says what the array is called. Whoever assembles an array has all members but as many as there are parities,
//! and so at least one that was told, unless no more were when the power went: then either name may be the one
//! that stays. (Four members with two parities are two halves, each of which is enough: there the halves may say
//! different things until they meet.)
//!
//! *The end* is in two steps. First every drive is told that the array is being destroyed, and only when all
//! know, they are emptied, each from its end: its data, then the zone of its log that does not count, then the
//! one that says what is going on. So wherever this is cut off, what is left says that it is half destroyed, or
//! nothing is left. No array goes on without what is gone. A drive that was told is no member any more,
//! whatever others say; more drives are told than there are parities, and an array takes all its members but as
//! many. One that is not there, and comes back later, is therefore the rest of an array that nobody can assemble
//! (but with the old drive of a member that was replaced after it had gone, which it takes for the member).

use crate::{
    array::Array,
    device::{Command, DeviceError},
    format::{
        record::ZoneRecord,
        superblock::{Stage, Superblock},
    },
    raid::{
        Behaviour, Drive,
        catalog::Catalog,
        create::array_geometry,
        erase::{reset_each, wipe},
        error::{ArrayError, BadDrive, DriveFault, NoArray},
        geometry::META_ZONES,
        holes::HoleMap,
        journal::logged::Live,
        parts::Raid,
        recover::{
            assemble::{Told, look},
            membership::effective,
            scan::{Candidate, find_log},
        },
    },
    runtime::Runtime,
    zone::{ZoneIndex, ZoneState},
};

pub use crate::raid::change::Change;

impl Array {
    /// Changes what is said of the array that `drives` are members of, which nobody runs. Nobody is stale
    /// afterwards. No process may have left `Tails` of it: what these rely on would not be kept.
    ///
    /// # Errors
    /// It could not be assembled, or a member could not be written: then some may have been told.
    pub async fn change(runtime: &Runtime, drives: Vec<Drive>, change: &Change) -> Result<(), ArrayError> {
        look(runtime, drives, Told::default(), Behaviour::default()).await?.relabel(change).await
    }

    /// Changes what is said of this array, while it runs.
    ///
    /// # Errors
    /// It holds back: to write anything would make the member stale that it lacks. Or it has failed.
    pub async fn change_running(&self, change: &Change) -> Result<(), ArrayError> {
        if self.is_provisional() || self.is_read_only() {
            return Err(ArrayError::HoldsBack);
        }
        let raid = self.0.raid();
        raid.membership.change(|superblock| change.apply(superblock))?;
        raid.membership.settle().await;
        raid.check_members()
    }

    /// Destroys the array that all of `drives` say they are of, members or not, and makes them blank. It need
    /// not be one that could be assembled: its creation or its destruction may have been cut off.
    ///
    /// # Errors
    /// A drive is of another array or none, or no more are members than the others could go on without. Nothing
    /// has been written then. Or a drive cannot be written: the array is half destroyed.
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
            let told = mark(runtime, candidate, event).await;
            told.map_err(|error| BadDrive::new(&candidate.drive.name, DriveFault::Unwritable(error)))?;
        }
        for candidate in &found {
            let emptied = empty(candidate).await;
            emptied.map_err(|error| BadDrive::new(&candidate.drive.name, DriveFault::Reset(error)))?;
        }
        Ok(())
    }
}

/// Makes a drive blank, whatever is on it.
///
/// # Errors
/// It cannot be written. It may be no member of anything any more, and not blank.
pub async fn make_blank(drive: &Drive) -> Result<(), ArrayError> {
    let wiped = wipe(&*drive.device).await;
    wiped.map_err(|error| BadDrive::new(&drive.name, DriveFault::Reset(error)).into())
}

/// Has a drive say that its array is being destroyed.
async fn mark(runtime: &Runtime, candidate: &mut Candidate, event: u64) -> Result<(), DeviceError> {
    let Candidate { drive, device, log } = &*candidate;
    // What else it says stays its own: one that is stale is no reason to believe that the others are told.
    let superblock = Superblock { stage: Stage::Ending, event, ..candidate.superblock().clone() };
    let (role, zones) = (log.origin.member as usize, vec![ZoneRecord::default(); superblock.zones as usize]);
    let geometry = array_geometry(&superblock, device.geometry().volatile_cache);
    let catalog = Catalog::new(zones, Vec::new(), HoleMap::default());
    let raid = Raid::new(runtime, superblock, geometry, catalog, event, Behaviour::default());
    let (drive, device) = (drive.device.clone(), device.clone());
    let log =
        raid.new_log(role, drive, (device, log.moved.clone()), (log.zone, log.generation), Live::default());
    log.resume_at(candidate.log.wp_blocks, candidate.log.place);
    raid.members.put(role, candidate.drive.name.clone(), log.clone());
    log.checkpoint(&*raid, true).await?;
    candidate.log.place = Some(log.place());
    Ok(())
}

/// Resets all zones of a drive; the one in which it says what is going on goes last.
async fn empty(candidate: &Candidate) -> Result<(), DeviceError> {
    let device = &*candidate.drive.device;
    let (aggregate, zones) = (candidate.superblock().aggregate, device.geometry().zones);
    let has_zrwa = device.geometry().zrwa.is_some();
    let logs = META_ZONES * aggregate;
    let report = device.submit(Command::Report { first: ZoneIndex(0), count: zones }).await;
    report.result?;
    // A zone may be empty and still let be read what was in its ZRWA.
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
