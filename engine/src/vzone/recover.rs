//! Creation of namespaces on a device, and their recovery.
//!
//! Opening reads the newest complete checkpoint and the records behind it, gets the write pointers of the zones from
//! the device, and derives from them the contents of each v-zone (`find_end`). Then it writes a checkpoint with the
//! result. Nothing else is changed before that is durable, so an interrupted opening can be repeated.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Geometry, Status, ZonedDevice, Zones},
    evidence::{Presence, presence, read_verified},
    frame::FrameError,
    runtime::Runtime,
    vzone::{
        allocate,
        arbiter::{Arbiter, ZoneOwner},
        balloon::floor_power,
        core::{Journal, NamespaceCore, Tenant, Vzone},
        error::VzoneError,
        format::{
            BlockFiller, DeviceIdentity, End, JournalEntry, JournalHeader, MOST_NAME, MOST_NAMESPACES,
            MOST_ZONES, NamespaceLayout, Spec, StripeGroups, is_reservation, looks_like_journal, mark,
            most_checkpoint_blocks, read,
        },
        group_end::is_out,
        journal,
        options::NamespaceOptions,
        shape::GroupShape,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
};

/// Number of active zones that are used of a device without a limit.
const UNLIMITED: u32 = 256;

/// Least number of v-zones that [`fitting`] aims at.
const ENOUGH_VZONES: u32 = 32;

/// The largest weight of a namespace.
const MOST_WEIGHT: u32 = 1000;

/// The capacity of a physical zone has to exceed this number of blocks.
const LEAST_CAPACITY: u64 = 3;

/// The lead is as long as the optimal write size of the device, if that is at most this fraction (1/n) of a zone.
const LEAD_IS_AT_MOST: u64 = 8;

/// Maximum length of the lead: a unit of this size can be recorded in the journal.
const MOST_LEAD: u64 = u16::MAX as u64;

/// Exclusive limit of checkpoint and reservation numbers in a valid journal.
const MOST_COUNTED: u64 = 1 << 63;

/// Blocks of the journal that are read at once.
const READ_BLOCKS: u64 = 64;

/// Limits of active zones on a device.
pub(super) struct Budget {
    /// Active zones without those of the journal.
    pub limit: u32,
    /// Of these, the number that is kept reserved.
    pub kept: u32,
}

impl Budget {
    pub fn of(geometry: &Geometry) -> Budget {
        let active = if geometry.max_active == 0 { UNLIMITED } else { geometry.max_active };
        let limit = active.saturating_sub(2);
        Budget { limit, kept: (limit / 16).clamp(1, 16).min(limit) }
    }
}

/// Maximum length of the lead of each zone, in blocks.
fn lead_most(geometry: &Geometry) -> u64 {
    let most = (geometry.max_transfer_blocks as u64).min(MOST_LEAD);
    (geometry.zone_capacity_blocks / LEAD_IS_AT_MOST).min(most).max(1)
}

/// Length of the lead of each zone of a device that is to have namespaces, in blocks.
fn lead_blocks(device: &dyn ZonedDevice) -> u32 {
    let aligned = device.optimal_write_blocks();
    if aligned <= lead_most(device.geometry()) { aligned as u32 } else { 1 }
}

/// Number of zones for v-zones: without those of the journal, those kept reserved, and those needed for relocation.
pub(super) fn usable_zones(identity: &DeviceIdentity, geometry: &Geometry) -> u32 {
    identity.zones.saturating_sub(2 + Budget::of(geometry).kept + identity.vzone_zones)
}

/// Number of v-zones that fit on a device of this geometry.
pub(super) fn room(identity: &DeviceIdentity, geometry: &Geometry) -> u64 {
    (usable_zones(identity, geometry) / identity.vzone_zones) as u64
}

/// The geometry of a namespace on a device of geometry `device`.
pub(super) fn geometry_of(device: &Geometry, identity: &DeviceIdentity, spec: &Spec) -> Geometry {
    let capacity = identity.vzone_blocks();
    Geometry {
        zones: spec.zones,
        zone_size_blocks: capacity.next_power_of_two(),
        zone_capacity_blocks: capacity,
        max_open: spec.max_open,
        max_active: spec.max_active,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: device.max_transfer_blocks,
        // Appends are carried out as writes.
        max_append_blocks: match device.max_append_blocks {
            0 => device.max_transfer_blocks,
            most => most.min(device.max_transfer_blocks),
        },
        volatile_cache: device.volatile_cache,
    }
}

