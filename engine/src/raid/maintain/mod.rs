//! Restores redundancy: attaches drives, rebuilds lost parts of zones, replaces working drives, repairs unreadable
//! blocks, and fills bad blocks.

pub mod attach;
pub mod background;
mod copy;
pub mod fill;
pub mod job;
mod part;
pub mod rebuild;
pub mod repair;
pub mod replace;
pub mod scrub;
pub mod target;
