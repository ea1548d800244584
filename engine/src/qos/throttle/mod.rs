//! Throttling of clients (namespaces, or volumes of a pool), so that others get their guaranteed rates (floors) and
//! latency targets.
//!
//! The only means to guarantee a rate is to throttle the other clients. All completed requests are counted, and
//! evaluated a hundred times a second: each evaluation is a *look*, one step of the control loop. If a client was
//! *short*, served below its floor although it had demand, or *late*, beyond its latency target, the others are
//! throttled: each gets a rate below its recent throughput, and together they lose as much as is lacking, or at least
//! an eighth. At each look without a short or late client the rates grow by steps in proportion to weights, so that
//! they converge to shares by weight; a rate that has grown to the throughput of the device is removed. Once no
//! client with a guarantee has had demand for a tenth of a second, all throttling ends. Throttled requests are
//! admitted one at a time across all clients, so that they do not form bursts, not even after an idle period.
//!
//! A client of the latency class is never throttled, and one with a floor not below its floor. Beyond these floors
//! all others together keep a sixteenth of the recent peak throughput, and where only latency is at stake all of them
//! keep four fifths: so no client stops, whatever was promised. A floor that a client does not approach, however
//! far others are throttled, is out of reach: its queue depth may be too low, or its requests may lie in too few zones.
//! The rate that it did reach then serves as its floor for ten seconds. A latency target is out of reach if it is
//! missed, and throttling others hardly improves it: then no client is throttled for it for ten seconds.
//!
//! Times are in microseconds from an arbitrary origin, and are passed in by the caller.

use crate::qos::{limit::Rates, terms::Qos};

/// Interval between looks, in microseconds.
pub const LOOK_EVERY_US: u64 = 10_000;

/// The period, in microseconds: a shortfall is made up for within it, and a client without demand for that long has
/// no claim to its guarantees.
pub const PERIOD_US: u64 = 100_000;

const SECOND_US: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Maximum credit for a throttled request that wakes up late, in microseconds.
pub const SLACK_US: u64 = 1000;

/// One request in `ONE_LATE_OF` of the latency class may be late. `MOST_LATE` late ones beyond that are remembered at
/// most, and a look pays them off as if it had `LOOK_IS_WORTH` requests at least.
const ONE_LATE_OF: i64 = 1000;
const MOST_LATE: i64 = 16;
const LOOK_IS_WORTH: i64 = 10;

/// Fractions (1/n) of the recent peak throughput: `LEAST` is the throughput that throttled clients keep together,
/// `STEP` the growth of their rates in a look, and `FADES` the decay of the peak in a look at which no throttle is
/// binding.
const LEAST: u64 = 16;
const STEP: u64 = 64;
const FADES: u64 = 512;

/// Within the fraction 1/`EDGE` of the throughput that others had when a request was last late, growth is `CAREFUL`
/// times slower.
const EDGE: u64 = 16;
const CAREFUL: u64 = 128;

/// A floor is out of reach when the client has come no nearer to it, by a sixteenth, in `TRIES` looks; that is taken
/// as true for `BELIEVED_US`. `WHOLE` stands for a whole floor in fractions of one.
const TRIES: u64 = 10;
const BELIEVED_US: u64 = 10_000_000;
const WHOLE: u64 = 1 << 10;

/// A latency is out of reach when it is missed while others are throttled and that is of little use: requests take more
/// than half as long as without throttling, and more than half as many are late. That is decided by `SAMPLE` requests
/// at least, and a quarter as many without throttling; to try again takes `SURE` times `SAMPLE` requests without
/// throttling.
const SAMPLE: u64 = 64;
const SURE: u64 = 4;

/// Where only latency is at stake others lose the fraction 1/`COSTS_IF_LATE` at most, and nothing before they have had
/// demand at `KNOWN` looks: only then is the throughput of the device known.
const COSTS_IF_LATE: u64 = 5;
const KNOWN: u32 = 10;

/// Minimum rate of a throttled client, in blocks a second: 1 MiB/s.
const TRICKLE: u64 = 256;

/// Requests of a client since the last look, counted from admission control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests that wait for admission or are outstanding.
    asking: u32,
    /// Time since which there are such requests, or of the last look if that is later.
    since_us: u64,
    /// Time during which there were such requests, up to `since_us`.
    busy_us: u64,
    /// Completed requests.
    requests: u64,
    /// Blocks of these requests.
    blocks: u64,
    /// Those of them that missed the latency target.
    late: u64,
    /// Sum of their latencies, in microseconds.
    took_us: u64,
}

