//! Services that every part of the process uses: its output, its identity, and its files in the run directory.

pub(crate) mod clock;
pub(crate) mod crash;
pub mod machine;
pub(crate) mod memory_lock;
pub mod output;
pub(crate) mod proc_status;
pub mod run;
pub mod size;
