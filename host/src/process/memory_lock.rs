//! Locks the memory of this process.

use super::proc_status::{has_bit, own_status};
use rustix::{
    mm::MlockAllFlags,
    process::{Resource, getrlimit},
};

/// Locks this process in memory: to page it in, the kernel might first have to write to the block device that it
/// serves. Without the privilege to do so the process runs unlocked, and may hang when memory is short.
pub fn lock_memory() {
    if !may_lock_all(getrlimit(Resource::Memlock).current, &own_status()) {
        return;
    }
    let _ = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
}

/// Number of the capability to lock memory without a limit.
const CAP_IPC_LOCK: u32 = 14;

/// Whether a process may lock all its present and future memory, by its limit and the text of /proc/PID/status. If it
/// did so with a limit, allocations beyond that would fail and end the process.
fn may_lock_all(limit: Option<u64>, status: &str) -> bool {
    limit.is_none() || has_bit(status, "CapEff:", CAP_IPC_LOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_locks_memory_only_without_limit() {
        let (root, user) =
            ("Name:\tzoneraid\nCapEff:\t000001ffffffffff\n", "Name:\tCapEff\nCapEff:\t0000000000000000\n");
        assert!(may_lock_all(None, user) && may_lock_all(Some(8 << 20), root));
        assert!(!may_lock_all(Some(8 << 20), user) && !may_lock_all(Some(8 << 20), ""));
        // All capabilities but CAP_IPC_LOCK.
        assert!(!may_lock_all(Some(8 << 20), "CapEff:\t000001ffffffbfff\n"));
    }
}
