//! Arithmetic on blocks, independent of their layout.
//!
//! A *column* is the set of blocks at the same offset of all chunks of a stripe. Its *symbols* are data blocks, and
//! sums of them that are stored as parity. [`xor`] and [`pq`] compute the sums, over [`gf256`] where there are two
//! parities; [`decode`] finds the stored symbols from which a missing one is computed.

pub mod decode;
pub mod gf256;
pub mod pq;
mod simd;
pub mod xor;

pub use simd::instructions;
