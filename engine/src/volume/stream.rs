//! Streams: groups are filled, closed, submitted, and have *landed* when their write has completed.
//!
//! Everything in here is synchronous; [`super::commit`] waits for the device. A block gets its place in the group that
//! is being filled; the group is closed when it is full, when nothing of its stream is in flight, when it is as large
//! as the data in flight (so two writes are in flight, and their size follows the load), or when a request waits for
//! all of it. Groups land in the order in which they were closed.
//!
//! The header of a group takes a block. If few entries are expected and the first piece is compressed, that piece begins
//! behind their entries in the same block: so a lone write of a block takes one block instead of two. For this purpose
//! the first block of such a group is *squeezed* in a volume without compression, too.
//!
//! Where the device keeps notes ([`ZonedDevice::note_room`]), synchronous writes of few blocks need neither: they are
//! written without a header, each with the header so far of all of them as its note, until a *trailer* follows, the block
//! with that header.
//!
//! A zone is begun when all groups of the one before it have landed and the device has been flushed: so a
//! power cut leaves one zone of each stream partly written, and no more.

use crate::{
    buf::{BLOCK, Buf, BufMut, BufPool},
    device::{Command, Completion, Done, ZonedDevice},
    volume::{
        address::{self, Address, GRAIN, GRAINS},
        format::{
            GroupEntry, GroupHeader, GroupPlace, HeaderPlace, MOST_BEFORE, header_bytes, header_grains,
            most_entries, put_entry, read_group, seal_group,
        },
        space::{Space, ZonePurpose},
    },
    zone::{Lba, ZoneIndex},
};
use std::collections::VecDeque;

/// Stream of user writes to blocks with a short-lived previous version.
pub const HOT: usize = 0;
/// Stream of other user writes. If there are only two streams, it is the same one as [`HOT`].
pub const COLD: usize = 1;
/// Stream of the blocks that garbage collection moves.
pub const MOVED: usize = 2;

/// Number of the map in [`super::root::CutRecord::stream`]: map zones have no [`Stream`].
pub const MAP: u8 = 3;

/// Maximum number of groups of a stream in flight.
const MOST_FLIGHTS: usize = 8;

/// The zone that a stream writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenZone {
    pub zone: u32,
    pub segment: u64,
    /// Offset of the next group.
    pub next: u32,
    /// First missing block of a group that a power cut has torn; recovery fills the blocks up to `next` with zeros.
    /// `None` if there is no such group.
    pub torn_at: Option<u32>,
}

/// A group that is being filled, or more pieces of the group whose trailer is pending.
struct Group {
    open: OpenZone,
    /// The header, then data; data alone if the trailer is pending.
    bytes: BufMut,
    /// Number of its first entry.
    first: u64,
    entries: usize,
    /// Grain at which its first piece begins.
    first_grain: u32,
    /// Grain at which its last piece ends.
    end: u32,
    fua: bool,
    has_trailer: bool,
}

/// A group whose pieces are written, and whose trailer is not.
struct PendingTrailer {
    open: OpenZone,
    /// Blocks of its pieces.
    blocks: u32,
    /// Number of its first entry.
    first: u64,
    entries: usize,
    /// The trailer, if it follows now.
    header: BufMut,
}

impl Group {
    /// Blocks after `grains` more grains.
    fn blocks_with(&self, grains: u32) -> u32 {
        (self.end + grains).div_ceil(GRAINS)
    }

    /// Blocks, with the header.
    fn blocks(&self) -> u32 {
        self.blocks_with(0)
    }

    /// Maximum blocks: the buffer without a block that may fill up the zone.
    fn most(&self) -> u32 {
        (self.bytes.len() / BLOCK) as u32 - 1
    }

    fn put_entry(&mut self, entry: GroupEntry) {
        let (entries, most) = (self.entries as u64, most_entries(self.first_grain));
        assert!(entries < most, "a group gets another entry, and has {entries} of {most}");
        put_entry(&mut self.bytes, self.entries, self.first, entry);
        self.entries += 1;
    }
}

