//! Clock for the engine, which has none of its own.

use engine::vzone::Clock;
use std::{rc::Rc, sync::LazyLock, time::Instant};

/// Time of the first reading.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Microseconds since the first reading in this process.
pub fn now_us() -> u64 {
    BEGUN.elapsed().as_micros() as u64
}

/// A clock in microseconds.
pub fn clock() -> Clock {
    Rc::new(now_us)
}
