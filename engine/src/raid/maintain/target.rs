//! The label of a drive that is being filled with a copy of a member, so that the copy can continue after the process
//! has ended, a crash or a power cut.
//!
//! The *label* is in the second metadata zone of the new drive: the array's superblock, under the role of the member,
//! followed by a record for each zone that is complete there, with its epoch. A log begins with a checkpoint, in the
//! first zone, so a label cannot be mistaken for one; it is erased when the log of the drive that has taken over needs
//! its zone.
//!
//! *A zone in the label need not be copied again if it is full in the same epoch.* The contents of a full zone never
//! change during its epoch, whichever members leave, return or are rebuilt. The label lists zones that were full and of
//! which the member's part had all blocks in their places: neither bad blocks, which are filled later, nor burned
//! blocks. The record is written when the zone has been finished on the new drive and the drive's cache has been
//! flushed. All other zones are copied again.
//!
//! *The label says which drive is copied*, by its UUID in the superblock: a label of a drive that is not the member any
//! more does not count. Blocks of the policy `append`, and checksum blocks, contain the UUID of the drive that they lie on, so the
//! copy continues under the UUID with which it began: the label has the number that this UUID is derived from.

use crate::{
    device::{Command, DeviceError, ZonedDevice, Zones},
    format::{Origin, Uuid, record::Record, superblock::Order},
    raid::{
        Drive,
        erase::member_uuid,
        error::BadDrive,
        geometry::{META_ZONES, physical},
        journal::{
            label::{LABEL_ZONE, Label, read_label},
            read::NoLog,
        },
        maintain::attach,
        parts::Raid,
        recover::scan::{find_log, prepare},
        status::{Progress, UnfinishedCopy},
        zone::{read, relocated},
    },
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::Cell, collections::BTreeMap, rc::Rc};

/// A drive that is to become a member.
pub struct Newcomer {
    pub name: String,
    /// UUID of the drive as the member, and the number that it is derived from.
    pub uuid: Uuid,
    pub number: u64,
    /// The drive itself, and the drive as the array uses it.
    pub drive: Rc<dyn ZonedDevice>,
    pub device: Rc<dyn ZonedDevice>,
    /// Its power epoch before anything is written to it.
    pub power_epoch: Option<u64>,
    /// Label of an interrupted copy of the member to the drive.
    pub label: Option<Label>,
}

/// A drive that is being filled, and its label.
pub struct Target {
    array: Uuid,
    member: usize,
    device: Rc<dyn ZonedDevice>,
    /// Number that the drive's UUID is derived from.
    number: u64,
    /// As [`Newcomer::power_epoch`].
    power_epoch: Option<u64>,
    /// As [`crate::raid::journal::label::Label::copied`].
    copied: BTreeMap<u32, u64>,
    /// End of the label; `None` if it cannot be written any more.
    wp_blocks: Cell<Option<u64>>,
}

impl Target {
    /// Whether the drive has no usable label: none of its zones is kept.
    pub fn is_blank(&self) -> bool {
        self.wp_blocks.get().is_none()
    }

    /// Zones of the drive to be emptied: all but the zone of the label and the zones that it lists as copied.
    pub fn others(&self) -> impl Iterator<Item = u32> {
        let is_kept = |zone: &u32| {
            *zone == LABEL_ZONE.0
                || zone.checked_sub(META_ZONES).is_some_and(|zone| self.has_kept(ZoneIndex(zone)))
        };
        (0..self.device.geometry().zones).filter(move |zone| !is_kept(zone))
    }

    /// Whether the drive keeps its copy of a zone from an earlier run; the zone may have changed on the member since.
    pub fn has_kept(&self, zone: ZoneIndex) -> bool {
        self.copied.contains_key(&zone.0)
    }

