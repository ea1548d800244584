//! RAID-6 parities over blocks: P, the XOR of the sources, and Q, the sum of `2^i` times source `i` over
//! [`super::gf256`].
//!
//! Whole stripes need no general multiplication: Q is `s0 + 2 (s1 + 2 (s2 + ...))` (Horner), so one pass from the last
//! source down doubles a sum that stays in registers. Single sources and arbitrary coefficients need products with a
//! constant (`simd.rs`).
//!
//! As in [`super::xor`], all slices of a call must have the same length.

use super::{
    gf256::{FACTORS, Factor, double, mul, pow2},
    simd::{self, Kernel, LANE, Vectors, add, turns, turns_mut},
    xor::MAX_SOURCES,
};
use std::ops::Deref;

/// `p` = XOR of all `sources`, `q` = sum of `2^i` times source `i`.
pub fn pq_all(p: &mut [u8], q: &mut [u8], sources: &[impl Deref<Target = [u8]>]) {
    assert!(sources.len() <= MAX_SOURCES);
    assert!(p.len() == q.len() && sources.iter().all(|source| source.len() == p.len()));
    simd::run(PqSum { p, q, sources });
}

struct PqSum<'a, S> {
    p: &'a mut [u8],
    q: &'a mut [u8],
    sources: &'a [S],
}

impl<S: Deref<Target = [u8]>> Kernel for PqSum<'_, S> {
    #[inline(always)]
    fn run<V: Vectors, const N: usize>(self, vectors: V) {
        let PqSum { p, q, sources } = self;
        let mut all = [&[][..]; MAX_SOURCES];
        for (all, source) in all.iter_mut().zip(sources) {
            *all = turns::<N>(source);
        }
        let Some((last, others)) = all[..sources.len()].split_last() else {
            p.fill(0);
            return q.fill(0);
        };
        let (p_turns, q_turns) = (turns_mut(p), turns_mut(q));
        for at in 0..last.len() {
            let (mut p_sum, mut q_sum) = (last[at], last[at]);
            for source in others.iter().rev() {
                let source = &source[at];
                for lane in 0..N {
                    add(&mut p_sum[lane], &source[lane]);
                    q_sum[lane] = vectors.double(q_sum[lane]);
                    add(&mut q_sum[lane], &source[lane]);
                }
            }
            (p_turns[at], q_turns[at]) = (p_sum, q_sum);
        }
        for at in size_of_val(*last)..p.len() {
            let bytes = sources.iter().rev().map(|source| source[at]);
            (p[at], q[at]) = bytes.fold((0, 0), |(p, q), byte| (p ^ byte, double(q) ^ byte));
        }
    }
}

/// `p ^= a; q ^= 2^index a`: adds one source to both parities.
pub fn pq_assign(p: &mut [u8], q: &mut [u8], index: usize, a: &[u8]) {
    assert!(p.len() == a.len() && q.len() == a.len());
    simd::run(PqAssign { p, q, factor: &FACTORS[pow2(index) as usize], a });
}

struct PqAssign<'a> {
    p: &'a mut [u8],
    q: &'a mut [u8],
    factor: &'static Factor,
    a: &'a [u8],
}

impl Kernel for PqAssign<'_> {
    #[inline(always)]
    fn run<V: Vectors, const N: usize>(self, vectors: V) {
        // A copy of the factor stays in registers.
        let PqAssign { p, q, factor: &factor, a } = self;
        let (p_turns, q_turns, a_turns) = (turns_mut::<N>(p), turns_mut::<N>(q), turns::<N>(a));
        for at in 0..a_turns.len() {
            let (mut p_sum, mut q_sum, a) = (p_turns[at], q_turns[at], &a_turns[at]);
            for lane in 0..N {
                add(&mut p_sum[lane], &a[lane]);
                add(&mut q_sum[lane], &vectors.product(&factor, a[lane]));
            }
            (p_turns[at], q_turns[at]) = (p_sum, q_sum);
        }
        for at in size_of_val(a_turns)..a.len() {
            p[at] ^= a[at];
            q[at] ^= factor.times(a[at]);
        }
    }
}