impl PendingTrailer {
    /// Adds an entry of `group`, which has more of its pieces.
    fn put_entry(&mut self, group: &mut Group, entry: GroupEntry) {
        put_entry(&mut self.header, self.entries, self.first, entry);
        self.entries += 1;
        group.entries += 1;
    }
}

/// Entries that are put into a group together, at most one of them with a piece.
#[derive(Clone, Copy)]
pub struct EntrySet {
    /// Why they are made.
    pub purpose: ZonePurpose,
    /// Grains of the piece; 0 if there is none.
    pub grains: u32,
    /// Their number.
    pub entries: u64,
    /// Number of entries of the request from these on.
    pub expected: u64,
    /// Whether their header may follow them: they are to be durable at once, and a durable root says that there are
    /// trailers.
    pub may_have_trailer: bool,
}

/// The group with a trailer that entries go into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BeforeTrailer {
    /// That whose trailer is pending.
    Joins,
    /// A new one.
    Begins,
}

/// Last grain of a group's first block at which a piece may begin: behind more entries it would save little.
const MOST_FIRST_GRAIN: u32 = GRAINS / 2;

/// Most entries of a group of which the first block is squeezed: in a larger one that saves little, and reading the
/// blocks of a request together gets slower.
const MOST_SQUEEZED: u64 = 4;

/// A closed group: its blocks do not change any more.
struct ClosedGroup {
    zone: u32,
    start: u32,
    blocks: u32,
    entries: usize,
    bytes: Buf,
    fua: bool,
    /// The header so far, of a group whose trailer is pending; otherwise empty.
    note: Buf,
    completion: Option<Completion>,
}

impl ClosedGroup {
    /// The piece at `place`, which begins at `offset` of `zone`, if it is in this group.
    fn piece(&self, zone: u32, offset: u32, place: Address) -> Option<&[u8]> {
        let inside = zone == self.zone && (self.start..self.start + self.blocks).contains(&offset);
        inside.then(|| piece_of(&self.bytes, offset - self.start, place)).flatten()
    }
}

/// The piece at `place` within `bytes`, in which block `index` is the one that it begins in; `None` if it does not lie
/// within.
pub fn piece_of(bytes: &[u8], index: u32, place: Address) -> Option<&[u8]> {
    let at = index as usize * BLOCK + address::from(place) as usize * GRAIN;
    bytes.get(at..at + address::grains(place) as usize * GRAIN)
}

/// The groups of a stream, from filling to landing.
#[derive(Default)]
pub struct Stream {
    /// The zone of the next group; `None` if a zone has to be begun for it.
    open: Option<OpenZone>,
    filling: Option<Group>,
    /// The group whose pieces end where the next group begins, if its trailer is pending.
    pending: Option<PendingTrailer>,
    /// Closed groups that are not submitted yet, in order.
    ready: VecDeque<ClosedGroup>,
    /// Groups in flight, in order.
    flights: VecDeque<ClosedGroup>,
    /// The zone to which groups may be submitted: groups for the next zone wait until all groups of this one have
    /// landed and are flushed.
    writing: Option<u32>,
    /// Number of groups closed so far.
    closed: u64,
    /// Number of groups landed so far.
    landed: u64,
}

/// Identifies a group: index of its stream, and its number in that stream, from 1.
pub type Ticket = (usize, u64);

/// Where the groups of a volume are written.
#[derive(Clone, Copy)]
pub struct Log<'a> {
    pub device: &'a dyn ZonedDevice,
    /// [`super::root::VolumeIdentity::mark`].
    pub volume: u64,
}

/// Resources that all streams use.
pub struct Common<'a> {
    pub log: Log<'a>,
    pub pool: &'a mut BufPool,
    pub written: &'a mut super::status::WrittenBlocks,
}

impl Stream {
    /// Continues in a zone that was partly written before the start.
    pub fn resume(&mut self, open: OpenZone) {
        assert!(self.open.is_none() && self.begun() == 0, "a stream that has begun goes on with {open:?}");
        assert!(self.pending.is_none(), "a trailer is pending before the start");
        self.open = Some(open);
        self.writing = Some(open.zone);
    }

