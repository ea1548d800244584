//! Library of the `zoneraid` binary and its benchmark.
//!
//! [`drive`] opens drives, [`members`] finds the arrays on them, [`daemon`] runs an array and [`client`] sends it
//! requests, [`cli`] is the command line, [`demo`] the scenario of `make demo`, and [`bench`](mod@bench) measures the
//! cost of the engine. Permitted imports between modules are listed in `tests/tidy.rs`.
#![deny(unsafe_code)]

pub mod ack_log;
pub mod alloc;
mod arena;
pub mod bench;
mod bytes;
pub mod cli;
pub mod client;
mod clock;
mod crash;
pub mod daemon;
pub mod demo;
pub mod drive;
pub mod export;
mod interrupt;
pub mod label;
pub mod machine;
pub mod map;
pub mod members;
pub mod name;
pub mod nbd;
pub mod output;
pub mod protocol;
pub mod reactor;
pub mod repair;
pub mod report;
pub mod ring;
pub mod run;
pub mod size;
pub mod tenants;
pub mod traffic;
pub mod ublk;
pub mod users;
pub mod workers;
