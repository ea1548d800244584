//! Checkpoints: write changed pages of the map and a root, then reset dead zones.
//!
//! The order makes them correct (docs/VOLUME.md, 'The checkpoint'): cut; pages and directory; all groups before the cut
//! have landed; flush; root; resets last.

use crate::{
    buf::BLOCK,
    device::{Command, Completion, DeviceError, Status, Zones},
    frame::PAYLOAD_BYTES,
    runtime::{COPY, give_way, work},
    volume::{
        address::{self, Address},
        core::{MOST_LOADS, Need, VolumeCore, deactivate_zone},
        extent_room::ExtentRoom,
        format::{FANOUT, Kind, Seal, payload_mut, put_addresses, seal},
        hot_window::HotWindow,
        root::{CutRecord, Root, VolumeIdentity, ZoneUse},
        scan::are_sane,
        space::{HEAD_ZONES, ZonePurpose},
        state::VolumeState,
        stream::{MAP, Ticket},
        window,
    },
    zone::ZoneIndex,
};
use std::{collections::VecDeque, rc::Rc};

/// Changed pages that are given places before other tasks get a turn.
const PAGES_LAID: usize = 256;

/// Times that pages which were changed meanwhile are given places before the cut.
const ROUNDS_AHEAD: usize = 4;

/// Maximum number of writes of the map in flight.
const MOST_WRITES: usize = 4;

/// A page of the map, or a block of its directory, with its place in the checkpoint.
struct PlacedPage {
    place: Address,
    kind: Kind,
    index: u32,
}

/// The state of the volume at one moment, and the writes that have to complete before it is valid.
struct Cut {
    root: Root,
    /// Pages and directory blocks to write, in the order of their places.
    laid: Vec<PlacedPage>,
    /// The last group of each stream before the cut.
    tickets: [Ticket; 3],
    /// Zones to free once the root is durable.
    dead: Vec<u32>,
}

/// Writes a checkpoint. One at a time: the task [`keep`] does it, and recovery before that task exists.
///
/// # Errors
/// Those of the device, after which nothing can be written any more.
pub async fn checkpoint(core: &VolumeCore) -> Result<(), DeviceError> {
    let begun = {
        let mut state = core.state.borrow_mut();
        state.begun += 1;
        let VolumeState { begun, done, .. } = *state;
        assert_eq!(begun, done + 1, "checkpoint {begun} begins, and {done} have ended");
        state.thaws = true;
        begun
    };
    // By its root a zone that could not be reset is dead, and might be in use again: another root records that it is
    // lost.
    while write_checkpoint(core).await? {}
    core.state.borrow_mut().done = begun;
    core.ended.open();
    Ok(())
}

/// Writes a checkpoint; returns whether a zone was lost when it was to be freed.
async fn write_checkpoint(core: &VolumeCore) -> Result<bool, DeviceError> {
    sweep(core).await?;
    let laid = lay_ahead(core).await?;
    let cut = cut(core, laid)?;
    write_map(core, &cut).await?;
    for ticket in cut.tickets {
        core.wait_landed(ticket).await?;
    }
    // The map of the cut points to cells.
    window::settle(core).await?;
    core.flush_device().await?;
    write_root(core, &cut.root).await?;
    let mut copies = {
        let mut state = core.state.borrow_mut();
        state.thaws = false;
        state.map.thaw()
    };
    core.pages.open();
    while copies.pop_first().is_some() {
        work(1);
        give_way().await;
    }
    release(core, &cut.dead).await
}

/// Garbage collection of map zones: marks the live pages and directory blocks in some of them as changed, so that the
/// checkpoint moves them.
async fn sweep(core: &VolumeCore) -> Result<(), DeviceError> {
    let zones = core.state.borrow().space.to_sweep();
    if zones.is_empty() {
        return Ok(());
    }
    let lies_there =
        |state: &VolumeState, place: Address| place != 0 && zones.contains(&state.space.locate(place).0);
    let pages = core.pages_at(lies_there).await;
    for some in pages.chunks(MOST_LOADS) {
        core.fetch(some.iter().copied(), Need::Pressing).await;
        for page in some {
            // An unreadable page stays at its place.
            match core.hold(*page, Need::Pressing).await {
                Ok(()) => core.state.borrow_mut().map.touch(*page),
                Err(_) => core.check()?,
            }
        }
    }
    let mut state = core.state.borrow_mut();
    let blocks = (0u32..).zip(&state.directory);
    let there: Vec<u32> =
        blocks.filter(|(_, place)| lies_there(&state, **place)).map(|(index, _)| index).collect();
    state.directory_changed.extend(there);
    Ok(())
}

