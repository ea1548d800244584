//! The emulated ZNS SSD, its timing, the simulator, and what is asked of every drive.
#![forbid(unsafe_code)]

pub mod clock;
pub mod conformance;
pub mod mutants;
pub mod rng;
pub mod simulator;
pub mod ssd;
pub mod timing;
