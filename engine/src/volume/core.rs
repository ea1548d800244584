//! State of a running volume, shared by its requests and background tasks, and access to pages of the map.
//!
//! All state is in one [`VolumeState`], which changes in synchronous stretches only; after every wait it has to be read
//! again. A task waits at a [`Gate`], which is opened when the condition may have become true.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completion, DeviceError, Done, Status, ZonedDevice, Zones},
    evidence::reread_verified,
    runtime::{COPY, CombinedOperation, Gate, give_way, work},
    volume::{
        address::{self, Address, GRAIN, GRAINS, HOLE, Unit},
        error::VolumeError,
        format::{EntryKind, FANOUT, GroupEntry, GroupHeader, Kind, VolumeIdentity, ZoneUse, read_group},
        map::PagedMap,
        options::VolumeOptions,
        piece::{Codec, CompressionWorkers, Patience, PieceDecoder, PieceEncoder},
        space::{Space, ZonePurpose, bytes_in},
        status::{VolumeStatus, WrittenBlocks},
        stream::{COLD, Common, HOT, MOVED, Stream, Ticket},
        victim::Lifespan,
    },
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

/// Maximum number of pages of the map that are read at a time.
pub const MOST_LOADS: usize = 64;

/// Zones' worth of blocks that may be written between two checkpoints: limits the blocks that a start has to read.
const MOST_BEHIND_CUT: u64 = 4;

/// Where a snapshot keeps the blocks of a volume that change: the distance to the block that keeps a block, and to that
/// of a later snapshot that is being removed, whose blocks are merged into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    pub to: Distance,
    pub merged: Option<Distance>,
}

/// Difference between the numbers of two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distance(pub i64);

impl Distance {
    /// The distance from a block to another one.
    pub fn between(from: u64, to: u64) -> Distance {
        Distance(to as i64 - from as i64)
    }

    /// The block at this distance from another one.
    pub fn of(self, block: u64) -> u64 {
        block.wrapping_add_signed(self.0)
    }
}

impl Keep {
    /// Entries before one that changes blocks.
    pub fn leads(self, block: u64, blocks: u32) -> impl Iterator<Item = Lead> + Clone {
        let (to, from) = (self.to.of(block), block as u32);
        let merge =
            self.merged.map(|merged| (to, EntryKind::Merge { from: merged.of(block) as u32, blocks }));
        merge.into_iter().chain([(to, EntryKind::Keep { from, blocks })])
    }
}

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
    flushing: CombinedOperation,
    /// Opened when refused writes may have room, or are to be retried.
    pub freed: Gate,
    /// Number of refused writes that wait for room.
    pub waiting: Cell<u64>,
    /// Opened when garbage collection may have work: few zones are free, or a zone may yield more than before.
    pub few: Gate,
    /// Opened when the last read in flight of a zone has completed.
    pub unread: Gate,
}

