//! Mutable state of a running volume, and its changes, each of which is one synchronous stretch: entries of the log and of
//! the map, and whether there is room.

use crate::{
    buf::{BLOCK, BufPool},
    device::{DeviceError, ZonedDevice},
    runtime::{COPY, work},
    volume::{
        address::{self, Address, GRAIN, GRAINS, HOLE, Unit},
        format::{EntryKind, GroupEntry, looks_like_group},
        hot_window::{HotWindow, RecentWrites},
        map::PagedMap,
        piece::{Codec, Patience},
        space::{Space, ZonePurpose},
        status::WrittenBlocks,
        stream::{COLD, Common, EntrySet, HOT, Log, MOVED, Stream, Ticket},
        victim::Lifespan,
    },
    zone::{Lba, ZoneIndex},
};
use std::collections::BTreeSet;

/// Zones' worth of blocks that may be written between two checkpoints: limits the blocks that a start has to read.
const MOST_BEHIND_CUT: u64 = 4;

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
    /// Whether the next root has the room of each extent: some is guaranteed.
    pub has_guarantees: bool,
    /// [`Root::shares_headers`] of the last durable root: without it no group may have a piece in its first block.
    pub shares_headers: bool,
    /// [`Root::has_trailers`] of the last durable root: without it no group may end with its header.
    pub has_trailers: bool,
    pub lone: LoneWrites,
    /// The hot window.
    pub window: Option<HotWindow>,
    /// The last writes of single blocks, if a hot window may be begun.
    pub recent: Option<RecentWrites>,
    /// Number of blocks that snapshots have passed on since the start.
    pub passed_on: u64,
    pub patience: Patience,
    /// Backoff of squeezing.
    pub squeezing: Patience,
    pub pool: BufPool,
    /// Value of `next_number` when garbage collection last stopped because it had no zone to move blocks to and no dead
    /// zone that a checkpoint would free. A retry is useless before there is another entry.
    pub stalled_at: Option<u64>,
    /// Number of writes and discards refused for lack of room.
    pub refused: u64,
    /// Value of `refused` when garbage collection last began to empty a zone.
    pub tried: u64,
    /// Pages that are being read.
    pub loading: BTreeSet<u32>,
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
    pub page_lookups: u64,
    pub page_hits: u64,
    pub failed: Option<DeviceError>,
}

/// Writes between flushes, from which it is expected whether a write is followed by a flush.
#[derive(Default)]
pub struct LoneWrites {
    /// Writes since the last flush.
    since_flush: u32,
    /// Flushes in a row that followed one to [`LoneWrites::FEW`] writes.
    flushes: u32,
}

impl LoneWrites {
    /// Most writes between two flushes.
    const FEW: u32 = 4;

    /// Counts a write.
    pub fn count_write(&mut self) {
        self.since_flush = self.since_flush.saturating_add(1);
    }

    /// Counts a flush.
    pub fn count_flush(&mut self) {
        match std::mem::take(&mut self.since_flush) {
            0 => {}
            1..=LoneWrites::FEW => self.flushes = self.flushes.saturating_add(1),
            _ => self.flushes = 0,
        }
    }

    /// Whether a flush is expected to follow the write that was counted last.
    pub fn expect_flush(&self) -> bool {
        self.flushes >= 2 && self.since_flush <= LoneWrites::FEW
    }
}

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

/// An entry without data: its first block and its kind. Also one that precedes an entry with data in the same group.
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

    /// As [`Unit::is_squeezed`].
    pub fn is_squeezed(&self) -> bool {
        self.unit.is_squeezed(self.grains())
    }
}

impl VolumeState {
    /// Counts pages in which a request looks something up, all of which are known, or none.
    pub fn count_lookups(&mut self, pages: u64, are_known: bool) {
        self.page_lookups += pages;
        self.page_hits += if are_known { pages } else { 0 };
    }

