//! The members of an array: which drive is in which place, and the one door to all of them.
//!
//! Commands for members go through [`Members::submit`], and what comes of them is told here: who has failed is no
//! member from that moment on. That others have to know it is a matter of the membership
//! ([`super::membership`]).

use crate::{
    adapt::mirror::Mirror,
    device::{Command, Completion, DeviceError, Status, ZonedDevice},
    raid::{
        Drive,
        error::{ArrayError, BadDrive, BadMember, DriveFault, Note, Notes},
        geometry::{each, physical},
        journal::log::MetaLog,
        seat::Seat,
    },
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// A place in the array, and the drive in it.
#[derive(Default)]
struct Member {
    /// How many drives have been in this place: an error of an earlier one is not the present one's.
    incarnation: Cell<u32>,
    log: RefCell<Option<Rc<MetaLog>>>,
    /// Distance between two zones of the drive.
    zone_size_blocks: Cell<u64>,
    /// What messages call the drive.
    name: RefCell<String>,
    /// Why the member is out, or what else there is to say.
    note: RefCell<Note>,
    read_errors: Cell<u64>,
    write_errors: Cell<u64>,
    /// Zones of which the drive has lost its part at work and not got it back.
    parts_lost: Cell<u32>,
    /// Zones of the drive are read-only or offline.
    worn: Cell<bool>,
    /// Power epoch of the drive for which its parts of zones have been checked.
    power_epoch: Cell<Option<u64>>,
    /// Power epoch of the drive for which the members' logs name the lost parts.
    settled_epoch: Cell<Option<u64>>,
}

/// What there is to say of the drive in a place.
#[derive(Clone, Debug)]
pub struct About {
    pub name: String,
    pub note: Note,
    pub read_errors: u64,
    pub write_errors: u64,
    pub worn: bool,
}

/// All places of an array, whether there is a drive in them or not.
pub struct Members {
    places: Vec<Member>,
    /// Without so many nothing can be read.
    fewest: usize,
    /// Members (bits) that belong to the array and have a drive.
    active: Cell<u32>,
    /// A drive that is or was here may lose completed writes in a power cut.
    volatile: Cell<bool>,
    /// Members (bits) whose drives have lost power and whose parts of zones have not been checked yet.
    suspects: Cell<u32>,
    /// How often a part of a zone was lost: what was read meanwhile may be of what was written anew there.
    losses: Cell<u64>,
    /// A drive that is being replaced, and the one that gets what is written to it.
    mirror: RefCell<Option<(Seat, Rc<Mirror>)>>,
}

/// Whether an error is about one zone of a drive: it is worn, or not as we have left it. A zone that has
/// lost its ZRWA answers an explicit flush with Invalid Field; one of several small ones that cannot be brought
/// to where it was left, for something in it cannot be read, Unrecovered Read Error.
pub fn is_of_zone(error: DeviceError) -> bool {
    use Status::*;
    let DeviceError::Status(status) = error else { return false };
    matches!(
        status,
        ZoneIsReadOnly
            | ZoneIsOffline
            | ZoneIsFull
            | ZoneInvalidWrite
            | ZoneBoundaryError
            | InvalidZoneOperation
            | InvalidZoneStateTransition
            | InvalidField
            | WriteFault
            | UnrecoveredReadError
    )
}

/// Whether an error says that a block, and nothing more, cannot be read.
pub fn is_unreadable(error: DeviceError) -> bool {
    matches!(error, DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock))
}

impl Members {
    /// So many places, all of them vacant, of which `fewest` at least have to be taken.
    pub fn new(count: usize, fewest: usize) -> Members {
        Members {
            places: (0..count).map(|_| Member::default()).collect(),
            fewest,
            active: Cell::default(),
            volatile: Cell::default(),
            suspects: Cell::default(),
            losses: Cell::default(),
            mirror: RefCell::default(),
        }
    }

    /// How many places there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The members (bits) that are there.
    pub fn active(&self) -> u32 {
        self.active.get()
    }

    pub fn is_active(&self, member: usize) -> bool {
        self.active.get() & (1 << member) != 0
    }

    /// The members (bits) that are out.
    pub fn out(&self) -> u32 {
        u32::MAX >> (u32::BITS as usize - self.places.len()) & !self.active.get()
    }

    /// Whether everything can be read with just these members (bits).
    pub fn are_enough(&self, members: u32) -> bool {
        members.count_ones() as usize >= self.fewest
    }

    /// Members that are the fewest: one less, and there are not enough.
    pub fn are_needed(&self, members: u32) -> bool {
        members.count_ones() as usize <= self.fewest
    }

