//! A running volume, shared by its requests and background tasks, and access to pages of the map.
//!
//! All mutable state is in one [`VolumeState`], which changes in synchronous stretches only; after every wait it has to be read
//! again. A task waits at a [`Gate`], which is opened when the condition may have become true.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completion, DeviceError, Done, Status, ZonedDevice, Zones},
    evidence::reread_verified,
    runtime::{CombinedOperation, Gate, give_way, work},
    volume::{
        address::{Address, GRAIN},
        error::VolumeError,
        extent_room::ExtentRoom,
        format::{FANOUT, GroupHeader, Kind, read_group},
        hot_window::HotWindow,
        map::PagedMap,
        options::VolumeOptions,
        piece::{CompressionWorkers, Patience, PieceDecoder, PieceEncoder},
        root::{Root, VolumeIdentity, ZoneUse},
        space::{Space, bytes_in},
        state::{LoneWrites, VolumeState},
        status::{VolumeStatus, WrittenBlocks},
        stream::{COLD, Common, HOT, Log, MOVED, Stream, Ticket},
        victim::Lifespan,
    },
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::BTreeSet,
    rc::{Rc, Weak},
};

/// Maximum number of pages of the map that are read at a time.
pub const MOST_LOADS: usize = 64;

/// The blocks of a pool that may have the data of others: those of snapshots.
pub trait Kin {
    /// Adds the blocks that may have a piece which was written to `block`.
    fn others(&self, block: u64, into: &mut Vec<u64>);
}

/// A running volume: its device, its state, and the gates at which its tasks wait.
pub struct VolumeCore {
    pub device: Rc<dyn ZonedDevice>,
    /// Its number of blocks is that of the start: [`VolumeCore::blocks`] is the present one.
    pub identity: VolumeIdentity,
    /// Logical blocks that requests may use: not more than in the newest root.
    pub blocks: Cell<u64>,
    /// [`VolumeIdentity::mark`], part of every group header and sealed block.
    pub mark: u64,
    pub options: VolumeOptions,
    /// Losses that were accepted at the start ([`VolumeOptions::give_up`]).
    pub given_up: Vec<VolumeError>,
    pub state: RefCell<VolumeState>,
    /// What else may have the data of a block; set for a pool.
    pub kin: OnceCell<Box<dyn Kin>>,
    /// Compression workers; without them each write is compressed in its own task.
    pub workers: RefCell<Option<Rc<dyn CompressionWorkers>>>,
    /// Made when it is first used.
    pub encoder: RefCell<Option<PieceEncoder>>,
    pub decoder: RefCell<PieceDecoder>,
    /// Number of blocks that failed their checksum and were then reconstructed by the device ([`ZonedDevice::reread`]).
    pub reread: Cell<u64>,
    /// Number of writes in progress.
    pub writers: Cell<u32>,
    /// Whether something was written or discarded since the start: the background tasks change nothing before.
    pub is_used: Cell<bool>,
    /// By stream: opened when a group has been closed.
    closed: [Gate; 3],
    /// By stream: opened when a group has landed.
    landed: [Gate; 3],
    /// Opened when zones may have become free, or writers have been given credit.
    pub room: Gate,
    /// Opened when a page has been read, or the budget has room again.
    pub pages: Gate,
    /// Opened when a checkpoint is requested.
    pub wanted: Gate,
    /// Opened when a checkpoint has ended.
    pub ended: Gate,
    flushing: Rc<CombinedOperation>,
    /// The other shards.
    siblings: OnceCell<Vec<Weak<VolumeCore>>>,
    /// Opened when refused writes may have room, or are to be retried.
    pub freed: Gate,
    /// Number of refused writes that wait for room.
    pub waiting: Cell<u64>,
    /// Opened when garbage collection may have work: few zones are free, or a zone may yield more than before.
    pub few: Gate,
    /// Opened when the last read in flight of a zone has completed.
    pub unread: Gate,
    /// Opened when a hot window may have to be begun, or to make room.
    pub window_changed: Gate,
    /// Opened when a write to the hot window has been submitted.
    pub cell_submitted: Gate,
    /// Opened when a write to the hot window has landed.
    pub cell_landed: Gate,
}

/// The purpose for which a page of the map is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To look up addresses; possible also after writing has failed.
    Read,
    /// To change addresses; fails after writing has failed.
    Write,
    /// By the checkpoint, which makes room for pages, or by recovery or the audit, which run alone: the memory budget
    /// does not apply.
    Pressing,
}

