//! How far namespaces are held back for the sake of others: floors, and the class of latency.
//!
//! No device can be made faster, only others be held back. So all that was answered is counted, and looked at a
//! hundred times a second. If a namespace was *short*, served below its floor while it asked for it, or *late*,
//! others are held back: each gets a rate, below what it had, and what lacks goes first by how much lacks. With each
//! look at which nobody is short or late rates grow by equal steps, so that they become shares by weight. Once nobody
//! has asked for what was promised for a tenth of a second, nobody is held back. Requests that are held back go one
//! behind the other, whosever they are, so that they do not meet.
//!
//! A namespace of the class of latency is never held back, and one with a floor not below that. All others together
//! keep a sixteenth of what there was lately, four fifths where only latency is at stake: so nothing comes to a stop,
//! whatever was promised. A floor to which a namespace comes no nearer, whatever is taken from others, is out of
//! reach: it may ask too few requests at a time, or in too few zones. Then what it reached counts for ten seconds. So
//! is a latency that is missed often, and is hardly less, while others are held back: for ten seconds nobody is for it.
//!
//! Moments are in microseconds, from any start; they are handed in.

use crate::vzone::qos::{Qos, Rates};

/// It is looked at so often.
pub const LOOK_EVERY_US: u64 = 10_000;

/// What a namespace lacks is made up for within so long, and who has not asked for so long has no claims.
pub const PERIOD_US: u64 = 100_000;

const SECOND_US: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Who wakes up late may make up for so much, in nanoseconds.
const SLACK_NS: u64 = 1_000_000;

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

/// A floor is out of reach when a namespace has come no nearer, by a sixteenth, in so many looks; for how long that is
/// believed; and what all of a floor is.
const TRIES: u64 = 10;
const BELIEVED_US: u64 = 10_000_000;
const WHOLE: u64 = 1 << 10;

/// A latency is out of reach when more than one of so many requests is late beside others that are held back, and they
/// take more than half as long as beside others that are not, of at least as many requests as this.
const FAR_OFF: u64 = 8;
const SAMPLE: u64 = 64;

