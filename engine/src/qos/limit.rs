//! Rate limits of a client: requests and blocks a second.
//!
//! A leaky bucket: a request costs the time that it takes at the limit. It is admitted when the cost of the requests
//! before it is at most the time that has passed plus a short burst allowance. So a client below the limit never waits,
//! and no credit accumulates beyond that allowance.

use std::cell::Cell;

/// Burst allowance, in nanoseconds.
const MOMENT_NS: u64 = 10_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// Interval at which a waiting request checks for changed limits, in microseconds.
const LIMITS_CHANGE_US: u64 = 100_000;

/// Rates in requests and in blocks a second; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests a second.
    pub requests: u32,
    /// Blocks a second.
    pub blocks: u32,
}

impl Rates {
    /// Whether neither rate is given.
    pub fn is_none(&self) -> bool {
        *self == Rates::default()
    }
}

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

/// Admission of requests within limits that may change at any time.
#[derive(Default)]
pub struct RateLimiter {
    /// The limits of the last request, and their meter.
    meter: Cell<(Rates, Meter)>,
}

impl RateLimiter {
    /// Forgets the requests so far: the next one is admitted at once.
    pub fn reset(&self) {
        self.meter.take();
    }

    /// Waits until a request of `blocks` blocks is within the limits. If these change meanwhile, the wait is computed anew;
    /// while there are none, the clock is not read. Requests with the same limits are admitted in order of arrival.
    /// `now_us` is the time in microseconds from an arbitrary origin, and `sleep` waits for a number of microseconds.
    pub async fn admit<F: Future<Output = ()>>(
        &self,
        limits: impl Fn() -> Rates,
        blocks: u64,
        now_us: impl Fn() -> u64,
        sleep: impl Fn(u64) -> F,
    ) {
        loop {
            let present = limits();
            if present.is_none() {
                // The meter starts anew with later limits, even if these are the same.
                self.reset();
                return;
            }
            let (kept, mut meter) = self.meter.get();
            if kept != present {
                meter = Meter::default();
            }
            let now_ns = now_us().saturating_mul(1000);
            let mut wait_us = meter.wait_ns(present, blocks, now_ns).div_ceil(1000);
            self.meter.set((present, meter));
            while wait_us > 0 && limits() == present {
                let part = wait_us.min(LIMITS_CHANGE_US);
                sleep(part).await;
                wait_us -= part;
            }
            if wait_us == 0 {
                return;
            }
        }
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

    /// Runs a future that never waits for other tasks.
    fn at_once<T>(future: impl Future<Output = T>) -> T {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(value) => value,
            std::task::Poll::Pending => panic!("the future waits"),
        }
    }

    /// Microseconds for which a request of a block waits, with limits that change to `later` when it has begun to wait.
    fn waited(limiter: &RateLimiter, (limits, later): (Rates, Rates), begun_us: u64) -> u64 {
        let (now_us, present) = (Cell::new(begun_us), Cell::new(limits));
        let sleep = |us| {
            now_us.set(now_us.get() + us);
            present.set(later);
            std::future::ready(())
        };
        at_once(limiter.admit(|| present.get(), 1, || now_us.get(), sleep));
        now_us.get() - begun_us
    }

    #[test]
    fn limiter_recomputes_wait_when_limits_change() {
        let of = |requests| Rates { requests, blocks: 0 };
        let limiter = RateLimiter::default();
        let (slow, none) = ((of(1), of(1)), Rates::default());
        assert_eq!(waited(&limiter, slow, 0), 0);
        assert_eq!(waited(&limiter, slow, 0), 990_000);
        // Without a limit, or with another one, the request waits no longer than until the next check.
        assert_eq!(waited(&limiter, (of(1), none), 0), LIMITS_CHANGE_US);
        assert_eq!([0; 2].map(|_| waited(&limiter, slow, 0)), [0, 990_000]);
        assert_eq!(waited(&limiter, (of(1), of(1000)), 0), LIMITS_CHANGE_US);
        limiter.reset();
        assert_eq!(waited(&limiter, slow, 0), 0);
    }

    #[test]
    fn limiter_without_limits_reads_no_clock() {
        let limiter = RateLimiter::default();
        let sleep = |_| -> std::future::Ready<()> { panic!("a request waits") };
        at_once(limiter.admit(Rates::default, 1 << 20, || panic!("the clock is read"), sleep));
    }
}
