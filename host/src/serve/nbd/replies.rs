//! Replies to requests, and the system call that sends several of them.
//!
//! The share of a request in the limits of its connection is released when its reply has been sent, so these limits also
//! bound the memory of replies that the client does not read.

use super::wire::{self, Chunk, NbdRequest, ReplyHead};
use crate::serve::bytes::Bytes;
use engine::{buf::Buf, device::DeviceError};
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags, sendmsg},
};
use std::{io::IoSlice, ops::Range, os::fd::AsFd, time::Instant};

/// Most parts that one system call sends: those of 64 replies with data.
const MOST_PARTS: usize = 128;

/// What follows the head of a reply.
pub enum ReplyBody {
    Empty,
    /// The bytes in this range of all buffers, one behind the other.
    Parts(Vec<Buf>, Range<usize>),
    Data(Buf, Range<usize>),
    Extents(Vec<u8>),
}

impl ReplyBody {
    /// Its parts, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let (whole, parts) = match self {
            ReplyBody::Empty => (None, None),
            ReplyBody::Parts(buffers, inside) => (None, Some(parts_inside(buffers, inside.clone()))),
            ReplyBody::Data(data, inside) => (Some(&data[inside.clone()]), None),
            ReplyBody::Extents(extents) => (Some(&extents[..]), None),
        };
        whole.into_iter().chain(parts.into_iter().flatten())
    }

    /// Returns its buffers to the pool of the volume.
    pub fn give_back(self, volume: &Bytes) {
        match self {
            ReplyBody::Data(data, _) => volume.give(data),
            ReplyBody::Parts(buffers, _) => buffers.into_iter().for_each(|buffer| volume.give(buffer)),
            ReplyBody::Empty | ReplyBody::Extents(_) => {}
        }
    }
}

/// The reply to a request.
pub struct Reply {
    pub head: ReplyHead,
    pub body: ReplyBody,
    pub request: NbdRequest,
    /// Time at which the request was received, if latencies are measured.
    pub begun: Option<Instant>,
    /// Released when it has been sent.
    pub share: ReplyShare,
}

/// The answer to a request.
pub enum NbdAnswer {
    /// A reply that is to be sent.
    Reply(ReplyHead, ReplyBody),
    /// Replies that have been sent.
    Sent,
}

impl NbdAnswer {
    /// The result of a request without data.
    pub fn of(request: &NbdRequest, result: Result<(), DeviceError>) -> NbdAnswer {
        match result {
            Ok(()) => NbdAnswer::Reply(wire::simple(request.cookie, 0), ReplyBody::Empty),
            Err(error) => NbdAnswer::error(request, wire::errno(error)),
        }
    }

    /// An error number as the answer.
    pub fn error(request: &NbdRequest, error: u32) -> NbdAnswer {
        let head = match request.chunks {
            true => wire::chunk(request.cookie, true, Chunk::Error(error)),
            false => wire::simple(request.cookie, error),
        };
        NbdAnswer::Reply(head, ReplyBody::Empty)
    }
}

/// What a request takes of the limits of its connection, from its start until its reply has been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobShare {
    /// Write data in memory.
    pub held_bytes: u64,
    /// Cost, as a part of the cost that clients share.
    pub cost: u64,
    /// Memory for the data of its reply.
    pub read_bytes: u64,
}

/// What limits a request whose reply has not been sent.
#[derive(Clone, Copy)]
pub enum ReplyShare {
    /// Its share in the limits of the connection.
    Running(JobShare),
    /// So many bytes of the requests that wait for free space, as it has waited.
    Waiting(u64),
}

impl Reply {
    /// Its parts, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        [&self.head[..]].into_iter().chain(self.body.parts())
    }

    /// Length of the reply.
    pub fn bytes(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }
}

/// The parts of `buffers`, one behind the other, that are in a range of all of them.
fn parts_inside(buffers: &[Buf], inside: Range<usize>) -> impl Iterator<Item = &[u8]> {
    let mut end = 0;
    buffers.iter().map(move |buffer| {
        let start = end;
        end += buffer.len();
        let [from, to] = [inside.start, inside.end].map(|at| at.clamp(start, end) - start);
        &buffer[from..to]
    })
}

/// Sends at most `room` bytes of messages behind their first `skipped` bytes, by one system call; returns their
/// number.
pub fn send_parts<'p>(
    socket: impl AsFd,
    parts: impl Iterator<Item = &'p [u8]>,
    skipped: usize,
    room: usize,
) -> Result<usize, Errno> {
    let mut slices = [IoSlice::new(&[]); MOST_PARTS];
    let (mut count, mut skipped, mut room) = (0, skipped, room);
    for part in parts {
        let before = skipped.min(part.len());
        skipped -= before;
        let part = &part[before..part.len().min(before + room)];
        if !part.is_empty() {
            slices[count] = IoSlice::new(part);
            count += 1;
            room -= part.len();
        }
        if count == MOST_PARTS || room == 0 {
            break;
        }
    }
    sendmsg(socket, &slices[..count], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
}
