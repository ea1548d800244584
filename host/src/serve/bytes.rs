//! Byte access to a volume, for NBD clients and block devices with small sectors: partly covered blocks are read,
//! modified and written.
//!
//! Requests that change data hold a [`RangeClaim`] on their blocks, so that overlapping ones are executed one after the
//! other. This keeps all parts of a block that are written at the same time; and the holder of a claim can check once,
//! right before the first block changes, whether the request is still valid (`nbd/mod.rs`).
//!
//! A request that finds no free space may wait for some ([`Bytes::wait_for_room`]), if the volume is configured so.
//! Meanwhile it holds no claim, so that requests that free space can proceed; afterwards it starts anew.
//!
//! Reads and writes may have to wait for limits of the volume, or for floors and latency targets of others
//! ([`Bytes::admit`]): before they have a claim, a buffer or a worker. Discards, flushes and queries never do.

use crate::{process::clock::now_us, reactor::ring::Ring};
use engine::{
    buf::{BLOCK, Buf, BufMut, BufPool, BufSource},
    device::{DeviceError, Status},
    qos::AdmittedRequest,
    runtime::Gate,
    volume::{SectorSize, Volume},
};
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    ops::Range,
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Maximum bytes of one write of zeros.
pub const ZEROS_BYTES: u64 = 1 << 18;

/// Maximum interval between retries of a request that waits for free space.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Interval at which a request that waits for admission checks whether it still has to.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Byte access to a volume.
pub struct Bytes {
    volume: Volume,
    /// Timers of requests that wait for free space; without a ring these fail at once.
    ring: Option<Ring>,
    /// Set at shutdown: requests no longer wait for free space, but fail, nor for limits.
    ending: Cell<bool>,
    /// Requests are whole blocks, and their sender serializes overlapping ones: no claims are needed.
    whole: bool,
    pool: RefCell<BufPool>,
    /// Claimed blocks. No two ranges overlap.
    claimed: RefCell<Vec<Range<u64>>>,
    released: Gate,
}

/// Lock on the blocks of a request that changes them. Empty if the sender serializes overlapping requests.
pub struct RangeClaim<'b>(Option<&'b Bytes>, Range<u64>);

impl Drop for RangeClaim<'_> {
    fn drop(&mut self) {
        let Some(bytes) = self.0 else { return };
        bytes.claimed.borrow_mut().retain(|blocks| *blocks != self.1);
        bytes.released.open();
    }
}

/// A read or write that is counted for the throttling of volumes: it is completed when this is dropped.
#[must_use = "the request is completed when this is dropped"]
pub struct CountedRequest {
    volume: Volume,
    admitted: AdmittedRequest,
    blocks: u64,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.volume.answered(self.admitted, self.blocks, now_us);
    }
}

/// The blocks that contain these bytes.
fn covering(at: u64, bytes: u64) -> Range<u64> {
    at / BLOCK_BYTES..(at + bytes).div_ceil(BLOCK_BYTES)
}

impl Bytes {
    /// Requests without free space wait with timers of `ring`, if the volume is configured so; without it they fail.
    pub fn of(volume: Volume, buffers: BufSource, ring: Option<Ring>) -> Bytes {
        Bytes {
            volume,
            ring,
            ending: Cell::new(false),
            whole: false,
            pool: RefCell::new(BufPool::fed_by(buffers)),
            claimed: RefCell::default(),
            released: Gate::default(),
        }
    }

    /// Access in whole sectors of the volume. If these are blocks, requests do not claim anything.
    pub fn of_sectors(volume: Volume, buffers: BufSource, ring: Ring) -> Bytes {
        Bytes { whole: volume.sector() == SectorSize::B4096, ..Bytes::of(volume, buffers, Some(ring)) }
    }

