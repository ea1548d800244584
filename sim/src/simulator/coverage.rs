//! Coverage of lives: the states of zones that went into recoveries, and the results.
//!
//! A *sight* is one zone in one recovery that was judged: the policy, the kind of end, the state of the members, the
//! last fault, and the state of the zone before and after. All of it comes from the world's own records and from the
//! array's reports, nothing from the inside of the engine. The number of different sights measures how much seeds
//! cover; the [ledger] keeps the seeds that have shown rare ones.
//!
//! [ledger]: Ledger

use super::{
    oracle::{Change, Oracle, OracleZone},
    scenario::{Scenario, level, parities_of},
};
use engine::{
    array::MemberState,
    raid::policy::Policy,
    zone::{ZoneInfo, ZoneState},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// One zone in one recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sight {
    policy: Policy,
    parities: usize,
    before: &'static str,
    after: &'static str,
    struck: &'static str,
    end: &'static str,
    members: &'static str,
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sight { end, members, struck, before, after, .. } = self;
        write!(f, "{end}, {members}, {struck}: {before} -> {after}")
    }
}

/// Sights of a world, and how the next recovery is to be recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    /// The kind of the last end.
    pub end: &'static str,
    /// The last fault, or the kind of foreign drive that was offered along with the members.
    pub struck: &'static str,
    pub seen: BTreeSet<Sight>,
}

impl Coverage {
    /// Records the result of a recovery, before the oracle has taken it over.
    pub fn see(
        &mut self,
        scenario: &Scenario,
        states: &[(MemberState, String)],
        oracle: &Oracle,
        report: &[ZoneInfo],
    ) {
        let count = |state: MemberState| states.iter().filter(|(other, _)| *other == state).count();
        let members = match (count(MemberState::Out), count(MemberState::Rebuilding)) {
            (0, 0) => "all members",
            (1, 0) => "one out",
            (0, 1) => "one not whole",
            (1, 1) => "one out, one not whole",
            (_, 0) => "two out",
            (0, _) => "two not whole",
            (_, _) => "more than two lacking",
        };
        let Coverage { end, struck, .. } = *self;
        for (info, zone) in report.iter().zip(&oracle.zones) {
            let (before, after) = (before(zone, oracle.capacity), after(zone, info));
            let Scenario { policy, parities, .. } = *scenario;
            self.seen.insert(Sight { policy, parities, before, after, struck, end, members });
        }
    }
}

fn before(zone: &OracleZone, capacity: u64) -> &'static str {
    match zone.change {
        Some(Change::Reset) => "being reset",
        Some(Change::Finish) => "being finished",
        None if zone.finished => "finished",
        None if zone.submitted() == 0 => "empty",
        None if zone.durable == capacity => "full",
        None if zone.durable == 0 => "begun",
        None if zone.durable < zone.submitted() => "written",
        None => "at rest",
    }
}

fn after(zone: &OracleZone, info: &ZoneInfo) -> &'static str {
    match info.state {
        ZoneState::Empty => "empty",
        ZoneState::Full => "full",
        ZoneState::Offline => "offline",
        ZoneState::ReadOnly => "read-only",
        _ if info.wp_blocks < zone.submitted() => "cut back",
        _ => "whole",
    }
}

/// Seeds that are played before all others, each with the reason for keeping it: `sim/ledger.txt`.
///
/// The life of a seed changes with the code, so that the ledger is regenerated and not maintained by hand.
///
/// A line begins with the seed, the policy and the level.
pub struct Ledger(pub Vec<(u64, Policy, usize)>);

const HEAD: &str = "\
# Seeds that `sim run` plays first: each has shown what few others did. They play something else when the
# draws of the simulator change, or the engine does; make them anew with `sim run --learn --seeds 2000`.
";

