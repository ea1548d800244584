//! Whether two superblocks are of one history of an array, or of copies of it that have both been written to.
//!
//! Counters count alike in all copies. So every assembly draws a random *id*, and writes it down twice:
//!
//! 1. *attempt*: the checkpoints with which it begins name its id among the attempts, with their event. These
//!    checkpoints have the lineage of the newest superblock, and the attempts of all members that are taken.
//! 2. *commit*: the superblock that takes out absent members adds the id to the assemblies, and leaves no attempts.
//!    It is written always, and no zone is touched and nothing reported before all members have it or are out.
//!
//! A member continues the superblock that counts, W, if both have the same last id; or if either has the last id of
//! the other one among its attempts, and the other one's floor is not above the event of that attempt.
//!
//! *Nobody is stale without cause.* Let M be a member that is not out and has missed nothing, though any number of
//! assemblies were cut off anywhere.
//!
//! - Cut off before the first commit, an assembly has changed no last id: those with its checkpoints have that of the
//!   superblock that it took for the newest, and so do the others or they are covered by the next cases.
//! - Cut off between commits, some members have the new id and the others have it among their attempts: a commit comes
//!   after all attempts, and takes out who is absent. Neither a floor nor an event is above that attempt before all
//!   have the commit. Later assemblies keep the attempts of whoever they take, so that this stays so until one of them
//!   commits, which takes out members with other last ids that it has not taken.
//! - A drive that is attached, or takes over, gets its superblock from the array that runs: it has the last id.
//! - A stale member that is taken back, for zones that wait for it or by force, has an older last id until it is told,
//!   last of all: that is among the attempts as well.
//! - A change of a name is no assembly and writes the last id as it is.
//! - Members of an array of version 8 have no id; the first assembly of a newer version makes an attempt on all of
//!   them like any other.
//!
//! *Nothing is mixed.* Let copies A and B have been written to after they were separated, each by an assembly of its
//! own. Both have committed ids that no drive of the other one knows, neither as an attempt. Where an attempt was
//! copied, only that copy knows of it: one whose commit was complete has a floor above the attempt's event as soon as
//! anything is reported, so that the attempt of a copy does not count for it. Repairs before that are those of an
//! assembly that was cut off.
//!
//! Five attempts are kept: in a sixth assembly in succession that is cut off before its commit, with a member away
//! all the time that alone had the commit of the first one, that member is stale.
//!
//! *Which one counts* is decided as ever by the newest event, and by the larger id if events are equal; but a copy of
//! which too few members are there gives way to one that has enough, if it takes that one's drives for its members.
//! It is no half of an array that has gone on without the other one, which says that these are out.

use crate::format::superblock::Superblock;

/// Whether a member with the superblock `own` has all that was written until `newest`, by their lineages.
pub fn continues(own: &Superblock, newest: &Superblock) -> bool {
    let attempted = |by: &Superblock, other: &Superblock| {
        by.lineage.attempted(other.lineage.id()).is_some_and(|event| other.floor <= event)
    };
    own.lineage.id() == newest.lineage.id() || attempted(own, newest) || attempted(newest, own)
}

/// Whether two superblocks are of copies of an array that have been written to independently.
pub fn have_diverged(one: &Superblock, other: &Superblock) -> bool {
    let is_whole = |superblock: &Superblock| superblock.lineage.is_whole(superblock.members.len());
    let has_common = one.lineage.assemblies.iter().any(|id| other.lineage.has(*id));
    (has_common || is_whole(one) && is_whole(other))
        && !one.lineage.has(other.lineage.id())
        && !other.lineage.has(one.lineage.id())
        && !continues(one, other)
}
