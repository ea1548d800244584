//! Cells: pairs of blocks that the host overwrites, in the ZRWAs of a zone which has its first blocks only.
//!
//! A zone of policy `zrwa` whose tail lies in its first chunk has slots and log blocks in a few rows of its ZRWAs. The
//! blocks of the other rows are cells, each on as many members as there are log blocks of a tail: one more than may be
//! lost. A cell is outside of the tail, so nothing but its content says whether it was written, and after a power cut its
//! copies may differ. Write pointers do not move, so overwriting costs no flash.
//!
//! A copy of a drive includes the cells, since it includes the whole ZRWA. A rebuild copies them from another member.

use crate::{
    buf::{BLOCK, Buf},
    device::{CELL_BLOCKS, Completion, DeviceError, Done, Status},
    raid::{Consistency, failures, geometry::Layout, io, parts::Raid, power, zone::flow::Zone},
    zone::ZoneIndex,
};
use std::rc::Rc;

/// Cells in a chunk of the rows before the first slots, and in one of the other rows. There the log blocks of later tails would
/// be at the start of a chunk: recovery would take a cell in their place for a damaged one.
fn in_chunks(layout: &Layout) -> [u64; 2] {
    let most = layout.chunk_blocks / CELL_BLOCKS;
    [most, most.saturating_sub(1)]
}

/// Cells with the same place on their members.
fn at_a_place(layout: &Layout) -> u64 {
    (layout.members / (layout.parities + 1)) as u64
}

/// Number of cells of a zone: they are in the rows 1 to `D` − 1, and between the later rows with slots of the first stripe.
fn count_of(layout: &Layout) -> u32 {
    let turns = layout.policy.rows_in_zrwa(layout.parities);
    if layout.rows < turns * layout.distance {
        return 0;
    }
    let [before, behind] = in_chunks(layout);
    ((layout.distance - 1) * (before + (turns - 1) * behind) * at_a_place(layout)) as u32
}

/// The members that have copies of a cell, and the first block of it in their parts of the zone.
fn place(layout: &Layout, cell: u32) -> (impl Iterator<Item = usize> + Clone + use<>, u64) {
    let ([before, behind], rows) = (in_chunks(layout), layout.distance - 1);
    let (place, index) = (cell as u64 / at_a_place(layout), cell as u64 % at_a_place(layout));
    let (row, in_chunk) = match place.checked_sub(rows * before) {
        None => (1 + place / before, place % before),
        // After `rows` rows there is one with slots.
        Some(place) => (layout.distance + 1 + place / behind + place / behind / rows, 1 + place % behind),
    };
    let (members, copies) = (layout.members as u64, layout.parities as u64 + 1);
    // The members without a cell at a place change, so that the cells are spread evenly.
    let first = place + index * copies;
    let on = (first..first + copies).map(move |member| (member % members) as usize);
    (on, row * layout.chunk_blocks + in_chunk * CELL_BLOCKS)
}

/// See [`crate::device::ZonedDevice::cells`].
pub fn count(raid: &Raid) -> u32 {
    if raid.has_cells && raid.behaviour.consistency == Consistency::WpLog {
        count_of(&raid.layout)
    } else {
        0
    }
}

/// Number of cells that a zone with a tail at `tail` may have: the tail has to lie in the first chunk.
fn count_at(raid: &Raid, tail: u64) -> u32 {
    if (1..raid.layout.chunk_blocks).contains(&tail) { count(raid) } else { 0 }
}

/// Number of cells that a running zone may have.
fn count_in(raid: &Raid, zone: &Zone) -> u32 {
    let flow = zone.flow.borrow();
    if flow.is_open() && !flow.is_ahead() { count_at(raid, flow.complete()) } else { 0 }
}

/// A write of a cell in flight.
struct CellFlight<'z>(&'z Zone);

impl Drop for CellFlight<'_> {
    fn drop(&mut self) {
        self.0.flow.borrow_mut().cells -= 1;
        self.0.changed.open();
    }
}

/// Waits until the zone is not paused, and counts a write of a cell.
///
/// # Errors
/// Zone Invalid Write if the zone has ended or has no cells.
async fn enter<'z>(raid: &Raid, zone: &'z Zone) -> Result<CellFlight<'z>, DeviceError> {
    loop {
        let changed = zone.changed.wait();
        if zone.flow.borrow().is_over() || count_in(raid, zone) == 0 {
            return Err(Status::ZoneInvalidWrite.into());
        }
        {
            let mut flow = zone.flow.borrow_mut();
            if flow.paused == 0 {
                flow.cells += 1;
                return Ok(CellFlight(zone));
            }
        }
        changed.await;
    }
}