/// Prepares an empty device for namespaces.
pub(super) async fn create(
    device: Rc<dyn ZonedDevice>,
    uuid: [u8; 16],
    vzone_zones: u32,
) -> Result<(), VzoneError> {
    let geometry = device.geometry().clone();
    let identity = DeviceIdentity {
        uuid,
        zones: geometry.zones,
        zone_capacity_blocks: geometry.zone_capacity_blocks,
        vzone_zones,
        lead_blocks: lead_blocks(&*device),
        features: 0,
    };
    let fits = (1..=MOST_ZONES as u32).contains(&vzone_zones)
        && geometry.zone_capacity_blocks > LEAST_CAPACITY
        && geometry.max_active != 1
        && Budget::of(&geometry).limit > Budget::of(&geometry).kept
        && usable_zones(&identity, &geometry) >= vzone_zones;
    if !fits {
        return Err(VzoneError::TooSmall);
    }
    let zones = report(&*device).await?;
    if zones.iter().any(|zone| zone.state != ZoneState::Empty) {
        return Err(VzoneError::NotEmpty);
    }
    let mut filler = BlockFiller::default();
    filler.add(&JournalEntry::Identity(identity));
    let head = JournalHeader { mark: mark(&uuid), generation: 1, serial: 0, offset: 0, kind: 2 };
    let mut block = crate::buf::BufMut::zeroed(BLOCK);
    filler.seal(0, head, &mut block);
    device.submit(Command::write(Lba(0), block.freeze(), true)).await.result?;
    Ok(())
}

/// Zone report of the whole device.
async fn report(device: &dyn ZonedDevice) -> Result<Vec<ZoneInfo>, DeviceError> {
    let count = device.geometry().zones;
    let done = device.submit(Command::Report { first: ZoneIndex(0), count }).await;
    done.result.map(|()| done.zones)
}

/// The contents of one journal zone.
#[derive(Default)]
struct JournalZone {
    zone: u32,
    /// Mark and generation of its valid blocks; `None` without a valid block.
    of: Option<(u64, u64)>,
    /// Number of the next reservation, by the last block.
    serial: u64,
    entries: Vec<JournalEntry>,
    /// Whether its checkpoint is complete.
    whole: bool,
    /// Whether there are records behind the checkpoint.
    records: bool,
    /// The first block that is damaged, unreadable, or of a version that is not supported.
    damaged: Option<VzoneError>,
}

/// Reads a zone of the journal.
async fn read_journal(device: &dyn ZonedDevice, zone: &ZoneInfo) -> Result<JournalZone, VzoneError> {
    if zone.state == ZoneState::Offline {
        // The end of the zone is not known.
        return Err(DeviceError::from(Status::ZoneIsOffline).into());
    }
    let mut journal = JournalZone { zone: zone.zone.0, ..JournalZone::default() };
    let end = if zone.state == ZoneState::Full { zone.capacity_blocks } else { zone.wp_blocks };
    let most = READ_BLOCKS.min(device.geometry().max_transfer_blocks as u64);
    for from in (0..end).step_by(most as usize) {
        let count = most.min(end - from);
        let start = device.geometry().start(zone.zone).0;
        let done = device.submit(Command::read(Lba(start + from), Buf::zeroed(count as usize * BLOCK))).await;
        for (index, at) in (from..from + count).enumerate() {
            // A flipped bit in the magic of a block may show a version that it does not have.
            let other_version = Cell::new(None);
            let verify = |block: &[u8]| {
                let found = read(block).inspect_err(|error| match error {
                    FrameError::Version(version) => other_version.set(Some(*version)),
                    FrameError::Other => {}
                });
                let found = found.ok()?;
                let of = (found.0.mark, found.0.generation);
                (found.0.offset as u64 == at && journal.of.is_none_or(|known| known == of)).then_some(found)
            };
            let block = done.data.get(index * BLOCK..(index + 1) * BLOCK).filter(|_| done.result.is_ok());
            let found = match block.and_then(verify) {
                Some(found) => Ok(Some(found)),
                None => read_verified(device, Lba(start + at), verify).await,
            };
            let (zone, block) = (zone.zone.0, at);
            match found {
                Ok(Some((head, entries))) => journal.add(head, entries, at),
                Ok(None) => {
                    let damaged = VzoneError::Damaged { zone, block };
                    let error = other_version.take().map_or(damaged, VzoneError::Version);
                    _ = journal.damaged.get_or_insert(error);
                }
                Err(DeviceError::Gone) => return Err(DeviceError::Gone.into()),
                Err(error) => {
                    _ = journal.damaged.get_or_insert(VzoneError::Unreadable { zone, block, error })
                }
            }
        }
    }
    Ok(journal)
}

