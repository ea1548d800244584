//! The members of an array at assembly, and the state that its metadata records.

use crate::{
    format::{
        codec::{Absurd, FAR, MOST_NUMBER},
        lineage::Attempt,
        record::{BurnedRange, Lacks, Record, TailRecord, ZoneRecord},
        superblock::{Stage, Superblock, SuperblockMember},
    },
    raid::{
        bad_blocks::BadBlockMap,
        error::{BadDrive, DriveFault, NoArray, Note},
        generations::Generations,
        membership::SKIPPED_BY_TAKEOVER,
        policy::Policy,
        recover::{
            lineage::{continues, have_diverged},
            scan::{Candidate, LogScan},
        },
    },
};
use std::collections::BTreeMap;

/// The state of an array by the metadata of all its members.
pub struct ArrayMetadata {
    pub superblock: Superblock,
    /// By role; `None` if missing, stale or failed.
    pub members: Vec<Option<Candidate>>,
    /// By role: why the member is out.
    pub notes: Vec<Note>,
    pub zones: Vec<ZoneRecord>,
    pub burned: Vec<BurnedRange>,
    pub bad_blocks: BadBlockMap,
    pub generations: Generations,
    /// The highest sequence number seen.
    pub sequence: u64,
    /// The floor of the next superblock.
    pub floor: u64,
    /// Members (bits) that are stale, and are used again for the zones that wait for them.
    pub returned: u32,
    /// Members of `returned` that are used by force: they lack every zone that is not full.
    pub forced: u32,
    /// Members (bits) of which one of two drives is used now: the other one may be just as current.
    pub undecided: u32,
}

/// The superblock in effect: the newest one that none of its own members contradicts.
///
/// A member that is out stays out (a drive that returns gets a new UUID), and a change takes effect only when all
/// members have it. So a superblock is of an assembly that was not completed if one of its own members, or a drive that
/// has replaced such a member, records that the writer of the superblock is out or has been replaced. Event numbers do
/// not suffice, as an assembly may have skipped many ([`SKIPPED_BY_TAKEOVER`]). Members of a copy that has been written
/// to independently are ignored.
pub fn effective(candidates: &[Candidate]) -> Option<&Superblock> {
    let mut newest_first: Vec<_> = candidates.iter().map(|c| (c, c.superblock())).collect();
    newest_first.sort_by_key(|(writer, superblock)| {
        let role = writer.log.origin.member;
        (std::cmp::Reverse((superblock.event, superblock.lineage.id())), role)
    });
    newest_first.retain(|(writer, superblock)| {
        let role = writer.log.origin.member as usize;
        let Some(own) = superblock.members.get(role) else { return false };
        let mut denied = candidates.iter().filter_map(|other| {
            let (other_role, opinion) = (other.log.origin.member as usize, other.superblock());
            let (known, there) = (superblock.members.get(other_role)?, opinion.members.get(other_role)?);
            let recorded = opinion.members.get(role)?;
            let counted = known.active && known.uuid == there.uuid;
            let is_out = recorded.since == own.since && !recorded.active;
            let is_replaced = other_role != role && recorded.since > own.since;
            let denies = (counted || there.since > known.since) && (is_out || is_replaced);
            Some(denies && !have_diverged(superblock, opinion))
        });
        !denied.any(|denied| denied)
    });
    let newest = newest_first.first()?.1;
    // Whether enough of a superblock's members are present and current, by their superblocks alone.
    let has_enough = |superblock: &Superblock| {
        let is_there = |c: &&Candidate| {
            let own = c.superblock();
            c.is_member_by(superblock) && own.event >= superblock.floor && continues(own, superblock)
        };
        let there = candidates.iter().filter(is_there).fold(0, |all, c| all | 1u64 << c.log.origin.member);
        there.count_ones() as usize >= superblock.layout().fewest_members()
    };
    let another = newest_first.iter().find(|(writer, superblock)| {
        // An older state of the same array lacks the writes since then.
        let is_older = newest.lineage.has(superblock.lineage.id());
        !is_older && !continues(superblock, newest) && writer.is_member_by(newest) && has_enough(superblock)
    });
    another.filter(|_| !has_enough(newest)).map_or(Some(newest), |(_, superblock)| Some(superblock))
}

/// The drives in the places of an array, as decided so far.
struct Places {
    superblock: Superblock,
    /// By role: the drive that is used, and the reason why another one is not.
    members: Vec<Option<Candidate>>,
    notes: Vec<Note>,
    /// Drives that are out or below the floor, and may return for zones that wait for them.
    stale: Vec<Candidate>,
    /// Predecessors of drives that are taking over.
    before: Vec<Candidate>,
}