    /// Makes an entry that maps blocks of the unit beginning at `block` to `piece`, and before it those of `leads`, and
    /// changes the map accordingly; returns the ticket of their group. `None`, and no entry was made, if there is no room
    /// at present. The request makes `expected` entries at most, these included. The pages of all blocks have to be known.
    pub fn place(
        &mut self,
        log: Log<'_>,
        block: u64,
        piece: Piece<'_>,
        (stream, fua, expected): (usize, bool, u64),
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
        let may_have_trailer = self.may_have_trailer(piece, fua);
        let VolumeState { streams, space, pool, written, shares_headers, .. } = self;
        let mut common = Common { log, pool, written };
        let stream = &mut streams[index];
        let begun = stream.begun();
        let entries = 1 + leads.clone().count() as u64;
        let (grains, expected) = (piece.grains(), expected.max(entries));
        let set = EntrySet { purpose, grains, entries, expected, may_have_trailer };
        if !stream.prepare(index, (set, *shares_headers), space, number, &mut common) {
            return None;
        }
        let groups = stream.begun() - begun;
        let headers = groups - (groups > 0 && stream.fills_before_trailer()) as u64;
        self.put_leads(index, leads);
        let kind = EntryKind::Data { unit: piece.unit, grains: piece.grains(), there: piece.there };
        let entry = GroupEntry { number: self.next_number, block: block as u32, kind };
        let (place, blocks) = self.streams[index].put(entry, piece.bytes, fua, &self.space)?;
        work(piece.grains().div_ceil(GRAINS) * COPY);
        self.apply(block, kind, place);
        self.next_number += 1;
        self.behind_cut += blocks as u64 + headers;
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

    /// Length in grains to which a piece is to be squeezed, so that it shares a block with the header of its group; `None`
    /// if it is compressed already, or does not begin a small group. `expected` as in [`VolumeState::place`].
    pub fn squeezed_grains(
        &self,
        log: Log<'_>,
        piece: Piece<'_>,
        (stream, fua, expected): (usize, bool, u64),
    ) -> Option<u32> {
        if !self.shares_headers || piece.grains() != GRAINS || piece.unit != Unit::BLOCK {
            return None;
        }
        let (purpose, may_have_trailer) = (ZonePurpose::Writer, self.may_have_trailer(piece, fua));
        let set = EntrySet { purpose, grains: GRAINS, entries: expected, expected, may_have_trailer };
        self.streams[self.space.plan().index_of(stream)].squeezed_grains(set, log)
    }

    /// See [`EntrySet::may_have_trailer`]. Data that looks like a header does not lie where one may be: nothing but its
    /// content would distinguish it.
    fn may_have_trailer(&self, piece: Piece<'_>, fua: bool) -> bool {
        self.has_trailers
            && (fua || self.lone.expect_flush())
            && !piece.bytes.chunks(BLOCK).any(looks_like_group)
    }

    /// Makes entries without data, in one group, and changes the map accordingly; the blocks of each are in one page of
    /// the map (of which `PagedMap::is_known` is true). `purpose` decides whether another zone may be begun for them.
    /// `None`, without an entry, if there is no room at present.
    pub fn change(
        &mut self,
        (log, apart): (Log<'_>, bool),
        entries: impl Iterator<Item = Lead> + Clone,
        purpose: ZonePurpose,
    ) -> Option<Ticket> {
        let number = self.next_number;
        let index = self.discards(apart);
        let VolumeState { streams, space, pool, written, .. } = self;
        let mut common = Common { log, pool, written };
        let begun = streams[index].begun();
        let count = entries.clone().count() as u64;
        let set = EntrySet { purpose, grains: 0, entries: count, expected: 0, may_have_trailer: false };
        if !streams[index].prepare(index, (set, false), space, number, &mut common) {
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
            self.streams[index].put_entry(entry);
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
                    // A cell without an entry would be free after the next flush: it has both for a moment.
                    if self.known(block) == 0 {
                        self.set(block, theirs);
                    }
                    self.set(other, 0);
                }
                (EntryKind::Return { .. }, Some(other)) if theirs != 0 => {
                    self.passed_on += 1;
                    self.set(block, if theirs == HOLE { 0 } else { theirs });
                    self.set(other, 0);
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
        let before = self.known(block);
        if before == place {
            return;
        }
        let were = self.live(block, before);
        let replaced = self.map.set(block, place);
        assert_eq!(replaced, Some(before), "the entry of block {block} that is replaced");
        let are = self.live(block, place);
        self.space.moved(block, (before, were), (place, are));
        if let Some(window) = &mut self.window {
            window.moved((before, place), &self.streams);
        }
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
        let more = address::charge((unit, grains), unit.blocks());
        let family = self.space.family(block);
        if let Some(held) = keep.and_then(|keep| self.keeps(block, unit.blocks(), keep)) {
            return self.space.has_room_for_new(family, more + held);
        }
        if self.space.has_room_for_new(family, more) {
            return true;
        }
        let more = more.saturating_sub(self.freed(block, unit));
        // Only overwrites may use the reserve: the journal and the metadata of a full file system.
        let mut blocks = block..block + unit.blocks() as u64;
        match uses_reserve || blocks.all(|block| self.map.get(block).is_some_and(address::is_piece)) {
            true => self.space.has_room(family, more),
            false => self.space.has_room_for_new(family, more),
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
    pub fn spend(&mut self, blocks: u64) {
        if let Some(credit) = &mut self.credit {
            *credit = credit.saturating_sub(blocks);
        }
    }

    /// Whether a place is in the hot window: the device does not read it.
    pub fn is_in_window(&self, place: Address) -> bool {
        self.window.as_ref().is_some_and(|window| window.cell_at(place).is_some())
    }

    /// The piece at `place` if its group has not landed yet, or it is in the hot window.
    pub fn in_memory(&self, place: Address) -> Option<&[u8]> {
        if let Some(block) = self.window.as_ref().and_then(|window| window.block_at(place)) {
            return Some(block);
        }
        let (zone, offset) = self.space.locate(place);
        self.streams.iter().find_map(|stream| stream.piece(zone, offset, place))
    }

    /// Address on the device of the block in which the piece at `place` begins.
    pub fn lba(&self, device: &dyn ZonedDevice, place: Address) -> Lba {
        let (zone, offset) = self.space.locate(place);
        Lba(device.geometry().start(ZoneIndex(zone)).0 + offset as u64)
    }

    /// Whether so much was changed or written since the last checkpoint that another one is due.
    pub fn is_checkpoint_due(&self) -> bool {
        let most = MOST_BEHIND_CUT * self.space.plan().capacity as u64;
        self.map.is_strained() || self.behind_cut > most
    }
}
