//! Forks: what a life would have come to if it had ended here, judged without each member in turn.
//!
//! A life sees one end at a time, and one lost member with it; of the parity of the others nobody ever
//! looks. So at chosen moments the world is copied, drives with their caches and ZRWAs and the commands in
//! flight, and ended in the copy. What the end has left is recovered without each member that may be lost,
//! and by all; what all have recovered loses power again at once and is recovered without each. Every
//! recovery is judged as those of the life are: the report and every block.
//!
//! A fork draws from a generator of its own. The life goes on as if there had been none.

use super::{
    coverage::Coverage,
    world::{End, Failure, World},
};
use crate::{rng::Rng, ssd::Cut};
use engine::{array::MemberState, runtime::Runtime};
use std::{collections::BTreeSet, rc::Rc};

/// What a fork may wait for: where promises are made, and everything is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Any event.
    Event,
    /// A recovery has ended. The fork comes a few events later.
    Recovered,
    /// A recovery was cut off.
    Interrupted,
    /// A write with FUA, or a flush, has completed.
    Promised,
    /// A zone has become full, or was reset or finished.
    Ended,
    /// A member has been filled.
    Rebuilt,
    /// A drive is taking over from another one: any event.
    TakingOver,
}

impl Moment {
    /// One of so many such moments has a fork.
    fn rarity(self) -> u64 {
        match self {
            Moment::Event => 400,
            Moment::Promised => 40,
            Moment::Ended => 8,
            Moment::Recovered | Moment::Interrupted | Moment::Rebuilt => 2,
            Moment::TakingOver => 30,
        }
    }
}

/// A fork after a recovery comes within so many events.
const SOON_EVENTS: u64 = 24;
/// Members that are lost in turn at most, of those that may be.
const MOST_LOST: usize = 6;

/// When the forks of a life come.
pub(super) struct Forks {
    rng: Rng,
    left: u64,
    /// Events until a fork is due.
    due_in: Option<u64>,
}

impl Forks {
    /// `most` forks at most.
    pub fn new(most: u64, rng: Rng) -> Forks {
        Forks { rng, left: most, due_in: None }
    }

    /// Something has happened that may have a fork.
    pub fn notice(&mut self, moment: Moment) {
        match &mut self.due_in {
            Some(events) if moment == Moment::Event => *events = events.saturating_sub(1),
            None if self.left > 0 && self.rng.chance(1, moment.rarity()) => {
                let events = if moment == Moment::Recovered { self.rng.below(SOON_EVENTS) } else { 0 };
                self.due_in = Some(events);
            }
            _ => (),
        }
    }

    /// Whether a fork is due, which is taken as done.
    pub fn take(&mut self) -> bool {
        let due = self.due_in == Some(0);
        if due {
            (self.due_in, self.left) = (None, self.left - 1);
        }
        due
    }
}

/// What may be missing when a fork is recovered.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// Who is left out in turn; `None` for nobody.
    pub lost: Vec<Option<usize>>,
    /// The member that need not be active if it is there.
    pub suspect: Option<usize>,
    /// The suspect has lost its ZRWA.
    pub zrwa_lost: bool,
}

