//! Scrubs of a running array: one at a time, zone by zone. A scrub yields to requests, to rebuilds and to replacements,
//! and continues where it was after a restart of the daemon.
//!
//! Its state is that of [`super::scrubber`].

use super::{
    scrubber::{VerifiedZones, now},
    state::{Daemon, Phase, log, writing_begun},
    status,
};
use crate::{
    process::{
        output::{quoted, uuid},
        size::{bytes, show},
    },
    reactor::give_way,
    report::scrub::{ScrubReport, ScrubState, ScrubStatus},
};
use anyhow::{Context, Result, ensure};
use engine::{
    array::{Array, zone_epoch},
    device::{Command, ZonedDevice},
    zone::{ZoneIndex, ZoneInfo},
};
use std::{
    collections::BTreeSet,
    future::poll_fn,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::{Duration, Instant},
};

/// Rate that a scrub has beside requests, in bytes a second of all members.
const LEAST_RATE: u64 = 16 << 20;
/// How long after a request the array counts as in use.
const IN_USE: Duration = Duration::from_millis(100);
/// Interval at which a scrub that waits looks for requests.
const SLICE: Duration = Duration::from_millis(10);
/// Interval at which changes of what cannot be read are looked for.
const NOTE_EVERY: Duration = Duration::from_secs(3);
/// Interval at which the state is stored.
const STORE_EVERY: Duration = Duration::from_secs(10);
/// The scrubs of the array of a daemon.
pub(super) fn scrub_status(daemon: &Daemon) -> ScrubStatus {
    let status = daemon.array.status();
    ScrubStatus {
        array: status.name,
        uuid: uuid(&status.uuid),
        scrub: daemon.scrubber.report().unwrap_or_default(),
        history: daemon.scrubber.book.borrow().history.clone(),
    }
}

/// Starts a scrub, or continues a paused one.
pub(super) async fn start(daemon: &Rc<Daemon>, since_last: bool, rate: Option<u64>) -> Result<ScrubStatus> {
    let (scrubber, called) = (&daemon.scrubber, daemon.array.status().name);
    ensure!(
        !daemon.array.status().read_only,
        "'{called}' is read-only: stop it and start it without --read-only"
    );
    match scrubber.state() {
        ScrubState::Running => {
            let mut book = scrubber.book.borrow_mut();
            book.rate = rate.or(book.rate);
        }
        ScrubState::Paused => {
            let mut book = scrubber.book.borrow_mut();
            book.rate = rate.or(book.rate);
            book.present.iter_mut().for_each(|present| present.state = ScrubState::Running);
        }
        _ => {
            let zones = report(&daemon.array).await?;
            let mut book = scrubber.book.borrow_mut();
            let book = &mut *book;
            let is_read = |info: &&ZoneInfo| {
                let epoch = zone_epoch(&daemon.array, info.zone);
                !since_last || !book.verified.has(info.zone.0, epoch)
            };
            let total_bytes = zones.iter().filter(is_read).map(|info| zone_bytes(daemon, info)).sum();
            let present = ScrubReport {
                state: ScrubState::Running,
                since_last,
                started_at: now(),
                total_bytes,
                ..ScrubReport::default()
            };
            (book.present, book.next_zone, book.rate) = (Some(present), 0, rate);
            let epochs = zones.iter().map(|info| zone_epoch(&daemon.array, info.zone));
            book.reading = VerifiedZones::new(epochs.max().unwrap_or(0));
            scrubber.number.set(scrubber.number.get() + 1);
        }
    }
    scrubber.store();
    resume(daemon);
    Ok(scrub_status(daemon))
}

/// Pauses the scrub, or ends it.
pub(super) fn set(daemon: &Daemon, state: ScrubState) -> Result<ScrubStatus> {
    let (scrubber, called) = (&daemon.scrubber, daemon.array.status().name);
    ensure!(
        scrubber.state().is_under_way(),
        "no scrub of '{called}' is under way: start one with zoneraid scrub start {}",
        quoted(&called)
    );
    {
        let mut book = scrubber.book.borrow_mut();
        match state {
            ScrubState::Paused => book.present.iter_mut().for_each(|present| {
                present.state = state;
                present.estimate();
            }),
            _ => book.end(state),
        }
    }
    scrubber.store();
    scrubber.changed.open();
    Ok(scrub_status(daemon))
}

