//! Status of an array and its members, and results of operations, as reported to users.

use crate::{
    device::{DriveId, Geometry},
    format::superblock::{ErrorCounts, Superblock},
    raid::{
        error::{ArrayError, NoPart, Note},
        geometry::{Layout, each},
        parts::Raid,
        policy::{Policy, zrwa::Refusal},
        unreadable::{Gap, most_missing},
        zone::{read, readable},
    },
    zone::{ZoneIndex, ZoneInfo},
};
use std::collections::{BTreeMap, BTreeSet};

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// In use, and lacks no parts of zones.
    Active,
    /// Being filled; not counted as redundancy yet.
    Rebuilding,
    /// Missing, failed, or stale: the array runs without it.
    Out,
}

/// Status of one member.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// State of the member.
    pub state: MemberState,
    /// Name of the drive; empty if there is none.
    pub drive: String,
    /// The member is only missing, and returns with its drive: nothing has been written without it so far.
    pub awaited: bool,
    /// Why the member is out, or another remark on it.
    pub note: Note,
    /// Errors of its drive since it became the member.
    pub errors: ErrorCounts,
    /// Blocks that its drive could not read, and that have not been read, rebuilt or reset since.
    pub unreadable_blocks: u64,
    /// Zones on this member that have to be rebuilt.
    pub zones_to_rebuild: u32,
    /// The drive has read-only or offline zones that are not replaced by spare zones: without a free spare zone, their
    /// parts can be rebuilt on another drive only.
    pub worn: bool,
    /// Zones of the member that are stored in spare zones of its drive, with the numbers of these as the array counts
    /// them.
    pub moved: BTreeMap<u32, u32>,
    /// Number of free spare zones of the drive.
    pub spare_zones: u32,
    /// Worn metadata zones of the drive: spare zones are used in their place, if there are any.
    pub worn_log: Vec<u32>,
    /// The metadata log is confined to one zone and can be written until that is full, since the other one is worn.
    pub log_confined: bool,
    /// Label of the drive, to identify it also when it is missing.
    pub drive_id: DriveId,
}

impl MemberStatus {
    /// Whether the drive has worn zones and no free spare zone for them.
    pub fn is_worn_out(&self) -> bool {
        self.worn && self.spare_zones == 0
    }
}

/// Status of an array.
#[derive(Clone, Debug)]
pub struct ArrayStatus {
    /// User-visible name.
    pub name: String,
    /// UUID of the array, random.
    pub uuid: [u8; 16],
    /// Blocks in a chunk.
    pub chunk_blocks: u64,
    /// How partial stripes are protected.
    pub policy: Policy,
    /// Blocks of a group, which may land in any order, if members' zones are written by appends; otherwise 0.
    pub group_blocks: u32,
    /// Whether each block of a zone has a checksum.
    pub checksums: bool,
    /// Parities of a stripe: the number of members that may be lost.
    pub parities: usize,
    /// Zones of a drive that are used as one.
    pub aggregate: u32,
    /// Event of the superblock: it grows with every change of the membership.
    pub event: u64,
    /// UUID of the owner, the host that created or adopted the array; zeros for none.
    pub host: [u8; 16],
    /// Whether the array starts automatically on that host.
    pub autostart: bool,
    /// Blocks of a member that may be repaired before it is to be replaced; 0 if any number may.
    pub error_limit: u32,
    /// By role.
    pub members: Vec<MemberStatus>,
    /// Blocks that cannot be read from their members, and have not been repaired.
    pub unreadable: Vec<UnreadableRange>,
    /// The data of the array that is lost with these ranges, in the order of their addresses.
    pub lost: Vec<LostBlocks>,
    /// Blocks that a rebuild could not decode. Reads of them, and of the blocks from which they would be decoded, fail
    /// while another drive cannot read its block either.
    pub lost_blocks: u64,
    /// Whether the array has failed, since more members are out than parity covers or another host has fenced it: all
    /// commands fail.
    pub failed: bool,
    /// Largest number of members that any block of the array lacks, for any reason.
    pub most_missing: usize,
    /// The same for blocks that a drive could not read or a rebuild could not decode, in zones that have not failed.
    pub most_missing_of_blocks: usize,
    /// Zones that cannot be written: they lack more parts than parity covers, or a member that cannot be spared fails.
    pub failed_zones: Vec<ZoneIndex>,
    /// Those of `failed_zones` that have unreadable blocks.
    pub unreadable_zones: Vec<ZoneIndex>,
    /// Zones that are offline, since recovery could not determine their tails.
    pub offline: Vec<OfflineZone>,
    /// Deferred-write mode: assembled without members that are not out, and nothing has been written to the drives yet.
    pub provisional: bool,
    /// The array can only be read, and nothing is written to the drives.
    pub read_only: bool,
    /// Why the array could not leave deferred-write mode, or that another host has fenced it.
    pub problem: Option<ArrayError>,
}

