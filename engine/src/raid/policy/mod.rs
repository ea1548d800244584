//! The partial-parity policy of an array: how stripes that are not full are protected.
//!
//! Chosen when an array is created, kept in its superblock. The three policies `zrwa`, `inplace` and `log` differ in
//! the place of the parity of a partial stripe and in the evidence of a zone's end after a crash; everything else is
//! shared. The fourth policy of the command line, `append`, is `log` on members whose zones are written by appends
//! (`adapt/append/`).
//!
//! All differences are methods of [`Policy`], and nothing else depends on the policy: the comment of each method
//! defines its result and its callers. Where most policies agree, the result is here; otherwise each policy has a file.

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

    /// Whether blocks are written with out-of-band metadata. Called when drives are chosen, and for every write.
    pub fn uses_marks(self) -> bool {
        self == Policy::InPlace
    }

    /// Whether a tail record has a generation, by which recovery decides which blocks count. If not, one with a generation
    /// is no tail. Called for every tail record that is read or written.
    pub fn has_generations(self) -> bool {
        self == Policy::InPlace
    }

    /// Whether a tail record, with this generation, begins it. At the start of a zone it does not with `inplace`, where it only shows
    /// that the zone was opened: a zone with such a record and without data is reset at assembly.
    pub fn begins_generation(self, generation: u32, tail_blocks: u64) -> bool {
        generation > 0 && (tail_blocks > 0 || self == Policy::Zrwa)
    }

    /// Whether partial parity and relocated blocks go to the metadata logs during normal operation. If so, a log uses
    /// the whole capacity of its metadata zone.
    pub fn writes_much_to_logs(self) -> bool {
        self == Policy::Log
    }

    /// Step of the array's explicit flushes, in blocks, and its name for messages. Called for drives with a ZRWA: the
    /// step has to be a multiple of their flush granularity.
    pub fn flush_step(self, layout: &Layout) -> (u64, &'static str) {
        match self {
            // Write pointers show the complete chunks, and stop at half chunks.
            Policy::Zrwa if zrwa::shows_chunks(layout) => (layout.chunk_blocks / 2, "half a chunk"),
            Policy::Log | Policy::Zrwa | Policy::InPlace => (layout.chunk_blocks, "a chunk"),
        }
    }

    /// Maximum blocks, with record headers, of the partial parity of one zone in the metadata log of a member.
    pub fn logged_blocks(self, layout: &Layout) -> u64 {
        let (chunk, distance) = (layout.chunk_blocks, layout.distance);
        let of_one = match self {
            // A record for each stripe in flight, with a block for its header.
            Policy::Log | Policy::Zrwa => distance * (chunk + 1),
            // A member has the parity of every N-th stripe. Its latest version is kept, in up to four records, each with
            // a block for its header.
            Policy::InPlace => distance.div_ceil(layout.members as u64) * (chunk + 4),
        };
        layout.parities as u64 * of_one
    }

    /// Whether a logged parity replaces the logged parities of the same stripe that cover fewer chunks. Called for
    /// every parity record that is read or written.
    pub fn replaces_versions(self) -> bool {
        self == Policy::InPlace
    }

    /// Whether a write to drives without a volatile cache survives a power cut and the loss of a member as soon as it
    /// is complete. Otherwise it has to be settled first.
    pub fn is_safe_when_complete(self) -> bool {
        self != Policy::Zrwa
    }

    /// Blocks in a unit of positions. A *position* is the write pointer of a member's part of a running zone.
    pub fn position_blocks(self, layout: &Layout) -> u64 {
        match self {
            Policy::Log => 1,
            Policy::Zrwa | Policy::InPlace => layout.chunk_blocks / 2,
        }
    }

    /// Position of a member whose part is rebuilt up to a settled tail at `tail_blocks`.
    pub fn position(self, layout: &Layout, member: usize, tail_blocks: u64) -> u64 {
        match self {
            Policy::Log => log::position(layout, member, tail_blocks),
            Policy::Zrwa => zrwa::settled(layout, member, tail_blocks / layout.chunk_blocks),
            Policy::InPlace => 2 * (tail_blocks / layout.stripe_blocks()),
        }
    }

    /// End of a plan that begins at block `next` and could go on to block `end` of the same stripe, while all blocks
    /// below `safe` are safe. The error is the block below which all have to be safe first. Called for every plan.
    pub fn plan_end(self, layout: &Layout, safe: u64, next: u64, end: u64) -> Result<u64, u64> {
        match self {
            Policy::InPlace => inplace::end_of_plan(layout, safe, next, end),
            Policy::Log | Policy::Zrwa => Ok(end),
        }
    }

    /// Splits `data` for block `at` of a member's part of a zone: the data below the write pointer, which goes to the
    /// metadata log; and the data that is written to the zone, with its first block. Called for every write to a part.
    /// Moves the position if that counts submitted blocks (`log`).
    pub fn split(self, position: &mut u64, at: u64, data: Buf) -> (Option<Buf>, Option<(u64, Buf)>) {
        match self {
            Policy::Log => log::split(position, at, data),
            Policy::Zrwa | Policy::InPlace => (None, Some((at, data))),
        }
    }

    /// Number of chunks, from the start of the zone, that should count as settled when all blocks below `complete` are
    /// complete. `claimed` chunks are settled already: a larger result starts a round of settling. Called whenever a
    /// plan has become complete.
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

    /// End of the window, in stripes, with `claimed` chunks settled and the members of `live` (bits) at `positions`.
    /// Called after each round of settling.
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
