//! Emptying drives, and naming them.

use crate::{
    device::{Command, DeviceError, Plate, Status, ZonedDevice, Zones},
    format::{
        Uuid,
        superblock::{AGGREGATES, MODEL_BYTES, SERIAL_BYTES, kept_of},
    },
    raid::geometry::META_ZONES,
    zone::ZoneIndex,
};

/// Zones at the start of a drive in which the log of an array may be, of whatever kind that is.
const LOG_ZONES: u32 = META_ZONES * AGGREGATES[AGGREGATES.len() - 1];

/// Resets every zone of a drive. What says that there is something in the others goes first. Zones that an
/// orderly shutdown has made empty may still let be read what was in their ZRWA, and a reset of all zones
/// passes them over.
pub async fn wipe(device: &dyn ZonedDevice) -> Result<(), DeviceError> {
    let geometry = device.geometry();
    let each = if geometry.zrwa.is_some() { geometry.zones } else { LOG_ZONES.min(geometry.zones) };
    reset_each(device, 0..each).await?;
    if each < geometry.zones {
        device.submit(Command::Reset { zones: Zones::All }).await.result?;
    }
    Ok(())
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
                // It is worn, and will be found to be.
                Err(DeviceError::Status(Status::InvalidZoneStateTransition)) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// What is written on a drive, as far as a superblock can keep it.
pub fn kept_plate(device: &dyn ZonedDevice) -> Plate {
    let Plate { model, serial, size_bytes } = device.plate();
    Plate { model: kept_of(&model, MODEL_BYTES), serial: kept_of(&serial, SERIAL_BYTES), size_bytes }
}

/// A name for a member that nobody else has, from what is unique about it.
pub fn member_uuid(array: Uuid, member: usize, event: u64) -> Uuid {
    let mut uuid = array.0;
    for (byte, add) in
        uuid.iter_mut().zip(event.to_le_bytes().into_iter().chain((member as u64).to_le_bytes()))
    {
        *byte = byte.wrapping_mul(167).wrapping_add(add);
    }
    Uuid(uuid)
}
