//! Which design protects stripes that are not full: the array's partial-parity policy.
//!
//! Chosen when an array is made, kept in its superblock. The three differ in where the parity of a
//! partial stripe goes and in what tells the end of a zone after a crash; everything else is shared.
//!
//! All that they differ in is asked here, of [`Policy`], and nowhere else: each question says when it is asked
//! and what the answer means. Where they agree on most, the answer is here too; where not, each has a file.

pub mod inplace;
pub mod log;
pub mod zrwa;

use crate::{
    buf::Buf,
    device::Geometry,
    format::record::TailRecord,
    raid::{
        core::Core,
        error::ArrayError,
        geometry::Layout,
        policy::zrwa::Refusal,
        recover::{Tail, Verdict, ZoneView},
        zone::write::{Flow, Round, Zone},
    },
    zone::ZoneIndex,
};
use std::rc::Rc;

/// A partial-parity design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Policy {
    /// RAIZN: partial parity with a header in log zones. Any zoned drive will do.
    Log = 1,
    /// ZRAID: partial parity in the ZRWA of the data zones, ahead of the data.
    Zrwa = 2,
    /// Zebra: the parity chunk itself is updated in place in the ZRWA; OOB metadata of each block
    /// tells the tail.
    InPlace = 3,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::Log, Policy::Zrwa, Policy::InPlace];

    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Log => "log",
            Policy::Zrwa => "zrwa",
            Policy::InPlace => "inplace",
        }
    }

    /// The policy with this number in a superblock.
    pub fn from_value(value: u32) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| *policy as u32 == value)
    }

    /// The policy for drives of which `geometries` are: `zrwa` if all have a ZRWA, `log` otherwise.
    pub fn best_for<'a>(mut geometries: impl Iterator<Item = &'a Geometry>) -> Policy {
        if geometries.all(|geometry| geometry.zrwa.is_some()) { Policy::Zrwa } else { Policy::Log }
    }

    /// Whether the members' zones have a ZRWA. Asked of drives, and where zones are opened or copied: without
    /// one, blocks are written at the write pointer and nowhere else.
    pub fn uses_zrwa(self) -> bool {
        self != Policy::Log
    }

    /// Whether every block has metadata of its own. Asked of drives, and of every write to a member.
    pub fn uses_marks(self) -> bool {
        self == Policy::InPlace
    }

    /// Whether partial parity and more goes to the metadata logs all the time. Asked when an array is made: logs
    /// then have to hold much, and are as long as their zones.
    pub fn writes_much_to_logs(self) -> bool {
        self == Policy::Log
    }

    /// The member on which parity number `which` of chunks `0..=index` of `stripe` is kept, and how many rows
    /// ahead of the stripe's own. Asked of every plan.
    pub fn slot(self, layout: &Layout, stripe: u64, index: u64, which: usize) -> (usize, u64) {
        let full = layout.data_chunks() - 1;
        let (member, own, ahead) = match self {
            Policy::Log | Policy::Zrwa => {
                (layout.member(stripe, index + 1 + which as u64), index == full, 1 + which as u64)
            }
            Policy::InPlace => (layout.parity_member(stripe, which), (full - index).is_multiple_of(2), 1),
        };
        (member, if own { 0 } else { ahead * layout.distance })
    }

    /// How often the distance fits between a write pointer and the end of what is written beyond it. Asked of
    /// drives with a ZRWA, which has to be so large.
    pub fn rows_in_zrwa(self, parities: usize) -> u64 {
        match self {
            // Data, and the slots of each parity.
            Policy::Log | Policy::Zrwa => 1 + parities as u64,
            Policy::InPlace => 2,
        }
    }

    /// Where write pointers have to stop, as a multiple of these blocks, and how to call that. Asked of drives
    /// with a ZRWA: it has to be a multiple of their flush granularity.
    pub fn flush_step(self, layout: &Layout) -> (u64, &'static str) {
        match self {
            // Write pointers tell what is complete, to the half chunk.
            Policy::Zrwa if zrwa::shows_chunks(layout) => (layout.chunk_blocks / 2, "half a chunk"),
            Policy::Log | Policy::Zrwa | Policy::InPlace => (layout.chunk_blocks, "a chunk"),
        }
    }

    /// Blocks that the partial parity of a zone may take in the metadata log of a member. Asked when an array is
    /// made.
    pub fn logged_blocks(self, layout: &Layout) -> u64 {
        let (chunk, distance) = (layout.chunk_blocks, layout.distance);
        let of_one = match self {
            Policy::Log | Policy::Zrwa => distance * (chunk + 1),
            // All slots of a parity are on one member, but only the last one is kept: in a few records.
            Policy::InPlace => distance.div_ceil(layout.members as u64) * (chunk + 4),
        };
        layout.parities as u64 * of_one
    }

    /// Whether logged parity of a stripe replaces what was logged of the chunks before. Asked of every such
    /// record.
    pub fn replaces_versions(self) -> bool {
        self == Policy::InPlace
    }

    /// Whether a write survives a power cut, and the loss of a member, once it is complete on drives without a
    /// volatile cache. Otherwise it does when it is settled.
    pub fn is_safe_when_complete(self) -> bool {
        self != Policy::Zrwa
    }

    /// The blocks that a position counts: what a zone keeps of every member's write pointer.
    pub fn position_blocks(self, layout: &Layout) -> u64 {
        match self {
            Policy::Log => 1,
            Policy::Zrwa | Policy::InPlace => layout.chunk_blocks / 2,
        }
    }

    /// The position of a member that holds its part of a zone up to `tail_blocks`, all of which is settled.
    /// Asked when a member takes part again.
    pub fn position(self, layout: &Layout, member: usize, tail_blocks: u64) -> u64 {
        match self {
            Policy::Log => log::position(layout, member, tail_blocks),
            Policy::Zrwa => zrwa::settled(layout, member, tail_blocks / layout.chunk_blocks),
            Policy::InPlace => 2 * (tail_blocks / layout.stripe_blocks()),
        }
    }

    /// Asked when the members' zones have been opened, before anything is written there.
    pub(super) async fn opened(self, core: &Core, zone: &Zone) {
        match self {
            Policy::Log | Policy::Zrwa => {}
            Policy::InPlace => core.begin_generation(zone, 0).await,
        }
    }

    /// Where a plan may end that begins at `flow.next` and could go on to block `end` of the same stripe; `None`
    /// if something has to be safe first. Asked of every plan.
    pub(super) fn plan_end(self, core: &Core, zone: &Zone, flow: &mut Flow, end: u64) -> Option<u64> {
        match self {
            Policy::Log | Policy::Zrwa => Some(end),
            Policy::InPlace => inplace::end_of_plan(core, zone, flow, end),
        }
    }

    /// What becomes of `data` for block `at` of a member's part of a zone: how much of it, from its start, lies
    /// below the write pointer and goes to the log, and what is written, where. Asked of every store; moves the
    /// position if that counts what was submitted.
    pub(super) fn split(self, position: &mut u64, at: u64, data: Buf) -> (Option<Buf>, Option<(u64, Buf)>) {
        match self {
            Policy::Log => log::split(position, at, data),
            Policy::Zrwa | Policy::InPlace => (None, Some((at, data))),
        }
    }

    /// Chunks, from the start of the zone, that should count as settled now. Asked whenever something has become
    /// complete: if it is more than before, there will be a round of settling.
    pub(super) fn chunks_to_claim(self, core: &Core, flow: &Flow) -> u64 {
        match self {
            Policy::Log => log::chunks_to_claim(&core.layout, flow),
            Policy::Zrwa => zrwa::chunks_to_claim(core, flow),
            Policy::InPlace => inplace::chunks_to_claim(&core.layout, flow),
        }
    }

    /// A round of settling: makes what is complete safe, and moves write pointers, as far as `round` asks for
    /// it. Gives the block below which everything is safe then, or 0.
    pub(super) async fn settle(self, core: &Core, zone: &Zone, round: &Round) -> u64 {
        match self {
            Policy::Log => log::settle(core, zone, round).await,
            Policy::Zrwa => zrwa::settle(core, zone, round).await,
            Policy::InPlace => inplace::settle(core, zone, round).await,
        }
    }

    /// Stripes below this one may be written, with the members of `live` (bits) where they are. Asked when
    /// something has been settled.
    pub(super) fn window_rows(self, core: &Core, flow: &Flow, live: u32) -> u64 {
        match self {
            Policy::Log => log::window_rows(&core.layout, flow),
            Policy::Zrwa | Policy::InPlace => zrwa::allowed_rows(core, flow, live),
        }
    }

    /// Makes the parity of a partial stripe the parity of the whole one, as if the rest were zeros. Asked when a
    /// zone is finished, which is quiet and whose finish has been promised.
    pub(super) async fn promote(self, core: &Core, zone: &Zone) {
        match self {
            Policy::Log => core.promote(zone).await,
            Policy::Zrwa | Policy::InPlace => zrwa::promote(core, zone).await,
        }
    }

    /// What a zone is and where it ended. Asked at assembly, of every zone that is not to be reset; only reads,
    /// and marks in `view` who lacks a part.
    pub(super) async fn judge(self, core: &Core, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        match self {
            Policy::Log => core.judge_log(view).await,
            Policy::Zrwa => core.judge_zrwa(view).await,
            Policy::InPlace => core.judge_in_place(view).await,
        }
    }

    /// Drops what is in logs and does not count any more, now that every zone has its verdict.
    pub(super) fn keep_what_counts(
        self,
        core: &Core,
        verdicts: &[(ZoneIndex, Verdict)],
    ) -> Result<(), ArrayError> {
        match self {
            Policy::Log => core.keep_of_logs(verdicts),
            Policy::Zrwa | Policy::InPlace => {
                core.forget_dead(verdicts);
                Ok(())
            }
        }
    }

    /// Writes what is lacking below the tail of a zone that goes on, or is to be finished.
    pub(super) async fn write_back(self, core: &Rc<Core>, zone: &Zone, tail: &Tail) {
        match self {
            Policy::Log => core.fill(zone, &tail.held).await,
            Policy::Zrwa | Policy::InPlace => core.revive(zone.index, tail).await,
        }
    }

    /// Has the tail with which a zone goes on found again, whoever is lost. Asked behind
    /// [`Policy::write_back`]; what a round of settling shows need not be shown here.
    pub(super) async fn secure(self, core: &Core, zone: &Zone) {
        match self {
            Policy::Log | Policy::Zrwa => {}
            Policy::InPlace => core.secure_in_place(zone).await,
        }
    }

    /// Shows a tail so that it is found without a member that is going to count again: until now there was
    /// nobody else to lose. Asked of a quiet zone.
    pub(super) async fn show_with(self, core: &Core, zone: &Zone, member: usize, tail_blocks: u64) {
        match self {
            Policy::Log | Policy::InPlace => {}
            Policy::Zrwa => zrwa::show_with(core, zone, member, tail_blocks).await,
        }
    }

    /// The record of a tail that a member has to have before it counts again: in its metadata log if it has a
    /// generation, otherwise where the layout has tails of its stripe.
    pub(super) fn tail_record(self, core: &Core, zone: &Zone, tail_blocks: u64) -> Option<TailRecord> {
        match self {
            Policy::Log => None,
            Policy::Zrwa => {
                let epoch = zone.flow.borrow().epoch;
                let record = TailRecord { zone: zone.index.0, generation: 0, epoch, tail_blocks };
                (tail_blocks > 0).then_some(record)
            }
            Policy::InPlace => Some(core.generation_record(zone)),
        }
    }
}
