//! Which writes may enter the write cache (eZNS §4.5.2, Algorithm 1, lines 11–27).
//!
//! The cache of a drive is shared by all zones, and whoever fills it slows down all others. How long blocks
//! take, on average over all v-zones, says how fast it drains: that is the pace at which each v-zone gets tokens,
//! one a block, times the width of its group. A v-zone that has no write in flight is always let through, and pays
//! with tokens that it gets later: so small writers never wait, nothing ever stops, and a drive that
//! is not congested clocks its writers itself.
//!
//! Moments are in microseconds, from any start; they are handed in.

/// Latencies are looked at so often (Algorithm 1, line 19).
pub const LOOK_EVERY_US: u64 = 10_000;

/// Tokens that a v-zone may save up or owe, in blocks for each zone of its group: 1 MiB.
const MOST_BLOCKS: i64 = 256;

/// One token, in the numbers of [`Tokens`].
const ONE: i64 = 1000;

/// How long blocks take to be written, on average over all v-zones: the latency monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    sum_ns: u64,
    writes: u64,
    looked_us: u64,
    /// Averages of the last two looks.
    last_ns: u64,
    before_ns: u64,
}

impl Pace {
    /// A write of so many blocks has taken `latency_us`.
    pub fn completed(&mut self, blocks: u64, latency_us: u64) {
        self.sum_ns = self.sum_ns.saturating_add(latency_us.saturating_mul(1000) / blocks.max(1));
        self.writes += 1;
    }

    /// Looks, if it is time to.
    pub fn look(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.looked_us) >= LOOK_EVERY_US && self.writes > 0 {
            self.before_ns = if self.last_ns == 0 { self.sum_ns / self.writes } else { self.last_ns };
            self.last_ns = self.sum_ns / self.writes;
            (self.sum_ns, self.writes, self.looked_us) = (0, 0, now_us);
        }
    }

    /// Nanoseconds for a block; 0 as long as nothing is known.
    pub fn block_ns(&self) -> u64 {
        (self.last_ns + self.before_ns) / 2
    }
}

/// What a v-zone may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    count: i64,
    refilled_us: Option<u64>,
    in_flight: u32,
    /// The moment of the first refill, and the time that has brought tokens since: see [`Tokens::is_fair`].
    first_us: u64,
    counted_us: u64,
}

impl Tokens {
    /// Adds what has come since the last call. The time that has passed counts once: whoever calls more
    /// often gets no more.
    pub fn refill(&mut self, now_us: u64, pace: &Pace, width: u32) {
        let last_us = *self.refilled_us.get_or_insert(now_us);
        if last_us == now_us && self.counted_us == 0 {
            self.first_us = now_us;
        }
        let passed_us = now_us.saturating_sub(last_us);
        self.refilled_us = Some(last_us.max(now_us));
        self.counted_us += passed_us;
        let most = MOST_BLOCKS * width.max(1) as i64 * ONE;
        let come = match pace.block_ns() {
            0 => most,
            block_ns => {
                (passed_us.min(1_000_000) * 1000 * ONE as u64 * width.max(1) as u64 / block_ns) as i64
            }
        };
        self.count = (self.count + come).clamp(-most, most);
    }

    /// Whether a write of so many blocks may go.
    pub fn admits(&self, blocks: u64) -> bool {
        self.in_flight == 0 || self.count >= blocks as i64 * ONE
    }

    /// It goes.
    pub fn submitted(&mut self, blocks: u64) {
        self.count = self.count.saturating_sub(blocks as i64 * ONE);
        self.in_flight += 1;
    }

    /// It has completed, or failed.
    pub fn completed(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Tokens there are; fewer than none if some are owed.
    pub fn blocks(&self) -> i64 {
        self.count / ONE
    }

    /// Whether no more time has brought tokens than there was.
    pub fn is_fair(&self, now_us: u64) -> bool {
        self.counted_us <= now_us.saturating_sub(self.first_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(block_us: u64) -> Pace {
        let mut pace = Pace::default();
        for look in 1..3 {
            pace.completed(4, 4 * block_us);
            pace.look(look * LOOK_EVERY_US);
        }
        pace
    }

    #[test]
    fn the_pace_is_the_mean_of_two_looks_and_each_write_counts_once() {
        let mut pace = Pace::default();
        pace.completed(128, 1280);
        pace.completed(1, 30);
        pace.look(LOOK_EVERY_US - 1);
        assert_eq!(pace.block_ns(), 0);
        pace.look(LOOK_EVERY_US);
        assert_eq!(pace.block_ns(), 20_000);
        pace.completed(1, 40);
        pace.look(2 * LOOK_EVERY_US);
        assert_eq!(pace.block_ns(), 30_000);
        pace.look(9 * LOOK_EVERY_US);
        assert_eq!(pace.block_ns(), 30_000);
    }

    #[test]
    fn tokens_come_with_time_and_width_and_not_with_calls() {
        let pace = pace(10);
        let mut start = Tokens::default();
        start.refill(0, &Pace::default(), 1);
        start.submitted(MOST_BLOCKS as u64);
        let (mut once, mut often, mut wide) = (start, start, start);
        once.refill(1000, &pace, 1);
        (1..=100).for_each(|step| often.refill(step * 10, &pace, 1));
        wide.refill(1000, &pace, 2);
        assert_eq!((once.blocks(), often.blocks(), wide.blocks()), (100, 100, 200));
        once.refill(1_000_000, &pace, 1);
        assert_eq!(once.blocks(), MOST_BLOCKS);
    }

    #[test]
    fn who_is_alone_goes_and_pays_later() {
        let mut tokens = Tokens::default();
        let pace = pace(10);
        tokens.refill(0, &pace, 1);
        assert!(tokens.admits(128));
        tokens.submitted(128);
        assert!(!tokens.admits(1));
        tokens.refill(1000, &pace, 1);
        assert!(!tokens.admits(1));
        tokens.refill(1290, &pace, 1);
        assert!(tokens.admits(1));
        tokens.completed();
        assert!(tokens.admits(128));
    }

    #[test]
    fn time_that_counts_twice_is_noticed() {
        let pace = pace(10);
        let (mut once, mut twice) = (Tokens::default(), Tokens::default());
        for now_us in (1000..5000).step_by(100) {
            once.refill(now_us, &pace, 1);
            once.refill(now_us, &pace, 1);
            let before = twice.refilled_us;
            twice.refill(now_us, &pace, 1);
            twice.refilled_us = before.or(twice.refilled_us);
            twice.refill(now_us, &pace, 1);
            assert!(once.is_fair(now_us));
        }
        assert!(!twice.is_fair(4900));
        assert_eq!((once.blocks(), twice.blocks()), (256, 256));
    }

    #[test]
    fn nothing_is_held_back_before_anything_is_known() {
        let mut tokens = Tokens::default();
        tokens.submitted(8);
        tokens.refill(1, &Pace::default(), 1);
        assert!(tokens.admits(200));
    }
}
