//! Emulated zoned drives: ZNS SSDs with and without a ZRWA, and host-managed SMR disks, in memory or in image files.
//!
//! A drive with a ZRWA, a fault and a power cut:
//!
//! ```
//! use emu::{
//!     rng::Rng,
//!     ssd::{Cut, Fault, Model, Ssd},
//! };
//! use engine::{
//!     buf::{BLOCK, Buf},
//!     device::{Command, Zones},
//!     zone::{Lba, ZoneIndex, ZoneState},
//! };
//!
//! let model = Model::zn540().scaled(6, 2048);
//! let mut drive = Ssd::in_memory(&model.geometry);
//!
//! // In a ZRWA a block may be written again, and blocks in any order.
//! let zones = Zones::One(ZoneIndex(0));
//! drive.execute(Command::Open { zones, zrwa: true }).result?;
//! for (block, byte) in [(1, 1), (0, 2), (1, 3)] {
//!     drive.execute(Command::write(Lba(block), Buf::copy_of(&[byte; BLOCK]), false)).result?;
//! }
//!
//! // One read fails, then the power is cut while a write is in flight. The ZRWA is nonvolatile in this cut.
//! drive.faults().after(0, Fault::Unreadable(Lba(1)));
//! assert!(drive.execute(Command::read(Lba(1), Buf::zeroed(BLOCK))).result.is_err());
//! drive.faults().mend();
//! let in_flight = [Command::write(Lba(2), Buf::zeroed(4 * BLOCK), false)];
//! drive.power_cut(&in_flight, &mut Rng::new(7), Cut::default())?;
//!
//! let read = drive.execute(Command::read(Lba(1), Buf::zeroed(BLOCK)));
//! assert_eq!(read.data[0], 3);
//! assert_eq!(drive.zones().info(ZoneIndex(0)).state, ZoneState::Closed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`ssd`] has the drives: [`ssd::Ssd`] executes one command after the other, [`ssd::EmulatedDrive`] is a
//! [`engine::device::ZonedDevice`] around it, [`ssd::TimedDrive`] one with the queues and latencies of a real drive in
//! virtual time ([`clock`], [`timing`]). [`conformance`] checks any zoned device against the rules of the specification.
#![forbid(unsafe_code)]

pub mod clock;
pub mod conformance;
pub mod rng;
pub mod ssd;
pub mod timing;