    /// Whether a group of the stream is, or will be, written to a zone.
    pub fn writes(&self, zone: u32) -> bool {
        let next = self.open.iter().map(|open| open.zone);
        next.chain(self.flights.iter().chain(&self.ready).map(|group| group.zone)).any(|other| other == zone)
    }

    /// The zone that is being written, and where its next group begins.
    pub fn open(&self) -> Option<OpenZone> {
        self.open
    }

    /// Number of groups that have landed.
    pub fn landed(&self) -> u64 {
        self.landed
    }

    /// Number of groups that were closed.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// Number of groups that were begun.
    pub fn begun(&self) -> u64 {
        self.closed + self.filling.is_some() as u64
    }

    /// Whether the group that is being filled will end with its header.
    pub fn fills_before_trailer(&self) -> bool {
        self.filling.as_ref().is_some_and(|group| group.has_trailer)
    }

    /// Number of entries of groups that have not landed.
    fn entries_on_their_way(&self) -> u64 {
        self.flights.iter().chain(&self.ready).map(|group| group.entries as u64).sum()
    }

    /// Length in grains to which the first block of the next entries has to be squeezed so that the header is in the same
    /// block; `None` if they are not the first of a group with a header there, or too many entries are expected.
    pub fn squeezed_grains(&self, set: EntrySet, log: Log<'_>) -> Option<u32> {
        if self.filling.is_some() || self.before_trailer(set, log).is_some() {
            return None;
        }
        let entries = set.expected + self.entries_on_their_way();
        (entries <= MOST_SQUEEZED).then(|| GRAINS - header_grains(entries))
    }

    /// How entries go into a group with a trailer; `None` if they do not: they are to be few whole blocks that are durable at
    /// once, where the device keeps notes.
    fn before_trailer(&self, set: EntrySet, log: Log<'_>) -> Option<BeforeTrailer> {
        let is_lone =
            set.purpose == ZonePurpose::Writer && set.expected + self.entries_on_their_way() <= MOST_SQUEEZED;
        if !set.may_have_trailer || !is_lone {
            return None;
        }
        if let Some(pending) = &self.pending
            && self.fits_before_trailer(set, (0, pending.blocks, pending.entries), log)
        {
            return Some(BeforeTrailer::Joins);
        }
        let behind = self.pending.is_some() as u32;
        self.fits_before_trailer(set, (behind, 0, 0), log).then_some(BeforeTrailer::Begins)
    }

    /// Whether entries can be written now, or `behind` blocks later, in a group with a trailer that has `blocks` blocks and
    /// `entries` entries before them.
    fn fits_before_trailer(
        &self,
        set: EntrySet,
        (behind, blocks, entries): (u32, u32, usize),
        log: Log<'_>,
    ) -> bool {
        let Some(open) = self.open else { return false };
        assert!(open.next > 0, "zone {} would begin without a header", open.zone);
        // Blocks of the write: those that are filled already, and the rest of the request.
        let filled = self.filling.as_ref().map_or(0, |group| group.blocks());
        let more = filled + (set.grains / GRAINS).max(set.expected as u32);
        let start = log.device.geometry().start(ZoneIndex(open.zone)).0 + (open.next + behind) as u64;
        set.grains > 0
            && set.grains.is_multiple_of(GRAINS)
            && blocks + more <= MOST_BEFORE
            && log.device.note_room(Lba(start), more.into()) >= header_bytes(entries + set.entries as usize)
    }

    /// Grain of a new group at which its first piece begins: that of the next block, unless the piece is compressed and
    /// few entries are expected, as many as are on their way.
    fn first_grain(&self, set: EntrySet) -> u32 {
        let first = header_grains(set.expected + self.entries_on_their_way());
        let shares = set.purpose == ZonePurpose::Writer
            && !set.grains.is_multiple_of(GRAINS)
            && first <= MOST_FIRST_GRAIN;
        if shares { first } else { GRAINS }
    }

