//! The cells of a hot window ([`super::window`]), and the blocks in them; decides which writes are worth a window. Never waits.

use crate::{
    buf::{BLOCK, Buf, BufPool},
    device::Completion,
    volume::{
        address::{self, Address},
        format::{CellHeader, GroupEntry},
        root::{CutRecord, WINDOW},
        stream::Stream,
    },
};
use std::collections::VecDeque;

/// Writes soon after another one to the same block for which a window is begun, if they are this part (1/n) of all.
const WORTH: u32 = 16;
const WORTH_SHARE: u32 = 8;

/// A write of a block is soon after the one before if there are fewer other writes of single blocks between them.
const SOON: u32 = 4096;

/// Part (1/n) of the cells that are kept free for new blocks.
const FREE_SHARE: usize = 8;

/// Most blocks that are moved out of the window together.
const MOST_MOVED: usize = 64;

/// The blocks of the last writes, each with the number of its write; a later block may take the place of another.
pub struct RecentWrites {
    last: Box<[(u32, u32)]>,
    /// Number of the last write; it wraps around.
    number: u32,
    /// Writes since the last multiple of [`SOON`], and those of them that were soon after another one to the same block.
    counted: u32,
    again: u32,
}

impl RecentWrites {
    pub fn new() -> RecentWrites {
        RecentWrites { last: vec![(u32::MAX, 0); SOON as usize].into(), number: 0, counted: 0, again: 0 }
    }

    /// Adds a write to a block; whether it is soon after the one before.
    pub fn add(&mut self, block: u64) -> bool {
        self.number = self.number.wrapping_add(1);
        // Fibonacci hashing: blocks at regular distances are spread evenly.
        let hash = (block as u32).wrapping_mul(0x9e37_79b9) >> (u32::BITS - SOON.ilog2());
        let last = &mut self.last[hash as usize];
        let is_soon = last.0 == block as u32 && self.number.wrapping_sub(last.1) < SOON;
        *last = (block as u32, self.number);
        if self.counted == SOON {
            (self.counted, self.again) = (0, 0);
        }
        (self.counted, self.again) = (self.counted + 1, self.again + is_soon as u32);
        is_soon
    }

    /// Whether enough blocks were written again soon.
    pub fn are_worth_a_window(&self) -> bool {
        self.again >= WORTH && self.again * WORTH_SHARE >= self.counted
    }
}

/// The stages of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStage {
    /// No durable root names its zone yet.
    Begun,
    Used,
    /// Takes no more blocks; its blocks are moved to the log.
    Ending,
}

/// A cell: free, or with the last version of a block that was written to it.
#[derive(Default)]
pub struct WindowCell {
    pub entry: CellHeader,
    /// The content of the cell; empty if it is free.
    pub bytes: Buf,
    /// Blocks that the map has in this cell: that of the entry, and those of snapshots that keep it.
    pub references: u32,
    pub in_flight: bool,
}

/// A write of a cell in flight.
pub struct WindowWrite {
    pub cell: u32,
    /// The cell with the version before, if nothing else has that.
    pub former: Option<u32>,
    pub completion: Completion,
}

/// A cell without references.
pub struct DeadCell {
    pub cell: u32,
    /// Number of its end in the order of all.
    pub number: u64,
    /// Groups of each stream that were begun: one of them has the entry that ended its references.
    groups: [u64; 3],
}

/// A hot window.
pub struct HotWindow {
    pub zone: u32,
    pub segment: u64,
    /// Number of the first cell's block in places.
    first: u32,
    pub cells: Vec<WindowCell>,
    pub free: Vec<u32>,
    /// Cells in the order of their writes, each with the number of its entry; some have other entries by now, or none.
    pub order: VecDeque<(u32, u64)>,
    /// Cells without references, in the order in which these ended. They are free when the entries that ended their references
    /// are durable.
    pub dead: VecDeque<DeadCell>,
    /// Number of the last cell that lost its references.
    pub deaths: u64,
    pub stage: WindowStage,
    /// Whether the first block of the zone is durable.
    pub has_header: bool,
    /// Whether the references of the cells are known: not those of a window of an earlier process.
    is_counted: bool,
    /// Blocks could not be moved out of the window when that was last tried.
    pub is_stuck: bool,
    /// Writes in flight, in order.
    pub flights: VecDeque<WindowWrite>,
    /// Numbers of writes that were begun, and that have landed.
    pub begun: u64,
    pub landed: u64,
}

