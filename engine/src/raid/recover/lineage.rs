//! Comparison of superblocks by lineage: whether two are of one history of an array, or of copies that have both been
//! written to.
//!
//! Event numbers advance alike in all copies. So every assembly draws a random *id*, and records it twice:
//!
//! 1. *attempt*: the checkpoints with which it begins name its id among the attempts, with their event. These
//!    checkpoints have the lineage of the newest superblock, and the attempts of all members that are used.
//! 2. *commit*: the superblock that takes out absent members adds the id to the assemblies, and has no attempts. It is
//!    always written, and no zone is touched and nothing reported before all members have it or are out.
//!
//! A member continues the superblock in effect if both have the same last id; or if either has the last id of the other
//! one among its attempts, and the other one's floor is not above the event of that attempt.
//!
//! *No member becomes stale without cause.* Let M be a member that is not out and has missed no write, after any number
//! of assemblies that were interrupted anywhere.
//!
//! - Interrupted before the first commit, an assembly has changed no last id: members with its checkpoints have that of
//!   the superblock that it took for the newest, and so do the others, or the next cases cover them.
//! - Interrupted between commits, some members have the new id and the others have it among their attempts: a commit
//!   comes after all attempts, and takes out absent members. Neither a floor nor an event is above that attempt before
//!   all have the commit. Later assemblies keep the attempts of all members that they use, so that this holds until one
//!   of them commits, which takes out members with other last ids that it does not use.
//! - A drive that is attached, or takes over, gets its superblock from the running array: it has the last id.
//! - A stale member that is used again, for zones that wait for it or by force, has an older last id until it is
//!   updated, last of all: that id is among the attempts as well.
//! - A change of a name is no assembly and writes the last id unchanged.
//! - Members of an array of version 8 have no id; the first assembly of a newer version makes an attempt on all of them
//!   like any other.
//!
//! *Copies are not mixed.* Let copies A and B have been written to after they were separated, each by an assembly of
//! its own. Each has a committed id that no drive of the other one knows, not even as an attempt. If the drives were
//! copied between an attempt and its commit, the copy has that attempt: but as soon as anything is reported after the
//! commit is complete, the floor is above the attempt's event, so that the copy does not continue it. Repairs before
//! that are those of an assembly that was interrupted.
//!
//! Five attempts are kept: if six assemblies in succession are interrupted before their commit is complete, a member
//! that alone had the commit of the first one, and was absent since, is stale.
//!
//! *The superblock in effect* is the one with the newest event, and of equal events the one with the larger id; but a
//! copy with too few members present gives way to one with enough, if it counts the drives of that one as its members.
//! (Half of an array that has continued without the other half does not: it has those members out.)

use crate::format::superblock::Superblock;

/// Whether a member with the superblock `own` has everything that was written until `newest`, by their lineages.
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
