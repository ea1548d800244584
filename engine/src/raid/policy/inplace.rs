//! Zebra: the parity of a partial stripe is updated in place, in the ZRWA, and out-of-band metadata
//! tells what was written.
//!
//! *Versions.* Version `c` of a stripe's parity, at some offset of the chunk, is the XOR of its first
//! `c` chunks there. A plan writes one version at each offset that it covers ([`zrwa::parity_of`]: the
//! parity with its last chunk, and what it covers of the chunk before). If a version overwrote the one
//! before it, a power cut could leave the new one without the data that it covers: with a member lost
//! in the same moment nothing could be decoded. So the versions take turns in two places
//! ([`Layout::slot`]), and one is overwritten only when the one after it, and all that this covers, is
//! complete ([`needs`]). Hence at every instant, at every offset, there is a whole version of exactly
//! what has been acknowledged, or of more, all of which is there.
//!
//! *Two parities.* Versions of P and of Q cover the same, and take turns in the same way, each in two places of
//! its own member. So the argument holds for either, and of any two members that are lost: at every offset
//! there are the versions of P and Q that cover just what has been acknowledged, the chunks that they cover, and
//! what is lost of all these are two at most, each on a member of its own.
//!
//! *The tail.* A block and its metadata ([`Mark`]) are written as one. A block of data counts if its
//! metadata says that it was written in this life of the zone, or if parities decode it; the tail is the
//! end of the longest run of such blocks ([`decide`]). What an earlier assembly has left beyond the tail
//! that it was recovered with is of an earlier generation and counts for nothing.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::decode::{self, Recipe, Sum},
    device::{Command, DeviceError, Status},
    format::{
        oob::{Content, Mark, OOB_BYTES},
        record::{Origin, ParityRecord, Record, TailRecord, ZoneRecord},
    },
    raid::{
        Canary,
        core::Core,
        geometry::{Layout, MAX_MEMBERS, Place, Role},
        policy::zrwa::{self, Refusal},
        recover::{Held, Tail, Verdict, ZoneView},
        zone::write::{Flow, Round, Zone, blank_parities},
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::{BTreeMap, BTreeSet};

/// Where a plan ends that begins at block `from` of a stripe and could go on to `to`, in its turn: over
/// two chunks at some offset the next version would be in the place of the last one. Longer than a
/// chunk and ending inside one, it would write two versions at some offsets, one of them there.
pub fn plan_end(layout: &Layout, from: u64, to: u64) -> u64 {
    let chunk = layout.chunk_blocks;
    let to = if from > 0 && to > from + chunk { to - to % chunk } else { to };
    let in_turn = |block: u64| {
        let first = first_at(layout, from, block);
        let at = first * chunk + block;
        first == 0 || at >= to || ((to - 1 - at) / chunk).is_multiple_of(2)
    };
    // Offsets between these are like one of them.
    let offsets = [0, from % chunk, to % chunk];
    if offsets.into_iter().all(in_turn) { to } else { from + chunk }
}

/// The first chunk that a plan from `from` on covers at offset `block`.
fn first_at(layout: &Layout, from: u64, block: u64) -> u64 {
    let (index, offset) = layout.chunk_of(from);
    index + (block < offset) as u64
}

/// How far a stripe has to be complete before a plan over its blocks `from..to` may be submitted: as far
/// as the versions before its own cover, whose predecessors it overwrites. 0 if there are none.
pub fn needs(layout: &Layout, from: u64, to: u64) -> u64 {
    let chunk = layout.chunk_blocks;
    let last = to.min(from + chunk);
    if last > 2 * chunk { last - chunk } else { 0 }
}

/// How many chunks of a stripe a tail that covers `covered` of its blocks covers at offset `block`.
pub fn chunks_at(layout: &Layout, covered: u64, block: u64) -> u64 {
    covered.saturating_sub(block).div_ceil(layout.chunk_blocks)
}

/// What is known of a zone after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The first row that was looked at.
    pub base_row: u64,
    /// By role; `None` if the member is missing or its part of the zone cannot be relied on.
    pub members: Vec<Option<Seen>>,
    /// The zone is known to go on to this block.
    pub told_blocks: u64,
    /// Versions in the metadata logs of the stripe's parity members: stripe, offset, chunks covered, number of
    /// the parity.
    pub logged: BTreeSet<(u64, u64, u64, usize)>,
}

/// What is in a member's part of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub wp_blocks: u64,
    /// What can be read and counts, block by block from the base row on.
    pub found: Vec<Option<Content>>,
    /// Blocks that the drive could not read, from the base row on.
    pub unreadable: BTreeSet<u64>,
    /// Something in its metadata log could not be read.
    pub holes: bool,
}

/// A version of a parity: its number, how many chunks it covers, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    which: usize,
    covers: u64,
    place: Place,
}

/// What there is at one offset of a stripe: blocks of data, and versions of the parities.
#[derive(Default)]
struct Column {
    data: Vec<u64>,
    versions: Vec<Version>,
    /// Of both, in this order.
    sums: Vec<Sum>,
}

