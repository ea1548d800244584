//! Congestion control of reads: the window of outstanding blocks of a v-zone (eZNS §4.5.1; Algorithm 1, lines 1–10, is
//! about the same).
//!
//! A drive without garbage collection serves reads slowly for one reason only: too many wait for the same dies. The
//! v-zone with the most outstanding blocks fills the queues, and the one with the fewest is late because of it. So
//! there is one [`Window`] of outstanding blocks for all v-zones. While a v-zone with fewer outstanding blocks than the
//! average is slow, the window is reduced to that average: the v-zones with the most outstanding blocks shrink, until
//! none is slow or all have equally many. Otherwise the window grows. It applies only to v-zones with slow reads: one
//! with fast reads uses other dies. While a single namespace uses the device there is no window.
//!
//! The paper has a window for each stripe group, which shrinks when a read of its own is late. So a v-zone that is
//! alone is throttled as well, and the victim of others' reads has its own window shrink. Here the mean latency counts,
//! not that of single reads: a die that is being programmed delays one read for longer than the limit.

use crate::vzone::admission::LOOK_EVERY_US;

/// Mean latency of reads, in microseconds, above which dies are congested (Algorithm 1, line 6).
const SLOW_US: u64 = 500;

/// Weight (1/n) of a read in the moving average of the latency.
const COUNTS: u64 = 8;

/// Minimum of the window, in blocks: 128 KiB. A read that is larger than the window is submitted alone.
const LEAST_BLOCKS: u64 = 32;

/// Outstanding reads of a v-zone, and their mean latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadControl {
    /// Outstanding blocks.
    blocks: u64,
    /// Maximum of the outstanding blocks since the last look.
    most_blocks: u64,
    /// Moving average of the latency, in microseconds.
    usual_us: u64,
}

impl ReadControl {
    /// Outstanding blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Counts a read of `blocks` blocks that is submitted.
    pub fn submitted(&mut self, blocks: u64) {
        self.blocks += blocks;
        self.most_blocks = self.most_blocks.max(self.blocks);
    }

    /// Counts the completion of a read of `blocks` blocks after `latency_us`.
    pub fn completed(&mut self, blocks: u64, latency_us: u64) {
        self.cancelled(blocks);
        self.usual_us = (self.usual_us * (COUNTS - 1)).saturating_add(latency_us) / COUNTS;
    }

    /// Removes a read that failed, without counting its latency.
    pub fn cancelled(&mut self, blocks: u64) {
        let outstanding = self.blocks;
        assert!(blocks <= outstanding, "a read of {blocks} blocks ends, and {outstanding} were outstanding");
        self.blocks = outstanding - blocks;
    }

    /// Returns the activity since the last call, and begins a new sample; `None` if there were no reads.
    pub fn seen(&mut self) -> Option<ReadSample> {
        let blocks = std::mem::replace(&mut self.most_blocks, self.blocks);
        (blocks > 0).then_some(ReadSample { blocks, slow: self.usual_us > SLOW_US })
    }
}

/// Reads of a v-zone since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSample {
    /// The most blocks that were outstanding at once.
    pub blocks: u64,
    /// Whether reads are slow on average.
    pub slow: bool,
}

/// The congestion window: blocks that each v-zone may have outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    looked_us: u64,
    blocks: Option<u64>,
}

impl Window {
    /// The window in blocks; `None` while a single namespace uses the device.
    pub fn blocks(&self) -> Option<u64> {
        self.blocks
    }

    /// Time of the last look, if the next one is due.
    pub fn is_due(&self, now_us: u64) -> Option<u64> {
        (now_us.saturating_sub(self.looked_us) >= LOOK_EVERY_US).then_some(self.looked_us)
    }

    /// Updates the window. `shared` is whether several namespaces use the device, `readers` are the v-zones that were
    /// read.
    pub fn look(&mut self, now_us: u64, shared: bool, readers: &[ReadSample]) {
        let (count, blocks) = (readers.len() as u64, readers.iter().map(|reader| reader.blocks).sum::<u64>());
        let is_late = |reader: &ReadSample| reader.slow && reader.blocks * count < blocks;
        let now = self.blocks.unwrap_or(u64::MAX);
        let next = match readers.iter().any(is_late) {
            true => now.min(blocks / count).max(LEAST_BLOCKS),
            false => now.saturating_add(now / 8),
        };
        *self = Window { looked_us: now_us, blocks: shared.then_some(next) };
    }

