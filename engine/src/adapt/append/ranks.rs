//! Compact table of the places of the blocks of one group.
//!
//! The blocks of a group are stored in any order, with void blocks between them. The *rank* of a block is the number of
//! blocks of its group that are stored before it in the drive's zone; it takes log2 of the group's size in bits.

use super::judge::AppendRecovery;
use std::collections::BTreeSet;

/// A group: `size` blocks of the zone, from a multiple of `size` on.
#[derive(Clone, Debug)]
pub struct AppendGroup {
    /// The first block of the zone that belongs to it.
    pub first: u64,
    /// End of the written blocks of the group.
    pub end: u64,
    /// First place of the group in the drive's zone.
    start: u64,
    /// Rank of each block, by its number in the group.
    ranks: Bits,
    /// Void places between the places of the group, in order.
    voids: Vec<u64>,
    /// Blocks at an uncertain place.
    doubtful: BTreeSet<u64>,
}

/// Place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPosition {
    /// At this block of the drive's zone.
    At(u64),
    /// It was never written.
    Nothing,
    /// It was written, but its place is not certain.
    Doubtful,
}

impl AppendGroup {
    /// An empty group of `size` blocks that begins in block `start` of the drive's zone.
    pub fn new(first: u64, size: u64, start: u64) -> AppendGroup {
        let (ranks, voids) = (Bits::new(size), Vec::new());
        AppendGroup { first, end: first, start, ranks, voids, doubtful: BTreeSet::new() }
    }

    /// The group that begins with block `first`, from the result of recovery; `before` is the exclusive end of the
    /// range of the drive's zone that was read.
    pub fn of(first: u64, size: u64, found: &AppendRecovery, before: u64) -> AppendGroup {
        let end = found.end.clamp(first, first + size);
        let places = || found.places.range(first..end).map(|(block, place)| (*block, *place));
        let start = places().map(|(_, place)| place).min().unwrap_or(before);
        let mut group = AppendGroup { end, ..AppendGroup::new(first, size, start) };
        group.doubtful = found.doubtful.range(first..end).copied().collect();
        let mut taken: Vec<(u64, u64)> = places().map(|(block, place)| (place, block)).collect();
        taken.sort_unstable();
        let mut next = start;
        for (rank, (place, block)) in (0..).zip(taken) {
            group.voids.extend(next..place);
            group.ranks.set(block - first, rank);
            next = place + 1;
        }
        if end < first + size {
            // The next blocks will be appended behind the range: the rest of it is void.
            group.voids.extend(next..before);
        }
        group
    }

    /// Records that block `block` of the zone has landed in `place` in the present session, within which no place is
    /// void. `void` is the number of void places before the session. Returns whether the place is one of the group.
    pub fn land(&mut self, block: u64, place: u64, void: u64) -> bool {
        let rank = place.checked_sub(void + self.first);
        let Some(rank) = rank.filter(|rank| *rank < self.ranks.len) else { return false };
        self.ranks.set(block - self.first, rank);
        true
    }

    /// Marks blocks as doubtful that are known to have landed, up to `end`, and were not found.
    pub fn lose(&mut self, end: u64) {
        let most = self.first + self.ranks.len;
        assert!(end <= most, "blocks below {end} have landed in a group that ends at {most}");
        self.doubtful.extend(self.end..end);
        self.end = self.end.max(end);
    }

    /// Place of a block of the group.
    pub fn position(&self, block: u64) -> BlockPosition {
        match block {
            _ if block >= self.end => BlockPosition::Nothing,
            _ if self.doubtful.contains(&block) => BlockPosition::Doubtful,
            _ => BlockPosition::At(self.place(self.ranks.get(block - self.first))),
        }
    }

    /// Whether the group is complete, with the place of each block known.
    pub fn is_whole(&self) -> bool {
        self.end == self.first + self.ranks.len && self.doubtful.is_empty()
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        size_of::<AppendGroup>() + 8 * (self.ranks.words.len() + self.voids.len() + 2 * self.doubtful.len())
    }

    /// Place in the drive's zone of the block with this rank.
    fn place(&self, rank: u64) -> u64 {
        let mut place = self.start + rank;
        for void in &self.voids {
            match *void <= place {
                true => place += 1,
                false => break,
            }
        }
        place
    }
}

/// Array of numbers below a power of two, packed into as few bits as possible.
#[derive(Clone, Debug)]
struct Bits {
    words: Vec<u64>,
    /// Number of elements, and exclusive upper bound of their values.
    len: u64,
    /// Bits of an element.
    width: u32,
}

impl Bits {
    fn new(len: u64) -> Bits {
        let width = len.next_power_of_two().trailing_zeros();
        Bits { words: vec![0; (len * width as u64).div_ceil(64) as usize], len, width }
    }

    fn set(&mut self, at: u64, number: u64) {
        let len = self.len;
        assert!(at < len && number < len, "block {at} of a group of {len} has rank {number}");
        for bit in 0..self.width {
            let at = at * self.width as u64 + bit as u64;
            let (word, mask) = (&mut self.words[at as usize / 64], 1 << (at % 64));
            *word = if number >> bit & 1 == 1 { *word | mask } else { *word & !mask };
        }
    }

    fn get(&self, at: u64) -> u64 {
        assert!(at < self.len, "block {at} of a group of {}", self.len);
        let at = at * self.width as u64;
        let bits = (0..self.width as u64).map(|bit| {
            let at = at + bit;
            (self.words[at as usize / 64] >> (at % 64) & 1) << bit
        });
        bits.fold(0, |number, bit| number | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_bits_store_numbers_in_minimal_width() {
        for len in [1, 2, 4, 8, 256, 4096] {
            let mut bits = Bits::new(len);
            (0..len).for_each(|at| bits.set(at, len - 1 - at));
            (0..len).for_each(|at| bits.set(at, (at * 5 + 3) % len));
            assert!((0..len).all(|at| bits.get(at) == (at * 5 + 3) % len), "{len}");
        }
        assert_eq!(Bits::new(256).words.len(), 32);
    }

    #[test]
    fn append_group_locates_blocks_among_void_blocks() {
        let mut group = AppendGroup::new(8, 4, 11);
        assert!(
            group.land(9, 11, 3) && group.land(8, 12, 3) && group.land(11, 13, 3) && group.land(10, 14, 3)
        );
        assert!(!group.land(8, 15, 3) && !group.land(8, 10, 3));
        group.end = 11;
        let spots: Vec<BlockPosition> = (8..12).map(|block| group.position(block)).collect();
        assert_eq!(
            spots,
            [BlockPosition::At(12), BlockPosition::At(11), BlockPosition::At(14), BlockPosition::Nothing]
        );
        // Recovered with two void blocks, one of them behind all others; then it is written on.
        let places = [(8, 13), (9, 11)].into_iter().collect();
        let found = AppendRecovery { end: 10, places, doubtful: BTreeSet::from([9]), is_sure: true };
        let mut group = AppendGroup::of(8, 4, &found, 15);
        assert!(group.land(10, 15, 5) && group.land(11, 16, 5));
        group.end = 12;
        let spots: Vec<BlockPosition> = (8..12).map(|block| group.position(block)).collect();
        assert_eq!(
            spots,
            [BlockPosition::At(13), BlockPosition::Doubtful, BlockPosition::At(15), BlockPosition::At(16)]
        );
        assert!(!group.is_whole());
    }
}
