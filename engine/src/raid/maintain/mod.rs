//! Restoring redundancy: fills a new drive, a lost part of a zone, the replacement of a drive, and holes.

pub mod attach;
pub mod background;
pub mod bad_blocks;
pub mod rebuild;
pub mod replace;
pub mod target;
