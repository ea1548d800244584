//! Another drive in a place that is vacant.

use crate::{
    device::ZonedDevice,
    format::superblock::SuperblockMember,
    raid::{
        Drive,
        core::Core,
        create::check_drive,
        erase::{kept_plate, member_uuid, wipe},
        error::ArrayError,
        metalog::{Live, MetaLog},
        patrol::replace::Newcomer,
        recover::scan::prepare,
    },
    zone::{ZoneIndex, ZoneState},
};
use std::rc::Rc;

impl Core {
    /// Puts a drive in the place of `member`, which must be out, to be rebuilt. Every zone of the
    /// drive is reset.
    pub async fn attach(self: &Rc<Self>, member: usize, drive: Drive) -> Result<(), ArrayError> {
        let place = self.check_role(member)?;
        if self.active.get() & (1 << member) != 0 {
            return Err(ArrayError(format!("member {member} is in use: fail it first")));
        }
        if self.mirror.borrow().is_some() || self.held.borrow().is_some() {
            return Err(ArrayError("another drive is being replaced: let that end first".into()));
        }
        let device = self.prepare(&drive)?;
        self.check_unused(&drive)?;
        let problem = |error| ArrayError(format!("{}: {error}", drive.name));
        // It may be the drive that was here before, and reads of that be on their way.
        self.losses.set(self.losses.get() + 1);
        wipe(&*device).await.map_err(problem)?;
        self.membership_settled().await;
        let event = self.next_sequence();
        {
            let mut superblock = self.superblock.borrow_mut();
            superblock.event = event;
            let (uuid, plate) = (member_uuid(self.array, member, event), kept_plate(&*drive.device));
            superblock.members[member] = SuperblockMember::new(uuid, event, plate);
            let (table, running) = (self.table.borrow(), self.running.borrow());
            for (zone, record) in self.zones.borrow_mut().iter_mut().enumerate() {
                let empty = table.info(ZoneIndex(zone as u32)).state == ZoneState::Empty
                    && !running.contains_key(&(zone as u32));
                record.lost &= !(1 << member);
                record.lost |= (!empty as u32) << member;
                record.waits &= !(1 << member);
            }
        }
        let log = MetaLog::new(self, member, drive.device.clone(), device, 1, 0, Live::default());
        place.read_errors.set(0);
        place.write_errors.set(0);
        place.note.borrow_mut().clear();
        let others = self.active.get();
        self.put(member, drive.name.clone(), log.clone());
        // The new member learns last that it is one. If it knew before the others, and they went
        // on without it, its superblock would be the newest.
        let own = log.renew(self);
        self.renew_logs(others).await;
        self.runtime.spawn(log.run());
        own.await;
        self.membership_settled().await;
        if self.failed.get() || self.active.get() & (1 << member) == 0 {
            return Err(ArrayError(format!("{}: it failed while it was added", drive.name)));
        }
        self.superblock.borrow_mut().floor = event;
        Ok(())
    }

    /// The drive as a member uses it, if it could be one.
    pub fn prepare(&self, drive: &Drive) -> Result<Rc<dyn ZonedDevice>, ArrayError> {
        let superblock = self.superblock.borrow();
        let aggregate = superblock.aggregate;
        let device = prepare(&self.runtime, drive.device.clone(), !superblock.policy.uses_zrwa(), aggregate);
        let device = device.ok_or_else(|| {
            ArrayError(format!(
                "{}: {aggregate} of its zones cannot be used as one, as this array needs",
                drive.name
            ))
        })?;
        check_drive(&drive.name, &*device, &superblock)?;
        Ok(device)
    }

    /// The drive as one that is to replace another.
    pub fn newcomer(&self, drive: &Drive) -> Result<Newcomer, ArrayError> {
        let device = self.prepare(drive)?;
        let Drive { name, device: drive } = drive.clone();
        Ok(Newcomer { name, drive, device })
    }
}
