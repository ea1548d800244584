//! Admission of requests of the clients of a device, by their rate limits and by throttling.
//!
//! The server of a client requests admission for each read and write, and reports each completion. Internal work needs
//! none. Without limits and guarantees admission costs two memory accesses.

use crate::{
    qos::{
        limit::RateLimiter,
        terms::Qos,
        throttle::{Demand, LOOK_EVERY_US, RateLimit, SLACK_US, Throttle, ThrottleEntry, ThrottleState},
    },
    runtime::Exclusive,
};
use std::cell::Cell;

/// An admitted request, with the time of its admission in microseconds if requests are counted.
#[derive(Clone, Copy, Debug)]
#[must_use = "the answer must be delivered"]
pub struct AdmittedRequest(Option<u64>);

impl AdmittedRequest {
    /// A request that is not counted.
    pub const UNCOUNTED: AdmittedRequest = AdmittedRequest(None);
}

/// Quality-of-service state of a client.
#[derive(Default)]
pub struct QosState {
    /// Present quality of service.
    qos: Cell<Qos>,
    /// Admission within the limits.
    limiter: RateLimiter,
    /// Requests since the last look.
    demand: Cell<Demand>,
    /// Its throttle, and its state from look to look.
    standing: Cell<ThrottleState>,
    /// Queue of its throttled requests: one is admitted at a time.
    turn: Exclusive,
}

impl QosState {
    /// State of a client without requests so far.
    pub fn new(qos: Qos) -> QosState {
        QosState { qos: Cell::new(qos), ..QosState::default() }
    }

    /// Its present quality of service.
    pub fn qos(&self) -> Qos {
        self.qos.get()
    }

    /// Changes its quality of service, which holds at once, also for waiting requests. [`QosControl::note_guarantees`] has
    /// to follow.
    pub fn set(&self, qos: Qos) {
        let former = self.qos.replace(qos);
        if former != qos {
            self.standing.take();
        }
        if former.limits != qos.limits {
            self.limiter.reset();
        }
    }

    /// Rate to which it is throttled, in blocks a second; `None` if it is not.
    pub fn held_to(&self) -> Option<u64> {
        self.standing.get().hold.rate()
    }

    /// Whether its floors, and its latency target, are out of reach.
    pub fn out_of_reach(&self) -> [bool; 2] {
        self.standing.get().out_of_reach()
    }

    /// Whether requests wait for admission or are outstanding, as far as they are counted.
    pub fn is_asking(&self) -> bool {
        self.demand.get().is_asking()
    }

    /// Returns the demand since the last call, and begins a new count.
    fn seen(&self, now_us: u64) -> Demand {
        let mut demand = self.demand.get();
        let seen = demand.seen(now_us);
        self.demand.set(demand);
        seen
    }

    fn update_demand(&self, update: impl FnOnce(&mut Demand)) {
        let mut demand = self.demand.get();
        update(&mut demand);
        self.demand.set(demand);
    }
}

/// A request that waits to be admitted; it is withdrawn if this is dropped.
struct WaitingRequest<'a, N: Fn() -> u64>(&'a QosState, &'a N);

impl<N: Fn() -> u64> Drop for WaitingRequest<'_, N> {
    fn drop(&mut self) {
        let WaitingRequest(client, now_us) = self;
        client.update_demand(|demand| demand.withdrawn(now_us()));
    }
}

/// Throttling of all clients of a device for the guarantees of some.
#[derive(Default)]
pub struct QosControl {
    /// Whether a client has a guarantee for which others may be throttled.
    has_guarantees: Cell<bool>,
    /// State of throttling; `None` before the first look.
    throttle: Cell<Option<Throttle>>,
    /// Queue of the throttled requests of all clients: one is admitted at a time.
    turn: Exclusive,
}

impl QosControl {
    /// Whether a client has a guarantee for which others may be throttled: looks are due then.
    pub fn has_guarantees(&self) -> bool {
        self.has_guarantees.get()
    }

