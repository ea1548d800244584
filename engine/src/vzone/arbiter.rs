//! Allocator of physical zones: their owners, and the order of allocation (eZNS §4.2, §4.3).
//!
//! Drives place zones on dies in the order in which they are first written. So zones are *reserved* one after the
//! other, by writing one block each, and given to groups in that order: consecutive zones lie on different dies, as
//! long as there are as many. A few are kept reserved, so that a group need not wait.
//!
//! Invariant: every zone has exactly one [`ZoneOwner`]; owners change only by calls in here, and `audit` checks them.

use std::collections::VecDeque;

/// Owner of a physical zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneOwner {
    /// Belongs to the journal.
    Head,
    /// No owner, empty.
    Free,
    /// No owner; its reservation is being written.
    Reserving,
    /// No owner; reserved, and available to groups.
    Ready,
    /// Belongs to a v-zone, or is allocated for a group of one.
    Given,
    /// No owner; released, and to be reset.
    Dirty,
    /// No owner; its reset is in flight.
    Resetting,
    /// No owner; it cannot be written any more.
    Worn,
}

/// State of a physical zone.
#[derive(Clone, Copy, Debug)]
pub struct Physical {
    owner: ZoneOwner,
    /// Whether it counts against the limit of active zones.
    active: bool,
    /// Outstanding reads; the zone is not reset before they have completed.
    readers: u32,
    /// Number of failed reservations and resets since the last reservation that succeeded.
    failures: u8,
}

/// Number of failures in a row after which a zone counts as worn.
const MOST_FAILURES: u8 = 3;

const _: () = assert!(size_of::<Physical>() < 64);

/// All physical zones of a device.
#[derive(Debug)]
pub struct Arbiter {
    zones: Vec<Physical>,
    free: VecDeque<u32>,
    ready: VecDeque<u32>,
    dirty: VecDeque<u32>,
    /// Zones that may be active at once, without those of the journal.
    limit: u32,
    /// Zones that are active, without those of the journal.
    active: u32,
    /// Active zones that belong to groups.
    grouped: u32,
    /// Zones that are kept reserved.
    kept: u32,
    /// Zones that a group waits for.
    wanted: u32,
    /// Number of the next reservation.
    serial: u64,
}

impl Arbiter {
    /// An allocator for `zones` zones, of which the first two belong to the journal; the others have to be added by
    /// [`Arbiter::found`]. At most `limit` zones are active, and `kept` of these are kept reserved.
    pub fn new(zones: u32, limit: u32, kept: u32, serial: u64) -> Arbiter {
        let head = Physical { owner: ZoneOwner::Head, active: false, readers: 0, failures: 0 };
        Arbiter {
            zones: vec![head; zones as usize],
            free: VecDeque::with_capacity(zones as usize),
            ready: VecDeque::with_capacity(zones as usize),
            dirty: VecDeque::with_capacity(zones as usize),
            limit,
            active: 0,
            grouped: 0,
            kept,
            wanted: 0,
            serial,
        }
    }

    /// Adds a zone that recovery has found to be given, free, dirty or worn.
    pub fn found(&mut self, zone: u32, owner: ZoneOwner, active: bool) {
        assert_eq!(
            self.owner(zone),
            Some(ZoneOwner::Head),
            "owner of zone {zone}, which is added as {owner:?}"
        );
        self.zones[zone as usize] = Physical { owner, active, readers: 0, failures: 0 };
        self.active += active as u32;
        match owner {
            ZoneOwner::Given => self.grouped += active as u32,
            ZoneOwner::Free => self.free.push_back(zone),
            ZoneOwner::Dirty => self.dirty.push_back(zone),
            _ => (),
        }
    }

    /// The number of the next reservation.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Maximum number of active zones of groups.
    pub fn group_limit(&self) -> u32 {
        self.limit - self.kept
    }

    /// Picks a zone to be reserved; returns it with the number of the reservation. `None` if enough zones are ready,
    /// none is free, or too many are active.
    pub fn reserve(&mut self) -> Option<(u32, u64)> {
        let lacking = (self.ready.len() as u32) < self.kept.max(self.wanted);
        if !lacking || self.active >= self.limit {
            return None;
        }
        let zone = self.free.pop_front()?;
        self.set(zone, &[ZoneOwner::Free], ZoneOwner::Reserving);
        self.zones[zone as usize].active = true;
        self.active += 1;
        self.serial += 1;
        Some((zone, self.serial - 1))
    }

