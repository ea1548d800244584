//! Assembly of an array: an inspection of all drives, which writes nothing, and then repair according to the verdicts.

use crate::{
    buf::Buf,
    device::{Command, Status},
    format::{Uuid, lineage::Attempt, record::Record},
    raid::{
        ArrayOptions, Drive, PowerMark, Tails,
        change::Change,
        create::{array_geometry, check_drive},
        durable,
        error::{ArrayError, NoArray, Note},
        events::Event,
        failures,
        geometry::{each, physical},
        maintain::{self, rebuild, target},
        parts::Raid,
        policy::zrwa::Refusal,
        power,
        recover::{
            last_checksums,
            membership::decide_members,
            repair,
            scan::{Candidate, scan},
            verdict::{AwaitedMembers, Verdict, ZoneView},
            worn,
        },
        run,
        status::{self, ArrayInspection},
        zone::{flow::Zone, load, note},
        zone_records::ZoneRecords,
    },
    runtime::Runtime,
    zone::{ZoneIndex, ZoneInfo, ZoneState, is_worn},
};
use std::{collections::BTreeMap, rc::Rc};

/// Ends of zones that are known from other sources than the drives.
#[derive(Clone, Copy, Default)]
pub struct KnownEnds<'a> {
    /// Acknowledged tails of a process that died.
    pub tails: Option<&'a Tails>,
    /// Ends of zones as reported to the host, which may continue there, by zone; `None` and missing entries are
    /// unknown.
    pub ends: &'a [Option<u64>],
    /// Notes of these ends, by zone.
    pub notes: Option<&'a BTreeMap<u32, Buf>>,
    /// Power epochs of the drives when these ends were reported.
    pub power: &'a [PowerMark],
}

/// Reads the metadata of `drives` and determines the verdict on each zone; writes nothing.
pub async fn look(
    runtime: &Runtime,
    drives: Vec<Drive>,
    known: KnownEnds<'_>,
    behaviour: ArrayOptions,
) -> Result<ArrayLook, ArrayError> {
    let found = decide_members(scan(runtime, drives).await?, behaviour.force)?;
    for candidate in found.members.iter().flatten() {
        check_drive(&candidate.drive.name, &*candidate.device, &found.superblock)?;
    }
    let mut present = found.members.iter().flatten().map(|candidate| candidate.drive.device.geometry());
    let geometry = array_geometry(&found.superblock, present.any(|geometry| geometry.volatile_cache));
    let tails = known.tails.filter(|tails| tails.assembly == found.superblock.assembly);
    if let Some(tails) = tails.filter(|tails| tails.blocks.len() != geometry.zones as usize) {
        let (known, zones) = (tails.blocks.len(), geometry.zones);
        return Err(NoArray::Tails { zones, known }.into());
    }
    let (logs_generations, number) = (found.superblock.logs_generations(), found.superblock.event as u32);
    let mut generations = found.generations;
    // A higher number than that of this assembly is from before these numbers began again: they are the low bits of one.
    generations.retain(|_, _, earlier| logs_generations && earlier <= number);
    let zone_records = ZoneRecords::new(found.zones, found.burned, found.bad_blocks, generations);
    let raid = Raid::new(runtime, found.superblock, geometry, zone_records, found.sequence, behaviour);
    for (role, candidate) in found.members.into_iter().enumerate() {
        let Some(Candidate { drive: Drive { name, device: drive }, device, log }) = candidate else {
            continue;
        };
        let (wp_blocks, place, power_epoch) = (log.wp_blocks, log.place, device.power_epoch());
        let device = (device, log.moved);
        let log = raid.new_log(role, drive, device, (log.zone, log.generation), log.live);
        log.resume_at(wp_blocks, place);
        log.look_for_wear().await;
        raid.members.put(role, name, log, power_epoch);
    }
    for (member, note) in found.notes.into_iter().enumerate().filter(|(_, note)| !note.is_empty()) {
        // The note may be about a former drive of the member, found in addition to the present one.
        match raid.members.is_active(member) {
            true => raid.members.say(member, note),
            false => failures::say_out(&raid, member, note),
        }
    }
    for member in each(found.returned) {
        let why = Note::TakenBack { by_force: found.forced & 1 << member != 0 };
        raid.events.note(Event::Back { member, why: why.clone() });
        raid.members.say(member, why);
    }
    let verdicts = judge_all(&raid, KnownEnds { tails, ..known }, found.forced).await?;
    Ok(ArrayLook { raid, verdicts, floor: found.floor, late: found.returned | found.undecided })
}

