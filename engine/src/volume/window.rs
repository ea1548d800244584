//! The hot window: blocks that are overwritten often lie in the cells of a zone ([`ZonedDevice::cells`]), where
//! overwriting them costs no flash.
//!
//! A write to the window is an entry of the log like any other, with a number, and the map points to its cell. The cell
//! has the entry, the checksum of the block, and the block. No cell with a valid version is overwritten: a block that is
//! written again gets another cell, and the former one is used again when the newer entry is durable. So recovery takes
//! the entries of all cells into account, in the order of their numbers, and a torn cell is one that was not acknowledged.
//! When cells are rare, the blocks that were written least recently are moved to the log like those of a victim of
//! garbage collection. All blocks of the window are in memory.
//!
//! The root names the zone of the window as the cut of the stream [`WINDOW`]. A window ends with its process: the next one
//! moves its blocks to the log, and begins another window when it is worth a zone.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{CELL_BLOCKS, Command, Completion, DeviceError, Status, ZonedDevice},
    runtime::{COPY, work},
    volume::{
        address::{Address, GRAINS, Unit},
        core::{Need, VolumeCore},
        format::{CellHeader, FANOUT, GroupEntry, GroupPlace, HeaderPlace, read_cell, seal_cell, seal_group},
        gc,
        hot_window::{FoundCell, HotWindow, RecentWrites, WindowCell, WindowStage, WindowWrite},
        root::WINDOW,
        space::ZonePurpose,
        state::VolumeState,
    },
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Most writes in progress with which blocks are written to the window: it takes a command of two blocks on each of several
/// members for each block, where the log joins writes to groups.
const MOST_WRITERS: u32 = 8;

/// Cells that are read at a time.
const MOST_READS: usize = 64;

impl VolumeState {
    /// Whether a block is to be written to the window, if that has a free cell. The page of the block may be unknown.
    fn belongs_in_window(&mut self, block: u64) -> bool {
        let Some(recent) = &mut self.recent else { return false };
        let is_soon = recent.add(block);
        let Some(window) = self.window.as_ref().filter(|window| window.stage == WindowStage::Used) else {
            return false;
        };
        is_soon || self.map.get(block).is_some_and(|place| window.cell_at(place).is_some())
    }

    /// Writes a block to a cell; returns the number of the write. `None` if there is no free cell, or no room. The page of
    /// the block has to be known.
    fn put_in_window(
        &mut self,
        device: &dyn ZonedDevice,
        volume: u64,
        block: u64,
        data: &[u8],
    ) -> Option<u64> {
        if !self.may_write() || !self.has_room(block, (Unit::BLOCK, GRAINS), false, None) {
            return None;
        }
        let number = self.next_number;
        let window = self.window.as_mut().filter(|window| window.stage == WindowStage::Used)?;
        let cell = window.free.pop()?;
        let entry = CellHeader { number, block: block as u32 };
        let mut bytes = self.pool.take(CELL_BLOCKS);
        bytes[BLOCK..].copy_from_slice(data);
        seal_cell(&mut bytes, (volume, window.segment, cell), entry);
        let bytes = bytes.freeze();
        let (place, zone, deaths) = (window.place(cell), window.zone, window.deaths);
        window.cells[cell as usize] =
            WindowCell { entry, bytes: bytes.clone(), references: 0, in_flight: true };
        window.order.push_back((cell, number));
        self.apply(block, entry.entry().kind, place);
        self.next_number += 1;
        self.written.user += 1;
        self.written.window += 1;
        work(CELL_BLOCKS as u32 * COPY);
        let window = self.window.as_mut()?;
        // If the version before was in a cell, and nothing else has it, that cell is free when this write has landed.
        let has_former = window.dead.back().is_some_and(|dead| dead.number > deaths);
        let former = has_former.then(|| window.dead.pop_back()).flatten().map(|dead| dead.cell);
        let completion = device.write_cell(ZoneIndex(zone), cell, bytes);
        window.flights.push_back(WindowWrite { cell, former, completion });
        window.begun += 1;
        Some(window.begun)
    }

    /// Whether a window is worth a zone, and there is one.
    fn wants_window(&self) -> bool {
        let is_worth = self.recent.as_ref().is_some_and(RecentWrites::are_worth_a_window);
        self.window.is_none() && is_worth && self.space.available() > self.space.low_mark() + 1
    }
}

