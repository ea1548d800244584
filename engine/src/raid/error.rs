//! Errors of an array, and remarks on its members, as values.
//!
//! Callers match on the variants. The messages are for users, and are never parsed. [`DriveFault`] has the faults of a
//! single drive, [`NoArray`] those of several drives together, and each operation that may be refused has its own enum.
//! A message has no full stop, so that it can be part of another one.
#![allow(missing_docs, reason = "the messages say what the variants and their values are")]

use crate::{
    buf::BLOCK,
    device::{DeviceError, Status},
    format::{
        OLDEST_VERSION, Uuid, VERSION,
        codec::Absurd,
        superblock::{level_name, members_of},
    },
    raid::geometry::{MAX_PARITIES, META_ZONES},
};
use std::fmt::{self, Display, Formatter};
use thiserror::Error;

/// Why an array cannot be created or assembled, has failed, or refuses an operation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArrayError {
    /// A drive does not qualify, or has failed.
    #[error(transparent)]
    Drive(#[from] BadDrive),
    /// An array with these parameters is impossible.
    #[error(transparent)]
    Design(#[from] NoDesign),
    /// The drives do not form one array.
    #[error(transparent)]
    Drives(#[from] NoArray),
    /// The operation is not possible on this member.
    #[error(transparent)]
    Member(#[from] BadMember),
    /// A rebuild has stopped.
    #[error(transparent)]
    Rebuild(#[from] NoRebuild),
    /// A drive has not replaced another one.
    #[error(transparent)]
    Replace(#[from] NoReplacement),
    /// Reason why the name is invalid.
    #[error("an array cannot have this name: {0}")]
    Name(&'static str),
    /// More members are out than parity covers; with the remarks on all members.
    #[error("too many drives have failed{}", RemarkList(": ", .0))]
    Failed(Notes),
    #[error(
        "another host has assembled this array, so that nothing more is written here: stop it on one of the hosts, \
         and start it on the other"
    )]
    Fenced,
    /// A member went out during the creation of the array.
    #[error("members went out during the creation of the array: {0}")]
    Incomplete(Notes),
    /// Members went out before the change was written to them.
    #[error("the change could not be recorded on all members: {0}")]
    NotTold(Notes),
    #[error("the zones of the array cannot be listed: {0}")]
    Unlisted(Status),
    #[error(
        "the metadata log of member {member} is too small for the blocks relocated after power cuts: assemble \
         with all members, or rebuild first"
    )]
    LogIsFull { member: usize },
    /// The array is in deferred-write mode: any write would make its absent members stale.
    #[error("the array is in deferred-write mode: stop it first")]
    HoldsBack,
    #[error("the array is read-only")]
    ReadOnly,
    #[error("the deferred start was cancelled: start the array again")]
    NotBegun,
    /// A rebuild, a replacement or the end of deferred-write mode is in progress.
    #[error(
        "a rebuild, a replacement or the end of deferred-write mode is in progress: wait until it has ended"
    )]
    Busy,
    /// Writes that had completed when the array was closed could not be made safe.
    #[error("the last flush failed, so that completed writes may not be durable: {0}")]
    NotSafe(DeviceError),
}

/// A drive that does not qualify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadDrive {
    /// Name of the drive in messages.
    pub name: String,
    pub fault: DriveFault,
}

impl BadDrive {
    pub fn new(name: &str, fault: impl Into<DriveFault>) -> BadDrive {
        BadDrive { name: name.into(), fault: fault.into() }
    }
}

impl std::error::Error for BadDrive {}

impl Display for BadDrive {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let joint = if self.fault.is_predicate() { " " } else { ": " };
        write!(f, "{}{joint}{}", self.name, self.fault)
    }
}