    /// Whether a read of `blocks` blocks of a v-zone may be submitted.
    pub fn admits(&self, reads: &ReadControl, blocks: u64) -> bool {
        let waits = reads.blocks > 0 && reads.usual_us >= SLOW_US / 2;
        !waits || self.blocks.is_none_or(|most| reads.blocks + blocks <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(blocks: u64) -> Window {
        Window { looked_us: 0, blocks: Some(blocks) }
    }

    /// The reads of a v-zone: `blocks` are outstanding, and each takes `latency_us`.
    fn reads(latency_us: u64, blocks: u64) -> ReadControl {
        let mut reads = ReadControl::default();
        for _ in 0..100 {
            reads.submitted(1);
            reads.completed(1, latency_us);
        }
        reads.submitted(blocks);
        reads
    }

    /// Fig. 29 (a): one has 1,024 blocks outstanding, four have 32 each and are late.
    #[test]
    fn congestion_window_shrinks_while_small_reader_is_slow() {
        let mut window = Window::default();
        let mut look = |wide: u64, slow| {
            let seen = |blocks| ReadSample { blocks, slow: slow && blocks <= 32 };
            window.look(0, true, &[wide, 32, 32, 32, 32].map(seen));
            window.blocks.unwrap_or(0)
        };
        let mut wide = 1024;
        let shrinking: [u64; 5] = std::array::from_fn(|_| {
            wide = look(wide, true);
            wide
        });
        assert_eq!(shrinking, [230, 71, 39, 33, 32]);
        assert_eq!([false; 3].map(|slow| look(32, slow)), [36, 40, 45]);
    }

    #[test]
    fn congestion_window_grows_if_only_largest_is_slow() {
        let mut now = window(1000);
        let seen = |blocks, slow| ReadSample { blocks, slow };
        now.look(0, true, &[seen(512, true), seen(8, false)]);
        assert_eq!(now.blocks(), Some(1125));
        // A v-zone that is like all others, or the only one that is read, does not shrink the window either.
        now.look(0, true, &[seen(8, true), seen(8, true)]);
        now.look(0, true, &[seen(8, true)]);
        assert_eq!(now.blocks(), Some(1423));
        now.look(0, true, &[seen(8, true), seen(9, true)]);
        assert_eq!(now.blocks(), Some(LEAST_BLOCKS));
        now.look(7, true, &[]);
        assert_eq!((now.blocks(), now.is_due(8)), (Some(36), None));
        assert_eq!(now.is_due(7 + LOOK_EVERY_US), Some(7));
    }

    #[test]
    fn congestion_window_is_unlimited_for_single_namespace() {
        let mut now = window(32);
        assert!(!now.admits(&reads(900, 64), 1));
        now.look(0, false, &[ReadSample { blocks: 64, slow: true }]);
        assert!(now.admits(&reads(900, 64), 1));
        // The window begins unlimited when a second namespace comes.
        now.look(0, true, &[ReadSample { blocks: 64, slow: false }]);
        assert_eq!(now.blocks(), Some(u64::MAX));
    }

    #[test]
    fn congestion_window_admits_lone_oversized_read() {
        assert!(window(32).admits(&reads(100, 32), 1));
        assert!(!window(32).admits(&reads(400, 32), 1));
        assert!(window(33).admits(&reads(400, 32), 1));
        assert!(window(32).admits(&reads(400, 0), 256));
    }

    #[test]
    fn congestion_sample_reports_peak_blocks_and_mean_latency() {
        let mut one = reads(SLOW_US, 64);
        one.cancelled(60);
        assert_eq!(one.seen(), Some(ReadSample { blocks: 64, slow: false }));
        assert_eq!(one.seen(), Some(ReadSample { blocks: 4, slow: false }));
        one.completed(4, 4 * SLOW_US);
        assert_eq!([one.seen(), one.seen()], [Some(ReadSample { blocks: 4, slow: true }), None]);
        // Dies that are being programmed make two of five reads late, which is no congestion.
        let mut one = ReadControl::default();
        for latency_us in [70, 780, 70, 780, 70].repeat(20) {
            one.submitted(1);
            one.completed(1, latency_us);
            assert_eq!(one.seen(), Some(ReadSample { blocks: 1, slow: false }));
        }
    }
}
