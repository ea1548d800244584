//! Vector instructions of the processor, chosen at run time.
//!
//! A [`Kernel`] is a loop over blocks, generic over the [`Vectors`] that multiply bytes for it. [`run`] compiles it once
//! for each set of instructions, and runs the variant of the best set that the processor has. XOR needs no function of
//! its own: the compiler makes vector instructions of loops over [`Lane`]s.

use super::gf256::{Factor, double};
use pulp::NullaryFnOnce;
use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
use {
    super::gf256::FACTORS,
    gfni::{Gfni256, Gfni512},
    pulp::{
        cast,
        x86::{V3, V4},
    },
    std::arch::x86_64::__m256i,
};

#[cfg(target_arch = "aarch64")]
use {
    pulp::{aarch64::Neon, cast},
    std::arch::aarch64::uint8x16_t,
};

/// Bytes that are multiplied at a time: an AVX-512 register, or several smaller ones.
pub type Lane = [u8; LANE];
pub const LANE: usize = 64;

/// Products of bytes in GF(2^8) by vector instructions. Only for use in [`Kernel::run`].
pub trait Vectors: Copy {
    /// Product of `factor` with each byte.
    fn product(self, factor: &Factor, lane: Lane) -> Lane;

    /// Twice each byte.
    #[inline(always)]
    fn double(self, mut lane: Lane) -> Lane {
        for byte in &mut lane {
            *byte = double(*byte);
        }
        lane
    }
}

/// A loop over blocks.
pub trait Kernel {
    /// The loop, which has registers for two sums of `N` lanes each. It has to be `#[inline(always)]`, as all that it
    /// calls, to be compiled for the vector instructions. Not a closure: large ones are not inlined. Numbers
    /// instead of iterators: with overflow checks, zipped ones are not inlined either, which can cost nine tenths of the
    /// speed.
    fn run<V: Vectors, const N: usize>(self, vectors: V);
}

/// `bytes` as turns of a loop, of `N` lanes each, without those behind the last whole one.
#[inline(always)]
pub fn turns<const N: usize>(bytes: &[u8]) -> &[[Lane; N]] {
    bytes.as_chunks().0.as_chunks().0
}

/// [`turns`] of a target.
#[inline(always)]
pub fn turns_mut<const N: usize>(bytes: &mut [u8]) -> &mut [[Lane; N]] {
    bytes.as_chunks_mut().0.as_chunks_mut().0
}

/// `sum ^= lane`.
#[inline(always)]
pub fn add(sum: &mut Lane, lane: &Lane) {
    for i in 0..LANE {
        sum[i] ^= lane[i];
    }
}

/// Runs `kernel` with the best instructions of this processor.
pub fn run(kernel: impl Kernel) {
    match level() {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Gfni512(simd) => simd.vectorize(Call::<_, _, 4>(kernel, simd)),
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512(simd) => simd.vectorize(Call::<_, _, 4>(kernel, simd)),
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Gfni256(simd) => simd.vectorize(Call::<_, _, 2>(kernel, simd)),
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2(simd) => simd.vectorize(Call::<_, _, 2>(kernel, simd)),
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon(simd) => simd.vectorize(Call::<_, _, 2>(kernel, simd)),
        SimdLevel::Portable => kernel.run::<_, 1>(Portable),
    }
}

/// A [`Kernel`] with its arguments.
struct Call<K, V, const N: usize>(K, V);

impl<K: Kernel, V: Vectors, const N: usize> NullaryFnOnce for Call<K, V, N> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.run::<V, N>(self.1);
    }
}

/// A set of vector instructions that the processor has.
#[derive(Clone, Copy, Debug)]
enum SimdLevel {
    #[cfg(target_arch = "x86_64")]
    Gfni512(Gfni512),
    #[cfg(target_arch = "x86_64")]
    Avx512(V4),
    #[cfg(target_arch = "x86_64")]
    Gfni256(Gfni256),
    #[cfg(target_arch = "x86_64")]
    Avx2(V3),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// Those that every processor of the architecture has.
    Portable,
}

/// All levels of this processor, the best one first.
fn levels() -> impl Iterator<Item = SimdLevel> {
    #[cfg(target_arch = "x86_64")]
    let special = [
        Gfni512::try_new().map(SimdLevel::Gfni512),
        V4::try_new().map(SimdLevel::Avx512),
        Gfni256::try_new().map(SimdLevel::Gfni256),
        V3::try_new().map(SimdLevel::Avx2),
    ];
    #[cfg(target_arch = "aarch64")]
    let special = [Neon::try_new().map(SimdLevel::Neon)];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let special: [Option<SimdLevel>; 0] = [];
    special.into_iter().flatten().chain([SimdLevel::Portable])
}

/// The best level of this processor, detected at first use.
fn level() -> SimdLevel {
    static BEST: LazyLock<SimdLevel> = LazyLock::new(|| levels().next().unwrap_or(SimdLevel::Portable));
    #[cfg(test)]
    if let Some(level) = tests::FORCED.get() {
        return level;
    }
    *BEST
}

/// Name of the vector instructions that are used on this processor.
pub fn instructions() -> &'static str {
    match level() {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Gfni512(_) => "AVX-512 and GFNI",
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512(_) => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Gfni256(_) => "AVX2 and GFNI",
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2(_) => "AVX2",
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon(_) => "NEON",
        SimdLevel::Portable => "portable",
    }
}