impl ArrayStatus {
    /// Marks these members (bits) as awaited: nothing has been written without them.
    pub(crate) fn wait_for(&mut self, awaited: u32) {
        self.provisional = awaited != 0;
        each(awaited).for_each(|member| self.members[member].awaited = true);
    }
}

/// A zone in doubt; it is offline, and all other zones work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflineZone {
    /// Zone of the array.
    pub zone: ZoneIndex,
    /// Why its tail could not be determined.
    pub refusal: Refusal,
    /// Absent members with which recovery may determine the tail.
    pub waits_for: Vec<usize>,
}

/// Result of [`crate::array::Array::inspect`].
#[derive(Clone, Debug)]
pub struct ArrayInspection {
    /// Status of the array as it would be after assembly.
    pub status: ArrayStatus,
    /// Geometry of the array as a zoned device.
    pub geometry: Geometry,
    /// Zones as they would be after assembly.
    pub zones: Vec<ZoneInfo>,
    /// Progress of the rebuild that an assembly would continue, if any member lacks zones.
    pub rebuild: Option<Progress>,
    /// Copies that an assembly would continue, to those of the given drives that are being filled.
    pub copies: Vec<UnfinishedCopy>,
}

/// Progress of a rebuild or a copy, in bytes on the drives that are filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are in place, with those of earlier, interrupted runs.
    pub done_bytes: u64,
    /// Bytes that the drives hold at the end, as far as is known.
    pub total_bytes: u64,
    /// Bytes of `done_bytes` that were in place before this run.
    pub kept_bytes: u64,
}

impl Progress {
    /// Progress of work that is not running.
    pub fn paused(done_bytes: u64, total_bytes: u64) -> Progress {
        Progress { done_bytes, total_bytes, kept_bytes: done_bytes }
    }
}

/// The copy of a member to a drive that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedCopy {
    /// Name of the drive that is filled.
    pub drive: String,
    /// Role of the member that is copied.
    pub member: usize,
    /// Progress so far.
    pub progress: Progress,
}

/// Result of the replacement of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceOutcome {
    /// The new drive holds the same data as the old one; parts that the old one lacked are still to be rebuilt.
    Copied {
        /// Bytes that have been copied.
        bytes: u64,
    },
    /// The old drive went out during the copy: the new one is a member, and all of it is to be rebuilt.
    Attached,
}

/// Result of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildOutcome {
    /// Bytes written to the members under repair.
    pub bytes: u64,
    /// Zones that could not be rebuilt; all others have been.
    pub left_out: Vec<SkippedPart>,
    /// Blocks of the array that cannot be read any more, in order: the drives under repair lacked chunks of their
    /// stripes, and another drive could not read its own.
    pub lost: Vec<LostBlocks>,
}

/// Blocks of a zone that cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBlocks {
    /// Zone of the array.
    pub zone: u32,
    /// First block, from the start of the zone.
    pub from: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Result of [`crate::array::Array::scrub_zone`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneScrub {
    /// Bytes that were read from members.
    pub scanned_bytes: u64,
    /// Unreadable, wrong and contradictory blocks, in the order of the zone.
    pub findings: Vec<ScrubFinding>,
    /// Whether the zone is full or empty; the end of one that is being written was not read.
    pub is_whole: bool,
}

/// Blocks of a member's part of a zone that cannot be read from it, or that a rebuild could not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadableRange {
    /// Zone of the array.
    pub zone: u32,
    /// Role of the member.
    pub member: usize,
    /// First block, from the start of the member's part.
    pub from: u64,
    /// Exclusive end.
    pub to: u64,
    /// Whether they cannot be decoded either, since too many other members lack theirs.
    pub is_lost: bool,
}

/// The data in the lost ones of `ranges`, below the `tail` of each zone.
fn lost_ranges(
    layout: &Layout,
    ranges: &[UnreadableRange],
    tail: impl Fn(ZoneIndex) -> u64,
) -> Vec<LostBlocks> {
    let mut lost = BTreeSet::new();
    for range in ranges.iter().filter(|range| range.is_lost) {
        for at in range.from..range.to {
            let Some(block) = layout.data_block(range.member, at) else { continue };
            if block < tail(ZoneIndex(range.zone)) {
                lost.insert((range.zone, block));
            }
        }
    }
    let mut merged: Vec<LostBlocks> = Vec::new();
    for (zone, block) in lost {
        match merged.last_mut().filter(|last| (last.zone, last.from + last.blocks) == (zone, block)) {
            Some(last) => last.blocks += 1,
            None => merged.push(LostBlocks { zone, from: block, blocks: 1 }),
        }
    }
    merged
}

