//! Writes (§4.1): one running zone is a queue of writes and three tasks.
//!
//! `submit_plans` takes data from the queue in *plans*: blocks of one stripe, of any number of writes, which are
//! submitted together with the parity that [`zrwa::parity_of`] returns. `reap_flights` takes completions in the order
//! of the plans, so that a plan is complete only when all plans before it are; it acknowledges the writes of a plan,
//! each on its own, that need not be safe. `settle` then moves the write pointers, logs tails that write pointers
//! cannot show, and acknowledges the writes that had to be safe.
//!
//! Queued data that completes a stripe is submitted at once. Less than that needs partial parity, so it may wait while
//! other writes of the zone are in flight ([`Raid::plan_end`]); when none is, it is submitted. No tail inside a plan is
//! ever claimed, logged or recorded.
//!
//! The window: stripe `s` may be written when every member has passed row `s − D`. Then data stays
//! within `[wp, wp + D)` and partial parity and logs within `[wp + D, wp + 2D)`, no write causes an implicit flush, and
//! the slots of stripe `s − D` are not needed any more when they are overwritten.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::{pq, xor},
    device::{Command, Completion, Done, Status, Zones},
    format::{
        oob::Content,
        record::{ParityRecord, Record},
    },
    raid::{
        LogStep,
        geometry::{ParityPlace, physical},
        parts::Raid,
        policy::{inplace, zrwa},
        seat::Seat,
        zone::flow::{Flow, Parities, SubRequest, SubmittedPlan, Traffic, Write, Zone},
    },
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Why [`Raid::reap`] stops.
enum ReapStop {
    /// No plan is in flight.
    Idle,
    /// The zone has ended.
    Ended,
    /// This sub-request has not completed.
    Wait(SubRequest),
    /// The membership is pending.
    Membership,
    /// The first promise has to be recorded: all blocks below this one.
    Promise(u64),
}

impl Raid {
    /// Queues a write of `data` at block `at` of a zone, which the zone table has accepted already.
    pub fn write(self: &Rc<Self>, zone: ZoneIndex, at: u64, data: Buf, fua: bool) -> Completion {
        let (completer, completion) = self.slots.pair();
        let running = self.running_zone(zone);
        {
            let mut flow = running.flow.borrow_mut();
            let end = flow.queue.back().map_or(flow.next, Write::end);
            assert!(at == end, "a write at block {at} of zone {}, which ends at {end}", zone.0);
            flow.queue.push_back(Write { start: at, data, fua, completer });
        }
        running.queued.open();
        completion
    }

    /// The running zone `index`; if it was not running, it is opened on the members.
    pub fn running_zone(self: &Rc<Self>, index: ZoneIndex) -> Rc<Zone> {
        if let Some(zone) = self.zones.running(index) {
            return zone;
        }
        let zone = Rc::new(Zone::new(&self.layout, index, self.zone_records.epoch(index)));
        self.zones.start(zone.clone());
        self.runtime.spawn(self.clone().open_members(zone.clone()));
        zone
    }

    async fn open_members(self: Rc<Self>, zone: Rc<Zone>) {
        loop {
            // A loss of power that is noticed only later would seem to concern the data of this zone.
            if self.notices_power_loss(self.members.active()) {
                self.power_checked().await;
            }
            let changed = self.zones.changed.wait();
            if zone.flow.borrow().is_over() {
                return;
            }
            // A zone that has just become full may still take active resources of the members. 0 means unlimited.
            let limit = self.geometry.max_active as usize;
            let limit = limit.saturating_sub(self.zones.holding());
            let room = limit == 0 || self.zones.open_count() < limit;
            if self.has_failed(zone.index) || (room && !self.background.is_in(zone.index)) {
                break;
            }
            changed.await;
        }
        {
            let mut flow = zone.flow.borrow_mut();
            (flow.open, flow.opening) = (true, true);
        }
        let (zones, zrwa) = (Zones::One(physical(zone.index)), self.layout.policy.uses_zrwa());
        let zrwa = zrwa || self.behaviour.log_step >= LogStep::Zrwa;
        let live = self.live(zone.index);
        self.on_parts(zone.index, live, "open zone", |_| Command::Open { zones, zrwa }).await;
        self.layout.policy.opened(&self, &zone).await;
        zone.flow.borrow_mut().opening = false;
        zone.changed.open();
        self.start_tasks(&zone);
    }

