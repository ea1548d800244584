//! The field GF(2^8), in which the second parity is computed.
//!
//! A byte is a polynomial over GF(2), bit `i` the coefficient of `x^i`. Sums are XOR; products are taken
//! modulo `x^8 + x^4 + x^3 + x^2 + 1` (0x11d), for which `x`, the number 2, generates all 255 bytes but 0:
//! field and generator of the RAID-6 of Linux (H. P. Anvin, 'The mathematics of RAID-6'). So the powers
//! 2^0 to 2^254 differ, which is all that two parities need: from `a + b` and `2^i a + 2^j b` with `i != j`
//! both `a` and `b` follow.
//!
//! These functions handle single bytes, for decisions and tables; for blocks see [`super::pq`].

/// The polynomial without its `x^8`: added when doubling overflows a byte.
pub const POLYNOMIAL: u8 = 0x1d;

/// `2 a`.
#[inline(always)]
pub const fn double(a: u8) -> u8 {
    // The sign bit as a mask: it compiles to vector compare instructions.
    (a << 1) ^ (((a as i8) >> 7) as u8 & POLYNOMIAL)
}

/// `2^exponent`.
pub const fn pow2(exponent: usize) -> u8 {
    POWERS[exponent % 255]
}

/// `a b`.
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    pow2(LOGARITHMS[a as usize] as usize + LOGARITHMS[b as usize] as usize)
}

/// `a / b`; `None` for `b = 0`.
pub const fn div(a: u8, b: u8) -> Option<u8> {
    match (a, b) {
        (_, 0) => None,
        (0, _) => Some(0),
        _ => Some(pow2(255 + LOGARITHMS[a as usize] as usize - LOGARITHMS[b as usize] as usize)),
    }
}

/// 2^0 to 2^254.
const POWERS: [u8; 255] = {
    let mut powers = [1; 255];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = double(powers[i - 1]);
        i += 1;
    }
    powers
};

/// Logarithms to base 2 of all bytes; 0 has none, and its entry is not used.
const LOGARITHMS: [u8; 256] = {
    let mut logarithms = [0; 256];
    let mut i = 0;
    while i < POWERS.len() {
        logarithms[POWERS[i] as usize] = i as u8;
        i += 1;
    }
    logarithms
};

/// A byte in the forms in which vector instructions multiply by it.
#[derive(Clone, Copy)]
pub struct Factor {
    /// Products with 0x00 to 0x0f. The product with any byte is the sum of an entry of this table and one of `high`.
    pub low: [u8; 16],
    /// Products with 0x00 to 0xf0, in steps of 0x10.
    pub high: [u8; 16],
    /// Matrix of the multiplication, over the bits of a byte.
    pub matrix: u64,
}

/// [`Factor`] by byte.
pub static FACTORS: [Factor; 256] = {
    let mut factors = [Factor { low: [0; 16], high: [0; 16], matrix: 0 }; 256];
    let mut c = 0;
    while c < factors.len() {
        let factor = &mut factors[c];
        let mut half = 0;
        while half < 16 {
            factor.low[half] = mul(c as u8, half as u8);
            factor.high[half] = mul(c as u8, (half as u8) << 4);
            half += 1;
        }
        factor.matrix = gfni::matrix(factor.bits());
        c += 1;
    }
    factors
};

impl Factor {
    /// Products with 2^0 to 2^7.
    pub const fn bits(&self) -> [u8; 8] {
        let Factor { low, high, .. } = self;
        [low[1], low[2], low[4], low[8], high[1], high[2], high[4], high[8]]
    }

    /// Product with `byte`.
    pub const fn times(&self, byte: u8) -> u8 {
        self.low[byte as usize & 15] ^ self.high[byte as usize >> 4]
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// `a b` as it is taught: shift, add, take the remainder.
    pub fn slow_mul(a: u8, b: u8) -> u8 {
        let mut product = (0..8).filter(|i| b >> i & 1 == 1).fold(0_u32, |sum, i| sum ^ (a as u32) << i);
        for i in (8..15).rev() {
            if product >> i & 1 == 1 {
                product ^= 0x11d << (i - 8);
            }
        }
        product as u8
    }

    fn pairs() -> impl Iterator<Item = (u8, u8)> {
        (0..=255).flat_map(|a| (0..=255).map(move |b| (a, b)))
    }

    #[test]
    fn gf256_products_of_all_pairs_agree_with_oracle() {
        for (a, b) in pairs() {
            assert_eq!(mul(a, b), slow_mul(a, b), "{a} {b}");
            assert_eq!(FACTORS[a as usize].times(b), slow_mul(a, b), "{a} {b}");
        }
        for a in 0..=255 {
            assert_eq!(double(a), slow_mul(a, 2), "{a}");
        }
    }

    #[test]
    fn gf256_arithmetic_satisfies_field_axioms() {
        for (a, b) in pairs() {
            assert_eq!(mul(a, b), mul(b, a));
            match div(a, b) {
                Some(quotient) => assert_eq!(mul(quotient, b), a, "{a} {b}"),
                None => assert_eq!(b, 0),
            }
            for c in [0, 1, 2, 3, 29, 128, 142, 200, 255] {
                assert_eq!(mul(mul(a, b), c), mul(a, mul(b, c)), "{a} {b} {c}");
                assert_eq!(mul(a ^ b, c), mul(a, c) ^ mul(b, c), "{a} {b} {c}");
            }
        }
        assert!((0..=255).all(|a| mul(a, 1) == a && div(a, 0).is_none()));
    }

    #[test]
    fn gf256_powers_of_two_are_all_nonzero_bytes() {
        let mut seen = [false; 256];
        let mut power = 1;
        for exponent in 0..255 {
            assert_eq!(pow2(exponent), power);
            assert!(!std::mem::replace(&mut seen[power as usize], true));
            power = slow_mul(power, 2);
        }
        assert!(!seen[0] && power == 1 && pow2(255) == 1);
    }
}
