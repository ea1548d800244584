//! The partial-parity policy of an array: how stripes that are not full are protected.
//!
//! Chosen when an array is created, kept in its superblock. The three policies `zrwa`, `inplace` and `log` differ in the
//! place of the parity of a partial stripe and in the evidence of a zone's end after a crash; everything else is shared.
//! The fourth policy of the command line, `append`, is `log` on members whose zones are written by appends
//! (`adapt/append/`).
//!
//! All differences are methods of [`Policy`], and nothing else depends on the policy: each method says when it is
//! called and what its result means. Where most policies agree, the result is here; otherwise each policy has a file.

pub mod inplace;
pub mod kind;
pub mod log;
pub(crate) mod run;
pub mod zrwa;

pub use kind::Policy;

use crate::{
    buf::Buf,
    device::Geometry,
    raid::{
        Consistency,
        geometry::{Layout, MAX_MEMBERS},
    },
};

impl Policy {
    /// The policy for drives with these geometries: `zrwa` if all have a ZRWA, `log` otherwise.
    pub fn best_for<'a>(mut geometries: impl Iterator<Item = &'a Geometry>) -> Policy {
        if geometries.all(|geometry| geometry.zrwa.is_some()) { Policy::Zrwa } else { Policy::Log }
    }

    /// Whether every block has metadata of its own. Called for drives, and for every write to a member.
    pub fn uses_marks(self) -> bool {
        self == Policy::InPlace
    }

    /// Whether partial parity and relocated blocks go to the metadata logs during normal operation. Called when an
    /// array is created: logs then have to hold much, and are as long as their zones.
    pub fn writes_much_to_logs(self) -> bool {
        self == Policy::Log
    }

    /// Number of blocks at multiples of which write pointers stop, and its name. Called for drives with a ZRWA: the
    /// number has to be a multiple of their flush granularity.
    pub fn flush_step(self, layout: &Layout) -> (u64, &'static str) {
        match self {
            // Write pointers show the complete chunks, and stop at half chunks.
            Policy::Zrwa if zrwa::shows_chunks(layout) => (layout.chunk_blocks / 2, "half a chunk"),
            Policy::Log | Policy::Zrwa | Policy::InPlace => (layout.chunk_blocks, "a chunk"),
        }
    }

    /// Blocks that the partial parity of a zone may take in the metadata log of a member. Called when an array is
    /// created.
    pub fn logged_blocks(self, layout: &Layout) -> u64 {
        let (chunk, distance) = (layout.chunk_blocks, layout.distance);
        let of_one = match self {
            Policy::Log | Policy::Zrwa => distance * (chunk + 1),
            // All slots of a parity are on one member, but only the last version is kept: in a few records.
            Policy::InPlace => distance.div_ceil(layout.members as u64) * (chunk + 4),
        };
        layout.parities as u64 * of_one
    }

    /// Whether logged parity of a stripe replaces the logged parity of fewer of its chunks. Called for every such
    /// record.
    pub fn replaces_versions(self) -> bool {
        self == Policy::InPlace
    }

    /// Whether a write survives a power cut, and the loss of a member, once it is complete on drives without a volatile
    /// cache. Otherwise it does once it is settled.
    pub fn is_safe_when_complete(self) -> bool {
        self != Policy::Zrwa
    }

    /// Blocks in a unit of positions: a zone keeps the position of every member's write pointer.
    pub fn position_blocks(self, layout: &Layout) -> u64 {
        match self {
            Policy::Log => 1,
            Policy::Zrwa | Policy::InPlace => layout.chunk_blocks / 2,
        }
    }

    /// Position of a member that holds its part of a zone up to `tail_blocks`, all of which is settled. Called when a
    /// member takes part again.
    pub fn position(self, layout: &Layout, member: usize, tail_blocks: u64) -> u64 {
        match self {
            Policy::Log => log::position(layout, member, tail_blocks),
            Policy::Zrwa => zrwa::settled(layout, member, tail_blocks / layout.chunk_blocks),
            Policy::InPlace => 2 * (tail_blocks / layout.stripe_blocks()),
        }
    }

    /// End of a plan that begins at block `next` and could go on to block `end` of the same stripe, with everything
    /// below `safe` safe; the error is the block below which everything has to be safe first. Called for every plan.
    pub fn plan_end(self, layout: &Layout, safe: u64, next: u64, end: u64) -> Result<u64, u64> {
        match self {
            Policy::InPlace => inplace::end_of_plan(layout, safe, next, end),
            Policy::Log | Policy::Zrwa => Ok(end),
        }
    }

    /// Splits `data` for block `at` of a member's part of a zone: first the data below the write pointer, which goes to
    /// the log, then the data that is written, with its block. Called for every store; moves the position if the
    /// position counts submitted blocks.
    pub fn split(self, position: &mut u64, at: u64, data: Buf) -> (Option<Buf>, Option<(u64, Buf)>) {
        match self {
            Policy::Log => log::split(position, at, data),
            Policy::Zrwa | Policy::InPlace => (None, Some((at, data))),
        }
    }

    /// Chunks, from the start of the zone, that should count as settled when everything below `complete` is complete
    /// and `claimed` chunks are settled. Called whenever something has become complete: a larger number than before
    /// causes a round of settling.
    pub fn chunks_to_claim(
        self,
        layout: &Layout,
        consistency: Consistency,
        complete: u64,
        claimed: u64,
    ) -> u64 {
        match self {
            Policy::Log => log::chunks_to_claim(layout, complete),
            Policy::Zrwa => zrwa::chunks_to_claim(layout, consistency, complete),
            Policy::InPlace => inplace::chunks_to_claim(layout, complete, claimed),
        }
    }

    /// Number of stripes, from the start of the zone, that may be written with `claimed` chunks settled and the members
    /// of `live` (bits) at their positions. Called when something has been settled.
    pub fn window_rows(
        self,
        layout: &Layout,
        live: u32,
        claimed: u64,
        positions: &[u64; MAX_MEMBERS],
    ) -> u64 {
        match self {
            Policy::Log => log::window_rows(layout, claimed),
            Policy::Zrwa | Policy::InPlace => zrwa::window_rows(layout, live, positions),
        }
    }
}
