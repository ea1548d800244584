//! Arithmetic on blocks, without any knowledge of where they lie.
//!
//! A *column* is what the chunks of a stripe hold at one offset: *data symbols*, and sums of them that are
//! stored as parity. [`xor`] and [`pq`] compute the sums, over [`gf256`] where there are two parities;
//! [`decode`] tells which of the stored symbols give one that is lacking.

pub mod decode;
pub mod gf256;
pub mod pq;
pub mod xor;

use pulp::Arch;
use std::sync::LazyLock;

/// What the processor can do.
static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);
