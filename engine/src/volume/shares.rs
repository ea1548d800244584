//! Division of the room that is guaranteed to a family among the shards of a pool.
//!
//! Each extent is in one shard, and a shard that is full refuses writes whatever room the others have. So a volume with a
//! guarantee has all of its extents, and each shard sets aside its *share* for the family: as many blocks as the extents
//! there have, but no more than are guaranteed. A guarantee of more blocks than the volume has, for its snapshots, is
//! divided in proportion to the extents, since the blocks of snapshots lie in the shards of those that they keep.

use std::cmp::Reverse;

/// Extents and room of one shard, for a volume with a guarantee.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardRoom {
    /// Extents of the volume.
    pub extents: u64,
    /// Free extents that the volume may take.
    pub free: u64,
    /// Blocks that may be guaranteed to the family.
    pub room: u64,
}

/// A guarantee for a volume in a pool of several shards.
#[derive(Clone, Copy, Debug)]
pub struct DividedGuarantee {
    /// Blocks that are guaranteed.
    pub blocks: u64,
    /// Blocks of the volume.
    pub size: u64,
    /// Blocks of an extent.
    pub extent_blocks: u64,
}

impl DividedGuarantee {
    /// Blocks that a shard with so many extents of the volume sets aside.
    pub fn share(self, extents: u64) -> u64 {
        let all = extents as u128 * self.extent_blocks as u128;
        let part = (self.blocks as u128 * all).div_ceil(self.size.max(1).into());
        part.max(all).min(self.blocks.into()) as u64
    }

    /// Most extents of the volume that a shard with so much room may have: [`DividedGuarantee::share`] of them fits.
    fn most_extents(self, room: u64) -> u64 {
        match room >= self.blocks {
            true => u64::MAX,
            false => {
                let all = room as u128 * self.size as u128 / self.blocks as u128;
                all.min(room.into()) as u64 / self.extent_blocks.max(1)
            }
        }
    }

    /// Extents that a shard may give to the volume.
    fn spare(self, shard: &ShardRoom) -> u64 {
        self.most_extents(shard.room).saturating_sub(shard.extents).min(shard.free)
    }

    /// Extents that the volume lacks.
    fn lacks(self, shards: &[ShardRoom]) -> u64 {
        let there = shards.iter().map(|shard| shard.extents).sum();
        self.size.div_ceil(self.extent_blocks.max(1)).saturating_sub(there)
    }

    /// Whether the shards have room for their shares when the volume has all of its extents.
    pub fn fits(self, shards: &[ShardRoom]) -> bool {
        let is_within = |shard: &ShardRoom| shard.extents <= self.most_extents(shard.room);
        let spare = shards.iter().fold(0_u64, |sum, shard| sum.saturating_add(self.spare(shard)));
        shards.iter().all(is_within) && self.lacks(shards) <= spare
    }

    /// Most blocks that can be guaranteed instead, at most as many as these; 0 for none.
    pub fn most(self, shards: &[ShardRoom]) -> u64 {
        let (mut least, mut most) = (0, self.blocks);
        while least < most {
            let blocks = most - (most - least) / 2;
            match (DividedGuarantee { blocks, ..self }).fits(shards) {
                true => least = blocks,
                false => most = blocks - 1,
            }
        }
        least
    }

    /// The shard of each extent that the volume lacks: the one with most room beside the extents of the volume, of those
    /// that may give one. The guarantee fits.
    pub fn distribute(self, shards: &[ShardRoom]) -> Vec<usize> {
        let mut shards = shards.to_vec();
        let left =
            |shard: &ShardRoom| shard.room as i128 - shard.extents as i128 * self.extent_blocks as i128;
        let lacks = self.lacks(&shards);
        let give = |_| {
            let numbered = shards.iter_mut().enumerate().filter(|(_, shard)| self.spare(shard) > 0);
            let (number, shard) = numbered.max_by_key(|(number, shard)| (left(shard), Reverse(*number)))?;
            (shard.extents, shard.free) = (shard.extents + 1, shard.free - 1);
            Some(number)
        };
        (0..lacks).map_while(give).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: DividedGuarantee = DividedGuarantee { blocks: 100, size: 199, extent_blocks: 20 };

    fn shard(extents: u64, free: u64, room: u64) -> ShardRoom {
        ShardRoom { extents, free, room }
    }

    #[test]
    fn share_covers_extents_and_part_of_guarantee() {
        let shares =
            |blocks| [0, 1, 4, 10].map(|extents| DividedGuarantee { blocks, ..VOLUME }.share(extents));
        assert_eq!(shares(100), [0, 20, 80, 100]);
        assert_eq!(shares(199), [0, 20, 80, 199]);
        // The volume and a snapshot of each of its blocks.
        assert_eq!(shares(398), [0, 40, 160, 398]);
        assert_eq!(shares(399), [0, 41, 161, 399]);
        assert_eq!(shares(0), [0; 4]);
    }

    /// The largest guarantee fits, the next one does not, and the extents are where the shares fit.
    #[test]
    fn largest_guarantee_fits_in_all_shards() {
        for shards in [
            vec![shard(0, 10, 70), shard(0, 10, 90)],
            vec![shard(0, 3, 1000), shard(0, 10, 150)],
            vec![shard(4, 0, 90), shard(2, 10, 75), shard(0, 10, 30)],
            vec![shard(5, 9, 1000), shard(5, 9, 300)],
            vec![shard(0, 5, 50), shard(0, 4, 500)],
            vec![shard(1, 9, 0), shard(0, 9, 500)],
        ] {
            let asked = DividedGuarantee { blocks: 1 << 40, ..VOLUME };
            let most = asked.most(&shards);
            let fits = |blocks| DividedGuarantee { blocks, ..VOLUME }.fits(&shards);
            assert!(!fits(most + 1) && (most == 0 || fits(most)), "{most}: {shards:?}");
            if most == 0 {
                continue;
            }
            let divided = DividedGuarantee { blocks: most, ..VOLUME };
            let mut then = shards.clone();
            for number in divided.distribute(&shards) {
                then[number].extents += 1;
                then[number].free -= 1;
            }
            assert_eq!(then.iter().map(|shard| shard.extents).sum::<u64>(), 10, "{shards:?}");
            assert!(then.iter().all(|shard| divided.share(shard.extents) <= shard.room), "{then:?}");
        }
    }

    #[test]
    fn extents_go_where_most_room_is_left() {
        let shards = [shard(0, 10, 200), shard(1, 10, 200), shard(0, 1, 500)];
        let division = DividedGuarantee { size: 120, ..VOLUME };
        assert_eq!(division.distribute(&shards), [2, 0, 0, 1, 0]);
    }
}
