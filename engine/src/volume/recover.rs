//! Start: the newest root, and what was written behind its cut.
//!
//! Nothing is changed that a root decides on before another root is safe: zones that are reset here were dead
//! in the root, and what was torn is filled up last. So a recovery that is cut off is simply begun again.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Status, ZonedDevice, Zones},
    runtime::give_way,
    volume::{
        behaviour::{Behaviour, CreateOptions},
        core::{Core, MOST_LOADS, Need, Start, leave, read_some},
        error::VolumeError,
        format::{
            CutRecord, FANOUT, GroupHeader, Identity, Kind, Root, Unsealed, What, ZoneUse, addresses,
            read_group, unseal,
        },
        map::Paged,
        place::{self, GRAINS, Place},
        space::{HEAD_ZONES, Plan, Space},
        stream::{MAP, Open},
        victim::Lifespan,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{collections::BTreeSet, rc::Rc};

/// Entries whose pages are read together.
const AT_ONCE: usize = 1024;

/// What a device says of itself.
struct Look {
    device: Rc<dyn ZonedDevice>,
    zones: Vec<ZoneInfo>,
}

/// An entry that was found behind the cut.
struct Found {
    number: u64,
    block: u32,
    what: What,
    place: Place,
}

/// Pages that may be changed between two checkpoints, if nobody says anything else.
const MOST_CHANGED: usize = 350_000;

/// From where on everything is newer than the root.
struct Newest<'r> {
    identity: &'r Identity,
    segment: u64,
    number: u64,
}

/// What was found behind the cut in one zone.
struct Walked {
    stream: u8,
    open: Open,
}

impl Look {
    async fn at(device: Rc<dyn ZonedDevice>) -> Result<Look, DeviceError> {
        let count = device.geometry().zones;
        let done = device.submit(Command::Report { first: ZoneIndex(0), count }).await;
        done.result?;
        let whole = done.zones.len() == count as usize;
        if whole { Ok(Look { device, zones: done.zones }) } else { Err(Status::InternalError.into()) }
    }

    /// Blocks below the write pointer.
    fn written(&self, zone: u32) -> u32 {
        let info = &self.zones[zone as usize];
        match info.state {
            ZoneState::Empty => 0,
            ZoneState::Full => self.device.geometry().zone_capacity_blocks as u32,
            _ => info.wp_blocks as u32,
        }
    }

    fn is_lost(&self, zone: u32) -> bool {
        matches!(self.zones[zone as usize].state, ZoneState::Offline | ZoneState::ReadOnly)
    }

    /// Drives do not say how far a zone is written that can only be read. It counts as written as far as there is
    /// something else than zeros, and to `least`.
    async fn find_end(&mut self, zone: u32, least: u32) -> Result<(), DeviceError> {
        let capacity = self.device.geometry().zone_capacity_blocks;
        let mut end = self.zones[zone as usize].wp_blocks.min(capacity) as u32;
        let is_known = (end as u64) < capacity;
        while end > least && !is_known {
            match self.read(zone, end - 1, 1).await {
                Ok(block) if block.iter().any(|byte| *byte != 0) => break,
                // Something is there.
                Err(DeviceError::Status(Status::UnrecoveredReadError)) => break,
                Ok(_) | Err(DeviceError::Status(Status::DeallocatedBlock)) => end -= 1,
                Err(error) => return Err(error),
            }
        }
        self.zones[zone as usize].wp_blocks = end as u64;
        Ok(())
    }

    /// Reads so many blocks, or the first alone where others cannot be read.
    async fn read(&self, zone: u32, offset: u32, blocks: u32) -> Result<Buf, DeviceError> {
        let lba = Lba(self.device.geometry().start(ZoneIndex(zone)).0 + offset as u64);
        read_some(&*self.device, lba, Buf::zeroed(blocks as usize * BLOCK), 1).await
    }

