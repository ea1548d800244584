//! Buffers: page-aligned bytes that commands own while they are in flight.
//!
//! A [`Buf`] is a range of a reference-counted, page-aligned allocation. Cloning and slicing never copy. A shared
//! buffer is read-only, so the data of a write in flight cannot change. A [`BufMut`] is the only reference to its
//! allocation: it can be written, and becomes a [`Buf`] afterwards.

use std::{ops::Range, rc::Rc};

/// Bytes in a logical block. On drives with blocks of 512 bytes, eight of these.
pub const BLOCK: usize = 4096;

/// Memory for buffers that is owned by the caller: page-aligned, whole pages.
pub trait Memory {
    /// All bytes.
    fn bytes(&self) -> &[u8];
    /// All bytes, mutable.
    fn bytes_mut(&mut self) -> &mut [u8];
}

enum Store {
    /// Bytes, and the offset of the first page-aligned byte.
    Own(Vec<u8>, usize),
    Lent(Box<dyn Memory>),
}

impl Store {
    /// All bytes from the first page-aligned one on.
    fn bytes(&self) -> &[u8] {
        match self {
            Store::Own(bytes, pad) => &bytes[*pad..],
            Store::Lent(memory) => memory.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Store::Own(bytes, pad) => &mut bytes[*pad..],
            Store::Lent(memory) => memory.bytes_mut(),
        }
    }

    /// Length of a buffer of the whole store.
    fn len(&self) -> usize {
        match self {
            Store::Own(bytes, _) => bytes.len() + 1 - BLOCK,
            Store::Lent(memory) => memory.bytes().len(),
        }
    }
}

/// A page-aligned, reference-counted range of bytes; empty by default.
#[derive(Clone, Default)]
pub struct Buf {
    store: Option<Rc<Store>>,
    start: u32,
    len: u32,
}

impl Buf {
    /// A new buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Buf {
        if len == 0 {
            return Buf::default();
        }
        let bytes = vec![0; len + BLOCK - 1];
        let pad = (bytes.as_ptr() as usize).wrapping_neg() % BLOCK;
        Buf { store: Some(Rc::new(Store::Own(bytes, pad))), start: 0, len: len as u32 }
    }

    /// A buffer of all of `memory`, with its present contents. The memory is dropped with the last reference.
    pub fn lent(memory: Box<dyn Memory>) -> Buf {
        let len = memory.bytes().len() as u32;
        Buf { store: Some(Rc::new(Store::Lent(memory))), start: 0, len }
    }

    /// A new buffer with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        BufMut::copy_of(bytes).freeze()
    }

    /// The same bytes, mutable: a copy of them if the buffer has other references.
    pub fn into_mut(self) -> BufMut {
        if self.is_unique() { BufMut(self) } else { BufMut::copy_of(&self) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whole blocks in the buffer.
    pub fn blocks(&self) -> u64 {
        (self.len() / BLOCK) as u64
    }

    /// The same bytes, narrowed to `range` of this buffer.
    ///
    /// # Panics
    /// When `range` does not lie inside the buffer.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len(), "slice {range:?} of {} bytes", self.len);
        Buf {
            store: self.store.clone(),
            start: self.start + range.start as u32,
            len: (range.end - range.start) as u32,
        }
    }

    /// As [`Buf::slice`], in blocks.
    pub fn slice_blocks(&self, range: Range<u64>) -> Buf {
        self.slice(range.start as usize * BLOCK..range.end as usize * BLOCK)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.store {
            Some(store) => &store.bytes()[self.start as usize..][..self.len as usize],
            None => &[],
        }
    }

    /// The bytes, mutable; `None` while another reference to the allocation exists.
    pub fn as_mut(&mut self) -> Option<&mut [u8]> {
        let (start, len) = (self.start as usize, self.len as usize);
        match &mut self.store {
            Some(store) => Rc::get_mut(store).map(|store| &mut store.bytes_mut()[start..][..len]),
            None => Some(&mut []),
        }
    }

    /// Whether this is the only reference, so that [`Buf::as_mut`] would give the bytes.
    pub fn is_unique(&self) -> bool {
        self.store.as_ref().is_none_or(|store| Rc::strong_count(store) == 1)
    }

    /// The first `blocks` blocks.
    fn narrowed(mut self, blocks: u64) -> Buf {
        self.len = (blocks as usize * BLOCK) as u32;
        self
    }

    /// All of the allocation.
    fn whole(mut self) -> Buf {
        if let Some(store) = &self.store {
            self.start = 0;
            self.len = store.len() as u32;
        }
        self
    }
}

impl std::ops::Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// A buffer that is the only reference to its allocation.
#[derive(Debug, Default)]
pub struct BufMut(Buf);

impl BufMut {
    /// A new buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> BufMut {
        BufMut(Buf::zeroed(len))
    }

    /// A new buffer with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> BufMut {
        let mut buf = BufMut::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// The bytes of block `at`.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn block_mut(&mut self, at: u64) -> &mut [u8] {
        &mut self[at as usize * BLOCK..][..BLOCK]
    }

    /// Whole blocks in the buffer.
    pub fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    /// The buffer, read-only from now on.
    pub fn freeze(self) -> Buf {
        self.0
    }
}

impl std::ops::Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl std::ops::DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().unwrap_or_else(|| unreachable!("the buffer is not shared"))
    }
}

