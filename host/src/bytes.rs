//! A volume by bytes, as NBD clients and block devices with small sectors see it: what does not cover a block whole is
//! read, changed and written.
//!
//! Requests to the same blocks at the same time are nobody's business but their sender's, with one exception:
//! nobody may know that a block is read and written for the sake of a part of it. So whoever does that waits for
//! others that write there, and they for him.

use engine::{
    buf::{BLOCK, Buf, BufMut, BufPool, Source},
    device::DeviceError,
    runtime::Gate,
    volume::{SectorSize, Volume},
};
use std::{cell::RefCell, ops::Range};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// A volume by bytes.
pub struct Bytes {
    volume: Volume,
    /// Nobody asks for parts of blocks.
    whole: bool,
    pool: RefCell<BufPool>,
    /// Blocks that are being written, and whether nobody else may write there.
    writing: RefCell<Vec<(Range<u64>, bool)>>,
    written: Gate,
}

/// Blocks that are being written.
struct Pass<'b>(Option<&'b Bytes>, Range<u64>, bool);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let Some(bytes) = self.0 else { return };
        let mut writing = bytes.writing.borrow_mut();
        let own = writing.iter().position(|(blocks, alone)| (blocks, alone) == (&self.1, &self.2));
        own.map(|own| writing.swap_remove(own));
        drop(writing);
        bytes.written.open();
    }
}

/// The blocks that bytes lie in.
fn covering(at: u64, bytes: u64) -> Range<u64> {
    at / BLOCK_BYTES..(at + bytes).div_ceil(BLOCK_BYTES)
}

impl Bytes {
    pub fn of(volume: Volume, buffers: Source) -> Bytes {
        Bytes {
            volume,
            whole: false,
            pool: RefCell::new(BufPool::fed_by(buffers)),
            writing: RefCell::default(),
            written: Gate::default(),
        }
    }

    /// The same for whoever asks for whole sectors of the volume and nothing else: where these are blocks nobody is in
    /// anybody's way.
    pub fn of_sectors(volume: Volume, buffers: Source) -> Bytes {
        Bytes { whole: volume.sector() == SectorSize::B4096, ..Bytes::of(volume, buffers) }
    }

