//! Zones of a running array: commands, writes, reads, settling, zone management.

pub mod bad_block_records;
pub mod cells;
pub mod checksum;
pub mod consistency;
pub mod dispatch;
pub mod drain;
pub mod exclusion;
pub mod flow;
pub mod load;
pub mod manage;
pub mod note;
pub mod read;
pub mod readable;
pub mod reader;
pub mod relocated;
pub mod reread;
pub mod set;
pub mod settle;
pub mod spare;
pub mod stripe;
pub mod write;
