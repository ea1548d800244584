//! Address mapping: logical address <-> stripe, chunk and member (ZRAID §4.2).
//!
//! Terms: a stripe is `k` data chunks and one parity chunk, P, or two, P and Q. Chunk `i` of stripe `s` lies
//! on member `(s + i) mod N` in row `s` of the physical zone, the full P on member `(s + k) mod N` and the
//! full Q on the one after it. Partial parity lies ahead, where `D` is half the ZRWA in chunks or, with Q, a
//! third of it:
//!
//! - The **slots** of chunk `i` hold P and Q of chunks `0..=i`: P on the member after the chunk's, in row
//!   `s + D`, and Q on the one after that, in row `s + 2D`. So no two of these chunks and slots share a member.
//!   The slots of the last data chunk are the full parities themselves, row `s`.
//! - In the last of these rows one member more than there are parities has no slot: with P alone those of
//!   chunk 0 and of the full parity, with Q those of chunks 0 and 1 and of the full Q. Their place there is
//!   used for the write-pointer log (§5.3) and the first-chunk record (§5.1). Nothing was there before.
//! - Where such a row would lie beyond the zone, slots and log go to the metadata log (§5.2).
//!
//! With the policy `inplace` all slots of a parity are on its member, in two places that take turns: row `s`,
//! where the last of them stays, and row `s + D`. There `D` is half the ZRWA, with Q too.
//!
//! Everything here is arithmetic on plain numbers: blocks, rows, chunks within one zone.

use crate::{code::decode::Sum, raid::policy::kind::Policy, zone::ZoneIndex};
use std::{iter, ops::Range};

/// Most members of an array.
pub const MAX_MEMBERS: usize = 32;

/// Most parities of a stripe.
pub const MAX_PARITIES: usize = 2;

/// Metadata zones at the start of every member.
pub const META_ZONES: u32 = 2;

/// The zone of the members that holds logical zone `zone`.
pub fn physical(zone: ZoneIndex) -> ZoneIndex {
    ZoneIndex(zone.0 + META_ZONES)
}

/// The members in `mask` (bits), in order.
pub fn each(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    iter::from_fn(move || {
        let first = (left != 0).then_some(left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(first)
    })
}

/// All sets (bits) of `count` of the members in `mask`.
pub fn subsets(mask: u32, count: u32) -> Vec<u32> {
    let mut sets = vec![0u32];
    for _ in 0..count {
        let larger = |set: &u32| {
            let (set, after) = (*set, u32::BITS - set.leading_zeros());
            each(mask).filter(move |m| *m as u32 >= after).map(move |m| set | 1 << m)
        };
        sets = sets.iter().flat_map(larger).collect();
    }
    sets
}

/// The arrangement of one logical zone over the members. The same for all zones of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How partial stripes are protected.
    pub policy: Policy,
    /// N: members, data and parity.
    pub members: usize,
    /// 1 with P alone, 2 with Q: the number of members that may be lost.
    pub parities: usize,
    /// Blocks in a chunk.
    pub chunk_blocks: u64,
    /// Rows of chunks in a zone: how many stripes it holds.
    pub rows: u64,
    /// D: how many rows the partial parity is ahead of its stripe.
    pub distance: u64,
}

/// Place of a slot or a log block on its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParityPlace {
    /// In this row of the data zone.
    Row(u64),
    /// In the member's metadata log: the row would lie beyond the zone.
    MetaLog,
}

/// Content of a member's chunk in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This data chunk of the stripe.
    Data(u64),
    /// P (0) or Q (1).
    Parity(usize),
}

/// Blocks `from..to` of chunk `index` of `stripe`.
#[derive(Clone, Copy, Debug)]
pub struct ChunkRange {
    /// Stripe of the zone.
    pub stripe: u64,
    /// Chunk of the stripe.
    pub index: u64,
    /// First block, from the start of the chunk.
    pub from: u64,
    /// Exclusive end.
    pub to: u64,
}

impl Layout {
    /// k: data chunks in a stripe.
    pub fn data_chunks(&self) -> u64 {
        (self.members - self.parities) as u64
    }

    /// Fewest members with which everything can be read: all but as many as there are parities.
    pub fn fewest_members(&self) -> usize {
        self.members - self.parities
    }

    /// Blocks of user data in a stripe.
    pub fn stripe_blocks(&self) -> u64 {
        self.data_chunks() * self.chunk_blocks
    }

    /// Blocks of user data in a zone.
    pub fn capacity_blocks(&self) -> u64 {
        self.rows * self.stripe_blocks()
    }

    /// Chunks of user data in a zone.
    pub fn chunks(&self) -> u64 {
        self.rows * self.data_chunks()
    }

    /// Blocks from a write pointer to the end of everything that may be written beyond it, with a ZRWA.
    pub fn window_blocks(&self) -> u64 {
        self.policy.rows_in_zrwa(self.parities) * self.distance * self.chunk_blocks
    }

