//! Notes: bytes of the host that a zone keeps with its tail, in the log blocks of this tail.
//!
//! Such a tail lies inside a chunk, so no write pointer shows it, and recovery finds it by a log block: with the note. A
//! write with a note is a plan of its own, and is acknowledged when it is safe, so a process that died has acknowledged no
//! tail whose note was not logged.

use crate::{
    buf::Buf,
    format::record::{MOST_NOTE_BYTES, Record, TailRecord},
    raid::{Consistency, geometry::ParityPlace, parts::Raid, zone::flow::Zone},
    zone::{Lba, ZoneIndex},
};

/// See [`crate::device::ZonedDevice::note_room`].
pub fn room(raid: &Raid, lba: Lba, blocks: u64) -> usize {
    let (layout, (zone, at)) = (&raid.layout, raid.geometry.locate(lba));
    let is_kept = raid.keeps_notes
        && raid.behaviour.consistency == Consistency::WpLog
        && zone.0 < raid.geometry.zones
        && at + blocks < layout.capacity_blocks();
    if !is_kept || blocks == 0 {
        return 0;
    }
    let (of_first, of_next) = (layout.chunk_of(at).0, layout.chunk_of(at + blocks).0);
    let is_in_zone = matches!(layout.log(of_first / layout.data_chunks()).1, ParityPlace::Row(_));
    if of_first == of_next && is_in_zone { MOST_NOTE_BYTES } else { 0 }
}

/// See [`crate::device::ZonedDevice::note`].
pub fn note(raid: &Raid, zone: ZoneIndex) -> Option<Buf> {
    let running = raid.zones.running(zone)?;
    let flow = running.flow.borrow();
    flow.is_idle().then(|| flow.note_of(flow.complete()).cloned()).flatten()
}

/// The record of a tail for log blocks: with its note, if it has one. Drops the notes of earlier tails.
pub fn record(zone: &Zone, tail: TailRecord) -> Record {
    let mut flow = zone.flow.borrow_mut();
    flow.drop_notes_before(tail.tail_blocks);
    match flow.note_of(tail.tail_blocks) {
        Some(note) => Record::Note(tail, note.clone()),
        None => Record::Tail(tail),
    }
}
