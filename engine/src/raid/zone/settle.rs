//! Settling (group commit of a zone): makes data safe, moves write pointers and the window; pauses and ends zones.

use crate::{
    device::{Command, DeviceError, Done, Status, Zones},
    format::record::Record,
    raid::{
        Consistency,
        events::Event,
        geometry::{MAX_MEMBERS, each, physical},
        parts::Raid,
        zone::flow::{Flow, Round, Write, Zone},
    },
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

impl Raid {
    /// Task: carries out rounds of settling until the zone ends.
    pub async fn settle(self: Rc<Self>, zone: Rc<Zone>) {
        loop {
            let work = zone.completed.wait();
            if zone.flow.borrow().ended {
                return;
            }
            if !self.settle_once(&zone).await {
                work.await;
            }
        }
    }

    /// Carries out one round; `false` if there was none to do, or the zone has failed.
    async fn settle_once(&self, zone: &Zone) -> bool {
        if self.has_failed(zone.index) && self.drain.handing_over().is_none() {
            self.give_up(zone);
            return false;
        }
        let round = {
            let mut flow = zone.flow.borrow_mut();
            if !self.unsettled(&flow) {
                return false;
            }
            flow.settling = true;
            self.round_of(&flow, flow.wanted > flow.safe)
        };
        let safe = self.settle_round(zone, &round).await;
        let full = round.complete == self.layout.capacity_blocks();
        if full {
            self.fill_zones(zone).await;
        }
        self.notices_power_loss(self.live(zone.index));
        self.membership.settled().await;
        self.settled(zone, round.chunks, if full { round.complete } else { safe }, full);
        !self.has_failed(zone.index)
    }

    fn round_of(&self, flow: &Flow, wanted: bool) -> Round {
        Round { complete: flow.complete, wanted, chunks: self.chunks_to_claim(flow), claimed: flow.claimed }
    }

    /// Carries out a round and records the first promise; returns the end of the blocks that are safe now, or 0.
    async fn settle_round(&self, zone: &Zone, round: &Round) -> u64 {
        let safe = self.layout.policy.settle(self, zone, round).await;
        if safe > 0 {
            self.record_promise(zone, safe).await;
        }
        safe
    }

    /// Records in the members' logs, before the first acknowledged FUA write or flush of a zone, that all blocks below
    /// `tail_blocks` are promised. Without the record, a zone that has lost all its ZRWAs before the write pointers
    /// moved would count as empty. It is written after the other evidence of the tail (log blocks, write pointers), so
    /// a record without such evidence proves a loss.
    pub async fn record_promise(&self, zone: &Zone, tail_blocks: u64) {
        if zone.promised.replace(true) || !self.layout.policy.uses_zrwa() {
            return;
        }
        // The other consistency levels, for experiments, log no tails.
        if self.behaviour.consistency != Consistency::WpLog || self.has_failed(zone.index) {
            return;
        }
        self.log_promise(zone, tail_blocks, self.live(zone.index), 0).await;
    }

    /// As [`Raid::record_promise`], when `member` gets a rebuilt part whose write pointer is at the start: with it
    /// there may be enough such parts for a record that was not needed when the promise was made.
    pub async fn record_promise_with(&self, zone: &Zone, tail_blocks: u64, member: usize) {
        if !zone.promised.get() || self.behaviour.consistency != Consistency::WpLog {
            return;
        }
        self.log_promise(zone, tail_blocks, self.live(zone.index), 1 << member).await;
    }

    /// Logs a promise on the members `live` and `joining` (bits), unless too few write pointers are at the start; those
    /// of `joining` are. A part whose write pointer has moved does not look empty after the loss of its ZRWA, and
    /// without enough others the zone is offline anyway.
    async fn log_promise(&self, zone: &Zone, tail_blocks: u64, live: u32, joining: u32) {
        assert!(
            live & joining == 0,
            "members {joining:#b} join zone {}, and hold it already: {live:#b}",
            zone.index.0
        );
        let unmoved = each(live).filter(|m| zone.flow.borrow().positions[*m] == 0);
        if self.members.are_enough(unmoved.fold(joining, |mask, m| mask | 1 << m)) {
            let record = self.layout.policy.promise_record(self, zone, tail_blocks);
            let sequence = self.membership.next_sequence();
            self.append_to(live | joining, Record::Tail(record), sequence).await;
        }
    }

    /// Promises all complete data of a quiesced zone that is to be finished, unless data is promised already. Otherwise
    /// a crash during the finish in which all its ZRWAs are lost would leave a zone full of zeros.
    pub async fn prove_data(&self, zone: &Zone) {
        if zone.promised.get() || !self.layout.policy.uses_zrwa() {
            return;
        }
        let round = self.round_of(&zone.flow.borrow(), true);
        self.settle_round(zone, &round).await;
        zone.flow.borrow_mut().claimed = round.chunks.max(round.claimed);
    }

    /// Number of chunks, from the start of the zone, that should count as settled.
    fn chunks_to_claim(&self, flow: &Flow) -> u64 {
        let (layout, consistency) = (&self.layout, self.behaviour.consistency);
        layout.policy.chunks_to_claim(layout, consistency, flow.complete, flow.claimed)
    }

    /// Whether a round of settling is due.
    pub fn unsettled(&self, flow: &Flow) -> bool {
        // The round of a full zone ends it.
        let full = flow.complete == self.layout.capacity_blocks();
        let claim = full || self.chunks_to_claim(flow) > flow.claimed;
        !flow.frozen && (claim || (flow.wanted > flow.safe && flow.complete > flow.safe))
    }

    /// Returns errors for the waiting and the queued writes of a zone that has failed; it takes no others.
    pub(super) fn give_up(&self, zone: &Zone) {
        if !zone.failed.replace(true) && !self.membership.has_failed() {
            self.events.note(Event::ZoneFailed { zone: zone.index.0 });
        }
        let waiting: Vec<_> = zone.flow.borrow_mut().waiting.drain(..).collect();
        for (_, completer, done) in waiting {
            completer.complete(Done { result: Err(Status::InternalError.into()), ..done });
        }
        self.refuse_queued(zone, Status::InternalError);
        zone.changed.open();
    }

    /// Records the result of a round of settling, and acknowledges the writes that are safe now. `full`: the zone ends.
    pub fn settled(&self, zone: &Zone, chunks: u64, safe: u64, full: bool) {
        if self.has_failed(zone.index) {
            zone.flow.borrow_mut().settling = false;
            return self.give_up(zone);
        }
        {
            let mut flow = zone.flow.borrow_mut();
            let flow = &mut *flow;
            assert!(
                chunks <= self.layout.chunk_of(flow.complete).0,
                "{chunks} chunks are claimed, complete up to block {}",
                flow.complete
            );
            flow.settling = false;
            flow.claimed = flow.claimed.max(chunks);
            flow.safe = flow.safe.max(safe);
            flow.limit = self.window(flow, self.live(zone.index));
            flow.check();
            while flow.waiting.front().is_some_and(|w| w.0 <= flow.safe) {
                if let Some((_, completer, done)) = flow.waiting.pop_front() {
                    completer.complete(done);
                }
            }
            flow.ended |= full;
        }
        if full {
            self.end_zone(zone);
        } else {
            let stripe = chunks / self.layout.data_chunks();
            if self.layout.logs_parity_of(stripe) {
                self.forget_logged(zone.index, stripe);
            }
            zone.queued.open();
        }
        zone.changed.open();
    }

    /// End of the window: blocks below may be submitted with the present positions of the members of `live`.
    pub fn window(&self, flow: &Flow, live: u32) -> u64 {
        let layout = &self.layout;
        let rows = layout.policy.window_rows(layout, live, flow.claimed, &flow.positions);
        rows * layout.stripe_blocks()
    }

    /// Drops the logged parity of the stripes below `stripe`, which no recovery needs any more.
    pub fn forget_logged(&self, zone: ZoneIndex, stripe: u64) {
        for log in self.members.logs() {
            log.live.borrow_mut().parity.forget(zone.0, stripe, &mut self.pool.borrow_mut());
        }
    }

    /// Ends a running zone: drops its state in the logs, and ends its tasks.
    pub fn end_zone(&self, zone: &Zone) {
        self.zones.end(zone.index);
        self.forget_logged(zone.index, u64::MAX);
        for log in self.members.logs() {
            log.live.borrow_mut().tails.remove(&zone.index.0);
        }
        zone.end();
        self.zones.changed.open();
    }

    /// Explicit flushes: moves the write pointers of live members to their target positions, where these are ahead.
    pub async fn move_to(&self, zone: &Zone, targets: &[u64; MAX_MEMBERS]) {
        let half = self.layout.chunk_blocks / 2;
        {
            let mut flow = zone.flow.borrow_mut();
            for m in each(self.live(zone.index)) {
                if targets[m] <= flow.positions[m] {
                    continue;
                }
                let last = Lba(self.members.start(m, zone.index).0 + targets[m] * half - 1);
                let sent = (self.members.seat(m), self.members.submit(m, Command::FlushZrwa { last }));
                flow.moves.push_back(sent);
            }
        }
        loop {
            let Some((seat, completion)) = zone.flow.borrow_mut().moves.pop_front() else { break };
            match completion.await.result {
                Ok(()) => zone.flow.borrow_mut().positions[seat.member] = targets[seat.member],
                Err(error) => self.part_failed(zone.index, seat, error, "ZRWA flush"),
            }
        }
    }

    /// Finishes the members' zones of a full zone: those with more capacity than the array uses, and aggregates, of
    /// which a power cut may have left some zones behind.
    pub async fn fill_zones(&self, zone: &Zone) {
        if self.has_failed(zone.index) {
            return;
        }
        let used = self.layout.rows * self.layout.chunk_blocks;
        let zones = Zones::One(physical(zone.index));
        let aggregated = {
            let superblock = self.membership.superblock();
            // Zones that are written by appends have unused blocks at their end.
            superblock.aggregate > 1 || superblock.group_blocks > 0
        };
        let larger =
            |m: usize| self.members.device(m).is_some_and(|d| d.geometry().zone_capacity_blocks > used);
        // A member that is being replaced: the new drive may have larger zones.
        let copied = self.members.mirrored();
        let short = each(self.live(zone.index))
            .filter(|m| aggregated || larger(*m) || copied == Some(*m))
            .fold(0, |mask, m| mask | 1 << m);
        self.on_parts(zone.index, short, "finish zone", |_| Command::Finish { zones }).await;
        self.clear_lost(zone.index).await;
    }

    /// Resets the remains of a zone that ends, on members that lack their part of it: they take active resources of the
    /// drives. On a member that is being rebuilt the rebuild does that.
    pub async fn clear_lost(&self, zone: ZoneIndex) {
        let rebuilt = self.background.seat().filter(|_| self.background.is_in(zone));
        let lost = self.zone_records.lost(zone) & self.members.active();
        for member in each(lost).filter(|member| rebuilt.is_none_or(|seat| seat.member != *member)) {
            while self.background.is_clearing(zone) {
                self.zones.changed.wait().await;
            }
            if self.zone_records.lost(zone) & (1 << member) != 0 {
                self.clear(zone, member).await;
            }
        }
    }

    /// Waits until no command of the zone is in flight, and complete data is settled. Nothing is submitted until
    /// [`Raid::resume`].
    pub async fn quiesce(&self, zone: &Zone) {
        zone.pause();
        self.quiet(zone).await;
    }

    /// As [`Raid::quiesce`], for a zone that is paused.
    pub async fn quiet(&self, zone: &Zone) {
        loop {
            let changed = zone.changed.wait();
            zone.completed.open();
            {
                let flow = zone.flow.borrow();
                let busy = flow.opening || flow.settling || !flow.flights.is_empty();
                let quiet = !busy && (self.has_failed(zone.index) || !self.unsettled(&flow));
                if quiet || flow.ended || (self.membership.has_failed() && flow.flights.is_empty()) {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Stops all activity in a zone that is about to end, including a rebuild.
    pub async fn freeze(&self, zone: &Zone) {
        self.quiesce(zone).await;
        self.stop_rebuild(zone.index.0..zone.index.0 + 1).await;
        self.quiet(zone).await;
        zone.flow.borrow_mut().frozen = true;
        self.zones.changed.open();
    }

    /// Ends a [`Raid::quiesce`].
    pub fn resume(&self, zone: &Zone) {
        zone.flow.borrow_mut().paused -= 1;
        zone.wake();
    }

    /// Waits until all blocks below `tail_blocks` are safe, or the zone has ended.
    ///
    /// # Errors
    /// Internal Error, if the zone fails before that.
    pub async fn make_safe(&self, zone: &Zone, tail_blocks: u64) -> Result<(), DeviceError> {
        loop {
            let changed = zone.changed.wait();
            {
                let mut flow = zone.flow.borrow_mut();
                flow.wanted = flow.wanted.max(tail_blocks);
                if flow.safe >= tail_blocks || flow.ended {
                    return Ok(());
                }
            }
            if self.has_failed(zone.index) {
                return Err(Status::InternalError.into());
            }
            zone.completed.open();
            changed.await;
        }
    }

    /// Completes all queued writes with an error.
    pub fn refuse_queued(&self, zone: &Zone, status: Status) {
        let queued: Vec<_> = zone.flow.borrow_mut().queue.drain(..).collect();
        for Write { data, completer, .. } in queued {
            completer.complete(Done { result: Err(status.into()), data, ..Done::ok() });
        }
    }
}