    /// Whether a zone of the head begins, or ends, with a block of a root: every life of such a zone has one at
    /// its start, and one that is damaged hides no volume. If that cannot be read, the first zone with a group says so.
    async fn has_volume(&self) -> Result<bool, DeviceError> {
        let mut hidden = false;
        for (zone, info) in (0..).zip(&self.zones) {
            let is_head = zone < HEAD_ZONES;
            if !is_head && !hidden {
                break;
            }
            hidden |= info.state == ZoneState::Offline;
            let written = self.written(zone);
            let last = written.checked_sub(1).filter(|_| is_head);
            for offset in [Some(0), last].into_iter().flatten().filter(|at| *at < written) {
                match self.read(zone, offset, 1).await {
                    Ok(block) => match unseal(&block) {
                        Ok((seal, _)) if seal.kind == Kind::Root => return Ok(true),
                        Err(Unsealed::Version(_)) => return Ok(true),
                        _ if !is_head && read_group(&block).is_some() => return Ok(true),
                        _ => (),
                    },
                    Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                    Err(_) => hidden = true,
                }
            }
        }
        Ok(false)
    }

    /// The newest whole root in a zone of the head.
    async fn newest_in(&self, zone: u32) -> Result<Option<Root>, VolumeError> {
        let mut end = self.written(zone);
        while end > 0 {
            let block = self.read(zone, end - 1, 1).await?;
            match unseal(&block) {
                Ok((seal, _)) if seal.kind == Kind::Root && seal.last && seal.index < end => {
                    if let Some(root) = self.root_at(zone, end - 1 - seal.index, seal.index + 1).await? {
                        return Ok(Some(root));
                    }
                }
                Err(Unsealed::Version(version)) => {
                    return Err(VolumeError::Version(version));
                }
                // A root that was cut off.
                _ => (),
            }
            end -= 1;
        }
        Ok(None)
    }

    async fn root_at(&self, zone: u32, offset: u32, blocks: u32) -> Result<Option<Root>, DeviceError> {
        let (mut payload, mut first) = (Vec::new(), None);
        for index in 0..blocks {
            let block = self.read(zone, offset + index, 1).await?;
            let Ok((seal, part)) = unseal(&block) else { return Ok(None) };
            let same = (seal.volume, seal.generation, seal.kind);
            if seal.index != index || *first.get_or_insert(same) != same {
                return Ok(None);
            }
            payload.extend_from_slice(part);
        }
        let root = Root::decode(&payload);
        Ok(root.filter(|root| first == Some((root.identity.mark(), root.generation, Kind::Root))))
    }

    /// The newest root, and where the next one goes.
    async fn newest(&self) -> Result<(Root, (u32, u32)), VolumeError> {
        let mut newest: Option<(Root, (u32, u32))> = None;
        for zone in 0..HEAD_ZONES.min(self.zones.len() as u32) {
            // An older root says nothing of zones that have been freed and begun anew since.
            let unreadable = |error| VolumeError::RootUnreadable { zone, error };
            if self.zones[zone as usize].state == ZoneState::Offline {
                // Nobody knows where it ends.
                return Err(unreadable(Status::ZoneIsOffline.into()));
            }
            let root = self.newest_in(zone).await.map_err(|error| match error {
                VolumeError::Device(error @ DeviceError::Status(_)) => unreadable(error),
                error => error,
            })?;
            let newer = |root: &Root| newest.as_ref().is_none_or(|(n, _)| n.generation < root.generation);
            if let Some(root) = root.filter(newer) {
                newest = Some((root, (zone, self.written(zone))));
            }
        }
        newest.ok_or(VolumeError::NotThere)
    }

    /// Whether there is a head, without a whole root, and nothing else: so it is when a creation was cut off.
    async fn was_cut_off(&self) -> Result<bool, VolumeError> {
        let mut others = self.zones.iter().skip(HEAD_ZONES as usize);
        if !others.all(|info| info.state == ZoneState::Empty) {
            return Ok(false);
        }
        match self.newest().await {
            Err(VolumeError::NotThere) => Ok(true),
            found => found.map(|_| false),
        }
    }

