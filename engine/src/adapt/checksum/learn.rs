//! Learning how far zones are written, and the checksums of their last groups.

use super::{
    block::sum_of,
    state::{ChecksumInner, ZoneSums},
};
use crate::{
    buf::BLOCK,
    device::{Command, Completion, DeviceError, Status},
    zone::ZoneIndex,
};
use std::rc::Rc;

/// Reports zones as users see them.
pub fn report(inner: &Rc<ChecksumInner>, first: ZoneIndex, count: u32) -> Completion {
    let below = inner.device.submit(Command::Report { first, count });
    let (this, (completer, completion)) = (inner.clone(), inner.slots.pair());
    inner.runtime.spawn(async move {
        let mut done = below.await;
        for info in done.zones.iter_mut().filter(|info| !this.is_plain(info.zone)) {
            this.learn(info);
            *info = this.presented(info);
        }
        completer.complete(done);
    });
    completion
}

/// Learns how far a zone is written, unless that is known.
pub async fn look(inner: &ChecksumInner, zone: ZoneIndex) -> Result<(), DeviceError> {
    if !inner.with(zone, |sums| matches!(sums, ZoneSums::Unknown)) {
        return Ok(());
    }
    let done = inner.device.submit(Command::Report { first: zone, count: 1 }).await;
    done.result?;
    let Some(info) = done.zones.first() else { return Err(Status::InternalError.into()) };
    inner.learn(info);
    Ok(())
}

/// Whether a command needs to know how far its zone is written, and the checksums of the blocks there.
pub fn needs_state(inner: &ChecksumInner, command: &Command) -> bool {
    match command {
        Command::Write { .. } | Command::Finish { .. } => true,
        Command::FlushZrwa { .. } | Command::Open { .. } => inner.in_zrwa(),
        _ => false,
    }
}

/// Computes the checksums of the unverified blocks of a zone from what the drive returns, before the zone is written
/// again. A block that it cannot read stays without a checksum. In a ZRWA that is done when the bundle ends: until then
/// blocks may be written again.
pub async fn believe(inner: &ChecksumInner, zone: ZoneIndex) -> Result<(), DeviceError> {
    look(inner, zone).await?;
    if inner.in_zrwa() {
        return Ok(());
    }
    believe_blocks(inner, zone, u64::MAX).await?;
    inner.with(zone, |sums| {
        if let ZoneSums::Open(open) = sums {
            open.unverified_to = 0;
        }
    });
    Ok(())
}

/// Most blocks that are read at once.
const BELIEVED_AT_ONCE: u64 = 64;

/// Computes the checksums of the unverified blocks of a zone before block `end` from what the drive returns.
pub async fn believe_blocks(inner: &ChecksumInner, zone: ZoneIndex, end: u64) -> Result<(), DeviceError> {
    let is_unverified = |at: u64| {
        inner.with(zone, |sums| match sums {
            ZoneSums::Open(open) => open.is_unverified(at),
            _ => false,
        })
    };
    let all = inner.unverified(zone);
    let (mut at, end) = (all.start, all.end.min(end));
    let mut singly_to = 0;
    while at < end {
        let most = BELIEVED_AT_ONCE.min(inner.geometry.max_transfer_blocks as u64);
        let most = if at < singly_to { 1 } else { most };
        let count = (at..end).take(most as usize).take_while(|at| is_unverified(*at)).count() as u64;
        let count = count.min(inner.shape.left_in_group(at));
        if count == 0 {
            at += 1;
            continue;
        }
        let buf = inner.pool.borrow_mut().take(count).freeze();
        let done = inner.device.submit(Command::read(inner.place(zone, at), buf)).await;
        match done.result {
            Ok(()) => {
                let sums = done.data.chunks(BLOCK).map(sum_of);
                (at..).zip(sums).for_each(|(at, sum)| inner.set_unverified(zone, at, sum));
            }
            // Some of them may be readable.
            Err(DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock))
                if count > 1 =>
            {
                singly_to = at + count;
                continue;
            }
            Err(DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock)) => {}
            Err(error) => return Err(error),
        }
        inner.pool.borrow_mut().give(done.data);
        at += count;
    }
    Ok(())
}
