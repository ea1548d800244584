//! The receive buffer of a connection: one system call receives as many requests as the socket has.

use super::wire::REQUEST_BYTES;
use rustix::io::{Errno, readv};
use std::{io::IoSliceMut, ops::Range, os::fd::AsFd};

/// Size of the buffer: more than a dozen writes of a block.
const BUFFER_BYTES: usize = 64 << 10;

/// Most bytes that are received behind the data of a long write. They are copied once more, and after a long write
/// probably belong to the next one.
const BEHIND_LONG_BYTES: usize = 4 << 10;

/// Least bytes of data of a long write.
const LONG_BYTES: usize = 32 << 10;

/// Bytes received from a socket that have not been taken yet.
pub struct ReceiveBuffer {
    bytes: Box<[u8]>,
    /// The range of the bytes that have not been taken.
    left: Range<usize>,
    /// Most bytes of the next receive.
    most: usize,
}

impl Default for ReceiveBuffer {
    fn default() -> ReceiveBuffer {
        ReceiveBuffer { bytes: vec![0; BUFFER_BYTES].into(), left: 0..0, most: BUFFER_BYTES }
    }
}

impl ReceiveBuffer {
    /// Takes the header of a request; `None` if it has not been received completely.
    pub fn take_header(&mut self) -> Option<[u8; REQUEST_BYTES]> {
        let header = *self.bytes[self.left.clone()].first_chunk()?;
        self.left.start += REQUEST_BYTES;
        Some(header)
    }

    /// Copies received bytes to the start of `target`; returns their number.
    pub fn take_into(&mut self, target: &mut [u8]) -> usize {
        let bytes = self.skip(target.len());
        let from = self.left.start - bytes;
        target[..bytes].copy_from_slice(&self.bytes[from..][..bytes]);
        bytes
    }

    /// Discards at most `bytes` received bytes; returns their number.
    pub fn skip(&mut self, bytes: usize) -> usize {
        let bytes = bytes.min(self.left.len());
        self.left.start += bytes;
        bytes
    }

    /// Adapts the next receive to a request with so many bytes of data.
    pub fn expect_alike(&mut self, data_bytes: usize) {
        self.most = if data_bytes < LONG_BYTES { BUFFER_BYTES } else { BEHIND_LONG_BYTES };
    }

    /// Receives more bytes, behind those that have not been taken; returns their number, 0 at the end of the stream.
    ///
    /// # Errors
    /// Those of the system call; `AGAIN` if the socket has no bytes.
    pub fn receive(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        self.receive_behind(socket, &mut [], self.most)
    }

    /// Receives at most `most` bytes into `target`, and, if they fill it, bytes behind these into the buffer. All received
    /// bytes must have been taken. Returns the number of bytes in `target`, and of all bytes.
    ///
    /// # Errors
    /// As for [`ReceiveBuffer::receive`].
    pub fn receive_into(
        &mut self,
        socket: impl AsFd,
        target: &mut [u8],
        most: usize,
    ) -> Result<(usize, usize), Errno> {
        let wanted = target.len().min(most);
        let behind = if wanted == target.len() { self.most } else { 0 };
        let count = self.receive_behind(socket, &mut target[..wanted], behind)?;
        Ok((count.min(wanted), count))
    }

    fn receive_behind(&mut self, socket: impl AsFd, target: &mut [u8], most: usize) -> Result<usize, Errno> {
        debug_assert!(
            target.is_empty() || self.left.is_empty(),
            "received bytes precede those of the socket"
        );
        self.bytes.copy_within(self.left.clone(), 0);
        self.left = 0..self.left.len();
        let end = self.bytes.len().min(self.left.end + most);
        let wanted = target.len();
        let behind = &mut self.bytes[self.left.end..end];
        let count = readv(socket, &mut [IoSliceMut::new(target), IoSliceMut::new(behind)])?;
        self.left.end += count.saturating_sub(wanted);
        Ok(count)
    }
}