    /// Where the pages of the map are.
    async fn directory(&self, root: &Root, space: &Space) -> Result<Vec<Place>, VolumeError> {
        let pages = Paged::pages(root.identity.blocks) as usize;
        let mut directory = vec![0; pages];
        let blocks: Vec<(usize, Place)> =
            root.directory.iter().copied().enumerate().filter(|(_, place)| *place != 0).collect();
        let damaged = |directory_block: usize| VolumeError::MapDamaged { directory_block };
        if let Some((index, _)) = blocks.iter().find(|(_, place)| !space.may_be_live(*place)) {
            return Err(damaged(*index));
        }
        for some in blocks.chunks(MOST_LOADS) {
            let submit = |(index, place): &(usize, Place)| {
                let (zone, offset) = space.locate(*place);
                let lba = Lba(self.device.geometry().start(ZoneIndex(zone)).0 + offset as u64);
                (*index, self.device.submit(Command::read(lba, Buf::zeroed(BLOCK))))
            };
            let reads: Vec<(usize, Completion)> = some.iter().map(submit).collect();
            for (index, read) in reads {
                let done = read.await;
                done.result?;
                let block = done.data;
                let right = unseal(&block).is_ok_and(|(seal, _)| {
                    (seal.kind, seal.index, seal.volume)
                        == (Kind::Directory, index as u32, root.identity.mark())
                });
                if !right || addresses(&block).any(|place| !space.may_be_live(place)) {
                    return Err(damaged(index));
                }
                let pages = directory.iter_mut().skip(index * FANOUT as usize);
                addresses(&block).zip(pages).for_each(|(place, page)| *page = place);
            }
        }
        Ok(directory)
    }

    /// Reads the groups of a zone from `from` on, as far as it is written. `segment` is the life of the zone
    /// they have to be of; if there is none, that of the first, if it is `new`.
    ///
    /// # Errors
    /// Where a group begins that cannot be read, unless what is lost is given up: then it is what follows in the zone.
    async fn walk(
        &self,
        new: &Newest<'_>,
        zone: u32,
        (from, segment): (u32, Option<u64>),
        seen: &mut Seen,
    ) -> Result<Option<Walked>, VolumeError> {
        let (written, most) = (self.written(zone), self.device.geometry().max_transfer_blocks);
        let (mark, capacity) = (new.identity.mark(), new.identity.zone_capacity_blocks as u32);
        let (mut piece, mut piece_at) = (Buf::default(), 0);
        let (mut at, mut walked, mut segment) = (from, None, segment);
        while at < written {
            if !(piece_at..piece_at + piece.blocks() as u32).contains(&at) {
                // Of a zone that may be of an older life one block tells, and others may not be written.
                let count = if segment.is_some() { most.min(written - at) } else { 1 };
                piece_at = at;
                piece = match self.read(zone, at, count).await {
                    Err(DeviceError::Status(Status::DeallocatedBlock)) if segment.is_none() => {
                        return Ok(None);
                    }
                    Err(DeviceError::Status(Status::UnrecoveredReadError)) => Buf::default(),
                    read => read?,
                };
            }
            let block = piece[(at - piece_at) as usize * BLOCK..].first_chunk::<BLOCK>();
            let header = block.and_then(|block| read_group(block));
            let is_right = |header: &GroupHeader| {
                let of = header.place.segment;
                let is_of_segment = segment.map_or(of >= new.segment, |segment| of == segment);
                let are_new = header.entries.iter().all(|entry| entry.number >= new.number);
                header.is_at(mark, at, capacity) && is_of_segment && are_new
            };
            let header = match header.filter(is_right) {
                Some(header) => header,
                // An older life of the zone, or pages that belong to no root.
                None if segment.is_none() && block.is_some() => return Ok(None),
                None => {
                    seen.give_up(VolumeError::GroupUnreadable { zone, block: at })?;
                    // Nothing is written behind it.
                    let (next, torn_at) = (capacity, Some(written));
                    let stream = walked.map_or(0, |walked: Walked| walked.stream);
                    return Ok(
                        segment.map(|segment| Walked { stream, open: Open { zone, segment, next, torn_at } })
                    );
                }
            };
            segment = Some(header.place.segment);
            let mut from = 0;
            for entry in header.entries {
                let (first, grains) = (at + 1 + from / GRAINS, entry.what.grains());
                let place = place::place(zone * capacity + first, from % GRAINS, (entry.what.unit(), grains));
                from += grains;
                // All of a piece has to be there.
                let end = first + place::blocks(place);
                if grains == 0 || end <= written {
                    seen.found.push(Found {
                        number: entry.number,
                        block: entry.block,
                        what: entry.what,
                        place,
                    });
                }
            }
            at += header.blocks;
            let torn_at = (at > written).then_some(written);
            let open = Open { zone, segment: header.place.segment, next: at, torn_at };
            walked = Some(Walked { stream: header.place.stream, open });
        }
        Ok(walked)
    }
}

/// Whether there is a volume on a device; writes nothing, not even what is in caches.
///
/// # Errors
/// When the device does not say how its zones are, or is gone.
pub async fn is_on(device: Rc<dyn ZonedDevice>) -> Result<bool, DeviceError> {
    Look::at(device).await?.has_volume().await
}

