//! Assembly: scan, decide, repair.
//!
//! *Scan* reads every drive's metadata log and zone report and, for zones that were being written,
//! the log blocks. *Decide* works out who belongs to the array and where each zone ended; up to
//! here nothing has been written. *Repair* writes a new checkpoint to every member, then has all of them know
//! that the absent one is out, carries out what was promised, and shows every tail with as many witnesses as it
//! needs, before anybody learns of it.
//!
//! *Who is absent* goes out only when all others have a checkpoint. If one of these cannot be written, the
//! assembly has come to nothing, and the absent one, once it is there, is a member as before. That is safe:
//!
//! - Until the absent one is out, checkpoints are all that has been written: what they say (a zone to be reset,
//!   since nothing was ever promised there; a part that is lost; what is burned; no parity beyond a tail) is
//!   true, whoever is there, and no zone has been touched. So a later assembly with the absent one decides
//!   from the same zones. No floor is raised above what the absent one has.
//! - When it is out, it is so in the superblocks of all others, and only then is a zone touched or anything
//!   told. That is one member less than all, so any assembly has all of these but one, and at least one
//!   that says it is out. Whoever says otherwise, with a newer event, is out by what that one says
//!   ([`effective`]), or has not been told yet and is older.
//! - If the power goes in between, some say that it is out and others do not. Whichever counts, nothing has
//!   been done without it, nor without anybody else.
//!
//! *Doubt.* A zone that cannot be decided is offline: nothing of it is touched, on any member or in any
//! log, and it waits for the members that were away. One of these that comes back later is stale, but for
//! the zones that wait for it: it is taken as a member again that lacks everything else.
//!
//! *By force.* If too many members are missing, one that is stale can be taken all the same, where what it
//! has is known to be what it should have: in a zone that is full on it and on all others that are there, in
//! the life of the zone that they know of, nothing has been written since. A stale member lacks all other
//! zones, as one does that comes back. So force costs no zone that works without it, and invents nothing.
//! With one exception: with the policy `log` a write pointer does not prove that others have seen what lies
//! below it, so that the last stripe of such a zone may be what was never answered.

pub mod revive;

