//! Power cycles of an NVMe drive, as its SMART log counts them.
//!
//! The log is read when the drive is opened and every few seconds after that, by a thread of its own: an admin command
//! may take a drive milliseconds, and the engine compares the count with every read. Linux has no counter of controller
//! resets. Commands that a reset cancels take the drive out of its array; a reset of an idle drive shows only in the
//! state of its zones, which the daemon compares ([`engine::array::Array::check_power`]).

use engine::device::LASTING_EPOCH;
use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::Builder,
    time::Duration,
};

/// Time between two reads of the log.
const READ_EVERY: Duration = Duration::from_secs(5);
/// The daemon locks all its memory, so the stack is small.
const STACK_BYTES: usize = 64 << 10;
/// No count has been read.
const UNKNOWN: u64 = u64::MAX;

/// Count of power cycles of a drive, kept up to date by a thread until this is dropped.
pub struct PowerCycles(Arc<SharedCycles>);

struct SharedCycles {
    cycles: AtomicU64,
    ended: Mutex<bool>,
    end: Condvar,
}

impl PowerCycles {
    /// Monitors the count that `read` returns; `None` from the first call means that the drive has none.
    pub fn watch(read: impl Fn() -> Option<u64> + Send + 'static) -> PowerCycles {
        let first = read();
        let (cycles, ended, end) =
            (AtomicU64::new(first.unwrap_or(UNKNOWN)), Mutex::default(), Condvar::new());
        let shared = Arc::new(SharedCycles { cycles, ended, end });
        if first.is_some() {
            let kept = shared.clone();
            let thread = Builder::new().name("power-cycles".into()).stack_size(STACK_BYTES);
            if thread.spawn(move || kept.run(read)).is_err() {
                // Without the thread the count would become outdated.
                shared.cycles.store(UNKNOWN, Ordering::Release);
            }
        }
        PowerCycles(shared)
    }

    /// A drive without a count.
    pub fn unknown() -> PowerCycles {
        PowerCycles::watch(|| None)
    }

    /// As [`engine::device::ZonedDevice::power_epoch`].
    pub fn epoch(&self) -> Option<u64> {
        Some(self.0.cycles.load(Ordering::Acquire)).filter(|cycles| *cycles != UNKNOWN)
    }
}

impl Drop for PowerCycles {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.end.notify_all();
    }
}

impl SharedCycles {
    fn run(&self, read: impl Fn() -> Option<u64>) {
        loop {
            let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.end.wait_timeout_while(ended, READ_EVERY, |ended| !*ended);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
            // A drive that does not answer keeps its last count.
            if let Some(cycles) = read() {
                self.cycles.store(cycles, Ordering::Release);
            }
        }
    }
}

/// The count of a SMART log page (NVM Express Base Specification, SMART / Health Information): the sum of power cycles
/// and unsafe shutdowns, each 16 bytes long, since some drives count one of them late.
pub fn parse(page: &[u8]) -> Option<u64> {
    let count = |at: usize| Some(u128::from_le_bytes(page.get(at..at + 16)?.try_into().ok()?) as u64);
    Some(count(112)?.wrapping_add(count(144)?) & LASTING_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smart_page_counts_cycles_and_unsafe_shutdowns() {
        let mut page = [0xff; 512];
        page[112..128].copy_from_slice(&300u128.to_le_bytes());
        page[144..160].copy_from_slice(&(7u128 | 1 << 64).to_le_bytes());
        assert_eq!(parse(&page), Some(307));
        assert_eq!(parse(&page[..159]), None);
    }

    #[test]
    fn power_epoch_is_first_reading_or_unknown() {
        assert_eq!(PowerCycles::watch(|| Some(5)).epoch(), Some(5));
        assert_eq!(PowerCycles::unknown().epoch(), None);
    }
}