impl World<'_> {
    /// Ends a copy of the world and judges what can be recovered from it.
    ///
    /// # Errors
    /// A broken promise, with the end and who was missing.
    pub(super) fn fork(&mut self, mut losses: Losses) -> Result<(), Failure> {
        self.counts.forks += 1;
        let mut rng = self.forks.rng.fork();
        rng.shuffle(&mut losses.lost);
        losses.lost.truncate(MOST_LOST);
        let mut ended = self.copy(rng.fork())?;
        let end = ended.end_somehow()?;
        for lost in &losses.lost {
            let mut copy = ended.copy(rng.fork())?;
            let result = copy.judge_fork(*lost, losses.suspect);
            self.take_from(&mut copy);
            if let Err(failure) = result {
                self.trace.extend(std::mem::take(&mut copy.trace));
                return Err(Failure(format!("forked here, after {end}, {}{failure}", without(*lost))));
            }
        }
        self.strike_fork(&ended, &losses, &mut rng)
            .map_err(|failure| Failure(format!("forked here, after {end}, {failure}")))
    }

    /// Strikes what has ended once more: a single member, or one beside another that is missing.
    fn strike_fork(&mut self, ended: &Self, losses: &Losses, rng: &mut Rng) -> Result<(), Failure> {
        // What is struck is one drive of a member.
        if self.members.len() == 1 || self.heir.is_some() {
            return Ok(());
        }
        let offered = losses.suspect.is_none() || losses.lost.contains(&None);
        for beyond in [false, true] {
            if !rng.chance(1, 2) || !beyond && !offered {
                continue;
            }
            let mut copy = ended.copy(rng.fork())?;
            let result = match beyond {
                true => copy.judge_beyond(losses, offered),
                false => copy.judge_blow(losses.suspect),
            };
            self.take_from(&mut copy);
            if let Err(failure) = result {
                self.trace.extend(std::mem::take(&mut copy.trace));
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Takes over what a copy has judged and shown.
    fn take_from(&mut self, copy: &mut Self) {
        self.counts.judgements += copy.counts.judgements;
        self.counts.beyond += copy.counts.beyond;
        self.coverage.seen.append(&mut copy.coverage.seen);
    }

    /// Another world with the same drives, promises and commands in flight. Nothing runs in it.
    fn copy(&self, rng: Rng) -> Result<Self, Failure> {
        let wire = self.wire.copy().map_err(|error| Failure(format!("copying the drives: {error}")))?;
        Ok(World {
            maker: self.maker,
            scenario: self.scenario.clone(),
            rng,
            wire: Rc::new(wire),
            runtime: Runtime::new(),
            subject: self.subject.clone(),
            limits: self.limits.clone(),
            oracle: self.oracle.clone(),
            before: self.before.clone(),
            ops: Vec::new(),
            held: Vec::new(),
            pool: Default::default(),
            members: self.members.clone(),
            heir: self.heir,
            counts: Default::default(),
            trace: self.trace.copy(),
            tails: self.tails.clone(),
            ready: false,
            in_order: true,
            refusal: None,
            forks: Forks::new(0, Rng::new(0)),
            lenient: self.lenient,
            foreign: self.foreign.clone(),
            coverage: Coverage { seen: BTreeSet::new(), ..self.coverage },
        })
    }

    /// Ends the world in any way; says which.
    fn end_somehow(&mut self) -> Result<&'static str, Failure> {
        let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(3, 4);
        let end = *self.rng.pick(&[End::PowerCut, End::PowerCut, End::PowerCut, End::Kill, End::Shutdown]);
        self.end_by(end, cache_lost)
    }

    /// Ends the world; says how.
    pub(super) fn end_by(&mut self, end: End, cache_lost: bool) -> Result<&'static str, Failure> {
        match end {
            End::PowerCut => self.cut_power(|_| Cut { cache_lost, zrwa_lost: false })?,
            End::Kill => self.kill_process(),
            End::Shutdown => self.shut_down()?,
        }
        for bay in self.kept(None) {
            self.wire.set_gone(bay, false);
        }
        Ok(match end {
            End::PowerCut if cache_lost => "a power cut that cost caches",
            End::PowerCut => "a power cut",
            End::Kill => "a kill",
            End::Shutdown => "a shutdown",
        })
    }

    /// Recovers without `lost` and judges that; then the same after another end, without each member if
    /// nobody is missing.
    fn judge_fork(&mut self, lost: Option<usize>, suspect: Option<usize>) -> Result<(), Failure> {
        if let Some(heir) = &mut self.heir {
            heir.lost = self.rng.chance(1, 2);
        }
        let plain = self.members.len() > 1 && self.heir.is_none();
        if let Some(lost) = lost.filter(|_| plain && self.rng.chance(1, 4)) {
            return self.judge_held_back(lost, suspect);
        }
        self.judge(lost, suspect)?;
        self.judge_drives()?;
        let unsound = self.unsound();
        if lost.is_some() && self.rng.chance(1, 2) {
            return Ok(());
        }
        if self.rng.chance(1, 2) {
            self.write_on()?;
        }
        let end = self.end_somehow()?;
        let again = match lost.or(unsound) {
            Some(member) => vec![Some(member)],
            None => {
                let mut each: Vec<_> = (0..self.members.len()).map(Some).collect();
                self.rng.shuffle(&mut each);
                each.truncate(MOST_LOST);
                each
            }
        };
        for missing in again {
            let rng = self.rng.fork();
            let mut copy = self.copy(rng)?;
            let result = copy.judge(missing.filter(|_| self.members.len() > 1), suspect);
            self.take_from(&mut copy);
            if let Err(failure) = result {
                self.trace.extend(std::mem::take(&mut copy.trace));
                let what = format!("recovered; then, after {end}, {}{failure}", without(missing));
                return Err(Failure(what));
            }
        }
        Ok(())
    }

    /// Looks at what is there without `lost`, which must change nothing: then the process ends, or the
    /// member comes back, or the array begins without it.
    fn judge_held_back(&mut self, lost: usize, suspect: Option<usize>) -> Result<(), Failure> {
        self.trace.note(|| format!("fork: provisional assembly without {lost}"));
        let changes =
            |world: &Self| world.members.iter().flatten().map(|bay| world.wire.changes(*bay)).sum::<u64>();
        let before = changes(self);
        self.assemble_somehow(Some(lost), true)?;
        self.check_recovery().map_err(|failure| Failure(format!("provisionally, {failure}")))?;
        if !self.subject.as_ref().is_some_and(|subject| subject.is_provisional()) {
            // The member was out already.
            return Ok(());
        }
        if changes(self) != before {
            return Err(Failure("something is written although the array holds back".into()));
        }
        match self.rng.below(3) {
            0 => {
                self.kill_process();
                let without = self.rng.chance(1, 2).then(|| self.other_than(Some(lost)));
                let without = without.filter(|_| suspect.is_none());
                let offered = without.is_some() || suspect.is_none();
                self.judge(if offered { without } else { Some(lost) }, suspect)
                    .map_err(|failure| Failure(format!("after a provisional assembly, {failure}")))
            }
            1 if suspect.is_none() => {
                let Some(bay) = self.members[lost] else { return Ok(()) };
                let Some(subject) = self.subject.clone() else { return Ok(()) };
                self.trace.note(|| format!("fork: member {lost} is back"));
                let pending = self.start(subject.complete(self.drive(bay)));
                let back = |why| Failure(format!("the member does not come back: {why}"));
                self.wait_in_order(&pending)?.map_err(back)?;
                self.check_recovery().map_err(|failure| Failure(format!("back again, {failure}")))?;
                self.go_on_and_judge(None, Some(lost))
            }
            _ => self.go_on_and_judge(Some(lost), suspect),
        }
    }

    /// Writes on, ends, and judges what is recovered without `lost`.
    fn go_on_and_judge(&mut self, lost: Option<usize>, suspect: Option<usize>) -> Result<(), Failure> {
        self.write_on()?;
        self.end_somehow()?;
        self.judge(lost, suspect).map_err(|failure| Failure(format!("held back and gone on, {failure}")))
    }

    /// Recovers without `lost` and compares everything with the promise; nobody else may be out but the
    /// suspect.
    fn judge(&mut self, lost: Option<usize>, suspect: Option<usize>) -> Result<(), Failure> {
        self.trace.note(|| format!("fork: assembly {}", without(lost)));
        self.assemble_without(lost)?;
        self.check_recovery()?;
        match self.unsound_members().find(|member| Some(*member) != lost && Some(*member) != suspect) {
            // Power cuts may have displaced more than its log has room for.
            Some(_) if self.scenario.cramped && lost.is_none() => Ok(()),
            Some(member) => Err(Failure(format!("member {member} is not active, without any cause"))),
            None => Ok(()),
        }
    }

    /// A member that does not hold all it should.
    pub(super) fn unsound(&self) -> Option<usize> {
        self.unsound_members().next()
    }

    pub(super) fn unsound_members(&self) -> impl Iterator<Item = usize> {
        let states = self.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
        let unsound = states.into_iter().enumerate().filter(|(_, (state, _))| *state != MemberState::Active);
        unsound.map(|(member, _)| member)
    }

    /// A few writes with FUA behind what was recovered; some may be in flight yet.
    pub(super) fn write_on(&mut self) -> Result<(), Failure> {
        let zones =
            (0..self.oracle.zones.len() as u32).filter(|zone| self.oracle.zones[*zone as usize].active);
        let mut begun: Vec<u32> = zones.collect();
        self.rng.shuffle(&mut begun);
        for zone in begun.into_iter().take(2) {
            for _ in 0..1 + self.rng.below(2) {
                let left = self.oracle.capacity - self.oracle.zones[zone as usize].submitted();
                let blocks = 1 + self.rng.below(2 * self.scenario.chunk_blocks);
                if left > 0 {
                    self.write(zone, blocks.min(left), true, false);
                }
            }
        }
        match self.rng.chance(1, 2) {
            true => self.drain_in_order(),
            false => {
                let rounds = self.rng.below(12);
                (0..rounds).try_for_each(|_| self.advance_in_order())
            }
        }
    }
}

fn without(lost: Option<usize>) -> String {
    lost.map_or("with all members: ".into(), |member| format!("without member {member}: "))
}
