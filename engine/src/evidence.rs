//! What a device holds, by blocks that have a checksum of their own.
//!
//! A block that fails its checksum may be right on other members of an array: [`read_verified`] asks the device for
//! each alternative until one verifies. Whether something is on a device is told by such blocks, too, and has three
//! answers ([`Presence`]): where zones that would tell are offline or unreadable, the answer is not known, and nothing
//! may be written.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Status, ZonedDevice},
    zone::{Lba, ZoneInfo, ZoneState},
};

/// Whether something is on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there, whole or damaged.
    Yes,
    /// It is not there.
    No,
    /// It may be there: these zones are offline or cannot be read, and the others do not tell.
    Unknown(Vec<u32>),
}

/// Reads the block at `lba`, and every alternative that the device has for it, until `verify` accepts one. `None` if it
/// accepts none.
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

/// The first alternative for the block at `lba` that `verify` accepts: of a block that was read and is not right.
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

/// Whether `word` is `magic` but for one bit at most: the first bytes of a block whose checksum, which does not cover
/// them, is right.
pub fn is_nearly(word: u32, magic: u32) -> bool {
    (word ^ magic).count_ones() <= 1
}

/// Finds out whether there is something on a device that begins each life of a head zone (0 and 1) and of any other
/// zone with a block of its own: `is_own` says so of a block, for a head zone or another one. If `ends`, the last block
/// of a head zone is one as well.
///
/// A block of something else at the start of a zone tells that it is not there.
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
            _ => info.wp_blocks.min(info.capacity_blocks),
        };
        let last = written.checked_sub(1).filter(|last| is_head && ends && *last > 0);
        for at in [Some(0), last].into_iter().flatten().filter(|at| *at < written) {
            let lba = Lba(device.geometry().start(info.zone).0 + at);
            match read_verified(device, lba, |block| is_own(is_head, block).then_some(())).await {
                Ok(Some(())) => return Ok(Presence::Yes),
                Ok(None) => foreign = true,
                Err(DeviceError::Gone) => return Err(DeviceError::Gone),
                Err(DeviceError::Status(Status::DeallocatedBlock)) => (),
                Err(_) => hidden.push(zone),
            }
        }
    }
    hidden.dedup();
    Ok(if hidden.is_empty() || foreign { Presence::No } else { Presence::Unknown(hidden) })
}
