//! Creation and start of a volume. A start reads the newest root, and applies the entries behind its cuts to the map.
//!
//! Until another root is durable, nothing is changed that this root depends on: zones that are reset before were free
//! or dead in it, trailers are written behind all blocks, and torn groups are filled up afterwards. So an interrupted recovery is simply repeated.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{Command, DeviceError, ZonedDevice, Zones},
    evidence::Presence,
    runtime::give_way,
    volume::{
        address::{Address, GRAINS},
        checkpoint,
        core::{Need, VolumeCore, deactivate_zone},
        error::VolumeError,
        format::{EntryKind, FANOUT, GroupEntry},
        map::{PagedMap, in_one_page},
        options::{VolumeCreateOptions, VolumeOptions},
        root::{CutRecord, Root, VolumeIdentity, WINDOW, ZoneUse},
        scan::{DeviceScan, FoundEntry, RootEnd, WalkResult, ZoneWalk, are_sane},
        space::{HEAD_ZONES, ShardPlan, Space},
        stream::{MAP, OpenZone},
        victim::Lifespan,
        window,
    },
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{collections::BTreeSet, rc::Rc};

/// Number of entries for which pages are read ahead together.
const AT_ONCE: usize = 1024;

/// Default limit of pages that change between two checkpoints.
const MOST_CHANGED: usize = 350_000;

/// Whether there is a volume on a device. Nothing is written or flushed.
///
/// # Errors
/// When the device does not report its zones, or is gone.
pub async fn is_on(device: Rc<dyn ZonedDevice>) -> Result<Presence, DeviceError> {
    DeviceScan::at(device).await?.has_volume().await
}

/// Writes the first root of a volume.
///
/// # Errors
/// When the device cannot carry such a volume, is not empty, or fails.
pub async fn create(
    device: Rc<dyn ZonedDevice>,
    VolumeCreateOptions { uuid, blocks, sector, codec, unit, pool, shards, .. }: VolumeCreateOptions,
) -> Result<(), VolumeError> {
    let plan = ShardPlan::of(device.geometry(), blocks)?;
    let scan = DeviceScan::at(device.clone()).await?;
    if let Some(info) = scan.zones.iter().find(|info| info.state != ZoneState::Empty) {
        let zone = info.zone.0;
        match scan.has_volume().await? {
            Presence::No => return Err(VolumeError::NotEmpty { zone }),
            Presence::Unknown(zones) => return Err(VolumeError::Hidden { zones }),
            Presence::Yes => (),
        }
        if !scan.was_cut_off().await? {
            return Err(VolumeError::IsThere);
        }
        for zone in 0..HEAD_ZONES {
            device.submit(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }).await.result?;
        }
    }
    let identity = VolumeIdentity {
        uuid,
        blocks: plan.blocks,
        zone_capacity_blocks: device.geometry().zone_capacity_blocks,
        zones: device.geometry().zones,
        sector,
        pool,
        extents_in_turn: pool.is_some() && shards.is_some_and(|shards| shards > 1),
    };
    let root = Root {
        generation: 1,
        next_number: 1,
        next_segment: 1,
        lifespan: Lifespan::UNKNOWN.0,
        mapped: 0,
        codec,
        unit: unit.min(plan.unit),
        queue_seconds: 0,
        has_snapshots: false,
        shares_headers: true,
        extents: None,
        has_trailers: true,
        other_features: 0,
        cuts: Vec::new(),
        directory: vec![0; PagedMap::directory_blocks(identity.blocks) as usize],
        zones: vec![Default::default(); identity.zones as usize],
        identity: identity.clone(),
    };
    let core = core_of(device, identity, &root, (0, 0), VolumeOptions::default(), Vec::new())?;
    checkpoint::write_root(&core, &root).await?;
    Ok(core.flush_device().await?)
}

/// Builds the state of a volume from its root. `directory` has the places of the pages; missing ones are 0.
fn core_of(
    device: Rc<dyn ZonedDevice>,
    identity: VolumeIdentity,
    root: &Root,
    head: (u32, u32),
    options: VolumeOptions,
    directory: Vec<Address>,
) -> Result<VolumeCore, VolumeError> {
    let plan = ShardPlan::of(device.geometry(), Some(identity.blocks))?;
    let mut directory = directory;
    directory.resize(PagedMap::pages(identity.blocks) as usize, 0);
    let most = options.map_pages.unwrap_or_else(|| plan.default_pages());
    let budget = (most, options.changed_pages.unwrap_or(MOST_CHANGED));
    let map = PagedMap::new(identity.blocks, directory, budget);
    let space = Space::new(plan, &root.zones, root.mapped, root.next_segment);
    Ok(VolumeCore::new(device, identity, options, (root, head), (map, space)))
}

