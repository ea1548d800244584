//! Service of volumes and zoned devices to the kernel and to NBD clients, with the evidence of acknowledged writes.

pub mod ack_log;
mod bytes;
pub mod export;
pub mod map;
pub mod nbd;
pub mod ublk;