impl Demand {
    /// Counts a request that has arrived.
    pub fn asked(&mut self, now_us: u64) {
        if self.asking == 0 {
            self.since_us = now_us;
        }
        self.asking += 1;
    }

    /// Counts the completion of a request of `blocks` blocks that took `latency_us`.
    pub fn answered(&mut self, qos: Qos, blocks: u64, latency_us: u64, now_us: u64) {
        self.requests += 1;
        self.blocks += blocks;
        self.late += (qos.latency_us > 0 && latency_us > qos.latency_us as u64) as u64;
        self.took_us = self.took_us.saturating_add(latency_us);
        self.withdrawn(now_us);
    }

    /// Counts a request that is dropped before it is admitted.
    pub fn withdrawn(&mut self, now_us: u64) {
        self.asking = self.asking.saturating_sub(1);
        if self.asking == 0 {
            self.busy_us += now_us.saturating_sub(self.since_us);
        }
    }

    /// Whether requests are outstanding.
    pub fn is_asking(&self) -> bool {
        self.asking > 0
    }

    /// Whether there was any demand.
    fn was_asked(&self) -> bool {
        self.asking > 0 || self.requests > 0
    }

    /// Returns the counts up to now, and begins new ones.
    pub fn seen(&mut self, now_us: u64) -> Demand {
        let mut seen = *self;
        if self.asking > 0 {
            seen.busy_us += now_us.saturating_sub(self.since_us);
        }
        *self = Demand { asking: self.asking, since_us: now_us, ..Demand::default() };
        seen
    }
}

/// Throttle of a client, or of all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Blocks a second; `None` if it is not throttled.
    rate: Option<u64>,
    /// Time at which the last request counts as admitted.
    went_ns: u64,
    /// Blocks of the last request.
    blocks: u64,
}

impl RateLimit {
    /// Admitted blocks a second; `None` if it is not throttled.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Time at which the next request may be admitted.
    fn due_ns(&self) -> u64 {
        match self.rate {
            None => 0,
            Some(rate) => self.went_ns.saturating_add(self.blocks.saturating_mul(SECOND_NS) / rate.max(1)),
        }
    }

    /// Time that the next request has to wait at the present rate.
    pub fn wait_us(&self, now_us: u64) -> u64 {
        self.due_ns().saturating_sub(now_us.saturating_mul(1000)).div_ceil(1000)
    }

    /// Counts a request of `blocks` blocks as admitted. Up to `slack_us` of the time since it was due are credited to
    /// the requests behind it.
    pub fn goes(&mut self, blocks: u64, now_us: u64, slack_us: u64) {
        let [now_ns, slack_ns] = [now_us, slack_us].map(|us| us.saturating_mul(1000));
        self.went_ns = self.due_ns().clamp(now_ns.saturating_sub(slack_ns), now_ns);
        self.blocks = blocks;
    }
}

/// Requests of a client of the latency class: their number, those of them that were late, and the sum of their
/// latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LatencySample {
    requests: u64,
    late: u64,
    us: u64,
}

impl LatencySample {
    fn add(&mut self, seen: &Demand) {
        self.requests += seen.requests;
        self.late += seen.late;
        self.us += seen.took_us;
    }
}

/// State of a client that is kept from look to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleState {
    /// The throttle of the client.
    pub hold: RateLimit,
    /// Shortfall below its floors, in millionths of requests and of blocks; negative if it is ahead.
    behind: [i64; 2],
    /// Late requests beyond the permitted share, in thousandths.
    late: i64,
    /// Time since it last had demand.
    idle_us: u64,
    /// Mean blocks of a request at the last look that had any.
    each: u64,
    /// The largest fraction of a floor that it has reached while short, in units of 1/[`WHOLE`].
    nearest: u64,
    /// Number of looks since then at which it was short and came no nearer.
    tries: u64,
    /// Sum of the fractions that it reached at these looks.
    nears: u64,
    /// If its floors are out of reach: the fraction that it can reach, and the microseconds for which that is assumed.
    reach: Option<(u64, u64)>,
    /// Its recent requests while no client was throttled for a latency.
    beside_free: LatencySample,
    /// Its recent requests while others were throttled for a latency, and that had taken effect.
    beside_held: LatencySample,
    /// Number of looks in a row at which others were throttled for a latency.
    held: u64,
    /// Microseconds for which its latency target is still assumed to be out of reach.
    hopeless_us: u64,
}

/// Result of a look for the guarantees of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GuaranteeCheck {
    /// Shortfall of this look alone, in blocks.
    lacks: u64,
    late: bool,
    /// A shortfall of this look or of earlier ones has not been made up for yet.
    owed: bool,
    /// The client has had demand within the period, and has a guarantee that is not out of reach.
    asks: bool,
}

