//! RAID-6 parities over blocks: P, the XOR of the sources, and Q, the sum of `2^i` times source `i` over
//! [`super::gf256`].
//!
//! Whole stripes need no general multiplication: Q is `s0 + 2 (s1 + 2 (s2 + ...))` (Horner), so one pass from the last
//! source down doubles a sum that stays in registers. For single sources and arbitrary coefficients, a product is the
//! sum of one entry each of two tables of 16 ([`ProductTables`]), which AVX2 looks up for 32 bytes at a time. Other
//! processors add up the products with single bits in plain loops, which is slower.
//!
//! As in [`super::xor`], all slices of a call must have the same length, a multiple of 256 bytes.

use super::{
    ARCH,
    gf256::{HALVES, ProductTables, double, pow2},
    xor,
};
use pulp::{Arch, NullaryFnOnce};
use std::{ops::Deref, slice::Iter};

#[cfg(target_arch = "x86_64")]
use pulp::{cast, x86::V3};

/// Maximum number of sources of [`pq_all`].
pub const MAX_SOURCES: usize = 32;

/// `p` = XOR of all `sources`, `q` = sum of `2^i` times source `i`.
pub fn pq_all(p: &mut [u8], q: &mut [u8], sources: &[impl Deref<Target = [u8]>]) {
    assert!(sources.len() <= MAX_SOURCES);
    assert!(p.len() == q.len() && sources.iter().all(|source| source.len() == p.len()));
    let mut slices = [&[][..]; MAX_SOURCES];
    for (slice, source) in slices.iter_mut().zip(sources) {
        *slice = source.as_chunks().0;
    }
    let Some((last, others)) = slices[..sources.len()].split_last() else {
        p.fill(0);
        return q.fill(0);
    };
    ARCH.dispatch(PqSum { p, q, last, others });
}

/// Bytes of each sum that stay in registers while all sources are added.
const SUM: usize = 128;

/// Arguments of the loop of [`pq_all`]. It is not a closure: one of this size is not inlined into the vectorized
/// variants, but compiled once, without vector instructions.
struct PqSum<'a> {
    p: &'a mut [u8],
    q: &'a mut [u8],
    last: &'a [[u8; SUM]],
    others: &'a [&'a [[u8; SUM]]],
}

impl NullaryFnOnce for PqSum<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let targets = self.p.as_chunks_mut().0.iter_mut().zip(self.q.as_chunks_mut().0);
        for (at, (p, q)) in targets.enumerate() {
            let (mut p_sum, mut q_sum) = (self.last[at], self.last[at]);
            for source in self.others.iter().rev() {
                let source = &source[at];
                for i in 0..SUM {
                    p_sum[i] ^= source[i];
                    q_sum[i] = double(q_sum[i]) ^ source[i];
                }
            }
            (*p, *q) = (p_sum, q_sum);
        }
    }
}

/// `p ^= a; q ^= 2^index a`: adds one source to both parities.
pub fn pq_assign(p: &mut [u8], q: &mut [u8], index: usize, a: &[u8]) {
    assert!(p.len() == a.len() && q.len() == a.len());
    let targets = p.chunks_mut(SEGMENT).zip(q.chunks_mut(SEGMENT));
    for ((p, q), a) in targets.zip(a.chunks(SEGMENT)) {
        xor::xor_assign(p, a);
        mul_add(q, pow2(index), a);
    }
}

/// [`pq_assign`], with copies of both results: for running parities that are also written out.
pub fn pq_assign_and_copy(
    (p, q): (&mut [u8], &mut [u8]),
    index: usize,
    a: &[u8],
    (p_copy, q_copy): (&mut [u8], &mut [u8]),
) {
    assert!(p.len() == a.len() && q.len() == a.len());
    assert!(p_copy.len() == a.len() && q_copy.len() == a.len());
    let targets = p.chunks_mut(SEGMENT).zip(q.chunks_mut(SEGMENT));
    let copies = p_copy.chunks_mut(SEGMENT).zip(q_copy.chunks_mut(SEGMENT));
    for (((p, q), (p_copy, q_copy)), a) in targets.zip(copies).zip(a.chunks(SEGMENT)) {
        xor::xor_assign_and_copy(p, a, p_copy);
        mul_add_and_copy(q, pow2(index), a, q_copy);
    }
}

/// Bytes that all passes process before they continue, so that these stay in the first-level cache. A single combined
/// pass is slower.
pub const SEGMENT: usize = 4096;

/// `target = c a`.
pub fn mul(target: &mut [u8], c: u8, a: &[u8]) {
    assert_eq!(target.len(), a.len());
    products(
        c,
        a,
        pieces_mut(target),
        #[inline(always)]
        |target, product| *target = *product,
    )
}

/// `target ^= c a`.
pub fn mul_add(target: &mut [u8], c: u8, a: &[u8]) {
    assert_eq!(target.len(), a.len());
    products(
        c,
        a,
        pieces_mut(target),
        #[inline(always)]
        |target, product| {
            for i in 0..PIECE {
                target[i] ^= product[i];
            }
        },
    )
}

/// `running ^= c a; copy = running`.
pub fn mul_add_and_copy(running: &mut [u8], c: u8, a: &[u8], copy: &mut [u8]) {
    assert!(running.len() == a.len() && copy.len() == a.len());
    products(
        c,
        a,
        pieces_mut(running).zip(pieces_mut(copy)),
        #[inline(always)]
        |(running, copy), product| {
            for i in 0..PIECE {
                let byte = running[i] ^ product[i];
                (running[i], copy[i]) = (byte, byte);
            }
        },
    )
}

