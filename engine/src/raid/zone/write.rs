//! Writes (§4.1): one running zone is a queue of writes and three tasks.
//!
//! `submit_plans` takes data from the queue in *plans*: blocks of one stripe, of any number of writes, which are
//! submitted together with the parity that [`zrwa::parity_of`] returns. `reap_flights` takes completions in the order
//! of the plans, so that a plan is complete only when all plans before it are; it acknowledges the writes of a plan,
//! each on its own, that need not be safe. `settle` then moves the write pointers, logs tails that write pointers
//! cannot show, and acknowledges the writes that had to be safe.
//!
//! Queued data that completes a stripe is submitted at once. Less than that needs partial parity, so it may wait while
//! other writes of the zone are in flight ([`plan_end`]); when none is, it is submitted. No tail inside a plan is
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
        LogStep, failures,
        geometry::{ParityPlace, physical},
        io,
        parts::Raid,
        policy::{inplace, zrwa},
        power,
        seat::Seat,
        zone::{
            flow::{Flow, Parities, SubRequest, SubmittedPlan, Traffic, Write, Zone},
            relocated, settle,
        },
    },
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Why [`reap`] stops.
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

/// Queues a write of `data` at block `at` of a zone, which the zone table has accepted already. `note` is empty for none,
/// and only allowed with `fua`.
pub fn write(raid: &Rc<Raid>, zone: ZoneIndex, at: u64, data: Buf, (fua, note): (bool, Buf)) -> Completion {
    assert!(fua || note.is_empty(), "a write with a note, which is not durable");
    let (completer, completion) = raid.slots.pair();
    let running = running_zone(raid, zone);
    {
        let mut flow = running.flow.borrow_mut();
        let end = flow.queue.back().map_or(flow.next, Write::end);
        assert!(at == end, "a write at block {at} of zone {}, which ends at {end}", zone.0);
        if !note.is_empty() {
            flow.add_note(at + data.blocks(), note);
        }
        flow.queue.push_back(Write { start: at, data, fua, completer });
    }
    running.queued.open();
    completion
}

/// The running zone `index`; if it was not running, it is opened on the members.
pub fn running_zone(raid: &Rc<Raid>, index: ZoneIndex) -> Rc<Zone> {
    if let Some(zone) = raid.zones.running(index) {
        return zone;
    }
    let zone = Rc::new(Zone::new(&raid.layout, index, raid.zone_records.epoch(index)));
    raid.zones.start(zone.clone());
    raid.runtime.spawn(open_members(raid.clone(), zone.clone()));
    zone
}

async fn open_members(raid: Rc<Raid>, zone: Rc<Zone>) {
    loop {
        // A loss of power that is noticed only later would seem to concern the data of this zone.
        if power::notices_power_loss(&raid, raid.members.active()) {
            power::power_checked(&raid).await;
        }
        let changed = raid.zones.changed.wait();
        if zone.flow.borrow().is_over() {
            return;
        }
        // A zone that has just become full may still take active resources of the members. 0 means unlimited.
        let limit = raid.geometry.max_active as usize;
        let limit = limit.saturating_sub(raid.zones.holding());
        let room = limit == 0 || raid.zones.open_count() < limit;
        if raid.has_failed(zone.index) || (room && !raid.background.is_in(zone.index)) {
            break;
        }
        changed.await;
    }
    {
        let mut flow = zone.flow.borrow_mut();
        (flow.open, flow.opening) = (true, true);
    }
    let (zones, zrwa) = (Zones::One(physical(zone.index)), raid.layout.policy.uses_zrwa());
    let zrwa = zrwa || raid.behaviour.log_step >= LogStep::Zrwa;
    let live = raid.live(zone.index);
    io::on_parts(&raid, zone.index, live, "open zone", |_| Command::Open { zones, zrwa }).await;
    raid.layout.policy.opened(&raid, &zone).await;
    zone.flow.borrow_mut().opening = false;
    zone.changed.open();
    start_tasks(&raid, &zone);
}

pub fn start_tasks(raid: &Rc<Raid>, zone: &Rc<Zone>) {
    raid.runtime.spawn(submit_plans(raid.clone(), zone.clone()));
    raid.runtime.spawn(reap_flights(raid.clone(), zone.clone()));
    raid.runtime.spawn(settle::settle(raid.clone(), zone.clone()));
}

