//! The seeded crash simulator: tests the promises of the array, and reports the seeds that break them.
//!
//! A seed decides the drives, the load, the order of all events, the faults and the moments of the power cuts
//! ([`scenario`]). A [`world`] plays it: the engine runs on a seeded executor, its commands are queued in
//! [`command_queue`], and after each recovery the [`oracle`] compares the state of the array with its promises. The
//! same seed always gives the same run.

mod accept;
mod append_places;
mod assembly;
pub mod command_queue;
mod common;
mod copies;
mod copy;
pub mod coverage;
mod create;
mod destroy;
mod drives;
mod ends;
mod event_log_check;
pub mod exhaustive;
mod fault_budget;
mod fork;
mod health;
mod hidden;
pub mod layer;
pub mod layered;
pub mod lifecycle;
mod load;
mod members;
mod misfortune;
pub mod namespaces;
mod ops;
pub mod oracle;
mod owner;
mod recover;
mod recovered;
mod repair;
mod replacement;
mod run_state;
pub mod runner;
pub mod scenario;
mod schedule;
mod scripted;
mod scrub;
pub mod silent;
mod spare_drives;
pub mod stamp;
mod step;
pub mod subject;
pub mod table1;
mod two_faults;
mod two_hosts;
pub mod volume;
mod wear;
pub mod world;
