//! What can be said of an array.

use crate::{
    device::{DriveId, Geometry},
    format::superblock::Superblock,
    raid::{
        error::{ArrayError, NoPart, Note},
        geometry::each,
        parts::Raid,
        policy::{Policy, zrwa::Refusal},
        unreadable::{Gap, most_missing},
    },
    zone::{ZoneIndex, ZoneInfo},
};
use std::collections::{BTreeMap, BTreeSet};

/// What a member is to the array now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Holds what it should.
    Active,
    /// Being filled; not counted as redundancy yet.
    Rebuilding,
    /// Not there, failed, or stale: the array does without it.
    Out,
}

/// One line of [`ArrayStatus`].
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// What it is to the array now.
    pub state: MemberState,
    /// Name of the drive; empty if there is none.
    pub drive: String,
    /// It is only not there, and is back when its drive is: nothing has been written without it so far.
    pub awaited: bool,
    /// Why a member is out, or what else there is to say.
    pub note: Note,
    /// Reads that its drive could not answer.
    pub read_errors: u64,
    /// Commands that changed something and failed on its drive.
    pub write_errors: u64,
    /// Blocks that its drive could not read, and that nobody has read, rebuilt or reset since.
    pub unreadable_blocks: u64,
    /// Zones on this member that have to be rebuilt.
    pub zones_to_rebuild: u32,
    /// Zones of the drive are read-only or offline, and not in spare zones: without one they can be rebuilt on another
    /// drive only.
    pub worn: bool,
    /// Zones of the member that are in spare zones of its drive, and in which, as the array counts these.
    pub moved: BTreeMap<u32, u32>,
    /// Spare zones of the drive that nothing has been moved to.
    pub spare_zones: u32,
    /// Metadata zones of the drive that are worn: spare ones are used in their place, if there are any.
    pub worn_log: Vec<u32>,
    /// The log of the drive can only be written as long as there is room in one zone, since the other one is worn.
    pub log_confined: bool,
    /// What was written on the drive when it became the member, whether it is there or not.
    pub drive_id: DriveId,
}

impl MemberStatus {
    /// What is worn of the drive cannot be moved to spare zones any more.
    pub fn is_worn_out(&self) -> bool {
        self.worn && self.spare_zones == 0
    }
}

/// What there is to say about an array.
#[derive(Clone, Debug)]
pub struct ArrayStatus {
    /// The name that somebody chose.
    pub name: String,
    /// The name that nobody chose.
    pub uuid: [u8; 16],
    /// Blocks in a chunk.
    pub chunk_blocks: u64,
    /// How partial stripes are protected.
    pub policy: Policy,
    /// Blocks that are appended in any order, if members' zones are written so; otherwise 0.
    pub group_blocks: u32,
    /// Parities of a stripe: so many members may be lost.
    pub parities: usize,
    /// Zones of a drive that are used as one.
    pub aggregate: u32,
    /// Grows with every change of membership.
    pub event: u64,
    /// Who made or adopted it; zeros for nobody.
    pub host: [u8; 16],
    /// Whether it starts by itself on that host.
    pub autostart: bool,
    /// In order of their roles.
    pub members: Vec<MemberStatus>,
    /// Blocks that a rebuild could not bring back: reads of them, and of those that they would be decoded
    /// from, fail while another drive cannot read either.
    pub lost_blocks: u64,
    /// Whether more members are out than parity can make up for: nothing works any more.
    pub failed: bool,
    /// How many members the blocks of the array that lack most are without, for any reason.
    pub most_missing: usize,
    /// The same for single blocks, of zones that have not failed, that drives could not read or a rebuild not bring back.
    pub most_missing_of_blocks: usize,
    /// Zones that lack more parts than there are parities, and cannot be written.
    pub failed_zones: Vec<ZoneIndex>,
    /// Those of them in which something cannot be read.
    pub unreadable_zones: Vec<ZoneIndex>,
    /// Zones that are offline, since nobody can tell where they ended.
    pub offline: Vec<OfflineZone>,
    /// Nothing has been written on the drives yet, since members are missing that are not out so far.
    pub provisional: bool,
    /// It can only be read, and nothing is written on the drives.
    pub read_only: bool,
    /// Why an array that has held back could not begin to write.
    pub problem: Option<ArrayError>,
}