/// Task: submits queued data. It runs after all other ready tasks, so that these have queued their writes.
async fn submit_plans(raid: Rc<Raid>, zone: Rc<Zone>) {
    loop {
        let queued = zone.queued.wait();
        if zone.flow.borrow().ended {
            return;
        }
        pump(&raid, &zone);
        queued.await;
    }
}

/// Submits as many plans as may be submitted now.
fn pump(raid: &Raid, zone: &Zone) {
    let mut flow = zone.flow.borrow_mut();
    let flow = &mut *flow;
    if !flow.open || flow.opening || flow.paused > 0 || raid.has_failed(zone.index) {
        return;
    }
    let mut submitted = false;
    while let Some(end) = plan_end(raid, flow).map(|end| alone_with_note(flow, end)) {
        let end = match raid.layout.policy.plan_end(&raid.layout, flow.safe, flow.next, end) {
            Ok(end) => end,
            Err(needed) => {
                flow.want(needed);
                zone.completed.open();
                break;
            }
        };
        let before = flow.subs.len();
        submit_plan(raid, zone.index, flow, end);
        assert!(flow.next == end, "a plan up to block {end} has submitted {}", flow.next);
        let subs = (flow.subs.len() - before) as u32;
        let blocks = flow.subs.range(before..).map(|sub| sub.blocks).sum();
        let traffic = Traffic { commands: subs.into(), blocks };
        raid.zones.add_traffic(traffic);
        let before = flow.flights.back().map_or(flow.complete, |flight| flight.end);
        assert!(end > before, "a plan up to block {end} follows one up to {before}");
        flow.flights.push_back(SubmittedPlan { end, subs, traffic });
        if end.is_multiple_of(raid.layout.stripe_blocks()) {
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
fn plan_end(raid: &Raid, flow: &mut Flow) -> Option<u64> {
    let (front, back) = (flow.queue.front()?, flow.queue.back()?);
    if flow.next >= flow.limit {
        return None;
    }
    let stripe_blocks = raid.layout.stripe_blocks();
    let stripe_end = (flow.next / stripe_blocks + 1) * stripe_blocks;
    if !raid.behaviour.join {
        return Some(front.end().min(stripe_end));
    }
    let end = back.end();
    flow.depth[0] = flow.depth[0].max(end - flow.complete);
    if end >= stripe_end {
        return Some(stripe_end);
    }
    let (left, rest, chunk) = (end - flow.next, stripe_end - flow.next, raid.layout.chunk_blocks);
    // Data waits for writes in flight only: when these complete, more writes may be queued.
    let in_flight = front.start.saturating_sub(flow.complete);
    if in_flight > 0 {
        // In the last chunk waiting saves no parity: its slot is the full parity.
        let depth = flow.depth[0].max(flow.depth[1]);
        let fills = depth >= rest && rest > chunk;
        let waits = (fills || left < in_flight) && is_busy(raid);
        return (!waits).then_some(end);
    }
    if !(chunk / 2..=chunk).contains(&left) {
        return Some(end);
    }
    // In two halves, so that the transfer of one overlaps with the drive's work on the other.
    let ends = flow.queue.iter().map(Write::end);
    Some(ends.take_while(|end| 2 * (end - flow.next) <= left).last().unwrap_or(front.end()))
}

/// End of a plan that could go on to block `end`: a write with a note is a plan of its own. So no end that is acknowledged
/// with an earlier write lies behind it.
fn alone_with_note(flow: &Flow, end: u64) -> u64 {
    match flow.queued_with_note() {
        Some((start, _)) if start > flow.next => end.min(start),
        Some((_, noted)) => noted,
        None => end,
    }
}

/// Whether fewer and larger commands would help the members: in all zones together, two commands per member are in
/// flight, or as much as a stripe with its parity. With less, waiting only adds latency.
fn is_busy(raid: &Raid) -> bool {
    let Traffic { commands, blocks } = raid.zones.traffic();
    commands >= 2 * raid.layout.members as u64
        || blocks >= raid.layout.chunk_blocks * raid.layout.members as u64
}

/// Submits queued data up to block `end`, within a stripe, and the parity that it needs.
fn submit_plan(raid: &Raid, zone: ZoneIndex, flow: &mut Flow, end: u64) {
    let layout = &raid.layout;
    let chunk = layout.chunk_blocks;
    let stripe = flow.next / layout.stripe_blocks();
    let base = stripe * layout.stripe_blocks();
    let (from, to) = (flow.next - base, end - base);
    assert!(from < to && to <= layout.stripe_blocks(), "a plan of blocks {from}..{to} of a stripe");
    let whole_stripe = to - from == layout.stripe_blocks();
    let live = raid.live(zone);
    let parts = zrwa::parity_of(layout, from, to);
    let (mut index, mut offset) = layout.chunk_of(from);
    let mut pieces = std::mem::take(&mut flow.pieces);
    while flow.next < end {
        let piece = take_piece(raid, flow, (chunk - flow.next % chunk).min(end - flow.next));
        pieces.push(piece);
    }
    let full = if whole_stripe { full_parities(raid, stripe, live, &pieces) } else { Default::default() };
    for piece in pieces.drain(..) {
        let write = parts.iter().flatten().any(|part| part.index == index);
        let parities = match whole_stripe {
            true => Default::default(),
            false => run_parities(raid, flow, index, offset, &piece, write),
        };
        let member = layout.member(stripe, index);
        if live & (1 << member) != 0 {
            store(raid, zone, flow, member, stripe * chunk + offset, piece, Content::Data);
        }
        submit_parities(raid, zone, flow, live, (stripe, index, offset), parities);
        (index, offset) = (index + 1, 0);
    }
    submit_parities(raid, zone, flow, live, (stripe, index - 1, 0), full);
    flow.pieces = pieces;
}

/// Takes `blocks` blocks from the queue: without a copy if they are of one write, otherwise copied together.
fn take_piece(raid: &Raid, flow: &mut Flow, blocks: u64) -> Buf {
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
            joined = raid.pool.borrow_mut().take(blocks);
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
fn full_parities(raid: &Raid, stripe: u64, live: u32, pieces: &[Buf]) -> Parities {
    let layout = &raid.layout;
    let kept = |which| which < layout.parities && live & (1 << layout.parity_member(stripe, which)) != 0;
    let mut parities = Parities::default();
    let take = || raid.pool.borrow_mut().take(layout.chunk_blocks);
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
fn run_parities(raid: &Raid, flow: &mut Flow, index: u64, offset: u64, data: &Buf, write: bool) -> Parities {
    if raid.layout.parities == 0 {
        return Parities::default();
    }
    let range = offset as usize * BLOCK..offset as usize * BLOCK + data.len();
    let double = raid.layout.parities > 1;
    let power = index as usize;
    let [p, q] = &mut flow.parities;
    let (p, q) = (&mut p[range.clone()], if double { &mut q[range] } else { &mut [] });
    let take = || raid.pool.borrow_mut().take(data.blocks());
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
    raid: &Raid,
    zone: ZoneIndex,
    flow: &mut Flow,
    live: u32,
    at: (u64, u64, u64),
    parities: Parities,
) {
    for (which, data) in parities.into_iter().enumerate() {
        if let Some(data) = data {
            submit_parity(raid, zone, flow, live, at, which, data);
        }
    }
}

fn submit_parity(
    raid: &Raid,
    zone: ZoneIndex,
    flow: &mut Flow,
    live: u32,
    (stripe, index, offset): (u64, u64, u64),
    which: usize,
    data: Buf,
) {
    let (member, place) = raid.layout.slot(stripe, index, which);
    let member = match place {
        ParityPlace::MetaLog if raid.behaviour.logs_at_parity => raid.layout.parity_member(stripe, which),
        _ => member,
    };
    if live & (1 << member) == 0 {
        return;
    }
    match place {
        ParityPlace::Row(row) => {
            let at = row * raid.layout.chunk_blocks + offset;
            let content = inplace::version_of(stripe, row, index);
            store(raid, zone, flow, member, at, data, content);
        }
        ParityPlace::MetaLog => {
            // The log keeps the buffer after the write; the parity of one chunk is the write's own buffer.
            let data = if index == 0 { raid.copy(&data) } else { data };
            let (epoch, from) = (flow.epoch, offset as u32);
            let record = ParityRecord { zone: zone.0, epoch, stripe, index: index as u32, from, data };
            let blocks = record.data.blocks();
            let completion = raid.append(member, Record::Parity(record));
            track(raid, flow, member, blocks, completion);
        }
    }
}

/// Submits `data` to a member's part of a zone, from block `at` of the part on.
fn store(raid: &Raid, zone: ZoneIndex, flow: &mut Flow, member: usize, at: u64, data: Buf, content: Content) {
    let end = at + data.blocks();
    let capacity = raid.layout.rows * raid.layout.chunk_blocks;
    assert!(end <= capacity, "blocks up to {end} of a part of {capacity}");
    let (burned, rest) = flow.split(raid.layout.policy, member, at, data);
    if let Some(burned) = burned {
        let completion = relocated::relocate(raid, zone, flow.epoch, member, at, &burned);
        track(raid, flow, member, burned.blocks(), completion);
    }
    if let Some((at, rest)) = rest {
        let blocks = rest.blocks();
        let completion = io::write(raid, member, zone, at, rest, content);
        track(raid, flow, member, blocks, completion);
    }
}

/// Adds a sub-request of `blocks` blocks to the flight, unless it has completed already.
fn track(raid: &Raid, flow: &mut Flow, member: usize, blocks: u64, mut completion: Completion) {
    match completion.take() {
        Some(done) if done.result.is_ok() => give_back(raid, done),
        Some(done) => {
            let completion = Completion::ready(done);
            flow.subs.push_back(SubRequest { seat: raid.members.seat(member), completion, blocks });
        }
        None => flow.subs.push_back(SubRequest { seat: raid.members.seat(member), completion, blocks }),
    }
}

/// Task: takes completions in the order of the plans.
async fn reap_flights(raid: Rc<Raid>, zone: Rc<Zone>) {
    loop {
        let submitted = zone.submitted.wait();
        match reap(&raid, &zone) {
            ReapStop::Ended => return,
            ReapStop::Idle => submitted.await,
            ReapStop::Membership => raid.membership.settled().await,
            ReapStop::Promise(end) => settle::record_promise(&raid, &zone, end).await,
            ReapStop::Wait(sub) => {
                let done = sub.completion.await;
                finish_sub(&raid, zone.index, sub.seat, done);
            }
        }
    }
}

fn finish_sub(raid: &Raid, zone: ZoneIndex, seat: Seat, done: Done) {
    if let Err(error) = done.result {
        failures::part_failed(raid, zone, seat, error, "write");
    }
    give_back(raid, done);
}

/// Returns the buffers of a sub-request to the pool, which drops those that a write still refers to.
fn give_back(raid: &Raid, done: Done) {
    let mut pool = raid.pool.borrow_mut();
    pool.give(done.data);
    pool.give(done.oob);
}

/// Takes all completions that have arrived.
fn reap(raid: &Raid, zone: &Zone) -> ReapStop {
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
                Some(done) => finish_sub(raid, zone.index, sub.seat, done),
                None => break ReapStop::Wait(sub),
            }
            continue;
        }
        if safe_when_complete(raid) {
            if !zone.promised.get() {
                break ReapStop::Promise(flight.end);
            }
            power::notices_power_loss(raid, raid.live(zone.index));
        }
        // If a part was lost, its loss has to be logged before blocks that it lacks count as complete.
        if raid.membership.is_pending() {
            break ReapStop::Membership;
        }
        let Some(flight) = flow.flights.pop_front() else { continue };
        raid.zones.take_traffic(flight.traffic);
        complete(raid, zone.index, flow, flight.end);
    };
    if settle::unsettled(raid, flow) {
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
fn safe_when_complete(raid: &Raid) -> bool {
    raid.layout.policy.is_safe_when_complete() && !raid.members.is_volatile()
}

/// Marks a plan up to block `end` as complete. Acknowledges its writes, except those that have to be safe first.
fn complete(raid: &Raid, zone: ZoneIndex, flow: &mut Flow, end: u64) {
    // In a stuck zone, a member that cannot be spared lacks blocks of the plan.
    if raid.zones.stuck(zone).is_none() {
        flow.complete = flow.complete.max(end);
    }
    if safe_when_complete(raid) {
        flow.safe = flow.complete;
    }
    flow.check();
    while flow.sent.front().is_some_and(|write| write.end() <= end) {
        let Some(Write { start, data, fua, completer }) = flow.sent.pop_front() else { return };
        let lba = Lba(raid.geometry.start(zone).0 + start);
        let mut done = Done { tail: end, data, lba, ..Done::ok() };
        if raid.has_failed(zone) {
            done.result = Err(Status::InternalError.into());
            completer.complete(done);
        } else if (fua || !raid.may_lose()) && flow.safe < end {
            flow.wanted = flow.wanted.max(end);
            flow.waiting.push_back((end, completer, done));
        } else {
            completer.complete(done);
        }
    }
}