    /// The member that holds data chunk `index` of `stripe`; from `index = k` on, the parities.
    pub fn member(&self, stripe: u64, index: u64) -> usize {
        assert!((index as usize) < self.members, "chunk {index} of {} members", self.members);
        let member = stripe as usize % self.members + index as usize;
        if member < self.members { member } else { member - self.members }
    }

    /// The chunk of a block, and the block's offset in it.
    pub fn chunk_of(&self, block: u64) -> (u64, u64) {
        // Divisions are slow, and chunks are powers of two.
        (block >> self.chunk_blocks.trailing_zeros(), block & (self.chunk_blocks - 1))
    }

    /// The member that holds full parity number `which` of `stripe`.
    pub fn parity_member(&self, stripe: u64, which: usize) -> usize {
        self.member(stripe, self.data_chunks() + which as u64)
    }

    /// The inverse of [`Layout::member`].
    pub fn index(&self, member: usize, stripe: u64) -> u64 {
        assert!(member < self.members, "member {member} of {}", self.members);
        let n = self.members as u64;
        (member as u64 + n - stripe % n) % n
    }

    /// Content of `member`'s chunk in row `row`.
    pub fn role(&self, member: usize, row: u64) -> Role {
        let index = self.index(member, row);
        match index.checked_sub(self.data_chunks()) {
            Some(which) => Role::Parity(which as usize),
            None => Role::Data(index),
        }
    }

    /// Block of the zone that block `at` of `member`'s part holds; `None` if that is parity.
    pub fn data_block(&self, member: usize, at: u64) -> Option<u64> {
        let (row, block) = self.chunk_of(at);
        match self.role(member, row) {
            Role::Data(index) => Some(row * self.stripe_blocks() + index * self.chunk_blocks + block),
            Role::Parity(_) => None,
        }
    }

    /// Content of a chunk with this role in a complete stripe, as a sum of data chunks.
    pub fn sum(&self, role: Role) -> Sum {
        match role {
            Role::Data(index) => Sum::data(index as usize),
            Role::Parity(which) => Sum::parity(which, self.data_chunks() as usize),
        }
    }

    /// Content of the chunks of a stripe whose parities cover the first `chunks` chunks, as sums of data chunks, in the
    /// order of [`Layout::member`].
    pub fn symbols(&self, chunks: u64) -> [Sum; MAX_MEMBERS] {
        let k = self.data_chunks() as usize;
        std::array::from_fn(|index| match index.checked_sub(k) {
            None => Sum::data(index),
            Some(which) => Sum::parity(which.min(MAX_PARITIES - 1), chunks as usize),
        })
    }

    /// Where parity number `which` of chunks `0..=index` of `stripe` is kept.
    pub fn slot(&self, stripe: u64, index: u64, which: usize) -> (usize, ParityPlace) {
        assert!(stripe < self.rows && which < self.parities, "parity {which} of stripe {stripe}");
        let (holder, distances) = self.policy.slot(self.data_chunks() - 1, index, which);
        (self.member(stripe, holder), self.ahead(stripe, distances * self.distance))
    }

    /// Number of the parity of chunks `0..=index` of `stripe` in a slot on `member`: 0 for P, 1 for Q; `None` without a
    /// slot there.
    pub fn slot_of(&self, member: usize, stripe: u64, index: u64) -> Option<usize> {
        (0..self.parities).find(|which| self.slot(stripe, index, *which).0 == member)
    }

    /// The stripe of which `member` has a slot in row `row` with a parity of the first `covers` chunks; the first one if
    /// there are two with such a slot, `None` if there is none.
    pub fn stripe_of_slot(&self, member: usize, row: u64, covers: u8) -> Option<u64> {
        let index = (covers as u64).checked_sub(1).filter(|index| *index < self.data_chunks())?;
        let mut stripes =
            (1..=self.parities as u64).rev().filter_map(|rows| row.checked_sub(rows * self.distance));
        let place = (member, ParityPlace::Row(row));
        stripes.find(|stripe| (0..self.parities).any(|which| self.slot(*stripe, index, which) == place))
    }

    /// The members that hold the write-pointer log of a tail in `stripe`, and where.
    pub fn log(&self, stripe: u64) -> (impl Iterator<Item = usize> + Clone + use<>, ParityPlace) {
        let (layout, last) = (*self, self.members as u64 - 1);
        let members = (0..self.parities as u64).chain([last]).map(move |index| layout.member(stripe, index));
        (members, self.ahead(stripe, self.parities as u64 * self.distance))
    }

    /// The log blocks of `member` for a tail at `tail_blocks`, if it has any in its part of the zone:
    /// two of them, from the start of a chunk.
    pub fn log_blocks_of(&self, member: usize, tail_blocks: u64) -> Option<Range<u64>> {
        let (mut members, place) = self.log(tail_blocks.checked_sub(1)? / self.stripe_blocks());
        match place {
            ParityPlace::Row(row) if members.any(|holder| holder == member) => {
                Some(row * self.chunk_blocks..row * self.chunk_blocks + 2)
            }
            _ => None,
        }
    }