    pub fn start_tasks(self: &Rc<Self>, zone: &Rc<Zone>) {
        self.runtime.spawn(self.clone().submit_plans(zone.clone()));
        self.runtime.spawn(self.clone().reap_flights(zone.clone()));
        self.runtime.spawn(self.clone().settle(zone.clone()));
    }

    /// Task: submits queued data. It runs after all other ready tasks, so that these have queued their writes.
    async fn submit_plans(self: Rc<Self>, zone: Rc<Zone>) {
        loop {
            let queued = zone.queued.wait();
            if zone.flow.borrow().ended {
                return;
            }
            self.pump(&zone);
            queued.await;
        }
    }

    /// Submits as many plans as may be submitted now.
    fn pump(&self, zone: &Zone) {
        let mut flow = zone.flow.borrow_mut();
        let flow = &mut *flow;
        if !flow.open || flow.opening || flow.paused > 0 || self.has_failed(zone.index) {
            return;
        }
        let mut submitted = false;
        while let Some(end) = self.plan_end(flow) {
            let end = match self.layout.policy.plan_end(&self.layout, flow.safe, flow.next, end) {
                Ok(end) => end,
                Err(needed) => {
                    flow.want(needed);
                    zone.completed.open();
                    break;
                }
            };
            let before = flow.subs.len();
            self.submit_plan(zone.index, flow, end);
            assert!(flow.next == end, "a plan up to block {end} has submitted {}", flow.next);
            let subs = (flow.subs.len() - before) as u32;
            let blocks = flow.subs.range(before..).map(|sub| sub.blocks).sum();
            let traffic = Traffic { commands: subs.into(), blocks };
            self.zones.add_traffic(traffic);
            let before = flow.flights.back().map_or(flow.complete, |flight| flight.end);
            assert!(end > before, "a plan up to block {end} follows one up to {before}");
            flow.flights.push_back(SubmittedPlan { end, subs, traffic });
            if end.is_multiple_of(self.layout.stripe_blocks()) {
                flow.depth = [0, flow.depth[0]];
            }
            submitted = true;
        }
        if submitted {
            flow.check();
            zone.submitted.open();
        }
    }

    /// End of the plan that is to be submitted now, if there is one.
    ///
    /// Data that completes a stripe is submitted, and all data while the members are not busy. When they are busy,
    /// other data waits while writes are in flight: until it completes the stripe, if the recent queue depth suggests
    /// that it will; otherwise until it is as large as the data in flight. Plans then grow with the load, and two of
    /// them are always in flight.
    fn plan_end(&self, flow: &mut Flow) -> Option<u64> {
        let (front, back) = (flow.queue.front()?, flow.queue.back()?);
        if flow.next >= flow.limit {
            return None;
        }
        let stripe_blocks = self.layout.stripe_blocks();
        let stripe_end = (flow.next / stripe_blocks + 1) * stripe_blocks;
        if !self.behaviour.join {
            return Some(front.end().min(stripe_end));
        }
        let end = back.end();
        flow.depth[0] = flow.depth[0].max(end - flow.complete);
        if end >= stripe_end {
            return Some(stripe_end);
        }
        let (left, rest, chunk) = (end - flow.next, stripe_end - flow.next, self.layout.chunk_blocks);
        // Data waits for writes in flight only: when these complete, more writes may be queued.
        let in_flight = front.start.saturating_sub(flow.complete);
        if in_flight > 0 {
            // In the last chunk waiting saves no parity: its slot is the full parity.
            let depth = flow.depth[0].max(flow.depth[1]);
            let fills = depth >= rest && rest > chunk;
            let waits = (fills || left < in_flight) && self.is_busy();
            return (!waits).then_some(end);
        }
        if !(chunk / 2..=chunk).contains(&left) {
            return Some(end);
        }
        // In two halves, so that the transfer of one overlaps with the drive's work on the other.
        let ends = flow.queue.iter().map(Write::end);
        Some(ends.take_while(|end| 2 * (end - flow.next) <= left).last().unwrap_or(front.end()))
    }