    /// Makes room for entries: closes the group that is being filled if that has no room, and begins another one, in
    /// another zone if necessary. If the rest of a zone is too small, a group without entries fills it up. Pieces may be in
    /// the first block of the group if it `shares` that. `false` if no zone may be begun for this purpose.
    pub fn prepare(
        &mut self,
        index: usize,
        (set, shares): (EntrySet, bool),
        space: &mut Space,
        number: u64,
        common: &mut Common<'_>,
    ) -> bool {
        let EntrySet { purpose, grains, entries, .. } = set;
        let plan = space.plan();
        let (capacity, most) = (plan.capacity, plan.most_of(purpose));
        if let Some(group) = &self.filling {
            let blocks = group.blocks_with(grains);
            let fits = blocks <= group.most() && group.open.next + blocks <= capacity;
            let has_room = match group.has_trailer {
                true => self.before_trailer(set, common.log) == Some(BeforeTrailer::Joins),
                false => group.entries as u64 + entries <= most_entries(group.first_grain),
            };
            if fits && has_room {
                return true;
            }
            self.close(index, capacity, common);
        }
        let group = |pool: &mut BufPool, open, first_grain, has_trailer| {
            let bytes = pool.take(most + 2);
            let (entries, end) = (0, first_grain);
            Some(Group { open, bytes, first: number, entries, first_grain, end, fua: false, has_trailer })
        };
        let trailer = self.before_trailer(set, common.log);
        if trailer != Some(BeforeTrailer::Joins) {
            self.end_with_trailer(index, capacity, common);
        }
        if let Some(open) = self.open.filter(|_| trailer.is_some()) {
            self.pending.get_or_insert_with(|| PendingTrailer {
                open,
                blocks: 0,
                first: number,
                entries: 0,
                header: common.pool.take(1),
            });
            self.filling = group(common.pool, open, 0, true);
            return true;
        }
        let first_grain = if shares { self.first_grain(set) } else { GRAINS };
        if let Some(open) = self.open.filter(|open| open.next + 1 + grains.div_ceil(GRAINS) > capacity) {
            self.filling = group(common.pool, open, GRAINS, false);
            self.close(index, capacity, common);
        }
        let open = match self.open {
            Some(open) => open,
            None => match space.begin(purpose) {
                Some(zone) => {
                    let segment = space.zone(zone).record.segment;
                    space.zone_mut(zone).hot = index == HOT;
                    *self.open.insert(OpenZone { zone, segment, next: 0, torn_at: None })
                }
                None => return false,
            },
        };
        self.filling = group(common.pool, open, first_grain, false);
        true
    }

    /// Puts a piece into the group that is being filled; returns its place, and the number of blocks by which the group
    /// has grown. [`Stream::prepare`] has to have returned true.
    pub fn put(
        &mut self,
        entry: GroupEntry,
        piece: &[u8],
        fua: bool,
        space: &Space,
    ) -> Option<(Address, u32)> {
        let group = self.filling.as_mut()?;
        let (from, grains) = (group.end, entry.kind.grains());
        group.bytes[from as usize * GRAIN..][..piece.len()].copy_from_slice(piece);
        let (blocks, most) = (group.blocks_with(grains), group.most());
        assert!(blocks <= most, "a group gets {blocks} blocks, and may have {most}");
        let begun = group.blocks_with(grains) - group.blocks();
        group.end += grains;
        group.fua |= fua;
        let place = space.piece(group.open.zone, group.open.next, from, (entry.kind.unit(), grains));
        self.put_entry(entry);
        Some((place, begun))
    }

    /// Puts an entry into the group that is being filled: into its header, or that of its trailer. [`Stream::prepare`] has to
    /// have returned true.
    pub fn put_entry(&mut self, entry: GroupEntry) {
        let Some(group) = &mut self.filling else { return };
        match self.pending.as_mut().filter(|_| group.has_trailer) {
            Some(pending) => pending.put_entry(group, entry),
            None => group.put_entry(entry),
        }
    }

