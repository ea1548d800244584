//! Determines the verdict on a zone, including its tail, from the parts on the members; only reads.

use crate::{
    buf::{BLOCK, Buf, BufMut, is_zero},
    code::decode::{self, Recipe, Sum},
    format::record::{BurnedRange, ZoneRecord},
    raid::{
        geometry::{MAX_MEMBERS, ParityPlace, subsets},
        parts::Raid,
        policy::zrwa::{Refusal, ZrwaEvidence},
        recover::verdict::{Verdict, ZoneView},
        zone::{
            checksum::{self, Expected},
            relocated, stripe,
        },
    },
    zone::{UNKNOWN_WP, ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::ops::Range;

/// Determines the verdict on one zone; only reads. Members that lost their part are marked in `view.record`, unless
/// the zone is refused.
///
/// If no crash can leave the parts of some members as they are, while all others agree and are enough, these
/// members have been changed from outside of the array: they count as lacking their parts.
pub async fn judge(raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
    let (record, burned) = (*view.record, raid.zone_records.burned().clone());
    let result = judge_parts(raid, view, record, &burned).await;
    if result.is_err() {
        *view.record = record;
        raid.zone_records.set_burned(burned);
    }
    result
}

/// As [`judge`], where `view.record` is `record` at first; a refusal leaves the marks of the last attempt.
async fn judge_parts(
    raid: &Raid,
    view: &mut ZoneView<'_>,
    record: ZoneRecord,
    burned: &[BurnedRange],
) -> Result<Verdict, Refusal> {
    if let Some(end) = view.told_end.filter(|end| *end > view.answered_blocks) {
        // The reported end is kept where possible: a member that is gone now may have held more of the zone.
        let answered = std::mem::replace(&mut view.answered_blocks, end);
        if let Ok(verdict) = judge_as_found(raid, view).await {
            return Ok(verdict);
        }
        view.answered_blocks = answered;
        *view.record = record;
        raid.zone_records.set_burned(burned.to_vec());
    }
    let refusal = match judge_as_found(raid, view).await {
        Ok(Verdict::Open(tail)) if view.answered_blocks > 0 => {
            let outdated = raid.layout.policy.outdated(raid, view, &tail).await?;
            if outdated == 0 {
                return Ok(Verdict::Open(tail));
            }
            view.record.lost |= outdated;
            raid.zone_records.set_burned(burned.to_vec());
            return judge_as_found(raid, view).await;
        }
        Ok(verdict) => return Ok(verdict),
        Err(refusal) => refusal,
    };
    let mut found: Option<(Verdict, ZoneRecord, Vec<BurnedRange>)> = None;
    let mut fewest = u32::MAX;
    let may_accuse = refusal.accuses() && view.read_only == 0;
    for accused in accusable(raid, view).into_iter().filter(|_| may_accuse) {
        if accused.count_ones() > fewest {
            break;
        }
        *view.record = ZoneRecord { lost: record.lost | accused, ..record };
        raid.zone_records.set_burned(burned.to_vec());
        let verdict = judge_as_found(raid, view).await;
        let held = matches!(verdict, Ok(Verdict::Open(_) | Verdict::Full | Verdict::Finish(_)));
        if let (true, Ok(verdict)) = (held, verdict) {
            if found.is_some() {
                // Ambiguous: either of two sets of members may be the changed one.
                found = None;
                break;
            }
            fewest = accused.count_ones();
            found = Some((verdict, *view.record, raid.zone_records.burned().clone()));
        }
    }
    let (verdict, record, burned) = found.ok_or(refusal)?;
    *view.record = record;
    raid.zone_records.set_burned(burned);
    Ok(verdict)
}

/// Sets of members (bits) that may be excluded as changed from outside, since enough others are left; small sets
/// first.
fn accusable(raid: &Raid, view: &ZoneView<'_>) -> Vec<u32> {
    let there = view.present().filter(|(m, _)| view.trusts(*m)).fold(0u32, |all, (m, _)| all | 1 << m);
    let spare = (there.count_ones() as usize).saturating_sub(raid.layout.fewest_members());
    (1..=spare as u32).flat_map(|count| subsets(there, count)).collect()
}

async fn judge_as_found(raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
    for (member, info) in view.info.iter().enumerate() {
        if info.is_some_and(|info| is_worn(info.state) || is_in_doubt(&info)) {
            view.record.lost |= 1 << member;
        }
    }
    check_records(raid, view)?;
    if view.record.resetting {
        return Ok(Verdict::Reset);
    }
    check_ended(raid, view)?;
    raid.layout.policy.judge(raid, view).await
}

/// Whether the log of `member` has unreadable parts that may have held records of `zone`.
pub fn log_lacks_records(raid: &Raid, zone: ZoneIndex, member: usize) -> bool {
    let record = raid.zone_records.record(zone);
    raid.members.log(member).is_some_and(|log| {
        let live = log.live.borrow();
        live.lacks_records || record.waits != 0 && live.incomplete.get(&zone.0) == Some(&record.epoch)
    })
}

/// Refuses to complete a reset or a finish if later records may have been in unreadable parts of all logs: the zone may
/// have been reset, and written, since. The end of a full zone without parity is not needed, and is forgotten.
fn check_records(raid: &Raid, view: &mut ZoneView<'_>) -> Result<(), Refusal> {
    let all_are = |is: fn(ZoneState) -> bool| view.present().all(|(_, info)| is(info.state));
    let is_pending = view.record.resetting || view.record.finished.is_some();
    if !is_pending || all_are(|state| state == ZoneState::Empty || is_worn(state)) {
        return Ok(());
    }
    let Some(member) = without_records(raid, view) else { return Ok(()) };
    if raid.layout.parities > 0 || view.record.resetting || !all_are(|state| state == ZoneState::Full) {
        return Err(Refusal::Record { member });
    }
    view.record.finished = None;
    Ok(())
}

/// The first present member, if the logs of all present members have unreadable parts that may have held records of
/// the zone.
pub fn without_records(raid: &Raid, view: &ZoneView<'_>) -> Option<usize> {
    let mut members = view.present().map(|(member, _)| member);
    let first = view.present().next().map(|(member, _)| member);
    first.filter(|_| members.all(|member| log_lacks_records(raid, view.zone, member)))
}

/// Write pointers (blocks) of the trusted members, by role, where they are reliable: zones with a ZRWA, full zones,
/// and empty ones, since a shutdown may have emptied a zone with a ZRWA. `None` for all others.
pub fn trusted_wps(raid: &Raid, view: &ZoneView<'_>) -> Vec<Option<u64>> {
    let used_blocks = raid.layout.rows * raid.layout.chunk_blocks;
    let wp = |info: &ZoneInfo| match info.state {
        ZoneState::Full => Some(used_blocks),
        ZoneState::Empty => Some(0),
        _ if info.zrwa => Some(info.wp_blocks.min(used_blocks)),
        _ => None,
    };
    (0..view.info.len()).map(|m| view.info[m].as_ref().filter(|_| view.trusts(m)).and_then(wp)).collect()
}

/// Verdict on a zone that is full on all trusted members, or was empty when its finish was logged; otherwise
/// `None`.
pub fn judge_ended(view: &ZoneView<'_>, wps: &[Option<u64>]) -> Option<Verdict> {
    let full = |m: usize, info: &ZoneInfo| !view.trusts(m) || info.state == ZoneState::Full;
    let all_full = view.present().all(|(m, info)| full(m, info)) && wps.iter().flatten().next().is_some();
    match view.record.finished {
        _ if all_full => Some(Verdict::Full),
        Some(0) => Some(Verdict::Finish(None)),
        _ => None,
    }
}

/// Refuses a full or finished zone that lacks more parts than parity covers, if an absent member may hold its part:
/// that part would become stale, and the data could not be recovered any more.
pub fn check_ended(raid: &Raid, view: &ZoneView<'_>) -> Result<(), Refusal> {
    let record = &view.record;
    let trusted = |m: &usize| view.trusts(*m);
    let (members, needed) = (raid.layout.members, raid.layout.fewest_members());
    let parts: Vec<_> = (0..members).filter(trusted).filter_map(|m| view.info[m]).collect();
    let full = parts.iter().all(|info| info.state == ZoneState::Full);
    let ended = record.finished.map_or(full, |tail| tail > 0);
    let superblock = raid.membership.superblock();
    let holds = |m: usize| superblock.members[m].active || record.waits & (1 << m) != 0;
    let away = (0..members).filter(trusted).any(|m| view.info[m].is_none() && holds(m));
    match ended && away && parts.len() < needed {
        true => Err(Refusal::TooFew { present: parts.len(), members, needed }),
        false => Ok(()),
    }
}

/// Reads `blocks` of a member's part of a zone; `None` if the part is not in the evidence, has bad blocks there, or
/// cannot be read.
pub async fn read_part(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    blocks: Range<u64>,
    evidence: &ZrwaEvidence,
) -> Option<Buf> {
    evidence.wp_blocks[member].filter(|_| !raid.zone_records.has_bad_block(zone, member, blocks.clone()))?;
    if !raid.zones.is_uncut(zone, member, blocks.end) {
        return None;
    }
    if relocated::is_any_relocated(raid, zone, member, blocks.clone()) {
        return stripe::read_around(raid, zone, member, blocks, Expected::Any).await.ok();
    }
    let data = Buf::zeroed((blocks.end - blocks.start) as usize * BLOCK);
    let done = checksum::read(raid, member, zone, blocks.start, Expected::Any, data).await;
    done.result.is_ok().then_some(done.data)
}

/// Reads `blocks` of each chunk of a stripe, of which the first `chunks` are below the tail at these blocks, and of
/// the slots of the last of these.
pub async fn read_column(
    raid: &Raid,
    view: &ZoneView<'_>,
    stripe: u64,
    chunks: u64,
    blocks: Range<u64>,
    evidence: &ZrwaEvidence,
) -> StripeColumn {
    let layout = &raid.layout;
    let mut column = StripeColumn { symbols: layout.symbols(chunks), found: Vec::new() };
    let row = stripe * layout.chunk_blocks;
    for index in 0..layout.members as u64 {
        column.found.push(match index.checked_sub(layout.data_chunks()) {
            None if index >= chunks => None,
            None => {
                let member = layout.member(stripe, index);
                read_part(raid, view.zone, member, row + blocks.start..row + blocks.end, evidence).await
            }
            Some(which) => {
                read_slot(raid, view, (stripe, chunks - 1, which as usize), blocks.clone(), evidence).await
            }
        });
    }
    column
}

/// Reads `blocks` of a slot: of parity number `which` of chunks `0..=index` of a stripe.
async fn read_slot(
    raid: &Raid,
    view: &ZoneView<'_>,
    (stripe, index, which): (u64, u64, usize),
    blocks: Range<u64>,
    evidence: &ZrwaEvidence,
) -> Option<Buf> {
    let layout = &raid.layout;
    let (member, place) = slot_place(raid, view, (stripe, index, which), evidence);
    match place {
        ParityPlace::Row(row) => {
            let at = row * layout.chunk_blocks;
            // The slot was ahead of the write pointer, in the ZRWA of a zone that has been finished since.
            if row > stripe && evidence.wp_blocks[member].is_some_and(|wp| wp > at) {
                return None;
            }
            read_part(raid, view.zone, member, at + blocks.start..at + blocks.end, evidence).await
        }
        ParityPlace::MetaLog => {
            evidence.wp_blocks[member]?;
            let log = raid.members.log(member)?;
            let (live, epoch) = (log.live.borrow(), view.record.epoch);
            let mut found = BufMut::zeroed((blocks.end - blocks.start) as usize * BLOCK);
            for (place, block) in (0..).zip(blocks) {
                let block = live.parity.get(view.zone.0, epoch, stripe, index, block)?;
                found.block_mut(place).copy_from_slice(block);
            }
            Some(found.freeze())
        }
    }
}

/// Where parity number `which` of chunks `0..=index` of a stripe is now.
pub fn slot_place(
    raid: &Raid,
    view: &ZoneView<'_>,
    (stripe, index, which): (u64, u64, usize),
    evidence: &ZrwaEvidence,
) -> (usize, ParityPlace) {
    let layout = &raid.layout;
    let own = layout.parity_member(stripe, which);
    // A finish that has moved the parity member's write pointer past the row has written the full parity there.
    let is_promoted = view.record.finished.is_some()
        && evidence.wp_blocks[own].is_some_and(|wp| wp >= (stripe + 1) * layout.chunk_blocks);
    if is_promoted { (own, ParityPlace::Row(stripe)) } else { layout.slot(stripe, index, which) }
}

/// Whether the drive does not know the end of a part. The part counts as lost: an assumed end may prove wrong when all
/// of its blocks can be read.
pub fn is_in_doubt(info: &ZoneInfo) -> bool {
    info.state.is_active() && info.wp_blocks == UNKNOWN_WP
}

/// The same blocks of all chunks of a stripe and of its parities.
pub struct StripeColumn {
    pub symbols: [Sum; MAX_MEMBERS],
    /// The blocks that could be read, in the order of `symbols`.
    pub found: Vec<Option<Buf>>,
}

impl StripeColumn {
    fn present(&self) -> u128 {
        let bits = self.found.iter().enumerate().map(|(index, found)| (found.is_some() as u128) << index);
        bits.sum()
    }

    fn run(&self, recipe: &Recipe) -> Buf {
        let found = recipe.sources().iter().map(|source| self.found[source.stored as usize].as_deref());
        let blocks: Vec<&[u8]> = found.map(Option::unwrap_or_default).collect();
        let mut result = BufMut::zeroed(blocks.first().map_or(0, |block| block.len()));
        recipe.run(&mut result, &blocks);
        result.freeze()
    }

    /// Decodes `wanted` from the blocks found: from the data alone if possible, otherwise with the parities. `None` if
    /// they do not suffice.
    pub fn decode(&self, wanted: Sum, data_chunks: u64) -> Option<Buf> {
        let (symbols, data) = (&self.symbols[..self.found.len()], (1 << data_chunks) - 1);
        let recipe = decode::solve(self.present() & data, symbols, wanted);
        let recipe = recipe.or_else(|| decode::solve(self.present(), symbols, wanted))?;
        Some(self.run(&recipe))
    }

    /// Whether the blocks found are consistent; `None` if they have no redundancy.
    pub fn agrees(&self) -> Option<bool> {
        let checks = decode::checks(self.present(), &self.symbols[..self.found.len()]);
        checks.map(|check| is_zero(&self.run(&check))).reduce(|all, this| all && this)
    }

    /// Removes the wrong symbol of blocks that are not consistent: the only one without which the others are. Returns its
    /// index; `None` if it is not known.
    pub fn take_wrong(&mut self) -> Option<usize> {
        let count = self.found.len();
        let mut agree_without = |index: usize| {
            let symbol = self.found[index].take();
            let agrees = symbol.is_some() && self.agrees() == Some(true);
            self.found[index] = symbol;
            agrees
        };
        let mut wrong = (0..count).filter(|index| agree_without(*index));
        let wrong = wrong.next().filter(|_| wrong.next().is_none())?;
        self.found[wrong] = None;
        Some(wrong)
    }
}