/// Decides which drives are members, and the state of the array. If too few members are current, members with a damaged
/// checkpoint are used (its state of the array is in the other logs too), and then, with `force`, stale ones.
pub fn decide_members(scanned: LogScan, force: bool) -> Result<ArrayMetadata, NoArray> {
    let superblock = superblock_of(&scanned)?;
    let LogScan { candidates, damaged, salvaged } = scanned;
    let mut places = Places::new(superblock);
    for candidate in candidates {
        places.seat(candidate)?;
    }
    let undecided = places.seat_predecessors()?;
    places.remove_outdated();
    places.seat_salvaged(salvaged);
    let forced = places.choose_stale(force);
    places.check_number(&forced, &damaged)?;
    places.conclude(forced, undecided)
}

/// The superblock in effect of the array that all drives belong to.
fn superblock_of(scanned: &LogScan) -> Result<Superblock, NoArray> {
    let LogScan { candidates, damaged, .. } = scanned;
    let Some(first) = candidates.first() else {
        return Err(damaged.first().cloned().map_or(NoArray::NoDrives, NoArray::NoMember));
    };
    if let Some(other) = candidates.iter().find(|c| c.log.origin.array != first.log.origin.array) {
        let named = |of: &Candidate| (of.drive.name.clone(), of.log.origin.array);
        return Err(NoArray::Mixed { one: named(first), other: named(other) });
    }
    let Some(superblock) = effective(candidates).cloned() else {
        return Err(NoArray::Contradiction);
    };
    match superblock.stage {
        Stage::Whole => Ok(superblock),
        // If the creation had been finished, the superblock in effect would be that of a complete array.
        Stage::Making => Err(NoArray::Unfinished(superblock.name)),
        Stage::Ending => Err(NoArray::HalfDestroyed(superblock.name)),
    }
}

impl Places {
    fn new(superblock: Superblock) -> Places {
        let count = superblock.members.len();
        Places {
            superblock,
            members: (0..count).map(|_| None).collect(),
            notes: vec![Note::Nothing; count],
            stale: Vec::new(),
            before: Vec::new(),
        }
    }

    /// Assigns a drive to its role if it is current; otherwise notes why not.
    fn seat(&mut self, candidate: Candidate) -> Result<(), NoArray> {
        let Places { superblock, members, notes, stale, before } = self;
        let role = candidate.log.origin.member as usize;
        let name = candidate.drive.name.clone();
        let own = candidate.superblock();
        let Some(expected) = superblock.members.get(role) else {
            let fault = DriveFault::NoSuchRole { role, members: members.len() };
            return Err(NoArray::Misfit(BadDrive::new(&name, fault)));
        };
        let same = own.members.get(role).is_some_and(|m| m.uuid == expected.uuid);
        if !same {
            notes[role] = Note::Replaced { drive: name };
            let is_before = |m: &SuperblockMember| m.active && expected.taking_over == Some(m.since);
            let complete = own.event >= superblock.floor
                && continues(own, superblock)
                && own.members.get(role).is_some_and(is_before);
            before.extend(complete.then_some(candidate));
        } else if !expected.active {
            notes[role] = Note::WasTakenOut { drive: name };
            if superblock.lineage.has(own.lineage.id()) || continues(own, superblock) {
                stale.push(candidate);
            }
        } else if own.stage == Stage::Ending {
            // Its data may be gone.
            notes[role] = Note::WasDestroyed { drive: name };
        } else if have_diverged(own, superblock)
            || own.event >= superblock.floor && !continues(own, superblock)
        {
            notes[role] = Note::Diverged { drive: name };
        } else if own.event < superblock.floor {
            notes[role] = Note::Stale { drive: name, event: own.event, newest: superblock.event };
            if superblock.lineage.has(own.lineage.id()) || continues(own, superblock) {
                stale.push(candidate);
            }
        } else if let Some(other) = &members[role] {
            let drives = (name, other.drive.name.clone());
            return Err(NoArray::SameMember { drives, member: role });
        } else {
            notes[role] = Note::Nothing;
            members[role] = Some(candidate);
        }
        Ok(())
    }

