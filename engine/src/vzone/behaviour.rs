//! How namespaces shall behave.

use std::rc::Rc;

/// Gives the moment in microseconds, from any start.
pub type Clock = Rc<dyn Fn() -> u64>;

/// How long a namespace that holds spares may write nothing before they are taken back, in microseconds.
pub const PATIENCE_US: u64 = 2_000_000;

/// How namespaces shall behave.
#[derive(Clone)]
pub struct Behaviour {
    /// What tells the time.
    pub clock: Clock,
    /// See [`PATIENCE_US`].
    pub patience_us: u64,
    /// Whether there is write admission control; measurements compare it with none.
    pub admission: bool,
}
