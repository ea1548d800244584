//! Assembly: scan, decide, repair.
//!
//! *Scan* reads every drive's metadata log and zone report and, for zones that were being written, the log blocks.
//! *Decide* determines the members of the array and the tail of each zone; nothing has been written up to here.
//! *Repair* writes a new checkpoint to every member, then marks absent members as out in all superblocks, carries out
//! the resets and finishes that were logged, and writes as many witnesses for every tail as it needs, before anything
//! is reported to the host.
//!
//! *An absent member* goes out only when all others have a checkpoint. If one of these cannot be written, the assembly
//! fails, and the absent member, when it returns, is a member as before. That is safe:
//!
//! - Until the absent member is out, only checkpoints have been written: their contents (a zone to be reset, since
//!   nothing was ever promised there; a part that is lost; burned blocks; no parity beyond a tail) are true, whichever
//!   members are present, and no zone has been touched. So a later assembly with the absent member judges the same
//!   zones. No floor is raised above the event of the absent member.
//! - Once it is out, it is so in the superblocks of all others, and only then is a zone touched or anything reported.
//!   Of N members, p of which may be lost, at least N − p record that it is out, and any assembly has at least N − p
//!   members. So at least N − 2p members of an assembly record it: at least one, except with two lost of four. If
//!   another superblock contradicts theirs with a newer event, its writer is out according to theirs ([`effective`]);
//!   otherwise that writer has not been updated yet, and its event is older.
//! - With two lost of four members, the other two suffice to continue: both halves may, if neither ever sees the other,
//!   and when they meet the half with the newer event is the array.
//! - After a power cut in between, it is out in some superblocks and not in others. Either may take effect: nothing has
//!   been done without it, nor without any other member.
//!
//! *Copies.* The head of [`lineage`] argues which superblocks continue each other.
//!
//! *Doubt.* A zone that cannot be judged is offline: nothing of it is touched, on any member or in any log, and it
//! waits for the members that were away. One of these that returns later is stale except for the zones that wait for
//! it: it becomes a member again that lacks all other zones.
//!
//! *By force.* If too many members are missing, a stale one can be used all the same for zones of which its part is
//! known to be current: a zone that is full on it and on all others present, in the epoch that they know, has not been
//! written since. A stale member lacks all other zones, like one that returns. So force costs no zone that works
//! without it, and invents no data. There is one exception: with the policy `log` a write pointer does not prove that
//! other members have written their blocks, so the last stripe of such a zone may contain writes that were never
//! acknowledged.

pub mod assemble;
pub mod judge;
pub mod last_checksums;
pub mod lineage;
pub mod membership;
pub mod repair;
pub mod revive;
pub mod scan;
pub mod verdict;
pub mod worn;
