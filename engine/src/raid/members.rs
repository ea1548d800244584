//! The members of an array: the drive in each place, and the only access to the drives.
//!
//! Commands for members go through [`Members::submit`], and their failures are recorded here: a member that has failed
//! is out from that moment on. To inform the other members is the task of the membership ([`super::membership`]).

use crate::{
    adapt::mirror::Mirror,
    device::{Command, Completion, DeviceError, Status, ZonedDevice},
    format::superblock::ErrorCounts,
    raid::{
        Drive,
        error::{ArrayError, BadDrive, BadMember, DriveFault, Note, Notes},
        geometry::{MAX_MEMBERS, each, physical},
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
    /// Number of drives that have been in this place: errors of an earlier one do not concern the present one.
    incarnation: Cell<u32>,
    log: RefCell<Option<Rc<MetaLog>>>,
    /// Distance between two zones of the drive.
    zone_size_blocks: Cell<u64>,
    /// Name of the drive in messages.
    name: RefCell<String>,
    /// Why the member is out, or another remark on it.
    note: RefCell<Note>,
    errors: Cell<ErrorCounts>,
    /// Zones of which the drive has lost its part at runtime and not got it back.
    parts_lost: Cell<u32>,
    /// Whether zones of the drive are known to be read-only or offline.
    worn: Cell<bool>,
    /// Power epoch of the drive for which its parts of zones have been checked.
    power_epoch: Cell<Option<u64>>,
    /// Power epoch of the drive for which the members' logs name the lost parts.
    settled_epoch: Cell<Option<u64>>,
}

/// Properties of the drive in a place, for the status.
#[derive(Clone, Debug)]
pub struct MemberDetails {
    pub name: String,
    pub note: Note,
    pub errors: ErrorCounts,
    pub worn: bool,
}

/// All places of an array, vacant or not.
pub struct Members {
    places: Vec<Member>,
    /// Fewest members with which everything can be read.
    fewest: usize,
    /// Members (bits) that belong to the array and have a drive.
    active: Cell<u32>,
    /// Whether a drive that is or was a member has a volatile cache.
    volatile: Cell<bool>,
    /// Members (bits) with drives that have lost power, until their parts of zones have been checked.
    suspects: Cell<u32>,
    /// Number of losses of a part of a zone. A read during which it grows may return data that was written there anew.
    losses: Cell<u64>,
    /// The drive that is being replaced, and the mirror that writes to the new drive as well.
    mirror: RefCell<Option<(Seat, Rc<Mirror>)>>,
}

/// Whether an error concerns one zone of a drive: the zone is worn, or not in the state in which the array left it. A
/// zone that has lost its ZRWA answers an explicit flush with Invalid Field; an aggregate of small zones that cannot be
/// restored to the state in which it was left, since a block of it cannot be read, answers Unrecovered Read Error.
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

/// Whether an error means only that a block cannot be read.
pub fn is_unreadable(error: DeviceError) -> bool {
    matches!(error, DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock))
}

