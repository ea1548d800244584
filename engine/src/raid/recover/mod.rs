//! Assembly: scan, decide, repair.
//!
//! *Scan* reads every drive's metadata log and zone report and, for zones that were being written,
//! the log blocks. *Decide* works out who belongs to the array and where each zone ended; up to
//! here nothing has been written. *Repair* writes a new checkpoint to every member, then has all of them know
//! that the absent one is out, carries out what was promised, and shows every tail with as many witnesses as it
//! needs, before anybody learns of it.
//!
//! *Who is absent* goes out only when all others have a checkpoint. If one of these cannot be written, the
//! assembly has come to nothing, and the absent one, once it is there, is a member as before. That is safe:
//!
//! - Until the absent one is out, checkpoints are all that has been written: what they say (a zone to be reset,
//!   since nothing was ever promised there; a part that is lost; what is burned; no parity beyond a tail) is
//!   true, whoever is there, and no zone has been touched. So a later assembly with the absent one decides
//!   from the same zones. No floor is raised above what the absent one has.
//! - When it is out, it is so in the superblocks of all others, and only then is a zone touched or anything
//!   told. Of N members, p of which may be lost, these are N − p at least, and so many are in any assembly: so
//!   at least N − 2p of an assembly say that it is out, and at least one, but for two lost of four. Whoever says
//!   otherwise, with a newer event, is out by what that one says ([`effective`]), or has not been told yet and
//!   is older.
//! - Two members of four that are lost are enough to go on with, as the other two are: both halves may, if
//!   neither ever sees the other, and when they meet the one with the newer event is the array.
//! - If the power goes in between, some say that it is out and others do not. Whichever counts, nothing has
//!   been done without it, nor without anybody else.
//!
//! *Doubt.* A zone that cannot be decided is offline: nothing of it is touched, on any member or in any
//! log, and it waits for the members that were away. One of these that comes back later is stale, but for
//! the zones that wait for it: it is taken as a member again that lacks everything else.
//!
//! *By force.* If too many members are missing, one that is stale can be taken all the same, where what it
//! has is known to be what it should have: in a zone that is full on it and on all others that are there, in
//! the life of the zone that they know of, nothing has been written since. A stale member lacks all other
//! zones, as one does that comes back. So force costs no zone that works without it, and invents nothing.
//! With one exception: with the policy `log` a write pointer does not prove that others have seen what lies
//! below it, so that the last stripe of such a zone may be what was never answered.

pub mod assemble;
pub mod judge;
pub mod membership;
pub mod repair;
pub mod revive;
pub mod scan;

use crate::{
    buf::{Buf, BufMut},
    format::record::ZoneRecord,
    raid::{
        geometry::{MAX_MEMBERS, MAX_PARITIES},
        policy::zrwa::Refusal,
    },
    zone::{Lba, ZoneIndex, ZoneInfo},
};

/// What has to be done with a zone.
pub enum Verdict {
    /// Nothing was written, on any member.
    Empty,
    /// Nothing that counts was written: reset what there is.
    Reset,
    Full,
    /// The finish that was promised has to be carried out, or carried out again.
    Finish(Option<Tail>),
    /// It goes on from here.
    Open(Tail),
    /// Nobody can tell where it ended.
    Offline(Refusal),
}

/// Where a zone goes on.
pub struct Tail {
    pub blocks: u64,
    pub positions: [u64; MAX_MEMBERS],
    /// The running parities of its stripe.
    pub parities: [BufMut; MAX_PARITIES],
    /// Members (bits) whose zones are empty although they hold their part.
    pub revived: u32,
    /// What has to be written back where write pointers have not moved, by member; with the policy
    /// `log`, what is lacking of the parity of complete stripes.
    pub held: Vec<Held>,
}

/// Blocks of a member that are to be written, with their metadata if they have any.
pub struct Held {
    pub member: usize,
    pub lba: Lba,
    pub data: Buf,
    pub oob: Buf,
}

/// Members (bits) that a zone in doubt may wait for: their parts are as they were at this floor.
#[derive(Clone, Copy)]
pub struct Awaited {
    pub members: u32,
    pub floor: u64,
}

/// What one zone looks like on each member, by role.
pub struct ZoneView<'a> {
    pub zone: ZoneIndex,
    pub record: &'a mut ZoneRecord,
    pub info: Vec<Option<ZoneInfo>>,
    /// The end of what a process that died had answered, as far as that is known.
    pub answered_blocks: u64,
    /// Where it ends, as somebody has been told who goes on there.
    pub told_end: Option<u64>,
}

impl ZoneView<'_> {
    /// The members that are there.
    pub fn present(&self) -> impl Iterator<Item = (usize, &ZoneInfo)> {
        self.info.iter().enumerate().filter_map(|(member, info)| Some((member, info.as_ref()?)))
    }

    /// Whether a member has not lost its part.
    pub fn trusts(&self, member: usize) -> bool {
        self.record.lost & (1 << member) == 0
    }
}

/// Whether a block looks like one that was never written: drives fill these with one byte or another.
pub fn is_uniform(block: &[u8]) -> bool {
    block.first().is_none_or(|first| block.iter().all(|byte| byte == first))
}
