//! How far namespaces are held back for the sake of others: floors, and the class of latency.
//!
//! No device can be made faster, only others be held back. So all that was answered is counted, and looked at a
//! hundred times a second. If a namespace was *short*, served below its floor while it asked for it, or *late*,
//! others are held back: each gets a rate, below what it had, and what lacks goes first by how much lacks. With each
//! look at which nobody is short or late rates grow by equal steps, so that they become shares by weight; one that has
//! grown to all that there is ends. Once nobody has asked for what was promised for a tenth of a second, nobody is held
//! back. Requests that are held back go one behind the other, whosever they are, so that they do not meet: not even if
//! none has come for some time.
//!
//! A namespace of the class of latency is never held back, and one with a floor not below that. Beyond such floors all
//! others together keep a sixteenth of what there was lately, and where only latency is at stake all have four fifths:
//! so nothing comes to a stop, whatever was promised. A floor to which a namespace comes no nearer, whatever is taken
//! from others, is out of reach: it may ask too few requests at a time, or in too few zones. Then what it reached counts
//! for ten seconds. So is a latency that is missed and is hardly less while others are held back for it: for ten seconds
//! nobody is.
//!
//! Moments are in microseconds, from any start; they are handed in.

use crate::vzone::qos::{Qos, Rates};

/// It is looked at so often.
pub const LOOK_EVERY_US: u64 = 10_000;

/// What a namespace lacks is made up for within so long, and who has not asked for so long has no claims.
pub const PERIOD_US: u64 = 100_000;

const SECOND_US: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Who wakes up late may make up for so much.
pub const SLACK_US: u64 = 1000;

/// One of so many requests of the class of latency may be late; so many that are more are made up for, and each look
/// does so as this many requests at least.
const ONE_LATE_OF: i64 = 1000;
const MOST_LATE: i64 = 16;
const LOOK_IS_WORTH: i64 = 10;

/// Parts of the most that all were served lately: what those who are held back get at least, and what comes back with
/// a look. What is not served any more is forgotten by such a part with each look at which nobody is held back.
const LEAST: u64 = 16;
const STEP: u64 = 64;
const FADES: u64 = 512;

/// Within such a part of what others had when a request was late last, steps are so many times as small.
const EDGE: u64 = 16;
const CAREFUL: u64 = 128;

/// A floor is out of reach when a namespace has come no nearer, by a sixteenth, in so many looks; for how long that is
/// believed; and what all of a floor is.
const TRIES: u64 = 10;
const BELIEVED_US: u64 = 10_000_000;
const WHOLE: u64 = 1 << 10;

/// A latency is out of reach when it is missed beside others that are held back, and that is of little use: requests take
/// more than half as long as beside others that are not, and more than half as many are late. Of so many requests at
/// least, and a quarter as many beside those others; of so many times as many if it is to be tried again.
const SAMPLE: u64 = 64;
const SURE: u64 = 4;

/// Where only latency is at stake others lose at most such a part, and nothing before they have asked at so many looks:
/// only then it is known what there is.
const COSTS_IF_LATE: u64 = 5;
const KNOWN: u32 = 10;

/// Blocks a second that everybody gets.
const TRICKLE: u64 = 256;

/// What is known of a namespace since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests that wait here or are on their way, since when there are any, and how long there were.
    asking: u32,
    since_us: u64,
    busy_us: u64,
    /// What was answered, and how many of these requests were late.
    requests: u64,
    blocks: u64,
    late: u64,
    /// How long these took, in all.
    took_us: u64,
}

impl Demand {
    /// A request has come.
    pub fn asked(&mut self, now_us: u64) {
        if self.asking == 0 {
            self.since_us = now_us;
        }
        self.asking += 1;
    }

    /// One of so many blocks is answered; it took `latency_us`.
    pub fn answered(&mut self, qos: Qos, blocks: u64, latency_us: u64, now_us: u64) {
        self.requests += 1;
        self.blocks += blocks;
        self.late += (qos.latency_us > 0 && latency_us > qos.latency_us as u64) as u64;
        self.took_us = self.took_us.saturating_add(latency_us);
        self.asking = self.asking.saturating_sub(1);
        if self.asking == 0 {
            self.busy_us += now_us.saturating_sub(self.since_us);
        }
    }

