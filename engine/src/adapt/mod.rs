//! Device adapters: each is a [`crate::device::ZonedDevice`] on top of another one, of which it changes one property;
//! it depends only on that interface.

pub mod aggregate;
pub mod append;
pub mod checksum;
pub mod mirror;
pub mod overlay;
pub mod range;
pub mod sequence;
pub mod spare;
