//! Restores redundancy: attaches drives, rebuilds lost parts of zones, replaces working drives, and fills holes.

pub mod attach;
pub mod background;
pub mod bad_blocks;
pub mod rebuild;
pub mod replace;
pub mod target;
