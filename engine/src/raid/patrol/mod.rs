//! Filling what is lacking: a drive that is new, one that lost a zone, one that replaces another.

pub mod attach;
pub mod duty;
pub mod holes;
pub mod rebuild;
pub mod replace;
pub mod target;