/// Reason why a drive cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriveFault {
    #[error("is blank")]
    Blank,
    #[error("holds other data: it is not a member of any array")]
    Foreign,
    /// Block of the drive.
    #[error("its metadata is damaged in block {0} of the drive")]
    Damaged(u64),
    /// The metadata is intact, but a value in it is impossible.
    #[error("its metadata is damaged: {0}")]
    Absurd(Absurd),
    /// The superblock differs from those of most other members.
    #[error("its metadata is damaged: {0}, according to the other members")]
    Dissents(Absurd),
    #[error("its metadata cannot be read: {0}")]
    Unreadable(DeviceError),
    #[error(
        "has format version {0}, this zoneraid supports versions {OLDEST_VERSION} to {VERSION}: {advice}",
        advice = if *.0 > VERSION { "use a newer one" } else { "use an older one, or create the array again" }
    )]
    Version(u16),
    /// Unknown features (bits).
    #[error("its array uses features (bits {0:#x}) that this zoneraid does not support: use a newer one")]
    Features(u64),
    #[error("has role {role}, but its array has {members} members: its metadata is damaged")]
    NoSuchRole { role: usize, members: usize },
    /// The drive is being filled with a copy of a member.
    #[error(
        "holds an incomplete copy of member {member} of array {array}: continue it with zoneraid replace"
    )]
    Target { array: Uuid, member: usize },
    #[error("has no readable superblock of an array")]
    OfNoArray,
    #[error("belongs to another array")]
    OfAnotherArray,
    /// The drive is too small for its part, or lacks a capability.
    #[error(transparent)]
    Lacks(#[from] Disqualification),
    /// The drive qualifies as a member, but not as a copy of the present one.
    #[error("{0}: it can be rebuilt, but not copied to")]
    NoCopy(#[from] NoCopy),
    #[error("resetting it failed: {0}")]
    Reset(DeviceError),
    #[error("its metadata cannot be written: {0}")]
    Unwritable(DeviceError),
    /// The drive would be found as a member again.
    #[error("a metadata zone of it is worn and still holds the superblock of an array: use another drive")]
    HoldsLog,
    #[error("it was not added, since it or the array failed meanwhile")]
    FailedWhenAdded,
    #[error("is a member of this array already")]
    IsMember,
    #[error("the array has left deferred-write mode without it: rebuild it with zoneraid replace")]
    IsLate,
    #[error("is not a missing member of this array")]
    NotMissing,
}

impl DriveFault {
    /// Whether the message is a predicate of the drive's name.
    fn is_predicate(&self) -> bool {
        use DriveFault::*;
        matches!(
            self,
            Blank
                | Foreign
                | Version(_)
                | NoSuchRole { .. }
                | Target { .. }
                | OfNoArray
                | OfAnotherArray
                | IsMember
                | NotMissing
        )
    }
}

/// Why a drive does not qualify for an array.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Disqualification {
    #[error(
        "{of} {} KiB, {} KiB are needed: use a drive with {advice}", kib(*.have), kib(*.need),
        of = .what.sentence().0, advice = .what.sentence().1
    )]
    Blocks { what: Room, have: u64, need: u64 },
    #[error("it has no ZRWA (Zone Random Write Area), which this array needs")]
    Zrwa,
    #[error("its ZRWA has {} KiB, {} KiB are needed", kib(*.have), kib(*.need))]
    ZrwaBlocks { have: u64, need: u64 },
    /// Write pointers would have to stop between two multiples of the granularity; `step` names the unit by which they
    /// move.
    #[error(
        "{step} of {} KiB is not a multiple of its ZRWA flush granularity of {} KiB",
        kib(*.chunk_blocks), kib(*.granularity_blocks)
    )]
    Granularity { step: &'static str, chunk_blocks: u64, granularity_blocks: u64 },
    /// Bytes of metadata of a block.
    #[error(
        "its blocks have {have} bytes of metadata, {purpose} needs {need}: format it with more metadata, or create \
         the array without that"
    )]
    OobBytes { have: u32, need: u32, purpose: &'static str },
    #[error("it has no zone append, which the policy 'append' needs")]
    Append,
    #[error("it has {have} zones, {need} are needed")]
    Zones { have: u32, need: u32 },
    #[error("it supports {have} active zones, {need} are needed")]
    ActiveZones { have: u32, need: u32 },
    /// Number of small zones to be used as one.
    #[error(
        "this array aggregates {0} zones of a drive into one, which the geometry of this drive does not allow"
    )]
    Aggregate(u32),
}

/// A resource of which a drive has too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Zones,
    Log,
    Requests,
}

impl Room {
    /// Name of the resource in a message, and the advice.
    fn sentence(self) -> (&'static str, &'static str) {
        match self {
            Room::Zones => ("its zones hold", "larger zones"),
            Room::Log => ("for metadata its zones hold", "larger zones, or only drives with fewer zones"),
            Room::Requests => ("its requests have at most", "larger requests, or smaller chunks"),
        }
    }
}