use crate::{
    adapt::{aggregate::Aggregated, sequence::Sequencer},
    array::{ArrayError, Drive},
    buf::{BLOCK, Buf},
    code::xor,
    device::{Command, DeviceError, Status, ZonedDevice},
    format::{
        VERSION,
        record::{Burned, Lacks, Origin, Record, Unreadable, ZoneRecord},
        superblock::{AGGREGATES, Stage, Superblock, SuperblockMember},
    },
    raid::{
        Canary,
        core::Core,
        geometry::{MAX_MEMBERS, Place},
        metalog::{META_ZONES, NoLog, ReadLog, read_log},
        patrol::{holes::HoleMap, replace::SKIPPED},
        policy::{
            Policy,
            zrwa::{self, Evidence, Refusal},
        },
        zone::write::Zone,
    },
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{collections::BTreeMap, rc::Rc};

/// A drive that says it is a member.
pub struct Candidate {
    pub drive: Drive,
    /// The drive as the array uses it.
    pub device: Rc<dyn ZonedDevice>,
    pub log: ReadLog,
}

impl Candidate {
    /// The drive's own newest superblock.
    pub fn superblock(&self) -> &Superblock {
        let newest = self.log.records.iter().filter_map(|(record, _)| superblock_of(record));
        // The first record is a checkpoint, or the log would not have been read.
        newest.max_by_key(|s| s.event).unwrap_or_else(|| unreachable!("a log begins with a checkpoint"))
    }

    /// Whether this is the drive of its role, by what `superblock` says.
    pub fn is_member_by(&self, superblock: &Superblock) -> bool {
        let role = self.log.origin.member as usize;
        let (own, there) = (self.superblock().members.get(role), superblock.members.get(role));
        own.zip(there).is_some_and(|(own, there)| own.uuid == there.uuid && there.active)
    }
}

fn superblock_of(record: &Record) -> Option<&Superblock> {
    match record {
        Record::Checkpoint(checkpoint) => Some(&checkpoint.superblock),
        Record::Superblock(superblock) => Some(superblock),
        _ => None,
    }
}

/// What the metadata of all members comes to.
pub struct Found {
    pub superblock: Superblock,
    /// By role; `None` if missing, stale or failed.
    pub members: Vec<Option<Candidate>>,
    /// By role: what to say of it, if it is out.
    pub notes: Vec<String>,
    pub zones: Vec<ZoneRecord>,
    pub burned: Vec<Burned>,
    pub holes: HoleMap,
    /// The highest sequence number seen.
    pub sequence: u64,
    /// The floor of the next superblock.
    pub floor: u64,
    /// Members (bits) that were away, and are taken for the zones that wait for them.
    pub returned: u32,
    /// Those of them that are taken by force: they lack every zone that is not full.
    pub forced: u32,
    /// Members (bits) of which one of two drives is taken now: the other one may have been told as much.
    pub undecided: u32,
}

/// A drive as a member of an array uses it: `aggregate` zones as one, and written in order where there is
/// no ZRWA. `None` if its zones cannot be aggregated so.
pub fn prepare(
    runtime: &Runtime,
    mut device: Rc<dyn ZonedDevice>,
    policy: Policy,
    aggregate: u32,
) -> Option<Rc<dyn ZonedDevice>> {
    if !policy.uses_zrwa() {
        device = Rc::new(Sequencer::new(runtime, device));
    }
    if aggregate > 1 {
        device = Rc::new(Aggregated::new(runtime, device, aggregate)?);
    }
    Some(device)
}

/// Reads the log of a drive, which says how many zones are one, and may be readable only if that is
/// known: so every number is tried.
pub async fn find_log(runtime: &Runtime, drive: &Drive) -> Result<(Rc<dyn ZonedDevice>, ReadLog), NoLog> {
    let mut reason = NoLog::Blank;
    for aggregate in AGGREGATES {
        let Some(device) = prepare(runtime, drive.device.clone(), Policy::Zrwa, aggregate) else { continue };
        // A member has a zone for data beside those.
        if aggregate > 1 && device.geometry().zones <= META_ZONES {
            break;
        }
        match read_log(&device, aggregate).await {
            Ok(log) => {
                let policy = superblock_of(&log.records[0].0).map_or(Policy::Zrwa, |s| s.policy);
                let device = prepare(runtime, drive.device.clone(), policy, aggregate);
                return device.map(|device| (device, log)).ok_or(NoLog::Damaged);
            }
            Err(error) => reason = reason.max(error),
        }
    }
    if reason == NoLog::Blank && !has_empty_data_zones(&*drive.device).await {
        reason = NoLog::Foreign;
    }
    Err(reason)
}

/// Whether there is nothing behind the metadata zones of a drive that could be read.
async fn has_empty_data_zones(device: &dyn ZonedDevice) -> bool {
    let count = device.geometry().zones.saturating_sub(META_ZONES);
    if count == 0 {
        return true;
    }
    let report = device.submit(Command::Report { first: ZoneIndex(META_ZONES), count }).await;
    report.zones.iter().all(|zone| matches!(zone.state, ZoneState::Empty | ZoneState::Offline))
}

/// Reads the logs of `drives`; refuses what another version has written. Also tells which drives have no
/// readable log, and why.
pub async fn scan(
    runtime: &Runtime,
    drives: Vec<Drive>,
) -> Result<(Vec<Candidate>, Vec<String>), ArrayError> {
    let mut candidates = Vec::new();
    let mut damaged = Vec::new();
    for drive in drives {
        let name = &drive.name;
        match find_log(runtime, &drive).await {
            Ok((device, log)) => candidates.push(Candidate { drive, device, log }),
            Err(NoLog::Damaged) => damaged.push(format!("{name}: its metadata is damaged")),
            Err(NoLog::Absurd(absurd)) => damaged.push(format!("{name}: its metadata is damaged: {absurd}")),
            Err(NoLog::Unreadable(error)) => {
                damaged.push(format!("{name}: its metadata cannot be read: {error}"))
            }
            // A spare, or one whose first superblock was cut off.
            Err(NoLog::Blank) => damaged.push(format!("{name} is blank")),
            Err(NoLog::Foreign) => {
                damaged.push(format!("{name} holds something else: it is not a member of any array"));
            }
            Err(NoLog::Version(version)) => {
                let advice = match version > VERSION {
                    true => "use a newer one",
                    false => "use an older one, or make the array anew",
                };
                return Err(ArrayError(format!(
                    "{name} has format version {version}, this zoneraid knows only version {VERSION}: {advice}"
                )));
            }
            Err(NoLog::Features(unknown)) => {
                return Err(ArrayError(format!(
                    "{name}: its array uses features (bits {unknown:#x}) that this zoneraid does not know: \
                     use a newer one"
                )));
            }
        }
    }
    outvote(&mut candidates, &mut damaged)?;
    Ok((candidates, damaged))
}

/// Sets those aside that describe another array than most do: what an array is never changes.
fn outvote(candidates: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<(), ArrayError> {
    let same = |a: &Candidate, b: &Candidate| a.log.origin.array == b.log.origin.array;
    let dissent = |a: &Candidate, b: &Candidate| a.superblock().agree(b.superblock()).err();
    let is_most = |of: &Candidate| {
        let mut votes = candidates.iter().filter(|other| same(of, other)).map(|c| dissent(c, of).is_none());
        let (all, most) = (votes.clone().count(), votes.by_ref().filter(|agrees| *agrees).count());
        2 * most > all
    };
    let mut verdicts = Vec::new();
    for candidate in candidates.iter() {
        let Some(most) = candidates.iter().find(|other| same(candidate, other) && is_most(other)) else {
            return Err(ArrayError(format!(
                "the drives contradict each other about what array {} is: give those that agree only",
                candidate.log.origin.array
            )));
        };
        verdicts.push(dissent(candidate, most));
    }
    let mut verdicts = verdicts.into_iter();
    candidates.retain(|candidate| {
        let dissent = verdicts.next().flatten();
        let name = &candidate.drive.name;
        let words = |absurd| format!("{name}: its metadata is damaged: {absurd}, by what the others say");
        damaged.extend(dissent.map(words));
        dissent.is_none()
    });
    Ok(())
}

/// The newest superblock that nobody it counts on contradicts.
///
/// Being out is for good (a drive that comes back to an array gets a new identity), and a change
/// counts only once all members have it. So a superblock whose writer is out according to one of
/// its own members was written in an assembly that came to nothing. So was one whose writer has another drive
/// in its place by what one of its own members says, or one that has replaced such a member: numbers alone do
/// not tell that for ever, as an assembly may have left out many ([`SKIPPED`]).
pub fn effective(candidates: &[Candidate]) -> Option<&Superblock> {
    let mut newest_first: Vec<_> = candidates.iter().map(|c| (c, c.superblock())).collect();
    newest_first.sort_by_key(|(_, superblock)| std::cmp::Reverse(superblock.event));
    let found = newest_first.iter().find(|(writer, superblock)| {
        let role = writer.log.origin.member as usize;
        let Some(own) = superblock.members.get(role) else { return false };
        let mut denied = candidates.iter().filter_map(|other| {
            let (other_role, opinion) = (other.log.origin.member as usize, other.superblock());
            let (known, there) = (superblock.members.get(other_role)?, opinion.members.get(other_role)?);
            let said = opinion.members.get(role)?;
            let counted = known.active && known.uuid == there.uuid;
            let is_out = said.uuid == own.uuid && !said.active;
            let is_replaced = other_role != role && said.since > own.since;
            Some(counted && is_out || (counted || there.since > known.since) && is_replaced)
        });
        !denied.any(|denied| denied)
    });
    found.map(|(_, superblock)| *superblock)
}

/// Decides who belongs to the array, and what the metadata says; `force` takes stale members where there are
/// too few others.
pub fn decide_members(
    candidates: Vec<Candidate>,
    damaged: &[String],
    force: bool,
) -> Result<Found, ArrayError> {
    let fail = |message: String| Err(ArrayError(message));
    let Some(first) = candidates.first() else {
        return fail(match damaged.first() {
            Some(reason) => format!("no member with readable metadata: {reason}"),
            None => "no drives given".into(),
        });
    };
    if let Some(other) = candidates.iter().find(|c| c.log.origin.array != first.log.origin.array) {
        return fail(format!(
            "{} belongs to array {}, but {} to array {}: give the drives of one array only",
            first.drive.name, first.log.origin.array, other.drive.name, other.log.origin.array
        ));
    }
    let Some(mut superblock) = effective(&candidates).cloned() else {
        return fail(
            "the drives contradict each other about who is a member: leave out those that were away".into(),
        );
    };
    let name = &superblock.name;
    match superblock.stage {
        Stage::Whole => {}
        // Of one that has been finished, somebody knows.
        Stage::Making => {
            return fail(format!(
                "the creation of '{name}' was not finished: create it again, or destroy what there is of it"
            ));
        }
        Stage::Ending => return fail(format!("'{name}' is half destroyed: destroy it again")),
    }
    let count = superblock.members.len();
    let mut members: Vec<Option<Candidate>> = (0..count).map(|_| None).collect();
    let mut notes = vec![String::new(); count];
    let (mut stale, mut before) = (Vec::new(), Vec::new());
    for candidate in candidates {
        let role = candidate.log.origin.member as usize;
        let name = candidate.drive.name.clone();
        let own = candidate.superblock();
        let Some(expected) = superblock.members.get(role) else {
            return fail(format!(
                "{name} says it is member {role} of an array of {count}: its metadata is damaged"
            ));
        };
        let same = own.members.get(role).is_some_and(|m| m.uuid == expected.uuid);
        if !same {
            notes[role] = format!("{name} was replaced");
            let is_before = |m: &SuperblockMember| m.active && expected.taking_over == Some(m.since);
            let complete = own.event >= superblock.floor && own.members.get(role).is_some_and(is_before);
            before.extend(complete.then_some(candidate));
        } else if !expected.active {
            notes[role] = format!("{name} was taken out of the array: its content is stale");
            stale.push(candidate);
        } else if own.stage == Stage::Ending {
            // What it holds may be gone.
            notes[role] = format!("{name} was to be destroyed with the array");
        } else if own.event < superblock.floor {
            notes[role] =
                format!("{name} is stale: it is of event {}, the array of {}", own.event, superblock.event);
            stale.push(candidate);
        } else if let Some(other) = &members[role] {
            return fail(format!(
                "{name} and {} both say they are member {role}: leave one out",
                other.drive.name
            ));
        } else {
            notes[role].clear();
            members[role] = Some(candidate);
        }
    }
    let undecided = (0..)
        .zip(&superblock.members)
        .fold(0, |all, (m, member)| all | (member.taking_over.is_some() as u32) << m);
    for candidate in before {
        let role = candidate.log.origin.member as usize;
        match &members[role] {
            Some(other) if superblock.members[role].taking_over.is_none() => {
                let (name, other) = (&candidate.drive.name, &other.drive.name);
                return fail(format!("{name} and {other} both say they are member {role}: leave one out"));
            }
            Some(_) => {}
            None => {
                let own = candidate.superblock().members[role].clone();
                superblock.members[role] = SuperblockMember { taking_over: None, ..own };
                notes[role].clear();
                members[role] = Some(candidate);
            }
        }
    }
    for (member, found) in superblock.members.iter_mut().zip(&members) {
        member.taking_over.take_if(|_| found.is_some());
    }
    let present = members.iter().flatten().count();
    stale.sort_by_key(|candidate| std::cmp::Reverse(candidate.superblock().event));
    let mut forced = Vec::new();
    if force && present > 0 {
        while present + forced.len() + 1 < count
            && let Some(next) = stale.iter().position(|stale| {
                let role = stale.log.origin.member;
                let taken = |other: &Candidate| other.log.origin.member == role;
                members[role as usize].is_none() && !forced.iter().any(taken)
            })
        {
            forced.push(stale.remove(next));
        }
    }
    if present + forced.len() + 1 < count {
        let reasons: Vec<_> =
            notes.iter().chain(damaged).filter(|n| !n.is_empty()).map(String::as_str).collect();
        let because = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        let needed = count - 1;
        return fail(format!(
            "only {present} of {count} members can be used, at least {needed} are needed{because}"
        ));
    }
    for (role, note) in notes.iter_mut().enumerate() {
        if members[role].is_none() && note.is_empty() {
            *note = damaged.first().cloned().unwrap_or_else(|| "missing".into());
        }
    }
    let taken = || members.iter().flatten();
    let oldest = taken().map(|c| c.superblock().event).min().unwrap_or(superblock.event);
    let seen = taken().chain(&stale).chain(&forced).map(|c| c.log.sequence).max().unwrap_or(0);
    // Whoever of two drives is not taken may have been told more than anybody who is here.
    let sequence = seen + if undecided != 0 { SKIPPED } else { 0 };
    let (mut zones, burned, holes) = replay(taken().flat_map(|c| &c.log.records), superblock.zones);
    let (mut returned, mut by_force) = (0, 0);
    for mut candidate in forced {
        let role = candidate.log.origin.member as usize;
        candidate.return_by_force(&mut zones);
        notes[role].clear();
        by_force |= 1 << role;
        members[role] = Some(candidate);
    }
    for mut candidate in stale {
        let role = candidate.log.origin.member as usize;
        if members[role].is_none() && candidate.come_back(&mut zones) {
            notes[role].clear();
            returned |= 1 << role;
            members[role] = Some(candidate);
        }
    }
    // One that is missing, and is not out yet, may be as old as ever; one that comes back must stay stale
    // until it has been told.
    returned |= by_force;
    let floor = if returned == 0 { superblock.floor } else { oldest };
    Ok(Found {
        superblock,
        members,
        notes,
        zones,
        burned,
        holes,
        sequence,
        floor,
        returned,
        forced: by_force,
        undecided,
    })
}

impl Candidate {
    /// Whether a zone waits for this member.
    fn is_awaited(&self, zone: &ZoneRecord) -> bool {
        zone.waits & (1 << self.log.origin.member) != 0 && self.superblock().event >= zone.since
    }

    /// Takes a stale member for the zones that wait for it: it lacks all others, and nothing else of what
    /// its log says counts. `false` if none waits.
    fn come_back(&mut self, zones: &mut [ZoneRecord]) -> bool {
        let awaited = zones.iter().any(|zone| self.is_awaited(zone));
        if awaited {
            self.lack(zones, |_, _| false);
        }
        awaited
    }

    /// Takes a stale member for these zones, and those that are in the same life as when it went.
    fn return_by_force(&mut self, zones: &mut [ZoneRecord]) {
        let bit = 1u32 << self.log.origin.member;
        let (own, ..) = replay(self.log.records.iter(), zones.len() as u32);
        self.lack(zones, |index, zone| {
            let own = &own[index];
            own.epoch == zone.epoch && !zone.resetting && !own.resetting && (own.lost | zone.lost) & bit == 0
        });
    }

    /// Has a stale member lack all zones that do not wait for it and of which it does not hold what it `has`.
    fn lack(&mut self, zones: &mut [ZoneRecord], has: impl Fn(usize, &ZoneRecord) -> bool) {
        let bit = 1u32 << self.log.origin.member;
        let mut lives = vec![None; zones.len()];
        for (index, zone) in zones.iter_mut().enumerate() {
            if self.is_awaited(zone) || has(index, zone) {
                lives[index] = Some(zone.epoch);
            } else {
                zone.lost |= bit;
            }
        }
        self.log.live.retain_zones(|zone, epoch| lives.get(zone as usize) == Some(&Some(epoch)));
    }
}

/// The state of the zones: the newest checkpoint, and what any member logged after it. Takes the `records`
/// of all members with their sequence numbers.
fn replay<'a>(
    records: impl Iterator<Item = &'a (Record, u64)>,
    count: u32,
) -> (Vec<ZoneRecord>, Vec<Burned>, HoleMap) {
    let mut zones = vec![ZoneRecord::default(); count as usize];
    let (mut burned, mut holes) = (Vec::new(), HoleMap::default());
    let mut base = 0;
    let mut changes = BTreeMap::new();
    for (record, sequence) in records {
        match record {
            Record::Checkpoint(checkpoint) if *sequence >= base => {
                base = *sequence;
                zones.clone_from(&checkpoint.zones);
                burned.clone_from(&checkpoint.burned);
                holes = HoleMap::default();
                checkpoint.holes.iter().for_each(|hole| holes.add(*hole));
            }
            Record::Checkpoint(_) => {}
            _ => {
                changes.insert(*sequence, record);
            }
        }
    }
    zones.resize(count as usize, ZoneRecord::default());
    for (sequence, record) in changes.range(base + 1..) {
        apply(&mut zones, record, *sequence);
        if let Record::Rebuilt { zone, members, .. } = record {
            burned.retain(|b: &Burned| b.zone != *zone || members & (1 << b.member) == 0);
        }
        if let Record::Holes(part) = record {
            holes.set(part.clone());
        }
    }
    let is_present = |zone: u32, epoch: u64| zones.get(zone as usize).is_some_and(|z| z.epoch == epoch);
    burned.retain(|b| is_present(b.zone, b.epoch));
    holes.retain(is_present);
    (zones, burned, holes)
}

fn apply(zones: &mut [ZoneRecord], record: &Record, sequence: u64) {
    match *record {
        Record::Reset { first, count } => {
            for zone in zones.iter_mut().skip(first as usize).take(count as usize) {
                (zone.epoch, zone.resetting, zone.finished, zone.waits) = (sequence, true, None, 0);
            }
        }
        Record::ResetDone { first, count, epoch } => {
            for zone in
                zones.iter_mut().skip(first as usize).take(count as usize).filter(|z| z.epoch == epoch)
            {
                (zone.resetting, zone.lost) = (false, 0);
            }
        }
        Record::Finish { zone, epoch, tail_blocks } => {
            if let Some(zone) = zones.get_mut(zone as usize).filter(|z| z.epoch == epoch) {
                zone.finished = Some(tail_blocks);
            }
        }
        Record::Rebuilt { zone, epoch, members } => {
            if let Some(zone) = zones.get_mut(zone as usize).filter(|z| z.epoch == epoch) {
                zone.lost &= !members;
            }
        }
        Record::Decided { zone, epoch } => {
            if let Some(zone) = zones.get_mut(zone as usize).filter(|z| z.epoch == epoch) {
                zone.waits = 0;
            }
        }
        Record::Lacks(Lacks { zone, epoch, members }) => {
            if let Some(zone) = zones.get_mut(zone as usize).filter(|z| z.epoch == epoch) {
                zone.lost |= members;
            }
        }
        _ => {}
    }
}

/// What has to be done with a zone.
pub enum Verdict {
    /// Nothing was written, on any member.
    Empty,
    /// Nothing that counts was written: reset what there is.
    Reset,
    Full,
    /// The finish that was promised has to be carried out, or carried out again.
    Finish(Option<Tail>),
    /// It goes on from here.
    Open(Tail),
    /// Nobody can tell where it ended.
    Offline(Refusal),
}

/// Where a zone goes on.
pub struct Tail {
    pub blocks: u64,
    pub positions: [u64; MAX_MEMBERS],
    pub parity: Buf,
    /// Members (bits) whose zones are empty although they hold their part.
    pub revived: u32,
    /// What has to be written back where write pointers have not moved, by member; with the policy
    /// `log`, what is lacking of the parity of complete stripes.
    pub held: Vec<Held>,
}

/// Blocks of a member that are to be written, with their metadata if they have any.
pub struct Held {
    pub member: usize,
    pub lba: Lba,
    pub data: Buf,
    pub oob: Buf,
}

/// What logs say of a zone.
#[derive(Default)]
struct Logged {
    tail: Option<u64>,
    /// There may be something else in the log blocks, which must not be believed later.
    leftovers: bool,
    /// Below this block a tail may have been logged where it can be read no more, on this member.
    doubt: Option<(u64, usize)>,
}

impl Logged {
    /// Refuses a tail that something may have been logged above.
    fn check(&self, tail_blocks: u64) -> Result<(), Refusal> {
        match self.doubt {
            Some((end_blocks, member)) if tail_blocks < end_blocks => Err(Refusal::Log { member }),
            _ => Ok(()),
        }
    }
}

/// What one zone looks like on each member, by role.
pub struct ZoneView<'a> {
    pub zone: ZoneIndex,
    pub record: &'a mut ZoneRecord,
    pub info: Vec<Option<ZoneInfo>>,
    /// The end of what a process that died had answered, as far as that is known.
    pub answered_blocks: u64,
}

