//! Policy `zrwa`: settling, finishing and recovery, as [`crate::raid::policy::zrwa`] decides.

use crate::{
    buf::{BLOCK, Buf, BufMut, is_uniform, is_zero},
    code::decode::Sum,
    device::Status,
    format::{
        codec::RecordError,
        record::{Record, TailRecord, ZoneRecord},
    },
    raid::{
        Consistency, durable, failures,
        geometry::{Layout, MAX_MEMBERS, MAX_PARITIES, ParityPlace, each},
        io,
        parts::Raid,
        policy::{
            inplace,
            zrwa::{Refusal, ZrwaEvidence, claim, decide, needed, next_round, tail_slots, witness_count},
        },
        recover::{
            judge, revive,
            verdict::{Tail, Verdict, ZoneView},
        },
        zone::{
            flow::{ParityMismatch, Round, Zone, blank_parities},
            note, settle,
        },
    },
    zone::{ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::BTreeMap;

/// Evidence of the logs on a zone.
#[derive(Default)]
struct LoggedTails {
    /// Largest tail in the metadata logs and the log blocks, in blocks.
    tail: Option<u64>,
    /// Largest tail in the metadata logs alone, if it is above 0.
    promised: Option<u64>,
    /// A log block in the zone itself holds a valid tail.
    in_zone: bool,
    /// Notes in the log blocks, each with its tail.
    notes: Vec<(u64, Buf)>,
    /// Log blocks hold other content, or are unreadable: an empty zone is then reset, so that they never count.
    leftovers: bool,
    /// A tail not beyond this block may have been logged in unreadable blocks, of this member among others.
    doubt: Option<(u64, usize)>,
}

impl LoggedTails {
    /// Refuses a tail if a larger one may have been logged in unreadable blocks.
    fn check(&self, tail_blocks: u64) -> Result<(), Refusal> {
        match self.doubt {
            Some((end_blocks, member)) if tail_blocks < end_blocks => Err(Refusal::Log { member }),
            _ => Ok(()),
        }
    }

    /// Refuses a zone that has lost its promised data: there is a record of the promise ([`settle::record_promise`](crate::raid::zone::settle::record_promise)), all
    /// known write pointers are at the start, and the zone has no log block of a tail. A log block was safe before the
    /// record, on one member more than may be lost, so it was lost with the ZRWAs, and so was the data: zeros are not
    /// the written data, even where they agree with parity.
    fn check_promise(&self, layout: &Layout, wps: &[Option<u64>]) -> Result<(), Refusal> {
        let Some(promised_blocks) = self.promised.filter(|_| !self.in_zone) else { return Ok(()) };
        let (_, place) = layout.log((promised_blocks - 1) / layout.stripe_blocks());
        if !wps.iter().flatten().all(|wp| *wp == 0) || !matches!(place, ParityPlace::Row(_)) {
            return Ok(());
        }
        // The log block may be present and unreadable.
        self.check(promised_blocks)?;
        Err(Refusal::PromiseLost { promised_blocks })
    }
}

/// See `Policy::secure`: the data and its parity are enough to find the tail again, but a record begins a generation.
pub async fn begin_generation(raid: &Raid, zone: &Zone) {
    let generation = raid.membership.generation();
    // A record of generation 0 would be a tail.
    if !raid.logs_generations || generation == 0 {
        return;
    }
    let (epoch, tail_blocks) = {
        let flow = zone.flow.borrow();
        (flow.epoch(), flow.complete())
    };
    let record = TailRecord { zone: zone.index.0, generation, epoch, tail_blocks };
    let sequence = raid.membership.next_sequence();
    raid.zone_records.begin_generation(&record);
    durable::broadcast(raid, Record::Tail(record), sequence).await;
}

/// See `Policy::settle`.
pub async fn settle(raid: &Raid, zone: &Zone, round: &Round) -> u64 {
    let (layout, chunks) = (&raid.layout, round.chunks);
    if chunks > round.claimed {
        show_chunks(raid, zone, chunks).await;
    }
    if round.wanted && raid.behaviour.consistency == Consistency::WpLog {
        let live = raid.live(zone.index);
        let aligned = chunks * layout.chunk_blocks == round.complete;
        if !aligned || witness_count(layout, live, chunks) < needed(layout, live) {
            log_tail(raid, zone, round.complete).await;
        }
    }
    if round.wanted { round.complete } else { 0 }
}

/// See `Policy::show_with`.
pub async fn show_with(raid: &Raid, zone: &Zone, member: usize, tail_blocks: u64) {
    let (layout, chunks) = (&raid.layout, tail_blocks / raid.layout.chunk_blocks);
    let whole = raid.live(zone.index) | 1 << member;
    let is_shown = witness_count(layout, whole, chunks) >= needed(layout, whole);
    if tail_blocks > 0 && !is_shown {
        // Without the member fewer witnesses were enough. Once the member counts, all of these may be lost.
        log_tail(raid, zone, tail_blocks).await;
    }
}

/// See `Policy::promote`.
pub async fn promote(raid: &Raid, zone: &Zone) {
    let (layout, index) = (&raid.layout, zone.index);
    let tail = zone.flow.borrow().complete();
    let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    let rows = stripe + (covered > 0) as u64;
    for (which, part) in tail_slots(layout, covered) {
        let member = layout.parity_member(stripe, which);
        let promoted = zone.flow.borrow().positions()[member] >= 2 * rows;
        if !promoted && raid.live(index) & (1 << member) != 0 {
            let data = zone.flow.borrow().parity(which, part.from, part.to);
            let at = stripe * layout.chunk_blocks + part.from;
            let content = inplace::version_of(stripe, stripe, part.index);
            let write = io::write_command(raid, member, index, at, data, content);
            io::on_parts(raid, index, 1 << member, "finish zone", |_| write.clone()).await;
        }
    }
    // In the place of a parity that could not be written there may be the slot of an earlier stripe: a write pointer
    // beyond it would prove it to be the parity.
    if raid.has_failed(index) {
        return;
    }
    // Until the zones are finished the slots are still in the ZRWAs, after an error or a power cut too.
    settle::move_to(raid, zone, &[2 * rows; MAX_MEMBERS]).await;
    durable::barrier(raid, raid.live(index)).await;
}

/// See `Policy::judge`.
pub async fn judge_zrwa(raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
    let (record, wps) = (*view.record, judge::trusted_wps(raid, view));
    if let Some(verdict) = judge::judge_ended(view, &wps) {
        return Ok(verdict);
    }
    let relied = wps.iter().flatten().count();
    let (members, needed) = (raid.layout.members, raid.layout.fewest_members());
    let all_empty = view.present().all(|(m, info)| info.state == ZoneState::Empty || !view.trusts(m));
    let logged = logged_tail(raid, view.zone, &record, &wps, all_empty).await;
    if relied < needed {
        // The only evidence of the tail, or of any data in a zone that was just begun, may be on missing members.
        return Err(Refusal::TooFew { present: relied, members, needed });
    }
    if all_empty && record.finished.is_none() && logged.tail.is_none() && !is_answered(raid, view, &wps).await
    {
        logged.check(0)?;
        let leftovers = view.present().any(|(m, info)| {
            !matches!(info.state, ZoneState::Empty | ZoneState::Offline | ZoneState::ReadOnly)
                || !view.trusts(m) && info.state == ZoneState::Empty
        });
        return Ok(if leftovers || logged.leftovers { Verdict::Reset } else { Verdict::Empty });
    }
    logged.check_promise(&raid.layout, &wps)?;
    if let Some(promised_blocks) = logged.promised
        && have_all_lost_zrwas(raid, view, &wps).await
    {
        return Err(Refusal::PromiseLost { promised_blocks });
    }
    let told = logged.tail.max(Some(view.answered_blocks).filter(|blocks| *blocks > 0));
    let lost = view.present().filter(|(m, _)| wps[*m].is_none()).fold(0, |lost, (m, _)| lost | 1 << m);
    let mut evidence = ZrwaEvidence { wp_blocks: wps, told_blocks: told };
    let blocks = match record.finished {
        Some(tail) => tail,
        None => decide(&raid.layout, &evidence)?,
    };
    if record.finished.is_none() {
        logged.check(blocks)?;
    }
    if blocks == 0 {
        return Ok(Verdict::Reset);
    }
    let empty = view
        .present()
        .filter(|(m, info)| view.trusts(*m) && info.state == ZoneState::Empty)
        .fold(0, |empty, (m, _)| empty | 1 << m);
    let held = revive::hold(raid, view, &mut evidence, blocks, empty).await?;
    view.record.lost |= lost | held.gone;
    let half = raid.layout.chunk_blocks / 2;
    let mut positions = [0; MAX_MEMBERS];
    for (position, wp) in positions.iter_mut().zip(&evidence.wp_blocks) {
        *position = wp.unwrap_or(0) / half;
    }
    let loaded = load_parities(raid, view, blocks, &evidence).await;
    let lacks_parities = loaded.is_err();
    let (parities, found) = match loaded {
        Err(_) if view.read_only != 0 => (blank_parities(&raid.layout), ParityMismatch::default()),
        loaded => loaded?,
    };
    let note = logged.notes.into_iter().find(|(tail, _)| *tail == blocks).map(|(_, note)| note);
    // The log blocks of a reported end may be on members that are gone.
    let note = note.or_else(|| view.told_note.take().filter(|_| view.told_end == Some(blocks)));
    let tail = Tail {
        blocks,
        note,
        positions,
        parities,
        lacks_parities,
        found,
        revived: empty & !held.gone,
        held: held.pieces,
    };
    Ok(if record.finished.is_some() { Verdict::Finish(Some(tail)) } else { Verdict::Open(tail) })
}

/// Whether a part has lost its ZRWA after its write pointer had moved, and all other parts are empty and read as
/// zeros: their ZRWAs were lost as well, and the zeros are not the written data, even where they agree with parity.
async fn have_all_lost_zrwas(raid: &Raid, view: &ZoneView<'_>, wps: &[Option<u64>]) -> bool {
    let lost_zrwa = |m: usize, info: &ZoneInfo| view.trusts(m) && wps[m].is_none() && info.wp_blocks > 0;
    if !view.present().any(|(m, info)| lost_zrwa(m, info)) {
        return false;
    }
    for (member, info) in view.present().filter(|(m, _)| wps[*m].is_some()) {
        for zrwa in revive::zrwas_at_start(raid, member) {
            if info.state != ZoneState::Empty
                || revive::is_blank(raid, view.zone, member, zrwa).await != Some(true)
            {
                return false;
            }
        }
    }
    true
}

/// Whether a zone that is empty on all members holds data that a process which died had acknowledged. If not, that
/// process had reset the zone, and died before it removed the acknowledged tail.
async fn is_answered(raid: &Raid, view: &ZoneView<'_>, wps: &[Option<u64>]) -> bool {
    if view.answered_blocks == 0 {
        return false;
    }
    let mut blank = 0;
    for member in (0..wps.len()).filter(|member| wps[*member].is_some()) {
        blank |= 1 << member;
        for zrwa in revive::zrwas_at_start(raid, member) {
            match revive::is_blank(raid, view.zone, member, zrwa).await {
                Some(true) => {}
                Some(false) => return true,
                // Unreadable: other members decide.
                None => blank &= !(1 << member),
            }
        }
    }
    !raid.members.are_enough(blank)
}

/// Evidence of metadata logs and log blocks on the zone's present epoch. If the zone is empty on all members, only
/// the first stripe can have a logged tail.
async fn logged_tail(
    raid: &Raid,
    zone: ZoneIndex,
    record: &ZoneRecord,
    wps: &[Option<u64>],
    all_empty: bool,
) -> LoggedTails {
    let layout = &raid.layout;
    let mut found = LoggedTails::default();
    for log in raid.members.logs() {
        let live = log.live.borrow();
        if let Some(tail) = live.tails.get(&zone.0)
            && tail.epoch == record.epoch
        {
            found.tail = found.tail.max(Some(tail.tail_blocks));
        }
        if let Some((tail, note)) = live.notes.get(&zone.0)
            && tail.epoch == record.epoch
        {
            found.notes.push((tail.tail_blocks, note.clone()));
        }
    }
    found.promised = found.tail.filter(|tail| *tail > 0);
    let passed = wps.iter().flatten().min().copied().unwrap_or(0) / layout.chunk_blocks;
    let last = if all_empty { 1 } else { passed + 2 * layout.distance + 1 };
    let mut pending = Vec::new();
    for stripe in passed.saturating_sub(1)..last.min(layout.rows) {
        let (members, place) = layout.log(stripe);
        let ParityPlace::Row(row) = place else {
            let lacks = |m: &usize| wps[*m].is_some() && judge::log_lacks_records(raid, zone, *m);
            if !members.clone().any(|m| wps[m].is_some() && !lacks(&m)) {
                let end = (stripe + 1) * layout.stripe_blocks();
                found.doubt = members.clone().find(lacks).map(|m| (end, m)).or(found.doubt);
            }
            continue;
        };
        for member in members.filter(|m| wps[*m].is_some_and(|wp| wp < (row + 1) * layout.chunk_blocks)) {
            for block in 0..2 {
                let at = row * layout.chunk_blocks + block;
                let origin = io::origin(raid, member, io::address(raid, member, zone, at).0);
                // A record has a checksum of its own.
                let read = io::read_marked(raid, member, zone, at, Buf::zeroed(BLOCK), Buf::default());
                pending.push((stripe, origin, read));
            }
        }
    }
    // A tail was promised when all log members had its record: both blocks of one of them are enough, if intact.
    // Members (bits) with an intact log block, and with a damaged one, by stripe.
    let mut read_stripes: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    for (stripe, origin, read) in pending {
        let done = read.await;
        let unwritten = done.result == Err(Status::DeallocatedBlock.into());
        let read = match done.result {
            Ok(()) => Record::read(&done.data, origin),
            Err(_) => Err(RecordError::NoRecord),
        };
        // A log block is written atomically: no power cut leaves half of one. Data is written in its place only
        // when all members have passed the row of the stripe, and then this stripe has no tail.
        let damaged = match &read {
            _ if done.result.is_err() => !unwritten,
            Ok(_) => false,
            Err(_) => !is_uniform(&done.data),
        };
        let (intact, damaged_on) = read_stripes.entry(stripe).or_default();
        *(if damaged { damaged_on } else { intact }) |= 1 << origin.member;
        if unwritten {
            continue;
        }
        let (read, note) = match read {
            Ok((Record::Note(tail, note), ..)) => (Some(tail), Some(note)),
            Ok((Record::Tail(tail), ..)) => (Some(tail), None),
            _ => (None, None),
        };
        if let Some(tail) = read
            && tail.zone == zone.0
            && tail.epoch == record.epoch
            && (tail.tail_blocks.saturating_sub(1)) / layout.stripe_blocks() == stripe
        {
            found.tail = found.tail.max(Some(tail.tail_blocks));
            found.in_zone = true;
            found.notes.extend(note.map(|note| (tail.tail_blocks, note)));
        } else {
            found.leftovers |= done.result.is_err() || !is_zero(&done.data);
        }
    }
    for (stripe, (intact, damaged_on)) in read_stripes {
        if intact & !damaged_on == 0
            && let Some(member) = each(damaged_on).next()
        {
            let end = (stripe + 1) * layout.stripe_blocks();
            found.doubt = Some(found.doubt.map_or((end, member), |doubt| doubt.max((end, member))));
        }
    }
    found
}

/// The running parities of the stripe of `tail`: computed from the data or, where data cannot be read, decoded with
/// the slots. Below the offset of the tail they cover a chunk more than above it.
async fn load_parities(
    raid: &Raid,
    view: &ZoneView<'_>,
    tail: u64,
    evidence: &ZrwaEvidence,
) -> Result<([BufMut; MAX_PARITIES], ParityMismatch), Refusal> {
    let layout = &raid.layout;
    let chunk = layout.chunk_blocks;
    let (mut result, mut differing) = (blank_parities(layout), ParityMismatch::default());
    let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    let offset = (covered + chunk - 1) % chunk + 1;
    for whole in [0..offset.min(covered), offset..chunk.min(covered)] {
        let mut pieces = vec![whole];
        while let Some(blocks) = pieces.pop().filter(|blocks| !blocks.is_empty()) {
            let chunks = (covered - blocks.start).div_ceil(chunk);
            let column = judge::read_column(raid, view, stripe, chunks, blocks.clone(), evidence).await;
            for (which, parity) in result.iter_mut().enumerate().take(layout.parities) {
                let bytes = blocks.start as usize * BLOCK..blocks.end as usize * BLOCK;
                match column.decode(Sum::parity(which, chunks as usize), layout.data_chunks()) {
                    Some(computed) => {
                        parity[bytes].copy_from_slice(&computed);
                        let slot = column.found[layout.data_chunks() as usize + which].as_deref();
                        for (index, at) in blocks.clone().enumerate() {
                            let block = index * BLOCK..(index + 1) * BLOCK;
                            let slot = slot.map(|slot| &slot[block.clone()]);
                            differing.compare((which, at), slot, &computed[block]);
                        }
                    }
                    // Members may have unreadable blocks at different offsets: each block is decoded by itself.
                    None if blocks.end - blocks.start > 1 => {
                        pieces.extend(blocks.clone().map(|block| block..block + 1));
                        break;
                    }
                    None => {
                        let present = evidence.wp_blocks.iter().flatten().count();
                        let (members, needed) = (layout.members, layout.members);
                        return Err(Refusal::TooFew { present, members, needed });
                    }
                }
            }
        }
    }
    Ok((result, differing))
}

/// See `Policy::outdated`. Even an older copy holds the written data below its write pointer. So the stripes that
/// some write pointer has not passed are checked, and the outdated member is one whose write pointer has passed
/// none of the blocks where parity contradicts the data.
///
/// # Errors
/// Contradiction, if several members may be the outdated one.
pub async fn outdated_zrwa(raid: &Raid, view: &ZoneView<'_>, tail: &Tail) -> Result<u32, Refusal> {
    let (layout, chunk) = (&raid.layout, raid.layout.chunk_blocks);
    let evidence = ZrwaEvidence { wp_blocks: judge::trusted_wps(raid, view), told_blocks: None };
    if evidence.wp_blocks.iter().flatten().count() <= layout.fewest_members() || tail.revived != 0 {
        // There is no redundancy, or blocks that are to be written back are in memory only.
        return Ok(0);
    }
    let wp_blocks = |member: usize| evidence.wp_blocks[member].unwrap_or(u64::MAX);
    let passed = (0..layout.members).map(wp_blocks).min().unwrap_or(0) / chunk;
    let (mut suspects, mut blank, mut contradictions, mut is_proven) = (u32::MAX, u32::MAX, 0, false);
    for stripe in passed..tail.blocks.div_ceil(layout.stripe_blocks()) {
        let covered = (tail.blocks - stripe * layout.stripe_blocks()).min(layout.stripe_blocks());
        // Below the offset of the tail one chunk more is covered than above it.
        let offset = (covered + chunk - 1) % chunk + 1;
        let mut doubtful = Vec::new();
        for blocks in [0..offset.min(covered), offset..chunk.min(covered)] {
            let chunks = covered.saturating_sub(blocks.start).div_ceil(chunk);
            if !blocks.is_empty()
                && judge::read_column(raid, view, stripe, chunks, blocks.clone(), &evidence).await.agrees()
                    == Some(false)
            {
                doubtful.extend(blocks);
            }
        }
        for block in doubtful {
            let chunks = (covered - block).div_ceil(chunk);
            let mut column =
                judge::read_column(raid, view, stripe, chunks, block..block + 1, &evidence).await;
            if column.agrees() != Some(false) {
                continue;
            }
            let (mut there, mut zeros, mut is_damage) = (0, 0, false);
            for index in 0..layout.members as u64 {
                let which = index.checked_sub(layout.data_chunks()).map(|which| which as usize);
                let (member, place) = match which {
                    None => (layout.member(stripe, index), ParityPlace::Row(stripe)),
                    Some(which) => layout.slot(stripe, chunks - 1, which),
                };
                let Some(data) = column.found[index as usize].take() else { continue };
                let is_sure =
                    matches!(place, ParityPlace::Row(row) if wp_blocks(member) > row * chunk + block);
                // With two parities the other symbols agree if this one is the only wrong one.
                let others = column.agrees();
                if others != Some(false) && !is_sure {
                    there |= 1 << member;
                    zeros |= (is_uniform(&data) as u32) << member;
                    is_proven |= others == Some(true);
                }
                is_damage |= is_sure && others == Some(true);
                column.found[index as usize] = Some(data);
            }
            if is_damage {
                // Below a write pointer an older copy has this block too: it is damaged, not outdated.
                continue;
            }
            (suspects, blank, contradictions) = (suspects & there, blank & zeros, contradictions + 1);
        }
    }
    if suspects == u32::MAX || contradictions == 1 && !is_proven {
        // A single block that contradicts the others may as well be damaged.
        return Ok(0);
    }
    let hindmost = each(suspects).map(wp_blocks).min();
    let last = |member: &usize| Some(wp_blocks(*member)) == hindmost;
    let behind = each(suspects).filter(last).fold(0, |all, member| all | 1u32 << member);
    match [suspects, suspects & blank, behind].into_iter().find(|members| members.count_ones() == 1) {
        Some(member) => Ok(member),
        None => Err(Refusal::Contradiction),
    }
}

/// Moves write pointers, round by round, until they show `chunks` complete chunks (§4.4).
async fn show_chunks(raid: &Raid, zone: &Zone, chunks: u64) {
    let complete = zone.flow.borrow().complete();
    assert!(chunks * raid.layout.chunk_blocks <= complete, "{chunks} chunks are shown of {complete} blocks");
    durable::barrier(raid, raid.live(zone.index)).await;
    while !raid.has_failed(zone.index) {
        let (live, positions) = (raid.live(zone.index), *zone.flow.borrow().positions());
        let Some(targets) = next_round(&raid.layout, live, &positions, chunks) else { return };
        for member in each(live) {
            let (target, claimed) = (targets[member], claim(&raid.layout, member, targets[member]));
            assert!(target == 0 || target > positions[member], "member {member} would go back to {target}");
            assert!(
                claimed.is_some_and(|claimed| claimed <= chunks),
                "position {target} of member {member} claims {claimed:?} chunks, {chunks} are settled"
            );
        }
        settle::move_to(raid, zone, &targets).await;
        durable::barrier(raid, live).await;
    }
}

/// Logs a tail that write pointers cannot show, on one member more than may be lost (§5.3, §5.1).
pub async fn log_tail(raid: &Raid, zone: &Zone, tail_blocks: u64) {
    let layout = &raid.layout;
    let complete = zone.flow.borrow().complete();
    assert!(0 < tail_blocks && tail_blocks <= complete, "a tail at {tail_blocks} of {complete} is logged");
    let stripe = (tail_blocks - 1) / layout.stripe_blocks();
    let (members, place) = layout.log(stripe);
    durable::barrier(raid, raid.live(zone.index)).await;
    // Writes that a failed member has not made safe are missing when it returns.
    if raid.has_failed(zone.index) {
        return;
    }
    // Read after the barrier: a member that was replaced meanwhile lacks the zone.
    let live = raid.live(zone.index);
    let sequence = raid.membership.next_sequence();
    // The two log blocks are used in turn: the previous record stays intact while the new one is written.
    let (epoch, block) = {
        let mut flow = zone.flow.borrow_mut();
        (flow.epoch(), flow.next_log_block())
    };
    let tail = TailRecord { zone: zone.index.0, generation: 0, epoch, tail_blocks };
    let record = note::record(zone, tail);
    let mut pending = Vec::new();
    for member in members.filter(|m| live & (1 << m) != 0) {
        let completion = match place {
            ParityPlace::MetaLog => raid.append(member, record.clone()),
            ParityPlace::Row(row) => {
                let at = row * layout.chunk_blocks + block;
                let log = io::log_command(raid, member, zone.index, at, (&record, sequence), true);
                raid.members.submit(member, log)
            }
        };
        pending.push((raid.members.seat(member), completion));
    }
    for (seat, completion) in pending {
        if let Err(error) = completion.await.result {
            failures::part_failed(raid, zone.index, seat, error, "tail log");
        }
    }
}