/// Bytes that are multiplied at a time: an AVX2 register.
const PIECE: usize = 32;
type PqLane = [u8; PIECE];

fn pieces_mut(bytes: &mut [u8]) -> impl Iterator<Item = &mut PqLane> {
    bytes.as_chunks_mut().0.iter_mut()
}

/// Calls `store` with the target of each piece of `source`, and the product of the piece with `c`.
#[inline(always)]
fn products<T>(c: u8, source: &[u8], targets: impl Iterator<Item = T>, store: impl FnMut(T, &PqLane)) {
    let halves = &HALVES[c as usize];
    let source = source.as_chunks().0.iter();
    match *ARCH {
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => simd.vectorize(ByTable { simd, halves, source, targets, store }),
        arch => by_bits(arch, halves, source, targets, store),
    }
}

/// Multiplication by table look-up with AVX2.
#[cfg(target_arch = "x86_64")]
struct ByTable<'a, I, F> {
    simd: V3,
    halves: &'a ProductTables,
    source: Iter<'a, PqLane>,
    targets: I,
    store: F,
}

#[cfg(target_arch = "x86_64")]
impl<I: Iterator, F: FnMut(I::Item, &PqLane)> NullaryFnOnce for ByTable<'_, I, F> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let V3 { avx, avx2, .. } = self.simd;
        let low = avx2._mm256_broadcastsi128_si256(cast(self.halves.low));
        let high = avx2._mm256_broadcastsi128_si256(cast(self.halves.high));
        let half = avx._mm256_set1_epi8(15);
        for (piece, target) in self.source.zip(self.targets) {
            let a = cast(*piece);
            let a_high = avx2._mm256_srli_epi16::<4>(a);
            let low = avx2._mm256_shuffle_epi8(low, avx2._mm256_and_si256(a, half));
            let high = avx2._mm256_shuffle_epi8(high, avx2._mm256_and_si256(a_high, half));
            (self.store)(target, &cast(avx2._mm256_xor_si256(low, high)));
        }
    }
}

/// Multiplication without AVX2: adds the products with the bits that are set.
fn by_bits<T>(
    arch: Arch,
    ProductTables { low, high }: &ProductTables,
    source: Iter<'_, PqLane>,
    targets: impl Iterator<Item = T>,
    mut store: impl FnMut(T, &PqLane),
) {
    // Products of `c` with 2^7 down to 2^0.
    let bits = [high[8], high[4], high[2], high[1], low[8], low[4], low[2], low[1]];
    arch.dispatch(
        #[inline(always)]
        || {
            for (piece, target) in source.zip(targets) {
                let mut product = [0; PIECE];
                for i in 0..PIECE {
                    for (shift, c) in bits.iter().enumerate() {
                        // The sign bit as a mask.
                        product[i] ^= ((piece[i] << shift) as i8 >> 7) as u8 & c;
                    }
                }
                store(target, &product);
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::{gf256::tests::slow_mul, xor::tests::bytes};

    const LENGTHS: [usize; 4] = [256, 768, 4096, 12288];

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
                let (mut p, mut q) = (bytes(len, 98), bytes(len, 99));
                pq_all(&mut p, &mut q, &sources);
                assert!((&p, &q) == (&slow_pq(len, &sources).0, &slow_pq(len, &sources).1), "{count} {len}");
                xor::xor_all(&mut q, &sources);
                assert!(p == q, "{count} {len}");
            }
        }
    }

    #[test]
    fn pq_running_parity_agrees_with_full_parity() {
        for len in LENGTHS {
            let sources = sources(30, len);
            let (mut p, mut q, mut q_alone) = (vec![0; len], vec![0; len], vec![0; len]);
            let (mut p_copy, mut q_copy) = (bytes(len, 98), bytes(len, 99));
            for (index, source) in sources.iter().enumerate() {
                let expected = slow_pq(len, &sources[..=index]);
                if index % 2 == 0 {
                    pq_assign(&mut p, &mut q, index, source);
                    mul_add(&mut q_alone, pow2(index), source);
                } else {
                    pq_assign_and_copy((&mut p, &mut q), index, source, (&mut p_copy, &mut q_copy));
                    assert!((&p_copy, &q_copy) == (&p, &q), "{index} {len}");
                    mul_add_and_copy(&mut q_alone, pow2(index), source, &mut q_copy);
                    assert!(q_copy == q_alone, "{index} {len}");
                }
                assert!((&p, &q, &q_alone) == (&expected.0, &expected.1, &expected.1), "{index} {len}");
            }
        }
    }

    /// With the vector instructions of this processor, and without.
    #[test]
    fn pq_products_by_any_byte_agree_with_oracle() {
        for c in 0..=255 {
            let (a, before) = (bytes(768, c as u64 + 1), bytes(768, 300));
            let mut expected = vec![0; a.len()];
            slow_mul_add(&mut expected, c, &a);
            let mut target = before.clone();
            mul(&mut target, c, &a);
            assert!(target == expected, "{c}");
            for arch in [Arch::Scalar, *ARCH] {
                target.fill(7);
                let source = a.as_chunks().0.iter();
                by_bits(arch, &HALVES[c as usize], source, pieces_mut(&mut target), |target, product| {
                    *target = *product;
                });
                assert!(target == expected, "{c}");
            }
            let mut target = before.clone();
            mul_add(&mut target, c, &a);
            slow_mul_add(&mut expected, 1, &before);
            assert!(target == expected, "{c}");
        }
    }
}
