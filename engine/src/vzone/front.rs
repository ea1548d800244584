//! Admission of clients' requests to a namespace: rate limits and throttling apply here.
//!
//! The server of a namespace calls it before each read and write, and reports each completion. Internal work of a
//! namespace does not pass here. Without limits and guarantees it costs two memory accesses.

use crate::vzone::{
    core::{Core, Tenant},
    limit::Meter,
    restraint::{Hold, LOOK_EVERY_US, Party, Restraint, SLACK_US},
};
use std::rc::Rc;

/// Interval at which a waiting request checks for changed limits, in microseconds.
const LIMITS_CHANGE_US: u64 = 100_000;

/// An admitted request: the time of its admission, if requests are counted.
#[derive(Clone, Copy, Debug)]
#[must_use = "the answer must be delivered"]
pub struct Passed(Option<u64>);

impl Core {
    /// Waits until a read or write of `blocks` blocks is admitted. `sleep` waits for a number of microseconds.
    pub async fn let_in<F: Future<Output = ()>>(
        &self,
        tenant: &Tenant,
        blocks: u64,
        sleep: impl Fn(u64) -> F,
    ) -> Passed {
        let asked = &tenant.asked;
        self.keep_to_limits(tenant, blocks, &sleep).await;
        if !self.promised.get() {
            return Passed(None);
        }
        let mut demand = asked.demand.get();
        demand.asked(self.now_us());
        asked.demand.set(demand);
        if asked.held_to().is_some() {
            {
                let _turn = asked.turn.take().await;
                self.wait(|| asked.standing.get().hold, &sleep).await;
                let mut standing = asked.standing.get();
                standing.hold.goes(blocks, self.now_us(), SLACK_US);
                asked.standing.set(standing);
            }
            let _turn = self.turn.take().await;
            let waited = self.wait(|| self.restraint.get().pace, &sleep).await;
            let mut restraint = self.restraint.get();
            // Idle time gives no credit, or several would be admitted at once.
            restraint.pace.goes(blocks, self.now_us(), if waited { SLACK_US } else { 0 });
            self.restraint.set(restraint);
        }
        Passed(Some(self.now_us()))
    }

    /// Counts the completion of an admitted request of `blocks` blocks.
    pub fn answered(&self, tenant: &Tenant, passed: Passed, blocks: u64) {
        let (asked, Some(passed_us)) = (&tenant.asked, passed.0) else { return };
        let (now_us, mut demand) = (self.now_us(), asked.demand.get());
        demand.answered(asked.qos.get(), blocks, now_us.saturating_sub(passed_us), now_us);
        asked.demand.set(demand);
    }

    /// Waits until `hold`, which may change meanwhile, admits a request; returns whether it had to wait.
    async fn wait<F: Future<Output = ()>>(&self, hold: impl Fn() -> Hold, sleep: &impl Fn(u64) -> F) -> bool {
        let mut wait_us = hold().wait_us(self.now_us());
        let waited = wait_us > 0;
        while wait_us > 0 {
            sleep(wait_us.min(LOOK_EVERY_US)).await;
            wait_us = hold().wait_us(self.now_us());
        }
        waited
    }

    /// Delays a request to keep to the rate limits; starts again if these change meanwhile.
    async fn keep_to_limits<F: Future<Output = ()>>(
        &self,
        tenant: &Tenant,
        blocks: u64,
        sleep: &impl Fn(u64) -> F,
    ) {
        let asked = &tenant.asked;
        loop {
            let limits = asked.qos.get().limits;
            if limits.is_none() {
                // The meter starts anew with later limits, even if these are the same.
                asked.meter.take();
                return;
            }
            let (kept, mut meter) = asked.meter.get();
            if kept != limits {
                meter = Meter::default();
            }
            let now_ns = self.now_us().saturating_mul(1000);
            let mut wait_us = meter.wait_ns(limits, blocks, now_ns).div_ceil(1000);
            asked.meter.set((limits, meter));
            while wait_us > 0 && asked.qos.get().limits == limits {
                let part = wait_us.min(LIMITS_CHANGE_US);
                sleep(part).await;
                wait_us -= part;
            }
            if wait_us == 0 {
                return;
            }
        }
    }

    /// Updates whether a namespace has a guarantee. When that changes all state of throttling is reset.
    pub fn note_promises(&self) {
        let (tenants, now_us) = (self.tenants(), self.now_us());
        let promised = tenants.iter().any(|tenant| tenant.asked.qos.get().promises());
        if self.promised.replace(promised) != promised {
            self.restraint.set(Restraint::new(now_us));
            for tenant in tenants {
                tenant.asked.standing.take();
                tenant.asked.seen(now_us);
            }
        }
    }

    /// Carries out a look of throttling, if one is due; returns whether requests are outstanding.
    pub fn look(&self, now_us: u64, tenants: &[Rc<Tenant>]) -> bool {
        let mut restraint = self.restraint.get();
        if restraint.is_due(now_us).is_some() {
            let party = |tenant: &Rc<Tenant>| {
                let asked = &tenant.asked;
                Party::new(asked.qos.get(), tenant.spec.weight, asked.seen(now_us), asked.standing.get())
            };
            let mut parties: Vec<Party> = tenants.iter().map(party).collect();
            restraint.look(now_us, &mut parties);
            self.restraint.set(restraint);
            for (tenant, party) in tenants.iter().zip(&parties) {
                tenant.asked.standing.set(party.standing());
            }
        }
        tenants.iter().any(|tenant| tenant.asked.demand.get().is_asking())
    }
}