impl Core {
    /// Looks at one zone and decides; only reads. Members that lost their part are marked in
    /// `view.record`, unless there is no decision.
    ///
    /// If what one member holds is not what any crash leaves, while all others agree, somebody else has
    /// been at it: it is done without, as if it were missing.
    pub async fn judge(&self, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        let (record, burned) = (*view.record, self.burned.borrow().clone());
        let refusal = match self.judge_as_found(view).await {
            Ok(verdict) => return Ok(verdict),
            Err(refusal) => refusal,
        };
        let all = view.info.iter().all(Option::is_some) && record.lost == 0;
        let mut found: Option<(Verdict, ZoneRecord, Vec<Burned>)> = None;
        for member in (0..self.layout.members).filter(|_| all && refusal.accuses()) {
            *view.record = ZoneRecord { lost: 1 << member, ..record };
            self.burned.replace(burned.clone());
            let verdict = self.judge_as_found(view).await;
            let held = matches!(verdict, Ok(Verdict::Open(_) | Verdict::Full | Verdict::Finish(_)));
            if let (true, Ok(verdict)) = (held, verdict) {
                if found.is_some() {
                    // It could be either of two.
                    found = None;
                    break;
                }
                found = Some((verdict, *view.record, self.burned.borrow().clone()));
            }
        }
        let (result, record, burned) = match found {
            Some((verdict, record, burned)) => (Ok(verdict), record, burned),
            None => (Err(refusal), record, burned),
        };
        *view.record = record;
        self.burned.replace(burned);
        result
    }

