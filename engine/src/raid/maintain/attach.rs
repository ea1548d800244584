//! Attaches a drive in the place of a member that is out.

use crate::{
    device::ZonedDevice,
    format::{Uuid, superblock::SuperblockMember},
    raid::{
        Drive,
        create::{check_appends, check_drive, check_forgotten},
        erase::{kept_drive_id, member_uuid, wipe_for_member},
        error::{ArrayError, BadDrive, BadMember, Disqualification, DriveFault},
        events::Event,
        journal::{label::Label, logged::LiveRecords},
        maintain::target::Newcomer,
        parts::Raid,
        recover::scan::prepare,
    },
};
use std::{collections::BTreeMap, rc::Rc};

impl Raid {
    /// Resets every zone of a drive and makes it `member`, which must be out; its parts are to be rebuilt.
    pub async fn attach(self: &Rc<Self>, member: usize, drive: Drive) -> Result<(), ArrayError> {
        self.members.check(member)?;
        self.check_attachable(member, &drive)?;
        let uuid = self.new_uuid(member);
        let device = self.prepare(&drive, uuid)?;
        let power_epoch = device.power_epoch();
        // Reads may still be in flight to the drive, if it was a member before.
        self.members.note_loss();
        let wiped = wipe_for_member(&*drive.device, &*device).await;
        wiped.map_err(|error| BadDrive::new(&drive.name, DriveFault::Reset(error)))?;
        check_forgotten(&self.runtime, &drive).await?;
        self.membership.settled().await;
        // A replacement may have begun meanwhile.
        self.check_attachable(member, &drive)?;
        let event = self.membership.next_sequence();
        self.membership.change(|superblock| {
            superblock.event = event;
            superblock.members[member] = SuperblockMember::new(uuid, event, kept_drive_id(&*drive.device));
        });
        self.zone_records.change_all(|zone, record| {
            record.lost &= !(1 << member);
            record.lost |= (!self.zones.is_empty(zone) as u32) << member;
            record.waits &= !(1 << member);
        });
        let log = self.new_log(
            member,
            drive.device.clone(),
            (device, BTreeMap::new()),
            (1, 0),
            LiveRecords::default(),
        );
        self.members.forget(member);
        self.zone_records.unreadable.remove_parts(member, None);
        let others = self.members.active();
        self.members.put(member, drive.name.clone(), log.clone(), power_epoch);
        // The new member is updated last. If it were updated first, and the others continued without it, its superblock
        // would be the newest.
        let own = log.renew();
        self.renew_logs(others).await;
        self.runtime.spawn(log.run());
        own.await;
        self.membership.settled().await;
        if self.membership.has_failed() || !self.members.is_active(member) {
            return Err(BadDrive::new(&drive.name, DriveFault::FailedWhenAdded).into());
        }
        self.membership.change(|superblock| superblock.floor = event);
        self.events.note(Event::Attached { member, drive: drive.name });
        Ok(())
    }

    /// Checks that `member` is out, that no member is being replaced, and that the drive is not in use.
    fn check_attachable(&self, member: usize, drive: &Drive) -> Result<(), ArrayError> {
        if self.members.is_active(member) {
            return Err(BadMember::InUse(member).into());
        }
        if self.members.mirrored().is_some() || self.drain.has_begun() {
            return Err(BadMember::BeingReplaced.into());
        }
        self.members.check_unused(drive)
    }

    /// A new UUID for a drive that becomes `member`.
    fn new_uuid(&self, member: usize) -> Uuid {
        member_uuid(self.array, member, self.membership.next_sequence())
    }

    /// The drive, accessed as the member with this UUID; the error says why it cannot be a member.
    pub fn prepare(&self, drive: &Drive, uuid: Uuid) -> Result<Rc<dyn ZonedDevice>, BadDrive> {
        let superblock = self.membership.superblock();
        check_appends(drive, superblock.group_blocks as u64)?;
        let aggregate = superblock.aggregate;
        let device = prepare(&self.runtime, drive.device.clone(), superblock.order(uuid), aggregate);
        let device =
            device.ok_or_else(|| BadDrive::new(&drive.name, Disqualification::Aggregate(aggregate)))?;
        check_drive(&drive.name, &*device, &superblock)?;
        Ok(device)
    }

    /// The drive as the replacement of `member`; `label` is that of the drive, if a copy of the member was interrupted.
    pub fn newcomer(&self, member: usize, drive: &Drive, label: Option<Label>) -> Result<Newcomer, BadDrive> {
        let kept = label.as_ref().and_then(|label| self.number_of_filled(label));
        let number = kept.unwrap_or_else(|| self.membership.next_sequence());
        let uuid = member_uuid(self.array, member, number);
        let device = self.prepare(drive, uuid)?;
        let Drive { name, device: drive } = drive.clone();
        let power_epoch = device.power_epoch();
        Ok(Newcomer { name, uuid, number, drive, device, power_epoch, label })
    }
}