    /// The place `rows` rows ahead of a stripe: its own row, a later row of the zone, or the metadata log.
    fn ahead(&self, stripe: u64, rows: u64) -> ParityPlace {
        let row = stripe + rows;
        if rows == 0 || self.policy.uses_zrwa() && row < self.rows {
            ParityPlace::Row(row)
        } else {
            ParityPlace::MetaLog
        }
    }

    /// Whether slots of `stripe` are in the metadata logs.
    pub fn logs_parity_of(&self, stripe: u64) -> bool {
        let furthest = (self.policy.rows_in_zrwa(self.parities) - 1) * self.distance;
        self.ahead(stripe, furthest) == ParityPlace::MetaLog
    }

    /// Whether the first chunk of a stripe has a second witness in the previous stripe: the write
    /// pointer of the previous stripe's last data chunk. With three members that is the same
    /// member, and with a distance of one row the write pointer cannot be held back for it.
    pub fn carries(&self) -> bool {
        self.distance >= 2 && self.data_chunks() >= 3
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// All sets of members (bits) that may be lost.
    pub fn losses(layout: &Layout) -> impl Iterator<Item = u32> + use<> {
        let most = layout.parities as u32;
        (0..1u32 << layout.members).filter(move |set| set.count_ones() <= most)
    }

    fn layouts() -> impl Iterator<Item = Layout> {
        let of = |parities| {
            (parities + 2..=32).map(move |members| Layout {
                policy: Policy::Zrwa,
                members,
                parities,
                chunk_blocks: 2,
                rows: 70,
                distance: 4,
            })
        };
        (1..=MAX_PARITIES).flat_map(of)
    }

    #[test]
    fn layout_uses_each_member_once_per_stripe() {
        for layout in layouts() {
            for stripe in 0..layout.rows {
                let mut seen = vec![false; layout.members];
                for index in 0..layout.members as u64 {
                    let member = layout.member(stripe, index);
                    assert!(!std::mem::replace(&mut seen[member], true));
                    let role = match index < layout.data_chunks() {
                        true => Role::Data(index),
                        false => Role::Parity((index - layout.data_chunks()) as usize),
                    };
                    assert_eq!(layout.role(member, stripe), role);
                }
            }
        }
    }

    #[test]
    fn layout_slots_share_no_member_with_protected_chunks() {
        for layout in layouts() {
            for stripe in 0..layout.rows {
                let (log, log_place) = layout.log(stripe);
                assert_eq!(log.clone().count(), layout.parities + 1);
                let mut used: Vec<_> = log.map(|member| (member, log_place)).collect();
                for index in 0..layout.data_chunks() {
                    // No two of the chunks and their parities are lost with one member.
                    let slots = (0..layout.parities).map(|which| layout.slot(stripe, index, which));
                    let chunks = (0..=index).map(|index| layout.member(stripe, index));
                    let members: BTreeSet<_> =
                        slots.clone().map(|(member, _)| member).chain(chunks).collect();
                    assert_eq!(members.len(), index as usize + 1 + layout.parities);
                    match index + 1 < layout.data_chunks() {
                        true => used.extend(slots.filter(|(_, place)| *place != ParityPlace::MetaLog)),
                        false => {
                            assert!(slots.into_iter().all(|(_, place)| place == ParityPlace::Row(stripe)))
                        }
                    }
                }
                used.retain(|(_, place)| *place != ParityPlace::MetaLog);
                used.sort_by_key(|(member, place)| (*member, format!("{place:?}")));
                assert!(used.windows(2).all(|w| w[0] != w[1]), "{layout:?} {stripe}: {used:?}");
            }
        }
    }

    #[test]
    fn layout_log_blocks_of_member_match_tail_log() {
        let layout =
            Layout { policy: Policy::Zrwa, members: 4, parities: 1, chunk_blocks: 4, rows: 9, distance: 2 };
        for (tail, row) in [(1, 2), (12, 2), (13, 3), (84, 8)] {
            let (members, place) = layout.log((tail - 1) / layout.stripe_blocks());
            assert_eq!(place, ParityPlace::Row(row));
            for member in 0..layout.members {
                let own = members.clone().any(|m| m == member).then_some(4 * row..4 * row + 2);
                assert_eq!(layout.log_blocks_of(member, tail), own, "{tail} {member}");
            }
        }
        // None for an empty zone, nor where tails go to the metadata logs.
        assert!((0..4).all(|m| [0, 85].iter().all(|tail| layout.log_blocks_of(m, *tail).is_none())));
    }

    /// ZRAID figure 4: N = 4, ZRWA of 8 chunks.
    #[test]
    fn layout_matches_zraid_figure_4() {
        let layout = Layout {
            policy: Policy::Zrwa,
            members: 4,
            parities: 1,
            chunk_blocks: 16,
            rows: 100,
            distance: 4,
        };
        assert_eq!(layout.slot(0, 1, 0), (2, ParityPlace::Row(4)));
        assert_eq!((layout.parity_member(0, 0), layout.parity_member(1, 0)), (3, 0));
        assert_eq!(layout.slot(2, 0, 0), (3, ParityPlace::Row(6)));
    }
}