impl Column {
    fn solve(&self, wanted: Sum) -> Option<Recipe> {
        decode::solve(u128::MAX, &self.sums, wanted)
    }
}

impl Evidence {
    fn found(&self, layout: &Layout, member: usize, row: u64, block: u64) -> Option<Content> {
        let at = (row.checked_sub(self.base_row)? * layout.chunk_blocks + block) as usize;
        *self.members[member].as_ref()?.found.get(at)?
    }

    /// Whether block `block` of data chunk `index` of `stripe` is on its member.
    pub fn is_present(&self, layout: &Layout, stripe: u64, index: u64, block: u64) -> bool {
        let member = layout.member(stripe, index);
        self.found(layout, member, stripe, block) == Some(Content::Data)
    }

    /// The version of parity number `which` in row `stripe` at offset `block`.
    pub fn own_version(&self, layout: &Layout, stripe: u64, which: usize, block: u64) -> Option<u64> {
        match self.found(layout, layout.parity_member(stripe, which), stripe, block)? {
            Content::Parity(covers) => Some(covers as u64),
            _ => None,
        }
    }

    /// The versions of one of a stripe's parities at offset `block`.
    fn versions(
        &self,
        layout: &Layout,
        stripe: u64,
        which: usize,
        block: u64,
    ) -> impl Iterator<Item = Version> {
        let member = layout.parity_member(stripe, which);
        let own = self.own_version(layout, stripe, which, block).map(|covers| (covers, Place::Row(stripe)));
        let row = stripe + layout.distance;
        let ahead = match self.found(layout, member, row, block) {
            Some(Content::Ahead(covers)) => Some((covers as u64, Place::Row(row))),
            _ => None,
        };
        let there = self.members[member].is_some();
        let logged = self.logged.range((stripe, block, 0, 0)..(stripe, block + 1, 0, 0));
        let logged = logged.filter(move |(_, _, _, of)| there && *of == which);
        let logged = logged.map(|(_, _, covers, _)| (*covers, Place::MetaLog));
        let all = own.into_iter().chain(ahead).chain(logged);
        all.map(move |(covers, place)| Version { which, covers, place })
    }

    /// What there is at offset `block` of a stripe.
    fn column(&self, layout: &Layout, stripe: u64, block: u64) -> Column {
        let k = layout.data_chunks();
        let mut column = Column::default();
        for index in (0..k).filter(|index| self.is_present(layout, stripe, *index, block)) {
            column.data.push(index);
            column.sums.push(Sum::data(index as usize));
        }
        for version in (0..layout.parities).flat_map(|which| self.versions(layout, stripe, which, block)) {
            // What covers more than there is says nothing.
            if (1..=k).contains(&version.covers) && column.sums.len() < decode::MAX_STORED {
                column.versions.push(version);
                column.sums.push(Sum::parity(version.which, version.covers as usize));
            }
        }
        column
    }

    /// Members of which nobody knows what they hold at offset `block` of `stripe`: too many of them, and
    /// something may be there although nothing shows it.
    fn unknown(&self, layout: &Layout, stripe: u64, block: u64) -> usize {
        let chunk = layout.chunk_blocks;
        let own = stripe.saturating_sub(self.base_row) * chunk + block;
        let is_unknown = |(member, seen): (usize, &Option<Seen>)| {
            seen.as_ref().is_none_or(|seen| {
                let ahead = matches!(layout.role(member, stripe), Role::Parity(_))
                    && (seen.unreadable.contains(&(own + layout.distance * chunk))
                        || seen.holes && stripe + layout.distance >= layout.rows);
                ahead || seen.unreadable.contains(&own)
            })
        };
        self.members.iter().enumerate().filter(|member| is_unknown(*member)).count()
    }

    /// Whether a data block is there, or can be decoded.
    fn is_told(&self, layout: &Layout, stripe: u64, index: u64, block: u64) -> bool {
        self.is_present(layout, stripe, index, block)
            || self.column(layout, stripe, block).solve(Sum::data(index as usize)).is_some()
    }
}

