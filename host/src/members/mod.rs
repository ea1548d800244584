//! Finds drives, reads their labels, and assembles the array that a name stands for.
//!
//! Superblocks are the truth: which drives belong together is read from them, never from file
//! names. A directory is searched for the members of an array, and members that are not in it
//! are missing. The drives of the machine are those in `/dev`.
//!
//! Searching is looking: no drive is locked or written, whoever uses it. Only the members of the array that was
//! found are claimed, if it is to be used, and then it is read once more what they are. Whoever had them may have
//! put another drive in the place of a member meanwhile, so where one is not there everything is looked at again.
//! A drive that somebody else changes just then and that cannot be told could be the missing member, so nothing is
//! assembled without it.
//!
//! An array that is only looked at may be changed by others, so it is looked at until all that was read of it is
//! still so ([`Witness`](crate::drive::Witness)), or for as long as somebody is ready to wait; then it is said
//! who changes it.
//!
//! What the user types is a path if there is one of that name, then the name or UUID of a running array, then
//! that of an array in one of the [`places`]. Anybody may put an array of any name in some directory: where
//! a word can mean two things it means neither, and that is an error.

mod erase;
mod found;
mod open;
mod scan;
mod seen;
mod session;

pub use erase::Erasing;
pub use found::{Found, Looked, Terms, assembled, find_running, listed};
pub use open::{OpenDrive, PATIENCE_TO_LOOK, runner};
pub use scan::{DIR_VARIABLE, MACHINE, Scan, directory_of, places, refuse_scattered};
pub use session::{Session, explain, full};
