//! zoneraid's engine: the rules of zones, the on-media format and the RAID.
//!
//! Nothing in here touches an operating system, reads a clock or starts a thread. Drives are [`device::ZonedDevice`]s
//! handed in by the caller; waiting is done by futures on [`runtime::Runtime`]. To understand the system, read
//! [`zone`], [`device`], [`mod@array`] and then [`raid::policy::zrwa`].
//!
//! The rules of zones, which every drive keeps, and every array for its own zones:
//!
//! ```
//! use engine::{
//!     device::{Geometry, Status, Zrwa},
//!     table::ZoneTable,
//!     zone::{Lba, ZoneIndex},
//! };
//!
//! let mut zones = ZoneTable::new(&Geometry {
//!     zones: 4,
//!     zone_size_blocks: 64,
//!     zone_capacity_blocks: 48,
//!     max_open: 2,
//!     max_active: 3,
//!     zrwa: Some(Zrwa { size_blocks: 16, granularity_blocks: 4, max_zones: 2 }),
//!     oob_bytes: 0,
//!     max_transfer_blocks: 16,
//!     max_append_blocks: 0,
//!     volatile_cache: false,
//! });
//! // Without a ZRWA a zone is written at its write pointer and nowhere else.
//! zones.write(Lba(0), 3)?;
//! assert_eq!(zones.write(Lba(5), 1), Err(Status::ZoneInvalidWrite));
//! // With one, in any order from the write pointer on, and again, until the pointer is moved.
//! zones.open(ZoneIndex(1), true)?;
//! for block in [69, 64, 69] {
//!     zones.write(Lba(block), 1)?;
//! }
//! assert_eq!(zones.info(ZoneIndex(1)).wp_blocks, 0);
//! zones.flush_zrwa(Lba(67))?;
//! assert_eq!(zones.info(ZoneIndex(1)).wp_blocks, 4);
//! # Ok::<(), Status>(())
//! ```
//!
//! An array takes the same commands as a drive. `examples/embed.rs` has drives of its own, and an array of them; the
//! crates `emu` and `sim` have emulated drives to try it on.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(missing_docs))]

pub mod adapt;
pub mod array;
pub mod buf;
pub mod code;
mod deferred;
pub mod device;
pub mod evidence;
pub mod format;
pub mod frame;
pub mod owner;
pub mod qos;
pub mod raid;
pub mod runtime;
pub mod table;
pub mod volume;
pub mod vzone;
pub mod zone;
