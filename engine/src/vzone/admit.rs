//! Admission of client requests to a namespace, by its rate limits and by throttling.
//!
//! The server of a namespace requests admission for each read and write, and reports each completion. Internal work
//! needs none. Without limits and guarantees admission costs two memory accesses.

use crate::vzone::{
    core::{NamespaceCore, Tenant},
    throttle::{LOOK_EVERY_US, RateLimit, SLACK_US, Throttle, ThrottleEntry},
};
use std::rc::Rc;

/// An admitted request, with the time of its admission in microseconds if requests are counted.
#[derive(Clone, Copy, Debug)]
#[must_use = "the answer must be delivered"]
pub struct AdmittedRequest(Option<u64>);

/// A request that waits to be admitted; it is withdrawn if this is dropped.
struct WaitingRequest<'a>(&'a NamespaceCore, &'a Tenant);

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        let WaitingRequest(core, tenant) = self;
        let mut demand = tenant.qos_state.demand.get();
        demand.withdrawn(core.now_us());
        tenant.qos_state.demand.set(demand);
    }
}

/// Waits until a read or write of `blocks` blocks is admitted. `sleep` waits for a number of microseconds.
pub async fn let_in<F: Future<Output = ()>>(
    core: &NamespaceCore,
    tenant: &Tenant,
    blocks: u64,
    sleep: impl Fn(u64) -> F,
) -> AdmittedRequest {
    let qos_state = &tenant.qos_state;
    let limits = || qos_state.qos.get().limits;
    qos_state.limiter.admit(limits, blocks, || core.now_us(), &sleep).await;
    if !core.promised.get() {
        return AdmittedRequest(None);
    }
    let mut demand = qos_state.demand.get();
    demand.asked(core.now_us());
    qos_state.demand.set(demand);
    let waiting = WaitingRequest(core, tenant);
    if qos_state.held_to().is_some() {
        {
            let _turn = qos_state.turn.take().await;
            wait(core, || qos_state.standing.get().hold, &sleep).await;
            let mut standing = qos_state.standing.get();
            standing.hold.goes(blocks, core.now_us(), SLACK_US);
            qos_state.standing.set(standing);
        }
        let _turn = core.turn.take().await;
        let waited = wait(core, || core.throttle.get().pace, &sleep).await;
        let mut throttle = core.throttle.get();
        // Only a request that had to wait is given credit for waking up late: after idle time several would be admitted
        // at once.
        throttle.pace.goes(blocks, core.now_us(), if waited { SLACK_US } else { 0 });
        core.throttle.set(throttle);
    }
    std::mem::forget(waiting);
    AdmittedRequest(Some(core.now_us()))
}

/// Counts the completion of an admitted request of `blocks` blocks.
pub fn answered(core: &NamespaceCore, tenant: &Tenant, passed: AdmittedRequest, blocks: u64) {
    let (qos_state, Some(passed_us)) = (&tenant.qos_state, passed.0) else { return };
    let (now_us, mut demand) = (core.now_us(), qos_state.demand.get());
    demand.answered(qos_state.qos.get(), blocks, now_us.saturating_sub(passed_us), now_us);
    qos_state.demand.set(demand);
}

/// Waits until the throttle `hold`, which may change meanwhile, admits a request; returns whether there was a wait.
async fn wait<F: Future<Output = ()>>(
    core: &NamespaceCore,
    hold: impl Fn() -> RateLimit,
    sleep: &impl Fn(u64) -> F,
) -> bool {
    let mut wait_us = hold().wait_us(core.now_us());
    let waited = wait_us > 0;
    while wait_us > 0 {
        sleep(wait_us.min(LOOK_EVERY_US)).await;
        wait_us = hold().wait_us(core.now_us());
    }
    waited
}

/// Determines whether any namespace has a guarantee. If that has changed, all state of throttling is reset.
pub fn note_promises(core: &NamespaceCore) {
    let (tenants, now_us) = (core.tenants(), core.now_us());
    let promised = tenants.iter().any(|tenant| tenant.qos_state.qos.get().promises());
    if core.promised.replace(promised) != promised {
        core.throttle.set(Throttle::new(now_us));
        for tenant in tenants {
            tenant.qos_state.standing.take();
            tenant.qos_state.seen(now_us);
        }
    }
}

/// Evaluates and updates throttling, if a look is due; returns whether requests are outstanding.
pub fn look(core: &NamespaceCore, now_us: u64, tenants: &[Rc<Tenant>]) -> bool {
    let mut throttle = core.throttle.get();
    if throttle.is_due(now_us).is_some() {
        let party = |tenant: &Rc<Tenant>| {
            let qos_state = &tenant.qos_state;
            ThrottleEntry::new(
                qos_state.qos.get(),
                tenant.spec.weight,
                qos_state.seen(now_us),
                qos_state.standing.get(),
            )
        };
        let mut parties: Vec<ThrottleEntry> = tenants.iter().map(party).collect();
        throttle.look(now_us, &mut parties);
        core.throttle.set(throttle);
        for (tenant, party) in tenants.iter().zip(&parties) {
            tenant.qos_state.standing.set(party.standing());
        }
    }
    tenants.iter().any(|tenant| tenant.qos_state.demand.get().is_asking())
}