/// Writes the first root of a volume.
///
/// # Errors
/// When there can be none, or there is something on the device.
pub async fn create(
    device: Rc<dyn ZonedDevice>,
    CreateOptions { uuid, blocks, sector, codec, unit }: CreateOptions,
) -> Result<(), VolumeError> {
    let plan = Plan::of(device.geometry(), blocks)?;
    let look = Look::at(device.clone()).await?;
    if let Some(info) = look.zones.iter().find(|info| info.state != ZoneState::Empty) {
        let zone = info.zone.0;
        if !look.has_volume().await? {
            return Err(VolumeError::NotEmpty { zone });
        }
        if !look.was_cut_off().await? {
            return Err(VolumeError::IsThere);
        }
        for zone in 0..HEAD_ZONES {
            device.submit(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }).await.result?;
        }
    }
    let identity = Identity {
        uuid,
        blocks: plan.blocks,
        zone_capacity_blocks: device.geometry().zone_capacity_blocks,
        zones: device.geometry().zones,
        sector,
    };
    let root = Root {
        generation: 1,
        next_number: 1,
        next_segment: 1,
        lifespan: Lifespan::UNKNOWN.0,
        mapped: 0,
        codec,
        unit: unit.min(plan.unit),
        cuts: Vec::new(),
        directory: vec![0; Paged::directory_blocks(identity.blocks) as usize],
        zones: vec![Default::default(); identity.zones as usize],
        identity: identity.clone(),
    };
    let core = core_of(device, identity, &root, (0, 0), Behaviour::default(), Vec::new())?;
    core.write_root(&root).await?;
    Ok(core.flush_device().await?)
}

fn core_of(
    device: Rc<dyn ZonedDevice>,
    identity: Identity,
    root: &Root,
    head: (u32, u32),
    behaviour: Behaviour,
    directory: Vec<Place>,
) -> Result<Core, VolumeError> {
    let plan = Plan::of(device.geometry(), Some(identity.blocks))?;
    let mut directory = directory;
    directory.resize(Paged::pages(identity.blocks) as usize, 0);
    let most = behaviour.map_pages.unwrap_or_else(|| plan.default_pages());
    let budget = (most, behaviour.changed_pages.unwrap_or(MOST_CHANGED));
    let start = Start {
        map: Paged::new(identity.blocks, directory, budget),
        space: Space::new(plan, &root.zones, root.mapped, root.next_segment),
        directory: root.directory.clone(),
        head,
        generation: root.generation,
        next_number: root.next_number,
        lifespan: Lifespan(root.lifespan),
        codec: root.codec,
        unit: root.unit,
    };
    Ok(Core::new(device, identity, behaviour, start))
}

/// Finds the volume on a device, and recovers what a power cut or the end of a process has left behind.
///
/// # Errors
/// When there is none, or it cannot be started: nothing is changed before all has been read that a start needs.
pub async fn open(device: Rc<dyn ZonedDevice>, behaviour: Behaviour) -> Result<Core, VolumeError> {
    let mut look = Look::at(device.clone()).await?;
    let (mut root, head) = look.newest().await?;
    let identity = root.identity.clone();
    let geometry = device.geometry();
    if (identity.zones, identity.zone_capacity_blocks) != (geometry.zones, geometry.zone_capacity_blocks) {
        let (zones, capacity) = (identity.zones, identity.zone_capacity_blocks);
        return Err(VolumeError::OfAnotherDevice { zones, capacity_blocks: capacity });
    }
    let plan = Plan::of(geometry, Some(identity.blocks))?;
    if root.directory.len() as u64 != Paged::directory_blocks(identity.blocks) || !are_sane(&root) {
        return Err(VolumeError::Absurd);
    }
    let space = Space::new(plan, &root.zones, root.mapped, root.next_segment);
    let directory = look.directory(&root, &space).await?;
    let mut seen = Seen { gives_up: behaviour.give_up, ..Seen::default() };
    walk_all(&mut look, &mut root, &mut seen).await?;
    let mut core = core_of(device.clone(), identity, &root, head, behaviour, directory)?;
    for (zone, end) in &seen.ends {
        core.state.borrow_mut().space.zone_mut(*zone).ends_at = Some(*end);
    }
    let mut torn = resume(&core, &look, &root, &seen.walked);
    torn.append(&mut seen.torn);
    seen.found.sort_unstable_by_key(|entry| entry.number);
    if let Some(last) = seen.found.last() {
        core.state.borrow_mut().next_number = root.next_number.max(last.number + 1);
    }
    apply(&core, &mut seen).await?;
    for zone in std::mem::take(&mut seen.resets) {
        let zones = Zones::One(ZoneIndex(zone));
        match device.submit(Command::Reset { zones }).await.result {
            // There is nothing in it: the volume goes on without it, and it shall not stay active.
            Err(DeviceError::Status(_)) => {
                leave(&*device, ZoneIndex(zone)).await;
                core.state.borrow_mut().space.lose(zone);
                seen.is_new = true;
            }
            result => result?,
        }
    }
    if seen.is_new || !seen.walked.is_empty() || !seen.given_up.is_empty() {
        core.checkpoint().await?;
    }
    for (zone, from, to) in &torn {
        // The checkpoint has reset it if nothing in it was live.
        let used = core.state.borrow().space.zone(*zone).record.state;
        if ![ZoneUse::Free, ZoneUse::Lost].contains(&used) {
            mend(&core, *zone, *from, *to).await?;
        }
    }
    if !torn.is_empty() {
        // Streams begin zones without a flush if they have none open.
        core.flush_device().await?;
    }
    core.state.borrow_mut().streams.iter_mut().for_each(|stream| stream.mend());
    core.given_up = seen.given_up;
    Ok(core)
}

