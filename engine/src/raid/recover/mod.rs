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
//!   told. Of N members, p of which may be lost, these are N − p at least, and so many are in any assembly: so
//!   at least N − 2p of an assembly say that it is out, and at least one, but for two lost of four. Whoever says
//!   otherwise, with a newer event, is out by what that one says ([`effective`]), or has not been told yet and
//!   is older.
//! - Two members of four that are lost are enough to go on with, as the other two are: both halves may, if
//!   neither ever sees the other, and when they meet the one with the newer event is the array.
//! - If the power goes in between, some say that it is out and others do not. Whichever counts, nothing has
//!   been done without it, nor without anybody else.
//!
//! *Copies.* Which of them continue each other is argued at the head of [`lineage`].
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

pub mod assemble;
pub mod judge;
pub mod lineage;
pub mod membership;
pub mod repair;
pub mod revive;
pub mod scan;
pub mod verdict;