/// Pool of buffers for reuse, by power-of-two size. Bounded: a full class drops buffers.
#[derive(Default)]
pub struct BufPool {
    classes: [Vec<Buf>; 16],
    source: Option<BufSource>,
}

/// Lends a buffer of that many bytes, a power of two of blocks; `None` if it has none left.
pub type BufSource = Rc<dyn Fn(usize) -> Option<Buf>>;

impl BufPool {
    const KEPT_PER_CLASS: usize = 256;

    /// A pool that asks `source` for new buffers first.
    pub fn fed_by(source: BufSource) -> BufPool {
        BufPool { source: Some(source), ..BufPool::default() }
    }

    fn class(blocks: u64) -> usize {
        blocks.max(1).next_power_of_two().trailing_zeros() as usize
    }

    /// A buffer of `blocks` blocks without other references. Its contents are undefined.
    pub fn take(&mut self, blocks: u64) -> BufMut {
        let class = Self::class(blocks);
        let whole = self.classes.get_mut(class).and_then(Vec::pop);
        // The source may have kept a reference to the buffer.
        let lent = || self.source.as_ref()?(BLOCK << class).filter(Buf::is_unique);
        let whole = whole.or_else(lent);
        let whole = whole.unwrap_or_else(|| Buf::zeroed(BLOCK << class));
        BufMut(if whole.blocks() == blocks { whole } else { whole.narrowed(blocks) })
    }

    /// Takes a buffer back, if it is the last reference to it.
    pub fn give(&mut self, buf: Buf) {
        if !buf.is_empty() && buf.is_unique() {
            let whole = buf.whole();
            if let Some(class) = self.classes.get_mut(Self::class(whole.blocks()))
                && class.len() < Self::KEPT_PER_CLASS
                && whole.blocks().is_power_of_two()
            {
                class.push(whole);
            }
        }
    }
}

/// Whether all bytes of a block are equal, as in one that was never written: drives fill these with one byte value.
pub fn is_uniform(block: &[u8]) -> bool {
    // A comparison with itself, one byte further, is many times as fast as one byte by byte.
    block.split_first().is_none_or(|(_, rest)| *rest == block[..rest.len()])
}

/// Whether all bytes of a block are zero.
pub fn is_zero(block: &[u8]) -> bool {
    block.first().is_none_or(|first| *first == 0) && is_uniform(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buf_is_aligned_and_writable_only_when_unshared() {
        let mut buf = Buf::zeroed(3 * BLOCK);
        assert_eq!(buf.as_ptr() as usize % BLOCK, 0);
        buf.as_mut().unwrap()[BLOCK] = 7;
        let slice = buf.slice_blocks(1..2);
        assert_eq!(slice[0], 7);
        assert!(buf.as_mut().is_none());
        drop(slice);
        assert!(buf.as_mut().is_some());
    }

    #[test]
    fn buf_pool_returns_lent_memory_with_last_reference() {
        struct Lent(Vec<u8>, #[expect(dead_code)] Rc<()>);
        impl Memory for Lent {
            fn bytes(&self) -> &[u8] {
                &self.0
            }
            fn bytes_mut(&mut self) -> &mut [u8] {
                &mut self.0
            }
        }
        let out = Rc::new(());
        let lender = out.clone();
        let mut pool = BufPool::fed_by(Rc::new(move |len| {
            let free = Rc::strong_count(&lender) < 3;
            free.then(|| Buf::lent(Box::new(Lent(vec![7; len], lender.clone()))))
        }));
        let (mut lent, own) = (pool.take(3), pool.take(1));
        assert_eq!((lent.len(), lent[0], own[0]), (3 * BLOCK, 7, 0));
        lent[0] = 8;
        let address = lent.as_ptr();
        pool.give(lent.freeze());
        let again = pool.take(4).freeze();
        assert_eq!((again.as_ptr(), again[0], again.len()), (address, 8, 4 * BLOCK));
        let slice = again.slice_blocks(1..2);
        drop((again, own, pool));
        assert_eq!(Rc::strong_count(&out), 2);
        drop(slice);
        assert_eq!(Rc::strong_count(&out), 1);
    }

    #[test]
    fn buf_pool_reuses_only_unshared_buffers() {
        let mut pool = BufPool::default();
        let a = pool.take(3).freeze();
        assert_eq!(a.len(), 3 * BLOCK);
        let address = a.as_ptr();
        let shared = a.clone();
        pool.give(a);
        assert_ne!(pool.take(3).as_ptr(), address);
        pool.give(shared);
        assert_eq!(pool.take(4).as_ptr(), address);
    }

    #[test]
    fn buf_is_uniform_or_zero_by_all_bytes() {
        let of = |first: u8, last: u8| [vec![first], vec![7; BLOCK - 2], vec![last]].concat();
        assert_eq!([of(7, 7), of(7, 8), of(6, 7)].map(|block| is_uniform(&block)), [true, false, false]);
        assert!(!is_zero(&of(7, 7)) && is_zero(&[0; BLOCK]) && !is_zero(&[0, 0, 1]) && !is_zero(&[1, 0, 0]));
        assert!([&[][..], &[5]].iter().all(|short| is_uniform(short)) && is_zero(&[]) && !is_zero(&[5]));
    }
}