    /// Whether somebody waits for an answer.
    pub fn is_asking(&self) -> bool {
        self.asking > 0
    }

    /// Whether it was asked for anything.
    fn was_asked(&self) -> bool {
        self.asking > 0 || self.requests > 0
    }

    /// What there was up to now; from now on it is counted anew.
    pub fn seen(&mut self, now_us: u64) -> Demand {
        let mut seen = *self;
        if self.asking > 0 {
            seen.busy_us += now_us.saturating_sub(self.since_us);
        }
        *self = Demand { asking: self.asking, since_us: now_us, ..Demand::default() };
        seen
    }
}

/// How fast a namespace that is held back may go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Blocks a second; nothing if it is not held back.
    rate: Option<u64>,
    /// When the last request went, and its blocks.
    went_ns: u64,
    blocks: u64,
}

impl Hold {
    /// Blocks a second that may go; nothing if it is not held back.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// When the next request may go.
    fn due_ns(&self) -> u64 {
        match self.rate {
            None => 0,
            Some(rate) => self.went_ns.saturating_add(self.blocks.saturating_mul(SECOND_NS) / rate.max(1)),
        }
    }

    /// How long the next request has to wait, as it is now.
    pub fn wait_us(&self, now_us: u64) -> u64 {
        self.due_ns().saturating_sub(now_us.saturating_mul(1000)).div_ceil(1000)
    }

    /// A request of so many blocks goes; of the time since it was due so much counts for those behind it.
    pub fn goes(&mut self, blocks: u64, now_us: u64, slack_us: u64) {
        let [now_ns, slack_ns] = [now_us, slack_us].map(|us| us.saturating_mul(1000));
        self.went_ns = self.due_ns().clamp(now_ns.saturating_sub(slack_ns), now_ns);
        self.blocks = blocks;
    }
}

/// Requests of the class of latency, how many of them were late, and how long they took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Took {
    requests: u64,
    late: u64,
    us: u64,
}

impl Took {
    fn add(&mut self, seen: &Demand) {
        self.requests += seen.requests;
        self.late += seen.late;
        self.us += seen.took_us;
    }
}

/// A namespace, as looks know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// How far it is held back.
    pub hold: Hold,
    /// By how much it is behind its floors, in millionths of requests and of blocks; less than nothing: ahead.
    behind: [i64; 2],
    /// Late requests beyond those that may be, in thousandths.
    late: i64,
    /// How long it has asked for nothing.
    idle_us: u64,
    /// Blocks of a request, as they were last.
    each: u64,
    /// How near it has come to floors that it is behind, as a part of [`WHOLE`], and for how many looks no nearer.
    nearest: u64,
    tries: u64,
    /// Of these looks, how near, in all.
    nears: u64,
    /// How near it can come, and for how long that is believed.
    reach: Option<(u64, u64)>,
    /// Its requests lately while nobody was held back for a latency, and while others were, once that had taken effect;
    /// and at how many looks they have been.
    beside_free: Took,
    beside_held: Took,
    held: u64,
    /// How long it is believed that its latency is out of reach.
    hopeless_us: u64,
}

/// What a look found of what was promised to a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Blocks that it lacks of this look alone.
    lacks: u64,
    late: bool,
    /// It has what it is to have, but what it lacked before is not made up for.
    owed: bool,
    /// It has asked within the period for what is not out of reach.
    asks: bool,
}

impl Standing {
    /// Whether it comes no nearer to its floors, and whether it is of no use to hold others back for its latency.
    pub fn out_of_reach(&self) -> [bool; 2] {
        [self.reach.is_some(), self.hopeless_us > 0]
    }

