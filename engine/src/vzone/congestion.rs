//! How many reads of a v-zone may be on their way at once (eZNS §4.5.1, Algorithm 1, lines 1–10).
//!
//! A drive without garbage collection answers reads slowly for one reason only: too many are waiting for the same
//! dies. So latency alone moves the window: up by a share of what is in flight while reads are fast, down at once by
//! how much they are too slow. The window counts commands of physical zones, in thousandths.
//! A read that is larger than the window goes alone, or it would never go.

/// Reads that take longer than this say that dies are congested (Algorithm 1, line 6).
pub const SLOW_US: u64 = 500;

/// One command, in the numbers of [`Window`].
const ONE: u64 = 1000;

/// A window, and what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    size: u64,
    in_flight: u32,
}

impl Window {
    /// For a group of this width with nothing in flight: one command for each of its zones.
    pub fn new(width: u32) -> Window {
        Window { size: width.max(1) as u64 * ONE, in_flight: 0 }
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
        self.size = if latency_us > SLOW_US {
            (self.size.saturating_mul(SLOW_US) / latency_us.saturating_mul(2)).max(ONE)
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
    fn slow_reads_shrink_it_by_how_slow_they_are_down_to_one() {
        let mut window = Window::new(32);
        window.submitted(1);
        // 500 / (2 × 1000) is a quarter.
        window.completed(1, 1000, 8);
        assert_eq!(window.commands(), 8);
        for _ in 0..10 {
            window.completed(0, 5000, 8);
        }
        assert_eq!(window.commands(), 1);
        // The threshold itself is not slow.
        let mut window = Window::new(4);
        window.submitted(1);
        window.completed(1, SLOW_US, 4);
        assert!(window.commands() >= 4);
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
