//! Control of arrays: names as users type them, and requests to the daemon that runs an array.

pub mod client;
pub mod name;
pub mod pool;
pub mod protocol;
pub mod qos;
pub mod tenants;
