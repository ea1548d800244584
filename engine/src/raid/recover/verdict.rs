//! The result of recovery for a zone.

use crate::{
    buf::{Buf, BufMut},
    format::record::ZoneRecord,
    raid::{
        geometry::{MAX_MEMBERS, MAX_PARITIES},
        policy::zrwa::Refusal,
        zone::flow::ParityMismatch,
    },
    zone::{Lba, ZoneIndex, ZoneInfo},
};

/// State of a zone after a crash, and the work that is left.
pub enum Verdict {
    /// Nothing was written, on any member.
    Empty,
    /// No valid data: the zone is to be reset.
    Reset,
    Full,
    /// A finish was logged, and has to be carried out or completed.
    Finish(Option<Tail>),
    /// The zone continues at this tail.
    Open(Tail),
    /// The zone has this tail and is read-only, since too many members cannot write their parts. It is not changed.
    ReadOnly(Tail),
    /// The tail cannot be determined.
    Offline(Refusal),
}

/// The tail at which a zone continues, and its state there.
pub struct Tail {
    /// End of the data, in blocks of the zone.
    pub blocks: u64,
    /// The note of this tail.
    pub note: Option<Buf>,
    /// Write pointers by member, in units of [`crate::raid::policy::Policy::position_blocks`].
    pub positions: [u64; MAX_MEMBERS],
    /// The running parities of its stripe, unless `lacks_parities`.
    pub parities: [BufMut; MAX_PARITIES],
    /// Too much of the tail's stripe is lost to compute its parities; only in a read-only zone.
    pub lacks_parities: bool,
    pub found: ParityMismatch,
    /// Members (bits) that hold their part although their zones are empty or, in a read-only zone, read-only.
    pub revived: u32,
    /// Blocks to be written back to members with write pointers at the start; with the policy `log`, missing parity of
    /// complete stripes.
    pub held: Vec<RepairWrite>,
}

/// Blocks to be written to a member, with their out-of-band metadata if there is any.
pub struct RepairWrite {
    pub member: usize,
    pub lba: Lba,
    pub data: Buf,
    pub oob: Buf,
}

/// Members (bits) that a zone in doubt may wait for; their parts are valid as of this floor.
#[derive(Clone, Copy)]
pub struct AwaitedMembers {
    pub members: u32,
    pub floor: u64,
}

/// State of a zone on each member, by role.
pub struct ZoneView<'a> {
    pub zone: ZoneIndex,
    pub record: &'a mut ZoneRecord,
    pub info: Vec<Option<ZoneInfo>>,
    /// Acknowledged tail of a process that died, in blocks; 0 if unknown.
    pub answered_blocks: u64,
    /// End of the zone as reported to the host, in blocks; the host continues there. `None` if unknown.
    pub told_end: Option<u64>,
    /// The note of that end.
    pub told_note: Option<Buf>,
    /// Members (bits) with read-only parts that are needed: `info` describes these as if they could be written.
    pub read_only: u32,
}

impl ZoneView<'_> {
    /// The present members.
    pub fn present(&self) -> impl Iterator<Item = (usize, &ZoneInfo)> {
        self.info.iter().enumerate().filter_map(|(member, info)| Some((member, info.as_ref()?)))
    }

    /// Whether a member's part is not marked as lost.
    pub fn trusts(&self, member: usize) -> bool {
        self.record.lost & (1 << member) == 0
    }
}