/// Mutable state of a running volume.
pub struct VolumeState {
    /// Logical blocks of the next root.
    pub blocks: u64,
    pub map: PagedMap,
    pub space: Space,
    pub streams: [Stream; 3],
    /// Zone and offset at which the next map page is written; `None` if no map zone is open.
    pub map_open: Option<(u32, u32)>,
    /// Places of the blocks of the directory; 0 for blocks that were never written.
    pub directory: Vec<Address>,
    /// Blocks of the directory that the next checkpoint has to write.
    pub directory_changed: BTreeSet<u32>,
    /// Head zone of the newest root, and offset in it of the next one.
    pub head: (u32, u32),
    /// Number of the last cut.
    pub generation: u64,
    /// Number of the next entry.
    pub next_number: u64,
    pub lifespan: Lifespan,
    /// Codec of new data.
    pub codec: Option<Codec>,
    /// Largest unit of new data.
    pub unit: Unit,
    /// Seconds for which a write waits for room; 0 if it fails at once.
    pub queue_seconds: u8,
    /// [`Root::has_snapshots`] of the next root.
    pub has_snapshots: bool,
    /// Number of blocks that snapshots have passed on since the start.
    pub passed_on: u64,
    pub encoder: Option<PieceEncoder>,
    pub patience: Patience,
    pub pool: BufPool,
    /// Value of `next_number` when garbage collection last stopped because it had no zone to move blocks to and no dead
    /// zone that a checkpoint would free. A retry is useless before there is another entry.
    pub stalled_at: Option<u64>,
    /// Number of writes and discards refused for lack of room.
    pub refused: u64,
    /// Value of `refused` when garbage collection last began to empty a zone.
    pub tried: u64,
    /// Pages that are being read.
    loading: BTreeSet<u32>,
    /// Blocks written since the last cut.
    pub behind_cut: u64,
    /// Number of the last checkpoint that was begun.
    pub begun: u64,
    /// Number of the last checkpoint that has ended.
    pub done: u64,
    /// Number of the last checkpoint that is requested.
    pub wanted: u64,
    /// A checkpoint is in progress, after which pages of the map can be evicted: no other one has to be requested for
    /// that.
    pub thaws: bool,
    /// Throttle: blocks that writers may still write, earned by garbage collection; `None` if they are not throttled.
    pub credit: Option<u64>,
    /// Garbage collection is emptying or freeing zones.
    pub collects: bool,
    pub written: WrittenBlocks,
    pub collected_zones: u64,
    pub discarded: u64,
    pub pages_read: u64,
    pub failed: Option<DeviceError>,
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

/// Initial state of a running volume, taken from its root; see [`VolumeState`].
pub struct Start {
    pub map: PagedMap,
    pub space: Space,
    pub directory: Vec<Address>,
    pub head: (u32, u32),
    pub generation: u64,
    pub next_number: u64,
    pub lifespan: Lifespan,
    pub codec: Option<Codec>,
    pub unit: Unit,
    pub queue_seconds: u8,
    pub has_snapshots: bool,
}

/// An entry that precedes another one in its group: its first block, and what it does.
pub type Lead = (u64, EntryKind);

/// A piece to be written, and the blocks of its unit that its entry maps (`there`, a bit for each).
#[derive(Clone, Copy)]
pub struct Piece<'p> {
    pub bytes: &'p [u8],
    pub unit: Unit,
    pub there: u16,
}