/// Prepares for windows on a device with cells, if that may have another active zone.
pub fn prepare(core: &VolumeCore) {
    let geometry = core.device.geometry();
    let limits = [geometry.max_open, geometry.max_active].into_iter().filter(|limit| *limit > 0);
    let mut state = core.state.borrow_mut();
    let active = state.space.plan().active();
    if limits.min().is_none_or(|limit| active < limit) {
        state.recent = Some(RecentWrites::new());
    }
}

/// Writes a block to the window, durably; `false` if it is not to be there.
///
/// # Errors
/// Those of the device, after which nothing can be written any more, and of the block's page of the map.
pub async fn write(core: &VolumeCore, block: u64, data: &Buf) -> Result<bool, DeviceError> {
    if core.writers.get() > MOST_WRITERS {
        return Ok(false);
    }
    if !core.state.borrow_mut().belongs_in_window(block) {
        if core.state.borrow().wants_window() {
            core.window_changed.open();
        }
        return Ok(false);
    }
    core.hold((block / FANOUT) as u32, Need::Write).await?;
    let number = core.state.borrow_mut().put_in_window(&*core.device, core.mark, block, data);
    if core.state.borrow().window.as_ref().is_some_and(HotWindow::has_moves) {
        core.window_changed.open();
    }
    core.cell_submitted.open();
    let Some(number) = number else { return Ok(false) };
    wait_landed(core, number).await?;
    Ok(true)
}

/// Waits until the write to the window with this number has landed.
async fn wait_landed(core: &VolumeCore, number: u64) -> Result<(), DeviceError> {
    loop {
        {
            let state = core.state.borrow();
            if state.window.as_ref().is_none_or(|window| window.landed >= number) {
                return Ok(());
            }
            if let Some(error) = state.failed {
                return Err(error);
            }
        }
        core.cell_landed.wait().await;
    }
}

/// Waits until the writes to the window that were begun before this call have landed.
pub async fn settle(core: &VolumeCore) -> Result<(), DeviceError> {
    let begun = core.state.borrow().window.as_ref().map(|window| window.begun);
    match begun {
        Some(begun) => wait_landed(core, begun).await,
        None => Ok(()),
    }
}

/// Task: completes writes to the window, until writing fails.
pub async fn land(core: Rc<VolumeCore>) {
    loop {
        let submitted = core.cell_submitted.wait();
        let flight = core.state.borrow_mut().window.as_mut().and_then(|window| window.flights.pop_front());
        let Some(WindowWrite { cell, former, completion }) = flight else {
            submitted.await;
            if core.check().is_err() {
                return;
            }
            continue;
        };
        if core.must(completion.await).is_err() {
            return;
        }
        let has_moves = {
            let mut state = core.state.borrow_mut();
            let VolumeState { window, streams, pool, .. } = &mut *state;
            // It does not end before all of its writes have landed.
            window.iter_mut().for_each(|window| window.land((cell, former), streams, pool));
            window.as_ref().is_some_and(HotWindow::has_moves)
        };
        core.cell_landed.open();
        if has_moves {
            core.window_changed.open();
        }
    }
}

/// The next step of a window.
enum WindowStep {
    Rest,
    Begin,
    /// Moves blocks to the log.
    Move,
    End,
}

/// Task: begins and ends windows, and moves blocks out of them, until writing fails.
pub async fn keep(core: Rc<VolumeCore>) {
    let mut has_moved = true;
    loop {
        let changed = core.window_changed.wait();
        let result = match next_step(&core) {
            WindowStep::Begin => begin(&core).await,
            WindowStep::End => end(&core).await,
            WindowStep::Move if has_moved => {
                let moved = move_oldest(&core).await;
                has_moved = moved == Ok(true);
                moved.map(drop)
            }
            WindowStep::Move | WindowStep::Rest => {
                changed.await;
                has_moved = true;
                Ok(())
            }
        };
        if result.is_err() && core.check().is_err() {
            return;
        }
    }
}

fn next_step(core: &VolumeCore) -> WindowStep {
    let state = core.state.borrow();
    // As with garbage collection, nothing is written before the first write of a user.
    if !core.is_used.get() || state.failed.is_some() {
        return WindowStep::Rest;
    }
    match &state.window {
        None if state.wants_window() => WindowStep::Begin,
        Some(window) if window.is_ending() => {
            let is_over = window.begun == window.landed;
            match is_over && gc::live_in(&state, window.zone, window.segment) == 0 {
                true => WindowStep::End,
                false => WindowStep::Move,
            }
        }
        Some(window) if window.stage == WindowStage::Used && window.is_short() => WindowStep::Move,
        _ => WindowStep::Rest,
    }
}