/// Whether each cut is of a zone and of a stream of its own, and the zone one that such a stream writes.
fn are_sane(root: &Root) -> bool {
    root.cuts.iter().enumerate().all(|(index, cut)| {
        let written = if cut.stream == MAP { ZoneUse::Map } else { ZoneUse::Data };
        let mut others = root.cuts[..index].iter();
        cut.stream <= MAP
            && root.zones[cut.zone as usize].state == written
            && others.all(|other| other.stream != cut.stream && other.zone != cut.zone)
    })
}

/// What was found in zones.
#[derive(Default)]
struct Seen {
    /// Entries behind the cut, and zones that they are in.
    found: Vec<Found>,
    walked: Vec<Walked>,
    /// Zones that are free and not empty.
    resets: Vec<u32>,
    /// What is to be filled up: zone, from and to.
    torn: Vec<(u32, u32, u32)>,
    /// Zones that can only be read, and where they end.
    ends: Vec<(u32, u32)>,
    /// The next root has to be safe before anything is written to some zone: this one calls it lost.
    is_new: bool,
    /// What may have been promised and cannot be read is given up; and why that was done.
    gives_up: bool,
    given_up: Vec<VolumeError>,
}

impl Seen {
    /// Does without what is `lost`, if that was asked for.
    fn give_up(&mut self, lost: VolumeError) -> Result<(), VolumeError> {
        self.given_up.push(lost.clone());
        if self.gives_up { Ok(()) } else { Err(lost) }
    }
}