    /// The drive that is in the place of `member` now.
    pub fn seat(&self, member: usize) -> Seat {
        Seat { member, incarnation: self.places[member].incarnation.get() }
    }

    /// Whether a drive is still the member.
    pub fn is_seated(&self, seat: Seat) -> bool {
        self.is_active(seat.member) && self.seat(seat.member) == seat
    }

    /// Whether a log is that of the drive that is the member. Once a drive is out or replaced it must not learn
    /// any more: the newest superblock would make it pass for its successor.
    pub fn is_current(&self, member: usize, log: &MetaLog) -> bool {
        let current = self.places[member].log.borrow();
        self.is_active(member) && current.as_deref().is_some_and(|current| std::ptr::eq(current, log))
    }

    pub fn device(&self, member: usize) -> Option<Rc<dyn ZonedDevice>> {
        self.log(member)
            .filter(|_| self.is_active(member))
            .map(|log| log.device.clone() as Rc<dyn ZonedDevice>)
    }

    /// The log of the drive in a place, also if that is out.
    pub fn log(&self, member: usize) -> Option<Rc<MetaLog>> {
        self.places[member].log.borrow().clone()
    }

    /// The logs of all drives, also of those that are out.
    pub fn logs(&self) -> impl Iterator<Item = Rc<MetaLog>> {
        self.places.iter().filter_map(|place| place.log.borrow().clone())
    }

    /// Starts a command on a member; one that is out answers at once that it is gone.
    pub fn submit(&self, member: usize, command: Command) -> Completion {
        if self.is_active(member)
            && let Some(log) = &*self.places[member].log.borrow()
        {
            return match &*self.mirror.borrow() {
                Some((seat, mirror)) if *seat == self.seat(member) => mirror.submit(command),
                _ => log.device.that_takes(&command).submit(command),
            };
        }
        Completion::failed(DeviceError::Gone)
    }

    /// First block of `zone` on `member`.
    pub fn start(&self, member: usize, zone: ZoneIndex) -> Lba {
        Lba(physical(zone).0 as u64 * self.places[member].zone_size_blocks.get())
    }

    /// Gives `member` its drive.
    pub fn put(&self, member: usize, name: String, log: Rc<MetaLog>) {
        let place = &self.places[member];
        place.incarnation.set(place.incarnation.get() + 1);
        // What is being read of the drive before says nothing of this one.
        self.note_loss();
        place.parts_lost.set(0);
        place.worn.set(false);
        place.power_epoch.set(log.device.power_epoch());
        place.settled_epoch.set(place.power_epoch.get());
        self.suspects.set(self.suspects.get() & !(1 << member));
        place.zone_size_blocks.set(log.device.geometry().zone_size_blocks);
        self.volatile.set(self.volatile.get() || log.device.geometry().volatile_cache);
        *place.log.borrow_mut() = Some(log);
        *place.name.borrow_mut() = name;
        self.active.set(self.active.get() | 1 << member);
    }

    /// Forgets what has been said of the drive that was in a place.
    pub fn forget(&self, member: usize) {
        let place = &self.places[member];
        place.read_errors.set(0);
        place.write_errors.set(0);
        place.note.take();
    }

    /// Does without a drive from now on.
    pub fn take_out(&self, member: usize) {
        self.active.set(self.active.get() & !(1 << member));
    }

    /// Whether completed writes may be lost in a power cut, now or with a drive that was here.
    pub fn is_volatile(&self) -> bool {
        self.volatile.get()
    }

    /// Grows when what is being read may be of what has been written anew since.
    pub fn losses(&self) -> u64 {
        self.losses.get()
    }

    pub fn note_loss(&self) {
        self.losses.set(self.losses.get() + 1);
    }

    /// Power epoch of a member's drive for which the logs name the lost parts.
    pub fn settled_epoch(&self, member: usize) -> Option<u64> {
        self.places[member].settled_epoch.get()
    }

    /// The logs name the parts that all checks so far have found lost.
    pub fn settle_epochs(&self) {
        self.places.iter().for_each(|place| place.settled_epoch.set(place.power_epoch.get()));
    }

    /// Active members (bits) whose drives have lost power since their last check.
    pub fn lost_power(&self, among: u32) -> u32 {
        let is_changed = |member: &usize| {
            let place = &self.places[*member];
            let now = place.log.borrow().as_ref().and_then(|log| log.device.power_epoch());
            now.zip(place.power_epoch.get()).is_some_and(|(now, known)| now != known)
        };
        each(among & self.active()).filter(is_changed).fold(0, |lost, member| lost | 1 << member)
    }

