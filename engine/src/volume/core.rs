//! What the parts of a running volume share.
//!
//! All state is in one [`State`], which is changed in synchronous stretches; after every wait it is looked at
//! again. Whoever waits does so at a [`Gate`] that is opened when what it waits for may have come.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::{Command, Completion, DeviceError, Done, Status, ZonedDevice, Zones},
    evidence::reread_verified,
    runtime::{COPY, Combined, Gate, give_way, work},
    volume::{
        behaviour::Behaviour,
        error::VolumeError,
        format::{Entry, Identity, Kind, What, addresses, unseal},
        map::Paged,
        pack::{Codec, Crew, Packer, Patience, Unpacker},
        place::{self, GRAIN, GRAINS, Place, Unit},
        space::{Space, Who, bytes_in},
        status::{VolumeStatus, Written},
        stream::{COLD, Common, HOT, MOVED, Stream, Ticket},
        victim::Lifespan,
    },
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

/// Pages of the map that are read at a time.
pub const MOST_LOADS: usize = 64;

/// Blocks that may be written between two checkpoints, in zones: it bounds what a start reads.
const MOST_BEHIND_CUT: u64 = 4;

pub struct Core {
    pub device: Rc<dyn ZonedDevice>,
    pub identity: Identity,
    /// [`Identity::mark`], which everything that is written has.
    pub mark: u64,
    pub behaviour: Behaviour,
    /// Why something that was promised may have been given up at the start.
    pub given_up: Vec<VolumeError>,
    pub state: RefCell<State>,
    /// Who packs blocks besides whoever writes them.
    pub crew: RefCell<Option<Rc<dyn Crew>>>,
    pub unpacker: RefCell<Unpacker>,
    /// Blocks that were wrong, and right when the device read them in another way.
    pub reread: Cell<u64>,
    /// Writes that have begun and not ended.
    pub writers: Cell<u32>,
    /// Somebody has written, or discarded, since the start.
    pub is_used: Cell<bool>,
    /// Groups of each stream have been closed, or have landed.
    closed: [Gate; 3],
    landed: [Gate; 3],
    /// Zones or credit have become free.
    pub room: Gate,
    /// A page has been read, or the budget has room again.
    pub pages: Gate,
    /// A checkpoint is wanted, or has ended.
    pub wanted: Gate,
    pub ended: Gate,
    flushing: Combined,
    /// There may be room for what was refused, and how many wait for that.
    pub freed: Gate,
    pub waiting: Cell<u64>,
    /// Zones have become few.
    pub few: Gate,
    /// Nobody reads from some zone any more.
    pub unread: Gate,
}

pub struct State {
    pub map: Paged,
    pub space: Space,
    pub streams: [Stream; 3],
    /// Where the map is written: zone and offset.
    pub map_open: Option<(u32, u32)>,
    /// Blocks of the directory on the device, and those that have to be written anew.
    pub directory: Vec<Place>,
    pub directory_changed: BTreeSet<u32>,
    /// The zone of the newest root, and where the next one goes.
    pub head: (u32, u32),
    pub generation: u64,
    pub next_number: u64,
    pub lifespan: Lifespan,
    /// How new data is compressed, and how much of it together.
    pub codec: Option<Codec>,
    pub unit: Unit,
    /// Seconds for which a write waits for room; 0 if it fails at once.
    pub queue_seconds: u8,
    pub packer: Option<Packer>,
    pub patience: Patience,
    pub pool: BufPool,
    /// The next number when collection had no zone to move blocks to, nor any that would be free: as long as there
    /// is no further entry it is no use to try again.
    pub stalled_at: Option<u64>,
    /// Writes and discards for which there was no room, and how many of these there were when a zone was last collected.
    pub refused: u64,
    pub tried: u64,
    /// Pages that are being read.
    loading: BTreeSet<u32>,
    /// Blocks written since the last cut.
    pub behind_cut: u64,
    /// Checkpoints that were begun, that have ended, and that are wanted, as numbers of the last ones.
    pub begun: u64,
    pub done: u64,
    pub wanted: u64,
    /// The one that has begun will make room for pages.
    pub thaws: bool,
    /// What writers may still write while zones are collected; `None` if they need not care.
    pub credit: Option<u64>,
    /// Zones are being emptied, or freed.
    pub collects: bool,
    pub written: Written,
    pub collected_zones: u64,
    pub discarded: u64,
    pub pages_read: u64,
    pub failed: Option<DeviceError>,
}

