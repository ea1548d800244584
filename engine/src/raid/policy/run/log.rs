//! Policy `log`: settling, recovery and burned blocks, as [`crate::raid::policy::log`] decides.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode::Sum,
    format::record::{BurnedRange, ParityRecord},
    raid::{
        durable,
        error::ArrayError,
        events::Event,
        geometry::{MAX_MEMBERS, MAX_PARITIES, ParityPlace, Role, each},
        parts::Raid,
        policy::{
            log::{LogEvidence, LogPart, SymbolLocation, data_end, decide, position},
            zrwa::{Refusal, tail_slots},
        },
        recover::{
            judge,
            verdict::{RepairWrite, Tail, Verdict, ZoneView},
        },
        zone::{
            checksum::{self, Expected},
            flow::{ParityMismatch, Round, Zone, blank_parities},
            relocated,
        },
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// See `Policy::settle`.
pub async fn settle(raid: &Raid, zone: &Zone, round: &Round) -> u64 {
    durable::barrier(raid, raid.live(zone.index)).await;
    if round.wanted { round.complete } else { 0 }
}

/// See `Policy::judge`. Records the blocks beyond the tail as burned.
pub async fn judge_log(raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
    for (member, info) in view.info.iter().enumerate().filter_map(|(m, info)| Some((m, info.as_ref()?))) {
        let burned = burned_of(raid, view.zone, view.record.epoch, member);
        // Relocated blocks may have been in the unreadable part of the member's log.
        let may_lack = !burned.is_empty() && judge::log_lacks_records(raid, view.zone, member);
        // Burned blocks had been written: a part that ends before them has been changed from outside of the array.
        if may_lack || burned.iter().any(|blocks| blocks.end > wp_of(raid, info)) {
            view.record.lost |= 1 << member;
        }
    }
    judge::check_ended(raid, view)?;
    let (layout, zone, record) = (&raid.layout, view.zone, *view.record);
    let trusted = |member: usize| record.lost & (1 << member) == 0;
    let present = || view.info.iter().enumerate().filter_map(|(m, info)| Some((m, info.as_ref()?)));
    let full = |info: &ZoneInfo| info.state == ZoneState::Full;
    let burned = raid.zone_records.burned().iter().any(|b| b.zone == zone.0);
    let all_full = present().all(|(m, info)| !trusted(m) || full(info));
    if all_full && (!burned || record.finished.is_some()) && present().any(|(m, _)| trusted(m)) {
        return Ok(Verdict::Full);
    }
    if record.finished == Some(0) {
        return Ok(Verdict::Finish(None));
    }
    let mut evidence = LogEvidence { told_blocks: view.answered_blocks, ..LogEvidence::default() };
    for (member, info) in view.info.iter().enumerate() {
        let trusted = info.as_ref().filter(|_| trusted(member));
        let part = trusted.map(|info| part_of(raid, zone, record.epoch, member, info));
        if part.is_some()
            && let Some(log) = raid.members.log(member)
        {
            let live = log.live.borrow();
            for (stripe, index, block) in live.parity.of_zone(zone.0, record.epoch) {
                let which = layout.slot_of(member, stripe, index);
                evidence.slots.extend(which.map(|which| (stripe, block, index, which)));
            }
        }
        evidence.parts.push(part);
    }
    let mut positions = [0; MAX_MEMBERS];
    for (position, part) in positions.iter_mut().zip(&evidence.parts) {
        *position = part.as_ref().map_or(0, |part| part.wp_blocks);
    }
    let mut blocks = match record.finished {
        Some(tail) => tail,
        // A block that a present member lacked ended the zone; if that member is missing now, the block may be
        // decoded. The end that was reported to the host is kept.
        None => decide(layout, &evidence)?.min(view.told_end.unwrap_or(u64::MAX)),
    };
    if record.finished.is_some() {
        // The finish has filled the members' zones beyond the tail.
        for (member, part) in evidence.parts.iter_mut().enumerate() {
            if let Some(part) = part {
                part.wp_blocks = part.wp_blocks.min(position(layout, member, blocks));
            }
        }
        // All data was on the members when the finish was logged.
        for (member, part) in evidence.parts.iter_mut().enumerate() {
            let end = data_end(layout, member, blocks);
            if part.take_if(|part| part.wp_blocks < end).is_some() {
                view.record.lost |= 1 << member;
            }
        }
        let (present, needed) = (evidence.parts.iter().flatten().count(), layout.fewest_members());
        if present < needed {
            return Err(Refusal::TooFew { present, members: layout.members, needed });
        }
    }
    let (held, (running, found)) = loop {
        match gather(raid, view, &mut evidence, blocks).await {
            // A read-only zone ends before the first missing parity, which was never acknowledged.
            Ok((held, _)) if view.read_only != 0 && !held.is_empty() => {
                // Start, in the zone, of the last data block that a missing parity block covers.
                let last = layout.stripe_blocks() - layout.chunk_blocks;
                let end = |held: &RepairWrite| {
                    let at = held.lba.0 - raid.members.start(held.member, zone).0;
                    at / layout.chunk_blocks * layout.stripe_blocks() + last + at % layout.chunk_blocks
                };
                blocks = held.iter().map(end).fold(blocks, u64::min);
            }
            Ok(found) => break found,
            Err(refusal) if record.finished.is_some() => return Err(refusal),
            // More blocks were found unreadable. Blocks that cannot be decoded were not promised, unless too many
            // of them are unreadable: then `decide` refuses.
            Err(refusal) => match decide(layout, &evidence)? {
                less if less < blocks => blocks = less,
                _ => return Err(refusal),
            },
        }
    };
    if record.finished.is_none() {
        check_bad_blocks(raid, zone, &evidence, blocks)?;
    }
    if blocks == 0 {
        let leftovers = present().any(|(m, info)| match info.state {
            ZoneState::Empty => !trusted(m),
            ZoneState::Offline | ZoneState::ReadOnly => false,
            _ => true,
        });
        return Ok(if leftovers { Verdict::Reset } else { Verdict::Empty });
    }
    if record.finished.is_none() && view.read_only == 0 {
        burn(raid, zone, record.epoch, &evidence, blocks);
    }
    if all_full && blocks == layout.capacity_blocks() && held.is_empty() {
        return Ok(Verdict::Full);
    }
    let (parities, lacks_parities) = (running, false);
    let tail = Tail { blocks, note: None, positions, parities, lacks_parities, found, revived: 0, held };
    Ok(if record.finished.is_some() { Verdict::Finish(Some(tail)) } else { Verdict::Open(tail) })
}

/// Missing parity of complete stripes below a tail at `tail_blocks`, and the running parity of the stripe of the
/// tail.
async fn gather(
    raid: &Raid,
    view: &ZoneView<'_>,
    evidence: &mut LogEvidence,
    tail_blocks: u64,
) -> Result<(Vec<RepairWrite>, ([BufMut; MAX_PARITIES], ParityMismatch)), Refusal> {
    let layout = &raid.layout;
    let mut held = Vec::new();
    // A copy of the parts: blocks that are found unreadable meanwhile are not lacking.
    for (member, part) in evidence.parts.clone().into_iter().enumerate() {
        let Some(part) = part else { continue };
        let is_lacking = |at: &u64| !part.holds(*at) && !part.unreadable.contains(at);
        for at in (part.whole()..position(layout, member, tail_blocks)).filter(is_lacking) {
            let (stripe, block) = (at / layout.chunk_blocks, at % layout.chunk_blocks);
            let role = layout.role(member, stripe);
            if !matches!(role, Role::Parity(_)) {
                continue;
            }
            let data = sum_of(raid, view, evidence, (stripe, block), layout.sum(role)).await?;
            let lba = Lba(raid.members.start(member, view.zone).0 + at);
            held.push(RepairWrite { member, lba, data, oob: Buf::default() });
        }
    }
    if tail_blocks == 0 {
        // Such a zone is reset, or empty: it has no running parity.
        return Ok((held, Default::default()));
    }
    let (mut running, mut differing) = (blank_parities(layout), ParityMismatch::default());
    let (stripe, covered) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
    for block in 0..layout.chunk_blocks.min(covered) {
        let chunks = (covered - block).div_ceil(layout.chunk_blocks);
        for (which, running) in running.iter_mut().enumerate().take(layout.parities) {
            let wanted = Sum::parity(which, chunks as usize);
            let computed = sum_of(raid, view, evidence, (stripe, block), wanted).await?;
            running.block_mut(block).copy_from_slice(&computed);
            let logged = logged(raid, view, (stripe, chunks - 1, which), block);
            differing.compare((which, block), logged.as_deref(), &computed);
        }
    }
    Ok((held, (running, differing)))
}

/// Refuses a tail if the next block is on a missing member and may have been written: the partial parity that
/// decodes it may have been in an unreadable part of another member's log.
fn check_bad_blocks(
    raid: &Raid,
    zone: ZoneIndex,
    evidence: &LogEvidence,
    tail_blocks: u64,
) -> Result<(), Refusal> {
    let layout = &raid.layout;
    let (stripe, at) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
    let (index, _) = layout.chunk_of(at);
    if stripe == layout.rows || evidence.parts[layout.member(stripe, index)].is_some() {
        return Ok(());
    }
    for last in index..layout.data_chunks() - 1 {
        // If as many intact logs as missing chunks hold no slots, none were written.
        let lacks = |chunk: &u64| evidence.parts[layout.member(stripe, *chunk)].is_none();
        let lacking = (0..=last).filter(lacks).count();
        let holders = (0..layout.parities).map(|which| layout.slot(stripe, last, which).0);
        let holders = holders.filter(|member| evidence.parts[*member].is_some());
        let (partial, whole): (Vec<_>, Vec<_>) =
            holders.partition(|member| judge::log_lacks_records(raid, zone, *member));
        if let Some(member) = partial.first().copied().filter(|_| whole.len() < lacking) {
            return Err(Refusal::Log { member });
        }
    }
    Ok(())
}

/// Evidence on a member's part of a zone, for which its drive reports `info`.
fn part_of(raid: &Raid, zone: ZoneIndex, epoch: u64, member: usize, info: &ZoneInfo) -> LogPart {
    let wp_blocks = wp_of(raid, info);
    let mut part = LogPart { wp_blocks, ..LogPart::default() };
    let burned = burned_of(raid, zone, epoch, member);
    part.gaps = burned.into_iter().flatten().filter(|at| *at < wp_blocks).collect();
    if let Some(log) = raid.members.log(member) {
        for (stripe, _, block) in log.live.borrow().relocated.of_zone(zone.0, epoch) {
            part.gaps.remove(&(stripe * raid.layout.chunk_blocks + block));
        }
    }
    part
}

/// End of the written blocks of a part for which its drive reports `info`.
fn wp_of(raid: &Raid, info: &ZoneInfo) -> u64 {
    let used_blocks = raid.layout.rows * raid.layout.chunk_blocks;
    match info.state {
        ZoneState::Full => used_blocks,
        ZoneState::Empty => 0,
        _ => info.wp_blocks.min(used_blocks),
    }
}

/// The burned blocks of a member's part of a zone.
fn burned_of(raid: &Raid, zone: ZoneIndex, epoch: u64, member: usize) -> Vec<Range<u64>> {
    let burned = raid.zone_records.burned();
    let own = burned.iter().filter(|b| (b.zone, b.epoch, b.member as usize) == (zone.0, epoch, member));
    own.map(|b| b.from..b.to).collect()
}

/// Records the blocks that members hold beyond a tail at `tail_blocks` as burned.
fn burn(raid: &Raid, zone: ZoneIndex, epoch: u64, evidence: &LogEvidence, tail_blocks: u64) {
    for (member, part) in evidence.parts.iter().enumerate() {
        let Some(part) = part else { continue };
        let (from, to) = (position(&raid.layout, member, tail_blocks), part.wp_blocks);
        if from < to {
            raid.zone_records.burn(BurnedRange { zone: zone.0, member: member as u32, epoch, from, to });
        }
    }
}

/// Computes a sum of the data at `block` of a stripe, all of which is present or can be decoded. Blocks that cannot
/// be read are recorded in `evidence`, and decoded.
async fn sum_of(
    raid: &Raid,
    view: &ZoneView<'_>,
    evidence: &mut LogEvidence,
    (stripe, block): (u64, u64),
    wanted: Sum,
) -> Result<Buf, Refusal> {
    let layout = &raid.layout;
    'again: loop {
        let column = evidence.column(layout, stripe, block);
        let Some(recipe) = column.solve(wanted) else {
            let present = evidence.parts.iter().flatten().count();
            return Err(Refusal::TooFew { present, members: layout.members, needed: layout.members });
        };
        let mut blocks = Vec::new();
        for source in recipe.sources() {
            let (member, at) = match column.stored[source.stored as usize] {
                SymbolLocation::Slot(index, which) => {
                    let Some(slot) = logged(raid, view, (stripe, index, which), block) else {
                        evidence.slots.remove(&(stripe, block, index, which));
                        continue 'again;
                    };
                    blocks.push(slot);
                    continue;
                }
                SymbolLocation::Row(index) => {
                    (layout.member(stripe, index), stripe * layout.chunk_blocks + block)
                }
            };
            if let Some(found) = relocated::get(raid, view.zone, member, at) {
                blocks.push(found);
                continue;
            }
            let block = Buf::zeroed(BLOCK);
            let read = checksum::read(raid, member, view.zone, at, Expected::Row, block).await;
            let is_whole = !raid.zone_records.has_bad_block(view.zone, member, at..at + 1);
            let Some(data) = read.result.ok().filter(|()| is_whole).map(|()| read.data) else {
                if let Some(part) = &mut evidence.parts[member] {
                    part.unreadable.insert(at);
                }
                continue 'again;
            };
            blocks.push(data);
        }
        let mut result = BufMut::zeroed(BLOCK);
        recipe.run(&mut result, &blocks);
        return Ok(result.freeze());
    }
}

