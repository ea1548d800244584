//! Options of running namespaces.

use std::rc::Rc;

/// Returns the time in microseconds, from an arbitrary origin.
pub type Clock = Rc<dyn Fn() -> u64>;

/// How long a namespace that holds spares may write nothing before they are taken back, in microseconds.
pub const PATIENCE_US: u64 = 2_000_000;

/// Options of running namespaces.
#[derive(Clone)]
pub struct NamespaceOptions {
    /// Time source.
    pub clock: Clock,
    /// See [`PATIENCE_US`].
    pub patience_us: u64,
    /// Whether write admission control is on; measurements compare it with none.
    pub admission: bool,
}
