//! Device adapters: each is a [`crate::device::ZonedDevice`] over another one, which it changes in one respect, and
//! depends only on that interface.

pub mod aggregate;
pub mod append;
pub mod mirror;
pub mod overlay;
pub mod sequence;
pub mod spare;
