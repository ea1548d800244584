//! Generations of zones: blocks that an interrupted write has left in a ZRWA are told from those that replaced them.
//!
//! After a crash, a ZRWA may hold blocks beyond the tail that recovery finds. They are written again, in the same epoch
//! of the zone, so a drive that loses such a write returns a block with a valid mark. But the mark has the number of an
//! earlier assembly: an assembly that continues a zone at a tail begins a *generation* there, and blocks behind this tail
//! of earlier generations are not data of the array. So does an assembly with the policy `zrwa` at the start of a zone
//! that is empty, and that it has not reset: a drive may have made it empty, and kept such blocks.

use crate::format::record::TailRecord;
use std::collections::BTreeMap;

/// Most generations of an array that are kept. The earliest are dropped first: their blocks are not checked any more.
pub const MOST_GENERATIONS: usize = 1024;

/// Generations of zones with checksums in marks: for each zone those of one epoch, the newest.
#[derive(Clone, Debug, Default)]
pub struct Generations(BTreeMap<u32, ZoneGenerations>);

#[derive(Clone, Debug)]
struct ZoneGenerations {
    epoch: u64,
    /// Without the generation of the assembly that has reset the zone, which begins at block 0.
    begun: Vec<Begun>,
}

/// The start of a generation of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Blocks of the zone.
    pub tail_blocks: u64,
    /// Number of the assembly.
    pub number: u32,
}

impl Generations {
    /// Adds the generation that `record` begins, if it begins one.
    pub fn begin(&mut self, record: &TailRecord) {
        let &TailRecord { zone, generation: number, epoch, tail_blocks } = record;
        if number == 0 {
            return;
        }
        let of_zone = self.0.entry(zone).or_insert(ZoneGenerations { epoch, begun: Vec::new() });
        if of_zone.epoch > epoch {
            return;
        }
        if of_zone.epoch < epoch {
            *of_zone = ZoneGenerations { epoch, begun: Vec::new() };
        }
        let begun = &mut of_zone.begun;
        // A record of the same generation with a higher tail has only raised it.
        if begun.iter().any(|other| other.tail_blocks <= tail_blocks && other.number >= number) {
            return;
        }
        begun.retain(|other| other.tail_blocks < tail_blocks || other.number > number);
        let at = begun.partition_point(|other| other.tail_blocks < tail_blocks);
        begun.insert(at, Begun { tail_blocks, number });
        let ascends = |a: &Begun, b: &Begun| a.tail_blocks < b.tail_blocks && a.number < b.number;
        assert!(begun.is_sorted_by(ascends), "generations {begun:?}");
    }

    /// Keeps the generations for which `keep` (zone, epoch, number) returns true.
    pub fn retain(&mut self, keep: impl Fn(u32, u64, u32) -> bool) {
        for (zone, ZoneGenerations { epoch, begun }) in &mut self.0 {
            begun.retain(|begun| keep(*zone, *epoch, begun.number));
        }
        self.0.retain(|_, of_zone| !of_zone.begun.is_empty());
    }

    /// Drops the generations of a zone, which is reset.
    pub fn forget(&mut self, zone: u32) {
        self.0.remove(&zone);
    }

    /// Keeps the latest [`MOST_GENERATIONS`].
    pub fn limit(&mut self) {
        let mut numbers: Vec<u32> =
            self.0.values().flat_map(|of_zone| of_zone.begun.iter().map(|begun| begun.number)).collect();
        if let Some(surplus) = numbers.len().checked_sub(MOST_GENERATIONS).filter(|surplus| *surplus > 0) {
            numbers.sort_unstable();
            let last_dropped = numbers[surplus - 1];
            self.retain(|_, _, number| number > last_dropped);
        }
    }

    /// The generations of a zone in this epoch, both numbers ascending.
    pub fn of(&self, zone: u32, epoch: u64) -> &[Begun] {
        self.0.get(&zone).filter(|of_zone| of_zone.epoch == epoch).map_or(&[], |of_zone| &of_zone.begun)
    }

