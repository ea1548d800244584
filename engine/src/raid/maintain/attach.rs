//! Attaches a drive in the place of a member that is out.

use crate::raid::failures;
use crate::{
    device::ZonedDevice,
    format::{Uuid, superblock::SuperblockMember},
    raid::{
        Drive,
        create::{check_appends, check_drive, check_forgotten},
        durable,
        erase::{kept_drive_id, member_uuid, wipe_for_member},
        error::{ArrayError, BadDrive, BadMember, Disqualification, DriveFault},
        events::Event,
        journal::{label::Label, logged::LiveRecords},
        parts::Raid,
        recover::scan,
    },
};
use std::{collections::BTreeMap, rc::Rc};

/// Resets every zone of a drive and makes it `member`, which must be out; its parts are to be rebuilt. Comes to its end
/// if the future is dropped.
pub async fn attach(raid: &Rc<Raid>, member: usize, drive: Drive) -> Result<(), ArrayError> {
    // At once: the array is not closed until this ends.
    raid.drain.enter();
    let array = raid.clone();
    let whole = async move {
        // Another attachment may be of the same drive, which is not a member yet.
        let turn = array.attaching.take().await;
        let result = attach_now(&array, member, drive).await;
        drop(turn);
        array.drain.leave();
        array.zones.changed.open();
        result
    };
    raid.runtime.run_whole(whole).await
}

/// As [`attach`], as the only one in progress.
async fn attach_now(raid: &Rc<Raid>, member: usize, drive: Drive) -> Result<(), ArrayError> {
    raid.members.check(member)?;
    check_attachable(raid, member, &drive)?;
    let uuid = new_uuid(raid, member);
    let device = prepare(raid, &drive, uuid)?;
    let power_epoch = device.power_epoch();
    // Reads may still be in flight to the drive, if it was a member before.
    raid.members.note_loss();
    let wiped = wipe_for_member(&*drive.device, &*device).await;
    wiped.map_err(|error| BadDrive::new(&drive.name, DriveFault::Reset(error)))?;
    check_forgotten(&raid.runtime, &drive).await?;
    raid.membership.settled().await;
    failures::check_members(raid)?;
    check_attachable(raid, member, &drive)?;
    let event = raid.membership.next_sequence();
    raid.membership.change(|superblock| {
        superblock.event = event;
        superblock.members[member] = SuperblockMember::new(uuid, event, kept_drive_id(&*drive.device));
    });
    raid.zone_records.change_all(|zone, record| {
        record.lost &= !(1 << member);
        record.lost |= (!raid.zones.is_empty(zone) as u32) << member;
        record.waits &= !(1 << member);
    });
    let log =
        raid.new_log(member, drive.device.clone(), (device, BTreeMap::new()), (1, 0), LiveRecords::default());
    raid.members.forget(member);
    raid.zone_records.unreadable.remove_parts(member, None);
    let others = raid.members.active();
    raid.members.put(member, drive.name.clone(), log.clone(), power_epoch);
    // The new member is updated last. If it were updated first, and the others continued without it, its superblock
    // would be the newest.
    let own = log.renew();
    durable::renew_logs(raid, others).await;
    raid.runtime.spawn(log.run());
    own.await;
    raid.membership.settled().await;
    if raid.membership.has_failed() || !raid.members.is_active(member) {
        return Err(BadDrive::new(&drive.name, DriveFault::FailedWhenAdded).into());
    }
    raid.membership.change(|superblock| superblock.floor = event);
    raid.events.note(Event::Attached { member, drive: drive.name });
    Ok(())
}

/// Checks that `member` is out, that no member is being replaced, and that the drive is not in use.
fn check_attachable(raid: &Raid, member: usize, drive: &Drive) -> Result<(), ArrayError> {
    if raid.members.is_active(member) {
        return Err(BadMember::InUse(member).into());
    }
    if raid.background.is_copying() {
        return Err(BadMember::BeingReplaced.into());
    }
    raid.members.check_unused(drive)
}

/// A new UUID for a drive that becomes `member`.
fn new_uuid(raid: &Raid, member: usize) -> Uuid {
    member_uuid(raid.array, member, raid.membership.next_sequence())
}

/// The drive, accessed as the member with this UUID; the error says why it cannot be a member.
pub fn prepare(raid: &Raid, drive: &Drive, uuid: Uuid) -> Result<Rc<dyn ZonedDevice>, BadDrive> {
    let superblock = raid.membership.superblock();
    check_appends(drive, superblock.group_blocks as u64, superblock.has_checksums())?;
    let aggregate = superblock.aggregate;
    let device = scan::prepare(&raid.runtime, drive.device.clone(), superblock.order(uuid), aggregate);
    let device = device.ok_or_else(|| BadDrive::new(&drive.name, Disqualification::Aggregate(aggregate)))?;
    check_drive(&drive.name, &*device, &superblock)?;
    if let Some(sums) = device.checksums() {
        sums.set_epochs(raid.zone_records.epochs());
    }
    Ok(device)
}

/// The number from which the UUID of a partly filled drive was derived, if the copy has to continue under that UUID
/// since blocks contain it.
pub fn number_of_filled(raid: &Raid, label: &Label) -> Option<u64> {
    let superblock = raid.membership.superblock();
    let is_unchanged = superblock.members[label.member].since == label.source().since;
    label.source().taking_over.filter(|_| is_unchanged && superblock.stores_member_uuids())
}