impl<'p> Piece<'p> {
    /// The piece of a unit of which all blocks are mapped.
    pub fn all((bytes, unit): (&'p [u8], Unit)) -> Piece<'p> {
        Piece { bytes, unit, there: unit.mask() }
    }

    /// Length in grains.
    pub fn grains(&self) -> u32 {
        (self.bytes.len() / GRAIN) as u32
    }
}

impl VolumeState {
    /// Makes an entry that maps blocks of the unit beginning at `block` to `piece`, and before it those of `leads`, and
    /// changes the map accordingly; returns the ticket of their group. `None`, and no entry was made, if there is no room
    /// at present. The pages of all blocks have to be known.
    pub fn place(
        &mut self,
        core: &VolumeCore,
        block: u64,
        piece: Piece<'_>,
        (stream, fua): (usize, bool),
        leads: impl Iterator<Item = Lead> + Clone,
    ) -> Option<Ticket> {
        let (grains, most) = (piece.grains(), GRAINS * piece.unit.blocks());
        assert!(
            (1..=most).contains(&grains) && piece.there & !piece.unit.mask() == 0,
            "a piece of {grains} grains, of a unit of {most}, for the blocks {:#x} from {block} on",
            piece.there
        );
        let purpose = if stream == MOVED { ZonePurpose::Collection } else { ZonePurpose::Writer };
        let index = self.space.plan().index_of(stream);
        let number = self.next_number;
        let VolumeState { streams, space, pool, written, .. } = self;
        let mut common = Common { device: &*core.device, volume: core.mark, pool, written };
        let stream = &mut streams[index];
        let begun = stream.begun();
        let size = (piece.grains(), 1 + leads.clone().count() as u64);
        if !stream.prepare(index, (purpose, size), space, number, &mut common) {
            return None;
        }
        let headers = stream.begun() - begun;
        self.put_leads(index, leads);
        let kind = EntryKind::Data { unit: piece.unit, grains: piece.grains(), there: piece.there };
        let entry = GroupEntry { number: self.next_number, block: block as u32, kind };
        let (place, blocks) = self.streams[index].put(entry, piece.bytes, fua, &self.space)?;
        work(piece.grains().div_ceil(GRAINS) * COPY);
        self.apply(block, kind, place);
        self.next_number += 1;
        self.behind_cut += piece.grains().div_ceil(GRAINS) as u64 + headers;
        let logical = piece.there.count_ones() as u64;
        match purpose {
            ZonePurpose::Collection => self.written.moved += logical,
            _ => {
                self.written.user += logical;
                self.spend(blocks as u64 + headers);
            }
        }
        Some((index, self.streams[index].begun()))
    }

    /// Makes entries without data, in one group, and changes the map accordingly; the blocks of each are in one page of
    /// the map (of which `PagedMap::is_known` is true). `purpose` decides whether another zone may be begun for them.
    /// `None`, without an entry, if there is no room at present.
    pub fn change(
        &mut self,
        core: &VolumeCore,
        entries: impl Iterator<Item = Lead> + Clone,
        purpose: ZonePurpose,
    ) -> Option<Ticket> {
        let number = self.next_number;
        let index = self.discards(core.options.apart);
        let VolumeState { streams, space, pool, written, .. } = self;
        let mut common = Common { device: &*core.device, volume: core.mark, pool, written };
        let begun = streams[index].begun();
        let size = (0, entries.clone().count() as u64);
        if !streams[index].prepare(index, (purpose, size), space, number, &mut common) {
            return None;
        }
        self.behind_cut += streams[index].begun() - begun;
        self.put_leads(index, entries);
        Some((index, self.streams[index].begun()))
    }

    /// Puts entries without data into the group of a stream that is being filled, which has room for them, and applies
    /// them.
    fn put_leads(&mut self, index: usize, leads: impl Iterator<Item = Lead>) {
        for (block, kind) in leads {
            let entry = GroupEntry { number: self.next_number, block: block as u32, kind };
            self.streams[index].put_without_data(entry);
            self.next_number += 1;
            self.apply(block, kind, 0);
            if let EntryKind::Discard(blocks) | EntryKind::Hole(blocks) = kind {
                self.discarded += blocks as u64;
            }
        }
    }

    /// Applies an entry to the map. The pages of its blocks have to be known.
    pub fn apply(&mut self, block: u64, kind: EntryKind, place: Address) {
        for index in 0..kind.blocks() {
            let block = block + index;
            let other = kind.from().map(|from| from as u64 + index);
            let theirs = other.map_or(0, |other| self.known(other));
            match (kind, other) {
                (EntryKind::Discard(_), _) => self.set(block, 0),
                (EntryKind::Hole(_), _) => self.set(block, HOLE),
                (EntryKind::Data { there, .. }, _) if there >> index & 1 == 1 => self.set(block, place),
                (EntryKind::Keep { .. }, Some(_)) if self.known(block) == 0 => {
                    self.set(block, if theirs == 0 { HOLE } else { theirs });
                }
                (EntryKind::Merge { .. }, Some(other)) if theirs != 0 => {
                    self.passed_on += 1;
                    self.set(other, 0);
                    if self.known(block) == 0 {
                        self.set(block, theirs);
                    }
                }
                (EntryKind::Return { .. }, Some(other)) if theirs != 0 => {
                    self.passed_on += 1;
                    self.set(other, 0);
                    self.set(block, if theirs == HOLE { 0 } else { theirs });
                }
                _ => {}
            }
        }
    }

    /// The entry of a block in the map, the page of which has to be known.
    pub fn known(&mut self, block: u64) -> Address {
        let entry = self.map.get(block);
        assert!(entry.is_some(), "the page of block {block} has to be known");
        entry.unwrap_or(0)
    }

    /// The place of block `index` of a view of few blocks, whose pages have to be known; 0 if it reads as zeros.
    pub fn seen(&mut self, view: &[u64], index: u64) -> Address {
        for start in view {
            match self.map.get(start + index).unwrap_or(0) {
                0 => {}
                HOLE => return 0,
                place => return place,
            }
        }
        0
    }

    /// Sets the place of a block in the map, and adjusts the live counts of the zones.
    fn set(&mut self, block: u64, place: Address) {
        let before = self.map.get(block).unwrap_or(0);
        if before == place {
            return;
        }
        let were = self.live(block, before);
        _ = self.map.set(block, place);
        let are = self.live(block, place);
        self.space.moved((before, were), (place, are));
    }

    /// Number of blocks of a unit that are at `place`, the place of `block`. The page has to be known.
    fn live(&mut self, block: u64, place: Address) -> u32 {
        if address::unit(place) == Unit::BLOCK { 1 } else { self.there(block, place).count_ones() }
    }

    /// A bit for each block of a unit that is at `place`, the present or a former place of `block`. The page has to be
    /// known.
    pub fn there(&mut self, block: u64, place: Address) -> u16 {
        let unit = address::unit(place);
        let first = unit.first(block);
        let at_place = |index: &u32| self.map.get(first + *index as u64) == Some(place);
        (0..unit.blocks()).filter(at_place).fold(0, |there, index| there | 1 << index)
    }

    /// Whether all blocks of the unit that begins with `block` may be stored as a piece of `grains` grains: there is
    /// room, or this takes no additional room. With `uses_reserve` new blocks may use the reserve, too. The page has to
    /// be known.
    pub fn has_room(
        &mut self,
        block: u64,
        (unit, grains): (Unit, u32),
        uses_reserve: bool,
        keep: Option<Keep>,
    ) -> bool {
        let more = address::charge(grains, unit.blocks());
        if let Some(held) = keep.and_then(|keep| self.keeps(block, unit.blocks(), keep)) {
            return self.space.has_room_for_new(more + held);
        }
        if self.space.has_room_for_new(more) {
            return true;
        }
        let more = more.saturating_sub(self.freed(block, unit));
        // Only overwrites may use the reserve: the journal and the metadata of a full file system.
        let mut blocks = block..block + unit.blocks() as u64;
        match uses_reserve || blocks.all(|block| self.map.get(block).is_some_and(address::is_piece)) {
            true => self.space.has_room(more),
            false => self.space.has_room_for_new(more),
        }
    }

    /// Grains by which pieces may count for more if a snapshot takes blocks, beside those that replace these: a unit counts
    /// for more if two volumes have a part of it each. `None` if the blocks that are replaced free their room as usual. The
    /// pages have to be known.
    pub fn keeps(&mut self, block: u64, blocks: u32, keep: Keep) -> Option<u32> {
        let (all, mut held, mut takes) = (block..block + blocks as u64, 0, false);
        for block in all.clone() {
            if self.known(keep.to.of(block)) != 0 {
                continue;
            }
            let merged = keep.merged.map_or(0, |merged| self.known(merged.of(block)));
            takes |= merged == 0;
            let place = if merged == 0 { self.known(block) } else { merged };
            let unit = address::unit(place);
            let is_whole =
                all.contains(&unit.first(block)) && unit.first(block) + unit.blocks() as u64 <= all.end;
            held += if is_whole { 0 } else { GRAINS };
        }
        (takes || held > 0).then_some(held)
    }

    /// Grains of room that become free if all blocks of the unit that begins with `block` are written anew.
    fn freed(&mut self, block: u64, unit: Unit) -> u32 {
        let mut gone: [(Address, u32); 16] = [(0, 0); 16];
        let mut freed = 0;
        for block in block..block + unit.blocks() as u64 {
            let place = self.map.get(block).filter(|place| address::is_piece(*place));
            if let Some(place) = place
                && let Some((of, gone)) = gone.iter_mut().find(|(of, _)| [0, place].contains(of))
            {
                let live = self.live(block, place);
                freed += address::share(place, live.saturating_sub(*gone));
                (*of, *gone) = (place, *gone + 1);
            }
        }
        freed
    }

    /// Index of the stream that takes the entries of discards.
    pub fn discards(&self, apart: bool) -> usize {
        if apart { HOT } else { self.space.plan().index_of(COLD) }
    }

    /// The stream, `HOT` or `COLD`, for a new version of a block; its previous version is at `before`, 0 for none.
    pub fn stream_of(&self, before: Address, apart: bool) -> usize {
        if !address::is_piece(before) || !apart {
            return COLD;
        }
        let (zone, _) = self.space.locate(before);
        let age = self.space.next_segment.saturating_sub(self.space.zone(zone).record.segment);
        if self.lifespan.is_hot(age) { HOT } else { COLD }
    }

    /// Whether writers have credit for another block, or are not throttled.
    pub fn may_write(&self) -> bool {
        self.credit != Some(0)
    }

    /// Takes `blocks` blocks, headers included, from the credit of writers.
    fn spend(&mut self, blocks: u64) {
        if let Some(credit) = &mut self.credit {
            *credit = credit.saturating_sub(blocks);
        }
    }

    /// The piece at `place` if its group has not landed yet.
    pub fn in_memory(&self, place: Address) -> Option<&[u8]> {
        let (zone, offset) = self.space.locate(place);
        self.streams.iter().find_map(|stream| stream.piece(zone, offset, place))
    }

    /// Address on the device of the block in which the piece at `place` begins.
    pub fn lba(&self, device: &dyn ZonedDevice, place: Address) -> Lba {
        let (zone, offset) = self.space.locate(place);
        Lba(device.geometry().start(ZoneIndex(zone)).0 + offset as u64)
    }

    /// Whether so much was changed or written since the last checkpoint that another one is due.
    fn is_checkpoint_due(&self) -> bool {
        let most = MOST_BEHIND_CUT * self.space.plan().capacity as u64;
        self.map.is_strained() || self.behind_cut > most
    }
}

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
    pub fn new(
        device: Rc<dyn ZonedDevice>,
        identity: VolumeIdentity,
        options: VolumeOptions,
        start: Start,
    ) -> VolumeCore {
        let Start {
            map,
            mut space,
            directory,
            head,
            generation,
            next_number,
            lifespan,
            codec,
            unit,
            queue_seconds,
            has_snapshots,
        } = start;
        let unit = unit.min(space.plan().unit);
        space.lend_reserve();
        let state = VolumeState {
            blocks: identity.blocks,
            map,
            space,
            streams: Default::default(),
            map_open: None,
            directory,
            directory_changed: BTreeSet::new(),
            head,
            generation,
            next_number,
            lifespan,
            codec,
            unit,
            queue_seconds,
            has_snapshots,
            passed_on: 0,
            encoder: None,
            patience: Patience::default(),
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
            flushing: CombinedOperation::default(),
            freed: Gate::default(),
            waiting: Cell::new(0),
            few: Gate::default(),
            unread: Gate::default(),
        }
    }

    /// Writable blocks of a zone.
    pub fn capacity(&self) -> u32 {
        self.identity.zone_capacity_blocks as u32
    }

    /// Stops all writing for good, since the map points to blocks that were not written. Wakes all waiting tasks.
    pub fn fail(&self, error: DeviceError) {
        self.state.borrow_mut().failed.get_or_insert(error);
        let gates =
            [&self.room, &self.pages, &self.wanted, &self.ended, &self.few, &self.freed, &self.unread];
        gates.into_iter().chain(&self.closed).chain(&self.landed).for_each(Gate::open);
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

    /// Makes completed writes durable. One flush at a time: the device reports a loss only once, so that one of two
    /// concurrent flushes could succeed although the other reports the loss. Calls share a flush that begins after
    /// them.
    pub async fn flush_device(&self) -> Result<(), DeviceError> {
        let flush = || async { self.must(self.device.submit(Command::Flush).await).map(drop) };
        self.flushing.run(flush).await?;
        self.check()
    }

    /// Calls `act` with a stream and the resources that it needs.
    pub fn with_stream<T>(&self, index: usize, act: impl FnOnce(&mut Stream, &mut Common<'_>) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let VolumeState { streams, pool, written, .. } = &mut *state;
        let mut common = Common { device: &*self.device, volume: self.mark, pool, written };
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

    /// Closes the group that is being filled if it is as large as the data in flight; with `all`, in any case.
    pub fn launch(&self, index: usize, all: bool) {
        let capacity = self.capacity();
        let closed = self.with_stream(index, |stream, common| {
            let before = stream.closed();
            match all {
                true => stream.close(index, capacity, common),
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
                } else if place == 0 {
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
        if state.map.is_here(page) || place == 0 || !has_room || !state.loading.insert(page) {
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
    fn page_of(&self, page: u32, place: Address, block: &[u8]) -> Option<Vec<Address>> {
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

    /// Finds the blocks that may have a piece which was written to `block`, that one first.
    pub fn holders(&self, block: u64, holders: &mut Vec<u64>) {
        holders.clear();
        holders.push(block);
        if let Some(kin) = self.kin.get() {
            kin.others(block, holders);
        }
    }

    /// The header of a group of this segment at offset `at` of a zone; `None` if `block` is another block.
    pub fn group_at(&self, block: &[u8], segment: u64, at: u32) -> Option<GroupHeader> {
        read_group(block)
            .filter(|header| header.place.segment == segment && header.is_at(self.mark, at, self.capacity()))
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
        drop(state);
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
            map_memory_bytes: bytes_in(state.map.most_in_memory()),
            pages_read: state.pages_read,
            written: state.written,
            failed: state.failed,
        }
    }
}