/// Why a drive cannot hold a copy of another one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoCopy {
    /// Bytes of metadata of a block.
    #[error("its blocks have {have} bytes of metadata, those of the old drive {old}")]
    OobBytes { have: u32, old: u32 },
    #[error("its zones are not as far apart as those of the old drive")]
    ZoneSize,
}

/// The number of drives of a level, in words.
fn drives_of(parities: usize) -> String {
    match (*members_of(parities).start(), *members_of(parities).end()) {
        (1, 1) => "one drive".into(),
        (least, most) => format!("{least} to {most} drives"),
    }
}

/// Why an array with these parameters is impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoDesign {
    #[error("there are at most {MAX_PARITIES} parities, not {0}")]
    Parities(usize),
    #[error("{} takes {}, not {drives}", level_name(*.parities), drives_of(*.parities))]
    Drives { parities: usize, drives: usize },
    #[error(
        "a single drive has no parity, and so no use for the policy '{policy}': choose 'log' or 'append', or none"
    )]
    PolicyOfSingle { policy: &'static str },
    #[error("the chunk size must be a power of two from 8 KiB to 16 MiB")]
    Chunk { blocks: u64 },
    #[error("{drive} has no ZRWA (Zone Random Write Area), which this policy needs")]
    NoZrwa { drive: String },
    #[error(
        "a chunk of {} KiB is too large for the drives' ZRWA: {} KiB at most",
        kib(*.blocks), kib(*.zrwa_blocks) / .chunks
    )]
    ChunkForZrwa { blocks: u64, zrwa_blocks: u64, chunks: u64 },
    #[error(
        "the drives need zones of at least {} KiB, and more than {META_ZONES} of them; a zone of the array has at \
         least {} KiB",
        kib(*.chunk_blocks), kib(*.stripe_blocks)
    )]
    Zones { chunk_blocks: u64, stripe_blocks: u64 },
    #[error(
        "{spare} spare zones are too many for a drive with {zones} data zones: choose fewer (--spare-zones)"
    )]
    Spares { spare: u32, zones: u32 },
    #[error(
        "zone {zone} is read-only or offline on {} drives, and no spare zones are left for it: create the \
         array with more spare zones (--spare-zones), or on other drives", .drives
    )]
    Worn { zone: u32, drives: usize },
    #[error(
        "the drives have less than 20 bytes of metadata for each block, or groups have one block, and the policy 'append' \
         has checksums nowhere else: choose another policy, or do without checksums"
    )]
    ChecksumsOfAppends,
    #[error(
        "the drives have less than 20 bytes of metadata for each block, and the policy '{policy}' has checksums nowhere \
         else: choose the policy 'zrwa' or 'log', or do without checksums"
    )]
    ChecksumsInBlocks { policy: &'static str },
    #[error(
        "the ZRWA or the zones of the drives are too small for checksums of groups of {blocks} blocks: do without \
         checksums"
    )]
    ChecksumGroups { blocks: u32 },
    #[error(
        "the drives support too few open zones: at least three are needed, and a fourth for checksums in blocks of the zones"
    )]
    OpenZones,
    #[error("the geometry of the array is invalid: {0}")]
    Absurd(#[from] Absurd),
}

/// Why drives do not form an array.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoArray {
    #[error("no drives given")]
    NoDrives,
    #[error("no member with readable metadata: {0}")]
    NoMember(BadDrive),
    /// A drive with metadata that does not fit the array that it belongs to.
    #[error(transparent)]
    Misfit(BadDrive),
    /// Two drives, each with its array.
    #[error(
        "{} belongs to array {}, but {} to array {}: give the drives of one array only",
        .one.0, .one.1, .other.0, .other.1
    )]
    Mixed { one: (String, Uuid), other: (String, Uuid) },
    #[error(
        "the superblocks of array {0} are inconsistent, and none has a majority: name only drives that agree"
    )]
    NoMajority(Uuid),
    #[error("the superblocks are inconsistent about the membership: leave out the drives that were missing")]
    Contradiction,
    #[error("the creation of '{0}' was interrupted: create it again, or destroy it")]
    Unfinished(String),
    #[error("the destruction of '{0}' was interrupted: destroy it again")]
    HalfDestroyed(String),
    #[error("{} and {} both have superblocks of member {member}: leave one of them out", .drives.0, .drives.1)]
    SameMember { drives: (String, String), member: usize },
    #[error(
        "only {present} of {members} members are usable, at least {needed} are needed{}", Reasons(.notes)
    )]
    TooFew { present: usize, members: usize, needed: usize, notes: Vec<Note> },
    /// A member that is needed, and its fault.
    #[error("{drive}: {note}, and too many other members are missing")]
    Needed { drive: String, member: usize, note: Note },
    /// The acknowledgement log is of another array.
    #[error(
        "the acknowledgement log of the previous daemon has {known} zones, but the array has {zones}: it \
         belongs to another array; remove it to start as after a power cut"
    )]
    Tails { zones: u32, known: usize },
    /// The other members can run the array without these drives, so these are not destroyed.
    #[error(
        "only {} of '{array}' {} present, and the other members can run without {}: connect the other members \
         to destroy the array, or wipe single drives",
        .drives.join(" and "),
        if .drives.len() == 1 { "is" } else { "are" },
        if .drives.len() == 1 { "it" } else { "them" }
    )]
    OthersGoOn { array: String, drives: Vec<String> },
}