/// Result of [`look`]: an array that can be assembled.
pub struct ArrayLook {
    raid: Rc<Raid>,
    verdicts: Vec<(ZoneIndex, Verdict)>,
    /// The floor of the next superblock.
    floor: u64,
    /// Members (bits) that return after an absence, or of which one of two drives was chosen: their superblocks are
    /// written last.
    late: u32,
}

impl ArrayLook {
    /// Members (bits) that are absent, and not out yet.
    pub fn awaited(&self) -> u32 {
        let superblock = self.raid.membership.superblock();
        let members = superblock.members.iter().enumerate();
        let awaited =
            members.filter(|(member, about)| about.active && self.raid.members.device(*member).is_none());
        awaited.fold(0, |all, (member, _)| all | 1 << member)
    }

    /// Whether a drive is in use as a member.
    pub fn uses(&self, drive: &Drive) -> bool {
        self.raid.members.check_unused(drive).is_err()
    }

    /// The role of a drive, if it is in use as a member that is not out.
    pub fn role_of(&self, drive: &Drive) -> Option<usize> {
        let superblock = self.raid.membership.superblock();
        self.raid.members.member_of(drive).filter(|member| superblock.members[*member].active)
    }

    /// [`crate::array::Array::assembly`] as recorded on the drives.
    pub fn assembly(&self) -> u64 {
        self.raid.membership.superblock().assembly
    }

    /// Whether all drives that are in use in `other` are in use here.
    pub fn has_all_of(&self, other: &ArrayLook) -> bool {
        let (own, others) = (self.raid.membership.superblock(), other.raid.membership.superblock());
        each(other.raid.members.active()).all(|member| {
            self.raid.members.is_active(member) && own.members[member].uuid == others.members[member].uuid
        })
    }

    /// Makes every zone end where it ends in `without`, an inspection without some members that are present here. Where
    /// the verdicts differ, the parts of these members count as lost. A zone that is offline or read-only in `without`
    /// keeps the verdict of this inspection.
    pub fn end_as(&mut self, without: ArrayLook) {
        assert!(
            self.has_all_of(&without),
            "an inspection that lacks members of another one takes over its verdicts"
        );
        let raid = &self.raid;
        let absent = raid.members.active() & !without.raid.members.active();
        // Zone epochs that come from there are sequence numbers of that inspection.
        raid.membership.continue_after(without.raid.membership.sequence());
        let mut others: BTreeMap<_, _> = without.verdicts.into_iter().collect();
        let mut own: BTreeMap<_, _> = std::mem::take(&mut self.verdicts).into_iter().collect();
        for zone in raid.zones.all() {
            let other = others.remove(&zone).unwrap_or(Verdict::Empty);
            let state = load::state_of(raid, own.get(&zone).unwrap_or(&Verdict::Empty));
            if state == load::state_of(raid, &other)
                || matches!(other, Verdict::Offline(_) | Verdict::ReadOnly(_))
            {
                continue;
            }
            raid.zone_records.take_over(zone, &without.raid.zone_records);
            raid.zone_records.change(zone, |record| record.lost |= absent);
            raid.zones.end_offline(zone);
            forget_logs_of(raid, absent, zone.0);
            own.insert(zone, other);
        }
        self.verdicts = own.into_iter().filter(|(_, verdict)| !matches!(verdict, Verdict::Empty)).collect();
    }

    /// Loads the states of all zones into the zone table.
    fn load(&self) {
        self.verdicts.iter().for_each(|(zone, verdict)| load::load(&self.raid, *zone, verdict));
    }

    /// Drops contents of logs that are obsolete according to the verdicts.
    fn keep_what_counts(&self) -> Result<(), ArrayError> {
        self.raid.layout.policy.keep_what_counts(&self.raid, &self.verdicts)
    }

