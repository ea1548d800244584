//! What is known of the requests of a namespace, from look to look.

use crate::{
    runtime::Exclusive,
    vzone::{
        limit::Meter,
        qos::{Qos, Rates},
        restraint::{Demand, Standing},
    },
};
use std::cell::Cell;

/// What is known of the requests of a namespace.
#[derive(Default)]
pub(super) struct Asked {
    pub qos: Cell<Qos>,
    /// What has been since limits are what they are.
    pub meter: Cell<(Rates, Meter)>,
    pub demand: Cell<Demand>,
    pub standing: Cell<Standing>,
    /// Who is held back, and goes next.
    pub turn: Exclusive,
}

impl Asked {
    pub fn new(qos: Qos) -> Asked {
        Asked { qos: Cell::new(qos), ..Asked::default() }
    }

    /// What was asked for up to now; from now on it is counted anew.
    pub fn seen(&self, now_us: u64) -> Demand {
        let mut demand = self.demand.get();
        let seen = demand.seen(now_us);
        self.demand.set(demand);
        seen
    }

    /// Blocks a second that may go; nothing if it is not held back.
    pub fn held_to(&self) -> Option<u64> {
        self.standing.get().hold.rate()
    }
}
