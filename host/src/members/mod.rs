//! Finds drives, reads their labels, and assembles the array that a name refers to.
//!
//! Superblocks determine which drives belong together; file names do not. The members of an array are looked for in one
//! directory, and members that are not in it are missing. The drives of the machine are those in `/dev`.
//!
//! A search only reads: no drive is locked or written, even if it is in use. The members of the array are claimed
//! afterwards, if it is to be used, and their superblocks are read again. Another process may have replaced a member
//! before that, so if one is not there the search is repeated. A drive that is in use and cannot be identified could be
//! the missing member, so nothing is assembled without it.
//!
//! An array that is only inspected may be changed by other processes, so the inspection is repeated until everything
//! that was read is unchanged ([`StableRead`](crate::drive::StableRead)), or until the caller's patience is exhausted;
//! then the result names the processes that use it.
//!
//! A name is looked up as a path, then as the name or UUID of a running array, then as that of an array in one of the
//! [`places`]. Arrays in different directories may have the same name: a name that could mean two arrays is an error.

mod discover;
mod erase;
mod open;
pub mod repair;
mod reports;
mod scan;
mod session;

pub use discover::{FoundArray, LookResult, StartTerms, assembled, find_running, listed};
pub use erase::EraseBar;
pub use open::{OpenDrive, PATIENCE_TO_LOOK, runner};
pub use scan::{DIR_VARIABLE, MACHINE, Scan, directory_of, places, refuse_scattered};
pub use session::{Session, explain, full};