/// What a page is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Read,
    Write,
    /// Whoever needs it is who makes room for pages: the budget does not count.
    Pressing,
}

/// What a part of a volume starts from.
pub struct Start {
    pub map: Paged,
    pub space: Space,
    pub directory: Vec<Place>,
    pub head: (u32, u32),
    pub generation: u64,
    pub next_number: u64,
    pub lifespan: Lifespan,
    pub codec: Option<Codec>,
    pub unit: Unit,
    pub queue_seconds: u8,
}

/// What an entry is made for: the piece of a unit, and which of its blocks are there from then on.
#[derive(Clone, Copy)]
pub struct Piece<'p> {
    pub bytes: &'p [u8],
    pub unit: Unit,
    pub there: u16,
}

impl<'p> Piece<'p> {
    /// All blocks of a unit.
    pub fn all((bytes, unit): (&'p [u8], Unit)) -> Piece<'p> {
        Piece { bytes, unit, there: unit.mask() }
    }

    /// Its length in grains.
    pub fn grains(&self) -> u32 {
        (self.bytes.len() / GRAIN) as u32
    }
}

impl State {
    /// Makes an entry for blocks from the first of their unit on that became this piece, and has the map say so; gives
    /// what it lands with. `None`, and nothing has happened, if there is no room for it now. The page of the blocks is
    /// known.
    pub fn place(
        &mut self,
        core: &Core,
        block: u64,
        piece: Piece<'_>,
        (stream, fua): (usize, bool),
    ) -> Option<Ticket> {
        let who = if stream == MOVED { Who::Collection } else { Who::Writer };
        let index = self.space.plan().index_of(stream);
        let number = self.next_number;
        let State { streams, space, pool, written, .. } = self;
        let mut common = Common { device: &*core.device, volume: core.mark, pool, written };
        let stream = &mut streams[index];
        let begun = stream.begun();
        if !stream.prepare(index, (who, piece.grains()), space, number, &mut common) {
            return None;
        }
        let headers = stream.begun() - begun;
        let what = What::Data { unit: piece.unit, grains: piece.grains(), there: piece.there };
        let entry = Entry { number, block: block as u32, what };
        let (place, blocks) = stream.put(entry, piece.bytes, fua, space)?;
        work(piece.grains().div_ceil(GRAINS) * COPY);
        self.apply(block, what, place);
        self.next_number += 1;
        self.behind_cut += piece.grains().div_ceil(GRAINS) as u64 + headers;
        let logical = piece.there.count_ones() as u64;
        match who {
            Who::Collection => self.written.moved += logical,
            _ => {
                self.written.user += logical;
                self.spend(blocks as u64 + headers);
            }
        }
        Some((index, self.streams[index].begun()))
    }

    /// Makes an entry that discards blocks of one page, which is known, and has the map say so; in a zone that `who` may
    /// begin if it takes another one. `None`, and nothing has happened, if there is no room for it now.
    pub fn discard(&mut self, core: &Core, (block, blocks): (u64, u32), who: Who) -> Option<Ticket> {
        let number = self.next_number;
        let index = self.discards(core.behaviour.apart);
        let State { streams, space, pool, written, .. } = self;
        let mut common = Common { device: &*core.device, volume: core.mark, pool, written };
        let begun = streams[index].begun();
        if !streams[index].prepare(index, (who, 0), space, number, &mut common) {
            return None;
        }
        streams[index].put_discard(block as u32, blocks, number);
        self.behind_cut += streams[index].begun() - begun;
        self.next_number += 1;
        self.apply(block, What::Discard(blocks), 0);
        self.discarded += blocks as u64;
        Some((index, self.streams[index].begun()))
    }

    /// Has the map say what an entry says. The page of its blocks is known.
    pub fn apply(&mut self, block: u64, what: What, place: Place) {
        for index in 0..what.blocks() {
            match what {
                What::Discard(_) => self.set(block + index, 0),
                What::Data { there, .. } if there >> index & 1 == 1 => self.set(block + index, place),
                What::Data { .. } => {}
            }
        }
    }

    /// Has the map say where a block is.
    fn set(&mut self, block: u64, place: Place) {
        let before = self.map.get(block).unwrap_or(0);
        if before == place {
            return;
        }
        let were = self.live(block, before);
        _ = self.map.set(block, place);
        let are = self.live(block, place);
        self.space.moved((before, were), (place, are));
    }

    /// How many blocks of a unit are at a place, which is that of a block of it. The page is known.
    fn live(&mut self, block: u64, place: Place) -> u32 {
        if place::unit(place) == Unit::BLOCK { 1 } else { self.there(block, place).count_ones() }
    }

    /// A bit for each block of a unit that is at a place, which is that of a block of it, or was. The page is known.
    pub fn there(&mut self, block: u64, place: Place) -> u16 {
        let unit = place::unit(place);
        let first = unit.first(block);
        let at_place = |index: &u32| self.map.get(first + *index as u64) == Some(place);
        (0..unit.blocks()).filter(at_place).fold(0, |there, index| there | 1 << index)
    }

    /// Whether there is room for all blocks of a unit to become a piece of so many grains, or that takes none. The page
    /// is known.
    pub fn has_room(&mut self, block: u64, (unit, grains): (Unit, u32)) -> bool {
        let more = place::charge(grains, unit.blocks());
        if self.space.has_room_for_new(more) {
            return true;
        }
        let more = more.saturating_sub(self.freed(block, unit));
        // What is overwritten may take the reserve: a journal, or the metadata of a file system that is full.
        let mut blocks = block..block + unit.blocks() as u64;
        match blocks.all(|block| self.map.get(block).is_some_and(|place| place != 0)) {
            true => self.space.has_room(more),
            false => self.space.has_room_for_new(more),
        }
    }

    /// What counts for nothing any more if all blocks of a unit are elsewhere.
    fn freed(&mut self, block: u64, unit: Unit) -> u32 {
        let mut gone: [(Place, u32); 16] = [(0, 0); 16];
        let mut freed = 0;
        for block in block..block + unit.blocks() as u64 {
            let place = self.map.get(block).filter(|place| *place != 0);
            if let Some(place) = place
                && let Some((of, gone)) = gone.iter_mut().find(|(of, _)| [0, place].contains(of))
            {
                let live = self.live(block, place);
                freed += place::share(place, live.saturating_sub(*gone));
                (*of, *gone) = (place, *gone + 1);
            }
        }
        freed
    }

    /// The stream of discards.
    pub fn discards(&self, apart: bool) -> usize {
        if apart { HOT } else { self.space.plan().index_of(COLD) }
    }

    /// Which stream a block goes to whose last version is at `before`.
    pub fn stream_of(&self, before: Place, apart: bool) -> usize {
        if before == 0 || !apart {
            return COLD;
        }
        let (zone, _) = self.space.locate(before);
        let age = self.space.next_segment.saturating_sub(self.space.zone(zone).record.segment);
        if self.lifespan.is_hot(age) { HOT } else { COLD }
    }

    /// Whether a writer may write another block now.
    pub fn may_write(&self) -> bool {
        self.credit != Some(0)
    }

    /// Writers have taken so many blocks, with headers.
    fn spend(&mut self, blocks: u64) {
        if let Some(credit) = &mut self.credit {
            *credit = credit.saturating_sub(blocks);
        }
    }

    /// A piece that may not be on the device yet.
    pub fn in_memory(&self, place: Place) -> Option<&[u8]> {
        let (zone, offset) = self.space.locate(place);
        self.streams.iter().find_map(|stream| stream.piece(zone, offset, place))
    }

    pub fn lba(&self, device: &dyn ZonedDevice, place: Place) -> Lba {
        let (zone, offset) = self.space.locate(place);
        Lba(device.geometry().start(ZoneIndex(zone)).0 + offset as u64)
    }

    fn is_checkpoint_due(&self) -> bool {
        let most = MOST_BEHIND_CUT * self.space.plan().capacity as u64;
        self.map.is_strained() || self.behind_cut > most
    }
}

/// Somebody reads a page. If nobody waits for it any more, somebody else may.
struct Loading<'c> {
    core: &'c Core,
    page: u32,
    place: Place,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.core.state.borrow_mut().loading.remove(&self.page);
        self.core.pages.open();
    }
}