    /// Puts predecessors of drives that are taking over in the places where those are absent. Returns the members
    /// (bits) of which either drive may be used.
    fn seat_predecessors(&mut self) -> Result<u32, NoArray> {
        let Places { superblock, members, notes, before, .. } = self;
        let undecided = (0..)
            .zip(&superblock.members)
            .fold(0, |all, (m, member)| all | (member.taking_over.is_some() as u32) << m);
        for candidate in before.drain(..) {
            let role = candidate.log.origin.member as usize;
            match &members[role] {
                Some(other) if superblock.members[role].taking_over.is_none() => {
                    let drives = (candidate.drive.name.clone(), other.drive.name.clone());
                    return Err(NoArray::SameMember { drives, member: role });
                }
                Some(_) => {}
                None => {
                    let own = candidate.superblock().members[role].clone();
                    superblock.members[role] = SuperblockMember { taking_over: None, ..own };
                    notes[role] = Note::Nothing;
                    members[role] = Some(candidate);
                }
            }
        }
        Ok(undecided)
    }

    /// Removes members whose drives are copies of an earlier state ([`is_outdated`]).
    fn remove_outdated(&mut self) {
        for role in 0..self.members.len() {
            let (members, zones) = (&self.members, self.superblock.zones);
            if members[role].as_ref().is_some_and(|member| is_outdated(member, members, zones))
                && let Some(candidate) = self.members[role].take()
            {
                self.notes[role] = Note::Outdated { drive: candidate.drive.name };
            }
        }
    }

    /// Uses members with a damaged checkpoint, while there are too few others.
    fn seat_salvaged(&mut self, salvaged: Vec<Candidate>) {
        let Places { superblock, members, notes, .. } = self;
        for candidate in salvaged {
            let (role, own) = (candidate.log.origin.member as usize, candidate.superblock());
            let present = members.iter().flatten().count();
            let is_current = own.array == superblock.array
                && own.agree(superblock).is_ok()
                && own.event >= superblock.floor
                && own.stage == Stage::Whole
                && continues(own, superblock);
            if (1..superblock.layout().fewest_members()).contains(&present)
                && is_current
                && members[role].is_none()
                && candidate.is_member_by(superblock)
            {
                notes[role] = Note::Nothing;
                members[role] = Some(candidate);
            }
        }
        for (member, found) in superblock.members.iter_mut().zip(&*members) {
            member.taking_over.take_if(|_| found.is_some());
        }
        // Absent members may have the commit of any of these attempts.
        let attempts = members.iter().flatten().flat_map(|c| &c.superblock().lineage.attempts);
        attempts.for_each(|attempt| superblock.lineage.attempt(*attempt));
    }

    /// Sorts the stale drives, the newest first; with `force`, takes as many of them as are needed for an assembly.
    fn choose_stale(&mut self, force: bool) -> Vec<Candidate> {
        let Places { superblock, members, stale, .. } = self;
        let (present, fewest) = (members.iter().flatten().count(), superblock.layout().fewest_members());
        stale.sort_by_key(|candidate| std::cmp::Reverse(candidate.superblock().event));
        let mut forced = Vec::new();
        if force && present > 0 {
            while present + forced.len() < fewest
                && let Some(next) = stale.iter().position(|stale| {
                    let role = stale.log.origin.member;
                    let taken = |other: &Candidate| other.log.origin.member == role;
                    members[role as usize].is_none() && !forced.iter().any(taken)
                })
            {
                forced.push(stale.remove(next));
            }
        }
        forced
    }

    /// Refuses too few members, and completes the notes on those that are missing.
    fn check_number(&mut self, forced: &[Candidate], damaged: &[BadDrive]) -> Result<(), NoArray> {
        let Places { superblock, members, notes, .. } = self;
        let (present, fewest) = (members.iter().flatten().count(), superblock.layout().fewest_members());
        if present + forced.len() < fewest {
            let mut notes = std::mem::take(notes);
            notes.retain(|note| !note.is_empty());
            notes.extend(damaged.iter().cloned().map(Note::Unusable));
            return Err(NoArray::TooFew { present, members: members.len(), needed: fewest, notes });
        }
        for (role, note) in notes.iter_mut().enumerate() {
            if members[role].is_none() && note.is_empty() {
                *note = damaged.first().cloned().map_or(Note::Missing, Note::Unusable);
            }
        }
        Ok(())
    }

