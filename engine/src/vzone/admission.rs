//! Write admission control: limits the writes in the write cache of the device (eZNS §4.5.2, Algorithm 1, lines 11–27).
//!
//! All zones share the write cache of a drive, and a writer that fills it slows down the others. The mean time for a
//! block over all v-zones, the *pace*, shows how fast the cache drains. A v-zone gets one token, which is worth a
//! block, in that time for each physical zone of its group. A write is submitted when its v-zone owes no tokens; it
//! takes one for each block, and may leave a debt. So a writer is held to the pace even with few writes in flight, and
//! writers with less demand never wait. As long as a single namespace writes, admission control is off, since no other
//! one has to be protected.
//!
//! Latency is per block of a *physical* zone, as in the paper, whose monitor measures device commands: a stripe that
//! takes as long as one of its chunks is no reason for a higher rate.
//!
//! The average lags behind the state of the cache, which drains in less than the time between two evaluations
//! (*looks*): at the pace of a full cache the dies would run idle before the next look. So the pace is never slower
//! than the recent write rate of the device, for each physical zone that was written, and an eighth more: together the
//! v-zones may always submit more than the device writes.
//!
//! Times are in microseconds from an arbitrary origin, and are passed in by the caller.

/// Interval between looks, in microseconds (Algorithm 1, line 19).
pub const LOOK_EVERY_US: u64 = 10_000;

/// Maximum debt of a v-zone, in tokens for each physical zone of its group: 1 MiB.
const MOST_OWED: i64 = 256;

/// Maximum balance of a v-zone, in tokens for each physical zone of its group: 128 KiB.
const MOST_SAVED: i64 = 32;

/// The slowest pace, in nanoseconds for a block: 1 MiB/s for each physical zone, so that a debt is paid within a second
/// however long a write has taken.
const SLOWEST_NS: u64 = 1_000_000_000 / 256;

/// The time for a block is shorter than that of the device by this fraction (1/n), which is a rate an eighth higher.
const HEADROOM: u64 = 9;

/// One token, in the fixed-point unit of [`Tokens`].
const ONE: i64 = 1000;

/// The latency monitor of writes: mean time for a block of a physical zone, over all v-zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Sum, over the writes since the last look, of the time for a block.
    sum_ns: u64,
    /// Number of writes since the last look.
    writes: u64,
    looked_us: u64,
    /// Mean time for a block at the last look that had writes.
    last_ns: u64,
    /// The same at the look before.
    before_ns: u64,
    /// Blocks written since the last look.
    blocks: u64,
    /// Time between the last two looks, divided by the blocks written to a physical zone in it: the reciprocal of the
    /// device's write rate. 0 if nothing was written.
    share_ns: u64,
    /// Whether several namespaces wrote between the last two looks.
    shared: bool,
}

/// Number of writers since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterCounts {
    /// Namespaces that have written.
    pub namespaces: u32,
    /// Physical zones of the groups that were written.
    pub physical_zones: u64,
}

impl Pace {
    /// Counts a write of `blocks` blocks to a group of `width` physical zones that has taken `latency_us`.
    pub fn completed(&mut self, blocks: u64, width: u32, latency_us: u64) {
        self.blocks += blocks;
        let blocks = blocks.div_ceil(width.max(1) as u64).max(1);
        self.sum_ns = self.sum_ns.saturating_add(latency_us.saturating_mul(1000) / blocks);
        self.writes += 1;
    }

    /// Time of the last look, if the next one is due.
    pub fn is_due(&self, now_us: u64) -> Option<u64> {
        (now_us.saturating_sub(self.looked_us) >= LOOK_EVERY_US).then_some(self.looked_us)
    }

    /// Updates the pace, if a look is due.
    pub fn look(&mut self, now_us: u64, writers: WriterCounts) {
        let Some(since_us) = self.is_due(now_us) else { return };
        if let Some(mean_ns) = self.sum_ns.checked_div(self.writes) {
            self.before_ns = if self.last_ns == 0 { mean_ns } else { self.last_ns };
            self.last_ns = mean_ns;
        }
        let zones_ns = (now_us - since_us).saturating_mul(1000).saturating_mul(writers.physical_zones);
        self.share_ns = zones_ns.checked_div(self.blocks).unwrap_or(0);
        (self.sum_ns, self.writes, self.blocks, self.looked_us) = (0, 0, 0, now_us);
        self.shared = writers.namespaces > 1;
    }

