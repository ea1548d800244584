//! The journal: a log on every member, of what all have to know and of what belongs to this one.

pub mod label;
pub mod log;
pub mod logged;
pub mod read;
