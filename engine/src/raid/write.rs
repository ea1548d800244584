//! Carries writes out (§4.1): one running zone is a queue of writes and two tasks.
//!
//! A write is cut into stripes. Each part is submitted at once if its stripe lies within the
//! window, otherwise when write pointers have moved: data, and the parity that
//! [`zrwa::parity_of`] asks for, all at the same time. `reap` takes completions in the order of the
//! writes, so that a write is complete only when everything before it is; it acknowledges what
//! needs no more than that. `settle` moves the write pointers behind it, logs tails that write
//! pointers cannot show, and acknowledges the writes that wait for it.
//!
//! The window: stripe `s` may be written when every member has passed row `s − D`. Then data stays
//! within `[wp, wp + D)` and partial parity and logs within `[wp + D, wp + 2D)`, no write flushes
//! implicitly, and nothing of stripe `s − D` is needed any more when its slots are overwritten.

use super::{
    Canary, Consistency, LogStep,
    core::{Core, Seat},
    geometry::{MAX_MEMBERS, Place},
    inplace, log, parity,
    policy::Policy,
    zrwa,
};
use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completer, Completion, DeviceError, Done, Status, Zones},
    format::{
        oob::Content,
        record::{Origin, ParityRecord, Record, TailRecord},
    },
    runtime::Gate,
    zone::{Lba, ZoneIndex},
};
use std::{cell::RefCell, collections::VecDeque, rc::Rc};

/// A zone with something going on.
pub struct Zone {
    pub index: ZoneIndex,
    pub flow: RefCell<Flow>,
    /// Something was submitted, or the tasks have to look again.
    submitted: Gate,
    /// There may be something to settle.
    completed: Gate,
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
    /// One chunk: parity of the stripe of `next`, below the tail's offset with its chunk, above
    /// without.
    pub parity: Buf,
    queue: VecDeque<Queued>,
    flights: VecDeque<Flight>,
    /// Sub-requests of all flights, in order.
    subs: VecDeque<Sub>,
    /// FUA writes and others that are complete and wait to be safe.
    waiting: VecDeque<(u64, Completer, Done)>,
}

/// A write that has not been submitted to its end.
struct Queued {
    data: Buf,
    /// Where the rest starts, in the zone and in `data` (blocks).
    at: u64,
    done_blocks: u64,
    fua: bool,
    lba: Lba,
    completer: Completer,
}

/// A part of a write that is on its way.
struct Flight {
    end: u64,
    subs: u32,
    /// With the last part of a write.
    last: Option<Queued>,
}

struct Sub {
    seat: Seat,
    completion: Completion,
    /// Whether the buffer goes back to the pool.
    pooled: bool,
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
            parity: Buf::zeroed(layout.chunk_blocks as usize * BLOCK),
            ..Flow::default()
        };
        Zone {
            index,
            flow: RefCell::new(flow),
            submitted: Gate::default(),
            completed: Gate::default(),
            changed: Gate::default(),
        }
    }

    /// Has every task of the zone look again.
    pub fn wake(&self) {
        self.submitted.open();
        self.completed.open();
        self.changed.open();
    }
}

impl Flow {
    /// Sets what recovery found.
    pub fn restore(&mut self, tail: u64, positions: [u64; MAX_MEMBERS], parity: Buf) {
        self.open = true;
        self.next = tail;
        self.complete = tail;
        self.positions = positions;
        self.parity = parity;
    }
}