    /// Nanoseconds for a block of a physical zone; `None` while admission control is off.
    pub fn block_ns(&self) -> Option<u64> {
        let mean_ns = (self.last_ns + self.before_ns) / 2;
        let share_ns = if self.share_ns == 0 { SLOWEST_NS } else { self.share_ns - self.share_ns / HEADROOM };
        (self.shared && mean_ns > 0).then_some(mean_ns.min(share_ns).clamp(1, SLOWEST_NS))
    }
}

/// Write tokens of a v-zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Balance in thousandths of a token; negative for a debt.
    count: i64,
    refilled_us: Option<u64>,
    /// Something was written since the last look.
    written: bool,
    /// Time of the first refill.
    first_us: u64,
    /// Time for which tokens were added since; see [`Tokens::is_fair`].
    counted_us: u64,
}

impl Tokens {
    /// Adds the tokens for the time since the last call, for a group of `width` physical zones. More frequent calls add
    /// no more tokens.
    pub fn refill(&mut self, now_us: u64, pace: &Pace, width: u32) {
        let last_us = *self.refilled_us.get_or_insert(now_us);
        if last_us == now_us && self.counted_us == 0 {
            self.first_us = now_us;
        }
        let passed_us = now_us.saturating_sub(last_us);
        self.refilled_us = Some(last_us.max(now_us));
        self.counted_us += passed_us;
        let width = width.max(1) as i64;
        let (owed, saved) = (MOST_OWED * width * ONE, MOST_SAVED * width * ONE);
        let come = match pace.block_ns() {
            None => owed + saved,
            Some(block_ns) => (passed_us.min(1_000_000) * 1000 * ONE as u64 * width as u64 / block_ns) as i64,
        };
        self.count = (self.count.max(-owed) + come).min(saved);
    }

    /// Whether a write may be submitted: nothing is owed.
    pub fn admits(&self) -> bool {
        self.count >= 0
    }

    /// Takes the tokens of a write of `blocks` blocks.
    pub fn submitted(&mut self, blocks: u64) {
        assert!(self.admits(), "a write is submitted while {} tokens are owed", -self.blocks());
        self.count = self.count.saturating_sub(blocks as i64 * ONE);
        self.written = true;
    }

    /// Whether something was written since the last call.
    pub fn take_written(&mut self) -> bool {
        std::mem::take(&mut self.written)
    }

    /// Tokens in stock; negative if some are owed.
    pub fn blocks(&self) -> i64 {
        self.count / ONE
    }

