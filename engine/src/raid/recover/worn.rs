//! Recovery of zones with read-only parts.
//!
//! A read-only part of a zone counts as lost while the others are enough, so that the zone can be written. Otherwise
//! the part counts, and the zone of the array becomes read-only: like an offline zone it is not changed, but it is
//! read. This is as exact as recovery without wear:
//!
//! - A part that is not marked as lost holds all promised data, since nothing is acknowledged without the part before
//!   the mark is durable, and the contents of a read-only zone do not change. The policy determines the tail.
//! - A zone that becomes read-only may lose the contents of its ZRWA, always as a whole: they read as zeros. So a part
//!   with nothing but zeros above its write pointer is cut at the write pointer. If all records of a promised tail may
//!   have been there, the zone is *curtailed*: the status says that not everything in it can be read.
//! - Drives may report any write pointer for a read-only zone, and usually report that of a full one. So the reported
//!   write pointer counts only below the end; at the end, the other parts show whether the zone is full. Reads above
//!   the tail of a read-only zone fail instead of returning zeros.

use crate::{
    format::record::{Record, TailRecord},
    raid::{
        durable,
        geometry::ParityPlace,
        parts::Raid,
        policy::{Policy, run::inplace, zrwa::Refusal},
        recover::{
            judge::{self, is_in_doubt},
            revive,
            verdict::{Tail, Verdict, ZoneView},
        },
    },
    zone::{UNKNOWN_WP, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};

/// As [`judge::judge`](crate::raid::recover::judge::judge), for a zone that may have read-only parts: these are used if the other parts are not enough.
pub async fn judge_worn(raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
    let found = view.info.clone();
    count_read_only(raid, view).await;
    let verdict = match judge::judge(raid, view).await {
        Ok(Verdict::Open(tail) | Verdict::Finish(Some(tail))) if view.read_only != 0 => {
            if may_lack_end(raid, view, tail.blocks).await {
                raid.zones.curtail(view.zone);
            }
            Ok(Verdict::ReadOnly(Tail { revived: tail.revived | view.read_only, ..tail }))
        }
        // Nothing promised is in the zone, which cannot be written.
        Ok(Verdict::Empty | Verdict::Reset | Verdict::Finish(None)) if view.read_only != 0 => {
            Err(Refusal::ReadOnly)
        }
        verdict => verdict,
    };
    if !matches!(verdict, Ok(Verdict::ReadOnly(_))) {
        raid.zones.unstick(&(view.zone.0..view.zone.0 + 1));
    }
    let is_sound = |(member, info): &(usize, &ZoneInfo)| view.trusts(*member) && !is_worn(info.state);
    let is_frail = match &verdict {
        // Without a part that shows it, recovery does not know that the zone is full.
        Ok(Verdict::Full) => {
            let parts = (0..).zip(&found).filter_map(|(member, info)| Some((member, info.as_ref()?)));
            parts.filter(is_sound).count() <= raid.layout.parities
        }
        // With fewer parts, too many may have lost marks of blocks above the tail.
        Ok(Verdict::ReadOnly(_)) => raid.layout.policy.uses_marks(),
        _ => false,
    };
    if is_frail && view.read_only != 0 {
        raid.zones.note_frail(view.zone);
    }
    view.info = found;
    verdict
}

/// Uses read-only parts if the other parts are not enough: the view then describes them as if they were writable.
async fn count_read_only(raid: &Raid, view: &mut ZoneView<'_>) {
    if !view.present().any(|(_, info)| info.state == ZoneState::ReadOnly) {
        return;
    }
    let (policy, superblock) = (raid.layout.policy, raid.membership.superblock().clone());
    let used_blocks = raid.layout.rows * raid.layout.chunk_blocks;
    let is_sound = |info: &ZoneInfo| !is_worn(info.state) && !is_in_doubt(info);
    let trusted = || view.present().filter(|(member, _)| view.trusts(*member));
    let sound: Vec<ZoneState> =
        trusted().filter(|(_, info)| is_sound(info)).map(|(_, info)| info.state).collect();
    let are = |state| !sound.is_empty() && sound.iter().all(|of| *of == state);
    let (are_full, are_empty) = (are(ZoneState::Full), are(ZoneState::Empty));
    // The write pointer of a read-only aggregate, or of a zone written by appends in groups, is not exact.
    let is_exact = superblock.group_blocks <= 1 && superblock.aggregate <= 1;
    let may_be_full = are_full || superblock.parities == 0 && is_exact;
    let counted: Vec<(usize, ZoneInfo)> = trusted()
        .filter(|(_, info)| info.state == ZoneState::ReadOnly)
        .filter_map(|(member, info)| {
            let state = match info.wp_blocks {
                UNKNOWN_WP => return None,
                wp_blocks if wp_blocks >= used_blocks => may_be_full.then_some(ZoneState::Full)?,
                0 if are_empty => ZoneState::Empty,
                _ if is_exact => ZoneState::Closed,
                _ => return None,
            };
            let zrwa = state == ZoneState::Closed && policy.uses_zrwa();
            Some((member, ZoneInfo { state, zrwa, ..*info }))
        })
        .collect();
    let needed = raid.layout.fewest_members();
    if view.record.resetting || sound.len() >= needed || sound.len() + counted.len() < needed {
        return;
    }
    for (member, info) in counted {
        let window = info.wp_blocks..used_blocks.min(info.wp_blocks + raid.layout.window_blocks());
        if info.zrwa && revive::is_blank(raid, view.zone, member, window).await != Some(false) {
            raid.zones.cut_part(view.zone, member, info.wp_blocks);
        }
        view.read_only |= 1 << member;
        view.info[member] = Some(info);
    }
}

/// Whether promised blocks above a tail may have been lost with the ZRWAs of read-only parts: all records of a
/// longer tail would have been there, and no other part shows that nothing was written above. Only reads.
async fn may_lack_end(raid: &Raid, view: &ZoneView<'_>, tail_blocks: u64) -> bool {
    let (layout, zone, chunk) = (&raid.layout, view.zone, raid.layout.chunk_blocks);
    if view.record.finished.is_some() || !raid.zones.is_cut(zone) || layout.policy != Policy::Zrwa {
        return false;
    }
    let keeps = |member: usize, end: u64| {
        view.trusts(member) && view.info[member].is_some() && raid.zones.is_uncut(zone, member, end)
    };
    let is_unwritten = async |member: usize, at: u64| {
        keeps(member, at + 1) && revive::is_blank(raid, zone, member, at..at + 1).await == Some(true)
    };
    let (first, covered) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
    for stripe in first..layout.rows.min(first + 2 * layout.distance + 1) {
        let (next, offset) = layout.chunk_of(if stripe == first { covered } else { 0 });
        if is_unwritten(layout.member(stripe, next), stripe * chunk + offset).await {
            return false;
        }
        let (mut members, place) = layout.log(stripe);
        let has_log = match place {
            ParityPlace::MetaLog => true,
            ParityPlace::Row(row) => members.any(|member| keeps(member, row * chunk + 2)),
        };
        if !has_log {
            return true;
        }
        // A tail in a later stripe comes with all chunks of this one.
        for index in next..layout.data_chunks() {
            if is_unwritten(layout.member(stripe, index), stripe * chunk + chunk - 1).await {
                return false;
            }
        }
    }
    false
}

/// Logs the tail of a read-only zone, if the next recovery would not find it: it may be known from the tails of a
/// process that died. With the policy `log`, write pointers show it.
pub async fn record_end(raid: &Raid, zone: ZoneIndex, tail: &Tail) {
    let (policy, at_start) = (raid.layout.policy, tail.positions.iter().all(|position| *position == 0));
    // With the policy `zrwa` and all write pointers at the start, a record alone would mean that ZRWAs were lost.
    if !policy.uses_zrwa() || policy == Policy::Zrwa && at_start {
        return;
    }
    let epoch = raid.zone_records.epoch(zone);
    let newest = inplace::newest_tail(raid, zone, epoch);
    if newest.is_some_and(|newest| newest.tail_blocks >= tail.blocks) {
        return;
    }
    let generation = newest.map_or(0, |newest| newest.generation);
    let record = TailRecord { zone: zone.0, generation, epoch, tail_blocks: tail.blocks };
    let sequence = raid.membership.next_sequence();
    let record = match &tail.note {
        Some(note) => Record::Note(record, note.clone()),
        None => Record::Tail(record),
    };
    durable::broadcast(raid, record, sequence).await;
}