    /// Whether fewer and larger commands would help the members: in all zones together, two commands per member are in
    /// flight, or as much as a stripe with its parity. With less, waiting only adds latency.
    fn is_busy(&self) -> bool {
        let Traffic { commands, blocks } = self.zones.traffic();
        commands >= 2 * self.layout.members as u64
            || blocks >= self.layout.chunk_blocks * self.layout.members as u64
    }

    /// Submits queued data up to block `end`, within a stripe, and the parity that it needs.
    fn submit_plan(&self, zone: ZoneIndex, flow: &mut Flow, end: u64) {
        let layout = &self.layout;
        let chunk = layout.chunk_blocks;
        let stripe = flow.next / layout.stripe_blocks();
        let base = stripe * layout.stripe_blocks();
        let (from, to) = (flow.next - base, end - base);
        assert!(from < to && to <= layout.stripe_blocks(), "a plan of blocks {from}..{to} of a stripe");
        let whole_stripe = to - from == layout.stripe_blocks();
        let live = self.live(zone);
        let parts = zrwa::parity_of(layout, from, to);
        let (mut index, mut offset) = layout.chunk_of(from);
        let mut pieces = std::mem::take(&mut flow.pieces);
        while flow.next < end {
            let piece = self.take_piece(flow, (chunk - flow.next % chunk).min(end - flow.next));
            pieces.push(piece);
        }
        let full = if whole_stripe { self.full_parities(stripe, live, &pieces) } else { Default::default() };
        for piece in pieces.drain(..) {
            let write = parts.iter().flatten().any(|part| part.index == index);
            let parities = match whole_stripe {
                true => Default::default(),
                false => self.run_parities(flow, index, offset, &piece, write),
            };
            let member = layout.member(stripe, index);
            if live & (1 << member) != 0 {
                self.store(zone, flow, member, stripe * chunk + offset, piece, Content::Data);
            }
            self.submit_parities(zone, flow, live, (stripe, index, offset), parities);
            (index, offset) = (index + 1, 0);
        }
        self.submit_parities(zone, flow, live, (stripe, index - 1, 0), full);
        flow.pieces = pieces;
    }

    /// Takes `blocks` blocks from the queue: without a copy if they are of one write, otherwise copied together.
    fn take_piece(&self, flow: &mut Flow, blocks: u64) -> Buf {
        let mut joined = BufMut::default();
        let mut done = 0;
        while let Some(front) = flow.queue.front() {
            let skip = flow.next - front.start;
            let taken = (front.data.blocks() - skip).min(blocks - done);
            let data = match taken == front.data.blocks() {
                true => front.data.clone(),
                false => front.data.slice_blocks(skip..skip + taken),
            };
            flow.next += taken;
            if flow.next == front.end() {
                let write = flow.queue.pop_front();
                flow.sent.extend(write);
            }
            if taken == blocks {
                return data;
            }
            if done == 0 {
                joined = self.pool.borrow_mut().take(blocks);
            }
            joined[done as usize * BLOCK..][..data.len()].copy_from_slice(&data);
            done += taken;
            if done == blocks {
                break;
            }
        }
        assert!(done == blocks, "{done} blocks were queued, {blocks} are submitted");
        joined.freeze()
    }

    /// The parities of a whole stripe; P or Q may be missing if its member is not live.
    fn full_parities(&self, stripe: u64, live: u32, pieces: &[Buf]) -> Parities {
        let layout = &self.layout;
        let kept = |which| which < layout.parities && live & (1 << layout.parity_member(stripe, which)) != 0;
        let mut parities = Parities::default();
        let take = || self.pool.borrow_mut().take(layout.chunk_blocks);
        if kept(1) {
            let (mut p, mut q) = (take(), take());
            pq::pq_all(&mut p, &mut q, pieces);
            parities = [Some(p.freeze()), Some(q.freeze())];
        } else if kept(0) {
            let mut p = take();
            xor::xor_all(&mut p, pieces);
            parities[0] = Some(p.freeze());
        }
        parities
    }