impl Core {
    /// Writes `data` at block `at` of a zone whose table entry has taken the write already.
    pub fn write(self: &Rc<Self>, zone: ZoneIndex, at: u64, data: Buf, fua: bool) -> Completion {
        let (completer, completion) = self.slots.pair();
        let lba = Lba(self.geometry.start(zone).0 + at);
        let running = self.running_zone(zone);
        running.flow.borrow_mut().queue.push_back(Queued { data, at, done_blocks: 0, fua, lba, completer });
        self.pump(&running);
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
            let open = self.running.borrow().values().filter(|z| z.flow.borrow().open).count();
            let room = limit == 0 || open < limit;
            if self.failed.get() || (room && self.rebuilding.get() != Some(zone.index.0)) {
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
        self.on_all(self.live(zone.index), "open zone", |_| Command::Open { zones, zrwa }).await;
        if self.layout.policy == Policy::InPlace {
            self.begin_generation(&zone, 0).await;
        }
        zone.flow.borrow_mut().opening = false;
        zone.changed.open();
        self.start_tasks(&zone);
        self.pump(&zone);
    }

    pub fn start_tasks(self: &Rc<Self>, zone: &Rc<Zone>) {
        self.runtime.spawn(self.clone().reap_flights(zone.clone()));
        self.runtime.spawn(self.clone().settle(zone.clone()));
    }

    /// Submits queued writes as far as the window allows.
    pub fn pump(&self, zone: &Zone) {
        let mut flow = zone.flow.borrow_mut();
        let flow = &mut *flow;
        if !flow.open || flow.opening || flow.paused > 0 || flow.ended {
            return;
        }
        let stripe_blocks = self.layout.stripe_blocks();
        let mut submitted = false;
        while let Some(front) = flow.queue.front_mut()
            && front.at < flow.limit
        {
            debug_assert_eq!(front.at, flow.next);
            let left = front.data.blocks() - front.done_blocks;
            let (stripe, from) = (front.at / stripe_blocks, front.at % stripe_blocks);
            let mut blocks = left.min(stripe_blocks - from);
            if self.layout.policy == Policy::InPlace {
                let to = self.plan_end_in_place(from, from + blocks);
                blocks = to - from;
                if let Some(needed) = self.needs_in_place(flow.safe, flow.next - from, from, to) {
                    flow.wanted = flow.wanted.max(needed);
                    zone.completed.open();
                    break;
                }
            }
            let data = if blocks == front.data.blocks() {
                front.data.clone()
            } else {
                front.data.slice_blocks(front.done_blocks..front.done_blocks + blocks)
            };
            let at = front.at;
            front.at += blocks;
            front.done_blocks += blocks;
            let last = if blocks == left { flow.queue.pop_front() } else { None };
            let before = flow.subs.len();
            self.submit_part(zone.index, flow, stripe, from, data);
            flow.next = at + blocks;
            let subs = (flow.subs.len() - before) as u32;
            flow.flights.push_back(Flight { end: flow.next, subs, last });
            submitted = true;
        }
        if submitted {
            zone.submitted.open();
        }
    }

    /// Submits `data` for the blocks from `from` on of a stripe's data, with its parity.
    fn submit_part(&self, zone: ZoneIndex, flow: &mut Flow, stripe: u64, from: u64, data: Buf) {
        let layout = &self.layout;
        let to = from + data.blocks();
        let chunk = layout.chunk_blocks;
        let live = self.live(zone);
        let (last, _) = layout.chunk_of(to - 1);
        let parts = zrwa::parity_of(layout, from, to);
        let whole_stripe = from == 0 && to == layout.stripe_blocks();
        let (mut index, _) = layout.chunk_of(from);
        let mut begin = from;
        while index <= last {
            let end = to.min((index + 1) * chunk);
            let whole = begin == from && end == to;
            let piece = if whole { data.clone() } else { data.slice_blocks(begin - from..end - from) };
            let offset = begin - index * chunk;
            let member = layout.member(stripe, index);
            if live & (1 << member) != 0 {
                let at = stripe * chunk + offset;
                self.store(zone, flow, member, at, (piece.clone(), false), Content::Data);
            }
            if !whole_stripe {
                let part = parts.iter().flatten().find(|part| part.index == index);
                debug_assert!(part.is_none_or(|p| p.from == offset && p.to == end - index * chunk));
                let out = self.run_parity(flow, index, offset, &piece, part.is_some());
                if let Some((buf, pooled)) = out {
                    self.submit_parity(zone, flow, live, (stripe, index, offset), buf, pooled);
                }
            }
            begin = end;
            index += 1;
        }
        if whole_stripe && live & (1 << layout.parity_member(stripe)) != 0 {
            let mut buf = self.pool.borrow_mut().take(chunk);
            if let Some(target) = buf.as_mut() {
                parity::xor_all(target, &data);
            }
            self.submit_parity(zone, flow, live, (stripe, last, 0), buf, true);
        }
    }

    /// Takes `data` of chunk `index` into the running parity; gives the result if it is to be
    /// written, and whether the buffer is the pool's.
    fn run_parity(
        &self,
        flow: &mut Flow,
        index: u64,
        offset: u64,
        data: &Buf,
        write: bool,
    ) -> Option<(Buf, bool)> {
        let range = offset as usize * BLOCK..offset as usize * BLOCK + data.len();
        let running = flow.parity.as_mut().map(|parity| &mut parity[range])?;
        match (index, write) {
            (0, _) => {
                running.copy_from_slice(data);
                // The parity of one chunk is the chunk.
                write.then(|| (data.clone(), false))
            }
            (_, false) => {
                parity::xor_assign(running, data);
                None
            }
            (_, true) => {
                let mut buf = self.pool.borrow_mut().take(data.blocks());
                parity::xor_assign_and_copy(running, data, buf.as_mut()?);
                Some((buf, true))
            }
        }
    }

    /// Submits part of the slot of chunk `index` of `stripe`, from block `offset` on.
    fn submit_parity(
        &self,
        zone: ZoneIndex,
        flow: &mut Flow,
        live: u32,
        (stripe, index, offset): (u64, u64, u64),
        data: Buf,
        pooled: bool,
    ) {
        let (member, mut place) = self.layout.slot(stripe, index);
        if live & (1 << member) == 0 {
            return;
        }
        if self.canary == Some(Canary::OneParityPlace) {
            place = Place::Row(stripe);
        }
        match place {
            Place::Row(row) => {
                let wrong = self.canary == Some(Canary::WrongSlot) && row != stripe;
                let row = row - wrong as u64;
                let at = row * self.layout.chunk_blocks + offset;
                let content = inplace::version_of(stripe, row, index);
                self.store(zone, flow, member, at, (data, pooled), content);
            }
            Place::MetaLog => {
                // The log keeps it for longer than a write lasts.
                let data = if pooled { data } else { self.copy(&data) };
                let (epoch, from) = (flow.epoch, offset as u32);
                let record = ParityRecord { zone: zone.0, epoch, stripe, index: index as u32, from, data };
                let completion = self.append(member, Record::Parity(record));
                self.track(flow, member, completion, false);
            }
        }
    }

    /// Submits blocks of a member's part of a zone, from its block `at` on, and whether their buffer is the
    /// pool's.
    fn store(
        &self,
        zone: ZoneIndex,
        flow: &mut Flow,
        member: usize,
        at: u64,
        (data, pooled): (Buf, bool),
        content: Content,
    ) {
        let (burned, rest) = match self.layout.policy {
            Policy::Log => log::split(&mut flow.positions[member], at, data),
            Policy::Zrwa | Policy::InPlace => (None, Some((at, data))),
        };
        if let Some(burned) = burned {
            let completion = self.relocate(zone, flow.epoch, member, at, &burned);
            self.track(flow, member, completion, false);
        }
        if let Some((at, rest)) = rest {
            let completion = self.submit(member, self.write_of(member, zone, at, rest, content, false));
            self.track(flow, member, completion, pooled);
        }
    }

    /// A copy from the pool.
    pub fn copy(&self, data: &[u8]) -> Buf {
        let mut copy = self.pool.borrow_mut().take((data.len() / BLOCK) as u64);
        if let Some(target) = copy.as_mut() {
            target.copy_from_slice(data);
        }
        copy
    }

    /// Remembers a sub-request until it completes; some drives have done it already.
    fn track(&self, flow: &mut Flow, member: usize, mut completion: Completion, pooled: bool) {
        match completion.take() {
            Some(done) if done.result.is_ok() => self.give_back(done, pooled),
            Some(done) => {
                let completion = Completion::ready(done);
                flow.subs.push_back(Sub { seat: self.seat(member), completion, pooled });
            }
            None => flow.subs.push_back(Sub { seat: self.seat(member), completion, pooled }),
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
            let reaped = self.reap(&zone);
            if self.layout.policy == Policy::InPlace {
                // More may be submitted now.
                self.pump(&zone);
            }
            match reaped {
                Reaped::Ended => return,
                Reaped::Idle => submitted.await,
                Reaped::Membership => self.membership_settled().await,
                Reaped::Wait(sub) => {
                    let Sub { seat, completion, pooled } = sub;
                    let done = completion.await;
                    self.finish_sub(seat, done, pooled);
                }
            }
        }
    }

    fn finish_sub(&self, seat: Seat, done: Done, pooled: bool) {
        if let Err(error) = done.result {
            self.member_failed(seat, error, "write");
        }
        self.give_back(done, pooled);
    }

    /// Returns the buffers of a sub-request to the pool.
    fn give_back(&self, done: Done, pooled: bool) {
        let mut pool = self.pool.borrow_mut();
        pool.give(done.oob);
        if pooled {
            pool.give(done.data);
        }
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
                    Some(done) => self.finish_sub(sub.seat, done, sub.pooled),
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
            self.complete(flow, flight);
        };
        if self.unsettled(flow) {
            zone.completed.open();
        }
        if flow.flights.is_empty() {
            zone.changed.open();
        }
        result
    }