/// Where the zone ended: blocks of the logical zone that are there or can be decoded, at least
/// everything that was acknowledged; or a refusal. A zone that was finished ended at `finished`.
pub fn decide(layout: &Layout, evidence: &Evidence, finished: Option<u64>) -> Result<u64, Refusal> {
    let chunk = layout.chunk_blocks;
    let stripe_blocks = layout.stripe_blocks();
    let mut floor = finished.unwrap_or(evidence.told_blocks);
    if floor > layout.capacity_blocks() {
        return Err(Refusal::Beyond(floor));
    }
    for (member, seen) in evidence.members.iter().enumerate() {
        let Some(Seen { wp_blocks, .. }) = *seen else { continue };
        if finished.is_some() {
            // Write pointers say nothing any more.
            continue;
        }
        if !wp_blocks.is_multiple_of(chunk) {
            return Err(Refusal::Position { member, wp_blocks });
        }
        // Write pointers pass complete stripes only.
        floor = floor.max(wp_blocks / chunk * stripe_blocks);
    }
    let end = finished.unwrap_or(layout.capacity_blocks());
    let mut tail = (evidence.base_row * stripe_blocks).min(end);
    while tail < end {
        let (stripe, (index, block)) = (tail / stripe_blocks, layout.chunk_of(tail % stripe_blocks));
        if !evidence.is_told(layout, stripe, index, block) {
            if evidence.unknown(layout, stripe, block) > layout.parities {
                return Err(Refusal::Lacking { member: layout.member(stripe, index) });
            }
            break;
        }
        tail += 1;
    }
    // A stripe is begun only when every member has passed the row `distance` before it.
    let begun = tail.div_ceil(stripe_blocks);
    for (member, seen) in evidence.members.iter().enumerate().filter(|_| finished.is_none()) {
        let Some(Seen { wp_blocks, .. }) = *seen else { continue };
        if wp_blocks / chunk + layout.distance < begun.max(floor.div_ceil(stripe_blocks)) {
            return Err(Refusal::Behind { member, wp_blocks, tail_blocks: tail.max(floor) });
        }
    }
    if tail < floor {
        let present = evidence.members.iter().flatten().count();
        let (members, needed) = (layout.members, layout.fewest_members());
        let (stripe, (index, _)) = (tail / stripe_blocks, layout.chunk_of(tail % stripe_blocks));
        return Err(match present < needed {
            true => Refusal::TooFew { present, members, needed },
            false => Refusal::Lacking { member: layout.member(stripe, index) },
        });
    }
    Ok(tail)
}

/// What a block of row `row` is that holds the parity of chunks `0..=index` of `stripe`.
pub fn version_of(stripe: u64, row: u64, index: u64) -> Content {
    let covers = index as u8 + 1;
    if row == stripe { Content::Parity(covers) } else { Content::Ahead(covers) }
}

/// See `Policy::plan_end`.
pub fn end_of_plan(core: &Core, zone: &Zone, flow: &mut Flow, end: u64) -> Option<u64> {
    let from = flow.next % core.layout.stripe_blocks();
    let base = flow.next - from;
    let to = core.plan_end_in_place(from, end - base);
    if let Some(needed) = core.needs_in_place(flow.safe, base, from, to) {
        flow.wanted = flow.wanted.max(needed);
        zone.completed.open();
        return None;
    }
    Some(base + to)
}

/// See `Policy::chunks_to_claim`: write pointers follow late, because each takes a command, but before the
/// window is used up.
pub fn chunks_to_claim(layout: &Layout, flow: &Flow) -> u64 {
    let (complete, passed) = (flow.complete / layout.stripe_blocks(), flow.claimed / layout.data_chunks());
    let due = complete >= passed + (layout.distance / 2).max(1) || flow.complete == layout.capacity_blocks();
    if due { complete * layout.data_chunks() } else { flow.claimed }
}

/// See `Policy::settle`.
pub async fn settle(core: &Core, zone: &Zone, round: &Round) -> u64 {
    core.barrier(core.live(zone.index)).await;
    if round.chunks > round.claimed && !core.has_failed(zone.index) {
        core.move_to(zone, &[2 * (round.chunks / core.layout.data_chunks()); MAX_MEMBERS]).await;
        core.barrier(core.live(zone.index)).await;
    }
    round.complete
}

/// The rows of a zone that recovery has read.
struct Rows {
    evidence: Evidence,
    /// By member, block by block from the base row on; empty if it cannot be read.
    blocks: Vec<Vec<Buf>>,
    /// Versions in the metadata logs: stripe, offset, chunks covered, number of the parity.
    logged: BTreeMap<(u64, u64, u64, usize), Buf>,
}

impl Core {
    /// As [`plan_end`].
    pub fn plan_end_in_place(&self, from: u64, to: u64) -> u64 {
        match self.canary {
            Some(Canary::OneParityPlace) => to,
            _ => plan_end(&self.layout, from, to),
        }
    }

    /// What has to be safe before a plan over blocks `from..to` of the stripe at block `base` may be
    /// submitted, if it is not.
    pub fn needs_in_place(&self, safe: u64, base: u64, from: u64, to: u64) -> Option<u64> {
        let needed = base + needs(&self.layout, from, to);
        (needed > base.max(safe) && self.canary != Some(Canary::OneParityPlace)).then_some(needed)
    }

    /// The write of `data` at block `at` of a member's part of `zone`, with the metadata that the policy
    /// wants.
    pub fn write_of(
        &self,
        member: usize,
        zone: ZoneIndex,
        at: u64,
        data: Buf,
        content: Content,
        fua: bool,
    ) -> Command {
        let lba = Lba(self.start(member, zone).0 + at);
        let oob = match self.layout.policy.uses_marks() {
            true => {
                let epoch = self.zones.borrow()[zone.0 as usize].epoch as u32;
                let mark = Mark { epoch, generation: self.generation.get(), content };
                self.oob(member, lba, data.blocks(), mark)
            }
            false => Buf::default(),
        };
        Command::Write { lba, data, oob, fua }
    }