    /// Closes the group that is being filled, if there is one, and submits it if possible.
    pub fn close(&mut self, index: usize, capacity: u32, common: &mut Common<'_>) {
        let Some(group) = self.filling.take() else { return };
        if group.has_trailer {
            return self.close_before_trailer(index, group, common);
        }
        let mut blocks = group.blocks();
        let Group { open, mut bytes, first, entries, first_grain, end, fua, .. } = group;
        let OpenZone { zone, segment, next: offset, .. } = open;
        bytes[end as usize * GRAIN..blocks as usize * BLOCK].fill(0);
        let header = (first_grain == GRAINS) as u32;
        common.written.headers += header as u64;
        common.written.data += (blocks - header) as u64;
        let used = blocks;
        // No group fits into a single block at the end of a zone, so it is filled up; a group without entries fills up
        // the zone.
        while offset + blocks + 1 == capacity || entries == 0 && offset + blocks < capacity {
            bytes.block_mut(blocks as u64).fill(0);
            blocks += 1;
        }
        let place = GroupPlace { volume: common.log.volume, segment, offset, stream: index as u8 };
        let bytes_of_header = bytes.block_mut(0);
        let header_place = HeaderPlace::HeaderFirst(blocks, first_grain);
        seal_group(bytes_of_header, place, header_place, first, entries);
        common.written.padding += (blocks - used) as u64;
        let end = offset + blocks;
        assert!(end <= capacity, "a group ends at block {end} of zone {zone}, which has {capacity}");
        self.open = (end < capacity).then_some(OpenZone { next: end, ..open });
        let bytes = bytes.freeze();
        let (start, note) = (offset, Buf::default());
        let closed = ClosedGroup { zone, start, blocks, entries, bytes, fua, note, completion: None };
        self.push(closed, common);
    }

    /// Closes pieces of the group whose trailer is pending, and submits them with the trailer so far as their note.
    fn close_before_trailer(&mut self, index: usize, group: Group, common: &mut Common<'_>) {
        let Some(pending) = &mut self.pending else { return };
        let (blocks, Group { open, entries, bytes, fua, .. }) = (group.blocks(), group);
        let OpenZone { zone, segment, next: start, .. } = open;
        let offset = start + blocks;
        pending.blocks += blocks;
        let place = GroupPlace { volume: common.log.volume, segment, offset, stream: index as u8 };
        let header_place = HeaderPlace::Trailer(pending.blocks);
        seal_group(&mut pending.header, place, header_place, pending.first, pending.entries);
        let note = Buf::copy_of(&pending.header[..header_bytes(pending.entries)]);
        common.written.data += blocks as u64;
        self.open = Some(OpenZone { next: offset, ..open });
        let bytes = bytes.freeze();
        let closed = ClosedGroup { zone, start, blocks, entries, bytes, fua, note, completion: None };
        self.push(closed, common);
    }

    /// Writes the pending trailer, if there is one. No group may be being filled.
    pub fn end_with_trailer(&mut self, index: usize, capacity: u32, common: &mut Common<'_>) {
        let Some(PendingTrailer { open, blocks, header, .. }) = self.pending.take() else { return };
        assert!(self.filling.is_none(), "a trailer of stream {index} would follow unwritten pieces");
        let (next, end) = (open.next + blocks, self.open.map(|open| (open.zone, open.next)));
        assert_eq!(end, Some((open.zone, next)), "the place of the trailer of {blocks} blocks");
        assert!(next + 2 < capacity, "a trailer at block {next} of {capacity}");
        common.written.headers += 1;
        self.open = Some(OpenZone { next: next + 1, ..open });
        let (bytes, note) = (header.freeze(), Buf::default());
        let (zone, start, fua) = (open.zone, next, false);
        let closed = ClosedGroup { zone, start, blocks: 1, entries: 0, bytes, fua, note, completion: None };
        self.push(closed, common);
    }

    /// Submits a closed group behind those before it.
    fn push(&mut self, group: ClosedGroup, common: &mut Common<'_>) {
        self.ready.push_back(group);
        self.closed += 1;
        self.submit(common);
    }

