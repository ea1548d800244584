//! The emulated ZNS SSD.
//!
//! [`Ssd`] executes commands one after the other, without timing: the rules are those of [`engine::table::ZoneTable`],
//! the data is in a [`Media`]. Queues and latencies are added around it: [`TimedDrive`] has those of a real drive,
//! [`EmulatedDrive`] none.

mod ailments;
mod cache;
pub mod compress;
mod drive;
mod emulated;
mod execute;
mod fault;
mod hardware;
mod image;
mod layout;
mod manage;
mod media;
mod model;
mod power;
mod state;
mod strike;
mod timed;
mod traffic;

pub use ailments::{Ailment, AilmentFile, Ailments, LOOK_EVERY};
pub use drive::{EmulatedDrive, NullDrive, serial_of};
pub use emulated::Ssd;
pub use fault::{Fault, FaultPlan, Kind};
pub use image::{ImageError, ImageMedia, cause};
pub use media::{Media, MemoryMedia, NoMedia};
pub use model::Model;
pub use power::Cut;
pub use timed::TimedDrive;
pub use traffic::{Cause, Classifier, Counters, WrittenBlock};

#[cfg(test)]
mod tests;