    /// Whether tokens were added for no more time than has passed since the first refill.
    pub fn is_fair(&self, now_us: u64) -> bool {
        self.counted_us <= now_us.saturating_sub(self.first_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two namespaces have written, each to `each` physical zones.
    fn two(each: u64) -> WriterCounts {
        WriterCounts { namespaces: 2, physical_zones: 2 * each }
    }

    /// The pace while two namespaces write, and a block of a physical zone takes `block_us`.
    fn pace(block_us: u64) -> Pace {
        let mut pace = Pace::default();
        for look in 1..3 {
            pace.completed(4, 1, 4 * block_us);
            pace.look(look * LOOK_EVERY_US, two(1_000_000));
        }
        pace
    }

    #[test]
    fn admission_pace_averages_two_intervals_counting_writes_once() {
        let mut pace = Pace::default();
        pace.completed(128, 1, 1280);
        pace.completed(1, 1, 30);
        pace.look(LOOK_EVERY_US - 1, two(1000));
        assert_eq!(pace.block_ns(), None);
        pace.look(LOOK_EVERY_US, two(1000));
        assert_eq!(pace.block_ns(), Some(20_000));
        pace.completed(1, 1, 40);
        pace.look(2 * LOOK_EVERY_US, two(1000));
        assert_eq!(pace.block_ns(), Some(30_000));
        pace.look(9 * LOOK_EVERY_US, two(1000));
        assert_eq!(pace.block_ns(), Some(30_000));
    }

    #[test]
    fn admission_pace_is_per_zone_for_any_width() {
        let (mut narrow, mut wide) = (Pace::default(), Pace::default());
        narrow.completed(16, 1, 320);
        wide.completed(128, 8, 320);
        narrow.look(LOOK_EVERY_US, two(1000));
        wide.look(LOOK_EVERY_US, two(1000));
        assert_eq!((narrow.block_ns(), wide.block_ns()), (Some(20_000), Some(20_000)));
    }

    #[test]
    fn admission_pace_is_never_below_device_throughput() {
        let mut pace = Pace::default();
        // A full cache: 16 writes of 100 blocks have waited for long, in two zones each.
        (0..16).for_each(|_| pace.completed(100, 1, 1_000_000));
        pace.look(LOOK_EVERY_US, two(1));
        // 1600 blocks in 10 ms, over two zones: 12.5 µs a block and zone, and faster by a ninth of that.
        assert_eq!(pace.block_ns(), Some(12_500 - 12_500 / 9));
    }

    #[test]
    fn tokens_grow_with_time_and_width_not_calls() {
        let pace = pace(10);
        let mut start = Tokens::default();
        start.refill(0, &pace, 1);
        start.submitted(MOST_OWED as u64);
        let (mut once, mut often, mut wide) = (start, start, start);
        once.refill(1000, &pace, 1);
        (1..=100).for_each(|step| often.refill(step * 10, &pace, 1));
        wide.refill(1000, &pace, 2);
        assert_eq!((once.blocks(), often.blocks(), wide.blocks()), (-156, -156, -56));
        once.refill(1_000_000, &pace, 1);
        assert_eq!(once.blocks(), MOST_SAVED);
    }

    #[test]
    fn synchronous_writer_waits_until_token_debt_is_paid() {
        let (mut tokens, pace) = (Tokens::default(), pace(10));
        tokens.refill(0, &pace, 1);
        assert!(tokens.admits());
        // It completes at once: nothing is in flight any more, and 128 blocks are owed.
        tokens.submitted(128);
        tokens.refill(1000, &pace, 1);
        assert!(!tokens.admits());
        tokens.refill(1280, &pace, 1);
        assert!(tokens.admits());
    }

    #[test]
    fn small_writer_below_pace_never_waits() {
        let (mut tokens, pace) = (Tokens::default(), pace(10));
        tokens.refill(0, &pace, 1);
        for write in 0..1000 {
            assert!(tokens.admits(), "write {write}");
            tokens.submitted(8);
            tokens.refill((write + 1) * 100, &pace, 1);
        }
    }

    #[test]
    fn token_debt_at_slow_pace_ends_within_second() {
        let mut tokens = Tokens::default();
        let pace = pace(30_000_000);
        for (zone, width) in [1, 2, 16].into_iter().enumerate() {
            let now_us = 10_000_000 * zone as u64;
            tokens.refill(now_us, &pace, width);
            tokens.submitted(u32::MAX as u64);
            tokens.refill(now_us + 1_000_000, &pace, width);
            tokens.refill(now_us + 1_100_000, &pace, width);
            assert!(tokens.admits(), "width {width}: {tokens:?}");
        }
    }

    #[test]
    fn token_fairness_check_detects_time_counted_twice() {
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
        assert_eq!((once.blocks(), twice.blocks()), (MOST_SAVED, MOST_SAVED));
    }

    #[test]
    fn single_writing_namespace_never_waits() {
        let (mut tokens, mut pace) = (Tokens::default(), pace(1000));
        pace.look(9 * LOOK_EVERY_US, WriterCounts { namespaces: 1, physical_zones: 16 });
        for now_us in 0..9 {
            tokens.refill(now_us, &pace, 1);
            assert!(tokens.admits());
            tokens.submitted(1 << 20);
        }
    }
}
