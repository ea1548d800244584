//! Arithmetic on blocks, without any knowledge of where they lie.

pub mod xor;