    /// Takes back the `forced` members, and those stale ones that zones wait for; determines the state of the zones,
    /// the last sequence number and the next floor.
    fn conclude(self, forced: Vec<Candidate>, undecided: u32) -> Result<ArrayMetadata, NoArray> {
        let Places { mut superblock, mut members, mut notes, stale, .. } = self;
        let taken = || members.iter().flatten();
        let oldest = taken().map(|c| c.superblock().event).min().unwrap_or(superblock.event);
        let newest = taken().chain(&stale).chain(&forced).max_by_key(|candidate| candidate.log.sequence);
        let seen = newest.map_or(0, |candidate| candidate.log.sequence);
        if let Some(newest) = newest.filter(|_| seen > MOST_NUMBER - FAR) {
            let fault = Absurd { field: "sequence", value: seen };
            return Err(NoArray::Misfit(BadDrive::new(&newest.drive.name, DriveFault::Absurd(fault))));
        }
        // The drive of the two that is not used may have newer records than all drives that are present.
        let sequence = seen + if undecided != 0 { SKIPPED_BY_TAKEOVER } else { 0 };
        let ReplayedZones { mut zones, burned, bad_blocks, generations } =
            replay(taken().flat_map(|c| &c.log.records), (superblock.zones, superblock.policy));
        // The newest event of the members that return.
        let (mut returned, mut by_force, mut back) = (0, 0, 0);
        for mut candidate in forced {
            let role = candidate.log.origin.member as usize;
            back = back.max(candidate.superblock().event);
            superblock.lineage.attempt(candidate.last_assembly());
            candidate.return_by_force(&mut zones);
            notes[role] = Note::Nothing;
            by_force |= 1 << role;
            members[role] = Some(candidate);
        }
        for mut candidate in stale {
            let role = candidate.log.origin.member as usize;
            if members[role].is_none() && candidate.come_back(&mut zones) {
                notes[role] = Note::Nothing;
                back = back.max(candidate.superblock().event);
                superblock.lineage.attempt(candidate.last_assembly());
                returned |= 1 << role;
                members[role] = Some(candidate);
            }
        }
        returned |= by_force;
        let floor = next_floor(&superblock, back, oldest);
        let found = ArrayMetadata {
            superblock,
            members,
            notes,
            zones,
            burned,
            bad_blocks,
            generations,
            sequence,
            floor,
            returned,
            forced: by_force,
            undecided,
        };
        found.check();
        Ok(found)
    }
}

/// The floor of the next superblock, if the newest event of the members that return is `back`, and the oldest event of
/// the other members in use is `oldest`.
///
/// A member that is missing, and is not out yet, may be arbitrarily old: nothing has been done without it, and it is a
/// member as before as long as the floor does not rise. A member that returns must stay stale until it is updated: it
/// is below the floor already, or out by a change with a newer event than its own, which all others have unless the
/// change was interrupted. So a floor that just passes its event makes no missing member stale; and members below the
/// old floor stay below it, which is all that is required. But a member that returns may alone have a change that was
/// interrupted, with a newer event than all others: so the floor is not above the oldest of the members in use, which
/// stay members if this assembly is interrupted before they are updated.
fn next_floor(superblock: &Superblock, back: u64, oldest: u64) -> u64 {
    superblock.floor.max(back + 1).min(oldest)
}

impl ArrayMetadata {
    /// # Panics
    /// If there are too few members, or the next floor is above a member in use, which would make it stale if this
    /// assembly is interrupted.
    fn check(&self) {
        let fewest = self.superblock.layout().fewest_members();
        let used = || (0..).zip(&self.members).filter_map(|(role, member)| Some((role, member.as_ref()?)));
        assert!(used().count() >= fewest, "an assembly of fewer than {fewest} members");
        let mut current = used().filter(|(role, _)| self.returned & (1u32 << role) == 0);
        assert!(
            current.all(|(_, member)| member.superblock().event >= self.floor),
            "the floor {} is above a member in use",
            self.floor
        );
        assert!(self.returned & self.forced == self.forced, "forced members are not among those that return");
    }
}

/// Whether the drive of a member is a copy of an earlier state: its log lacks a reset that another log records as
/// complete. That is recorded only when the logs of all members have the reset, so a log without gaps has it.
fn is_outdated(candidate: &Candidate, members: &[Option<Candidate>], zones: u32) -> bool {
    if candidate.log.live.lacks_records {
        return false;
    }
    let own = replay(candidate.log.records.iter(), (zones, candidate.superblock().policy)).zones;
    let others = members.iter().flatten().flat_map(|other| &other.log.records);
    let known = |first: &u32, epoch: &u64| own.get(*first as usize).is_none_or(|zone| zone.epoch >= *epoch);
    others.into_iter().any(|(record, _)| match record {
        Record::ResetDone { first, epoch, .. } => !known(first, epoch),
        Record::Checkpoint(checkpoint) => {
            let mut zones = (0..).zip(&checkpoint.zones).filter(|(_, zone)| !zone.resetting);
            zones.any(|(index, zone)| !known(&index, &zone.epoch))
        }
        _ => false,
    })
}

