//! Quality-of-service state of a namespace.

use crate::{
    runtime::Exclusive,
    vzone::{
        limit::Meter,
        qos::{Qos, Rates},
        throttle::{Demand, ThrottleState},
    },
};
use std::cell::Cell;

/// Quality-of-service state of a namespace.
#[derive(Default)]
pub(super) struct QosState {
    pub qos: Cell<Qos>,
    /// Limits, and the usage since they were set.
    pub meter: Cell<(Rates, Meter)>,
    pub demand: Cell<Demand>,
    pub standing: Cell<ThrottleState>,
    /// Order of its throttled requests.
    pub turn: Exclusive,
}

impl QosState {
    pub fn new(qos: Qos) -> QosState {
        QosState { qos: Cell::new(qos), ..QosState::default() }
    }

    /// Returns the demand up to now, and starts new counts.
    pub fn seen(&self, now_us: u64) -> Demand {
        let mut demand = self.demand.get();
        let seen = demand.seen(now_us);
        self.demand.set(demand);
        seen
    }

    /// Admitted blocks a second; `None` if it is not throttled.
    pub fn held_to(&self) -> Option<u64> {
        self.standing.get().hold.rate()
    }
}
