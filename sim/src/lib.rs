//! The emulated ZNS SSD, the simulator, and what is asked of every drive.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod rng;
pub mod simulator;
pub mod ssd;