    fn find(&mut self, qos: Qos, seen: &Demand, held: bool, passed_us: u64) -> Found {
        if let Some(each) = seen.blocks.checked_div(seen.requests) {
            self.each = each;
        }
        if !qos.promises() {
            return Found::default();
        }
        self.idle_us = if seen.was_asked() { 0 } else { self.idle_us.saturating_add(passed_us) };
        self.reach = self.reach.and_then(|(reach, left_us)| Some((reach, left_us.checked_sub(passed_us)?)));
        self.hopeless_us = self.hopeless_us.saturating_sub(passed_us);
        if self.idle_us >= PERIOD_US {
            // What was learnt outlives a pause.
            (self.behind, self.late, self.nearest, self.tries, self.nears) = ([0; 2], 0, 0, 0, 0);
            return Found::default();
        }
        let (reach, mut near) = (self.reach.map_or(WHOLE, |(reach, _)| reach), u64::MAX);
        if qos.latency_us > 0 {
            self.judge_latency(seen, held);
        }
        let latency = qos.latency_us > 0 && self.hopeless_us == 0;
        let mut found = Found { asks: latency || qos.floors != Rates::default(), ..Found::default() };
        let each = self.each.max(1);
        // What is counted, how much of it a request is, and how many blocks one of it is.
        let floors =
            [(qos.floors.requests, seen.requests, 1, each), (qos.floors.blocks, seen.blocks, each, 1)];
        for (behind, (floor, served, request, blocks)) in self.behind.iter_mut().zip(floors) {
            let asked = floor as u64 * seen.busy_us.min(PERIOD_US);
            near = near.min(served.saturating_mul(SECOND_US * WHOLE).checked_div(asked).unwrap_or(u64::MAX));
            let (floor, second) = ((floor as u64 * reach / WHOLE) as i64, SECOND_US as i64);
            let lacks = floor * seen.busy_us.min(PERIOD_US) as i64 - served as i64 * second;
            // Where requests are rare, one of them is worth more than a look.
            let ahead = (floor * LOOK_EVERY_US as i64).max(request as i64 * second);
            *behind = (*behind + lacks).clamp(-ahead, floor * PERIOD_US as i64);
            // A debt fades while nothing is asked for.
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

    /// Sees whether it is of use that others are held back.
    fn judge_latency(&mut self, seen: &Demand, held: bool) {
        self.held = if held { self.held + 1 } else { 0 };
        match self.held {
            0 => self.beside_free.add(seen),
            // What it took before is known, and for whose sake others are held back is not.
            _ if self.hopeless_us > 0 => return self.held = 0,
            looks if looks <= TRIES => self.beside_held = Took::default(),
            _ => self.beside_held.add(seen),
        }
        let (free, held) = (&mut self.beside_free, self.beside_held);
        let is_half = |held_in_all: u64, free_in_all: u64| {
            free.requests >= SAMPLE / 4 && free_in_all * held.requests >= 2 * held_in_all * free.requests
        };
        let helps = is_half(held.us, free.us) || is_half(held.late, free.late);
        if self.held >= 2 * TRIES && held.requests >= SAMPLE {
            if !helps && held.late * ONE_LATE_OF as u64 > held.requests {
                // What it takes beside others that are not held back is learnt anew: it may have been less than it is.
                (self.late, self.hopeless_us, *free) = (0, BELIEVED_US, Took::default());
            } else {
                (self.held, self.beside_held) = (TRIES, Took::default());
            }
        }
        if free.requests >= SURE * SAMPLE {
            if helps {
                self.hopeless_us = 0;
            }
            *free = Took { requests: free.requests / 2, late: free.late / 2, us: free.us / 2 };
        }
    }

    /// Sees whether what others leave is of use: it has come so near to its floors.
    fn judge(&mut self, found: &mut Found, near: u64) {
        if self.reach.is_some_and(|(reach, _)| near != u64::MAX && near > reach + reach / 8) {
            // It can do more than was believed.
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

/// A namespace at a look.
#[derive(Clone, Copy, Debug)]
pub struct Party {
    qos: Qos,
    weight: u64,
    seen: Demand,
    standing: Standing,
    found: Found,
}

impl Party {
    /// One of which so much was seen since the last look.
    pub fn new(qos: Qos, weight: u32, seen: Demand, standing: Standing) -> Party {
        Party { qos, weight: weight as u64, seen, standing, found: Found::default() }
    }

    /// As the look has left it.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Blocks a second that were answered.
    fn rate(&self, passed_us: u64) -> u64 {
        self.seen.blocks.saturating_mul(SECOND_US) / passed_us.max(1)
    }

    /// What it has for certain, in blocks a second, and an eighth more.
    fn floor(&self) -> u64 {
        let floors = self.qos.floors;
        (floors.requests as u64 * self.standing.each).max(floors.blocks as u64) * 9 / 8
    }

    /// Whether others may be held back for its latency.
    fn is_latency_asked_for(&self) -> bool {
        self.qos.latency_us > 0 && self.found.asks && self.standing.hopeless_us == 0
    }

    /// Whether it may be held back.
    fn yields(&self) -> bool {
        self.found.lacks == 0 && self.qos.latency_us == 0
    }
}

/// Looks at all namespaces: who is held back from now on, and how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restraint {
    looked_us: u64,
    /// The most that all were served lately, in blocks a second.
    most: u64,
    /// For how many looks, up to [`KNOWN`], somebody asked who may be held back, since that has last grown by a quarter.
    known: u32,
    /// Others are held back for a latency.
    for_latency: bool,
    /// What those who yield were served when a request was late last, in blocks a second.
    late_at: u64,
    /// What all who are held back may have together.
    pub pace: Hold,
}

impl Restraint {
    /// Of what begins now.
    pub fn new(now_us: u64) -> Restraint {
        Restraint { looked_us: now_us, ..Restraint::default() }
    }

    /// How long it has been since the last look, if it is time for one.
    pub fn is_due(&self, now_us: u64) -> Option<u64> {
        Some(now_us.saturating_sub(self.looked_us)).filter(|passed_us| *passed_us >= LOOK_EVERY_US)
    }

    /// Looks, if it is time to.
    pub fn look(&mut self, now_us: u64, parties: &mut [Party]) {
        let Some(passed_us) = self.is_due(now_us) else { return };
        self.looked_us = now_us;
        // Whether anybody who is held back has all that it may have.
        let binding = parties.iter().any(|party| {
            party.standing.hold.rate.is_some_and(|rate| party.rate(passed_us) > rate - rate / 8)
        });
        for party in parties.iter_mut() {
            party.found = party.standing.find(party.qos, &party.seen, self.for_latency, passed_us);
        }
        let asks = parties.iter().any(|party| party.found.asks);
        self.for_latency &= parties.iter().any(Party::is_latency_asked_for);
        for party in parties.iter_mut() {
            let rate = &mut party.standing.hold.rate;
            if !asks {
                *rate = None;
            } else if party.found.lacks > 0 {
                // It was held to its floor, and a little less came of it.
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

    /// Takes so many blocks a second, or at least an eighth of what they had, from those who have asked and yield; gives
    /// what they had.
    fn tighten(&self, passed_us: u64, lacks: u64, parties: &mut [Party]) -> u64 {
        let asked = |party: &&mut Party| party.yields() && party.seen.was_asked();
        let (mut had, mut floors, mut weights) = (0_u64, 0_u64, 0);
        for party in parties.iter_mut().filter(asked) {
            let served = party.rate(passed_us);
            (had, weights) = (had.saturating_add(served), weights + party.weight);
            floors = floors.saturating_add(served.min(party.floor()));
        }
        // Beyond floors they keep so much.
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
            // Who has taken little does not pay for who has taken much.
            let least = (party.floor() + part(spare.max(left.saturating_sub(floors) / 2))).max(TRICKLE);
            let rate = &mut party.standing.hold.rate;
            *rate = Some(rate.map_or(u64::MAX, |rate| rate.max(TRICKLE)).min(cut.max(least)));
        }
        had
    }

    /// Gives everybody who is held back a step more, by weight; who then may have all that there is is let go.
    fn loosen(&self, parties: &mut [Party]) {
        let is_held = |party: &&mut Party| party.standing.hold.rate.is_some();
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