impl Candidate {
    /// The last assembly that a stale member records, as an attempt. The member keeps that id until it is updated: if
    /// this assembly is interrupted before, the attempt shows that the member is of the same history.
    fn last_assembly(&self) -> Attempt {
        let Superblock { floor, lineage, .. } = self.superblock();
        Attempt { event: *floor, id: lineage.id() }
    }

    /// Whether a zone waits for this member, and its part there is valid.
    fn is_awaited(&self, zone: &ZoneRecord) -> bool {
        zone.waits & (1 << self.log.origin.member) != 0 && self.superblock().event >= zone.since
    }

    /// Uses a stale member for the zones that wait for it: it lacks all other zones, and its records of these are
    /// dropped. `false` if no zone waits for it.
    fn come_back(&mut self, zones: &mut [ZoneRecord]) -> bool {
        let awaited = zones.iter().any(|zone| self.is_awaited(zone));
        if awaited {
            self.mark_lost(zones, |_, _| false);
        }
        awaited
    }

    /// Uses a stale member for the zones that wait for it, and for those still in the epoch that it knows.
    fn return_by_force(&mut self, zones: &mut [ZoneRecord]) {
        let bit = 1u32 << self.log.origin.member;
        let own = replay(self.log.records.iter(), (zones.len() as u32, self.superblock().policy)).zones;
        self.mark_lost(zones, |index, zone| {
            let own = &own[index];
            own.epoch == zone.epoch && !zone.resetting && !own.resetting && (own.lost | zone.lost) & bit == 0
        });
    }

    /// Marks a stale member's parts as lost in all zones that do not wait for it and for which `has` returns false.
    fn mark_lost(&mut self, zones: &mut [ZoneRecord], has: impl Fn(usize, &ZoneRecord) -> bool) {
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

/// The state of the zones by the logs of several members.
struct ReplayedZones {
    zones: Vec<ZoneRecord>,
    burned: Vec<BurnedRange>,
    bad_blocks: BadBlockMap,
    generations: Generations,
}

/// The state of the zones: the newest checkpoint, and the changes that any member logged after it. Takes the `records`
/// of all members with their sequence numbers.
fn replay<'a>(
    records: impl Iterator<Item = &'a (Record, u64)>,
    (count, policy): (u32, Policy),
) -> ReplayedZones {
    let begins = |tail: &&TailRecord| policy.begins_generation(tail.generation, tail.tail_blocks);
    let mut zones = vec![ZoneRecord::default(); count as usize];
    let (mut burned, mut bad_blocks) = (Vec::new(), BadBlockMap::default());
    let mut generations = Generations::default();
    let mut base = 0;
    let mut changes = BTreeMap::new();
    for (record, sequence) in records {
        match record {
            Record::Checkpoint(checkpoint) if *sequence >= base => {
                base = *sequence;
                zones.clone_from(&checkpoint.zones);
                burned.clone_from(&checkpoint.burned);
                bad_blocks = BadBlockMap::default();
                checkpoint.bad_blocks.iter().for_each(|bad_block| bad_blocks.add(*bad_block));
                generations = Generations::default();
                checkpoint.tails.iter().filter(begins).for_each(|tail| generations.begin(tail));
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
            burned.retain(|b: &BurnedRange| b.zone != *zone || members & (1 << b.member) == 0);
        }
        if let Record::BadBlocks(part) = record {
            bad_blocks.set(part.clone());
        }
        if let Record::Tail(tail) = record
            && begins(&tail)
        {
            generations.begin(tail);
        }
    }
    let is_present = |zone: u32, epoch: u64| zones.get(zone as usize).is_some_and(|z| z.epoch == epoch);
    burned.retain(|b| is_present(b.zone, b.epoch));
    bad_blocks.retain(is_present);
    generations.retain(|zone, epoch, _| is_present(zone, epoch));
    generations.limit();
    ReplayedZones { zones, burned, bad_blocks, generations }
}

/// Applies a record to the zones that it concerns. Except for a reset, it has to be of their present epochs.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::{Command, Completion, DeviceError, Geometry, ZonedDevice},
        format::{Origin, Uuid, record::Checkpoint, tests::sane},
        raid::{
            Drive,
            journal::{logged::LiveRecords, read::ReadLog},
        },
    };
    use std::rc::Rc;