impl ArrayStatus {
    /// Says that nothing has been written without these members (bits).
    pub(crate) fn wait_for(&mut self, awaited: u32) {
        self.provisional = awaited != 0;
        each(awaited).for_each(|member| self.members[member].awaited = true);
    }
}

/// A zone that could not be decided; everything else works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfflineZone {
    /// Which one.
    pub zone: ZoneIndex,
    /// Why.
    pub refusal: Refusal,
    /// Members that may decide it when they are there again.
    pub waits_for: Vec<usize>,
}

/// What [`crate::array::Array::inspect`] finds.
#[derive(Clone, Debug)]
pub struct ArrayInspection {
    /// How it would be.
    pub status: ArrayStatus,
    /// What it is like.
    pub geometry: Geometry,
    /// As they would be after assembly.
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

/// What has become of a drive that was to replace another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceOutcome {
    /// It holds what the old one did, but for what is to be rebuilt.
    Copied {
        /// That have been copied.
        bytes: u64,
    },
    /// The old one went out on the way: it is to be rebuilt as a whole.
    Attached,
}

/// What a rebuild has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildOutcome {
    /// Bytes written to the members under repair.
    pub bytes: u64,
    /// Zones that could not be rebuilt; all others have been.
    pub left_out: Vec<SkippedPart>,
    /// Blocks of the array that nobody can read any more: the drives under repair lacked something of
    /// them, and another one could not read what it had. In order.
    pub lost: Vec<LostBlocks>,
}

/// Blocks of a zone that cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBlocks {
    /// Zone of the array.
    pub zone: u32,
    /// From the start of the zone.
    pub from: u64,
    /// How many.
    pub blocks: u64,
}

/// A member's part of a zone that could not be rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedPart {
    /// Zone of the array.
    pub zone: u32,
    /// Role of the member.
    pub member: usize,
    /// Why.
    pub reason: NoPart,
}

/// What [`crate::array::examine`] finds on a drive.
#[derive(Clone, Debug)]
pub struct DriveExamination {
    /// What the drive says of its array.
    pub superblock: Superblock,
    /// Role of the drive.
    pub member: usize,
    /// Generation of its metadata log, and how many records are in it.
    pub generation: u64,
    /// Records that can be read.
    pub records: usize,
    /// Records that cannot be read: torn by a power cut, usually.
    pub damaged: u32,
}