impl ThrottleState {
    /// Whether its floors, and its latency target, are out of reach.
    pub fn out_of_reach(&self) -> [bool; 2] {
        [self.reach.is_some(), self.hopeless_us > 0]
    }

    /// Evaluates the requests since the last look, `seen`, against the guarantees `qos`. `held` is whether others are
    /// throttled for a latency.
    fn find(&mut self, qos: Qos, seen: &Demand, held: bool, passed_us: u64) -> GuaranteeCheck {
        if let Some(each) = seen.blocks.checked_div(seen.requests) {
            self.each = each;
        }
        if !qos.promises() {
            return GuaranteeCheck::default();
        }
        self.idle_us = if seen.was_asked() { 0 } else { self.idle_us.saturating_add(passed_us) };
        self.reach = self.reach.and_then(|(reach, left_us)| Some((reach, left_us.checked_sub(passed_us)?)));
        self.hopeless_us = self.hopeless_us.saturating_sub(passed_us);
        if self.idle_us >= PERIOD_US {
            // `reach` and the latency samples are kept through a pause.
            (self.behind, self.late, self.nearest, self.tries, self.nears) = ([0; 2], 0, 0, 0, 0);
            return GuaranteeCheck::default();
        }
        let (reach, mut near) = (self.reach.map_or(WHOLE, |(reach, _)| reach), u64::MAX);
        if qos.latency_us > 0 {
            self.judge_latency(seen, held);
        }
        let latency = qos.latency_us > 0 && self.hopeless_us == 0;
        let mut found =
            GuaranteeCheck { asks: latency || qos.floors != Rates::default(), ..GuaranteeCheck::default() };
        let each = self.each.max(1);
        // Of each floor: the floor, the amount served, the amount of one request, and the blocks of one unit of the
        // floor.
        let floors =
            [(qos.floors.requests, seen.requests, 1, each), (qos.floors.blocks, seen.blocks, each, 1)];
        for (behind, (floor, served, request, blocks)) in self.behind.iter_mut().zip(floors) {
            let asked = floor as u64 * seen.busy_us.min(PERIOD_US);
            near = near.min(served.saturating_mul(SECOND_US * WHOLE).checked_div(asked).unwrap_or(u64::MAX));
            let (floor, second) = ((floor as u64 * reach / WHOLE) as i64, SECOND_US as i64);
            let lacks = floor * seen.busy_us.min(PERIOD_US) as i64 - served as i64 * second;
            // A low floor may allow less than one request in a look.
            let ahead = (floor * LOOK_EVERY_US as i64).max(request as i64 * second);
            *behind = (*behind + lacks).clamp(-ahead, floor * PERIOD_US as i64);
            // A shortfall decays while there is no demand.
            let unasked = passed_us.saturating_sub(seen.busy_us).min(PERIOD_US) as i64;
            if unasked > 0 {
                *behind = (*behind).min(*behind / PERIOD_US as i64 * (PERIOD_US as i64 - unasked));
            }
            if *behind > 0 && lacks > 0 {
                found.lacks = found.lacks.max((lacks as u64).div_ceil(SECOND_US) * blocks);
            }
            found.owed |= *behind > 0;
        }
        self.judge(&mut found, near);
        if latency {
            self.late += seen.late as i64 * ONE_LATE_OF - (seen.requests as i64).max(LOOK_IS_WORTH);
            self.late = self.late.clamp(-ONE_LATE_OF, MOST_LATE * ONE_LATE_OF);
            found.late = seen.late > 0 && self.late > 0;
            found.owed |= self.late > 0;
        }
        found
    }

    /// Decides whether the latency target is out of reach: whether throttling others improves the latency.
    fn judge_latency(&mut self, seen: &Demand, held: bool) {
        self.held = if held { self.held + 1 } else { 0 };
        match self.held {
            0 => self.beside_free.add(seen),
            // Nothing is sampled while the target is out of reach: others may be throttled for another client.
            _ if self.hopeless_us > 0 => return self.held = 0,
            looks if looks <= TRIES => self.beside_held = LatencySample::default(),
            _ => self.beside_held.add(seen),
        }
        let (free, held) = (&mut self.beside_free, self.beside_held);
        let is_half = |held_in_all: u64, free_in_all: u64| {
            free.requests >= SAMPLE / 4 && free_in_all * held.requests >= 2 * held_in_all * free.requests
        };
        let helps = is_half(held.us, free.us) || is_half(held.late, free.late);
        if self.held >= 2 * TRIES && held.requests >= SAMPLE {
            if !helps && held.late * ONE_LATE_OF as u64 > held.requests {
                // The latency without throttling is sampled anew, since it may have become worse.
                (self.late, self.hopeless_us, *free) = (0, BELIEVED_US, LatencySample::default());
            } else {
                (self.held, self.beside_held) = (TRIES, LatencySample::default());
            }
        }
        if free.requests >= SURE * SAMPLE {
            if helps {
                self.hopeless_us = 0;
            }
            *free = LatencySample { requests: free.requests / 2, late: free.late / 2, us: free.us / 2 };
        }
    }