    /// Whether a write survives a power cut, and the loss of a member, once it is complete.
    fn safe_when_complete(&self) -> bool {
        self.layout.policy != Policy::Zrwa && !self.volatile.get()
    }

    fn complete(&self, flow: &mut Flow, flight: Flight) {
        flow.complete = flow.complete.max(flight.end);
        if self.safe_when_complete() {
            flow.safe = flow.complete;
        }
        let Some(Queued { data, fua, lba, completer, .. }) = flight.last else { return };
        let mut done = Done { data, lba, ..Done::ok() };
        if self.failed.get() {
            done.result = Err(Status::InternalError.into());
            completer.complete(done);
        } else if (fua || !self.geometry.volatile_cache) && flow.safe < flight.end {
            flow.wanted = flow.wanted.max(flight.end);
            flow.waiting.push_back((flight.end, completer, done));
        } else {
            completer.complete(done);
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
        let layout = &self.layout;
        if self.failed.get() {
            self.give_up(zone);
            return false;
        }
        if layout.policy == Policy::InPlace {
            return self.settle_in_place(zone).await;
        }
        let (complete, chunks, claimed, wanted) = {
            let mut flow = zone.flow.borrow_mut();
            if !self.unsettled(&flow) {
                return false;
            }
            flow.settling = true;
            let wanted = flow.wanted > flow.safe;
            (flow.complete, self.chunks_to_claim(&flow), flow.claimed, wanted)
        };
        if layout.policy == Policy::Log {
            self.barrier(self.live(zone.index)).await;
        } else if chunks > claimed {
            self.claim(zone, chunks).await;
        }
        if wanted && layout.policy != Policy::Log && self.consistency == Consistency::WpLog {
            let live = self.live(zone.index);
            let aligned = chunks * layout.chunk_blocks == complete;
            if !aligned || zrwa::witness_count(layout, live, chunks) < zrwa::needed(layout, live) {
                self.log_tail(zone, complete).await;
            }
        }
        let full = complete == layout.capacity_blocks();
        if full {
            self.fill_zones(zone).await;
        }
        self.membership_settled().await;
        self.settled(zone, chunks, if wanted || full { complete } else { 0 }, full);
        true
    }

    /// Whole chunks that write pointers should show.
    fn chunks_to_claim(&self, flow: &Flow) -> u64 {
        let chunks = flow.complete / self.layout.chunk_blocks;
        match (self.layout.policy, self.consistency) {
            (Policy::Log, _) | (_, Consistency::Stripe) => chunks - chunks % self.layout.data_chunks(),
            _ => chunks,
        }
    }

    pub fn unsettled(&self, flow: &Flow) -> bool {
        let claim = match self.layout.policy {
            Policy::InPlace => self.rows_are_due(flow),
            _ => self.chunks_to_claim(flow) > flow.claimed,
        };
        !flow.frozen && (claim || (flow.wanted > flow.safe && flow.complete > flow.safe))
    }

    /// The array has failed: nobody need wait any longer.
    fn give_up(&self, zone: &Zone) {
        let waiting: Vec<_> = zone.flow.borrow_mut().waiting.drain(..).collect();
        for (_, completer, done) in waiting {
            completer.complete(Done { result: Err(Status::InternalError.into()), ..done });
        }
        self.refuse_queued(zone, Status::InternalError);
        zone.changed.open();
    }

    /// Writes down what a round of settling has reached, and lets go who waited for it.
    pub fn settled(&self, zone: &Zone, chunks: u64, safe: u64, full: bool) {
        {
            let mut flow = zone.flow.borrow_mut();
            let flow = &mut *flow;
            flow.settling = false;
            flow.claimed = flow.claimed.max(chunks);
            flow.safe = flow.safe.max(safe);
            flow.limit = self.window(flow, self.live(zone.index));
            while flow.waiting.front().is_some_and(|w| w.0 <= flow.safe) {
                if let Some((_, completer, mut done)) = flow.waiting.pop_front() {
                    if self.failed.get() {
                        done.result = Err(Status::InternalError.into());
                    }
                    completer.complete(done);
                }
            }
            flow.ended |= full && !self.failed.get();
        }
        if full {
            self.end_zone(zone);
        } else {
            let stripe = chunks / self.layout.data_chunks();
            if self.layout.policy == Policy::Log || stripe + self.layout.distance >= self.layout.rows {
                self.forget_logged(zone.index, stripe);
            }
            self.pump(zone);
        }
        zone.changed.open();
    }

    /// Everything below may be submitted when the members of `live` are where they are.
    pub fn window(&self, flow: &Flow, live: u32) -> u64 {
        let rows = match self.canary {
            _ if self.layout.policy == Policy::Log => {
                (flow.claimed / self.layout.data_chunks() + self.layout.distance).min(self.layout.rows)
            }
            Some(Canary::LogSlotOverwritten) => {
                let furthest = Core::each(live).map(|m| flow.positions[m]).max().unwrap_or(0);
                (furthest / 2 + self.layout.distance).min(self.layout.rows)
            }
            _ => zrwa::window_rows(&self.layout, live, &flow.positions),
        };
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

    /// Moves write pointers, round by round, so that they say `chunks` (§4.4).
    async fn claim(&self, zone: &Zone, chunks: u64) {
        self.barrier(self.live(zone.index)).await;
        while !self.failed.get() {
            let (live, positions) = (self.live(zone.index), zone.flow.borrow().positions);
            let round = match self.canary {
                Some(Canary::LaggardOrder) => zrwa::laggard_round(&self.layout, live, &positions, chunks)
                    .or_else(|| zrwa::witness_round(&self.layout, live, &positions, chunks)),
                _ => zrwa::next_round(&self.layout, live, &positions, chunks),
            };
            let Some(targets) = round else { return };
            self.move_to(zone, &targets).await;
            self.barrier(live).await;
        }
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
                Err(error) => self.member_failed(seat, error, "ZRWA flush"),
            }
        }
    }

