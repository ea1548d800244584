//! Makes completed writes and records durable on several members.

use crate::{
    device::Command,
    format::record::Record,
    raid::{failures, geometry::each, parts::Raid, power},
};

/// Flushes the drives of the members in `mask` that have a volatile cache.
pub async fn flush_caches(raid: &Raid, mask: u32) {
    let volatile = each(mask)
        .filter(|m| raid.members.device(*m).is_some_and(|d| d.geometry().volatile_cache))
        .fold(0, |mask, m| mask | 1 << m);
    let pending: Vec<_> =
        each(volatile).map(|m| (raid.members.seat(m), raid.members.submit(m, Command::Flush))).collect();
    for (seat, completion) in pending {
        if let Err(error) = completion.await.result {
            failures::member_failed(raid, seat, error, "flush");
        }
    }
}

/// Flushes the members in `mask`, and waits until the membership is settled: a member that failed meanwhile may
/// have writes in its volatile cache only, so the others must have logged first that it is out.
pub async fn barrier(raid: &Raid, mask: u32) {
    flush_caches(raid, mask).await;
    power::notices_power_loss(raid, mask);
    raid.membership.settled().await;
}

/// Appends a record to the logs of the members in `mask` and waits for all of them.
pub async fn append_to(raid: &Raid, mask: u32, record: Record, sequence: u64) {
    let pending: Vec<_> =
        each(mask).filter_map(|m| Some(raid.members.log(m)?.append(record.clone(), sequence))).collect();
    for completion in pending {
        // A member that fails here has been taken out by its log.
        completion.await;
    }
}

/// Writes a checkpoint on each member in `mask`, one after the other: each resets a metadata zone, which may turn
/// out to be worn.
pub async fn renew_logs(raid: &Raid, mask: u32) {
    for log in each(mask).filter_map(|member| raid.members.log(member)) {
        // A member that fails here has been taken out by its log.
        log.renew().await;
    }
}

/// Logs a record on every active member, and waits until it is durable on all that remain.
pub async fn broadcast(raid: &Raid, record: Record, sequence: u64) {
    append_to(raid, raid.members.active(), record, sequence).await;
    raid.membership.settled().await;
}