/// Continues a scrub that is not paused, as after a start of the daemon.
pub(super) fn resume(daemon: &Rc<Daemon>) {
    let scrubber = &daemon.scrubber;
    if scrubber.state() != ScrubState::Running || scrubber.runs.replace(true) {
        return;
    }
    let scrubbed = daemon.clone();
    daemon.reactor.runtime().spawn(async move {
        let goes_on =
            || scrubbed.phase.get() == Phase::Running && scrubbed.scrubber.state() == ScrubState::Running;
        while goes_on() {
            let (changed, set) = (scrubbed.array.changed(), scrubbed.scrubber.changed.wait());
            let Err(error) = scrub(&scrubbed).await else { continue };
            let called = scrubbed.array.status().name;
            log(&format!("'{called}': the scrub is interrupted: {error:#}"));
            either(changed, set).await;
        }
        scrubbed.scrubber.runs.set(false);
    });
}

/// Waits for the first of two events.
async fn either(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Pending => second.as_mut().poll(context),
        ready => ready,
    })
    .await;
}

/// Stores the zones with unreadable blocks that could not be repaired, if these have changed: the array itself does not
/// store them.
pub(super) fn note_unreadable(daemon: &Daemon) {
    let suspects: BTreeSet<u32> = daemon.array.status().unreadable.iter().map(|range| range.zone).collect();
    if suspects != daemon.scrubber.book.borrow().suspects {
        daemon.scrubber.book.borrow_mut().suspects = suspects;
        daemon.scrubber.store();
    }
}

/// Reads the zones again in which the last daemon knew of blocks that could not be repaired, so that the status is exact.
pub(super) async fn look_again(daemon: Rc<Daemon>) {
    let suspects = daemon.scrubber.book.borrow().suspects.clone();
    for zone in suspects.into_iter().filter(|zone| *zone < daemon.array.geometry().zones) {
        writing_begun(&daemon.array).await;
        // The array may have failed meanwhile: then nothing is known.
        _ = daemon.array.scrub_zone(ZoneIndex(zone), async |_| ()).await;
    }
    status::publish_status(&daemon);
    let Ok(ring) = daemon.reactor.ring().cloned() else { return };
    while daemon.phase.get() == Phase::Running {
        note_unreadable(&daemon);
        ring.sleep(NOTE_EVERY).await;
    }
}

/// Interrupts the scrub, since the daemon ends; the next daemon continues it.
pub(super) fn interrupt(daemon: &Daemon) {
    note_unreadable(daemon);
    if daemon.scrubber.state().is_under_way() {
        daemon.scrubber.store();
        daemon.scrubber.changed.open();
    }
}

/// Reads the zones that are left, until the scrub ends or is paused, or the daemon ends.
async fn scrub(daemon: &Rc<Daemon>) -> Result<()> {
    let scrubber = &daemon.scrubber;
    let number = scrubber.number.get();
    let is_stopped = || {
        scrubber.state() != ScrubState::Running
            || scrubber.number.get() != number
            || daemon.phase.get() != Phase::Running
    };
    let mut stored = Instant::now();
    while !is_stopped() {
        // A rebuild restores redundancy, which a scrub may need.
        let (begun, changed) = (daemon.rebuilder.changed.wait(), daemon.array.changed());
        if daemon.array.is_deferred() {
            changed.await;
            continue;
        }
        if daemon.rebuilder.running.get().is_some() || daemon.rebuilder.replacing.get() {
            begun.await;
            continue;
        }
        let (zone, zones) = (scrubber.book.borrow().next_zone, daemon.array.geometry().zones);
        if zone >= zones {
            scrubber.book.borrow_mut().end(ScrubState::Complete);
            scrubber.store();
            let result = scrubber.report().map(|report| report.line()).unwrap_or_default();
            log(&format!("'{}': scrub {result}", daemon.array.status().name));
            return Ok(());
        }
        let began = Instant::now();
        // Empty zones take no time, and there may be many.
        give_way().await;
        if !scrub_zone(daemon, ZoneIndex(zone), began, &is_stopped).await? {
            continue;
        }
        scrubber.book.borrow_mut().next_zone = zone + 1;
        if stored.elapsed() >= STORE_EVERY {
            scrubber.store();
            stored = Instant::now();
        }
    }
    Ok(())
}