impl Members {
    /// `count` vacant places; with less than `fewest` members not everything can be read.
    pub fn new(count: usize, fewest: usize) -> Members {
        assert!(fewest <= count && count <= MAX_MEMBERS, "{fewest} of {count} members are enough");
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

    /// Number of places.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Active members (bits).
    pub fn active(&self) -> u32 {
        self.active.get()
    }

    pub fn is_active(&self, member: usize) -> bool {
        self.active.get() & (1 << member) != 0
    }

    /// All members (bits).
    fn all(&self) -> u32 {
        u32::MAX >> (u32::BITS as usize - self.places.len())
    }

    /// The members (bits) that are out.
    pub fn out(&self) -> u32 {
        self.all() & !self.active.get()
    }

    /// Whether everything can be read with these members (bits) alone.
    pub fn are_enough(&self, members: u32) -> bool {
        members.count_ones() as usize >= self.fewest
    }

    /// Whether these members (bits) are so few that none of them can be spared.
    pub fn are_needed(&self, members: u32) -> bool {
        members.count_ones() as usize <= self.fewest
    }

    /// The drive that is in the place of `member` now.
    pub fn seat(&self, member: usize) -> Seat {
        Seat { member, incarnation: self.places[member].incarnation.get() }
    }

    /// Whether the drive of `seat` is still the member.
    pub fn is_seated(&self, seat: Seat) -> bool {
        self.is_active(seat.member) && self.seat(seat.member) == seat
    }

    /// Whether `log` is that of the member's present drive. A drive that is out or was replaced must not be updated any
    /// more: with the newest superblock it would pass for its successor.
    pub fn is_current(&self, member: usize, log: &MetaLog) -> bool {
        let current = self.places[member].log.borrow();
        self.is_active(member) && current.as_deref().is_some_and(|current| std::ptr::eq(current, log))
    }

    pub fn device(&self, member: usize) -> Option<Rc<dyn ZonedDevice>> {
        self.log(member)
            .filter(|_| self.is_active(member))
            .map(|log| log.device.clone() as Rc<dyn ZonedDevice>)
    }

    /// The log of the drive in a place, also if the member is out.
    pub fn log(&self, member: usize) -> Option<Rc<MetaLog>> {
        self.places[member].log.borrow().clone()
    }

    /// The logs of all drives, also of members that are out.
    pub fn logs(&self) -> impl Iterator<Item = Rc<MetaLog>> {
        self.places.iter().filter_map(|place| place.log.borrow().clone())
    }

    /// Starts a command on a member; one that is out fails it at once with Gone.
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

    /// Makes a drive the member; `power_epoch` was read before any of its zones was reported or written, so that a loss
    /// of power since is noticed.
    pub fn put(&self, member: usize, name: String, log: Rc<MetaLog>, power_epoch: Option<u64>) {
        let place = &self.places[member];
        place.incarnation.set(place.incarnation.get() + 1);
        // Reads in flight to the previous drive are no evidence of this one.
        self.note_loss();
        place.parts_lost.set(0);
        place.worn.set(false);
        place.power_epoch.set(power_epoch);
        place.settled_epoch.set(place.power_epoch.get());
        self.suspects.set(self.suspects.get() & !(1 << member));
        place.zone_size_blocks.set(log.device.geometry().zone_size_blocks);
        assert!(place.zone_size_blocks.get() > 0, "the zones of member {member} are empty");
        self.volatile.set(self.volatile.get() || log.device.geometry().volatile_cache);
        *place.log.borrow_mut() = Some(log);
        *place.name.borrow_mut() = name;
        self.set_active(self.active.get() | 1 << member);
    }

    /// Clears the error counts and the note of the drive that was in a place.
    pub fn forget(&self, member: usize) {
        let place = &self.places[member];
        place.errors.take();
        place.note.take();
    }

    /// Takes a member out.
    pub fn take_out(&self, member: usize) {
        self.set_active(self.active.get() & !(1 << member));
    }

    /// # Panics
    /// If an active member has no drive.
    fn set_active(&self, active: u32) {
        let occupied =
            |member: usize| self.places.get(member).is_some_and(|place| place.log.borrow().is_some());
        assert!(
            each(active).all(occupied),
            "members {active:#b} are active, and not all of them have a drive"
        );
        self.active.set(active);
    }

    /// Whether completed writes may be lost in a power cut, with a present drive or one that was a member.
    pub fn is_volatile(&self) -> bool {
        self.volatile.get()
    }

    /// Number that grows when a read in flight may return data that has been written anew since.
    pub fn losses(&self) -> u64 {
        self.losses.get()
    }

    pub fn note_loss(&self) {
        self.losses.set(self.losses.get() + 1);
    }

    /// Power epoch of a member's drive for which its parts of zones are known to be present.
    pub fn power_epoch(&self, member: usize) -> Option<u64> {
        self.places[member].power_epoch.get()
    }

    /// Power epoch of a member's drive for which the logs name the lost parts.
    pub fn settled_epoch(&self, member: usize) -> Option<u64> {
        self.places[member].settled_epoch.get()
    }

    /// Records that the logs name all parts that power checks have found lost so far.
    pub fn settle_epochs(&self) {
        self.places.iter().for_each(|place| place.settled_epoch.set(place.power_epoch.get()));
    }

    /// Active members (bits) with drives that have lost power since their last check.
    pub fn lost_power(&self, among: u32) -> u32 {
        let is_changed = |member: &usize| {
            let place = &self.places[*member];
            let now = place.log.borrow().as_ref().and_then(|log| log.device.power_epoch());
            now.zip(place.power_epoch.get()).is_some_and(|(now, known)| now != known)
        };
        each(among & self.active()).filter(is_changed).fold(0, |lost, member| lost | 1 << member)
    }

    /// Members (bits) with parts of zones to be checked after a power loss.
    pub fn suspects(&self) -> u32 {
        self.suspects.get()
    }

    /// Makes members (bits) suspect until [`Members::end_suspicion`]; reads in flight are repeated.
    pub fn suspect(&self, members: u32) {
        assert!(members & !self.all() == 0, "suspects {members:#b} of {} members", self.places.len());
        self.suspects.set(self.suspects.get() | members);
        self.note_loss();
    }

    /// Ends the suspicion of a member: its parts have been checked for this power epoch of its drive.
    pub fn end_suspicion(&self, member: usize, power_epoch: Option<u64>) {
        self.places[member].power_epoch.set(power_epoch);
        self.suspects.set(self.suspects.get() & !(1 << member));
    }

    /// Mirrors the drive of a seat, until [`Members::end_mirror`].
    pub fn mirror(&self, seat: Seat, mirror: Rc<Mirror>) {
        let previous = self.mirror.replace(Some((seat, mirror)));
        assert!(previous.is_none(), "member {} is mirrored while another one is", seat.member);
    }

    pub fn end_mirror(&self) {
        self.mirror.take();
    }

    /// Detaches the drive that the mirror writes to; `false` if there is none.
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

    /// Sets the reason why the member is out, or another remark on it.
    pub fn say(&self, member: usize, note: Note) {
        self.places[member].note.replace(note);
    }

    pub fn name(&self, member: usize) -> String {
        self.places[member].name.borrow().clone()
    }

    pub fn about(&self, member: usize) -> MemberDetails {
        let place = &self.places[member];
        MemberDetails {
            name: place.name.borrow().clone(),
            note: place.note.borrow().clone(),
            errors: place.errors.get(),
            worn: place.worn.get(),
        }
    }

    /// The notes of the members in `mask`.
    pub fn notes(&self, mask: u32) -> Notes {
        let places = self.places.iter().enumerate().filter(|(member, _)| mask & (1 << member) != 0);
        let notes = places.map(|(member, place)| (member, place.note.borrow().clone()));
        Notes(notes.filter(|(_, note)| !note.is_empty()).collect())
    }

    pub fn errors(&self, member: usize) -> ErrorCounts {
        self.places[member].errors.get()
    }

    /// Continues to count from what earlier assemblies have counted.
    pub fn set_errors(&self, member: usize, errors: ErrorCounts) {
        self.places[member].errors.set(errors);
    }

    pub fn count_read_error(&self, member: usize) {
        self.add_errors(member, ErrorCounts { reads: 1, ..ErrorCounts::default() });
    }

    pub fn count_write_error(&self, member: usize) {
        self.add_errors(member, ErrorCounts { writes: 1, ..ErrorCounts::default() });
    }

    /// Counts a block that was repaired, which the drive had returned wrong, or could not read.
    pub fn count_repaired(&self, member: usize, is_wrong: bool) {
        self.add_errors(
            member,
            ErrorCounts { repaired: 1, wrong: is_wrong.into(), ..ErrorCounts::default() },
        );
    }

    fn add_errors(&self, member: usize, more: ErrorCounts) {
        let errors = &self.places[member].errors;
        errors.set(errors.get() + more);
    }

    /// Zones of which the drive in a place has lost its part at runtime and not got it back.
    pub fn parts_lost(&self, member: usize) -> u32 {
        self.places[member].parts_lost.get()
    }

    pub fn count_part_lost(&self, member: usize) {
        let lost = &self.places[member].parts_lost;
        lost.set(lost.get() + 1);
    }

    /// Subtracts parts of zones that the drive has got back.
    pub fn count_parts_back(&self, member: usize, parts: u32) {
        let lost = &self.places[member].parts_lost;
        lost.set(lost.get().saturating_sub(parts));
    }

    /// Records whether zones of a drive are read-only or offline.
    pub fn set_worn(&self, member: usize, worn: bool) {
        self.places[member].worn.set(worn);
    }

    /// Whether zones of a drive are known to be read-only or offline.
    pub fn is_worn(&self, member: usize) -> bool {
        self.places[member].worn.get()
    }

    /// Records that a drive is worn if an error shows it.
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

    /// The active member that `drive` is the drive of.
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