impl Raid {
    /// How the array is, as far as what runs it knows.
    pub fn status(&self) -> ArrayStatus {
        let superblock = self.membership.superblock();
        let zones = self.zone_records.records();
        let unreadable = self.zone_records.unreadable.count(self.members.count());
        // Most zones lack nothing and are at rest, and are passed over at once.
        let mut concerned: BTreeSet<u32> =
            (0..).zip(zones.iter()).filter(|(_, record)| record.lost != 0).map(|(zone, _)| zone).collect();
        concerned.extend(self.zones.running_or_stuck());
        if !self.members.are_enough(self.members.active()) {
            concerned.extend(0..self.geometry.zones);
        }
        let lost = |zone: &u32| zones[*zone as usize].lost;
        let members = (0..self.members.count()).map(|m| {
            let (active, about) = (self.members.is_active(m), self.members.about(m));
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
                read_errors: about.read_errors,
                write_errors: about.write_errors,
                unreadable_blocks: unreadable[m],
                zones_to_rebuild,
                worn: about.worn,
                moved: self.members.log(m).map(|log| log.moved()).unwrap_or_default(),
                spare_zones: self.members.log(m).map_or(0, |log| log.device.free().count() as u32),
                worn_log: self.members.log(m).map(|log| log.worn().collect()).unwrap_or_default(),
                log_confined: active && self.members.log(m).is_some_and(|log| log.is_confined()),
                drive_id: superblock.members[m].drive_id.clone(),
            }
        });
        let offline = |zone: u32, refusal: &Refusal| OfflineZone {
            zone: ZoneIndex(zone),
            refusal: refusal.clone(),
            waits_for: each(zones[zone as usize].waits & !self.members.active()).collect(),
        };
        // Zones in doubt lack what they lack until they are decided.
        let missing =
            |zone: u32| self.members.out() | self.zone_records.lost(ZoneIndex(zone)) & self.members.active();
        let all_zones = concerned.iter().map(|zone| ZoneIndex(*zone));
        let decided = || all_zones.clone().filter(|zone| !self.zones.is_offline(*zone));
        let is_any_decided = self.zones.offline().len() < self.geometry.zones as usize;
        let out = if is_any_decided { self.members.out().count_ones() as usize } else { 0 };
        let parts_missing = decided().map(|zone| missing(zone.0).count_ones() as usize).fold(out, usize::max);
        let mut gaps: Vec<Gap> = self.zone_records.unreadable.gaps();
        gaps.extend(self.zone_records.bad_blocks().all().into_iter().map(|hole| Gap {
            zone: hole.zone,
            member: hole.member as usize,
            from: hole.from,
            to: hole.to,
        }));
        let failed = |zone: &ZoneIndex| !self.membership.has_failed() && self.has_failed(*zone);
        let failed_zones: Vec<ZoneIndex> = decided().filter(failed).collect();
        let most_missing_of_gaps = most_missing(&gaps, missing);
        let (mut of_failed, mut of_others) = (Vec::new(), Vec::new());
        for gap in gaps.iter().filter(|gap| !self.zones.is_offline(ZoneIndex(gap.zone))) {
            let failed = failed_zones.contains(&ZoneIndex(gap.zone));
            (if failed { &mut of_failed } else { &mut of_others }).push(*gap);
        }
        // All parts may be there of a zone that cannot be written.
        let has_unreadable_blocks = |zone: ZoneIndex| {
            let gaps: Vec<Gap> = of_failed.iter().copied().filter(|gap| gap.zone == zone.0).collect();
            most_missing(&gaps, missing) > superblock.parities as usize
        };
        let is_unreadable = |zone: &ZoneIndex| self.is_unreadable(*zone) || has_unreadable_blocks(*zone);
        ArrayStatus {
            most_missing: parts_missing.max(most_missing_of_gaps),
            most_missing_of_blocks: most_missing(&of_others, missing),
            unreadable_zones: failed_zones.iter().copied().filter(is_unreadable).collect(),
            failed_zones,
            name: superblock.name.clone(),
            uuid: superblock.array.0,
            chunk_blocks: self.layout.chunk_blocks,
            policy: superblock.policy,
            group_blocks: superblock.group_blocks,
            parities: superblock.parities as usize,
            aggregate: superblock.aggregate,
            event: superblock.event,
            host: superblock.host.0,
            autostart: superblock.autostart,
            members: members.collect(),
            lost_blocks: self.zone_records.bad_blocks().blocks(),
            failed: self.membership.has_failed(),
            provisional: false,
            read_only: false,
            problem: self.membership.is_fenced().then_some(ArrayError::Fenced),
            offline: self.zones.offline().iter().map(|(zone, refusal)| offline(*zone, refusal)).collect(),
        }
    }

    /// Progress of the rebuild: bytes of the members that lack zones, and how many of these are in place.
    pub fn rebuild_progress(&self) -> Progress {
        let (records, active) = (self.zone_records.records(), self.members.active());
        let lacking = records.iter().fold(0, |all, record| all | record.lost) & active;
        let (mut left_bytes, mut total_bytes) = (0, 0);
        for (zone, record) in (0..).map(ZoneIndex).zip(records.iter()) {
            let bytes = self.member_bytes(zone);
            total_bytes += u64::from(lacking.count_ones()) * bytes;
            left_bytes += u64::from((record.lost & lacking).count_ones()) * bytes;
        }
        Progress::paused(total_bytes - left_bytes, total_bytes)
    }

    /// Whether something in a zone, which has failed, cannot be read since it lacks too many parts.
    fn is_unreadable(&self, zone: ZoneIndex) -> bool {
        self.tail(zone) > 0 && !self.members.are_enough(self.live(zone))
    }
}
