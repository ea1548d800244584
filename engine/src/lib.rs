//! zoneraid's engine: the rules of zones, the on-media format and the RAID.
//!
//! Nothing in here touches an operating system, reads a clock or starts a thread. Drives are
//! [`device::ZonedDevice`]s handed in by the caller; waiting is done by futures on
//! [`runtime::Runtime`]. A reader who opens [`zone`], [`device`], [`array`] and then
//! [`raid::zrwa`] has understood the system.
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod array;
pub mod buf;
pub mod device;
pub mod format;
pub mod mirror;
pub mod overlay;
pub mod owner;
mod provisional;
pub mod raid;
pub mod runtime;
pub mod sequence;
pub mod zone;