    /// Records that the reservation of a zone has been written.
    pub fn reserved(&mut self, zone: u32) {
        self.set(zone, &[ZoneOwner::Reserving], ZoneOwner::Ready);
        self.zones[zone as usize].failures = 0;
        self.ready.push_back(zone);
    }

    /// Records that the device refused a reservation for now: the zone is free again.
    pub fn unreserved(&mut self, zone: u32) {
        self.retire(zone);
        self.set(zone, &[ZoneOwner::Reserving], ZoneOwner::Free);
        self.free.push_front(zone);
    }

    /// Records that a zone could not be reserved or reset. If the error shows that it is worn (`out`), or this was its
    /// third failure in a row, it counts as worn; otherwise it is to be reset. Without `out` an active zone stays active, since
    /// only a reset would change that.
    pub fn fail(&mut self, zone: u32, out: bool) {
        if out {
            self.retire(zone);
        }
        let failures = &mut self.zones[zone as usize].failures;
        *failures += 1;
        if out || *failures >= MOST_FAILURES {
            self.set(zone, &[ZoneOwner::Reserving, ZoneOwner::Resetting], ZoneOwner::Worn);
        } else {
            self.set(zone, &[ZoneOwner::Reserving, ZoneOwner::Resetting], ZoneOwner::Dirty);
            self.dirty.push_back(zone);
        }
    }

    /// Requests `width` zones for a group, so that they are reserved; `true` if they can be taken now.
    pub fn want(&mut self, width: u32) -> bool {
        self.wanted = width;
        self.fits(width) && self.ready.len() >= width as usize
    }

    /// Whether groups may have `width` more active zones.
    pub fn fits(&self, width: u32) -> bool {
        self.grouped + width <= self.group_limit()
    }

    /// Whether fewer than `width` zones without an owner are usable: waiting for resets does not help.
    pub fn is_exhausted(&self, width: u32) -> bool {
        let coming = |physical: &&Physical| {
            use ZoneOwner::*;
            matches!(physical.owner, Free | Reserving | Ready | Dirty | Resetting)
        };
        (self.zones.iter().filter(coming).count() as u32) < width
    }

    /// Gives the next `width` reserved zones to a group; so many have to be ready.
    pub fn take(&mut self, width: u32) -> Vec<u32> {
        self.wanted = 0;
        let (ready, most) = (self.ready.len(), self.group_limit());
        assert!(width as usize <= ready, "{width} zones are taken for a group, and {ready} are ready");
        let taken: Vec<u32> = self.ready.drain(..width as usize).collect();
        taken.iter().for_each(|zone| self.set(*zone, &[ZoneOwner::Ready], ZoneOwner::Given));
        self.grouped += width;
        assert!(self.grouped <= most, "{} zones of groups are active, and {most} may be", self.grouped);
        taken
    }

    /// Counts a zone as inactive, for instance because it is full.
    pub fn retire(&mut self, zone: u32) {
        let physical = &mut self.zones[zone as usize];
        if std::mem::take(&mut physical.active) {
            self.active -= 1;
            self.grouped -= (physical.owner == ZoneOwner::Given) as u32;
            let (grouped, active) = (self.grouped, self.active);
            assert!(grouped <= active, "{grouped} active zones are of groups, and {active} are active");
        }
    }

    /// Counts a zone as active.
    pub fn hold(&mut self, zone: u32) {
        let physical = &mut self.zones[zone as usize];
        if !std::mem::replace(&mut physical.active, true) {
            self.active += 1;
            self.grouped += (physical.owner == ZoneOwner::Given) as u32;
        }
    }

    /// Takes a zone from its v-zone; it is to be reset.
    pub fn give_up(&mut self, zone: u32) {
        let physical = &self.zones[zone as usize];
        self.grouped -= (physical.active && physical.owner == ZoneOwner::Given) as u32;
        self.set(zone, &[ZoneOwner::Given], ZoneOwner::Dirty);
        self.dirty.push_back(zone);
    }

    /// Picks a released zone without outstanding reads to be reset.
    pub fn clean(&mut self) -> Option<u32> {
        let at = self.dirty.iter().position(|zone| self.zones[*zone as usize].readers == 0)?;
        let zone = self.dirty.remove(at)?;
        self.set(zone, &[ZoneOwner::Dirty], ZoneOwner::Resetting);
        Some(zone)
    }