    /// Decides whether the floors are out of reach: whether throttling others brings the client nearer to them.
    /// `near` is the fraction of a floor that was reached at this look.
    fn judge(&mut self, found: &mut GuaranteeCheck, near: u64) {
        if self.reach.is_some_and(|(reach, _)| near != u64::MAX && near > reach + reach / 8) {
            // The client can reach more than was assumed.
            self.reach = None;
        }
        let near = near.min(WHOLE);
        if !found.owed {
            (self.nearest, self.tries, self.nears) = (0, 0, 0);
        } else if found.lacks > 0 && near > self.nearest + self.nearest / 16 {
            (self.nearest, self.tries, self.nears) = (near, 0, 0);
        } else if found.lacks > 0 {
            self.tries += 1;
            self.nears += near;
        }
        if self.tries >= TRIES {
            self.reach = Some((self.nears / self.tries * 15 / 16, BELIEVED_US));
            (self.behind, self.nearest, self.tries, self.nears) = ([0; 2], 0, 0, 0);
            (found.lacks, found.owed) = (0, false);
        }
    }
}

/// A client, as input and output of a look.
#[derive(Clone, Copy, Debug)]
pub struct ThrottleEntry {
    qos: Qos,
    weight: u64,
    seen: Demand,
    standing: ThrottleState,
    found: GuaranteeCheck,
}

impl ThrottleEntry {
    /// A client with its requests since the last look.
    pub fn new(qos: Qos, weight: u32, seen: Demand, standing: ThrottleState) -> ThrottleEntry {
        ThrottleEntry { qos, weight: weight as u64, seen, standing, found: GuaranteeCheck::default() }
    }

    /// State of the client after the look.
    pub fn standing(&self) -> ThrottleState {
        self.standing
    }

    /// Throughput since the last look, in blocks a second.
    fn rate(&self, passed_us: u64) -> u64 {
        self.seen.blocks.saturating_mul(SECOND_US) / passed_us.max(1)
    }

    /// The least rate to which it may be throttled, in blocks a second: its floor, and an eighth more.
    fn floor(&self) -> u64 {
        let floors = self.qos.floors;
        (floors.requests as u64 * self.standing.each).max(floors.blocks as u64) * 9 / 8
    }

    /// Whether others may be throttled for its latency.
    fn is_latency_asked_for(&self) -> bool {
        self.qos.latency_us > 0 && self.found.asks && self.standing.hopeless_us == 0
    }

    /// Whether it may be throttled.
    fn yields(&self) -> bool {
        self.found.lacks == 0 && self.qos.latency_us == 0
    }
}

/// Decides which clients are throttled, and at which rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    looked_us: u64,
    /// Recent peak of the total throughput, in blocks a second.
    most: u64,
    /// Looks, [`KNOWN`] at most, at which clients that may be throttled had demand, since the peak has last grown by
    /// a quarter.
    known: u32,
    /// Whether clients are throttled for a latency.
    for_latency: bool,
    /// Throughput of the clients that may be throttled when a request was last late, in blocks a second.
    late_at: u64,
    /// Common throttle of all throttled clients, at the sum of their rates.
    pub pace: RateLimit,
}

impl Throttle {
    /// Initial state, without throttling.
    pub fn new(now_us: u64) -> Throttle {
        Throttle { looked_us: now_us, ..Throttle::default() }
    }

    /// Time since the last look, if the next one is due.
    pub fn is_due(&self, now_us: u64) -> Option<u64> {
        Some(now_us.saturating_sub(self.looked_us)).filter(|passed_us| *passed_us >= LOOK_EVERY_US)
    }

