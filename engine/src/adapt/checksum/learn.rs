//! Learning how far zones are written, and the checksums of their last groups.

use super::{
    block::{NO_SUM, sum_of},
    state::{ChecksumInner, ZoneSums},
    write::carry_out,
};
use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Done, Status},
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

/// Queues a command until the checksums of its zone are known.
pub fn wait(inner: &Rc<ChecksumInner>, zone: ZoneIndex, command: Command) -> Completion {
    let (completer, completion) = inner.slots.pair();
    let mut waiting = inner.waiting.borrow_mut();
    let others = waiting.entry(zone.0).or_default();
    others.push((command, completer));
    if others.len() == 1 {
        let this = inner.clone();
        inner.runtime.spawn(async move {
            let known = believe(&this, zone).await;
            let commands = this.waiting.borrow_mut().remove(&zone.0).unwrap_or_default();
            let mut sent = Vec::new();
            for (command, completer) in commands {
                match known {
                    Err(error) if matches!(command, Command::Write { .. } | Command::Finish { .. }) => {
                        completer.complete(Done::error(error));
                    }
                    _ => sent.push((carry_out(&this, zone, command), completer)),
                }
            }
            for (completion, completer) in sent {
                completer.complete(completion.await);
            }
        });
    }
    completion
}

/// Computes the checksums of the unverified blocks of a zone from what the drive returns. A block that it cannot read
/// stays without a checksum.
async fn believe(inner: &ChecksumInner, zone: ZoneIndex) -> Result<(), DeviceError> {
    look(inner, zone).await?;
    let blocks = inner.with(zone, |sums| match sums {
        ZoneSums::Open(open) => open.unverified(),
        _ => 0..0,
    });
    for at in blocks {
        let is_unverified = inner.with(zone, |sums| match sums {
            ZoneSums::Open(open) => open.sum(at) == Some(NO_SUM),
            _ => false,
        });
        if !is_unverified {
            continue;
        }
        let lba = inner.place(zone, at);
        let done = inner.device.submit(Command::read(lba, Buf::zeroed(BLOCK))).await;
        match done.result {
            Ok(()) => inner.with(zone, |sums| sums.set_unverified(at, sum_of(&done.data))),
            Err(DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock)) => {}
            Err(error) => return Err(error),
        }
    }
    inner.with(zone, |sums| {
        if let ZoneSums::Open(open) = sums {
            open.has_unverified = false;
        }
    });
    Ok(())
}
