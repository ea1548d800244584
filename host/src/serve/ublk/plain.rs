//! A volume behind a block device. Requests that the kernel reissues after the death of a process are executed again:
//! each is idempotent.

use super::{
    abi::{SECTOR, UblkOperation, UblkRequest},
    transfer::{DataTransfer, RequestTag, UblkAnswer},
};
use crate::serve::bytes::Bytes;
use engine::device::{DeviceError, Status};

/// Executes a request.
pub(super) async fn perform(
    volume: &Bytes,
    transfer: &DataTransfer,
    place: RequestTag,
    (operation, request): (UblkOperation, &UblkRequest),
) -> Result<UblkAnswer, DeviceError> {
    if operation == UblkOperation::Flush {
        // The kernel leaves the sector of a flush undefined.
        return volume.flush().await.map(|()| (0, 0));
    }
    let bytes = request.bytes();
    let at = request.sector.checked_mul(SECTOR).filter(|at| volume.holds(*at, bytes));
    let at = at.ok_or(Status::LbaOutOfRange)?;
    let writes_zeros =
        || operation == UblkOperation::WriteZeroes && request.keeps_room && volume.writes_zeros();
    let is_limited = matches!(operation, UblkOperation::Read | UblkOperation::Write) || writes_zeros();
    let mut counted = if is_limited { volume.admit(bytes, || false).await } else { None };
    match operation {
        UblkOperation::Read => {
            let (data, inside) = volume.read(at, bytes).await?;
            transfer.give_data(place, &data[inside])?;
            volume.give(data);
            Ok((bytes as i32, 0))
        }
        UblkOperation::Write => {
            let (mut data, inside) = volume.buffer(at, bytes);
            transfer.take_data(place, &mut data[inside])?;
            let mut since = None;
            loop {
                let claim = volume.claim(at, bytes).await;
                let Err(error) = volume.write(&claim, (at, bytes), &mut data, request.fua).await else {
                    return Ok((bytes as i32, 0));
                };
                drop(claim);
                // It asks nothing of the device while it waits for room.
                drop(counted.take());
                if !volume.wait_for_room(error, &mut since).await {
                    return Err(error);
                }
            }
        }
        UblkOperation::Discard | UblkOperation::WriteZeroes => {
            let mut since = None;
            loop {
                let claim = volume.claim(at, bytes).await;
                let result = match operation {
                    UblkOperation::Discard => volume.trim(&claim, (at, bytes)).await,
                    _ if request.keeps_room => volume.zero_in_place(&claim, (at, bytes)).await,
                    _ => volume.zero(&claim, (at, bytes)).await,
                };
                drop(claim);
                match result {
                    Ok(()) => break,
                    // A discard frees space, and never waits for it.
                    Err(error) if operation == UblkOperation::Discard => return Err(error),
                    Err(error) if !volume.wait_for_room(error, &mut since).await => return Err(error),
                    Err(_) => {}
                }
            }
            if request.fua {
                volume.flush().await?;
            }
            Ok((0, 0))
        }
        _ => Err(Status::InvalidOpcode.into()),
    }
}
