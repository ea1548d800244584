//! Zones at work: what is written to them, read from them, and done with them.

pub mod dispatch;
pub mod flow;
pub mod manage;
pub mod read;
pub mod reader;
mod reread;
pub mod set;
pub mod settle;
pub mod stillness;
pub mod write;
