//! Inspection of a device without changes: zones, roots, the directory of the map, groups.
//!
//! Every block that is used has a checksum, and an array may be able to reconstruct a damaged block from redundancy:
//! blocks are read by [`read_verified`]. A block of which no version verifies is damaged. It may be newer than
//! everything else, so it counts as obsolete only if something else proves that.

use crate::{
    buf::{BLOCK, Buf, is_zero},
    device::{Command, Completion, DeviceError, Status, ZonedDevice},
    evidence::{Presence, presence, read_verified, reread_verified},
    frame::{FrameError, PAYLOAD_BYTES},
    volume::{
        address::{self, Address},
        core::{MOST_LOADS, read_some},
        error::VolumeError,
        format::{
            EntryKind, FANOUT, GroupEntry, GroupHeader, Kind, MOST_BEFORE, Seal, looks_like_group,
            looks_sealed, read_group, unseal,
        },
        map::PagedMap,
        root::{Root, VolumeIdentity, WINDOW, ZoneUse},
        space::{HEAD_ZONES, Space},
        stream::{MAP, OpenZone},
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::rc::Rc;

/// A device, and its zone report.
pub struct DeviceScan {
    pub device: Rc<dyn ZonedDevice>,
    pub zones: Vec<ZoneInfo>,
}

/// An entry behind the cut, and the place of its piece.
pub struct FoundEntry {
    pub number: u64,
    pub block: u32,
    pub kind: EntryKind,
    pub place: Address,
}

/// The first segment and entry number that the root does not cover: larger ones are newer than the root.
pub struct RootEnd<'r> {
    pub identity: &'r VolumeIdentity,
    pub segment: u64,
    pub number: u64,
}

/// Result of reading the groups of a zone behind the cut: its stream, and its end.
pub struct ZoneWalk {
    pub stream: u8,
    pub open: OpenZone,
}

/// The state of a zone that the root does not need, judged by its first block.
enum FirstBlock {
    /// The zone was begun after the root, with this group.
    New(GroupHeader),
    /// Nothing in the zone is needed: its groups are older than the root, or it has pages, which the root does not use.
    Obsolete,
}

/// The contents of a head zone.
struct HeadZone {
    zone: u32,
    /// The newest complete root.
    root: Option<Root>,
    /// The largest generation of any root block that was read.
    generation: Option<u64>,
    /// The last damaged block behind that root, and the error if it cannot be read.
    damaged: Option<(u32, Option<DeviceError>)>,
}

/// A block of a root: its header, its payload, and its format version; or a version that is not supported.
type RootBlock = Result<(Seal, Vec<u8>, u16), u16>;

/// Decodes a block of a root; `None` if it is anything else.
fn root_block(block: &[u8]) -> Option<RootBlock> {
    match unseal(block) {
        Ok((seal, payload, version)) if seal.kind == Kind::Root => {
            Some(Ok((seal, payload.to_vec(), version)))
        }
        Err(FrameError::Version(version)) => Some(Err(version)),
        _ => None,
    }
}

impl DeviceScan {
    /// Reads the zone report of a device.
    pub async fn at(device: Rc<dyn ZonedDevice>) -> Result<DeviceScan, DeviceError> {
        let count = device.geometry().zones;
        let done = device.submit(Command::Report { first: ZoneIndex(0), count }).await;
        done.result?;
        let whole = done.zones.len() == count as usize;
        if whole { Ok(DeviceScan { device, zones: done.zones }) } else { Err(Status::InternalError.into()) }
    }

    /// Number of blocks of a zone below its write pointer.
    pub fn written(&self, zone: u32) -> u32 {
        let info = &self.zones[zone as usize];
        match info.state {
            ZoneState::Empty => 0,
            ZoneState::Full => self.device.geometry().zone_capacity_blocks as u32,
            _ => info.wp_blocks as u32,
        }
    }

    /// Whether a zone is read-only or offline.
    pub fn is_lost(&self, zone: u32) -> bool {
        matches!(self.zones[zone as usize].state, ZoneState::Offline | ZoneState::ReadOnly)
    }

    /// Finds the end of the written blocks of a read-only zone, for which drives report no write pointer: behind the
    /// last block that is not zeros, and not below `least`. Sets it as the write pointer.
    pub async fn find_end(&mut self, zone: u32, least: u32) -> Result<(), DeviceError> {
        let capacity = self.device.geometry().zone_capacity_blocks;
        let mut end = self.zones[zone as usize].wp_blocks.min(capacity) as u32;
        let is_known = (end as u64) < capacity;
        while end > least && !is_known {
            match self.read(zone, end - 1, 1).await {
                Ok(block) if !is_zero(&block) => break,
                // An unreadable block was written.
                Err(DeviceError::Status(Status::UnrecoveredReadError)) => break,
                Ok(_) | Err(DeviceError::Status(Status::DeallocatedBlock)) => end -= 1,
                Err(error) => return Err(error),
            }
        }
        self.zones[zone as usize].wp_blocks = end as u64;
        Ok(())
    }

    /// Reads `blocks` blocks, or only the first one if they cannot all be read.
    async fn read(&self, zone: u32, offset: u32, blocks: u32) -> Result<Buf, DeviceError> {
        let lba = Lba(self.device.geometry().start(ZoneIndex(zone)).0 + offset as u64);
        read_some(&*self.device, lba, Buf::zeroed(blocks as usize * BLOCK), 1).await
    }

    /// The note of a zone, if that is a trailer which is to follow the last written block.
    pub fn trailer_of_note(&self, identity: &VolumeIdentity, zone: u32, segment: u64) -> Option<Buf> {
        let (written, capacity) = (self.written(zone), identity.zone_capacity_blocks as u32);
        let is_next = |note: &Buf| {
            read_group(note).is_some_and(|header| {
                header.is_at(identity.mark(), written, capacity) && header.place.segment == segment
            })
        };
        self.device.note(ZoneIndex(zone)).filter(is_next)
    }

    /// Searches the header of the group that begins at block `at` of a zone, where the block that was read is none. It is a
    /// trailer, or the header is there and has to be reconstructed; `verify` also gets the blocks before it. If it is the note
    /// of the zone, that is returned, too.
    async fn search_header(
        &self,
        zone: u32,
        at: u32,
        verify: impl Fn(&[u8], u32) -> Option<GroupHeader>,
    ) -> Result<(Option<GroupHeader>, Option<Buf>), DeviceError> {
        let (written, most) = (self.written(zone), self.device.geometry().max_transfer_blocks);
        // The first group of a zone has no trailer.
        let last = if at > 0 { MOST_BEFORE.min(written - 1 - at) } else { 0 };
        if last > 0 {
            let found = match self.read(zone, at + 1, last.min(most)).await {
                Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                Ok(read) => (1..).zip(read.chunks_exact(BLOCK)).find_map(|(before, b)| verify(b, before)),
                Err(_) => None,
            };
            if found.is_some() {
                return Ok((found, None));
            }
        }
        if let Some(note) = self.device.note(ZoneIndex(zone)).filter(|_| at > 0)
            && let Some(header) = verify(&note, written - at)
        {
            return Ok((Some(header), Some(note)));
        }
        for before in 0..=last {
            let verify = |block: &[u8]| verify(block, before);
            match read_verified(&*self.device, self.lba(zone, at + before), verify).await {
                Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                Ok(Some(header)) => return Ok((Some(header), None)),
                Ok(None) | Err(_) => {}
            }
        }
        Ok((None, None))
    }

    fn lba(&self, zone: u32, offset: u32) -> Lba {
        Lba(self.device.geometry().start(ZoneIndex(zone)).0 + offset as u64)
    }

    /// Whether there is a volume: every incarnation of a head zone begins and ends with a block of a root. If the head
    /// zones cannot be read, the first blocks of other zones decide. A damaged block counts as what its magic number
    /// says.
    pub async fn has_volume(&self) -> Result<Presence, DeviceError> {
        let is_own = |is_head: bool, block: &[u8]| looks_sealed(block) || !is_head && looks_like_group(block);
        presence(&*self.device, &self.zones, true, is_own).await
    }

    /// Finds the newest complete root in a head zone, and damaged blocks that may be newer.
    async fn head(&self, zone: u32) -> Result<HeadZone, VolumeError> {
        let mut head = HeadZone { zone, root: None, generation: None, damaged: None };
        for at in (0..self.written(zone)).rev() {
            match read_verified(&*self.device, self.lba(zone, at), root_block).await {
                Ok(Some(Err(version))) => return Err(VolumeError::Version(version)),
                Ok(Some(Ok((seal, ..)))) => {
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
                    // Otherwise the write of this root was interrupted, or this is not its last block.
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

    /// Reads a root of `blocks` blocks; returns the damaged block, with its error if it cannot be read, in place of the
    /// root.
    async fn root_at(
        &self,
        zone: u32,
        offset: u32,
        blocks: u32,
    ) -> Result<Result<Root, (u32, Option<DeviceError>)>, DeviceError> {
        let (mut payload, mut first) = (Vec::new(), None);
        for index in 0..blocks {
            let at = offset + index;
            let (seal, part, version) =
                match read_verified(&*self.device, self.lba(zone, at), root_block).await {
                    Ok(Some(Ok(found))) => found,
                    Ok(_) => return Ok(Err((at, None))),
                    Err(error @ DeviceError::Status(_)) => return Ok(Err((at, Some(error)))),
                    Err(error) => return Err(error),
                };
            let same = (seal.volume, seal.generation, version);
            if seal.index != index || *first.get_or_insert(same) != same {
                return Ok(Err((at, None)));
            }
            payload.extend_from_slice(&part);
        }
        let root = first.and_then(|(mark, generation, version)| {
            let root = Root::decode(&payload, version)?;
            (mark == root.identity.mark() && generation == root.generation).then_some(root)
        });
        Ok(root.ok_or((offset, None)))
    }

    /// Finds the newest root; returns it with the head zone and the offset at which the next one is written.
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
            // A damaged block may be of a newer root, and an older root must not be used: zones that it needs may have
            // been reset since.
            let is_older = newest.is_some_and(|(root, zone)| self.is_older(head, root, zone));
            match head.damaged.filter(|_| !is_older) {
                None => (),
                Some((block, None)) => return Err(VolumeError::RootDamaged { zone: head.zone, block }),
                Some((_, Some(error))) => return Err(VolumeError::RootUnreadable { zone: head.zone, error }),
            }
        }
        let (root, zone) = newest.ok_or(VolumeError::NotThere)?;
        if root.other_features != 0 {
            return Err(VolumeError::Features(root.other_features));
        }
        // A read-only zone takes no more roots: the other zone is begun.
        let next = match self.is_lost(zone) {
            true => self.device.geometry().zone_capacity_blocks as u32,
            false => self.written(zone),
        };
        Ok((root.clone(), (zone, next)))
    }

    /// Whether everything in a head zone is older than `root`, which is in the head zone `zone`. Without a readable
    /// block that follows from the order of use: the other head zone is begun only when `zone` has no room for another
    /// root, or is read-only.
    fn is_older(&self, head: &HeadZone, root: &Root, zone: u32) -> bool {
        let capacity = self.device.geometry().zone_capacity_blocks;
        let blocks = root.encode().len().div_ceil(PAYLOAD_BYTES) as u64 + 1;
        let has_room = !self.is_lost(zone) && self.written(zone) as u64 + blocks <= capacity;
        head.zone != zone && head.generation.map_or(has_room, |generation| generation < root.generation)
    }

    /// Whether the device is in the state of an interrupted creation: no complete root in the head, and all other zones
    /// are empty.
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

    /// Reads the directory: the places of the pages of the map.
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
                let expected = (Kind::Directory, index as u32, root.identity.mark());
                let verify = |block: &[u8]| space.read_map_block(expected, place, block);
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

    /// Judges a zone that the root does not need by its first block; `None` if that block is damaged, or not of this
    /// volume. A zone of zeros is obsolete.
    async fn judge_first_block(
        &self,
        new: &RootEnd<'_>,
        zone: u32,
    ) -> Result<Option<FirstBlock>, DeviceError> {
        let verify = |block: &[u8]| self.parse_first_block(new, block);
        let found = match read_verified(&*self.device, self.lba(zone, 0), verify).await {
            Err(DeviceError::Status(Status::DeallocatedBlock | Status::UnrecoveredReadError)) => None,
            found => found?,
        };
        if found.is_none() && self.is_unwritten(zone).await? {
            return Ok(Some(FirstBlock::Obsolete));
        }
        Ok(found)
    }

    /// Judges a zone by the content of its first block; `None` if that does not verify.
    fn parse_first_block(&self, new: &RootEnd<'_>, block: &[u8]) -> Option<FirstBlock> {
        let (mark, capacity) = (new.identity.mark(), new.identity.zone_capacity_blocks as u32);
        let Some(header) = read_group(block) else {
            let (seal, ..) = unseal(block).ok()?;
            return (seal.volume == mark && seal.kind != Kind::Root).then_some(FirstBlock::Obsolete);
        };
        if !header.is_at(mark, 0, capacity) {
            return None;
        }
        // A hot window without a root that names it has nothing in its cells.
        if header.place.segment < new.segment || header.place.stream == WINDOW {
            return Some(FirstBlock::Obsolete);
        }
        header.entries.iter().all(|entry| entry.number >= new.number).then_some(FirstBlock::New(header))
    }

    /// Whether all blocks below the write pointer of a zone are zeros or deallocated.
    async fn is_unwritten(&self, zone: u32) -> Result<bool, DeviceError> {
        for at in 0..self.written(zone) {
            match self.read(zone, at, 1).await {
                Ok(block) if is_zero(&block) => (),
                Err(DeviceError::Status(Status::DeallocatedBlock)) => (),
                Ok(_) | Err(DeviceError::Status(Status::UnrecoveredReadError)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads the groups of a zone from block `from` to the end of the written blocks; adds their entries to
    /// `seen.found`. The groups have to be of `segment`; without one, of the segment of the first group, if that is
    /// newer than the root. `None` if there is no such group.
    ///
    /// If the header of a group cannot be read, the rest of the zone is lost.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn walk(
        &self,
        new: &RootEnd<'_>,
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
            match self.judge_first_block(new, zone).await? {
                Some(FirstBlock::New(header)) => {
                    segment = Some(header.place.segment);
                    begun = Some(header);
                }
                Some(FirstBlock::Obsolete) => return Ok(None),
                // Nothing proves that the zone is obsolete.
                None => {
                    seen.lost.push(VolumeError::GroupUnreadable { zone, block: at });
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
            let verify = |block: &[u8], before: u32| {
                let header = read_group(block)?;
                let is_of_segment = segment == Some(header.place.segment) && header.before == before;
                let are_new = header.entries.iter().all(|entry| entry.number >= new.number);
                let is_here = header.is_at(mark, at + before, capacity) && header.place.stream < MAP;
                (is_here && is_of_segment && are_new).then_some(header)
            };
            let mut header = begun.take();
            if header.is_none() && !piece.is_empty() {
                let from = (at - piece_at) as usize * BLOCK;
                header = piece.get(from..from + BLOCK).and_then(|block| verify(block, 0));
            }
            let mut trailer = None;
            if header.is_none() {
                (header, trailer) = self.search_header(zone, at, verify).await?;
            }
            let lacks_trailer = trailer.is_some();
            // A read-only zone stays without it: collection reads the note.
            seen.trailers.extend(trailer.filter(|_| !self.is_lost(zone)).map(|note| (zone, written, note)));
            let Some(header) = header else {
                seen.lost.push(VolumeError::GroupUnreadable { zone, block: at });
                // Nothing more is written to the zone: the rest is filled up.
                let (next, torn_at) = (capacity, Some(written));
                let stream = walked.map_or(0, |walked: ZoneWalk| walked.stream);
                return Ok(segment
                    .map(|segment| ZoneWalk { stream, open: OpenZone { zone, segment, next, torn_at } }));
            };
            segment = Some(header.place.segment);
            // An entry counts only if its whole piece was written.
            let counts = |entry: &GroupEntry, place: Address| {
                let end = address::block(place) - zone * capacity + address::blocks(place);
                entry.kind.grains() == 0 || end <= written
            };
            let mut placed = header.placed(zone * capacity + at).peekable();
            while let Some((entry, place)) = placed.next() {
                let with_next = match (entry.kind, placed.peek()) {
                    (EntryKind::Keep { .. }, Some((next, place))) => counts(next, *place),
                    (EntryKind::Keep { .. }, None) | (EntryKind::Named, _) => false,
                    _ => true,
                };
                if counts(entry, place) && with_next {
                    seen.found.push(FoundEntry {
                        number: entry.number,
                        block: entry.block,
                        kind: entry.kind,
                        place,
                    });
                }
            }
            at += header.blocks;
            // A trailer that is missing is written before anything else.
            let torn_at = (at > written && !lacks_trailer).then_some(written);
            let open = OpenZone { zone, segment: header.place.segment, next: at, torn_at };
            walked = Some(ZoneWalk { stream: header.place.stream, open });
        }
        Ok(walked)
    }
}

/// Results of reading the groups of all zones behind the cuts.
#[derive(Default)]
pub struct WalkResult {
    /// Entries behind the cuts.
    pub found: Vec<FoundEntry>,
    /// Zones with groups behind a cut, and their ends.
    pub walked: Vec<ZoneWalk>,
    /// Free zones that are not empty: they are to be reset.
    pub resets: Vec<u32>,
    /// Ranges of closed zones that are to be filled with zeros: zone, from and to.
    pub torn: Vec<(u32, u32, u32)>,
    /// Trailers that are to be written, of which the device has a note: zone, offset, and the header.
    pub trailers: Vec<(u32, u32, Buf)>,
    /// The zone of the hot window, if there is one.
    pub window: Option<u32>,
    /// Read-only zones, and the ends of their written blocks.
    pub ends: Vec<(u32, u32)>,
    /// A zone has become lost, or usable again, or the hot window has new entries: a new root has to be durable before anything else is
    /// written.
    pub is_new: bool,
    /// Possibly promised data that cannot be read.
    pub lost: Vec<VolumeError>,
}

/// Whether the cuts and zone records of a root are consistent: each cut has a stream and a zone of its own, the zone is
/// being written by that kind of stream, and the records of the head zones are empty.
pub fn are_sane(root: &Root) -> bool {
    let mut of_head = root.zones.iter().take(HEAD_ZONES as usize);
    of_head.all(|record| *record == Default::default())
        && root.cuts.iter().enumerate().all(|(index, cut)| {
            let written = if cut.stream == MAP { ZoneUse::Map } else { ZoneUse::Data };
            let mut others = root.cuts[..index].iter();
            cut.stream <= WINDOW
                && root.zones[cut.zone as usize].state == written
                && others.all(|other| other.stream != cut.stream && other.zone != cut.zone)
        })
}
