//! Tests of emulated drives through their public interface.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod power;
mod timed;