    /// A drive that carries out no command.
    struct Idle(Geometry);

    impl ZonedDevice for Idle {
        fn geometry(&self) -> &Geometry {
            &self.0
        }

        fn submit(&self, _: Command) -> Completion {
            Completion::failed(DeviceError::Gone)
        }
    }

    fn candidate(member: u32, superblock: Superblock) -> Candidate {
        let device: Rc<dyn ZonedDevice> = Rc::new(Idle(Geometry {
            zones: 9,
            zone_size_blocks: 64,
            zone_capacity_blocks: 64,
            max_open: 0,
            max_active: 0,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 8,
            max_append_blocks: 0,
            volatile_cache: false,
        }));
        let log = ReadLog {
            origin: Origin { array: superblock.array, member, lba: 0 },
            zone: 0,
            place: None,
            wp_blocks: 1,
            generation: 1,
            records: vec![(Record::Superblock(Box::new(superblock)), 1)],
            parities: 0,
            live: LiveRecords::default(),
            moved: BTreeMap::new(),
            sequence: 1,
            damaged: 0,
        };
        Candidate { drive: Drive { name: String::new(), device: device.clone() }, device, log }
    }

    #[test]
    fn assembly_keeps_attempts_of_all_members() {
        let (attempt, mut other) = (Attempt { event: 8, id: Uuid([7; 16]) }, sane(4));
        other.lineage.attempt(attempt);
        let mut places = Places::new(sane(4));
        places.members[1] = Some(candidate(1, other));
        places.seat_salvaged(Vec::new());
        assert!(places.superblock.lineage.attempts.contains(&attempt));
    }

    #[test]
    fn superblock_is_not_denied_by_diverged_copy() {
        let (mut own, mut other) = (Superblock { event: 10, ..sane(4) }, sane(4));
        own.lineage.commit(Uuid([7; 16]), 4);
        other.lineage.commit(Uuid([8; 16]), 4);
        other.members[0].active = false;
        let candidates = [candidate(0, own), candidate(3, other)];
        assert_eq!(effective(&candidates).map(|superblock| superblock.event), Some(10));
    }

    #[test]
    fn replay_ignores_lacks_of_earlier_zone_epoch() {
        let mut zones = vec![ZoneRecord { epoch: 7, lost: 1, ..ZoneRecord::default() }; 2];
        for (epoch, lost) in [(6, 1), (7, 5)] {
            apply(&mut zones, &Record::Lacks(Lacks { zone: 1, epoch, members: 4 }), 9);
            assert_eq!((zones[0].lost, zones[1].lost), (1, lost));
        }
        apply(&mut zones, &Record::Lacks(Lacks { zone: 2, epoch: 7, members: 4 }), 9);
    }

    #[test]
    fn replay_applies_records_to_own_epoch_and_members() {
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
    fn replay_applies_newest_checkpoint_and_later_records() {
        let superblock = sane(4);
        let burned = |epoch| BurnedRange { zone: 0, member: 1, epoch, from: 2, to: 4 };
        let checkpoint = |finished, burned: Vec<BurnedRange>| {
            let zone = ZoneRecord { epoch: 4, finished, ..ZoneRecord::default() };
            Record::Checkpoint(Box::new(Checkpoint {
                generation: 1,
                incomplete: Default::default(),
                moved: Default::default(),
                superblock: superblock.clone(),
                zones: vec![zone],
                burned,
                bad_blocks: Vec::new(),
                parity: Vec::new(),
                tails: Vec::new(),
            }))
        };
        let lacks = Record::Lacks(Lacks { zone: 0, epoch: 4, members: 2 });
        let older = [(checkpoint(Some(9), Vec::new()), 10), (lacks.clone(), 11)];
        let newer = [(checkpoint(None, vec![burned(3), burned(4)]), 20)];
        // In any order of the members.
        for records in [[&older[..], &newer], [&newer, &older]] {
            let found = replay(records.into_iter().flatten(), (1, Policy::Log));
            let zone = found.zones[0];
            assert_eq!((zone.finished, zone.lost, found.burned), (None, 0, vec![burned(4)]));
        }
        let found = replay([&newer[..], &[(lacks, 21)]].into_iter().flatten(), (1, Policy::Log));
        assert_eq!(found.zones[0].lost, 2);
    }
}