impl JournalZone {
    /// Adds the contents of the valid block at offset `block`.
    fn add(&mut self, head: JournalHeader, entries: Vec<JournalEntry>, block: u64) {
        self.of = Some((head.mark, head.generation));
        self.records |= head.kind == 0;
        // Records follow a complete checkpoint, and nothing else does.
        if (head.kind == 0) != self.whole && self.damaged.is_none() {
            self.damaged = Some(VzoneError::Damaged { zone: self.zone, block });
        }
        self.whole |= head.kind == 2;
        self.serial = head.serial;
        self.entries.extend(entries);
    }

    fn generation(&self) -> Option<u64> {
        self.of.map(|(_, generation)| generation)
    }

    /// Whether it has a complete checkpoint and no damage.
    fn is_good(&self) -> bool {
        self.whole && self.damaged.is_none()
    }

    /// Whether damage in this zone does not matter, since the intact zone `other` has the same state: a checkpoint
    /// repeats the state of the other zone, which is reset before a record follows the checkpoint.
    fn is_covered_by(&self, other: &JournalZone) -> bool {
        self.zone != other.zone && !(self.records && self.generation() > other.generation())
    }
}

/// The state that the journal describes: namespaces by number, v-zones by the numbers of namespace and v-zone.
struct Books {
    identity: DeviceIdentity,
    namespaces: BTreeMap<u32, Spec>,
    vzones: BTreeMap<(u32, u32), (StripeGroups, End)>,
}

/// Applies the entries of a journal in order; `None` if they are inconsistent.
fn replay(entries: Vec<JournalEntry>) -> Option<Books> {
    let mut entries = entries.into_iter();
    let Some(JournalEntry::Identity(identity)) = entries.next() else { return None };
    let mut books = Books { identity, namespaces: BTreeMap::new(), vzones: BTreeMap::new() };
    for entry in entries {
        match entry {
            JournalEntry::Identity(_) => return None,
            JournalEntry::Namespace(id, spec) => {
                // The namespace may have become smaller: the v-zones that it has lost were empty.
                books.vzones.retain(|(owner, zone), _| *owner != id || *zone < spec.zones);
                books.namespaces.insert(id, spec);
            }
            JournalEntry::Removed(id) => {
                books.namespaces.remove(&id);
                books.vzones.retain(|(owner, _), _| *owner != id);
            }
            JournalEntry::Vzone(id, zone, groups, end) => _ = books.vzones.insert((id, zone), (groups, end)),
        }
    }
    Some(books)
}

impl Books {
    /// Whether all values are within bounds, and no zone has two owners.
    fn are_sane(&self, geometry: &Geometry) -> bool {
        let identity = &self.identity;
        let mut owned = vec![false; geometry.zones as usize];
        let mut once = |zone: &u32| match owned.get_mut(*zone as usize) {
            Some(owned) => *zone >= 2 && !std::mem::replace(owned, true),
            None => false,
        };
        let known = |(id, zone): &(u32, u32)| self.namespaces.get(id).is_some_and(|spec| *zone < spec.zones);
        let most = identity.vzone_zones as usize;
        let blocks = |groups: &StripeGroups| groups.zones().len() as u64 * identity.data_blocks();
        let ends = |(groups, end): &(StripeGroups, End)| {
            let most = blocks(groups).min(identity.vzone_blocks());
            match end {
                End::Open => true,
                // Its last group is to be relocated.
                End::Sealed(tail) => {
                    !groups.is_empty() && (blocks(&groups.first(groups.len() - 1))..=most).contains(tail)
                }
                End::Finished(tail) => *tail <= most,
            }
        };
        let widths = |groups: &StripeGroups| {
            let mut all = (0..groups.len()).filter_map(|index| groups.group(index));
            all.all(|(width, ..)| width.is_power_of_two())
        };
        let zones: u64 = self.namespaces.values().map(|spec| spec.zones as u64).sum();
        identity.zones == geometry.zones
            && identity.zone_capacity_blocks == geometry.zone_capacity_blocks
            && (1..=lead_most(geometry)).contains(&(identity.lead_blocks as u64))
            && (1..=MOST_ZONES).contains(&most)
            && geometry.zone_capacity_blocks > LEAST_CAPACITY
            && self.namespaces.keys().all(|id| (*id as usize) < MOST_NAMESPACES)
            && self.namespaces.values().all(|spec| has_shape(spec, identity.vzone_zones))
            && zones <= room(identity, geometry)
            && self.vzones.values().all(|(groups, _)| groups.zones().len() <= most && widths(groups))
            && self.vzones.values().all(ends)
            && self.vzones.keys().all(known)
            && self.vzones.values().all(|(groups, _)| groups.zones().iter().all(&mut once))
    }
}