    async fn judge_as_found(&self, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        for (member, info) in view.info.iter().enumerate() {
            // Nothing can be read from or written to it any more, or nothing written.
            if info.is_some_and(|info| matches!(info.state, ZoneState::ReadOnly | ZoneState::Offline)) {
                view.record.lost |= 1 << member;
            }
        }
        let record = *view.record;
        let used_blocks = self.layout.rows * self.layout.chunk_blocks;
        if record.resetting {
            return Ok(Verdict::Reset);
        }
        self.check_ended(view)?;
        if self.layout.policy == Policy::Log {
            return self.judge_log(view).await;
        }
        // Who can be relied on: with a ZRWA, full, or empty, which may be what a shutdown has made of it.
        let wp = |info: &ZoneInfo| match info.state {
            ZoneState::Full => Some(used_blocks),
            ZoneState::Empty => Some(0),
            _ if info.zrwa => Some(info.wp_blocks.min(used_blocks)),
            _ => None,
        };
        let trusted = |member: usize| record.lost & (1 << member) == 0;
        let present = || view.info.iter().enumerate().filter_map(|(m, info)| Some((m, info.as_ref()?)));
        let wps: Vec<_> =
            (0..view.info.len()).map(|m| view.info[m].as_ref().filter(|_| trusted(m)).and_then(wp)).collect();
        let full = |m: usize, info: &ZoneInfo| !trusted(m) || info.state == ZoneState::Full;
        let all_full = present().all(|(m, info)| full(m, info)) && wps.iter().flatten().next().is_some();
        let relied = wps.iter().flatten().count();
        let (members, needed) = (self.layout.members, self.layout.members - 1);
        if all_full {
            return Ok(Verdict::Full);
        }
        if record.finished == Some(0) {
            return Ok(Verdict::Finish(None));
        }
        if self.layout.policy == Policy::InPlace {
            return self.judge_in_place(view, &wps).await;
        }
        let all_empty = present().all(|(m, info)| info.state == ZoneState::Empty || !trusted(m));
        let logged = self.logged_tail(view.zone, &record, &wps, all_empty).await;
        if relied < needed {
            // What the others had been told, and in a zone that was just begun even that there was anything,
            // may be known to them alone.
            return Err(Refusal::TooFew { present: relied, members, needed });
        }
        if all_empty
            && record.finished.is_none()
            && (logged.tail.is_none() && !self.is_answered(view, &wps).await
                || self.canary == Some(Canary::EmptyIsUnwritten))
        {
            logged.check(0)?;
            let leftovers = present().any(|(m, info)| {
                !matches!(info.state, ZoneState::Empty | ZoneState::Offline | ZoneState::ReadOnly)
                    || record.lost & (1 << m) != 0 && info.state == ZoneState::Empty
            });
            return Ok(if leftovers || logged.leftovers { Verdict::Reset } else { Verdict::Empty });
        }
        let told = logged.tail.max(Some(view.answered_blocks).filter(|blocks| *blocks > 0));
        let lost = present().filter(|(m, _)| wps[*m].is_none()).fold(0, |lost, (m, _)| lost | 1 << m);
        let mut evidence = Evidence { wp_blocks: wps, told_blocks: told };
        let blocks = match record.finished {
            Some(tail) => tail,
            None => zrwa::decide(&self.layout, &evidence)?,
        };
        if record.finished.is_none() {
            logged.check(blocks)?;
        }
        if blocks == 0 {
            return Ok(Verdict::Reset);
        }
        let empty = present()
            .filter(|(m, info)| trusted(*m) && info.state == ZoneState::Empty)
            .fold(0, |empty, (m, _)| empty | 1 << m);
        let held = self.hold(view, &mut evidence, blocks, empty).await?;
        view.record.lost |= lost | held.gone;
        let half = self.layout.chunk_blocks / 2;
        let mut positions = [0; MAX_MEMBERS];
        for (position, wp) in positions.iter_mut().zip(&evidence.wp_blocks) {
            *position = wp.unwrap_or(0) / half;
        }
        let parity = self.load_parity(view, blocks, &evidence).await?;
        let tail = Tail { blocks, positions, parity, revived: empty & !held.gone, held: held.pieces };
        Ok(if record.finished.is_some() { Verdict::Finish(Some(tail)) } else { Verdict::Open(tail) })
    }

