//! Rate limits of a namespace: requests and blocks a second.
//!
//! A leaky bucket: a request costs the time that it takes at the limit. It is admitted when the cost of the requests
//! before it is at most the time that has passed plus a short burst allowance. So a client below the limit never waits,
//! and no credit accumulates beyond that allowance.

use crate::vzone::qos::Rates;

/// Burst allowance, in nanoseconds.
const MOMENT_NS: u64 = 10_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// For the limit of requests and that of blocks, the time in nanoseconds up to which the bucket is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter([u64; 2]);

impl Meter {
    /// Counts a request of `blocks` blocks that arrives at `now_ns`; returns the nanoseconds that it has to wait. Later
    /// requests wait at least as long.
    pub fn wait_ns(&mut self, limits: Rates, blocks: u64, now_ns: u64) -> u64 {
        let mut wait_ns = 0;
        let costs = [(1, limits.requests), (blocks, limits.blocks)];
        for (until_ns, (count, limit)) in self.0.iter_mut().zip(costs).filter(|(_, (_, limit))| *limit > 0) {
            let from_ns = now_ns.max(*until_ns);
            wait_ns = wait_ns.max(from_ns.saturating_sub(now_ns).saturating_sub(MOMENT_NS));
            *until_ns = from_ns.saturating_add(count.saturating_mul(SECOND_NS) / limit as u64);
        }
        wait_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests admitted within a second if one of `blocks` blocks arrives as soon as the one before was admitted.
    fn gone(limits: Rates, blocks: u64) -> u64 {
        let (mut meter, mut now_ns, mut count) = (Meter::default(), 0, 0);
        while now_ns < SECOND_NS {
            now_ns += meter.wait_ns(limits, blocks, now_ns).max(1000);
            count += 1;
        }
        count
    }

    #[test]
    fn limit_bounds_rate_of_requests_and_blocks() {
        let of = |requests, blocks| Rates { requests, blocks };
        assert!((500..=506).contains(&gone(of(500, 0), 1)));
        assert!((100..=102).contains(&gone(of(0, 1600), 16)));
        // The lower limit counts.
        assert!((100..=102).contains(&gone(of(500, 1600), 16)));
        assert!((500..=506).contains(&gone(of(500, 160_000), 16)));
        assert_eq!(gone(Rates::default(), 16), 1_000_000);
    }

    #[test]
    fn limit_never_delays_slower_client_and_bounds_burst() {
        let limits = Rates { requests: 1000, blocks: 0 };
        let mut meter = Meter::default();
        assert!((0..2000).all(|n| meter.wait_ns(limits, 1, n * 2_000_000) == 0));
        let later_ns = 100 * SECOND_NS;
        let at_once = (0..100).take_while(|_| meter.wait_ns(limits, 1, later_ns) == 0).count();
        assert_eq!(at_once, 11);
        // A large request is admitted, and paid for by the next one.
        let mut meter = Meter::default();
        let limits = Rates { requests: 0, blocks: 100 };
        assert_eq!(meter.wait_ns(limits, 200, 0), 0);
        assert_eq!(meter.wait_ns(limits, 1, 0), 2 * SECOND_NS - MOMENT_NS);
    }
}