/// Pages of the directory that are examined before other tasks get a turn.
const PAGES_LOOKED_AT: usize = 4096;

/// Most pages that are needed together: of a block, of where the latest snapshot keeps it, and of the one snapshot of the
/// volume that is being removed.
pub const MOST_PINS: usize = 3;

/// Pages of the map that stay in memory as long as this exists.
pub struct PagePins<'c> {
    core: &'c VolumeCore,
    pages: [Option<u32>; MOST_PINS],
}

impl PagePins<'_> {
    fn add(&mut self, page: u32) {
        let free = self.pages.iter_mut().find(|pinned| [None, Some(page)].contains(pinned));
        assert!(free.is_some(), "pages of the map that are needed together, with page {page}");
        let Some(free) = free else { return };
        if free.is_none() && self.core.state.borrow_mut().map.pin(page) {
            *free = Some(page);
        }
    }
}

impl Drop for PagePins<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.borrow_mut();
        self.pages.into_iter().flatten().for_each(|page| state.map.unpin(page));
    }
}

/// Guard of a read of a page in progress: on drop, other tasks may read the page.
struct PageRead<'c> {
    core: &'c VolumeCore,
    page: u32,
    place: Address,
}

impl Drop for PageRead<'_> {
    fn drop(&mut self) {
        self.core.state.borrow_mut().loading.remove(&self.page);
        self.core.pages.open();
    }
}

/// Reads blocks from `lba` on into `data`; if they cannot all be read, only the first `least` blocks.
pub async fn read_some(
    device: &dyn ZonedDevice,
    lba: Lba,
    data: Buf,
    least: u64,
) -> Result<Buf, DeviceError> {
    let blocks = data.blocks();
    let mut done = device.submit(Command::read(lba, data)).await;
    if done.result == Err(Status::UnrecoveredReadError.into()) && least < blocks {
        done = device.submit(Command::read(lba, Buf::zeroed(least as usize * BLOCK))).await;
    }
    done.result.map(|()| done.data)
}

/// Finishes a zone that could not be reset, so that it does not stay active.
pub async fn deactivate_zone(device: &dyn ZonedDevice, zone: ZoneIndex) {
    let done = device.submit(Command::Report { first: zone, count: 1 }).await;
    if done.zones.first().is_some_and(|info| info.state.is_active()) {
        // If this fails as well, nothing else can be tried.
        device.submit(Command::Finish { zones: Zones::One(zone) }).await;
    }
}

impl VolumeCore {
    /// A volume with the state of `root`, which is at the end of the roots before `head`; `map` and `space` are made of it.
    pub fn new(
        device: Rc<dyn ZonedDevice>,
        identity: VolumeIdentity,
        options: VolumeOptions,
        (root, head): (&Root, (u32, u32)),
        (map, mut space): (PagedMap, Space),
    ) -> VolumeCore {
        let unit = root.unit.min(space.plan().unit);
        space.lend_reserve();
        space.extents = identity.pool.and_then(|shape| ExtentRoom::of(shape, identity.blocks));
        if let (Some(extents), Some(held)) = (&mut space.extents, &root.extents) {
            extents.load(held);
        }
        let state = VolumeState {
            blocks: identity.blocks,
            map,
            space,
            streams: Default::default(),
            map_open: None,
            directory: root.directory.clone(),
            directory_changed: BTreeSet::new(),
            head,
            generation: root.generation,
            next_number: root.next_number,
            lifespan: Lifespan(root.lifespan),
            codec: root.codec,
            unit,
            queue_seconds: root.queue_seconds,
            has_snapshots: root.has_snapshots,
            has_guarantees: root.extents.is_some(),
            shares_headers: root.shares_headers,
            has_trailers: root.has_trailers,
            lone: LoneWrites::default(),
            window: None,
            recent: None,
            passed_on: 0,
            patience: Patience::default(),
            squeezing: Patience::default(),
            pool: BufPool::default(),
            stalled_at: None,
            refused: 0,
            tried: 0,
            loading: BTreeSet::new(),
            behind_cut: 0,
            begun: 0,
            done: 0,
            wanted: 0,
            thaws: false,
            credit: None,
            collects: false,
            written: WrittenBlocks::default(),
            collected_zones: 0,
            discarded: 0,
            pages_read: 0,
            page_lookups: 0,
            page_hits: 0,
            failed: None,
        };
        VolumeCore {
            device,
            blocks: Cell::new(identity.blocks),
            mark: identity.mark(),
            identity,
            options,
            given_up: Vec::new(),
            state: RefCell::new(state),
            kin: OnceCell::new(),
            workers: RefCell::default(),
            encoder: RefCell::default(),
            decoder: RefCell::default(),
            reread: Cell::new(0),
            writers: Cell::new(0),
            is_used: Cell::new(false),
            closed: Default::default(),
            landed: Default::default(),
            room: Gate::default(),
            pages: Gate::default(),
            wanted: Gate::default(),
            ended: Gate::default(),
            flushing: Rc::default(),
            siblings: OnceCell::new(),
            freed: Gate::default(),
            waiting: Cell::new(0),
            few: Gate::default(),
            unread: Gate::default(),
            window_changed: Gate::default(),
            cell_submitted: Gate::default(),
            cell_landed: Gate::default(),
        }
    }