/// Why an operation is not possible on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadMember {
    #[error("there is no member {member}: the array has {members}")]
    None { member: usize, members: usize },
    #[error("member {0} is out already")]
    IsOut(usize),
    #[error("member {0} cannot be taken out: too many other members are out or not rebuilt yet")]
    IsNeeded(usize),
    #[error("member {0} is active: take it out first (zoneraid fail)")]
    InUse(usize),
    #[error("another member is being replaced: wait until that has ended")]
    BeingReplaced,
}

/// Why a rebuild has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoRebuild {
    #[error("a rebuild is running already")]
    UnderWay,
    #[error("the drive that is being rebuilt failed")]
    Failed,
    #[error("the program that requested the rebuild does not wait for it any more")]
    GivenUp,
    #[error("zone {zone}: {why}")]
    Zone { zone: u32, why: NoPart },
}

/// Why a drive has not replaced another one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoReplacement {
    #[error("a rebuild is running: wait until it has ended")]
    UnderWay,
    #[error("member {0} is out, so that it cannot be copied: rebuild it")]
    NothingToCopy(usize),
    #[error(
        "zone {0} is offline, and its data would not be copied: start the array with all its members, or reset \
         the zone, first"
    )]
    Offline(u32),
    #[error("the old drive is out")]
    OldGone,
    #[error("no member is being copied to another drive")]
    NoneUnderWay,
    #[error(
        "the copy is complete and the new drive is taking over: the replacement cannot be cancelled any more"
    )]
    TakesOver,
    #[error("member {member} was not replaced by {drive}: {why}")]
    Failed { drive: String, member: usize, why: ReplaceFailure },
}

/// Why a replacement has ended without the new drive becoming the member.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplaceFailure {
    #[error("the copy was cancelled; the new drive is blank")]
    Cancelled,
    #[error(
        "the copy was cancelled, but the new drive cannot be made blank ({0}): wipe it, or the copy continues when the \
         array is started with it"
    )]
    CancelledNotBlank(DeviceError),
    #[error("the program that requested the copy does not wait for it any more; the copy can be continued")]
    GivenUp,
    #[error("the new drive failed: {0}")]
    NewFailed(DeviceError),
    #[error("the old drive is out, or the array has failed")]
    OldGone,
    #[error("too many drives have failed")]
    ArrayFailed,
    /// A part could not be copied, and another member lacks its own.
    #[error("zone {zone} could not be copied ({why}), and another member lacks its part of it, too")]
    LeftOut { zone: u32, why: NoPart },
    /// A part of a single drive could not be copied.
    #[error(
        "zone {zone} could not be copied ({why}), and its data is nowhere else: the old drive stays the member"
    )]
    Alone { zone: u32, why: NoPart },
    /// The new drive had become the member, and went out.
    #[error("{0}")]
    Out(Note),
}

