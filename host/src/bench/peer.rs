//! An NBD client for the benchmarks: it blocks, and keeps any number of requests in flight.

use anyhow::{Context, Result, ensure};
use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
};

/// Types of requests.
pub const WRITE: u16 = 1;
pub const TRIM: u16 = 4;
pub const BLOCK_STATUS: u16 = 7;

/// Options of the negotiation, and the reply that ends one.
const GO: u32 = 7;
const STRUCTURED: u32 = 8;
const META_CONTEXT: u32 = 10;
const ACK: u32 = 1;

const SIMPLE: u32 = 0x6744_6698;
const CHUNK: u32 = 0x668e_33ef;
/// Types of chunks from here on are errors.
const ERROR_CHUNKS: u16 = 1 << 15;

/// The connection to the server.
pub struct Peer(UnixStream);

/// Header of a request of `kind` for `bytes` bytes at `at`.
pub fn head(kind: u16, (at, bytes): (u64, u32)) -> [u8; 28] {
    let mut head = [0; 28];
    head[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[16..24].copy_from_slice(&at.to_be_bytes());
    head[24..].copy_from_slice(&bytes.to_be_bytes());
    head
}

impl Peer {
    /// Connects to the server at `path`; `allocation` negotiates block status.
    pub fn connect(path: &Path, allocation: bool) -> Result<Peer> {
        let mut peer = Peer(UnixStream::connect(path).context("the server does not listen")?);
        peer.take::<18>()?;
        peer.0.write_all(&[0, 0, 0, 3])?;
        if allocation {
            let name = b"base:allocation";
            let query = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, name.len() as u8], &name[..]].concat();
            peer.option(STRUCTURED, &[])?;
            peer.option(META_CONTEXT, &query)?;
        }
        peer.option(GO, &[0; 6])?;
        Ok(peer)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).context("the server has hung up")?;
        Ok(bytes)
    }

    fn option(&mut self, number: u32, data: &[u8]) -> Result<()> {
        let length = (data.len() as u32).to_be_bytes();
        self.0.write_all(&[b"IHAVEOPT", &number.to_be_bytes()[..], &length, data].concat())?;
        loop {
            self.take::<12>()?;
            let kind = u32::from_be_bytes(self.take()?);
            let length = u32::from_be_bytes(self.take()?);
            self.skip(length as usize)?;
            ensure!(kind >> 31 == 0, "the server refuses option {number}");
            if kind == ACK {
                return Ok(());
            }
        }
    }

    fn skip(&mut self, mut bytes: usize) -> Result<()> {
        let mut skipped = [0; 4096];
        while bytes > 0 {
            let part = bytes.min(skipped.len());
            self.0.read_exact(&mut skipped[..part])?;
            bytes -= part;
        }
        Ok(())
    }

    /// Its socket, set to non-blocking.
    pub fn into_socket(self) -> Result<OwnedFd> {
        self.0.set_nonblocking(true)?;
        Ok(self.0.into())
    }

    /// Sends a request of `kind`, with the data of a write.
    pub fn request(&mut self, kind: u16, range: (u64, u32), data: &[u8]) -> Result<()> {
        let request = head(kind, range);
        match data.len() {
            // One system call, as clients do it.
            ..=4096 => self.0.write_all(&[&request, data].concat())?,
            _ => {
                self.0.write_all(&request)?;
                self.0.write_all(data)?;
            }
        }
        Ok(())
    }

    /// Receives the reply to any request.
    ///
    /// # Errors
    /// The connection failed, or the reply is an error.
    pub fn reply(&mut self) -> Result<()> {
        let magic = u32::from_be_bytes(self.take()?);
        if magic == SIMPLE {
            let error = u32::from_be_bytes(self.take()?);
            self.take::<8>()?;
            ensure!(error == 0, "a request fails with error {error}");
            return Ok(());
        }
        ensure!(magic == CHUNK, "the server sent an invalid reply");
        let [_, _, kind @ ..] = self.take::<4>()?;
        self.take::<8>()?;
        let length = u32::from_be_bytes(self.take()?);
        self.skip(length as usize)?;
        ensure!(u16::from_be_bytes(kind) < ERROR_CHUNKS, "a request fails");
        Ok(())
    }
}
