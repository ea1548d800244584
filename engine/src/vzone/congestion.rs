//! How many reads of a v-zone may be on their way at once (eZNS §4.5.1, Algorithm 1, lines 1–10).
//!
//! A drive without garbage collection answers reads slowly for one reason only: too many are waiting for the same
//! dies. So latency alone moves the window: up by a share of what is in flight while reads are fast, down by how much
//! they are too slow. That is seen by an average, not by a single read as in the paper: a die that is programmed keeps one
//! read waiting for longer than that, where a queue makes them all slow. The window counts commands of physical zones,
//! in thousandths.
//! A read that is larger than the window goes alone, or it would never go.

/// Reads that take longer than this on average say that dies are congested (Algorithm 1, line 6).
pub const SLOW_US: u64 = 500;

/// A read counts for such a part of the average, which begins anew with half of [`SLOW_US`] when a window has shrunk.
const COUNTS: u64 = 8;

/// One command, in the numbers of [`Window`].
const ONE: u64 = 1000;

/// A window, and what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    size: u64,
    in_flight: u32,
    /// What reads have taken lately, on average.
    usual_us: u32,
}

impl Window {
    /// For a group of this width with nothing in flight: one command for each of its zones.
    pub fn new(width: u32) -> Window {
        Window { size: width.max(1) as u64 * ONE, in_flight: 0, usual_us: 0 }
    }

    /// Commands that may be in flight.
    pub fn commands(&self) -> u32 {
        (self.size / ONE) as u32
    }

    /// Commands that are.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether a read of so many commands may go.
    pub fn admits(&self, commands: u32) -> bool {
        self.in_flight == 0 || (self.in_flight + commands) as u64 * ONE <= self.size
    }

    /// It goes.
    pub fn submitted(&mut self, commands: u32) {
        self.in_flight += commands;
    }

    /// It has come back after `latency_us`, from a group of this width.
    pub fn completed(&mut self, commands: u32, latency_us: u64, width: u32) {
        let count = self.in_flight.max(1) as u64;
        self.in_flight = self.in_flight.saturating_sub(commands);
        let usual_us = (self.usual_us as u64 * (COUNTS - 1)).saturating_add(latency_us) / COUNTS;
        self.usual_us = usual_us.min(u32::MAX as u64) as u32;
        self.size = if usual_us > SLOW_US {
            self.usual_us = SLOW_US as u32 / 2;
            (self.size.saturating_mul(SLOW_US) / usual_us.saturating_mul(2)).max(ONE)
        } else {
            let most = 4 * width.max(1) as u64 * ONE;
            (self.size + count * ONE * ONE / self.size.max(ONE)).min(most)
        };
    }

    /// It will not come back.
    pub fn cancelled(&mut self, commands: u32) {
        self.in_flight = self.in_flight.saturating_sub(commands);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_begins_with_the_width_and_grows_to_four_times_that() {
        let mut window = Window::new(8);
        assert_eq!(window.commands(), 8);
        for _ in 0..1000 {
            window.submitted(8);
            window.completed(8, 100, 8);
        }
        assert_eq!(window.commands(), 32);
    }

    #[test]
    fn reads_that_are_slow_on_average_shrink_it_by_how_slow_they_are_down_to_one() {
        let mut window = Window::new(32);
        let read = |window: &mut Window, latency_us| {
            window.submitted(1);
            window.completed(1, latency_us, 8);
            window.commands()
        };
        // 4000 / 8 is just not slow, and with half of that again 500 / (2 × 937) is a quarter.
        assert_eq!([4000, 4000].map(|us| read(&mut window, us)), [32, 8]);
        assert!((0..10).any(|_| read(&mut window, 5000) == 1));
        // Dies that are programmed make two of five reads slow, and no queue is seen in that.
        let mut window = Window::new(8);
        for _ in 0..100 {
            for latency_us in [70, 780, 70, 780, 70] {
                read(&mut window, latency_us);
            }
        }
        assert_eq!(window.commands(), 32);
        // The threshold itself is not slow.
        assert!((0..100).all(|_| read(&mut window, SLOW_US) == 32));
    }

    #[test]
    fn what_is_larger_than_the_window_goes_alone() {
        let mut window = Window::new(1);
        assert!(window.admits(16));
        window.submitted(16);
        assert!(!window.admits(1));
        window.completed(16, 100, 1);
        assert!(window.admits(1));
        let mut window = Window::new(4);
        window.submitted(3);
        assert!(window.admits(1) && !window.admits(2));
        window.cancelled(3);
        assert_eq!(window.in_flight(), 0);
    }
}