    /// Waits until a read or write of `blocks` blocks is admitted. `now_us` is the time in microseconds from an arbitrary
    /// origin, and `sleep` waits for a number of microseconds.
    pub async fn admit<F: Future<Output = ()>>(
        &self,
        client: &QosState,
        blocks: u64,
        now_us: impl Fn() -> u64,
        sleep: impl Fn(u64) -> F,
    ) -> AdmittedRequest {
        client.limiter.admit(|| client.qos.get().limits, blocks, &now_us, &sleep).await;
        if !self.has_guarantees.get() {
            return AdmittedRequest::UNCOUNTED;
        }
        client.update_demand(|demand| demand.asked(now_us()));
        let waiting = WaitingRequest(client, &now_us);
        if client.held_to().is_some() {
            {
                let _turn = client.turn.take().await;
                wait(|| client.standing.get().hold, &now_us, &sleep).await;
                let mut standing = client.standing.get();
                standing.hold.goes(blocks, now_us(), SLACK_US);
                client.standing.set(standing);
            }
            let _turn = self.turn.take().await;
            let pace = || self.throttle.get().unwrap_or_default().pace;
            let waited = wait(pace, &now_us, &sleep).await;
            if let Some(mut throttle) = self.throttle.get() {
                // Only a request that had to wait is given credit for waking up late: after idle time several would be
                // admitted at once.
                throttle.pace.goes(blocks, now_us(), if waited { SLACK_US } else { 0 });
                self.throttle.set(Some(throttle));
            }
        }
        std::mem::forget(waiting);
        AdmittedRequest(Some(now_us()))
    }

    /// Counts the completion of an admitted request of `blocks` blocks.
    pub fn answered(
        &self,
        client: &QosState,
        admitted: AdmittedRequest,
        blocks: u64,
        now_us: impl Fn() -> u64,
    ) {
        let AdmittedRequest(Some(admitted_us)) = admitted else { return };
        let now_us = now_us();
        let latency_us = now_us.saturating_sub(admitted_us);
        client.update_demand(|demand| demand.answered(client.qos.get(), blocks, latency_us, now_us));
    }

    /// Determines whether any client has a guarantee. If that has changed, all state of throttling is reset, and begins anew
    /// at this time, or at the first look if the time is not known.
    pub fn note_guarantees<'a>(
        &self,
        clients: impl Iterator<Item = &'a QosState> + Clone,
        now_us: Option<u64>,
    ) {
        let has = clients.clone().any(|client| client.qos.get().promises());
        if self.has_guarantees.replace(has) != has {
            self.throttle.take();
            clients.clone().for_each(|client| _ = client.standing.take());
            if let Some(now_us) = now_us {
                self.begin(now_us, clients);
            }
        }
    }

    /// Begins throttling without the requests so far.
    fn begin<'a>(&self, now_us: u64, clients: impl Iterator<Item = &'a QosState>) {
        self.throttle.set(Some(Throttle::new(now_us)));
        clients.for_each(|client| _ = client.seen(now_us));
    }

    /// Evaluates and updates throttling, if a look is due: at most once in 10 ms. Clients come with their
    /// weights.
    pub fn look<'a>(&self, now_us: u64, clients: impl Iterator<Item = (&'a QosState, u32)> + Clone) {
        let Some(mut throttle) = self.throttle.get() else {
            return self.begin(now_us, clients.map(|(client, _)| client));
        };
        if throttle.is_due(now_us).is_none() {
            return;
        }
        let entry = |(client, weight): (&QosState, u32)| {
            ThrottleEntry::new(client.qos.get(), weight, client.seen(now_us), client.standing.get())
        };
        let mut entries: Vec<ThrottleEntry> = clients.clone().map(entry).collect();
        throttle.look(now_us, &mut entries);
        self.throttle.set(Some(throttle));
        for ((client, _), entry) in clients.zip(&entries) {
            client.standing.set(entry.standing());
        }
    }
}

/// Waits until the throttle `hold`, which may change meanwhile, admits a request; returns whether there was a wait.
async fn wait<F: Future<Output = ()>>(
    hold: impl Fn() -> RateLimit,
    now_us: impl Fn() -> u64,
    sleep: impl Fn(u64) -> F,
) -> bool {
    let mut wait_us = hold().wait_us(now_us());
    let waited = wait_us > 0;
    while wait_us > 0 {
        sleep(wait_us.min(LOOK_EVERY_US)).await;
        wait_us = hold().wait_us(now_us());
    }
    waited
}