/// Looks at all zones. Afterwards `root` says of all of them what they are.
async fn walk_all(look: &mut Look, root: &mut Root, seen: &mut Seen) -> Result<(), VolumeError> {
    let identity = root.identity.clone();
    let (segment, number) = (root.next_segment, root.next_number);
    let new = Newest { identity: &identity, segment, number };
    for zone in HEAD_ZONES..identity.zones {
        let record = root.zones[zone as usize];
        let cut = root.cuts.iter().find(|cut| cut.zone == zone).copied();
        let state = look.zones[zone as usize].state;
        if state == ZoneState::ReadOnly && record.state != ZoneUse::Lost {
            look.find_end(zone, cut.map_or(0, |cut| cut.written)).await?;
            seen.ends.push((zone, look.written(zone)));
        }
        let (written, capacity) = (look.written(zone), identity.zone_capacity_blocks as u32);
        match (record.state, cut) {
            (ZoneUse::Data, Some(_)) if state == ZoneState::Offline => {
                seen.give_up(VolumeError::ZoneOffline { zone })?;
                root.zones[zone as usize].state = ZoneUse::ClosedData;
                root.cuts.retain(|cut| cut.zone != zone);
                continue;
            }
            // Its pages are lost, and nothing else is in it.
            (ZoneUse::Map, Some(_)) if state == ZoneState::Offline => continue,
            (ZoneUse::Data | ZoneUse::Map, Some(cut)) => {
                if written < cut.written {
                    return Err(VolumeError::LostBlocks { zone, there: written, written: cut.written });
                }
                if record.state == ZoneUse::Data {
                    let from = (cut.offset, Some(record.segment));
                    let walked = look.walk(&new, zone, from, seen).await?;
                    seen.walked.extend(walked);
                }
                continue;
            }
            (ZoneUse::Data | ZoneUse::Map, None) => {
                return Err(VolumeError::NoEnd { zone });
            }
            // Somebody else has reset it: zeros would be read of it.
            (ZoneUse::ClosedData, _) if record.live > 0 && state == ZoneState::Empty => {
                return Err(VolumeError::LostBlocks {
                    zone,
                    there: 0,
                    written: record.live.div_ceil(GRAINS),
                });
            }
            (ZoneUse::ClosedData, _) if record.live > 0 => {
                // Its last group was torn, and has not been filled up.
                if written < capacity && !look.is_lost(zone) {
                    seen.torn.push((zone, written, capacity));
                }
                continue;
            }
            (ZoneUse::ClosedMap, _) if record.live > 0 => continue,
            (ZoneUse::Lost, _) if look.is_lost(zone) => continue,
            _ => (),
        }
        // It was dead, free or lost at the cut.
        let was = std::mem::take(&mut root.zones[zone as usize]).state;
        let record = &mut root.zones[zone as usize];
        if state == ZoneState::Offline {
            seen.give_up(VolumeError::ZoneOffline { zone })?;
            record.state = ZoneUse::Lost;
        } else if was == ZoneUse::Lost {
            // It is back. What may be in it was given up: nobody looks.
            seen.is_new = true;
            seen.resets.extend((state != ZoneState::Empty).then_some(zone));
        } else if written > 0
            && let Some(new) = look.walk(&new, zone, (0, None), seen).await?
        {
            record.segment = new.open.segment;
            record.state = ZoneUse::ClosedData;
            seen.walked.push(new);
        } else if state == ZoneState::ReadOnly {
            record.state = ZoneUse::Lost;
        } else if state != ZoneState::Empty {
            seen.resets.push(zone);
        }
    }
    let last = seen.walked.iter().map(|walked| walked.open.segment).max();
    root.next_segment = root.next_segment.max(last.map_or(0, |last| last + 1));
    Ok(())
}

/// Has streams go on where they ended; gives what was torn: zone, from and to.
fn resume(core: &Core, look: &Look, root: &Root, walked: &[Walked]) -> Vec<(u32, u32, u32)> {
    let mut state = core.state.borrow_mut();
    let mut ends: Vec<Walked> = Vec::new();
    for CutRecord { stream, zone, offset, .. } in root.cuts.iter().copied() {
        let written = look.written(zone);
        if look.is_lost(zone) {
            // Nothing is written to it any more, nor filled up.
            state.space.close(zone);
            continue;
        }
        if stream == MAP {
            // Behind the cut there may be pages of a checkpoint that was cut off.
            let next = offset.max(written);
            state.map_open = (next < core.capacity()).then_some((zone, next));
            if state.map_open.is_none() {
                state.space.close(zone);
            }
            continue;
        }
        let segment = root.zones[zone as usize].segment;
        let torn_at = (written < offset).then_some(written);
        ends.push(Walked { stream, open: Open { zone, segment, next: offset, torn_at } });
    }
    for Walked { stream, open } in walked {
        ends.retain(|end| end.open.zone != open.zone);
        ends.push(Walked { stream: *stream, open: *open });
    }
    // The newest zone of a stream is gone on with.
    ends.sort_unstable_by_key(|end| end.open.segment);
    let capacity = core.capacity();
    let streams = state.space.plan().streams;
    let mut torn = Vec::new();
    let mut newest: [Option<Open>; 3] = [None; 3];
    for Walked { stream, open } in ends {
        let index = (stream as usize).min(streams - 1);
        state.space.close(open.zone);
        if look.is_lost(open.zone) {
            continue;
        }
        if let Some(from) = open.torn_at {
            torn.push((open.zone, from, open.next));
        }
        if open.next < capacity
            && let Some(older) = newest[index].replace(open)
        {
            // Nothing that keeps its promises leaves two; the rest of this one is given up.
            torn.push((older.zone, older.next, capacity));
        }
    }
    for (index, open) in newest.into_iter().enumerate() {
        if let Some(open) = open {
            state.space.reopen(open.zone);
            state.streams[index].resume(open);
        }
    }
    torn
}

