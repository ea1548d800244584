//! Parity: XOR over blocks, in one pass over all sources.
//!
//! Plain loops over fixed-size pieces, compiled once for every vector width and dispatched to the
//! widest that the processor has. All slices of a call must have the same length, a multiple of 256
//! bytes: blocks.

use super::ARCH;
use std::ops::Deref;

/// `target = a ^ b`.
pub fn xor(target: &mut [u8], a: &[u8], b: &[u8]) {
    ARCH.dispatch(
        #[inline(always)]
        || {
            for ((t, a), b) in pieces_mut(target).zip(pieces(a)).zip(pieces(b)) {
                for i in 0..PIECE {
                    t[i] = a[i] ^ b[i];
                }
            }
        },
    )
}

/// `target ^= a`.
pub fn xor_assign(target: &mut [u8], a: &[u8]) {
    ARCH.dispatch(
        #[inline(always)]
        || {
            for (t, a) in pieces_mut(target).zip(pieces(a)) {
                for i in 0..PIECE {
                    t[i] ^= a[i];
                }
            }
        },
    )
}

/// `running ^= a; copy = running`, in one pass: for a running parity that is also written out.
pub fn xor_assign_and_copy(running: &mut [u8], a: &[u8], copy: &mut [u8]) {
    ARCH.dispatch(
        #[inline(always)]
        || {
            for ((r, a), c) in pieces_mut(running).zip(pieces(a)).zip(pieces_mut(copy)) {
                for i in 0..PIECE {
                    let byte = r[i] ^ a[i];
                    (r[i], c[i]) = (byte, byte);
                }
            }
        },
    )
}

/// `target` = XOR of all `sources`.
pub fn xor_all(target: &mut [u8], sources: &[impl Deref<Target = [u8]>]) {
    let at = |i: usize| &*sources[i];
    let count = sources.len();
    let mut done = match count {
        0 => return target.fill(0),
        1 => {
            target.copy_from_slice(at(0));
            1
        }
        2 => {
            xor(target, at(0), at(1));
            2
        }
        3 => {
            xor_3(target, at(0), at(1), at(2));
            3
        }
        _ => {
            xor_4(target, at(0), at(1), at(2), at(3));
            4
        }
    };
    while done < count {
        match count - done {
            1 => {
                xor_assign(target, at(done));
                done += 1;
            }
            2 => {
                xor_assign_2(target, at(done), at(done + 1));
                done += 2;
            }
            _ => {
                xor_assign_3(target, at(done), at(done + 1), at(done + 2));
                done += 3;
            }
        }
    }
}

/// Bytes of a loop iteration, which is unrolled over several registers.
const PIECE: usize = 256;

#[inline(always)]
fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8; PIECE]> {
    let (pieces, rest) = bytes.as_chunks::<PIECE>();
    debug_assert!(rest.is_empty());
    pieces.iter()
}

#[inline(always)]
fn pieces_mut(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8; PIECE]> {
    let (pieces, rest) = bytes.as_chunks_mut::<PIECE>();
    debug_assert!(rest.is_empty());
    pieces.iter_mut()
}

fn xor_3(target: &mut [u8], a: &[u8], b: &[u8], c: &[u8]) {
    ARCH.dispatch(
        #[inline(always)]
        || {
            for (((t, a), b), c) in pieces_mut(target).zip(pieces(a)).zip(pieces(b)).zip(pieces(c)) {
                for i in 0..PIECE {
                    t[i] = a[i] ^ b[i] ^ c[i];
                }
            }
        },
    )
}

fn xor_4(target: &mut [u8], a: &[u8], b: &[u8], c: &[u8], d: &[u8]) {
    ARCH.dispatch(
        #[inline(always)]
        || {
            for ((((t, a), b), c), d) in
                pieces_mut(target).zip(pieces(a)).zip(pieces(b)).zip(pieces(c)).zip(pieces(d))
            {
                for i in 0..PIECE {
                    t[i] = a[i] ^ b[i] ^ c[i] ^ d[i];
                }
            }
        },
    )
}

fn xor_assign_2(target: &mut [u8], a: &[u8], b: &[u8]) {
    ARCH.dispatch(
        #[inline(always)]
        || {
            for ((t, a), b) in pieces_mut(target).zip(pieces(a)).zip(pieces(b)) {
                for i in 0..PIECE {
                    t[i] ^= a[i] ^ b[i];
                }
            }
        },
    )
}

fn xor_assign_3(target: &mut [u8], a: &[u8], b: &[u8], c: &[u8]) {
    ARCH.dispatch(
        #[inline(always)]
        || {
            for (((t, a), b), c) in pieces_mut(target).zip(pieces(a)).zip(pieces(b)).zip(pieces(c)) {
                for i in 0..PIECE {
                    t[i] ^= a[i] ^ b[i] ^ c[i];
                }
            }
        },
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;

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
        for source in sources.chunks(len) {
            for (t, s) in target.iter_mut().zip(source) {
                *t ^= s;
            }
        }
        target
    }

    #[test]
    fn parity_of_any_source_count_agrees_with_oracle() {
        for count in 0..=31 {
            for len in [256, 4096, 12288] {
                let sources = bytes(count * len, count as u64 + 1);
                let mut target = bytes(len, 99);
                xor_all(&mut target, &sources.chunks(len).collect::<Vec<_>>());
                assert_eq!(target, oracle(len, &sources), "{count} sources of {len} bytes");
            }
        }
    }

    #[test]
    fn xor_running_parity_agrees_with_oracle() {
        let (a, b) = (bytes(4096, 1), bytes(4096, 2));
        let expected = oracle(4096, &[a.clone(), b.clone()].concat());
        let mut running = a.clone();
        let mut copy = vec![0; 4096];
        xor_assign_and_copy(&mut running, &b, &mut copy);
        assert_eq!((&running, &copy), (&expected, &expected));
        let mut target = vec![7; 4096];
        xor(&mut target, &a, &b);
        assert_eq!(target, expected);
        xor_assign(&mut target, &b);
        assert_eq!(target, a);
    }
}
