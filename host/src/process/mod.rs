//! Services that every part of the process uses: its output, its identity, and its files in the run directory.

pub(crate) mod clock;
pub(crate) mod crash;
pub mod machine;
pub mod output;
pub mod run;
pub mod size;