/// Begins a window: its zone gets a group without entries, and a durable root names it.
async fn begin(core: &VolumeCore) -> Result<(), DeviceError> {
    let (zone, header) = {
        let mut state = core.state.borrow_mut();
        let Some(zone) = state.space.begin(ZonePurpose::Writer) else { return Ok(()) };
        let segment = state.space.zone(zone).record.segment;
        let cells = core.device.cells().min(core.capacity() - 1);
        state.window = Some(HotWindow::new(zone, segment, core.capacity(), cells));
        let mut header = BufMut::zeroed(BLOCK);
        let place = GroupPlace { volume: core.mark, segment, offset: 0, stream: WINDOW };
        seal_group(&mut header, place, HeaderPlace::HeaderFirst(1, GRAINS), state.next_number, 0);
        state.written.headers += 1;
        (zone, header.freeze())
    };
    let start = core.device.geometry().start(ZoneIndex(zone));
    core.must(core.device.submit(Command::write(Lba(start.0), header, true)).await)?;
    if let Some(window) = &mut core.state.borrow_mut().window {
        window.has_header = true;
    }
    core.request_checkpoint().await?;
    if let Some(window) = &mut core.state.borrow_mut().window
        && window.stage == WindowStage::Begun
    {
        window.stage = WindowStage::Used;
    }
    core.room.open();
    Ok(())
}

/// Ends a window in which nothing is live; the next checkpoint frees its zone.
async fn end(core: &VolumeCore) -> Result<(), DeviceError> {
    {
        let mut state = core.state.borrow_mut();
        let Some(window) = state.window.take() else { return Ok(()) };
        state.space.close(window.zone);
    }
    core.few.open();
    core.request_checkpoint().await?;
    core.room.open();
    Ok(())
}

/// Moves the blocks that were written least recently to the log, and frees their cells; `false` if that frees none.
async fn move_oldest(core: &VolumeCore) -> Result<bool, DeviceError> {
    let (oldest, segment, before) = {
        let mut state = core.state.borrow_mut();
        let VolumeState { window, space, .. } = &mut *state;
        let Some(window) = window else { return Ok(false) };
        let before = (window.free.len(), space.zone(window.zone).record.live);
        (window.take_oldest(), window.segment, before)
    };
    if core.kin.get().is_some() {
        // As in garbage collection: otherwise a recovery could find the move without the Keep entry.
        core.flush_device().await?;
    }
    let (mut result, mut holders, mut left) = (Ok(()), Vec::new(), Vec::new());
    let index = gc::moved_stream(core);
    for (cell, entry, bytes) in oldest {
        let mut moved = match result {
            // No other block would find room.
            Err(DeviceError::Status(Status::CapacityExceeded)) => result,
            _ => wait_for_credit(core).await,
        };
        let place = core.state.borrow().window.as_ref().map_or(0, |window| window.place(cell));
        let name = entry.block;
        match (name as u64) < core.blocks.get() {
            true => gc::find_holders(core, (name, &entry.entry()), place, &mut holders).await,
            // The volume has been shrunk.
            false => holders.clear(),
        }
        for &block in &holders {
            if moved.is_ok() {
                moved = gc::move_piece(core, (block, name.into()), (place, segment), &bytes[BLOCK..]).await;
            }
        }
        if moved.is_err() {
            core.check()?;
            // The page of the block cannot be read, or there is no room: it stays.
            left.push((cell, entry.number));
            result = moved;
        }
    }
    core.launch(index, true);
    let closed = core.state.borrow().streams[index].closed();
    core.wait_landed((index, closed)).await?;
    core.flush_device().await?;
    let mut state = core.state.borrow_mut();
    let VolumeState { window, space, .. } = &mut *state;
    let Some(window) = window else { return Ok(false) };
    let (free, live) = (window.free.len(), space.zone(window.zone).record.live);
    let is_last = window.order.is_empty();
    window.order.extend(left);
    let has_moved = free > before.0 || live < before.1;
    // Cells of an earlier process may be of versions that are not live any more.
    let goes_on = has_moved || window.is_ending() && !is_last;
    window.is_stuck = window.is_ending() && !goes_on;
    drop(state);
    core.room.open();
    core.note_writes();
    result.map(|()| goes_on)
}