    /// The header of the group that begins at this offset of a zone, if its trailer is pending.
    pub fn pending_at(&self, zone: u32, offset: u32) -> Option<GroupHeader> {
        let pending = self.pending.as_ref().filter(|pending| pending.blocks > 0)?;
        let is_here = (pending.open.zone, pending.open.next) == (zone, offset);
        is_here.then(|| read_group(&pending.header)).flatten()
    }

    /// Closes the group that is being filled if it has at least as many blocks as those that are closed and have not
    /// landed.
    pub fn launch(&mut self, index: usize, capacity: u32, common: &mut Common<'_>) {
        let Some(group) = &self.filling else { return };
        let on_their_way: u32 = self.flights.iter().chain(&self.ready).map(|group| group.blocks).sum();
        if group.blocks() >= on_their_way {
            self.close(index, capacity, common);
        }
    }

    /// Submits closed groups of the current zone, until [`MOST_FLIGHTS`] are in flight.
    fn submit(&mut self, common: &mut Common<'_>) {
        while self.flights.len() < MOST_FLIGHTS
            && self.ready.front().is_some_and(|group| self.writing == Some(group.zone))
            && let Some(mut group) = self.ready.pop_front()
        {
            let start = common.log.device.geometry().start(ZoneIndex(group.zone));
            let before = self.flights.back().map(|before| (before.zone, before.start + before.blocks));
            assert!(
                before.is_none_or(|end| end == (group.zone, group.start)),
                "block {} of zone {} is written behind {before:?}",
                group.start,
                group.zone
            );
            let data = group.bytes.slice_blocks(0..group.blocks as u64);
            let lba = Lba(start.0 + group.start as u64);
            let note = std::mem::take(&mut group.note);
            group.completion = Some(match note.is_empty() {
                true => common.log.device.submit(Command::write(lba, data, group.fua)),
                false => common.log.device.write_with_note(lba, data, note),
            });
            self.flights.push_back(group);
        }
    }

    /// Whether the next closed group is of another zone, which has to be begun first. Called when no group is in
    /// flight.
    pub fn waits_for_zone(&self) -> bool {
        self.ready.front().is_some_and(|group| self.writing != Some(group.zone))
    }

    /// Whether the stream has written a zone, which is flushed before the next one is begun.
    pub fn has_begun(&self) -> bool {
        self.writing.is_some()
    }

    /// The completion of the oldest group in flight.
    pub fn next_landing(&mut self) -> Option<Completion> {
        self.flights.front_mut().and_then(|group| group.completion.take())
    }

    /// Allows writes to the zone of the first group that waits.
    pub fn begin_zone(&mut self, common: &mut Common<'_>) {
        assert!(self.flights.is_empty(), "a zone is begun with {} groups in flight", self.flights.len());
        self.writing = self.ready.front().map(|group| group.zone);
        self.submit(common);
    }

    /// Completes the oldest group in flight, which has landed; returns its zone if that is full now.
    pub fn land(&mut self, done: Done, capacity: u32, common: &mut Common<'_>) -> Option<u32> {
        let group = self.flights.pop_front()?;
        self.landed += 1;
        assert!(
            self.landed <= self.closed,
            "{} groups have landed, and {} are closed",
            self.landed,
            self.closed
        );
        drop(done);
        let ClosedGroup { zone, start, blocks, bytes, .. } = group;
        common.pool.give(bytes);
        self.submit(common);
        (start + blocks == capacity).then_some(zone)
    }

    /// The piece at `place`, which begins at `offset` of `zone`, if its group has not landed.
    pub fn piece(&self, zone: u32, offset: u32, place: Address) -> Option<&[u8]> {
        if let Some(group) = &self.filling
            && group.open.zone == zone
            && (0..group.blocks()).contains(&(offset.wrapping_sub(group.open.next)))
        {
            return piece_of(&group.bytes, offset - group.open.next, place);
        }
        self.flights.iter().chain(&self.ready).find_map(|group| group.piece(zone, offset, place))
    }

    /// Records that the torn blocks of the open zone have been filled up.
    pub fn mend(&mut self) {
        if let Some(open) = &mut self.open {
            open.torn_at = None;
        }
    }
}