impl HotWindow {
    pub fn new(zone: u32, segment: u64, capacity: u32, cells: u32) -> HotWindow {
        HotWindow {
            zone,
            segment,
            first: zone * capacity + 1,
            cells: (0..cells).map(|_| WindowCell::default()).collect(),
            free: (0..cells).rev().collect(),
            order: VecDeque::new(),
            dead: VecDeque::new(),
            deaths: 0,
            stage: WindowStage::Begun,
            has_header: false,
            is_counted: true,
            is_stuck: false,
            flights: VecDeque::new(),
            begun: 0,
            landed: 0,
        }
    }

    /// The window of an earlier process, with the cells that were found.
    pub fn recovered((zone, segment): (u32, u64), capacity: u32, found: Vec<Option<FoundCell>>) -> HotWindow {
        let mut window = HotWindow::new(zone, segment, capacity, found.len() as u32);
        (window.stage, window.has_header, window.is_counted) = (WindowStage::Ending, true, false);
        window.free.clear();
        for (cell, found) in (0..).zip(found) {
            if let Some(FoundCell { entry, bytes, .. }) = found {
                window.order.push_back((cell, entry.number));
                window.cells[cell as usize] = WindowCell { entry, bytes, ..WindowCell::default() };
            }
        }
        window
    }

    /// Its record in a root: the zone has a first block as soon as there may be cells.
    pub fn cut(&self) -> CutRecord {
        CutRecord { stream: WINDOW, zone: self.zone, offset: 1, written: self.has_header as u32 }
    }

    /// Whether its blocks are moved to the log.
    pub fn is_ending(&self) -> bool {
        self.stage == WindowStage::Ending
    }

    /// Number of cells in use.
    pub fn used(&self) -> u32 {
        self.cells.iter().filter(|cell| !cell.bytes.is_empty()).count() as u32
    }

    /// Entries of its cells from a number on, each with its place.
    pub fn entries(&self, number: u64) -> impl Iterator<Item = (GroupEntry, Address)> {
        let cells = (0..).zip(&self.cells).filter(move |(_, cell)| !cell.bytes.is_empty());
        let new = cells.filter(move |(_, cell)| cell.entry.number >= number);
        new.map(|(index, cell)| (cell.entry.entry(), self.place(index)))
    }

    /// The place of the block in a cell.
    pub fn place(&self, cell: u32) -> Address {
        (self.first + cell) as Address
    }

    /// The cell at a place; `None` if that is not in the window.
    pub fn cell_at(&self, place: Address) -> Option<u32> {
        let cell = address::block(place).checked_sub(self.first)?;
        (address::is_piece(place) && (cell as usize) < self.cells.len()).then_some(cell)
    }

    /// The block at a place; `None` if that is not in the window, or was lost.
    pub fn block_at(&self, place: Address) -> Option<&[u8]> {
        self.cells[self.cell_at(place)? as usize].bytes.get(BLOCK..)
    }

    /// Records that the map had a block at `before`, and has it at `now`; `streams` have the entry that changed it.
    pub fn moved(&mut self, (before, now): (Address, Address), streams: &[Stream; 3]) {
        if !self.is_counted {
            return;
        }
        if let Some(cell) = self.cell_at(before) {
            let references = &mut self.cells[cell as usize].references;
            assert!(*references > 0, "cell {cell} of the hot window loses a block, and has none");
            *references -= 1;
            if *references == 0 {
                self.add_dead(cell, streams);
            }
        }
        if let Some(cell) = self.cell_at(now) {
            self.cells[cell as usize].references += 1;
        }
    }

