//! Forks: copies of a running life that are ended at once and recovered without each member in turn.
//!
//! A life has one end at a time, and at most the lost members of that end: it never verifies the parity of the other
//! members. So at chosen moments the world is copied, with drives, their caches and ZRWAs and the commands in flight,
//! and the copy is ended. The result is recovered without each member that may be lost, and with all members; a
//! recovery with all members loses power again at once and is recovered without each member. With two parities half of
//! these recoveries lack two members. Each recovery is judged like those of the life: the report and every block.
//!
//! A fork uses a random generator of its own, so that the life is the same with and without forks.

use super::{
    coverage::Coverage,
    fault_budget::{named, others, subsets},
    schedule::Forks,
    world::{End, Failure, World},
};
use emu::{rng::Rng, ssd::Cut};
use engine::{array::MemberState, runtime::Runtime};
use std::{collections::BTreeSet, rc::Rc};

/// Most recoveries of a fork, each without another set of members.
const MOST_LOST: usize = 6;
/// Most recoveries where one member has been missing before.
const MOST_LOST_BESIDE: usize = 2;
/// One in this many forks tests the number of members that may be lost according to the status.
const CLAIMS: u64 = 3;
/// One in this many recoveries carries out the remedies that the status recommends.
pub(super) const REMEDIES: u64 = 10;

/// The members that may be missing when a fork is recovered.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// Sets of missing members, one recovery each.
    pub lost: Vec<Vec<usize>>,
    /// Members that may be inactive even if they are present.
    pub suspects: Vec<usize>,
    /// All of the suspects can be present.
    pub offered: bool,
    /// One of the suspects has lost its ZRWA.
    pub zrwa_lost: bool,
}

/// Up to `most` of `sets` of lost members, in random order: half with two or more members, as far as there are enough.
fn draw_losses(rng: &mut Rng, sets: Vec<Vec<usize>>, most: usize) -> Vec<Vec<usize>> {
    let (mut several, mut few): (Vec<_>, Vec<_>) = sets.into_iter().partition(|set| set.len() > 1);
    rng.shuffle(&mut few);
    rng.shuffle(&mut several);
    several.truncate((most / 2).max(most.saturating_sub(few.len())));
    few.truncate(most - several.len());
    few.append(&mut several);
    few
}