    /// Records that the reset of a zone has completed.
    pub fn cleaned(&mut self, zone: u32) {
        let readers = self.zones[zone as usize].readers;
        assert_eq!(readers, 0, "reads in flight from zone {zone}, which was reset");
        self.retire(zone);
        self.set(zone, &[ZoneOwner::Resetting], ZoneOwner::Free);
        self.free.push_back(zone);
    }

    /// Counts a read from a zone as outstanding.
    pub fn pin(&mut self, zone: u32) {
        let physical = &mut self.zones[zone as usize];
        assert_eq!(physical.owner, ZoneOwner::Given, "owner of zone {zone}, which is read");
        physical.readers += 1;
    }

    /// Counts a read as completed; `true` if the zone can be reset now.
    pub fn unpin(&mut self, zone: u32) -> bool {
        let physical = &mut self.zones[zone as usize];
        assert!(physical.readers > 0, "more reads of zone {zone} have ended than had begun");
        physical.readers -= 1;
        physical.readers == 0 && physical.owner == ZoneOwner::Dirty
    }

    /// Owner of a zone; `None` if there is no such zone.
    pub fn owner(&self, zone: u32) -> Option<ZoneOwner> {
        self.zones.get(zone as usize).map(|physical| physical.owner)
    }

    /// Whether a zone counts against the limit of active zones.
    pub fn is_active(&self, zone: u32) -> bool {
        self.zones.get(zone as usize).is_some_and(|physical| physical.active)
    }

    /// Number of zones without an owner that are empty or reserved.
    pub fn free_zones(&self) -> u32 {
        (self.free.len() + self.ready.len()) as u32
    }

    /// Number of active zones, without those of the journal.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Whether a zone is being reserved or reset.
    pub fn is_at_work(&self) -> bool {
        self.zones.iter().any(|zone| matches!(zone.owner, ZoneOwner::Reserving | ZoneOwner::Resetting))
    }

    /// Checks the consistency of owners, lists and counts, and of owners with `claims`, the zones of all groups.
    ///
    /// # Errors
    /// A zone with two owners, or with none; counts that are wrong.
    pub fn audit(&self, claims: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut claimed = vec![0; self.zones.len()];
        for zone in claims {
            let Some(count) = claimed.get_mut(zone as usize) else { return Err(format!("no zone {zone}")) };
            *count += 1;
        }
        for (zone, (physical, claims)) in self.zones.iter().zip(&claimed).enumerate() {
            let expected = (physical.owner == ZoneOwner::Given) as u32;
            if *claims != expected {
                return Err(format!("zone {zone} is {:?} and claimed {claims} times", physical.owner));
            }
        }
        let count = |owner| self.zones.iter().filter(|zone| zone.owner == owner).count();
        let lists = [(ZoneOwner::Free, self.free.len()), (ZoneOwner::Ready, self.ready.len())];
        if let Some((owner, listed)) = lists.into_iter().find(|(owner, listed)| count(*owner) != *listed) {
            return Err(format!("{} zones are {owner:?}, {listed} are listed", count(owner)));
        }
        let active = |given: bool| {
            self.zones.iter().filter(move |z| z.active && (!given || z.owner == ZoneOwner::Given))
        };
        let counts = (active(false).count() as u32, active(true).count() as u32);
        if counts != (self.active, self.grouped) {
            return Err(format!("{counts:?} zones are active, not {:?}", (self.active, self.grouped)));
        }
        Ok(())
    }