/// Block of the slot of chunk `index` for parity number `which`; `None` if it is not in the log.
fn logged(
    raid: &Raid,
    view: &ZoneView<'_>,
    (stripe, index, which): (u64, u64, usize),
    block: u64,
) -> Option<Buf> {
    let (member, _) = raid.layout.slot(stripe, index, which);
    let log = raid.members.log(member)?;
    let live = log.live.borrow();
    live.parity.get(view.zone.0, view.record.epoch, stripe, index, block).map(|data| Buf::copy_of(data))
}

/// Drops the contents of the logs that no zone needs, so that they are not in the checkpoints of this assembly:
/// partial parity of blocks beyond a tail would be wrong later. Adds the slots that decode the tails with any
/// member missing.
pub fn keep_of_logs(raid: &Raid, verdicts: &[(ZoneIndex, Verdict)]) -> Result<(), ArrayError> {
    let layout = &raid.layout;
    let (mut tails, mut offline) = (BTreeMap::new(), BTreeSet::new());
    for (zone, verdict) in verdicts {
        match verdict {
            Verdict::ReadOnly(_) | Verdict::Offline(_) => _ = offline.insert(zone.0),
            Verdict::Open(tail) | Verdict::Finish(Some(tail)) => _ = tails.insert(zone.0, Some(tail)),
            Verdict::Full => _ = tails.insert(zone.0, None),
            Verdict::Empty | Verdict::Reset | Verdict::Finish(None) => {}
        }
    }
    let is_present = |zone: u32, epoch: u64| {
        raid.zone_records.records().get(zone as usize).is_some_and(|record| record.epoch == epoch)
    };
    let of_zone = |zone: u32, epoch: u64| tails.get(&zone).filter(|_| is_present(zone, epoch));
    // All records of an offline zone may be needed.
    let in_doubt = |zone: u32, epoch: u64| offline.contains(&zone) && is_present(zone, epoch);
    // A lost part is rebuilt without relocated blocks.
    let is_lost = |b: &BurnedRange| raid.zone_records.record(ZoneIndex(b.zone)).lost & (1 << b.member) != 0;
    raid.zone_records
        .retain_burned(|b| in_doubt(b.zone, b.epoch) || of_zone(b.zone, b.epoch).is_some() && !is_lost(b));
    for member in 0..raid.members.count() {
        let Some(log) = raid.members.log(member) else { continue };
        let mut live = log.live.borrow_mut();
        live.parity.retain(|zone, epoch, stripe, index, block| {
            if in_doubt(zone, epoch) {
                return true;
            }
            let Some(Some(tail)) = of_zone(zone, epoch) else { return false };
            let lacking = tail.held.iter().map(|held| {
                (held.lba.0 - raid.members.start(held.member, ZoneIndex(zone)).0) / layout.chunk_blocks
            });
            let first = lacking.min().unwrap_or(u64::MAX).min(tail.blocks / layout.stripe_blocks());
            let at = stripe * layout.stripe_blocks() + index * layout.chunk_blocks + block;
            stripe >= first && at < tail.blocks
        });
        live.relocated.retain(|zone, epoch, stripe, _, block| {
            let at = stripe * layout.chunk_blocks + block;
            // A lost part is rebuilt without relocated blocks.
            let lacks = raid.zone_records.lost(ZoneIndex(zone)) & (1 << member) != 0;
            in_doubt(zone, epoch)
                || match of_zone(zone, epoch).filter(|_| !lacks) {
                    Some(Some(tail)) => at < position(layout, member, tail.blocks),
                    Some(None) => true,
                    None => false,
                }
        });
        for (zone, tail) in tails.iter().filter_map(|(zone, tail)| Some((*zone, (*tail)?))) {
            let epoch = raid.zone_records.record(ZoneIndex(zone)).epoch;
            let (stripe, covered) =
                (tail.blocks / layout.stripe_blocks(), tail.blocks % layout.stripe_blocks());
            for (which, part) in tail_slots(layout, covered) {
                if layout.slot(stripe, part.index, which) != (member, ParityPlace::MetaLog) {
                    continue;
                }
                let bytes = part.from as usize * BLOCK..part.to as usize * BLOCK;
                let data = Buf::copy_of(&tail.parities[which][bytes]);
                let (index, from) = (part.index as u32, part.from as u32);
                let record = ParityRecord { zone, epoch, stripe, index, from, data };
                live.parity.add(&record, layout.chunk_blocks);
            }
        }
    }
    bound_burned(raid, &offline)
}