    /// The records that begin the generations, in the order of the zones.
    pub fn records(&self) -> impl Iterator<Item = TailRecord> {
        self.0.iter().flat_map(|(&zone, ZoneGenerations { epoch, begun })| {
            begun.iter().map(move |&Begun { tail_blocks, number }| TailRecord {
                zone,
                generation: number,
                epoch: *epoch,
                tail_blocks,
            })
        })
    }
}

/// Whether block `at` of a zone with these generations may be of generation `number`, that of its mark.
pub fn may_be_of(begun: &[Begun], at: u64, number: u32) -> bool {
    let before = begun.partition_point(|begun| begun.tail_blocks <= at);
    before.checked_sub(1).is_none_or(|last| number >= begun[last].number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::policy::Policy;

    fn record(zone: u32, epoch: u64, (tail_blocks, generation): (u64, u32)) -> TailRecord {
        TailRecord { zone, generation, epoch, tail_blocks }
    }

    fn of(begun: &[(u64, u32)]) -> Generations {
        let mut generations = Generations::default();
        begun.iter().for_each(|begun| generations.begin(&record(3, 7, *begun)));
        generations
    }

    /// The earliest generation of blocks 0, 9, 10, 19, 20 and 29, up to 9.
    fn earliest(generations: &Generations) -> Vec<u32> {
        let begun = generations.of(3, 7);
        let of = |at| (0..10).find(|number| may_be_of(begun, at, *number)).unwrap();
        [0, 9, 10, 19, 20, 29].map(of).to_vec()
    }

    #[test]
    fn block_is_of_generation_that_began_before_it_or_later() {
        assert_eq!(earliest(&of(&[(0, 3)])), [3; 6], "from the start of the zone");
        assert_eq!(earliest(&of(&[(0, 3), (10, 3), (20, 5)])), [3, 3, 3, 3, 5, 5]);
        assert_eq!(earliest(&of(&[(10, 3), (20, 5)])), [0, 0, 3, 3, 5, 5]);
        assert_eq!(earliest(&of(&[(20, 5), (10, 3)])), [0, 0, 3, 3, 5, 5], "in any order");
        assert_eq!(earliest(&of(&[(10, 3), (10, 4)])), [0, 0, 4, 4, 4, 4], "nothing written by the third");
        assert_eq!(earliest(&of(&[(10, 3), (20, 3)])), [0, 0, 3, 3, 3, 3], "its tail was raised");
        assert_eq!(earliest(&of(&[(20, 3), (10, 4)])), [0, 0, 4, 4, 4, 4], "an earlier tail");
    }

    #[test]
    fn opening_of_zone_begins_generation_with_zrwa_only() {
        for (policy, begun) in [(Policy::Zrwa, [true; 2]), (Policy::InPlace, [false, true])] {
            assert_eq!([0, 10].map(|tail_blocks| policy.begins_generation(3, tail_blocks)), begun);
            assert!(!policy.begins_generation(0, 10), "a tail");
        }
    }

    #[test]
    fn generations_are_of_newest_epoch_of_their_zone() {
        let mut generations = of(&[(10, 3)]);
        generations.begin(&record(3, 6, (1, 9)));
        assert_eq!(earliest(&generations), [0, 0, 3, 3, 3, 3]);
        assert!(generations.of(3, 8).is_empty() && generations.of(2, 7).is_empty());
        generations.begin(&record(3, 8, (20, 5)));
        assert_eq!(earliest(&generations), [0; 6]);
        assert_eq!(generations.records().collect::<Vec<_>>(), [record(3, 8, (20, 5))]);
        generations.retain(|_, epoch, _| epoch > 8);
        assert_eq!(generations.records().count(), 0);
        generations.begin(&record(3, 9, (20, 5)));
        generations.forget(3);
        assert_eq!(generations.records().count(), 0);
    }

    #[test]
    fn latest_generations_are_kept() {
        let mut generations = Generations::default();
        let last = MOST_GENERATIONS as u32 + 5;
        (1..=last).for_each(|number| generations.begin(&record(number / 3, 7, (number as u64, number))));
        generations.retain(|_, _, number| number < last);
        generations.limit();
        let numbers: Vec<_> = generations.records().map(|record| record.generation).collect();
        assert_eq!(numbers, (5..last).collect::<Vec<_>>());
    }
}