/// Has the map say what was found, in the order in which it was written.
///
/// # Errors
/// Where a page cannot be read, unless what is lost is given up: then it stays as it is, with all of its blocks.
async fn apply(core: &Core, seen: &mut Seen) -> Result<(), VolumeError> {
    let (blocks, mut lost) = (core.identity.blocks, BTreeSet::<u32>::new());
    let found = std::mem::take(&mut seen.found);
    for (index, Found { block, what, place, .. }) in found.iter().enumerate() {
        // A namespace may carry this volume, and others be served meanwhile.
        give_way().await;
        if index % AT_ONCE == 0 {
            let ahead: BTreeSet<u32> =
                found[index..].iter().take(AT_ONCE).map(|e| e.block / FANOUT as u32).collect();
            let pages = Paged::pages(blocks) as u32;
            core.fetch(ahead.into_iter().filter(|page| *page < pages), Need::Pressing).await;
        }
        let (mut from, end) = (*block as u64, *block as u64 + what.blocks());
        if end > blocks {
            return Err(VolumeError::NoSuchBlock { block: end - 1 });
        }
        while from < end {
            let (page, page_end) = ((from / FANOUT) as u32, end.min((from / FANOUT + 1) * FANOUT));
            let what = match what {
                What::Data { .. } => *what,
                What::Discard(_) => What::Discard((page_end - from) as u32),
            };
            // Something newer of a page shall not be there where something older is not.
            if !lost.contains(&page) {
                match core.hold(page, Need::Pressing).await {
                    Ok(()) => core.state.borrow_mut().apply(from, what, *place),
                    Err(error @ DeviceError::Status(_)) => {
                        seen.give_up(VolumeError::PageUnreadable { page, error })?;
                        lost.insert(page);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            from = page_end;
        }
    }
    Ok(())
}

/// Fills up what was torn with zeros.
async fn mend(core: &Core, zone: u32, from: u32, to: u32) -> Result<(), DeviceError> {
    let most = core.device.geometry().max_transfer_blocks;
    let start = core.device.geometry().start(ZoneIndex(zone)).0;
    for at in (from..to).step_by(most as usize) {
        let blocks = most.min(to - at);
        let zeros = Buf::zeroed(blocks as usize * BLOCK);
        let done = core.device.submit(Command::write(Lba(start + at as u64), zeros, false)).await;
        core.must(done)?;
        core.state.borrow_mut().written.padding += blocks as u64;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::volume::{format::ZoneRecord, place::Unit};

    #[test]
    fn cuts_are_of_zones_of_their_own_that_are_written() {
        let of = |state| ZoneRecord { state, ..ZoneRecord::default() };
        let identity = Identity {
            uuid: [0; 16],
            blocks: 1,
            zone_capacity_blocks: 9,
            zones: 6,
            sector: Default::default(),
        };
        let uses =
            [ZoneUse::Free, ZoneUse::Free, ZoneUse::Data, ZoneUse::Data, ZoneUse::Map, ZoneUse::ClosedData];
        let sane = |cuts: &[(u8, u32)]| {
            let cut = |(stream, zone): &(u8, u32)| CutRecord {
                stream: *stream,
                zone: *zone,
                offset: 0,
                written: 0,
            };
            are_sane(&Root {
                identity: identity.clone(),
                generation: 1,
                next_number: 1,
                next_segment: 1,
                lifespan: 0,
                mapped: 0,
                codec: None,
                unit: Unit::BLOCK,
                cuts: cuts.iter().map(cut).collect(),
                directory: Vec::new(),
                zones: uses.map(of).to_vec(),
            })
        };
        assert!(sane(&[]) && sane(&[(1, 2), (2, 3), (MAP, 4)]));
        let of_the_head = [(1, 0)];
        let wrong: [&[(u8, u32)]; 7] = [
            &of_the_head,
            &[(1, 5)],
            &[(1, 4)],
            &[(MAP, 2)],
            &[(4, 2)],
            &[(0, 2), (1, 2)],
            &[(1, 2), (1, 3)],
        ];
        wrong.iter().for_each(|cuts| assert!(!sane(cuts), "{cuts:?}"));
    }
}
