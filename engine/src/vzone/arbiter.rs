//! Which physical zones there are, whose they are, and in which order they are given out (eZNS §4.2, §4.3).
//!
//! Drives place zones on dies in the order in which they are first written. So zones are *reserved* one behind the
//! other, with one block each, and given to groups in that order: the zones of a group follow each other, and lie on
//! different dies as long as there are as many. A few are kept reserved, so that a group need not wait.
//!
//! Invariant: every zone is in exactly one [`Owner`]; changes of owner are calls in here, and `audit` counts them.

use std::collections::VecDeque;

/// Whose a physical zone is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The journal's.
    Head,
    /// Nobody's, and empty.
    Free,
    /// Being reserved.
    Reserving,
    /// Nobody's, with a block in it.
    Ready,
    /// A v-zone's, or of a group that is being filled for one.
    Given,
    /// Nobody's, and not empty.
    Dirty,
    /// Being reset.
    Resetting,
    /// Nobody's: it cannot be written any more.
    Worn,
}

/// What is known of a physical zone.
#[derive(Clone, Copy, Debug)]
pub struct Physical {
    owner: Owner,
    /// Whether it counts against the limit of active zones.
    active: bool,
    /// Reads on their way: it is not reset before they are back.
    readers: u32,
    /// How often it could not be reserved or reset.
    failures: u8,
}

/// A zone that could not be reserved or reset so often is worn.
const MOST_FAILURES: u8 = 3;

const _: () = assert!(size_of::<Physical>() < 64);

/// All physical zones of a device.
#[derive(Debug)]
pub struct Arbiter {
    zones: Vec<Physical>,
    free: VecDeque<u32>,
    ready: VecDeque<u32>,
    dirty: VecDeque<u32>,
    /// Zones that may be active at once, those of the journal left out, and how many are.
    limit: u32,
    active: u32,
    /// Active zones that belong to groups.
    grouped: u32,
    /// Zones that are kept reserved, and how many a group waits for.
    kept: u32,
    wanted: u32,
    serial: u64,
}