    /// Writes `change` to the superblocks of all members that are present, and nothing else. This is equivalent to two
    /// assemblies, each interrupted after its checkpoints.
    ///
    /// An absent member may have an update that was interrupted before it reached the others, with sequence numbers
    /// that no present member has seen. So this change skips to a number larger than all of these
    /// ([`SKIPPED_BY_CHANGE`]). The interrupted update may itself have been such a change: therefore the first
    /// checkpoint, without `change`. A member that has the interrupted change was present when all members had that
    /// change's first checkpoint. One of these is present now, so the number of this change is larger.
    pub async fn relabel(self, change: &Change) -> Result<(), ArrayError> {
        change.apply(&mut self.raid.membership.superblock().clone())?;
        self.keep_what_counts()?;
        self.load();
        let updated = self.raid.members.active();
        renew(&self.raid, self.floor, self.late, None).await?;
        self.raid.membership.skip_ahead();
        self.raid.membership.change(|superblock| change.apply(superblock))?;
        renew(&self.raid, self.floor, self.late, None).await?;
        run::start_logs(&self.raid);
        last_checksums::remember(&self.raid).await;
        self.raid.members.logs().for_each(|log| log.end());
        match updated & !self.raid.members.active() {
            0 => Ok(()),
            failed => Err(ArrayError::NotTold(self.raid.members.notes(failed))),
        }
    }

    /// Whether another host was the last to run the array and has not stopped it, so that it may still run there.
    fn may_run_elsewhere(&self) -> bool {
        let (runner, host) = (self.raid.membership.superblock().runner, self.raid.runtime.host());
        host.pause.is_some() && ![Uuid::default(), Uuid(host.id)].contains(&runner)
    }

    /// Fences another host that may run the array: appends a claim to the log of each member, and gives the other host
    /// time to find one (see [`crate::array::Array::check_fence`]). Afterwards the drives have to be inspected again,
    /// since the other host may have written until then. No member becomes stale.
    ///
    /// # Errors
    /// The other host still writes, or a third one assembles the array.
    async fn claim(self) -> Result<(), ArrayError> {
        let (raid, host) = (self.raid.clone(), self.raid.runtime.host());
        let id = Uuid(raid.runtime.draw_id());
        let (mut claims, mut full) = (Vec::new(), 0u32);
        for member in each(raid.members.active()) {
            let Some(log) = raid.members.log(member) else { continue };
            match log.claim(Uuid(host.id), id).await {
                Ok(lba) => claims.push((member, log, lba)),
                Err(error) => full |= u32::from(error == Status::ZoneIsFull.into()) << member,
            }
        }
        let are_enough = |held: u32| raid.members.are_enough(held);
        let claimed = claims.iter().fold(0, |held, (member, ..)| held | 1 << member);
        if !are_enough(claimed) {
            if !are_enough(claimed | full) {
                return Err(ArrayError::Fenced);
            }
            // No room for claims: checkpoints have the same effect, but records that the other host is logging at this
            // moment may be lost. A log that has moved to the other zone since it was read would be lost as a whole.
            for log in each(full).filter_map(|member| raid.members.log(member)) {
                if log.is_foreign().await {
                    return Err(ArrayError::Fenced);
                }
            }
            claims.clear();
            self.keep_what_counts()?;
            self.load();
            raid.membership.change(|superblock| superblock.runner = Uuid(host.id));
            renew(&raid, self.floor, self.late, None).await?;
        }
        if let Some(pause) = host.pause {
            pause().await;
        }
        run::check_fence(&raid).await?;
        let (mut held, any) = (0, !claims.is_empty());
        for (member, log, lba) in claims {
            held |= u32::from(log.holds_claim(lba, id).await) << member;
        }
        match any && !raid.members.are_enough(held) {
            true => Err(ArrayError::Fenced),
            false => Ok(()),
        }
    }

    /// The array, its zones and the copies to `filled` drives as they would be after assembly.
    pub async fn inspected(self, filled: &[Drive]) -> Result<ArrayInspection, ArrayError> {
        self.keep_what_counts()?;
        self.load();
        let awaited = self.awaited();
        let raid = self.raid;
        let zones = raid.zones.table().report(ZoneIndex(0), raid.geometry.zones);
        let zones = zones.map_err(ArrayError::Unlisted)?;
        let mut status = status::status(&raid);
        status.wait_for(awaited);
        let rebuild = Some(status::rebuild_progress(&raid)).filter(|progress| progress.total_bytes > 0);
        let mut copies = Vec::new();
        for drive in filled {
            copies.extend(target::copy_to(&raid, drive).await);
        }
        Ok(ArrayInspection { status, geometry: raid.geometry.clone(), zones, rebuild, copies })
    }

