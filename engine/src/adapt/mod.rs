//! Devices made of a device: each is a [`crate::device::ZonedDevice`] over another one, which it changes in one
//! respect and of which it knows nothing else.

pub mod aggregate;
pub mod append;
pub mod mirror;
pub mod overlay;
pub mod sequence;
pub mod spare;