    /// Whether there are these bytes.
    pub fn holds(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.volume.blocks().saturating_mul(BLOCK_BYTES))
    }

    /// A buffer of the blocks that these bytes lie in, and where in it they are.
    pub fn buffer(&self, at: u64, bytes: u64) -> (BufMut, Range<usize>) {
        let blocks = covering(at, bytes);
        let from = (at % BLOCK_BYTES) as usize;
        (self.pool.borrow_mut().take(blocks.end - blocks.start), from..from + bytes as usize)
    }

    /// Takes a buffer back.
    pub fn give(&self, buffer: Buf) {
        self.pool.borrow_mut().give(buffer);
    }

    /// Reads bytes; gives the blocks that they are in, and where.
    pub async fn read(&self, at: u64, bytes: u64) -> Result<(Buf, Range<usize>), DeviceError> {
        let (buffer, inside) = self.buffer(at, bytes);
        let data = self.volume.read(at / BLOCK_BYTES, buffer.freeze()).await?;
        Ok((data, inside))
    }

    /// Writes the bytes at `at` that are in `data`, a [`Bytes::buffer`].
    pub async fn write(&self, at: u64, bytes: u64, mut data: BufMut, fua: bool) -> Result<(), DeviceError> {
        let (blocks, end) = (covering(at, bytes), at + bytes);
        let (head, tail) = ((at % BLOCK_BYTES) as usize, (end % BLOCK_BYTES) as usize);
        let _pass = self.enter(blocks.clone(), head + tail > 0).await;
        if head > 0 {
            let before = self.volume.read(blocks.start, Buf::zeroed(BLOCK)).await?;
            data[..head].copy_from_slice(&before[..head]);
        }
        if tail > 0 {
            let before = self.volume.read(blocks.end - 1, Buf::zeroed(BLOCK)).await?;
            let from = data.len() - BLOCK + tail;
            data[from..].copy_from_slice(&before[tail..]);
        }
        let data = data.freeze();
        self.volume.write(blocks.start, &data, fua).await?;
        self.give(data);
        Ok(())
    }

    /// Makes bytes zeros.
    pub async fn zero(&self, at: u64, bytes: u64) -> Result<(), DeviceError> {
        let end = at + bytes;
        let first = at.next_multiple_of(BLOCK_BYTES).min(end);
        let last = (end / BLOCK_BYTES * BLOCK_BYTES).max(first);
        self.discard(first..last).await?;
        for part in [at..first, last..end] {
            if !part.is_empty() {
                let bytes = part.end - part.start;
                let (mut data, inside) = self.buffer(part.start, bytes);
                data[inside].fill(0);
                self.write(part.start, bytes, data, false).await?;
            }
        }
        Ok(())
    }

    /// Gives up the blocks that lie in these bytes whole.
    pub async fn trim(&self, at: u64, bytes: u64) -> Result<(), DeviceError> {
        let end = (at + bytes) / BLOCK_BYTES * BLOCK_BYTES;
        self.discard(at.next_multiple_of(BLOCK_BYTES)..end).await
    }

    async fn discard(&self, bytes: Range<u64>) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let blocks = bytes.start / BLOCK_BYTES..bytes.end / BLOCK_BYTES;
        let _pass = self.enter(blocks.clone(), false).await;
        self.volume.discard(blocks.start, blocks.end - blocks.start).await
    }

    pub async fn flush(&self) -> Result<(), DeviceError> {
        self.volume.flush().await
    }

    /// How many bytes from `at` on, `most` at most, take room or do not.
    pub async fn extent(&self, at: u64, most: u64) -> Result<(u64, bool), DeviceError> {
        let blocks = covering(at, most);
        let (mapped, alike) = self.volume.extent(blocks.start, blocks.end - blocks.start).await?;
        Ok((((blocks.start + alike) * BLOCK_BYTES - at).min(most), mapped))
    }

    /// Waits until these blocks may be written; `alone` if nobody else may meanwhile.
    async fn enter(&self, blocks: Range<u64>, alone: bool) -> Pass<'_> {
        if self.whole {
            return Pass(None, blocks, alone);
        }
        let in_the_way = |(other, others): &(Range<u64>, bool)| {
            (alone || *others) && other.start < blocks.end && blocks.start < other.end
        };
        while self.writing.borrow().iter().any(in_the_way) {
            self.written.wait().await;
        }
        self.writing.borrow_mut().push((blocks.clone(), alone));
        Pass(Some(self), blocks, alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{
        runtime::Runtime,
        volume::{Behaviour, CreateOptions},
    };
    use sim::{
        rng::Rng,
        ssd::{EmulatedDrive, Model},
    };
    use std::rc::Rc;

    fn made(runtime: &Runtime) -> Bytes {
        let drive = Rc::new(EmulatedDrive::in_memory(&Model::zn540().scaled(24, 1024).geometry));
        let made = Volume::create(
            drive.clone(),
            CreateOptions { uuid: [1; 16], blocks: Some(500), ..CreateOptions::default() },
        );
        runtime.block_on(made, || false).unwrap().unwrap();
        let volume = Volume::open(runtime, drive, Behaviour::default());
        let volume = runtime.block_on(volume, || false).unwrap().unwrap();
        Bytes::of(volume, Rc::new(|_| None))
    }

    #[test]
    fn bytes_are_those_of_a_flat_memory() {
        let runtime = Runtime::new();
        let bytes = made(&runtime);
        let size = 500 * BLOCK_BYTES;
        let (mut flat, mut rng) = (vec![0_u8; size as usize], Rng::new(7));
        for round in 0..2000 {
            let at = rng.below(size);
            let count = 1 + rng.below((size - at).min(3 * BLOCK_BYTES));
            let range = at as usize..(at + count) as usize;
            let value = round as u8;
            let work = async {
                match round % 4 {
                    0 => bytes.zero(at, count).await.map(|()| flat[range.clone()].fill(0)),
                    1 => {
                        bytes.trim(at, count).await?;
                        let first = at.next_multiple_of(BLOCK_BYTES) as usize;
                        let end = ((at + count) / BLOCK_BYTES * BLOCK_BYTES) as usize;
                        flat[first.min(end)..end].fill(0);
                        Ok(())
                    }
                    2 => {
                        let (mut data, inside) = bytes.buffer(at, count);
                        data[inside].fill(value);
                        bytes.write(at, count, data, false).await.map(|()| flat[range.clone()].fill(value))
                    }
                    _ => {
                        let (data, inside) = bytes.read(at, count).await?;
                        assert!(data[inside] == flat[range.clone()], "round {round}");
                        let (alike, mapped) = bytes.extent(at, count).await?;
                        assert!(0 < alike && alike <= count);
                        let zeros = flat[range.start..][..alike as usize].iter().all(|byte| *byte == 0);
                        assert!(mapped || zeros, "round {round}");
                        Ok::<(), DeviceError>(())
                    }
                }
            };
            runtime.block_on(work, || false).unwrap().unwrap();
        }
        assert!(bytes.writing.borrow().is_empty());
        runtime.clear();
    }

    #[test]
    fn parts_of_a_block_that_are_written_at_once_are_all_there() {
        for seed in 0..50 {
            let runtime = Runtime::seeded(seed);
            let bytes = Rc::new(made(&runtime));
            for part in 0..8_u64 {
                let bytes = bytes.clone();
                runtime.spawn(async move {
                    let (mut data, inside) = bytes.buffer(part * 512, 512);
                    data[inside].fill(part as u8 + 1);
                    bytes.write(part * 512, 512, data, false).await.unwrap();
                });
            }
            runtime.run();
            let (data, _) = runtime.block_on(bytes.read(0, 4096), || false).unwrap().unwrap();
            let parts: Vec<u8> = data.chunks(512).map(|part| part[0]).collect();
            assert_eq!(parts, [1, 2, 3, 4, 5, 6, 7, 8], "seed {seed}");
            runtime.clear();
        }
    }
}
