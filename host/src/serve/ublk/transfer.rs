//! Copies the data of requests between the kernel's pages and buffers, by plain `pread` and `pwrite`: the driver copies
//! at once, without blocking, while io_uring would pass either to a worker thread.

use super::abi::{self, UblkRequest};
use engine::{
    buf::{Buf, BufPool, BufSource},
    device::DeviceError,
};
use rustix::io::{pread, pwrite};
use std::{cell::RefCell, fs::File};

/// Address of a request: its queue, and its tag in the queue.
pub(super) type RequestTag = (u16, u16);

/// The answer to the kernel: bytes or a negative errno, and the sector of an append.
pub(super) type UblkAnswer = (i32, u64);

/// Copies the data of requests.
pub(super) struct DataTransfer {
    /// `/dev/ublkcN`.
    pub channel: File,
    depth: u16,
    pub pool: RefCell<BufPool>,
}

impl DataTransfer {
    pub(super) fn over(channel: File, depth: u16, buffers: BufSource) -> DataTransfer {
        DataTransfer { channel, depth, pool: RefCell::new(BufPool::fed_by(buffers)) }
    }

    /// The index of a request among those of all queues.
    pub(super) fn slot(&self, (queue, tag): RequestTag) -> usize {
        queue as usize * self.depth as usize + tag as usize
    }

    /// Copies the data of a write or append into a new buffer.
    pub(super) fn data_of(&self, place: RequestTag, request: &UblkRequest) -> Result<Buf, DeviceError> {
        let mut data = self.pool.borrow_mut().take(request.blocks());
        self.take_data(place, &mut data)?;
        Ok(data.freeze())
    }

    /// Copies the data of a write.
    pub(super) fn take_data(&self, (queue, tag): RequestTag, data: &mut [u8]) -> Result<(), DeviceError> {
        let position = abi::data_position(queue, tag);
        copy_all(data.len(), |done| pread(&self.channel, &mut data[done..], position + done as u64))
    }

    /// Copies the data of a read or report to the kernel.
    pub(super) fn give_data(&self, (queue, tag): RequestTag, bytes: &[u8]) -> Result<(), DeviceError> {
        let position = abi::data_position(queue, tag);
        copy_all(bytes.len(), |done| pwrite(&self.channel, &bytes[done..], position + done as u64))
    }
}

/// Repeats `copy` until `length` bytes are copied: the driver copies fewer at a time when memory is short. `copy`
/// starts at its argument and returns the number of bytes copied.
fn copy_all(
    length: usize,
    mut copy: impl FnMut(usize) -> rustix::io::Result<usize>,
) -> Result<(), DeviceError> {
    let mut done = 0;
    while done < length {
        match copy(done) {
            Ok(0) => return Err(DeviceError::Os(libc::EIO)),
            Ok(more) => done += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(DeviceError::Os(error.raw_os_error())),
        }
    }
    Ok(())
}