    /// Metadata for some blocks of a member.
    fn oob(&self, member: usize, lba: Lba, blocks: u64, mark: Mark) -> Buf {
        let size = self.device(member).map_or(0, |device| device.geometry().oob_bytes as usize);
        let len = size * blocks as usize;
        // Sliced, it is the only reference all the same.
        let mut oob = self.pool.borrow_mut().take(len.div_ceil(BLOCK) as u64);
        for (lba, bytes) in (lba.0..).zip(oob[..len].chunks_exact_mut(size.max(1))) {
            let (own, rest) = bytes.split_at_mut(OOB_BYTES.min(size));
            own.copy_from_slice(&mark.encode(self.origin(member, lba))[..own.len()]);
            rest.fill(0);
        }
        oob.freeze().slice(0..len)
    }

    fn origin(&self, member: usize, lba: u64) -> Origin {
        Origin { array: self.array, member: member as u32, lba }
    }

    /// Has everything that earlier assemblies have left beyond `tail` count for nothing, if a crash comes
    /// from now on.
    pub async fn begin_generation(&self, zone: &Zone, tail: u64) {
        zone.flow.borrow_mut().told = tail;
        let sequence = self.next_sequence();
        self.broadcast(Record::Tail(self.generation_record(zone)), sequence).await;
    }

    /// What [`Core::begin_generation`] has logged.
    pub fn generation_record(&self, zone: &Zone) -> TailRecord {
        let flow = zone.flow.borrow();
        let generation = self.generation.get();
        TailRecord { zone: zone.index.0, generation, epoch: flow.epoch, tail_blocks: flow.told }
    }

    /// See `Policy::judge`.
    pub async fn judge_in_place(&self, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        let (layout, record, wps) = (&self.layout, *view.record, self.trusted_wps(view));
        if let Some(verdict) = self.judge_ended(view, &wps) {
            return Ok(verdict);
        }
        let Some(told) = self.newest_generation(view.zone, &record) else {
            // Nothing was written since the last reset, if the record of a beginning would be known.
            self.check_unrecorded(view, &wps).await?;
            let leftovers = view.present().any(|(_, info)| info.state.is_active()) || record.lost != 0;
            return Ok(if leftovers { Verdict::Reset } else { Verdict::Empty });
        };
        let relied = wps.iter().flatten().count();
        let (members, needed) = (layout.members, layout.fewest_members());
        if relied < needed {
            return Err(Refusal::TooFew { present: relied, members, needed });
        }
        let mut rows = self.read_rows(view.zone, &record, &told, &wps).await;
        rows.evidence.told_blocks = rows.evidence.told_blocks.max(view.answered_blocks);
        let blocks = decide(layout, &rows.evidence, record.finished)?;
        if blocks == 0 {
            return Ok(Verdict::Reset);
        }
        let (stripe, covered) = (blocks / layout.stripe_blocks(), blocks % layout.stripe_blocks());
        let mut parities = blank_parities(layout);
        for block in 0..layout.chunk_blocks.min(covered) {
            let chunks = chunks_at(layout, covered, block) as usize;
            for (which, parity) in parities.iter_mut().enumerate().take(layout.parities) {
                let found = rows.sum(layout, stripe, block, Sum::parity(which, chunks));
                let found = found.ok_or(Refusal::TooFew { present: relied, members, needed: members })?;
                parity.block_mut(block).copy_from_slice(&found);
            }
        }
        let held = self.to_write_back(&rows, view.zone, &told, blocks);
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
        let tail = Tail { blocks, positions, parities, revived, held };
        Ok(if record.finished.is_some() { Verdict::Finish(Some(tail)) } else { Verdict::Open(tail) })
    }

    /// Refuses a zone without a record of its beginning, if there may have been one or it holds data all
    /// the same.
    async fn check_unrecorded(&self, view: &ZoneView<'_>, wps: &[Option<u64>]) -> Result<(), Refusal> {
        let members = || (0..wps.len()).filter(|m| view.info[*m].is_some());
        if members().all(|m| self.log_has_holes(view.zone, m))
            && let Some(member) = members().next()
        {
            return Err(Refusal::Log { member });
        }
        for (member, wp) in wps.iter().enumerate() {
            let Some(info) = view.info[member].filter(|info| wp.is_some() && info.state != ZoneState::Empty)
            else {
                continue;
            };
            let epoch = view.record.epoch as u32;
            let first = self.read_row(view.zone, member, 0).await;
            let written = first.into_iter().flatten().any(|(_, mark)| mark.is_some_and(|m| m.epoch == epoch));
            if written || info.wp_blocks > 0 {
                return Err(Refusal::Unrecorded);
            }
        }
        Ok(())
    }

    /// The newest tail record of the zone's present life.
    fn newest_generation(&self, zone: ZoneIndex, record: &ZoneRecord) -> Option<TailRecord> {
        let any_epoch = self.canary == Some(Canary::NoEpochCheck);
        let logs = self.members.iter().filter_map(|member| member.log.borrow().clone());
        let tails = logs.filter_map(|log| log.live.borrow().tails.get(&zone.0).copied());
        let present = tails.filter(|tail| tail.epoch == record.epoch || any_epoch);
        present.max_by_key(|tail| (tail.generation, tail.tail_blocks))
    }