    /// Carries out a look, if one is due.
    pub fn look(&mut self, now_us: u64, parties: &mut [ThrottleEntry]) {
        let Some(passed_us) = self.is_due(now_us) else { return };
        self.looked_us = now_us;
        // A throttle is binding if its client uses more than seven eighths of its rate.
        let binding = parties.iter().any(|party| {
            party.standing.hold.rate.is_some_and(|rate| party.rate(passed_us) > rate - rate / 8)
        });
        for party in parties.iter_mut() {
            party.found = party.standing.find(party.qos, &party.seen, self.for_latency, passed_us);
        }
        let asks = parties.iter().any(|party| party.found.asks);
        self.for_latency &= parties.iter().any(ThrottleEntry::is_latency_asked_for);
        for party in parties.iter_mut() {
            let rate = &mut party.standing.hold.rate;
            if !asks {
                *rate = None;
            } else if party.found.lacks > 0 {
                // The client was throttled to its floor, and was served a little less than that.
                *rate = rate.map(|rate| rate.saturating_mul(2));
            }
        }
        let all = parties.iter().fold(0_u64, |sum, party| sum.saturating_add(party.rate(passed_us)));
        if all > self.most + self.most / 4 {
            self.known = 0;
        }
        if parties.iter().any(|party| party.yields() && party.seen.was_asked()) {
            self.known = KNOWN.min(self.known + 1);
            if !binding {
                self.most -= self.most / FADES;
            }
        }
        self.most = self.most.max(all);
        let lacks = parties.iter().map(|party| party.found.lacks).max().unwrap_or(0);
        let late = self.known == KNOWN && parties.iter().any(|party| party.found.late);
        if lacks > 0 || late {
            self.for_latency |= late;
            let had = self.tighten(passed_us, lacks.saturating_mul(SECOND_US) / passed_us, parties);
            if late {
                self.late_at = had;
            }
        } else if !parties.iter().any(|party| party.found.owed) {
            self.loosen(parties);
        }
        let rates = parties.iter().filter_map(|party| party.standing.hold.rate);
        self.pace.rate = rates.reduce(u64::saturating_add);
        self.for_latency &= self.pace.rate.is_some();
    }

    /// Takes `lacks` blocks a second, or at least an eighth of their throughput, from the clients that had demand
    /// and may be throttled; returns their throughput before.
    fn tighten(&self, passed_us: u64, lacks: u64, parties: &mut [ThrottleEntry]) -> u64 {
        let asked = |party: &&mut ThrottleEntry| party.yields() && party.seen.was_asked();
        let (mut had, mut floors, mut weights) = (0_u64, 0_u64, 0);
        for party in parties.iter_mut().filter(asked) {
            let served = party.rate(passed_us);
            (had, weights) = (had.saturating_add(served), weights + party.weight);
            floors = floors.saturating_add(served.min(party.floor()));
        }
        // Throughput beyond their floors that they keep together.
        let spare = match lacks {
            0 => (self.most - self.most / COSTS_IF_LATE).saturating_sub(floors),
            _ => 0,
        };
        let spare = spare.max(self.most / LEAST);
        let kept = floors.saturating_add(spare);
        let left = (had - lacks.clamp(had / 8, had / 2)).max(kept.min(had));
        for party in parties.iter_mut().filter(asked) {
            let part = |of: u64| (of as u128 * party.weight as u128 / weights.max(1) as u128) as u64;
            let served = party.rate(passed_us);
            let rate = party.standing.hold.rate.map_or(served, |rate| rate.min(served));
            let cut = (rate as u128 * left as u128 / had.max(1) as u128) as u64;
            // A client that used little is not cut for one that used much.
            let least = (party.floor() + part(spare.max(left.saturating_sub(floors) / 2))).max(TRICKLE);
            let rate = &mut party.standing.hold.rate;
            *rate = Some(rate.map_or(u64::MAX, |rate| rate.max(TRICKLE)).min(cut.max(least)));
        }
        had
    }

    /// Raises the rates of throttled clients by one step, by weight, and removes those that have reached the
    /// throughput of the device.
    fn loosen(&self, parties: &mut [ThrottleEntry]) {
        let is_held = |party: &&mut ThrottleEntry| party.standing.hold.rate.is_some();
        let weights: u64 = parties.iter_mut().filter(is_held).map(|party| party.weight).sum();
        let edge = self.late_at - self.late_at / EDGE..self.late_at + self.late_at / EDGE;
        let careful = self.for_latency && edge.contains(&self.pace.rate.unwrap_or(0));
        let all = self.most / STEP / if careful { CAREFUL } else { 1 };
        for party in parties.iter_mut().filter(is_held) {
            let step = (all * party.weight / weights.max(1)).max(1);
            let rate = &mut party.standing.hold.rate;
            *rate = rate.map(|rate| rate.saturating_add(step)).filter(|rate| *rate < self.most);
        }
    }
}

#[cfg(test)]
mod tests;
