//! Policy `inplace`: settling, recovery and metadata of blocks, as [`crate::raid::policy::inplace`] decides.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode::{self, Sum},
    device::{DeviceError, Status},
    format::{
        oob::{Content, Mark, data_sum},
        record::{ParityRecord, Record, TailRecord, ZoneRecord},
    },
    raid::{
        durable, failures,
        geometry::{Layout, MAX_MEMBERS, ParityPlace, Role},
        io,
        parts::Raid,
        policy::{
            inplace::{InplaceEvidence, InplacePart, chunks_at, decide, version_of},
            zrwa::{Refusal, tail_slots},
        },
        recover::{
            judge,
            verdict::{RepairWrite, Tail, Verdict, ZoneView},
        },
        zone::{
            checksum,
            flow::{ParityMismatch, Round, Zone, blank_parities},
            settle,
        },
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::{BTreeMap, BTreeSet};

/// See `Policy::settle`.
pub async fn settle(raid: &Raid, zone: &Zone, round: &Round) -> u64 {
    durable::barrier(raid, raid.live(zone.index)).await;
    if round.chunks > round.claimed && !raid.has_failed(zone.index) {
        settle::move_to(raid, zone, &[2 * (round.chunks / raid.layout.data_chunks()); MAX_MEMBERS]).await;
        durable::barrier(raid, raid.live(zone.index)).await;
    }
    round.complete
}

/// The rows of a zone that recovery has read.
struct RecoveryRows {
    evidence: InplaceEvidence,
    /// Blocks of each member from the base row on; an empty buffer for a block that is unreadable or a bad block.
    blocks: Vec<Vec<Buf>>,
    /// Versions in the metadata logs: stripe, offset, chunks covered, number of the parity.
    logged: BTreeMap<(u64, u64, u64, usize), Buf>,
}

/// Logs a new generation of a zone with its tail. After the next crash, blocks of earlier generations beyond this
/// tail do not count.
pub async fn begin_generation(raid: &Raid, zone: &Zone, tail: u64) {
    zone.flow.borrow_mut().set_recorded_tail(tail);
    let (record, sequence) = (generation_record(raid, zone), raid.membership.next_sequence());
    if raid.logs_generations && raid.layout.policy.begins_generation(record.generation, tail) {
        raid.zone_records.begin_generation(&record);
    }
    durable::broadcast(raid, Record::Tail(record), sequence).await;
}

/// The record that [`begin_generation`] logs.
pub fn generation_record(raid: &Raid, zone: &Zone) -> TailRecord {
    let flow = zone.flow.borrow();
    let generation = raid.membership.generation();
    TailRecord { zone: zone.index.0, generation, epoch: flow.epoch(), tail_blocks: flow.recorded_tail() }
}

/// See `Policy::judge`.
pub async fn judge_in_place(raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
    let (layout, record, wps) = (&raid.layout, *view.record, judge::trusted_wps(raid, view));
    if let Some(verdict) = judge::judge_ended(view, &wps) {
        return Ok(verdict);
    }
    let Some(told) = newest_tail(raid, view.zone, record.epoch) else {
        // Nothing was written since the last reset, unless the record of a generation has been lost.
        check_unrecorded(raid, view, &wps).await?;
        let leftovers = view.present().any(|(_, info)| info.state.is_active()) || record.lost != 0;
        return Ok(if leftovers { Verdict::Reset } else { Verdict::Empty });
    };
    let relied = wps.iter().flatten().count();
    let (members, needed) = (layout.members, layout.fewest_members());
    if relied < needed {
        return Err(Refusal::TooFew { present: relied, members, needed });
    }
    let mut rows = read_rows(raid, view.zone, &record, &told, &wps).await;
    rows.evidence.told_blocks = rows.evidence.told_blocks.max(view.answered_blocks);
    let promised_blocks = rows.evidence.told_blocks;
    // A promised block that cannot be read was written: its part is not blank.
    let may_hold =
        |member: usize, at: u64| layout.data_block(member, at).is_some_and(|block| block < promised_blocks);
    let is_blank = |(member, part): (usize, &InplacePart)| {
        part.wp_blocks == 0
            && part.found.iter().all(Option::is_none)
            && !part.unreadable.iter().any(|at| may_hold(member, *at))
    };
    let parts = rows.evidence.members.iter().enumerate();
    let mut parts = parts.filter_map(|(member, part)| Some((member, part.as_ref()?)));
    let all_blank = promised_blocks > 0 && parts.all(is_blank);
    // All promised blocks are in the members' zones: if all parts are blank, their ZRWAs have been lost.
    if all_blank && relied == members {
        return Err(Refusal::PromiseLost { promised_blocks });
    }
    let mut blocks = decide(layout, &rows.evidence, record.finished)?;
    // The same if one part is not counted, since it has lost its ZRWA, but its write pointer has passed more.
    let kept = view.present().filter(|(m, _)| view.trusts(*m));
    let passed = kept.map(|(_, info)| info.wp_blocks / layout.chunk_blocks).max().unwrap_or(0);
    if all_blank && passed * layout.stripe_blocks() > blocks {
        return Err(Refusal::PromiseLost { promised_blocks });
    }
    if view.read_only != 0 {
        let stored = rows.evidence.end_as_stored(layout, blocks);
        if stored < rows.evidence.told_blocks.max(1).min(blocks) {
            let (index, _) = layout.chunk_of(stored % layout.stripe_blocks());
            return Err(Refusal::Lacking { member: layout.member(stored / layout.stripe_blocks(), index) });
        }
        blocks = stored;
    }
    if blocks == 0 {
        return Ok(Verdict::Reset);
    }
    let (stripe, covered) = (blocks / layout.stripe_blocks(), blocks % layout.stripe_blocks());
    let (mut parities, mut found) = (blank_parities(layout), ParityMismatch::default());
    for block in 0..layout.chunk_blocks.min(covered) {
        let chunks = chunks_at(layout, covered, block) as usize;
        for (which, parity) in parities.iter_mut().enumerate().take(layout.parities) {
            let computed = rows.sum(layout, stripe, block, Sum::parity(which, chunks));
            let computed = computed.ok_or(Refusal::TooFew { present: relied, members, needed: members })?;
            parity.block_mut(block).copy_from_slice(&computed);
            let version = rows.version(layout, (stripe, block), (which, chunks as u64));
            found.compare((which, block), version, &computed);
        }
    }
    let held = to_write_back(raid, &rows, view.zone, &told, blocks);
    let bits = |of: &dyn Fn(usize, &ZoneInfo) -> bool| {
        view.present().filter(|(m, info)| of(*m, info)).fold(0, |bits, (m, _)| bits | 1 << m)
    };
    let revived = bits(&|m, info| wps[m].is_some() && info.state == ZoneState::Empty);
    let lost = bits(&|m, _| wps[m].is_none());
    view.record.lost |= lost;
    let half = layout.chunk_blocks / 2;
    let mut positions = [0; MAX_MEMBERS];
    for (position, wp) in positions.iter_mut().zip(wps) {
        *position = wp.unwrap_or(0) / half;
    }
    let tail = Tail { blocks, note: None, positions, parities, lacks_parities: false, found, revived, held };
    Ok(if record.finished.is_some() { Verdict::Finish(Some(tail)) } else { Verdict::Open(tail) })
}

/// Refuses a zone that has no generation record, if the record may have been in unreadable parts of the logs, or if
/// a member holds data of the zone's epoch.
async fn check_unrecorded(raid: &Raid, view: &ZoneView<'_>, wps: &[Option<u64>]) -> Result<(), Refusal> {
    if let Some(member) = judge::without_records(raid, view) {
        return Err(Refusal::Log { member });
    }
    for (member, wp) in wps.iter().enumerate() {
        let Some(info) = view.info[member].filter(|info| wp.is_some() && info.state != ZoneState::Empty)
        else {
            continue;
        };
        let epoch = view.record.epoch as u32;
        let first = read_row(raid, view.zone, member, 0).await;
        let written = first.into_iter().flatten().any(|(_, mark)| mark.is_some_and(|m| m.epoch == epoch));
        if written || info.wp_blocks > 0 {
            return Err(Refusal::Unrecorded);
        }
    }
    Ok(())
}

/// The newest tail record of a zone in `epoch`, from the logs of all members.
pub fn newest_tail(raid: &Raid, zone: ZoneIndex, epoch: u64) -> Option<TailRecord> {
    let tails = raid.members.logs().filter_map(|log| log.live.borrow().tails.get(&zone.0).copied());
    let present = tails.filter(|tail| tail.epoch == epoch);
    present.max_by_key(|tail| (tail.generation, tail.tail_blocks))
}

/// Reads the rows of all members in which the tail may lie.
async fn read_rows(
    raid: &Raid,
    zone: ZoneIndex,
    record: &ZoneRecord,
    told: &TailRecord,
    wps: &[Option<u64>],
) -> RecoveryRows {
    let layout = &raid.layout;
    let chunk = layout.chunk_blocks;
    let passed = wps.iter().flatten().min().copied().unwrap_or(0) / chunk;
    let base_row = record.finished.map_or(passed, |tail| passed.min(tail / layout.stripe_blocks()));
    let end_row = (base_row + 2 * layout.distance).min(layout.rows);
    let begun = raid.zone_records.generations().of(zone.0, told.epoch).to_vec();
    let mut rows = RecoveryRows {
        evidence: InplaceEvidence {
            base_row,
            members: vec![None; layout.members],
            told_blocks: told.tail_blocks,
            logged: BTreeSet::new(),
        },
        blocks: vec![Vec::new(); layout.members],
        logged: BTreeMap::new(),
    };
    for (member, wp) in wps.iter().enumerate() {
        let Some(wp_blocks) = *wp else { continue };
        let mut part = InplacePart { wp_blocks, ..InplacePart::default() };
        for row in base_row..end_row {
            for (at, block) in (row * chunk..).zip(read_row(raid, zone, member, row).await) {
                // The ZRWA of a read-only part may be lost.
                let is_there = raid.zones.is_uncut(zone, member, at + 1);
                let block = if is_there { block } else { Err(Status::UnrecoveredReadError.into()) };
                let is_kept = at < wp_blocks
                    || layout.data_block(member, at).is_some_and(|block| block < told.tail_blocks);
                let mark = block.as_ref().ok().and_then(|(_, mark)| *mark);
                let mark = mark.filter(|mark| mark.epoch == told.epoch as u32);
                let is_left = |mark: &Mark| checksum::is_left(layout, &begun, (member, at), mark);
                let block = match mark {
                    Some(mark) if is_kept && is_left(&mark) => Err(Status::DeallocatedBlock.into()),
                    None if raid.checksums && at < wp_blocks => {
                        block.and(Err(Status::UnrecoveredReadError.into()))
                    }
                    _ => block,
                };
                let found = block.as_ref().ok();
                let content = found.and_then(|_| content(raid, member, at, at < wp_blocks, mark, told));
                if block.as_ref().is_err_and(|error| *error != Status::DeallocatedBlock.into()) {
                    part.unreadable.insert(part.found.len() as u64);
                }
                part.found.push(content);
                let data = block.map_or(Buf::default(), |(data, _)| data);
                // A bad block counts for the tail, but other blocks are not decoded with it.
                let is_bad = raid.zone_records.has_bad_block(zone, member, at..at + 1);
                rows.blocks[member].push(if is_bad { Buf::default() } else { data });
            }
        }
        if let Some(log) = raid.members.log(member) {
            let live = log.live.borrow();
            part.lacks_records = judge::log_lacks_records(raid, zone, member);
            for (stripe, index, block) in live.parity.of_zone(zone.0, record.epoch) {
                let version = live.parity.get(zone.0, record.epoch, stripe, index, block);
                let place =
                    layout.slot_of(member, stripe, index).map(|which| (stripe, block, index + 1, which));
                rows.logged.extend(place.zip(version.cloned()));
            }
        }
        rows.evidence.members[member] = Some(part);
    }
    rows.evidence.logged.extend(rows.logged.keys());
    rows
}

/// Reads the blocks of one row of a member, each with its mark if that is valid.
async fn read_row(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    row: u64,
) -> Vec<Result<(Buf, Option<Mark>), DeviceError>> {
    let chunk = raid.layout.chunk_blocks;
    let first = row * chunk;
    let size = raid.members.device(member).map_or(0, |device| device.geometry().oob_bytes as usize);
    let read = async |at: u64, blocks: u64| {
        let data = Buf::zeroed(blocks as usize * BLOCK);
        let oob = Buf::zeroed(blocks as usize * size);
        let done = io::read_marked(raid, member, zone, at, data, oob).await;
        done.result.map(|()| (done.data, done.oob))
    };
    let origin = |at: u64| io::origin(raid, member, io::address(raid, member, zone, at).0);
    let split = |at: u64, (data, oob): (Buf, Buf)| {
        let (mut blocks, mut marks) = (Vec::new(), oob.chunks_exact(size.max(1)));
        for block in 0..data.blocks() {
            let mark = marks.next().and_then(|bytes| Mark::read(bytes, origin(at + block)));
            let data = data.slice_blocks(block..block + 1);
            let differs = mark.and_then(|mark| mark.sum).is_some_and(|sum| sum != data_sum(&data));
            blocks.push(if differs { Err(Status::UnrecoveredReadError.into()) } else { Ok((data, mark)) });
        }
        blocks
    };
    if let Ok(found) = read(first, chunk).await {
        return split(first, found);
    }
    let mut blocks = Vec::new();
    for at in first..first + chunk {
        match read(at, 1).await {
            Ok(found) => blocks.extend(split(at, found)),
            Err(error) => blocks.push(Err(error)),
        }
    }
    blocks
}

/// Content of block `at` of a member's part of a zone; `None` if the block does not count. `passed`: it is below
/// the write pointer. `mark`: its mark, if that is of the present epoch.
fn content(
    raid: &Raid,
    member: usize,
    at: u64,
    passed: bool,
    mark: Option<Mark>,
    told: &TailRecord,
) -> Option<Content> {
    let layout = &raid.layout;
    let row = at / layout.chunk_blocks;
    match (layout.role(member, row), mark.map(|mark| (mark.content, mark.generation))) {
        (Role::Data(_), _) if passed => Some(Content::Data),
        (Role::Parity(_), Some((content @ Content::Parity(_), _))) if passed => Some(content),
        (Role::Parity(_), _) if passed => Some(version_of(row, row, layout.data_chunks() - 1)),
        (Role::Data(_), Some((content @ Content::Data, generation))) => {
            let is_below = layout.data_block(member, at).is_some_and(|block| block < told.tail_blocks);
            (generation >= told.generation || is_below).then_some(content)
        }
        (Role::Parity(_), Some((content @ Content::Parity(_), generation))) => {
            (generation >= told.generation).then_some(content)
        }
        (_, Some((content @ Content::Ahead(_), generation))) => {
            let stripe = row.checked_sub(layout.distance)?;
            let own = matches!(layout.role(member, stripe), Role::Parity(_));
            (own && generation >= told.generation).then_some(content)
        }
        _ => None,
    }
}

/// Blocks to be written before a zone continues at `tail`: all below the tail that a member lacks or, if its write
/// pointer is at the start ([`revive::revive`](crate::raid::recover::revive::revive)), all below the tail.
fn to_write_back(
    raid: &Raid,
    rows: &RecoveryRows,
    zone: ZoneIndex,
    told: &TailRecord,
    tail: u64,
) -> Vec<RepairWrite> {
    let layout = &raid.layout;
    let chunk = layout.chunk_blocks;
    let (last, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    let mut held: Vec<RepairWrite> = Vec::new();
    for (member, part) in rows.evidence.members.iter().enumerate() {
        let Some(InplacePart { wp_blocks, .. }) = *part else { continue };
        for stripe in rows.evidence.base_row.max(wp_blocks / chunk)..layout.rows.min(last + 1) {
            for block in 0..chunk {
                let (there, data, content) = match layout.role(member, stripe) {
                    Role::Data(index) if stripe < last || index * chunk + block < covered => {
                        let there = rows.evidence.is_present(layout, stripe, index, block);
                        let data = rows.sum(layout, stripe, block, Sum::data(index as usize));
                        (there, data, Content::Data)
                    }
                    Role::Parity(which) if stripe < last => {
                        let k = layout.data_chunks();
                        let there = rows.evidence.own_version(layout, stripe, which, block) == Some(k);
                        let data = rows.sum(layout, stripe, block, Sum::parity(which, k as usize));
                        (there, data, version_of(stripe, stripe, k - 1))
                    }
                    _ => continue,
                };
                let at = stripe * chunk + block;
                let data = match raid.zone_records.has_bad_block(zone, member, at..at + 1) {
                    true => Some(Buf::zeroed(BLOCK)),
                    false => data,
                };
                let Some(data) = data.filter(|_| !there || wp_blocks == 0) else { continue };
                let lba = Lba(raid.members.start(member, zone).0 + at);
                let (epoch, generation) = (told.epoch as u32, told.generation);
                let mark = Mark { epoch, generation, content, sum: None };
                let oob = io::oob(raid, member, lba, &data, |_| mark);
                held.push(RepairWrite { member, lba, data, oob });
            }
        }
    }
    held
}

/// See `Policy::secure`: makes the tail of a zone that continues recoverable with any member lost.
pub async fn secure_in_place(raid: &Raid, zone: &Zone) {
    let layout = &raid.layout;
    let tail = zone.flow.borrow().complete();
    let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    durable::barrier(raid, raid.live(zone.index)).await;
    settle::move_to(raid, zone, &[2 * stripe; MAX_MEMBERS]).await;
    durable::barrier(raid, raid.live(zone.index)).await;
    for (which, part) in tail_slots(layout, covered) {
        let data = zone.flow.borrow().parity(which, part.from, part.to);
        let (member, place) = layout.slot(stripe, part.index, which);
        if raid.live(zone.index) & (1 << member) == 0 {
            continue;
        }
        let seat = raid.members.seat(member);
        let written = match place {
            ParityPlace::Row(row) => {
                let content = version_of(stripe, row, part.index);
                let at = row * layout.chunk_blocks + part.from;
                io::write(raid, member, zone.index, at, data, content)
            }
            ParityPlace::MetaLog => {
                let epoch = zone.flow.borrow().epoch();
                let (index, from) = (part.index as u32, part.from as u32);
                let record = ParityRecord { zone: zone.index.0, epoch, stripe, index, from, data };
                raid.append(member, Record::Parity(record))
            }
        };
        if let Err(error) = written.await.result {
            failures::part_failed(raid, zone.index, seat, error, "write");
        }
    }
    durable::barrier(raid, raid.live(zone.index)).await;
    if raid.has_failed(zone.index) {
        // Blocks of earlier generations may still be needed to decode the tail.
        return;
    }
    begin_generation(raid, zone, tail).await;
    zone.promised.set(true);
    settle::forget_logged(raid, zone.index, stripe);
    let mut flow = zone.flow.borrow_mut();
    flow.secure(tail, stripe * layout.data_chunks());
    let limit = settle::window(raid, &flow, raid.live(zone.index));
    flow.set_limit(limit);
}

impl RecoveryRows {
    fn block(&self, layout: &Layout, member: usize, row: u64, block: u64) -> Option<&Buf> {
        let at = row.checked_sub(self.evidence.base_row)? * layout.chunk_blocks + block;
        self.blocks[member].get(at as usize).filter(|block| !block.is_empty())
    }

    /// Parity number `which` of the first `covers` chunks of a stripe at an offset, as it was read from a member.
    fn version(
        &self,
        layout: &Layout,
        (stripe, block): (u64, u64),
        (which, covers): (usize, u64),
    ) -> Option<&[u8]> {
        let versions = self.evidence.column(layout, stripe, block).versions;
        let version =
            versions.into_iter().find(|version| (version.which, version.covers) == (which, covers))?;
        let found = match version.place {
            ParityPlace::Row(row) => self.block(layout, layout.parity_member(stripe, which), row, block),
            ParityPlace::MetaLog => self.logged.get(&(stripe, block, covers, which)),
        };
        found.map(|found| &found[..])
    }

    /// Computes a sum of the data at offset `block` of a stripe; `None` if the blocks that were read do not suffice.
    fn sum(&self, layout: &Layout, stripe: u64, block: u64, wanted: Sum) -> Option<Buf> {
        let column = self.evidence.column(layout, stripe, block);
        let data = column.data.iter().map(|index| layout.member(stripe, *index));
        let data = data.map(|member| self.block(layout, member, stripe, block));
        let versions = column.versions.iter().map(|version| match version.place {
            ParityPlace::Row(row) => {
                self.block(layout, layout.parity_member(stripe, version.which), row, block)
            }
            ParityPlace::MetaLog => self.logged.get(&(stripe, block, version.covers, version.which)),
        });
        // Without the symbols that are bad blocks.
        let there = column.sums.iter().zip(data.chain(versions));
        let (sums, blocks): (Vec<_>, Vec<_>) = there.filter_map(|(sum, block)| Some((*sum, block?))).unzip();
        let recipe = decode::solve(u128::MAX, &sums, wanted)?;
        let sources: Vec<&[u8]> =
            recipe.sources().iter().map(|source| &blocks[source.stored as usize][..]).collect();
        let mut result = BufMut::zeroed(BLOCK);
        recipe.run(&mut result, &sources);
        Some(result.freeze())
    }
}
