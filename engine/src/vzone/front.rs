//! Where a namespace is asked for something by others: limits hold here, and here it is held back for others' sake.
//!
//! Whoever shows a namespace to others asks before each read and write, and tells when it is answered. What a namespace
//! does by itself does not come here. As long as nothing is limited or promised all of this is two looks at memory.

use crate::{
    runtime::Exclusive,
    vzone::{
        Namespace,
        core::{Core, Tenant},
        limit::Meter,
        qos::{Qos, Rates},
        restraint::{Demand, Hold, LOOK_EVERY_US, Party, Standing},
    },
};
use std::{cell::Cell, rc::Rc};

/// How often who has to wait looks whether limits have changed, in microseconds.
const LIMITS_CHANGE_US: u64 = 100_000;

/// What is known of requests of a namespace.
#[derive(Default)]
pub(super) struct Front {
    pub qos: Cell<Qos>,
    /// What has been since limits are what they are.
    meter: Cell<(Rates, Meter)>,
    demand: Cell<Demand>,
    standing: Cell<Standing>,
    /// Who is held back, and goes next.
    turn: Exclusive,
}

impl Front {
    pub fn new(qos: Qos) -> Front {
        Front { qos: Cell::new(qos), ..Front::default() }
    }

    /// Blocks a second that may go; nothing if it is not held back.
    pub fn held_to(&self) -> Option<u64> {
        self.standing.get().hold.rate()
    }
}

/// A request that was let through, if such are counted: when.
#[derive(Clone, Copy, Debug)]
#[must_use = "an answer is to be told"]
pub struct Passed(Option<u64>);

impl Namespace {
    /// Waits until a read or write of so many blocks may go: those who ask first go first. `sleep` waits so many
    /// microseconds, a little more at times. [`Namespace::answered`] has to follow.
    pub async fn admit<F: Future<Output = ()>>(&self, blocks: u64, sleep: impl Fn(u64) -> F) -> Passed {
        let (core, front) = (&self.core, &self.tenant.front);
        self.keep_to_limits(blocks, &sleep).await;
        if !core.promised.get() {
            return Passed(None);
        }
        let mut demand = front.demand.get();
        demand.asked(core.now_us());
        front.demand.set(demand);
        if front.held_to().is_some() {
            {
                let _turn = front.turn.take().await;
                self.wait(|| front.standing.get().hold, &sleep).await;
                let mut standing = front.standing.get();
                standing.hold.goes(blocks, core.now_us());
                front.standing.set(standing);
            }
            let _turn = core.turn.take().await;
            self.wait(|| core.restraint.get().pace, &sleep).await;
            let mut restraint = core.restraint.get();
            restraint.pace.goes(blocks, core.now_us());
            core.restraint.set(restraint);
        }
        Passed(Some(core.now_us()))
    }

    /// A request of so many blocks that was let through is answered.
    pub fn answered(&self, passed: Passed, blocks: u64) {
        let (front, Some(passed_us)) = (&self.tenant.front, passed.0) else { return };
        let (now_us, mut demand) = (self.core.now_us(), front.demand.get());
        demand.answered(front.qos.get(), blocks, now_us.saturating_sub(passed_us), now_us);
        front.demand.set(demand);
    }

    /// Waits as long as `hold` says, which may change meanwhile.
    async fn wait<F: Future<Output = ()>>(&self, hold: impl Fn() -> Hold, sleep: &impl Fn(u64) -> F) {
        let mut wait_us = hold().wait_us(self.core.now_us());
        while wait_us > 0 {
            sleep(wait_us.min(LOOK_EVERY_US)).await;
            wait_us = hold().wait_us(self.core.now_us());
        }
    }

    /// Has a request wait that is more than may be asked for; anew, if that changes meanwhile.
    async fn keep_to_limits<F: Future<Output = ()>>(&self, blocks: u64, sleep: &impl Fn(u64) -> F) {
        let front = &self.tenant.front;
        loop {
            let limits = front.qos.get().limits;
            if limits.is_none() {
                // Whatever waits now has nothing to do with limits that come later, be they the same.
                front.meter.take();
                return;
            }
            let (kept, mut meter) = front.meter.get();
            if kept != limits {
                meter = Meter::default();
            }
            let mut wait_us =
                meter.wait_ns(limits, blocks, self.core.now_us().saturating_mul(1000)).div_ceil(1000);
            front.meter.set((limits, meter));
            while wait_us > 0 && front.qos.get().limits == limits {
                let part = wait_us.min(LIMITS_CHANGE_US);
                sleep(part).await;
                wait_us -= part;
            }
            if wait_us == 0 {
                return;
            }
        }
    }
}

impl Core {
    /// Notes whether anything is promised to anybody. If nothing is, nobody is held back.
    pub fn note_promises(&self) {
        let tenants = self.tenants();
        self.promised.set(tenants.iter().any(|tenant| tenant.front.qos.get().promises()));
        if !self.promised.get() {
            tenants.iter().for_each(|tenant| _ = tenant.front.standing.take());
            self.restraint.take();
        }
    }

    /// Looks who is short or late, if it is time to; whether anybody waits for an answer.
    pub fn look(&self, now_us: u64, tenants: &[Rc<Tenant>]) -> bool {
        let mut restraint = self.restraint.get();
        if restraint.is_due(now_us).is_some() {
            let party = |tenant: &Rc<Tenant>| {
                let front = &tenant.front;
                let mut demand = front.demand.get();
                let seen = demand.look(now_us);
                front.demand.set(demand);
                Party::new(front.qos.get(), tenant.spec.weight, seen, front.standing.get())
            };
            let mut parties: Vec<Party> = tenants.iter().map(party).collect();
            restraint.look(now_us, &mut parties);
            self.restraint.set(restraint);
            for (tenant, party) in tenants.iter().zip(&parties) {
                tenant.front.standing.set(party.standing());
            }
        }
        tenants.iter().any(|tenant| tenant.front.demand.get().is_asking())
    }
}
