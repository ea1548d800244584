//! Resets of whole drives, and the ids of drives and members.

use crate::{
    device::{Command, DeviceError, DriveId, Status, ZonedDevice, Zones},
    format::{
        Uuid,
        superblock::{AGGREGATES, MODEL_BYTES, SERIAL_BYTES, kept_of},
    },
    raid::{geometry::META_ZONES, journal::label::LABEL_ZONE},
    zone::ZoneIndex,
};

/// Zones at the start of a drive that may be metadata zones of an array, with the largest aggregate.
const LOG_ZONES: u32 = META_ZONES * AGGREGATES[AGGREGATES.len() - 1];

/// Resets every zone of a drive, metadata zones first, so that an interruption leaves no member without its data. Zones
/// that an orderly shutdown has made empty may still return data of their ZRWA, and a reset of all zones skips them:
/// drives with a ZRWA are reset zone by zone.
pub async fn wipe(device: &dyn ZonedDevice) -> Result<(), DeviceError> {
    let geometry = device.geometry();
    let each = if geometry.zrwa.is_some() { geometry.zones } else { LOG_ZONES.min(geometry.zones) };
    reset_each(device, 0..each).await?;
    if each < geometry.zones {
        device.submit(Command::Reset { zones: Zones::All }).await.result?;
    }
    Ok(())
}

/// As [`wipe`], for the drive of a new member, which the array uses as `device`. Zones of the drive behind the last
/// whole aggregate are not part of `device` and are reset as well: active ones would count against the limits of the
/// drive.
pub async fn wipe_for_member(drive: &dyn ZonedDevice, device: &dyn ZonedDevice) -> Result<(), DeviceError> {
    wipe(device).await?;
    reset_rest(drive, device).await
}

/// Resets the zones of `drive` behind the last aggregate of `device`.
async fn reset_rest(drive: &dyn ZonedDevice, device: &dyn ZonedDevice) -> Result<(), DeviceError> {
    let (whole, used) = (drive.geometry(), device.geometry());
    let aggregate = (used.zone_size_blocks / whole.zone_size_blocks) as u32;
    reset_each(drive, used.zones * aggregate..whole.zones).await
}

/// As [`wipe_for_member`], for a drive that is being filled with a copy of a member: its label is reset last. If the
/// reset is interrupted, the drive is still known as one that is being filled, and empty zones are not taken for
/// copied ones.
pub async fn wipe_filled(drive: &dyn ZonedDevice, device: &dyn ZonedDevice) -> Result<(), DeviceError> {
    reset_each(device, (0..device.geometry().zones).filter(|zone| *zone != LABEL_ZONE.0)).await?;
    reset_rest(drive, device).await?;
    reset_each(device, [LABEL_ZONE.0].into_iter()).await
}

/// Resets `zones` of a drive, in any order.
pub async fn reset_each(
    device: &dyn ZonedDevice,
    zones: impl Iterator<Item = u32>,
) -> Result<(), DeviceError> {
    let zones: Vec<u32> = zones.collect();
    for batch in zones.chunks(64) {
        let reset = |zone: &u32| device.submit(Command::Reset { zones: Zones::One(ZoneIndex(*zone)) });
        let pending: Vec<_> = batch.iter().map(reset).collect();
        for completion in pending {
            match completion.await.result {
                // The zone is worn, as zone reports show.
                Err(DeviceError::Status(Status::InvalidZoneStateTransition)) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Model, serial number and size of a drive, as far as a superblock can keep them.
pub fn kept_drive_id(device: &dyn ZonedDevice) -> DriveId {
    let DriveId { model, serial, size_bytes } = device.drive_id();
    DriveId { model: kept_of(&model, MODEL_BYTES), serial: kept_of(&serial, SERIAL_BYTES), size_bytes }
}

/// UUID of a member; it depends on the array, the role and the event with which the drive becomes the member.
pub fn member_uuid(array: Uuid, member: usize, event: u64) -> Uuid {
    let mut uuid = array.0;
    for (byte, add) in
        uuid.iter_mut().zip(event.to_le_bytes().into_iter().chain((member as u64).to_le_bytes()))
    {
        *byte = byte.wrapping_mul(167).wrapping_add(add);
    }
    Uuid(uuid)
}
