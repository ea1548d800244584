//! Request counts and latencies of block devices and drives.
//!
//! Latencies are counted in classes, four for each power of two: a reported latency is at most a quarter too high.
//! Counters only grow; a reader takes the difference of two readings. The clock is read only while latencies are
//! watched: reading the counters enables the measurement for a limited number of requests.

use crate::process::size::total;
use serde::{Deserialize, Serialize};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Latency classes; the last one holds everything longer than about two minutes.
const CLASSES: usize = 104;

/// Number of requests measured after each reading of the counters: more than arrive in a second.
const MEASURED: u32 = 1 << 22;

/// The class of a latency.
fn class(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    if micros < 4 {
        return micros as usize;
    }
    let power = micros.ilog2();
    let quarter = micros >> (power - 2) & 3;
    (4 * (power as usize - 1) + quarter as usize).min(CLASSES - 1)
}

/// The upper limit of a class, in microseconds.
fn longest_us(class: usize) -> u64 {
    match class {
        0..4 => class as u64,
        _ => ((5 + class as u64 % 4) << (class / 4 - 1)) - 1,
    }
}

/// Counter of one kind of request.
pub struct Counter {
    requests: Cell<u64>,
    bytes: Cell<u64>,
    classes: [Cell<u64>; CLASSES],
}

impl Default for Counter {
    fn default() -> Counter {
        let classes = [const { Cell::new(0) }; CLASSES];
        Counter { requests: Cell::new(0), bytes: Cell::new(0), classes }
    }
}

impl Counter {
    /// Counts a request, and its latency if that was measured.
    pub fn count(&self, bytes: u64, latency: Option<Duration>) {
        let grow = |cell: &Cell<u64>, by| cell.set(cell.get() + by);
        grow(&self.requests, 1);
        grow(&self.bytes, bytes);
        if let Some(latency) = latency {
            grow(&self.classes[class(latency)], 1);
        }
    }

    /// The longest latency so far, in microseconds, at most a quarter too high.
    pub fn longest_us(&self) -> u64 {
        let longest = self.classes.iter().rposition(|count| count.get() > 0);
        longest.map_or(0, longest_us)
    }

    /// Bytes of all requests so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    pub fn counts(&self) -> Counts {
        let classes = self.classes.iter().map(Cell::get).collect();
        Counts { requests: self.requests.get(), bytes: self.bytes.get(), classes }
    }
}

/// Counters of a block device or a drive; appends count as writes.
#[derive(Default)]
pub struct Traffic {
    pub reads: Counter,
    pub writes: Counter,
    /// Number of requests for which the latency will still be measured.
    measured: Cell<u32>,
}

impl Traffic {
    /// The start time of a request, if its latency is measured.
    pub fn begin(&self) -> Option<Instant> {
        let left = self.measured.get().checked_sub(1)?;
        self.measured.set(left);
        Some(Instant::now())
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.reads.requests.get() + self.writes.requests.get()
    }

    /// Reads the counters, and enables the measurement of latencies for a while.
    pub fn counted(&self) -> TrafficCounts {
        self.measured.set(MEASURED);
        TrafficCounts { reads: self.reads.counts(), writes: self.writes.counts() }
    }
}

/// Readings of a [`Counter`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub requests: u64,
    pub bytes: u64,
    /// Measured requests by latency class.
    pub classes: Vec<u64>,
}

/// Readings of a [`Traffic`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficCounts {
    pub reads: Counts,
    pub writes: Counts,
}

impl TrafficCounts {
    /// The difference to the earlier readings `before`; all of it if there are none.
    pub fn since(&self, before: Option<&TrafficCounts>) -> TrafficCounts {
        let Some(before) = before else { return self.clone() };
        TrafficCounts { reads: self.reads.since(&before.reads), writes: self.writes.since(&before.writes) }
    }
}

impl Counts {
    /// The difference to the earlier readings `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        let classes = self.classes.iter().zip(&before.classes).map(|(now, then)| now.saturating_sub(*then));
        Counts {
            requests: self.requests.saturating_sub(before.requests),
            bytes: self.bytes.saturating_sub(before.bytes),
            classes: classes.collect(),
        }
    }

    /// The latency, in microseconds, that all requests but one in `so_many` did not exceed: the median for 2. `None`
    /// without requests.
    pub fn all_but_one_in_us(&self, so_many: u64) -> Option<u64> {
        // Counts from another version of the daemon may have more classes, and any values.
        let classes = &self.classes[..self.classes.len().min(CLASSES)];
        let total = total(classes.iter().copied());
        let mut left = total - total / so_many;
        let reached = classes.iter().position(|count| {
            left = left.saturating_sub(*count);
            left == 0
        });
        reached.filter(|_| total > 0).map(longest_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_class_bounds_latency_within_one_quarter() {
        let of = |us| class(Duration::from_micros(us));
        for us in (0..5000).chain([10_000, 123_456, 1 << 26]) {
            let longest = longest_us(of(us));
            assert!((us..=us + us / 4).contains(&longest), "{us}: {longest}");
            assert!(us == 0 || of(us) == 0 || longest_us(of(us) - 1) < us, "{us}");
        }
        assert_eq!(of(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn traffic_percentiles_cover_interval_between_counts() {
        let counter = Counter::default();
        counter.count(4096, Some(Duration::from_secs(1)));
        let before = counter.counts();
        assert_eq!(before.since(&before).all_but_one_in_us(2), None);
        (0..990).for_each(|_| counter.count(4096, Some(Duration::from_micros(100))));
        (0..10).for_each(|_| counter.count(8192, Some(Duration::from_micros(3000))));
        let since = counter.counts().since(&before);
        assert_eq!((since.requests, since.bytes), (1000, 990 * 4096 + 10 * 8192));
        let us = [2, 100, 1000].map(|so_many| since.all_but_one_in_us(so_many).unwrap());
        assert_eq!(us, [111, 111, 3071]);
        counter.count(4096, None);
        assert_eq!((counter.counts().requests, counter.counts().classes.iter().sum()), (1002, 1001));
    }

    #[test]
    fn traffic_measures_latency_only_after_query_for_while() {
        let traffic = Traffic::default();
        assert_eq!(traffic.begin(), None);
        traffic.counted();
        assert!((0..MEASURED).all(|_| traffic.begin().is_some()));
        assert_eq!(traffic.begin(), None);
    }
}
