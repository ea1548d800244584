//! Zones of a running array: commands, writes, reads, settling, zone management.

pub mod dispatch;
pub mod drain;
pub mod flow;
pub mod manage;
pub mod read;
mod readable;
pub mod reader;
mod reread;
pub mod set;
pub mod settle;
pub mod write;