    /// Where its groups are written.
    pub fn log(&self) -> Log<'_> {
        Log { device: &*self.device, volume: self.mark }
    }

    /// Writable blocks of a zone.
    pub fn capacity(&self) -> u32 {
        self.identity.zone_capacity_blocks as u32
    }

    /// Stops all writing for good, since the map points to blocks that were not written. The other shards stop, too: a record
    /// of the pool that was not written may be on the device nevertheless, and concern their blocks.
    pub fn fail(&self, error: DeviceError) {
        self.stop_writing(error);
        let siblings = self.siblings.get().into_iter().flatten();
        siblings.filter_map(Weak::upgrade).for_each(|sibling| sibling.stop_writing(error));
    }

    /// Stops all writing of this shard for good. Wakes all waiting tasks.
    fn stop_writing(&self, error: DeviceError) {
        self.state.borrow_mut().failed.get_or_insert(error);
        let gates =
            [&self.room, &self.pages, &self.wanted, &self.ended, &self.few, &self.freed, &self.unread];
        let of_window = [&self.window_changed, &self.cell_submitted, &self.cell_landed];
        gates.into_iter().chain(of_window).chain(&self.closed).chain(&self.landed).for_each(Gate::open);
    }

    /// Returns an error if all writing has stopped.
    ///
    /// # Errors
    /// The error that has stopped writing.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.state.borrow().failed.map_or(Ok(()), Err)
    }

    /// Returns `done` if the command succeeded; otherwise stops all writing.
    ///
    /// # Errors
    /// That of the command.
    pub fn must(&self, done: Done) -> Result<Done, DeviceError> {
        match done.result {
            Ok(()) => Ok(done),
            Err(error) => {
                self.fail(error);
                Err(error)
            }
        }
    }

    /// The shards of a volume on one device, which share flushes from now on.
    pub fn of_shards(mut cores: Vec<VolumeCore>) -> Vec<Rc<VolumeCore>> {
        let flushing = Rc::<CombinedOperation>::default();
        cores.iter_mut().for_each(|core| core.flushing = flushing.clone());
        let cores: Vec<Rc<VolumeCore>> = cores.into_iter().map(Rc::new).collect();
        for core in &cores {
            let others = cores.iter().filter(|other| !Rc::ptr_eq(other, core));
            core.siblings.get_or_init(|| others.map(Rc::downgrade).collect());
        }
        cores
    }

    /// Makes completed writes durable. One flush at a time for all shards: the device reports a loss only once, so that one
    /// of two concurrent flushes could succeed although the other reports the loss. Calls share a flush that begins after
    /// them. A flush that fails stops the writing of all shards, since the loss may be that of any.
    pub async fn flush_device(&self) -> Result<(), DeviceError> {
        let dead = {
            let state = self.state.borrow();
            state.window.as_ref().map(|window| window.to_flush(&state.streams))
        };
        let flush = || async {
            let result = self.device.submit(Command::Flush).await.result;
            result.inspect_err(|error| self.fail(*error))
        };
        self.flushing.run(flush).await?;
        if let Some(dead) = dead {
            let mut state = self.state.borrow_mut();
            let VolumeState { window, streams, pool, .. } = &mut *state;
            window.iter_mut().for_each(|window| window.flushed(dead, streams, pool));
        }
        self.check()
    }

    /// Calls `act` with a stream and the resources that it needs.
    pub fn with_stream<T>(&self, index: usize, act: impl FnOnce(&mut Stream, &mut Common<'_>) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let VolumeState { streams, pool, written, .. } = &mut *state;
        let mut common = Common { log: self.log(), pool, written };
        act(&mut streams[index], &mut common)
    }

    /// Records that a group has landed; `full` is its zone if that is full now.
    pub fn landed(&self, index: usize, full: Option<u32>) {
        if let Some(zone) = full {
            let state = self.state.borrow().space.zone(zone).record.state;
            assert_eq!(state, ZoneUse::Data, "state of zone {zone}, of which the last group has landed");
            self.state.borrow_mut().space.close(zone);
            self.few.open();
        }
        self.landed[index].open();
    }

    /// Waits until a group of a stream is closed, or its task is woken.
    pub async fn wait_for_groups(&self, index: usize) {
        self.closed[index].wait().await;
    }

    /// Closes the group that is being filled if it is as large as the data in flight; with `all`, in any case, and with its
    /// trailer.
    pub fn launch(&self, index: usize, all: bool) {
        let capacity = self.capacity();
        let closed = self.with_stream(index, |stream, common| {
            let before = stream.closed();
            match all {
                true => {
                    stream.close(index, capacity, common);
                    stream.end_with_trailer(index, capacity, common);
                }
                false => stream.launch(index, capacity, common),
            }
            stream.closed() > before
        });
        if closed {
            self.closed[index].open();
        }
    }

    /// Wakes the task of a stream ([`super::commit`]), since a group may have been closed.
    pub fn wake_stream(&self, index: usize) {
        self.closed[index].open();
    }

    /// Closes all groups that are being filled; returns the last ticket of each stream.
    pub fn close_all(&self) -> [Ticket; 3] {
        [HOT, COLD, MOVED].map(|index| {
            self.launch(index, true);
            (index, self.state.borrow().streams[index].closed())
        })
    }

    /// Waits until a group, and all before it in its stream, have landed.
    pub async fn wait_landed(&self, (index, groups): Ticket) -> Result<(), DeviceError> {
        // If a request closes a group and finds no room for the next one, it does not wake the task of the stream.
        self.wake_stream(index);
        let begun = self.state.borrow().streams[index].begun();
        assert!(groups <= begun, "group {groups} of stream {index} is waited for, and {begun} were begun");
        loop {
            {
                let state = self.state.borrow();
                if state.streams[index].landed() >= groups {
                    return Ok(());
                }
                if let Some(error) = state.failed {
                    return Err(error);
                }
            }
            self.landed[index].wait().await;
        }
    }

    /// Waits until a page of the map is in memory, or is known not to exist; reads it if necessary. The caller may use
    /// the page until it waits again: then it may be evicted.
    ///
    /// # Errors
    /// When the page cannot be read: the places of its blocks are unknown. When writing has stopped, if the need is
    /// `Write`.
    pub async fn hold(&self, page: u32, need: Need) -> Result<(), DeviceError> {
        loop {
            let place = {
                let mut state = self.state.borrow_mut();
                if state.map.is_here(page) {
                    return Ok(());
                }
                if let Some(error) = state.failed.filter(|_| need == Need::Write) {
                    return Err(error);
                }
                let place = state.map.place(page);
                // After a failure no checkpoint makes room any more: the budget does not apply.
                let counts = need != Need::Pressing && state.failed.is_none();
                if counts && !state.map.has_room_for(1) {
                    if !state.thaws {
                        let next = state.begun + 1;
                        state.wanted = state.wanted.max(next);
                    }
                    None
                } else if state.map.unpack(page) || place == 0 {
                    return Ok(());
                } else {
                    Some(place).filter(|_| state.loading.insert(page))
                }
            };
            match place {
                Some(place) => {
                    let (loading, read) = self.read_page(page, place);
                    self.take_page(loading, read.await).await?;
                }
                None => {
                    self.wanted.open();
                    self.pages.wait().await;
                }
            }
        }
    }

    /// Read-ahead for later calls of [`VolumeCore::hold`], [`MOST_LOADS`] pages at a time. Skips pages that cannot be
    /// read, and pages for which there is no room, unless the need is `Pressing`.
    pub async fn fetch(&self, pages: impl Iterator<Item = u32>, need: Need) {
        let mut reads = Vec::new();
        let mut pages = pages.peekable();
        while pages.peek().is_some() {
            reads.extend(pages.by_ref().filter_map(|page| self.begin_load(page, need)).take(MOST_LOADS));
            for (loading, read) in reads.drain(..) {
                // `hold` reads it again, and reports the error.
                _ = self.take_page(loading, read.await).await;
                give_way().await;
            }
        }
    }

    /// Begins to read a page if it is on the device, not in memory, and not being read.
    fn begin_load(&self, page: u32, need: Need) -> Option<(PageRead<'_>, Completion)> {
        let mut state = self.state.borrow_mut();
        let place = state.map.place(page);
        let has_room = need == Need::Pressing || state.map.has_room_for(state.loading.len() + 1);
        if state.map.is_known(page) || !has_room || !state.loading.insert(page) {
            return None;
        }
        drop(state);
        Some(self.read_page(page, place))
    }

    /// Submits the read of a page.
    fn read_page(&self, page: u32, place: Address) -> (PageRead<'_>, Completion) {
        let lba = self.state.borrow().lba(&*self.device, place);
        (PageRead { core: self, page, place }, self.device.submit(Command::read(lba, Buf::zeroed(BLOCK))))
    }

    /// Verifies a page that was read, or has the device reconstruct it, and puts it into the map.
    async fn take_page(&self, loading: PageRead<'_>, done: Done) -> Result<(), DeviceError> {
        let page = loading.page;
        let verify = |block: &[u8]| self.page_of(page, loading.place, block);
        let mut found = done.result.is_ok().then(|| verify(&done.data)).flatten();
        if found.is_none() && done.result != Err(DeviceError::Gone) {
            let lba = self.state.borrow().lba(&*self.device, loading.place);
            found = reread_verified(&*self.device, lba, verify).await;
            self.reread.set(self.reread.get() + found.is_some() as u64);
        }
        let Some(addresses) = found else {
            done.result?;
            return Err(Status::UnrecoveredReadError.into());
        };
        let mut state = self.state.borrow_mut();
        state.pages_read += 1;
        state.map.insert(page, addresses.into_iter());
        drop(state);
        drop(loading);
        Ok(())
    }

    /// The addresses of the page of the map at `place`; `None` if `block` is not that page.
    pub fn page_of(&self, page: u32, place: Address, block: &[u8]) -> Option<Vec<Address>> {
        self.state.borrow().space.read_map_block((Kind::Page, page, self.mark), place, block)
    }

    /// Waits until the pages of a few blocks can be used together, as long as the result exists; as [`VolumeCore::hold`].
    pub async fn hold_all(
        &self,
        blocks: impl Iterator<Item = u64> + Clone,
        need: Need,
    ) -> Result<PagePins<'_>, DeviceError> {
        let pages = blocks.map(|block| (block / FANOUT) as u32);
        let mut pins = PagePins { core: self, pages: [None; MOST_PINS] };
        if let (Some(page), None) = (pages.clone().next(), pages.clone().nth(1)) {
            self.hold(page, need).await?;
            return Ok(pins);
        }
        loop {
            for page in pages.clone() {
                self.hold(page, need).await?;
                pins.add(page);
            }
            // One that did not exist may have been written meanwhile.
            let state = self.state.borrow();
            if pages.clone().all(|page| state.map.is_known(page)) {
                return Ok(pins);
            }
        }
    }

    /// Finds the blocks that may have a piece which was first written to the block `name`, that one first, and was last
    /// moved for `block`.
    pub fn holders(&self, name: u64, block: u64, holders: &mut Vec<u64>) {
        holders.clear();
        holders.push(name);
        if let Some(kin) = self.kin.get() {
            kin.others(name, holders);
        }
        if !holders.contains(&block) {
            holders.push(block);
        }
    }

    /// The header of the group of this segment that begins at offset `at` of a zone, with `before` blocks before the
    /// header; `None` if `block` is another block.
    pub fn group_at(&self, block: &[u8], segment: u64, (at, before): (u32, u32)) -> Option<GroupHeader> {
        let is_here = |header: &GroupHeader| {
            header.place.segment == segment
                && header.before == before
                && header.is_at(self.mark, at + before, self.capacity())
        };
        read_group(block).filter(is_here)
    }

    /// The header of the group of this segment that begins at offset `at` of a zone and ends with the written blocks, at
    /// `end`, if it is the note of the zone: the trailer of the last group of a read-only zone was not written.
    pub fn trailer_in_note(&self, zone: u32, segment: u64, (at, end): (u32, u32)) -> Option<GroupHeader> {
        let before = end.checked_sub(at)?;
        self.group_at(&self.device.note(ZoneIndex(zone))?, segment, (at, before))
    }

    /// The pages of the map whose places are `there`, in turns between which other tasks run.
    pub async fn pages_at(&self, there: impl Fn(&VolumeState, Address) -> bool) -> Vec<u32> {
        let all = self.state.borrow().map.directory().len();
        let mut pages = Vec::new();
        for from in (0..all).step_by(PAGES_LOOKED_AT) {
            {
                let state = self.state.borrow();
                let places =
                    (from as u32..).zip(&state.map.directory()[from..all.min(from + PAGES_LOOKED_AT)]);
                pages.extend(places.filter(|(_, place)| there(&state, **place)).map(|(page, _)| page));
            }
            work(PAGES_LOOKED_AT as u32 / 4);
            give_way().await;
        }
        pages
    }

    /// Records the first write or discard since the start: garbage collection may run from now on.
    pub fn note_use(&self) {
        if !self.is_used.replace(true) {
            self.few.open();
            self.window_changed.open();
        }
    }

    /// Requests a checkpoint if one is due, and wakes garbage collection if no zone is left to writers.
    pub fn note_writes(&self) {
        let mut state = self.state.borrow_mut();
        let next = state.begun + 1;
        let due = state.wanted < next && state.done == state.begun && state.is_checkpoint_due();
        if due {
            state.wanted = next;
        }
        let few = state.credit.is_none() && state.space.available() == 0;
        let ends = state.window.as_ref().is_some_and(HotWindow::is_ending);
        drop(state);
        if ends {
            // Its last live block may have been overwritten.
            self.window_changed.open();
        }
        if due {
            self.wanted.open();
        }
        if few {
            self.few.open();
        }
    }

    /// Waits for a checkpoint that begins after this call.
    pub async fn request_checkpoint(&self) -> Result<(), DeviceError> {
        let number = {
            let mut state = self.state.borrow_mut();
            let next = state.begun + 1;
            state.wanted = state.wanted.max(next);
            next
        };
        self.wanted.open();
        loop {
            self.check()?;
            if self.state.borrow().done >= number {
                return Ok(());
            }
            self.ended.wait().await;
        }
    }

    /// State and statistics of the volume.
    pub fn status(&self) -> VolumeStatus {
        let state = self.state.borrow();
        let plan = state.space.plan();
        VolumeStatus {
            blocks: self.blocks.get(),
            sector: self.identity.sector,
            usable: state.space.usable_for_new(),
            reserve: plan.reserve,
            lent: state.space.lent(),
            refused: state.refused,
            queue_seconds: state.queue_seconds,
            qos: Default::default(),
            held_to: None,
            out_of_reach: [false; 2],
            guaranteed: 0,
            set_aside_bytes: state.space.set_aside(0).1 * GRAIN as u64,
            waiting: self.waiting.get(),
            mapped: state.space.mapped(),
            held_bytes: state.space.held() * GRAIN as u64,
            codec: state.codec,
            unit: state.unit,
            zones: plan.zones,
            shards: 1,
            free_zones: state.space.free_zones(),
            writing: state.space.writing().collect(),
            unreadable_zones: state.space.unreadable().count() as u32,
            lost_zones: state.space.lost_zones(),
            live_bytes: state.space.records().map(|zone| zone.live as u64 * GRAIN as u64).collect(),
            collects: state.collects,
            collected_zones: state.collected_zones,
            discarded: state.discarded,
            checkpoints: state.done,
            map_bytes: bytes_in(state.map.directory().len()),
            map_memory_bytes: state.map.most_bytes(),
            map_cached_bytes: state.map.bytes(),
            map_cached_pages: state.map.in_memory() as u64,
            map_written_pages: state.map.written() as u64,
            pages_read: state.pages_read,
            page_lookups: state.page_lookups,
            page_hits: state.page_hits,
            written: state.written,
            failed: state.failed,
        }
    }
}