#[cfg(target_arch = "x86_64")]
impl Vectors for Gfni512 {
    #[inline(always)]
    fn product(self, factor: &Factor, lane: Lane) -> Lane {
        self.times(factor.matrix, lane)
    }

    #[inline(always)]
    fn double(self, lane: Lane) -> Lane {
        self.product(&FACTORS[2], lane)
    }
}

#[cfg(target_arch = "x86_64")]
impl Vectors for Gfni256 {
    #[inline(always)]
    fn product(self, factor: &Factor, lane: Lane) -> Lane {
        let [first, second]: [[u8; 32]; 2] = cast(lane);
        cast([self.times(factor.matrix, first), self.times(factor.matrix, second)])
    }

    #[inline(always)]
    fn double(self, lane: Lane) -> Lane {
        self.product(&FACTORS[2], lane)
    }
}

/// By table look-up.
#[cfg(target_arch = "x86_64")]
impl Vectors for V4 {
    #[inline(always)]
    fn product(self, factor: &Factor, lane: Lane) -> Lane {
        let V4 { avx512f, avx512bw, .. } = self;
        let (table_low, table_high) = (
            avx512f._mm512_broadcast_i32x4(cast(factor.low)),
            avx512f._mm512_broadcast_i32x4(cast(factor.high)),
        );
        let (bytes, mask) = (cast(lane), avx512f._mm512_set1_epi8(15));
        let high = avx512bw._mm512_srli_epi16::<4>(bytes);
        cast(avx512f._mm512_xor_si512(
            avx512bw._mm512_shuffle_epi8(table_low, avx512f._mm512_and_si512(bytes, mask)),
            avx512bw._mm512_shuffle_epi8(table_high, avx512f._mm512_and_si512(high, mask)),
        ))
    }
}

/// By table look-up.
#[cfg(target_arch = "x86_64")]
impl Vectors for V3 {
    #[inline(always)]
    fn product(self, factor: &Factor, lane: Lane) -> Lane {
        let V3 { avx, avx2, .. } = self;
        let table_low = avx2._mm256_broadcastsi128_si256(cast(factor.low));
        let table_high = avx2._mm256_broadcastsi128_si256(cast(factor.high));
        let mask = avx._mm256_set1_epi8(15);
        let mut halves: [__m256i; 2] = cast(lane);
        // Not `map`, which is not inlined.
        for half in &mut halves {
            let high = avx2._mm256_srli_epi16::<4>(*half);
            *half = avx2._mm256_xor_si256(
                avx2._mm256_shuffle_epi8(table_low, avx2._mm256_and_si256(*half, mask)),
                avx2._mm256_shuffle_epi8(table_high, avx2._mm256_and_si256(high, mask)),
            );
        }
        cast(halves)
    }
}

/// By table look-up.
#[cfg(target_arch = "aarch64")]
impl Vectors for Neon {
    #[inline(always)]
    fn product(self, factor: &Factor, lane: Lane) -> Lane {
        let neon = self.neon;
        let (table_low, table_high) = (cast(factor.low), cast(factor.high));
        let mask = neon.vdupq_n_u8(15);
        let mut quarters: [uint8x16_t; 4] = cast(lane);
        for quarter in &mut quarters {
            *quarter = neon.veorq_u8(
                neon.vqtbl1q_u8(table_low, neon.vandq_u8(*quarter, mask)),
                neon.vqtbl1q_u8(table_high, neon.vshrq_n_u8::<4>(*quarter)),
            );
        }
        cast(quarters)
    }
}

/// Plain loops: adds the products with the bits that are set.
#[derive(Clone, Copy)]
struct Portable;

impl Vectors for Portable {
    #[inline(always)]
    fn product(self, factor: &Factor, lane: Lane) -> Lane {
        let (bits, mut product) = (factor.bits(), [0; LANE]);
        for i in 0..LANE {
            for (bit, times) in bits.iter().enumerate() {
                // The bit as a mask, by way of the sign.
                product[i] ^= ((lane[i] << (7 - bit)) as i8 >> 7) as u8 & times;
            }
        }
        product
    }
}

#[cfg(test)]
pub mod tests {
    use super::{SimdLevel, level, levels};
    use std::cell::Cell;

    thread_local! {
        /// The level that [`super::run`] uses on this thread instead of the best one.
        pub(super) static FORCED: Cell<Option<SimdLevel>> = const { Cell::new(None) };
    }

    /// Runs `test` once with each level of this processor.
    pub fn on_each_level(test: impl Fn()) {
        for level in levels() {
            FORCED.set(Some(level));
            test();
        }
        FORCED.set(None);
    }

    #[test]
    fn simd_level_is_the_best_one_unless_forced() {
        let name = |level: SimdLevel| format!("{level:?}");
        let all: Vec<String> = levels().map(name).collect();
        assert_eq!((name(level()), all.last().map(String::as_str)), (all[0].clone(), Some("Portable")));
        let used = std::cell::RefCell::new(Vec::new());
        on_each_level(|| used.borrow_mut().push(name(level())));
        assert_eq!(used.into_inner(), all);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(all[0].starts_with("Gfni512"), gfni::Gfni512::is_available());
    }
}