impl Arbiter {
    /// Of a device with so many zones, two of which are the journal's and all others somebody's: see
    /// [`Arbiter::found`].
    pub fn new(zones: u32, limit: u32, kept: u32, serial: u64) -> Arbiter {
        let head = Physical { owner: Owner::Head, active: false, readers: 0, failures: 0 };
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

    /// What a zone was found to be: given, free, dirty or worn.
    pub fn found(&mut self, zone: u32, owner: Owner, active: bool) {
        self.zones[zone as usize] = Physical { owner, active, readers: 0, failures: 0 };
        self.active += active as u32;
        match owner {
            Owner::Given => self.grouped += active as u32,
            Owner::Free => self.free.push_back(zone),
            Owner::Dirty => self.dirty.push_back(zone),
            _ => (),
        }
    }

    /// The number of the next zone that is reserved.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Active zones that groups may have.
    pub fn group_limit(&self) -> u32 {
        self.limit - self.kept
    }

    /// A zone to be reserved now, with its number, if one is lacking.
    pub fn reserve(&mut self) -> Option<(u32, u64)> {
        let lacking = (self.ready.len() as u32) < self.kept.max(self.wanted);
        if !lacking || self.active >= self.limit {
            return None;
        }
        let zone = self.free.pop_front()?;
        self.set(zone, Owner::Reserving);
        self.zones[zone as usize].active = true;
        self.active += 1;
        self.serial += 1;
        Some((zone, self.serial - 1))
    }

    /// Its block has been written.
    pub fn reserved(&mut self, zone: u32) {
        self.set(zone, Owner::Ready);
        self.ready.push_back(zone);
    }

    /// Its block cannot be written for now: it is as it was.
    pub fn unreserved(&mut self, zone: u32) {
        self.retire(zone);
        self.set(zone, Owner::Free);
        self.free.push_front(zone);
    }

    /// A zone could not be reserved or reset; if it is `out`, never again. What is not out is still active if it was:
    /// only a reset would change that. It is tried a few times.
    pub fn fail(&mut self, zone: u32, out: bool) {
        if out {
            self.retire(zone);
        }
        let failures = &mut self.zones[zone as usize].failures;
        *failures += 1;
        if out || *failures >= MOST_FAILURES {
            self.set(zone, Owner::Worn);
        } else {
            self.set(zone, Owner::Dirty);
            self.dirty.push_back(zone);
        }
    }

    /// A group of `width` zones is wanted; `true` if they can be taken.
    pub fn want(&mut self, width: u32) -> bool {
        self.wanted = width;
        self.fits(width) && self.ready.len() >= width as usize
    }

    /// Whether so many more zones in groups may be active.
    pub fn fits(&self, width: u32) -> bool {
        self.grouped + width <= self.group_limit()
    }

    /// Whether so many can never be had.
    pub fn is_exhausted(&self, width: u32) -> bool {
        let coming = |physical: &&Physical| {
            use Owner::*;
            matches!(physical.owner, Free | Reserving | Ready | Dirty | Resetting)
        };
        (self.zones.iter().filter(coming).count() as u32) < width
    }

    /// Takes the next `width` zones, which are there.
    pub fn take(&mut self, width: u32) -> Vec<u32> {
        self.wanted = 0;
        let taken: Vec<u32> = self.ready.drain(..(width as usize).min(self.ready.len())).collect();
        taken.iter().for_each(|zone| self.set(*zone, Owner::Given));
        self.grouped += taken.len() as u32;
        taken
    }

    /// A zone that was given is full: it is not active any more.
    pub fn retire(&mut self, zone: u32) {
        let physical = &mut self.zones[zone as usize];
        if std::mem::take(&mut physical.active) {
            self.active -= 1;
            self.grouped -= (physical.owner == Owner::Given) as u32;
        }
    }

    /// A zone that was given is active all the same.
    pub fn hold(&mut self, zone: u32) {
        let physical = &mut self.zones[zone as usize];
        if !std::mem::replace(&mut physical.active, true) {
            self.active += 1;
            self.grouped += (physical.owner == Owner::Given) as u32;
        }
    }

    /// Nobody needs a zone any more that was given.
    pub fn give_up(&mut self, zone: u32) {
        let physical = &self.zones[zone as usize];
        self.grouped -= (physical.active && physical.owner == Owner::Given) as u32;
        self.set(zone, Owner::Dirty);
        self.dirty.push_back(zone);
    }

    /// A zone to be reset now: nobody reads from it.
    pub fn clean(&mut self) -> Option<u32> {
        let at = self.dirty.iter().position(|zone| self.zones[*zone as usize].readers == 0)?;
        let zone = self.dirty.remove(at)?;
        self.set(zone, Owner::Resetting);
        Some(zone)
    }

    /// It has been reset.
    pub fn cleaned(&mut self, zone: u32) {
        self.retire(zone);
        self.set(zone, Owner::Free);
        self.free.push_back(zone);
    }

    /// A read from a zone begins.
    pub fn pin(&mut self, zone: u32) {
        self.zones[zone as usize].readers += 1;
    }

    /// It has ended; `true` if that lets the zone be reset.
    pub fn unpin(&mut self, zone: u32) -> bool {
        let physical = &mut self.zones[zone as usize];
        physical.readers -= 1;
        physical.readers == 0 && physical.owner == Owner::Dirty
    }

    /// Whose a zone is.
    pub fn owner(&self, zone: u32) -> Option<Owner> {
        self.zones.get(zone as usize).map(|physical| physical.owner)
    }

    /// Whether a zone counts against the limit.
    pub fn is_active(&self, zone: u32) -> bool {
        self.zones.get(zone as usize).is_some_and(|physical| physical.active)
    }

    /// Zones that nobody has and that are empty, those kept reserved with them.
    pub fn free_zones(&self) -> u32 {
        (self.free.len() + self.ready.len()) as u32
    }

    /// Active zones, those of the journal left out.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Whether a zone is being reserved or reset.
    pub fn is_at_work(&self) -> bool {
        self.zones.iter().any(|zone| matches!(zone.owner, Owner::Reserving | Owner::Resetting))
    }

    /// Compares the books with each other, and with who says to have zones.
    ///
    /// # Errors
    /// A zone with two owners, or with none.
    pub fn audit(&self, claims: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut claimed = vec![0; self.zones.len()];
        for zone in claims {
            let Some(count) = claimed.get_mut(zone as usize) else { return Err(format!("no zone {zone}")) };
            *count += 1;
        }
        for (zone, (physical, claims)) in self.zones.iter().zip(&claimed).enumerate() {
            let expected = (physical.owner == Owner::Given) as u32;
            if *claims != expected {
                return Err(format!("zone {zone} is {:?} and claimed {claims} times", physical.owner));
            }
        }
        let count = |owner| self.zones.iter().filter(|zone| zone.owner == owner).count();
        let lists = [(Owner::Free, self.free.len()), (Owner::Ready, self.ready.len())];
        if let Some((owner, listed)) = lists.into_iter().find(|(owner, listed)| count(*owner) != *listed) {
            return Err(format!("{} zones are {owner:?}, {listed} are listed", count(owner)));
        }
        let active =
            |given: bool| self.zones.iter().filter(move |z| z.active && (!given || z.owner == Owner::Given));
        let counts = (active(false).count() as u32, active(true).count() as u32);
        if counts != (self.active, self.grouped) {
            return Err(format!("{counts:?} zones are active, not {:?}", (self.active, self.grouped)));
        }
        Ok(())
    }

    fn set(&mut self, zone: u32, owner: Owner) {
        self.zones[zone as usize].owner = owner;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn arbiter() -> Arbiter {
        let mut arbiter = Arbiter::new(12, 6, 2, 0);
        (2..12).for_each(|zone| arbiter.found(zone, Owner::Free, false));
        arbiter
    }

    fn reserve_all(arbiter: &mut Arbiter) {
        while let Some((zone, _)) = arbiter.reserve() {
            arbiter.reserved(zone);
        }
    }

    #[test]
    fn zones_of_a_group_follow_each_other_in_the_order_of_their_reservation() {
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
    fn what_is_read_is_not_reset_and_what_is_reset_comes_last() {
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
    fn audits_find_two_owners_and_none() {
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
    fn exhaustion_is_told_from_waiting() {
        let mut arbiter = Arbiter::new(4, 6, 0, 0);
        arbiter.found(2, Owner::Dirty, true);
        arbiter.found(3, Owner::Free, false);
        assert!(!arbiter.is_exhausted(2));
        assert_eq!(arbiter.clean(), Some(2));
        arbiter.fail(2, true);
        assert!(arbiter.is_exhausted(2) && !arbiter.is_exhausted(1));
    }
}
