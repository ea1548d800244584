//! Logical blocks whose data is in given blocks of a zone: those that are lost with them.

use crate::{
    evidence::read_verified,
    runtime::give_way,
    volume::{
        address,
        core::{Need, VolumeCore},
        format::{EntryKind, FANOUT, GroupHeader, ZoneUse, read_group},
    },
    zone::{Lba, ZoneIndex},
};
use std::{collections::BTreeSet, ops::Range};

/// The logical blocks, or pages of their addresses, in a range of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBlocks {
    /// Numbers of the logical blocks.
    pub blocks: BTreeSet<u64>,
    /// Whether there may be more of them: a group header or a page of the map cannot be read.
    pub may_be_more: bool,
}

/// The logical blocks whose pieces, or whose addresses if they are not in memory, are in blocks `range` of a zone.
pub async fn stored_in(core: &VolumeCore, zone: u32, range: Range<u32>) -> StoredBlocks {
    let used = {
        let state = core.state.borrow();
        state.space.zones().find(|(number, _)| *number == zone).map(|(_, record)| record.state)
    };
    match used {
        Some(ZoneUse::Data | ZoneUse::ClosedData) => in_groups(core, zone, range).await,
        Some(ZoneUse::Map | ZoneUse::ClosedMap) => in_pages(core, zone, range),
        None | Some(ZoneUse::Free | ZoneUse::Lost) => StoredBlocks::default(),
    }
}

/// Of a zone of the map.
fn in_pages(core: &VolumeCore, zone: u32, range: Range<u32>) -> StoredBlocks {
    let state = core.state.borrow();
    let lost = |place| {
        let (at, offset) = state.space.locate(place);
        place != 0 && at == zone && range.contains(&offset)
    };
    let pages = (0u32..).zip(state.map.directory());
    let pages = pages.filter(|(page, place)| lost(**place) && !state.map.is_here(*page));
    let blocks = pages.flat_map(|(page, _)| {
        let first = page as u64 * FANOUT;
        first..core.identity.blocks.min(first + FANOUT)
    });
    // The addresses of pages are in memory, and the next checkpoint may not write them again.
    let may_be_more = state.directory.iter().any(|place| lost(*place));
    StoredBlocks { blocks: blocks.collect(), may_be_more }
}

/// Of a zone with groups.
async fn in_groups(core: &VolumeCore, zone: u32, range: Range<u32>) -> StoredBlocks {
    let mut stored = StoredBlocks::default();
    let segment = core.state.borrow().space.zone(zone).record.segment;
    let start = core.device.geometry().start(ZoneIndex(zone)).0;
    let mut at = 0;
    while at < range.end && core.state.borrow().space.zone(zone).record.segment == segment {
        let verify = |block: &[u8]| {
            let header = read_group(block)?;
            (header.place.segment == segment && header.is_at(core.mark, at, core.capacity()))
                .then_some(header)
        };
        let header = read_verified(&*core.device, Lba(start + at as u64), verify).await;
        let Ok(Some(header)) = header else {
            stored.may_be_more = true;
            return stored;
        };
        if at + header.blocks > range.start {
            add_group(core, (zone, at), &header, &range, &mut stored).await;
        }
        at += header.blocks;
        give_way().await;
    }
    stored
}

/// Adds the logical blocks that a group at offset `at` of a zone has in the range.
async fn add_group(
    core: &VolumeCore,
    (zone, at): (u32, u32),
    header: &GroupHeader,
    range: &Range<u32>,
    stored: &mut StoredBlocks,
) {
    let mut from = 0;
    for entry in &header.entries {
        let EntryKind::Data { unit, grains, .. } = entry.kind else { continue };
        let place = core.state.borrow().space.piece(zone, at + 1, from, (unit, grains));
        let offset = at + 1 + from / address::GRAINS;
        from += grains;
        let is_in_range = offset < range.end && offset + address::blocks(place) > range.start;
        if !is_in_range || entry.block as u64 >= core.identity.blocks {
            continue;
        }
        match core.hold((entry.block as u64 / FANOUT) as u32, Need::Read).await {
            Ok(()) => {
                let there = core.state.borrow_mut().there(entry.block.into(), place);
                let blocks = (0..16).filter(|index| there >> index & 1 == 1);
                stored.blocks.extend(blocks.map(|index| entry.block as u64 + index));
            }
            Err(_) => stored.may_be_more = true,
        }
    }
}
