//! Watches a running array: its members and their power, its fence, and the space in its volumes.

use super::{
    rebuild,
    state::{Daemon, KnownLosses, Phase, by_zone, holds_back, log, lost_in},
    status,
};
use crate::{
    reactor::{FENCE_CHECK, ring::Ring},
    report::{VolumeLosses, VolumeReport},
};
use engine::{
    array::{LostBlocks, MemberState, MemberStatus},
    volume::{StoredBlocks, Volume},
};
use std::{
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

/// Interval at which all members are probed.
const PROBE_EVERY: Duration = Duration::from_secs(3);
/// Interval at which the drives are checked for power losses and resets.
const CHECK_POWER_EVERY: Duration = Duration::from_secs(10);
/// Interval at which the lost blocks of a volume are looked up again.
const LOOK_AT_LOSSES_EVERY: Duration = Duration::from_secs(10);

/// Logs changes of members, and starts a rebuild when the array begins to write, and later when zones wear out, as
/// long as there are spare zones.
pub(super) async fn watch(daemon: Rc<Daemon>) {
    let mut writes = false;
    loop {
        let changed = daemon.array.changed();
        status::publish_status(&daemon);
        let status = daemon.array.status();
        if let Some(ack_log) = daemon.ack_log.borrow().as_ref().filter(|_| !holds_back(&status)) {
            ack_log.note_power(&daemon.array.power_marks());
        }
        let heals = |member: &MemberStatus| {
            member.state == MemberState::Rebuilding && member.worn && !member.is_worn_out()
        };
        if !holds_back(&status) && (!writes || status.members.iter().any(heals)) {
            writes = true;
            rebuild::start_rebuild(&daemon);
        }
        changed.await;
    }
}

/// Requests a zone report from all members at intervals, so that a lost drive is noticed without reads and writes.
/// An array in deferred-write mode does that itself.
pub(super) async fn probe(daemon: Rc<Daemon>) {
    let Ok(ring) = daemon.reactor.ring().cloned() else { return };
    while daemon.phase.get() == Phase::Running {
        ring.sleep(PROBE_EVERY).await;
        if !daemon.array.is_deferred() {
            daemon.array.probe().await;
        }
    }
}

/// Compares the drives' power cycles and zones with the state of the array: while it is idle nothing else notices a
/// change.
pub(super) async fn watch_power(daemon: Rc<Daemon>) {
    while let Ok(ring) = daemon.reactor.ring() {
        ring.sleep(CHECK_POWER_EVERY).await;
        daemon.array.check_power().await;
    }
}

/// Checks every second whether another host has assembled the array, in which case it is fenced here.
pub(super) async fn watch_fence(daemon: Rc<Daemon>, ring: Ring) {
    while daemon.array.check_fence().await.is_ok() {
        ring.sleep(FENCE_CHECK).await;
    }
    log("another host has started the array, so that it is fenced here: stop this daemon");
}

/// Finds out which ranges of volumes are lost, when the array loses others, and from time to time, since blocks are
/// written again; never returns.
pub(super) async fn watch_losses(daemon: Rc<Daemon>) {
    let mut looked: Option<Instant> = None;
    while let Ok(ring) = daemon.reactor.ring().cloned() {
        ring.sleep(Duration::from_secs(1)).await;
        let volumes = daemon.losing_volumes();
        if volumes.is_empty() {
            continue;
        }
        let lost = daemon.array.status().lost;
        let are_known = {
            let KnownLosses { lost: before, of_volumes } = &*daemon.volume_losses.borrow();
            *before == lost && volumes.iter().all(|(number, ..)| of_volumes.contains_key(number))
        };
        let is_recent = looked.is_some_and(|at| at.elapsed() < LOOK_AT_LOSSES_EVERY);
        if lost.is_empty() || are_known && is_recent {
            continue;
        }
        looked = Some(Instant::now());
        let mut of_volumes = BTreeMap::new();
        for (number, namespace, volume) in &volumes {
            let own = namespace.as_ref().map_or_else(|| lost.clone(), |namespace| lost_in(namespace, &lost));
            of_volumes.insert(*number, losses_of(volume, &own).await);
        }
        daemon.volume_losses.replace(KnownLosses { lost, of_volumes });
    }
}

/// Losses of a volume on a device that has lost `lost`, in the order of zones.
async fn losses_of(volume: &Volume, lost: &[LostBlocks]) -> VolumeLosses {
    let mut stored = StoredBlocks::default();
    for (zone, ranges) in by_zone(lost) {
        let found = volume.stored_in(zone, &ranges).await;
        stored.blocks.extend(found.blocks);
        stored.may_be_more |= found.may_be_more;
    }
    VolumeLosses::of(&stored)
}

/// Logs when space in a volume or pool, of the array or on a namespace, becomes scarcer; never returns.
pub(super) async fn watch_space(daemon: Rc<Daemon>) {
    while let Ok(ring) = daemon.reactor.ring().cloned() {
        ring.sleep(Duration::from_secs(1)).await;
        let name = daemon.array.status().name;
        let reports = daemon.volumes().into_iter().map(|(namespace, volume)| {
            let on = namespace.map_or(String::new(), |namespace| format!("/{}", namespace.name()));
            (format!("{name}{on}"), VolumeReport::of(&volume.status(), 0, 0))
        });
        let reports: BTreeMap<String, VolumeReport> = reports.collect();
        let spaces = reports.iter().map(|(called, report)| (called.clone(), report.space)).collect();
        let before = daemon.logged_space.replace(spaces);
        for (called, report) in reports {
            if before.get(&called).is_none_or(|before| report.space > *before)
                && let Some((what, action)) = report.shortage()
            {
                log(&format!("'{called}': {what}; {action}"));
            }
        }
    }
}
