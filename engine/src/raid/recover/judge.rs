//! What a zone is, and where it ended: reads what it needs, and writes nothing.

use crate::{
    buf::{BLOCK, Buf},
    code::xor,
    device::{Command, Status},
    format::record::{Burned, Origin, Record, Unreadable, ZoneRecord},
    raid::{
        Canary,
        core::Core,
        geometry::{MAX_MEMBERS, Place},
        policy::{
            Policy,
            zrwa::{self, Evidence, Refusal},
        },
        recover::{Tail, Verdict, ZoneView, is_uniform},
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::BTreeMap;

/// What logs say of a zone.
#[derive(Default)]
struct Logged {
    tail: Option<u64>,
    /// There may be something else in the log blocks, which must not be believed later.
    leftovers: bool,
    /// Below this block a tail may have been logged where it can be read no more, on this member.
    doubt: Option<(u64, usize)>,
}

impl Logged {
    /// Refuses a tail that something may have been logged above.
    fn check(&self, tail_blocks: u64) -> Result<(), Refusal> {
        match self.doubt {
            Some((end_blocks, member)) if tail_blocks < end_blocks => Err(Refusal::Log { member }),
            _ => Ok(()),
        }
    }
}

impl Core {
    /// Looks at one zone and decides; only reads. Members that lost their part are marked in
    /// `view.record`, unless there is no decision.
    ///
    /// If what one member holds is not what any crash leaves, while all others agree, somebody else has
    /// been at it: it is done without, as if it were missing.
    pub async fn judge(&self, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        let (record, burned) = (*view.record, self.burned.borrow().clone());
        let refusal = match self.judge_as_found(view).await {
            Ok(verdict) => return Ok(verdict),
            Err(refusal) => refusal,
        };
        let all = view.info.iter().all(Option::is_some) && record.lost == 0;
        let mut found: Option<(Verdict, ZoneRecord, Vec<Burned>)> = None;
        for member in (0..self.layout.members).filter(|_| all && refusal.accuses()) {
            *view.record = ZoneRecord { lost: 1 << member, ..record };
            self.burned.replace(burned.clone());
            let verdict = self.judge_as_found(view).await;
            let held = matches!(verdict, Ok(Verdict::Open(_) | Verdict::Full | Verdict::Finish(_)));
            if let (true, Ok(verdict)) = (held, verdict) {
                if found.is_some() {
                    // It could be either of two.
                    found = None;
                    break;
                }
                found = Some((verdict, *view.record, self.burned.borrow().clone()));
            }
        }
        let (result, record, burned) = match found {
            Some((verdict, record, burned)) => (Ok(verdict), record, burned),
            None => (Err(refusal), record, burned),
        };
        *view.record = record;
        self.burned.replace(burned);
        result
    }

    async fn judge_as_found(&self, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        for (member, info) in view.info.iter().enumerate() {
            // Nothing can be read from or written to it any more, or nothing written.
            if info.is_some_and(|info| matches!(info.state, ZoneState::ReadOnly | ZoneState::Offline)) {
                view.record.lost |= 1 << member;
            }
        }
        let record = *view.record;
        let used_blocks = self.layout.rows * self.layout.chunk_blocks;
        if record.resetting {
            return Ok(Verdict::Reset);
        }
        self.check_ended(view)?;
        if self.layout.policy == Policy::Log {
            return self.judge_log(view).await;
        }
        // Who can be relied on: with a ZRWA, full, or empty, which may be what a shutdown has made of it.
        let wp = |info: &ZoneInfo| match info.state {
            ZoneState::Full => Some(used_blocks),
            ZoneState::Empty => Some(0),
            _ if info.zrwa => Some(info.wp_blocks.min(used_blocks)),
            _ => None,
        };
        let trusted = |member: usize| record.lost & (1 << member) == 0;
        let present = || view.info.iter().enumerate().filter_map(|(m, info)| Some((m, info.as_ref()?)));
        let wps: Vec<_> =
            (0..view.info.len()).map(|m| view.info[m].as_ref().filter(|_| trusted(m)).and_then(wp)).collect();
        let full = |m: usize, info: &ZoneInfo| !trusted(m) || info.state == ZoneState::Full;
        let all_full = present().all(|(m, info)| full(m, info)) && wps.iter().flatten().next().is_some();
        let relied = wps.iter().flatten().count();
        let (members, needed) = (self.layout.members, self.layout.members - 1);
        if all_full {
            return Ok(Verdict::Full);
        }
        if record.finished == Some(0) {
            return Ok(Verdict::Finish(None));
        }
        if self.layout.policy == Policy::InPlace {
            return self.judge_in_place(view, &wps).await;
        }
        let all_empty = present().all(|(m, info)| info.state == ZoneState::Empty || !trusted(m));
        let logged = self.logged_tail(view.zone, &record, &wps, all_empty).await;
        if relied < needed {
            // What the others had been told, and in a zone that was just begun even that there was anything,
            // may be known to them alone.
            return Err(Refusal::TooFew { present: relied, members, needed });
        }
        if all_empty
            && record.finished.is_none()
            && (logged.tail.is_none() && !self.is_answered(view, &wps).await
                || self.canary == Some(Canary::EmptyIsUnwritten))
        {
            logged.check(0)?;
            let leftovers = present().any(|(m, info)| {
                !matches!(info.state, ZoneState::Empty | ZoneState::Offline | ZoneState::ReadOnly)
                    || record.lost & (1 << m) != 0 && info.state == ZoneState::Empty
            });
            return Ok(if leftovers || logged.leftovers { Verdict::Reset } else { Verdict::Empty });
        }
        let told = logged.tail.max(Some(view.answered_blocks).filter(|blocks| *blocks > 0));
        let lost = present().filter(|(m, _)| wps[*m].is_none()).fold(0, |lost, (m, _)| lost | 1 << m);
        let mut evidence = Evidence { wp_blocks: wps, told_blocks: told };
        let blocks = match record.finished {
            Some(tail) => tail,
            None => zrwa::decide(&self.layout, &evidence)?,
        };
        if record.finished.is_none() {
            logged.check(blocks)?;
        }
        if blocks == 0 {
            return Ok(Verdict::Reset);
        }
        let empty = present()
            .filter(|(m, info)| trusted(*m) && info.state == ZoneState::Empty)
            .fold(0, |empty, (m, _)| empty | 1 << m);
        let held = self.hold(view, &mut evidence, blocks, empty).await?;
        view.record.lost |= lost | held.gone;
        let half = self.layout.chunk_blocks / 2;
        let mut positions = [0; MAX_MEMBERS];
        for (position, wp) in positions.iter_mut().zip(&evidence.wp_blocks) {
            *position = wp.unwrap_or(0) / half;
        }
        let parity = self.load_parity(view, blocks, &evidence).await?;
        let tail = Tail { blocks, positions, parity, revived: empty & !held.gone, held: held.pieces };
        Ok(if record.finished.is_some() { Verdict::Finish(Some(tail)) } else { Verdict::Open(tail) })
    }

    /// Refuses a zone that has ended and lacks more parts than parity makes up for, if a member that is not
    /// there may hold its own: it would be stale there from now on, and what it holds could not be had back.
    pub fn check_ended(&self, view: &ZoneView<'_>) -> Result<(), Refusal> {
        let record = &view.record;
        let trusted = |m: &usize| record.lost & (1 << m) == 0;
        let (members, needed) = (self.layout.members, self.layout.members - 1);
        let parts: Vec<_> = (0..members).filter(trusted).filter_map(|m| view.info[m]).collect();
        let full = parts.iter().all(|info| info.state == ZoneState::Full);
        let ended = record.finished.map_or(full, |tail| tail > 0);
        let superblock = self.superblock.borrow();
        let holds = |m: usize| superblock.members[m].active || record.waits & (1 << m) != 0;
        let away = (0..members).filter(trusted).any(|m| view.info[m].is_none() && holds(m));
        match ended && away && parts.len() < needed {
            true => Err(Refusal::TooFew { present: parts.len(), members, needed }),
            false => Ok(()),
        }
    }

    /// Whether something that a process had answered is in a zone that is empty on all members. If not,
    /// it was reset before the process could say so.
    async fn is_answered(&self, view: &ZoneView<'_>, wps: &[Option<u64>]) -> bool {
        if view.answered_blocks > 0 {
            for member in (0..wps.len()).filter(|member| wps[*member].is_some()) {
                for zrwa in self.zrwas_at_start(member) {
                    if !self.is_blank(view.zone, member, zrwa).await {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// What was logged for the zone's present life. If it is empty on all members, that can only be a
    /// tail in its first stripe.
    async fn logged_tail(
        &self,
        zone: ZoneIndex,
        record: &ZoneRecord,
        wps: &[Option<u64>],
        all_empty: bool,
    ) -> Logged {
        let layout = &self.layout;
        let mut found = Logged::default();
        let any_epoch = self.canary == Some(Canary::NoEpochCheck);
        for member in &self.members {
            if let Some(log) = &*member.log.borrow()
                && let Some(tail) = log.live.borrow().tails.get(&zone.0)
                && (tail.epoch == record.epoch || any_epoch)
            {
                found.tail = found.tail.max(Some(tail.tail_blocks));
            }
        }
        let passed = wps.iter().flatten().min().copied().unwrap_or(0) / layout.chunk_blocks;
        let last = if all_empty { 1 } else { passed + 2 * layout.distance + 1 };
        let mut pending = Vec::new();
        for stripe in passed.saturating_sub(1)..last.min(layout.rows) {
            let (members, place) = layout.log(stripe);
            let Place::Row(row) = place else {
                let holes = |m: &usize| wps[*m].is_some() && self.log_has_holes(zone, *m);
                if !members.iter().any(|m| wps[*m].is_some() && !holes(m)) {
                    let end = (stripe + 1) * layout.stripe_blocks();
                    found.doubt = members.into_iter().find(holes).map(|m| (end, m)).or(found.doubt);
                }
                continue;
            };
            for member in
                members.into_iter().filter(|m| wps[*m].is_some_and(|wp| wp < (row + 1) * layout.chunk_blocks))
            {
                for block in 0..2 {
                    let lba = self.start(member, zone).0 + row * layout.chunk_blocks + block;
                    let origin = Origin { array: self.array, member: member as u32, lba };
                    let read = self.submit(member, Command::read(Lba(lba), Buf::zeroed(BLOCK)));
                    pending.push((stripe, origin, read));
                }
            }
        }
        // A tail was promised when all log members had it: one that can be read as a whole is enough.
        let mut seen: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        for (stripe, origin, read) in pending {
            let done = read.await;
            let unwritten = done.result == Err(Status::DeallocatedBlock.into());
            let read = match done.result {
                Ok(()) => Record::read(&done.data, origin),
                Err(_) => Err(Unreadable::NoRecord),
            };
            // A log block is written as one: no power cut leaves half of one. Data can only be there once
            // all members have passed the row of the stripe, and then no tail is as short as that.
            let damaged = match &read {
                _ if done.result.is_err() => !unwritten,
                Ok(_) => false,
                Err(_) => !is_uniform(&done.data),
            };
            let (whole, unsound) = seen.entry(stripe).or_default();
            *(if damaged { unsound } else { whole }) |= 1 << origin.member;
            if unwritten {
                continue;
            }
            if let Ok((Record::Tail(tail), _, _)) = read
                && tail.zone == zone.0
                && (tail.epoch == record.epoch || any_epoch)
                && (tail.tail_blocks.saturating_sub(1)) / layout.stripe_blocks() == stripe
            {
                found.tail = found.tail.max(Some(tail.tail_blocks));
            } else {
                found.leftovers |= done.result.is_err() || done.data.iter().any(|byte| *byte != 0);
            }
        }
        for (stripe, (whole, unsound)) in seen {
            if whole & !unsound == 0
                && let Some(member) = Core::each(unsound).next()
            {
                let end = (stripe + 1) * layout.stripe_blocks();
                found.doubt = Some(found.doubt.map_or((end, member), |doubt| doubt.max((end, member))));
            }
        }
        found
    }

    /// The running parity of the stripe of `tail`: from the data, or from the slots where a data
    /// chunk cannot be read.
    async fn load_parity(&self, view: &ZoneView<'_>, tail: u64, evidence: &Evidence) -> Result<Buf, Refusal> {
        let layout = &self.layout;
        let chunk = layout.chunk_blocks;
        let mut result = Buf::zeroed(chunk as usize * BLOCK);
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        for block in 0..chunk.min(covered) {
            let chunks = (covered - block).div_ceil(chunk);
            let found = match self.parity_from_data(view.zone, stripe, chunks, block, evidence).await {
                Some(found) => found,
                None => self.parity_from_slot(view, stripe, chunks, block, evidence).await.ok_or({
                    let present = evidence.wp_blocks.iter().flatten().count();
                    Refusal::TooFew { present, members: layout.members, needed: layout.members }
                })?,
            };
            if let Some(target) = result.as_mut() {
                target[block as usize * BLOCK..][..BLOCK].copy_from_slice(&found);
            }
        }
        Ok(result)
    }

    pub async fn read_block(
        &self,
        zone: ZoneIndex,
        member: usize,
        at: u64,
        evidence: &Evidence,
    ) -> Option<Buf> {
        evidence.wp_blocks[member].filter(|_| !self.has_hole(zone, member, at..at + 1))?;
        let lba = Lba(self.start(member, zone).0 + at);
        let done = self.submit(member, Command::read(lba, Buf::zeroed(BLOCK))).await;
        done.result.is_ok().then_some(done.data)
    }

    pub async fn parity_from_data(
        &self,
        zone: ZoneIndex,
        stripe: u64,
        chunks: u64,
        block: u64,
        evidence: &Evidence,
    ) -> Option<Buf> {
        let layout = &self.layout;
        let members = (0..chunks).map(|index| layout.member(stripe, index));
        if members.clone().any(|m| evidence.wp_blocks[m].is_none()) {
            return None;
        }
        let mut result = Buf::zeroed(BLOCK);
        for member in members {
            let data = self.read_block(zone, member, stripe * layout.chunk_blocks + block, evidence).await?;
            xor::xor_assign(result.as_mut()?, &data);
        }
        Some(result)
    }

    pub async fn parity_from_slot(
        &self,
        view: &ZoneView<'_>,
        stripe: u64,
        chunks: u64,
        block: u64,
        evidence: &Evidence,
    ) -> Option<Buf> {
        let layout = &self.layout;
        let (zone, epoch, finished) = (view.zone, view.record.epoch, view.record.finished.is_some());
        let parity_member = layout.parity_member(stripe);
        // A finish that got as far as the write pointer of the parity has made it the full parity.
        let promoted = finished
            && evidence.wp_blocks[parity_member].is_some_and(|wp| wp >= (stripe + 1) * layout.chunk_blocks);
        if promoted {
            return self
                .read_block(zone, parity_member, stripe * layout.chunk_blocks + block, evidence)
                .await;
        }
        let (member, place) = layout.slot(stripe, chunks - 1);
        match place {
            Place::Row(row) => {
                self.read_block(zone, member, row * layout.chunk_blocks + block, evidence).await
            }
            Place::MetaLog => {
                evidence.wp_blocks[member]?;
                let log = self.members[member].log.borrow().clone()?;
                let live = log.live.borrow();
                live.parity.get(zone.0, epoch, stripe, chunks - 1, block).cloned()
            }
        }
    }
}
