//! How much a namespace may ask for: at most so many requests and bytes a second.
//!
//! A request is worth a time: what it would take if the limit were all there is. It goes when what went before it is
//! worth no more time than has passed, and a moment on top, in which requests may come at once. So who asks for less
//! than the limit never waits, and nothing is saved up for longer than that moment.

use crate::vzone::qos::Rates;

/// What may come at once is worth so much, in nanoseconds.
const MOMENT_NS: u64 = 10_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// Up to when what went is worth, by either limit, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter([u64; 2]);

impl Meter {
    /// A request of so many blocks that has come `now_ns`: how many nanoseconds it has to wait. Those that come later
    /// wait as long at least.
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

    /// Requests that went within a second if one of `blocks` is asked for as soon as the one before has gone.
    fn gone(limits: Rates, blocks: u64) -> u64 {
        let (mut meter, mut now_ns, mut count) = (Meter::default(), 0, 0);
        while now_ns < SECOND_NS {
            now_ns += meter.wait_ns(limits, blocks, now_ns).max(1000);
            count += 1;
        }
        count
    }

    #[test]
    fn nobody_gets_more_than_the_limit_and_a_moment() {
        let of = |requests, blocks| Rates { requests, blocks };
        assert!((500..=506).contains(&gone(of(500, 0), 1)));
        assert!((100..=102).contains(&gone(of(0, 1600), 16)));
        // Whichever is less.
        assert!((100..=102).contains(&gone(of(500, 1600), 16)));
        assert!((500..=506).contains(&gone(of(500, 160_000), 16)));
        assert_eq!(gone(Rates::default(), 16), 1_000_000);
    }

    #[test]
    fn who_asks_for_less_never_waits_and_saves_nothing_up() {
        let limits = Rates { requests: 1000, blocks: 0 };
        let mut meter = Meter::default();
        assert!((0..2000).all(|n| meter.wait_ns(limits, 1, n * 2_000_000) == 0));
        let later_ns = 100 * SECOND_NS;
        let at_once = (0..100).take_while(|_| meter.wait_ns(limits, 1, later_ns) == 0).count();
        assert_eq!(at_once, 11);
        // A large request is let through, and paid for by the next one.
        let mut meter = Meter::default();
        let limits = Rates { requests: 0, blocks: 100 };
        assert_eq!(meter.wait_ns(limits, 200, 0), 0);
        assert_eq!(meter.wait_ns(limits, 1, 0), 2 * SECOND_NS - MOMENT_NS);
    }
}