/// Bounds the room of relocated blocks in the logs. If those of a member could take more than half of the free room
/// of its log, the member loses parts of zones, which are rebuilt without relocated blocks. If no part can be
/// spared, they may take all of the room.
///
/// # Errors
/// The log is too small for them.
fn bound_burned(raid: &Raid, offline: &BTreeSet<u32>) -> Result<(), ArrayError> {
    for member in each(raid.members.active()) {
        let room = relocated::log_room(raid, member);
        loop {
            let mut of_zones = relocated::log_blocks_taken(raid, member);
            let taken = of_zones.values().sum::<u64>();
            if taken <= room / 2 {
                break;
            }
            // As long as they fit, a zone that already lacks a part loses no other.
            let can_spare = |parts: u32| match taken <= room {
                true => parts.count_ones() as usize == raid.members.count(),
                false => !raid.members.are_needed(parts),
            };
            of_zones.retain(|zone, _| can_spare(raid.live(ZoneIndex(*zone))) && !offline.contains(zone));
            let Some((zone, _)) = of_zones.into_iter().max_by_key(|(_, blocks)| *blocks) else {
                if taken <= room {
                    break;
                }
                return Err(ArrayError::LogIsFull { member });
            };
            raid.zone_records.change(ZoneIndex(zone), |record| record.lost |= 1 << member);
            raid.events.note(Event::PartDisplaced { member, zone });
            relocated::unburn(raid, ZoneIndex(zone), member);
        }
    }
    Ok(())
}
