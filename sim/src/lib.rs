//! The emulated ZNS SSD and the simulator.
#![forbid(unsafe_code)]

pub mod rng;
pub mod simulator;
pub mod ssd;