/// Assigns places to changed pages before the cut, in slices between which other tasks run: the cut, which is one
/// stretch, then has to handle only the pages that change meanwhile. A page with a new place is changed, and so is kept
/// in memory until it is written there.
async fn lay_ahead(core: &VolumeCore) -> Result<Vec<PlacedPage>, DeviceError> {
    let mut laid = Vec::new();
    for _ in 0..ROUNDS_AHEAD {
        let pages = core.state.borrow_mut().map.take_unlaid();
        for some in pages.chunks(PAGES_LAID) {
            let enough = lay_pages(&mut core.state.borrow_mut(), some, &mut laid);
            enough.ok_or_else(|| no_map_zone(core))?;
            work(some.len() as u32);
            give_way().await;
        }
        if pages.len() <= PAGES_LAID {
            break;
        }
    }
    Ok(laid)
}

/// Stops all writing for lack of a map zone, which cannot happen: [`super::space::ShardPlan::map_share`] zones are set
/// aside.
fn no_map_zone(core: &VolumeCore) -> DeviceError {
    let error = DeviceError::from(Status::CapacityExceeded);
    core.fail(error);
    error
}

/// Takes the cut, in one synchronous stretch. The pages in `laid` have been given their places before.
fn cut(core: &VolumeCore, mut laid: Vec<PlacedPage>) -> Result<Cut, DeviceError> {
    let tickets = core.close_all();
    let mut state = core.state.borrow_mut();
    state.behind_cut = 0;
    if lay_map(&mut state, &mut laid).is_none() {
        drop(state);
        return Err(no_map_zone(core));
    }
    state.generation += 1;
    state.space.count_scan();
    state.space.check_counts();
    let mut zones: Vec<_> = state.space.records().collect();
    let of_window = state.window.as_ref().map(HotWindow::cut);
    let open = |zone: u32| {
        state.streams.iter().any(|s| s.open().is_some_and(|open| open.zone == zone))
            || of_window.is_some_and(|cut| cut.zone == zone)
    };
    for (zone, record) in (0..).zip(&mut zones) {
        // No stream has it open: its last group is in flight, and lands before the root is written.
        if record.state == ZoneUse::Data && !open(zone) {
            record.state = ZoneUse::ClosedData;
        }
    }
    let is_dead = |state: ZoneUse| matches!(state, ZoneUse::ClosedData | ZoneUse::ClosedMap);
    let dead = (0..).zip(&zones).filter(|(_, z)| is_dead(z.state) && z.live == 0);
    let dead: Vec<u32> = dead.map(|(zone, _)| zone).collect();
    let mut cuts = Vec::new();
    for (stream, open) in state.streams.iter().enumerate().filter_map(|(i, s)| Some((i, s.open()?))) {
        let written = open.torn_at.unwrap_or(open.next);
        cuts.push(CutRecord { stream: stream as u8, zone: open.zone, offset: open.next, written });
    }
    if let Some((zone, offset)) = state.map_open {
        cuts.push(CutRecord { stream: MAP, zone, offset, written: offset });
    }
    cuts.extend(of_window);
    let used = cuts.iter().find(|cut| dead.contains(&cut.zone));
    assert_eq!(used, None, "the end of a zone that is to be freed");
    let root = Root {
        identity: VolumeIdentity { blocks: state.blocks, ..core.identity.clone() },
        generation: state.generation,
        next_number: state.next_number,
        next_segment: state.space.next_segment,
        lifespan: state.lifespan.0,
        mapped: state.space.mapped(),
        codec: state.codec,
        unit: state.unit,
        queue_seconds: state.queue_seconds,
        has_snapshots: state.has_snapshots,
        shares_headers: true,
        extents: state.space.extents.as_ref().filter(|_| state.has_guarantees).and_then(ExtentRoom::counts),
        has_trailers: true,
        other_features: 0,
        cuts,
        directory: state.directory.clone(),
        zones,
    };
    assert_eq!(
        root.extents.is_some(),
        state.has_guarantees,
        "the room of extents in the root, and guarantees"
    );
    assert!(are_sane(&root), "a start would refuse the root with the ends {:?}", root.cuts);
    Ok(Cut { root, laid, tickets, dead })
}