/// Reads into `data`, or, where something of that cannot be read, the first `least` blocks alone.
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

/// Sees to it that a zone that could not be reset does not stay active.
pub async fn leave(device: &dyn ZonedDevice, zone: ZoneIndex) {
    let done = device.submit(Command::Report { first: zone, count: 1 }).await;
    if done.zones.first().is_some_and(|info| info.state.is_active()) {
        // If that fails as well there is nothing left to be tried.
        device.submit(Command::Finish { zones: Zones::One(zone) }).await;
    }
}

impl Core {
    pub fn new(device: Rc<dyn ZonedDevice>, identity: Identity, behaviour: Behaviour, start: Start) -> Core {
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
        } = start;
        let unit = unit.min(space.plan().unit);
        space.lend_reserve();
        let state = State {
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
            packer: None,
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
            written: Written::default(),
            collected_zones: 0,
            discarded: 0,
            pages_read: 0,
            failed: None,
        };
        Core {
            device,
            mark: identity.mark(),
            identity,
            behaviour,
            given_up: Vec::new(),
            state: RefCell::new(state),
            crew: RefCell::default(),
            unpacker: RefCell::default(),
            reread: Cell::new(0),
            writers: Cell::new(0),
            is_used: Cell::new(false),
            closed: Default::default(),
            landed: Default::default(),
            room: Gate::default(),
            pages: Gate::default(),
            wanted: Gate::default(),
            ended: Gate::default(),
            flushing: Combined::default(),
            freed: Gate::default(),
            waiting: Cell::new(0),
            few: Gate::default(),
            unread: Gate::default(),
        }
    }

    pub fn capacity(&self) -> u32 {
        self.identity.zone_capacity_blocks as u32
    }

    /// Nothing is written any more: what the map says of blocks that did not land is not there.
    pub fn fail(&self, error: DeviceError) {
        self.state.borrow_mut().failed.get_or_insert(error);
        let gates =
            [&self.room, &self.pages, &self.wanted, &self.ended, &self.few, &self.freed, &self.unread];
        gates.into_iter().chain(&self.closed).chain(&self.landed).for_each(Gate::open);
    }

    /// # Errors
    /// Why nothing can be written any more.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.state.borrow().failed.map_or(Ok(()), Err)
    }

    /// What becomes of a command that has to succeed.
    pub fn must(&self, done: Done) -> Result<Done, DeviceError> {
        match done.result {
            Ok(()) => Ok(done),
            Err(error) => {
                self.fail(error);
                Err(error)
            }
        }
    }

    /// Makes safe what has completed. One flush at a time, since a device tells a loss once: nobody's ends well while
    /// another one learns of it. Who asked before it began shares it.
    pub async fn flush_device(&self) -> Result<(), DeviceError> {
        let flush = || async { self.must(self.device.submit(Command::Flush).await).map(drop) };
        self.flushing.run(flush).await?;
        self.check()
    }

    pub fn with_stream<T>(&self, index: usize, act: impl FnOnce(&mut Stream, &mut Common<'_>) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let State { streams, pool, written, .. } = &mut *state;
        let mut common = Common { device: &*self.device, volume: self.mark, pool, written };
        act(&mut streams[index], &mut common)
    }

    /// A group has landed, and filled its zone maybe.
    pub fn landed(&self, index: usize, full: Option<u32>) {
        if let Some(zone) = full {
            self.state.borrow_mut().space.close(zone);
            self.few.open();
        }
        self.landed[index].open();
    }

    /// Waits until groups of a stream have been closed.
    pub async fn wait_for_groups(&self, index: usize) {
        self.closed[index].wait().await;
    }

    /// Closes what need not wait; with `all`, whatever is being filled.
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

    /// Tells the task of a stream that a group was closed because it was full.
    pub fn tell(&self, index: usize) {
        self.closed[index].open();
    }

    /// Closes all groups that are being filled; gives what has to land then.
    pub fn close_all(&self) -> [Ticket; 3] {
        [HOT, COLD, MOVED].map(|index| {
            self.launch(index, true);
            (index, self.state.borrow().streams[index].closed())
        })
    }

    /// Waits until so many groups of the stream have landed.
    pub async fn wait_landed(&self, (index, groups): Ticket) -> Result<(), DeviceError> {
        // One of them may have been closed by somebody who then found no room, and told nobody.
        self.tell(index);
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

    /// Sees to it that a page can be read and changed: from the return on, until the caller waits for
    /// something.
    ///
    /// # Errors
    /// When the page cannot be read: what is known of its blocks is lost.
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
                // There are no checkpoints any more that would make room, when something has failed.
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

    /// Begins to read pages that somebody will need who holds them one by one, as many at a time as is good for drives.
    /// What cannot be read is left to him, as is what there is no room for unless the need is `Pressing`.
    pub async fn fetch(&self, pages: impl Iterator<Item = u32>, need: Need) {
        let mut reads = Vec::new();
        let mut pages = pages.peekable();
        while pages.peek().is_some() {
            reads.extend(pages.by_ref().filter_map(|page| self.begin_load(page, need)).take(MOST_LOADS));
            for (loading, read) in reads.drain(..) {
                // He asks again.
                _ = self.take_page(loading, read.await).await;
                give_way().await;
            }
        }
    }

    /// Reads a page, if that is on the device, not in memory, and not being read.
    fn begin_load(&self, page: u32, need: Need) -> Option<(Loading<'_>, Completion)> {
        let mut state = self.state.borrow_mut();
        let place = state.map.place(page);
        let has_room = need == Need::Pressing || state.map.has_room_for(state.loading.len() + 1);
        if state.map.is_here(page) || place == 0 || !has_room || !state.loading.insert(page) {
            return None;
        }
        drop(state);
        Some(self.read_page(page, place))
    }

    fn read_page(&self, page: u32, place: Place) -> (Loading<'_>, Completion) {
        let lba = self.state.borrow().lba(&*self.device, place);
        (Loading { core: self, page, place }, self.device.submit(Command::read(lba, Buf::zeroed(BLOCK))))
    }

    /// Takes a page that was read.
    async fn take_page(&self, loading: Loading<'_>, done: Done) -> Result<(), DeviceError> {
        let page = loading.page;
        let verify = |block: &[u8]| self.page_of(page, block);
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

    /// The addresses of a page of the map, if a block is that page.
    fn page_of(&self, page: u32, block: &[u8]) -> Option<Vec<Place>> {
        let right = unseal(block)
            .is_ok_and(|(seal, _)| (seal.kind, seal.index, seal.volume) == (Kind::Page, page, self.mark));
        if !right {
            return None;
        }
        let state = self.state.borrow();
        if addresses(block).any(|place| !state.space.may_be_live(place)) {
            return None;
        }
        Some(addresses(block).collect())
    }

    /// Somebody writes or discards: zones may be collected from now on.
    pub fn note_use(&self) {
        if !self.is_used.replace(true) {
            self.few.open();
        }
    }

    /// Has a checkpoint begun if one is due.
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

    pub fn status(&self) -> VolumeStatus {
        let state = self.state.borrow();
        let plan = state.space.plan();
        VolumeStatus {
            blocks: self.identity.blocks,
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
            free_zones: state.space.free_zones(),
            writing: state.space.writing().collect(),
            unreadable_zones: state.space.unreadable().count() as u32,
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