/// Whether the numbers of a specification are valid; `vzone_zones` is the number of physical zones of a v-zone.
fn has_shape(spec: &Spec, vzone_zones: u32) -> bool {
    spec.zones > 0
        && (1..=MOST_WEIGHT).contains(&spec.weight)
        && (1..=spec.zones).contains(&spec.max_active)
        && (1..=spec.max_active).contains(&spec.max_open)
        && (1..=vzone_zones).contains(&spec.essential)
        && spec.essential == floor_power(spec.essential)
}

/// The contents of a v-zone, derived from the write pointers of its physical zones. `tail` is the end of its data in
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VzoneContents {
    groups: StripeGroups,
    end: End,
    tail: u64,
}

/// Determines the end of an open v-zone from the number of data blocks in each physical zone (`have`).
///
/// It ends at the first missing block. Later groups contain no promised data, and neither does a group without its
/// first block. If a zone has blocks beyond that end, the v-zone cannot be written there: it is sealed, and its last
/// group is relocated.
fn find_end(groups: &StripeGroups, zone_blocks: u64, have: impl Fn(u32) -> u64) -> VzoneContents {
    let mut tail = 0;
    for index in 0..groups.len() {
        let Some((width, unit_blocks, zones)) = groups.group(index) else { break };
        let shape = GroupShape { width, unit_blocks, zone_blocks };
        let found: Vec<u64> = zones.iter().map(|zone| have(*zone)).collect();
        let prefix = shape.prefix(&found);
        if prefix == 0 {
            return VzoneContents { groups: groups.first(index), end: End::Open, tail };
        }
        tail += prefix;
        if prefix < shape.blocks() {
            let end = if shape.is_torn(&found) { End::Sealed(tail) } else { End::Open };
            return VzoneContents { groups: groups.first(index + 1), end, tail };
        }
    }
    VzoneContents { groups: *groups, end: End::Open, tail }
}

/// Determines the contents of a v-zone from the journal and its physical zones. The end of an open v-zone with a worn
/// zone is not known, and that zone may come back: the v-zone keeps all groups, and is taken to be as long as its other
/// zones allow.
fn find_contents(
    groups: &StripeGroups,
    end: End,
    identity: &DeviceIdentity,
    zones: &[ZoneInfo],
) -> VzoneContents {
    let (zone_blocks, capacity) = (identity.data_blocks(), identity.vzone_blocks());
    let have = |zone: u32| zone_data(&zones[zone as usize], identity);
    match end {
        End::Open => {
            let settled = find_end(groups, zone_blocks, have);
            match worn(groups, zones) {
                Some(_) => VzoneContents { groups: *groups, end, tail: settled.tail.min(capacity) },
                // The v-zone is full, and an interrupted finish of its last zones may have left it torn.
                None if settled.tail >= capacity => VzoneContents { end, tail: capacity, ..settled },
                None => settled,
            }
        }
        End::Sealed(tail) | End::Finished(tail) => VzoneContents { groups: *groups, end, tail },
    }
}

/// The worst state of the zones of these groups, if one is worn.
fn worn(groups: &StripeGroups, zones: &[ZoneInfo]) -> Option<ZoneState> {
    let is = |state| groups.zones().iter().any(|zone| zones[*zone as usize].state == state);
    [ZoneState::Offline, ZoneState::ReadOnly].into_iter().find(|state| is(*state))
}

/// The journal and the zones of a device, as read.
struct DeviceContents {
    /// Zone of the newest checkpoint.
    zone: u32,
    generation: u64,
    serial: u64,
    books: Books,
    zones: Vec<ZoneInfo>,
}

