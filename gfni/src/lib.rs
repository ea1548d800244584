//! GF(2) matrices times bytes, by the instruction `gf2p8affineqb` of x86.
//!
//! A linear function of the bits of a byte, such as the product with a constant in GF(2^8), is a [`matrix`] of 8 × 8
//! bits. The instruction applies it to all bytes of a register at once. A value of [`Gfni512`] or [`Gfni256`] proves that
//! the processor has the instruction: only `try_new` makes one, after it has asked the processor.
//!
//! ```
//! # #[cfg(target_arch = "x86_64")]
//! if let Some(simd) = gfni::Gfni512::try_new() {
//!     let reverse = gfni::matrix([128, 64, 32, 16, 8, 4, 2, 1]);
//!     assert_eq!(simd.times(reverse, [0b1100_0001; 64]), [0b1000_0011; 64]);
//! }
//! ```
#![deny(unsafe_code)]
#![warn(missing_docs)]

/// Matrix of the linear function that maps bit `i` to `images[i]`.
pub const fn matrix(images: [u8; 8]) -> u64 {
    let mut matrix = 0;
    let mut at = 0;
    while at < 64 {
        // Row `at / 8` from the top gives the bits of bit `7 - at / 8` of the result.
        let (row, column) = (at / 8, at % 8);
        matrix |= ((images[column] >> (7 - row)) as u64 & 1) << at;
        at += 1;
    }
    matrix
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Gfni256, Gfni512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use pulp::{cast, simd_type};
    use std::arch::x86_64::{__m256i, __m512i, _mm256_gf2p8affine_epi64_epi8, _mm512_gf2p8affine_epi64_epi8};

    simd_type!({
        /// Proof that the processor has the instruction for 256 bits.
        pub struct Gfni256 {
            avx: f!("avx"),
            avx2: f!("avx2"),
            gfni: f!("gfni"),
        }

        /// Proof that the processor has the instruction for 512 bits.
        pub struct Gfni512 {
            avx: f!("avx"),
            avx2: f!("avx2"),
            avx512f: f!("avx512f"),
            avx512bw: f!("avx512bw"),
            avx512vl: f!("avx512vl"),
            gfni: f!("gfni"),
        }
    });

    impl Gfni256 {
        /// `matrix` times each byte. It is one instruction inside [`Gfni256::vectorize`].
        #[inline(always)]
        pub fn times(self, matrix: u64, bytes: [u8; 32]) -> [u8; 32] {
            let matrix: __m256i = self.avx._mm256_set1_epi64x(matrix as i64);
            // SAFETY: the instruction needs AVX and GFNI, which `self` proves; it has no other condition.
            #[expect(unsafe_code)]
            cast(unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(cast(bytes), matrix) })
        }
    }

    impl Gfni512 {
        /// `matrix` times each byte. It is one instruction inside [`Gfni512::vectorize`].
        #[inline(always)]
        pub fn times(self, matrix: u64, bytes: [u8; 64]) -> [u8; 64] {
            let matrix: __m512i = self.avx512f._mm512_set1_epi64(matrix as i64);
            // SAFETY: the instruction needs AVX-512 and GFNI, which `self` proves; it has no other condition.
            #[expect(unsafe_code)]
            cast(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(cast(bytes), matrix) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matrix;

    /// The function that maps bit `i` to `images[i]`, one bit at a time.
    fn image(images: [u8; 8], byte: u8) -> u8 {
        (0..8).filter(|bit| byte >> bit & 1 == 1).fold(0, |sum, bit| sum ^ images[bit])
    }

    /// Different images, of which one function is invertible, one constant, and one a permutation of the bits.
    const FUNCTIONS: [[u8; 8]; 4] = [
        [0x1d, 0x3a, 0x74, 0xe8, 0xcd, 0x87, 0x13, 0x26],
        [0; 8],
        [128, 64, 32, 16, 8, 4, 2, 1],
        [1, 3, 7, 15, 31, 63, 127, 255],
    ];

    #[test]
    fn gfni_matrix_has_row_of_high_bit_first() {
        assert_eq!(matrix([1, 2, 4, 8, 16, 32, 64, 128]), 0x0102_0408_1020_4080);
        assert_eq!(matrix([0x80, 0, 0, 0, 0, 0, 0, 0]), 1);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn gfni_products_of_all_bytes_agree_with_oracle() {
        for images in FUNCTIONS {
            for first in (0..=255).step_by(32) {
                if let Some(simd) = super::Gfni256::try_new() {
                    let bytes: [u8; 32] = std::array::from_fn(|i| (first + i) as u8);
                    assert_eq!(simd.times(matrix(images), bytes), bytes.map(|byte| image(images, byte)));
                }
                if let Some(simd) = super::Gfni512::try_new() {
                    let bytes: [u8; 64] = std::array::from_fn(|i| (first + i) as u8);
                    assert_eq!(simd.times(matrix(images), bytes), bytes.map(|byte| image(images, byte)));
                }
            }
        }
    }
}