/// Where only latency is at stake others lose at most such a part, and nothing before they have been seen at so many
/// looks at which nobody was held back: only then it is known what there is.
const COSTS_IF_LATE: u64 = 5;
const SEEN_FREE: u32 = 10;

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

    /// A request of so many blocks goes.
    pub fn goes(&mut self, blocks: u64, now_us: u64) {
        let now_ns = now_us.saturating_mul(1000);
        self.went_ns = self.due_ns().clamp(now_ns.saturating_sub(SLACK_NS), now_ns);
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
    /// Its requests lately while nobody was held back, and while others were, once that had taken effect; and at how
    /// many looks they have been.
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
    fn find(&mut self, qos: Qos, seen: &Demand, held: bool, passed_us: u64) -> Found {
        if let Some(each) = seen.blocks.checked_div(seen.requests) {
            self.each = each;
        }
        if !qos.promises() {
            return Found::default();
        }
        self.idle_us = if seen.was_asked() { 0 } else { self.idle_us.saturating_add(passed_us) };
        if self.idle_us >= PERIOD_US {
            *self =
                Standing { hold: self.hold, each: self.each, idle_us: self.idle_us, ..Standing::default() };
            return Found::default();
        }
        self.reach = self.reach.and_then(|(reach, left_us)| Some((reach, left_us.checked_sub(passed_us)?)));
        let (reach, mut near) = (self.reach.map_or(WHOLE, |(reach, _)| reach), u64::MAX);
        self.hopeless_us = self.hopeless_us.saturating_sub(passed_us);
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

    /// Sees whether it is of use that others are held back: requests take less than half as long.
    fn judge_latency(&mut self, seen: &Demand, held: bool) {
        self.held = if held { self.held + 1 } else { 0 };
        match self.held {
            0 => self.beside_free.add(seen),
            // What it took before is known, and for whose sake others are held back is not.
            _ if self.hopeless_us > 0 => return,
            looks if looks <= TRIES => self.beside_held = Took::default(),
            _ => self.beside_held.add(seen),
        }
        let (free, held) = (&mut self.beside_free, self.beside_held);
        let helps = free.us * held.requests >= 2 * held.us * free.requests;
        if self.held >= 2 * TRIES && held.requests >= SAMPLE {
            if !helps && held.late * FAR_OFF > held.requests {
                // What it takes beside others that are not held back is learnt anew: it may have been less than it is.
                (self.late, self.hopeless_us, *free) = (0, BELIEVED_US, Took::default());
            } else {
                (self.held, self.beside_held) = (TRIES, Took::default());
            }
        }
        if free.requests >= SAMPLE {
            if helps {
                self.hopeless_us = 0;
            }
            free.requests /= 2;
            free.us /= 2;
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
    /// Looks at which somebody asked who may be held back, and nobody was, up to [`SEEN_FREE`].
    free: u32,
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
        let held = parties.iter().any(|party| party.standing.hold.rate.is_some());
        for party in parties.iter_mut() {
            party.found = party.standing.find(party.qos, &party.seen, held, passed_us);
        }
        let asks = parties.iter().any(|party| party.found.asks);
        for party in parties.iter_mut() {
            let rate = &mut party.standing.hold.rate;
            if !asks || party.qos.latency_us > 0 {
                *rate = None;
            } else if party.found.lacks > 0 {
                // It was held to its floor, and a little less came of it.
                *rate = rate.map(|rate| rate.saturating_mul(2));
            }
        }
        let all = parties.iter().fold(0_u64, |sum, party| sum.saturating_add(party.rate(passed_us)));
        if parties.iter().all(|party| party.standing.hold.rate.is_none()) {
            self.most -= self.most / FADES;
            let asked = parties.iter().any(|party| party.yields() && party.seen.was_asked());
            self.free = SEEN_FREE.min(self.free + asked as u32);
        }
        self.most = self.most.max(all);
        let lacks = parties.iter().map(|party| party.found.lacks).max().unwrap_or(0);
        let late = parties.iter().any(|party| party.found.late);
        if lacks > 0 || late && self.free == SEEN_FREE {
            self.tighten(passed_us, lacks.saturating_mul(SECOND_US) / passed_us, parties);
        } else if !parties.iter().any(|party| party.found.owed) {
            self.loosen(parties);
        }
        let rates = parties.iter().filter_map(|party| party.standing.hold.rate);
        self.pace.rate = rates.reduce(u64::saturating_add);
    }

    /// Takes so many blocks a second, or at least an eighth of what they had, from those who have asked and yield.
    fn tighten(&self, passed_us: u64, lacks: u64, parties: &mut [Party]) {
        let asked = |party: &&mut Party| party.yields() && party.seen.was_asked();
        let (mut had, mut weights) = (0_u64, 0);
        for party in parties.iter_mut().filter(asked) {
            (had, weights) = (had.saturating_add(party.rate(passed_us)), weights + party.weight);
        }
        let left = had - lacks.clamp(had / 8, had / 2);
        let kept = if lacks > 0 { self.most / LEAST } else { self.most - self.most / COSTS_IF_LATE };
        for party in parties.iter_mut().filter(asked) {
            let part = |of: u64| (of as u128 * party.weight as u128 / weights.max(1) as u128) as u64;
            let served = party.rate(passed_us);
            let rate = party.standing.hold.rate.map_or(served, |rate| rate.min(served));
            let cut = (rate as u128 * left as u128 / had.max(1) as u128) as u64;
            // Who has taken little does not pay for who has taken much.
            let least = part(left / 2).max(part(kept)).max(party.floor()).max(TRICKLE);
            let rate = &mut party.standing.hold.rate;
            *rate = Some(rate.map_or(u64::MAX, |rate| rate.max(TRICKLE)).min(cut.max(least)));
        }
    }

    /// Gives everybody who is held back a step more, by weight.
    fn loosen(&self, parties: &mut [Party]) {
        let is_held = |party: &&mut Party| party.standing.hold.rate.is_some();
        let weights: u64 = parties.iter_mut().filter(is_held).map(|party| party.weight).sum();
        for party in parties.iter_mut().filter(is_held) {
            let step = (self.most / STEP * party.weight / weights.max(1)).max(1);
            let rate = &mut party.standing.hold.rate;
            *rate = rate.map(|rate| rate.saturating_add(step).min(u32::MAX as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that the device serves in a look.
    const ALL: u64 = 8000;

    /// Blocks of each request.
    const EACH: u64 = 8;

    /// Namespaces that ask a device for more than there is: it serves them by how much each has let through, at most
    /// as much as that; requests of the class of latency are late while others take more than nine tenths.
    struct Rig {
        now_us: u64,
        restraint: Restraint,
        qos: Vec<Qos>,
        standings: Vec<Standing>,
        served: Vec<u64>,
        /// Requests are late whatever others take.
        hopeless: bool,
    }

    impl Rig {
        fn new(qos: &[Qos]) -> Rig {
            let restraint = Restraint::default();
            let (standings, served) = (vec![Standing::default(); qos.len()], vec![0; qos.len()]);
            Rig { now_us: 0, restraint, qos: qos.to_vec(), standings, served, hopeless: false }
        }

        /// A look at the end of which each had asked for so many blocks.
        fn look(&mut self, asked: &[u64]) {
            let may = |(asked, standing): (&u64, &Standing)| {
                let rate =
                    standing.hold.rate().unwrap_or(u64::MAX / LOOK_EVERY_US) * LOOK_EVERY_US / SECOND_US;
                (*asked).min(rate)
            };
            let let_through: Vec<u64> = asked.iter().zip(&self.standings).map(may).collect();
            let all: u64 = let_through.iter().sum();
            self.served =
                let_through.iter().map(|let_through| let_through * ALL.min(all) / all.max(1)).collect();
            let full = self.hopeless || self.served.iter().sum::<u64>() > ALL * 9 / 10;
            self.now_us += LOOK_EVERY_US;
            let party = |((qos, asked), (served, standing)): ((&Qos, &u64), (&u64, &Standing))| {
                let requests = served / EACH;
                let late = if full && qos.latency_us > 0 { requests } else { 0 };
                let busy_us = if *asked > 0 { LOOK_EVERY_US } else { 0 };
                let took_us = requests * if full { 1000 } else { 100 };
                let seen = Demand { requests, blocks: *served, late, took_us, busy_us, ..Demand::default() };
                Party::new(*qos, 1, seen, *standing)
            };
            let before = self.qos.iter().zip(asked).zip(self.served.iter().zip(&self.standings));
            let mut parties: Vec<Party> = before.map(party).collect();
            self.restraint.look(self.now_us, &mut parties);
            self.standings = parties.iter().map(Party::standing).collect();
        }

        /// What each was served on average over so many looks, in blocks.
        fn looks(&mut self, count: u64, asked: &[u64]) -> Vec<u64> {
            let mut sums = vec![0; asked.len()];
            for _ in 0..count {
                self.look(asked);
                sums.iter_mut().zip(&self.served).for_each(|(sum, served)| *sum += served);
            }
            sums.iter().map(|sum| sum / count).collect()
        }

        fn is_held(&self) -> bool {
            self.standings.iter().any(|standing| standing.hold.rate().is_some())
        }
    }

    fn floor(blocks_of_a_look: u64) -> Qos {
        let blocks = (blocks_of_a_look * SECOND_US / LOOK_EVERY_US) as u32;
        Qos { floors: Rates { requests: 0, blocks }, ..Qos::default() }
    }

    const NONE: Qos = Qos {
        limits: Rates { requests: 0, blocks: 0 },
        floors: Rates { requests: 0, blocks: 0 },
        latency_us: 0,
    };

    #[test]
    fn a_floor_is_kept_while_it_is_asked_for_and_others_have_the_rest() {
        let mut rig = Rig::new(&[floor(4000), NONE, NONE, NONE]);
        let asked = [8000; 4];
        // Without it, it would be a quarter.
        rig.look(&asked);
        assert_eq!(rig.served, [2000; 4]);
        // Within a period it has what it is to have.
        rig.looks(9, &asked);
        assert!(rig.served[0] >= 4000, "{:?}", rig.served);
        let mean = rig.looks(300, &asked);
        assert!(mean[0] >= 4000, "{mean:?}");
        assert!(mean[1..].iter().sum::<u64>() >= ALL - 4000 - 500, "{mean:?}");
        assert!(mean[1..].iter().all(|each| each.abs_diff(mean[1]) < 50), "{mean:?}");
    }

    #[test]
    fn a_floor_in_requests_is_kept_as_well() {
        let floors = Rates { requests: 50_000, blocks: 0 };
        let mut rig = Rig::new(&[Qos { floors, ..NONE }, NONE]);
        let mean = rig.looks(300, &[8000, 40_000]);
        assert!(mean[0] >= 500 * EACH * 98 / 100 && mean[1] >= 3500, "{mean:?}");
    }

    #[test]
    fn what_is_not_asked_for_goes_to_others_and_comes_back_within_a_period() {
        let mut rig = Rig::new(&[floor(4000), NONE, NONE]);
        rig.looks(100, &[8000; 3]);
        assert!(rig.is_held());
        // A floor that is idle holds nobody back.
        rig.looks(PERIOD_US / LOOK_EVERY_US, &[0, 8000, 8000]);
        assert!(!rig.is_held());
        assert_eq!(rig.looks(1000, &[0, 8000, 8000]), [0, 4000, 4000]);
        rig.looks(PERIOD_US / LOOK_EVERY_US, &[8000; 3]);
        assert!(rig.served[0] >= 4000, "{:?}", rig.served);
        // Nor does one that is asked for less than what it would get.
        let mut rig = Rig::new(&[floor(4000), NONE]);
        let seen = Demand { requests: 10, blocks: 80, busy_us: 150, ..Demand::default() };
        let mut parties = [floor(4000), NONE].map(|qos| Party::new(qos, 1, seen, Standing::default()));
        rig.restraint.look(LOOK_EVERY_US, &mut parties);
        assert!(parties.iter().all(|party| party.standing().hold.rate().is_none()));
    }

    #[test]
    fn nobody_stops_whatever_was_promised_and_a_floor_is_no_ceiling() {
        // More than there is.
        let mut rig = Rig::new(&[floor(20_000), floor(1000), NONE, NONE]);
        rig.looks(100, &[8000, 8000, 8000, 8000]);
        let mean = rig.looks(100, &[8000; 4]);
        assert!(mean[1] >= 950 && mean[2..].iter().all(|each| *each >= ALL / LEAST / 8), "{mean:?}");
        // Nor in the first looks, in which it is not known yet that this is out of reach.
        let mut rig = Rig::new(&[floor(20_000), floor(1000), NONE, NONE]);
        for _ in 0..50 {
            rig.look(&[8000; 4]);
            let with_a_floor = rig.standings[1].hold.rate();
            assert!(with_a_floor.is_none_or(|rate| rate >= 112_500), "{with_a_floor:?}");
            assert!(rig.served[1..].iter().all(|served| *served >= ALL / LEAST / 8), "{:?}", rig.served);
        }
        let mut rig = Rig::new(&[floor(1000), NONE]);
        assert_eq!(rig.looks(50, &[8000, 3000]), [5818, 2181]);
        assert!(!rig.is_held());
    }

    #[test]
    fn others_are_held_back_while_a_latency_is_too_long_and_have_nearly_all() {
        let class = Qos { latency_us: 100, ..NONE };
        let mut rig = Rig::new(&[class, NONE, NONE]);
        let mean = rig.looks(1000, &[80, 8000, 8000]);
        assert!((70..=80).contains(&mean[0]) && mean[1] + mean[2] >= ALL * 8 / 10, "{mean:?}");
        rig.looks(PERIOD_US / LOOK_EVERY_US, &[0, 8000, 8000]);
        assert!(!rig.is_held());
        // One that nothing helps costs others a fifth while that is tried, and it is tried seldom.
        let mut rig = Rig::new(&[class, NONE, NONE]);
        rig.hopeless = true;
        let tried = SEEN_FREE as u64 + 2 * TRIES + 2;
        let mean = rig.looks(tried, &[80, 8000, 8000]);
        assert!(!rig.is_held() && mean[1] + mean[2] < ALL * 9 / 10, "{mean:?}");
        let mean = rig.looks(BELIEVED_US / LOOK_EVERY_US - 2 * TRIES, &[80, 8000, 8000]);
        assert!(mean[1] + mean[2] > ALL * 98 / 100, "{mean:?}");
        // Then it is tried again, and kept if it helps.
        rig.hopeless = false;
        rig.looks(100, &[80, 8000, 8000]);
        assert!(rig.is_held());
    }

    #[test]
    fn a_floor_that_is_out_of_reach_costs_others_nothing_for_long() {
        // It never asks for more than 1500 at once.
        let mut rig = Rig::new(&[floor(4000), NONE, NONE]);
        rig.looks(200, &[1500, 8000, 8000]);
        let mean = rig.looks(500, &[1500, 8000, 8000]);
        assert!(mean[0] >= 1300 && mean[1] + mean[2] >= 6000, "{mean:?}");
        // When it does that is noticed, and it has its floor.
        rig.looks(PERIOD_US / LOOK_EVERY_US, &[8000; 3]);
        let mean = rig.looks(100, &[8000; 3]);
        assert!(mean[0] >= 3950, "{mean:?}");
    }

    #[test]
    fn one_of_a_thousand_may_be_late() {
        let mut standing = Standing::default();
        let qos = Qos { latency_us: 100, ..NONE };
        let mut find = |requests, late| {
            let seen = Demand { asking: 1, requests, late, ..Demand::default() };
            let found = standing.find(qos, &seen, false, LOOK_EVERY_US);
            (found.late, found.owed)
        };
        let (fine, late, owed) = ((false, false), (true, true), (false, true));
        assert!((0..10).all(|_| find(2000, 0) == fine));
        assert!((0..10).all(|_| find(1000, 1) == fine));
        assert_eq!([find(900, 1), find(100, 1), find(100, 1)], [fine, fine, late]);
        // It is made up for before anybody gets more.
        assert_eq!([find(500, 0), find(399, 0), find(200, 0)], [owed, owed, fine]);
        // Each look is worth something, and no more than so much is remembered.
        assert_eq!(find(1000, 1000), late);
        let looks = (0..).take_while(|_| find(0, 0) == owed).count();
        assert_eq!(looks as i64, MOST_LATE * ONE_LATE_OF / LOOK_IS_WORTH - 1);
    }

    #[test]
    fn a_latency_is_given_up_where_holding_others_back_is_of_no_use_until_it_is() {
        let qos = Qos { latency_us: 100, ..NONE };
        let mut standing = Standing::default();
        // Whether it still has others held back after so many looks, with ten requests of this mean in each.
        let mut asks = |held: bool, looks: u64, late: u64, mean_us: u64| {
            let seen = Demand { asking: 1, requests: 10, late, took_us: 10 * mean_us, ..Demand::default() };
            (0..looks).map(|_| standing.find(qos, &seen, held, LOOK_EVERY_US).asks).last()
        };
        assert_eq!(asks(false, 20, 10, 400), Some(true));
        // Half of the time is worth it, though most are late, as long as it takes.
        assert_eq!(asks(true, 100, 6, 200), Some(true));
        assert_eq!(asks(true, TRIES + 1, 6, 210), Some(false));
        // Without, it is no worse: nothing was lost.
        assert_eq!(asks(false, 100, 10, 400), Some(false));
        // It gets worse.
        assert_eq!(asks(false, 2 * SAMPLE / 10, 10, 500), Some(true));
        // Where few are late nothing is given up, whatever it was without.
        assert_eq!([asks(false, 50, 0, 90), asks(true, 100, 1, 90)], [Some(true); 2]);
        // At first what was there before is still on its way.
        assert_eq!([asks(false, 50, 10, 90), asks(true, TRIES, 10, 900)], [Some(true); 2]);
        assert_eq!(asks(true, 100, 1, 90), Some(true));
        // It is believed for some time.
        assert_eq!(asks(true, 100, 2, 90), Some(false));
        assert_eq!(asks(false, BELIEVED_US / LOOK_EVERY_US, 10, 90), Some(true));
    }

    #[test]
    fn who_is_held_back_goes_at_its_rate_and_at_once_when_it_is_not() {
        let mut hold = Hold { rate: Some(8000), ..Hold::default() };
        let (mut now_us, mut gone) = (SECOND_US, 0);
        while now_us < 2 * SECOND_US {
            // Sleepers wake up late.
            now_us += hold.wait_us(now_us) + 70;
            hold.goes(8, now_us);
            gone += 8;
        }
        assert!((7990..=8020).contains(&gone), "{gone}");
        assert!(hold.wait_us(now_us) > 900);
        hold.rate = None;
        assert_eq!(hold.wait_us(now_us), 0);
        // Nothing is saved up for longer than a moment.
        let mut hold = Hold { rate: Some(8000), ..Hold::default() };
        hold.goes(8, 50 * SECOND_US);
        hold.goes(8, 100 * SECOND_US);
        assert_eq!(hold.wait_us(100 * SECOND_US), 0);
        hold.goes(8, 100 * SECOND_US);
        assert_eq!(hold.wait_us(100 * SECOND_US), 1000);
    }

    #[test]
    fn demand_counts_what_was_answered_and_how_long_there_was_any() {
        let qos = Qos { latency_us: 100, ..NONE };
        let mut demand = Demand::default();
        demand.asked(10);
        demand.asked(20);
        demand.answered(qos, 3, 100, 30);
        demand.answered(qos, 4, 101, 60);
        let seen = demand.seen(100);
        assert_eq!((seen.requests, seen.blocks, seen.late, seen.busy_us), (2, 7, 1, 50));
        demand.asked(150);
        assert_eq!(demand.seen(200).busy_us, 50);
        // What has not ended is asked for all the time.
        assert_eq!(demand.seen(300).busy_us, 100);
        demand.answered(qos, 1, 5, 310);
        assert_eq!((demand.is_asking(), demand.seen(400).busy_us), (false, 10));
    }
}
