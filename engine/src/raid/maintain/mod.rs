//! Restores redundancy: attaches drives, rebuilds lost parts of zones, replaces working drives, and fills bad blocks.

pub mod attach;
pub mod background;
mod copy;
pub mod fill;
pub mod job;
mod part;
pub mod rebuild;
pub mod replace;
pub mod target;
