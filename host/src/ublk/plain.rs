//! A volume behind a block device. Requests that come again because the process before this one has died are
//! simply carried out again: each of them makes blocks what they are to be, whatever they were.

use super::{
    abi::{Operation, Request, SECTORS},
    transfer::{Answer, Place, Transfer},
};
use engine::{
    device::{DeviceError, Status},
    volume::Volume,
};

/// Carries out a request.
pub(super) async fn perform(
    volume: &Volume,
    transfer: &Transfer,
    place: Place,
    (operation, request): (Operation, &Request),
) -> Result<Answer, DeviceError> {
    let (at, done) = (request.sector / SECTORS, (request.bytes() as i32, 0));
    match operation {
        Operation::Read => {
            let data = transfer.pool.borrow_mut().take(request.blocks()).freeze();
            let data = volume.read(at, data).await?;
            transfer.give_data(place, &data)?;
            transfer.pool.borrow_mut().give(data);
            Ok(done)
        }
        Operation::Write => {
            let data = transfer.data_of(place, request)?;
            volume.write(at, &data, request.fua).await?;
            transfer.pool.borrow_mut().give(data);
            Ok(done)
        }
        Operation::Discard | Operation::WriteZeroes => {
            volume.discard(at, request.blocks()).await?;
            if request.fua {
                volume.flush().await?;
            }
            Ok((0, 0))
        }
        Operation::Flush => volume.flush().await.map(|()| (0, 0)),
        _ => Err(Status::InvalidOpcode.into()),
    }
}