    fn add_dead(&mut self, cell: u32, streams: &[Stream; 3]) {
        self.deaths += 1;
        let groups = streams.each_ref().map(Stream::begun);
        self.dead.push_back(DeadCell { cell, number: self.deaths, groups });
    }

    /// The segment of the zone, and the number of the last dead cell which a flush that begins now makes free: the groups with
    /// the entries have landed. For [`HotWindow::flushed`].
    pub fn to_flush(&self, streams: &[Stream; 3]) -> (u64, u64) {
        let have_landed = |dead: &&DeadCell| {
            dead.groups.iter().zip(streams).all(|(groups, stream)| stream.landed() >= *groups)
        };
        (self.segment, self.dead.iter().take_while(have_landed).last().map_or(0, |dead| dead.number))
    }

    /// Frees dead cells after a flush has succeeded; [`HotWindow::to_flush`] had returned this before.
    pub fn flushed(&mut self, (segment, last): (u64, u64), streams: &[Stream; 3], pool: &mut BufPool) {
        if segment != self.segment {
            return;
        }
        while let Some(cell) = self.dead.front().filter(|dead| dead.number <= last).map(|dead| dead.cell) {
            self.dead.pop_front();
            match self.cells[cell as usize].in_flight {
                true => self.add_dead(cell, streams),
                false => self.release(cell, pool),
            }
        }
    }

    fn release(&mut self, cell: u32, pool: &mut BufPool) {
        let was = std::mem::take(&mut self.cells[cell as usize]);
        assert!(
            was.references == 0 && !was.in_flight,
            "cell {cell} of the hot window is freed while it is in use"
        );
        pool.give(was.bytes);
        self.free.push(cell);
    }

    /// Completes the oldest write in flight.
    pub fn land(&mut self, (cell, former): (u32, Option<u32>), streams: &[Stream; 3], pool: &mut BufPool) {
        self.landed += 1;
        self.cells[cell as usize].in_flight = false;
        match former {
            // The entry that has replaced it is durable.
            Some(former) if !self.cells[former as usize].in_flight => self.release(former, pool),
            Some(former) => self.add_dead(former, streams),
            None => {}
        }
    }

    /// Whether blocks are to be moved to the log: the window ends, or there are few free cells.
    pub fn has_moves(&self) -> bool {
        self.is_ending() || self.is_short()
    }

    /// Whether there are few free cells.
    pub fn is_short(&self) -> bool {
        self.free.len() * FREE_SHARE < self.cells.len()
    }

    /// Takes the next cells out of the order of writes that are in use, with their entries and contents.
    pub fn take_oldest(&mut self) -> Vec<(u32, CellHeader, Buf)> {
        let mut oldest = Vec::new();
        if self.order.is_empty() && self.stage == WindowStage::Ending {
            // A snapshot may have got a block between the search for it and its move.
            let cells = (0..).zip(&self.cells).filter(|(_, cell)| !cell.bytes.is_empty());
            self.order.extend(cells.map(|(index, cell)| (index, cell.entry.number)));
        }
        while oldest.len() < MOST_MOVED
            && let Some((cell, number)) = self.order.pop_front()
        {
            let WindowCell { entry, bytes, references, in_flight } = &self.cells[cell as usize];
            if entry.number != number || bytes.is_empty() || self.is_counted && *references == 0 {
                continue;
            }
            if *in_flight {
                self.order.push_front((cell, number));
                break;
            }
            oldest.push((cell, *entry, bytes.clone()));
        }
        oldest
    }
}

/// A cell that was found.
pub struct FoundCell {
    pub entry: CellHeader,
    pub bytes: Buf,
    /// Whether another copy that can be read has something else: a power cut has torn its last write.
    pub differs: bool,
}
