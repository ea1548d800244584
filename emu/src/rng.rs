//! A small deterministic generator: the only source of randomness in the simulator.
//!
//! xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021), seeded through
//! SplitMix64. A seed gives the same numbers on every machine and in every version of this crate. Not for secrets.

use std::ops::Range;

/// The generator. A clone continues with the same numbers as the original.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// A generator seeded with `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// Any 64-bit number.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `n`; 0 if `n` is 0. The bias is below n / 2⁶⁴.
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    /// A number in `range`, or its start if it is empty.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// `true` in `num` of `den` cases.
    pub fn chance(&mut self, num: u64, den: u64) -> bool {
        self.below(den) < num
    }

    /// A number from an exponential distribution with mean 1, by von Neumann's method: it only
    /// compares, while logarithms may differ from one machine to another.
    pub fn exponential(&mut self) -> f64 {
        let mut whole = 0.0;
        loop {
            let first = self.unit();
            let (mut last, mut falling) = (first, 1);
            loop {
                let next = self.unit();
                if next >= last {
                    break;
                }
                (last, falling) = (next, falling + 1);
            }
            if falling % 2 == 1 {
                return whole + first;
            }
            whole += 1.0;
        }
    }

    /// A number from 0 up to, but not including 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `items`.
    ///
    /// # Panics
    /// There are no items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        assert!(!items.is_empty(), "nothing to pick from");
        &items[self.below(items.len() as u64) as usize]
    }

    /// The index of one of `weights`, with a probability proportional to it.
    ///
    /// # Panics
    /// All weights are 0.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut draw = self.below(weights.iter().sum());
        let mut kind = 0;
        while draw >= weights[kind] {
            draw -= weights[kind];
            kind += 1;
        }
        kind
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    /// Fills `bytes` with noise.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Another generator, seeded from this one and independent of its later numbers.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rng_matches_reference_numbers_of_seed() {
        // From the reference implementation of xoshiro256** with the state {1, 2, 3, 4}.
        let mut rng = Rng([1, 2, 3, 4]);
        assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], [11520, 0, 1509978240]);
        // SplitMix64's published first number for seed 0.
        assert_eq!(Rng::new(0).0[0], 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn rng_helpers_cover_their_range() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[rng.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|n| *n > 150), "{seen:?}");
        let heads = (0..1000).filter(|_| rng.chance(1, 4)).count();
        assert!((200..300).contains(&heads), "{heads}");
        let mut items: Vec<u32> = (0..100).collect();
        rng.shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        assert!((0..100).all(|_| rng.range(3..5) >= 3 && rng.range(3..5) < 5));
    }

    #[test]
    fn rng_exponential_has_mean_and_deviation_one() {
        let mut rng = Rng::new(11);
        let numbers: Vec<f64> = (0..100_000).map(|_| rng.exponential()).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean}, {variance}");
        let beyond = numbers.iter().filter(|n| **n > 3.0).count() as f64 / 1e5;
        assert!((beyond - (-3.0f64).exp()).abs() < 0.003, "{beyond}");
    }
}