    /// Refuses a zone that has ended and lacks more parts than parity makes up for, if a member that is not
    /// there may hold its own: it would be stale there from now on, and what it holds could not be had back.
    pub fn check_ended(&self, view: &ZoneView<'_>) -> Result<(), Refusal> {
        let record = &view.record;
        let trusted = |m: &usize| record.lost & (1 << m) == 0;
        let (members, needed) = (self.layout.members, self.layout.members - 1);
        let parts: Vec<_> = (0..members).filter(trusted).filter_map(|m| view.info[m]).collect();
        let full = parts.iter().all(|info| info.state == ZoneState::Full);
        let ended = record.finished.map_or(full, |tail| tail > 0);
        let superblock = self.superblock.borrow();
        let holds = |m: usize| superblock.members[m].active || record.waits & (1 << m) != 0;
        let away = (0..members).filter(trusted).any(|m| view.info[m].is_none() && holds(m));
        match ended && away && parts.len() < needed {
            true => Err(Refusal::TooFew { present: parts.len(), members, needed }),
            false => Ok(()),
        }
    }

    /// Whether something that a process had answered is in a zone that is empty on all members. If not,
    /// it was reset before the process could say so.
    async fn is_answered(&self, view: &ZoneView<'_>, wps: &[Option<u64>]) -> bool {
        if view.answered_blocks > 0 {
            for member in (0..wps.len()).filter(|member| wps[*member].is_some()) {
                for zrwa in self.zrwas_at_start(member) {
                    if !self.is_blank(view.zone, member, zrwa).await {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// What was logged for the zone's present life. If it is empty on all members, that can only be a
    /// tail in its first stripe.
    async fn logged_tail(
        &self,
        zone: ZoneIndex,
        record: &ZoneRecord,
        wps: &[Option<u64>],
        all_empty: bool,
    ) -> Logged {
        let layout = &self.layout;
        let mut found = Logged::default();
        let any_epoch = self.canary == Some(Canary::NoEpochCheck);
        for member in &self.members {
            if let Some(log) = &*member.log.borrow()
                && let Some(tail) = log.live.borrow().tails.get(&zone.0)
                && (tail.epoch == record.epoch || any_epoch)
            {
                found.tail = found.tail.max(Some(tail.tail_blocks));
            }
        }
        let passed = wps.iter().flatten().min().copied().unwrap_or(0) / layout.chunk_blocks;
        let last = if all_empty { 1 } else { passed + 2 * layout.distance + 1 };
        let mut pending = Vec::new();
        for stripe in passed.saturating_sub(1)..last.min(layout.rows) {
            let (members, place) = layout.log(stripe);
            let Place::Row(row) = place else {
                let holes = |m: &usize| wps[*m].is_some() && self.log_has_holes(zone, *m);
                if !members.iter().any(|m| wps[*m].is_some() && !holes(m)) {
                    let end = (stripe + 1) * layout.stripe_blocks();
                    found.doubt = members.into_iter().find(holes).map(|m| (end, m)).or(found.doubt);
                }
                continue;
            };
            for member in
                members.into_iter().filter(|m| wps[*m].is_some_and(|wp| wp < (row + 1) * layout.chunk_blocks))
            {
                for block in 0..2 {
                    let lba = self.start(member, zone).0 + row * layout.chunk_blocks + block;
                    let origin = Origin { array: self.array, member: member as u32, lba };
                    let read = self.submit(member, Command::read(Lba(lba), Buf::zeroed(BLOCK)));
                    pending.push((stripe, origin, read));
                }
            }
        }
        // A tail was promised when all log members had it: one that can be read as a whole is enough.
        let mut seen: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        for (stripe, origin, read) in pending {
            let done = read.await;
            let unwritten = done.result == Err(Status::DeallocatedBlock.into());
            let read = match done.result {
                Ok(()) => Record::read(&done.data, origin),
                Err(_) => Err(Unreadable::NoRecord),
            };
            // A log block is written as one: no power cut leaves half of one. Data can only be there once
            // all members have passed the row of the stripe, and then no tail is as short as that.
            let damaged = match &read {
                _ if done.result.is_err() => !unwritten,
                Ok(_) => false,
                Err(_) => !is_uniform(&done.data),
            };
            let (whole, unsound) = seen.entry(stripe).or_default();
            *(if damaged { unsound } else { whole }) |= 1 << origin.member;
            if unwritten {
                continue;
            }
            if let Ok((Record::Tail(tail), _, _)) = read
                && tail.zone == zone.0
                && (tail.epoch == record.epoch || any_epoch)
                && (tail.tail_blocks.saturating_sub(1)) / layout.stripe_blocks() == stripe
            {
                found.tail = found.tail.max(Some(tail.tail_blocks));
            } else {
                found.leftovers |= done.result.is_err() || done.data.iter().any(|byte| *byte != 0);
            }
        }
        for (stripe, (whole, unsound)) in seen {
            if whole & !unsound == 0
                && let Some(member) = Core::each(unsound).next()
            {
                let end = (stripe + 1) * layout.stripe_blocks();
                found.doubt = Some(found.doubt.map_or((end, member), |doubt| doubt.max((end, member))));
            }
        }
        found
    }

    /// The running parity of the stripe of `tail`: from the data, or from the slots where a data
    /// chunk cannot be read.
    async fn load_parity(&self, view: &ZoneView<'_>, tail: u64, evidence: &Evidence) -> Result<Buf, Refusal> {
        let layout = &self.layout;
        let chunk = layout.chunk_blocks;
        let mut result = Buf::zeroed(chunk as usize * BLOCK);
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        for block in 0..chunk.min(covered) {
            let chunks = (covered - block).div_ceil(chunk);
            let found = match self.parity_from_data(view.zone, stripe, chunks, block, evidence).await {
                Some(found) => found,
                None => self.parity_from_slot(view, stripe, chunks, block, evidence).await.ok_or({
                    let present = evidence.wp_blocks.iter().flatten().count();
                    Refusal::TooFew { present, members: layout.members, needed: layout.members }
                })?,
            };
            if let Some(target) = result.as_mut() {
                target[block as usize * BLOCK..][..BLOCK].copy_from_slice(&found);
            }
        }
        Ok(result)
    }

    pub async fn read_block(
        &self,
        zone: ZoneIndex,
        member: usize,
        at: u64,
        evidence: &Evidence,
    ) -> Option<Buf> {
        evidence.wp_blocks[member].filter(|_| !self.has_hole(zone, member, at..at + 1))?;
        let lba = Lba(self.start(member, zone).0 + at);
        let done = self.submit(member, Command::read(lba, Buf::zeroed(BLOCK))).await;
        done.result.is_ok().then_some(done.data)
    }

    pub async fn parity_from_data(
        &self,
        zone: ZoneIndex,
        stripe: u64,
        chunks: u64,
        block: u64,
        evidence: &Evidence,
    ) -> Option<Buf> {
        let layout = &self.layout;
        let members = (0..chunks).map(|index| layout.member(stripe, index));
        if members.clone().any(|m| evidence.wp_blocks[m].is_none()) {
            return None;
        }
        let mut result = Buf::zeroed(BLOCK);
        for member in members {
            let data = self.read_block(zone, member, stripe * layout.chunk_blocks + block, evidence).await?;
            xor::xor_assign(result.as_mut()?, &data);
        }
        Some(result)
    }

    pub async fn parity_from_slot(
        &self,
        view: &ZoneView<'_>,
        stripe: u64,
        chunks: u64,
        block: u64,
        evidence: &Evidence,
    ) -> Option<Buf> {
        let layout = &self.layout;
        let (zone, epoch, finished) = (view.zone, view.record.epoch, view.record.finished.is_some());
        let parity_member = layout.parity_member(stripe);
        // A finish that got as far as the write pointer of the parity has made it the full parity.
        let promoted = finished
            && evidence.wp_blocks[parity_member].is_some_and(|wp| wp >= (stripe + 1) * layout.chunk_blocks);
        if promoted {
            return self
                .read_block(zone, parity_member, stripe * layout.chunk_blocks + block, evidence)
                .await;
        }
        let (member, place) = layout.slot(stripe, chunks - 1);
        match place {
            Place::Row(row) => {
                self.read_block(zone, member, row * layout.chunk_blocks + block, evidence).await
            }
            Place::MetaLog => {
                evidence.wp_blocks[member]?;
                let log = self.members[member].log.borrow().clone()?;
                let live = log.live.borrow();
                live.parity.get(zone.0, epoch, stripe, chunks - 1, block).cloned()
            }
        }
    }

    /// Carries a verdict out. The table knows it already.
    pub async fn repair(self: &Rc<Self>, zone: ZoneIndex, verdict: Verdict) -> Result<(), ArrayError> {
        let done = |result: Result<(), DeviceError>| match result {
            // Only this zone has failed, and says so.
            Err(_) if !self.failed.get() => Ok(()),
            Err(error) => self.check_members().and(Err(ArrayError(format!("zone {}: {error}", zone.0)))),
            Ok(()) => Ok(()),
        };
        match verdict {
            Verdict::Empty | Verdict::Full | Verdict::Offline(_) => Ok(()),
            Verdict::Reset => {
                let dead = self.reset_members(&[zone.0]).await;
                self.membership_settled().await;
                let epoch = self.zones.borrow()[zone.0 as usize].epoch;
                done(self.finish_reset(zone.0..zone.0 + 1, epoch, &dead).await)
            }
            Verdict::Finish(None) => done(self.finish_members(zone, None).await),
            Verdict::Finish(Some(tail)) => {
                let running = self.go_on(zone, tail).await;
                let finished = self.finish_members(zone, Some(&running)).await;
                if finished.is_ok() {
                    self.forget_logged(zone, u64::MAX);
                }
                done(finished)
            }
            Verdict::Open(tail) => {
                let blocks = tail.blocks;
                let running = Rc::new(self.go_on(zone, tail).await);
                if self.layout.policy == Policy::InPlace {
                    self.secure_in_place(&running).await;
                }
                self.running.borrow_mut().insert(zone.0, running.clone());
                self.start_tasks(&running);
                done(self.make_safe(&running, blocks).await)
            }
        }
    }

    /// The zone as it goes on from `tail`, with everything written that the tail needs.
    async fn go_on(self: &Rc<Self>, zone: ZoneIndex, mut tail: Tail) -> Zone {
        let running = Zone::new(self, zone);
        running.flow.borrow_mut().restore(tail.blocks, tail.positions, std::mem::take(&mut tail.parity));
        match self.layout.policy {
            Policy::Log => self.fill(&running, &tail.held).await,
            Policy::Zrwa | Policy::InPlace => self.revive(zone, &tail).await,
        }
        running
    }
}

/// Whether a block looks like one that was never written: drives fill these with one byte or another.
pub fn is_uniform(block: &[u8]) -> bool {
    block.first().is_none_or(|first| block.iter().all(|byte| byte == first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{record::Checkpoint, tests::sane};

    #[test]
    fn what_was_lost_in_an_earlier_life_of_a_zone_is_not_lacking() {
        let mut zones = vec![ZoneRecord { epoch: 7, lost: 1, ..ZoneRecord::default() }; 2];
        for (epoch, lost) in [(6, 1), (7, 5)] {
            apply(&mut zones, &Record::Lacks(Lacks { zone: 1, epoch, members: 4 }), 9);
            assert_eq!((zones[0].lost, zones[1].lost), (1, lost));
        }
        apply(&mut zones, &Record::Lacks(Lacks { zone: 2, epoch: 7, members: 4 }), 9);
    }

    #[test]
    fn a_record_speaks_of_its_own_life_of_a_zone_and_its_own_members() {
        let mut zones = vec![ZoneRecord { epoch: 7, lost: 5, resetting: true, ..ZoneRecord::default() }];
        let before = zones.clone();
        let done = |epoch| Record::ResetDone { first: 0, count: 1, epoch };
        let rebuilt = |epoch, members| Record::Rebuilt { zone: 0, epoch, members };
        for record in [done(6), rebuilt(6, 7), Record::Finish { zone: 0, epoch: 6, tail_blocks: 3 }] {
            apply(&mut zones, &record, 9);
            assert_eq!(zones, before);
        }
        apply(&mut zones, &rebuilt(7, 4), 9);
        assert_eq!((zones[0].lost, zones[0].resetting), (1, true));
        apply(&mut zones, &done(7), 9);
        assert_eq!((zones[0].lost, zones[0].resetting), (0, false));
    }

    #[test]
    fn the_newest_checkpoint_counts_and_what_comes_after_it() {
        let superblock = sane(4);
        let burned = |epoch| Burned { zone: 0, member: 1, epoch, from: 2, to: 4 };
        let checkpoint = |finished, burned: Vec<Burned>| {
            let zone = ZoneRecord { epoch: 4, finished, ..ZoneRecord::default() };
            Record::Checkpoint(Box::new(Checkpoint {
                generation: 1,
                incomplete: Default::default(),
                superblock: superblock.clone(),
                zones: vec![zone],
                burned,
                holes: Vec::new(),
                parity: Vec::new(),
                tails: Vec::new(),
            }))
        };
        let lacks = Record::Lacks(Lacks { zone: 0, epoch: 4, members: 2 });
        let older = [(checkpoint(Some(9), Vec::new()), 10), (lacks.clone(), 11)];
        let newer = [(checkpoint(None, vec![burned(3), burned(4)]), 20)];
        // In whatever order the members are looked at.
        for records in [[&older[..], &newer], [&newer, &older]] {
            let (zones, left, _) = replay(records.into_iter().flatten(), 1);
            assert_eq!((zones[0].finished, zones[0].lost, left), (None, 0, vec![burned(4)]));
        }
        let (zones, _, _) = replay([&newer[..], &[(lacks, 21)]].into_iter().flatten(), 1);
        assert_eq!(zones[0].lost, 2);
    }
}
