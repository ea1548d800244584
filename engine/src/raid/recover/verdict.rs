//! What recovery finds out of a zone, and what has to be done with it.

use crate::{
    buf::{Buf, BufMut},
    format::record::ZoneRecord,
    raid::{
        geometry::{MAX_MEMBERS, MAX_PARITIES},
        policy::zrwa::Refusal,
        zone::flow::Found,
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
    pub found: Found,
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
