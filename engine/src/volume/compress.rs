//! Compression of the blocks of a write into pieces: in the task of the write, or by the workers.

use crate::{
    buf::{BLOCK, Buf},
    volume::{
        address::Unit,
        core::VolumeCore,
        piece::{CompressionJob, CompressionWorkers, Encoding, PackedPieces, PendingJob},
    },
};
use std::{collections::VecDeque, ops::Range};

/// End of the part that begins at block `from` of a write to the logical block `at`. A part has 16 blocks at most, and
/// ends at a multiple of 16 logical blocks, so that no unit is in two parts.
pub fn part_end(at: u64, from: u64, data: &Buf) -> u64 {
    let part = Unit::MOST.blocks() as u64;
    data.blocks().min(Unit::MOST.first(at + from) + part - at)
}

/// Parts of a write that were offered to the workers.
#[derive(Default)]
pub struct WriteParts {
    /// End of the parts that were offered, in blocks of the write.
    offered: u64,
    /// Jobs of these parts, the next one first; `None` for a part that is packed in the task of the write.
    taken: VecDeque<Option<PendingJob>>,
}

/// Guard that counts a write in progress.
pub struct WriteCount<'c>(&'c VolumeCore);

impl<'c> WriteCount<'c> {
    pub fn new(core: &'c VolumeCore) -> WriteCount<'c> {
        core.writers.set(core.writers.get() + 1);
        WriteCount(core)
    }
}

impl Drop for WriteCount<'_> {
    fn drop(&mut self) {
        self.0.writers.set(self.0.writers.get() - 1);
    }
}

/// Whether the next `blocks` blocks of a write are stored uncompressed without a try; then they count as untried.
pub fn passes(core: &VolumeCore, blocks: u64, parts: &WriteParts) -> bool {
    parts.taken.is_empty() && core.state.borrow_mut().patience.passes(blocks)
}

/// Packs a part of a write. All later parts are offered to the workers first, and this part too if other writes are in
/// progress, which can continue meanwhile. Nothing is offered while few units are tried, since that takes little time.
pub async fn pack(
    core: &VolumeCore,
    at: u64,
    data: &Buf,
    part: Range<u64>,
    encoding: Encoding,
    parts: &mut WriteParts,
) -> PackedPieces {
    let blocks =
        |part: Range<u64>| (at + part.start, &data[part.start as usize * BLOCK..part.end as usize * BLOCK]);
    // Workers may have been added while earlier parts were packed here.
    parts.offered = parts.offered.max(part.start);
    if let Some(workers) = &*core.workers.borrow()
        && !core.state.borrow().patience.is_out()
    {
        if parts.offered <= part.start && core.writers.get() == 1 {
            parts.offered = part.end;
            parts.taken.push_back(None);
        }
        while parts.offered < data.blocks() {
            let end = part_end(at, parts.offered, data);
            let taken = offer(core, &**workers, blocks(parts.offered..end), encoding);
            if taken.is_none() && parts.offered > part.start {
                break;
            }
            parts.offered = end;
            parts.taken.push_back(taken);
        }
    }
    if let Some(Some(taken)) = parts.taken.pop_front()
        && let Some(compression) = taken.await
    {
        core.state.borrow_mut().patience.learn(&compression);
        return compression.packed;
    }
    let (mut encoder, mut state) = (core.encoder.borrow_mut(), core.state.borrow_mut());
    encoder.get_or_insert_default().pack(blocks(part), encoding, &mut state.patience)
}

/// Offers blocks to the workers; `None` if they are busy.
fn offer(
    core: &VolumeCore,
    workers: &dyn CompressionWorkers,
    blocks: (u64, &[u8]),
    encoding: Encoding,
) -> Option<PendingJob> {
    workers.take(CompressionJob::new(blocks, encoding, core.state.borrow().patience)).ok()
}
