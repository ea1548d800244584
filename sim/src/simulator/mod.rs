//! The seeded crash simulator: proves what the array promises, or gives the seed that breaks it.
//!
//! A seed decides the drives, the load, the order of everything, the faults and the moments of the
//! power cuts ([`scenario`]). A [`world`] plays it: the engine runs on a seeded executor, its
//! commands wait on the [`wire`], and after each power cut and recovery the [`oracle`] compares
//! what the array shows with what it promised. The same seed always gives the same run.

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