/// See [`crate::device::ZonedDevice::write_cell`].
pub fn write(raid: &Rc<Raid>, zone: ZoneIndex, cell: u32, data: Buf) -> Completion {
    let running = raid.zones.running(zone).filter(|_| zone.0 < raid.geometry.zones);
    let is_cell = cell < count(raid) && data.len() == CELL_BLOCKS as usize * BLOCK;
    let Some(running) = running.filter(|_| is_cell) else {
        return Completion::failed(Status::InvalidField);
    };
    let (completer, completion) = raid.slots.pair();
    let array = raid.clone();
    raid.runtime.spawn(async move {
        let result = write_copies(&array, &running, cell, &data).await;
        completer.complete(Done { result, data, ..Done::ok() });
    });
    completion
}

/// Writes the copies of a cell, which are durable at the return.
async fn write_copies(raid: &Raid, zone: &Zone, cell: u32, data: &Buf) -> Result<(), DeviceError> {
    let _flight = enter(raid, zone).await?;
    let (members, at) = place(&raid.layout, cell);
    let live = raid.live(zone.index);
    let mut pending = Vec::new();
    for member in members.filter(|member| live & (1 << member) != 0) {
        let write = io::cell_command(raid, member, zone.index, at, data.clone(), true);
        pending.push((raid.members.seat(member), raid.members.submit(member, write)));
    }
    for (seat, completion) in pending {
        if let Err(error) = completion.await.result {
            failures::part_failed(raid, zone.index, seat, error, "cell");
        }
    }
    power::notices_power_loss(raid, raid.live(zone.index));
    raid.membership.settled().await;
    if raid.has_failed(zone.index) { Err(Status::ZoneIsReadOnly.into()) } else { Ok(()) }
}

/// See [`crate::device::ZonedDevice::read_cell`].
pub fn read(raid: &Raid, zone: ZoneIndex, cell: u32, copy: u32) -> Option<Completion> {
    if cell >= count(raid) || zone.0 >= raid.geometry.zones {
        return None;
    }
    let (mut members, at) = place(&raid.layout, cell);
    let member = members.nth(copy as usize)?;
    Some(match raid.live(zone) & (1 << member) {
        0 => Completion::failed(Status::UnrecoveredReadError),
        _ => read_copy(raid, zone, member, at),
    })
}

/// Reads the copy of a cell from block `at` of a member's part of a zone on. The layer above checks its content.
pub fn read_copy(raid: &Raid, zone: ZoneIndex, member: usize, at: u64) -> Completion {
    let data = Buf::zeroed(CELL_BLOCKS as usize * BLOCK);
    io::read_marked(raid, member, zone, at, data, Buf::default())
}

/// The cells that a zone with a tail at `tail` may have: the members with copies, and the first block of each in their parts.
pub fn all(raid: &Raid, tail: u64) -> impl Iterator<Item = (impl Iterator<Item = usize> + Clone, u64)> {
    let layout = raid.layout;
    (0..count_at(raid, tail)).map(move |cell| place(&layout, cell))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::{
        geometry::ParityPlace,
        policy::{Policy, zrwa::tail_slots},
    };
    use std::collections::BTreeSet;

    /// No two cells share blocks, none lies in the place of data, a slot or a log block of a tail in the first chunk, and
    /// each is on one member more than may be lost.
    #[test]
    fn cells_are_apart_from_tail_and_from_each_other() {
        for (parities, members) in [(1, 3), (1, 5), (1, 8), (2, 4), (2, 7)] {
            for distance in 1..=4 {
                let layout =
                    Layout { policy: Policy::Zrwa, members, parities, chunk_blocks: 4, rows: 40, distance };
                let mut used = BTreeSet::new();
                for covered in 1..4 {
                    used.insert((layout.member(0, 0), covered - 1));
                    for (which, part) in tail_slots(&layout, covered) {
                        let (member, place) = layout.slot(0, part.index, which);
                        let ParityPlace::Row(row) = place else { panic!("{place:?}") };
                        used.extend((part.from..part.to).map(|at| (member, row * 4 + at)));
                    }
                }
                for member in 0..members {
                    for tail in 1..layout.window_blocks() * layout.data_chunks() {
                        let log = layout.log_blocks_of(member, tail).into_iter().flatten();
                        used.extend(log.map(|at| (member, at)));
                    }
                }
                for cell in 0..count_of(&layout) {
                    let (copies, at) = place(&layout, cell);
                    assert_eq!(copies.clone().collect::<BTreeSet<_>>().len(), parities + 1);
                    assert!(at + CELL_BLOCKS <= layout.window_blocks());
                    for member in copies {
                        for block in at..at + CELL_BLOCKS {
                            assert!(used.insert((member, block)), "cell {cell} of {layout:?}");
                        }
                    }
                }
                let places = (distance - 1) * (2 + parities as u64);
                assert_eq!(count_of(&layout) as u64, places * (members / (parities + 1)) as u64);
            }
        }
    }
}
