//! The array: N zoned devices as one.
//!
//! [`Array`] is a [`ZonedDevice`] itself: reads, writes, appends, flushes and zone management go
//! in as [`Command`]s, in the order of the calls. Around that there is only its life: made with
//! [`Array::create`], found again with [`Array::assemble`], repaired with [`Array::attach`] and
//! [`Array::rebuild`].

use crate::{
    device::{Command, Completion, Geometry, ZonedDevice},
    runtime::Runtime,
};
use std::rc::Rc;

/// A drive as the caller found it.
#[derive(Clone)]
pub struct Drive {
    /// What messages call it: a path, usually.
    pub name: String,
    pub device: Rc<dyn ZonedDevice>,
}

/// How an array shall be made.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// At most 64 bytes.
    pub name: String,
    /// Random, chosen by the caller.
    pub uuid: [u8; 16],
    /// Blocks in a chunk: a power of two, at least twice the flush granularity of the drives and
    /// at most half their ZRWA.
    pub chunk_blocks: u64,
    /// Distance between two logical zones; the next power of two above the capacity by default.
    /// If it is smaller than what a zone could hold, the zone's capacity is cut to it.
    pub zone_size_blocks: Option<u64>,
}

/// What a member is to the array now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Holds what it should.
    Active,
    /// Being filled; not counted as redundancy yet.
    Rebuilding,
    /// Not there, failed, or stale: the array does without it.
    Out,
}

/// One line of [`ArrayStatus`].
#[derive(Clone, Debug)]
pub struct MemberStatus {
    pub state: MemberState,
    /// Name of the drive; empty if there is none.
    pub drive: String,
    /// Why a member is out, or what else there is to say; empty if all is well.
    pub note: String,
    pub read_errors: u64,
    pub write_errors: u64,
    /// Zones on this member that have to be rebuilt.
    pub zones_to_rebuild: u32,
}

/// What there is to say about an array.
#[derive(Clone, Debug)]
pub struct ArrayStatus {
    pub name: String,
    pub uuid: [u8; 16],
    pub chunk_blocks: u64,
    /// Grows with every change of membership.
    pub event: u64,
    /// In order of their roles.
    pub members: Vec<MemberStatus>,
    /// Whether more members are out than parity can make up for: nothing works any more.
    pub failed: bool,
}

/// How far a rebuild is, in bytes on the members that are rebuilt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Why there is no array, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArrayError(pub String);

/// N zoned devices as one. Clones are the same array.
#[derive(Clone)]
pub struct Array(Rc<()>);

impl Array {
    /// Makes a new array of `drives`, in the order of their roles. Every zone of them is reset.
    pub async fn create(
        _runtime: &Runtime,
        _options: CreateOptions,
        _drives: Vec<Drive>,
    ) -> Result<Array, ArrayError> {
        Err(ArrayError("not yet".into()))
    }

    /// Finds the array that `drives`, in any order, are members of; recovers what a power cut
    /// left behind. One missing member is done without.
    pub async fn assemble(_runtime: &Runtime, _drives: Vec<Drive>) -> Result<Array, ArrayError> {
        Err(ArrayError("not yet".into()))
    }

    /// Puts a blank drive in the place of `member`, which must be out, to be rebuilt.
    pub async fn attach(&self, _member: usize, _drive: Drive) -> Result<(), ArrayError> {
        Err(ArrayError("not yet".into()))
    }

    /// Rebuilds whatever is not in sync, while reads and writes go on, and goes on where an
    /// earlier rebuild was interrupted. Gives the bytes written to the members under repair.
    pub async fn rebuild(&self, _progress: &dyn Fn(Progress)) -> Result<u64, ArrayError> {
        Err(ArrayError("not yet".into()))
    }

    /// Takes `member` out of the array: it will not be read or written any more.
    pub async fn fail(&self, _member: usize) -> Result<(), ArrayError> {
        Err(ArrayError("not yet".into()))
    }

    /// How the array is.
    pub fn status(&self) -> ArrayStatus {
        unreachable!()
    }
}

impl ZonedDevice for Array {
    fn geometry(&self) -> &Geometry {
        unreachable!()
    }

    fn submit(&self, _command: Command) -> Completion {
        unreachable!()
    }
}
