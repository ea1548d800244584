//! Logical blocks whose data is in given blocks of a zone: those that are lost with them.

use crate::{
    evidence::read_verified,
    runtime::give_way,
    volume::{
        address::{self, Address},
        core::{Need, VolumeCore},
        format::{FANOUT, GroupHeader, MOST_BEFORE},
        root::ZoneUse,
        state::VolumeState,
    },
    zone::{Lba, ZoneIndex},
};
use std::{collections::BTreeSet, ops::Range};

/// The logical blocks, or pages of their addresses, in a range of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBlocks {
    /// Numbers of the logical blocks.
    pub blocks: BTreeSet<u64>,
    /// Whether there may be more of them: a group header or a page of the map cannot be read, or will be lost when it
    /// leaves memory.
    pub may_be_more: bool,
}

/// The logical blocks whose pieces or addresses are in blocks `ranges` of a zone.
pub async fn stored_in(core: &VolumeCore, zone: u32, ranges: &[Range<u32>]) -> StoredBlocks {
    let used = {
        let state = core.state.borrow();
        state.space.zones().find(|(number, _)| *number == zone).map(|(_, record)| record.state)
    };
    match used {
        Some(ZoneUse::Data | ZoneUse::ClosedData) => in_groups(core, zone, ranges).await,
        Some(ZoneUse::Map | ZoneUse::ClosedMap) => in_pages(core, zone, ranges).await,
        None | Some(ZoneUse::Free | ZoneUse::Lost) => StoredBlocks::default(),
    }
}

/// Of a zone of the map. As long as a page or a block of the directory is in memory, nothing is lost with it.
async fn in_pages(core: &VolumeCore, zone: u32, ranges: &[Range<u32>]) -> StoredBlocks {
    let is_there = |state: &VolumeState, place: Address| {
        let (at, offset) = state.space.locate(place);
        place != 0 && at == zone && ranges.iter().any(|range| range.contains(&offset))
    };
    let mut stored = StoredBlocks::default();
    let pages = core.pages_at(is_there).await;
    let state = core.state.borrow();
    for page in pages {
        let first = page as u64 * FANOUT;
        match state.map.is_here(page) {
            true => stored.may_be_more = true,
            false => stored.blocks.extend(first..core.blocks.get().min(first + FANOUT)),
        }
    }
    stored.may_be_more |= state.directory.iter().any(|place| is_there(&state, *place));
    stored
}

/// Of a zone with groups.
async fn in_groups(core: &VolumeCore, zone: u32, ranges: &[Range<u32>]) -> StoredBlocks {
    let mut stored = StoredBlocks::default();
    let segment = core.state.borrow().space.zone(zone).record.segment;
    let start = core.device.geometry().start(ZoneIndex(zone)).0;
    let (mut at, end) = (0, ranges.iter().map(|range| range.end).max().unwrap_or(0));
    while at < end && core.state.borrow().space.zone(zone).record.segment == segment {
        let mut header = core.state.borrow().streams.iter().find_map(|stream| stream.pending_at(zone, at));
        for before in 0..=MOST_BEFORE.min(core.capacity() - 1 - at) {
            if header.is_some() {
                break;
            }
            let verify = |block: &[u8]| core.group_at(block, segment, (at, before));
            let lba = Lba(start + (at + before) as u64);
            header = read_verified(&*core.device, lba, verify).await.unwrap_or_default();
        }
        let written = core.state.borrow().space.zone(zone).ends_at.unwrap_or(core.capacity());
        let Some(header) = header.or_else(|| core.trailer_in_note(zone, segment, (at, written))) else {
            stored.may_be_more = true;
            return stored;
        };
        add_group(core, (zone, at), &header, ranges, &mut stored).await;
        at += header.blocks;
        give_way().await;
    }
    stored
}

/// Adds the logical blocks that a group at offset `at` of a zone has in the ranges.
async fn add_group(
    core: &VolumeCore,
    (zone, at): (u32, u32),
    header: &GroupHeader,
    ranges: &[Range<u32>],
    stored: &mut StoredBlocks,
) {
    let (start, mut holders) = (zone * core.capacity(), Vec::new());
    for (name, entry, place) in header.pieces(start + at) {
        let offset = address::block(place) - start;
        let piece = offset..offset + address::blocks(place);
        let is_in_range = ranges.iter().any(|range| piece.start < range.end && range.start < piece.end);
        if !is_in_range || entry.block as u64 >= core.blocks.get() {
            continue;
        }
        core.holders(name.into(), entry.block.into(), &mut holders);
        for first in holders.iter().filter(|first| **first < core.blocks.get()) {
            match core.hold((first / FANOUT) as u32, Need::Read).await {
                Ok(()) => {
                    let there = core.state.borrow_mut().there(*first, place);
                    let blocks = (0..16).filter(|index| there >> index & 1 == 1);
                    stored.blocks.extend(blocks.map(|index| first + index));
                }
                Err(_) => stored.may_be_more = true,
            }
        }
    }
}