/// Reads the journal, and the zone report of the device.
///
/// # Errors
/// Damage that matters; no journal; a journal that is inconsistent, or of another device.
async fn find(device: &dyn ZonedDevice) -> Result<DeviceContents, VzoneError> {
    let zones = report(device).await?;
    let mut journals = Vec::new();
    for zone in zones.iter().take(2) {
        journals.push(read_journal(device, zone).await?);
    }
    let newest =
        journals.iter().filter(|journal| journal.is_good()).max_by_key(|journal| journal.generation());
    for journal in &journals {
        let is_covered = newest.is_some_and(|newest| journal.is_covered_by(newest));
        journal.damaged.filter(|_| !is_covered).map_or(Ok(()), Err)?;
    }
    let zone = newest.ok_or(VzoneError::None)?.zone;
    let newest = journals.into_iter().find(|journal| journal.zone == zone).ok_or(VzoneError::None)?;
    let JournalZone { serial, entries, of, .. } = newest;
    let (mark, generation) = of.ok_or(VzoneError::None)?;
    let is_own = |books: &Books| mark == books.identity.mark() && generation.max(serial) < MOST_COUNTED;
    let books = replay(entries).filter(is_own).ok_or(VzoneError::Absurd)?;
    match books.identity.features {
        0 if books.are_sane(device.geometry()) => {
            Ok(DeviceContents { zone, generation, serial, books, zones })
        }
        0 => Err(VzoneError::Absurd),
        features => Err(VzoneError::Features(features)),
    }
}

/// Recovers the namespaces of a device, and builds their running state.
pub(super) async fn open(
    runtime: &Runtime,
    device: Rc<dyn ZonedDevice>,
    options: NamespaceOptions,
) -> Result<Rc<NamespaceCore>, VzoneError> {
    // A killed process may have left completed writes in a volatile cache.
    device.submit(Command::Flush).await.result?;
    let geometry = device.geometry().clone();
    let DeviceContents { zone, generation, serial, books, zones } = find(&*device).await?;
    let Budget { limit, kept } = Budget::of(&geometry);
    let core = Rc::new(NamespaceCore {
        arbiter: RefCell::new(Arbiter::new(geometry.zones, limit, kept, serial)),
        journal: Journal::new(zone, generation),
        ..NamespaceCore::new(runtime, device, options, books.identity)
    });
    core.note_worn(&zones);
    let unfinished = take_over(&core, &books, &zones);
    journal::checkpoint(&core).await?;
    for zone in unfinished {
        // A zone that cannot be finished stays active on the device, and so is counted as active until it is reset:
        // otherwise other namespaces would be promised active zones that do not exist.
        if core.finish_zone(zone).await.result.is_err_and(|error| !is_out(error)) {
            core.arbiter.borrow_mut().hold(zone);
        }
    }
    Ok(core)
}

/// Whether a zone of the journal begins with a journal block. Where these cannot be read, reservations in the first
/// blocks of other zones decide.
pub(super) async fn are_on(device: Rc<dyn ZonedDevice>) -> Result<Presence, VzoneError> {
    let zones = report(&*device).await?;
    let is_own = |_: bool, block: &[u8]| looks_like_journal(block) || is_reservation(block);
    Ok(presence(&*device, &zones, false, is_own).await?)
}

/// Lists the namespaces of a device, which is not changed.
pub(super) async fn look(device: Rc<dyn ZonedDevice>) -> Result<NamespaceLayout, VzoneError> {
    let DeviceContents { books, zones, .. } = find(&*device).await?;
    let written = |id: u32| {
        let own = books.vzones.range((id, 0)..=(id, u32::MAX));
        own.map(|(_, (groups, end))| find_contents(groups, *end, &books.identity, &zones).tail).sum()
    };
    let namespaces = books.namespaces.iter().map(|(id, spec)| (spec.clone(), written(*id))).collect();
    Ok(NamespaceLayout {
        zones: room(&books.identity, device.geometry()),
        zone_capacity_blocks: books.identity.vzone_blocks(),
        namespaces,
    })
}

/// Empties a device without namespaces. The journal goes last, its older zone before the newer one: so an interrupted
/// call can be repeated.
pub(super) async fn dissolve(device: Rc<dyn ZonedDevice>) -> Result<(), VzoneError> {
    let DeviceContents { zone: newest, books, zones, .. } = find(&*device).await?;
    if !books.namespaces.is_empty() {
        return Err(VzoneError::InUse);
    }
    let others = zones.iter().rev().filter(|info| info.zone.0 != newest);
    for info in others.chain(zones.iter().filter(|info| info.zone.0 == newest)) {
        if info.state != ZoneState::Empty && !is_worn(info.state) {
            device.submit(Command::Reset { zones: Zones::One(info.zone) }).await.result?;
        }
    }
    Ok(())
}

