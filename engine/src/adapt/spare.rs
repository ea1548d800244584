//! A drive with spare zones, which replace worn ones.
//!
//! [`SpareZoneDevice`] presents the first zones of a drive, under the same numbers. The zones behind them are the
//! *spare zones*. A zone that has been moved ([`SpareZoneDevice::place`]) is stored in a spare zone, its *place*, from
//! then on; for users of this device its number and addresses stay the same. The caller has to copy the data, and to
//! record the places durably.

use crate::{
    device::{Command, Completion, Done, DriveId, Geometry, Slots, Status, ZoneEpochs, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
};

/// A drive of which some zones are reserved as spare zones.
pub struct SpareZoneDevice {
    runtime: Runtime,
    slots: Rc<Slots>,
    device: Rc<dyn ZonedDevice>,
    /// Geometry of the presented device.
    geometry: Geometry,
    /// Places of moved zones, by zone; permanent.
    places: Rc<RefCell<BTreeMap<u32, u32>>>,
    /// Whether any zone has been moved.
    has_moved: Cell<bool>,
    /// Zones whose new places are being filled, by place.
    filling: Rc<RefCell<BTreeMap<u32, u32>>>,
    /// Places that the caller has recorded durably.
    kept: RefCell<BTreeMap<u32, u32>>,
    /// Spare zones that are known to be worn.
    worn: RefCell<BTreeSet<u32>>,
    /// Spare zones that are being filled, or reset ([`ReservedSpare`]).
    reserved: RefCell<BTreeSet<u32>>,
}

/// A spare zone that is reserved until this is dropped.
pub struct ReservedSpare {
    device: Rc<SpareZoneDevice>,
    /// Its number on the drive.
    pub zone: u32,
}

impl Drop for ReservedSpare {
    fn drop(&mut self) {
        self.device.reserved.borrow_mut().remove(&self.zone);
    }
}

/// The last zones of a drive with `zones` zones; spare ones among them may replace a worn metadata zone.
pub fn reserves(zones: u32) -> Range<u32> {
    zones.saturating_sub(RESERVES)..zones
}

/// Number of last zones of a drive in which metadata logs are searched: few enough to be read at each search.
const RESERVES: u32 = 4;

impl SpareZoneDevice {
    /// Presents `zones` zones of a drive that has at least as many, with moved zones in their `places`.
    pub fn new(
        runtime: &Runtime,
        device: Rc<dyn ZonedDevice>,
        zones: u32,
        places: BTreeMap<u32, u32>,
    ) -> SpareZoneDevice {
        // No appends: the address in a completion would have to be translated.
        let geometry = Geometry { zones, max_append_blocks: 0, ..device.geometry().clone() };
        let has_moved = Cell::new(!places.is_empty());
        SpareZoneDevice {
            runtime: runtime.clone(),
            slots: Rc::default(),
            device,
            geometry,
            kept: places.clone().into(),
            places: Rc::new(places.into()),
            filling: Rc::default(),
            has_moved,
            worn: RefCell::default(),
            reserved: RefCell::default(),
        }
    }

    /// Sets the source of the epochs of presented zones ([`crate::device::BlockChecksums::set_epochs`]).
    pub fn set_epochs(&self, epochs: ZoneEpochs) {
        let Some(sums) = self.device.checksums() else { return };
        let (places, filling) = (self.places.clone(), self.filling.clone());
        sums.set_epochs(Rc::new(move |place| {
            let of_filled = filling.borrow().get(&place.0).copied();
            let moved = || places.borrow().iter().find(|(_, to)| **to == place.0).map(|(zone, _)| *zone);
            epochs(ZoneIndex(of_filled.or_else(moved).unwrap_or(place.0)))
        }));
    }

    /// The blocks of a zone from the first unverified one to the last ([`crate::device::BlockChecksums::unverified`]).
    pub fn unverified(&self, zone: ZoneIndex) -> Range<u64> {
        self.device.checksums().map_or(0..0, |sums| sums.unverified(self.place_of(zone)))
    }

    /// As [`crate::device::BlockChecksums::set_unverified`].
    pub fn set_unverified(&self, zone: ZoneIndex, at: u64, sums: &[u32]) {
        if let Some(known) = self.device.checksums() {
            known.set_unverified(self.place_of(zone), at, sums);
        }
    }

    /// As [`crate::device::BlockChecksums::last_sums`].
    pub fn last_sums(&self, zone: ZoneIndex) -> Option<(u64, Vec<u32>)> {
        self.device.checksums().and_then(|sums| sums.last_sums(self.place_of(zone)))
    }

    /// As [`crate::device::BlockChecksums::wrong_reads`]; 0 without checksums.
    pub fn wrong_reads(&self) -> u64 {
        self.device.checksums().map_or(0, |sums| sums.wrong_reads())
    }

    /// Places of moved zones.
    pub fn places(&self) -> BTreeMap<u32, u32> {
        self.places.borrow().clone()
    }

    /// Notes which places the caller has recorded durably.
    pub fn keep(&self, places: BTreeMap<u32, u32>) {
        self.kept.replace(places);
    }

    /// Whether the places of all moved zones have been recorded durably.
    pub fn is_kept(&self) -> bool {
        *self.kept.borrow() == *self.places.borrow()
    }

    /// Zones of the drive that are not presented.
    fn spares(&self) -> Range<u32> {
        self.geometry.zones..self.device.geometry().zones
    }

    /// Spare zones that are neither in use nor reserved, and not known to be worn.
    pub fn free(&self) -> impl Iterator<Item = u32> {
        let mut taken = self.worn.borrow().clone();
        taken.extend(self.places.borrow().values());
        taken.extend(&*self.reserved.borrow());
        self.spares().filter(move |spare| !taken.contains(spare))
    }

    /// Updates the set of worn spare zones by a report of the drive; returns the other spare zones with their states.
    async fn look_at_spares(&self) -> Vec<ZoneInfo> {
        let Range { start, end } = self.spares();
        if start == end {
            return Vec::new();
        }
        let report = Command::Report { first: ZoneIndex(start), count: end - start };
        let (worn, sound) =
            self.device.submit(report).await.zones.into_iter().partition::<Vec<_>, _>(|i| is_worn(i.state));
        self.worn.borrow_mut().extend(worn.iter().map(|info| info.zone.0));
        sound
    }

    /// Reserves a spare zone that is neither in use nor, by a report of the drive, worn.
    pub async fn find_free(self: &Rc<Self>) -> Option<ReservedSpare> {
        self.look_at_spares().await.iter().find_map(|info| self.reserve(info.zone.0))
    }

    /// Reserves a spare zone, if it is free.
    fn reserve(self: &Rc<Self>, zone: u32) -> Option<ReservedSpare> {
        let zone = self.free().find(|free| *free == zone)?;
        self.reserved.borrow_mut().insert(zone);
        Some(ReservedSpare { device: self.clone(), zone })
    }

    /// As [`SpareZoneDevice::find_free`], but one of the last zones of the drive, where metadata logs are searched.
    pub async fn find_reserve(self: &Rc<Self>) -> Option<ReservedSpare> {
        let sound = self.look_at_spares().await;
        let last = reserves(self.device.geometry().zones);
        let usable = sound.iter().rev().filter(|info| last.contains(&info.zone.0));
        usable.map(|info| info.zone.0).find_map(|zone| self.reserve(zone))
    }

    /// Whether there is a free spare zone for a metadata log, among those not known to be worn.
    pub fn has_reserve(&self) -> bool {
        let last = reserves(self.device.geometry().zones);
        self.free().any(|spare| last.contains(&spare))
    }

    /// Resets unused zones: spare zones that are not empty, which an interrupted move has left, and the former zones of
    /// moved ones, of which parts may be usable (an aggregate is moved if one part is worn). Active zones would take
    /// resources of the drive. Errors are ignored.
    pub async fn clear_unused(self: &Rc<Self>) {
        let reset = |zone| self.device.submit(Command::Reset { zones: Zones::One(zone) });
        let sound = self.look_at_spares().await;
        for info in sound.iter().filter(|info| info.state != ZoneState::Empty) {
            // The spare zone may have been taken meanwhile.
            if let Some(_spare) = self.reserve(info.zone.0) {
                reset(info.zone).await;
            }
        }
        let left: Vec<u32> = self.places.borrow().keys().copied().collect();
        for zone in left.into_iter().map(ZoneIndex) {
            reset(zone).await;
        }
    }

    /// Sets the place of `zone` to the spare zone `to`, which has its data. No command for it may be outstanding.
    pub fn place(&self, zone: ZoneIndex, to: u32) {
        let (shown, spares) = (self.geometry.zones, self.spares());
        assert!(
            zone.0 < shown && spares.contains(&to),
            "zone {} of {shown} is moved to zone {to}, and the spare ones are {spares:?}",
            zone.0
        );
        let other =
            self.places.borrow().iter().map(|(from, to)| (*from, *to)).find(|(_, taken)| *taken == to);
        let other = other.filter(|(from, _)| *from != zone.0);
        assert_eq!(other, None, "the zone that is in spare zone {to}, to which zone {} is moved", zone.0);
        if let Some(sums) = self.device.checksums() {
            sums.move_zone(zone, ZoneIndex(to));
        }
        self.places.borrow_mut().insert(zone.0, to);
        self.filling.borrow_mut().remove(&to);
        self.has_moved.set(true);
    }

    /// Submits a command (write, finish or reset) for a presented zone to the spare zone `to` instead of the place of
    /// the zone.
    pub fn submit_to(&self, to: u32, mut command: Command) -> Completion {
        let spares = self.spares();
        assert!(spares.contains(&to), "zone {to} gets a command for a spare zone, and these are {spares:?}");
        match &mut command {
            Command::Write { lba, .. } => {
                self.filling.borrow_mut().insert(to, self.geometry.locate(*lba).0.0);
                lba.0 = self.geometry.start(ZoneIndex(to)).0 + self.geometry.locate(*lba).1;
            }
            Command::Finish { zones } | Command::Reset { zones } => *zones = Zones::One(ZoneIndex(to)),
            _ => return Completion::failed(Status::InvalidOpcode),
        }
        self.device.submit(command)
    }

    /// The device to which a command is to be submitted: the drive itself if no address has to be translated, which
    /// saves a copy of the command and a fifth of the cost of a read.
    pub fn that_takes(&self, command: &Command) -> &dyn ZonedDevice {
        match command {
            Command::Report { .. } | Command::Append { .. } => self,
            _ if self.has_moved.get() => self,
            _ => &*self.device,
        }
    }

    /// Zone of the drive in which a presented zone is stored.
    fn place_of(&self, zone: ZoneIndex) -> ZoneIndex {
        self.places.borrow().get(&zone.0).map_or(zone, |to| ZoneIndex(*to))
    }

    /// Translates an address to one on the drive.
    fn block_of(&self, lba: Lba) -> Lba {
        let (zone, offset) = self.geometry.locate(lba);
        Lba(self.geometry.start(self.place_of(zone)).0 + offset)
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Completion {
        let shown = first.0..first.0.saturating_add(count).min(self.geometry.zones);
        if shown.is_empty() {
            return Completion::failed(Status::LbaOutOfRange);
        }
        let below = self.device.submit(Command::Report { first, count: shown.len() as u32 });
        let moved: Vec<_> = self.places.borrow().range(shown).map(|(zone, to)| (*zone, *to)).collect();
        if moved.is_empty() {
            return below;
        }
        let one = |to| self.device.submit(Command::Report { first: ZoneIndex(to), count: 1 });
        let moved: Vec<_> = moved.into_iter().map(|(zone, to)| (zone, one(to))).collect();
        let (completer, completion) = self.slots.pair();
        self.runtime.spawn(async move {
            let mut done = below.await;
            for (zone, report) in moved {
                let Done { result, zones, .. } = report.await;
                done.result = done.result.and(result);
                let shown = done.zones.iter_mut().find(|info| info.zone.0 == zone);
                if let (Some(shown), Some(info)) = (shown, zones.first()) {
                    *shown = ZoneInfo { zone: shown.zone, ..*info };
                }
            }
            completer.complete(done);
        });
        completion
    }
}

impl ZonedDevice for SpareZoneDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn power_epoch(&self) -> Option<u64> {
        self.device.power_epoch()
    }

    fn drive_id(&self) -> DriveId {
        self.device.drive_id()
    }

    fn submit(&self, mut command: Command) -> Completion {
        match &mut command {
            Command::Report { first, count } => return self.report(*first, *count),
            Command::Append { .. } => return Completion::failed(Status::InvalidOpcode),
            Command::Read { lba, .. } | Command::Write { lba, .. } | Command::FlushZrwa { last: lba } => {
                if lba.0 >= self.geometry.start(ZoneIndex(self.geometry.zones)).0 {
                    return Completion::failed(Status::LbaOutOfRange);
                }
                *lba = self.block_of(*lba);
            }
            Command::Open { zones, .. }
            | Command::Close { zones }
            | Command::Finish { zones }
            | Command::Reset { zones } => match zones {
                Zones::One(zone) if zone.0 >= self.geometry.zones => {
                    return Completion::failed(Status::LbaOutOfRange);
                }
                Zones::One(zone) => *zone = self.place_of(*zone),
                // Spare zones that are not in use hold no data.
                Zones::All => {}
            },
            Command::Flush => {}
        }
        self.device.submit(command)
    }
}
