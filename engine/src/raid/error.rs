//! Errors of an array, and remarks on its members, as values.
//!
//! Callers match on the variants. The messages are for users, and are never parsed. [`DriveFault`] has the faults of a
//! single drive, [`NoArray`] those of several drives together, and each operation that may be refused has its own enum.
//! A message has no full stop, so that it can be part of another one.
#![allow(missing_docs, reason = "the sentences say what the variants and their values are")]

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
    /// What is wrong with the name.
    #[error("an array cannot have this name: {0}")]
    Name(&'static str),
    /// More members are out than parity covers; with the remarks on all members.
    #[error("too many drives have failed{}", Because(": ", .0))]
    Failed(Notes),
    #[error(
        "another host has assembled this array, so that nothing more is written here: stop it on one of the hosts, \
         and start it on the other"
    )]
    Fenced,
    /// A member went out during the creation of the array.
    #[error("a member is out: {0}")]
    Incomplete(Notes),
    /// Members went out before the change was written to them.
    #[error("not all could be told: {0}")]
    NotTold(Notes),
    #[error("its zones cannot be listed: {0}")]
    Unlisted(Status),
    #[error(
        "the metadata log of member {member} has no room for what power cuts have displaced: assemble with all \
         members, or rebuild first"
    )]
    LogIsFull { member: usize },
    /// The array is in deferred-write mode: any write would make its absent members stale.
    #[error("nothing is written on its drives as yet: stop it first")]
    HoldsBack,
    #[error("the array has been opened to be read only")]
    ReadOnly,
    #[error("it does not begin")]
    NotBegun,
    /// A rebuild, a replacement or the end of deferred-write mode is in progress.
    #[error("something is going on with its members: let that end first")]
    Busy,
    /// Writes that had completed when the array was closed could not be made safe.
    #[error("not all could be made safe: {0}")]
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

/// What is wrong with a drive.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriveFault {
    #[error("is blank")]
    Blank,
    #[error("holds something else: it is not a member of any array")]
    Foreign,
    /// Block of the drive.
    #[error("its metadata is damaged in block {0} of the drive")]
    Damaged(u64),
    /// The metadata is intact, but a value in it is impossible.
    #[error("its metadata is damaged: {0}")]
    Absurd(Absurd),
    /// The superblock differs from those of most other members.
    #[error("its metadata is damaged: {0}, by what the others say")]
    Dissents(Absurd),
    #[error("its metadata cannot be read: {0}")]
    Unreadable(DeviceError),
    #[error(
        "has format version {0}, this zoneraid knows versions {OLDEST_VERSION} to {VERSION}: {advice}",
        advice = if *.0 > VERSION { "use a newer one" } else { "use an older one, or make the array anew" }
    )]
    Version(u16),
    /// Unknown features (bits).
    #[error("its array uses features (bits {0:#x}) that this zoneraid does not know: use a newer one")]
    Features(u64),
    #[error("says it is member {role} of an array of {members}: its metadata is damaged")]
    NoSuchRole { role: usize, members: usize },
    /// The drive is being filled with a copy of a member.
    #[error("holds a part of a copy of member {member} of array {array}: zoneraid replace goes on with it")]
    Target { array: Uuid, member: usize },
    #[error("is of no array")]
    OfNoArray,
    #[error("is of another array")]
    OfAnotherArray,
    /// The drive is too small for its part, or lacks a capability.
    #[error(transparent)]
    Lacks(#[from] Lack),
    /// The drive qualifies as a member, but not as a copy of the present one.
    #[error("{0}: it can be rebuilt, but not copied to")]
    NoCopy(#[from] NoCopy),
    #[error("resetting it failed: {0}")]
    Reset(DeviceError),
    #[error("its metadata cannot be written: {0}")]
    Unwritable(DeviceError),
    /// The drive would be found as a member again.
    #[error(
        "a metadata zone of it cannot be written any more and still says that it is a member of an array: take \
         another drive"
    )]
    HoldsLog,
    #[error("it failed while it was added")]
    FailedWhenAdded,
    #[error("is a member of this array already")]
    IsMember,
    #[error("the array has begun without it")]
    IsLate,
    #[error("is not a member that is missing")]
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
pub enum Lack {
    #[error(
        "{of} {} KiB, {} KiB are needed: take a drive with {advice}", kib(*.have), kib(*.need),
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
        "its blocks have {have} bytes of metadata, the policy '{policy}' needs {need}: format it so, or choose \
         another policy"
    )]
    OobBytes { have: u32, need: u32, policy: &'static str },
    #[error("it has no zone append, which the policy 'append' needs")]
    Append,
    #[error("it has {have} zones, {need} are needed")]
    Zones { have: u32, need: u32 },
    #[error("it can have {have} zones active, {need} are needed")]
    ActiveZones { have: u32, need: u32 },
    /// Number of small zones to be used as one.
    #[error("{0} of its zones cannot be used as one, as this array needs")]
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
            Room::Log => ("for metadata its zones hold", "larger zones, or all drives with fewer"),
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

/// Why an array with these parameters is impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoDesign {
    #[error("there are 1 or {MAX_PARITIES} parities, not {0}")]
    Parities(usize),
    #[error(
        "{} takes {} to {} drives, not {drives}",
        level_name(*.parities), members_of(*.parities).start(), members_of(*.parities).end()
    )]
    Drives { parities: usize, drives: usize },
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
    #[error("of the {zones} zones that a drive has for data, {spare} cannot be spare: fewer can")]
    Spares { spare: u32, zones: u32 },
    #[error(
        "zone {zone} is read-only or offline on {} drives, and they have no spare zones left for it: make the array \
         with more spare zones (--spare-zones), or of other drives", .drives
    )]
    Worn { zone: u32, drives: usize },
    #[error("the drives allow too few open zones: three are the least")]
    OpenZones,
    #[error("there can be no such array: {0}")]
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
    #[error("the drives contradict each other about what array {0} is: give those that agree only")]
    NoMajority(Uuid),
    #[error("the drives contradict each other about who is a member: leave out those that were away")]
    Contradiction,
    #[error("the creation of '{0}' was not finished: create it again, or destroy what there is of it")]
    Unfinished(String),
    #[error("'{0}' is half destroyed: destroy it again")]
    HalfDestroyed(String),
    #[error("{} and {} both say they are member {member}: leave one out", .drives.0, .drives.1)]
    SameMember { drives: (String, String), member: usize },
    #[error(
        "only {present} of {members} members can be used, at least {needed} are needed{}", Reasons(.notes)
    )]
    TooFew { present: usize, members: usize, needed: usize, notes: Vec<Note> },
    /// A member that is needed, and its fault.
    #[error("{drive}: {note}, and too many other members are missing")]
    Needed { drive: String, member: usize, note: Note },
    /// The tails file is of another array.
    #[error(
        "the array has {zones} zones, but the process that ran it left the ends of {known}: leave them out"
    )]
    Tails { zones: u32, known: usize },
    /// The other members can run the array without these drives, so these are not destroyed.
    #[error(
        "of the members of '{array}' only {} {} there, and the others can go on without {}",
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
    #[error("member {0} is needed: too many others are out or not rebuilt yet")]
    IsNeeded(usize),
    #[error("member {0} is in use: fail it first")]
    InUse(usize),
    #[error("another drive is being replaced: let that end first")]
    BeingReplaced,
}

