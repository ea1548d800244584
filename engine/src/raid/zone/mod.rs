//! Zones at work: what is written to them, read from them, and done with them.

pub mod dispatch;
pub mod manage;
pub mod read;
pub mod write;
