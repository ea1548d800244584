//! Terms of a client: rate limits, floors, latency class.

use crate::qos::limit::Rates;

impl Rates {
    /// Whether these rates, as floors, do not exceed `limits`.
    fn is_within(&self, limits: &Rates) -> bool {
        let fits = |floor: u32, limit: u32| limit == 0 || floor <= limit;
        // Each request has a block at least.
        let blocks = self.blocks.max(self.requests);
        fits(self.requests, limits.requests) && fits(blocks, limits.blocks)
    }
}

/// Quality of service of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qos {
    /// Upper limits.
    pub limits: Rates,
    /// Floors: guaranteed rates, while there is demand for them.
    pub floors: Rates,
    /// Latency target in microseconds, which 999 of 1,000 requests are to meet; 0 for none.
    pub latency_us: u32,
}

impl Qos {
    /// Whether it contains a guarantee for which other clients may be throttled.
    pub fn promises(&self) -> bool {
        !self.floors.is_none() || self.latency_us > 0
    }

    /// Whether it is consistent: no floor is above its limit.
    pub fn is_possible(&self) -> bool {
        self.floors.is_within(&self.limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qos_rejects_floor_above_limit() {
        let of = |floors: (u32, u32), limits: (u32, u32)| {
            let rates = |(requests, blocks)| Rates { requests, blocks };
            Qos { limits: rates(limits), floors: rates(floors), latency_us: 0 }.is_possible()
        };
        assert!(of((9, 9), (0, 0)) && of((9, 9), (9, 9)) && of((0, 0), (1, 1)));
        assert!(!of((10, 0), (9, 0)) && !of((0, 10), (0, 9)));
        // Each request is a block at least.
        assert!(!of((10, 0), (0, 9)) && of((10, 0), (0, 10)) && of((0, 10), (1, 0)));
    }
}
