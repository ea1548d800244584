//! Loads the state of a zone into the zone table, from its verdict.

use crate::{
    raid::{parts::Raid, recover::verdict::Verdict, zone::flow::Zone},
    zone::{ZoneIndex, ZoneInfo, ZoneState},
};
use std::rc::Rc;

/// Loads a zone into the zone table, with the state that follows from a verdict.
pub fn load(raid: &Raid, zone: ZoneIndex, verdict: &Verdict) {
    let (state, wp_blocks) = state_of(raid, verdict);
    load_as(raid, zone, state, wp_blocks);
    if let Verdict::ReadOnly(tail) = verdict {
        // A failed zone, which can be read.
        let running = Zone::new(&raid.layout, zone, raid.zone_records.epoch(zone));
        let parities = (&tail.parities, tail.lacks_parities);
        let (ends, note) = (tail.positions, tail.note.clone());
        running.flow.borrow_mut().restore_read_only(tail.blocks, ends, parities, tail.revived, note);
        running.failed.set(true);
        raid.zones.start(Rc::new(running));
    }
}

/// Loads a zone into the zone table, with this state and write pointer.
pub fn load_as(raid: &Raid, zone: ZoneIndex, state: ZoneState, wp_blocks: u64) {
    let capacity_blocks = raid.layout.capacity_blocks();
    assert!(wp_blocks <= capacity_blocks, "zone {} ends at {wp_blocks} of {capacity_blocks}", zone.0);
    raid.zones.load(&ZoneInfo { zone, state, wp_blocks, capacity_blocks, zrwa: false });
}

/// State and write pointer (blocks) that the host sees of a zone with this verdict.
pub fn state_of(raid: &Raid, verdict: &Verdict) -> (ZoneState, u64) {
    match verdict {
        Verdict::Empty | Verdict::Reset => (ZoneState::Empty, 0),
        Verdict::Full | Verdict::Finish(_) => (ZoneState::Full, raid.layout.capacity_blocks()),
        Verdict::Open(tail) if tail.blocks == raid.layout.capacity_blocks() => (ZoneState::Full, tail.blocks),
        Verdict::Open(tail) => (ZoneState::Closed, tail.blocks),
        Verdict::ReadOnly(tail) => (ZoneState::ReadOnly, tail.blocks),
        Verdict::Offline(_) => (ZoneState::Offline, 0),
    }
}