/// Writes pages and directory blocks to their places.
async fn write_map(core: &VolumeCore, cut: &Cut) -> Result<(), DeviceError> {
    let most = core.device.geometry().max_transfer_blocks as usize;
    let mut flights: VecDeque<Completion> = VecDeque::new();
    let zone_of = |laid: &PlacedPage| address::block(laid.place) / core.capacity();
    let mut rest = &cut.laid[..];
    let mut zone = rest.first().map(zone_of);
    while let Some(first) = rest.first() {
        if Some(zone_of(first)) != zone {
            // A zone is begun only when the previous one is durable, so that a power cut leaves one zone partly
            // written.
            while let Some(flight) = flights.pop_front() {
                wrote(core, flight).await?;
            }
            core.flush_device().await?;
            zone = Some(zone_of(first));
        }
        let count = rest.iter().take(most).take_while(|laid| Some(zone_of(laid)) == zone).count();
        let (now, later) = rest.split_at(count);
        rest = later;
        flights.push_back(write_pages(core, now, cut.root.generation).await);
        if flights.len() > MOST_WRITES
            && let Some(flight) = flights.pop_front()
        {
            wrote(core, flight).await?;
        }
    }
    while let Some(flight) = flights.pop_front() {
        wrote(core, flight).await?;
    }
    Ok(())
}

/// Waits for a write of the map; a failure stops all writing.
async fn wrote(core: &VolumeCore, flight: Completion) -> Result<(), DeviceError> {
    let mut done = flight.await;
    core.state.borrow_mut().pool.give(std::mem::take(&mut done.data));
    core.must(done).map(drop)
}

/// Submits a write of consecutive pages and directory blocks with their content at the cut; other tasks may change the
/// map meanwhile.
async fn write_pages(core: &VolumeCore, laid: &[PlacedPage], generation: u64) -> Completion {
    let mut bytes = core.state.borrow_mut().pool.take(laid.len() as u64);
    for (at, PlacedPage { kind, index, .. }) in (0..).zip(laid) {
        work(FANOUT as u32 / 16 + COPY);
        give_way().await;
        let state = core.state.borrow();
        let block = bytes.block_mut(at);
        let (volume, kind, index) = (core.mark, *kind, *index);
        match kind {
            Kind::Page => put_addresses(block, state.map.frozen(index)),
            // The directory changes only when pages get places, which the next checkpoint does.
            _ => {
                let pages = &state.map.directory()[index as usize * FANOUT as usize..];
                put_addresses(block, pages.iter().copied());
            }
        }
        seal(block, Seal { volume, generation, kind, last: false, index });
    }
    let mut state = core.state.borrow_mut();
    state.written.map += laid.len() as u64;
    let lba = state.lba(&*core.device, laid[0].place);
    drop(state);
    core.device.submit(Command::write(lba, bytes.freeze(), false))
}

/// Writes a root after the newest one, or at the start of the other head zone.
pub async fn write_root(core: &VolumeCore, root: &Root) -> Result<(), DeviceError> {
    let payload = root.encode();
    let blocks = payload.len().div_ceil(PAYLOAD_BYTES);
    let mut bytes = crate::buf::BufMut::zeroed(blocks * BLOCK);
    for (index, part) in payload.chunks(PAYLOAD_BYTES).enumerate() {
        let block = bytes.block_mut(index as u64);
        payload_mut(block)[..part.len()].copy_from_slice(part);
        let (volume, generation) = (core.mark, root.generation);
        let last = index + 1 == blocks;
        seal(block, Seal { volume, generation, kind: Kind::Root, last, index: index as u32 });
    }
    let bytes = bytes.freeze();
    let (mut zone, mut at) = core.state.borrow().head;
    if at as usize + blocks > core.capacity() as usize {
        (zone, at) = (HEAD_ZONES - 1 - zone, 0);
        let zones = Zones::One(ZoneIndex(zone));
        core.must(core.device.submit(Command::Reset { zones }).await)?;
    }
    let (end, capacity) = (at as usize + blocks, core.capacity() as usize);
    assert!(end <= capacity, "a root ends at block {end} of head zone {zone}, which has {capacity}");
    let start = core.device.geometry().start(ZoneIndex(zone)).0 + at as u64;
    let most = core.device.geometry().max_transfer_blocks as u64;
    for from in (0..blocks as u64).step_by(most as usize) {
        let part = bytes.slice_blocks(from..(from + most).min(blocks as u64));
        let command = Command::write(crate::zone::Lba(start + from), part, true);
        core.must(core.device.submit(command).await)?;
    }
    let mut state = core.state.borrow_mut();
    state.head = (zone, at + blocks as u32);
    state.written.roots += blocks as u64;
    state.shares_headers |= root.shares_headers;
    state.has_trailers |= root.has_trailers;
    Ok(())
}

