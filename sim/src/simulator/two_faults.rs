//! More than is promised: as many members are missing as may be, and the drive of another one is struck as well.
//!
//! What lies beyond the promise may cost data, but never invent any. So in some forks one member more suffers
//! than there are parities, and what the array makes of it is judged by a rule of its own: it may refuse, have
//! zones offline and fail reads. It must not give wrong data or zeros, let a zone end before what was promised
//! there, answer nothing, or take away what can still be had: when the missing members come back, everything is
//! there again, but for zones that the array has gone on with meanwhile and of which too many have lost their
//! part then, the struck drive among them. Which these are the world writes down itself.
//!
//! The same blow without the missing members is one that is promised to be survived, and so are as many of
//! them at once as there are parities.

use super::{
    fork::{Losses, REMEDIES},
    hearsay::Heard,
    life::brief,
    oracle::Change,
    subject::{How, Why},
    suspects::{named, others},
    wire::Bay,
    world::{End, Failure, World},
};
use emu::ssd::{Cut, Fault, Kind};
use engine::{
    array::{ArrayError, Drive},
    buf::{BLOCK, Buf},
    device::Command,
    format::record::Header,
    raid::{error::NoArray, policy::Policy},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::collections::BTreeSet;

/// What strikes a drive beside a member that is missing.
#[derive(Clone, Debug, Default)]
struct Blow {
    what: &'static str,
    /// Each with the number of commands that come before.
    faults: Vec<(u64, Fault)>,
    /// The drive is not there.
    absent: bool,
    /// It loses what is in its ZRWAs, with the power.
    zrwa_lost: bool,
    /// Zones of the array of which the drive may not have its part any more, as long as this is not mended.
    ruined: BTreeSet<u32>,
    /// The drive cannot be a member any more, unless all that is wrong is its log, and that is written anew.
    outcast: bool,
    renews: bool,
    /// Reads fail, which may come to an end.
    mends: bool,
    /// Zones of the array that another hand has changed.
    tampered: BTreeSet<u32>,
}

/// Whom a blow has beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nobody,
    /// Others that suffer, no more than may.
    Others,
    /// One more than may suffer.
    TooMany,
}

/// What the world knows of a fork with one fault too many.
struct Books {
    /// The members that are missing at first.
    missing: Vec<usize>,
    struck: usize,
    /// Members that do not hold what they should, missing or not.
    stale: Vec<usize>,
    /// As many members may lack a zone.
    parities: usize,
    blow: Blow,
    /// It has been assembled without the members that are missing, which are stale since.
    assembled: bool,
    /// Zones that the array has gone on with.
    went_on: BTreeSet<u32>,
    /// Zones in which reads have failed.
    failed: BTreeSet<u32>,
}

impl Books {
    /// Whether everything that was promised in a zone has to be there once everybody is back.
    fn is_due(&self, zone: u32) -> bool {
        if self.blow.tampered.contains(&zone) {
            return false;
        }
        let ruined = self.blow.outcast || self.blow.ruined.contains(&zone) || self.failed.contains(&zone);
        // The struck one lacks it as well.
        !ruined || self.lacking(self.went_on.contains(&zone)) < self.parities
    }

    /// Members beside the struck one that lack something, the `missing` ones or only those that did before.
    fn lacking(&self, missing: bool) -> usize {
        let also = self.missing.iter().filter(|member| missing && !self.stale.contains(member));
        self.stale.len() + also.count()
    }
}

