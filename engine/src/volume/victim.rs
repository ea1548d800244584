//! Policies of garbage collection, as pure functions: the choice of a victim, and the classification of blocks as hot.

use crate::volume::root::{RootZone, ZoneUse};

/// Policy for the choice of victims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The zone with the fewest live grains.
    Greedy,
    /// The zone with the best ratio of yield to cost, weighed with its age: `(1 - u) * age / (1 + u)` (Rosenblum and
    /// Ousterhout 1992).
    #[default]
    CostBenefit,
}

/// Chooses the next zone to collect; `None` if no zone qualifies. Closed data zones with 1 to `most` live grains
/// qualify; `capacity` is the capacity of a zone in grains, and `now` the next segment number, from which ages are
/// counted.
pub fn choose<'z>(
    zones: impl Iterator<Item = (u32, &'z RootZone)>,
    choice: Choice,
    (capacity, most): (u32, u32),
    now: u64,
) -> Option<u32> {
    let closed = zones.filter(|(_, z)| z.state == ZoneUse::ClosedData && (1..=most).contains(&z.live));
    // Scores are fractions (gain, cost), compared by cross-multiplication: a division for every zone would be slower.
    let score = |zone: &RootZone| {
        let yields = capacity.saturating_sub(zone.live) as u128;
        match choice {
            Choice::Greedy => (yields, 1),
            Choice::CostBenefit => {
                let age = now.saturating_sub(zone.segment);
                (yields * age as u128, capacity as u128 + zone.live as u128)
            }
        }
    };
    let scored = closed.map(|(index, zone)| (score(zone), index));
    let best = scored.reduce(|best, next| {
        let ((gain, cost), (other_gain, other_cost)) = (best.0, next.0);
        if other_gain * cost > gain * other_cost { next } else { best }
    });
    best.map(|(_, index)| index)
}

/// Mean age, in segments, at which zones of hot blocks were collected: the expected life of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifespan(pub u64);

impl Lifespan {
    /// Initial value, before a zone of hot blocks was collected: every version counts as short-lived.
    pub const UNKNOWN: Lifespan = Lifespan(u64::MAX >> 8);

    /// Whether a block is hot, if its last version lived for `age` segments.
    pub fn is_hot(self, age: u64) -> bool {
        age < self.0
    }

    /// Records that a zone of hot blocks was collected at this age.
    pub fn learn(&mut self, age: u64) {
        self.0 = match *self {
            Lifespan::UNKNOWN => age,
            Lifespan(mean) => (15 * mean + age).div_ceil(16),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_victim_is_emptiest_cost_benefit_victim_older() {
        let zone = |live, segment| RootZone { live, state: ZoneUse::ClosedData, segment };
        let zones = [zone(10, 99), zone(20, 1), zone(0, 1), RootZone { state: ZoneUse::Data, ..zone(1, 0) }];
        let chosen = |choice, most| choose((0..).zip(&zones), choice, (100, most), 100);
        assert_eq!(chosen(Choice::Greedy, 99), Some(0));
        assert_eq!(chosen(Choice::CostBenefit, 99), Some(1));
        assert_eq!(chosen(Choice::Greedy, 9), None);
    }

    /// The largest possible numbers: ages below 2^56, and zones of 127 GiB in grains.
    #[test]
    fn victim_scores_of_extreme_zones_compare_without_overflow() {
        let zone = |live, segment| RootZone { live, state: ZoneUse::ClosedData, segment };
        let zones = [zone(1, 1), zone(1, 0), zone(1, 0)];
        let chosen = choose((0..).zip(&zones), Choice::CostBenefit, (u32::MAX / 2, u32::MAX), (1 << 56) - 1);
        assert_eq!(chosen, Some(1));
    }

    #[test]
    fn lifespan_follows_age_of_collected_blocks() {
        let mut lifespan = Lifespan::UNKNOWN;
        assert!(lifespan.is_hot(1 << 40));
        lifespan.learn(8);
        assert!(lifespan.is_hot(7) && !lifespan.is_hot(8));
        (0..200).for_each(|_| lifespan.learn(100));
        assert!(lifespan.is_hot(99) && !lifespan.is_hot(101));
    }
}