    /// Adds `data` of chunk `index` to the running parities; with `write`, returns copies of the results.
    fn run_parities(&self, flow: &mut Flow, index: u64, offset: u64, data: &Buf, write: bool) -> Parities {
        let range = offset as usize * BLOCK..offset as usize * BLOCK + data.len();
        let double = self.layout.parities > 1;
        let power = index as usize;
        let [p, q] = &mut flow.parities;
        let (p, q) = (&mut p[range.clone()], if double { &mut q[range] } else { &mut [] });
        let take = || self.pool.borrow_mut().take(data.blocks());
        match (index, write) {
            (0, _) => {
                p.copy_from_slice(data);
                if double {
                    q.copy_from_slice(data);
                }
                // Either parity of one chunk is the chunk.
                [write.then(|| data.clone()), (write && double).then(|| data.clone())]
            }
            (_, false) => {
                match double {
                    true => pq::pq_assign(p, q, power, data),
                    false => xor::xor_assign(p, data),
                }
                Parities::default()
            }
            (_, true) if double => {
                let (mut p_copy, mut q_copy) = (take(), take());
                pq::pq_assign_and_copy((p, q), power, data, (&mut p_copy, &mut q_copy));
                [Some(p_copy.freeze()), Some(q_copy.freeze())]
            }
            (_, true) => {
                let mut copy = take();
                xor::xor_assign_and_copy(p, data, &mut copy);
                [Some(copy.freeze()), None]
            }
        }
    }

    /// Submits blocks of the slots of a chunk. `at` is stripe, chunk, and first block in the chunk.
    fn submit_parities(
        &self,
        zone: ZoneIndex,
        flow: &mut Flow,
        live: u32,
        at: (u64, u64, u64),
        parities: Parities,
    ) {
        for (which, data) in parities.into_iter().enumerate() {
            if let Some(data) = data {
                self.submit_parity(zone, flow, live, at, which, data);
            }
        }
    }

    fn submit_parity(
        &self,
        zone: ZoneIndex,
        flow: &mut Flow,
        live: u32,
        (stripe, index, offset): (u64, u64, u64),
        which: usize,
        data: Buf,
    ) {
        let (member, place) = self.layout.slot(stripe, index, which);
        let member = match place {
            ParityPlace::MetaLog if self.behaviour.logs_at_parity => self.layout.parity_member(stripe, which),
            _ => member,
        };
        if live & (1 << member) == 0 {
            return;
        }
        match place {
            ParityPlace::Row(row) => {
                let at = row * self.layout.chunk_blocks + offset;
                let content = inplace::version_of(stripe, row, index);
                self.store(zone, flow, member, at, data, content);
            }
            ParityPlace::MetaLog => {
                // The log keeps the buffer after the write; the parity of one chunk is the write's own buffer.
                let data = if index == 0 { self.copy(&data) } else { data };
                let (epoch, from) = (flow.epoch, offset as u32);
                let record = ParityRecord { zone: zone.0, epoch, stripe, index: index as u32, from, data };
                let blocks = record.data.blocks();
                let completion = self.append(member, Record::Parity(record));
                self.track(flow, member, blocks, completion);
            }
        }
    }

    /// Submits `data` to a member's part of a zone, from block `at` of the part on.
    fn store(&self, zone: ZoneIndex, flow: &mut Flow, member: usize, at: u64, data: Buf, content: Content) {
        let end = at + data.blocks();
        let capacity = self.layout.rows * self.layout.chunk_blocks;
        assert!(end <= capacity, "blocks up to {end} of a part of {capacity}");
        let (burned, rest) = flow.split(self.layout.policy, member, at, data);
        if let Some(burned) = burned {
            let completion = self.relocate(zone, flow.epoch, member, at, &burned);
            self.track(flow, member, burned.blocks(), completion);
        }
        if let Some((at, rest)) = rest {
            let blocks = rest.blocks();
            let completion =
                self.members.submit(member, self.write_of(member, zone, at, rest, content, false));
            self.track(flow, member, blocks, completion);
        }
    }