impl Ledger {
    /// The ledger that this program was built with.
    ///
    /// # Errors
    /// A line that is not a ledger entry.
    pub fn built_in() -> Result<Ledger, String> {
        Ledger::read(include_str!("../../ledger.txt"))
    }

    fn read(text: &str) -> Result<Ledger, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let seed = |line: &str| {
            let mut words = line.split_whitespace();
            let (seed, name) = (words.next()?.parse().ok()?, words.next()?);
            let policy = Policy::ALL.into_iter().find(|policy| policy.name() == name)?;
            Some((seed, policy, parities_of(words.next()?.trim_end_matches(':'))?))
        };
        let seeds: Result<_, _> =
            lines.map(|line| seed(line).ok_or_else(|| format!("the ledger has a line '{line}'"))).collect();
        Ok(Ledger(seeds?))
    }

    /// The seeds of one policy and number of parities; `None` selects all.
    pub fn seeds(&self, policy: Option<Policy>, parities: Option<usize>) -> Vec<u64> {
        let wanted = |own: &&(u64, Policy, usize)| {
            policy.is_none_or(|policy| policy == own.1) && parities.is_none_or(|parities| parities == own.2)
        };
        self.0.iter().filter(wanted).map(|(seed, _, _)| *seed).collect()
    }

    /// The text of a ledger of up to `most` seeds: greedily the seed that adds most at each step. A sight counts the
    /// more, the fewer seeds have shown it.
    pub fn learn(seen: &BTreeMap<u64, BTreeSet<Sight>>, most: usize) -> String {
        let mut hits: BTreeMap<Sight, u64> = BTreeMap::new();
        for sight in seen.values().flatten() {
            *hits.entry(*sight).or_default() += 1;
        }
        let mut text = HEAD.to_string();
        for _ in 0..most {
            let adds = |seed: &u64| -> u64 {
                seen[seed].iter().filter_map(|sight| hits.get(sight)).map(|hits| (1 << 20) / hits).sum()
            };
            let best = seen.keys().max_by_key(|seed| adds(seed)).filter(|seed| adds(seed) > 0);
            let Some(seed) = best else { break };
            let new: Vec<(Sight, u64)> =
                seen[seed].iter().filter_map(|sight| Some((*sight, hits.remove(sight)?))).collect();
            if let Some((rarest, _)) = new.iter().min_by_key(|(_, hits)| hits) {
                let others = new.len() - 1;
                let (policy, level) = (rarest.policy.name(), level(rarest.parities));
                text += &format!("{seed} {policy} {level}: {rarest}; and {others} more\n");
            }
        }
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sight(after: &'static str) -> Sight {
        Sight { policy: Policy::Log, parities: 1, before: "empty", after, struck: "", end: "", members: "" }
    }

    #[test]
    fn ledger_lists_seeds_of_rare_states_first() {
        let (common, rare, rarest) = (sight("empty"), sight("whole"), sight("offline"));
        let seen = BTreeMap::from([
            (7, BTreeSet::from([common])),
            (8, BTreeSet::from([common, rare])),
            (9, BTreeSet::from([common, rarest])),
            (10, BTreeSet::from([common, rare])),
            (11, BTreeSet::new()),
        ]);
        let seeds =
            |most| Ledger::read(&Ledger::learn(&seen, most)).unwrap().seeds(Some(Policy::Log), Some(1));
        assert_eq!(seeds(1), [9]);
        // The other seeds add nothing.
        assert_eq!(seeds(5), [9, 10]);
        let of = |policy, parities| Ledger::read(&Ledger::learn(&seen, 1)).unwrap().seeds(policy, parities);
        assert_eq!(
            (of(None, None).len(), of(Some(Policy::Zrwa), None), of(None, Some(2))),
            (1, vec![], vec![])
        );
        assert!(Ledger::read("12 nothing raid5: x\n").is_err());
        assert!(Ledger::read("12 log raid7: x\n").is_err());
        assert!(!Ledger::built_in().unwrap().0.is_empty());
    }
}
