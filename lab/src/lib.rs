//! Experiments with emulated drives that take as long as real ones, in virtual time.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod load;