    /// Adds a sub-request of `blocks` blocks to the flight, unless it has completed already.
    fn track(&self, flow: &mut Flow, member: usize, blocks: u64, mut completion: Completion) {
        match completion.take() {
            Some(done) if done.result.is_ok() => self.give_back(done),
            Some(done) => {
                let completion = Completion::ready(done);
                flow.subs.push_back(SubRequest { seat: self.members.seat(member), completion, blocks });
            }
            None => flow.subs.push_back(SubRequest { seat: self.members.seat(member), completion, blocks }),
        }
    }

    /// Task: takes completions in the order of the plans.
    async fn reap_flights(self: Rc<Self>, zone: Rc<Zone>) {
        loop {
            let submitted = zone.submitted.wait();
            match self.reap(&zone) {
                ReapStop::Ended => return,
                ReapStop::Idle => submitted.await,
                ReapStop::Membership => self.membership.settled().await,
                ReapStop::Promise(end) => self.record_promise(&zone, end).await,
                ReapStop::Wait(sub) => {
                    let done = sub.completion.await;
                    self.finish_sub(zone.index, sub.seat, done);
                }
            }
        }
    }

    fn finish_sub(&self, zone: ZoneIndex, seat: Seat, done: Done) {
        if let Err(error) = done.result {
            self.part_failed(zone, seat, error, "write");
        }
        self.give_back(done);
    }

    /// Returns the buffers of a sub-request to the pool, which drops those that a write still refers to.
    fn give_back(&self, done: Done) {
        let mut pool = self.pool.borrow_mut();
        pool.give(done.data);
        pool.give(done.oob);
    }

    /// Takes all completions that have arrived.
    fn reap(&self, zone: &Zone) -> ReapStop {
        let mut flow = zone.flow.borrow_mut();
        let flow = &mut *flow;
        let result = loop {
            if flow.ended {
                break ReapStop::Ended;
            }
            let Some(flight) = flow.flights.front_mut() else { break ReapStop::Idle };
            if flight.subs > 0 {
                flight.subs -= 1;
                let Some(mut sub) = flow.subs.pop_front() else { continue };
                match sub.completion.take() {
                    Some(done) => self.finish_sub(zone.index, sub.seat, done),
                    None => break ReapStop::Wait(sub),
                }
                continue;
            }
            if self.safe_when_complete() {
                if !zone.promised.get() {
                    break ReapStop::Promise(flight.end);
                }
                self.notices_power_loss(self.live(zone.index));
            }
            // If a part was lost, its loss has to be logged before blocks that it lacks count as complete.
            if self.membership.is_pending() {
                break ReapStop::Membership;
            }
            let Some(flight) = flow.flights.pop_front() else { continue };
            self.zones.take_traffic(flight.traffic);
            self.complete(zone.index, flow, flight.end);
        };
        if self.unsettled(flow) {
            zone.completed.open();
        }
        if flow.flights.is_empty() || flow.awaited > 0 {
            zone.changed.open();
        }
        if !flow.queue.is_empty() {
            zone.queued.open();
        }
        result
    }

    /// Whether a write survives a power cut, and the loss of a member, once it is complete.
    fn safe_when_complete(&self) -> bool {
        self.layout.policy.is_safe_when_complete() && !self.members.is_volatile()
    }

    /// Marks a plan up to block `end` as complete. Acknowledges its writes, except those that have to be safe first.
    fn complete(&self, zone: ZoneIndex, flow: &mut Flow, end: u64) {
        // In a stuck zone, a member that cannot be spared lacks blocks of the plan.
        if self.zones.stuck(zone).is_none() {
            flow.complete = flow.complete.max(end);
        }
        if self.safe_when_complete() {
            flow.safe = flow.complete;
        }
        flow.check();
        while flow.sent.front().is_some_and(|write| write.end() <= end) {
            let Some(Write { start, data, fua, completer }) = flow.sent.pop_front() else { return };
            let lba = Lba(self.geometry.start(zone).0 + start);
            let mut done = Done { tail: end, data, lba, ..Done::ok() };
            if self.has_failed(zone) {
                done.result = Err(Status::InternalError.into());
                completer.complete(done);
            } else if (fua || !self.may_lose()) && flow.safe < end {
                flow.wanted = flow.wanted.max(end);
                flow.waiting.push_back((end, completer, done));
            } else {
                completer.complete(done);
            }
        }
    }
}
