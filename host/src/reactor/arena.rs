//! One region of memory for I/O, registered with the kernel once (registered buffers), so that the kernel need not look
//! up its pages for every command.
#![allow(unsafe_code)]

use engine::buf::{BLOCK, Buf, Memory};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::{
    cell::{Cell, RefCell},
    io,
    ptr::NonNull,
    rc::Rc,
};

/// Bytes of the region, pinned as long as the ring exists: enough for many small requests, which benefit most. Further
/// buffers are allocated elsewhere and work as well.
const SIZE: usize = 16 << 20;

/// A region of memory from which buffers are lent, in powers of two of blocks.
pub struct Arena {
    start: NonNull<u8>,
    /// Offset of the part that has never been lent.
    fresh: Cell<usize>,
    /// Offsets of returned buffers, by size.
    free: RefCell<[Vec<usize>; 16]>,
}

/// The part of an arena that a buffer borrows.
struct LentBuffer {
    arena: Rc<Arena>,
    offset: usize,
    class: usize,
}

impl Arena {
    pub fn new() -> io::Result<Rc<Arena>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; no memory of ours is replaced.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), SIZE, protection, MapFlags::PRIVATE)? };
        let start = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Rc::new(Arena { start, fresh: Cell::new(0), free: RefCell::default() }))
    }

    /// The region as an iovec, for its registration.
    pub fn region(&self) -> libc::iovec {
        libc::iovec { iov_base: self.start.as_ptr().cast(), iov_len: SIZE }
    }

    /// Whether `length` bytes at `address` are entirely in the arena.
    pub fn contains(&self, address: u64, length: u32) -> bool {
        let offset = address.wrapping_sub(self.start.as_ptr() as u64);
        offset < SIZE as u64 && SIZE as u64 - offset >= length as u64
    }

    /// Lends `length` bytes, a power of two of blocks; `None` if the region is used up.
    pub fn lend(self: &Rc<Arena>, length: usize) -> Option<Buf> {
        let blocks = length / BLOCK;
        if !blocks.is_power_of_two() {
            return None;
        }
        let class = blocks.trailing_zeros() as usize;
        let back = self.free.borrow_mut().get_mut(class)?.pop();
        let offset = back.or_else(|| {
            let offset = self.fresh.get();
            let room = SIZE - offset >= BLOCK << class;
            room.then(|| self.fresh.replace(offset + (BLOCK << class)))
        })?;
        Some(Buf::lent(Box::new(LentBuffer { arena: self.clone(), offset, class })))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: every buffer holds a reference to the arena, so none exists any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), SIZE) };
        debug_assert!(unmapped.is_ok());
    }
}

impl Memory for LentBuffer {
    fn bytes(&self) -> &[u8] {
        // SAFETY: inside of the mapping, which lives as long as `self.arena`; it was zeroed by the kernel. No other
        // buffer has this part: it is returned only when `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.arena.start.add(self.offset).as_ptr(), BLOCK << self.class) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.arena.start.add(self.offset).as_ptr(), BLOCK << self.class)
        }
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        if let Some(free) = self.arena.free.borrow_mut().get_mut(self.class) {
            free.push(self.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_buffers_do_not_overlap_and_are_reused() {
        let arena = Arena::new().unwrap();
        let (mut one, mut two) = (arena.lend(2 * BLOCK).unwrap(), arena.lend(BLOCK).unwrap());
        one.as_mut().unwrap().fill(1);
        two.as_mut().unwrap().fill(2);
        assert!(one.iter().all(|byte| *byte == 1));
        let address = one.as_ptr() as u64;
        assert!(address.is_multiple_of(BLOCK as u64) && arena.contains(address, 3 * BLOCK as u32));
        assert!(!arena.contains(address, SIZE as u32 + 1) && !arena.contains(address - 1, 1));
        drop(one);
        assert_eq!(arena.lend(2 * BLOCK).unwrap().as_ptr() as u64, address);
        assert!(arena.lend(3 * BLOCK).is_none());
    }

    #[test]
    fn arena_can_be_used_up() {
        let arena = Arena::new().unwrap();
        let class = BLOCK << 10;
        let all: Vec<Buf> = std::iter::from_fn(|| arena.lend(class)).collect();
        assert_eq!(all.len(), SIZE / class);
        let last = all.last().unwrap().as_ptr() as u64;
        assert!(arena.contains(last, class as u32) && !arena.contains(last, class as u32 + 1));
    }
}
