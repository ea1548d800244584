//! Where sockets of daemons are, and what lasts until the next boot.

use crate::output::uuid;
use std::path::{Path, PathBuf};

/// Environment variable with the directory of sockets and of what lasts until the next boot.
pub const RUN_VARIABLE: &str = "ZONERAID_RUN_DIR";

/// Where sockets are, and what lasts until the next boot.
pub fn directory() -> PathBuf {
    let set = std::env::var_os(RUN_VARIABLE).filter(|directory| !directory.is_empty());
    set.map_or(PathBuf::from("/run/zoneraid"), PathBuf::from)
}

/// Where the daemon of an array keeps what the next one needs if it dies.
pub fn tails_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.tails", uuid(array)))
}

/// Where it keeps that of a namespace.
pub fn namespace_tails_path(directory: &Path, array: &[u8; 16], number: u32) -> PathBuf {
    directory.join(format!("{}-{number}.tails", uuid(array)))
}

/// Where the daemon of an array answers.
pub fn socket_path(directory: &Path, array: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.sock", uuid(array)))
}