/// Why a member's part of a zone could not be rebuilt or copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoPart {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("the zone of the drive is worn: {0}")]
    Worn(DeviceError),
    #[error("the drive that is being rebuilt failed: {0}")]
    Failed(DeviceError),
    /// The member is out, or has another drive.
    #[error("the drive that is being rebuilt failed")]
    Gone,
    #[error("the zone waits for the drive of another member")]
    Waits,
    #[error("too many other members lack the same zone")]
    TooFewOthers,
    #[error("the zone is offline: it can be rebuilt after a start with all members, or after a reset")]
    Offline,
    #[error("the zone is read-only: too many members cannot write their part of it")]
    ReadOnly,
    /// A member that cannot be spared cannot write the zone.
    #[error("member {0} cannot write its part of the zone: stop the array and start it again")]
    Stuck(usize),
    #[error(
        "the array has more bad blocks than its metadata can record: copy the readable data of the zone, then reset it"
    )]
    TooManyBadBlocks,
    #[error("the old drive lacks its part of the zone")]
    OldLacks,
    #[error("the zone of the old drive is in an unexpected state")]
    OldChanged,
    #[error("the old drive cannot read block {block} of its part: {error}")]
    OldUnreadable { block: u64, error: DeviceError },
}

/// Why the rebuild or copy of a part, or of some of its rows, has ended early.
pub enum RebuildStop {
    /// A reset or finish of the zone is requested, or its state has changed: try again.
    Again,
    /// The part cannot be rebuilt or copied now.
    Error(NoPart),
}

impl From<NoPart> for RebuildStop {
    fn from(error: NoPart) -> RebuildStop {
        RebuildStop::Error(error)
    }
}

impl From<DeviceError> for RebuildStop {
    fn from(error: DeviceError) -> RebuildStop {
        RebuildStop::Error(error.into())
    }
}

/// Why a member is out, or another remark on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
pub enum Note {
    /// No remark.
    #[default]
    #[error("")]
    Nothing,
    #[error("missing")]
    Missing,
    /// A drive that was given cannot be used, and may be this member's.
    #[error(transparent)]
    Unusable(BadDrive),
    #[error("{drive} was replaced")]
    Replaced { drive: String },
    #[error("{drive} was taken out of the array: its data is stale")]
    WasTakenOut { drive: String },
    #[error("{drive} was marked by an interrupted destruction of the array: its data may be lost")]
    WasDestroyed { drive: String },
    #[error("{drive} is stale: its superblock has event {event}, the newest one {newest}")]
    Stale { drive: String, event: u64, newest: u64 },
    #[error(
        "{drive} belongs to a diverged copy of the array: use the drives of one copy only, or rebuild it"
    )]
    Diverged { drive: String },
    #[error("has been assembled by another host")]
    Fenced,
    #[error(
        "{drive} is an older copy of a member: its metadata lacks records that all members had; rebuild it"
    )]
    Outdated { drive: String },
    /// A member that was away has rejoined for the zones that need its parts.
    #[error(
        "was missing, and is used again for {}",
        if *.by_force { "full zones, by force" } else { "the zones that cannot be read without it" }
    )]
    TakenBack { by_force: bool },
    #[error("it lists only {0} zones")]
    FewZones(usize),
    #[error("its zones cannot be listed: {0}")]
    Unlisted(DeviceError),
    /// A command failed, and the member went out.
    #[error("failed: {what}: {error}")]
    Failed { what: &'static str, error: DeviceError },
    /// A command failed, and the member lost its part of a zone.
    #[error("zone {zone}: {what}: {error}")]
    PartLost { zone: u32, what: &'static str, error: DeviceError },
    #[error("taken out by the operator")]
    ByOperator,
    #[error("is present again, and will be used from the first write on")]
    IsBack,
}

impl Note {
    /// Whether there is no remark.
    pub fn is_empty(&self) -> bool {
        *self == Note::Nothing
    }
}

/// Remarks on members, by role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes(pub Vec<(usize, Note)>);

impl Display for Notes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, (member, note)) in self.0.iter().enumerate() {
            write!(f, "{}member {member}: {note}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// Remarks after a prefix; nothing if there are none.
struct RemarkList<'a>(&'static str, &'a Notes);

impl Display for RemarkList<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.1.0.is_empty() {
            true => Ok(()),
            false => write!(f, "{}{}", self.0, self.1),
        }
    }
}

/// Remarks in brackets; nothing if there are none.
struct Reasons<'a>(&'a [Note]);

impl Display for Reasons<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let notes: Vec<_> = self.0.iter().map(Note::to_string).collect();
        match notes.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", notes.join("; ")),
        }
    }
}

fn kib(blocks: u64) -> u64 {
    blocks * (BLOCK as u64 / 1024)
}
