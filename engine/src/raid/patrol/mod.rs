//! Restoring redundancy: fills a new drive, a lost part of a zone, the replacement of a drive, and holes.

pub mod attach;
pub mod duty;
pub mod holes;
pub mod rebuild;
pub mod replace;
pub mod target;