impl World<'_> {
    /// Ends a copy of the world and judges its recoveries.
    ///
    /// # Errors
    /// A broken promise, with the end and the missing members.
    pub(super) fn fork(&mut self, mut losses: Losses) -> Result<(), Failure> {
        self.counts.forks += 1;
        let mut rng = self.forks.generator();
        let claim = self.claim(Self::never_offered(&losses), &losses.suspects)?;
        let lost = draw_losses(&mut rng, std::mem::take(&mut losses.lost), MOST_LOST);
        let mut ended = self.copy(rng.fork())?;
        let end = ended.end_somehow()?;
        for lost in &lost {
            self.on_copy(ended.copy(rng.fork())?, |copy| copy.judge_fork(lost, &losses.suspects)).map_err(
                |failure| Failure(format!("forked here, after {end}, {}{failure}", without(lost))),
            )?;
        }
        if let Some(claim) = claim.filter(|_| rng.chance(1, CLAIMS)) {
            self.judge_claim(&ended, &claim, &losses.suspects, &mut rng)
                .map_err(|failure| Failure(format!("forked here, after {end}, {failure}")))?;
        }
        if losses.suspects.is_empty()
            && losses.offered
            && self.replacement_drive.is_none()
            && rng.chance(1, 4)
        {
            self.on_copy(ended.copy(rng.fork())?, Self::judge_common_loss)
                .map_err(|failure| Failure(format!("forked here, after {end}, all ZRWAs lost: {failure}")))?;
        }
        self.strike_fork(&ended, &losses, &mut rng)
            .and_then(|()| self.mix_fork(&ended, &losses, &mut rng))
            .and_then(|()| match self.scenario.misfortune.beyond {
                true => self
                    .fence_fork(&ended, &losses, &mut rng)
                    .and_then(|()| self.damage_fork(&ended, &losses, &mut rng)),
                false => Ok(()),
            })
            .map_err(|failure| Failure(format!("forked here, after {end}, {failure}")))?;
        if losses.suspects.is_empty()
            && losses.offered
            && self.replacement_drive.is_none()
            && rng.chance(1, 4)
        {
            self.on_copy(ended.copy(rng.fork())?, Self::judge_common_wear)
                .map_err(|failure| Failure(format!("forked here, after {end}, {failure}")))?;
        }
        Ok(())
    }

    /// Strikes copies of the ended world with more faults: within the guarantee, and with one more than it covers.
    fn strike_fork(&mut self, ended: &Self, losses: &Losses, rng: &mut Rng) -> Result<(), Failure> {
        // A blow strikes one drive of a plain member.
        if self.members.len() == 1 || self.replacement_drive.is_some() || self.maker.is_layered() {
            return Ok(());
        }
        for beyond in [false, true] {
            if !rng.chance(1, 2) || !beyond && !losses.offered {
                continue;
            }
            self.on_copy(ended.copy(rng.fork())?, |copy| match beyond {
                true => copy.judge_beyond(losses),
                false => copy.judge_blow(&losses.suspects),
            })?;
        }
        Ok(())
    }

    /// Judges a copy of a world; adds its counts to this world, and its trace if the judgement fails.
    ///
    /// # Errors
    /// The failure of the judgement.
    pub(super) fn on_copy(
        &mut self,
        mut copy: Self,
        judge: impl FnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let result = judge(&mut copy);
        self.take_from(&mut copy);
        if result.is_err() {
            self.trace.extend(std::mem::take(&mut copy.trace));
        }
        result
    }

    /// Adds the counts and the coverage of a copy.
    pub(super) fn take_from(&mut self, copy: &mut Self) {
        self.counts.judgements += copy.counts.judgements;
        self.counts.beyond += copy.counts.beyond;
        self.counts.double_losses += copy.counts.double_losses;
        self.counts.claims += copy.counts.claims;
        self.counts.pessimistic_claims += copy.counts.pessimistic_claims;
        self.counts.remedies += copy.counts.remedies;
        self.coverage.seen.append(&mut copy.coverage.seen);
    }

    /// A copy of the world with the same drives, oracle and commands in flight; nothing runs in it.
    pub(super) fn copy(&self, rng: Rng) -> Result<Self, Failure> {
        let command_queue =
            self.command_queue.copy().map_err(|error| Failure(format!("copying the drives: {error}")))?;
        Ok(World {
            maker: self.maker,
            scenario: self.scenario.clone(),
            rng,
            command_queue: Rc::new(command_queue),
            runtime: Runtime::new(),
            subject: self.subject.clone(),
            heard: self.heard.clone(),
            books: self.books.clone(),
            limits: self.limits.clone(),
            oracle: self.oracle.clone(),
            before: self.before.clone(),
            begins: self.begins,
            ops: Vec::new(),
            held: Vec::new(),
            pool: Default::default(),
            members: self.members.clone(),
            replacement_drive: self.replacement_drive,
            counts: Default::default(),
            trace: self.trace.copy(),
            tails: self.tails.clone(),
            ready: false,
            in_order: true,
            refusal: None,
            forks: Forks::new(0, Rng::new(0)),
            lenient: self.lenient,
            excused: 0,
            foreign: self.foreign.clone(),
            coverage: Coverage { seen: BTreeSet::new(), ..self.coverage },
        })
    }

    /// Ends the world in a random way; returns the name of the end.
    pub(super) fn end_somehow(&mut self) -> Result<&'static str, Failure> {
        let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(3, 4);
        let end = *self.rng.pick(&[End::PowerCut, End::PowerCut, End::PowerCut, End::Kill, End::Shutdown]);
        self.end_by(end, cache_lost)
    }

    /// Ends the world as given; returns the name of the end.
    pub(super) fn end_by(&mut self, end: End, cache_lost: bool) -> Result<&'static str, Failure> {
        match end {
            End::PowerCut => self.cut_power(|_| Cut { cache_lost, zrwa_lost: false })?,
            End::Kill => self.kill_process(),
            End::Shutdown => self.shut_down()?,
        }
        for bay in self.kept(&[]) {
            self.command_queue.set_gone(bay, false);
        }
        Ok(match end {
            End::PowerCut if cache_lost => "a power cut that cost caches",
            End::PowerCut => "a power cut",
            End::Kill => "a kill",
            End::Shutdown => "a shutdown",
        })
    }

    /// Recovers without `lost` and judges that; then, after another end, again without further members.
    fn judge_fork(&mut self, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
        if let Some(replacement_drive) = &mut self.replacement_drive {
            replacement_drive.lost = self.rng.chance(1, 2);
        }
        let plain = self.members.len() > 1 && self.replacement_drive.is_none();
        if !lost.is_empty() && plain && self.rng.chance(1, 4) {
            return self.judge_held_back(lost, suspects);
        }
        self.judge(lost, suspects)?;
        self.judge_drives()?;
        if plain && self.rng.chance(1, REMEDIES) {
            return self.judge_status(lost, suspects);
        }
        let unsound = self.unsound_members().filter(|member| !lost.contains(member));
        let most = self.scenario.parities;
        let gone: Vec<usize> = lost.iter().copied().chain(unsound).take(most).collect();
        if !lost.is_empty() && self.rng.chance(1, 2) {
            return Ok(());
        }
        if self.rng.chance(1, 2) {
            self.write_on()?;
        }
        let end = self.end_somehow()?;
        let count = self.members.len();
        let more = subsets(&others(count, &gone), most - gone.len()).into_iter();
        let sets = more.map(|more| gone.iter().copied().chain(more).collect::<Vec<usize>>());
        let sets = sets.filter(|set| !set.is_empty()).collect();
        let most = if gone.is_empty() { MOST_LOST } else { MOST_LOST_BESIDE };
        for missing in draw_losses(&mut self.rng, sets, most) {
            let rng = self.rng.fork();
            let missing_there = if count > 1 { &missing[..] } else { &[] };
            self.on_copy(self.copy(rng)?, |copy| copy.judge(missing_there, suspects)).map_err(|failure| {
                Failure(format!("recovered; then, after {end}, {}{failure}", without(&missing)))
            })?;
        }
        Ok(())
    }

    /// Assembles in deferred-write mode without `lost`, which must write nothing; then the process ends, the members
    /// come back, or the array commits without them.
    fn judge_held_back(&mut self, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
        self.trace.note(|| format!("fork: provisional assembly without {}", named(lost)));
        let changes = |world: &Self| {
            world.members.iter().flatten().map(|bay| world.command_queue.changes(*bay)).sum::<u64>()
        };
        let before = changes(self);
        self.assemble_somehow(lost, true)?;
        self.check_recovery().map_err(|failure| Failure(format!("provisionally, {failure}")))?;
        if !self.subject.as_ref().is_some_and(|subject| subject.is_deferred()) {
            // The members were out already.
            return Ok(());
        }
        if changes(self) != before {
            return Err(Failure("something is written although the array holds back".into()));
        }
        match self.rng.below(3) {
            0 => {
                self.kill_process();
                let other = self.rng.chance(1, 2).then(|| self.other_than(lost));
                let other: Vec<usize> = other.into_iter().collect();
                self.judge(if suspects.is_empty() { &other } else { lost }, suspects)
                    .map_err(|failure| Failure(format!("after a provisional assembly, {failure}")))
            }
            1 if suspects.is_empty() => {
                let Some(subject) = self.subject.clone() else { return Ok(()) };
                for member in lost {
                    let Some(bay) = self.members[*member] else { return Ok(()) };
                    self.trace.note(|| format!("fork: member {member} is back"));
                    let pending = self.start(subject.complete(self.drive(bay)));
                    let back = |why| Failure(format!("member {member} does not come back: {why}"));
                    self.wait_in_order(&pending)?.map_err(back)?;
                }
                self.check_recovery().map_err(|failure| Failure(format!("back again, {failure}")))?;
                self.go_on_and_judge(&[], lost)
            }
            _ => self.go_on_and_judge(lost, suspects),
        }
    }

    /// Writes more, ends the world, and judges a recovery without `lost`.
    fn go_on_and_judge(&mut self, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
        self.write_on()?;
        self.end_somehow()?;
        self.judge(lost, suspects).map_err(|failure| Failure(format!("held back and gone on, {failure}")))
    }

    /// Recovers without `lost` and checks everything against the promises; only `lost` members and suspects may be
    /// inactive.
    pub(super) fn judge(&mut self, lost: &[usize], suspects: &[usize]) -> Result<(), Failure> {
        self.trace.note(|| format!("fork: assembly {}", without(lost)));
        self.assemble_without(lost)?;
        self.check_recovery()?;
        self.hear(|member| lost.contains(&member) || suspects.contains(&member))?;
        match self.unsound_members().find(|member| !lost.contains(member) && !suspects.contains(member)) {
            // Power cuts may have displaced more blocks than the member's metadata log has room for.
            Some(_) if self.scenario.cramped && lost.len() < self.scenario.parities => Ok(()),
            Some(member) => Err(Failure(format!("member {member} is not active, without any cause"))),
            None => Ok(()),
        }
    }

    /// Members that are not active.
    pub(super) fn unsound_members(&self) -> impl Iterator<Item = usize> {
        let states = self.subject.as_ref().map(|subject| subject.members()).unwrap_or_default();
        let unsound = states.into_iter().enumerate().filter(|(_, (state, _))| *state != MemberState::Active);
        unsound.map(|(member, _)| member)
    }

    /// Submits a few writes with FUA behind the recovered data; some may still be in flight afterwards.
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

fn without(lost: &[usize]) -> String {
    if lost.is_empty() { "with all members: ".into() } else { format!("without {}: ", named(lost)) }
}