    /// As [`ArrayLook::carry_out`], after another host that may run the array has been fenced; `again` repeats the
    /// inspection then.
    pub async fn claim_and_carry_out(
        self,
        again: impl AsyncFnOnce() -> Result<ArrayLook, ArrayError>,
    ) -> Result<Rc<Raid>, ArrayError> {
        if !self.may_run_elsewhere() {
            return self.carry_out().await;
        }
        self.claim().await?;
        let found = again().await?;
        // A third host may have claimed the array meanwhile.
        run::check_fence(&found.raid).await?;
        found.carry_out().await
    }

    /// Carries out the verdicts on the drives, and starts the array. The caller calls [`rebuild::clear_leftovers`] when
    /// no other assembly reads the drives.
    pub async fn carry_out(self) -> Result<Rc<Raid>, ArrayError> {
        let raid = self.raid.clone();
        let carried_out = self.carry_out_on(&raid).await;
        if carried_out.is_err() {
            // Nothing may be written beside another attempt.
            each(raid.members.active()).for_each(|member| raid.members.take_out(member));
            run::end(&raid).await;
        }
        carried_out.map(|()| raid)
    }

    async fn carry_out_on(self, raid: &Rc<Raid>) -> Result<(), ArrayError> {
        self.keep_what_counts()?;
        self.load();
        let ArrayLook { verdicts, floor, late, .. } = self;
        let awaited = may_wait_for(raid);
        let (id, host) = (Uuid(raid.runtime.draw_id()), Uuid(raid.runtime.host().id));
        raid.membership.change(|superblock| superblock.runner = host);
        renew(raid, floor, late, Some(id)).await?;
        run::start_members(raid);
        raid.runtime.spawn(maintain::repair::keep_repaired(raid.clone()));
        commit(raid, id).await?;
        for (zone, verdict) in verdicts {
            repair::repair(raid, zone, verdict, awaited).await?;
        }
        end_assembly(raid).await
    }
}

/// Assembles and starts the array that `drives` are members of; fences another host that may run it first.
pub async fn assemble(
    runtime: &Runtime,
    drives: Vec<Drive>,
    tails: Option<&Tails>,
    behaviour: ArrayOptions,
) -> Result<Rc<Raid>, ArrayError> {
    let known = KnownEnds { tails, ..KnownEnds::default() };
    let found = look(runtime, drives.clone(), known, behaviour).await?;
    let raid = found.claim_and_carry_out(async || look(runtime, drives, known, behaviour).await).await?;
    rebuild::clear_leftovers(&raid).await;
    Ok(raid)
}

