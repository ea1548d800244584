//! Verified reads of blocks that have a checksum, and the presence of a format on a device.
//!
//! A block that fails its checksum may be decoded from other members of an array: [`read_verified`] asks the device for
//! each alternative until one verifies. Such blocks also decide whether a format is present on a device. There are
//! three answers ([`Presence`]): if the zones that would decide are offline or unreadable, the answer is unknown, and
//! nothing may be written.

use crate::{
    buf::{BLOCK, Buf, is_zero},
    device::{Command, DeviceError, Status, ZonedDevice},
    zone::{Lba, ZoneInfo, ZoneState},
};
use std::cell::Cell;

/// Whether a format is present on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is present, whole or damaged.
    Yes,
    /// It is not present.
    No,
    /// It may be present: these zones are offline or cannot be read, and the others do not decide.
    Unknown(Vec<u32>),
}

/// Reads the block at `lba`, and every alternative that the device has for it, until `verify` accepts one. `None` if it
/// rejects all.
///
/// # Errors
/// When the block cannot be read, and no alternative verifies.
pub async fn read_verified<T>(
    device: &dyn ZonedDevice,
    lba: Lba,
    verify: impl Fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, DeviceError> {
    let done = device.submit(Command::read(lba, Buf::zeroed(BLOCK))).await;
    if done.result == Err(DeviceError::Gone) {
        return Err(DeviceError::Gone);
    }
    if done.result.is_ok()
        && let Some(found) = verify(&done.data)
    {
        return Ok(Some(found));
    }
    match reread_verified(device, lba, verify).await {
        Some(found) => Ok(Some(found)),
        None => done.result.map(|()| None),
    }
}

/// The first alternative for the block at `lba` that `verify` accepts; for a block that was read and rejected.
pub async fn reread_verified<T>(
    device: &dyn ZonedDevice,
    lba: Lba,
    verify: impl Fn(&[u8]) -> Option<T>,
) -> Option<T> {
    for attempt in 0.. {
        let done = device.reread(lba, attempt)?.await;
        if done.result.is_ok()
            && let Some(found) = verify(&done.data)
        {
            return Some(found);
        }
    }
    None
}

/// Determines whether a format is present on a device. The format begins each incarnation of a head zone (0 and 1), and
/// of any other zone, with a block that `is_own` recognizes (its first argument: whether the zone is a head zone). With
/// `ends`, the last written block of a head zone is such a block as well.
///
/// If no such block is found, a block of something else proves that the format is not present.
///
/// # Errors
/// When the device is gone.
pub async fn presence(
    device: &dyn ZonedDevice,
    zones: &[ZoneInfo],
    ends: bool,
    is_own: impl Fn(bool, &[u8]) -> bool,
) -> Result<Presence, DeviceError> {
    let (mut hidden, mut foreign) = (Vec::new(), false);
    for (zone, info) in (0..).zip(zones) {
        let is_head = zone < 2;
        if !is_head && (hidden.is_empty() || foreign) {
            break;
        }
        let written = match info.state {
            ZoneState::Empty => 0,
            ZoneState::Full => info.capacity_blocks,
            ZoneState::Offline => {
                hidden.push(zone);
                continue;
            }
            // It has no write pointer: blocks that were not written read as zeros.
            ZoneState::ReadOnly => info.capacity_blocks,
            _ => info.wp_blocks.min(info.capacity_blocks),
        };
        let last = written.checked_sub(1).filter(|last| is_head && ends && *last > 0);
        for at in [Some(0), last].into_iter().flatten().filter(|at| *at < written) {
            let lba = Lba(device.geometry().start(info.zone).0 + at);
            let is_unwritten = Cell::new(false);
            let verify = |block: &[u8]| {
                is_unwritten.set(info.state == ZoneState::ReadOnly && is_zero(block));
                is_own(is_head, block).then_some(())
            };
            match read_verified(device, lba, verify).await {
                Ok(Some(())) => return Ok(Presence::Yes),
                Ok(None) => foreign |= !is_unwritten.get(),
                Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                Err(DeviceError::Status(Status::DeallocatedBlock)) => (),
                Err(_) => hidden.push(zone),
            }
        }
    }
    hidden.dedup();
    Ok(if hidden.is_empty() || foreign { Presence::No } else { Presence::Unknown(hidden) })
}
