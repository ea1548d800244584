//! The seeded crash simulator: tests the promises of the array, and reports the seeds that break them.
//!
//! A seed decides the drives, the load, the order of all events, the faults and the moments of the power cuts
//! ([`scenario`]). A [`world`] plays it: the engine runs on a seeded executor, its commands are queued in [`wire`], and
//! after each recovery the [`oracle`] compares the state of the array with its promises. The same seed always gives the
//! same run.

mod common;
mod copies;
mod course;
pub mod coverage;
mod drives;
pub mod exhaustive;
mod fork;
mod health;
mod hearsay;
mod heir;
mod hidden;
mod landed;
pub mod layer;
pub mod layered;
mod life;
mod load;
pub mod namespaces;
mod ops;
pub mod oracle;
mod owner;
mod repair;
pub mod runner;
pub mod scenario;
mod schedule;
mod scripted;
mod shelf;
pub mod silent;
pub mod stamp;
pub mod subject;
mod suspects;
pub mod table1;
mod two_faults;
mod two_hosts;
pub mod volume;
mod wear;
pub mod wire;
pub mod world;
