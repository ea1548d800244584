//! What a zone is, and where it ended: reads what it needs, and writes nothing.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::xor,
    device::Command,
    format::record::{Burned, ZoneRecord},
    raid::{
        core::Core,
        geometry::Place,
        policy::zrwa::{Evidence, Refusal},
        recover::{Verdict, ZoneView},
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};

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
        if view.record.resetting {
            return Ok(Verdict::Reset);
        }
        self.check_ended(view)?;
        self.layout.policy.judge(self, view).await
    }

    /// Write pointers of the members that can be relied on: with a ZRWA, full, or empty, which may be what a
    /// shutdown has made of it.
    pub fn trusted_wps(&self, view: &ZoneView<'_>) -> Vec<Option<u64>> {
        let used_blocks = self.layout.rows * self.layout.chunk_blocks;
        let wp = |info: &ZoneInfo| match info.state {
            ZoneState::Full => Some(used_blocks),
            ZoneState::Empty => Some(0),
            _ if info.zrwa => Some(info.wp_blocks.min(used_blocks)),
            _ => None,
        };
        (0..view.info.len()).map(|m| view.info[m].as_ref().filter(|_| view.trusts(m)).and_then(wp)).collect()
    }

    /// What a zone is that has ended, if it has.
    pub fn judge_ended(&self, view: &ZoneView<'_>, wps: &[Option<u64>]) -> Option<Verdict> {
        let full = |m: usize, info: &ZoneInfo| !view.trusts(m) || info.state == ZoneState::Full;
        let all_full = view.present().all(|(m, info)| full(m, info)) && wps.iter().flatten().next().is_some();
        match view.record.finished {
            _ if all_full => Some(Verdict::Full),
            Some(0) => Some(Verdict::Finish(None)),
            _ => None,
        }
    }

    /// Refuses a zone that has ended and lacks more parts than parity makes up for, if a member that is not
    /// there may hold its own: it would be stale there from now on, and what it holds could not be had back.
    pub fn check_ended(&self, view: &ZoneView<'_>) -> Result<(), Refusal> {
        let record = &view.record;
        let trusted = |m: &usize| view.trusts(*m);
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
        let mut result = BufMut::zeroed(BLOCK);
        for member in members {
            let data = self.read_block(zone, member, stripe * layout.chunk_blocks + block, evidence).await?;
            xor::xor_assign(&mut result, &data);
        }
        Some(result.freeze())
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