    /// Members (bits) whose parts of zones are to be checked after a power loss.
    pub fn suspects(&self) -> u32 {
        self.suspects.get()
    }

    /// Makes members (bits) suspect until [`Members::end_suspicion`]; reads in flight are repeated.
    pub fn suspect(&self, members: u32) {
        self.suspects.set(self.suspects.get() | members);
        self.note_loss();
    }

    /// The parts of a member have been checked for this power epoch of its drive.
    pub fn end_suspicion(&self, member: usize, power_epoch: Option<u64>) {
        self.places[member].power_epoch.set(power_epoch);
        self.suspects.set(self.suspects.get() & !(1 << member));
    }

    /// Has the drive of a seat mirrored, until [`Members::end_mirror`].
    pub fn mirror(&self, seat: Seat, mirror: Rc<Mirror>) {
        *self.mirror.borrow_mut() = Some((seat, mirror));
    }

    pub fn end_mirror(&self) {
        self.mirror.take();
    }

    /// Lets the drive go that gets what is written to another one; `false` if there is none.
    pub fn let_mirror_go(&self) -> bool {
        let mirror = self.mirror.borrow();
        mirror.as_ref().is_some_and(|(_, mirror)| {
            mirror.let_go(DeviceError::Gone);
            true
        })
    }

    /// The member that is mirrored.
    pub fn mirrored(&self) -> Option<usize> {
        self.mirror.borrow().as_ref().map(|(seat, _)| seat.member)
    }

    /// Why the member is out, or what else there is to say of it.
    pub fn say(&self, member: usize, note: Note) {
        self.places[member].note.replace(note);
    }

    pub fn name(&self, member: usize) -> String {
        self.places[member].name.borrow().clone()
    }

    pub fn about(&self, member: usize) -> About {
        let place = &self.places[member];
        About {
            name: place.name.borrow().clone(),
            note: place.note.borrow().clone(),
            read_errors: place.read_errors.get(),
            write_errors: place.write_errors.get(),
            worn: place.worn.get(),
        }
    }

    /// What there is to say of the members in `mask`.
    pub fn notes(&self, mask: u32) -> Notes {
        let places = self.places.iter().enumerate().filter(|(member, _)| mask & (1 << member) != 0);
        let notes = places.map(|(member, place)| (member, place.note.borrow().clone()));
        Notes(notes.filter(|(_, note)| !note.is_empty()).collect())
    }

    pub fn count_read_error(&self, member: usize) {
        let errors = &self.places[member].read_errors;
        errors.set(errors.get() + 1);
    }

    pub fn count_write_error(&self, member: usize) {
        let errors = &self.places[member].write_errors;
        errors.set(errors.get() + 1);
    }

    /// Zones of which the drive in a place has lost its part at work and not got it back.
    pub fn parts_lost(&self, member: usize) -> u32 {
        self.places[member].parts_lost.get()
    }

    pub fn count_part_lost(&self, member: usize) {
        let lost = &self.places[member].parts_lost;
        lost.set(lost.get() + 1);
    }

    /// So many parts of zones are there again.
    pub fn count_parts_back(&self, member: usize, parts: u32) {
        let lost = &self.places[member].parts_lost;
        lost.set(lost.get().saturating_sub(parts));
    }

    /// Takes note that zones of a drive are read-only or offline, or that none are.
    pub fn set_worn(&self, member: usize, worn: bool) {
        self.places[member].worn.set(worn);
    }

    /// Whether zones of a drive are known to be read-only or offline.
    pub fn is_worn(&self, member: usize) -> bool {
        self.places[member].worn.get()
    }

    /// Takes note of an error that says that a zone of a drive cannot be written any more.
    pub fn note_wear(&self, member: usize, error: DeviceError) {
        if [Status::ZoneIsReadOnly.into(), Status::ZoneIsOffline.into()].contains(&error) {
            self.set_worn(member, true);
        }
    }

    pub fn check(&self, member: usize) -> Result<(), ArrayError> {
        let members = self.places.len();
        match member < members {
            true => Ok(()),
            false => Err(BadMember::None { member, members }.into()),
        }
    }

    /// The member whose drive it is.
    pub fn member_of(&self, drive: &Drive) -> Option<usize> {
        let is_of =
            |member: &usize| self.log(*member).is_some_and(|log| Rc::ptr_eq(&log.drive, &drive.device));
        each(self.active()).find(is_of)
    }

    pub fn check_unused(&self, drive: &Drive) -> Result<(), ArrayError> {
        match self.member_of(drive) {
            Some(_) => Err(BadDrive::new(&drive.name, DriveFault::IsMember).into()),
            None => Ok(()),
        }
    }
}