/// Recommended physical zones of a v-zone: the largest power of two, 16 at most, that leaves enough v-zones.
pub(super) fn fitting(geometry: &Geometry) -> u32 {
    let enough = |vzone_zones: &u32| {
        let usable = geometry.zones.saturating_sub(2 + Budget::of(geometry).kept + vzone_zones);
        usable / vzone_zones >= ENOUGH_VZONES
    };
    [16, 8, 4, 2].into_iter().find(enough).unwrap_or(1)
}

/// Blocks of data in a physical zone; the largest possible number if it is worn, so that its write pointer is not
/// valid.
fn zone_data(info: &ZoneInfo, identity: &DeviceIdentity) -> u64 {
    let full = info.state == ZoneState::Full || is_worn(info.state);
    let blocks = if full { info.capacity_blocks } else { info.wp_blocks };
    blocks.saturating_sub(identity.lead_blocks as u64).min(identity.data_blocks())
}

/// Builds the running state of all namespaces; returns the active zones that do not count as such, for instance of
/// sealed and finished v-zones: they have to be finished.
fn take_over(core: &NamespaceCore, books: &Books, zones: &[ZoneInfo]) -> Vec<u32> {
    // For each zone of a v-zone: whether it counts as active, and whether it may be finished if it does not.
    let mut owners: Vec<Option<(bool, bool)>> = vec![None; zones.len()];
    for (id, spec) in &books.namespaces {
        let geometry = geometry_of(core.device.geometry(), &core.identity, spec);
        let mut vzones = vec![Vzone::new(StripeGroups::default(), End::Open, 0); spec.zones as usize];
        let mut spares = 0;
        for ((_, zone), (groups, end)) in books.vzones.range((*id, 0)..=(*id, u32::MAX)) {
            let settled = find_contents(groups, *end, &books.identity, zones);
            let mut vzone = Vzone::new(settled.groups, settled.end, settled.tail);
            let worn = worn(groups, zones);
            let open = settled.end == End::Open;
            let held = |zone: &u32| zones[*zone as usize].state.is_active();
            vzone.active = match worn {
                Some(_) => open && settled.groups.zones().iter().any(held),
                None => open && settled.tail < core.usable(&settled.groups),
            };
            vzone.failed = worn.filter(|_| open).map(|state| refusal(state).into());
            vzone.stuck = vzone.active && vzone.failed.is_some();
            if vzone.active {
                vzone.spares = vzone.width().saturating_sub(spec.essential);
                spares += vzone.spares;
            }
            let active_from = match vzone.active {
                true => settled.groups.first(settled.groups.len() - 1).zones().len(),
                false => usize::MAX,
            };
            for (at, zone) in settled.groups.zones().iter().enumerate() {
                let active = if worn.is_some() { vzone.active && held(zone) } else { at >= active_from };
                owners[*zone as usize] = Some((active, worn.is_none() || !open));
            }
            vzones[*zone as usize] = vzone;
        }
        let serial = core.arbiter.borrow().serial();
        let tenant = Tenant::new(*id, spec.clone(), geometry, vzones, serial);
        load(&tenant, zones);
        {
            let mut state = tenant.state.borrow_mut();
            (state.spares, state.last_write_us) = (spares, core.now_us());
        }
        let mut tenants = core.tenants.borrow_mut();
        let count = tenants.len().max(*id as usize + 1);
        tenants.resize(count, None);
        tenants[*id as usize] = Some(Rc::new(tenant));
    }
    let mut unfinished = Vec::new();
    let mut arbiter = core.arbiter.borrow_mut();
    for (zone, info) in (0..).zip(zones).skip(2) {
        match owners[zone as usize] {
            Some((active, known)) => {
                arbiter.found(zone, ZoneOwner::Given, active);
                if known && !active && info.state.is_active() {
                    unfinished.push(zone);
                }
            }
            None if is_worn(info.state) => arbiter.found(zone, ZoneOwner::Worn, false),
            None if info.state == ZoneState::Empty => arbiter.found(zone, ZoneOwner::Free, false),
            None => arbiter.found(zone, ZoneOwner::Dirty, info.state.is_active()),
        }
    }
    unfinished
}