impl World<'_> {
    /// Judges what is left when as many members are missing as may be and another one's drive is struck; then
    /// when they are back. Suspects need not hold what they should.
    ///
    /// # Errors
    /// Something that must not be even then.
    pub(super) fn judge_beyond(&mut self, losses: &Losses) -> Result<(), Failure> {
        let stale = losses.suspects.clone();
        let struck = self.other_than(&stale);
        let blow = self.draw_blow(struck, Beside::TooMany);
        let mut missing = self.as_many_as_may(&stale, Some(struck));
        if blow.absent && losses.offered && !stale.is_empty() {
            // Those that are being filled take part, and the other one is one that is missing.
            self.trace.note(|| format!("fork: not whole: {}", named(&stale)));
            missing.retain(|member| !stale.contains(member));
        }
        let what = format!("without {missing:?}, and member {struck}: {}", blow.what);
        self.trace.note(|| format!("fork: beyond the promise, {what}: {blow:?}"));
        let mut books = Books {
            missing,
            struck,
            stale,
            parities: self.scenario.parities,
            blow,
            assembled: false,
            went_on: BTreeSet::new(),
            failed: BTreeSet::new(),
        };
        // Looks like writes that have never arrived.
        let zrwa_lost = losses.zrwa_lost || books.blow.zrwa_lost && self.scenario.policy == Policy::InPlace;
        if zrwa_lost && self.scenario.policy.uses_zrwa() {
            self.oracle.fall_back();
        }
        self.lenient = true;
        let beyond = self.scenario.misfortune.beyond;
        let judged = self.suffer(&mut books).and_then(|()| {
            match beyond && books.assembled && self.rng.chance(1, REMEDIES) {
                true => self.judge_remedies_beyond(books.struck),
                false => self.return_all(&mut books),
            }
        });
        judged.map_err(|failure| Failure(format!("beyond the promise ({what}): {failure}")))
    }

    /// All drives lose their ZRWAs at once, which is not promised to be survived: zones may be offline and reads may
    /// fail, but no zone may end before its promised data, and no read may return anything else.
    ///
    /// # Errors
    /// Lost or wrong data without an error.
    pub(super) fn judge_common_loss(&mut self) -> Result<(), Failure> {
        if !self.scenario.policy.uses_zrwa() || self.members.len() == 1 {
            return Ok(());
        }
        self.trace.note(|| "fork: all drives lose their ZRWAs".into());
        self.lenient = true;
        self.cut_power(|_| Cut { cache_lost: false, zrwa_lost: true })?;
        if self.assemble_from(|_| true)?.is_err() {
            return Ok(());
        }
        let report = self.take_report(|_| true)?;
        self.verify_where(&report, |_| true)?;
        self.counts.beyond += 1;
        Ok(())
    }

    /// The first half: some are missing, another one is struck.
    fn suffer(&mut self, books: &mut Books) -> Result<(), Failure> {
        self.strike_with(books.struck, &books.blow)?;
        let absent = books.blow.absent.then_some(books.struck);
        let too_many = absent.is_some() && books.missing.len() == books.parities;
        match self.assemble_from(|member| !books.missing.contains(&member) && Some(member) != absent)? {
            Err(why) => {
                self.trace.note(|| format!("refused: {why}"));
                let real = self.names(books.struck, &why)
                    || matches!(why, Why::TooFew(_) | Why::Array(ArrayError::Drives(NoArray::TooFew { .. })));
                match real {
                    true => Ok(()),
                    false => Err(Failure(format!("the refusal names no cause: {why}"))),
                }
            }
            Ok(()) if too_many => Err(Failure("it assembles with one member too many missing".into())),
            Ok(()) => {
                books.assembled = true;
                if self.has_stopped(books)? {
                    books.went_on = (0..self.oracle.zones.len() as u32).collect();
                    return Ok(());
                }
                let report = self.take_report(|_| true)?;
                let online = report.iter().filter(|info| info.state != ZoneState::Offline);
                books.went_on = online.map(|info| info.zone.0).collect();
                // It has been given a new log.
                books.blow.outcast &= !books.blow.renews;
                books.failed = self.verify_where(&report, |_| true)?;
                if self.scenario.misfortune.beyond {
                    self.judge_readable(&books.failed)?;
                }
                self.counts.beyond += 1;
                if self.rng.chance(1, 2) {
                    self.write_on()?;
                }
                Ok(())
            }
        }
    }

    /// Whether a command of the struck drive has failed by now, and nothing is answered any more without it.
    ///
    /// # Errors
    /// Others are out as well.
    fn has_stopped(&self, books: &Books) -> Result<bool, Failure> {
        let cause = |member: &usize| *member == books.struck || books.missing.contains(member);
        let (caused, others): (Vec<usize>, Vec<usize>) =
            self.unsound_members().partition(|member| cause(member) || books.stale.contains(member));
        match others.first() {
            // Power cuts may have displaced more than its log has room for.
            Some(member) if !self.scenario.cramped => {
                Err(Failure(format!("member {member} is not active, without any cause")))
            }
            _ => Ok(caused.len() > books.parities),
        }
    }

    /// The second half: the power is cut, and whoever was missing is back.
    fn return_all(&mut self, books: &mut Books) -> Result<(), Failure> {
        let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(1, 2);
        self.cut_power(|_| Cut { cache_lost, zrwa_lost: false })?;
        let Some(bay) = self.members[books.struck] else { return Ok(()) };
        self.wire.ssd(bay).faults().calm();
        if books.blow.mends && self.rng.chance(1, 2) {
            self.trace.note(|| "its reads work again".into());
            self.wire.ssd(bay).faults().mend();
            books.blow.outcast = false;
            // What was in a log that has been given up for a new one is not read any more.
            if !(books.assembled && books.blow.renews) {
                books.blow.ruined.clear();
            }
        }
        if books.assembled && books.stale.is_empty() && self.rng.chance(1, 3) {
            self.force(books)?;
        }
        self.trace.note(|| format!("fork: all are back; gone on with {:?}", books.went_on));
        let back = |what: String| Failure(format!("when all are back, {what}"));
        let assembled = self.assemble_from(|_| true)?;
        if let Err(why) = assembled {
            // Some are stale and the other one useless: but only if the array has been used without the
            // first, or was about to be when the other one was struck.
            let late = books.blow.faults.iter().any(|(commands, _)| *commands > 0);
            let too_many = books.lacking(books.assembled || late) >= books.parities;
            return if books.blow.outcast && too_many {
                Ok(())
            } else {
                Err(back(format!("it does not assemble: {why}")))
            };
        }
        let report = self.take_report(|zone| !books.is_due(zone)).map_err(|failure| back(failure.0))?;
        self.verify_where(&report, |zone| !books.is_due(zone)).map_err(|failure| back(failure.0))?;
        self.counts.beyond += 1;
        Ok(())
    }

    /// Members that were missing are stale, and now the other one is away: with force there is an array, and
    /// whatever can be read of it is right.
    fn force(&mut self, books: &mut Books) -> Result<(), Failure> {
        self.trace.note(|| format!("fork: by force, without member {}", books.struck));
        let by_force = |what: String| Failure(format!("by force, {what}"));
        let how = How { force: true, ..self.how() };
        if let Err(why) = self.assemble_as(|member| member != books.struck, how)? {
            return Err(by_force(format!("it does not assemble: {why}")));
        }
        let report = self.take_report(|_| true).map_err(|failure| by_force(failure.0))?;
        self.verify_where(&report, |_| true).map_err(|failure| by_force(failure.0))?;
        let online = report.iter().filter(|info| info.state != ZoneState::Offline);
        books.went_on.extend(online.map(|info| info.zone.0));
        self.counts.beyond += 1;
        let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(1, 2);
        self.cut_power(|_| Cut { cache_lost, zrwa_lost: false })
    }

    /// Strikes as many members as may be, suspects first, while all are there: everything is promised.
    ///
    /// # Errors
    /// A broken promise.
    pub(super) fn judge_blow(&mut self, suspects: &[usize]) -> Result<(), Failure> {
        let may_suffer = self.as_many_as_may(suspects, None);
        let mut struck = may_suffer.clone();
        self.rng.shuffle(&mut struck);
        if struck.len() > 1 && self.rng.chance(1, 2) {
            struck.truncate(1);
        }
        let alone = struck.len() == 1 && suspects.iter().all(|member| struck.contains(member));
        let beside = if alone { Beside::Nobody } else { Beside::Others };
        let blows: Vec<_> =
            struck.into_iter().map(|member| (member, self.draw_blow(member, beside))).collect();
        self.trace.note(|| format!("fork: members struck: {blows:?}"));
        let what: Vec<_> =
            blows.iter().map(|(member, blow)| format!("member {member}: {}", blow.what)).collect();
        let judged = self.bear(&may_suffer, &blows);
        judged.map_err(|failure| Failure(format!("{}: {failure}", what.join(", "))))
    }

    /// Blows that `may_suffer` are survived, also if all of these are lost in the end.
    fn bear(&mut self, may_suffer: &[usize], blows: &[(usize, Blow)]) -> Result<(), Failure> {
        for (member, blow) in blows {
            self.strike_with(*member, blow)?;
        }
        let tampered = |zone: u32| blows.iter().any(|(_, blow)| blow.tampered.contains(&zone));
        for again in [false, true] {
            let without = if again && self.rng.chance(1, 2) { may_suffer } else { &[] };
            if let Err(why) = self.assemble_from(|member| !without.contains(&member))? {
                return Err(Failure(format!("the array does not assemble: {why}")));
            }
            let report = self.take_report(tampered)?;
            self.verify_where(&report, tampered)?;
            self.count_judgement();
            self.hear(|member| may_suffer.contains(&member))?;
            match self.unsound_members().find(|member| !may_suffer.contains(member)) {
                Some(_) if self.scenario.cramped => (),
                Some(member) => {
                    return Err(Failure(format!("member {member} is not active, without any cause")));
                }
                None => (),
            }
            if !again {
                self.write_on()?;
                let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(1, 2);
                self.end_by(End::PowerCut, cache_lost)?;
            }
        }
        Ok(())
    }

    /// Any member but some.
    pub(super) fn other_than(&mut self, members: &[usize]) -> usize {
        *self.rng.pick(&others(self.members.len(), members))
    }

    /// As many members as may suffer at once: `suspects`, and any others but one.
    fn as_many_as_may(&mut self, suspects: &[usize], but: Option<usize>) -> Vec<usize> {
        let mut chosen = suspects.to_vec();
        while chosen.len() < self.scenario.parities {
            let not: Vec<usize> = chosen.iter().copied().chain(but).collect();
            chosen.push(self.other_than(&not));
        }
        chosen
    }

    fn strike_with(&mut self, member: usize, blow: &Blow) -> Result<(), Failure> {
        let Some(bay) = self.members[member] else { return Ok(()) };
        self.coverage.struck = blow.what;
        if blow.zrwa_lost {
            let cache_lost = self.scenario.drive.volatile_cache && self.rng.chance(1, 2);
            self.cut_power(|other| Cut { cache_lost, zrwa_lost: other == bay })?;
        }
        for (commands, fault) in &blow.faults {
            self.wire.ssd(bay).faults().after(*commands, *fault);
        }
        Ok(())
    }

    /// Assembles from the drives of some members, in order; the reason if the array refuses.
    pub(super) fn assemble_from(
        &mut self,
        takes: impl Fn(usize) -> bool,
    ) -> Result<Result<(), Why>, Failure> {
        self.assemble_as(takes, self.how())
    }

    fn assemble_as(&mut self, takes: impl Fn(usize) -> bool, how: How) -> Result<Result<(), Why>, Failure> {
        let taken = self.members.iter().enumerate().filter(|(member, _)| takes(*member));
        // One that has not been emptied yet is another array's.
        let own = taken.filter_map(|(_, bay)| *bay).filter(|bay| !self.foreign.contains(bay));
        let mut drives: Vec<Drive> = own.map(|bay| self.drive(bay)).collect();
        self.rng.shuffle(&mut drives);
        let pending = self.start(self.maker.assemble(&self.runtime, drives, how));
        Ok(self.wait_in_order(&pending)?.map(|subject| {
            self.oracle.volatile_cache = subject.geometry().volatile_cache;
            self.subject = Some(subject);
            self.heard = Heard::default();
        }))
    }

    /// Compares the report with what was promised; a zone that `may` is left as it was if it is offline, or
    /// can only be read.
    pub(super) fn take_report(&mut self, may: impl Fn(u32) -> bool) -> Result<Vec<ZoneInfo>, Failure> {
        let report = self.report()?;
        let members = self.subject.as_ref().map(|subject| subject.members());
        self.trace.note(|| format!("assembled; {}; {members:?}", brief(&report)));
        self.see(&report);
        let listed = self.subject.as_ref().map(|subject| subject.offline()).unwrap_or_default();
        for info in &report {
            let zone = info.zone.0;
            let reason = listed.iter().find(|(listed, _)| *listed == zone).map(|(_, reason)| reason);
            let offline = info.state == ZoneState::Offline;
            // The status is of the zones of an array, which are not those of a layer.
            if offline != reason.is_some() && !self.maker.is_layered() {
                return Err(Failure(format!(
                    "zone {zone} is {:?}, but the status says {reason:?}",
                    info.state
                )));
            }
            // It lacks parts, but nothing that counts was ever in it.
            let state = &self.oracle.zones[zone as usize];
            let finished = state.finished || state.change == Some(Change::Finish);
            let may =
                |zone: u32| may(zone) || !offline && finished && state.durable.min(state.acknowledged) == 0;
            if offline || info.state == ZoneState::ReadOnly {
                self.trace.note(|| format!("zone {zone} is {:?}: {reason:?}", info.state));
                if !may(zone) {
                    return Err(Failure(format!("zone {zone} is {:?}: {reason:?}", info.state)));
                }
            } else {
                self.oracle.recovered_in(info)?;
            }
        }
        Ok(report)
    }

    /// As [`World::verify`], but reads may fail in zones that `may`; gives those in which some have.
    pub(super) fn verify_where(
        &mut self,
        report: &[ZoneInfo],
        may: impl Fn(u32) -> bool,
    ) -> Result<BTreeSet<u32>, Failure> {
        const BEYOND: u64 = 4;
        let Some(limits) = self.limits.clone() else { return Ok(BTreeSet::new()) };
        let mut failed = BTreeSet::new();
        for info in report {
            let zone = info.zone.0;
            let end = (self.oracle.zones[zone as usize].submitted() + BEYOND).min(self.oracle.capacity);
            let sure = !matches!(info.state, ZoneState::Offline | ZoneState::ReadOnly);
            let reads = |from: u64| Command::read(Lba(limits.start(info.zone).0 + from), Buf::zeroed(BLOCK));
            let points: Vec<_> = (0..end).map(|block| self.oracle.read_sure(zone, block, sure)).collect();
            for (point, done) in points.into_iter().zip(self.ask((0..end).map(reads).collect())?) {
                match done.result {
                    Ok(()) if info.state == ZoneState::Offline => {
                        return Err(Failure(format!("zone {zone} is offline, but can be read")));
                    }
                    Ok(()) => self.oracle.check_read(point, &done.data)?,
                    Err(_) if may(zone) => {
                        self.oracle.zones[zone as usize].end();
                        failed.insert(zone);
                    }
                    Err(error) => {
                        return Err(Failure(format!(
                            "reading block {} of zone {zone}: {error}",
                            point.block
                        )));
                    }
                }
            }
        }
        Ok(failed)
    }

    /// The zone of the array that a zone of a drive belongs to, if not to the metadata log; one that there is not if it
    /// belongs to none.
    fn zone_of(&self, bay: Bay, zone: ZoneIndex) -> Option<u32> {
        self.places(bay).zone_at(zone.0 / self.scenario.aggregate)
    }

    /// Zones of a drive that are neither empty nor beyond what the array uses.
    fn begun_zones(&self, bay: Bay, metadata: bool) -> Vec<ZoneInfo> {
        let count = self.wire.geometry(bay).zones;
        let zones: Vec<_> = (0..count).map(|zone| self.wire.ssd(bay).zones().info(ZoneIndex(zone))).collect();
        let places = self.places(bay);
        let used = |info: &ZoneInfo| match places.zone_at(info.zone.0 / self.scenario.aggregate) {
            Some(zone) => !metadata && (zone as usize) < self.oracle.zones.len(),
            None => metadata,
        };
        zones.into_iter().filter(|info| info.state != ZoneState::Empty && used(info)).collect()
    }

    /// Draws what strikes the drive of a member; some of it only if there is another fault.
    fn draw_blow(&mut self, member: usize, beside: Beside) -> Blow {
        let beyond = beside == Beside::TooMany;
        let Some(bay) = self.members[member] else { return Blow::default() };
        match self.rng.below(9) {
            0 if beyond => Blow { what: "absent", absent: true, ..Blow::default() },
            0 | 1 => self.draw_log_blow(bay),
            2 if self.scenario.policy == Policy::Zrwa => self.draw_tail_blow(bay),
            2 | 3 => self.draw_unreadable(bay),
            4 => self.draw_worn(bay),
            // That is survived as long as all others are there.
            5 if beside == Beside::Nobody => self.draw_tampered(bay),
            6 if self.loses_zrwa(beyond) => {
                let ruined =
                    self.begun_zones(bay, false).into_iter().filter_map(|info| self.zone_of(bay, info.zone));
                Blow { what: "lost ZRWAs", zrwa_lost: true, ruined: ruined.collect(), ..Blow::default() }
            }
            6 | 7 => {
                let first = self.rng.below(8);
                let failing = (0..1 + self.rng.below(3))
                    .map(|n| (first + n, Fault::Fail { kind: Kind::Report, late: false }));
                Blow { what: "failing reports", faults: failing.collect(), ..Blow::default() }
            }
            _ => {
                let kind = *self.rng.pick(&Kind::ALL);
                let fault = Fault::Fail { kind, late: self.rng.chance(1, 2) };
                let ruined = (0..self.oracle.zones.len() as u32).collect();
                let faults = vec![(self.rng.below(60), fault)];
                Blow { what: "a failing command", faults, ruined, ..Blow::default() }
            }
        }
    }

    /// Whether a ZRWA may be lost: without it zones that came back empty and all zeros cannot be told from
    /// what has never arrived. With [`Policy::InPlace`] they end where they were last recovered.
    fn loses_zrwa(&self, beyond: bool) -> bool {
        match self.scenario.policy {
            Policy::Zrwa => !beyond,
            Policy::InPlace => true,
            Policy::Log => false,
        }
    }

    /// A block of the metadata log that cannot be read, or has a bit flipped.
    fn draw_log_blow(&mut self, bay: Bay) -> Blow {
        let Some(lba) = self.pick_block(bay, true) else { return Blow::default() };
        // Its log may be where blocks are that were displaced in any zone.
        let displaces = self.scenario.policy == Policy::Log;
        let zones = if displaces { self.oracle.zones.len() as u32 } else { 0 };
        let blow = Blow { outcast: true, renews: true, ruined: (0..zones).collect(), ..Blow::default() };
        if self.rng.chance(1, 2) {
            let faults = vec![(0, Fault::Unreadable(lba))];
            return Blow { what: "unreadable metadata", faults, mends: true, ..blow };
        }
        // What it says of a zone of which only the missing member has anything is known to nobody else.
        if !self.is_followed(bay, lba) {
            return Blow::default();
        }
        let bit = self.rng.below(BLOCK as u64 * 8) as u32;
        let faults = vec![(0, Fault::Corrupt { lba, bit })];
        Blow { what: "flipped metadata", faults, ..blow }
    }

    /// Whether a record begins behind a block of the metadata log.
    pub(super) fn is_followed(&self, bay: Bay, lba: Lba) -> bool {
        let geometry = self.wire.geometry(bay).clone();
        let (zone, at) = geometry.locate(lba);
        let written = self.wire.ssd(bay).zones().info(zone).wp_blocks.min(geometry.zone_capacity_blocks);
        (at + 1..written).any(|block| self.is_record(bay, Lba(geometry.start(zone).0 + block)))
    }

    /// Whether a record begins in a block.
    fn is_record(&self, bay: Bay, lba: Lba) -> bool {
        let done = self.wire.ssd(bay).execute(Command::read(lba, Buf::zeroed(BLOCK)));
        done.result.is_ok() && Header::read(&done.data).is_some()
    }

    /// A block of some zone, often one that was written lately.
    pub(super) fn pick_block(&mut self, bay: Bay, metadata: bool) -> Option<Lba> {
        const BELOW: u64 = 24;
        let zones = self.begun_zones(bay, metadata);
        if zones.is_empty() {
            return None;
        }
        let info = zones[self.rng.below(zones.len() as u64) as usize];
        let geometry = self.wire.geometry(bay).clone();
        let above = geometry.zrwa.filter(|_| info.zrwa).map_or(0, |zrwa| zrwa.size_blocks);
        let full = geometry.zone_capacity_blocks;
        let wp = if info.state == ZoneState::Full { full } else { info.wp_blocks };
        let from = if self.rng.chance(1, 2) { 0 } else { wp.saturating_sub(BELOW) };
        let to = (wp + above).min(full).max(from + 1);
        Some(Lba(geometry.start(info.zone).0 + from + self.rng.below(to - from)))
    }

    /// Log blocks of a data zone that cannot be read, or have a bit flipped.
    fn draw_tail_blow(&mut self, bay: Bay) -> Blow {
        let geometry = self.wire.geometry(bay).clone();
        let size = geometry.zrwa.map_or(0, |zrwa| zrwa.size_blocks);
        let mut found = Vec::new();
        for info in self.begun_zones(bay, false) {
            let start = geometry.start(info.zone).0;
            for block in info.wp_blocks..(info.wp_blocks + size).min(geometry.zone_capacity_blocks) {
                let lba = Lba(start + block);
                if self.is_record(bay, lba) {
                    found.push((info.zone, lba));
                }
            }
        }
        if found.is_empty() {
            return self.draw_unreadable(bay);
        }
        let (zone, lba) = *self.rng.pick(&found);
        let ruined = self.zone_of(bay, zone).into_iter().collect();
        // It stays so: a tail that could not be read once, and can be later, is believed then.
        let fault = match self.rng.chance(1, 2) {
            true => Fault::Unreadable(lba),
            false => Fault::Corrupt { lba, bit: self.rng.below(BLOCK as u64 * 8) as u32 },
        };
        Blow { what: "a damaged log block", faults: vec![(0, fault)], ruined, ..Blow::default() }
    }

    /// Blocks of data zones that cannot be read.
    fn draw_unreadable(&mut self, bay: Bay) -> Blow {
        let mut blow = Blow { what: "unreadable blocks", mends: true, ..Blow::default() };
        for _ in 0..1 + self.rng.below(4) {
            let Some(lba) = self.pick_block(bay, false) else { return blow };
            // A tail that could not be read once, and can be later, is believed then: it stays so.
            blow.mends &= !self.is_record(bay, lba);
            blow.faults.push((0, Fault::Unreadable(lba)));
            let zone = self.wire.geometry(bay).locate(lba).0;
            blow.ruined.extend(self.zone_of(bay, zone));
        }
        blow
    }

    /// A zone that can only be read, or is lost, from the beginning or some time later.
    fn draw_worn(&mut self, bay: Bay) -> Blow {
        let zone = ZoneIndex(self.rng.below(self.wire.geometry(bay).zones as u64) as u32);
        let fault = if self.rng.chance(1, 2) { Fault::ReadOnly(zone) } else { Fault::Offline(zone) };
        let later = if self.rng.chance(1, 2) { 0 } else { self.rng.below(100) };
        let ruined: BTreeSet<u32> = self.zone_of(bay, zone).into_iter().collect();
        let outcast = ruined.is_empty();
        Blow { what: "a worn zone", faults: vec![(later, fault)], ruined, outcast, ..Blow::default() }
    }

    /// A zone that another hand has reset or finished.
    fn draw_tampered(&mut self, bay: Bay) -> Blow {
        let mut zones = self.begun_zones(bay, false);
        // Near its start or its end a zone that another hand has changed can look as if it had been left so.
        let (chunk, data_chunks) = (self.scenario.chunk_blocks, self.scenario.data_chunks());
        let window = self
            .scenario
            .drive
            .zrwa
            .map_or(2, |zrwa| self.scenario.aggregate as u64 * zrwa.size_blocks / chunk)
            .max(4);
        // Where zones are written by appends the window is 32 blocks of each member.
        let appended = self.scenario.group_blocks > 1;
        let window = if appended { window.max(2 * 32 / chunk) } else { window };
        let margin = window * chunk * data_chunks;
        zones.retain(|info| {
            let zone = self.zone_of(bay, info.zone).map(|zone| &self.oracle.zones[zone as usize]);
            let inside = margin..self.oracle.capacity.saturating_sub(margin);
            // Nor can one that was being finished be told from one whose end another hand has brought.
            zone.is_some_and(|zone| {
                zone.change.is_none() && inside.contains(&zone.durable) && inside.contains(&zone.submitted())
            })
        });
        if zones.is_empty() {
            return Blow::default();
        }
        let zone = zones[self.rng.below(zones.len() as u64) as usize].zone;
        // With the policy `inplace` a zone that was reset may end before what its last version decodes.
        let may_reset = self.scenario.policy != Policy::InPlace;
        let reset = may_reset && (self.rng.chance(1, 2) || !self.maker.notices_others());
        // All of the small zones that are used as one.
        let parts = self.scenario.aggregate;
        let fault = |part| match reset {
            true => Fault::Reset(ZoneIndex(zone.0 / parts * parts + part)),
            false => Fault::Finish(ZoneIndex(zone.0 / parts * parts + part)),
        };
        let what = if reset { "a zone reset by another hand" } else { "a zone finished by another hand" };
        let faults = (0..parts).map(|part| (0, fault(part))).collect();
        let ruined: BTreeSet<u32> = self.zone_of(bay, zone).into_iter().collect();
        Blow { what, faults, tampered: ruined.clone(), ruined, ..Blow::default() }
    }
}
