//! What a namespace may be asked for, and what it gets for certain.

/// Requests and blocks a second. Zero is no number at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests a second.
    pub requests: u32,
    /// Blocks a second.
    pub blocks: u32,
}

impl Rates {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Rates::default()
    }

    /// Whether who keeps to `limits` can reach this.
    fn is_within(&self, limits: &Rates) -> bool {
        let fits = |floor: u32, limit: u32| limit == 0 || floor <= limit;
        // Each request has a block at least.
        let blocks = self.blocks.max(self.requests);
        fits(self.requests, limits.requests) && fits(blocks, limits.blocks)
    }
}

/// Quality of service of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qos {
    /// What it may be asked for at most.
    pub limits: Rates,
    /// What it gets at least while it is asked for that.
    pub floors: Rates,
    /// The class of latency: of a thousand requests 999 are to take no longer, in microseconds. Zero for any time.
    pub latency_us: u32,
}

impl Qos {
    /// Whether others may have to be held back for it.
    pub fn promises(&self) -> bool {
        !self.floors.is_none() || self.latency_us > 0
    }

    /// Whether there can be such a one: what it gets for certain is no more than it may be asked for.
    pub fn is_possible(&self) -> bool {
        self.floors.is_within(&self.limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_no_higher_than_a_limit() {
        let of = |floors: (u32, u32), limits: (u32, u32)| {
            let rates = |(requests, blocks)| Rates { requests, blocks };
            Qos { limits: rates(limits), floors: rates(floors), latency_us: 0 }.is_possible()
        };
        assert!(of((9, 9), (0, 0)) && of((9, 9), (9, 9)) && of((0, 0), (1, 1)));
        assert!(!of((10, 0), (9, 0)) && !of((0, 10), (0, 9)));
        // As many requests as that are more blocks.
        assert!(!of((10, 0), (0, 9)) && of((10, 0), (0, 10)) && of((0, 10), (1, 0)));
    }
}