    /// Changes the owner of a zone; asserts that the present one is among `from`.
    fn set(&mut self, zone: u32, from: &[ZoneOwner], owner: ZoneOwner) {
        let before = std::mem::replace(&mut self.zones[zone as usize].owner, owner);
        assert!(
            from.contains(&before),
            "zone {zone} becomes {owner:?}, and was {before:?} instead of {from:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arbiter() -> Arbiter {
        let mut arbiter = Arbiter::new(12, 6, 2, 0);
        (2..12).for_each(|zone| arbiter.found(zone, ZoneOwner::Free, false));
        arbiter
    }

    fn reserve_all(arbiter: &mut Arbiter) {
        while let Some((zone, _)) = arbiter.reserve() {
            arbiter.reserved(zone);
        }
    }

    #[test]
    fn arbiter_takes_group_zones_in_order_of_reservation() {
        let mut arbiter = arbiter();
        reserve_all(&mut arbiter);
        assert_eq!((arbiter.active(), arbiter.serial()), (2, 2));
        assert!(!arbiter.want(4));
        reserve_all(&mut arbiter);
        assert!(arbiter.want(4));
        assert_eq!(arbiter.take(4), [2, 3, 4, 5]);
        reserve_all(&mut arbiter);
        // Four of groups and two reserved are all that may be active.
        assert_eq!(arbiter.active(), 6);
        assert!(!arbiter.want(1));
        arbiter.retire(2);
        assert!(arbiter.want(1));
        arbiter.audit(2..6).unwrap();
        (0..2).for_each(|_| arbiter.hold(2));
        assert!(!arbiter.want(1));
        arbiter.audit(2..6).unwrap();
    }

    #[test]
    fn arbiter_resets_only_unpinned_zones_and_reuses_last() {
        let mut arbiter = arbiter();
        reserve_all(&mut arbiter);
        assert!(arbiter.want(2));
        assert_eq!(arbiter.take(2), [2, 3]);
        arbiter.pin(2);
        arbiter.give_up(2);
        arbiter.give_up(3);
        assert_eq!(arbiter.clean(), Some(3));
        assert_eq!(arbiter.clean(), None);
        arbiter.cleaned(3);
        assert!(arbiter.unpin(2));
        assert_eq!(arbiter.clean(), Some(2));
        arbiter.cleaned(2);
        assert_eq!((arbiter.active(), arbiter.free_zones()), (0, 10));
        assert_eq!(arbiter.free.back(), Some(&2));
        arbiter.audit(std::iter::empty()).unwrap();
    }

    #[test]
    #[should_panic(expected = "zone 2 becomes Dirty, and was Dirty instead of [Given]")]
    fn arbiter_ends_process_if_zone_is_released_twice() {
        let mut arbiter = arbiter();
        reserve_all(&mut arbiter);
        assert!(arbiter.want(2));
        arbiter.take(2);
        // No audit is asked for, and the zone is not active.
        arbiter.retire(2);
        arbiter.give_up(2);
        arbiter.give_up(2);
    }

    #[test]
    fn arbiter_audit_rejects_double_and_missing_owner() {
        let mut arbiter = arbiter();
        reserve_all(&mut arbiter);
        arbiter.want(2);
        arbiter.take(2);
        assert!(arbiter.audit([2, 3].into_iter()).is_ok());
        assert!(arbiter.audit([2, 3, 3].into_iter()).is_err());
        assert!(arbiter.audit([2].into_iter()).is_err());
        assert!(arbiter.audit([2, 3, 4].into_iter()).is_err());
    }

    #[test]
    fn arbiter_counts_zone_as_worn_after_three_failures_in_a_row() {
        let mut arbiter = Arbiter::new(3, 6, 1, 0);
        arbiter.found(2, ZoneOwner::Free, false);
        // Two failures, a success, and three failures.
        for (attempt, succeeds) in [false, false, true, false, false, false].into_iter().enumerate() {
            assert_eq!(arbiter.reserve().map(|(zone, _)| zone), Some(2), "attempt {attempt}");
            if succeeds {
                arbiter.reserved(2);
                assert!(arbiter.want(1));
                assert_eq!(arbiter.take(1), [2]);
                arbiter.give_up(2);
            } else {
                arbiter.fail(2, false);
            }
            if attempt < 5 {
                assert_eq!(arbiter.clean(), Some(2));
                arbiter.cleaned(2);
            }
        }
        assert_eq!(arbiter.owner(2), Some(ZoneOwner::Worn));
    }

    #[test]
    fn arbiter_is_exhausted_only_without_zones_to_clean() {
        let mut arbiter = Arbiter::new(4, 6, 0, 0);
        arbiter.found(2, ZoneOwner::Dirty, true);
        arbiter.found(3, ZoneOwner::Free, false);
        assert!(!arbiter.is_exhausted(2));
        assert_eq!(arbiter.clean(), Some(2));
        arbiter.fail(2, true);
        assert!(arbiter.is_exhausted(2) && !arbiter.is_exhausted(1));
    }
}
