//! Whether a zone can be read, by the rules that reads follow ([`super::read`]).

use crate::{
    raid::{
        geometry::{ChunkRange, each},
        parts::Raid,
        zone::stripe,
    },
    zone::ZoneIndex,
};
use std::collections::BTreeSet;

/// Whether every block below the tail of a zone can be read, as far as is known without reading.
pub fn is_readable(raid: &Raid, zone: ZoneIndex) -> bool {
    let (layout, tail, live) = (&raid.layout, raid.tail(zone), raid.live(zone));
    let gaps = raid.zone_records.unreadable.gaps().into_iter().filter(|gap| gap.zone == zone.0);
    let unreadable: BTreeSet<(usize, u64)> = gaps.map(|gap| (gap.member, gap.from)).collect();
    let bad_blocks =
        raid.zone_records.bad_blocks().all().into_iter().filter(|bad_block| bad_block.zone == zone.0);
    let of_bad_blocks = bad_blocks.flat_map(|bad_block| bad_block.from..bad_block.to);
    let rows = unreadable.iter().map(|(_, at)| *at).chain(of_bad_blocks).map(|at| at / layout.chunk_blocks);
    // Rows below `first` can be read, unless they have unreadable blocks or bad blocks, or are partial.
    let kept = each(live).map(|member| stripe::kept_end(raid, zone, member)).min().unwrap_or(0);
    let first = if raid.members.are_enough(live) { kept / layout.chunk_blocks } else { 0 };
    let end = tail.div_ceil(layout.stripe_blocks());
    let partial = tail / layout.stripe_blocks();
    let rows: BTreeSet<u64> = rows.chain([partial]).filter(|row| *row < end.min(first)).collect();
    (rows.into_iter().chain(first..end))
        .all(|stripe| is_stripe_readable(raid, zone, stripe, tail, &unreadable))
}

/// Whether every block of a stripe below the tail of its zone can be read, without `unreadable` blocks (member,
/// block of its part).
fn is_stripe_readable(
    raid: &Raid,
    zone: ZoneIndex,
    stripe: u64,
    tail: u64,
    unreadable: &BTreeSet<(usize, u64)>,
) -> bool {
    let layout = &raid.layout;
    let covered = (tail - stripe * layout.stripe_blocks()).min(layout.stripe_blocks());
    let partial = raid.zones.running(zone).and_then(|running| {
        let flow = running.flow.borrow();
        let (tail, is_in_memory) = flow.partial_stripe((stripe + 1) * layout.stripe_blocks())?;
        // Parities that cover incomplete blocks decode nothing.
        Some((tail <= flow.complete(), is_in_memory))
    });
    (0..layout.chunk_blocks.min(covered)).all(|block| {
        let holds = |index: u64| {
            let member = layout.member(stripe, index);
            let piece = ChunkRange { stripe, index, from: block, to: block + 1 };
            stripe::has_piece(raid, zone, member, piece)
                && !unreadable.contains(&(member, stripe * layout.chunk_blocks + block))
        };
        let chunks = (covered - block).div_ceil(layout.chunk_blocks);
        let lacking = (0..chunks).filter(|index| !holds(*index)).count();
        let parities = match partial {
            Some((false, _)) => 0,
            Some((true, true)) => layout.parities,
            _ => (layout.data_chunks()..layout.members as u64).filter(|index| holds(*index)).count(),
        };
        lacking <= parities
    })
}