    /// Reads what members hold of the rows in which the tail may be.
    async fn read_rows(
        &self,
        zone: ZoneIndex,
        record: &ZoneRecord,
        told: &TailRecord,
        wps: &[Option<u64>],
    ) -> Rows {
        let layout = &self.layout;
        let chunk = layout.chunk_blocks;
        let passed = wps.iter().flatten().min().copied().unwrap_or(0) / chunk;
        let base_row = record.finished.map_or(passed, |tail| passed.min(tail / layout.stripe_blocks()));
        let end_row = (base_row + 2 * layout.distance).min(layout.rows);
        let mut rows = Rows {
            evidence: Evidence {
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
            let mut seen = Seen { wp_blocks, ..Seen::default() };
            for row in base_row..end_row {
                for (at, block) in (row * chunk..).zip(self.read_row(zone, member, row).await) {
                    let content = block.as_ref().ok().and_then(|(_, mark)| {
                        let mark = mark.filter(|mark| mark.epoch == told.epoch as u32);
                        self.content(member, at, at < wp_blocks, mark, told)
                    });
                    if block.as_ref().is_err_and(|error| *error != Status::DeallocatedBlock.into()) {
                        seen.unreadable.insert(seen.found.len() as u64);
                    }
                    seen.found.push(content);
                    let data = block.map_or(Buf::default(), |(data, _)| data);
                    // A hole counts for where the zone ends, and nothing is decoded with it.
                    let hole = self.has_hole(zone, member, at..at + 1);
                    rows.blocks[member].push(if hole { Buf::default() } else { data });
                }
            }
            if let Some(log) = &*self.members[member].log.borrow() {
                let live = log.live.borrow();
                seen.holes = self.log_has_holes(zone, member);
                for (stripe, index, block) in live.parity.of_zone(zone.0, record.epoch) {
                    let version = live.parity.get(zone.0, record.epoch, stripe, index, block);
                    let place =
                        layout.slot_of(member, stripe, index).map(|which| (stripe, block, index + 1, which));
                    rows.logged.extend(place.zip(version.cloned()));
                }
            }
            rows.evidence.members[member] = Some(seen);
        }
        rows.evidence.logged.extend(rows.logged.keys());
        rows
    }

    /// The blocks of one row of a member with their marks, if they are ours.
    async fn read_row(
        &self,
        zone: ZoneIndex,
        member: usize,
        row: u64,
    ) -> Vec<Result<(Buf, Option<Mark>), DeviceError>> {
        let chunk = self.layout.chunk_blocks;
        let lba = self.start(member, zone).0 + row * chunk;
        let size = self.device(member).map_or(0, |device| device.geometry().oob_bytes as usize);
        let read = async |lba: u64, blocks: u64| {
            let data = Buf::zeroed(blocks as usize * BLOCK);
            let oob = Buf::zeroed(blocks as usize * size);
            let done = self.submit(member, Command::Read { lba: Lba(lba), data, oob }).await;
            done.result.map(|()| (done.data, done.oob))
        };
        let split = |lba: u64, (data, oob): (Buf, Buf)| {
            let (mut blocks, mut marks) = (Vec::new(), oob.chunks_exact(size.max(1)));
            for block in 0..data.blocks() {
                let mark = marks.next().and_then(|bytes| Mark::read(bytes, self.origin(member, lba + block)));
                blocks.push(Ok((data.slice_blocks(block..block + 1), mark)));
            }
            blocks
        };
        if let Ok(found) = read(lba, chunk).await {
            return split(lba, found);
        }
        let mut blocks = Vec::new();
        for lba in lba..lba + chunk {
            match read(lba, 1).await {
                Ok(found) => blocks.extend(split(lba, found)),
                Err(error) => blocks.push(Err(error)),
            }
        }
        blocks
    }

    /// What block `at` of a member's part of a zone counts for, with a mark of this life of the zone.
    /// `passed` says that the write pointer has passed it.
    fn content(
        &self,
        member: usize,
        at: u64,
        passed: bool,
        mark: Option<Mark>,
        told: &TailRecord,
    ) -> Option<Content> {
        let layout = &self.layout;
        let (row, block) = (at / layout.chunk_blocks, at % layout.chunk_blocks);
        match (layout.role(member, row), mark.map(|mark| (mark.content, mark.generation))) {
            (Role::Data(_), _) if passed => Some(Content::Data),
            (Role::Parity(_), Some((content @ Content::Parity(_), _))) if passed => Some(content),
            (Role::Parity(_), _) if passed => Some(version_of(row, row, layout.data_chunks() - 1)),
            (Role::Data(index), Some((content @ Content::Data, generation))) => {
                let end = row * layout.stripe_blocks() + index * layout.chunk_blocks + block + 1;
                (generation >= told.generation || end <= told.tail_blocks).then_some(content)
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

    /// What members have to be given before a zone goes on with its tail at `tail`: blocks below it that
    /// they lack, and all of them where write pointers have not moved ([`Core::revive`]).
    fn to_write_back(&self, rows: &Rows, zone: ZoneIndex, told: &TailRecord, tail: u64) -> Vec<Held> {
        let layout = &self.layout;
        let chunk = layout.chunk_blocks;
        let (last, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        let mut held: Vec<Held> = Vec::new();
        for (member, seen) in rows.evidence.members.iter().enumerate() {
            let Some(Seen { wp_blocks, .. }) = *seen else { continue };
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
                    let data = match self.has_hole(zone, member, at..at + 1) {
                        true => Some(Buf::zeroed(BLOCK)),
                        false => data,
                    };
                    let Some(data) = data.filter(|_| !there || wp_blocks == 0) else { continue };
                    let lba = Lba(self.start(member, zone).0 + at);
                    let mark = Mark { epoch: told.epoch as u32, generation: told.generation, content };
                    held.push(Held { member, lba, data, oob: self.oob(member, lba, 1, mark) });
                }
            }
        }
        held
    }

    /// Makes sure that the tail with which a zone goes on is found again, whoever is lost.
    pub async fn secure_in_place(&self, zone: &Zone) {
        let layout = &self.layout;
        let tail = zone.flow.borrow().complete;
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        self.barrier(self.live(zone.index)).await;
        self.move_to(zone, &[2 * stripe; MAX_MEMBERS]).await;
        self.barrier(self.live(zone.index)).await;
        for (which, part) in zrwa::tail_slots(layout, covered) {
            let data = zone.flow.borrow().parity(which, part.from, part.to);
            let (member, place) = layout.slot(stripe, part.index, which);
            if self.live(zone.index) & (1 << member) == 0 {
                continue;
            }
            let seat = self.seat(member);
            let written = match place {
                Place::Row(row) => {
                    let content = version_of(stripe, row, part.index);
                    let at = row * layout.chunk_blocks + part.from;
                    self.submit(member, self.write_of(member, zone.index, at, data, content, false))
                }
                Place::MetaLog => {
                    let epoch = zone.flow.borrow().epoch;
                    let (index, from) = (part.index as u32, part.from as u32);
                    let record = ParityRecord { zone: zone.index.0, epoch, stripe, index, from, data };
                    self.append(member, Record::Parity(record))
                }
            };
            if let Err(error) = written.await.result {
                self.part_failed(zone.index, seat, error, "write");
            }
        }
        self.barrier(self.live(zone.index)).await;
        if self.has_failed(zone.index) {
            // Without these members the tail may be none.
            return;
        }
        self.begin_generation(zone, tail).await;
        self.forget_logged(zone.index, stripe);
        let mut flow = zone.flow.borrow_mut();
        flow.claimed = stripe * layout.data_chunks();
        flow.safe = tail;
        flow.limit = self.window(&flow, self.live(zone.index));
    }
}

impl Rows {
    fn block(&self, layout: &Layout, member: usize, row: u64, block: u64) -> Option<&Buf> {
        let at = row.checked_sub(self.evidence.base_row)? * layout.chunk_blocks + block;
        self.blocks[member].get(at as usize).filter(|block| !block.is_empty())
    }

    /// A sum of the data at offset `block` of a stripe, if what was read tells it.
    fn sum(&self, layout: &Layout, stripe: u64, block: u64, wanted: Sum) -> Option<Buf> {
        let column = self.evidence.column(layout, stripe, block);
        let data = column.data.iter().map(|index| layout.member(stripe, *index));
        let data = data.map(|member| self.block(layout, member, stripe, block));
        let versions = column.versions.iter().map(|version| match version.place {
            Place::Row(row) => self.block(layout, layout.parity_member(stripe, version.which), row, block),
            Place::MetaLog => self.logged.get(&(stripe, block, version.covers, version.which)),
        });
        // A hole counts for where the zone ended, but nothing is decoded with it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::{
        geometry::tests::losses,
        policy::{Policy, zrwa},
    };

    fn layout(members: usize, distance: u64) -> Layout {
        Layout { policy: Policy::InPlace, members, parities: 1, chunk_blocks: 2, rows: 3, distance }
    }

    #[test]
    fn no_plan_writes_where_the_version_lies_that_it_takes_the_turn_of() {
        let mut cut = 0;
        for (members, chunk_blocks) in (3..=9).flat_map(|members| [(members, 2), (members, 4)]) {
            let layout = Layout { chunk_blocks, ..layout(members, 2) };
            let stripe = layout.stripe_blocks();
            for (from, to) in (1..stripe).flat_map(|from| (from + 1..=stripe).map(move |to| (from, to))) {
                let end = plan_end(&layout, from, to);
                assert!(from < end && end <= to);
                cut += (end < to) as u32;
                for part in zrwa::parity_of(&layout, from, end).into_iter().flatten() {
                    for block in part.from..part.to {
                        let before = chunks_at(&layout, from, block);
                        let turns = part.index + 1 - before;
                        assert!(before == 0 || turns % 2 == 1, "{layout:?} {from}..{end} at {block}");
                    }
                }
            }
        }
        assert!(cut > 0);
    }

    /// A block that is written: member, block of its part or, in the metadata log, what it is.
    type Landing = (usize, Place, u64, Content);

    /// The blocks that a plan over `from..to` of a zone, in one stripe, writes.
    fn landings(layout: &Layout, from: u64, to: u64) -> Vec<Landing> {
        let (stripe, chunk) = (from / layout.stripe_blocks(), layout.chunk_blocks);
        let base = stripe * layout.stripe_blocks();
        let mut all = Vec::new();
        for at in from - base..to - base {
            let (index, block) = layout.chunk_of(at);
            all.push((layout.member(stripe, index), Place::Row(stripe), block, Content::Data));
        }
        let parts = zrwa::parity_of(layout, from - base, to - base).into_iter().flatten();
        for (which, part) in parts.flat_map(|part| (0..layout.parities).map(move |which| (which, part))) {
            let (member, place) = layout.slot(stripe, part.index, which);
            let covers = part.index as u8 + 1;
            let content = match place {
                Place::Row(row) if row == stripe => Content::Parity(covers),
                _ => Content::Ahead(covers),
            };
            all.extend((part.from..part.to).map(|block| (member, place, block, content)));
        }
        assert!(all.iter().all(|(_, _, block, _)| *block < chunk));
        all
    }

    fn land(layout: &Layout, evidence: &mut Evidence, stripe: u64, landing: Landing) {
        let (member, place, block, content) = landing;
        match (place, content) {
            (Place::Row(row), _) => {
                let Some(seen) = &mut evidence.members[member] else { return };
                seen.found[(row * layout.chunk_blocks + block) as usize] = Some(content);
            }
            (Place::MetaLog, Content::Ahead(covers)) => {
                let which = layout.slot_of(member, stripe, covers as u64 - 1).unwrap();
                evidence.logged.insert((stripe, block, covers as u64, which));
            }
            _ => unreachable!(),
        }
    }

    /// How plans are made; broken on purpose in one test.
    struct Rules {
        in_turn: bool,
        wait: bool,
    }

    /// What is found of a zone that nobody has written to.
    fn unwritten(layout: &Layout) -> Evidence {
        let found = vec![None; (layout.rows * layout.chunk_blocks) as usize];
        let blank = Seen { found, ..Seen::default() };
        Evidence {
            base_row: 0,
            members: vec![Some(blank); layout.members],
            told_blocks: 0,
            logged: BTreeSet::new(),
        }
    }

    /// Unwritten, but for what `change` does to each member.
    fn left(layout: &Layout, change: impl Fn(usize, &mut Seen)) -> Evidence {
        let mut evidence = unwritten(layout);
        let members = evidence.members.iter_mut().flatten().enumerate();
        members.for_each(|(member, seen)| change(member, seen));
        evidence
    }

    #[test]
    fn what_no_crash_leaves_is_a_refusal() {
        let layout = layout(4, 1);
        let decide = |evidence: &Evidence, finished| decide(&layout, evidence, finished);
        let wps = |wps: [u64; 4]| left(&layout, |member, seen| seen.wp_blocks = wps[member]);
        let odd = Refusal::Position { member: 2, wp_blocks: 1 };
        assert_eq!(decide(&wps([0, 0, 1, 0]), None), Err(odd));
        // A write pointer that has passed a row, a finish, or a tail that was told: the data has to be there.
        let lacking = Refusal::Lacking { member: 0 };
        assert_eq!(decide(&wps([2, 0, 2, 0]), None), Err(lacking.clone()));
        assert_eq!(decide(&wps([0; 4]), Some(5)), Err(lacking.clone()));
        assert_eq!(decide(&Evidence { told_blocks: 1, ..wps([0; 4]) }, None), Err(lacking.clone()));
        // A stripe is begun when all have passed the row of the one before.
        let behind = Refusal::Behind { member: 0, wp_blocks: 0, tail_blocks: 12 };
        assert_eq!(decide(&wps([0, 4, 4, 4]), None), Err(behind));
        // One that cannot say what it holds could be decoded if there were anything; two could not.
        let unreadable =
            |most: usize| left(&layout, |member, seen| seen.unreadable.extend((member < most).then_some(0)));
        assert_eq!(decide(&unreadable(1), None), Ok(0));
        assert_eq!(decide(&unreadable(2), None), Err(lacking));
    }

    #[test]
    fn a_version_that_a_lost_member_has_logged_decodes_nothing() {
        let layout = layout(4, 1);
        let mut evidence = left(&layout, |_, seen| seen.wp_blocks = 4);
        (evidence.base_row, evidence.told_blocks) = (2, 12);
        evidence.logged.extend([(2, 0, 1, 0), (2, 1, 1, 0)]);
        assert_eq!(decide(&layout, &evidence, None), Ok(14));
        evidence.members[layout.parity_member(2, 0)] = None;
        assert_eq!(decide(&layout, &evidence, None), Ok(12));
    }

    /// Explores what can be on the drives while plans of every size are in flight, several at a time, and
    /// checks where each crash lands with every member missing in turn. Gives the crashes.
    fn explore(layout: &Layout, rules: &Rules) -> usize {
        let mut todo = vec![(unwritten(layout), 0)];
        let mut seen = BTreeSet::new();
        let mut crashes = 0;
        while let Some((evidence, complete)) = todo.pop() {
            if !seen.insert(format!("{complete} {evidence:?}")) {
                continue;
            }
            for plans in flights(layout, rules, complete, complete) {
                // The window: write pointers have passed complete rows, as far as the plans need it.
                let begun = plans[plans.len() - 1].div_ceil(layout.stripe_blocks());
                let passed = begun.saturating_sub(layout.distance);
                if passed > complete / layout.stripe_blocks() {
                    continue;
                }
                let mut evidence = evidence.clone();
                for seen in evidence.members.iter_mut().flatten() {
                    seen.wp_blocks = seen.wp_blocks.max(passed * layout.chunk_blocks);
                }
                let all: Vec<_> = plans.windows(2).flat_map(|p| landings(layout, p[0], p[1])).collect();
                let stripe_of = |at: usize| {
                    let mut count = 0;
                    let plan = plans.windows(2).find(|p| {
                        count += landings(layout, p[0], p[1]).len();
                        at < count
                    });
                    plan.map_or(0, |p| p[0] / layout.stripe_blocks())
                };
                for landed in 0..1u32 << all.len() {
                    let mut crashed = evidence.clone();
                    for (at, landing) in all.iter().enumerate().filter(|(at, _)| landed & (1 << at) != 0) {
                        land(layout, &mut crashed, stripe_of(at), *landing);
                    }
                    for missing in losses(layout) {
                        let mut left = crashed.clone();
                        Core::each(missing).for_each(|member| left.members[member] = None);
                        let tail = decide(layout, &left, None);
                        let most = plans[plans.len() - 1];
                        assert!(
                            tail.as_ref().is_ok_and(|tail| (complete..=most).contains(tail)),
                            "landed on {tail:?} instead of {complete}: {plans:?} {missing:b} {left:?}"
                        );
                        crashes += 1;
                    }
                }
                let mut next = evidence.clone();
                for landing in landings(layout, plans[0], plans[1]) {
                    land(layout, &mut next, plans[0] / layout.stripe_blocks(), landing);
                }
                todo.push((next, plans[1]));
            }
        }
        crashes
    }

    /// Plans, one after the other from `from` on, that may be in flight when everything below `complete`
    /// is complete: their borders.
    fn flights(layout: &Layout, rules: &Rules, complete: u64, from: u64) -> Vec<Vec<u64>> {
        const MOST_IN_FLIGHT: u64 = 5;
        let stripe_blocks = layout.stripe_blocks();
        let base = from / stripe_blocks * stripe_blocks;
        let window = (complete / stripe_blocks + layout.distance) * stripe_blocks;
        let most = (complete + MOST_IN_FLIGHT).min(base + stripe_blocks).min(2 * stripe_blocks).min(window);
        let mut all = Vec::new();
        for to in from + 1..=most {
            let in_turn = plan_end(layout, from - base, to - base) == to - base;
            let waits = needs(layout, from - base, to - base);
            if rules.in_turn && !in_turn || rules.wait && waits > 0 && base + waits > complete {
                continue;
            }
            all.push(vec![from, to]);
            all.extend(
                flights(layout, rules, complete, to).into_iter().map(|rest| [&[from], &rest[..]].concat()),
            );
        }
        all
    }

    #[test]
    fn recovery_lands_where_it_may_from_every_state_that_can_be_reached() {
        let rules = Rules { in_turn: true, wait: true };
        let mut crashes = 0;
        // With the other place in the zone, and in the metadata log.
        for (members, distance) in [(3, 1), (3, 3), (4, 1), (4, 3), (5, 1)] {
            crashes += explore(&layout(members, distance), &rules);
        }
        for (members, distance) in [(4, 1), (4, 3), (5, 1)] {
            crashes += explore(&Layout { parities: 2, ..layout(members, distance) }, &rules);
        }
        assert!(crashes > 100_000, "{crashes}");
    }

    #[test]
    #[should_panic(expected = "landed on")]
    fn versions_that_do_not_take_turns_are_noticed() {
        explore(&layout(5, 1), &Rules { in_turn: false, wait: true });
    }

    #[test]
    #[should_panic(expected = "landed on")]
    fn versions_that_do_not_wait_are_noticed() {
        explore(&layout(4, 1), &Rules { in_turn: true, wait: false });
    }

    #[test]
    fn a_plan_is_cut_only_where_it_has_to_be() {
        let layout = Layout { chunk_blocks: 4, ..layout(5, 1) };
        // From the start of a stripe anything goes; so does anything up to a chunk, and three chunks.
        for to in 1..=16 {
            assert_eq!(plan_end(&layout, 0, to), to);
        }
        for from in 1..16 {
            for to in from + 1..=16.min(from + 4) {
                assert_eq!(plan_end(&layout, from, to), to, "{from}");
            }
        }
        assert_eq!(
            (plan_end(&layout, 4, 16), plan_end(&layout, 8, 16), plan_end(&layout, 5, 16)),
            (16, 12, 9)
        );
        assert_eq!((needs(&layout, 0, 16), needs(&layout, 4, 16), needs(&layout, 8, 9)), (0, 0, 5));
    }
}