/// [`pq_assign`], with copies of both results: for running parities that are also written out.
pub fn pq_assign_and_copy(
    (p, q): (&mut [u8], &mut [u8]),
    index: usize,
    a: &[u8],
    (p_copy, q_copy): (&mut [u8], &mut [u8]),
) {
    pq_assign(p, q, index, a);
    p_copy.copy_from_slice(p);
    q_copy.copy_from_slice(q);
}

/// `target` = sum of `sources`, each times its coefficient.
pub fn sum(target: &mut [u8], coefficients: &[u8], sources: &[impl Deref<Target = [u8]>]) {
    assert!(sources.len() <= MAX_SOURCES && sources.len() == coefficients.len());
    assert!(sources.iter().all(|source| source.len() == target.len()));
    simd::run(ProductSum { target, coefficients, sources });
}

struct ProductSum<'a, S> {
    target: &'a mut [u8],
    coefficients: &'a [u8],
    sources: &'a [S],
}

impl<S: Deref<Target = [u8]>> Kernel for ProductSum<'_, S> {
    #[inline(always)]
    fn run<V: Vectors, const N: usize>(self, vectors: V) {
        let ProductSum { target, coefficients, sources } = self;
        let mut terms = [(&FACTORS[0], &[][..]); MAX_SOURCES];
        for (term, (c, source)) in terms.iter_mut().zip(coefficients.iter().zip(sources)) {
            *term = (&FACTORS[*c as usize], turns::<N>(source));
        }
        let terms = &terms[..sources.len()];
        let targets = turns_mut::<N>(target);
        for at in 0..targets.len() {
            let mut sum = [[0; LANE]; N];
            for (factor, source) in terms {
                let source = &source[at];
                for lane in 0..N {
                    add(&mut sum[lane], &vectors.product(factor, source[lane]));
                }
            }
            targets[at] = sum;
        }
        for at in size_of_val(targets)..target.len() {
            let products = coefficients.iter().zip(sources).map(|(c, source)| mul(*c, source[at]));
            target[at] = products.fold(0, |sum, product| sum ^ product);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::{
        gf256::tests::slow_mul,
        simd::tests::on_each_level,
        xor::{
            self,
            tests::{LENGTHS, OFFSETS, bytes},
        },
    };

    /// `target ^= c a`, one byte at a time.
    fn slow_mul_add(target: &mut [u8], c: u8, a: &[u8]) {
        for (t, a) in target.iter_mut().zip(a) {
            *t ^= slow_mul(c, *a);
        }
    }

    /// P and Q, one source at a time.
    fn slow_pq(len: usize, sources: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        let mut power = 1;
        for source in sources {
            slow_mul_add(&mut p, 1, source);
            slow_mul_add(&mut q, power, source);
            power = slow_mul(power, 2);
        }
        (p, q)
    }

    fn sources(count: usize, len: usize) -> Vec<Vec<u8>> {
        (0..count).map(|i| bytes(len, (count * 64 + i + 1) as u64)).collect()
    }

    #[test]
    fn parity_of_any_source_count_agrees_with_oracle() {
        for count in 0..=MAX_SOURCES {
            for len in LENGTHS {
                let sources = sources(count, len);
                let expected = slow_pq(len, &sources);
                on_each_level(|| {
                    let (mut p, mut q) = (bytes(len, 98), bytes(len, 99));
                    pq_all(&mut p, &mut q, &sources);
                    assert!((&p, &q) == (&expected.0, &expected.1), "{count} {len}");
                    xor::xor_all(&mut q, &sources);
                    assert!(p == q, "{count} {len}");
                });
            }
        }
    }

    #[test]
    fn pq_running_parity_agrees_with_full_parity() {
        for len in LENGTHS {
            let sources = sources(30, len);
            let expected: Vec<_> = (0..30).map(|index| slow_pq(len, &sources[..=index])).collect();
            on_each_level(|| {
                let (mut p, mut q) = (vec![0; len], vec![0; len]);
                let (mut p_copy, mut q_copy) = (bytes(len, 98), bytes(len, 99));
                for (index, (source, expected)) in sources.iter().zip(&expected).enumerate() {
                    if index % 2 == 0 {
                        pq_assign(&mut p, &mut q, index, source);
                    } else {
                        pq_assign_and_copy((&mut p, &mut q), index, source, (&mut p_copy, &mut q_copy));
                        assert!((&p_copy, &q_copy) == (&p, &q), "{index} {len}");
                    }
                    assert!((&p, &q) == (&expected.0, &expected.1), "{index} {len}");
                }
            });
        }
    }

    #[test]
    fn pq_of_unaligned_slices_agrees_with_oracle() {
        for (len, offset) in LENGTHS.into_iter().flat_map(|len| OFFSETS.map(|offset| (len, offset))) {
            let whole = sources(5, len + 130);
            let slices: Vec<&[u8]> = (0..5).map(|i| &whole[i][offset + i..][..len]).collect();
            let (three, all) = (&slices[..3], slices.iter().map(|slice| slice.to_vec()).collect::<Vec<_>>());
            let (before, after) = (slow_pq(len, &all[..3]), slow_pq(len, &all[..4]));
            let (p_range, q_range) = (offset + 7..offset + 7 + len, offset + 9..offset + 9 + len);
            // Bytes around the targets stay as they are.
            let within = |range: &std::ops::Range<usize>, bytes: &[u8]| {
                let mut expected = vec![7; len + 130];
                expected[range.clone()].copy_from_slice(bytes);
                expected
            };
            on_each_level(|| {
                let (mut p, mut q) = (vec![7; len + 130], vec![7; len + 130]);
                pq_all(&mut p[p_range.clone()], &mut q[q_range.clone()], three);
                assert!(
                    p == within(&p_range, &before.0) && q == within(&q_range, &before.1),
                    "{len} {offset}"
                );
                pq_assign(&mut p[p_range.clone()], &mut q[q_range.clone()], 3, slices[3]);
                assert!(p == within(&p_range, &after.0) && q == within(&q_range, &after.1), "{len} {offset}");
                sum(&mut q[q_range.clone()], &[1, 2, 4, 8], &slices[..4]);
                assert!(q == within(&q_range, &after.1), "{len} {offset}");
            });
        }
    }

    #[test]
    fn pq_products_by_any_byte_agree_with_oracle() {
        let sources = sources(2, 1025);
        for c in 0..=255 {
            let mut expected = vec![0; 1025];
            slow_mul_add(&mut expected, c, &sources[0]);
            on_each_level(|| {
                let mut target = bytes(1025, 300);
                sum(&mut target, &[c], &sources[..1]);
                assert!(target == expected, "{c}");
            });
            slow_mul_add(&mut expected, c ^ 0x5a, &sources[1]);
            on_each_level(|| {
                let mut target = bytes(1025, 300);
                sum(&mut target, &[c, c ^ 0x5a], &sources);
                assert!(target == expected, "{c}");
            });
        }
        let mut target = bytes(1025, 300);
        sum(&mut target, &[], &[] as &[Vec<u8>]);
        assert!(target == vec![0; 1025]);
    }

    #[test]
    fn pq_sum_of_most_sources_agrees_with_oracle() {
        let (sources, c) = (sources(MAX_SOURCES, 4096), bytes(MAX_SOURCES, 5));
        let mut expected = vec![0; 4096];
        for (source, c) in sources.iter().zip(&c) {
            slow_mul_add(&mut expected, *c, source);
        }
        on_each_level(|| {
            let mut target = bytes(4096, 300);
            sum(&mut target, &c, &sources);
            assert!(target == expected);
        });
    }
}