/// Determines the verdict on every zone; writes nothing. `forced` members (bits) count only in zones that wait for
/// them or are full on all present members.
async fn judge_all(
    raid: &Raid,
    KnownEnds { tails, ends, notes, power }: KnownEnds<'_>,
    forced: u32,
) -> Result<Vec<(ZoneIndex, Verdict)>, ArrayError> {
    let mut reports = Vec::new();
    for role in 0..raid.members.count() {
        let Some(device) = raid.members.device(role) else {
            reports.push(None);
            continue;
        };
        let count = raid.geometry.zones;
        let done = device.submit(Command::Report { first: physical(ZoneIndex(0)), count }).await;
        let listed = done.zones.len();
        let note = match done.result {
            Ok(()) if listed >= count as usize => {
                let is_worn = |info: &ZoneInfo| is_worn(info.state);
                raid.members.set_worn(role, done.zones.iter().any(is_worn));
                reports.push(Some(done.zones));
                continue;
            }
            Ok(()) => Note::FewZones(listed),
            Err(error) => Note::Unlisted(error),
        };
        reports.push(None);
        if raid.members.are_needed(raid.members.active()) {
            let drive = raid.members.name(role);
            return Err(NoArray::Needed { drive, member: role, note }.into());
        }
        raid.members.take_out(role);
        failures::say_out(raid, role, note);
    }
    let awaited = may_wait_for(raid);
    let cut_off_since_tails = tails.map_or(0, |tails| power::cut_off_since(raid, &tails.power));
    let cut_off_since_told = power::cut_off_since(raid, power);
    let mut verdicts = Vec::new();
    for index in 0..raid.geometry.zones {
        let zone = ZoneIndex(index);
        let info = reports.iter().map(|r| r.as_ref().map(|zones| zones[index as usize])).collect();
        let mut record = raid.zone_records.record(zone);
        let mut parts = reports.iter().flatten().map(|zones| zones[index as usize].state);
        let unproven = forced & !record.waits;
        if unproven != 0 && !parts.all(|state| state == ZoneState::Full) {
            record.lost |= unproven;
            forget_logs_of(raid, unproven, index);
        }
        let mut answered_blocks = tails.map_or(0, |tails| tails.blocks[index as usize]);
        let mut told_end = ends.get(index as usize).copied().flatten();
        let mut cut_off = if answered_blocks > 0 { cut_off_since_tails } else { 0 };
        if told_end.is_some_and(|end| end > 0) {
            cut_off |= cut_off_since_told;
        }
        if answered_blocks > 0 || cut_off != 0 {
            // A member that lost power may have lost acknowledged blocks that were not durable, in parts not yet
            // full.
            let is_open = |m: &usize| {
                let part = reports[*m].as_ref().map(|zones| zones[index as usize].state);
                part.is_some_and(|state| state != ZoneState::Full)
            };
            let lost = each(cut_off & !record.lost).filter(is_open).fold(0, |lost, m| lost | 1 << m);
            match raid.members.are_enough(raid.members.active() & !record.lost & !lost) {
                true => record.lost |= lost,
                // More than parity covers: judged as after a power cut.
                false => {
                    answered_blocks = 0;
                    told_end = None;
                }
            }
        }
        let told_note = notes.and_then(|notes| notes.get(&index)).cloned();
        let mut view =
            ZoneView { zone, record: &mut record, info, answered_blocks, told_end, told_note, read_only: 0 };
        last_checksums::recall(raid, &view).await;
        let verdict = worn::judge_worn(raid, &mut view).await.unwrap_or_else(Verdict::Offline);
        let refusal = match &verdict {
            Verdict::Offline(refusal) => {
                raid.events.note(Event::ZoneOffline { zone: index, why: refusal.clone() });
                Some(refusal.clone())
            }
            Verdict::ReadOnly(_) => {
                raid.events.note(Event::ZoneFailed { zone: index });
                Some(Refusal::ReadOnly)
            }
            _ => None,
        };
        match refusal {
            Some(refusal) => {
                // While the zone is offline or read-only, these parts stay unchanged, whichever members leave or
                // return.
                record.wait_for(awaited.members & !record.lost, awaited.floor);
                let holds = |report: &Option<Vec<ZoneInfo>>| {
                    report.as_ref().is_some_and(|zones| zones[index as usize].state.is_active())
                };
                raid.zones.put_offline(zone, refusal, reports.iter().any(holds));
            }
            // Members that have returned stay in `waits` until all other members have recorded their return.
            None => record.waits &= raid.members.active(),
        }
        if matches!(verdict, Verdict::Reset) && !record.resetting {
            // Logged like any other reset: a partial reset must not look like lost parts, and remains of the old
            // zone epoch must not be taken for valid later.
            (record.epoch, record.resetting) = (raid.membership.next_sequence(), true);
        }
        let lacking = record.lost & !raid.zone_records.lost(zone) & raid.members.active();
        each(lacking).for_each(|member| raid.events.note(Event::PartLacking { member, zone: index }));
        raid.zone_records.set(zone, record);
        if !matches!(verdict, Verdict::Empty) {
            verdicts.push((zone, verdict));
        }
    }
    Ok(verdicts)
}

/// Drops all records of a zone from the logs of some members (bits), in memory.
fn forget_logs_of(raid: &Raid, members: u32, zone: u32) {
    for member in each(members) {
        if let Some(log) = raid.members.log(member) {
            log.live.borrow_mut().retain_zones(|other, _| other != zone);
        }
    }
}