/// Scrubs one zone; `false` if the scrub was stopped meanwhile.
async fn scrub_zone(
    daemon: &Daemon,
    zone: ZoneIndex,
    began: Instant,
    is_stopped: &dyn Fn() -> bool,
) -> Result<bool> {
    let (scrubber, epoch) = (&daemon.scrubber, zone_epoch(&daemon.array, zone));
    let number = scrubber.number.get();
    {
        let mut book = scrubber.book.borrow_mut();
        let is_known = book.verified.has(zone.0, epoch);
        if is_known && book.present.as_ref().is_some_and(|present| present.since_last) {
            book.reading.add(zone.0, epoch);
            return Ok(true);
        }
    }
    let before = scrubber.book.borrow().present.as_ref().map_or((0, 0), |p| (p.scanned_bytes, p.active_ms));
    let count = |scanned: u64| {
        if let Some(present) = &mut scrubber.book.borrow_mut().present {
            present.scanned_bytes += scanned;
            present.active_ms = before.1 + began.elapsed().as_millis() as u64;
            present.estimate();
        }
    };
    let paced = async |scanned: u64| {
        count(scanned);
        pace(daemon, scanned).await;
    };
    let mut work = pin!(daemon.array.scrub_zone(zone, paced));
    let scrubbed = poll_fn(|context| {
        // Only to be woken when the scrub is to stop.
        _ = pin!(scrubber.changed.wait()).poll(context);
        match is_stopped() {
            true => Poll::Ready(None),
            false => work.as_mut().poll(context).map(Some),
        }
    })
    .await;
    let Some(scrubbed) = scrubbed else {
        // The zone is read again.
        if let Some(present) =
            scrubber.book.borrow_mut().present.as_mut().filter(|_| scrubber.number.get() == number)
        {
            present.scanned_bytes = before.0;
        }
        scrubber.store();
        return Ok(false);
    };
    let scrubbed = scrubbed?;
    let mut book = scrubber.book.borrow_mut();
    if scrubbed.is_whole
        && scrubbed.scanned_bytes > 0
        && scrubbed.findings.iter().all(|found| found.is_repaired)
    {
        book.reading.add(zone.0, epoch);
    }
    if let Some(present) = &mut book.present {
        present.add(&scrubbed.findings);
        present.active_ms = before.1 + began.elapsed().as_millis() as u64;
    }
    drop(book);
    if scrubbed.findings.is_empty() {
        return Ok(true);
    }
    let (name, mut merged) = (daemon.array.status().name, ScrubReport::default());
    merged.add(&scrubbed.findings);
    for found in merged.findings {
        let of = found.role.map_or("a member".into(), |role| format!("member {role}"));
        let done = if found.repaired { "repaired" } else { "not repaired" };
        let (length, offset) = (show(found.length_bytes), show(found.offset_bytes));
        log(&format!(
            "'{name}': scrub of zone {}: {length} at {offset} of {of}: {}, {done}",
            found.zone, found.kind
        ));
    }
    Ok(true)
}

/// Waits so long after a batch of `scanned` bytes that the rate is at most the one that was set and, while the array is
/// in use, [`LEAST_RATE`].
async fn pace(daemon: &Daemon, scanned: u64) {
    let Ok(ring) = daemon.reactor.ring() else { return };
    let (scrubber, began) = (&daemon.scrubber, Instant::now());
    let time = |rate: u64| Duration::from_secs_f64(scanned as f64 / rate.max(1) as f64);
    let rate = scrubber.book.borrow().rate;
    loop {
        let requests = requests(daemon);
        if scrubber.requests.replace(requests) != requests {
            scrubber.used.set(Some(Instant::now()));
        }
        let is_used = scrubber.used.get().is_some_and(|used| used.elapsed() < IN_USE);
        let waits = [rate.map(time), is_used.then(|| time(LEAST_RATE))].into_iter().flatten().max();
        match waits.and_then(|wait| wait.checked_sub(began.elapsed())) {
            Some(left) if !left.is_zero() => _ = ring.sleep(left.min(SLICE)).await,
            _ => return,
        }
    }
}

/// Requests to all devices of the array so far.
fn requests(daemon: &Daemon) -> u64 {
    let of_blocks: u64 = daemon.blocks.borrow().iter().map(|block| block.traffic.requests()).sum();
    of_blocks + daemon.nbd.borrow().as_ref().map_or(0, |server| server.requests())
}

/// The zones of an array.
async fn report(array: &Array) -> Result<Vec<ZoneInfo>> {
    let done = array.submit(Command::Report { first: ZoneIndex(0), count: array.geometry().zones }).await;
    done.result.context("the array gives no zone report")?;
    Ok(done.zones)
}

/// Bytes of all members that the complete stripes of a zone take.
fn zone_bytes(daemon: &Daemon, info: &ZoneInfo) -> u64 {
    let layout = daemon.array.layout();
    bytes(
        info.wp_blocks.min(layout.capacity_blocks()) / layout.stripe_blocks()
            * layout.chunk_blocks
            * layout.members as u64,
    )
}
