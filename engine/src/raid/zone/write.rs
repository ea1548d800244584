//! Carries writes out (§4.1): one running zone is a queue of writes and three tasks.
//!
//! `submit_plans` takes data from the queue in *plans*: blocks of one stripe, of any number of writes,
//! which go out together with the parity that [`zrwa::parity_of`] asks for. `reap` takes completions in
//! the order of the plans, so that a plan is complete only when everything before it is; it
//! acknowledges the writes of a plan, each on its own, if they need no more than that. `settle` moves
//! the write pointers behind it, logs tails that write pointers cannot show, and acknowledges the
//! writes that wait for it.
//!
//! What is queued and completes a stripe goes at once. A rest that does not is partial parity to be
//! written, so it may wait while other writes of the zone are in flight ([`Core::plan_end`]); when
//! nothing is, it goes. No tail inside a plan is ever claimed, logged or noted.
//!
//! The window: stripe `s` may be written when every member has passed row `s − D`. Then data stays
//! within `[wp, wp + D)` and partial parity and logs within `[wp + D, wp + 2D)`, no write flushes
//! implicitly, and nothing of stripe `s − D` is needed any more when its slots are overwritten.

use crate::{
    buf::{BLOCK, Buf, BufMut},
    code::{pq, xor},
    device::{Command, Completer, Completion, DeviceError, Done, Status, Zones},
    format::{
        oob::Content,
        record::{ParityRecord, Record},
    },
    raid::{
        Canary, LogStep,
        core::{Core, Seat},
        geometry::{Layout, MAX_MEMBERS, MAX_PARITIES, Place},
        policy::{inplace, zrwa},
    },
    runtime::Gate,
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

/// A zone with something going on.
pub struct Zone {
    pub index: ZoneIndex,
    /// The zone has failed and refused what was queued: whatever is rebuilt, it goes on only with a reset or
    /// in the next assembly.
    pub failed: Cell<bool>,
    pub flow: RefCell<Flow>,
    /// Something was queued, or more may be submitted.
    queued: Gate,
    /// Something was submitted, or the tasks have to look again.
    submitted: Gate,
    /// There may be something to settle.
    pub completed: Gate,
    /// Anything else changed: waited for by whoever wants the zone quiet, or safe up to a point.
    pub changed: Gate,
}

/// Blocks are counted from the start of the logical zone.
#[derive(Default)]
pub struct Flow {
    pub epoch: u64,
    /// Whether the members' zones have been opened, or are being opened now.
    pub open: bool,
    opening: bool,
    /// The zone is over: full, reset or finished. Its tasks end.
    pub ended: bool,
    /// Number of those who want no more submissions for now.
    pub paused: u32,
    /// The zone is about to end: nothing is settled any more.
    pub frozen: bool,
    /// Everything below has been submitted; `parity` belongs to this tail.
    pub next: u64,
    /// Everything below is complete on the members.
    pub complete: u64,
    /// Everything below survives a power cut and the loss of a member.
    pub safe: u64,
    /// Somebody waits for everything below to be safe.
    pub wanted: u64,
    /// The zone has failed, and a flush has told that something of it is not safe.
    pub loss_told: bool,
    /// Everything below may be submitted: the window.
    pub limit: u64,
    /// Chunks that are settled: shown by write pointers or, with the policy `log`, safe; and each
    /// member's position: its write pointer in half chunks or, with `log`, in blocks, as submitted.
    pub claimed: u64,
    pub positions: [u64; MAX_MEMBERS],
    pub settling: bool,
    /// Policy `inplace`: the tail in the zone's last tail record.
    pub told: u64,
    /// Which of the two log blocks was written last.
    pub log_block: u64,
    /// Explicit flushes that are on their way: one caller of `move_to` at a time.
    moves: VecDeque<(Seat, Completion)>,
    /// One chunk for each parity, of the stripe of `next`: below the tail's offset with its chunk, above
    /// without.
    pub parities: [BufMut; MAX_PARITIES],
    /// Writes that have not been submitted to their end; they start where `sent` ends.
    queue: VecDeque<Write>,
    /// Writes that have been, and are not complete.
    sent: VecDeque<Write>,
    flights: VecDeque<Flight>,
    /// The most that was queued and in flight together since this stripe was begun, and the one
    /// before it.
    depth: [u64; 2],
    /// Sub-requests of all flights, in order.
    subs: VecDeque<Sub>,
    /// FUA writes and others that are complete and wait to be safe.
    waiting: VecDeque<(u64, Completer, Done)>,
    /// The data of a plan, chunk by chunk: kept for its allocation.
    pieces: Vec<Buf>,
}

/// A write on its way through the zone.
struct Write {
    /// Its first block.
    start: u64,
    data: Buf,
    fua: bool,
    completer: Completer,
}

impl Write {
    fn end(&self) -> u64 {
        self.start + self.data.blocks()
    }
}

/// P and Q of some blocks, as far as they are to be written.
pub type Parities = [Option<Buf>; MAX_PARITIES];

/// A chunk of zeros for each parity.
pub fn blank_parities(layout: &Layout) -> [BufMut; MAX_PARITIES] {
    std::array::from_fn(|which| match which < layout.parities {
        true => BufMut::zeroed(layout.chunk_blocks as usize * BLOCK),
        false => BufMut::default(),
    })
}

/// A plan that is on its way.
struct Flight {
    end: u64,
    subs: u32,
}

struct Sub {
    seat: Seat,
    completion: Completion,
}

/// What a round of settling has to do.
pub struct Round {
    /// Everything below is complete.
    pub complete: u64,
    /// Somebody waits for that to be safe.
    pub wanted: bool,
    /// Chunks that are to count as settled, and those that do.
    pub chunks: u64,
    pub claimed: u64,
}

/// What stops `reap`.
enum Reaped {
    Idle,
    Ended,
    Wait(Sub),
    Membership,
}

impl Zone {
    pub fn new(core: &Core, index: ZoneIndex) -> Zone {
        let layout = &core.layout;
        let flow = Flow {
            epoch: core.zones.borrow()[index.0 as usize].epoch,
            limit: layout.distance.min(layout.rows) * layout.stripe_blocks(),
            parities: blank_parities(layout),
            ..Flow::default()
        };
        Zone {
            index,
            failed: Cell::default(),
            flow: RefCell::new(flow),
            queued: Gate::default(),
            submitted: Gate::default(),
            completed: Gate::default(),
            changed: Gate::default(),
        }
    }

    /// Has every task of the zone look again.
    pub fn wake(&self) {
        self.queued.open();
        self.submitted.open();
        self.completed.open();
        self.changed.open();
    }
}

impl Flow {
    /// What is true of a zone at work at any time.
    ///
    /// # Panics
    /// When it is not: better to stop than to answer for what is not there.
    fn check(&self) {
        let Flow { safe, complete, next, limit, .. } = *self;
        assert!(safe <= complete, "safe up to {safe}, complete up to {complete}");
        assert!(complete <= next, "complete up to {complete}, submitted up to {next}");
        assert!(next <= limit || !self.open, "submitted up to {next}, the window ends at {limit}");
    }

    /// Sets what recovery found.
    pub fn restore(&mut self, tail: u64, positions: [u64; MAX_MEMBERS], parities: [BufMut; MAX_PARITIES]) {
        self.open = true;
        self.next = tail;
        self.complete = tail;
        self.positions = positions;
        self.parities = parities;
    }

    /// Blocks `from..to` of parity number `which` of the stripe that is being written.
    pub fn parity(&self, which: usize, from: u64, to: u64) -> Buf {
        Buf::copy_of(&self.parities[which][from as usize * BLOCK..to as usize * BLOCK])
    }
}

impl Core {
    /// Writes `data` at block `at` of a zone whose table entry has taken the write already.
    pub fn write(self: &Rc<Self>, zone: ZoneIndex, at: u64, data: Buf, fua: bool) -> Completion {
        let (completer, completion) = self.slots.pair();
        let running = self.running_zone(zone);
        running.flow.borrow_mut().queue.push_back(Write { start: at, data, fua, completer });
        running.queued.open();
        completion
    }

    /// The running zone `zone`; if it was not running, it is opened on the members.
    pub fn running_zone(self: &Rc<Self>, index: ZoneIndex) -> Rc<Zone> {
        if let Some(zone) = self.running.borrow().get(&index.0) {
            return zone.clone();
        }
        let zone = Rc::new(Zone::new(self, index));
        self.running.borrow_mut().insert(index.0, zone.clone());
        self.runtime.spawn(self.clone().open_members(zone.clone()));
        zone
    }

    async fn open_members(self: Rc<Self>, zone: Rc<Zone>) {
        loop {
            let changed = self.zones_changed.wait();
            if zone.flow.borrow().frozen || zone.flow.borrow().ended {
                return;
            }
            // A zone that has just become full may still hold its resources on the members.
            let limit = self.geometry.max_active as usize;
            let limit = limit.saturating_sub(self.holding.borrow().len());
            let open = self.running.borrow().values().filter(|z| z.flow.borrow().open).count();
            let room = limit == 0 || open < limit;
            if self.has_failed(zone.index) || (room && self.rebuilding.get() != Some(zone.index.0)) {
                break;
            }
            changed.await;
        }
        {
            let mut flow = zone.flow.borrow_mut();
            (flow.open, flow.opening) = (true, true);
        }
        let (zones, zrwa) = (Zones::One(Core::physical(zone.index)), self.layout.policy.uses_zrwa());
        let zrwa = zrwa || self.log_step >= LogStep::Zrwa;
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

    /// Task: submits what is queued. It looks when whoever was ready has handed in all that he had.
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

    fn pump(&self, zone: &Zone) {
        let mut flow = zone.flow.borrow_mut();
        let flow = &mut *flow;
        if !flow.open || flow.opening || flow.paused > 0 || self.has_failed(zone.index) {
            return;
        }
        let mut submitted = false;
        while let Some(end) = self.plan_end(flow) {
            let Some(end) = self.layout.policy.plan_end(self, zone, flow, end) else { break };
            let before = flow.subs.len();
            self.submit_plan(zone.index, flow, end);
            let subs = (flow.subs.len() - before) as u32;
            flow.flights.push_back(Flight { end, subs });
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

    /// Where the plan ends that is to be submitted now, if there is one.
    ///
    /// Whole stripes go. A rest waits for writes in flight if the stripe will fill up when others
    /// follow them; how many follow is judged by how much there was lately. Otherwise it waits until
    /// there is as much of it as is in flight: plans then grow with the load, and two of them are
    /// always on their way.
    fn plan_end(&self, flow: &mut Flow) -> Option<u64> {
        let (front, back) = (flow.queue.front()?, flow.queue.back()?);
        if flow.next >= flow.limit {
            return None;
        }
        let stripe_blocks = self.layout.stripe_blocks();
        let stripe_end = (flow.next / stripe_blocks + 1) * stripe_blocks;
        if !self.join {
            return Some(front.end().min(stripe_end));
        }
        let end = back.end();
        flow.depth[0] = flow.depth[0].max(end - flow.complete);
        if end >= stripe_end {
            return Some(stripe_end);
        }
        let (left, rest, chunk) = (end - flow.next, stripe_end - flow.next, self.layout.chunk_blocks);
        // Only writes on their way to their end make room for others when they complete.
        let in_flight = front.start.saturating_sub(flow.complete);
        if in_flight > 0 {
            // In the last chunk there is nothing to save: its slot is the full parity.
            let depth = flow.depth[0].max(flow.depth[1]);
            let fills = depth >= rest && rest > chunk;
            return (!fills && left >= in_flight).then_some(end);
        }
        if !(chunk / 2..=chunk).contains(&left) {
            return Some(end);
        }
        // In two halves, so that one is transferred while the drive begins with the other.
        let ends = flow.queue.iter().map(Write::end);
        Some(ends.take_while(|end| 2 * (end - flow.next) <= left).last().unwrap_or(front.end()))
    }

    /// Submits queued data up to block `end`, within a stripe, and the parity that it needs.
    fn submit_plan(&self, zone: ZoneIndex, flow: &mut Flow, end: u64) {
        let layout = &self.layout;
        let chunk = layout.chunk_blocks;
        let stripe = flow.next / layout.stripe_blocks();
        let base = stripe * layout.stripe_blocks();
        let (from, to) = (flow.next - base, end - base);
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

    /// Takes `blocks` of data from the queue: a part of one write as it is, parts of several as a copy.
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
        joined.freeze()
    }

    /// The parities of a whole stripe, as far as there is a member for them.
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

    /// Takes `data` of chunk `index` into the running parities; gives the results if they are to be
    /// written.
    fn run_parities(&self, flow: &mut Flow, index: u64, offset: u64, data: &Buf, write: bool) -> Parities {
        let range = offset as usize * BLOCK..offset as usize * BLOCK + data.len();
        let double = self.layout.parities > 1;
        let power = if self.canary == Some(Canary::QWithoutCoefficients) { 0 } else { index as usize };
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

    /// Submits part of the slots of chunk `index` of `stripe`, from block `offset` on.
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
        let (member, mut place) = self.layout.slot(stripe, index, which);
        if live & (1 << member) == 0 {
            return;
        }
        match self.canary {
            Some(Canary::OneParityPlace) => place = Place::Row(stripe),
            Some(Canary::QSlotTooNear) if which > 0 => place = self.layout.slot(stripe, index, 0).1,
            Some(Canary::PartialPAlone) if which > 0 && place != Place::Row(stripe) => return,
            _ => {}
        }
        match place {
            Place::Row(row) => {
                let wrong = self.canary == Some(Canary::WrongSlot) && row != stripe;
                let row = row - wrong as u64;
                let at = row * self.layout.chunk_blocks + offset;
                let content = inplace::version_of(stripe, row, index);
                self.store(zone, flow, member, at, data, content);
            }
            Place::MetaLog => {
                // The log keeps it for longer than a write lasts, and the parity of one chunk may be the
                // data of one.
                let data = if index == 0 { self.copy(&data) } else { data };
                let (epoch, from) = (flow.epoch, offset as u32);
                let record = ParityRecord { zone: zone.0, epoch, stripe, index: index as u32, from, data };
                let completion = self.append(member, Record::Parity(record));
                self.track(flow, member, completion);
            }
        }
    }

    /// Submits blocks of a member's part of a zone, from its block `at` on.
    fn store(&self, zone: ZoneIndex, flow: &mut Flow, member: usize, at: u64, data: Buf, content: Content) {
        let (burned, rest) = self.layout.policy.split(&mut flow.positions[member], at, data);
        if let Some(burned) = burned {
            let completion = self.relocate(zone, flow.epoch, member, at, &burned);
            self.track(flow, member, completion);
        }
        if let Some((at, rest)) = rest {
            let completion = self.submit(member, self.write_of(member, zone, at, rest, content, false));
            self.track(flow, member, completion);
        }
    }

    /// A copy from the pool.
    pub fn copy(&self, data: &[u8]) -> Buf {
        let mut copy = self.pool.borrow_mut().take((data.len() / BLOCK) as u64);
        copy.copy_from_slice(data);
        copy.freeze()
    }

    /// Remembers a sub-request until it completes; some drives have done it already.
    fn track(&self, flow: &mut Flow, member: usize, mut completion: Completion) {
        match completion.take() {
            Some(done) if done.result.is_ok() => self.give_back(done),
            Some(done) => {
                let completion = Completion::ready(done);
                flow.subs.push_back(Sub { seat: self.seat(member), completion });
            }
            None => flow.subs.push_back(Sub { seat: self.seat(member), completion }),
        }
    }

    /// Logs a record on one member.
    pub fn append(&self, member: usize, record: Record) -> Completion {
        let log = self.members[member].log.borrow().clone();
        match log {
            Some(log) if self.active.get() & (1 << member) != 0 => {
                log.append(self, record, self.next_sequence())
            }
            _ => Completion::failed(DeviceError::Gone),
        }
    }

    /// Task: takes completions in the order of the writes.
    async fn reap_flights(self: Rc<Self>, zone: Rc<Zone>) {
        loop {
            let submitted = zone.submitted.wait();
            match self.reap(&zone) {
                Reaped::Ended => return,
                Reaped::Idle => submitted.await,
                Reaped::Membership => self.membership_settled().await,
                Reaped::Wait(sub) => {
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

    /// Returns the buffers of a sub-request to the pool. What belongs to a write is not unique, and
    /// stays with it.
    fn give_back(&self, done: Done) {
        let mut pool = self.pool.borrow_mut();
        pool.give(done.data);
        pool.give(done.oob);
    }

    /// Takes all completions that are there.
    fn reap(&self, zone: &Zone) -> Reaped {
        let mut flow = zone.flow.borrow_mut();
        let flow = &mut *flow;
        let unordered = self.canary == Some(Canary::AckBeforePredecessors);
        let result = loop {
            if flow.ended {
                break Reaped::Ended;
            }
            let flight = if unordered { flow.flights.back_mut() } else { flow.flights.front_mut() };
            let Some(flight) = flight else { break Reaped::Idle };
            if flight.subs > 0 {
                flight.subs -= 1;
                let sub = if unordered { flow.subs.pop_back() } else { flow.subs.pop_front() };
                let Some(mut sub) = sub else { continue };
                match sub.completion.take() {
                    Some(done) => self.finish_sub(zone.index, sub.seat, done),
                    None => break Reaped::Wait(sub),
                }
                continue;
            }
            // What a lost member does not have may count only when the others know that it is lost.
            if self.membership_pending.get() && !self.failed.get() {
                break Reaped::Membership;
            }
            let flight = if unordered { flow.flights.pop_back() } else { flow.flights.pop_front() };
            let Some(flight) = flight else { continue };
            self.complete(zone.index, flow, flight.end);
        };
        if self.unsettled(flow) {
            zone.completed.open();
        }
        if flow.flights.is_empty() {
            zone.changed.open();
        }
        if !flow.queue.is_empty() {
            zone.queued.open();
        }
        result
    }

    /// Whether a write survives a power cut, and the loss of a member, once it is complete.
    fn safe_when_complete(&self) -> bool {
        self.layout.policy.is_safe_when_complete() && !self.volatile.get()
    }

    /// The writes of a plan complete together, each with its own answer.
    fn complete(&self, zone: ZoneIndex, flow: &mut Flow, end: u64) {
        flow.complete = flow.complete.max(end);
        if self.safe_when_complete() {
            flow.safe = flow.complete;
        }
        flow.check();
        while flow.sent.front().is_some_and(|write| write.end() <= end) {
            let Some(Write { start, data, fua, completer }) = flow.sent.pop_front() else { return };
            let tail = match self.canary {
                Some(Canary::TailInsidePlan) => start + data.blocks(),
                _ => end,
            };
            let lba = Lba(self.geometry.start(zone).0 + start);
            let mut done = Done { data, lba, tail, ..Done::ok() };
            if self.has_failed(zone) {
                done.result = Err(Status::InternalError.into());
                completer.complete(done);
            } else if (fua || !self.may_lose.get()) && flow.safe < end {
                flow.wanted = flow.wanted.max(end);
                flow.waiting.push_back((end, completer, done));
            } else {
                completer.complete(done);
            }
        }
    }

    /// Task: makes what is complete safe, and moves the window.
    async fn settle(self: Rc<Self>, zone: Rc<Zone>) {
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

    /// One round; `false` if there was nothing to do.
    async fn settle_once(&self, zone: &Zone) -> bool {
        if self.has_failed(zone.index) && self.handing_over.get().is_none() {
            self.give_up(zone);
            return false;
        }
        let round = {
            let mut flow = zone.flow.borrow_mut();
            if !self.unsettled(&flow) {
                return false;
            }
            flow.settling = true;
            let (complete, wanted) = (flow.complete, flow.wanted > flow.safe);
            Round { complete, wanted, chunks: self.chunks_to_claim(&flow), claimed: flow.claimed }
        };
        let safe = self.layout.policy.settle(self, zone, &round).await;
        let full = round.complete == self.layout.capacity_blocks();
        if full {
            self.fill_zones(zone).await;
        }
        self.membership_settled().await;
        self.settled(zone, round.chunks, if full { round.complete } else { safe }, full);
        !self.has_failed(zone.index)
    }

    /// Whole chunks that are to count as settled.
    fn chunks_to_claim(&self, flow: &Flow) -> u64 {
        self.layout.policy.chunks_to_claim(self, flow)
    }

    pub fn unsettled(&self, flow: &Flow) -> bool {
        // A zone that is full ends with a round.
        let full = flow.complete == self.layout.capacity_blocks();
        let claim = full || self.chunks_to_claim(flow) > flow.claimed;
        !flow.frozen && (claim || (flow.wanted > flow.safe && flow.complete > flow.safe))
    }

    /// The zone has failed: nobody need wait any longer.
    fn give_up(&self, zone: &Zone) {
        zone.failed.set(true);
        let waiting: Vec<_> = zone.flow.borrow_mut().waiting.drain(..).collect();
        for (_, completer, done) in waiting {
            completer.complete(Done { result: Err(Status::InternalError.into()), ..done });
        }
        self.refuse_queued(zone, Status::InternalError);
        zone.changed.open();
    }

    /// Writes down what a round of settling has reached, and lets go who waited for it.
    pub fn settled(&self, zone: &Zone, chunks: u64, safe: u64, full: bool) {
        if self.has_failed(zone.index) {
            zone.flow.borrow_mut().settling = false;
            return self.give_up(zone);
        }
        {
            let mut flow = zone.flow.borrow_mut();
            let flow = &mut *flow;
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

    /// Everything below may be submitted when the members of `live` are where they are.
    pub fn window(&self, flow: &Flow, live: u32) -> u64 {
        let rows = self.layout.policy.window_rows(self, flow, live);
        rows * self.layout.stripe_blocks()
    }

    /// Drops logged parity that no recovery can need any more.
    pub fn forget_logged(&self, zone: ZoneIndex, stripe: u64) {
        for member in &self.members {
            if let Some(log) = &*member.log.borrow() {
                log.live.borrow_mut().parity.forget(zone.0, stripe, &mut self.pool.borrow_mut());
            }
        }
    }

    /// Takes the zone off the list: nothing goes on in it any more.
    pub fn end_zone(&self, zone: &Zone) {
        zone.flow.borrow_mut().ended = true;
        self.running.borrow_mut().remove(&zone.index.0);
        self.forget_logged(zone.index, u64::MAX);
        for member in &self.members {
            if let Some(log) = &*member.log.borrow() {
                log.live.borrow_mut().tails.remove(&zone.index.0);
            }
        }
        zone.wake();
        self.zones_changed.open();
    }

    /// Explicit flushes: the position of every live member to its target, where that is ahead.
    pub async fn move_to(&self, zone: &Zone, targets: &[u64; MAX_MEMBERS]) {
        let half = self.layout.chunk_blocks / 2;
        {
            let mut flow = zone.flow.borrow_mut();
            for m in Core::each(self.live(zone.index)) {
                if targets[m] <= flow.positions[m] {
                    continue;
                }
                let last = Lba(self.start(m, zone.index).0 + targets[m] * half - 1);
                let sent = (self.seat(m), self.submit(m, Command::FlushZrwa { last }));
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

    /// Brings the members' zones to their full state when the capacity is not a whole number of
    /// rows, or several zones are one, some of which a power cut may have left behind.
    pub async fn fill_zones(&self, zone: &Zone) {
        if self.has_failed(zone.index) {
            return;
        }
        let used = self.layout.rows * self.layout.chunk_blocks;
        let zones = Zones::One(Core::physical(zone.index));
        let aggregated = self.superblock.borrow().aggregate > 1;
        let larger = |m: usize| self.device(m).is_some_and(|d| d.geometry().zone_capacity_blocks > used);
        // The drive that it is copied to may have larger ones.
        let copied = |m: usize| self.mirror.borrow().as_ref().is_some_and(|(seat, _)| seat.member == m);
        let short = Core::each(self.live(zone.index))
            .filter(|m| aggregated || larger(*m) || copied(*m))
            .fold(0, |mask, m| mask | 1 << m);
        self.on_parts(zone.index, short, "finish zone", |_| Command::Finish { zones }).await;
        self.clear_lost(zone.index).await;
    }

    /// Has the members that lack their part of a zone that ends give up what they hold of it: it
    /// takes resources that the array counts as free. A rebuild does that itself.
    pub async fn clear_lost(&self, zone: ZoneIndex) {
        let rebuilt = self.repairing.get().filter(|_| self.rebuilding.get() == Some(zone.0));
        let lost = self.zones.borrow()[zone.0 as usize].lost & self.active.get();
        for member in Core::each(lost).filter(|member| rebuilt.is_none_or(|seat| seat.member != *member)) {
            self.clear(zone, member).await;
        }
    }

    /// Waits until nothing of the zone is on its way, and what is complete is settled. Nothing is
    /// submitted until [`Core::resume`].
    pub async fn quiesce(&self, zone: &Zone) {
        zone.flow.borrow_mut().paused += 1;
        self.quiet(zone).await;
    }

    /// As [`Core::quiesce`], in a zone that is paused.
    pub async fn quiet(&self, zone: &Zone) {
        loop {
            let changed = zone.changed.wait();
            zone.completed.open();
            {
                let flow = zone.flow.borrow();
                let busy = flow.opening || flow.settling || !flow.flights.is_empty();
                let quiet = !busy && (self.has_failed(zone.index) || !self.unsettled(&flow));
                if quiet || flow.ended || (self.failed.get() && flow.flights.is_empty()) {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Stops everything in a zone that is about to end, a rebuild too.
    pub async fn freeze(&self, zone: &Zone) {
        self.quiesce(zone).await;
        self.stop_rebuild(zone.index.0..zone.index.0 + 1).await;
        self.quiet(zone).await;
        zone.flow.borrow_mut().frozen = true;
        self.zones_changed.open();
    }

    pub fn resume(&self, zone: &Zone) {
        zone.flow.borrow_mut().paused -= 1;
        zone.wake();
    }

    /// Waits until everything below `tail_blocks` is safe.
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

    /// Fails the writes that have not been submitted yet.
    pub fn refuse_queued(&self, zone: &Zone, status: Status) {
        let queued: Vec<_> = zone.flow.borrow_mut().queue.drain(..).collect();
        for Write { data, completer, .. } in queued {
            completer.complete(Done { result: Err(status.into()), data, ..Done::ok() });
        }
    }
}