/// The newest root of a volume, and the state of its device.
pub struct FoundVolume {
    scan: DeviceScan,
    root: Root,
    /// End of the roots: zone and block.
    head: (u32, u32),
}

impl FoundVolume {
    /// The identity of the volume, or of its first shard.
    pub fn identity(&self) -> &VolumeIdentity {
        &self.root.identity
    }
}

/// Finds the volume on a device; nothing is changed.
///
/// # Errors
/// When there is no volume, or its root cannot be read.
pub async fn find(device: Rc<dyn ZonedDevice>) -> Result<FoundVolume, VolumeError> {
    let scan = DeviceScan::at(device).await?;
    let (root, head) = scan.newest().await?;
    Ok(FoundVolume { scan, root, head })
}

/// Opens the volume that was found on a device, and recovers it after a power cut or the end of its process.
///
/// # Errors
/// When it cannot be started. Everything that a start needs is read and checked before anything is changed.
pub async fn open(
    device: Rc<dyn ZonedDevice>,
    FoundVolume { mut scan, mut root, head }: FoundVolume,
    options: VolumeOptions,
) -> Result<VolumeCore, VolumeError> {
    let identity = root.identity.clone();
    let geometry = device.geometry();
    if (identity.zones, identity.zone_capacity_blocks) != (geometry.zones, geometry.zone_capacity_blocks) {
        let (zones, capacity) = (identity.zones, identity.zone_capacity_blocks);
        return Err(VolumeError::OfAnotherDevice { zones, capacity_blocks: capacity });
    }
    let plan = ShardPlan::of(geometry, Some(identity.blocks))?;
    if root.directory.len() as u64 != PagedMap::directory_blocks(identity.blocks) || !are_sane(&root) {
        return Err(VolumeError::Absurd);
    }
    let space = Space::new(plan, &root.zones, root.mapped, root.next_segment);
    let directory = scan.directory(&root, &space).await?;
    let (mut seen, gives_up) = (WalkResult::default(), options.give_up);
    walk_all(&mut scan, &mut root, &mut seen).await?;
    let mut core = core_of(device.clone(), identity, &root, head, options, directory)?;
    for (zone, end) in &seen.ends {
        core.state.borrow_mut().space.zone_mut(*zone).ends_at = Some(*end);
    }
    if let Some(zone) = seen.window {
        recover_window(&core, zone, &root, &mut seen).await?;
    }
    let mut torn = resume(&core, &scan, &root, &seen.walked);
    torn.append(&mut seen.torn);
    seen.found.sort_unstable_by_key(|entry| entry.number);
    if let Some(last) = seen.found.last() {
        let mut state = core.state.borrow_mut();
        state.next_number = state.next_number.max(last.number + 1);
    }
    apply(&core, &mut seen).await?;
    check_window(&core, &mut seen);
    if !gives_up && let Some(error) = VolumeError::of_losses(&seen.lost) {
        return Err(error);
    }
    for zone in std::mem::take(&mut seen.resets) {
        let zones = Zones::One(ZoneIndex(zone));
        match device.submit(Command::Reset { zones }).await.result {
            // It holds nothing that is needed, so the volume continues without it. It must not stay active.
            Err(DeviceError::Status(_)) => {
                deactivate_zone(&*device, ZoneIndex(zone)).await;
                core.state.borrow_mut().space.lose(zone);
                seen.is_new = true;
            }
            result => result?,
        }
    }
    for (zone, offset, note) in std::mem::take(&mut seen.trailers) {
        write_trailer(&core, (zone, offset), &note).await?;
    }
    if seen.is_new || !seen.walked.is_empty() || !seen.lost.is_empty() {
        checkpoint::checkpoint(&core).await?;
    }
    for (zone, from, to) in &torn {
        // If nothing in it was live, the checkpoint has reset it.
        let used = core.state.borrow().space.zone(*zone).record.state;
        if ![ZoneUse::Free, ZoneUse::Lost].contains(&used) {
            mend(&core, *zone, *from, *to).await?;
        }
    }
    if !torn.is_empty() {
        // The zeros have to be durable: a stream without an open zone begins one without a flush.
        core.flush_device().await?;
    }
    core.state.borrow_mut().streams.iter_mut().for_each(|stream| stream.mend());
    core.given_up = seen.lost;
    Ok(core)
}