    /// Appends to the label, if it can still be written: zones without a record are copied again. An error means that a
    /// flush has failed, and that copied data may be lost as well.
    async fn append(&self, record: Record, sequence: u64) -> Result<(), DeviceError> {
        let Some(at) = self.wp_blocks.take() else { return Ok(()) };
        let geometry = self.device.geometry();
        let lba = geometry.start(LABEL_ZONE).0 + at;
        let origin = Origin { array: self.array, member: self.member as u32, lba };
        let data = record.encode(origin, sequence);
        let end = at + data.blocks();
        if end > geometry.zone_capacity_blocks || data.blocks() > geometry.max_transfer_blocks as u64 {
            return Ok(());
        }
        let volatile = geometry.volatile_cache;
        if self.device.submit(Command::write(Lba(lba), data, !volatile)).await.result.is_ok() {
            self.flush().await?;
            self.wp_blocks.set(Some(end));
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        match self.device.geometry().volatile_cache {
            true => self.device.submit(Command::Flush).await.result,
            false => Ok(()),
        }
    }

    /// Finishes the zone of the label before the drive takes over: it would hold active resources.
    pub async fn close(&self) {
        self.wp_blocks.take();
        self.device.submit(Command::Finish { zones: Zones::One(LABEL_ZONE) }).await;
    }
}

/// The label of a drive that is being filled with a copy of a present member; `None` if it is another drive.
pub async fn label_of(raid: &Raid, drive: &Drive) -> Option<Label> {
    let superblock = raid.membership.superblock().clone();
    if !matches!(find_log(&raid.runtime, drive).await, Err(NoLog::Target(array, _)) if array == raid.array) {
        return None;
    }
    let device = prepare(&raid.runtime, drive.device.clone(), Order::Any, superblock.aggregate)?;
    let label = read_label(&device).await?;
    // The role in the label is a member of this array only if the superblocks agree.
    label.superblock.agree(&superblock).ok()?;
    (superblock.members[label.member].uuid == label.source().uuid).then_some(label)
}

/// The unfinished copy of a member to `drive`, if it is being filled with one.
pub async fn copy_to(raid: &Raid, drive: &Drive) -> Option<UnfinishedCopy> {
    let label = label_of(raid, drive).await?;
    let member = label.member;
    let new = newcomer(raid, member, drive, Some(label)).ok()?;
    let target = find_target(raid, member, &new).await;
    let progress = copy_progress(raid, member, &target);
    raid.members.is_active(member).then(|| UnfinishedCopy { drive: drive.name.clone(), member, progress })
}

/// The contents that are kept of a drive that is to be filled with a copy of `member`: the zones that the label of
/// an interrupted copy lists; otherwise none.
pub async fn find_target(raid: &Raid, member: usize, new: &Newcomer) -> Target {
    let (device, number) = (&new.device, new.number);
    // Without the number the UUID in appended blocks is not known.
    let counts = |label: &&Label| {
        let is_known = attach::number_of_filled(raid, label).is_some();
        label.member == member && (!raid.membership.superblock().stores_member_uuids() || is_known)
    };
    let label = new.label.as_ref().filter(counts);
    let (mut copied, wp_blocks) = label.map(|label| (label.copied.clone(), label.wp_blocks)).unzip();
    if let Some(copied) = &mut copied {
        let report = Command::Report { first: physical(ZoneIndex(0)), count: raid.geometry.zones };
        let zones = device.submit(report).await.zones;
        let is_full = |zone: u32| zones.get(zone as usize).is_some_and(|info| info.state == ZoneState::Full);
        copied.retain(|zone, epoch| is_full(*zone) && is_full_in(raid, ZoneIndex(*zone), *epoch));
    }
    let (array, device) = (raid.array, device.clone());
    let (copied, wp_blocks) = (copied.unwrap_or_default(), Cell::new(wp_blocks));
    Target { array, member, device, number, power_epoch: new.power_epoch, copied, wp_blocks }
}

/// Whether a zone is full and has this epoch.
fn is_full_in(raid: &Raid, zone: ZoneIndex, epoch: u64) -> bool {
    let is_full = zone.0 < raid.geometry.zones && raid.zones.state(zone) == ZoneState::Full;
    is_full && !raid.zones.is_running(zone) && raid.zone_records.epoch(zone) == epoch
}

/// Begins the label of a drive that has been emptied, if it has none. After an error the contents of the drive are
/// not reliable.
pub async fn begin_label(raid: &Raid, target: &Target) -> Result<(), DeviceError> {
    if target.wp_blocks.get().is_some() {
        return Ok(());
    }
    target.wp_blocks.set(Some(0));
    let (mut superblock, sequence) = (raid.membership.superblock().clone(), raid.membership.sequence());
    superblock.members[target.member].taking_over = Some(target.number);
    target.append(Record::Superblock(Box::new(superblock)), sequence).await
}

/// Whether a zone on the drive, from an earlier copy, equals the member's part.
pub fn is_copied(raid: &Raid, zone: ZoneIndex, target: &Target) -> bool {
    target.copied.get(&zone.0).is_some_and(|epoch| is_full_in(raid, zone, *epoch))
}

/// Progress of an interrupted copy of `member`: the bytes that are kept, and all bytes.
pub fn copy_progress(raid: &Raid, member: usize, target: &Target) -> Progress {
    let zones = (0..raid.geometry.zones).map(ZoneIndex);
    let (mut done_bytes, mut total_bytes) = (0, 0);
    for zone in zones.filter(|zone| raid.live(*zone) & (1 << member) != 0) {
        let bytes = read::member_bytes(raid, zone);
        total_bytes += bytes;
        done_bytes += if is_copied(raid, zone, target) { bytes } else { 0 };
    }
    assert!(done_bytes <= total_bytes, "{done_bytes} bytes of {total_bytes} are copied");
    Progress::paused(done_bytes, total_bytes)
}

/// Records in the label that a zone has been copied, if it cannot change any more. After an error the contents of
/// the drive are not reliable.
pub async fn label_copied(raid: &Raid, zone: ZoneIndex, target: &Target) -> Result<(), DeviceError> {
    let (member, epoch) = (target.member, raid.zone_records.epoch(zone));
    let blocks = 0..raid.layout.rows * raid.layout.chunk_blocks;
    let is_burned =
        raid.zone_records.burned().iter().any(|b| (b.zone, b.member as usize) == (zone.0, member));
    let has_all = !is_burned
        && !relocated::has_relocated(raid, zone, member)
        && !raid.zone_records.has_bad_block(zone, member, blocks);
    if !has_all || !is_full_in(raid, zone, epoch) || is_copied(raid, zone, target) {
        return Ok(());
    }
    target.flush().await?;
    if target.device.power_epoch() != target.power_epoch {
        return Err(DeviceError::PowerLost);
    }
    let tail_blocks = raid.finished_tail(zone);
    let sequence = raid.membership.sequence();
    target.append(Record::Finish { zone: zone.0, epoch, tail_blocks }, sequence).await
}

/// The drive as the replacement of `member`; `label` is that of the drive, if a copy of the member was interrupted.
pub fn newcomer(
    raid: &Raid,
    member: usize,
    drive: &Drive,
    label: Option<Label>,
) -> Result<Newcomer, BadDrive> {
    let kept = label.as_ref().and_then(|label| attach::number_of_filled(raid, label));
    let number = kept.unwrap_or_else(|| raid.membership.next_sequence());
    let uuid = member_uuid(raid.array, member, number);
    let device = attach::prepare(raid, drive, uuid)?;
    let Drive { name, device: drive } = drive.clone();
    let power_epoch = device.power_epoch();
    Ok(Newcomer { name, uuid, number, drive, device, power_epoch, label })
}
