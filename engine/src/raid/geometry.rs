//! Where everything lives: logical address <-> stripe, chunk and member (ZRAID §4.2).
//!
//! Terms: a stripe is `k` data chunks and one parity chunk. Chunk `i` of stripe `s` lies on member
//! `(s + i) mod N` in row `s` of the physical zone, the full parity on member `(s + k) mod N`.
//! Partial parity lies `D` rows ahead, where `D` is half the ZRWA in chunks:
//!
//! - The **slot** of chunk `i` holds the parity of chunks `0..=i`. It is on the member after the
//!   chunk's, in row `s + D`. The slot of the last data chunk is the full parity itself, row `s`.
//! - The members of chunk 0 and of the parity have no slot in row `s + D`: their place there is
//!   used for the write-pointer log (§5.3) and the first-chunk record (§5.1).
//! - Where row `s + D` would lie beyond the zone, slots and log go to the metadata log (§5.2).
//!
//! With the policy `inplace` all slots of a stripe are on its parity member, in two places that take
//! turns: row `s`, where the last of them stays, and row `s + D`.
//!
//! Everything here is arithmetic on plain numbers: blocks, rows, chunks within one zone.

use crate::raid::policy::Policy;
use std::ops::Range;

/// Most members of an array.
pub const MAX_MEMBERS: usize = 32;

/// The arrangement of one logical zone over the members. The same for all zones of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub policy: Policy,
    /// N: members, data and parity.
    pub members: usize,
    /// Blocks in a chunk.
    pub chunk_blocks: u64,
    /// Rows of chunks in a zone: how many stripes it holds.
    pub rows: u64,
    /// D: how many rows the partial parity is ahead of its stripe.
    pub distance: u64,
}

/// Where a slot or a log block lies on its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this row of the data zone.
    Row(u64),
    /// In the member's metadata log: the row would lie beyond the zone.
    MetaLog,
}

/// What a member holds in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This data chunk of the stripe.
    Data(u64),
    Parity,
}

impl Layout {
    /// k: data chunks in a stripe.
    pub fn data_chunks(&self) -> u64 {
        self.members as u64 - 1
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

    /// The member that holds data chunk `index` of `stripe`; with `index = k`, the parity.
    pub fn member(&self, stripe: u64, index: u64) -> usize {
        let member = stripe as usize % self.members + index as usize;
        if member < self.members { member } else { member - self.members }
    }

    /// The chunk of a block, and the block's offset in it; both within a stripe's data.
    pub fn chunk_of(&self, block: u64) -> (u64, u64) {
        // Divisions are dear, and chunks are powers of two.
        (block >> self.chunk_blocks.trailing_zeros(), block & (self.chunk_blocks - 1))
    }

    pub fn parity_member(&self, stripe: u64) -> usize {
        self.member(stripe, self.data_chunks())
    }

    /// What `member` holds in row `row`.
    pub fn role(&self, member: usize, row: u64) -> Role {
        let n = self.members as u64;
        let index = (member as u64 + n - row % n) % n;
        if index == self.data_chunks() { Role::Parity } else { Role::Data(index) }
    }

    /// Where the parity of chunks `0..=index` of `stripe` is kept.
    pub fn slot(&self, stripe: u64, index: u64) -> (usize, Place) {
        let (member, own) = self.policy.slot(self, stripe, index);
        (member, if own { Place::Row(stripe) } else { self.ahead(stripe) })
    }

    /// The members that hold the write-pointer log of a tail in `stripe`, and where.
    pub fn log(&self, stripe: u64) -> ([usize; 2], Place) {
        ([self.member(stripe, 0), self.parity_member(stripe)], self.ahead(stripe))
    }

    /// The log blocks of `member` for a tail at `tail_blocks`, if it has any in its part of the zone:
    /// two of them, from the start of a chunk.
    pub fn log_blocks_of(&self, member: usize, tail_blocks: u64) -> Option<Range<u64>> {
        let (members, place) = self.log(tail_blocks.checked_sub(1)? / self.stripe_blocks());
        match place {
            Place::Row(row) if members.contains(&member) => {
                Some(row * self.chunk_blocks..row * self.chunk_blocks + 2)
            }
            _ => None,
        }
    }

    fn ahead(&self, stripe: u64) -> Place {
        let row = stripe + self.distance;
        if self.policy.uses_zrwa() && row < self.rows { Place::Row(row) } else { Place::MetaLog }
    }

    /// Whether the first chunk of a stripe has a second witness in the previous stripe: the write
    /// pointer of the previous stripe's last data chunk. With three members that is the same
    /// member, and with a distance of one row the write pointer cannot be held back for it.
    pub fn carries(&self) -> bool {
        self.distance >= 2 && self.data_chunks() >= 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stripe_uses_every_member_once_and_roles_invert_members() {
        for members in 3..=32 {
            let layout = Layout { policy: Policy::Zrwa, members, chunk_blocks: 2, rows: 70, distance: 4 };
            for stripe in 0..layout.rows {
                let mut seen = vec![false; members];
                for index in 0..=layout.data_chunks() {
                    let member = layout.member(stripe, index);
                    assert!(!std::mem::replace(&mut seen[member], true));
                    let role = if index == layout.data_chunks() { Role::Parity } else { Role::Data(index) };
                    assert_eq!(layout.role(member, stripe), role);
                }
            }
        }
    }

    #[test]
    fn slots_and_log_blocks_of_a_stripe_never_share_a_place_nor_a_member_with_what_they_protect() {
        for members in 3..=32 {
            let layout = Layout { policy: Policy::Zrwa, members, chunk_blocks: 2, rows: 70, distance: 4 };
            for stripe in 0..layout.rows {
                let (log, log_place) = layout.log(stripe);
                let mut used = log.to_vec();
                for index in 0..layout.data_chunks() {
                    let (member, place) = layout.slot(stripe, index);
                    for protected in 0..=index {
                        assert_ne!(member, layout.member(stripe, protected));
                    }
                    if index + 1 < layout.data_chunks() {
                        assert_eq!(place, log_place);
                        used.push(member);
                    } else {
                        assert_eq!(place, Place::Row(stripe));
                    }
                }
                used.sort_unstable();
                assert!(used.windows(2).all(|w| w[0] != w[1]));
            }
        }
    }

    #[test]
    fn log_blocks_of_a_member_are_where_the_log_of_the_tail_is() {
        let layout = Layout { policy: Policy::Zrwa, members: 4, chunk_blocks: 4, rows: 9, distance: 2 };
        for (tail, row) in [(1, 2), (12, 2), (13, 3), (84, 8)] {
            let (members, place) = layout.log((tail - 1) / layout.stripe_blocks());
            assert_eq!(place, Place::Row(row));
            for member in 0..layout.members {
                let own = members.contains(&member).then_some(4 * row..4 * row + 2);
                assert_eq!(layout.log_blocks_of(member, tail), own, "{tail} {member}");
            }
        }
        // None of nothing, nor where tails go to the metadata logs.
        assert!((0..4).all(|m| [0, 85].iter().all(|tail| layout.log_blocks_of(m, *tail).is_none())));
    }

    /// ZRAID figure 4: N = 4, ZRWA of 8 chunks.
    #[test]
    fn the_example_of_the_paper() {
        let layout = Layout { policy: Policy::Zrwa, members: 4, chunk_blocks: 16, rows: 100, distance: 4 };
        assert_eq!(layout.slot(0, 1), (2, Place::Row(4)));
        assert_eq!((layout.parity_member(0), layout.parity_member(1)), (3, 0));
        assert_eq!(layout.slot(2, 0), (3, Place::Row(6)));
    }
}