/// The ranges of all gaps in a zone that lacks the members `missing` (bits); with `parities` parities.
fn unreadable_ranges(gaps: &[Gap], missing: impl Fn(u32) -> u32, parities: usize) -> Vec<UnreadableRange> {
    let mut lacking: BTreeMap<(u32, u64), u32> = BTreeMap::new();
    for gap in gaps {
        (gap.from..gap.to).for_each(|at| *lacking.entry((gap.zone, at)).or_default() |= 1 << gap.member);
    }
    let mut ranges: Vec<UnreadableRange> = Vec::new();
    for member in each(lacking.values().fold(0, |all, members| all | members)) {
        for ((zone, at), members) in lacking.iter().filter(|(_, members)| *members & (1 << member) != 0) {
            let is_lost = (members | missing(*zone)).count_ones() as usize > parities;
            match ranges.last_mut() {
                Some(last)
                    if (last.zone, last.member, last.to, last.is_lost) == (*zone, member, *at, is_lost) =>
                {
                    last.to += 1;
                }
                _ => ranges.push(UnreadableRange { zone: *zone, member, from: *at, to: at + 1, is_lost }),
            }
        }
    }
    ranges.sort_unstable();
    ranges
}

/// Blocks that a scrub found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubFinding {
    /// Zone of the array.
    pub zone: u32,
    /// Role of the member; `None` if it is not known which member is wrong.
    pub member: Option<usize>,
    /// First block, from the start of the members' parts of the zone.
    pub from: u64,
    /// Exclusive end.
    pub to: u64,
    /// Kind of the error.
    pub kind: ScrubFindingKind,
    /// Whether the blocks have been repaired.
    pub is_repaired: bool,
}

/// Kind of error that a scrub found in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubFindingKind {
    /// The drive cannot read them.
    Unreadable,
    /// The drive returns wrong data.
    Wrong,
    /// The blocks of the stripe contradict each other.
    Contradiction,
}

/// A member's part of a zone that could not be rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedPart {
    /// Zone of the array.
    pub zone: u32,
    /// Role of the member.
    pub member: usize,
    /// Why it could not be rebuilt.
    pub reason: NoPart,
}

/// Metadata of a drive; result of [`crate::array::examine`].
#[derive(Clone, Debug)]
pub struct DriveExamination {
    /// The superblock on the drive.
    pub superblock: Superblock,
    /// Role of the drive.
    pub member: usize,
    /// Generation of its metadata log.
    pub generation: u64,
    /// Number of intact records in the log.
    pub records: usize,
    /// Number of damaged records: usually torn by a power cut.
    pub damaged: u32,
}

