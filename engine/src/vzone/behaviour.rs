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
    /// None but in a simulator.
    pub canary: Option<Canary>,
}

/// A rule to be broken on purpose, to prove that the simulator notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Data is written to a zone before it is safe whose it is.
    OwnerAfterData,
    /// Zones of a group that was moved are given back to nobody.
    ReclaimedForgotten,
    /// They are given back before it is safe that they are not needed.
    ReclaimTooEarly,
    /// The time in which tokens come counts twice.
    TokensCountTwice,
}
