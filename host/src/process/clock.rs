//! Clock for the engine, which has none of its own.

use engine::vzone::Clock;
use std::{rc::Rc, time::Instant};

/// A clock in microseconds that starts at 0.
pub fn clock() -> Clock {
    let begun = Instant::now();
    Rc::new(move || begun.elapsed().as_micros() as u64)
}