    /// Waits until a refused request may be retried. `false` if it fails: it was refused for another reason than lack
    /// of space, its waiting time has expired, or [`Bytes::end_waiting`] was called. `since` is the time of its first
    /// refusal.
    pub async fn wait_for_room(&self, refused: DeviceError, since: &mut Option<Instant>) -> bool {
        let status = self.volume.status();
        let patience = Duration::from_secs(status.queue_seconds.into());
        let left = patience.saturating_sub(since.get_or_insert_with(Instant::now).elapsed());
        let waits = refused == Status::CapacityExceeded.into() && !left.is_zero() && !self.ending.get();
        let Some(ring) = self.ring.as_ref().filter(|_| waits) else { return false };
        let mut room = pin!(self.volume.room_made());
        let mut timer = pin!(ring.sleep(left.min(TRY_EVERY)));
        poll_fn(|context| match room.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => timer.as_mut().poll(context).map(|_| ()),
        })
        .await;
        true
    }

    /// Whether reads and writes may have to wait in [`Bytes::admit`].
    pub fn needs_admission(&self) -> bool {
        self.volume.needs_admission()
    }

    /// Waits until a read or write of so many bytes is within the limits of the volume, and as throttling requires; a part of
    /// a block counts as a block. Ends early when `is_over` holds, which is checked ten times a second, or after
    /// [`Bytes::end_waiting`]. Nothing is counted for a request that needs no admission.
    pub async fn admit(&self, bytes: u64, is_over: impl Fn() -> bool) -> Option<CountedRequest> {
        let ring = self.ring.as_ref().filter(|_| self.needs_admission())?;
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let sleep = |us| {
            let timer = ring.sleep(Duration::from_micros(us));
            async move { _ = timer.await }
        };
        let mut admitting = pin!(self.volume.admit(blocks, now_us, sleep));
        let mut check = Box::pin(ring.sleep(CHECK_EVERY));
        let admitted = poll_fn(|context| {
            if self.ending.get() || is_over() {
                return Poll::Ready(None);
            }
            while check.as_mut().poll(context).is_ready() {
                check = Box::pin(ring.sleep(CHECK_EVERY));
            }
            admitting.as_mut().poll(context).map(Some)
        });
        let volume = self.volume.clone();
        admitted.await.map(|admitted| CountedRequest { volume, admitted, blocks })
    }

    /// Fails the requests that wait for free space, and admits those that wait in [`Bytes::admit`]. None waits from now on.
    pub fn end_waiting(&self) {
        self.ending.set(true);
        self.volume.retry_refused();
    }

    /// Size of the volume, which may grow.
    pub fn size_bytes(&self) -> u64 {
        self.volume.blocks().saturating_mul(BLOCK_BYTES)
    }

    /// Whether this range lies in the volume.
    pub fn holds(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.size_bytes())
    }

    /// A buffer for the blocks that contain these bytes, and the range of the bytes in it.
    pub fn buffer(&self, at: u64, bytes: u64) -> (BufMut, Range<usize>) {
        let blocks = covering(at, bytes);
        let from = (at % BLOCK_BYTES) as usize;
        (self.pool.borrow_mut().take(blocks.end - blocks.start), from..from + bytes as usize)
    }

    /// Returns a buffer to the pool.
    pub fn give(&self, buffer: Buf) {
        self.pool.borrow_mut().give(buffer);
    }

    /// Reads the blocks that contain these bytes; also returns the range of the bytes in them.
    pub async fn read(&self, at: u64, bytes: u64) -> Result<(Buf, Range<usize>), DeviceError> {
        let (buffer, inside) = self.buffer(at, bytes);
        let data = self.volume.read(at / BLOCK_BYTES, buffer.freeze()).await?;
        Ok((data, inside))
    }

    /// As [`Bytes::read`], into several buffers, one behind the other: what the drives hold in one piece each is not
    /// copied. The range is that of the bytes in all buffers.
    pub async fn read_parts(&self, at: u64, bytes: u64) -> Result<(Vec<Buf>, Range<usize>), DeviceError> {
        let (blocks, from) = (covering(at, bytes), (at % BLOCK_BYTES) as usize);
        let parts = self.volume.read_parts(blocks.start, blocks.end - blocks.start, &self.pool).await?;
        Ok((parts, from..from + bytes as usize))
    }

    /// Waits until no other request holds a claim on a block of this range, which is not empty, and claims it.
    pub async fn claim(&self, at: u64, bytes: u64) -> RangeClaim<'_> {
        let blocks = covering(at, bytes);
        if self.whole {
            return RangeClaim(None, blocks);
        }
        let overlaps = |other: &Range<u64>| other.start < blocks.end && blocks.start < other.end;
        while self.claimed.borrow().iter().any(overlaps) {
            self.released.wait().await;
        }
        self.claimed.borrow_mut().push(blocks.clone());
        RangeClaim(Some(self), blocks)
    }

    /// Writes the claimed range `at` from `data`, a [`Bytes::buffer`], which remains valid if the write fails.
    pub async fn write(
        &self,
        claim: &RangeClaim<'_>,
        (at, bytes): (u64, u64),
        data: &mut BufMut,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let (blocks, end) = (covering(at, bytes), at + bytes);
        debug_assert!(claim.1.start <= blocks.start && blocks.end <= claim.1.end);
        let (head, tail) = ((at % BLOCK_BYTES) as usize, (end % BLOCK_BYTES) as usize);
        if head > 0 {
            let before = self.volume.read(blocks.start, Buf::zeroed(BLOCK)).await?;
            data[..head].copy_from_slice(&before[..head]);
        }
        if tail > 0 {
            let before = self.volume.read(blocks.end - 1, Buf::zeroed(BLOCK)).await?;
            let from = data.len() - BLOCK + tail;
            data[from..].copy_from_slice(&before[tail..]);
        }
        let written = std::mem::take(data).freeze();
        let result = self.volume.write(blocks.start, &written, fua).await;
        match result {
            Ok(()) => self.give(written),
            Err(_) => *data = written.into_mut(),
        }
        result
    }

    /// Zeros a claimed range that has to stay writable when the volume is full (NBD's NO_HOLE), such as a journal that
    /// is zeroed in advance. An overcommitted volume writes the zeros; others guarantee space for deallocated blocks.
    pub async fn zero_in_place(
        &self,
        claim: &RangeClaim<'_>,
        (at, bytes): (u64, u64),
    ) -> Result<(), DeviceError> {
        if !self.volume.is_over_committed() {
            return self.zero(claim, (at, bytes)).await;
        }
        let (mut from, end) = (at, at + bytes);
        while from < end {
            let to = end.min((from / ZEROS_BYTES + 1) * ZEROS_BYTES);
            let (mut data, inside) = self.buffer(from, to - from);
            data[inside].fill(0);
            self.write(claim, (from, to - from), &mut data, false).await?;
            from = to;
        }
        Ok(())
    }

    /// Whether [`Bytes::zero_in_place`] writes zeros, and so takes as long as a write.
    pub fn writes_zeros(&self) -> bool {
        self.volume.is_over_committed()
    }

    /// Zeros a claimed range; whole blocks are deallocated.
    pub async fn zero(&self, claim: &RangeClaim<'_>, (at, bytes): (u64, u64)) -> Result<(), DeviceError> {
        let end = at + bytes;
        let first = at.next_multiple_of(BLOCK_BYTES).min(end);
        let last = (end / BLOCK_BYTES * BLOCK_BYTES).max(first);
        self.discard(first..last).await?;
        for part in [at..first, last..end] {
            if !part.is_empty() {
                let bytes = part.end - part.start;
                let (mut data, inside) = self.buffer(part.start, bytes);
                data[inside].fill(0);
                self.write(claim, (part.start, bytes), &mut data, false).await?;
            }
        }
        Ok(())
    }

    /// Deallocates the blocks that lie entirely in this claimed range.
    pub async fn trim(&self, _: &RangeClaim<'_>, (at, bytes): (u64, u64)) -> Result<(), DeviceError> {
        let end = (at + bytes) / BLOCK_BYTES * BLOCK_BYTES;
        self.discard(at.next_multiple_of(BLOCK_BYTES)..end).await
    }

    async fn discard(&self, bytes: Range<u64>) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let blocks = bytes.start / BLOCK_BYTES..bytes.end / BLOCK_BYTES;
        self.volume.discard(blocks.start, blocks.end - blocks.start).await
    }

    pub async fn flush(&self) -> Result<(), DeviceError> {
        self.volume.flush().await
    }

    /// Length of the extent at `at`, at most `most` bytes, and whether it is allocated.
    pub async fn extent(&self, at: u64, most: u64) -> Result<(u64, bool), DeviceError> {
        let blocks = covering(at, most);
        let (mapped, alike) = self.volume.extent(blocks.start, blocks.end - blocks.start).await?;
        Ok((((blocks.start + alike) * BLOCK_BYTES - at).min(most), mapped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use emu::{
        rng::Rng,
        ssd::{EmulatedDrive, Model},
    };
    use engine::{
        runtime::Runtime,
        volume::{VolumeCreateOptions, VolumeOptions},
    };
    use std::rc::Rc;

    fn on_new_volume(runtime: &Runtime) -> Bytes {
        let drive = Rc::new(EmulatedDrive::in_memory(&Model::zn540().scaled(24, 1024).geometry));
        let made = Volume::create(
            runtime,
            drive.clone(),
            VolumeCreateOptions { uuid: [1; 16], blocks: Some(500), ..VolumeCreateOptions::default() },
        );
        runtime.block_on(made, || false).unwrap().unwrap();
        let volume = Volume::open(runtime, drive, VolumeOptions::default());
        let volume = runtime.block_on(volume, || false).unwrap().unwrap();
        Bytes::of(volume, Rc::new(|_| None), None)
    }

    #[test]
    fn byte_access_equals_flat_memory() {
        let runtime = Runtime::new();
        let bytes = on_new_volume(&runtime);
        let size = 500 * BLOCK_BYTES;
        let (mut flat, mut rng) = (vec![0_u8; size as usize], Rng::new(7));
        for round in 0..2000 {
            let at = rng.below(size);
            let count = 1 + rng.below((size - at).min(3 * BLOCK_BYTES));
            let range = at as usize..(at + count) as usize;
            let value = round as u8;
            let work = async {
                match round % 4 {
                    0 => {
                        let claim = bytes.claim(at, count).await;
                        bytes.zero(&claim, (at, count)).await.map(|()| flat[range.clone()].fill(0))
                    }
                    1 => {
                        let claim = bytes.claim(at, count).await;
                        bytes.trim(&claim, (at, count)).await?;
                        let first = at.next_multiple_of(BLOCK_BYTES) as usize;
                        let end = ((at + count) / BLOCK_BYTES * BLOCK_BYTES) as usize;
                        flat[first.min(end)..end].fill(0);
                        Ok(())
                    }
                    2 => {
                        let (mut data, inside) = bytes.buffer(at, count);
                        data[inside].fill(value);
                        let claim = bytes.claim(at, count).await;
                        let written = bytes.write(&claim, (at, count), &mut data, false).await;
                        written.map(|()| flat[range.clone()].fill(value))
                    }
                    _ => {
                        let (data, inside) = bytes.read(at, count).await?;
                        assert!(data[inside.clone()] == flat[range.clone()], "round {round}");
                        let (parts, in_parts) = bytes.read_parts(at, count).await?;
                        let together: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
                        assert!(together == data[..] && in_parts == inside, "round {round}");
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
        assert!(bytes.claimed.borrow().is_empty());
        runtime.clear();
    }

    #[test]
    fn concurrent_writes_to_parts_of_block_all_persist() {
        for seed in 0..50 {
            let runtime = Runtime::seeded(seed);
            let bytes = Rc::new(on_new_volume(&runtime));
            for part in 0..8_u64 {
                let bytes = bytes.clone();
                runtime.spawn(async move {
                    let (mut data, inside) = bytes.buffer(part * 512, 512);
                    data[inside].fill(part as u8 + 1);
                    let claim = bytes.claim(part * 512, 512).await;
                    bytes.write(&claim, (part * 512, 512), &mut data, false).await.unwrap();
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