/// Status of the assembled array. The fields of deferred-write and read-only mode are not set.
pub(crate) fn status(raid: &Raid) -> ArrayStatus {
    let superblock = raid.membership.superblock();
    let zones = raid.zone_records.records();
    let unreadable = raid.zone_records.unreadable.count(raid.members.count());
    // Most zones lack no parts and are idle: they are skipped.
    let mut concerned: BTreeSet<u32> =
        (0..).zip(zones.iter()).filter(|(_, record)| record.lost != 0).map(|(zone, _)| zone).collect();
    concerned.extend(raid.zones.running_or_stuck());
    if !raid.members.are_enough(raid.members.active()) {
        concerned.extend(0..raid.geometry.zones);
    }
    let lost = |zone: &u32| zones[*zone as usize].lost;
    let members = (0..raid.members.count()).map(|m| {
        let (active, about) = (raid.members.is_active(m), raid.members.about(m));
        let lacks = |zone: &&u32| active && lost(zone) & (1 << m) != 0;
        let zones_to_rebuild = concerned.iter().filter(lacks).count() as u32;
        let state = match (active, zones_to_rebuild) {
            (false, _) => MemberState::Out,
            (true, 0) => MemberState::Active,
            (true, _) => MemberState::Rebuilding,
        };
        MemberStatus {
            state,
            awaited: false,
            drive: about.name,
            note: about.note,
            errors: about.errors,
            unreadable_blocks: unreadable[m],
            zones_to_rebuild,
            worn: about.worn,
            moved: raid.members.log(m).map(|log| log.moved()).unwrap_or_default(),
            spare_zones: raid.members.log(m).map_or(0, |log| log.device.free().count() as u32),
            worn_log: raid.members.log(m).map(|log| log.worn().collect()).unwrap_or_default(),
            log_confined: active && raid.members.log(m).is_some_and(|log| log.is_confined()),
            drive_id: superblock.members[m].drive_id.clone(),
        }
    });
    let offline = |zone: u32, refusal: &Refusal| OfflineZone {
        zone: ZoneIndex(zone),
        refusal: refusal.clone(),
        waits_for: each(zones[zone as usize].waits & !raid.members.active()).collect(),
    };
    // Missing parts of an offline zone are provisional until recovery can determine its tail.
    let missing =
        |zone: u32| raid.members.out() | raid.zone_records.lost(ZoneIndex(zone)) & raid.members.active();
    let is_decided = |zone: &ZoneIndex| !raid.zones.is_offline(*zone) || raid.zones.is_read_only(*zone);
    let all_zones = concerned.iter().map(|zone| ZoneIndex(*zone));
    let decided = || all_zones.clone().filter(is_decided);
    let is_any_decided = raid.zones.offline().len() < raid.geometry.zones as usize;
    let out = if is_any_decided { raid.members.out().count_ones() as usize } else { 0 };
    let is_frail = concerned.iter().any(|zone| raid.zones.is_frail(ZoneIndex(*zone)));
    let out = if is_frail { out.max(superblock.parities as usize) } else { out };
    let parts_missing = decided().map(|zone| missing(zone.0).count_ones() as usize).fold(out, usize::max);
    let mut gaps: Vec<Gap> = raid.zone_records.unreadable.gaps();
    gaps.extend(raid.zone_records.bad_blocks().all().into_iter().map(|bad_blocks| Gap {
        zone: bad_blocks.zone,
        member: bad_blocks.member as usize,
        from: bad_blocks.from,
        to: bad_blocks.to,
    }));
    let failed = |zone: &ZoneIndex| {
        !raid.membership.has_failed() && (raid.has_failed(*zone) || raid.zones.is_frail(*zone))
    };
    let failed_zones: Vec<ZoneIndex> = decided().filter(failed).collect();
    let most_missing_of_gaps = most_missing(&gaps, missing);
    let is_of_others = |gap: &&Gap| {
        let zone = ZoneIndex(gap.zone);
        is_decided(&zone) && !failed_zones.contains(&zone)
    };
    let of_others: Vec<Gap> = gaps.iter().filter(is_of_others).copied().collect();
    let is_unreadable =
        |zone: &ZoneIndex| !readable::is_readable(raid, *zone) || raid.zones.is_curtailed(*zone);
    let refusals = raid.zones.offline();
    let undecided = refusals.iter().filter(|(zone, _)| !is_decided(&ZoneIndex(**zone)));
    let unreadable = unreadable_ranges(&gaps, missing, superblock.parities as usize);
    ArrayStatus {
        lost: lost_ranges(&raid.layout, &unreadable, |zone| raid.tail(zone)),
        unreadable,
        most_missing: parts_missing.max(most_missing_of_gaps),
        most_missing_of_blocks: most_missing(&of_others, missing),
        unreadable_zones: failed_zones.iter().copied().filter(is_unreadable).collect(),
        failed_zones,
        name: superblock.name.clone(),
        uuid: superblock.array.0,
        chunk_blocks: raid.layout.chunk_blocks,
        policy: superblock.policy,
        group_blocks: superblock.group_blocks,
        checksums: superblock.has_checksums(),
        parities: superblock.parities as usize,
        aggregate: superblock.aggregate,
        event: superblock.event,
        host: superblock.host.0,
        autostart: superblock.autostart,
        error_limit: superblock.error_limit,
        members: members.collect(),
        lost_blocks: raid.zone_records.bad_blocks().blocks(),
        failed: raid.membership.has_failed(),
        provisional: false,
        read_only: false,
        problem: raid.membership.is_fenced().then_some(ArrayError::Fenced),
        offline: undecided.map(|(zone, refusal)| offline(*zone, refusal)).collect(),
    }
}

/// Progress of the rebuild: bytes of all members that lack parts, and how many of these are in place.
pub(crate) fn rebuild_progress(raid: &Raid) -> Progress {
    let (records, active) = (raid.zone_records.records(), raid.members.active());
    let lacking = records.iter().fold(0, |all, record| all | record.lost) & active;
    let (mut left_bytes, mut total_bytes) = (0, 0);
    for (zone, record) in (0..).map(ZoneIndex).zip(records.iter()) {
        let bytes = read::member_bytes(raid, zone);
        total_bytes += u64::from(lacking.count_ones()) * bytes;
        left_bytes += u64::from((record.lost & lacking).count_ones()) * bytes;
    }
    Progress::paused(total_bytes - left_bytes, total_bytes)
}