    /// Logs a tail that write pointers cannot show, on two members (§5.3, §5.1).
    pub async fn log_tail(&self, zone: &Zone, tail_blocks: u64) {
        let layout = &self.layout;
        let stripe = (tail_blocks - 1) / layout.stripe_blocks();
        let (members, place) = layout.log(stripe);
        self.barrier(self.live(zone.index)).await;
        // Only now: a member that was replaced meanwhile lacks the zone.
        let live = self.live(zone.index);
        let sequence = self.next_sequence();
        // The two blocks take turns: one of them is whole whatever happens to the other.
        let (epoch, block) = {
            let mut flow = zone.flow.borrow_mut();
            flow.log_block = 1 - flow.log_block;
            (flow.epoch, flow.log_block)
        };
        let record = Record::Tail(TailRecord { zone: zone.index.0, generation: 0, epoch, tail_blocks });
        let mut pending = Vec::new();
        for member in members.into_iter().filter(|m| live & (1 << m) != 0) {
            let completion = match place {
                Place::MetaLog => self.append(member, record.clone()),
                Place::Row(row) => {
                    let lba = self.start(member, zone.index).0 + row * layout.chunk_blocks + block;
                    let origin = Origin { array: self.array, member: member as u32, lba };
                    self.submit(member, Command::write(Lba(lba), record.encode(origin, sequence), true))
                }
            };
            pending.push((self.seat(member), completion));
        }
        for (seat, completion) in pending {
            if let Err(error) = completion.await.result {
                self.member_failed(seat, error, "tail log");
            }
        }
    }

