//! Memory shared with the kernel or with a later process, as 64-bit words.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::{
    fs::File,
    io,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

/// A shared mapping of a file. Other processes that have the file mapped see every store, in order, also after this
/// process has died.
pub struct SharedMap {
    words: NonNull<AtomicU64>,
    count: usize,
    writable: bool,
}

impl SharedMap {
    /// Maps `count` words of `file` at `offset`, read-only.
    pub fn read_only(file: &File, offset: u64, count: usize) -> io::Result<SharedMap> {
        SharedMap::new(file, offset, count, false)
    }

    /// Maps the first `count` words of `file`, read-write.
    pub fn writable(file: &File, count: usize) -> io::Result<SharedMap> {
        SharedMap::new(file, 0, count, true)
    }

    fn new(file: &File, offset: u64, count: usize, writable: bool) -> io::Result<SharedMap> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice; no memory of ours is replaced.
        let address =
            unsafe { mmap(std::ptr::null_mut(), count * 8, protection, MapFlags::SHARED, file, offset)? };
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedMap { words, count, writable })
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The word at `index`; 0 beyond the end.
    pub fn load(&self, index: usize) -> u64 {
        if index >= self.count {
            return 0;
        }
        // SAFETY: inside of the mapping, which is page-aligned and lives as long as `self`. Other processes may store
        // to it at any time, which atomics permit.
        unsafe { self.words.add(index).as_ref() }.load(Ordering::Acquire)
    }

    /// Stores a word; does nothing beyond the end or if the mapping is read-only.
    pub fn store(&self, index: usize, value: u64) {
        if index < self.count && self.writable {
            // SAFETY: as in `load`, and the mapping may be written.
            unsafe { self.words.add(index).as_ref() }.store(value, Ordering::Release);
        }
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives a call of `load` or `store`.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), self.count * 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_map_store_is_visible_and_bounds_checked() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64).unwrap();
        let ours = SharedMap::writable(&file, 8).unwrap();
        let theirs = SharedMap::read_only(&file, 0, 8).unwrap();
        ours.store(3, 17);
        ours.store(8, 1);
        theirs.store(2, 1);
        assert_eq!((0..9).map(|i| theirs.load(i)).collect::<Vec<_>>(), [0, 0, 0, 17, 0, 0, 0, 0, 0]);
    }
}
