//! The journal: a log on every member, with state of the array and contents that concern this member alone.

pub mod label;
pub mod log;
pub mod logged;
pub mod read;
