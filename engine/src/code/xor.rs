//! Parity: XOR over blocks, in one pass over all sources.
//!
//! All slices of a call must have the same length. Whole blocks are fastest: bytes behind the last turn of a loop are
//! added one at a time.

use super::simd::{self, Kernel, Vectors, add, turns, turns_mut};
use std::ops::Deref;

/// Maximum number of sources of a sum.
pub const MAX_SOURCES: usize = 33;

/// `target ^= a`.
pub fn xor_assign(target: &mut [u8], a: &[u8]) {
    assert_eq!(target.len(), a.len());
    simd::run(XorAssign { target, a });
}

struct XorAssign<'a> {
    target: &'a mut [u8],
    a: &'a [u8],
}

impl Kernel for XorAssign<'_> {
    #[inline(always)]
    fn run<V: Vectors, const N: usize>(self, _: V) {
        for (target, a) in self.target.iter_mut().zip(self.a) {
            *target ^= a;
        }
    }
}

/// `running ^= a; copy = running`, in one pass: for a running parity that is also written out.
pub fn xor_assign_and_copy(running: &mut [u8], a: &[u8], copy: &mut [u8]) {
    assert!(running.len() == a.len() && copy.len() == a.len());
    simd::run(XorAssignAndCopy { running, a, copy });
}

struct XorAssignAndCopy<'a> {
    running: &'a mut [u8],
    a: &'a [u8],
    copy: &'a mut [u8],
}

impl Kernel for XorAssignAndCopy<'_> {
    #[inline(always)]
    fn run<V: Vectors, const N: usize>(self, _: V) {
        for ((running, a), copy) in self.running.iter_mut().zip(self.a).zip(self.copy) {
            *running ^= a;
            *copy = *running;
        }
    }
}

/// `target` = XOR of all `sources`.
pub fn xor_all(target: &mut [u8], sources: &[impl Deref<Target = [u8]>]) {
    assert!(sources.len() <= MAX_SOURCES);
    assert!(sources.iter().all(|source| source.len() == target.len()));
    match sources {
        [] => target.fill(0),
        [only] => target.copy_from_slice(only),
        _ => simd::run(XorSum { target, sources }),
    }
}

struct XorSum<'a, S> {
    target: &'a mut [u8],
    sources: &'a [S],
}

impl<S: Deref<Target = [u8]>> Kernel for XorSum<'_, S> {
    #[inline(always)]
    fn run<V: Vectors, const N: usize>(self, _: V) {
        // Four times `N` lanes a turn: the cost of a turn for each source is spread over more of them.
        let mut all = [&[][..]; MAX_SOURCES];
        for (all, source) in all.iter_mut().zip(self.sources) {
            *all = turns::<N>(source).as_chunks::<4>().0;
        }
        let Some((first, others)) = all[..self.sources.len()].split_first() else { return };
        let targets = turns_mut::<N>(self.target).as_chunks_mut::<4>().0;
        for at in 0..targets.len() {
            let mut sum = first[at];
            for source in others {
                let source = &source[at];
                for i in 0..4 {
                    for lane in 0..N {
                        add(&mut sum[i][lane], &source[i][lane]);
                    }
                }
            }
            targets[at] = sum;
        }
        for at in size_of_val(targets)..self.target.len() {
            self.target[at] = self.sources.iter().fold(0, |sum, source| sum ^ source[at]);
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::code::simd::tests::on_each_level;
    use std::ops::Range;

    pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x as u8
            })
            .collect()
    }

    /// One byte at a time, one source at a time.
    fn oracle(len: usize, sources: &[u8]) -> Vec<u8> {
        let mut target = vec![0; len];
        for source in sources.chunks(len.max(1)) {
            for (t, s) in target.iter_mut().zip(source) {
                *t ^= s;
            }
        }
        target
    }

    /// Lengths around those of a turn with each level, and of blocks.
    pub const LENGTHS: [usize; 14] = [0, 1, 63, 64, 255, 256, 257, 768, 1023, 1024, 1025, 4096, 4607, 12288];

    /// Offsets of slices from an aligned address.
    pub const OFFSETS: [usize; 4] = [0, 1, 33, 63];

    #[test]
    fn parity_of_any_source_count_agrees_with_oracle() {
        on_each_level(|| {
            for count in 0..=MAX_SOURCES {
                for len in LENGTHS {
                    let sources = bytes(count * len, count as u64 + 1);
                    let chunks: Vec<&[u8]> = (0..count).map(|i| &sources[i * len..][..len]).collect();
                    let mut target = bytes(len, 99);
                    xor_all(&mut target, &chunks);
                    assert!(target == oracle(len, &sources), "{count} sources of {len} bytes");
                }
            }
        });
    }

    #[test]
    fn parity_of_unaligned_slices_agrees_with_oracle() {
        on_each_level(|| {
            for (len, offset) in LENGTHS.into_iter().flat_map(|len| OFFSETS.map(|offset| (len, offset))) {
                let whole = [1, 2, 3, 4].map(|seed| bytes(len + 130, seed));
                let [a, b, c, before] = [0, 1, 2, 3].map(|i| &whole[i][offset + i..][..len]);
                let (ab, abc) = (oracle(len, &[a, b].concat()), oracle(len, &[a, b, c].concat()));
                // Bytes around the targets stay as they are.
                let (mut target, mut copy) = (whole[3].clone(), whole[3].clone());
                let (targets, copies) = (offset + 3..offset + 3 + len, offset + 5..offset + 5 + len);
                let expected = |range: &Range<usize>, bytes: &[u8]| {
                    let mut expected = whole[3].clone();
                    expected[range.clone()].copy_from_slice(bytes);
                    expected
                };
                xor_all(&mut target[targets.clone()], &[a, b, c]);
                assert!(target == expected(&targets, &abc), "{len} {offset}");
                xor_assign(&mut target[targets.clone()], c);
                assert!(target == expected(&targets, &ab), "{len} {offset}");
                xor_assign_and_copy(&mut target[targets.clone()], c, &mut copy[copies.clone()]);
                assert!(target == expected(&targets, &abc), "{len} {offset}");
                assert!(copy == expected(&copies, &abc), "{len} {offset}");
                xor_all(&mut target[targets.clone()], &[before; 3]);
                assert!(target == whole[3], "{len} {offset}");
            }
        });
    }
}
