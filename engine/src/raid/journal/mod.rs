//! The journal: a metadata log on each member, with the state of the array and with blocks and tails of this member.

pub mod label;
pub mod log;
pub mod logged;
pub mod read;