/// Status of a write to a worn zone.
fn refusal(state: ZoneState) -> Status {
    if state == ZoneState::Offline { Status::ZoneIsOffline } else { Status::ZoneIsReadOnly }
}

/// Loads the contents of the v-zones into the zone table of a namespace.
fn load(tenant: &Tenant, zones: &[ZoneInfo]) {
    let mut state = tenant.state.borrow_mut();
    let capacity_blocks = tenant.geometry.zone_capacity_blocks;
    for index in 0..tenant.geometry.zones {
        let vzone = state.vzones[index as usize];
        let full = matches!(vzone.end, End::Finished(_)) || vzone.tail == capacity_blocks;
        // The end of a sealed v-zone is known, and it is relocated to zones that are not worn: so a worn zone does not
        // matter.
        let sealed = matches!(vzone.end, End::Sealed(_));
        let found = match worn(&vzone.groups, zones).filter(|_| !sealed) {
            Some(worn) => worn,
            None if full => ZoneState::Full,
            None if vzone.tail == 0 => ZoneState::Empty,
            None => ZoneState::Closed,
        };
        let wp_blocks = if full { capacity_blocks } else { vzone.tail };
        let zone = ZoneIndex(index);
        state.table.load(&ZoneInfo { zone, state: found, wp_blocks, capacity_blocks, zrwa: false });
    }
    state.hold();
}

/// Checks the specification of a namespace; `own` is the number of the existing namespace that is to be changed.
pub(super) fn check_spec(core: &NamespaceCore, spec: &Spec, own: Option<u32>) -> Result<(), VzoneError> {
    let tenants = core.tenants.borrow();
    let others = || tenants.iter().flatten().filter(|tenant| Some(tenant.id) != own);
    let named = spec.name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && spec.name.len() <= MOST_NAME
        && spec.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !named {
        return Err(VzoneError::Name);
    }
    if others().any(|tenant| tenant.spec.name == spec.name) {
        return Err(VzoneError::Taken);
    }
    if !has_shape(spec, core.identity.vzone_zones) {
        return Err(VzoneError::Shape);
    }
    if !spec.qos.is_possible() {
        return Err(VzoneError::FloorAboveLimit);
    }
    let taken: u64 = others().map(|tenant| tenant.spec.zones as u64).sum();
    let room = room(&core.identity, core.device.geometry());
    if taken + spec.zones as u64 > room {
        return Err(VzoneError::Full { left: room - taken.min(room) });
    }
    // A checkpoint leaves a block for a record.
    let (namespaces, blocks) = (others().count() as u64 + 1, core.identity.zone_capacity_blocks);
    if most_checkpoint_blocks(namespaces, taken + spec.zones as u64, core.identity.zones as u64) >= blocks {
        return Err(VzoneError::JournalFull { blocks });
    }
    if own.is_some() {
        return Ok(());
    }
    let held: u32 = others().map(|tenant| tenant.state.borrow().spares).sum();
    let wanted = spec.essential as u64 * spec.max_active as u64;
    let left = allocate::spares(core).saturating_sub(held);
    if wanted > left as u64 {
        return Err(VzoneError::Floors { left });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vzone_recovery_ends_at_first_missing_block() {
        let mut groups = StripeGroups::default();
        groups.push(&[2, 3], 2);
        groups.push(&[4], 2);
        let settled = |have: [u64; 3]| {
            let VzoneContents { groups, end, tail } = find_end(&groups, 6, |zone| have[zone as usize - 2]);
            (groups.len(), end, tail)
        };
        assert_eq!(settled([6, 6, 6]), (2, End::Open, 18));
        assert_eq!(settled([6, 6, 1]), (2, End::Open, 13));
        // The second group is empty.
        assert_eq!(settled([6, 6, 0]), (1, End::Open, 12));
        // The first group is not full: the blocks of the second one were not promised.
        assert_eq!(settled([6, 5, 3]), (1, End::Open, 11));
        assert_eq!(settled([4, 1, 0]), (1, End::Sealed(3), 3));
        assert_eq!(settled([1, 0, 0]), (1, End::Open, 1));
        assert_eq!(settled([0, 2, 0]), (0, End::Open, 0));
        assert_eq!(settled([0, 0, 0]), (0, End::Open, 0));
    }
}
