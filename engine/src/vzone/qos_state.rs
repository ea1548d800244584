//! Quality-of-service state of a namespace.

use crate::{
    limit::RateLimiter,
    runtime::Exclusive,
    vzone::{
        qos::Qos,
        throttle::{Demand, ThrottleState},
    },
};
use std::cell::Cell;

/// Quality-of-service state of a namespace.
#[derive(Default)]
pub(super) struct QosState {
    pub qos: Cell<Qos>,
    /// Admission within the limits.
    pub limiter: RateLimiter,
    /// Requests since the last look.
    pub demand: Cell<Demand>,
    /// Its throttle, and its state from look to look.
    pub standing: Cell<ThrottleState>,
    /// Queue of its throttled requests: one is admitted at a time.
    pub turn: Exclusive,
}

impl QosState {
    pub fn new(qos: Qos) -> QosState {
        QosState { qos: Cell::new(qos), ..QosState::default() }
    }

    /// Returns the demand since the last call, and begins a new count.
    pub fn seen(&self, now_us: u64) -> Demand {
        let mut demand = self.demand.get();
        let seen = demand.seen(now_us);
        self.demand.set(demand);
        seen
    }

    /// Rate to which it is throttled, in blocks a second; `None` if it is not.
    pub fn held_to(&self) -> Option<u64> {
        self.standing.get().hold.rate()
    }
}
