//! How much of a v-zone may be read at once (eZNS §4.5.1; Algorithm 1, lines 1–10, is about the same).
//!
//! A drive without garbage collection answers reads slowly for one reason only: too many are waiting for the same
//! dies. Whoever has the most on its way fills the queues, and whoever has the least is late for it. So there is one
//! [`Window`], the same for all v-zones: while reads of any one are slow that has less on its way than all have on
//! average, the window becomes that average, so that the largest shrink until nobody is slow or all are alike; while
//! none is, it grows. It binds only who waits itself: whose reads are quick is on other dies. Where one namespace
//! has the device for itself nobody is to be spared, and there is none.
//!
//! The paper has a window for each stripe group, which shrinks when a read of its own is late. So a v-zone that is alone
//! is held back as well, and who is late for others' reads has its own window shrink. Reads that are late on average are
//! what counts, not single ones: a die that is programmed keeps one read waiting for longer than that.

use crate::vzone::admission::LOOK_EVERY_US;

/// Reads that take longer than this on average say that dies are congested (Algorithm 1, line 6).
const SLOW_US: u64 = 500;

/// A read counts for such a part of the average.
const COUNTS: u64 = 8;

/// The window is never smaller: 128 KiB. What is larger than the window goes alone, or it would never go.
const LEAST_BLOCKS: u64 = 32;

/// What of a v-zone is on its way, and how long that takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    blocks: u64,
    /// The most of them since the last look.
    most_blocks: u64,
    /// What reads have taken lately, on average.
    usual_us: u64,
}

impl Reads {
    /// Blocks that are on their way.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// A read of so many blocks goes.
    pub fn submitted(&mut self, blocks: u64) {
        self.blocks += blocks;
        self.most_blocks = self.most_blocks.max(self.blocks);
    }

    /// It has come back after `latency_us`.
    pub fn completed(&mut self, blocks: u64, latency_us: u64) {
        self.cancelled(blocks);
        self.usual_us = (self.usual_us * (COUNTS - 1)).saturating_add(latency_us) / COUNTS;
    }

    /// It will not come back.
    pub fn cancelled(&mut self, blocks: u64) {
        self.blocks = self.blocks.saturating_sub(blocks);
    }

    /// What was seen since the last call; nothing if nothing was read.
    pub fn seen(&mut self) -> Option<Seen> {
        let blocks = std::mem::replace(&mut self.most_blocks, self.blocks);
        (blocks > 0).then_some(Seen { blocks, slow: self.usual_us > SLOW_US })
    }
}

/// What was seen of a v-zone since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The most blocks that were on their way at once.
    pub blocks: u64,
    /// Whether reads are slow on average.
    pub slow: bool,
}

/// What each v-zone may have on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    looked_us: u64,
    blocks: Option<u64>,
}

impl Window {
    /// Blocks; nothing as long as one namespace has the device for itself.
    pub fn blocks(&self) -> Option<u64> {
        self.blocks
    }

    /// When it was last looked, if it is time for the next look.
    pub fn is_due(&self, now_us: u64) -> Option<u64> {
        (now_us.saturating_sub(self.looked_us) >= LOOK_EVERY_US).then_some(self.looked_us)
    }

    /// Looks: whether several namespaces use the device, and what was seen of v-zones that are read.
    pub fn look(&mut self, now_us: u64, shared: bool, readers: &[Seen]) {
        let (count, blocks) = (readers.len() as u64, readers.iter().map(|reader| reader.blocks).sum::<u64>());
        let is_late = |reader: &Seen| reader.slow && reader.blocks * count < blocks;
        let now = self.blocks.unwrap_or(u64::MAX);
        let next = match readers.iter().any(is_late) {
            true => now.min(blocks / count).max(LEAST_BLOCKS),
            false => now.saturating_add(now / 8),
        };
        *self = Window { looked_us: now_us, blocks: shared.then_some(next) };
    }

    /// Whether a read of so many blocks may go from a v-zone.
    pub fn admits(&self, reads: &Reads, blocks: u64) -> bool {
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

    /// A v-zone whose reads take so long, with `blocks` on their way.
    fn reads(latency_us: u64, blocks: u64) -> Reads {
        let mut reads = Reads::default();
        for _ in 0..100 {
            reads.submitted(1);
            reads.completed(1, latency_us);
        }
        reads.submitted(blocks);
        reads
    }

    /// Fig. 29 (a): one has 1,024 blocks on their way, four have 32 each and are late.
    #[test]
    fn as_long_as_any_of_the_small_is_slow_the_largest_shrink_until_all_are_alike() {
        let mut window = Window::default();
        let mut look = |wide: u64, slow| {
            let seen = |blocks| Seen { blocks, slow: slow && blocks <= 32 };
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
    fn who_has_more_than_others_and_is_slow_makes_nobody_shrink() {
        let mut now = window(1000);
        let seen = |blocks, slow| Seen { blocks, slow };
        now.look(0, true, &[seen(512, true), seen(8, false)]);
        assert_eq!(now.blocks(), Some(1125));
        // Nor if all are alike, or it is the only one that reads.
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
    fn who_has_the_device_for_itself_has_no_window() {
        let mut now = window(32);
        assert!(!now.admits(&reads(900, 64), 1));
        now.look(0, false, &[Seen { blocks: 64, slow: true }]);
        assert!(now.admits(&reads(900, 64), 1));
        // It does not begin small when there is somebody else.
        now.look(0, true, &[Seen { blocks: 64, slow: false }]);
        assert_eq!(now.blocks(), Some(u64::MAX));
    }

    #[test]
    fn only_who_waits_itself_is_bound_and_what_is_larger_goes_alone() {
        assert!(window(32).admits(&reads(100, 32), 1));
        assert!(!window(32).admits(&reads(400, 32), 1));
        assert!(window(33).admits(&reads(400, 32), 1));
        assert!(window(32).admits(&reads(400, 0), 256));
    }

    #[test]
    fn a_look_sees_the_most_that_was_on_its_way_and_what_reads_take_on_average() {
        let mut one = reads(SLOW_US, 64);
        one.cancelled(60);
        assert_eq!(one.seen(), Some(Seen { blocks: 64, slow: false }));
        assert_eq!(one.seen(), Some(Seen { blocks: 4, slow: false }));
        one.completed(4, 4 * SLOW_US);
        assert_eq!([one.seen(), one.seen()], [Some(Seen { blocks: 4, slow: true }), None]);
        // Dies that are programmed make two of five reads late, and no queue is seen in that.
        let mut one = Reads::default();
        for latency_us in [70, 780, 70, 780, 70].repeat(20) {
            one.submitted(1);
            one.completed(1, latency_us);
            assert_eq!(one.seen(), Some(Seen { blocks: 1, slow: false }));
        }
    }
}
