//! Making namespaces on a device, and finding them again.
//!
//! Opening reads the newest whole checkpoint and the records behind it, asks the device where its zones end, and so
//! knows of each v-zone what it holds (`settle`). Then it writes a checkpoint that says so. Nothing is changed before
//! that one is safe, so an opening that is cut off is begun again.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Geometry, Status, ZonedDevice, Zones},
    evidence::{Presence, presence, read_verified},
    runtime::Runtime,
    vzone::{
        arbiter::{Arbiter, Owner},
        balloon::floor_power,
        behaviour::Behaviour,
        core::{Core, Journal, Tenant, Vzone},
        error::VzoneError,
        format::{
            End, Entry, Filler, Groups, Head, Identity, Layout, MOST_NAME, MOST_NAMESPACES, MOST_ZONES, Spec,
            is_reservation, looks_like_journal, mark, read,
        },
        manage::is_out,
        shape::Shape,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

/// Active zones of a device that knows no limit.
const UNLIMITED: u32 = 256;

/// As many v-zones shall there be, if there are zones for them.
const ENOUGH_VZONES: u32 = 32;

/// The largest weight of a namespace.
const MOST_WEIGHT: u32 = 1000;

/// Zones have more blocks than that.
const LEAST_CAPACITY: u64 = 3;

/// Data begin where the device likes writes to begin, if no more than such a part of a zone is given up for that.
const LEAD_IS_AT_MOST: u64 = 8;

/// Nobody counts checkpoints or reservations so far.
const MOST_COUNTED: u64 = 1 << 63;

/// Blocks of the journal that are read at once.
const READ_BLOCKS: u64 = 64;

/// What is kept back of a device of this shape: active zones of the journal, and zones kept reserved.
pub(super) struct Budget {
    /// Active zones, those of the journal left out.
    pub limit: u32,
    /// Of these, kept reserved.
    pub kept: u32,
}

impl Budget {
    pub fn of(geometry: &Geometry) -> Budget {
        let active = if geometry.max_active == 0 { UNLIMITED } else { geometry.max_active };
        let limit = active.saturating_sub(2);
        Budget { limit, kept: (limit / 16).clamp(1, 16).min(limit) }
    }
}

/// Blocks in front of the data of each zone, at most.
fn lead_most(geometry: &Geometry) -> u64 {
    (geometry.zone_capacity_blocks / LEAD_IS_AT_MOST).min(geometry.max_transfer_blocks as u64).max(1)
}

/// Blocks in front of the data of each zone of a device that is to have namespaces.
fn lead_blocks(device: &dyn ZonedDevice) -> u32 {
    let aligned = device.optimal_write_blocks();
    if aligned <= lead_most(device.geometry()) { aligned as u32 } else { 1 }
}

/// Zones that v-zones may have: the others are the journal's, kept reserved, or needed to move a group.
pub(super) fn usable_zones(identity: &Identity, geometry: &Geometry) -> u32 {
    identity.zones.saturating_sub(2 + Budget::of(geometry).kept + identity.vzone_zones)
}

/// V-zones that a device of this shape has room for.
pub(super) fn room(identity: &Identity, geometry: &Geometry) -> u64 {
    (usable_zones(identity, geometry) / identity.vzone_zones) as u64
}

/// The shape of a namespace on a device of this shape.
pub(super) fn geometry_of(device: &Geometry, identity: &Identity, spec: &Spec) -> Geometry {
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
        // An append is a write here.
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
    let identity = Identity {
        uuid,
        zones: geometry.zones,
        zone_capacity_blocks: geometry.zone_capacity_blocks,
        vzone_zones,
        lead_blocks: lead_blocks(&*device),
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
    let mut filler = Filler::default();
    filler.add(&Entry::Identity(identity));
    let head = Head { mark: mark(&uuid), generation: 1, serial: 0, offset: 0, kind: 2 };
    let mut block = crate::buf::BufMut::zeroed(BLOCK);
    filler.seal(0, head, &mut block);
    device.submit(Command::write(Lba(0), block.freeze(), true)).await.result?;
    Ok(())
}

async fn report(device: &dyn ZonedDevice) -> Result<Vec<ZoneInfo>, DeviceError> {
    let count = device.geometry().zones;
    let done = device.submit(Command::Report { first: ZoneIndex(0), count }).await;
    done.result.map(|()| done.zones)
}

/// What the journal in a zone says.
#[derive(Default)]
struct Said {
    zone: u32,
    /// Mark and generation of its blocks, if one of them is right.
    of: Option<(u64, u64)>,
    serial: u64,
    entries: Vec<Entry>,
    /// Whether its checkpoint is whole, and whether there are records behind.
    whole: bool,
    records: bool,
    /// The first block that is not as it was written.
    damaged: Option<VzoneError>,
}

async fn read_journal(device: &dyn ZonedDevice, zone: &ZoneInfo) -> Result<Said, VzoneError> {
    if zone.state == ZoneState::Offline {
        // Nobody knows where it ends.
        return Err(DeviceError::from(Status::ZoneIsOffline).into());
    }
    let mut said = Said { zone: zone.zone.0, ..Said::default() };
    let end = if zone.state == ZoneState::Full { zone.capacity_blocks } else { zone.wp_blocks };
    let most = READ_BLOCKS.min(device.geometry().max_transfer_blocks as u64);
    for from in (0..end).step_by(most as usize) {
        let count = most.min(end - from);
        let start = device.geometry().start(zone.zone).0;
        let done = device.submit(Command::read(Lba(start + from), Buf::zeroed(count as usize * BLOCK))).await;
        for (index, at) in (from..from + count).enumerate() {
            let verify = |block: &[u8]| {
                let found = read(block)?;
                let of = (found.0.mark, found.0.generation);
                (found.0.offset as u64 == at && said.of.is_none_or(|known| known == of)).then_some(found)
            };
            let block = done.data.get(index * BLOCK..(index + 1) * BLOCK).filter(|_| done.result.is_ok());
            let found = match block.and_then(verify) {
                Some(found) => Ok(Some(found)),
                None => read_verified(device, Lba(start + at), verify).await,
            };
            let (zone, block) = (zone.zone.0, at);
            match found {
                Ok(Some((head, entries))) => said.add(head, entries, at),
                Ok(None) => _ = said.damaged.get_or_insert(VzoneError::Damaged { zone, block }),
                Err(DeviceError::Gone) => return Err(DeviceError::Gone.into()),
                Err(error) => _ = said.damaged.get_or_insert(VzoneError::Unreadable { zone, block, error }),
            }
        }
    }
    Ok(said)
}

impl Said {
    /// Adds what block `block` says.
    fn add(&mut self, head: Head, entries: Vec<Entry>, block: u64) {
        self.of = Some((head.mark, head.generation));
        self.records |= head.kind == 0;
        // A record is behind a whole checkpoint, and nothing else is.
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

    /// Whether all is there.
    fn is_good(&self) -> bool {
        self.whole && self.damaged.is_none()
    }

    /// Whether nothing is lost with what is damaged in it, since `other` is there: a checkpoint says the same as the
    /// journal before it, which is emptied before a record follows.
    fn is_covered_by(&self, other: &Said) -> bool {
        self.zone != other.zone && !(self.records && self.generation() > other.generation())
    }
}

/// What the journal says, all entries applied.
struct Books {
    identity: Identity,
    namespaces: BTreeMap<u32, Spec>,
    vzones: BTreeMap<(u32, u32), (Groups, End)>,
}

fn replay(entries: Vec<Entry>) -> Option<Books> {
    let mut entries = entries.into_iter();
    let Some(Entry::Identity(identity)) = entries.next() else { return None };
    let mut books = Books { identity, namespaces: BTreeMap::new(), vzones: BTreeMap::new() };
    for entry in entries {
        match entry {
            Entry::Identity(_) => return None,
            Entry::Namespace(id, spec) => {
                // One that was made smaller: nothing was in the v-zones that are not its any more.
                books.vzones.retain(|(owner, zone), _| *owner != id || *zone < spec.zones);
                books.namespaces.insert(id, spec);
            }
            Entry::Removed(id) => {
                books.namespaces.remove(&id);
                books.vzones.retain(|(owner, _), _| *owner != id);
            }
            Entry::Vzone(id, zone, groups, end) => _ = books.vzones.insert((id, zone), (groups, end)),
        }
    }
    Some(books)
}

impl Books {
    /// Whether nothing in them is out of bounds, and no zone has two owners.
    fn are_sane(&self, geometry: &Geometry) -> bool {
        let identity = &self.identity;
        let mut owned = vec![false; geometry.zones as usize];
        let mut once = |zone: &u32| match owned.get_mut(*zone as usize) {
            Some(owned) => *zone >= 2 && !std::mem::replace(owned, true),
            None => false,
        };
        let known = |(id, zone): &(u32, u32)| self.namespaces.get(id).is_some_and(|spec| *zone < spec.zones);
        let most = identity.vzone_zones as usize;
        let blocks = |groups: &Groups| groups.zones().len() as u64 * identity.data_blocks();
        let ends = |(groups, end): &(Groups, End)| {
            let most = blocks(groups).min(identity.vzone_blocks());
            match end {
                End::Open => true,
                // Its last group is to be moved.
                End::Sealed(tail) => {
                    !groups.is_empty() && (blocks(&groups.first(groups.len() - 1))..=most).contains(tail)
                }
                End::Finished(tail) => *tail <= most,
            }
        };
        let widths = |groups: &Groups| {
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

/// Whether there can be such a namespace, of v-zones of so many zones.
fn has_shape(spec: &Spec, vzone_zones: u32) -> bool {
    spec.zones > 0
        && (1..=MOST_WEIGHT).contains(&spec.weight)
        && (1..=spec.zones).contains(&spec.max_active)
        && (1..=spec.max_active).contains(&spec.max_open)
        && (1..=vzone_zones).contains(&spec.essential)
        && spec.essential == floor_power(spec.essential)
}

/// What a v-zone holds, as its physical zones say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settled {
    groups: Groups,
    end: End,
    tail: u64,
}

/// Where an open v-zone ends. `have` gives the blocks of data in a physical zone.
///
/// It ends where the first block is missing. Groups behind that hold nothing that was promised, and neither does
/// one that holds nothing before it. If some zone has more, nothing can be written where the v-zone ends: it is
/// sealed, and its last group moved.
fn settle(groups: &Groups, zone_blocks: u64, have: impl Fn(u32) -> u64) -> Settled {
    let mut tail = 0;
    for index in 0..groups.len() {
        let Some((width, unit_blocks, zones)) = groups.group(index) else { break };
        let shape = Shape { width, unit_blocks, zone_blocks };
        let found: Vec<u64> = zones.iter().map(|zone| have(*zone)).collect();
        let prefix = shape.prefix(&found);
        if prefix == 0 {
            return Settled { groups: groups.first(index), end: End::Open, tail };
        }
        tail += prefix;
        if prefix < shape.blocks() {
            let end = if shape.is_torn(&found) { End::Sealed(tail) } else { End::Open };
            return Settled { groups: groups.first(index + 1), end, tail };
        }
    }
    Settled { groups: *groups, end: End::Open, tail }
}

/// What a v-zone holds, as the journal and its physical zones say. Nobody knows where an open one ends that has a worn
/// zone, which may be back another time: it keeps all that it has, and is taken to be as long as its other zones allow.
fn settle_known(groups: &Groups, end: End, identity: &Identity, zones: &[ZoneInfo]) -> Settled {
    let (zone_blocks, capacity) = (identity.data_blocks(), identity.vzone_blocks());
    let have = |zone: u32| zone_data(&zones[zone as usize], identity);
    match end {
        End::Open => {
            let settled = settle(groups, zone_blocks, have);
            match worn(groups, zones) {
                Some(_) => Settled { groups: *groups, end, tail: settled.tail.min(capacity) },
                // It is full, and the zones of its last group were being finished.
                None if settled.tail >= capacity => Settled { end, tail: capacity, ..settled },
                None => settled,
            }
        }
        End::Sealed(tail) | End::Finished(tail) => Settled { groups: *groups, end, tail },
    }
}

/// What the worst zone of these groups is, if one is worn.
fn worn(groups: &Groups, zones: &[ZoneInfo]) -> Option<ZoneState> {
    let is = |state| groups.zones().iter().any(|zone| zones[*zone as usize].state == state);
    [ZoneState::Offline, ZoneState::ReadOnly].into_iter().find(|state| is(*state))
}

/// What is on a device, of which nothing is changed.
struct Found {
    /// Of the newest checkpoint.
    zone: u32,
    generation: u64,
    serial: u64,
    books: Books,
    zones: Vec<ZoneInfo>,
}

async fn find(device: &dyn ZonedDevice) -> Result<Found, VzoneError> {
    let zones = report(device).await?;
    let mut journals = Vec::new();
    for zone in zones.iter().take(2) {
        journals.push(read_journal(device, zone).await?);
    }
    let newest = journals.iter().filter(|said| said.is_good()).max_by_key(|said| said.generation());
    for said in &journals {
        let is_covered = newest.is_some_and(|newest| said.is_covered_by(newest));
        said.damaged.filter(|_| !is_covered).map_or(Ok(()), Err)?;
    }
    let zone = newest.ok_or(VzoneError::None)?.zone;
    let newest = journals.into_iter().find(|said| said.zone == zone).ok_or(VzoneError::None)?;
    let Said { serial, entries, of, .. } = newest;
    let (mark, generation) = of.ok_or(VzoneError::None)?;
    let is_own = |books: &Books| mark == books.identity.mark() && generation.max(serial) < MOST_COUNTED;
    let books = replay(entries).filter(|books| is_own(books) && books.are_sane(device.geometry()));
    Ok(Found { zone, generation, serial, books: books.ok_or(VzoneError::Absurd)?, zones })
}

/// Finds the namespaces on a device, and has them run.
pub(super) async fn open(
    runtime: &Runtime,
    device: Rc<dyn ZonedDevice>,
    behaviour: Behaviour,
) -> Result<Rc<Core>, VzoneError> {
    // A process that died may have left what is read in a cache.
    device.submit(Command::Flush).await.result?;
    let geometry = device.geometry().clone();
    let Found { zone, generation, serial, books, zones } = find(&*device).await?;
    let Budget { limit, kept } = Budget::of(&geometry);
    let core = Rc::new(Core {
        arbiter: RefCell::new(Arbiter::new(geometry.zones, limit, kept, serial)),
        journal: Journal::new(zone, generation),
        ..Core::new(runtime, device, behaviour, books.identity)
    });
    core.note_worn(&zones);
    let unfinished = take_over(&core, &books, &zones);
    core.checkpoint().await?;
    for zone in unfinished {
        // Nobody else has to do without what is his: it counts as active, until it is reset.
        if core.finish_zone(zone).await.result.is_err_and(|error| !is_out(error)) {
            core.arbiter.borrow_mut().hold(zone);
        }
    }
    Ok(core)
}

/// Whether one of the zones of the journal begins with a block of one. Where one of these hides, the first block of a
/// zone that is bound says so.
pub(super) async fn are_on(device: Rc<dyn ZonedDevice>) -> Result<Presence, VzoneError> {
    let zones = report(&*device).await?;
    let is_own = |_: bool, block: &[u8]| looks_like_journal(block) || is_reservation(block);
    Ok(presence(&*device, &zones, false, is_own).await?)
}

/// Says what namespaces there are on a device, which is not changed.
pub(super) async fn look(device: Rc<dyn ZonedDevice>) -> Result<Layout, VzoneError> {
    let Found { books, zones, .. } = find(&*device).await?;
    let written = |id: u32| {
        let own = books.vzones.range((id, 0)..=(id, u32::MAX));
        own.map(|(_, (groups, end))| settle_known(groups, *end, &books.identity, &zones).tail).sum()
    };
    let namespaces = books.namespaces.iter().map(|(id, spec)| (spec.clone(), written(*id))).collect();
    Ok(Layout {
        zones: room(&books.identity, device.geometry()),
        zone_capacity_blocks: books.identity.vzone_blocks(),
        namespaces,
    })
}

/// Empties a device on which there is no namespace any more. The journal goes last, and what is older of it before
/// what is newer: so a dissolution that is cut off can be begun again.
pub(super) async fn dissolve(device: Rc<dyn ZonedDevice>) -> Result<(), VzoneError> {
    let Found { zone: newest, books, zones, .. } = find(&*device).await?;
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

/// Physical zones of a v-zone on a device of this shape: 16, or as many that there are v-zones enough.
pub(super) fn fitting(geometry: &Geometry) -> u32 {
    let enough = |vzone_zones: &u32| {
        let usable = geometry.zones.saturating_sub(2 + Budget::of(geometry).kept + vzone_zones);
        usable / vzone_zones >= ENOUGH_VZONES
    };
    [16, 8, 4, 2].into_iter().find(enough).unwrap_or(1)
}

/// Blocks of data in a physical zone; the most that there can be where its write pointer means nothing.
fn zone_data(info: &ZoneInfo, identity: &Identity) -> u64 {
    let full = info.state == ZoneState::Full || is_worn(info.state);
    let blocks = if full { info.capacity_blocks } else { info.wp_blocks };
    blocks.saturating_sub(identity.lead_blocks as u64).min(identity.data_blocks())
}

/// Makes up what runs; gives the zones of sealed and finished v-zones that are to be finished.
fn take_over(core: &Core, books: &Books, zones: &[ZoneInfo]) -> Vec<u32> {
    // Whether zones are active, and may be finished if they are not.
    let mut owners: Vec<Option<(bool, bool)>> = vec![None; zones.len()];
    for (id, spec) in &books.namespaces {
        let geometry = geometry_of(core.device.geometry(), &core.identity, spec);
        let mut vzones = vec![Vzone::new(Groups::default(), End::Open, 0); spec.zones as usize];
        let mut spares = 0;
        for ((_, zone), (groups, end)) in books.vzones.range((*id, 0)..=(*id, u32::MAX)) {
            let settled = settle_known(groups, *end, &books.identity, zones);
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
                arbiter.found(zone, Owner::Given, active);
                if known && !active && info.state.is_active() {
                    unfinished.push(zone);
                }
            }
            None if is_worn(info.state) => arbiter.found(zone, Owner::Worn, false),
            None if info.state == ZoneState::Empty => arbiter.found(zone, Owner::Free, false),
            None => arbiter.found(zone, Owner::Dirty, info.state.is_active()),
        }
    }
    unfinished
}

/// What is answered to a write to a worn zone.
fn refusal(state: ZoneState) -> Status {
    if state == ZoneState::Offline { Status::ZoneIsOffline } else { Status::ZoneIsReadOnly }
}

/// Has the zone table of a namespace say what its v-zones hold.
fn load(tenant: &Tenant, zones: &[ZoneInfo]) {
    let mut state = tenant.state.borrow_mut();
    let capacity_blocks = tenant.geometry.zone_capacity_blocks;
    for index in 0..tenant.geometry.zones {
        let vzone = state.vzones[index as usize];
        let full = matches!(vzone.end, End::Finished(_)) || vzone.tail == capacity_blocks;
        // Where a sealed one ends is known, and it is moved to zones that are not worn: it counts as any other one.
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

/// What is to be said against a namespace. `own` is the number of one that is to become so.
pub(super) fn check_spec(core: &Core, spec: &Spec, own: Option<u32>) -> Result<(), VzoneError> {
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
    if own.is_some() {
        return Ok(());
    }
    let held: u32 = others().map(|tenant| tenant.state.borrow().spares).sum();
    let wanted = spec.essential as u64 * spec.max_active as u64;
    let left = core.spares().saturating_sub(held);
    if wanted > left as u64 {
        return Err(VzoneError::Floors { left });
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_vzone_ends_where_the_first_block_is_missing() {
        let mut groups = Groups::default();
        groups.push(&[2, 3], 2);
        groups.push(&[4], 2);
        let settled = |have: [u64; 3]| {
            let Settled { groups, end, tail } = settle(&groups, 6, |zone| have[zone as usize - 2]);
            (groups.len(), end, tail)
        };
        assert_eq!(settled([6, 6, 6]), (2, End::Open, 18));
        assert_eq!(settled([6, 6, 1]), (2, End::Open, 13));
        // Nothing of the second group is there yet.
        assert_eq!(settled([6, 6, 0]), (1, End::Open, 12));
        // The first one is not full: whatever the second one has was not promised.
        assert_eq!(settled([6, 5, 3]), (1, End::Open, 11));
        assert_eq!(settled([4, 1, 0]), (1, End::Sealed(3), 3));
        assert_eq!(settled([1, 0, 0]), (1, End::Open, 1));
        assert_eq!(settled([0, 2, 0]), (0, End::Open, 0));
        assert_eq!(settled([0, 0, 0]), (0, End::Open, 0));
    }
}