/// Finds the entries of the hot window that the root does not cover.
async fn recover_window(
    core: &VolumeCore,
    zone: u32,
    root: &Root,
    seen: &mut WalkResult,
) -> Result<(), VolumeError> {
    let segment = root.zones[zone as usize].segment;
    let (entries, is_written) = window::recover(core, (zone, segment), root.next_number).await?;
    seen.is_new |= is_written || !entries.is_empty();
    seen.found.extend(entries.into_iter().map(|(entry, place)| {
        let GroupEntry { number, block, kind } = entry;
        FoundEntry { number, block, kind, place }
    }));
    Ok(())
}

/// As many blocks as are live in the hot window have to be there; with snapshots more than one may be in a cell.
fn check_window(core: &VolumeCore, seen: &mut WalkResult) {
    let state = core.state.borrow();
    if let Some(window) = state.window.as_ref().filter(|_| !state.has_snapshots) {
        let (zone, there) = (window.zone, window.used());
        let written = state.space.zone(zone).record.live.div_ceil(GRAINS);
        if there < written {
            seen.lost.push(VolumeError::LostBlocks { zone, there, written });
        }
    }
}

/// Walks all zones. Afterwards the zone records of `root` describe their present contents.
async fn walk_all(scan: &mut DeviceScan, root: &mut Root, seen: &mut WalkResult) -> Result<(), VolumeError> {
    let identity = root.identity.clone();
    let (segment, number) = (root.next_segment, root.next_number);
    let new = RootEnd { identity: &identity, segment, number };
    for zone in HEAD_ZONES..identity.zones {
        let record = root.zones[zone as usize];
        let cut = root.cuts.iter().find(|cut| cut.zone == zone).copied();
        let state = scan.zones[zone as usize].state;
        if state == ZoneState::ReadOnly && record.state != ZoneUse::Lost {
            scan.find_end(zone, cut.map_or(0, |cut| cut.written)).await?;
            seen.ends.push((zone, scan.written(zone)));
        }
        let (written, capacity) = (scan.written(zone), identity.zone_capacity_blocks as u32);
        match (record.state, cut) {
            (ZoneUse::Data, Some(_)) if state == ZoneState::Offline => {
                seen.lost.push(VolumeError::ZoneOffline { zone });
                root.zones[zone as usize].state = ZoneUse::ClosedData;
                root.cuts.retain(|cut| cut.zone != zone);
                continue;
            }
            (ZoneUse::Data, Some(cut)) if cut.stream == WINDOW => {
                let has_cells = scan.device.read_cell(ZoneIndex(zone), 0, 0).is_some();
                if cut.written > 0 && (written == 0 || !has_cells) {
                    let blocks = record.live.div_ceil(GRAINS).max(1);
                    return Err(VolumeError::LostBlocks { zone, there: 0, written: blocks });
                }
                seen.window = Some(zone);
                continue;
            }
            // It contains map pages only: reads of these fail, and the next checkpoint continues in another zone.
            (ZoneUse::Map, Some(_)) if state == ZoneState::Offline => continue,
            (ZoneUse::Data | ZoneUse::Map, Some(cut)) => {
                if written < cut.written {
                    return Err(VolumeError::LostBlocks { zone, there: written, written: cut.written });
                }
                if record.state == ZoneUse::Data {
                    let from = (cut.offset, Some(record.segment));
                    let walked = scan.walk(&new, zone, from, seen).await?;
                    seen.walked.extend(walked);
                }
                continue;
            }
            (ZoneUse::Data | ZoneUse::Map, None) => {
                return Err(VolumeError::NoEnd { zone });
            }
            // The zone was reset by other software: its live blocks are lost.
            (ZoneUse::ClosedData, _) if record.live > 0 && state == ZoneState::Empty => {
                return Err(VolumeError::LostBlocks {
                    zone,
                    there: 0,
                    written: record.live.div_ceil(GRAINS),
                });
            }
            (ZoneUse::ClosedData, _) if record.live > 0 => {
                // Its last group was torn, and has not been filled up; or the zone was read-only, and lacks a trailer.
                if written < capacity && !scan.is_lost(zone) {
                    let trailer = scan.trailer_of_note(&identity, zone, record.segment);
                    seen.torn.push((zone, written + trailer.is_some() as u32, capacity));
                    seen.trailers.extend(trailer.map(|note| (zone, written, note)));
                }
                continue;
            }
            (ZoneUse::ClosedMap, _) if record.live > 0 => continue,
            (ZoneUse::Lost, _) if scan.is_lost(zone) => continue,
            _ => (),
        }
        // The zone was dead, free or lost at the cut, and may have been written since.
        let was = std::mem::take(&mut root.zones[zone as usize]).state;
        let record = &mut root.zones[zone as usize];
        if state == ZoneState::Offline {
            seen.lost.push(VolumeError::ZoneOffline { zone });
            record.state = ZoneUse::Lost;
        } else if was == ZoneUse::Lost {
            // The zone is usable again. Its contents were given up, so they are not read.
            seen.is_new = true;
            seen.resets.extend((state != ZoneState::Empty).then_some(zone));
        } else if written > 0
            && let Some(new) = scan.walk(&new, zone, (0, None), seen).await?
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

/// Lets each stream continue in its newest zone; returns the torn ranges, which are to be filled with zeros: zone, from
/// and to.
fn resume(core: &VolumeCore, scan: &DeviceScan, root: &Root, walked: &[ZoneWalk]) -> Vec<(u32, u32, u32)> {
    let mut state = core.state.borrow_mut();
    let mut ends: Vec<ZoneWalk> = Vec::new();
    for CutRecord { stream, zone, offset, .. } in root.cuts.iter().copied() {
        if stream == WINDOW {
            continue;
        }
        let written = scan.written(zone);
        if scan.is_lost(zone) {
            // It is read-only or offline.
            state.space.close(zone);
            continue;
        }
        if stream == MAP {
            // Pages of an interrupted checkpoint may follow the cut.
            let next = offset.max(written);
            state.map_open = (next < core.capacity()).then_some((zone, next));
            if state.map_open.is_none() {
                state.space.close(zone);
            }
            continue;
        }
        let segment = root.zones[zone as usize].segment;
        let torn_at = (written < offset).then_some(written);
        ends.push(ZoneWalk { stream, open: OpenZone { zone, segment, next: offset, torn_at } });
    }
    for ZoneWalk { stream, open } in walked {
        ends.retain(|end| end.open.zone != open.zone);
        ends.push(ZoneWalk { stream: *stream, open: *open });
    }
    // A stream continues in its newest zone.
    ends.sort_unstable_by_key(|end| end.open.segment);
    let capacity = core.capacity();
    let streams = state.space.plan().streams;
    let mut torn = Vec::new();
    let mut newest: [Option<OpenZone>; 3] = [None; 3];
    for ZoneWalk { stream, open } in ends {
        let index = (stream as usize).min(streams - 1);
        state.space.close(open.zone);
        if scan.is_lost(open.zone) {
            continue;
        }
        if let Some(from) = open.torn_at {
            torn.push((open.zone, from, open.next));
        }
        if open.next < capacity
            && let Some(older) = newest[index].replace(open)
        {
            // On a correct device a stream has only one zone that is not full; the rest of the older one is filled up.
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

/// Applies the recovered entries to the map, in the order of their numbers. A page that cannot be read stays as it is,
/// with all of its blocks, and counts as a loss.
///
/// # Errors
/// Those of the device; an entry for a block that the volume does not have.
async fn apply(core: &VolumeCore, seen: &mut WalkResult) -> Result<(), VolumeError> {
    let (blocks, mut lost) = (core.blocks.get(), BTreeSet::<u32>::new());
    let found = std::mem::take(&mut seen.found);
    for (index, FoundEntry { block, kind, place, .. }) in found.iter().enumerate() {
        // The volume may be in a namespace while others are served.
        give_way().await;
        if index % AT_ONCE == 0 {
            let some = found[index..].iter().take(AT_ONCE);
            let ahead: BTreeSet<u32> = some
                .flat_map(|entry| [Some(entry.block), entry.kind.from()])
                .flatten()
                .map(|block| block / FANOUT as u32)
                .collect();
            let pages = PagedMap::pages(blocks) as u32;
            core.fetch(ahead.into_iter().filter(|page| *page < pages), Need::Pressing).await;
        }
        let (first, count) = (*block as u64, kind.blocks());
        let others = kind.from().map(u64::from);
        let last = first.max(others.unwrap_or(0)) + count - 1;
        if last >= blocks {
            return Err(VolumeError::NoSuchBlock { block: last });
        }
        let mut done = 0;
        while done < count {
            let starts = [Some(first + done), others.map(|other| other + done)].into_iter().flatten();
            let part = in_one_page(starts.clone(), count - done);
            let pages = starts.clone().map(|start| (start / FANOUT) as u32);
            // After an entry of a page could not be applied, no newer one of that page is.
            if pages.clone().any(|page| lost.contains(&page)) {
                lost.extend(pages);
            } else {
                match core.hold_all(starts, Need::Pressing).await {
                    Ok(_pins) => {
                        let kind = kind.part(done as u32, part as u32);
                        core.state.borrow_mut().apply(first + done, kind, *place);
                    }
                    Err(error @ DeviceError::Status(_)) => {
                        for page in pages {
                            seen.lost.push(VolumeError::PageUnreadable { page, error });
                            lost.insert(page);
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            done += if let EntryKind::Data { .. } = kind { count } else { part };
        }
    }
    Ok(())
}

/// Writes a trailer behind the pieces of its group. If that is interrupted, the note is still there.
async fn write_trailer(
    core: &VolumeCore,
    (zone, offset): (u32, u32),
    note: &[u8],
) -> Result<(), DeviceError> {
    let start = core.device.geometry().start(ZoneIndex(zone)).0;
    let mut block = BufMut::zeroed(BLOCK);
    let length = note.len().min(BLOCK);
    block[..length].copy_from_slice(&note[..length]);
    let done = core.device.submit(Command::write(Lba(start + offset as u64), block.freeze(), false)).await;
    core.must(done)?;
    core.state.borrow_mut().written.headers += 1;
    Ok(())
}

/// Fills the torn blocks `from..to` of a zone with zeros.
async fn mend(core: &VolumeCore, zone: u32, from: u32, to: u32) -> Result<(), DeviceError> {
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
mod tests {
    use super::*;
    use crate::volume::{address::Unit, root::RootZone};

    #[test]
    fn recover_rejects_root_with_misplaced_cuts() {
        let of = |state| RootZone { state, ..RootZone::default() };
        let identity = VolumeIdentity {
            uuid: [0; 16],
            blocks: 1,
            zone_capacity_blocks: 9,
            zones: 6,
            sector: Default::default(),
            pool: None,
            extents_in_turn: false,
        };
        let uses =
            [ZoneUse::Free, ZoneUse::Free, ZoneUse::Data, ZoneUse::Data, ZoneUse::Map, ZoneUse::ClosedData];
        let sane_with = |uses: [ZoneUse; 6], cuts: &[(u8, u32)]| {
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
                queue_seconds: 0,
                has_snapshots: false,
                shares_headers: true,
                extents: None,
                has_trailers: true,
                other_features: 0,
                cuts: cuts.iter().map(cut).collect(),
                directory: Vec::new(),
                zones: uses.map(of).to_vec(),
            })
        };
        let sane = |cuts: &[(u8, u32)]| sane_with(uses, cuts);
        assert!(sane(&[]) && sane(&[(1, 2), (2, 3), (MAP, 4)]));
        // A head zone that counts as one of the map would be freed, and reset.
        let mut head_used = uses;
        head_used[1] = ZoneUse::ClosedMap;
        assert!(!sane_with(head_used, &[]));
        let of_the_head = [(1, 0)];
        let wrong: [&[(u8, u32)]; 8] = [
            &of_the_head,
            &[(1, 5)],
            &[(1, 4)],
            &[(MAP, 2)],
            &[(5, 2)],
            &[(4, 4)],
            &[(0, 2), (1, 2)],
            &[(1, 2), (1, 3)],
        ];
        wrong.iter().for_each(|cuts| assert!(!sane(cuts), "{cuts:?}"));
    }
}