/// Waits until writers have credit, and takes that of a block; not if the window ends, which frees a zone.
async fn wait_for_credit(core: &VolumeCore) -> Result<(), DeviceError> {
    loop {
        core.check()?;
        let room = core.room.wait();
        {
            let mut state = core.state.borrow_mut();
            if state.window.as_ref().is_none_or(HotWindow::is_ending) {
                return Ok(());
            }
            if state.may_write() && state.space.may_begin(ZonePurpose::Writer) {
                state.spend(1);
                return Ok(());
            }
        }
        core.few.open();
        room.await;
    }
}

/// Ends the window, as its zone is needed; whether that may make room.
pub fn give_up(core: &VolumeCore) -> bool {
    let mut state = core.state.borrow_mut();
    state.recent = None;
    let Some(window) = state.window.as_mut().filter(|window| !window.is_stuck) else { return false };
    if window.stage != WindowStage::Begun {
        window.stage = WindowStage::Ending;
    }
    drop(state);
    core.window_changed.open();
    core.room.open();
    true
}

/// Numbers of entries that are not used after a start with a window: a copy of a cell that could not be read now may have one
/// of them, which was not acknowledged, and may be read later.
const SKIPPED_NUMBERS: u64 = 1 << 32;

/// Recovers the window of an earlier process. A cell whose copies differ gets the newest version in all of them: a root that
/// has it would be wrong without the member with that copy. Returns the entries from a number on, each with its place, and
/// whether a cell was written.
///
/// # Errors
/// Those of the device.
pub async fn recover(
    core: &VolumeCore,
    (zone, segment): (u32, u64),
    from: u64,
) -> Result<(Vec<(GroupEntry, Address)>, bool), DeviceError> {
    let cells = read_cells(&*core.device, (core.mark, zone, segment), core.capacity()).await?;
    let mut is_written = false;
    // A device that is only looked at has no cells to be written.
    for (cell, found) in (0..core.device.cells()).zip(&cells) {
        if let Some(found) = found.as_ref().filter(|found| found.differs) {
            core.must(core.device.write_cell(ZoneIndex(zone), cell, found.bytes.clone()).await)?;
            is_written = true;
        }
    }
    let window = HotWindow::recovered((zone, segment), core.capacity(), cells);
    let entries = window.entries(from).collect();
    let mut state = core.state.borrow_mut();
    state.window = Some(window);
    state.next_number += SKIPPED_NUMBERS;
    Ok((entries, is_written))
}

/// Reads the cells of a window: of each the newest valid copy, and `None` where there is none.
///
/// # Errors
/// When the device is gone, or no copy of a cell is valid and one cannot be read at present.
async fn read_cells(
    device: &dyn ZonedDevice,
    (volume, zone, segment): (u64, u32, u64),
    capacity: u32,
) -> Result<Vec<Option<FoundCell>>, DeviceError> {
    let mut found = Vec::new();
    let submit = |cell: u32| {
        let copies = (0..).map_while(move |copy| device.read_cell(ZoneIndex(zone), cell, copy));
        (cell, copies.collect::<Vec<Completion>>())
    };
    let mut all = (0..capacity - 1).map(submit).take_while(|(_, copies)| !copies.is_empty());
    loop {
        let some: Vec<_> = all.by_ref().take(MOST_READS).collect();
        if some.is_empty() {
            return Ok(found);
        }
        for (cell, copies) in some {
            let (mut contents, mut unread) = (Vec::new(), Ok(()));
            for copy in copies {
                let done = copy.await;
                match done.result {
                    Ok(()) => contents.push(done.data),
                    Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                    Err(DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock)) => {}
                    Err(error) => unread = Err(error),
                }
            }
            let read = |bytes: &Buf| Some((read_cell(bytes, (volume, segment, cell))?, bytes.clone()));
            let newest = contents.iter().filter_map(read).max_by_key(|(entry, _)| entry.number);
            if newest.is_none() {
                unread?;
            }
            found.push(newest.map(|(entry, bytes)| {
                let differs = contents.iter().any(|other| other[..] != bytes[..]);
                FoundCell { entry, bytes, differs }
            }));
        }
    }
}
