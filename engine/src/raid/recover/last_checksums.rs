//! The checksums of the blocks at the ends of members' zones, which are in no checksum block yet
//! ([`crate::adapt::checksum`]).
//!
//! When the array is closed they are logged, each on its member. After a crash they are lost, and the parity of the
//! stripes decides whether the blocks are right:
//!
//! - Partial parity is in the logs, whose records have checksums. The sum of the parities before and after a write is the
//!   sum of the blocks that it wrote at an offset: with one chunk, the block.
//! - A complete stripe that agrees with its parity is right. If it does not, two parities may show which block is wrong.
//!
//! Where it is not known which of several blocks is wrong, reading all of them fails. Blocks of a stripe of which too
//! much is missing for a comparison are believed.

use crate::{
    adapt::checksum::block::{WRONG_SUM, sum_of},
    buf::{BLOCK, Buf, BufMut, is_zero},
    code::{decode::Sum, xor},
    device::Completion,
    format::record::{LastChecksums, Record},
    raid::{
        events::Event,
        geometry::{Layout, ParityPlace, each, physical},
        io,
        parts::Raid,
        policy::{Policy, zrwa::ZrwaEvidence},
        recover::{
            judge,
            verdict::{RepairWrite, Tail, ZoneView},
        },
        zone::{consistency, relocated},
    },
    runtime::{self, COPY, give_way},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

/// Logs the checksums of the ends of zones on all members; nothing is written to the zones any more.
pub async fn remember(raid: &Raid) {
    let most = raid.membership.superblock().checksum_group_blocks as usize;
    if most == 0 {
        return;
    }
    for member in each(raid.members.active()) {
        // A log without room for the records begins anew with a checkpoint, which has none of them.
        for _ in 0..2 {
            let Some(log) = raid.members.log(member) else { break };
            let (generation, mut pending) = (log.generation(), Vec::new());
            for zone in raid.zones.all() {
                let Some((from, sums)) = log.device.last_sums(physical(zone)) else { continue };
                let epoch = raid.zone_records.epoch(zone);
                for (from, sums) in (from..).step_by(most).zip(sums.chunks(most)) {
                    let record = LastChecksums { zone: zone.0, epoch, from, sums: sums.to_vec() };
                    pending.push(raid.append(member, Record::Checksums(record)));
                }
            }
            for record in pending {
                // Without it the blocks are unverified, as after a crash.
                record.await;
            }
            if log.generation() == generation {
                break;
            }
        }
    }
}

/// Restores the logged checksums of the ends of members' parts of a zone in this epoch, and verifies blocks without
/// them, before the parts are judged.
pub async fn recall(raid: &Raid, view: &ZoneView<'_>) {
    if !raid.membership.superblock().has_checksum_blocks() {
        return;
    }
    for log in raid.members.logs() {
        let of_zone = (view.zone.0, 0)..=(view.zone.0, u64::MAX);
        for known in log.live.borrow().checksums.range(of_zone).map(|(_, known)| known) {
            if known.epoch == view.record.epoch {
                log.device.set_unverified(physical(view.zone), known.from, &known.sums);
            }
        }
        log.live.borrow_mut().checksums.retain(|(zone, _), _| *zone != view.zone.0);
    }
    // In a ZRWA, blocks that the logged parity covers may be missing. The slots of the tail decide there.
    if raid.layout.policy == Policy::Log {
        confirm_logged(raid, view).await;
    }
}

/// The unverified blocks of a member's part of a zone, from the first to the last.
fn unverified(raid: &Raid, zone: ZoneIndex, member: usize) -> Range<u64> {
    raid.members.log(member).map_or(0..0, |log| log.device.unverified(physical(zone)))
}

/// Sets the checksum of a block of a member's part of a zone that is unverified.
fn set(raid: &Raid, zone: ZoneIndex, member: usize, at: u64, sum: u32) {
    if let Some(log) = raid.members.log(member) {
        log.device.set_unverified(physical(zone), at, &[sum]);
    }
}

/// Verifies blocks of a zone by the partial parity in the logs.
async fn confirm_logged(raid: &Raid, view: &ZoneView<'_>) {
    let (layout, zone, epoch) = (&raid.layout, view.zone, view.record.epoch);
    if (0..layout.members).all(|member| unverified(raid, zone, member).is_empty()) {
        return;
    }
    // The logged parities P by stripe and offset, in the order of the chunks.
    let mut columns: BTreeMap<(u64, u64), Vec<(u64, Buf)>> = BTreeMap::new();
    for member in 0..layout.members {
        let Some(log) = raid.members.log(member) else { continue };
        let live = log.live.borrow();
        for (stripe, index, block) in live.parity.of_zone(zone.0, epoch) {
            if layout.slot_of(member, stripe, index) == Some(0)
                && let Some(parity) = live.parity.get(zone.0, epoch, stripe, index, block)
            {
                columns.entry((stripe, block)).or_default().push((index, parity.clone()));
            }
        }
    }
    for ((stripe, block), mut parities) in columns {
        parities.sort_by_key(|(index, _)| *index);
        assert!(stripe < layout.rows, "parity of stripe {stripe} of a zone with {} rows", layout.rows);
        let (mut first, mut before) = (0, None);
        for (last, parity) in parities {
            confirm_plan(raid, view, (stripe, block), first..last + 1, before.as_ref(), &parity).await;
            (first, before) = (last + 1, Some(parity));
        }
    }
}

/// Verifies the blocks of some chunks at one offset of a stripe: their sum is that of the logged parities `before` and
/// after them.
async fn confirm_plan(
    raid: &Raid,
    view: &ZoneView<'_>,
    (stripe, block): (u64, u64),
    chunks: Range<u64>,
    before: Option<&Buf>,
    parity: &Buf,
) {
    let (layout, zone) = (&raid.layout, view.zone);
    let at = stripe * layout.chunk_blocks + block;
    let (mut sum, mut unknown) = (BufMut::copy_of(parity), Vec::new());
    if let Some(before) = before {
        xor::xor_assign(&mut sum, before);
    }
    let one = chunks.end - chunks.start == 1;
    for index in chunks {
        let member = layout.member(stripe, index);
        let is_unverified = unverified(raid, zone, member).contains(&at);
        if one && is_unverified {
            return set(raid, zone, member, at, sum_of(&sum));
        }
        let end = view.info[member].map_or(0, |info| match info.state {
            ZoneState::Full => u64::MAX,
            state if state.is_active() => info.wp_blocks,
            _ => 0,
        });
        let data = match relocated::get(raid, zone, member, at) {
            Some(data) => data,
            None if !view.trusts(member) || !holds(raid, zone, member, at, end) => return,
            None => {
                let done = io::read(raid, member, zone, at, Buf::zeroed(BLOCK)).await;
                if done.result.is_err() {
                    return;
                }
                done.data
            }
        };
        xor::xor_assign(&mut sum, &data);
        if is_unverified {
            unknown.push((member, data));
        }
    }
    let is_right = is_zero(&sum);
    for (member, data) in unknown {
        set(raid, zone, member, at, if is_right { sum_of(&data) } else { WRONG_SUM });
    }
}

/// Rows that are read at once.
const ROWS_AHEAD: usize = 16;

/// Verifies the unverified blocks of a zone that ends at `tail`, at all offsets at which their stripe is complete; nothing
/// was written to the zone since its parts were judged. Corrects the running parities of the tail.
pub async fn confirm(raid: &Raid, zone: ZoneIndex, tail: &mut Tail) {
    let ranges = each(raid.live(zone)).map(|member| unverified(raid, zone, member));
    let ranges = ranges.filter(|range| !range.is_empty());
    let union = |all: Option<Range<u64>>, range: Range<u64>| {
        Some(all.map_or(range.clone(), |all| all.start.min(range.start)..all.end.max(range.end)))
    };
    let Some(blocks) = ranges.fold(None, union) else { return };
    let (chunk, stripe) = (raid.layout.chunk_blocks, raid.layout.stripe_blocks());
    // The stripe of the tail is complete at the offsets that the last data chunk has. In a ZRWA its parity is elsewhere.
    let last_chunk = match raid.layout.policy {
        Policy::Zrwa => 0,
        _ => (tail.blocks % stripe).saturating_sub(stripe - chunk),
    };
    let end = blocks.end.min(tail.blocks / stripe * chunk + last_chunk);
    let (mut next, mut contradictions) = (blocks.start, 0);
    let mut rows = VecDeque::new();
    loop {
        while next < end && rows.len() < ROWS_AHEAD {
            let to = end.min((next / chunk + 1) * chunk);
            rows.push_back(RowRead::begin(raid, zone, next..to));
            next = to;
        }
        let Some(row) = rows.pop_front() else { break };
        contradictions += row.confirm(raid, zone, tail).await;
    }
    if raid.layout.policy == Policy::Zrwa {
        contradictions += confirm_by_slots(raid, zone, tail).await;
    }
    if contradictions > 0 {
        raid.events.note(Event::Contradicts { zone: zone.0, offsets: contradictions });
    }
}

/// Verifies the blocks of the partial stripe of a tail in ZRWAs by its slots. Blocks that are wrong, or may be, are not
/// written back. Returns the number of offsets at which they contradict each other.
async fn confirm_by_slots(raid: &Raid, zone: ZoneIndex, tail: &mut Tail) -> u64 {
    let layout = &raid.layout;
    let (chunk, half) = (layout.chunk_blocks, layout.policy.position_blocks(layout));
    let (row, covered) = (tail.blocks / layout.stripe_blocks(), tail.blocks % layout.stripe_blocks());
    assert!(tail.blocks <= layout.capacity_blocks(), "a tail at {} of {layout:?}", tail.blocks);
    let wp = |member: usize| (raid.live(zone) & 1 << member != 0).then(|| tail.positions[member] * half);
    let evidence = ZrwaEvidence { wp_blocks: (0..layout.members).map(wp).collect(), told_blocks: None };
    let (mut record, info) = (raid.zone_records.record(zone), vec![None; layout.members]);
    let view = ZoneView {
        zone,
        record: &mut record,
        info,
        answered_blocks: 0,
        told_end: None,
        told_note: None,
        read_only: 0,
    };
    let (mut contradictions, mut wrong_blocks) = (0, BTreeSet::new());
    for offset in 0..chunk.min(covered) {
        let chunks = (covered - offset).div_ceil(chunk);
        assert!((1..=layout.data_chunks()).contains(&chunks), "{chunks} chunks of {layout:?}");
        let place = |index: u64| match index.checked_sub(layout.data_chunks()) {
            None => (index < chunks).then(|| (layout.member(row, index), row * chunk + offset)),
            Some(which) => {
                match judge::slot_place(raid, &view, (row, chunks - 1, which as usize), &evidence) {
                    (member, ParityPlace::Row(row)) => Some((member, row * chunk + offset)),
                    (_, ParityPlace::MetaLog) => None,
                }
            }
        };
        let places: Vec<_> = (0..layout.members as u64).map(place).collect();
        let unverified = |(member, at): (usize, u64)| unverified(raid, zone, member).contains(&at);
        if !places.iter().flatten().any(|place| unverified(*place)) {
            continue;
        }
        let mut column = judge::read_column(raid, &view, row, chunks, offset..offset + 1, &evidence).await;
        let agrees = column.agrees();
        let wrong = if agrees == Some(false) { column.take_wrong() } else { None };
        contradictions += u64::from(agrees == Some(false) && wrong.is_none());
        for (index, place) in places.iter().enumerate() {
            let Some((member, at)) = *place else { continue };
            let is_right = agrees != Some(false) || wrong.is_some_and(|wrong| wrong != index);
            match &column.found[index] {
                Some(block) if is_right && agrees.is_some() => set(raid, zone, member, at, sum_of(block)),
                _ if !is_right && evidence.wp_blocks[member].is_some() => {
                    set(raid, zone, member, at, WRONG_SUM);
                    wrong_blocks.insert((member, raid.members.start(member, zone).0 + at));
                }
                _ => {}
            }
        }
        for which in (0..layout.parities).filter(|_| agrees == Some(false)) {
            let parity = column.decode(Sum::parity(which, chunks as usize), layout.data_chunks());
            match parity.filter(|_| wrong.is_some()) {
                Some(parity) => tail.parities[which].block_mut(offset).copy_from_slice(&parity),
                None => _ = tail.found.contradicting.insert(offset),
            }
        }
    }
    tail.held =
        std::mem::take(&mut tail.held).into_iter().flat_map(|piece| without(piece, &wrong_blocks)).collect();
    contradictions
}

/// The parts of a write without some blocks of members.
fn without(write: RepairWrite, wrong: &BTreeSet<(usize, u64)>) -> Vec<RepairWrite> {
    let RepairWrite { member, lba, ref data, .. } = write;
    let is_right = |at: &u64| !wrong.contains(&(member, lba.0 + at));
    if (0..data.blocks()).all(|at| is_right(&at)) {
        return vec![write];
    }
    let part = |at: u64| RepairWrite {
        member,
        lba: Lba(lba.0 + at),
        data: data.slice_blocks(at..at + 1),
        oob: Buf::default(),
    };
    (0..data.blocks()).filter(is_right).map(part).collect()
}

/// Blocks of a row that are being read from all members that hold their parts.
struct RowRead {
    blocks: Range<u64>,
    reads: Vec<(usize, Completion)>,
}

impl RowRead {
    fn begin(raid: &Raid, zone: ZoneIndex, blocks: Range<u64>) -> RowRead {
        let chunk = raid.layout.chunk_blocks;
        assert!(
            blocks.start < blocks.end && (blocks.end - 1) / chunk == blocks.start / chunk,
            "blocks {blocks:?} of a row of {chunk} blocks"
        );
        let read = |member| {
            let buf = raid.pool.borrow_mut().take(blocks.end - blocks.start).freeze();
            (member, io::read(raid, member, zone, blocks.start, buf))
        };
        RowRead { reads: each(raid.live(zone)).map(read).collect(), blocks }
    }

    /// Verifies the blocks. Returns the number of offsets at which the stripe contradicts its parity.
    async fn confirm(self, raid: &Raid, zone: ZoneIndex, tail: &mut Tail) -> u64 {
        let (layout, blocks) = (&raid.layout, self.blocks);
        let mut parts: Vec<Vec<Option<Buf>>> = vec![Vec::new(); layout.members];
        // In a ZRWA, rows below the tail are behind the write pointers, too.
        let end = |member: usize| match layout.policy {
            Policy::Zrwa => u64::MAX,
            _ => tail.positions[member],
        };
        for (member, completion) in self.reads {
            let done = completion.await;
            for at in blocks.clone() {
                let offset = at - blocks.start;
                parts[member].push(match relocated::get(raid, zone, member, at) {
                    Some(found) => Some(found),
                    None if !holds(raid, zone, member, at, end(member)) => None,
                    None if done.result.is_ok() => Some(done.data.slice_blocks(offset..offset + 1)),
                    None => {
                        let one = io::read(raid, member, zone, at, Buf::zeroed(BLOCK)).await;
                        one.result.is_ok().then_some(one.data)
                    }
                });
            }
        }
        let row = blocks.start / layout.chunk_blocks;
        let mut contradictions = 0;
        for (offset, at) in (0..).zip(blocks) {
            let column: Vec<_> = parts.iter().map(|part| part.get(offset).cloned().flatten()).collect();
            runtime::work(layout.members as u32 * COPY);
            let is_right = consistency::is_consistent(layout, row, &column, 0..BLOCK, None);
            let wrong = match is_right {
                true => None,
                false => consistency::wrong_member(layout, row, &column, 0..BLOCK),
            };
            contradictions += u64::from(!is_right && wrong.is_none());
            for (member, block) in column.iter().enumerate() {
                let Some(block) = block else { continue };
                let is_right = is_right || wrong.is_some_and(|wrong| wrong != member);
                set(raid, zone, member, at, if is_right { sum_of(block) } else { WRONG_SUM });
            }
            if !is_right && row == tail.blocks / layout.stripe_blocks() {
                correct(layout, row, (&column, wrong), at % layout.chunk_blocks, tail);
            }
            give_way().await;
        }
        contradictions
    }
}

/// Replaces the running parities of a tail in stripe `row`, at one offset of a chunk, which were computed from a column
/// with a `wrong` member, by those of the others. If the wrong member is not known, nothing is decoded from them.
fn correct(
    layout: &Layout,
    row: u64,
    (column, wrong): (&[Option<Buf>], Option<usize>),
    offset: u64,
    tail: &mut Tail,
) {
    let is_corrected = wrong.is_some_and(|wrong| {
        (0..layout.parities).all(|which| {
            let target = tail.parities[which].block_mut(offset);
            consistency::parity_of_others(layout, (row, which), column, wrong, target)
        })
    });
    if !is_corrected {
        tail.found.contradicting.insert(offset);
    }
}

/// Whether a member's drive holds valid data in block `at` of its part of a zone, which is written up to block `end`: the
/// block is neither burned nor bad.
fn holds(raid: &Raid, zone: ZoneIndex, member: usize, at: u64, end: u64) -> bool {
    let records = &raid.zone_records;
    at < end && !records.is_burned(zone, member, at) && !records.has_bad_block(zone, member, at..at + 1)
}