/// Resets zones in which nothing is live in the durable root, when no read uses them; returns whether one was lost.
async fn release(core: &VolumeCore, zones: &[u32]) -> Result<bool, DeviceError> {
    let mut lost = false;
    for zone in zones {
        while core.state.borrow().space.zone(*zone).readers > 0 {
            core.unread.wait().await;
            core.check()?;
        }
        core.state.borrow().space.check_dead(*zone);
        let command = Command::Reset { zones: Zones::One(ZoneIndex(*zone)) };
        let result = core.device.submit(command).await.result;
        if result.is_err() {
            deactivate_zone(&*core.device, ZoneIndex(*zone)).await;
        }
        let mut state = core.state.borrow_mut();
        match result {
            Ok(()) => state.space.release(*zone),
            // It holds nothing that is needed, so the volume continues without it.
            Err(DeviceError::Status(_)) => {
                state.space.lose(*zone);
                lost = true;
            }
            Err(error) => {
                drop(state);
                core.fail(error);
                return Err(error);
            }
        }
        drop(state);
        core.room.open();
    }
    Ok(lost)
}

/// Freezes the map, and assigns places in map zones to all changed pages that have none yet, then to the changed blocks
/// of the directory. `None` if no zone is left.
fn lay_map(state: &mut VolumeState, laid: &mut Vec<PlacedPage>) -> Option<()> {
    let pages = state.map.freeze();
    lay_pages(state, &pages, laid)?;
    for index in std::mem::take(&mut state.directory_changed) {
        let place = map_place(state)?;
        let before = std::mem::replace(&mut state.directory[index as usize], place);
        state.space.map_moved(before, place);
        laid.push(PlacedPage { place, kind: Kind::Directory, index });
    }
    Some(())
}

/// Assigns places in map zones to pages. `None` if no zone is left.
fn lay_pages(state: &mut VolumeState, pages: &[u32], laid: &mut Vec<PlacedPage>) -> Option<()> {
    for &page in pages {
        let place = map_place(state)?;
        let before = state.map.lay(page, place);
        state.space.map_moved(before, place);
        state.directory_changed.insert(page / FANOUT as u32);
        laid.push(PlacedPage { place, kind: Kind::Page, index: page });
    }
    Some(())
}

/// Takes the next block of the open map zone, or of a new one. `None` if no zone is left.
fn map_place(state: &mut VolumeState) -> Option<Address> {
    let (zone, offset) = match state.map_open {
        Some(open) => open,
        None => {
            let zone = state.space.begin(ZonePurpose::Map)?;
            state.space.zone_mut(zone).record.segment = state.generation;
            (zone, 0)
        }
    };
    let next = offset + 1;
    state.map_open = (next < state.space.plan().capacity).then_some((zone, next));
    if state.map_open.is_none() {
        state.space.close(zone);
    }
    Some(state.space.place(zone, offset))
}

/// Task that writes the requested checkpoints, until writing fails.
pub async fn keep(core: Rc<VolumeCore>) {
    loop {
        let wanted = {
            let state = core.state.borrow();
            state.wanted > state.begun
        };
        if core.check().is_err() {
            return;
        }
        if !wanted {
            core.wanted.wait().await;
        } else if let Err(error) = checkpoint(&core).await {
            return core.fail(error);
        }
    }
}