/// Writes the superblock of this assembly to all members, as a checkpoint. Absent members are not out yet, since
/// the assembly may still fail. `late` members are written last: if one of them had the new superblock before the
/// others, and these continued without it, its superblock would be the newest. `attempt` is the id of the assembly
/// if it is to continue after this.
async fn renew(raid: &Rc<Raid>, floor: u64, late: u32, attempt: Option<Uuid>) -> Result<(), ArrayError> {
    let event = raid.membership.next_sequence();
    raid.membership.change(|superblock| {
        (superblock.event, superblock.floor) = (event, floor);
        if let Some(id) = attempt {
            superblock.lineage.attempt(Attempt { event, id });
        }
        for (m, member) in superblock.members.iter_mut().enumerate() {
            member.active |= raid.members.is_active(m);
            if late & raid.members.active() & (1 << m) != 0 {
                // Superblocks that contradict this are older.
                member.since = event;
            }
        }
    });
    // The verdicts may rest on blocks in volatile caches, written by a process that died. After a power cut no
    // checkpoint may refer to blocks that were lost with a cache.
    durable::flush_caches(raid, raid.members.active()).await;
    let active = raid.members.active();
    for member in each(active & !late).chain(each(active & late)) {
        let Some(log) = raid.members.log(member) else { continue };
        if let Err(error) = log.checkpoint(&**raid, true).await {
            failures::member_failed(raid, raid.members.seat(member), error, "metadata write");
        }
    }
    failures::check_members(raid)?;
    if !raid.membership.is_pending() {
        raid.membership.change(|superblock| superblock.floor = event);
    }
    Ok(())
}

/// Commits the assembly with this id: records on all members that it may write, and that absent members are out,
/// before anything is done without them. This also excludes an absent drive that was taking over from another one,
/// and the predecessor of a drive that has taken over.
async fn commit(raid: &Raid, id: Uuid) -> Result<(), ArrayError> {
    raid.membership.change(|superblock| {
        superblock.members.iter_mut().for_each(|member| member.taking_over = None);
        superblock.lineage.commit(id, superblock.members.len());
    });
    raid.membership.settle().await;
    failures::check_members(raid)
}

/// Ends the assembly: all data below the acknowledged tails of an earlier process is safe, so a new assembly number
/// invalidates these tails.
async fn end_assembly(raid: &Raid) -> Result<(), ArrayError> {
    raid.membership.settled().await;
    let waited = |zone: &ZoneIndex| raid.zone_records.record(*zone).waits != 0;
    // A failed zone keeps waiting: the member that it waited for may be absent again.
    let is_decided = |zone: &ZoneIndex| !raid.zones.is_offline(*zone) && !raid.has_failed(*zone);
    let decided: Vec<_> = raid.zones.all().filter(waited).filter(is_decided).collect();
    for zone in decided {
        let epoch = raid.zone_records.change(zone, |record| record.waits = 0);
        let zone = zone.0;
        let sequence = raid.membership.next_sequence();
        durable::broadcast(raid, Record::Decided { zone, epoch }, sequence).await;
    }
    let (active, failed) = (raid.members.active(), raid.membership.has_failed());
    assert!(failed || raid.members.are_enough(active), "an assembly of members {active:#b}");
    raid.membership.change(|superblock| superblock.assembly = superblock.lineage.id().number());
    raid.membership.settle().await;
    failures::check_members(raid)
}

/// Members that a zone in doubt may wait for: those that are not out by the superblock, and those in use now.
fn may_wait_for(raid: &Raid) -> AwaitedMembers {
    let superblock = raid.membership.superblock();
    let active = superblock.members.iter().enumerate().map(|(m, member)| (member.active as u32) << m);
    AwaitedMembers { members: active.sum::<u32>() | raid.members.active(), floor: superblock.floor }
}

/// Notes of zones, by zone.
pub fn notes(raid: &Raid) -> BTreeMap<u32, Buf> {
    let of = |zone: Rc<Zone>| Some((zone.index.0, note::note(raid, zone.index)?));
    raid.zones.all_running().into_iter().filter_map(of).collect()
}

/// Write pointers of the zones that can be written, by zone; `None` for all others.
pub fn ends(raid: &Raid) -> Vec<Option<u64>> {
    let table = raid.zones.table();
    let zones = raid.zones.all().map(|zone| table.info(zone));
    let is_writable = |info: &ZoneInfo| {
        info.state != ZoneState::Full && !is_worn(info.state) && !raid.has_failed(info.zone)
    };
    zones.map(|info| is_writable(&info).then_some(info.wp_blocks)).collect()
}
