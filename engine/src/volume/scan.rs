//! Inspection of a device: zones, roots, the directory of the map, groups. Only reads.
//!
//! Every block that is used has a checksum of its own, and an array may have a right copy of a wrong block: each is
//! read by [`read_verified`]. A block without a copy that verifies is damaged. It may be newer than everything else, so
//! it counts as obsolete only where something else proves it.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Status, ZonedDevice},
    evidence::{Presence, presence, read_verified, reread_verified},
    volume::{
        address::{self, Address, GRAINS},
        core::{MOST_LOADS, read_some},
        error::VolumeError,
        format::{
            EntryKind, FANOUT, GroupHeader, Kind, PAYLOAD, Root, Seal, SealError, VolumeIdentity, addresses,
            looks_like_group, looks_sealed, read_group, unseal,
        },
        map::PagedMap,
        space::{HEAD_ZONES, Space},
        stream::OpenZone,
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::rc::Rc;

/// A device, and its zone report.
pub struct DeviceScan {
    pub device: Rc<dyn ZonedDevice>,
    pub zones: Vec<ZoneInfo>,
}

/// An entry that was found after the cut.
pub struct FoundEntry {
    pub number: u64,
    pub block: u32,
    pub what: EntryKind,
    pub place: Address,
}

/// First segment and entry number that the root does not cover.
pub struct Newest<'r> {
    pub identity: &'r VolumeIdentity,
    pub segment: u64,
    pub number: u64,
}

/// Result of walking a zone after the cut.
pub struct ZoneWalk {
    pub stream: u8,
    pub open: OpenZone,
}

/// The state of a zone that the root does not count on, by its first block.
enum FirstBlock {
    /// It was begun since the root, with this group.
    New(GroupHeader),
    /// Nothing in it is needed: its groups are older than the root, or its pages belong to no root.
    Obsolete,
}

/// The contents of a zone of the head.
struct HeadZone {
    zone: u32,
    root: Option<Root>,
    /// The largest one of any block of a root in it.
    generation: Option<u64>,
    /// The last damaged block after that root, and the error if it cannot be read.
    damaged: Option<(u32, Option<DeviceError>)>,
}

/// A block of a root: its header and its payload, or the version of another format.
type RootBlock = Result<(Seal, Vec<u8>), u16>;

fn root_block(block: &[u8]) -> Option<RootBlock> {
    match unseal(block) {
        Ok((seal, payload)) if seal.kind == Kind::Root => Some(Ok((seal, payload.to_vec()))),
        Err(SealError::Version(version)) => Some(Err(version)),
        _ => None,
    }
}

impl DeviceScan {
    pub async fn at(device: Rc<dyn ZonedDevice>) -> Result<DeviceScan, DeviceError> {
        let count = device.geometry().zones;
        let done = device.submit(Command::Report { first: ZoneIndex(0), count }).await;
        done.result?;
        let whole = done.zones.len() == count as usize;
        if whole { Ok(DeviceScan { device, zones: done.zones }) } else { Err(Status::InternalError.into()) }
    }

    /// Blocks below the write pointer.
    pub fn written(&self, zone: u32) -> u32 {
        let info = &self.zones[zone as usize];
        match info.state {
            ZoneState::Empty => 0,
            ZoneState::Full => self.device.geometry().zone_capacity_blocks as u32,
            _ => info.wp_blocks as u32,
        }
    }

    pub fn is_lost(&self, zone: u32) -> bool {
        matches!(self.zones[zone as usize].state, ZoneState::Offline | ZoneState::ReadOnly)
    }

    /// Finds the end of a zone that can only be read, which drives do not report: the end of the last block that is not
    /// zeros, and no less than `least`.
    pub async fn find_end(&mut self, zone: u32, least: u32) -> Result<(), DeviceError> {
        let capacity = self.device.geometry().zone_capacity_blocks;
        let mut end = self.zones[zone as usize].wp_blocks.min(capacity) as u32;
        let is_known = (end as u64) < capacity;
        while end > least && !is_known {
            match self.read(zone, end - 1, 1).await {
                Ok(block) if block.iter().any(|byte| *byte != 0) => break,
                // An unreadable block was written.
                Err(DeviceError::Status(Status::UnrecoveredReadError)) => break,
                Ok(_) | Err(DeviceError::Status(Status::DeallocatedBlock)) => end -= 1,
                Err(error) => return Err(error),
            }
        }
        self.zones[zone as usize].wp_blocks = end as u64;
        Ok(())
    }

    /// Reads `blocks` blocks, or only the first where others cannot be read.
    async fn read(&self, zone: u32, offset: u32, blocks: u32) -> Result<Buf, DeviceError> {
        let lba = Lba(self.device.geometry().start(ZoneIndex(zone)).0 + offset as u64);
        read_some(&*self.device, lba, Buf::zeroed(blocks as usize * BLOCK), 1).await
    }

