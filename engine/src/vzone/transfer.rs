//! Reads and writes of groups: one command for each physical zone, however many units of it a request has.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    device::{Command, Completion, DeviceError},
    vzone::{core::NamespaceCore, shape::GroupShape},
};
use std::ops::Range;

/// A read or write of a physical zone in flight, a part of a request.
pub(super) struct GroupTransfer {
    completion: Completion,
    shape: GroupShape,
    /// The range of the group that the request covers.
    range: Range<u64>,
    /// Offset of that range in the request, in blocks.
    at: u64,
    /// Index of the zone in the group.
    part: u32,
    zone: u32,
    /// Whether the command uses the buffer of the request, or a slice of it, and not one of its own.
    whole: bool,
}

/// A range of one group that a request covers.
pub(super) struct GroupRange<'z> {
    pub shape: GroupShape,
    pub zones: &'z [u32],
    pub range: Range<u64>,
    /// Offset of the range in the request, in blocks.
    pub at: u64,
}

impl GroupRange<'_> {
    /// The physical zone in which the range begins, and the offset of the data block in it.
    pub fn first(&self) -> Option<(u32, u64)> {
        let (_, zone, piece) = self.parts().next()?;
        Some((zone, piece.start))
    }

    /// The zones that the range touches: index in the group, number of the physical zone, and range of its data blocks.
    fn parts(&self) -> impl Iterator<Item = (u32, u32, Range<u64>)> {
        let pieces = self.shape.pieces(&self.range);
        pieces.filter_map(|(part, piece)| Some((part, *self.zones.get(part as usize)?, piece)))
    }
}

/// Byte ranges, in the buffer of a request, of the blocks of zone `part`, run by run. The request covers `range` of the
/// group from its block `at` on.
fn places(
    shape: GroupShape,
    range: &Range<u64>,
    at: u64,
    part: u32,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let start = range.start;
    shape.runs(part, shape.piece(part, range)).map(move |(position, blocks)| {
        let from = (at + position - start) as usize * BLOCK;
        from..from + blocks as usize * BLOCK
    })
}

/// Submits the reads of a range. The zones are not reset before they have completed. `data` is moved to the command if
/// there is only one.
pub fn begin_read(
    core: &NamespaceCore,
    stretch: &GroupRange<'_>,
    data: &mut Buf,
    flights: &mut Vec<GroupTransfer>,
) {
    let blocks = stretch.range.end - stretch.range.start;
    let mut submitted = 0;
    for (part, zone, piece) in stretch.parts() {
        submitted += piece.end - piece.start;
        let whole = piece.end - piece.start == blocks && data.blocks() == blocks;
        let buf = match whole {
            true => std::mem::take(data),
            false => core.take_buffer(piece.end - piece.start).freeze(),
        };
        let completion = core.device.submit(Command::read(core.lba(zone, piece.start), buf));
        core.arbiter.borrow_mut().pin(zone);
        flights.push(GroupTransfer { completion, part, zone, whole, ..stretch.flight() });
    }
    assert_eq!(submitted, blocks, "blocks that zones of a group are asked for, and blocks to be read");
}

/// Waits for reads, and copies their data into `data`; returns the first error.
pub async fn end_read(
    core: &NamespaceCore,
    data: &mut Buf,
    flights: &mut Vec<GroupTransfer>,
) -> Result<(), DeviceError> {
    let mut result = Ok(());
    for flight in flights.drain(..) {
        let GroupTransfer { completion, shape, range, at, part, zone, whole } = flight;
        let done = completion.await;
        if core.arbiter.borrow_mut().unpin(zone) {
            core.work.open();
        }
        result = result.and(done.result);
        if whole {
            *data = done.data;
            continue;
        }
        if let (Ok(()), Some(target)) = (done.result, data.as_mut()) {
            let mut from = 0;
            for place in places(shape, &range, at, part) {
                let len = place.len();
                target[place].copy_from_slice(&done.data[from..from + len]);
                from += len;
            }
        }
        core.give_buffer(done.data);
    }
    result
}

/// Submits the writes of a range from its part of `data`.
pub fn begin_write(
    core: &NamespaceCore,
    stretch: &GroupRange<'_>,
    data: &Buf,
    fua: bool,
    flights: &mut Vec<GroupTransfer>,
) {
    let mut submitted = 0;
    for (part, zone, piece) in stretch.parts() {
        let blocks = piece.end - piece.start;
        submitted += blocks;
        let mut places = places(stretch.shape, &stretch.range, stretch.at, part);
        let first = places.next().unwrap_or_default();
        let whole = first.len() == blocks as usize * BLOCK;
        let buf = match whole {
            true => data.slice(first),
            false => gather(core, blocks, data, std::iter::once(first).chain(places)).freeze(),
        };
        let completion = core.device.submit(Command::write(core.lba(zone, piece.start), buf, fua));
        flights.push(GroupTransfer { completion, part, zone, whole, ..stretch.flight() });
    }
    let blocks = stretch.range.end - stretch.range.start;
    assert_eq!(submitted, blocks, "blocks that zones of a group are given, and blocks to be written");
}

/// Copies parts of `data` to a buffer of `blocks` blocks.
fn gather(
    core: &NamespaceCore,
    blocks: u64,
    data: &Buf,
    places: impl Iterator<Item = Range<usize>>,
) -> BufMut {
    let (mut buf, mut to) = (core.take_buffer(blocks), 0);
    for place in places {
        let len = place.len();
        buf[to..to + len].copy_from_slice(&data[place]);
        to += len;
    }
    buf
}

/// Waits for writes; returns the first error.
pub async fn end_write(core: &NamespaceCore, flights: &mut Vec<GroupTransfer>) -> Result<(), DeviceError> {
    let mut result = Ok(());
    for flight in flights.drain(..) {
        let done = flight.completion.await;
        result = result.and(done.result);
        if !flight.whole {
            core.give_buffer(done.data);
        }
    }
    result
}

impl GroupRange<'_> {
    /// Template of the commands of the range, with their common fields.
    fn flight(&self) -> GroupTransfer {
        GroupTransfer {
            completion: Completion::ready(crate::device::Done::ok()),
            shape: self.shape,
            range: self.range.clone(),
            at: self.at,
            part: 0,
            zone: 0,
            whole: false,
        }
    }
}