/// Why a rebuild has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoRebuild {
    #[error("a rebuild is under way already")]
    UnderWay,
    #[error("a drive under repair failed")]
    Failed,
    #[error("zone {zone}: {why}")]
    Zone { zone: u32, why: NoPart },
}

/// Why a drive has not replaced another one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoReplacement {
    #[error("a rebuild is under way: let it end first")]
    UnderWay,
    #[error("member {0} is out: there is nothing to copy")]
    NothingToCopy(usize),
    #[error("zone {0} is offline: what there is of it would not be copied")]
    Offline(u32),
    #[error("the old drive is gone")]
    OldGone,
    #[error("no member is being copied to another drive")]
    NoneUnderWay,
    #[error("the copy is complete and the new drive is taking over: it cannot be cancelled any more")]
    TakesOver,
    #[error("{drive} has not replaced member {member}, which stays in its place: {why}")]
    Failed { drive: String, member: usize, why: NotTaken },
}

/// Why a replacement has ended without the new drive becoming the member.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotTaken {
    #[error("the copy was cancelled; the new drive is blank")]
    Cancelled,
    #[error(
        "the copy was cancelled, but the new drive cannot be made blank ({0}): wipe it, or the copy continues when the \
         array is started with it"
    )]
    CancelledNotBlank(DeviceError),
    #[error("the new drive failed: {0}")]
    NewFailed(DeviceError),
    #[error("the old drive is gone")]
    OldGone,
    #[error("too many drives have failed")]
    ArrayFailed,
    /// A part could not be copied, and another member lacks its own.
    #[error("zone {zone}: {why}, and another drive lacks it")]
    LeftOut { zone: u32, why: NoPart },
    /// The new drive had become the member, and went out.
    #[error("{0}")]
    Out(Note),
}

/// Why a member's part of a zone could not be rebuilt or copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoPart {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("the drive cannot write this zone any more: {0}")]
    Worn(DeviceError),
    #[error("the drive under repair failed: {0}")]
    Failed(DeviceError),
    /// The member is out, or has another drive.
    #[error("the drive under repair failed")]
    Gone,
    #[error("it waits for another drive")]
    Waits,
    #[error("too many other drives lack the same zone")]
    TooFewOthers,
    #[error("the zone is offline: it is rebuilt when it has been decided where its data ends")]
    Offline,
    /// A member that cannot be spared cannot write the zone.
    #[error("member {0} cannot write its part of the zone: stop the array and start it again")]
    Stuck(usize),
    #[error(
        "more blocks are lost than there is room to remember: copy what can be read of the zone, then reset it"
    )]
    TooManyHoles,
    #[error("the old drive lacks it")]
    OldLacks,
    #[error("the zone of the old drive is not as it was left")]
    OldChanged,
    #[error("the old drive cannot read block {block} of its part: {error}")]
    OldUnreadable { block: u64, error: DeviceError },
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
    #[error("{drive} was taken out of the array: its content is stale")]
    WasTakenOut { drive: String },
    #[error("{drive} was to be destroyed with the array")]
    WasDestroyed { drive: String },
    #[error("{drive} is stale: it is of event {event}, the array of {newest}")]
    Stale { drive: String, event: u64, newest: u64 },
    #[error(
        "{drive} is from another copy of the array, which has been written to by itself: give the drives of one copy \
         only, or rebuild it"
    )]
    Diverged { drive: String },
    #[error("has been taken by another host")]
    Fenced,
    #[error("{drive} is an older copy: its metadata lacks what all members had recorded; rebuild it")]
    Outdated { drive: String },
    /// A member that was away has rejoined for the zones that need its parts.
    #[error(
        "was away: it has been taken back for {}",
        if *.by_force { "full zones, by force" } else { "the zones that cannot do without it" }
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
    #[error("is there again: it is used from the first write on")]
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
struct Because<'a>(&'static str, &'a Notes);

impl Display for Because<'_> {
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