    /// Brings the members' zones to their full state when the capacity is not a whole number of
    /// rows, or several zones are one, some of which a power cut may have left behind.
    pub async fn fill_zones(&self, zone: &Zone) {
        let used = self.layout.rows * self.layout.chunk_blocks;
        let zones = Zones::One(Core::physical(zone.index));
        let aggregated = self.superblock.borrow().aggregate > 1;
        let larger = |m: usize| self.device(m).is_some_and(|d| d.geometry().zone_capacity_blocks > used);
        let short = Core::each(self.live(zone.index))
            .filter(|m| aggregated || larger(*m))
            .fold(0, |mask, m| mask | 1 << m);
        self.on_all(short, "finish zone", |_| Command::Finish { zones }).await;
        self.clear_lost(zone.index).await;
    }

    /// Has the members that lack their part of a zone that ends give up what they hold of it: it
    /// takes resources that the array counts as free. A rebuild does that itself.
    pub async fn clear_lost(&self, zone: ZoneIndex) {
        if self.rebuilding.get() == Some(zone.0) {
            return;
        }
        let lost = self.zones.borrow()[zone.0 as usize].lost & self.active.get();
        for member in Core::each(lost) {
            self.clear(zone, member).await;
        }
    }

    /// Waits until nothing of the zone is on its way, and what is complete is settled. Nothing is
    /// submitted until [`Core::resume`].
    pub async fn quiesce(&self, zone: &Zone) {
        zone.flow.borrow_mut().paused += 1;
        self.quiet(zone).await;
    }

    async fn quiet(&self, zone: &Zone) {
        loop {
            let changed = zone.changed.wait();
            zone.completed.open();
            {
                let flow = zone.flow.borrow();
                let busy = flow.opening || flow.settling || !flow.flights.is_empty();
                let quiet = !busy && !self.unsettled(&flow);
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
        self.pump(zone);
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
            if self.failed.get() {
                return Err(Status::InternalError.into());
            }
            zone.completed.open();
            changed.await;
        }
    }

    /// Fails the writes that have not been submitted yet.
    pub fn refuse_queued(&self, zone: &Zone, status: Status) {
        let queued: Vec<_> = zone.flow.borrow_mut().queue.drain(..).collect();
        for Queued { data, completer, .. } in queued {
            completer.complete(Done { result: Err(status.into()), data, ..Done::ok() });
        }
    }
}
