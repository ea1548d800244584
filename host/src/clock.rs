//! The time, as the engine is told it.

use engine::vzone::Clock;
use std::{rc::Rc, time::Instant};

/// A clock that begins now.
pub fn clock() -> Clock {
    let begun = Instant::now();
    Rc::new(move || begun.elapsed().as_micros() as u64)
}
