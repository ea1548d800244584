//! zoneraid's engine: the rules of zones, the on-media format and the RAID.
//!
//! Nothing in here touches an operating system, reads a clock or starts a thread. Drives are
//! [`device::ZonedDevice`]s handed in by the caller; waiting is done by futures on
//! [`runtime::Runtime`]. A reader who opens [`zone`], [`device`], [`mod@array`] and then
//! [`raid::policy::zrwa`] has understood the system.
#![forbid(unsafe_code)]

pub mod adapt;
pub mod array;
pub mod buf;
pub mod code;
pub mod device;
pub mod format;
pub mod owner;
mod provisional;
pub mod raid;
pub mod runtime;
pub mod zone;