    fn lba(&self, zone: u32, offset: u32) -> Lba {
        Lba(self.device.geometry().start(ZoneIndex(zone)).0 + offset as u64)
    }

    /// Whether there is a volume: every incarnation of a zone of the head begins and ends with a block of a root. Where
    /// a zone of the head cannot be read, the first block of another zone decides. A damaged block counts as its former
    /// kind.
    pub async fn has_volume(&self) -> Result<Presence, DeviceError> {
        let is_own = |is_head: bool, block: &[u8]| looks_sealed(block) || !is_head && looks_like_group(block);
        presence(&*self.device, &self.zones, true, is_own).await
    }

    /// The newest whole root in a zone of the head, and blocks that may be newer.
    async fn head(&self, zone: u32) -> Result<HeadZone, VolumeError> {
        let mut head = HeadZone { zone, root: None, generation: None, damaged: None };
        for at in (0..self.written(zone)).rev() {
            match read_verified(&*self.device, self.lba(zone, at), root_block).await {
                Ok(Some(Err(version))) => return Err(VolumeError::Version(version)),
                Ok(Some(Ok((seal, _)))) => {
                    head.generation = head.generation.max(Some(seal.generation));
                    if seal.last && seal.index <= at {
                        match self.root_at(zone, at - seal.index, seal.index + 1).await? {
                            Ok(root) => {
                                head.root = Some(root);
                                break;
                            }
                            Err(damaged) => head.damaged = head.damaged.or(Some(damaged)),
                        }
                    }
                    // Otherwise it is a root that was interrupted.
                }
                Ok(None) => head.damaged = head.damaged.or(Some((at, None))),
                Err(error @ DeviceError::Status(_)) => {
                    head.damaged = head.damaged.or(Some((at, Some(error))));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(head)
    }

    /// Reads a root of `blocks` blocks, or returns the block of it that is damaged.
    async fn root_at(
        &self,
        zone: u32,
        offset: u32,
        blocks: u32,
    ) -> Result<Result<Root, (u32, Option<DeviceError>)>, DeviceError> {
        let (mut payload, mut first) = (Vec::new(), None);
        for index in 0..blocks {
            let at = offset + index;
            let (seal, part) = match read_verified(&*self.device, self.lba(zone, at), root_block).await {
                Ok(Some(Ok(found))) => found,
                Ok(_) => return Ok(Err((at, None))),
                Err(error @ DeviceError::Status(_)) => return Ok(Err((at, Some(error)))),
                Err(error) => return Err(error),
            };
            let same = (seal.volume, seal.generation);
            if seal.index != index || *first.get_or_insert(same) != same {
                return Ok(Err((at, None)));
            }
            payload.extend_from_slice(&part);
        }
        let root = Root::decode(&payload);
        let root = root.filter(|root| first == Some((root.identity.mark(), root.generation)));
        Ok(root.ok_or((offset, None)))
    }

    /// The newest root, and the place of the next one.
    pub async fn newest(&self) -> Result<(Root, (u32, u32)), VolumeError> {
        let mut heads = Vec::new();
        for zone in 0..HEAD_ZONES.min(self.zones.len() as u32) {
            if self.zones[zone as usize].state == ZoneState::Offline {
                // The end of an offline zone is unknown.
                return Err(VolumeError::RootUnreadable { zone, error: Status::ZoneIsOffline.into() });
            }
            heads.push(self.head(zone).await?);
        }
        let newest = heads.iter().filter_map(|head| Some((head.root.as_ref()?, head.zone)));
        let newest = newest.max_by_key(|(root, _)| root.generation);
        for head in &heads {
            // An older root does not know of zones that have been freed and begun anew since.
            let is_older = newest.is_some_and(|(root, zone)| self.is_older(head, root, zone));
            match head.damaged.filter(|_| !is_older) {
                None => (),
                Some((block, None)) => return Err(VolumeError::RootDamaged { zone: head.zone, block }),
                Some((_, Some(error))) => return Err(VolumeError::RootUnreadable { zone: head.zone, error }),
            }
        }
        let (root, zone) = newest.ok_or(VolumeError::NotThere)?;
        // A read-only zone takes no more roots: the other zone is begun.
        let next = match self.is_lost(zone) {
            true => self.device.geometry().zone_capacity_blocks as u32,
            false => self.written(zone),
        };
        Ok((root.clone(), (zone, next)))
    }

    /// Whether all of a zone of the head is older than `root` in `zone`: the other zone is begun when that has no room
    /// for another root or can only be read, and not before.
    fn is_older(&self, head: &HeadZone, root: &Root, zone: u32) -> bool {
        let capacity = self.device.geometry().zone_capacity_blocks;
        let blocks = root.encode().len().div_ceil(PAYLOAD) as u64 + 1;
        let has_room = !self.is_lost(zone) && self.written(zone) as u64 + blocks <= capacity;
        head.zone != zone && head.generation.map_or(has_room, |generation| generation < root.generation)
    }

    /// Whether there is a head without a whole root, and nothing else: the state of an interrupted creation.
    pub async fn was_cut_off(&self) -> Result<bool, VolumeError> {
        let mut others = self.zones.iter().skip(HEAD_ZONES as usize);
        if !others.all(|info| info.state == ZoneState::Empty) {
            return Ok(false);
        }
        match self.newest().await {
            Err(VolumeError::NotThere) => Ok(true),
            found => found.map(|_| false),
        }
    }

    /// The places of the pages of the map.
    pub async fn directory(&self, root: &Root, space: &Space) -> Result<Vec<Address>, VolumeError> {
        let pages = PagedMap::pages(root.identity.blocks) as usize;
        let mut directory = vec![0; pages];
        let blocks: Vec<(usize, Address)> =
            root.directory.iter().copied().enumerate().filter(|(_, place)| *place != 0).collect();
        let damaged = |directory_block: usize, place: Address| {
            let (zone, block) = space.locate(place);
            VolumeError::MapDamaged { directory_block, zone, block }
        };
        if let Some((index, place)) = blocks.iter().find(|(_, place)| !space.may_be_live(*place)) {
            return Err(damaged(*index, *place));
        }
        for some in blocks.chunks(MOST_LOADS) {
            let submit = |(index, place): &(usize, Address)| {
                let (zone, offset) = space.locate(*place);
                let read = Command::read(self.lba(zone, offset), Buf::zeroed(BLOCK));
                (*index, *place, self.device.submit(read))
            };
            let reads: Vec<(usize, Address, Completion)> = some.iter().map(submit).collect();
            for (index, place, read) in reads {
                let verify = |block: &[u8]| {
                    let is_right = unseal(block).is_ok_and(|(seal, _)| {
                        (seal.kind, seal.index, seal.volume)
                            == (Kind::Directory, index as u32, root.identity.mark())
                    });
                    let are_sane = || addresses(block).all(|place| space.may_be_live(place));
                    (is_right && are_sane()).then(|| addresses(block).collect::<Vec<Address>>())
                };
                let done = read.await;
                let mut found = done.result.is_ok().then(|| verify(&done.data)).flatten();
                if found.is_none() && done.result != Err(DeviceError::Gone) {
                    let (zone, offset) = space.locate(place);
                    found = reread_verified(&*self.device, self.lba(zone, offset), verify).await;
                }
                let Some(found) = found else {
                    done.result?;
                    return Err(damaged(index, place));
                };
                let pages = directory.iter_mut().skip(index * FANOUT as usize);
                found.into_iter().zip(pages).for_each(|(place, page)| *page = place);
            }
        }
        Ok(directory)
    }

    /// The state of a zone that the root does not count on, by its first block; `None` if that is damaged, or not of
    /// this volume.
    async fn life(&self, new: &Newest<'_>, zone: u32) -> Result<Option<FirstBlock>, DeviceError> {
        let verify = |block: &[u8]| self.life_of(new, block);
        let life = match read_verified(&*self.device, self.lba(zone, 0), verify).await {
            Err(DeviceError::Status(Status::DeallocatedBlock | Status::UnrecoveredReadError)) => None,
            life => life?,
        };
        if life.is_none() && self.is_unwritten(zone).await? {
            return Ok(Some(FirstBlock::Obsolete));
        }
        Ok(life)
    }

    fn life_of(&self, new: &Newest<'_>, block: &[u8]) -> Option<FirstBlock> {
        let (mark, capacity) = (new.identity.mark(), new.identity.zone_capacity_blocks as u32);
        let Some(header) = read_group(block) else {
            let (seal, _) = unseal(block).ok()?;
            return (seal.volume == mark && seal.kind != Kind::Root).then_some(FirstBlock::Obsolete);
        };
        if !header.is_at(mark, 0, capacity) {
            return None;
        }
        if header.place.segment < new.segment {
            return Some(FirstBlock::Obsolete);
        }
        header.entries.iter().all(|entry| entry.number >= new.number).then_some(FirstBlock::New(header))
    }

    /// Whether nothing was written in a zone, regardless of its write pointer.
    async fn is_unwritten(&self, zone: u32) -> Result<bool, DeviceError> {
        for at in 0..self.written(zone) {
            match self.read(zone, at, 1).await {
                Ok(block) if block.iter().all(|byte| *byte == 0) => (),
                Err(DeviceError::Status(Status::DeallocatedBlock)) => (),
                Ok(_) | Err(DeviceError::Status(Status::UnrecoveredReadError)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads the groups of a zone from `from` to the end of the written blocks. `segment` is the segment that they have
    /// to be of; if there is none, that of the first group, if it is `new`.
    ///
    /// # Errors
    /// The block at which an unreadable group begins, unless lost data is given up: then the rest of the zone is.
    pub async fn walk(
        &self,
        new: &Newest<'_>,
        zone: u32,
        (from, segment): (u32, Option<u64>),
        seen: &mut WalkResult,
    ) -> Result<Option<ZoneWalk>, VolumeError> {
        let (written, most) = (self.written(zone), self.device.geometry().max_transfer_blocks);
        let (mark, capacity) = (new.identity.mark(), new.identity.zone_capacity_blocks as u32);
        let (mut piece, mut piece_at) = (Buf::default(), 0);
        let (mut at, mut walked, mut segment) = (from, None, segment);
        let mut begun = None;
        if segment.is_none() && at < written {
            match self.life(new, zone).await? {
                Some(FirstBlock::New(header)) => {
                    segment = Some(header.place.segment);
                    begun = Some(header);
                }
                Some(FirstBlock::Obsolete) => return Ok(None),
                // Nothing proves that its contents are not needed.
                None => {
                    seen.give_up(VolumeError::GroupUnreadable { zone, block: at })?;
                    return Ok(None);
                }
            }
        }
        while at < written {
            if begun.is_none() && !(piece_at..piece_at + piece.blocks() as u32).contains(&at) {
                piece_at = at;
                piece = match self.read(zone, at, most.min(written - at)).await {
                    Err(DeviceError::Status(Status::UnrecoveredReadError)) => Buf::default(),
                    read => read?,
                };
            }
            let verify = |block: &[u8]| {
                let header = read_group(block)?;
                let is_of_segment = segment == Some(header.place.segment);
                let are_new = header.entries.iter().all(|entry| entry.number >= new.number);
                (header.is_at(mark, at, capacity) && is_of_segment && are_new).then_some(header)
            };
            let mut header = begun.take();
            if header.is_none() && !piece.is_empty() {
                let from = (at - piece_at) as usize * BLOCK;
                header = piece.get(from..from + BLOCK).and_then(verify);
            }
            if header.is_none() {
                header = reread_verified(&*self.device, self.lba(zone, at), verify).await;
            }
            let Some(header) = header else {
                seen.give_up(VolumeError::GroupUnreadable { zone, block: at })?;
                // Nothing is written after it.
                let (next, torn_at) = (capacity, Some(written));
                let stream = walked.map_or(0, |walked: ZoneWalk| walked.stream);
                return Ok(segment
                    .map(|segment| ZoneWalk { stream, open: OpenZone { zone, segment, next, torn_at } }));
            };
            segment = Some(header.place.segment);
            let mut from = 0;
            for entry in header.entries {
                let (first, grains) = (at + 1 + from / GRAINS, entry.what.grains());
                let place =
                    address::place(zone * capacity + first, from % GRAINS, (entry.what.unit(), grains));
                from += grains;
                // All of a piece has to be written.
                let end = first + address::blocks(place);
                if grains == 0 || end <= written {
                    seen.found.push(FoundEntry {
                        number: entry.number,
                        block: entry.block,
                        what: entry.what,
                        place,
                    });
                }
            }
            at += header.blocks;
            let torn_at = (at > written).then_some(written);
            let open = OpenZone { zone, segment: header.place.segment, next: at, torn_at };
            walked = Some(ZoneWalk { stream: header.place.stream, open });
        }
        Ok(walked)
    }
}

/// The results of walking zones.
#[derive(Default)]
pub struct WalkResult {
    /// Entries after the cut, and the zones that they are in.
    pub found: Vec<FoundEntry>,
    pub walked: Vec<ZoneWalk>,
    /// Zones that are free and not empty.
    pub resets: Vec<u32>,
    /// Ranges that are to be filled up: zone, from and to.
    pub torn: Vec<(u32, u32, u32)>,
    /// Zones that can only be read, and where they end.
    pub ends: Vec<(u32, u32)>,
    /// A zone has become lost, or usable again: a new root has to be durable before anything else is written.
    pub is_new: bool,
    /// Data that may have been promised and cannot be read is given up; and the errors for which that was done.
    pub gives_up: bool,
    pub given_up: Vec<VolumeError>,
}

impl WalkResult {
    /// Records lost data; returns the error unless lost data may be given up.
    pub fn give_up(&mut self, lost: VolumeError) -> Result<(), VolumeError> {
        self.given_up.push(lost.clone());
        if self.gives_up { Ok(()) } else { Err(lost) }
    }
}
