//! Settling (group commit of a zone): makes data safe, moves write pointers and the window; pauses and ends zones.

use crate::{
    device::{Command, DeviceError, Done, Status, Zones},
    format::record::Record,
    raid::{
        Consistency, durable,
        events::Event,
        failures,
        geometry::{MAX_MEMBERS, each, physical},
        io,
        parts::Raid,
        power,
        zone::{
            exclusion,
            flow::{Flow, Round, Write, Zone},
        },
    },
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// Task: carries out rounds of settling until the zone ends.
pub async fn settle(raid: Rc<Raid>, zone: Rc<Zone>) {
    loop {
        let work = zone.completed.wait();
        if zone.flow.borrow().ended {
            return;
        }
        if !settle_once(&raid, &zone).await {
            work.await;
        }
    }
}

/// Carries out one round; `false` if there was none to do, or the zone has failed.
async fn settle_once(raid: &Raid, zone: &Zone) -> bool {
    if raid.has_failed(zone.index) && raid.drain.handing_over().is_none() {
        give_up(raid, zone);
        return false;
    }
    let round = {
        let mut flow = zone.flow.borrow_mut();
        if !unsettled(raid, &flow) {
            return false;
        }
        flow.settling = true;
        round_of(raid, &flow, flow.wanted > flow.safe)
    };
    let safe = settle_round(raid, zone, &round).await;
    let full = round.complete == raid.layout.capacity_blocks();
    if full {
        fill_zones(raid, zone).await;
    }
    power::notices_power_loss(raid, raid.live(zone.index));
    raid.membership.settled().await;
    settled(raid, zone, round.chunks, if full { round.complete } else { safe }, full);
    !raid.has_failed(zone.index)
}

fn round_of(raid: &Raid, flow: &Flow, wanted: bool) -> Round {
    Round { complete: flow.complete, wanted, chunks: chunks_to_claim(raid, flow), claimed: flow.claimed }
}

/// Carries out a round and records the first promise; returns the end of the blocks that are safe now, or 0.
async fn settle_round(raid: &Raid, zone: &Zone, round: &Round) -> u64 {
    let safe = raid.layout.policy.settle(raid, zone, round).await;
    if safe > 0 {
        record_promise(raid, zone, safe).await;
    }
    safe
}

/// Records in the members' logs, before the first acknowledged FUA write or flush of a zone, that all blocks below
/// `tail_blocks` are promised. Without the record, a zone that has lost all its ZRWAs before the write pointers
/// moved would count as empty. It is written after the other evidence of the tail (log blocks, write pointers), so
/// a record without such evidence proves a loss.
pub async fn record_promise(raid: &Raid, zone: &Zone, tail_blocks: u64) {
    if zone.promised.replace(true) || !raid.layout.policy.uses_zrwa() {
        return;
    }
    // The other consistency levels, for experiments, log no tails.
    if raid.behaviour.consistency != Consistency::WpLog || raid.has_failed(zone.index) {
        return;
    }
    log_promise(raid, zone, tail_blocks, raid.live(zone.index), 0).await;
}

/// As [`record_promise`], when `member` gets a rebuilt part whose write pointer is at the start: with it
/// there may be enough such parts for a record that was not needed when the promise was made.
pub async fn record_promise_with(raid: &Raid, zone: &Zone, tail_blocks: u64, member: usize) {
    if !zone.promised.get() || raid.behaviour.consistency != Consistency::WpLog {
        return;
    }
    log_promise(raid, zone, tail_blocks, raid.live(zone.index), 1 << member).await;
}

/// Logs a promise on the members `live` and `joining` (bits), unless too few write pointers are at the start; those
/// of `joining` are. A part whose write pointer has moved does not look empty after the loss of its ZRWA, and
/// without enough others the zone is offline anyway.
async fn log_promise(raid: &Raid, zone: &Zone, tail_blocks: u64, live: u32, joining: u32) {
    assert!(
        live & joining == 0,
        "members {joining:#b} join zone {}, and hold it already: {live:#b}",
        zone.index.0
    );
    let unmoved = each(live).filter(|m| zone.flow.borrow().positions[*m] == 0);
    if raid.members.are_enough(unmoved.fold(joining, |mask, m| mask | 1 << m)) {
        let record = raid.layout.policy.promise_record(raid, zone, tail_blocks);
        let sequence = raid.membership.next_sequence();
        durable::append_to(raid, live | joining, Record::Tail(record), sequence).await;
    }
}

/// Promises all complete data of a quiesced zone that is to be finished, unless data is promised already. Otherwise
/// a crash during the finish in which all its ZRWAs are lost would leave a zone full of zeros.
pub async fn prove_data(raid: &Raid, zone: &Zone) {
    if zone.promised.get() || !raid.layout.policy.uses_zrwa() {
        return;
    }
    let round = round_of(raid, &zone.flow.borrow(), true);
    settle_round(raid, zone, &round).await;
    zone.flow.borrow_mut().claimed = round.chunks.max(round.claimed);
}

/// Number of chunks, from the start of the zone, that should count as settled.
fn chunks_to_claim(raid: &Raid, flow: &Flow) -> u64 {
    let (layout, consistency) = (&raid.layout, raid.behaviour.consistency);
    layout.policy.chunks_to_claim(layout, consistency, flow.complete, flow.claimed)
}

/// Whether a round of settling is due.
pub fn unsettled(raid: &Raid, flow: &Flow) -> bool {
    // The round of a full zone ends it.
    let full = flow.complete == raid.layout.capacity_blocks();
    let claim = full || chunks_to_claim(raid, flow) > flow.claimed;
    !flow.frozen && (claim || (flow.wanted > flow.safe && flow.complete > flow.safe))
}

/// Returns errors for the waiting and the queued writes of a zone that has failed; it takes no others.
pub(super) fn give_up(raid: &Raid, zone: &Zone) {
    if !zone.failed.replace(true) && !raid.membership.has_failed() {
        raid.events.note(Event::ZoneFailed { zone: zone.index.0 });
    }
    let waiting: Vec<_> = zone.flow.borrow_mut().waiting.drain(..).collect();
    for (_, completer, done) in waiting {
        completer.complete(Done { result: Err(Status::InternalError.into()), ..done });
    }
    refuse_queued(zone, Status::InternalError);
    zone.changed.open();
}

/// Records the result of a round of settling, and acknowledges the writes that are safe now. `full`: the zone ends.
pub fn settled(raid: &Raid, zone: &Zone, chunks: u64, safe: u64, full: bool) {
    if raid.has_failed(zone.index) {
        zone.flow.borrow_mut().settling = false;
        return give_up(raid, zone);
    }
    {
        let mut flow = zone.flow.borrow_mut();
        let flow = &mut *flow;
        assert!(
            chunks <= raid.layout.chunk_of(flow.complete).0,
            "{chunks} chunks are claimed, complete up to block {}",
            flow.complete
        );
        flow.settling = false;
        flow.claimed = flow.claimed.max(chunks);
        flow.safe = flow.safe.max(safe);
        flow.limit = window(raid, flow, raid.live(zone.index));
        flow.check();
        while flow.waiting.front().is_some_and(|w| w.0 <= flow.safe) {
            if let Some((_, completer, done)) = flow.waiting.pop_front() {
                completer.complete(done);
            }
        }
        flow.ended |= full;
    }
    if full {
        end_zone(raid, zone);
    } else {
        let stripe = chunks / raid.layout.data_chunks();
        if raid.layout.logs_parity_of(stripe) {
            forget_logged(raid, zone.index, stripe);
        }
        zone.queued.open();
    }
    zone.changed.open();
    raid.zone_records.unreadable.wake(zone.index);
}

/// End of the window: blocks below may be submitted with the present positions of the members of `live`.
pub fn window(raid: &Raid, flow: &Flow, live: u32) -> u64 {
    let layout = &raid.layout;
    let rows = layout.policy.window_rows(layout, live, flow.claimed, &flow.positions);
    rows * layout.stripe_blocks()
}

/// Drops the logged parity of the stripes below `stripe`, which no recovery needs any more.
pub fn forget_logged(raid: &Raid, zone: ZoneIndex, stripe: u64) {
    for log in raid.members.logs() {
        log.live.borrow_mut().parity.forget(zone.0, stripe, &mut raid.pool.borrow_mut());
    }
}

/// Ends a running zone: drops its state in the logs, and ends its tasks.
pub fn end_zone(raid: &Raid, zone: &Zone) {
    raid.zones.end(zone.index);
    forget_logged(raid, zone.index, u64::MAX);
    for log in raid.members.logs() {
        let mut live = log.live.borrow_mut();
        live.tails.remove(&zone.index.0);
        live.notes.remove(&zone.index.0);
    }
    zone.end();
    raid.zones.changed.open();
    raid.zone_records.unreadable.wake(zone.index);
}

/// Explicit flushes: moves the write pointers of live members to their target positions, where these are ahead.
pub async fn move_to(raid: &Raid, zone: &Zone, targets: &[u64; MAX_MEMBERS]) {
    let half = raid.layout.chunk_blocks / 2;
    {
        let mut flow = zone.flow.borrow_mut();
        for m in each(raid.live(zone.index)) {
            if targets[m] <= flow.positions[m] {
                continue;
            }
            let last = Lba(raid.members.start(m, zone.index).0 + targets[m] * half - 1);
            let sent = (raid.members.seat(m), raid.members.submit(m, Command::FlushZrwa { last }));
            flow.moves.push_back(sent);
        }
    }
    loop {
        let Some((seat, completion)) = zone.flow.borrow_mut().moves.pop_front() else { break };
        match completion.await.result {
            Ok(()) => zone.flow.borrow_mut().positions[seat.member] = targets[seat.member],
            Err(error) => failures::part_failed(raid, zone.index, seat, error, "ZRWA flush"),
        }
    }
}

/// Finishes the members' zones of a full zone: those with more capacity than the array uses, and aggregates, of
/// which a power cut may have left some zones behind.
pub async fn fill_zones(raid: &Raid, zone: &Zone) {
    if raid.has_failed(zone.index) {
        return;
    }
    let used = raid.layout.rows * raid.layout.chunk_blocks;
    let zones = Zones::One(physical(zone.index));
    let aggregated = {
        let superblock = raid.membership.superblock();
        // Zones that are written by appends have unused blocks at their end, those with checksum blocks may have one.
        superblock.aggregate > 1 || superblock.group_blocks > 0 || superblock.has_checksum_blocks()
    };
    let larger = |m: usize| raid.members.device(m).is_some_and(|d| d.geometry().zone_capacity_blocks > used);
    // A member that is being replaced: the new drive may have larger zones.
    let copied = raid.members.mirrored();
    let short = each(raid.live(zone.index))
        .filter(|m| aggregated || larger(*m) || copied == Some(*m))
        .fold(0, |mask, m| mask | 1 << m);
    io::on_parts(raid, zone.index, short, "finish zone", |_| Command::Finish { zones }).await;
    clear_lost(raid, zone.index).await;
}

/// Resets the remains of a zone that ends, on members that lack their part of it: they take active resources of the
/// drives. On a member that is being rebuilt the rebuild does that.
pub async fn clear_lost(raid: &Raid, zone: ZoneIndex) {
    let rebuilt = raid.background.seat().filter(|_| raid.background.is_in(zone));
    let lost = raid.zone_records.lost(zone) & raid.members.active();
    for member in each(lost).filter(|member| rebuilt.is_none_or(|seat| seat.member != *member)) {
        while raid.background.is_clearing(zone) {
            raid.zones.changed.wait().await;
        }
        if raid.zone_records.lost(zone) & (1 << member) != 0 {
            exclusion::clear(raid, zone, member).await;
        }
    }
}

/// A zone in which nothing is submitted until this is dropped.
pub struct ZonePause(Rc<Zone>);

impl Drop for ZonePause {
    fn drop(&mut self) {
        self.0.flow.borrow_mut().paused -= 1;
        self.0.wake();
    }
}

/// Pauses submission in a zone, and waits until it is quiet.
pub async fn pause(raid: &Raid, zone: &Rc<Zone>) -> ZonePause {
    zone.pause();
    let pause = ZonePause(zone.clone());
    quiet(raid, zone).await;
    pause
}

/// Waits until no command of a paused zone is in flight, and complete data is settled.
pub async fn quiet(raid: &Raid, zone: &Zone) {
    loop {
        let changed = zone.changed.wait();
        zone.completed.open();
        {
            let flow = zone.flow.borrow();
            let busy = flow.opening || flow.settling || flow.cells > 0 || !flow.flights.is_empty();
            let quiet = !busy && (raid.has_failed(zone.index) || !unsettled(raid, &flow));
            if quiet || flow.ended || (raid.membership.has_failed() && flow.flights.is_empty()) {
                return;
            }
        }
        changed.await;
    }
}

/// Stops all activity in a zone that is about to end, including a rebuild.
pub async fn freeze(raid: &Raid, zone: &Zone) {
    zone.pause();
    quiet(raid, zone).await;
    exclusion::stop_rebuild(raid, zone.index.0..zone.index.0 + 1).await;
    quiet(raid, zone).await;
    zone.flow.borrow_mut().frozen = true;
    raid.zones.changed.open();
}

/// Waits until all blocks below `tail_blocks` are safe, or the zone has ended.
///
/// # Errors
/// Internal Error, if the zone fails before that.
pub async fn make_safe(raid: &Raid, zone: &Zone, tail_blocks: u64) -> Result<(), DeviceError> {
    loop {
        let changed = zone.changed.wait();
        {
            let mut flow = zone.flow.borrow_mut();
            flow.wanted = flow.wanted.max(tail_blocks);
            if flow.safe >= tail_blocks || flow.ended {
                return Ok(());
            }
        }
        if raid.has_failed(zone.index) {
            return Err(Status::InternalError.into());
        }
        zone.completed.open();
        changed.await;
    }
}

/// Completes all queued writes with an error.
pub fn refuse_queued(zone: &Zone, status: Status) {
    let queued: Vec<_> = zone.flow.borrow_mut().queue.drain(..).collect();
    for Write { data, completer, .. } in queued {
        completer.complete(Done { result: Err(status.into()), data, ..Done::ok() });
    }
}
